// SPDX-License-Identifier: MIT
// The group's store as a worker sees it that reaches its leader over the network. Workers room.
#pragma once

#include "railyard/workers/detail/secure_connection.hpp"
#include "railyard/workers/detail/store_server.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Says where the store of a group is.
struct NetworkStorePlace {
  std::string host{};  ///< of the leader's listener
  int port = 0;
  std::string job{};
  std::uint32_t generation = 0;
  int rank = 0;
  std::chrono::nanoseconds patience = std::chrono::seconds{30};  ///< for connecting, and for each answer
  ConnectionLimits limits{};
  std::optional<Ticket> ticket{};  ///< of the listener: saves two round trips
};

/// Sets and gets through one connection, made by the first call and anew in a forked process. Values never change, so
/// that each is fetched once. Costs: set() a round trip, get() one if the value has not been fetched before.
/// Throws: CollectiveError if the leader is gone, does not answer, or has ended this generation of workers.
class NetworkStore final : public Store {
 public:
  NetworkStore(NetworkStorePlace place, Hmac secret) : place_(std::move(place)), secret_(std::move(secret)) {}

  void set(std::string_view key, std::string_view value) override {
    check_size(key, value);
    const SetOutcome outcome = guarded("set", key, [&](Lock& lock) { return send_value(key, value, lock); });
    if (outcome == SetOutcome::taken) throw_key_taken(key);
    if (outcome == SetOutcome::full) throw_store_full(key, value, StoreServer::max_keys);
  }

  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    check_size(key, {});
    // Who does not want to wait wants to know what is there now: that takes an answer.
    const bool is_look = deadline.expired();
    return guarded("get", key, [&](Lock& lock) { return is_look ? look(key, lock) : await(key, deadline, lock); });
  }

  void expect(const std::vector<std::string>& keys) override {
    if (keys.empty()) return;
    for (const std::string& key : keys) check_size(key, {});
    guarded("expect", keys.front(), [&](Lock&) {
      for (const std::string& key : keys) {
        Wanted& wanted = wanted_[key];
        if (wanted.num_asked == 0) ask(key, wanted);
      }
      connection_->flush(patience());
    });
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Wanted {
    std::optional<std::string> value{};
    std::uint64_t num_asked = 0;
    std::uint64_t num_absent = 0;  // how often the answer was that it is not there; the server then sends it once it is
  };

  static void check_size(std::string_view key, std::string_view value) {
    if (key.size() + value.size() > StoreServer::max_bytes) throw_store_full(key, value, StoreServer::max_keys);
  }

  // Whatever goes wrong means that the group is lost, for all later calls as well.
  template <class Function>
  std::invoke_result_t<Function, Lock&> guarded(std::string_view name, std::string_view key, const Function& function) {
    Lock lock{mutex_};
    try {
      connect();
      return function(lock);
    } catch (const Error& error) {
      lost_ = error.what();
      changed_.notify_all();
      std::string operation = compose("store.{}(\"{}\")", name, key);
      const std::string message = compose("{} on rank {}: {}", operation, place_.rank, lost_);
      throw CollectiveError{std::move(operation), place_.rank, {}, message};
    }
  }

  // The connection is the parent's: two processes that send on it would spoil it for both.
  void forget_if_forked() {
    if (owner_ == ::getpid()) return;
    owner_ = ::getpid();
    if (connection_) connection_->forget_in_child();
    connection_.reset();
    is_watched_ = false;
    wanted_.clear();
    outcomes_.clear();
    lost_.clear();
  }

  void connect() {
    forget_if_forked();
    throw_if_lost();
    if (connection_) return;
    const Hello hello{.kind = HelloKind::store,
                      .job = place_.job,
                      .generation = place_.generation,
                      .process = place_.rank,
                      .payload = {}};
    connection_ =
        SecureConnection::connect(place_.host, place_.port, secret_, hello, patience(), place_.limits, place_.ticket);
  }

  void throw_if_lost() const {
    if (!lost_.empty()) throw ConnectionError{ConnectionError::Cause::closed, lost_};
  }

  SetOutcome send_value(std::string_view key, std::string_view value, Lock& lock) {
    const Deadline deadline = patience();
    const std::uint32_t number = next_number_++;
    WireWriter writer;
    writer.put(number);
    writer.put_text(key);
    connection_->send(static_cast<std::uint8_t>(StoreFrame::set), {writer.bytes(), text_bytes(value)}, deadline);
    std::optional<SetOutcome>& outcome = outcomes_[number];
    while (!outcome) wait_for_answer(lock, deadline);
    return *outcomes_.extract(number).mapped();
  }

  std::optional<std::string> look(std::string_view key, Lock& lock) {
    Wanted& wanted = wanted_[std::string{key}];
    if (wanted.value) return wanted.value;
    ask(key, wanted);
    const std::uint64_t asked = wanted.num_asked;
    const Deadline deadline = patience();
    connection_->flush(deadline);
    while (!wanted.value && wanted.num_absent < asked) wait_for_answer(lock, deadline);
    return wanted.value;
  }

  std::optional<std::string> await(std::string_view key, const Deadline& deadline, Lock& lock) {
    Wanted& wanted = wanted_[std::string{key}];
    if (wanted.num_asked == 0) ask(key, wanted);
    connection_->flush(patience());
    while (!wanted.value && wait_for_frames(lock, deadline)) {
    }
    return wanted.value;
  }

  // Only queues it.
  void ask(std::string_view key, Wanted& wanted) {
    connection_->post(static_cast<std::uint8_t>(StoreFrame::get), {text_bytes(key)});
    ++wanted.num_asked;
  }

  [[nodiscard]] Deadline patience() const { return Deadline::after(place_.patience); }

  void wait_for_answer(Lock& lock, const Deadline& deadline) {
    if (wait_for_frames(lock, deadline)) return;
    throw ConnectionError{ConnectionError::Cause::failed,
                          compose("{} has not answered in {}", connection_->peer(), deadline.budget_text())};
  }

  // Waits for a while. Returns false once the deadline has passed. One of the waiting threads looks at the socket, the
  // others wait for what it finds.
  [[nodiscard]] bool wait_for_frames(Lock& lock, const Deadline& deadline) {
    const auto look = times_.look(deadline);
    if (look.is_over) return false;
    const Deadline next_look = Deadline::after(look.until_next);
    if (is_watched_) {
      changed_.wait_until(lock, next_look.time());
    } else {
      is_watched_ = true;
      const bool is_here = connection_->has_received();
      lock.unlock();
      const bool has_come = is_here || wait_for(connection_->fd(), POLLIN, next_look);
      lock.lock();
      is_watched_ = false;
      changed_.notify_all();
      while (has_come) {
        const std::optional<Frame> frame = connection_->try_receive();
        if (!frame) break;
        take(*frame);
      }
    }
    throw_if_lost();
    return true;
  }

  void take(const Frame& frame) {
    if (frame.type == Frame::welcome) return;
    if (frame.type == Frame::refusal || frame.type == Frame::misfit) {
      throw ConnectionError{ConnectionError::Cause::refused,
                            compose("{} does not take this process: {}", connection_->peer(), frame.text())};
    }
    WireReader reader{frame.payload};
    switch (static_cast<StoreFrame>(frame.type)) {
      case StoreFrame::answer: {
        const auto number = reader.take<std::uint32_t>();
        outcomes_[number] = reader.take<SetOutcome>();
        return;
      }
      case StoreFrame::value: {
        Wanted& wanted = wanted_[reader.take_text()];
        const ConstBytes value = reader.take_rest();
        wanted.value.emplace(reinterpret_cast<const char*>(value.data()), value.size());
        return;
      }
      case StoreFrame::absent:
        ++wanted_[std::string{frame.text()}].num_absent;
        return;
      case StoreFrame::ended:
        throw ConnectionError{ConnectionError::Cause::refused,
                              compose("{} has ended this group: {}", connection_->peer(), frame.text())};
      default:
        throw ConnectionError{
            ConnectionError::Cause::failed,
            compose("{} has sent a message of the unknown type {}", connection_->peer(), static_cast<int>(frame.type))};
    }
  }

  const NetworkStorePlace place_;
  const Hmac secret_;
  std::mutex mutex_{};  // guards all below
  std::condition_variable changed_{};
  std::optional<SecureConnection> connection_{};
  pid_t owner_ = ::getpid();
  bool is_watched_ = false;
  std::string lost_{};  // why no call can succeed any more, empty while one may
  std::map<std::string, Wanted> wanted_{};
  std::map<std::uint32_t, std::optional<SetOutcome>> outcomes_{};
  std::uint32_t next_number_ = 0;
  CommonAwakeTime times_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
