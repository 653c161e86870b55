// SPDX-License-Identifier: MIT
// The backend for CPUs: shared memory among ranks of one host, libgloo's TCP transport among hosts. Collectives room.
#pragma once

#include "railyard/collectives/detail/gloo_hosts.hpp"
#include "railyard/collectives/detail/gloo_tcp.hpp"
#include "railyard/collectives/shared_memory.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/core/side_line.hpp"

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace railyard::inline v0_1 {

/// Names what Gloo moves values by.
enum class GlooTransport {
  automatic,  ///< shared memory among the ranks of a host that see each other's, TCP between hosts
  tcp,        ///< a connection between any two ranks, in any case: those of World::connector, else libgloo's TCP
};

/// Joins processes or threads, of one host or several. Reductions add in the order of ranks, those of a host first
/// where there are several hosts: results depend on nothing but the ranks' values and their hosts, and on one host not
/// on the transport either. Costs: by shared memory those of SharedMemory; by TCP see detail/mesh.hpp, and one thread
/// for each object; of several hosts see detail/gloo_hosts.hpp.
///
/// SIGPIPE, by libgloo's TCP: blocked in Gloo's thread for good and in the calling thread during a call; a SIGPIPE that
/// a call has caused is taken back. The process's disposition is not touched.
class Gloo {
 public:
  static constexpr std::string_view name = "Gloo";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    /// This host's own name or address, on which it listens and under which the others reach it. For TCP only, which is
    /// not what World::connector of Processes and Threads connects by. If
    /// empty, the loopback's for ranks of one host, else the one that World names.
    std::string host{};
    GlooTransport transport = GlooTransport::automatic;
  };

  /// Throws: ConfigError if the host cannot be listened on, or if LibTorch's copy of Gloo would answer our calls.
  static void check(const Options& options) {
    Tcp::check({.host = options.host.empty() ? std::string{loopback} : options.host});
  }

  /// Joins the group; the store must outlive the object. Cost: below a millisecond once all ranks have come, by TCP
  /// some milliseconds. Throws: ConfigError as check() does, where TCP is used or options name a host; CollectiveError
  /// that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<Gloo> connect(const Options& options, const World& world, Store& store,
                                                     const Deadline& deadline) {
    detail::check_world(world);
    const std::string host = host_of(options, world);
    const bool is_one_host = world.local_size == world.size;
    const bool is_automatic = options.transport == GlooTransport::automatic;
    const bool may_share = is_automatic && is_one_host;
    if (!may_share || !options.host.empty()) check({.host = host});  // TCP checks what it listens on, if it comes to it
    if (may_share) {
      try {
        return std::unique_ptr<Gloo>{new Gloo{SharedMemory::connect({}, world, store, deadline)}};
      } catch (const ConfigError& error) {  // which all ranks get alike
        if (world.rank == 0)
          fmt::print(stderr, "railyard: Gloo connects ranks of one host without shared memory: {}\n", error.what());
      }
    }
    auto gloo = std::unique_ptr<Gloo>{new Gloo};
    if (is_automatic && !is_one_host && Hosts::fits(world, store, deadline)) {
      gloo->hosts_ = Hosts::connect(host, world, store, deadline);
    }
    if (!gloo->hosts_) gloo->tcp_ = Tcp::connect({.host = host}, world, store, deadline);
    gloo->connect_side_ = [host, world, &store](const Deadline& until) {
      return std::make_unique<Side>(Tcp::connect({.host = host}, world, store, until));
    };
    return gloo;
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    return on_part([&](auto& part) { return part.all_reduce(data, op, call); });
  }
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    return on_part([&](auto& part) { return part.reduce_scatter(in, out, op, call); });
  }
  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    return on_part([&](auto& part) { return part.broadcast(data, root, call); });
  }
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    return on_part([&](auto& part) { return part.all_gather(in, out, call); });
  }
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    return on_part([&](auto& part) { return part.all_gather_uneven(in, out, counts, call); });
  }
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    return on_part([&](auto& part) { return part.gather(in, out, root, call); });
  }
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    return on_part([&](auto& part) { return part.scatter(in, out, root, call); });
  }
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    return on_part([&](auto& part) { return part.all_to_all(in, out, call); });
  }
  FinishedWork barrier(const Call& call) {
    return on_part([&](auto& part) { return part.barrier(call); });
  }
  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    return on_part([&](auto& part) { return part.send(data, peer, call); });
  }
  FinishedWork receive(Buffer data, int peer, const Call& call) {
    return on_part([&](auto& part) { return part.receive(data, peer, call); });
  }
  void abort(std::string_view reason) noexcept {
    on_part([&](auto& part) {
      part.abort(reason);
      return FinishedWork{};
    });
    if (SideLine* side = side_seen_.load()) side->abort(reason);
  }

  /// The memory that the ranks of each host share, nullptr if they do not.
  [[nodiscard]] HostMemory* host_memory() noexcept {
    if (shared_) return shared_->host_memory();
    return hosts_ ? &hosts_->host_memory() : nullptr;
  }

  /// Returns the second line of sums; nullptr where the ranks share memory, which has one. All ranks call it. The first
  /// call connects them anew, which costs some milliseconds, and one thread from then on.
  [[nodiscard]] SideLine* side_line(const Deadline& deadline) {
    if (!tcp_) return nullptr;
    if (!side_) {
      side_ = connect_side_(deadline);
      side_seen_.store(side_.get());
    }
    return side_.get();
  }

 private:
  using Tcp = detail::GlooTcp;
  using Hosts = detail::GlooHosts;
  static constexpr std::string_view loopback = "127.0.0.1";

  class Side final : public SideLine {
   public:
    explicit Side(std::unique_ptr<Tcp> tcp) : tcp_(std::move(tcp)) {}
    void all_reduce(Buffer data, ReduceOp op, const Call& call) override { tcp_->all_reduce(data, op, call); }
    void abort(std::string_view reason) noexcept override { tcp_->abort(reason); }

   private:
    std::unique_ptr<Tcp> tcp_;
  };

  Gloo() = default;
  explicit Gloo(std::unique_ptr<SharedMemory> shared) : shared_(std::move(shared)) {}

  static std::string host_of(const Options& options, const World& world) {
    if (!options.host.empty()) return options.host;
    return world.local_size == world.size || world.address.empty() ? std::string{loopback} : world.address;
  }

  template <class Function>
  FinishedWork on_part(const Function& function) {
    if (shared_) return function(*shared_);
    if (hosts_) return function(*hosts_);
    return function(*tcp_);
  }

  std::unique_ptr<SharedMemory> shared_{};  // one of the three
  std::unique_ptr<Hosts> hosts_{};
  std::unique_ptr<Tcp> tcp_{};
  std::function<std::unique_ptr<Side>(const Deadline&)> connect_side_{};
  std::unique_ptr<Side> side_{};
  std::atomic<Side*> side_seen_{nullptr};  // by abort(), from another thread
};
static_assert(Backend<Gloo>);

}  // namespace railyard::inline v0_1
