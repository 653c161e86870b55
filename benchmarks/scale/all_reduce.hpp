// SPDX-License-Identifier: MIT
// The simulation of an all-reduce between hosts: the real order of chunks, and the real messages of each, on a network
// that is a model. No values move: all ranks add up in one piece of memory.
#pragma once

#include "machines.hpp"

#include <railyard/collectives/detail/host_chunks.hpp>
#include <railyard/collectives/detail/mesh.hpp>
#include <railyard/collectives/detail/segment.hpp>
#include <railyard/core/buffer.hpp>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace bench {

namespace ry = railyard;

class AllReduceModel {
 public:
  AllReduceModel(VirtualTime& time, const Shape& shape, const Costs& costs, std::size_t num_values)
      : time_(&time),
        network_(time, shape),
        costs_(costs),
        values_(num_values),
        sums_(values_.size() * sizeof(float)),
        received_(most_received),
        hosts_(static_cast<std::size_t>(shape.num_hosts)) {}

  /// Lets all ranks begin at once. After VirtualTime::run(), seconds() says when the last one was done.
  void start() {
    const Shape& shape = network_.shape();
    for (int rank = 0; rank < shape.num_ranks(); ++rank) {
      time_->spawn([this, rank] {
        const Shape& own = network_.shape();
        Parts parts{*this, rank / own.ranks_per_host, rank % own.ranks_per_host};
        ry::detail::all_reduce_between_hosts(parts, ry::buffer_of(values_),
                                             static_cast<std::size_t>(own.ranks_per_host));
        seconds_ = std::max(seconds_, time_->now());
      });
    }
  }
  [[nodiscard]] double seconds() const noexcept { return seconds_; }

 private:
  static constexpr std::size_t most_received = std::size_t{64} << 20U;

  // The messages of one rank in one of its all-reduces, by the two hosts and the rank's number on them.
  using Line = std::tuple<int, int, int>;  // from, to, which of the host's ranks
  struct Mailbox {
    std::size_t num_there = 0;
    VirtualTime::Task* waits = nullptr;
  };
  // Where the ranks of a host wait for each other.
  struct Host {
    int num_there = 0;
    std::vector<VirtualTime::Task*> waiting{};
  };

  class Step {
   public:
    Step(AllReduceModel& model, int host, int line) : model_(&model), host_(host), line_(line) {}
    void send(int peer, std::size_t /*offset*/, std::size_t size_bytes) { sends_.emplace_back(peer, size_bytes); }
    void receive(int peer, std::size_t /*offset*/, std::size_t /*size_bytes*/) { receives_.push_back(peer); }
    void finish() { model_->exchange(host_, line_, sends_, receives_); }

   private:
    AllReduceModel* model_;
    int host_;
    int line_;
    std::vector<std::pair<int, std::size_t>> sends_{};
    std::vector<int> receives_{};
  };

  // What detail::Mesh asks for, of one line.
  struct LineMesh {
    [[nodiscard]] int rank() const noexcept { return host; }
    [[nodiscard]] int size() const noexcept { return model.network_.shape().num_hosts; }
    [[nodiscard]] std::byte* scratch(std::size_t size_bytes) {
      if (size_bytes > most_received)
        throw std::length_error{"a rank of the simulation is sent more than it has room for"};
      return model.received_.data();
    }
    [[nodiscard]] Step step(const void* /*from*/, std::size_t /*from_bytes*/, void* /*to*/, std::size_t /*to_bytes*/) {
      return {model, host, line};
    }
    AllReduceModel& model;
    int host;
    int line;
  };
  static_assert(ry::detail::Mesh<LineMesh>);

  // What is under way in a task of its own.
  struct Pending {
    struct State {
      bool is_done = false;
      VirtualTime::Task* waits = nullptr;
    };
    [[nodiscard]] bool valid() const noexcept { return state != nullptr; }
    void get() {
      if (!state->is_done) {
        state->waits = &VirtualTime::current();
        model->time_->wait();
      }
      state = nullptr;
    }
    AllReduceModel* model = nullptr;
    std::shared_ptr<State> state{};
  };

  // What detail::HostParts asks for, of one rank.
  struct Parts {
    [[nodiscard]] std::byte* scratch(std::size_t /*size_bytes*/) { return model.sums_.data(); }
    void add_within(const ry::Buffer& whole, const ry::Buffer& /*own*/) { model.work_within(host, whole.size_bytes()); }
    void share_within(const ry::Buffer& /*own*/, const ry::Buffer& whole) {
      model.work_within(host, whole.size_bytes());
    }
    void all_reduce_within(const ry::Buffer& data) { model.work_within(host, 2 * data.size_bytes()); }
    void all_reduce_across(const ry::Buffer& data) {
      LineMesh mesh{model, host, line};
      ry::detail::mesh_all_reduce(mesh, data, ry::ReduceOp::max);
    }
    [[nodiscard]] Pending send_off(const ry::Buffer& own) {
      Pending pending{&model, std::make_shared<Pending::State>()};
      model.time_->spawn([self = *this, own, state = pending.state]() mutable {
        self.all_reduce_across(own);
        state->is_done = true;
        if (state->waits != nullptr) self.model.time_->wake(*state->waits);
      });
      return pending;
    }
    AllReduceModel& model;
    int host;
    int line;
  };

  // Of the task that runs, one rank of a host: shows the others its part of so many bytes, in pieces.
  void work_within(int host, std::size_t size_bytes) {
    meet(host);
    const std::size_t num_pieces = (size_bytes + ry::detail::stage_bytes - 1) / ry::detail::stage_bytes;
    network_.work(
        host, costs_.piece * static_cast<double>(num_pieces) + costs_.byte_within * static_cast<double>(size_bytes));
    meet(host);
  }
  void meet(int host) {
    Host& here = hosts_[static_cast<std::size_t>(host)];
    if (++here.num_there < network_.shape().ranks_per_host) {
      here.waiting.push_back(&VirtualTime::current());
      return time_->wait();
    }
    here.num_there = 0;
    for (VirtualTime::Task* task : std::exchange(here.waiting, {})) time_->wake(*task);
  }

  // Of the task that runs: sends and receives, and returns when all of that is done.
  void exchange(int host, int line, std::vector<std::pair<int, std::size_t>>& sends, std::vector<int>& receives) {
    double sent = time_->now();
    for (const auto& [peer, size_bytes] : std::exchange(sends, {})) {
      const double seconds = costs_.wake + costs_.byte_across / 2 * static_cast<double>(size_bytes);
      sent = network_.machine(host).work(sent, seconds);
      time_->at(sent, [this, host, line, seconds, to = peer, bytes = size_bytes] {
        network_.send(host, to, bytes, [this, host, line, seconds, to] {
          time_->at(network_.machine(to).work(time_->now(), seconds), [this, host, line, to] {
            Mailbox& box = boxes_[{host, to, line}];
            ++box.num_there;
            if (box.waits != nullptr) time_->wake(*box.waits);
          });
        });
      });
    }
    for (const int peer : std::exchange(receives, {})) {
      Mailbox& box = boxes_[{peer, host, line}];
      box.waits = &VirtualTime::current();
      while (box.num_there == 0) time_->wait();
      box.waits = nullptr;
      --box.num_there;
    }
    if (sent > time_->now()) time_->wait_until(sent);
  }

  VirtualTime* time_;
  Network network_;
  Costs costs_;
  std::vector<float> values_;
  std::vector<std::byte> sums_;
  std::vector<std::byte> received_;
  std::vector<Host> hosts_;
  std::map<Line, Mailbox> boxes_{};
  double seconds_ = 0;
};

/// Lets all ranks of that shape add up so many values of four bytes. Returns the seconds until the last one was done.
[[nodiscard]] inline double simulate_all_reduce(const Shape& shape, const Costs& costs, std::size_t num_values) {
  VirtualTime time;
  AllReduceModel model{time, shape, costs, num_values};
  model.start();
  time.run();
  return model.seconds();
}

}  // namespace bench
