// SPDX-License-Identifier: MIT
// What Gloo needs of us and what we need of its transport: stores, wake-ups, whose copy it is. Collectives room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"

#include <array>    // before gloo's headers, which forget them
#include <cstdint>  //

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <link.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Lets Gloo read and write our store. Gloo's newer stores have more members, all with defaults.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(railyard::Store& store, std::string prefix, int size, const Deadline& deadline)
      : store_(&store), prefix_(std::move(prefix)), deadline_(deadline) {
    std::vector<std::string> keys;  // what Gloo will ask for, one after the other: names of hosts, and addresses
    for (const char* kind : {"rank_", ""}) {
      for (int rank = 0; rank < size; ++rank) keys.push_back(compose("{}{}{}", prefix_, kind, rank));
    }
    store.expect(keys);
  }

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(prefix_ + key, std::string_view{data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_->get(prefix_ + key, deadline_);
    if (!value) throw Error{compose("{} was not there in {}", prefix_ + key, deadline_.budget_text())};
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) static_cast<void>(get(key));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override { wait(keys); }

 private:
  railyard::Store* store_;
  std::string prefix_;
  Deadline deadline_;
};

/// Is a file descriptor that a device's loop watches. Both forms of handleEvents exist because Gloo has changed its
/// signature: one of them overrides, the other is an overload that nobody calls.
class GlooEvent : public gloo::transport::tcp::Handler {
 public:
  GlooEvent(gloo::transport::tcp::Device& device, int descriptor) : device_(&device), descriptor_(descriptor) {
    if (descriptor < 0) throw Error{compose("no descriptor for a gloo device: {}", std::strerror(errno))};
  }
  GlooEvent(const GlooEvent&) = delete;
  GlooEvent& operator=(const GlooEvent&) = delete;
  ~GlooEvent() { ::close(descriptor_); }

  virtual void handleEvents(int /*events*/) { handle(); }
  virtual void handleEvents(gloo::transport::tcp::Loop& /*loop*/, int /*events*/) { handle(); }

 protected:
  virtual void handle() = 0;
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  void watch() { device_->registerDescriptor(descriptor_, EPOLLIN, this); }
  void unwatch() { device_->unregisterDescriptor(descriptor_, this); }

 private:
  gloo::transport::tcp::Device* device_;
  int descriptor_;
};

/// Keeps the loop of a device turning while it lives. Connecting and closing wait for the loop to come round, once for
/// every peer, and an idle loop sleeps up to 10 ms.
class GlooTicker final : public GlooEvent {
 public:
  explicit GlooTicker(gloo::transport::tcp::Device& device)
      : GlooEvent(device, ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
    watch();
  }
  ~GlooTicker() override {
    is_ending_.store(true);
    while (!has_ended_.load()) std::this_thread::yield();
  }

  /// Destroys the device, which this is the last to hold, while its loop still turns: an old Gloo's destructor waits
  /// for the loop to come round, and a new one's for it to have nothing more to do.
  void end_with(std::shared_ptr<gloo::transport::tcp::Device> device) {
    num_last_ticks_.store(1000);
    is_ending_.store(true);
    device.reset();
    has_ended_.store(true);
  }

 private:
  void handle() override {
    if (is_ending_.load()) {
      if (has_ended_.load() || num_last_ticks_.fetch_sub(1) > 0) return;
      unwatch();  // by the loop itself, because any other thread would wait for the loop to come round
      has_ended_.store(true);
    } else if (++num_ticks_ > 2000) {
      std::this_thread::sleep_for(std::chrono::microseconds{200});  // somebody is late: leave the core to them
    }
  }

  std::atomic<bool> is_ending_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<int> num_last_ticks_{0};
  int num_ticks_ = 0;
};

/// Wakes this rank's thread out of a wait of Gloo's at a given time, which is not an error to Gloo.
class GlooAlarm final : public GlooEvent {
 public:
  using Buffer = gloo::transport::UnboundBuffer;
  enum class Wait { receive, send };

  explicit GlooAlarm(gloo::transport::tcp::Device& device)
      : GlooEvent(device, ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    watch();
  }
  ~GlooAlarm() override { unwatch(); }

  void set(Deadline::Clock::time_point when) {
    const auto since_boot = std::max<std::chrono::nanoseconds>(when.time_since_epoch(), std::chrono::nanoseconds{1});
    itimerspec spec{};
    spec.it_value.tv_sec = static_cast<time_t>(since_boot.count() / 1'000'000'000);
    spec.it_value.tv_nsec = static_cast<long>(since_boot.count() % 1'000'000'000);
    ::timerfd_settime(descriptor(), TFD_TIMER_ABSTIME, &spec, nullptr);
  }

  /// Waits for one completion of the buffer; false if the alarm went off. Throws what Gloo throws.
  [[nodiscard]] bool wait(Buffer& buffer, Wait what, std::chrono::milliseconds timeout) {
    struct Watched {
      GlooAlarm& alarm;
      ~Watched() {
        const std::lock_guard lock{alarm.mutex_};
        alarm.waiting_ = nullptr;
      }
    } watched{*this};
    {
      const std::lock_guard lock{mutex_};
      if (std::exchange(has_rung_, false)) return false;
      waiting_ = &buffer;
      what_ = what;
    }
    const bool done = what == Wait::receive ? buffer.waitRecv(timeout) : buffer.waitSend(timeout);
    if (!done) {
      const std::lock_guard lock{mutex_};
      has_rung_ = false;
    }
    return done;
  }

 private:
  void handle() override {
    std::uint64_t num_expired = 0;
    if (::read(descriptor(), &num_expired, sizeof num_expired) <= 0) return;
    const std::lock_guard lock{mutex_};
    has_rung_ = true;
    if (waiting_ == nullptr) return;  // between two waits: the next one sees has_rung_
    what_ == Wait::receive ? waiting_->abortWaitRecv() : waiting_->abortWaitSend();
  }

  std::mutex mutex_;
  Buffer* waiting_ = nullptr;
  Wait what_ = Wait::receive;
  bool has_rung_ = false;
};

/// Throws ConfigError if the file, in which something of Gloo's lies, is LibTorch's.
inline void check_gloo_file(std::string_view file) {
  const auto slash = file.rfind('/');
  const std::string_view base = file.substr(slash == std::string_view::npos ? 0 : slash + 1);
  if (base.starts_with("libtorch") || base.starts_with("libc10")) {
    throw ConfigError{
        compose("this program calls the copy of Gloo inside {}, which is of another version than the headers it was "
                "compiled with and would crash; link Gloo before LibTorch: ... -lgloo -ltorch_cpu -lc10 (the CMake "
                "target railyard::railyard does)",
                file)};
  }
}

/// Returns the file of the shared library that address lies in; empty if it is in none, or in the program itself. Cost:
/// about a microsecond. dladdr() takes twenty times as long, for it looks for the nearest of the library's names as
/// well.
[[nodiscard]] inline std::string_view library_of(const void* address) noexcept {
  struct Search {
    std::uintptr_t address;
    const char* file = "";
  } search{.address = reinterpret_cast<std::uintptr_t>(address)};
  const auto look_at = [](dl_phdr_info* library, std::size_t /*size*/, void* data) {
    auto& wanted = *static_cast<Search*>(data);
    for (std::size_t at = 0; at < library->dlpi_phnum; ++at) {
      const auto& part = library->dlpi_phdr[at];
      if (part.p_type != PT_LOAD || wanted.address - library->dlpi_addr - part.p_vaddr >= part.p_memsz) continue;
      if (library->dlpi_name != nullptr) wanted.file = library->dlpi_name;
      return 1;
    }
    return 0;
  };
  ::dl_iterate_phdr(look_at, &search);
  return search.file;
}

/// Throws ConfigError if address, a function or table of Gloo's, lies in LibTorch.
inline void check_gloo_is_own(const void* address) { check_gloo_file(library_of(address)); }

}  // namespace detail
}  // namespace railyard::inline v0_1
