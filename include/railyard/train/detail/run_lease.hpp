// SPDX-License-Identifier: MIT
// Sees to it that one program at a time writes to a run's directory. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/heartbeat.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/lease_claims.hpp"
#include "railyard/train/detail/lease_file.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
  /// Throws: ConfigError that names the holder if there is one, or if the file cannot be read or written.
  explicit RunLease(const std::filesystem::path& run, const LeaseTimes& times = {},
                    std::shared_ptr<Files> files = std::make_shared<Files>())
      : lease_file_(run / "lease.json", files), times_(times), files_(std::move(files)) {
    file_ = Descriptor{files_->open(path(), O_RDWR | O_CREAT)};
    if (!file_.is_open()) refuse(compose("cannot be opened: {}", explain_errno(errno)));
    own_.boot = boot_id();
    own_.is_locked = take_lock();
    const LeaseContent before = read_or_refuse();
    const bool may_live =
        !before.has_ended && (before.is_elsewhere(own_.boot) || (!before.is_locked && !before.has_died()));
    const std::uint64_t generation = generation_before(before);
    const std::uint64_t last_claim = std::max(generation, claimed());
    const bool is_contended = !own_.is_locked || may_live || last_claim > generation;
    if (is_contended) watch(before);
    take_after(last_claim, before, is_contended);
  }
  /// Takes the run over from a holder that has died, is silent, or has left it to others: for those who have had a part
  /// in its run, and are told so by LeaseHolderWatch. Of several, one has it. is_silent: its workers may still be
  /// there. last_claim: what ClaimWatch says. Throws: ConfigError that names the holder if another was faster, or if
  /// the file cannot be read or written.
  RunLease(const std::filesystem::path& run, const LeaseContent& from, bool is_silent, std::uint64_t last_claim,
           const LeaseTimes& times = {}, std::shared_ptr<Files> files = std::make_shared<Files>())
      : lease_file_(run / "lease.json", files), times_(times), files_(std::move(files)) {
    file_ = Descriptor{files_->open(path(), O_RDWR)};
    if (!file_.is_open()) refuse(compose("cannot be opened: {}", explain_errno(errno)));
    own_.boot = boot_id();
    own_.is_locked = try_lock();
    const LeaseContent before = read_or_refuse();
    if (before.lease != from.lease) throw_in_use(before, " and was faster to take it over");
    // Then those of this host are kept out by the lock, and others still wait for a silence.
    const bool is_by_lock = !is_silent && before.is_locked && !before.has_ended && !before.is_elsewhere(own_.boot);
    if (is_by_lock && !own_.is_locked) throw_in_use(before, ", and another process takes it over");
    take_after(last_claim, before, true);
  }
  RunLease(RunLease&&) = default;
  RunLease& operator=(RunLease&&) = delete;
  ~RunLease() {
    heartbeat_.reset();
    if (!file_.is_open()) return;  // moved from
    try {
      own_.has_ended = true;
      own_.is_left = is_to_be_left_;
      if (is_held()) write();
    } catch (const std::exception&) {  // the next one from another host waits for signs of life
    }
  }

  [[nodiscard]] std::uint64_t generation() const noexcept { return own_.lease.generation; }
  /// By which others know this holder.
  [[nodiscard]] const LeaseId& id() const noexcept { return own_.lease; }

  /// Has other hosts see that it is held: a network file system may keep for a while what is written.
  void show() const { static_cast<void>(files_->sync(file_.get())); }

  /// Says, when it ends, that others may go on with the run: this program has lost too many of its processes.
  void leave_to_others() noexcept { is_to_be_left_ = true; }

  /// Whether nobody has taken the run over. Throws: Error if that cannot be told.
  [[nodiscard]] bool is_held() const {
    const auto now = read_past_late();
    if (!now) throw Error{compose("whose run it is cannot be read in {}: {}", path().string(), explain_errno(errno))};
    return is_own(*now);
  }

  /// How often to ask.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept { return times_.beat; }
  /// Says who has taken the run over, while this program was suspended or out of touch with the storage; empty if
  /// nobody has, as far as can be told. What the thread that gives signs of life has seen last: storage that does not
  /// answer holds up nobody. A new look is waited for at once if asked for, and where the last one is so old that this
  /// program may have been suspended: but a short while only, and once. Until storage that is slower than that has
  /// answered, what is reported is still written; a checkpoint is not: see is_held().
  [[nodiscard]] std::string taker(bool at_once) {
    const auto age = sight_->age();
    const bool is_old = !age || *age >= 2 * times_.beat;
    if (!heartbeat_) {
      if (at_once || is_old) static_cast<void>(look());
    } else if (at_once) {
      heartbeat_->beat_now(Deadline::after(times_.patience));
    } else if (is_old && !std::exchange(has_waited_, true)) {
      heartbeat_->beat_now(Deadline::after(times_.answer));
    }
    if (!is_old) has_waited_ = false;
    return sight_->taker();
  }

  /// Gives signs of life from now on. The lease stays where it is then. Returns what there is to be said if it cannot.
  [[nodiscard]] std::string keep_alive() {
    const auto beat = [this] {
      if (look()) ::futimens(file_.get(), nullptr);
    };
    try {
      if (!heartbeat_) heartbeat_ = std::make_unique<Heartbeat>(beat, times_.beat);
      return {};
    } catch (const std::system_error& error) {
      return compose("no signs of life are given in {}, so a program on another host may take the run over: {}",
                     path().string(), error.what());
    }
  }

  /// Gives none until it is asked to again: a fork of this process needs all threads to be at rest.
  void pause() { heartbeat_.reset(); }

  /// Says from whom the run was taken over who had not ended in order on another host; empty if there is no such one.
  [[nodiscard]] const std::string& takeover() const noexcept { return takeover_; }

 private:
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return lease_file_.path(); }
  [[nodiscard]] std::filesystem::path run() const { return path().parent_path(); }

  template <class Ask>
  [[nodiscard]] auto with_claims(const Ask& ask) const {
    try {
      return ask();
    } catch (const Error& error) {
      refuse(compose("cannot be had: {}", error.what()));
    }
  }
  [[nodiscard]] std::uint64_t claimed() const {
    return with_claims([this] { return LeaseClaims{run(), files_}.last(); });
  }

  // Whoever was held up before the claim finds another holder after it. Whoever was held up after it, for so long that
  // it was passed over, finds the next claim after writing; what it has written then is written over by that one.
  // is_contended: others may want it, and look from other hosts, where what is written shows once it is synchronised.
  void take_after(std::uint64_t last_claim, const LeaseContent& before, bool is_contended) {
    own_.lease = {.generation = last_claim + 1, .id = unique_name()};
    own_.host = host_name();
    own_.since = time_text(std::time(nullptr));
    own_.pid = ::getpid();
    const LeaseClaims claims{run(), files_};
    if (!with_claims([&] { return claims.make(own_.lease.generation); })) {
      throw_in_use(before, ", and another process takes it over");
    }
    try {
      throw_if_other(before.lease);
      write();
      if (is_contended && files_->sync(file_.get()) != 0)
        refuse(compose("cannot be written: {}", explain_errno(errno)));
      if (claimed() > own_.lease.generation) throw_in_use(before, ", and another process has taken it over since");
    } catch (...) {
      claims.withdraw(own_.lease.generation);
      throw;
    }
  }

  /// Is what was seen last of whose run it is, by whichever thread.
  class Sight {
   public:
    using Time = std::chrono::nanoseconds;  // since the host was booted: suspended time counts

    [[nodiscard]] static Time now() {
      struct timespec now {};
      ::clock_gettime(CLOCK_BOOTTIME, &now);
      return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
    }
    void set(std::string taker, Time begun_at) {
      const std::lock_guard lock{mutex_};
      taker_ = std::move(taker);
      begun_at_ = begun_at;
    }
    [[nodiscard]] std::string taker() const {
      const std::lock_guard lock{mutex_};
      return taker_;
    }
    [[nodiscard]] std::optional<Time> age() const {
      const std::lock_guard lock{mutex_};
      return begun_at_ ? std::optional{now() - *begun_at_} : std::nullopt;
    }

   private:
    mutable std::mutex mutex_{};
    std::string taker_{};
    std::optional<Time> begun_at_{};
  };

  // Returns whether a sign of life is due: where nobody else is seen to have the run.
  [[nodiscard]] bool look() {
    const auto begun_at = Sight::now();
    const auto holder = read_past_late();
    const bool may_be_own = !holder || is_own(*holder);
    // A file that was removed or damaged says nothing of it.
    const bool is_taken = !may_be_own && holder->lease.generation >= own_.lease.generation;
    sight_->set(is_taken ? taker_text(*holder) : std::string{}, begun_at);
    return may_be_own;
  }

  [[nodiscard]] std::string taker_text(const LeaseContent& taker) const {
    return compose(
        "process {} on {} has taken over the run in {} since {}, while this one was suspended or out of touch "
        "with its storage: this one writes nothing more there",
        taker.pid, taker.host, run().string(), taker.since);
  }

  // Where the file was removed or damaged, what earlier holders have left tells: it has to be older than this one.
  [[nodiscard]] std::uint64_t generation_before(const LeaseContent& before) const {
    if (before.lease.generation != 0) return before.lease.generation;
    try {
      return CheckpointFolder{run() / "checkpoints"}.last_generation();
    } catch (const Error& error) {
      refuse(compose("says nothing of who had the run before, nor can it be told otherwise: {}", error.what()));
    }
  }

  [[nodiscard]] bool is_own(const LeaseContent& content) const { return content.lease == own_.lease; }

  // What a holder from before this one was still writing when it was replaced may come last, and is written over.
  [[nodiscard]] std::optional<LeaseContent> read_past_late() const {
    auto content = lease_file_.read();
    const bool is_late = content && content->lease.generation != 0 && content->lease.generation < own_.lease.generation;
    if (!is_late) return content;
    try {
      write();
    } catch (const Error&) {  // what is there then says whose the run is
    }
    return lease_file_.read();
  }

  // Returns true as well where the file system has no locks.
  [[nodiscard]] bool try_lock() const {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    return ::fcntl(file_.get(), F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
  }

  // Returns false if somebody on another host has it, or had it when one on this host took the run over who has gone
  // as well. Where the holder has died, its workers still have the file for a moment.
  [[nodiscard]] bool take_lock() const {
    const Deadline deadline = Deadline::after(times_.lock);
    while (!try_lock()) {
      const LeaseContent holder = read_or_refuse();
      if (holder.is_elsewhere(own_.boot)) return false;
      if (!holder.is_locked && (holder.has_ended || holder.has_died())) return false;
      const bool is_soon_free = holder.has_died() || holder.boot.empty();
      if (!is_soon_free || deadline.expired()) throw_in_use(holder, "");
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    return true;
  }

  void watch(const LeaseContent& holder) {
    LeaseSilence silence{times_};
    const Deadline deadline = Deadline::after(10 * times_.patience);
    for (silence.look(lease_file_); !silence.is_over();) {
      std::this_thread::sleep_for(times_.beat);
      if (silence.look(lease_file_)) throw_in_use(read_or_refuse(), " and gives signs of life");
      if (deadline.expired()) refuse("cannot be looked at in time: the storage stalls");
    }
    takeover_ = compose(
        "the run in {} is taken over: process {} on {} had it since {}, has not ended in order, and "
        "has given no sign of life for {}",
        run().string(), holder.pid, holder.host, holder.since, Deadline::after(times_.patience).budget_text());
  }

  void throw_if_other(const LeaseId& holder) const {
    const LeaseContent now = read_or_refuse();
    if (now.lease != holder) throw_in_use(now, " and was faster to take it over");
  }

  [[noreturn]] void throw_in_use(const LeaseContent& holder, std::string_view sign) const {
    throw ConfigError{
        compose("the run in {} is in use: process {} on {} has had it since {}{}; wait for its end, or end it, or "
                "choose another RunConfig::name",
                run().string(), holder.pid, holder.host, holder.since, sign)};
  }

  [[nodiscard]] LeaseContent read_or_refuse() const {
    const auto content = lease_file_.read();
    if (!content) refuse(compose("cannot be read: {}", explain_errno(errno)));
    return *content;
  }

  // Always as long, so that it is there whole after one call, whatever was there before. It lasts once the first
  // checkpoint of its generation does: see CheckpointWriter.
  void write() const {
    JsonObject object;
    object.add("generation", own_.lease.generation).add("id", own_.lease.id).add("host", own_.host);
    object.add("since", own_.since).add("pid", own_.pid).add("boot", own_.boot).add("has_ended", own_.has_ended);
    std::string text = object.add("left", own_.is_left).add("locked", own_.is_locked).text();
    text.resize(LeaseFile::size - 1, ' ');
    text += '\n';
    const WriteSignalGuard<SIGXFSZ> guard;
    const auto bytes = std::as_bytes(std::span{text});
    const ssize_t written = files_->write_at(file_.get(), bytes.data(), bytes.size(), 0);
    if (written < 0) refuse(compose("cannot be written: {}", explain_errno(errno)));
    if (written != static_cast<ssize_t>(text.size())) refuse("cannot be written: there is no room");
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": {} {}; choose a folder that you can write to and that has room",
                run().parent_path().string(), path().string(), why)};
  }

  LeaseFile lease_file_;
  LeaseTimes times_;
  std::shared_ptr<Files> files_;
  Descriptor file_{};
  LeaseContent own_{};
  bool is_to_be_left_ = false;  // when it ends: until then another thread may write
  std::string takeover_{};
  std::unique_ptr<Sight> sight_ = std::make_unique<Sight>();
  bool has_waited_ = false;  // for a look at storage that has not answered since
  std::unique_ptr<Heartbeat> heartbeat_{};
};

/// Takes the lease of a run; leaves nothing of a new one behind if it cannot be had.
[[nodiscard]] inline RunLease take_lease(const RunPlace& place) {
  try {
    return RunLease{place.path};
  } catch (const Error&) {
    if (place.is_new) RunDirectory{place.path, 0}.remove();
    throw;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
