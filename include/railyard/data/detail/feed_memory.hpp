// SPDX-License-Identifier: MIT
// The memory through which one worker of a host hands batches to the others. Data room.
#pragma once

#include "railyard/data/shuffle.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <new>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

// One that is dead, and waits to be buried, counts as alive.
[[nodiscard]] inline bool is_alive(pid_t process) noexcept { return ::kill(process, 0) == 0 || errno != ESRCH; }

// Says why a worker neither reads nor takes what it is given: its loop has batches and takes none, or there is no
// memory for another batch beside the one that its loop has.
enum class FeedRest : std::uint32_t { none, of_loop, of_memory };

// Belongs to one reader, and to the leader who writes for it. Bytes are counted from the begin of the memory's life;
// byte number n lies at n modulo the capacity.
struct alignas(64) FeedLine {
  // Written by the reader.
  std::atomic<std::uint64_t> session{0};  // that it wants to be served; 0 for none
  std::atomic<std::uint64_t> key{0};      // which batches of what these are
  std::atomic<std::uint64_t> rank{0};     // whose part of them it wants
  std::atomic<std::int32_t> process{0};
  std::atomic<FeedRest> rest{FeedRest::none};
  std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint32_t> taken{0};  // a futex: moves when the leader may find something new here
  // Written by the leader.
  alignas(64) std::atomic<std::uint64_t> served{0};  // the session that it writes for; 0 for none
  std::atomic<std::uint64_t> accepted{0};            // the last that it has written for
  std::atomic<std::uint64_t> start{0};               // where that begins
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint32_t> filled{0};  // a futex: moves when the reader may find something new here
};

struct FeedHeader {
  std::uint64_t token = 0;  // tells this memory from any other
  std::uint64_t num_readers = 0;
  std::uint64_t capacity = 0;                     // bytes of each line
  std::atomic<FeedRest> rest{FeedRest::of_loop};  // of the leader
  std::atomic<bool> is_gone{false};               // the leader
  std::atomic<std::uint64_t> key{0};    // of the session that is under way, whose readers are known; 0 for none
  std::atomic<std::uint32_t> asked{0};  // a futex: moves when a reader wants to be served
};

// Is a mapping of it. Disappears with the last process that maps it, however that ends.
class FeedMemory {
 public:
  // Makes the memory. Throws: Error if there is none.
  FeedMemory(std::size_t num_readers, std::size_t capacity)
      : file_(adopt(::memfd_create("railyard-feed", MFD_CLOEXEC), "memory for batches")), process_(::getpid()) {
    size_ = size_for(num_readers, capacity);
    const WriteSignalGuard<SIGXFSZ> guard;
    if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) throw_system("memory for batches", errno);
    map();
    const auto token = derive_seed(static_cast<std::uint64_t>(monotonic_ns()), static_cast<std::uint64_t>(process_));
    ::new (base_) FeedHeader{.token = token, .num_readers = num_readers, .capacity = capacity};
    for (std::size_t reader = 0; reader < num_readers; ++reader) ::new (line_at(reader)) FeedLine;
  }
  // Opens what another worker has made, by its address. Throws: Error if it is not there any more.
  explicit FeedMemory(const std::string& address) {
    std::istringstream words{address};
    int file = -1;
    std::uint64_t token = 0;
    words >> process_ >> file >> token;
    file_ = adopt(::open(compose("/proc/{}/fd/{}", process_, file).c_str(), O_RDWR | O_CLOEXEC), "memory for batches");
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) throw_system("memory for batches", errno);
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ < sizeof(FeedHeader)) throw Error{"memory for batches: it is another file by now"};
    map();
    file_.reset();
    if (header().token == token && size_ == size_for(header().num_readers, header().capacity)) return;
    ::munmap(base_, size_);
    throw Error{"memory for batches: it is another file by now"};
  }
  FeedMemory(const FeedMemory&) = delete;
  FeedMemory& operator=(const FeedMemory&) = delete;
  ~FeedMemory() { ::munmap(base_, size_); }

  // What others open it by, while this object lives.
  [[nodiscard]] std::string address() const { return compose("{} {} {}", process_, file_.get(), header().token); }

  [[nodiscard]] FeedHeader& header() const noexcept { return *std::launder(static_cast<FeedHeader*>(base_)); }
  [[nodiscard]] FeedLine& line(std::size_t reader) const noexcept {
    return *std::launder(reinterpret_cast<FeedLine*>(line_at(reader)));
  }
  // The bytes of a line.
  [[nodiscard]] std::byte* bytes(std::size_t reader) const noexcept {
    return line_at(header().num_readers) + reader * header().capacity;
  }

  [[nodiscard]] pid_t maker() const noexcept { return process_; }
  [[nodiscard]] bool is_maker() const noexcept { return ::getpid() == process_; }

 private:
  static constexpr std::size_t lines_offset =
      (sizeof(FeedHeader) + alignof(FeedLine) - 1) / alignof(FeedLine) * alignof(FeedLine);

  [[nodiscard]] static std::size_t size_for(std::size_t num_readers, std::size_t capacity) noexcept {
    return lines_offset + num_readers * (sizeof(FeedLine) + capacity);
  }
  [[nodiscard]] std::byte* line_at(std::size_t reader) const noexcept {
    return static_cast<std::byte*>(base_) + lines_offset + reader * sizeof(FeedLine);
  }
  void map() {
    base_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (base_ == MAP_FAILED) throw_system("memory for batches", errno);
  }

  Descriptor file_{};
  pid_t process_ = 0;
  std::size_t size_ = 0;
  void* base_ = nullptr;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
