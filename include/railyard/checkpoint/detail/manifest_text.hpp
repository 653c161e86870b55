// SPDX-License-Identifier: MIT
// The text of manifest.json. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/crc32c.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/json_values.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/manifest.hpp"

#include "railyard/core/detail/compose.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::uint64_t max_manifest_size = 100'000'000;

// The text begins with its own checksum, that of everything behind its eight digits: of the file that says whether the
// others are whole, somebody has to say that.
inline constexpr std::string_view manifest_head = "{\n  \"checksum\": \"";
inline constexpr std::size_t checksum_digits = 8;

[[nodiscard]] inline std::string manifest_checksum(std::string_view text) {
  const auto covered = text.substr(manifest_head.size() + checksum_digits);
  return compose("{:08x}", crc32c(std::as_bytes(std::span{covered})));
}

[[nodiscard]] inline std::string manifest_text(const Manifest& manifest) {
  JsonWriter writer{true};
  const auto put = [&writer](std::string_view name, auto number) { writer.name(name).raw(compose("{}", number)); };
  writer.name("checksum").text(std::string(checksum_digits, '0'));
  put("format", manifest.format);
  writer.name("id").text(manifest.id);
  writer.name("created_at").text(manifest.created_at);
  put("world_size", manifest.world_size);
  put("step", manifest.step);
  put("samples", manifest.samples);
  put("epoch", manifest.epoch);
  put("report", manifest.report);
  put("attempt", manifest.attempt);
  put("generation", manifest.generation);
  write_values(writer.name("metrics"), manifest.metrics);
  write_values(writer.name("environment"), manifest.environment);
  writer.name("files").open();
  for (const ManifestFile& file : manifest.files) {
    writer.name(file.name).open();
    put("size", file.size);
    writer.name("crc32c").text(compose("{:08x}", file.crc32c));
    writer.close();
  }
  writer.close();
  std::string text = writer.finish() + "\n";
  text.replace(manifest_head.size(), checksum_digits, manifest_checksum(text));
  return text;
}

/// Throws: Damage.
[[nodiscard]] inline Manifest read_manifest(std::string_view text) {
  if (!text.starts_with(manifest_head) || text.size() < manifest_head.size() + checksum_digits ||
      text.substr(manifest_head.size(), checksum_digits) != manifest_checksum(text)) {
    throw Damage{"its content does not fit the checksum that it begins with"};
  }
  const Json json = parse_json(text);
  Manifest manifest;
  const int format = json.at("format").as<int>();
  // Where a later format differs from an earlier one, what follows will depend on it: there has been one so far.
  if (format < 1 || format > manifest.format) {
    throw Damage{compose(
        "it is of format {}, and this release ({}) reads the formats up to {}: use the release that has written "
        "it, or a newer one",
        format, version, manifest.format)};
  }
  manifest.format = format;
  manifest.id = json.at("id").text();
  manifest.created_at = json.at("created_at").text();
  manifest.world_size = json.at("world_size").as<int>();
  manifest.step = json.at("step").as<std::uint64_t>();
  manifest.samples = json.at("samples").as<std::uint64_t>();
  manifest.epoch = json.at("epoch").as<std::int64_t>();
  manifest.report = json.at("report").as<std::int64_t>();
  manifest.attempt = json.at("attempt").as<int>();
  manifest.generation = json.at("generation").as<std::uint64_t>();
  manifest.metrics = read_values(json.at("metrics"));
  manifest.environment = read_values(json.at("environment"));
  const Json& files = json.at("files");
  for (std::size_t i = 0; i < files.names().size(); ++i) {
    const std::string& name = files.names()[i];
    if (const auto fault = fault_of_path(name); !fault.empty()) {
      throw Damage{compose("it names a file \"{}\", which cannot be: {}", printable(name), fault)};
    }
    manifest.files.push_back({.name = name,
                              .size = files.items()[i].at("size").as<std::uint64_t>(),
                              .crc32c = read_hexadecimal<std::uint32_t>(files.items()[i].at("crc32c").text())});
  }
  return manifest;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
