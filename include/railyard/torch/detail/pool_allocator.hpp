// SPDX-License-Identifier: MIT
// LibTorch's allocator for CPU tensors, in front of the one that was there before. Torch room.
#pragma once

#include "railyard/core/detail/heap.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

class PoolBinding;

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

  // The binding of the calling thread that serves it; a plain pointer, which other thread-local objects may use while
  // they end.
  [[nodiscard]] static PoolBinding*& bound() noexcept {
    static thread_local PoolBinding* binding = nullptr;
    return binding;
  }

  [[nodiscard]] c10::DataPtr allocate(std::size_t size_bytes) const {
    void* memory = allocate_bound(size_bytes);
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
      if (registry.ranges_[index].contains(memory)) return Heap::give_back(memory);
    }
    registry.before_->raw_deallocate(memory);
  }

  // Makes the blocks of a heap known, until it is gone. Returns false if there are too many heaps.
  [[nodiscard]] bool add(Heap& heap) {
    const std::lock_guard lock{mutex_};
    for (std::size_t index = 0; index < most_heaps; ++index) {
      Range& range = ranges_[index];
      if (range.is_taken.exchange(true)) continue;
      range.set(heap.begin(), heap.end());
      if (index >= num_used_.load()) num_used_.store(index + 1);
      heap.keep(std::shared_ptr<const void>{&range, [](const void* gone) {
                                              auto& ended = *static_cast<Range*>(const_cast<void*>(gone));
                                              ended.set(nullptr, nullptr);
                                              ended.is_taken.store(false);
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
  [[nodiscard]] static void* allocate_bound(std::size_t size_bytes) noexcept;

  // Of one heap after another. Others ask for memory while it changes, and begin and end may then be of two heaps; but
  // it never changes while memory of its heap is out.
  struct Range {
    std::atomic<bool> is_taken{false};
    std::atomic<std::uint64_t> num_changes{0};  // odd while it changes
    std::atomic<std::byte*> begin{nullptr};
    std::atomic<std::byte*> end{nullptr};

    void set(std::byte* new_begin, std::byte* new_end) noexcept {
      ++num_changes;
      begin.store(new_begin);
      end.store(new_end);
      ++num_changes;
    }
    [[nodiscard]] bool contains(const void* memory) const noexcept {
      const std::uint64_t before = num_changes.load(std::memory_order_acquire);
      const bool is_inside =
          memory >= begin.load(std::memory_order_acquire) && memory < end.load(std::memory_order_acquire);
      return is_inside && before % 2 == 0 && num_changes.load(std::memory_order_acquire) == before;
    }
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

// Lets the calling thread take its CPU tensors from a heap until it ends. Made and ended by one thread; of several the
// youngest serves, in whichever order they end.
class PoolBinding {
 public:
  explicit PoolBinding(std::shared_ptr<Heap> heap) : heap_(std::move(heap)) {
    install_pool_allocator();
    PoolRegistry& registry = PoolRegistry::instance();
    if (registry.knows(*heap_) || registry.add(*heap_)) before_ = std::exchange(PoolRegistry::bound(), this);
  }
  PoolBinding(const PoolBinding&) = delete;
  PoolBinding& operator=(const PoolBinding&) = delete;
  ~PoolBinding() {
    PoolBinding** at = &PoolRegistry::bound();
    while (*at != nullptr && *at != this) at = &(*at)->before_;
    if (*at == this) *at = before_;
  }

  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept { return heap_; }

 private:
  std::shared_ptr<Heap> heap_;
  PoolBinding* before_ = nullptr;
};

inline void* PoolRegistry::allocate_bound(std::size_t size_bytes) noexcept {
  const PoolBinding* binding = bound();
  return binding == nullptr ? nullptr : binding->heap()->allocate(size_bytes);
}

}  // namespace detail

}  // namespace railyard::inline v0_1
