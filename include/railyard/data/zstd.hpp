// SPDX-License-Identifier: MIT
// Reads files that are compressed by zstd, with its library. Data room.
#pragma once

#if !__has_include(<zstd.h>)
#error "railyard/data/zstd.hpp needs libzstd: install it (Debian: libzstd-dev) and link with -lzstd, or leave it out"
#endif

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/input_files.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <zstd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Gives what a file compressed by zstd holds; it may have several frames. The window of a frame, which takes memory,
/// is at most the 128 MiB that the library allows by itself.
class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(const std::string& path) : input_(path), state_(::ZSTD_createDStream()) {
    if (state_ == nullptr) throw Error{compose("{}: libzstd has no memory", path)};
  }

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    ZSTD_outBuffer out{to, size, 0};
    while (out.pos < size) {
      if (in_.pos == in_.size && !is_flushing_ && !load()) break;
      if (is_between_frames_) note_frame(at_ + out.pos);
      const std::size_t left = ::ZSTD_decompressStream(state_.get(), &out, &in_);
      if (::ZSTD_isError(left) != 0) input_.fail(::ZSTD_getErrorName(left), in_.size - in_.pos);
      is_between_frames_ = left == 0;
      is_flushing_ = out.pos == size && !is_between_frames_;
    }
    at_ += out.pos;
    return out.pos;
  }

  [[nodiscard]] std::optional<StreamPoint> take_point(std::uint64_t offset) override { return points_.take(offset); }

  [[nodiscard]] bool go_to(std::uint64_t offset, std::string_view saved) override {
    if (saved.size() != sizeof(CompressedPlace)) return false;
    if (!input_.go_to(WireReader{saved}.take<CompressedPlace>())) return false;
    at_ = offset;
    points_.begin_at(offset);
    return true;
  }

 private:
  // Of the bytes that come out, so that small frames cost nothing.
  static constexpr std::uint64_t between_points = std::uint64_t{256} << 10;

  struct Free {
    void operator()(ZSTD_DStream* state) const noexcept { ::ZSTD_freeDStream(state); }
  };

  bool load() {
    const std::string_view piece = input_.next();
    if (piece.empty() && !is_between_frames_) input_.fail("the file ends in the middle: it was cut off", 0);
    in_ = {piece.data(), piece.size(), 0};
    return !piece.empty();
  }

  // Where a frame begins, nothing of what came before is needed.
  void note_frame(std::uint64_t offset) {
    if (points_.since(offset) < between_points) return;
    StreamPoint here{.offset = offset};
    if (const auto place = input_.place(in_.size - in_.pos)) {
      here.save = [place = *place] {
        WireWriter writer;
        writer.put(place);
        return writer.text();
      };
    }
    points_.add(std::move(here));
  }

  CompressedInput input_;
  std::unique_ptr<ZSTD_DStream, Free> state_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  StreamPoints points_{};
  std::uint64_t at_ = 0;  // of the bytes that come out
  bool is_between_frames_ = true;
  bool is_flushing_ = false;  // there may be more to come out without anything put in
};

}  // namespace detail

/// Names files that are compressed by zstd, for CsvStream and its like. To go on in the middle of one takes as long as
/// to unpack 256 KiB and the frame in which they end: a file of one frame, as zstd itself writes it, is read again from
/// its begin; pzstd, and what writes the seekable format, make many frames. Example:
/// ry::CsvStream{ry::zstd("a-*.csv.zst")}
[[nodiscard]] inline CompressedFiles zstd(InputFiles files) {
  return {std::move(files), [](const std::string& path) -> std::unique_ptr<detail::ByteStream> {
            return std::make_unique<detail::ZstdStream>(path);
          }};
}

}  // namespace railyard::inline v0_1
