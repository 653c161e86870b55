// SPDX-License-Identifier: MIT
#include "railyard/data/detail/data_stock.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
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
  CHECK(std::count(text.begin(), text.end(), '\n') == 65);
  CHECK(text == stock_of_files(paths));
  const std::string twice = stock_of_dataset(ry::concat({parts[0], parts[0]}));
  CHECK(twice == stock_of_files({paths[0]}));
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
  CHECK(then == stock_of_dataset(dataset({1, 2}).shuffle()));
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
