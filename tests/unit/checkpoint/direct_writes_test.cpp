// SPDX-License-Identifier: MIT
// Large files of a checkpoint go past the system's cache, where memory and file system allow it.
#include "railyard/checkpoint/detail/staging.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/failing_files.hpp"
#include "support/file_content.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

using namespace railyard_test;

namespace {

constexpr std::size_t block = ry::detail::direct_block_bytes;
constexpr std::size_t smallest = ry::detail::smallest_direct_bytes;

// Counts what is written past the cache, and may say that the disk's blocks are larger, or write less than asked for.
class DirectFiles final : public ry::detail::Files {
 public:
  std::size_t most_direct = 0;  // how many bytes such a write takes; 0: all
  int refusal = 0;              // the error of such a write; 0: none
  std::size_t num_direct = 0;
  std::size_t num_cached = 0;

  int create(const Path& path) override {
    is_direct_ = false;
    return Files::create(path);
  }
  int set_direct(int fd, bool is_direct) override {
    is_direct_ = is_direct;
    Files::set_direct(fd, is_direct);  // where it cannot be had the rest is as it would be
    return 0;
  }
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    if (is_direct_ && refusal != 0) {
      errno = refusal;
      return -1;
    }
    if (is_direct_) {
      CHECK(reinterpret_cast<std::uintptr_t>(from) % block == 0);
      CHECK(size % block == 0);
    }
    if (is_direct_ && most_direct > 0 && size > most_direct) {
      Files::set_direct(fd, false);
      size = most_direct;
    }
    const ssize_t written = Files::write(fd, from, size);
    if (written > 0) (is_direct_ ? num_direct : num_cached) += static_cast<std::size_t>(written);
    return written;
  }

 private:
  bool is_direct_ = false;
};

// Ends a test in which the same is tried again and again.
class PatientlyFailingFiles final : public FailingFiles {
 public:
  using FailingFiles::FailingFiles;
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    REQUIRE(num_calls() < 1000);
    return FailingFiles::write(fd, from, size);
  }
};

// Writes nothing, and counts what would be on its way to the disk, and what of it may still be in memory alone.
class PacedFiles final : public ry::detail::Files {
 public:
  std::size_t num_written = 0;
  std::size_t num_sent = 0;
  std::size_t num_waited_for = 0;
  std::size_t most_in_memory = 0;

  ssize_t write(int /*fd*/, const std::byte* /*from*/, std::size_t size) override {
    num_written += size;
    most_in_memory = std::max(most_in_memory, num_written - num_waited_for);
    return static_cast<ssize_t>(size);
  }
  int write_back(int /*fd*/, std::size_t begin, std::size_t size, bool waits) override {
    std::size_t& done = waits ? num_waited_for : num_sent;
    CHECK(begin == done);
    done += size;
    return 0;
  }
};

// Memory that begins so many bytes after a block does.
class Bytes {
 public:
  Bytes(std::size_t size, std::size_t behind)
      : memory_(static_cast<std::byte*>(::operator new (size + behind, std::align_val_t{block}))),
        bytes_(memory_.get() + behind, size) {
    for (std::size_t i = 0; i < size; ++i) bytes_[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
  }
  [[nodiscard]] std::span<const std::byte> get() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{block}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::span<std::byte> bytes_;
};

void check_written(DirectFiles& files, const Bytes& bytes) {
  const Scratch scratch;
  ry::detail::Staging staging{files, scratch.path() / "staging", scratch.path() / "trash"};
  const ry::ManifestFile written = staging.parts().write("file", bytes.get());
  CHECK(written.size == bytes.get().size());
  CHECK(written.crc32c == ry::detail::crc32c(bytes.get()));
  const std::string found = file_content(scratch.path() / "staging" / "file");
  CHECK(std::ranges::equal(std::as_bytes(std::span{found}), bytes.get()));
}

}  // namespace

TEST_CASE(
    "Staging: large files go past the cache but for their ends, small ones and those within blocks do not (TRAPS 42)") {
  for (const std::size_t size : {smallest, smallest + 1, smallest + block - 1, 9 * smallest + 123}) {
    DirectFiles files;
    check_written(files, Bytes{size, 0});
    CHECK(files.num_direct == size / block * block);
    CHECK(files.num_cached == size % block);
  }
  for (const Bytes& bytes : {Bytes{smallest - 1, 0}, Bytes{3 * smallest, 64}}) {
    DirectFiles files;
    check_written(files, bytes);
    CHECK(files.num_direct == 0);
  }
}

TEST_CASE("Staging: where blocks are larger, or a write past the cache ends within one, the rest goes through it") {
  const Bytes bytes{10 * smallest + 5, 0};
  DirectFiles refusing;
  refusing.refusal = EINVAL;
  check_written(refusing, bytes);
  CHECK(refusing.num_cached == bytes.get().size());
  DirectFiles halting;
  halting.most_direct = 3 * block + 17;
  check_written(halting, bytes);
  CHECK(halting.num_direct == halting.most_direct);
}

TEST_CASE("Staging: where a file system fails to write past the cache, the next attempt goes through it") {
  for (const int refusal : {EOPNOTSUPP, EIO, ENOMEM}) {
    const Bytes bytes{2 * smallest, 0};
    DirectFiles files;
    files.refusal = refusal;
    check_written(files, bytes);
    CHECK(files.num_cached == bytes.get().size());
  }
}

TEST_CASE("Staging: any one call that fails while a large file is written leaves it whole, or is told (TRAPS 42)") {
  const Bytes bytes{2 * smallest + 123, 0};
  for (const int error : {EINVAL, EIO, ENOSPC, EDQUOT, EINTR}) {
    for (const auto how : {FailingFiles::How::fails, FailingFiles::How::fails_for_good}) {
      if (error == EINTR && how == FailingFiles::How::fails_for_good) continue;
      bool has_failed = true;
      for (int number = 0; has_failed; ++number) {
        const Scratch scratch;
        PatientlyFailingFiles files{number, error, how};
        std::string message;
        std::string found;
        try {
          ry::detail::Staging staging{files, scratch.path() / "staging", scratch.path() / "trash"};
          static_cast<void>(staging.parts().write("file", bytes.get()));
          found = file_content(scratch.path() / "staging" / "file");
        } catch (const ry::Error& thrown) {
          message = thrown.what();
        }
        has_failed = !files.failed().empty();
        INFO(files.failed() << ", call " << number << ", " << std::generic_category().message(error) << ": "
                            << message);
        if (message.empty()) {
          CHECK(std::ranges::equal(std::as_bytes(std::span{found}), bytes.get()));
        } else {
          CHECK_THAT(message, ContainsSubstring(std::generic_category().message(error)));
        }
      }
    }
  }
}

TEST_CASE(
    "Staging: large files are on their way to the disk from the start, and little of them waits in memory (TRAPS 42)") {
  constexpr std::size_t piece = std::size_t{8} << 20U;
  constexpr std::size_t size = 11 * piece + 5;
  const std::vector<std::byte> zeros(piece + 1);
  const auto read = [&](std::size_t, std::size_t wanted) { return std::span{zeros}.subspan(1, wanted); };
  const Scratch scratch;
  PacedFiles files;
  ry::detail::Staging staging{files, scratch.path() / "staging", scratch.path() / "trash"};
  CHECK(staging.parts().write("file", {size, read}).size == size);
  CHECK(files.num_sent == size);
  CHECK(files.most_in_memory <= 5 * piece);
}
