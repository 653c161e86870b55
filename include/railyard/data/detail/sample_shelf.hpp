// SPDX-License-Identifier: MIT
// Samples that one of several forked processes makes, and that all of them see. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/detail/waiting.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

// Is memory that is inherited by all processes that are forked behind it, and found by others that are told its
// address, in which the first of them that wants the samples leaves them for the others; later ones find them there
// even where that one has ended.
class SampleShelf {
 public:
  // doing: what the one does for which others wait, as a sentence says it. Without memory it has no use.
  explicit SampleShelf(std::string_view doing = "fills a cache in memory") noexcept
      : doing_(doing), process_(::getpid()) {
    try {
      file_ = adopt(::memfd_create("railyard-cache", MFD_CLOEXEC), "memory for samples");
    } catch (const Error&) {
      return;
    }
    const WriteSignalGuard<SIGXFSZ> guard;
    if (::ftruncate(file_.get(), header_bytes) != 0 || ::fstat(file_.get(), &status_) != 0) return;
    void* base = ::mmap(nullptr, header_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (base == MAP_FAILED) return;
    header_ = ::new (base) Header;
    header_->token = derive_seed(static_cast<std::uint64_t>(monotonic_ns()), static_cast<std::uint64_t>(process_));
  }
  SampleShelf(const SampleShelf&) = delete;
  SampleShelf& operator=(const SampleShelf&) = delete;
  ~SampleShelf() {
    if (header_ != nullptr) ::munmap(header_, header_bytes);
  }

  // What the process has that made it, its children inherit without this.
  [[nodiscard]] bool has_use() const noexcept {
    struct stat status {};
    return header_ != nullptr && ::getpid() != process_ && ::fstat(file_.get(), &status) == 0 &&
           status.st_ino == status_.st_ino && status.st_dev == status_.st_dev;
  }

  // What others may take it by as long as this process has it; nothing if there is no memory.
  [[nodiscard]] std::string address() const {
    return header_ == nullptr ? "" : compose("{} {} {}", ::getpid(), file_.get(), header_->token);
  }
  // Takes another process's in its place; nothing changes where that is not to be seen. Before it is used.
  bool take_other(const std::string& address) {
    std::istringstream words{address};
    pid_t process = 0;
    int number = -1;
    std::uint64_t token = 0;
    if (!(words >> process >> number >> token)) return false;
    Descriptor file{::open(compose("/proc/{}/fd/{}", process, number).c_str(), O_RDWR | O_CLOEXEC)};
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0 || status.st_size < off_t{header_bytes}) return false;
    void* base = ::mmap(nullptr, header_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (base == MAP_FAILED) return false;
    auto* header = std::launder(static_cast<Header*>(base));
    if (header->token != token) {  // it is another file by now
      ::munmap(base, header_bytes);
      return false;
    }
    if (header_ != nullptr) ::munmap(header_, header_bytes);
    header_ = header;
    file_ = std::move(file);
    status_ = status;
    process_ = 0;  // so that this one has a use for it, too
    return true;
  }

  // Returns the samples: those that are there, or else what make(go_on) returns, part after part, and leaves to the
  // others. It calls go_on() now and then.
  template <class Make>
  [[nodiscard]] Block find_or_make(const std::shared_ptr<const Schema>& schema, Make&& make) const {
    const Turn turn{*this};
    if (auto found = turn.samples(schema)) return std::move(*found);
    const std::vector<Block> parts = make([&turn] { turn.go_on(); });
    if (turn.leave(parts)) {
      if (auto left = turn.samples(schema)) return std::move(*left);
    }
    return join(parts);
  }

  // Is the right to make the samples, if nobody has yet: others wait meanwhile. Given back with this object, or with
  // this process, however that ends, and not a child's that it forks meanwhile.
  class Turn {
   public:
    // Waits while another process makes them, but not for one that makes nothing for so long. Throws: Error if nobody
    // wants them any more, see WaitWatch.
    explicit Turn(const SampleShelf& shelf, std::chrono::nanoseconds patience = std::chrono::minutes{5})
        : shelf_(&shelf) {
      Header& header = *shelf.header_;
      std::uint32_t made = header.made.load();
      Deadline deadline = Deadline::after(patience);
      LongWait wait{std::chrono::seconds{10}, WaitFor::own_run};
      while (!header.is_whole.load() && !(is_mine_ = lock(F_WRLCK))) {
        wait.look([this] { return compose("{} {} for all of them", holder(), shelf_->doing_); });
        futex_wait(header.made, made, std::chrono::milliseconds{20});
        if (const std::uint32_t now = header.made.load(); now != made) {
          made = now;
          deadline = Deadline::after(patience);
        }
        if (deadline.expired()) return;
      }
      if (is_mine_ && header.is_whole.load()) give_back();  // finished between the two looks
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (is_mine_) give_back();
    }

    // The samples, if somebody has made them, and there is room to see them in.
    [[nodiscard]] std::optional<Block> samples(const std::shared_ptr<const Schema>& schema) const {
      return shelf_->header_->is_whole.load() ? shelf_->open(schema) : std::nullopt;
    }
    // Says that a part has been made.
    void go_on() const noexcept {
      if (is_mine_) nudge(shelf_->header_->made);
    }
    // Leaves the samples, part after part, for the others. False if there is no room, or it is not this one's turn.
    [[nodiscard]] bool leave(std::span<const Block> parts) const {
      if (!is_mine_) return false;
      if (!shelf_->write(parts)) {
        static_cast<void>(::ftruncate(shelf_->file_.get(), header_bytes));
        return false;
      }
      shelf_->header_->is_whole.store(true);
      return true;
    }

   private:
    [[nodiscard]] bool lock(short type) const noexcept {
      struct flock lock {};
      lock.l_type = type;
      lock.l_whence = SEEK_SET;
      return ::fcntl(shelf_->file_.get(), F_SETLK, &lock) == 0;
    }
    [[nodiscard]] std::string holder() const {
      struct flock lock {};
      lock.l_type = F_WRLCK;
      lock.l_whence = SEEK_SET;
      const bool is_known = ::fcntl(shelf_->file_.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
      return is_known && lock.l_pid > 0 ? compose("process {}", lock.l_pid) : std::string{"another process"};
    }
    void give_back() noexcept {
      is_mine_ = false;
      static_cast<void>(lock(F_UNLCK));
      nudge(shelf_->header_->made);
    }

    const SampleShelf* shelf_;
    bool is_mine_ = false;
  };

 private:
  struct Header {
    std::atomic<std::uint32_t> made{0};  // a futex: moves with each part that is made
    std::atomic<bool> is_whole{false};
    std::uint64_t rows = 0;
    std::uint64_t num_siblings = 0;  // as many, or none
    std::uint64_t size = 0;          // of the file
    std::uint64_t token = 0;         // tells it from any other
  };

  // The samples follow it: their ids and siblings, and of each column the ends of its samples, where they differ in
  // length, and the bytes, all at multiples of 64.
  static constexpr std::size_t header_bytes = 4096;
  static constexpr std::uint64_t alignment = 64;

  [[nodiscard]] static std::uint64_t aligned(std::uint64_t at) noexcept {
    return (at + alignment - 1) / alignment * alignment;
  }

  [[nodiscard]] bool write(std::span<const Block> parts) const {
    const WriteSignalGuard<SIGXFSZ> guard;
    std::uint64_t at = header_bytes;
    const auto put = [&](const void* bytes, std::size_t size) {
      return put_bytes(bytes, size, std::exchange(at, at + size));
    };
    header_->rows = 0;
    for (const Block& part : parts) {
      header_->rows += part.rows();
      if (!put(part.ids().data(), part.ids().size_bytes())) return false;
    }
    const std::vector<std::uint64_t> siblings = join_siblings(parts);
    header_->num_siblings = siblings.size();
    if (!put(siblings.data(), siblings.size() * sizeof(std::uint64_t))) return false;
    for (std::size_t column = 0; column < parts.front().columns().size(); ++column) {
      at = aligned(at);
      std::uint64_t end = 0;
      for (const Block& part : parts) {
        std::vector<std::uint64_t> ends;
        for (std::size_t row = 0; part[column].is_ragged() && row < part.rows(); ++row) {
          ends.push_back(end += part[column].sample(row).size());
        }
        if (!put(ends.data(), ends.size() * sizeof(std::uint64_t))) return false;
      }
      at = aligned(at);
      for (const Block& part : parts) {
        if (!put(part[column].bytes().data(), part[column].bytes().size())) return false;
      }
    }
    header_->size = at;
    return ::ftruncate(file_.get(), static_cast<off_t>(at)) == 0;
  }
  [[nodiscard]] bool put_bytes(const void* bytes, std::size_t size, std::uint64_t at) const noexcept {
    const auto* next = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t written =
          ::pwrite(file_.get(), next, std::min(size, std::size_t{1} << 30U), static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      next += written;
      at += static_cast<std::uint64_t>(written);
      size -= static_cast<std::size_t>(written);
    }
    return true;
  }

  // Whoever writes to the samples writes to a copy of its own.
  [[nodiscard]] std::optional<Block> open(const std::shared_ptr<const Schema>& schema) const {
    const auto size = static_cast<std::size_t>(header_->size);
    const auto rows = static_cast<std::size_t>(header_->rows);
    void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_.get(), 0);
    if (base == MAP_FAILED) return std::nullopt;
    const std::shared_ptr<const std::byte> all{static_cast<const std::byte*>(base), [size](const std::byte* at) {
                                                 ::munmap(const_cast<std::byte*>(at), size);
                                               }};
    std::uint64_t at = header_bytes;
    const auto numbers = [&](std::size_t count) {
      std::vector<std::uint64_t> values(count);
      if (count > 0) std::memcpy(values.data(), all.get() + at, count * sizeof(std::uint64_t));
      at += count * sizeof(std::uint64_t);
      return values;
    };
    std::vector<std::uint64_t> ids = numbers(rows);
    std::vector<std::uint64_t> siblings = numbers(header_->num_siblings == 0 ? 0 : rows);
    std::vector<Column> columns;
    for (const Field& field : *schema) {
      at = aligned(at);
      auto ends = std::make_shared<const std::vector<std::uint64_t>>(numbers(field.is_ragged() ? rows : 0));
      at = aligned(at);
      const std::shared_ptr<const std::byte> bytes{all, all.get() + at};
      const std::size_t each = field.is_ragged() ? 0 : field.width() * size_of(field.dtype);
      at += !field.is_ragged() ? rows * each : (ends->empty() ? 0 : ends->back());
      columns.push_back(field.is_ragged() ? Column{bytes, std::move(ends)} : Column{bytes, rows, each});
    }
    return Block{schema, std::move(columns), std::move(ids), std::move(siblings)};
  }

  std::string_view doing_;
  pid_t process_;
  Descriptor file_{};
  struct stat status_ {};
  Header* header_ = nullptr;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
