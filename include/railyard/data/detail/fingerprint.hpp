// SPDX-License-Identifier: MIT
// Tells the samples of a dataset from those it had with other files, numbers or settings, without reading them. Data
// room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Collects what samples depend on; the order counts.
class Fingerprint {
 public:
  void add(std::uint64_t number) noexcept { value_ = mix_bits(value_ ^ mix_bits(number)); }
  void add(double number) noexcept { add(std::bit_cast<std::uint64_t>(number)); }
  void add(bool truth) noexcept { add(std::uint64_t{truth ? 1U : 0U}); }
  void add(char character) noexcept { add(std::uint64_t{static_cast<unsigned char>(character)}); }
  void add(std::span<const std::byte> bytes) noexcept { add(digest_of(bytes)); }
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span{text})); }
  void add(const std::vector<std::string>& texts) noexcept {
    add(std::uint64_t{texts.size()});
    for (const std::string& text : texts) add(std::string_view{text});
  }
  /// The names of files, and of 64 of them at most size and time of change: of a million that takes minutes on some
  /// file systems. Throws: DataError if one is not there.
  void add_files(const std::vector<std::string>& paths) {
    constexpr std::size_t most = 64;
    add(paths);
    const std::size_t looked_at = std::min(paths.size(), most);
    for (std::size_t at = 0; at < looked_at; ++at) {
      const std::string& path = paths[at * paths.size() / looked_at];
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0) throw DataError{compose("{}: {}", path, explain_errno(errno))};
      add(static_cast<std::uint64_t>(status.st_size));
      add(static_cast<std::uint64_t>(status.st_mtim.tv_sec));
      add(static_cast<std::uint64_t>(status.st_mtim.tv_nsec));
    }
  }

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
