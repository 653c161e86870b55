// SPDX-License-Identifier: MIT
#include "railyard/train/detail/run_lease.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <chrono>
#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using ry::detail::RunLease;

namespace {

using Times = ry::detail::LeaseTimes;
constexpr Times brief{.beat = std::chrono::milliseconds{5}, .patience = std::chrono::milliseconds{100}};
constexpr Times patient{.beat = std::chrono::milliseconds{5}, .patience = std::chrono::minutes{1}};

// What a program on another host has written, whose locks nobody here knows of.
void write_elsewhere(const Scratch& scratch, bool has_ended = false) {
  std::ofstream{scratch.path() / "lease.json"}
      << R"({"generation": 7, "id": "a", "host": "node7", "since": "yesterday", "pid": 12, "boot": "b", "has_ended": )"
      << (has_ended ? "true}" : "false}");
}

}  // namespace

TEST_CASE("RunLease: a holder on another host that gives signs of life is respected, whatever its clock says") {
  const Scratch scratch;
  write_elsewhere(scratch);
  ry::detail::Heartbeat elsewhere{[file = scratch.path() / "lease.json", day = 0]() mutable {
                                    const auto time =
                                        std::filesystem::file_time_type{} - std::chrono::hours{24 * ++day};
                                    std::filesystem::last_write_time(file, time);
                                  },
                                  std::chrono::milliseconds{20}};
  CHECK_THROWS_WITH(
      RunLease(scratch.path(), patient),
      ContainsSubstring("in use: process 12 on node7 has had it since yesterday and gives signs of life"));
}

TEST_CASE("RunLease: a holder on another host that gives no sign of life is replaced") {
  const Scratch scratch;
  write_elsewhere(scratch);
  std::optional<ry::detail::Descriptor> lock;
  SECTION("where its host has taken its lock along") {}
  SECTION("where its lock is still there") {
    lock.emplace(::open((scratch.path() / "lease.json").c_str(), O_RDWR | O_CLOEXEC));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    REQUIRE(::fcntl(lock->get(), F_OFD_SETLK, &whole) == 0);
  }
  const RunLease lease{scratch.path(), brief};
  CHECK(lease.is_held());
  CHECK(lease.generation() == 8);
  CHECK_THAT(lease.takeover(), ContainsSubstring("process 12 on node7") && ContainsSubstring("no sign of life for"));
}

TEST_CASE("RunLease: nobody is waited for who has ended in order, or has died on this host") {
  const Scratch scratch;
  SECTION("on another host") { write_elsewhere(scratch, true); }
  SECTION("on this host") { const RunLease former{scratch.path()}; }
  SECTION("killed") {
    const pid_t holder = ::fork();
    if (holder == 0) {
      const RunLease killed{scratch.path()};
      ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(holder, nullptr, 0);
  }
  const RunLease lease{scratch.path(), patient};
  CHECK(lease.takeover().empty());
}

TEST_CASE("RunLease: gives signs of life, and none any more when it has ended") {
  const Scratch scratch;
  const auto file = scratch.path() / "lease.json";
  {
    RunLease lease{scratch.path(), brief};
    const auto first = std::filesystem::last_write_time(file);
    lease.keep_alive();
    const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
    while (std::filesystem::last_write_time(file) == first && !deadline.expired()) std::this_thread::yield();
    CHECK(std::filesystem::last_write_time(file) != first);
    CHECK(lease.is_held());
  }
  CHECK_THAT(read_text(file), ContainsSubstring("\"has_ended\": true"));
}
