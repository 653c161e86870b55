// SPDX-License-Identifier: MIT
// A file that appears under its name when it is whole, and that one process at a time writes. Data room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/detail/waiting.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

[[noreturn]] inline void refuse_file(std::string_view what, const std::string& path, int error) {
  throw DataError{compose("the cache {} could not be {}: {}", path, what, explain_errno(error))};
}

// Says how long to wait for a process that writes nothing, and when to say first that one waits.
struct DraftPatience {
  std::chrono::nanoseconds patience = std::chrono::minutes{5};
  std::chrono::nanoseconds first_word = std::chrono::seconds{10};
};

// Is a file with ".part" behind its name until it is whole. The kernel's lock on it says that somebody writes it, and
// ends with that process, whatever ends it: the next one writes the same file. Only a draft beside that one, which has
// a random name, is left behind by a process that is killed.
class DraftFile {
 public:
  // Waits as long as another process goes on writing, which it does once per block. Behind that, look whether the file
  // is there by now. Where the other one writes nothing for so long, or there are no locks, this draft has its own
  // file. Throws: Error if nobody wants it any more, see WaitWatch.
  explicit DraftFile(std::string path, const DraftPatience& waiting = {})
      : path_(std::move(path)), part_path_(path_ + ".part") {
    std::int64_t written = -1;
    LongWait wait{waiting.first_word};
    Deadline deadline = Deadline::after(waiting.patience);
    for (Claim claim = try_claim(); claim != Claim::mine; claim = try_claim()) {
      struct stat status {};
      if (const std::int64_t size = ::stat(part_path_.c_str(), &status) == 0 ? status.st_size : -1; size != written) {
        written = size;
        deadline = Deadline::after(waiting.patience);
      }
      if (claim == Claim::none || deadline.expired()) {
        open_own_part();
        break;
      }
      wait.look([&] { return compose("{} writes the cache {}", writer(), path_); });
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    if (::ftruncate(file_.get(), 0) != 0) refuse_file("written", part_path_, errno);
  }
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;
  // Removes what is not whole.
  ~DraftFile() {
    if (!file_.is_open()) return;
    ::unlink(part_path_.c_str());
    unlock();
  }

  void write(std::span<const std::byte> bytes) {
    const WriteSignalGuard<SIGXFSZ> guard;
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), std::min(bytes.size(), std::size_t{1} << 30U));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse_file("written", part_path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  // Gives the file its name. Returns what it is read through, which is this file also where another process puts its
  // own in that place.
  [[nodiscard]] Descriptor publish() {
    if (::fsync(file_.get()) != 0) refuse_file("written", part_path_, errno);
    if (std::rename(part_path_.c_str(), path_.c_str()) != 0) refuse_file("renamed", part_path_, errno);
    unlock();
    return std::move(file_);
  }

 private:
  enum class Claim { mine, others, none };

  // Who has the lock, as far as the kernel tells: not of processes of other hosts and containers.
  [[nodiscard]] std::string writer() const {
    struct stat status {};
    const bool exists = ::stat(part_path_.c_str(), &status) == 0;
    const std::string file = compose(":{}", exists ? status.st_ino : 0);
    std::ifstream locks{"/proc/locks"};
    for (std::string line; exists && std::getline(locks, line);) {
      std::istringstream fields{line};
      std::string number;
      std::string kind;
      std::string mode;
      std::string access;
      std::int64_t process = 0;
      std::string inode;
      const bool is_lock = fields >> number >> kind >> mode >> access >> process >> inode && kind == "FLOCK";
      if (is_lock && process > 0 && inode.ends_with(file)) return compose("process {}", process);
    }
    return "another process";
  }

  [[nodiscard]] Descriptor open_part() const {
    Descriptor file{::open(part_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
    if (!file.is_open()) refuse_file("written", part_path_, errno);
    return file;
  }
  // A name that nobody else has, in this process or in another one.
  void open_own_part() {
    std::random_device random;
    do {
      part_path_ = compose("{}.{:08x}{:08x}.part", path_, random(), random());
      file_ = Descriptor{::open(part_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    } while (!file_.is_open() && errno == EEXIST);
    if (!file_.is_open()) refuse_file("written", part_path_, errno);
  }
  [[nodiscard]] Claim try_claim() {
    file_ = open_part();
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      file_.reset();
      return error == EWOULDBLOCK || error == EINTR ? Claim::others : Claim::none;
    }
    // The one before may have finished it, or given it up, between the two calls.
    struct stat mine {};
    struct stat named {};
    const bool is_named = ::fstat(file_.get(), &mine) == 0 && ::stat(part_path_.c_str(), &named) == 0 &&
                          mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
    if (!is_named) file_.reset();
    return is_named ? Claim::mine : Claim::others;
  }
  // Said for the children, too, which have inherited the file.
  void unlock() const noexcept { ::flock(file_.get(), LOCK_UN); }

  std::string path_;
  std::string part_path_;
  Descriptor file_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
