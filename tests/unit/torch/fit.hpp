// SPDX-License-Identifier: MIT
// Runs a function on the workers of one pair of policies, in a folder that goes away, and lets workers fail a run.
// Knows no backend.
#pragma once

#include "railyard/train/trainer.hpp"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

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

// Fails the run if something does not hold: CHECK is not for threads, and nobody would see it in another process.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}
#define EXPECT(...) ::test::expect((__VA_ARGS__), #__VA_ARGS__)

}  // namespace test
