// SPDX-License-Identifier: MIT
#include "railyard/data/csv_source.hpp"

#include "support/catch.hpp"
#include "support/comma_locale.hpp"
#include "support/sanitizers.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

ry::Block read_csv_block(const ry::CsvSource& source, std::uint64_t from = 0) {
  const auto reader = source.open(from);
  ry::Block first = reader->next(1 << 20);
  CHECK(reader->next(1).empty());  // all of these files are small
  return first;
}

std::vector<std::string> texts_of(const ry::Block& block, std::string_view column) {
  std::vector<std::string> texts;
  for (std::size_t row = 0; row < block.rows(); ++row) texts.emplace_back(block.column(column).text(row));
  return texts;
}

template <class T>
std::vector<T> values_of(const ry::Block& block, std::string_view column) {
  const auto values = block.column(column).values<T>();
  return {values.begin(), values.end()};
}

std::string error_of(const ry::CsvSource& source) {
  try {
    for (const auto reader = source.open(0); !reader->next(100).empty();) {
    }
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> read_all_texts(const ry::CsvSource& source, std::uint64_t from, std::string_view column) {
  std::vector<std::string> all;
  const auto reader = source.open(from);
  for (ry::Block block = reader->next(7); !block.empty(); block = reader->next(7)) {
    for (std::size_t row = 0; row < block.rows(); ++row) {
      CHECK(block.ids()[row] == from + all.size());
      all.emplace_back(block.column(column).text(row));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("CsvSource: finds the types of columns from their fields") {
  const TemporaryFolder folder;
  const ry::CsvSource source{folder.write("a.csv",
                                          "i,f,b,t,missing,maybe,none\n"
                                          "1,1.5,true,x,7,true,\n"
                                          "-20,2,False,12a,,,\n")};
  const ry::Schema expected{{"i", ry::Dtype::i64},   {"f", ry::Dtype::f64},       {"b", ry::Dtype::boolean},
                            ry::Field::text("t"),    {"missing", ry::Dtype::f64}, {"maybe", ry::Dtype::f64},
                            {"none", ry::Dtype::f64}};
  CHECK(source.schema() == expected);
  CHECK(source.count() == 2);
  const ry::Block block = read_csv_block(source);
  CHECK(values_of<std::int64_t>(block, "i") == std::vector<std::int64_t>{1, -20});
  CHECK(values_of<double>(block, "f") == std::vector{1.5, 2.0});
  CHECK(values_of<bool>(block, "b") == std::vector{true, false});
  CHECK(texts_of(block, "t") == std::vector<std::string>{"x", "12a"});
  CHECK(values_of<double>(block, "missing").front() == 7.0);
  CHECK(std::isnan(values_of<double>(block, "missing").back()));
  CHECK(values_of<double>(block, "maybe").front() == 1.0);
  CHECK(std::isnan(values_of<double>(block, "none").back()));
}

TEST_CASE("CsvSource: takes quotes, line breaks in them, CRLF, a byte order mark and blank lines as they come") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.csv",
                                 "\xEF\xBB\xBF\"na\"\"me\",\"n\"\r\n\r\n"
                                 "\"a,b\",\"1\"\r\n"
                                 "\"two\nlines\r\n\",2\r\n\n"
                                 "\"\",3\r\n"
                                 "\"say \"\"hi\"\"\",4\r\n"
                                 "last,5");
  const ry::Block block = read_csv_block(ry::CsvSource{path});
  CHECK(texts_of(block, "na\"me") == std::vector<std::string>{"a,b", "two\nlines\r\n", "", "say \"hi\"", "last"});
  CHECK(values_of<std::int64_t>(block, "n") == std::vector<std::int64_t>{1, 2, 3, 4, 5});
  CHECK(ry::CsvSource{path}.count() == 5);
}

TEST_CASE("CsvSource: keeps an empty last field, and a quoted empty line of one column") {
  const TemporaryFolder folder;
  CHECK(texts_of(read_csv_block(ry::CsvSource{folder.write("a.csv", "a,b\nx,\ny,z\n,\n")}), "b") ==
        std::vector<std::string>{"", "z", ""});
  CHECK(texts_of(read_csv_block(ry::CsvSource{folder.write("b.csv", "a\nx\n\"\"\n\ny\n")}), "a") ==
        std::vector<std::string>{"x", "", "y"});
}

TEST_CASE("CsvSource: names file, line and column of what is damaged") {
  const TemporaryFolder folder;
  const auto message = [&](std::string_view text, ry::CsvSourceOptions options = {}) {
    return error_of(ry::CsvSource{folder.write("x.csv", text), std::move(options)});
  };
  CHECK_THAT(message("a,b\n1,2\n\"\n\",2\n3\n"), ContainsSubstring("x.csv:5: ") && ContainsSubstring("\"b\""));
  CHECK_THAT(message("a,b\n1,2\n1,2,3\n"), ContainsSubstring("x.csv:3: ") && ContainsSubstring("3 fields"));
  CHECK_THAT(message("a,b\n1,x\n1,d\"e\n2,\"f\n"), ContainsSubstring("x.csv:3: column \"b\" has a quote"));
  CHECK_THAT(message("a,b\n1,\"x\"y\n"), ContainsSubstring("x.csv:2: column \"b\" has a quote"));
  CHECK_THAT(message("a,b\n1,\"x\n2,3\n"), ContainsSubstring("x.csv:2: ") && ContainsSubstring("never closed"));
  CHECK_THAT(message("a,b\n1,x\n2,\xFFy\n"), ContainsSubstring("x.csv:3: column \"b\" is not UTF-8"));
  CHECK_THAT(message("a\n1\nfoo\n", {.fields = {{"a", ry::Dtype::i64}}}),
             ContainsSubstring("x.csv:3: column \"a\" holds \"foo\", which is no i64"));
  CHECK_THAT(message("a\n1\nNA\n", {.fields = {{"a", ry::Dtype::i64}}}), ContainsSubstring("f64 in .fields"));
  CHECK_THAT(message("a\n1\n300\n", {.fields = {{"a", ry::Dtype::u8}}}), ContainsSubstring("too large for u8"));
  CHECK_THAT(message("a\n1.5\n1e999\n"), ContainsSubstring("x.csv:3: ") && ContainsSubstring("too large for f64"));
  CHECK_THAT(message(std::string_view{"\xFF\xFE"
                                      "a\0\n\0",
                                      6}),
             ContainsSubstring("UTF-16"));
  CHECK_THAT(message("\x1F\x8B\x08"), ContainsSubstring("zlib1g-dev"));
  CHECK_THAT(message(""), ContainsSubstring("is empty"));
  CHECK_THAT(message("a,a\n1,2\n"), ContainsSubstring("two columns are named \"a\""));
  CHECK_THAT(error_of(ry::CsvSource{folder / "nothing.csv"}), ContainsSubstring("No such file"));
  CHECK_THAT(error_of(ry::CsvSource{folder / "*.none"}), ContainsSubstring("no file matches"));
  CHECK_THAT(error_of(ry::CsvSource{folder.path()}), ContainsSubstring("directory"));
}

TEST_CASE("CsvSource: rounds numbers as the standard functions do, whatever the locale") {
  const TemporaryFolder folder;
  std::mt19937_64 random{7};
  std::string text = "f,d\n";
  std::vector<std::string> numbers{"0.1",
                                   "-0.0",
                                   "1e-320",
                                   "9007199254740993",
                                   "3.4028234663852886e38",
                                   "+4",
                                   " 5 ",
                                   "1e-999",
                                   "inf",
                                   "nan",
                                   "123456789012345678901234567890",
                                   ".5",
                                   "5."};
  for (int at = 0; at < 2000; ++at) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%.*e", static_cast<int>(random() % 19),
                  std::ldexp(static_cast<double>(random()), -static_cast<int>(random() % 120)));
    numbers.emplace_back(digits);
    std::snprintf(digits, sizeof digits, "%.*f", static_cast<int>(random() % 19),
                  std::ldexp(static_cast<double>(random()), -static_cast<int>(random() % 80)));
    numbers.emplace_back(digits);
  }
  for (const std::string& number : numbers) text += number + "," + number + "\n";
  const ry::CsvSource source{folder.write("a.csv", text), {.fields = {{"f", ry::Dtype::f32}, {"d", ry::Dtype::f64}}}};
  const ry::Block block = [&] {
    const CommaLocale comma;
#ifdef __GLIBC__
    REQUIRE(comma.is_set());
#else
    if (!comma.is_set()) WARN("not tested with a comma as decimal point: this C library has no such locale");
#endif
    return read_csv_block(source);
  }();
  const auto is_same = [](auto value, auto expected) {
    return std::isnan(expected) ? std::isnan(value)
                                : value == expected && std::signbit(value) == std::signbit(expected);
  };
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    INFO(numbers[row]);
    CHECK(is_same(block.column("d").values<double>()[row], std::strtod(numbers[row].c_str(), nullptr)));
    CHECK(is_same(block.column("f").values<float>()[row], std::strtof(numbers[row].c_str(), nullptr)));
  }
}

TEST_CASE("CsvSource: reads integers up to the ends of their types") {
  const TemporaryFolder folder;
  const ry::CsvSource source{folder.write("a.csv",
                                          "a,b,c,d\n9223372036854775807,-128,255,2147483647\n"
                                          "-9223372036854775808,127,0,-2147483648\n123456789,1,2,+3\n"),
                             {.fields = {{"b", ry::Dtype::i8}, {"c", ry::Dtype::u8}, {"d", ry::Dtype::i32}}}};
  const ry::Block block = read_csv_block(source);
  using Limits = std::numeric_limits<std::int64_t>;
  CHECK(values_of<std::int64_t>(block, "a") == std::vector<std::int64_t>{Limits::max(), Limits::min(), 123456789});
  CHECK(values_of<std::int8_t>(block, "b") == std::vector<std::int8_t>{-128, 127, 1});
  CHECK(values_of<std::uint8_t>(block, "c") == std::vector<std::uint8_t>{255, 0, 2});
  CHECK(values_of<std::int32_t>(block, "d") == std::vector<std::int32_t>{2147483647, -2147483647 - 1, 3});
}

TEST_CASE("CsvSource: reads chosen columns, other delimiters and files without a header") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.tsv", "1\tx\t-9\n2\ty\t8\n");
  const ry::CsvSource plain{path, {.has_header = false, .delimiter = '\t'}};
  CHECK(plain.schema().names() == "\"column_0\", \"column_1\", \"column_2\"");
  const ry::CsvSource named{path,
                            {.label = "n",
                             .columns = {"v", "n"},
                             .names = {"n", "t", "v"},
                             .has_header = false,
                             .delimiter = '\t',
                             .missing = {"-9"}}};
  CHECK(named.label() == "n");
  CHECK(named.schema().names() == "\"v\", \"n\"");
  const ry::Block block = read_csv_block(named);
  CHECK(std::isnan(values_of<double>(block, "v").front()));
  CHECK(values_of<double>(block, "v").back() == 8.0);
  CHECK_THROWS_AS((ry::CsvSource{path, {.label = "none", .has_header = false}}.schema()), ry::ConfigError);
  CHECK_THROWS_AS((ry::CsvSource{path, {.delimiter = '\n'}}.schema()), ry::ConfigError);
  CHECK_THROWS_AS((ry::CsvSource{path, {.floats = ry::Dtype::f16}}.schema()), ry::ConfigError);
  CHECK(texts_of(read_csv_block(ry::CsvSource{folder.write("q.csv", "a,b\n3.5\" disk,x\n"), {.quote = '\0'}}), "a") ==
        std::vector<std::string>{"3.5\" disk"});
}

TEST_CASE("CsvSource: numbers the samples of several files one after another, and finds any of them") {
  const TemporaryFolder folder;
  std::mt19937 random{3};
  std::vector<std::string> expected;
  std::vector<std::string> paths;
  for (int file = 0; file < 4; ++file) {
    std::string text = "id,text\r\n";
    const int rows = file == 2 ? 0 : 700 * file + 3;
    for (int row = 0; row < rows; ++row) {
      std::string value = "v" + std::to_string(expected.size());
      if (random() % 5 == 0) value += std::string(random() % 300, 'x');
      if (random() % 4 == 0) value += ",\"\n";
      expected.push_back(value);
      std::string quoted;
      for (const char c : value) quoted += c == '"' ? std::string{"\"\""} : std::string{c};
      text += std::to_string(row) + ",\"" + quoted + "\"" + (random() % 2 == 0 ? "\r\n" : "\n");
      if (random() % 9 == 0) text += "\n";
    }
    if (file == 1) text.pop_back();  // the last line may lack its end
    paths.push_back(folder.write("part-" + std::to_string(file) + ".csv", text));
  }
  const bool reads_first = GENERATE(false, true);  // the index is made on the way, or by a look at the line ends alone
  const ry::CsvSource source{folder / "part-*.csv"};
  if (reads_first) CHECK(read_all_texts(source, 0, "text") == expected);
  CHECK(source.count() == expected.size());
  CHECK(ry::CsvSource{{paths[3], paths[1]}}.count() == 2103 + 703);
  for (const std::uint64_t from : std::vector<std::uint64_t>{0, 1, 2, 3, 4, 66, 702, 705, 706, 2808}) {
    const auto rest = read_all_texts(source, from, "text");
    CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + static_cast<std::ptrdiff_t>(from), expected.end()));
  }
  CHECK(source.open(expected.size())->next(1).empty());
  CHECK(source.open(expected.size() + 5)->next(1).empty());

  std::vector<std::uint64_t> ids;
  for (int at = 0; at < 3000; ++at) ids.push_back(random() % expected.size());
  const ry::Block block = source.read(ids);
  REQUIRE(block.rows() == ids.size());
  for (std::size_t row = 0; row < ids.size(); ++row) CHECK(block.column("text").text(row) == expected[ids[row]]);
  CHECK(source.read({}).empty());
  const std::uint64_t beyond[] = {expected.size()};
  CHECK_THROWS_AS(source.read(beyond), ry::ConfigError);
}

TEST_CASE("CsvSource: leaves damaged records out as it is told, numbers those that remain, and counts") {
  const TemporaryFolder folder;
  std::string text = "n,t\n";
  std::vector<std::int64_t> good;
  for (std::int64_t row = 0; row < 5000; ++row) {
    if (row % 100 == 50) {
      text += row % 200 == 50 ? "x" + std::to_string(row) + ",y\n" : std::to_string(row) + "\n";
    } else {
      text += std::to_string(row) + ",t\n";
      good.push_back(row);
    }
  }
  const auto path = folder.write("a.csv", text);
  const std::vector<ry::Field> fields{{"n", ry::Dtype::i64}};
  const ry::CsvSource source{path, {.fields = fields, .on_error = ry::OnError::skip()}};
  const bool counts_first = GENERATE(false, true);
  if (counts_first) CHECK(source.count() == good.size());
  std::vector<std::int64_t> seen;
  const auto reader = source.open(0);
  for (ry::Block block = reader->next(100); !block.empty(); block = reader->next(100)) {
    CHECK(block.ids().front() == seen.size());
    for (const std::int64_t value : block.column("n").values<std::int64_t>()) seen.push_back(value);
  }
  CHECK(seen == good);
  CHECK(source.count() == good.size());
  CHECK(source.skipped() == 50);
  for (const std::uint64_t id : std::vector<std::uint64_t>{0, 49, 50, 99, 2500, 4949}) {
    CHECK(source.read(std::vector{id}).column("n").values<std::int64_t>()[0] == good[id]);
    CHECK(source.open(id)->next(1).column("n").values<std::int64_t>()[0] == good[id]);
  }
  CHECK(source.skipped() == 50);

  const ry::CsvSource patient{path, {.fields = fields, .on_error = ry::OnError::at_most(50)}};
  CHECK(patient.count() == good.size());
  const ry::CsvSource strict{path, {.fields = fields, .on_error = ry::OnError::at_most(49)}};
  CHECK_THAT(error_of(strict), ContainsSubstring("a.csv:4952: the record has 1 fields of 2") &&
                                   ContainsSubstring("49 records before it") && ContainsSubstring("49 be left out"));
  const ry::CsvSource counting{path, {.fields = fields, .on_error = ry::OnError::at_most(48)}};
  CHECK_THROWS_WITH(counting.count(), ContainsSubstring("a.csv:4852: column \"n\" holds \"x4850\"") &&
                                          ContainsSubstring("48 records before it"));
}

TEST_CASE("CsvSource: says so when files differ in their columns, or change after they were counted") {
  const TemporaryFolder folder;
  const auto first = folder.write("1.csv", "a,b\n1,2\n");
  const auto second = folder.write("2.csv", "a,c\n1,2\n");
  CHECK_THAT(error_of(ry::CsvSource{{first, second}}), ContainsSubstring("2.csv:1: column 2"));
  const ry::CsvSource source{first};
  CHECK(source.count() == 1);
  folder.write("1.csv", "a,b\n1,2\n3,4\n");
  const std::uint64_t ids[] = {0};
  CHECK_THROWS_WITH(source.read(ids), ContainsSubstring("has changed"));
}

TEST_CASE("CsvSource: reads a million columns and records longer than its pieces, up to the bound") {
  const TemporaryFolder folder;
  const std::size_t num_columns = railyard_test::is_sanitized ? 100'000 : 1'000'000;
  std::string header = "c0";
  std::string row = "0";
  for (std::size_t column = 1; column < num_columns; ++column) {
    header += ",c" + std::to_string(column);
    row += "," + std::to_string(column);
  }
  const auto path = folder.write("wide.csv", header + "\n" + row + "\n" + row + "\n");
  const ry::CsvSource source{path};
  CHECK(source.count() == 2);
  const ry::Block block = source.open(0)->next(5);
  REQUIRE(block.columns().size() == num_columns);
  CHECK(block[num_columns - 1].values<std::int64_t>()[0] == static_cast<std::int64_t>(num_columns - 1));

  const auto open_quote = folder.write("open.csv", "a,b\n1,2\n3,\"" + std::string(3 << 20, 'x'));
  CHECK_THAT(error_of(ry::CsvSource{open_quote, {.max_record_bytes = 1 << 20}}),
             ContainsSubstring("longer than 1048576 bytes"));
}

TEST_CASE("CsvSource: says that lines end with carriage returns alone, in any of its files") {
  const TemporaryFolder folder;
  const auto old = folder.write("old.csv", "a,b\r1,2\r3,4\r");
  for (const bool has_header : {true, false}) {
    CHECK_THROWS_WITH(ry::CsvSource(old, {.has_header = has_header}).schema(),
                      ContainsSubstring("old.csv") && ContainsSubstring("carriage return alone"));
    const ry::CsvSource both{{folder.write("new.csv", "a,b\n1,2\n"), old}, {.has_header = has_header}};
    CHECK_THAT(error_of(both), ContainsSubstring("old.csv") && ContainsSubstring("carriage return alone"));
    CHECK_THROWS_WITH(both.count(), ContainsSubstring("carriage return alone"));
  }
  const std::string long_line(1 << 20, 'x');  // whose end is not in sight when it is looked for
  CHECK(ry::CsvSource{folder.write("long.csv", "a\rb" + long_line + ",c\n1,2\n")}.count() == 1);
  const ry::CsvSource quoted{folder.write("quoted.csv", "\"a\rb\",c"), {.has_header = false}};
  CHECK(texts_of(read_csv_block(quoted), "column_0") == std::vector<std::string>{"a\rb"});
  CHECK(ry::CsvSource{folder.write("one.csv", "a,b\r\n")}.count() == 0);
  CHECK(ry::CsvSource{folder.write("within.csv", "a,b\nx\ry,2\n")}.count() == 1);
}

TEST_CASE("CsvSource: names the file and the option where a column is not there, and what the delimiter may be") {
  const TemporaryFolder folder;
  const auto file = folder.write("a.csv", "x,y\n1,2\n");
  CHECK_THROWS_WITH(ry::CsvSource(file, {.label = "z"}).schema(),
                    ContainsSubstring("a.csv: .label: there is no column \"z\": there are \"x\", \"y\""));
  CHECK_THROWS_WITH(ry::CsvSource(file, {.columns = {"z"}}).schema(),
                    ContainsSubstring("a.csv: .columns: there is no"));
  CHECK_THROWS_WITH(ry::CsvSource(file, {.fields = {ry::Field::text("z")}}).schema(),
                    ContainsSubstring("a.csv: .fields: there is no"));
  CHECK_THROWS_WITH(ry::CsvSource(file, {.label = "y", .columns = {"x"}}).schema(),
                    ContainsSubstring(".columns leaves it out"));
  CHECK_THROWS_WITH(ry::CsvSource(folder.write("s.csv", "x;y\n1;2\n"), {.label = "y"}).schema(),
                    ContainsSubstring("its first line has ';' and no ',': set .delimiter to ';'"));
  CHECK_THROWS_WITH(ry::CsvSource(folder.write("t.tsv", "x\ty\n1\t2\n"), {.label = "y"}).schema(),
                    ContainsSubstring("set .delimiter to '\\t'"));
  CHECK_THAT(error_of(ry::CsvSource{folder.write("d.csv", "x;y\n1;2,5\n")}),
             ContainsSubstring("d.csv:2: the record has 2 fields") && ContainsSubstring(".on_error") &&
                 ContainsSubstring("set .delimiter to ';'"));
  CHECK_THAT(error_of(ry::CsvSource{folder.write("r.csv", "x,y\n1\n")}),
             ContainsSubstring("r.csv:2: the record has 1 fields of 2") && ContainsSubstring(".on_error"));
}
