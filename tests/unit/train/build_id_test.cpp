// SPDX-License-Identifier: MIT
#include "railyard/train/detail/build_id.hpp"

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

namespace ry = railyard;

namespace {

// A note as linkers write it.
std::string linker_note(std::uint32_t type, const std::string& name, const std::string& bytes,
                        std::size_t alignment = 4) {
  std::string text;
  for (const auto number : {static_cast<std::uint32_t>(name.size()), static_cast<std::uint32_t>(bytes.size()), type}) {
    text.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  for (const std::string& part : {name, bytes}) {
    text += part;
    while (text.size() % alignment != 0) text += '\0';
  }
  return text;
}

std::string build_found_in(const std::string& notes, std::size_t alignment = 4) {
  return ry::detail::build_id_in(std::as_bytes(std::span{notes}), alignment);
}

}  // namespace

TEST_CASE("program_build: is what the linker has written into the file of this program, the same at any time") {
  const std::string build = ry::detail::program_build();
  CHECK_FALSE(build.empty());
  CHECK(build == ry::detail::program_build());
  if (build.starts_with("code ")) {
    WARN("not tested: this program was linked without a build id");
    return;
  }
  std::ifstream file{"/proc/self/exe"};
  std::ostringstream bytes;  // one character after another, a program with sanitizers takes a minute
  bytes << file.rdbuf();
  std::string wanted;
  REQUIRE(build.size() % 2 == 0);
  for (std::size_t at = 0; at < build.size(); at += 2) {
    wanted += static_cast<char>(std::stoi(build.substr(at, 2), nullptr, 16));
  }
  CHECK(bytes.str().find(linker_note(3, std::string{"GNU", 4}, wanted)) != std::string::npos);
}

TEST_CASE("build_id_in: finds it behind other notes, and nothing where there is none or notes are cut off") {
  const std::string gnu{"GNU", 4};
  const std::string id = linker_note(3, gnu, "\x01\xAB\x7F");
  CHECK(build_found_in(id) == "01ab7f");
  CHECK(build_found_in(linker_note(1, gnu, "abcdefg") + linker_note(3, std::string{"Go", 3}, "xy") + id) == "01ab7f");
  CHECK(build_found_in(linker_note(5, gnu, "abcdefgh", 8) + linker_note(3, gnu, "z", 8), 8) == "7a");
  CHECK(build_found_in("") == "");
  CHECK(build_found_in(linker_note(1, gnu, "abc")) == "");
  for (std::size_t size = 0; size < 19; ++size) CHECK(build_found_in(id.substr(0, size)) == "");
}
