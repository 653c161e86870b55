// SPDX-License-Identifier: MIT
// Files of which a part cannot be read, or has a record without end: what is left out of them, and what comes next.
#include "railyard/data/record_source.hpp"

#include "railyard/core/version.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/text_lines_source.hpp"
#if RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"
#endif
#if RAILYARD_WITH_ZSTD
#include "railyard/data/zstd.hpp"
#endif

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"
#include "unit/data/compressed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <ios>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace ry = railyard;

namespace {

using MakeDataset = std::function<ry::Dataset(ry::OnError)>;

// What is read of a dataset until it ends, or fails.
struct Reading {
  std::vector<std::string> samples{};
  std::vector<ry::EpochPosition> places{};
  std::string error{};
};

Reading read_rest(const std::function<ry::Dataset()>& make, std::size_t threads,
                  const ry::EpochPosition* from = nullptr) {
  ry::EpochOptions options{.global_batch_size = 3, .threads = threads, .bound_bytes = std::size_t{1} << 16U};
  if (from != nullptr) options.from = *from;
  Reading all;
  try {
    ry::EpochReader reader{make(), options};
    while (const auto step = reader.next()) {
      for (std::size_t row = 0; row < step->block.rows(); ++row) {
        std::string sample = std::to_string(step->block.ids()[row]);
        for (std::size_t column = 0; column < step->block.columns().size(); ++column) {
          const bool is_text = step->block.schema()[column].is_text;
          const auto bytes = step->block[column].text(row);
          sample += " ";
          sample += is_text ? std::string{bytes} : std::to_string(step->block[column].values<std::int64_t>(row)[0]);
        }
        all.samples.push_back(std::move(sample));
      }
      all.places.push_back(step->after);
    }
  } catch (const ry::DataError& error) {
    all.error = error.what();
  }
  return all;
}

Reading read_rest(const ry::Dataset& dataset, std::size_t threads, const ry::EpochPosition* from = nullptr) {
  return read_rest([&] { return dataset; }, threads, from);
}

// "0 text", "1 text" ... as samples of one column of text are read.
std::vector<std::string> numbered(const std::vector<std::string>& texts) {
  std::vector<std::string> samples;
  for (const std::string& text : texts) samples.push_back(std::to_string(samples.size()) + " " + text);
  return samples;
}

// Checks what is read where damage stops, is skipped, or skipped so many times; that any number of threads reads the
// same, and whoever goes on anywhere the rest. faults: parts of the messages, of damaged parts in their order.
void check_damaged(const MakeDataset& make, const std::vector<std::string>& samples,
                   const std::vector<std::string>& faults) {
  const Reading stopped = read_rest([&] { return make(ry::OnError::stop()); }, 2);
  CHECK_THAT(stopped.error, ContainsSubstring(faults.front()));
  CHECK(stopped.samples.size() <= samples.size());
  const auto count = static_cast<std::uint64_t>(faults.size());
  const Reading bounded = read_rest([&] { return make(ry::OnError::at_most(count - 1)); }, 2);
  CHECK_THAT(bounded.error, ContainsSubstring(faults.back()));
  for (const ry::OnError policy : {ry::OnError::skip(), ry::OnError::at_most(count)}) {
    for (const std::size_t threads : {0U, 1U, 4U}) {
      const ry::Dataset dataset = make(policy);
      const Reading whole = read_rest(dataset, threads);
      CAPTURE(threads);
      CHECK(whole.error == "");
      CHECK(whole.samples == samples);
      CHECK(dataset.skipped() == count);
    }
  }
  const Reading whole = read_rest(make(ry::OnError::skip()), 1);
  std::size_t given = 0;
  for (const ry::EpochPosition& place : whole.places) {
    given += std::min<std::size_t>(3, samples.size() - given);
    const ry::Dataset dataset = make(ry::OnError::at_most(count));
    const Reading rest = read_rest(dataset, 2, &place);
    CHECK(rest.error == "");
    CHECK(rest.samples == std::vector(samples.begin() + static_cast<std::ptrdiff_t>(given), samples.end()));
    CHECK(dataset.skipped() == count);
  }
}

std::vector<std::string> names_of_parts(const ry::Dataset& dataset) {
  ry::detail::SkipCounts counts;
  dataset.node()->count_skipped(counts);
  return counts.empty() ? std::vector<std::string>{} : counts.begin()->second.parts;
}

// Longer than what is read at once, so that its length is seen.
std::string long_text(char c) { return std::string(600'000, c); }

}  // namespace

TEST_CASE("OnError: a line without end is left out, and what follows it is read") {
  const TemporaryFolder folder;
  const std::vector<std::string> files{folder.write("1", "one\n" + long_text('x') + "\ntwo\n"),
                                       folder.write("2", long_text('y')), folder.write("3", "three\n")};
  const auto options = [](ry::OnError policy) {
    return ry::TextLinesSourceOptions{.max_record_bytes = 1000, .on_error = policy};
  };
  const std::vector<std::string> faults{"1: the record at byte 4 is longer than 1000 bytes", "2: the record at byte 0"};
  check_damaged(
      [&](auto policy) {
        return ry::Dataset{ry::TextLinesSource{files, options(policy)}};
      },
      numbered({"one", "two", "three"}), faults);
  check_damaged(
      [&](auto policy) {
        return ry::Dataset{ry::TextLinesStream{{files, &compressed::open_counted}, options(policy)}};
      },
      numbered({"one", "two", "three"}), faults);
  const ry::TextLinesSource source{files, options(ry::OnError::skip())};
  CHECK(source.count() == 3);
  binary_files::check_order_of(source);
  CHECK(source.skipped_parts().size() == 2);
}

TEST_CASE("OnError: a quote that is never closed takes the rest of its file with it, and a long record itself alone") {
  const TemporaryFolder folder;
  std::string endless = "n,t\n1,one\n2,\"";
  for (int line = 0; line < 40'000; ++line) endless += "3,this is no record\n";
  const std::vector<std::string> files{
      folder.write("1", endless),
      folder.write("2", "n,t\n4,\"" + long_text('\n') + ",5,\"\"\"\n6,six\nx,damaged\n7,seven\n"),
      folder.write("3", "n,t\n8,eight\n")};
  const auto options = [](ry::OnError policy) {
    return ry::CsvSourceOptions{
        .fields = {{"n", ry::Dtype::i64}, ry::Field::text("t")}, .max_record_bytes = 1000, .on_error = policy};
  };
  const std::vector<std::string> samples{"0 1 one", "1 6 six", "2 7 seven", "3 8 eight"};
  const std::vector<std::string> faults{"1: the record at byte 10 is longer", "2: the record at byte 4 is longer",
                                        "2:600004: column \"n\""};
  check_damaged([&](auto policy) { return ry::Dataset{ry::CsvSource{files, options(policy)}}; }, samples, faults);
  check_damaged(
      [&](auto policy) {
        return ry::Dataset{ry::CsvStream{{files, &compressed::open_counted}, options(policy)}};
      },
      samples, faults);
  const ry::CsvSource source{files, options(ry::OnError::skip())};
  CHECK(source.count() == 4);
  binary_files::check_order_of(source);
}

TEST_CASE("OnError: a record that is longer than it may be is not taken into memory where it is asked for by number") {
  const TemporaryFolder folder;
  const ry::TextLinesSource source{folder.write("1", "one\n" + long_text('x') + "\ntwo\n"), {.max_record_bytes = 1000}};
  CHECK(source.count() == 3);
  const std::uint64_t ids[1] = {1};
  CHECK_THROWS_WITH(source.read(ids), ContainsSubstring("1: the record at byte 4 is longer than 1000 bytes"));
}

TEST_CASE(
    "Records: short ones are read whatever the bound is, and the first ones tell the columns if they may be long") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.csv", "id,x\n" + compressed::many_rows(0, 8000));
  CHECK(ry::CsvSource{path, {.max_record_bytes = 1000}}.count() == 8000);
  const auto lines = folder.write("a.jsonl", "{\"a\": \"" + long_text('x') + "\"}\n{\"a\": \"y\"}\n");
  CHECK_THROWS_WITH((ry::JsonLinesSource{lines, {.max_record_bytes = 1000}}.count()),
                    ContainsSubstring("the first record is longer than 1000 bytes"));
  CHECK(ry::JsonLinesSource{lines, {.max_record_bytes = 1000, .on_error = ry::OnError::skip()}}.count() == 1);
}

#if RAILYARD_WITH_ZLIB
namespace {

// A member of gzip whose blocks hold these texts as they are (RFC 1951, 3.2.4; RFC 1952, 2.3). wrong_block: the one
// whose length is wrong. sum: is added to the CRC.
std::string stored_member(const std::vector<std::string>& blocks, std::size_t wrong_block = ~std::size_t{0},
                          std::uint32_t sum = 0) {
  std::string bytes{"\x1F\x8B\x08\0\0\0\0\0\0\xFF", 10};
  std::string all;
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    const auto size = static_cast<std::uint16_t>(blocks[block].size());
    bytes += block + 1 == blocks.size() ? '\1' : '\0';
    bytes += binary_files::bytes_of(size);
    bytes += binary_files::bytes_of(static_cast<std::uint16_t>(block == wrong_block ? size : ~size));
    bytes += blocks[block];
    all += blocks[block];
  }
  const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(all.data()), static_cast<uInt>(all.size()));
  return bytes + binary_files::bytes_of(static_cast<std::uint32_t>(crc + sum)) +
         binary_files::bytes_of(static_cast<std::uint32_t>(all.size()));
}

MakeDataset lines_of_gzip(const std::vector<std::string>& files) {
  return [files](ry::OnError policy) {
    return ry::Dataset{ry::TextLinesStream{ry::gzip(files), {.on_error = policy}}};
  };
}

}  // namespace

TEST_CASE("gzip: where a file cannot be unpacked further, its rest is left out, and the next file is read") {
  const TemporaryFolder folder;
  const std::string good = stored_member({"a\nb\n", "c\n"});
  const std::string long_member = stored_member({"one\nt", "wo\nthr", "ee\nfour\n", "five\n"});
  const auto check = [&](const std::string& damaged, const std::vector<std::string>& of_it, const std::string& fault) {
    const std::vector<std::string> files{folder.write("1.gz", good), folder.write("2.gz", damaged),
                                         folder.write("3.gz", good)};
    std::vector<std::string> lines{"a", "b", "c"};
    lines.insert(lines.end(), of_it.begin(), of_it.end());
    lines.insert(lines.end(), {"a", "b", "c"});
    CAPTURE(fault);
    check_damaged(lines_of_gzip(files), numbered(lines), {"2.gz: byte " + fault});
  };
  check(stored_member({"one\nt", "wo\nthr", "ee\nfour\n", "five\n"}, 2), {"one", "two"},
        "36 of the compressed file: invalid stored block lengths; it could be read up to byte 11 of what it holds");
  check(long_member.substr(0, long_member.size() - 15), {"one", "two", "three", "four"}, "");
  check(long_member.substr(0, 20), {"one"}, "20 of the compressed file: the file ends in the middle: it was cut off");
  check("no gzip\n", {}, "");
  check(long_member + good.substr(0, 10) + "garbage", {"one", "two", "three", "four", "five"}, "");
  check(good + "garbage", {"a", "b", "c"}, "");
}

TEST_CASE("gzip: a wrong check sum counts as damage, and what follows it is read") {
  const TemporaryFolder folder;
  std::string wrong_length = stored_member({"five\nsi"});
  wrong_length[wrong_length.size() - 3] = 'x';
  const std::vector<std::string> files{
      folder.write("0.gz", stored_member({"zero\n"})),
      folder.write("1.gz", stored_member({"one\nt"}, ~std::size_t{0}, 1) + stored_member({"wo\nthree\nfo"}) +
                               stored_member({"ur\n"}, ~std::size_t{0}, 1) + wrong_length),
      folder.write("2.gz", stored_member({"seven\n"}))};
  check_damaged(
      lines_of_gzip(files), numbered({"zero", "one", "two", "three", "four", "five", "si", "seven"}),
      {"1.gz: byte 24 of the compressed file: incorrect data check; it was read up to byte 5 of what it holds",
       "incorrect data check; it was read up to byte 19", "incorrect length check"});
  const ry::Dataset skipping = lines_of_gzip(files)(ry::OnError::skip());
  for (int again = 0; again < 2; ++again) {
    CHECK(read_rest(skipping, 1).error == "");
    CHECK(skipping.skipped() == 3);
    CHECK(names_of_parts(skipping).size() == 3);
  }
}

TEST_CASE("gzip: columns are known from the first file that tells them") {
  const TemporaryFolder folder;
  const std::string rows = "n,t\n1,one\n2,two\n";
  const auto make = [&](const std::string& first) -> MakeDataset {
    const std::vector<std::string> files{folder.write("1.gz", first), folder.write("2.gz", stored_member({rows}))};
    return [files](ry::OnError policy) { return ry::Dataset{ry::CsvStream{ry::gzip(files), {.on_error = policy}}}; };
  };
  const auto check = [&](const std::string& first, const std::vector<std::string>& samples) {
    const MakeDataset dataset = make(first);
    CHECK_THROWS_WITH(dataset(ry::OnError::stop()), ContainsSubstring("1.gz: byte "));
    CHECK(read_rest(dataset(ry::OnError::skip()), 1).samples == samples);
  };
  check("garbage", {"0 1 one", "1 2 two"});
  check(stored_member({"n,", "t\n0,zero\n"}, 1), {"0 1 one", "1 2 two"});
  check(stored_member({"n,t\n0,zero\n1,", "half\n"}, 1), {"0 0 zero", "1 1 one", "2 2 two"});
  const std::string only = folder.write("3.gz", "garbage");
  CHECK_THROWS_WITH((ry::CsvStream{ry::gzip(only), {.on_error = ry::OnError::skip()}}.schema()),
                    ContainsSubstring("3.gz: byte "));
}

TEST_CASE("gzip: lines of damaged records are counted past a wrong check sum") {
  const TemporaryFolder folder;
  const auto path = folder.write(
      "1.gz", stored_member({"one\n"}, ~std::size_t{0}, 1) + stored_member({"two\n"}) + stored_member({"\xFF\n"}));
  const Reading bounded = read_rest(lines_of_gzip({path})(ry::OnError::at_most(1)), 0);
  CHECK_THAT(bounded.error, ContainsSubstring("1.gz:3: byte 1 of the line is not UTF-8 text. 1 records before it"));
}

TEST_CASE("gzip: an archive that cannot be unpacked further is left out from there on, and the next one is read") {
  const TemporaryFolder folder;
  const auto tar = [&](const std::string& name, const std::vector<std::string>& texts) {
    std::string command = "cd " + folder.path().string();
    for (const std::string& text : texts) command += " && echo -n " + text + " >" + text + ".txt";
    command += " && tar -cf " + name;
    for (const std::string& text : texts) command += " " + text + ".txt";
    REQUIRE(std::system(command.c_str()) == 0);
    std::ifstream file{folder / name, std::ios::binary};
    return std::string{std::istreambuf_iterator<char>{file}, {}};
  };
  const std::string damaged = tar("damaged.tar", {"one", "two", "three"});
  const std::string good = tar("good.tar", {"four", "five"});
  const auto make = [&](const std::string& second) -> MakeDataset {
    const std::vector<std::string> files{folder.write("1.tar.gz", stored_member({good})),
                                         folder.write("2.tar.gz", second),
                                         folder.write("3.tar.gz", stored_member({good}))};
    return [files](ry::OnError policy) {
      return ry::Dataset{ry::TarStream{ry::gzip(files), {.text = {"txt"}, .on_error = policy}}};
    };
  };
  // The sample before the damage may have had more files.
  check_damaged(make(stored_member({damaged.substr(0, 1024), damaged.substr(1024, 700), damaged.substr(1724)}, 2)),
                numbered({"four", "five", "one", "four", "five"}),
                {"2.tar.gz: byte 1749 of the compressed file: invalid stored block lengths"});
  check_damaged(make(stored_member({damaged.substr(0, 2300)}).substr(0, 2200)),
                numbered({"four", "five", "one", "four", "five"}), {"2.tar.gz: byte 2200 of the compressed file"});
  check_damaged(make("garbage"), numbered({"four", "five", "four", "five"}), {"2.tar.gz: byte "});
}
#endif

#if RAILYARD_WITH_ZSTD
namespace {

// A frame with a check sum, of a block for each text. Where the block begins that is asked for, there is none that the
// format has.
std::string zstd_frame(const std::vector<std::string>& blocks, std::size_t wrong_block = ~std::size_t{0}) {
  ZSTD_CCtx* const state = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  std::string bytes(1'000'000, '\0');
  ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    ZSTD_inBuffer in{blocks[block].data(), blocks[block].size(), 0};
    const std::size_t begin = out.pos;
    const auto end = block + 1 == blocks.size() ? ZSTD_e_end : ZSTD_e_flush;
    REQUIRE(::ZSTD_compressStream2(state, &out, &in, end) == 0);
    if (block == wrong_block) bytes[begin] = static_cast<char>(bytes[begin] | 6);
  }
  ::ZSTD_freeCCtx(state);
  return bytes.substr(0, out.pos);
}

MakeDataset lines_of_zstd(const std::vector<std::string>& files) {
  return [files](ry::OnError policy) {
    return ry::Dataset{ry::TextLinesStream{ry::zstd(files), {.on_error = policy}}};
  };
}

}  // namespace

TEST_CASE("zstd: where a file cannot be unpacked further, its rest is left out, and the next file is read") {
  const TemporaryFolder folder;
  const std::string good = zstd_frame({"a\nb\n", "c\n"});
  const std::vector<std::string> blocks{"one\nt", "wo\nthr", "ee\nfour\n", "five\n"};
  const auto check = [&](const std::string& damaged, const std::vector<std::string>& of_it) {
    const std::vector<std::string> files{folder.write("1.zst", good), folder.write("2.zst", damaged),
                                         folder.write("3.zst", good)};
    std::vector<std::string> lines{"a", "b", "c"};
    lines.insert(lines.end(), of_it.begin(), of_it.end());
    lines.insert(lines.end(), {"a", "b", "c"});
    check_damaged(lines_of_zstd(files), numbered(lines), {"2.zst: byte "});
  };
  check(zstd_frame(blocks, 2), {"one", "two"});
  check(good + zstd_frame(blocks, 3), {"a", "b", "c", "one", "two", "three", "four"});
  check(zstd_frame(blocks).substr(0, zstd_frame(blocks).size() - 6), {"one", "two", "three", "four"});
  check("no zstd\n", {});
  check(good + "garbage", {"a", "b", "c"});
}

TEST_CASE("zstd: all that can be unpacked is read, however much is asked for at once") {
  const TemporaryFolder folder;
  std::vector<std::string> blocks;
  std::vector<std::string> lines;
  for (int block = 0; block < 300; ++block) {  // of several sizes, more than are read and unpacked at once
    for (int line = 0; line < 1 + block * 37 % 400; ++line) {
      lines.push_back(std::to_string(block) + "/" + std::to_string(line * 7919 % 1000));
      blocks.resize(static_cast<std::size_t>(block) + 1);
      blocks.back() += lines.back() + "\n";
    }
  }
  const auto path = folder.write("1.zst", zstd_frame({"begin\n"}) + zstd_frame(blocks, 299));
  lines.insert(lines.begin(), "begin");
  while (lines.back().starts_with("299/")) lines.pop_back();
  for (const std::size_t size : {std::size_t{1}, std::size_t{777}, std::size_t{100'000}, std::size_t{1} << 24U}) {
    ry::detail::ZstdStream stream{path};
    std::string all;
    std::string part(size, '\0');
    bool is_damaged = false;
    for (std::size_t got = 1; got > 0 && !is_damaged; all += part.substr(0, got)) {
      got = ry::detail::read_past_damage(stream, part.data(), size, [&](const auto& damage, std::size_t) {
        CHECK(damage.is_over());
        is_damaged = true;
      });
    }
    CHECK(is_damaged);
    CAPTURE(size);
    CHECK(static_cast<std::size_t>(std::count(all.begin(), all.end(), '\n')) == lines.size());
    CHECK(all.ends_with(lines.back() + "\n"));
  }
}

TEST_CASE("zstd: a wrong check sum counts as damage, and the next frame is read") {
  const TemporaryFolder folder;
  std::string wrong = zstd_frame({"one\nt", "wo\nth"});
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  const std::vector<std::string> files{folder.write("0.zst", zstd_frame({"zero\n"})),
                                       folder.write("1.zst", wrong + zstd_frame({"ree\n"}) + wrong),
                                       folder.write("2.zst", zstd_frame({"four\n"}))};
  check_damaged(lines_of_zstd(files), numbered({"zero", "one", "two", "three", "one", "two", "th", "four"}),
                {"it was read up to byte 10 of what it holds", "it was read up to byte 24 of what it holds"});
}
#endif
