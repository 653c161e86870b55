// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZSTD
#include "railyard/data/zstd.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/compressed.hpp"
#include "unit/data/resumed.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace ry = railyard;

namespace {

std::string zstd_text(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

}  // namespace

TEST_CASE("zstd: reads files of several frames as one, from any sample on") {
  const TemporaryFolder folder;
  folder.write("a.csv.zst", compressed::parts_of_many_rows(zstd_text));
  compressed::check_many_rows(ry::zstd(folder / "*.zst"));
}

TEST_CASE("zstd: says where a file is damaged or cut off, and names the line of a damaged record") {
  const TemporaryFolder folder;
  const std::string bytes = zstd_text(compressed::many_rows(0, 10'000));
  const auto first_error = [&](const std::string& content) {
    return compressed::error_of_lines(ry::zstd(folder.write("a.zst", content)));
  };
  CHECK(first_error(bytes) == "no error");
  CHECK_THAT(first_error(bytes.substr(0, bytes.size() - 3)), ContainsSubstring("cut off"));
  std::string damaged = bytes;
  damaged[4] = static_cast<char>(damaged[4] ^ 0x08);  // a bit that must be zero
  CHECK_THAT(first_error(damaged), ContainsSubstring("a.zst: byte "));
  CHECK_THAT(first_error(bytes + "garbage"), ContainsSubstring("Unknown frame"));
  CHECK_THAT(first_error("plain text"), ContainsSubstring("Unknown frame"));
  CHECK_THAT(first_error(zstd_text("one\ntwo\n\xFF\n")), ContainsSubstring("a.zst:3: "));
}

TEST_CASE("zstd: what can be read of a damaged frame does not depend on the frames before it") {
  using namespace std::literals;
  const TemporaryFolder folder;
  // Says that it holds 256 bytes, and has a block of 833: where libzstd has room for them, it gives them.
  const std::string damaged{"\x28\xB5\x2F\xFD\x50\x30\0\0\x0A\x1A\0\0\0\x0A\x50\x30"sv};
  const std::string text = compressed::many_rows(0, 100'000);
  const auto bytes_after = [&](std::size_t former, const std::string& bytes) {
    ry::detail::ZstdStream stream{folder.write("a.zst", bytes)};
    std::string part(8, '\0');
    std::size_t all = 0;
    try {
      for (std::size_t got = part.size(); got == part.size(); all += got) got = stream.read(part.data(), part.size());
    } catch (const ry::detail::StreamDamage& damage) {
      all += damage.got();
    }
    return all - former;
  };
  CHECK(bytes_after(text.size(), zstd_text(text) + damaged) == bytes_after(0, damaged));
  CHECK(bytes_after(3, zstd_text("abc") + damaged) == bytes_after(0, damaged));
}

TEST_CASE("zstd: a run that is killed goes on at the begin of the last frame") {
  const TemporaryFolder folder;
  const std::string text = compressed::many_rows(0, 700'000);
  const std::string_view skippable{"\x50\x2A\x4D\x18\x03\0\0\0abc", 11};
  std::mt19937 random{3};
  std::string bytes;
  for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
    size = 1 + random() % (std::size_t{500} << 10U);
    bytes += zstd_text(std::string_view{text}.substr(at, size));
    if (random() % 3 == 0) bytes += skippable;
  }
  folder.write("b.csv.zst", bytes);
  const auto csv = [&] {
    return ry::Dataset{
        ry::CsvStream{resumed::counted<ry::detail::ZstdStream>(folder / "b.csv.zst"), {.has_header = false}}};
  };
  // Between two points, the frame in which they end, and what readers have in their buffers.
  CHECK(resumed::most_work_to_go_on(csv, 10, 8) < std::uint64_t{2} << 20U);

  folder.write("b.csv.zst", zstd_text(text));
  CHECK(resumed::most_work_to_go_on(csv, 5, 9) > text.size() / 3);  // of one frame: from its begin
}

TEST_CASE("zstd: a state that is none of the file is read past, from its begin") {
  const TemporaryFolder folder;
  const std::string text = compressed::many_rows(0, 100'000);
  const std::string_view first = std::string_view{text}.substr(0, 600'000);
  const ry::TextLinesStream source{resumed::counted<ry::detail::ZstdStream>(
      folder.write("a.zst", zstd_text(first) + zstd_text(text.substr(first.size()))))};
  const auto reader = source.open(0);
  for (std::uint64_t next = 0; next < 90'000;) next += reader->next(10'000).rows();
  ry::ReaderPlace place = reader->place();
  REQUIRE(place.state.has_value());
  const std::string right{source.open(90'000)->next(1)[0].text(0)};
  CHECK(source.open(90'000, place)->next(1)[0].text(0) == right);
  const std::string saved = place.state.bytes();
  for (const std::string& bytes : {std::string{}, saved.substr(1), saved + "x", std::string(saved.size(), '\x01')}) {
    place.state = {place.state.sample(), bytes};
    CHECK(source.open(90'000, place)->next(1)[0].text(0) == right);
  }
}
#endif
