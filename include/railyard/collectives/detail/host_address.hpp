// SPDX-License-Identifier: MIT
// From a host's name to an address that this host can listen on. Collectives room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

struct HostAddress {
  std::string text{};  ///< numeric
  int family = AF_UNSPEC;
};

/// Resolves a name or address and checks that a socket can be bound to it. field is the option that errors name.
/// Throws: ConfigError.
[[nodiscard]] inline HostAddress own_address(const std::string& host, std::string_view field) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = host.empty() ? EAI_NONAME : ::getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  if (status != 0) {
    throw ConfigError{compose(R"({} is "{}", which is not known on this host ({}); give a name or an address that )"
                              "this host has and the others can reach, such as 127.0.0.1 for workers of one host",
                              field, host, ::gai_strerror(status))};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner{found, ::freeaddrinfo};
  int error = EADDRNOTAVAIL;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int descriptor = ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    const bool is_own = ::bind(descriptor, entry->ai_addr, entry->ai_addrlen) == 0;
    if (!is_own) error = errno;
    ::close(descriptor);
    char text[NI_MAXHOST] = {};
    if (is_own &&
        ::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      return {text, entry->ai_family};
    }
  }
  throw ConfigError{compose(R"({} is "{}", which is not an address of this host ({}); every rank gives its own)", field,
                            host, std::strerror(error))};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
