// SPDX-License-Identifier: MIT
// The format of files of tensors that everybody can read. Checkpoint room.
// Source: https://github.com/huggingface/safetensors, section "Format".
#pragma once

#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/json_values.hpp"
#include "railyard/checkpoint/detail/names.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one tensor of a file. Places are counted in bytes from the start of the data, which follows the header.
struct TensorPlace {
  std::string name{};
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

inline constexpr std::uint64_t max_tensors_header = 100'000'000;  // the limit of the format
inline constexpr std::string_view reserved_tensor_name = "__metadata__";

inline constexpr std::array<std::pair<Dtype, std::string_view>, all_dtypes.size()> dtype_tags{
    {{Dtype::f16, "F16"},
     {Dtype::bf16, "BF16"},
     {Dtype::f32, "F32"},
     {Dtype::f64, "F64"},
     {Dtype::i8, "I8"},
     {Dtype::u8, "U8"},
     {Dtype::i32, "I32"},
     {Dtype::i64, "I64"},
     {Dtype::boolean, "BOOL"}}};

[[nodiscard]] inline std::string_view tag_of(Dtype dtype) {
  return std::find_if(dtype_tags.begin(), dtype_tags.end(), [dtype](auto& tag) { return tag.first == dtype; })->second;
}

[[nodiscard]] inline Dtype dtype_of_tag(std::string_view tag) {
  for (const auto& [dtype, text] : dtype_tags) {
    if (text == tag) return dtype;
  }
  throw Damage{compose("elements of type {} are not supported", tag)};
}

/// Returns the product of the sizes of a shape, which may be anything. Throws: Damage if there is no such tensor.
[[nodiscard]] inline std::int64_t checked_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) throw Damage{"a shape has an impossible size"};
  }
  return count;
}

/// Says why a tensor cannot have this name, or nothing if it can.
[[nodiscard]] inline std::string_view fault_of_tensor(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name == reserved_tensor_name) return "it is reserved by the format of the file";
  if (has_control_characters(name)) return "it contains control characters";
  if (!is_utf8(name)) return "it is not UTF-8";
  return {};
}

/// Gives each tensor its place: without gaps, as the format wants it, and the larger elements first, so that each is
/// aligned to its own size. Returns the size of the data.
inline std::uint64_t place_tensors(std::span<TensorPlace> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t size_a = size_of(tensors[a].dtype);
    const std::size_t size_b = size_of(tensors[b].dtype);
    return size_a == size_b ? a < b : size_a > size_b;
  });
  std::uint64_t at = 0;
  for (const std::size_t i : order) {
    tensors[i].begin = at;
    at += static_cast<std::uint64_t>(checked_count(tensors[i].shape)) * size_of(tensors[i].dtype);
    tensors[i].end = at;
  }
  return at;
}

/// Returns what stands before the data: its own length in eight bytes, JSON, and spaces up to a multiple of 64 bytes,
/// so that whoever maps the file finds the data aligned.
[[nodiscard]] inline std::string tensors_header(std::span<const TensorPlace> tensors) {
  JsonWriter writer{false};
  for (const TensorPlace& tensor : tensors) {
    writer.name(tensor.name).open();
    writer.name("dtype").text(tag_of(tensor.dtype));
    writer.name("shape").list(tensor.shape);
    writer.name("data_offsets").list(std::array{tensor.begin, tensor.end});
    writer.close();
  }
  std::string json = writer.finish();
  constexpr std::size_t length_bytes = 8;
  json.resize((length_bytes + json.size() + 63) / 64 * 64 - length_bytes, ' ');
  std::string header(length_bytes, '\0');
  for (std::size_t i = 0; i < length_bytes; ++i) header[i] = static_cast<char>((json.size() >> (8 * i)) & 0xFFU);
  return header + json;
}

/// Reads the length of the header from the first eight bytes of a file. Throws: Damage.
[[nodiscard]] inline std::uint64_t read_tensors_header_length(std::span<const std::byte, 8> bytes,
                                                              std::uint64_t file_size) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > max_tensors_header)
    throw Damage{compose("its header of {} bytes is longer than the format allows", length)};
  if (length > file_size - bytes.size())
    throw Damage{compose("its header of {} bytes is longer than the file", length)};
  return length;
}

[[nodiscard]] inline TensorPlace read_tensor_place(const std::string& name, const Json& json) {
  TensorPlace tensor{.name = name, .dtype = dtype_of_tag(json.at("dtype").text())};
  for (const Json& size : json.at("shape").array()) tensor.shape.push_back(size.as<std::int64_t>());
  const auto& offsets = json.at("data_offsets").array();
  if (offsets.size() != 2) throw Damage{"data_offsets are not two numbers"};
  tensor.begin = offsets[0].as<std::uint64_t>();
  tensor.end = offsets[1].as<std::uint64_t>();
  std::uint64_t size = 0;
  if (__builtin_mul_overflow(checked_count(tensor.shape), size_of(tensor.dtype), &size)) {
    throw Damage{"the shape is larger than any file"};
  }
  if (tensor.end < tensor.begin || tensor.end - tensor.begin != size) {
    throw Damage{compose("its place is from byte {} to {}, but {} bytes are what its shape takes", tensor.begin,
                         tensor.end, size)};
  }
  return tensor;
}

/// Every byte of the data must belong to exactly one tensor.
inline void check_tensor_places(const std::vector<TensorPlace>& tensors, std::uint64_t data_size) {
  std::vector<const TensorPlace*> sorted;
  for (const TensorPlace& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const TensorPlace* a, const TensorPlace* b) {
    return std::pair{a->begin, a->end} < std::pair{b->begin, b->end};
  });
  std::uint64_t at = 0;
  for (const TensorPlace* tensor : sorted) {
    if (tensor->begin != at) {
      throw Damage{compose("the data of tensor \"{}\" begins at byte {}, but that of the one before ends at {}",
                           tensor->name, tensor->begin, at)};
    }
    at = tensor->end;
  }
  if (at != data_size) throw Damage{compose("its tensors take {} bytes, but the file has {} for them", at, data_size)};
}

/// Reads a header, without the eight bytes before it, in front of data_size bytes of data. Throws: Damage.
[[nodiscard]] inline std::vector<TensorPlace> read_tensors_header(std::string_view header, std::uint64_t data_size) {
  const Json json = parse_json(header);
  std::vector<TensorPlace> tensors;
  for (std::size_t i = 0; i < json.names().size(); ++i) {
    const std::string& name = json.names()[i];
    if (name == reserved_tensor_name) continue;
    if (const auto fault = fault_of_tensor(name); !fault.empty()) {
      throw Damage{compose("it has a tensor whose name cannot be: {}", fault)};
    }
    try {
      tensors.push_back(read_tensor_place(name, json.items()[i]));
    } catch (const Damage& damage) {
      throw Damage{compose("tensor \"{}\": {}", name, damage.what())};
    }
  }
  check_tensor_places(tensors, data_size);
  return tensors;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
