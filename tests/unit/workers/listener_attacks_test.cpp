// SPDX-License-Identifier: MIT
// Whoever does not know the secret tries what can be tried, while those who do go about their work undisturbed.
#include "network_support.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <thread>

using namespace network_test;
using ry::detail::ConnectionError;
using ry::detail::SocketAddress;

namespace {

// Two workers that exchange values through the store, an agent that talks to its leader, and agents that come anew, for
// as long as it lives.
class HonestWork {
 public:
  explicit HonestWork(Leader& leader) : leader_(leader), thread_([this] { run(); }) {}
  ~HonestWork() {
    if (thread_.joinable()) (void)end();
  }
  HonestWork(const HonestWork&) = delete;
  HonestWork& operator=(const HonestWork&) = delete;

  /// Returns what went wrong, empty if nothing did. Goes on until a hundred rounds are done.
  std::string end() {
    is_ending_ = true;
    thread_.join();
    return trouble_;
  }

 private:
  void run() {
    try {
      const auto one = leader_.store(0);
      const auto other = leader_.store(1);
      auto worker = leader_.connect({.process = 1});
      auto agent = leader_->take_agent(soon());
      for (int round = 0; round < 100 || !is_ending_; ++round) {
        const std::string number = std::to_string(round);
        if (round < 5000) one->set(number, number);  // the store is no larger
        if (other->get(std::to_string(round % 5000), soon()) != std::to_string(round % 5000)) throw ry::Error{"store"};
        worker.send(1, {bytes(number)}, soon());
        if (agent->connection.receive(soon())->text() != number) throw ry::Error{"agent"};
        if (round % 10 != 0) continue;
        auto client = leader_.connect({.process = 2 + round});
        if (leader_->take_agent(soon())->hello.process != 2 + round) throw ry::Error{"new agent"};
      }
    } catch (const std::exception& error) {
      trouble_ = error.what();
    }
  }

  Leader& leader_;
  std::atomic<bool> is_ending_{false};
  std::string trouble_{};
  std::thread thread_;
};

std::string address_of(const Socket& socket) { return SocketAddress::of_self(socket.fd()).text(); }

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  ry::detail::fill_random(bytes);
  return bytes;
}

}  // namespace

TEST_CASE("Attacks: a port scan disturbs nobody, and is told of with the peer's address") {
  Leader leader;
  HonestWork work{leader};
  const Socket first = leader.stranger();
  const std::string address = address_of(first);
  ::shutdown(first.fd(), SHUT_RDWR);
  CHECK(leader.refusals().await(ry::detail::compose("{}: it has left without a word", address)));
  for (int at = 0; at < 500; ++at) {
    const Socket scan = leader.stranger();
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ry::detail::set_option(scan.fd(), SOL_SOCKET, SO_LINGER, at_once);  // half of the scanners send a reset
    if (at % 2 == 0) ::shutdown(scan.fd(), SHUT_RDWR);
  }
  CHECK(work.end() == "");
  CHECK(leader.refusals().await("more connections in the second before"));
}

TEST_CASE("Attacks: garbage is refused after eight bytes") {
  Leader leader;
  HonestWork work{leader};
  for (int at = 0; at < 200; ++at) {
    const Socket stranger = leader.stranger();
    send_raw(stranger, at % 2 == 0 ? random_bytes(8) : random_bytes(100'000));
    CHECK(is_hung_up(stranger));
  }
  const Socket browser = leader.stranger();
  send_raw(browser, bytes("GET / HTTP/1.1\r\nHost: leader\r\n\r\n"));
  CHECK(is_hung_up(browser));
  CHECK(work.end() == "");
  CHECK(leader.refusals().await("does not speak Railyard's protocol"));
  CHECK(leader->num_refused() >= 201);
}

TEST_CASE("Attacks: a wrong secret does not get in") {
  Leader leader;
  HonestWork work{leader};
  for (int at = 0; at < 50; ++at) {
    CHECK_THROWS_AS(leader.connect({.process = 1}, other_secret()), ConnectionError);
    HandMadeHello guess;
    const Socket stranger = leader.stranger();
    send_raw(stranger, guess.client.bytes());
    guess.take_opening(read_raw(stranger, sizeof guess.server));
    auto message = guess.message(run_secret());
    message.back() ^= std::byte{1};
    send_raw(stranger, message);
    CHECK(is_hung_up(stranger));
  }
  CHECK(work.end() == "");
  CHECK(leader.refusals().await("does not know the secret"));
  CHECK(leader->num_refused() == 100);
}

TEST_CASE("Attacks: a hello that was recorded does not get in again, and the listener's own words do not either") {
  Leader leader;
  HonestWork work{leader};
  HandMadeHello honest;
  honest.hello = ry::detail::encode_hello({.kind = ry::detail::HelloKind::store, .job = "job", .process = 5});
  {
    const Socket client = leader.stranger();
    send_raw(client, honest.client.bytes());
    honest.take_opening(read_raw(client, sizeof honest.server));
    send_raw(client, honest.message(run_secret()));
    CHECK(read_raw(client, HandMadeHello::welcome_bytes).size() == HandMadeHello::welcome_bytes);  // it was let in
  }
  const auto recorded = honest.message(run_secret());
  for (int at = 0; at < 50; ++at) {
    const Socket stranger = leader.stranger();
    send_raw(stranger, honest.client.bytes());
    CHECK(read_raw(stranger, sizeof honest.server).size() == sizeof honest.server);
    send_raw(stranger, recorded);
    CHECK(is_hung_up(stranger));
  }
  for (int at = 0; at < 50; ++at) {
    const Socket mirror = leader.stranger();
    send_raw(mirror, honest.client.bytes());
    const auto opening = read_raw(mirror, sizeof honest.server);
    send_raw(mirror, opening);
    send_raw(mirror, opening);
    CHECK(is_hung_up(mirror));
  }
  CHECK(work.end() == "");
  CHECK(leader->num_refused() == 100);
}

TEST_CASE("Attacks: a hello by ticket gets in once, whatever came with it") {
  Leader leader;
  HonestWork work{leader};
  HandMadeHello honest;
  honest.hello = ry::detail::encode_hello({.kind = ry::detail::HelloKind::store, .job = "job", .process = 5});
  honest.client.magic = ry::detail::Opening::by_ticket;
  honest.server = leader->ticket();
  const ry::detail::Transcript transcript{honest.client, honest.server, honest.hello};
  ry::detail::FrameWriter writer{transcript.client_key(run_secret()), 1000};
  writer.put(static_cast<std::uint8_t>(ry::detail::StoreFrame::get), {bytes("never")});
  const auto play = [&](const Socket& socket) {
    send_raw(socket, honest.client.bytes());
    send_raw(socket, honest.message(run_secret()));
    send_raw(socket, writer.unsent());
    return std::to_integer<std::uint8_t>(read_raw(socket, ry::detail::frame_head_bytes).at(4));
  };
  const Socket client = leader.stranger();
  CHECK(play(client) == ry::detail::Frame::welcome);
  for (int at = 0; at < 50; ++at) CHECK(play(leader.stranger()) == ry::detail::Frame::refusal);
  CHECK(work.end() == "");
  CHECK(leader.refusals().await("this very hello has come before"));
  CHECK(leader->num_refused() == 50);
  leader->reset_store(1);
  CHECK(play(leader.stranger()) == ry::detail::Frame::refusal);  // of a generation that is over
}

TEST_CASE("Attacks: connections that say nothing make room for others, and are closed in time") {
  Leader leader{{.max_half_open = 16, .handshake_time = 300ms}};
  HonestWork work{leader};
  std::vector<Socket> silent;
  for (int at = 0; at < 200; ++at) silent.push_back(leader.stranger());
  for (const Socket& one : silent) CHECK(is_hung_up(one));
  CHECK(work.end() == "");
  CHECK(leader.refusals().await("not proven itself"));
  CHECK(leader->num_refused() == 200);
}

TEST_CASE("Attacks: one who sends a byte now and then is closed in time") {
  Leader leader{{.handshake_time = 200ms}};
  HonestWork work{leader};
  HandMadeHello hello;
  const Socket slow = leader.stranger();
  for (const std::byte& one : hello.client.bytes()) {
    if (!send_raw(slow, {&one, 1}) || ry::detail::wait_for(slow.fd(), POLLIN, ry::Deadline::after(10ms))) break;
  }
  CHECK(is_hung_up(slow));
  CHECK(leader.refusals().await(ry::detail::compose("{}: it has not proven itself in time", address_of(slow))));

  const Socket later = leader.stranger();  // and in the midst of a hello
  send_raw(later, hello.client.bytes());
  (void)read_raw(later, sizeof hello.server);
  const std::uint32_t size = ry::detail::max_hello_bytes;
  send_raw(later, std::as_bytes(std::span{&size, 1}));
  send_raw(later, random_bytes(60'000));
  CHECK(is_hung_up(later));
  CHECK(work.end() == "");
}

TEST_CASE("Attacks: a hello that claims to be huge is refused by its size alone") {
  Leader leader;
  HonestWork work{leader};
  for (const std::uint32_t size : {std::uint32_t{ry::detail::max_hello_bytes + 1}, std::uint32_t{0xFFFFFFFF}}) {
    const Socket stranger = leader.stranger();
    send_raw(stranger, ry::detail::Opening::make().bytes());
    (void)read_raw(stranger, sizeof(ry::detail::Opening));
    send_raw(stranger, std::as_bytes(std::span{&size, 1}));
    CHECK(is_hung_up(stranger));
    CHECK(leader.refusals().await(ry::detail::compose("claims to have {} bytes", size)));
  }
  CHECK(work.end() == "");
}

TEST_CASE("Attacks: what is altered or put in on the way ends that connection, and no other") {
  Leader leader;
  HonestWork work{leader};
  HandMadeHello honest;
  honest.hello = ry::detail::encode_hello({.kind = ry::detail::HelloKind::store, .job = "job", .process = 5});
  for (int at = 0; at < 20; ++at) {
    // The attacker sits between: it has let the handshake through and now sends requests of its own.
    const Socket hijacked = leader.stranger();
    send_raw(hijacked, honest.client.bytes());
    honest.take_opening(read_raw(hijacked, sizeof honest.server));
    send_raw(hijacked, honest.message(run_secret()));
    (void)read_raw(hijacked, HandMadeHello::welcome_bytes);
    ry::detail::FrameWriter forger{other_secret(), 1000};
    forger.put(static_cast<std::uint8_t>(ry::detail::StoreFrame::get), {bytes("key")});
    send_raw(hijacked, forger.unsent());
    CHECK(is_hung_up(hijacked));
  }
  CHECK(work.end() == "");
  CHECK(leader.refusals().await("altered on its way"));
}

TEST_CASE("Attacks: more connections than this process has descriptors leave those it has alone") {
  Leader leader{{.max_half_open = 10'000, .handshake_time = 500ms}};
  HonestWork work{leader};
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = workers_test::count_entries("/proc/self/fd") + 30;  // enough for what honest clients need
  ::setrlimit(RLIMIT_NOFILE, &limit);
  workers_test::Forked attacker{[&](const auto& tell) {
    ::setrlimit(RLIMIT_NOFILE, &before);
    std::vector<Socket> silent;
    for (int at = 0; at < 100; ++at) silent.push_back(leader.stranger());
    tell(1);
    for (const Socket& one : silent) (void)is_hung_up(one);
    tell(2);
    return 0;
  }};
  CHECK(attacker.hear() == 1);
  CHECK(leader.refusals().await("no connection can be taken: Too many open files"));
  CHECK(attacker.hear() == 2);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(attacker.status() == 0);
  CHECK(work.end() == "");
}
