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
#include <typeinfo>
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

/// Tells users' functions apart by their types: each lambda has one of its own.
[[nodiscard]] inline std::uint64_t fingerprint_of(const std::type_info& type) noexcept {
  Fingerprint fingerprint;
  fingerprint.add(std::string_view{type.name()});
  return fingerprint.value();
}

template <class T>
concept Identifiable = requires(Fingerprint& to, const T& value) {
  to.add(value);
};

template <class... T>
void identify_all(Fingerprint& to, const T&... values) noexcept {
  static_assert((Identifiable<T> && ...),
                "the options of a preprocessor are told from others by their fields, which are to be numbers, "
                "enumerators, texts, and vectors of these");
  (to.add(values), ...);
}

/// Adds all fields of options, also of those that get more fields one day.
template <class Options>
void identify_options(const Options& options, Fingerprint& to) noexcept {
  constexpr std::size_t count = std::is_aggregate_v<Options> ? count_fields<Options>() : 0;
  static_assert(count > 0 && count <= 8,
                "the options of a preprocessor are told from others by their fields: make them an aggregate of 1 to 8 "
                "of them");
  if constexpr (count == 1) {
    const auto& [a] = options;
    identify_all(to, a);
  } else if constexpr (count == 2) {
    const auto& [a, b] = options;
    identify_all(to, a, b);
  } else if constexpr (count == 3) {
    const auto& [a, b, c] = options;
    identify_all(to, a, b, c);
  } else if constexpr (count == 4) {
    const auto& [a, b, c, d] = options;
    identify_all(to, a, b, c, d);
  } else if constexpr (count == 5) {
    const auto& [a, b, c, d, e] = options;
    identify_all(to, a, b, c, d, e);
  } else if constexpr (count == 6) {
    const auto& [a, b, c, d, e, f] = options;
    identify_all(to, a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    const auto& [a, b, c, d, e, f, g] = options;
    identify_all(to, a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    const auto& [a, b, c, d, e, f, g, h] = options;
    identify_all(to, a, b, c, d, e, f, g, h);
  }
}

/// Returns a fingerprint of options alone.
template <class Options>
[[nodiscard]] Fingerprint fingerprint_of_options(const Options& options) noexcept {
  Fingerprint fingerprint;
  identify_options(options, fingerprint);
  return fingerprint;
}
/// Returns one of options and of the columns, by their names, that something was learned from.
template <class Options, class Columns>
[[nodiscard]] Fingerprint fingerprint_of_learned(const Options& options, const Columns& columns) noexcept {
  Fingerprint fingerprint = fingerprint_of_options(options);
  for (const auto& column : columns) fingerprint.add(std::string_view{column.name});
  return fingerprint;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
