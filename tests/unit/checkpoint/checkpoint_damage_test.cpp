// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/checkpoint.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"

#include <sys/stat.h>

using namespace railyard_test;

namespace {

/// Is a checkpoint to be damaged.
struct Victim {
  Scratch scratch{};
  fs::path path = ry::CheckpointFolder{scratch.path() / "checkpoints"}.commit({.id = "x", .world_size = 2},
                                                                              small_contribution().parts());

  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names{"manifest.json"};
    for (const auto& file : ry::Checkpoint::open(path).manifest().files) names.push_back(file.name);
    return names;
  }
};

// Opens, verifies, and loads all that is there, as far as that goes. Returns what was thrown.
std::string use(const fs::path& path) {
  try {
    const auto checkpoint = ry::Checkpoint::open(path);
    checkpoint.verify();
    return {};
  } catch (const ry::DataError& error) {
    return error.what();
  }
}

// Reads everything without looking at checksums first: that may give wrong numbers, and DataError, and nothing else.
void read_all(const fs::path& path) {
  try {
    const auto checkpoint = ry::Checkpoint::open(path);
    for (const auto& part : checkpoint.parts()) {
      for (const int rank : {0, 1, 2}) {
        const auto state = checkpoint.load(part, rank);
        if (!state) continue;
        for (const auto& tensor : state->tensors) {
          std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.count()) * ry::size_of(tensor.dtype));
          tensor.read(0, tensor.count(), bytes.data());
        }
      }
    }
  } catch (const ry::DataError&) {
  }
}

void check_refused(const Victim& victim, const std::string& name) {
  read_all(victim.path);
  CHECK_THAT(use(victim.path), ContainsSubstring((victim.path / name).string() + ": "));
}

// Commits files of any content and loads the part "net".
std::string loading(const std::vector<std::pair<std::string, std::string>>& files) {
  const Scratch scratch;
  Contribution contribution;
  for (const auto& [name, content] : files) contribution.add(name, content);
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const auto checkpoint = ry::Checkpoint::open(folder.commit({}, contribution.parts()));
  try {
    return checkpoint.load("net", 0) ? "" : "nothing";
  } catch (const ry::DataError& error) {
    return error.what();
  }
}

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>((length >> (8 * i)) & 0xFFU);
  return text + rest;
}

std::string loading_tensors(const std::string& content) {
  return loading({{"state.json", R"({"parts": {"net": {"values": {}}}})"}, {"net.safetensors", content}});
}

}  // namespace

TEST_CASE("FAULTS F1: a file of a checkpoint that was cut short is found when it is opened, and named") {
  const Victim victim;
  for (const auto& name : victim.files()) {
    INFO(name);
    const auto content = read_file(victim.path / name);
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, content.size() / 2, content.size() - 1}) {
      write_file(victim.path / name, content.substr(0, size));
      CHECK_THROWS_AS(ry::Checkpoint::open(victim.path), ry::DataError);
      check_refused(victim, name);
    }
    write_file(victim.path / name, content + "\n");
    check_refused(victim, name);
    write_file(victim.path / name, content);
    CHECK(use(victim.path).empty());
  }
}

TEST_CASE(
    "Checkpoint: a file that is cut short after it was opened gives an error that names it, no signal (TRAPS 42)") {
  const Victim victim;
  const auto checkpoint = ry::Checkpoint::open(victim.path);
  const auto net = checkpoint.load("net", 0);
  REQUIRE(net);
  const auto& tensor = *net->find_tensor("weight");
  fs::resize_file(victim.path / "net.safetensors", 8);
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.count()) * ry::size_of(tensor.dtype));
  CHECK_THROWS_WITH(
      tensor.read(0, tensor.count(), bytes.data()),
      ContainsSubstring((victim.path / "net.safetensors").string() + ": ") && ContainsSubstring("in the middle of"));
  CHECK_THROWS_AS(checkpoint.verify(), ry::DataError);
}

TEST_CASE("Checkpoint: any bit that has changed in any file is found, and the file named") {
  const Victim victim;
  for (const auto& name : victim.files()) {
    INFO(name);
    const auto content = read_file(victim.path / name);
    for (std::size_t i = 0; i < content.size(); ++i) {
      auto changed = content;
      changed[i] = static_cast<char>(static_cast<unsigned char>(changed[i]) ^ (1U << (i % 8)));
      write_file(victim.path / name, changed);
      check_refused(victim, name);
    }
    write_file(victim.path / name, content);
  }
}

TEST_CASE("Checkpoint: a file that is missing, a folder, a pipe or a way out of the directory is refused") {
  const Victim victim;
  for (const auto& name : victim.files()) {
    INFO(name);
    const auto path = victim.path / name;
    const auto content = read_file(path);
    fs::remove(path);
    check_refused(victim, name);
    fs::create_directory(path);
    check_refused(victim, name);
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    check_refused(victim, name);
    fs::remove(path);
    write_file(victim.scratch.path() / "outside", content);
    fs::create_symlink(victim.scratch.path() / "outside", path);
    check_refused(victim, name);
    fs::remove(path);
    write_file(path, content);
    CHECK(use(victim.path).empty());
  }
  fs::rename(victim.path / "files", victim.scratch.path() / "files");
  fs::create_directory_symlink(victim.scratch.path() / "files", victim.path / "files");
  check_refused(victim, "files/vocabulary/words.txt");
}

TEST_CASE("Checkpoint: a manifest that names files outside of its directory is refused") {
  const Victim victim;
  write_file(victim.scratch.path() / "outside", "secret");
  auto manifest = ry::Checkpoint::open(victim.path).manifest();
  for (const auto& name : {std::string{"../../outside"}, (victim.scratch.path() / "outside").string(),
                           std::string{"files/../../../outside"}, std::string{".."}, std::string{"a\0b", 3}}) {
    manifest.files.resize(1);
    manifest.files[0] = {.name = name, .size = 6, .crc32c = 0};
    write_file(victim.path / "manifest.json", ry::detail::manifest_text(manifest));
    CHECK_THAT(use(victim.path), ContainsSubstring("manifest.json: it names a file") && ContainsSubstring("cannot be"));
  }
}

TEST_CASE("Checkpoint: a manifest says its own format, and there is none below the first") {
  const Victim victim;
  auto manifest = ry::Checkpoint::open(victim.path).manifest();
  manifest.format = 0;
  write_file(victim.path / "manifest.json", ry::detail::manifest_text(manifest));
  CHECK_THAT(use(victim.path), ContainsSubstring("manifest.json: it is of format 0"));
}

TEST_CASE("Checkpoint: a manifest of a later format is refused with what to do") {
  const Victim victim;
  auto manifest = ry::Checkpoint::open(victim.path).manifest();
  manifest.format = 2;
  write_file(victim.path / "manifest.json", ry::detail::manifest_text(manifest));
  CHECK_THAT(use(victim.path), ContainsSubstring("manifest.json: it is of format 2") &&
                                   ContainsSubstring("use the release that has written it, or a newer one"));
}

TEST_CASE("Checkpoint: tensors whose header is wrong are refused by the name of their file") {
  const auto refused = [](const std::string& content, const std::string& why) {
    CHECK_THAT(loading_tensors(content), ContainsSubstring("net.safetensors: ") && ContainsSubstring(why));
  };
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    std::string json = R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
    return with_length(json.size(), json + "12345678");
  };
  CHECK(loading_tensors(one("F32", "[2]", "[0,8]")).empty());
  refused("1234567", "too short");
  refused(with_length(~std::uint64_t{0}, "{}"), "longer than the format allows");
  refused(with_length(100'000'001, "{}"), "longer than the format allows");
  refused(with_length(3, "{}"), "longer than the file");
  refused(with_length(2, "{}x"), "take 0 bytes");
  refused(with_length(2, "[]"), "an object");
  refused(with_length(2, "{ "), "no JSON");
  refused(one("F8_E5M2", "[8]", "[0,8]"), "F8_E5M2");
  refused(one("F32", "[3]", "[0,8]"), "12 bytes are what its shape takes");
  refused(one("F32", "[2]", "[8,16]"), "begins at byte 8");
  refused(one("F32", "[2]", "[-8,0]"), "no number that fits");
  refused(one("F32", "[2]", "[18446744073709551608,0]"), "its place is from byte 18446744073709551608");
  refused(one("F32", "[4611686018427387904]", "[0,0]"), "larger than any file");
  refused(one("F32", "[9223372036854775807,2]", "[0,8]"), "impossible size");
  refused(one("F32", "[2.5]", "[0,8]"), "2.5 is no number that fits");
  refused(one("F32", "\"2\"", "[0,8]"), "a list");
}

TEST_CASE("Checkpoint: states that are wrong are refused by the name of their file") {
  const auto refused = [](const std::string& state, const std::string& why) {
    CHECK_THAT(loading({{"state.json", state}}), ContainsSubstring("state.json: ") && ContainsSubstring(why));
  };
  CHECK(loading({{"state.json", R"({"parts": {"net": {"values": {"a": 1}}}})"}}).empty());
  CHECK(loading({{"state.json", R"({"parts": {}})"}}) == "nothing");
  refused("", "no JSON");
  refused("[]", "an object");
  refused("{}", "\"parts\" is missing");
  refused(R"({"parts": {"net": []}})", "an object");
  refused(R"({"parts": {"net": {"values": {"a": [1]}}}})", "should be that is none");
  refused(R"({"parts": {"net": {"values": {"a": 1, "a": 2}}}})", "twice");
}

TEST_CASE("Checkpoint: pieces that do not fit their tensors are refused by the name of the file") {
  const std::string json = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const auto loading_piece = [&](const std::string& shape, int begin, int end) {
    const std::string piece =
        R"({"shape": )" + shape + R"(, "begin": )" + std::to_string(begin) + R"(, "end": )" + std::to_string(end) + "}";
    return loading({{"state.json", R"({"parts": {"net": {"values": {}}}})"},
                    {"state.rank-0.json", R"({"parts": {"net": {"pieces": {"w": )" + piece + "}}}}"},
                    {"net.rank-0.safetensors", with_length(json.size(), json + "1234")}});
  };
  CHECK(loading_piece("[2, 2]", 0, 4).empty());
  CHECK_THAT(loading_piece("[5]", 0, 4),
             ContainsSubstring("net.rank-*.safetensors: ") && ContainsSubstring("from 4 on"));
  CHECK_THAT(loading_piece("[3]", 0, 3),
             ContainsSubstring("net.rank-0.safetensors: ") && ContainsSubstring("should have 3"));
  CHECK_THAT(loading_piece("[3]", 0, 4),
             ContainsSubstring("state.rank-0.json: ") && ContainsSubstring("not within it"));
  CHECK_THAT(loading_piece("[-4]", 0, 4),
             ContainsSubstring("state.rank-0.json: ") && ContainsSubstring("impossible size"));
  CHECK_THAT(loading_piece("[4]", 3, 2), ContainsSubstring("state.rank-0.json: "));
  CHECK_THAT(loading_piece("[4]", -1, 3), ContainsSubstring("state.rank-0.json: "));
}
