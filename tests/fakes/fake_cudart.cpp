// SPDX-License-Identifier: MIT
// A FAKE of the CUDA runtime, for tests without a GPU: devices are names, their memory is the host's, a stream is a
// thread that does one thing after the other. Uses of memory that streams and events leave unordered end the process
// (see fake_order.hpp), and the waits of the host for a device are counted.
// RAILYARD_FAKE_CUDA_DEVICES says how many devices there are (default 8).
// RAILYARD_FAKE_CUDA_ERROR makes cudaGetDeviceCount return that code. With RAILYARD_FAKE_CUDA_STRICT=1 it refuses, as
// the real one, a process that was forked from one which had called it before.
#include "fake_address.hpp"
#include "fake_order.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
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
  Stream() : id(next_id()) {
    std::thread{[this] { run(); }}.detach();  // for good, as nobody says when a program has done with CUDA
  }

  void add(std::function<void()> task) {
    const std::lock_guard lock{mutex_};
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }

  // Returns when all that was added has been done.
  void finish() {
    const auto is_done = std::make_shared<std::atomic<bool>>(false);  // of both threads, as one still tells the other
    add([is_done] {
      *is_done = true;
      is_done->notify_all();
    });
    is_done->wait(false);
  }

  [[nodiscard]] bool is_idle() {
    const std::lock_guard lock{mutex_};
    return tasks_.empty() && !is_busy_;
  }

  const std::size_t id;  // among all streams

 private:
  static std::size_t next_id() {
    static std::atomic<std::size_t> next{0};
    return next++;
  }

  void run() {
    for (;;) {
      std::unique_lock lock{mutex_};
      is_busy_ = false;
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      is_busy_ = true;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_busy_ = false;
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

// Memory of a device, or of the host for its copies, is no leak: it goes with the process.
class Allocations {
 public:
  [[nodiscard]] void* take(std::size_t size_bytes) {
    void* const place = std::malloc(std::max<std::size_t>(size_bytes, 1));
    const std::lock_guard lock{mutex_};
    all_[place] = size_bytes;
    return place;
  }
  void give_back(void* place) {
    {
      const std::lock_guard lock{mutex_};
      const auto found = all_.find(place);
      if (found == all_.end()) return;
      fake::Order::of_process().release(place, found->second);
      all_.erase(found);
    }
    std::free(place);
  }
  [[nodiscard]] bool has(const void* place) {
    const std::lock_guard lock{mutex_};
    const auto after = all_.upper_bound(const_cast<void*>(place));
    if (after == all_.begin()) return false;
    const auto& [begin, size_bytes] = *std::prev(after);
    return static_cast<const char*>(place) < static_cast<char*>(begin) + size_bytes;
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::size_t> all_;
};
Allocations& allocations() {
  static auto& all = *new Allocations;
  return all;
}
Allocations& pinned() {
  static auto& all = *new Allocations;
  return all;
}

struct EventState {
  std::atomic<int> recorded{0};
  std::atomic<int> done{0};
  std::mutex mutex;
  fake::OrderClock order;  // when it was recorded last

  void await(int number) {
    for (int now = done; now < number; now = done) done.wait(now);
  }
};
using Event = std::shared_ptr<EventState>;

// By device.
std::array<std::atomic<unsigned long>, 64> num_host_waits{};

void note_host_wait() { ++num_host_waits[static_cast<std::size_t>(current_device)]; }

// Of all that is on a stream.
void wait_on_host(Stream& stream) {
  note_host_wait();
  const auto order = fake::Order::of_process().record(stream.id);
  stream.finish();
  fake::Order::of_process().know(order);
}

bool is_pageable(const void* memory) { return fake::host_address(memory) == memory && !pinned().has(memory); }

// Addresses of the device alone: the host's are written to by the host as well, of which nobody tells.
void use_on(const Stream& stream, const void* memory, std::size_t size_bytes, bool is_write) {
  if (fake::host_address(memory) == memory) return;
  fake::Order::of_process().use(stream.id, fake::host_address(memory), size_bytes, is_write);
}

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
  *memory = fake::device_address(allocations().take(size_bytes));
  return success;
}
// The real one waits for the device.
int cudaFree(void* memory) {
  if (memory != nullptr) note_host_wait();
  allocations().give_back(fake::host_address(memory));
  return success;
}
int cudaHostAlloc(void** memory, std::size_t size_bytes, unsigned /*flags*/) {
  *memory = pinned().take(size_bytes);
  return success;
}
int cudaFreeHost(void* memory) {
  pinned().give_back(memory);
  return success;
}
// Of the host's memory only what is pinned is copied while the host goes on.
int cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, int /*kind*/, void* handle) {
  Stream& stream = stream_of(handle);
  use_on(stream, from, size_bytes, false);
  use_on(stream, to, size_bytes, true);
  stream.add([=] {
    if (size_bytes > 0) std::memcpy(fake::host_address(to), fake::host_address(from), size_bytes);
  });
  if (is_pageable(to) || is_pageable(from)) wait_on_host(stream);
  return success;
}
int cudaStreamCreateWithFlags(void** stream, unsigned /*flags*/) {
  *stream = new Stream;
  return success;
}
int cudaStreamCreateWithPriority(void** stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
// Its thread stays: this fake keeps streams for good.
int cudaStreamDestroy(void* /*stream*/) { return success; }
int cudaStreamSynchronize(void* stream) {
  wait_on_host(stream_of(stream));
  return success;
}
int cudaStreamQuery(void* handle) {
  Stream& stream = stream_of(handle);
  if (!stream.is_idle()) return last_error = not_ready;
  fake::Order::of_process().know(fake::Order::of_process().record(stream.id));
  return success;
}
int cudaStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  const Event state = *static_cast<Event*>(event);
  const int number = state->recorded;
  {
    const std::lock_guard lock{state->mutex};
    fake::Order::of_process().wait(stream_of(stream).id, state->order);
  }
  stream_of(stream).add([=] { state->await(number); });
  return success;
}
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  stream_of(stream).add([=] { function(data); });
  return success;
}
int cudaEventCreateWithFlags(void** event, unsigned /*flags*/) {
  *event = new Event{std::make_shared<EventState>()};
  return success;
}
int cudaEventRecord(void* event, void* handle) {
  const Event state = *static_cast<Event*>(event);
  Stream& stream = stream_of(handle);
  const int number = ++state->recorded;
  {
    const std::lock_guard lock{state->mutex};
    state->order = fake::Order::of_process().record(stream.id);
  }
  stream.add([=] {
    state->done = number;
    state->done.notify_all();
  });
  return success;
}
int cudaEventQuery(void* event) {
  const Event& state = *static_cast<Event*>(event);
  if (state->done != state->recorded) return last_error = not_ready;
  const std::lock_guard lock{state->mutex};
  fake::Order::of_process().know(state->order);
  return last_error = success;
}
int cudaEventSynchronize(void* event) {
  const Event state = *static_cast<Event*>(event);
  note_host_wait();
  state->await(state->recorded);
  return cudaEventQuery(event);
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

// Of the fake alone.

// Something is put on a stream that uses memory, of which it tells by cudaLaunchHostFunc or does it at once.
void fake_cuda_use(void* stream, const void* memory, std::size_t size_bytes, int is_write) {
  use_on(stream_of(stream), memory, size_bytes, is_write != 0);
}
void fake_cuda_release(const void* memory, std::size_t size_bytes) {
  fake::Order::of_process().release(fake::host_address(memory), size_bytes);
}
// Returns when all that is on a stream has been done. The program has not waited for it, as far as it knows.
void fake_cuda_drain(void* stream) { stream_of(stream).finish(); }
// The program waits for all that is on a stream.
void fake_cuda_wait(void* stream) { wait_on_host(stream_of(stream)); }
int fake_cuda_is_pinned(const void* memory) { return pinned().has(memory) ? 1 : 0; }
// How often the host has waited for a device.
unsigned long fake_cuda_host_waits(int device) { return num_host_waits[static_cast<std::size_t>(device)]; }
// How many uses of memory were not ordered, where RAILYARD_FAKE_CUDA_RACES=count.
unsigned long fake_cuda_races() { return fake::Order::of_process().num_races(); }

}  // extern "C"
