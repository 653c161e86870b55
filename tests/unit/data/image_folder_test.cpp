// SPDX-License-Identifier: MIT
#include "railyard/core/version.hpp"

#if RAILYARD_WITH_IMAGES
#include "railyard/data/image_folder.hpp"

#include "railyard/core/detail/waiting.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"
#include "unit/data/pictures.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

void make_folder(const TemporaryFolder& folder) {
  std::filesystem::create_directories(folder.path() / "cat" / "deeper");
  std::filesystem::create_directories(folder.path() / "ant");
  folder.write("cat/b.png", pictures::png_of(pictures::make_image(4, 6, ry::ImageColors::rgb)));
  folder.write("cat/deeper/a.PNG", pictures::png_of(pictures::make_image(5, 3, ry::ImageColors::grey)));
  folder.write("ant/x.jpeg", pictures::jpeg_of(pictures::make_image(8, 8, ry::ImageColors::rgb)));
  folder.write("ant/notes.txt", "no picture");
  folder.write("README.png", "in no folder");
}

}  // namespace

TEST_CASE("ImageFolder: gives the pictures of each folder as they are") {
  const TemporaryFolder folder;
  make_folder(folder);
  const ry::ImageFolder source{folder.path().string()};
  CHECK(source.schema() == ry::Schema{{"image", ry::Dtype::u8, {-1}},
                                      {"label", ry::Dtype::i64},
                                      {"height", ry::Dtype::i64},
                                      {"width", ry::Dtype::i64}});
  CHECK(source.label() == "label");
  CHECK(source.classes() == std::vector<std::string>{"ant", "cat"});
  CHECK(source.count() == 3);
  CHECK(binary_files::all_values<std::int64_t>(source, "label") == std::vector<std::int64_t>{0, 1, 1});
  CHECK(binary_files::all_values<std::int64_t>(source, "height") == std::vector<std::int64_t>{8, 4, 5});
  CHECK(binary_files::all_values<std::int64_t>(source, "width") == std::vector<std::int64_t>{8, 6, 3});
  const std::uint64_t second[] = {1};
  const ry::Block block = source.read(second);
  const auto pixels = block.column("image").values<std::uint8_t>(0);
  CHECK(std::vector<std::uint8_t>(pixels.begin(), pixels.end()) ==
        pictures::make_image(4, 6, ry::ImageColors::rgb).pixels);
  binary_files::check_order_of(source);
}

TEST_CASE("ImageFolder: brings pictures to one size, layout and colours") {
  const TemporaryFolder folder;
  make_folder(folder);
  const ry::Image image = pictures::make_image(4, 6, ry::ImageColors::rgb);
  const std::uint64_t second[] = {1};
  const ry::ImageFolder rows{folder.path().string(), {.height = 3, .width = 2}};
  CHECK(rows.schema()[0].shape == std::vector<std::int64_t>{3, 2, 3});
  const ry::Image fitted = ry::fit_image(image, 3, 2);
  const auto block = rows.read(second);
  const auto pixels = block.column("image").values<std::uint8_t>();
  CHECK(std::vector<std::uint8_t>(pixels.begin(), pixels.end()) == fitted.pixels);
  const ry::ImageFolder planes{folder.path().string(),
                               {.height = 3, .width = 2, .fit = ry::ImageFit::stretch, .layout = ry::ImageLayout::chw}};
  CHECK(planes.schema()[0].shape == std::vector<std::int64_t>{3, 3, 2});
  std::vector<std::uint8_t> expected(18);
  ry::put_planes(ry::fit_image(image, 3, 2, ry::ImageFit::stretch), expected);
  const auto by_color = planes.read(second);
  const auto values = by_color.column("image").values<std::uint8_t>();
  CHECK(std::vector<std::uint8_t>(values.begin(), values.end()) == expected);
  binary_files::check_order_of(planes);
  CHECK(ry::ImageFolder{folder.path().string(), {.height = 3, .width = 2, .colors = ry::ImageColors::grey}}
            .schema()[0]
            .shape == std::vector<std::int64_t>{3, 2, 1});
  CHECK_THROWS_AS((ry::ImageFolder{folder.path().string(), {.height = 3}}), ry::ConfigError);
}

TEST_CASE("ImageFolder: names the damaged picture, and leaves it out where it may") {
  const TemporaryFolder folder;
  make_folder(folder);
  folder.write("ant/y.jpg", "\xFF\xD8 and no more");
  folder.write("cat/c.png", pictures::png_of(pictures::make_image(9, 9, ry::ImageColors::rgb)).substr(0, 60));
  CHECK_THAT(binary_files::error_of(ry::ImageFolder{folder.path().string()}),
             ContainsSubstring("ant/y.jpg: damaged JPEG: "));
  const ry::ImageFolder skipping{folder.path().string(), {.on_error = ry::OnError::at_most(2)}};
  CHECK(skipping.count() == 3);
  CHECK(skipping.skipped() == 2);
  CHECK(binary_files::all_values<std::int64_t>(skipping, "label") == std::vector<std::int64_t>{0, 1, 1});
  CHECK_THAT(binary_files::error_of(ry::ImageFolder{folder.path().string(), {.on_error = ry::OnError::at_most(1)}}),
             ContainsSubstring("cat/c.png: damaged PNG: "));
}

TEST_CASE("ImageFolder: takes several folders as one, and pictures by a pattern") {
  const TemporaryFolder folder;
  const auto picture = pictures::png_of(pictures::make_image(2, 2, ry::ImageColors::rgb));
  for (const std::string name : {"part-1/cat", "part-1/dog", "part-2/ant", "part-2/cat"}) {
    std::filesystem::create_directories(folder.path() / name);
    folder.write(name + "/x.png", picture);
  }
  const ry::ImageFolder parts{folder / "part-*"};
  CHECK(parts.classes() == std::vector<std::string>{"ant", "cat", "dog"});
  CHECK(parts.files() == std::vector<std::string>{folder / "part-2/ant/x.png", folder / "part-1/cat/x.png",
                                                  folder / "part-2/cat/x.png", folder / "part-1/dog/x.png"});
  CHECK(binary_files::all_values<std::int64_t>(parts, "label") == std::vector<std::int64_t>{0, 1, 1, 2});
  const ry::ImageFolder listed{{folder / "part-1", folder / "part-2/ant/x.png"}};
  CHECK(listed.classes() == std::vector<std::string>{"ant", "cat", "dog"});
  const ry::ImageFolder by_pattern{folder / "part-{1,2}/cat/*.png"};
  CHECK((by_pattern.count() == 2 && by_pattern.classes() == std::vector<std::string>{"cat"}));
}

TEST_CASE("ImageFolder: leaves out what is hidden, links that lead in circles, and tells of other kinds of pictures") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const TemporaryFolder elsewhere;
  make_folder(folder);
  const auto picture = pictures::png_of(pictures::make_image(2, 2, ry::ImageColors::rgb));
  fs::create_directories(folder.path() / ".ipynb_checkpoints");
  fs::create_directories(folder.path() / "cat" / ".thumbnails");
  for (const std::string name : {".ipynb_checkpoints/x.png", "cat/.thumbnails/x.png", "cat/._x.png"}) {
    folder.write(name, picture);
  }
  for (const std::string name : {"ant/x.webp", "ant/y.WEBP", "cat/x.gif"}) folder.write(name, "");
  elsewhere.write("far.png", picture);
  fs::create_directory_symlink(elsewhere.path(), folder.path() / "zebra");
  fs::create_directory_symlink(".", folder.path() / "self");
  fs::create_directory_symlink("cat", folder.path() / "kitten");
  fs::create_directory_symlink(folder.path().parent_path(), folder.path() / "up");
  fs::create_directory_symlink("..", folder.path() / "cat" / "back");
  std::vector<std::string> said;
  const ry::detail::WaitWatch watch{[](ry::detail::WaitFor) { return std::string{}; },
                                    [&](const std::string& text) { said.push_back(text); }};
  const ry::detail::WatchedThread watched{watch};
  const ry::ImageFolder source{folder.path().string()};
  CHECK(source.classes() == std::vector<std::string>{"ant", "cat", "zebra"});
  CHECK(source.count() == 4);
  CHECK(source.files().size() == 4);
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], ContainsSubstring("1 .gif, 2 .webp left out"));
}

TEST_CASE("ImageFolder: says what is wrong with a folder") {
  const TemporaryFolder folder;
  CHECK_THAT(binary_files::error_of(ry::ImageFolder{folder / "nowhere"}), ContainsSubstring("nowhere"));
  CHECK_THAT(binary_files::error_of(ry::ImageFolder{folder.path().string()}), ContainsSubstring("no folders in it"));
  std::filesystem::create_directories(folder.path() / "empty");
  CHECK_THAT(binary_files::error_of(ry::ImageFolder{folder.path().string()}), ContainsSubstring("the class \"empty\""));
}
#endif
