// SPDX-License-Identifier: MIT
// Saves the state of LibTorch's optimizers and puts it back, whole or in the pieces of ranks. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/optimizer_fields.hpp"
#include "railyard/torch/detail/tensor_state.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Optional.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// A parameter of an optimizer.
struct OptimizedTensor {
  at::Tensor whole{};
  std::shared_ptr<GradientPiece> piece{};  // where ranks share the work; otherwise each of them does all of it
  bool has_master = false;                 // a copy in f32 is updated instead: of the piece, or this one of the whole
  at::Tensor master{};

  // What this rank's optimizer updates; undefined if it is nothing.
  [[nodiscard]] const at::Tensor& own() const noexcept {
    if (piece) return piece->updated();
    return master.defined() ? master : whole;
  }
  // The type of that, also where this rank has nothing of it.
  [[nodiscard]] at::ScalarType updated_type() const {
    return has_master ? at::ScalarType::Float : as_real(whole.detach()).scalar_type();
  }
};
using OptimizedGroups = std::vector<std::vector<OptimizedTensor>>;

// The parameters of an optimizer, each once: C++ modules list tied ones twice.
[[nodiscard]] inline OptimizedGroups parameters_of(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  OptimizedGroups parameters;
  std::unordered_set<const void*> seen;
  for (const auto& group : groups) {
    parameters.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.back().push_back({.whole = parameter});
    }
  }
  return parameters;
}

// How LibTorch finds the state of a tensor: by its address, which releases before 2.1 write out.
template <class Map>
[[nodiscard]] typename Map::key_type state_key(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<typename Map::key_type, std::string>) {
    std::ostringstream text;
    text << tensor.unsafeGetTensorImpl();
    return text.str();
  } else {
    return tensor.unsafeGetTensorImpl();
  }
}

[[nodiscard]] inline std::string group_prefix(std::size_t group) { return compose("groups.{}.", group); }
[[nodiscard]] inline std::string state_prefix(std::size_t group, std::size_t index) {
  return compose("state.{}.{}.", group, index);
}
[[nodiscard]] inline std::string shapes_of(const std::vector<OptimizedTensor>& parameters) {
  std::vector<std::string> shapes;
  for (const OptimizedTensor& parameter : parameters) shapes.push_back(shape_of(parameter.whole));
  return joined(shapes, ", ");
}

// Saves the fields of a group's options.
struct SaveOption {
  NamedValues& values;
  const std::string& prefix;

  template <class T>
  void operator()(std::string_view name, const T& field) const {
    values.set(prefix + std::string{name}, field);
  }
  template <class T>
  void operator()(std::string_view name, const c10::optional<T>& field) const {
    if (field) (*this)(name, *field);
  }
};

// Saves the fields of a parameter's state. Numbers are tensors too: of a piece only its ranks know them.
struct SaveField {
  std::vector<StateTensor>& tensors;
  const OptimizedTensor& parameter;
  std::string prefix;

  void operator()(std::string_view name, const at::Tensor& field) const {
    if (!field.defined()) return;
    std::string full = prefix + std::string{name};
    tensors.push_back(parameter.piece ? piece_state(std::move(full), shape_in_memory(parameter.whole),
                                                    parameter.piece->begin, parameter.piece->end, field)
                                      : whole_state(std::move(full), field));
  }
  void operator()(std::string_view name, const std::deque<at::Tensor>& fields) const {
    for (std::size_t i = 0; i < fields.size(); ++i) (*this)(compose("{}.{}", name, i), fields[i]);
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(std::string_view name, const T& field) const {
    if (parameter.piece && parameter.piece->begin > 0) return;  // the rank with the first element says it for all
    tensors.push_back({.name = prefix + std::string{name},
                       .dtype = dtype_of<T>,
                       .read = [field](std::int64_t begin, std::int64_t end,
                                       std::byte* to) { std::memcpy(to, &field, begin < end ? sizeof field : 0); },
                       .is_piece = parameter.piece != nullptr,
                       .begin = 0,
                       .end = 1});
  }
};

// Reads the fields of a group's options.
struct LoadOption {
  const NamedValues& values;
  const std::string& prefix;

  template <class T>
  void operator()(std::string_view name, T& field) const {
    const Value& value = values.at(prefix + std::string{name});
    if constexpr (std::is_same_v<T, double>) {
      field = value.number();
    } else {
      field = value.as<T>();
    }
  }
  template <class T>
  void operator()(std::string_view name, c10::optional<T>& field) const {
    field.reset();
    if (values.find(prefix + std::string{name}) == nullptr) return;
    T value{};
    (*this)(name, value);
    field = std::move(value);
  }
};

// Reads the fields of a parameter's state.
struct LoadField {
  UnreadTensors& saved;
  std::vector<std::string>& problems;
  const NamedValues& values;
  const OptimizedTensor& parameter;
  std::string prefix;
  bool is_elementwise;
  bool& found;

  void operator()(std::string_view name, at::Tensor& field) const {
    const StateTensor* state = saved.take(prefix + std::string{name});
    if (state == nullptr) return;
    found = true;
    const SavedTensor tensor = in_order(*state);
    if (!is_elementwise) {
      field = tensor.whole().to(parameter.whole.device());
    } else if (!tensor.fits(as_real(parameter.whole.detach()), parameter.updated_type())) {
      problems.push_back(compose("\"{}\" is {} and belongs to a parameter {}{}", state->name, tensor.text(),
                                 shape_of(parameter.whole), parameter.has_master ? " updated in f32" : ""));
    } else if (parameter.own().defined()) {
      field = at::empty_like(parameter.own().detach());
      read(tensor, field);
    }
  }
  void operator()(std::string_view name, std::deque<at::Tensor>& fields) const {
    for (std::size_t i = 0;; ++i) {
      at::Tensor field;
      (*this)(compose("{}.{}", name, i), field);
      if (!field.defined()) return;
      fields.push_back(std::move(field));
    }
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(std::string_view name, T& field) const {
    const StateTensor* state = saved.take(prefix + std::string{name});
    if (state == nullptr) return;
    found = true;
    if (state->dtype == dtype_of<T> && state->shape.empty()) {
      state->read(0, 1, reinterpret_cast<std::byte*>(&field));
    } else {
      problems.push_back(compose("\"{}\" is {} and must be one number, {}", state->name, saved_rows(*state).text(),
                                 name_of(dtype_of<T>)));
    }
  }

 private:
  void read(const SavedTensor& tensor, const at::Tensor& field) const {
    if (parameter.piece) {
      tensor.read_piece(parameter.whole, parameter.piece->begin, parameter.piece->end, field);
    } else {
      tensor.read_into(field);
    }
  }

  [[nodiscard]] SavedTensor in_order(const StateTensor& state) const {
    const SavedTensor rows = saved_rows(state);
    const Value* text = values.find(prefix + "order");
    if (text == nullptr) return rows;
    std::istringstream numbers{text->as<std::string>()};
    SavedTensor tensor = rows;
    for (std::int64_t& dim : tensor.order) numbers >> dim;
    const auto& dims = rows.order;
    return std::is_permutation(dims.begin(), dims.end(), tensor.order.begin()) ? tensor : rows;
  }
};

template <KnownOptimizer X>
class OptimizerState {
  using Fields = OptimizerFields<X>;
  using Options = typename Fields::Options;
  using ParamState = typename Fields::ParamState;

 public:
  [[nodiscard]] static State take(const X& optimizer, const OptimizedGroups& groups) {
    State state{{"optimizer", Fields::name}};
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const std::string prefix = group_prefix(group);
      state.values.set(prefix + "parameters", shapes_of(groups[group]));
      Fields::options(static_cast<const Options&>(optimizer.param_groups()[group].options()),
                      SaveOption{state.values, prefix});
      for (std::size_t index = 0; index < groups[group].size(); ++index) {
        take(optimizer, groups[group][index], state_prefix(group, index), state);
      }
    }
    return state;
  }

  // Reads everything before it changes anything.
  static void put(X& optimizer, const OptimizedGroups& groups, const State& state) {
    const at::NoGradGuard no_grad;
    check(groups, state.values);
    UnreadTensors saved{state};
    std::vector<std::string> problems;
    std::vector<Options> options;
    std::vector<std::pair<at::Tensor, std::unique_ptr<ParamState>>> states;
    std::vector<std::pair<at::Tensor, at::Tensor>> masters;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      options.push_back(static_cast<const Options&>(optimizer.param_groups()[group].options()));
      Fields::options(options.back(), LoadOption{state.values, group_prefix(group)});
      for (std::size_t index = 0; index < groups[group].size(); ++index) {
        const OptimizedTensor& parameter = groups[group][index];
        bool found = false;
        auto fields = std::make_unique<ParamState>();
        Fields::state(*fields, LoadField{saved, problems, state.values, parameter, state_prefix(group, index),
                                         Fields::is_elementwise, found});
        if (parameter.own().defined()) states.emplace_back(parameter.own(), found ? std::move(fields) : nullptr);
        if (!parameter.has_master) continue;
        at::Tensor master;
        LoadField{saved, problems, state.values, parameter, state_prefix(group, index), true, found}("master", master);
        if (master.defined()) masters.emplace_back(parameter.own(), std::move(master));
      }
    }
    saved.name_surplus(problems);
    refuse(problems);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      static_cast<Options&>(optimizer.param_groups()[group].options()) = options[group];
    }
    for (const auto& [tensor, master] : masters) tensor.copy_(master);
    auto& map = optimizer.state();
    for (auto& [tensor, fields] : states) {
      const auto key = state_key<std::decay_t<decltype(map)>>(tensor);
      map.erase(key);
      if (fields) map[key] = std::move(fields);
    }
  }

 private:
  static void take(const X& optimizer, const OptimizedTensor& parameter, const std::string& prefix, State& state) {
    if (parameter.piece && !parameter.whole.is_contiguous()) {
      state.values.set(prefix + "order", joined(order_in_memory(parameter.whole), " "));
    }
    if (!parameter.own().defined() || (parameter.piece && parameter.piece->is_copy)) return;
    if (parameter.has_master) SaveField{state.tensors, parameter, prefix}("master", parameter.own());
    const auto& map = optimizer.state();
    const auto found = map.find(state_key<std::decay_t<decltype(map)>>(parameter.own()));
    if (found == map.end()) return;
    Fields::state(static_cast<const ParamState&>(*found->second), SaveField{state.tensors, parameter, prefix});
  }

  static void check(const OptimizedGroups& groups, const NamedValues& values) {
    std::vector<std::string> problems;
    const auto compare = [&](const std::string& name, const std::string& here) {
      const Value* saved = values.find(name);
      if (saved != nullptr && *saved == Value{here}) return;
      problems.push_back(
          compose("{} is {} here, and was {}", name, here, saved == nullptr ? "nothing" : saved->as<std::string>()));
    };
    compare("optimizer", std::string{Fields::name});
    for (std::size_t group = 0; group < groups.size(); ++group) {
      compare(group_prefix(group) + "parameters", shapes_of(groups[group]));
    }
    if (values.find(group_prefix(groups.size()) + "parameters") != nullptr) {
      problems.push_back(compose("there are {} groups of parameters here, and were more", groups.size()));
    }
    refuse(problems);
  }

  static void refuse(const std::vector<std::string>& problems) {
    if (problems.empty()) return;
    throw ConfigError{
        compose("the saved state of an optimizer does not fit it: {}. Nothing was changed. Make it with "
                "the same parameters in the same groups as the one that was saved, or begin without it",
                joined(problems, "; "))};
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
