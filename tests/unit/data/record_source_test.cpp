// SPDX-License-Identifier: MIT
#include "railyard/data/record_source.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/line_cutter.hpp"
#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/compressed.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ry = railyard;

namespace {

// How a user would add a format: a line is as many bars as its number says.
struct BarsFormat {
  struct Options {
    std::string label{};
    std::size_t max_record_bytes = 1000;
    ry::OnError on_error = ry::OnError::stop();
  };
  struct Plan {
    std::shared_ptr<const ry::Schema> schema{};
  };
  class Parser {
   public:
    explicit Parser(const std::shared_ptr<const Plan>& /*plan*/) {}
    std::size_t cut(const char* text, std::size_t size, bool /*is_end*/) { return lines_.cut(text, size); }
    [[nodiscard]] std::size_t records() const { return lines_.lines(); }
    [[nodiscard]] std::size_t begin(std::size_t record) const { return lines_.begin(record); }
    [[nodiscard]] std::size_t end(std::size_t record) const { return lines_.end(record); }
    [[nodiscard]] std::vector<ry::Column> parse(ry::detail::RecordFaults& faults) const {
      std::vector<std::int64_t> counts;
      for (std::size_t record = 0; record < records(); ++record) {
        const auto line = lines_.line(record);
        if (line.find_first_not_of('|') != std::string_view::npos) {
          faults.add(record, [] { return std::string{"not a bar"}; });
        } else {
          counts.push_back(static_cast<std::int64_t>(line.size()));
        }
      }
      return {ry::Column{{"bars", ry::Dtype::i64}, std::move(counts)}};
    }

   private:
    ry::detail::LineCutter lines_{false};
  };
  static constexpr const char* name = "bars";

  static ry::detail::RecordRules rules(const Options& /*options*/) { return {}; }
  static std::shared_ptr<const Plan> plan(const Options& /*options*/, const std::string& /*file*/,
                                          ry::detail::TextHead& /*head*/) {
    const ry::Schema schema{{"bars", ry::Dtype::i64}};
    return std::make_shared<const Plan>(Plan{std::make_shared<const ry::Schema>(schema)});
  }
  static std::optional<std::size_t> header_size(const Plan& /*plan*/, const std::string& /*file*/, const char* /*text*/,
                                                std::size_t /*size*/, bool /*is_end*/) {
    return 0;
  }
};
using BarsSource = ry::RecordSource<BarsFormat>;
static_assert(ry::IndexedSource<BarsSource>);

std::string rows_from(int begin, int end) {
  std::string text = "n,t\n";
  for (int row = begin; row < end; ++row) text += std::to_string(row) + ",\"row " + std::to_string(row) + "\"\n";
  return text;
}

// Is a text that says of itself how long it is, and is told how much of it is wanted at once.
class MeasuredText final : public ry::detail::ByteStream {
 public:
  static inline std::string text{};
  static inline std::uint64_t told = 0;
  static inline std::size_t most_wanted = 0;
  static inline std::size_t furthest = 0;  // that was read

  // A name has to be a file's; what is in it is not looked at.
  [[nodiscard]] static ry::CompressedFiles files(const TemporaryFolder& folder) {
    return {folder.write("measured.csv", ""), [](const std::string&) -> std::unique_ptr<ry::detail::ByteStream> {
              return std::make_unique<MeasuredText>();
            }};
  }

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    most_wanted = std::max(most_wanted, size);
    const std::size_t got = text.copy(to, size, at_);
    at_ += got;
    furthest = std::max(furthest, at_);
    return got;
  }
  [[nodiscard]] std::uint64_t left() const noexcept override { return told - std::min<std::uint64_t>(at_, told); }

 private:
  std::size_t at_ = 0;
};

}  // namespace

TEST_CASE("RecordSource: reads a format of the user's own") {
  const TemporaryFolder folder;
  const BarsSource source{folder.write("a.bars", "|||\n\n|\nx\n||\n"), {.on_error = ry::OnError::skip()}};
  CHECK(source.describe() == "bars " + folder / "a.bars");
  const auto bars = source.open(0)->next(9)[0];
  CHECK(std::vector(bars.values<std::int64_t>().begin(), bars.values<std::int64_t>().end()) ==
        std::vector<std::int64_t>{3, 1, 2});
  CHECK(source.count() == 3);
  CHECK(source.skipped() == 1);
}

TEST_CASE("RecordSource: is a Dataset, with its label") {
  const TemporaryFolder folder;
  const ry::Dataset dataset{ry::CsvSource{folder.write("a.csv", rows_from(0, 500)), {.label = "n"}}};
  CHECK(dataset.label() == "n");
  CHECK(dataset.count() == 500);
  CHECK(dataset.is_indexed());
}

TEST_CASE("RecordSource: what datasets of one description leave out is counted for each, and once for parts of one") {
  const TemporaryFolder folder;
  const auto bars = [path = folder.write("a.bars", "|||\nx\n||\n")] {
    return ry::Dataset{BarsSource{path, {.on_error = ry::OnError::skip()}}};
  };
  const ry::Dataset one = bars();
  const ry::Dataset both = ry::concat({one, bars(), one.take(1)});
  ry::EpochReader reader{both, {.global_batch_size = 100}};
  while (reader.next()) {
  }
  CHECK(one.skipped() == 1);
  CHECK(both.skipped() == 2);
}

TEST_CASE("RecordSource: gives several threads the same samples, though none has looked at the files before") {
  const TemporaryFolder folder;
  for (int file = 0; file < 5; ++file) {
    folder.write("p" + std::to_string(file) + ".csv", rows_from(file * 1000, (file + 1) * 1000));
  }
  const ry::CsvSource source{folder / "p*.csv"};
  std::vector<int> wrong(4, 0);
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
      threads.emplace_back([&source, &wrong, thread] {
        std::vector<std::uint64_t> ids;
        for (std::uint64_t at = 0; at < 500; ++at) ids.push_back((at * 997 + thread * 1234) % 5000);
        const ry::Block picked = source.read(ids);
        const ry::Block rest = source.open(1000 * thread + 500)->next(1 << 20);
        for (std::size_t row = 0; row < ids.size(); ++row) {
          wrong[thread] += picked[0].values<std::int64_t>()[row] != static_cast<std::int64_t>(ids[row]);
        }
        wrong[thread] += rest[0].values<std::int64_t>()[0] != static_cast<std::int64_t>(1000 * thread + 500);
      });
    }
  }
  CHECK(wrong == std::vector(4, 0));
}

TEST_CASE("RecordStream: takes a small buffer for a small file, and reads on where a file says less than it has") {
  MeasuredText::text = rows_from(0, 5000);
  const TemporaryFolder folder;
  const ry::CompressedFiles files = MeasuredText::files(folder);
  const std::uint64_t size = MeasuredText::text.size();
  for (const std::uint64_t told : {std::uint64_t{0}, std::uint64_t{1}, size / 2, size - 1, size, size + 1}) {
    MeasuredText::told = told;
    MeasuredText::most_wanted = 0;
    const ry::CsvStream stream{files, {.inference_rows = 2}};
    const auto reader = stream.open(0);
    std::uint64_t seen = 0;
    for (ry::Block block = reader->next(999); !block.empty(); block = reader->next(999)) {
      for (const std::int64_t number : block[0].values<std::int64_t>()) {
        REQUIRE(number == static_cast<std::int64_t>(seen++));
      }
    }
    CAPTURE(told);
    CHECK(seen == 5000);
    CHECK(MeasuredText::most_wanted <= std::max<std::uint64_t>(told + 1, 4096));
  }
}

TEST_CASE("RecordStream: goes on in the file where it was, without those before it") {
  const TemporaryFolder folder;
  const std::vector<std::string> names{folder.write("1", rows_from(0, 7)), folder.write("2", "n,t\n"),
                                       folder.write("3", rows_from(7, 9) + "x,bad\n" + rows_from(9, 12).substr(4)),
                                       folder.write("4", "n,t\ny,bad\n" + rows_from(12, 20).substr(4))};
  const auto stream = [&](const ry::OnError& on_error) {
    return ry::Dataset{ry::CsvStream{{names, &compressed::open_counted},
                                     {.fields = {{"n", ry::Dtype::i64}, ry::Field::text("t")}, .on_error = on_error}}};
  };
  compressed::check_leaves_out_files(stream(ry::OnError::skip()), 7);
  // What was left out before counts as well.
  ry::EpochOptions options{.global_batch_size = 2, .threads = 0, .bound_bytes = 1};
  ry::EpochReader reader{stream(ry::OnError::at_most(1)), options};
  for (int step = 0; step < 5; ++step) REQUIRE(reader.next());
  options.from = reader.position();
  ry::EpochReader rest{stream(ry::OnError::at_most(1)), options};
  REQUIRE(rest.next());
  CHECK_THROWS_WITH(rest.next(), ContainsSubstring("1 records before it are damaged as well"));
}

TEST_CASE("RecordStream: reads of a record that is too long no more than shows that") {
  constexpr std::size_t most = std::size_t{1} << 20U;
  const TemporaryFolder folder;
  const ry::CompressedFiles files = MeasuredText::files(folder);
  const ry::CsvSourceOptions options{.inference_rows = 2, .max_record_bytes = most};
  const auto read = [&] {
    MeasuredText::told = MeasuredText::text.size();
    MeasuredText::furthest = 0;
    const ry::CsvStream stream{files, options};
    const auto reader = stream.open(0);
    std::size_t rows = 0;
    while (const std::size_t more = reader->next(999).rows()) rows += more;
    return rows;
  };
  const std::string rows = rows_from(0, 20'000);
  MeasuredText::text = rows + "20000," + std::string(8 * most, 'x') + "\n";
  CHECK_THROWS_WITH(read(), ContainsSubstring("is longer than 1048576 bytes"));
  CHECK(MeasuredText::furthest <= rows.size() + most + most / 2);
  MeasuredText::text = "n,t\n0," + std::string(8 * most, 'x') + "\n";
  CHECK_THROWS_WITH(read(), ContainsSubstring("is longer than 1048576 bytes"));
  CHECK(MeasuredText::furthest <= 2 * most + most / 2);
  MeasuredText::text = rows + "20000," + std::string(most - 6, 'x') + "\n";  // which is as long as it may be
  CHECK(read() == 20'001);
}
