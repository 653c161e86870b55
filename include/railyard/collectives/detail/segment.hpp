// SPDX-License-Identifier: MIT
// The memory by which one rank of a host shows itself to the others, and how it is mapped. Collectives room.
#pragma once

#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// So many ranks of one host share memory at most.
inline constexpr int most_host_ranks = 256;
/// Payloads up to this size travel in the post itself, by one wait instead of two.
inline constexpr std::size_t small_bytes = 16U << 10U;
/// And those up to this one in its first cache line.
inline constexpr std::size_t tiny_bytes = 16;
/// A rank's private memory is shown to the others in pieces of this size.
inline constexpr std::size_t stage_bytes = 128U << 10U;

/// Is what a rank shows the others in one step. A rank has two, which it uses in turn: by the time it writes one anew
/// all others have taken the step in between, and so have read it.
struct Post {
  alignas(128) std::atomic<std::uint64_t> step{0};  ///< written last: the step that the rest belongs to
  Signature signature{};
  std::uint64_t place = 0;  ///< where its data lies; 0 if the others cannot see it there, and look at its stage
  std::array<std::byte, tiny_bytes> tiny{};  ///< in the line of what is before: one miss of the cache less
  alignas(64) std::array<std::byte, small_bytes> payload;

  [[nodiscard]] std::byte* payload_of(std::size_t size_bytes) noexcept {
    return size_bytes <= tiny_bytes ? tiny.data() : payload.data();
  }
  [[nodiscard]] const std::byte* payload_of(std::size_t size_bytes) const noexcept {
    return size_bytes <= tiny_bytes ? tiny.data() : payload.data();
  }
};

static_assert(offsetof(Post, payload) == 64);

/// Is one direction between two ranks; lies in the sender's cell.
struct Outbox {
  alignas(64) std::atomic<std::uint64_t> offered{0};  ///< counts the pieces that the sender has shown
  Signature signature{};
  std::uint64_t place = 0;
  alignas(64) std::atomic<std::uint64_t> taking{0};  ///< the piece that the receiver has begun to copy
  std::atomic<std::uint64_t> taken{0};               ///< counts the pieces that it has copied
};

/// Says why a rank takes no part any more. Written once, before Flag::failed is set.
struct SharedVerdict {
  std::array<std::int32_t, 64> blamed{};
  std::uint32_t num_blamed = 0;
  std::uint32_t size = 0;
  std::array<char, 4096> text{};
};

/// Bits of RankCell::flags.
struct Flag {
  static constexpr std::uint32_t failed = 1;   ///< its verdict stands; whoever waits for it gives up
  static constexpr std::uint32_t failing = 2;  ///< somebody writes its verdict, or has
  static constexpr std::uint32_t left = 4;     ///< its object is gone
};

/// Is what a rank shows of one line of steps, which one of its threads takes.
struct Lane {
  alignas(128) std::atomic<std::uint32_t> num_asleep{0};  ///< of the whole group; only rank 0's counts
  alignas(128) std::atomic<std::uint32_t> is_asleep{0};
  std::atomic<std::uint32_t> bell{0};           ///< a futex: moves when a sleeping rank has to look
  std::atomic<std::uint32_t> has_withdrawn{0};  ///< it has failed and is at nobody's memory any more
  std::atomic<std::uint64_t> rested{0};         ///< the step since which it has been at nobody's memory
  std::array<Post, 2> posts;
};

/// Is at the beginning of each rank's segment. The outboxes, one for each rank, come after it, then the arena.
struct RankCell {
  static constexpr std::size_t num_lanes = 2;  ///< operations of the backend, and exchanges beside them

  alignas(128) std::atomic<std::uint32_t> flags{0};
  SharedVerdict verdict{};
  std::array<Lane, num_lanes> lanes;
  alignas(4096) std::array<std::array<std::byte, stage_bytes>, 2> stages;
};

/// Owns a mapping of memory.
class Mapping {
 public:
  Mapping(void* base, std::size_t size) noexcept : base_(static_cast<std::byte*>(base)), size_(size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(base_, size_); }

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::byte* base_;
  std::size_t size_;
};

/// Says where the parts of a rank's segment lie. All ranks of a group compute the same from the same numbers.
struct SegmentLayout {
  int world_size = 1;
  std::size_t arena_size = 0;

  [[nodiscard]] static constexpr std::size_t page_up(std::size_t size) noexcept {
    return (size + 4095U) / 4096U * 4096U;
  }
  [[nodiscard]] static constexpr std::size_t outboxes() noexcept { return sizeof(RankCell); }
  /// Where rank's arena begins. Two arenas never lie a multiple of a large power of two apart: the first-level cache
  /// would take their lines for one another, which costs up to seven times the time of a reduction.
  [[nodiscard]] std::size_t arena(int rank) const noexcept {
    const std::size_t stagger = static_cast<std::size_t>(rank) * (2U * 4096U + 128U);
    return page_up(outboxes() + static_cast<std::size_t>(world_size) * sizeof(Outbox)) + stagger;
  }
  [[nodiscard]] std::size_t size() const noexcept { return page_up(arena(world_size) + arena_size); }
  /// What is touched of it in any case.
  [[nodiscard]] std::size_t touched() const noexcept { return arena(0); }
};

/// Chooses the size of every rank's arena: address space, of which only what is used takes memory.
[[nodiscard]] inline std::size_t choose_arena_size(std::size_t wanted, int world_size) {
  constexpr std::size_t least = std::size_t{64} << 20U;
  std::size_t size = wanted > 0 ? wanted : physical_memory();
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    // Every rank maps all arenas, and the rest of the program needs room as well.
    size = std::min(size, static_cast<std::size_t>(limit.rlim_cur) / 4 / static_cast<std::size_t>(world_size));
  }
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    size = std::min(size, static_cast<std::size_t>(limit.rlim_cur) / 2);
  }
  return SegmentLayout::page_up(std::max(size, least));
}

[[noreturn]] inline void refuse_addresses(const std::string& what, std::size_t size, int error) {
  throw ConfigError{compose(
      "{}: there are no addresses left for {} MiB that become memory only as they are used: {}; see ulimit -v and "
      "vm.overcommit_memory, ask for less by SharedMemory::Options::arena_bytes, or use Gloo with .transport = "
      "GlooTransport::tcp",
      what, size >> 20U, explain_errno(error))};
}

/// Returns private memory that becomes real as it is touched. Throws: ConfigError if there is no address space left.
[[nodiscard]] inline std::shared_ptr<Mapping> map_private(std::size_t size, const std::string& what) {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) refuse_addresses(what, size, errno);
  return std::make_shared<Mapping>(base, size);
}

/// Returns a file in memory without a name, of no size; no descriptor if the system makes none.
[[nodiscard]] inline Descriptor try_memory_file() noexcept {
  return Descriptor{::memfd_create("railyard", MFD_CLOEXEC)};
}

/// Gives a file in memory that size; makes one without a name if it is not open. Throws: ConfigError if the system
/// makes none or not of that size.
[[nodiscard]] inline Descriptor size_memory_file(Descriptor file, std::size_t size, const std::string& what) {
  const auto refuse = [&](const char* call) {
    const int error = errno;
    return ConfigError{compose(
        "{}: {} of {} MiB of shared memory failed: {}; a container may forbid it (seccomp), or a limit be in the way "
        "(ulimit -f): lift it, or use Gloo with Options::transport = GlooTransport::tcp, which shares no memory",
        what, call, size >> 20U, explain_errno(error))};
  };
  if (!file.is_open()) file = try_memory_file();
  if (!file.is_open()) throw refuse("memfd_create()");
  const WriteSignalGuard<SIGXFSZ> guard;
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) throw refuse("ftruncate()");
  return file;
}

/// Maps a rank's segment. Throws: ConfigError if there is no address space left.
[[nodiscard]] inline std::shared_ptr<Mapping> map_shared(const Descriptor& file, std::size_t size,
                                                         const std::string& what) {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (base == MAP_FAILED) refuse_addresses(what, size, errno);
  ::madvise(base, size, MADV_DONTDUMP);  // or a core dump of one rank would hold the memory of all
  return std::make_shared<Mapping>(base, size);
}

/// Returns the bytes that a file in memory takes.
[[nodiscard]] inline std::size_t memory_of(const Descriptor& file) noexcept {
  struct stat status {};
  return file.is_open() && ::fstat(file.get(), &status) == 0 ? static_cast<std::size_t>(status.st_blocks) * 512 : 0;
}

/// Maps the pages that the file has already at once, instead of each as it is first written to. A page that is read
/// brings its neighbours with it, which takes a third less time than MADV_POPULATE_READ: that asks for each.
inline void map_pages(const Descriptor& file, const Mapping& mapping) noexcept {
  constexpr std::size_t neighbourhood = 64U << 10U;  // what the kernel maps around a page, unless it is told otherwise
  for (off_t end = 0;;) {
    const off_t begin = ::lseek(file.get(), end, SEEK_DATA);
    if (begin < 0) return;
    end = ::lseek(file.get(), begin, SEEK_HOLE);
    if (end < begin) return;
    const auto size = static_cast<std::size_t>(end - begin);
    ::madvise(mapping.base() + begin, size, MADV_HUGEPAGE);  // first, or huge pages would be mapped as small ones
    for (std::size_t at = 0; at < size; at += neighbourhood) {
      [[maybe_unused]] const std::byte read = *static_cast<const volatile std::byte*>(mapping.base() + begin + at);
    }
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
