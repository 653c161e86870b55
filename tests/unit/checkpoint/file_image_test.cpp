// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/file_image.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"

#include <map>

using namespace railyard_test;

namespace {

std::map<std::string, std::string> images_of(std::span<const ry::NamedState> parts, int rank) {
  std::map<std::string, std::string> contents;
  for (const auto& image : ry::file_images(parts, rank)) contents.emplace(image.name, content_of(image));
  return contents;
}

ry::State one_tensor(ry::StateTensor tensor) {
  ry::State state;
  state.tensors.push_back(std::move(tensor));
  return state;
}

}  // namespace

TEST_CASE("file_images: what all ranks have is written by rank 0 alone") {
  const std::vector<ry::NamedState> parts{{"net", one_tensor(tensor_of<float>("w", {2}, {1, 2}))},
                                          {"loss", ry::State{{"sum", 1.5}}}};
  const auto of_first = images_of(parts, 0);
  CHECK(of_first.size() == 2);
  CHECK(of_first.contains("net.safetensors"));
  CHECK(of_first.contains("state.json"));
  CHECK(images_of(parts, 1).empty());
}

TEST_CASE("FAULTS F10: file_images: ranks never write to the same file") {
  ry::State own{{"seed", 1}};
  own.is_own = true;
  own.tensors.push_back(tensor_of<std::uint8_t>("state", {3}, {1, 2, 3}));
  const auto parts_of = [&](int rank) {
    ry::State optimizer = one_tensor(piece_of(tensor_of<float>("m", {4}, {1, 2, 3, 4}), 2 * rank, 2 * rank + 2));
    optimizer.tensors.push_back(tensor_of<float>("whole", {1}, {9}));
    return std::vector<ry::NamedState>{{"optimizer", optimizer}, {"random", own}};
  };
  std::map<std::string, int> writers;
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto& [name, content] : images_of(parts_of(rank), rank)) ++writers[name];
  }
  const std::map<std::string, int> expected{{"state.json", 1},
                                            {"optimizer.safetensors", 1},
                                            {"state.rank-0.json", 1},
                                            {"state.rank-1.json", 1},
                                            {"optimizer.rank-0.safetensors", 1},
                                            {"optimizer.rank-1.safetensors", 1},
                                            {"random.rank-0.safetensors", 1},
                                            {"random.rank-1.safetensors", 1}};
  CHECK(writers == expected);
}

TEST_CASE("file_images: the file of a module is what the format asks for, to the byte") {
  const std::vector<ry::NamedState> parts{{"net", one_tensor(tensor_of<float>("w", {2}, {1, 2}))}};
  const std::string file = images_of(parts, 0).at("net.safetensors");
  const std::string json = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(file.size() == 64 + 8);
  CHECK(file.substr(0, 8) == std::string{"\x38\0\0\0\0\0\0\0", 8});
  CHECK(file.substr(8, 56) == json + std::string(56 - json.size(), ' '));
  CHECK(file.substr(64) == std::string{"\0\0\x80\x3F\0\0\0\x40", 8});
}

TEST_CASE("file_images: refuses names that are taken or could leave the directory, and names the part") {
  const auto refused = [](std::vector<ry::NamedState> parts, const std::string& why) {
    CHECK_THROWS_AS(ry::file_images(parts, 0), ry::ConfigError);
    CHECK_THROWS_WITH(ry::file_images(parts, 0), ContainsSubstring(why));
  };
  refused({{"net", {}}, {"net", {}}}, "\"net\" cannot be in a checkpoint: there are two");
  refused({{"../net", {}}}, "'/'");
  refused({{"..", {}}}, "of its own");
  refused({{"net\n", {}}}, "control characters");
  refused({{"", {}}}, "empty");
  refused({{"net.rank-1", {}}}, ".rank-");
  const auto tensor = tensor_of<float>("w", {2}, {1, 2});
  ry::State twice = one_tensor(tensor);
  twice.tensors.push_back(tensor);
  refused({{"net", twice}}, "two tensors \"w\"");
  auto named = tensor;
  named.name = std::string{"w\0", 2};
  refused({{"net", one_tensor(named)}}, "control characters");
  named.name = "__metadata__";
  refused({{"net", one_tensor(named)}}, "reserved");
  named = tensor;
  named.shape = {2, -1};
  refused({{"net", one_tensor(named)}}, "\"w\": a shape has an impossible size");
  refused({{"net", one_tensor({.name = "w"})}}, "no read function");
  refused({{"net", one_tensor(piece_of(tensor, 1, 3))}}, "[1, 3) is not within its 2 elements");
  ry::State own = one_tensor(piece_of(tensor, 0, 1));
  own.is_own = true;
  refused({{"net", own}}, "own");
}
