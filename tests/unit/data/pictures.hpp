// SPDX-License-Identifier: MIT
// Files of pictures for tests.
#pragma once

#include "railyard/data/decode_image.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pictures {

namespace ry = railyard;

/// Makes a picture that changes from pixel to pixel.
inline ry::Image make_image(std::size_t height, std::size_t width, ry::ImageColors colors) {
  ry::Image image{height, width, colors, std::vector<std::uint8_t>(height * width * static_cast<std::size_t>(colors))};
  for (std::size_t at = 0; at < image.pixels.size(); ++at) image.pixels[at] = static_cast<std::uint8_t>(at * at % 251);
  return image;
}

inline std::string png_of(const ry::Image& image) {
  constexpr int formats[] = {0, PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  png_image file{};
  file.version = PNG_IMAGE_VERSION;
  file.width = static_cast<png_uint_32>(image.width);
  file.height = static_cast<png_uint_32>(image.height);
  file.format = static_cast<png_uint_32>(formats[image.channels()]);
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&file, nullptr, &size, 0, image.pixels.data(), 0, nullptr);
  std::string bytes(size, '\0');
  png_image_write_to_memory(&file, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr);
  bytes.resize(size);
  return bytes;
}

inline std::string jpeg_of(const ry::Image& image, int quality = 100) {
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&state, &bytes, &size);
  state.image_width = static_cast<JDIMENSION>(image.width);
  state.image_height = static_cast<JDIMENSION>(image.height);
  state.input_components = static_cast<int>(image.channels());
  constexpr J_COLOR_SPACE spaces[] = {JCS_UNKNOWN, JCS_GRAYSCALE, JCS_UNKNOWN, JCS_RGB, JCS_CMYK};
  state.in_color_space = spaces[image.channels()];
  jpeg_set_defaults(&state);
  jpeg_set_quality(&state, quality, TRUE);
  jpeg_start_compress(&state, TRUE);
  while (state.next_scanline < state.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(image.pixels.data()) + state.next_scanline * image.width * image.channels();
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  std::string file(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&state);
  std::free(bytes);
  return file;
}

inline std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span{text}); }

/// Returns the error that decoding ends with.
inline std::string error_of_decoding(std::string_view bytes, const ry::DecodeImageOptions& options = {}) {
  try {
    (void)ry::decode_image(as_bytes(bytes), options);
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace pictures
