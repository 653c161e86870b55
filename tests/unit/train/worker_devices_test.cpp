// SPDX-License-Identifier: MIT
// Runs whose workers have a GPU each, on fakes of NVIDIA's libraries.
#include "railyard/train/detail/worker_devices.hpp"

#include "railyard/collectives/nccl.hpp"
#include "railyard/workers/processes.hpp"

#include "support/catch.hpp"
#include "support/fake_gpus.hpp"
#include "support/places.hpp"
#include "unit/train/quick_trainer.hpp"
#include "unit/train/toy_training.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

using railyard_test::FakeGpus;
using railyard_test::Setting;

// "0 1 2": what the ranks say of themselves, in their order.
template <class P, class Say>
std::string said_by_ranks(ry::ScalingConfig scaling, const Say& say, typename P::B::Options options = {}) {
  const Scratch scratch;
  const auto function = [&](ry::Worker& worker) {
    worker.store().set(fmt::format("said/{}", worker.rank()), say(worker));
    if (worker.rank() != 0) return;
    std::string all;
    for (int rank = 0; rank < worker.world_size(); ++rank) {
      const auto text = worker.store().get(fmt::format("said/{}", rank), ry::Deadline::after(30s));
      all += (rank == 0 ? "" : " ") + text.value_or("nothing");
    }
    worker.report({{"all", all}});
  };
  ry::Trainer<typename P::B, typename P::S> trainer{
      function, std::move(scaling), {.storage_path = scratch.path(), .progress = ry::Progress::quiet}, options};
  const ry::Result result = trainer.fit();
  INFO(result.error());
  REQUIRE(result);
  return result.metrics().at("all").as<std::string>();
}

std::string device_of(ry::Worker& worker) {
  return worker.device_index() ? fmt::format("{}", *worker.device_index()) : "none";
}

struct NcclProcesses {
  using B = ry::Nccl;
  using S = ry::Processes;
};

template <class P>
void refused(ry::ScalingConfig scaling, const std::string& what, const std::string& remedy) {
  const Scratch scratch;
  ry::Trainer<typename P::B, typename P::S> trainer{
      [](ry::Worker&) {}, std::move(scaling), {.storage_path = scratch.path() / "runs", .start_timeout = 300ms}};
  CHECK_THROWS_AS(trainer.fit(), ry::ConfigError);
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring(what) && ContainsSubstring(remedy));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "runs"));
}

}  // namespace

TEMPLATE_TEST_CASE("use_gpu: each worker has the GPU of its number on the host", "", toy::LocalThreads,
                   toy::SharedProcesses) {
  const FakeGpus gpus{4};
  CHECK(said_by_ranks<TestType>({.num_workers = 3, .use_gpu = true}, device_of) == "0 1 2");
  CHECK(said_by_ranks<TestType>({.num_workers = 2}, device_of) == "none none");
}

TEMPLATE_TEST_CASE("use_gpu: more workers than GPUs are refused before anything starts, with what was found", "",
                   toy::LocalThreads, toy::SharedProcesses) {
  const FakeGpus gpus{4};
  refused<TestType>({.num_workers = 5, .use_gpu = true},
                    "5 workers need a GPU each (ScalingConfig::use_gpu), and on host",
                    "is shown 4 GPUs (NVML finds 4 GPUs, CUDA_VISIBLE_DEVICES is not set): ask for fewer");
  const Setting two = railyard_test::visible("1,GPU");
  refused<TestType>({.num_workers = 2, .use_gpu = true}, "is shown 1 GPU (NVML finds 4 GPUs",
                    "\"GPU\" in it names none of them");
}

TEST_CASE("use_gpu: without NVIDIA's libraries it is refused, and told how to train on CPUs") {
  const FakeGpus gpus{4};
  const Setting nvml = railyard_test::no_nvml();
  const Setting driver = railyard_test::no_driver();
  refused<toy::SharedProcesses>({.use_gpu = true}, "a worker needs a GPU of its own", "On CPUs train with Gloo");
}

TEST_CASE("use_gpu: a driver that does not answer ends at start_timeout") {
  const FakeGpus gpus{4};
  const Setting nvml = railyard_test::no_nvml();
  const Setting hanging{"RAILYARD_FAKE_CUDA_INIT", "hang"};
  refused<toy::SharedProcesses>({.use_gpu = true}, "had no answer within 300 ms", "RunConfig::start_timeout");
}

TEST_CASE("use_gpu: instances of MIG are shown one to each process, and one alone to threads") {
  const FakeGpus gpus{2};
  const Setting divided{"RAILYARD_FAKE_NVML_MIG", "0:2,1:1"};
  const auto say = [](ry::Worker& worker) {
    const char* const shown = std::getenv("CUDA_VISIBLE_DEVICES");
    return fmt::format("{}:{}", device_of(worker), shown == nullptr ? "" : std::string{shown}.substr(0, 12));
  };
  CHECK(said_by_ranks<toy::SharedProcesses>({.num_workers = 3, .use_gpu = true}, say) ==
        "0:MIG-00000000 0:MIG-00000001 0:MIG-00000010");
  CHECK(std::getenv("CUDA_VISIBLE_DEVICES") == nullptr);
  refused<toy::LocalThreads>({.num_workers = 2, .use_gpu = true}, "is shown 1 instance of MIG", "take Processes");
}

TEST_CASE("use_gpu: a range of workers follows the GPUs, and what else there is room for") {
  const FakeGpus gpus{3};
  CHECK(said_by_ranks<toy::SharedProcesses>({.num_workers = {1, 8}, .use_gpu = true}, device_of) == "0 1 2");
  CHECK(said_by_ranks<toy::SharedProcesses>({.num_workers = {1, 8}, .capacity = [] { return 2; }, .use_gpu = true},
                                            device_of) == "0 1");
  CHECK(said_by_ranks<toy::SharedProcesses>({.num_workers = {1, 8}, .capacity = [] { return 9; }, .use_gpu = true},
                                            device_of) == "0 1 2");
  refused<toy::SharedProcesses>({.num_workers = {4, 8}, .use_gpu = true}, "4 workers need a GPU each",
                                "is shown 3 GPUs");
}

TEST_CASE("use_gpu: a GPU that is lost leaves room for fewer workers, and NVML that is lost leaves the number") {
  const FakeGpus gpus{3};
  const ry::detail::WorkerDevices devices{ry::detail::find_devices(ry::Deadline::after(60s)), false};
  {
    const Setting lost{"RAILYARD_FAKE_NVML_CLOSED", "1"};
    CHECK(devices.count_now() == 2);
  }
  const Setting failing{"RAILYARD_FAKE_NVML_ERROR", "999"};
  CHECK(devices.count_now() == 3);
}

TEST_CASE("use_gpu: a backend of GPUs gives each worker one without a word, or what its options say") {
  const FakeGpus gpus{2};
  const Setting nccl{"RAILYARD_NCCL_LIBRARY", railyard_test::path_of_fake("fake_nccl")};
  const Setting runtime{"RAILYARD_CUDART_LIBRARY", railyard_test::path_of_fake("fake_cudart")};
  const auto say = [](ry::Worker& worker) {
    return fmt::format("{}:cuda:{}", device_of(worker), worker.device().index);
  };
  CHECK(said_by_ranks<NcclProcesses>({.num_workers = 2}, say) == "0:cuda:0 1:cuda:1");
  CHECK(said_by_ranks<NcclProcesses>({.num_workers = 1}, say, {.device = 1}) == "none:cuda:1");
  refused<NcclProcesses>({.num_workers = 3}, "3 workers need a GPU each", "is shown 2 GPUs");
}

TEST_CASE("fit: a program that has initialised CUDA cannot fork workers, and is told what to move") {
  const FakeGpus gpus{2};
  FakeGpus::use_cuda();
  for (const bool use_gpu : {true, false}) {
    refused<toy::SharedProcesses>({.use_gpu = use_gpu}, "has initialised CUDA", "into the training function");
  }
  CHECK(said_by_ranks<toy::LocalThreads>({.num_workers = 2, .use_gpu = true}, device_of) == "0 1");
  FakeGpus::forget_cuda();
  CHECK(said_by_ranks<toy::SharedProcesses>({.num_workers = 2, .use_gpu = true}, device_of) == "0 1");
}
