// SPDX-License-Identifier: MIT
// Sees to it that one program at a time writes to a run's directory. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/json.hpp"

#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds lease.json of a run. Its lock belongs to the open file, which the workers inherit: it is free when the last of
/// them has gone, however they end. Its generation grows with each holder, for file systems on which locks do not reach
/// other hosts: there a holder that was replaced finds another generation than its own, and commits nothing any more.
class RunLease {
 public:
  /// Throws: ConfigError that names the holder if there is one, or if the file cannot be written.
  explicit RunLease(const std::filesystem::path& run) : path_(run / "lease.json") {
    file_ = Descriptor{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
    if (!file_.is_open()) refuse(compose("cannot be opened: {}", error_text(errno)));
    take_lock(run);
    const Content before = read();
    own_.generation = before.generation + 1;
    own_.id = unique_name();
    own_.host = host_name();
    own_.since = time_text(std::time(nullptr));
    own_.pid = ::getpid();
    write();
  }

  [[nodiscard]] std::uint64_t generation() const noexcept { return own_.generation; }

  /// Whether nobody has taken the run over.
  [[nodiscard]] bool is_held() const {
    const Content now = read();
    return now.generation == own_.generation && now.id == own_.id;
  }

 private:
  struct Content {
    std::uint64_t generation = 0;
    std::string id{};
    std::string host = "an unknown host";
    std::string since = "an unknown time";
    std::int64_t pid = 0;
  };

  // Where the holder has died, its workers still have the file for a moment.
  void take_lock(const std::filesystem::path& run) const {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const Deadline deadline = Deadline::after(std::chrono::seconds{10});
    while (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
      const Content holder = read();
      const bool is_here = holder.host == host_name() && holder.pid > 0;
      const bool has_died = is_here && ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
      if (!has_died || deadline.expired()) {
        throw ConfigError{
            compose("the run in {} is in use: process {} on {} has had it since {}; wait for its end, or end "
                    "it, or choose another RunConfig::name",
                    run.string(), holder.pid, holder.host, holder.since)};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
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
    } catch (const std::exception&) {  // half written by one that has died: as good as none
    }
    return content;
  }

  void write() const {
    JsonObject object;
    object.add("generation", own_.generation).add("id", own_.id).add("host", own_.host);
    object.add("since", own_.since).add("pid", own_.pid);
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
  Descriptor file_{};
  Content own_{};
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
