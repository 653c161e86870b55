// SPDX-License-Identifier: MIT
// Supervises a run as one function, so that what calls it for each kind of policy need not know how. Train room.
#pragma once

#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/detail/inheritance.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/run_record.hpp"
#include "railyard/train/detail/supervision.hpp"
#include "railyard/train/result.hpp"
#include "railyard/train/run_config.hpp"

#include "railyard/core/callback.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/scaling.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Runs to the end, with what Supervision takes. start: starts a group. renew: called before workers are started again.
/// Throws: ConfigError as Supervision::run() does.
[[nodiscard]] inline Result supervise(const RunConfig& config, ElasticSize size, RunInfo info,
                                      Deadline::Clock::time_point called_at, RunLease lease, RunRecord before,
                                      Leadership leadership,
                                      const std::function<std::unique_ptr<WorkerGroup>(const GroupPlan&)>& start,
                                      const std::function<void(int num_workers)>& renew) {
  return Supervision{config,           std::move(size),   std::move(info),      called_at,
                     std::move(lease), std::move(before), std::move(leadership)}
      .run(start, renew);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
