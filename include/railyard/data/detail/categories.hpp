// SPDX-License-Identifier: MIT
// The different values that there are in a column, in order, with how often each was seen. Data room.
#pragma once

#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {

/// Says that a cell is empty: NaN, or a text of no characters.
struct MissingCell {
  friend bool operator==(const MissingCell&, const MissingCell&) = default;
  static void fields(auto&, auto&) {}
};

/// Is one of the values that a column can have. Integers are exact.
using Category = std::variant<std::int64_t, double, std::string, MissingCell>;

namespace detail {

/// Looks at a value where it is.
using CategoryView = std::variant<std::int64_t, double, std::string_view, MissingCell>;
/// Says what the categories of a column are.
enum class CategoryKind : std::uint8_t { integer, real, text };

[[nodiscard]] inline CategoryView view_of(const Category& category) {
  return std::visit([](const auto& value) { return CategoryView{value}; }, category);
}
[[nodiscard]] inline Category category_of(const CategoryView& view) {
  return std::visit(
      [](const auto& value) -> Category {
        if constexpr (std::is_same_v<decltype(value), const std::string_view&>) {
          return std::string{value};
        } else {
          return value;
        }
      },
      view);
}
/// Orders numbers by value and texts by their bytes, which is by their code points; what is missing comes last.
struct CategoryOrder {
  using is_transparent = void;
  bool operator()(const CategoryView& left, const CategoryView& right) const noexcept {
    if (left.index() != right.index()) return left.index() < right.index();
    if (const auto* integer = std::get_if<std::int64_t>(&left)) return *integer < *std::get_if<std::int64_t>(&right);
    if (const auto* real = std::get_if<double>(&left)) return *real < *std::get_if<double>(&right);
    if (const auto* text = std::get_if<std::string_view>(&left)) return *text < *std::get_if<std::string_view>(&right);
    return false;
  }
  bool operator()(const Category& left, const Category& right) const { return (*this)(view_of(left), view_of(right)); }
  bool operator()(const Category& left, const CategoryView& right) const { return (*this)(view_of(left), right); }
  bool operator()(const CategoryView& left, const Category& right) const { return (*this)(left, view_of(right)); }
};

/// A category as messages show it.
[[nodiscard]] inline std::string category_text(const CategoryView& category) {
  if (const auto* integer = std::get_if<std::int64_t>(&category)) return compose("{}", *integer);
  if (const auto* real = std::get_if<double>(&category)) return compose("{}", *real);
  if (const auto* text = std::get_if<std::string_view>(&category)) return compose("\"{}\"", *text);
  return "a missing value";
}

[[nodiscard]] inline CategoryKind kind_of(const Field& field) noexcept {
  if (field.is_text) return CategoryKind::text;
  return is_real(field.dtype) ? CategoryKind::real : CategoryKind::integer;
}

/// Returns a number as a category of the kind, so that integers which were read as real numbers, because cells beside
/// them are empty, are the same categories as before.
[[nodiscard]] inline CategoryView as_kind(double value, CategoryKind kind) noexcept {
  constexpr double exact = 9007199254740992;  // 2^53
  if (is_missing(value)) return MissingCell{};
  if (kind == CategoryKind::integer && value >= -exact && value <= exact) {
    const auto integer = static_cast<std::int64_t>(value);
    if (static_cast<double>(integer) == value) return integer;
  }
  return value;
}

/// Calls visit(row, category) with all cells of a column that has_cells().
template <class Visit>
void visit_cells(const Field& field, const Column& column, CategoryKind kind, const Visit& visit) {
  if (field.is_text) {
    for (std::size_t row = 0; row < column.rows(); ++row) {
      const std::string_view text = column.text(row);
      visit(row, text.empty() ? CategoryView{MissingCell{}} : CategoryView{text});
    }
    return;
  }
  visit_dtype(field.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto values = column.values<T>();
    for (std::size_t row = 0; row < values.size(); ++row) {
      if constexpr (!std::is_arithmetic_v<T>) {
        visit(row, as_kind(static_cast<double>(static_cast<float>(values[row])), kind));
      } else if constexpr (std::is_floating_point_v<T>) {
        visit(row, as_kind(static_cast<double>(values[row]), kind));
      } else if (kind == CategoryKind::real) {
        visit(row, CategoryView{static_cast<double>(values[row])});
      } else {
        visit(row, CategoryView{static_cast<std::int64_t>(values[row])});
      }
    }
  });
}

/// Counts how often each category was seen, exactly, up to a number of categories.
class CategoryCounts {
 public:
  static constexpr std::string_view raise_limit = ", or raise .category_limit";

  /// where: of which column, as messages begin. remedy: what messages say that helps besides to leave the column out.
  explicit CategoryCounts(std::uint64_t limit = 0, std::string where = "a column",
                          std::string_view remedy = raise_limit)
      : limit_(limit), where_(std::move(where)), remedy_(remedy) {}

  /// Throws: DataError if there are more categories than the limit.
  void add(const CategoryView& category, std::uint64_t times = 1) {
    count_ += times;
    if (const auto found = counts_.find(category); found != counts_.end()) {
      found->second += times;
      return;
    }
    if (counts_.size() >= limit_) {
      throw DataError{
          compose("{} has more than {} categories, {} among them: leave it out if its values are not categories{}",
                  where_, limit_, category_text(category), remedy_)};
    }
    counts_.emplace(category_of(category), times);
  }
  void merge(const CategoryCounts& other) {
    for (const auto& [category, times] : other.counts_) add(view_of(category), times);
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// In order.
  [[nodiscard]] std::vector<Category> categories() const {
    std::vector<Category> all;
    for (const auto& [category, times] : counts_) all.push_back(category);
    return all;
  }
  /// The first in order of those that were seen most often. Needs at least one.
  [[nodiscard]] const Category& most_frequent() const {
    return std::max_element(counts_.begin(), counts_.end(),
                            [](const auto& left, const auto& right) { return left.second < right.second; })
        ->first;
  }

  static void fields(auto& archive, auto& self) { archive(self.limit_, self.count_, self.counts_); }

 private:
  std::uint64_t limit_;
  std::string where_;
  std::string_view remedy_;
  std::uint64_t count_ = 0;
  std::map<Category, std::uint64_t, CategoryOrder> counts_{};
};

/// Is a column with the categories that were learned, in order; a category's code is its place.
struct CategoryColumn {
  std::string name{};
  CategoryKind kind = CategoryKind::text;
  std::vector<Category> categories{};

  [[nodiscard]] std::optional<std::size_t> find(const CategoryView& category) const {
    const auto place = std::lower_bound(categories.begin(), categories.end(), category, CategoryOrder{});
    if (place == categories.end() || CategoryOrder{}(category, *place)) return std::nullopt;
    return static_cast<std::size_t>(place - categories.begin());
  }
  static void fields(auto& archive, auto& self) { archive(self.name, self.kind, self.categories); }
};

}  // namespace detail
}  // namespace railyard::inline v0_1
