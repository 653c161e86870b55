// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZSTD
#include "railyard/data/csv_source.hpp"
#include "railyard/data/text_lines_source.hpp"
#include "railyard/data/zstd.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>

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
  // More than the pieces of input and of output.
  const std::string bytes = zstd_text("id,x\n" + many_rows(0, 60'000)) + zstd_text(many_rows(60'000, 60'001)) +
                            zstd_text(many_rows(60'001, 100'000));
  folder.write("a.csv.zst", bytes);
  const ry::CsvStream source{ry::zstd(folder / "*.zst"), {.label = "x"}};
  CHECK(source.count() == std::nullopt);
  CHECK(source.label() == "x");
  std::int64_t next = 0;
  const auto reader = source.open(0);
  for (ry::Block block = reader->next(1000); !block.empty(); block = reader->next(1000)) {
    for (const std::int64_t id : block.column("id").values<std::int64_t>()) REQUIRE(id == next++);
  }
  CHECK(next == 100'000);
  CHECK(source.open(70'000)->next(1).ids()[0] == 70'000);
  CHECK(source.open(100'000)->next(1).empty());
}

TEST_CASE("zstd: says where a file is damaged or cut off, and names the line of a damaged record") {
  const TemporaryFolder folder;
  const std::string bytes = zstd_text(many_rows(0, 10'000));
  const auto first_error = [&](const std::string& content) -> std::string {
    try {
      const ry::TextLinesStream source{ry::zstd(folder.write("a.zst", content))};
      for (const auto reader = source.open(0); !reader->next(1000).empty();) {
      }
    } catch (const ry::DataError& error) {
      return error.what();
    }
    return "no error";
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
#endif
