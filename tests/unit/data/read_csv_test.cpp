// SPDX-License-Identifier: MIT
#include "railyard/data/read_csv.hpp"

#include "support/catch.hpp"

#include <unistd.h>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// A file that is there as long as the object.
class File {
 public:
  explicit File(std::string_view text)
      : path_(std::filesystem::temp_directory_path() / fmt::format("railyard_csv_{}.csv", getpid())) {
    std::ofstream{path_, std::ios::binary} << text;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

ry::Table read(std::string_view text, const std::string& label = "y") {
  const File file{text};
  return ry::read_csv(file.path(), {.label = label});
}

}  // namespace

TEST_CASE("read_csv: reads numbers and labels, wherever the label's column stands") {
  const ry::Table table = read("a,y,b\n1,7,2.5\n-3e2, 8 ,+4\n");
  CHECK(table.columns() == std::vector<std::string>{"a", "b"});
  REQUIRE(table.num_rows() == 2);
  CHECK(table.row(0)[1] == 2.5F);
  CHECK(table.row(1)[0] == -300.0F);
  CHECK(table.row(1)[1] == 4.0F);
  CHECK(table.label_of(1) == 8);
}

TEST_CASE("read_csv: takes quotes, CRLF, a byte order mark, blank lines and a missing last line feed") {
  const ry::Table table = read("\xEF\xBB\xBF\"a, \"\"b\"\"\r\nc\",y\r\n\r\n\"1\",\"2\"\r\n3,4");
  CHECK(table.columns() == std::vector<std::string>{"a, \"b\"\r\nc"});
  REQUIRE(table.num_rows() == 2);
  CHECK(table.row(1)[0] == 3.0F);
}

TEST_CASE("read_csv: names file, line and column of what is no number") {
  CHECK_THROWS_WITH(read("a,y\n1,2\n\nx1,3\n"),
                    ContainsSubstring(".csv:4: ") && ContainsSubstring("column \"a\"") && ContainsSubstring("\"x1\""));
  CHECK_THROWS_WITH(read("\"a\nb\",y\n1,2\n,3\n"), ContainsSubstring(".csv:4: "));  // the header spans two lines
  CHECK_THROWS_WITH(read("a,y\n1,2.5\n"), ContainsSubstring("no integer") && ContainsSubstring("\"2.5\""));
  CHECK_THROWS_WITH(read("a,y\n1 2,2\n"), ContainsSubstring("\"1 2\""));
  CHECK_THROWS_AS(read("a,y\n1e99,2\n"), ry::DataError);
}

TEST_CASE("read_csv: takes numbers too small for a float as zero or the nearest, and refuses those too large") {
  const std::string zeros(400, '0');
  const ry::Table table = read("a,b,c,d,e,y\n1e-40,1e-50,-1e-400, 1E-99999999999999999999 ,0." + zeros + "1,2\n");
  CHECK(table.row(0)[0] == 1e-40F);
  for (std::size_t column = 1; column < 5; ++column) CHECK(table.row(0)[column] == 0.0F);
  for (const std::string& huge : std::vector<std::string>{"1e400", "-1e40", "1e99999999999999999999", "1" + zeros}) {
    CHECK_THROWS_WITH(read("a,y\n" + huge + ",2\n"), ContainsSubstring("column \"a\""));
  }
}

TEST_CASE("read_csv: shows control characters and long fields in a message so that they can be read") {
  CHECK_THROWS_WITH(read(std::string_view("a,y\n1\0z,3\n", 10)),
                    ContainsSubstring("\"1\\x00z\"") && ContainsSubstring("no number"));
  CHECK_THROWS_WITH(read("a,y\n" + std::string(5000, 'x') + ",3\n"),
                    ContainsSubstring("xxx... (5000 characters)\"") && !ContainsSubstring(std::string(61, 'x')));
}

TEST_CASE("read_csv: refuses what RFC 4180 does not allow") {
  CHECK_THROWS_WITH(read("a,y\n1\n"), ContainsSubstring(":2: the record has 1 fields, the header 2"));
  CHECK_THROWS_WITH(read("a,y\n1,2,3\n"), ContainsSubstring("3 fields"));
  CHECK_THROWS_WITH(read("a,y\n\"1,2\n"), ContainsSubstring("never closed"));
  CHECK_THROWS_WITH(read("a,y\n\"1\"x,2\n"), ContainsSubstring("closing quote"));
  CHECK_THROWS_WITH(read("a,y\n1\"x,2\n"), ContainsSubstring("quote in its middle"));
  CHECK_THROWS_WITH(read("a,a,y\n1,2,3\n"), ContainsSubstring("\"a\" twice"));
  CHECK_THROWS_WITH(read("\xFF\xFE"
                         "a"),
                    ContainsSubstring("UTF-16"));
}

TEST_CASE("read_csv: says what a file lacks") {
  CHECK_THROWS_WITH(read(""), ContainsSubstring("is empty"));
  CHECK_THROWS_WITH(read("a,y\n"), ContainsSubstring("no records"));
  CHECK_THROWS_WITH(read("y\n1\n"), ContainsSubstring("beside the label's"));
}

TEST_CASE("read_csv: lists the columns when the label is not among them") {
  CHECK_THROWS_WITH(read("a,b\n1,2\n", "digit"),
                    ContainsSubstring("no column \"digit\"") && ContainsSubstring("\"a\", \"b\""));
  const File file{"a,y\n1,2\n"};
  CHECK_THROWS_AS(ry::read_csv(file.path(), {}), ry::ConfigError);
}

TEST_CASE("read_csv: names path and working directory of a missing file") {
  CHECK_THROWS_WITH(ry::read_csv("no/such.csv", {.label = "y"}),
                    ContainsSubstring("no/such.csv") && ContainsSubstring(std::filesystem::current_path().string()) &&
                        ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(ry::read_csv("/tmp", {.label = "y"}), ContainsSubstring("directory"));
  CHECK_THROWS_AS(ry::read_csv("/tmp", {.label = "y"}), ry::DataError);
}

TEST_CASE("read_csv: names the file whose reading fails") {
  try {
    static_cast<void>(ry::read_csv("/proc/self/mem", {.label = "y"}));
    FAIL("nothing was thrown");
  } catch (const ry::DataError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("/proc/self/mem"));
  }
}
