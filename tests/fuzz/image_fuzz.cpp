// SPDX-License-Identifier: MIT
// Gives the decoders of pictures whatever libFuzzer comes up with: they refuse it, or give as many pixels as they say.
#include "railyard/data/decode_image.hpp"

#include "fuzz/sources.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace ry = railyard;

// Enough for several rows of blocks of a JPEG, and few enough for a million pictures.
constexpr std::size_t max_pixels = 5000;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    const auto colors = static_cast<ry::ImageColors>(data[0] % 4 + 1);
    const ry::Image image =
        ry::decode_image(std::as_bytes(std::span{data + 1, size - 1}), {.colors = colors, .max_pixels = max_pixels});
    fuzz::require(image.pixels.size() == image.height * image.width * image.channels());
    fuzz::require(image.channels() == data[0] % 4U + 1 && image.height * image.width <= max_pixels);
    fuzz::require(ry::fit_image(image, 7, 5).pixels.size() == 35 * image.channels());
  } catch (const ry::DataError&) {
  }
  return 0;
}
