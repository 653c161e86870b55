// SPDX-License-Identifier: MIT
#include "railyard/data/array_source.hpp"

#include "railyard/data/idx_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::string idx_bytes(const std::string& values) {
  return std::string{"\0\0\x08\x01\0\0\0", 7} + static_cast<char>(values.size()) + values;
}

}  // namespace

TEST_CASE("ArraySource: leaves out as many damaged files as it may, and counts them") {
  const TemporaryFolder folder;
  folder.write("a", idx_bytes("xy"));
  folder.write("b", "damaged");
  folder.write("c", idx_bytes("z"));
  folder.write("d", idx_bytes("cut off").substr(0, 12));
  const ry::IdxSource skipping{folder / "*", {.on_error = ry::OnError::skip()}};
  CHECK(skipping.count() == 3);
  CHECK(skipping.skipped() == 2);
  CHECK(binary_files::all_values<std::uint8_t>(skipping, "image") == std::vector<std::uint8_t>{'x', 'y', 'z'});
  CHECK_THAT(binary_files::error_of(ry::IdxSource{folder / "*", {.on_error = ry::OnError::at_most(1)}}),
             ContainsSubstring("/d: byte 8"));
  CHECK_THAT(binary_files::error_of(ry::IdxSource{folder / "*"}), ContainsSubstring("/b: byte 0"));
  CHECK_THAT(binary_files::error_of(ry::IdxSource{folder / "b", {.on_error = ry::OnError::skip()}}),
             ContainsSubstring("/b: byte 0"));
}

TEST_CASE("ArraySource: opens nothing before it is asked, and names a file that is not there") {
  const ry::IdxSource source{"no such file"};
  CHECK_THAT(source.describe(), ContainsSubstring("IDX no such file"));
  CHECK_THAT(binary_files::error_of(source), ContainsSubstring("\"no such file\""));
}

TEST_CASE("ArraySource: says that a file has become shorter") {
  const TemporaryFolder folder;
  const std::string path = folder.write("a", idx_bytes("xyz"));
  const ry::IdxSource source{path};
  REQUIRE(source.count() == 3);
  std::filesystem::resize_file(path, 9);
  CHECK_THAT(binary_files::error_of(source), ContainsSubstring("has changed"));
}

TEST_CASE("ArraySource: reads more files than are kept open") {
  const TemporaryFolder folder;
  for (int file = 0; file < 100; ++file) {
    folder.write("f" + std::to_string(100 + file), idx_bytes(std::string(1, static_cast<char>(file))));
  }
  const ry::IdxSource source{folder / "f*"};
  REQUIRE(source.count() == 100);
  binary_files::check_order_of(source);
  folder.write("f150", "now another file");
  CHECK_THAT(binary_files::error_of(source), ContainsSubstring("f150: byte 8: the file has changed"));
}

TEST_CASE("ArraySource: wants as many files of each list, of equal columns, and a label that is there") {
  const TemporaryFolder folder;
  folder.write("a1", idx_bytes("xy"));
  folder.write("a2", idx_bytes("xy"));
  folder.write("b", std::string{"\0\0\x08\x02\0\0\0\1\0\0\0\1z", 13});
  CHECK_THROWS_AS((ry::IdxSource{folder / "a*", folder / "b"}.count()), ry::ConfigError);
  CHECK_THAT(binary_files::error_of(ry::IdxSource{ry::InputFiles{folder / "a1", folder / "b"}}),
             ContainsSubstring("other names, types or shapes"));
}
