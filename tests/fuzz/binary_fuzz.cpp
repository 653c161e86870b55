// SPDX-License-Identifier: MIT
// Gives the readers of binary files whatever libFuzzer comes up with: they refuse it or read it, take no more memory
// than the file explains, and say the same of a sample whether it is read alone or after others.
#include "railyard/data/cifar_source.hpp"
#include "railyard/data/idx_source.hpp"
#include "railyard/data/npy_source.hpp"
#include "railyard/data/npz_source.hpp"
#include "railyard/data/safetensors_source.hpp"
#include "railyard/data/tar_source.hpp"

#include "fuzz/sources.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ry = railyard;

namespace {

template <class Source>
void check(const Source& source) {
  const auto reader = source.open(0);
  std::uint64_t seen = 0;
  for (ry::Block block = reader->next(3); !block.empty(); block = reader->next(3)) {
    for (std::size_t row = 0; row < block.rows(); ++row) {
      fuzz::require(block.ids()[row] == seen++);
      if constexpr (ry::IndexedSource<Source>) {
        const std::uint64_t id[] = {seen - 1};
        fuzz::require(fuzz::are_equal(block, row, source.read(id), 0));
      }
    }
  }
  if (const auto count = source.count()) fuzz::require(seen == *count);
}

// An archive is the same whether its samples are looked up or read one after another.
void check_tar(const std::string& path) {
  const ry::TarSourceOptions options{.key = "key", .on_error = ry::OnError::skip()};
  const ry::TarSource indexed{path, options};
  check(indexed);
  const ry::TarStream stream{{path,
                              [](const std::string& file) -> std::unique_ptr<ry::detail::ByteStream> {
                                return std::make_unique<ry::detail::FileBytes>(file);
                              }},
                             options};
  const auto reader = stream.open(0);
  std::uint64_t seen = 0;
  for (ry::Block block = reader->next(1); !block.empty(); block = reader->next(1)) {
    const std::uint64_t id[] = {seen++};
    fuzz::require(fuzz::are_equal(block, 0, indexed.read(id), 0));
  }
  fuzz::require(seen == indexed.count());
  fuzz::require(stream.skipped() == indexed.skipped());
}

void read(std::uint8_t format, const std::string& path) {
  switch (format % 6) {
    case 0:
      return check(ry::NpySource{{{"x", path}}});
    case 1:
      return check(ry::IdxSource{path});
    case 2:
      return check(ry::NpzSource{path});
    case 3:
      return check(ry::SafetensorsSource{path});
    case 4:
      return check(ry::CifarSource{path, {.kind = ry::Cifar::cifar100}});
    default:
      return check_tar(path);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    read(data[0], fuzz::write_file({reinterpret_cast<const char*>(data) + 1, size - 1}));
  } catch (const ry::DataError&) {
  } catch (const ry::ConfigError&) {  // two columns of one name
  }
  return 0;
}
