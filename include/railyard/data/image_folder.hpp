// SPDX-License-Identifier: MIT
// Samples out of PNG and JPEG files, a folder for each class. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/decode_image.hpp"
#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/image_files.hpp"
#include "railyard/data/detail/sample_shelf.hpp"
#include "railyard/data/image.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/waiting.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says in which order the numbers of a picture come.
enum class ImageLayout : std::uint8_t {
  hwc,  ///< pixel after pixel: height x width x channels
  chw,  ///< colour after colour: channels x height x width
};

/// Says how a folder of pictures is read.
struct ImageFolderOptions {
  std::size_t height = 0;  ///< to which pictures are brought. Without height and width each stays as it is: "image" is
  std::size_t width = 0;   ///< then ragged, and there are the columns "height" and "width"
  ImageFit fit = ImageFit::crop;
  ImageLayout layout = ImageLayout::hwc;
  ImageColors colors = ImageColors::rgb;
  std::uint64_t max_pixels = DecodeImageOptions{}.max_pixels;
  OnError on_error = OnError::stop();
};

/// Gives the pictures in folders as samples, in any order: "image" is u8, and "label", i64, is the place of the
/// folder's name among those of all folders. Several folders, by a list or a pattern, are as one that holds what is in
/// each; a path may also be a picture, whose class is the name of the folder that it lies in. Each picture is read when
/// it is asked for, by whoever asks. What begins with a dot is left out, and so are pictures of other kinds, which the
/// program is told once. Folders are listed when they are first needed, and not to change as long as there
/// is a source of them.
///
/// Cost: with .on_error other than stop() the first count() decodes all pictures, to know which can be; of workers that
/// were forked before, one does that for all.
/// Example: ry::ImageFolder{"photos/train", {.height = 224, .width = 224}}; ry::ImageFolder{"photos/part-*"}
class ImageFolder {
 public:
  /// Throws: ConfigError if one of height and width is given without the other.
  explicit ImageFolder(InputFiles folders, const ImageFolderOptions& options = {})
      : shared_(std::make_shared<Shared>(std::move(folders), options)) {
    if ((options.height == 0) != (options.width == 0)) {
      throw ConfigError{detail::compose("ImageFolder was given .height = {} and .width = {}: give both, or none",
                                        options.height, options.width)};
    }
  }

  [[nodiscard]] Schema schema() const { return *shared_->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return shared_->files().size(); }
  [[nodiscard]] std::string describe() const { return detail::compose("pictures in {}", shared_->folders.describe()); }
  /// The paths of the pictures, damaged ones included. Looks at no picture.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> all;
    for (detail::ImageFile& file : detail::list_image_files(shared_->folders.expand()).files)
      all.push_back(std::move(file.path));
    return all;
  }
  [[nodiscard]] std::string label() const { return "label"; }
  /// The names of the folders: label i is classes()[i].
  [[nodiscard]] std::vector<std::string> classes() const {
    (void)shared_->files();
    return shared_->found.classes;
  }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const {
    const ImageFolderOptions& options = shared_->options;
    detail::Fingerprint fingerprint;
    fingerprint.add(options.fit);
    fingerprint.add(options.layout);
    fingerprint.add(options.colors);
    fingerprint.add(detail::fingerprint_of(options.on_error, options.max_pixels));
    return fingerprint.value();
  }
  /// Where processes of a host leave for each other which pictures are sound; see detail::SampleShelf.
  [[nodiscard]] detail::SampleShelf* shelf() const { return shared_->shelf ? &*shared_->shelf : nullptr; }
  /// How many damaged pictures were left out.
  [[nodiscard]] std::uint64_t skipped() const { return shared_->skips.count(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const {
    return std::make_unique<Reader>(shared_, from);
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    const std::uint64_t count = shared_->files().size();
    BlockBuilder builder{shared_->schema, shared_->options.height == 0 ? 0 : ids.size()};
    for (const std::uint64_t id : ids) {
      if (id >= count) {
        throw ConfigError{detail::compose("{} has {} samples and was asked for sample {}", describe(), count, id)};
      }
      shared_->add(builder, id);
    }
    return builder.build();
  }

 private:
  struct Shared {
    Shared(InputFiles folders_, const ImageFolderOptions& options_)
        : folders(std::move(folders_)), options(options_), schema(std::make_shared<const Schema>(fields_of(options_))) {
      if (!options.on_error.stops_at_once()) shelf.emplace("decodes pictures to know which can be");
    }

    [[nodiscard]] static std::vector<Field> fields_of(const ImageFolderOptions& options) {
      const auto height = static_cast<std::int64_t>(options.height);
      const auto width = static_cast<std::int64_t>(options.width);
      const auto channels = static_cast<std::int64_t>(options.colors);
      Field image{.name = "image", .dtype = Dtype::u8, .shape = {height, width, channels}};
      if (options.layout == ImageLayout::chw) image.shape = {channels, height, width};
      const Field label{.name = "label", .dtype = Dtype::i64};
      if (height != 0) return {image, label};
      image.shape = {-1};
      return {image, label, {.name = "height", .dtype = Dtype::i64}, {.name = "width", .dtype = Dtype::i64}};
    }

    [[nodiscard]] const std::vector<detail::ImageFile>& files() {
      const std::lock_guard lock{mutex};
      if (found.files.empty()) found = list();
      return found.files;
    }
    [[nodiscard]] detail::ImageFiles list() const {
      detail::ImageFiles all = detail::list_image_files(folders.expand());
      tell_of_others(all);
      if (options.on_error.stops_at_once()) return all;
      const auto places = std::make_shared<const Schema>(Schema{{"place", Dtype::i64}});
      const auto find = [&](const auto& progress) {
        std::vector<std::int64_t> sound = find_sound(all.files, progress);
        std::vector<std::uint64_t> ids(sound.size());
        return std::vector<Block>{Block{places, {Column{(*places)[0], std::move(sound)}}, std::move(ids)}};
      };
      const Block sound = shelf->has_use() ? shelf->find_or_make(places, find) : find([] {}).front();
      skips.raise_to(all.files.size() - sound.rows());
      std::vector<detail::ImageFile> kept;
      for (const std::int64_t place : sound[0].values<std::int64_t>()) {
        kept.push_back(std::move(all.files[static_cast<std::size_t>(place)]));
      }
      all.files = std::move(kept);
      return all;
    }
    void tell_of_others(const detail::ImageFiles& all) const {
      std::string kinds;
      for (const auto& [suffix, number] : all.others) {
        kinds += detail::compose("{}{} {}", kinds.empty() ? "" : ", ", number, suffix);
      }
      if (kinds.empty()) return;
      detail::WaitWatch::tell(detail::compose("pictures in {}: {} left out: only PNG and JPEG are read: convert them",
                                              folders.describe(), kinds));
    }
    // The places of those that can be decoded.
    template <class Progress>
    [[nodiscard]] std::vector<std::int64_t> find_sound(const std::vector<detail::ImageFile>& files,
                                                       const Progress& progress) const {
      std::vector<std::int64_t> sound;
      std::uint64_t damaged = 0;
      for (std::size_t place = 0; place < files.size(); ++place) {
        try {
          (void)decode(files[place]);
          sound.push_back(static_cast<std::int64_t>(place));
        } catch (const DataError&) {
          if (++damaged > options.on_error.max_skips()) throw;
          skips.raise_to(damaged);
        }
        progress();
      }
      if (sound.empty()) {
        throw DataError{detail::compose("all {} pictures in {} are damaged", damaged, folders.describe())};
      }
      return sound;
    }

    [[nodiscard]] Image decode(const detail::ImageFile& file) const {
      detail::FileBytes input{file.path};
      std::vector<std::byte> bytes(static_cast<std::size_t>(input.stamp().size));
      bytes.resize(input.read(reinterpret_cast<char*>(bytes.data()), bytes.size()));
      try {
        return decode_image(bytes, {options.colors, options.max_pixels});
      } catch (const DataError& error) {
        throw DataError{detail::compose("{}: {}", file.path, error.what())};
      }
    }

    void add(BlockBuilder& builder, std::uint64_t id) {
      const detail::ImageFile& file = found.files[static_cast<std::size_t>(id)];
      Image image = decode(file);
      if (options.height != 0) image = fit_image(std::move(image), options.height, options.width, options.fit);
      SampleWriter& writer = builder.add(id);
      if (options.layout == ImageLayout::chw) {
        std::vector<std::uint8_t> planes(image.pixels.size());
        put_planes(image, planes);
        writer.set(0, planes);
      } else {
        writer.set(0, image.pixels);
      }
      writer.set(1, file.label);
      if (options.height != 0) return;
      writer.set(2, image.height);
      writer.set(3, image.width);
    }

    InputFiles folders;
    ImageFolderOptions options;
    std::shared_ptr<const Schema> schema;
    SkipCount skips{};
    std::mutex mutex{};
    std::optional<detail::SampleShelf> shelf{};  // of which pictures are sound
    detail::ImageFiles found{};
  };

  class Reader final : public BlockReader {
   public:
    Reader(std::shared_ptr<Shared> shared, std::uint64_t from)
        : shared_(std::move(shared)), at_(std::min<std::uint64_t>(from, shared_->files().size())) {}
    [[nodiscard]] Block next(std::size_t most_rows) override {
      constexpr std::size_t most_bytes = std::size_t{16} << 20;
      BlockBuilder builder{shared_->schema};
      while (at_ < shared_->files().size() && builder.rows() < most_rows && builder.bytes() < most_bytes) {
        shared_->add(builder, at_++);
      }
      return builder.build();
    }

   private:
    std::shared_ptr<Shared> shared_;
    std::uint64_t at_;
  };

  std::shared_ptr<Shared> shared_;
};
static_assert(IndexedSource<ImageFolder>);

}  // namespace railyard::inline v0_1
