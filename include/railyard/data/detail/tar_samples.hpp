// SPDX-License-Identifier: MIT
// The samples in a tar archive: files whose names differ only in what follows the first dot. Data room.
// Source: https://github.com/webdataset/webdataset, "The WebDataset Format".
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/file_point.hpp"
#include "railyard/data/detail/tar_reader.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::size_t most_block_bytes = std::size_t{16} << 20;  // after which a reader gives what it has

/// Says which files of a sample become which columns.
struct TarPlan {
  std::shared_ptr<const Schema> schema{};
  std::size_t num_suffixes = 0;  ///< the first columns, named by them; one more holds the key, if there is one more
  std::uint64_t max_member_bytes = 0;
};

/// Is the name of a file, divided.
struct TarName {
  std::string key{};     ///< with its folders
  std::string suffix{};  ///< in small letters; empty if it is no part of a sample

  explicit TarName(std::string_view name) {
    const std::size_t base = name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1;
    const std::size_t dot = name.find('.', base);
    if (dot == std::string_view::npos || dot == base) return;                         // as hidden files
    if (name.substr(base, 2) == "__" && name.substr(0, dot).ends_with("__")) return;  // says something of the shard
    key = name.substr(0, dot);
    suffix = name.substr(dot + 1);
    for (char& c : suffix) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
};

/// Is a sample in an archive.
struct TarSample {
  std::string key{};
  std::vector<std::optional<TarPlace>> places{};  ///< by column
  std::vector<std::string> contents{};            ///< by column, as far as they were asked for
  std::string fault{};                            ///< why it can be no sample
  std::uint64_t offset = 0;                       ///< of its first file
};

/// Says which contents are to be read with the samples.
enum class TarContents : std::uint8_t { none, texts, all };

/// Reads an archive sample by sample.
class TarSampleReader {
 public:
  /// offset: as of a TarReader.
  TarSampleReader(const std::string& path, std::unique_ptr<ByteStream> bytes, std::shared_ptr<const TarPlan> plan,
                  std::uint64_t offset = 0)
      : path_(path), reader_(path, std::move(bytes), offset), plan_(std::move(plan)) {
    advance();
  }

  /// Returns the next sample, which may have a fault; nothing at the end. Throws: DataError if the archive is damaged.
  [[nodiscard]] std::optional<TarSample> next(TarContents contents) {
    if (!member_) return std::nullopt;
    TarSample sample{.key = name_.key, .offset = member_->place.offset};
    sample.places.resize(plan_->num_suffixes);
    sample.contents.resize(plan_->num_suffixes);
    while (member_ && name_.key == sample.key) {
      add(sample, contents);
      advance();
    }
    for (std::size_t column = 0; column < sample.places.size(); ++column) {
      if (!sample.places[column]) add_fault(sample, compose("it has no .{}", (*plan_->schema)[column].name));
    }
    return sample;
  }

  /// Where the next sample begins, and the last point of the stream up to there, once; damaged: left out before it.
  [[nodiscard]] std::optional<FilePoint> take_point(std::uint64_t damaged) {
    if (!member_) return std::nullopt;
    auto point = reader_.take_point();
    if (!point) return std::nullopt;
    return FilePoint{reader_.begin(), damaged, std::move(*point)};
  }

  /// Says where a sample is, as messages begin.
  [[nodiscard]] std::string where(const TarSample& sample) const {
    return compose("{}: byte {} of the archive: sample \"{}\"", path_, sample.offset, shown_text(sample.key));
  }

 private:
  // Goes to the next file that is a part of a sample.
  void advance() {
    do {
      member_ = reader_.next();
      if (member_) name_ = TarName{member_->name};
    } while (member_ && name_.suffix.empty());
  }

  static void add_fault(TarSample& sample, std::string fault) {
    if (sample.fault.empty()) sample.fault = std::move(fault);
  }

  void add(TarSample& sample, TarContents contents) {
    const std::optional<std::size_t> column = plan_->schema->find(name_.suffix);
    if (!column || *column >= plan_->num_suffixes) return;
    if (sample.places[*column]) return add_fault(sample, compose("it has two files .{}", name_.suffix));
    sample.places[*column] = member_->place;
    if (member_->link) {
      return add_fault(sample,
                       compose("its .{} is a link to \"{}\", and links are not followed: pack files instead, as "
                               "tar does with --dereference --hard-dereference",
                               name_.suffix, shown_text(*member_->link)));
    }
    if (member_->place.size > plan_->max_member_bytes) {
      return add_fault(sample, compose("its .{} has {} bytes, and .max_member_bytes allows {}", name_.suffix,
                                       member_->place.size, plan_->max_member_bytes));
    }
    const bool is_text = (*plan_->schema)[*column].is_text;
    if (contents == TarContents::none || (contents == TarContents::texts && !is_text)) return;
    std::string& content = sample.contents[*column] = reader_.read_content(member_->place);
    const std::size_t wrong = is_text ? find_invalid_utf8(content) : content.size();
    if (wrong != content.size()) {
      add_fault(sample, compose("column \"{}\": byte {} is not UTF-8 text", name_.suffix, wrong));
    }
  }

  std::string path_;
  TarReader reader_;
  std::shared_ptr<const TarPlan> plan_;
  std::optional<TarMember> member_{};  // the next one
  TarName name_{""};
};

/// Adds a sample with all its contents to a block.
inline void add_tar_sample(BlockBuilder& builder, std::uint64_t id, const std::string& key,
                           std::span<const std::string> contents) {
  SampleWriter& writer = builder.add(id);
  for (std::size_t column = 0; column < contents.size(); ++column) {
    const std::string& content = contents[column];
    if (builder.schema()[column].is_text) {
      writer.set(column, content);
    } else {
      writer.set(column, std::span{reinterpret_cast<const std::uint8_t*>(content.data()), content.size()});
    }
  }
  if (contents.size() < builder.schema().size()) writer.set(contents.size(), key);
}

/// Returns the suffixes of the first sample of an archive, in their order; none if it holds none.
[[nodiscard]] inline std::vector<std::string> first_tar_suffixes(const std::string& path,
                                                                 std::unique_ptr<ByteStream> bytes) {
  TarReader reader{path, std::move(bytes)};
  std::vector<std::string> suffixes;
  std::string key;
  while (const auto member = reader.next()) {
    const TarName name{member->name};
    if (name.suffix.empty()) continue;
    if (!suffixes.empty() && name.key != key) return suffixes;
    key = name.key;
    if (std::find(suffixes.begin(), suffixes.end(), name.suffix) == suffixes.end()) suffixes.push_back(name.suffix);
  }
  return suffixes;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
