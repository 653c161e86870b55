// SPDX-License-Identifier: MIT
// Counts the GPUs that a program may use, without initialising CUDA in it. Collectives room.
#pragma once

#include "railyard/collectives/detail/nccl_library.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include <poll.h>
#include <sys/wait.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which GPUs this process is shown, for messages.
[[nodiscard]] inline std::string visible_devices_text() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? std::string{"CUDA_VISIBLE_DEVICES is not set"}
                            : compose("CUDA_VISIBLE_DEVICES is \"{}\"", visible);
}

/// Returns the number of GPUs as CUDA counts them in this process, which initialises it.
/// Throws: ConfigError with CUDA's words, or if there is none.
[[nodiscard]] inline int count_devices(const CudaLibrary& cuda, int code, int count) {
  if (code == cuda_success && count > 0) return count;
  if (code == cuda_initialization_error) {
    throw ConfigError{
        compose("Nccl: CUDA cannot be initialised (CUDA error {}): most likely the program had used CUDA "
                "before its workers were forked; use it in the training function alone, or take Launched",
                code)};
  }
  const char* const reason = code == cuda_success ? "there is none" : cuda.get_error_string(code);
  throw ConfigError{
      compose("Nccl: no GPU can be used: {} (CUDA error {}; {}); is the NVIDIA driver loaded, and is this "
              "process shown a GPU? On CPUs, use Gloo",
              reason, code, visible_devices_text())};
}

[[nodiscard]] inline int count_devices_here(const CudaLibrary& cuda) {
  int count = 0;
  const int code = cuda.get_device_count(&count);
  return count_devices(cuda, code, count);
}

/// Does the same in a child that is thrown away: a process in which CUDA has been initialised cannot fork workers that
/// use it. CUDA does the counting, so that CUDA_VISIBLE_DEVICES means what it means there, UUIDs and MIG included.
[[nodiscard]] inline int count_devices_in_child(const CudaLibrary& cuda) {
  const auto ends = make_pipe(0, "Nccl: no pipe to count GPUs by");
  const pid_t child = ::fork();
  if (child < 0) throw_system("Nccl: no process to count GPUs in", errno);
  if (child == 0) {
    std::array<int, 2> answer{};
    answer[0] = cuda.get_device_count(&answer[1]);
    ::_exit(::write(ends.second.get(), answer.data(), sizeof answer) == sizeof answer ? 0 : 1);
  }
  std::array<int, 2> answer{-1, 0};
  pollfd waiting{ends.first.get(), POLLIN, 0};
  constexpr int patience_ms = 60'000;  // a driver that has to be loaded first takes its time
  if (::poll(&waiting, 1, patience_ms) == 1 &&
      ::read(ends.first.get(), answer.data(), sizeof answer) != sizeof answer) {
    answer = {-1, 0};
  }
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  // In the child of a process that has initialised CUDA it cannot be: here it can, and nothing is lost any more.
  if (answer[0] == cuda_initialization_error) return count_devices_here(cuda);
  return count_devices(cuda, answer[0], answer[1]);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
