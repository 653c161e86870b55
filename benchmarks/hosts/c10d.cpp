// SPDX-License-Identifier: MIT
// How long 64 processes of one host take to find each other by LibTorch's own store and process group, beside ours: one
// binary, and ranks that are started alike.
#include "../median.hpp"
#include "first_line.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace {

constexpr int num_ranks = 64;
constexpr int num_turns = 5;

void join_c10d(const bench::FirstLine& first, std::uint16_t port, int rank, int size) {
  using c10d::ProcessGroupGloo;
  first.note_start(rank);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = rank == 0;
  options.numWorkers = static_cast<std::size_t>(size);
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto group_options = ProcessGroupGloo::Options::create();
  group_options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  group_options->threads = 2;
  const auto group = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, group_options);
  first.note_line(rank);
  // Nobody leaves before all have come, and the one with the store last of all.
  store->add("lines", 1);
  while (rank == 0 && store->add("lines", 0) < size) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  rank == 0 ? store->set("all", std::vector<std::uint8_t>{1}) : store->wait({"all"});
  store->add("leaving", 1);
  while (rank == 0 && store->add("leaving", 0) < size) std::this_thread::sleep_for(std::chrono::milliseconds{1});
}

void measure() {
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int turn = 0; turn < num_turns; ++turn) {
    const auto folder = [turn](const char* whose) {
      return std::filesystem::current_path() / fmt::format("{}{}", whose, turn);
    };
    ours.push_back(bench::first_line_ms(folder("ours"), num_ranks, [](const auto& first, int process, int size) {
      bench::join_launched(first, process, size);
    }));
    const auto port = static_cast<std::uint16_t>(bench::free_port());
    theirs.push_back(bench::first_line_ms(folder("c10d"), num_ranks, [port](const auto& first, int rank, int size) {
      join_c10d(first, port, rank, size);
    }));
  }
  fmt::print(stderr, "rendezvous of {} ranks, with LibTorch loaded: ours {:.0f} ms, c10d {:.0f} ms\n", num_ranks,
             bench::median(ours), bench::median(theirs));
  fmt::print("rendezvous.c10d_over_ours {:.2f} ratio\n", bench::median(theirs) / bench::median(ours));
}

}  // namespace

int main() try {
  measure();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
