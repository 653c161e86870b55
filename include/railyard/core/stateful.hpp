// SPDX-License-Identifier: MIT
// What has a state that can be saved and put back. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/value.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is one tensor of a state: what it looks like, and a function that copies elements out of wherever they are.
struct StateTensor {
  std::string name{};
  Dtype dtype = Dtype::f32;
  /// Of the whole tensor; empty for a single number.
  std::vector<std::int64_t> shape{};
  /// Copies the elements [begin, end) of the whole, counted row by row, to where `to` points. To be called only while
  /// what the state was taken from is as it was.
  std::function<void(std::int64_t begin, std::int64_t end, std::byte* to)> read{};
  /// The other ranks hold the rest: this one has the elements [begin, end) alone. Otherwise all ranks have all of it.
  bool is_piece = false;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  /// The number of elements of the whole.
  [[nodiscard]] std::int64_t count() const noexcept {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

/// Is a saved state: values and tensors by name.
class State {
 public:
  State() = default;
  State(std::initializer_list<NamedValues::Entry> entries) : values(entries) {}

  NamedValues values{};
  std::vector<StateTensor> tensors{};
  /// Each rank has a state of its own, such as that of its random numbers, and gets its own back. Otherwise all ranks
  /// have the same, but for pieces of tensors. A TrainState sets it for what has merge(other) and reset().
  bool is_own = false;

  /// Returns the value of that name. Throws: Error that lists the names that exist.
  [[nodiscard]] const Value& at(std::string_view name) const { return values.at(name); }

  /// Returns the tensor of that name, or nullptr.
  [[nodiscard]] const StateTensor* find_tensor(std::string_view name) const noexcept {
    for (const StateTensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
};

/// Has a state. Law: after b.load_state(a.state()), a and b behave alike.
template <class T>
concept Stateful = requires(T& part, const T& saved, const State& state) {
  { saved.state() } -> std::convertible_to<State>;
  part.load_state(state);
};

/// Says how the state of a T is taken and put back: by its own members, if it has them. Rooms above specialise it for
/// types that are not ours.
template <class T>
struct StateAccess {};
template <Stateful T>
struct StateAccess<T> {
  static State take(const T& part) { return part.state(); }
  static void put(T& part, const State& state) { part.load_state(state); }
};

/// Says how a metric M adds what a model has made of a batch: outputs and a batch of types that rooms above know, which
/// specialise it.
template <class M, class Outputs, class Samples>
struct BatchAccess {};

namespace detail {

template <class M, class Outputs, class Samples>
concept AddsBatches = requires(M& metric, const Outputs& outputs, const Samples& batch) {
  BatchAccess<M, Outputs, Samples>::add(metric, outputs, batch);
};

}  // namespace detail

/// Can be a part of what a checkpoint holds.
template <class T>
concept HasState = requires(T& part, const State& state) {
  { StateAccess<T>::take(part) } -> std::convertible_to<State>;
  StateAccess<T>::put(part, state);
};

}  // namespace railyard::inline v0_1
