// SPDX-License-Identifier: MIT
// The options and the state of LibTorch's optimizers by name, to be read and written alike. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string_view>
#include <tuple>

namespace railyard::inline v0_1 {

namespace detail {

// For each optimizer: its types, and what visits each field of them, const or not, as visit(name, field).
template <class X>
struct OptimizerFields {};

template <>
struct OptimizerFields<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using ParamState = torch::optim::SGDParamState;
  static constexpr std::string_view name = "SGD";
  static constexpr bool is_elementwise = true;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

// Adam and AdamW differ in nothing but their names here.
template <class O, class S>
struct AdamFields {
  using Options = O;
  using ParamState = S;
  static constexpr bool is_elementwise = true;

  template <class Any, class Visit>
  static void options(Any& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("beta1", std::get<0>(options.betas()));
    visit("beta2", std::get<1>(options.betas()));
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <class Any, class Visit>
  static void state(Any& state, const Visit& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};
template <>
struct OptimizerFields<torch::optim::Adam> : AdamFields<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr std::string_view name = "Adam";
};
template <>
struct OptimizerFields<torch::optim::AdamW> : AdamFields<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr std::string_view name = "AdamW";
};

template <>
struct OptimizerFields<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using ParamState = torch::optim::AdagradParamState;
  static constexpr std::string_view name = "Adagrad";
  static constexpr bool is_elementwise = true;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

template <>
struct OptimizerFields<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using ParamState = torch::optim::RMSpropParamState;
  static constexpr std::string_view name = "RMSprop";
  static constexpr bool is_elementwise = true;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

// Its one state stands with the first parameter and is about all of them. Not saved: `al`, which each step fills anew.
template <>
struct OptimizerFields<torch::optim::LBFGS> {
  using Options = torch::optim::LBFGSOptions;
  using ParamState = torch::optim::LBFGSParamState;
  static constexpr std::string_view name = "LBFGS";
  static constexpr bool is_elementwise = false;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("max_iter", options.max_iter());
    visit("max_eval", options.max_eval());
    visit("tolerance_grad", options.tolerance_grad());
    visit("tolerance_change", options.tolerance_change());
    visit("history_size", options.history_size());
    visit("line_search_fn", options.line_search_fn());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("func_evals", state.func_evals());
    visit("n_iter", state.n_iter());
    visit("t", state.t());
    visit("prev_loss", state.prev_loss());
    visit("d", state.d());
    visit("H_diag", state.H_diag());
    visit("prev_flat_grad", state.prev_flat_grad());
    visit("old_dirs", state.old_dirs());
    visit("old_stps", state.old_stps());
    visit("ro", state.ro());
  }
};

template <class X>
concept KnownOptimizer = requires {
  typename OptimizerFields<X>::Options;
};
// Updates each element by itself, so that pieces of a tensor can be updated apart.
template <class X>
concept ElementwiseOptimizer = KnownOptimizer<X> && OptimizerFields<X>::is_elementwise;

}  // namespace detail

}  // namespace railyard::inline v0_1
