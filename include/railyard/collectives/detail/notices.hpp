// SPDX-License-Identifier: MIT
// What the ranks of a group tell each other through the store when something goes wrong, so that every one of them can
// name the culprit. Collectives room.
#pragma once

#include "railyard/collectives/detail/rendezvous.hpp"
#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which of its operations a rank is in, as text that is equal on all ranks which belong together.
struct Position {
  std::string key{};  ///< which one: "c17" is the 17th collective, "m0-1-4" the 4th message from rank 0 to rank 1
  std::uint64_t digest = 0;
  std::string operation{};
};

/// Is a rank's last word: how the group ended for it. Left before it closes its connections, so that whoever sees a
/// connection closed and finds no notice knows that the rank has died.
struct Notice {
  enum class Kind : char { late = 'l', broken = 'b', differs = 'd', left = 'e', aborted = 'a' };
  Kind kind = Kind::broken;
  Position position{};
  std::vector<int> culprits{};
  std::string text{};
};

/// Is what a failure comes to: a sentence and the ranks it names.
struct Verdict {
  std::string text{};
  std::vector<int> blamed{};
};

/// Is one rank's access to the notices of its group.
class Notices {
 public:
  Notices(Store& store, std::string prefix, const World& world)
      : store_(&store), prefix_(std::move(prefix)), rank_(world.rank), size_(world.size) {}

  /// Tells the others where this rank has been waiting for a while. Nothing depends on it but the speed of diagnosis.
  void announce(const Position& position) noexcept {
    try {
      store_->set(announcement_key(position.key, rank_), compose("{} {}", position.digest, position.operation));
    } catch (const std::exception&) {  // the store is full: disagreements are then found at the deadline
    }
  }

  /// Returns the rank and the operation of a rank that has announced something else at the same position.
  [[nodiscard]] std::optional<Verdict> find_difference(const Position& position) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const auto announced = peek(*store_, announcement_key(position.key, rank));
      if (!announced) continue;
      const auto space = announced->find(' ');
      if (announced->substr(0, space) == std::to_string(position.digest)) continue;
      return difference(position, rank, announced->substr(space + 1));
    }
    return std::nullopt;
  }

  /// Leaves this rank's last word; only the first one counts.
  void post(const Notice& notice) noexcept {
    try {
      if (!std::exchange(has_posted_, true)) store_->set(notice_key(rank_), encode(notice));
    } catch (const std::exception&) {  // the others will take this rank for dead
    }
  }

  /// Returns how the group ended for a rank, nothing if the rank has not said so.
  [[nodiscard]] std::optional<Notice::Kind> kind_of(int rank) {
    const auto bytes = peek(*store_, notice_key(rank));
    return bytes ? std::optional{decode(*bytes).kind} : std::nullopt;
  }

  /// Finds out why this rank's operation failed. own is what it has posted. Waits for the others' notices where the
  /// answer depends on them, so that a rank which was only in another call is not taken for a dead one.
  [[nodiscard]] Verdict judge(const Notice& own, const std::string& fallback, std::string_view budget,
                              std::chrono::milliseconds patience) {
    if (own.kind == Notice::Kind::differs) return {own.text, own.culprits};
    if (!own.culprits.empty()) return lost(own.culprits);
    const Deadline deadline = Deadline::after(patience);
    std::vector<std::pair<int, Notice>> notices;
    std::vector<int> silent;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      if (const auto bytes = store_->get(notice_key(rank), deadline)) {
        notices.emplace_back(rank, decode(*bytes));
      } else {
        silent.push_back(rank);
      }
    }
    return judge_by(own, notices, silent, fallback, budget);
  }

 private:
  using Heard = std::vector<std::pair<int, Notice>>;

  [[nodiscard]] std::string announcement_key(const std::string& position, int rank) const {
    return compose("{}at/{}/{}", prefix_, position, rank);
  }
  [[nodiscard]] std::string notice_key(int rank) const { return compose("{}end/{}", prefix_, rank); }

  [[nodiscard]] Verdict difference(const Position& own, int rank, std::string_view theirs) const {
    // The lower rank last, on whichever rank this is composed: everybody prints the same sentence.
    const auto [high, low] =
        rank > rank_ ? std::pair{std::pair{rank, theirs}, std::pair{rank_, std::string_view{own.operation}}}
                     : std::pair{std::pair{rank_, std::string_view{own.operation}}, std::pair{rank, theirs}};
    return {disagreement(high.first, high.second, low.first, low.second), {rank}};
  }

  [[nodiscard]] static Verdict lost(const std::vector<int>& ranks) {
    return {compose("the connection to {} was lost: {} died", ranks_text(ranks), ranks.size() == 1 ? "it" : "they"),
            ranks};
  }

  [[nodiscard]] Verdict judge_by(const Notice& own, const Heard& notices, const std::vector<int>& silent,
                                 const std::string& fallback, std::string_view budget) const {
    for (const auto& [rank, notice] : notices) {
      if (notice.position.key == own.position.key && notice.position.digest != own.position.digest) {
        return difference(own.position, rank, notice.position.operation);
      }
    }
    if (const auto told = told_by(notices)) return *told;
    const bool anybody_late = own.kind == Notice::Kind::late ||
                              std::any_of(notices.begin(), notices.end(),
                                          [](const auto& heard) { return heard.second.kind == Notice::Kind::late; });
    if (anybody_late && !silent.empty()) {
      return {compose("{} did not answer in {}", ranks_text(silent), budget), silent};
    }
    std::string text = own.kind == Notice::Kind::late ? compose("it was not done in {}", budget) : fallback;
    for (const auto& [rank, notice] : notices) {
      text += compose("; rank {} was in {}", rank, notice.position.operation);
    }
    return {text, silent};
  }

  // What a notice alone explains, the most certain first.
  [[nodiscard]] static std::optional<Verdict> told_by(const Heard& notices) {
    for (const auto& [rank, notice] : notices) {
      if (notice.kind == Notice::Kind::differs) return Verdict{notice.text, {rank}};
    }
    for (const auto& [rank, notice] : notices) {
      if (!notice.culprits.empty()) return lost(notice.culprits);
    }
    for (const auto& [rank, notice] : notices) {
      if (notice.kind == Notice::Kind::aborted) {
        return Verdict{compose("rank {} gave up: {}", rank, notice.text), {rank}};
      }
      if (notice.kind == Notice::Kind::left) return Verdict{compose("rank {} left the group before", rank), {rank}};
    }
    return std::nullopt;
  }

  [[nodiscard]] static std::string encode(const Notice& notice) {
    return compose("{}\n{}\n{}\n{}\n{}\n{}", std::string(1, static_cast<char>(notice.kind)), notice.position.key,
                   notice.position.digest, notice.position.operation, joined(notice.culprits, " "), notice.text);
  }

  [[nodiscard]] static Notice decode(std::string_view bytes) {
    const auto next = [&bytes](char end) {
      const auto length = std::min(bytes.find(end), bytes.size());
      const std::string_view field = bytes.substr(0, length);
      bytes.remove_prefix(std::min(length + 1, bytes.size()));
      return field;
    };
    const auto number = [](std::string_view text, auto value) {
      std::from_chars(text.data(), text.data() + text.size(), value);
      return value;
    };
    Notice notice;
    notice.kind = static_cast<Notice::Kind>(next('\n').front());
    notice.position.key = next('\n');
    notice.position.digest = number(next('\n'), std::uint64_t{0});
    notice.position.operation = next('\n');
    std::string_view culprits = next('\n');
    notice.text = bytes;
    bytes = culprits;
    while (!bytes.empty()) notice.culprits.push_back(number(next(' '), 0));
    return notice;
  }

  Store* store_;
  std::string prefix_;
  int rank_;
  int size_;
  bool has_posted_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
