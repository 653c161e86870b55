// SPDX-License-Identifier: MIT
// Claimants of a run that are held up at every step, while others go on.
#include "railyard/train/detail/lease_claims.hpp"

#include "railyard/train/detail/run_lease.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/scratch.hpp"

#include "railyard/core/detail/system.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ry = railyard;
using namespace std::chrono_literals;
using ry::detail::ClaimWatch;
using ry::detail::LeaseClaims;
using ry::detail::RunLease;

namespace {

constexpr ry::detail::LeaseTimes quick{.beat = 2ms, .patience = 10ms, .lock = 20ms};
// In which one that is quick gives many signs of life.
constexpr ry::detail::LeaseTimes unhurried{.beat = 10ms, .patience = 200ms, .lock = 20ms};

// Has something else happen before the operation of some number, counted from 0.
class InterruptedFiles : public ry::detail::Files {
 public:
  InterruptedFiles(int at, std::function<void()> interruption) : at_(at), interruption_(std::move(interruption)) {}

  [[nodiscard]] int num_operations() const { return num_operations_; }

  bool is_of_this_host(int /*fd*/) override { return false; }
  int make_directory(const Path& path) override { return interrupted()->Files::make_directory(path); }
  int create(const Path& path) override { return interrupted()->Files::create(path); }
  int open(const Path& path, int flags) override { return interrupted()->Files::open(path, flags); }
  int open_directory(const Path& path) override { return interrupted()->Files::open_directory(path); }
  int list(const Path& path, std::vector<std::string>& names) override {
    return interrupted()->Files::list(path, names);
  }
  ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) override {
    return interrupted()->Files::write_at(fd, from, size, at);
  }
  int sync(int fd) override { return interrupted()->Files::sync(fd); }

 private:
  InterruptedFiles* interrupted() {
    if (num_operations_++ == at_) interruption_();
    return this;
  }

  int at_;
  std::function<void()> interruption_;
  int num_operations_ = 0;
};

// The same for a process that locks of this host do not reach, and that is on another one for those of this host, as
// they are for it.
class FilesOfAnotherHost : public InterruptedFiles {
 public:
  using InterruptedFiles::InterruptedFiles;
  using InterruptedFiles::lock;

  int lock(int /*fd*/, int /*command*/, struct flock& /*lock*/) override {
    errno = ENOLCK;
    return -1;
  }
  ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at) override {
    const std::string text = swapped({reinterpret_cast<const char*>(from), size});
    return InterruptedFiles::write_at(fd, reinterpret_cast<const std::byte*>(text.data()), size, at);
  }
  ssize_t read_at(int fd, std::byte* to, std::size_t size, off_t at) override {
    const ssize_t got = Files::read_at(fd, to, size, at);
    if (got <= 0) return got;
    const std::string text = swapped({reinterpret_cast<const char*>(to), static_cast<std::size_t>(got)});
    std::memcpy(to, text.data(), text.size());
    return got;
  }

 private:
  static std::string swapped(std::string text) {
    const std::string here = ry::detail::boot_id();
    const std::string there(here.size(), 'x');
    const bool is_here = text.find(here) != std::string::npos;
    const auto begin = text.find(is_here ? here : there);
    if (begin != std::string::npos) text.replace(begin, here.size(), is_here ? there : here);
    return text;
  }
};

// Stands for storage that other hosts reach.
struct FilesForAll : ry::detail::Files {
  bool is_of_this_host(int /*fd*/) override { return false; }
};

// Remembers what was not there, until the directory above it is opened.
struct FilesOfNetwork : ry::detail::Files {
  int open_directory(const Path& path) override {
    missing.erase(
        std::remove_if(missing.begin(), missing.end(), [&](const Path& one) { return one.parent_path() == path; }),
        missing.end());
    if (std::find(missing.begin(), missing.end(), path) != missing.end()) {
      errno = ENOENT;
      return -1;
    }
    const int fd = Files::open_directory(path);
    if (fd < 0) missing.push_back(path);
    return fd;
  }
  std::vector<Path> missing{};
};

// What a process on another host has written, whose locks nobody here knows of.
void write_holder(const Scratch& scratch, bool is_left) {
  std::ofstream{scratch.path() / "lease.json"} << fmt::format(
      R"({{"generation": 7, "id": "a", "host": "node7", "since": "noon", "pid": 12, "boot": "b", "has_ended": {}, )"
      R"("left": {}}})",
      is_left, is_left);
}

ry::detail::LeaseContent content_of(const Scratch& scratch) {
  const auto content = ry::detail::LeaseFile{scratch.path() / "lease.json"}.read();
  REQUIRE(content);
  return *content;
}

using Lease = std::unique_ptr<RunLease>;
using SharedFiles = std::shared_ptr<ry::detail::Files>;

Lease start_anew(const Scratch& scratch, const SharedFiles& files) {
  try {
    return std::make_unique<RunLease>(scratch.path(), unhurried, files);
  } catch (const ry::Error&) {
    return {};
  }
}

Lease claim_run(const Scratch& scratch, const SharedFiles& files) {
  try {
    const auto from = content_of(scratch);
    return std::make_unique<RunLease>(scratch.path(), from, true, from.lease.generation, unhurried, files);
  } catch (const ry::Error&) {
    return {};
  }
}

// As an election does: again while it is refused, and past a claim of which nothing comes, or a lease without a sign.
Lease claim_run_in_the_end(const Scratch& scratch) {
  ClaimWatch watch{LeaseClaims{scratch.path()}, quick};
  const auto deadline = ry::Deadline::after(30s);
  while (!deadline.expired()) {
    const auto from = content_of(scratch);
    if (const auto last = watch.look(from.lease.generation)) {
      auto lease = std::make_unique<RunLease>(scratch.path(), from, true, *last, quick);
      REQUIRE(lease->keep_alive() == "");
      return lease;
    }
    std::this_thread::sleep_for(quick.beat);
  }
  return {};
}

// Starts it as often as it takes, in the directory that another has made.
Lease begin_run_in_the_end(const Scratch& scratch) {
  const auto deadline = ry::Deadline::after(30s);
  while (!deadline.expired()) {
    try {
      auto lease = std::make_unique<RunLease>(scratch.path(), quick, std::make_shared<FilesForAll>());
      REQUIRE(lease->keep_alive() == "");
      return lease;
    } catch (const ry::Error&) {  // the other one has given a sign
    }
  }
  return {};
}

// Lets one claimant be held up before each of its operations, until another has the run. Returns at how many.
template <class Claim>
int hold_up_everywhere(const Claim& claim) {
  const bool is_left = GENERATE(false, true);  // by whoever had it before, or that one is silent
  for (int at = 0;; ++at) {
    INFO("held up before operation " << at);
    const Scratch scratch;
    write_holder(scratch, is_left);
    Lease other;
    const auto files = std::make_shared<InterruptedFiles>(at, [&] { other = claim_run_in_the_end(scratch); });
    const Lease late = claim(scratch, files);
    if (files->num_operations() <= at) return at;  // it was done before
    CHECK_FALSE(late);
    REQUIRE(other);
    CHECK(other->is_held());
    CHECK(content_of(scratch).lease == other->id());
  }
}

}  // namespace

TEST_CASE("RunLease: whoever has made a run's directory has its first generation by making lease.json") {
  const Scratch scratch;
  {
    const RunLease first{scratch.path(), quick, std::make_shared<ry::detail::Files>(), true};
    CHECK(first.generation() == 1);
    CHECK(first.is_held());
    CHECK_FALSE(std::filesystem::exists(scratch.path() / "generations"));
  }
  const RunLease second{scratch.path()};
  CHECK(second.generation() == 2);
  CHECK(second.takeover().empty());
  CHECK(LeaseClaims{scratch.path()}.last() == 2);
}

TEST_CASE("RunLease: whoever begins a run does not have it past another, at whatever step it is held up") {
  for (int at = 0;; ++at) {
    INFO("held up before operation " << at);
    const Scratch scratch;
    Lease other;
    const auto files = std::make_shared<FilesOfAnotherHost>(at, [&] { other = begin_run_in_the_end(scratch); });
    Lease late;
    try {
      late = std::make_unique<RunLease>(scratch.path(), unhurried, files, true);
    } catch (const ry::Error&) {  // it is held up
    }
    if (files->num_operations() <= at) {  // it was done before
      CHECK(late);
      CHECK(at > 6);
      return;
    }
    CHECK_FALSE(late);
    REQUIRE(other);
    CHECK(other->is_held());
    CHECK(content_of(scratch).lease == other->id());
  }
}

TEST_CASE("RunLease: the first claim of a run that has begun lasts, though lease.json is lost") {
  const Scratch scratch;
  RunLease first{scratch.path(), quick, std::make_shared<ry::detail::Files>(), true};
  scratch.write("run.json", "{}");
  std::filesystem::remove(scratch.path() / "lease.json");
  const RunLease second{scratch.path(), quick, std::make_shared<FilesForAll>()};
  CHECK(second.generation() == 2);
  CHECK_THAT(second.takeover(), ContainsSubstring("no sign of life for"));
  CHECK_FALSE(first.is_held());
  CHECK_THAT(first.taker(true), ContainsSubstring("has taken over the run"));
}

TEST_CASE("RunLease: a first claim that is passed over stays, also where whoever does so cannot write") {
  const Scratch scratch;
  scratch.write("lease.json", "");  // made by one that has died since
  {
    const FileSizeLimit limit{10};
    CHECK_THROWS_WITH(RunLease(scratch.path(), quick), ContainsSubstring("cannot be written"));
  }
  CHECK(LeaseClaims{scratch.path()}.last() == 1);
  CHECK(RunLease{scratch.path(), quick}.generation() == 2);
}

TEST_CASE("LeaseClaims: a generation is claimed once, whoever asks") {
  const Scratch scratch;
  const LeaseClaims claims{scratch.path()};
  CHECK(claims.last() == 0);
  CHECK(claims.make(3));
  CHECK_FALSE(LeaseClaims{scratch.path()}.make(3));
  CHECK(claims.last() == 3);
  std::ofstream{scratch.path() / "generations" / "4.of-somebody"};
  std::ofstream{scratch.path() / "generations" / "-5"};
  CHECK(claims.last() == 3);
  claims.withdraw(3);
  CHECK(claims.make(3));
}

TEST_CASE("LeaseClaims: has a network file system tell whether there are any by now") {
  const Scratch scratch;
  const auto files = std::make_shared<FilesOfNetwork>();
  const LeaseClaims claims{scratch.path(), files};
  CHECK(claims.last() == 0);
  REQUIRE(LeaseClaims{scratch.path()}.make(2));  // on another host
  CHECK(claims.last() == 2);
}

TEST_CASE("LeaseClaims: of a directory that cannot be used it says why") {
  const Scratch scratch;
  scratch.write("generations", "no directory");
  const LeaseClaims claims{scratch.path()};
  CHECK_THROWS_WITH(claims.last(), ContainsSubstring("generations cannot be read"));
  CHECK_THROWS_WITH(claims.make(1), ContainsSubstring("generations cannot be written to"));
  CHECK_THROWS_WITH(RunLease(scratch.path()),
                    ContainsSubstring("RunConfig::storage_path") && ContainsSubstring("generations cannot be read"));
}

TEST_CASE("ClaimWatch: a claim is passed over when nothing has come of it for a while") {
  const Scratch scratch;
  const LeaseClaims claims{scratch.path()};
  ClaimWatch watch{claims, quick};
  CHECK(watch.look(7) == 7);
  REQUIRE(claims.make(8));
  CHECK_FALSE(watch.look(7));
  CHECK(watch.look(8) == 8);
  CHECK(awaits([&] { return watch.look(7) == 8; }));
  REQUIRE(claims.make(9));
  CHECK_FALSE(watch.look(7));  // another one, which begins anew
  claims.withdraw(9);
  CHECK_FALSE(watch.look(7));
  CHECK(awaits([&] { return watch.look(7) == 8; }));
}

TEST_CASE("RunLease: of two that take a run over one has it, at whatever step the other is held up") {
  CHECK(hold_up_everywhere(claim_run) > 8);
}

TEST_CASE("RunLease: a program that starts and one that takes the run over do not both have it") {
  CHECK(hold_up_everywhere(start_anew) > 8);
}

TEST_CASE("RunLease: a claim of which nothing has come is waited for, and passed over") {
  const Scratch scratch;
  { const RunLease former{scratch.path()}; }
  REQUIRE(LeaseClaims{scratch.path()}.make(2));
  const RunLease lease{scratch.path(), quick, std::make_shared<FilesForAll>()};
  CHECK(lease.generation() == 3);
  CHECK_THAT(lease.takeover(), ContainsSubstring("no sign of life for"));
}

TEST_CASE("RunLease: whoever cannot write takes its claim back") {
  const Scratch scratch;
  {
    const FileSizeLimit limit{10};
    CHECK_THROWS_WITH(RunLease(scratch.path()), ContainsSubstring("cannot be written"));
  }
  CHECK(LeaseClaims{scratch.path()}.last() == 0);
  CHECK(RunLease{scratch.path()}.generation() == 1);
}
