// SPDX-License-Identifier: MIT
// Decodes JPEG pictures with libjpeg. Data room.
#pragma once

#include "railyard/data/image.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs it
#include <span>
#include <string>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Decodes one picture. The library leaves its functions by longjmp, which must pass no object that has to be
/// destroyed: it is called in guarded(), by code that has none.
class JpegDecoder {
 public:
  explicit JpegDecoder(std::span<const std::byte> bytes) : bytes_(bytes) {
    state_.err = ::jpeg_std_error(&errors_);
    errors_.error_exit = &on_error;
    errors_.emit_message = &on_message;
    if (!guarded([this] { jpeg_create_decompress(&state_); })) fail();
    progress_.progress_monitor = &on_progress;
    state_.progress = &progress_;
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { ::jpeg_destroy_decompress(&state_); }

  /// Throws: DataError.
  [[nodiscard]] Image decode(std::uint64_t max_pixels) {
    if (!guarded([this] {
          ::jpeg_mem_src(&state_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
          (void)::jpeg_read_header(&state_, TRUE);
        })) {
      fail();
    }
    check_image_size(state_.image_width, state_.image_height, max_pixels);
    // A block takes a bit at least, and stands for 32 x 32 pixels at most; arithmetic codes have no such limit.
    constexpr std::size_t most_per_byte = 8 * 32 * 32;
    const std::size_t num_pixels = std::size_t{state_.image_width} * state_.image_height;
    if (state_.arith_code == 0 && num_pixels / most_per_byte > bytes_.size()) {
      throw DataError{"damaged JPEG: it was cut off"};
    }
    const bool is_cmyk = state_.jpeg_color_space == JCS_CMYK || state_.jpeg_color_space == JCS_YCCK;
    const bool is_grey = state_.jpeg_color_space == JCS_GRAYSCALE;
    state_.out_color_space = is_cmyk ? JCS_CMYK : is_grey ? JCS_GRAYSCALE : JCS_RGB;
    const std::size_t row = std::size_t{state_.image_width} * (is_cmyk ? 4 : is_grey ? 1 : 3);
    std::vector<std::uint8_t> pixels(row * state_.image_height);
    if (!guarded([this, row, to = pixels.data()] {
          (void)::jpeg_start_decompress(&state_);
          while (state_.output_scanline < state_.output_height) {
            JSAMPROW line = to + row * state_.output_scanline;
            (void)::jpeg_read_scanlines(&state_, &line, 1);
          }
        })) {
      fail();
    }
    if (is_cmyk) pixels = to_rgb(pixels);
    return {state_.image_height, state_.image_width, is_grey ? ImageColors::grey : ImageColors::rgb, std::move(pixels)};
  }

 private:
  struct Errors : jpeg_error_mgr {
    std::jmp_buf jump;
    std::array<char, JMSG_LENGTH_MAX> message{};
  };

  // False if the library has given up.
  template <class Call>
  [[nodiscard]] bool guarded(const Call& call) noexcept {
    if (setjmp(errors_.jump) != 0) return false;
    call();
    return true;
  }
  [[noreturn]] void fail() const { throw DataError{compose("damaged JPEG: {}", errors_.message.data())}; }

  [[noreturn]] static void on_error(j_common_ptr state) {
    auto& errors = *static_cast<Errors*>(state->err);
    errors.format_message(state, errors.message.data());
    std::longjmp(errors.jump, 1);
  }
  // The library calls it a warning, and makes pixels up, where the data of pixels is damaged or missing.
  static void on_message(j_common_ptr state, int level) {
    constexpr std::array damages{JWRN_JPEG_EOF, JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_MUST_RESYNC,
                                 JWRN_ARITH_BAD_CODE};
    const int code = state->err->msg_code;
    if (level < 0 && std::find(damages.begin(), damages.end(), code) != damages.end()) on_error(state);
  }
  // A small file can ask for so much work that it takes hours.
  static void on_progress(j_common_ptr state) {
    constexpr int most_scans = 500;
    if (reinterpret_cast<j_decompress_ptr>(state)->input_scan_number > most_scans) {
      ERREXIT(state, JERR_BAD_PROGRESSION);
    }
  }

  // As every program takes them, the inks are stored the other way round.
  [[nodiscard]] static std::vector<std::uint8_t> to_rgb(const std::vector<std::uint8_t>& cmyk) {
    std::vector<std::uint8_t> rgb(cmyk.size() / 4 * 3);
    for (std::size_t pixel = 0; pixel < cmyk.size() / 4; ++pixel) {
      const unsigned paper = cmyk[4 * pixel + 3];
      for (std::size_t channel = 0; channel < 3; ++channel) {
        const unsigned product = (255U - cmyk[4 * pixel + channel]) * paper + 128;
        rgb[3 * pixel + channel] = static_cast<std::uint8_t>(paper - (((product >> 8U) + product) >> 8U));
      }
    }
    return rgb;
  }

  std::span<const std::byte> bytes_;
  jpeg_decompress_struct state_{};
  Errors errors_{};
  jpeg_progress_mgr progress_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
