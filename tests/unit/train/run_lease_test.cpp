// SPDX-License-Identifier: MIT
#include "railyard/train/detail/run_lease.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using ry::detail::RunLease;

namespace {

using Times = ry::detail::LeaseTimes;
constexpr Times brief{.beat = std::chrono::milliseconds{5},
                      .patience = std::chrono::milliseconds{100},
                      .lock = std::chrono::milliseconds{20}};
constexpr Times patient{.beat = std::chrono::milliseconds{5}, .patience = std::chrono::minutes{1}};

// What a program on another host has written, whose locks nobody here knows of.
void write_elsewhere(const Scratch& scratch, bool has_ended = false) {
  std::ofstream{scratch.path() / "lease.json"}
      << R"({"generation": 7, "id": "a", "host": "node7", "since": "yesterday", "pid": 12, "boot": "b", "has_ended": )"
      << (has_ended ? "true}" : "false}");
}

// A lock that a host which has died has left behind, or a holder of this host that has not written yet.
ry::detail::Descriptor lock_lease(const Scratch& scratch) {
  ry::detail::Descriptor lock{::open((scratch.path() / "lease.json").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  REQUIRE(::fcntl(lock.get(), F_OFD_SETLK, &whole) == 0);
  return lock;
}

// Returns whether a sign of life has come.
bool awaits_sign(const Scratch& scratch) {
  const auto file = scratch.path() / "lease.json";
  const auto first = std::filesystem::last_write_time(file);
  const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
  while (std::filesystem::last_write_time(file) == first && !deadline.expired()) std::this_thread::yield();
  return std::filesystem::last_write_time(file) != first;
}

// Lets this process open no file, for as long as it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &former_);
    const rlimit none{.rlim_cur = 0, .rlim_max = former_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &former_); }

 private:
  rlimit former_{};
};

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

TEST_CASE("RunLease: a holder on another host that gives no sign of life is replaced (TRAPS 41)") {
  const Scratch scratch;
  write_elsewhere(scratch);
  std::optional<ry::detail::Descriptor> lock;
  SECTION("where its host has taken its lock along") {}
  SECTION("where its lock is still there") { lock = lock_lease(scratch); }
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

TEST_CASE("RunLease: on a disk that no other host reaches nobody is waited for who has died, at whatever step") {
  const Scratch scratch;
  const auto file = scratch.path() / "lease.json";
  const ry::detail::Descriptor directory{::open(scratch.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!ry::detail::Files{}.is_of_this_host(directory.get())) {
    WARN("not tested: files for tests are not kept on a disk of this host");
    return;
  }
  std::uint64_t expected = 2;
  SECTION("before its first line") { std::ofstream{file} << ""; }
  SECTION("after its claim") {
    { const RunLease former{scratch.path()}; }
    REQUIRE(ry::detail::LeaseClaims{scratch.path()}.make(2));
    expected = 3;
  }
  SECTION("with its machine") {
    std::ofstream{file} << R"({"generation": 1, "id": "a", "host": ")" << ry::detail::host_name()
                        << R"(", "since": "noon", "pid": 1, "boot": "an earlier one", "has_ended": false})";
  }
  const RunLease lease{scratch.path(), patient};
  CHECK(lease.takeover().empty());
  CHECK(lease.is_held());
  CHECK(lease.generation() == expected);
}

TEST_CASE(
    "RunLease: a holder without the lock in another pid namespace is not dead for having no process here (TRAPS 41)") {
  const Scratch scratch;
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ::waitpid(gone, nullptr, 0);
  const std::string here = ry::detail::pid_namespace();
  const bool is_here = GENERATE(true, false);
  std::ofstream{scratch.path() / "lease.json"}
      << R"({"generation": 7, "id": "a", "since": "noon", "has_ended": false, "locked": false, "host": ")"
      << ry::detail::host_name() << R"(", "boot": ")" << ry::detail::boot_id() << R"(", "pid": )" << gone
      << R"(, "pids": ")" << (is_here ? here : here + "1") << R"("})";
  const RunLease lease{scratch.path(), brief};
  CHECK(lease.generation() == 8);
  CHECK(lease.takeover().empty() == is_here);  // else it has been waited for
}

TEST_CASE("RunLease: a lock without a holder that says where it is counts as one of this host") {
  const Scratch scratch;
  std::string text;
  SECTION("which has written nothing yet") {}
  SECTION("which is torn") { text = R"({"generation": 7, "id": "a", "ho)"; }
  SECTION("of an older release") {
    text = R"({"generation": 7, "id": "a", "host": "node7", "since": "yesterday", "pid": 12, "has_ended": false})";
  }
  std::ofstream{scratch.path() / "lease.json"} << text;
  const auto lock = lock_lease(scratch);
  CHECK_THROWS_WITH(RunLease(scratch.path(), brief), ContainsSubstring("in use"));
  CHECK(read_text(scratch.path() / "lease.json") == text);
}

TEST_CASE("RunLease: a host that has taken a run over past a lock that stays is not shut out") {
  const Scratch scratch;
  write_elsewhere(scratch);
  const auto lock = lock_lease(scratch);
  {
    RunLease former{scratch.path(), brief};
    CHECK_THAT(read_text(scratch.path() / "lease.json"), ContainsSubstring("\"locked\": false"));
    CHECK_THROWS_WITH(RunLease(scratch.path(), brief), ContainsSubstring("in use"));
  }
  const RunLease lease{scratch.path(), brief};
  CHECK(lease.is_held());
  CHECK(lease.generation() == 9);
}

TEST_CASE("RunLease: a holder without the lock is respected when the lock has gone") {
  const Scratch scratch;
  write_elsewhere(scratch);
  std::optional lock = lock_lease(scratch);
  RunLease lease{scratch.path(), brief};
  lock.reset();
  CHECK(lease.keep_alive().empty());
  CHECK_THROWS_WITH(RunLease(scratch.path(), patient), ContainsSubstring("gives signs of life"));
  CHECK(lease.is_held());
}

TEST_CASE("RunLease: the generation grows beyond what is there, also where the file was removed or damaged") {
  const Scratch scratch;
  ry::Manifest manifest{.world_size = 1};
  ry::CheckpointFolder former{scratch.path() / "checkpoints", 5};
  const std::array<std::byte, 4> bytes{};
  static_cast<void>(former.commit(manifest, std::array{ry::CheckpointFolder::Part{"state.json", bytes}}));
  CHECK(RunLease{scratch.path()}.generation() == 6);
  CHECK(RunLease{scratch.path()}.generation() == 7);
  std::ofstream{scratch.path() / "lease.json"} << "{";
  CHECK(RunLease{scratch.path(), brief}.generation() == 8);
  std::filesystem::remove(scratch.path() / "lease.json");
  std::filesystem::create_directory(scratch.path() / "checkpoints" / ".staging-12-abc");
  const RunLease lease{scratch.path()};
  CHECK(lease.generation() == 13);
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", lease.generation()};
  folder.sweep();
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "checkpoints" / ".staging-12-abc"));
}

TEST_CASE("RunLease: is as long whoever writes it, whatever was there") {
  const Scratch scratch;
  const auto file = scratch.path() / "lease.json";
  write_elsewhere(scratch, true);
  std::ofstream{file, std::ios::app} << std::string(300, ' ');
  { const RunLease lease{scratch.path()}; }
  const auto size = std::filesystem::file_size(file);
  const RunLease lease{scratch.path()};
  CHECK(std::filesystem::file_size(file) == size);
  CHECK(lease.generation() == 9);
}

TEST_CASE("RunLease: goes on giving signs of life where it cannot be read, and does not say that it is another's") {
  const Scratch scratch;
  RunLease lease{scratch.path(), brief};
  CHECK(lease.keep_alive().empty());
  {
    const NoDescriptors limit;
    CHECK_THROWS_WITH(lease.is_held(), ContainsSubstring("whose run it is cannot be read"));
    CHECK(awaits_sign(scratch));
    CHECK(awaits_sign(scratch));  // not one that was under way
  }
  CHECK(lease.is_held());
}

TEST_CASE("RunLease: what an earlier holder writes late is written over, and takes the run from nobody") {
  const Scratch scratch;
  const ry::detail::LeaseFile file{scratch.path() / "lease.json"};
  write_elsewhere(scratch, true);
  RunLease lease{scratch.path(), patient};
  REQUIRE(lease.generation() == 8);
  const bool has_thread = GENERATE(true, false);
  if (has_thread) CHECK(lease.keep_alive().empty());
  write_elsewhere(scratch);
  if (has_thread) {
    const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
    while (file.read()->lease != lease.id() && !deadline.expired()) std::this_thread::yield();
  } else {
    CHECK(lease.is_held());
  }
  CHECK(file.read()->lease == lease.id());
  CHECK_FALSE(file.read()->has_ended);
  CHECK(lease.taker(true).empty());
}

TEST_CASE("RunLease: tells when there is no thread for signs of life, and gives them when there is one again") {
  const Scratch scratch;
  RunLease lease{scratch.path(), brief};
  pthread_attr_t former;
  REQUIRE(::pthread_getattr_default_np(&former) == 0);
  pthread_attr_t huge;
  REQUIRE(::pthread_getattr_default_np(&huge) == 0);
  REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50U) == 0);
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  const std::string text = lease.keep_alive();
  REQUIRE(::pthread_setattr_default_np(&former) == 0);
  CHECK_THAT(text, ContainsSubstring("no signs of life are given"));
  CHECK(lease.keep_alive().empty());
  CHECK(awaits_sign(scratch));
  lease.pause();
  CHECK(lease.keep_alive().empty());
  CHECK(awaits_sign(scratch));
}

TEST_CASE("RunLease: gives signs of life, and none any more when it has ended") {
  const Scratch scratch;
  const auto file = scratch.path() / "lease.json";
  {
    RunLease lease{scratch.path(), brief};
    CHECK(lease.keep_alive().empty());
    CHECK(awaits_sign(scratch));
    CHECK(lease.is_held());
  }
  CHECK_THAT(read_text(file), ContainsSubstring("\"has_ended\": true"));
}
