// SPDX-License-Identifier: MIT
// What the ranks tell each other with the first exchange of a step, at no collective of its own. Train room.
#pragma once

#include "railyard/core/version.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a rank may want all ranks to do at the end of a step.
struct Wishes {
  bool stop = false;
  bool snapshot = false;    ///< copy the state into memory that outlives the workers
  bool checkpoint = false;  ///< save it
  bool resize = false;      ///< copy it and leave: another number of workers goes on

  static constexpr std::size_t count = 4;

  /// Returns them as numbers, 1 for each that is there: sums and maxima over ranks say what anyone wants.
  template <class T>
  [[nodiscard]] std::array<T, count> numbers() const noexcept {
    return {static_cast<T>(stop), static_cast<T>(snapshot), static_cast<T>(checkpoint), static_cast<T>(resize)};
  }
  template <class T>
  [[nodiscard]] static Wishes of_anyone(std::span<const T, count> numbers) noexcept {
    return {.stop = numbers[0] > 0, .snapshot = numbers[1] > 0, .checkpoint = numbers[2] > 0, .resize = numbers[3] > 0};
  }
  void add(const Wishes& other) noexcept {
    stop |= other.stop;
    snapshot |= other.snapshot;
    checkpoint |= other.checkpoint;
    resize |= other.resize;
  }
};

/// Keeps what this rank says with the next exchange, and what all have heard with the last one. Only exchanges that all
/// ranks take part in are heard, so every rank decides alike whether it has to ask by a collective.
class ControlLane {
 public:
  /// A loop over training data begins: ranks in different ones would average what does not belong together. data: what
  /// is gone over and how, where that is known, one thing a line; the same on all ranks.
  void begin_loop(std::string data = {}) noexcept {
    ++loop_;
    data_ = std::move(data);
  }
  [[nodiscard]] const std::string& data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t loop() const noexcept { return loop_; }

  /// A batch is given out. is_last: this rank's data ends with it.
  void begin_batch(bool is_last) noexcept {
    has_ended_ = is_last;
    have_all_ended_.reset();
  }
  [[nodiscard]] bool has_ended() const noexcept { return has_ended_; }

  /// Sets what this rank says with the next exchanges, besides that it wants to stop.
  void wish(const Wishes& wishes) noexcept { own_ = wishes; }
  [[nodiscard]] const Wishes& own() const noexcept { return own_; }

  /// All ranks have exchanged, for the first time in a step.
  void hear(const Wishes& anyone, bool have_all_ended) noexcept {
    ++num_heard_;
    anyone_ = anyone;
    has_heard_in_step_ = true;
    have_all_ended_ = have_all_ended;
  }

  /// Whether the data of all ranks has ended; nothing if they have not exchanged since the batch was given out.
  [[nodiscard]] std::optional<bool> have_all_ended() const noexcept { return have_all_ended_; }

  /// Whether any rank wants to stop; nothing unless there has been exactly one exchange since the last call. Of
  /// several, the last may be long ago: whoever asks once per epoch must not learn of a wish an epoch too late.
  [[nodiscard]] std::optional<bool> take_stop() noexcept {
    return std::exchange(num_heard_, 0) == 1 ? std::optional{anyone_.stop} : std::nullopt;
  }

  /// What any rank wanted in the step that ends; nothing if all ranks have exchanged nothing in it.
  [[nodiscard]] std::optional<Wishes> end_step() noexcept {
    return std::exchange(has_heard_in_step_, false) ? std::optional{anyone_} : std::nullopt;
  }

 private:
  std::uint64_t loop_ = 0;
  std::string data_{};
  std::uint64_t num_heard_ = 0;
  bool has_ended_ = false;
  Wishes own_{};
  Wishes anyone_{};
  bool has_heard_in_step_ = false;
  std::optional<bool> have_all_ended_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
