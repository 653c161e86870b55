// SPDX-License-Identifier: MIT
// Two ends with one key understand each other, and nobody else gets in between: not by another key, a certificate, an
// older version, words that were recorded or altered, or a fork at the wrong moment.
#include "railyard/workers/detail/tls.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <atomic>
#include <thread>

#include <sys/wait.h>

using namespace network_test;
using ry::detail::Digest;
using ry::detail::TlsRole;
using TlsState = ry::detail::TlsSession::State;

namespace {

Digest some_key(unsigned number) {
  Digest key{};
  key[0] = std::byte(number);
  return key;
}

// Two sockets that are connected with each other; what one sends can be looked at before it is passed on.
struct Wire {
  Wire() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
      throw std::runtime_error{"socketpair"};
    client = Socket{ry::detail::Descriptor{ends[0]}};
    server = Socket{ry::detail::Descriptor{ends[1]}};
  }
  void encrypt(const Digest& client_key = some_key(1), const Digest& server_key = some_key(1),
               std::uint64_t bytes_per_key = ry::detail::TlsSession::default_bytes_per_key) {
    client.encrypt(TlsRole::client, client_key, bytes_per_key);
    server.encrypt(TlsRole::server, server_key, bytes_per_key);
  }
  // Neither end is stuck while the other one may go on: what they say fits into the sockets.
  void shake() const {
    for (int turn = 0; turn < 8; ++turn) {
      (void)client.shake_hands();
      (void)server.shake_hands();
    }
  }
  Socket client{};
  Socket server{};
};

Wire encrypted_wire(std::uint64_t bytes_per_key = ry::detail::TlsSession::default_bytes_per_key) {
  Wire wire;
  wire.encrypt(some_key(1), some_key(1), bytes_per_key);
  wire.shake();
  if (wire.client.shake_hands() != TlsState::ready || wire.server.shake_hands() != TlsState::ready) {
    throw std::runtime_error{"no handshake: " + wire.client.shaking_trouble() + "; " + wire.server.shaking_trouble()};
  }
  return wire;
}

// What waits at an end, as the network has it, taken away from there.
std::vector<std::byte> intercept(const Socket& socket) {
  std::vector<std::byte> bytes(std::size_t{1} << 20U);
  const ssize_t got = ::recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

std::string receive_text(const Socket& socket, std::size_t most = 4096) {
  std::vector<std::byte> bytes(most);
  const ssize_t got = socket.receive(bytes);
  if (got < 0) return errno == EAGAIN ? "nothing" : errno == EBADMSG ? "damage" : "lost";
  return got == 0 ? "end" : text(std::span{bytes}.first(static_cast<std::size_t>(got)));
}

void send_text(const Socket& socket, std::string_view words) {
  if (socket.send(bytes(words)) != static_cast<ssize_t>(words.size())) throw std::runtime_error{"nothing was sent"};
}

struct FreeOpenSsl {
  void operator()(SSL_CTX* one) const noexcept { SSL_CTX_free(one); }
  void operator()(SSL* one) const noexcept { SSL_free(one); }
  void operator()(X509* one) const noexcept { X509_free(one); }
  void operator()(EVP_PKEY* one) const noexcept { EVP_PKEY_free(one); }
};

// An end as anybody's TLS is: with a certificate instead of a key, and with other versions.
class OrdinaryTls {
 public:
  OrdinaryTls(const Socket& socket, bool is_server, int version) : context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_min_proto_version(context_.get(), version);
    SSL_CTX_set_max_proto_version(context_.get(), version);
    if (is_server) make_certificate();
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket.fd());
    is_server ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
  }
  bool shake() const { return SSL_do_handshake(ssl_.get()) == 1; }

 private:
  void make_certificate() const {
    const std::unique_ptr<EVP_PKEY, FreeOpenSsl> key{EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")};
    const std::unique_ptr<X509, FreeOpenSsl> certificate{X509_new()};
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    if (X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0 ||
        SSL_CTX_use_certificate(context_.get(), certificate.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1) {
      throw std::runtime_error{"no certificate could be made"};
    }
  }

  std::unique_ptr<SSL_CTX, FreeOpenSsl> context_;
  std::unique_ptr<SSL, FreeOpenSsl> ssl_{};
};

}  // namespace

TEST_CASE("Tls: words go both ways, and cannot be read on the wire") {
  const Wire wire = encrypted_wire();
  for (const auto& [from, to] : {std::pair{&wire.client, &wire.server}, std::pair{&wire.server, &wire.client}}) {
    CHECK(receive_text(*to) == "nothing");
    send_text(*from, "a word of the run");
    CHECK(receive_text(*to) == "a word of the run");
    send_text(*from, "another word");
    const auto caught = text(intercept(*to));
    CHECK(caught.size() > 12);
    CHECK(caught.find("word") == std::string::npos);
  }
}

TEST_CASE("Tls: what is larger than any buffer goes both ways at once, by more than one key, each bit as it was") {
  const Wire wire = encrypted_wire(100'000);
  const int small = 4096;
  for (const Socket* socket : {&wire.client, &wire.server}) {
    ry::detail::set_option(socket->fd(), SOL_SOCKET, SO_SNDBUF, small);
    ry::detail::set_option(socket->fd(), SOL_SOCKET, SO_RCVBUF, small);
  }
  constexpr std::size_t size = std::size_t{8} << 20U;
  struct End {
    const Socket* socket;
    std::vector<std::byte> sends = std::vector<std::byte>(size);
    std::vector<std::byte> gets = std::vector<std::byte>(size);
    std::size_t sent = 0;
    std::size_t got = 0;
  };
  std::array<End, 2> ends{End{.socket = &wire.client}, End{.socket = &wire.server}};
  for (End& end : ends) ry::detail::fill_random(end.sends);
  while (ends[0].got < size || ends[1].got < size) {
    for (End& end : ends) {
      const ssize_t sent = end.socket->send(std::span{end.sends}.subspan(end.sent));
      const int send_error = errno;
      REQUIRE((sent >= 0 || send_error == EAGAIN));
      if (sent > 0) end.sent += static_cast<std::size_t>(sent);
      const ssize_t got = end.socket->receive(std::span{end.gets}.subspan(end.got));
      const int receive_error = errno;
      REQUIRE((got >= 0 || receive_error == EAGAIN));
      if (got > 0) end.got += static_cast<std::size_t>(got);
    }
  }
  CHECK(ends[0].gets == ends[1].sends);
  CHECK(ends[1].gets == ends[0].sends);
}

TEST_CASE("Tls: tells of what has come and poll() does not show") {
  const Wire wire = encrypted_wire();
  CHECK_FALSE(wire.server.has_received());
  send_text(wire.client, "one two three");
  CHECK(receive_text(wire.server, 4) == "one ");
  CHECK_FALSE(ry::detail::wait_for(wire.server.fd(), POLLIN, ry::Deadline::after(0s)));
  CHECK(wire.server.has_received());
  CHECK(receive_text(wire.server) == "two three");
  CHECK_FALSE(wire.server.has_received());
}

TEST_CASE("Tls: another key is no key") {
  Wire wire;
  wire.encrypt(some_key(1), some_key(2));
  wire.shake();
  CHECK(wire.client.shake_hands() == TlsState::failed);
  CHECK(wire.server.shake_hands() == TlsState::failed);
  CHECK(wire.server.shaking_trouble() == "it does not know the secret of this run");
  CHECK(receive_text(wire.server) == "damage");
  CHECK(wire.client.send(bytes("a word")) == -1);
}

TEST_CASE("Tls: nothing is sent or taken before both ends have shown that they have the key") {
  Wire wire;
  wire.encrypt();
  CHECK(wire.client.send(bytes("a word")) == -1);
  CHECK(receive_text(wire.client) == "nothing");
  CHECK(wire.server.shake_hands() == TlsState::shaking);  // a half-open connection: it waits for nothing
  CHECK(wire.server.shaking_events() == POLLIN);
  wire.shake();
  send_text(wire.client, "a word");
  CHECK(receive_text(wire.server) == "a word");
}

TEST_CASE("Tls: plain words and garbage end the handshake, at either end") {
  std::vector<std::byte> noise(70'000);
  ry::detail::fill_random(noise);
  std::vector<std::byte> endless{std::byte{0x16}, std::byte{0x03}, std::byte{0x03}, std::byte{0xff}, std::byte{0xff}};
  endless.resize(70'000);
  for (const ry::detail::ConstBytes words : {bytes("RAILYRD1 and whatever comes then"), bytes("GET / HTTP/1.1\r\n\r\n"),
                                             ry::detail::ConstBytes{noise}, ry::detail::ConstBytes{endless}}) {
    for (const bool is_server : {true, false}) {
      Wire wire;
      const Socket& stranger = is_server ? wire.client : wire.server;
      Socket& honest = is_server ? wire.server : wire.client;
      honest.encrypt(is_server ? TlsRole::server : TlsRole::client, some_key(1));
      (void)honest.shake_hands();
      REQUIRE(send_raw(stranger, words));
      CHECK(honest.shake_hands() == TlsState::failed);
      CHECK(honest.shaking_trouble() != "");
    }
  }
}

TEST_CASE("Tls: who hangs up during the handshake, or in the middle of a record, has not said it") {
  Wire early;
  early.encrypt();
  (void)early.client.shake_hands();
  early.client.close();
  CHECK(early.server.shake_hands() != TlsState::ready);
  CHECK(early.server.shake_hands() == TlsState::failed);

  const Wire wire = encrypted_wire();
  send_text(wire.client, "the first record");
  send_text(wire.client, "the second record");
  const auto records = intercept(wire.server);
  REQUIRE(send_raw(wire.client, std::span{records}.first(records.size() - 3)));
  ::shutdown(wire.client.fd(), SHUT_RDWR);
  CHECK(receive_text(wire.server) == "the first record");
  CHECK(receive_text(wire.server) == "end");
  CHECK(receive_text(wire.server) == "end");
  CHECK(wire.server.send(bytes("an answer")) == -1);  // without a signal
}

TEST_CASE("Tls: what is altered, left out, repeated or put in ends the connection") {
  const auto with = [](const std::function<void(const Wire&, std::vector<std::byte>)>& attack) {
    const Wire wire = encrypted_wire();
    send_text(wire.client, "one");
    const auto record = intercept(wire.server);
    attack(wire, record);
    for (int at = 0; at < 3; ++at) {
      const std::string heard = receive_text(wire.server);
      if (heard == "damage") return true;
      if (heard != "one" || at > 0) return false;
    }
    return false;
  };
  CHECK(with([](const Wire& wire, std::vector<std::byte> record) {
    record[7] ^= std::byte{1};
    send_raw(wire.client, record);
  }));
  CHECK(with([](const Wire& wire, std::vector<std::byte>) { send_text(wire.client, "two"); }));
  CHECK(with([](const Wire& wire, std::vector<std::byte> record) {
    send_raw(wire.client, record);
    send_raw(wire.client, record);
  }));
  CHECK(with([](const Wire& wire, std::vector<std::byte>) { send_raw(wire.client, bytes("plain words")); }));
}

TEST_CASE("Tls: a hello that was recorded does not make a connection") {
  Wire first;
  first.encrypt();
  (void)first.client.shake_hands();
  const auto hello = intercept(first.server);
  REQUIRE(send_raw(first.client, hello));
  first.shake();
  REQUIRE(first.server.shake_hands() == TlsState::ready);
  send_text(first.client, "a word");
  const auto word = intercept(first.server);
  // Even under the same key, which no two connections of a run have.
  for (const bool has_word : {false, true}) {
    Wire again;
    again.server.encrypt(TlsRole::server, some_key(1));
    REQUIRE(send_raw(again.client, hello));
    (void)again.server.shake_hands();
    if (has_word) REQUIRE(send_raw(again.client, word));
    CHECK(again.server.shake_hands() == (has_word ? TlsState::failed : TlsState::shaking));
  }
}

TEST_CASE("Tls: certificates and older versions are nothing to it") {
  for (const int version : {TLS1_3_VERSION, TLS1_2_VERSION}) {
    Wire calls;
    calls.server.encrypt(TlsRole::server, some_key(1));
    const OrdinaryTls client{calls.client, false, version};
    for (int turn = 0; turn < 4; ++turn) {
      CHECK_FALSE(client.shake());
      CHECK(calls.server.shake_hands() != TlsState::ready);
    }
    CHECK(calls.server.shake_hands() == TlsState::failed);

    Wire called;
    called.client.encrypt(TlsRole::client, some_key(1));
    const OrdinaryTls server{called.server, true, version};
    for (int turn = 0; turn < 4; ++turn) {
      CHECK(called.client.shake_hands() != TlsState::ready);
      CHECK_FALSE(server.shake());
    }
    CHECK(called.client.shake_hands() == TlsState::failed);
  }
}

TEST_CASE("Tls: a process that is forked while others shake hands can do it as well") {
  std::atomic<bool> is_over{false};
  std::vector<std::thread> busy;
  for (int at = 0; at < 2; ++at) {
    busy.emplace_back([&] {
      while (!is_over) (void)encrypted_wire();
    });
  }
  for (int turn = 0; turn < 30; ++turn) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      const Wire wire = encrypted_wire();
      send_text(wire.client, "a word");
      ::_exit(receive_text(wire.server) == "a word" ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  is_over = true;
  for (std::thread& one : busy) one.join();
}
