// SPDX-License-Identifier: MIT
// Computes blocks on several threads and gives them in order. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

// One block to be computed, or several, one after the other.
struct Work {
  std::function<Block()> compute{};
  Place place{};
  MemoryShare input{};  // of what it is computed from
  // The bytes that further blocks are computed from, by the same function; nothing where there are none. Asked for
  // after each block.
  std::function<std::optional<std::size_t>()> rest = {};
  bool continues = false;  // its place is that of the work before it, whose samples come first
};

// Asks for work ahead of what is taken from it, while there is memory for what comes out. One block is always under
// way: with less nothing would move.
class OrderedStage final : public ChunkStream {
 public:
  // plan() gives the next piece of work, or nothing at the end; called by the thread that calls next().
  // keeps_empty: blocks of no samples are given too, one for each piece of work.
  OrderedStage(const Scope& scope, std::function<std::optional<Work>()> plan, bool keeps_empty = false)
      : scope_(scope), plan_(std::move(plan)), keeps_empty_(keeps_empty) {}
  ~OrderedStage() override {
    for (const Pending& pending : pending_) scope_.pool->cancel(pending.task);
  }

  [[nodiscard]] Chunk next() override {
    while (!scope_.pool->has_ended()) {
      fill();
      if (pending_.empty() && failure_) std::rethrow_exception(failure_);
      if (pending_.empty()) return {};
      Pending first = std::move(pending_.front());
      pending_.pop_front();
      Block block = scope_.pool->wait(*first.task);
      const std::size_t bytes = bytes_of(block);
      largest_ = std::max({largest_, bytes, std::size_t{1}});
      first.share.resize(bytes);
      if (!first.continues) given_ = 0;
      const std::uint64_t before = std::exchange(given_, given_ + block.rows());
      go_on(first);
      if (!block.empty() || keeps_empty_) {
        return {std::move(block), std::move(first.place), std::move(first.share), before};
      }
    }
    return {};
  }

 private:
  struct Pending {
    std::shared_ptr<Task> task{};
    Place place{};
    MemoryShare share{};               // of the input, and room for the block
    std::function<Block()> compute{};  // of further blocks
    std::function<std::optional<std::size_t>()> rest{};
    bool continues = false;
  };

  // Has the next block of the same work computed, before all others.
  void go_on(Pending& done) {
    if (!done.rest) return;
    const auto rest = done.rest();
    if (!rest) return;
    auto task = scope_.pool->submit(done.compute);
    MemoryShare share{*scope_.budget, *rest + largest_};
    pending_.push_front(
        {std::move(task), done.place, std::move(share), std::move(done.compute), std::move(done.rest), true});
  }

  void fill() {
    while (!is_planned_ && (pending_.empty() || may_read_ahead())) {
      std::optional<Work> work;
      try {
        work = plan_();
      } catch (...) {  // which comes after all that was planned before
        failure_ = std::current_exception();
      }
      if (!work) {
        is_planned_ = true;
        return;
      }
      const std::size_t input = work->input.bytes();
      work->input = {};
      MemoryShare share{*scope_.budget, input + std::max(input, largest_)};
      auto again = work->rest ? work->compute : nullptr;
      pending_.push_back({scope_.pool->submit(std::move(work->compute)), std::move(work->place), std::move(share),
                          std::move(again), std::move(work->rest), work->continues});
    }
  }

  // Not before it is known how large blocks are.
  [[nodiscard]] bool may_read_ahead() const noexcept {
    return largest_ > 0 && pending_.size() <= 2 * scope_.pool->num_helpers() && scope_.budget->has_room(2 * largest_);
  }

  Scope scope_;
  std::function<std::optional<Work>()> plan_;
  bool keeps_empty_;
  bool is_planned_ = false;
  std::exception_ptr failure_{};  // of the plan
  std::size_t largest_ = 0;       // block that came out
  std::uint64_t given_ = 0;       // samples since the last place
  std::deque<Pending> pending_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
