// SPDX-License-Identifier: MIT
// Says in one sentence what is wrong with a pair of policies. Train room.
#pragma once

#include "railyard/core/backend.hpp"
#include "railyard/core/scaling.hpp"

namespace railyard::inline v0_1 {
namespace detail {

template <class T>
concept Complete = requires {
  sizeof(T);
};

/// Is a pair of policies that can work.
template <class B, class S>
concept FittingPolicies = Complete<B> && Complete<S> && Backend<B> && Scaling<S> &&(B::reach >= S::reach);

/// Is a pair of policies of which at least one stands in the other's place.
template <class B, class S>
concept SwappedPolicies = (Complete<B> && Scaling<B>) || Backend<S>;

template <class B, class S>
struct OrderedPolicies {
  static_assert(!SwappedPolicies<B, S>,
                "a Trainer names its Backend first and its Scaling second, as in Trainer<Gloo, Processes>: here a "
                "Scaling stands in the place of the Backend, or a Backend in the place of the Scaling");
};

template <class B, class S>
struct CompletePolicies {
  static_assert(
      Complete<B>,
      "the Backend of this Trainer is only declared here. For Gloo, which is the default, compile with "
      "-DRAILYARD_WITH_GLOO=1 and link with -lgloo; without libgloo, say Trainer<SharedMemory, Processes>. For any "
      "other, include its header");
  static_assert(Complete<S>,
                "the Scaling of this Trainer is only declared here: include <railyard/railyard.hpp>, or its header");
};

template <class B, class S>
struct BothPolicies {
  static_assert(
      Backend<B>,
      "the first policy of this Trainer is no Backend: the compiler names below what the class lacks; "
      "railyard/core/backend.hpp says what each part has to do. There are Gloo, SharedMemory, Nccl, Local and "
      "Checked<Gloo>");
  static_assert(Scaling<S>,
                "the second policy of this Trainer is no Scaling: the compiler names below what the class lacks; "
                "railyard/core/scaling.hpp says what each part has to do. There are Processes, Threads and Launched");
};

template <class B, class S>
struct ReachingPolicies {
  static_assert(B::reach >= S::reach || B::reach != Reach::process,
                "this Backend cannot reach the workers that this Scaling makes: Local joins the threads of one process "
                "only; say Trainer<Gloo, Processes>, or Trainer<Local, Threads>");
  static_assert(B::reach >= S::reach || B::reach == Reach::process,
                "this Backend cannot reach the workers that this Scaling makes: SharedMemory joins the workers of one "
                "host only; say Trainer<Gloo, Launched>, which shares memory on each host, or "
                "Trainer<SharedMemory, Processes>");
};

/// Is instantiated for a pair that does not fit. The questions are asked one after another, each in a class of its own:
/// the compiler answers with one sentence, and a static_assert of nothing but a concept makes it name the missing part.
template <class B, class S>
constexpr auto refuse_policies() {
  if constexpr (SwappedPolicies<B, S>) {
    static_cast<void>(sizeof(OrderedPolicies<B, S>));
  } else if constexpr (!Complete<B> || !Complete<S>) {
    static_cast<void>(sizeof(CompletePolicies<B, S>));
  } else if constexpr (!Backend<B> || !Scaling<S>) {
    static_cast<void>(sizeof(BothPolicies<B, S>));
  } else {
    static_cast<void>(sizeof(ReachingPolicies<B, S>));
  }
}

/// Takes the place of the options of a backend that there is none of.
struct AnyOptions {
  AnyOptions() = default;
  template <class T>
  AnyOptions(const T& /*options*/) {}
};

}  // namespace detail
}  // namespace railyard::inline v0_1
