// SPDX-License-Identifier: MIT
// Where the tensors of a safetensors file are. Data room, which knows no checkpoints.
// Source: https://github.com/huggingface/safetensors, section "Format".
#pragma once

#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/json_scanner.hpp"
#include "railyard/data/detail/stored_element.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what the header of a file says of a tensor. Places count from the end of the header.
struct TensorHeader {
  std::string name{};
  std::string type{};
  std::vector<std::uint64_t> shape{};
  std::vector<std::uint64_t> offsets{};
};

[[nodiscard]] inline std::optional<StoredElement> tensor_element(std::string_view type) {
  constexpr auto order = std::endian::little;
  if (type == "BOOL") return stored<std::uint8_t, bool>(order);
  if (type == "U8") return stored<std::uint8_t>(order);
  if (type == "I8") return stored<std::int8_t>(order);
  if (type == "U16") return stored<std::uint16_t, std::int32_t>(order);
  if (type == "I16") return stored<std::int16_t, std::int32_t>(order);
  if (type == "U32") return stored<std::uint32_t, std::int64_t>(order);
  if (type == "I32") return stored<std::int32_t>(order);
  if (type == "I64") return stored<std::int64_t>(order);
  if (type == "F16") return stored<Float16>(order);
  if (type == "BF16") return stored<BFloat16>(order);
  if (type == "F32") return stored<float>(order);
  if (type == "F64") return stored<double>(order);
  return std::nullopt;
}

/// Reads the JSON of a header.
class TensorHeaderParser {
 public:
  explicit TensorHeaderParser(std::string_view json) : scanner_(json) {}

  [[nodiscard]] std::vector<TensorHeader> read() {
    std::vector<TensorHeader> tensors;
    std::set<std::string> names;
    scanner_.read_object([&](const std::string& name) {
      if (!names.insert(name).second) scanner_.fail(compose("\"{}\" is there twice", name));
      if (find_invalid_utf8(name) < name.size()) scanner_.fail("the name of a tensor is not UTF-8");
      if (name == "__metadata__") return skip_metadata();
      tensors.push_back({.name = name});
      read_tensor(tensors.back());
    });
    scanner_.expect_end();
    return tensors;
  }

 private:
  // Texts by name.
  void skip_metadata() {
    std::string text;
    scanner_.read_object([&](const std::string& /*key*/) { scanner_.read_text(text); });
  }
  void read_tensor(TensorHeader& tensor) {
    std::set<std::string> keys;
    scanner_.read_object([&](const std::string& key) {
      keys.insert(key);
      if (key == "dtype") return scanner_.read_text(tensor.type);
      if (key == "shape") return read_numbers(tensor.shape);
      if (key == "data_offsets") return read_numbers(tensor.offsets);
      scanner_.fail(compose("tensor \"{}\" has the unknown key \"{}\"", tensor.name, key));
    });
    if (keys.size() == 3 && tensor.offsets.size() == 2) return;
    scanner_.fail(compose("tensor \"{}\" lacks dtype, shape or two data_offsets", tensor.name));
  }
  void read_numbers(std::vector<std::uint64_t>& numbers) {
    numbers.clear();
    scanner_.read_array([&] {
      const std::string_view digits = scanner_.read_number();
      const char* end = digits.data() + digits.size();
      const auto [stop, error] = std::from_chars(digits.data(), end, numbers.emplace_back());
      if (error != std::errc{} || stop != end) scanner_.fail("a size or a place is no whole number");
    });
  }

  JsonScanner scanner_;
};

/// Each byte of the data belongs to one tensor. Throws: DataError.
inline void check_tensor_offsets(const StoredFile& file, std::uint64_t data, std::vector<TensorHeader> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorHeader& a, const TensorHeader& b) { return a.offsets < b.offsets; });
  std::uint64_t at = 0;
  for (const TensorHeader& tensor : tensors) {
    if (tensor.offsets[0] != at || tensor.offsets[1] < at) {
      file.fail(8, compose("tensor \"{}\" is from byte {} to {} of the data, and the one before ends at byte {}",
                           tensor.name, tensor.offsets[0], tensor.offsets[1], at));
    }
    at = tensor.offsets[1];
  }
  if (at != file.size() - data) {
    file.fail(8, compose("the tensors take {} bytes, and the file has {} for them", at, file.size() - data));
  }
}

/// Returns the arrays of the columns, or of all tensors if no columns are named. Throws: DataError.
[[nodiscard]] inline std::vector<StoredArray> read_tensor_arrays(const std::shared_ptr<const StoredFile>& file,
                                                                 const std::vector<std::string>& columns) {
  constexpr std::uint64_t longest = 100'000'000;  // the limit of the format
  const std::uint64_t length = little_endian(file->read<8>(0));
  if (length > longest || length > file->size() - 8) {
    file->fail(0, compose("a header of {} bytes is longer than the file or the format allows", length));
  }
  std::string json = file->read_text(8, static_cast<std::size_t>(length));
  std::replace(json.begin(), json.end(), '\n', ' ');  // the scanner is one for lines
  std::vector<TensorHeader> tensors;
  try {
    tensors = TensorHeaderParser{json}.read();
  } catch (const JsonFault& fault) {
    file->fail(8, compose("the header is damaged: {}", fault.what()));
  }
  check_tensor_offsets(*file, 8 + length, tensors);
  std::vector<StoredArray> arrays;
  for (const TensorHeader* chosen : choose_columns(*file, tensors, columns)) {
    const TensorHeader& tensor = *chosen;
    const std::uint64_t begin = 8 + length + tensor.offsets[0];
    const auto element = tensor_element(tensor.type);
    if (!element) {
      file->fail(begin, compose("column \"{}\": elements of type {} make no column: name the others in .columns",
                                tensor.name, tensor.type));
    }
    arrays.push_back(make_array(tensor.name, *element, tensor.shape, file, begin));
    const std::uint64_t size = arrays.back().samples * arrays.back().stride;
    if (size != tensor.offsets[1] - tensor.offsets[0]) {
      file->fail(begin, compose("column \"{}\" takes {} bytes by its shape, and has {}", tensor.name, size,
                                tensor.offsets[1] - tensor.offsets[0]));
    }
  }
  return arrays;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
