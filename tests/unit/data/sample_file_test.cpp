// SPDX-License-Identifier: MIT
#include "railyard/data/detail/sample_file.hpp"

#include "railyard/data/block_builder.hpp"
#include "railyard/data/chain.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/fit.hpp"
#include "railyard/data/normalizer.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/data/split.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/waiting.hpp"

#include "support/catch.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
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

// Numbers that processes share.
struct SharedCounts {
  std::atomic<int> made{0};
  std::atomic<bool> first_has_begun{false};
  std::atomic<bool> second_is_done{false};

  [[nodiscard]] static SharedCounts& map() {
    void* const memory =
        ::mmap(nullptr, sizeof(SharedCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return *::new (memory) SharedCounts;
  }
};

// So many samples, before each of which something is done.
template <class Before>
ry::Dataset counted(int samples, Before before) {
  return ry::Dataset::from_generator({{"x", ry::Dtype::i64}}, [samples, before] {
    return [samples, before, at = 0](ry::SampleWriter& out) mutable {
      before(at);
      if (at < samples) out.set("x", at);
      return at++ < samples;
    };
  });
}

// A user's preprocessor without options, each factor a type of its own.
template <int factor>
struct Times {
  [[nodiscard]] static ry::Schema schema(const ry::Schema& before) { return before; }
  [[nodiscard]] static ry::Block transform(const ry::Block& block) {
    ry::BlockBuilder builder{std::make_shared<const ry::Schema>(block.schema()), block.rows()};
    for (std::size_t row = 0; row < block.rows(); ++row) {
      const ry::Sample sample{block, row};
      builder.add(sample.id()).set("x", factor * sample.number("x"));
      builder.complete_from(block, row);
    }
    return builder.build();
  }
};

// One whose state is a value.
struct Added {
  double number = 0;

  [[nodiscard]] static ry::Schema schema(const ry::Schema& before) { return before; }
  [[nodiscard]] ry::Block transform(const ry::Block& block) const {
    ry::BlockBuilder builder{std::make_shared<const ry::Schema>(block.schema()), block.rows()};
    for (std::size_t row = 0; row < block.rows(); ++row) {
      const ry::Sample sample{block, row};
      builder.add(sample.id()).set("x", number + sample.number("x"));
      builder.complete_from(block, row);
    }
    return builder.build();
  }
  [[nodiscard]] ry::State state() const { return {{"number", number}}; }
  void load_state(const ry::State& state) { number = state.at("number").number(); }
};

std::vector<double> column_x(const ry::Dataset& dataset) {
  std::vector<double> all;
  for (const ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 10}}) {
    for (std::size_t row = 0; row < step.samples; ++row) all.push_back(ry::Sample{step.block, row}.number("x"));
  }
  return all;
}

const ry::detail::DraftPatience impatient{.patience = std::chrono::milliseconds{1}};

std::size_t files_in(const CacheFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator{folder.path}, {}));
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
      damaged[random() % size] ^= static_cast<char>(1 + random() % 255);
    }
    std::ofstream{file, std::ios::binary | std::ios::trunc} << damaged;
    CHECK_THROWS_AS(rows_of(of_all_kinds(made).cache(file), round % 4 == 1), ry::DataError);
  }
}

TEST_CASE("cache in a file: is made anew where another release has written it") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  int made = 0;
  const auto rows = rows_of(of_all_kinds(made).cache(file), false);
  const int made_once = made;
  {
    std::fstream bytes{file, std::ios::binary | std::ios::in | std::ios::out};
    bytes.seekp(-1, std::ios::end);
    bytes.put('2');  // the last letter of what it ends with
  }
  CHECK(rows_of(of_all_kinds(made).cache(file), false) == rows);
  CHECK(made == 2 * made_once);
  CHECK(rows_of(of_all_kinds(made).cache(file), false) == rows);
  CHECK(made == 2 * made_once);
}

TEST_CASE("cache in a file: is made anew when the file it was made of has changed") {
  const CacheFolder folder;
  const auto source = (folder.path / "x.csv").string();
  const auto read = [&](ry::CsvSourceOptions options = {}) {
    return column_x(ry::Dataset{ry::CsvSource{source, std::move(options)}}.cache((folder.path / "samples").string()));
  };
  std::ofstream{source} << "x\n1\n2\n";
  const auto time = std::filesystem::last_write_time(source);
  CHECK(read() == std::vector<double>{1, 2});
  std::ofstream{source} << "x\n3\n4\n";
  std::filesystem::last_write_time(source, time + std::chrono::seconds{1});
  CHECK(read() == std::vector<double>{3, 4});
  std::ofstream{source} << "x\n3\n4\n5.5\n";
  std::filesystem::last_write_time(source, time + std::chrono::seconds{1});
  std::filesystem::remove(folder.path / "samples");
  CHECK(read() == std::vector<double>{3, 4, 5.5});
  CHECK(std::isnan(read({.missing = {"4"}}).at(1)));
}

TEST_CASE("cache in a file: is made anew when numbers, seeds or what was learned before it are others") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const auto numbers = [](double first) {
    return ry::Dataset::from_columns({{"x", std::vector<double>{first, 2, 3, 4, 5, 6, 7, 8}}});
  };
  const auto check_both = [&](const ry::Dataset& one, const ry::Dataset& other) {
    std::filesystem::remove(file);
    CHECK(column_x(one.cache(file)) == column_x(one));
    CHECK(column_x(other.cache(file)) == column_x(other));
    CHECK(column_x(one) != column_x(other));
  };
  check_both(numbers(1), numbers(0));
  check_both(ry::split(numbers(1), {0.5, 0.5}, 1)[0], ry::split(numbers(1), {0.5, 0.5}, 2)[0]);
  check_both(numbers(1).at({1, 2}), numbers(1).at({3, 2}));
  check_both(ry::mix({numbers(1), numbers(0)}, {1, 1}), ry::mix({numbers(1), numbers(0)}, {1, 1}, 9));
  const auto scaled = [&](double first) {
    ry::MinMaxScaler scaler{{.columns = {"x"}}};
    ry::fit(scaler, numbers(first));
    return numbers(1).transform(scaler);
  };
  check_both(scaled(1), scaled(-100));
  const auto pairs = ry::Dataset::from_columns({{"x", std::vector<double>{1, 2}}, {"y", std::vector<double>{3, 4}}});
  check_both(pairs.select({"x", "y"}).rename({{"x", "a"}, {"y", "b"}}).rename({{"a", "x"}, {"b", "y"}}),
             pairs.select({"y", "x"}).rename({{"y", "a"}, {"x", "b"}}).rename({{"a", "x"}, {"b", "y"}}));
  check_both(pairs.transform(ry::Normalizer{{.columns = {"x", "y"}, .norm = ry::Norm::l1}}),
             pairs.transform(ry::Normalizer{{.columns = {"x", "y"}, .norm = ry::Norm::l2}}));
}

TEST_CASE("cache in a file: is made anew when a step of a Chain before it is another, also one that learns nothing") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const auto pairs = ry::Dataset::from_columns({{"x", std::vector<double>{1, 2}}, {"y", std::vector<double>{3, 5}}});
  const auto check_both = [&](const auto& one, const auto& other) {
    std::filesystem::remove(file);
    const auto first = pairs.transform(one);
    const auto second = pairs.transform(other);
    CHECK(column_x(first.cache(file)) == column_x(first));
    CHECK(column_x(second.cache(file)) == column_x(second));
    CHECK(column_x(first) != column_x(second));
  };
  const auto normalizer = [](ry::Norm norm) { return ry::Normalizer{{.columns = {"x", "y"}, .norm = norm}}; };
  const auto chain = [&](ry::Norm norm) { return ry::Chain{normalizer(norm)}; };
  check_both(chain(ry::Norm::l1), chain(ry::Norm::l2));
  check_both(ry::Chain{chain(ry::Norm::l1)}, ry::Chain{chain(ry::Norm::max)});
  check_both(ry::Chain{Times<2>{}}, ry::Chain{Times<3>{}});
  check_both(Times<2>{}, Times<3>{});
  check_both(Added{1}, Added{2});
}

TEST_CASE("cache in a file: is read without the source that it was made of, and looks at none of its samples") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const auto source = (folder.path / "numbers.csv").string();
  std::ofstream{source} << "x\n1\n2\n";
  const auto dataset = [&] { return ry::Dataset{ry::CsvSource{source, {.fields = {{"x", ry::Dtype::f64}}}}}; };
  CHECK(column_x(dataset().cache(file)) == std::vector<double>{1, 2});
  const auto cached = dataset().cache(file);
  std::filesystem::remove(source);
  CHECK(column_x(cached) == std::vector<double>{1, 2});
}

TEST_CASE("cache in a file: one process makes it, and another that wants it meanwhile waits") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  SharedCounts& shared = SharedCounts::map();
  const pid_t first = ::fork();
  if (first == 0) {
    const auto dataset = counted(50, [&](int at) {
      ++shared.made;
      if (at != 25) return;
      shared.first_has_begun.store(true);
      // Long enough for another one to make it as well, if it did.
      const auto deadline = ry::Deadline::after(std::chrono::milliseconds{500});
      while (!shared.second_is_done.load() && !deadline.expired()) std::this_thread::yield();
    });
    ::_exit(dataset.cache(file).count() == 50 ? 0 : 1);
  }
  const auto deadline = ry::Deadline::after(std::chrono::seconds{60});
  while (!shared.first_has_begun.load() && !deadline.expired()) std::this_thread::yield();
  CHECK(counted(50, [&](int) { ++shared.made; }).cache(file).count() == 50);
  shared.second_is_done.store(true);
  int status = -1;
  REQUIRE(::waitpid(first, &status, 0) == first);
  CHECK(status == 0);
  CHECK(shared.made == 51);
  CHECK(files_in(folder) == 1);
}

TEST_CASE("cache in a file: what a killed process leaves of it is taken over by the next") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const pid_t child = ::fork();
  if (child == 0) {
    static_cast<void>(counted(50,
                              [](int at) {
                                if (at == 25) ::raise(SIGKILL);
                              })
                          .cache(file)
                          .count());
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(counted(50, [](int) {}).cache(file).count() == 50);
  CHECK(files_in(folder) == 1);
}

TEST_CASE("DraftFile: goes on in a file of its own where another process does not go on") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const ry::detail::DraftFile idle{file};
  ry::detail::DraftFile other{file, impatient};
  const std::string text = "whole";
  other.write(std::as_bytes(std::span{text}));
  ry::detail::DraftFile third{file, impatient};  // of the same process
  third.write(std::as_bytes(std::span{text}.first(3)));
  CHECK(other.publish().is_open());
  CHECK(std::filesystem::file_size(file) == 5);
  CHECK(third.publish().is_open());
  CHECK(std::filesystem::file_size(file) == 3);
}

TEST_CASE("DraftFile: two of one process that go on beside another write files of their own") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const ry::detail::DraftFile idle{file};
  ry::detail::DraftFile first{file, impatient};
  ry::detail::DraftFile second{file, impatient};
  CHECK(files_in(folder) == 3);
  const std::string text = "whole";
  first.write(std::as_bytes(std::span{text}));
  CHECK(first.publish().is_open());
  second.write(std::as_bytes(std::span{text}.first(2)));
  CHECK(std::filesystem::file_size(file) == 5);
  CHECK(second.publish().is_open());
  CHECK(std::filesystem::file_size(file) == 2);
}

TEST_CASE("DraftFile: whoever waits says for whom, and stops when nobody wants it any more") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const ry::detail::DraftFile idle{file};
  std::vector<std::string> said;
  const ry::detail::WaitWatch watch{
      [&](ry::detail::WaitFor) { return said.size() < 2 ? std::string{} : std::string{"the test is over"}; },
      [&](const std::string& text) { said.push_back(text); }};
  const ry::detail::WatchedThread watched{watch};
  const ry::detail::DraftPatience talkative{.first_word = std::chrono::nanoseconds{1}};
  const std::string who = "process " + std::to_string(::getpid()) + " writes the cache " + file;
  CHECK_THROWS_WITH((ry::detail::DraftFile{file, talkative}),
                    ContainsSubstring(who) && ContainsSubstring("any more: the test is over"));
  REQUIRE(said.size() == 2);
  CHECK_THAT(said[0], ContainsSubstring(who) && ContainsSubstring("s by now"));
}

TEST_CASE("cache in a file: a reader that is left does not wait for another process, and a deadline names that one") {
  const CacheFolder folder;
  const auto file = (folder.path / "samples").string();
  const ry::detail::DraftFile idle{file};
  const auto cached = counted(50, [](int) {}).cache(file).filter([](const ry::Sample&) { return true; });
  ry::EpochReader reader{cached, {.global_batch_size = 5, .threads = 2}};
  const auto deadline = ry::Deadline::after(std::chrono::milliseconds{200});
  CHECK_THROWS_WITH(reader.next(deadline), ContainsSubstring("gave no batch in 200 ms: process ") &&
                                               ContainsSubstring("writes the cache " + file));
}
