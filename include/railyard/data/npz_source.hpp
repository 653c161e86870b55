// SPDX-License-Identifier: MIT
// Samples out of archives of NumPy arrays, with zlib. Data room.
#pragma once

#if !__has_include(<zlib.h>)
#error "railyard/data/npz_source.hpp needs zlib: install it (Debian: zlib1g-dev) and link with -lz, or leave it out"
#endif

#include "railyard/data/array_source.hpp"
#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/npy_header.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/detail/utf8.hpp"
#include "railyard/data/detail/zip_directory.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <zlib.h>

namespace railyard::inline v0_1 {

/// Says how archives of arrays are read.
struct NpzSourceOptions {
  std::vector<std::string> columns{};  ///< the arrays that become columns; none: all, in the order of the archive
  std::string label{};
  OnError on_error = OnError::stop();
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;  ///< that the deflated arrays of a file may become
};

namespace detail {

/// Unpacks a file that was deflated into an archive. Throws: DataError if it is damaged.
class MemberInflater {
 public:
  MemberInflater(const StoredFile& archive, const ZipEntry& entry) : archive_(archive), entry_(entry) {
    constexpr int without_header = -MAX_WBITS;
    if (::inflateInit2(&state_, without_header) != Z_OK) throw Error{compose("{}: zlib has no memory", archive.path())};
  }
  MemberInflater(const MemberInflater&) = delete;
  MemberInflater& operator=(const MemberInflater&) = delete;
  ~MemberInflater() { ::inflateEnd(&state_); }

  [[nodiscard]] std::vector<char> read() {
    constexpr std::uint64_t most_per_byte = 1032;  // to which deflate can shrink what it is given
    if (entry_.size / most_per_byte > entry_.stored_size) fail("it cannot have become so small");
    std::vector<char> bytes(static_cast<std::size_t>(entry_.size));
    std::vector<char> piece(
        static_cast<std::size_t>(std::clamp<std::uint64_t>(entry_.stored_size, 1, std::uint64_t{64} << 10)));
    std::uint64_t taken = 0;
    std::size_t done = 0;
    int status = Z_OK;
    while (status == Z_OK) {
      if (state_.avail_in == 0) {
        const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), entry_.stored_size - taken));
        archive_.read(entry_.begin + taken, piece.data(), part);
        taken += part;
        state_.next_in = reinterpret_cast<Bytef*>(piece.data());
        state_.avail_in = static_cast<unsigned>(part);
      }
      const std::size_t room = std::min<std::size_t>(bytes.size() - done, std::numeric_limits<unsigned>::max());
      state_.next_out = reinterpret_cast<Bytef*>(bytes.data() + done);
      state_.avail_out = static_cast<unsigned>(room);
      status = ::inflate(&state_, Z_NO_FLUSH);
      done += room - state_.avail_out;
    }
    if (status != Z_STREAM_END || done != bytes.size()) fail(state_.msg != nullptr ? state_.msg : "it is damaged");
    if (checksum(bytes) != entry_.crc) fail("its checksum is wrong");
    return bytes;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    archive_.fail(entry_.begin, compose("\"{}\" of {} bytes, deflated to {}: {}", shown_text(entry_.name), entry_.size,
                                        entry_.stored_size, what));
  }
  [[nodiscard]] static std::uint32_t checksum(const std::vector<char>& bytes) {
    return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  }

  const StoredFile& archive_;
  const ZipEntry& entry_;
  z_stream state_{};
};

[[nodiscard]] inline std::vector<StoredArray> read_npz(const std::shared_ptr<const StoredFile>& file,
                                                       const std::vector<std::string>& columns,
                                                       std::uint64_t max_unpacked_bytes) {
  ZipDirectory directory{*file};
  std::vector<ZipEntry> entries = directory.read();
  for (ZipEntry& entry : entries) {
    if (entry.name.ends_with(".npy")) entry.name.resize(entry.name.size() - 4);
  }
  std::vector<StoredArray> arrays;
  std::uint64_t unpacked = 0;
  for (const ZipEntry* chosen : choose_columns(*file, entries, columns)) {
    ZipEntry entry = *chosen;
    directory.locate(entry);
    if (entry.method == 0) {
      arrays.push_back(read_npy(entry.name, file, entry.begin, entry.begin + entry.stored_size));
      continue;
    }
    if (entry.method != 8) file->fail(entry.begin, compose("method {} of compression is not known", entry.method));
    unpacked += std::min(entry.size, max_unpacked_bytes + 1);
    if (unpacked > max_unpacked_bytes) {
      file->fail(entry.begin, compose("the arrays take more than the {} bytes that .max_unpacked_bytes allows: save "
                                      "them by numpy.savez, or allow more",
                                      max_unpacked_bytes));
    }
    auto member = std::make_shared<const StoredFile>(compose("{} ({})", file->path(), shown_text(entry.name)),
                                                     MemberInflater{*file, entry}.read());
    arrays.push_back(read_npy(entry.name, member, 0, member->size()));
  }
  return arrays;
}

}  // namespace detail

/// Gives slices of the arrays that numpy.savez has put into a file, along their first dimension, in which they are
/// equal, as samples. What numpy.savez_compressed has made is unpacked to memory first, and its checksums are compared.
/// Example: ry::NpzSource{"digits.npz", {.columns = {"x", "y"}, .label = "y"}}
class NpzSource : public ArraySource {
 public:
  explicit NpzSource(InputFiles files, const NpzSourceOptions& options = {})
      : ArraySource("NPZ", {std::move(files)}, {options.label, options.on_error, options.max_unpacked_bytes},
                    parse(options.columns)) {}

 private:
  [[nodiscard]] static Parse parse(const std::vector<std::string>& columns) {
    return
        [columns](std::span<const std::shared_ptr<const detail::StoredFile>> files, const ArraySourceOptions& options) {
          return detail::read_npz(files[0], columns, options.max_unpacked_bytes);
        };
  }
};
static_assert(IndexedSource<NpzSource>);

}  // namespace railyard::inline v0_1
