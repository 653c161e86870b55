// SPDX-License-Identifier: MIT
// Gives the readers of binary files whatever libFuzzer comes up with: they refuse it or read it, take no more memory
// than the file explains, and say the same of a sample whether it is read alone or after others. So with saved places,
// and with caches.
#include "railyard/data/cifar_source.hpp"
#include "railyard/data/detail/place.hpp"
#include "railyard/data/detail/sample_file.hpp"
#include "railyard/data/gzip.hpp"
#include "railyard/data/idx_source.hpp"
#include "railyard/data/npy_source.hpp"
#include "railyard/data/npz_source.hpp"
#include "railyard/data/safetensors_source.hpp"
#include "railyard/data/tar_source.hpp"

#include "fuzz/sources.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>

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

// Whatever a position says of a compressed file, it is unpacked from there, or that is refused. The file ends with
// what it says but for the place, which is one in this file, and with how long that is.
void check_gzip(const std::string& path, std::string_view bytes) {
  if (bytes.empty()) return;
  const std::size_t size = std::min<std::size_t>(static_cast<unsigned char>(bytes.back()), bytes.size() - 1);
  const std::string_view point = bytes.substr(bytes.size() - 1 - size, size);
  ry::detail::CompressedInput input{path, "gzip"};
  const std::string_view piece = input.next();
  const std::size_t left = point.empty() ? 0 : piece.size() * static_cast<unsigned char>(point.back()) / 256;
  ry::detail::WireWriter saved;
  saved.put(*input.place(left));
  saved.put_rest(std::as_bytes(std::span{point}));
  ry::detail::GzipStream stream{path};
  const std::uint64_t offset = point.size();
  if (!stream.go_to(offset, saved.text())) return;
  std::string unpacked(std::size_t{64} << 10U, '\0');
  static_cast<void>(stream.read(unpacked.data(), unpacked.size()));
  if (const auto next = stream.take_point(~std::uint64_t{0})) {
    fuzz::require(next->offset >= offset);
    static_cast<void>(next->save());
  }
}

// The file of a cache whose sums are right, whatever its index says: that is refused, or a sample is the same alone and
// after others. The first byte says how much of the rest are samples.
void check_cache(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::size_t size = std::min<std::size_t>(static_cast<unsigned char>(bytes.front()), bytes.size() - 1);
  std::string file{bytes.substr(1, size)};
  auto index = ry::detail::IndexBytes<>::read(std::string{bytes.substr(1 + size)});
  if (!index) return;
  ry::detail::PageHashes hashes;
  hashes.add(std::as_bytes(std::span{file}));
  index->page_hashes = hashes.finish();
  const std::string text = ry::detail::IndexBytes<>::write(*index);
  const ry::detail::SampleFileTail tail{text.size(), ry::detail::digest_of(std::as_bytes(std::span{text}))};
  file += text;
  file.append(reinterpret_cast<const char*>(&tail), sizeof tail);
  const std::string& path = fuzz::write_file(file);
  const auto schema = std::make_shared<const ry::Schema>(
      ry::Schema{{.name = "x", .dtype = ry::Dtype::u8, .shape = {2}}, ry::Field::text("t")});
  const ry::detail::SampleFile<> cache{ry::detail::Descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)}, path,
                                       schema};
  std::vector<std::uint64_t> places(std::min<std::uint64_t>(cache.count(), 64));
  std::iota(places.begin(), places.end(), std::uint64_t{0});
  const ry::Block all = cache.read(places);
  fuzz::require(all.rows() == places.size());
  for (const std::uint64_t place : places) {
    const std::uint64_t only[] = {place};
    const ry::Block one = cache.read(only);
    fuzz::require(fuzz::are_equal(all, place, one, 0));
    fuzz::require(one.ids()[0] == all.ids()[place] && one.sibling(0) == all.sibling(place));
  }
}

// A place that is read is written as it was.
void check_place(std::string_view text) {
  if (const auto place = ry::detail::place_of_text(text)) {
    fuzz::require(ry::detail::place_of_text(ry::detail::text_of_place(*place)) == place);
  }
}

void read(std::uint8_t format, const std::string& path, std::string_view bytes) {
  switch (format % 9) {
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
    case 5:
      return check_tar(path);
    case 6:
      return check_gzip(path, bytes);
    case 7:
      return check_place(bytes);
    default:
      return check_cache(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    const std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
    read(data[0], fuzz::write_file(bytes), bytes);
  } catch (const ry::DataError&) {
  } catch (const ry::ConfigError&) {  // two columns of one name
  }
  return 0;
}
