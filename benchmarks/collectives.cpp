// SPDX-License-Identifier: MIT
// How long an all-reduce takes: this library's in shared memory, libgloo's and Open MPI's, side by side and in turns,
// and what the cores could move at best. Ranks are processes, pinned alike. Prints `name value unit`; the contestants'
// microseconds go to standard error.
#include "collectives/contestants.hpp"
#include "collectives/group.hpp"
#include "collectives/neighbours.hpp"

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <utility>

namespace {

using bench::Group;

constexpr int num_rounds = 15;
constexpr double turn_seconds = 0.05;

struct Size {
  const char* name;
  std::uint64_t bytes;
};
constexpr Size sizes[] = {{"8B", 8}, {"64KiB", 64 << 10}, {"64MiB", 64 << 20}};
constexpr std::uint64_t largest = 64 << 20;

void figure(const std::string& name, double value, const std::string& unit) {
  fmt::print("{} {:.4g} {}\n", name, value, unit);
  std::fflush(stdout);
}

// Two buffers for the bare kernel, at a distance that no cache takes for equal addresses.
class LimitSpace {
 public:
  static constexpr std::size_t distance_bytes = largest + (2 << 20) + 2 * 4096 + 128;
  LimitSpace() : memory_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::runtime_error{"mmap failed"};
    madvise(memory_, size, MADV_HUGEPAGE);
  }
  LimitSpace(const LimitSpace&) = delete;
  LimitSpace& operator=(const LimitSpace&) = delete;
  ~LimitSpace() { munmap(memory_, size); }
  float* data() const { return static_cast<float*>(memory_); }

 private:
  static constexpr std::size_t size = 4096 + 2 * distance_bytes;
  void* memory_;
};

class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "railyard-bench-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error{"mkdtemp failed"};
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<Group> start_ours(const std::string& name, int size, bench::Memory memory) {
  bench::ForkedStore store{size};
  return std::make_unique<Group>(name, size, [&](bench::Control& control, int rank) {
    return bench::run_rank(control, rank, [&] { return bench::join_ours(store, rank, size, memory); });
  });
}

// The folder is Gloo's meeting place; it must be empty.
std::unique_ptr<Group> start_gloo(int size, const std::string& folder) {
  return std::make_unique<Group>("gloo", size, [&](bench::Control& control, int rank) {
    return bench::run_rank(control, rank, [&] { return bench::join_gloo(folder, rank, size); });
  });
}

std::unique_ptr<Group> start_limit(const LimitSpace& space) {
  return std::make_unique<Group>("limit", 2, [&](bench::Control& control, int rank) {
    return bench::run_rank(control, rank, [&] {
      return bench::join_limit(space.data(), LimitSpace::distance_bytes / sizeof(float), rank);
    });
  });
}

// None where the program of Open MPI's ranks was not built.
std::unique_ptr<Group> start_open_mpi(int size) {
#ifdef BENCH_MPIEXEC
  // More ranks than cores yield while they wait, as Open MPI does by itself where it knows; ranks pin themselves.
  const bool has_core_each = bench::allowed_cpus().size() >= static_cast<std::size_t>(size);
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
           {"OMPI_MCA_pml", "ob1"},
           {"OMPI_MCA_btl", "self,vader"},
           {"OMPI_MCA_mpi_yield_when_idle", has_core_each ? "0" : "1"}}) {
    setenv(name, value, 1);
  }
  return std::make_unique<Group>("openmpi", size, [&](const std::string& control) {
    return std::vector<std::string>{BENCH_MPIEXEC, "--oversubscribe",    "--bind-to",        "none",
                                    "-n",          std::to_string(size), BENCH_OPENMPI_RANK, control};
  });
#else
  static_cast<void>(size);
  return nullptr;
#endif
}

// As many calls per sample as the clock needs, as many samples as a turn has room for.
bench::Order order_for(Group& group, std::uint64_t bytes) {
  const bool is_tiny = bytes <= 64;
  const bench::Order trial{.bytes = bytes, .samples = 5, .calls = is_tiny ? 20U : 1U};
  group.take_turn(trial);  // the first meets cold memory and connections that are still being made
  const double seconds = group.take_turn(trial);
  const double calls = is_tiny ? std::clamp(turn_seconds / 10 / seconds, 20.0, 20'000.0) : 1.0;
  const double samples = std::clamp(turn_seconds / (seconds * calls), 3.0, 1.0 * bench::max_samples);
  return {.bytes = bytes, .samples = static_cast<std::uint32_t>(samples), .calls = static_cast<std::uint32_t>(calls)};
}

using Times = std::map<std::string, double>;

// Seconds of a call by contestant: they take turns in short rounds, so that a busy neighbour disturbs all of them.
Times measure(const std::vector<std::unique_ptr<Group>>& groups, std::uint64_t bytes) {
  std::vector<Group*> here;
  for (const auto& group : groups) {
    if (group != nullptr) here.push_back(group.get());
  }
  std::vector<bench::Order> orders;
  for (Group* group : here) orders.push_back(order_for(*group, bytes));
  std::map<std::string, std::vector<double>> turns;
  for (int round = 0; round < num_rounds; ++round) {
    for (std::size_t i = 0; i < here.size(); ++i) turns[here[i]->name()].push_back(here[i]->take_turn(orders[i]));
  }
  Times times;
  for (const auto& [name, seconds] : turns) times[name] = bench::median(seconds);
  return times;
}

void print(const Times& times, const Size& size, int num_ranks) {
  for (const auto& [name, seconds] : times) {
    fmt::print(stderr, "all_reduce {} {} ranks: {} {:.4g} us\n", size.name, num_ranks, name, seconds * 1e6);
  }
  for (const std::string memory : {"arena", "private"}) {
    const std::string prefix = fmt::format("all_reduce.{}.{}.{}ranks.", memory, size.name, num_ranks);
    const double ours = times.at(memory);
    for (const std::string other : {"openmpi", "gloo"}) {
      if (times.contains(other)) figure(prefix + other + "_over_ours", times.at(other) / ours, "ratio");
    }
    // Of a few bytes the limit is no matter of memory.
    if (size.bytes > 64 && times.contains("limit")) {
      figure(prefix + "of_memory_limit", times.at("limit") / ours, "ratio");
    }
  }
}

void run(int num_ranks) {
  const LimitSpace space;
  const Folder folder;
  std::vector<std::unique_ptr<Group>> groups;
  groups.push_back(start_ours("arena", num_ranks, bench::Memory::arena));
  groups.push_back(start_open_mpi(num_ranks));
  groups.push_back(start_ours("private", num_ranks, bench::Memory::own));
  groups.push_back(start_gloo(num_ranks, folder.path()));
  if (num_ranks == 2 && bench::allowed_cpus().size() >= 2) groups.push_back(start_limit(space));
  for (const Size& size : sizes) print(measure(groups, size.bytes), size, num_ranks);
}

}  // namespace

int main() try {
#ifndef BENCH_MPIEXEC
  fmt::print(stderr, "Open MPI was not found (Debian: apt install libopenmpi-dev openmpi-bin): it is left out\n");
#endif
  const bench::Neighbours neighbours;
  for (const int num_ranks : {2, 4}) run(num_ranks);
  constexpr double tolerable = 0.05;
  if (neighbours.share() > tolerable) {
    fmt::print(stderr, "others have used {:.0f} % of the processors: measure again on a quiet machine\n",
               neighbours.share() * 100);
  }
} catch (const std::exception& error) {
  fmt::print(stderr, "benchmark_collectives: {}\n", error.what());
  return 1;
}
