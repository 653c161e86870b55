// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/part_bytes.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/failing_files.hpp"

#include <algorithm>

using namespace railyard_test;

namespace {

constexpr std::size_t piece_bytes = std::size_t{8} << 20U;

// Is a large file that is never in memory as a whole, and what was read of it.
struct LargePart {
  std::vector<std::byte> piece{};
  std::vector<std::size_t> begins{};
  std::size_t failing_begin = ~std::size_t{0};

  [[nodiscard]] ry::CheckpointFolder::Part part(std::size_t size) {
    return {"large", {size, [this](std::size_t begin, std::size_t count) { return read(begin, count); }}};
  }
  [[nodiscard]] std::span<const std::byte> read(std::size_t begin, std::size_t size) {
    if (begin == failing_begin) throw ry::Error{"the process that has it is lost"};
    begins.push_back(begin);
    piece.resize(size);
    for (std::size_t at = 0; at < size; ++at) piece[at] = std::byte((begin + at) % 251);
    return piece;
  }
};

std::size_t count_descriptors() {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator{"/proc/self/fd"}, fs::directory_iterator{}));
}

}  // namespace

TEST_CASE("PartBytes: are memory, or read piece by piece as they are written, and anew where writing fails") {
  const std::array memory{std::byte{1}, std::byte{2}, std::byte{3}};
  const ry::PartBytes bytes{memory};
  CHECK(bytes.size() == 3);
  CHECK(bytes.read(1, 2).front() == std::byte{2});
  CHECK(ry::PartBytes{}.read(0, 0).empty());

  const Scratch scratch;
  const std::size_t size = 2 * piece_bytes + 5;
  LargePart large;
  const std::vector parts{large.part(size), ry::CheckpointFolder::Part{"small", memory}};
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const auto checkpoint = ry::Checkpoint::open(folder.commit({}, parts));
  checkpoint.verify();
  CHECK(large.begins == std::vector<std::size_t>{0, piece_bytes, 2 * piece_bytes});
  CHECK(large.piece.capacity() <= piece_bytes);
  const std::string text = read_file(checkpoint.path() / "large");
  REQUIRE(text.size() == size);
  std::size_t num_right = 0;
  for (std::size_t at = 0; at < size; ++at) num_right += static_cast<unsigned char>(text[at]) == at % 251 ? 1 : 0;
  CHECK(num_right == size);

  std::shared_ptr<FailingFiles> files;
  for (int number = 0; !files || files->failed() != "write"; ++number) {
    files = std::make_shared<FailingFiles>(number, EIO);
    const Scratch other;
    large.begins.clear();
    try {
      ry::CheckpointFolder failing{other.path() / "checkpoints", 1, files};
      ry::Checkpoint::open(failing.commit({}, parts)).verify();
    } catch (const ry::Error&) {
      REQUIRE(files->failed() != "write");
    }
  }
  CHECK(large.begins.front() == 0);
  CHECK(std::count(large.begins.begin(), large.begins.end(), 0) == 2);
}

TEST_CASE("PartBytes: what cannot be read to its end ends the commit, and leaves the old checkpoint and nothing else") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  folder.commit({.step = 1}, small_contribution().parts());
  LargePart large;
  const std::vector parts{large.part(3 * piece_bytes)};
  const std::size_t num_descriptors = count_descriptors();
  for (const std::size_t failing : {std::size_t{0}, piece_bytes, 2 * piece_bytes}) {
    large.failing_begin = failing;
    CHECK_THROWS_WITH(folder.commit({.step = 2}, parts), "the process that has it is lost");
    CHECK(count_descriptors() == num_descriptors);
    REQUIRE(folder.newest());
    CHECK(folder.newest()->manifest().step == 1);
    CHECK(std::distance(fs::directory_iterator{scratch.path() / "checkpoints"}, fs::directory_iterator{}) == 1);
  }
  large.failing_begin = ~std::size_t{0};
  folder.commit({.step = 3}, parts);
  CHECK(folder.newest()->manifest().step == 3);
}
