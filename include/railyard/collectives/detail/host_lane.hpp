// SPDX-License-Identifier: MIT
// One line of exchanges through the memory that the ranks of a host share. Collectives room.
#pragma once

#include "railyard/collectives/detail/meeting.hpp"
#include "railyard/collectives/detail/shared_group.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/heap.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the memory of a group, with one meeting's steps. What it is made of outlives it.
class HostLane final : public HostMemory {
 public:
  HostLane(const SharedGroup& group, Meeting& meeting, const std::shared_ptr<Heap>& heap, int rank, HostMemory* side)
      : group_(&group), meeting_(&meeting), heap_(heap), rank_(rank), side_(side) {}

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return group_->layout.world_size; }
  [[nodiscard]] int host() const noexcept override { return 0; }
  [[nodiscard]] int num_hosts() const noexcept override { return 1; }
  void add_between_hosts(const Buffer& /*data*/, const Deadline& /*deadline*/) override {}
  [[nodiscard]] std::future<void> begin_between_hosts(const Buffer& /*data*/, const Deadline& /*deadline*/) override {
    std::promise<void> done;
    done.set_value();
    return done.get_future();
  }

  void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) override {
    signature_.root = static_cast<std::int32_t>(purpose);
    meeting_->throw_if_lost(signature_);
    deadline_ = deadline;
    running_.first_shared = group_->is_one_process ? meeting_->step() + 1 : 0;
    running_.last_shared = group_->is_one_process ? meeting_->step() + static_cast<std::uint64_t>(num_steps) : 0;
    show(record);
    meeting_->enter(running_);
  }
  void add_step() noexcept override {
    if (group_->is_one_process) ++running_.last_shared;
  }
  void step(std::span<const std::byte> record) override {
    show(record);
    deadline_ = deadline_.renewed();  // there may be a part of a backward pass between two steps
    meeting_->take_step(running_);
    if (meeting_->step() < running_.last_shared) meeting_->throw_if_any_gave_up(running_);
  }
  void rest() noexcept override { meeting_->rest(); }
  [[nodiscard]] std::span<const std::byte> record_of(int rank) const override {
    const Post& post = meeting_->post_of(rank);
    return {post.payload.data(), static_cast<std::size_t>(post.place)};
  }

  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept override {
    if (group_->is_one_process) return reinterpret_cast<std::uintptr_t>(memory);
    if (!heap_->contains(memory)) return 0;
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - group_->base(rank_));
  }
  [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept override {
    return group_->is_one_process ? reinterpret_cast<std::byte*>(place) : group_->base(rank) + place;
  }
  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept override { return heap_; }

  [[nodiscard]] HostMemory* side(const Deadline& /*deadline*/) override { return side_; }
  void abort(std::string_view reason) noexcept override {
    try {
      meeting_->abort(reason);
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }
  void withdraw() noexcept override { meeting_->withdraw(running_); }

 private:
  void show(std::span<const std::byte> record) {
    if (record.size() > max_record_bytes) {
      throw ConfigError{
          compose("an exchange on rank {} shows {} bytes, of at most {}", rank_, record.size(), max_record_bytes)};
    }
    Post& post = meeting_->next_post();
    post.place = record.size();
    if (!record.empty()) std::memcpy(post.payload.data(), record.data(), record.size());
  }

  const SharedGroup* group_;
  Meeting* meeting_;
  std::shared_ptr<Heap> heap_;
  int rank_;
  HostMemory* side_;
  Signature signature_{.operation = Operation::exchange};
  Deadline deadline_ = Deadline::never();  // of the exchange that begin() has begun
  Meeting::Running running_{.signature = signature_, .deadline = deadline_};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
