// SPDX-License-Identifier: MIT
// Writes JSON objects, flat but for lists of such: all that a run's files need. Train room.
#pragma once

#include "railyard/callbacks/detail/number.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/json_text.hpp"
#include "railyard/core/value.hpp"

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Builds one JSON object.
class JsonObject {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_convertible_v<const T&, std::string_view> JsonObject& add(
      std::string_view name, const T& value) {
    json_ += json_.empty() ? "{" : ", ";
    append_json_text(json_, name);
    json_ += ": ";
    if constexpr (std::is_floating_point_v<T>) {
      json_ += is_finite(value) ? compose("{}", value) : "null";  // JSON has no NaN and no infinity
    } else if constexpr (std::is_arithmetic_v<T>) {
      json_ += compose("{}", value);
    } else {
      append_json_text(json_, value);
    }
    return *this;
  }
  JsonObject& add(std::string_view name, const Value& value) {
    return value.visit([&](const auto& held) -> JsonObject& { return add(name, held); });
  }
  JsonObject& add(std::string_view name, const std::vector<JsonObject>& list) {
    json_ += json_.empty() ? "{" : ", ";
    append_json_text(json_, name);
    json_ += ": [";
    for (const JsonObject& one : list) json_ += (&one == list.data() ? "" : ", ") + one.text();
    json_ += "]";
    return *this;
  }
  JsonObject& add(const NamedValues& values) {
    for (const auto& [name, value] : values) add(name, value);
    return *this;
  }
  [[nodiscard]] std::string text() const { return json_.empty() ? "{}" : json_ + "}"; }

 private:
  std::string json_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
