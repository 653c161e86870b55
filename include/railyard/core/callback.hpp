// SPDX-License-Identifier: MIT
// What a callback is told, and the concept of one. Core room.
#pragma once

#include "railyard/core/value.hpp"

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Describes a run that starts.
struct RunInfo {
  std::string name{};
  std::filesystem::path path{};  ///< the run's directory
  std::string backend{};
  std::string scaling{};
  int world_size = 0;
  std::uint64_t seed = 0;
};

/// Is one report: call number `index` (from 0) of worker.report() on every rank.
struct Report {
  std::int64_t index = 0;
  double seconds = 0;                             ///< since fit() was called
  std::vector<std::optional<Metrics>> by_rank{};  ///< empty for a rank that had not reported when the run ended
  [[nodiscard]] const Metrics& metrics() const {  ///< rank 0's, which are the run's
    static const Metrics none{};
    return !by_rank.empty() && by_rank.front() ? *by_rank.front() : none;
  }
};

/// Says what a callback wants after a report: on_report may return it, or nothing at all.
enum class Next : std::uint8_t {
  go_on,
  stop,  ///< ask the workers to stop, as Ctrl-C does, but the run counts as a success: see Worker::should_stop()
};

/// Says that a run goes on with another number of workers.
struct Resize {
  int from = 0;
  int to = 0;
  std::uint64_t step = 0;  ///< the last one that is done
};

/// Describes how a run ended.
struct RunEnd {
  std::string error{};  ///< empty if it succeeded
  Metrics metrics{};    ///< the last ones reported
  double seconds = 0;
};

namespace detail {

template <class C>
concept HearsStart = requires(C& callback, const RunInfo& info) {
  callback.on_start(info);
};
template <class C>
concept HearsReport = requires(C& callback, const Report& report) {
  callback.on_report(report);
};
template <class C>
concept HearsResize = requires(C& callback, const Resize& resize) {
  callback.on_resize(resize);
};
template <class C>
concept HearsEnd = requires(C& callback, const RunEnd& end) {
  callback.on_end(end);
};

}  // namespace detail

/// Is told about a run, in the process that called fit() and on that thread: any subset of on_start(RunInfo),
/// on_report(Report), on_resize(Resize) and on_end(RunEnd), at least one of them. on_report may return a Next to end
/// the run early.
///
/// A report is told when all ranks have made it, and never without rank 0's metrics before the run ends. It is told
/// without the missing ranks, by_rank has nothing there, if others have gone on for five seconds and they have never
/// reported at all (only rank 0 reports), or if rank 0 is 64 reports ahead of them, or if the run ends before. Metrics
/// of a rank that is 1024 reports ahead of rank 0 are not kept for callbacks.
///
/// Laws: on_start comes first and once, on_end last and once, also when the run fails; reports come in order. An
/// exception out of a callback ends the run, and Result::error names the callback's hook.
template <class C>
concept Callback = std::move_constructible<C> &&
    (detail::HearsStart<C> || detail::HearsReport<C> || detail::HearsResize<C> || detail::HearsEnd<C>);

}  // namespace railyard::inline v0_1
