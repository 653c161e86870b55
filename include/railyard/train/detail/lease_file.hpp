// SPDX-License-Identifier: MIT
// What stands in a run's lease.json, and whether who has written it still lives. Train room.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/system.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
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
  std::chrono::nanoseconds stall = std::chrono::seconds{150};  ///< of storage, until it is given up to look at a holder
};

/// Tells one holder of a run from all others.
struct LeaseId {
  std::uint64_t generation = 0;
  std::string id{};
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
};

/// Is what a holder has written.
struct LeaseContent {
  LeaseId lease{};
  std::string host = "an unknown host";
  std::string boot{};  ///< of the holder's kernel, which knows of all its locks
  std::string since = "an unknown time";
  std::int64_t pid = 0;
  std::string pids{};  ///< the namespace of that number; empty where an older release has written it
  bool has_ended = false;
  bool is_left = false;  ///< it has ended, and left the run to others
  bool is_locked = true;

  /// One that has written no boot may be about to, or belong to an older release, on this host.
  [[nodiscard]] bool is_elsewhere(const std::string& own_boot) const { return !boot.empty() && boot != own_boot; }
  [[nodiscard]] bool has_died() const {
    const bool is_here = host == host_name() && pid > 0 && (pids.empty() || pids == pid_namespace());
    return is_here && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
  }
};

/// Opens the file anew each time, so that a network file system asks its server.
class LeaseFile {
 public:
  using Sign = std::pair<std::int64_t, std::int64_t>;

  explicit LeaseFile(std::filesystem::path path, std::shared_ptr<Files> files = std::make_shared<Files>())
      : path_(std::move(path)), files_(std::move(files)) {}

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Returns nothing if it cannot be read, which says nothing about whose it is; errno says why.
  [[nodiscard]] std::optional<LeaseContent> read() const {
    const Descriptor file = open();
    if (!file.is_open() && errno != ENOENT) return std::nullopt;
    char text[size];
    const auto to = std::as_writable_bytes(std::span{text});
    const auto read = [&] { return files_->read_at(file.get(), to.data(), to.size(), 0); };
    const ssize_t got = file.is_open() ? uninterrupted(read) : 0;
    if (got < 0) return std::nullopt;
    LeaseContent content;
    if (got == 0) return content;
    try {
      const Json json = parse_json({text, static_cast<std::size_t>(got)});
      content.lease.generation = json.at("generation").as<std::uint64_t>();
      content.lease.id = json.at("id").text();
      content.host = json.at("host").text();
      content.since = json.at("since").text();
      content.pid = json.at("pid").as<std::int64_t>();
      content.boot = json.at("boot").text();
      content.has_ended = json.at("has_ended").boolean();
      if (const Json* left = json.find("left")) content.is_left = left->boolean();
      if (const Json* pids = json.find("pids")) content.pids = pids->text();
      if (const Json* locked = json.find("locked")) content.is_locked = locked->boolean();
    } catch (const std::exception&) {  // half written by one that has died: as good as none
    }
    return content;
  }

  /// When it was written or touched last, by whatever clock; nothing if that cannot be told.
  [[nodiscard]] std::optional<Sign> last_sign() const {
    const Descriptor file = open();
    struct stat status {};
    if (!file.is_open() || uninterrupted([&] { return files_->status_of(file.get(), status); }) != 0)
      return std::nullopt;
    return Sign{status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  /// Whether a process of this host has locked it, which has it open or has inherited it.
  [[nodiscard]] bool is_locked() const {
    const Descriptor file{uninterrupted([&] { return files_->open(path_, O_RDWR); })};
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const bool is_known = file.is_open() && files_->lock(file.get(), F_OFD_GETLK, whole) == 0;
    return !is_known || whole.l_type != F_UNLCK;
  }

  static constexpr std::size_t size = 1024;

 private:
  [[nodiscard]] Descriptor open() const {
    return Descriptor{uninterrupted([&] { return files_->open(path_, O_RDONLY); })};
  }

  std::filesystem::path path_;
  std::shared_ptr<Files> files_;
};

/// Finds out whether a holder gives signs of life. Whose host it is cannot be asked, nor its clock be trusted. Silence
/// is counted in looks, and a look that stalls tells nothing: the storage may have stood still, or this process, while
/// the holder went on.
class LeaseSilence {
 public:
  explicit LeaseSilence(const LeaseTimes& times) : times_(times), looks_left_(times.patience / times.beat) {}

  /// Looks. Returns whether a sign has come since the look before. A sign begins the silence anew.
  bool look(const LeaseFile& file) {
    const Deadline in_time = Deadline::after(times_.beat);
    const auto sign = file.last_sign();
    const bool is_new = sign && last_ && *sign != *last_;
    const bool counts = sign && last_ && !in_time.expired();
    if (is_new) {
      looks_left_ = times_.patience / times_.beat;
    } else if (counts && looks_left_ > 0) {
      --looks_left_;
    }
    if (sign) last_ = sign;
    return is_new;
  }
  [[nodiscard]] bool is_over() const noexcept { return looks_left_ <= 0; }

 private:
  LeaseTimes times_;
  std::chrono::nanoseconds::rep looks_left_;
  std::optional<LeaseFile::Sign> last_{};
};

/// Finds out whether a run may be taken over from its holder, by those who have had a part in its run and have lost it.
class LeaseHolderWatch {
 public:
  explicit LeaseHolderWatch(LeaseContent holder, const LeaseTimes& times = {})
      : holder_(std::move(holder)), times_(times), silence_(times) {}

  [[nodiscard]] const LeaseContent& holder() const noexcept { return holder_; }
  [[nodiscard]] bool is_silent() const noexcept { return silence_.is_over(); }
  /// Whether a look has found a sign of life.
  [[nodiscard]] bool gives_signs() const noexcept { return gives_signs_; }

  /// now: what is read in the file, and names the same holder. It may be taken over if it has left the run to others,
  /// has died on this host with all of its workers, or has been silent for long enough.
  [[nodiscard]] bool is_over(const LeaseFile& file, const LeaseContent& now) {
    if (now.has_ended) return now.is_left;
    if (Deadline::Clock::now() >= next_look_) {
      next_look_ = Deadline::Clock::now() + times_.beat;
      if (silence_.look(file)) gives_signs_ = true;
    }
    if (silence_.is_over()) return true;
    return !now.is_elsewhere(own_boot_) && (now.is_locked ? !file.is_locked() : now.has_died());
  }

 private:
  LeaseContent holder_;
  LeaseTimes times_;
  LeaseSilence silence_;
  bool gives_signs_ = false;
  std::string own_boot_ = boot_id();
  Deadline::Clock::time_point next_look_ = Deadline::Clock::now();
};

}  // namespace detail
}  // namespace railyard::inline v0_1
