// SPDX-License-Identifier: MIT
// The leader's ends of the connections, with the other ends in the hands of the test. ThreadSanitizer runs these: it
// cannot follow the forks of a process with threads that whole groups need.
#include "railyard/workers/detail/agent_lines.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include <sys/socket.h>

using namespace workers_test;
using namespace ry::detail;
using Catch::ContainsSubstring;

namespace {

// Both ends of a connection whose handshake is over.
std::pair<SecureConnection, SecureConnection> connected_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw ry::Error{"socketpair"};
  const Hmac one{text_bytes("one")};
  const Hmac other{text_bytes("other")};
  return {SecureConnection{Socket{Descriptor{ends[0]}}, {.outgoing = one, .incoming = other}, "the follower", {}},
          SecureConnection{Socket{Descriptor{ends[1]}}, {.outgoing = other, .incoming = one}, "the leader", {}}};
}

struct Lines {
  explicit Lines(int count, std::chrono::nanoseconds silence_limit = 30s,
                 std::size_t chunk_bytes = std::size_t{1} << 20U, std::chrono::nanoseconds answer_limit = {}) {
    std::vector<SecureConnection> ours;
    for (int i = 0; i < count; ++i) {
      auto [here, there] = connected_pair();
      ours.push_back(std::move(here));
      followers.push_back(std::move(there));
    }
    lines.emplace(std::move(ours), silence_limit, chunk_bytes, answer_limit);
  }
  std::vector<SecureConnection> followers{};
  std::optional<AgentLines> lines{};
};

// Returns the next order, or nothing if none comes in time.
std::optional<Frame> hear(SecureConnection& from) {
  while (auto frame = from.receive(soon())) {
    if (frame->type != static_cast<std::uint8_t>(Order::alive)) return frame;
  }
  return std::nullopt;
}

void say(SecureConnection& to, News news, std::initializer_list<ConstBytes> pieces = {}) {
  to.send(static_cast<std::uint8_t>(news), pieces, soon());
}

}  // namespace

TEST_CASE("AgentLines: brings every order to its process, in order, from any thread") {
  Lines set{2};
  constexpr int count = 500;
  std::vector<std::thread> threads;
  for (int process = 1; process <= 2; ++process) {
    threads.emplace_back([&, process] {
      for (int at = 0; at < count; ++at) set.lines->post(process, Order::tell, text_bytes(std::to_string(at)));
    });
  }
  for (SecureConnection& follower : set.followers) {
    int wrong = 0;
    for (int at = 0; at < count; ++at) {
      const auto frame = hear(follower);
      wrong += !frame || frame->text() != std::to_string(at) || frame->type != static_cast<std::uint8_t>(Order::tell);
    }
    CHECK(wrong == 0);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("AgentLines: hands on what processes say, keeps the newest pages, and names who is lost") {
  Lines set{2};
  say(set.followers[0], News::started);
  const std::array<PageValues, 2> pages{PageValues{.steps = 3}, PageValues{.steps = 4, .waiting_for_ns = 5}};
  say(set.followers[0], News::pages, {std::as_bytes(std::span{pages})});
  say(set.followers[0], News::event, {encode_event(ry::SignalEvent{.signal = 15})});
  for (const News expected : {News::started, News::event}) {
    const auto item = set.lines->take(soon());
    REQUIRE(item);
    CHECK(item->process == 1);
    CHECK(item->frame.type == static_cast<std::uint8_t>(expected));
  }
  std::array<ry::WorkerPage, 2> shown;
  for (const int rank : {0, 1}) set.lines->show_page(1, rank, shown[static_cast<std::size_t>(rank)]);
  CHECK(shown[0].steps.load() == 3);
  CHECK(shown[1].steps.load() == 4);
  CHECK(shown[0].waiting_since_ns.load() == 0);
  CHECK(shown[1].waiting_since_ns.load() != 0);

  set.followers[1].close();
  const auto item = set.lines->take(soon());
  REQUIRE(item);
  CHECK(item->process == 2);
  CHECK_THAT(item->loss, ContainsSubstring("the follower has "));
  CHECK(set.lines->loss(2) == item->loss);
  CHECK(set.lines->loss(1).empty());
  set.lines->post(2, Order::kill);  // does nothing
}

TEST_CASE("AgentLines: a process that was lost is spoken with again by another connection, as often as it comes back") {
  Lines set{2};
  set.lines->post(1, Order::tell, text_bytes("to the first"));
  for (const std::string text : {"to the second", "to the third"}) {
    set.followers[0].close();
    const auto loss = set.lines->take(soon());
    REQUIRE(loss);
    CHECK_FALSE(loss->loss.empty());
    set.lines->post(1, Order::tell, text_bytes("to nobody"));
    auto [here, there] = connected_pair();
    set.followers[0] = std::move(there);
    set.lines->replace(1, std::move(here));
    CHECK(set.lines->loss(1).empty());
    set.lines->post(1, Order::tell, text_bytes(text));
    const auto frame = hear(set.followers[0]);
    REQUIRE(frame);
    CHECK(frame->text() == text);
    say(set.followers[0], News::started);
    const auto item = set.lines->take(soon());
    REQUIRE(item);
    CHECK(item->process == 1);
    CHECK(item->frame.type == static_cast<std::uint8_t>(News::started));
  }
  set.lines->post(2, Order::kill);
  CHECK(hear(set.followers[1]));
}

TEST_CASE("AgentLines: fetches for several threads at once, and fails for those whose process is lost") {
  Lines set{2};
  std::atomic<int> num_right{0};
  std::vector<std::thread> threads;
  for (int at = 0; at < 4; ++at) {
    threads.emplace_back([&, at] {
      const auto bytes = set.lines->fetch(1, {.rank = at, .slot = 1}, 0, 1000);
      num_right += bytes.size() == 1000 && bytes[999] == std::byte(at) ? 1 : 0;
    });
  }
  threads.emplace_back([&] {
    try {
      static_cast<void>(set.lines->fetch(2, {}, 0, 10));
    } catch (const ry::Error& error) {
      num_right += std::string_view{error.what()}.find("a part of the state was lost") == 0 ? 1 : 0;
    }
  });
  for (int answered = 0; answered < 4; ++answered) {
    const auto frame = hear(set.followers[0]);
    REQUIRE(frame);
    const auto order = WireReader{frame->payload}.take<FetchOrder>();
    const std::vector<std::byte> bytes(order.size_bytes, std::byte(order.of.rank));
    say(set.followers[0], News::fetched, {std::as_bytes(std::span{&order.number, 1}), bytes});
  }
  REQUIRE(hear(set.followers[1]));
  set.followers[1].close();
  for (std::thread& thread : threads) thread.join();
  CHECK(num_right == 5);

  std::thread refused{[&] {
    const std::string why = "no such worker is here";
    const auto frame = hear(set.followers[0]);
    const auto order = WireReader{frame->payload}.take<FetchOrder>();
    say(set.followers[0], News::not_fetched, {std::as_bytes(std::span{&order.number, 1}), text_bytes(why)});
  }};
  CHECK_THROWS_WITH(set.lines->fetch(1, {}, 0, 10), "no such worker is here");
  refused.join();
}

TEST_CASE("AgentLines: fetches what is larger than a message piece by piece, and drops what comes after a failure") {
  Lines set{1, 30s, 100};
  std::vector<FetchOrder> orders;
  const auto answer = [&](News news, std::size_t count) {
    const auto frame = hear(set.followers[0]);
    if (!frame) throw ry::Error{"no order has come"};
    const auto order = orders.emplace_back(WireReader{frame->payload}.take<FetchOrder>());
    std::vector<std::byte> bytes(count);
    for (std::size_t at = 0; at < count; ++at) bytes[at] = std::byte((order.begin + at) % 251);
    say(set.followers[0], news, {std::as_bytes(std::span{&order.number, 1}), bytes});
  };
  const auto fetch = [&] { return set.lines->fetch(1, {.rank = 2, .slot = 3}, 1000, 250); };
  std::thread follower{[&] {
    for (const std::size_t count : {100U, 100U, 50U}) answer(News::fetched, count);
  }};
  const auto bytes = fetch();
  follower.join();
  REQUIRE(orders.size() == 3);
  for (const std::size_t at : {0U, 1U, 2U}) {
    CHECK(orders[at].of.rank == 2);
    CHECK(orders[at].of.slot == 3);
    CHECK(orders[at].begin == 1000 + 100 * at);
    CHECK(orders[at].size_bytes == (at == 2 ? 50 : 100));
  }
  std::size_t num_right = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) num_right += bytes[at] == std::byte((1000 + at) % 251) ? 1 : 0;
  CHECK(num_right == 250);
  CHECK(set.lines->fetch(1, {}, 0, 0).empty());

  follower = std::thread{[&] {
    answer(News::fetched, 100);
    answer(News::not_fetched, 0);
    for (const std::size_t count : {50U, 100U, 100U, 49U}) answer(News::fetched, count);  // the first is of the former
  }};
  CHECK_THROWS_AS(fetch(), ry::Error);
  CHECK_THROWS_WITH(fetch(), ContainsSubstring("has sent 249 bytes of a part of the state instead of 250"));
  follower.join();

  follower = std::thread{[&] {
    answer(News::fetched, 100);
    set.followers[0].close();
  }};
  CHECK_THROWS_WITH(fetch(), ContainsSubstring("a part of the state was lost"));
  follower.join();
}

TEST_CASE("AgentLines: an answer is waited for as long as its process tells of progress, and then for the limit") {
  Lines set{1, 30s, 100, 1s};
  const auto ask = [&] { return set.lines->await_answer(set.lines->send_request(1, text_bytes("it")), "a test"); };
  std::atomic<bool> is_late{false};
  std::thread follower{[&] {
    const auto frame = hear(set.followers[0]);
    const auto number = frame ? WireReader{frame->payload}.take<std::uint64_t>() : 0;
    const auto numbered = std::as_bytes(std::span{&number, 1});
    for (const auto until = ry::Deadline::after(1500ms); !until.expired();) {
      say(set.followers[0], News::progress, {numbered});
      std::this_thread::sleep_for(10ms);
    }
    say(set.followers[0], News::answered, {numbered, text_bytes("done")});
    while (!is_late) {  // is heard of, and that is all
      say(set.followers[0], News::pages);
      std::this_thread::sleep_for(10ms);
    }
    say(set.followers[0], News::answered, {numbered, text_bytes("too late")});
  }};
  CHECK(ask().size() == 4);
  try {
    static_cast<void>(ask());
    FAIL("there is no answer");
  } catch (const ry::LateAnswerError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("a test: the follower has made no progress for 1 s"));
  }
  is_late = true;
  follower.join();
}

TEST_CASE("AgentLines: a process that says nothing is lost after the limit of silence") {
  Lines set{1, 50ms};
  const auto item = set.lines->take(soon());
  REQUIRE(item);
  CHECK_THAT(item->loss, ContainsSubstring("has said nothing for"));
}

TEST_CASE("AgentLines: that there is room for what is sent to a process is no sign of its life") {
  Lines set{1, 200ms};
  std::optional<AgentLines::Item> item;
  for (const auto deadline = soon(); !item && !deadline.expired(); item = set.lines->take()) {
    set.lines->post(1, Order::stop);
    std::this_thread::sleep_for(1ms);
  }
  REQUIRE(item);
  CHECK_THAT(item->loss, ContainsSubstring("has said nothing for"));
}

TEST_CASE("AgentLines: gives signs of life") {
  Lines set{1, 400ms};
  for (int at = 0; at < 3; ++at) {
    const auto frame = set.followers[0].receive(soon());
    REQUIRE(frame);
    CHECK(frame->type == static_cast<std::uint8_t>(Order::alive));
    say(set.followers[0], News::pages);
  }
}

TEST_CASE("AgentLines: a process that has not come is lost, until it does") {
  std::vector<std::optional<SecureConnection>> connections(2);
  auto [here, there] = connected_pair();
  connections[1] = std::move(here);
  AgentLines lines{std::move(connections), 30s, [](int process) { return fmt::format("{} is missing", process); }};
  CHECK(lines.loss(1) == "1 is missing");
  CHECK(lines.loss(2).empty());
  CHECK_FALSE(lines.take());
  lines.post(1, Order::stop);  // does nothing
  auto [ours, theirs] = connected_pair();
  lines.replace(1, std::move(ours));
  CHECK(lines.loss(1).empty());
  lines.post(1, Order::tell, text_bytes("hello"));
  const auto frame = hear(theirs);
  REQUIRE(frame);
  CHECK(frame->text() == "hello");
}

TEST_CASE("AgentLines: what was queued is sent before the end") {
  Lines set{1};
  const std::vector<std::byte> large(std::size_t{4} << 20U, std::byte{7});
  set.lines->post(1, Order::tell, large);
  std::thread end{[&] { set.lines.reset(); }};
  const auto frame = hear(set.followers[0]);
  REQUIRE(frame);
  CHECK(frame->payload == large);
  end.join();
  CHECK_THROWS_AS(hear(set.followers[0]), ConnectionError);
}

TEST_CASE("Agents' messages: events come out as they went in, and nonsense is refused") {
  const GroupLayout layout{.first_rank = 10, .num_workers = 2, .world_size = 12};
  const auto back = [&](const ry::GroupEvent& event) { return decode_event(encode_event(event), layout); };
  const std::string text = "a line";
  CHECK(std::get<ry::MessageEvent>(back(ry::MessageEvent{.rank = 1, .bytes = {std::byte{5}}})).rank == 11);
  const auto output = std::get<ry::OutputEvent>(back(ry::OutputEvent{.rank = 0, .is_error = true, .line = text}));
  CHECK((output.rank == 10 && output.is_error && output.line == text));
  const auto exit = std::get<ry::ExitEvent>(
      back(ry::ExitEvent{.rank = 1, .exit = {.kind = ry::WorkerExit::Kind::signalled, .code = 9, .message = text}}));
  CHECK((exit.rank == 11 && exit.exit.code == 9 && exit.exit.message == text));
  CHECK(std::get<ry::SilenceEvent>(back(ry::SilenceEvent{.rank = 0, .message = text})).message == text);
  CHECK(std::get<ry::SignalEvent>(back(ry::SignalEvent{.signal = 15})).signal == 15);
  CHECK(std::get<ry::BrokenEvent>(back(ry::BrokenEvent{.message = text})).message == text);

  CHECK_THROWS_AS(back(ry::MessageEvent{.rank = 2, .bytes = {}}), ry::DataError);
  CHECK_THROWS_AS(back(ry::MessageEvent{.rank = -1, .bytes = {}}), ry::DataError);
  CHECK_THROWS_AS(decode_event(text_bytes("\x09nonsense"), layout), ry::DataError);
  CHECK_THROWS_AS(decode_event({}, layout), ry::DataError);
}
