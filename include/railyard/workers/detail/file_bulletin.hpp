// SPDX-License-Identifier: MIT
// A bulletin that is a file in a folder which all processes of a job see, on one host or on many. Workers room.
#pragma once

#include "railyard/workers/detail/posting.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a place where the leader of a job posts its address, and where the other processes read it.
class Bulletin {
 public:
  Bulletin() = default;
  Bulletin(const Bulletin&) = delete;
  Bulletin& operator=(const Bulletin&) = delete;
  virtual ~Bulletin() = default;

  /// Called by the leader, when it listens; again whenever something has changed. Throws: Error.
  virtual void post(const Posting& posting) = 0;
  /// Waits for a posting. refused: one at which nobody was found; it is given again only after patience, as another may
  /// replace it. Throws: Error at the deadline, and where the place cannot be trusted.
  static constexpr std::chrono::seconds patience{1};
  [[nodiscard]] virtual Posting read(const Deadline& deadline, const Posting* refused = nullptr) = 0;
  /// Makes read() return an empty posting as soon as is_over() says so, where it is one that looks again and again.
  void end_read_when(std::function<bool()> is_over) { is_over_ = std::move(is_over); }
  /// May the secret of the run go this way?
  [[nodiscard]] virtual bool carries_secret() const = 0;
  /// Makes the secret that goes this way.
  [[nodiscard]] virtual std::string make_secret() const { return random_secret(); }
  /// The name or address at which the others look for the leader, if they know it beforehand; else empty.
  [[nodiscard]] virtual std::string host_to_listen_on() const { return {}; }
  /// The port on which the leader has to listen; 0 leaves it to the kernel.
  [[nodiscard]] virtual int port_to_listen_on() const { return 0; }
  /// How messages call it.
  [[nodiscard]] virtual std::string where() const = 0;

 protected:
  [[nodiscard]] bool is_read_over() const { return is_over_ && is_over_(); }

 private:
  std::function<bool()> is_over_{};
};

[[noreturn]] inline void fail_to_read(std::string_view subject, std::string_view where, const Deadline& deadline) {
  throw Error{
      compose("{}: process 0 left no address in {} within {}: see whether it has started, whether its log says why it "
              "could not, "
              "and whether both mean the same place",
              subject, where, deadline.budget_text())};
}

/// Returns the name of a job's file: another for every job and for every restart of one.
[[nodiscard]] inline std::string file_name_of(std::string_view job, int restart) {
  std::string name = "railyard-";
  for (const char letter : job.substr(0, 180)) {
    const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                          (letter >= '0' && letter <= '9') || letter == '-' || letter == '.';
    name += is_plain ? letter : '_';
  }
  return compose("{}.{}", name, restart);
}

/// Makes sure of a folder on this host that only this user may enter: below XDG_RUNTIME_DIR if that is this user's own,
/// else /tmp/railyard-<user>. Throws: ConfigError if somebody else has made it, or may enter it.
[[nodiscard]] inline std::filesystem::path make_local_folder(const std::optional<std::string>& runtime_folder) {
  struct stat status {};
  const bool has_runtime = runtime_folder && ::lstat(runtime_folder->c_str(), &status) == 0 &&
                           S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 0077U) == 0;
  const std::filesystem::path folder = has_runtime ? std::filesystem::path{*runtime_folder} / "railyard"
                                                   : std::filesystem::path{compose("/tmp/railyard-{}", ::geteuid())};
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw_system(compose("making {}", folder.string()), errno);
  if (::lstat(folder.c_str(), &status) != 0) throw_system(compose("looking at {}", folder.string()), errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0077U) != 0) {
    throw ConfigError{compose(
        "{} is not a folder that only user {} may enter (owner {}, mode {:o}), so that others could read the secret of "
        "the run: remove it, or set ScalingConfig::launch.rendezvous to another folder",
        folder.string(), ::geteuid(), status.st_uid, status.st_mode & 07777U)};
  }
  return folder;
}

/// Writes and reads one file of mode 600 that belongs to the user who reads it. The leader keeps a lock on it while it
/// lives, by which processes of its own host know a dead leader's file; what a dead leader of another host has left is
/// known by nobody answering there, and is replaced by the next one.
class FileBulletin final : public Bulletin {
 public:
  /// time_to_go: for how long a leader of this host that may have died is waited for, see post().
  FileBulletin(std::filesystem::path folder, const std::string& name, WaitTeller teller,
               std::chrono::nanoseconds time_to_go = std::chrono::seconds{2})
      : folder_(std::move(folder)), path_(folder_ / name), teller_(std::move(teller)), time_to_go_(time_to_go) {}
  ~FileBulletin() override { take_down(); }

  /// Waits for the end of a leader of the same job that has died on this host: the lock is free when the last of the
  /// workers has gone that have inherited it. Throws: ConfigError if one is alive after that time, or the folder cannot
  /// be trusted.
  void post(const Posting& posting) override {
    check_folder();
    if (!posted_.is_open()) check_for_second_leader();
    const std::string temporary = compose("{}.{}.new", path_.string(), random_secret().substr(0, 16));
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    Descriptor file = adopt(::open(temporary.c_str(), flags, 0600), compose("making {}", temporary));
    try {
      write(file, compose("{}boot {}\n", write_posting(posting), boot_));
      ::flock(file.get(), LOCK_EX | LOCK_NB);  // where the file system has no locks nobody is known to be dead
      if (::rename(temporary.c_str(), path_.c_str()) != 0) throw_system(compose("making {}", path_.string()), errno);
    } catch (...) {
      ::unlink(temporary.c_str());
      throw;
    }
    posted_ = std::move(file);
    poster_ = ::getpid();
  }

  [[nodiscard]] Posting read(const Deadline& deadline, const Posting* refused) override {
    const Deadline again = Deadline::after(patience);
    teller_.start();
    auto pause = first_pause;
    while (true) {
      check_folder();
      const auto there = look_up();
      const bool has_leader = there && there->posting && there->leader != Leader::dead;
      if (has_leader && (refused == nullptr || *there->posting != *refused || again.expired())) return *there->posting;
      if (is_read_over()) return {};
      if (deadline.expired()) fail_to_read(teller_.subject(), where(), deadline);
      teller_.look(compose("process 0 to leave its address in {}", where()), deadline);
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline.remaining()));
      pause = std::min(pause * 2, last_pause);
    }
  }

  [[nodiscard]] bool carries_secret() const override { return true; }
  [[nodiscard]] std::string where() const override { return path_.string(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  static constexpr std::size_t most_bytes = 4096;
  static constexpr std::chrono::milliseconds first_pause{2};
  static constexpr std::chrono::milliseconds last_pause{100};

  enum class Leader : std::uint8_t { alive, dead, unknown };
  struct Posted {
    Leader leader = Leader::unknown;
    std::optional<Posting> posting{};  ///< nothing if the file holds none
  };

  // Nothing if there is no file.
  [[nodiscard]] std::optional<Posted> look_up() const {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE)) return {};
    const Descriptor file = adopt(fd, compose("opening {}", path_.string()));
    check_file(file);
    std::string text(most_bytes, '\0');
    const ssize_t got = ::read(file.get(), text.data(), text.size());
    if (got < 0 && errno == ESTALE) return {};  // replaced just now, on another host
    if (got < 0) throw_system(compose("reading {}", path_.string()), errno);
    text.resize(static_cast<std::size_t>(got));
    return Posted{.leader = leader_of(file, text), .posting = read_posting(text)};
  }

  // Locks are believed on the leader's own host only: some file systems keep those of each host to themselves.
  [[nodiscard]] Leader leader_of(const Descriptor& file, std::string_view text) const {
    if (line_of(text, "boot") != boot_) return Leader::unknown;
    if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return Leader::dead;
    return errno == EWOULDBLOCK ? Leader::alive : Leader::unknown;
  }

  void check_file(const Descriptor& file) const {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) throw_system(compose("looking at {}", path_.string()), errno);
    if (S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 0077U) == 0) return;
    throw ConfigError{
        compose("{} holds the secret of a run and is not a file that only user {} may read (owner {}, mode {:o}): "
                "somebody else "
                "may have made it; remove it, or set ScalingConfig::launch.rendezvous to another folder",
                path_.string(), ::geteuid(), status.st_uid, status.st_mode & 07777U)};
  }

  // Others must not be able to replace the file. Opening the folder also makes NFS ask the server what is new in it.
  void check_folder() const {
    const Descriptor folder = adopt(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                    compose("opening {}, the folder in which processes meet", folder_.string()));
    struct stat status {};
    if (::fstat(folder.get(), &status) != 0) throw_system(compose("looking at {}", folder_.string()), errno);
    const bool is_ours = status.st_uid == ::geteuid() || status.st_uid == 0;
    const bool is_safe = (status.st_mode & 0022U) == 0 || (status.st_mode & S_ISVTX) != 0;
    if (is_ours && is_safe) return;
    throw ConfigError{compose(
        "others than user {} may replace files in {} (owner {}, mode {:o}), in which the processes of the run would "
        "meet: take a folder of your own (chmod go-w)",
        ::geteuid(), folder_.string(), status.st_uid, status.st_mode & 07777U)};
  }

  void check_for_second_leader() {
    const Deadline deadline = Deadline::after(time_to_go_);
    teller_.start();
    for (auto pause = first_pause;; pause = std::min(pause * 2, last_pause)) {
      const auto there = look_up();
      if (!there || !there->posting || there->leader != Leader::alive) return;
      if (deadline.expired()) throw_second_leader(*there->posting);
      teller_.look(compose("the end of another leader that holds {}", path_.string()), deadline);
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline.remaining()));
    }
  }

  [[noreturn]] void throw_second_leader(const Posting& posting) const {
    throw ConfigError{compose(
        "another leader of this job is alive on this host and listens at {}:{} (it has left {}): give each run a "
        "ScalingConfig::launch.job of its own",
        posting.host, posting.port, path_.string())};
  }

  void write(const Descriptor& file, std::string_view text) const {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written != static_cast<ssize_t>(text.size())) {
      throw_system(compose("writing {}", path_.string()), written < 0 ? errno : ENOSPC);
    }
    // NFS shows other hosts what has reached the server.
    if (::fsync(file.get()) != 0) throw_system(compose("writing {}", path_.string()), errno);
  }

  // Only what this process has posted itself: not what a forked one has inherited, or another leader put there since.
  void take_down() noexcept {
    struct stat ours {};
    struct stat there {};
    if (!posted_.is_open() || poster_ != ::getpid()) return;
    if (::fstat(posted_.get(), &ours) != 0 || ::lstat(path_.c_str(), &there) != 0) return;
    if (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) ::unlink(path_.c_str());
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
  WaitTeller teller_;
  std::chrono::nanoseconds time_to_go_;
  std::string boot_ = boot_id();
  Descriptor posted_{};
  pid_t poster_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
