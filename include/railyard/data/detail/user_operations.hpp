// SPDX-License-Identifier: MIT
// Makes operations on blocks of the functions that users write for samples. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/function_source.hpp"
#include "railyard/data/sample.hpp"
#include "railyard/data/sample_random.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

template <class F>
concept MapFunction = std::invocable<const F&, const Sample&, SampleWriter&> ||
    std::invocable<const F&, const Sample&, SampleWriter&, SampleRandom&>;
template <class F>
concept FilterFunction =
    std::predicate<const F&, const Sample&> || std::predicate<const F&, const Sample&, SampleRandom&>;
template <class F>
concept FlatMapFunction = std::invocable<const F&, const Sample&, SampleList&> ||
    std::invocable<const F&, const Sample&, SampleList&, SampleRandom&>;
template <class F>
concept BlockMapFunction = requires(const F& function, const Block& block) {
  { function(block) } -> std::convertible_to<Block>;
};

// Calls a function with the random numbers if it wants them.
template <class F, class... Arguments>
decltype(auto) call_with(const F& function, SampleRandom& random, Arguments&&... arguments) {
  if constexpr (std::is_invocable_v<const F&, Arguments..., SampleRandom&>) {
    return function(std::forward<Arguments>(arguments)..., random);
  } else {
    return function(std::forward<Arguments>(arguments)...);
  }
}

// Calls visit(sample, row, random) for each sample of a block, and says where an exception came from.
// stops(row): whether to leave that one and those after it.
template <class Visit, class Stops>
void for_each_sample(const Block& block, std::uint64_t seed, const std::string& where, Visit&& visit, Stops&& stops) {
  for (std::size_t row = 0; row < block.rows() && !stops(row); ++row) {
    const Sample sample{block, row};
    SampleRandom random{seed_of_sample(seed, sample.id(), sample.sibling())};
    call_user([&] { visit(sample, row, random); }, where, sample.id());
  }
}

template <class Visit>
void for_each_sample(const Block& block, std::uint64_t seed, const std::string& where, Visit&& visit) {
  for_each_sample(block, seed, where, visit, [](std::size_t /*row*/) { return false; });
}

// What a sample takes at least: of a column whose samples differ in size nobody knows.
[[nodiscard]] inline std::size_t fixed_bytes(const Schema& schema) noexcept {
  std::size_t bytes = sizeof(std::uint64_t);
  for (const Field& field : schema) bytes += field.is_ragged() ? 0 : field.width() * size_of(field.dtype);
  return bytes;
}

// Is what an operation needs to know of where it stands.
struct OperationSite {
  std::shared_ptr<const Schema> schema{};  // of what comes out
  std::string where{};                     // for messages
  std::uint64_t salt = 0;                  // tells its random numbers from others'
};

template <MapFunction F>
[[nodiscard]] BlockFunction map_samples(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& key,
                                                                  PartLimit& limit) {
    BlockBuilder builder{site.schema, std::min(block.rows(), limit.most_bytes / fixed_bytes(*site.schema) + 1)};
    const auto add = [&](const Sample& sample, std::size_t row, auto& random) {
      call_with(function, random, sample, builder.add(sample.id(), sample.sibling()));
      builder.complete_from(block, row);
      builder.check_complete();
    };
    for_each_sample(block, key.derive(site.salt), site.where, add,
                    [&](std::size_t row) { return limit.stops(row, builder.bytes()); });
    return builder.build();
  };
}

template <FlatMapFunction F>
[[nodiscard]] BlockFunction flat_map_samples(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& key,
                                                                  PartLimit& limit) {
    BlockBuilder builder{site.schema};
    const auto add = [&](const Sample& sample, std::size_t row, auto& random) {
      SampleList out{builder, block, row};
      call_with(function, random, sample, out);
      out.finish();
    };
    for_each_sample(block, key.derive(site.salt), site.where, add,
                    [&](std::size_t row) { return limit.stops(row, builder.bytes()); });
    return builder.build();
  };
}

template <FilterFunction F>
[[nodiscard]] BlockFunction filter_samples(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& key,
                                                                  PartLimit& /*limit*/) {
    std::vector<std::size_t> kept;
    for_each_sample(block, key.derive(site.salt), site.where, [&](const Sample& sample, std::size_t row, auto& random) {
      if (call_with(function, random, sample)) kept.push_back(row);
    });
    const Block chosen = take(block, kept);
    const bool are_few = !kept.empty() && 2 * kept.size() < block.rows();  // which would keep the block in memory
    return are_few ? join_copies(std::span{&chosen, 1}) : chosen;
  };
}

template <BlockMapFunction F>
[[nodiscard]] BlockFunction map_blocks(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& /*key*/,
                                                                  PartLimit& /*limit*/) {
    if (block.empty()) return no_samples(site.schema);
    return call_user(
        [&] {
          const Block made = function(block);
          if (made.rows() != block.rows() || made.schema() != *site.schema) {
            throw DataError{
                compose("a block of {} samples became one of {} with the columns {}: there must be as many, with the "
                        "columns {}, and their dtypes and shapes as was said",
                        block.rows(), made.rows(), made.schema().names(), site.schema->names())};
          }
          return block.with(site.schema, made.columns());
        },
        site.where, [&block] { return text_of_samples(block.ids()); });
  };
}

// Takes columns by their numbers.
template <class = void>
[[nodiscard]] BlockFunction choose_columns(std::shared_ptr<const Schema> schema, std::vector<std::size_t> chosen) {
  return [schema = std::move(schema), chosen = std::move(chosen)](const Block& block, const EpochKey& /*key*/,
                                                                  PartLimit& /*limit*/) {
    std::vector<Column> columns;
    for (const std::size_t column : chosen) columns.push_back(block[column]);
    return block.with(schema, std::move(columns));
  };
}

}  // namespace detail
}  // namespace railyard::inline v0_1
