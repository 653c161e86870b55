// SPDX-License-Identifier: MIT
// Addresses of the fakes' device memory: those of the host's memory behind it with one bit more, so that a program
// which takes device memory for its own crashes, as with a real device. The fakes know other memory as well.
#pragma once

#include <cstdint>

namespace fake {

inline constexpr std::uintptr_t device_bit = std::uintptr_t{1} << 62U;

template <class T>
[[nodiscard]] T* host_address(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(address) & ~device_bit);
}
template <class T>
[[nodiscard]] T* device_address(T* address) {
  return address == nullptr ? nullptr : reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(address) | device_bit);
}

}  // namespace fake
