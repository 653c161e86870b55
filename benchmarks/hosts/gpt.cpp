// SPDX-License-Identifier: MIT
// A training step of a small decoder on two hosts with two workers each, 1 Gbit/s between them, beside PyTorch's
// DistributedDataParallel over Gloo in the same network, and beside as many workers that exchange nothing, which nobody
// can outpace. The arguments are DDP's script and the folder of its packages. Workers are pinned to cores, and all
// three take turns.
#include "../median.hpp"
#include "../training/ddp.hpp"
#include "../training/nets.hpp"
#include "two_hosts.hpp"

#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

constexpr int num_rounds = 5;
constexpr int warm_up = 3;
constexpr int steps = 15;
constexpr double learning_rate = 0.05;  // as in ddp.py

// Of all processes.
struct Shared {
  std::atomic<double> us{0};  // of a step of the slowest worker
  std::atomic<double> loss{0};
};

std::shared_ptr<bench::Gpt> make_net() {
  torch::manual_seed(1);
  return std::make_shared<bench::Gpt>();
}

// Takes the steps on a worker, those that count between two barriers.
template <class Net, class Optimizer>
void train(ry::Worker& worker, Net& net, Optimizer& optimizer, Shared& shared) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + worker.rank()));
  net->draw_batch();
  double loss = 0;
  const auto step = [&](bool is_last) {
    worker.samples(static_cast<std::uint64_t>(bench::Gpt::batch));
    optimizer.zero_grad();
    auto of_batch = net->loss();
    of_batch.backward();
    optimizer.step();
    if (is_last) loss = of_batch.template item<double>();
  };
  for (int count = 0; count < warm_up; ++count) step(false);
  worker.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int count = 0; count < steps; ++count) step(count + 1 == steps);
  double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / steps;
  worker.all_reduce(ry::buffer_of_value(us), ry::ReduceOp::max);
  if (worker.rank() == 0) {
    shared.us = us;
    shared.loss = loss;
  }
}

void train_together(ry::Worker& worker, Shared& shared) {
  bench::pin(worker.rank());
  torch::set_num_threads(1);
  auto net = ry::prepare_model(worker, make_net);
  auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(learning_rate));
  train(worker, net, optimizer, shared);
}

void train_apart(ry::Worker& worker, Shared& shared) {
  bench::pin(worker.rank());
  torch::set_num_threads(1);
  auto net = make_net();
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(learning_rate)};
  train(worker, net, optimizer, shared);
}

// One of two processes, on its host, with two workers.
int join(const bench::TwoHosts& hosts, int host, const std::string& job, int port, Shared& shared) {
  hosts.enter(host);
  const auto folder = std::filesystem::current_path();
  ry::ScalingConfig scaling{.num_workers = 2};
  scaling.launch = {.process = host,
                    .num_processes = 2,
                    .leader = fmt::format("{}:{}", bench::TwoHosts::address(0), port),
                    .job = job,
                    .secret_file = folder / "secret"};
  ry::Trainer<ry::Gloo, ry::Launched> trainer{[&](ry::Worker& worker) { train_together(worker, shared); },
                                              scaling,
                                              {.name = job, .storage_path = folder, .progress = ry::Progress::quiet}};
  const ry::Result result = trainer.fit();
  if (!result) fmt::print(stderr, "{}\n", result.error());
  return result ? 0 : 1;
}

void take_turn(const bench::TwoHosts& hosts, const std::string& job, int port, Shared& shared) {
  std::vector<pid_t> processes;
  for (const int host : {0, 1}) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 1;
    try {
      status = join(hosts, host, job, port, shared);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    ::_exit(status);
  }
  bool has_failed = false;
  for (const pid_t process : processes) {
    int status = -1;
    ::waitpid(process, &status, 0);
    has_failed = has_failed || status != 0;
  }
  if (has_failed) throw std::runtime_error{"a process of two hosts has failed"};
}

// Four workers on the cores of the two hosts' four.
void take_turn_apart(const std::string& name, Shared& shared) {
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{
      [&](ry::Worker& worker) { train_apart(worker, shared); },
      {.num_workers = 4},
      {.name = name, .storage_path = std::filesystem::current_path(), .progress = ry::Progress::quiet}};
  if (const ry::Result result = trainer.fit(); !result) throw std::runtime_error{std::string{result.error()}};
}

// Each rank of ddp.py is started on its host, as torchrun would: that is not there, for it would start ranks anew.
std::vector<std::vector<std::string>> ddp_commands(const bench::TwoHosts& hosts, const std::string& script) {
  std::vector<std::vector<std::string>> commands;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string host = hosts.name(rank / 2);
    commands.push_back({"ip", "netns", "exec", host, "env", fmt::format("RANK={}", rank), "WORLD_SIZE=4",
                        "MASTER_ADDR=" + bench::TwoHosts::address(0), "MASTER_PORT=29400", "GLOO_SOCKET_IFNAME=" + host,
                        "python3", script});
  }
  return commands;
}

void measure(const bench::TwoHosts& hosts, Shared& shared, const std::string& script, const std::string& packages) {
  Ddp ddp{packages, 4, ddp_commands(hosts, script)};
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> alone;
  for (int round = 0; round < num_rounds; ++round) {
    const DdpTurn turn = ddp.take_turn("gpt", warm_up, steps);
    theirs.push_back(turn.us);
    take_turn(hosts, fmt::format("gpt{}", round), 29'500 + round, shared);
    ours.push_back(shared.us);
    // Equal weights, batches and sums make equal losses, as far as two orders of adding up do.
    if (std::abs(turn.loss - shared.loss) > 0.02) {
      throw std::runtime_error{fmt::format("gpt ends at a loss of {}, under DDP at {}", shared.loss.load(), turn.loss)};
    }
    take_turn_apart(fmt::format("apart{}", round), shared);
    alone.push_back(shared.us);
  }
  fmt::print(stderr,
             "gpt on two hosts with two workers each: ours {:.0f} us, DDP over Gloo {:.0f} us, without any exchange "
             "{:.0f} us\n",
             bench::median(ours), bench::median(theirs), bench::median(alone));
  fmt::print("step.gpt.2hosts_x_2.ddp_over_ours {:.3f} ratio\n", bench::median(theirs) / bench::median(ours));
  fmt::print("step.gpt.2hosts_x_2.ddp_over_no_exchange {:.3f} ratio\n", bench::median(theirs) / bench::median(alone));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error{"usage: benchmark_hosts_gpt SCRIPT PACKAGES"};
  const bench::TwoHosts hosts;
  if (!hosts.are_there()) {
    fmt::print(stderr, "step.gpt.2hosts_x_2 is left out: this user may not make network namespaces\n");
    return 0;
  }
  bench::write_secret();
  measure(hosts, bench::make_shared_by_processes<Shared>(), argv[1], argv[2]);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
