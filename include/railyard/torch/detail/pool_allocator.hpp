// SPDX-License-Identifier: MIT
// LibTorch's allocator for CPU tensors, in front of the one that was there before. Torch room.
#pragma once

#include "railyard/core/detail/heap.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

// Knows which heap serves this thread, and to which heap a block belongs. One object per process and shared library,
// which is never destroyed: tensors of static storage are freed after everything else.
class PoolRegistry {
 public:
  static constexpr std::size_t most_heaps = 256;

  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  [[nodiscard]] static PoolRegistry& instance() {
    static PoolRegistry* const registry = new PoolRegistry;
    return *registry;
  }

  // The heap of the calling thread; a plain pointer, which other thread-local objects may use while they end.
  [[nodiscard]] static Heap*& bound() noexcept {
    static thread_local Heap* heap = nullptr;
    return heap;
  }

  [[nodiscard]] c10::DataPtr allocate(std::size_t size_bytes) const {
    Heap* heap = bound();
    void* memory = heap == nullptr ? nullptr : heap->allocate(size_bytes);
    if (memory == nullptr) memory = before_->raw_allocate(size_bytes);
    return {memory, memory, &give_back, c10::Device{c10::DeviceType::CPU}};
  }

  // Frees memory of any heap, or of the allocator that was there before: LibTorch's libraries may have taken some of it
  // by raw_allocate() when that was still the current one.
  static void give_back(void* memory) {
    if (memory == nullptr) return;
    const PoolRegistry& registry = instance();
    const std::size_t used = registry.num_used_.load(std::memory_order_acquire);
    for (std::size_t index = 0; index < used; ++index) {
      const Range& range = registry.ranges_[index];
      if (memory >= range.begin.load(std::memory_order_acquire) && memory < range.end.load(std::memory_order_acquire)) {
        return Heap::give_back(memory);
      }
    }
    registry.before_->raw_deallocate(memory);
  }

  // Makes the blocks of a heap known, until it is gone. Returns false if there are too many heaps.
  [[nodiscard]] bool add(Heap& heap) {
    const std::lock_guard lock{mutex_};
    for (std::size_t index = 0; index < most_heaps; ++index) {
      Range& range = ranges_[index];
      if (range.begin.load() != nullptr) continue;
      range.end.store(heap.end());
      range.begin.store(heap.begin());
      if (index >= num_used_.load()) num_used_.store(index + 1);
      heap.keep(std::shared_ptr<const void>{&range, [](const void* gone) {
                                              auto& ended = *static_cast<Range*>(const_cast<void*>(gone));
                                              ended.end.store(nullptr);
                                              ended.begin.store(nullptr);
                                            }});
      return true;
    }
    return false;
  }

  [[nodiscard]] bool knows(const Heap& heap) const noexcept {
    for (const Range& range : ranges_) {
      if (range.begin.load() == heap.begin()) return true;
    }
    return false;
  }

 private:
  struct Range {
    std::atomic<std::byte*> begin{nullptr};
    std::atomic<std::byte*> end{nullptr};
  };

  PoolRegistry();

  c10::Allocator* before_;
  std::mutex mutex_{};
  std::array<Range, most_heaps> ranges_{};
  std::atomic<std::size_t> num_used_{0};
};

// What overrides depends on the LibTorch: allocate() is const in 1.13 and is not in 2.15, copy_data() is unknown to
// 1.13. So none is marked, which clang++ would want for all or for none.
class PoolAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) const { return PoolRegistry::instance().allocate(size_bytes); }
  c10::DataPtr allocate(std::size_t size_bytes) { return PoolRegistry::instance().allocate(size_bytes); }
  c10::DeleterFnPtr raw_deleter() const { return &PoolRegistry::give_back; }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const {
    std::memcpy(to, from, size_bytes);  // LibTorch passes no null pointer here
  }
};
static_assert(!std::is_abstract_v<PoolAllocator>, "this LibTorch's c10::Allocator asks for functions not known here");

inline PoolRegistry::PoolRegistry() : before_(c10::GetAllocator(c10::DeviceType::CPU)) {}

// Puts the allocator in front of LibTorch's own, once for each shared library that uses pools. LibTorch keeps it for
// good, so it is never destroyed.
inline void install_pool_allocator() {
  static c10::Allocator* const installed = [] {
    static_cast<void>(PoolRegistry::instance());  // which asks for the one before
    auto* allocator = new PoolAllocator;
    c10::SetAllocator(c10::DeviceType::CPU, allocator, /*priority=*/100);
    return allocator;
  }();
  static_cast<void>(installed);
}

// Lets the calling thread take its CPU tensors from a heap until it ends. Made and ended by one thread.
class PoolBinding {
 public:
  explicit PoolBinding(std::shared_ptr<Heap> heap) : heap_(std::move(heap)), before_(PoolRegistry::bound()) {
    install_pool_allocator();
    PoolRegistry& registry = PoolRegistry::instance();
    if (registry.knows(*heap_) || registry.add(*heap_)) PoolRegistry::bound() = heap_.get();
  }
  PoolBinding(const PoolBinding&) = delete;
  PoolBinding& operator=(const PoolBinding&) = delete;
  ~PoolBinding() { PoolRegistry::bound() = before_; }

  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept { return heap_; }

 private:
  std::shared_ptr<Heap> heap_;
  Heap* before_;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
