// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB
#include "railyard/data/npz_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"
#include "unit/data/deflate.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::string npz_array(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + "}";
  return std::string{"\x93NUMPY\1\0", 8} + binary_files::bytes_of(static_cast<std::uint16_t>(header.size())) + header +
         data;
}

/// Packs files as zip does.
class ZipFile {
 public:
  void add(const std::string& name, const std::string& content, bool is_deflated, bool is_large = false) {
    const std::string stored = is_deflated ? deflated(content, -MAX_WBITS) : content;
    const auto crc =
        static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
    const auto number = [](std::size_t size) { return binary_files::bytes_of(static_cast<std::uint32_t>(size)); };
    const auto half = [](std::size_t size) { return binary_files::bytes_of(static_cast<std::uint16_t>(size)); };
    const auto large = [](std::size_t size) { return binary_files::bytes_of(static_cast<std::uint64_t>(size)); };
    const std::string sizes =
        is_large ? number(0xFFFFFFFF) + number(0xFFFFFFFF) : number(stored.size()) + number(content.size());
    const std::string extra =
        half(0x7777) + half(2) + "xx" +
        (is_large ? half(1) + half(24) + large(content.size()) + large(stored.size()) + large(bytes_.size()) : "");
    const std::string common =
        half(20) + half(0) + half(is_deflated ? 8 : 0) + half(0) + half(0) + number(crc) + sizes + half(name.size());
    directory_ += "PK\x01\x02" + half(20) + common + half(extra.size()) + half(3) + half(0) + half(0) + number(0) +
                  number(is_large ? 0xFFFFFFFF : bytes_.size()) + name + extra + "hey";
    bytes_ += "PK\x03\x04" + common + half(4) + name + half(0x7777) + half(0) + stored;
    ++num_files_;
  }
  [[nodiscard]] std::string finish(bool is_large = false) const {
    const auto number = [](std::size_t size) { return binary_files::bytes_of(static_cast<std::uint32_t>(size)); };
    const auto half = [](std::size_t size) { return binary_files::bytes_of(static_cast<std::uint16_t>(size)); };
    const auto large = [](std::size_t size) { return binary_files::bytes_of(static_cast<std::uint64_t>(size)); };
    std::string end = "PK\x05\x06" + half(0) + half(0) + half(num_files_) + half(num_files_) +
                      number(directory_.size()) + number(bytes_.size()) + half(7) + "comment";
    if (is_large) {
      end = "PK\x06\x06" + large(44) + half(45) + half(45) + number(0) + number(0) + large(num_files_) +
            large(num_files_) + large(directory_.size()) + large(bytes_.size()) + "PK\x06\x07" + number(0) +
            large(bytes_.size() + directory_.size()) + number(1) + "PK\x05\x06" + half(0) + half(0) + half(0xFFFF) +
            half(0xFFFF) + number(0xFFFFFFFF) + number(0xFFFFFFFF) + half(0);
    }
    return bytes_ + directory_ + end;
  }

 private:
  std::string bytes_{};
  std::string directory_{};
  std::size_t num_files_ = 0;
};

std::string error_of_npz(const TemporaryFolder& folder, const std::string& bytes,
                         const ry::NpzSourceOptions& options = {}) {
  return binary_files::error_of(ry::NpzSource{folder.write("a.npz", bytes), options});
}

}  // namespace

TEST_CASE("NpzSource: makes columns of arrays that are stored or deflated, in small archives and large ones") {
  const TemporaryFolder folder;
  for (const bool is_large : {false, true}) {
    ZipFile zip;
    zip.add("x.npy", npz_array("<f4", "(2, 2)", binary_files::bytes_of<float>({1, 2, 3, 4})), false, is_large);
    zip.add("y.npy", npz_array("<i8", "(2,)", binary_files::bytes_of<std::int64_t>({-5, 6})), true, is_large);
    zip.add("names.npy", npz_array("|O", "(7,)", "pickled"), true, is_large);
    folder.write(is_large ? "1.npz" : "0.npz", zip.finish(is_large));
  }
  const ry::NpzSource source{folder / "*.npz", {.columns = {"y", "x"}, .label = "y"}};
  CHECK(source.schema() == ry::Schema{{"y", ry::Dtype::i64}, {"x", ry::Dtype::f32, {2}}});
  CHECK(source.label() == "y");
  CHECK(binary_files::all_values<float>(source, "x") == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(binary_files::all_values<std::int64_t>(source, "y") == std::vector<std::int64_t>{-5, 6, -5, 6});
  binary_files::check_order_of(source);
  CHECK_THAT(binary_files::error_of(ry::NpzSource{folder / "0.npz"}), ContainsSubstring("type \"|O\""));
}

TEST_CASE("NpzSource: says what is wrong with an archive") {
  const TemporaryFolder folder;
  ZipFile zip;
  const std::string values = std::string(3000, 'v') + "abc";
  zip.add("x.npy", npz_array("|u1", "(3003,)", values), true);
  const std::string bytes = zip.finish();
  CHECK(error_of_npz(folder, bytes) == "no error");
  CHECK_THAT(error_of_npz(folder, bytes, {.max_unpacked_bytes = 3000}), ContainsSubstring(".max_unpacked_bytes"));
  CHECK_THAT(error_of_npz(folder, bytes, {.columns = {"z"}}), ContainsSubstring("no array \"z\": there are \"x\""));
  CHECK_THAT(error_of_npz(folder, bytes.substr(0, bytes.size() - 30)), ContainsSubstring("no zip archive"));
  CHECK_THAT(error_of_npz(folder, "short"), ContainsSubstring("no zip archive"));
  CHECK_THAT(error_of_npz(folder, bytes.substr(100)), ContainsSubstring("a.npz: byte"));
  CHECK_THAT(error_of_npz(folder, ZipFile{}.finish()), ContainsSubstring("no arrays"));
  const auto changed = [&](const std::string& what, std::size_t offset, const std::string& by) {
    std::string damaged = bytes;
    return damaged.replace(damaged.find(what) + offset, by.size(), by);
  };
  CHECK_THAT(error_of_npz(folder, changed("PK\x01\x02", 16, "xxxx")), ContainsSubstring("checksum"));
  CHECK_THAT(error_of_npz(folder, changed("PK\x01\x02", 10, "\x09")), ContainsSubstring("method 9"));
  CHECK_THAT(error_of_npz(folder, changed("PK\x01\x02", 24, "\xFF\xFF\xFF\x0F")), ContainsSubstring("so small"));
  CHECK_THAT(error_of_npz(folder, changed("PK\x01\x02", 20, "\xFF\xFF\xFF\x0F")), ContainsSubstring("does not end"));
  CHECK_THAT(error_of_npz(folder, changed("PK\x03\x04", 6, "\x01")), ContainsSubstring("encrypted"));
  CHECK_THAT(error_of_npz(folder, changed("x.npy", 9, "\xFF\xFF")), ContainsSubstring("deflated to"));
  CHECK_THAT(error_of_npz(folder, changed("PK\x05\x06", 10, "\x02")), ContainsSubstring("should have 2 files"));
}
#endif
