// SPDX-License-Identifier: MIT
// Tensors as a saved state holds them, row by row, whole or in the pieces of ranks. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/large_copy.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The dimensions of a tensor by falling stride: 0, 1, 2 for one that lies row by row.
using DimOrder = std::vector<std::int64_t>;

[[nodiscard]] inline DimOrder row_by_row(std::int64_t num_dims) {
  DimOrder order(static_cast<std::size_t>(num_dims));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// tensor: without gaps.
[[nodiscard]] inline DimOrder order_in_memory(const at::Tensor& tensor) {
  DimOrder order = row_by_row(tensor.dim());
  if (tensor.is_contiguous()) return order;
  std::sort(order.begin(), order.end(), [&](std::int64_t one, std::int64_t other) {
    return std::pair{-tensor.stride(one), one} < std::pair{-tensor.stride(other), other};
  });
  return order;
}

// The shape of what lies in memory as a tensor without gaps does.
[[nodiscard]] inline std::vector<std::int64_t> shape_in_memory(const at::Tensor& tensor) {
  std::vector<std::int64_t> shape;
  for (const std::int64_t dim : order_in_memory(tensor)) shape.push_back(tensor.size(dim));
  return shape;
}

[[nodiscard]] inline at::ScalarType scalar_type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return at::ScalarType::Half;
    case Dtype::bf16:
      return at::ScalarType::BFloat16;
    case Dtype::f32:
      return at::ScalarType::Float;
    case Dtype::f64:
      return at::ScalarType::Double;
    case Dtype::i8:
      return at::ScalarType::Char;
    case Dtype::u8:
      return at::ScalarType::Byte;
    case Dtype::i32:
      return at::ScalarType::Int;
    case Dtype::i64:
      return at::ScalarType::Long;
    case Dtype::boolean:
      break;
  }
  return at::ScalarType::Bool;
}

[[nodiscard]] inline std::string text_of_sizes(const std::vector<std::int64_t>& sizes) {
  return "[" + joined(sizes, ", ") + "]";
}

// What a tensor is saved as: a complex one in pairs.
[[nodiscard]] inline at::Tensor saved_view(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) {
    throw ConfigError{
        compose("the state of \"{}\" ({}) cannot be saved, for it is sparse: make it dense, or keep it "
                "out of the module's parameters and buffers",
                name, shape_of(tensor))};
  }
  try {
    const at::Tensor real = as_real(tensor.detach());
    static_cast<void>(dtype_of_tensor(real));
    return real;
  } catch (const ConfigError& error) {
    throw ConfigError{compose("the state of \"{}\" cannot be saved: {}", name, error.what())};
  }
}

// Copies elements begin to end, counted row by row, of a tensor on the CPU with any strides.
inline void copy_rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end, std::byte* to) {
  const auto width = static_cast<std::size_t>(tensor.element_size());
  const auto* from = static_cast<const std::byte*>(tensor.data_ptr());
  if (tensor.is_contiguous()) {
    if (begin < end)
      copy_large(to, from + begin * tensor.element_size(), static_cast<std::size_t>(end - begin) * width);
    return;
  }
  const std::int64_t length = std::max<std::int64_t>(tensor.size(-1), 1);
  const std::int64_t step = tensor.stride(-1) * tensor.element_size();
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t row = offset_of(tensor, at / length, tensor.dim() - 1);
    const std::byte* element = from + row * tensor.element_size() + at % length * step;
    for (const std::int64_t stop = std::min(end, (at / length + 1) * length); at < stop; ++at) {
      std::memcpy(to, element, width);
      to += width;
      element += step;
    }
  }
}

// A tensor that every rank has.
[[nodiscard]] inline StateTensor whole_state(std::string name, const at::Tensor& tensor) {
  const at::Tensor saved = saved_view(name, tensor);
  const Dtype dtype = dtype_of_tensor(saved);
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = saved.sizes().vec(),
          .read = [saved = saved.cpu()](std::int64_t begin, std::int64_t end, std::byte* to) {
            copy_rows(saved, begin, end, to);
          }};
}

// A flat tensor that holds elements begin to end of something of the given shape, of which other ranks hold the rest.
[[nodiscard]] inline StateTensor piece_state(std::string name, std::vector<std::int64_t> shape, std::int64_t begin,
                                             std::int64_t end, const at::Tensor& piece) {
  StateTensor state = whole_state(std::move(name), piece);
  state.shape = std::move(shape);
  state.is_piece = true;
  state.begin = begin;
  state.end = end;
  state.read = [read = std::move(state.read), begin](std::int64_t from, std::int64_t until, std::byte* to) {
    read(from - begin, until - begin, to);
  };
  return state;
}

// What was saved, and how the dimensions of its shape have to be read.
struct SavedTensor {
  const StateTensor* state = nullptr;
  DimOrder order{};

  [[nodiscard]] std::string text() const {
    return compose("{}{}", name_of(state->dtype), text_of_sizes(logical_shape()));
  }

  [[nodiscard]] std::vector<std::int64_t> logical_shape() const {
    if (order.size() != state->shape.size()) return state->shape;
    std::vector<std::int64_t> shape(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) shape[static_cast<std::size_t>(order[i])] = state->shape[i];
    return shape;
  }

  [[nodiscard]] bool fits(const at::Tensor& real) const { return fits(real, real.scalar_type()); }
  // The same of what is kept of a tensor in another type.
  [[nodiscard]] bool fits(const at::Tensor& real, at::ScalarType type) const {
    return order.size() == state->shape.size() && scalar_type_of(state->dtype) == type &&
           real.sizes().equals(logical_shape());
  }

  // Returns all of it, on the CPU.
  [[nodiscard]] at::Tensor whole() const {
    const at::Tensor flat = at::empty({state->count()}, at::TensorOptions{}.dtype(scalar_type_of(state->dtype)));
    state->read(0, state->count(), static_cast<std::byte*>(flat.data_ptr()));
    return flat.view(state->shape).permute(inverse());
  }

  // Fills a flat tensor with elements begin to end of what lies in the order of `like`.
  void read_piece(const at::Tensor& like, std::int64_t begin, std::int64_t end, const at::Tensor& flat) const {
    if (order == order_in_memory(like) && !flat.is_cpu()) {
      const at::Tensor host = at::empty({end - begin}, at::TensorOptions{}.dtype(flat.scalar_type()));
      state->read(begin, end, static_cast<std::byte*>(host.data_ptr()));
      flat.copy_(host);
    } else if (order == order_in_memory(like)) {
      state->read(begin, end, static_cast<std::byte*>(flat.data_ptr()));
      flat.unsafeGetTensorImpl()->bump_version();
    } else {
      flat.copy_(at::empty_like(like).copy_(whole()).as_strided({end - begin}, {1}, begin));
    }
  }

  // Writes all of it to where a tensor is.
  void read_into(const at::Tensor& target) const {
    const at::NoGradGuard no_grad;
    const at::Tensor real = as_real(target.detach());
    if (real.is_cpu() && real.is_non_overlapping_and_dense()) {
      read_piece(real, 0, real.numel(), real.as_strided({real.numel()}, {1}));
    } else {
      real.copy_(whole());
    }
  }

 private:
  [[nodiscard]] DimOrder inverse() const {
    DimOrder places(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      places[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    return places;
  }
};

[[nodiscard]] inline SavedTensor saved_rows(const StateTensor& state) {
  return {.state = &state, .order = row_by_row(static_cast<std::int64_t>(state.shape.size()))};
}

// The tensors of a saved state that nothing has been made of yet.
class UnreadTensors {
 public:
  explicit UnreadTensors(const State& state) {
    for (const StateTensor& tensor : state.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  // Returns the tensor of that name, or nullptr.
  [[nodiscard]] const StateTensor* take(std::string_view name) {
    const auto found = by_name_.extract(name);
    return found ? found.mapped() : nullptr;
  }

  void name_surplus(std::vector<std::string>& problems) const {
    for (const auto& [name, tensor] : by_name_) {
      problems.push_back(compose("\"{}\" {} was saved and has no place here", name, saved_rows(*tensor).text()));
    }
  }

 private:
  std::map<std::string_view, const StateTensor*> by_name_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
