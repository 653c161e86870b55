// SPDX-License-Identifier: MIT
// The C++ side of tests/python/binary_sources.py and tables.py: `binary_sources SOURCE OUTPUT FILE...` writes all
// columns of a source to OUTPUT.COLUMN, and prints name, dtype, number of samples and shape of each, one a line.
// Samples come in their order and are read again backwards.
#include "railyard/data/cifar_source.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/gzip.hpp"
#include "railyard/data/idx_source.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/npy_source.hpp"
#include "railyard/data/npz_source.hpp"
#include "railyard/data/safetensors_source.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/text_lines_source.hpp"
#if RAILYARD_WITH_IMAGES
#include "railyard/data/image_folder.hpp"
#endif

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ry = railyard;

namespace {

template <ry::DatasetSource Source>
void write(const Source& source, const std::string& output) {
  const ry::Schema schema = source.schema();
  std::vector<std::ofstream> files;
  for (const ry::Field& field : schema) files.emplace_back(output + "." + field.name, std::ios::binary);
  const auto reader = source.open(0);
  std::uint64_t count = 0;
  for (ry::Block block = reader->next(37); !block.empty(); block = reader->next(37)) {
    count += block.rows();
    for (std::size_t column = 0; column < schema.size(); ++column) {
      for (std::size_t row = 0; row < block.rows(); ++row) {
        const std::string_view bytes = block[column].text(row);
        if (schema[column].is_ragged()) files[column] << bytes.size() << ' ';
        files[column].write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if constexpr (ry::IndexedSource<Source>) {
          const std::uint64_t id[] = {block.ids()[row]};
          if (source.read(id)[column].text(0) != bytes) throw std::runtime_error{"read() gives something else"};
        }
      }
    }
  }
  for (const ry::Field& field : schema) {
    fmt::print("{}\t{}\t{}\t{}\n", field.name, ry::name_of(field.dtype), count, fmt::join(field.shape, ","));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string_view source = argv[1];
  const std::string output = argv[2];
  const std::vector<std::string> files(argv + 3, argv + argc);
  if (source == "csv") write(ry::CsvSource{files}, output);
  if (source == "csv.semicolon") write(ry::CsvSource{files, {.delimiter = ';'}}, output);
  if (source == "csv.bare") write(ry::CsvSource{files, {.has_header = false}}, output);
  if (source == "csv.gz") write(ry::CsvStream{ry::gzip(files)}, output);
  if (source == "csv.gz.bare") write(ry::CsvStream{ry::gzip(files), {.has_header = false}}, output);
  if (source == "json") write(ry::JsonLinesSource{files}, output);
  if (source == "lines") write(ry::TextLinesSource{files}, output);
  if (source == "idx") write(ry::IdxSource{files.at(0), files.at(1)}, output);
  if (source == "idx.gz") write(ry::IdxSource{ry::gzip(files.at(0)), ry::gzip(files.at(1))}, output);
  if (source == "npy") write(ry::NpySource{{{"data", files}}}, output);
  if (source == "npz") write(ry::NpzSource{files}, output);
  if (source.starts_with("npz:")) write(ry::NpzSource{files, {.columns = {std::string{source.substr(4)}}}}, output);
  if (source == "cifar") write(ry::CifarSource{files}, output);
  if (source == "safetensors") write(ry::SafetensorsSource{files}, output);
  if (source == "tar") write(ry::TarSource{files, {.key = "key"}}, output);
  if (source == "tar.gz") write(ry::TarStream{ry::gzip(files), {.key = "key"}}, output);
#if RAILYARD_WITH_IMAGES
  if (source == "images") write(ry::ImageFolder{files.at(0)}, output);
  if (source == "images.grey") write(ry::ImageFolder{files.at(0), {.colors = ry::ImageColors::grey}}, output);
  if (source == "images.rgba") write(ry::ImageFolder{files.at(0), {.colors = ry::ImageColors::rgba}}, output);
  if (source == "images.crop") write(ry::ImageFolder{files.at(0), {.height = 50, .width = 40}}, output);
  if (source == "images.stretch") {
    write(ry::ImageFolder{files.at(0),
                          {.height = 64,
                           .width = 96,
                           .fit = ry::ImageFit::stretch,
                           .layout = ry::ImageLayout::chw,
                           .colors = ry::ImageColors::rgba}},
          output);
  }
#endif
  return 0;
}
