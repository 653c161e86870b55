// SPDX-License-Identifier: MIT
// Makes one tensor of the pieces that ranks have written. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/input_file.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/safetensors.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/stateful.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which elements of which whole the tensor of a rank's file is.
struct PiecePlace {
  std::string name{};
  std::vector<std::int64_t> shape{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Throws: Damage.
[[nodiscard]] inline std::vector<PiecePlace> read_piece_places(const Json& json) {
  std::vector<PiecePlace> places;
  for (std::size_t i = 0; i < json.names().size(); ++i) {
    const Json& piece = json.items()[i];
    PiecePlace place{.name = json.names()[i]};
    for (const Json& size : piece.at("shape").array()) place.shape.push_back(size.as<std::int64_t>());
    place.begin = piece.at("begin").as<std::int64_t>();
    place.end = piece.at("end").as<std::int64_t>();
    if (place.begin < 0 || place.begin > place.end || place.end > checked_count(place.shape)) {
      throw Damage{compose("the piece [{}, {}) of tensor \"{}\" is not within it", place.begin, place.end, place.name)};
    }
    places.push_back(std::move(place));
  }
  return places;
}

/// Collects the pieces of one tensor.
class Pieces {
 public:
  /// Throws: Damage if the piece is none of the same tensor.
  void add(const PiecePlace& place, const StateTensor& data) {
    if (data.count() != place.end - place.begin) {
      throw Damage{compose("tensor \"{}\" has {} elements and should have {}", place.name, data.count(),
                           place.end - place.begin)};
    }
    if (pieces_.empty()) {
      shape_ = place.shape;
      dtype_ = data.dtype;
    } else if (shape_ != place.shape || dtype_ != data.dtype) {
      throw Damage{compose("tensor \"{}\" is of another shape or type than in the files of other ranks", place.name)};
    }
    pieces_.push_back({place.begin, place.end, place.begin, data.read});
  }

  /// Returns the whole. Throws: DataError, in the name of all files, if elements are missing.
  [[nodiscard]] StateTensor assemble(const std::filesystem::path& files, const std::string& name) && {
    StateTensor whole{.name = name, .dtype = dtype_, .shape = shape_};
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    std::int64_t reached = 0;
    for (Piece& piece : pieces_) {
      if (piece.begin > reached) break;
      piece.begin = std::min(reached, piece.end);  // what two ranks have written is taken from the first
      reached = std::max(reached, piece.end);
    }
    if (reached != whole.count()) {
      throw_damaged(files, compose("the elements of tensor \"{}\" from {} on are in none of them", name, reached));
    }
    whole.read = [pieces = std::move(pieces_), count = whole.count(),
                  size = static_cast<std::int64_t>(size_of(dtype_))](std::int64_t begin, std::int64_t end,
                                                                     std::byte* to) {
      check_range(begin, end, count);
      for (const Piece& piece : pieces) {
        const std::int64_t from = std::max(begin, piece.begin);
        const std::int64_t until = std::min(end, piece.end);
        if (from < until) piece.read(from - piece.origin, until - piece.origin, to + (from - begin) * size);
      }
    };
    return whole;
  }

 private:
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t origin = 0;  // which element of the whole the first of its file is
    decltype(StateTensor::read) read{};
  };

  std::vector<std::int64_t> shape_{};
  Dtype dtype_ = Dtype::f32;
  std::vector<Piece> pieces_{};
};

/// Adds what one rank has written to the tensors it belongs to. Throws: DataError.
inline void add_pieces(std::map<std::string, Pieces>& tensors, const std::vector<PiecePlace>& places,
                       const std::shared_ptr<const InputFile>& file) {
  const auto data = tensors_in(file);
  reading(file->path(), [&] {
    for (const PiecePlace& place : places) {
      const auto found =
          std::find_if(data.begin(), data.end(), [&place](auto& tensor) { return tensor.name == place.name; });
      if (found == data.end()) throw Damage{compose("tensor \"{}\" is missing", place.name)};
      tensors[place.name].add(place, *found);
    }
  });
}

}  // namespace detail
}  // namespace railyard::inline v0_1
