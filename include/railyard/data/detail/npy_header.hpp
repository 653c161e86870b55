// SPDX-License-Identifier: MIT
// What an array in NumPy's format begins with. Data room.
// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/stored_element.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Reads the dictionary of a header, which is written as Python writes it.
class NpyHeaderParser {
 public:
  /// file, offset: where the text is, for messages.
  NpyHeaderParser(std::string_view text, const StoredFile& file, std::uint64_t offset)
      : text_(text), file_(file), offset_(offset) {}

  struct Header {
    std::string descr{};
    bool is_column_major = false;
    std::vector<std::uint64_t> shape{};
  };

  [[nodiscard]] Header read() {
    Header header;
    std::array<bool, 3> has{};
    expect('{');
    while (!take('}')) {
      const std::string_view key = read_quoted();
      expect(':');
      const std::size_t which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : has.size();
      if (which == has.size()) fail(compose("the header has the unknown key \"{}\"", shown_text(key)));
      if (std::exchange(has[which], true)) fail(compose("the header has the key \"{}\" twice", key));
      if (which == 0) header.descr = read_descr();
      if (which == 1) header.is_column_major = read_boolean();
      if (which == 2) header.shape = read_shape();
      if (!take(',') && peek() != '}') fail("a comma is missing");
    }
    if (peek() != '\0') fail("more text follows the dictionary");
    for (const bool one : has) {
      if (!one) fail("the header lacks \"descr\", \"fortran_order\" or \"shape\"");
    }
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { file_.fail(offset_ + at_, what); }

  char peek() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) noexcept {
    if (peek() != wanted || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail(compose("\"{}\" is missing", std::string_view{&wanted, 1}));
  }
  [[nodiscard]] std::string_view read_quoted() {
    const char quote = peek();
    const std::size_t end = text_.find(quote, at_ + 1);
    if ((quote != '\'' && quote != '"') || end == std::string_view::npos) fail("a text in quotes is missing");
    const std::string_view quoted = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return quoted;
  }
  // A list describes elements that are structures; the message about it names it.
  [[nodiscard]] std::string read_descr() {
    if (peek() != '[') return std::string{read_quoted()};
    fail(compose("its elements are structures, {}: save each of their fields as an array of its own",
                 shown_text(text_.substr(at_, std::min(text_.find(']', at_), text_.size() - 1) - at_ + 1))));
  }
  [[nodiscard]] bool read_boolean() {
    peek();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("True or False is missing");
  }
  [[nodiscard]] std::vector<std::uint64_t> read_shape() {
    constexpr std::size_t most_axes = 64;  // as NumPy has it
    std::vector<std::uint64_t> shape;
    expect('(');
    while (!take(')')) {
      peek();
      std::uint64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc{}) fail("the shape has a size that is none");
      at_ = static_cast<std::size_t>(end - text_.data());
      take('L');  // what Python 2 has written
      shape.push_back(size);
      if (shape.size() > most_axes) fail("the shape has too many dimensions");
      if (!take(',') && peek() != ')') fail("a comma is missing");
    }
    return shape;
  }

  std::string_view text_;
  const StoredFile& file_;
  std::uint64_t offset_;
  std::size_t at_ = 0;
};

/// Returns how elements are stored that NumPy describes so; nothing if there are no columns of such.
[[nodiscard]] inline std::optional<StoredElement> npy_element(std::string_view descr) {
  if (descr.size() != 3) return std::nullopt;
  const std::endian order = descr[0] == '>'   ? std::endian::big
                            : descr[0] == '<' ? std::endian::little
                                              : std::endian::native;
  const std::string_view type = descr.substr(1);
  if (std::string_view{"<>|="}.find(descr[0]) == std::string_view::npos) return std::nullopt;
  if (type == "b1") return stored<std::uint8_t, bool>(order);
  if (type == "i1") return stored<std::int8_t>(order);
  if (type == "u1") return stored<std::uint8_t>(order);
  if (type == "i2") return stored<std::int16_t, std::int32_t>(order);
  if (type == "u2") return stored<std::uint16_t, std::int32_t>(order);
  if (type == "i4") return stored<std::int32_t>(order);
  if (type == "u4") return stored<std::uint32_t, std::int64_t>(order);
  if (type == "i8") return stored<std::int64_t>(order);
  if (type == "f2") return stored<Float16>(order);
  if (type == "f4") return stored<float>(order);
  if (type == "f8") return stored<double>(order);
  return std::nullopt;
}

/// Reads what is at the begin of a file, or of a member of an archive that ends at the byte named. Throws: DataError.
[[nodiscard]] inline StoredArray read_npy(std::string column, const std::shared_ptr<const StoredFile>& file,
                                          std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t longest = std::uint64_t{1} << 20;
  const auto magic = file->read<8>(begin);
  if (std::string_view{reinterpret_cast<const char*>(magic.data()), 6} != "\x93NUMPY") {
    file->fail(begin, compose("{} is no array of NumPy, which begins with \"\\x93NUMPY\"",
                              column.empty() ? "it" : compose("\"{}\"", shown_text(column))));
  }
  const unsigned version = magic[6];
  if (version < 1 || version > 3) file->fail(begin + 6, compose("version {} of the format is not known", version));
  const std::size_t length_size = version == 1 ? 2 : 4;
  const std::uint64_t length =
      version == 1 ? little_endian(file->read<2>(begin + 8)) : little_endian(file->read<4>(begin + 8));
  const std::uint64_t text_begin = begin + 8 + length_size;
  if (length > longest || text_begin + length > end) {
    file->fail(begin + 8, compose("a header of {} bytes is too long", length));
  }
  const std::string text = file->read_text(text_begin, static_cast<std::size_t>(length));
  const auto header = NpyHeaderParser{text, *file, text_begin}.read();
  const auto element = npy_element(header.descr);
  if (!element) {
    file->fail(text_begin,
               compose("column \"{}\": elements of type \"{}\" make no column: convert them to bool, int8 to "
                       "int64, uint8 to uint32, float16, float32 or float64",
                       column, shown_text(header.descr)));
  }
  StoredArray array = make_array(std::move(column), *element, header.shape, file, text_begin + length);
  if (array.begin + array.samples * array.stride > end) {
    file->fail(array.begin, compose("column \"{}\": its elements do not end where they should", array.field.name));
  }
  array.is_column_major = header.is_column_major && header.shape.size() > 1;
  return array;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
