// SPDX-License-Identifier: MIT
// Takes batches of the host to a GPU, beside what is computed there. Needs none of CUDA's headers. Torch room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Whether batches for this device pass through pinned memory.
[[nodiscard]] inline bool takes_pinned_memory(at::Device device) {
  return device.is_cuda() && c10::impl::hasDeviceGuardImpl(device.type());
}

// Has another stream be the current one of its GPU, on this thread.
class StreamGuard {
 public:
  explicit StreamGuard(c10::Stream stream)
      : guard_(c10::impl::getDeviceGuardImpl(stream.device_type())), former_(guard_->exchangeStream(stream)) {}
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
  ~StreamGuard() { guard_->exchangeStream(former_); }

 private:
  const c10::impl::DeviceGuardImplInterface* guard_;
  c10::Stream former_;
};

// Copies one batch at a time from pinned memory, on a stream of its own. Its memory on the GPU is of the stream that
// will use it, as any tensor's there: what is queued on that stream when it is taken may still be at work in it. So the
// copy waits for that, and for nothing that is queued later. Who uses the batch waits for the copy, on the GPU: the
// host waits for neither. Pinned memory goes back to LibTorch, which gives it out again when the copy has read it. Used
// by one thread.
class GpuCopies {
 public:
  using Batch = std::array<at::Tensor, 2>;  // data and target, of which either may be undefined

  // bound_bytes: of pinned memory whose copy has not ended; two batches may have more.
  GpuCopies(at::Device gpu, std::size_t bound_bytes)
      : guard_(c10::impl::getDeviceGuardImpl(gpu.type())), gpu_(gpu), bound_bytes_(bound_bytes) {}
  GpuCopies(const GpuCopies&) = delete;
  GpuCopies& operator=(const GpuCopies&) = delete;
  ~GpuCopies() { drop(); }

  // Whether wait_for_room() would return at once.
  [[nodiscard]] bool has_room() {
    const std::size_t kept = under_way_ ? 1 : 0;  // the last, which take() will ask for
    while (in_flight_.size() > kept && in_flight_.front().is_copied.query()) {
      bytes_in_flight_ -= in_flight_.front().bytes;
      spare_.push_back(std::move(in_flight_.front().is_copied));
      in_flight_.pop_front();
    }
    return in_flight_.size() < 2 || bytes_in_flight_ < bound_bytes_;
  }

  // Waits while too much pinned memory is under way: the GPU then has two batches to go on with. Throws: DataError when
  // the deadline passes.
  void wait_for_room(const Deadline& deadline) {
    AwakeTime time;
    while (!has_room()) {
      if (time.is_over(deadline)) {
        throw DataError{
            compose("{} has not copied in {} the {} bytes of the last {} batches that it was given, so there is no "
                    "memory for another: what was queued on it before does not end",
                    gpu_.str(), deadline.budget_text(), bytes_in_flight_, in_flight_.size())};
      }
      std::this_thread::sleep_for(std::chrono::microseconds{100});
    }
  }

  // Begins to copy, and puts tensors on the GPU in the place of those of the host, which may not be used before take().
  // is_pinned: those are in pinned memory that nobody else has.
  void start(Batch& batch, bool is_pinned) {
    const c10::InferenceMode normal{false};  // memory may be taken in one mode and written to in another
    Batch staged;
    for (std::size_t at = 0; at < batch.size(); ++at) {
      if (is_plain(batch[at])) {
        staged[at] = is_pinned ? batch[at] : pinned(batch[at]);
      } else if (batch[at].defined() && batch[at].device() != gpu_) {
        batch[at] = batch[at].to(gpu_);
      }
    }
    last_ = layouts_of(staged);
    std::optional<Room> room = std::exchange(room_, std::nullopt);
    if (!last_[0] && !last_[1]) return;
    if (!room || room->layouts != last_) room.emplace(take_room());
    copy(staged, *room);
    for (std::size_t at = 0; at < batch.size(); ++at) {
      if (staged[at].defined()) batch[at] = room->tensors[at];
    }
    under_way_.emplace(UnderWay{std::move(room->tensors), room->stream});
  }

  // Gives out the batch that was begun last: what is queued on the current stream from now on finds it there.
  void take() {
    if (!under_way_) return;
    const c10::Stream current = guard_->getStream(gpu_);
    in_flight_.back().is_copied.block(current);
    for (const at::Tensor& tensor : under_way_->tensors) {
      if (tensor.defined() && current != under_way_->stream) {
        guard_->recordDataPtrOnStream(tensor.storage().data_ptr(), current);
      }
    }
    under_way_.reset();
  }

  // Takes memory for another batch like the last, so that its copy need not wait for what is queued from now on.
  void reserve() {
    if (!last_[0] && !last_[1]) return;
    const c10::InferenceMode normal{false};
    room_.emplace(take_room());
  }

  // Lets go of what was not given out.
  void drop() noexcept {
    try {
      // Whatever gets that memory next is queued on its stream.
      if (under_way_) in_flight_.back().is_copied.block(under_way_->stream);
    } catch (...) {  // of a device that does nothing any more
    }
    under_way_.reset();
    room_.reset();
    last_ = {};
  }

 private:
  struct Layout {
    std::vector<std::int64_t> sizes{};
    std::vector<std::int64_t> strides{};
    at::ScalarType type = at::ScalarType::Float;

    bool operator==(const Layout&) const = default;
  };
  using Layouts = std::array<std::optional<Layout>, 2>;  // of those that are copied

  // Is memory on the GPU that nothing uses once the event has come.
  struct Room {
    Layouts layouts{};
    Batch tensors{};
    c10::Stream stream;
    c10::Event is_free;
  };
  struct UnderWay {
    Batch tensors{};
    c10::Stream stream;
  };
  struct InFlight {
    c10::Event is_copied;
    std::size_t bytes = 0;
  };

  // Others are left to LibTorch.
  [[nodiscard]] static bool is_plain(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
           !tensor.requires_grad();
  }
  [[nodiscard]] static at::Tensor pinned(const at::Tensor& tensor) {
    at::Tensor copy = at::empty_like(tensor, tensor.options().pinned_memory(true));
    copy.copy_(tensor);
    return copy;
  }
  [[nodiscard]] static Layouts layouts_of(const Batch& batch) {
    Layouts layouts;
    for (std::size_t at = 0; at < batch.size(); ++at) {
      const at::Tensor& tensor = batch[at];
      if (!tensor.defined()) continue;
      layouts[at] = Layout{tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
    }
    return layouts;
  }

  [[nodiscard]] Room take_room() {
    Room room{.layouts = last_, .tensors = {}, .stream = guard_->getStream(gpu_), .is_free = spare_event()};
    for (std::size_t at = 0; at < last_.size(); ++at) {
      if (!last_[at]) continue;
      room.tensors[at] =
          at::empty_strided(last_[at]->sizes, last_[at]->strides, at::TensorOptions(last_[at]->type).device(gpu_));
    }
    room.is_free.record(room.stream);
    return room;
  }

  void copy(const Batch& staged, Room& room) {
    if (!stream_) stream_ = guard_->getStreamFromGlobalPool(gpu_, false);
    InFlight copies{.is_copied = spare_event(), .bytes = 0};
    room.is_free.block(*stream_);
    {
      const StreamGuard on_its_own{*stream_};
      for (std::size_t at = 0; at < staged.size(); ++at) {
        if (!staged[at].defined()) continue;
        room.tensors[at].copy_(staged[at], /*non_blocking=*/true);
        copies.bytes += staged[at].nbytes();
      }
    }
    copies.is_copied.record(*stream_);
    bytes_in_flight_ += copies.bytes;
    in_flight_.push_back(std::move(copies));
    spare_.push_back(std::move(room.is_free));
  }

  [[nodiscard]] c10::Event spare_event() {
    if (spare_.empty()) return c10::Event{gpu_.type()};
    c10::Event event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }

  const c10::impl::DeviceGuardImplInterface* guard_;
  at::Device gpu_;
  std::size_t bound_bytes_;
  std::optional<c10::Stream> stream_{};
  std::vector<c10::Event> spare_{};
  Layouts last_{};
  std::optional<Room> room_{};           // for the next batch
  std::optional<UnderWay> under_way_{};  // between start() and take()
  std::deque<InFlight> in_flight_{};
  std::size_t bytes_in_flight_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
