// SPDX-License-Identifier: MIT
// Memory that a worker fills and that outlives it: the supervisor holds it as well. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Throws: Error that says why there is no memory for a snapshot, and what to do.
[[noreturn]] inline void refuse_snapshot(std::size_t size_bytes, std::string_view why) {
  throw Error{compose(
      "a snapshot of {} bytes of the state does not fit into memory: {}; give the job more memory, or save less: each "
      "worker keeps up to {} snapshots of its part for checkpoints, and {} more, unless FailureConfig::memory_percent "
      "is 0",
      size_bytes, why, num_snapshots, num_snapshots)};
}

/// Owns an anonymous file and this process's mapping of it. What a process maps is its own affair.
class SnapshotMemory {
 public:
  SnapshotMemory() = default;
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;
  ~SnapshotMemory() { unmap(); }

  /// Makes the file, which the first map() does otherwise: before any fork, so that every process has it.
  void make_file() {
    file_ = adopt(::memfd_create("railyard-snapshot", MFD_CLOEXEC), "memory for snapshots");
    number_of_file_.store(file_.get());
  }

  /// How much there is of it. May be called while another thread maps it.
  [[nodiscard]] std::size_t size() const noexcept {
    struct stat file {};
    const int number = number_of_file_.load();
    if (number < 0 || ::fstat(number, &file) != 0) return 0;
    return static_cast<std::size_t>(std::min<off_t>(file.st_size, file.st_blocks * 512));
  }

  /// Returns the first size_bytes of it, which grows if need be and does not shrink: it is to be warm the next time.
  /// Throws: Error if the system does not give that much; it is as large as before then.
  [[nodiscard]] std::span<std::byte> map(std::size_t size_bytes) {
    if (size_bytes == 0) return {};
    if (mapped_.size() < size_bytes) map_anew(size_bytes);
    return mapped_.first(size_bytes);
  }

  /// Reads what is there from `begin` on. Not by a mapping: whoever reads once would pay more for making and ending it
  /// than for the bytes. May be called while others read. Throws: Error if there is less.
  void read(std::size_t begin, std::span<std::byte> to) const {
    if (begin > size() || to.size() > size() - begin) {
      throw Error{compose("a snapshot has {} bytes, and {} from byte {} on were to be read", size(), to.size(), begin)};
    }
    while (!to.empty()) {
      const ssize_t got = ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(begin));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw Error{compose("a snapshot cannot be read: {}", explain_errno(got < 0 ? errno : EIO))};
      begin += static_cast<std::size_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

  /// Gives all of it back to the system.
  void empty() noexcept {
    const std::size_t former = size();
    unmap();
    give_back(0, former);
  }

 private:
  void map_anew(std::size_t size_bytes) {
    if (!file_.is_open()) make_file();
    const std::size_t former = size();
    // Now, rather than by a signal in the middle of the copy: a full /dev/shm does not matter here, but memory may.
    grow(former, size_bytes);
    size_bytes = std::max(size_bytes, former);  // so that it is mapped once
    unmap();
    void* at = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_.get(), 0);
    if (at == MAP_FAILED) {
      const int error = errno;
      give_back(former, size_bytes);
      refuse_snapshot(size_bytes, explain_errno(error));
    }
    ::madvise(at, size_bytes, MADV_DONTDUMP);
    mapped_ = {static_cast<std::byte*>(at), size_bytes};
  }

  // In pieces, so that it comes to an end although signals interrupt it.
  void grow(std::size_t former, std::size_t size_bytes) const {
    const WriteSignalGuard<SIGXFSZ> guard;
    constexpr std::size_t most = std::size_t{16} << 20U;
    for (std::size_t from = former; from < size_bytes;) {
      const std::size_t piece = std::min(most, size_bytes - from);
      if (::fallocate(file_.get(), 0, static_cast<off_t>(from), static_cast<off_t>(piece)) == 0) {
        from += piece;
      } else if (const int error = errno; error != EINTR) {
        give_back(former, size_bytes);  // where memory is short, none is to lie there for nothing
        refuse_snapshot(size_bytes, explain_errno(error));
      }
    }
  }

  // The file keeps its length: somebody whose answer came too late may still be reading, and ends if it becomes
  // shorter.
  void give_back(std::size_t from, std::size_t to) const noexcept {
    constexpr std::size_t page = 4096;
    const auto begin = static_cast<off_t>(from);
    const auto end = static_cast<off_t>((to + page - 1) / page * page);
    if (end > begin) ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin);
  }

  void unmap() noexcept {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
    mapped_ = {};
  }

  Descriptor file_;
  std::atomic<int> number_of_file_{-1};
  std::span<std::byte> mapped_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
