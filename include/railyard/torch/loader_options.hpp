// SPDX-License-Identifier: MIT
// Says how a loader divides a dataset and makes batches of it. Torch room.
#pragma once

#include "railyard/core/block.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {

/// Says how prepare_loader() divides a dataset. Exactly one of the two sizes must be given, or Dataset::batch() have
/// said the first: the learning rate depends on what it is.
struct LoaderOptions {
  std::size_t global_batch_size = 0;      ///< samples of a batch, all workers together
  std::size_t batch_size_per_worker = 0;  ///< samples of a batch for each worker
  bool shuffle = false;                   ///< a new order every epoch; otherwise the dataset's own
  bool drives_step = false;               ///< the training loader: its batches are what gradients are weighted with
  /// A batch is given in so many parts, one after another, whose gradients accumulate: for batches that memory does not
  /// hold at once. The sizes above are still those of the whole, which one optimizer step is for. Ranks that divide a
  /// dataset give the same number, and the same below.
  std::size_t micro_batches = 1;
  /// The most samples of a micro-batch for each worker; 0 for any number. There are more parts than micro_batches if
  /// need be: with a global_batch_size, and fewer workers than before, each step is as it was and takes no more memory.
  std::size_t largest_micro_batch = 0;

  // The following is for loaders of a railyard::Dataset. Others, which the loop reads by itself, refuse all of it but
  // `threads` of 0.

  /// Makes data and target of the samples. By default data are the columns of numbers: one alone in its own dtype and
  /// shape, several side by side as f32 of shape (samples, numbers of all of them); undefined if there is none. Columns
  /// of texts are left out, see Batch::columns(). target is the label's column in its own dtype. Both are made by a
  /// thread that reads ahead. A function given here is called by the loop's own thread, batch after batch;
  /// the first dimension of its data, if there is any, counts the samples.
  std::function<std::pair<at::Tensor, at::Tensor>(const Block&)> collate{};
  /// What samples end with that are shorter than the longest of their batch.
  double padding = 0;
  /// A column whose samples differ in length: batches are made of samples of similar length, so that little is padded.
  /// The order is still one of seed and epoch alone, and also where a dataset was indexed, its samples are read one
  /// after another. See Dataset::bucket_by_length(), whose groups have one of the sizes above.
  std::string bucket_by{};
  /// Samples among which those of similar length are found; 0 for a hundred times one of the sizes above.
  std::size_t bucket_window = 0;
  /// Threads that read ahead, for each worker. With none, the loop reads by itself.
  std::size_t threads = 2;
  /// Batches that are read ahead at most; 0 for what Dataset::prefetch() says.
  std::size_t prefetch = 0;
  /// Bytes that all samples under way, and tensors made of them, may take for each worker; see EpochOptions. As many
  /// again may be on their way to a GPU, in pinned memory.
  std::size_t bound_bytes = std::size_t{256} << 20U;

  // The following is for all loaders.

  /// What is left at the end of an epoch, when it fills no batch, is not given: for what needs batches of one size.
  /// With shuffle these are other samples in each epoch; otherwise always the same, which are never seen.
  bool drop_last = false;
};

}  // namespace railyard::inline v0_1
