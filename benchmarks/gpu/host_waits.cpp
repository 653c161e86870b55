// SPDX-License-Identifier: MIT
// Counts the calls of the CUDA runtime by which the host waits for the device: a program's own definitions come before
// those of the library (it is linked with -rdynamic), count, and call that.
#include "host_waits.hpp"

#include <atomic>
#include <cstddef>

#include <dlfcn.h>

namespace {

std::atomic<unsigned long> num_waits{0};

// Calls the library's function of that name.
template <class... Arguments>
int call_cudart(const char* name, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  // LibTorch's own, or one that was loaded by name.
  void* found = ::dlsym(RTLD_NEXT, name);
  for (const char* const library : {"libcudart.so.13", "libcudart.so.12"}) {
    if (found != nullptr) break;
    if (void* const handle = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD)) found = ::dlsym(handle, name);
  }
  constexpr int not_supported = 801;
  return found == nullptr ? not_supported : reinterpret_cast<Function>(found)(arguments...);
}

template <class... Arguments>
int wait_by_cudart(const char* name, Arguments... arguments) {
  ++num_waits;
  return call_cudart(name, arguments...);
}

}  // namespace

unsigned long bench::host_waits() { return num_waits; }

extern "C" {

int cudaDeviceSynchronize() { return wait_by_cudart("cudaDeviceSynchronize"); }
int cudaStreamSynchronize(void* stream) { return wait_by_cudart("cudaStreamSynchronize", stream); }
int cudaEventSynchronize(void* event) { return wait_by_cudart("cudaEventSynchronize", event); }
int cudaFree(void* memory) { return wait_by_cudart("cudaFree", memory); }
int cudaMemcpy(void* to, const void* from, std::size_t size_bytes, int kind) {
  return wait_by_cudart("cudaMemcpy", to, from, size_bytes, kind);
}

// Waits only where memory of the host is not pinned, of which CUDA says that it knows nothing.
int cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, int kind, void* stream) {
  struct Attributes {  // cudaPointerAttributes
    int type = 0;
    int device = 0;
    void* device_pointer = nullptr;
    void* host_pointer = nullptr;
    long reserved[16] = {};  // more than any release has
  };
  for (const void* const end : {static_cast<const void*>(to), from}) {
    Attributes attributes;
    const bool is_known = call_cudart("cudaPointerGetAttributes", static_cast<void*>(&attributes), end) == 0;
    constexpr int unregistered = 0;
    if (is_known && attributes.type == unregistered) {
      ++num_waits;
      break;
    }
  }
  return call_cudart("cudaMemcpyAsync", to, from, size_bytes, kind, stream);
}

}  // extern "C"
