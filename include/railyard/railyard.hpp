// SPDX-License-Identifier: MIT
// All of Railyard. Top of all rooms: the only file that decides by macro which of our headers are there.
//
// RAILYARD_WITH_GLOO and RAILYARD_WITH_TORCH, if defined and not 0, bring in what needs libgloo and LibTorch.
#pragma once

#include "railyard/core/backend.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/callback.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/core/mean.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/side_line.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/value.hpp"
#include "railyard/core/version.hpp"
#include "railyard/core/world.hpp"

#include "railyard/callbacks/progress.hpp"
#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/checkpoint/manifest.hpp"
#include "railyard/checkpoint/retention.hpp"
#include "railyard/checkpoint/safetensors.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/data/read_csv.hpp"
#include "railyard/data/shuffle.hpp"
#include "railyard/data/table.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "railyard/train/any_callback.hpp"
#include "railyard/train/controller.hpp"
#include "railyard/train/lockstep.hpp"
#include "railyard/train/random.hpp"
#include "railyard/train/result.hpp"
#include "railyard/train/run_config.hpp"
#include "railyard/train/scaling_config.hpp"
#include "railyard/train/step_times.hpp"
#include "railyard/train/trainer.hpp"
#include "railyard/train/worker.hpp"
#include "railyard/train/worker_of.hpp"

#if defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO
#include "railyard/collectives/gloo.hpp"
#endif

#if defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH
#include "railyard/torch/batch_norm.hpp"
#include "railyard/torch/buffer_sync.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/loader.hpp"
#include "railyard/torch/lockstep.hpp"
#include "railyard/torch/model_options.hpp"
#include "railyard/torch/pool.hpp"
#include "railyard/torch/power_sgd.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/torch/step_times.hpp"
#include "railyard/torch/sync_batch_norm.hpp"
#include "railyard/torch/tensor.hpp"
#endif
