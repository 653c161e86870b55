// SPDX-License-Identifier: MIT
// Single values by name: what metrics and saved states are made of. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {

/// Holds a truth value, an integer, a number or text. Made from any arithmetic type or literal.
class Value {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Value(T value)
  noexcept : value_(widen(value)) {}  // implicit, so that lists read {{"loss", 0.3}, {"epoch", 3}}
  Value(std::string value) noexcept : value_(std::move(value)) {}
  Value(std::string_view value) : value_(std::string{value}) {}
  Value(const char* value) : value_(std::string{value}) {}

  /// Is it of type bool, std::int64_t, double or std::string?
  template <class T>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<T>(value_);
  }

  /// Returns the value as bool, std::int64_t, double or std::string. Throws: Error if it is of another type.
  template <class T>
  [[nodiscard]] const T& as() const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    static constexpr const char* kinds[] = {"a truth value", "an integer", "a number", "text"};
    throw Error{
        detail::compose("a value was read as another type than it has: it holds {}; ask is<T>() first, or use visit()",
                        kinds[value_.index()])};
  }

  /// Returns it as a number, whatever arithmetic type it was made from. Throws: Error if it is text.
  [[nodiscard]] double number() const {
    if (is<double>()) return as<double>();
    if (is<std::int64_t>()) return static_cast<double>(as<std::int64_t>());
    return as<bool>() ? 1.0 : 0.0;
  }

  /// Calls visitor with the bool, std::int64_t, double or std::string inside.
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

  friend bool operator==(const Value&, const Value&) = default;

 private:
  using Variant = std::variant<bool, std::int64_t, double, std::string>;

  template <class T>
  static Variant widen(T value) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(value);
    } else {
      if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
        if (value > static_cast<T>(std::numeric_limits<std::int64_t>::max())) return static_cast<double>(value);
      }
      return static_cast<std::int64_t>(value);
    }
  }

  Variant value_;
};

/// Holds values by name, in the order in which they were given. A name given twice keeps its place and its last value.
/// Cost: set() and find() take the same time whether there are few names or very many.
class NamedValues {
 public:
  using Entry = std::pair<std::string, Value>;

  NamedValues() = default;
  NamedValues(std::initializer_list<Entry> entries) {
    entries_.reserve(entries.size());
    for (const Entry& entry : entries) set(entry.first, entry.second);
  }

  void set(std::string name, Value value) {
    if (const auto at = place_of(name)) {
      entries_[*at].second = std::move(value);
      return;
    }
    entries_.emplace_back(std::move(name), std::move(value));
    note_last();
  }

  /// Returns the value of that name, or nullptr.
  [[nodiscard]] const Value* find(std::string_view name) const noexcept {
    const auto at = place_of(name);
    return at ? &entries_[*at].second : nullptr;
  }

  /// Returns the value of that name. Throws: Error that lists the names that exist.
  [[nodiscard]] const Value& at(std::string_view name) const {
    if (const Value* value = find(name)) return *value;
    std::string names;
    for (const Entry& entry : entries_) names += (names.empty() ? "" : ", ") + entry.first;
    throw Error{detail::compose("there is no value named \"{}\"; there are: {}", name, names.empty() ? "none" : names)};
  }

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }

  friend bool operator==(const NamedValues& one, const NamedValues& other) { return one.entries_ == other.entries_; }

 private:
  static constexpr std::size_t most_scanned = 16;  // of a handful, a scan beats a table

  [[nodiscard]] std::optional<std::size_t> place_of(std::string_view name) const noexcept {
    if (!table_.empty()) {
      const std::size_t number = table_[slot_of(name)];
      return number > 0 ? std::optional{number - 1} : std::nullopt;
    }
    for (std::size_t at = 0; at < entries_.size(); ++at) {
      if (entries_[at].first == name) return at;
    }
    return std::nullopt;
  }

  // The slot that has the name, or the one where it belongs. At least half of the slots are free.
  [[nodiscard]] std::size_t slot_of(std::string_view name) const noexcept {
    std::size_t slot = std::hash<std::string_view>{}(name) % table_.size();
    while (table_[slot] > 0 && entries_[table_[slot] - 1].first != name) slot = (slot + 1) % table_.size();
    return slot;
  }

  void note_last() {
    if (entries_.size() <= most_scanned) return;
    if (2 * entries_.size() <= table_.size()) {
      table_[slot_of(entries_.back().first)] = entries_.size();
      return;
    }
    table_.assign(4 * entries_.size(), 0);
    for (std::size_t at = 0; at < entries_.size(); ++at) table_[slot_of(entries_[at].first)] = at + 1;
  }

  std::vector<Entry> entries_;
  std::vector<std::size_t> table_;  // where there are many: by the hash of a name, the number of its entry, from 1
};

/// Is what a worker reports: numbers, truth values and text under flat keys such as "val/loss".
using Metrics = NamedValues;

}  // namespace railyard::inline v0_1
