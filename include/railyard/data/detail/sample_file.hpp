// SPDX-License-Identifier: MIT
// A file that holds the samples of a dataset as they are in memory, for caches. Data room.
#pragma once

#include "railyard/data/detail/draft_file.hpp"
#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

// Some samples that were written together: column after column.
struct Segment {
  std::uint64_t rows = 0;
  std::vector<std::uint64_t> begins{};             // of the columns, in the file
  std::vector<std::vector<std::uint64_t>> ends{};  // of the samples in each column; empty where all are as long
  std::vector<std::uint64_t> ids{};
  std::vector<std::uint64_t> siblings{};  // empty where none was made of another
};

// Says what is kept: in words, which name another file where they differ, and what it was made of at that time; 0 if
// nobody knows.
struct SampleFileContent {
  std::string words{};
  std::uint64_t fingerprint = 0;
};

// Says where the samples are: the last part of the file, which is read at once.
struct SegmentIndex {
  SampleFileContent content{};
  std::vector<Segment> segments{};
  std::vector<std::uint64_t> page_hashes{};  // of all that is before the index
};

// Hashes bytes page by page, so that any of them can be checked by reading little more.
class PageHashes {
 public:
  static constexpr std::size_t page_bytes = 4096;

  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), page_bytes - page_.size()));
      page_.insert(page_.end(), part.begin(), part.end());
      if (page_.size() == page_bytes) end_page();
      bytes = bytes.subspan(part.size());
    }
  }
  [[nodiscard]] std::vector<std::uint64_t> finish() {
    if (!page_.empty()) end_page();
    return std::move(hashes_);
  }

 private:
  void end_page() {
    hashes_.push_back(digest_of(page_));
    page_.clear();
  }

  std::vector<std::byte> page_{};
  std::vector<std::uint64_t> hashes_{};
};

// Turns an index into bytes and back.
template <class = void>
class IndexBytes {
 public:
  [[nodiscard]] static std::string write(const SegmentIndex& index) {
    IndexBytes out;
    out.put(index.content.words);
    out.put(index.content.fingerprint);
    out.put(index.page_hashes);
    out.put(index.segments.size());
    for (const Segment& segment : index.segments) {
      out.put(segment.rows);
      out.put(segment.begins);
      out.put(segment.ends.size());
      for (const auto& ends : segment.ends) out.put(ends);
      out.put(segment.ids);
      out.put(segment.siblings);
    }
    return out.bytes_;
  }
  // Nothing if the bytes are no index.
  [[nodiscard]] static std::optional<SegmentIndex> read(std::string bytes) {
    IndexBytes in;
    in.bytes_ = std::move(bytes);
    SegmentIndex index;
    in.get(index.content.words);
    index.content.fingerprint = in.number();
    in.get(index.page_hashes);
    for (std::uint64_t left = in.number(); in.is_whole_ && left > 0; --left) {
      Segment& segment = index.segments.emplace_back();
      segment.rows = in.number();
      in.get(segment.begins);
      for (std::uint64_t columns = in.number(); in.is_whole_ && columns > 0; --columns) {
        in.get(segment.ends.emplace_back());
      }
      in.get(segment.ids);
      in.get(segment.siblings);
    }
    if (!in.is_whole_ || in.at_ != in.bytes_.size()) return std::nullopt;
    return index;
  }

 private:
  void put(std::uint64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  template <class List>
  void put(const List& list) requires requires {
    list.data();
  }
  {
    put(list.size());
    bytes_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(*list.data()));
  }
  [[nodiscard]] std::uint64_t number() {
    std::uint64_t number = 0;
    take(&number, sizeof number);
    return number;
  }
  template <class List>
  void get(List& list) {
    const std::uint64_t size = number();
    is_whole_ = is_whole_ && size <= (bytes_.size() - at_) / sizeof(*list.data());
    if (!is_whole_) return;
    list.resize(static_cast<std::size_t>(size));
    take(list.data(), list.size() * sizeof(*list.data()));
  }
  void take(void* to, std::size_t size) {
    is_whole_ = is_whole_ && size <= bytes_.size() - at_;
    if (!is_whole_ || size == 0) return;
    std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }

  std::string bytes_{};
  std::size_t at_ = 0;
  bool is_whole_ = true;
};

// The end of the file.
struct SampleFileTail {
  std::uint64_t index_size = 0;
  std::uint64_t index_hash = 0;
  std::uint64_t magic =
      0x3345484341435952U;  // "RYCACHE3" where the low byte comes first; elsewhere the file is refused
};

// Writes the samples to a draft.
template <class = void>
class SampleFileWriter {
 public:
  SampleFileWriter(DraftFile& draft, SampleFileContent content) : draft_(&draft) {
    index_.content = std::move(content);
  }

  void add(const Block& block) {
    Segment segment{block.rows(),
                    {},
                    {},
                    {block.ids().begin(), block.ids().end()},
                    {block.siblings().begin(), block.siblings().end()}};
    for (const Column& column : block.columns()) {
      segment.begins.push_back(size_);
      segment.ends.emplace_back();
      const auto bytes = column.bytes();
      for (std::size_t row = 0; column.is_ragged() && row < block.rows(); ++row) {
        const auto sample = column.sample(row);
        segment.ends.back().push_back(static_cast<std::uint64_t>(sample.data() + sample.size() - bytes.data()));
      }
      draft_->write(bytes);
      size_ += bytes.size();
      hashes_.add(bytes);
    }
    index_.segments.push_back(std::move(segment));
  }

  // Returns what the file is read through, which has its name by now.
  [[nodiscard]] Descriptor finish() {
    index_.page_hashes = hashes_.finish();
    const std::string index = IndexBytes<>::write(index_);
    const auto bytes = std::as_bytes(std::span{index});
    const SampleFileTail tail{index.size(), digest_of(bytes)};
    draft_->write(bytes);
    draft_->write(std::as_bytes(std::span{&tail, 1}));
    return draft_->publish();
  }

 private:
  DraftFile* draft_;
  std::uint64_t size_ = 0;
  PageHashes hashes_{};
  SegmentIndex index_{};
};

// Reads any samples of a file, and checks what it reads; used by many threads at once. Its index is in memory: 8 bytes
// per sample, 8 more where flat_map() has made it, 8 for each column that differs in length, and 9 per page.
template <class = void>
class SampleFile {
 public:
  // Throws: DataError if it is damaged.
  SampleFile(Descriptor file, std::string path, std::shared_ptr<const Schema> schema)
      : file_(std::move(file)), path_(std::move(path)), schema_(std::move(schema)) {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) refuse_file("read", path_, errno);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    SampleFileTail tail;
    if (size < sizeof tail) refuse_damage();
    pread_all(&tail, sizeof tail, size - sizeof tail);
    if (tail.magic != SampleFileTail{}.magic || tail.index_size > size - sizeof tail) refuse_damage();
    std::string bytes(static_cast<std::size_t>(tail.index_size), '\0');
    data_size_ = size - sizeof tail - tail.index_size;
    pread_all(bytes.data(), bytes.size(), data_size_);
    const bool is_whole = digest_of(std::as_bytes(std::span{bytes})) == tail.index_hash;
    auto index = is_whole ? IndexBytes<>::read(std::move(bytes)) : std::nullopt;
    if (!index || index->page_hashes.size() != (data_size_ + page_bytes - 1) / page_bytes) refuse_damage();
    for (const Segment& segment : index->segments) {
      if (!fits(segment)) refuse_damage();
    }
    index_ = std::move(*index);
    is_checked_ = std::vector<std::atomic<bool>>(index_.page_hashes.size());
    for (const Segment& segment : index_.segments) ends_.push_back(count() + segment.rows);
  }

  // Nothing if there is no such file, or if what it holds has changed where it came from. Throws: DataError if it is
  // damaged; ConfigError if it holds something else.
  [[nodiscard]] static std::unique_ptr<const SampleFile> open(const std::string& path,
                                                              const std::shared_ptr<const Schema>& schema,
                                                              const SampleFileContent& content) {
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.get() < 0 && errno == ENOENT) return nullptr;
    if (file.get() < 0) refuse_file("read", path, errno);
    if (is_of_other_release(file.get())) return nullptr;
    auto opened = std::make_unique<const SampleFile>(std::move(file), path, schema);
    const SampleFileContent& found = opened->index_.content;
    if (found.words != content.words) {
      throw ConfigError{
          compose("the cache {} holds \"{}\", and \"{}\" is to be cached: name another file, or remove it", path,
                  found.words, content.words)};
    }
    return content.fingerprint == 0 || found.fingerprint == content.fingerprint ? std::move(opened) : nullptr;
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

  // The samples at the places, each below count().
  [[nodiscard]] Block read(std::span<const std::uint64_t> places) const {
    const std::vector<Run> runs = runs_of(places);
    std::vector<Column> columns;
    for (std::size_t column = 0; column < schema_->size(); ++column) columns.push_back(read_column(runs, column));
    std::vector<std::uint64_t> ids;
    std::vector<std::uint64_t> siblings;
    for (const Run& run : runs) {
      const auto begin = static_cast<std::ptrdiff_t>(run.begin);
      const auto end = static_cast<std::ptrdiff_t>(run.end);
      ids.insert(ids.end(), run.segment->ids.begin() + begin, run.segment->ids.begin() + end);
      if (run.segment->siblings.empty()) continue;
      siblings.resize(ids.size() - static_cast<std::size_t>(run.end - run.begin));  // of those before: none
      siblings.insert(siblings.end(), run.segment->siblings.begin() + begin, run.segment->siblings.begin() + end);
    }
    if (!siblings.empty()) siblings.resize(ids.size());
    return {schema_, std::move(columns), std::move(ids), std::move(siblings)};
  }

 private:
  static constexpr std::size_t page_bytes = PageHashes::page_bytes;

  // Whether it is a cache as other releases have written it, and told less of samples, say.
  [[nodiscard]] static bool is_of_other_release(int file) {
    struct stat status {};
    SampleFileTail tail;
    if (::fstat(file, &status) != 0 || static_cast<std::uint64_t>(status.st_size) < sizeof tail) return false;
    if (read_at(file, static_cast<std::uint64_t>(status.st_size) - sizeof tail, &tail, sizeof tail) != sizeof tail) {
      return false;
    }
    constexpr std::uint64_t ours = SampleFileTail{}.magic;
    return tail.magic != ours && tail.magic << 8U == ours << 8U;  // all but the last letter
  }

  // Whether all that it tells of its samples is there, and lies in the file.
  [[nodiscard]] bool fits(const Segment& segment) const {
    const std::size_t rows = segment.ids.size();
    const std::size_t num_columns = schema_->size();
    if (segment.rows != rows || segment.begins.size() != num_columns || segment.ends.size() != num_columns)
      return false;
    if (!segment.siblings.empty() && segment.siblings.size() != rows) return false;
    for (std::size_t column = 0; column < num_columns; ++column) {
      const std::vector<std::uint64_t>& ends = segment.ends[column];
      const std::uint64_t begin = segment.begins[column];
      const bool is_ragged = (*schema_)[column].is_ragged();
      if (ends.size() != (is_ragged ? rows : 0) || !std::is_sorted(ends.begin(), ends.end())) return false;
      const std::uint64_t each = is_ragged ? 1 : offset_of(segment, column, 1);
      const std::uint64_t count = ends.empty() ? (is_ragged ? 0 : rows) : ends.back();
      if (begin > data_size_ || (each > 0 && count > (data_size_ - begin) / each)) return false;
    }
    return true;
  }

  // Samples that follow each other in the file.
  struct Run {
    const Segment* segment = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  [[nodiscard]] std::vector<Run> runs_of(std::span<const std::uint64_t> places) const {
    std::vector<Run> runs;
    for (const std::uint64_t place : places) {
      const auto found = std::upper_bound(ends_.begin(), ends_.end(), place);
      const Segment& segment = index_.segments[static_cast<std::size_t>(found - ends_.begin())];
      const std::uint64_t row = place - (*found - segment.rows);
      if (!runs.empty() && runs.back().segment == &segment && runs.back().end == row) {
        ++runs.back().end;
      } else {
        runs.push_back({&segment, row, row + 1});
      }
    }
    return runs;
  }

  // Where a sample of a column begins, from the begin of the column in its segment.
  [[nodiscard]] std::uint64_t offset_of(const Segment& segment, std::size_t column, std::uint64_t row) const {
    const Field& field = (*schema_)[column];
    if (!field.is_ragged()) return row * field.width() * size_of(field.dtype);
    return row == 0 ? 0 : segment.ends[column][static_cast<std::size_t>(row - 1)];
  }

  [[nodiscard]] Column read_column(const std::vector<Run>& runs, std::size_t column) const {
    std::uint64_t size = 0;
    std::size_t rows = 0;
    for (const Run& run : runs) {
      size += offset_of(*run.segment, column, run.end) - offset_of(*run.segment, column, run.begin);
      rows += static_cast<std::size_t>(run.end - run.begin);
    }
    const std::shared_ptr<std::byte[]> all{new std::byte[static_cast<std::size_t>(size)]};
    auto ends = std::make_shared<std::vector<std::uint64_t>>();
    std::uint64_t done = 0;
    for (const Run& run : runs) {
      const std::uint64_t begin = offset_of(*run.segment, column, run.begin);
      const std::uint64_t end = offset_of(*run.segment, column, run.end);
      read_data(all.get() + done, static_cast<std::size_t>(end - begin), run.segment->begins[column] + begin);
      for (std::uint64_t row = run.begin + 1; (*schema_)[column].is_ragged() && row <= run.end; ++row) {
        ends->push_back(done + offset_of(*run.segment, column, row) - begin);
      }
      done += end - begin;
    }
    std::shared_ptr<const std::byte> bytes{all, all.get()};
    if ((*schema_)[column].is_ragged()) return {std::move(bytes), std::move(ends)};
    return {std::move(bytes), rows, offset_of({}, column, 1)};
  }

  // By whole pages, whose hashes are known, unless this process has checked them already.
  void read_data(std::byte* to, std::size_t size, std::uint64_t offset) const {
    constexpr std::size_t most = 16 * page_bytes;
    if (size > data_size_ || offset > data_size_ - size) refuse_damage();
    if (are_checked(offset, size)) return pread_all(to, size, offset);
    const std::size_t room = std::min(most, size + 2 * page_bytes);
    const auto pages = std::make_unique_for_overwrite<std::byte[]>(room);
    while (size > 0) {
      const std::uint64_t first = offset / page_bytes * page_bytes;
      const std::uint64_t end = std::min(data_size_, first + room / page_bytes * page_bytes);
      const std::uint64_t wanted = (offset + size + page_bytes - 1) / page_bytes * page_bytes;
      const std::span read{pages.get(), static_cast<std::size_t>(std::min(end, wanted) - first)};
      pread_all(read.data(), read.size(), first);
      check_pages(read, first / page_bytes);
      const std::size_t begin = static_cast<std::size_t>(offset - first);
      const std::size_t part = std::min(size, read.size() - begin);
      std::memcpy(to, read.data() + begin, part);
      to += part;
      offset += part;
      size -= part;
    }
  }
  [[nodiscard]] bool are_checked(std::uint64_t offset, std::size_t size) const noexcept {
    for (std::uint64_t page = offset / page_bytes; page * page_bytes < offset + size; ++page) {
      if (!is_checked_[static_cast<std::size_t>(page)].load(std::memory_order_relaxed)) return false;
    }
    return true;
  }
  void check_pages(std::span<const std::byte> bytes, std::uint64_t page) const {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), page_bytes))) {
      const auto one = bytes.first(std::min(bytes.size(), page_bytes));
      const auto at = static_cast<std::size_t>(page++);
      if (digest_of(one) != index_.page_hashes[at]) refuse_damage();
      is_checked_[at].store(true, std::memory_order_relaxed);
    }
  }

  void pread_all(void* to, std::size_t size, std::uint64_t offset) const {
    if (read_at(file_.get(), offset, to, size) == size) return;
    if (errno != 0) refuse_file("read", path_, errno);
    refuse_damage();
  }

  [[noreturn]] void refuse_damage() const {
    throw DataError{compose("the cache {} is damaged or no cache at all: remove it, and it is made anew", path_)};
  }

  Descriptor file_;
  std::string path_;
  std::shared_ptr<const Schema> schema_;
  std::uint64_t data_size_ = 0;
  mutable std::vector<std::atomic<bool>> is_checked_{};  // the pages
  SegmentIndex index_{};
  std::vector<std::uint64_t> ends_{};  // of the segments, in samples
};

}  // namespace detail
}  // namespace railyard::inline v0_1
