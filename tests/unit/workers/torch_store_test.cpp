// SPDX-License-Identifier: MIT
// Against a small server that speaks the protocol as LibTorch's does; tests/launch/torchrun.sh asks the real one.
#include "railyard/workers/detail/torch_store.hpp"

#include "railyard/workers/detail/bulletin.hpp"

#include "small_store.hpp"
#include "support.hpp"
#include "support/catch.hpp"

#include <string>

using namespace workers_test;
using network_test::SmallStore;
using ry::detail::Socket;
using ry::detail::TorchStore;

namespace {

// Accepts one client and answers with these bytes whatever it asks.
std::string error_of_answer(const std::string& bytes, bool closes) {
  Socket listener = ry::detail::listen_at("127.0.0.1", 0);
  const int port = ry::detail::SocketAddress::of_self(listener.fd()).port();
  TorchStore store{"127.0.0.1", port, "p", soon()};
  const Socket server{ry::detail::Descriptor{::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC)}};
  ::send(server.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (closes) ::shutdown(server.fd(), SHUT_WR);
  try {
    return store.get("key", ry::Deadline::after(200ms)) ? "a value" : "nothing";
  } catch (const ry::Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("TorchStore: hands a value from one process to another, under LibTorch's names of keys") {
  SmallStore server;
  TorchStore one{"127.0.0.1", server.port(), "/worker/attempt_1", soon()};
  TorchStore other{"127.0.0.1", server.port(), "/worker/attempt_1", soon()};
  CHECK_FALSE(other.get("key", ry::Deadline::after(10ms)));
  one.set("key", "value", soon());
  CHECK(other.get("key", soon()) == "value");  // the wait of before still stands
  CHECK(other.get("key", soon()) == "value");
  one.set("key", "", soon());
  CHECK(other.get("key", soon()) == "");
  CHECK(server.values().count("//worker/attempt_1/key") == 1);
  TorchStore of_another_attempt{"127.0.0.1", server.port(), "/worker/attempt_2", soon()};
  CHECK_FALSE(of_another_attempt.get("key", ry::Deadline::after(10ms)));
}

TEST_CASE("TorchStore: adds to a number, whoever has begun it") {
  SmallStore server;
  TorchStore one{"127.0.0.1", server.port(), "p", soon()};
  TorchStore other{"127.0.0.1", server.port(), "p", soon()};
  CHECK(one.add("count", 0, soon()) == 0);
  CHECK(one.add("count", 1, soon()) == 1);
  CHECK(other.add("count", 5, soon()) == 6);
  CHECK(other.get("count", soon()) == "6");
  CHECK_FALSE(one.get("key", ry::Deadline::after(10ms)));
  CHECK_THROWS_WITH(one.add("count", 1, soon()), ContainsSubstring(R"(was asked for "key")"));
}

TEST_CASE("TorchStore: says which store does not answer, and waits for one that is late") {
  Socket free_port = ry::detail::listen_at("127.0.0.1", 0);
  const int port = ry::detail::SocketAddress::of_self(free_port.fd()).port();
  free_port.close();
  CHECK_THROWS_WITH((TorchStore{"127.0.0.1", port, "p", ry::Deadline::after(150ms)}),
                    ContainsSubstring("127.0.0.1:" + std::to_string(port)) && ContainsSubstring("150 ms"));
}

TEST_CASE("TorchStore: does not believe answers that make no sense") {
  using namespace std::string_literals;
  CHECK(error_of_answer("", false) == "nothing");
  CHECK_THAT(error_of_answer("", true), ContainsSubstring("closed the connection"));
  CHECK_THAT(error_of_answer("\1"s, false), ContainsSubstring("broken off"));
  CHECK_THAT(error_of_answer("\0\xff\xff\xff\xff\xff\xff\xff\x7f"s, false), ContainsSubstring("at most 4096"));
  CHECK_THAT(error_of_answer("\0\5\0\0\0\0\0\0\0abc"s, true), ContainsSubstring("closed the connection"));
  CHECK(error_of_answer("\0\3\0\0\0\0\0\0\0abc"s, false) == "a value");
}

TEST_CASE("TorchBulletin: hands on an address, but never the secret") {
  SmallStore server;
  const ry::detail::Launch launch{.leader_host = "127.0.0.1", .leader_port = server.port()};
  ry::detail::TorchBulletin leader{launch, {"process 0 of 2", {}}};
  ry::detail::TorchBulletin other{launch, {"process 1 of 2", {}}};
  CHECK_THROWS_WITH(other.read(ry::Deadline::after(20ms), nullptr), ContainsSubstring("torchrun's store at 127.0.0.1"));
  const std::string secret = ry::detail::random_secret();
  leader.post({.host = "10.0.0.1", .port = 4000, .generation = 1, .secret = secret});
  const auto first = other.read(soon(), nullptr);
  CHECK(first.host == "10.0.0.1");
  CHECK(first.port == 4000);
  CHECK(first.secret.empty());
  for (const auto& [key, value] : server.values()) CHECK(value.find(secret) == std::string::npos);
  CHECK_THROWS_AS(other.read(ry::Deadline::after(20ms), &first), ry::Error);
  leader.post({.host = "10.0.0.1", .port = 4000, .generation = 2});
  CHECK(other.read(soon(), &first).generation == 2);
  CHECK_FALSE(leader.carries_secret());
}
