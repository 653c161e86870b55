// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/store_server.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

using namespace network_test;
using ry::detail::Frame;
using ry::detail::SetOutcome;
using ry::detail::StoreFrame;
using ry::detail::StoreReply;
using ry::detail::StoreServer;

namespace {

Frame set_request(std::uint32_t number, std::string_view key, std::string_view value) {
  ry::detail::WireWriter writer;
  writer.put(number);
  writer.put_text(key);
  writer.put_rest(bytes(value));
  return {.type = static_cast<std::uint8_t>(StoreFrame::set), .payload = writer.bytes()};
}
Frame get_request(std::string_view key) {
  return {.type = static_cast<std::uint8_t>(StoreFrame::get), .payload = {bytes(key).begin(), bytes(key).end()}};
}

SetOutcome outcome_of(const StoreReply& reply, std::uint32_t number) {
  REQUIRE(reply.type == StoreFrame::answer);
  ry::detail::WireReader reader{reply.payload};
  CHECK(reader.take<std::uint32_t>() == number);
  return reader.take<SetOutcome>();
}
std::pair<std::string, std::string> value_of(const StoreReply& reply) {
  REQUIRE(reply.type == StoreFrame::value);
  ry::detail::WireReader reader{reply.payload};
  std::string key = reader.take_text();
  return {std::move(key), text(reader.take_rest())};
}

}  // namespace

TEST_CASE("StoreServer: keeps a key's first value and answers who asks") {
  StoreServer server;
  auto replies = server.handle(1, set_request(5, "key", std::string_view{"a\0b", 3}));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].session == 1);
  CHECK(outcome_of(replies[0], 5) == SetOutcome::done);
  CHECK(outcome_of(server.handle(2, set_request(6, "key", "other")).at(0), 6) == SetOutcome::taken);
  replies = server.handle(2, get_request("key"));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].session == 2);
  CHECK(value_of(replies[0]) == std::pair{std::string{"key"}, std::string{"a\0b", 3}});
}

TEST_CASE("StoreServer: says that a key is absent, and sends its value once it is there") {
  StoreServer server;
  for (const std::uint64_t session : {1U, 2U, 3U, 2U}) {
    const auto replies = server.handle(session, get_request("key"));
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].type == StoreFrame::absent);
    CHECK(replies[0].session == session);
    CHECK(text(replies[0].payload) == "key");
  }
  server.forget(3);
  const auto replies = server.handle(9, set_request(1, "key", "value"));
  REQUIRE(replies.size() == 3);
  CHECK(outcome_of(replies[0], 1) == SetOutcome::done);
  CHECK(replies[1].session == 1);
  CHECK(replies[2].session == 2);
  CHECK(value_of(replies[2]).second == "value");
  CHECK(server.handle(9, set_request(2, "another", "")).size() == 1);
}

TEST_CASE("StoreServer: is bounded by keys, by bytes, and by what is waited for") {
  StoreServer server;
  const std::string half(StoreServer::max_bytes / 2, 'x');
  CHECK(outcome_of(server.handle(1, set_request(1, "a", half)).at(0), 1) == SetOutcome::done);
  CHECK(outcome_of(server.handle(1, set_request(2, "b", half)).at(0), 2) == SetOutcome::full);
  CHECK(outcome_of(server.handle(1, set_request(3, "c", "small")).at(0), 3) == SetOutcome::done);
  server.clear();
  CHECK(outcome_of(server.handle(1, set_request(1, "b", half)).at(0), 1) == SetOutcome::done);

  StoreServer many;
  for (std::size_t at = 0; at < StoreServer::max_keys; ++at)
    (void)many.handle(1, set_request(0, std::to_string(at), ""));
  CHECK(outcome_of(many.handle(1, set_request(7, "one more", "")).at(0), 7) == SetOutcome::full);
  for (std::size_t at = 0; at < StoreServer::max_keys; ++at)
    (void)many.handle(1, get_request("w" + std::to_string(at)));
  CHECK_THROWS_AS(many.handle(1, get_request("one more")), ry::DataError);
  CHECK(many.handle(1, get_request("w0")).size() == 1);  // that one is waited for already
}

TEST_CASE("StoreServer: has room for 1,024 ranks that connect, and connect beside that once more") {
  StoreServer server;
  std::uint32_t number = 0;
  for (int rank = 0; rank < 1024; ++rank) {
    for (int value = 0; value < 24; ++value) {
      const std::string key = "Gloo within hosts/0/stage" + std::to_string(value) + "/" + std::to_string(rank);
      const std::string text(64, 'x');
      ++number;
      if (outcome_of(server.handle(1, set_request(number, key, text)).at(0), number) != SetOutcome::done) {
        FAIL("no room for " << key);
      }
    }
  }
}

TEST_CASE("StoreServer: forgets everything at the beginning of another generation") {
  StoreServer server;
  (void)server.handle(1, set_request(1, "key", "value"));
  (void)server.handle(1, get_request("awaited"));
  server.clear();
  CHECK(server.handle(1, get_request("key")).at(0).type == StoreFrame::absent);
  CHECK(server.handle(1, set_request(2, "awaited", "value")).size() == 1);
}

TEST_CASE("StoreServer: refuses what is no request") {
  StoreServer server;
  CHECK_THROWS_AS(server.handle(1, {.type = 77}), ry::DataError);
  CHECK_THROWS_AS(server.handle(1, {.type = static_cast<std::uint8_t>(StoreFrame::value)}), ry::DataError);
  auto damaged = set_request(1, "key", "");
  for (std::size_t size = 0; size < damaged.payload.size(); ++size) {
    Frame part = damaged;
    part.payload.resize(size);
    CHECK_THROWS_AS(server.handle(1, part), ry::DataError);
  }
}
