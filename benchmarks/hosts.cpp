// SPDX-License-Identifier: MIT
// What more than one host costs: how long 64 launched processes take to find each other, and an all-reduce between two
// hosts of two ranks each, over a network of 1 Gbit/s. The hosts are network namespaces of this one (root only; where
// there can be none, the figures are left out, in words).
#include "collectives/contestants.hpp"
#include "hosts/far_leader.hpp"
#include "hosts/first_line.hpp"
#include "hosts/two_hosts.hpp"
#include "median.hpp"

#include <railyard/collectives/gloo.hpp>
#include <railyard/workers/detail/rank_lines.hpp>
#include <railyard/workers/processes.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

using Clock = std::chrono::steady_clock;

using bench::median;

double us_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

// --- finding each other
// -----------------------------------------------------------------------------------------------

void measure_rendezvous() {
  constexpr int num_turns = 5;
  std::vector<double> ms;
  for (int turn = 0; turn < num_turns; ++turn) {
    ms.push_back(bench::first_line_ms(std::filesystem::current_path() / fmt::format("turn{}", turn), 64,
                                      [](const auto& first, int process, int num_processes) {
                                        bench::join_launched(first, process, num_processes);
                                      }));
  }
  fmt::print("rendezvous.64ranks.first_line_ms {:.1f} ms\n", median(ms));
  std::fflush(stdout);  // or the processes that are forked later would write it as well
}

// With the leader so far away from all others.
double far_first_line_ms(std::chrono::milliseconds one_way, int turn) {
  const auto name = fmt::format("far{}_{}", one_way.count(), turn);
  const auto secret = std::filesystem::current_path() / (name + ".secret");
  std::ofstream{secret} << "0123456789abcdef0123456789abcdef\n";
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ::setenv("RAILYARD_SECRET_FILE", secret.c_str(), 1);
  const int port = bench::free_port();
  const bench::FarLeader far{port, one_way};
  const double ms =
      bench::first_line_ms(std::filesystem::current_path() / name, 8, [&](const auto& first, int process, int size) {
        bench::join_launched(first, process, size, fmt::format("127.0.0.1:{}", process == 0 ? port : far.port()));
      });
  ::unsetenv("RAILYARD_SECRET_FILE");
  return ms;
}

void measure_round_trips() {
  constexpr int num_turns = 5;
  constexpr std::chrono::milliseconds one_way{50};
  std::vector<double> counts;
  for (int turn = 0; turn < num_turns; ++turn) {
    const double near = far_first_line_ms(std::chrono::milliseconds{0}, turn);
    const double ms = far_first_line_ms(one_way, turn);
    counts.push_back((ms - near) / (2.0 * static_cast<double>(one_way.count())));
  }
  fmt::print("rendezvous.round_trips {:.1f} round_trips\n", median(counts));
  std::fflush(stdout);
}

// --- two hosts
// --------------------------------------------------------------------------------------------------------

using bench::TwoHosts;

constexpr std::size_t num_values = (std::size_t{64} << 20U) / sizeof(float);
constexpr int num_rounds = 5;

// One contestant's turn on one rank: warms up, and returns the microseconds of each all-reduce.
std::vector<double> take_turn(const std::function<void()>& barrier, const std::function<void()>& all_reduce) {
  std::vector<double> us;
  all_reduce();
  for (int round = 0; round < num_rounds; ++round) {
    barrier();
    const auto begin = Clock::now();
    all_reduce();
    us.push_back(us_between(begin, Clock::now()));
  }
  return us;
}

// Runs on each of four ranks, two on each host.
void reduce_between(const TwoHosts& hosts, const std::string& folder, ry::WorkerLink& link) {
  ry::World world = link.world();
  world.num_nodes = 2;
  world.node = world.rank / 2;
  world.local_rank = world.rank % 2;
  world.local_size = 2;
  world.address = TwoHosts::address(world.node);
  world.connector = std::make_shared<ry::detail::SecretConnector>(
      ry::detail::Hmac{ry::detail::text_bytes("the secret of this run")}, "benchmark",
      [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
  hosts.enter(world.node);
  const auto soon = [] { return ry::Deadline::after(std::chrono::minutes{2}); };
  auto ours = ry::Gloo::connect({}, world, link.store(), soon());
  const auto flat = ry::Gloo::connect({.transport = ry::GlooTransport::tcp}, world, link.store(), soon());
  const auto libgloo = bench::join_gloo(folder, world.rank, world.size, world.address);
  const auto barrier = [&] { ours->barrier({}); };
  std::vector<float> values(num_values, 1.0F);
  const ry::Buffer buffer = ry::buffer_of(values);

  const auto our_turn = take_turn(barrier, [&] { ours->all_reduce(buffer, ry::ReduceOp::max, {}); });
  barrier();
  const double before = hosts.sent_bytes(world.node);
  ours->all_reduce(buffer, ry::ReduceOp::max, {});
  const double sent = hosts.sent_bytes(world.node) - before;
  barrier();
  const auto flat_turn = take_turn(barrier, [&] { flat->all_reduce(buffer, ry::ReduceOp::max, {}); });
  float* theirs = libgloo->buffer(num_values);
  std::fill_n(theirs, num_values, 0.0F);
  const auto gloo_turn = take_turn(barrier, [&] { libgloo->all_reduce(theirs, num_values); });
  if (world.rank != 0) return;
  const std::array<double, 4> told{median(our_turn), median(flat_turn), median(gloo_turn), sent};
  link.post(std::as_bytes(std::span{told}));
}

void measure_two_hosts() {
  const TwoHosts hosts;
  if (!hosts.are_there()) {
    fmt::print(stderr, "figures of two hosts are left out: this user may not make network namespaces with tbf\n");
    return;
  }
  const auto folder = std::filesystem::current_path() / "gloo_store";
  std::filesystem::create_directories(folder);
  const auto group = ry::Processes{}.start({.num_workers = 4},
                                           [&](ry::WorkerLink& link) { reduce_between(hosts, folder.string(), link); });
  std::array<double, 4> told{};
  for (int num_over = 0; num_over < 4;) {
    const auto event = group->next(ry::Deadline::after(std::chrono::minutes{5}));
    if (!event) throw std::runtime_error{"the ranks of two hosts do not end"};
    if (const auto* message = std::get_if<ry::MessageEvent>(&*event)) {
      std::memcpy(told.data(), message->bytes.data(), sizeof told);
    }
    if (const auto* line = std::get_if<ry::OutputEvent>(&*event)) fmt::print(stderr, "{}\n", line->line);
    if (const auto* exit = std::get_if<ry::ExitEvent>(&*event)) {
      ++num_over;
      if (exit->exit.kind != ry::WorkerExit::Kind::returned) throw std::runtime_error{exit->exit.message};
    }
  }
  const auto [ours, flat, libgloo, sent] = told;
  fmt::print(stderr, "all_reduce.2hosts_x_2.64MiB: ours {:.0f} us, flat {:.0f} us, libgloo's ring {:.0f} us\n", ours,
             flat, libgloo);
  fmt::print("all_reduce.2hosts_x_2.64MiB.flat_gloo_over_ours {:.2f} ratio\n", libgloo / ours);
  fmt::print("all_reduce.2hosts_x_2.64MiB.flat_over_ours {:.2f} ratio\n", flat / ours);
  // Between two hosts each sends half of the data to be added, and half of the sums.
  fmt::print("all_reduce.2hosts_x_2.64MiB.wire_bytes_over_theory {:.3f} ratio\n",
             sent / static_cast<double>(num_values * sizeof(float)));
}

}  // namespace

int main() try {
  measure_rendezvous();
  measure_round_trips();
  measure_two_hosts();
#ifdef BENCH_HOSTS_TRAINING
  std::fflush(stdout);
  if (std::system(BENCH_HOSTS_TRAINING) != 0) throw std::runtime_error{"training on two hosts has failed"};
#else
  fmt::print(stderr, "figures of training on two hosts are left out: there is no LibTorch\n");
#endif
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
