// SPDX-License-Identifier: MIT
// Storage that stops answering, and what tests need to look on from another process or thread meanwhile.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/core/deadline.hpp"

#include "unit/workers/support.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>

/// Lets who looks whose run it is wait, from some moment on until another.
class HangingFiles : public railyard::detail::Files {
 public:
  void hang() { hangs_ = true; }
  void let_go() { hangs_ = false; }
  int open(const Path& path, int flags) override {
    while (hangs_ && path.filename() == "lease.json" && flags == O_RDONLY) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return Files::open(path, flags);
  }

 private:
  std::atomic<bool> hangs_{false};
};

/// Lets who does something that asks a server wait, from some moment on until another.
class StalledFiles : public railyard::detail::Files {
 public:
  void stall() { stalls_ = true; }
  void let_go() { stalls_ = false; }
  [[nodiscard]] int num_waiting() const { return num_waiting_; }
  int open(const Path& path, int flags) override {
    wait();
    return Files::open(path, flags);
  }
  int open_directory(const Path& path) override {
    wait();
    return Files::open_directory(path);
  }
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    wait();
    return Files::write(fd, from, size);
  }
  ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) override {
    wait();
    return Files::write_at(fd, from, size, at);
  }
  int sync(int fd) override {
    wait();
    return Files::sync(fd);
  }

 private:
  void wait() {
    if (!stalls_) return;
    ++num_waiting_;
    while (stalls_) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    --num_waiting_;
  }

  std::atomic<bool> stalls_{false};
  std::atomic<int> num_waiting_{0};
};

using workers_test::SharedNumber;

/// Holds who opens what has a name that begins so, or any, in this process or one that it is told of: from when the
/// state is `dead` until it is `alive` again.
class DyingFiles : public railyard::detail::Files {
 public:
  enum State : int { alive, dead, dead_and_asked };

  DyingFiles(std::string name, std::atomic<int>& state) : name_(std::move(name)), state_(&state) {}
  int open(const Path& path, int flags) override {
    wait(path);
    return Files::open(path, flags);
  }
  int open_directory(const Path& path) override {
    wait(path);
    return Files::open_directory(path);
  }

 private:
  void wait(const Path& path) {
    while (path.filename().string().rfind(name_, 0) == 0 && *state_ != alive) {
      int was = dead;
      state_->compare_exchange_strong(was, dead_and_asked);
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }

  std::string name_;
  std::atomic<int>* state_;
};

/// Returns whether something comes true in time.
template <class Condition>
bool awaits(const Condition& condition, std::chrono::nanoseconds time = std::chrono::seconds{30}) {
  const auto deadline = railyard::Deadline::after(time);
  while (!condition() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  return condition();
}
