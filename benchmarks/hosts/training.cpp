// SPDX-License-Identifier: MIT
// What a training step between two hosts costs more with TLS, and while others attack the process that leads: mlp_932k,
// one worker on each host, 1 Gbit/s between them. Started by benchmark_hosts.
#include "../median.hpp"
#include "two_hosts.hpp"

#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

using Clock = std::chrono::steady_clock;

using bench::median;

constexpr int num_warm_up = 15;
constexpr int steps_in_phase = 20;
constexpr int most_phases = 40;
constexpr double connections_per_second = 200;

// Memory of all processes: what is to be done, and what came of it.
struct Shared {
  std::atomic<bool> attacks{false};
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> num_connections{0};
  std::atomic<double> attacked_seconds{0};
  std::array<double, most_phases> step_us{};  // of each phase, the median
};

struct Job {
  std::string name;
  int port = 0;
  bool has_tls = false;
  int num_phases = 4;
  bool is_attacked = false;  // in every second phase
};

void train(ry::Worker& worker, const Job& job, Shared& shared) {
  torch::set_num_threads(1);
  torch::manual_seed(1 + worker.rank());
  auto net = ry::prepare_model(worker, [] {
    torch::nn::Sequential layers;
    const std::array<std::int64_t, 5> widths{784, 512, 512, 512, 10};
    for (std::size_t at = 0; at + 1 < widths.size(); ++at) {
      if (at > 0) layers->push_back(torch::nn::ReLU());
      layers->push_back(torch::nn::Linear(widths[at], widths[at + 1]));
    }
    return layers.ptr();
  });
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
  const auto data = torch::randn({64, 784});
  const auto target = torch::randint(0, 10, {64});
  const auto step = [&] {
    worker.samples(64);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(data), target).backward();
    optimizer.step();
    worker.end_step();
  };
  for (int count = 0; count < num_warm_up; ++count) step();
  for (int phase = 0; phase < job.num_phases; ++phase) {
    if (worker.rank() == 0) shared.attacks.store(job.is_attacked && phase % 2 == 1);
    std::vector<double> us;
    for (int count = 0; count < steps_in_phase; ++count) {
      const auto begin = Clock::now();
      step();
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    if (worker.rank() == 0) shared.step_us[static_cast<std::size_t>(phase)] = median(us);
  }
  if (worker.rank() == 0) shared.attacks.store(false);
}

// One of the two processes, on its host.
int join(const bench::TwoHosts& hosts, int host, const Job& job, Shared& shared) {
  hosts.enter(host);
  const auto folder = std::filesystem::current_path();
  ry::ScalingConfig scaling{.num_workers = 1};
  scaling.launch = {.process = host,
                    .num_processes = 2,
                    .leader = fmt::format("{}:{}", bench::TwoHosts::address(0), job.port),
                    .job = job.name,
                    .secret_file = folder / "secret",
                    .tls = job.has_tls};
  ry::Trainer<ry::Gloo, ry::Launched> trainer{
      [&](ry::Worker& worker) { train(worker, job, shared); },
      scaling,
      {.name = job.name, .storage_path = folder, .progress = ry::Progress::quiet}};
  const ry::Result result = trainer.fit();
  if (!result) fmt::print(stderr, "{}\n", result.error());
  return result ? 0 : 1;
}

// Connects to the leader, from the other host, as those do who do not know the secret, while it is told to.
int attack(const bench::TwoHosts& hosts, int port, Shared& shared) {
  hosts.enter(1);
  std::mt19937 random{1};
  std::vector<ry::detail::Socket> silent;
  const ry::detail::Hmac wrong{ry::detail::text_bytes("another secret than that of this run")};
  while (!shared.is_over.load()) {
    if (!shared.attacks.load()) {
      silent.clear();
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      continue;
    }
    const auto begin = Clock::now();
    std::uint64_t count = 0;
    for (; shared.attacks.load(); ++count) {
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                                static_cast<double>(count) / connections_per_second)));
      std::string cause;
      const auto soon = ry::Deadline::after(std::chrono::seconds{1});
      ry::detail::Socket socket = ry::detail::try_connect(bench::TwoHosts::address(0), port, soon, cause);
      if (!socket.is_open()) throw std::runtime_error{"the leader cannot be reached: " + cause};
      const auto say = [&](ry::detail::ConstBytes bytes) { static_cast<void>(socket.send(bytes)); };
      std::array<std::byte, 4096> noise{};
      for (std::byte& byte : noise) byte = std::byte(random());
      const auto opening = ry::detail::Opening::make(count % 2 == 0 ? ry::detail::Opening::at_length
                                                                    : ry::detail::Opening::at_length_by_tls);
      const auto kind = count / 2 % 5;  // the first of them is a port scan: it says nothing and goes
      if (kind == 1) say(noise);
      if (kind == 2) say(ry::detail::text_bytes("GET / HTTP/1.1\r\n\r\n"));
      if (kind >= 3) say(opening.bytes());
      if (kind == 3 && ry::detail::wait_for(socket.fd(), POLLIN, soon)) say(noise);  // in place of a proof, or of TLS
      if (kind != 0) silent.push_back(std::move(socket));  // and stays, with half of a hello or none
      if (silent.size() > 400) silent.erase(silent.begin(), silent.begin() + 200);
    }
    shared.num_connections += count;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    shared.attacked_seconds.store(shared.attacked_seconds.load() + seconds);
  }
  return 0;
}

template <class Function>
pid_t fork_to(const Function& function) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 1;
  try {
    status = function();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  ::_exit(status);
}

void wait_for_success(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  if (status != 0) throw std::runtime_error{"a process of two hosts has failed"};
}

void run_job(const bench::TwoHosts& hosts, const Job& job, Shared& shared) {
  shared.is_over = false;
  std::vector<pid_t> processes;
  for (const int host : {0, 1}) processes.push_back(fork_to([&] { return join(hosts, host, job, shared); }));
  const pid_t attacker = fork_to([&] { return attack(hosts, job.port, shared); });
  for (const pid_t process : processes) wait_for_success(process);
  shared.is_over = true;
  wait_for_success(attacker);
}

// What processes that are forked later find unwritten, they would write as well.
void tell(const char* figure, double ratio) {
  fmt::print("{} {:.3f} ratio\n", figure, ratio);
  std::fflush(stdout);
}

void measure(const bench::TwoHosts& hosts, Shared& shared) {
  constexpr int num_rounds = 9;
  int port = 29'600;
  std::vector<double> prices;
  for (int round = 0; round < num_rounds; ++round) {
    std::array<double, 2> us{};
    for (const int turn : {0, 1}) {
      const bool has_tls = (turn + round) % 2 == 1;
      run_job(hosts, {.name = fmt::format("price{}", port), .port = port, .has_tls = has_tls}, shared);
      us[has_tls ? 1 : 0] = median({shared.step_us.begin(), shared.step_us.begin() + Job{}.num_phases});
      ++port;
    }
    fmt::print(stderr, "mlp_932k between two hosts: {:.0f} us, with TLS {:.0f} us\n", us[0], us[1]);
    prices.push_back(us[1] / us[0]);
  }
  tell("tls.price", median(prices));

  for (const bool has_tls : {false, true}) {
    shared.num_connections = 0;
    shared.attacked_seconds = 0.0;
    run_job(hosts,
            {.name = fmt::format("attacked{}", port),
             .port = port,
             .has_tls = has_tls,
             .num_phases = most_phases,
             .is_attacked = true},
            shared);
    ++port;
    std::vector<double> ratios;
    for (std::size_t phase = 0; phase + 1 < shared.step_us.size(); phase += 2) {
      ratios.push_back(shared.step_us[phase + 1] / shared.step_us[phase]);
    }
    fmt::print(stderr, "mlp_932k between two hosts, attacked by {:.0f} connections a second{}\n",
               static_cast<double>(shared.num_connections.load()) / shared.attacked_seconds.load(),
               has_tls ? ", with TLS" : "");
    tell(has_tls ? "attack.step_time_ratio.tls" : "attack.step_time_ratio", median(ratios));
  }
}

}  // namespace

int main() try {
  const bench::TwoHosts hosts;
  if (!hosts.are_there()) {
    fmt::print(stderr, "figures of training on two hosts are left out: this user may not make network namespaces\n");
    return 0;
  }
  bench::write_secret();
  measure(hosts, bench::make_shared_by_processes<Shared>());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
