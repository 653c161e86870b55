// SPDX-License-Identifier: MIT
// The driver's end of one contestant: its processes, and the turns it is given.
#pragma once

#include "../median.hpp"
#include "control.hpp"

#include "railyard/core/store.hpp"
#include "railyard/workers/detail/group_memory.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace bench {

inline std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) throw std::runtime_error{"sched_getaffinity failed"};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// A Store for processes that were forked after it was made.
class ForkedStore : public railyard::Store {
 public:
  explicit ForkedStore(int size) : memory_(size) {}
  void set(std::string_view key, std::string_view value) override { memory_.store().set(key, value); }
  std::optional<std::string> get(std::string_view key, const railyard::Deadline& deadline) override {
    for (;;) {
      auto table = memory_.store();
      const std::uint32_t seen = table.changes();
      if (auto value = table.find(key)) return value;
      if (deadline.expired()) return std::nullopt;
      table.wait(seen, deadline.remaining());
    }
  }

 private:
  railyard::detail::GroupMemory memory_;
};

// Memory that others can map by its path.
class ControlMemory {
 public:
  explicit ControlMemory(int size) : fd_(memfd_create("collectives", MFD_CLOEXEC)) {
    if (fd_ < 0 || ftruncate(fd_, sizeof(Control)) != 0) throw std::runtime_error{"memfd_create failed"};
    void* memory = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) throw std::runtime_error{"mmap failed"};
    control_ = new (memory) Control{};
    control_->size = size;
    const std::vector<int> cpus = allowed_cpus();
    for (std::size_t rank = 0; rank < max_ranks; ++rank) control_->cpu[rank] = cpus[rank % cpus.size()];
    control_->has_core_each = cpus.size() >= static_cast<std::size_t>(size);
  }
  ControlMemory(const ControlMemory&) = delete;
  ControlMemory& operator=(const ControlMemory&) = delete;
  ~ControlMemory() {
    munmap(control_, sizeof(Control));
    close(fd_);
  }
  Control& operator*() const { return *control_; }
  std::string path() const { return fmt::format("/proc/{}/fd/{}", getpid(), fd_); }

 private:
  int fd_;
  Control* control_ = nullptr;
};

// One contestant, in processes that live as long as this object.
class Group {
 public:
  using Run = std::function<int(Control&, int rank)>;

  // Runs `run` in a process for each rank.
  Group(std::string name, int size, const Run& run) : name_(std::move(name)), memory_(size) {
    for (int rank = 0; rank < size; ++rank) start([&] { return run(*memory_, rank); });
  }
  // Runs a program that starts the ranks. command makes its arguments from the path of the Control.
  Group(std::string name, int size, const std::function<std::vector<std::string>(const std::string&)>& command)
      : name_(std::move(name)), memory_(size) {
    std::vector<std::string> words = command(memory_.path());
    start([&] {
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      dup2(STDERR_FILENO, STDOUT_FILENO);
      if (std::freopen("/dev/null", "r", stdin) == nullptr) return 127;
      execvp(arguments[0], arguments.data());
      return 127;
    });
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    give({});
    const auto deadline = railyard::Deadline::after(std::chrono::seconds{10});
    while (!children_.empty() && !deadline.expired()) {
      std::erase_if(children_, [](pid_t child) { return waitpid(child, nullptr, WNOHANG) == child; });
      usleep(1000);
    }
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

  const std::string& name() const { return name_; }

  // Has the contestant carry out an order. Returns the seconds of a call: the slowest rank's, median of the samples.
  double take_turn(const Order& order) {
    Control& control = *memory_;
    give(order);
    expected_ += static_cast<std::uint32_t>(control.size);
    const auto deadline = railyard::Deadline::after(std::chrono::seconds{60});
    for (std::uint32_t seen = 0; (seen = control.answers.load()) != expected_;) {
      railyard::detail::futex_wait(control.answers, seen, std::chrono::milliseconds{200});
      if (control.has_failed.load()) fail(control.failure);
      if (deadline.expired()) fail("it did not end its turn in 60 s");
      for (const pid_t child : children_) {
        if (waitpid(child, nullptr, WNOHANG) == child) {
          std::erase(children_, child);
          fail(control.has_failed.load() ? control.failure : "a process has ended");
        }
      }
    }
    std::vector<double> slowest(order.samples, 0.0);
    for (int rank = 0; rank < control.size; ++rank) {
      for (std::size_t i = 0; i < order.samples; ++i) slowest[i] = std::max(slowest[i], control.seconds[rank][i]);
    }
    return median(slowest);
  }

 private:
  template <class Body>
  void start(const Body& body) {
    const pid_t driver = getpid();
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error{"fork failed"};
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      _exit(getppid() == driver ? body() : 1);
    }
    children_.push_back(child);
  }
  void give(const Order& order) {
    (*memory_).order = order;
    railyard::detail::nudge((*memory_).turn);
  }
  [[noreturn]] void fail(const std::string& reason) {
    for (const pid_t child : children_) kill(child, SIGTERM);  // the rest may wait for the one that is gone
    throw std::runtime_error{name_ + ": " + reason};
  }

  std::string name_;
  ControlMemory memory_;
  std::uint32_t expected_ = 0;
  std::vector<pid_t> children_;
};

}  // namespace bench
