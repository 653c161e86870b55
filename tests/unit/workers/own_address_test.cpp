// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/own_address.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <sched.h>

using namespace workers_test;
using ry::detail::InterfaceAddress;
using ry::detail::Network;

namespace {

InterfaceAddress address_of(const std::string& interface, const std::string& host) {
  int status = 0;
  const auto found = ry::detail::resolve(host, 1, status);
  REQUIRE(found != nullptr);
  InterfaceAddress one{.interface = interface};
  one.address.size = found->ai_addrlen;
  std::memcpy(&one.address.storage, found->ai_addr, found->ai_addrlen);
  return one;
}

bool contains(const std::string& network, const std::string& host) {
  const auto parsed = Network::parse(network);
  REQUIRE(parsed);
  return parsed->contains(address_of("x", host).bytes());
}

}  // namespace

TEST_CASE("Network: contains what is in it") {
  CHECK(contains("10.0.0.0/8", "10.200.0.1"));
  CHECK_FALSE(contains("10.0.0.0/8", "11.0.0.1"));
  CHECK(contains("192.168.8.0/21", "192.168.15.255"));
  CHECK_FALSE(contains("192.168.8.0/21", "192.168.16.0"));
  CHECK(contains("0.0.0.0/0", "1.2.3.4"));
  CHECK_FALSE(contains("0.0.0.0/0", "::1"));
  CHECK(contains("fd00::/8", "fd12::1"));
  CHECK_FALSE(contains("fd00::/8", "fe80::1"));
  CHECK(contains("10.0.0.7", "10.0.0.7"));
  CHECK_FALSE(contains("10.0.0.7", "10.0.0.6"));
  for (const char* text : {"", "eth0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "10.0.0/8", "fd00::/129"}) {
    CAPTURE(text);
    CHECK_FALSE(Network::parse(text));
  }
}

TEST_CASE(
    "address_in: takes an interface by its name or by a network, and one that can be routed before one that cannot") {
  const std::vector<InterfaceAddress> all{address_of("lo", "127.0.0.1"), address_of("eth0", "fe80::1"),
                                          address_of("eth0", "10.0.0.7"), address_of("ib0", "192.168.0.7"),
                                          address_of("ib1", "fe80::2")};
  CHECK(ry::detail::address_in("eth0", all) == "10.0.0.7");
  CHECK(ry::detail::address_in("192.168.0.0/16", all) == "192.168.0.7");
  CHECK(ry::detail::address_in("ib1", all) == "fe80::2");
  CHECK_THROWS_WITH(ry::detail::address_in("eth1", all),
                    ContainsSubstring("\"eth1\"") && ContainsSubstring("ib0 192.168.0.7"));
  CHECK_THROWS_AS(ry::detail::address_in("172.16.0.0/12", all), ry::ConfigError);
}

TEST_CASE("own_address_towards: stays on the loopback where all processes are on this host") {
  CHECK(ry::detail::own_address_towards("127.0.0.1", "", false) == "127.0.0.1");
  CHECK(ry::detail::own_address_towards("127.0.0.1", "lo", false) == "127.0.0.1");
  CHECK(ry::detail::own_address_towards("127.0.0.1", "127.0.0.0/8", false) == "127.0.0.1");
}

TEST_CASE("own_address_towards: refuses the loopback where it was asked for and hosts differ") {
  for (const char* network : {"lo", "127.0.0.0/8"}) {
    CHECK_THROWS_WITH(
        ry::detail::own_address_towards("127.0.0.1", network, true),
        ContainsSubstring("launch.network") && ContainsSubstring(network) && ContainsSubstring("LOCAL_WORLD_SIZE"));
  }
  CHECK_THROWS_AS(ry::detail::own_address_towards("10.0.0.1", "lo", true), ry::ConfigError);
}

TEST_CASE("check_is_sought_at: refuses a leader that listens where nobody looks for it") {
  const auto all = ry::detail::interface_addresses();
  const auto outward = std::find_if(
      all.begin(), all.end(), [](const InterfaceAddress& one) { return !one.is_loopback && !one.is_link_local(); });
  // Nothing is known of what is not this host's, or only the loopback's, as Debian has it for a host's own name.
  for (const char* sought : {"", "192.0.2.77", "127.0.1.1", "no-such-host.invalid"}) {
    CHECK_NOTHROW(ry::detail::check_is_sought_at(sought, "10.0.0.7"));
  }
  if (outward == all.end()) return;
  const std::string host = outward->address.host();
  CHECK_NOTHROW(ry::detail::check_is_sought_at(host, host));
  CHECK_THROWS_WITH(ry::detail::check_is_sought_at(host, "10.255.0.7"),
                    ContainsSubstring("10.255.0.7") && ContainsSubstring(host) && ContainsSubstring("MASTER_ADDR"));
  CHECK_THROWS_AS(ry::detail::check_is_sought_at(host, "10.255.0.7"), ry::ConfigError);
}

// A network of its own, in which the test is free to make interfaces.
TEST_CASE(
    "own_address_towards: finds the interface that routes to the leader, and never the loopback for other hosts") {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int is_forbidden = 77;
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(is_forbidden);
    const auto run = [](const char* command) {
      if (std::system(command) != 0) ::_exit(is_forbidden);
    };
    run("ip link set lo up 2>/dev/null");
    const auto address = [](const std::string& towards) { return ry::detail::own_address_towards(towards, "", true); };
    try {
      (void)address("127.0.0.1");
      ::_exit(1);
    } catch (const ry::ConfigError&) {  // there is none but the loopback
    }
    run("ip link add one type veth peer name one_end && ip link set one_end up && ip addr add 10.1.0.7/16 dev one && "
        "ip link set one up");
    run("ip addr add fd77::7/64 dev one nodad");
    if (address("127.0.0.1") != "10.1.0.7") ::_exit(2);  // of the only interface
    run("ip link add two type veth peer name two_end && ip link set two_end up && ip addr add 10.2.0.7/16 dev two && "
        "ip link set two up");
    if (address("10.1.0.1") != "10.1.0.7" || address("10.2.0.1") != "10.2.0.7") ::_exit(3);
    try {
      (void)address("");
      ::_exit(4);
    } catch (const ry::ConfigError&) {  // two, and no route decides
    }
    run("ip route add default via 10.2.0.1");
    if (address("") != "10.2.0.7" || address("127.0.0.1") != "10.2.0.7") ::_exit(5);
    if (address("fd77::1") != "fd77::7") ::_exit(6);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) return;  // this system lets nobody make networks
  CHECK(WEXITSTATUS(status) == 0);
}
