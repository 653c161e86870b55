// SPDX-License-Identifier: MIT
// The contestants that the driver starts itself; Open MPI's ranks are a program of their own.
#pragma once

#include "control.hpp"

#include "railyard/core/store.hpp"

#include <memory>
#include <string>

namespace bench {

enum class Memory { arena, own };

// SharedMemory as users get it; buffers from its arena, or ordinary memory.
std::unique_ptr<Member> join_ours(railyard::Store& store, int rank, int size, Memory memory);

// libgloo without anything of ours: its all-reduce (the ring, which is its default) over TCP. address: of this host.
std::unique_ptr<Member> join_gloo(const std::string& folder, int rank, int size,
                                  const std::string& address = "127.0.0.1");

// The least work that the sum of two ranks' buffers can be, see limit.cpp. space: memory of both, all zero, large
// enough for a page and twice `distance` elements, which lie between the beginnings of the two buffers.
std::unique_ptr<Member> join_limit(float* space, std::size_t distance, int rank);

// Memory as malloc gives it; alike for all contestants that may be given any.
class OwnMemory {
 public:
  float* take(std::size_t count) {
    values_ = std::make_unique<float[]>(count + 16);
    auto address = reinterpret_cast<std::uintptr_t>(values_.get());
    return reinterpret_cast<float*>((address + 63U) / 64U * 64U);
  }

 private:
  std::unique_ptr<float[]> values_;
};

}  // namespace bench
