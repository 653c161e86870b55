// SPDX-License-Identifier: MIT
// Holds some samples of a stream in memory, to give them in another order. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/row_reader.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

class HeldWindow {
 public:
  // name: of the operation, for messages.
  HeldWindow(const Scope& scope, std::string name) : scope_(scope), name_(std::move(name)) {}

  // Holds the next samples of the stream instead of what it held, at most so many: fewer only at its end.
  void load(RowReader& rows, std::size_t most) {
    parts_.clear();
    starts_.clear();
    shares_.clear();
    rows_ = bytes_ = 0;
    while (rows_ < most) {
      Block part = rows.some(most - rows_);
      if (part.empty()) break;
      starts_.push_back(rows_);
      rows_ += part.rows();
      hold(std::move(part));
    }
  }

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  // Gives the next samples of an order of the window, as many as a block should have.
  [[nodiscard]] Chunk give(std::span<const std::size_t> order, Place place) const {
    const std::size_t each = std::max<std::size_t>(bytes_ / rows_, 1);
    const std::size_t count = std::clamp<std::size_t>(scope_.block_bytes() / each, 1, order.size());
    std::vector<RowOfPart> chosen;
    for (const std::size_t row : order.first(count)) chosen.push_back(find(row));
    Block block = gather(parts_, chosen);
    MemoryShare share{*scope_.budget, bytes_of(block)};
    return {std::move(block), std::move(place), std::move(share)};
  }

  // The bytes of each sample in one column.
  [[nodiscard]] std::vector<std::size_t> sizes(std::size_t column) const {
    std::vector<std::size_t> all;
    all.reserve(rows_);
    for (const Block& part : parts_) {
      for (std::size_t row = 0; row < part.rows(); ++row) all.push_back(part[column].sample(row).size());
    }
    return all;
  }

 private:
  void hold(Block part) {
    const std::size_t bytes = bytes_of(part);
    bytes_ += bytes;
    if (bytes_ > scope_.budget->most_ahead()) {
      throw ConfigError{
          compose("{}: the window takes more than {} bytes, three quarters of what the reader may use: "
                  "make it smaller or EpochOptions::bound_bytes larger",
                  name_, scope_.budget->most_ahead())};
    }
    shares_.emplace_back(*scope_.budget, bytes);
    parts_.push_back(std::move(part));
  }

  [[nodiscard]] RowOfPart find(std::size_t row) const {
    const auto part =
        static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), row) - starts_.begin()) - 1;
    return {part, row - starts_[part]};
  }

  Scope scope_;
  std::string name_;
  std::vector<Block> parts_{};
  std::vector<std::size_t> starts_{};  // of the parts in the window
  std::vector<MemoryShare> shares_{};
  std::size_t rows_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
