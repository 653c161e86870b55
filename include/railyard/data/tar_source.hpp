// SPDX-License-Identifier: MIT
// Samples out of tar archives, such as shards of WebDataset. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/tar_samples.hpp"
#include "railyard/data/detail/tar_shards.hpp"
#include "railyard/data/detail/utf8.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/tar_source_options.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Gives the samples of tar archives (ustar, GNU, pax), in any order: files that follow each other and whose names are
/// the same up to the first dot are one sample, and what follows the dot names the column. Links are damage: they hold
/// nothing. Archives that were put one behind the other are read as one. They are not to change as long as there is a
/// source of them.
///
/// Cost: the first count(), read() or open() in the middle reads the headers of all archives up to there (.on_error
/// other than stop(): texts as well), and keeps about 150 bytes per sample in memory. Of workers that were forked with
/// the source, and not before all was counted, the first reads them for all, which share that memory. A descriptor.
/// Example: ry::Dataset{ry::TarSource{"photos-*.tar", {.bytes = {"jpg"}, .text = {"cls"}}}}
class TarSource {
 public:
  explicit TarSource(InputFiles files, TarSourceOptions options = {})
      : shards_(std::make_shared<detail::TarShards>(std::move(files), std::move(options), nullptr)),
        index_(std::make_shared<detail::TarIndex>(shards_)) {}

  /// Throws: DataError if archives have to be read for it and none has a sample, or one is damaged; ConfigError for two
  /// columns of one name.
  [[nodiscard]] Schema schema() const { return *shards_->plan()->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return index_->count(); }
  [[nodiscard]] std::string describe() const { return shards_->describe(); }
  /// The paths of the archives that it reads.
  [[nodiscard]] std::vector<std::string> files() const { return shards_->names(); }
  [[nodiscard]] std::string label() const { return shards_->options().label; }
  /// Another when the options are that say which samples are left out.
  [[nodiscard]] std::uint64_t fingerprint() const {
    return detail::fingerprint_of(shards_->options().on_error, shards_->options().max_member_bytes);
  }
  /// Where processes of a host leave the index for each other; see detail::SampleShelf.
  [[nodiscard]] detail::SampleShelf* shelf() const { return &index_->shelf(); }
  /// How many damaged samples and rests of archives were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const { return shards_->skips().count(); }
  /// Names the rests of archives among them.
  [[nodiscard]] std::vector<std::string> skipped_parts() const { return shards_->skips().names(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    BlockBuilder builder{shards_->plan()->schema};
    for (const std::uint64_t id : ids) {
      if (!add(builder, id)) {
        throw ConfigError{
            detail::compose("{} has {} samples and was asked for sample {}", describe(), index_->count(), id)};
      }
    }
    return builder.build();
  }

 private:
  class Reader;

  // False if there is no such sample.
  bool add(BlockBuilder& builder, std::uint64_t id) const {
    const auto place = index_->find(id);
    if (!place) return false;
    std::vector<std::string> contents;
    for (std::size_t column = 0; column < place->places.size(); ++column) {
      const detail::TarPlace& content = place->places[column];
      contents.push_back(place->file->read_text(content.offset, static_cast<std::size_t>(content.size)));
      const Field& field = builder.schema()[column];
      const std::size_t wrong = field.is_text ? detail::find_invalid_utf8(contents.back()) : contents.back().size();
      if (wrong != contents.back().size()) {
        place->file->fail(content.offset + wrong, detail::compose("column \"{}\" is not UTF-8 text", field.name));
      }
    }
    place->file->check_unchanged();
    detail::add_tar_sample(builder, id, place->key, contents);
    return true;
  }

  std::shared_ptr<detail::TarShards> shards_;
  std::shared_ptr<detail::TarIndex> index_;
};

class TarSource::Reader final : public BlockReader {
 public:
  Reader(TarSource source, std::uint64_t from) : source_(std::move(source)), at_(from) {}
  [[nodiscard]] Block next(std::size_t most_rows) override {
    BlockBuilder builder{source_.shards_->plan()->schema};
    while (builder.rows() < most_rows && builder.bytes() < detail::most_block_bytes && source_.add(builder, at_)) ++at_;
    return builder.build();
  }

 private:
  TarSource source_;
  std::uint64_t at_;
};

inline std::unique_ptr<BlockReader> TarSource::open(std::uint64_t from) const {
  return std::make_unique<Reader>(*this, from);
}
static_assert(IndexedSource<TarSource>);

/// Gives the samples of compressed tar archives, one after another. To go on in the middle of one, a part of it is read
/// again, of which gzip() and zstd() tell; the archives before it are not.
/// Example: ry::TarStream{ry::gzip("photos-*.tar.gz"), {.bytes = {"jpg"}, .text = {"cls"}}}
class TarStream {
 public:
  explicit TarStream(CompressedFiles files, TarSourceOptions options = {})
      : shards_(std::make_shared<detail::TarShards>(std::move(files.files), std::move(options), files.open)) {}

  /// Throws: as TarSource::schema().
  [[nodiscard]] Schema schema() const { return *shards_->plan()->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return std::nullopt; }
  [[nodiscard]] std::string describe() const { return shards_->describe(); }
  /// The paths of the archives that it reads.
  [[nodiscard]] std::vector<std::string> files() const { return shards_->names(); }
  [[nodiscard]] std::string label() const { return shards_->options().label; }
  /// Another when the options are that say which samples are left out.
  [[nodiscard]] std::uint64_t fingerprint() const {
    return detail::fingerprint_of(shards_->options().on_error, shards_->options().max_member_bytes);
  }
  /// How many damaged samples and rests of archives were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const { return shards_->skips().count(); }
  /// Names the rests of archives among them.
  [[nodiscard]] std::vector<std::string> skipped_parts() const { return shards_->skips().names(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from, const ReaderPlace& place = {}) const {
    detail::check_place(describe(), shards_->names(), from, place);
    return std::make_unique<Reader>(shards_, from, place);
  }

 private:
  class Reader final : public BlockReader {
   public:
    Reader(const std::shared_ptr<detail::TarShards>& shards, std::uint64_t from, const ReaderPlace& place)
        : schema_(shards->plan()->schema), walk_(shards, place, from), at_(walk_.first()), place_(place) {
      if (at_ == place.samples) place_.state = {};
      while (at_ < from && next_sample(shards->contents_to_check())) {
      }
    }
    [[nodiscard]] Block next(std::size_t most_rows) override {
      BlockBuilder builder{schema_};
      while (builder.rows() < most_rows && builder.bytes() < detail::most_block_bytes) {
        const auto sample = next_sample(detail::TarContents::all);
        if (!sample) break;
        detail::add_tar_sample(builder, at_ - 1, sample->key, sample->contents);
      }
      return builder.build();
    }
    [[nodiscard]] ReaderPlace place() const override { return place_; }

   private:
    // Notes where the archive begins that it comes from, and where another reader may go on after it.
    std::optional<detail::TarSample> next_sample(detail::TarContents contents) {
      auto sample = walk_.next(contents);
      if (walk_.file() != place_.file) place_ = {walk_.file(), at_, walk_.left_out_before()};
      if (sample) {
        ++at_;
        if (auto state = walk_.take_state(at_)) place_.state = std::move(*state);
      }
      return sample;
    }

    std::shared_ptr<const Schema> schema_;
    detail::TarWalk walk_;
    std::uint64_t at_;     // the sample that comes next
    ReaderPlace place_{};  // of the one that came last
  };

  std::shared_ptr<detail::TarShards> shards_;
};
static_assert(FileStreamSource<TarStream> && !IndexedSource<TarStream>);

}  // namespace railyard::inline v0_1
