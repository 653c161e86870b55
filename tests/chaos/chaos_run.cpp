// SPDX-License-Identifier: MIT
// What tests/chaos.sh kills: a real training run, which tells through a mapped file what its workers are doing.
//   chaos_run train STORAGE NAME PHASES   trains, and goes on where it was left
//   chaos_run verify RUN                  opens all checkpoints of a run, and verifies the newest
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

// By rank: '.' before the loop, 's' in a step, 'u' in its update, 'c' while the state is being copied, 'e' at the end.
class Phases {
 public:
  explicit Phases(const char* path) {
    const int file = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ::ftruncate(file, size) != 0) throw ry::Error{std::string{path} + " cannot be made"};
    at_ = static_cast<volatile char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
  }
  void set(int rank, char phase) const { at_[rank] = phase; }

 private:
  static constexpr std::size_t size = 64;
  volatile char* at_;
};

void train(ry::Worker& worker, const std::pair<at::Tensor, at::Tensor>& data, const Phases& phases) {
  phases.set(worker.rank(), '.');
  auto net = ry::prepare_model(worker, [] {
    return torch::nn::Sequential(torch::nn::Linear(64, 400), torch::nn::ReLU(), torch::nn::Dropout(0.1),
                                 torch::nn::Linear(400, 10));
  });
  auto loader = ry::prepare_loader(worker, data, {.global_batch_size = 96, .shuffle = true, .drives_step = true});
  auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-3));
  ry::TorchRandom random;
  ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"loader", loader}, {"random", random}}};
  for (const int epoch : state.epochs(400)) {
    ry::Mean loss;
    for (const auto& batch : loader) {
      phases.set(worker.rank(), 's');
      optimizer.zero_grad();
      auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      value.backward();
      phases.set(worker.rank(), 'u');
      optimizer.step();
      loss.add(value.item<double>(), static_cast<double>(batch.size()));
      phases.set(worker.rank(), 'c');
    }
    phases.set(worker.rank(), 'c');
    worker.report({{"epoch", epoch}, {"samples", static_cast<std::int64_t>(worker.page().epoch_done.load())}}, state);
  }
  phases.set(worker.rank(), 'e');
}

int train_all(const char* storage, const char* name, const char* phase_file) {
  const auto generator = at::detail::createCPUGenerator(7);
  const std::pair<at::Tensor, at::Tensor> data{at::randn({500, 64}, generator),
                                               at::randint(10, {500}, generator, at::kLong)};
  const Phases phases{phase_file};
  ry::RunConfig config{.name = name, .storage_path = storage, .seed = 3};
  config.checkpoint = {.keep = 2, .every_steps = 4};
  config.failure = {.max_failures = -1, .max_failures_at_same_step = 1'000'000};
  config.progress = ry::Progress::quiet;
  config.stop_grace = std::chrono::seconds{5};
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{
      [&](ry::Worker& worker) { train(worker, data, phases); }, {.num_workers = 2}, config};
  const ry::Result result = trainer.fit();
  if (!result) std::fprintf(stderr, "%s\n", result.error().c_str());
  return result.exit_status();
}

int verify(const std::filesystem::path& run) {
  const ry::CheckpointFolder folder{run / "checkpoints"};
  for (const std::string& problem : folder.problems()) std::printf("damaged: %s\n", problem.c_str());
  if (!folder.problems().empty()) return 1;
  if (const auto newest = folder.newest()) {
    newest->verify();
    for (const std::string& part : newest->parts()) {
      if (!newest->load(part, 0)) return 1;
    }
    std::printf("step %lu\n", static_cast<unsigned long>(newest->manifest().step));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string_view> words{argv, argv + argc};
  if (argc == 5 && words[1] == "train") return train_all(argv[2], argv[3], argv[4]);
  if (argc == 3 && words[1] == "verify") return verify(argv[2]);
  std::fprintf(stderr, "chaos_run train STORAGE NAME PHASES | verify RUN\n");
  return 2;
} catch (const ry::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
