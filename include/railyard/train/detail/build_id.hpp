// SPDX-License-Identifier: MIT
// Tells one build of a program from another. Train room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/detail/hexadecimal.hpp"
#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <link.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what the linker has written about a build into the notes of a program; empty if it has not.
/// Source: the section .note.gnu.build-id, as ld's --build-id describes it.
[[nodiscard]] inline std::string build_id_in(std::span<const std::byte> notes, std::size_t alignment) {
  const auto aligned = [alignment](std::size_t size) { return (size + alignment - 1) / alignment * alignment; };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes.data(), sizeof head);
    const std::size_t name_begin = sizeof head;
    const std::size_t begin = aligned(name_begin + head.n_namesz);
    const std::size_t end = begin + head.n_descsz;
    if (end > notes.size()) break;
    const std::string_view name{reinterpret_cast<const char*>(notes.data()) + name_begin, head.n_namesz};
    if (head.n_type == NT_GNU_BUILD_ID && name == std::string_view{"GNU\0", 4}) {
      return hexadecimal(notes.subspan(begin, head.n_descsz));
    }
    if (aligned(end) >= notes.size()) break;
    notes = notes.subspan(aligned(end));
  }
  return {};
}

/// Is what is loaded of this program itself, without its libraries.
struct LoadedProgram {
  std::string build_id{};         ///< empty if its linker has written none
  std::uint64_t code_digest = 0;  ///< of its machine code, if there is no build id
};

[[nodiscard]] inline LoadedProgram loaded_program() {
  const auto look = [](dl_phdr_info* info, std::size_t /*size*/, void* data) {
    auto& found = *static_cast<LoadedProgram*>(data);
    const auto bytes_of = [info](const ElfW(Phdr) & part) {
      return std::span{reinterpret_cast<const std::byte*>(info->dlpi_addr + part.p_vaddr), part.p_memsz};
    };
    const std::span parts{info->dlpi_phdr, info->dlpi_phnum};
    for (const auto& part : parts) {
      if (part.p_type == PT_NOTE && found.build_id.empty()) {
        found.build_id = build_id_in(bytes_of(part), part.p_align == 8 ? 8 : 4);
      }
    }
    for (const auto& part : parts) {
      const bool is_code = part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 && (part.p_flags & PF_R) != 0;
      if (found.build_id.empty() && is_code) found.code_digest = digest_of(bytes_of(part), found.code_digest);
    }
    return 1;  // the program comes first
  };
  LoadedProgram found;
  ::dl_iterate_phdr(look, &found);
  return found;
}

/// Returns digits that are other ones in another build of this program, unless its machine code came out the same. Its
/// shared libraries have no part in it. Cost: microseconds; without a build id some milliseconds.
[[nodiscard]] inline std::string program_build() {
  const LoadedProgram program = loaded_program();
  return program.build_id.empty() ? compose("code {:016x}", program.code_digest) : program.build_id;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
