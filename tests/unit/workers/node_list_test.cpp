// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/node_list.hpp"

#include "support.hpp"
#include "support/catch.hpp"

namespace {

using Names = std::vector<std::string>;

Names expand(const std::string& list) { return railyard::detail::NodeList::expand(list); }

}  // namespace

// What scontrol show hostnames says; tests/launch/slurm.sh asks it.
TEST_CASE("NodeList: expands what Slurm writes short") {
  CHECK(expand("n1") == Names{"n1"});
  CHECK(expand("n[1-3]") == Names{"n1", "n2", "n3"});
  CHECK(expand("a[01-03,7],b") == Names{"a01", "a02", "a03", "a7", "b"});
  CHECK(expand("n[8-11]") == Names{"n8", "n9", "n10", "n11"});
  CHECK(expand("n[08-11]") == Names{"n08", "n09", "n10", "n11"});
  CHECK(expand("n[098-101]") == Names{"n098", "n099", "n100", "n101"});
  CHECK(expand("c[1-2]-ib[5-6]") == Names{"c1-ib5", "c1-ib6", "c2-ib5", "c2-ib6"});
  CHECK(expand("rack-3-node[12],x[1,3]") == Names{"rack-3-node12", "x1", "x3"});
}

TEST_CASE("NodeList: says what it cannot read") {
  for (const char* list :
       {"", "a,,b", "n[1-3", "n1-3]", "n[3-1]", "n[]", "n[a-b]", "n[1--3]", "n[-1]", "n[1-99999999999]"}) {
    CAPTURE(list);
    CHECK_THROWS_AS(expand(list), railyard::ConfigError);
  }
}

TEST_CASE("NodeList: does not fill the memory for a list that no Slurm writes") {
  CHECK_THROWS_WITH(expand("n[0-2147483647]"), ContainsSubstring("too many nodes"));
  CHECK_THROWS_WITH(expand("n[1-999]-[1-999]"), ContainsSubstring("too many nodes"));
  CHECK_THROWS_WITH(expand("n[1-60000],m[1-60000]"), ContainsSubstring("too many nodes"));
  CHECK(expand("n[1-65536]").size() == 65'536);
}

TEST_CASE("expand_task_counts: reads counts and how often they come") {
  using railyard::detail::expand_task_counts;
  CHECK(expand_task_counts("2") == std::vector<int>{2});
  CHECK(expand_task_counts("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(expand_task_counts("2,1") == std::vector<int>{2, 1});
  for (const char* counts : {"", "2(x3", "2(x)", "(x3)", "x", "2(x-1)", "1(x2147483647)"}) {
    CAPTURE(counts);
    CHECK_THROWS_AS(expand_task_counts(counts), railyard::ConfigError);
  }
}
