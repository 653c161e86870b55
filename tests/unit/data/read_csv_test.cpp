// SPDX-License-Identifier: MIT
#include "railyard/data/read_csv.hpp"

#include "support/catch.hpp"

#include "railyard/data/epoch_reader.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

class CsvFile {
 public:
  explicit CsvFile(const std::string& text) {
    std::string folder = (std::filesystem::temp_directory_path() / "railyard_csv_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw ry::Error{"cannot make " + folder};
    folder_ = folder;
    std::ofstream{path()} << text;
  }
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;
  ~CsvFile() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path() const { return (folder_ / "numbers.csv").string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("read_csv: makes a dataset whose label is the one that was named") {
  const CsvFile file{"a,y,b\n1,7,2.5\n-3,8,4\n"};
  const ry::Dataset dataset = ry::read_csv(file.path(), {.label = "y"});
  CHECK(dataset.label() == "y");
  CHECK(dataset.count() == 2);
  CHECK(dataset.is_indexed());
  ry::EpochReader reader{dataset, {.global_batch_size = 4}};
  const auto step = reader.next();
  REQUIRE(step);
  const auto labels = step->block.column("y").values<std::int64_t>();
  CHECK(std::vector(labels.begin(), labels.end()) == std::vector<std::int64_t>{7, 8});
  const auto numbers = step->block.column("b").values<double>();
  CHECK(std::vector(numbers.begin(), numbers.end()) == std::vector<double>{2.5, 4});
}

TEST_CASE("read_csv: lists the columns when the label is not among them, and names a missing file") {
  const CsvFile file{"a,y\n1,7\n"};
  CHECK_THROWS_WITH(ry::read_csv(file.path(), {.label = "z"}),
                    ContainsSubstring("\"z\"") && ContainsSubstring("\"a\""));
  CHECK_THROWS_AS(ry::read_csv("no/such.csv"), ry::DataError);
}
