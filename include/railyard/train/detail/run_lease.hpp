// SPDX-License-Identifier: MIT
// Sees to it that one program at a time writes to a run's directory. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/heartbeat.hpp"
#include "railyard/train/detail/held_lease.hpp"
#include "railyard/train/detail/lease_file.hpp"
#include "railyard/train/detail/leavable_thread.hpp"

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds lease.json of a run. Its lock belongs to the open file, which the workers inherit: it is free when the last of
/// them has gone, however they end. Between hosts locks may not reach, or stay behind when a host dies. So a holder
/// touches the file again and again, and who comes from another host looks whether that goes on; the time that the file
/// has got by it is only compared with itself, for clocks differ. Its generation grows with each holder, and is claimed
/// before it is written, so that no two have the same: one that was replaced all the same, because it was suspended,
/// finds another than its own, and commits nothing any more.
class RunLease {
 public:
  /// is_new: this process has just made the run's directory. Throws: ConfigError that names the holder if there is one,
  /// or if the file cannot be read or written.
  explicit RunLease(const std::filesystem::path& run, const LeaseTimes& times = {},
                    std::shared_ptr<Files> files = std::make_shared<Files>(), bool is_new = false)
      : times_(times), held_(std::make_shared<HeldLease>(run, times, std::move(files), is_new)) {}
  /// Takes the run over from a holder that has died, is silent, or has left it to others: for those who have had a part
  /// in its run, and are told so by LeaseHolderWatch. Of several, one has it. is_silent: its workers may still be
  /// there. last_claim: what ClaimWatch says. Throws: ConfigError that names the holder if another was faster, or if
  /// the file cannot be read or written.
  RunLease(const std::filesystem::path& run, const LeaseContent& from, bool is_silent, std::uint64_t last_claim,
           const LeaseTimes& times = {}, std::shared_ptr<Files> files = std::make_shared<Files>())
      : times_(times), held_(std::make_shared<HeldLease>(run, from, is_silent, last_claim, times, std::move(files))) {}
  RunLease(RunLease&&) = default;
  RunLease& operator=(RunLease&&) = delete;
  /// Says in the file that it has ended, unless its storage does not answer: that is waited for no longer than for a
  /// holder that gives no sign of life.
  ~RunLease() {
    if (!held_) return;  // moved from
    const Deadline deadline = Deadline::after(times_.patience);
    if (heartbeat_ && !heartbeat_->end(deadline)) return;
    const auto end = [held = held_, is_left = is_to_be_left_] { held->end(is_left); };
    try {
      LeavableThread{end}.join_or_leave(deadline);
    } catch (const std::system_error&) {  // there is no thread
      end();
    }
  }

  [[nodiscard]] std::uint64_t generation() const noexcept { return held_->id().generation; }
  /// By which others know this holder.
  [[nodiscard]] const LeaseId& id() const noexcept { return held_->id(); }

  /// Has other hosts see that it is held: a network file system may keep for a while what is written.
  void show() const { held_->show(); }

  /// Says, when it ends, that others may go on with the run: this program has lost too many of its processes.
  void leave_to_others() noexcept { is_to_be_left_ = true; }

  /// Whether nobody has taken the run over. Throws: Error if that cannot be told.
  [[nodiscard]] bool is_held() const { return held_->is_held(); }
  /// Returns what asks that, also on other threads, and when the lease has ended.
  [[nodiscard]] std::function<bool()> question() const {
    return [held = held_] { return held->is_held(); };
  }

  /// How often to ask.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept { return times_.beat; }
  /// Says who has taken the run over, while this program was suspended or out of touch with the storage; empty if
  /// nobody has, as far as can be told. What the thread that gives signs of life has seen last: storage that does not
  /// answer holds up nobody. A new look is waited for at once if asked for, and where the last one is so old that this
  /// program may have been suspended: but a short while only, and once. Until storage that is slower than that has
  /// answered, what is reported is still written; a checkpoint is not: see is_held().
  [[nodiscard]] std::string taker(bool at_once) {
    const auto age = held_->sight().age();
    const bool is_old = !age || *age >= 2 * times_.beat;
    if (at_once || (is_old && !heartbeat_)) {
      static_cast<void>(new_look()(Deadline::after(times_.patience)));
    } else if (is_old && !std::exchange(has_waited_, true)) {
      heartbeat_->beat_now(Deadline::after(times_.answer));
    }
    if (!is_old) has_waited_ = false;
    return held_->sight().taker();
  }

  /// Looks anew, as taker() does at once, in parts between which something else is done. Returns what waits for it
  /// until a deadline, and returns whether it is over: this has looked, or storage has not answered for long enough.
  [[nodiscard]] std::function<bool(const Deadline&)> new_look() {
    std::optional<std::uint64_t> number;
    if (heartbeat_) {
      number = heartbeat_->ask();
    } else {
      static_cast<void>(held_->look());
    }
    return [this, number, end = Deadline::after(times_.patience)](const Deadline& deadline) {
      return !number || heartbeat_->has_done(*number, deadline) || end.expired();
    };
  }

  /// Gives signs of life from now on. Returns what there is to be said if it cannot.
  [[nodiscard]] std::string keep_alive() {
    try {
      if (!heartbeat_) heartbeat_ = std::make_unique<Heartbeat>([held = held_] { held->beat(); }, times_.beat);
      return {};
    } catch (const std::system_error& error) {
      return compose("no signs of life are given in {}, so a program on another host may take the run over: {}",
                     held_->path().string(), error.what());
    }
  }

  /// Gives none until it is asked to again: a fork of this process needs all threads to be at rest.
  void pause() { heartbeat_.reset(); }

  /// Says from whom the run was taken over who had not ended in order on another host; empty if there is no such one.
  [[nodiscard]] const std::string& takeover() const noexcept { return held_->takeover(); }

 private:
  LeaseTimes times_;
  std::shared_ptr<HeldLease> held_;
  bool is_to_be_left_ = false;  // when it ends: until then another thread may write
  bool has_waited_ = false;     // for a look at storage that has not answered since
  std::unique_ptr<Heartbeat> heartbeat_{};
};

/// Takes the lease of a run; leaves nothing of a new one behind if it cannot be had by anybody.
[[nodiscard]] inline RunLease take_lease(const RunPlace& place,
                                         const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  try {
    return RunLease{place.path, {}, files, place.is_new};
  } catch (const RunInUse&) {
    throw;
  } catch (const Error&) {
    if (place.is_new) remove_run_directory(place.path, files);
    throw;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
