// SPDX-License-Identifier: MIT
// A disk of which one call fails, or at which the process dies.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace railyard_test {

/// Lets one call fail as the system would let it, or kills the process there. Several threads may call it: what waits
/// for storage no longer leaves behind a thread that does.
class FailingFiles : public railyard::detail::Files {
 public:
  enum class How {
    fails,
    fails_for_good,  // and so do all later calls
    writes_less,
    renames_all_the_same,
    dies_before,
    dies_after
  };

  /// The call with this number, counted from 0, is the one.
  FailingFiles(int number, int error, How how = How::fails) : number_(number), error_(error), how_(how) {}

  [[nodiscard]] int num_calls() const { return num_calls_; }
  /// What the call was that has failed first; empty if none has.
  [[nodiscard]] std::string failed() const {
    const std::lock_guard lock{mutex_};
    return failed_;
  }

  int make_directory(const Path& path) override {
    return call("mkdir", [&] { return Files::make_directory(path); });
  }
  int create(const Path& path) override {
    return call("create", [&] { return Files::create(path); });
  }
  int open_directory(const Path& path) override {
    return call("open", [&] { return Files::open_directory(path); });
  }
  int open_at(int directory, const char* name, int flags) override {
    return call("open at", [&] { return Files::open_at(directory, name, flags); });
  }
  ssize_t read_at(int fd, std::byte* to, std::size_t size, off_t at) override {
    return call("read", [&] { return Files::read_at(fd, to, size, at); });
  }
  int status(const Path& path, struct stat& status) override {
    return call("stat", [&] { return Files::status(path, status); });
  }
  int status_of(int fd, struct stat& status) override {
    return call("fstat", [&] { return Files::status_of(fd, status); });
  }
  int lock(int fd, int operation) override {
    return call("lock", [&] { return Files::lock(fd, operation); });
  }
  int lock(int fd, int command, struct flock& lock) override {
    return call("lock", [&] { return Files::lock(fd, command, lock); });
  }
  int touch(int fd) override {
    return call("touch", [&] { return Files::touch(fd); });
  }
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    if (how_ == How::writes_less && num_calls_ == number_) size = (size + 1) / 2;
    return call("write", [&] { return Files::write(fd, from, size); });
  }
  int open(const Path& path, int flags) override {
    return call("open file", [&] { return Files::open(path, flags); });
  }
  ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) override {
    return call("write at", [&] { return Files::write_at(fd, from, size, at); });
  }
  int truncate(int fd, off_t size) override {
    return call("truncate", [&] { return Files::truncate(fd, size); });
  }
  int sync_data(int fd) override {
    return call("sync data", [&] { return Files::sync_data(fd); });
  }
  /// Where it cannot be had, the rest is as it would be.
  int set_direct(int fd, bool is_direct) override {
    return call("set direct", [&] {
      Files::set_direct(fd, is_direct);
      return 0;
    });
  }
  int write_back(int fd, std::size_t begin, std::size_t size, bool waits) override {
    return call("write_back", [&] { return Files::write_back(fd, begin, size, waits); });
  }
  int sync(int fd) override {
    return call("sync", [&] { return Files::sync(fd); });
  }
  int close(int fd) override {
    return call("close", [&] { return Files::close(fd); });
  }
  int rename(const Path& from, const Path& to) override {
    return call("rename", [&] { return Files::rename(from, to); });
  }
  int unlink(const Path& path) override {
    return call("unlink", [&] { return Files::unlink(path); });
  }
  int remove_directory(const Path& path) override {
    return call("rmdir", [&] { return Files::remove_directory(path); });
  }
  int list(const Path& path, std::vector<std::string>& names) override {
    return call("list", [&] { return Files::list(path, names); });
  }

 private:
  template <class Real>
  auto call(const std::string& name, const Real& real) -> decltype(real()) {
    const int number = num_calls_++;
    const bool is_chosen = number == number_ || (how_ == How::fails_for_good && number > number_);
    if (!is_chosen || how_ == How::writes_less) return real();
    if (how_ == How::dies_before) ::raise(SIGKILL);
    // Whatever close says, the descriptor is closed.
    const bool is_done =
        how_ == How::dies_after || name == "close" || (how_ == How::renames_all_the_same && name == "rename");
    if (is_done) real();
    if (how_ == How::dies_after) ::raise(SIGKILL);
    {
      const std::lock_guard lock{mutex_};
      if (failed_.empty()) failed_ = name;
    }
    errno = error_;
    return -1;
  }

  int number_;
  int error_;
  How how_;
  std::atomic<int> num_calls_{0};
  mutable std::mutex mutex_{};
  std::string failed_{};
};

}  // namespace railyard_test
