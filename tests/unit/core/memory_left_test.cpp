// SPDX-License-Identifier: MIT
#include "railyard/core/detail/memory_left.hpp"

#include "support/catch.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>

namespace memory_left_test {  // suites are compiled as one source as well

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20U;

// Hierarchies of control groups as files.
class Groups {
 public:
  explicit Groups(const std::string& membership) {
    std::string folder = (std::filesystem::temp_directory_path() / "railyard_memory_XXXXXX").string();
    REQUIRE(::mkdtemp(folder.data()) != nullptr);
    root_ = folder;
    std::ofstream{root_ / "membership"} << membership;
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups() { std::filesystem::remove_all(root_); }

  void write(const std::filesystem::path& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream{root_ / file} << text << "\n";
  }
  [[nodiscard]] std::size_t left() const { return ry::detail::memory_left({root_ / "membership", root_}); }
  [[nodiscard]] std::size_t limit() const { return ry::detail::memory_limit({root_ / "membership", root_}); }
  [[nodiscard]] std::size_t free(std::size_t left) const { return ry::detail::memory_free(root_ / "meminfo", left); }
  [[nodiscard]] std::size_t free_with_swap(std::size_t left) const {
    return ry::detail::memory_and_swap_free(root_ / "meminfo", left);
  }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST_CASE("memory_left: is the host's where no control group has a limit") {
  CHECK(Groups{"0::/job/step\n"}.left() == ry::detail::physical_memory());
  const Groups groups{"0::/job/step\n"};
  groups.write("job/memory.max", "max");
  groups.write("job/memory.current", std::to_string(5 * mebibyte));
  CHECK(groups.left() == ry::detail::physical_memory());
}

TEST_CASE("memory_left: is what the tightest group above leaves, without what the kernel can give up") {
  const Groups groups{"1:name=systemd:/elsewhere\n0::/job/step\n"};
  groups.write("job/step/memory.max", std::to_string(64 * mebibyte));
  groups.write("job/step/memory.current", std::to_string(10 * mebibyte));
  CHECK(groups.left() == 54 * mebibyte);
  groups.write("job/memory.max", std::to_string(32 * mebibyte));
  groups.write("job/memory.current", std::to_string(20 * mebibyte));
  CHECK(groups.left() == 12 * mebibyte);
  groups.write("job/memory.stat", fmt::format("anon 5\ninactive_file {}\nactive_file {}", 3 * mebibyte, 2 * mebibyte));
  CHECK(groups.left() == 17 * mebibyte);
  groups.write("job/memory.current", std::to_string(40 * mebibyte));
  CHECK(groups.left() == 0);
}

TEST_CASE("memory_left: counts what is used of a limit that is above the host's memory") {
  const Groups groups{"0::/job\n"};
  const std::size_t limit = 2 * ry::detail::physical_memory();
  groups.write("job/memory.max", std::to_string(limit));
  groups.write("job/memory.current", std::to_string(limit - 5 * mebibyte));  // as where memory was taken away since
  CHECK(groups.left() == 5 * mebibyte);
  groups.write("job/memory.stat", fmt::format("inactive_file {}", mebibyte));
  CHECK(groups.left() == 6 * mebibyte);
}

TEST_CASE("memory_left: finds the limit of a container that sees its own group alone") {
  const Groups groups{"0::/system.slice/docker-0123.scope\n"};
  groups.write("memory.max", std::to_string(64 * mebibyte));
  groups.write("memory.current", std::to_string(60 * mebibyte));
  CHECK(groups.left() == 4 * mebibyte);
}

TEST_CASE("memory_left: knows control groups of version 1 as well") {
  const Groups groups{"5:cpu,memory:/job/step\n4:cpuset:/\n0::/\n"};
  groups.write("memory/memory.limit_in_bytes", "9223372036854771712");
  groups.write("memory/memory.usage_in_bytes", std::to_string(900 * mebibyte));
  CHECK(groups.left() == ry::detail::physical_memory());
  groups.write("memory/job/memory.limit_in_bytes", std::to_string(64 * mebibyte));
  groups.write("memory/job/memory.usage_in_bytes", std::to_string(63 * mebibyte));
  groups.write("memory/job/memory.stat", fmt::format("inactive_file 5\ntotal_inactive_file {}", 2 * mebibyte));
  CHECK(groups.left() == 3 * mebibyte);
  groups.write("memory.max", std::to_string(mebibyte));  // of a hierarchy that has no part in memory
  CHECK(groups.left() == 3 * mebibyte);
}

TEST_CASE("memory_limit: is that of the tightest group above, of both versions, however much of it is used") {
  const Groups nested{"0::/job/step\n"};
  CHECK(nested.limit() == ry::detail::physical_memory());
  nested.write("job/step/memory.max", std::to_string(64 * mebibyte));
  nested.write("job/step/memory.current", std::to_string(60 * mebibyte));
  CHECK(nested.limit() == 64 * mebibyte);
  nested.write("job/memory.max", std::to_string(32 * mebibyte));
  CHECK(nested.limit() == 32 * mebibyte);
  nested.write("job/memory.max", "max");
  nested.write("memory.max", std::to_string(16 * mebibyte));
  CHECK(nested.limit() == 16 * mebibyte);
  const Groups former{"5:cpu,memory:/job\n0::/\n"};
  former.write("memory/job/memory.limit_in_bytes", std::to_string(8 * mebibyte));
  CHECK(former.limit() == 8 * mebibyte);
}

TEST_CASE("memory_free: is what the host has left as well, where that is less") {
  const Groups groups{""};
  groups.write("meminfo", "MemTotal:  8192 kB\nMemFree:  12 kB\nMemAvailable:     2048 kB\nBuffers: 1 kB");
  CHECK(groups.free(64 * mebibyte) == 2 * mebibyte);
  CHECK(groups.free(mebibyte) == mebibyte);
  groups.write("meminfo", "an older kernel");
  CHECK(groups.free(64 * mebibyte) == 64 * mebibyte);
}

TEST_CASE("memory_and_swap_free: counts what can be moved to the disk, within what the control group leaves") {
  const Groups groups{""};
  groups.write("meminfo", "MemAvailable:     2048 kB\nSwapTotal: 4096 kB\nSwapFree:  1024 kB");
  CHECK(groups.free_with_swap(64 * mebibyte) == 3 * mebibyte);
  CHECK(groups.free_with_swap(mebibyte) == mebibyte);
  groups.write("meminfo", "MemAvailable:     2048 kB");
  CHECK(groups.free_with_swap(64 * mebibyte) == 2 * mebibyte);
  groups.write("meminfo", "an older kernel");
  CHECK(groups.free_with_swap(64 * mebibyte) == 64 * mebibyte);
}

TEST_CASE("check_memory_left: names what is needed, what is left and the remedy (TRAPS 26)") {
  CHECK_NOTHROW(ry::detail::check_memory_left(4, mebibyte, 4 * mebibyte));
  CHECK_THROWS_WITH(ry::detail::check_memory_left(4, mebibyte, 3 * mebibyte),
                    ContainsSubstring("4 ranks need 4096 KiB") && ContainsSubstring("3072 KiB are left") &&
                        ContainsSubstring("raise the limit, or use fewer workers"));
}

}  // namespace memory_left_test
