// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/listener.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

#include <optional>
#include <set>
#include <thread>

using namespace network_test;
using ry::detail::HelloKind;

TEST_CASE("Listener: hands agents over, with what they say of themselves") {
  Leader leader;
  CHECK_FALSE(leader->take_agent(ry::Deadline::after(1ms)));
  CHECK_FALSE(ry::detail::wait_for(leader->agents_fd(), POLLIN, ry::Deadline::after(0ns)));
  auto client = leader.connect({.process = 4, .payload = "its host"});
  CHECK(ry::detail::wait_for(leader->agents_fd(), POLLIN, soon()));
  auto agent = leader->take_agent(soon());
  REQUIRE(agent);
  CHECK_FALSE(ry::detail::wait_for(leader->agents_fd(), POLLIN, ry::Deadline::after(0ns)));
  CHECK(agent->hello.kind == HelloKind::agent);
  CHECK(agent->hello.process == 4);
  CHECK(agent->hello.payload == "its host");
  CHECK_THAT(agent->connection.peer(), ContainsSubstring("process 4 (127.0.0.1:"));
  client.send(1, {bytes("up")}, soon());
  CHECK(agent->connection.receive(soon())->text() == "up");
  agent->connection.send(2, {bytes("down")}, soon());
  CHECK(client.receive(soon())->text() == "down");
  CHECK(leader->num_refused() == 0);
}

TEST_CASE("Listener: takes many at once, each once") {
  Leader leader{{.max_half_open = 8}};  // more come than may be in the middle of it
  constexpr int count = 40;
  std::vector<std::optional<SecureConnection>> clients(count);
  std::vector<std::thread> threads;
  for (int process = 0; process < count; ++process) {
    threads.emplace_back(
        [&, process] { clients[static_cast<std::size_t>(process)] = leader.connect({.process = process}); });
  }
  std::set<int> seen;
  for (int at = 0; at < count; ++at) {
    const auto agent = leader->take_agent(soon());
    REQUIRE(agent);
    seen.insert(agent->hello.process);
  }
  for (auto& thread : threads) thread.join();
  CHECK(seen.size() == count);
  CHECK_FALSE(leader->take_agent(ry::Deadline::after(0ns)));
}

TEST_CASE("Listener: listens on IPv6, and on all addresses of the host") {
  {
    Leader leader{{.host = "localhost"}};
    leader.connect({.process = 1});
    CHECK(leader->take_agent(soon()));
  }
  const ry::detail::Descriptor probe{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!probe.is_open()) return;
  Leader leader{{.host = "::1"}};
  CHECK(leader->host() == "::1");
  leader.connect({.process = 1});
  const auto agent = leader->take_agent(soon());
  REQUIRE(agent);
  CHECK_THAT(agent->connection.peer(), ContainsSubstring("([::1]:"));
}

TEST_CASE("Listener: turns away stragglers of another attempt and those of another job, and says so") {
  Leader leader;
  CHECK_THROWS_AS(leader.connect({.generation = 6, .process = 2}), ry::detail::ConnectionError);
  CHECK(leader.refusals().await("refused process 2 (127.0.0.1:"));
  CHECK(leader.refusals().await("generation 6"));
  CHECK_THROWS_AS(leader.connect({.job = "other", .process = 3}), ry::detail::ConnectionError);
  CHECK(leader.refusals().await(R"(the job "other")"));
  CHECK(leader->num_refused() == 2);
  CHECK_FALSE(leader->take_agent(ry::Deadline::after(0ns)));
}

TEST_CASE("Listener: tells an agent that comes too late, and goes on to serve the store") {
  Leader leader;
  leader->expect_no_more_agents();
  CHECK_THROWS_WITH(leader.connect({.process = 2}), ContainsSubstring("the run has begun"));
  leader.store(0)->set("key", "value");
}

TEST_CASE("Listener: closes a store's client that sends nonsense, and tells of it") {
  Leader leader;
  const auto store = leader.store(0);
  store->set("key", "value");
  auto client = leader.connect({.kind = HelloKind::store, .process = 9});
  client.send(99, {bytes("nonsense")}, soon());
  CHECK_THROWS_AS(client.receive(soon()), ry::detail::ConnectionError);
  CHECK(leader.refusals().await("the store's client of rank 9"));
  CHECK(store->get("key", soon()) == "value");
}

TEST_CASE("Listener: closes a store's client that asks and does not listen") {
  Leader leader;
  const auto store = leader.store(0);
  store->set("key", std::string(std::size_t{8} << 20U, 'x'));
  auto client = leader.connect({.kind = HelloKind::store, .process = 9});
  for (int at = 0; at < 100; ++at) client.post(static_cast<std::uint8_t>(ry::detail::StoreFrame::get), {bytes("key")});
  try {
    while (!client.flush() && ry::detail::wait_for(client.fd(), POLLOUT, soon())) {
    }
  } catch (const ry::detail::ConnectionError&) {  // it may be closed before all is asked
  }
  CHECK(leader.refusals().await("asks and does not listen"));
  CHECK(store->get("key", soon())->size() == std::size_t{8} << 20U);
}

TEST_CASE("Listener: leaves nothing behind, whatever is under way") {
  { const Leader warm_up; }
  const workers_test::Holdings before;
  {
    Leader leader;
    const auto store = leader.store(0);
    store->set("key", "value");
    auto agent = leader.connect({.process = 1});
    const Socket half = leader.stranger();
    send_raw(half, bytes("RAILYRD1 and no more"));
    std::string cause;
    CHECK(workers_test::Holdings{}.listeners == before.listeners + 1);
  }
  CHECK(workers_test::come_back_to(before));
}

TEST_CASE("Listener: ends what its clients wait for when it ends") {
  auto leader = std::make_unique<Leader>();
  auto waiting = leader->connect({.process = 1});
  const Socket half = leader->stranger();
  leader.reset();
  CHECK_THROWS_AS(waiting.receive(soon()), ry::detail::ConnectionError);
  CHECK(is_hung_up(half));
}

TEST_CASE("Listener: says what is wrong with the address it is to listen on") {
  CHECK_THROWS_AS(Leader{{.host = "no.such.host.invalid"}}, ry::ConfigError);
  Leader leader;
  CHECK_THROWS_WITH((Leader{{.port = leader->port()}}), ContainsSubstring("Address already in use"));
}
