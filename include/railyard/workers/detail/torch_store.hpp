// SPDX-License-Identifier: MIT
// A client of the store that torchrun's agents serve, as far as a rendezvous needs it: set, get and add. Workers room.
#pragma once

#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

namespace railyard::inline v0_1 {
namespace detail {

/// Speaks the protocol of LibTorch's TCPStore, of version 2.2 and later (older ones have other numbers): a byte that
/// says what is wanted, lengths of 64 bits before texts, all of it in the order of bytes of the hosts. The store trusts
/// everybody and shows everything to everybody, so nothing secret goes there, and what comes from there is not believed
/// before the other end has shown that it knows the secret of the run.
class TorchStore {
 public:
  static constexpr std::uint64_t most_bytes = 4096;  ///< of a value

  /// Connects; tries again until the deadline, as the agent that serves the store may start later than others.
  /// prefix: stands before all keys, as LibTorch's PrefixStore puts it there. Throws: Error at the deadline.
  TorchStore(const std::string& host, int port, std::string_view prefix, const Deadline& deadline)
      : where_(compose("torchrun's store at {}:{}", host, port)), prefix_(compose("/{}/", prefix)) {
    std::string cause;
    while (!socket_.is_open()) {
      socket_ = try_connect(host, port, deadline, cause);
      if (socket_.is_open()) break;
      if (deadline.expired()) fail(compose("did not answer in {} ({})", deadline.budget_text(), cause));
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(deadline.remaining(), retry_delay));
    }
    constexpr std::uint32_t greeting = 0x3C85'F7CE;
    std::string request(1, static_cast<char>(Query::validate));
    append(request, greeting);
    send(request, deadline);
  }

  /// Sets a key, and returns when the store has it. Throws: Error if the store is lost or does not answer.
  void set(std::string_view key, std::string_view value, const Deadline& deadline) {
    std::string request = query(Query::set, key);
    append_text(request, value);
    send(request, deadline);
    // A set is not answered, but the store works requests off in order.
    if (get(key, deadline) != value) fail(compose(R"(does not hold the "{}" that was just set)", key));
  }

  /// Adds to a number, which is 0 at first, and returns what it is then. Throws: Error if the store is lost or does not
  /// answer, or somebody waits for a key by this object.
  [[nodiscard]] std::int64_t add(std::string_view key, std::int64_t amount, const Deadline& deadline) {
    if (is_waiting_for_) fail(compose(R"(was asked for "{}", and is to add to "{}")", *is_waiting_for_, key));
    std::string request = query(Query::add, key);
    append(request, amount);
    send(request, deadline);
    return receive<std::int64_t>(deadline);
  }

  /// Waits for a key and returns its value; nothing at the deadline. Throws: Error if the store is lost or its answer
  /// makes no sense.
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) {
    if (!is_waiting_for_.has_value()) {
      std::string request(1, static_cast<char>(Query::wait));
      append(request, std::uint64_t{1});  // key
      append_text(request, prefix_ + std::string{key});
      send(request, deadline);
      is_waiting_for_ = key;
    }
    if (*is_waiting_for_ != key) fail(compose(R"(was asked for "{}" and now for "{}")", *is_waiting_for_, key));
    if (!wait_for(socket_.fd(), POLLIN, deadline)) return {};  // asked for again, the answer will still come
    is_waiting_for_.reset();
    const Deadline at_once = Deadline::after(answer_time);  // what is there is answered without a wait
    if (receive<std::uint8_t>(at_once) != 0) fail("has broken off a wait");
    send(query(Query::get, key), at_once);
    const auto size = receive<std::uint64_t>(at_once);
    if (size > most_bytes) fail(compose(R"(has {} bytes under "{}", where at most {} may be)", size, key, most_bytes));
    std::string value(static_cast<std::size_t>(size), '\0');
    receive(std::as_writable_bytes(std::span{value}), at_once);
    return value;
  }

 private:
  enum class Query : std::uint8_t { validate = 0, set = 1, get = 3, add = 4, wait = 6 };
  static constexpr std::chrono::milliseconds retry_delay{100};
  static constexpr std::chrono::seconds answer_time{5};

  template <class T>
  static void append(std::string& request, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    request.append(bytes, sizeof value);
  }
  static void append_text(std::string& request, std::string_view text) {
    append(request, std::uint64_t{text.size()});
    request += text;
  }
  [[nodiscard]] std::string query(Query what, std::string_view key) const {
    std::string request(1, static_cast<char>(what));
    append_text(request, prefix_ + std::string{key});
    return request;
  }

  void send(std::string_view bytes, const Deadline& deadline) {
    while (!bytes.empty()) {
      if (!wait_for(socket_.fd(), POLLOUT, deadline)) fail(compose("takes nothing for {}", deadline.budget_text()));
      const ssize_t sent = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) fail(compose("is lost: {}", explain_errno(errno)));
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void receive(std::span<std::byte> bytes, const Deadline& deadline) {
    while (!bytes.empty()) {
      if (!wait_for(socket_.fd(), POLLIN, deadline)) fail(compose("did not answer in {}", deadline.budget_text()));
      const ssize_t got = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
      if (got == 0) fail("has closed the connection: did the agent end, or is this no store of LibTorch 2.2 or later?");
      if (got < 0 && errno != EAGAIN && errno != EINTR) fail(compose("is lost: {}", explain_errno(errno)));
      if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
  }
  template <class T>
  [[nodiscard]] T receive(const Deadline& deadline) {
    T value{};
    receive(std::as_writable_bytes(std::span{&value, 1}), deadline);
    return value;
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error{compose("{} {}", where_, what)}; }

  std::string where_;
  std::string prefix_;
  Socket socket_{};
  std::optional<std::string> is_waiting_for_{};  ///< the key of a wait that the store has not answered yet
};

}  // namespace detail
}  // namespace railyard::inline v0_1
