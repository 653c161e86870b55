// SPDX-License-Identifier: MIT
// The state of the standard library's random numbers. Train room.
#pragma once

#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <istream>
#include <locale>
#include <ostream>
#include <random>
#include <sstream>
#include <string>

namespace railyard::inline v0_1 {
namespace detail {

// The standard asks of every engine that it can be written to a stream as text and read back. Its result_type comes
// first: of some holders of LibTorch's modules one may not even ask whether they can be called.
template <class E>
concept RandomEngine = requires {
  typename E::result_type;
}
&&std::uniform_random_bit_generator<E>&& requires(E& engine, const E& saved, std::istream& in, std::ostream& out) {
  out << saved;
  in >> engine;
};

}  // namespace detail

/// Saves the engines of <random>, such as std::mt19937_64; each rank has its own. Distributions that remember numbers,
/// such as std::normal_distribution, are to be reset() at the begin of a step, for their memory is not saved.
/// Throws: ConfigError if what was saved is no state of such an engine.
template <detail::RandomEngine E>
requires(!Stateful<E>) struct StateAccess<E> {
  static State take(const E& engine) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text << engine;
    State state{{"engine", text.str()}};
    state.is_own = true;
    return state;
  }
  static void put(E& engine, const State& state) {
    std::istringstream text{state.at("engine").template as<std::string>()};
    text.imbue(std::locale::classic());
    E read;
    if (!(text >> read) || !(text >> std::ws).eof()) {
      throw ConfigError{
          "the saved state of a random engine is not one of this type: use the engine that was saved, such as "
          "std::mt19937_64, or begin without its state"};
    }
    engine = read;
  }
};

}  // namespace railyard::inline v0_1
