// SPDX-License-Identifier: MIT
// Sees to it that one program at a time writes to a run's directory. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/heartbeat.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Says how often a holder gives a sign of life, and how long one that gives none is waited for.
struct LeaseTimes {
  std::chrono::nanoseconds beat = std::chrono::seconds{2};
  std::chrono::nanoseconds patience = std::chrono::seconds{15};
};

/// Holds lease.json of a run. Its lock belongs to the open file, which the workers inherit: it is free when the last of
/// them has gone, however they end. Between hosts locks may not reach, or stay behind when a host dies. So a holder
/// touches the file again and again, and who comes from another host looks whether that goes on; the time that the file
/// has got by it is only compared with itself, for clocks differ. Its generation grows with each holder: one that was
/// replaced all the same, because it was suspended, finds another than its own, and commits nothing any more.
class RunLease {
 public:
  /// Throws: ConfigError that names the holder if there is one, or if the file cannot be written.
  explicit RunLease(const std::filesystem::path& run, const LeaseTimes& times = {})
      : path_(run / "lease.json"), times_(times) {
    file_ = Descriptor{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
    if (!file_.is_open()) refuse(compose("cannot be opened: {}", error_text(errno)));
    own_.boot = boot_id();
    const bool is_locked_elsewhere = !take_lock();
    const Content before = read();
    const bool is_left_elsewhere = !before.id.empty() && !before.has_ended && before.boot != own_.boot;
    if (is_locked_elsewhere || is_left_elsewhere) watch(before);
    own_.generation = before.generation + 1;
    own_.id = unique_name();
    own_.host = host_name();
    own_.since = time_text(std::time(nullptr));
    own_.pid = ::getpid();
    write();
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

  /// Whether nobody has taken the run over.
  [[nodiscard]] bool is_held() const {
    const Content now = read();
    return now.generation == own_.generation && now.id == own_.id;
  }

  /// Gives signs of life from now on; to be called when processes have been forked. The lease stays where it is then.
  void keep_alive() {
    const auto beat = [this] {
      if (is_held()) ::futimens(file_.get(), nullptr);
    };
    heartbeat_ = std::make_unique<Heartbeat>(beat, times_.beat);
  }

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
  };

  [[nodiscard]] static std::string boot_id() {
    std::string text = text_of_file("/proc/sys/kernel/random/boot_id");
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  // Returns false if somebody on another host has it. Where the holder has died, its workers still have the file for a
  // moment.
  [[nodiscard]] bool take_lock() const {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const Deadline deadline = Deadline::after(std::chrono::seconds{10});
    while (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
      const Content holder = read();
      if (holder.boot != own_.boot) return false;
      const bool is_here = holder.host == host_name() && holder.pid > 0;
      const bool has_died = is_here && ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
      if (!has_died || deadline.expired()) throw_in_use(holder, "");
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    return true;
  }

  // Whose host it is cannot be asked, nor its clock be trusted.
  void watch(const Content& holder) {
    const auto first = last_sign();
    const Deadline deadline = Deadline::after(times_.patience);
    while (!deadline.expired()) {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(times_.beat, deadline.remaining()));
      if (last_sign() != first) throw_in_use(read(), " and gives signs of life");
    }
    takeover_ = compose(
        "the run in {} is taken over: process {} on {} had it since {}, has not ended in order, and "
        "has given no sign of life for {}",
        path_.parent_path().string(), holder.pid, holder.host, holder.since, deadline.budget_text());
  }

  // When the file was written or touched last, by whatever clock. Opened anew, as below.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> last_sign() const {
    const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0) return {};
    return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  [[noreturn]] void throw_in_use(const Content& holder, std::string_view sign) const {
    throw ConfigError{
        compose("the run in {} is in use: process {} on {} has had it since {}{}; wait for its end, or end it, or "
                "choose another RunConfig::name",
                path_.parent_path().string(), holder.pid, holder.host, holder.since, sign)};
  }

  // Opened anew, so that a network file system asks its server.
  [[nodiscard]] Content read() const {
    const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    char text[4096];
    const ssize_t got = file.is_open() ? ::read(file.get(), text, sizeof text) : 0;
    Content content;
    if (got <= 0) return content;
    try {
      const Json json = parse_json({text, static_cast<std::size_t>(got)});
      content.generation = json.at("generation").as<std::uint64_t>();
      content.id = json.at("id").text();
      content.host = json.at("host").text();
      content.since = json.at("since").text();
      content.pid = json.at("pid").as<std::int64_t>();
      content.boot = json.at("boot").text();
      content.has_ended = json.at("has_ended").boolean();
    } catch (const std::exception&) {  // half written by one that has died: as good as none
    }
    return content;
  }

  void write() const {
    JsonObject object;
    object.add("generation", own_.generation).add("id", own_.id).add("host", own_.host);
    object.add("since", own_.since).add("pid", own_.pid).add("boot", own_.boot).add("has_ended", own_.has_ended);
    const std::string text = object.text() + "\n";
    const WriteSignalGuard<SIGXFSZ> guard;
    const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
    if (written < 0) refuse(compose("cannot be written: {}", error_text(errno)));
    if (written != static_cast<ssize_t>(text.size())) refuse("cannot be written: there is no room");
    if (::ftruncate(file_.get(), static_cast<off_t>(text.size())) != 0) {
      refuse(compose("cannot be cut to its size: {}", error_text(errno)));
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": {} {}; choose a folder that you can write to and that has room",
                path_.parent_path().parent_path().string(), path_.string(), why)};
  }

  std::filesystem::path path_;
  LeaseTimes times_;
  Descriptor file_{};
  Content own_{};
  std::string takeover_{};
  std::unique_ptr<Heartbeat> heartbeat_{};
};

/// Takes the lease of a run; leaves nothing of a new one behind if it cannot be had.
[[nodiscard]] inline RunLease take_lease(const RunPlace& place) {
  try {
    return RunLease{place.path};
  } catch (const ConfigError&) {
    if (place.is_new) RunDirectory{place.path, 0}.remove();
    throw;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
