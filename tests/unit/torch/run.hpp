// SPDX-License-Identifier: MIT
// Runs a function on a few workers, in a folder that goes away, for the tests of this room.
#pragma once

#include "fit.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <chrono>
#include <ctime>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace test {

namespace ry = railyard;

// Computes for so much of a core's time, however fast LibTorch is and whoever else has the cores.
inline void compute_for(std::chrono::nanoseconds time) {
  const auto used = [] {
    struct timespec now {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
  };
  const auto end = used() + time;
  volatile double value = 1;
  while (used() < end) value = value * 1.0001;
}

// Runs and returns rank 0's last metrics, or throws what the run has failed with.
template <class Function>
ry::Metrics on_threads(int num_workers, Function function, std::uint64_t seed = 3) {
  return try_run<ry::SharedMemory, ry::Threads>(num_workers, std::move(function), seed).value_or_throw().metrics();
}

// Twice: by the collectives of a backend whose ranks do not see each other's memory, and then where they do.
template <class Function>
ry::Metrics on_both_threads(int num_workers, Function function, std::uint64_t seed = 3) {
  static_cast<void>(try_run<ry::Local, ry::Threads>(num_workers, function, seed).value_or_throw());
  return on_threads(num_workers, std::move(function), seed);
}

template <class Function>
ry::Metrics on_processes(int num_workers, Function function, std::uint64_t seed = 3) {
  return try_run<ry::Gloo, ry::Processes>(num_workers, std::move(function), seed).value_or_throw().metrics();
}

// Whether a run fails must not depend on whether its ranks see each other's memory: what both have to say is returned
// if it does.
inline std::string same_error(const ry::Result& apart, const ry::Result& shared) {
  if (static_cast<bool>(apart) == static_cast<bool>(shared)) return shared.error();
  return fmt::format("without and with shared memory it differs: \"{}\" and \"{}\"", apart.error(), shared.error());
}

// Returns what the run has failed with, or nothing.
template <class Function>
std::string error_of(int num_workers, Function function) {
  const ry::Result apart = try_run<ry::Local, ry::Threads>(num_workers, function);
  return same_error(apart, try_run<ry::SharedMemory, ry::Threads>(num_workers, std::move(function)));
}

// The same of workers that are processes.
template <class Function>
std::string error_on_processes(int num_workers, Function function) {
  const ry::Gloo::Options tcp{.transport = ry::GlooTransport::tcp};
  const ry::Result apart = try_run<ry::Gloo, ry::Processes>(num_workers, function, 3, tcp);
  return same_error(apart, try_run<ry::SharedMemory, ry::Processes>(num_workers, std::move(function)));
}

}  // namespace test
