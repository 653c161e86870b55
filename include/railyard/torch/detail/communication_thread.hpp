// SPDX-License-Identifier: MIT
// The thread of a worker that exchanges gradients while its backward pass goes on. Torch room.
#pragma once

#include "railyard/torch/detail/pool_allocator.hpp"
#include "railyard/torch/detail/thread_budget.hpp"

#include "railyard/core/detail/heap.hpp"
#include "railyard/core/detail/signals.hpp"

#include <c10/core/GradMode.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

// Calls one function as often as it is told, until a call throws. Its owner makes sure that calls end.
class CommunicationThread {
 public:
  // heap: where tensors come from that the function makes; may be null.
  CommunicationThread(std::function<void()> function, std::shared_ptr<Heap> heap)
      : function_(std::move(function)), heap_(std::move(heap)) {
    const BlockSignals no_signals{deferrable_signals()};  // in the new thread, which then runs no handler of the user's
    thread_ = std::thread{[this] { run(); }};
  }
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;
  ~CommunicationThread() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Asks for more calls. After one has failed there are none: settle() says so.
  void ask(std::size_t num_calls) {
    {
      const std::lock_guard lock{mutex_};
      if (error_) return;
      num_asked_ += num_calls;
    }
    changed_.notify_all();
  }

  [[nodiscard]] bool has_failed() const {
    const std::lock_guard lock{mutex_};
    return error_ != nullptr;
  }

  // Waits until all calls that were asked for have been made, and throws what one of them has thrown.
  void settle() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return num_asked_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void run() {
    const at::NoGradGuard no_grad;
    static_cast<void>(at::get_num_threads());  // or LibTorch would undo the next line later
    if (auto* set = TorchLibrary{}.find<void(int)>("omp_set_num_threads")) set(1);  // the others compute
    std::optional<PoolBinding> pool;
    if (heap_) pool.emplace(heap_);
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || num_asked_ > 0; });
      if (is_ending_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        function_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      num_asked_ = error ? 0 : num_asked_ - 1;
      error_ = std::move(error);
      if (num_asked_ == 0) changed_.notify_all();
    }
  }

  std::function<void()> function_;
  std::shared_ptr<Heap> heap_;
  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  std::size_t num_asked_ = 0;  // calls that have not been made
  std::exception_ptr error_{};
  bool is_ending_ = false;
  std::thread thread_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
