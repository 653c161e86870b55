// SPDX-License-Identifier: MIT
// The workers of one host as threads, each with its end of a feed, and what they read.
#pragma once

#include "railyard/data/detail/host_feed.hpp"

#include "railyard/data/epoch_reader.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace test {

namespace ry = railyard;
using ry::detail::HostFeed;

class MapStore final : public ry::Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock{mutex_};
    values_.emplace(key, value);
    changed_.notify_all();
  }
  std::optional<std::string> get(std::string_view key, const ry::Deadline& deadline) override {
    std::unique_lock lock{mutex_};
    const auto is_there = [&] { return values_.count(std::string{key}) > 0; };
    if (!changed_.wait_until(lock, deadline.time(), is_there)) return std::nullopt;
    return values_.at(std::string{key});
  }

 private:
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::map<std::string, std::string> values_{};
};

// Counts, also in other processes, how often a sample has been made.
class SharedCount {
 public:
  SharedCount()
      : count_(::new (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   std::atomic<std::uint64_t>{0}) {}
  ~SharedCount() { ::munmap(count_, 4096); }
  std::atomic<std::uint64_t>& operator*() const { return *count_; }

 private:
  std::atomic<std::uint64_t>* count_;
};

// Numbers with texts of several lengths.
inline ry::Schema counted_schema() {
  return {{"n", ry::Dtype::i64}, ry::Field::text("word"), {"pair", ry::Dtype::f32, {2}}};
}
inline void write_counted(std::uint64_t at, ry::SampleWriter& out, const SharedCount& made) {
  ++*made;
  out.set("n", static_cast<std::int64_t>(at));
  out.set("word", std::string(at % 11, static_cast<char>('a' + at % 26)));
  out.set("pair", std::vector<float>{static_cast<float>(at), 0.5F});
}

// One after another.
inline ry::Dataset counted_stream(std::size_t count, const SharedCount& made) {
  return ry::Dataset::from_generator(counted_schema(), [count, &made] {
    return [count, &made, at = std::uint64_t{0}](ry::SampleWriter& out) mutable {
      if (at == count) return false;
      write_counted(at++, out, made);
      return true;
    };
  });
}

// For a reader that reads through an end, which outlives it.
inline ry::detail::LoaderWishes through(HostFeed& feed) { return {.feed = {std::shared_ptr<void>{}, &feed}}; }

using FedSamples = std::vector<std::string>;

inline void append_fed(FedSamples& seen, const ry::EpochStep& step) {
  for (std::size_t row = 0; row < step.block.rows(); ++row) {
    seen.push_back(std::to_string(step.block.column("n").values<std::int64_t>(row)[0]) + " " +
                   std::string{step.block.column("word").text(row)} + " " +
                   std::to_string(step.block.column("pair").values<float>(row)[0]) + " " +
                   std::to_string(step.block.ids()[row]) + " " + std::to_string(step.samples) + " " +
                   std::to_string(step.after.consumed()));
  }
}

inline FedSamples read_alone(const ry::Dataset& dataset, const ry::EpochOptions& options) {
  FedSamples seen;
  for (const ry::EpochStep& step : ry::EpochReader{dataset, options}) append_fed(seen, step);
  return seen;
}

inline HostFeed::Seat seat(ry::Store& store, std::size_t rank, std::size_t size,
                           std::chrono::milliseconds patience = std::chrono::seconds{20}) {
  return {.store = &store, .name = "feed", .local_rank = rank, .local_size = size, .patience = patience};
}

// Runs on so many threads, each with its end, and returns what each returns.
template <class Function>
auto on_host(std::size_t size, Function function, std::chrono::milliseconds patience = std::chrono::seconds{20}) {
  MapStore store;
  std::vector<std::future<decltype(function(std::size_t{}, std::declval<HostFeed&>()))>> all;
  for (std::size_t rank = 0; rank < size; ++rank) {
    all.push_back(std::async(std::launch::async, [&, rank] {
      HostFeed feed{seat(store, rank, size, patience), 4096};
      return function(rank, feed);
    }));
  }
  std::vector<decltype(all.front().get())> results;
  for (auto& one : all) results.push_back(one.get());
  return results;
}

// Is the process that leads the feed of a host of two. read: what it does until it is killed.
class LeadingProcess {
 public:
  template <class Read>
  explicit LeadingProcess(const Read& read) {
    int address[2];
    if (::pipe(address) != 0) throw std::runtime_error{"pipe failed"};
    process_ = ::fork();
    if (process_ == 0) {
      MapStore store;
      HostFeed feed{seat(store, 0, 2), 4096};
      const std::string text = *store.get("feed", ry::Deadline::after(std::chrono::seconds{1}));
      static_cast<void>(!::write(address[1], text.data(), text.size()));
      read(feed);
      ::_exit(1);
    }
    char text[100] = {};
    const bool has_said = ::read(address[0], text, sizeof text - 1) > 0;
    ::close(address[0]);
    ::close(address[1]);
    if (!has_said) throw std::runtime_error{"the process that leads has said no address"};
    store_.set("feed", text);
  }
  LeadingProcess(const LeadingProcess&) = delete;
  LeadingProcess& operator=(const LeadingProcess&) = delete;
  ~LeadingProcess() { kill(); }

  // Where the other worker finds it.
  [[nodiscard]] MapStore& store() noexcept { return store_; }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, 0), nullptr, 0);
  }

 private:
  pid_t process_ = 0;
  MapStore store_{};
};

// Waits until those who read ahead have as much as they want: nothing is made any more.
inline void await_rest(SharedCount& made) {
  for (std::size_t before = (*made).load() + 1; before != (*made).load();) {
    before = (*made).load();
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
}

}  // namespace test
