// SPDX-License-Identifier: MIT
// Pictures out of the bytes of PNG and JPEG files, with libpng and libjpeg. Data room.
#pragma once

#if !__has_include(<png.h>) || !__has_include(<jpeglib.h>)
#error "railyard/data/decode_image.hpp needs libpng and libjpeg (Debian: libpng-dev libjpeg-dev), or leave it out"
#endif

#include "railyard/data/detail/jpeg_decoder.hpp"
#include "railyard/data/detail/png_decoder.hpp"
#include "railyard/data/image.hpp"

#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

/// Says how pictures are decoded.
struct DecodeImageOptions {
  ImageColors colors = ImageColors::rgb;
  std::uint64_t max_pixels =
      89'478'485;  ///< more are an error: a small file can become a picture that fills the memory
};

/// Returns the picture that the bytes of a PNG or JPEG file are, whichever it is. What its Exif data says of how it was
/// held is left alone. Of 16 bits the upper eight are taken.
/// Throws: DataError if it is damaged, also where other programs make up what is missing.
/// Example: images.map({{"image", ry::Dtype::u8, {224, 224, 3}}}, [](const ry::Sample& in, ry::SampleWriter& out) {
///   out.set("image", ry::fit_image(ry::decode_image(in.bytes("jpg")), 224, 224).pixels);
/// });
[[nodiscard]] inline Image decode_image(std::span<const std::byte> bytes, const DecodeImageOptions& options = {}) {
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  if (text.starts_with("\x89PNG\r\n\x1A\n")) {
    return convert_colors(detail::PngDecoder{bytes}.decode(options.max_pixels), options.colors);
  }
  if (text.starts_with("\xFF\xD8")) {
    return convert_colors(detail::JpegDecoder{bytes}.decode(options.max_pixels), options.colors);
  }
  throw DataError{"it is neither PNG nor JPEG"};
}

}  // namespace railyard::inline v0_1
