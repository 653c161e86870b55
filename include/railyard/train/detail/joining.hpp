// SPDX-License-Identifier: MIT
// Joins a worker to its group while its training function already runs. Train room.
#pragma once

#include "railyard/train/detail/connecting_store.hpp"
#include "railyard/train/detail/wire.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/scaling.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Connects the backend on a thread of its own, so that the ranks meet while they load their data and build their
/// models, and a rank that takes long over these does not make the others' connecting fail.
template <Backend B>
class Joining {
 public:
  /// Starts at once. link and options must outlive this object. The end of the group ends the backend's waits.
  Joining(WorkerLink& link, const typename B::Options& options, std::chrono::nanoseconds timeout)
      : link_(&link), store_(link.store(), link.world().rank) {
    link.on_abort([this](std::string_view reason) { abort(reason); });
    try {
      thread_ = std::thread{[this, &options, timeout] { join_group(options, Deadline::after(timeout)); }};
    } catch (...) {
      link.on_abort({});
      throw;
    }
  }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;
  ~Joining() {
    if (!is_over_.load()) abort("the training function of this rank has ended");
    thread_.join();
    link_->on_abort({});
  }

  /// Waits until this rank has joined. Throws: what connecting threw, every time.
  [[nodiscard]] B& backend() {
    if (!is_over_.load(std::memory_order_acquire)) is_over_.wait(false);
    if (error_) std::rethrow_exception(error_);
    return *backend_;
  }

 private:
  void join_group(const typename B::Options& options, const Deadline& deadline) noexcept {
    try {
      auto backend = B::connect(options, link_->world(), store_, deadline);
      {
        const std::lock_guard lock{mutex_};
        backend_ = std::move(backend);
        if (abort_reason_) backend_->abort(*abort_reason_);
      }
      link_->post(encode_joined(link_->world().host));
    } catch (...) {
      error_ = std::current_exception();
    }
    is_over_.store(true);
    is_over_.notify_all();
  }

  void abort(std::string_view reason) {
    const std::lock_guard lock{mutex_};
    if (backend_) {
      backend_->abort(reason);
    } else if (!abort_reason_) {
      abort_reason_ = reason;
      store_.abort(reason);
    }
  }

  WorkerLink* link_;
  ConnectingStore store_;
  std::mutex mutex_;
  std::unique_ptr<B> backend_{};
  std::optional<std::string> abort_reason_{};
  std::exception_ptr error_{};  // written before is_over_
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
