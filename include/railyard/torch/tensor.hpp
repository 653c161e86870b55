// SPDX-License-Identifier: MIT
// A tensor as collectives see it, and the device of a worker. Torch room.
#pragma once

#include "railyard/torch/detail/thread_budget.hpp"
#include "railyard/torch/detail/worker_gpu.hpp"

#include "railyard/core/buffer.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] inline std::string shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = "[";
  for (const auto size : tensor.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return std::string{c10::toString(tensor.scalar_type())} + text + "]";
}

// Where the element of that number, counted row by row over the first num_dims dimensions, is from the first one, in
// elements, whatever the strides.
[[nodiscard]] inline std::int64_t offset_of(const at::Tensor& tensor, std::int64_t element, std::int64_t num_dims) {
  std::int64_t offset = 0;
  for (std::int64_t dim = num_dims; dim-- > 0; element /= tensor.size(dim)) {
    offset += element % tensor.size(dim) * tensor.stride(dim);
  }
  return offset;
}

}  // namespace detail

/// Returns the dtype that collectives know a tensor's elements by.
/// Throws: ConfigError that names the type if there is none.
[[nodiscard]] inline Dtype dtype_of_tensor(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::ScalarType::Half:
      return Dtype::f16;
    case at::ScalarType::BFloat16:
      return Dtype::bf16;
    case at::ScalarType::Float:
      return Dtype::f32;
    case at::ScalarType::Double:
      return Dtype::f64;
    case at::ScalarType::Char:
      return Dtype::i8;
    case at::ScalarType::Byte:
      return Dtype::u8;
    case at::ScalarType::Int:
      return Dtype::i32;
    case at::ScalarType::Long:
      return Dtype::i64;
    case at::ScalarType::Bool:
      return Dtype::boolean;
    default:
      throw ConfigError{
          detail::compose("collectives cannot carry a tensor of type {} (shape {}): convert it with .to() to "
                          "Half, BFloat16, Float, Double, Char, Byte, Int, Long or Bool; view a complex one "
                          "with torch::view_as_real()",
                          c10::toString(tensor.scalar_type()), detail::shape_of(tensor))};
  }
}

/// Views the elements of a contiguous tensor, which must outlive the view.
/// Throws: ConfigError if it is undefined, sparse, not contiguous, on a device or of a type that collectives do not
/// know.
[[nodiscard]] inline Buffer buffer_of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw ConfigError{"an undefined tensor was given to a collective: give it a value first"};
  if (tensor.layout() != c10::kStrided) {
    throw ConfigError{detail::compose("a sparse tensor ({}) was given to a collective: make it dense with .to_dense()",
                                      detail::shape_of(tensor))};
  }
  const Dtype dtype = dtype_of_tensor(tensor);
  if (!tensor.is_contiguous()) {
    throw ConfigError{
        detail::compose("a tensor that is not contiguous ({}) cannot be viewed as a Buffer: use .contiguous()",
                        detail::shape_of(tensor))};
  }
  Device device{};
  if (tensor.is_cuda()) {
    device = {DeviceKind::cuda, static_cast<int>(tensor.get_device())};
  } else if (!tensor.is_cpu()) {
    throw ConfigError{
        detail::compose("collectives know tensors on CPUs and CUDA devices; this one is on {}", tensor.device().str())};
  }
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype, device};
}

/// Views the elements of a tensor on the CPU, which must outlive the view, as metrics take them.
/// Throws: ConfigError as buffer_of() does, and if the elements are not of type T or are on a GPU.
/// Example: auc.add(ry::values<float>(scores), ry::values<std::int64_t>(batch.target));
template <Element T>
[[nodiscard]] std::span<const T> values(const at::Tensor& tensor) {
  const Buffer elements = buffer_of(tensor);
  if (elements.dtype != dtype_of<T> || elements.device.kind != DeviceKind::cpu) {
    throw ConfigError{detail::compose("a tensor ({} on {}) was to be read as {} on the CPU: convert it with .to()",
                                      detail::shape_of(tensor), tensor.device().str(), name_of(dtype_of<T>))};
  }
  return {static_cast<const T*>(elements.data), elements.count};
}

/// Returns the device that this worker's tensors belong on: the GPU that it was given (ScalingConfig::use_gpu) or that
/// its backend works on, or the CPU. A GPU becomes the current one of this thread: what names none is made on it.
[[nodiscard]] inline at::Device device(Worker& worker) {
  detail::apply_thread_budget(worker);
  const Device home = worker.device();
  const auto index = home.kind == DeviceKind::cuda ? std::optional{home.index} : worker.device_index();
  if (!index) return at::kCPU;
  const at::Device gpu{at::kCUDA, static_cast<at::DeviceIndex>(*index)};
  detail::enter_gpu(worker, gpu);
  return gpu;
}

}  // namespace railyard::inline v0_1
