// SPDX-License-Identifier: MIT
#include "railyard/data/detail/sample_file.hpp"

#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

namespace ry = railyard;

namespace {

// A folder of its own that is removed in the end.
struct CacheFolder {
  CacheFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railyard-cache-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;
  ~CacheFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path{};
};

// Fixed, ragged, text and empty columns, in a stream whose count is not known.
ry::Dataset of_all_kinds(int& made) {
  return ry::Dataset::from_generator(
      {{"x", ry::Dtype::f32, {2}}, {"list", ry::Dtype::i64, {-1}}, ry::Field::text("t")}, [&made] {
        return [&made, at = 0](ry::SampleWriter& out) mutable {
          if (at == 3000) return false;
          ++made;
          out.set("x", std::vector<float>{static_cast<float>(at), -1});
          out.set("list", std::vector<std::int64_t>(static_cast<std::size_t>(at % 5), at));
          out.set("t", at % 7 == 0 ? "" : std::to_string(at));
          ++at;
          return true;
        };
      });
}

std::vector<std::string> rows_of(const ry::Dataset& dataset, bool shuffle) {
  std::vector<std::string> rows;
  for (const ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 37, .seed = 3, .shuffle = shuffle}}) {
    for (std::size_t row = 0; row < step.samples; ++row) {
      const ry::Sample sample{step.block, row};
      rows.push_back(std::to_string(sample.id()) + " " + std::to_string(sample.values<float>("x")[0]) + " " +
                     std::to_string(sample.values<std::int64_t>("list").size()) + " " + std::string{sample.text("t")});
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("cache in a file: gives what memory would, and is made once") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  int made = 0;
  const auto in_memory = of_all_kinds(made).cache();
  const auto in_file = of_all_kinds(made).cache(file);
  CHECK(made == 0);
  const auto expected = rows_of(in_memory, true);
  CHECK(expected.size() == 3000);
  CHECK(rows_of(in_file, true) == expected);
  CHECK(made == 6000);
  CHECK(rows_of(of_all_kinds(made).cache(file), false) == rows_of(in_memory, false));
  CHECK(made == 6000);
  CHECK(in_file.count() == 3000);
  CHECK(std::distance(std::filesystem::directory_iterator{folder.path}, {}) == 1);
}

TEST_CASE("cache in a file: leaves nothing behind when the dataset cannot be read") {
  const CacheFolder folder;
  const auto failing = ry::Dataset::from_columns({{"x", std::vector<float>(5000)}})
                           .filter([](const ry::Sample& in) { return in.id() < 4000 ? true : throw 1; })
                           .cache((folder.path / "samples").string());
  CHECK_THROWS_WITH(failing.count(), ContainsSubstring("-> filter: sample 4000"));
  CHECK(std::filesystem::is_empty(folder.path));
  const auto nowhere =
      ry::Dataset::from_columns({{"x", std::vector<float>(5)}}).cache((folder.path / "no" / "x").string());
  CHECK_THROWS_WITH(nowhere.count(), ContainsSubstring("could not be written"));
}

TEST_CASE("cache in a file: refuses what is no cache, is damaged or holds something else") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  int made = 0;
  const auto count = [&] { return of_all_kinds(made).cache(file).count(); };
  std::ofstream{file} << "x";
  CHECK_THROWS_WITH(count(), ContainsSubstring("is damaged or no cache at all: remove it"));
  std::filesystem::remove(file);
  CHECK(count() == 3000);
  CHECK_THROWS_WITH(of_all_kinds(made).take(3).cache(file).count(), ContainsSubstring("name another file"));

  const auto size = std::filesystem::file_size(file);
  std::string bytes(size, '\0');
  std::ifstream{file, std::ios::binary}.read(bytes.data(), static_cast<std::streamsize>(size));
  std::mt19937_64 random{4};
  for (int round = 0; round < 300; ++round) {
    std::string damaged = bytes;
    if (round % 2 == 0) {
      damaged.resize(random() % size);
    } else {
      damaged[size - 1 - random() % 40000] ^= static_cast<char>(1 + random() % 255);  // in the index or after it
    }
    std::ofstream{file, std::ios::binary | std::ios::trunc} << damaged;
    CHECK_THROWS_AS(count(), ry::DataError);
  }
}
