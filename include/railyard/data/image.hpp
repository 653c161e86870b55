// SPDX-License-Identifier: MIT
// Pictures in memory, and how they come to the size and colours that a model wants. Data room.
#pragma once

#include "railyard/data/detail/resample.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Names the colours of a picture; the value is how many numbers a pixel has.
enum class ImageColors : std::uint8_t { grey = 1, grey_alpha = 2, rgb = 3, rgba = 4 };

/// Is a picture: rows from the top, pixels from the left, each of a number per colour.
struct Image {
  std::size_t height = 0;
  std::size_t width = 0;
  ImageColors colors = ImageColors::rgb;
  std::vector<std::uint8_t> pixels{};

  [[nodiscard]] std::size_t channels() const noexcept { return static_cast<std::size_t>(colors); }
};

/// Says how a picture comes to a size that has another shape.
enum class ImageFit : std::uint8_t {
  crop,     ///< it is made as small as it can be while it covers that size, and its middle is taken
  stretch,  ///< height and width are changed each by itself
};

/// Returns the picture in other colours, as Pillow's convert() does: alpha is dropped, or is 255 where there was none.
[[nodiscard]] inline Image convert_colors(Image image, ImageColors colors) {
  if (image.colors == colors) return image;
  const std::size_t from = image.channels();
  const bool has_alpha = from % 2 == 0;
  const bool is_grey = from < 3;
  Image result{image.height, image.width, colors, {}};
  const std::size_t to = result.channels();
  const bool wants_alpha = to % 2 == 0;
  const bool wants_grey = to < 3;
  result.pixels.resize(image.height * image.width * to);
  const std::uint8_t* in = image.pixels.data();
  for (auto out = result.pixels.begin(); out != result.pixels.end(); in += from) {
    const unsigned red = in[0];
    const unsigned green = in[is_grey ? 0 : 1];
    const unsigned blue = in[is_grey ? 0 : 2];
    if (wants_grey) {
      *out++ = static_cast<std::uint8_t>(is_grey ? red : (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16U);
    } else {
      *out++ = static_cast<std::uint8_t>(red);
      *out++ = static_cast<std::uint8_t>(green);
      *out++ = static_cast<std::uint8_t>(blue);
    }
    if (wants_alpha) *out++ = has_alpha ? in[from - 1] : std::uint8_t{255};
  }
  return result;
}

/// Returns the picture in another size. Where it becomes smaller, each pixel is the mean of those that it was, weighted
/// by a triangle: the values are those of Pillow's resize() with BILINEAR.
/// Throws: ConfigError for a size of 0; DataError if the picture is empty.
[[nodiscard]] inline Image fit_image(Image image, std::size_t height, std::size_t width,
                                     ImageFit fit = ImageFit::crop) {
  if (height == 0 || width == 0) throw ConfigError{"a picture was to get a size of 0: say how large it shall be"};
  if (image.height == 0 || image.width == 0) throw DataError{"the picture has no pixels"};
  std::size_t full_height = height;
  std::size_t full_width = width;
  if (fit == ImageFit::crop) {
    // Products of two sizes that libraries of pictures allow do not overflow.
    if (image.width * height > image.height * width) {
      full_width = std::max(width, image.width * height / image.height);
    } else {
      full_height = std::max(height, image.height * width / image.width);
    }
  }
  const bool has_alpha = image.channels() % 2 == 0;
  if (has_alpha) detail::multiply_by_alpha(image.pixels, image.channels());
  const detail::ResampleAxis rows{image.height, full_height, (full_height - height) / 2, height};
  const detail::ResampleAxis columns{image.width, full_width, (full_width - width) / 2, width};
  Image result{height, width, image.colors, detail::resample(image.pixels, image.channels(), rows, columns)};
  if (has_alpha) detail::divide_by_alpha(result.pixels, result.channels());
  return result;
}

/// Writes the pixels color after color, as models of pictures want them: channels x height x width.
/// Throws: ConfigError if there is not as much room as there are pixels.
inline void put_planes(const Image& image, std::span<std::uint8_t> to) {
  const std::size_t area = image.height * image.width;
  if (to.size() != image.pixels.size()) {
    throw ConfigError{detail::compose("put_planes() was given room for {} numbers, and the picture has {}", to.size(),
                                      image.pixels.size())};
  }
  for (std::size_t channel = 0; channel < image.channels(); ++channel) {
    for (std::size_t at = 0; at < area; ++at) to[channel * area + at] = image.pixels[at * image.channels() + channel];
  }
}

namespace detail {

inline void check_image_size(std::uint64_t width, std::uint64_t height, std::uint64_t max_pixels) {
  if (width * height <= max_pixels) return;
  throw DataError{
      compose("a picture of {} x {} pixels is larger than .max_pixels allows, {}", width, height, max_pixels)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
