// SPDX-License-Identifier: MIT
// Writes the digits of a CSV file as pictures, a folder for each: every other one as PNG, and the rest as JPEG.
// It makes the data of image_folder.cpp; there is nothing to look at.
#include <railyard/core/error.hpp>
#include <railyard/data/epoch_reader.hpp>
#include <railyard/data/image.hpp>
#include <railyard/data/read_csv.hpp>
#include <railyard/data/sample.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include <jpeglib.h>
#include <png.h>

namespace ry = railyard;

void write_png(const std::string& path, const ry::Image& image) {
  png_image file{};
  file.version = PNG_IMAGE_VERSION;
  file.width = static_cast<png_uint_32>(image.width);
  file.height = static_cast<png_uint_32>(image.height);
  file.format = PNG_FORMAT_GRAY;
  if (png_image_write_to_file(&file, path.c_str(), 0, image.pixels.data(), 0, nullptr) == 0) {
    throw ry::Error{path + ": " + file.message};
  }
}

void write_jpeg(const std::string& path, ry::Image image) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "wb"), std::fclose};
  if (file == nullptr) throw ry::Error{path + " cannot be written"};
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  jpeg_stdio_dest(&state, file.get());
  state.image_width = static_cast<JDIMENSION>(image.width);
  state.image_height = static_cast<JDIMENSION>(image.height);
  state.input_components = 1;
  state.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&state);
  jpeg_start_compress(&state, TRUE);
  while (state.next_scanline < state.image_height) {
    JSAMPROW row = image.pixels.data() + state.next_scanline * image.width;
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  jpeg_destroy_compress(&state);
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "examples/data/digits.csv";
  const std::filesystem::path folder = argc > 2 ? argv[2] : "pictures";
  for (const auto& step : ry::EpochReader{ry::read_csv(path, {.label = "digit"}), {.global_batch_size = 256}}) {
    for (std::size_t row = 0; row < step.block.rows(); ++row) {
      const ry::Sample sample{step.block, row};
      ry::Image image{8, 8, ry::ImageColors::grey, {}};
      for (int pixel = 0; pixel < 64; ++pixel) {
        const double shade = sample.number(fmt::format("p{}", pixel)) * 255 / 16;
        image.pixels.push_back(static_cast<std::uint8_t>(shade));
      }
      const auto of_class = folder / fmt::format("{}", sample.number("digit"));
      std::filesystem::create_directories(of_class);
      const auto file = of_class / fmt::format("{:04}", sample.id());
      sample.id() % 2 == 0 ? write_png(file.string() + ".png", image) : write_jpeg(file.string() + ".jpg", image);
    }
  }
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
