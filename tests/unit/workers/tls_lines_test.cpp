// SPDX-License-Identifier: MIT
// With TLS nothing that a run says can be read on its way, whoever attacks gets as little as without, and those who are
// set differently are told so.
#include "railyard/workers/detail/rank_lines.hpp"

#include "network_support.hpp"
#include "relay.hpp"
#include "support/catch.hpp"
#include "support/run_ranks.hpp"

#include <future>
#include <thread>

using namespace network_test;
using ry::detail::ConnectionError;
using ry::detail::Opening;
using ry::detail::PairCalling;
using ry::detail::PairHandshake;
using ry::detail::PairListening;
using ry::detail::PairProofs;
using ry::detail::SocketRankLine;

namespace {

constexpr std::string_view marker = "what nobody else may read";

ry::detail::ConnectionLimits tls_limits() { return {.has_tls = true}; }
ry::detail::ListenerOptions tls_options() { return {.limits = tls_limits()}; }

SecureConnection connect_through(int port, bool has_tls, ry::detail::Hello hello = {}) {
  hello.job = "job";
  if (hello.kind == ry::detail::HelloKind::agent) hello.generation = 7;
  return SecureConnection::connect("127.0.0.1", port, run_secret(), hello, soon(), {.has_tls = has_tls});
}

std::unique_ptr<NetworkStore> store_through(const Leader& leader, int port, bool has_tls) {
  return std::make_unique<NetworkStore>(
      ry::detail::NetworkStorePlace{
          .host = "127.0.0.1", .port = port, .job = "job", .limits = {.has_tls = has_tls}, .ticket = leader.ticket()},
      run_secret());
}

// Is the two ends of a line between ranks, which a relay passes on.
struct RelayedLine {
  RelayedLine(bool caller_has_tls, bool listener_has_tls, Relay::Faults faults = {})
      : relay(ry::detail::SocketAddress::of_self(listening.fd()).port(), faults) {
    std::string cause;
    Socket caller = ry::detail::try_connect("127.0.0.1", relay.port(), soon(), cause);
    if (!ry::detail::wait_for(listening.fd(), POLLIN, soon())) throw std::runtime_error{"nobody connects"};
    Socket called{ry::detail::Descriptor{::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)}};
    calling.emplace(std::move(caller), proofs, 1, 0, caller_has_tls);
    listens.emplace(std::move(called), proofs, 0, listener_has_tls);
  }

  // Goes on until both ends have come to an end.
  void shake() {
    const ry::Deadline deadline = soon();
    while (!deadline.expired()) {
      if (caller_state == PairHandshake::State::waiting) caller_state = calling->advance();
      if (listener_state == PairHandshake::State::waiting) listener_state = listens->advance();
      if (listener_state == PairHandshake::State::failed) listens->take_socket().close();
      if (caller_state == PairHandshake::State::failed) calling->take_socket().close();
      if (caller_state != PairHandshake::State::waiting && listener_state != PairHandshake::State::waiting) return;
      std::array<pollfd, 2> polled{pollfd{calling->socket().fd(), calling->events(), 0},
                                   pollfd{listens->socket().fd(), listens->events(), 0}};
      if (caller_state != PairHandshake::State::waiting) polled[0].fd = -1;
      if (listener_state != PairHandshake::State::waiting) polled[1].fd = -1;
      ::poll(polled.data(), polled.size(), 100);
    }
  }
  bool is_proven() const {
    return caller_state == PairHandshake::State::proven && listener_state == PairHandshake::State::proven;
  }

  Socket listening = ry::detail::listen_at("127.0.0.1", 0);
  Relay relay;
  PairProofs proofs{run_secret(), "a place"};
  std::optional<PairCalling> calling{};
  std::optional<PairListening> listens{};
  PairHandshake::State caller_state = PairHandshake::State::waiting;
  PairHandshake::State listener_state = PairHandshake::State::waiting;
};

// Sends as much as is there, and takes as much as there is, on both lines until each has got all. Returns what went
// wrong.
std::string exchange_all(ry::RankLine& one, ry::RankLine& other, const std::vector<std::byte>& words) {
  struct End {
    ry::RankLine* line;
    std::size_t sent = 0;
    std::vector<std::byte> got{};
  };
  std::array<End, 2> ends{End{.line = &one}, End{.line = &other}};
  const ry::Deadline deadline = soon();
  try {
    while (ends[0].got.size() < words.size() || ends[1].got.size() < words.size()) {
      if (deadline.expired()) return "too late";
      bool has_moved = false;
      for (End& end : ends) {
        const std::size_t sent = end.line->send(words.data() + end.sent, words.size() - end.sent);
        end.sent += sent;
        std::array<std::byte, 50'000> room;
        const std::size_t got = end.line->receive(room.data(), room.size());
        end.got.insert(end.got.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(got));
        has_moved = has_moved || sent + got > 0;
      }
      if (has_moved) continue;
      std::array<pollfd, 2> polled{pollfd{one.fd(), POLLIN, 0}, pollfd{other.fd(), POLLIN, 0}};
      for (std::size_t at = 0; at < 2; ++at) {
        if (ends[at].sent < words.size()) polled[at].events |= POLLOUT;
      }
      ::poll(polled.data(), polled.size(), 100);
    }
  } catch (const ry::Error& error) {
    return error.what();
  }
  return ends[0].got == words && ends[1].got == words ? "" : "something else has come";
}

}  // namespace

TEST_CASE("TlsLines: what agents and the store's clients say cannot be read on its way") {
  for (const bool has_tls : {false, true}) {
    Leader leader{{.limits = {.has_tls = has_tls}}};
    const Relay relay{leader->port()};
    auto client = connect_through(relay.port(), has_tls, {.process = 1, .payload = std::string{marker}});
    auto agent = leader->take_agent(soon());
    REQUIRE(agent);
    CHECK(agent->hello.payload == marker);
    CHECK(relay.has_heard(marker) == !has_tls);

    const Relay messages{leader->port()};
    auto speaker = connect_through(messages.port(), has_tls, {.process = 2});
    auto listener = leader->take_agent(soon());
    REQUIRE(listener);
    for (int turn = 0; turn < 3; ++turn) {
      speaker.send(1, {bytes(marker)}, soon());
      CHECK(listener->connection.receive(soon())->text() == marker);
      listener->connection.send(1, {bytes(marker)}, soon());
      CHECK(speaker.receive(soon())->text() == marker);
    }
    CHECK(messages.has_heard(marker) == !has_tls);
    CHECK(messages.has_heard("job") == !has_tls);

    const Relay stored{leader->port()};
    const auto store = store_through(leader, stored.port(), has_tls);
    store->set("key", marker);
    CHECK(store->get("key", soon()) == marker);
    CHECK(stored.has_heard(marker) == !has_tls);
  }
}

TEST_CASE("TlsLines: what ranks send to each other cannot be read on its way") {
  for (const bool has_tls : {false, true}) {
    RelayedLine line{has_tls, has_tls};
    line.shake();
    REQUIRE(line.is_proven());
    SocketRankLine one{line.calling->take_socket(), "rank 0"};
    SocketRankLine other{line.listens->take_socket(), "rank 1"};
    std::vector<std::byte> words;
    while (words.size() < 5'000'000) words.insert(words.end(), bytes(marker).begin(), bytes(marker).end());
    CHECK(exchange_all(one, other, words) == "");
    CHECK(line.relay.num_bytes() >= 2 * words.size());
    CHECK(line.relay.has_heard(marker) == !has_tls);
  }
}

TEST_CASE("TlsLines: every rank is connected with every other one") {
  for (const int size : {2, 5}) {
    railyard_test::run_ranks(size, [](const ry::World& world, ry::Store& store) {
      ry::detail::SecretConnector connector{run_secret(), "run", [](const std::string&) {}, {.has_tls = true}};
      railyard_test::require(connector.encrypts(), "it encrypts");
      const auto lines = connector.connect(world, store, "group/", "127.0.0.1", soon());
      for (const auto& line : lines) {
        const auto own = std::byte(world.rank);
        if (line) railyard_test::require(line->send(&own, 1) == 1, "a byte was not sent");
      }
      for (std::size_t peer = 0; peer < lines.size(); ++peer) {
        if (!lines[peer]) continue;
        std::byte theirs{255};
        railyard_test::require(ry::detail::wait_for(lines[peer]->fd(), POLLIN, soon()), "no byte has come");
        railyard_test::require(lines[peer]->receive(&theirs, 1) == 1 && theirs == std::byte(peer), "a wrong byte");
      }
    });
  }
}

TEST_CASE("TlsLines: ranks that are set differently are told what differs, and by whom") {
  for (const bool caller_has_tls : {false, true}) {
    RelayedLine line{caller_has_tls, !caller_has_tls};
    line.shake();
    CHECK(line.caller_state == PairHandshake::State::failed);
    CHECK(line.listener_state == PairHandshake::State::failed);
    const std::string own = caller_has_tls ? "by" : "without";
    const std::string other = caller_has_tls ? "without" : "by";
    CHECK(line.calling->trouble().find("it is set to go " + other + " TLS, and rank 1 " + own + " it") == 0);
    CHECK(line.listens->trouble().find("it is set to go " + own + " TLS, and rank 0 " + other + " it") == 0);
    CHECK(line.calling->trouble().find("ScalingConfig::launch.tls") != std::string::npos);
  }
}

TEST_CASE("TlsLines: processes that are set differently are told what differs, the leader as well") {
  for (const bool leader_has_tls : {false, true}) {
    Leader leader{{.limits = {.has_tls = leader_has_tls}}};
    std::string told;
    try {
      (void)connect_through(leader->port(), !leader_has_tls, {.process = 3});
    } catch (const ry::ConfigError& error) {
      told = error.what();
    }
    CHECK(told.find("process 3 (127.0.0.1:") == 0);
    CHECK(told.find(leader_has_tls ? "without TLS, and the process that leads by it"
                                   : "by TLS, and the process that leads without it") != std::string::npos);
    CHECK(told.find("RAILYARD_TLS") != std::string::npos);
    const auto agent = leader->take_agent(soon());
    REQUIRE(agent);
    CHECK(agent->misfit == told);
    CHECK(leader.refusals().await("process 3"));
    // Of a store's client nobody has to be told but itself.
    const auto store = store_through(leader, leader->port(), !leader_has_tls);
    CHECK_THROWS_AS(store->set("key", "value"), ry::CollectiveError);
  }
}

TEST_CASE("TlsLines: a line that is cut or altered on its way ends, and brings nothing that was not sent") {
  for (const bool cuts : {false, true}) {
    // Beyond the handshake, in the middle of a record.
    const std::size_t at = 400'000;
    RelayedLine line{
        true, true, {.cuts_after = cuts ? at : std::size_t(-1), .alters_byte = cuts ? std::size_t(-1) : at}};
    line.shake();
    REQUIRE(line.is_proven());
    SocketRankLine one{line.calling->take_socket(), "rank 0"};
    SocketRankLine other{line.listens->take_socket(), "rank 1"};
    std::vector<std::byte> words(1'000'000, std::byte{7});
    const std::string trouble = exchange_all(one, other, words);
    CHECK(trouble.find("rank ") != std::string::npos);
    const bool is_named = trouble.find("altered on its way") != std::string::npos;
    const bool is_closed = trouble.find("closed") != std::string::npos || trouble.find("lost") != std::string::npos;
    CHECK((cuts ? is_closed : is_named));
  }
}

TEST_CASE("TlsLines: an agent's message that is cut or altered on its way is none") {
  for (const bool cuts : {false, true}) {
    Leader leader{tls_options()};
    const std::size_t at = 200'000;
    const Relay relay{leader->port(),
                      {.cuts_after = cuts ? at : std::size_t(-1), .alters_byte = cuts ? std::size_t(-1) : at}};
    auto client = connect_through(relay.port(), true, {.process = 1});
    auto agent = leader->take_agent(soon());
    REQUIRE(agent);
    const std::vector<std::byte> words(500'000, std::byte{7});
    auto sends = std::async(std::launch::async, [&] {
      try {
        agent->connection.send(1, {words}, soon());
      } catch (const ConnectionError&) {  // where the other end has seen it first
      }
    });
    std::string trouble;
    try {
      (void)client.receive(soon());
    } catch (const ConnectionError& error) {
      trouble = error.what();
    }
    CHECK(trouble.find(cuts ? "in the middle of a message" : "altered on its way") != std::string::npos);
    client.close();
    sends.get();
  }
}

TEST_CASE("TlsLines: whoever does not know the secret gets no further than without TLS") {
  Leader leader{{.limits = tls_limits(), .handshake_time = 500ms}};
  const Relay relay{leader->port()};
  auto honest = connect_through(relay.port(), true, {.process = 1});
  auto agent = leader->take_agent(soon());
  REQUIRE(agent);
  const auto works = [&] {
    honest.send(1, {bytes("word")}, soon());
    return agent->connection.receive(soon())->text() == "word";
  };
  const std::string recorded = relay.heard(0);
  const std::vector<std::byte> all(bytes(recorded).begin(), bytes(recorded).end());
  REQUIRE(all.size() > sizeof(Opening));

  // TLS at once, which is nobody's protocol here.
  const Socket browser = leader.stranger();
  send_raw(browser, std::vector<std::byte>(100, std::byte{0x16}));
  CHECK(is_hung_up(browser));
  CHECK(leader.refusals().await("does not speak Railyard's protocol"));
  // The openings, and then no TLS.
  const Socket garbage = leader.stranger();
  send_raw(garbage, Opening::make(Opening::at_length_by_tls).bytes());
  CHECK(read_raw(garbage, sizeof(Opening)).size() == sizeof(Opening));
  send_raw(garbage, bytes("plain words that are no record of TLS"));
  (void)read_raw(garbage, 1000);
  CHECK(leader.refusals().await(ry::detail::SocketAddress::of_self(garbage.fd()).text()));
  // TLS by another secret, at length and by ticket.
  for (const auto& ticket : {std::optional<ry::detail::Ticket>{}, std::optional{leader->ticket()}}) {
    CHECK_THROWS_AS(SecureConnection::connect("127.0.0.1", leader->port(), other_secret(), {.job = "job"}, soon(),
                                              tls_limits(), ticket),
                    ConnectionError);
  }
  CHECK(leader.refusals().await("it does not know the secret of this run"));
  // What was recorded, at once and in pieces.
  const Socket again = leader.stranger();
  send_raw(again, std::span{all}.first(sizeof(Opening)));
  (void)read_raw(again, sizeof(Opening));
  send_raw(again, std::span{all}.subspan(sizeof(Opening)));
  (void)read_raw(again, 100'000);
  // Half of a hello of TLS, and one that comes a byte at a time.
  const Socket half = leader.stranger();
  send_raw(half, std::span{all}.first(sizeof(Opening)));
  (void)read_raw(half, sizeof(Opening));
  send_raw(half, std::span{all}.subspan(sizeof(Opening), 50));
  const Socket slow = leader.stranger();
  send_raw(slow, std::span{all}.first(sizeof(Opening)));
  (void)read_raw(slow, sizeof(Opening));
  for (const std::byte& one : std::span{all}.subspan(sizeof(Opening))) {
    if (!send_raw(slow, {&one, 1}) || ry::detail::wait_for(slow.fd(), POLLIN, ry::Deadline::after(10ms))) break;
  }
  CHECK(is_hung_up(half));
  CHECK(is_hung_up(slow));
  CHECK(leader->num_refused() == 7);
  CHECK(works());
  CHECK_FALSE(leader->take_agent(ry::Deadline::after(0s)).has_value());
}
