// SPDX-License-Identifier: MIT
// Makes messages out of a pattern and values, at a fraction of what fmt::format costs to compile. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one value of a message, as fmt takes it. Lives as long as what it was made from.
class Piece {
 public:
  using Argument = fmt::basic_format_arg<fmt::format_context>;

  Piece(bool value) noexcept : Piece(std::string_view{value ? "true" : "false"}) {}
  Piece(int value) noexcept : Piece(static_cast<long long>(value)) {}
  Piece(long value) noexcept : Piece(static_cast<long long>(value)) {}
  Piece(long long value) noexcept : argument_(pack(value)) {}
  Piece(unsigned value) noexcept : Piece(static_cast<unsigned long long>(value)) {}
  Piece(unsigned long value) noexcept : Piece(static_cast<unsigned long long>(value)) {}
  Piece(unsigned long long value) noexcept : argument_(pack(value)) {}
  Piece(double value) noexcept : argument_(pack(value)) {}
  Piece(const char* value) noexcept : Piece(std::string_view{value}) {}
  Piece(const std::string& value) noexcept : Piece(std::string_view{value}) {}
  Piece(std::string_view value) noexcept : argument_(pack(value)) {}
  Piece(char value) = delete;         // would be taken for a number
  Piece(float value) = delete;        // would be shown with a double's digits
  Piece(const void* value) = delete;  // would be taken for a bool

  [[nodiscard]] const Argument& argument() const noexcept { return argument_; }

 private:
  template <class T>
  static Argument pack(const T& value) noexcept {
    const auto packed = fmt::make_format_args(value);
    return fmt::format_args{packed}.get(0);
  }

  Argument argument_;
};

inline constexpr std::size_t max_pieces = 12;

/// Is a pattern of fmt with num_pieces fields, which is checked at compile time.
template <std::size_t num_pieces>
requires(num_pieces <= max_pieces) class Pattern {
 public:
  consteval Pattern(const char* text) : text_(text) {
    std::size_t num_fields = 0;
    for (const char* at = text; *at != '\0'; ++at) {
      if (*at != '{' && *at != '}') continue;
      if (at[0] == at[1]) {
        ++at;
        continue;
      }
      if (*at == '}') throw "a } alone: write }}";
      while (*at != '}') {
        if (*at++ == '\0') throw "a { alone: write {{";
      }
      ++num_fields;
    }
    if (num_fields != num_pieces) throw "there must be as many fields as values";
  }
  [[nodiscard]] std::string_view text() const noexcept { return text_; }

 private:
  const char* text_;
};

[[nodiscard]] inline std::string compose_pieces(std::string_view pattern, std::initializer_list<Piece> pieces) {
  Piece::Argument arguments[max_pieces];
  int count = 0;
  for (const Piece& piece : pieces) arguments[count++] = piece.argument();
  return fmt::vformat(pattern, fmt::format_args{arguments, count});
}

/// Does what fmt::format does, for numbers and text. fmt checks and packs anew for each list of types, which took a
/// quarter of the time that railyard.hpp needs to compile; here one function that is no template does all of it.
template <class... Values>
[[nodiscard]] std::string compose(Pattern<sizeof...(Values)> pattern, const Values&... values) {
  return compose_pieces(pattern.text(), {Piece(values)...});
}

/// Returns the values one after the other, with the separator between them.
template <class Value>
[[nodiscard]] std::string joined(const std::vector<Value>& values, std::string_view separator) {
  std::string all;
  for (const Value& value : values) {
    if (&value != &values.front()) all += separator;
    all += compose("{}", value);
  }
  return all;
}

/// Returns the values as joined() by ", " does: of very many only the first, and how many there are besides.
template <class Value>
[[nodiscard]] std::string joined_first(const std::vector<Value>& values, std::size_t most) {
  if (values.size() <= most) return joined(values, ", ");
  const std::vector<Value> first(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(most));
  return compose("{} and {} more", joined(first, ", "), values.size() - most);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
