// SPDX-License-Identifier: MIT
// Tensors from a file that any program has written. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/input_file.hpp"
#include "railyard/checkpoint/detail/safetensors.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>

namespace railyard::inline v0_1 {
namespace detail {

inline void check_range(std::int64_t begin, std::int64_t end, std::int64_t count) {
  if (begin < 0 || begin > end || end > count) {
    throw Error{compose("elements [{}, {}) of a tensor of {} were asked for", begin, end, count)};
  }
}

/// Returns the tensors of a file, which stays open for as long as one of their read functions lives.
[[nodiscard]] inline std::vector<StateTensor> tensors_in(const std::shared_ptr<const InputFile>& file) {
  constexpr std::size_t length_bytes = 8;
  if (file->size() < length_bytes) throw_damaged(file->path(), "it is too short for a header");
  std::array<std::byte, length_bytes> length{};
  file->read(0, length);
  return reading(file->path(), [&] {
    std::string header(read_tensors_header_length(length, file->size()), '\0');
    file->read(length_bytes, std::as_writable_bytes(std::span{header}));
    const std::uint64_t data = length_bytes + header.size();
    std::vector<StateTensor> tensors;
    for (TensorPlace& place : read_tensors_header(header, file->size() - data)) {
      StateTensor tensor{.name = std::move(place.name), .dtype = place.dtype, .shape = std::move(place.shape)};
      tensor.read = [file, from = data + place.begin, size = size_of(place.dtype), count = tensor.count()](
                        std::int64_t begin, std::int64_t end, std::byte* to) {
        check_range(begin, end, count);
        file->read(from + static_cast<std::uint64_t>(begin) * size,
                   std::span{to, static_cast<std::size_t>(end - begin) * size});
      };
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  });
}

}  // namespace detail

/// Returns the tensors of a file in the safetensors format, by their names. They are read from the file when their read
/// function is called.
/// Throws: DataError that says what is wrong with the file; Error if it cannot be opened.
[[nodiscard]] inline State read_safetensors(const std::filesystem::path& file) {
  const auto files = std::make_shared<detail::Files>();
  const int fd = detail::uninterrupted([&] { return files->open(file, O_RDONLY); });
  State state;
  state.tensors =
      detail::tensors_in(std::make_shared<const detail::InputFile>(file, detail::adopt(fd, file.string()), files));
  return state;
}

}  // namespace railyard::inline v0_1
