// SPDX-License-Identifier: MIT
// By which of its addresses other hosts reach this one. Workers room.
#pragma once

#include "railyard/workers/detail/node_list.hpp"
#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one address of one interface of this host.
struct InterfaceAddress {
  std::string interface {};
  SocketAddress address{};
  bool is_loopback = false;

  /// The bytes of the address: 4 or 16.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    if (address.storage.ss_family == AF_INET) {
      return std::as_bytes(std::span{&reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr, 1});
    }
    return std::as_bytes(std::span{&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr, 1});
  }
  /// Is it one that means nothing without the name of an interface?
  [[nodiscard]] bool is_link_local() const noexcept {
    return address.storage.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
  }
};

/// Returns the addresses of all interfaces that are up, in the order of the system.
[[nodiscard]] inline std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw_system("asking for the addresses of this host", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner{first, ::freeifaddrs};
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || (entry->ifa_flags & IFF_UP) == 0) continue;
    InterfaceAddress one{.interface = entry->ifa_name, .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0};
    one.address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&one.address.storage, entry->ifa_addr, one.address.size);
    all.push_back(one);
  }
  return all;
}

/// Is a network, such as 10.0.0.0/8 or fd00::/8, or a single address.
class Network {
 public:
  /// Nothing if the text is not the address of a network.
  [[nodiscard]] static std::optional<Network> parse(const std::string& text) {
    Network network;
    const std::size_t slash = text.find('/');
    const std::string address = text.substr(0, slash);
    for (const int family : {AF_INET, AF_INET6}) {
      if (::inet_pton(family, address.c_str(), network.bytes_) != 1) continue;
      network.num_bytes_ = family == AF_INET ? 4 : 16;
      const int most = static_cast<int>(8 * network.num_bytes_);
      const int bits = slash == std::string::npos ? most : parse_count(text.substr(slash + 1)).value_or(most + 1);
      if (bits > most) return {};
      network.num_bits_ = static_cast<std::size_t>(bits);
      return network;
    }
    return {};
  }

  [[nodiscard]] bool contains(std::span<const std::byte> address) const noexcept {
    if (address.size() != num_bytes_) return false;
    const std::size_t whole = num_bits_ / 8;
    if (std::memcmp(address.data(), bytes_, whole) != 0) return false;
    const auto mask = static_cast<std::byte>(0xFF00U >> (num_bits_ % 8));
    return num_bits_ % 8 == 0 || (address[whole] & mask) == (bytes_[whole] & mask);
  }

 private:
  std::byte bytes_[16] = {};
  std::size_t num_bytes_ = 0;
  std::size_t num_bits_ = 0;
};

/// Lists addresses as errors do: "eth0 10.0.0.7, lo 127.0.0.1".
[[nodiscard]] inline std::string list_addresses(const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> lines;
  for (const auto& one : addresses) lines.push_back(compose("{} {}", one.interface, one.address.host()));
  return lines.empty() ? "none" : joined(lines, ", ");
}

/// Returns the address from which packets to a host would be sent, without sending any; nothing if there is no way
/// there.
[[nodiscard]] inline std::optional<SocketAddress> address_towards(const std::string& host) {
  constexpr int discard_port = 9;
  int status = 0;
  const AddressList addresses = resolve(host, discard_port, status);
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    const Descriptor socket{::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    if (!socket.is_open() || ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    return SocketAddress::of_self(socket.get());
  }
  return {};
}

/// host: an address in numbers.
[[nodiscard]] inline bool is_loopback(std::string_view host) noexcept {
  return host == "::1" || host.starts_with("127.");
}

// The address that was asked for by the name of an interface or as a network.
[[nodiscard]] inline std::string address_in(const std::string& network, const std::vector<InterfaceAddress>& all) {
  const auto range = Network::parse(network);
  const InterfaceAddress* found = nullptr;
  for (const auto& one : all) {
    if (range ? !range->contains(one.bytes()) : one.interface != network) continue;
    if (found == nullptr || (found->is_link_local() && !one.is_link_local())) found = &one;
  }
  if (found != nullptr) return found->address.host();
  throw ConfigError{compose(
      R"(ScalingConfig::launch.network is "{}", and no address of {} is of that interface or network (it has: {}); )"
      R"(write the name of an interface such as "eth0", or a network such as "10.0.0.0/8")",
      network, host_name(), list_addresses(all))};
}

[[noreturn]] inline void refuse_loopback(const std::string& network, const std::string& address,
                                         const std::vector<InterfaceAddress>& all) {
  throw ConfigError{compose(
      R"(ScalingConfig::launch.network is "{}", which is {} on {}: no other host reaches that; write another one of )"
      R"(its interfaces or networks (it has: {}), or if all processes are on this host, say so: set LOCAL_WORLD_SIZE )"
      R"(to as many as WORLD_SIZE, or ScalingConfig::launch.leader to an address such as "127.0.0.1:29500")",
      network, address, host_name(), list_addresses(all))};
}

/// Throws: ConfigError if the leader is to listen at one address of this host alone, and the others look for it at
/// another one. sought: a name or address; where it is none of this host's, as it may be called otherwise elsewhere, or
/// empty, nothing is known.
inline void check_is_sought_at(const std::string& sought, const std::string& address) {
  if (sought.empty()) return;
  constexpr int discard_port = 9;
  int status = 0;
  const auto all = interface_addresses();
  std::string other;
  const AddressList found = resolve(sought, discard_port, status);
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    SocketAddress one{.size = entry->ai_addrlen};
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    const std::string host = one.host();
    if (host == address) return;
    const auto is_that = [&](const InterfaceAddress& own) { return !own.is_loopback && own.address.host() == host; };
    if (std::any_of(all.begin(), all.end(), is_that)) other = host;
  }
  if (other.empty()) return;
  throw ConfigError{compose(
      "by ScalingConfig::launch.network process 0 listens at {} alone, and the others look for it at {} ({}): let "
      "MASTER_ADDR, or ScalingConfig::launch.leader, name the first, or leave network empty",
      address, sought, other)};
}

// The one address by which other hosts may reach this one, where nobody has said towards whom.
[[nodiscard]] inline std::string only_address(const std::vector<InterfaceAddress>& all) {
  // Reserved for documentation, so nobody has them: what is asked for is the interface of the default route.
  for (const char* const nowhere : {"192.0.2.1", "2001:db8::1"}) {
    const auto address = address_towards(nowhere);
    if (address && !is_loopback(address->host())) return address->host();
  }
  std::vector<InterfaceAddress> outward;
  for (const auto& one : all) {
    if (!one.is_loopback && !one.is_link_local()) outward.push_back(one);
  }
  const auto is_of_first = [&](const InterfaceAddress& one) { return one.interface == outward.front().interface; };
  if (!outward.empty() && std::all_of(outward.begin(), outward.end(), is_of_first)) {
    return outward.front().address.host();
  }
  throw ConfigError{compose(
      "it is not clear by which address other hosts reach {}: it has no default route, and these addresses: {}; set "
      R"(ScalingConfig::launch.network to the name of an interface such as "eth0", or to a network such as "10.0.0.0/8")",
      host_name(), list_addresses(all))};
}

/// Returns the address, in numbers, by which the other processes reach this host: the one that packets to the leader
/// are sent from, unless network names another. leader_host: empty where it is not known, as by the leader itself.
/// hosts_differ: not all processes are on this host, so that an address of the loopback would be of no use to them.
/// Throws: ConfigError if there is none, or none is the obvious one.
[[nodiscard]] inline std::string own_address_towards(const std::string& leader_host, const std::string& network,
                                                     bool hosts_differ) {
  const auto all = interface_addresses();
  if (!network.empty()) {
    const std::string address = address_in(network, all);
    if (hosts_differ && is_loopback(address)) refuse_loopback(network, address, all);
    return address;
  }
  if (!hosts_differ) {
    for (const auto& one : all) {
      if (one.is_loopback) return one.address.host();
    }
  }
  const auto towards = leader_host.empty() ? std::nullopt : address_towards(leader_host);
  if (towards && !is_loopback(towards->host())) return towards->host();
  // A host often knows its own name as an address of the loopback (Debian writes 127.0.1.1 into /etc/hosts).
  return only_address(all);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
