// SPDX-License-Identifier: MIT
// A FAKE of the CUDA driver (libcuda), for tests without a GPU: no more than what counts devices. As the real one it
// answers nothing before cuInit, and refuses a process that was forked from one which had called it.
//
// RAILYARD_FAKE_CUDA_DEVICES: how many devices there are (default 8).
// RAILYARD_FAKE_CUDA_ERROR: the code that cuInit returns.
// RAILYARD_FAKE_CUDA_INIT: "hang" makes cuInit never return, "crash" makes it end the process.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace {

constexpr int success = 0;
constexpr int not_initialized = 3;

std::atomic<pid_t> initialized_in{0};

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) {
  const char* const fault = std::getenv("RAILYARD_FAKE_CUDA_INIT");
  if (fault != nullptr && std::strcmp(fault, "crash") == 0) std::raise(SIGBUS);
  while (fault != nullptr && std::strcmp(fault, "hang") == 0) ::pause();
  if (initialized_in != 0 && initialized_in != ::getpid()) return not_initialized;
  const int error = number_of("RAILYARD_FAKE_CUDA_ERROR", success);
  if (error == success) initialized_in = ::getpid();
  return error;
}
int cuDeviceGetCount(int* count) {
  if (initialized_in != ::getpid()) return not_initialized;
  *count = number_of("RAILYARD_FAKE_CUDA_DEVICES", 8);
  return success;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == 803   ? "system has unsupported display driver / cuda driver combination"
          : error == 100 ? "no CUDA-capable device is detected"
                         : "an error of the fake CUDA driver";
  return success;
}
// Of the fake alone: makes the process one that has never called cuInit.
void fake_cuda_forget() { initialized_in = 0; }

}  // extern "C"
