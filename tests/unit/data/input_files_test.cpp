// SPDX-License-Identifier: MIT
#include "railyard/data/input_files.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/npy_source.hpp"
#include "railyard/data/on_error.hpp"
#include "railyard/data/tar_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

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

TEST_CASE("InputFiles: braces stand for a range of numbers or a list of names, in their order") {
  using Names = std::vector<std::string>;
  const auto of = [](const std::string& path) { return ry::InputFiles{path}.expand(); };
  CHECK(of("x-{008..011}.tar") == Names{"x-008.tar", "x-009.tar", "x-010.tar", "x-011.tar"});
  CHECK(of("x-{9..10}") == Names{"x-9", "x-10"});
  CHECK(of("{a,b}-{1..2}") == Names{"a-1", "a-2", "b-1", "b-2"});
  CHECK(of("{a,b{1..2},}.csv") == Names{"a.csv", "b1.csv", "b2.csv", ".csv"});
  for (const std::string text : {"{}", "{a}", "{a..b}", "{1..}", "a{", "a}", "{1..-2}"}) CHECK(of(text) == Names{text});
  CHECK_THROWS_WITH(of("x-{9..1}"), ContainsSubstring("{9..1} is no range"));
  CHECK_THROWS_WITH(of("x-{0..99999999}"), ContainsSubstring("at most 1000000"));
  CHECK_THROWS_WITH(of("{0..9999}{0..9999}"), ContainsSubstring("are more than 1000000"));

  const TemporaryFolder folder;
  const auto odd = folder.write("{1..2}.csv", "");
  const auto first = folder.write("a-1.csv", "");
  const auto second = folder.write("b-1.csv", "");
  CHECK(of(odd) == Names{odd});
  CHECK(of(folder / "{b,a}-*.csv") == Names{second, first});
}

TEST_CASE("InputFiles: refuses to be no files, and a pattern that matches none") {
  CHECK_THROWS_AS(ry::InputFiles{std::vector<std::string>{}}.expand(), ry::ConfigError);
  CHECK_THROWS_WITH(ry::InputFiles{"/nowhere/*.csv"}.expand(), ContainsSubstring("\"/nowhere/*.csv\""));
}

TEST_CASE(
    "InputFiles: a name that is no file is an error, whatever damage may be left out, and nobody waits for a pipe") {
  const TemporaryFolder folder;
  const auto rows = folder.write("rows.csv", "a\n1\n");
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const auto& [name, why] :
       {std::pair{folder / "none", "No such file"}, std::pair{folder.path().string(), "Is a directory"},
        std::pair{pipe, "it is a pipe, a socket or a device"}}) {
    INFO(name);
    CHECK_THROWS_WITH(ry::detail::FileBytes{name}, ContainsSubstring(why));
    const ry::InputFiles files{rows, name};
    CHECK_THROWS_WITH(files.expand_files(), ContainsSubstring(name) && ContainsSubstring(why));
    const ry::CsvSource table{files, {.on_error = ry::OnError::skip()}};
    CHECK_THROWS_WITH(table.schema(), ContainsSubstring(why));
    const ry::NpySource arrays{{{"x", files}}, {.on_error = ry::OnError::skip()}};
    CHECK_THROWS_WITH(arrays.schema(), ContainsSubstring(why));
    const ry::TarSource shards{files, {.on_error = ry::OnError::skip()}};
    CHECK_THROWS_WITH(shards.schema(), ContainsSubstring(why));
  }
}

TEST_CASE("InputFiles: where none can be read, the error of the last says that it was") {
  const TemporaryFolder folder;
  const ry::InputFiles junk{folder.write("a", "junk"), folder.write("b", "junk")};
  const ry::NpySource arrays{{{"x", junk}}, {.on_error = ry::OnError::skip()}};
  CHECK_THROWS_WITH(arrays.schema(), ContainsSubstring("That was the last of 2 files, none of which can be read"));
  const ry::TarSource shards{junk, {.on_error = ry::OnError::skip()}};
  CHECK_THROWS_WITH(shards.schema(), ContainsSubstring("None of the 2 archives tells what they hold"));
}

TEST_CASE("InputFiles: describes itself in a few words") {
  CHECK(ry::InputFiles{"a.csv"}.describe() == "a.csv");
  CHECK(ry::InputFiles{"a.csv", "b.csv", "c.csv"}.describe() == "a.csv and 2 more");
}
