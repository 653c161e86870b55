// SPDX-License-Identifier: MIT
// What all copies of a source of records know of its files: columns, and where the records are. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/file_index.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/record_chunks.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/record_faults.hpp"
#include "railyard/data/detail/sample_shelf.hpp"
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
#include <optional>
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
void note_records(RecordChunks<Parser>& chunks, RecordFaults& faults, FileIndexDraft& index) {
  constexpr std::size_t at_once = 8;  // of those that have no place of their own
  for (const std::size_t record : faults.records()) index.mark_damaged(index.records() + record);
  const auto begin_of = [&](std::size_t record) { return chunks.offset() + chunks.parser().begin(record); };
  const std::size_t num_records = chunks.parser().records();
  const bool may_have_long_ones = chunks.may_have_long_records();
  for (std::size_t record = 0; record < num_records;) {
    const std::size_t next = record + at_once;
    if (next <= num_records && !may_have_long_ones && index.is_far_from_next_place(at_once, begin_of(next - 1) + 1)) {
      index.add_records(at_once);
      record = next;
      continue;
    }
    chunks.is_long_record(record) ? index.add_record_apart(begin_of(record)) : index.add_record(begin_of(record));
    ++record;
  }
}

/// Holds what is found out about the files, once, when it is first asked for; shared by threads and inherited by forked
/// processes. Of those that were forked before the records were counted, one does that for all.
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

  /// Where the indexes are left for other processes; nullptr where there are none.
  [[nodiscard]] SampleShelf* shelf() {
    const std::lock_guard lock{mutex_};
    return shelf_ ? &*shelf_ : nullptr;
  }

  /// Returns how many samples all files have.
  [[nodiscard]] std::uint64_t count() {
    const std::lock_guard lock{mutex_};
    if (indexes_.size() < names_now().size()) {
      if (shelf_ && shelf_->has_use())
        find_indexes();
      else
        add_indexes([] {});
    }
    return starts_.empty() ? 0 : starts_.back().samples;
  }

  /// Returns where a sample is; behind all files if there is no such sample.
  [[nodiscard]] RecordPlace find(std::uint64_t sample) {
    const std::lock_guard lock{mutex_};
    while (indexes_.size() < names_now().size() && (starts_.empty() || starts_.back().samples <= sample)) {
      add_index([] {});
    }
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
    Chunks chunks = open_at(name, plan, std::move(bytes), 0);
    chunks.skip_header([&](const char* text, std::size_t size, bool is_end) {
      return Format::header_size(*plan, name, text, size, is_end);
    });
    return chunks;
  }
  /// Takes a file that was opened at a record.
  [[nodiscard]] Chunks open_at(const std::string& name, const std::shared_ptr<const Plan>& plan,
                               std::unique_ptr<ByteStream> bytes, std::uint64_t offset) const {
    return {name, std::move(bytes), Parser{plan}, Format::rules(options_), offset, options_.max_record_bytes};
  }

  /// Says where a record is, as messages begin.
  [[nodiscard]] std::string where(const std::string& name, std::uint64_t offset) const {
    return compose("{}:{}", name, line_at(*open_bytes(name), offset));
  }

  /// Throws: DataError that names the first damaged record of a piece that may not be left out as well, of which
  /// `before` were before these. Returns how many there are now.
  std::uint64_t settle(RecordFaults& faults, const std::string& name, Chunks& chunks, std::uint64_t before) const {
    const std::uint64_t total = before + faults.records().size();
    const std::uint64_t most = std::max(options_.on_error.max_skips(), before);
    if (total > most) {
      RecordFaults refused{faults.records()[static_cast<std::size_t>(most - before)]};
      chunks.find_long_records(refused);
      (void)chunks.parser().parse(refused);  // again, for what is wrong with that one
      const std::uint64_t offset = chunks.offset() + chunks.parser().begin(refused.first());
      refuse(compose("{}: {}", where(name, offset), refused.message()), most);
    }
    skips_.raise_to(total);
    return total;
  }
  /// The same of one part, which may be many records.
  std::uint64_t settle(const DamagedPart& part, std::uint64_t before) const {
    if (before + 1 > options_.on_error.max_skips()) refuse(part.message, before);
    skips_.name(part.message);
    skips_.raise_to(before + 1);
    return before + 1;
  }

  /// Names the records of a piece that are left out because of their length: each may have been many.
  void name_long_records(const std::string& name, const Chunks& chunks) const {
    chunks.visit_long_records([&](std::size_t record) {
      skips_.name(
          text_of_long_record(name, chunks.offset() + chunks.parser().begin(record), options_.max_record_bytes));
    });
  }

 private:
  // Of a file and all before it.
  struct Totals {
    std::uint64_t samples = 0;
    std::uint64_t damaged = 0;
  };

  [[noreturn]] void refuse(const std::string& fault, std::uint64_t before) const {
    if (options_.on_error.stops_at_once()) throw DataError{fault};
    throw DataError{compose("{}. {} records before it are damaged as well, and .on_error lets {} be left out", fault,
                            before, options_.on_error.max_skips())};
  }

  const std::vector<std::string>& names_now() {
    if (names_.empty()) names_ = input_.expand_files();
    return names_;
  }
  [[nodiscard]] bool has_records(const TextHead& head) const {
    if constexpr (requires { Format::has_records(options_, head); }) return Format::has_records(options_, head);
    return true;
  }
  // Whoever looks at the files first does so before the workers are forked, most often.
  const std::shared_ptr<const Plan>& plan_now() {
    if (plan_ != nullptr) return plan_;
    if (open_ == nullptr && !shelf_) shelf_.emplace("counts the samples of files");
    std::string first_without;  // of those that have no records
    for (const std::string& name : names_now()) {
      TextHead head{name, open_bytes(name)};
      const auto lines = std::count(head.text(), head.text() + head.size(), '\n');
      const bool is_enough = head.damage().empty() || (!options_.on_error.stops_at_once() && lines >= 2);
      if (!is_enough && options_.on_error.stops_at_once()) throw DataError{head.damage()};
      if (!is_enough && name == names_.back()) {
        throw DataError{compose("{}. That was the last of {} files, none of which tells what they hold", head.damage(),
                                names_.size())};
      }
      if (!is_enough) continue;  // another file may tell what there is
      if (!has_records(head)) {
        if (first_without.empty()) first_without = name;
        continue;
      }
      plan_ = Format::plan(options_, name, head);
      if (options_.on_error.stops_at_once() && !head.damage().empty()) throw DataError{head.damage()};
      return plan_;
    }
    TextHead head{first_without, open_bytes(first_without)};
    return plan_ = Format::plan(options_, first_without, head);
  }

  // Has the indexes of all files from the process that makes them for all.
  void find_indexes() {
    (void)plan_now();
    const auto schema = FileIndex::schema();
    const auto all = std::make_shared<const Block>(shelf_->find_or_make(schema, [&](const auto& go_on) {
      add_indexes(go_on);
      std::vector<Block> blocks;
      for (const auto& index : indexes_) blocks.push_back(index->to_block(schema, blocks.size()));
      return blocks;
    }));
    indexes_.clear();
    starts_.clear();
    for (std::size_t file = 0; file < all->rows(); ++file) take_index(FileIndex::of_row(all, file));
    skips_.raise_to(starts_.back().damaged);
  }
  template <class Progress>
  void add_indexes(const Progress& progress) {
    while (indexes_.size() < names_now().size()) add_index(progress);
  }

  void take_index(FileIndex index) {
    Totals totals = starts_.empty() ? Totals{} : starts_.back();
    totals.samples += index.samples();
    totals.damaged += index.damaged.size();
    indexes_.push_back(std::make_shared<const FileIndex>(std::move(index)));
    starts_.push_back(totals);
  }

  // Where damaged records are left out, they must be known: all is parsed. Else the line ends are counted.
  template <class Progress>
  void add_index(const Progress& progress) {
    const std::string& name = names_now()[indexes_.size()];
    const auto plan = plan_now();
    auto file = std::make_unique<FileBytes>(name);
    const FileStamp stamp = file->stamp();
    Chunks chunks = open(name, plan, std::move(file));
    take_index(options_.on_error.stops_at_once() ? count_records(chunks, stamp, progress)
                                                 : parse_all(name, chunks, stamp, progress));
  }

  template <class Progress>
  [[nodiscard]] FileIndex count_records(Chunks& chunks, const FileStamp& stamp, const Progress& progress) const {
    RecordCounter counter{Format::rules(options_), chunks.end()};
    chunks.take_rest([&](const char* text, std::size_t size) {
      counter.add(text, size);
      progress();
    });
    return counter.finish(stamp);
  }

  template <class Progress>
  [[nodiscard]] FileIndex parse_all(const std::string& name, Chunks& chunks, const FileStamp& stamp,
                                    const Progress& progress) const {
    FileIndexDraft index;
    std::uint64_t damaged = starts_.empty() ? 0 : starts_.back().damaged;
    const auto leave_out = [&](const DamagedPart& part) {
      damaged = settle(part, damaged);
      index.add_long_record(part.offset);  // plain files have no other damaged parts
    };
    while (chunks.next(leave_out)) {
      RecordFaults faults;
      chunks.find_long_records(faults);
      (void)chunks.parser().parse(faults);
      note_records(chunks, faults, index);
      if (!faults.empty()) {
        damaged = settle(faults, name, chunks, damaged);
        name_long_records(name, chunks);
      }
      progress();
    }
    return std::move(index).finish(stamp, chunks.end());
  }

  InputFiles input_;
  Options options_;
  OpenBytes open_;
  SkipCount skips_{};
  std::mutex mutex_{};
  std::optional<SampleShelf> shelf_{};  // of the indexes
  std::vector<std::string> names_{};
  std::shared_ptr<const Plan> plan_{};
  std::vector<std::shared_ptr<const FileIndex>> indexes_{};  // of the first files
  std::vector<Totals> starts_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
