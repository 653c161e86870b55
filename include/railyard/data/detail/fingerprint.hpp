// SPDX-License-Identifier: MIT
// Tells the samples of a dataset from those it had with other files, numbers or settings, without reading them. Data
// room.
#pragma once

#include "railyard/data/shuffle.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns a number that is another when the bytes are, but for one case in 2^64. Not safe from those who try.
[[nodiscard]] inline std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept {
  std::array<std::uint64_t, 4> lanes{bytes.size(), 1, 2, 3};  // at once: one would wait for itself at each word
  std::array<std::uint64_t, 4> words{};
  for (; bytes.size() >= sizeof words; bytes = bytes.subspan(sizeof words)) {
    std::memcpy(words.data(), bytes.data(), sizeof words);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix_bits(lanes[lane] ^ words[lane]);
  }
  if (!bytes.empty()) {
    words = {};
    std::memcpy(words.data(), bytes.data(), bytes.size());
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix_bits(lanes[lane] ^ words[lane]);
  }
  std::uint64_t hash = 0;
  for (const std::uint64_t lane : lanes) hash = mix_bits(hash ^ lane);
  return hash;
}

/// Collects what samples depend on; the order counts.
class Fingerprint {
 public:
  void add(std::uint64_t number) noexcept { value_ = mix_bits(value_ ^ mix_bits(number)); }
  void add(double number) noexcept { add(std::bit_cast<std::uint64_t>(number)); }
  void add(bool truth) noexcept { add(std::uint64_t{truth ? 1U : 0U}); }
  void add(char character) noexcept { add(std::uint64_t{static_cast<unsigned char>(character)}); }
  void add(std::span<const std::byte> bytes) noexcept { add(hash_bytes(bytes)); }
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span{text})); }
  void add(const std::vector<std::string>& texts) noexcept {
    add(std::uint64_t{texts.size()});
    for (const std::string& text : texts) add(std::string_view{text});
  }
  /// Its name, size and time of change. A file that is not there has neither of these two.
  void add_file(const std::string& path) noexcept {
    struct stat status {};
    const bool is_there = ::stat(path.c_str(), &status) == 0;
    add(std::string_view{path});
    add(is_there ? static_cast<std::uint64_t>(status.st_size) : 0);
    add(is_there ? static_cast<std::uint64_t>(status.st_mtim.tv_sec) : 0);
    add(is_there ? static_cast<std::uint64_t>(status.st_mtim.tv_nsec) : 0);
  }

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
