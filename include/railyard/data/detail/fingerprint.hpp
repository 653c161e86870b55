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
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Stands for any value where nothing is computed.
struct AnyValue {
  template <class T>
  operator T() const;
};

/// How many fields an aggregate has. Values: AnyValue for each that it is known to have.
template <class T, class... Values>
[[nodiscard]] consteval std::size_t count_fields() {
  if constexpr (requires { T{Values{}..., AnyValue{}}; }) {
    return count_fields<T, Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}

/// Collects what samples depend on; the order counts.
class Fingerprint {
 public:
  void add(std::uint64_t number) noexcept { value_ = mix_bits(value_ ^ mix_bits(number)); }
  void add(double number) noexcept { add(std::bit_cast<std::uint64_t>(number)); }
  template <class T>
  requires(std::integral<T> || std::is_enum_v<T>) void add(T value) noexcept { add(static_cast<std::uint64_t>(value)); }
  void add(std::span<const std::byte> bytes) noexcept { add(digest_of(bytes)); }
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span{text})); }
  template <class T>
  void add(const std::vector<T>& values) noexcept {
    add(std::uint64_t{values.size()});
    for (const T& value : values) add(value);
  }
  template <class... T>
  void add_all(const T&... values) noexcept {
    (add(values), ...);
  }
  /// All fields of options, also of those that get more fields one day.
  template <class Options>
  void add_options(const Options& options) noexcept {
    constexpr std::size_t count = std::is_aggregate_v<Options> ? count_fields<Options>() : 0;
    static_assert(count > 0 && count <= 8,
                  "the options of a preprocessor are told from others by their fields: make them an aggregate of 1 to "
                  "8 numbers, enumerators, texts, and vectors of these");
    add_fields(options, std::integral_constant<std::size_t, count>{});
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
  void add_fields(const auto& options, std::integral_constant<std::size_t, 1> /*count*/) noexcept {
    const auto& [a] = options;
    add_all(a);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 2> /*count*/) noexcept {
    const auto& [a, b] = options;
    add_all(a, b);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 3> /*count*/) noexcept {
    const auto& [a, b, c] = options;
    add_all(a, b, c);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 4> /*count*/) noexcept {
    const auto& [a, b, c, d] = options;
    add_all(a, b, c, d);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 5> /*count*/) noexcept {
    const auto& [a, b, c, d, e] = options;
    add_all(a, b, c, d, e);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 6> /*count*/) noexcept {
    const auto& [a, b, c, d, e, f] = options;
    add_all(a, b, c, d, e, f);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 7> /*count*/) noexcept {
    const auto& [a, b, c, d, e, f, g] = options;
    add_all(a, b, c, d, e, f, g);
  }
  void add_fields(const auto& options, std::integral_constant<std::size_t, 8> /*count*/) noexcept {
    const auto& [a, b, c, d, e, f, g, h] = options;
    add_all(a, b, c, d, e, f, g, h);
  }

  std::uint64_t value_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
