// SPDX-License-Identifier: MIT
#include "railyard/core/reduce_op.hpp"

#include "support/catch.hpp"

#include <set>
#include <string>

namespace ry = railyard;

TEST_CASE("ReduceOp: every operation has a name of its own") {
  std::set<std::string> names;
  for (const ry::ReduceOp op : ry::all_reduce_ops) names.emplace(ry::name_of(op));
  CHECK(names == std::set<std::string>{"sum", "average", "min", "max", "product"});
}
