// SPDX-License-Identifier: MIT
#include "railyard/collectives/detail/notices.hpp"

#include "support/catch.hpp"
#include "support/run_ranks.hpp"

namespace {

namespace ry = railyard;
using Notice = ry::detail::Notice;
using ry::detail::Position;

ry::World world(int rank) { return {.rank = rank, .size = 3}; }

ry::detail::Verdict judge(ry::detail::Notices& notices, const Notice& own) {
  return notices.judge(own, "Gloo's text", "5 s", std::chrono::milliseconds{0});
}

}  // namespace

TEST_CASE("Notices: a rank without a notice is blamed when another was late") {
  railyard_test::MemoryStore store;
  ry::detail::Notices zero{store, "g/", world(0)};
  ry::detail::Notices two{store, "g/", world(2)};
  const Position here{"c1", 7, "barrier()"};
  zero.post({.kind = Notice::Kind::late, .position = here});
  const Notice own{.kind = Notice::Kind::broken, .position = here};
  two.post(own);
  const auto verdict = judge(two, own);
  CHECK(verdict.blamed == std::vector<int>{1});
  CHECK(verdict.text == "rank 1 did not answer in 5 s");
}

TEST_CASE("Notices: a death that another rank has seen is believed") {
  railyard_test::MemoryStore store;
  ry::detail::Notices zero{store, "g/", world(0)};
  ry::detail::Notices two{store, "g/", world(2)};
  const Position here{"c1", 7, "barrier()"};
  zero.post({.kind = Notice::Kind::broken, .position = here, .culprits = {1}, .text = "two\nlines"});
  CHECK(two.kind_of(0) == Notice::Kind::broken);
  CHECK_FALSE(two.kind_of(1).has_value());
  const auto verdict = judge(two, {.kind = Notice::Kind::broken, .position = here});
  CHECK(verdict.blamed == std::vector<int>{1});
  CHECK_THAT(verdict.text, Catch::ContainsSubstring("rank 1 was lost"));
}

TEST_CASE("Notices: two operations at one position are told apart, in one sentence for both ranks") {
  railyard_test::MemoryStore store;
  ry::detail::Notices zero{store, "g/", world(0)};
  ry::detail::Notices one{store, "g/", world(1)};
  const Position of_zero{"c4", 1, "barrier()"};
  const Position of_one{"c4", 2, "all_gather(8 x f32)"};
  zero.announce(of_zero);
  one.announce(of_one);
  const auto seen_by_zero = zero.find_difference(of_zero);
  const auto seen_by_one = one.find_difference(of_one);
  REQUIRE((seen_by_zero && seen_by_one));
  CHECK_THAT(seen_by_zero->text, ContainsSubstring("rank 1 called all_gather(8 x f32), rank 0 barrier()") &&
                                     ContainsSubstring("in the same order"));
  CHECK(seen_by_one->text == seen_by_zero->text);
  CHECK_FALSE(zero.find_difference({"c5", 1, "barrier()"}).has_value());
}

TEST_CASE("Notices: only the first last word counts") {
  railyard_test::MemoryStore store;
  ry::detail::Notices zero{store, "g/", world(0)};
  ry::detail::Notices one{store, "g/", world(1)};
  one.post({.kind = Notice::Kind::aborted, .text = "no disk"});
  one.post({.kind = Notice::Kind::left});
  CHECK(judge(zero, {.kind = Notice::Kind::broken, .position = {"c1", 1, "barrier()"}}).text ==
        "rank 1 gave up: no disk");
}
