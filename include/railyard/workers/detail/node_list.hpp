// SPDX-License-Identifier: MIT
// What Slurm writes short: the names of nodes, and how many tasks each of them has. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::size_t most_nodes = 65'536;  // Slurm's own limit of one list

/// Reads a whole text as a number from 0; nothing if it is none, has a sign, or is too large.
[[nodiscard]] inline std::optional<int> parse_count(std::string_view text) noexcept {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.front() == '-' || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

/// Divides a list at the commas that are not in brackets.
[[nodiscard]] inline std::vector<std::string_view> split_items(std::string_view list) {
  std::vector<std::string_view> items;
  std::size_t begin = 0;
  bool in_brackets = false;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    if (at < list.size() && (list[at] == '[' || list[at] == ']')) in_brackets = list[at] == '[';
    if (at < list.size() && (list[at] != ',' || in_brackets)) continue;
    items.push_back(list.substr(begin, at - begin));
    begin = at + 1;
  }
  return items;
}

/// Expands lists of nodes as `scontrol show hostnames` does: "a[01-03,7],b-[1-2]-ib[5-6]".
class NodeList {
 public:
  /// Throws: ConfigError for what is no list of nodes, or has more nodes than a list of Slurm can have.
  [[nodiscard]] static std::vector<std::string> expand(std::string_view text) {
    NodeList list{text};
    for (const std::string_view item : split_items(text)) list.add_item(item);
    return std::move(list.names_);
  }

 private:
  explicit NodeList(std::string_view text) noexcept : text_(text) {}

  // Each pair of brackets multiplies: every name so far goes on with each of its items, in order.
  void add_item(std::string_view item) {
    if (item.empty()) refuse("an item is empty");
    std::vector<std::string> names{""};
    while (!item.empty()) {
      const std::size_t open = std::min(item.find('['), item.size());
      append(names, {std::string{item.substr(0, open)}});
      item.remove_prefix(open);
      if (item.empty()) break;
      const std::size_t close = item.find(']');
      if (close == std::string_view::npos) refuse("a [ has no ]");
      append(names, numbers(item.substr(1, close - 1)));
      item.remove_prefix(close + 1);
    }
    if (names_.size() + names.size() > most_nodes) refuse("it has too many nodes");
    names_.insert(names_.end(), names.begin(), names.end());
  }

  void append(std::vector<std::string>& names, const std::vector<std::string>& endings) const {
    if (names.size() * endings.size() > most_nodes) refuse("it has too many nodes");
    std::vector<std::string> longer;
    longer.reserve(names.size() * endings.size());
    for (const std::string& name : names) {
      for (const std::string& ending : endings) {
        if (ending.find(']') != std::string::npos) refuse("a ] has no [");
        longer.push_back(name + ending);
      }
    }
    names = std::move(longer);
  }

  // What stands in one pair of brackets. A number is padded to the width of the first of its range.
  [[nodiscard]] std::vector<std::string> numbers(std::string_view ranges) const {
    std::vector<std::string> all;
    for (const std::string_view range : split_items(ranges)) {
      const std::size_t dash = std::min(range.find('-'), range.size());
      const std::string_view low = range.substr(0, dash);
      const auto first = parse_count(low);
      const auto last = dash == range.size() ? first : parse_count(range.substr(dash + 1));
      if (!first || !last || *last < *first) refuse(compose(R"("{}" is no range of numbers)", range));
      const auto count = static_cast<std::size_t>(*last - *first) + 1;
      if (all.size() + count > most_nodes) refuse("it has too many nodes");
      for (std::size_t i = 0; i < count; ++i) {
        const std::string digits = compose("{}", static_cast<std::size_t>(*first) + i);
        all.push_back(std::string(low.size() - std::min(low.size(), digits.size()), '0') + digits);
      }
    }
    return all;
  }

  [[noreturn]] void refuse(std::string_view why) const {
    throw ConfigError{compose(R"(the list of nodes "{}" cannot be read: {}; scontrol show hostnames shows what Slurm )"
                              "makes of it",
                              text_.substr(0, 200), why)};
  }

  std::string_view text_;
  std::vector<std::string> names_{};
};

/// Expands Slurm's counts of tasks per node: "2(x3),1" is 2, 2, 2, 1. Throws: ConfigError.
[[nodiscard]] inline std::vector<int> expand_task_counts(std::string_view text) {
  std::vector<int> counts;
  for (const std::string_view item : split_items(text)) {
    const std::size_t open = std::min(item.find("(x"), item.size());
    const auto count = parse_count(item.substr(0, open));
    std::optional<int> times = 1;
    if (open < item.size()) {
      const bool is_closed = item.back() == ')';
      times = is_closed ? parse_count(item.substr(open + 2, item.size() - open - 3)) : std::nullopt;
    }
    if (!count || !times || counts.size() + static_cast<std::size_t>(*times) > most_nodes) {
      throw ConfigError{compose(R"(the counts of tasks per node "{}" cannot be read at "{}"; they look like "2(x3),1")",
                                text.substr(0, 200), item.substr(0, 50))};
    }
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  }
  return counts;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
