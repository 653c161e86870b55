// SPDX-License-Identifier: MIT
#include "railyard/data/image.hpp"

#include "railyard/data/detail/resample.hpp"

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ry = railyard;

TEST_CASE("convert_colors: drops and adds colours and alpha") {
  const ry::Image rgba{1, 2, ry::ImageColors::rgba, {10, 20, 30, 40, 255, 255, 255, 0}};
  const auto converted = [&](ry::ImageColors colors) { return ry::convert_colors(rgba, colors).pixels; };
  CHECK(converted(ry::ImageColors::rgba) == rgba.pixels);
  CHECK(converted(ry::ImageColors::rgb) == std::vector<std::uint8_t>{10, 20, 30, 255, 255, 255});
  CHECK(converted(ry::ImageColors::grey) == std::vector<std::uint8_t>{18, 255});
  CHECK(converted(ry::ImageColors::grey_alpha) == std::vector<std::uint8_t>{18, 40, 255, 0});
  const ry::Image grey{1, 2, ry::ImageColors::grey, {7, 8}};
  CHECK(ry::convert_colors(grey, ry::ImageColors::rgba).pixels ==
        std::vector<std::uint8_t>{7, 7, 7, 255, 8, 8, 8, 255});
}

TEST_CASE("fit_image: weighs pixels by a triangle, and takes the middle") {
  const ry::Image row{1, 4, ry::ImageColors::grey, {0, 100, 200, 40}};
  // By Pillow: Image.resize((2, 1), BILINEAR).
  CHECK(ry::fit_image(row, 1, 2, ry::ImageFit::stretch).pixels == std::vector<std::uint8_t>{71, 117});
  CHECK(ry::fit_image(row, 1, 4).pixels == row.pixels);
  CHECK(ry::fit_image(row, 1, 2).pixels == std::vector<std::uint8_t>{100, 200});
  const ry::Image column{4, 1, ry::ImageColors::grey, {0, 100, 200, 40}};
  CHECK(ry::fit_image(column, 2, 1, ry::ImageFit::stretch).pixels == std::vector<std::uint8_t>{71, 117});
  CHECK(ry::fit_image(column, 2, 1).pixels == std::vector<std::uint8_t>{100, 200});
  const ry::Image larger = ry::fit_image(column, 8, 2, ry::ImageFit::stretch);
  CHECK((larger.height == 8 && larger.width == 2));
  CHECK(larger.pixels[0] == 0);
  CHECK(larger.pixels[15] == 40);
}

TEST_CASE("fit_image: does not let colours that cannot be seen show through") {
  const ry::Image image{1, 2, ry::ImageColors::rgba, {200, 200, 200, 255, 0, 0, 0, 0}};
  const ry::Image one = ry::fit_image(image, 1, 1, ry::ImageFit::stretch);
  CHECK(one.pixels == std::vector<std::uint8_t>{199, 199, 199, 128});  // as Pillow rounds
}

TEST_CASE("fit_image: covers pictures of extreme shapes, and refuses a size of 0") {
  const ry::Image line{1, 100'000, ry::ImageColors::rgb, std::vector<std::uint8_t>(300'000, 9)};
  CHECK(ry::fit_image(line, 50, 40).pixels == std::vector<std::uint8_t>(50 * 40 * 3, 9));
  CHECK(ry::fit_image(line, 1, 1, ry::ImageFit::stretch).pixels == std::vector<std::uint8_t>(3, 9));
  CHECK_THROWS_AS(ry::fit_image(line, 0, 1), ry::ConfigError);
  CHECK_THROWS_AS(ry::fit_image(ry::Image{}, 1, 1), ry::DataError);
}

TEST_CASE("put_planes: puts colour after colour") {
  const ry::Image image{1, 2, ry::ImageColors::rgb, {1, 2, 3, 4, 5, 6}};
  std::vector<std::uint8_t> planes(6);
  ry::put_planes(image, planes);
  CHECK(planes == std::vector<std::uint8_t>{1, 4, 2, 5, 3, 6});
  planes.pop_back();
  CHECK_THROWS_AS(ry::put_planes(image, planes), ry::ConfigError);
}

TEST_CASE("resample: gives the bits of plain loops for any channels and sizes, up to the last byte") {
  using Axis = ry::detail::ResampleAxis;
  std::mt19937 random{1};
  const auto below = [&random](std::size_t bound) { return random() % bound; };
  for (int turn = 0; turn < 300; ++turn) {
    const std::size_t channels = 1 + below(4);
    const std::size_t height = 1 + below(20);
    const std::size_t width = 1 + below(20);
    std::vector<std::uint8_t> pixels(height * width * channels);
    for (std::uint8_t& byte : pixels) byte = static_cast<std::uint8_t>(below(2) == 0 ? 255 * below(2) : below(256));
    const std::size_t tall = 1 + below(40);
    const std::size_t wide = 1 + below(40);
    const Axis rows{height, tall, 0, tall};
    const Axis columns{width, wide, 0, wide};
    std::vector<std::uint8_t> across;
    for (std::size_t at = 0; at < height * wide * channels; ++at) {
      const std::size_t place = at / channels % wide;
      const std::uint8_t* pixel = &pixels[(at / channels / wide * width + columns.begin(place)) * channels];
      std::int32_t sum = Axis::half;
      for (std::size_t tap = 0; tap < columns.count(place); ++tap) {
        sum += pixel[tap * channels + at % channels] * columns.weights(place)[tap];
      }
      across.push_back(Axis::to_byte(sum));
    }
    std::vector<std::uint8_t> expected;
    for (std::size_t at = 0; at < tall * wide * channels; ++at) {
      const std::size_t place = at / (wide * channels);
      std::int32_t sum = Axis::half;
      for (std::size_t tap = 0; tap < rows.count(place); ++tap) {
        sum += across[(rows.begin(place) + tap) * wide * channels + at % (wide * channels)] * rows.weights(place)[tap];
      }
      expected.push_back(Axis::to_byte(sum));
    }
    INFO(channels << " channels, " << height << "x" << width << " to " << tall << "x" << wide);
    CHECK(ry::detail::resample(pixels, channels, rows, columns) == expected);
  }
}
