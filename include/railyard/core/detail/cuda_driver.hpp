// SPDX-License-Identifier: MIT
// Whether this process has initialised CUDA, and how many devices its driver counts. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/asked_child.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/dynamic_library.hpp"
#include "railyard/core/error.hpp"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include <dlfcn.h>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr int cuda_driver_success = 0;
inline constexpr int cuda_driver_mismatch = 803;

/// Says by what sign this process has initialised CUDA; empty if it has not. Neither loads nor initialises anything.
[[nodiscard]] inline std::string sign_of_cuda() {
  const char* const named = std::getenv("RAILYARD_CUDA_LIBRARY");
  void* const driver = ::dlopen(named == nullptr ? "libcuda.so.1" : named, RTLD_NOW | RTLD_NOLOAD);
  void* const symbol = ::dlsym(driver == nullptr ? RTLD_DEFAULT : driver, "cuDeviceGetCount");
  auto* const get_count = reinterpret_cast<int (*)(int*)>(symbol);
  int count = 0;
  const bool answers = get_count != nullptr && get_count(&count) == cuda_driver_success;
  if (driver != nullptr) ::dlclose(driver);  // one less of those who hold it
  if (answers) return "its driver answers cuDeviceGetCount()";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd", error}) {
    if (std::filesystem::read_symlink(entry.path(), error) == "/dev/nvidia-uvm") return "/dev/nvidia-uvm is open";
  }
  return {};
}

/// Throws: ConfigError if this process has initialised CUDA, so that no child of it can use it.
inline void refuse_to_fork_after_cuda() {
  const std::string sign = sign_of_cuda();
  if (sign.empty()) return;
  throw ConfigError{compose(
      "start: this process has initialised CUDA ({}), and what is forked from it cannot use it: move what touches a "
      "GPU "
      "(torch::cuda::is_available() and device_count(), cudaGetDeviceCount(), a tensor on torch::kCUDA) from before "
      "fit() into the training function, or take Threads, whose workers are this process",
      sign)};
}

/// Is what the CUDA driver has counted: all that CUDA_VISIBLE_DEVICES shows, as it means it; or why it has not.
struct DriverCount {
  int count = 0;
  int code = cuda_driver_success;
  std::string problem{};
};

/// Asks the driver in a child that is thrown away, as whoever has initialised CUDA cannot fork workers that use it;
/// here where this process has done so before.
[[nodiscard]] inline DriverCount ask_cuda_driver(const Deadline& deadline) {
  struct Answer {
    int code = 0;
    int count = 0;
  };
  int (*init)(unsigned) = nullptr;
  int (*get_count)(int*) = nullptr;
  int (*get_error_string)(int, const char**) = nullptr;
  try {
    constexpr const char* names[] = {"libcuda.so.1"};
    const DynamicLibrary library{"the CUDA driver (libcuda.so.1)", {}, "RAILYARD_CUDA_LIBRARY", "cuInit", names};
    library.find("cuInit", init);
    library.find("cuDeviceGetCount", get_count);
    library.find("cuGetErrorString", get_error_string);
    const auto ask = [&] {
      Answer answer{.code = init(0)};
      if (answer.code == cuda_driver_success) answer.code = get_count(&answer.count);
      return answer;
    };
    const auto told = sign_of_cuda().empty() ? ask_child(ask, deadline) : ChildAnswer<Answer>{.value = ask()};
    if (!told.value) return {.problem = compose("the CUDA driver counts nothing: {}", told.problem)};
    if (told.value->code == cuda_driver_success) return {.count = told.value->count};
    const char* text = nullptr;
    get_error_string(told.value->code, &text);
    return {.code = told.value->code,
            .problem = compose("the CUDA driver says \"{}\" (error {})", text == nullptr ? "unknown error" : text,
                               told.value->code)};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
