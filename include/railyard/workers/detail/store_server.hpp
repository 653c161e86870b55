// SPDX-License-Identifier: MIT
// The group's store as its leader keeps it for processes of other hosts, without the connections. Workers room.
#pragma once

#include "railyard/workers/detail/frames.hpp"
#include "railyard/workers/detail/shared_store.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// What clients and the server of a store say to each other.
enum class StoreFrame : std::uint8_t {
  set = 1,     ///< client: a number, the key, the rest is the value
  get = 2,     ///< client: the rest is the key
  answer = 3,  ///< to set: the number, a SetOutcome
  value = 4,   ///< to get, at once or when somebody sets it: the key, the rest is the value
  absent = 5,  ///< to get, at once: the key is not there yet; the rest is the key
  ended = 6,   ///< there is nothing more to come; the rest is a text that says why
};
enum class SetOutcome : std::uint8_t { done = 0, taken = 1, full = 2 };

/// Says what is sent to whom.
struct StoreReply {
  std::uint64_t session = 0;
  StoreFrame type = StoreFrame::answer;
  std::vector<std::byte> payload{};
};

/// Answers the requests of the store's clients: as many bytes as the shared table of one host holds, and no more.
class StoreServer {
 public:
  /// Room for 1,024 ranks, each of which leaves a dozen values whenever a group of all is made.
  static constexpr std::size_t max_keys = std::size_t{1} << 16U;
  static constexpr std::size_t max_bytes = StoreBlock::num_bytes;

  /// Throws: DataError if the frame is no request, or waits for more than a client may.
  [[nodiscard]] std::vector<StoreReply> handle(std::uint64_t session, const Frame& frame) {
    std::vector<StoreReply> replies;
    WireReader reader{frame.payload};
    switch (static_cast<StoreFrame>(frame.type)) {
      case StoreFrame::set:
        set(session, reader, replies);
        return replies;
      case StoreFrame::get:
        get(session, text_of(reader.take_rest()), replies);
        return replies;
      default:
        throw DataError{compose("a message of type {} is no request to the store", static_cast<int>(frame.type))};
    }
  }

  /// A client has gone: nothing is sent to it any more.
  void forget(std::uint64_t session) {
    for (auto& [key, sessions] : waiting_) sessions.erase(session);
  }

  /// Forgets all values and who waits for one.
  void clear() noexcept {
    values_.clear();
    waiting_.clear();
    num_bytes_ = 0;
    waiting_bytes_ = 0;
  }

 private:
  static std::string_view text_of(ConstBytes bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void set(std::uint64_t session, WireReader& reader, std::vector<StoreReply>& replies) {
    const auto number = reader.take<std::uint32_t>();
    const std::string key = reader.take_text();
    const std::string_view value = text_of(reader.take_rest());
    const SetOutcome outcome = keep(key, value);
    WireWriter answer;
    answer.put(number);
    answer.put(outcome);
    replies.push_back({.session = session, .type = StoreFrame::answer, .payload = answer.bytes()});
    const auto waiting = outcome == SetOutcome::done ? waiting_.find(key) : waiting_.end();
    if (waiting == waiting_.end()) return;
    for (const std::uint64_t waiter : waiting->second) replies.push_back(value_reply(waiter, key, value));
    waiting_bytes_ -= key.size();
    waiting_.erase(waiting);
  }

  [[nodiscard]] SetOutcome keep(const std::string& key, std::string_view value) {
    if (values_.count(key) != 0) return SetOutcome::taken;
    const std::size_t size = key.size() + value.size();
    if (values_.size() == max_keys || size > max_bytes - num_bytes_) return SetOutcome::full;
    values_.emplace(key, value);
    num_bytes_ += size;
    return SetOutcome::done;
  }

  void get(std::uint64_t session, std::string_view key, std::vector<StoreReply>& replies) {
    if (const auto found = values_.find(key); found != values_.end()) {
      replies.push_back(value_reply(session, key, found->second));
      return;
    }
    auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) {
      // As many as there can ever be values for.
      if (waiting_.size() == max_keys || key.size() > max_bytes - waiting_bytes_) {
        throw DataError{"the store's clients wait for more keys than it can hold"};
      }
      waiting = waiting_.emplace(key, std::set<std::uint64_t>{}).first;
      waiting_bytes_ += key.size();
    }
    waiting->second.insert(session);
    const ConstBytes bytes = text_bytes(key);
    replies.push_back({.session = session, .type = StoreFrame::absent, .payload = {bytes.begin(), bytes.end()}});
  }

  static StoreReply value_reply(std::uint64_t session, std::string_view key, std::string_view value) {
    WireWriter writer;
    writer.put_text(key);
    writer.put_rest(text_bytes(value));
    return {.session = session, .type = StoreFrame::value, .payload = writer.bytes()};
  }

  std::map<std::string, std::string, std::less<>> values_{};
  std::map<std::string, std::set<std::uint64_t>, std::less<>> waiting_{};
  std::size_t num_bytes_ = 0;
  std::size_t waiting_bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
