// SPDX-License-Identifier: MIT
// All of Railyard. Top of all rooms: the only file that decides by macro which of our headers are there.
//
// RAILYARD_WITH_GLOO and RAILYARD_WITH_TORCH, if defined and not 0, bring in what needs libgloo and LibTorch;
// RAILYARD_WITH_NCCL the backend for GPUs, which needs neither NCCL nor CUDA to compile;
// RAILYARD_WITH_DATA all readers of files and what learns from data, which takes seconds to compile;
// RAILYARD_WITH_ZLIB and RAILYARD_WITH_ZSTD what reads files compressed by gzip and zstd, and archives of NumPy;
// RAILYARD_WITH_IMAGES pictures.
#pragma once

#include "railyard/core/accuracy.hpp"
#include "railyard/core/auc.hpp"
#include "railyard/core/backend.hpp"
#include "railyard/core/block.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/callback.hpp"
#include "railyard/core/confusion_matrix.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/device_line.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/core/launch_config.hpp"
#include "railyard/core/mean.hpp"
#include "railyard/core/perplexity.hpp"
#include "railyard/core/pool_statistics.hpp"
#include "railyard/core/rank_connector.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/side_line.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/summed_metric.hpp"
#include "railyard/core/value.hpp"
#include "railyard/core/version.hpp"
#include "railyard/core/world.hpp"

#include "railyard/callbacks/progress.hpp"
#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/checkpoint/manifest.hpp"
#include "railyard/checkpoint/part_bytes.hpp"
#include "railyard/checkpoint/part_writers.hpp"
#include "railyard/checkpoint/retention.hpp"
#include "railyard/checkpoint/safetensors.hpp"
#include "railyard/collectives/checked.hpp"
#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/data/block_builder.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/csv_source_options.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/dataset_stats.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/epoch_position.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/function_source.hpp"
#include "railyard/data/input_files.hpp"
#include "railyard/data/memory_source.hpp"
#include "railyard/data/on_error.hpp"
#include "railyard/data/read_csv.hpp"
#include "railyard/data/record_source.hpp"
#include "railyard/data/sample.hpp"
#include "railyard/data/sample_random.hpp"
#include "railyard/data/shuffle.hpp"
#include "railyard/data/split.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "railyard/train/any_callback.hpp"
#include "railyard/train/checkpoint_config.hpp"
#include "railyard/train/controller.hpp"
#include "railyard/train/data_config.hpp"
#include "railyard/train/failure_config.hpp"
#include "railyard/train/lockstep.hpp"
#include "railyard/train/preemption_config.hpp"
#include "railyard/train/random.hpp"
#include "railyard/train/result.hpp"
#include "railyard/train/run_config.hpp"
#include "railyard/train/scaling_config.hpp"
#include "railyard/train/step_times.hpp"
#include "railyard/train/train_state.hpp"
#include "railyard/train/trainer.hpp"
#include "railyard/train/worker.hpp"
#include "railyard/train/worker_of.hpp"

#if defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA
#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/array_source.hpp"
#include "railyard/data/batch_mapper.hpp"
#include "railyard/data/chain.hpp"
#include "railyard/data/cifar_source.hpp"
#include "railyard/data/column_scaler.hpp"
#include "railyard/data/concatenator.hpp"
#include "railyard/data/encoders.hpp"
#include "railyard/data/fit.hpp"
#include "railyard/data/idx_source.hpp"
#include "railyard/data/image.hpp"
#include "railyard/data/imputer.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/json_lines_source_options.hpp"
#include "railyard/data/normalizer.hpp"
#include "railyard/data/npy_source.hpp"
#include "railyard/data/preprocessor.hpp"
#include "railyard/data/safetensors_source.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/tar_source_options.hpp"
#include "railyard/data/text_lines_source.hpp"
#include "railyard/data/tokenizer.hpp"
#include "railyard/train/fit.hpp"
#endif

#if defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB
#include "railyard/data/gzip.hpp"
#endif

#if defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB
#include "railyard/data/npz_source.hpp"
#endif

#if defined(RAILYARD_WITH_ZSTD) && RAILYARD_WITH_ZSTD
#include "railyard/data/zstd.hpp"
#endif

#if defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_IMAGES) && RAILYARD_WITH_IMAGES
#include "railyard/data/decode_image.hpp"
#include "railyard/data/image_folder.hpp"
#endif

#if defined(RAILYARD_WITH_LAUNCHED) && RAILYARD_WITH_LAUNCHED
#include "railyard/workers/launched.hpp"
#endif

#if defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO
#include "railyard/collectives/gloo.hpp"
#endif

#if defined(RAILYARD_WITH_NCCL) && RAILYARD_WITH_NCCL
#include "railyard/collectives/nccl.hpp"
#endif

#if defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH
#include "railyard/torch/autocast.hpp"
#include "railyard/torch/batch.hpp"
#include "railyard/torch/batch_norm.hpp"
#include "railyard/torch/buffer_sync.hpp"
#include "railyard/torch/collectives.hpp"
#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/comm_hook_state.hpp"
#include "railyard/torch/from_tensors.hpp"
#include "railyard/torch/grad_scaler.hpp"
#include "railyard/torch/loader.hpp"
#include "railyard/torch/loader_options.hpp"
#include "railyard/torch/lockstep.hpp"
#include "railyard/torch/metrics.hpp"
#include "railyard/torch/model_options.hpp"
#include "railyard/torch/pool.hpp"
#include "railyard/torch/power_sgd.hpp"
#include "railyard/torch/prepare_loader.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/recompute.hpp"
#include "railyard/torch/replicas.hpp"
#include "railyard/torch/state.hpp"
#include "railyard/torch/step_times.hpp"
#include "railyard/torch/sync_batch_norm.hpp"
#include "railyard/torch/tensor.hpp"
#endif
