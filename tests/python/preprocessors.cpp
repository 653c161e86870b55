// SPDX-License-Identifier: MIT
// Preprocesses what tests/python/preprocessors.py gives it: preprocessors FOLDER NUM_COLUMNS NUM_WORKERS
//
// Reads numbers.f64 and floats.f32 (samples x columns), texts.txt (a line per sample) and integers.i64, and of samples
// that are transformed without having been learned from new_numbers.f64, new_texts.txt and new_integers.i64; writes a
// file of f64 per preprocessor.
#include "railyard/data/chain.hpp"
#include "railyard/data/concatenator.hpp"
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
  ry::Block fresh{};  // that nothing has been learned from

  void write(const std::string& name, const ry::Block& result, const std::string& column) const {
    const std::vector<double> values = preprocessing::values_of(result, column);
    std::ofstream file{folder / (name + ".f64"), std::ios::binary};
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(double)));
  }
  template <class P>
  void run(const std::string& name, const P& preprocessor, const std::string& column = "numbers") const {
    write(name, learned(preprocessor).transform(block), column);
  }
  template <class P>
  void run_fresh(const std::string& name, const P& preprocessor, const std::string& column = "numbers") const {
    write(name, learned(preprocessor).transform(fresh), column);
  }

 private:
  template <class P>
  [[nodiscard]] P learned(const P& preprocessor) const {
    return preprocessing::reloaded(preprocessing::fitted_by_workers(preprocessor, block, num_workers), preprocessor);
  }
};

void run_all(const Experiment& experiment) {
  const std::vector<std::string> numbers{"numbers"};
  const std::vector<std::string> floats{"floats"};
  experiment.run("standard", ry::StandardScaler{{.columns = numbers}});
  experiment.run("centered", ry::StandardScaler{{.columns = numbers, .scales = false}});
  experiment.run("scaled", ry::StandardScaler{{.columns = numbers, .centers = false}});
  experiment.run("standard_f32", ry::StandardScaler{{.columns = floats}}, "floats");
  experiment.run_fresh("standard_fresh", ry::StandardScaler{{.columns = numbers}});
  experiment.run("min_max", ry::MinMaxScaler{{.columns = numbers, .low = -1, .high = 2}});
  experiment.run("min_max_f32", ry::MinMaxScaler{{.columns = floats, .low = -1, .high = 2}}, "floats");
  experiment.run_fresh("clipped", ry::MinMaxScaler{{.columns = numbers, .low = -1, .high = 2, .clips = true}});
  experiment.run("max_abs", ry::MaxAbsScaler{{.columns = numbers}});
  experiment.run("robust", ry::RobustScaler{{.columns = numbers, .low = 0.1, .high = 0.85}});
  const ry::SimpleImputer mean{{.columns = numbers}};
  experiment.run("mean", mean);
  experiment.run("mean_f32", ry::SimpleImputer{{.columns = floats}}, "floats");
  experiment.run("constant", ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::constant, .number = -1.5}});
  experiment.run("median", ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::median}});
  experiment.run("most_frequent", ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::most_frequent}});
  const ry::Block full =
      preprocessing::fitted_by_workers(mean, experiment.block, experiment.num_workers).transform(experiment.block);
  experiment.write("l1", ry::Normalizer{{.columns = numbers, .norm = ry::Norm::l1}}.transform(full), "numbers");
  experiment.write("l2", ry::Normalizer{{.columns = numbers, .norm = ry::Norm::l2}}.transform(full), "numbers");
  experiment.write("max", ry::Normalizer{{.columns = numbers, .norm = ry::Norm::max}}.transform(full), "numbers");
  const ry::Chain chain{ry::SimpleImputer{{.columns = numbers, .with = ry::Impute::median}},
                        ry::StandardScaler{{.columns = numbers}}, ry::MinMaxScaler{{.columns = numbers}}};
  experiment.run("chain", chain);
  experiment.run_fresh("chain_fresh", chain);
  experiment.run("joined",
                 ry::Chain{mean, ry::StandardScaler{{.columns = numbers}}, ry::OneHotEncoder{{.columns = {"texts"}}},
                           ry::OrdinalEncoder{{.columns = {"integers"}}},
                           ry::Concatenator{{.columns = {"texts", "numbers", "integers"}, .dtype = ry::Dtype::f64}}},
                 "data");
  for (const std::string column : {"texts", "integers"}) {
    experiment.run("one_hot_" + column, ry::OneHotEncoder{{.columns = {column}}}, column);
    experiment.run("ordinal_" + column, ry::OrdinalEncoder{{.columns = {column}}}, column);
    experiment.run("label_" + column, ry::LabelEncoder{column}, column);
    constexpr auto ignore = ry::Unseen::ignore;
    experiment.run_fresh("one_hot_unseen_" + column, ry::OneHotEncoder{{.columns = {column}, .unseen = ignore}},
                         column);
    experiment.run_fresh("ordinal_unseen_" + column,
                         ry::OrdinalEncoder{{.columns = {column}, .unseen = ignore, .unseen_value = -7}}, column);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::filesystem::path folder = argv[1];
  const std::int64_t num_columns = std::atoi(argv[2]);
  const auto rows = [&](const std::string& prefix) {
    return preprocessing::Rows{}
        .numbers("numbers", elements_in<double>(folder / (prefix + "numbers.f64")), {num_columns})
        .texts("texts", lines_in(folder / (prefix + "texts.txt")))
        .numbers("integers", elements_in<std::int64_t>(folder / (prefix + "integers.i64")));
  };
  run_all({.folder = folder,
           .num_workers = static_cast<std::size_t>(std::atoi(argv[3])),
           .block = rows("").numbers("floats", elements_in<float>(folder / "floats.f32"), {num_columns}).block(),
           .fresh = rows("new_").block()});
  return 0;
}
