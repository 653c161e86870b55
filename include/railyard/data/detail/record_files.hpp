// SPDX-License-Identifier: MIT
// What all copies of a source of records know of its files: columns, and where the records are. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/record_chunks.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/record_faults.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the place of a sample.
struct RecordPlace {
  std::size_t file = 0;
  std::uint64_t record = 0;          ///< of the file
  std::uint64_t damaged_before = 0;  ///< in the files before it
  std::shared_ptr<const FileIndex> index{};
};

/// Adds the records of a piece to the index of its file.
template <class Parser>
void note_records(RecordChunks<Parser>& chunks, RecordFaults& faults, FileIndex& index) {
  for (const std::size_t record : faults.records()) index.damaged.push_back(index.records + record);
  for (std::size_t record = 0; record < chunks.parser().records(); ++record) {
    index.add_record(chunks.offset() + chunks.parser().begin(record));
  }
}

/// Holds what is found out about the files, once, when it is first asked for; shared by threads and inherited by forked
/// processes.
template <class Format>
class RecordFiles {
 public:
  using Options = typename Format::Options;
  using Plan = typename Format::Plan;
  using Parser = typename Format::Parser;
  using Chunks = RecordChunks<Parser>;

  /// opener: what gives the bytes of a file; nullptr for plain files.
  RecordFiles(InputFiles input, Options options, OpenBytes opener)
      : input_(std::move(input)), options_(std::move(options)), open_(opener) {}

  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] std::string describe() const { return compose("{} {}", Format::name, input_.describe()); }
  [[nodiscard]] const SkipCount& skips() const noexcept { return skips_; }
  [[nodiscard]] std::uint64_t fingerprint() const {
    Fingerprint fingerprint;
    fingerprint.add(fingerprint_of(options_.on_error, options_.max_record_bytes));
    if constexpr (requires { Format::identify(options_, fingerprint); }) Format::identify(options_, fingerprint);
    return fingerprint.value();
  }

  [[nodiscard]] std::shared_ptr<const Plan> plan() {
    const std::lock_guard lock{mutex_};
    return plan_now();
  }
  [[nodiscard]] std::vector<std::string> names() {
    const std::lock_guard lock{mutex_};
    return names_now();
  }
  [[nodiscard]] std::unique_ptr<ByteStream> open_bytes(const std::string& name) const {
    return open_ != nullptr ? open_(name) : std::make_unique<FileBytes>(name);
  }

  /// Returns how many samples all files have.
  [[nodiscard]] std::uint64_t count() {
    const std::lock_guard lock{mutex_};
    while (indexes_.size() < names_now().size()) add_index();
    return starts_.empty() ? 0 : starts_.back().samples;
  }

  /// Returns where a sample is; behind all files if there is no such sample.
  [[nodiscard]] RecordPlace find(std::uint64_t sample) {
    const std::lock_guard lock{mutex_};
    while (indexes_.size() < names_now().size() && (starts_.empty() || starts_.back().samples <= sample)) add_index();
    const auto behind = std::upper_bound(starts_.begin(), starts_.end(), sample,
                                         [](std::uint64_t id, const Totals& totals) { return id < totals.samples; });
    const auto file = static_cast<std::size_t>(behind - starts_.begin());
    const Totals before = file == 0 ? Totals{} : starts_[file - 1];
    if (file == starts_.size()) return {file, 0, before.damaged, nullptr};
    return {file, indexes_[file]->record_of(sample - before.samples), before.damaged, indexes_[file]};
  }

  /// Takes the index that somebody has made while reading, if it is the next that is missing.
  void offer(std::size_t file, FileIndex index) {
    const std::lock_guard lock{mutex_};
    if (file == indexes_.size()) take_index(std::move(index));
  }

  /// Opens a file at its first record.
  [[nodiscard]] Chunks open(const std::string& name, const std::shared_ptr<const Plan>& plan,
                            std::unique_ptr<ByteStream> bytes) const {
    Chunks chunks{name, std::move(bytes), Parser{plan}, 0, options_.max_record_bytes};
    chunks.skip_header([&](const char* text, std::size_t size, bool is_end) {
      return Format::header_size(*plan, name, text, size, is_end);
    });
    return chunks;
  }

  /// Says where a record is, as messages begin.
  [[nodiscard]] std::string where(const std::string& name, std::uint64_t offset) const {
    return compose("{}:{}", name, line_at(*open_bytes(name), offset));
  }

  /// Throws: DataError, unless the damaged records may be left out, of which `before` were before these.
  /// Returns how many there are now.
  std::uint64_t settle(RecordFaults& faults, const std::string& name, std::uint64_t first_offset,
                       std::uint64_t before) const {
    const std::uint64_t total = before + faults.records().size();
    const OnError policy = options_.on_error;
    if (total > policy.max_skips()) {
      const std::string place = where(name, first_offset);
      if (policy.stops_at_once()) throw DataError{compose("{}: {}", place, faults.message())};
      throw DataError{compose("{}: {}. {} records before it are damaged as well, and .on_error lets {} be left out",
                              place, faults.message(), before, policy.max_skips())};
    }
    skips_.raise_to(total);
    return total;
  }

 private:
  // Of a file and all before it.
  struct Totals {
    std::uint64_t samples = 0;
    std::uint64_t damaged = 0;
  };

  const std::vector<std::string>& names_now() {
    if (names_.empty()) names_ = input_.expand();
    return names_;
  }
  const std::shared_ptr<const Plan>& plan_now() {
    if (plan_ == nullptr) {
      const std::string& first = names_now().front();
      TextHead head{first, open_bytes(first)};
      plan_ = Format::plan(options_, first, head);
    }
    return plan_;
  }

  void take_index(FileIndex index) {
    Totals totals = starts_.empty() ? Totals{} : starts_.back();
    totals.samples += index.samples();
    totals.damaged += index.damaged.size();
    indexes_.push_back(std::make_shared<const FileIndex>(std::move(index)));
    starts_.push_back(totals);
  }

  // Where damaged records are left out, they must be known: all is parsed. Else the line ends are counted.
  void add_index() {
    const std::string& name = names_now()[indexes_.size()];
    const auto plan = plan_now();
    auto file = std::make_unique<FileBytes>(name);
    const FileStamp stamp = file->stamp();
    Chunks chunks = open(name, plan, std::move(file));
    FileIndex index = options_.on_error.stops_at_once() ? count_records(name, chunks.end()) : parse_all(name, chunks);
    index.stamp = stamp;
    take_index(std::move(index));
  }

  [[nodiscard]] FileIndex count_records(const std::string& name, std::uint64_t begin) const {
    FileBytes file{name, begin};
    const std::size_t piece = (room_for(file, std::size_t{256} << 10) + 63) / 64 * 64;
    RecordCounter counter{Format::rules(options_), begin};
    std::vector<char> buffer(piece + text_padding);
    for (std::size_t got = piece; got == piece;) {
      got = file.read(buffer.data(), piece);
      counter.add(buffer.data(), got);
    }
    return counter.finish();
  }

  [[nodiscard]] FileIndex parse_all(const std::string& name, Chunks& chunks) const {
    FileIndex index;
    std::uint64_t damaged = starts_.empty() ? 0 : starts_.back().damaged;
    while (chunks.next()) {
      RecordFaults faults;
      (void)chunks.parser().parse(faults);
      note_records(chunks, faults, index);
      if (!faults.empty()) {
        damaged = settle(faults, name, chunks.offset() + chunks.parser().begin(faults.first()), damaged);
      }
    }
    index.end = chunks.end();
    return index;
  }

  InputFiles input_;
  Options options_;
  OpenBytes open_;
  SkipCount skips_{};
  std::mutex mutex_{};
  std::vector<std::string> names_{};
  std::shared_ptr<const Plan> plan_{};
  std::vector<std::shared_ptr<const FileIndex>> indexes_{};  // of the first files
  std::vector<Totals> starts_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
