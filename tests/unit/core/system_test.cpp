// SPDX-License-Identifier: MIT
#include "railyard/core/detail/system.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace ry = railyard;

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
