// SPDX-License-Identifier: MIT
// A descriptor by which one thread wakes another that waits for descriptors. Workers room.
#pragma once

#include "railyard/core/detail/system.hpp"

#include <cstdint>

#include <sys/eventfd.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Can be read from since it was rung, until it is cleared.
class Event {
 public:
  Event() : descriptor_(adopt(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "a descriptor for wake-ups")) {}

  [[nodiscard]] int fd() const noexcept { return descriptor_.get(); }
  void ring() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd(), &one, sizeof one);
  }
  void clear() const noexcept {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd(), &count, sizeof count);
  }

 private:
  Descriptor descriptor_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
