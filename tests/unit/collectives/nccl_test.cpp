// SPDX-License-Identifier: MIT
#include "railyard/collectives/nccl.hpp"
#include "railyard/workers/processes.hpp"

#include "support/catch.hpp"
#include "support/fake_gpus.hpp"
#include "support/places.hpp"
#include "support/run_ranks.hpp"
#include "support/staged_nccl.hpp"

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

namespace ry = railyard;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using railyard_test::connect_nccl;
using railyard_test::FakeGpus;
using railyard_test::nccl_options;
using railyard_test::require;
using railyard_test::run_ranks;
using railyard_test::Setting;

struct Fault : Setting {
  explicit Fault(const std::string& fault) : Setting("RAILYARD_FAKE_NCCL_FAULT", fault) {}
};

/// Is a stream of the fake runtime, on which a gate can be put.
class GatedStream {
 public:
  GatedStream() : handle_(make()) {}
  void close() {
    is_open_ = false;
    const auto wait = [](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); };
    launch_(handle_, wait, &is_open_);
  }
  void open() {
    is_open_ = true;
    is_open_.notify_all();
  }
  [[nodiscard]] ry::Call call() const { return {.deadline = ry::Deadline::after(60s), .stream = {handle_}}; }

 private:
  void* make() {
    const ry::detail::DynamicLibrary library{"", railyard_test::path_of_fake("fake_cudart"), "", "", {}};
    int (*create)(void**, unsigned) = nullptr;
    library.find("cudaStreamCreateWithFlags", create);
    library.find("cudaLaunchHostFunc", launch_);
    void* stream = nullptr;
    create(&stream, 0);
    return stream;
  }

  int (*launch_)(void*, void (*)(void*), void*) = nullptr;
  std::atomic<bool> is_open_{true};
  void* handle_;
};

/// What the fakes call memory of a device.
template <class T>
ry::Buffer on_device(std::vector<T>& values, const ry::Nccl& nccl) {
  return {values.data(), values.size(), ry::dtype_of<T>, nccl.device()};
}

ry::Call within(std::chrono::nanoseconds budget) { return {.deadline = ry::Deadline::after(budget)}; }

/// Sums a value over the ranks, and waits.
void sum(ry::Nccl& nccl, std::chrono::nanoseconds budget = 60s) {
  std::vector<float> values(8, 1.0F);
  const auto call = within(budget);
  nccl.all_reduce(on_device(values, nccl), ry::ReduceOp::sum, call).wait(call.deadline);
}

/// Returns what connect() and two sums have thrown on each rank; "" where they have not.
std::vector<std::string> messages(int size, std::chrono::nanoseconds budget) {
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  run_ranks(size, [&](const ry::World& world, ry::Store& store) {
    try {
      const auto nccl = connect_nccl(world, store, ry::Deadline::after(budget));
      sum(*nccl, budget);
      sum(*nccl, budget);
    } catch (const ry::CollectiveError& error) {
      texts[static_cast<std::size_t>(world.rank)] = error.what();
    }
  });
  return texts;
}

TEST_CASE("Nccl: check accepts what there is, and asks for as many devices as are needed") {
  const FakeGpus gpus{2};
  CHECK_NOTHROW(ry::Nccl::check(nccl_options()));
  auto options = nccl_options();
  options.num_devices = 3;
  CHECK_THROWS_WITH(ry::Nccl::check(options),
                    Contains("3 GPUs are needed") && Contains("is shown 2 GPUs (NVML finds 2"));
  options.num_devices = 2;
  CHECK_NOTHROW(ry::Nccl::check(options));
}

TEST_CASE("Nccl: check says that there is no GPU, and why") {
  const FakeGpus gpus{2};
  {
    const Setting hidden = railyard_test::visible("");
    CHECK_THROWS_WITH(ry::Nccl::check(nccl_options()),
                      Contains("1 GPU is needed") && Contains("CUDA_VISIBLE_DEVICES is \"\""));
  }
  const Setting missing = railyard_test::no_nvml();
  const Setting error{"RAILYARD_FAKE_CUDA_ERROR", "100"};
  CHECK_THROWS_WITH(ry::Nccl::check(nccl_options()), Contains("error 100") && Contains("driver"));
}

TEST_CASE("Nccl: check leaves CUDA alone, so that this process can fork workers that use it") {
  const FakeGpus gpus{8};
  const Setting strict{"RAILYARD_FAKE_CUDA_STRICT", "1"};
  CHECK_NOTHROW(ry::Nccl::check(nccl_options()));
  railyard_test::run_group<ry::Processes>(
      2, [](ry::WorkerLink& link) { sum(*connect_nccl(link.world(), link.store(), ry::Deadline::after(60s))); });
  // The runtime's own word, where the program had used it before its workers were made.
  const ry::detail::CudaLibrary cuda{railyard_test::path_of_fake("fake_cudart")};
  CHECK(ry::detail::count_devices_here(cuda) == 8);
  railyard_test::run_group<ry::Processes>(1, [](ry::WorkerLink& link) {
    std::string refusal;
    try {
      static_cast<void>(connect_nccl(link.world(), link.store(), ry::Deadline::after(60s)));
    } catch (const ry::ConfigError& error) {
      refusal = error.what();
    }
    require(refusal.find("used CUDA before its workers were forked") != std::string::npos, refusal);
  });
}

TEST_CASE("Nccl: check names the library that is missing, too old, or no NCCL") {
  auto options = nccl_options();
  options.nccl_library = "/nowhere/libnccl.so.2";
  CHECK_THROWS_WITH(ry::Nccl::check(options), Contains("/nowhere") && Contains("RAILYARD_NCCL_LIBRARY"));
  options.nccl_library = railyard_test::path_of_fake("fake_cudart");
  CHECK_THROWS_WITH(ry::Nccl::check(options), Contains("ncclGetVersion"));
  options = nccl_options();
  options.cudart_library = "/nowhere/libcudart.so";
  CHECK_THROWS_WITH(ry::Nccl::check(options), Contains("RAILYARD_CUDART_LIBRARY"));
  const Setting old{"RAILYARD_FAKE_NCCL_VERSION", "21705"};
  CHECK_THROWS_WITH(ry::Nccl::check(nccl_options()), Contains("NCCL 2.17.5; 2.18"));
}

TEST_CASE("Nccl: the environment names the libraries where the options do not") {
  const Setting nccl{"RAILYARD_NCCL_LIBRARY", railyard_test::path_of_fake("fake_nccl")};
  const Setting cuda{"RAILYARD_CUDART_LIBRARY", railyard_test::path_of_fake("fake_cudart")};
  const FakeGpus gpus{64};
  CHECK_NOTHROW(ry::Nccl::check({.num_devices = 64}));
}

TEST_CASE("Nccl: each rank of a host takes the device of its number, and every rank is told where there is none") {
  run_ranks(3, [](const ry::World& world, ry::Store& store) {
    const auto nccl = connect_nccl(world, store, ry::Deadline::after(60s));
    require(nccl->device() == ry::Device{ry::DeviceKind::cuda, world.local_rank}, "the device of the local rank");
  });
  const Setting two{"RAILYARD_FAKE_CUDA_DEVICES", "2"};
  run_ranks(3, [](const ry::World& world, ry::Store& store) {
    try {
      static_cast<void>(connect_nccl(world, store, ry::Deadline::after(60s)));
    } catch (const ry::Error& error) {
      const bool is_mine = dynamic_cast<const ry::ConfigError*>(&error) != nullptr;
      require(is_mine == (world.rank == 2), "a ConfigError on the rank that has no device, and there alone");
      require(std::string{error.what()}.find("3 GPUs are needed") != std::string::npos, error.what());
      return;
    }
    require(false, "an error");
  });
}

TEST_CASE("Nccl: an operation is ordered behind what is on its stream, and the call does not wait for it") {
  run_ranks(2, [](const ry::World& world, ry::Store& store) {
    const auto nccl = connect_nccl(world, store, ry::Deadline::after(60s));
    GatedStream stream;
    stream.close();
    std::vector<float> values(1000, static_cast<float>(world.rank + 1));
    auto first = nccl->all_reduce(on_device(values, *nccl), ry::ReduceOp::sum, stream.call());
    auto second = nccl->all_reduce(on_device(values, *nccl), ry::ReduceOp::sum, stream.call());
    require(!first.is_done() && !second.is_done(), "not done behind the gate");
    require(values[0] == static_cast<float>(world.rank + 1), "untouched behind the gate");
    stream.open();
    second.wait(ry::Deadline::after(60s));
    require(first.is_done(), "what came before is done as well");
    require(values[999] == 6, "the sum of the sums");
  });
}

TEST_CASE("Nccl: several groups of the same ranks work side by side") {
  run_ranks(3, [](const ry::World& world, ry::Store& store) {
    const auto one = connect_nccl(world, store, ry::Deadline::after(60s));
    auto two = connect_nccl(world, store, ry::Deadline::after(60s));
    sum(*one);
    sum(*two);
    two.reset();
    sum(*one);
  });
}

TEST_CASE("Nccl: a buffer on another device than the rank's is refused and nothing is sent") {
  run_ranks(2, [](const ry::World& world, ry::Store& store) {
    const auto nccl = connect_nccl(world, store, ry::Deadline::after(60s));
    std::vector<float> values(8);
    auto buffer = on_device(values, *nccl);
    buffer.device.index = 7;
    std::string refusal;
    try {
      nccl->all_reduce(buffer, ry::ReduceOp::sum, {});
    } catch (const ry::ConfigError& error) {
      refusal = error.what();
    }
    require(refusal.find("a buffer lies on cuda:7") != std::string::npos, "a refusal");
    sum(*nccl);
  });
}

TEST_CASE("Nccl: a rank that cannot connect is named by all, with its remedy") {
  const Fault fault{"init_fail:1"};
  const auto texts = messages(3, 60s);
  CHECK_THAT(texts[1], Contains("connect on rank 1/3") && Contains("No space left") && Contains("--shm-size"));
  for (const std::size_t rank : {0U, 2U}) CHECK_THAT(texts[rank], Contains("rank 1 could not connect"));
}

TEST_CASE("Nccl: connect gives up at its deadline where NCCL does not get ready") {
  const Fault fault{"init_stall:1"};
  for (const auto& text : messages(2, 400ms)) CHECK_THAT(text, Contains("connect") && Contains("NCCL_SOCKET_IFNAME"));
}

TEST_CASE("Nccl: a connection that cannot carry the test sum is found by connect") {
  const Fault fault{"stall:1:1"};
  for (const auto& text : messages(2, 400ms)) CHECK_THAT(text, Contains("all_reduce(sum, 1 x i32)"));
}

TEST_CASE("Nccl: an operation that NCCL refuses ends the group on all ranks, with NCCL's words") {
  const Fault fault{"refuse:1:2"};
  const auto texts = messages(2, 60s);
  CHECK_THAT(texts[1], Contains("all_reduce(sum, 8 x f32) on rank 1/2 (host ") && Contains(", cuda:1)") &&
                           Contains("NCCL 2.28.9 reports: invalid usage (the fake NCCL was told to refuse this)"));
  CHECK_THAT(texts[0], Contains("rank 1"));
}

TEST_CASE("Nccl: an error that comes later ends the wait for it, without a deadline") {
  const Fault fault{"fail:0:3"};
  const auto texts = messages(2, 24h);
  CHECK_THAT(texts[0], Contains("remote process exited") && Contains("see the logs of the others"));
  CHECK_THAT(texts[1], Contains("rank 0"));
}

TEST_CASE("Nccl: an operation that is never done ends at the deadline on all ranks") {
  const Fault fault{"stall:1:3"};
  for (const auto& text : messages(3, 500ms)) CHECK_THAT(text, Contains("in 500 ms"));
}

TEST_CASE("Nccl: where what goes between hosts is to be encrypted it is refused, for it cannot be") {
  struct Encrypting final : ry::RankConnector {
    std::vector<std::unique_ptr<ry::RankLine>> connect(const ry::World&, ry::Store&, const std::string&,
                                                       const std::string&, const ry::Deadline&) override {
      return {};
    }
    bool encrypts() const noexcept override { return true; }
  };
  ry::World world;
  world.connector = std::make_shared<Encrypting>();
  railyard_test::MemoryStore store;
  CHECK_THROWS_WITH(connect_nccl(world, store, ry::Deadline::after(60s)),
                    Contains("ScalingConfig::launch.tls") && Contains("use Gloo"));
}

TEST_CASE("Nccl: ranks with two releases of NCCL are told so before they connect") {
  railyard_test::run_group<ry::Processes>(2, [](ry::WorkerLink& link) {
    if (link.world().rank == 1) ::setenv("RAILYARD_FAKE_NCCL_VERSION", "22005", 1);
    try {
      static_cast<void>(connect_nccl(link.world(), link.store(), ry::Deadline::after(60s)));
    } catch (const ry::ConfigError& error) {
      require(std::string{error.what()}.find("rank 1 has NCCL 2.20.5 and rank 0 has 2.28.9") != std::string::npos,
              error.what());
      return;
    }
    require(false, "a ConfigError");
  });
}

TEST_CASE("Nccl: remedies fit what NCCL says") {
  const auto remedy = [](const char* text) { return ry::detail::nccl_remedy(text); };
  CHECK_THAT(remedy("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"),
             Contains("no more workers"));
  CHECK_THAT(remedy("Error while creating shared memory segment"), Contains("--shm-size"));
  CHECK_THAT(remedy("peer access is not supported between these two devices"), Contains("NCCL_P2P_DISABLE"));
  CHECK_THAT(remedy("Bootstrap : no socket interface found"), Contains("NCCL_SOCKET_IFNAME"));
  CHECK_THAT(remedy("CUDA driver version is insufficient for CUDA runtime version"), Contains("same NCCL"));
  CHECK_THAT(remedy("something new"), Contains("NCCL_DEBUG=WARN"));
}

}  // namespace
