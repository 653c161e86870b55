// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/socket.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

using namespace network_test;
using ry::detail::listen_at;
using ry::detail::SocketAddress;
using ry::detail::try_connect;

namespace {

bool has_ipv6() {
  const ry::detail::Descriptor probe{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  return probe.is_open() && ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
}

int port_of(const Socket& socket) { return SocketAddress::of_self(socket.fd()).port(); }

}  // namespace

TEST_CASE("listen_at: takes an address of IPv4 and gives it a port") {
  const Socket listening = listen_at("127.0.0.1", 0);
  CHECK(SocketAddress::of_self(listening.fd()).host() == "127.0.0.1");
  CHECK(port_of(listening) > 0);
  std::string cause;
  const Socket client = try_connect("127.0.0.1", port_of(listening), soon(), cause);
  REQUIRE(client.is_open());
  CHECK(SocketAddress::of_peer(client.fd()).text() == ry::detail::compose("127.0.0.1:{}", port_of(listening)));
  CHECK_THROWS_WITH(listen_at("127.0.0.1", port_of(listening)), ContainsSubstring("Address already in use"));
}

TEST_CASE("listen_at: takes an address of IPv6") {
  if (!has_ipv6()) return;
  const Socket listening = listen_at("::1", 0);
  std::string cause;
  const Socket client = try_connect("::1", port_of(listening), soon(), cause);
  REQUIRE(client.is_open());
  CHECK(SocketAddress::of_peer(client.fd()).text() == ry::detail::compose("[::1]:{}", port_of(listening)));
}

TEST_CASE("listen_at: takes both kinds where no address is asked for, and shows IPv4 as itself") {
  const Socket listening = listen_at("", 0);
  for (const char* host : {"127.0.0.1", "::1"}) {
    if (std::string{host} == "::1" && !has_ipv6()) continue;
    std::string cause;
    const Socket client = try_connect(host, port_of(listening), soon(), cause);
    REQUIRE(client.is_open());
    REQUIRE(ry::detail::wait_for(listening.fd(), POLLIN, soon()));
    const Socket accepted{ry::detail::Descriptor{::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC)}};
    CHECK(SocketAddress::of_peer(accepted.fd()).host() == host);
  }
}

TEST_CASE("listen_at: says what is wrong with a host") {
  CHECK_THROWS_AS(listen_at("no.such.host.invalid", 0), ry::ConfigError);
  CHECK_THROWS_WITH(listen_at("192.0.2.1", 0), ContainsSubstring("192.0.2.1"));
}

TEST_CASE("try_connect: says why nobody answers") {
  std::string cause;
  int port = 0;
  {
    const Socket listening = listen_at("127.0.0.1", 0);
    port = port_of(listening);
  }
  CHECK_FALSE(try_connect("127.0.0.1", port, soon(), cause).is_open());
  CHECK_THAT(cause, ContainsSubstring(ry::detail::compose("127.0.0.1:{}: Connection refused", port)));
  CHECK_FALSE(try_connect("no.such.host.invalid", 1, soon(), cause).is_open());
  CHECK_THAT(cause, ContainsSubstring("its name is not known here"));
}

TEST_CASE("Socket: tells the other end of its end although a child holds it, but not if it is let go of in a child") {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Socket one{ry::detail::Descriptor{ends[0]}};
  const Socket other{ry::detail::Descriptor{ends[1]}};
  workers_test::Forked child{[&](const auto& tell) {
    Socket copy{ry::detail::Descriptor{::dup(ends[0])}};
    copy.forget_in_child();
    tell(1);
    char end = 0;
    return ::recv(ends[0], &end, 1, 0) == 0 ? 0 : 1;  // holds it until the parent has ended it
  }};
  CHECK(child.hear() == 1);
  CHECK_FALSE(ry::detail::wait_for(other.fd(), POLLIN, ry::Deadline::after(0s)));
  one.close();
  CHECK(is_hung_up(other));
  CHECK(child.status() == 0);
}

TEST_CASE("wait_for: ends at the deadline, or as soon as there is something") {
  auto [one, other] = secure_pair();
  CHECK_FALSE(ry::detail::wait_for(one.fd(), POLLIN, ry::Deadline::after(1ms)));
  CHECK(ry::detail::wait_for(one.fd(), POLLOUT, soon()));
  other.close();
  CHECK(ry::detail::wait_for(one.fd(), POLLIN, ry::Deadline::never()));
}
