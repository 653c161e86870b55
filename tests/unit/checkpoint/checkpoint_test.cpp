// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/checkpoint.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"

#include "railyard/core/mean.hpp"

#include <cmath>

using namespace railyard_test;

namespace {

// The state of one part, saved by all ranks and loaded by one of them.
std::optional<ry::State> saved_and_loaded(const std::vector<ry::State>& by_rank, int loading_rank) {
  const Scratch scratch;
  Contribution contribution;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::vector<ry::NamedState> parts{{"part", by_rank[rank]}};
    contribution.add(parts, static_cast<int>(rank));
  }
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const auto checkpoint = ry::Checkpoint::open(folder.commit({}, contribution.parts()));
  checkpoint.verify();
  return checkpoint.load("part", loading_rank);
}

ry::State pieces(std::vector<std::pair<std::int64_t, std::int64_t>> bounds) {
  ry::State state;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto whole = tensor_of<std::int32_t>(std::to_string(i), {2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    state.tensors.push_back(piece_of(whole, bounds[i].first, bounds[i].second));
  }
  return state;
}

template <class T>
void check_kept(std::vector<T> elements) {
  ry::State state;
  state.tensors.push_back(tensor_of<T>("w", {static_cast<std::int64_t>(elements.size())}, elements));
  const auto loaded = saved_and_loaded({state}, 0);
  REQUIRE(loaded);
  CHECK(elements_of<T>(loaded->tensors.at(0)) == elements);
}

}  // namespace

TEST_CASE("Checkpoint: gives back values, tensors, and what the manifest says") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", 3};
  const ry::Manifest manifest{.id = "x1",
                              .world_size = 2,
                              .step = std::numeric_limits<std::uint64_t>::max(),
                              .samples = 640,
                              .epoch = 2,
                              .report = 5,
                              .attempt = 1,
                              .metrics = {{"loss", std::nan("")}, {"accuracy", 0.1}},
                              .environment = {{"railyard", "0.1.0"}, {"threads", 2}}};
  const auto path = folder.commit(manifest, small_contribution().parts());
  CHECK(path == scratch.path() / "checkpoints" / "checkpoint-000001");

  const auto checkpoint = ry::Checkpoint::open(path);
  checkpoint.verify();
  CHECK(checkpoint.path() == path);
  CHECK(checkpoint.manifest().id == "x1");
  CHECK(checkpoint.manifest().generation == 3);
  CHECK(checkpoint.manifest().world_size == 2);
  CHECK(checkpoint.manifest().step == manifest.step);
  CHECK(checkpoint.manifest().samples == 640);
  CHECK(checkpoint.manifest().epoch == 2);
  CHECK(checkpoint.manifest().report == 5);
  CHECK(checkpoint.manifest().attempt == 1);
  CHECK(std::isnan(checkpoint.manifest().metrics.at("loss").as<double>()));
  CHECK(checkpoint.manifest().metrics.at("accuracy") == ry::Value{0.1});
  CHECK(checkpoint.manifest().environment == manifest.environment);
  CHECK(checkpoint.manifest().created_at.size() == 20);
  CHECK(checkpoint.manifest().files.size() == 7);

  CHECK(checkpoint.parts() == std::vector<std::string>{"net", "optimizer", "random"});
  CHECK(checkpoint.contains("net"));
  CHECK(!checkpoint.contains("scheduler"));
  CHECK(!checkpoint.load("scheduler", 0));
  CHECK(checkpoint.files() == std::vector{path / "files" / "vocabulary" / "words.txt"});
  CHECK(read_file(checkpoint.files().at(0)) == "ant bee cat");

  const auto net = checkpoint.load("net", 1);
  REQUIRE(net);
  CHECK(net->values == ry::NamedValues{{"trained", true}});
  CHECK(elements_of<float>(*net->find_tensor("weight")) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(net->find_tensor("weight")->shape == std::vector<std::int64_t>{2, 3});
  CHECK(elements_of<std::int64_t>(*net->find_tensor("steps")) == std::vector<std::int64_t>{7});
  CHECK(net->find_tensor("steps")->shape.empty());
  CHECK(!net->is_own);
}

TEST_CASE("Checkpoint: tensors of every type come back bit by bit") {
  check_kept<float>({1.5F, -0.0F, 3e-45F});
  check_kept<double>({1.5, 1.0 / 3});
  check_kept<ry::Float16>({ry::Float16{1.5F}, ry::Float16{-2.0F}});
  check_kept<ry::BFloat16>({ry::BFloat16{1.5F}});
  check_kept<std::int8_t>({-128, 127});
  check_kept<std::uint8_t>({255});
  check_kept<std::int32_t>({std::numeric_limits<std::int32_t>::min()});
  check_kept<std::int64_t>({std::numeric_limits<std::int64_t>::min()});
  check_kept<double>({});
}

TEST_CASE("Checkpoint: any range of a tensor can be read, and none beyond it") {
  ry::State state;
  state.tensors.push_back(tensor_of<double>("w", {2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const auto loaded = saved_and_loaded({state}, 0);
  std::vector<double> some(3);
  auto* to = reinterpret_cast<std::byte*>(some.data());
  loaded->tensors[0].read(4, 7, to);
  CHECK(some == std::vector<double>{4, 5, 6});
  CHECK_THROWS_AS(loaded->tensors[0].read(8, 11, to), ry::Error);
  CHECK_THROWS_AS(loaded->tensors[0].read(-1, 1, to), ry::Error);
  CHECK_THROWS_AS(loaded->tensors[0].read(3, 2, to), ry::Error);
}

TEST_CASE("Checkpoint: the pieces of all ranks are one tensor again, for any rank of any world") {
  const auto loaded = saved_and_loaded(
      {pieces({{7, 10}, {0, 10}, {0, 0}}), pieces({{0, 4}, {0, 0}, {0, 6}}), pieces({{4, 7}, {10, 10}, {4, 10}})}, 17);
  REQUIRE(loaded);
  CHECK(!loaded->is_own);
  REQUIRE(loaded->tensors.size() == 3);
  for (const auto& tensor : loaded->tensors) {
    CHECK(tensor.shape == std::vector<std::int64_t>{2, 5});
    CHECK(!tensor.is_piece);
    CHECK(elements_of<std::int32_t>(tensor) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    for (std::int64_t begin = 0; begin < 10; ++begin) {
      for (std::int64_t end = begin; end <= 10; ++end) {
        std::vector<std::int32_t> some(11, -1);
        tensor.read(begin, end, reinterpret_cast<std::byte*>(some.data()));
        for (std::int64_t i = begin; i < end; ++i) CHECK(some[static_cast<std::size_t>(i - begin)] == i);
        CHECK(some[static_cast<std::size_t>(end - begin)] == -1);
      }
    }
  }
}

TEST_CASE("Checkpoint: says which elements are in no rank's file") {
  CHECK_THROWS_WITH(saved_and_loaded({pieces({{0, 4}}), pieces({{5, 10}})}, 0),
                    ContainsSubstring("part.rank-*.safetensors") && ContainsSubstring("\"0\" from 4 on"));
  CHECK_THROWS_WITH(saved_and_loaded({pieces({{0, 9}})}, 0), ContainsSubstring("from 9 on"));
  CHECK_THROWS_AS(saved_and_loaded({pieces({{1, 10}})}, 0), ry::DataError);
}

TEST_CASE("Checkpoint: pieces of one tensor with different shapes are refused") {
  ry::State other;
  other.tensors.push_back(piece_of(tensor_of<std::int32_t>("0", {10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 5, 10));
  CHECK_THROWS_WITH(saved_and_loaded({pieces({{0, 5}}), other}, 0),
                    ContainsSubstring("part.rank-1.safetensors") && ContainsSubstring("another shape or type"));
}

TEST_CASE("Checkpoint: each rank gets its own part back, and a new rank nothing") {
  std::vector<ry::State> by_rank(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& state = by_rank[static_cast<std::size_t>(rank)];
    state.is_own = true;
    state.values.set("rank", rank);
    state.tensors.push_back(tensor_of<std::uint8_t>("bytes", {1}, {static_cast<std::uint8_t>(rank)}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    const auto loaded = saved_and_loaded(by_rank, rank);
    REQUIRE(loaded);
    CHECK(loaded->is_own);
    CHECK(loaded->at("rank") == ry::Value{rank});
    CHECK(elements_of<std::uint8_t>(loaded->tensors.at(0)) == std::vector{static_cast<std::uint8_t>(rank)});
  }
  CHECK(!saved_and_loaded(by_rank, 2));
}

TEST_CASE("Checkpoint: puts a part into an object, or says which parts there are") {
  const Scratch scratch;
  ry::Mean loss;
  loss.add(2.5, 4);
  Contribution contribution;
  const std::vector<ry::NamedState> parts{{"loss", loss.state()}};
  contribution.add(parts, 0);
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const auto checkpoint = ry::Checkpoint::open(folder.commit({}, contribution.parts()));

  ry::Mean loaded;
  checkpoint.load_into("loss", loaded);
  CHECK(loaded.sum() == 10);
  CHECK_THROWS_WITH(checkpoint.load_into("lost", loaded), ContainsSubstring("\"lost\"") && ContainsSubstring("loss"));
  CHECK_THROWS_AS(checkpoint.load_into("loss", loaded, 1), ry::ConfigError);  // it is rank 0's own
}

TEST_CASE("Checkpoint: tensors can be read after it is gone from the disk and from memory") {
  Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  std::optional<ry::State> net;
  {
    const auto checkpoint = ry::Checkpoint::open(folder.commit({}, small_contribution().parts()));
    net = checkpoint.load("net", 0);
  }
  fs::remove_all(scratch.path() / "checkpoints");
  CHECK(elements_of<float>(*net->find_tensor("weight")).at(5) == 6);
}

TEST_CASE("Checkpoint: a folder that is none is refused by name") {
  const Scratch scratch;
  CHECK_THROWS_AS(ry::Checkpoint::open(scratch.path() / "nowhere"), ry::DataError);
  CHECK_THROWS_WITH(ry::Checkpoint::open(scratch.path()), ContainsSubstring("manifest.json: it is missing"));
}
