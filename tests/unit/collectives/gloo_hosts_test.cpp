// SPDX-License-Identifier: MIT
// What the laws of Backend do not say about several hosts: who is named when a rank or a link of one is lost, and that
// results do not depend on the way that values take. The hosts are pretended, but for the link, which is one.
#include "railyard/collectives/detail/gloo_hosts.hpp"

#include "railyard/workers/processes.hpp"

#include "support/catch.hpp"
#include "support/pretended_hosts.hpp"
#include "support/run_ranks.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

using railyard_test::require;

ry::World pretended(ry::World world) {
  world = railyard_test::on_two_hosts(world);
  world.host = world.node == 0 ? "alpha" : "beta";
  return world;
}

std::unique_ptr<ry::detail::GlooHosts> join_hosts(const ry::World& world, ry::Store& store,
                                                  const std::string& address = "127.0.0.1") {
  return ry::detail::GlooHosts::connect(address, pretended(world), store, ry::Deadline::after(60s));
}

ry::Call call_within(std::chrono::nanoseconds budget) { return {.deadline = ry::Deadline::after(budget)}; }

// Calls call(), which has to throw a CollectiveError that blames these ranks and has all of the texts in it.
template <class Call>
void lost_group(const Call& call, const std::vector<int>& blamed, const std::vector<std::string>& texts) {
  try {
    call();
  } catch (const ry::CollectiveError& error) {
    require(error.blamed() == blamed,
            fmt::format("{} to blame by \"{}\"", ry::detail::ranks_text(blamed), error.what()));
    for (const auto& text : texts) {
      require(std::string{error.what()}.find(text) != std::string::npos,
              fmt::format("\"{}\" in \"{}\"", text, error.what()));
    }
    return;
  }
  throw std::runtime_error{"not as required: a CollectiveError"};
}

void sum_up(ry::detail::GlooHosts& hosts, std::vector<float>& values, std::chrono::nanoseconds budget) {
  hosts.all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, call_within(budget));
}

}  // namespace

TEST_CASE("GlooHosts: equally many ranks on each host fit, others do not") {
  const auto fits = [](int size) {
    railyard_test::run_ranks(size, [size](const ry::World& world, ry::Store& store) {
      const bool answer = ry::detail::GlooHosts::fits(pretended(world), store, ry::Deadline::after(60s));
      require(answer == (size == 4 || size == 6), fmt::format("the answer for {} ranks", size));
    });
  };
  for (const int size : {1, 2, 3, 4, 5, 6}) fits(size);
}

TEST_CASE("GlooHosts: a sum in many chunks has the bits of the sums within hosts, and then between them") {
  constexpr std::size_t count = 3'000'001;  // of 2 ranks and 512 Ki elements each: six chunks, and one element
  const auto value = [](int rank, std::size_t i) {
    return static_cast<float>((i * 7919 + static_cast<std::size_t>(rank) * 104729) % 1'000'003) * 1e-3F;
  };
  railyard_test::run_ranks(4, [&](const ry::World& world, ry::Store& store) {
    const auto hosts = join_hosts(world, store);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value(world.rank, i);
    sum_up(*hosts, values, 60s);
    for (std::size_t i = 0; i < count; ++i) {
      const float expected = (value(0, i) + value(1, i)) + (value(2, i) + value(3, i));
      require(values[i] == expected, [&] { return fmt::format("element {} is {}, not {}", i, values[i], expected); });
    }
  });
}

TEST_CASE("GlooHosts: a killed rank is named on every host, in small operations and in large ones (FAULTS B18)") {
  const std::size_t count = GENERATE(10U, 4'000'000U);
  const auto exits = railyard_test::run_group_to_end<ry::Processes>(4, [count](ry::WorkerLink& link) {
    const auto hosts = join_hosts(link.world(), link.store());
    std::vector<float> values(count);
    sum_up(*hosts, values, 60s);
    if (link.world().rank == 3) std::raise(SIGKILL);
    lost_group([&] { sum_up(*hosts, values, 60s); }, {3}, {"all_reduce(sum, ", "died"});
    lost_group([&] { hosts->barrier(call_within(1h)); }, {3}, {"barrier() on rank", "lost before"});
    lost_group([&] { hosts->send(ry::buffer_of(values), (link.world().rank + 1) % 3, call_within(1h)); }, {3},
               {"lost before"});
  });
  for (const std::size_t rank : {0U, 1U, 2U}) {
    INFO(exits[rank].message);
    CHECK(exits[rank].kind == ry::WorkerExit::Kind::returned);
  }
}

TEST_CASE("GlooHosts: a rank that does not come in time is named on every host") {
  railyard_test::run_ranks(4, [](const ry::World& world, ry::Store& store) {
    const auto hosts = join_hosts(world, store);
    std::vector<float> values(10);
    sum_up(*hosts, values, 60s);
    if (world.rank != 3) {
      lost_group([&] { sum_up(*hosts, values, 400ms); }, {3}, {"did not answer in 400 ms", "beta, 127.0.0.1"});
      return store.set(fmt::format("seen by {}", world.rank), "");
    }
    for (const int rank : {0, 1, 2}) {
      require(store.get(fmt::format("seen by {}", rank), ry::Deadline::after(60s)).has_value(), "an end of its wait");
    }
  });
}

TEST_CASE("GlooHosts: who gives up is named on every host, with the reason") {
  railyard_test::run_ranks(4, [](const ry::World& world, ry::Store& store) {
    const auto hosts = join_hosts(world, store);
    std::vector<float> values(10);
    if (world.rank == 2) hosts->abort("no disk");
    lost_group(
        [&] { hosts->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {.deadline = ry::Deadline::never()}); }, {2},
        {"rank 2 gave up: no disk"});
  });
}

TEST_CASE("GlooHosts: another call on another host is told by both names") {
  railyard_test::run_ranks(4, [](const ry::World& world, ry::Store& store) {
    const auto hosts = join_hosts(world, store);
    std::vector<float> values(10);
    try {
      world.rank < 2 ? sum_up(*hosts, values, 60s) : static_cast<void>(hosts->barrier(call_within(60s)));
    } catch (const ry::CollectiveError& error) {
      const std::string text = error.what();
      require(text.find("barrier()") != text.npos && text.find("all_reduce(sum, 10 x f32)") != text.npos, text);
      return;
    }
    throw std::runtime_error{"not as required: a CollectiveError"};
  });
}

TEST_CASE("GlooHosts: a link that goes down in an operation ends it at the deadline, and both hosts are named") {
  const std::string name = fmt::format("ry{}", ::getpid());
  const auto run = [](const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; };
  if (!run(fmt::format("ip netns add {0}a && ip netns add {0}b", name))) {
    WARN("not tested: this kernel lets nobody make networks");
    return;
  }
  CHECK(run(fmt::format("ip link add {0}x netns {0}a type veth peer name {0}x netns {0}b", name)));
  for (const auto& [host, number] : {std::pair{"a", 1}, std::pair{"b", 2}}) {
    CHECK(
        run(fmt::format("ip -n {0}{1} address add 10.79.0.{2}/24 dev {0}x && ip -n {0}{1} link set {0}x up && "
                        "ip -n {0}{1} link set lo up",
                        name, host, number)));
  }
  const auto exits = railyard_test::run_group_to_end<ry::Processes>(4, [&](ry::WorkerLink& link) {
    const ry::World world = pretended(link.world());
    const int network = ::open(fmt::format("/run/netns/{}{}", name, world.node == 0 ? "a" : "b").c_str(), O_RDONLY);
    require(network >= 0 && ::setns(network, CLONE_NEWNET) == 0, "this rank on its host");
    const auto hosts = join_hosts(link.world(), link.store(), fmt::format("10.79.0.{}", world.node + 1));
    std::vector<float> values(1'000'000);
    sum_up(*hosts, values, 60s);
    std::thread saw;
    if (world.rank == 0) saw = std::thread{[&] { run(fmt::format("ip -n {0}b link set {0}x down", name)); }};
    auto begin = std::chrono::steady_clock::now();
    try {
      for (int turn = 0; turn < 100'000; ++turn) {
        begin = std::chrono::steady_clock::now();
        sum_up(*hosts, values, 2s);
      }
    } catch (const ry::CollectiveError& error) {
      if (saw.joinable()) saw.join();
      const std::string text = error.what();
      for (const char* named : {"host 0 (alpha, 10.79.0.1)", "host 1 (beta, 10.79.0.2)", "2 s"}) {
        require(text.find(named) != text.npos, fmt::format("\"{}\" in \"{}\"", named, text));
      }
      return require(std::chrono::steady_clock::now() - begin < 30s, "an end soon after the deadline");
    }
    throw std::runtime_error{"not as required: a CollectiveError"};
  });
  for (const auto& exit : exits) {
    INFO(exit.message);
    CHECK(exit.kind == ry::WorkerExit::Kind::returned);
  }
  CHECK(run(fmt::format("ip netns delete {0}a && ip netns delete {0}b", name)));
}

TEST_CASE("GlooHosts: ranks of a host see each other's memory, and each has a line to its like on the other host") {
  const auto exits = railyard_test::run_group_to_end<ry::Processes>(4, [](ry::WorkerLink& link) {
    const auto hosts = join_hosts(link.world(), link.store());
    const int rank = link.world().rank;
    const auto deadline = [] { return ry::Deadline::after(60s); };
    ry::HostMemory& memory = hosts->host_memory();
    require(memory.rank() == rank % 2 && memory.size() == 2, "a place on its host");
    require(memory.host() == rank / 2 && memory.num_hosts() == 2, "the host's place");
    const auto exchange = [&](ry::HostMemory& lane, std::vector<float> values) {
      lane.begin(ry::Purpose::gradients, std::as_bytes(std::span{&rank, 1}), 2, deadline());
      int other = -1;
      std::memcpy(&other, lane.record_of(1 - rank % 2).data(), sizeof other);
      require(other == (rank ^ 1), "the record of the other rank of this host");
      lane.add_between_hosts(ry::buffer_of(values), deadline());
      for (const float value : values) {
        require(value == static_cast<float>(2 * (rank % 2) + 2), "the sum of ranks with equal places");
      }
      lane.rest();
      lane.step({});
    };
    std::exception_ptr error;
    ry::HostMemory& side = *memory.side(deadline());
    require(&side == memory.side(deadline()) && side.side(deadline()) == nullptr, "one line beside");
    std::thread beside{[&] {
      try {
        for (int turn = 0; turn < 30; ++turn) {
          exchange(side, std::vector<float>(turn == 3 ? 1'000'000 : 9, static_cast<float>(rank)));
        }
      } catch (...) {
        error = std::current_exception();
      }
    }};
    for (int turn = 0; turn < 30; ++turn) {
      exchange(memory, std::vector<float>(turn == 7 ? 1'000'000 : 9, static_cast<float>(rank)));
      std::vector<float> values(10, 1);
      sum_up(*hosts, values, 60s);
      require(values[3] == 4, "operations between exchanges");
    }
    std::vector<float> values(100'000, static_cast<float>(rank));
    auto sums = memory.begin_between_hosts(ry::buffer_of(values), deadline());
    sums.get();
    require(values.back() == static_cast<float>(2 * (rank % 2) + 2), "the sum that was begun");
    beside.join();
    if (error) std::rethrow_exception(error);
  });
  for (const auto& exit : exits) {
    INFO(exit.message);
    CHECK(exit.kind == ry::WorkerExit::Kind::returned);
  }
}

TEST_CASE("GlooHosts: a rank that is killed between two exchanges is named on every host") {
  const auto exits = railyard_test::run_group_to_end<ry::Processes>(4, [](ry::WorkerLink& link) {
    const auto hosts = join_hosts(link.world(), link.store());
    ry::HostMemory& memory = hosts->host_memory();
    std::vector<float> values(10);
    const auto exchange = [&] {
      memory.begin(ry::Purpose::gradients, {}, 2, ry::Deadline::after(60s));
      memory.add_between_hosts(ry::buffer_of(values), ry::Deadline::after(60s));
      memory.step({});
    };
    exchange();
    if (link.world().rank == 3) std::raise(SIGKILL);
    lost_group(exchange, {3}, {"the exchange of gradients on rank", "died"});
    lost_group([&] { sum_up(*hosts, values, 60s); }, {3}, {"lost before"});
  });
  for (const std::size_t rank : {0U, 1U, 2U}) {
    INFO(exits[rank].message);
    CHECK(exits[rank].kind == ry::WorkerExit::Kind::returned);
  }
}

TEST_CASE("GlooHosts: who gives up beside the operations is named on every host, and loses the group") {
  railyard_test::run_ranks(4, [](const ry::World& world, ry::Store& store) {
    const auto hosts = join_hosts(world, store);
    ry::HostMemory& side = *hosts->host_memory().side(ry::Deadline::after(60s));
    std::vector<float> values(10);
    if (world.rank == 1) side.abort("no disk");
    lost_group(
        [&] {
          side.begin(ry::Purpose::gradients, {}, 2, ry::Deadline::after(60s));
          side.add_between_hosts(ry::buffer_of(values), ry::Deadline::after(60s));
          side.step({});
        },
        {1}, {"the exchange of gradients on rank", "rank 1 gave up: no disk"});
    lost_group([&] { sum_up(*hosts, values, 60s); }, {1}, {"lost before"});
  });
}
