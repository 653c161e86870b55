// SPDX-License-Identifier: MIT
// Ranks of one host that all ask how many samples there are in files of text.
#include "railyard/data/csv_source.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/train/toy_training.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

constexpr int counting_ranks = 4;
constexpr std::uint64_t lines_to_count = 200'000;

// How many bytes all that this process has read came to.
double bytes_read_by_process() {
  std::ifstream file{"/proc/self/io"};
  std::string word;
  double number = 0;
  while (file >> word >> number) {
    if (word == "rchar:") return number;
  }
  return 0;
}

// Counts the samples on all ranks, reads some, and returns the result; "scans": how often all bytes were read.
template <class S>
ry::Result count_on_ranks(const ry::Dataset& dataset, double size_bytes, bool fails_once = false) {
  const Scratch scratch;
  ry::RunConfig run;
  run.storage_path = scratch.path();
  run.progress = ry::Progress::quiet;
  run.failure.max_failures = fails_once ? 1 : 0;
  run.failure.backoff = std::chrono::nanoseconds{0};
  ry::Trainer<ry::SharedMemory, S> trainer{
      [size_bytes, fails_once](ry::Worker& worker) {
        worker.barrier();
        const double before = bytes_read_by_process();
        worker.barrier();
        const ry::Dataset data = worker.dataset("data");
        const auto count = static_cast<double>(data.count().value());
        worker.barrier();
        double scans = (bytes_read_by_process() - before) / size_bytes;
        worker.all_reduce(ry::buffer_of_value(scans), S::copies_function ? ry::ReduceOp::max : ry::ReduceOp::sum);
        std::vector<std::uint64_t> places;
        for (std::uint64_t at = 0; at < 100; ++at) places.push_back((at * 7919 + 13) % lines_to_count);
        const ry::Block block = data.node()->read(places, {});
        double wrong = 0;
        for (std::size_t row = 0; row < places.size(); ++row) {
          wrong += block[0].text(row) == "line " + std::to_string(places[row]) ? 0 : 1;
        }
        worker.all_reduce(ry::buffer_of_value(wrong), ry::ReduceOp::sum);
        if (fails_once && worker.attempt() == 0) throw std::runtime_error{"no good"};
        worker.report({{"count", worker.mean(count)},
                       {"scans", scans},
                       {"wrong", wrong},
                       {"skipped", worker.mean(static_cast<double>(data.skipped()))}});
      },
      {.num_workers = counting_ranks},
      std::move(run),
      {{"data", dataset}}};
  return trainer.fit();
}

// Writes files of numbered lines, and returns how many bytes they have.
double write_counted_lines(const TemporaryFolder& folder, const std::string& damaged = {}) {
  double size = 0;
  for (std::uint64_t file = 0; file < 4; ++file) {
    std::string text;
    for (std::uint64_t line = file * lines_to_count / 4; line < (file + 1) * lines_to_count / 4; ++line) {
      text += "line " + std::to_string(line) + "\n";
      if (line % 10'000 == 5) text += damaged;
    }
    size += static_cast<double>(text.size());
    folder.write(std::to_string(file) + ".txt", text);
  }
  return size;
}

template <class S>
void check_counts_once(ry::OnError on_error, const std::string& damaged, std::uint64_t num_damaged) {
  const TemporaryFolder folder;
  const double size = write_counted_lines(folder, damaged);
  const ry::Dataset dataset{ry::TextLinesSource{folder / "*.txt", {.on_error = on_error}}};
  const auto result = count_on_ranks<S>(dataset, size);
  REQUIRE(result.error() == "");
  const auto metric = [&](const char* name) { return result.metrics().at(name).number(); };
  CHECK(metric("count") == lines_to_count);
  CHECK(metric("wrong") == 0);
  CHECK(metric("skipped") == static_cast<double>(num_damaged));
  CHECK(metric("scans") > 0.99);
  CHECK(metric("scans") < 1.1);  // beside them there is little else that processes read
}

}  // namespace

TEST_CASE("Counting: the workers of a host read the files once, as processes and as threads") {
  check_counts_once<ry::Processes>(ry::OnError::stop(), "", 0);
  check_counts_once<ry::Threads>(ry::OnError::stop(), "", 0);
}

TEST_CASE("Counting: where damaged samples are left out, one worker of a host looks for them") {
  check_counts_once<ry::Processes>(ry::OnError::skip(), "\xFF\n", 20);
  check_counts_once<ry::Threads>(ry::OnError::at_most(20), "\xFF\n", 20);
}

TEST_CASE("Counting: workers that are started again find what was counted before") {
  const TemporaryFolder folder;
  const double size = write_counted_lines(folder);
  const auto result = count_on_ranks<ry::Processes>(ry::Dataset{ry::TextLinesSource{folder / "*.txt"}}, size, true);
  REQUIRE(result.error() == "");
  CHECK(result.metrics().at("count").number() == lines_to_count);
  CHECK(result.metrics().at("wrong").number() == 0);
  CHECK(result.metrics().at("scans").number() < 0.1);
}

TEST_CASE("Counting: a file that cannot be counted ends the run with its name, the line and what to do") {
  const TemporaryFolder folder;
  const double size = write_counted_lines(folder, "\xFF\n");
  const ry::Dataset dataset{ry::TextLinesSource{folder / "*.txt", {.on_error = ry::OnError::at_most(3)}}};
  for (const bool is_processes : {true, false}) {
    const auto result =
        is_processes ? count_on_ranks<ry::Processes>(dataset, size) : count_on_ranks<ry::Threads>(dataset, size);
    CHECK_THAT(result.error(), ContainsSubstring("0.txt:30010: byte 1 of the line is not UTF-8 text") &&
                                   ContainsSubstring(".on_error lets 3 be left out"));
  }
}
