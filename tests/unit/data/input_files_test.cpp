// SPDX-License-Identifier: MIT
#include "railyard/data/input_files.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

namespace ry = railyard;

TEST_CASE("InputFiles: finds what patterns match in order, and a file whose name looks like a pattern") {
  const TemporaryFolder folder;
  const auto second = folder.write("b-2.csv", "");
  const auto first = folder.write("b-1.csv", "");
  const auto odd = folder.write("c[1].csv", "");
  CHECK(ry::InputFiles{folder / "b-*.csv"}.expand() == std::vector{first, second});
  CHECK(ry::InputFiles{second, first}.expand() == std::vector{second, first});
  CHECK(ry::InputFiles{odd, folder / "b-?.csv"}.expand() == std::vector{odd, first, second});
  CHECK(ry::InputFiles{folder.path() / "none.csv"}.expand() == std::vector{folder / "none.csv"});
}

TEST_CASE("InputFiles: refuses to be no files, and a pattern that matches none") {
  CHECK_THROWS_AS(ry::InputFiles{std::vector<std::string>{}}.expand(), ry::ConfigError);
  CHECK_THROWS_WITH(ry::InputFiles{"/nowhere/*.csv"}.expand(), ContainsSubstring("\"/nowhere/*.csv\""));
}

TEST_CASE("InputFiles: describes itself in a few words") {
  CHECK(ry::InputFiles{"a.csv"}.describe() == "a.csv");
  CHECK(ry::InputFiles{"a.csv", "b.csv", "c.csv"}.describe() == "a.csv and 2 more");
}
