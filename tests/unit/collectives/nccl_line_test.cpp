// SPDX-License-Identifier: MIT
#include "railyard/collectives/detail/nccl_line.hpp"
#include "railyard/collectives/nccl.hpp"

#include "support/catch.hpp"
#include "support/fake_gpus.hpp"
#include "support/places.hpp"
#include "support/run_ranks.hpp"
#include "support/staged_nccl.hpp"

#include <atomic>
#include <string>
#include <vector>

namespace nccl_line {

namespace {

namespace ry = railyard;
using namespace std::chrono_literals;
using railyard_test::connect_nccl;
using railyard_test::FakeGpus;
using railyard_test::require;
using railyard_test::run_ranks;

/// Is a stream of the fake runtime.
class FakeStream {
 public:
  FakeStream() {
    const ry::detail::DynamicLibrary library{"", railyard_test::path_of_fake("fake_cudart"), "", "", {}};
    int (*create)(void**, unsigned) = nullptr;
    library.find("cudaStreamCreateWithFlags", create);
    library.find("cudaLaunchHostFunc", launch_);
    library.find("fake_cuda_host_waits", host_waits_);
    create(&handle_, 0);
  }

  /// Has the stream do something; both outlive it.
  template <class T>
  void launch(void (*function)(T*), T* data) {
    launch_(handle_, reinterpret_cast<void (*)(void*)>(function), data);
  }
  [[nodiscard]] ry::Call call() const { return {.deadline = ry::Deadline::after(60s), .stream = {handle_}}; }
  [[nodiscard]] unsigned long host_waits(int device) const { return host_waits_(device); }

 private:
  int (*launch_)(void*, void (*)(void*), void*) = nullptr;
  unsigned long (*host_waits_)(int) = nullptr;
  void* handle_ = nullptr;
};

struct Gate {
  std::atomic<bool> is_open{false};
  void open() {
    is_open = true;
    is_open.notify_all();
  }
};

/// What a stream has seen when it came there.
struct Sight {
  const float* value = nullptr;
  float seen = 0;
  Gate has_seen{};
};

}  // namespace

TEST_CASE("NcclLine: begins behind a stream, joins another, and adds up numbers of the host beside them") {
  const FakeGpus gpus{2};
  run_ranks(2, [](const ry::World& world, ry::Store& store) {
    const auto nccl = connect_nccl(world, store, ry::Deadline::after(60s));
    ry::DeviceLine& line = *nccl->device_line(ry::Deadline::after(60s));
    FakeStream before;
    FakeStream after;
    Gate gate;
    std::vector<float> values(8, static_cast<float>(world.rank + 1));
    Sight sight{.value = &values[3]};
    const unsigned long waits = before.host_waits(nccl->device().index);
    before.launch<Gate>([](Gate* closed) { closed->is_open.wait(false); }, &gate);
    line.all_reduce({values.data(), values.size(), ry::Dtype::f32, nccl->device()}, ry::ReduceOp::sum, before.call());
    line.join(after.call());
    after.launch<Sight>(
        [](Sight* one) {
          one->seen = *one->value;
          one->has_seen.open();
        },
        &sight);
    // While the device stands still.
    std::vector<double> numbers{1, static_cast<double>(world.rank)};
    line.add_on_host(ry::buffer_of(numbers), before.call());
    require(numbers == std::vector<double>{2, 1}, "the numbers of both");
    require(before.host_waits(nccl->device().index) == waits, "no wait for the device");
    gate.open();
    sight.has_seen.is_open.wait(false);
    require(sight.seen == 3, "the sum, seen behind the line");
    line.wait(ry::Deadline::after(60s));
  });
}

TEST_CASE("NcclLine: the end of the line is that of its group, and the other way round") {
  const FakeGpus gpus{2};
  for (const bool ends_line : {true, false}) {
    std::vector<std::string> texts(4);
    run_ranks(2, [&](const ry::World& world, ry::Store& store) {
      const auto nccl = connect_nccl(world, store, ry::Deadline::after(60s));
      ry::DeviceLine& line = *nccl->device_line(ry::Deadline::after(60s));
      if (world.rank == 0 && ends_line) line.abort("as planned");
      if (world.rank == 0 && !ends_line) nccl->abort("as planned");
      const FakeStream stream;
      std::vector<float> values(8, 1);
      const ry::Buffer buffer{values.data(), values.size(), ry::Dtype::f32, nccl->device()};
      const auto text_of = [](const auto& function) -> std::string {
        try {
          function();
        } catch (const ry::CollectiveError& error) {
          return error.what();
        }
        return "";
      };
      const auto at = static_cast<std::size_t>(2 * world.rank);
      texts[at] = text_of([&] {
        line.all_reduce(buffer, ry::ReduceOp::sum, stream.call());
        line.wait(ry::Deadline::after(60s));
      });
      texts[at + 1] = text_of([&] {
        const auto call = stream.call();
        nccl->all_reduce(buffer, ry::ReduceOp::sum, call).wait(call.deadline);
      });
    });
    for (const std::string& text : texts) CHECK_THAT(text, Catch::Matchers::Contains("as planned"));
  }
}

}  // namespace nccl_line
