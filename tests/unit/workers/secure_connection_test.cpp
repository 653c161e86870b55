// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/secure_connection.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

#include <thread>

using namespace network_test;
using ry::detail::ConnectionError;
using ry::detail::Frame;
using Cause = ry::detail::ConnectionError::Cause;

namespace {

// What goes wrong in the function: its cause and its text.
template <class Function>
std::pair<Cause, std::string> error_of(const Function& function) {
  try {
    function();
  } catch (const ConnectionError& error) {
    return {error.cause(), error.what()};
  }
  throw std::runtime_error{"nothing went wrong"};
}

Socket accept_from(const Socket& listening) {
  if (!ry::detail::wait_for(listening.fd(), POLLIN, soon())) throw std::runtime_error{"nobody connects"};
  return Socket{ry::detail::Descriptor{::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC)}};
}

void read_to_end(const Socket& socket) { (void)read_raw(socket, std::size_t{1} << 20U); }

// Does with those who connect what it is told to, on a thread of its own.
class FakeLeader {
 public:
  explicit FakeLeader(std::function<void(const Socket& listening)> answer)
      : thread_([this, answer = std::move(answer)] { answer(listening_); }) {}
  ~FakeLeader() { join(); }
  FakeLeader(const FakeLeader&) = delete;
  FakeLeader& operator=(const FakeLeader&) = delete;
  int port() const { return ry::detail::SocketAddress::of_self(listening_.fd()).port(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  Socket listening_ = ry::detail::listen_at("127.0.0.1", 0);
  std::thread thread_;
};

SecureConnection connect_to(int port, std::chrono::nanoseconds within = 30s) {
  return SecureConnection::connect("127.0.0.1", port, run_secret(), {.job = "job", .generation = 7, .process = 3},
                                   ry::Deadline::after(within));
}

}  // namespace

TEST_CASE("SecureConnection: brings messages across, both ways, in order") {
  auto ends = secure_pair();
  auto& one = ends.first;
  auto& other = ends.second;
  one.send(1, {bytes("first")}, soon());
  one.send(2, {bytes("sec"), bytes("ond")}, soon());
  other.send(3, {}, soon());
  auto frame = other.receive(soon());
  REQUIRE(frame);
  CHECK(frame->type == 1);
  CHECK(frame->text() == "first");
  CHECK(other.receive(soon())->text() == "second");
  CHECK_FALSE(other.try_receive());
  CHECK_FALSE(other.receive(ry::Deadline::after(1ms)));
  CHECK(one.receive(soon())->type == 3);
}

TEST_CASE("SecureConnection: brings across what is larger than any buffer while both ends send") {
  auto ends = secure_pair();
  auto& one = ends.first;
  auto& other = ends.second;
  std::string large(20'000'000, 'x');
  for (std::size_t at = 0; at < large.size(); at += 1000) large[at] = static_cast<char>(at / 1000);
  other.post(1, {bytes(large)});  // receive() sends it
  std::optional<Frame> there;
  std::thread thread{[&one, &large, &there] {
    one.post(2, {bytes(large)});
    there = one.receive(soon());
    while (!one.flush() && ry::detail::wait_for(one.fd(), POLLOUT, soon())) {
    }
  }};
  const auto back = other.receive(soon());
  while (!other.flush() && ry::detail::wait_for(other.fd(), POLLOUT, soon())) {
  }
  thread.join();
  CHECK(there->text() == large);
  CHECK(back->text() == large);
}

TEST_CASE("SecureConnection: gives up at the deadline if the other end takes nothing") {
  auto ends = secure_pair();
  auto& one = ends.first;
  const std::string large(20'000'000, 'x');
  const auto [cause, message] = error_of([&one, &large] { one.send(1, {bytes(large)}, ry::Deadline::after(20ms)); });
  CHECK(cause == Cause::failed);
  CHECK_THAT(message, ContainsSubstring("the leader has not taken") && ContainsSubstring("20 ms"));
}

TEST_CASE("SecureConnection: tells the other end's end from damage, and names it") {
  {
    auto ends = secure_pair();
    auto& one = ends.first;
    auto& other = ends.second;
    one.send(1, {bytes("the last")}, soon());
    one.close();
    CHECK(other.receive(soon())->text() == "the last");
    const auto [cause, message] = error_of([&other] { (void)other.receive(soon()); });
    CHECK(cause == Cause::closed);
    CHECK(message == "process 3 has closed the connection");
    const auto [send_cause, send_message] = error_of([&other] {
      other.send(1, {bytes("x")}, soon());  // raises no SIGPIPE
    });
    CHECK(send_cause == Cause::closed);
    CHECK_THAT(send_message, ContainsSubstring("process 3"));
  }
  {
    auto ends = secure_pair();
    auto& one = ends.first;
    auto& other = ends.second;
    REQUIRE(::send(one.fd(), "\3\0\0\0\1ab", 7, 0) == 7);
    one.close();
    const auto [cause, message] = error_of([&other] { (void)other.receive(soon()); });
    CHECK(cause == Cause::closed);
    CHECK_THAT(message, ContainsSubstring("in the middle of a message"));
  }
  {
    auto ends = secure_pair();
    auto& one = ends.first;
    auto& other = ends.second;
    REQUIRE(::send(one.fd(), "\0\0\0\0\1 no code at all", 21, 0) == 21);
    const auto [cause, message] = error_of([&other] { (void)other.receive(soon()); });
    CHECK(cause == Cause::failed);
    CHECK_THAT(message, ContainsSubstring("process 3") && ContainsSubstring("altered"));
  }
}

TEST_CASE("SecureConnection: refuses to send or take more than its limit") {
  auto [one, other] = secure_pair({.max_frame_bytes = 10});
  CHECK_THROWS_AS(one.post(1, {bytes("eleven byte")}), ry::ConfigError);
  one.send(1, {bytes("ten bytes.")}, soon());
  CHECK(other.receive(soon()));
}

TEST_CASE("SecureConnection: leaves the parent's connection alone in a child that lets go of it") {
  auto ends = secure_pair();
  auto& one = ends.first;
  auto& other = ends.second;
  workers_test::Forked child{[&one](const auto&) {
    one.forget_in_child();
    return 0;
  }};
  CHECK(child.status() == 0);
  one.send(1, {bytes("still there")}, soon());
  CHECK(other.receive(soon())->text() == "still there");
}

TEST_CASE("SecureConnection: tries again if the leader had no room and hung up before its answer") {
  std::int32_t process = 0;
  std::string heard;
  FakeLeader leader{[&](const Socket& listening) {
    (void)accept_from(listening);  // and close it
    const Socket second = accept_from(listening);
    const Hmac secret = run_secret();
    const auto ticket = ry::detail::Ticket::make();
    ry::detail::ServerHandshake handshake{secret, ticket};
    while (handshake.state() == ry::detail::ServerHandshake::State::waiting) {
      const auto got = read_raw(second, handshake.room().size());
      std::copy(got.begin(), got.end(), handshake.room().begin());
      send_raw(second, handshake.take(got.size()));
    }
    process = handshake.hello().process;
    SecureConnection connection{Socket{ry::detail::Descriptor{::dup(second.fd())}}, handshake.keys(), "process 3", {}};
    connection.send(Frame::welcome, {ticket.bytes()}, soon());
    heard = connection.receive(soon())->text();
  }};
  auto connection = connect_to(leader.port());
  CHECK_THAT(connection.peer(), ContainsSubstring(ry::detail::compose("127.0.0.1 port {}", leader.port())));
  connection.send(1, {bytes("thanks")}, soon());
  leader.join();
  CHECK(process == 3);
  CHECK(heard == "thanks");
}

TEST_CASE("SecureConnection: says whom it could not reach, within the deadline") {
  int port = 0;
  {
    const Socket listening = ry::detail::listen_at("127.0.0.1", 0);
    port = ry::detail::SocketAddress::of_self(listening.fd()).port();
  }
  const auto [cause, message] = error_of([&] { (void)connect_to(port, 50ms); });
  CHECK(cause == Cause::failed);
  CHECK_THAT(message, ContainsSubstring(ry::detail::compose("127.0.0.1 port {}", port)) && ContainsSubstring("50 ms") &&
                          ContainsSubstring("Connection refused"));
  const Socket mute = ry::detail::listen_at("127.0.0.1", 0);  // the kernel connects, nobody answers
  const int mute_port = ry::detail::SocketAddress::of_self(mute.fd()).port();
  CHECK_THAT(error_of([&] { (void)connect_to(mute_port, 50ms); }).second, ContainsSubstring("did not answer"));
  CHECK_THROWS_AS(connect_to(0), ry::ConfigError);
}

TEST_CASE("SecureConnection: trusts no leader that cannot prove itself") {
  {
    const FakeLeader other{[](const Socket& listening) {
      const Socket socket = accept_from(listening);
      send_raw(socket, bytes("HTTP/1.1 400 Bad Request\r\n\r\n sorry, but"));
      read_to_end(socket);
    }};
    const auto [cause, message] = error_of([&] { (void)connect_to(other.port()); });
    CHECK(cause == Cause::failed);
    CHECK_THAT(message, ContainsSubstring("is not the run's leader"));
  }
  {
    // Sends everything back: the client's own nonce, and its proof as the code of an empty welcome.
    const FakeLeader mirror{[](const Socket& listening) {
      const Socket socket = accept_from(listening);
      send_raw(socket, read_raw(socket, sizeof(ry::detail::Opening)));
      const auto message = read_raw(socket, 4 + ry::detail::encode_hello({.job = "job"}).size() + 32);
      send_raw(socket, bytes({"\0\0\0\0\xfe", 5}));
      send_raw(socket, std::span{message}.last(32).first(ry::detail::frame_code_bytes));
      read_to_end(socket);
    }};
    CHECK_THAT(error_of([&] { (void)connect_to(mirror.port()); }).second,
               ContainsSubstring("does not know the secret"));
  }
  {
    const FakeLeader guesser{[](const Socket& listening) {
      const Socket socket = accept_from(listening);
      HandMadeHello handshake;
      const auto opening = read_raw(socket, sizeof(ry::detail::Opening));
      std::memcpy(&handshake.client, opening.data(), opening.size());
      handshake.server = ry::detail::Opening::make();
      send_raw(socket, handshake.server.bytes());
      const auto message = read_raw(socket, 4 + ry::detail::encode_hello({.job = "job"}).size() + 32);
      handshake.hello.assign(message.begin() + 4, message.end() - 32);
      const ry::detail::Transcript transcript{handshake.client, handshake.server, handshake.hello};
      ry::detail::FrameWriter writer{transcript.server_key(other_secret()), 1000};
      writer.put(Frame::welcome, {ry::detail::Ticket::make().bytes()});
      send_raw(socket, writer.unsent());
      read_to_end(socket);
    }};
    CHECK_THAT(error_of([&] { (void)connect_to(guesser.port()); }).second,
               ContainsSubstring("does not know the secret"));
  }
}

TEST_CASE("SecureConnection: reads the reason why it is turned away") {
  Leader leader;
  const auto [cause, message] = error_of([&] { (void)leader.connect({.generation = 3, .process = 1}); });
  CHECK(cause == Cause::refused);
  CHECK_THAT(message, ContainsSubstring("generation 3") && ContainsSubstring("now at 7") &&
                          ContainsSubstring(ry::detail::compose("port {}", leader->port())));
  CHECK(error_of([&] { (void)leader.connect({.job = "another", .process = 1}); }).first == Cause::refused);
  const auto [wrong_cause, wrong_message] = error_of([&] { (void)leader.connect({}, other_secret()); });
  CHECK(wrong_cause == Cause::failed);
  CHECK_THAT(wrong_message, ContainsSubstring("different secrets"));
}
