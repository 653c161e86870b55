// SPDX-License-Identifier: MIT
// The backend that joins threads of one process by their common memory. Collectives room: nothing but std.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"
#include "railyard/collectives/detail/local_hub.hpp"
#include "railyard/collectives/detail/reduce.hpp"
#include "railyard/collectives/detail/rendezvous.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Joins threads of one process: every rank reads and writes the others' buffers where they are. Needs no library and
/// opens no socket; a race in it is visible to ThreadSanitizer. Reductions add in the order of ranks.
/// Cost: all_reduce reads each buffer once and writes it once, shared among the ranks; two waits.
class Local {
 public:
  static constexpr std::string_view name = "Local";
  static constexpr Reach reach = Reach::process;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {};

  static void check(const Options& /*options*/) noexcept {}

  /// Joins the group. store outlives the call only.
  /// Throws: CollectiveError that names the ranks which did not come; ConfigError if rank 0 is in another process.
  [[nodiscard]] static std::unique_ptr<Local> connect(const Options& /*options*/, const World& world, Store& store,
                                                      const Deadline& deadline) {
    detail::check_world(world);
    if (world.size == 1) return std::unique_ptr<Local>{new Local{world, nullptr}};
    const std::string prefix = detail::enter_group(store, name, world);
    // Owned from here on: when arrive() throws, the destructor gives this rank's share of the hub back.
    std::unique_ptr<Local> local{new Local{world, find_hub(prefix, world, store, deadline)}};
    local->hub_->arrive(world, deadline, [&](int rank) { return claim(prefix, rank, store); });
    return local;
  }

  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;
  ~Local() {
    if (hub_ != nullptr && hub_->leave(world_.rank)) delete hub_;
  }

  // The collectives are templates although nothing depends on one: so a file compiles only what it uses of them.
  template <class = void>
  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    const auto signature = arguments().all_reduce(data, op);
    auto* mine = static_cast<std::byte*>(data.data);
    return run(signature, mine, mine, call, [&](const Seats& seats) {
      const auto [begin, count] = detail::slice_of(data.count, world_);
      const std::size_t offset = begin * size_of(data.dtype);
      std::vector<const std::byte*> sources;
      for (const auto& seat : seats) sources.push_back(seat.in + offset);
      detail::reduce(mine + offset, sources, count, data.dtype, op);
      for (const auto& seat : seats) {
        if (seat.out != mine) copy(seat.out + offset, mine + offset, count, data.dtype);
      }
    });
  }

  template <class = void>
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    const auto signature = arguments().reduce_scatter(in, out, op);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      std::vector<const std::byte*> sources;
      for (const auto& seat : seats) sources.push_back(seat.in + rank_index() * out.size_bytes());
      detail::reduce(out.data, sources, out.count, out.dtype, op);
    });
  }

  template <class = void>
  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    const auto signature = arguments().broadcast(data, root);
    return run(signature, data.data, data.data, call, [&](const Seats& seats) {
      if (world_.rank != root) copy(data.data, seats[to_index(root)].in, data.count, data.dtype);
    });
  }

  template <class = void>
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_gather(in, out);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      auto* to = static_cast<std::byte*>(out.data);
      for (std::size_t rank = 0; rank < seats.size(); ++rank) {
        copy(to + rank * in.size_bytes(), seats[rank].in, in.count, in.dtype);
      }
    });
  }

  template <class = void>
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    const auto signature = arguments().all_gather_uneven(in, out, counts);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      auto* to = static_cast<std::byte*>(out.data);
      for (std::size_t rank = 0; rank < seats.size(); ++rank) {
        copy(to, seats[rank].in, counts[rank], in.dtype);
        to += counts[rank] * size_of(in.dtype);
      }
    });
  }

  template <class = void>
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().gather(in, out, root);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      auto* to = static_cast<std::byte*>(seats[to_index(root)].out);
      copy(to + rank_index() * in.size_bytes(), in.data, in.count, in.dtype);
    });
  }

  template <class = void>
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().scatter(in, out, root);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      copy(out.data, seats[to_index(root)].in + rank_index() * out.size_bytes(), out.count, out.dtype);
    });
  }

  template <class = void>
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_to_all(in, out);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      const std::size_t count = in.count / seats.size();
      const std::size_t size_bytes = count * size_of(in.dtype);
      auto* to = static_cast<std::byte*>(out.data);
      for (std::size_t rank = 0; rank < seats.size(); ++rank) {
        copy(to + rank * size_bytes, seats[rank].in + rank_index() * size_bytes, count, in.dtype);
      }
    });
  }

  FinishedWork barrier(const Call& call) {
    return run({.operation = detail::Operation::barrier}, nullptr, nullptr, call, [](const Seats& /*seats*/) {});
  }

  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    hub_or_alone(arguments().send(data, peer), [&](const auto& signature) {
      hub_->send(world_.rank, signature, static_cast<const std::byte*>(data.data), call.deadline);
    });
    return {};
  }

  FinishedWork receive(Buffer data, int peer, const Call& call) {
    hub_or_alone(arguments().receive(data, peer), [&](const auto& signature) {
      hub_->receive(world_.rank, signature, static_cast<std::byte*>(data.data), call.deadline);
    });
    return {};
  }

  void abort(std::string_view reason) noexcept {
    try {
      if (hub_ != nullptr) {
        hub_->abort(world_.rank, reason);
      } else {
        const std::lock_guard lock{alone_mutex_};
        if (alone_failure_.empty()) alone_failure_ = detail::compose("rank 0 gave up: {}", reason);
      }
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }

 private:
  using Seats = std::vector<detail::LocalHub::Seat>;

  Local(const World& world, detail::LocalHub* hub) : world_(world), hub_(hub) {}

  [[nodiscard]] static std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t rank_index() const noexcept { return to_index(world_.rank); }
  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  // A key of a store can be set once, which makes it a lock that is taken once: either the late rank claims its seat
  // and will release its share of the hub, or a rank that waited in vain claims it and the late rank keeps away.
  [[nodiscard]] static bool claim(const std::string& prefix, int rank, Store& store) {
    try {
      store.set(detail::compose("{}seat/{}", prefix, rank), "");
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] static detail::LocalHub* find_hub(const std::string& prefix, const World& world, Store& store,
                                                  const Deadline& deadline) {
    struct Address {
      detail::LocalHub* hub;
      pid_t process;
    };
    const std::string key = prefix + "hub";
    if (world.rank == 0) {
      auto hub = std::make_unique<detail::LocalHub>(world.size);
      const Address address{hub.get(), ::getpid()};
      std::string bytes(sizeof address, '\0');
      std::memcpy(bytes.data(), &address, sizeof address);
      store.set(key, bytes);
      return hub.release();
    }
    const auto bytes = store.get(key, deadline);
    const std::string place = detail::place_text("connect", world.rank, world.size);
    if (!bytes) {
      throw CollectiveError{"connect",
                            world.rank,
                            {0},
                            detail::compose("{}: rank 0 did not connect in {}", place, deadline.budget_text())};
    }
    Address address{};
    std::memcpy(&address, bytes->data(), std::min(sizeof address, bytes->size()));
    if (address.process != ::getpid()) {
      throw ConfigError{detail::compose("{}: Local joins threads of one process, but rank 0 is in process {}; use Gloo",
                                        place, address.process)};
    }
    if (!claim(prefix, world.rank, store)) {
      throw CollectiveError{"connect",
                            world.rank,
                            {world.rank},
                            detail::compose("{}: the others gave up before rank {} came", place, world.rank)};
    }
    return address.hub;
  }

  template <class Work>
  FinishedWork run(const detail::Signature& signature, const void* in, void* out, const Call& call, const Work& work) {
    if (hub_ == nullptr) {
      throw_if_alone_failed(signature);
      detail::LocalHub::Seat alone{};
      alone.in = static_cast<const std::byte*>(in);
      alone.out = static_cast<std::byte*>(out);
      work(Seats{alone});
      return {};
    }
    hub_->run(world_.rank, signature, {static_cast<const std::byte*>(in), static_cast<std::byte*>(out)}, call.deadline,
              work);
    return {};
  }

  template <class Work>
  void hub_or_alone(const detail::Signature& signature, const Work& work) {
    if (hub_ != nullptr) work(signature);  // a world of one has no peer: its arguments were refused before
  }

  void throw_if_alone_failed(const detail::Signature& signature) {
    const std::lock_guard lock{alone_mutex_};
    if (alone_failure_.empty()) return;
    const std::string operation = detail::describe(signature);
    throw CollectiveError{
        operation, 0, {0}, detail::compose("{}: {}", detail::place_text(operation, 0, 1), alone_failure_)};
  }

  static void copy(void* to, const void* from, std::size_t count, Dtype dtype) noexcept {
    if (count > 0) std::memcpy(to, from, count * size_of(dtype));
  }

  World world_;
  detail::LocalHub* hub_;  // owned by all ranks together; the last one to leave deletes it
  std::mutex alone_mutex_;
  std::string alone_failure_{};  // why a world of one was given up
};
static_assert(Backend<Local>);

}  // namespace railyard::inline v0_1
