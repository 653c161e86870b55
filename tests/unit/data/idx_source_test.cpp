// SPDX-License-Identifier: MIT
#include "railyard/data/idx_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::string idx_header(unsigned char type, const std::vector<std::uint32_t>& shape) {
  const std::string magic{'\0', '\0', static_cast<char>(type), static_cast<char>(shape.size())};
  return magic + binary_files::bytes_of(shape, std::endian::big);
}
template <class T>
std::string idx_file(unsigned char type, const std::vector<std::uint32_t>& shape, const std::vector<T>& values) {
  return idx_header(type, shape) + binary_files::bytes_of(values, std::endian::big);
}

}  // namespace

TEST_CASE("IdxSource: puts images and labels of several files side by side") {
  const TemporaryFolder folder;
  folder.write("images-0", idx_file<std::uint8_t>(0x08, {2, 1, 2}, {1, 2, 3, 255}));
  folder.write("images-1", idx_file<std::uint8_t>(0x08, {1, 1, 2}, {5, 6}));
  folder.write("labels-0", idx_file<std::uint8_t>(0x08, {2}, {7, 200}));
  folder.write("labels-1", idx_file<std::uint8_t>(0x08, {1}, {9}));
  const ry::IdxSource source{folder / "images-*", folder / "labels-*"};
  CHECK(source.schema() == ry::Schema{{"image", ry::Dtype::u8, {1, 2}}, {"label", ry::Dtype::i64}});
  CHECK(source.label() == "label");
  CHECK(source.count() == 3);
  CHECK(binary_files::all_values<std::uint8_t>(source, "image") == std::vector<std::uint8_t>{1, 2, 3, 255, 5, 6});
  CHECK(binary_files::all_values<std::int64_t>(source, "label") == std::vector<std::int64_t>{7, 200, 9});
  binary_files::check_order_of(source);
}

TEST_CASE("IdxSource: reads every type of elements") {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  folder.write("a", idx_file<std::int8_t>(0x09, {2}, {-1, 5}));
  CHECK(binary_files::all_values<std::int8_t>(ry::IdxSource{path}, "image") == std::vector<std::int8_t>{-1, 5});
  folder.write("a", idx_file<std::int16_t>(0x0B, {2}, {-2, 300}));
  CHECK(binary_files::all_values<std::int32_t>(ry::IdxSource{path}, "image") == std::vector<std::int32_t>{-2, 300});
  folder.write("a", idx_file<std::int32_t>(0x0C, {2}, {-70'000, 3}));
  CHECK(binary_files::all_values<std::int32_t>(ry::IdxSource{path}, "image") == std::vector<std::int32_t>{-70'000, 3});
  folder.write("a", idx_file<float>(0x0D, {2, 2}, {1.5F, 2, 3, -4}));
  CHECK(binary_files::all_values<float>(ry::IdxSource{path}, "image") == std::vector<float>{1.5F, 2, 3, -4});
  folder.write("a", idx_file<double>(0x0E, {1, 1}, {0.1}));
  CHECK(binary_files::all_values<double>(ry::IdxSource{path}, "image") == std::vector<double>{0.1});
}

TEST_CASE("IdxSource: says where a file is damaged") {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& bytes) {
    return binary_files::error_of(ry::IdxSource{folder.write("a", bytes)});
  };
  CHECK(error(idx_file<std::uint8_t>(0x08, {0, 3}, {})) == "no error");
  CHECK_THAT(error("\x1F\x8B\x08 and more"), ContainsSubstring("ry::gzip"));
  CHECK_THAT(error("PNG and more"), ContainsSubstring("a: byte 0: it is no IDX file"));
  CHECK_THAT(error(idx_header(0x0A, {1}) + "x"), ContainsSubstring("a: byte 2: 0x0a is no type"));
  CHECK_THAT(error(idx_header(0x08, {3}) + "xy"), ContainsSubstring("cut off"));
  CHECK_THAT(error(idx_header(0x08, {3}) + "xyz "), ContainsSubstring("byte 11"));
  CHECK_THAT(error(idx_header(0x08, {})), ContainsSubstring("single number"));
  CHECK_THAT(error(idx_header(0x08, {1, 0})), ContainsSubstring("empty"));
  CHECK_THAT(error(idx_header(0x0E, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF})), ContainsSubstring("larger than any file"));
  CHECK_THAT(error(idx_header(0x08, {1, 2, 3}).substr(0, 9)), ContainsSubstring("cut off"));
  CHECK_THAT(binary_files::error_of(ry::IdxSource{folder.write("i", idx_header(0x08, {2, 1}) + "xy"),
                                                  folder.write("l", idx_header(0x08, {3}) + "xyz")}),
             ContainsSubstring("column \"label\" has 3 samples"));
}
