// SPDX-License-Identifier: MIT
// Ranks connect and prove themselves to each other, whoever else knocks: who does not know the secret gets nothing but
// a nonce, and is told of with its address.
#include "railyard/workers/detail/rank_lines.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"
#include "support/run_ranks.hpp"
#include "support/sanitizers.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

using namespace network_test;
using ry::detail::PairCalling;
using ry::detail::PairHandshake;
using ry::detail::PairListening;
using ry::detail::PairOpening;
using ry::detail::PairProofs;
using ry::detail::RankLineLimits;
using ry::detail::SecretConnector;
using ry::detail::SocketAddress;

namespace {

using RankLinesOf = std::vector<std::unique_ptr<ry::RankLine>>;

const std::string group_of_ranks = "group/";

ry::World world_of_rank(int rank, int size) {
  ry::World world;
  world.rank = rank;
  world.size = size;
  return world;
}

// Exchanges a byte with every other rank, which have to do it as well.
std::string exchange_bytes(RankLinesOf& lines, int rank) {
  for (auto& line : lines) {
    if (line == nullptr) continue;
    const auto own = std::byte(rank);
    if (line->send(&own, 1) != 1) return "a byte was not sent";
  }
  for (std::size_t peer = 0; peer < lines.size(); ++peer) {
    if (lines[peer] == nullptr) continue;
    std::byte theirs{255};
    if (!ry::detail::wait_for(lines[peer]->fd(), POLLIN, soon())) return "no byte has come";
    if (lines[peer]->receive(&theirs, 1) != 1 || theirs != std::byte(peer)) return "a wrong byte has come";
  }
  return {};
}

// Where rank 0 of a group of two listens. Connects it in another thread while a test does what it likes; the honest
// rank 1 comes when it is told to.
class KnockedAt {
 public:
  explicit KnockedAt(RankLineLimits limits = {})
      : limits_(limits), rank0_(std::async(std::launch::async, [this] { return connect(0); })) {
    const std::string place = store_.get(group_of_ranks + "0", soon()).value();
    port_ = std::stoi(place);
    place_ = place;
  }
  Socket stranger() const {
    std::string cause;
    Socket socket = ry::detail::try_connect("127.0.0.1", port_, soon(), cause);
    if (!socket.is_open()) throw std::runtime_error{cause};
    return socket;
  }
  const std::string& place() const { return place_; }
  network_test::Lines& refusals() { return refusals_; }

  /// Lets rank 1 come. Returns what went wrong, empty if nothing did.
  std::string end() {
    auto lines1 = connect(1);
    auto lines0 = rank0_.get();
    auto other = std::async(std::launch::async, [&] { return exchange_bytes(lines1, 1); });
    const std::string trouble = exchange_bytes(lines0, 0);
    return trouble + other.get();
  }

  static ry::detail::Hmac group_key(const Hmac& secret) {
    return secret.with_key(Hmac{secret}.of({bytes("railyard: lines between ranks of "), bytes("run")}));
  }

 private:
  RankLinesOf connect(int rank) {
    SecretConnector connector{run_secret(), "run", [this](const std::string& line) { refusals_.add(line); }, limits_};
    return connector.connect(world_of_rank(rank, 2), store_, group_of_ranks, "127.0.0.1", soon());
  }

  RankLineLimits limits_;
  railyard_test::MemoryStore store_{};
  network_test::Lines refusals_{};
  int port_ = 0;
  std::string place_{};
  std::future<RankLinesOf> rank0_;
};

// Takes the next connection in.
Socket accepted(const Socket& listening) {
  if (!ry::detail::wait_for(listening.fd(), POLLIN, soon())) throw std::runtime_error{"nobody calls"};
  return Socket{ry::detail::Descriptor{::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)}};
}

std::string own_address_text(const Socket& socket) { return SocketAddress::of_self(socket.fd()).text(); }

// A caller's side of the handshake up to its proof, put together by hand.
std::vector<std::byte> call_by_hand(const Socket& socket, const PairOpening& opening, const std::string& place,
                                    const Hmac& key) {
  send_raw(socket, opening.bytes());
  const auto answer = read_raw(socket, 64);
  if (answer.size() != 64) throw std::runtime_error{"rank 0 has not answered"};
  const auto proof = PairProofs{key, place}.of(PairProofs::caller, opening, std::span{answer}.first(32));
  return {proof.begin(), proof.end()};
}

}  // namespace

TEST_CASE("RankLines: every rank is connected with every other one") {
  for (const int size : {1, 2, 3, 8}) {
    railyard_test::run_ranks(size, [](const ry::World& world, ry::Store& store) {
      SecretConnector connector{run_secret(), "run", [](const std::string&) {}};
      auto lines = connector.connect(world, store, group_of_ranks, "127.0.0.1", soon());
      railyard_test::require(lines[static_cast<std::size_t>(world.rank)] == nullptr, "no line to itself");
      const std::string trouble = exchange_bytes(lines, world.rank);
      railyard_test::require(trouble.empty(), trouble);
    });
  }
}

TEST_CASE("RankLines: who goes, and who hangs up, is named by rank and address") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    SecretConnector connector{run_secret(), "run", [](const std::string&) {}};
    auto lines = connector.connect(world, store, group_of_ranks, "127.0.0.1", soon());
    ry::RankLine& line = *lines[static_cast<std::size_t>(1 - world.rank)];
    if (world.rank == 0) return line.hang_up();
    railyard_test::require(ry::detail::wait_for(line.fd(), POLLIN, soon()), "an end");
    try {
      std::byte one{};
      (void)line.receive(&one, 1);
    } catch (const ry::Error& error) {
      const std::string what = error.what();
      railyard_test::require(what.find("rank 0 (127.0.0.1:") != std::string::npos, what);
      return;
    }
    throw std::runtime_error{"an error was to come"};
  });
}

TEST_CASE("RankLines: who calls with another secret, or of another run, is not let in, and both ends say so") {
  const auto fails = [](const Hmac& secret, const std::string& run, std::chrono::milliseconds patience) {
    railyard_test::MemoryStore store;
    network_test::Lines refusals;
    const auto connect = [&](int rank, const Hmac& with, const std::string& of) {
      SecretConnector connector{with, of, [&](const std::string& line) { refusals.add(line); }};
      try {
        (void)connector.connect(world_of_rank(rank, 2), store, group_of_ranks, "127.0.0.1",
                                ry::Deadline::after(patience));
      } catch (const ry::Error& error) {
        return std::string{error.what()};
      }
      return std::string{};
    };
    auto listener = std::async(std::launch::async, [&] { return connect(0, run_secret(), "run"); });
    const std::string caller = connect(1, secret, run);
    INFO(caller);
    CHECK(caller.find("rank 1 does not reach rank 0 at 127.0.0.1:") != std::string::npos);
    CHECK(caller.find("ScalingConfig::launch.network") != std::string::npos);
    const std::string heard = listener.get();
    INFO(heard);
    CHECK(heard.find("rank(s) 1 did not connect to rank 0 at 127.0.0.1:") != std::string::npos);
    return refusals.all().find("refused a connection from 127.0.0.1:") != std::string::npos;
  };
  // On a slow machine nobody may have been refused in half a second.
  for (const auto& [secret, run] : {std::pair{other_secret(), "run"}, std::pair{run_secret(), "another run"}}) {
    CHECK((fails(secret, run, 500ms) || fails(secret, run, 30s)));
  }
}

TEST_CASE("RankLines: scans, garbage and wrong proofs are told of by address, and rank 1 comes nevertheless") {
  KnockedAt rank0;
  {
    const Socket scan = rank0.stranger();
    const std::string address = own_address_text(scan);
    ::shutdown(scan.fd(), SHUT_RDWR);
    CHECK(rank0.refusals().await(ry::detail::compose("from {}: it has left without a word", address)));
  }
  const Socket browser = rank0.stranger();
  send_raw(browser, bytes("GET / HTTP/1.1\r\nHost: rank\r\n\r\n"));
  CHECK(is_hung_up(browser));
  CHECK(rank0.refusals().await(
      ry::detail::compose("from {}: it does not speak the protocol", own_address_text(browser))));
  const Socket guess = rank0.stranger();
  send_raw(guess, call_by_hand(guess, {.from = 1, .to = 0}, rank0.place(), other_secret()));
  CHECK(is_hung_up(guess));
  CHECK(rank0.refusals().await("it does not know the secret of this run"));
  for (int at = 0; at < 300; ++at) {
    const Socket scan = rank0.stranger();
    if (at % 3 == 0) send_raw(scan, bytes("RAILYRP1 and then nothing that makes sense"));
  }
  CHECK(rank0.end() == "");
}

TEST_CASE("RankLines: a call that was recorded does not get in, nor do a listener's own words or a stranger's rank") {
  KnockedAt rank0;
  const Hmac key = KnockedAt::group_key(run_secret());
  const PairOpening honest{.from = 1, .to = 0};
  const Socket first = rank0.stranger();
  const auto recorded = call_by_hand(first, honest, rank0.place(), key);  // kept from rank 0, and so not used up
  for (int at = 0; at < 20; ++at) {
    const Socket again = rank0.stranger();
    send_raw(again, honest.bytes());
    CHECK(read_raw(again, 64).size() == 64);
    send_raw(again, recorded);
    CHECK(is_hung_up(again));
    const Socket mirror = rank0.stranger();
    send_raw(mirror, honest.bytes());
    const auto answer = read_raw(mirror, 64);
    send_raw(mirror, std::span{answer}.last(32));
    CHECK(is_hung_up(mirror));
  }
  // Ranks of the run that are mistaken: what proves them is for another place, or it is no rank that is to come.
  const Socket elsewhere = rank0.stranger();
  send_raw(elsewhere, call_by_hand(elsewhere, honest, "1 127.0.0.1 00", key));
  CHECK(is_hung_up(elsewhere));
  for (const PairOpening& wrong : {PairOpening{.from = 1, .to = 1}, PairOpening{.from = 0, .to = 0},
                                   PairOpening{.from = 2, .to = 0}, PairOpening{.from = -1, .to = 0}}) {
    const Socket mistaken = rank0.stranger();
    send_raw(mistaken, call_by_hand(mistaken, wrong, rank0.place(), key));
    (void)read_raw(mistaken, 32);
    CHECK(is_hung_up(mistaken));
  }
  CHECK(rank0.end() == "");
}

TEST_CASE("RankLines: those who say nothing, or a byte now and then, are closed in time and keep nobody out") {
  KnockedAt rank0{{.handshake_time = 200ms, .max_half_open = 16}};
  std::vector<Socket> silent;
  for (int at = 0; at < 60; ++at) silent.push_back(rank0.stranger());
  const Socket slow = rank0.stranger();
  const PairOpening opening{.from = 1, .to = 0};
  for (const std::byte& one : opening.bytes()) {
    if (!send_raw(slow, {&one, 1}) || ry::detail::wait_for(slow.fd(), POLLIN, ry::Deadline::after(10ms))) break;
  }
  for (const Socket& one : silent) CHECK(is_hung_up(one));
  CHECK(rank0.refusals().await("it has not proven itself"));
  std::vector<Socket> later;
  for (int at = 0; at < 60; ++at) later.push_back(rank0.stranger());
  CHECK(rank0.end() == "");
}

TEST_CASE("RankLines: a caller that may have been taken in stays until it is welcomed, however late") {
  railyard_test::MemoryStore store;
  const Socket listening = ry::detail::listen_at("127.0.0.1", 0);
  const auto place = ry::detail::compose("{} 127.0.0.1 00", SocketAddress::of_self(listening.fd()).port());
  store.set(group_of_ranks + "0", place);
  auto caller = std::async(std::launch::async, [&] {
    // Long enough for a proof, and shorter than the wait below.
    const auto patience = railyard_test::is_sanitized ? 250ms : 20ms;
    SecretConnector connector{run_secret(), "run", [](const std::string&) {}, {.handshake_time = patience}};
    return connector.connect(world_of_rank(1, 2), store, group_of_ranks, "127.0.0.1", soon()).size();
  });
  // The listener's side by hand: one that advances by itself may welcome a caller that is quick at once.
  const PairProofs proofs{KnockedAt::group_key(run_secret()), place};
  Socket taken;
  PairOpening opening;
  const std::vector<std::byte> nonce(32, std::byte{7});
  // Calls from before the proof may be given up meanwhile, on a slow machine.
  for (bool has_proof = false; !has_proof;) {
    taken = accepted(listening);
    const auto heard = read_raw(taken, sizeof opening);
    if (heard.size() != sizeof opening) continue;
    std::memcpy(&opening, heard.data(), heard.size());
    send_raw(taken, nonce);
    send_raw(taken, proofs.of(PairProofs::listener, opening, nonce));
    has_proof = read_raw(taken, sizeof(ry::detail::Digest)).size() == sizeof(ry::detail::Digest);
  }
  CHECK_FALSE(ry::detail::wait_for(taken.fd(), POLLRDHUP, ry::Deadline::after(500ms)));
  send_raw(taken, proofs.of(PairProofs::welcome, opening, nonce));
  CHECK(caller.get() == 2);
}

TEST_CASE("RankLines: a caller believes no listener that does not know the secret, and calls again") {
  railyard_test::MemoryStore store;
  const Socket listening = ry::detail::listen_at("127.0.0.1", 0);
  const auto place = ry::detail::compose("{} 127.0.0.1 00", SocketAddress::of_self(listening.fd()).port());
  store.set(group_of_ranks + "0", place);
  auto caller = std::async(std::launch::async, [&] {
    SecretConnector connector{run_secret(), "run", [](const std::string&) {}};
    return connector.connect(world_of_rank(1, 2), store, group_of_ranks, "127.0.0.1", soon()).size();
  });
  {
    const Socket call = accepted(listening);
    CHECK(read_raw(call, sizeof(PairOpening)).size() == sizeof(PairOpening));
    send_raw(call, std::vector<std::byte>(64));
    CHECK(is_hung_up(call));  // without a proof of its own
  }
  const PairProofs proofs{KnockedAt::group_key(run_secret()), place};
  PairListening honest{accepted(listening), proofs, 0, false};
  while (honest.advance() == PairHandshake::State::waiting) {
    REQUIRE(ry::detail::wait_for(honest.socket().fd(), honest.events(), soon()));
  }
  CHECK(honest.trouble() == "");
  CHECK(caller.get() == 2);
}
