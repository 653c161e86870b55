// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZSTD
#include "railyard/data/zstd.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/compressed.hpp"

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
#endif
