// SPDX-License-Identifier: MIT
// A disk that remembers what a power cut would leave of it, and one that fails.
#pragma once

#include "sanitizers.hpp"

#include "railyard/checkpoint/detail/files.hpp"

#include "support/file_content.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <unordered_set>
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

  /// How many states are possible now, those of which several choices make the same counted once where that is cheap.
  [[nodiscard]] double num_states() const { return count(0); }
  /// Calls visit(state) with each of them, until it returns false. Returns whether it never has.
  template <class Visit>
  bool visit_all(const Visit& visit) const {
    Tree tree;
    return visit_node(0, "", tree, [&] { return visit(std::as_const(tree)); });
  }
  /// Returns one drawn at random.
  [[nodiscard]] Tree draw(std::mt19937& random) const {
    Tree tree;
    draw_node(0, "", tree, random);
    return tree;
  }

 private:
  using Entries = std::map<std::string, int>;
  struct EntryChange {
    std::string removed{};
    std::string added{};
    int node = -1;
  };
  struct Node {
    bool is_directory = true;
    std::string content{};
    std::string durable_content{};
    Entries entries{};
    Entries durable_entries{};
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

  static void change(Entries& entries, const EntryChange& change) {
    if (!change.removed.empty()) entries.erase(change.removed);
    if (!change.added.empty()) entries[change.added] = change.node;
  }
  void change_entries(int folder, const EntryChange& entry) {
    change(at(folder).entries, entry);
    at(folder).pending.push_back(entry);
  }

  static constexpr std::size_t num_contents = 5;
  static std::size_t choices_of(const Node& node) { return node.content == node.durable_content ? 1 : num_contents; }
  static std::string path_in(const std::string& folder, const std::string& name) {
    return folder.empty() ? name : folder + "/" + name;
  }

  // What a directory may show: each change that is pending has come to the disk or not.
  static Entries entries_of(const Node& node, std::size_t choice) {
    Entries entries = node.durable_entries;
    for (std::size_t i = 0; i < node.pending.size(); ++i) {
      if ((choice >> i & 1U) != 0) change(entries, node.pending[i]);
    }
    return entries;
  }
  static std::set<Entries> all_entries_of(const Node& node) {
    std::set<Entries> all;
    for (std::size_t choice = 0; choice < std::size_t{1} << node.pending.size(); ++choice) {
      all.insert(entries_of(node, choice));
    }
    return all;
  }

  [[nodiscard]] double count(int number) const {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    if (!node.is_directory) return static_cast<double>(choices_of(node));
    constexpr std::size_t most_pending = 14;
    double sum = 0;
    if (node.pending.size() > most_pending) {  // as if all were there, each time
      sum = std::ldexp(1, static_cast<int>(node.pending.size()));
      for (const auto& [name, child] : node.entries) sum *= count(child);
      return sum;
    }
    for (const Entries& entries : all_entries_of(node)) {
      double product = 1;
      for (const auto& [name, child] : entries) product *= count(child);
      sum += product;
    }
    return sum;
  }

  // Puts each state of a node into the tree in turn and calls then(), which goes on with what comes after it there.
  bool visit_node(int number, const std::string& path, Tree& tree, const std::function<bool()>& then) const {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    if (!node.is_directory) {
      for (std::size_t choice = 0; choice < choices_of(node); ++choice) {
        tree[path] = content_of(node, choice);
        if (!then()) return false;
      }
      tree.erase(path);
      return true;
    }
    if (!path.empty()) tree[path] = std::nullopt;
    for (const Entries& entries : all_entries_of(node)) {
      if (!visit_entries(entries.begin(), entries.end(), path, tree, then)) return false;
    }
    tree.erase(path);
    return true;
  }
  bool visit_entries(Entries::const_iterator entry, Entries::const_iterator end, const std::string& folder, Tree& tree,
                     const std::function<bool()>& then) const {
    if (entry == end) return then();
    return visit_node(entry->second, path_in(folder, entry->first), tree,
                      [&] { return visit_entries(std::next(entry), end, folder, tree, then); });
  }

  void draw_node(int number, const std::string& path, Tree& tree, std::mt19937& random) const {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    if (!node.is_directory) {
      tree[path] = content_of(node, random() % choices_of(node));
      return;
    }
    if (!path.empty()) tree[path] = std::nullopt;
    const std::uint64_t choice = (std::uint64_t{random()} << 32U) | random();
    for (const auto& [name, child] : entries_of(node, choice)) draw_node(child, path_in(path, name), tree, random);
  }

  // What stays as it was durable is not touched by the rest.
  static std::string content_of(const Node& node, std::size_t choice) {
    if (choices_of(node) == 1) return node.content;
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

  std::vector<Node> nodes_;  // the first is the root
};

/// Counts the moments at which the power was cut, the states that it could have left then, and those that were looked
/// at: each state once, though it may be left at several moments.
struct CutCount {
  std::size_t num_moments = 0;
  std::size_t num_exhaustive = 0;  // of which all states were looked at
  double num_possible = 0;         // at all moments together
  double num_tried = 0;            // of those, the ones that were looked at before included
  std::size_t num_looked_at = 0;

  [[nodiscard]] std::string text() const {
    std::ostringstream text;
    text.precision(4);
    text << num_looked_at << " states are looked at, which stand for " << num_tried << " of the " << num_possible
         << " that power cuts leave at " << num_moments << " moments: all of those at " << num_exhaustive
         << " of them, a seeded sample at the others";
    return text.str();
  }
};

/// Calls visit(state) with the states in which a power cut can leave the disk after some number of changes, of which it
/// had `begin` at least, until it returns false: all of them at a moment at which there are at most `most_at_once`, or
/// else a sample.
template <class Visit>
void visit_crash_states(const Tree& before, const std::vector<DiskChange>& changes, std::size_t begin, CutCount& count,
                        const Visit& visit) {
  constexpr double most_at_once = is_sanitized ? 500 : 3000;
  constexpr int num_drawn = is_sanitized ? 60 : 300;
  std::mt19937 random{1};
  std::unordered_set<std::size_t> seen;
  const auto look = [&](const Tree& state) {
    ++count.num_tried;
    std::string text;
    for (const auto& [path, content] : state) text += path + '\1' + (content ? *content + '\2' : std::string{'\3'});
    if (!seen.insert(std::hash<std::string>{}(text)).second) return true;
    ++count.num_looked_at;
    return static_cast<bool>(visit(state));
  };
  CrashModel model{before};
  for (std::size_t i = 0; i <= changes.size(); ++i) {
    if (i >= begin) {
      ++count.num_moments;
      const double num_states = model.num_states();
      count.num_possible += num_states;
      if (num_states <= most_at_once) {
        ++count.num_exhaustive;
        if (!model.visit_all(look)) return;
      } else {
        for (int drawn = 0; drawn < num_drawn; ++drawn) {
          if (!look(model.draw(random))) return;
        }
      }
    }
    if (i < changes.size()) model.apply(changes[i]);
  }
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
  int open_at(int directory, const char* name, int flags) override {
    return call("open at", [&] { return Files::open_at(directory, name, flags); });
  }
  ssize_t read_at(int fd, std::byte* to, std::size_t size, off_t at) override {
    return call("read", [&] { return Files::read_at(fd, to, size, at); });
  }
  int status(const Path& path, struct stat& status) override {
    return call("stat", [&] { return Files::status(path, status); });
  }
  int status_of(int fd, struct stat& status) override {
    return call("fstat", [&] { return Files::status_of(fd, status); });
  }
  int lock(int fd, int operation) override {
    return call("lock", [&] { return Files::lock(fd, operation); });
  }
  int lock(int fd, int command, struct flock& lock) override {
    return call("lock", [&] { return Files::lock(fd, command, lock); });
  }
  int touch(int fd) override {
    return call("touch", [&] { return Files::touch(fd); });
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
