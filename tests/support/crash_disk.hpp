// SPDX-License-Identifier: MIT
// A disk that remembers what a power cut would leave of it.
#pragma once

#include "sanitizers.hpp"

#include "railyard/checkpoint/detail/files.hpp"

#include "support/file_content.hpp"

#include <algorithm>
#include <cmath>
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

/// Says what whoever reads a folder after a power cut cannot tell apart: its entries are units, of which each is read
/// by itself. So all states are looked at if each state of a unit is, in one state of the others, and each combination
/// of what the reader takes units for.
struct CrashUnits {
  std::string folder{};  ///< in the root, where nothing else is
  /// Whether a unit of this name is never read, and only removed: then what is in its files does not matter.
  std::function<bool(const std::string& name)> is_unread{};
  /// What the reader takes a unit for.
  std::function<std::string(const std::string& name, const Tree& unit)> kind{};
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
  /// Does so with enough of them that all are looked at, of what is told apart.
  template <class Visit>
  bool visit_units(const CrashUnits& units, const Visit& visit) const {
    for (const Entries& top : all_entries_of(nodes_.front())) {
      const auto folder = top.find(units.folder);
      if (folder == top.end() && !visit(Tree{})) return false;
      if (folder == top.end()) continue;
      for (const Entries& entries : all_entries_of(nodes_[static_cast<std::size_t>(folder->second)])) {
        std::vector<UnitStates> all;
        for (const auto& [name, child] : entries) all.push_back(states_of(child, name, units));
        const Tree tree{{units.folder, std::nullopt}};
        if (!visit_kinds(all, 0, tree, visit) || !visit_rest(all, tree, visit)) return false;
      }
    }
    return true;
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

  // Of a unit, by what the reader takes it for.
  using UnitStates = std::map<std::string, std::vector<Tree>>;
  [[nodiscard]] UnitStates states_of(int number, const std::string& name, const CrashUnits& units) const {
    UnitStates states;
    Tree unit;
    const auto add = [&] {
      states[units.kind(name, unit)].push_back(unit);
      return true;
    };
    visit_node(number, path_in(units.folder, name), unit, add, units.is_unread(name));
    return states;
  }
  // Each combination of kinds.
  template <class Visit>
  bool visit_kinds(const std::vector<UnitStates>& all, std::size_t at, const Tree& tree, const Visit& visit) const {
    if (at == all.size()) return visit(tree);
    return std::all_of(all[at].begin(), all[at].end(), [&](const auto& of_kind) {
      Tree more = tree;
      more.insert(of_kind.second.front().begin(), of_kind.second.front().end());
      return visit_kinds(all, at + 1, more, visit);
    });
  }
  // Each state that is not the first of its kind, beside the first ones of the others.
  template <class Visit>
  bool visit_rest(const std::vector<UnitStates>& all, const Tree& tree, const Visit& visit) const {
    for (std::size_t at = 0; at < all.size(); ++at) {
      Tree others = tree;
      for (std::size_t other = 0; other < all.size(); ++other) {
        const Tree& first = all[other].begin()->second.front();
        if (other != at) others.insert(first.begin(), first.end());
      }
      for (const auto& [kind, units] : all[at]) {
        for (std::size_t i = 1; i < units.size(); ++i) {
          Tree more = others;
          more.insert(units[i].begin(), units[i].end());
          if (!visit(more)) return false;
        }
      }
    }
    return true;
  }

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
  // is_unread: files have one content each.
  bool visit_node(int number, const std::string& path, Tree& tree, const std::function<bool()>& then,
                  bool is_unread = false) const {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    if (!node.is_directory) {
      for (std::size_t choice = 0; choice < (is_unread ? 1 : choices_of(node)); ++choice) {
        tree[path] = content_of(node, choice);
        if (!then()) return false;
      }
      tree.erase(path);
      return true;
    }
    if (!path.empty()) tree[path] = std::nullopt;
    for (const Entries& entries : all_entries_of(node)) {
      if (!visit_entries(entries.begin(), entries.end(), path, tree, then, is_unread)) return false;
    }
    tree.erase(path);
    return true;
  }
  bool visit_entries(Entries::const_iterator entry, Entries::const_iterator end, const std::string& folder, Tree& tree,
                     const std::function<bool()>& then, bool is_unread) const {
    if (entry == end) return then();
    const auto rest = [&] { return visit_entries(std::next(entry), end, folder, tree, then, is_unread); };
    return visit_node(entry->second, path_in(folder, entry->first), tree, rest, is_unread);
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
  std::size_t num_by_units = 0;    // of which all were that the reader can tell apart
  double num_possible = 0;         // at all moments together
  double num_tried = 0;            // of those, the ones that were looked at before included
  std::size_t num_looked_at = 0;

  [[nodiscard]] std::string text() const {
    std::ostringstream text;
    text.precision(4);
    text << num_looked_at << " states are looked at, which stand for " << num_tried << " of the " << num_possible
         << " that power cuts leave at " << num_moments << " moments: all of those at " << num_exhaustive
         << " of them, ";
    if (num_by_units > 0) text << "all that the reader can tell apart at " << num_by_units << ", ";
    text << "a seeded sample at the others";
    return text.str();
  }
};

/// Calls visit(state) with the states in which a power cut can leave the disk after some number of changes, of which it
/// had `begin` at least, until it returns false: all of them at a moment at which there are at most `most_at_once`, or
/// else a sample, and all that can be told apart, where it is known what that is.
template <class Visit>
void visit_crash_states(const Tree& before, const std::vector<DiskChange>& changes, std::size_t begin, CutCount& count,
                        const Visit& visit, const CrashUnits* units = nullptr) {
  constexpr double most_at_once = is_sanitized ? 150 : 3000;
  constexpr int num_drawn = is_sanitized ? 20 : 300;
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
      const double num_tried = count.num_tried;
      if (num_states <= most_at_once) {
        ++count.num_exhaustive;
        if (!model.visit_all(look)) return;
      } else {
        for (int drawn = 0; drawn < num_drawn; ++drawn) {
          if (!look(model.draw(random))) return;
        }
        if (units != nullptr && !is_sanitized) {
          ++count.num_by_units;
          if (!model.visit_units(*units, look)) return;
          count.num_tried = num_tried + num_states;
        }
      }
    }
    if (i < changes.size()) model.apply(changes[i]);
  }
}

}  // namespace railyard_test
