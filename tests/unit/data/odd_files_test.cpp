// SPDX-License-Identifier: MIT
// Files of records that are unusual but sound, or wrong in ways that are easily taken for sound.
#include "railyard/data/record_source.hpp"

#include "railyard/core/version.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/text_lines_source.hpp"
#if RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"
#endif

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#if RAILYARD_WITH_ZLIB
#include "unit/data/deflate.hpp"

#include <zlib.h>
#endif

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ry = railyard;

namespace {

std::vector<std::string> texts_of(const ry::Dataset& dataset, std::size_t batch = 10) {
  std::vector<std::string> texts;
  ry::EpochReader reader{dataset, {.global_batch_size = batch, .threads = 1}};
  while (const auto step = reader.next()) {
    for (std::size_t row = 0; row < step->samples; ++row) texts.emplace_back(step->block[0].text(row));
  }
  return texts;
}

#if RAILYARD_WITH_ZLIB
std::string gzip_of_text(std::string_view text) { return deflated(text, 16 + MAX_WBITS); }
#endif

template <class Source>
std::string error_of_reading(const Source& source) {
  try {
    const auto reader = source.open(0);
    while (!reader->next(100).empty()) continue;
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "none";
}

template <class Source>
std::string error_of_picking(const Source& source, const std::vector<std::uint64_t>& ids) {
  try {
    (void)source.read(ids);
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("CsvSource: names the line of damage among records that are read by their numbers") {
  const TemporaryFolder folder;
  for (const std::size_t damaged : {0U, 12U, 13U, 150U, 199U}) {
    std::string csv = "a\n";
    std::string json;
    for (std::size_t row = 0; row < 200; ++row) {
      const std::string value = row == damaged ? "x" : row % 2 == 0 ? "100000" : "1";
      csv += value + "\n";
      json += "{\"a\": " + value + "}\n";
    }
    const ry::CsvSource rows{folder.write("rows.csv", csv), {.fields = {{"a", ry::Dtype::i64}}}};
    const ry::JsonLinesSource lines{folder.write("lines.jsonl", json), {.fields = {{"a", ry::Dtype::i64}}}};
    std::vector<std::uint64_t> ids;
    for (std::uint64_t id = damaged / 10 * 10; id < damaged / 10 * 10 + 10; ++id) ids.push_back(id);
    CHECK_THAT(error_of_picking(rows, ids), ContainsSubstring("rows.csv:" + std::to_string(damaged + 2) + ": "));
    CHECK_THAT(error_of_picking(lines, ids), ContainsSubstring("lines.jsonl:" + std::to_string(damaged + 1) + ": "));
  }
}

TEST_CASE("CsvSource: says what is wrong with a header, and what kind of file is no CSV") {
  const TemporaryFolder folder;
  const auto error_of = [&](std::string_view text, ry::OnError policy = ry::OnError::stop()) {
    const ry::CsvSource source{folder.write("h.csv", text), {.on_error = policy}};
    try {
      (void)source.schema();
      return error_of_reading(source);
    } catch (const ry::DataError& error) {
      return std::string{error.what()};
    }
  };
  for (const auto& policy : {ry::OnError::stop(), ry::OnError::skip()}) {
    CHECK_THAT(error_of("a,\"b\n1,2\n3,4\n", policy),
               ContainsSubstring("h.csv:1: ") && ContainsSubstring("never closed"));
    CHECK_THAT(error_of("a,b\"x\n1,2\n", policy), ContainsSubstring("h.csv:1: ") && ContainsSubstring("quote"));
    CHECK_THAT(error_of("\"a\"x,b\n1,2\n", policy), ContainsSubstring("h.csv:1: ") && ContainsSubstring("quote"));
    CHECK_THAT(error_of("a,gr\xF6\xDF"
                        "e\n1,2\n",
                        policy),
               ContainsSubstring("h.csv:1: ") && ContainsSubstring("UTF-8"));
    CHECK_THAT(error_of(std::string_view{"PK\x03\x04\x14\0\x06\0", 8}, policy), ContainsSubstring("zip"));
    CHECK_THAT(error_of(std::string_view{"PAR1\x15\x04\x15\x20", 8}, policy), ContainsSubstring("Parquet"));
    CHECK_THAT(error_of(std::string_view{"a\0,\0b\0\n\0001\0,\0002\0\n\0", 16}, policy), ContainsSubstring("UTF-16"));
    CHECK_THAT(error_of(std::string_view{"\0a\0,\0b\0\n\0001\0,\0002\0\n", 16}, policy), ContainsSubstring("UTF-16"));
  }
  CHECK(error_of("\"a\"\"x\",\"b\nc\"\n1,2\n") == "none");
  CHECK(error_of("PAR1\n1\n") == "none");
  const ry::CsvSource as_is{folder.write("q.csv", "a,b\"x\n1,2\n"), {.quote = '\0'}};
  CHECK(as_is.schema().names() == "\"a\", \"b\"x\"");
  const auto sound = folder.write("0.csv", "a,b\n1,2\n");
  const auto wrong = folder.write("1.csv", "a,\"b\n1,2\n");
  CHECK_THAT(error_of_reading(ry::CsvSource{{sound, wrong}}),
             ContainsSubstring("1.csv:1: ") && ContainsSubstring("never closed"));
}

TEST_CASE("RecordSource: learns the columns from the first file that has records") {
  const TemporaryFolder folder;
  const auto e0 = folder.write("e0.csv", "a,t\n");
  const auto e1 = folder.write("e1.csv", "a,t\n1,x\n");
  const auto none = folder.write("none", "");
  for (const auto& policy : {ry::OnError::stop(), ry::OnError::skip()}) {
    for (const auto& files : {std::vector{e0, e1}, std::vector{none, e1}, std::vector{none, e0, e1, none}}) {
      const ry::CsvSource source{files, {.on_error = policy}};
      CHECK(source.schema() == ry::Schema{{"a", ry::Dtype::i64}, ry::Field::text("t")});
      CHECK(source.count() == 1);
      CHECK(error_of_reading(source) == "none");
    }
    const ry::JsonLinesSource lines{{none, folder.write("e1.jsonl", "{\"a\": 1}\n")}, {.on_error = policy}};
    CHECK(lines.schema() == ry::Schema{{"a", ry::Dtype::i64}});
    CHECK(lines.count() == 1);
  }
  CHECK(ry::CsvSource{{e0, e0}}.schema().names() == "\"a\", \"t\"");
  CHECK_THROWS_WITH((ry::CsvSource{{none, none}}.schema()), ContainsSubstring("none is empty"));
  CHECK_THROWS_WITH((ry::JsonLinesSource{{none, none}}.schema()), ContainsSubstring("no JSON object"));
  CHECK_THROWS_WITH((ry::CsvSource{{folder.write("other.csv", "a,u\n"), e1}}.open(0)->next(1)),
                    ContainsSubstring("column 2 of the header"));
  CHECK(ry::CsvSource{{none, folder.write("bare", "7,8\n")}, {.has_header = false}}.count() == 1);
#if RAILYARD_WITH_ZLIB
  const ry::CsvStream stream{
      ry::gzip({folder.write("e0.gz", gzip_of_text("a,t\n")), folder.write("e1.gz", gzip_of_text("a,t\n1,x\n"))})};
  CHECK(stream.schema() == ry::Schema{{"a", ry::Dtype::i64}, ry::Field::text("t")});
  CHECK(error_of_reading(stream) == "none");
#endif
}

TEST_CASE("RecordSource: holds to the longest record that is allowed, to a byte, however it is read") {
  const TemporaryFolder folder;
  constexpr std::size_t most = 50'000;
  for (const std::size_t size :
       {most, most + 1, 2 * most + 1, std::size_t{110'000}, std::size_t{150'000}, std::size_t{300'000}}) {
    for (const std::size_t before : {0U, 2U, 70U}) {
      std::string text;
      std::vector<std::string> kept;
      for (std::size_t line = 0; line < before; ++line) kept.push_back("before " + std::to_string(line));
      if (size <= most) kept.emplace_back(size, 'x');
      for (std::size_t line = 0; line < 70; ++line) kept.push_back("after " + std::to_string(line));
      for (const std::string& line : kept) {
        if (line == "after 0" && size > most) text += std::string(size, 'x') + "\n";
        text += line + "\n";
      }
      CAPTURE(size, before);
      const auto path = folder.write("t.txt", text);
      const ry::TextLinesSource skipped{path, {.max_record_bytes = most, .on_error = ry::OnError::skip()}};
      CHECK(skipped.count() == kept.size());
      CHECK(texts_of(ry::Dataset{skipped}) == kept);
      CHECK(texts_of(ry::Dataset{ry::TextLinesSource{path, {.max_record_bytes = most, .on_error = ry::OnError::skip()}}}
                         .filter([](const ry::Sample&) { return true; })) == kept);
      CHECK(skipped.skipped() == (size > most ? 1 : 0));
      CHECK(skipped.skipped_parts().size() == skipped.skipped());
      const ry::TextLinesSource strict{path, {.max_record_bytes = most}};
      const std::string fault = size > most ? "longer than 50000 bytes" : "none";
      CHECK_THAT(error_of_reading(strict), ContainsSubstring(fault));
      CHECK_THAT(error_of_picking(strict, {before}), ContainsSubstring(fault));
      CHECK(error_of_picking(strict, {before + 1}) == "none");
      std::string csv = "t\n" + text;
      const ry::CsvSource rows{folder.write("t.csv", csv), {.max_record_bytes = most, .on_error = ry::OnError::skip()}};
      CHECK(rows.count() == kept.size());
      CHECK(texts_of(ry::Dataset{rows}) == kept);
#if RAILYARD_WITH_ZLIB
      const auto packed = folder.write("t.gz", gzip_of_text(text));
      const ry::TextLinesStream stream{ry::gzip(packed), {.max_record_bytes = most, .on_error = ry::OnError::skip()}};
      CHECK(texts_of(ry::Dataset{stream}) == kept);
      CHECK(stream.skipped() == (size > most ? 1 : 0));
      CHECK(stream.skipped_parts().size() == stream.skipped());
#endif
    }
  }
}

TEST_CASE("JsonLinesSource: says what is wrong where none of the first lines is an object") {
  const TemporaryFolder folder;
  for (const auto& policy : {ry::OnError::stop(), ry::OnError::skip()}) {
    const ry::JsonLinesSource source{folder.write("d.jsonl", "\n{\"a\": 1,}\n[1]\n"), {.on_error = policy}};
    CHECK_THROWS_WITH(source.schema(), ContainsSubstring("d.jsonl:2: ") && ContainsSubstring("no JSON object") &&
                                           ContainsSubstring("byte "));
  }
}
