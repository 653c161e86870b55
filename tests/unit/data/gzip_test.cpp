// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/compressed.hpp"
#include "unit/data/deflate.hpp"

#include <string>

namespace ry = railyard;

namespace {

std::string gzip_text(std::string_view text) { return deflated(text, 16 + MAX_WBITS); }

}  // namespace

TEST_CASE("gzip: reads files of several members as one, from any sample on") {
  const TemporaryFolder folder;
  folder.write("a.csv.gz", compressed::parts_of_many_rows(gzip_text) + std::string(600, '\0'));
  compressed::check_many_rows(ry::gzip(folder / "*.gz"));
}

TEST_CASE("gzip: a saved place that is none of the files is refused") {
  const TemporaryFolder folder;
  folder.write("a.gz", gzip_text("one\ntwo\n"));
  const std::string last = folder.write("b.gz", gzip_text("three\nfour\n"));
  compressed::check_refuses_places(ry::TextLinesStream{ry::gzip(folder / "*.gz")}, last);
}

TEST_CASE("gzip: says where a file is damaged or cut off, and names the line of a damaged record") {
  const TemporaryFolder folder;
  const std::string bytes = gzip_text(compressed::many_rows(0, 10'000));
  const auto first_error = [&](const std::string& content) {
    return compressed::error_of_lines(ry::gzip(folder.write("a.gz", content)));
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
