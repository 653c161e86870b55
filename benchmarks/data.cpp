// SPDX-License-Identifier: MIT
// What reading data costs: benchmark_data [PEERS_PY FOLDERS]. FOLDERS are those in which Python finds pandas, pyarrow,
// PyTorch and Ray, as PYTHONPATH has them; figures of what cannot be had are left out, in words.
#include "median.hpp"

#include <railyard/railyard.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace ry = railyard;

namespace {

double seconds_of(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

using bench::median;

void tell(std::string_view name, double value, std::string_view unit) {
  fmt::print("{} {:.3f} {}\n", name, value, unit);
  std::fflush(stdout);
}

// What another library needs for the same; nothing where it cannot be had.
class Peers {
 public:
  Peers(std::string script, std::string folders) : script_(std::move(script)), folders_(std::move(folders)) {}

  [[nodiscard]] std::optional<double> seconds(const std::string& what, const std::string& argument) const {
    if (script_.empty()) return std::nullopt;
    const std::string command =
        fmt::format("OMP_NUM_THREADS=1 PYTHONPATH='{}' python3 -W ignore '{}' {} '{}' 2>/dev/null", folders_, script_,
                    what, argument);
    FILE* pipe = ::popen(command.c_str(), "r");
    double value = 0;
    const bool has_value = pipe != nullptr && std::fscanf(pipe, "%lf", &value) == 1;
    const bool has_succeeded = pipe != nullptr && ::pclose(pipe) == 0;
    if (has_value && has_succeeded) return value;
    fmt::print(stderr, "figures against {} are left out: it cannot be had here\n", what);
    return std::nullopt;
  }

 private:
  std::string script_;
  std::string folders_;
};

// X_over_ours: both in turn.
void compare(const std::string& figure, const std::function<std::optional<double>()>& theirs,
             const std::function<void()>& ours, int num_turns = 3) {
  std::vector<double> their_seconds;
  std::vector<double> our_seconds;
  for (int turn = 0; turn < num_turns; ++turn) {
    const auto seconds = theirs();
    if (!seconds) return;
    their_seconds.push_back(*seconds);
    our_seconds.push_back(seconds_of(ours));
  }
  fmt::print(stderr, "{}: theirs {:.3f} s, ours {:.3f} s\n", figure, median(their_seconds), median(our_seconds));
  tell(figure, median(their_seconds) / median(our_seconds), "ratio");
}

// Numbers of several kinds, truth values and texts, some quoted, some missing. The same bytes each time.
void write_mixed_csv(const std::string& path, std::size_t size_bytes) {
  std::mt19937_64 random{1};
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  const auto share = [&] { return static_cast<double>(random() >> 11U) * 0x1p-53; };
  std::vector<std::string> words(500);
  for (std::string& word : words) {
    for (std::uint64_t letters = 3 + below(9); letters > 0; --letters) word += static_cast<char>('a' + below(16));
  }
  std::ofstream file{path, std::ios::binary};
  std::string rows = "id,age,balance,reading,share,offset,noise,rate,active,name,day,note\n";
  std::size_t written = 0;
  for (std::uint64_t number = 0; written < size_bytes; ++number) {
    const std::string& name = words[below(words.size())];
    const std::string& other = words[below(words.size())];
    const std::string reading = below(50) == 0 ? std::string{} : fmt::format("{:.3f}", 40 * share());
    const std::string note = below(10) == 0 ? fmt::format("\"{}, {} \"\"{}\"\"\"", name, other, number % 97)
                                            : fmt::format("{} {}", name, other);
    rows += fmt::format("{},{},{},{},{},{:.2f},{:.6f},{:.5e},{},{},2026-{:02}-{:02} 12:{:02},{}\n", number, below(100),
                        static_cast<std::int64_t>(below(2'000'000'000)) - 1'000'000'000, reading, share(),
                        2000 * share() - 1000, share() - 0.5, share() * 1e-4, below(2) == 0 ? "true" : "false", name,
                        1 + below(12), 1 + below(28), below(60), note);
    if (rows.size() < (std::size_t{1} << 20U)) continue;
    written += rows.size();
    file << rows;
    rows.clear();
  }
  file << rows;
}

// Keeps this thread, and those that it starts, on one core while it lives.
class OnOneCore {
 public:
  OnOneCore() {
    sched_getaffinity(0, sizeof former_, &former_);
    int core = 0;
    while (!CPU_ISSET(core, &former_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;
  ~OnOneCore() { sched_setaffinity(0, sizeof former_, &former_); }

 private:
  cpu_set_t former_;
};

// All columns are kept until the end, as a data frame keeps them.
void read_whole_csv(const std::string& path) {
  const ry::CsvSource source{path};
  std::vector<ry::Block> blocks;
  for (const auto reader = source.open(0);;) {
    ry::Block block = reader->next(1U << 20U);
    if (block.empty()) return;
    blocks.push_back(std::move(block));
  }
}

// Each reads it once before what is measured: memory that a process has for the first time costs as much as parsing,
// and is the system's affair.
void measure_csv(const Peers& peers) {
  const OnOneCore here;
  write_mixed_csv("mixed.csv", 200'000'000);
  read_whole_csv("mixed.csv");
  for (const std::string peer : {"pandas", "pyarrow"}) {
    compare(
        fmt::format("csv.{}_over_ours", peer), [&] { return peers.seconds(peer, "mixed.csv"); },
        [] { read_whole_csv("mixed.csv"); }, 7);
  }
}

// Runs on one worker.
void on_a_worker(const std::function<void(ry::Worker&)>& body) {
  ry::Trainer<ry::SharedMemory, ry::Threads> trainer{
      [&](ry::Worker& worker) { body(worker); }, {.num_workers = 1}, {.progress = ry::Progress::quiet}};
  trainer.fit().value_or_throw();
}

double g_sink = 0;  // what keeps the compiler from leaving work out

void measure_loaders(const Peers& peers) {
  on_a_worker([&](ry::Worker& worker) {
    constexpr std::int64_t count = 100'000;
    constexpr std::int64_t batch = 256;
    const auto values = torch::rand({count, 20});
    const auto labels = torch::arange(count);
    auto loader = ry::prepare_loader(worker, std::pair{values, labels}, {.global_batch_size = 256});
    std::vector<double> slicing;
    std::vector<double> ours;
    for (int turn = 0; turn < 31; ++turn) {
      ours.push_back(seconds_of([&] {
        for (const auto& one : loader) g_sink += static_cast<double>(one.data.size(0) + one.target.size(0));
      }));
      slicing.push_back(seconds_of([&] {
        for (std::int64_t begin = 0; begin < count; begin += batch) {
          const auto end = std::min(count, begin + batch);
          g_sink += static_cast<double>(values.slice(0, begin, end).size(0) + labels.slice(0, begin, end).size(0));
        }
      }));
    }
    tell("loader.in_memory.slicing_over_ours", median(slicing) / median(ours), "ratio");

    constexpr std::size_t num_pictures = 60'000;
    std::vector<std::uint8_t> pixels(num_pictures * 784, 7);
    std::vector<std::int64_t> digits(num_pictures, 3);
    const ry::Schema scaled{{"picture", ry::Dtype::f32, {28, 28}}, {"digit", ry::Dtype::i64}};
    const auto pictures = ry::Dataset::from_columns({{"picture", {28, 28}, pixels}, {"digit", digits}})
                              .map(scaled,
                                   [](const ry::Sample& in, ry::SampleWriter& out) {
                                     const auto from = in.values<std::uint8_t>(0);
                                     std::array<float, 784> to;
                                     for (std::size_t at = 0; at < to.size(); ++at) {
                                       to[at] = static_cast<float>(from[at]) / 255.0F;
                                     }
                                     out.set(0, std::span<const float>{to});
                                     out.set(1, in.values<std::int64_t>(1));
                                   })
                              .with_label("digit");
    auto small = ry::prepare_loader(worker, pictures, {.global_batch_size = 64, .shuffle = true, .threads = 2});
    compare(
        "loader.small_samples.torch_dataloader_over_ours",
        [&] { return peers.seconds("dataloader", std::to_string(num_pictures)); },
        [&] {
          for (const auto& one : small) g_sink += static_cast<double>(one.data.size(0));
        });
  });
}

void measure_jpeg(const Peers& peers) {
  if (!peers.seconds("photographs", "photographs")) return;
  on_a_worker([&](ry::Worker& worker) {
    const ry::Dataset pictures{ry::ImageFolder{"photographs", {.height = 224, .width = 224}}};
    auto loader = ry::prepare_loader(worker, pictures.with_label("label"),
                                     {.global_batch_size = 64, .shuffle = true, .threads = 2});
    compare(
        "loader.jpeg.torch_dataloader_over_ours", [&] { return peers.seconds("jpeg", "photographs"); },
        [&] {
          for (const auto& one : loader) g_sink += static_cast<double>(one.data.size(0));
        });
  });
}

void measure_ray(const Peers& peers) {
  on_a_worker([&](ry::Worker& worker) {
    const auto table = ry::read_csv("mixed.csv", {.label = "age"}).select({"age", "balance", "share", "noise"});
    auto loader = ry::prepare_loader(worker, table, {.global_batch_size = 256});
    compare(
        "loader.ray_data_over_ours", [&] { return peers.seconds("ray", "mixed.csv"); },
        [&] {
          for (const auto& one : loader) g_sink += static_cast<double>(one.data.size(0));
        });
  });
}

// The share of the step's time in which the loop waits for data. The samples lie in memory, and one thread gathers
// those of a batch in the order of the epoch while the loop trains: nothing is parsed, decoded or mapped.
void measure_stall() {
  double stall = 0;
  on_a_worker([&](ry::Worker& worker) {
    constexpr std::size_t count = 100'000;
    std::vector<float> values(count * 784, 0.5F);
    std::vector<std::int64_t> digits(count, 3);
    const auto set = ry::Dataset::from_columns({{"pixels", {784}, values}, {"digit", digits}}).with_label("digit");
    auto net = ry::prepare_model(worker, [] {
      using torch::nn::Linear;
      return torch::nn::Sequential(Linear(784, 512), torch::nn::ReLU(), Linear(512, 512), torch::nn::ReLU(),
                                   Linear(512, 512), torch::nn::ReLU(), Linear(512, 10));
    });
    auto loader =
        ry::prepare_loader(worker, set, {.global_batch_size = 64, .shuffle = true, .drives_step = true, .threads = 1});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
    for (const auto& batch : loader) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
    stall = ry::step_times(worker).share_of_data();
  });
  tell("loader.stall_percent", 100 * stall, "percent");
}

std::size_t status_bytes(std::string_view field) {
  std::ifstream file{"/proc/self/status"};
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field)) return std::stoul(line.substr(field.size() + 1)) * 1024;
  }
  throw std::runtime_error{"/proc/self/status lacks a field"};
}

// Goes over it once in a process of its own, whose peak is only this; more than was there before, over the bound.
double peak_of(const ry::Dataset& stream, std::size_t count, const ry::EpochOptions& options) {
  const std::size_t before = status_bytes("VmRSS:");
  ry::EpochReader reader{stream, options};
  std::size_t samples = 0;
  while (const auto step = reader.next()) samples += step->samples;
  if (samples != count) throw std::runtime_error{"the stream has lost samples"};
  return static_cast<double>(status_bytes("VmHWM:") - before) / static_cast<double>(options.bound_bytes);
}

// Numbers become samples of 150 KB before a window.
double enlarged_peak_over_bound() {
  constexpr std::size_t bound = std::size_t{256} << 20U;
  constexpr std::size_t width = 150'528;
  constexpr std::size_t count = 10 * bound / width;
  const ry::Schema schema{{"x", ry::Dtype::u8, {width}}};
  const std::vector<std::uint8_t> row(width, 7);
  const auto enlarge = [&row](const ry::Sample&, ry::SampleWriter& out) { out.set("x", row); };
  const auto numbers = ry::Dataset::from_columns({{"n", std::vector<std::int64_t>(count)}});
  return peak_of(numbers.map(schema, enlarge).shuffle_window(500), count,
                 {.global_batch_size = 32, .prefetch = 100'000, .bound_bytes = bound});
}

double peak_over_bound() {
  constexpr std::size_t bound = std::size_t{256} << 20U;
  constexpr std::size_t width = 10'240;
  constexpr std::size_t count = 10 * bound / width;
  const ry::Schema schema{{"x", ry::Dtype::u8, {width}}};
  const std::vector<std::uint8_t> row(width, 7);
  const auto begin = [&row] {
    return [&row, at = std::size_t{0}](ry::SampleWriter& out) mutable {
      if (at++ == count) return false;
      out.set("x", row);
      return true;
    };
  };
  const auto same = [](const ry::Sample& in, ry::SampleWriter& out) { out.set("x", in.values<std::uint8_t>("x")); };
  const auto stream = ry::Dataset::from_generator(schema, begin)
                          .map(same)
                          .filter([](const ry::Sample&) { return true; })
                          .shuffle_window(8000)
                          .map(same);
  return peak_of(stream, count, {.global_batch_size = 256, .prefetch = 100'000, .bound_bytes = bound});
}

// Runs the function in a child, which has this process's memory to begin with, and returns its number.
double in_a_child(const std::function<double()>& function) {
  void* shared = ::mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error{"mmap failed"};
  auto* result = static_cast<double*>(shared);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      *result = function();
      ::_exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const double value = *result;
  ::munmap(shared, sizeof(double));
  if (status != 0) throw std::runtime_error{"a measurement has failed"};
  return value;
}

// 10 M samples in 10 files, of which a process that has not read them before goes on in the middle. The source's own
// search there makes the index of the files up to it, the next finds that made. A resumed reader waits for more until
// it has its first batch of 64: it compares the number of samples with the saved one, for which it counts all files.
void measure_seek(std::uint64_t rows_per_file) {
  constexpr std::uint64_t files = 10;
  const std::uint64_t count = files * rows_per_file;
  const std::uint64_t middle = count / 2;
  std::filesystem::create_directories("seek");
  for (std::uint64_t file = 0; file < files; ++file) {
    std::ofstream out{fmt::format("seek/part{}.csv", file), std::ios::binary};
    std::string rows = "id,value\n";
    for (std::uint64_t row = 0; row < rows_per_file; ++row) {
      rows += fmt::format("{},{}\n", file * rows_per_file + row, row % 977);
    }
    out << rows;
  }
  const auto seek_ms = [&](int round) {
    return in_a_child([&] {
      const ry::CsvSource source{"seek/*.csv"};
      static_cast<void>(source.schema());
      double ms = 0;
      for (int at = 0; at <= round; ++at) {
        ms = 1000 * seconds_of([&] {
               const std::uint64_t place = middle + static_cast<std::uint64_t>(at);
               const ry::Block block = source.open(place)->next(64);
               if (block.ids().front() != place) throw std::runtime_error{"a wrong sample"};
             });
      }
      return ms;
    });
  };
  const auto first_batch_ms = [&](bool shuffle) {
    return in_a_child([&] {
      return 1000 * seconds_of([&] {
               const ry::Dataset dataset{ry::CsvSource{"seek/*.csv"}};
               const ry::EpochPosition begin{0, 0, shuffle, count};
               ry::EpochReader reader{
                   dataset, {.global_batch_size = 64, .shuffle = shuffle, .from = begin.moved_to(middle, {})}};
               const auto step = reader.next();
               if (!step || step->samples != 64) throw std::runtime_error{"no batch where one was to come"};
               if (!shuffle && step->block.ids().front() != middle) throw std::runtime_error{"a wrong sample"};
             });
    });
  };
  std::array<std::vector<double>, 4> ms;
  for (int turn = 0; turn < 5; ++turn) {
    ms[0].push_back(seek_ms(0));
    ms[1].push_back(seek_ms(1));
    ms[2].push_back(first_batch_ms(false));
    ms[3].push_back(first_batch_ms(true));
  }
  tell("resume.seek_ms", median(ms[0]), "ms");
  tell("resume.second_seek_ms", median(ms[1]), "ms");
  tell("resume.first_batch_ms", median(ms[2]), "ms");
  tell("resume.first_batch_shuffled_ms", median(ms[3]), "ms");
}

// How often each sample is made when the four workers of a host go over a dataset once: each over its part, or each
// over all of it.
double decodes_per_sample(bool is_whole, const std::function<ry::Dataset(std::atomic<std::uint64_t>&)>& make) {
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error{"mmap failed"};
  auto& decodes = *new (shared) std::atomic<std::uint64_t>{0};
  const auto count = [](ry::Worker& worker) {
    auto loader = ry::prepare_loader(worker, worker.dataset("data"), {.global_batch_size = 64});
    double sum = 0;
    for (const auto& batch : loader) sum += static_cast<double>(batch.size());
    worker.all_reduce(ry::buffer_of_value(sum), ry::ReduceOp::sum);
    worker.report({{"samples", sum}});
  };
  ry::DataConfig data;
  if (is_whole) data.split.clear();
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{
      count, {.num_workers = 4}, {.data = data, .progress = ry::Progress::quiet}, {{"data", make(decodes)}}};
  const double samples = trainer.fit().value_or_throw().metrics().at("samples").number() / (is_whole ? 4 : 1);
  const double result = static_cast<double>(decodes.load()) / samples;
  ::munmap(shared, 4096);
  return result;
}

void measure_decodes() {
  constexpr std::uint64_t count = 10'000;
  const ry::Schema schema{{"x", ry::Dtype::f32, {8}}};
  const auto write = [](std::uint64_t id, ry::SampleWriter& out) {
    out.set("x", std::vector<float>(8, static_cast<float>(id)));
  };
  const auto counted = [](std::atomic<std::uint64_t>& decodes) {
    return [&decodes](const ry::Sample& in, ry::SampleWriter& out) {
      decodes.fetch_add(1);
      out.set("x", in.values<float>("x"));
    };
  };
  const auto indexed = [&](auto& decodes) {
    return ry::Dataset::from_function(schema, count, write).map(counted(decodes));
  };
  const auto stream = [&](auto& decodes) {
    const auto begin = [&write, &decodes] {
      return [&write, &decodes, at = std::uint64_t{0}](ry::SampleWriter& out) mutable {
        if (at == count) return false;
        decodes.fetch_add(1);
        write(at++, out);
        return true;
      };
    };
    return ry::Dataset::from_generator(schema, begin).shuffle_window(1000);
  };
  tell("host.decodes_per_sample", decodes_per_sample(false, indexed), "samples");
  tell("host.decodes_per_sample.stream", decodes_per_sample(false, stream), "samples");
  tell("host.whole.decodes_per_sample", decodes_per_sample(true, indexed), "samples");
  tell("host.whole.decodes_per_sample.stream", decodes_per_sample(true, stream), "samples");
}

}  // namespace

int main(int argc, char** argv) try {
  const Peers peers = argc > 2 ? Peers{argv[1], argv[2]} : Peers{{}, {}};
  tell("stream.peak_over_bound", in_a_child(peak_over_bound), "ratio");  // while this process is small
  tell("stream.enlarged_peak_over_bound", in_a_child(enlarged_peak_over_bound), "ratio");
  measure_seek(1'000'000);
  measure_csv(peers);
  measure_loaders(peers);
  measure_jpeg(peers);
  measure_stall();
  measure_ray(peers);
  measure_decodes();
  return g_sink < 0 ? 2 : 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
