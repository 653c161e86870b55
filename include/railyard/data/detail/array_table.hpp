// SPDX-License-Identifier: MIT
// Samples that are slices of arrays in files, along their first dimension. Data room.
#pragma once

#include "railyard/data/detail/stored_element.hpp"
#include "railyard/data/detail/stored_file.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is an array in a file, of which each sample is a slice.
struct StoredArray {
  Field field{};  ///< its shape is that of a sample
  std::uint64_t samples = 0;
  StoredElement element{};
  std::shared_ptr<const StoredFile> file{};
  std::uint64_t begin = 0;       ///< of the first element
  std::uint64_t stride = 0;      ///< bytes from one sample to the next
  bool is_column_major = false;  ///< the elements of all samples at one place lie side by side, as Fortran has them
  std::int64_t num_values = 0;   ///< the values are from 0 to below this; 0 where they may be any. For i64 alone.

  [[nodiscard]] std::size_t width() const noexcept { return field.width(); }
  [[nodiscard]] std::size_t stored_row() const noexcept { return width() * element.size; }
  [[nodiscard]] std::size_t row() const noexcept { return width() * size_of(element.dtype); }
};

/// Returns an array whose first dimension counts the samples, with all it must be. Throws: DataError if there is none
/// of this shape, or the file is too short for it.
[[nodiscard]] inline StoredArray make_array(const std::string& name, StoredElement element,
                                            const std::vector<std::uint64_t>& shape,
                                            std::shared_ptr<const StoredFile> file, std::uint64_t begin) {
  const auto fail = [&](std::string_view what) {
    file->fail(begin, compose("column \"{}\" of shape ({}): {}", name, joined(shape, ", "), what));
  };
  if (shape.empty()) fail("it is a single number, and the first dimension counts the samples");
  std::uint64_t width = 1;
  std::uint64_t size = 0;
  constexpr std::uint64_t most = std::uint64_t{1} << 40U;  // also of samples that there are none of
  StoredArray array{.field = {.name = name, .dtype = element.dtype}, .samples = shape.front()};
  for (std::size_t axis = 1; axis < shape.size(); ++axis) {
    if (shape[axis] == 0) fail("its samples are empty");
    if (__builtin_mul_overflow(width, shape[axis], &width) || width > most) fail("it is larger than any file");
    array.field.shape.push_back(static_cast<std::int64_t>(shape[axis]));
  }
  if (__builtin_mul_overflow(width * element.size, array.samples, &size) || size > file->size() - begin) {
    fail(compose("{} bytes are left in the file, which has {}: it was cut off", file->size() - begin, file->size()));
  }
  array.element = element;
  array.file = std::move(file);
  array.begin = begin;
  array.stride = array.stored_row();
  return array;
}

/// Returns those of the arrays of a file that are to be columns, in this order; all of them if no columns are named.
/// Throws: DataError if one is not there, or there is none at all.
template <class Array>
[[nodiscard]] std::vector<const Array*> choose_columns(const StoredFile& file, const std::vector<Array>& arrays,
                                                       const std::vector<std::string>& columns) {
  std::vector<const Array*> chosen;
  for (const Array& array : arrays) {
    if (columns.empty()) chosen.push_back(&array);
  }
  for (const std::string& column : columns) {
    const auto found =
        std::find_if(arrays.begin(), arrays.end(), [&](const Array& array) { return array.name == column; });
    if (found != arrays.end()) {
      chosen.push_back(&*found);
      continue;
    }
    std::string names;
    for (const Array& array : arrays) names += compose(" \"{}\"", array.name);
    throw DataError{compose("{} has no array \"{}\": there are{}", file.path(), column, names)};
  }
  if (chosen.empty()) throw DataError{compose("{} holds no arrays", file.path())};
  return chosen;
}

/// Reads samples of an array to memory.
class ArrayReader {
 public:
  explicit ArrayReader(const StoredArray& array) : array_(array) {}

  void read(std::uint64_t first, std::size_t count, std::byte* to) {
    if (array_.is_column_major) {
      read_column_major(first, count, to);
    } else if (array_.stride == array_.stored_row()) {
      read_elements(array_.begin + first * array_.stride, count * array_.width(), to);
    } else {
      for (std::size_t at = 0; at < count; ++at) {
        read_elements(array_.begin + (first + at) * array_.stride, array_.width(), to + at * array_.row());
      }
    }
    check(first, count, to);
  }

 private:
  void read_elements(std::uint64_t offset, std::size_t count, std::byte* to) {
    if (array_.element.decode == nullptr) return array_.file->read(offset, to, count * array_.element.size);
    stored_.resize(count * array_.element.size);
    array_.file->read(offset, stored_.data(), stored_.size());
    array_.element.decode(stored_.data(), count, to);
  }

  // One place of the samples after the other, in the order of the file: the first index runs fastest.
  void read_column_major(std::uint64_t first, std::size_t count, std::byte* to) {
    const auto& shape = array_.field.shape;
    const std::size_t size = size_of(array_.element.dtype);
    std::vector<std::byte> place(count * size);
    std::vector<std::int64_t> index(shape.size());
    for (std::size_t at = 0; at < array_.width(); ++at) {
      read_elements(array_.begin + (at * array_.samples + first) * array_.element.size, count, place.data());
      std::size_t element = 0;
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        element = element * static_cast<std::size_t>(shape[axis]) + static_cast<std::size_t>(index[axis]);
      }
      for (std::size_t row = 0; row < count; ++row) {
        std::memcpy(to + row * array_.row() + element * size, place.data() + row * size, size);
      }
      for (std::size_t axis = 0; axis < shape.size() && ++index[axis] == shape[axis]; ++axis) index[axis] = 0;
    }
  }

  void check(std::uint64_t first, std::size_t count, const std::byte* values) const {
    if (array_.num_values == 0) return;
    for (std::size_t at = 0; at < count; ++at) {
      std::int64_t value = 0;
      std::memcpy(&value, values + at * sizeof value, sizeof value);
      if (value >= 0 && value < array_.num_values) continue;
      array_.file->fail(
          array_.begin + (first + at) * array_.stride,
          compose("column \"{}\" is {}, and can be 0 to {}", array_.field.name, value, array_.num_values - 1));
    }
  }

  const StoredArray& array_;
  std::vector<std::byte> stored_{};
};

/// Is the arrays of some files, whose samples follow each other. Every part has the same columns.
class ArrayTable {
 public:
  /// Throws: DataError if the arrays of the part differ in their samples, or from the parts before in their columns.
  void add(std::vector<StoredArray> part) {
    std::vector<Field> fields;
    for (const StoredArray& array : part) {
      fields.push_back(array.field);
      if (array.samples == part.front().samples) continue;
      throw DataError{compose("{}: column \"{}\" has {} samples, and column \"{}\" of {} has {}", array.file->path(),
                              array.field.name, array.samples, part.front().field.name, part.front().file->path(),
                              part.front().samples)};
    }
    if (parts_.empty()) {
      schema_ = std::make_shared<const Schema>(std::move(fields));
    } else if (Schema{std::move(fields)} != *schema_) {
      throw DataError{compose("{} has columns of other names, types or shapes than {}", part.front().file->path(),
                              parts_.front().front().file->path())};
    }
    ends_.push_back(count() + part.front().samples);
    parts_.push_back(std::move(part));
  }

  [[nodiscard]] bool empty() const noexcept { return parts_.empty(); }
  [[nodiscard]] const std::shared_ptr<const Schema>& schema() const noexcept { return schema_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

  /// ids: each below count().
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    const std::vector<Run> runs = runs_of(ids);
    std::vector<Column> columns;
    for (std::size_t column = 0; column < schema_->size(); ++column) {
      const std::size_t row = (*schema_)[column].width() * size_of((*schema_)[column].dtype);
      const std::shared_ptr<std::byte[]> bytes{new std::byte[row * ids.size()]};  // not zeroed first
      std::byte* to = bytes.get();
      std::vector<bool> is_read(parts_.size());
      for (const Run& run : runs) {
        ArrayReader{parts_[run.part][column]}.read(run.first, run.count, to);
        to += run.count * row;
        is_read[run.part] = true;
      }
      for (std::size_t part = 0; part < parts_.size(); ++part) {
        if (is_read[part]) parts_[part][column].file->check_unchanged();
      }
      columns.emplace_back(std::shared_ptr<const std::byte>{bytes, bytes.get()}, ids.size(), row);
    }
    return {schema_, std::move(columns), {ids.begin(), ids.end()}};
  }

 private:
  // Samples that follow each other in one part.
  struct Run {
    std::size_t part = 0;
    std::uint64_t first = 0;
    std::size_t count = 0;
  };

  [[nodiscard]] std::vector<Run> runs_of(std::span<const std::uint64_t> ids) const {
    std::vector<Run> runs;
    for (const std::uint64_t id : ids) {
      const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), id) - ends_.begin());
      const std::uint64_t first = id - (part == 0 ? 0 : ends_[part - 1]);
      if (!runs.empty() && runs.back().part == part && runs.back().first + runs.back().count == first) {
        ++runs.back().count;
      } else {
        runs.push_back({part, first, 1});
      }
    }
    return runs;
  }

  std::shared_ptr<const Schema> schema_{};
  std::vector<std::vector<StoredArray>> parts_{};
  std::vector<std::uint64_t> ends_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
