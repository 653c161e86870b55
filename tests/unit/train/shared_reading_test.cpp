// SPDX-License-Identifier: MIT
// Ranks of one host that load the same checkpoint.
#include "railyard/train/train_state.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace ry = railyard;

namespace {

constexpr std::size_t num_weights = std::size_t{4} << 20U;
constexpr std::size_t bytes_of_weights = num_weights * sizeof(double);

// A number of this process: rchar counts what read calls have returned, read_bytes what the storage had to give.
double io_of_process(const std::string& name) {
  std::ifstream file{"/proc/self/io"};
  std::string word;
  double number = 0;
  while (file >> word >> number) {
    if (word == name + ":") return number;
  }
  return 0;
}

double peak_memory_of_process() {
  std::ifstream file{"/proc/self/status"};
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  }
  return 0;
}

// Writes what the system holds of a file to the disk, and forgets it.
void evict(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  REQUIRE(file >= 0);
  CHECK(::fsync(file) == 0);
  CHECK(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  ::close(file);
}

}  // namespace

TEST_CASE("Checkpoint: four ranks of a host take its bytes from the storage once, and hold no copies of them") {
  const Scratch scratch;
  const auto first = run_in<ry::SharedMemory, ry::Processes>(scratch, 4, [](ry::Worker& worker) {
    toy::Weights weights;
    weights.values.assign(num_weights, 2.0);
    ry::TrainState state{worker, {{"weights", weights}}};
    worker.report({}, state);
  });
  REQUIRE(first.checkpoint());
  for (const auto& entry : std::filesystem::directory_iterator{first.checkpoint()->path()}) evict(entry.path());
  const auto path = first.checkpoint()->path();
  const auto second = run_in<ry::SharedMemory, ry::Processes>(scratch, 4, [path](ry::Worker& worker) {
    toy::Weights weights;
    weights.values.assign(num_weights, 1.0);
    worker.barrier();
    const double storage = io_of_process("read_bytes");
    const double calls = io_of_process("rchar");
    const double memory = peak_memory_of_process();
    ry::Checkpoint::open(path).load_into("weights", weights, worker.rank());
    worker.report({{"storage", worker.mean(io_of_process("read_bytes") - storage) * worker.world_size()},
                   {"calls", worker.mean(io_of_process("rchar") - calls)},
                   {"memory", worker.mean(peak_memory_of_process() - memory) * worker.world_size()},
                   {"sum", worker.mean(weights.sum())}});
  });
  REQUIRE(second.error() == "");
  const auto metric = [&](const char* name) { return second.metrics().at(name).number(); };
  INFO(metric("storage") / bytes_of_weights << " " << metric("calls") / bytes_of_weights << " "
                                            << metric("memory") / bytes_of_weights);
  CHECK(metric("sum") == 2.0 * static_cast<double>(num_weights));
  CHECK(metric("storage") < 1.25 * bytes_of_weights);  // all ranks together, through the memory of the system
  CHECK(metric("calls") < 1.25 * bytes_of_weights);    // each of them: nobody reads anything twice
  CHECK(metric("memory") < 0.5 * bytes_of_weights);    // all of them together, beside their own weights
}
