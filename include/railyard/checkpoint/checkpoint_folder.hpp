// SPDX-License-Identifier: MIT
// The checkpoints of a run: committed whole or not at all, listed, and thinned out. Checkpoint room.
#pragma once

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/manifest_text.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/detail/seen_checkpoints.hpp"
#include "railyard/checkpoint/detail/staging.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/checkpoint/manifest.hpp"
#include "railyard/checkpoint/part_bytes.hpp"
#include "railyard/checkpoint/part_writers.hpp"
#include "railyard/checkpoint/retention.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

namespace railyard::inline v0_1 {

/// Is the folder in which the checkpoints of a run lie: checkpoint-000001 and so on. Used by one thread at a time.
class CheckpointFolder {
 public:
  /// Is one file of a checkpoint: its name, relative to the checkpoint's directory, and its bytes.
  struct Part {
    std::string name{};
    PartBytes bytes{};
  };

  /// folder: made by the first commit; the directory in which it lies must exist and be durable.
  /// generation: grows with each program that takes the run over, so that what an earlier one has left can be told.
  explicit CheckpointFolder(std::filesystem::path folder, std::uint64_t generation = 0,
                            std::shared_ptr<detail::Files> files = std::make_shared<detail::Files>())
      : folder_(std::filesystem::absolute(folder)), generation_(generation), files_(std::move(files)) {}

  /// Does the run still belong to this program? Is asked right before a checkpoint becomes visible.
  std::function<bool()> still_mine{};

  /// Makes a checkpoint of the parts and returns its directory once it is durable. Names of parts that begin with
  /// "files/" are the user's own files. others: who may write some of the parts.
  /// Throws: Error that names the file, what went wrong and what to do: all other checkpoints are as they were then,
  /// and what was written is removed. Only if the very last call fails, the fsync of the folder, the checkpoint is
  /// there, but may not survive a power cut. ConfigError for names that cannot be.
  std::filesystem::path commit(Manifest manifest, std::span<const Part> parts, PartWriters* others = nullptr) {
    check_names(parts);
    complete(manifest);
    make_folder();
    const std::string name = detail::compose("{}{}-{}", staging_prefix, generation_, manifest.id);
    detail::Staging staging{*files_, folder_ / name, trash_of(name)};
    try {
      fill(staging, manifest, parts, others);
    } catch (const Error&) {
      check_still_mine();  // whoever has taken the run over removes what is written here
      throw;
    }
    check_still_mine();
    auto path = publish(staging, manifest.id);
    detail::sync_directory(*files_, folder_);
    return path;
  }

  /// Returns the complete checkpoints, oldest first. Damaged ones are left out: see problems(). Cost: a descriptor
  /// each.
  [[nodiscard]] std::vector<Checkpoint> list() const { return all(&Checkpoint::open); }

  /// Returns the newest complete checkpoint, also while a program commits and removes them.
  [[nodiscard]] std::optional<Checkpoint> newest() const {
    auto all = numbers();
    while (!all.empty()) {
      for (auto number = all.rbegin(); number != all.rend(); ++number) {
        if (auto checkpoint = open(path_of(*number), &Checkpoint::open)) return checkpoint;
      }
      // Those that have been removed meanwhile have made room for newer ones.
      auto later = numbers();
      if (later == all) return std::nullopt;
      all = std::move(later);
    }
    return std::nullopt;
  }

  /// Returns the newest checkpoint whose checksums are right, those of this generation unseen: this program has written
  /// them. problems gets what is wrong with newer ones.
  [[nodiscard]] std::optional<Checkpoint> newest_whole(std::vector<std::string>& problems) const {
    const auto all = numbers();
    for (auto number = all.rbegin(); number != all.rend(); ++number) {
      auto checkpoint = open(path_of(*number), &Checkpoint::open, &problems);
      if (!checkpoint) continue;
      try {
        if (checkpoint->manifest().generation != generation_) checkpoint->verify();
        return checkpoint;
      } catch (const DataError& error) {
        problems.emplace_back(error.what());
      }
    }
    return std::nullopt;
  }

  /// Says what is wrong with the checkpoints that list() leaves out.
  [[nodiscard]] std::vector<std::string> problems() const {
    std::vector<std::string> all;
    for (const std::uint64_t number : numbers()) open(path_of(number), &Checkpoint::open, &all);
    return all;
  }

  /// Returns the highest generation that has left something here; 0 if none has.
  [[nodiscard]] std::uint64_t last_generation() const {
    std::uint64_t last = 0;
    for (const std::string& name : names()) last = std::max(last, generation_of(name).value_or(0));
    for (const std::uint64_t number : numbers()) {
      if (const auto checkpoint = open(path_of(number), &Checkpoint::peek)) {
        last = std::max(last, checkpoint->manifest().generation);
      }
    }
    return last;
  }

  /// Says why checkpoints here would not last, such as "it is kept in memory, ..."; nothing if no reason is known.
  [[nodiscard]] std::string_view doubt() const { return detail::doubt_about(folder_.parent_path()); }

  /// Removes what unfinished commits and removals of this or an earlier generation have left. To be called when the run
  /// has been taken over, before looking for the newest checkpoint: from then on nobody of an earlier generation can
  /// finish a commit that he has begun; and at the end, when nothing is written any more. Returns what cannot be
  /// removed, a sentence each: it harms nobody. Throws: Error if a commit cannot be taken from whoever has begun it.
  std::vector<std::string> sweep() {
    std::vector<std::filesystem::path> rubbish;
    for (const std::string& name : names()) {
      const auto generation = generation_of(name);
      if (!generation || *generation > generation_) continue;
      rubbish.push_back(folder_ / name);
      if (name.starts_with(trash_prefix)) continue;
      // In one step: were it gone file by file, its owner could still give it the name of a checkpoint meanwhile.
      auto trash = trash_of(name);
      if (detail::uninterrupted([&] { return files_->rename(rubbish.back(), trash); }) == 0) {
        rubbish.back() = std::move(trash);
      } else if (const int error = errno; detail::remove_all(*files_, rubbish.back()) != 0) {
        detail::throw_storage(rubbish.back(), {"rename", error});
      }
    }
    return remove(rubbish);
  }

  /// Removes all complete checkpoints but the best and the newest; those that somebody reads stay for now. A damaged
  /// one is none of the best, and stays as well: see best(). Throws: Error if one cannot be removed, or if a damaged
  /// one has been found.
  void retain(const Retention& retention) {
    constexpr std::size_t most_at_once = 16;  // each costs a descriptor
    std::vector<std::string> problems;
    const auto surplus = surplus_of(retention, problems);
    for (std::size_t begin = 0; begin < surplus.size(); begin += most_at_once) {
      const auto size = std::min(most_at_once, surplus.size() - begin);
      const std::vector<Doomed> doomed = take_away(std::span{surplus}.subspan(begin, size));
      if (doomed.empty()) continue;
      // Before that is durable no file may go: a power cut could bring the old name back.
      detail::sync_directory(*files_, folder_);
      std::vector<std::filesystem::path> trash;
      for (const Doomed& one : doomed) trash.push_back(one.trash);
      if (const auto left = remove(trash); !left.empty()) throw Error{left.front()};
    }
    for (const std::string& problem : problems) {  // each once, though it is there the next time as well
      if (!told_.insert(problem).second) continue;
      throw Error{detail::compose("{}; it counts no more as one of the best", problem)};
    }
  }

  /// Returns the checkpoints that retention would keep for their score, best first. Those of earlier generations are
  /// read, each once, and left out if their checksums are wrong: problems gets what is wrong with them. Those of a
  /// retention that keeps all come from Checkpoint::peek(), and only the best of them is read: there may be thousands.
  /// Throws: Error if one may be whole, but cannot be opened.
  [[nodiscard]] std::vector<Checkpoint> best(const Retention& retention, std::vector<std::string>& problems) const {
    auto best = detail::ranked(all(&Checkpoint::peek), retention);
    if (retention.keep == 0) {
      while (!best.empty() && !is_whole(best.front(), problems)) best.erase(best.begin());
      return best;
    }
    std::vector<Checkpoint> held;
    for (const Checkpoint& one : best) {
      if (held.size() == static_cast<std::size_t>(retention.keep)) break;
      if (!is_whole(one, problems)) continue;
      if (auto checkpoint = open(one.path(), &Checkpoint::open)) held.push_back(std::move(*checkpoint));
    }
    return held;
  }

 private:
  static constexpr std::string_view checkpoint_prefix = "checkpoint-";
  static constexpr std::string_view staging_prefix = ".staging-";
  static constexpr std::string_view trash_prefix = ".trash-";

  /// Is a checkpoint on its way out, and the lock that keeps readers from it.
  struct Doomed {
    std::filesystem::path trash{};
    detail::Descriptor lock{};
  };

  static void check_names(std::span<const Part> parts) {
    std::set<std::string_view> names{detail::manifest_name};
    for (const Part& part : parts) {
      std::string_view fault = detail::fault_of_path(part.name);
      if (fault.empty() && !names.insert(part.name).second) fault = "the name is taken";
      if (fault.empty()) continue;
      throw ConfigError{
          detail::compose("a checkpoint cannot have a file \"{}\": {}", detail::printable(part.name), fault)};
    }
  }

  void make_folder() {
    if (is_made_) return;
    const int result = detail::uninterrupted([&] { return files_->make_directory(folder_); });
    if (result != 0 && errno != EEXIST) detail::throw_storage(folder_, {"making the directory", errno});
    // Also if it was there: perhaps somebody has made it who came no further than that.
    detail::sync_directory(*files_, folder_.parent_path());
    is_made_ = true;
  }

  void complete(Manifest& manifest) const {
    if (manifest.id.empty()) {
      std::random_device random;
      manifest.id = detail::compose("{:08x}{:08x}", random(), random());
    }
    if (const auto fault = detail::fault_of_name(manifest.id); !fault.empty()) {
      throw ConfigError{detail::compose("Manifest::id is \"{}\": {}", detail::printable(manifest.id), fault)};
    }
    if (manifest.created_at.empty()) {
      const std::time_t now = std::time(nullptr);
      std::tm parts{};
      ::gmtime_r(&now, &parts);
      char text[32];
      manifest.created_at.assign(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
    }
    manifest.generation = generation_;
    manifest.files.clear();
  }

  static void fill(detail::Staging& staging, Manifest& manifest, std::span<const Part> parts, PartWriters* others) {
    for (const Part& part : parts) staging.make_folders(part.name);
    manifest.files = others == nullptr ? write(staging.parts(), parts) : write(staging, parts, *others);
    const std::string text = detail::manifest_text(manifest);
    staging.parts().write(std::string{detail::manifest_name}, std::as_bytes(std::span{text}));
    staging.seal();
  }

  static std::vector<ManifestFile> write(detail::PartFiles& files, std::span<const Part> parts) {
    std::vector<ManifestFile> written;
    for (const Part& part : parts) written.push_back(files.write(part.name, part.bytes));
    return written;
  }

  static std::vector<ManifestFile> write(detail::Staging& staging, std::span<const Part> parts, PartWriters& others) {
    const std::set<std::string> theirs = others.begin(staging.path());
    std::map<std::string, ManifestFile> written;
    try {
      for (const Part& part : parts) {
        if (!theirs.contains(part.name)) written[part.name] = staging.parts().write(part.name, part.bytes);
      }
    } catch (...) {
      others.finish();  // what they still write would stay
      throw;
    }
    for (ManifestFile& file : others.finish()) written.try_emplace(file.name, std::move(file));
    std::vector<ManifestFile> files;
    for (const Part& part : parts) {
      const auto found = written.find(part.name);
      if (found != written.end() && found->second.size == part.bytes.size()) {
        files.push_back(std::move(found->second));
        continue;
      }
      staging.parts().remove(part.name);
      files.push_back(staging.parts().write(part.name, part.bytes));
    }
    return files;
  }

  void check_still_mine() const {
    if (!still_mine || still_mine()) return;
    throw Error{
        detail::compose("{}: another program has taken this run over while a checkpoint was written, which is given "
                        "up: end this program",
                        folder_.string())};
  }

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t number) const {
    return folder_ / detail::compose("{}{:06}", checkpoint_prefix, number);
  }

  [[nodiscard]] std::filesystem::path trash_of(std::string_view name) const {
    return folder_ / detail::compose("{}{}-{}", trash_prefix, generation_, name);
  }

  std::filesystem::path publish(detail::Staging& staging, const std::string& id) {
    const auto taken = numbers();
    for (std::uint64_t number = taken.empty() ? 1 : taken.back() + 1;; ++number) {
      const auto path = path_of(number);
      const int error = staging.publish(path);
      if (error == 0) return path;
      // Over a network the answer to a rename that has happened can be an error.
      if (has_id(path, id)) {
        staging.set_published();
        return path;
      }
      if (error != EEXIST && error != ENOTEMPTY) detail::throw_storage(path, {"rename", error});
    }
  }

  [[nodiscard]] bool has_id(const std::filesystem::path& path, const std::string& id) const {
    try {
      return Checkpoint::open(path, files_).manifest().id == id;
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (detail::uninterrupted([&] { return files_->list(folder_, names); }) != 0 && errno != ENOENT) {
      detail::throw_storage(folder_, {"listing the directory", errno});
    }
    return names;
  }

  [[nodiscard]] std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const std::string& name : names()) {
      const auto number = detail::number_between<std::uint64_t>(checkpoint_prefix, name, "");
      if (number && path_of(*number).filename() == name) numbers.push_back(*number);
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  static std::optional<std::uint64_t> generation_of(std::string_view name) {
    for (const auto prefix : {staging_prefix, trash_prefix}) {
      if (!name.starts_with(prefix)) continue;
      const auto dash = name.find('-', prefix.size());
      if (dash == std::string_view::npos) return std::nullopt;
      return detail::number_between<std::uint64_t>(prefix, name.substr(0, dash), "");
    }
    return std::nullopt;
  }

  using Read = Checkpoint (*)(const std::filesystem::path&, const std::shared_ptr<detail::Files>&);

  std::optional<Checkpoint> open(const std::filesystem::path& path, Read read,
                                 std::vector<std::string>* problems = nullptr) const {
    try {
      return read(path, files_);
    } catch (const detail::RemovedError&) {
    } catch (const DataError& error) {
      struct stat status {};
      const auto look = [&] { return files_->status(path, status); };
      const bool is_gone = detail::uninterrupted(look) != 0 && errno == ENOENT;
      if (problems != nullptr && !is_gone) problems->emplace_back(error.what());
    }
    return std::nullopt;
  }

  [[nodiscard]] std::vector<Checkpoint> all(Read read, std::vector<std::string>* problems = nullptr) const {
    std::vector<Checkpoint> all;
    for (const std::uint64_t number : numbers()) {
      if (auto checkpoint = open(path_of(number), read, problems)) all.push_back(std::move(*checkpoint));
    }
    return all;
  }

  [[nodiscard]] bool is_whole(const Checkpoint& checkpoint, std::vector<std::string>& problems) const {
    if (checkpoint.manifest().generation == generation_) return true;  // this program has written it
    try {
      std::string fault = seen_.fault_of(checkpoint, files_);
      if (fault.empty()) return true;
      problems.push_back(std::move(fault));
    } catch (const detail::RemovedError&) {
    }
    return false;
  }

  [[nodiscard]] std::vector<std::filesystem::path> surplus_of(const Retention& retention,
                                                              std::vector<std::string>& problems) const {
    if (retention.keep == 0) return {};
    const auto all_there = all(&Checkpoint::peek, &problems);
    std::set<std::filesystem::path> kept;
    int num_best = 0;
    for (const Checkpoint& checkpoint : detail::ranked(all_there, retention)) {
      if (num_best == retention.keep) break;
      if (is_whole(checkpoint, problems)) ++num_best;
      kept.insert(checkpoint.path());  // of a damaged one, too, something may still be saved
    }
    std::vector<std::filesystem::path> surplus;
    for (std::size_t i = 0; i + 1 < all_there.size(); ++i) {  // the last is the newest
      if (!kept.contains(all_there[i].path())) surplus.push_back(all_there[i].path());
    }
    return surplus;
  }

  // Renames what need not be kept, so that it is complete or absent whatever happens while its files are removed.
  std::vector<Doomed> take_away(std::span<const std::filesystem::path> surplus) {
    std::vector<Doomed> doomed;
    for (const auto& path : surplus) {
      const auto manifest = path / detail::manifest_name;
      detail::Descriptor lock{detail::uninterrupted([&] { return files_->open(manifest, O_RDWR); })};
      const auto take = [&] { return files_->lock(lock.get(), LOCK_EX | LOCK_NB); };
      if (detail::uninterrupted(take) != 0 && errno == EWOULDBLOCK) continue;
      auto trash = trash_of(path.filename().string());
      detail::check_call(detail::uninterrupted([&] { return files_->rename(path, trash); }), "rename", path);
      doomed.push_back({std::move(trash), std::move(lock)});
    }
    return doomed;
  }

  // Returns what cannot be.
  std::vector<std::string> remove(const std::vector<std::filesystem::path>& paths) {
    std::vector<std::string> left;
    for (const auto& path : paths) {
      const int error = detail::remove_all(*files_, path);
      if (error == 0) continue;
      left.push_back(detail::compose("{} cannot be removed: {}; the next start tries again", path.string(),
                                     detail::explain_errno(error)));
    }
    return left;
  }

  std::filesystem::path folder_;
  std::uint64_t generation_;
  std::shared_ptr<detail::Files> files_;
  mutable detail::SeenCheckpoints seen_{};
  std::set<std::string> told_{};  // by retain()
  bool is_made_ = false;
};

/// Returns the newest complete checkpoint in the directory of a run, or nothing.
[[nodiscard]] inline std::optional<Checkpoint> newest_checkpoint(
    const std::filesystem::path& run, std::shared_ptr<detail::Files> files = std::make_shared<detail::Files>()) {
  return CheckpointFolder{run / "checkpoints", 0, std::move(files)}.newest();
}

}  // namespace railyard::inline v0_1
