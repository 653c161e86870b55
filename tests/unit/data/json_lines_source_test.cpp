// SPDX-License-Identifier: MIT
#include "railyard/data/json_lines_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

ry::Block read_json(const ry::JsonLinesSource& source) { return source.open(0)->next(1 << 20); }

std::string error_of_json(const std::string& path, ry::JsonLinesSourceOptions options = {}) {
  try {
    (void)read_json(ry::JsonLinesSource{path, std::move(options)});
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("JsonLinesSource: makes columns of keys, their types from the first lines") {
  const TemporaryFolder folder;
  const ry::JsonLinesSource source{folder.write("a.jsonl",
                                                R"({"i": 1, "f": 2, "b": true, "t": "x", "v": [1, 2.5], "n": [3]})"
                                                "\r\n\n"
                                                R"({"f":-1.5e1,"i":-7,"b":false,"t":null,"v":[],"m":4})")};
  const ry::Schema expected{{"i", ry::Dtype::i64}, {"f", ry::Dtype::f64},       {"b", ry::Dtype::boolean},
                            ry::Field::text("t"),  {"v", ry::Dtype::f64, {-1}}, {"n", ry::Dtype::i64, {-1}},
                            {"m", ry::Dtype::f64}};
  CHECK(source.schema() == expected);
  CHECK(source.count() == 2);
  const ry::Block block = read_json(source);
  REQUIRE(block.rows() == 2);
  CHECK(block.column("i").values<std::int64_t>()[1] == -7);
  CHECK(block.column("f").values<double>()[1] == -15.0);
  CHECK(block.column("b").values<bool>()[0]);
  CHECK(block.column("t").text(1).empty());
  CHECK(block.column("v").values<double>(0)[1] == 2.5);
  CHECK(block.column("v").values<double>(1).empty());
  CHECK(block.column("n").values<std::int64_t>(0)[0] == 3);
  CHECK(std::isnan(block.column("m").values<double>()[0]));
}

TEST_CASE("JsonLinesSource: reads escapes, and characters beyond 65535 from their halves") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.jsonl", R"({"a\u0062": "\"\\\/\b\f\n\r\t\u00e9\u20AC\ud83d\uDE00é"})");
  CHECK(read_json(ry::JsonLinesSource{path}).column("ab").text(0) ==
        "\"\\/\b\f\n\r\t\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9");
}

TEST_CASE("JsonLinesSource: flattens nested objects and reads fixed shapes and chosen columns where it is told to") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.jsonl", R"({"a": {"b": 1, "c": {"d": "x"}}, "p": [1, 0, 255], "z": {}})");
  const ry::JsonLinesSource source{
      path, {.label = "a/b", .fields = {{"p", ry::Dtype::u8, {3}}, {"q", ry::Dtype::f32, {2}}}, .flatten = true}};
  CHECK(source.schema().names() == "\"a/b\", \"a/c/d\", \"p\", \"q\"");
  const ry::Block block = read_json(source);
  CHECK(block.column("p").values<std::uint8_t>()[2] == 255);
  CHECK(std::isnan(block.column("q").values<float>()[1]));
  CHECK(read_json(ry::JsonLinesSource{path, {.columns = {"p"}}}).columns().size() == 1);
}

TEST_CASE("JsonLinesSource: names file, line and byte of what is damaged") {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& line, ry::JsonLinesSourceOptions options = {}) {
    return error_of_json(folder.write("x.jsonl", "{\"a\": 1, \"t\": \"\", \"v\": [1]}\n" + line + "\n"),
                         std::move(options));
  };
  const std::vector<std::pair<std::string, std::string>> damaged{
      {"7", "must be an object"},
      {"{\"a\": 1", "\"}\" is missing"},
      {"{\"a\": 1} x", "more text"},
      {"{\"a\": 1,}", "is missing"},
      {"{\"a\": 01}", "is missing"},
      {"{\"a\": 1.}", "ends with its point"},
      {"{\"a\": 1e}", "no exponent"},
      {"{\"a\": tru}", "no value"},
      {"{\"a\": }", "no value"},
      {"{\"a\": {\"b\": 1}}", ".flatten"},
      {"{\"a\": \"x\"}", "column \"a\" is f64"},
      {"{\"a\": 1e999}", "too large for f64"},
      {"{\"a\": 1, \"a\": 2}", "twice"},
      {"{\"t\": 1}", "column \"t\" is text"},
      {"{\"t\": \"\\x\"}", "an escape"},
      {"{\"t\": \"\\ud800\"}", "surrogate"},
      {"{\"t\": \"\\udc00\\ud800\"}", "surrogate"},
      {"{\"t\": \"\\u12g4\"}", "hexadecimal"},
      {"{\"t\": \"a\tb\"}", "control character"},
      {"{\"t\": \"a", "does not end"},
      {"{\"t\": \"\xC0\x80\"}", "UTF-8"},
      {"{\"v\": [[1]]}", "array of"},
      {"{\"v\": [1.5]}", "no i64"},
  };
  const std::vector<ry::Field> fields{{"a", ry::Dtype::f64}, ry::Field::text("t"), {"v", ry::Dtype::i64, {-1}}};
  for (const auto& [line, what] : damaged) {
    INFO(line);
    CHECK_THAT(message(line, {.fields = fields}), ContainsSubstring("x.jsonl:2: ") && ContainsSubstring(what));
  }
  CHECK_THAT(message("{\"a\": 1, \"new\": 2}", {.inference_rows = 1}), ContainsSubstring(".ignore_unknown"));
  CHECK(message("{\"a\": 1, \"new\": 2}", {.ignore_unknown = true, .inference_rows = 1}) == "no error");
  CHECK_THAT(message("{\"t\": \"x\"}", {.fields = {{"a", ry::Dtype::i64}}}), ContainsSubstring("\"a\" is missing"));
  const std::string deep(100'000, '[');
  CHECK_THAT(message("{\"u\": " + deep, {.ignore_unknown = true, .inference_rows = 1}), ContainsSubstring("64 deep"));
  CHECK_THAT(error_of_json(folder.write("e.jsonl", "\n\n")), ContainsSubstring("no JSON object"));
}

TEST_CASE("JsonLinesSource: leaves damaged lines out and gives the others in any order") {
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 1000; ++line) text += line % 10 == 3 ? "{\n" : "{\"n\": " + std::to_string(line) + "}\n";
  const ry::JsonLinesSource source{folder.write("a.jsonl", text), {.on_error = ry::OnError::skip()}};
  CHECK(source.count() == 900);
  CHECK(source.skipped() == 100);
  const std::uint64_t ids[] = {899, 0, 3, 450};
  const ry::Block block = source.read(ids);
  const auto numbers = block.column("n").values<std::int64_t>();
  CHECK(std::vector<std::int64_t>(numbers.begin(), numbers.end()) == std::vector<std::int64_t>{999, 0, 4, 500});
}

TEST_CASE("JsonLinesSource: says what it has met in place of a column's type, and which option names no column") {
  const TemporaryFolder folder;
  const auto tags = folder.write("tags.jsonl", R"({"a": 1, "tags": ["x", "y"]})");
  CHECK_THAT(error_of_json(tags), ContainsSubstring("tags.jsonl:1") &&
                                      ContainsSubstring("\"tags\" is an array of f64") &&
                                      ContainsSubstring("this is a text: arrays of text make no column"));
  CHECK(error_of_json(tags, {.columns = {"a"}}) == "no error");
  CHECK_THAT(error_of_json(folder.write("o.jsonl", "{\"a\": 1}\n{\"a\": {\"b\": 2}}\n")),
             ContainsSubstring("o.jsonl:2") && ContainsSubstring("this is an object: set .flatten"));
  CHECK_THROWS_WITH(ry::JsonLinesSource(tags, {.label = "z"}).schema(),
                    ContainsSubstring("tags.jsonl: .label: there is no column \"z\""));
  CHECK_THROWS_WITH(ry::JsonLinesSource(tags, {.columns = {"z"}}).schema(),
                    ContainsSubstring("tags.jsonl: .columns: there is no column \"z\""));
}
