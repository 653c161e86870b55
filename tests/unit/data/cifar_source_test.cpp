// SPDX-License-Identifier: MIT
#include "railyard/data/cifar_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::string cifar_record(const std::string& labels, char first) {
  std::string image(3072, '\0');
  for (std::size_t at = 0; at < image.size(); ++at) image[at] = static_cast<char>(first + static_cast<char>(at % 101));
  return labels + image;
}

}  // namespace

TEST_CASE("CifarSource: reads the labels and images of several files of CIFAR-10") {
  const TemporaryFolder folder;
  folder.write("batch_1", cifar_record("\x03", 1) + cifar_record("\x09", 2));
  folder.write("batch_2", cifar_record(std::string(1, '\0'), 3));
  const ry::CifarSource source{folder / "batch_*"};
  CHECK(source.schema() == ry::Schema{{"image", ry::Dtype::u8, {3, 32, 32}}, {"label", ry::Dtype::i64}});
  CHECK(source.label() == "label");
  CHECK(binary_files::all_values<std::int64_t>(source, "label", 2) == std::vector<std::int64_t>{3, 9, 0});
  const auto images = binary_files::all_values<std::uint8_t>(source, "image");
  REQUIRE(images.size() == 3 * 3072);
  for (std::size_t at = 0; at < 3072; ++at) {
    REQUIRE(images[at] == 1 + at % 101);
    REQUIRE(images[2 * 3072 + at] == 3 + at % 101);
  }
  binary_files::check_order_of(source);
}

TEST_CASE("CifarSource: reads both labels of CIFAR-100") {
  const TemporaryFolder folder;
  const std::string path = folder.write("train.bin", cifar_record("\x13\x63", 1) + cifar_record("\x01\x02", 2));
  const ry::CifarSource source{path, {.kind = ry::Cifar::cifar100}};
  CHECK(source.count() == 2);
  CHECK(binary_files::all_values<std::int64_t>(source, "label") == std::vector<std::int64_t>{99, 2});
  CHECK(binary_files::all_values<std::int64_t>(source, "coarse_label") == std::vector<std::int64_t>{19, 1});
  CHECK(source.read({{1}}).column("image").values<std::uint8_t>()[0] == 2);
}

TEST_CASE("CifarSource: says where a file is damaged, and leaves it out where it may") {
  const TemporaryFolder folder;
  folder.write("1", cifar_record("\x03", 1));
  folder.write("2", cifar_record("\x03", 1) + cifar_record("\x0A", 2));
  CHECK_THAT(binary_files::error_of(ry::CifarSource{folder / "*"}),
             ContainsSubstring("/2: byte 3073: column \"label\" is 10, and can be 0 to 9"));
  folder.write("3", cifar_record("\x03", 1) + "x");
  CHECK_THAT(binary_files::error_of(ry::CifarSource{folder / "3"}),
             ContainsSubstring("/3: byte 3073: the sample that"));
  const ry::CifarSource skipping{folder / "*", {.on_error = ry::OnError::at_most(2)}};
  CHECK(skipping.count() == 1);
  CHECK(skipping.skipped() == 2);
}
