// SPDX-License-Identifier: MIT
// The preprocessor that is a function of the user's. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Changes blocks by a function. Learns nothing, and the function is not part of a checkpoint.
class BatchMapper {
 public:
  /// Returns the block's samples, changed, with their ids in their order. Called on several threads at once, and with a
  /// block of no samples to learn the columns that it makes.
  using Function = std::function<Block(const Block&)>;

  /// Throws: ConfigError if there is no function.
  explicit BatchMapper(Function function) : function_(std::move(function)) {
    if (!function_) throw ConfigError{"a BatchMapper was given no function"};
  }

  /// Another when the function is of another type, as each lambda is.
  [[nodiscard]] std::uint64_t kind() const { return detail::fingerprint_of(function_.target_type()); }
  [[nodiscard]] Schema schema(const Schema& before) const {
    std::vector<Column> columns;
    const auto no_ends = std::make_shared<const std::vector<std::uint64_t>>();
    for (const Field& field : before) {
      const std::size_t row_bytes = field.width() * size_of(field.dtype);
      columns.push_back(field.is_ragged() ? Column{nullptr, no_ends} : Column{nullptr, 0, row_bytes});
    }
    return function_(Block{std::make_shared<const Schema>(before), std::move(columns), {}}).schema();
  }
  /// Throws: DataError if the function adds, drops or moves samples.
  [[nodiscard]] Block transform(const Block& block) const {
    const Block changed = function_(block);
    if (std::equal(changed.ids().begin(), changed.ids().end(), block.ids().begin(), block.ids().end())) {
      return block.with(changed.shared_schema(), changed.columns());
    }
    throw DataError{
        detail::compose("the function of a BatchMapper made {} samples of {}, or changed their order: it "
                        "must give each sample it gets, with its id; filter() and flat_map() of a dataset "
                        "may do otherwise",
                        changed.rows(), block.rows())};
  }

 private:
  Function function_;
};
static_assert(Preprocessor<BatchMapper>);

}  // namespace railyard::inline v0_1
