// SPDX-License-Identifier: MIT
#include "railyard/train/detail/user_files.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <sys/stat.h>

namespace ry = railyard;
using ry::detail::UserFiles;

namespace {

void put_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream{path} << text;
}

std::vector<ry::FileImage> images_of(const UserFiles& files) {
  std::vector<ry::FileImage> images;
  files.add_images(images);
  return images;
}

// What a checkpoint would hold, by name.
std::map<std::string, std::string> contents_of(const std::vector<ry::FileImage>& images) {
  std::map<std::string, std::string> contents;
  for (const ry::FileImage& image : images) {
    std::string text(image.size, '?');
    image.fill(reinterpret_cast<std::byte*>(text.data()));
    contents[image.name] = text;
  }
  return contents;
}

}  // namespace

TEST_CASE("UserFiles: a directory is what is in it at each save, under its relative paths") {
  const Scratch scratch;
  const auto source = scratch.path() / "source";
  std::filesystem::create_directories(source / "empty" / "too");
  UserFiles files;
  files.add_directory("all/of it", source);
  CHECK_FALSE(files.empty());
  CHECK(images_of(files).empty());
  put_file(source / "a", "1");
  put_file(source / "b" / "c" / "d", "22");
  put_file(source / "b" / "none", "");
  std::filesystem::create_directory_symlink(source, scratch.path() / "newest");
  files.add_directory("newest", scratch.path() / "newest" / "b");
  CHECK(contents_of(images_of(files)) == std::map<std::string, std::string>{{"files/all/of it/a", "1"},
                                                                            {"files/all/of it/b/c/d", "22"},
                                                                            {"files/all/of it/b/none", ""},
                                                                            {"files/newest/c/d", "22"},
                                                                            {"files/newest/none", ""}});
  std::filesystem::remove(source / "a");
  put_file(source / "b" / "c" / "d", "333");
  CHECK(contents_of(images_of(files)).at("files/newest/c/d") == "333");
  CHECK(images_of(files).size() == 4);
  std::filesystem::remove_all(source);
  CHECK_THROWS_WITH(images_of(files),
                    ContainsSubstring("source, which is to be in checkpoints, cannot be read: No such"));
}

TEST_CASE("UserFiles: what changes between the look and the copy is an error that names the file") {
  const Scratch scratch;
  const auto source = scratch.path() / "source";
  put_file(source / "a", "12345");
  put_file(scratch.path() / "outside", "12345");
  UserFiles files;
  files.add_directory("d", source);
  const auto images = images_of(files);
  const auto fails_with = [&](const std::string& why) {
    CHECK_THROWS_AS(contents_of(images), ry::DataError);
    CHECK_THROWS_WITH(contents_of(images), ContainsSubstring((source / "a").string()) && ContainsSubstring(why));
  };
  put_file(source / "a", "1234567");
  CHECK(contents_of(images).at("files/d/a") == "12345");
  put_file(source / "a", "12");
  fails_with("it has become shorter");
  std::filesystem::remove(source / "a");
  fails_with("No such file");
  std::filesystem::create_symlink("../outside", source / "a");
  fails_with("has changed meanwhile");
  std::filesystem::remove(source / "a");
  REQUIRE(::mkfifo((source / "a").c_str(), 0600) == 0);
  fails_with("it is no plain file any more");
}

TEST_CASE(
    "UserFiles: links, special files and names that no checkpoint can have are refused, at once and at each save") {
  const Scratch scratch;
  const auto source = scratch.path() / "source";
  std::filesystem::create_directories(source / "below");
  std::string why;
  SECTION("a link to a file outside") {
    std::filesystem::create_symlink("/etc/passwd", source / "below" / "x");
    why = "below/x is a link, which may lead out of the directory";
  }
  SECTION("a link to a directory above") {
    std::filesystem::create_directory_symlink("..", source / "below" / "x");
    why = "below/x is a link";
  }
  SECTION("a pipe") {
    REQUIRE(::mkfifo((source / "x").c_str(), 0600) == 0);
    why = "x is neither a plain file nor a directory";
  }
  SECTION("a name with a line break") {
    put_file(source / "x\ny", "");
    why = "x?y: of its name, it contains control characters";
  }
  SECTION("a name too long for what is appended to it") {
    put_file(source / std::string(220, 'x'), "");
    why = "it is longer than 200 bytes";
  }
  UserFiles before;
  CHECK_THROWS_WITH(before.add_directory("d", source), ContainsSubstring(why));
  CHECK(before.empty());
  std::filesystem::rename(source, scratch.path() / "later");
  before.add_directory("d", source);
  std::filesystem::rename(scratch.path() / "later", source);
  CHECK_THROWS_AS(images_of(before), ry::ConfigError);
  CHECK_THROWS_WITH(images_of(before), ContainsSubstring("\"d\" cannot be added") && ContainsSubstring(why));
}

TEST_CASE("UserFiles: a directory is told from a file, and no name lies in another one") {
  const Scratch scratch;
  put_file(scratch.path() / "file", "");
  UserFiles files;
  CHECK_THROWS_WITH(files.add_file("x", scratch.path()),
                    ContainsSubstring("is a directory: add it with add_directory()"));
  CHECK_THROWS_WITH(files.add_directory("x", scratch.path() / "file"),
                    ContainsSubstring("is no directory: add it with add_file()"));
  for (const std::string name : {"../x", "x/../../y", "/x", "x/", "."}) {
    CHECK_THROWS_AS(files.add_directory(name, scratch.path()), ry::ConfigError);
  }
  CHECK(files.empty());
  files.add_directory("a/b", scratch.path());
  for (const std::string name : {"a", "a/b", "a/b/c"}) {
    CHECK_THROWS_WITH(files.add_file(name, scratch.path() / "file"), ContainsSubstring("give another name"));
  }
  files.add_file("a/bc", scratch.path() / "file");
  CHECK(images_of(files).size() == 2);
}
