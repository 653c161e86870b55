// SPDX-License-Identifier: MIT
// The concepts of what changes samples by what it has learned from others, and fit(), which lets it learn. Data room.
#pragma once

#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/stateful.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace railyard::inline v0_1 {

/// Changes blocks of samples. A value; transform() may be called on several threads at once.
///
/// Laws: transform(block) has the columns schema(block.schema()), and the samples and ids of block in their order, each
/// as if it were alone. It may have touches(), which returns the names of all columns that it looks at or changes, or
/// nothing where they are not known, and fingerprint(), a std::uint64_t that is another when its options are: caches
/// behind it are made anew then. By both of them a checkpoint tells two of one type from one that has learned anew.
template <class P>
concept Preprocessor = std::copy_constructible<P> &&
    requires(const P& fitted, const Schema& before, const Block& block) {
  { fitted.schema(before) } -> std::convertible_to<Schema>;  // throws ConfigError if it cannot change such samples
  { fitted.transform(block) } -> std::convertible_to<Block>;
};

/// Is a Preprocessor that first learns from samples. What it has learned is its state. It may have passes(), which says
/// how often it must see all samples where that is not once; then finish() ends each pass.
///
/// Laws: begin() forgets all. After begin(), merge(bytes) has the effect of all add() behind the statistics() that gave
/// the bytes, but for rounding and the error that a sketch states; merging the same bytes in the same order gives the
/// same bits.
template <class P>
concept LearningPreprocessor = Preprocessor<P> && std::copyable<P> && Stateful<P> &&
    requires(P& part, const P& begun, const Schema& schema, const Block& block, std::span<const std::byte> bytes) {
  part.begin(schema);  // throws ConfigError if it cannot learn from such samples
  part.add(block);
  { begun.statistics() } -> std::convertible_to<std::vector<std::byte>>;
  part.merge(bytes);
  part.finish();  // throws DataError if it cannot learn from what was added
};

/// Gathers what every worker gives, in the order of ranks: how workers fit together.
using GatherBytes = std::function<std::vector<std::vector<std::byte>>(std::vector<std::byte>)>;

/// Says where fit() reads, and with whom.
struct FitOptions {
  std::size_t rows_per_block = 4096;
  /// Of the workers of which each reads a part; empty where one reads all. Then all learn the same bits.
  GatherBytes gather{};
};

/// Names columns, or nothing where they are not known.
using TouchedColumns = std::optional<std::vector<std::string>>;

namespace detail {

/// Returns the columns that options name, which are known only if they are not all but some.
[[nodiscard]] inline TouchedColumns touched(const std::vector<std::string>& columns) {
  return columns.empty() ? TouchedColumns{} : TouchedColumns{columns};
}

/// Adds a state.
inline void identify_state(const State& state, Fingerprint& fingerprint) {
  for (const auto& [name, value] : state.values) {
    fingerprint.add(std::string_view{name});
    value.visit([&fingerprint](const auto& held) {
      if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::int64_t>) {
        fingerprint.add(static_cast<std::uint64_t>(held));
      } else if constexpr (std::is_arithmetic_v<std::decay_t<decltype(held)>>) {
        fingerprint.add(held);
      } else {
        fingerprint.add(std::string_view{held});
      }
    });
  }
  for (const StateTensor& tensor : state.tensors) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.count()) * size_of(tensor.dtype));
    tensor.read(0, tensor.count(), bytes.data());
    fingerprint.add(std::string_view{tensor.name});
    fingerprint.add(std::span<const std::byte>{bytes});
  }
}

[[nodiscard]] inline std::uint64_t fingerprint_of(const State& state) {
  Fingerprint fingerprint;
  identify_state(state, fingerprint);
  return fingerprint.value();
}

/// Adds what a preprocessor is, what it has learned, and its options, if it tells of them.
template <Preprocessor P>
void identify_preprocessor(const P& fitted, Fingerprint& fingerprint) {
  fingerprint.add(std::string_view{typeid(P).name()});
  if constexpr (Stateful<P>) identify_state(fitted.state(), fingerprint);
  if constexpr (requires {
                  { fitted.fingerprint() } -> std::convertible_to<std::uint64_t>;
                }) {
    fingerprint.add(std::uint64_t{fitted.fingerprint()});
  }
}

/// How often a preprocessor must see the samples to learn.
template <Preprocessor P>
[[nodiscard]] std::size_t passes_of(const P& preprocessor) {
  if constexpr (requires { preprocessor.passes(); }) {
    return preprocessor.passes();
  } else {
    return LearningPreprocessor<P> ? 1 : 0;
  }
}

template <class P>
void fit_pass(P& preprocessor, BlockReader& reader, const FitOptions& options) {
  const P before = preprocessor;
  for (Block block = reader.next(options.rows_per_block); !block.empty(); block = reader.next(options.rows_per_block)) {
    preprocessor.add(block);
  }
  if (options.gather) {
    const auto all = options.gather(preprocessor.statistics());
    preprocessor = before;  // so that every rank merges the same bytes in the same order
    for (const std::vector<std::byte>& statistics : all) preprocessor.merge(statistics);
  }
  preprocessor.finish();
}

}  // namespace detail

/// Lets a preprocessor learn from the samples that readers give.
/// open: begins to read at the first sample; called once, for a Chain Chain::passes() times.
/// Throws: what reading throws; ConfigError, DataError if the preprocessor cannot learn from these samples.
template <LearningPreprocessor P, std::invocable Open>
requires std::convertible_to<std::invoke_result_t<Open>, std::unique_ptr<BlockReader>>
void fit(P& preprocessor, const Schema& schema, Open&& open, const FitOptions& options = {}) {
  preprocessor.begin(schema);
  for (std::size_t pass = detail::passes_of(preprocessor); pass > 0; --pass) {
    const std::unique_ptr<BlockReader> reader = open();
    detail::fit_pass(preprocessor, *reader, options);
  }
}

/// Lets a preprocessor learn from all samples of a source.
template <LearningPreprocessor P, DatasetSource S>
void fit(P& preprocessor, const S& source, const FitOptions& options = {}) {
  fit(
      preprocessor, Schema{source.schema()}, [&]() -> std::unique_ptr<BlockReader> { return source.open(0); }, options);
}

}  // namespace railyard::inline v0_1
