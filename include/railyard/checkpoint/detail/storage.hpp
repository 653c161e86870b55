// SPDX-License-Identifier: MIT
// What can be said and done about the storage of a checkpoint. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a call of the system that has failed.
struct FailedCall {
  std::string_view call{};
  int error = 0;
};

/// Says what to do about an error of the storage.
[[nodiscard]] inline std::string remedy_of(int error, const std::filesystem::path& path) {
  std::error_code code;
  switch (error) {
    case ENOSPC: {
      const auto space = std::filesystem::space(path.parent_path(), code);
      return compose("the file system has {} MB left: make room, or keep fewer checkpoints",
                     code ? 0 : space.available / 1'000'000);
    }
    case EDQUOT:
      return "the quota of disk space is used up: make room, or ask for more";
    case EFBIG:
      return "no file may become that large: see ulimit -f";
    case EROFS:
      return "the file system is mounted read-only: choose another folder, or have it checked and mounted anew";
    case EIO:
      return "the disk or the network storage fails: see the kernel's log (dmesg), and choose another folder";
    case EACCES:
    case EPERM:
      return "choose a folder that this user may write to";
    default:
      return "choose another folder if this lasts";
  }
}

/// Says why what is written below this directory would not last, or nothing if no reason is known.
[[nodiscard]] inline std::string_view doubt_about(const std::filesystem::path& directory) {
  constexpr long overlay = 0x794C7630;  // OVERLAYFS_SUPER_MAGIC, which not all releases of the kernel's headers have
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0) return {};
  const auto type = static_cast<long>(status.f_type);
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) return "it is kept in memory, and gone when the machine stops";
  if (type == overlay) return "it belongs to a container, and is gone with it";
  return {};
}

[[noreturn]] inline void throw_storage(const std::filesystem::path& path, const FailedCall& failed) {
  throw Error{compose("{}: {} failed: {}; {}", path.string(), failed.call, explain_errno(failed.error),
                      remedy_of(failed.error, path))};
}

inline void check_call(int result, std::string_view call, const std::filesystem::path& path) {
  if (result < 0) throw_storage(path, {call, errno});
}

/// Throws: DataError.
[[noreturn]] inline void throw_unreadable(const std::filesystem::path& path, int error) {
  throw DataError{compose("{} cannot be read: {}", path.string(), explain_errno(error))};
}

/// Returns what is known of a file or directory; nothing if there is none. Throws: DataError if that cannot be told.
[[nodiscard]] inline std::optional<struct stat> status_of(Files& files, const std::filesystem::path& path) {
  struct stat status {};
  if (uninterrupted([&] { return files.status(path, status); }) == 0) return status;
  if (errno != ENOENT && errno != ENOTDIR) throw_unreadable(path, errno);
  return std::nullopt;
}
[[nodiscard]] inline bool is_there(Files& files, const std::filesystem::path& path) {
  return status_of(files, path).has_value();
}

/// Returns the names of what is in a directory; none if there is no such one. Throws: DataError if it cannot be read.
[[nodiscard]] inline std::vector<std::string> names_in_directory(Files& files, const std::filesystem::path& path) {
  std::vector<std::string> names;
  const int result = uninterrupted([&] {
    names.clear();
    return files.list(path, names);
  });
  if (result != 0 && errno != ENOENT) throw_unreadable(path, errno);
  return names;
}

/// Reads from an open file, in as many calls as it takes. Returns how many bytes there were, less than were asked for
/// only at its end, with errno 0, or where it cannot be read.
inline std::size_t read_some(Files& files, int fd, std::uint64_t begin, std::span<std::byte> to) {
  constexpr std::size_t most_at_once = std::size_t{1} << 30U;  // the system moves less than 2 GiB
  std::size_t got = 0;
  while (got < to.size()) {
    const std::size_t size = std::min(to.size() - got, most_at_once);
    const ssize_t part = uninterrupted([&] {
      errno = 0;  // of a call before that was interrupted
      return files.read_at(fd, to.data() + got, size, static_cast<off_t>(begin + got));
    });
    if (part <= 0) break;
    got += static_cast<std::size_t>(part);
  }
  if (got == to.size()) errno = 0;
  return got;
}

/// Returns what is in a file; nothing if there is none. Throws: DataError if it cannot be read.
[[nodiscard]] inline std::optional<std::string> content_of(Files& files, const std::filesystem::path& path) {
  const Descriptor file{uninterrupted([&] { return files.open(path, O_RDONLY); })};
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  if (!file.is_open()) throw_unreadable(path, errno);
  std::string text;
  for (std::size_t more = std::size_t{1} << 16U;; more *= 2) {
    const std::size_t begin = text.size();
    text.resize(begin + more);
    const std::size_t got = read_some(files, file.get(), begin, std::as_writable_bytes(std::span{text}).subspan(begin));
    if (errno != 0) throw_unreadable(path, errno);
    text.resize(begin + got);
    if (got < more) return text;
  }
}

/// Makes what has been done to the entries of a directory durable.
inline void sync_directory(Files& files, const std::filesystem::path& path) {
  const int fd = uninterrupted([&] { return files.open_directory(path); });
  check_call(fd, "opening the directory", path);
  const int result = uninterrupted([&] { return files.sync(fd); });
  const int error = errno;
  files.close(fd);
  // Some network file systems have nothing to be synchronised in a directory, and say so.
  if (result < 0 && error != EINVAL) throw_storage(path, {"fsync of the directory", error});
}

/// Makes a directory, and those above it that are not there, each of which lasts then. Returns 0, or the error.
[[nodiscard]] inline int make_directories(Files& files, const std::filesystem::path& path) {
  const auto status = status_of(files, path);
  if (status) return S_ISDIR(status->st_mode) ? 0 : ENOTDIR;
  if (path.has_relative_path()) {
    if (const int error = make_directories(files, path.parent_path()); error != 0) return error;
  }
  if (uninterrupted([&] { return files.make_directory(path); }) != 0) return errno == EEXIST ? 0 : errno;
  sync_directory(files, path.parent_path());
  return 0;
}

/// Removes a file, or a directory with all that is in it. Returns 0, or the error that it has met first; goes on all
/// the same.
inline int remove_all(Files& files, const std::filesystem::path& path) {
  if (uninterrupted([&] { return files.unlink(path); }) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return errno == ENOENT ? 0 : errno;
  std::vector<std::string> names;
  int first = uninterrupted([&] { return files.list(path, names); }) == 0 ? 0 : errno;
  for (const std::string& name : names) {
    const int error = remove_all(files, path / name);
    if (first == 0) first = error;
  }
  if (uninterrupted([&] { return files.remove_directory(path); }) != 0 && first == 0) first = errno;
  return first;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
