// SPDX-License-Identifier: MIT
#include "railyard/core/detail/system.hpp"

#include "support/catch.hpp"

#include <cerrno>

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
