// SPDX-License-Identifier: MIT
// Serves LibTorch's CPU tensors from memory that is kept, instead of asking the system for it in every step. Torch
// room.
#pragma once

#include "railyard/torch/detail/pool_allocator.hpp"
#include "railyard/torch/detail/worker_pool.hpp"

#include "railyard/core/detail/heap.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/pool_statistics.hpp"
#include "railyard/train/worker.hpp"

#include <cstddef>
#include <memory>
#include <optional>

namespace railyard::inline v0_1 {

/// Says how much a Pool may take.
struct PoolOptions {
  /// Address space, in bytes; 0: as much as the host has memory. Where it is used up LibTorch's own allocator helps
  /// out.
  std::size_t reserve_bytes = 0;
  /// Free bytes above which the pages of large free blocks go back to the system.
  std::size_t max_cached_bytes = ~std::size_t{0};
};

/// Lets the thread that makes it take its CPU tensors from a pool for as long as it lives. LibTorch asks the system for
/// large tensors anew in every step, which costs more than the arithmetic of a small layer. A Trainer's workers have
/// one already (see ModelOptions::memory_pool); this is for programs without. The youngest of several serves. Ends on
/// the thread that made it. Tensors may outlive it, and be freed by any thread. Example: int main() { ry::Pool pool;
/// ... }
class Pool {
 public:
  /// Throws: Error if there is no address space for a pool.
  explicit Pool(const PoolOptions& options = {})
      : heap_(detail::make_private_heap(size_of(options), options.max_cached_bytes)), binding_(checked(heap_)) {}

  [[nodiscard]] PoolStatistics statistics() const noexcept { return heap_->statistics(); }
  /// Gives the memory of freed tensors back to the system.
  void trim() noexcept { heap_->trim(); }
  /// Whether memory, such as tensor.data_ptr(), is of this pool.
  [[nodiscard]] bool contains(const void* memory) const noexcept { return heap_->contains(memory); }

 private:
  [[nodiscard]] static std::size_t size_of(const PoolOptions& options) {
    return options.reserve_bytes > 0 ? options.reserve_bytes : detail::physical_memory();
  }
  [[nodiscard]] static const std::shared_ptr<detail::Heap>& checked(const std::shared_ptr<detail::Heap>& heap) {
    if (heap != nullptr) return heap;
    throw Error{"Pool: there is no address space for a pool of 64 MiB: see ulimit -v, or PoolOptions::reserve_bytes"};
  }

  std::shared_ptr<detail::Heap> heap_;
  detail::PoolBinding binding_;
};

/// Returns what the pool holds from which a worker takes its CPU tensors, and what it shows to other ranks; nothing
/// before the first prepare_model(), and with ModelOptions::memory_pool set to false. Each rank has its own.
/// Example: if (auto pool = ry::pool_statistics(worker)) worker.report({{"pool_bytes", pool->held_bytes}});
[[nodiscard]] inline std::optional<PoolStatistics> pool_statistics(Worker& worker) {
  const auto& binding = worker.extension<detail::WorkerPool>().binding;
  return binding ? std::optional{binding->heap()->statistics()} : std::nullopt;
}

}  // namespace railyard::inline v0_1
