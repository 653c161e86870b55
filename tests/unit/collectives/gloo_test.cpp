// SPDX-License-Identifier: MIT
// What the laws of Backend do not say about Gloo; those are in tests/conformance.
#include "railyard/collectives/gloo.hpp"

#include "support/catch.hpp"
#include "support/repeated_memory.hpp"
#include "support/run_ranks.hpp"

#include <dlfcn.h>

#include <csignal>
#include <filesystem>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

std::unique_ptr<ry::Gloo> join(const ry::World& world, ry::Store& store,
                               ry::Gloo::Options options = {.transport = ry::GlooTransport::tcp}) {
  return ry::Gloo::connect(options, world, store, ry::Deadline::after(60s));
}

std::ptrdiff_t count_files(const char* directory) {
  return std::distance(std::filesystem::directory_iterator{directory}, std::filesystem::directory_iterator{});
}

}  // namespace

TEST_CASE("Gloo: a host that is not known, or not this one, is refused by the name of the option") {
  CHECK_NOTHROW(ry::Gloo::check({}));
  CHECK_NOTHROW(ry::Gloo::check({.host = "localhost"}));
  CHECK_THROWS_WITH(ry::Gloo::check({.host = "no-such-host.invalid"}),
                    Catch::ContainsSubstring("Gloo::Options::host is \"no-such-host.invalid\""));
  CHECK_THROWS_WITH(ry::Gloo::check({.host = "192.0.2.1"}), Catch::ContainsSubstring("not an address of this host"));
}

TEST_CASE("Gloo: ranks of one host share memory, unless told otherwise or on several hosts") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    railyard_test::require(join(world, store, {})->host_memory() != nullptr, "shared memory by default");
    railyard_test::require(join(world, store)->host_memory() == nullptr, "no shared memory with tcp");
    ry::World two_hosts = world;
    two_hosts.local_size = 1;
    two_hosts.num_nodes = 2;
    railyard_test::require(join(two_hosts, store, {})->host_memory() == nullptr, "none among hosts");
  });
}

TEST_CASE("Gloo: a name of this host works as its address does") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    const auto backend = join(world, store, {.host = "localhost", .transport = ry::GlooTransport::tcp});
    backend->barrier({});
  });
}

TEST_CASE("Gloo: a rank whose configuration is refused does not let the others wait for long") {
  const auto thrown = railyard_test::run_ranks_to_end(2, [](const ry::World& world, ry::Store& store) {
    const std::string host = world.rank == 1 ? "192.0.2.1" : "127.0.0.1";
    static_cast<void>(ry::Gloo::connect({.host = host}, world, store, ry::Deadline::after(300ms)));
  });
  REQUIRE((thrown[0] && thrown[1]));
  CHECK_THROWS_AS(std::rethrow_exception(thrown[0]), ry::CollectiveError);
  CHECK_THROWS_AS(std::rethrow_exception(thrown[1]), ry::ConfigError);
}

TEST_CASE("Gloo: a hundred groups leave no descriptor and no thread behind (C9)") {
  const auto turn = [] {
    railyard_test::run_ranks(3, [](const ry::World& world, ry::Store& store) { join(world, store)->barrier({}); });
  };
  turn();  // what the first one opens for good, such as the resolver's files, does not count
  const auto descriptors = count_files("/proc/self/fd");
  const auto threads = count_files("/proc/self/task");
  for (int i = 0; i < 100; ++i) turn();
  CHECK(count_files("/proc/self/fd") == descriptors);
  CHECK(count_files("/proc/self/task") <= threads);
}

TEST_CASE("Gloo: one store serves one group after the other") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::int64_t> values{turn};
      join(world, store)->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {});
      railyard_test::require(values[0] == 2 * turn, "this turn's sum");
    }
  });
}

TEST_CASE("Gloo: writing to a rank that is gone raises no SIGPIPE and leaves its disposition alone") {
  // The default disposition of SIGPIPE would end this program.
  struct sigaction before {};
  REQUIRE(sigaction(SIGPIPE, nullptr, &before) == 0);
  REQUIRE(before.sa_handler == SIG_DFL);
  const auto thrown = railyard_test::run_ranks_to_end(2, [](const ry::World& world, ry::Store& store) {
    auto backend = join(world, store);
    backend->barrier({});
    if (world.rank == 1) return;
    std::vector<float> values(1'000'000);
    for (int i = 0; i < 1000; ++i) backend->send(ry::buffer_of(values), 1, {});
  });
  REQUIRE(thrown[0]);
  CHECK_THROWS_AS(std::rethrow_exception(thrown[0]), ry::CollectiveError);
  struct sigaction after {};
  REQUIRE(sigaction(SIGPIPE, nullptr, &after) == 0);
  CHECK(after.sa_handler == SIG_DFL);
  sigset_t pending;
  sigpending(&pending);
  CHECK(sigismember(&pending, SIGPIPE) == 0);
}

TEST_CASE("Gloo: a copy of Gloo inside LibTorch is refused with the order to link in") {
  CHECK_NOTHROW(ry::detail::check_gloo_is_own(nullptr));
  CHECK_NOTHROW(ry::detail::check_gloo_is_own(reinterpret_cast<const void*>(&gloo::transport::tcp::CreateDevice)));
  CHECK_THROWS_WITH(ry::detail::check_gloo_file("/opt/torch/lib/libtorch_cpu.so"),
                    Catch::ContainsSubstring("-lgloo -ltorch_cpu"));
  CHECK_NOTHROW(ry::detail::check_gloo_file("/usr/lib/x86_64-linux-gnu/libgloo.so.0"));
}

TEST_CASE("library_of: names the shared library, and nothing for the program or no address") {
  void* function = ::dlsym(RTLD_DEFAULT, "getenv");
  REQUIRE(function != nullptr);
  CHECK_THAT(std::string{ry::detail::library_of(function)}, Catch::ContainsSubstring("libc.so"));
  static const int own = 0;
  CHECK(ry::detail::library_of(&own).empty());
  CHECK(ry::detail::library_of(nullptr).empty());
}

TEST_CASE("Gloo: an all_reduce above 4 MiB per rank is done in several segments") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    const auto backend = join(world, store);
    std::vector<std::int32_t> values(5'000'001, world.rank + 1);
    values.back() = 10 * (world.rank + 1);
    backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {});
    for (std::size_t i = 0; i + 1 < values.size(); ++i) railyard_test::require(values[i] == 3, "the sum everywhere");
    railyard_test::require(values.back() == 30, "the last sum");
    std::vector<std::int32_t> half(2'500'000);
    backend->reduce_scatter({values.data(), 5'000'000, ry::Dtype::i32}, ry::buffer_of(half), ry::ReduceOp::max, {});
    railyard_test::require(half.front() == 3 && half.back() == 3, "the maximum of equal values");
  });
}

TEST_CASE("Gloo: counts and sizes beyond 2^31 bytes arrive whole (FAULTS D29)") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    railyard_test::check_large_counts(*join(world, store), world.rank);
  });
}
