// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/detail/names.hpp"

#include "support/catch.hpp"

#include <string>

namespace ry = railyard;

TEST_CASE("Names of a checkpoint's files: cannot lead out of its directory") {
  using ry::detail::fault_of_path;
  for (const std::string name :
       {"manifest.json", "net.safetensors", "files/vocabulary.txt", "files/a/b/c", "files/..a/.b"}) {
    INFO(name);
    CHECK(fault_of_path(name).empty());
  }
  for (const std::string& name :
       {std::string{}, std::string{"/etc/passwd"}, std::string{".."}, std::string{"../x"}, std::string{"a/b"},
        std::string{"files/"}, std::string{"files/../../x"}, std::string{"files//x"}, std::string{"files/x/"},
        std::string{"files/./x"}, std::string{"a\nb"}, std::string{"a\0b", 3}, std::string{"\xFF"},
        std::string(201, 'a'), "files" + std::string(1000, '/') + "x"}) {
    INFO(name);
    CHECK(!fault_of_path(name).empty());
  }
}

TEST_CASE("Names of parts: cannot be taken for the file of a rank") {
  CHECK(ry::detail::fault_of_part("net").empty());
  CHECK(!ry::detail::fault_of_part("net.rank-0").empty());
  CHECK(!ry::detail::fault_of_part("files/net").empty());
}

TEST_CASE("number_between: takes digits and nothing else") {
  using ry::detail::number_between;
  CHECK(number_between<int>("state.rank-", "state.rank-12.json", ".json") == 12);
  CHECK(number_between<int>("checkpoint-", "checkpoint-000007", "") == 7);
  for (const auto* name :
       {"checkpoint-", "checkpoint--1", "checkpoint-+1", "checkpoint-1x", "checkpoint-99999999999"}) {
    INFO(name);
    CHECK(!number_between<int>("checkpoint-", name, ""));
  }
  CHECK(!number_between<int>("aba", "aba", "ba"));
}
