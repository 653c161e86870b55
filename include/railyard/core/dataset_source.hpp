// SPDX-License-Identifier: MIT
// The concept of where the samples of a dataset come from. Core room.
#pragma once

#include "railyard/core/block.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is what a reader needs to go on with a sample without what came before it: bytes that only readers of its source
/// understand, at most 1 MiB. Cheap to copy.
class ReaderState {
 public:
  /// There is none.
  ReaderState() = default;
  /// sample: the number of the one that comes next from there.
  ReaderState(std::uint64_t sample, std::string bytes) : sample_(sample), kept_(std::make_shared<Kept>()) {
    kept_->bytes = std::move(bytes);
  }
  /// save: returns the bytes; called once, if anybody wants them, on any thread.
  ReaderState(std::uint64_t sample, std::function<std::string()> save)
      : sample_(sample), kept_(std::make_shared<Kept>()) {
    kept_->save = std::move(save);
  }

  [[nodiscard]] bool has_value() const noexcept { return kept_ != nullptr; }
  [[nodiscard]] std::uint64_t sample() const noexcept { return sample_; }
  /// Throws: what saving throws. Only if it has a value.
  [[nodiscard]] const std::string& bytes() const {
    const std::lock_guard lock{kept_->mutex};
    if (kept_->save) {
      kept_->bytes = kept_->save();
      kept_->save = nullptr;
    }
    return kept_->bytes;
  }
  /// Whether both are of one reader at one time.
  [[nodiscard]] bool is_same_as(const ReaderState& other) const noexcept { return kept_ == other.kept_; }
  friend bool operator==(const ReaderState& one, const ReaderState& other) {
    if (one.is_same_as(other)) return one.sample_ == other.sample_;
    return one.kept_ && other.kept_ && one.sample_ == other.sample_ && one.bytes() == other.bytes();
  }

 private:
  struct Kept {
    std::mutex mutex{};
    std::function<std::string()> save{};
    std::string bytes{};
  };

  std::uint64_t sample_ = 0;
  std::shared_ptr<Kept> kept_{};
};

/// Says where a reader stands.
struct ReaderPlace {
  std::uint64_t file = 0;     ///< of its files that it is in: all before it have been read
  std::uint64_t samples = 0;  ///< of the files before it
  std::uint64_t damaged = 0;  ///< that were left out of them
  ReaderState state{};        ///< with which another reader begins after that, at a sample that this one has come to
};

/// Reads the samples of a source one after another; used by one thread at a time.
class BlockReader {
 public:
  BlockReader() = default;
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;
  virtual ~BlockReader() = default;

  /// Returns the next samples, at most so many and at least one; an empty block at the end.
  /// Throws: DataError that names the file, the line or offset and the column of what is damaged.
  [[nodiscard]] virtual Block next(std::size_t most_rows) = 0;
  /// Where it stands, of a ResumableSource.
  [[nodiscard]] virtual ReaderPlace place() const { return {}; }
};

/// Is where samples come from. A value that is cheap to copy and opens nothing before it is read; all its functions may
/// be called on several threads at once, and in processes forked from the one that made it.
///
/// One that reads files may say which, by files() that returns their paths: then a run that goes on is told when they
/// have changed, and caches in files are made anew. It may have fingerprint(), a std::uint64_t that is another when its
/// samples are for other reasons, such as its settings: these caches compare it as well, and a run that goes on tells
/// of it. It may have skipped(), how many damaged samples it has left out so far, of which loaders tell, and
/// skipped_parts(), texts that name what counts as one of them and may have been many samples. And one that never ends
/// may say so by is_endless(), a truth value.
///
/// Laws: every open() gives the same samples in the same order, and open(from) goes on with sample number `from`.
template <class S>
concept DatasetSource = std::copy_constructible<S> && requires(const S& source, std::uint64_t from) {
  { source.schema() } -> std::convertible_to<Schema>;
  { source.count() } -> std::convertible_to<std::optional<std::uint64_t>>;  // nothing: known only at the end
  { source.describe() } -> std::convertible_to<std::string>;                // for messages: "CSV data/*.csv"
  { source.open(from) } -> std::convertible_to<std::unique_ptr<BlockReader>>;
};

/// Is a source that can be asked for any of its samples in about the same time. Knows its count.
/// Law: read(ids) gives the samples of these numbers in that order, as open() would.
template <class S>
concept IndexedSource = DatasetSource<S> && requires(const S& source, std::span<const std::uint64_t> ids) {
  { source.read(ids) } -> std::convertible_to<Block>;
};

/// Is a source whose readers say where they stand, so that a run which goes on need not read again what came before.
/// Law: open(from, place) gives what open(from) does, if a reader of it has told the place when sample `from`, or one
/// before it, was next. A state that it cannot use is an error, or read past: never other samples.
template <class S>
concept ResumableSource = DatasetSource<S> && requires(const S& source, std::uint64_t from, const ReaderPlace& place) {
  { source.open(from, place) } -> std::convertible_to<std::unique_ptr<BlockReader>>;
};

/// Is one of files that are read from begin to end, whose readers say as well in which of them they stand.
template <class S>
concept FileStreamSource = ResumableSource<S> && requires(const S& source) {
  { source.files() } -> std::convertible_to<std::vector<std::string>>;
};

}  // namespace railyard::inline v0_1
