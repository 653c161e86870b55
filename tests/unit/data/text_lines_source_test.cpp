// SPDX-License-Identifier: MIT
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::vector<std::string> lines_of(const ry::Block& block) {
  std::vector<std::string> lines;
  for (std::size_t row = 0; row < block.rows(); ++row) lines.emplace_back(block[0].text(row));
  return lines;
}

}  // namespace

TEST_CASE("TextLinesSource: gives each line without its end, blank ones too unless they are not wanted") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.txt", "\xEF\xBB\xBFone \"\r\n\n\r\ntwo, \xC3\xA9\nlast");
  const ry::TextLinesSource all{path};
  CHECK(all.schema() == ry::Schema{ry::Field::text("text")});
  CHECK(all.count() == 5);
  CHECK(lines_of(all.open(0)->next(9)) == std::vector<std::string>{"one \"", "", "", "two, \xC3\xA9", "last"});
  CHECK(lines_of(all.open(3)->next(1)) == std::vector<std::string>{"two, \xC3\xA9"});
  const ry::TextLinesSource full{path, {.column = "line", .has_blank_lines = false}};
  CHECK(full.count() == 3);
  const std::uint64_t ids[] = {2, 0};
  CHECK(lines_of(full.read(ids)) == std::vector<std::string>{"last", "one \""});
}

TEST_CASE("TextLinesSource: refuses what is no UTF-8, or leaves it out") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.txt", "one\ntw\xFF\nthree\n");
  CHECK_THROWS_WITH(ry::TextLinesSource{path}.open(0)->next(9), ContainsSubstring("a.txt:2: byte 3"));
  const ry::TextLinesSource patient{path, {.on_error = ry::OnError::at_most(1)}};
  CHECK(lines_of(patient.open(0)->next(9)) == std::vector<std::string>{"one", "three"});
  CHECK(patient.skipped() == 1);
}

TEST_CASE("TextLinesSource: an empty file has no lines") {
  const TemporaryFolder folder;
  const ry::TextLinesSource source{folder.write("a.txt", "")};
  CHECK(source.count() == 0);
  CHECK(source.open(0)->next(1).empty());
}

TEST_CASE("TextLinesSource: says that lines end with carriage returns alone, and which option names no column") {
  const TemporaryFolder folder;
  const ry::TextLinesSource old{folder.write("old.txt", "one\rtwo\r")};
  CHECK_THROWS_WITH(old.count(), ContainsSubstring("old.txt") && ContainsSubstring("carriage return alone"));
  CHECK_THROWS_WITH(ry::TextLinesSource(folder.write("a.txt", "one\n"), {.label = "y"}).schema(),
                    ContainsSubstring("a.txt: .label: there is no column \"y\""));
}
