// SPDX-License-Identifier: MIT
// More bytes than a 32-bit number counts, which take little memory, as arguments of collectives.
#pragma once

#include "run_ranks.hpp"
#include "sanitizers.hpp"

#include "railyard/core/backend.hpp"

#include <cstddef>
#include <stdexcept>

#include <sys/mman.h>
#include <unistd.h>

namespace railyard_test {

// The first and the last of so many bytes have memory of their own; all between show one piece of memory over and over.
class RepeatedMemory {
 public:
  explicit RepeatedMemory(std::size_t size_bytes) : size_((size_bytes + piece - 1) / piece * piece) {
    void* all = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error{"no address space for a test"};
    begin_ = static_cast<unsigned char*>(all);
    const int file = ::memfd_create("repeated", MFD_CLOEXEC);
    bool is_mapped = file >= 0 && ::ftruncate(file, piece) == 0;
    for (std::size_t at = piece; is_mapped && at + 2 * piece <= size_; at += piece) {
      is_mapped = ::mmap(begin_ + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    }
    ::close(file);
    if (!is_mapped) throw std::runtime_error{"no memory for a test"};
  }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;
  ~RepeatedMemory() { ::munmap(begin_, size_); }

  [[nodiscard]] unsigned char* data() const noexcept { return begin_; }

 private:
  static constexpr std::size_t piece = std::size_t{4} << 20U;

  std::size_t size_;
  unsigned char* begin_ = nullptr;
};

/// Checks on one of two ranks that all of a large buffer arrives by each kind of operation: at a root's, by a
/// reduction, and between two ranks.
template <class B>
void check_large_counts(B& backend, int rank) {
  if (is_sanitized) return;  // the sanitizers keep a book of every byte
  constexpr std::size_t count = (std::size_t{1} << 31U) + 4097;
  const RepeatedMemory memory{count};
  unsigned char* const values = memory.data();
  const ry::Buffer data{values, count, ry::Dtype::u8};
  const auto mark = [values](unsigned char value) { values[0] = values[count / 2] = values[count - 1] = value; };
  const auto check_mark = [values](unsigned char value) {
    require(values[0] == value && values[count / 2] == value && values[count - 1] == value,
            "the first to the last byte");
  };
  if (rank == 1) mark(5);
  backend.broadcast(data, 1, {});
  check_mark(5);
  if (rank == 0) mark(7);
  rank == 0 ? backend.send(data, 1, {}) : backend.receive(data, 0, {});
  check_mark(7);
  // As many bytes, of which only the first and the last are not zero: memory that is repeated is summed repeatedly.
  mark(0);
  values[0] = values[(count - 1) / 4 * 4] = static_cast<unsigned char>(1 + rank);  // the last is 2^31 + 4096
  backend.all_reduce({values, count / 4 + 1, ry::Dtype::i32}, ry::ReduceOp::sum, {});
  require(values[0] == 3 && values[count / 2] == 0 && values[count - 1] == 3, "the first to the last sum");
}

}  // namespace railyard_test
