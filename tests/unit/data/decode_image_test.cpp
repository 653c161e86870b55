// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_IMAGES
#include "railyard/data/decode_image.hpp"

#include "railyard/data/dataset.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/memory_source.hpp"

#include "support/catch.hpp"
#include "unit/data/pictures.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace ry = railyard;

TEST_CASE("decode_image: gives the pixels of PNG files of all colours") {
  for (const auto colors :
       {ry::ImageColors::grey, ry::ImageColors::grey_alpha, ry::ImageColors::rgb, ry::ImageColors::rgba}) {
    const ry::Image image = pictures::make_image(7, 5, colors);
    const std::string file = pictures::png_of(image);
    const ry::Image same = ry::decode_image(pictures::as_bytes(file), {.colors = colors});
    CHECK((same.height == 7 && same.width == 5));
    CHECK(same.pixels == image.pixels);
    CHECK(ry::decode_image(pictures::as_bytes(file)).pixels == ry::convert_colors(image, ry::ImageColors::rgb).pixels);
  }
}

TEST_CASE("decode_image: gives about the pixels of JPEG files") {
  for (const auto colors : {ry::ImageColors::grey, ry::ImageColors::rgb}) {
    ry::Image image{16, 24, colors, std::vector<std::uint8_t>(16 * 24 * static_cast<std::size_t>(colors), 77)};
    const ry::Image same = ry::decode_image(pictures::as_bytes(pictures::jpeg_of(image)), {.colors = colors});
    REQUIRE(same.pixels.size() == image.pixels.size());
    for (std::size_t at = 0; at < same.pixels.size(); ++at) REQUIRE(std::abs(same.pixels[at] - image.pixels[at]) <= 2);
  }
}

TEST_CASE("decode_image: refuses damaged files, and files that end too early at every byte") {
  const ry::Image image = pictures::make_image(20, 20, ry::ImageColors::rgb);
  CHECK(pictures::error_of_decoding("GIF89a") == "it is neither PNG nor JPEG");
  CHECK(pictures::error_of_decoding("") == "it is neither PNG nor JPEG");
  const std::string png = pictures::png_of(image);
  const std::string jpeg = pictures::jpeg_of(image);
  constexpr std::size_t png_end = 12 + 4;  // what stands behind the last pixel: a checksum, and a chunk that says so
  for (std::size_t size = 8; size + png_end < png.size(); ++size) {
    REQUIRE_THAT(pictures::error_of_decoding(png.substr(0, size)), ContainsSubstring("damaged PNG: "));
  }
  for (std::size_t size = 2; size + 20 < jpeg.size(); ++size) {
    REQUIRE_THAT(pictures::error_of_decoding(jpeg.substr(0, size)), ContainsSubstring("damaged JPEG: "));
  }
  std::string changed = png;
  changed[png.size() / 2] = static_cast<char>(changed[png.size() / 2] ^ 1);
  CHECK_THAT(pictures::error_of_decoding(changed), ContainsSubstring("damaged PNG: "));
}

TEST_CASE("decode_image: refuses pictures with more pixels than allowed before it takes memory") {
  const ry::Image image = pictures::make_image(20, 30, ry::ImageColors::grey);
  for (std::string file : {pictures::png_of(image), pictures::jpeg_of(image)}) {
    CHECK(pictures::error_of_decoding(file, {.max_pixels = 600}) == "no error");
    CHECK_THAT(pictures::error_of_decoding(file, {.max_pixels = 599}),
               ContainsSubstring("30 x 20 pixels is larger than .max_pixels allows, 599"));
  }
}

TEST_CASE("decode_image: takes no more memory for a JPEG than its bytes can become") {
  std::string file = pictures::jpeg_of(pictures::make_image(20, 30, ry::ImageColors::rgb));
  const std::size_t frame = file.find("\xFF\xC0");  // length, precision, and then the height and the width
  REQUIRE(frame != std::string::npos);
  file.replace(frame + 5, 4, "\x24\x01\x24\x01");
  CHECK(pictures::error_of_decoding(file) == "damaged JPEG: it was cut off");
  const ry::Image even{3000, 3000, ry::ImageColors::grey, std::vector<std::uint8_t>(9'000'000, 9)};
  CHECK(pictures::error_of_decoding(pictures::jpeg_of(even)) == "no error");
}

TEST_CASE("decode_image: may be called by several threads at once") {
  const ry::Image image = pictures::make_image(50, 50, ry::ImageColors::rgb);
  const std::string png = pictures::png_of(image);
  const std::string jpeg = pictures::jpeg_of(image);
  const ry::Image expected = ry::decode_image(pictures::as_bytes(jpeg));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (int again = 0; again < 20; ++again) {
        wrong[thread] += ry::decode_image(pictures::as_bytes(png)).pixels != image.pixels;
        wrong[thread] += ry::decode_image(pictures::as_bytes(jpeg)).pixels != expected.pixels;
        wrong[thread] += pictures::error_of_decoding(jpeg.substr(0, jpeg.size() / 2)) == "no error";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("decode_image: makes pictures of the bytes of a dataset, on its threads") {
  std::vector<std::string> files;
  for (std::size_t size = 20; size < 60; ++size) {
    files.push_back(pictures::png_of(pictures::make_image(size, 40, ry::ImageColors::rgb)));
  }
  const auto bytes = ry::Column::texts(files);
  const ry::Field field{"png", ry::Dtype::u8, {-1}};
  const ry::Dataset stored{ry::MemorySource{std::vector<ry::NamedColumn>{{field, bytes}}}};
  const auto images =
      stored.map({{"image", ry::Dtype::u8, {8, 8, 3}}}, [](const ry::Sample& in, ry::SampleWriter& out) {
        out.set("image", ry::fit_image(ry::decode_image(in.bytes("png")), 8, 8).pixels);
      });
  ry::EpochReader reader{images, {.global_batch_size = 40, .threads = 3}};
  const auto batch = reader.next();
  REQUIRE(batch);
  REQUIRE(batch->block.rows() == 40);
  for (std::size_t row = 0; row < 40; ++row) {
    const ry::Image image = pictures::make_image(20 + row, 40, ry::ImageColors::rgb);
    const auto values = batch->block.column("image").values<std::uint8_t>(row);
    REQUIRE(std::vector<std::uint8_t>(values.begin(), values.end()) == ry::fit_image(image, 8, 8).pixels);
  }
}
#endif
