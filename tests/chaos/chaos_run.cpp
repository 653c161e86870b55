// SPDX-License-Identifier: MIT
// What tests/chaos.sh kills: a real training run, which tells through a mapped file what its workers are doing.
//   chaos_run train STORAGE NAME PHASES EPOCHS   trains, and goes on where it was left; with RANK in its environment,
//   as
//                                                one of several processes that make a worker each
//   chaos_run verify RUN                         opens all checkpoints of a run, and verifies the newest
#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

constexpr std::int64_t num_samples = 500;
constexpr std::int64_t num_classes = 10;  // a target is also the sample's number: target / num_classes

// By rank, which process it is and what it does: '.' before the loop, 's' in a step, 'u' in its update, 'c' while the
// state is being copied, 'e' at the end.
class Phases {
 public:
  explicit Phases(const char* path) {
    constexpr std::size_t size = 64;
    const int file = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ::ftruncate(file, size) != 0) throw ry::Error{std::string{path} + " cannot be made"};
    at_ = static_cast<Phase*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
  }
  void begin(int rank) const {
    at_[rank].letter = '.';
    at_[rank].process = ::getpid();
  }
  void set(int rank, char letter) const { at_[rank].letter = letter; }

 private:
  struct Phase {
    std::int32_t process;
    char letter;
  };
  volatile Phase* at_;
};

// Counts how often this rank has been given each sample in the epoch under way. As a part of the state it counts along
// the lineage that survives, whatever was done twice on the way.
class Ledger {
 public:
  void add(const at::Tensor& samples) {
    for (const at::Tensor& sample : samples.unbind())
      ++counts_.at(static_cast<std::size_t>(sample.item<std::int64_t>()));
  }
  // Returns whether the ranks together have been given each sample once.
  bool close_epoch(ry::Worker& worker) {
    worker.all_reduce(ry::buffer_of(counts_), ry::ReduceOp::sum);
    const bool is_once = std::all_of(counts_.begin(), counts_.end(), [](std::int64_t count) { return count == 1; });
    counts_.fill(0);
    return is_once;
  }
  [[nodiscard]] ry::State state() const {
    ry::State saved;
    saved.is_own = true;
    saved.tensors.push_back({.name = "counts",
                             .dtype = ry::Dtype::i64,
                             .shape = {num_samples},
                             .read = [this](std::int64_t begin, std::int64_t end, std::byte* to) {
                               std::copy_n(counts_.begin() + begin, end - begin, reinterpret_cast<std::int64_t*>(to));
                             }});
    return saved;
  }
  void load_state(const ry::State& saved) {
    saved.find_tensor("counts")->read(0, num_samples, reinterpret_cast<std::byte*>(counts_.data()));
  }

 private:
  std::array<std::int64_t, num_samples> counts_{};
};

void train(ry::Worker& worker, const std::pair<at::Tensor, at::Tensor>& data, const Phases& phases, int num_epochs) {
  phases.begin(worker.rank());
  auto net = ry::prepare_model(worker, [] {
    return torch::nn::Sequential(torch::nn::Linear(64, 400), torch::nn::ReLU(), torch::nn::Dropout(0.1),
                                 torch::nn::Linear(400, num_classes));
  });
  auto loader = ry::prepare_loader(worker, data, {.global_batch_size = 96, .shuffle = true, .drives_step = true});
  auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-3));
  ry::TorchRandom random;
  Ledger ledger;
  ry::Mean loss;
  ry::TrainState state{worker,
                       {{"net", net},
                        {"optimizer", optimizer},
                        {"loader", loader},
                        {"random", random},
                        {"ledger", ledger},
                        {"loss", loss}}};
  for (const int epoch : state.epochs(num_epochs)) {
    for (const auto& batch : loader) {
      phases.set(worker.rank(), 's');
      optimizer.zero_grad();
      auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target.remainder(num_classes));
      value.backward();
      phases.set(worker.rank(), 'u');
      optimizer.step();
      loss.add(value.item<double>(), static_cast<double>(batch.size()));
      ledger.add(batch.target.div(num_classes, "floor"));
      phases.set(worker.rank(), 'c');
    }
    const bool is_once = ledger.close_epoch(worker);
    worker.report({{"epoch", epoch},
                   {"each_sample_once", is_once},
                   {"loss", worker.mean(loss)},
                   {"weights", std::to_string(ry::detail::hash_of(ry::detail::tensors_of(*net)))}},
                  state);
  }
  phases.set(worker.rank(), 'e');
}

template <class B, class S>
ry::Result fit(const std::function<void(ry::Worker&)>& function, const ry::RunConfig& config, int num_workers) {
  ry::Trainer<B, S> trainer{
      [&function](ry::Worker& worker) { function(worker); }, {.num_workers = num_workers}, config};
  return trainer.fit();
}

int train_all(const char* storage, const char* name, const char* phase_file, int num_epochs) {
  const auto generator = at::detail::createCPUGenerator(7);
  const std::pair<at::Tensor, at::Tensor> data{
      at::randn({num_samples, 64}, generator),
      at::arange(num_samples) * num_classes + at::randint(num_classes, {num_samples}, generator, at::kLong)};
  const Phases phases{phase_file};
  ry::RunConfig config{.name = name, .storage_path = storage, .seed = 3};
  config.checkpoint = {.keep = 2, .every_steps = 4};
  config.failure = {.max_failures = -1, .max_failures_at_same_step = 1'000'000};
  config.progress = ry::Progress::quiet;
  config.stop_grace = std::chrono::seconds{5};
  const auto function = [&](ry::Worker& worker) { train(worker, data, phases, num_epochs); };
  const bool is_launched = std::getenv("RANK") != nullptr;
  const ry::Result result = is_launched ? fit<ry::Gloo, ry::Launched>(function, config, 1)
                                        : fit<ry::SharedMemory, ry::Processes>(function, config, 2);
  if (!result) std::fprintf(stderr, "%s\n", result.error().c_str());
  return result.exit_status();
}

int verify(const std::filesystem::path& run) {
  const ry::CheckpointFolder folder{run / "checkpoints"};
  const std::vector<std::string> problems = folder.problems();
  for (const std::string& problem : problems) std::printf("damaged: %s\n", problem.c_str());
  if (!problems.empty()) return 1;
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
  if (argc == 6 && words[1] == "train") return train_all(argv[2], argv[3], argv[4], std::atoi(argv[5]));
  if (argc == 3 && words[1] == "verify") return verify(argv[2]);
  std::fprintf(stderr, "chaos_run train STORAGE NAME PHASES EPOCHS | verify RUN\n");
  return 2;
} catch (const ry::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
