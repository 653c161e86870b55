// SPDX-License-Identifier: MIT
#include "railyard/torch/detail/large_copy.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rd = railyard::detail;

namespace {

// Copies so many bytes from and to places that are so far from the begin of a cache line, and looks at what is around.
bool copies(std::size_t size, std::size_t from, std::size_t to) {
  constexpr std::size_t margin = 128;
  constexpr std::byte untouched{0xA5};
  std::vector<std::byte> source(size + 2 * margin);
  std::uint32_t state = 1;
  for (std::byte& one : source) one = static_cast<std::byte>((state = state * 1664525U + 1013904223U) >> 24U);
  std::vector<std::byte> target(size + 2 * margin, untouched);
  const auto line = [](std::vector<std::byte>& bytes) {
    return bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64;
  };
  std::byte* const begin = line(target) + to;
  rd::copy_large(begin, line(source) + from, size);
  const auto is_untouched = [&](std::byte one) { return one == untouched; };
  return std::equal(begin, begin + size, line(source) + from) && std::all_of(target.data(), begin, is_untouched) &&
         std::all_of(begin + size, target.data() + target.size(), is_untouched);
}

}  // namespace

TEST_CASE("copy_large: copies every byte, and none more, whatever the size and the alignment") {
  constexpr std::size_t least = std::size_t{256} << 10U;  // that goes past the caches
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, least - 1, least, least + 1, least + 16'383,
                                 least + 16'384 + 63, std::size_t{3} << 20U}) {
    for (const std::size_t from : {0U, 4U, 60U}) {
      for (const std::size_t to : {0U, 4U, 63U}) {
        CAPTURE(size, from, to);
        CHECK(copies(size, from, to));
      }
    }
  }
}
