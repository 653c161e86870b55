// SPDX-License-Identifier: MIT
// Samples out of text files of which each record is one; what a format must say is little. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/record_faults.hpp"
#include "railyard/data/detail/record_files.hpp"
#include "railyard/data/detail/record_reader.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/input_files.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is a format of text files: what a record is, and which columns it has. All functions are static. It may have
/// identify(options, fingerprint), which adds the options that make other samples of the same files, and
/// has_records(options, head), which says whether a file has one to learn columns from; else the first file has.
///
/// Laws: a Parser cuts text at the same places as the rules say, and each record alone as with others; parse() leaves
/// out the records that are in faults when it is called.
template <class F>
concept RecordFormat = requires(const typename F::Options& options, const typename F::Plan& plan,
                                typename F::Parser parser, const std::string& file, detail::TextHead& head,
                                detail::RecordFaults& faults, const char* text, std::size_t size) {
  { F::name } -> std::convertible_to<const char*>;
  { F::rules(options) } -> std::convertible_to<detail::RecordRules>;
  { F::plan(options, file, head) } -> std::convertible_to<std::shared_ptr<const typename F::Plan>>;
  { F::header_size(plan, file, text, size, true) } -> std::convertible_to<std::optional<std::size_t>>;
  { parser.cut(text, size, true) } -> std::convertible_to<std::size_t>;
  { parser.parse(faults) } -> std::convertible_to<std::vector<Column>>;
};

/// Gives the records of text files as samples, in any order: the index of their places is made when it is first needed,
/// or on the way by whoever reads all. It takes 16 bytes per 64 records or 4 KiB of text, and is inherited by forked
/// workers; of those that were forked before the records were counted, the first makes it for all. Files are not to
/// change as long as there is a source of them.
///
/// Cost: the first count(), read() or open() in the middle looks for the line ends of all files up to there, at the
/// speed of memory (.on_error other than stop(): parses them); each later one reads at most 4 KiB and a record more
/// than it gives. A descriptor, once its columns are known.
template <RecordFormat Format>
class RecordSource {
 public:
  using Options = typename Format::Options;

  explicit RecordSource(InputFiles files, Options options = {})
      : files_(std::make_shared<detail::RecordFiles<Format>>(std::move(files), std::move(options), nullptr)) {}

  /// Throws: DataError if the first file cannot be read or has no columns; ConfigError for wrong options.
  [[nodiscard]] Schema schema() const { return *files_->plan()->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return files_->count(); }
  [[nodiscard]] std::string describe() const { return files_->describe(); }
  /// The paths of the files that it reads.
  [[nodiscard]] std::vector<std::string> files() const { return files_->names(); }
  [[nodiscard]] std::string label() const { return files_->options().label; }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const { return files_->fingerprint(); }
  /// Where processes of a host leave the index for each other; see detail::SampleShelf.
  [[nodiscard]] detail::SampleShelf* shelf() const { return files_->shelf(); }
  /// How many damaged records were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const { return files_->skips().count(); }
  /// Names what counts as one of them and may have been many: what could not be read of a file, or a record without
  /// end.
  [[nodiscard]] std::vector<std::string> skipped_parts() const { return files_->skips().names(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const {
    auto reader = std::make_unique<detail::RecordReader<Format>>(files_, true);
    if (from > 0) reader->seek(from);
    return reader;
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    return detail::RecordPicker<Format>{*files_}.read(ids);
  }

 private:
  std::shared_ptr<detail::RecordFiles<Format>> files_;
};

/// Gives the records of compressed text files as samples, one after another. To go on in the middle of a file, a part
/// of it is read again, of which gzip() and zstd() tell; the files before it are not.
template <RecordFormat Format>
class RecordStream {
 public:
  using Options = typename Format::Options;

  explicit RecordStream(CompressedFiles files, Options options = {})
      : files_(std::make_shared<detail::RecordFiles<Format>>(std::move(files.files), std::move(options), files.open)) {}

  /// Throws: DataError if the first file cannot be read or has no columns; ConfigError for wrong options.
  [[nodiscard]] Schema schema() const { return *files_->plan()->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return std::nullopt; }
  [[nodiscard]] std::string describe() const { return files_->describe(); }
  /// The paths of the files that it reads.
  [[nodiscard]] std::vector<std::string> files() const { return files_->names(); }
  [[nodiscard]] std::string label() const { return files_->options().label; }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const { return files_->fingerprint(); }
  /// How many damaged records were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const { return files_->skips().count(); }
  /// Names what counts as one of them and may have been many: what could not be read of a file, or a record without
  /// end.
  [[nodiscard]] std::vector<std::string> skipped_parts() const { return files_->skips().names(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from, const ReaderPlace& place = {}) const {
    detail::check_place(describe(), files_->names(), from, place);
    auto reader = std::make_unique<detail::RecordReader<Format>>(files_, false);
    reader->seek(from, place);
    return reader;
  }

 private:
  std::shared_ptr<detail::RecordFiles<Format>> files_;
};

}  // namespace railyard::inline v0_1
