// SPDX-License-Identifier: MIT
// What a run has been through, as whoever leads it next has to know. Train room.
#pragma once

#include "railyard/train/detail/failure_budget.hpp"
#include "railyard/train/result.hpp"

#include "railyard/core/detail/wire.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

template <class T, class Put>
void put_all(WireWriter& writer, const std::vector<T>& values, Put put) {
  writer.put(static_cast<std::uint32_t>(values.size()));
  for (const T& value : values) put(value);
}

template <class Take>
void take_all(WireReader& reader, Take take) {
  const auto count = reader.take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) take();
}

inline void put_attempts(WireWriter& writer, const std::vector<Attempt>& attempts) {
  put_all(writer, attempts, [&](const Attempt& attempt) {
    writer.put_text(attempt.error);
    writer.put(static_cast<std::int32_t>(attempt.failed_rank));
    for (const std::uint64_t step : {attempt.begin_step, attempt.end_step, attempt.lost_steps}) writer.put(step);
    writer.put(attempt.seconds);
    writer.put(static_cast<std::int32_t>(attempt.world_size));
  });
}
[[nodiscard]] inline std::vector<Attempt> take_attempts(WireReader& reader) {
  std::vector<Attempt> attempts;
  take_all(reader, [&] {
    Attempt attempt{.error = reader.take_text()};
    attempt.failed_rank = reader.take<std::int32_t>();
    for (std::uint64_t* step : {&attempt.begin_step, &attempt.end_step, &attempt.lost_steps}) {
      *step = reader.take<std::uint64_t>();
    }
    attempt.seconds = reader.take<double>();
    attempt.world_size = reader.take<std::int32_t>();
    attempts.push_back(std::move(attempt));
  });
  return attempts;
}

/// Is told to all processes before each start of the workers: files of the one that leads may not have reached the
/// storage when it is lost.
struct RunLedger {
  std::int32_t attempt = 0;      ///< that begins
  std::uint64_t begin_step = 0;  ///< where
  std::int32_t world_size = 0;   ///< with so many workers
  FailureBudget::Counts failures{};
  std::vector<Attempt> attempts{};  ///< that have ended

  [[nodiscard]] std::string encode() const {
    WireWriter writer;
    writer.put(attempt);
    writer.put(begin_step);
    writer.put(world_size);
    writer.put(failures);
    put_attempts(writer, attempts);
    return writer.text();
  }
  [[nodiscard]] static RunLedger decode(std::string_view text) {
    WireReader reader{text};
    RunLedger ledger{.attempt = reader.take<std::int32_t>()};
    ledger.begin_step = reader.take<std::uint64_t>();
    ledger.world_size = reader.take<std::int32_t>();
    ledger.failures = reader.take<FailureBudget::Counts>();
    ledger.attempts = take_attempts(reader);
    return ledger;
  }
};

}  // namespace detail
}  // namespace railyard::inline v0_1
