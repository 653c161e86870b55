// SPDX-License-Identifier: MIT
// How the ranks of one host come to see each other's memory. Collectives room.
#pragma once

#include "railyard/collectives/detail/rendezvous.hpp"
#include "railyard/collectives/detail/segment.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/memory_left.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what one rank needs of all others' memory, by rank.
struct SharedGroup {
  SegmentLayout layout{};
  std::vector<std::shared_ptr<Mapping>> mappings{};  ///< the segments, where this rank sees them
  std::vector<Descriptor> pidfds{};                  ///< of the other ranks' processes; empty among threads
  bool is_one_process = true;
  bool has_cores_for_all = false;
  std::size_t available = 0;  ///< memory that is left for all ranks together

  [[nodiscard]] std::byte* base(int rank) const noexcept { return mappings[static_cast<std::size_t>(rank)]->base(); }
  [[nodiscard]] RankCell& cell(int rank) const noexcept {
    return *std::launder(reinterpret_cast<RankCell*>(base(rank)));
  }
  [[nodiscard]] Outbox& outbox(int from, int to) const noexcept {
    std::byte* first = base(from) + SegmentLayout::outboxes();
    return *std::launder(reinterpret_cast<Outbox*>(first + static_cast<std::size_t>(to) * sizeof(Outbox)));
  }
  [[nodiscard]] std::byte* arena(int rank) const noexcept { return base(rank) + layout.arena(rank); }
};

/// Says where a rank runs. Plain bytes, for a store. What is left at zero tells nothing apart.
struct Whereabouts {
  std::array<char, 40> boot_id{};  ///< of the running kernel
  std::uint64_t pid_namespace = 0;
  std::int32_t process = 0;
  std::int32_t file = -1;  ///< the number, in that process, of the file in memory that becomes its segment
  std::uint64_t arena_size = 0;
  std::uint64_t kept = 0;  ///< memory that an earlier start of this rank has left for it
  cpu_set_t cores{};

  [[nodiscard]] static Whereabouts here(std::size_t wanted_arena, int world_size) {
    Whereabouts where;
    std::memset(static_cast<void*>(&where), 0, sizeof where);  // the padding as well: it is sent as it lies
    where.process = ::getpid();
    where.arena_size = choose_arena_size(wanted_arena, world_size);
    ::sched_getaffinity(0, sizeof where.cores, &where.cores);
    return where;
  }
  /// Names what numbers of processes and files mean something in. Cost: some ten microseconds.
  void name_system() {
    detail::boot_id().copy(boot_id.data(), boot_id.size() - 1);
    struct stat status {};
    if (::stat("/proc/self/ns/pid", &status) == 0) pid_namespace = status.st_ino;
  }
  [[nodiscard]] bool is_reached_from(const Whereabouts& other) const noexcept {
    return boot_id == other.boot_id && pid_namespace == other.pid_namespace;
  }
};

template <class T>
[[nodiscard]] std::string to_text(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class T>
[[nodiscard]] T from_text(const std::string& text) {
  T value;
  std::memcpy(&value, text.data(), std::min(sizeof value, text.size()));
  return value;
}

/// Builds the group of one connect(); see SharedMemory::connect().
class GroupBuilder {
 public:
  GroupBuilder(const World& world, Store& store, const Deadline& deadline)
      : world_(world), store_(store), deadline_(deadline) {}
  GroupBuilder(const GroupBuilder&) = delete;
  GroupBuilder& operator=(const GroupBuilder&) = delete;
  ~GroupBuilder() {
    if (handover_ != nullptr) release();
  }

  /// Throws: CollectiveError that names who did not come or could not join; ConfigError, on all ranks, that says why
  /// they cannot share memory.
  [[nodiscard]] SharedGroup build(std::string_view kind, std::size_t wanted_arena) {
    auto own = Whereabouts::here(wanted_arena, world_.size);
    if (!store_.joins_threads()) {
      own.name_system();
      file_ = store_.take_memory();
      own.kept = memory_of(file_);
      if (!file_.is_open()) file_ = try_memory_file();
      own.file = file_.get();
    }
    prefix_ = enter_group(store_, kind, world_, to_text(own));
    // While the others come. Threads have it from this rank: it would be the same for them.
    if (world_.rank == 0) left_ = memory_left();
    const auto found = await_all(store_, prefix_, "here", world_, deadline_);
    throw_if_missing(found, world_, deadline_);
    std::vector<Whereabouts> all;
    for (const auto& text : found) all.push_back(from_text<Whereabouts>(*text));
    compare(own, all);
    if (group_.is_one_process) {
      share_with_threads();
    } else {
      if (world_.rank != 0) left_ = memory_left();
      share_with_processes(own, all);
    }
    return std::move(group_);
  }

 private:
  // What rank 0 makes for threads of one process, until each of them has its share of it.
  struct Handover {
    std::atomic<int> references;
    std::size_t available = 0;
    std::vector<std::shared_ptr<Mapping>> mappings{};
  };

  [[nodiscard]] std::string key(std::string_view stage, int rank) const { return stage_key(prefix_, stage, rank); }
  [[nodiscard]] std::string place() const { return place_text("connect", world_.rank, world_.size); }

  static constexpr char good = 'g';
  static constexpr char refused = 'r';
  static constexpr char failed = 'f';

  // Leaves what make() returns for the others, or why it has thrown.
  template <class Make>
  void leave(std::string_view stage, const Make& make) {
    std::string own;
    try {
      own = good + make();
    } catch (const ConfigError& error) {
      own = refused + std::string{error.what()};
    } catch (const std::exception& error) {
      own = failed + std::string{error.what()};
    }
    store_.set(key(stage, world_.rank), own);
  }

  // Returns what a rank has left. Throws if it has failed.
  [[nodiscard]] std::string take(int rank, const std::string& value) const {
    if (value.front() == good) return value.substr(1);
    const auto text = compose("{}: rank {} could not connect: {}", place(), rank, value.substr(1));
    if (value.front() == refused) throw ConfigError{text};
    throw CollectiveError{"connect", world_.rank, {rank}, text};
  }

  // Does so, and returns what all have left. Throws on all ranks if one has failed: connect() succeeds everywhere or
  // nowhere.
  template <class Make>
  std::vector<std::string> exchange(std::string_view stage, const Make& make) {
    expect_all(store_, prefix_, stage, world_);
    leave(stage, make);
    const auto found = await_all(store_, prefix_, stage, world_, deadline_);
    throw_if_missing(found, world_, deadline_);
    std::vector<std::string> values;
    for (int rank = 0; rank < world_.size; ++rank) values.push_back(take(rank, *found[static_cast<std::size_t>(rank)]));
    return values;
  }

  // Leaves what make() returns on rank 0 for all, and returns it on every rank, or throws on each.
  template <class Make>
  std::string hand_out(std::string_view stage, const Make& make) {
    if (world_.rank == 0) leave(stage, make);
    std::vector<std::optional<std::string>> found(static_cast<std::size_t>(world_.size), "");
    found.front() = store_.get(key(stage, 0), deadline_);
    throw_if_missing(found, world_, deadline_);
    return take(0, *found.front());
  }

  // Finds what all can do with, and whether they are threads of one process.
  void compare(const Whereabouts& own, const std::vector<Whereabouts>& all) {
    cpu_set_t cores = own.cores;
    group_.layout = {.world_size = world_.size, .arena_size = own.arena_size};
    group_.is_one_process = true;
    for (const Whereabouts& other : all) {
      group_.is_one_process = group_.is_one_process && other.is_reached_from(own) && other.process == own.process;
      group_.layout.arena_size = std::min<std::size_t>(group_.layout.arena_size, other.arena_size);
      kept_ += other.kept;
      CPU_OR(&cores, &cores, &other.cores);
    }
    group_.has_cores_for_all = CPU_COUNT(&cores) >= world_.size;
  }

  void check_reach(const Whereabouts& own, const std::vector<Whereabouts>& all) const {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (all[static_cast<std::size_t>(rank)].is_reached_from(own)) continue;
      throw ConfigError{
          compose("SharedMemory joins processes of one host and one container, but rank {} runs in another than "
                  "this one; use Gloo, which sends over the network what cannot be shared",
                  rank)};
    }
  }

  // Returns the memory that there is for all ranks, as far as this one can tell.
  std::size_t check_memory() const {
    const std::size_t available = left_ + kept_;
    if (world_.size > most_host_ranks) {
      throw ConfigError{compose("SharedMemory joins up to {} ranks, not {}: use Gloo over TCP, or fewer workers",
                                most_host_ranks, world_.size)};
    }
    check_memory_left(world_.size, group_.layout.touched(), available);
    return available;
  }

  void make_cell(const Mapping& mapping) const {
    ::new (mapping.base()) RankCell;
    for (int to = 0; to < world_.size; ++to) {
      ::new (mapping.base() + SegmentLayout::outboxes() + static_cast<std::size_t>(to) * sizeof(Outbox)) Outbox;
    }
  }

  void share_with_threads() {
    const auto share = hand_out("handover", [&]() -> std::string {
      auto made = std::make_unique<Handover>();
      made->references = world_.size;
      made->available = check_memory();
      for (int rank = 0; rank < world_.size; ++rank) {
        made->mappings.push_back(map_private(group_.layout.size(), "connect"));
      }
      handover_ = made.release();
      return to_text(handover_);
    });
    exchange("seated", [&]() -> std::string {
      if (!claim(world_.rank)) throw Error{"the others gave up before this rank came"};
      has_seat_ = true;
      handover_ = from_text<Handover*>(share);
      group_.mappings = handover_->mappings;
      group_.available = handover_->available;
      make_cell(*group_.mappings[static_cast<std::size_t>(world_.rank)]);
      return {};
    });
    is_complete_ = true;
  }

  // A key of a store can be set once, which makes it a lock that is taken once: either a late rank claims its seat and
  // will release its share, or a rank that waited in vain claims it and the late rank keeps away.
  [[nodiscard]] bool claim(int rank) {
    try {
      store_.set(key("seat", rank), "");
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Gives back this rank's share of the handover, and those of ranks that will not come any more.
  void release() noexcept {
    try {
      int num_shares = has_seat_ ? 1 : 0;
      for (int rank = 0; rank < world_.size && !is_complete_; ++rank) num_shares += claim(rank) ? 1 : 0;
      // Whoever has none left may look at it no more: another rank may have claimed its share, and be gone with it.
      if (num_shares > 0 && handover_->references.fetch_sub(num_shares) == num_shares) delete handover_;
    } catch (...) {  // out of memory: a few pages stay with the process
    }
  }

  // A file may be mapped before its own process has given it its size; it is looked at when all have said so.
  void share_with_processes(const Whereabouts& own, const std::vector<Whereabouts>& all) {
    // The file stays open here until everybody has mapped it.
    const auto rooms = exchange("mapped", [&]() -> std::string {
      check_reach(own, all);
      const std::size_t available = check_memory();
      file_ = size_memory_file(std::move(file_), group_.layout.size(), "connect");
      const auto segment = map_shared(file_, group_.layout.size(), "connect");
      map_pages(file_, *segment);
      make_cell(*segment);
      for (int rank = 0; rank < world_.size; ++rank) {
        const Whereabouts& other = all[static_cast<std::size_t>(rank)];
        const bool is_own = rank == world_.rank;
        group_.pidfds.push_back(is_own ? Descriptor{} : Descriptor{open_pidfd(other.process)});
        group_.mappings.push_back(
            is_own ? segment
                   : map_shared(open_memory(rank, other.process, other.file), group_.layout.size(), "connect"));
      }
      return to_text(available);
    });
    group_.available = from_text<std::size_t>(rooms.front());
    for (const auto& room : rooms) group_.available = std::min(group_.available, from_text<std::size_t>(room));
  }

  [[nodiscard]] static Descriptor open_memory(int rank, pid_t process, int number) {
    const std::string path = compose("/proc/{}/fd/{}", process, number);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0) return adopt(fd, "connect");
    throw ConfigError{
        compose("the memory of rank {} (process {}) cannot be opened through {}: {}; ranks that share memory must "
                "run as one user and see each other in /proc. Use Gloo with .transport = GlooTransport::tcp where "
                "they do not",
                rank, process, path, explain_errno(errno))};
  }

  const World& world_;
  Store& store_;
  std::string prefix_;
  const Deadline& deadline_;
  Handover* handover_ = nullptr;
  bool has_seat_ = false;
  bool is_complete_ = false;  // every rank has its seat, and gives it back itself
  std::size_t left_ = 0;      // memory that the container or the host has left
  std::size_t kept_ = 0;      // and what all ranks have already
  Descriptor file_;           // of this rank's segment, among processes
  SharedGroup group_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
