// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/hello.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

using namespace network_test;
using ry::detail::Hello;
using ry::detail::HelloKind;
using ry::detail::Opening;
using ry::detail::ServerHandshake;
using State = ry::detail::ServerHandshake::State;

namespace {

const Hmac hello_secret = run_secret();
const ry::detail::Ticket listeners_ticket = ry::detail::Ticket::make();

// Feeds bytes to the server as they might come, and returns what it answers.
std::vector<std::byte> feed(ServerHandshake& server, std::span<const std::byte> bytes, std::size_t at_once = 1) {
  std::vector<std::byte> replies;
  while (!bytes.empty() && server.state() == State::waiting) {
    const auto room = server.room();
    REQUIRE_FALSE(room.empty());
    const std::size_t count = std::min({room.size(), bytes.size(), at_once});
    std::copy_n(bytes.begin(), count, room.begin());
    bytes = bytes.subspan(count);
    const auto reply = server.take(count);
    replies.insert(replies.end(), reply.begin(), reply.end());
  }
  return replies;
}

}  // namespace

TEST_CASE("Hello: comes back as it was") {
  const Hello hello{.kind = HelloKind::store, .job = "j", .generation = 9, .process = -3, .payload = std::string(3, 0)};
  const Hello back = ry::detail::decode_hello(ry::detail::encode_hello(hello));
  CHECK(back.kind == HelloKind::store);
  CHECK(back.job == "j");
  CHECK(back.generation == 9);
  CHECK(back.process == -3);
  CHECK(back.payload == std::string(3, 0));
}

TEST_CASE("Hello: is refused if it is damaged or too large") {
  auto encoded = ry::detail::encode_hello({.job = "job"});
  for (std::size_t size = 0; size < encoded.size(); ++size) {
    CHECK_THROWS_AS(ry::detail::decode_hello(std::span{encoded}.first(size)), ry::DataError);
  }
  encoded[0] = std::byte{3};
  CHECK_THROWS_WITH(ry::detail::decode_hello(encoded), ContainsSubstring("unknown kind 3"));
  CHECK_THROWS_AS(ry::detail::encode_hello({.payload = std::string(ry::detail::max_hello_bytes, 'x')}),
                  ry::ConfigError);
}

TEST_CASE("ServerHandshake: lets in who knows the secret, in whatever pieces it comes") {
  for (const std::size_t at_once : {std::size_t{1}, std::size_t{7}, std::size_t{100'000}}) {
    ServerHandshake server{hello_secret, listeners_ticket};
    CHECK(server.is_untouched());
    HandMadeHello client;
    client.take_opening(feed(server, client.client.bytes(), at_once));
    CHECK_FALSE(server.is_untouched());
    CHECK(feed(server, client.message(hello_secret), at_once).empty());
    REQUIRE(server.state() == State::proven);
    const ry::detail::Transcript transcript{client.client, client.server, client.hello};
    CHECK(server.opening().nonce == client.client.nonce);
    CHECK(server.hello().payload == "payload");
    auto keys = server.keys();
    CHECK(keys.incoming.of({bytes("x")}) == transcript.client_key(hello_secret).of({bytes("x")}));
    CHECK(keys.outgoing.of({bytes("x")}) == transcript.server_key(hello_secret).of({bytes("x")}));
    CHECK(keys.outgoing.of({bytes("x")}) != keys.incoming.of({bytes("x")}));
  }
}

TEST_CASE("ServerHandshake: refuses who does not speak the protocol after eight bytes") {
  ServerHandshake server{hello_secret, listeners_ticket};
  CHECK(feed(server, bytes("GET / HT")).empty());
  CHECK(server.state() == State::refused);
  CHECK_THAT(server.refusal(), ContainsSubstring("does not speak"));

  ServerHandshake newer{hello_secret, listeners_ticket};
  CHECK(feed(newer, bytes("RAILYRD2")).empty());
  CHECK(newer.state() == State::refused);
  CHECK_THAT(newer.refusal(), ContainsSubstring("version 2") && ContainsSubstring("version 1"));
}

TEST_CASE("ServerHandshake: refuses a proof by another secret, of another hello, or of another connection") {
  HandMadeHello client;
  const auto refused = [&](const std::function<std::vector<std::byte>()>& message) {
    ServerHandshake server{hello_secret, listeners_ticket};
    client.take_opening(feed(server, client.client.bytes()));
    CHECK(feed(server, message()).empty());
    return server.state() == State::refused && server.refusal().find("secret") != std::string::npos;
  };
  CHECK(refused([&] { return client.message(other_secret()); }));
  std::vector<std::byte> recorded;
  {
    ServerHandshake server{hello_secret, listeners_ticket};
    client.take_opening(feed(server, client.client.bytes()));
    recorded = client.message(hello_secret);
    feed(server, recorded);
    REQUIRE(server.state() == State::proven);
  }
  CHECK(refused([&] { return recorded; }));  // the server has chosen another nonce
  for (std::size_t at = sizeof(std::uint32_t); at < recorded.size(); ++at) {
    CHECK(refused([&] {
      auto altered = client.message(hello_secret);
      altered[at] ^= std::byte{1};
      return altered;
    }));
  }
}

TEST_CASE("ServerHandshake: takes all at once from who has a ticket, and answers nothing") {
  HandMadeHello client;
  client.client.magic = Opening::by_ticket;
  client.server = listeners_ticket;
  const auto send = [&client](const Hmac& secret) {
    ServerHandshake server{hello_secret, listeners_ticket};
    CHECK(feed(server, client.client.bytes()).empty());
    CHECK(feed(server, client.message(secret)).empty());
    return server.state();
  };
  CHECK(send(hello_secret) == State::proven);
  CHECK(send(other_secret()) == State::refused);
  client.server = ry::detail::Ticket::make();  // of another listener
  CHECK(send(hello_secret) == State::refused);
}

TEST_CASE("ServerHandshake: takes no ticket for its own fresh opening, nor the other way round") {
  HandMadeHello client;
  client.server = listeners_ticket;
  ServerHandshake server{hello_secret, listeners_ticket};
  CHECK(feed(server, client.client.bytes()).size() == sizeof(Opening));
  CHECK(feed(server, client.message(hello_secret)).empty());
  CHECK(server.state() == State::refused);
}

TEST_CASE("ServerHandshake: refuses a hello that claims to be large before it makes room for it") {
  ServerHandshake server{hello_secret, listeners_ticket};
  HandMadeHello client;
  feed(server, client.client.bytes());
  const std::uint32_t size = ry::detail::max_hello_bytes + 1;
  CHECK(feed(server, std::as_bytes(std::span{&size, 1})).empty());
  CHECK(server.state() == State::refused);
  CHECK_THAT(server.refusal(), ContainsSubstring("65537 bytes"));
}

TEST_CASE("ServerHandshake: refuses a hello of nonsense by one who knows the secret") {
  ServerHandshake server{hello_secret, listeners_ticket};
  HandMadeHello client;
  client.hello = {std::byte{1}, std::byte{2}};
  client.take_opening(feed(server, client.client.bytes()));
  CHECK(feed(server, client.message(hello_secret)).empty());
  CHECK(server.state() == State::refused);
  CHECK_THAT(server.refusal(), ContainsSubstring("damaged"));
}
