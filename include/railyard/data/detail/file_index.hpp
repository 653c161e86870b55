// SPDX-License-Identifier: MIT
// Where the records of a file of text are. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says where the records of a file are: the place of every 64th, and of one in each few thousand characters, so that
/// any is found at the cost of a short read.
struct FileIndex {
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t record = 0;  ///< the first that begins there, perhaps behind blank lines
  };
  static constexpr std::uint64_t most_records = 64;
  static constexpr std::uint64_t most_bytes = 4096;

  FileStamp stamp{};
  std::uint64_t records = 0;  ///< the damaged ones among them
  std::uint64_t end = 0;      ///< where the last record ends
  std::span<const Place> places{};
  std::span<const std::uint64_t> damaged{};  ///< which records are left out, ascending
  std::shared_ptr<const void> memory{};      ///< that the last two are in

  [[nodiscard]] std::uint64_t samples() const noexcept { return records - damaged.size(); }
  /// Returns which record a sample is.
  [[nodiscard]] std::uint64_t record_of(std::uint64_t sample) const noexcept {
    std::size_t before = 0;  // damaged records, of which the i-th is behind as many samples as its number less i
    for (std::size_t end_ = damaged.size(); before < end_;) {
      const std::size_t middle = before + (end_ - before) / 2;
      if (damaged[middle] - middle <= sample)
        before = middle + 1;
      else
        end_ = middle;
    }
    return sample + before;
  }
  /// Returns the last place at or before a record.
  [[nodiscard]] std::size_t place_of(std::uint64_t record) const noexcept {
    const auto behind =
        std::upper_bound(places.begin(), places.end(), record,
                         [](std::uint64_t wanted, const Place& place) { return wanted < place.record; });
    return static_cast<std::size_t>(behind - places.begin()) - 1;
  }
  /// Where the records end that begin at a place.
  [[nodiscard]] std::uint64_t end_of(std::size_t place) const noexcept {
    return place + 1 < places.size() ? places[place + 1].offset : end;
  }
  [[nodiscard]] std::uint64_t damaged_before(std::uint64_t record) const noexcept {
    return static_cast<std::uint64_t>(std::lower_bound(damaged.begin(), damaged.end(), record) - damaged.begin());
  }

  /// Returns the columns of a block of which each row is the index of a file.
  [[nodiscard]] static std::shared_ptr<const Schema> schema() {
    return std::make_shared<const Schema>(
        Schema{{"file", Dtype::i64, {5}}, {"places", Dtype::i64, {-1}}, {"damaged", Dtype::i64, {-1}}});
  }
  /// Returns a block of this one alone, which shares the memory.
  [[nodiscard]] Block to_block(const std::shared_ptr<const Schema>& of_block, std::uint64_t file) const {
    std::vector<std::int64_t> numbers;
    for (const std::uint64_t number : {stamp.size, records, end}) numbers.push_back(static_cast<std::int64_t>(number));
    numbers.insert(numbers.end(), {stamp.seconds, stamp.nanoseconds});
    return {of_block, {Column{(*of_block)[0], std::move(numbers)}, one_row(places), one_row(damaged)}, {file}};
  }
  /// Returns that of a row, whose memory it shares.
  [[nodiscard]] static FileIndex of_row(const std::shared_ptr<const Block>& all, std::size_t row) {
    const Block& block = *all;
    const auto numbers = block[0].values<std::int64_t>(row);
    FileIndex index;
    index.stamp = {static_cast<std::uint64_t>(numbers[0]), numbers[3], numbers[4]};
    index.records = static_cast<std::uint64_t>(numbers[1]);
    index.end = static_cast<std::uint64_t>(numbers[2]);
    index.places = block[1].values<Place>(row);
    index.damaged = block[2].values<std::uint64_t>(row);
    index.memory = all;
    return index;
  }

 private:
  template <class T>
  [[nodiscard]] Column one_row(std::span<const T> values) const {
    return {std::shared_ptr<const std::byte>{memory, reinterpret_cast<const std::byte*>(values.data())},
            std::make_shared<const std::vector<std::uint64_t>>(1, values.size_bytes())};
  }
};

/// Collects the records of a file for its index.
class FileIndexDraft {
 public:
  using Place = FileIndex::Place;

  [[nodiscard]] std::uint64_t records() const noexcept { return records_; }
  void add_record(std::uint64_t begin) {
    if (places_.empty() || records_ - places_.back().record >= FileIndex::most_records ||
        begin - places_.back().offset >= FileIndex::most_bytes) {
      places_.push_back({begin, records_});
    }
    ++records_;
  }
  /// Adds records that do not begin at a place of their own.
  void add_records(std::uint64_t count) noexcept { records_ += count; }
  /// Says that a record is damaged that has been added or will be, behind those said before.
  void mark_damaged(std::uint64_t record) { damaged_.push_back(record); }
  /// Adds a record at a place of its own: who reads those before it reads nothing of it.
  void add_record_apart(std::uint64_t begin) {
    places_.push_back({begin, records_});
    ++records_;
  }
  /// Adds one that is left out because of its length.
  void add_long_record(std::uint64_t begin) {
    mark_damaged(records_);
    add_record_apart(begin);
  }
  /// Whether so many records that begin before a place of the text are none that have places of their own.
  [[nodiscard]] bool is_far_from_next_place(std::uint64_t num_records, std::uint64_t end) const noexcept {
    return !places_.empty() && records_ - places_.back().record + num_records <= FileIndex::most_records &&
           end - places_.back().offset <= FileIndex::most_bytes;
  }

  /// end: where the last record ends.
  [[nodiscard]] FileIndex finish(const FileStamp& stamp, std::uint64_t end) && {
    const auto kept = std::make_shared<const FileIndexDraft>(std::move(*this));
    return {stamp, kept->records_, end, kept->places_, kept->damaged_, kept};
  }

 private:
  std::uint64_t records_ = 0;
  std::vector<Place> places_{};
  std::vector<std::uint64_t> damaged_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
