// SPDX-License-Identifier: MIT
// Samples out of the binary files of CIFAR-10 and CIFAR-100. Data room.
// Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
#pragma once

#include "railyard/data/array_source.hpp"
#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/stored_element.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Names which of the two it is: files do not tell.
enum class Cifar : std::uint8_t { cifar10, cifar100 };

/// Says how files of CIFAR are read.
struct CifarSourceOptions {
  Cifar kind = Cifar::cifar10;
  OnError on_error = OnError::stop();  ///< a file with a damaged sample is left out as a whole, and counts as one
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;
};

namespace detail {

// A sample is its labels, of a byte each, and its image.
struct CifarLayout {
  static constexpr std::uint64_t image_bytes = 3 * 32 * 32;
  std::vector<std::pair<std::string, std::int64_t>> labels{};  // how many there are of each

  explicit CifarLayout(Cifar kind) {
    if (kind == Cifar::cifar100) labels = {{"coarse_label", 20}, {"label", 100}};
    if (kind == Cifar::cifar10) labels = {{"label", 10}};
  }

  [[nodiscard]] std::vector<StoredArray> arrays_of(const std::shared_ptr<const StoredFile>& file) const {
    const std::uint64_t record = labels.size() + image_bytes;
    const std::uint64_t samples = file->size() / record;
    if (samples * record != file->size()) {
      file->fail(samples * record,
                 compose("the sample that begins here is not of {} bytes: the file was cut off, or is "
                         "of the other kind of CIFAR (.kind)",
                         record));
    }
    StoredArray image = make_array("image", stored<std::uint8_t>(std::endian::little), {samples, 3, 32, 32}, file, 0);
    image.begin = labels.size();
    image.stride = record;
    std::vector<StoredArray> arrays{std::move(image)};
    for (std::size_t at = labels.size(); at-- > 0;) {
      StoredArray label =
          make_array(labels[at].first, stored<std::uint8_t, std::int64_t>(std::endian::little), {samples}, file, at);
      label.stride = record;
      label.num_values = labels[at].second;
      arrays.push_back(std::move(label));
    }
    return arrays;
  }
};

}  // namespace detail

/// Gives the images of CIFAR as samples: "image" is u8 of 3 x 32 x 32, "label" is i64; with CIFAR-100 there is also
/// "coarse_label". Example: ry::CifarSource{"cifar-10-batches-bin/data_batch_*.bin"}
class CifarSource : public ArraySource {
 public:
  explicit CifarSource(ArrayFiles files, const CifarSourceOptions& options = {})
      : ArraySource("CIFAR", {std::move(files)}, {"label", options.on_error, options.max_unpacked_bytes},
                    parse(options.kind)) {}

 private:
  [[nodiscard]] static Parse parse(Cifar kind) {
    return [layout = detail::CifarLayout{kind}](std::span<const std::shared_ptr<const detail::StoredFile>> files,
                                                const ArraySourceOptions& options) {
      std::vector<detail::StoredArray> arrays = layout.arrays_of(files[0]);
      if (!options.on_error.stops_at_once()) check_labels(arrays);
      return arrays;
    };
  }
  // What is left out must be known from the beginning: else labels are checked when they are read.
  static void check_labels(const std::vector<detail::StoredArray>& arrays) {
    for (const detail::StoredArray& array : arrays) {
      if (array.num_values == 0) continue;
      std::vector<std::byte> labels(static_cast<std::size_t>(array.samples) * array.row());
      detail::ArrayReader{array}.read(0, static_cast<std::size_t>(array.samples), labels.data());
    }
  }
};
static_assert(IndexedSource<CifarSource>);

}  // namespace railyard::inline v0_1
