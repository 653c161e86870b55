// SPDX-License-Identifier: MIT
// What more than one host costs: how long 64 launched processes take to find each other, and an all-reduce between two
// hosts of two ranks each, over a network of 1 Gbit/s. The hosts are network namespaces of this one (root only; where
// there can be none, the figures are left out, in words).
#include "collectives/contestants.hpp"
#include "hosts/two_hosts.hpp"
#include "median.hpp"

#include <railyard/collectives/gloo.hpp>
#include <railyard/core/detail/system.hpp>
#include <railyard/train/trainer.hpp>
#include <railyard/workers/detail/rank_lines.hpp>
#include <railyard/workers/launched.hpp>
#include <railyard/workers/processes.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
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

// Forks processes as a launcher starts them, and returns the time from the last fit() to the last first line of a
// training function. The clock is the same for all processes of a host.
double first_line_ms(int num_processes, int turn) {
  const auto folder = std::filesystem::current_path() / fmt::format("turn{}", turn);
  std::filesystem::create_directories(folder / "times");
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const auto note = [&](const char* what, int number) {
    std::ofstream{folder / "times" / fmt::format("{}{}", what, number)} << ry::detail::monotonic_ns();
  };
  std::vector<pid_t> children;
  for (int process = 0; process < num_processes; ++process) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
    ry::ScalingConfig scaling{.num_workers = 1};
    scaling.launch = {.process = process, .num_processes = num_processes, .job = fmt::format("turn{}", turn)};
    scaling.launch.rendezvous = folder;
    ry::Trainer<ry::Gloo, ry::Launched> trainer{[&](ry::Worker& worker) { note("line", worker.rank()); },
                                                scaling,
                                                {.storage_path = folder, .progress = ry::Progress::quiet}};
    note("fit", process);
    ::_exit(trainer.fit() ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) throw std::runtime_error{"a launched process has failed"};
  }
  std::map<std::string, std::int64_t> last;
  for (const auto& entry : std::filesystem::directory_iterator{folder / "times"}) {
    std::int64_t time = 0;
    std::ifstream{entry.path()} >> time;
    auto& newest = last[entry.path().filename().string()[0] == 'f' ? "fit" : "line"];
    newest = std::max(newest, time);
  }
  return static_cast<double>(last["line"] - last["fit"]) / 1e6;
}

void measure_rendezvous() {
  constexpr int num_turns = 5;
  std::vector<double> ms;
  for (int turn = 0; turn < num_turns; ++turn) ms.push_back(first_line_ms(64, turn));
  fmt::print("rendezvous.64ranks.first_line_ms {:.1f} ms\n", median(ms));
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
