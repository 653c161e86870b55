// SPDX-License-Identifier: MIT
// Keeps the weights of a model once for all ranks of the host, and cuts them into one piece per rank. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/detail/gradients.hpp"
#include "railyard/torch/detail/host_sums.hpp"
#include "railyard/torch/detail/update_digest.hpp"
#include "railyard/torch/detail/weight_refusals.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// The weights in the memory of a host's first rank that other processes look at. They are freed with the worker if
// nobody does any more; otherwise they stay as long as the process does, for a freed block is written to.
struct SharedWeightsOfWorker {
  static constexpr std::string_view extension_name = "torch.shared_weights";
  struct Kept {
    std::vector<at::Tensor> tensors{};
    std::atomic<std::uint32_t>* num_users = nullptr;
  };
  std::vector<Kept> kept{};

  SharedWeightsOfWorker() = default;
  SharedWeightsOfWorker(const SharedWeightsOfWorker&) = delete;
  SharedWeightsOfWorker& operator=(const SharedWeightsOfWorker&) = delete;
  ~SharedWeightsOfWorker() {
    drop_unused();
    for (Kept& one : kept) {
      for (at::Tensor& tensor : one.tensors) static_cast<void>(tensor.unsafeReleaseTensorImpl());
    }
  }

  // Frees the weights that nobody looks at any more.
  void drop_unused() {
    std::erase_if(kept, [](const Kept& one) {
      const bool is_unused = one.num_users->load(std::memory_order_acquire) == 0;
      if (is_unused) Heap::give_back(one.num_users);
      return is_unused;
    });
  }
};

// One optimizer's parameters, where the ranks of a host share memory. Rank 0's weights become everybody's, in one copy
// on each host; each rank has one piece of its host's to update. Two waits around each update keep anybody from reading
// weights that are half new.
class SharedWeights {
 public:
  // parameters: unique, of prepared models, shareable(). All ranks call it with the same.
  SharedWeights(Worker& worker, std::vector<at::Tensor> parameters)
      : worker_(&worker),
        exchange_(gradient_exchange_of(worker)),
        memory_(worker.host_memory()),
        parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) refuse_other_owner(worker, parameter, "to shared memory");
    if (memory_->num_hosts() > 1) send_to_hosts();
    share();
    cut();
  }
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  // Whoever uses the model further has it to itself.
  ~SharedWeights() {
    const at::NoGradGuard no_grad;
    try {
      const auto exchange = exchange_.lock();
      for (const auto& piece : pieces_) piece->weights.reset();
      for (at::Tensor& parameter : parameters_) {
        GradientSlot* slot = exchange == nullptr ? nullptr : exchange->find(parameter);
        const bool is_known = slot != nullptr && slot->storage.is_of(parameter);
        parameter.set_data(parameter.detach().clone());
        if (is_known) slot->storage = StorageMark{parameter};  // that it was moved, nobody need be told
      }
      if (num_users_ != nullptr) num_users_->fetch_sub(1, std::memory_order_release);
    } catch (...) {  // no memory: the weights stay shared, and nobody updates them any more
    }
  }

  [[nodiscard]] static bool shareable(const at::Tensor& parameter) {
    return parameter.is_cpu() && is_cuttable(parameter);
  }

  // Whether another host has the same weights and pieces, and tells of them.
  [[nodiscard]] bool is_copy() const noexcept { return memory_->host() > 0; }

  // Begins an update: from here to end_update() nobody reads the weights. The settings must be equal on all ranks.
  void begin_update(const UpdateSettings& settings) {
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (parameters_[index].data_ptr() != addresses_[index]) {
        refuse_replaced(*worker_, parameters_[index], "on the first rank of each host");
      }
      refuse_mixed(*worker_, parameters_[index], *pieces_[index]);
      pieces_[index]->is_spent = true;
    }
    // A digest, for a record is small and groups may be many.
    const std::uint64_t own = settings.hash();
    memory_->begin(Purpose::update, std::as_bytes(std::span{&own, 1}), 2, worker_->collective_deadline());
    for (int rank = 0; rank < memory_->size(); ++rank) {
      const auto record = memory_->record_of(rank);
      if (record.size() == sizeof own && std::memcmp(record.data(), &own, sizeof own) == 0) continue;
      memory_->add_step();
      const auto texts = show_texts(*memory_, settings.text());
      memory_->step({});
      throw ConfigError{compose(
          "optimizer.step() on rank {}/{}: the ranks have other options of the optimizer: {}; one copy of the weights "
          "is updated by all ranks, so set them alike everywhere",
          worker_->rank(), worker_->world_size(), difference_of_settings(texts, memory_->host() * memory_->size()))};
    }
  }
  void end_update() {
    memory_->step({});
    // What a backward pass has kept of the old weights is now recognised as outdated, as after any update in place.
    for (const at::Tensor& parameter : parameters_) torch::autograd::impl::bump_version(parameter);
  }

 private:
  static constexpr const char* no_room =
      "prepare_optimizer: there is no room left in the memory that the ranks share, which is as large as what was left "
      "when they started: give the job more (memory.max, ulimit -v)";

  void send_to_hosts() {
    std::vector<NamedTensor> weights;
    for (const at::Tensor& parameter : parameters_) weights.push_back({.tensor = parameter});
    const at::NoGradGuard no_grad;
    broadcast_all(*worker_, weights);
  }

  // Threads hand over the tensor itself, which then lives as long as its last owner; processes its place.
  void share() {
    const at::NoGradGuard no_grad;
    const int here = 0;
    const bool sees_all = memory_->place_of(&here) != 0;
    const std::size_t table_bytes = parameters_.size() * sizeof(std::uint64_t);
    auto* table = static_cast<std::uint64_t*>(memory_->heap()->allocate(std::max<std::size_t>(table_bytes, 1)));
    if (table == nullptr) throw Error{no_room};
    for (std::size_t index = 0; index < parameters_.size() && memory_->rank() == 0; ++index) {
      at::Tensor& parameter = parameters_[index];
      table[index] = sees_all ? reinterpret_cast<std::uintptr_t>(&parameter) : place_for_all(parameter);
    }
    if (!sees_all && memory_->rank() == 0) num_users_ = keep_for_others();
    std::array<std::uint64_t, 2> places{memory_->place_of(table),
                                        num_users_ == nullptr ? 0 : memory_->place_of(num_users_)};
    memory_->begin(Purpose::weights, std::as_bytes(std::span{places}), 2, worker_->collective_deadline());
    if (memory_->rank() != 0) {
      std::memcpy(places.data(), memory_->record_of(0).data(), sizeof places);
      const auto* theirs = reinterpret_cast<const std::uint64_t*>(memory_->at(0, places[0]));
      if (places[1] != 0) num_users_ = reinterpret_cast<std::atomic<std::uint32_t>*>(memory_->at(0, places[1]));
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        at::Tensor& parameter = parameters_[index];
        if (sees_all) {
          parameter.set_data(reinterpret_cast<const at::Tensor*>(theirs[index])->detach());
        } else {
          parameter.set_data(at::from_blob(memory_->at(0, theirs[index]), parameter.sizes(), parameter.strides(),
                                           at::TensorOptions{}.dtype(parameter.scalar_type())));
        }
      }
    }
    memory_->step({});
    memory_->heap()->deallocate(table);
    memory_->heap()->trim();  // of what the private weights have taken
    for (const at::Tensor& parameter : parameters_) addresses_.push_back(parameter.data_ptr());
  }

  // Moves a weight of the host's first rank to where all see it, if it is not there.
  [[nodiscard]] std::uint64_t place_for_all(at::Tensor& parameter) {
    if (memory_->place_of(parameter.data_ptr()) == 0) {
      const std::size_t size_bytes =
          static_cast<std::size_t>(parameter.numel()) * static_cast<std::size_t>(parameter.element_size());
      void* memory = memory_->heap()->allocate(size_bytes);
      if (memory == nullptr) throw Error{no_room};
      const at::Tensor moved = at::from_blob(memory, parameter.sizes(), parameter.strides(), Heap::give_back,
                                             at::TensorOptions{}.dtype(parameter.scalar_type()));
      moved.copy_(parameter.detach());
      parameter.set_data(moved);
    }
    return memory_->place_of(parameter.data_ptr());
  }

  // Makes the weights of the host's first rank stay while others look at them, and returns the count of who does.
  [[nodiscard]] std::atomic<std::uint32_t>* keep_for_others() {
    void* memory = memory_->heap()->allocate(sizeof(std::atomic<std::uint32_t>));
    if (memory == nullptr) throw Error{no_room};
    auto* num_users = ::new (memory) std::atomic<std::uint32_t>{static_cast<std::uint32_t>(memory_->size())};
    SharedWeightsOfWorker::Kept kept{.num_users = num_users};
    for (const at::Tensor& parameter : parameters_) kept.tensors.push_back(parameter.detach());
    auto& all = worker_->extension<SharedWeightsOfWorker>();
    all.drop_unused();
    all.kept.push_back(std::move(kept));
    return num_users;
  }

  void cut() {
    std::vector<std::int64_t> counts;
    for (const at::Tensor& parameter : parameters_) counts.push_back(parameter.numel());
    RankPart part{counts, memory_->rank(), memory_->size()};
    for (const at::Tensor& parameter : parameters_) {
      auto piece = std::make_shared<GradientPiece>();
      piece->is_copy = is_copy();
      std::tie(piece->begin, piece->end) = part.next(parameter.numel());
      if (!piece->is_empty()) {
        piece->weights =
            parameter.detach().as_strided({piece->end - piece->begin}, {1}, parameter.storage_offset() + piece->begin);
      }
      GradientSlot& slot = *gradient_exchange_of(*worker_)->find(parameter);
      slot.piece = piece;
      slot.storage = StorageMark{parameter};  // all ranks have moved there together
      pieces_.push_back(std::move(piece));
    }
  }

  Worker* worker_;
  std::weak_ptr<GradientExchange> exchange_;
  HostMemory* memory_;
  std::vector<at::Tensor> parameters_;
  std::vector<const void*> addresses_{};
  std::atomic<std::uint32_t>* num_users_ =
      nullptr;  // in the first rank's memory; among threads, which own weights, none
  std::vector<std::shared_ptr<GradientPiece>> pieces_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1
