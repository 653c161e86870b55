// SPDX-License-Identifier: MIT
// Reads the records of files, one after another or those that are asked for. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/file_point.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/record_files.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

[[noreturn]] inline void throw_changed(const std::string& name) {
  throw DataError{compose("{} has changed since its records were counted: make the source anew", name)};
}

/// Reads from a sample on. Of a file that it has read from beginning to end it leaves the index behind.
template <class Format>
class RecordReader final : public BlockReader {
 public:
  using Files = RecordFiles<Format>;

  /// is_indexed: whether indexes are of use.
  RecordReader(std::shared_ptr<Files> files, bool is_indexed)
      : files_(std::move(files)), names_(files_->names()), plan_(files_->plan()), is_indexed_(is_indexed) {}

  /// Goes to a sample by way of the index.
  void seek(std::uint64_t sample) {
    const RecordPlace place = files_->find(sample);
    next_id_ = sample;
    file_ = place.file;
    damaged_ = place.damaged_before;
    if (place.index == nullptr) return;
    const std::size_t at = place.index->place_of(place.record);
    const FileIndex::Place& from = place.index->places[at];
    damaged_ += place.index->damaged_before(from.record);
    next_id_ -= place.record - from.record -
                (place.index->damaged_before(place.record) - place.index->damaged_before(from.record));
    auto bytes = std::make_unique<FileBytes>(names_[file_], from.offset);
    if (bytes->stamp() != place.index->stamp) throw_changed(names_[file_]);
    chunks_.emplace(files_->open_at(names_[file_], plan_, std::move(bytes), from.offset));
    skip(sample - next_id_);
  }

  /// Goes to a sample by way of a place: in its file, where the state says that, or from the begin of that on.
  void seek(std::uint64_t sample, const ReaderPlace& place) {
    file_ = static_cast<std::size_t>(place.file);
    next_id_ = place.samples;
    damaged_ = place.damaged;
    if (place.state.has_value() && file_ < names_.size()) enter_file(sample, place);
    files_->skips().raise_to(damaged_);
    skip(sample - next_id_);
  }
  [[nodiscard]] ReaderPlace place() const override {
    if (!chunks_) return {file_, next_id_, damaged_};
    ReaderPlace place = begin_of_file_;
    place.state = state_;
    return place;
  }

  /// Leaves so many samples out, which are parsed.
  void skip(std::uint64_t samples) {
    while (samples > 0) {
      const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(samples, std::size_t{1} << 20));
      const std::size_t got = next(part).rows();
      if (got == 0) return;
      samples -= got;
    }
  }

  [[nodiscard]] Block next(std::size_t most_rows) override {
    while (at_ == block_.rows()) {
      if (!next_piece()) return {};
    }
    const std::size_t begin = at_;
    at_ = std::min(block_.rows(), begin + most_rows);
    if (begin > 0 || at_ < block_.rows()) return block_.slice(begin, at_);
    at_ = 0;
    return std::exchange(block_, {});
  }

 private:
  bool next_piece() {
    const auto leave_out = [this](const DamagedPart& part) {
      damaged_ = files_->settle(part, damaged_);
      if (index_ && part.is_record) index_->add_long_record(part.offset);
    };
    while (true) {
      if (!chunks_ && !open_file()) return false;
      if (chunks_->next(leave_out)) break;
      close_file();
    }
    if (auto point = chunks_->take_point()) {
      state_ = FilePoint{chunks_->offset(), damaged_, std::move(*point)}.to_state(next_id_);
    }
    chunks_->settle_piece(leave_out);
    RecordFaults faults;
    chunks_->find_long_records(faults);
    std::vector<Column> columns = chunks_->parser().parse(faults);
    if (!faults.empty()) {
      damaged_ = files_->settle(faults, names_[file_], *chunks_, damaged_);
      files_->name_long_records(names_[file_], *chunks_);
    }
    std::vector<std::uint64_t> ids(chunks_->parser().records() - faults.records().size());
    std::iota(ids.begin(), ids.end(), next_id_);
    next_id_ += ids.size();
    if (index_) note_records(*chunks_, faults, *index_);
    block_ = Block{plan_->schema, std::move(columns), std::move(ids)};
    at_ = 0;
    return true;
  }

  void enter_file(std::uint64_t sample, const ReaderPlace& place) {
    auto bytes = files_->open_bytes(names_[file_]);
    const auto point = FilePoint::go_to(place, sample, *bytes);
    if (!point) return;
    begin_of_file_ = {place.file, place.samples, place.damaged};
    state_ = place.state;
    next_id_ = state_.sample();
    damaged_ = point->damaged;
    chunks_.emplace(files_->open_at(names_[file_], plan_, std::move(bytes), point->offset));
  }
  bool open_file() {
    if (file_ >= names_.size()) return false;
    begin_of_file_ = {file_, next_id_, damaged_};
    state_ = {};
    auto bytes = files_->open_bytes(names_[file_]);
    if (is_indexed_) {
      index_.emplace();
      stamp_ = static_cast<const FileBytes&>(*bytes).stamp();
    }
    chunks_.emplace(files_->open(names_[file_], plan_, std::move(bytes)));
    return true;
  }
  void close_file() {
    if (index_) files_->offer(file_, std::move(*index_).finish(stamp_, chunks_->end()));
    index_.reset();
    chunks_.reset();
    ++file_;
  }

  std::shared_ptr<Files> files_;
  std::vector<std::string> names_;
  std::shared_ptr<const typename Format::Plan> plan_;
  bool is_indexed_;
  std::size_t file_ = 0;
  std::optional<typename Files::Chunks> chunks_{};
  std::optional<FileIndexDraft> index_{};  // of the file that is read from its beginning
  FileStamp stamp_{};                      // of that
  ReaderPlace begin_of_file_{};
  ReaderState state_{};  // at a piece of the file up to this one
  std::uint64_t next_id_ = 0;
  std::uint64_t damaged_ = 0;  // records before the next piece
  Block block_{};
  std::size_t at_ = 0;
};

/// Reads samples by their numbers: gathers the texts of their records, and parses them as one piece.
template <class Format>
class RecordPicker {
 public:
  using Files = RecordFiles<Format>;

  explicit RecordPicker(Files& files)
      : files_(files), names_(files.names()), plan_(files.plan()), parser_(plan_), cutter_(plan_) {}

  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) {
    for (const std::uint64_t id : ids) pick(id);
    const std::size_t size = text_.size();
    text_.resize(size + text_padding);
    parser_.cut(text_.data(), size, true);
    if (parser_.records() != ids.size()) throw_changed(names_[file_]);
    RecordFaults faults;
    std::vector<Column> columns = parser_.parse(faults);
    if (!faults.empty()) {
      const RecordPlace place = files_.find(ids[faults.first()]);
      throw DataError{compose("{}: {}", files_.where(names_[place.file], offset_of(place)), faults.message())};
    }
    return Block{plan_->schema, std::move(columns), {ids.begin(), ids.end()}};
  }

 private:
  // Appends the text of a sample's record.
  void pick(std::uint64_t id) {
    const RecordPlace place = files_.find(id);
    if (place.index == nullptr) {
      throw ConfigError{
          compose("{} has {} samples and was asked for sample {}", files_.describe(), files_.count(), id)};
    }
    load(place);
    const auto record = static_cast<std::size_t>(place.record - loaded_->places[loaded_place_].record);
    if (record >= cutter_.records()) throw_changed(names_[place.file]);
    const std::size_t most = files_.options().max_record_bytes;
    if (is_long_record(cutter_, record, most)) {
      throw DataError{text_of_long_record(names_[place.file], offset_of(place), most)};
    }
    text_.insert(text_.end(), loaded_text_.data() + cutter_.begin(record), loaded_text_.data() + cutter_.end(record));
  }

  // Has the records at hand that share a place with this one.
  void load(const RecordPlace& place) {
    const std::size_t at = place.index->place_of(place.record);
    if (loaded_ == place.index && loaded_place_ == at) return;
    if (loaded_ != place.index) {
      input_.emplace(names_[place.file]);
      if (input_->stamp() != place.index->stamp) throw_changed(names_[place.file]);
      loaded_ = place.index;
      file_ = place.file;
    }
    loaded_place_ = at;
    const std::uint64_t begin = loaded_->places[at].offset;
    const auto size = static_cast<std::size_t>(loaded_->end_of(at) - begin);
    check_size(names_[place.file], begin, size);
    loaded_text_.resize(size + 1 + text_padding);
    std::size_t got = input_->read_at(begin, loaded_text_.data(), size);
    if (got > 0 && loaded_text_[got - 1] != '\n') loaded_text_[got++] = '\n';
    cutter_.cut(loaded_text_.data(), got, true);
  }

  // Where nothing is left out, lengths have not been looked at. All records begin near the place.
  void check_size(const std::string& name, std::uint64_t begin, std::size_t size) const {
    const std::size_t most = files_.options().max_record_bytes;
    if (size <= FileIndex::most_bytes || size - FileIndex::most_bytes <= 2 * most) return;
    std::vector<char> text(FileIndex::most_bytes + text_padding);
    typename Format::Parser parser{plan_};
    const std::size_t before =
        parser.cut(text.data(), input_->read_at(begin, text.data(), FileIndex::most_bytes), false);
    throw DataError{text_of_long_record(name, begin + before, most)};
  }

  [[nodiscard]] std::uint64_t offset_of(const RecordPlace& place) {
    load(place);
    const std::size_t record = static_cast<std::size_t>(place.record - loaded_->places[loaded_place_].record);
    return loaded_->places[loaded_place_].offset + cutter_.begin(record);
  }

  Files& files_;
  std::vector<std::string> names_;
  std::shared_ptr<const typename Format::Plan> plan_;
  typename Format::Parser parser_;  // of the texts that are gathered
  std::vector<char> text_{};
  std::optional<FileBytes> input_{};
  std::size_t file_ = 0;
  std::shared_ptr<const FileIndex> loaded_{};
  std::size_t loaded_place_ = 0;
  std::vector<char> loaded_text_{};
  typename Format::Parser cutter_;  // of the loaded text
};

}  // namespace detail
}  // namespace railyard::inline v0_1
