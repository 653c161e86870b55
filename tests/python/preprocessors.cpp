// SPDX-License-Identifier: MIT
// Preprocesses what tests/python/preprocessors.py gives it: preprocessors FOLDER NUM_COLUMNS NUM_WORKERS
//
// Reads numbers.f64 (samples x columns), texts.txt (a line per sample) and integers.i64; writes a file of f64 per
// preprocessor.
#include "railyard/data/encoders.hpp"
#include "railyard/data/imputer.hpp"
#include "railyard/data/normalizer.hpp"
#include "railyard/data/scalers.hpp"

#include "unit/data/preprocessing.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

namespace ry = railyard;

std::string bytes_in(const std::filesystem::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}
template <class T>
std::vector<T> elements_in(const std::filesystem::path& path) {
  const std::string bytes = bytes_in(path);
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(T));
  return elements;
}
std::vector<std::string> lines_in(const std::filesystem::path& path) {
  std::ifstream file{path};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Experiment {
  std::filesystem::path folder{};
  std::size_t num_workers = 1;
  ry::Block block{};

  void write(const std::string& name, const ry::Block& result, const std::string& column) const {
    const std::vector<double> values = preprocessing::values_of(result, column);
    std::ofstream file{folder / (name + ".f64"), std::ios::binary};
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(double)));
  }
  template <class P>
  void run(const std::string& name, const P& preprocessor, const std::string& column = "numbers") const {
    const P learned = preprocessing::fitted_by_workers(preprocessor, block, num_workers);
    write(name, preprocessing::reloaded(learned, preprocessor).transform(block), column);
  }
};

void run_all(const Experiment& experiment) {
  const std::vector<std::string> numbers{"numbers"};
  experiment.run("standard", ry::StandardScaler{{.columns = numbers}});
  experiment.run("min_max", ry::MinMaxScaler{{.columns = numbers, .low = -1, .high = 2}});
  experiment.run("max_abs", ry::MaxAbsScaler{{.columns = numbers}});
  experiment.run("robust", ry::RobustScaler{{.columns = numbers, .low = 0.1, .high = 0.85}});
  const ry::SimpleImputer mean{{.columns = numbers}};
  experiment.run("mean", mean);
  experiment.run("median", ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::median}});
  experiment.run("most_frequent", ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::most_frequent}});
  const ry::Block full =
      preprocessing::fitted_by_workers(mean, experiment.block, experiment.num_workers).transform(experiment.block);
  experiment.write("l1", ry::Normalizer{{.columns = numbers, .norm = ry::Norm::l1}}.transform(full), "numbers");
  experiment.write("l2", ry::Normalizer{{.columns = numbers, .norm = ry::Norm::l2}}.transform(full), "numbers");
  experiment.write("max", ry::Normalizer{{.columns = numbers, .norm = ry::Norm::max}}.transform(full), "numbers");
  for (const std::string column : {"texts", "integers"}) {
    experiment.run("one_hot_" + column, ry::OneHotEncoder{{.columns = {column}}}, column);
    experiment.run("ordinal_" + column, ry::OrdinalEncoder{{.columns = {column}}}, column);
    experiment.run("label_" + column, ry::LabelEncoder{column}, column);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::filesystem::path folder = argv[1];
  const std::int64_t num_columns = std::atoi(argv[2]);
  run_all({.folder = folder,
           .num_workers = static_cast<std::size_t>(std::atoi(argv[3])),
           .block = preprocessing::Rows{}
                        .numbers("numbers", elements_in<double>(folder / "numbers.f64"), {num_columns})
                        .texts("texts", lines_in(folder / "texts.txt"))
                        .numbers("integers", elements_in<std::int64_t>(folder / "integers.i64"))
                        .block()});
  return 0;
}
