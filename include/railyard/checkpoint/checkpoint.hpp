// SPDX-License-Identifier: MIT
// A checkpoint to read from. Checkpoint room.
//
// It is a directory of
//   manifest.json                 what it is, and which files make it whole, with their sizes and checksums
//   state.json                    the values of the parts that all ranks have
//   net.safetensors               the tensors of such a part, "net", but for those in pieces
//   state.rank-0.json             where the pieces of rank 0 lie in the whole, the values of parts that are its own
//   optimizer.rank-0.safetensors  its pieces, or the tensors of a part that is its own
//   files/                        what the user has added
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/input_file.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/json_values.hpp"
#include "railyard/checkpoint/detail/manifest_text.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/detail/pieces.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/checkpoint/manifest.hpp"
#include "railyard/checkpoint/safetensors.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/file.h>
#include <sys/stat.h>

namespace railyard::inline v0_1 {

/// Is a complete checkpoint. Copies are cheap; while one of them lives, here or in a process that was forked meanwhile,
/// retention leaves the checkpoint's files alone, unless it comes from peek().
class Checkpoint {
 public:
  /// Reads the manifest and compares the sizes of all files.
  /// Throws: DataError that names the file, says what is wrong with it and what to do; Error if a file may be whole,
  /// but cannot be opened.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory) {
    return open(directory, std::make_shared<detail::Files>());
  }
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory,
                                       const std::shared_ptr<detail::Files>& files) {
    return Checkpoint{read_contents(directory, files)};
  }

  /// Does the same, but keeps no file open, so that retention knows nothing of it. For those who look at many.
  [[nodiscard]] static Checkpoint peek(const std::filesystem::path& directory) {
    return peek(directory, std::make_shared<detail::Files>());
  }
  [[nodiscard]] static Checkpoint peek(const std::filesystem::path& directory,
                                       const std::shared_ptr<detail::Files>& files) {
    auto contents = read_contents(directory, files);
    contents->lock.reset();
    return Checkpoint{std::move(contents)};
  }

  /// Is a checkpoint that was never written: the files are read from memory which must outlive it. path: what messages
  /// call it.
  [[nodiscard]] static Checkpoint in_memory(const std::filesystem::path& path, Manifest manifest,
                                            const std::map<std::string, ReadPart>& files) {
    auto contents = std::make_shared<Contents>();
    contents->path = path;
    for (const auto& [name, part] : files) {
      manifest.files.push_back({.name = name, .size = part.size});
      contents->in_memory[name] = std::make_shared<const detail::InputFile>(path / name, part);
    }
    contents->manifest = std::move(manifest);
    return Checkpoint{std::move(contents)};
  }

  /// Reads all files and compares their checksums; those in memory have none.
  /// Throws: DataError that names the file that is damaged.
  void verify() const {
    if (is_in_memory()) return;
    for (const ManifestFile& file : manifest().files) {
      const std::uint32_t checksum = input(file.name)->checksum();
      if (checksum != file.crc32c) {
        detail::throw_damaged(path() / file.name, detail::compose("its content has changed: its CRC-32C is {:08x} and "
                                                                  "should be {:08x}",
                                                                  checksum, file.crc32c));
      }
    }
  }

  [[nodiscard]] const Manifest& manifest() const& noexcept { return contents_->manifest; }
  [[nodiscard]] Manifest manifest() && { return contents_->manifest; }  // outlives a checkpoint without a name
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return contents_->path; }

  /// The names of all parts, those that each rank has for itself included.
  [[nodiscard]] std::vector<std::string> parts() const {
    std::vector<std::string> all;
    for (const ManifestFile& file : manifest().files) {
      if (file.name != detail::state_name && !rank_of(file)) continue;
      const auto names = reading_states(file.name, [](const detail::Json& states) { return states.names(); });
      all.insert(all.end(), names.begin(), names.end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  [[nodiscard]] bool contains(std::string_view part) const {
    const auto all = parts();
    return std::find(all.begin(), all.end(), part) != all.end();
  }

  /// Returns the state of a part, or nothing if there is none. The pieces of all ranks are one tensor again. Of a part
  /// that each rank has for itself, that of this rank, or nothing. Tensors are read from the files when their read
  /// function is called, which may be after the last copy of the checkpoint is gone. Ranks of a host that load at once
  /// take the bytes from the storage once, where the system keeps what it has read: each copies them from there to
  /// their place. Throws: DataError if a file is damaged, or elements of a tensor are in none of them.
  [[nodiscard]] std::optional<State> load(std::string_view part, int rank) const {
    if (auto values = values_in(std::string{detail::state_name}, part)) {
      State state;
      state.values = std::move(*values);
      add_tensors(state, detail::tensors_name(part));
      add_pieces(state, part);
      return state;
    }
    if (auto values = values_in(detail::state_name_of(rank), part)) {
      State state;
      state.is_own = true;
      state.values = std::move(*values);
      add_tensors(state, detail::tensors_name(part, rank));
      return state;
    }
    return std::nullopt;
  }

  /// Puts the state of a part into an object that is made as the one was that was saved.
  /// Throws: ConfigError that lists the parts if there is none of that name, or if it does not fit; as load().
  /// Example: ry::Checkpoint::open(path).load_into("net", net);
  template <HasState T>
  void load_into(std::string_view part, T& object, int rank = 0) const {
    const std::optional<State> state = load(part, rank);
    if (!state) {
      throw ConfigError{detail::compose("{} has no part \"{}\" for rank {}: its parts are {}", path().string(), part,
                                        rank, detail::joined(parts(), ", "))};
    }
    StateAccess<T>::put(object, *state);
  }

  /// Puts what was learned of the samples of a dataset of the Trainer (Dataset::transform(), there or in the training
  /// function) into preprocessors that are made as those were: into one, or into a Chain of all that learn, in the
  /// order of transform(). Throws: ConfigError that lists the datasets if nothing was learned of that one, or if it
  /// does not fit; as load(). Example: ry::Checkpoint::open(path).load_preprocessor("train", scaler);
  template <HasState T>
  void load_preprocessor(std::string_view dataset, T& preprocessor) const {
    if (const auto state = preprocessor_state(dataset)) return StateAccess<T>::put(preprocessor, *state);
    std::vector<std::string> datasets;
    for (const std::string& part : parts()) {
      if (part.starts_with(detail::preprocessor_prefix)) {
        datasets.push_back(part.substr(detail::preprocessor_prefix.size()));
      }
    }
    throw ConfigError{detail::compose(
        "{} has no preprocessor for the dataset \"{}\": it has them for {}; they are kept of datasets that "
        "the Trainer has by name, and of which transform() made what loaders read",
        path().string(), dataset, datasets.empty() ? "none" : detail::joined(datasets, ", "))};
  }
  /// Returns the state that load_preprocessor() puts there; nothing if there is none. Throws: as load().
  [[nodiscard]] std::optional<State> preprocessor_state(std::string_view dataset) const {
    return load(detail::preprocessor_part(dataset), 0);
  }

  /// Where the files are that the user has added.
  [[nodiscard]] std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> paths;
    for (const ManifestFile& file : manifest().files) {
      if (file.name.starts_with(detail::user_folder)) paths.push_back(path() / file.name);
    }
    return paths;
  }

 private:
  struct Contents {
    std::filesystem::path path{};
    std::shared_ptr<detail::Files> files{};
    Manifest manifest{};
    std::shared_ptr<const detail::InputFile> lock{};
    std::map<std::string, std::shared_ptr<const detail::InputFile>> in_memory{};
  };

  explicit Checkpoint(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  [[nodiscard]] static std::shared_ptr<Contents> read_contents(const std::filesystem::path& directory,
                                                               const std::shared_ptr<detail::Files>& files) {
    auto contents = std::make_shared<Contents>();
    contents->path = std::filesystem::absolute(directory);
    contents->files = files;
    contents->lock = detail::InputFile::open(contents->path, detail::manifest_name, files);
    lock(*contents->lock, *files);
    const std::string text = contents->lock->text(detail::max_manifest_size);
    contents->manifest = detail::reading(contents->lock->path(), [&] { return detail::read_manifest(text); });
    for (const ManifestFile& file : contents->manifest.files) {
      const auto size = detail::InputFile::open(contents->path, file.name, files)->size();
      if (size != file.size) {
        detail::throw_damaged(contents->path / file.name,
                              detail::compose("it has {} bytes and should have {}", size, file.size));
      }
    }
    return contents;
  }

  // Whoever wants to remove the checkpoint takes the lock for himself alone. Where there are no locks at all, nobody
  // can be kept from it.
  static void lock(const detail::InputFile& manifest, detail::Files& files) {
    const int fd = manifest.descriptor();
    const auto take = [&] { return files.lock(fd, LOCK_SH | LOCK_NB); };
    if (detail::uninterrupted(take) != 0 && errno == EWOULDBLOCK) {
      throw detail::RemovedError{manifest.path()};
    }
    struct stat opened {};
    if (detail::uninterrupted([&] { return files.status_of(fd, opened); }) != 0) {
      detail::throw_unreadable(manifest.path(), errno);
    }
    const auto named = detail::status_of(files, manifest.path());
    if (!named || opened.st_ino != named->st_ino) throw detail::RemovedError{manifest.path()};
  }

  [[nodiscard]] std::shared_ptr<const detail::InputFile> input(const std::string& name) const {
    const auto found = contents_->in_memory.find(name);
    return found == contents_->in_memory.end() ? detail::InputFile::open(path(), name, contents_->files)
                                               : found->second;
  }

  [[nodiscard]] bool has_file(std::string_view name) const {
    const auto& files = manifest().files;
    return std::any_of(files.begin(), files.end(), [name](const ManifestFile& file) { return file.name == name; });
  }

  [[nodiscard]] bool is_in_memory() const noexcept { return !contents_->in_memory.empty(); }

  static std::optional<int> rank_of(const ManifestFile& file) {
    return detail::number_between<int>("state.rank-", file.name, ".json");
  }

  // Calls read with the parts of a file of states, whose checksum is looked at each time: it is small.
  template <class Read>
  std::invoke_result_t<const Read&, const detail::Json&> reading_states(const std::string& name,
                                                                        const Read& read) const {
    const auto file = input(name);
    return detail::reading(file->path(), [&] {
      const std::string text = file->text(detail::max_manifest_size);
      const auto& files = manifest().files;
      const auto entry = std::find_if(files.begin(), files.end(), [&](auto& listed) { return listed.name == name; });
      if (!is_in_memory() && detail::crc32c(std::as_bytes(std::span{text})) != entry->crc32c) {
        throw detail::Damage{"its content has changed"};
      }
      return read(detail::parse_json(text).at("parts"));
    });
  }

  [[nodiscard]] std::optional<NamedValues> values_in(const std::string& name, std::string_view part) const {
    if (!has_file(name)) return std::nullopt;
    return reading_states(name, [part](const detail::Json& states) -> std::optional<NamedValues> {
      const detail::Json* state = states.find(part);
      const detail::Json* values = state == nullptr ? nullptr : state->find("values");
      if (values == nullptr) return std::nullopt;
      return detail::read_values(*values);
    });
  }

  void add_tensors(State& state, const std::string& name) const {
    if (has_file(name)) state.tensors = detail::tensors_in(input(name));
  }

  void add_pieces(State& state, std::string_view part) const {
    std::map<std::string, detail::Pieces> tensors;
    for (const ManifestFile& file : manifest().files) {
      const auto rank = rank_of(file);
      if (!rank) continue;
      const auto places = reading_states(file.name, [part](const detail::Json& states) {
        const detail::Json* of_part = states.find(part);
        const detail::Json* pieces = of_part == nullptr ? nullptr : of_part->find("pieces");
        return pieces == nullptr ? std::vector<detail::PiecePlace>{} : detail::read_piece_places(*pieces);
      });
      if (places.empty()) continue;
      const auto data = input(detail::tensors_name(part, *rank));
      detail::add_pieces(tensors, places, data);
    }
    for (auto& [name, pieces] : tensors) {
      state.tensors.push_back(
          std::move(pieces).assemble(path() / detail::compose("{}.rank-*.safetensors", part), name));
    }
  }

  std::shared_ptr<const Contents> contents_;
};

}  // namespace railyard::inline v0_1
