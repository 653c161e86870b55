// SPDX-License-Identifier: MIT
// What all copies of a source of tar archives know of them: columns, and where the samples are. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/file_point.hpp"
#include "railyard/data/detail/option_columns.hpp"
#include "railyard/data/detail/sample_shelf.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/detail/tar_reader.hpp"
#include "railyard/data/detail/tar_samples.hpp"
#include "railyard/data/detail/utf8.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/on_error.hpp"
#include "railyard/data/tar_source_options.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Knows the archives of a source, and what was left out of them.
class TarShards {
 public:
  TarShards(InputFiles input, TarSourceOptions options, OpenBytes opener)
      : input_(std::move(input)), options_(std::move(options)), open_(opener) {}

  [[nodiscard]] const TarSourceOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::string describe() const { return compose("tar {}", input_.describe()); }
  [[nodiscard]] const SkipCount& skips() const noexcept { return skips_; }

  [[nodiscard]] std::vector<std::string> names() {
    const std::lock_guard lock{mutex_};
    return names_now();
  }
  [[nodiscard]] std::shared_ptr<const TarPlan> plan() {
    const std::lock_guard lock{mutex_};
    if (plan_ == nullptr) plan_ = make_plan();
    return plan_;
  }
  [[nodiscard]] TarSampleReader open(const std::string& name) { return {name, open_bytes(name), plan()}; }
  /// Opens an archive where a place says that a reader has stood before sample `from`; nothing if it does not.
  struct Entered {
    TarSampleReader reader;
    std::uint64_t left_out;
  };
  [[nodiscard]] std::optional<Entered> enter(const std::string& name, const ReaderPlace& place, std::uint64_t from) {
    if (!place.state.has_value()) return std::nullopt;
    try {
      auto bytes = open_bytes(name);
      const auto point = FilePoint::go_to(place, from, *bytes);
      if (!point) return std::nullopt;
      return Entered{{name, std::move(bytes), plan(), point->offset}, point->damaged};
    } catch (const DataError&) {
      return std::nullopt;  // whoever reads it from its begin is told, and may leave it out
    }
  }
  /// What must be read so that it is known which samples are left out.
  [[nodiscard]] TarContents contents_to_check() const noexcept {
    return options_.on_error.stops_at_once() ? TarContents::none : TarContents::texts;
  }

  /// Throws: DataError, unless this may be left out as well, where `before` were. Returns how many there are now.
  /// is_part: of an archive, not one sample.
  std::uint64_t leave_out(std::uint64_t before, const std::string& message, bool is_part) const {
    if (before + 1 > options_.on_error.max_skips()) throw DataError{message};
    if (is_part) skips_.name(message);
    skips_.raise_to(before + 1);
    return before + 1;
  }

 private:
  [[nodiscard]] std::unique_ptr<ByteStream> open_bytes(const std::string& name) const {
    return open_ != nullptr ? open_(name) : std::make_unique<FileBytes>(name);
  }
  const std::vector<std::string>& names_now() {
    if (names_.empty()) names_ = input_.expand_files();
    return names_;
  }
  [[nodiscard]] std::shared_ptr<const TarPlan> make_plan() {
    std::vector<std::string> suffixes = options_.bytes;
    suffixes.insert(suffixes.end(), options_.text.begin(), options_.text.end());
    const bool is_told = !suffixes.empty();
    if (!is_told) suffixes = find_suffixes();
    std::vector<Field> fields;
    for (std::size_t at = 0; at < suffixes.size(); ++at) {
      const bool is_text = is_told ? at >= options_.bytes.size() : is_usually_text(suffixes[at]);
      fields.push_back(is_text ? Field::text(suffixes[at])
                               : Field{.name = suffixes[at], .dtype = Dtype::u8, .shape = {-1}});
    }
    if (!options_.key.empty()) fields.push_back(Field::text(options_.key));
    auto schema = std::make_shared<const Schema>(std::move(fields));
    if (!options_.label.empty()) (void)column_of_option(describe(), ".label", *schema, options_.label);
    return std::make_shared<const TarPlan>(TarPlan{std::move(schema), suffixes.size(), options_.max_member_bytes});
  }
  // Those of the first sample that there is.
  [[nodiscard]] std::vector<std::string> find_suffixes() {
    std::string fault;
    for (const std::string& name : names_now()) {
      try {
        std::vector<std::string> suffixes = first_tar_suffixes(name, open_bytes(name));
        if (!suffixes.empty()) return suffixes;
        if (fault.empty()) fault = compose("{} holds no files whose names are KEY.SUFFIX", name);
      } catch (const DataError& error) {
        if (options_.on_error.stops_at_once()) throw;
        fault = error.what();  // another archive may tell what there is
      }
    }
    throw DataError{compose("{}. None of the {} archives tells what they hold", fault, names_.size())};
  }
  [[nodiscard]] static bool is_usually_text(std::string_view suffix) noexcept {
    constexpr std::array<std::string_view, 5> texts{"txt", "text", "json", "cls", "csv"};
    return std::find(texts.begin(), texts.end(), suffix.substr(suffix.rfind('.') + 1)) != texts.end();
  }

  InputFiles input_;
  TarSourceOptions options_;
  OpenBytes open_;
  SkipCount skips_{};
  std::mutex mutex_{};
  std::vector<std::string> names_{};
  std::shared_ptr<const TarPlan> plan_{};
};

/// Goes over all archives, sample by sample, and counts what is left out.
class TarWalk {
 public:
  /// place: where it begins, at sample `from` or before it.
  explicit TarWalk(std::shared_ptr<TarShards> shards, const ReaderPlace& place = {}, std::uint64_t from = 0)
      : shards_(std::move(shards)),
        names_(shards_->names()),
        file_(static_cast<std::size_t>(place.file)),
        first_(place.samples),
        left_out_(place.damaged),
        left_out_before_(place.damaged) {
    auto entered = file_ < names_.size() ? shards_->enter(names_[file_], place, from) : std::nullopt;
    if (entered) {
      reader_.emplace(std::move(entered->reader));
      first_ = place.state.sample();
      left_out_ = entered->left_out;
    }
    shards_->skips().raise_to(left_out_);
  }

  /// The number of the sample that comes first.
  [[nodiscard]] std::uint64_t first() const noexcept { return first_; }

  /// Returns the next sample that has no fault; nothing at the end. Throws: DataError.
  [[nodiscard]] std::optional<TarSample> next(TarContents contents) {
    while (file_ < names_.size()) {
      std::optional<TarSample> sample;
      try {
        if (!reader_) reader_.emplace(shards_->open(names_[file_]));
        sample = reader_->next(contents);
      } catch (const DataError& error) {
        left_out_ = shards_->leave_out(left_out_, error.what(), true);
      }
      if (sample && sample->fault.empty()) return sample;
      if (sample) {
        left_out_ = shards_->leave_out(left_out_, compose("{}: {}", reader_->where(*sample), sample->fault), false);
      } else {
        reader_.reset();
        ++file_;
        left_out_before_ = left_out_;
      }
    }
    return std::nullopt;
  }
  /// With what another walk begins at the next sample, whose number is given: now and then.
  [[nodiscard]] std::optional<ReaderState> take_state(std::uint64_t next) {
    const auto point = reader_ ? reader_->take_point(left_out_) : std::nullopt;
    return point ? std::optional{point->to_state(next)} : std::nullopt;
  }
  /// The archive of the sample that came last.
  [[nodiscard]] std::size_t file() const noexcept { return file_; }
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  /// What was left out of the archives before it.
  [[nodiscard]] std::uint64_t left_out_before() const noexcept { return left_out_before_; }

 private:
  std::shared_ptr<TarShards> shards_;
  std::vector<std::string> names_;
  std::size_t file_;
  std::uint64_t first_;
  std::optional<TarSampleReader> reader_{};
  std::uint64_t left_out_;
  std::uint64_t left_out_before_;
};

/// Knows where each sample is, as far as somebody has asked; shared by threads and inherited by forked processes. Of
/// those that were forked before the samples were counted, the first reads the headers for all.
class TarIndex {
 public:
  explicit TarIndex(std::shared_ptr<TarShards> shards) : shards_(std::move(shards)) {}

  struct Place {
    std::shared_ptr<const StoredFile> file{};
    std::string key{};
    std::vector<TarPlace> places{};
  };

  /// Where it is left for other processes.
  [[nodiscard]] SampleShelf& shelf() noexcept { return shelf_; }

  /// Returns where a sample is; nothing if there is no such sample.
  [[nodiscard]] std::optional<Place> find(std::uint64_t id) {
    const std::lock_guard lock{mutex_};
    if (found_) return id < num_found() ? std::optional{place_in(*found_, static_cast<std::size_t>(id))} : std::nullopt;
    while (id >= places_.size() && extend()) {
    }
    if (id >= places_.size()) return std::nullopt;
    return places_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::uint64_t count() {
    const std::lock_guard lock{mutex_};
    if (!found_ && !is_whole_ && shelf_.has_use()) find_all();
    if (found_) return num_found();
    while (extend()) {
    }
    return places_.size();
  }

 private:
  // Of the block that processes share, each row is a sample, and the last one is none: it has the number of what was
  // left out instead of a file's, and instead of a key the names of rests of archives.
  static constexpr char between_names = '\0';

  [[nodiscard]] std::uint64_t num_found() const noexcept { return found_->rows() - 1; }

  void find_all() {
    const std::size_t num_columns = shards_->plan()->num_suffixes;
    const auto schema =
        std::make_shared<const Schema>(Schema{{"file", Dtype::i64},
                                              {"places", Dtype::i64, {static_cast<std::int64_t>(2 * num_columns)}},
                                              Field::text("key")});
    found_ = shelf_.find_or_make(schema, [&](const auto& progress) {
      while (extend()) progress();
      return std::vector<Block>{to_block(schema)};
    });
    const std::size_t last = found_->rows() - 1;
    shards_->skips().raise_to(static_cast<std::uint64_t>((*found_)[0].values<std::int64_t>(last)[0]));
    std::string_view names = (*found_)[2].text(last);
    while (!names.empty()) {
      const std::string_view name = names.substr(0, names.find(between_names));
      shards_->skips().name(std::string{name});
      names.remove_prefix(std::min(name.size() + 1, names.size()));
    }
    places_ = {};
    walk_.reset();
  }
  [[nodiscard]] Block to_block(const std::shared_ptr<const Schema>& schema) const {
    BlockBuilder builder{schema, places_.size() + 1};
    std::size_t file = 0;
    const std::vector<std::string> names = shards_->names();
    std::vector<std::int64_t> numbers;
    for (const Place& place : places_) {
      while (names[file] != place.file->path()) ++file;
      numbers.clear();
      for (const auto& [offset, size] : place.places) {
        numbers.insert(numbers.end(), {static_cast<std::int64_t>(offset), static_cast<std::int64_t>(size)});
      }
      SampleWriter& writer = builder.add(builder.rows());
      writer.set(0, static_cast<std::int64_t>(file));
      writer.set(1, numbers);
      writer.set(2, place.key);
    }
    numbers.assign((*schema)[1].width(), 0);
    SampleWriter& writer = builder.add(builder.rows());
    writer.set(0, static_cast<std::int64_t>(shards_->skips().count()));
    writer.set(1, numbers);
    writer.set(2, joined(shards_->skips().names(), std::string_view{&between_names, 1}));
    return builder.build();
  }
  [[nodiscard]] Place place_in(const Block& all, std::size_t row) {
    const auto numbers = all[1].values<std::int64_t>(row);
    Place place{file_of(static_cast<std::size_t>(all[0].values<std::int64_t>(row)[0])), std::string{all[2].text(row)}};
    for (std::size_t at = 0; at < numbers.size(); at += 2) {
      place.places.push_back({static_cast<std::uint64_t>(numbers[at]), static_cast<std::uint64_t>(numbers[at + 1])});
    }
    return place;
  }

  bool extend() {
    if (is_whole_) return false;
    if (!walk_) walk_.emplace(shards_);
    std::optional<TarSample> sample;
    try {
      if (failure_.empty()) sample = walk_->next(shards_->contents_to_check());
    } catch (const DataError& error) {
      failure_ = error.what();
    }
    if (!failure_.empty()) throw DataError{failure_};  // whoever asks again is told again
    is_whole_ = !sample;
    if (is_whole_) {
      walk_.reset();
      return false;
    }
    Place place{.file = file_of(walk_->file())};
    if (!shards_->options().key.empty()) place.key = std::move(sample->key);
    for (const auto& content : sample->places) place.places.push_back(*content);
    places_.push_back(std::move(place));
    return true;
  }

  [[nodiscard]] const std::shared_ptr<const StoredFile>& file_of(std::size_t number) {
    constexpr std::size_t most_kept_open = 64;
    if (files_.empty()) files_.resize(shards_->names().size());
    if (files_[number] == nullptr) {
      files_[number] = std::make_shared<const StoredFile>(shards_->names()[number], files_.size() <= most_kept_open);
    }
    return files_[number];
  }

  std::shared_ptr<TarShards> shards_;
  SampleShelf shelf_{"reads the headers of archives"};
  std::mutex mutex_{};
  std::optional<TarWalk> walk_{};
  std::vector<std::shared_ptr<const StoredFile>> files_{};
  std::vector<Place> places_{};
  std::optional<Block> found_{};  // instead of these, where processes share them
  bool is_whole_ = false;
  std::string failure_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
