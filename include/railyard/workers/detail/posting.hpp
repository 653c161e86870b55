// SPDX-License-Identifier: MIT
// What the leader of a job lets the other processes know before they are connected. Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"
#include "railyard/workers/detail/node_list.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/hexadecimal.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Says where the leader listens.
struct Posting {
  std::string host{};
  int port = 0;
  std::uint32_t generation = 0;
  std::string secret{};  ///< empty where the bulletin carries none
  friend bool operator==(const Posting&, const Posting&) = default;
};

/// Makes a secret that nobody can guess, as 64 hexadecimal digits.
[[nodiscard]] inline std::string random_secret() {
  Digest bytes;
  fill_random(bytes);
  return hexadecimal(bytes);
}

/// Writes a posting as lines of a name and a value.
[[nodiscard]] inline std::string write_posting(const Posting& posting) {
  const std::string secret = posting.secret.empty() ? "" : compose("secret {}\n", posting.secret);
  return compose("railyard 1\nhost {}\nport {}\ngeneration {}\n{}", posting.host, posting.port, posting.generation,
                 secret);
}

/// Returns the value of a name in such lines; empty if there is none.
[[nodiscard]] inline std::string_view line_of(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ' ') {
      return line.substr(name.size() + 1);
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return {};
}

/// Reads a posting; nothing if it is none.
[[nodiscard]] inline std::optional<Posting> read_posting(std::string_view text) {
  const auto port = parse_count(line_of(text, "port"));
  const auto generation = parse_count(line_of(text, "generation"));
  Posting posting{.host = std::string{line_of(text, "host")}, .secret = std::string{line_of(text, "secret")}};
  if (line_of(text, "railyard") != "1" || posting.host.empty() || !port || *port < 1 || *port > 65'535 || !generation) {
    return {};
  }
  posting.port = *port;
  posting.generation = static_cast<std::uint32_t>(*generation);
  return posting;
}

/// Tells people what a process waits for, not more often than they want to read it.
class WaitTeller {
 public:
  using Say = std::function<void(const std::string&)>;
  static constexpr std::chrono::seconds usual_interval{5};

  /// subject: "process 2 of 4 (node2)", the beginning of each line.
  WaitTeller(std::string subject, Say say, std::chrono::nanoseconds interval = usual_interval)
      : subject_(std::move(subject)), say_(std::move(say)), interval_(interval), next_(Deadline::after(interval)) {}

  [[nodiscard]] const std::string& subject() const noexcept { return subject_; }

  /// Says something at once.
  void say(std::string_view what) const {
    if (say_) say_(compose("{} {}", subject_, what));
  }

  /// Starts to count. Nothing is said before the first interval has passed.
  void start() {
    began_ = Deadline::Clock::now();
    next_ = Deadline::after(interval_);
  }
  /// Says it if the time has come. what: "process 0 to leave its address in /shared/run".
  void look(std::string_view what, const Deadline& deadline) {
    if (!next_.expired()) return;
    next_ = next_.renewed();
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Deadline::Clock::now() - began_);
    if (say_) {
      say_(compose("{} waits for {} ({} s of {})", subject_, what, waited.count(), deadline.budget_text()));
    }
  }

 private:
  std::string subject_;
  Say say_;
  std::chrono::nanoseconds interval_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  Deadline next_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
