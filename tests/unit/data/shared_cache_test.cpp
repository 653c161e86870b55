// SPDX-License-Identifier: MIT
// A cache in memory that forked processes share.
#include "railyard/data/detail/sample_shelf.hpp"

#include "railyard/core/version.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/tar_source.hpp"
#if RAILYARD_WITH_IMAGES
#include "railyard/data/image_folder.hpp"
#endif

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/feed_host.hpp"
#include "unit/data/tar_files.hpp"
#if RAILYARD_WITH_IMAGES
#include "unit/data/pictures.hpp"
#endif

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using ry::detail::SampleShelf;
using test::counted_stream;
using test::FedSamples;
using test::read_alone;
using test::SharedCount;

namespace {

// Runs in so many processes at once, and counts those in which it returns true.
std::size_t count_holding(std::size_t processes, const std::function<bool(std::size_t)>& function) {
  std::vector<pid_t> all;
  for (std::size_t at = 0; at < processes; ++at) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool holds = false;
      try {
        holds = function(at);
      } catch (...) {  // which is not true
      }
      ::_exit(holds ? 0 : 1);
    }
    all.push_back(child);
  }
  std::size_t holding = 0;
  for (const pid_t child : all) {
    int status = -1;
    ::waitpid(child, &status, 0);
    holding += status == 0 ? 1 : 0;
  }
  return holding;
}

// How many bytes all that this process has read came to.
std::uint64_t bytes_read_here() {
  std::ifstream file{"/proc/self/io"};
  std::string word;
  std::uint64_t number = 0;
  while (file >> word >> number) {
    if (word == "rchar:") return number;
  }
  return 0;
}

// Four processes ask how many samples there are, and read a few. How much all of them have read for the count.
template <class Source, class IsRight>
std::uint64_t bytes_to_count(const Source& source, const IsRight& is_right) {
  SharedCount bytes;
  CHECK(count_holding(4, [&](std::size_t) {
          const std::uint64_t before = bytes_read_here();
          const auto count = source.count();
          (*bytes) += bytes_read_here() - before;
          return is_right(source, *count);
        }) == 4);
  return (*bytes).load();
}

FedSamples cached_samples(const ry::Dataset& cached) { return read_alone(cached, {.global_batch_size = 16}); }

}  // namespace

TEST_CASE("cache in memory: forked processes read the samples once, and later ones find them") {
  for (const std::size_t count : {0U, 1U, 5000U}) {
    SharedCount made;
    const auto source = counted_stream(count, made).filter([](const ry::Sample& in) { return in.id() % 3 != 1; });
    const FedSamples expected = cached_samples(source.cache());
    const auto cached = source.cache();
    *made = 0;
    CAPTURE(count);
    CHECK(count_holding(4, [&](std::size_t) { return cached_samples(cached) == expected; }) == 4);
    CHECK((*made).load() == count);
    CHECK(count_holding(2, [&](std::size_t) { return cached_samples(cached) == expected; }) == 2);
    CHECK((*made).load() == count);
    CHECK(cached_samples(cached) == expected);  // by what the process reads itself that has made the cache
    CHECK((*made).load() == 2 * count);
    CHECK(count_holding(2, [&](std::size_t) { return cached_samples(cached) == expected; }) == 2);
    CHECK((*made).load() == 2 * count);
  }
}

TEST_CASE("cache in memory: the next process goes on where the one that reads is killed or fails") {
  for (const bool is_killed : {true, false}) {
    SharedCount made;
    SharedCount failures;
    const auto source = counted_stream(3000, made).filter([&](const ry::Sample& in) {
      if (in.id() == 2000 && (*failures)++ == 0) {
        if (is_killed) ::raise(SIGKILL);
        throw std::runtime_error{"no good"};
      }
      return true;
    });
    const auto cached = source.cache();
    CAPTURE(is_killed);
    CHECK(count_holding(4, [&](std::size_t) { return cached_samples(cached).size() == 3000; }) == 3);
    CHECK(((*made).load() > 5000 && (*made).load() <= 6000));  // once in vain, and once
  }
}

TEST_CASE("cache in memory: what a process writes to its samples, others do not see") {
  const auto cached = ry::Dataset::from_columns({{"n", std::vector<std::int64_t>(1000, 7)}}).cache();
  const auto sum = [&] {
    std::int64_t all = 0;
    for (const std::uint64_t place : {0U, 500U, 999U}) {
      const std::uint64_t places[1] = {place};
      all += cached.node()->read(places, {}).column("n").values<std::int64_t>()[0];
    }
    return all;
  };
  CHECK(count_holding(1, [&](std::size_t) {
          const std::uint64_t places[1] = {500};
          const ry::Block block = cached.node()->read(places, {});
          const_cast<std::int64_t&>(block.column("n").values<std::int64_t>()[0]) = 1000;
          return sum() == 7 + 1000 + 7;
        }) == 1);
  CHECK(count_holding(2, [&](std::size_t) { return sum() == 21; }) == 2);
}

TEST_CASE("Counting: forked processes read a file once for the number of its records, and later ones not at all") {
  const TemporaryFolder folder;
  std::string rows = "n,t\n";
  for (int row = 0; row < 100'000; ++row) rows += std::to_string(row) + ",\"a\nb\"\n" + (row % 1000 == 7 ? "x\n" : "");
  for (const ry::OnError policy : {ry::OnError::stop(), ry::OnError::skip()}) {
    const bool skips = !policy.stops_at_once();
    const ry::CsvSource source{folder.write("a.csv", rows), {.on_error = policy}};
    static_cast<void>(source.schema());
    const auto is_right = [skips](const ry::CsvSource& counted, std::uint64_t count) {
      if (counted.skipped() != (skips ? 100U : 0U)) return false;
      if (!skips) return count == 100'100;
      const std::uint64_t ids[] = {99'999, 7, 8, 50'000};
      const ry::Block block = counted.read(ids);
      const auto numbers = block[0].values<std::int64_t>();
      return count == 100'000 && std::equal(numbers.begin(), numbers.end(), std::begin(ids), [](auto one, auto other) {
               return static_cast<std::uint64_t>(one) == other;
             });
    };
    CAPTURE(skips);
    const std::uint64_t bytes = bytes_to_count(source, is_right);
    CHECK(bytes >= rows.size());
    CHECK(bytes < rows.size() + rows.size() / 10);
    CHECK(bytes_to_count(source, is_right) < rows.size() / 10);
  }
}

TEST_CASE("Counting: what ends the counting of one process ends that of all, with the line") {
  const TemporaryFolder folder;
  std::string lines;
  for (int line = 0; line < 1000; ++line) lines += std::to_string(line) + "\n";
  const ry::CsvSource source{folder.write("a.csv", "n\n" + lines + "x,y\n"), {.on_error = ry::OnError::at_most(0)}};
  const ry::CsvSource strict{folder.write("b.csv", "n\n" + lines + "x,y\nz,w\n"),
                             {.on_error = ry::OnError::at_most(1)}};
  static_cast<void>(source.schema());
  static_cast<void>(strict.schema());
  CHECK(count_holding(3, [&](std::size_t) { return source.count() == 1001; }) == 3);
  CHECK(count_holding(3, [&](std::size_t) {
          try {
            return strict.count() == 0;
          } catch (const ry::DataError& error) {
            return std::string_view{error.what()}.find("b.csv:1003: ") != std::string_view::npos;
          }
        }) == 3);
}

TEST_CASE("Counting: one of forked processes reads the headers of archives, and all find their samples by it") {
  const TemporaryFolder folder;
  std::size_t size = 0;
  for (std::size_t archive = 0; archive < 4; ++archive) {
    std::string bytes;
    for (std::size_t at = 0; at < (archive == 1 ? 0U : 500U); ++at) {
      const std::string key = std::to_string(archive * 1000 + at);
      bytes += tar_files::tar_file(key + ".cls", key);
      if (at % 100 != 7) bytes += tar_files::tar_file(key + ".x", std::string(at % 3, 'x'));
    }
    if (archive == 2) bytes += "no header" + std::string(1000, '-');  // what follows is left out
    size += bytes.size();
    folder.write(std::to_string(archive) + ".tar", bytes + tar_files::tar_end);
  }
  for (const ry::OnError policy : {ry::OnError::skip(), ry::OnError::at_most(16)}) {
    const ry::TarSource source{
        folder / "*.tar", {.bytes = {"x"}, .text = {"cls"}, .key = "key", .max_member_bytes = 100, .on_error = policy}};
    static_cast<void>(source.schema());
    const auto is_right = [&](const ry::TarSource& counted, std::uint64_t count) {
      const std::uint64_t ids[] = {1483, 0, 7, 495};
      const ry::Block block = counted.read(ids);
      const auto reads = [&](std::size_t row, const std::string& key, std::size_t num_bytes) {
        return block.column("cls").text(row) == key && block.column("key").text(row) == key &&
               block.column("x").text(row) == std::string(num_bytes, 'x');
      };
      return count == 1484 && counted.skipped() == 16 && counted.skipped_parts().size() == 1 &&
             counted.skipped_parts()[0].find("2.tar: byte ") != std::string::npos && reads(0, "3499", 499 % 3) &&
             reads(1, "0", 0) && reads(2, "8", 8 % 3) && reads(3, "2000", 0);
    };
    const std::uint64_t bytes = bytes_to_count(source, is_right);
    CHECK(bytes > size / 2);
    CHECK(bytes < size + size / 4);
    CHECK(bytes_to_count(source, is_right) < size / 10);
  }
}

TEST_CASE("Counting: what ends the reading of headers in one process ends that of all, with the archive") {
  const TemporaryFolder folder;
  folder.write("a.tar", tar_files::tar_file("0.x", "0") + std::string(512, '-'));
  const ry::TarSource source{folder / "a.tar", {.bytes = {"x"}}};
  static_cast<void>(source.schema());
  CHECK(count_holding(3, [&](std::size_t) {
          try {
            return source.count() == 0;
          } catch (const ry::DataError& error) {
            return std::string_view{error.what()}.find("a.tar: byte 1024") != std::string_view::npos;
          }
        }) == 3);
}

#if RAILYARD_WITH_IMAGES
TEST_CASE("Counting: one of forked processes decodes the pictures of which the damaged ones are left out") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "cat");
  const std::string picture = pictures::png_of(pictures::make_image(200, 200, ry::ImageColors::rgb));
  constexpr std::uint64_t num_pictures = 24;
  for (std::uint64_t at = 0; at < num_pictures; ++at) {
    folder.write("cat/" + std::to_string(at) + ".png", at % 6 == 1 ? picture.substr(0, picture.size() / 2) : picture);
  }
  const ry::ImageFolder source{folder.path().string(), {.on_error = ry::OnError::skip()}};
  const auto is_right = [](const ry::ImageFolder& counted, std::uint64_t count) {
    const std::uint64_t ids[] = {0, 10, 19};
    return count == 20 && counted.skipped() == 4 && counted.read(ids).rows() == 3;
  };
  const std::uint64_t size = picture.size() * 22;
  const std::uint64_t bytes = bytes_to_count(source, is_right);
  CHECK(bytes > size - size / 10);
  CHECK(bytes < size + size / 4);
}
#endif

TEST_CASE("SampleShelf: who is told the address of another process's finds there what anybody has left, and no other") {
  const auto schema = std::make_shared<const ry::Schema>(ry::Schema{{"n", ry::Dtype::i64}});
  SampleShelf first;
  const auto value = [&](const SampleShelf& shelf, std::int64_t made) {
    const ry::Block block = shelf.find_or_make(schema, [&](const auto&) {
      return std::vector<ry::Block>{
          {schema, {ry::Column{(*schema)[0], std::vector<std::int64_t>{made}}}, std::vector<std::uint64_t>{0}}};
    });
    return block[0].values<std::int64_t>()[0];
  };
  const auto join_and_find = [&](std::int64_t made, std::int64_t expected) {
    return count_holding(1, [&](std::size_t) {
      SampleShelf own;  // of a process that was not forked behind the other's
      return !own.take_other(first.address() + "1") && !own.take_other("") && !own.has_use() &&
             own.take_other(first.address()) && own.has_use() && value(own, made) == expected;
    });
  };
  CHECK(join_and_find(7, 7) == 1);
  CHECK(join_and_find(8, 7) == 1);
  CHECK(count_holding(2, [&](std::size_t) { return value(first, 9) == 7; }) == 2);
}

TEST_CASE("SampleShelf: nobody waits for a process that makes nothing, or has died and is not buried yet") {
  const ry::Dataset numbers = ry::Dataset::from_columns({{"n", std::vector<std::int64_t>(10, 7)}});
  const std::uint64_t places[2] = {3, 4};
  const ry::Block parts[1] = {numbers.node()->read(places, {})};
  const auto schema = numbers.node()->schema();
  const SampleShelf shelf;
  CHECK(!shelf.has_use());  // for the process that has made it
  int taken[2];
  REQUIRE(::pipe(taken) == 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const SampleShelf::Turn turn{shelf};
    static_cast<void>(!::write(taken[1], "x", 1));
    while (true) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(taken[0], &byte, 1) == 1);
  CHECK(count_holding(1, [&](std::size_t) {
          const SampleShelf::Turn turn{shelf, std::chrono::milliseconds{50}};
          return shelf.has_use() && !turn.samples(schema) && !turn.leave(parts);
        }) == 1);
  ::kill(holder, SIGKILL);
  CHECK(count_holding(2, [&](std::size_t) {
          const SampleShelf::Turn turn{shelf};
          return turn.samples(schema) || turn.leave(parts);
        }) == 2);
  CHECK(count_holding(1, [&](std::size_t) {
          const SampleShelf::Turn turn{shelf};
          const auto samples = turn.samples(schema);
          return samples && samples->rows() == 2 && samples->ids()[1] == 4 &&
                 samples->column("n").values<std::int64_t>()[1] == 7;
        }) == 1);
  ::waitpid(holder, nullptr, 0);
  ::close(taken[0]);
  ::close(taken[1]);
}
