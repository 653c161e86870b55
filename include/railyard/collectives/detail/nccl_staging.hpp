// SPDX-License-Identifier: MIT
// The way of the host's buffers to a device and back. Collectives room.
#pragma once

#include "railyard/collectives/detail/nccl_library.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/buffer.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is memory of a device through which what lies on the host passes, on a stream of its own: it waits for nothing that
/// the device computes meanwhile. It grows to the largest that has passed, and is used by one thread at a time, whose
/// current device is the one.
class NcclStaging {
 public:
  /// Are device buffers in the place of an operation's host buffers.
  struct Staged {
    ConstBuffer in;
    Buffer out;
  };

  NcclStaging(const CudaLibrary& cuda, Device device) noexcept : cuda_(cuda), device_(device) {}
  NcclStaging(const NcclStaging&) = delete;
  NcclStaging& operator=(const NcclStaging&) = delete;

  /// Gives both buffers a place on the device, and copies what in holds there, or out where is_in_place.
  /// Throws: Error with CUDA's own words.
  [[nodiscard]] Staged take_in(const ConstBuffer& in, const Buffer& out, bool is_in_place) {
    const std::size_t begin_of_out = (in.size_bytes() + alignment - 1) / alignment * alignment;
    grow(begin_of_out + out.size_bytes());
    Staged staged{.in = in, .out = out};
    staged.in.device = staged.out.device = device_;
    if (in.count > 0) staged.in.data = memory_;
    if (out.count > 0) staged.out.data = static_cast<std::byte*>(memory_) + begin_of_out;
    if (in.count > 0) copy(memory_, in.data, in.size_bytes());
    if (is_in_place && out.count > 0) copy(staged.out.data, out.data, out.size_bytes());
    return staged;
  }

  /// Copies the result to the host; returns when it is there. Throws: Error with CUDA's own words.
  void give_out(const Staged& staged, const Buffer& out) {
    if (out.count > 0) copy(out.data, staged.out.data, out.size_bytes());
  }

  /// Makes the stream at its first call. Throws: Error with CUDA's own words.
  [[nodiscard]] Stream stream() {
    if (stream_ == nullptr) {
      cuda_.require(cuda_.stream_create(&stream_, cuda_stream_non_blocking), "cudaStreamCreateWithFlags");
    }
    return {stream_};
  }

  /// Frees what it has, which waits for the device: not to be called where something may be on it for ever.
  void free() noexcept {
    if (memory_ != nullptr) cuda_.free(std::exchange(memory_, nullptr));
    if (stream_ != nullptr) cuda_.stream_destroy(std::exchange(stream_, nullptr));
    capacity_ = 0;
  }

 private:
  static constexpr std::size_t alignment = 256;

  void grow(std::size_t size_bytes) {
    if (size_bytes <= capacity_) return;
    if (memory_ != nullptr) cuda_.free(std::exchange(memory_, nullptr));
    capacity_ = 0;
    const std::size_t capacity = std::max(size_bytes, std::size_t{1} << 16U);
    cuda_.require(cuda_.malloc(&memory_, capacity), "cudaMalloc");
    capacity_ = capacity;
  }

  // Memory of the host that is not pinned has been read, or holds the result, when the call returns.
  void copy(void* to, const void* from, std::size_t size_bytes) {
    cuda_.require(cuda_.memcpy_async(to, from, size_bytes, cuda_memcpy_default, stream().handle), "cudaMemcpyAsync");
  }

  CudaLibrary cuda_;
  Device device_;
  void* memory_ = nullptr;
  std::size_t capacity_ = 0;
  void* stream_ = nullptr;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
