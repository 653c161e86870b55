// SPDX-License-Identifier: MIT
// The contestant of this library: SharedMemory as users get it.
#include "contestants.hpp"

#include <railyard/collectives/shared_memory.hpp>

#include <new>

namespace ry = railyard;

namespace bench {
namespace {

class OurMember : public Member {
 public:
  OurMember(ry::Store& store, const ry::World& world, Memory memory)
      : backend_(ry::SharedMemory::connect({}, world, store, ry::Deadline::after(std::chrono::seconds{30}))),
        memory_(memory) {}
  OurMember(const OurMember&) = delete;
  OurMember& operator=(const OurMember&) = delete;
  ~OurMember() override { release(); }

  float* buffer(std::size_t count) override {
    if (memory_ == Memory::own) return own_.take(count);
    release();
    from_arena_ = backend_->heap()->allocate(count * sizeof(float));
    if (from_arena_ == nullptr) throw std::bad_alloc{};
    return static_cast<float*>(from_arena_);
  }

  void all_reduce(float* data, std::size_t count) override {
    backend_->all_reduce({data, count, ry::Dtype::f32, {}}, ry::ReduceOp::sum, call_);
  }

 private:
  void release() {
    if (from_arena_ != nullptr) backend_->heap()->deallocate(from_arena_);
    from_arena_ = nullptr;
  }

  std::unique_ptr<ry::SharedMemory> backend_;
  Memory memory_;
  OwnMemory own_;
  void* from_arena_ = nullptr;
  // One deadline for all calls: to take it anew each time would cost a third of the smallest.
  ry::Call call_{.deadline = ry::Deadline::after(std::chrono::hours{1})};
};

}  // namespace

std::unique_ptr<Member> join_ours(ry::Store& store, int rank, int size, Memory memory) {
  const ry::World world{.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  return std::make_unique<OurMember>(store, world, memory);
}

}  // namespace bench
