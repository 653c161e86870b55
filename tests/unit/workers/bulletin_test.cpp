// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/bulletin.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <array>
#include <future>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace workers_test;
using ry::detail::FileBulletin;
using ry::detail::Posting;
using ry::detail::WaitTeller;

namespace {

WaitTeller quiet() { return {"process 1 of 2", {}}; }
FileBulletin bulletin_in(const TemporaryFolder& folder) { return {folder.path(), "railyard-job.0", quiet()}; }
Posting some_posting(int port = 4000) {
  return {.host = "10.0.0.1", .port = port, .generation = 3, .secret = ry::detail::random_secret()};
}

void set_mode(const std::filesystem::path& path, mode_t mode) { REQUIRE(::chmod(path.c_str(), mode) == 0); }

// The lines that read() says while nobody posts.
std::vector<std::string> lines_of_a_wait(const TemporaryFolder& folder) {
  std::vector<std::string> lines;
  FileBulletin bulletin{folder.path(),
                        "railyard-job.0",
                        {"process 1 of 2", [&](const std::string& line) { lines.push_back(line); }, 10ms}};
  CHECK_THROWS_WITH(bulletin.read(ry::Deadline::after(100ms), nullptr), ContainsSubstring("process 1 of 2") &&
                                                                            ContainsSubstring("railyard-job.0") &&
                                                                            ContainsSubstring("100 ms"));
  return lines;
}

}  // namespace

TEST_CASE("random_secret: is long and never the same") {
  const std::string one = ry::detail::random_secret();
  CHECK(one.size() == 64);
  CHECK(one.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(one != ry::detail::random_secret());
}

TEST_CASE("read_posting: reads what was written, and nothing else") {
  const Posting posting = some_posting();
  const std::string text = ry::detail::write_posting(posting);
  CHECK(ry::detail::read_posting(text) == posting);
  for (std::size_t size = 0; size < text.find("\nsecret") - 1; ++size) {
    CHECK_FALSE(ry::detail::read_posting(text.substr(0, size)));
  }
  for (const char* other :
       {"railyard 2\nhost a\nport 1\ngeneration 0\n", "railyard 1\nhost a\nport 0\ngeneration 0\n",
        "railyard 1\nhost a\nport 70000\ngeneration 0\n", "railyard 1\nhost \nport 1\ngeneration 0\n",
        "railyard 1\nhost a\nport 1\ngeneration -1\n", "\n\n\n", "host", "\0\0"}) {
    CHECK_FALSE(ry::detail::read_posting(other));
  }
}

TEST_CASE("FileBulletin: hands on what the leader posts, to whoever waits already and to whoever comes later") {
  const TemporaryFolder folder;
  FileBulletin leader = bulletin_in(folder);
  const Posting posting = some_posting();
  auto early = std::async(std::launch::async, [&] { return bulletin_in(folder).read(soon(), nullptr); });
  leader.post(posting);
  CHECK(early.get() == posting);
  CHECK(bulletin_in(folder).read(soon(), nullptr) == posting);
  CHECK(leader.carries_secret());
  CHECK(leader.port_to_listen_on() == 0);
}

TEST_CASE("FileBulletin: leaves a file of mode 600 whatever the umask is, and removes it in the end") {
  const TemporaryFolder folder;
  const mode_t old = ::umask(0);
  {
    FileBulletin leader = bulletin_in(folder);
    leader.post(some_posting());
    ::umask(old);
    struct stat status {};
    REQUIRE(::stat(leader.path().c_str(), &status) == 0);
    CHECK((status.st_mode & 07777U) == 0600U);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("FileBulletin: waits for another posting where nobody was found at the first") {
  const TemporaryFolder folder;
  FileBulletin leader = bulletin_in(folder);
  const Posting first = some_posting(4000);
  leader.post(first);
  CHECK_THROWS_AS(bulletin_in(folder).read(ry::Deadline::after(20ms), &first), ry::Error);
  const Posting second = some_posting(4001);
  auto waiting = std::async(std::launch::async, [&] { return bulletin_in(folder).read(soon(), &first); });
  leader.post(second);
  CHECK(waiting.get() == second);
}

TEST_CASE("FileBulletin: gives the same posting again after a while, as the leader may only have been slow to answer") {
  const TemporaryFolder folder;
  FileBulletin leader = bulletin_in(folder);
  const Posting posting = some_posting();
  leader.post(posting);
  const auto began = ry::Deadline::Clock::now();
  CHECK(bulletin_in(folder).read(soon(), &posting) == posting);
  CHECK(ry::Deadline::Clock::now() - began >= FileBulletin::patience);
}

TEST_CASE("FileBulletin: passes over what a dead leader of this host has left, and the next leader replaces it") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      FileBulletin leader = bulletin_in(folder);
      leader.post(some_posting(4000));
      ::_exit(0);  // takes nothing down, as a killed process
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE_FALSE(std::filesystem::is_empty(folder.path()));
  CHECK_THROWS_AS(bulletin_in(folder).read(ry::Deadline::after(20ms), nullptr), ry::Error);
  FileBulletin leader = bulletin_in(folder);
  leader.post(some_posting(4001));
  CHECK(bulletin_in(folder).read(soon(), nullptr).port == 4001);
}

TEST_CASE(
    "FileBulletin: believes a leader of another host, whose life cannot be seen from here, and lets the next replace "
    "it") {
  const TemporaryFolder folder;
  FileBulletin here = bulletin_in(folder);
  folder.write("railyard-job.0", ry::detail::write_posting(some_posting(4000)) + "boot of-another-host\n");
  set_mode(here.path(), 0600);
  CHECK(here.read(soon(), nullptr).port == 4000);
  here.post(some_posting(4001));
  CHECK(bulletin_in(folder).read(soon(), nullptr).port == 4001);
}

TEST_CASE("FileBulletin: a leader that is started again at once waits for the workers of the one that has died") {
  const TemporaryFolder folder;
  std::array<int, 2> end_of_worker{};
  REQUIRE(::pipe2(end_of_worker.data(), O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      FileBulletin leader = bulletin_in(folder);
      leader.post(some_posting(4000));
      if (::fork() == 0) {  // the worker, which has inherited the lock
        ::close(end_of_worker[1]);
        char nothing = 0;
        static_cast<void>(!::read(end_of_worker[0], &nothing, 1));
      }
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  ::close(end_of_worker[0]);
  ry::detail::Descriptor worker{end_of_worker[1]};
  std::vector<std::string> lines;
  const auto end_worker = [&](const std::string& line) {
    lines.push_back(line);
    worker = ry::detail::Descriptor{};
  };
  FileBulletin leader{folder.path(), "railyard-job.0", {"process 0 of 2", end_worker, 10ms}, 60s};
  leader.post(some_posting(4001));
  REQUIRE_FALSE(lines.empty());
  CHECK_THAT(lines.front(), ContainsSubstring("process 0 of 2 waits for the end of another leader"));
  CHECK(bulletin_in(folder).read(soon(), nullptr).port == 4001);
}

TEST_CASE("FileBulletin: lets no second leader of a job in while the first lives") {
  const TemporaryFolder folder;
  FileBulletin first = bulletin_in(folder);
  first.post(some_posting(4000));
  FileBulletin second{folder.path(), "railyard-job.0", quiet(), 20ms};
  CHECK_THROWS_WITH(second.post(some_posting(4001)),
                    ContainsSubstring("10.0.0.1:4000") && ContainsSubstring("launch.job"));
  CHECK(bulletin_in(folder).read(soon(), nullptr).port == 4000);
}

TEST_CASE("FileBulletin: a forked process does not take down what its parent has posted") {
  const TemporaryFolder folder;
  auto leader = std::make_unique<FileBulletin>(folder.path(), "railyard-job.0", quiet());
  leader->post(some_posting());
  const pid_t child = ::fork();
  if (child == 0) {
    leader.reset();
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(std::filesystem::exists(leader->path()));
}

TEST_CASE("FileBulletin: refuses a file that others can read or that is no plain file") {
  const TemporaryFolder folder;
  FileBulletin reader = bulletin_in(folder);
  folder.write("railyard-job.0", ry::detail::write_posting(some_posting()));
  set_mode(reader.path(), 0640);
  CHECK_THROWS_WITH(reader.read(soon(), nullptr), ContainsSubstring("mode 640"));
  REQUIRE(std::filesystem::remove(reader.path()));
  const std::string elsewhere = folder.write("elsewhere", ry::detail::write_posting(some_posting()));
  set_mode(elsewhere, 0600);
  std::filesystem::create_symlink(elsewhere, reader.path());
  CHECK_THROWS_AS(reader.read(soon(), nullptr), ry::Error);
  REQUIRE(std::filesystem::remove(reader.path()));
  REQUIRE(::mkfifo(reader.path().c_str(), 0600) == 0);
  CHECK_THROWS_AS(reader.read(soon(), nullptr), ry::ConfigError);
}

TEST_CASE("FileBulletin: refuses a file of another user") {
  if (::geteuid() != 0) return;  // only root can make one
  const TemporaryFolder folder;
  FileBulletin reader = bulletin_in(folder);
  folder.write("railyard-job.0", ry::detail::write_posting(some_posting()));
  set_mode(reader.path(), 0600);
  REQUIRE(::chown(reader.path().c_str(), 12'345, 12'345) == 0);
  CHECK_THROWS_WITH(reader.read(soon(), nullptr), ContainsSubstring("owner 12345"));
}

TEST_CASE("FileBulletin: refuses a folder in which others may replace files") {
  const TemporaryFolder folder;
  set_mode(folder.path(), 0777);
  CHECK_THROWS_WITH(bulletin_in(folder).read(soon(), nullptr), ContainsSubstring("mode 777"));
  CHECK_THROWS_AS(bulletin_in(folder).post(some_posting()), ry::ConfigError);
  set_mode(folder.path(), 01777);
  CHECK_NOTHROW(bulletin_in(folder).post(some_posting()));
  CHECK_THROWS_WITH((FileBulletin{folder.path() / "absent", "x", quiet()}.read(soon(), nullptr)),
                    ContainsSubstring("absent"));
}

TEST_CASE("FileBulletin: says what it waits for, and gives up at the deadline") {
  const TemporaryFolder folder;
  const auto lines = lines_of_a_wait(folder);
  REQUIRE_FALSE(lines.empty());
  CHECK(lines.size() <= 10);
  CHECK_THAT(lines.front(), ContainsSubstring("process 1 of 2 waits for process 0") && ContainsSubstring("100 ms"));
}

TEST_CASE("file_name_of: is another for every job and restart, and always a name") {
  using ry::detail::file_name_of;
  CHECK(file_name_of("slurm-12.0", 0) == "railyard-slurm-12.0.0");
  CHECK(file_name_of("slurm-12.0", 1) != file_name_of("slurm-12.0", 0));
  CHECK(file_name_of("../../etc/x y", 0) == "railyard-.._.._etc_x_y.0");
  CHECK(file_name_of(std::string(1000, 'a'), 0).size() < 255);
}

TEST_CASE("make_local_folder: makes a folder that nobody else may enter, or refuses") {
  const TemporaryFolder runtime;
  set_mode(runtime.path(), 0700);
  const auto folder = ry::detail::make_local_folder(runtime.path().string());
  CHECK(folder == runtime.path() / "railyard");
  CHECK(ry::detail::make_local_folder(runtime.path().string()) == folder);
  set_mode(folder, 0755);
  CHECK_THROWS_WITH(ry::detail::make_local_folder(runtime.path().string()), ContainsSubstring("mode 755"));
  REQUIRE(std::filesystem::remove(folder));
  std::filesystem::create_directory_symlink("/tmp", folder);
  CHECK_THROWS_AS(ry::detail::make_local_folder(runtime.path().string()), ry::ConfigError);
  set_mode(runtime.path(), 0755);  // others may look into it: not taken
  CHECK_THAT(ry::detail::make_local_folder(runtime.path().string()).string(), ContainsSubstring("/tmp/railyard-"));
}

TEST_CASE("choose_bulletin: takes the first way that serves") {
  const TemporaryFolder folder;
  const ry::detail::Environment nothing = [](const std::string&) { return std::optional<std::string>{}; };
  const auto where = [&](const ry::detail::Launch& launch, const ry::LaunchConfig& config) {
    return choose_bulletin(launch, config, quiet(), soon(), nothing)->where();
  };
  ry::detail::Launch launch{
      .num_processes = 4, .num_local_processes = 2, .leader_host = "node1", .leader_port = 4000, .job = "j"};
  CHECK(where(launch, {}) == "the fixed address node1:4000");
  CHECK(choose_bulletin(launch, {}, quiet(), soon(), nothing)->port_to_listen_on() == 4000);
  CHECK(where(launch, {.rendezvous = folder.path()}) == folder / "railyard-j.0");
  CHECK(where(launch, {.leader = "node1:4000", .rendezvous = folder.path()}) == "the fixed address node1:4000");
  const auto set_outside = [&](const std::string& name) {
    return name == "RAILYARD_RENDEZVOUS" ? std::optional{folder.path().string()} : std::nullopt;
  };
  CHECK(choose_bulletin(launch, {}, quiet(), soon(), set_outside)->where() == folder / "railyard-j.0");
  launch.uses_torch_store = true;
  CHECK(where(launch, {}) == "torchrun's store at node1:4000");
  launch.num_local_processes = 4;
  CHECK_THAT(where(launch, {}), ContainsSubstring("/tmp/railyard-"));
  launch = {.num_processes = 4, .num_local_processes = 0, .leader_host = "127.0.0.1", .leader_port = 4000, .job = "j"};
  CHECK_THAT(where(launch, {}), ContainsSubstring("/tmp/railyard-"));
  launch.job.clear();
  CHECK_THROWS_WITH(where(launch, {.rendezvous = folder.path()}), ContainsSubstring("ScalingConfig::launch.job"));
  launch.leader_host = "";
  CHECK_THROWS_WITH(where(launch, {}), ContainsSubstring("MASTER_ADDR") && ContainsSubstring("launch.rendezvous"));
}
