// SPDX-License-Identifier: MIT
// The files that a rank contributes to a checkpoint, as memory to be filled. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/json_values.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/detail/safetensors.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is one file that a rank contributes to a checkpoint.
struct FileImage {
  std::string name{};
  std::size_t size = 0;
  /// Writes the file's bytes to memory of `size` bytes. To be called only while what the states were taken from is as
  /// it was.
  std::function<void(std::byte* to)> fill{};
  bool is_own = false;   ///< only this rank needs it
  bool is_part = false;  ///< it has this rank's part of what all need
};

/// Is the state of a part of the training, by the name of the part.
struct NamedState {
  std::string name{};
  State state{};
};

namespace detail {

[[noreturn]] inline void refuse_part(std::string_view part, std::string_view why) {
  throw ConfigError{compose("the part \"{}\" cannot be in a checkpoint: {}", printable(part), why)};
}

inline void check_tensor(const NamedState& part, const StateTensor& tensor) {
  const auto refuse = [&](std::string_view why) {
    refuse_part(part.name, compose("its tensor \"{}\": {}", printable(tensor.name), why));
  };
  if (const auto fault = fault_of_tensor(tensor.name); !fault.empty()) refuse(fault);
  if (!tensor.read) refuse("it has no read function");
  try {
    (void)checked_count(tensor.shape);
  } catch (const Damage& damage) {
    refuse(damage.what());
  }
  if (!tensor.is_piece) return;
  if (part.state.is_own) refuse("a piece is of what all ranks have, but the part is this rank's own");
  if (tensor.begin < 0 || tensor.begin > tensor.end || tensor.end > tensor.count()) {
    refuse(compose("the piece [{}, {}) is not within its {} elements", tensor.begin, tensor.end, tensor.count()));
  }
}

/// former: the names of the parts before it, to which it is added. Throws: ConfigError if it cannot be the next one.
inline void check_part_name(std::string_view part, std::set<std::string_view>& former) {
  if (const auto fault = fault_of_part(part); !fault.empty()) refuse_part(part, fault);
  if (!former.insert(part).second) refuse_part(part, "there are two parts of this name");
}

inline void check_parts(std::span<const NamedState> parts) {
  std::set<std::string_view> part_names;
  for (const NamedState& part : parts) {
    check_part_name(part.name, part_names);
    for (const auto& [name, value] : part.state.values) {
      if (!is_utf8(name)) refuse_part(part.name, "the name of one of its values is not UTF-8");
    }
    std::set<std::string_view> tensor_names;
    for (const StateTensor& tensor : part.state.tensors) {
      check_tensor(part, tensor);
      if (!tensor_names.insert(tensor.name).second) {
        refuse_part(part.name, compose("it has two tensors \"{}\"", tensor.name));
      }
    }
  }
}

[[nodiscard]] inline FileImage text_image(std::string name, std::string text) {
  const std::size_t size = text.size();
  return {std::move(name), size,
          [text = std::move(text)](std::byte* to) { std::memcpy(to, text.data(), text.size()); }};
}

/// Is what has to be remembered of a file of tensors until it is filled.
struct TensorsImage {
  std::vector<StateTensor> tensors{};
  std::vector<TensorPlace> places{};
  std::string header{};

  void fill(std::byte* to) const {
    std::memcpy(to, header.data(), header.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const StateTensor& tensor = tensors[i];
      if (places[i].begin == places[i].end) continue;
      std::byte* place = to + header.size() + places[i].begin;
      tensor.is_piece ? tensor.read(tensor.begin, tensor.end, place) : tensor.read(0, tensor.count(), place);
    }
  }
};

[[nodiscard]] inline FileImage tensors_image(std::string name, std::vector<StateTensor> tensors) {
  auto image = std::make_shared<TensorsImage>();
  for (const StateTensor& tensor : tensors) {
    image->places.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    if (tensor.is_piece) image->places.back().shape = {tensor.end - tensor.begin};
  }
  const std::uint64_t data_size = place_tensors(image->places);
  image->tensors = std::move(tensors);
  image->header = tensors_header(image->places);
  const std::size_t size = image->header.size() + static_cast<std::size_t>(data_size);
  return {std::move(name), size, [image](std::byte* to) { image->fill(to); }};
}

/// Adds the file of those tensors of the part that are wanted, if there are any.
template <class Wanted>
void add_tensors(std::vector<FileImage>& images, std::string name, const State& state, const Wanted& wanted) {
  std::vector<StateTensor> tensors;
  std::copy_if(state.tensors.begin(), state.tensors.end(), std::back_inserter(tensors), wanted);
  if (!tensors.empty()) images.push_back(tensors_image(std::move(name), std::move(tensors)));
}

[[nodiscard]] inline bool has_pieces(const State& state) noexcept {
  return std::any_of(state.tensors.begin(), state.tensors.end(), [](auto& tensor) { return tensor.is_piece; });
}

// Where the pieces of this rank lie in the whole.
inline void write_pieces(JsonWriter& writer, const State& state) {
  writer.open();
  for (const StateTensor& tensor : state.tensors) {
    if (!tensor.is_piece) continue;
    writer.name(tensor.name).open();
    writer.name("shape").list(tensor.shape);
    writer.name("begin").raw(compose("{}", tensor.begin));
    writer.name("end").raw(compose("{}", tensor.end));
    writer.close();
  }
  writer.close();
}

/// Returns the JSON file of those parts that are wanted: {"parts": {"net": {"values": {...}}}}. Of a part that all
/// ranks have, a rank's file tells the pieces, and the file of all ranks the values.
template <class Wanted>
[[nodiscard]] FileImage states_image(std::string name, std::span<const NamedState> parts, bool is_of_rank,
                                     const Wanted& wanted) {
  JsonWriter writer{true};
  writer.name("parts").open();
  for (const auto& [part, state] : parts) {
    if (!wanted(state)) continue;
    writer.name(part).open();
    if (is_of_rank && !state.is_own) {
      write_pieces(writer.name("pieces"), state);
    } else {
      write_values(writer.name("values"), state.values);
    }
    writer.close();
  }
  writer.close();
  return text_image(std::move(name), writer.finish() + "\n");
}

}  // namespace detail

/// Returns the files of this rank: its pieces of tensors, the parts that are its own, and what all ranks have, if it is
/// to have that.
/// Throws: ConfigError that names the part if a name is taken twice or cannot be the name of a file.
[[nodiscard]] inline std::vector<FileImage> file_images(std::span<const NamedState> parts, int rank, bool has_common) {
  detail::check_parts(parts);
  std::vector<FileImage> images;
  if (has_common) {
    images.push_back(detail::states_image(std::string{detail::state_name}, parts, false,
                                          [](const State& state) { return !state.is_own; }));
  }
  const auto is_of_rank = [](const State& state) { return state.is_own || detail::has_pieces(state); };
  if (std::any_of(parts.begin(), parts.end(), [&](auto& part) { return is_of_rank(part.state); })) {
    images.push_back(detail::states_image(detail::state_name_of(rank), parts, true, is_of_rank));
    images.back().is_own =
        std::none_of(parts.begin(), parts.end(), [](auto& part) { return detail::has_pieces(part.state); });
    images.back().is_part = !images.back().is_own;
  }
  for (const auto& [name, state] : parts) {
    const bool is_own = state.is_own;
    const auto is_whole = [is_own](const StateTensor& tensor) { return !is_own && !tensor.is_piece; };
    if (has_common) detail::add_tensors(images, detail::tensors_name(name), state, is_whole);
    const std::size_t num_common = images.size();
    detail::add_tensors(images, detail::tensors_name(name, rank), state, std::not_fn(is_whole));
    if (images.size() == num_common) continue;
    images.back().is_own = is_own;
    images.back().is_part = !is_own;
  }
  return images;
}

/// Returns the files that this rank has to write: what all ranks have is rank 0's to write.
[[nodiscard]] inline std::vector<FileImage> file_images(std::span<const NamedState> parts, int rank) {
  return file_images(parts, rank, rank == 0);
}

}  // namespace railyard::inline v0_1
