// SPDX-License-Identifier: MIT
// Reads files that are compressed by gzip, with zlib. Data room.
#pragma once

#if !__has_include(<zlib.h>)
#error "railyard/data/gzip.hpp needs zlib: install it (Debian: zlib1g-dev) and link with -lz, or leave this header out"
#endif

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/input_files.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <zlib.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what zlib needs to go on in the middle of a file: at the begin of a member, or of a block within one.
/// Source: Adler, zlib's examples/zran.c.
struct GzipPoint {
  CompressedPlace place{};
  bool begins_member = true;
  std::uint8_t num_bits = 0;  ///< of the byte before the place that are still to be read
  std::uint32_t crc = 0;      ///< of what the member has held so far
  std::uint32_t size = 0;     ///< of that, modulo 2^32
  std::string window{};       ///< the last of it, which is referred to

  static constexpr std::size_t most_window = std::size_t{32} << 10;

  /// The window is compressed: whoever saves a position saves it, and whoever shares one sends it.
  [[nodiscard]] std::string to_bytes() const {
    WireWriter writer;
    writer.put(place);
    writer.put(begins_member);
    if (begins_member) return writer.text();
    std::string packed(::compressBound(static_cast<uLong>(window.size())), '\0');
    uLongf packed_size = static_cast<uLongf>(packed.size());
    if (::compress2(reinterpret_cast<Bytef*>(packed.data()), &packed_size,
                    reinterpret_cast<const Bytef*>(window.data()), static_cast<uLong>(window.size()), 1) != Z_OK) {
      throw Error{"zlib has no memory for the state of a file"};
    }
    writer.put(num_bits);
    writer.put(crc);
    writer.put(size);
    writer.put(static_cast<std::uint32_t>(window.size()));
    writer.put_text(std::string_view{packed}.substr(0, packed_size));
    return writer.text();
  }
  /// Throws: DataError if the bytes are none of these.
  [[nodiscard]] static GzipPoint of_bytes(std::string_view bytes) {
    WireReader reader{bytes};
    GzipPoint point{.place = reader.take<CompressedPlace>(), .begins_member = reader.take<std::uint8_t>() == 1};
    if (!point.begins_member) {
      point.num_bits = reader.take<std::uint8_t>();
      point.crc = reader.take<std::uint32_t>();
      point.size = reader.take<std::uint32_t>();
      point.window.resize(std::min<std::size_t>(reader.take<std::uint32_t>(), most_window));
      const std::string packed = reader.take_text();
      auto window_size = static_cast<uLongf>(point.window.size());
      const int status = ::uncompress(reinterpret_cast<Bytef*>(point.window.data()), &window_size,
                                      reinterpret_cast<const Bytef*>(packed.data()), static_cast<uLong>(packed.size()));
      if (status != Z_OK || window_size != point.window.size()) throw DataError{"it is damaged"};
    }
    if (point.num_bits > 7 || (point.num_bits > 0 && point.place.offset == 0)) throw DataError{"it is damaged"};
    return point;
  }
};

/// Gives what a file compressed by gzip holds; it may have several members (RFC 1952, 2.2).
class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(const std::string& path) : path_(path), input_(path, "gzip") {
    if (::inflateInit2(&state_, with_header) != Z_OK) throw_no_memory();
  }
  ~GzipStream() override { ::inflateEnd(&state_); }

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    const std::uint64_t begin = at_;
    const auto done = [&] { return static_cast<std::size_t>(at_ - begin); };
    try {
      while (done() < size && has_more()) {
        if (is_between_members_) {
          begin_member();
        } else if (rest_ && rest_->is_unpacked) {
          check_rest();
        } else {
          unpack(to + done(), std::min<std::size_t>(size - done(), std::numeric_limits<unsigned>::max()));
        }
      }
    } catch (StreamDamage& damage) {
      damage.add_got(done());
      throw;
    }
    return done();
  }

  [[nodiscard]] std::optional<StreamPoint> take_point(std::uint64_t offset) override { return points_.take(offset); }

  [[nodiscard]] bool go_to(std::uint64_t offset, std::string_view saved) override {
    GzipPoint point;
    try {
      point = GzipPoint::of_bytes(saved);
    } catch (const DataError&) {
      return false;
    }
    const auto before = input_.go_to(point.place);
    if (!before) return false;
    if (!point.begins_member) enter(point, *before);
    has_member_ = true;
    at_ = offset;
    points_.begin_at(offset);
    return true;
  }

 private:
  // Of the bytes that come out. A window takes some hundred microseconds to save; the begin of a member nothing.
  static constexpr std::uint64_t between_windows = std::uint64_t{4} << 20;
  static constexpr std::uint64_t between_members = std::uint64_t{256} << 10;
  // For zlib.
  static constexpr int with_header = 16 + MAX_WBITS;
  static constexpr int without_header = -MAX_WBITS;
  static constexpr int after_block = 128;
  static constexpr int in_last_block = 64;
  static constexpr std::string_view wrong_crc = "incorrect data check";
  static constexpr std::string_view wrong_length = "incorrect length check";

  // Is what must be checked here of a member that was gone into in its middle: zlib checks whole ones.
  struct Rest {
    uLong crc = 0;
    std::uint32_t size = 0;
    bool is_unpacked = false;
    bool is_crc_checked = false;
    std::string word{};  // of the two that end a member, as far as it is there
  };

  [[noreturn]] void throw_no_memory() const { throw Error{compose("{}: zlib has no memory", path_)}; }

  // Has compressed bytes at hand; false behind the last member.
  bool has_more() {
    if (state_.avail_in > 0) return true;
    const std::string_view piece = input_.next();
    if (piece.empty() && !is_between_members_) input_.fail("the file ends in the middle: it was cut off", 0);
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));  // zlib does not write there
    state_.avail_in = static_cast<unsigned>(piece.size());
    return !piece.empty();
  }

  // Takes compressed bytes, at most so many, of those at hand.
  std::string_view take_input(std::size_t size) {
    const std::string_view taken{reinterpret_cast<const char*>(state_.next_in),
                                 std::min<std::size_t>(size, state_.avail_in)};
    state_.next_in += taken.size();
    state_.avail_in -= static_cast<unsigned>(taken.size());
    return taken;
  }

  void begin_member() {
    untaken_ -= take_input(untaken_).size();
    // Files on tapes are filled up with zeros, which gzip takes for nothing.
    while (state_.avail_in > 0 && *state_.next_in == 0 && has_member_) static_cast<void>(take_input(1));
    if (state_.avail_in == 0) return;
    if (points_.since(at_) >= between_members) add_point({});
    ::inflateReset(&state_);
    is_between_members_ = false;
    has_member_ = true;
  }

  void unpack(char* to, std::size_t most) {
    const std::uint64_t since = points_.since(at_);
    const bool is_due = since >= between_windows;
    if (!is_due) most = static_cast<std::size_t>(std::min<std::uint64_t>(most, between_windows - since));
    state_.next_out = reinterpret_cast<Bytef*>(to);
    state_.avail_out = static_cast<unsigned>(most);
    const int status = ::inflate(&state_, is_due ? Z_BLOCK : Z_NO_FLUSH);  // the first stops at the end of a block
    const std::size_t done = most - state_.avail_out;
    at_ += done;
    if (rest_) {
      rest_->crc = ::crc32(rest_->crc, reinterpret_cast<const Bytef*>(to), static_cast<unsigned>(done));
      rest_->size += static_cast<std::uint32_t>(done);
    }
    if (status == Z_STREAM_END) {
      (rest_ ? rest_->is_unpacked : is_between_members_) = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail(state_.msg != nullptr ? state_.msg : "it is damaged");
    } else if (is_due && (state_.data_type & (after_block | in_last_block)) == after_block) {
      add_window();
    }
  }

  void check_rest() {
    rest_->word += take_input(sizeof(std::uint32_t) - rest_->word.size());
    if (rest_->word.size() < sizeof(std::uint32_t)) return;
    const auto word = WireReader{std::exchange(rest_->word, {})}.take<std::uint32_t>();
    if (!std::exchange(rest_->is_crc_checked, true)) {
      if (word != rest_->crc) fail(wrong_crc);
      return;
    }
    if (word != rest_->size) fail(wrong_length);
    end_member();
  }

  // what: in zlib's words.
  [[noreturn]] void fail(std::string_view what) {
    // What the member holds is all there, and the next one follows: after the length, which stands behind the CRC.
    const bool is_wrong_sum = what == wrong_crc || what == wrong_length;
    if (is_wrong_sum) end_member();
    if (what == wrong_crc) untaken_ = sizeof(std::uint32_t);
    input_.fail(what, state_.avail_in, !is_wrong_sum);
  }

  void end_member() {
    if (std::exchange(rest_, {}) && ::inflateReset2(&state_, with_header) != Z_OK) throw_no_memory();
    is_between_members_ = true;
  }

  void add_window() {
    GzipPoint point{.begins_member = false,
                    .num_bits = static_cast<std::uint8_t>(state_.data_type & 7),
                    .crc = static_cast<std::uint32_t>(rest_ ? rest_->crc : state_.adler),
                    .size = rest_ ? rest_->size : static_cast<std::uint32_t>(state_.total_out)};
    point.window.resize(GzipPoint::most_window);
    unsigned size = 0;
    ::inflateGetDictionary(&state_, reinterpret_cast<Bytef*>(point.window.data()), &size);
    point.window.resize(size);
    add_point(std::move(point));
  }
  void add_point(GzipPoint point) {
    StreamPoint here{.offset = at_};
    if (const auto place = input_.place(state_.avail_in)) {
      point.place = *place;
      const auto kept = std::make_shared<const GzipPoint>(std::move(point));
      here.save = [kept] { return kept->to_bytes(); };
    }
    points_.add(std::move(here));
  }

  // before: the bytes before the point.
  void enter(const GzipPoint& point, std::string_view before) {
    bool is_ready = ::inflateReset2(&state_, without_header) == Z_OK;
    if (point.num_bits > 0) {
      const int bits = static_cast<unsigned char>(before.back()) >> (8 - point.num_bits);
      is_ready = is_ready && ::inflatePrime(&state_, point.num_bits, bits) == Z_OK;
    }
    is_ready = is_ready && ::inflateSetDictionary(&state_, reinterpret_cast<const Bytef*>(point.window.data()),
                                                  static_cast<unsigned>(point.window.size())) == Z_OK;
    if (!is_ready) throw_no_memory();
    rest_ = Rest{.crc = point.crc, .size = point.size};
    is_between_members_ = false;
  }

  std::string path_;
  CompressedInput input_;
  z_stream state_{};
  StreamPoints points_{};
  std::uint64_t at_ = 0;  // of the bytes that come out
  bool is_between_members_ = true;
  bool has_member_ = false;
  std::optional<Rest> rest_{};
  std::size_t untaken_ = 0;  // bytes of a member's end that nobody has looked at
};

}  // namespace detail

/// Names files that are compressed by gzip, for CsvStream and its like. To go on in the middle of one takes as long as
/// to unpack 4 MiB and the block (of deflate) in which they end, or 256 KiB and the member, if that is less. Example:
/// ry::CsvStream{ry::gzip("a-*.csv.gz")}
[[nodiscard]] inline CompressedFiles gzip(InputFiles files) {
  return {std::move(files), [](const std::string& path) -> std::unique_ptr<detail::ByteStream> {
            return std::make_unique<detail::GzipStream>(path);
          }};
}

}  // namespace railyard::inline v0_1
