// SPDX-License-Identifier: MIT
// The machines and the network of the simulation: what their processors and links take for what is asked of them.
#pragma once

#include "virtual_time.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace bench {

/// What work takes. Units: seconds of one core. All but `frame` are found from runs of few ranks; see scale.cpp.
struct Costs {
  double rank = 0;         ///< of a rank that connects, once: its memory, its connection to the store
  double wake = 0;         ///< to wait and be woken, with the calls of the system around it
  double frame = 0;        ///< to make or to take one message of the store
  double line = 0;         ///< of each end of a line to another rank, until it is proven
  double byte_within = 0;  ///< of what ranks of a host show each other, by byte of the whole
  double byte_across = 0;  ///< of what is sent to other hosts and added up, half at each end, by byte
  double piece = 0;        ///< of each step in which the ranks of a host wait for each other
};

/// The network that is simulated. Every host has one link, full duplex; the switch between them blocks nobody.
struct Shape {
  int num_hosts = 1;
  int ranks_per_host = 1;
  int cores = 1;                     ///< of each machine
  bool is_one_machine = false;       ///< all hosts are one, and what they send each other is no faster than its cores
  double latency = 25e-6;            ///< from host to host, in one direction. Unit: seconds
  double bytes_per_second = 1.25e9;  ///< of a link, in each direction

  [[nodiscard]] int num_ranks() const noexcept { return num_hosts * ranks_per_host; }
};

/// Cores take what is given to them in the order of its coming, each to its end.
class Machine {
 public:
  explicit Machine(int cores) : free_at_(static_cast<std::size_t>(cores), 0.0) {}

  /// Returns when work is done that can begin then.
  double work(double begin, double seconds) {
    // The core that has waited least, or else the one that is free first.
    auto best = std::min_element(free_at_.begin(), free_at_.end());
    for (auto at = free_at_.begin(); at != free_at_.end(); ++at) {
      if (*at <= begin && *at > *best) best = at;
    }
    *best = std::max(*best, begin) + seconds;
    return *best;
  }

 private:
  friend class Network;
  std::vector<double> free_at_;
  double sends_until_ = 0;
  double receives_until_ = 0;
};

class Network {
 public:
  Network(VirtualTime& time, const Shape& shape)
      : time_(&time),
        shape_(shape),
        machines_(shape.is_one_machine ? 1U : size_of(shape.num_hosts), Machine{shape.cores}) {}

  [[nodiscard]] VirtualTime& time() const noexcept { return *time_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] Machine& machine(int host) { return machines_[shape_.is_one_machine ? 0U : size_of(host)]; }

  /// Of the task that runs, on its host.
  void work(int host, double seconds) { time_->wait_until(machine(host).work(time_->now(), seconds)); }

  /// Calls when_there once all bytes are there.
  void send(int from, int to, std::size_t size_bytes, std::function<void()> when_there) {
    if (&machine(from) == &machine(to)) return time_->at(time_->now(), std::move(when_there));
    const double seconds = static_cast<double>(size_bytes) / shape_.bytes_per_second;
    double& sends_until = machine(from).sends_until_;
    const double begin = std::max(time_->now(), sends_until);
    sends_until = begin + seconds;
    time_->at(begin + shape_.latency, [this, to, seconds, when_there = std::move(when_there)]() mutable {
      double& receives_until = machine(to).receives_until_;
      receives_until = std::max(time_->now(), receives_until) + seconds;
      time_->at(receives_until, std::move(when_there));
    });
  }

 private:
  static std::size_t size_of(int count) noexcept { return static_cast<std::size_t>(count); }

  VirtualTime* time_;
  Shape shape_;
  std::vector<Machine> machines_;
};

}  // namespace bench
