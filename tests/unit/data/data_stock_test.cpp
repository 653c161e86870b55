// SPDX-License-Identifier: MIT
#include "railyard/data/detail/data_stock.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/split.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

std::string stock_of_files(const std::vector<std::string>& paths) {
  ry::detail::DataStock stock;
  stock.add_files(paths);
  return stock.text();
}

std::string stock_of_dataset(const ry::Dataset& dataset) {
  ry::detail::DataStock stock;
  dataset.node()->take_stock(stock);
  return stock.text();
}

// Writes one byte, and an hour later.
void edit_later(const std::string& path, std::streamoff place) {
  std::fstream file{path, std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(place);
  file.put('x');
  file.close();
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::hours{1});
}

}  // namespace

TEST_CASE("DataStock: of many datasets together it looks at 64 files, and at none twice") {
  const TemporaryFolder folder;
  std::vector<ry::Dataset> parts;
  std::vector<std::string> paths;
  for (int part = 0; part < 200; ++part) {
    paths.push_back(folder.write(std::to_string(part) + ".csv", "x\n" + std::to_string(part) + "\n"));
    parts.emplace_back(ry::CsvSource{paths.back()});
  }
  const std::string text = stock_of_dataset(ry::concat(parts));
  const auto count = [](const std::string& all, char kind) {
    const std::string begin = std::string{"\n"} + kind + " ";
    std::size_t found = 0;
    for (std::size_t at = all.find(begin); at != std::string::npos; at = all.find(begin, at + 1)) ++found;
    return found;
  };
  CHECK(count(text, 'f') == 64);
  CHECK(ry::detail::contents_of_stock(text) == ry::detail::contents_of_stock(stock_of_files(paths)));
  CHECK(count(stock_of_dataset(ry::concat({parts[0], parts[0]})), 'f') == 1);
}

TEST_CASE("DataStock: a copy elsewhere is the same, and whatever is changed is not") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "other"}) std::filesystem::create_directory(folder.path() / name);
  const std::vector<std::string> paths{folder.write("a/1.csv", "x\n1\n2\n"), folder.write("b/1.csv", "x\n3\n4\n")};
  const std::string then = stock_of_files(paths);
  for (const char* name : {"a", "b"}) {
    std::filesystem::copy(folder.path() / name, folder.path() / "other" / name,
                          std::filesystem::copy_options::recursive);
    std::filesystem::last_write_time(folder.path() / "other" / name / "1.csv", std::filesystem::file_time_type{});
  }
  const std::vector<std::string> copies{folder / "other/a/1.csv", folder / "other/b/1.csv"};
  CHECK(ry::detail::difference_of_stocks(then, stock_of_files(copies)).text.empty());
  const auto difference = [&then](const std::vector<std::string>& now) {
    const auto found = ry::detail::difference_of_stocks(then, stock_of_files(now));
    CHECK(found.is_certain);
    return found.text;
  };
  CHECK_THAT(difference({copies[1], copies[0]}), ContainsSubstring("other names"));
  CHECK_THAT(difference({paths[0]}), ContainsSubstring("from 2 file(s) and is from 1"));
  edit_later(copies[1], 2);
  CHECK_THAT(difference(copies), ContainsSubstring("the file b/1.csv holds other bytes"));
  folder.write("other/b/1.csv", "x\n33\n4\n");
  CHECK_THAT(difference(copies), ContainsSubstring("the file b/1.csv had 6 bytes and has 7"));
  CHECK(ry::detail::difference_of_stocks(then, "").is_certain);
}

TEST_CASE("DataStock: of a large file parts are compared, and its time says that the rest may be another") {
  const TemporaryFolder folder;
  const std::string path = folder.write("large", "");
  std::filesystem::resize_file(path, std::uintmax_t{32} << 20);
  const std::string then = stock_of_files({path});
  CHECK(ry::detail::difference_of_stocks(then, stock_of_files({path})).text.empty());
  edit_later(path, 100'000);  // between the first two parts
  const auto elsewhere = ry::detail::difference_of_stocks(then, stock_of_files({path}));
  CHECK_FALSE(elsewhere.is_certain);
  CHECK_THAT(elsewhere.text, ContainsSubstring("the file large has been written to since, or is a copy"));
  edit_later(path, (std::streamoff{32} << 20) - 1);
  CHECK(ry::detail::difference_of_stocks(then, stock_of_files({path})).is_certain);
}

TEST_CASE("DataStock: of memory the shape must be the same, and other numbers are told of") {
  const auto dataset = [](std::vector<float> numbers) {
    return ry::Dataset::from_columns({{"x", std::move(numbers)}, {"name", std::vector<std::string>{"a", "b"}}});
  };
  const std::string then = stock_of_dataset(dataset({1, 2}));
  CHECK(then == stock_of_dataset(dataset({1, 2}).map([](const ry::Sample&, ry::SampleWriter&) {})));
  const auto other = ry::detail::difference_of_stocks(then, stock_of_dataset(dataset({1, 3})));
  CHECK_FALSE(other.is_certain);
  CHECK_THAT(other.text, ContainsSubstring("the numbers in memory of x of 2 x () f32 are others"));
  const auto integers =
      ry::Dataset::from_columns({{"x", std::vector<std::int64_t>{1, 2}}, {"name", std::vector<std::string>{"a", "b"}}});
  const auto wider = ry::detail::difference_of_stocks(then, stock_of_dataset(integers));
  CHECK(wider.is_certain);
  CHECK_THAT(wider.text, ContainsSubstring("was x of 2 x () f32 and is x of 2 x () i64"));
}

TEST_CASE("DataStock: all that a dataset is put together from counts, whatever is done with it") {
  const TemporaryFolder folder;
  const ry::Dataset csv{ry::CsvSource{folder.write("a.csv", "x\n1\n2\n")}};
  const auto columns = ry::Dataset::from_columns({{"x", std::vector<std::int64_t>{1, 2}}});
  const auto made = ry::Dataset::from_function(columns.schema(), 2, [](std::uint64_t, ry::SampleWriter&) {});
  const std::string stock = stock_of_dataset(
      ry::concat({csv.take(1).map([](const ry::Sample&, ry::SampleWriter&) {}), columns.cache(), made}));
  CHECK_THAT(stock, ContainsSubstring("F 1 ") && ContainsSubstring(" a.csv\n") && ContainsSubstring("x of 2 x"));
}

TEST_CASE(
    "DataStock: what decides which samples come, and in what order, counts, and what only changes them does not") {
  const auto numbers = ry::Dataset::from_columns({{"x", std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}}});
  const auto stream = numbers.filter([](const ry::Sample&) { return true; });
  const auto difference = [](const ry::Dataset& then, const ry::Dataset& now) {
    const auto found = ry::detail::difference_of_stocks(stock_of_dataset(then), stock_of_dataset(now));
    CHECK(found.is_certain == !found.text.empty());
    CHECK(found.moves_places == found.is_certain);
    return found.text;
  };
  const auto half = [](const ry::Dataset& dataset, std::size_t part, std::uint64_t seed = 0) {
    return ry::split(dataset, {0.5, 0.5}, seed)[part];
  };
  CHECK(difference(half(numbers, 0).shuffle(3), half(numbers, 0).shuffle(3)).empty());
  CHECK(difference(numbers, numbers.cache().rename({{"x", "y"}})).empty());
  CHECK_THAT(difference(half(numbers, 0), half(numbers, 1)), ContainsSubstring("its split(0.5) gives other samples"));
  CHECK_THAT(difference(half(numbers, 0), half(numbers, 0, 1)), ContainsSubstring("its split(0.5) gives other"));
  CHECK_THAT(difference(half(stream, 0), half(stream, 1)),
             ContainsSubstring("where it had a split(0 to 0.5, seed 0) it has a split(0.5 to 1, seed 0)"));
  CHECK_THAT(difference(numbers.shuffle(1), numbers.shuffle(2)), ContainsSubstring("its shuffle gives other"));
  CHECK_THAT(difference(numbers, numbers.shuffle()), ContainsSubstring("it has a shuffle that it had not"));
  CHECK_THAT(difference(numbers.shuffle(), numbers), ContainsSubstring("it had a shuffle that it has not"));
  CHECK_THAT(difference(numbers.shuffle(), numbers.shuffle().cache()), ContainsSubstring("has a cache"));
  CHECK_THAT(difference(numbers.at({1, 2}), numbers.at({2, 1})), ContainsSubstring("its at(2 places) gives other"));
  CHECK_THAT(difference(numbers.skip(2).take(4), numbers.take(4).skip(2)), ContainsSubstring("where it had a skip(2)"));
  CHECK_THAT(difference(ry::mix({numbers, numbers}, {1, 2}), ry::mix({numbers, numbers}, {1, 3})),
             ContainsSubstring("its mix gives other"));
  CHECK_THAT(difference(ry::concat({numbers, numbers.take(1)}), ry::concat({numbers.take(1), numbers})),
             ContainsSubstring("it is put together of other datasets"));
}

TEST_CASE("DataStock: of one that was saved before operations were, only files and memory are compared") {
  const TemporaryFolder folder;
  const ry::Dataset csv{ry::CsvSource{folder.write("a.csv", "x\n1\n2\n")}};
  const ry::Dataset columns =
      ry::Dataset::from_columns({{"x", std::vector<std::int64_t>{1, 2}}, {"t", std::vector<std::string>{"a", "bc"}}});
  const auto now = stock_of_dataset(ry::zip({csv.rename({{"x", "y"}}), columns}).shuffle(7));
  // As it was written then.
  const std::string then =
      "F 1 1a9c0da277a7d8f2\n"
      "f 6 4470f7703ae7b575 - a.csv\n"
      "m edf81cb886e6b2aa x of 2 x () i64\n"
      "m 60f8096849f3cc77 t of 2 x (-1) text\n";
  CHECK(ry::detail::difference_of_stocks(then, now).text.empty());
  const auto other = ry::detail::difference_of_stocks(then, stock_of_dataset(columns));
  CHECK((other.is_certain && !other.moves_places));
}

TEST_CASE("DataStock: texts that end elsewhere, and sources with other settings, are told of") {
  const auto texts = [](std::vector<std::string> all) {
    return stock_of_dataset(ry::Dataset::from_columns({{"t", std::move(all)}}));
  };
  const auto moved = ry::detail::difference_of_stocks(texts({"ab", "c"}), texts({"a", "bc"}));
  CHECK_THAT(moved.text, ContainsSubstring("the lengths in memory of t"));
  CHECK_FALSE(moved.is_certain);
  const TemporaryFolder folder;
  const std::string path = folder.write("a.csv", "x\n1\n2\n");
  const auto missing = [&path](std::vector<std::string> markers) {
    return stock_of_dataset(ry::Dataset{ry::CsvSource{path, {.missing = std::move(markers)}}});
  };
  const auto set = ry::detail::difference_of_stocks(missing({"1"}), missing({"2"}));
  CHECK_THAT(set.text, ContainsSubstring("a source of it has other settings"));
  CHECK_FALSE(set.is_certain);
}
