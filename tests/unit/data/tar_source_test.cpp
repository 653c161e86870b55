// SPDX-License-Identifier: MIT
#include "railyard/data/tar_source.hpp"

#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"
#endif

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"
#include "unit/data/compressed.hpp"
#include "unit/data/tar_files.hpp"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ry = railyard;
using tar_files::octal;
using tar_files::padded;
using tar_files::tar_end;
using tar_files::tar_file;
using tar_files::tar_header;

namespace {

std::string text_of(const ry::TarSource& source, std::uint64_t id, const std::string& column) {
  const std::uint64_t ids[] = {id};
  return std::string{source.read(ids).column(column).text(0)};
}

}  // namespace

TEST_CASE("TarSource: makes samples of files whose names are the same up to the first dot") {
  const TemporaryFolder folder;
  folder.write("a.tar", tar_file("train", "", '5') + tar_file("./x/0.JPG", "jpeg") + tar_file("./x/0.cls", "7") +
                            tar_file("./x/1.cls", "8") + tar_file("./x/1.seg.png", "ignored") +
                            tar_file("./x/1.jpg", "") + tar_file(".hidden", "") + tar_file("README", "") +
                            tar_file("__shard__.json", "") + tar_end + "whatever follows");
  folder.write("b.tar", tar_file("2.jpg", std::string(1000, 'j')) + tar_file("2.cls", "9"));
  const ry::TarSource source{folder / "*.tar", {.key = "key", .label = "cls"}};
  CHECK(source.schema() == ry::Schema{{"jpg", ry::Dtype::u8, {-1}}, ry::Field::text("cls"), ry::Field::text("key")});
  CHECK(source.label() == "cls");
  CHECK(source.count() == 3);
  CHECK(text_of(source, 0, "jpg") == "jpeg");
  CHECK(text_of(source, 0, "key") == "./x/0");
  CHECK(text_of(source, 1, "cls") == "8");
  CHECK(text_of(source, 1, "jpg").empty());
  CHECK(text_of(source, 2, "jpg") == std::string(1000, 'j'));
  binary_files::check_order_of(source);
}

TEST_CASE("TarSource: reads the columns it is told, as bytes or text") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.tar", tar_file("0.x", "\xFF") + tar_file("0.y", "text") + tar_file("0.z", "no"));
  const ry::TarSource source{path, {.bytes = {"y", "x"}, .text = {"z"}}};
  CHECK(source.schema() == ry::Schema{{"y", ry::Dtype::u8, {-1}}, {"x", ry::Dtype::u8, {-1}}, ry::Field::text("z")});
  CHECK(text_of(source, 0, "x") == "\xFF");
  CHECK_THROWS_AS((ry::TarSource{path, {.bytes = {"x"}, .text = {"x"}}}.schema()), ry::ConfigError);
  CHECK_THROWS_AS((ry::TarSource{path, {.label = "cls"}}.schema()), ry::ConfigError);
}

TEST_CASE("TarSource: reads long names of ustar, GNU and pax, and sizes beyond octal digits") {
  const TemporaryFolder folder;
  const std::string name(120, 'n');
  const std::string record = " path=" + name + "/2.txt\n";
  std::string large = tar_header("3.txt", 5);
  large.replace(124, 12, std::string{"\x80\0\0\0\0\0\0\0\0\0\0\5", 12});
  large.replace(148, 8, "        ");
  std::uint64_t sum = 0;
  for (const char c : large) sum += static_cast<unsigned char>(c);
  large.replace(148, 7, octal(sum, 6) + '\0');
  const ry::TarSource source{
      folder.write("a.tar",
                   tar_file("0.txt", "zero", '0', name) + tar_file("././@LongLink", name + "/1.txt" + '\0', 'L') +
                       tar_file("cut", "one") + tar_file("pax_global_header", "19 comment=whatever\n", 'g') +
                       tar_file("PaxHeaders/2", std::to_string(record.size() + 3) + record + "10 size=3\n", 'x') +
                       tar_header("2.txt", 0) + padded("two") + large + padded("three")),
      {.key = "key"}};
  CHECK(source.count() == 4);
  CHECK(text_of(source, 0, "key") == name + "/0");
  CHECK(text_of(source, 1, "key") == name + "/1");
  CHECK(text_of(source, 1, "txt") == "one");
  CHECK(text_of(source, 2, "key") == name + "/2");
  CHECK(text_of(source, 2, "txt") == "two");
  CHECK(text_of(source, 3, "txt") == "three");
}

TEST_CASE("TarSource: reads what tar packs") {
  const TemporaryFolder folder;
  if (std::system("tar --version >/dev/null 2>&1") != 0) return;
  for (const std::string format : {"ustar", "gnu", "pax"}) {
    const std::string inner = std::string(60, 'd');
    const std::string make = "mkdir -p " + folder / format + "/" + inner + " && cd " + folder / format +
                             " && for i in 0 1 2; do echo -n $i >" + inner + "/${i}" + std::string(60, 'n') +
                             ".txt; done && tar --sort=name --format=" + format + " -cf ../" + format + ".tar *";
    REQUIRE(std::system(make.c_str()) == 0);
    const ry::TarSource source{folder / format + ".tar", {.key = "key"}};
    CHECK(source.count() == 3);
    CHECK(text_of(source, 2, "txt") == "2");
    CHECK(text_of(source, 2, "key") == std::string(60, 'd') + "/2" + std::string(60, 'n'));
  }
}

TEST_CASE("TarSource: names the damaged sample, and leaves it out where it may") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.tar", tar_file("0.x", "a") + tar_file("0.txt", "b") + tar_file("1.x", "c") +
                                              tar_file("2.x", "d") + tar_file("2.txt", "e") + tar_file("2.txt", "f") +
                                              tar_file("3.x", "g") + tar_file("3.txt", "\xFF") + tar_file("4.x", "h") +
                                              tar_file("4.txt", "i") + tar_file("5.x", std::string(100, 'x')) +
                                              tar_file("5.txt", "k"));
  CHECK_THAT(binary_files::error_of(ry::TarSource{path}), ContainsSubstring("sample \"1\": it has no .txt"));
  for (const auto& columns : {std::vector<std::string>{}, std::vector<std::string>{"x"}}) {
    ry::TarSourceOptions options{.max_member_bytes = 50, .on_error = ry::OnError::at_most(4)};
    if (!columns.empty()) {
      options.bytes = columns;
      options.text = {"txt"};
    }
    const ry::TarSource source{path, options};
    CHECK(source.count() == 2);
    CHECK(source.skipped() == 4);
    CHECK(text_of(source, 1, "txt") == "i");
    binary_files::check_order_of(source);
  }
  const ry::TarSource bounded{path, {.on_error = ry::OnError::at_most(2)}};
  for (int again = 0; again < 2; ++again) {
    CHECK_THAT(binary_files::error_of(bounded), ContainsSubstring("column \"txt\": byte 0 is not UTF-8 text"));
  }
  const auto latin = folder.write("b.tar", tar_file("0.txt", "ok\xFF"));
  CHECK_THAT(binary_files::error_of(ry::TarSource{latin}), ContainsSubstring("byte 514: column \"txt\""));
}

TEST_CASE("TarSource: says where an archive is damaged, and leaves out what follows where it may") {
  const TemporaryFolder folder;
  const std::string two = tar_file("0.txt", "zero") + tar_file("1.txt", "one");
  const auto error = [&](const std::string& bytes) {
    return binary_files::error_of(ry::TarSource{folder.write("a.tar", bytes)});
  };
  CHECK(error(two) == "no error");
  CHECK_THAT(error(two.substr(0, 2047)),
             ContainsSubstring("byte 2047 of the archive: it ends in the middle of a file"));
  CHECK_THAT(error(two.substr(0, 1100)), ContainsSubstring("middle of a header"));
  CHECK_THAT(error(two + std::string(512, 'x')), ContainsSubstring("byte 2048 of the archive: no header is here"));
  CHECK_THAT(error(tar_file("0.txt", "", 'S') + two), ContainsSubstring("sparse"));
  CHECK_THAT(error(tar_header("0.txt", std::uint64_t{1} << 32)), ContainsSubstring("cut off"));
  CHECK_THAT(error(tar_file("x", "5 a=b\n", 'x') + two), ContainsSubstring("pax"));
  CHECK_THAT(error(tar_file("x", "11 size=x1\n", 'x') + two), ContainsSubstring("the size \"x1\""));
  CHECK_THAT(error(tar_header("x", 1 << 21, 'L') + two), ContainsSubstring("too long"));
  CHECK_THAT(error(tar_end), ContainsSubstring("KEY.SUFFIX"));
  folder.write("a.tar", two + std::string(512, 'x'));
  folder.write("b.tar", tar_file("2.txt", "two"));
  const ry::TarSource source{folder / "*.tar", {.text = {"txt"}, .on_error = ry::OnError::skip()}};
  CHECK(source.count() == 2);
  CHECK(source.skipped() == 1);
  CHECK(text_of(source, 1, "txt") == "two");
}

TEST_CASE("TarStream: goes on in the archive where it was, without those before it") {
  const TemporaryFolder folder;
  const auto archive = [&](const std::string& name, int begin, int end, const std::string& rest) {
    std::string bytes;
    for (int sample = begin; sample < end; ++sample) {
      bytes += tar_file(std::to_string(sample) + ".txt", sample == 9 ? "\xFF" : std::to_string(sample));
    }
    return folder.write(name, bytes + rest);
  };
  const std::vector<std::string> names{archive("1", 0, 5, std::string(512, 'x')), archive("2", 5, 8, tar_end),
                                       archive("3", 8, 8, tar_end), archive("4", 8, 16, tar_end)};
  compressed::check_leaves_out_files(ry::Dataset{ry::TarStream{{names, &compressed::open_counted},
                                                               {.text = {"txt"}, .on_error = ry::OnError::at_most(2)}}},
                                     5);
}

TEST_CASE("TarStream: refuses a saved place that is none of its archives") {
  const TemporaryFolder folder;
  const std::vector<std::string> names{folder.write("1", tar_file("0.txt", "0") + tar_end),
                                       folder.write("2", tar_file("1.txt", "1") + tar_end)};
  compressed::check_refuses_places(ry::TarStream{{names, &compressed::open_counted}, {.text = {"txt"}}}, names[1]);
}

#if RAILYARD_WITH_ZLIB
TEST_CASE("TarStream: reads compressed archives, from any sample on") {
  const TemporaryFolder folder;
  std::string bytes;
  for (int sample = 0; sample < 100; ++sample) {
    bytes += tar_file(std::to_string(sample) + ".txt", sample % 10 == 3 ? "\xFF" : std::to_string(sample));
    bytes += tar_file(std::to_string(sample) + ".bin", std::string(static_cast<std::size_t>(sample) * 100, 'b'));
  }
  folder.write("a.tar", bytes + tar_end);
  REQUIRE(std::system(("gzip -k " + folder / "a.tar").c_str()) == 0);
  const ry::TarSourceOptions options{.bytes = {"bin"}, .text = {"txt"}, .on_error = ry::OnError::skip()};
  const ry::TarSource plain{folder / "a.tar", options};
  const ry::TarStream stream{ry::gzip(folder / "a.tar.gz"), options};
  CHECK(stream.schema() == plain.schema());
  CHECK(stream.count() == std::nullopt);
  REQUIRE(plain.count() == 90);
  for (const std::uint64_t from : {0U, 50U, 89U, 90U}) {
    const auto reader = stream.open(from);
    std::uint64_t next = from;
    for (ry::Block block = reader->next(7); !block.empty(); block = reader->next(7)) {
      for (std::size_t row = 0; row < block.rows(); ++row) {
        REQUIRE(block.ids()[row] == next);
        CHECK(block.column("txt").text(row) == text_of(plain, next, "txt"));
        CHECK(block.column("bin").text(row) == text_of(plain, next, "bin"));
        ++next;
      }
    }
    CHECK(next == 90);
  }
  CHECK(stream.skipped() == 10);
}
#endif

TEST_CASE("TarSource: learns the columns from the first archive that has samples") {
  const TemporaryFolder folder;
  const auto empty = folder.write("0.tar", tar_end);
  const auto full = folder.write("1.tar", tar_file("0.txt", "zero") + tar_end);
  for (const auto& policy : {ry::OnError::stop(), ry::OnError::skip()}) {
    const ry::TarSource source{{empty, full}, {.on_error = policy}};
    CHECK(source.count() == 1);
    CHECK(text_of(source, 0, "txt") == "zero");
  }
  CHECK_THROWS_WITH((ry::TarSource{{empty, empty}}.schema()), ContainsSubstring("0.tar holds no files"));
  const auto cut = folder.write("cut.tar", tar_file("0.txt", "zero").substr(0, 300));
  CHECK_THROWS_WITH((ry::TarSource{{cut, full}}.schema()), ContainsSubstring("cut off"));
  CHECK(ry::TarSource{{cut, full}, {.on_error = ry::OnError::skip()}}.count() == 1);
}

TEST_CASE("TarSource: links are damage of which the name is told") {
  const TemporaryFolder folder;
  const auto link = [](const std::string& name, const std::string& target, char type) {
    std::string header = tar_header(name, 0, type);
    header.replace(157, target.size(), target);
    std::uint64_t sum = 0;
    header.replace(148, 8, "        ");
    for (const char c : header) sum += static_cast<unsigned char>(c);
    header.replace(148, 7, octal(sum, 6) + '\0');
    return header;
  };
  const std::string long_target = std::string(150, 't') + ".txt";
  const std::string pax = "176 linkpath=" + std::string(158, 'p') + ".txt\n";
  const std::string all = tar_file("0.txt", "zero") + link("1.txt", "0.txt", '1') + link("2.txt", "0.txt", '2') +
                          link("folder", "x", '2') + tar_file("././@LongLink", long_target + '\0', 'K') +
                          link("3.txt", long_target.substr(0, 100), '2') + tar_file("pax", pax, 'x') +
                          link("4.txt", "short", '2') + tar_file("5.txt", "five") + tar_end;
  const auto path = folder.write("a.tar", all);
  const auto error_after = [&](std::uint64_t skips) {
    try {
      return std::to_string(*ry::TarSource{path, {.on_error = ry::OnError::at_most(skips)}}.count());
    } catch (const ry::DataError& error) {
      return std::string{error.what()};
    }
  };
  CHECK_THAT(error_after(0), ContainsSubstring("sample \"1\": its .txt is a link to \"0.txt\"") &&
                                 ContainsSubstring("--hard-dereference"));
  CHECK_THAT(error_after(1), ContainsSubstring("sample \"2\": its .txt is a link to \"0.txt\""));
  CHECK_THAT(error_after(2), ContainsSubstring("sample \"3\": its .txt is a link to \"tttt"));
  CHECK_THAT(error_after(3), ContainsSubstring("sample \"4\": its .txt is a link to \"pppp"));
  CHECK(error_after(4) == "2");
}

TEST_CASE("TarSource: reads archives that were put one behind the other") {
  const TemporaryFolder folder;
  const std::string zeros(10240, '\0');
  const auto path = folder.write("a.tar", tar_file("0.txt", "zero") + zeros + tar_file("1.txt", "one") + zeros +
                                              tar_file("2.txt", "two") + tar_end + std::string(512, 'x') +
                                              tar_file("3.txt", "not a part"));
  const ry::TarSource source{path};
  CHECK(source.count() == 3);
  CHECK(text_of(source, 2, "txt") == "two");
}

TEST_CASE("TarSource: says what reads a compressed archive, and notices that one was written to") {
  const TemporaryFolder folder;
  const auto packed = folder.write("a.tar.gz", "\x1F\x8B\x08");
  CHECK_THROWS_WITH(ry::TarSource{packed}.schema(), ContainsSubstring("a.tar.gz") && ContainsSubstring("ry::gzip"));
  const auto frames = folder.write("a.tar.zst", "\x28\xB5\x2F\xFD" + std::string(600, ' '));
  CHECK_THROWS_WITH((ry::TarSource{frames, {.text = {"txt"}}}.count()), ContainsSubstring("ry::zstd"));
#if RAILYARD_WITH_ZLIB
  CHECK_THROWS_WITH(ry::TarStream{ry::gzip(frames)}.schema(), ContainsSubstring("read it with ry::zstd(paths)"));
#endif
  const auto path = folder.write("a.tar", tar_file("0.txt", "old") + tar_end);
  const ry::TarSource source{path};
  CHECK(text_of(source, 0, "txt") == "old");
  folder.write("a.tar", tar_file("0.txt", "new") + tar_end);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() + std::chrono::hours{1});
  CHECK_THROWS_WITH(text_of(source, 0, "txt"), ContainsSubstring("a.tar") && ContainsSubstring("has changed"));
}
