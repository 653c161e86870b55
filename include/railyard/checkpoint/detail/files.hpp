// SPDX-License-Identifier: MIT
// The one seam through which the files of checkpoints and of their run are read and changed. Checkpoint room.
#pragma once

#include "railyard/core/version.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Does what the system calls do: each returns -1 and sets errno where it fails. Tests put in others, which remember
/// what would survive a power cut, or fail.
class Files {
 public:
  using Path = std::filesystem::path;

  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  virtual ~Files() = default;

  virtual int make_directory(const Path& path) { return ::mkdir(path.c_str(), 0777); }
  /// Returns a descriptor of a file that is new.
  virtual int create(const Path& path) { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }
  /// Returns a descriptor of a file that may be there; flags: O_RDONLY or another way to open it, and O_CREAT and so
  /// on.
  virtual int open(const Path& path, int flags) { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }
  /// The same of what has that name in a directory that is open.
  virtual int open_at(int directory, const char* name, int flags) {
    return ::openat(directory, name, flags | O_CLOEXEC);
  }
  virtual int open_directory(const Path& path) { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }
  virtual ssize_t read_at(int fd, std::byte* to, std::size_t size, off_t at) { return ::pread(fd, to, size, at); }
  virtual int status(const Path& path, struct stat& status) { return ::stat(path.c_str(), &status); }
  virtual int status_of(int fd, struct stat& status) { return ::fstat(fd, &status); }
  /// Locks an open file, as flock does, or as fcntl does, which can also be asked about a lock.
  virtual int lock(int fd, int operation) { return ::flock(fd, operation); }
  virtual int lock(int fd, int command, struct flock& lock) { return ::fcntl(fd, command, &lock); }
  /// Gives a file the time of now.
  virtual int touch(int fd) { return ::futimens(fd, nullptr); }
  virtual ssize_t write(int fd, const std::byte* from, std::size_t size) { return ::write(fd, from, size); }
  /// Writes in place of what is there.
  virtual ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) {
    return ::pwrite(fd, from, size, at);
  }
  virtual int truncate(int fd, off_t size) { return ::ftruncate(fd, size); }
  /// Has writes go past the system's cache, or not: those of whole blocks, from addresses that are multiples of one.
  /// Returns -1 where the file system cannot do so.
  virtual int set_direct(int fd, bool is_direct) {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : ::fcntl(fd, F_SETFL, is_direct ? flags | O_DIRECT : flags & ~O_DIRECT);
  }
  /// Has the bytes on their way to the disk, and waits until they are there if asked to. Makes nothing durable.
  virtual int write_back(int fd, std::size_t begin, std::size_t size, bool waits) {
    const unsigned wait = waits ? SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER : 0U;
    return ::sync_file_range(fd, static_cast<off64_t>(begin), static_cast<off64_t>(size), SYNC_FILE_RANGE_WRITE | wait);
  }
  /// Whether an open file is on a disk, or in memory, that other hosts do not have mounted: one of the file systems
  /// that are known for that.
  virtual bool is_of_this_host(int fd) {
    constexpr std::array local{0xEF53L,       // ext2, ext3 and ext4
                               0x58465342L,   // XFS
                               0x9123683EL,   // Btrfs
                               0xF2F52010L,   // F2FS
                               0x2FC12FC1L,   // ZFS
                               0x794C7630L,   // overlays of containers
                               0x01021994L,   // tmpfs
                               0x858458F6L};  // ramfs
    struct statfs status {};
    if (::fstatfs(fd, &status) != 0) return false;
    return std::find(local.begin(), local.end(), static_cast<long>(status.f_type)) != local.end();
  }
  virtual int sync(int fd) { return ::fsync(fd); }
  /// The same of a file's bytes and size alone.
  virtual int sync_data(int fd) { return ::fdatasync(fd); }
  virtual int close(int fd) { return ::close(fd); }
  virtual int rename(const Path& from, const Path& to) { return ::rename(from.c_str(), to.c_str()); }
  virtual int unlink(const Path& path) { return ::unlink(path.c_str()); }
  virtual int remove_directory(const Path& path) { return ::rmdir(path.c_str()); }
  /// Appends the names of what is in a directory.
  virtual int list(const Path& path, std::vector<std::string>& names) {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory{::opendir(path.c_str()), ::closedir};
    if (!directory) return -1;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) return errno == 0 ? 0 : -1;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
  }
};

/// Repeats a call that a signal has interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
