// SPDX-License-Identifier: MIT
// Decodes PNG pictures with libpng. Data room.
#pragma once

#include "railyard/data/image.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <png.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Decodes one picture. As with JpegDecoder, what the library may leave by longjmp is in guarded().
class PngDecoder {
 public:
  explicit PngDecoder(std::span<const std::byte> bytes) : bytes_(bytes) {
    state_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &on_error, &on_warning);
    if (state_ != nullptr) info_ = ::png_create_info_struct(state_);
    if (info_ == nullptr) {
      ::png_destroy_read_struct(&state_, nullptr, nullptr);
      throw Error{"libpng has no memory, or its library and its header are of two releases"};
    }
  }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { ::png_destroy_read_struct(&state_, &info_, nullptr); }

  /// Throws: DataError.
  [[nodiscard]] Image decode(std::uint64_t max_pixels) {
    if (!guarded([this] {
          ::png_set_read_fn(state_, this, &on_read);
          ::png_read_info(state_, info_);
        })) {
      fail();
    }
    const std::size_t width = ::png_get_image_width(state_, info_);
    const std::size_t height = ::png_get_image_height(state_, info_);
    check_image_size(width, height, max_pixels);
    if (!guarded([this] { prepare(); })) fail();
    const std::size_t row = ::png_get_rowbytes(state_, info_);
    constexpr std::size_t most_per_byte = 1032 * 8;  // deflate shrinks so much, and a pixel may be a bit
    if (row * height / most_per_byte > bytes_.size()) throw DataError{"damaged PNG: it was cut off"};
    Image image{height, width, static_cast<ImageColors>(::png_get_channels(state_, info_)), {}};
    image.pixels.resize(row * height);
    std::vector<png_bytep> rows;
    for (std::size_t at = 0; at < height; ++at) rows.push_back(image.pixels.data() + at * row);
    if (!guarded([this, to = rows.data()] { ::png_read_image(state_, to); })) fail();
    return image;
  }

 private:
  // False if the library has given up.
  template <class Call>
  [[nodiscard]] bool guarded(const Call& call) noexcept {
    if (setjmp(jump_) != 0) return false;
    call();
    return true;
  }
  [[noreturn]] void fail() const { throw DataError{compose("damaged PNG: {}", message_.data())}; }

  // Makes grey, grey and alpha, RGB or RGBA of whatever it is, with a byte for each.
  void prepare() {
    ::png_set_palette_to_rgb(state_);
    ::png_set_expand_gray_1_2_4_to_8(state_);
    if (::png_get_valid(state_, info_, PNG_INFO_tRNS) != 0) ::png_set_tRNS_to_alpha(state_);
    ::png_set_strip_16(state_);
    (void)::png_set_interlace_handling(state_);
    ::png_read_update_info(state_, info_);
  }

  [[noreturn]] static void on_error(png_structp state, png_const_charp message) {
    auto& self = *static_cast<PngDecoder*>(::png_get_error_ptr(state));
    std::strncpy(self.message_.data(), message, self.message_.size() - 1);
    std::longjmp(self.jump_, 1);
  }
  static void on_warning(png_structp /*state*/, png_const_charp /*message*/) {}
  static void on_read(png_structp state, png_bytep to, std::size_t size) {
    auto& self = *static_cast<PngDecoder*>(::png_get_io_ptr(state));
    if (size > self.bytes_.size()) ::png_error(state, "it was cut off");
    std::memcpy(to, self.bytes_.data(), size);
    self.bytes_ = self.bytes_.subspan(size);
  }

  std::span<const std::byte> bytes_;
  png_structp state_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  std::array<char, 200> message_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
