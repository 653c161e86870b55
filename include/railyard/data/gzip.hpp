// SPDX-License-Identifier: MIT
// Reads files that are compressed by gzip, with zlib. Data room.
#pragma once

#if !__has_include(<zlib.h>)
#error "railyard/data/gzip.hpp needs zlib: install it (Debian: zlib1g-dev) and link with -lz, or leave this header out"
#endif

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/input_files.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <zlib.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Gives what a file compressed by gzip holds; it may have several members (RFC 1952, 2.2).
class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(const std::string& path) : input_(path) {
    constexpr int only_gzip = 16 + MAX_WBITS;
    if (::inflateInit2(&state_, only_gzip) != Z_OK) throw Error{compose("{}: zlib has no memory", path)};
  }
  ~GzipStream() override { ::inflateEnd(&state_); }

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    std::size_t done = 0;
    state_.avail_out = 0;
    try {
      while (done < size && has_more()) {
        const std::size_t part = std::min<std::size_t>(size - done, std::numeric_limits<unsigned>::max());
        state_.next_out = reinterpret_cast<Bytef*>(to + done);
        state_.avail_out = static_cast<unsigned>(part);
        done += part;
        step();
        done -= std::exchange(state_.avail_out, 0U);
      }
    } catch (StreamDamage& damage) {
      damage.add_got(done - state_.avail_out);
      throw;
    }
    return done;
  }

 private:
  // Has compressed bytes at hand; false behind the last member.
  bool has_more() {
    if (state_.avail_in > 0) return true;
    const std::string_view piece = input_.next();
    if (piece.empty() && !is_between_members_) input_.fail("the file ends in the middle: it was cut off", 0);
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));  // zlib does not write there
    state_.avail_in = static_cast<unsigned>(piece.size());
    return !piece.empty();
  }

  void step() {
    if (is_between_members_) {
      for (; state_.avail_in > 0 && untaken_ > 0; --untaken_) {
        ++state_.next_in;
        --state_.avail_in;
      }
      // Files on tapes are filled up with zeros, which gzip takes for nothing.
      while (state_.avail_in > 0 && *state_.next_in == 0 && has_member_) {
        ++state_.next_in;
        --state_.avail_in;
      }
      if (state_.avail_in == 0) return;
      ::inflateReset(&state_);
      is_between_members_ = false;
      has_member_ = true;
    }
    const int status = ::inflate(&state_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) is_between_members_ = true;
    if (status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR) return;
    const std::string_view what = state_.msg != nullptr ? state_.msg : "it is damaged";
    // What the member holds is all there, and the next one follows: after the length, which stands behind the CRC.
    const bool is_wrong_sum = what == "incorrect data check" || what == "incorrect length check";
    if (is_wrong_sum) {
      is_between_members_ = true;
      untaken_ = what == "incorrect data check" ? 4 : 0;
    }
    input_.fail(what, state_.avail_in, !is_wrong_sum);
  }

  CompressedInput input_;
  z_stream state_{};
  bool is_between_members_ = true;
  bool has_member_ = false;
  std::size_t untaken_ = 0;  // bytes of a member's end that zlib has not looked at
};

}  // namespace detail

/// Names files that are compressed by gzip, for CsvStream and its like. Example: ry::CsvStream{ry::gzip("a-*.csv.gz")}
[[nodiscard]] inline CompressedFiles gzip(InputFiles files) {
  return {std::move(files), [](const std::string& path) -> std::unique_ptr<detail::ByteStream> {
            return std::make_unique<detail::GzipStream>(path);
          }};
}

}  // namespace railyard::inline v0_1
