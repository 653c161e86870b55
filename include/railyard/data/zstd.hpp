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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zstd.h>
#include <zstd_errors.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Gives what a file compressed by zstd holds; it may have several frames. The window of a frame, which takes memory,
/// is at most the 128 MiB that the library allows by itself.
class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(const std::string& path) : input_(path, "zstd") {}

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    ZSTD_outBuffer out{to, size, 0};
    try {
      while (out.pos < size) {
        if (in_.pos == in_.size && !is_flushing_ && !load()) break;
        if (is_between_frames_) begin_frame(at_ + out.pos);
        if (is_careful_ || !step(out)) step_carefully(out);
      }
    } catch (StreamDamage& damage) {
      damage.add_got(out.pos);
      at_ += out.pos;
      throw;
    }
    at_ += out.pos;
    return out.pos;
  }

  [[nodiscard]] std::optional<StreamPoint> take_point(std::uint64_t offset) override { return points_.take(offset); }

  [[nodiscard]] bool go_to(std::uint64_t offset, std::string_view saved) override {
    if (saved.size() != sizeof(CompressedPlace)) return false;
    if (!input_.go_to(WireReader{saved}.take<CompressedPlace>())) return false;
    frame_ = place();
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

  // False at an error. Then the library does not say what it has unpacked before that, and the same is done again, with
  // care: what can be read of a file must not depend on how much was asked for at once.
  bool step(ZSTD_outBuffer& out) {
    const std::size_t had = out.pos;
    const std::uint64_t sound = place();
    const std::size_t left = ::ZSTD_decompressStream(state_.get(), &out, &in_);
    if (::ZSTD_isError(left) != 0) {
      out.pos = had;
      begin_frame_again(sound);
      return false;
    }
    note(out, had, left);
    return true;
  }
  // Puts bytes in one by one, so that not more than one block can be unpacked at a time.
  void step_carefully(ZSTD_outBuffer& out) {
    if (in_.pos == in_.size && !is_flushing_ && !load()) return;
    const std::size_t had = out.pos;
    ZSTD_inBuffer one{in_.src, std::min(in_.pos + 1, in_.size), in_.pos};
    const std::size_t left = ::ZSTD_decompressStream(state_.get(), &out, &one);
    if (::ZSTD_isError(left) == 0) {
      in_.pos = one.pos;
      return note(out, had, left);
    }
    out.pos = had;
    const bool is_wrong_sum = ::ZSTD_getErrorCode(left) == ZSTD_error_checksum_wrong;  // the next frame follows
    if (is_wrong_sum) {
      in_.pos = one.size;
      end_frame();
    }
    input_.fail(::ZSTD_getErrorName(left), in_.size - in_.pos, !is_wrong_sum);
  }
  void note(const ZSTD_outBuffer& out, std::size_t had, std::size_t left) {
    of_frame_ += out.pos - had;
    is_between_frames_ = left == 0;
    is_flushing_ = out.pos == out.size && !is_between_frames_;
    if (is_between_frames_) end_frame();
  }
  void end_frame() noexcept {
    is_between_frames_ = true;
    is_flushing_ = false;
    is_careful_ = false;
    frame_ = place();
    of_frame_ = 0;
  }

  // Unpacks again what has been given of the frame. sound: a place of the file up to which there was no error.
  void begin_frame_again(std::uint64_t sound) {
    ::ZSTD_DCtx_reset(state_.get(), ZSTD_reset_session_only);
    input_.seek(frame_);
    in_ = {nullptr, 0, 0};
    is_careful_ = true;
    std::vector<char> unpacked(static_cast<std::size_t>(std::min<std::uint64_t>(of_frame_, std::uint64_t{128} << 10)));
    for (std::uint64_t left = of_frame_; left > 0;) {
      if (in_.pos == in_.size && place() < sound && !load()) return;
      ZSTD_inBuffer part = in_;
      part.size = static_cast<std::size_t>(std::min<std::uint64_t>(in_.size, in_.pos + (sound - place())));
      ZSTD_outBuffer again{unpacked.data(), static_cast<std::size_t>(std::min<std::uint64_t>(unpacked.size(), left)),
                           0};
      const std::size_t status = ::ZSTD_decompressStream(state_.get(), &again, &part);
      in_.pos = part.pos;
      if (::ZSTD_isError(status) != 0) input_.fail(::ZSTD_getErrorName(status), in_.size - in_.pos);
      if (again.pos == 0 && place() >= sound) input_.fail("it has changed", in_.size - in_.pos);
      left -= again.pos;
    }
    is_flushing_ = of_frame_ > 0;
  }
  // Of the compressed byte that comes next.
  [[nodiscard]] std::uint64_t place() const noexcept { return input_.offset() - (in_.size - in_.pos); }

  bool load() {
    const std::string_view piece = input_.next();
    if (piece.empty() && !is_between_frames_) input_.fail("the file ends in the middle: it was cut off", 0);
    in_ = {piece.data(), piece.size(), 0};
    return !piece.empty();
  }

  // Where a frame begins, nothing of what came before is needed, and nothing may be left of it: where libzstd has more
  // room than the frame asks for, it unpacks more of one that is damaged.
  void begin_frame(std::uint64_t offset) {
    state_.reset(::ZSTD_createDStream());
    if (state_ == nullptr) throw Error{"libzstd has no memory for the state of a file"};
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
  bool is_flushing_ = false;    // there may be more to come out without anything put in
  bool is_careful_ = false;     // the frame is damaged where reading comes to
  std::uint64_t frame_ = 0;     // where it begins
  std::uint64_t of_frame_ = 0;  // bytes of it that have been given
};

}  // namespace detail

/// Names files that are compressed by zstd, for CsvStream and its like. To go on in the middle of one takes as long as
/// to unpack 256 KiB and the frame in which they end: a file of one frame, as zstd itself writes it (with -T0 and
/// --rsyncable, too), is read again from its begin, for libzstd tells no state that another process could go on with.
/// pzstd, what writes the seekable format, and split -C 16M --filter='zstd -c' a.csv >a.csv.zst make many frames.
/// Example: ry::CsvStream{ry::zstd("a-*.csv.zst")}
[[nodiscard]] inline CompressedFiles zstd(InputFiles files) {
  return {std::move(files), [](const std::string& path) -> std::unique_ptr<detail::ByteStream> {
            return std::make_unique<detail::ZstdStream>(path);
          }};
}

}  // namespace railyard::inline v0_1
