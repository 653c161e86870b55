// SPDX-License-Identifier: MIT
// Bytes one after another: of a file, or of what a compressed file holds. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a place in a file from which on another stream of it can give the bytes.
struct StreamPoint {
  std::uint64_t offset = 0;             ///< of the bytes that it gives
  std::function<std::string()> save{};  ///< returns what that takes, at most 33 KiB; may be called on any thread
};

/// Says that a stream can be read no further because of what its bytes are; not because the system fails to read them.
class StreamDamage final : public DataError {
 public:
  /// is_over: nothing that can be read follows. Otherwise nothing is missing, and reading goes on behind it.
  StreamDamage(const std::string& message, bool is_over) : DataError(message), is_over_(is_over) {}

  [[nodiscard]] bool is_over() const noexcept { return is_over_; }
  /// How many bytes the call that throws it has put there before.
  [[nodiscard]] std::size_t got() const noexcept { return got_; }
  void add_got(std::size_t bytes) noexcept { got_ += bytes; }

 private:
  bool is_over_;
  std::size_t got_ = 0;
};

/// Gives the bytes of one file from its beginning, or from where it was opened.
class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  /// Returns how many bytes it has put there: fewer than asked for only at the end. Throws: StreamDamage, or another
  /// DataError if the file cannot be read.
  [[nodiscard]] virtual std::size_t read(char* to, std::size_t size) = 0;
  /// Steps over bytes and returns how many: fewer than asked for only at the end. Throws: DataError.
  [[nodiscard]] virtual std::uint64_t skip(std::uint64_t size) {
    std::array<char, 65536> part;
    std::uint64_t done = 0;
    for (std::size_t got = 1; got > 0 && done < size; done += got) {
      got = read(part.data(), static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), size - done)));
    }
    return done;
  }
  /// About how many bytes follow, where that is known, as of a file that nobody writes to: no buffer for them need be
  /// larger.
  [[nodiscard]] virtual std::uint64_t left() const noexcept { return std::numeric_limits<std::uint64_t>::max(); }

  /// Returns the last of the points up to an offset that it has come by, and forgets those before; each once.
  [[nodiscard]] virtual std::optional<StreamPoint> take_point(std::uint64_t /*offset*/) { return std::nullopt; }
  /// Goes on from a point, before anything has been read. False, and it is at its beginning, if the bytes that were
  /// saved are none of a point in this file.
  [[nodiscard]] virtual bool go_to(std::uint64_t /*offset*/, std::string_view /*saved*/) { return false; }
};

/// Holds the points of a stream that nobody has asked for yet.
class StreamPoints {
 public:
  /// Bytes after the last one, or after where it was opened.
  [[nodiscard]] std::uint64_t since(std::uint64_t offset) const noexcept { return offset - last_; }
  void begin_at(std::uint64_t offset) noexcept { last_ = offset; }
  void add(StreamPoint point) {
    last_ = point.offset;
    if (point.save) points_.push_back(std::move(point));
    if (points_.size() > most_kept) points_.pop_front();
  }
  /// As ByteStream::take_point().
  [[nodiscard]] std::optional<StreamPoint> take(std::uint64_t offset) {
    std::optional<StreamPoint> found;
    while (!points_.empty() && points_.front().offset <= offset) {
      found = std::move(points_.front());
      points_.pop_front();
    }
    return found;
  }

 private:
  static constexpr std::size_t most_kept = 8;  // nobody may ask

  std::deque<StreamPoint> points_{};
  std::uint64_t last_ = 0;
};

/// Reads as much as there is: fewer bytes than asked for only at the end, or where damage ends the stream.
/// note(damage, got): told of each damage, and how many bytes came before it.
template <class Note>
[[nodiscard]] std::size_t read_past_damage(ByteStream& stream, char* to, std::size_t size, Note&& note) {
  std::size_t done = 0;
  while (done < size) {
    try {
      return done + stream.read(to + done, size - done);
    } catch (const StreamDamage& damage) {
      done += damage.got();
      note(damage, done);
      if (damage.is_over()) break;
    }
  }
  return done;
}

/// Steps over bytes, whatever is damaged of them, and returns how many: fewer than asked for only at the end, or where
/// damage ends the stream.
[[nodiscard]] inline std::uint64_t skip_past_damage(ByteStream& stream, std::uint64_t size) {
  std::array<char, 65536> part;
  std::uint64_t done = 0;
  for (std::size_t got = 1; got > 0 && done < size; done += got) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), size - done));
    got = read_past_damage(stream, part.data(), wanted, [](const auto&...) {});
  }
  return done;
}

/// Returns how large a buffer is to be: so much, or for the little that follows and a byte, which shows that it ends.
/// What says that nothing follows may say so of what has no size, as a pipe, and has 4 KiB.
[[nodiscard]] inline std::size_t room_for(const ByteStream& stream, std::size_t most) noexcept {
  const std::uint64_t left = stream.left();
  return static_cast<std::size_t>(std::min<std::uint64_t>(left > 0 ? left : 4095, most - 1) + 1);
}

/// Opens what it is told by path.
using OpenBytes = std::unique_ptr<ByteStream> (*)(const std::string& path);

/// Tells a file from what it is after somebody has changed it.
struct FileStamp {
  std::uint64_t size = 0;
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Throws: DataError that says why a path cannot be read.
[[noreturn]] inline void refuse_file(const std::string& path, std::string_view why) {
  std::error_code no_error;
  throw DataError{compose("cannot read \"{}\" (working directory {}): {}", path,
                          std::filesystem::current_path(no_error).string(), why)};
}
/// Returns why a file cannot be read from any of its places, by its kind; empty if it can.
[[nodiscard]] inline std::string fault_of_kind(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return {};
  if (S_ISDIR(status.st_mode)) return explain_errno(EISDIR);
  return "it is a pipe, a socket or a device, and data is read from any place, more than once: write it to a file";
}
/// Throws: DataError if there is no file of that path that can be read.
inline void check_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) refuse_file(path, explain_errno(errno));
  if (const std::string fault = fault_of_kind(status); !fault.empty()) refuse_file(path, fault);
  if (::access(path.c_str(), R_OK) != 0) refuse_file(path, explain_errno(errno));
}

/// Reads a file from any of its places. Not by a mapping, which would end the program when the file is cut short.
class FileBytes final : public ByteStream {
 public:
  explicit FileBytes(std::string path, std::uint64_t from = 0) : path_(std::move(path)), at_(from) {
    file_ = Descriptor{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // of a pipe one would wait
    struct stat status {};
    if (!file_.is_open() || ::fstat(file_.get(), &status) != 0) refuse_file(path_, explain_errno(errno));
    if (const std::string fault = fault_of_kind(status); !fault.empty()) refuse_file(path_, fault);
    stamp_ = stamp_of(status);
  }

  [[nodiscard]] const FileStamp& stamp() const noexcept { return stamp_; }
  /// That of the file as it is, where this one is that of when it was opened.
  [[nodiscard]] FileStamp stamp_now() const noexcept {
    struct stat status {};
    return ::fstat(file_.get(), &status) == 0 ? stamp_of(status) : FileStamp{};
  }

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    const std::size_t got = read_at(at_, to, size);
    at_ += got;
    return got;
  }

  [[nodiscard]] std::uint64_t skip(std::uint64_t size) override {
    const std::uint64_t done = std::min(size, left());
    at_ += done;
    return done;
  }
  void seek(std::uint64_t offset) noexcept { at_ = offset; }

  [[nodiscard]] std::uint64_t left() const noexcept override { return stamp_.size - std::min(at_, stamp_.size); }

  [[nodiscard]] std::size_t read_at(std::uint64_t offset, char* to, std::size_t size) const {
    const std::size_t got = detail::read_at(file_.get(), offset, to, size);
    if (got == size || errno == 0) return got;
    throw DataError{compose("reading \"{}\" at byte {} failed: {}", path_, offset + got, explain_errno(errno))};
  }

 private:
  [[nodiscard]] static FileStamp stamp_of(const struct stat& status) noexcept {
    return {static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  std::string path_;
  Descriptor file_{};
  FileStamp stamp_{};
  std::uint64_t at_;
};

/// Whether lines of a text end with carriage returns that are not within quotes, and none with a line feed; but for
/// what it ends with. Of the begin of a longer text, whose first line may simply be long, only where there are many.
[[nodiscard]] inline bool has_only_carriage_returns(std::string_view text, bool is_whole) noexcept {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (text.find('\n') != std::string_view::npos) return false;
  const std::ptrdiff_t enough = is_whole ? 1 : 100;
  std::ptrdiff_t found = 0;
  bool is_quoted = false;
  for (const char c : text) {
    if (c == '"') is_quoted = !is_quoted;
    if (c == '\r' && !is_quoted && ++found == enough) return true;
  }
  return false;
}

/// Names the format of a file that begins as compressed ones do; empty otherwise.
[[nodiscard]] inline std::string_view compression_of(std::string_view text) noexcept {
  if (text.starts_with("\x1F\x8B")) return "gzip";
  return text.starts_with("\x28\xB5\x2F\xFD") ? "zstd" : "";
}

/// Says how such a file is read; empty otherwise.
[[nodiscard]] inline std::string_view fault_of_compression(std::string_view text) noexcept {
  if (compression_of(text) == "gzip") {
    return "it is compressed by gzip: read it with a ...Stream of ry::gzip(paths), which is in railyard/data/gzip.hpp "
           "and needs zlib (Debian: zlib1g-dev)";
  }
  if (compression_of(text) == "zstd") {
    return "it is compressed by zstd: read it with a ...Stream of ry::zstd(paths), which is in railyard/data/zstd.hpp "
           "and needs libzstd (Debian: libzstd-dev)";
  }
  return {};
}

/// Names what a file holds by how it begins (is_whole: that is all of it), where that is no text, and says what to do;
/// empty where it may be text.
[[nodiscard]] inline std::string_view fault_of_beginning(std::string_view text, bool is_whole) noexcept {
  const auto is_nul = [&](std::size_t at) { return text[at] == '\0'; };
  const bool is_wide = text.size() >= 4 && is_nul(0) == is_nul(2) && is_nul(1) == is_nul(3) && is_nul(0) != is_nul(1);
  if (is_wide || text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    return "it is UTF-16 text: save it as UTF-8";
  }
  if (text.starts_with("PK\x03\x04")) return "it is a zip archive, as .xlsx is as well: save what is in it as text";
  if (text.starts_with("PAR1\x15")) return "it is a Parquet file: write it as CSV, as by pandas, and read that";
  if (const auto fault = fault_of_compression(text); !fault.empty()) return fault;
  if (has_only_carriage_returns(text, is_whole)) {
    return "its lines end with a carriage return alone, as on old Macs: convert it, as by tr '\\r' '\\n' < old > new";
  }
  return {};
}

inline constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";

/// Returns the number of the line, from 1, in which a byte of a stream lies.
[[nodiscard]] inline std::uint64_t line_at(ByteStream& stream, std::uint64_t offset) {
  std::array<char, 65536> part{};
  std::uint64_t line = 1;
  while (offset > 0) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), offset));
    const std::size_t got = read_past_damage(stream, part.data(), wanted, [](const auto&...) {});
    if (got == 0) break;
    line += static_cast<std::uint64_t>(std::count(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(got), '\n'));
    offset -= got;
  }
  return line;
}

/// Is a place in a compressed file, and what tells that file from others: its size, and the bytes before the place.
struct CompressedPlace {
  std::uint64_t offset = 0;
  std::uint64_t file_size = 0;
  std::uint64_t digest = 0;
};

/// Hands out the compressed bytes of a file piece by piece.
class CompressedInput {
 public:
  /// kind: what compression_of() should say of it.
  CompressedInput(const std::string& path, std::string_view kind)
      : path_(path), kind_(kind), file_(path), piece_(room_for(file_, std::size_t{64} << 10)) {}

  /// Returns the next piece, which is empty at the end.
  [[nodiscard]] std::string_view next() {
    const std::size_t got = file_.read(piece_.data(), piece_.size());
    read_ += got;
    return {piece_.data(), got};
  }
  /// Where the next piece begins.
  [[nodiscard]] std::uint64_t offset() const noexcept { return read_; }
  void seek(std::uint64_t offset) noexcept {
    read_ = offset;
    file_.seek(offset);
  }
  /// Where it stands; nothing in what is no file, as a pipe. left: bytes of the last piece that were not taken.
  [[nodiscard]] std::optional<CompressedPlace> place(std::size_t left) const {
    const std::uint64_t offset = read_ - left;
    const std::uint64_t size = file_.stamp().size;
    if (offset > size) return std::nullopt;
    const std::string bytes = before(offset);
    return CompressedPlace{offset, size, digest_of(std::as_bytes(std::span{bytes}))};
  }
  /// Goes there and returns the bytes before it, at most 4 KiB; nothing if it is not in this file.
  [[nodiscard]] std::optional<std::string> go_to(const CompressedPlace& place) {
    if (place.file_size != file_.stamp().size || place.offset > place.file_size) return std::nullopt;
    std::string bytes = before(place.offset);
    if (place.digest != digest_of(std::as_bytes(std::span{bytes}))) return std::nullopt;
    seek(place.offset);
    return bytes;
  }

  /// left: as above. is_over: see StreamDamage.
  [[noreturn]] void fail(std::string_view what, std::size_t left, bool is_over = true) const {
    std::array<char, 4> first{};
    const std::string_view kind = compression_of({first.data(), file_.read_at(0, first.data(), first.size())});
    const bool is_other = !kind.empty() && kind != kind_;
    throw StreamDamage{
        compose("{}: byte {} of the compressed file: {}{}", path_, read_ - left, what,
                is_other ? compose(": it is compressed by {}: read it with ry::{}(paths)", kind, kind) : std::string{}),
        is_over};
  }

 private:
  [[nodiscard]] std::string before(std::uint64_t offset) const {
    std::string bytes(static_cast<std::size_t>(std::min<std::uint64_t>(offset, 4096)), '\0');
    bytes.resize(file_.read_at(offset - bytes.size(), bytes.data(), bytes.size()));
    return bytes;
  }

  std::string path_;
  std::string_view kind_;
  FileBytes file_;
  std::vector<char> piece_;
  std::uint64_t read_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
