// SPDX-License-Identifier: MIT
// What many ranks on many hosts will cost: a simulation of how they connect and add up, which drives Gloo's own code
// and the leader's own store on processors and a network that are a model. What the model's work takes is found from
// real ranks of this machine, up to 32 in hosts that are pretended; then it has to say what 64 take, which are run as
// well, and says what up to 1,024 ranks on 128 hosts would.
//
// The network: each host has a link of 10 Gbit/s in both directions, 25 us from any other one, and 8 cores as fast as
// one of this machine. Left out: how the processes come to be and find the leader; what TCP itself does (slow start,
// losses, acknowledgements); switches that are shared; that cores share their memory's bandwidth, and are taken away
// in the middle of their work; and TLS.
#include "scale/all_reduce.hpp"
#include "scale/setup.hpp"

#include <railyard/collectives/detail/prefix_store.hpp>
#include <railyard/collectives/gloo.hpp>
#include <railyard/core/detail/system.hpp>
#include <railyard/core/detail/wire.hpp>
#include <railyard/workers/detail/frames.hpp>
#include <railyard/workers/detail/listener.hpp>
#include <railyard/workers/detail/network_store.hpp>
#include <railyard/workers/detail/rank_lines.hpp>
#include <railyard/workers/processes.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/socket.h>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

using bench::Costs;
using bench::Shape;

constexpr std::size_t num_values = (std::size_t{16} << 20U) / sizeof(float);  // of the real ranks
constexpr int num_turns = 5;                                                  // of one start of ranks
constexpr int num_passes = 3;                                                 // over all shapes

[[nodiscard]] int num_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof cores, &cores);
  return CPU_COUNT(&cores);
}

[[nodiscard]] Shape here(int num_hosts, int ranks_per_host) {
  return {.num_hosts = num_hosts, .ranks_per_host = ranks_per_host, .cores = num_cores(), .is_one_machine = true};
}

// --- real ranks
// -------------------------------------------------------------------------------------------------------

// Of all turns, in seconds, from when all ranks were there until the last one was done.
struct Real {
  std::vector<double> set_up{};
  std::vector<double> all_reduce{};
};

// What else the machine does only adds to a time.
double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

// When a rank has begun and ended, in nanoseconds of the machine's clock.
struct Times {
  std::array<std::int64_t, num_turns> begins{};
  std::array<std::int64_t, num_turns> ends{};
};
struct RankTimes {
  Times set_up{};
  Times all_reduce{};
};

// All ranks are here before one goes on.
void meet(ry::WorkerLink& link, int turn) {
  const auto key = [&](int rank) { return fmt::format("turn {} rank {}", turn, rank); };
  link.store().set(key(link.world().rank), "");
  for (int rank = 0; rank < link.world().size; ++rank) {
    if (!link.store().get(key(rank), ry::Deadline::after(std::chrono::minutes{2}))) {
      throw std::runtime_error{"a rank does not come"};
    }
  }
}

void run_rank(ry::WorkerLink& link, const Shape& shape, const ry::detail::Listener& listener,
              const ry::detail::Hmac& secret) {
  ry::World world = link.world();
  world.node = world.rank / shape.ranks_per_host;
  world.num_nodes = shape.num_hosts;
  world.local_rank = world.rank % shape.ranks_per_host;
  world.local_size = shape.ranks_per_host;
  world.host = fmt::format("host{}", world.node);
  world.address = "127.0.0.1";
  const auto tell = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  world.connector = std::make_shared<ry::detail::SecretConnector>(secret, "benchmark", tell);
  const ry::Deadline soon = ry::Deadline::after(std::chrono::minutes{2});
  RankTimes times;
  std::unique_ptr<ry::detail::NetworkStore> far;
  std::unique_ptr<ry::detail::PrefixStore> store;
  std::unique_ptr<ry::Gloo> gloo;
  for (std::size_t turn = 0; turn < num_turns; ++turn) {
    gloo.reset();
    far = std::make_unique<ry::detail::NetworkStore>(ry::detail::NetworkStorePlace{.host = listener.host(),
                                                                                   .port = listener.port(),
                                                                                   .job = "scale",
                                                                                   .rank = world.rank,
                                                                                   .ticket = listener.ticket()},
                                                     secret);
    store = std::make_unique<ry::detail::PrefixStore>(*far, fmt::format("turn {}/", turn));
    meet(link, static_cast<int>(turn));
    times.set_up.begins[turn] = ry::detail::monotonic_ns();
    gloo = ry::Gloo::connect({}, world, *store, soon);
    times.set_up.ends[turn] = ry::detail::monotonic_ns();
  }
  std::vector<float> values(num_values, 1.0F);
  gloo->all_reduce(ry::buffer_of(values), ry::ReduceOp::max, {});
  for (std::size_t turn = 0; turn < num_turns; ++turn) {
    gloo->barrier({});
    times.all_reduce.begins[turn] = ry::detail::monotonic_ns();
    gloo->all_reduce(ry::buffer_of(values), ry::ReduceOp::max, {});
    times.all_reduce.ends[turn] = ry::detail::monotonic_ns();
  }
  gloo->barrier({});
  link.post(std::as_bytes(std::span{&times, 1}));
}

// Adds from the first rank's beginning to the last one's end, of each turn.
void add_seconds(std::vector<double>& seconds, const std::vector<RankTimes>& ranks, Times RankTimes::*what) {
  for (std::size_t turn = 0; turn < num_turns; ++turn) {
    std::int64_t begin = (ranks.front().*what).begins[turn];
    std::int64_t end = 0;
    for (const RankTimes& one : ranks) {
      begin = std::min(begin, (one.*what).begins[turn]);
      end = std::max(end, (one.*what).ends[turn]);
    }
    seconds.push_back(static_cast<double>(end - begin) / 1e9);
  }
}

void run_ranks(const Shape& shape, Real& real) {
  const ry::detail::Hmac secret{ry::detail::text_bytes("the secret of this run")};
  const ry::detail::Listener listener{{.host = "127.0.0.1", .job = "scale"}, secret};
  const auto group = ry::Processes{}.start({.num_workers = shape.num_ranks()},
                                           [&](ry::WorkerLink& link) { run_rank(link, shape, listener, secret); });
  std::vector<RankTimes> ranks(static_cast<std::size_t>(shape.num_ranks()));
  for (int num_over = 0; num_over < shape.num_ranks();) {
    const auto event = group->next(ry::Deadline::after(std::chrono::minutes{5}));
    if (!event) throw std::runtime_error{"the ranks do not end"};
    if (const auto* message = std::get_if<ry::MessageEvent>(&*event)) {
      std::memcpy(&ranks[static_cast<std::size_t>(message->rank)], message->bytes.data(), sizeof(RankTimes));
    }
    if (const auto* line = std::get_if<ry::OutputEvent>(&*event)) fmt::print(stderr, "{}\n", line->line);
    if (const auto* exit = std::get_if<ry::ExitEvent>(&*event)) {
      ++num_over;
      if (exit->exit.kind != ry::WorkerExit::Kind::returned) throw std::runtime_error{exit->exit.message};
    }
  }
  add_seconds(real.set_up, ranks, &RankTimes::set_up);
  add_seconds(real.all_reduce, ranks, &RankTimes::all_reduce);
}

// --- what the model's work takes
// --------------------------------------------------------------------------------------

// One end of one message of the store, of which many are sent at a time.
double seconds_of_frame() {
  constexpr int num_batches = 300;
  constexpr int in_batch = 64;
  const ry::detail::Hmac secret{ry::detail::text_bytes("the secret of this run")};
  ry::detail::FrameWriter writer{secret, 1U << 20U};
  ry::detail::FrameReader reader{secret, 1U << 20U};
  ry::detail::StoreServer server;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw std::runtime_error{"no sockets"};
  const ry::detail::Descriptor from{ends[0]};
  const ry::detail::Descriptor to{ends[1]};
  const auto begin = ry::detail::monotonic_ns();
  for (int batch = 0; batch < num_batches; ++batch) {
    for (int at = 0; at < in_batch; ++at) {
      const std::string key = fmt::format("Gloo hosts/0/place/{}", at);
      writer.put(static_cast<std::uint8_t>(ry::detail::StoreFrame::get), {ry::detail::text_bytes(key)});
    }
    const ssize_t sent = ::send(from.get(), writer.unsent().data(), writer.unsent().size(), 0);
    if (sent != static_cast<ssize_t>(writer.unsent().size())) throw std::runtime_error{"a socket takes nothing"};
    writer.mark_sent(writer.unsent().size());
    for (int at = 0; at < in_batch;) {
      const auto room = reader.room();
      const ssize_t got = ::recv(to.get(), room.data(), room.size(), 0);
      if (got <= 0) throw std::runtime_error{"a socket gives nothing"};
      if (const auto frame = reader.take(static_cast<std::size_t>(got))) {
        static_cast<void>(server.handle(static_cast<std::uint64_t>(batch), *frame));
        ++at;
      }
    }
  }
  return static_cast<double>(ry::detail::monotonic_ns() - begin) / 1e9 / num_batches / in_batch / 2;
}

// Changes the costs so that what is predicted comes close to what is: Gauss and Newton's way, on the logarithms.
using Predict = std::function<double(const Costs&, std::size_t)>;

void fit(Costs& costs, const std::vector<double Costs::*>& unknown, const std::vector<double>& real,
         const Predict& predict) {
  constexpr int num_rounds = 6;
  constexpr double step = 0.05;
  const std::size_t n = unknown.size();
  for (int round = 0; round < num_rounds; ++round) {
    std::vector<double> at_now;
    for (std::size_t shape = 0; shape < real.size(); ++shape) at_now.push_back(predict(costs, shape));
    std::vector<std::vector<double>> slopes(n);
    for (std::size_t one = 0; one < n; ++one) {
      Costs moved = costs;
      moved.*unknown[one] *= 1 + step;
      for (std::size_t shape = 0; shape < real.size(); ++shape) {
        slopes[one].push_back(std::log(predict(moved, shape) / at_now[shape]) / std::log(1 + step));
      }
    }
    // (slopes slopes^T + a little) x = slopes (log real - log predicted)
    std::vector<std::vector<double>> rows(n, std::vector<double>(n + 1));
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t shape = 0; shape < real.size(); ++shape) {
        for (std::size_t column = 0; column < n; ++column)
          rows[row][column] += slopes[row][shape] * slopes[column][shape];
        rows[row][n] += slopes[row][shape] * std::log(real[shape] / at_now[shape]);
      }
      rows[row][row] += 0.01;
    }
    for (std::size_t pivot = 0; pivot < n; ++pivot) {
      for (std::size_t row = 0; row < n; ++row) {
        if (row == pivot) continue;
        const double factor = rows[row][pivot] / rows[pivot][pivot];
        for (std::size_t column = pivot; column <= n; ++column) rows[row][column] -= factor * rows[pivot][column];
      }
    }
    for (std::size_t one = 0; one < n; ++one) {
      costs.*unknown[one] *= std::exp(std::clamp(rows[one][n] / rows[one][one], -1.0, 1.0));
    }
  }
}

double predict_set_up(const Shape& shape, const Costs& costs) { return bench::simulate_set_up(shape, costs).seconds; }

// Tells how far the model is from what it was fitted to.
void tell(const char* what, const Shape& shape, double real, double predicted) {
  fmt::print(stderr, "{} of {} x {} ranks: {:.2f} ms, the model says {:.2f} ms\n", what, shape.num_hosts,
             shape.ranks_per_host, 1e3 * real, 1e3 * predicted);
}

void measure() {
  const std::vector<Shape> shapes{here(2, 4), here(4, 4), here(2, 8), here(8, 2), here(4, 8), here(8, 4)};
  const Shape many = here(8, 8);
  std::vector<Real> reals(shapes.size());
  Real real_of_many;
  for (int pass = 0; pass < num_passes; ++pass) {
    for (std::size_t at = 0; at < shapes.size(); ++at) run_ranks(shapes[at], reals[at]);
    run_ranks(many, real_of_many);
  }
  std::vector<double> set_up;
  std::vector<double> all_reduce;
  for (const Real& real : reals) {
    set_up.push_back(lower_quartile(real.set_up));
    all_reduce.push_back(lower_quartile(real.all_reduce));
  }
  const double real_set_up = lower_quartile(real_of_many.set_up);
  const double real_all_reduce = lower_quartile(real_of_many.all_reduce);

  Costs costs{.rank = 200e-6,
              .wake = 10e-6,
              .frame = seconds_of_frame(),
              .line = 50e-6,
              .byte_within = 0.5e-9,
              .byte_across = 1e-9,
              .piece = 20e-6};
  fit(costs, {&Costs::rank, &Costs::wake, &Costs::line}, set_up,
      [&](const Costs& some, std::size_t at) { return predict_set_up(shapes[at], some); });
  fit(costs, {&Costs::byte_within, &Costs::byte_across, &Costs::piece}, all_reduce,
      [&](const Costs& some, std::size_t at) { return bench::simulate_all_reduce(shapes[at], some, num_values); });
  fmt::print(stderr,
             "a rank takes {:.0f} us, a wait {:.1f} us, a message of the store {:.2f} us, an end of a line {:.0f} us; "
             "a MiB within a host {:.0f} us, between hosts {:.0f} us, a step within a host {:.1f} us\n",
             1e6 * costs.rank, 1e6 * costs.wake, 1e6 * costs.frame, 1e6 * costs.line, 1e6 * costs.byte_within * 1048576,
             1e6 * costs.byte_across * 1048576, 1e6 * costs.piece);
  for (std::size_t at = 0; at < shapes.size(); ++at) {
    tell("connecting", shapes[at], set_up[at], predict_set_up(shapes[at], costs));
    tell("all_reduce", shapes[at], all_reduce[at], bench::simulate_all_reduce(shapes[at], costs, num_values));
  }
  const double set_up_of_many = predict_set_up(many, costs);
  const double all_reduce_of_many = bench::simulate_all_reduce(many, costs, num_values);
  tell("connecting", many, real_set_up, set_up_of_many);
  tell("all_reduce", many, real_all_reduce, all_reduce_of_many);
  fmt::print("scale.set_up.64ranks_ms {:.1f} ms\n", 1e3 * real_set_up);
  fmt::print("scale.set_up.64ranks.predicted_over_real {:.2f} ratio\n", set_up_of_many / real_set_up);
  fmt::print("scale.all_reduce.64ranks.16MiB_ms {:.1f} ms\n", 1e3 * real_all_reduce);
  fmt::print("scale.all_reduce.64ranks.16MiB.predicted_over_real {:.2f} ratio\n", all_reduce_of_many / real_all_reduce);
  std::fflush(stdout);

  for (const int num_hosts : {2, 8, 32, 128}) {
    const Shape far{.num_hosts = num_hosts, .ranks_per_host = 8, .cores = 8};
    const bench::SetUp connected = bench::simulate_set_up(far, costs);
    fmt::print(stderr, "connecting {} ranks: {} messages of the store, {} lines\n", far.num_ranks(),
               connected.num_frames, connected.num_lines);
    fmt::print("scale.simulated.set_up.{}hosts_x_8_ms {:.1f} ms\n", num_hosts, 1e3 * connected.seconds);
    fmt::print("scale.simulated.all_reduce.{}hosts_x_8.64MiB_ms {:.1f} ms\n", num_hosts,
               1e3 * bench::simulate_all_reduce(far, costs, (std::size_t{64} << 20U) / sizeof(float)));
    std::fflush(stdout);
  }
}

}  // namespace

int main() try {
  measure();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
