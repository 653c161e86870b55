// SPDX-License-Identifier: MIT
// Gives the reader of files compressed by zstd whatever libFuzzer comes up with: it unpacks it or refuses it, from any
// place that a position may name, and gives the same bytes however many are asked for at once.
#define ZSTD_STATIC_LINKING_ONLY  // for ZSTD_createDStream_advanced()
#include "railyard/data/zstd.hpp"

#include "fuzz/sources.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ry = railyard;

namespace {

constexpr std::size_t most_bytes = std::size_t{16} << 10U;  // that are unpacked: a frame may hold any number

// What is unpacked before the end, or the first error.
std::string unpacked_of(ry::detail::ZstdStream& stream, std::size_t at_once) {
  std::string all;
  std::string part(at_once, '\0');
  try {
    while (all.size() < most_bytes) {
      const std::size_t got = stream.read(part.data(), part.size());
      all.append(part, 0, got);
      if (got < part.size()) break;
    }
  } catch (const ry::detail::StreamDamage& damage) {
    all.append(part, 0, damage.got());
  }
  return all;
}

// place: of the file, of 256 parts of it.
void check(const std::string& path, unsigned char place, unsigned char at_once) {
  ry::detail::ZstdStream whole{path};
  ry::detail::ZstdStream by_parts{path};
  const std::string all = unpacked_of(whole, most_bytes);
  const std::string parts = unpacked_of(by_parts, 1 + std::size_t{at_once});
  fuzz::require(parts.substr(0, most_bytes) == all.substr(0, most_bytes));

  ry::detail::CompressedInput input{path, "zstd"};
  const std::size_t left = input.next().size() * place / 256;
  ry::detail::WireWriter saved;
  saved.put(*input.place(left));
  ry::detail::ZstdStream from_there{path};
  if (!from_there.go_to(1, saved.text())) return;
  static_cast<void>(unpacked_of(from_there, most_bytes));
  if (const auto next = from_there.take_point(~std::uint64_t{0})) {
    fuzz::require(next->offset >= 1);
    static_cast<void>(next->save());
  }
}

// What libzstd has freed, by the number of the highest bit of its size: for the address sanitizer to make memory anew
// takes longer than to try an input.
std::vector<void*>& idle_memory(std::size_t level) {
  static auto& memory = *new std::array<std::vector<void*>, 64>;
  return memory.at(level);
}

// Stands before what is given out.
struct alignas(64) Head {
  std::size_t level;
};

void* take_memory(void*, std::size_t size) {
  const auto level = static_cast<std::size_t>(std::bit_width(size + sizeof(Head)));
  auto& idle = idle_memory(level);
  if (idle.empty()) idle.push_back(std::aligned_alloc(sizeof(Head), std::max(sizeof(Head), std::size_t{1} << level)));
  auto* const head = ::new (idle.back()) Head{level};
  idle.pop_back();
  return head + 1;
}

void leave_memory(void*, void* memory) {
  if (memory == nullptr) return;
  Head* const head = static_cast<Head*>(memory) - 1;
  idle_memory(head->level).push_back(head);
}

}  // namespace

// run.sh has the linker call this for libzstd's own.
extern "C" ZSTD_DStream* __wrap_ZSTD_createDStream() {
  return ZSTD_createDStream_advanced({take_memory, leave_memory, nullptr});
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data), size - 2};
  try {
    check(fuzz::write_file(bytes), data[size - 2], data[size - 1]);
  } catch (const ry::DataError&) {
  }
  return 0;
}
