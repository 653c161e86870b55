// SPDX-License-Identifier: MIT
// Runs a function on a few workers, in a folder that goes away, for the tests of this room.
#pragma once

#include "railyard/collectives/gloo.hpp"
#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/train/trainer.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace test {

namespace ry = railyard;

template <class Backend, class Scaling, class Function>
ry::Result try_run(int num_workers, Function function, std::uint64_t seed = 3, typename Backend::Options options = {}) {
  std::string folder = (std::filesystem::temp_directory_path() / "railyard_torch_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw ry::Error{"cannot make " + folder};
  ry::RunConfig config{.storage_path = folder, .seed = seed, .progress = ry::Progress::quiet};
  config.collective_timeout = std::chrono::seconds{20};
  ry::Trainer<Backend, Scaling> trainer{std::move(function), {.num_workers = num_workers}, config, std::move(options)};
  ry::Result result = trainer.fit();
  std::filesystem::remove_all(folder);
  return result;
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

// Fails the run if something does not hold: CHECK is not for threads, and nobody would see it in another process.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}
#define EXPECT(...) ::test::expect((__VA_ARGS__), #__VA_ARGS__)

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
