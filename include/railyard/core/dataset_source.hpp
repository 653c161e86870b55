// SPDX-License-Identifier: MIT
// The concept of where the samples of a dataset come from. Core room.
#pragma once

#include "railyard/core/block.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace railyard::inline v0_1 {

/// Says in which of its files a source stands: all before it has been read.
struct FilePlace {
  std::uint64_t file = 0;
  std::uint64_t samples = 0;  ///< of the files before it
  std::uint64_t damaged = 0;  ///< that were left out of them
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
  /// Where it stands among the files of a FileStreamSource.
  [[nodiscard]] virtual FilePlace place() const { return {}; }
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

/// Is a source of files that are read from begin to end, which can leave out those before a place.
/// Law: open(from, place) gives what open(from) does, if a reader of it has told the place when sample `from` was next.
template <class S>
concept FileStreamSource = DatasetSource<S> && requires(const S& source, std::uint64_t from, const FilePlace& place) {
  { source.open(from, place) } -> std::convertible_to<std::unique_ptr<BlockReader>>;
};

}  // namespace railyard::inline v0_1
