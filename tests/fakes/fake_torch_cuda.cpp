// SPDX-License-Identifier: MIT
// A FAKE of LibTorch's part for CUDA, for tests without a GPU: in a LibTorch that was built for CPUs there are then
// tensors on CUDA devices, on the fake CUDA runtime beside it. Their memory is the host's, and whatever is computed on
// them is computed by LibTorch's own kernels for CPUs, at once, when all that is on the current stream has been done.
// Copies that need not be waited for are made by the stream itself. Backward passes run on a thread for each device, as
// with the real one. Opening the library is all that a test has to do.
// RAILYARD_FAKE_CUDA_DEVICES says how many devices there are (default 8).
#include "fake_address.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/maximum.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

extern "C" int cudaGetDevice(int* device);
extern "C" int cudaSetDevice(int device);
extern "C" int cudaGetDeviceCount(int* count);
extern "C" int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data);
extern "C" int cudaHostAlloc(void** memory, std::size_t size_bytes, unsigned flags);
extern "C" int cudaFreeHost(void* memory);
extern "C" int cudaStreamCreateWithFlags(void** stream, unsigned flags);
extern "C" int cudaStreamWaitEvent(void* stream, void* event, unsigned flags);
extern "C" int cudaStreamQuery(void* stream);
extern "C" int cudaEventCreateWithFlags(void** event, unsigned flags);
extern "C" int cudaEventRecord(void* event, void* stream);
extern "C" int cudaEventQuery(void* event);
extern "C" int cudaEventDestroy(void* event);
extern "C" void fake_cuda_use(void* stream, const void* memory, std::size_t size_bytes, int is_write);
extern "C" void fake_cuda_release(const void* memory, std::size_t size_bytes);
extern "C" void fake_cuda_drain(void* stream);
extern "C" void fake_cuda_wait(void* stream);
extern "C" int fake_cuda_is_pinned(const void* memory);

namespace {

c10::DeviceIndex current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return static_cast<c10::DeviceIndex>(device);
}

// Streams beside the default one, whose number is 0 on every device. As with the real LibTorch some are made for each
// device, and given out in turn.
class StreamPool {
 public:
  [[nodiscard]] c10::Stream next(c10::Device device) {
    const std::lock_guard lock{mutex_};
    auto& number = next_[static_cast<std::size_t>(device.index())];
    const auto id = static_cast<c10::StreamId>(1 + number++ % per_device);
    return c10::Stream{c10::Stream::UNSAFE, device, id};
  }
  // As CUDA knows it, on the thread's current device.
  [[nodiscard]] void* handle_of(const c10::Stream& stream) {
    if (stream.id() == 0) return nullptr;
    const std::lock_guard lock{mutex_};
    const auto at = static_cast<std::size_t>(stream.device_index()) * numbers + static_cast<std::size_t>(stream.id());
    handles_.resize(std::max(handles_.size(), at + 1));
    if (handles_[at] == nullptr) cudaStreamCreateWithFlags(&handles_[at], 1);
    return handles_[at];
  }
  [[nodiscard]] std::vector<void*> all_of(std::size_t device) {
    const std::lock_guard lock{mutex_};
    std::vector<void*> all{nullptr};
    for (std::size_t at = device * numbers + 1; at < std::min((device + 1) * numbers, handles_.size()); ++at) {
      if (handles_[at] != nullptr) all.push_back(handles_[at]);
    }
    return all;
  }

 private:
  static constexpr std::size_t per_device = 32;
  static constexpr std::size_t numbers = per_device + 1;  // the default one's among them

  std::mutex mutex_;
  std::array<std::size_t, 64> next_{};
  std::vector<void*> handles_;
};
StreamPool& streams() {
  static auto& pool = *new StreamPool;
  return pool;
}

// By device.
std::array<c10::StreamId, 64>& current_streams() {
  static thread_local std::array<c10::StreamId, 64> current{};
  return current;
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
    const c10::Device of = device.has_index() ? device : c10::Device{c10::DeviceType::CUDA, current_device()};
    return c10::Stream{c10::Stream::UNSAFE, of, current_streams()[static_cast<std::size_t>(of.index())]};
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream{c10::Stream::DEFAULT, device};
  }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_high_priority*/) const override {
    return streams().next(device);
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    const c10::Stream former = getStream(stream.device());
    current_streams()[static_cast<std::size_t>(stream.device_index())] = stream.id();
    return former;
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    const On on{stream.device()};
    if (*event == nullptr) cudaEventCreateWithFlags(event, 2);
    cudaEventRecord(*event, streams().handle_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const On on{stream.device()};
    cudaStreamWaitEvent(streams().handle_of(stream), event, 0);
  }
  [[nodiscard]] bool queryEvent(void* event) const override { return cudaEventQuery(event) == 0; }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override { cudaEventDestroy(event); }
  [[nodiscard]] bool queryStream(const c10::Stream& stream) const override {
    const On on{stream.device()};
    return cudaStreamQuery(streams().handle_of(stream)) == 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const On on{stream.device()};
    fake_cuda_wait(streams().handle_of(stream));
  }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    return cudaGetDeviceCount(&count) == 0 ? static_cast<c10::DeviceIndex>(count) : c10::DeviceIndex{0};
  }

  // Makes a device the current one for a while.
  struct On {
    explicit On(c10::Device device) : former(FakeGuard{}.exchangeDevice(device)) {}
    On(const On&) = delete;
    On& operator=(const On&) = delete;
    ~On() { FakeGuard{}.setDevice(former); }
    c10::Device former;
  };
};

// Memory that copies on their way still use, of which a program tells by letting go of its tensors alone: it is given
// out again when they have ended.
class PinnedUses {
 public:
  void begin(void* memory) {
    const std::lock_guard lock{mutex_};
    ++uses_[memory].count;
  }
  void end(void* memory) {
    const std::lock_guard lock{mutex_};
    const auto found = uses_.find(memory);
    if (--found->second.count > 0) return;
    if (found->second.is_given_back) cudaFreeHost(memory);
    uses_.erase(found);
  }
  void give_back(void* memory) {
    const std::lock_guard lock{mutex_};
    const auto found = uses_.find(memory);
    if (found == uses_.end()) {
      cudaFreeHost(memory);
    } else {
      found->second.is_given_back = true;
    }
  }

 private:
  struct Use {
    int count = 0;
    bool is_given_back = false;
  };

  std::mutex mutex_;
  std::map<void*, Use> uses_;
};
PinnedUses& pinned_uses() {
  static auto& uses = *new PinnedUses;
  return uses;
}

struct PinnedMemory final : c10::Allocator {
  [[nodiscard]] static at::DataPtr taken(std::size_t size_bytes) {
    void* memory = nullptr;
    cudaHostAlloc(&memory, size_bytes, 0);
    return {memory, memory, &give_back, c10::Device{c10::DeviceType::CPU}};
  }
  [[nodiscard]] at::DataPtr allocate(std::size_t size_bytes) const override { return taken(size_bytes); }
  [[nodiscard]] at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  static void give_back(void* memory) { pinned_uses().give_back(memory); }
};

// By which LibTorch knows that there are devices. It finds it by its name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs /*none*/) {}
  void initCUDA() const override {}
  [[nodiscard]] bool hasCUDA() const override { return getNumGPUs() > 0; }
  [[nodiscard]] int getNumGPUs() const override { return FakeGuard{}.deviceCount(); }
  [[nodiscard]] std::int64_t current_device() const override { return ::current_device(); }
  [[nodiscard]] bool hasPrimaryContext(std::int64_t /*device*/) const override { return true; }
  void deviceSynchronize(std::int64_t device) const override {
    const FakeGuard::On on{{c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}};
    for (void* const stream : streams().all_of(static_cast<std::size_t>(device))) fake_cuda_wait(stream);
  }
  [[nodiscard]] at::Allocator* getPinnedMemoryAllocator() const override {
    static auto& allocator = *new PinnedMemory;
    return &allocator;
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
  const auto give_back = [](void* context) {
    const std::unique_ptr<at::Tensor> tensor{static_cast<at::Tensor*>(context)};
    fake_cuda_release(tensor->storage().data_ptr().get(), tensor->storage().nbytes());
  };
  return {fake::device_address(host.storage().data_ptr().get()), owner, give_back, device};
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

// Says to the checker of order what memory of the device an operation uses on a stream.
void tell_use(void* stream, const at::Tensor& tensor, bool is_write) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage() || tensor.numel() == 0) return;
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  fake_cuda_use(stream, tensor.data_ptr(), static_cast<std::size_t>(last + 1) * tensor.element_size(),
                is_write ? 1 : 0);
}
void tell_use(void* stream, const c10::IValue& value, bool is_write) {
  if (value.isTensor()) return tell_use(stream, value.toTensor(), is_write);
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tell_use(stream, tensor, is_write);
  } else if (value.isOptionalTensorList()) {
    for (const auto& any : value.toOptionalTensorList()) {
      const c10::optional<at::Tensor> tensor = any;
      if (tensor) tell_use(stream, *tensor, is_write);
    }
  }
}

// Whether the host has a result of the operation, which a real device would be waited for.
bool gives_to_host(const c10::OperatorHandle& operation, const torch::jit::Stack& results) {
  const auto& returns = operation.schema().returns();
  const std::size_t first = results.size() - returns.size();
  return std::any_of(results.begin() + static_cast<std::ptrdiff_t>(first), results.end(), [](const c10::IValue& value) {
    return value.isScalar() || value.isBool() ||
           (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu());
  });
}

void run_on_host(const c10::OperatorHandle& operation, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  OnHost host;
  const auto& arguments = operation.schema().arguments();
  const std::size_t first_argument = stack->size() - arguments.size();
  const torch::jit::Stack given{stack->begin() + static_cast<std::ptrdiff_t>(first_argument), stack->end()};
  for (std::size_t at = first_argument; at < stack->size(); ++at) host.take_in((*stack)[at]);
  const FakeGuard::On on{host.device()};
  void* const stream = streams().handle_of(FakeGuard{}.getStream(host.device()));
  const auto& returns = operation.schema().returns();
  const bool is_view = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& one) {
    return one.alias_info() != nullptr && !one.alias_info()->isWrite();
  });
  const bool is_queued = !is_view && operation.schema().name().rfind("aten::empty", 0) != 0;  // as a kernel
  for (std::size_t at = 0; at < given.size() && !is_view; ++at) {
    const auto* alias = arguments[at].alias_info();
    tell_use(stream, given[at], alias != nullptr && alias->isWrite());
  }
  if (is_queued) fake_cuda_drain(stream);
  operation.redispatchBoxed(c10::DispatchKeySet{c10::DispatchKey::CPU}, stack);
  host.follow();
  const std::size_t first_result = stack->size() - operation.schema().returns().size();
  for (std::size_t at = first_result; at < stack->size(); ++at) {
    host.give_out((*stack)[at]);
    if (!is_view) tell_use(stream, (*stack)[at], true);
  }
  if (gives_to_host(operation, *stack)) fake_cuda_wait(stream);
}

// From one tensor to another. The stream itself copies what the host does not wait for.
at::Tensor& copy_by_stream(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const c10::Device device = to.is_cuda() ? to.device() : from.device();
  const FakeGuard::On on{device};
  void* const stream = streams().handle_of(FakeGuard{}.getStream(device));
  const at::Tensor on_cpu_to = to.is_cuda() ? on_host(to) : to;
  const at::Tensor on_cpu_from = from.is_cuda() ? on_host(from) : from;
  const bool is_between = to.is_cuda() != from.is_cuda();
  const at::Tensor& host_side = to.is_cuda() ? from : to;
  const bool is_pinned = is_between && host_side.has_storage() && fake_cuda_is_pinned(host_side.data_ptr()) != 0;
  tell_use(stream, from, false);
  tell_use(stream, to, true);
  const bool is_queued = is_between && non_blocking && is_pinned;
  void* const pinned = is_queued ? host_side.storage().data_ptr().get() : nullptr;
  if (is_queued) pinned_uses().begin(pinned);
  // What is queued has the memory of the host's side, and not the tensor: to use that again too early must show.
  const at::Tensor kept = is_queued ? (to.is_cuda() ? to : from) : host_side;
  auto* const copy =
      new std::function<void()>{[kept, other = is_queued ? at::Tensor{} : (to.is_cuda() ? to : from),
                                 on_cpu_to = is_queued && !to.is_cuda() ? on_host(to) : on_cpu_to,
                                 on_cpu_from = is_queued && !from.is_cuda() ? on_host(from) : on_cpu_from, pinned] {
        const c10::impl::ExcludeDispatchKeyGuard no_autograd{c10::autograd_dispatch_keyset_with_ADInplaceOrView};
        on_cpu_to.copy_(on_cpu_from);
        if (pinned != nullptr) pinned_uses().end(pinned);
      }};
  const auto run = [](void* task) {
    const std::unique_ptr<std::function<void()>> owned{static_cast<std::function<void()>*>(task)};
    (*owned)();
  };
  cudaLaunchHostFunc(stream, run, copy);
  if (is_queued) return to;
  if (is_between && !(non_blocking && to.is_cuda())) {
    fake_cuda_wait(stream);
  } else {
    fake_cuda_drain(stream);  // the kernel of a copy on the device; or memory that is pageable has been read
  }
  return to;
}

// LibTorch 1.13 has it for devices alone.
void check_and_unscale(at::TensorList gradients, at::Tensor& found, const at::Tensor& factor) {
  for (const at::Tensor& gradient : gradients) {
    found.copy_(at::maximum(found, gradient.isfinite().logical_not().any().to(found.scalar_type())));
    gradient.mul_(factor);
  }
}

bool is_pinned(const at::Tensor& tensor, c10::optional<c10::Device> /*device*/) {
  return tensor.is_cpu() && tensor.has_storage() && fake_cuda_is_pinned(tensor.data_ptr()) != 0;
}
at::Tensor pin(const at::Tensor& tensor, c10::optional<c10::Device> /*device*/) {
  const std::size_t size_bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  c10::Storage storage{c10::Storage::use_byte_size_t{}, size_bytes, PinnedMemory::taken(size_bytes), nullptr, false};
  const at::Tensor dense = tensor.contiguous();
  const at::Tensor pinned = tensor_on(std::move(storage), c10::DispatchKey::CPU, dense);
  pinned.unsafeGetTensorImpl()->set_storage_offset(0);
  pinned.copy_(dense);
  return pinned;
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
    if (name.name == "aten::_to_copy") continue;  // makes a tensor and calls copy_
    if (name.name == "aten::copy_" || name.name == "aten::is_pinned" || name.name == "aten::_pin_memory") continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
  library.impl("copy_", &copy_by_stream);
  library.impl("_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale);
  library.impl("is_pinned", &is_pinned);
  library.impl("_pin_memory", &pin);
}

}  // namespace

// As libc10_cuda has it: what a stream is to CUDA.
namespace c10::cuda {
struct CUDAStream {
  c10::Stream stream_;
  [[nodiscard]] void* stream() const;
};
void* CUDAStream::stream() const { return streams().handle_of(stream_); }
}  // namespace c10::cuda
