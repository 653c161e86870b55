// SPDX-License-Identifier: MIT
// Runs over named datasets that end half way through an epoch and go on with other numbers of workers.
#include "railyard/data/csv_source.hpp"
#include "railyard/data/split.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/train/random.hpp"
#include "railyard/train/train_state.hpp"

#include "numbered.hpp"
#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

constexpr std::int64_t num_numbers = 90;

// Numbers from 0 on; as a stream the multiples of 3 alone, near where they were.
ry::Dataset source(bool is_stream) {
  std::vector<std::int64_t> all(num_numbers);
  std::iota(all.begin(), all.end(), 0);
  const auto dataset = ry::Dataset::from_columns({{"n", all}}).with_label("n");
  if (!is_stream) return dataset;
  return dataset.filter([](const ry::Sample& sample) { return sample.id() % 3 == 0; }).shuffle_window(8);
}

// Notes down in which order all workers together have seen the samples: what the surviving lineage has trained on.
class Seen {
 public:
  void add(std::int64_t number) { text_ += std::to_string(number) + " "; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] ry::State state() const { return {{"text", text_}}; }
  void load_state(const ry::State& state) { text_ = state.at("text").as<std::string>(); }

 private:
  std::string text_{};
};

// Goes over the dataset twice. The first attempt ends in the given step, by an exception or a signal.
void train(ry::Worker& worker, bool is_stream, std::uint64_t last_step, int signal) {
  auto loader = ry::prepare_loader(worker, worker.dataset("train"),
                                   {.global_batch_size = 7,
                                    .shuffle = !is_stream,
                                    .drives_step = true,
                                    .threads = worker.world_size() > 1 ? 2U : 0U});
  Seen seen;
  ry::TrainState state{worker, {{"loader", loader}, {"seen", seen}}};
  for ([[maybe_unused]] const int epoch : state.epochs(2)) {
    for (const auto& batch : loader) {
      if (worker.steps() == last_step && worker.rank() == worker.world_size() - 1) {
        if (signal != 0) ::raise(signal);
        throw std::runtime_error{"as planned"};
      }
      test::Numbers padded(7, -1);
      const test::Numbers mine = test::numbers_of(batch);
      std::copy(mine.begin(), mine.end(), padded.begin());
      for (const auto number : ry::detail::gather_values(worker, padded)) {
        if (number >= 0) seen.add(number);
      }
    }
  }
  worker.report({{"seen", seen.text()}, {"resumed", state.is_resumed()}});
}

// Goes over a dataset of ours with settings of its own.
ry::Result fit_changed(const Scratch& scratch, const ry::Dataset& data, std::uint64_t last_step, std::uint64_t seed = 5,
                       std::vector<std::string> accept_changes = {}) {
  ry::RunConfig run{.name = "run",
                    .storage_path = scratch.path(),
                    .seed = seed,
                    .accept_changes = std::move(accept_changes),
                    .checkpoint = {.every_steps = 1},
                    .progress = ry::Progress::quiet};
  const bool is_stream = !data.is_indexed();
  return ry::Trainer<ry::SharedMemory, ry::Threads>{
      [is_stream, last_step](ry::Worker& worker) { train(worker, is_stream, last_step, 0); },
      {.num_workers = 2},
      std::move(run),
      {{"train", data}}}
      .fit();
}

// The numbers from 0 on as a file; they have two digits, of which some are spaces.
ry::Dataset numbers_in_file(const Scratch& scratch, const std::string& name, std::int64_t count = num_numbers,
                            std::int64_t first = 0) {
  std::string text = "n\n";
  for (std::int64_t number = first; number < first + count; ++number) text += std::to_string(10 + number) + "\n";
  return ry::Dataset{ry::CsvSource{scratch.write(name, text), {.label = "n"}}};
}

bool warns_of(const ry::Result& result, const std::string& text) {
  const auto& all = result.warnings();
  return std::any_of(all.begin(), all.end(), [&text](auto& one) { return one.find(text) != std::string::npos; });
}

template <class Backend, class Scaling>
ry::Result fit(const Scratch& scratch, const std::string& name, int num_workers, bool is_stream,
               std::uint64_t last_step = 1000, int signal = 0) {
  ry::RunConfig run{.name = name,
                    .storage_path = scratch.path(),
                    .seed = 5,
                    .checkpoint = {.every_steps = 1},
                    .progress = ry::Progress::quiet};
  return ry::Trainer<Backend, Scaling>{[=](ry::Worker& worker) { train(worker, is_stream, last_step, signal); },
                                       {.num_workers = num_workers},
                                       std::move(run),
                                       {{"train", source(is_stream)}}}
      .fit();
}

// Each sample once per epoch.
void check_exact(const std::string& seen, bool is_stream) {
  std::istringstream numbers{seen};
  std::map<std::int64_t, int> times;
  for (std::int64_t number = 0; numbers >> number;) ++times[number];
  CHECK(times.size() == static_cast<std::size_t>(is_stream ? num_numbers / 3 : num_numbers));
  CHECK(std::all_of(times.begin(), times.end(), [](const auto& one) { return one.second == 2; }));
}

template <class Backend, class Scaling>
void check_resumed(bool is_stream, int signal) {
  const Scratch scratch;
  const ry::Result whole = fit<Backend, Scaling>(scratch, "whole", 1, is_stream);
  REQUIRE(whole.error() == "");
  const auto& expected = whole.metrics().at("seen").as<std::string>();
  check_exact(expected, is_stream);
  const std::uint64_t last_step = is_stream ? 7 : 17;  // in the second epoch
  for (const auto& [before, after] : {std::pair{2, 2}, std::pair{2, 3}, std::pair{3, 1}}) {
    const std::string name = std::to_string(before) + "_" + std::to_string(after);
    CHECK_FALSE(fit<Backend, Scaling>(scratch, name, before, is_stream, last_step, signal));
    const ry::Result rest = fit<Backend, Scaling>(scratch, name, after, is_stream);
    REQUIRE(rest.error() == "");
    CHECK(rest.metrics().at("resumed").as<bool>());
    CHECK(rest.metrics().at("seen").as<std::string>() == expected);
  }
}

std::atomic<std::int64_t>& rolls_made() {
  static std::atomic<std::int64_t> made{0};
  return made;
}

// Draws its samples by an engine of the standard library, whose state it saves.
struct SavedRolls {
  std::int64_t left = 0;
  std::mt19937_64 random{3};

  bool operator()(ry::SampleWriter& out) {
    if (left-- == 0) return false;
    ++rolls_made();
    out.set("n", static_cast<std::int64_t>(random() % 1'000'000));
    return true;
  }
  [[nodiscard]] ry::State state() const {
    ry::State state = ry::StateAccess<std::mt19937_64>::take(random);
    state.values.set("left", left);
    return state;
  }
  void load_state(const ry::State& saved) {
    ry::StateAccess<std::mt19937_64>::put(random, saved);
    left = saved.at("left").as<std::int64_t>();
  }
};

// Goes over the rolls twice, until the last step.
void train_on_rolls(ry::Worker& worker, std::uint64_t last_step) {
  auto loader = ry::prepare_loader(worker, worker.dataset("train"), {.global_batch_size = 500, .drives_step = true});
  Seen seen;
  ry::TrainState state{worker, {{"loader", loader}, {"seen", seen}}};
  for ([[maybe_unused]] const int epoch : state.epochs(2)) {
    for (const auto& batch : loader) {
      if (worker.steps() == last_step) throw std::runtime_error{"as planned"};
      test::Numbers padded(500, 0);
      const test::Numbers mine = test::numbers_of(batch);
      std::copy(mine.begin(), mine.end(), padded.begin());
      std::uint64_t digest = 0;
      for (const auto number : ry::detail::gather_values(worker, padded)) {
        digest = ry::detail::mix_bits(digest + static_cast<std::uint64_t>(number));
      }
      seen.add(static_cast<std::int64_t>(digest >> 1U));
    }
  }
  worker.report({{"seen", seen.text()}});
}

}  // namespace

TEST_CASE("Datasets of a run: goes on in a generator from its state, which makes few samples again") {
  constexpr std::int64_t count = 20'000;
  constexpr int num_workers = 2;
  const Scratch scratch;
  const auto fit_rolls = [&](const std::string& name, std::uint64_t last_step) {
    rolls_made() = 0;
    const auto data = ry::Dataset::from_generator({{"n", ry::Dtype::i64}}, [] { return SavedRolls{.left = count}; });
    ry::RunConfig run{.name = name,
                      .storage_path = scratch.path(),
                      .checkpoint = {.every_steps = 1},
                      .progress = ry::Progress::quiet};
    return ry::Trainer<ry::SharedMemory, ry::Threads>{
        [last_step](ry::Worker& worker) { train_on_rolls(worker, last_step); },
        {.num_workers = num_workers},
        std::move(run),
        {{"train", data.with_label("n")}}}
        .fit();
  };
  const ry::Result whole = fit_rolls("whole", 1000);
  REQUIRE(whole.error() == "");
  CHECK(rolls_made() >= 2 * count);
  CHECK_FALSE(fit_rolls("killed", 70));  // in the second epoch
  const ry::Result rest = fit_rolls("killed", 1000);
  REQUIRE(rest.error() == "");
  CHECK(rest.metrics().at("seen") == whole.metrics().at("seen"));
  // What was left, and a block; by each worker where one came too late to be given them.
  CHECK(rolls_made() <= num_workers * (12 * 500 + 4096));
}

TEST_CASE("Datasets of a run: each sample once per epoch, whatever ends it where, on any number of workers (E7, E9)") {
  for (const bool is_stream : {false, true}) {
    check_resumed<ry::SharedMemory, ry::Threads>(is_stream, 0);
    check_resumed<ry::SharedMemory, ry::Processes>(is_stream, SIGKILL);
  }
}

TEST_CASE("Datasets of a run: data that was edited half way is refused by name, and a copy of it is not") {
  const Scratch scratch;
  CHECK_FALSE(fit_changed(scratch, numbers_in_file(scratch, "a.csv"), 5));
  const auto edited = numbers_in_file(scratch, "a.csv", num_numbers - 1, 1);
  CHECK_THAT(fit_changed(scratch, edited, 1000).error(),
             ContainsSubstring("num_samples was 90 and is 89") && ContainsSubstring(".accept_changes = {\"data\"}"));
  const auto shifted = numbers_in_file(scratch, "a.csv", num_numbers, -1);
  CHECK_THAT(fit_changed(scratch, shifted, 1000).error(),
             ContainsSubstring("its data is another: the file a.csv had") &&
                 ContainsSubstring(".accept_changes = {\"data\"}"));
  std::filesystem::create_directory(scratch.path() / "copy");
  const ry::Result copied = fit_changed(scratch, numbers_in_file(scratch, "copy/a.csv"), 8);
  CHECK(copied.attempts().front().begin_step > 0);
  CHECK_FALSE(warns_of(copied, "goes on with data"));
  const ry::Result accepted = fit_changed(scratch, shifted, 12, 5, {"data"});
  CHECK(accepted.attempts().front().begin_step > 5);
  CHECK(warns_of(accepted, "goes on with data that is another: the file a.csv had"));
  const ry::Result result = fit_changed(scratch, shifted, 1000);  // of which the newest checkpoint is by now
  REQUIRE(result.error() == "");
  CHECK_FALSE(warns_of(result, "goes on with data"));
}

TEST_CASE("Datasets of a run: where another number of samples is accepted, the epoch begins anew") {
  const Scratch scratch;
  CHECK_FALSE(fit_changed(scratch, numbers_in_file(scratch, "a.csv"), 17));
  const ry::Result result = fit_changed(scratch, numbers_in_file(scratch, "a.csv", 80), 1000, 5, {"data"});
  REQUIRE(result.error() == "");
  CHECK(warns_of(result, "the epoch begins anew"));
  std::istringstream numbers{result.metrics().at("seen").as<std::string>()};
  std::vector<std::int64_t> seen;
  for (std::int64_t number = 0; numbers >> number;) seen.push_back(number);
  REQUIRE(seen.size() > 80);
  std::sort(seen.end() - 80, seen.end());
  CHECK(std::adjacent_find(seen.end() - 80, seen.end()) == seen.end());
}

TEST_CASE("Datasets of a run: where another stream is accepted, the epoch begins anew") {
  const Scratch scratch;
  const auto even = [](const ry::Dataset& numbers) {
    return numbers.filter([](const ry::Sample& sample) { return sample.values<std::int64_t>("n")[0] % 2 == 0; });
  };
  CHECK_FALSE(fit_changed(scratch, even(numbers_in_file(scratch, "a.csv")), 5));
  const auto other = even(numbers_in_file(scratch, "a.csv", 20));
  CHECK_THAT(fit_changed(scratch, other, 1000).error(), ContainsSubstring("its data is another"));
  const ry::Result result = fit_changed(scratch, other, 1000, 5, {"data"});
  REQUIRE(result.error() == "");
  CHECK(warns_of(result, "the epoch begins anew"));
  const auto text = result.metrics().at("seen").as<std::string>();
  const std::string epoch = "10 12 14 16 18 20 22 24 26 28 ";
  CHECK(text.ends_with(epoch + epoch));
}

TEST_CASE("Datasets of a run: another half of a split, or another seed of shuffle(), is refused by name") {
  const Scratch scratch;
  const auto halves = ry::split(numbers_in_file(scratch, "a.csv"), {0.5, 0.5}, 1);
  CHECK_FALSE(fit_changed(scratch, halves[0].shuffle(3), 5));
  CHECK_THAT(
      fit_changed(scratch, halves[1].shuffle(3), 1000).error(),
      ContainsSubstring("its split(0.5) gives other samples") && ContainsSubstring(".accept_changes = {\"data\"}"));
  CHECK_THAT(fit_changed(scratch, halves[0].shuffle(4), 1000).error(), ContainsSubstring("its shuffle gives other"));
  const ry::Result result = fit_changed(scratch, halves[1].shuffle(3), 1000, 5, {"data"});
  REQUIRE(result.error() == "");
  CHECK(warns_of(result, "the epoch begins anew"));
  std::istringstream numbers{result.metrics().at("seen").as<std::string>()};
  std::vector<std::int64_t> seen;
  for (std::int64_t number = 0; numbers >> number;) seen.push_back(number);
  REQUIRE(seen.size() > 90);
  std::map<std::int64_t, int> times;  // of the other half, in both epochs
  std::for_each(seen.end() - 90, seen.end(), [&times](std::int64_t number) { ++times[number]; });
  CHECK(times.size() == 45);
  CHECK(std::all_of(times.begin(), times.end(), [](const auto& one) { return one.second == 2; }));
}

TEST_CASE("Datasets of a run: of another seed that is accepted, the epoch under way keeps its order") {
  const Scratch scratch;
  const auto data = numbers_in_file(scratch, "a.csv");
  CHECK_FALSE(fit_changed(scratch, data, 5));
  const ry::Result result = fit_changed(scratch, data, 1000, 6, {"seed"});
  REQUIRE(result.error() == "");
  CHECK(result.metrics().at("resumed").as<bool>());
  check_exact(result.metrics().at("seen").as<std::string>(), false);
  const auto order = [](const ry::Result& of) { return of.metrics().at("seen").as<std::string>(); };
  const Scratch others;
  const ry::Result five = fit_changed(others, numbers_in_file(others, "a.csv"), 1000, 5);
  const Scratch more;
  const ry::Result six = fit_changed(more, numbers_in_file(more, "a.csv"), 1000, 6);
  const std::size_t half = order(result).size() / 2;  // all numbers are of two digits
  CHECK(order(result).substr(0, half) == order(five).substr(0, half));
  CHECK(order(result).substr(half) == order(six).substr(half));
}

TEST_CASE("Datasets of a run: the time that loops wait for them is a share in the Result") {
  const Scratch scratch;
  const auto slow = source(false).map([](const ry::Sample& in, ry::SampleWriter&) {
    const auto until = ry::Deadline::after(std::chrono::milliseconds{in.id() < 60 ? 0 : 1});
    while (!until.expired()) {
    }
  });
  const ry::Result result = ry::Trainer<ry::SharedMemory, ry::Threads>{
      [](ry::Worker& worker) {
        auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(1, 1); });
        auto loader = ry::prepare_loader(worker, worker.dataset("train"),
                                         {.global_batch_size = 30, .drives_step = true, .threads = 0});
        for (const auto& batch : loader) net->forward(batch.target.view({-1, 1}).to(torch::kFloat)).sum().backward();
      },
      {.num_workers = 2},
      {.storage_path = scratch.path(), .progress = ry::Progress::quiet},
      {{"train", slow}}}.fit();
  REQUIRE(result.error() == "");
  CHECK(result.step_times().data >= 0.015);  // each worker has made half of the last batch, of a millisecond a sample
  CHECK(result.step_times().share_of_data() > 0);
  CHECK_THAT(read_text(result.path() / "result.json"), Catch::ContainsSubstring("\"data_share\": 0."));
}

namespace {

// Goes over parts that a splitter makes, of different sizes, and returns what each rank has seen. It ends in the third
// batch if it is to be gone on with.
std::vector<test::Numbers> go_over_parts(const Scratch& scratch, const std::string& name, bool is_stream, bool goes_on,
                                         int num_workers = 2, std::string* error = nullptr) {
  std::vector<test::Numbers> seen(static_cast<std::size_t>(num_workers));
  const auto go_over = [&](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, worker.dataset("train"), {.batch_size_per_worker = 3});
    ry::TrainState state{worker, {{"loader", loader}}};
    int batches = 0;
    for (const auto& batch : loader) {
      const test::Numbers numbers = test::numbers_of(batch);
      auto& mine = seen[static_cast<std::size_t>(worker.rank())];
      mine.insert(mine.end(), numbers.begin(), numbers.end());
      if (++batches < 3 || !goes_on) continue;
      worker.report({}, state);  // the first two count: nobody has asked for what comes after the third
      worker.barrier();
      throw std::runtime_error{"as planned"};
    }
  };
  ry::RunConfig run{.name = name, .storage_path = scratch.path(), .progress = ry::Progress::quiet};
  run.data.splitter = [](const ry::Dataset& whole, std::size_t rank, std::size_t) {
    return rank == 0 ? whole.take(12) : whole.skip(12).take(15);
  };
  ry::Trainer<ry::SharedMemory, ry::Threads> trainer{
      go_over, {.num_workers = num_workers}, std::move(run), {{"train", source(is_stream)}}};
  const ry::Result result = trainer.fit();
  if (error != nullptr) *error = result.error();
  CHECK((error != nullptr || goes_on || result.error() == ""));
  return seen;
}

}  // namespace

TEST_CASE(
    "Datasets of a run: each rank goes on in the part that a splitter has made for it, and no other number does") {
  for (const bool is_stream : {false, true}) {
    const Scratch scratch;
    const auto whole = go_over_parts(scratch, "whole", is_stream, false);
    CHECK((whole[0].size() == 12 && whole[1].size() == 15));
    static_cast<void>(go_over_parts(scratch, "parts", is_stream, true));
    std::string error;
    static_cast<void>(go_over_parts(scratch, "parts", is_stream, false, 3, &error));
    CHECK_THAT(error, ContainsSubstring("made for 2 workers by RunConfig::data.splitter") &&
                          ContainsSubstring("now there are 3"));
    const auto rest = go_over_parts(scratch, "parts", is_stream, false);
    CHECK(rest[0] == test::Numbers(whole[0].begin() + 6, whole[0].end()));
    CHECK(rest[1] == test::Numbers(whole[1].begin() + 6, whole[1].end()));
  }
}

TEST_CASE("Datasets of a run: a loader that drives no step may be put back on one rank, where other data is accepted") {
  const Scratch scratch;
  const ry::LoaderOptions options{.global_batch_size = 4, .threads = 0};
  const auto even = [](const ry::Dataset& numbers) {
    return numbers.filter([](const ry::Sample& sample) { return sample.values<std::int64_t>("n")[0] % 2 == 0; });
  };
  ry::State saved;
  const ry::Result result = ry::Trainer<ry::SharedMemory, ry::Threads>{
      [&](ry::Worker& worker) {
        if (worker.rank() == 0) {
          auto loader = ry::prepare_loader(worker, even(numbers_in_file(scratch, "a.csv")), options);
          auto at = loader.begin();
          ++ ++at;
          saved = loader.state();
          EXPECT(saved.at("consumed").as<std::string>() == "0-8");
        }
        worker.barrier();
        if (worker.rank() == 1) {
          auto loader = ry::prepare_loader(worker, even(numbers_in_file(scratch, "a.csv", 80, 1)), options);
          loader.load_state(saved);
          EXPECT(loader.state().at("consumed").template as<std::string>() == "");
        }
        worker.barrier();
      },
      {.num_workers = 2},
      {.storage_path = scratch.path(),
       .accept_changes = {"data"},
       .progress =
           ry::Progress::quiet}}.fit();
  CHECK(result.error() == "");
  CHECK(warns_of(result, "a loader on rank 1/2 goes on with data that is another"));
}

TEST_CASE("Datasets of a run: a run that goes on with batches of another size is told so, with both sizes") {
  const Scratch scratch;
  const auto fit_with = [&scratch](std::size_t global, std::size_t per_worker, std::uint64_t last_step) {
    return ry::Trainer<ry::SharedMemory, ry::Threads>{
        [=](ry::Worker& worker) {
          const ry::LoaderOptions options{
              .global_batch_size = global, .batch_size_per_worker = per_worker, .drives_step = true};
          auto loader = ry::prepare_loader(worker, worker.dataset("train"), options);
          ry::TrainState state{worker, {{"loader", loader}}};
          for ([[maybe_unused]] const auto& batch : loader) {
            if (worker.steps() == last_step) throw std::runtime_error{"as planned"};
          }
        },
        {.num_workers = 2},
        {.name = "run",
         .storage_path = scratch.path(),
         .checkpoint = {.every_steps = 1},
         .progress = ry::Progress::quiet},
        {{"train", source(false)}}}
        .fit();
  };
  CHECK_FALSE(warns_of(fit_with(6, 0, 2), "instead of"));
  CHECK_FALSE(warns_of(fit_with(6, 0, 4), "instead of"));
  CHECK(warns_of(fit_with(12, 0, 5), "goes on with a global batch size of 12 instead of a global batch size of 6"));
  CHECK(warns_of(fit_with(0, 3, 7), "with a batch size per worker of 3 instead of a global batch size of 12"));
}

TEST_CASE("Datasets of a run: damaged samples are told of where a loop does not go to the end, too") {
  const Scratch scratch;
  const ry::Dataset damaged{
      ry::CsvSource{scratch.write("damaged.csv", "n\n1\nx\n2\n3\ny\n4\n5\n6\nz\n"),
                    {.label = "n", .fields = {{"n", ry::Dtype::i64}}, .on_error = ry::OnError::skip()}}};
  for (const bool begins_again : {false, true}) {
    const ry::Result result = ry::Trainer<ry::SharedMemory, ry::Threads>{
        [begins_again](ry::Worker& worker) {
          auto loader = ry::prepare_loader(worker, worker.dataset("train"), {.global_batch_size = 2});
          static_cast<void>(loader.begin());
          if (begins_again) static_cast<void>(loader.begin());
        },
        {.num_workers = 1},
        {.storage_path = scratch.path(), .progress = ry::Progress::quiet},
        {{"train", damaged}}}.fit();
    REQUIRE(result.error() == "");
    REQUIRE(result.warnings().size() == 1);
    CHECK_THAT(result.warnings().front(), ContainsSubstring("damaged.csv: 3 damaged samples were left out"));
  }
}

TEST_CASE("Datasets of a run: how many damaged samples were left out stands in the Result, once") {
  const Scratch scratch;
  const ry::Dataset damaged{
      ry::CsvSource{scratch.write("damaged.csv", "n\n1\nx\n2\n3\ny\n4\n5\n6\nz\n"),
                    {.label = "n", .fields = {{"n", ry::Dtype::i64}}, .on_error = ry::OnError::skip()}}};
  const auto stream = damaged.filter([](const ry::Sample&) { return true; });
  for (const ry::Dataset& dataset : {damaged, stream, damaged.cache()}) {
    const ry::Result result = ry::Trainer<ry::SharedMemory, ry::Processes>{
        [](ry::Worker& worker) {
          auto loader = ry::prepare_loader(worker, worker.dataset("train"), {.global_batch_size = 2});
          for (int epoch = 0; epoch < 2; ++epoch) {
            for (const auto& batch : loader) static_cast<void>(batch);
          }
        },
        {.num_workers = 2},
        {.storage_path = scratch.path(), .progress = ry::Progress::quiet},
        {{"train", dataset.map([](const ry::Sample&, ry::SampleWriter&) {
          })}}}.fit();
    REQUIRE(result.error() == "");
    REQUIRE(result.warnings().size() == 1);
    CHECK_THAT(result.warnings().front(),
               ContainsSubstring("damaged.csv: 3 damaged samples were left out, as .on_error says"));
  }
}
