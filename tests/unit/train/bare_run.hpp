// SPDX-License-Identifier: MIT
// What the checkpoints of a run need around them, without the run.
#pragma once

#include "railyard/train/detail/run_checkpoints.hpp"

#include "unit/train/scratch.hpp"

#include <filesystem>
#include <fstream>

struct BareRun {
  BareRun(const std::filesystem::path& path, int world_size, railyard::WorkerGroup& group)
      : lease{made(path)},
        directory{path, world_size},
        info{.path = path, .world_size = world_size},
        checkpoints{info, {}, lease, directory, group} {
    std::ofstream{path / "run.json"} << "{}";
  }

  static const std::filesystem::path& made(const std::filesystem::path& path) {
    std::filesystem::create_directories(path);
    return path;
  }

  railyard::detail::RunLease lease;
  railyard::detail::RunDirectory directory;
  railyard::RunInfo info;
  railyard::ProgressLine line{railyard::detail::Console{}, true};
  railyard::detail::RunLog log{directory, line, railyard::Deadline::Clock::now()};
  railyard::detail::RunCheckpoints checkpoints;
};
