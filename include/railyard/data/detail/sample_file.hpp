// SPDX-License-Identifier: MIT
// A file that holds the samples of a dataset as they are in memory, for caches. Data room.
#pragma once

#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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
};

// Says where the samples are: the last part of the file, which is read at once.
struct SegmentIndex {
  std::string content{};  // what was cached
  std::vector<Segment> segments{};
};

// Turns an index into bytes and back.
template <class = void>
class IndexBytes {
 public:
  [[nodiscard]] static std::string write(const SegmentIndex& index) {
    IndexBytes out;
    out.put(index.content);
    out.put(index.segments.size());
    for (const Segment& segment : index.segments) {
      out.put(segment.rows);
      out.put(segment.begins);
      out.put(segment.ends.size());
      for (const auto& ends : segment.ends) out.put(ends);
      out.put(segment.ids);
    }
    return out.bytes_;
  }
  // Nothing if the bytes are no index.
  [[nodiscard]] static std::optional<SegmentIndex> read(std::string bytes) {
    IndexBytes in;
    in.bytes_ = std::move(bytes);
    SegmentIndex index;
    in.get(index.content);
    for (std::uint64_t left = in.number(); in.is_whole_ && left > 0; --left) {
      Segment& segment = index.segments.emplace_back();
      segment.rows = in.number();
      in.get(segment.begins);
      for (std::uint64_t columns = in.number(); in.is_whole_ && columns > 0; --columns) {
        in.get(segment.ends.emplace_back());
      }
      in.get(segment.ids);
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
      0x3145484341435952U;  // "RYCACHE1" where the low byte comes first; elsewhere the file is refused

  [[nodiscard]] static std::uint64_t hash(std::string_view bytes) noexcept {
    std::uint64_t hash = bytes.size();
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), sizeof(std::uint64_t)))) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), std::min(bytes.size(), sizeof word));
      hash = mix_bits(hash ^ word);
    }
    return hash;
  }
};

[[noreturn]] inline void refuse_file(std::string_view what, const std::string& path, int error) {
  throw DataError{compose("the cache {} could not be {}: {}", path, what, explain_errno(error))};
}

// Writes the samples to a file that appears under its name when it is whole.
template <class = void>
class SampleFileWriter {
 public:
  SampleFileWriter(std::string path, std::string content)
      : path_(std::move(path)), part_path_(compose("{}.{}.part", path_, ::getpid())) {
    index_.content = std::move(content);
    file_ = Descriptor{::open(part_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (file_.get() < 0) refuse_file("written", part_path_, errno);
  }
  SampleFileWriter(const SampleFileWriter&) = delete;
  SampleFileWriter& operator=(const SampleFileWriter&) = delete;
  ~SampleFileWriter() { ::unlink(part_path_.c_str()); }  // which is there no more if all went well

  void add(const Block& block) {
    Segment segment{block.rows(), {}, {}, {block.ids().begin(), block.ids().end()}};
    for (const Column& column : block.columns()) {
      segment.begins.push_back(size_);
      segment.ends.emplace_back();
      const auto bytes = column.bytes();
      for (std::size_t row = 0; column.is_ragged() && row < block.rows(); ++row) {
        const auto sample = column.sample(row);
        segment.ends.back().push_back(static_cast<std::uint64_t>(sample.data() + sample.size() - bytes.data()));
      }
      write(bytes);
    }
    index_.segments.push_back(std::move(segment));
  }

  void finish() {
    const std::string index = IndexBytes<>::write(index_);
    const SampleFileTail tail{index.size(), SampleFileTail::hash(index)};
    write(std::as_bytes(std::span{index}));
    write(std::as_bytes(std::span{&tail, 1}));
    if (::fsync(file_.get()) != 0) refuse_file("written", part_path_, errno);
    if (std::rename(part_path_.c_str(), path_.c_str()) != 0) refuse_file("renamed", part_path_, errno);
  }

 private:
  void write(std::span<const std::byte> bytes) {
    const WriteSignalGuard<SIGXFSZ> guard;
    size_ += bytes.size();
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), std::min(bytes.size(), std::size_t{1} << 30U));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse_file("written", part_path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  std::string path_;
  std::string part_path_;
  Descriptor file_{};
  std::uint64_t size_ = 0;
  SegmentIndex index_{};
};

// Reads any samples of a file; used by many threads at once. Its index is in memory: 8 bytes per sample, and 8 for each
// column that differs in length.
template <class = void>
class SampleFile {
 public:
  // Nothing if there is no such file. Throws: DataError if it is damaged; ConfigError if it holds something else.
  [[nodiscard]] static std::unique_ptr<const SampleFile> open(const std::string& path,
                                                              const std::shared_ptr<const Schema>& schema,
                                                              const std::string& content) {
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.get() < 0 && errno == ENOENT) return nullptr;
    if (file.get() < 0) refuse_file("read", path, errno);
    std::unique_ptr<SampleFile> opened{new SampleFile{std::move(file), path, schema}};
    if (opened->index_.content == content) return opened;
    throw ConfigError{compose("the cache {} holds \"{}\", and \"{}\" is to be cached: name another file, or remove it",
                              path, opened->index_.content, content)};
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

  // The samples at the places, each below count().
  [[nodiscard]] Block read(std::span<const std::uint64_t> places) const {
    const std::vector<Run> runs = runs_of(places);
    std::vector<Column> columns;
    for (std::size_t column = 0; column < schema_->size(); ++column) columns.push_back(read_column(runs, column));
    std::vector<std::uint64_t> ids;
    for (const Run& run : runs) {
      const auto first = run.segment->ids.begin() + static_cast<std::ptrdiff_t>(run.begin);
      ids.insert(ids.end(), first, first + static_cast<std::ptrdiff_t>(run.end - run.begin));
    }
    return {schema_, std::move(columns), std::move(ids)};
  }

 private:
  // Samples that follow each other in the file.
  struct Run {
    const Segment* segment = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

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
    pread_all(bytes.data(), bytes.size(), size - sizeof tail - tail.index_size);
    auto index = SampleFileTail::hash(bytes) == tail.index_hash ? IndexBytes<>::read(std::move(bytes)) : std::nullopt;
    if (!index) refuse_damage();
    index_ = std::move(*index);
    for (const Segment& segment : index_.segments) ends_.push_back(count() + segment.rows);
  }

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
      pread_all(all.get() + done, static_cast<std::size_t>(end - begin), run.segment->begins[column] + begin);
      for (std::uint64_t row = run.begin + 1; (*schema_)[column].is_ragged() && row <= run.end; ++row) {
        ends->push_back(done + offset_of(*run.segment, column, row) - begin);
      }
      done += end - begin;
    }
    std::shared_ptr<const std::byte> bytes{all, all.get()};
    if ((*schema_)[column].is_ragged()) return {std::move(bytes), std::move(ends)};
    return {std::move(bytes), rows, offset_of({}, column, 1)};
  }

  void pread_all(void* to, std::size_t size, std::uint64_t offset) const {
    auto* at = static_cast<char*>(to);
    while (size > 0) {
      const ssize_t got = ::pread(file_.get(), at, std::min(size, std::size_t{1} << 30U), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refuse_file("read", path_, errno);
      if (got == 0) refuse_damage();
      at += got;
      offset += static_cast<std::uint64_t>(got);
      size -= static_cast<std::size_t>(got);
    }
  }

  [[noreturn]] void refuse_damage() const {
    throw DataError{compose("the cache {} is damaged or no cache at all: remove it, and it is made anew", path_)};
  }

  Descriptor file_;
  std::string path_;
  std::shared_ptr<const Schema> schema_;
  SegmentIndex index_{};
  std::vector<std::uint64_t> ends_{};  // of the segments, in samples
};

}  // namespace detail
}  // namespace railyard::inline v0_1
