// SPDX-License-Identifier: MIT
// A FAKE of the CUDA runtime, for tests without a GPU: devices are names, their memory is the host's, a stream is a
// thread that does one thing after the other. RAILYARD_FAKE_CUDA_DEVICES says how many devices there are (default 8).
// RAILYARD_FAKE_CUDA_ERROR makes cudaGetDeviceCount return that code. With RAILYARD_FAKE_CUDA_STRICT=1 it refuses, as
// the real one, a process that was forked from one which had called it before.
#include "fake_address.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <unistd.h>

namespace {

constexpr int success = 0;
constexpr int invalid_value = 1;
constexpr int initialization_error = 3;
constexpr int invalid_device = 101;
constexpr int not_ready = 600;

thread_local int current_device = 0;
thread_local int last_error = success;

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

bool is_forked_too_late() {
  static std::atomic<pid_t> first{0};
  if (std::getenv("RAILYARD_FAKE_CUDA_STRICT") == nullptr) return false;
  pid_t none = 0;
  first.compare_exchange_strong(none, ::getpid());
  return first != ::getpid();
}

class Stream {
 public:
  Stream() {
    std::thread{[this] { run(); }}.detach();  // for good, as nobody says when a program has done with CUDA
  }

  void add(std::function<void()> task) {
    const std::lock_guard lock{mutex_};
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
};

// Default streams belong to a process: the thread of a parent is not there in its forked child.
Stream& stream_of(void* handle) {
  if (handle != nullptr) return *static_cast<Stream*>(handle);
  static auto& mutex = *new std::mutex;
  static auto& streams = *new std::map<std::pair<pid_t, int>, Stream*>;
  const std::lock_guard lock{mutex};
  Stream*& stream = streams[{::getpid(), current_device}];
  if (stream == nullptr) stream = new Stream;
  return *stream;
}

// Memory of a device is no leak: it goes with the process.
class Allocations {
 public:
  template <class Change>
  void change(const Change& body) {
    const std::lock_guard lock{mutex_};
    body(all_);
  }

 private:
  std::mutex mutex_;
  std::set<void*> all_;
};
Allocations& allocations() {
  static auto& all = *new Allocations;
  return all;
}

struct EventState {
  std::atomic<int> recorded{0};
  std::atomic<int> done{0};
};
using Event = std::shared_ptr<EventState>;

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  if (is_forked_too_late()) return initialization_error;
  *count = number_of("RAILYARD_FAKE_CUDA_DEVICES", 8);
  return number_of("RAILYARD_FAKE_CUDA_ERROR", success);
}
int cudaGetDevice(int* device) {
  *device = current_device;
  return success;
}
int cudaSetDevice(int device) {
  if (device < 0 || device >= number_of("RAILYARD_FAKE_CUDA_DEVICES", 8)) return last_error = invalid_device;
  current_device = device;
  return success;
}
int cudaMalloc(void** memory, std::size_t size_bytes) {
  void* const place = std::malloc(size_bytes);
  allocations().change([&](auto& all) { all.insert(place); });
  *memory = fake::device_address(place);
  return success;
}
int cudaFree(void* memory) {
  void* const place = fake::host_address(memory);
  allocations().change([&](auto& all) { all.erase(place); });
  std::free(place);
  return success;
}
// As with memory that is not pinned: done when it returns.
int cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, int /*kind*/, void* stream) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  stream_of(stream).add([=] {
    if (size_bytes > 0) std::memcpy(fake::host_address(to), fake::host_address(from), size_bytes);
    *done = true;
    done->notify_all();
  });
  done->wait(false);
  return success;
}
int cudaStreamCreateWithFlags(void** stream, unsigned /*flags*/) {
  *stream = new Stream;
  return success;
}
// Its thread stays: this fake keeps streams for good.
int cudaStreamDestroy(void* /*stream*/) { return success; }
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  stream_of(stream).add([=] { function(data); });
  return success;
}
int cudaEventCreateWithFlags(void** event, unsigned /*flags*/) {
  *event = new Event{std::make_shared<EventState>()};
  return success;
}
int cudaEventRecord(void* event, void* stream) {
  const Event state = *static_cast<Event*>(event);
  const int number = ++state->recorded;
  stream_of(stream).add([=] { state->done = number; });
  return success;
}
int cudaEventQuery(void* event) {
  const Event& state = *static_cast<Event*>(event);
  return last_error = state->done == state->recorded ? success : not_ready;
}
int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return success;
}
int cudaGetLastError() { return std::exchange(last_error, success); }
const char* cudaGetErrorString(int error) {
  switch (error) {
    case success:
      return "no error";
    case invalid_value:
      return "invalid argument";
    case invalid_device:
      return "invalid device ordinal";
    case not_ready:
      return "device not ready";
    default:
      return "an error of the fake CUDA runtime";
  }
}

}  // extern "C"
