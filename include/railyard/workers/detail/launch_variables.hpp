// SPDX-License-Identifier: MIT
// Variables that a launcher has set: reads them, checks them, and remembers what was read, to tell people. Workers
// room.
#pragma once

#include "railyard/workers/detail/node_list.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Looks up a variable; nothing if it is not set, or empty. Tests give a table instead of the process's environment.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

[[nodiscard]] inline Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') return value;
    // A shell's variable, which reaches no program unless it was exported; in a pod it is the pod's name.
    if (name == "HOSTNAME") return host_name();
    return {};
  };
}

/// Reads the variables of one launcher.
class LaunchVariables {
 public:
  /// The environment must outlive this. launcher: who sets them, as messages call it.
  LaunchVariables(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  [[nodiscard]] bool has(const std::string& name) const { return environment_(name).has_value(); }

  /// Returns the value, or an empty text.
  [[nodiscard]] std::string text(const std::string& name) {
    const auto value = environment_(name);
    if (!value) return {};
    read_ += compose("{}{}={}", read_.empty() ? "" : ", ", name, *value);
    return *value;
  }

  /// Throws: ConfigError if it is not set. remedy: what to do then.
  [[nodiscard]] std::string needed(const std::string& name, std::string_view remedy = {}) {
    const std::string value = text(name);
    if (!value.empty()) return value;
    throw ConfigError{compose("{} is not set, although this looks like a process of {}{}{}: {}", name, launcher_,
                              read_.empty() ? "" : " with ", read_,
                              remedy.empty() ? "set it, or unset the others, or set ScalingConfig::launch" : remedy)};
  }

  /// Throws: ConfigError if it is not set, or no number from 0.
  [[nodiscard]] int number(const std::string& name, std::string_view remedy = {}) {
    const std::string value = needed(name, remedy);
    if (const auto number = parse_count(value)) return *number;
    throw ConfigError{compose(R"({} is "{}", which is no number from 0; {} sets it: {})", name, value, launcher_,
                              remedy.empty() ? "see what else does, or set ScalingConfig::launch" : remedy)};
  }
  [[nodiscard]] int number_or(const std::string& name, int otherwise) { return has(name) ? number(name) : otherwise; }

  [[nodiscard]] int port(const std::string& name) {
    const int port = number(name);
    if (port >= 1 && port <= 65'535) return port;
    throw ConfigError{compose("{} is {}, which is no port: process 0 listens on one from 1 to 65535", name, port)};
  }
  [[nodiscard]] int port_or(const std::string& name, int otherwise) { return has(name) ? port(name) : otherwise; }

  /// Returns the launch, in which stands who has told it.
  template <class Launch>
  [[nodiscard]] Launch told(Launch launch) const {
    launch.launcher = launcher_;
    launch.why = compose("{}: {}", launcher_, read_);
    return launch;
  }

 private:
  const Environment& environment_;
  std::string launcher_;
  std::string read_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
