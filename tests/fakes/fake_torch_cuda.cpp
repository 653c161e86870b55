// SPDX-License-Identifier: MIT
// A FAKE of LibTorch's part for CUDA, for tests without a GPU: in a LibTorch that was built for CPUs there are then
// tensors on CUDA devices, on the fake CUDA runtime beside it. Their memory is the host's, and whatever is computed on
// them is computed by LibTorch's own kernels for CPUs, behind what is on the device's default stream. Backward passes
// run on a thread for each device, as with the real one. Opening the library is all that a test has to do.
// RAILYARD_FAKE_CUDA_DEVICES says how many devices there are (default 8).
#include "fake_address.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

extern "C" int cudaGetDevice(int* device);
extern "C" int cudaSetDevice(int device);
extern "C" int cudaGetDeviceCount(int* count);
extern "C" int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data);

namespace {

c10::DeviceIndex current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return static_cast<c10::DeviceIndex>(device);
}

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  using Interface = c10::impl::DeviceGuardImplInterface;

  [[nodiscard]] c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device former = getDevice();
    setDevice(device);
    return former;
  }
  [[nodiscard]] c10::Device getDevice() const override { return {c10::DeviceType::CUDA, current_device()}; }
  void setDevice(c10::Device device) const override { cudaSetDevice(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { cudaSetDevice(device.index()); }
  [[nodiscard]] c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream{c10::Stream::DEFAULT, device};
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream{c10::Stream::DEFAULT, device};
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return c10::Stream{c10::Stream::DEFAULT, stream.device()};
  }
  // There is one stream, which needs no events.
  void record(void** /*event*/, const c10::Stream& /*stream*/, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  [[nodiscard]] bool queryEvent(void* /*event*/) const override { return true; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    return cudaGetDeviceCount(&count) == 0 ? static_cast<c10::DeviceIndex>(count) : c10::DeviceIndex{0};
  }
};

// Waits until what was put on a device's default stream before is done.
void drain(c10::Device device) {
  struct Current {
    explicit Current(c10::Device device) : former(FakeGuard{}.exchangeDevice(device)) {}
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() { FakeGuard{}.setDevice(former); }
    c10::Device former;
  } const current{device};
  std::atomic<bool> is_done{false};
  const auto set = [](void* flag) {
    static_cast<std::atomic<bool>*>(flag)->store(true);
    static_cast<std::atomic<bool>*>(flag)->notify_all();
  };
  cudaLaunchHostFunc(nullptr, set, &is_done);
  is_done.wait(false);
}

// By which LibTorch knows that there are devices. It finds it by its name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs /*none*/) {}
  void initCUDA() const override {}
  [[nodiscard]] bool hasCUDA() const override { return getNumGPUs() > 0; }
  [[nodiscard]] int getNumGPUs() const override { return FakeGuard{}.deviceCount(); }
  [[nodiscard]] std::int64_t current_device() const override { return ::current_device(); }
  [[nodiscard]] bool hasPrimaryContext(std::int64_t /*device*/) const override { return true; }
  void deviceSynchronize(std::int64_t device) const override {
    drain({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)});
  }
  // What is drawn on a device comes from its generator, which is one for CPUs.
  [[nodiscard]] const at::Generator& getDefaultCUDAGenerator(c10::DeviceIndex device) const override {
    static std::vector<at::Generator> generators = [] {
      std::vector<at::Generator> all;
      for (int index = 0; index < 64; ++index) all.push_back(at::detail::createCPUGenerator());
      return all;
    }();
    return generators.at(static_cast<std::size_t>(device < 0 ? ::current_device() : device));
  }
};

at::Tensor tensor_on(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet{key}, like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

// A tensor of the CPU in the memory of one of a device. It can be made larger, for which it gets other memory.
at::Tensor on_host(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr memory{fake::host_address(storage.data_ptr().get()), nullptr, [](void* /*context*/) {},
                      c10::Device{c10::DeviceType::CPU}};
  c10::Storage alias{c10::Storage::use_byte_size_t{}, storage.nbytes(), std::move(memory),
                     c10::GetAllocator(c10::DeviceType::CPU), true};
  return tensor_on(std::move(alias), c10::DispatchKey::CPU, tensor);
}

c10::DataPtr memory_of(const at::Tensor& host, c10::Device device) {
  auto* owner = new at::Tensor{host};
  return {fake::device_address(host.storage().data_ptr().get()), owner,
          [](void* context) { delete static_cast<at::Tensor*>(context); }, device};
}

// Runs an operation's kernel for CPUs in the memory of its tensors.
class OnHost {
 public:
  void take_in(c10::IValue& value) {
    if (value.isTensor()) {
      value = taken_in(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(taken_in(tensor));
      value = c10::IValue{list};
    } else if (value.isOptionalTensorList()) {
      c10::List<c10::optional<at::Tensor>> list;
      for (const auto& any : value.toOptionalTensorList()) {
        const c10::optional<at::Tensor> tensor = any;
        list.push_back(tensor ? c10::optional<at::Tensor>{taken_in(*tensor)} : c10::nullopt);
      }
      value = c10::IValue{list};
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      const c10::Device device = value.toDevice();
      device_ = {c10::DeviceType::CUDA, device.has_index() ? device.index() : current_device()};
      gives_to_host_ = false;
      value = c10::Device{c10::DeviceType::CPU};
    } else if (value.isDevice()) {
      gives_to_host_ = true;
    }
  }

  void give_out(c10::IValue& value) const {
    if (value.isTensor()) {
      value = given_out(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(given_out(tensor));
      value = c10::IValue{list};
    }
  }

  // Of the tensors that were taken in last.
  [[nodiscard]] c10::Device device() const { return device_; }

  // What an operation has given a larger memory, or another shape, in place.
  void follow() const {
    for (const auto& [original, host] : pairs_) {
      auto* impl = original.unsafeGetTensorImpl();
      if (host.storage().data_ptr().get() != fake::host_address(original.storage().data_ptr().get())) {
        impl->unsafe_storage().set_data_ptr_noswap(memory_of(host, original.device()));
        impl->unsafe_storage().set_nbytes(host.storage().nbytes());
      }
      if (host.sizes() == original.sizes() && host.strides() == original.strides()) continue;
      impl->set_storage_offset(host.storage_offset());
      impl->set_sizes_and_strides(host.sizes(), host.strides());
    }
  }

 private:
  at::Tensor taken_in(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    device_ = tensor.device();
    pairs_.emplace_back(tensor, on_host(tensor));
    return pairs_.back().second;
  }

  [[nodiscard]] at::Tensor given_out(const at::Tensor& host) const {
    if (!host.defined() || gives_to_host_) return host;
    for (const auto& [original, taken] : pairs_) {
      if (host.is_same(taken)) return original;
    }
    if (!host.is_cpu()) return host;
    for (const auto& [original, taken] : pairs_) {
      if (host.storage().is_alias_of(taken.storage())) {
        return tensor_on(original.storage(), c10::DispatchKey::CUDA, host);
      }
    }
    c10::Storage storage{c10::Storage::use_byte_size_t{}, host.storage().nbytes(), memory_of(host, device_), nullptr,
                         false};
    return tensor_on(std::move(storage), c10::DispatchKey::CUDA, host);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_{};
  c10::Device device_{c10::DeviceType::CUDA, current_device()};
  bool gives_to_host_ = false;
};

void run_on_host(const c10::OperatorHandle& operation, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  OnHost host;
  const std::size_t first_argument = stack->size() - operation.schema().arguments().size();
  for (std::size_t at = first_argument; at < stack->size(); ++at) host.take_in((*stack)[at]);
  drain(host.device());
  operation.redispatchBoxed(c10::DispatchKeySet{c10::DispatchKey::CPU}, stack);
  host.follow();
  const std::size_t first_result = stack->size() - operation.schema().returns().size();
  for (std::size_t at = first_result; at < stack->size(); ++at) host.give_out((*stack)[at]);
}

C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

using at::CUDAHooksArgs;
using at::CUDAHooksInterface;
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

// These have one kernel for all devices, which asks for a part that CUDA has not got here.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace() != c10::optional<c10::string_view>{"aten"}) continue;
    const auto operation = c10::Dispatcher::singleton().findOp(name);
    if (!operation || !operation->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace
