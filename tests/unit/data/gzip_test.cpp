// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB
#include "railyard/data/csv_source.hpp"
#include "railyard/data/gzip.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>

namespace ry = railyard;

namespace {

std::string gzip_text(std::string_view text) {
  std::string out(text.size() + 1000, '\0');
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<unsigned>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<unsigned>(out.size());
  deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

}  // namespace

TEST_CASE("gzip: reads files of several members as one, from any sample on") {
  const TemporaryFolder folder;
  // More than the pieces of input and of output.
  const std::string bytes = gzip_text("id,x\n" + many_rows(0, 60'000)) + gzip_text(many_rows(60'000, 60'001)) +
                            gzip_text(many_rows(60'001, 100'000)) + std::string(600, '\0');
  folder.write("a.csv.gz", bytes);
  const ry::CsvStream source{ry::gzip(folder / "*.gz"), {.label = "x"}};
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

TEST_CASE("gzip: says where a file is damaged or cut off, and names the line of a damaged record") {
  const TemporaryFolder folder;
  const std::string bytes = gzip_text(many_rows(0, 10'000));
  const auto first_error = [&](const std::string& content) -> std::string {
    try {
      const ry::TextLinesStream source{ry::gzip(folder.write("a.gz", content))};
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
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  CHECK_THAT(first_error(damaged), ContainsSubstring("a.gz: byte "));
  CHECK_THAT(first_error(bytes + "garbage"), ContainsSubstring("incorrect header"));
  CHECK_THAT(first_error("plain text"), ContainsSubstring("incorrect header"));
  CHECK_THAT(first_error(gzip_text("one\ntwo\n\xFF\n")), ContainsSubstring("a.gz:3: "));
}
#endif
