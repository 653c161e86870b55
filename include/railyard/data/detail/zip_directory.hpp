// SPDX-License-Identifier: MIT
// What is in a zip archive, and where. Data room.
// Source: PKWARE, .ZIP File Format Specification (APPNOTE.TXT), sections 4.3 and 4.5.3.
#pragma once

#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a file in an archive.
struct ZipEntry {
  std::string name{};
  unsigned method = 0;  ///< 0: stored as it is, 8: deflated
  std::uint32_t crc = 0;
  std::uint64_t stored_size = 0;
  std::uint64_t size = 0;
  std::uint64_t begin = 0;  ///< of its content in the archive, once that has been looked for
};

/// Reads the directory at the end of an archive. Throws: DataError if it is damaged.
class ZipDirectory {
 public:
  explicit ZipDirectory(const StoredFile& file) : file_(file) {}

  [[nodiscard]] std::vector<ZipEntry> read() {
    find();
    std::vector<ZipEntry> entries;
    std::uint64_t at = begin_;
    while (at + 46 <= begin_ + size_) {
      const Fields fields = read_fields(at, 46, "PK\x01\x02");
      entries.push_back(read_entry(at, fields));
      at += 46 + fields.number(28, 2) + fields.number(30, 2) + fields.number(32, 2);
    }
    if (at != begin_ + size_ || entries.size() != num_entries_) {
      file_.fail(begin_, compose("the directory of the archive should have {} files in {} bytes, and has {} in {}",
                                 num_entries_, size_, entries.size(), at - begin_));
    }
    return entries;
  }

  /// Finds where the content of a file begins.
  void locate(ZipEntry& entry) const {
    const Fields fields = read_fields(entry.begin, 30, "PK\x03\x04");
    const std::uint64_t begin = entry.begin + 30 + fields.number(26, 2) + fields.number(28, 2);
    if ((fields.number(6, 2) & 1U) != 0) file_.fail(entry.begin, "the file is encrypted");
    if (begin > file_.size() || entry.stored_size > file_.size() - begin) {
      file_.fail(entry.begin, compose("the content of \"{}\" of {} bytes does not end in the archive",
                                      shown_text(entry.name), entry.stored_size));
    }
    entry.begin = begin;
  }

 private:
  struct Fields {
    std::string bytes{};
    [[nodiscard]] std::uint64_t number(std::size_t begin, std::size_t size) const noexcept {
      std::uint64_t number = 0;
      for (std::size_t at = begin + size; at-- > begin;) number = number << 8U | static_cast<unsigned char>(bytes[at]);
      return number;
    }
  };

  [[nodiscard]] Fields read_fields(std::uint64_t offset, std::size_t size, std::string_view magic) const {
    Fields fields{file_.read_text(offset, size)};
    if (!fields.bytes.starts_with(magic)) file_.fail(offset, "a part of a zip archive should be here: it is damaged");
    return fields;
  }

  // The end of the archive is 22 bytes, behind which there may be a comment. Large archives have another end before it.
  void find() {
    constexpr std::uint64_t most = 22 + 65535;
    const std::uint64_t begin = file_.size() - std::min(file_.size(), most);
    const std::string tail = file_.read_text(begin, static_cast<std::size_t>(file_.size() - begin));
    const std::size_t found = tail.size() < 22 ? std::string::npos : tail.rfind("PK\x05\x06", tail.size() - 22);
    if (found == std::string::npos) file_.fail(0, "it is no zip archive, or was cut off: the directory is missing");
    const Fields end = read_fields(begin + found, 22, "PK\x05\x06");
    num_entries_ = end.number(10, 2);
    size_ = end.number(12, 4);
    begin_ = end.number(16, 4);
    if (found >= 20 && std::string_view{tail}.substr(found - 20).starts_with("PK\x06\x07")) {
      const std::uint64_t place = read_fields(begin + found - 20, 20, "PK\x06\x07").number(8, 8);
      const Fields large = read_fields(place, 56, "PK\x06\x06");
      num_entries_ = large.number(32, 8);
      size_ = large.number(40, 8);
      begin_ = large.number(48, 8);
    }
    if (begin_ > file_.size() || size_ > file_.size() - begin_) {
      file_.fail(begin + found,
                 compose("the directory of {} bytes at byte {} does not lie in the file", size_, begin_));
    }
  }

  [[nodiscard]] ZipEntry read_entry(std::uint64_t at, const Fields& fields) const {
    const auto name_size = static_cast<std::size_t>(fields.number(28, 2));
    const Fields extra{file_.read_text(at + 46 + name_size, static_cast<std::size_t>(fields.number(30, 2)))};
    ZipEntry entry{.name = file_.read_text(at + 46, name_size),
                   .method = static_cast<unsigned>(fields.number(10, 2)),
                   .crc = static_cast<std::uint32_t>(fields.number(16, 4)),
                   .stored_size = fields.number(20, 4),
                   .size = fields.number(24, 4),
                   .begin = fields.number(42, 4)};
    for (std::size_t part = 0; part + 4 <= extra.bytes.size();) {
      const std::uint64_t id = extra.number(part, 2);
      std::size_t left =
          std::min<std::size_t>(static_cast<std::size_t>(extra.number(part + 2, 2)), extra.bytes.size() - part - 4);
      part += 4;
      if (id == 1) read_large_numbers(extra, part, left, entry);
      part += left;
    }
    return entry;
  }
  // Those that did not fit into 32 bits, in this order.
  static void read_large_numbers(const Fields& extra, std::size_t at, std::size_t left, ZipEntry& entry) {
    for (std::uint64_t* number : {&entry.size, &entry.stored_size, &entry.begin}) {
      if (*number != 0xFFFFFFFFU || left < 8) continue;
      *number = extra.number(at, 8);
      at += 8;
      left -= 8;
    }
  }

  const StoredFile& file_;
  std::uint64_t num_entries_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t begin_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
