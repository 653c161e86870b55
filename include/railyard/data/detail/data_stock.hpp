// SPDX-License-Identifier: MIT
// What a dataset is read from, in a few lines that a saved position keeps, so that a run which goes on notices when its
// data is another. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Of files that are larger together, and of columns in memory that are, only parts are looked at.
inline constexpr std::size_t most_stock_bytes = std::size_t{4} << 20;

/// Calls look(begin, size) with parts of so many bytes, together `most` at most and spread evenly from the first byte
/// to the last one. Returns whether they are all.
template <class Look>
bool look_at_parts(std::uint64_t size, std::uint64_t most, const Look& look) {
  constexpr std::uint64_t parts = 64;
  if (size <= most) {
    look(std::uint64_t{0}, size);
    return true;
  }
  const std::uint64_t each = std::max<std::uint64_t>(most / parts, 1);
  const std::uint64_t stride = (size - each) / (parts - 1);
  for (std::uint64_t part = 0; part + 1 < parts; ++part) look(stride * part, each);
  look(size - each, each);
  return false;
}

/// Collects it.
class DataStock {
 public:
  void add_files(const std::vector<std::string>& paths) { files_.insert(files_.end(), paths.begin(), paths.end()); }
  /// what: its name and shape.
  void add_memory(std::string_view what, std::uint64_t digest) {
    if (++num_in_memory_ > most_things) return;
    memory_ += compose("m {:x} {}\n", digest, printable_of(what));
  }
  void add_memory(std::string_view what, std::span<const std::byte> bytes) {
    if (num_in_memory_ >= most_things) return;
    std::uint64_t digest = bytes.size();
    look_at_parts(bytes.size(), most_stock_bytes, [&](std::uint64_t begin, std::uint64_t size) {
      digest = digest_of(bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)), digest);
    });
    add_memory(what, digest);
  }

  /// Reads the files, together as much as is said above, and returns all; empty if there is nothing that could be
  /// looked at. Of many files 64 are looked at; of the others the names count, in the folder that all are in.
  [[nodiscard]] std::string text() const {
    if (files_.empty()) return memory_;
    std::vector<std::string_view> paths;
    std::unordered_set<std::string_view> known;
    for (const std::string& path : files_) {
      if (known.insert(path).second) paths.push_back(path);
    }
    const std::size_t prefix = size_of_common_folder(paths);
    std::uint64_t names = 0;
    for (const std::string_view path : paths) names = digest_of(std::as_bytes(std::span{path.substr(prefix)}), names);
    std::string text = compose("F {} {:x}\n", paths.size(), names);
    const std::size_t looked_at = std::min(paths.size(), most_things);
    for (std::size_t at = 0; at < looked_at; ++at) {
      const std::string_view path = paths[at * paths.size() / looked_at];
      text += line_of(std::string{path}, path.substr(prefix), most_stock_bytes / looked_at);
    }
    return text + memory_;
  }

 private:
  // So that a copy elsewhere is the same.
  [[nodiscard]] static std::size_t size_of_common_folder(const std::vector<std::string_view>& paths) {
    std::string_view common = paths.front().substr(0, paths.front().rfind('/') + 1);
    for (const std::string_view path : paths) {
      while (!path.starts_with(common)) {
        common.remove_suffix(1);
        common = common.substr(0, common.rfind('/') + 1);
      }
    }
    return common.size();
  }

  [[nodiscard]] static std::string printable_of(std::string_view name) {
    std::string text{name};
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return text;
  }

  [[nodiscard]] static std::string line_of(const std::string& path, std::string_view name, std::size_t most) {
    const FileBytes file{path};
    const FileStamp& stamp = file.stamp();
    std::vector<char> part;
    std::uint64_t digest = 0;
    const bool is_whole = look_at_parts(stamp.size, most, [&](std::uint64_t begin, std::uint64_t size) {
      part.resize(static_cast<std::size_t>(size));
      part.resize(file.read_at(begin, part.data(), part.size()));
      digest = digest_of(std::as_bytes(std::span{part}), digest);
    });
    return compose("f {} {:x} {} {}\n", stamp.size, digest,
                   is_whole ? std::string{"-"} : compose("{}.{}", stamp.seconds, stamp.nanoseconds),
                   printable_of(name));
  }

  static constexpr std::size_t most_things = 64;

  std::vector<std::string> files_{};
  std::string memory_{};
  std::size_t num_in_memory_ = 0;
};

/// Is what two stocks tell of each other.
struct StockDifference {
  std::string text{};       ///< one sentence; empty if there is none
  bool is_certain = false;  ///< otherwise the samples may still be the same
};

/// Returns the first difference that is certain, or else the first one.
[[nodiscard]] inline StockDifference difference_of_stocks(std::string_view then, std::string_view now) {
  const auto cut = [](std::string_view& rest, char end) {
    const std::size_t size = std::min(rest.find(end), rest.size());
    const std::string_view part = rest.substr(0, size);
    rest.remove_prefix(std::min(size + 1, rest.size()));
    return part;
  };
  StockDifference found;
  while (!(then.empty() && now.empty())) {
    std::string_view old_line = cut(then, '\n');
    std::string_view new_line = cut(now, '\n');
    if (old_line == new_line) continue;
    const std::string_view kind = cut(new_line, ' ');
    if (kind != cut(old_line, ' ') || kind.empty()) return {"it is made of other things", true};
    if (kind == "F") {
      const std::string_view old_count = cut(old_line, ' ');
      const std::string_view count = cut(new_line, ' ');
      if (old_count != count) return {compose("it was read from {} file(s) and is from {}", old_count, count), true};
      return {"it is read from files of other names", true};
    }
    const std::string_view old_size_or_digest = cut(old_line, ' ');
    const std::string_view size_or_digest = cut(new_line, ' ');
    if (kind == "m") {
      if (old_line != new_line) return {compose("it was {} and is {}", old_line, new_line), true};
      if (found.text.empty()) found.text = compose("the numbers in memory of {} are others", new_line);
      continue;
    }
    const std::string_view old_digest = cut(old_line, ' ');
    const std::string_view digest = cut(new_line, ' ');
    cut(old_line, ' ');
    cut(new_line, ' ');
    if (old_line != new_line) return {"it is read from files of other names", true};
    if (old_size_or_digest != size_or_digest) {
      return {compose("the file {} had {} bytes and has {}", new_line, old_size_or_digest, size_or_digest), true};
    }
    if (old_digest != digest) return {compose("the file {} holds other bytes", new_line), true};
    if (found.text.empty()) {
      found.text =
          compose("the file {} has been written to since, or is a copy, and only parts of it were compared", new_line);
    }
  }
  return found;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
