// SPDX-License-Identifier: MIT
// A disk that remembers what a power cut would leave of it, and one that fails.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"

#include "support/file_content.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace railyard_test {

namespace fs = std::filesystem;

/// Is what lies in a folder, by relative path: the content of a file, or nothing for a directory.
using Tree = std::map<std::string, std::optional<std::string>>;

[[nodiscard]] inline Tree tree_of(const fs::path& root) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator{root}) {
    auto& content = tree[entry.path().lexically_relative(root).string()];
    if (!entry.is_directory()) content = file_content(entry.path());
  }
  return tree;
}

inline void write_tree(const Tree& tree, const fs::path& root) {
  for (const auto& [path, content] : tree) {  // a folder comes before what is in it
    if (!content) {
      fs::create_directory(root / path);
    } else {
      std::ofstream{root / path, std::ios::binary} << *content;
    }
  }
}

/// Is one change of the disk.
struct DiskChange {
  enum class Kind { make_directory, create, write, overwrite, cut, sync, rename, remove } kind = Kind::sync;
  std::string path{};
  std::string second{};  // the new name, or what is written
  std::size_t at = 0;    // where it is written, or what is left
};

/// Changes files for real and notes every change.
class RecordingFiles : public railyard::detail::Files {
 public:
  explicit RecordingFiles(fs::path root) : root_(std::move(root)) {}

  /// This sync, counted from 0, does not happen, though the caller is told that it has.
  int forgotten_sync = -1;

  [[nodiscard]] const std::vector<DiskChange>& changes() const { return changes_; }
  [[nodiscard]] int num_syncs() const { return num_syncs_; }

  int make_directory(const Path& path) override {
    const std::lock_guard lock{mutex_};
    return note(Files::make_directory(path), DiskChange::Kind::make_directory, path);
  }
  int create(const Path& path) override {
    const std::lock_guard lock{mutex_};
    const int fd = Files::create(path);
    if (fd >= 0) open_[fd] = relative(path);
    return note(fd, DiskChange::Kind::create, path);
  }
  int open(const Path& path, int flags) override {
    const std::lock_guard lock{mutex_};
    const bool is_new = (flags & O_CREAT) != 0 && !fs::exists(path);
    const int fd = Files::open(path, flags);
    if (fd >= 0) open_[fd] = relative(path);
    return is_new ? note(fd, DiskChange::Kind::create, path) : fd;
  }
  int open_directory(const Path& path) override {
    const std::lock_guard lock{mutex_};
    const int fd = Files::open_directory(path);
    if (fd >= 0) open_[fd] = relative(path);
    return fd;
  }
  ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) override {
    const std::lock_guard lock{mutex_};
    const ssize_t written = Files::write_at(fd, from, size, at);
    if (written > 0) {
      const std::string text{reinterpret_cast<const char*>(from), static_cast<std::size_t>(written)};
      changes_.push_back({DiskChange::Kind::overwrite, open_.at(fd), text, static_cast<std::size_t>(at)});
    }
    return written;
  }
  int truncate(int fd, off_t size) override {
    const std::lock_guard lock{mutex_};
    const int result = Files::truncate(fd, size);
    if (result == 0) changes_.push_back({DiskChange::Kind::cut, open_.at(fd), {}, static_cast<std::size_t>(size)});
    return result;
  }
  int sync_data(int fd) override { return sync(fd); }
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    const std::lock_guard lock{mutex_};
    const ssize_t written = Files::write(fd, from, size);
    if (written > 0) {
      const std::string text{reinterpret_cast<const char*>(from), static_cast<std::size_t>(written)};
      changes_.push_back({DiskChange::Kind::write, open_.at(fd), text, 0});
    }
    return written;
  }
  int sync(int fd) override {
    const std::lock_guard lock{mutex_};
    if (num_syncs_++ != forgotten_sync) changes_.push_back({DiskChange::Kind::sync, open_.at(fd), {}, 0});
    return 0;
  }
  int rename(const Path& from, const Path& to) override {
    const std::lock_guard lock{mutex_};
    const int result = Files::rename(from, to);
    if (result == 0) changes_.push_back({DiskChange::Kind::rename, relative(from), relative(to), 0});
    return result;
  }
  int unlink(const Path& path) override {
    const std::lock_guard lock{mutex_};
    return note(Files::unlink(path), DiskChange::Kind::remove, path);
  }
  int remove_directory(const Path& path) override {
    const std::lock_guard lock{mutex_};
    return note(Files::remove_directory(path), DiskChange::Kind::remove, path);
  }

 private:
  [[nodiscard]] std::string relative(const Path& path) const {
    const auto text = path.lexically_relative(root_).string();
    return text == "." ? std::string{} : text;
  }
  int note(int result, DiskChange::Kind kind, const Path& path) {
    if (result >= 0) changes_.push_back({kind, relative(path), {}, 0});
    return result;
  }

  fs::path root_;
  std::map<int, std::string> open_{};
  std::vector<DiskChange> changes_{};
  int num_syncs_ = 0;
  std::mutex mutex_{};  // a run's files are changed on several threads
};

/// Knows, after some changes, in which states a power cut can leave the disk. What was not synchronised may be there or
/// not: the entries of a directory each by itself, the content of a file in whole, in part, or as zeros.
class CrashModel {
 public:
  explicit CrashModel(const Tree& durable) : nodes_(1) {
    for (const auto& [path, content] : durable) {
      const int node = new_node();
      at(node).content = at(node).durable_content = content.value_or("");
      at(node).is_directory = !content;
      Node& folder = at(folder_of(path));
      folder.entries[name_of(path)] = node;
      folder.durable_entries[name_of(path)] = node;
    }
  }

  void apply(const DiskChange& change) {
    using Kind = DiskChange::Kind;
    switch (change.kind) {
      case Kind::make_directory:
      case Kind::create: {
        const int node = new_node();
        at(node).is_directory = change.kind == Kind::make_directory;
        change_entries(folder_of(change.path), {{}, name_of(change.path), node});
        return;
      }
      case Kind::write:
        at(find(change.path)).content += change.second;
        return;
      case Kind::overwrite: {
        std::string& content = at(find(change.path)).content;
        content.resize(std::max(content.size(), change.at + change.second.size()));
        content.replace(change.at, change.second.size(), change.second);
        return;
      }
      case Kind::cut:
        at(find(change.path)).content.resize(change.at);
        return;
      case Kind::sync: {
        Node& node = at(find(change.path));
        node.durable_content = node.content;
        node.durable_entries = node.entries;
        node.pending.clear();
        return;
      }
      case Kind::rename:  // within one directory
        change_entries(folder_of(change.path), {name_of(change.path), name_of(change.second), find(change.path)});
        return;
      case Kind::remove:
        change_entries(folder_of(change.path), {name_of(change.path), {}, -1});
        return;
    }
  }

  /// Adds all states that are possible now, or `num_drawn` drawn at random where there are more than `most`. Returns
  /// whether those are all.
  bool add_states(std::set<Tree>& states, std::size_t most, std::size_t num_drawn, std::mt19937& random) const {
    std::vector<std::size_t> num_choices;
    std::size_t product = 1;
    for (const Node& node : nodes_) {
      num_choices.push_back(choices_of(node));
      product = std::min(product * num_choices.back(), most + 1);
    }
    std::vector<std::size_t> choice(nodes_.size(), 0);
    if (product > most) {
      for (std::size_t i = 0; i < num_drawn; ++i) {
        for (std::size_t n = 0; n < choice.size(); ++n) choice[n] = random() % num_choices[n];
        states.insert(state(choice));
      }
      return false;
    }
    for (bool is_last = false; !is_last;) {
      states.insert(state(choice));
      is_last = true;
      for (std::size_t n = 0; n < choice.size() && is_last; ++n) {
        choice[n] = (choice[n] + 1) % num_choices[n];
        is_last = choice[n] == 0;
      }
    }
    return true;
  }

 private:
  struct EntryChange {
    std::string removed{};
    std::string added{};
    int node = -1;
  };
  struct Node {
    bool is_directory = true;
    std::string content{};
    std::string durable_content{};
    std::map<std::string, int> entries{};
    std::map<std::string, int> durable_entries{};
    std::vector<EntryChange> pending{};
  };

  static std::string name_of(const std::string& path) { return fs::path{path}.filename().string(); }
  [[nodiscard]] int folder_of(const std::string& path) const { return find(fs::path{path}.parent_path().string()); }
  [[nodiscard]] int find(const std::string& path) const {
    int node = 0;
    for (const auto& part : fs::path{path}) node = nodes_[static_cast<std::size_t>(node)].entries.at(part.string());
    return node;
  }
  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  int new_node() {
    nodes_.emplace_back();
    return static_cast<int>(nodes_.size()) - 1;
  }

  static void change(std::map<std::string, int>& entries, const EntryChange& change) {
    if (!change.removed.empty()) entries.erase(change.removed);
    if (!change.added.empty()) entries[change.added] = change.node;
  }
  void change_entries(int folder, const EntryChange& entry) {
    change(at(folder).entries, entry);
    at(folder).pending.push_back(entry);
  }

  static std::size_t choices_of(const Node& node) {
    if (node.is_directory) return std::size_t{1} << node.pending.size();
    return node.content == node.durable_content ? 1 : 5;
  }

  // What stays as it was durable is not touched by the rest.
  static std::string content_of(const Node& node, std::size_t choice) {
    const std::string& all = node.content;
    const std::string& durable = node.durable_content;
    const auto shorter = static_cast<std::ptrdiff_t>(std::min(all.size(), durable.size()));
    const auto same = static_cast<std::size_t>(
        std::mismatch(all.begin(), all.begin() + shorter, durable.begin()).first - all.begin());
    const std::size_t half = same + (all.size() - same) / 2;
    switch (choice) {
      case 1:
        return all;
      case 2:
        return all.substr(0, half);
      case 3:
        return all.substr(0, half) + std::string(all.size() - half, '\0');
      case 4:
        return all.substr(0, same) + std::string(half - same, '\0') + all.substr(half);
      default:
        return durable;
    }
  }

  [[nodiscard]] Tree state(const std::vector<std::size_t>& choice) const {
    Tree tree;
    add_to(tree, 0, "", choice);
    return tree;
  }
  void add_to(Tree& tree, int number, const std::string& path, const std::vector<std::size_t>& choice) const {
    const auto index = static_cast<std::size_t>(number);
    const Node& node = nodes_[index];
    if (!node.is_directory) {
      tree[path] = content_of(node, choice[index]);
      return;
    }
    if (!path.empty()) tree[path] = std::nullopt;
    auto entries = node.durable_entries;
    for (std::size_t i = 0; i < node.pending.size(); ++i) {
      if ((choice[index] >> i & 1U) != 0) change(entries, node.pending[i]);
    }
    for (const auto& [name, child] : entries) add_to(tree, child, path.empty() ? name : path + "/" + name, choice);
  }

  std::vector<Node> nodes_;  // the first is the root
};

/// Counts the moments at which the power was cut, and those of which every state that it can leave was looked at.
struct CutCount {
  std::size_t num_moments = 0;
  std::size_t num_exhaustive = 0;

  [[nodiscard]] std::string text() const {
    return "all of " + std::to_string(num_exhaustive) + " of " + std::to_string(num_moments) +
           " moments, a seeded sample of the others";
  }
};

/// Returns the states in which a power cut can leave the disk after some number of changes, of which it had `begin` at
/// least: all of them where they are few.
[[nodiscard]] inline std::set<Tree> crash_states(const Tree& before, const std::vector<DiskChange>& changes,
                                                 std::size_t begin, CutCount& count) {
  constexpr std::size_t most_at_once = 500;
  constexpr std::size_t num_drawn = 60;
  std::mt19937 random{1};
  std::set<Tree> states;
  CrashModel model{before};
  for (std::size_t i = 0; i <= changes.size(); ++i) {
    if (i >= begin) {
      ++count.num_moments;
      if (model.add_states(states, most_at_once, num_drawn, random)) ++count.num_exhaustive;
    }
    if (i < changes.size()) model.apply(changes[i]);
  }
  return states;
}

/// Lets one call fail as the system would let it, or kills the process there.
class FailingFiles : public railyard::detail::Files {
 public:
  enum class How {
    fails,
    fails_for_good,  // and so do all later calls
    writes_less,
    renames_all_the_same,
    dies_before,
    dies_after
  };

  /// The call with this number, counted from 0, is the one.
  FailingFiles(int number, int error, How how = How::fails) : number_(number), error_(error), how_(how) {}

  [[nodiscard]] int num_calls() const { return num_calls_; }
  /// What the call was that has failed first; empty if none has.
  [[nodiscard]] const std::string& failed() const { return failed_; }

  int make_directory(const Path& path) override {
    return call("mkdir", [&] { return Files::make_directory(path); });
  }
  int create(const Path& path) override {
    return call("create", [&] { return Files::create(path); });
  }
  int open_directory(const Path& path) override {
    return call("open", [&] { return Files::open_directory(path); });
  }
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    if (how_ == How::writes_less && num_calls_ == number_) size = (size + 1) / 2;
    return call("write", [&] { return Files::write(fd, from, size); });
  }
  int open(const Path& path, int flags) override {
    return call("open file", [&] { return Files::open(path, flags); });
  }
  ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) override {
    return call("write at", [&] { return Files::write_at(fd, from, size, at); });
  }
  int truncate(int fd, off_t size) override {
    return call("truncate", [&] { return Files::truncate(fd, size); });
  }
  int sync_data(int fd) override {
    return call("sync data", [&] { return Files::sync_data(fd); });
  }
  int write_back(int fd, std::size_t begin, std::size_t size, bool waits) override {
    return call("write_back", [&] { return Files::write_back(fd, begin, size, waits); });
  }
  int sync(int fd) override {
    return call("sync", [&] { return Files::sync(fd); });
  }
  int close(int fd) override {
    return call("close", [&] { return Files::close(fd); });
  }
  int rename(const Path& from, const Path& to) override {
    return call("rename", [&] { return Files::rename(from, to); });
  }
  int unlink(const Path& path) override {
    return call("unlink", [&] { return Files::unlink(path); });
  }
  int remove_directory(const Path& path) override {
    return call("rmdir", [&] { return Files::remove_directory(path); });
  }
  int list(const Path& path, std::vector<std::string>& names) override {
    return call("list", [&] { return Files::list(path, names); });
  }

 private:
  template <class Real>
  auto call(const std::string& name, const Real& real) -> decltype(real()) {
    const int number = num_calls_++;
    const bool is_chosen = number == number_ || (how_ == How::fails_for_good && number > number_);
    if (!is_chosen || how_ == How::writes_less) return real();
    if (how_ == How::dies_before) ::raise(SIGKILL);
    // Whatever close says, the descriptor is closed.
    const bool is_done =
        how_ == How::dies_after || name == "close" || (how_ == How::renames_all_the_same && name == "rename");
    if (is_done) real();
    if (how_ == How::dies_after) ::raise(SIGKILL);
    if (failed_.empty()) failed_ = name;
    errno = error_;
    return -1;
  }

  int number_;
  int error_;
  How how_;
  int num_calls_ = 0;
  std::string failed_{};
};

}  // namespace railyard_test
