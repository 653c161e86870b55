// SPDX-License-Identifier: MIT
// Messages on a connection, each with a code that nobody can make who does not know the connection's key. Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one message. What types there are is for its users to say; listeners have three of their own.
struct Frame {
  static constexpr std::uint8_t misfit = 253;   ///< like a refusal, of one that can never be taken as it is set
  static constexpr std::uint8_t welcome = 254;  ///< a listener's answer to a hello
  static constexpr std::uint8_t refusal = 255;  ///< the other answer; the payload is a text that says why

  std::uint8_t type = 0;
  std::vector<std::byte> payload{};

  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(payload.data()), payload.size()};
  }
};

/// Stands before the payload: its size as four bytes, its type as one. After it come the first bytes of the HMAC.
inline constexpr std::size_t frame_head_bytes = 5;
inline constexpr std::size_t frame_code_bytes = 16;

/// Computes the code of each frame. It covers the frame's number as well: none can be left out, repeated or moved.
class FrameCoder {
 public:
  explicit FrameCoder(Hmac key) noexcept : key_(std::move(key)) {}

  [[nodiscard]] std::array<std::byte, frame_code_bytes> next(ConstBytes head, std::span<const ConstBytes> payload) {
    std::array<std::byte, sizeof number_ + frame_head_bytes> start;
    std::memcpy(start.data(), &number_, sizeof number_);
    std::memcpy(start.data() + sizeof number_, head.data(), frame_head_bytes);
    ++number_;
    const Digest whole = key_.of(start, payload);
    std::array<std::byte, frame_code_bytes> code;
    std::copy_n(whole.begin(), code.size(), code.begin());
    return code;
  }

 private:
  Hmac key_;
  std::uint64_t number_ = 0;
};

/// Holds what is still to be sent.
class FrameWriter {
 public:
  FrameWriter(Hmac key, std::size_t max_bytes) noexcept : coder_(std::move(key)), max_bytes_(max_bytes) {}

  /// Throws: ConfigError if the payload is larger than the other end takes.
  void put(std::uint8_t type, std::initializer_list<ConstBytes> pieces) {
    std::size_t size = 0;
    for (const ConstBytes piece : pieces) size += piece.size();
    if (size > max_bytes_) {
      throw ConfigError{compose("a message of {} bytes is too large: at most {} are sent at once", size, max_bytes_)};
    }
    std::array<std::byte, frame_head_bytes> head;
    const auto size_field = static_cast<std::uint32_t>(size);
    std::memcpy(head.data(), &size_field, sizeof size_field);
    head[4] = std::byte{type};
    const auto code = coder_.next(head, {pieces.begin(), pieces.size()});
    const std::size_t needed = bytes_.size() + head.size() + size + code.size();
    if (needed > bytes_.capacity()) bytes_.reserve(std::max(needed, 2 * bytes_.size()));  // many may be queued at once
    append(head);
    for (const ConstBytes piece : pieces) append(piece);
    append(code);
  }

  [[nodiscard]] ConstBytes unsent() const noexcept { return ConstBytes{bytes_}.subspan(sent_); }
  void mark_sent(std::size_t num_bytes) {
    sent_ += num_bytes;
    if (sent_ < bytes_.size()) return;
    sent_ = 0;
    constexpr std::size_t kept = std::size_t{1} << 20U;
    if (bytes_.capacity() > kept) bytes_ = {};  // one large frame must not hold its memory for ever
    bytes_.clear();
  }

 private:
  void append(ConstBytes piece) { bytes_.insert(bytes_.end(), piece.begin(), piece.end()); }

  FrameCoder coder_;
  std::size_t max_bytes_;
  std::vector<std::byte> bytes_{};
  std::size_t sent_ = 0;
};

/// Puts frames together from whatever pieces they come in.
class FrameReader {
 public:
  FrameReader(Hmac key, std::size_t max_bytes) noexcept : coder_(std::move(key)), max_bytes_(max_bytes) {}

  /// Where the next bytes go: never beyond the end of a frame. It grows with what has come: a size that is a lie costs
  /// no memory.
  [[nodiscard]] std::span<std::byte> room() {
    if (filled_ < frame_head_bytes) return std::span{head_}.subspan(filled_);
    constexpr std::size_t first = std::size_t{256} << 10U;
    const std::size_t got = filled_ - frame_head_bytes;
    if (got == body_.size()) body_.resize(std::min(body_bytes_, got + std::max(got, first)));
    return std::span{body_}.subspan(got);
  }

  /// Takes what has been put into room(), and returns the frame that it has made whole.
  /// Throws: DataError if the frame is too large or has been altered.
  [[nodiscard]] std::optional<Frame> take(std::size_t num_bytes) {
    filled_ += num_bytes;
    if (filled_ == frame_head_bytes) take_head();
    if (filled_ < frame_head_bytes + body_bytes_ || filled_ < frame_head_bytes) return std::nullopt;
    const ConstBytes payload = ConstBytes{body_}.first(body_bytes_ - frame_code_bytes);
    if (!are_equal(coder_.next(head_, {&payload, 1}), ConstBytes{body_}.last(frame_code_bytes))) {
      throw DataError{compose("a message of {} bytes was altered on its way", payload.size())};
    }
    Frame frame{.type = std::to_integer<std::uint8_t>(head_[4]), .payload = std::exchange(body_, {})};
    frame.payload.resize(frame.payload.size() - frame_code_bytes);
    filled_ = 0;
    return frame;
  }

  /// Is a frame under way?
  [[nodiscard]] bool is_inside() const noexcept { return filled_ != 0; }

 private:
  void take_head() {
    std::uint32_t size = 0;
    std::memcpy(&size, head_.data(), sizeof size);
    if (size > max_bytes_) {
      throw DataError{compose("a message claims to have {} bytes; at most {} are taken", size, max_bytes_)};
    }
    body_bytes_ = size + frame_code_bytes;
  }

  FrameCoder coder_;
  std::size_t max_bytes_;
  std::array<std::byte, frame_head_bytes> head_{};
  std::vector<std::byte> body_{};
  std::size_t body_bytes_ = 0;
  std::size_t filled_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
