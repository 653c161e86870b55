// SPDX-License-Identifier: MIT
// Training that goes on with other numbers of workers half way.
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/train/train_state.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

#include <atomic>
#include <new>

#include <sys/mman.h>

namespace ry = railyard;

namespace {

std::atomic<int>& shared_room() {
  static auto* const room = [] {
    void* memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) std::atomic<int>{2};
  }();
  return *room;
}

// Trains on batches of 12; each step has the number of workers that sizes says, by tens of steps.
void train_resized(ry::Worker& worker, const std::vector<int>& sizes) {
  auto net = ry::prepare_model(worker, [] {
    return torch::nn::Sequential(torch::nn::Linear(5, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
  });
  const auto generator = at::detail::createCPUGenerator(5);
  const std::pair<at::Tensor, at::Tensor> data{at::randn({100, 5}, generator),
                                               at::randint(3, {100}, generator, at::kLong)};
  auto loader = ry::prepare_loader(
      worker, data, {.global_batch_size = 12, .shuffle = true, .drives_step = true, .largest_micro_batch = 4});
  auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-2));
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"loader", loader}}};
  for ([[maybe_unused]] const int epoch : state.epochs(5)) {
    for (const auto& batch : loader) {
      EXPECT(batch.size() <= 4);
      const int wanted = sizes[std::min<std::size_t>(worker.steps() / 10, sizes.size() - 1)];
      if (wanted != worker.world_size() && batch.completes_step()) {
        shared_room() = wanted;
        const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
        while (!worker.page().resize_requested.load() && !deadline.expired()) std::this_thread::yield();
      }
      torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target).backward();
      if (!batch.completes_step()) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  double sum = 0;
  for (const auto& parameter : net->parameters()) sum += parameter.abs().sum().item<double>();
  worker.report({{"sum", sum}, {"steps", worker.steps()}});
}

template <class Backend, class Scaling>
ry::Result fit_resized(const std::vector<int>& sizes, ry::WorkerCount count) {
  std::string folder = (std::filesystem::temp_directory_path() / "railyard_torch_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw ry::Error{"cannot make " + folder};
  ry::RunConfig config{.storage_path = folder, .seed = 3, .progress = ry::Progress::quiet};
  config.collective_timeout = std::chrono::seconds{20};
  shared_room() = sizes.front();
  ry::Trainer<Backend, Scaling> trainer{[sizes](auto& worker) { train_resized(worker, sizes); },
                                        {.num_workers = count,
                                         .capacity = [] { return shared_room().load(); },
                                         .capacity_interval = std::chrono::milliseconds{1}},
                                        config};
  ry::Result result = trainer.fit();
  std::filesystem::remove_all(folder);
  return result;
}

}  // namespace

TEST_CASE("Elastic: weights come out as with one worker, divided optimizer and micro-batches included") {
  const double whole =
      fit_resized<ry::SharedMemory, ry::Threads>({1}, {1, 2}).value_or_throw().metrics().at("sum").number();
  const std::vector<int> sizes{2, 3, 1, 2};
  const auto check = [&](const ry::Result& result) {
    INFO(result.error());
    REQUIRE(result);
    CHECK(result.attempts().size() == sizes.size());
    CHECK(result.metrics().at("steps").as<std::int64_t>() == 5 * 9 - 1);  // the last one ends with the function
    CHECK(result.metrics().at("sum").number() == Approx(whole).epsilon(1e-4));
  };
  check(fit_resized<ry::Gloo, ry::Processes>(sizes, {1, 3}));
  check(fit_resized<ry::SharedMemory, ry::Threads>(sizes, {1, 3}));
}
