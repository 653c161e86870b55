// SPDX-License-Identifier: MIT
// Who has come to the process that waits for all others, and which of two that say they are the same one is meant.
// Workers room.
#pragma once

#include "railyard/workers/detail/agent_wire.hpp"
#include "railyard/workers/detail/launched_members.hpp"
#include "railyard/workers/detail/listener.hpp"
#include "railyard/workers/detail/secure_connection.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Writes what Order::refuse carries. There hear() throws it: a ConfigError, if a setting is to blame, or an Error.
[[nodiscard]] inline std::vector<std::byte> refusal_of(bool is_setting, std::string_view why) {
  WireWriter writer;
  writer.put(static_cast<std::uint8_t>(is_setting));
  writer.put_text(why);
  return writer.bytes();
}

/// Gives places to those who come. One that goes again leaves its place to whoever is made in its stead; where two hold
/// to be the same, the earlier one may be about to be found gone, and the later one waits for that.
class Arrivals {
 public:
  /// Two that want one place, and are both alive.
  struct Conflict {
    int place = 0;
    std::size_t num_places = 0;
    std::string first{};
    std::string second{};

    [[nodiscard]] std::string text() const {
      return compose(
          "two processes of this job say that they are number {} of {}, and both are there: {} and {}; each needs a "
          "number of its own, and the same one as its launcher says",
          place, num_places, first, second);
    }
  };
  using Say = std::function<void(const std::string&)>;

  /// So long a process may be neither heard nor found gone: by then the system has found out that its host is lost.
  static constexpr std::chrono::seconds usual_patience{20};

  /// Of the places, the first one is this process's own. say: is told who goes.
  explicit Arrivals(std::size_t num_places = 0, Say say = {}, std::chrono::nanoseconds patience = usual_patience)
      : say_(std::move(say)), patience_(patience), agents_(num_places), has_gone_(num_places) {}

  /// place: 0 for one that is only to be among take_all(). last_arrival: how often such a process has come, as far as
  /// anybody counts. Throws: DataError if what it says of itself makes no sense.
  void add(int place, AgentConnection agent, std::uint32_t last_arrival = 0) {
    const std::uint32_t own = Newcomer::decode(agent.hello.payload).arrival;
    auto& there = agents_[index(place)];
    const std::uint32_t held = there ? Newcomer::decode(there->hello.payload).arrival : 0;
    if (own < std::max(last_arrival, held)) return send_away(std::move(agent));
    if (there && own > held) send_away(std::move(*std::exchange(there, std::nullopt)));
    if (!there || is_over(*there)) {
      there = std::move(agent);
    } else {
      contenders_.push_back({.place = place, .agent = std::move(agent), .num_unread = there->connection.num_unread()});
    }
  }

  /// Lets go of those that have gone, and gives their places to those who want them. Returns two of whom neither goes.
  [[nodiscard]] std::optional<Conflict> settle() {
    for (std::size_t place = 1; place < agents_.size(); ++place) {
      auto& agent = agents_[place];
      if (!agent || !is_over(*agent)) continue;
      has_gone_[place] = true;
      if (say_) say_(compose("{} has gone again, before all have come", agent->connection.peer()));
      agent.reset();
    }
    for (auto one = contenders_.begin(); one != contenders_.end();) {
      auto& there = agents_[index(one->place)];
      const bool is_settled = !there || one->agent.connection.is_gone();
      if (!is_settled) {
        if (is_alive(*one, *there)) {
          return Conflict{one->place, agents_.size(), there->connection.peer(), one->agent.connection.peer()};
        }
        ++one;
        continue;
      }
      if (!there) there = std::move(one->agent);
      one = contenders_.erase(one);
    }
    return std::nullopt;
  }
  /// Settles a conflict for the one that has come first. The other one is told nothing but that it is over.
  void drop_contenders(int place) {
    contenders_.erase(std::remove_if(contenders_.begin(), contenders_.end(),
                                     [place](const Contender& one) { return one.place == place; }),
                      contenders_.end());
  }

  [[nodiscard]] bool has(std::size_t place) const noexcept { return agents_[place].has_value(); }
  [[nodiscard]] std::size_t num_places() const noexcept { return agents_.size(); }
  [[nodiscard]] const AgentConnection& at(std::size_t place) const { return *agents_[place]; }
  [[nodiscard]] bool is_contested() const noexcept { return !contenders_.empty(); }
  /// All but this process.
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> places;
    for (std::size_t place = 1; place < agents_.size(); ++place) {
      if (!agents_[place]) places.push_back(static_cast<int>(place));
    }
    return places;
  }
  /// "process 2 (which has come and gone again), 3"
  [[nodiscard]] std::string missing_text() const {
    const std::vector<int> places = missing();
    std::vector<std::string> texts;
    for (const int place : places) {
      texts.push_back(compose("{}{}", place, has_gone_[index(place)] ? " (which has come and gone again)" : ""));
    }
    return compose("{} {}", places.size() == 1 ? "process" : "processes", joined_first(texts, 8));
  }
  [[nodiscard]] bool is_complete() const { return !is_contested() && missing().empty(); }
  /// Throws: ConfigError if one that has come does not fit.
  void check_fit() const {
    for (const auto& agent : agents_) {
      if (agent && !agent->misfit.empty()) throw ConfigError{agent->misfit};
    }
  }

  /// Hands out the connection of one that has come.
  [[nodiscard]] SecureConnection take(std::size_t place) {
    SecureConnection connection = std::move(agents_[place]->connection);
    agents_[place].reset();
    return connection;
  }
  void drop(std::size_t place) noexcept { agents_[place].reset(); }
  /// Calls function(place, connection) for each that has come.
  template <class Function>
  void each(const Function& function) {
    for (std::size_t place = 1; place < agents_.size(); ++place) {
      if (agents_[place]) function(place, agents_[place]->connection);
    }
  }
  /// Hands out all connections, also of those who want a place that is taken.
  [[nodiscard]] std::vector<SecureConnection> take_all() {
    std::vector<SecureConnection> all;
    for (auto& agent : agents_) {
      if (agent) all.push_back(std::move(std::exchange(agent, std::nullopt)->connection));
    }
    for (Contender& one : contenders_) all.push_back(std::move(one.agent.connection));
    contenders_.clear();
    return all;
  }

 private:
  struct Contender {
    int place = 0;
    AgentConnection agent;
    std::size_t num_unread = 0;  // of the one that has the place
    int num_signs = 0;           // of life that it has given since
    Deadline::Clock::time_point since = Deadline::Clock::now();
  };

  static std::size_t index(int place) noexcept { return static_cast<std::size_t>(place); }

  // One that does not fit has been told so, and leaves; that it came has to be known.
  [[nodiscard]] static bool is_over(const AgentConnection& agent) noexcept {
    return agent.misfit.empty() && agent.connection.is_gone();
  }
  // Those who wait to be led give signs of life. The first of them may have been sent by one that has gone since.
  [[nodiscard]] bool is_alive(Contender& one, const AgentConnection& there) const noexcept {
    constexpr int enough_signs = 3;
    const std::size_t num_unread = there.connection.num_unread();
    if (num_unread > std::exchange(one.num_unread, num_unread)) ++one.num_signs;
    return !there.misfit.empty() || one.num_signs >= enough_signs || Deadline::Clock::now() - one.since > patience_;
  }

  void send_away(AgentConnection agent) {
    constexpr std::size_t most_kept = 64;
    const std::string why = compose(
        "{} is of an earlier attempt of the job, and the run is now at a later one: what was started earlier "
        "has to end",
        agent.connection.peer());
    if (say_) say_(why);
    try {
      agent.connection.post(static_cast<std::uint8_t>(Order::refuse), {refusal_of(false, why)});
      agent.connection.flush();
    } catch (const ConnectionError&) {
      return;  // it has gone
    }
    sent_away_.push_back(std::move(agent.connection));  // it hangs up itself, once it has heard why
    if (sent_away_.size() > most_kept) sent_away_.pop_front();
  }

  Say say_;
  std::chrono::nanoseconds patience_;
  std::vector<std::optional<AgentConnection>> agents_;
  std::vector<bool> has_gone_;
  std::deque<Contender> contenders_{};
  std::deque<SecureConnection> sent_away_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
