// SPDX-License-Identifier: MIT
// Where in a compressed file a reader can go on, as the state that is saved of it. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the begin of a record or a header in what a file holds, and a point of its stream up to there.
struct FilePoint {
  std::uint64_t offset = 0;
  std::uint64_t damaged = 0;  ///< that were left out before it, of all files, and check sums up to it that are wrong
  StreamPoint stream{};

  /// sample: that comes next from there.
  [[nodiscard]] ReaderState to_state(std::uint64_t sample) const {
    return {sample, [point = *this] {
              WireWriter writer;
              writer.put(point.offset);
              writer.put(point.damaged);
              writer.put(point.stream.offset);
              writer.put_text(point.stream.save());
              return writer.text();
            }};
  }

  /// Goes there in a stream that was just opened. Nothing, and the stream is of no use, if the state of the place is
  /// none of this file, or of none before sample `from`.
  [[nodiscard]] static std::optional<FilePoint> go_to(const ReaderPlace& place, std::uint64_t from, ByteStream& bytes) {
    const ReaderState& state = place.state;
    if (!state.has_value() || state.sample() > from || state.sample() < place.samples) return std::nullopt;
    FilePoint point;
    std::string saved;
    try {
      WireReader reader{state.bytes()};
      point.offset = reader.take<std::uint64_t>();
      point.damaged = reader.take<std::uint64_t>();
      point.stream.offset = reader.take<std::uint64_t>();
      saved = reader.take_text();
      if (!reader.is_empty()) return std::nullopt;
    } catch (const DataError&) {
      return std::nullopt;
    }
    if (point.offset < point.stream.offset || point.damaged < place.damaged) return std::nullopt;
    if (!bytes.go_to(point.stream.offset, saved)) return std::nullopt;
    const std::uint64_t between = point.offset - point.stream.offset;
    if (skip_past_damage(bytes, between) < between) return std::nullopt;
    return point;
  }
};

}  // namespace detail
}  // namespace railyard::inline v0_1
