// SPDX-License-Identifier: MIT
// What the samples of a dataset, and their order, depend on: as a number that a cache keeps, and as a few lines that a
// saved position keeps, so that a run which goes on notices when its data is another. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

class AnyPreprocessor;

namespace detail {

/// Of files that are larger together, and of columns in memory that are, only parts are looked at.
inline constexpr std::size_t most_stock_bytes = std::size_t{4} << 20;

/// Calls look(begin, size) with parts of so many bytes, together `most` at most and spread evenly from the first byte
/// to the last one. Returns whether they are all.
template <class Look>
bool look_at_parts(std::uint64_t size, std::uint64_t most, const Look& look) {
  constexpr std::uint64_t parts = 64;
  if (size <= most) {
    look(std::uint64_t{0}, size);
    return true;
  }
  const std::uint64_t each = std::max<std::uint64_t>(most / parts, 1);
  const std::uint64_t stride = (size - each) / (parts - 1);
  for (std::uint64_t part = 0; part + 1 < parts; ++part) look(stride * part, each);
  look(size - each, each);
  return false;
}

/// Collects it, in the order in which the nodes of a dataset stand.
class DataStock {
 public:
  DataStock() = default;
  /// Returns one that takes operations and preprocessors, and of sources only how many there are: none is asked for its
  /// files, which may be many or gone by now.
  [[nodiscard]] static DataStock of_operations() noexcept {
    DataStock stock;
    stock.takes_sources_ = false;
    return stock;
  }
  [[nodiscard]] bool takes_sources() const noexcept { return takes_sources_; }

  /// Takes what makes other samples at the same places. Saved positions do not compare it: what a preprocessor learns
  /// depends on how many workers it learns with.
  [[nodiscard]] Fingerprint& making() noexcept { return making_; }
  /// Takes a source, by what messages call it.
  void add_source(std::string_view name) {
    ++num_sources_;
    order_.add(std::string_view{"source"});
    making_.add(name);
  }
  /// Takes an operation that decides which samples there are, or their order. settings: tell it from others of its
  /// name.
  void add_operation(std::string_view name, std::uint64_t settings = 0) {
    for (Fingerprint* all : {&order_, &making_}) {
      all->add(name);
      all->add(settings);
    }
    if (name.starts_with(split_name)) ++num_splits_;
    if (++num_operations_ <= most_things) operations_ += compose("o {:x} {}\n", settings, printable_of(name));
  }
  /// Takes what a source depends on besides: others may give the same samples.
  void add_settings(std::uint64_t settings) noexcept {
    settings_.add(settings);
    making_.add(settings);
  }
  /// Takes what changes the samples by what it has learned; that it does is to be told of to making() as well.
  void add_preprocessor(std::shared_ptr<const AnyPreprocessor> preprocessor) {
    preprocessors_.push_back(std::move(preprocessor));
  }
  /// Takes the file that a cache is in.
  void add_cache(std::string path) { caches_.push_back(std::move(path)); }
  void add_files(std::vector<std::string> paths) { files_.push_back(std::move(paths)); }
  /// what: its name and shape.
  void add_memory(std::string_view what, std::uint64_t digest) { memory_.push_back({std::string{what}, digest, {}}); }
  void add_memory(std::string_view what, Column column) {
    memory_.push_back({std::string{what}, std::nullopt, std::move(column)});
  }

  /// Returns what was added, in the order in which samples come by it.
  [[nodiscard]] const std::vector<std::shared_ptr<const AnyPreprocessor>>& preprocessors() const noexcept {
    return preprocessors_;
  }

  /// Returns a number of the operations that decide which samples there are, and their order, and of how many sources.
  [[nodiscard]] std::uint64_t order() const noexcept { return order_.value(); }

  [[nodiscard]] const std::vector<std::string>& caches() const noexcept { return caches_; }
  /// Returns how many of the operations divide samples at random.
  [[nodiscard]] std::size_t num_splits() const noexcept { return num_splits_; }
  /// What the names of those begin with.
  static constexpr std::string_view split_name = "split(";

  /// Returns a number that is another when samples are: of files, 64 of a source are looked at for size and time. Cost:
  /// reads what is in memory. Throws: DataError if a file is not there.
  [[nodiscard]] std::uint64_t fingerprint() const {
    Fingerprint all = making_;
    for (const auto& files : files_) all.add_files(files);
    for (const Memory& memory : memory_) {
      all.add(memory.digest.value_or(0));
      all.add(memory.column.bytes());
      all.add(digest_of_ends(memory.column));
    }
    return all.value();
  }

  /// Reads files and memory, together as much as is said above, and returns all; empty if there is nothing. Of many
  /// files 64 are looked at; of the others the names count, in the folder that all are in.
  [[nodiscard]] std::string text() const {
    if (num_sources_ == 0 && files_.empty() && memory_.empty()) return {};
    std::string text = compose("{}\nO {} {:x}\n{}", version_line, num_operations_, order_.value(), operations_);
    text += compose("s {:x}\n", settings_.value()) + text_of_files();
    for (std::size_t at = 0; at < std::min(memory_.size(), most_things); ++at) text += lines_of(memory_[at]);
    return text;
  }

  /// The first line of texts that tell of more than files and memory, which those of old do not have.
  static constexpr std::string_view version_line = "V 1";

 private:
  struct Memory {
    std::string what{};
    std::optional<std::uint64_t> digest{};  // if there is no column
    Column column{};
  };

  [[nodiscard]] std::string text_of_files() const {
    std::vector<std::string_view> paths;
    std::unordered_set<std::string_view> known;
    for (const auto& files : files_) {
      for (const std::string& path : files) {
        if (known.insert(path).second) paths.push_back(path);
      }
    }
    if (paths.empty()) return {};
    const std::size_t prefix = size_of_common_folder(paths);
    std::uint64_t names = 0;
    for (const std::string_view path : paths) names = digest_of(std::as_bytes(std::span{path.substr(prefix)}), names);
    std::string text = compose("F {} {:x}\n", paths.size(), names);
    const std::size_t looked_at = std::min(paths.size(), most_things);
    for (std::size_t at = 0; at < looked_at; ++at) {
      const std::string_view path = paths[at * paths.size() / looked_at];
      text += line_of(std::string{path}, path.substr(prefix), most_stock_bytes / looked_at);
    }
    return text;
  }

  // Where samples that differ in length end.
  [[nodiscard]] static std::uint64_t digest_of_ends(const Column& column) noexcept {
    Fingerprint ends;
    for (std::size_t row = 0; column.is_ragged() && row < column.rows(); ++row) {
      ends.add(std::uint64_t{column.sample(row).size()});
    }
    return ends.value();
  }

  [[nodiscard]] static std::string lines_of(const Memory& memory) {
    const auto bytes = memory.column.bytes();
    std::uint64_t digest = memory.digest.value_or(bytes.size());
    const auto look = [&](std::uint64_t begin, std::uint64_t size) {
      digest = digest_of(bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)), digest);
    };
    if (!memory.digest) look_at_parts(bytes.size(), most_stock_bytes, look);
    const std::string name = printable_of(memory.what);
    std::string lines = compose("m {:x} {}\n", digest, name);
    if (memory.column.is_ragged()) lines += compose("e {:x} {}\n", digest_of_ends(memory.column), name);
    return lines;
  }

  // So that a copy elsewhere is the same.
  [[nodiscard]] static std::size_t size_of_common_folder(const std::vector<std::string_view>& paths) {
    std::string_view common = paths.front().substr(0, paths.front().rfind('/') + 1);
    for (const std::string_view path : paths) {
      while (!path.starts_with(common)) {
        common.remove_suffix(1);
        common = common.substr(0, common.rfind('/') + 1);
      }
    }
    return common.size();
  }

  [[nodiscard]] static std::string printable_of(std::string_view name) {
    std::string text{name};
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return text;
  }

  [[nodiscard]] static std::string line_of(const std::string& path, std::string_view name, std::size_t most) {
    const FileBytes file{path};
    const FileStamp& stamp = file.stamp();
    std::vector<char> part;
    std::uint64_t digest = 0;
    const bool is_whole = look_at_parts(stamp.size, most, [&](std::uint64_t begin, std::uint64_t size) {
      part.resize(static_cast<std::size_t>(size));
      part.resize(file.read_at(begin, part.data(), part.size()));
      digest = digest_of(std::as_bytes(std::span{part}), digest);
    });
    return compose("f {} {:x} {} {}\n", stamp.size, digest,
                   is_whole ? std::string{"-"} : compose("{}.{}", stamp.seconds, stamp.nanoseconds),
                   printable_of(name));
  }

  static constexpr std::size_t most_things = 64;

  bool takes_sources_ = true;
  Fingerprint making_{};
  Fingerprint order_{};     // of sources and operations
  Fingerprint settings_{};  // of sources
  std::string operations_{};
  std::size_t num_operations_ = 0;
  std::size_t num_splits_ = 0;
  std::size_t num_sources_ = 0;
  std::vector<std::vector<std::string>> files_{};  // by source
  std::vector<std::string> caches_{};
  std::vector<Memory> memory_{};
  std::vector<std::shared_ptr<const AnyPreprocessor>> preprocessors_{};
};

/// Is what two stocks tell of each other.
struct StockDifference {
  std::string text{};         ///< one sentence; empty if there is none
  bool is_certain = false;    ///< otherwise the samples may still be the same
  bool moves_places = false;  ///< other samples stand at the places, for it is of operations
};

// Takes what comes before a character off a text, and the character.
inline std::string_view cut_before(char end, std::string_view& rest) noexcept {
  const std::size_t size = std::min(rest.find(end), rest.size());
  const std::string_view part = rest.substr(0, size);
  rest.remove_prefix(std::min(size + 1, rest.size()));
  return part;
}

// Returns the lines of files and memory, which stocks of every version have.
[[nodiscard]] inline std::string contents_of_stock(std::string_view stock) {
  std::string contents;
  while (!stock.empty()) {
    const std::string_view line = cut_before('\n', stock);
    if (line.starts_with("F ") || line.starts_with("f ") || line.starts_with("m ")) contents.append(line).append("\n");
  }
  return contents;
}

// Of stocks whose lines of operations follow.
[[nodiscard]] inline StockDifference difference_of_operations(std::string_view then, std::string_view now) {
  while (then.starts_with("o ") || now.starts_with("o ")) {
    std::string_view old_line = then.starts_with("o ") ? cut_before('\n', then) : std::string_view{};
    std::string_view new_line = now.starts_with("o ") ? cut_before('\n', now) : std::string_view{};
    if (old_line == new_line) continue;
    for (std::string_view* line : {&old_line, &new_line}) {
      cut_before(' ', *line);
      cut_before(' ', *line);
    }
    if (old_line == new_line) {
      return {compose("its {} gives other samples, or another order: by another seed, or it is another part", new_line),
              true, true};
    }
    if (old_line.empty()) return {compose("it has a {} that it had not", new_line), true, true};
    if (new_line.empty()) return {compose("it had a {} that it has not", old_line), true, true};
    return {compose("where it had a {} it has a {}", old_line, new_line), true, true};
  }
  return {"it is put together of other datasets, or by other operations", true, true};
}

// Of lines of one kind, which is cut off; nothing if it cannot be told that the samples are others.
[[nodiscard]] inline StockDifference difference_of_lines(std::string_view kind, std::string_view then,
                                                         std::string_view now) {
  const std::string_view old_first = cut_before(' ', then);
  const std::string_view first = cut_before(' ', now);
  if (kind == "s") return {"a source of it has other settings"};
  if (kind == "F") {
    return {old_first != first ? compose("it was read from {} file(s) and is from {}", old_first, first)
                               : "it is read from files of other names",
            true};
  }
  if (kind == "m" || kind == "e") {
    if (then != now) return {compose("it was {} and is {}", then, now), true};
    return {compose("the {} in memory of {} are others", kind == "m" ? "numbers" : "lengths", now)};
  }
  const std::string_view old_digest = cut_before(' ', then);
  const std::string_view digest = cut_before(' ', now);
  cut_before(' ', then);
  cut_before(' ', now);
  if (then != now) return {"it is read from files of other names", true};
  if (old_first != first) return {compose("the file {} had {} bytes and has {}", now, old_first, first), true};
  if (old_digest != digest) return {compose("the file {} holds other bytes", now), true};
  return {compose("the file {} has been written to since, or is a copy, and only parts of it were compared", now)};
}

/// Returns the first difference that is certain, or else the first one. Of a stock of another version, files and memory
/// alone are compared.
[[nodiscard]] inline StockDifference difference_of_stocks(std::string_view then, std::string_view now) {
  std::string old_contents;
  std::string contents;
  if (then.substr(0, then.find('\n')) != now.substr(0, now.find('\n'))) {
    then = old_contents = contents_of_stock(then);
    now = contents = contents_of_stock(now);
  }
  StockDifference found;
  while (!(then.empty() && now.empty())) {
    std::string_view old_line = cut_before('\n', then);
    std::string_view new_line = cut_before('\n', now);
    if (old_line == new_line) continue;
    const std::string_view kind = cut_before(' ', new_line);
    if (kind != cut_before(' ', old_line) || kind.empty()) return {"it is made of other things", true};
    if (kind == "O") return difference_of_operations(then, now);
    StockDifference difference = difference_of_lines(kind, old_line, new_line);
    if (difference.is_certain) return difference;
    if (found.text.empty()) found = std::move(difference);
  }
  return found;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
