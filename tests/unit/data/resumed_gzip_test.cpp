// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/on_error.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/deflate.hpp"
#include "unit/data/resumed.hpp"
#include "unit/data/tar_files.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ry = railyard;
using railyard_test::fewer;
using ry::detail::GzipStream;

namespace {

// What is read again at most: between two windows, a block of zlib's, and what readers have in their buffers.
constexpr std::uint64_t most_read_again = (std::uint64_t{4} << 20U) + (std::uint64_t{1} << 20U);

std::string member_of(std::string_view content) { return deflated(content, 16 + MAX_WBITS, 1); }

std::string members_of(std::string_view content, std::size_t each) {
  std::string bytes;
  for (; !content.empty(); content.remove_prefix(std::min(each, content.size()))) {
    bytes += member_of(content.substr(0, each));
  }
  return bytes;
}

// Lines of about 12 bytes, so many MiB.
std::string made_lines(std::size_t mebibytes, const std::function<std::string(int row)>& line) {
  std::string text;
  for (int row = 0; text.size() < mebibytes << 20U; ++row) text += line(row);
  return text;
}
std::string row_of(int row) { return std::to_string(row) + "," + std::to_string(row * 7919LL % 100'003) + "\n"; }

// Reads to a sample and returns where that is, as if it had been saved.
template <class Source>
ry::ReaderPlace place_at(const Source& source, std::uint64_t sample) {
  const auto reader = source.open(0);
  std::uint64_t next = 0;
  while (next < sample) next += reader->next(static_cast<std::size_t>(sample - next)).rows();
  return reader->place();
}

std::string error_from(const ry::TextLinesStream& source, std::uint64_t from, const ry::ReaderPlace& place) {
  try {
    const auto reader = source.open(from, place);
    while (!reader->next(10'000).empty()) {
    }
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("gzip: a run that is killed goes on in the middle of a member, and reads a bounded part of it again") {
  const TemporaryFolder folder;
  folder.write("a.csv.gz", member_of("id,x\n" + made_lines(9, row_of)));
  folder.write("b.csv.gz", member_of("id,x\n" + made_lines(1, row_of)));
  const auto csv = [&] { return ry::Dataset{ry::CsvStream{resumed::counted<GzipStream>(folder / "*.csv.gz")}}; };
  CHECK(resumed::most_work_to_go_on(csv, fewer(6U), 1) < most_read_again);

  folder.write("a.jsonl.gz", member_of(made_lines(6, [](int row) {
                 return "{\"id\": " + std::to_string(row) + ", \"t\": \"" +
                        std::string(static_cast<std::size_t>(row % 50), 'x') + "\"}\n";
               })));
  const auto json = [&] {
    return ry::Dataset{ry::JsonLinesStream{resumed::counted<GzipStream>(folder / "a.jsonl.gz")}};
  };
  CHECK(resumed::most_work_to_go_on(json, fewer(4U), 2) < most_read_again);
}

TEST_CASE("gzip: a run that is killed goes on in files of members, few or many") {
  const TemporaryFolder folder;
  const std::string text = made_lines(6, row_of);
  const std::string rest = text.substr(text.size() / 20 * 17);
  folder.write("few.gz", member_of(text.substr(0, 100)) + member_of(text.substr(100, text.size() / 20 * 17 - 100)) +
                             member_of("") + member_of(rest) + std::string(700, '\0'));
  folder.write("many.gz", members_of(text, 60'000));
  for (const auto& [name, most] :
       {std::pair{"few.gz", most_read_again}, std::pair{"many.gz", std::uint64_t{1} << 20U}}) {
    const auto lines = [&, file = name] {
      return ry::Dataset{ry::TextLinesStream{resumed::counted<GzipStream>(folder / file)}};
    };
    CAPTURE(name);
    CHECK(resumed::most_work_to_go_on(lines, fewer(5U), 3) < most);
  }
}

TEST_CASE("gzip: a run that is killed goes on in an archive") {
  const TemporaryFolder folder;
  std::mt19937 random{5};
  std::string bytes;
  for (int sample = 0; sample < 1400; ++sample) {
    std::string content(4000, '\0');
    for (char& c : content) c = static_cast<char>('a' + random() % 30);
    const std::string name = std::to_string(sample);
    if (sample % 50 == 3) bytes += tar_files::tar_file("folder.only/", "", '5');
    if (sample % 100 == 7) bytes += tar_files::tar_file("././@LongLink", std::string(120, 'n') + name + ".bin", 'L');
    bytes += tar_files::tar_file(name + ".bin", content);
    if (sample % 100 == 7) bytes += tar_files::tar_file("././@LongLink", std::string(120, 'n') + name + ".txt", 'L');
    bytes += tar_files::tar_file(name + ".txt", sample % 400 == 9 ? "\xFF" : std::to_string(sample));
  }
  folder.write("a.tar.gz", member_of(bytes + std::string(1024, '\0')));
  const ry::TarSourceOptions options{.bytes = {"bin"}, .text = {"txt"}, .on_error = ry::OnError::at_most(4)};
  const auto tar = [&] {
    return ry::Dataset{ry::TarStream{resumed::counted<GzipStream>(folder / "a.tar.gz"), options}};
  };
  CHECK(resumed::most_work_to_go_on(tar, fewer(6U), 4, {.global_batch_size = 16, .bound_bytes = 1U << 20U}) <
        most_read_again);
}

TEST_CASE("gzip: damaged records before the place count for a run that goes on") {
  const TemporaryFolder folder;
  const auto line = [](int row) { return row % 100'000 == 50'000 ? "x,bad\n" : row_of(row); };
  const std::string text = made_lines(8, line);
  folder.write("a.csv.gz", member_of("id,x\n" + text));
  std::uint64_t damaged = 0;
  for (std::size_t at = text.find("bad"); at != std::string::npos; at = text.find("bad", at + 1)) ++damaged;
  REQUIRE(damaged >= 5);
  const auto csv = [&](std::uint64_t most) {
    return ry::CsvStream{
        resumed::counted<GzipStream>(folder / "a.csv.gz"),
        {.fields = {{"id", ry::Dtype::i64}, {"x", ry::Dtype::i64}}, .on_error = ry::OnError::at_most(most)}};
  };
  CHECK(resumed::most_work_to_go_on([&] { return ry::Dataset{csv(damaged)}; }, fewer(4U), 6) < most_read_again);
  const ry::ReaderPlace place = place_at(csv(damaged), 480'000);
  REQUIRE(place.state.has_value());
  const auto last = csv(damaged - 1);
  CHECK_THROWS_WITH(
      [&] {
        const auto reader = last.open(480'000, place);
        while (!reader->next(10'000).empty()) {
        }
      }(),
      ContainsSubstring(std::to_string(damaged - 1) + " records before it are damaged as well"));
}

TEST_CASE("gzip: who goes on in the middle of a member is told of damage as who reads all of it") {
  const TemporaryFolder folder;
  const std::string text = made_lines(5, row_of);
  const std::string bytes = member_of(text + "\xFF\n");
  const auto source = [&](const std::string& content) {
    return ry::TextLinesStream{ry::gzip(folder.write("a.gz", content))};
  };
  const auto place = place_at(source(bytes), 390'000);
  REQUIRE(place.state.has_value());
  const auto both_say = [&](const std::string& content, std::string_view what) {
    const auto stream = source(content);
    const std::string whole = error_from(stream, 0, {});
    CHECK_THAT(whole, ContainsSubstring(std::string{what}));
    CHECK(error_from(stream, 390'000, place) == whole);
  };
  both_say(bytes, "is not UTF-8 text");  // with the number of its line

  const std::string good = member_of(text);
  const auto changed = [&](std::size_t from_end) {
    std::string content = good;
    content[content.size() - from_end] = static_cast<char>(content[content.size() - from_end] ^ 1);
    return content;
  };
  const auto good_place = place_at(source(good), 390'000);
  CHECK(error_from(source(good), 390'000, good_place) == "no error");
  CHECK_THAT(error_from(source(changed(6)), 390'000, good_place), ContainsSubstring("incorrect data check"));
  CHECK(error_from(source(changed(6)), 390'000, good_place) == error_from(source(changed(6)), 0, {}));
  CHECK(error_from(source(changed(2)), 390'000, good_place) == error_from(source(changed(2)), 0, {}));
  CHECK_THAT(error_from(source(changed(2)), 390'000, good_place), ContainsSubstring("incorrect length check"));
  CHECK_THAT(error_from(source(good + "garbage"), 0, {}), ContainsSubstring("incorrect header"));
}

TEST_CASE("gzip: a state that is none of the file is read past, from its begin") {
  const TemporaryFolder folder;
  const std::string text = made_lines(5, row_of);
  std::string other = text;
  other[10] = other[10] == '1' ? '2' : '1';
  // Not compressed, so that both files are as long.
  const auto stored = [](std::string_view content) { return deflated(content, 16 + MAX_WBITS, 0); };
  const ry::TextLinesStream source{resumed::counted<GzipStream>(folder.write("a.gz", stored(text)))};
  const auto place = place_at(source, 380'000);
  REQUIRE(place.state.has_value());
  const auto first_of = [&](const ry::ReaderPlace& from) {
    resumed::work_done() = 0;
    return std::string{source.open(380'000, from)->next(1)[0].text(0)};
  };
  const std::string right = first_of({});
  const std::uint64_t from_begin = resumed::work_done();
  CHECK(first_of(place) == right);
  CHECK(resumed::work_done() < from_begin / 2);

  const std::string& saved = place.state.bytes();
  for (const std::string& bytes : {std::string{}, saved.substr(0, 8), saved.substr(0, saved.size() - 1), saved + "x",
                                   std::string(saved.size(), '\xFF'), std::string(saved.size(), '\0')}) {
    ry::ReaderPlace damaged = place;
    damaged.state = {place.state.sample(), bytes};
    CHECK(first_of(damaged) == right);
    CHECK(resumed::work_done() == from_begin);
  }
  ry::ReaderPlace late = place;
  late.state = {380'001, saved};
  CHECK(first_of(late) == right);

  folder.write("a.gz", stored(other));
  CHECK(first_of(place) == right);
  CHECK(resumed::work_done() < from_begin / 2);  // what has changed has been read by then
  other = text;
  for (std::size_t at = 0; at < other.size(); at += 1000) other[at] = other[at] == '\n' ? '\n' : '0';
  folder.write("a.gz", stored(other));
  const std::string changed = first_of({});
  CHECK(first_of(place) == changed);
  CHECK(resumed::work_done() == from_begin);
  folder.write("a.gz", stored(text + "1\n"));
  CHECK(first_of(place) == right);
  CHECK(resumed::work_done() >= from_begin);
}

TEST_CASE("gzip: a place takes no more than its promised size, whatever the file holds") {
  const TemporaryFolder folder;
  std::mt19937 random{7};
  const auto noise = made_lines(5, [&](int) {
    std::string line(60, '\0');
    for (char& c : line) c = static_cast<char>('0' + random() % 64);
    return line + "\n";
  });
  const ry::TextLinesStream source{ry::gzip(folder.write("a.gz", member_of(noise)))};
  const auto place = place_at(source, 85'000);
  REQUIRE(place.state.has_value());
  CHECK(place.state.bytes().size() > 10'000);
  CHECK(place.state.bytes().size() < 33U << 10U);
}
#endif
