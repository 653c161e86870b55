// SPDX-License-Identifier: MIT
// Puts blocks together and takes them apart. Data room.
#pragma once

#include "railyard/core/block.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// The memory that the samples of a block take.
[[nodiscard]] inline std::size_t bytes_of(const Block& block) noexcept {
  std::size_t bytes = (block.rows() + block.siblings().size()) * sizeof(std::uint64_t);
  for (const Column& column : block.columns()) {
    bytes += column.bytes().size() + (column.is_ragged() ? column.rows() * sizeof(std::uint64_t) : 0);
  }
  return bytes;
}

template <std::size_t size>
void gather(const std::byte* from, std::span<const std::size_t> rows, std::byte* to) {
  for (const std::size_t row : rows) {
    std::memcpy(to, from + row * size, size);
    to += size;
  }
}

// Does what Column::take() does, faster for small samples of one size, whose copies the compiler makes single moves.
[[nodiscard]] inline Column take(const Column& column, std::span<const std::size_t> rows) {
  if (column.is_ragged() || column.rows() == 0) return column.take(rows);
  const std::size_t size = column.sample(0).size();
  const std::byte* from = column.sample(0).data();
  const std::shared_ptr<std::byte[]> copy{new std::byte[size * rows.size()]};  // not zeroed first
  switch (size) {
    case 1:
      gather<1>(from, rows, copy.get());
      break;
    case 2:
      gather<2>(from, rows, copy.get());
      break;
    case 4:
      gather<4>(from, rows, copy.get());
      break;
    case 8:
      gather<8>(from, rows, copy.get());
      break;
    default:
      for (std::size_t at = 0; at < rows.size(); ++at) {
        std::memcpy(copy.get() + at * size, from + rows[at] * size, size);
      }
  }
  return {std::shared_ptr<const std::byte>{copy, copy.get()}, rows.size(), size};
}

[[nodiscard]] inline bool is_contiguous(std::span<const std::size_t> rows) noexcept {
  for (std::size_t at = 1; at < rows.size(); ++at) {
    if (rows[at] != rows[at - 1] + 1) return false;
  }
  return true;
}

// Takes the rows of a block in that order; shares its memory where they follow each other.
[[nodiscard]] inline Block take(const Block& block, std::span<const std::size_t> rows) {
  if (rows.empty()) return block.slice(0, 0);
  if (is_contiguous(rows)) return block.slice(rows.front(), rows.back() + 1);
  std::vector<Column> columns;
  std::vector<std::uint64_t> ids;
  std::vector<std::uint64_t> siblings;
  for (const Column& column : block.columns()) columns.push_back(take(column, rows));
  for (const std::size_t row : rows) ids.push_back(block.ids()[row]);
  if (!block.siblings().empty()) {
    for (const std::size_t row : rows) siblings.push_back(block.siblings()[row]);
  }
  return {block.shared_schema(), std::move(columns), std::move(ids), std::move(siblings)};
}

[[nodiscard]] inline Column join_columns(std::span<const Block> blocks, std::size_t column) {
  std::size_t size = 0;
  std::size_t rows = 0;
  for (const Block& block : blocks) {
    size += block[column].bytes().size();
    rows += block.rows();
  }
  const std::shared_ptr<std::byte[]> all{new std::byte[size]};
  auto ends = std::make_shared<std::vector<std::uint64_t>>();
  std::size_t done = 0;
  for (const Block& block : blocks) {
    const Column& part = block[column];
    const auto bytes = part.bytes();
    if (!bytes.empty()) std::memcpy(all.get() + done, bytes.data(), bytes.size());
    for (std::size_t row = 0; part.is_ragged() && row < part.rows(); ++row) {
      ends->push_back(done + static_cast<std::size_t>(part.sample(row).data() - bytes.data()) +
                      part.sample(row).size());
    }
    done += bytes.size();
  }
  std::shared_ptr<const std::byte> bytes{all, all.get()};
  if (!ends->empty()) return {std::move(bytes), std::move(ends)};
  return {std::move(bytes), rows, rows == 0 ? 0 : size / rows};
}

[[nodiscard]] inline bool have_siblings(std::span<const Block> blocks) noexcept {
  return std::any_of(blocks.begin(), blocks.end(), [](const Block& block) { return !block.siblings().empty(); });
}

// Those of all samples of some blocks, one block after another; of others than flat_map() has made they are 0.
[[nodiscard]] inline std::vector<std::uint64_t> join_siblings(std::span<const Block> blocks) {
  std::vector<std::uint64_t> siblings;
  if (!have_siblings(blocks)) return siblings;
  for (const Block& block : blocks) {
    for (std::size_t row = 0; row < block.rows(); ++row) siblings.push_back(block.sibling(row));
  }
  return siblings;
}

// Copies blocks of one schema into one, sample after sample; there is at least one.
[[nodiscard]] inline Block join_copies(std::span<const Block> blocks) {
  std::vector<Column> columns;
  for (std::size_t column = 0; column < blocks.front().columns().size(); ++column) {
    columns.push_back(join_columns(blocks, column));
  }
  std::vector<std::uint64_t> ids;
  for (const Block& block : blocks) ids.insert(ids.end(), block.ids().begin(), block.ids().end());
  return {blocks.front().shared_schema(), std::move(columns), std::move(ids), join_siblings(blocks)};
}

// Does the same, but gives a block back as it is if it alone has samples.
[[nodiscard]] inline Block join(std::span<const Block> blocks) {
  std::vector<Block> full;
  for (const Block& block : blocks) {
    if (!block.empty()) full.push_back(block);
  }
  if (full.empty()) return blocks.front();
  return full.size() == 1 ? full.front() : join_copies(full);
}

// Which sample of which part.
struct RowOfPart {
  std::size_t part = 0;
  std::size_t row = 0;
};

[[nodiscard]] inline Column gather_ragged(std::span<const Block> parts, std::span<const RowOfPart> rows,
                                          std::size_t column) {
  std::size_t size = 0;
  for (const RowOfPart& row : rows) size += parts[row.part][column].sample(row.row).size();
  const std::shared_ptr<std::byte[]> all{new std::byte[size]};
  auto ends = std::make_shared<std::vector<std::uint64_t>>();
  ends->reserve(rows.size());
  std::size_t done = 0;
  for (const RowOfPart& row : rows) {
    const auto bytes = parts[row.part][column].sample(row.row);
    if (!bytes.empty()) std::memcpy(all.get() + done, bytes.data(), bytes.size());
    ends->push_back(done += bytes.size());
  }
  return {std::shared_ptr<const std::byte>{all, all.get()}, std::move(ends)};
}

[[nodiscard]] inline Column gather_fixed(std::span<const Block> parts, std::span<const RowOfPart> rows,
                                         std::size_t column) {
  std::size_t size = 0;
  std::vector<const std::byte*> begins;
  for (const Block& part : parts) {
    if (!part.empty()) size = part[column].sample(0).size();
    begins.push_back(part[column].bytes().data());
  }
  const std::shared_ptr<std::byte[]> all{new std::byte[size * rows.size()]};
  std::byte* to = all.get();
  for (const RowOfPart& row : rows) {
    std::memcpy(to, begins[row.part] + row.row * size, size);
    to += size;
  }
  return {std::shared_ptr<const std::byte>{all, all.get()}, rows.size(), size};
}

// Takes samples from several blocks of one schema, of which there is at least one, in the order given.
[[nodiscard]] inline Block gather(std::span<const Block> parts, std::span<const RowOfPart> rows) {
  if (rows.empty()) return parts.front().slice(0, 0);
  const std::shared_ptr<const Schema>& schema = parts.front().shared_schema();
  std::vector<Column> columns;
  for (std::size_t column = 0; column < schema->size(); ++column) {
    columns.push_back((*schema)[column].is_ragged() ? gather_ragged(parts, rows, column)
                                                    : gather_fixed(parts, rows, column));
  }
  std::vector<std::uint64_t> ids;
  ids.reserve(rows.size());
  for (const RowOfPart& row : rows) ids.push_back(parts[row.part].ids()[row.row]);
  std::vector<std::uint64_t> siblings;
  if (have_siblings(parts)) {
    for (const RowOfPart& row : rows) siblings.push_back(parts[row.part].sibling(row.row));
  }
  return {schema, std::move(columns), std::move(ids), std::move(siblings)};
}

// Returns a block of no samples.
[[nodiscard]] inline Block no_samples(const std::shared_ptr<const Schema>& schema) {
  std::vector<Column> columns;
  for (const Field& field : *schema) {
    if (field.is_ragged()) {
      columns.emplace_back(nullptr, std::make_shared<const std::vector<std::uint64_t>>());
    } else {
      columns.emplace_back(nullptr, 0, field.width() * size_of(field.dtype));
    }
  }
  return {schema, std::move(columns), {}};
}

// Returns the block with ids that count from elsewhere.
[[nodiscard]] inline Block with_ids_from(const Block& block, std::uint64_t first) {
  if (first == 0) return block;
  std::vector<std::uint64_t> ids;
  for (const std::uint64_t id : block.ids()) ids.push_back(first + id);
  return {block.shared_schema(), block.columns(), std::move(ids), {block.siblings().begin(), block.siblings().end()}};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
