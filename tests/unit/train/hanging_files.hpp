// SPDX-License-Identifier: MIT
// Storage that stops answering, and what tests need to look on from another process or thread meanwhile.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/core/deadline.hpp"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>

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

/// Is a number that forked processes share.
class SharedNumber {
 public:
  SharedNumber() {
    void* memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error{"mmap failed"};
    number_ = static_cast<std::atomic<int>*>(memory);
  }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  ~SharedNumber() { ::munmap(number_, sizeof(std::atomic<int>)); }
  std::atomic<int>& operator*() const { return *number_; }

 private:
  std::atomic<int>* number_;
};

/// Returns whether something comes true in time.
template <class Condition>
bool awaits(const Condition& condition, std::chrono::nanoseconds time = std::chrono::seconds{30}) {
  const auto deadline = railyard::Deadline::after(time);
  while (!condition() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  return condition();
}
