// SPDX-License-Identifier: MIT
// The secret that the processes of a run know each other by, and whether they encrypt. Workers room.
#pragma once

#include "railyard/workers/detail/launch_variables.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/launch_config.hpp"

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

// Below this, all possibilities can be tried.
inline constexpr std::size_t least_secret_bytes = 16;

[[nodiscard]] inline std::string checked_secret(std::string secret, std::string_view from) {
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() >= least_secret_bytes) return secret;
  throw ConfigError{
      compose("the secret of the run from {} has {} bytes, and needs at least {}: make one with "
              "`openssl rand -hex 32`",
              from, secret.size(), least_secret_bytes)};
}

/// Reads it from a file that nobody else may read. Throws: ConfigError.
[[nodiscard]] inline std::string read_secret(const std::string& path, std::string_view field) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    throw ConfigError{compose("{} is {}, which cannot be read: {}", field, path, explain_errno(errno))};
  }
  if (!S_ISREG(status.st_mode) || (status.st_mode & 077U) != 0) {
    throw ConfigError{
        compose("{} is {}, which others than its owner may read or write (mode {:o}): chmod 600 it, and "
                "make another secret",
                field, path, status.st_mode & 07777U)};
  }
  std::string secret(4096, '\0');
  const ssize_t got = ::read(file.get(), secret.data(), secret.size());
  secret.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return checked_secret(std::move(secret), path);
}

/// Returns the secret that this process was given; nothing if none was.
/// Throws: ConfigError if it is too short, or not kept as a secret.
[[nodiscard]] inline std::optional<std::string> find_secret(const LaunchConfig& config,
                                                            const Environment& environment = process_environment()) {
  if (!config.secret_file.empty()) {
    return read_secret(config.secret_file.string(), "ScalingConfig::launch.secret_file");
  }
  if (const auto file = environment("RAILYARD_SECRET_FILE")) return read_secret(*file, "RAILYARD_SECRET_FILE");
  if (const auto secret = environment("RAILYARD_SECRET")) return checked_secret(*secret, "RAILYARD_SECRET");
  return std::nullopt;
}

/// Says whether all goes by TLS. Throws: ConfigError if RAILYARD_TLS is neither 1 nor 0.
[[nodiscard]] inline bool wants_tls(const LaunchConfig& config,
                                    const Environment& environment = process_environment()) {
  if (config.tls) return *config.tls;
  const std::string value = environment("RAILYARD_TLS").value_or("0");
  if (value == "1" || value == "0") return value == "1";
  throw ConfigError{compose(R"(RAILYARD_TLS is "{}": set it to 1 for TLS between processes, or to 0)", value)};
}

[[noreturn]] inline void refuse_without_secret(std::string_view where) {
  throw ConfigError{compose(
      "processes of several hosts prove to each other that they belong to one run, and there is no secret for it ({} "
      "carries none): set RAILYARD_SECRET_FILE to a file of mode 600 that holds one, or RAILYARD_SECRET, or "
      "ScalingConfig::launch.rendezvous to a folder that all processes see",
      where)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
