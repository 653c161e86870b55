// SPDX-License-Identifier: MIT
// What a program does with the lease.json of a run that it has, or wants to have. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/lease_claims.hpp"
#include "railyard/train/detail/lease_file.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/detail/files.hpp"
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
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what was seen last of whose run it is, by whichever thread.
class LeaseSight {
 public:
  using Time = std::chrono::nanoseconds;  // of boot_time()

  void set(std::string taker, Time begun_at) {
    const std::lock_guard lock{mutex_};
    if (begun_at_ && begun_at < *begun_at_) return;  // by a thread that storage has held
    taker_ = std::move(taker);
    begun_at_ = begun_at;
  }
  [[nodiscard]] std::string taker() const {
    const std::lock_guard lock{mutex_};
    return taker_;
  }
  [[nodiscard]] std::optional<Time> age() const {
    const std::lock_guard lock{mutex_};
    return begun_at_ ? std::optional{boot_time() - *begun_at_} : std::nullopt;
  }

 private:
  mutable std::mutex mutex_{};
  std::string taker_{};
  std::optional<Time> begun_at_{};
};

/// Is thrown where another program has the run, or was faster.
class RunInUse : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Has lease.json open, and its lock if there are locks. Used by several threads at once, as soon as it is made.
class HeldLease {
 public:
  /// See RunLease.
  HeldLease(const std::filesystem::path& run, const LeaseTimes& times, std::shared_ptr<Files> files, bool is_new)
      : lease_file_(run / "lease.json", files), times_(times), files_(std::move(files)) {
    const bool is_made = open(O_RDWR | O_CREAT | O_EXCL);
    if (!is_made && (errno != EEXIST || !open(O_RDWR | O_CREAT))) {
      refuse(compose("cannot be opened: {}", explain_errno(errno)));
    }
    own_.boot = boot_id();
    own_.is_locked = take_lock();
    const LeaseContent before = read_or_refuse();
    const bool is_out_of_reach = own_.is_locked && files_->is_of_this_host(file_.get());
    const bool may_live = !before.has_ended && may_live_without_lock(before, is_out_of_reach);
    const std::uint64_t generation = generation_before(before);
    if (generation == 0 && !(is_made && is_new)) write_down_first_claim(is_made);
    const std::uint64_t last_claim = std::max(generation, claimed());
    const bool is_contended = !own_.is_locked || may_live || (last_claim > generation && !is_out_of_reach);
    if (is_contended) watch(before);
    take_after(last_claim, before, is_contended, is_made && is_new && last_claim == 0);
  }
  HeldLease(const std::filesystem::path& run, const LeaseContent& from, bool is_silent, std::uint64_t last_claim,
            const LeaseTimes& times, std::shared_ptr<Files> files)
      : lease_file_(run / "lease.json", files), times_(times), files_(std::move(files)) {
    if (!open(O_RDWR)) refuse(compose("cannot be opened: {}", explain_errno(errno)));
    own_.boot = boot_id();
    own_.is_locked = try_lock();
    const LeaseContent before = read_or_refuse();
    if (before.lease != from.lease) throw_in_use(before, " and was faster to take it over");
    // Then those of this host are kept out by the lock, and others still wait for a silence.
    const bool is_by_lock = !is_silent && before.is_locked && !before.has_ended && !before.is_elsewhere(own_.boot);
    if (is_by_lock && !own_.is_locked) throw_in_use(before, ", and another process takes it over");
    take_after(std::max(last_claim, std::uint64_t{1}), before, true, false);  // the file is the first claim
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return lease_file_.path(); }
  [[nodiscard]] const LeaseId& id() const noexcept { return own_.lease; }
  [[nodiscard]] const std::string& takeover() const noexcept { return takeover_; }
  [[nodiscard]] const LeaseSight& sight() const noexcept { return sight_; }
  void show() const { static_cast<void>(files_->sync(file_.get())); }

  /// See RunLease.
  [[nodiscard]] bool is_held() const {
    const auto now = read_past_late();
    if (!now) throw Error{compose("whose run it is cannot be read in {}: {}", path().string(), explain_errno(errno))};
    return is_own(*now);
  }

  /// Looks whose the run is. Returns whether a sign of life is due: where nobody else is seen to have it.
  [[nodiscard]] bool look() {
    const auto begun_at = boot_time();
    const auto holder = read_past_late();
    const bool may_be_own = !holder || is_own(*holder);
    // A file that was removed or damaged says nothing of it.
    const bool is_taken = !may_be_own && holder->lease.generation >= own_.lease.generation;
    sight_.set(is_taken ? taker_text(*holder) : std::string{}, begun_at);
    return may_be_own;
  }

  /// Looks, and gives a sign of life if one is due.
  void beat() {
    if (look()) files_->touch(file_.get());
  }

  /// Says in the file that this program has the run no more.
  void end(bool is_left_to_others) const {
    LeaseContent last = own_;
    last.has_ended = true;
    last.is_left = is_left_to_others;
    try {
      if (is_held()) write(last);
    } catch (const std::exception&) {  // the next one from another host waits for signs of life
    }
  }

 private:
  [[nodiscard]] std::filesystem::path run() const { return path().parent_path(); }

  [[nodiscard]] bool open(int flags) {
    file_ = Descriptor{uninterrupted([&] { return files_->open(path(), flags); })};
    return file_.is_open();
  }

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
  // Of whoever has made lease.json, or has had it and written run.json since: see take_after(). From then on, claims
  // are where all look for them.
  void write_down_first_claim(bool is_made) const {
    with_claims([&] {
      const LeaseClaims claims{run(), files_};
      const bool is_claimed = !is_made || is_there(*files_, run() / "run.json");
      if (is_claimed && !claims.have_folder()) static_cast<void>(claims.make(1));
    });
  }

  // Whoever was held up before the claim finds another holder after it. Whoever was held up after it, for so long that
  // it was passed over, finds the next claim after writing; what it has written then is written over by that one.
  // is_contended: others may want it, and look from other hosts, where what is written shows once it is synchronised.
  // is_claimed: by the making of lease.json, which is the first claim, and spares a new run a folder and a file.
  void take_after(std::uint64_t last_claim, const LeaseContent& before, bool is_contended, bool is_claimed) {
    own_.lease = {.generation = last_claim + 1, .id = unique_name()};
    own_.host = host_name();
    own_.since = time_text(std::time(nullptr));
    own_.pid = ::getpid();
    own_.pids = pid_namespace();
    const LeaseClaims claims{run(), files_};
    if (!is_claimed && !with_claims([&] { return claims.make(own_.lease.generation); })) {
      throw_in_use(before, ", and another process takes it over");
    }
    try {
      throw_if_other(before.lease);
      write(own_);
      if (is_contended && uninterrupted([&] { return files_->sync(file_.get()); }) != 0)
        refuse(compose("cannot be written: {}", explain_errno(errno)));
      if (claimed() > own_.lease.generation) throw_in_use(before, ", and another process has taken it over since");
    } catch (...) {
      if (!is_claimed) claims.withdraw(own_.lease.generation);
      throw;
    }
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
      return CheckpointFolder{run() / "checkpoints", 0, files_}.last_generation();
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
      write(own_);
    } catch (const Error&) {  // what is there then says whose the run is
    }
    return lease_file_.read();
  }

  // Returns true as well where the file system has no locks.
  [[nodiscard]] bool try_lock() const {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const auto take = [&] { return files_->lock(file_.get(), F_OFD_SETLK, whole); };
    return uninterrupted(take) == 0 || (errno != EAGAIN && errno != EACCES);
  }

  // This process has the lock. is_out_of_reach: of all other hosts, so that a holder under another boot of a machine of
  // this name was on this one, before it stopped. One of another name may reach the disk through this host.
  [[nodiscard]] bool may_live_without_lock(const LeaseContent& holder, bool is_out_of_reach) const {
    if (holder.is_elsewhere(own_.boot)) return !(is_out_of_reach && holder.host == host_name());
    return !holder.is_locked && !holder.has_died();
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
    const Deadline deadline = Deadline::after(times_.stall);
    for (silence.look(lease_file_); !silence.is_over();) {
      std::this_thread::sleep_for(times_.beat);
      if (silence.look(lease_file_)) throw_in_use(read_or_refuse(), " and gives signs of life");
      if (!silence.is_over() && deadline.expired()) refuse("cannot be looked at in time: the storage stalls");
    }
    const std::string silent = Deadline::after(times_.patience).budget_text();
    if (holder.has_ended || holder.lease.generation == 0) {
      takeover_ = compose("a process that was about to take the run in {} has given no sign of life for {}",
                          run().string(), silent);
      return;
    }
    takeover_ = compose(
        "the run in {} is taken over: process {} on {} had it since {}, has not ended in order, and "
        "has given no sign of life for {}",
        run().string(), holder.pid, holder.host, holder.since, silent);
  }

  void throw_if_other(const LeaseId& holder) const {
    const LeaseContent now = read_or_refuse();
    if (now.lease != holder) throw_in_use(now, " and was faster to take it over");
  }

  [[noreturn]] void throw_in_use(const LeaseContent& holder, std::string_view sign) const {
    throw RunInUse{
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
  void write(const LeaseContent& content) const {
    JsonObject object;
    object.add("generation", content.lease.generation).add("id", content.lease.id).add("host", content.host);
    object.add("since", content.since).add("pid", content.pid).add("pids", content.pids);
    object.add("boot", content.boot);
    object.add("has_ended", content.has_ended).add("left", content.is_left);
    std::string text = object.add("locked", content.is_locked).text();
    text.resize(LeaseFile::size - 1, ' ');
    text += '\n';
    const WriteSignalGuard<SIGXFSZ> guard;
    const auto bytes = std::as_bytes(std::span{text});
    const auto put = [&] { return files_->write_at(file_.get(), bytes.data(), bytes.size(), 0); };
    const ssize_t written = uninterrupted(put);
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
  std::string takeover_{};
  LeaseSight sight_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
