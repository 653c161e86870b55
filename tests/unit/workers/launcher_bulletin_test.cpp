// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/launcher_bulletin.hpp"

#include "railyard/workers/detail/bulletin.hpp"
#include "railyard/workers/detail/pmi_space.hpp"

#include "fake_pmi.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <future>
#include <mutex>

using namespace workers_test;
using Catch::ContainsSubstring;
using ry::detail::KeyAgreement;
using ry::detail::LauncherBulletin;
using ry::detail::LauncherMemory;
using ry::detail::PmiSpace;
using ry::detail::Posting;
using ry::detail::WaitTeller;

namespace {

// One process of a job, as far as it meets the others in the launcher's space.
struct Member {
  FakePmi* launcher = nullptr;
  int process = 0;
  int num_processes = 1;
  bool has_secret = false;
  int restart = 0;
  LauncherMemory memory{};

  [[nodiscard]] std::unique_ptr<LauncherBulletin> bulletin(const ry::Deadline& deadline = soon(),
                                                           WaitTeller teller = {"process", {}}) {
    const ry::detail::Launch launch{.process = process, .num_processes = num_processes, .restart = restart};
    auto space = memory.posting ? nullptr : std::make_unique<PmiSpace>(launcher->fd(process), deadline);
    return std::make_unique<LauncherBulletin>(launch, std::move(space), "the space", has_secret, std::move(teller),
                                              deadline, memory);
  }
  Posting lead() {
    const auto own = bulletin();
    const Posting posting{.host = "fe80::1%eth0",
                          .port = own->port_to_listen_on(),
                          .generation = static_cast<std::uint32_t>(restart),
                          .secret = own->carries_secret() ? own->make_secret() : std::string{}};
    own->post(posting);
    return posting;
  }
  Posting follow() { return bulletin()->read(soon(), nullptr); }
};

}  // namespace

TEST_CASE("KeyAgreement: comes to the same at both ends, and to another with everybody else") {
  const KeyAgreement one;
  const KeyAgreement other;
  const KeyAgreement third;
  CHECK(one.agree(other.public_key()) == other.agree(one.public_key()));
  CHECK(one.agree(other.public_key()) != one.agree(third.public_key()));
  CHECK(one.public_key() != other.public_key());
  CHECK_THROWS_AS(one.agree(ry::detail::Digest{}), ry::DataError);  // would give all the same
}

TEST_CASE("hide_or_show: shows to who has the key what it has hidden") {
  const ry::detail::Digest key = KeyAgreement{}.public_key();
  const std::array<ry::detail::Digest, 2> ends{KeyAgreement{}.public_key(), KeyAgreement{}.public_key()};
  for (const std::size_t size : {0U, 1U, 31U, 32U, 33U, 64U}) {
    const std::string text = ry::detail::random_secret().substr(0, size);
    const std::string hidden = ry::detail::hide_or_show(text, key, ends);
    CHECK(hidden.size() == size);
    CHECK((size == 0 || hidden != text));
    CHECK(ry::detail::hide_or_show(hidden, key, ends) == text);
    if (size > 1) CHECK(ry::detail::hide_or_show(hidden, key, {ends[1], ends[0]}) != text);
  }
}

TEST_CASE("LauncherBulletin: hands on the leader's address, and a secret that the launcher does not see") {
  constexpr int num_processes = 4;
  FakePmi launcher{num_processes};
  std::vector<std::future<Posting>> others;
  for (int process = 1; process < num_processes; ++process) {
    others.push_back(std::async(std::launch::async, [&, process] {
      return Member{.launcher = &launcher, .process = process, .num_processes = num_processes, .restart = 2}.follow();
    }));
  }
  Member leader{.launcher = &launcher, .num_processes = num_processes, .restart = 2};
  const Posting posting = leader.lead();
  CHECK(posting.secret.size() == 64);
  for (auto& other : others) CHECK(other.get() == posting);
  CHECK_THAT(launcher.heard(), ContainsSubstring("key=railyard-2-leader "));
  CHECK_THAT(launcher.heard(), !ContainsSubstring(posting.secret));
  CHECK_THAT(launcher.heard(), !ContainsSubstring(ry::detail::hexadecimal(bytes_of(posting.secret))));
  CHECK(launcher.count("cmd=finalize\n") == num_processes);
}

TEST_CASE("LauncherBulletin: sends nothing of a secret that the processes were given") {
  FakePmi launcher{2};
  Member leader{.launcher = &launcher, .num_processes = 2, .has_secret = true};
  Member other{.launcher = &launcher, .process = 1, .num_processes = 2, .has_secret = true};
  auto read = std::async(std::launch::async, [&] { return other.follow(); });
  CHECK(leader.lead().secret.empty());
  CHECK(read.get().secret.empty());
  CHECK(launcher.count("cmd=put ") == 2);
  CHECK(launcher.count("cmd=barrier_in\n") == 2);  // once for each
}

TEST_CASE("LauncherBulletin: says that only process 0 was given a secret") {
  FakePmi launcher{2};
  auto read = std::async(std::launch::async,
                         [&] { return Member{.launcher = &launcher, .process = 1, .num_processes = 2}.follow(); });
  Member{.launcher = &launcher, .num_processes = 2, .has_secret = true}.lead();
  CHECK_THROWS_WITH(read.get(), ContainsSubstring("process 1 was not") && ContainsSubstring("RAILYARD_SECRET"));
}

TEST_CASE("LauncherBulletin: a process that was given a secret reads the address where the others are left one") {
  FakePmi launcher{3};
  const auto member = [&](int process, bool has_secret) {
    return std::async(std::launch::async, [&launcher, process, has_secret] {
      return Member{.launcher = &launcher, .process = process, .num_processes = 3, .has_secret = has_secret}.follow();
    });
  };
  auto with = member(1, true);
  auto without = member(2, false);
  const Posting posting = Member{.launcher = &launcher, .num_processes = 3}.lead();
  CHECK(without.get() == posting);
  const Posting open = with.get();
  CHECK(open.port == posting.port);
  CHECK(open.secret.empty());
}

TEST_CASE("LauncherBulletin: meets again at the same place in a later run of the process, without its launcher") {
  FakePmi launcher{2};
  Member leader{.launcher = &launcher, .num_processes = 2};
  Member other{.launcher = &launcher, .process = 1, .num_processes = 2};
  auto read = std::async(std::launch::async, [&] { return other.follow(); });
  const Posting first = leader.lead();
  CHECK(read.get() == first);
  const std::string heard = launcher.heard();
  CHECK(leader.lead() == first);
  CHECK(other.follow() == first);
  CHECK(launcher.heard() == heard);
  const auto began = ry::Deadline::Clock::now();
  CHECK(other.bulletin()->read(soon(), &first) == first);
  CHECK(ry::Deadline::Clock::now() - began >= LauncherBulletin::patience);
}

TEST_CASE("LauncherBulletin: its leader's port is nobody else's, and can be listened on again and again") {
  FakePmi launcher{1};
  Member leader{.launcher = &launcher};
  const int port = leader.bulletin()->port_to_listen_on();
  CHECK(port > 0);
  for (int run = 0; run < 2; ++run) {
    const ry::detail::Socket listening = ry::detail::listen_at("", port);
    std::string cause;
    CHECK(ry::detail::try_connect("127.0.0.1", port, soon(), cause).is_open());
  }
}

TEST_CASE("LauncherBulletin: says while it waits that not all have come, and gives up at the deadline") {
  FakePmi launcher{2};
  std::vector<std::string> lines;
  const auto note = [&](const std::string& line) { lines.push_back(line); };
  Member other{.launcher = &launcher, .process = 1, .num_processes = 2};
  const auto bulletin = other.bulletin(soon(), {"process 1 of 2", note, 10ms});
  CHECK_THROWS_WITH(bulletin->read(ry::Deadline::after(2s), nullptr),
                    ContainsSubstring("process 1 of 2") && ContainsSubstring("the space") &&
                        ContainsSubstring("within 2 s") && ContainsSubstring("does not say which"));
  REQUIRE_FALSE(lines.empty());
  CHECK_THAT(lines.front(), ContainsSubstring("process 1 of 2 waits for all 2 processes to come to the space"));
}

TEST_CASE("LauncherBulletin: takes nothing that is no address of this attempt") {
  const auto read = [](const std::string& text, int restart = 3) {
    FakePmi launcher{1};  // at whose fence this process is alone
    launcher.put("railyard-3-leader", ry::detail::hexadecimal(bytes_of(text)));
    Member other{.launcher = &launcher, .process = 0, .num_processes = 2, .has_secret = true, .restart = restart};
    return other.bulletin()->read(soon(), nullptr);
  };
  const std::string right = ry::detail::write_posting({.host = "10.0.0.1", .port = 4000, .generation = 3});
  CHECK(read(right).port == 4000);
  CHECK_THROWS_WITH(read(right, 4), ContainsSubstring(R"(holds no "railyard-4-leader")"));
  CHECK_THROWS_WITH(read(ry::detail::write_posting({.host = "a", .port = 1, .generation = 2})),
                    ContainsSubstring("attempt 2") && ContainsSubstring("attempt 3"));
  CHECK_THROWS_WITH(read("railyard 1\nhost a\n"), ContainsSubstring("no address of process 0"));
}

TEST_CASE("LauncherBulletin: takes no key and no secret that nobody has made") {
  const auto read = [](const std::string& key, const std::string& secret) {
    FakePmi launcher{1};
    const std::string text = ry::detail::write_posting({.host = "10.0.0.1", .port = 4000}) + "key " + key + "\n";
    launcher.put("railyard-0-leader", ry::detail::hexadecimal(bytes_of(text)));
    launcher.put("railyard-0-secret-0", secret);
    return Member{.launcher = &launcher, .num_processes = 2}.bulletin()->read(soon(), nullptr);
  };
  const std::string real = ry::detail::hexadecimal(KeyAgreement{}.public_key());
  CHECK_THROWS_WITH(read("00ff", "00"), ContainsSubstring("public key"));
  CHECK_THROWS_WITH(read(std::string(64, '0'), "00"), ContainsSubstring("public key"));
  CHECK_THROWS_WITH(read(real, "xyz"), ContainsSubstring("railyard-0-secret-0"));
  CHECK(read(real, "00ff").secret.size() == 2);  // of no use: it is to be proven
}

TEST_CASE("find_launcher_bulletin: takes the launcher's space, or says why not") {
  using ry::detail::find_launcher_bulletin;
  const WaitTeller teller{"process", {}};
  ry::detail::Launch launch{.launcher = "PMI (mpiexec)", .num_processes = 2};
  LauncherMemory memory;
  auto way = find_launcher_bulletin(launch, false, teller, soon(), memory);
  CHECK(way.bulletin == nullptr);
  CHECK(way.why_not.empty());
  FakePmi launcher{2};
  launch.pmi_fd = launcher.fd(0);
  way = find_launcher_bulletin(launch, false, teller, soon(), memory);
  REQUIRE(way.bulletin != nullptr);
  CHECK(way.bulletin->where() == "the key-value space of PMI (mpiexec)");
  CHECK(way.bulletin->carries_secret());
  const PmiPair silent;
  launch.pmi_fd = silent.process.get();
  way = find_launcher_bulletin(launch, false, teller, ry::Deadline::after(20ms), memory);
  CHECK(way.bulletin == nullptr);
  CHECK_THAT(way.why_not, ContainsSubstring("PMI (mpiexec) cannot be had") && ContainsSubstring("20 ms"));
}

TEST_CASE("choose_bulletin: takes the launcher's space where nobody has named an address") {
  const ry::detail::Environment nothing = [](const std::string&) { return std::optional<std::string>{}; };
  std::vector<std::string> lines;
  const WaitTeller teller{"process 0 of 2", [&](const std::string& line) { lines.push_back(line); }};
  FakePmi launcher{1};
  ry::detail::Launch launch{.launcher = "Slurm (srun)",
                            .num_processes = 2,
                            .leader_host = "node1",
                            .leader_port = 4000,
                            .guesses_leader = true,
                            .pmi_fd = launcher.fd(0)};
  const auto where = [&](const ry::LaunchConfig& config = {}) {
    return choose_bulletin(launch, config, teller, soon(), nothing)->where();
  };
  CHECK(where() == "the key-value space of Slurm (srun)");
  CHECK(where({.leader = "node1:4000"}) == "the fixed address node1:4000");
  launch.guesses_leader = false;
  CHECK(where() == "the fixed address node1:4000");
  launch.leader_port = 0;
  CHECK(where() == "the key-value space of Slurm (srun)");
  CHECK(lines.empty());

  const PmiPair closed;
  ::shutdown(closed.launcher.get(), SHUT_RDWR);
  launch.pmi_fd = closed.process.get();
  CHECK_THROWS_WITH(where(), ContainsSubstring("MASTER_ADDR") && ContainsSubstring("PMI_FD"));
  launch.leader_port = 4000;
  launch.guesses_leader = true;
  CHECK(where() == "the fixed address node1:4000");
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines.front(), ContainsSubstring("process 0 of 2 takes the address node1:4000, as the key-value space of "
                                              "Slurm (srun) cannot be had"));
}

TEST_CASE("is_mpi_library: knows the libraries of MPI by their names") {
  using ry::detail::is_mpi_library;
  for (const char* const path : {"/usr/lib/libmpi.so.40", "libmpich.so.12", "/opt/cray/libmpi_gnu_91.so.12"}) {
    CHECK(is_mpi_library(path));
  }
  for (const char* const path :
       {"", "/usr/lib/libmpfr.so.6", "/libmpi.so/libc.so.6", "linux-vdso.so.1", "libmpdec.so.3"}) {
    CHECK_FALSE(is_mpi_library(path));
  }
  CHECK(ry::detail::loaded_mpi_library().empty());
}
