// SPDX-License-Identifier: MIT
// What the tests of preprocessors share: blocks of few samples, readers of them, and workers that fit together.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace preprocessing {

namespace ry = railyard;

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Makes blocks column by column; ids count from the given one.
class Rows {
 public:
  template <class T>
  Rows&& numbers(const std::string& name, std::vector<T> values, std::vector<std::int64_t> shape = {}) && {
    fields_.push_back({.name = name, .dtype = ry::dtype_of<T>, .shape = std::move(shape)});
    columns_.emplace_back(fields_.back(), std::move(values));
    return std::move(*this);
  }
  Rows&& texts(const std::string& name, const std::vector<std::string>& values) && {
    fields_.push_back(ry::Field::text(name));
    columns_.push_back(ry::Column::texts(values));
    return std::move(*this);
  }
  [[nodiscard]] ry::Block block(std::uint64_t first_id = 0) const {
    std::vector<std::uint64_t> ids(columns_.at(0).rows());
    std::iota(ids.begin(), ids.end(), first_id);
    return {std::make_shared<const ry::Schema>(fields_), columns_, ids};
  }

 private:
  std::vector<ry::Field> fields_{};
  std::vector<ry::Column> columns_{};
};

/// Reads a block again and again from its begin.
class RowsOfBlock final : public ry::BlockReader {
 public:
  explicit RowsOfBlock(ry::Block block) : block_(std::move(block)) {}
  [[nodiscard]] ry::Block next(std::size_t most_rows) override {
    const std::size_t begin = std::exchange(next_, std::min(block_.rows(), next_ + most_rows));
    return block_.slice(begin, next_);
  }

 private:
  ry::Block block_;
  std::size_t next_ = 0;
};

template <class P>
void fit(P& preprocessor, const ry::Block& block, const ry::FitOptions& options = {}) {
  ry::fit(
      preprocessor, block.schema(), [&] { return std::make_unique<RowsOfBlock>(block); }, options);
}
template <class P>
P fitted(P preprocessor, const ry::Block& block) {
  fit(preprocessor, block);
  return preprocessor;
}

/// What num_workers workers learn together, of which each reads a part of the block, one after the other.
template <class P>
[[nodiscard]] P fitted_by_workers(const P& preprocessor, const ry::Block& block, std::size_t num_workers) {
  P result = preprocessor;
  result.begin(block.schema());
  for (std::size_t pass = ry::detail::passes_of(preprocessor); pass > 0; --pass) {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t rank = 0; rank < num_workers; ++rank) {
      P worker = result;
      worker.add(block.slice(block.rows() * rank / num_workers, block.rows() * (rank + 1) / num_workers));
      all.push_back(worker.statistics());
    }
    for (const auto& statistics : all) result.merge(statistics);
    result.finish();
  }
  return result;
}

/// What a checkpoint gives back.
template <class P>
[[nodiscard]] P reloaded(const P& saved, P fresh) {
  fresh.load_state(saved.state());
  return fresh;
}

[[nodiscard]] inline std::vector<double> values_of(const ry::Block& block, const std::string& column) {
  std::vector<double> numbers;
  ry::detail::read_numbers(block.schema()[block.schema().index_of(column)], block.column(column), numbers);
  return numbers;
}
/// Whether each differs from what is expected by at most the tolerance, NaN from nothing but NaN.
[[nodiscard]] inline bool are_near(const std::vector<double>& values, const std::vector<double>& expected,
                                   double tolerance = 1e-12) {
  return std::equal(values.begin(), values.end(), expected.begin(), expected.end(), [&](double a, double b) {
    return std::isnan(a) || std::isnan(b) ? std::isnan(a) == std::isnan(b) : a == b || std::abs(a - b) <= tolerance;
  });
}

}  // namespace preprocessing
