// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/detail/safetensors.hpp"

#include "support/catch.hpp"

#include <string>

namespace ry = railyard;
using ry::detail::Damage;
using ry::detail::read_tensors_header;
using ry::detail::TensorPlace;

namespace {

std::uint64_t length_in(std::string_view file, std::uint64_t file_size) {
  return ry::detail::read_tensors_header_length(std::as_bytes(std::span{file}).first<8>(), file_size);
}

std::string with_offsets(std::string_view begin, std::string_view end, std::string_view shape = "[2]") {
  return R"({"a": {"dtype": "F32", "shape": )" + std::string{shape} + R"(, "data_offsets": [)" + std::string{begin} +
         ", " + std::string{end} + "]}}";
}

}  // namespace

TEST_CASE("A header of tensors: comes back as it was, with every dtype, aligned, without gaps") {
  std::vector<TensorPlace> tensors;
  for (const ry::Dtype dtype : ry::all_dtypes) {
    tensors.push_back({.name = "tensor of " + std::string{ry::name_of(dtype)}, .dtype = dtype, .shape = {3, 1}});
  }
  tensors.push_back({.name = "one \"number\" \xC3\xA9/x", .dtype = ry::Dtype::f32, .shape = {}});
  tensors.push_back({.name = "nothing", .dtype = ry::Dtype::f64, .shape = {4, 0}});
  const std::uint64_t size = ry::detail::place_tensors(tensors);
  CHECK(size == 3 * (2 + 2 + 4 + 8 + 1 + 1 + 4 + 8 + 1) + 4);

  const std::string header = ry::detail::tensors_header(tensors);
  CHECK(header.size() % 64 == 0);
  REQUIRE(length_in(header, header.size() + size) == header.size() - 8);
  const auto back = read_tensors_header(std::string_view{header}.substr(8), size);
  REQUIRE(back.size() == tensors.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    CHECK(back[i].name == tensors[i].name);
    CHECK(back[i].dtype == tensors[i].dtype);
    CHECK(back[i].shape == tensors[i].shape);
    CHECK(back[i].begin == tensors[i].begin);
    CHECK(back[i].end == tensors[i].end);
    CHECK(back[i].begin % ry::size_of(back[i].dtype) == 0);
  }
}

TEST_CASE("A header of tensors: may have metadata, and none at all but that") {
  CHECK(read_tensors_header(R"({"__metadata__": {"format": "pt"}})", 0).empty());
  CHECK(read_tensors_header("{}   ", 0).empty());
}

TEST_CASE("A header of tensors: is refused if it is longer than the file or the format's limit") {
  const std::string huge{"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8};
  CHECK_THROWS_WITH(length_in(huge, 1000), ContainsSubstring("longer than the format allows"));
  const std::string long_one{"\x00\x01\x00\x00\x00\x00\x00\x00", 8};
  CHECK_THROWS_WITH(length_in(long_one, 263), ContainsSubstring("longer than the file"));
  CHECK(length_in(long_one, 264) == 256);
}

TEST_CASE("A header of tensors: is refused if offsets overlap, overflow, leave holes or the data") {
  CHECK(read_tensors_header(with_offsets("0", "8"), 8).size() == 1);
  for (const auto& header : {with_offsets("0", "4"), with_offsets("8", "0"), with_offsets("4", "12"),
                             with_offsets("-8", "0"), with_offsets("18446744073709551612", "4"),
                             with_offsets("0", "8.0"), with_offsets("0", "8, 8"), with_offsets("0", "16", "[4]"),
                             with_offsets("0", "8", "[-2]"), with_offsets("0", "0", "[4294967296, 4294967296]"),
                             with_offsets("0", "0", "[4611686018427387904]"), with_offsets("0", "8", "2")}) {
    INFO(header);
    CHECK_THROWS_AS(read_tensors_header(header, 8), Damage);
  }
  const std::string overlap = R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                                  "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})";
  CHECK_THROWS_WITH(read_tensors_header(overlap, 6), ContainsSubstring("\"b\" begins at byte 2"));
  CHECK_THROWS_WITH(read_tensors_header(with_offsets("0", "8"), 12), ContainsSubstring("take 8 bytes"));
}

TEST_CASE("A header of tensors: names the type of elements that is not supported, and its tensor") {
  const std::string header = R"({"layer": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}})";
  CHECK_THROWS_WITH(read_tensors_header(header, 1), ContainsSubstring("\"layer\"") && ContainsSubstring("F8_E4M3"));
}

TEST_CASE("A header of tensors: is refused if a name is there twice or has control characters") {
  const std::string one = R"({"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})";
  CHECK_THROWS_WITH(read_tensors_header(R"({"a": )" + one + R"(, "a": )" + one + "}", 0), ContainsSubstring("twice"));
  CHECK_THROWS_WITH(read_tensors_header(R"({"a\u0000b": )" + one + "}", 0), ContainsSubstring("control characters"));
  CHECK_THROWS_WITH(read_tensors_header(R"({"": )" + one + "}", 0), ContainsSubstring("empty"));
}
