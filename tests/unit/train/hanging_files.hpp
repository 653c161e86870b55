// SPDX-License-Identifier: MIT
// Storage that stops answering, and what tests need to look on from another process or thread meanwhile.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/core/deadline.hpp"

#include "unit/workers/support.hpp"

#include <atomic>
#include <chrono>
#include <thread>

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

using workers_test::SharedNumber;

/// Returns whether something comes true in time.
template <class Condition>
bool awaits(const Condition& condition, std::chrono::nanoseconds time = std::chrono::seconds{30}) {
  const auto deadline = railyard::Deadline::after(time);
  while (!condition() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  return condition();
}
