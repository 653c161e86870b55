// SPDX-License-Identifier: MIT
// What the sources share whose files hold arrays: IDX, NPY, NPZ, CIFAR and safetensors. Data room.
#pragma once

#include "railyard/data/detail/array_table.hpp"
#include "railyard/data/detail/option_columns.hpp"
#include "railyard/data/detail/stored_file.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Names files that are read at any place, or compressed ones, which are unpacked to memory first.
struct ArrayFiles {
  InputFiles files;
  detail::OpenBytes open = nullptr;

  template <std::convertible_to<InputFiles> Files>
  ArrayFiles(Files&& files_) : files(std::forward<Files>(files_)) {}
  ArrayFiles(CompressedFiles compressed) : files(std::move(compressed.files)), open(compressed.open) {}
};

/// Says what all files of arrays have in common.
struct ArraySourceOptions {
  std::string label{};
  OnError on_error = OnError::stop();  ///< a damaged file is left out as a whole, and counts as one
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;  ///< that a compressed file may become in memory
};

/// Gives slices of arrays as samples, in any order: each is read where it lies in its file. Looks at the files when it
/// is first asked for something; they are not to change as long as there is a source of them. What compressed files
/// hold is in memory from then on, shared by all copies of the source and inherited by forked workers.
class ArraySource {
 public:
  static constexpr bool costs_a_copy = true;  ///< samples lie ready

  /// Returns the arrays of files that belong together, one of each list. Throws: DataError.
  using Parse = std::function<std::vector<detail::StoredArray>(
      std::span<const std::shared_ptr<const detail::StoredFile>> files, const ArraySourceOptions& options)>;

  /// name: of the format, for messages. lists: of files whose columns stand side by side.
  ArraySource(std::string name, std::vector<ArrayFiles> lists, ArraySourceOptions options, Parse parse)
      : shared_(std::make_shared<Shared>(std::move(name), std::move(lists), std::move(options), std::move(parse))) {}

  /// Throws: DataError if a file cannot be read or is damaged.
  [[nodiscard]] Schema schema() const { return *shared_->table().schema(); }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return shared_->table().count(); }
  [[nodiscard]] std::string describe() const {
    return detail::compose("{} {}", shared_->name, shared_->lists.front().files.describe());
  }
  /// The paths of the files that it reads, list after list.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> all;
    for (const ArrayFiles& list : shared_->lists) {
      for (std::string& path : list.files.expand()) all.push_back(std::move(path));
    }
    return all;
  }
  [[nodiscard]] const std::string& label() const { return shared_->options.label; }
  /// Another when the options are that say which files are left out.
  [[nodiscard]] std::uint64_t fingerprint() const {
    return detail::fingerprint_of(shared_->options.on_error, shared_->options.max_unpacked_bytes);
  }
  /// How many damaged files were left out.
  [[nodiscard]] std::uint64_t skipped() const { return shared_->skips.count(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const {
    return std::make_unique<Reader>(shared_, from);
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    const detail::ArrayTable& table = shared_->table();
    for (const std::uint64_t id : ids) {
      if (id < table.count()) continue;
      throw ConfigError{
          detail::compose("{} has {} samples and was asked for sample {}", describe(), table.count(), id)};
    }
    return table.read(ids);
  }

 private:
  struct Shared {
    Shared(std::string name_, std::vector<ArrayFiles> lists_, ArraySourceOptions options_, Parse parse_)
        : name(std::move(name_)), lists(std::move(lists_)), options(std::move(options_)), parse(std::move(parse_)) {}

    [[nodiscard]] const detail::ArrayTable& table() {
      const std::lock_guard lock{mutex};
      if (loaded.empty()) loaded = load();
      return loaded;
    }

    [[nodiscard]] detail::ArrayTable load() const {
      std::vector<std::vector<std::string>> paths;
      for (const ArrayFiles& list : lists) {
        paths.push_back(list.files.expand_files());
        if (paths.back().size() == paths.front().size()) continue;
        throw ConfigError{detail::compose("{}: there are {} files {} and {} files {}: name as many of each", name,
                                          paths.front().size(), lists.front().files.describe(), paths.back().size(),
                                          list.files.describe())};
      }
      detail::ArrayTable table;
      std::uint64_t damaged = 0;
      for (std::size_t file = 0; file < paths.front().size(); ++file) {
        try {
          table.add(load_part(paths, file));
        } catch (const DataError& error) {
          if (++damaged > options.on_error.max_skips()) throw;
          skips.raise_to(damaged);
          if (table.empty() && file + 1 == paths.front().size()) {
            throw DataError{detail::compose("{}. That was the last of {} files, none of which can be read",
                                            error.what(), paths.front().size())};
          }
        }
      }
      if (!options.label.empty()) {
        const std::string where = detail::compose("{} {}", name, lists.front().files.describe());
        (void)detail::column_of_option(where, ".label", *table.schema(), options.label);
      }
      return table;
    }
    [[nodiscard]] std::vector<detail::StoredArray> load_part(const std::vector<std::vector<std::string>>& paths,
                                                             std::size_t file) const {
      constexpr std::size_t most_kept_open = 64;
      std::vector<std::shared_ptr<const detail::StoredFile>> files;
      for (std::size_t list = 0; list < lists.size(); ++list) {
        const std::string& path = paths[list][file];
        files.push_back(std::make_shared<const detail::StoredFile>(
            lists[list].open == nullptr
                ? detail::StoredFile{path, paths.size() * paths.front().size() <= most_kept_open}
                : detail::StoredFile::unpack(path, lists[list].open, options.max_unpacked_bytes)));
      }
      return parse(files, options);
    }

    std::string name;
    std::vector<ArrayFiles> lists;
    ArraySourceOptions options;
    Parse parse;
    SkipCount skips{};
    std::mutex mutex{};
    detail::ArrayTable loaded{};
  };

  class Reader final : public BlockReader {
   public:
    Reader(std::shared_ptr<Shared> shared, std::uint64_t from)
        : shared_(std::move(shared)), at_(std::min(from, shared_->table().count())) {
      std::size_t row = 1;
      for (const Field& field : *shared_->table().schema()) row += field.width() * size_of(field.dtype);
      most_rows_ = std::max<std::size_t>((std::size_t{16} << 20) / row, 1);
    }
    [[nodiscard]] Block next(std::size_t most_rows) override {
      const detail::ArrayTable& table = shared_->table();
      std::vector<std::uint64_t> ids(
          static_cast<std::size_t>(std::min<std::uint64_t>(std::min(most_rows, most_rows_), table.count() - at_)));
      std::iota(ids.begin(), ids.end(), at_);
      at_ += ids.size();
      return table.read(ids);
    }

   private:
    std::shared_ptr<Shared> shared_;
    std::uint64_t at_;
    std::size_t most_rows_ = 1;
  };

  std::shared_ptr<Shared> shared_;
};
static_assert(IndexedSource<ArraySource>);

}  // namespace railyard::inline v0_1
