// SPDX-License-Identifier: MIT
// Samples out of IDX files, the format of MNIST. Data room.
// Source: http://yann.lecun.com/exdb/mnist, "THE IDX FILE FORMAT".
#pragma once

#include "railyard/data/array_source.hpp"
#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/stored_element.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how IDX files are read.
struct IdxSourceOptions {
  std::string image = "image";  ///< the name of the column of the first file
  std::string label = "label";  ///< and of the second one, whose integers become i64
  OnError on_error = OnError::stop();
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;
};

namespace detail {

template <class Label>
[[nodiscard]] StoredElement idx_integer(bool is_label) noexcept {
  using Plain = std::conditional_t<sizeof(Label) == 2, std::int32_t, Label>;  // there are no columns of i16
  return is_label ? stored<Label, std::int64_t>(std::endian::big) : stored<Label, Plain>(std::endian::big);
}

[[nodiscard]] inline StoredElement idx_element(const StoredFile& file, unsigned type, bool is_label) {
  switch (type) {
    case 0x08:
      return idx_integer<std::uint8_t>(is_label);
    case 0x09:
      return idx_integer<std::int8_t>(is_label);
    case 0x0B:
      return idx_integer<std::int16_t>(is_label);
    case 0x0C:
      return idx_integer<std::int32_t>(is_label);
    case 0x0D:
      return stored<float>(std::endian::big);
    case 0x0E:
      return stored<double>(std::endian::big);
    default:
      file.fail(2, compose("{:#04x} is no type of elements that IDX has", type));
  }
}

[[nodiscard]] inline StoredArray read_idx_header(std::shared_ptr<const StoredFile> file, const std::string& column,
                                                 bool is_label) {
  const auto magic = file->read<4>(0);
  if (magic[0] == 0x1F && magic[1] == 0x8B) {
    file->fail(0, "it is compressed by gzip: name it as ry::gzip(path), which is in railyard/data/gzip.hpp");
  }
  if (magic[0] != 0 || magic[1] != 0) file->fail(0, "it is no IDX file, which begins with two zeros");
  const StoredElement element = idx_element(*file, magic[2], is_label);
  std::vector<std::uint64_t> shape;
  for (std::size_t axis = 0; axis < magic[3]; ++axis) {
    std::uint64_t size = 0;
    for (const unsigned char byte : file->read<4>(4 + 4 * axis)) size = size << 8U | byte;
    shape.push_back(size);
  }
  const std::uint64_t begin = 4 + 4 * shape.size();
  StoredArray array = make_array(column, element, shape, file, begin);
  const std::uint64_t end = begin + array.samples * array.stride;
  if (end != file->size()) file->fail(end, compose("the array ends here, and the file at byte {}", file->size()));
  return array;
}

}  // namespace detail

/// Gives the images of IDX files as samples, with labels out of other files, or alone.
/// Example: ry::IdxSource{ry::gzip("train-images-idx3-ubyte.gz"), ry::gzip("train-labels-idx1-ubyte.gz")}
class IdxSource : public ArraySource {
 public:
  IdxSource(ArrayFiles images, ArrayFiles labels, const IdxSourceOptions& options = {})
      : ArraySource("IDX", {std::move(images), std::move(labels)},
                    {options.label, options.on_error, options.max_unpacked_bytes}, parse(options.image)) {}
  explicit IdxSource(ArrayFiles images, const IdxSourceOptions& options = {})
      : ArraySource("IDX", {std::move(images)}, {{}, options.on_error, options.max_unpacked_bytes},
                    parse(options.image)) {}

 private:
  [[nodiscard]] static Parse parse(std::string image) {
    return [image = std::move(image)](std::span<const std::shared_ptr<const detail::StoredFile>> files,
                                      const ArraySourceOptions& options) {
      std::vector<detail::StoredArray> arrays{detail::read_idx_header(files[0], image, false)};
      if (files.size() > 1) arrays.push_back(detail::read_idx_header(files[1], options.label, true));
      return arrays;
    };
  }
};
static_assert(IndexedSource<IdxSource>);

}  // namespace railyard::inline v0_1
