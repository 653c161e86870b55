// SPDX-License-Identifier: MIT
// Gives a worker its pool of memory for tensors. Torch room.
#pragma once

#include "railyard/torch/detail/pool_allocator.hpp"

#include "railyard/core/detail/system.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/train/worker.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

namespace railyard::inline v0_1 {

namespace detail {

// Ends with the worker, on its thread. Tensors may live on.
struct WorkerPool {
  static constexpr std::string_view extension_name = "torch.pool";
  std::optional<PoolBinding> binding{};
};

// Lets the worker's thread take its tensors from memory that the other ranks see, if the backend has such.
inline void bind_pool(Worker& worker) {
  auto& pool = worker.extension<WorkerPool>();
  if (pool.binding) return;
  std::shared_ptr<Heap> heap;
  if (HostMemory* memory = worker.host_memory()) {
    heap = memory->heap();
  } else {
    heap = make_private_heap(physical_memory(), ~std::size_t{0});
  }
  if (heap != nullptr) pool.binding.emplace(std::move(heap));
}

}  // namespace detail

}  // namespace railyard::inline v0_1
