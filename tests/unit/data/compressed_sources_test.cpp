// SPDX-License-Identifier: MIT
// Every source that takes compressed files, with each way to compress them.
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB && RAILYARD_WITH_ZSTD
#include "railyard/data/cifar_source.hpp"
#include "railyard/data/gzip.hpp"
#include "railyard/data/idx_source.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/npy_source.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/zstd.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"
#include "unit/data/deflate.hpp"
#include "unit/data/tar_files.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zlib.h>
#include <zstd.h>

namespace ry = railyard;

namespace {

struct ByGzip {
  static std::string pack(std::string_view text) { return deflated(text, 16 + MAX_WBITS); }
  static ry::CompressedFiles files(ry::InputFiles files) { return ry::gzip(std::move(files)); }
};

struct ByZstd {
  static std::string pack(std::string_view text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
  }
  static ry::CompressedFiles files(ry::InputFiles files) { return ry::zstd(std::move(files)); }
};

// Writes a file as it is and compressed, the latter in two parts: members of gzip, frames of zstd.
template <class By>
void write_both(const TemporaryFolder& folder, const std::string& name, const std::string& bytes) {
  folder.write(name + ".plain", bytes);
  const std::string_view all{bytes};
  folder.write(name + ".packed", By::pack(all.substr(0, all.size() / 3)) + By::pack(all.substr(all.size() / 3)));
}

void check_is_same_sample(const ry::Block& one, std::size_t row, const ry::Block& other, std::size_t other_row) {
  REQUIRE(one.schema() == other.schema());
  CHECK(one.ids()[row] == other.ids()[other_row]);
  for (std::size_t column = 0; column < one.schema().size(); ++column) {
    CHECK(one[column].text(row) == other[column].text(other_row));
  }
}

// From any sample on.
template <class Packed, class Plain>
void check_gives_as_plain(const Packed& packed, const Plain& plain) {
  CHECK(packed.schema() == plain.schema());
  const std::uint64_t count = *plain.count();
  REQUIRE(count > 2);
  for (const std::uint64_t from : {std::uint64_t{0}, count / 2, count - 1, count}) {
    const auto reader = packed.open(from);
    std::uint64_t next = from;
    for (ry::Block block = reader->next(7); !block.empty(); block = reader->next(7)) {
      for (std::size_t row = 0; row < block.rows(); ++row) {
        const std::uint64_t id[] = {next++};
        check_is_same_sample(block, row, plain.read(id), 0);
      }
    }
    CHECK(next == count);
  }
}

// In another order, too.
template <class Source>
void check_reads_as_plain(const Source& packed, const Source& plain) {
  check_gives_as_plain(packed, plain);
  CHECK(packed.count() == plain.count());
  binary_files::check_order_of(packed);
}

}  // namespace

TEMPLATE_TEST_CASE("Compressed files: JSON Lines and tar archives give the samples of plain ones", "", ByGzip, ByZstd) {
  const TemporaryFolder folder;
  std::string lines;
  std::string archive;
  for (int sample = 0; sample < 300; ++sample) {
    const std::string number = std::to_string(sample);
    lines += R"({"id": )" + number + R"(, "text": "line \u00e9 )" + number + R"(", "list": [)" + number + "]}\n";
    archive += tar_files::tar_file(number + ".txt", number) + tar_files::tar_file(number + ".bin", number + number);
  }
  write_both<TestType>(folder, "lines", lines);
  write_both<TestType>(folder, "archive", archive + tar_files::tar_end);
  check_gives_as_plain(ry::JsonLinesStream{TestType::files(folder / "lines.packed")},
                       ry::JsonLinesSource{folder / "lines.plain"});
  const ry::TarSourceOptions options{.bytes = {"bin"}, .text = {"txt"}, .key = "key"};
  check_gives_as_plain(ry::TarStream{TestType::files(folder / "archive.packed"), options},
                       ry::TarSource{folder / "archive.plain", options});
}

TEMPLATE_TEST_CASE("Compressed files: IDX, CIFAR and NPY give the samples of plain ones, in any order", "", ByGzip,
                   ByZstd) {
  const TemporaryFolder folder;
  const std::string image_header{"\0\0\x08\x03\0\0\0\x05\0\0\0\x01\0\0\0\x02", 16};
  const std::string label_header{"\0\0\x08\x01\0\0\0\x05", 8};
  write_both<TestType>(folder, "images", image_header + "abcdefghij");
  write_both<TestType>(folder, "labels", label_header + "\x01\x02\x03\x04\x05");
  check_reads_as_plain(
      ry::IdxSource{TestType::files(folder / "images.packed"), TestType::files(folder / "labels.packed")},
      ry::IdxSource{folder / "images.plain", folder / "labels.plain"});

  std::string records;
  for (char record = 0; record < 5; ++record) records += record + std::string(3072, static_cast<char>('a' + record));
  write_both<TestType>(folder, "cifar", records);
  check_reads_as_plain(ry::CifarSource{TestType::files(folder / "cifar.packed")},
                       ry::CifarSource{folder / "cifar.plain"});

  const std::string description = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 2), }\n";
  const std::string array = std::string{"\x93NUMPY\x01\0", 8} +
                            binary_files::bytes_of(static_cast<std::uint16_t>(description.size())) + description +
                            binary_files::bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  write_both<TestType>(folder, "array", array);
  check_reads_as_plain(ry::NpySource{{{"x", TestType::files(folder / "array.packed")}}},
                       ry::NpySource{{{"x", folder / "array.plain"}}});
}
#endif
