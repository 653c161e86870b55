// SPDX-License-Identifier: MIT
// Where the workers of launched processes stand, and whether the GPUs that these are shown are enough for them.
#include "railyard/workers/detail/launched_members.hpp"

#include "support/catch.hpp"

#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

ry::JoinDevices shows(int count, const std::string& only = {}) { return {.count = count, .only = only, .how = "so"}; }

void check(std::vector<int> workers, std::vector<std::string> hosts, std::vector<ry::JoinDevices> devices) {
  ry::detail::check_devices({.workers = std::move(workers), .hosts = std::move(hosts), .devices = std::move(devices)});
}

}  // namespace

TEST_CASE("check_devices: processes of a host that see all its GPUs share them, those of two hosts do not") {
  CHECK_NOTHROW(check({2, 2, 4}, {"a", "a", "b"}, {shows(4), shows(4), shows(4)}));
  CHECK_THROWS_WITH(
      check({2, 2, 4}, {"a", "a", "b"}, {shows(3), shows(3), shows(4)}),
      ContainsSubstring("process 1 of 3 makes the workers 3 to 4 of its host") && ContainsSubstring("is shown 3 (so)"));
  CHECK_THROWS_WITH(check({4, 5}, {"a", "b"}, {shows(4), shows(4)}), ContainsSubstring("process 1 of 2"));
}

TEST_CASE("check_devices: a process of one worker takes the only GPU that it sees, if no other one does") {
  CHECK_NOTHROW(check({1, 1, 1}, {"a", "a", "b"}, {shows(1, "GPU-1"), shows(1, "GPU-2"), shows(1, "GPU-1")}));
  CHECK_NOTHROW(check({1, 1}, {"a", "a"}, {shows(1), shows(1)}));  // who they are is not known
  CHECK_THROWS_WITH(check({1, 1, 1}, {"a", "b", "a"}, {shows(1, "GPU-1"), shows(1, "GPU-2"), shows(1, "GPU-1")}),
                    ContainsSubstring("processes 0 and 2 of 3 are both shown GPU-1 alone"));
  CHECK_THROWS_WITH(check({2}, {"a"}, {shows(1, "GPU-1")}), ContainsSubstring("makes the workers 1 to 2"));
}

TEST_CASE("check_devices: nothing is asked of processes without workers, or where none is to have a GPU") {
  CHECK_NOTHROW(check({2, 0}, {"a", "a"}, {shows(2), shows(0)}));
  CHECK_NOTHROW(check({8, 8}, {"a", "a"}, {{}, {}}));
}

TEST_CASE("Launched: makes the ranks of a host go on from one another") {
  const auto layouts = ry::detail::lay_out({2, 1, 3, 1}, {"a", "b", "a", "b"});
  const auto expect = [&](std::size_t process, int first_rank, int first_local_rank, int local_size, int node) {
    CHECK(layouts[process].first_rank == first_rank);
    CHECK(layouts[process].first_local_rank == first_local_rank);
    CHECK(layouts[process].local_size == local_size);
    CHECK(layouts[process].node == node);
    CHECK(layouts[process].num_nodes == 2);
    CHECK(layouts[process].world_size == 7);
  };
  expect(0, 0, 0, 5, 0);
  expect(2, 2, 2, 5, 0);
  expect(1, 5, 0, 2, 1);
  expect(3, 6, 1, 2, 1);
  const auto left = ry::detail::lay_out({0, 1, 0, 2}, {"a", "b", "a", "c"});
  CHECK(left[1].node == 0);
  CHECK(left[3].node == 1);
  CHECK(left[3].first_rank == 1);
  for (const auto& layout : left) CHECK(layout.num_nodes == 2);
}
