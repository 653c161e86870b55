// SPDX-License-Identifier: MIT
// Sums matrices of gradients as products of two thin ones, and remembers what that leaves out. Torch room.
#pragma once

#include "railyard/torch/comm_hook.hpp"
#include "railyard/torch/detail/tensor_state.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/data/shuffle.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Makes the rows of a (rank, n) matrix orthonormal, in place. A row that depends on those before it is asked of
// `replace` and made as long as the others, or stays zero. Plain loops in f64: BLAS may give other bits for other
// alignments, and all ranks must find the same.
template <class Replace>
void orthonormalise(std::vector<double>& rows, std::size_t length, Replace replace) {
  const auto dot = [length](const double* one, const double* other) {
    double sum = 0;
    for (std::size_t i = 0; i < length; ++i) sum += one[i] * other[i];
    return sum;
  };
  for (std::size_t row = 0; row < rows.size(); row += length) {
    double* mine = rows.data() + row;
    const double before = std::sqrt(dot(mine, mine));
    for (int pass = 0; pass < 2; ++pass) {  // the second one removes the rounding of the first
      for (std::size_t earlier = 0; earlier < row; earlier += length) {
        const double* other = rows.data() + earlier;
        const double share = dot(mine, other);
        for (std::size_t i = 0; i < length; ++i) mine[i] -= share * other[i];
      }
    }
    double after = std::sqrt(dot(mine, mine));
    if (!(after > before * 1e-12)) {
      for (std::size_t i = 0; i < length; ++i) mine[i] = replace(row + i);
      after = std::sqrt(dot(mine, mine));
    }
    for (std::size_t i = 0; after > 0 && i < length; ++i) mine[i] /= after;
  }
}

// Returns a matrix of the same shape whose columns are orthonormal and span the same space.
template <class Replace>
[[nodiscard]] at::Tensor orthonormal_columns(const at::Tensor& matrix, Replace replace) {
  const at::Tensor rows = matrix.t().to(at::kCPU, at::kDouble).contiguous();
  std::vector<double> values(rows.data_ptr<double>(), rows.data_ptr<double>() + rows.numel());
  orthonormalise(values, static_cast<std::size_t>(rows.size(1)), replace);
  const at::Tensor done = at::empty(rows.sizes(), rows.options());
  std::copy(values.begin(), values.end(), done.data_ptr<double>());
  return done.t().to(matrix.options()).contiguous();
}

// Numbers from -1 to 1 that are a function of the seed, on every machine.
class Directions {
 public:
  explicit Directions(std::uint64_t seed) : seed_(seed) {}
  [[nodiscard]] double operator()(std::size_t index) const {
    return std::ldexp(static_cast<double>(derive_seed(seed_, index) >> 11U), -52) - 1.0;
  }

 private:
  std::uint64_t seed_;
};

// What PowerSgdHook knows of each parameter. A copy is empty: each copy of a hook begins anew.
class PowerSgdMemory {
 public:
  struct Entry {
    std::uint64_t steps = 0;
    at::Tensor error{};  // (n, m): what this rank has not sent yet
    at::Tensor right{};  // (m, rank): where the last step's directions were, equal on all ranks
  };

  PowerSgdMemory() = default;
  PowerSgdMemory(const PowerSgdMemory& /*other*/) : entries_() {}
  PowerSgdMemory(PowerSgdMemory&&) noexcept = default;
  PowerSgdMemory& operator=(const PowerSgdMemory& other) {
    if (this != &other) entries_.clear();
    return *this;
  }
  PowerSgdMemory& operator=(PowerSgdMemory&&) noexcept = default;
  ~PowerSgdMemory() = default;

  [[nodiscard]] Entry& operator[](std::size_t id) { return entries_[id]; }

  // What is equal on all ranks, and the errors of all of them as one tensor (world size, n, m).
  [[nodiscard]] State state(int rank, int size) const {
    State state;
    for (const auto& [id, entry] : entries_) {
      state.values.set(compose("steps.{}", id), entry.steps);
      if (!entry.error.defined()) continue;
      state.tensors.push_back(whole_state(compose("right.{}", id), entry.right));
      const std::int64_t count = entry.error.numel();
      state.tensors.push_back(piece_state(compose("error.{}", id), {size, entry.error.size(0), entry.error.size(1)},
                                          rank * count, (rank + 1) * count, entry.error.reshape({-1})));
    }
    return state;
  }

  // Other ranks share what all the saved ones have not sent yet.
  void load_state(int rank, int size, const State& state) {
    entries_.clear();
    for (const auto& [name, value] : state.values) {
      const std::string id = name.substr(name.find('.') + 1);
      Entry& entry = entries_[std::stoull(id)];
      entry.steps = static_cast<std::uint64_t>(value.as<std::int64_t>());
      const StateTensor* right = state.find_tensor("right." + id);
      const StateTensor* errors = state.find_tensor("error." + id);
      if (right == nullptr || errors == nullptr) continue;
      entry.right = saved_rows(*right).whole();
      const at::Tensor all = saved_rows(*errors).whole();
      entry.error = all.size(0) == size ? all[rank].clone() : all.sum(0).div_(size);
    }
  }

 private:
  std::map<std::size_t, Entry> entries_{};
};

// One sum of a bucket's matrices as low-rank products, beside parts that are summed exactly.
class LowRankSum {
 public:
  LowRankSum(Worker& worker, std::int64_t rank, std::uint64_t seed) : worker_(&worker), rank_(rank), seed_(seed) {}

  [[nodiscard]] bool is_empty() const noexcept { return matrices_.empty(); }

  // Says whether two thin matrices are less to send.
  [[nodiscard]] bool gains(const at::Tensor& part) const {
    if (part.dim() < 2 || part.numel() == 0) return false;
    const std::int64_t rows = part.size(0);
    const std::int64_t columns = part.numel() / rows;
    return (rows + columns) * rank_ < part.numel();
  }

  // Takes a part in, which is a contiguous view into the bucket.
  void add(PowerSgdMemory::Entry& entry, std::size_t id, const at::Tensor& part) {
    const at::Tensor values = part.view({part.size(0), -1});
    const Directions directions{derive_seed(seed_, derive_seed(id, entry.steps))};
    if (!entry.error.defined() || !entry.error.sizes().equals(values.sizes()) || entry.right.size(1) != rank_) {
      entry.error = at::zeros_like(values);
      entry.right = orthonormal_columns(at::zeros({values.size(1), rank_}, values.options()), directions);
    }
    matrices_.push_back({.values = values, .entry = &entry, .directions = directions});
  }

  void run(const std::vector<at::Tensor>& exact) {
    std::vector<at::Tensor> pieces = exact;
    for (Matrix& matrix : matrices_) {
      matrix.values.add_(matrix.entry->error);
      matrix.left = at::mm(matrix.values, matrix.entry->right);
      pieces.push_back(matrix.left);
    }
    if (!sum(pieces)) return spoil();
    pieces.clear();
    std::vector<at::Tensor> own;
    for (Matrix& matrix : matrices_) {
      matrix.left = orthonormal_columns(matrix.left, [](std::size_t) { return 0.0; });
      own.push_back(at::mm(matrix.values.t(), matrix.left));
      pieces.push_back(own.back().clone());
    }
    if (!sum(pieces)) return spoil();
    for (std::size_t i = 0; i < matrices_.size(); ++i) finish(matrices_[i], own[i], pieces[i]);
  }

 private:
  struct Matrix {
    at::Tensor values{};  // (n, m): a view into the bucket
    PowerSgdMemory::Entry* entry = nullptr;
    Directions directions{0};
    at::Tensor left{};  // (n, rank)
  };

  // Sums all pieces as one buffer. Returns whether the sums are finite, which all ranks see alike.
  [[nodiscard]] bool sum(const std::vector<at::Tensor>& pieces) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& piece : pieces) rows.push_back(piece.reshape({-1}));
    const at::Tensor flat = at::cat(rows);
    worker_->all_reduce(buffer_of(flat), ReduceOp::sum);
    std::int64_t begin = 0;
    for (const at::Tensor& piece : pieces) {
      piece.copy_(flat.narrow(0, begin, piece.numel()).view(piece.sizes()));
      begin += piece.numel();
    }
    return at::isfinite(flat).all().item<bool>();
  }

  // The step will be skipped: what was left out before stays to be sent.
  void spoil() {
    for (const Matrix& matrix : matrices_) matrix.values.fill_(std::numeric_limits<double>::quiet_NaN());
  }

  static void finish(const Matrix& matrix, const at::Tensor& own, const at::Tensor& right) {
    matrix.entry->error = at::addmm(matrix.values, matrix.left, own.t(), 1, -1);
    // Element by element and not by BLAS, so that all ranks get equal bits.
    matrix.values.zero_();
    for (std::int64_t column = 0; column < right.size(1); ++column) {
      matrix.values.addcmul_(matrix.left.narrow(1, column, 1), right.narrow(1, column, 1).t());
    }
    matrix.entry->right = orthonormal_columns(right, matrix.directions);
  }

  Worker* worker_;
  std::int64_t rank_;
  std::uint64_t seed_;
  std::vector<Matrix> matrices_{};
};

}  // namespace detail

/// Sums each gradient matrix (n, m) as the product of (n, rank) and (m, rank), found by one step of power iteration
/// from the last step's directions. What the product leaves out is kept and added to the next step's gradient, so that
/// nothing is lost, only late. Vectors, and matrices too small to gain by it, are summed exactly; a parameter of more
/// dimensions is a matrix of its first dimension by all others.
///
/// It needs memory: one more copy of the gradients. To keep it over a restart, make CommHookState a part of the state;
/// otherwise what was left out is gone and compression begins anew. Gradients with heavy noise or of early steps
/// compress badly; use start_step. All ranks give the same options. Source: Vogels, Karimireddy, Jaggi, PowerSGD:
/// Practical Low-Rank Gradient Compression, NeurIPS 2019. Example: ry::AnyCommHook hook = ry::PowerSgdHook{.rank = 4,
/// .start_step = 100};
struct PowerSgdHook {
  int rank = 2;                     ///< columns of the two thin matrices
  std::uint64_t start_step = 1000;  ///< steps of each parameter that are summed exactly before
  std::uint64_t seed = 0;           ///< of the first directions, besides the run's own
  detail::PowerSgdMemory memory{};

  /// Cost: two all-reduces, rank x (n + m) elements per matrix in all; about 6 x rank x n x m operations and rank + 4
  /// passes over the bucket. Throws: ConfigError for a rank below 1.
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    const at::NoGradGuard no_grad;
    if (rank < 1) {
      throw ConfigError{
          detail::compose("PowerSgdHook on rank {}/{}: .rank is {}; it counts columns: 1, 2 and 4 are usual",
                          worker.rank(), worker.world_size(), rank)};
    }
    detail::LowRankSum sum{worker, rank, detail::derive_seed(worker.seed(), seed)};
    std::vector<at::Tensor> exact;
    for (std::size_t i = 0; i < bucket.parts.size(); ++i) {
      auto& entry = memory[bucket.ids[i]];
      if (entry.steps++ >= start_step && sum.gains(bucket.parts[i])) {
        sum.add(entry, bucket.ids[i], bucket.parts[i]);
      } else {
        exact.push_back(bucket.parts[i]);
      }
    }
    if (sum.is_empty()) return ExactHook{}.all_reduce(worker, bucket);
    sum.run(exact);
  }

  [[nodiscard]] State state(Worker& worker) const { return memory.state(worker.rank(), worker.world_size()); }
  void load_state(Worker& worker, const State& state) { memory.load_state(worker.rank(), worker.world_size(), state); }
};
static_assert(StatefulCommHook<PowerSgdHook>);

}  // namespace railyard::inline v0_1
