// SPDX-License-Identifier: MIT
// The messages that a worker posts to its supervisor. Train room.
#pragma once

#include "railyard/train/step_times.hpp"

#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/value.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// The worker is about to call the training function.
struct StartedMessage {
  std::string host{};
};
/// The training function has reported.
struct ReportMessage {
  Metrics metrics{};
};
/// The training function has returned, and this is where the time of its steps has gone.
struct StepTimesMessage {
  StepTimes times{};
};
/// The worker has seen something that the user is to know.
struct WarningMessage {
  std::string text{};
};
/// Is one file of a rank's part of a checkpoint, and where in its snapshot it stands.
struct SavedFile {
  std::string name{};
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  bool is_own = false;  ///< only this rank needs it
};
/// A snapshot holds the rank's part of a checkpoint.
struct SavedMessage {
  static constexpr std::int32_t no_slot = -1;
  std::int32_t slot = 0;  ///< no_slot: the rank has no part of it, most likely for want of memory
  std::int32_t attempt = 0;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::int64_t epoch = 0;
  std::int64_t report = -1;   ///< the number of the last report before it; -1 if there was none
  bool is_report = false;     ///< it belongs to that report, and has its metrics
  bool is_memory = false;     ///< it is not to be written, but to go on from
  std::string failure{};      ///< of one to be written: why there is no slot
  NamedValues environment{};  ///< of rank 0: see Manifest
  std::vector<SavedFile> files{};
};
/// The training function was left at the end of a step, because the run, or this number of workers, is to end.
struct LeftMessage {};
using WorkerMessage =
    std::variant<StartedMessage, ReportMessage, StepTimesMessage, SavedMessage, LeftMessage, WarningMessage>;

enum class MessageKind : std::uint8_t { started = 1, report = 2, step_times = 3, saved = 4, left = 5, warning = 6 };
enum class ValueKind : std::uint8_t { truth = 0, integer = 1, number = 2, text = 3 };

[[nodiscard]] inline std::vector<std::byte> encode_started(std::string_view host) {
  WireWriter writer;
  writer.put(MessageKind::started);
  writer.put_text(host);
  return writer.bytes();
}

inline void put_metrics(WireWriter& writer, const Metrics& metrics) {
  writer.put(static_cast<std::uint32_t>(metrics.size()));
  for (const auto& [name, value] : metrics) {
    writer.put_text(name);
    value.visit([&writer](const auto& held) {
      using Held = std::remove_cvref_t<decltype(held)>;
      if constexpr (std::is_same_v<Held, bool>) {
        writer.put(ValueKind::truth);
        writer.put(static_cast<std::uint8_t>(held));
      } else if constexpr (std::is_same_v<Held, std::string>) {
        writer.put(ValueKind::text);
        writer.put_text(held);
      } else {
        writer.put(std::is_same_v<Held, double> ? ValueKind::number : ValueKind::integer);
        writer.put(held);
      }
    });
  }
}

[[nodiscard]] inline std::vector<std::byte> encode_report(const Metrics& metrics) {
  WireWriter writer;
  writer.reserve(32 * metrics.size() + 16);
  writer.put(MessageKind::report);
  put_metrics(writer, metrics);
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_step_times(const StepTimes& times) {
  WireWriter writer;
  writer.put(MessageKind::step_times);
  writer.put(times);
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_warning(std::string_view text) {
  WireWriter writer;
  writer.put(MessageKind::warning);
  writer.put_text(text);
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_left() {
  WireWriter writer;
  writer.put(MessageKind::left);
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_saved(const SavedMessage& save) {
  WireWriter writer;
  writer.put(MessageKind::saved);
  writer.put(save.slot);
  writer.put(save.attempt);
  writer.put(save.step);
  writer.put(save.samples);
  writer.put(save.epoch);
  writer.put(save.report);
  writer.put(static_cast<std::uint8_t>(save.is_report));
  writer.put(static_cast<std::uint8_t>(save.is_memory));
  writer.put_text(save.failure);
  put_metrics(writer, save.environment);
  writer.put(static_cast<std::uint32_t>(save.files.size()));
  for (const SavedFile& file : save.files) {
    writer.put_text(file.name);
    writer.put(file.offset);
    writer.put(file.size);
    writer.put(static_cast<std::uint8_t>(file.is_own));
  }
  return writer.bytes();
}

/// Writes the size of the encoded message and the message to the begin of its snapshot.
inline void write_head(std::span<std::byte> snapshot, std::span<const std::byte> message) {
  const std::uint64_t size = message.size();
  std::memcpy(snapshot.data(), &size, sizeof size);
  std::copy(message.begin(), message.end(), snapshot.data() + sizeof size);
}

/// Whether a snapshot begins with the message, so that all of it is what the message tells of: its head is written
/// last.
[[nodiscard]] inline bool has_head(std::span<const std::byte> snapshot, std::span<const std::byte> message) {
  std::uint64_t size = 0;
  if (snapshot.size() < sizeof size + message.size()) return false;
  std::memcpy(&size, snapshot.data(), sizeof size);
  const auto head = snapshot.subspan(sizeof size, message.size());
  return size == message.size() && std::equal(head.begin(), head.end(), message.begin());
}

[[nodiscard]] inline Value decode_value(WireReader& reader) {
  switch (reader.take<ValueKind>()) {
    case ValueKind::truth:
      return reader.take<std::uint8_t>() != 0;
    case ValueKind::integer:
      return reader.take<std::int64_t>();
    case ValueKind::number:
      return reader.take<double>();
    case ValueKind::text:
      return reader.take_text();
  }
  throw DataError{"a worker's message is damaged: it holds a value of an unknown type"};
}

[[nodiscard]] inline Metrics take_metrics(WireReader& reader) {
  Metrics metrics;
  const auto count = reader.take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    std::string name = reader.take_text();
    metrics.set(std::move(name), decode_value(reader));
  }
  return metrics;
}

[[nodiscard]] inline SavedMessage decode_saved(WireReader& reader) {
  SavedMessage save;
  save.slot = reader.take<std::int32_t>();
  save.attempt = reader.take<std::int32_t>();
  save.step = reader.take<std::uint64_t>();
  save.samples = reader.take<std::uint64_t>();
  save.epoch = reader.take<std::int64_t>();
  save.report = reader.take<std::int64_t>();
  save.is_report = reader.take<std::uint8_t>() != 0;
  save.is_memory = reader.take<std::uint8_t>() != 0;
  save.failure = reader.take_text();
  const bool is_none = save.slot == SavedMessage::no_slot && (save.is_memory || !save.failure.empty());
  if (!is_none && (save.slot < 0 || save.slot >= num_snapshot_slots)) {
    throw DataError{"a worker's message is damaged: it names no snapshot"};
  }
  save.environment = take_metrics(reader);
  const auto count = reader.take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    SavedFile file{.name = reader.take_text()};
    file.offset = reader.take<std::uint64_t>();
    file.size = reader.take<std::uint64_t>();
    file.is_own = reader.take<std::uint8_t>() != 0;
    save.files.push_back(std::move(file));
  }
  return save;
}

/// Returns what a worker has posted. Throws: DataError if the bytes are none of the messages above.
[[nodiscard]] inline WorkerMessage decode_message(std::span<const std::byte> bytes) {
  WireReader reader{bytes};
  WorkerMessage message;
  switch (reader.take<MessageKind>()) {
    case MessageKind::started:
      message = StartedMessage{reader.take_text()};
      break;
    case MessageKind::report:
      message = ReportMessage{take_metrics(reader)};
      break;
    case MessageKind::saved:
      message = decode_saved(reader);
      break;
    case MessageKind::left:
      message = LeftMessage{};
      break;
    case MessageKind::step_times:
      message = StepTimesMessage{reader.take<StepTimes>()};
      break;
    case MessageKind::warning:
      message = WarningMessage{reader.take_text()};
      break;
    default:
      throw DataError{"a worker's message is damaged: it is of an unknown kind"};
  }
  if (!reader.is_empty()) throw DataError{"a worker's message is damaged: bytes are left at its end"};
  return message;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
