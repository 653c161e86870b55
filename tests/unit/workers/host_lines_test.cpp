// SPDX-License-Identifier: MIT
// Ranks of one host connect, whoever else knocks: other users are turned away unheard, and the same user's processes
// without what only the group knows.
#include "railyard/workers/detail/host_lines.hpp"

#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/run_ranks.hpp"

#include <future>

using namespace workers_test;
using ry::detail::Descriptor;
using ry::detail::HostConnector;
using ry::detail::HostPlace;

namespace {

using HostLinesOf = std::vector<std::unique_ptr<ry::RankLine>>;

std::string swap_bytes(HostLinesOf& lines, int rank) {
  for (std::size_t peer = 0; peer < lines.size(); ++peer) {
    const auto own = std::byte(rank);
    if (lines[peer] != nullptr && lines[peer]->send(&own, 1) != 1) return "a byte was not sent";
  }
  for (std::size_t peer = 0; peer < lines.size(); ++peer) {
    if (lines[peer] == nullptr) continue;
    std::byte theirs{255};
    pollfd one{.fd = lines[peer]->fd(), .events = POLLIN, .revents = 0};
    if (::poll(&one, 1, 30'000) != 1 || lines[peer]->receive(&theirs, 1) != 1) return "no byte has come";
    if (theirs != std::byte(peer)) return "a wrong byte has come";
  }
  return {};
}

ry::World world_of_two(int rank) {
  ry::World world;
  world.rank = rank;
  world.size = 2;
  return world;
}

// Where rank 0 of two listens, in another thread; the other rank comes when it is told to.
class RankThatListens {
 public:
  RankThatListens() : rank0_(std::async(std::launch::async, [this] { return connect(0); })) {
    place_ = HostPlace::read(store_.get("group/0", soon()).value()).value();
  }
  [[nodiscard]] const HostPlace& place() const noexcept { return place_; }

  // A socket that is connected to it; not open if that was refused.
  [[nodiscard]] Descriptor stranger() const {
    Descriptor socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, place_.name.data(), place_.name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + place_.name.size());
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return {};
    return socket;
  }
  // Waits until it has refused somebody for that reason.
  bool has_refused(std::string_view who, std::string_view why) {
    for (const auto deadline = soon(); !deadline.expired(); std::this_thread::sleep_for(1ms)) {
      const std::lock_guard lock{mutex_};
      for (const std::string& line : refusals_) {
        if (line.find(who) != std::string::npos && line.find(why) != std::string::npos) return true;
      }
    }
    return false;
  }
  // Lets the other rank come. Returns what goes wrong; empty if nothing does.
  std::string end() {
    auto lines1 = connect(1);
    auto lines0 = rank0_.get();
    auto other = std::async(std::launch::async, [&] { return swap_bytes(lines1, 1); });
    const std::string trouble = swap_bytes(lines0, 0);
    return trouble + other.get();
  }

 private:
  HostLinesOf connect(int rank) {
    HostConnector connector{[this](const std::string& line) {
      const std::lock_guard lock{mutex_};
      refusals_.push_back(line);
    }};
    return connector.connect(world_of_two(rank), store_, "group/", "", soon());
  }

  railyard_test::MemoryStore store_{};
  std::mutex mutex_{};
  std::vector<std::string> refusals_{};
  HostPlace place_{};
  std::future<HostLinesOf> rank0_;
};

// Has the other end closed it, without having said anything?
bool is_closed_unheard(const Descriptor& socket) {
  pollfd one{.fd = socket.get(), .events = POLLIN, .revents = 0};
  char letter = 0;
  return ::poll(&one, 1, 30'000) == 1 && ::recv(socket.get(), &letter, 1, 0) <= 0;
}

std::string own_name() { return fmt::format("process {} of user {}", ::getpid(), ::geteuid()); }

}  // namespace

TEST_CASE("HostLines: every rank is connected with every other one") {
  for (const int size : {1, 2, 3, 8}) {
    railyard_test::run_ranks(size, [](const ry::World& world, ry::Store& store) {
      auto lines = HostConnector::make()->connect(world, store, "group/", "", soon());
      railyard_test::require(lines[static_cast<std::size_t>(world.rank)] == nullptr, "no line to itself");
      const std::string trouble = swap_bytes(lines, world.rank);
      railyard_test::require(trouble.empty(), trouble);
    });
  }
}

TEST_CASE("HostLines: the workers of threads and of processes are connected so, and not by ports") {
  const auto body = [](ry::WorkerLink& link) {
    const ry::World& world = link.world();
    railyard_test::require(world.connector != nullptr, "a connector");
    auto lines = world.connector->connect(world, link.store(), "group/", "127.0.0.1", soon());
    const std::string trouble = swap_bytes(lines, world.rank);
    railyard_test::require(trouble.empty(), trouble);
    sockaddr_un address{};
    socklen_t size = sizeof address;
    const int fd = lines[world.rank == 0 ? 1 : 0]->fd();
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    railyard_test::require(address.sun_family == AF_UNIX, "a socket of the host");
  };
  railyard_test::run_group<ry::Threads>(3, body);
  railyard_test::run_group<ry::Processes>(3, body);
}

TEST_CASE("HostLines: who does not know what the group knows is closed and named, and holds nobody up") {
  RankThatListens rank;
  const Descriptor mute = rank.stranger();
  Descriptor leaving = rank.stranger();
  leaving.reset();
  CHECK(rank.has_refused(own_name(), "it has left before its proof"));
  const Descriptor guessing = rank.stranger();
  const std::array<std::byte, 20> zeros{};
  CHECK(::send(guessing.get(), zeros.data(), zeros.size(), MSG_NOSIGNAL) == 20);
  CHECK(is_closed_unheard(guessing));
  CHECK(rank.has_refused(own_name(), "it is no rank of this group"));
  const Descriptor wrong_rank = rank.stranger();
  std::array<std::byte, 20> own_rank{};  // it knows, and says that it is rank 0
  std::memcpy(own_rank.data(), rank.place().call.data(), rank.place().call.size());
  CHECK(::send(wrong_rank.get(), own_rank.data(), own_rank.size(), MSG_NOSIGNAL) == 20);
  CHECK(is_closed_unheard(wrong_rank));
  CHECK(rank.has_refused(own_name(), "it is rank 0"));
  CHECK(rank.end() == "");
}

TEST_CASE("HostLines: another user is turned away, whatever he knows") {
  if (::geteuid() != 0) {
    WARN("not tested: that another user is turned away, as this user cannot be another");
    return;
  }
  constexpr uid_t nobody = 65534;
  RankThatListens rank;
  Forked other{[&](const auto& tell) {
    if (::setgid(nobody) != 0 || ::setuid(nobody) != 0) return 2;
    tell(::getpid());
    const Descriptor socket = rank.stranger();
    if (!socket.is_open()) return 0;
    std::array<std::byte, 20> greeting{};
    std::memcpy(greeting.data(), rank.place().call.data(), rank.place().call.size());
    greeting[16] = std::byte{1};
    static_cast<void>(::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) == 20);
    return is_closed_unheard(socket) ? 0 : 1;
  }};
  const pid_t pid = other.hear();
  CHECK(other.status() == 0);
  CHECK(rank.has_refused(fmt::format("process {} of user {}", pid, nobody), "it is another user's"));
  CHECK(rank.end() == "");
}

TEST_CASE("HostLines: many who say nothing do not keep a rank out") {
  RankThatListens rank;
  std::vector<Descriptor> strangers;
  for (int at = 0; at < 300; ++at) strangers.push_back(rank.stranger());
  CHECK(rank.has_refused(own_name(), "it has not proven itself, and others are waiting"));
  CHECK(rank.end() == "");
}

TEST_CASE("HostLines: a rank that does not come is named, and so is one that has gone") {
  railyard_test::MemoryStore store;
  HostConnector connector{{}};
  const auto connect = [&](int rank) {
    return connector.connect(world_of_two(rank), store, "group/", "", ry::Deadline::after(30ms));
  };
  CHECK_THROWS_WITH(connect(0), ContainsSubstring("rank(s) 1 did not connect to rank 0") && ContainsSubstring("30 ms"));
  CHECK_THROWS_WITH(connect(1), ContainsSubstring("rank 1 does not reach rank 0 of this host"));  // it listens no more
  railyard_test::MemoryStore empty;
  CHECK_THROWS_WITH(connector.connect(world_of_two(1), empty, "group/", "", ry::Deadline::after(30ms)),
                    ContainsSubstring("rank 0 has not said where it listens in 30 ms"));
  railyard_test::MemoryStore full_of_nonsense;
  full_of_nonsense.set("group/0", "00 11 22");
  CHECK_THROWS_WITH(connector.connect(world_of_two(1), full_of_nonsense, "group/", "", soon()),
                    ContainsSubstring("rank 0 has left \"00 11 22\""));
}

TEST_CASE("HostLines: who hangs up is named by its rank") {
  railyard_test::run_ranks(2, [](const ry::World& world, ry::Store& store) {
    auto lines = HostConnector::make()->connect(world, store, "group/", "", soon());
    ry::RankLine& line = *lines[static_cast<std::size_t>(1 - world.rank)];
    if (world.rank == 0) return line.hang_up();
    pollfd one{.fd = line.fd(), .events = POLLIN, .revents = 0};
    railyard_test::require(::poll(&one, 1, 30'000) == 1, "an end");
    try {
      std::byte got{};
      static_cast<void>(line.receive(&got, 1));
    } catch (const ry::Error& error) {
      const std::string what = error.what();
      railyard_test::require(what == "rank 0 has closed the connection", what);
      return;
    }
    throw std::runtime_error{"an error was to come"};
  });
}
