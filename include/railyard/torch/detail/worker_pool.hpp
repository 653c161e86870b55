// SPDX-License-Identifier: MIT
// Gives a worker its pool of memory for tensors. Torch room.
#pragma once

#include "railyard/torch/detail/pool_allocator.hpp"

#include "railyard/core/detail/memory_left.hpp"
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
    // What it keeps of freed memory is bounded as that of ranks who share theirs; see SharedMemory::heap().
    const auto num_local = static_cast<std::size_t>(worker.local_world_size());
    heap = make_private_heap(physical_memory(), memory_left() / 2 / num_local);
  }
  if (heap != nullptr) pool.binding.emplace(std::move(heap));
}

}  // namespace detail

}  // namespace railyard::inline v0_1
