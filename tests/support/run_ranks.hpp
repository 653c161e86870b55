// SPDX-License-Identifier: MIT
// Runs the ranks of a group inside a test: as plain threads, or as the workers of any Scaling.
#pragma once

#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace railyard_test {

namespace ry = railyard;

/// Is a store in the memory of one process.
class MemoryStore final : public ry::Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock{mutex_};
    if (!values_.emplace(key, value).second) throw ry::KeyTakenError{fmt::format("the key {} is taken", key)};
    changed_.notify_all();
  }

  [[nodiscard]] std::optional<std::string> get(std::string_view key, const ry::Deadline& deadline) override {
    std::unique_lock lock{mutex_};
    for (bool in_time = true;;) {
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
      if (!in_time) return std::nullopt;
      if (deadline.is_never()) {
        changed_.wait(lock);
      } else {
        in_time = changed_.wait_until(lock, deadline.time()) == std::cv_status::no_timeout;
      }
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

/// Runs body(world, store) on size threads and returns what each of them has thrown, by rank.
template <class Body>
std::vector<std::exception_ptr> run_ranks_to_end(int size, const Body& body) {
  MemoryStore store;
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const ry::World world{.rank = rank,
                              .size = size,
                              .local_rank = rank,
                              .local_size = size,
                              .node = 0,
                              .num_nodes = 1,
                              .host = "test"};
        body(world, store);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

/// Runs body(world, store) on size threads and rethrows the exception of the lowest rank that has thrown one.
template <class Body>
void run_ranks(int size, const Body& body) {
  for (const auto& thrown : run_ranks_to_end(size, body)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}

/// Starts size workers, waits until all have ended, and returns how each of them ended, by rank.
template <ry::Scaling S>
std::vector<ry::WorkerExit> run_group_to_end(int size, const ry::WorkerBody& body,
                                             const ry::Deadline& deadline = ry::Deadline::after(std::chrono::seconds{
                                                 120})) {
  S scaling;
  const auto group = scaling.start({.num_workers = size}, body);
  std::vector<ry::WorkerExit> exits(static_cast<std::size_t>(size));
  for (int num_ended = 0; num_ended < size;) {
    const auto event = group->next(deadline);
    if (!event) throw std::runtime_error{fmt::format("{} of {} workers did not end", size - num_ended, size)};
    const auto* ended = std::get_if<ry::ExitEvent>(&*event);
    if (ended == nullptr) continue;
    exits[static_cast<std::size_t>(ended->rank)] = ended->exit;
    ++num_ended;
  }
  return exits;
}

/// Starts size workers, waits until all have ended, and throws what the first one that did not return has said.
template <ry::Scaling S>
void run_group(int size, const ry::WorkerBody& body) {
  std::string failures;
  const auto exits = run_group_to_end<S>(size, body);
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    if (exits[rank].kind == ry::WorkerExit::Kind::returned) continue;
    failures += fmt::format("rank {} ended (kind {}, code {}): {}\n", rank, static_cast<int>(exits[rank].kind),
                            exits[rank].code, exits[rank].message);
  }
  if (!failures.empty()) throw std::runtime_error{failures};
}

/// Fails the rank it is called on unless the condition holds. For code that may run in a child process, where an
/// assertion of the test framework reaches nobody.
/// what is a text, or makes one when it is needed: composing it for each of a million elements takes minutes.
template <class What>
void require(bool condition, const What& what) {
  if (condition) return;
  if constexpr (std::is_invocable_v<const What&>) {
    throw std::runtime_error{"not as required: " + what()};
  } else {
    throw std::runtime_error{"not as required: " + std::string{what}};
  }
}

}  // namespace railyard_test
