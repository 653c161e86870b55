// SPDX-License-Identifier: MIT
// Runs that are killed and go on in compressed files of which a part is damaged, and left out.
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"
#endif
#if RAILYARD_WITH_ZSTD
#include "railyard/data/zstd.hpp"
#endif

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/on_error.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/resumed.hpp"
#include "unit/data/tar_files.hpp"
#if RAILYARD_WITH_ZLIB
#include "unit/data/deflate.hpp"
#endif

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace ry = railyard;

namespace {

using MakeSkipping = std::function<ry::Dataset(ry::OnError)>;

const ry::EpochOptions killed_options{.global_batch_size = 512, .bound_bytes = 1U << 20U};

// Reads on until it fails, by readers of which each is killed after some steps; returns the error.
std::string error_of_killed(const MakeSkipping& make, ry::OnError policy, std::size_t most_steps, unsigned seed) {
  ry::EpochOptions options = killed_options;
  std::mt19937 random{seed};
  try {
    while (true) {
      ry::EpochReader reader{make(policy), options};
      for (std::size_t steps = 1 + random() % most_steps; steps > 0; --steps) {
        if (!reader.next()) return "no error";
      }
      options.from = resumed::saved_and_loaded(reader.position());
    }
  } catch (const ry::DataError& error) {
    return error.what();
  }
}

// Checks a dataset of which so much is left out: the same is read, and left out, by any number of threads, and by runs
// that are killed; and where only less may be, all of them say the same.
void check_killed(const MakeSkipping& make, std::uint64_t count, unsigned seed) {
  std::vector<std::uint64_t> samples;
  for (const std::size_t threads : {0U, 1U, 4U}) {
    const ry::Dataset dataset = make(ry::OnError::skip());
    ry::EpochOptions options = killed_options;
    options.threads = threads;
    auto read = resumed::digests_of(dataset, options);
    CHECK(dataset.skipped() == count);
    if (threads == 0) samples = read;
    CHECK((read == samples));
  }
  CHECK(resumed::most_work_to_go_on([&] { return make(ry::OnError::at_most(count)); }, 12, seed, killed_options) > 0);
  for (const std::uint64_t most : {count - 1, count / 2}) {
    const std::string error = error_of_killed(make, ry::OnError::at_most(most), samples.size() + 1, seed);
    CHECK_THAT(error, ContainsSubstring(std::to_string(most) + " records before it are damaged as well"));
    CHECK(error_of_killed(make, ry::OnError::at_most(most), 2 + samples.size() / 6, seed + 1) == error);
  }
}

// Makes a text of lines of 64 bytes, of which a few are no text: piece by piece, which begin and end anywhere.
class Lines {
 public:
  std::string take(std::size_t bytes) {
    while (text_.size() < bytes) {
      std::string line = std::to_string(rows_++);
      for (std::size_t at = 0; line.size() < 63; ++at) line += static_cast<char>('a' + (rows_ * 7919 >> at) % 16);
      if (rows_ % 20'000 == 0) line[1] = '\xFF';
      text_ += line + "\n";
    }
    std::string part = text_.substr(0, bytes);
    text_.erase(0, bytes);
    return part;
  }
  [[nodiscard]] std::uint64_t damaged() const { return rows_ / 20'000; }

 private:
  std::string text_{};
  std::size_t rows_ = 0;
};

using Pack = std::function<std::string(std::string_view text)>;

// Writes files of parts, which begin where a piece of the text does that is read at once, or elsewhere, and of which
// many have a check sum that is wrong; two of the files cannot be unpacked to their end. Returns how much is damaged.
std::uint64_t write_damaged(const TemporaryFolder& folder, const Pack& pack, const Pack& pack_wrongly) {
  constexpr std::size_t piece = std::size_t{256} << 10U;
  Lines lines;
  std::uint64_t count = 0;
  const auto good = [&](std::size_t bytes) { return pack(lines.take(bytes)); };
  const auto wrong = [&](std::size_t bytes) {
    ++count;
    return pack_wrongly(lines.take(bytes));
  };
  std::string bytes = good(piece) + wrong(piece) + good(0) + wrong(piece) + wrong(0) + wrong(0);
  for (int part = 0; part < 4; ++part) bytes += wrong(piece);
  folder.write("1", bytes + wrong(5'000'000) + good(300'001) + "garbage");

  std::mt19937 random{11};
  bytes = wrong(5'000'063);
  for (int part = 0; part < 30; ++part) bytes += random() % 3 == 0 ? wrong(random() % piece) : good(random() % piece);
  const std::string last = pack(Lines{}.take(500'000));
  folder.write("2", bytes + last.substr(0, last.size() / 2));

  bytes = good(2 * piece) + wrong(piece + 5);
  folder.write("3", bytes + good(700'000) + wrong(20));
  return count + lines.damaged() + 2;
}

}  // namespace

#if RAILYARD_WITH_ZLIB
namespace {

std::string gzip_member(std::string_view text) { return deflated(text, 16 + MAX_WBITS, 1); }
// By turns of its CRC, its length, or both.
std::string wrong_gzip_member(std::string_view text) {
  std::string bytes = gzip_member(text);
  const std::size_t way = text.size() % 3;
  for (const std::size_t from_end : {std::size_t{7}, std::size_t{2}}) {
    if ((way == 0 && from_end == 2) || (way == 1 && from_end == 7)) continue;
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 1);
  }
  return bytes;
}

}  // namespace

TEST_CASE("gzip: a run that is killed goes on before, between and after damaged members, and counts each once") {
  const TemporaryFolder folder;
  const std::uint64_t count = write_damaged(folder, gzip_member, wrong_gzip_member);
  const auto make = [&](ry::OnError policy) {
    const auto files = resumed::counted<ry::detail::GzipStream>(folder / "[123]");
    return ry::Dataset{ry::TextLinesStream{files, {.on_error = policy}}};
  };
  check_killed(make, count, 21);
}

TEST_CASE("gzip: who goes on in the middle of a member whose check sum is wrong reads the next one as well") {
  const TemporaryFolder folder;
  Lines lines;
  const std::string begin = lines.take(5'500'000);
  for (std::size_t way = 0; way < 3; ++way) {
    const auto path = folder.write("1", wrong_gzip_member(begin.substr(way)) + gzip_member("one\nt") +
                                            wrong_gzip_member("wo\n") + gzip_member("three\n") + "garbage");
    const auto make = [&] {
      return ry::TextLinesStream{resumed::counted<ry::detail::GzipStream>(path), {.on_error = ry::OnError::at_most(8)}};
    };
    const auto rest_of = [](ry::BlockReader& reader) {
      std::string rest;
      for (ry::Block block = reader.next(1000); !block.empty(); block = reader.next(1000)) {
        for (std::size_t row = 0; row < block.rows(); ++row) rest += std::string{block[0].text(row)} + "\n";
      }
      return rest;
    };
    const auto whole = make();
    const auto reader = whole.open(0);
    for (std::uint64_t next = 0; next < 82'000;) next += reader->next(static_cast<std::size_t>(82'000 - next)).rows();
    const ry::ReaderPlace place = reader->place();
    const std::string rest = rest_of(*reader);
    CHECK_THAT(rest, Catch::Matchers::EndsWith("one\ntwo\nthree\n"));
    CHECK(whole.skipped() == 4 + 3);

    REQUIRE(place.state.has_value());
    resumed::work_done() = 0;
    const auto later = make();
    const auto rest_later = rest_of(*later.open(82'000, place));
    CHECK((rest_later == rest));
    CHECK(later.skipped() == whole.skipped());
    CHECK(resumed::work_done() < begin.size() / 2);
  }
}

TEST_CASE("gzip: a run that is killed goes on in damaged archives, and counts what is left out of each once") {
  const TemporaryFolder folder;
  int sample = 0;
  const auto archive = [&](int samples) {
    std::string bytes;
    for (const int end = sample + samples; sample < end; ++sample) {
      const std::string name = std::to_string(sample);
      bytes += tar_files::tar_file(name + ".bin", std::string(3000, static_cast<char>('a' + sample % 20)));
      bytes += tar_files::tar_file(name + ".txt", sample % 100 == 9 ? "\xFF" : name);
    }
    return bytes + tar_files::tar_end;
  };
  const auto members = [&](const std::string& bytes, std::size_t wrong) {
    std::string packed;
    for (std::size_t at = 0, nth = 0; at < bytes.size(); at += 100'000, ++nth) {
      const std::string part = bytes.substr(at, 100'000);
      packed += nth == wrong ? wrong_gzip_member(part) : gzip_member(part);
    }
    return packed;
  };
  folder.write("1", members(archive(400), ~std::size_t{0}));
  folder.write("2", members(archive(400), 12));  // its rest is left out
  folder.write("3", "garbage");
  const std::string cut = members(archive(300), ~std::size_t{0});
  folder.write("4", cut.substr(0, cut.size() / 4 * 3));
  folder.write("5", members(archive(300), ~std::size_t{0}));
  const auto make = [&](ry::OnError policy) {
    const auto files = resumed::counted<ry::detail::GzipStream>(folder / "[12345]");
    return ry::Dataset{ry::TarStream{files, {.bytes = {"bin"}, .text = {"txt"}, .on_error = policy}}};
  };
  const ry::EpochOptions few{.global_batch_size = 16, .bound_bytes = 1U << 20U};
  const ry::Dataset whole = make(ry::OnError::skip());
  static_cast<void>(resumed::digests_of(whole, few));
  CHECK(whole.skipped() == 4 + (3 + 1) + 1 + (3 + 1) + 3);
  for (const unsigned seed : {31U, 32U, 33U}) {
    const auto bounded = [&] { return make(ry::OnError::at_most(whole.skipped())); };
    CHECK(resumed::most_work_to_go_on(bounded, 12, seed, few) < std::uint64_t{1} << 20U);
  }
}

TEST_CASE("gzip: who goes on behind all damage counts it nevertheless") {
  const TemporaryFolder folder;
  const auto count_from = [](const auto& source) {
    CHECK(source.skipped() == 0);
    const auto reader = source.open(5, ry::ReaderPlace{.file = 2, .samples = 4, .damaged = 2});
    CHECK(reader->next(9).rows() == 1);
    return source.skipped();
  };
  const auto files_of = [&](const std::string& last) {
    return ry::gzip({folder.write("1", wrong_gzip_member("a\nb\nc\nd\n")), folder.write("2", "garbage"),
                     folder.write("3", gzip_member(last))});
  };
  CHECK(count_from(ry::TextLinesStream{files_of("e\nf\n"), {.on_error = ry::OnError::skip()}}) == 2);
  const std::string archive = tar_files::tar_file("e.txt", "e") + tar_files::tar_file("f.txt", "f");
  CHECK(count_from(ry::TarStream{files_of(archive), {.text = {"txt"}, .on_error = ry::OnError::skip()}}) == 2);
}
#endif

#if RAILYARD_WITH_ZSTD
namespace {

std::string checked_zstd_frame(std::string_view text) {
  ZSTD_CCtx* const state = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  std::string bytes(::ZSTD_compressBound(text.size()), '\0');
  bytes.resize(::ZSTD_compress2(state, bytes.data(), bytes.size(), text.data(), text.size()));
  ::ZSTD_freeCCtx(state);
  return bytes;
}
std::string wrong_zstd_frame(std::string_view text) {
  std::string bytes = checked_zstd_frame(text);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  return bytes;
}

}  // namespace

TEST_CASE("zstd: a run that is killed goes on before, between and after damaged frames, and counts each once") {
  const TemporaryFolder folder;
  const std::uint64_t count = write_damaged(folder, checked_zstd_frame, wrong_zstd_frame);
  const auto make = [&](ry::OnError policy) {
    const auto files = resumed::counted<ry::detail::ZstdStream>(folder / "[123]");
    return ry::Dataset{ry::TextLinesStream{files, {.on_error = policy}}};
  };
  check_killed(make, count, 22);
}
#endif
