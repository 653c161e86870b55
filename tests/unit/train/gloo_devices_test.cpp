// SPDX-License-Identifier: MIT
// Which GPU each worker has where something else has started the processes, on fakes of NVIDIA's libraries.
#include "railyard/workers/launched.hpp"

#include "support/catch.hpp"
#include "support/fake_gpus.hpp"
#include "unit/train/launched_processes.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/gloo.hpp"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

using launched_runs::LaunchedProcesses;
using railyard_test::FakeGpus;

// The devices by rank, or what fit() has thrown.
std::string fit(const Scratch& scratch, ry::ScalingConfig scaling) {
  const auto report_devices = [](ry::Worker& worker) {
    std::vector<std::int32_t> devices(static_cast<std::size_t>(worker.world_size()));
    std::int32_t own = worker.device_index().value_or(-1);
    worker.all_gather(ry::buffer_of_value(own), ry::buffer_of(devices));
    worker.report({{"devices", fmt::format("{}", fmt::join(devices, " "))}});
  };
  scaling.use_gpu = true;
  ry::Trainer<ry::Gloo, ry::Launched> trainer{
      report_devices,
      std::move(scaling),
      {.storage_path = scratch.path(), .progress = ry::Progress::quiet, .start_timeout = 30s}};
  const ry::Result result = trainer.fit();
  return result ? result.metrics().at("devices").as<std::string>() : result.error();
}

// What each of so many processes has from it; lists: what CUDA_VISIBLE_DEVICES shows each, if not all.
std::vector<std::string> words(ry::ScalingConfig scaling, int num_processes, std::vector<std::string> lists = {}) {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, num_processes, [&](int process) {
                               const auto at = static_cast<std::size_t>(process);
                               if (at < lists.size()) ::setenv("CUDA_VISIBLE_DEVICES", lists[at].c_str(), 1);
                               return fit(scratch, scaling);
                             }};
  std::vector<std::string> all;
  for (int process = 0; process < num_processes; ++process) all.push_back(launched.words(process));
  return all;
}

}  // namespace

TEST_CASE("use_gpu: launched processes of a host that are shown all its GPUs take one after the other") {
  const FakeGpus gpus{4};
  CHECK(words({}, 3) == std::vector<std::string>(3, "0 1 2"));
  CHECK(words({.num_workers = 2}, 2) == std::vector<std::string>(2, "0 1 2 3"));
}

TEST_CASE("use_gpu: a launched process that is shown one GPU takes that") {
  const FakeGpus gpus{4};
  CHECK(words({}, 2, {"2", "GPU-00000001"}) == std::vector<std::string>(2, "0 0"));
  CHECK(words({.num_workers = {1, 8}}, 2, {"0", "3"}) == std::vector<std::string>(2, "0 0"));
}

TEST_CASE("use_gpu: launched processes that are shown the same GPU alone are refused, all of them") {
  const FakeGpus gpus{4};
  for (const std::string& text : words({}, 2, {"3", "GPU-00000003"})) {
    CHECK_THAT(text, ContainsSubstring("processes 0 and 1 of 2 are both shown GPU-00000003-1234"));
    CHECK_THAT(text, ContainsSubstring("CUDA_VISIBLE_DEVICES is \"GPU-00000003\""));
  }
}

TEST_CASE("use_gpu: too few GPUs for the launched processes of a host are refused, in all of them") {
  const FakeGpus gpus{3};
  for (const std::string& text : words({.num_workers = 2}, 2)) {
    CHECK_THAT(text, ContainsSubstring("threw: process 1 of 2 makes the workers 3 to 4 of its host"));
    CHECK_THAT(text, ContainsSubstring("NVML finds 3 GPUs"));
  }
  for (const std::string& text : words({}, 2, {"0,1", ""})) {
    CHECK_THAT(text, ContainsSubstring("process 1 of 2"));
    CHECK_THAT(text, ContainsSubstring("CUDA_VISIBLE_DEVICES is \"\""));
  }
}

TEST_CASE("use_gpu: a launched process alone has its GPUs as Processes does") {
  const FakeGpus gpus{2};
  const Scratch scratch;
  CHECK(fit(scratch, {.num_workers = 2}) == "0 1");
  CHECK(fit(scratch, {.num_workers = {1, 4}}) == "0 1");
  CHECK_THROWS_WITH(fit(scratch, {.num_workers = 3}), ContainsSubstring("3 workers need a GPU each"));
}
