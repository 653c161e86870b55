// SPDX-License-Identifier: MIT
// Sees to it that one program at a time writes to a run's directory. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/heartbeat.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

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

/// Says how often a holder gives a sign of life, how long one that gives none is waited for, how long a lock whose
/// holder cannot be told, or has died, and how long storage that is to say whose run it is while workers train.
struct LeaseTimes {
  std::chrono::nanoseconds beat = std::chrono::seconds{2};
  std::chrono::nanoseconds patience = std::chrono::seconds{15};
  std::chrono::nanoseconds lock = std::chrono::seconds{10};
  std::chrono::nanoseconds answer = std::chrono::milliseconds{200};
};

/// Holds lease.json of a run. Its lock belongs to the open file, which the workers inherit: it is free when the last of
/// them has gone, however they end. Between hosts locks may not reach, or stay behind when a host dies. So a holder
/// touches the file again and again, and who comes from another host looks whether that goes on; the time that the file
/// has got by it is only compared with itself, for clocks differ. Its generation grows with each holder: one that was
/// replaced all the same, because it was suspended, finds another than its own, and commits nothing any more.
class RunLease {
 public:
  /// Throws: ConfigError that names the holder if there is one, or if the file cannot be read or written.
  explicit RunLease(const std::filesystem::path& run, const LeaseTimes& times = {},
                    std::shared_ptr<Files> files = std::make_shared<Files>())
      : path_(run / "lease.json"), times_(times), files_(std::move(files)) {
    file_ = Descriptor{files_->open(path_, O_RDWR | O_CREAT)};
    if (!file_.is_open()) refuse(compose("cannot be opened: {}", explain_errno(errno)));
    own_.boot = boot_id();
    own_.is_locked = take_lock();
    const Content before = read_or_refuse();
    const bool may_live = !before.has_ended && (is_elsewhere(before) || (!before.is_locked && !has_died(before)));
    const bool is_watched = !own_.is_locked || may_live;
    if (is_watched) watch(before);
    own_.generation = generation_before(before) + 1;
    own_.id = unique_name();
    own_.host = host_name();
    own_.since = time_text(std::time(nullptr));
    own_.pid = ::getpid();
    write();
    if (is_watched) yield_to_others();
  }
  RunLease(RunLease&&) = default;
  RunLease& operator=(RunLease&&) = delete;
  ~RunLease() {
    heartbeat_.reset();
    if (!file_.is_open()) return;  // moved from
    try {
      own_.has_ended = true;
      if (is_held()) write();
    } catch (const std::exception&) {  // the next one from another host waits for signs of life
    }
  }

  [[nodiscard]] std::uint64_t generation() const noexcept { return own_.generation; }

  /// Whether nobody has taken the run over. Throws: Error if that cannot be told.
  [[nodiscard]] bool is_held() const {
    const auto now = read();
    if (!now) throw Error{compose("whose run it is cannot be read in {}: {}", path_.string(), explain_errno(errno))};
    return is_own(*now);
  }

  /// How often to ask.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept { return times_.beat; }
  /// Says who has taken the run over, while this program was suspended or out of touch with the storage; empty if
  /// nobody has, as far as can be told. What the thread that gives signs of life has seen last: storage that does not
  /// answer holds up nobody. A new look is waited for at once if asked for, and where the last one is so old that this
  /// program may have been suspended: but a short while only, and once.
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
                     path_.string(), error.what());
    }
  }

  /// Gives none until it is asked to again: a fork of this process needs all threads to be at rest.
  void pause() { heartbeat_.reset(); }

  /// Says from whom the run was taken over who had not ended in order on another host; empty if there is no such one.
  [[nodiscard]] const std::string& takeover() const noexcept { return takeover_; }

 private:
  struct Content {
    std::uint64_t generation = 0;
    std::string id{};
    std::string host = "an unknown host";
    std::string boot{};  // of the holder's kernel, which knows of all its locks
    std::string since = "an unknown time";
    std::int64_t pid = 0;
    bool has_ended = false;
    bool is_locked = true;
  };

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
    const auto holder = read();
    const bool may_be_own = !holder || is_own(*holder);
    // A file that was removed or damaged says nothing of it.
    const bool is_taken = !may_be_own && holder->generation >= own_.generation;
    sight_->set(is_taken ? taker_text(*holder) : std::string{}, begun_at);
    return may_be_own;
  }

  [[nodiscard]] std::string taker_text(const Content& taker) const {
    return compose(
        "process {} on {} has taken over the run in {} since {}, while this one was suspended or out of touch "
        "with its storage: this one writes nothing more there",
        taker.pid, taker.host, path_.parent_path().string(), taker.since);
  }

  // Where the file was removed or damaged, what earlier holders have left tells: it has to be older than this one.
  [[nodiscard]] std::uint64_t generation_before(const Content& before) const {
    if (before.generation != 0) return before.generation;
    try {
      return CheckpointFolder{path_.parent_path() / "checkpoints"}.last_generation();
    } catch (const Error& error) {
      refuse(compose("says nothing of who had the run before, nor can it be told otherwise: {}", error.what()));
    }
  }

  [[nodiscard]] bool is_own(const Content& content) const {
    return content.generation == own_.generation && content.id == own_.id;
  }

  // One that has written no boot may be about to, or belong to an older release, on this host.
  [[nodiscard]] bool is_elsewhere(const Content& holder) const {
    return !holder.boot.empty() && holder.boot != own_.boot;
  }

  [[nodiscard]] static bool has_died(const Content& holder) {
    const bool is_here = holder.host == host_name() && holder.pid > 0;
    return is_here && ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
  }

  // Returns false if somebody on another host has it, or had it when one on this host took the run over who has gone
  // as well. Where the holder has died, its workers still have the file for a moment.
  [[nodiscard]] bool take_lock() const {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const Deadline deadline = Deadline::after(times_.lock);
    while (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
      const Content holder = read_or_refuse();
      if (is_elsewhere(holder)) return false;
      if (!holder.is_locked && (holder.has_ended || has_died(holder))) return false;
      const bool is_soon_free = has_died(holder) || holder.boot.empty();
      if (!is_soon_free || deadline.expired()) throw_in_use(holder, "");
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    return true;
  }

  // Whose host it is cannot be asked, nor its clock be trusted. Silence is counted in looks, and a look that stalls
  // tells nothing: the storage may have stood still, or this process, while the holder went on.
  void watch(const Content& holder) {
    const auto first = last_sign();
    const Deadline deadline = Deadline::after(10 * times_.patience);
    for (auto looks = times_.patience / times_.beat; looks > 0;) {
      std::this_thread::sleep_for(times_.beat);
      const Deadline in_time = Deadline::after(times_.beat);
      const auto sign = last_sign();
      if (first && sign && sign != first) throw_in_use(read_or_refuse(), " and gives signs of life");
      if (first && sign && !in_time.expired()) --looks;
      if (deadline.expired()) refuse("cannot be looked at in time: the storage stalls");
    }
    takeover_ = compose(
        "the run in {} is taken over: process {} on {} had it since {}, has not ended in order, and "
        "has given no sign of life for {}",
        path_.parent_path().string(), holder.pid, holder.host, holder.since,
        Deadline::after(times_.patience).budget_text());
  }

  // Of several that have watched the same holder, the last one to write has the run.
  void yield_to_others() const {
    std::this_thread::sleep_for(times_.beat);
    const Content now = read_or_refuse();
    if (!is_own(now)) throw_in_use(now, " and was faster to take it over");
  }

  // When the file was written or touched last, by whatever clock; nothing if it cannot be told. Opened anew, as below.
  [[nodiscard]] std::optional<std::pair<std::int64_t, std::int64_t>> last_sign() const {
    const Descriptor file{files_->open(path_, O_RDONLY)};
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0) return std::nullopt;
    return std::pair<std::int64_t, std::int64_t>{status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  [[noreturn]] void throw_in_use(const Content& holder, std::string_view sign) const {
    throw ConfigError{
        compose("the run in {} is in use: process {} on {} has had it since {}{}; wait for its end, or end it, or "
                "choose another RunConfig::name",
                path_.parent_path().string(), holder.pid, holder.host, holder.since, sign)};
  }

  // Opened anew, so that a network file system asks its server. Returns nothing if it cannot be read, which says
  // nothing about whose it is; errno says why.
  [[nodiscard]] std::optional<Content> read() const {
    const Descriptor file{files_->open(path_, O_RDONLY)};
    if (!file.is_open() && errno != ENOENT) return std::nullopt;
    char text[size];
    const ssize_t got = file.is_open() ? ::read(file.get(), text, sizeof text) : 0;
    if (got < 0) return std::nullopt;
    Content content;
    try {
      const Json json = parse_json({text, static_cast<std::size_t>(got)});
      content.generation = json.at("generation").as<std::uint64_t>();
      content.id = json.at("id").text();
      content.host = json.at("host").text();
      content.since = json.at("since").text();
      content.pid = json.at("pid").as<std::int64_t>();
      content.boot = json.at("boot").text();
      content.has_ended = json.at("has_ended").boolean();
      if (const Json* locked = json.find("locked")) content.is_locked = locked->boolean();
    } catch (const std::exception&) {  // half written by one that has died: as good as none
    }
    return content;
  }

  [[nodiscard]] Content read_or_refuse() const {
    const auto content = read();
    if (!content) refuse(compose("cannot be read: {}", explain_errno(errno)));
    return *content;
  }

  // Always as long, so that it is there whole after one call, whatever was there before. It lasts once the first
  // checkpoint of its generation does: see CheckpointWriter.
  void write() const {
    JsonObject object;
    object.add("generation", own_.generation).add("id", own_.id).add("host", own_.host);
    object.add("since", own_.since).add("pid", own_.pid).add("boot", own_.boot).add("has_ended", own_.has_ended);
    std::string text = object.add("locked", own_.is_locked).text();
    text.resize(size - 1, ' ');
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
                path_.parent_path().parent_path().string(), path_.string(), why)};
  }

  static constexpr std::size_t size = 1024;

  std::filesystem::path path_;
  LeaseTimes times_;
  std::shared_ptr<Files> files_;
  Descriptor file_{};
  Content own_{};
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
