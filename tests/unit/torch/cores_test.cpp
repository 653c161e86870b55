// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/cores.hpp"
#include "railyard/torch/detail/thread_budget.hpp"

#include "railyard/torch/tensor.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <thread>

namespace ry = railyard;

namespace {

// A hierarchy of control groups as files.
class Groups {
 public:
  Groups() {
    std::string folder = (std::filesystem::temp_directory_path() / "railyard_groups_XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    root_ = folder;
    std::filesystem::create_directories(root_ / "job" / "step");
    std::ofstream{root_ / "membership"} << "1:name=systemd:/elsewhere\n0::/job/step\n";
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups() { std::filesystem::remove_all(root_); }

  void limit(const std::filesystem::path& group, const std::string& text) const {
    std::ofstream{root_ / group / "cpu.max"} << text;
  }
  [[nodiscard]] std::optional<double> quota() const { return ry::detail::cores_of_cgroup(root_ / "membership", root_); }
  [[nodiscard]] int cores() const { return ry::detail::usable_cores(root_ / "membership", root_); }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST_CASE("usable_cores: honours the tightest control group above the process (FAULTS C5, C6)") {
  const Groups groups;
  CHECK_FALSE(groups.quota());
  CHECK(groups.cores() == ry::detail::cores_of_affinity());
  groups.limit("job/step", "max 100000\n");
  CHECK_FALSE(groups.quota());
  groups.limit("job", "150000 100000\n");
  CHECK(groups.quota() == 1.5);
  groups.limit("job/step", "50000 100000\n");
  CHECK(groups.quota() == 0.5);
  CHECK(groups.cores() == 1);
  groups.limit("", "20000 100000\n");
  CHECK(groups.quota() == 0.2);
}

TEST_CASE("cores_of_affinity: counts the cores that this thread may run on") {
  int cores = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) cores = ry::detail::cores_of_affinity();
  }).join();
  CHECK(cores == 1);
}

TEST_CASE("thread budget: a worker gets its share of the cores, and the process keeps its own number (FAULTS C5-C7)") {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;  // which is respected: nothing to see
  const int before = at::get_num_threads();
  const auto share = [](ry::Worker& worker) {
    static_cast<void>(ry::device(worker));
    const int expected = std::max(1, ry::detail::usable_cores() / worker.local_world_size());
    if (at::get_num_threads() != std::min(expected, at::get_num_threads()))
      throw std::runtime_error("more threads than its share");
    if (at::get_num_threads() > expected) throw std::runtime_error("more threads than cores");
    if (worker.environment().at("threads").as<std::int64_t>() != at::get_num_threads())
      throw std::runtime_error("checkpoints would tell of another number of threads");
    worker.report({{"threads", at::get_num_threads()}});
  };
  const int cores = ry::detail::usable_cores();
  const auto threads = test::on_threads(2, [&](auto& worker) { share(worker); });
  CHECK(threads.at("threads").number() == std::max(1, std::min(cores / 2, before)));
  CHECK(at::get_num_threads() == before);
  const auto processes = test::on_processes(2, [&](auto& worker) { share(worker); });
  CHECK(processes.at("threads").number() == std::max(1, std::min(cores / 2, before)));
}

TEST_CASE("thread budget: OMP_NUM_THREADS is respected") {
  const char* old = std::getenv("OMP_NUM_THREADS");
  const std::string kept = old == nullptr ? "" : old;
  setenv("OMP_NUM_THREADS", "64", 1);
  test::on_threads(2, [](auto& worker) {
    const int before = at::get_num_threads();
    static_cast<void>(ry::device(worker));
    if (at::get_num_threads() != before) throw std::runtime_error("the number of threads has changed");
  });
  if (old == nullptr) {
    unsetenv("OMP_NUM_THREADS");
  } else {
    setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  }
}
