// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/network_store.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <thread>

using namespace network_test;

namespace {

std::string error_text(const std::function<void()>& function) {
  try {
    function();
  } catch (const ry::CollectiveError& error) {
    return error.what();
  }
  return "no CollectiveError";
}

}  // namespace

TEST_CASE("NetworkStore: brings a value from one worker to another, in arbitrary bytes") {
  const Leader leader;
  const auto one = leader.store(0);
  const auto other = leader.store(1);
  const std::string odd{"a\0b\n", 4};
  one->set(odd, odd);
  one->set("", "");
  CHECK(other->get(odd, soon()) == odd);
  CHECK(other->get("", soon()) == "");
  CHECK(other->get(odd, ry::Deadline::never()) == odd);
}

TEST_CASE("NetworkStore: waits for a value until it comes, or until the deadline") {
  const Leader leader;
  const auto one = leader.store(0);
  const auto other = leader.store(1);
  CHECK_FALSE(one->get("key", ry::Deadline::after(5ms)));
  std::optional<std::string> value;
  std::thread waiting{[&] { value = one->get("key", soon()); }};
  other->set("key", "value");
  waiting.join();
  CHECK(value == "value");
}

TEST_CASE("NetworkStore: tells what is there now to who does not want to wait") {
  const Leader leader;
  const auto one = leader.store(0);
  const auto other = leader.store(1);
  const auto now = ry::Deadline::after(0ns);
  for (int at = 0; at < 200; ++at) {
    const std::string key = std::to_string(at);
    REQUIRE_FALSE(other->get(key, now));
    one->set(key, "value");
    REQUIRE(other->get(key, now) == "value");
  }
}

TEST_CASE("NetworkStore: begins without a wait where it has a ticket, and is turned away like all others") {
  Leader leader;
  const auto agent = leader.connect({.process = 1});
  REQUIRE(agent.ticket());
  CHECK(agent.ticket()->nonce == leader->ticket().nonce);
  const auto one = leader.store(0, 0, agent.ticket());
  one->set("key", "value");
  CHECK(leader.store(1, 0, agent.ticket())->get("key", ry::Deadline::after(0ns)) == "value");
  CHECK_THAT(error_text([&] { leader.store(2, 5, agent.ticket())->set("a", "b"); }),
             ContainsSubstring("does not take this process") && ContainsSubstring("generation 5"));
  CHECK_THAT(error_text([&] { leader.store(2, 0, ry::detail::Ticket::make())->set("a", "b"); }),
             ContainsSubstring("closed"));
}

TEST_CASE("NetworkStore: fetches at once what is expected") {
  const Leader leader;
  const auto one = leader.store(0);
  const auto other = leader.store(1);
  std::vector<std::string> keys;
  for (int at = 0; at < 500; ++at) keys.push_back(std::to_string(at));
  for (int at = 0; at < 250; ++at) one->set(keys[static_cast<std::size_t>(at)], "early");
  other->expect(keys);
  other->expect({});
  for (int at = 250; at < 500; ++at) one->set(keys[static_cast<std::size_t>(at)], "late");
  for (int at = 0; at < 500; ++at) {
    CHECK(other->get(keys[static_cast<std::size_t>(at)], soon()) == (at < 250 ? "early" : "late"));
  }
  CHECK_FALSE(other->get("not expected", ry::Deadline::after(0ns)));
}

TEST_CASE("NetworkStore: refuses a second value and one too many, and stays usable") {
  const Leader leader;
  const auto one = leader.store(0);
  const auto other = leader.store(1);
  one->set("key", "first");
  CHECK_THROWS_AS(other->set("key", "second"), ry::KeyTakenError);
  CHECK_THROWS_WITH(other->set("key", "second"), ContainsSubstring("\"key\"") && ContainsSubstring("set before"));
  const std::string large(std::size_t{6} << 20U, 'x');
  one->set("a", large);
  other->set("b", large);
  CHECK_THROWS_WITH(one->set("c", large), ContainsSubstring("full") && ContainsSubstring("\"c\""));
  CHECK_THROWS_WITH(one->set("d", std::string(std::size_t{17} << 20U, 'x')), ContainsSubstring("full"));
  CHECK(other->get("key", soon()) == "first");
  CHECK(one->get("b", soon()) == large);
}

TEST_CASE("NetworkStore: serves several threads of each of several workers") {
  const Leader leader;
  constexpr int num_workers = 4;
  constexpr int num_threads = 3;
  constexpr int num_keys = 50;
  std::vector<std::unique_ptr<NetworkStore>> stores;
  for (int rank = 0; rank < num_workers; ++rank) stores.push_back(leader.store(rank));
  std::atomic<int> won{0};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int at = 0; at < num_workers * num_threads; ++at) {
    threads.emplace_back([&, at] {
      NetworkStore& store = *stores[static_cast<std::size_t>(at % num_workers)];
      for (int key = 0; key < num_keys; ++key) {
        store.set(ry::detail::compose("{}/{}", at, key), std::to_string(at * key));
        try {
          store.set(ry::detail::compose("contested/{}", key), std::to_string(at));
          ++won;
        } catch (const ry::Error&) {
        }
        const int peer = (at + key) % (num_workers * num_threads);
        const auto value = store.get(ry::detail::compose("{}/{}", peer, key), soon());
        if (value == std::to_string(peer * key)) ++right;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(won.load() == num_keys);
  CHECK(right.load() == num_workers * num_threads * num_keys);
}

TEST_CASE("NetworkStore: lets a thread take over the socket when the one that watched it gives up") {
  const Leader leader;
  const auto one = leader.store(0);
  const auto other = leader.store(1);
  std::vector<std::optional<std::string>> values(4);
  std::vector<std::thread> waiting;
  for (std::size_t at = 0; at < values.size(); ++at) {
    waiting.emplace_back([&, at] { values[at] = one->get("key", soon()); });
    CHECK_FALSE(one->get("nothing", ry::Deadline::after(2ms)));
  }
  other->set("key", "value");
  for (auto& thread : waiting) thread.join();
  CHECK(values == std::vector<std::optional<std::string>>(4, "value"));
}

TEST_CASE("NetworkStore: makes a connection of its own in a forked process") {
  const Leader leader;
  const auto store = leader.store(0);
  store->set("from the parent", "1");
  workers_test::Forked child{[&](const auto&) {
    store->set("from the child", "2");
    return store->get("from the parent", soon()) == "1" ? 0 : 1;
  }};
  CHECK(child.status() == 0);
  CHECK(store->get("from the child", soon()) == "2");
  store->set("and the parent again", "3");
}

TEST_CASE("NetworkStore: ends every wait of a generation that is over, and its values") {
  Leader leader;
  const auto one = leader.store(3);
  one->set("key", "value");
  std::string text;
  std::thread waiting{[&] { text = error_text([&] { (void)one->get("never", soon()); }); }};
  CHECK_FALSE(one->get("nothing", ry::Deadline::after(2ms)));
  leader->reset_store(1);
  waiting.join();
  CHECK_THAT(text, ContainsSubstring("store.get(\"never\") on rank 3") && ContainsSubstring("generation 0") &&
                       ContainsSubstring("now at 1"));
  CHECK_THAT(error_text([&] { one->set("a", "b"); }), ContainsSubstring("now at 1"));
  CHECK_THAT(error_text([&] { leader.store(2)->set("a", "b"); }), ContainsSubstring("now at 1"));

  const auto next = leader.store(3, 1);
  CHECK_FALSE(next->get("key", ry::Deadline::after(0ns)));
  next->set("key", "another value");
  CHECK(next->get("key", soon()) == "another value");
}

TEST_CASE("NetworkStore: says that the leader is gone, to all who wait and from then on (FAULTS B15)") {
  auto leader = std::make_unique<Leader>();
  const std::string port = ry::detail::compose("port {}", (*leader)->port());
  const auto store = leader->store(1);
  std::vector<std::string> texts(3);
  std::vector<std::thread> waiting;
  for (std::string& text : texts) {
    waiting.emplace_back([&] { text = error_text([&] { (void)store->get("never", soon()); }); });
  }
  CHECK_FALSE(store->get("nothing", ry::Deadline::after(2ms)));
  leader.reset();
  for (auto& thread : waiting) thread.join();
  for (const std::string& text : texts) {
    CHECK_THAT(text, ContainsSubstring("on rank 1") && ContainsSubstring(port));
    CHECK_THAT(text, ContainsSubstring("closed") || ContainsSubstring("has ended"));  // who was sending finds it so
  }
  CHECK_THAT(error_text([&] { store->set("a", "b"); }), ContainsSubstring(port));
}

TEST_CASE("NetworkStore: says that the leader cannot be reached or does not answer, within its patience") {
  const Socket mute = ry::detail::listen_at("127.0.0.1", 0);
  const int port = ry::detail::SocketAddress::of_self(mute.fd()).port();
  NetworkStore store{{.host = "127.0.0.1", .port = port, .job = "job", .rank = 5, .patience = 30ms}, run_secret()};
  CHECK_THAT(error_text([&] { store.set("a", "b"); }), ContainsSubstring("store.set(\"a\") on rank 5") &&
                                                           ContainsSubstring("30 ms") &&
                                                           ContainsSubstring("did not answer"));
}

TEST_CASE("NetworkStore: a wait goes on after all were suspended for longer than it may last (TRAPS 25)") {
  constexpr auto budget = 3s;
  const workers_test::SharedNumber goes_on;
  workers_test::Forked child{[&](const auto& tell) {
    const Leader leader;
    const auto one = leader.store(0);
    const auto other = leader.store(1);
    other->set("first", "value");  // it is connected
    std::optional<std::string> value;
    std::atomic<bool> begins{false};
    std::thread waiting{[&] {
      begins = true;
      begins.notify_all();
      value = one->get("key", ry::Deadline::after(budget));
    }};
    begins.wait(false);
    static_cast<void>(one->get("nothing", ry::Deadline::after(300ms)));  // the other one waits by then
    tell(::getpid());
    while ((*goes_on).load() == 0) std::this_thread::sleep_for(1ms);
    other->set("key", "value");
    waiting.join();
    return value == "value" ? 0 : 1;
  }};
  REQUIRE(child.hear() == child.pid());
  ::kill(child.pid(), SIGSTOP);
  for (const auto is_over = ry::Deadline::after(budget + 500ms); !is_over.expired();) std::this_thread::sleep_for(10ms);
  (*goes_on).store(1);
  ::kill(child.pid(), SIGCONT);
  CHECK(child.status() == 0);
}

TEST_CASE("NetworkStore: waits that share a deadline end with it, however many there are") {
  const Leader leader;
  const auto store = leader.store(0);
  constexpr std::chrono::nanoseconds budget = 2 * ry::detail::AwakeTime::most;
  const auto deadline = ry::Deadline::after(budget);
  CHECK_FALSE(store->get("key", deadline));
  const auto again = ry::Deadline::after(budget / 4);  // which would be over first if the time was counted anew
  for (int at = 0; at < 20; ++at) CHECK_FALSE(store->get(std::to_string(at), deadline));
  CHECK_FALSE(again.expired());
}
