// SPDX-License-Identifier: MIT
#include "railyard/core/detail/system.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <sys/resource.h>

namespace ry = railyard;
using Catch::ContainsSubstring;

TEST_CASE("System: EAGAIN speaks of memory for a thread's stack only where the memory of the process has a limit") {
  rlimit former{};
  REQUIRE(::getrlimit(RLIMIT_AS, &former) == 0);
  rlimit limit = former;
  limit.rlim_cur = rlim_t{1} << 50U;  // more than there are addresses
  if (limit.rlim_cur > former.rlim_max) limit.rlim_cur = former.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  const std::string limited = ry::detail::explain_errno(EAGAIN);
  limit.rlim_cur = former.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  const std::string free = ry::detail::explain_errno(EAGAIN);
  REQUIRE(::setrlimit(RLIMIT_AS, &former) == 0);
  CHECK_THAT(limited, ContainsSubstring("ulimit -u") && ContainsSubstring("stack") && ContainsSubstring("ulimit -v"));
  CHECK_THAT(free, ContainsSubstring("ulimit -u"));
  CHECK((free.find("ulimit -v") == std::string::npos) == (former.rlim_max == RLIM_INFINITY));
}

TEST_CASE("System: the name of the running kernel is one word, and the same each time") {
  const std::string id = ry::detail::boot_id();
  CHECK(id.size() == 36);
  CHECK(id.find_first_not_of("0123456789abcdef-") == std::string::npos);
  CHECK(ry::detail::boot_id() == id);
}

TEST_CASE("fill_random: fills all of it, differently each time") {
  std::vector<std::byte> one(4096);
  std::vector<std::byte> other(4096);
  ry::detail::fill_random(one);
  ry::detail::fill_random(other);
  CHECK(one != other);
  for (std::size_t at = 0; at < one.size(); at += 64) {
    const auto part = std::span{one}.subspan(at, 64);
    CHECK(std::any_of(part.begin(), part.end(), [](std::byte byte) { return byte != std::byte{0}; }));
  }
}

TEST_CASE("system_text: is all that a file says, however long, and nothing where there is none") {
  const std::string all = ry::detail::system_text("/proc/self/maps");
  CHECK(all.size() > 4096);
  CHECK(all.find("[stack]") != std::string::npos);
  CHECK(ry::detail::system_text("/proc/self/no-such-file").empty());
  CHECK(ry::detail::system_text("/proc").empty());
}
