// SPDX-License-Identifier: MIT
// A user's generators of samples, under way, and their states as bytes. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/user_calls.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/value.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Can be given to a source by what makes it, and its state saved.
template <class G>
concept StatefulGenerator = std::copy_constructible<G> && HasState<G> && std::invocable<G&, SampleWriter&>;

/// Makes generators whose state can be saved.
template <class B>
concept BeginsStatefulGenerator = std::invocable<const B&> && StatefulGenerator<std::invoke_result_t<const B&>>;

/// Is a mistake: a state that would be lost without a word.
template <class B>
concept BeginsHalfStateful = !BeginsStatefulGenerator<B> && requires(B & begin) {
  begin().state();
};

template <class B>
consteval void check_generators() {
  static_assert(
      !BeginsHalfStateful<B>,
      "a generator that has a state() needs a load_state(const State&) as well, both as Stateful has them, and "
      "is to be copyable and made by a function that can be called where it is const");
}

/// Writes the values of a state. Throws: ConfigError if it holds tensors, or takes more than a place may.
[[nodiscard]] inline std::string bytes_of_values(const State& state) {
  constexpr std::size_t most = std::size_t{1} << 20;
  if (!state.tensors.empty()) throw ConfigError{"the state of a generator can have no tensors: save values"};
  WireWriter writer;
  writer.put(static_cast<std::uint32_t>(state.values.size()));
  for (const auto& [name, value] : state.values) {
    writer.put_text(name);
    value.visit([&writer](const auto& plain) {
      using T = std::decay_t<decltype(plain)>;
      if constexpr (std::is_same_v<T, std::string>) {
        writer.put('t');
        writer.put_text(plain);
      } else {
        writer.put(std::is_same_v<T, bool> ? 'b' : std::is_same_v<T, double> ? 'n' : 'i');
        writer.put(plain);
      }
    });
  }
  if (writer.bytes().size() <= most) return writer.text();
  throw ConfigError{compose("the state of a generator takes {} bytes, and may take {}: save what the rest follows from",
                            writer.bytes().size(), most)};
}

/// Reads what bytes_of_values() has written. Throws: DataError if it is something else.
[[nodiscard]] inline State values_of_bytes(std::string_view bytes) {
  WireReader reader{bytes};
  State state;
  for (auto left = reader.take<std::uint32_t>(); left > 0; --left) {
    std::string name = reader.take_text();
    switch (reader.take<char>()) {
      case 't':
        state.values.set(std::move(name), reader.take_text());
        break;
      case 'b':
        state.values.set(std::move(name), reader.take<std::uint8_t>() != 0);
        break;
      case 'n':
        state.values.set(std::move(name), reader.take<double>());
        break;
      case 'i':
        state.values.set(std::move(name), reader.take<std::int64_t>());
        break;
      default:
        throw DataError{"it is damaged"};
    }
  }
  if (!reader.is_empty()) throw DataError{"it is damaged"};
  return state;
}

/// Is a user's generator that is under way.
class RunningGenerator {
 public:
  RunningGenerator() = default;
  RunningGenerator(const RunningGenerator&) = delete;
  RunningGenerator& operator=(const RunningGenerator&) = delete;
  virtual ~RunningGenerator() = default;

  /// Makes the next sample; false if there is none.
  [[nodiscard]] virtual bool make(SampleWriter& out) = 0;
  /// Its state, where it has one. next: the sample that it makes next.
  [[nodiscard]] virtual ReaderState state(const std::string& /*name*/, std::uint64_t /*next*/) const { return {}; }
  /// False, and nothing has changed, if it has no state. Throws: what the generator throws.
  [[nodiscard]] virtual bool load(const ReaderState& /*state*/) { return false; }
};

/// Is one whose state nobody knows.
class PlainGenerator final : public RunningGenerator {
 public:
  explicit PlainGenerator(std::function<bool(SampleWriter& out)> function) : function_(std::move(function)) {}
  [[nodiscard]] bool make(SampleWriter& out) override { return function_(out); }

 private:
  std::function<bool(SampleWriter& out)> function_;
};

/// Is one whose state is taken by a copy, and made into bytes only if somebody saves it.
template <StatefulGenerator G, bool is_endless>
class CopiedGenerator final : public RunningGenerator {
 public:
  explicit CopiedGenerator(G generator) : generator_(std::move(generator)) {}

  [[nodiscard]] bool make(SampleWriter& out) override {
    if constexpr (is_endless) {
      static_cast<void>(generator_(out));
      return true;
    } else {
      return generator_(out);
    }
  }
  [[nodiscard]] ReaderState state(const std::string& name, std::uint64_t next) const override {
    const auto copy = std::make_shared<G>(generator_);
    return {next, [copy, name, next] {
              return call_user([&copy] { return bytes_of_values(StateAccess<G>::take(*copy)); }, name,
                               [next] { return compose("its state before sample {}", next); });
            }};
  }
  [[nodiscard]] bool load(const ReaderState& state) override {
    StateAccess<G>::put(generator_, values_of_bytes(state.bytes()));
    return true;
  }

 private:
  G generator_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
