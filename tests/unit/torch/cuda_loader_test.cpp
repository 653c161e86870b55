// SPDX-License-Identifier: MIT
// Loaders whose batches go to GPUs, on the fakes of tests/fakes: what is queued there can be held up, so that whatever
// the host does too early shows, and uses of memory that streams and events leave unordered end the process.
#include "railyard/torch/prepare_loader.hpp"

#include "cuda_devices.hpp"
#include "fakes/fake_address.hpp"
#include "fit.hpp"
#include "railyard/collectives/local.hpp"
#include "railyard/torch/from_tensors.hpp"
#include "support/catch.hpp"
#include "support/places.hpp"
#include "support/setting.hpp"

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace cuda_loader {  // suites are compiled as one source as well

namespace {

namespace ry = railyard;
using Catch::Matchers::Contains;
using test::FakeDevices;
using test::on_devices;
using Pair = std::pair<torch::Tensor, torch::Tensor>;
using Make = std::function<ry::Loader(ry::Worker&)>;

template <class Function>
Function* cudart(const char* name) {
  void* const library = ::dlopen(railyard_test::path_of_fake("fake_cudart").c_str(), RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

// Puts a function on the default stream of this thread's device.
void queue(std::function<void()> function) {
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> owned{static_cast<std::function<void()>*>(data)};
    (*owned)();
  };
  cudart<int(void*, void (*)(void*), void*)>("cudaLaunchHostFunc")(nullptr, run,
                                                                   new std::function<void()>{std::move(function)});
}

// Keeps what is put on that stream later from being done, until it is opened.
class Gate {
 public:
  Gate() {
    queue([is_open = is_open_] { is_open->wait(false); });
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }

  void open() {
    *is_open_ = true;
    is_open_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(false);
};

// What a kernel that is queued now finds in a tensor of floats when its turn comes.
class SeenLater {
 public:
  explicit SeenLater(const torch::Tensor& tensor) : seen_(std::make_shared<std::vector<float>>()) {
    cudart<void(void*, const void*, std::size_t, int)>("fake_cuda_use")(nullptr, tensor.data_ptr(), tensor.nbytes(), 0);
    queue([tensor, seen = seen_] {
      const auto* const begin = fake::host_address(static_cast<const float*>(tensor.data_ptr()));
      seen->assign(begin, begin + tensor.numel());
    });
  }
  [[nodiscard]] torch::Tensor tensor() const { return torch::tensor(*seen_); }

 private:
  std::shared_ptr<std::vector<float>> seen_;
};

void finish_device() {
  std::atomic<bool> is_done{false};
  queue([&is_done] {
    is_done = true;
    is_done.notify_all();
  });
  is_done.wait(false);
}

unsigned long host_waits(const ry::Worker& worker) {
  return cudart<unsigned long(int)>("fake_cuda_host_waits")(worker.device().index);
}

constexpr std::int64_t num_samples = 23;

Pair numbers() {
  const auto data = torch::arange(num_samples * 6).to(torch::kFloat).view({num_samples, 6});
  return {data, torch::arange(num_samples)};
}

ry::Dataset numbers_dataset() {
  const auto [data, target] = numbers();
  return ry::from_tensors({{"x", data}, {"y", target}}, {.label = "y"});
}

ry::Dataset ragged_dataset() {
  return ry::Dataset::from_function({{.name = "x", .dtype = ry::Dtype::f32, .shape = {-1}}, {"y", ry::Dtype::i64}},
                                    num_samples,
                                    [](std::uint64_t id, ry::SampleWriter& out) {
                                      std::vector<float> values(1 + id % 5, static_cast<float>(id));
                                      out.set("x", values);
                                      out.set("y", static_cast<std::int64_t>(id));
                                    })
      .with_label("y");
}

// Draws a number for each sample that it is asked for.
struct Drawing : torch::data::Dataset<Drawing> {
  torch::data::Example<> get(std::size_t index) override {
    return {torch::rand({2}), torch::full({}, static_cast<std::int64_t>(index), torch::kLong)};
  }
  [[nodiscard]] c10::optional<std::size_t> size() const override { return static_cast<std::size_t>(num_samples); }
};

// The batches of two epochs, by rank; with what the loop itself draws at each.
std::map<int, std::vector<Pair>> batches_of(const Make& make, bool on_gpu, int workers) {
  std::map<int, std::vector<Pair>> all;
  std::mutex mutex;
  torch::manual_seed(5);
  const auto train = [&](ry::Worker& worker) {
    auto loader = make(worker);
    std::vector<Pair> mine;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : loader) {
        EXPECT(batch.data.device() == ry::device(worker) && batch.target.device() == ry::device(worker));
        mine.emplace_back(batch.data.cpu().clone(), batch.target.cpu().clone());
        if (workers == 1) mine.emplace_back(torch::rand({1}), torch::empty({0}));
      }
    }
    const std::lock_guard lock{mutex};
    all[worker.rank()] = std::move(mine);
  };
  const auto result = on_gpu ? on_devices(workers, train) : test::try_run<ry::Local, ry::Threads>(workers, train);
  CHECK(result.error() == "");
  return all;
}

void check_equal(const std::string& what, const Make& make, int workers = 2) {
  const FakeDevices devices;
  const auto expected = batches_of(make, false, workers);
  const auto given = batches_of(make, true, workers);
  INFO(what);
  REQUIRE(given.size() == expected.size());
  for (const auto& [rank, batches] : expected) {
    REQUIRE(given.at(rank).size() == batches.size());
    for (std::size_t at = 0; at < batches.size(); ++at) {
      CHECK(given.at(rank)[at].first.equal(batches[at].first));
      CHECK(given.at(rank)[at].second.equal(batches[at].second));
      CHECK(given.at(rank)[at].first.strides() == batches[at].first.strides());
    }
  }
}

}  // namespace

TEST_CASE("cuda loader: on the fake, batches are those of CPUs, whatever they are made of") {
  check_equal("tensors",
              [](ry::Worker& worker) { return ry::prepare_loader(worker, numbers(), {.global_batch_size = 8}); });
  check_equal("shuffled tensors, in parts", [](ry::Worker& worker) {
    return ry::prepare_loader(worker, numbers(), {.global_batch_size = 8, .shuffle = true, .micro_batches = 3});
  });
  check_equal("tensors in another order of dimensions", [](ry::Worker& worker) {
    auto [data, target] = numbers();
    return ry::prepare_loader(worker, Pair{data.view({num_samples, 2, 3}).transpose(1, 2), target},
                              {.global_batch_size = 8});
  });
  check_equal("a dataset", [](ry::Worker& worker) {
    return ry::prepare_loader(worker, numbers_dataset(), {.global_batch_size = 8, .shuffle = true});
  });
  check_equal("a dataset that the loop reads by itself", [](ry::Worker& worker) {
    return ry::prepare_loader(worker, numbers_dataset(), {.global_batch_size = 8, .shuffle = true, .threads = 0});
  });
  check_equal("samples that differ in length", [](ry::Worker& worker) {
    return ry::prepare_loader(worker, ragged_dataset(), {.global_batch_size = 6, .padding = -1});
  });
  check_equal("a user's tensors, each time the same memory", [](ry::Worker& worker) {
    const auto data = torch::empty({4, 6});
    const auto collate = [data](const ry::Block& block) {
      const auto rows = static_cast<std::int64_t>(block.rows());
      const auto values = block[block.schema().index_of("x")].values<float>();
      const auto mine = data.slice(0, 0, rows);
      std::copy(values.begin(), values.end(), mine.data_ptr<float>());
      return Pair{mine, mine.select(1, 0)};
    };
    return ry::prepare_loader(worker, numbers_dataset(), {.global_batch_size = 8, .collate = collate});
  });
}

TEST_CASE("cuda loader: on the fake, a dataset of the user's draws as on a CPU, between what the loop draws") {
  check_equal(
      "a LibTorch dataset",
      [](ry::Worker& worker) {
        return ry::prepare_loader(worker, Drawing{}.map(torch::data::transforms::Stack<>()),
                                  {.global_batch_size = 8, .shuffle = true});
      },
      1);
}

TEST_CASE("cuda loader: on the fake, the host waits for no batch, and kernels find them however late they come") {
  const FakeDevices devices;
  for (const bool is_dataset : {false, true}) {
    const auto result = on_devices(2, [is_dataset](ry::Worker& worker) {
      auto loader = is_dataset ? ry::prepare_loader(worker, numbers_dataset(), {.global_batch_size = 4})
                               : ry::prepare_loader(worker, numbers(), {.global_batch_size = 4});
      std::vector<SeenLater> seen;
      {
        const Gate gate;
        const auto waits = host_waits(worker);
        for (const auto& batch : loader) seen.emplace_back(batch.data);
        EXPECT(host_waits(worker) == waits);
      }
      finish_device();
      std::vector<torch::Tensor> all;
      for (const auto& batch : seen) all.push_back(batch.tensor());
      std::size_t at = 0;
      for (const auto& batch : loader) EXPECT(all.at(at++).equal(batch.data.cpu().view(-1)));
      EXPECT(at == all.size() && at == 6);
    });
    CHECK(result.error() == "");
  }
}

TEST_CASE("cuda loader: on the fake, what the loop writes to the host's tensors is not in batches given before") {
  const FakeDevices devices;
  const auto result = on_devices(1, [](ry::Worker& worker) {
    const auto [data, target] = numbers();
    const auto before = data.clone();
    auto loader = ry::prepare_loader(worker, Pair{data, target}, {.global_batch_size = 8});
    std::vector<SeenLater> seen;
    {
      const Gate gate;
      std::int64_t begin = 0;
      for (const auto& batch : loader) {
        seen.emplace_back(batch.data);
        data.slice(0, begin, begin + 8).fill_(-1);  // done with
        if (begin == 0) data[9].fill_(7);           // which the next batch is to see
        begin += 8;
      }
    }
    finish_device();
    before[9].fill_(7);
    EXPECT(seen.size() == 3);
    for (std::size_t at = 0; at < seen.size(); ++at) {
      EXPECT(seen[at].tensor().equal(before.slice(0, static_cast<std::int64_t>(8 * at)).slice(0, 0, 8).reshape(-1)));
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda loader: batches that are kept stay as they were") {
  const FakeDevices devices;
  for (const bool is_dataset : {false, true}) {
    const auto result = on_devices(2, [is_dataset](ry::Worker& worker) {
      auto loader = is_dataset ? ry::prepare_loader(worker, numbers_dataset(), {.global_batch_size = 4})
                               : ry::prepare_loader(worker, numbers(), {.global_batch_size = 4});
      std::vector<torch::Tensor> kept;
      std::vector<torch::Tensor> copies;
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (const auto& batch : loader) {
          kept.push_back(batch.data);
          copies.push_back(batch.data.cpu().clone());
          batch.target.fill_(-1);  // is the loop's own to write to
        }
      }
      EXPECT(kept.size() == 18);
      for (std::size_t at = 0; at < kept.size(); ++at) EXPECT(kept[at].cpu().equal(copies[at]));
    });
    CHECK(result.error() == "");
  }
}

TEST_CASE("cuda loader: a loop that is left, and one on another stream, find the batches in order") {
  const FakeDevices devices;
  const auto result = on_devices(2, [](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, numbers_dataset(), {.global_batch_size = 4});
    const auto first_of = [&] {
      for (const auto& batch : loader) return batch.target.cpu();
      throw std::runtime_error{"there is no batch"};
    };
    const auto first = first_of();
    EXPECT(first_of().equal(first));
    const auto gpu = ry::device(worker);
    const auto side = c10::impl::getDeviceGuardImpl(torch::kCUDA)->getStreamFromGlobalPool(gpu, false);
    std::int64_t next = worker.rank() * 2;
    bool is_aside = false;
    for (const auto& batch : loader) {
      EXPECT(batch.target.cpu()[0].item<std::int64_t>() == next);
      next += 4;
      is_aside = !is_aside;
      c10::impl::getDeviceGuardImpl(torch::kCUDA)
          ->exchangeStream(is_aside ? side : c10::Stream{c10::Stream::DEFAULT, gpu});
    }
    c10::impl::getDeviceGuardImpl(torch::kCUDA)->exchangeStream(c10::Stream{c10::Stream::DEFAULT, gpu});
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda loader: what is read ahead is neither consumed nor thrown before its step") {
  const FakeDevices devices;
  const auto result = on_devices(1, [](ry::Worker& worker) {
    const auto dataset =
        ry::Dataset::from_function({{"y", ry::Dtype::i64}}, num_samples, [](std::uint64_t id, ry::SampleWriter& out) {
          if (id == 13) throw ry::DataError{"sample 13 is bad"};
          out.set("y", static_cast<std::int64_t>(id));
        }).with_label("y");
    auto loader = ry::prepare_loader(worker, dataset, {.global_batch_size = 4});
    std::uint64_t consumed = 0;
    std::string error;
    try {
      for (const auto& batch : loader) {
        ry::EpochPosition place;
        place.load_state(loader.state());
        EXPECT(place.consumed() == consumed);
        EXPECT(batch.target.cpu()[0].item<std::int64_t>() == static_cast<std::int64_t>(consumed));
        consumed += 4;
      }
    } catch (const ry::DataError& thrown) {
      error = thrown.what();
    }
    EXPECT(consumed == 12);
    EXPECT(error.find("sample 13 is bad") != std::string::npos);
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda loader: on the fake, columns and lengths of a batch cost no wait") {
  const FakeDevices devices;
  const auto result = on_devices(1, [](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, ragged_dataset(), {.global_batch_size = 6, .padding = -1});
    std::int64_t first = 0;
    for (const auto& batch : loader) {
      const auto waits = host_waits(worker);
      const auto column = batch.tensor("x");
      const auto lengths = batch.lengths("x");
      EXPECT(host_waits(worker) == waits);
      EXPECT(column.device() == ry::device(worker) && lengths.device() == ry::device(worker));
      EXPECT(column.cpu().equal(batch.data.cpu()));
      for (std::int64_t row = 0; row < lengths.size(0); ++row) {
        EXPECT(lengths.cpu()[row].item<std::int64_t>() == 1 + (first + row) % 5);
      }
      first += lengths.size(0);
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE("cuda loader: what lies on the GPU already is not copied") {
  const FakeDevices devices;
  const auto result = on_devices(1, [](ry::Worker& worker) {
    const auto [data, target] = numbers();
    const auto there = data.to(ry::device(worker));
    auto loader = ry::prepare_loader(worker, Pair{there, target}, {.global_batch_size = 8});
    for (const auto& batch : loader) {
      EXPECT(batch.data.storage().is_alias_of(there.storage()));
      EXPECT(batch.target.device() == there.device());
    }
  });
  CHECK(result.error() == "");
}

TEST_CASE(
    "cuda loader: on the fake, pinned memory under way has a bound, for which the loader waits until its deadline") {
  const FakeDevices devices;
  const auto gpu = torch::Device(torch::kCUDA, 0);
  ry::detail::GpuCopies copies{gpu, 100};
  const auto begin = [&](float value) {
    ry::detail::GpuCopies::Batch batch{torch::full({25}, value), torch::Tensor{}};
    copies.wait_for_room(ry::Deadline::after(std::chrono::milliseconds{20}));
    copies.start(batch, false);
    copies.take();
    copies.reserve();
    return batch[0];
  };
  std::vector<torch::Tensor> given;
  Gate gate;
  given.push_back(begin(1));
  given.push_back(begin(2));
  CHECK(!copies.has_room());
  CHECK_THROWS_WITH(begin(3), Contains("cuda:0 has not copied in") && Contains("the 200 bytes of the last 2 batches") &&
                                  Contains("does not end"));
  gate.open();
  copies.wait_for_room(ry::Deadline::never());
  given.push_back(begin(3));
  for (std::size_t at = 0; at < given.size(); ++at) {
    CHECK(given[at].cpu().equal(torch::full({25}, static_cast<float>(at + 1))));
  }
}

}  // namespace cuda_loader
