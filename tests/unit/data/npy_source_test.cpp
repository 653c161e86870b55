// SPDX-License-Identifier: MIT
#include "railyard/data/npy_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"

#include <bit>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::string npy_file(const std::string& header, const std::string& data, char version = 1) {
  const std::string magic = std::string{"\x93NUMPY"} + version + '\0';
  const std::string length = version == 1 ? binary_files::bytes_of(static_cast<std::uint16_t>(header.size()))
                                          : binary_files::bytes_of(static_cast<std::uint32_t>(header.size()));
  return magic + length + header + data;
}
std::string npy_header(const std::string& descr, const std::string& shape, const std::string& is_fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + is_fortran + ", 'shape': " + shape + ", }  \n";
}

ry::NpySource npy_source(const std::string& path) { return ry::NpySource{{{"data", path}}}; }

}  // namespace

TEST_CASE("NpySource: reads arrays of several files in the order of C, of either end first, in each version") {
  const TemporaryFolder folder;
  folder.write("x-0.npy", npy_file(npy_header("<f4", "(2, 2)"), binary_files::bytes_of<float>({1, 2, 3, 4})));
  folder.write("x-1.npy",
               npy_file(npy_header(">f4", "(1, 2)"), binary_files::bytes_of<float>({5, 6}, std::endian::big), 2));
  folder.write("y-0.npy", npy_file("{\"shape\":(2L,),\"descr\":\"<u2\",\"fortran_order\":False}",
                                   binary_files::bytes_of<std::uint16_t>({7, 65'535}), 3));
  folder.write("y-1.npy", npy_file(npy_header("<u2", "(1,)"), binary_files::bytes_of(std::uint16_t{9})));
  const ry::NpySource source{{{"x", folder / "x-*.npy"}, {"y", folder / "y-*.npy"}}, {.label = "y"}};
  CHECK(source.schema() == ry::Schema{{"x", ry::Dtype::f32, {2}}, {"y", ry::Dtype::i32}});
  CHECK(source.label() == "y");
  CHECK(binary_files::all_values<float>(source, "x") == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(binary_files::all_values<std::int32_t>(source, "y") == std::vector<std::int32_t>{7, 65'535, 9});
  binary_files::check_order_of(source);
}

TEST_CASE("NpySource: turns arrays in the order of Fortran") {
  const TemporaryFolder folder;
  // Element (i, j, k) is 100 i + 10 j + k.
  std::vector<std::int16_t> values;
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) values.push_back(static_cast<std::int16_t>(100 * i + 10 * j + k));
    }
  }
  const ry::NpySource source = npy_source(folder.write(
      "a.npy", npy_file(npy_header(">i2", "(2, 3, 4)", "True"), binary_files::bytes_of(values, std::endian::big))));
  std::vector<std::int32_t> expected;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) expected.push_back(100 * i + 10 * j + k);
    }
  }
  CHECK(binary_files::all_values<std::int32_t>(source, "data") == expected);
  binary_files::check_order_of(source);
}

TEST_CASE("NpySource: takes any byte but 0 for true") {
  const TemporaryFolder folder;
  const ry::NpySource source =
      npy_source(folder.write("a.npy", npy_file(npy_header("|b1", "(3,)"), std::string("\0\1\2", 3))));
  CHECK(binary_files::all_values<bool>(source, "data") == std::vector<bool>{false, true, true});
}

TEST_CASE("NpySource: refuses elements that make no column, and names their type") {
  const TemporaryFolder folder;
  for (const std::string type : {"|O", "<U3", "|S5", "<u8", "<c8", "<f16", "<M8[ns]", "|V8", "<i3", "?f4"}) {
    CHECK_THAT(binary_files::error_of(
                   npy_source(folder.write("a.npy", npy_file(npy_header(type, "(1,)"), std::string(16, 'x'))))),
               ContainsSubstring("a.npy: byte 10: column \"data\": elements of type \"" + type + "\""));
  }
  CHECK_THAT(binary_files::error_of(npy_source(folder.write(
                 "a.npy", npy_file("{'descr': [('a', '<i4'), ('b', '<f4')], 'shape': (1,)}", std::string(8, 'x'))))),
             ContainsSubstring("structures, [('a', '<i4'), ('b', '<f4')]"));
}

TEST_CASE("NpySource: says where a file is damaged") {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& bytes) {
    return binary_files::error_of(npy_source(folder.write("a.npy", bytes)));
  };
  const std::string data(8, 'x');
  CHECK(error(npy_file(npy_header("<f4", "(2,)"), data)) == "no error");
  CHECK_THAT(error(npy_file(npy_header("<f4", "(3,)"), data)), ContainsSubstring("shape (3)"));
  CHECK_THAT(error(npy_file(npy_header("<f4", "()"), data)), ContainsSubstring("single number"));
  CHECK_THAT(error(npy_file(npy_header("<f4", "(1, 0)"), data)), ContainsSubstring("empty"));
  CHECK_THAT(error(npy_file(npy_header("<f4", "(4611686018427387904, 4)"), data)), ContainsSubstring("cut off"));
  CHECK_THAT(error(npy_file(npy_header("<f4", "(0, 4611686018427387904)"), data)), ContainsSubstring("any file"));
  CHECK_THAT(error(npy_file(npy_header("<f4", "(99999999999999999999,)"), data)), ContainsSubstring("size"));
  CHECK_THAT(error(npy_file(npy_header("<f4", "(-1,)"), data)), ContainsSubstring("size"));
  CHECK_THAT(error(npy_file("{'descr': '<f4', 'descr': '<f4'}", data)), ContainsSubstring("twice"));
  CHECK_THAT(error(npy_file("{'descr': '<f4', 'shape': (2,)}", data)), ContainsSubstring("lacks"));
  CHECK_THAT(error(npy_file("{'other': 3}", data)), ContainsSubstring("unknown key"));
  CHECK_THAT(error(npy_file("{'descr", data)), ContainsSubstring("quotes"));
  CHECK_THAT(error(npy_file("", data, 4)), ContainsSubstring("version 4"));
  CHECK_THAT(error("\x93NUMPY\x01"), ContainsSubstring("cut off"));
  CHECK_THAT(error("no array at all"), ContainsSubstring("byte 0"));
  CHECK_THAT(error(npy_file(std::string(70'000, ' '), "", 2).substr(0, 1000)), ContainsSubstring("too long"));
}

TEST_CASE("NpySource: wants a column") {
  CHECK_THROWS_AS(ry::NpySource{std::vector<ry::NpyColumn>{}}, ry::ConfigError);
}

TEST_CASE("NpySource: names the array whose shape is none of samples, and notices that a file was written to") {
  const TemporaryFolder folder;
  const auto empty = folder.write("e.npy", npy_file(npy_header("<f4", "(3, 0)"), ""));
  CHECK_THROWS_WITH(npy_source(empty).schema(), ContainsSubstring("column \"data\" of shape (3, 0)"));
  const auto large = folder.write("l.npy", npy_file(npy_header("<f4", "(3, 1099511627776, 9)"), ""));
  CHECK_THROWS_WITH(npy_source(large).schema(), ContainsSubstring("column \"data\" of shape"));
  const auto of = [](float value) { return npy_file(npy_header("<f4", "(1,)"), binary_files::bytes_of(value)); };
  const auto path = folder.write("x.npy", of(1));
  const ry::NpySource source = npy_source(path);
  const std::uint64_t first[] = {0};
  CHECK(source.read(first)[0].values<float>(0)[0] == 1);
  folder.write("x.npy", of(2));
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() + std::chrono::hours{1});
  CHECK_THROWS_WITH(source.read(first), ContainsSubstring("x.npy") && ContainsSubstring("has changed"));
}
