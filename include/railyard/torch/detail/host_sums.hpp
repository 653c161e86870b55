// SPDX-License-Identifier: MIT
// Adds up the gradients that the ranks of a host have shown each other, and those of several hosts. Torch room.
#pragma once

#include "railyard/torch/detail/gradient_slot.hpp"

#include "railyard/collectives/detail/host_chunks.hpp"
#include "railyard/collectives/detail/vector_reduce.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// What a rank shows of one gradient.
struct ShownGradient {
  std::uint64_t place = 0;
  std::uint64_t late_place = 0;  // where there was none in the first step, which others may still be looking at
  std::int64_t count = 0;        // of the parameter, as real numbers
  std::int32_t type = 0;         // and its at::ScalarType
  std::uint32_t used = 0;
  std::uint32_t gives = 0;
  std::uint32_t weighted = 0;  // with the samples behind it
};

// What the ranks of a host have shown, by their numbers on it.
struct ShownGradients {
  std::vector<PassHeader> headers{};
  std::vector<const ShownGradient*> tables{};  // each by slot
};

// Shows a text in the next step of an exchange, and returns those of all ranks of the host.
[[nodiscard]] inline std::vector<std::string> show_texts(HostMemory& memory, const std::string& mine) {
  const std::string_view shown = std::string_view{mine}.substr(0, HostMemory::max_record_bytes);
  memory.step(std::as_bytes(std::span{shown}));
  std::vector<std::string> texts;
  for (int rank = 0; rank < memory.size(); ++rank) {
    const auto theirs = memory.record_of(rank);
    texts.emplace_back(reinterpret_cast<const char*>(theirs.data()), theirs.size());
  }
  return texts;
}

// Adds up this rank's part of open gradients and leaves the mean with all ranks of the host, or, where an optimizer
// shares the weights, in the gradient of the piece of this rank.
class HostSums {
 public:
  // samples: behind the gradients of all ranks. What is given outlives it.
  HostSums(Worker& worker, HostMemory& memory, const ShownGradients& shown, double samples)
      : worker_(&worker), memory_(&memory), shown_(&shown), samples_(samples) {}

  // Returns whether all results of this rank's part are finite.
  [[nodiscard]] bool add(const OpenSlots& open) {
    if (memory_->num_hosts() == 1) return add_own_parts(open);
    const bool is_finite = add_between_hosts<float>(open);
    return add_between_hosts<double>(open) && is_finite;
  }

  // Bytes of gradients that have been read, written, sent and received.
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;

    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  };

  // What this rank adds up of an open gradient, or some of that: for all ranks of the host, or for the piece that it
  // updates alone.
  struct OwnPart {
    std::size_t index = 0;
    GradientSlot* slot = nullptr;
    std::shared_ptr<GradientPiece> piece{};
    at::Tensor mean{};  // of the whole piece
    Range range{};
    bool completes_piece = true;
  };

  // All open gradients one after another, each beginning at a whole cache line, are cut into one part per rank of the
  // host; weights that an optimizer shares have been cut by it.
  template <class Visit>
  void for_each_own_part(const OpenSlots& open, const Visit& visit) {
    std::vector<std::int64_t> counts;
    for (const auto& one : open) {
      if (one.second->piece.expired()) counts.push_back(one.second->real_count());
    }
    RankPart part{counts, memory_->rank(), memory_->size()};
    for (const auto& [index, slot] : open) {
      auto piece = slot->piece.lock();
      const auto [begin, end] = piece ? std::pair{piece->begin, piece->end} : part.next(slot->real_count());
      if (begin == end) continue;
      OwnPart own{.index = index, .slot = slot, .piece = std::move(piece)};
      if (own.piece) own.mean = at::empty({end - begin}, at::TensorOptions{}.dtype(slot->sum_type()));
      own.range = {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
      visit(own);
    }
  }

  [[nodiscard]] bool add_own_parts(const OpenSlots& open) {
    bool is_finite = true;
    for_each_own_part(open, [&](const OwnPart& part) {
      const bool is_double = part.slot->sum_type() == at::ScalarType::Double;
      is_finite &= is_double ? add<double>(part) : add<float>(part);
    });
    return is_finite;
  }

  template <class T>
  [[nodiscard]] T* at(int rank, std::size_t index) const noexcept {
    const ShownGradient& entry = shown_->tables[static_cast<std::size_t>(rank)][index];
    return reinterpret_cast<T*>(memory_->at(rank, entry.place != 0 ? entry.place : entry.late_place));
  }

  // What the ranks of this host give, and how each of them is weighted.
  template <class T>
  struct Given {
    std::vector<const T*> sources{};
    std::vector<T> weights{};
    bool are_all_weighted = true;  // already, each by its own number of micro-batches
  };
  template <class T>
  [[nodiscard]] Given<T> given(const OwnPart& part) const {
    Given<T> given;
    for (int rank = 0; rank < memory_->size(); ++rank) {
      // Left out, not multiplied by zero: NaN.
      const ShownGradient& entry = shown_->tables[static_cast<std::size_t>(rank)][part.index];
      if (entry.gives == 0) continue;
      given.sources.push_back(at<T>(rank, part.index) + part.range.begin);
      const double samples = shown_->headers[static_cast<std::size_t>(rank)].samples;
      given.weights.push_back(entry.weighted != 0 ? T{1} : static_cast<T>(samples));
      given.are_all_weighted = given.are_all_weighted && entry.weighted != 0;
    }
    return given;
  }

  // Calls write(targets) with where the mean of a part belongs.
  template <class T, class Write>
  [[nodiscard]] bool write_mean(const OwnPart& part, const Write& write) {
    if (!part.piece) {
      std::vector<T*> targets;
      for (int rank = 0; rank < memory_->size(); ++rank) targets.push_back(at<T>(rank, part.index) + part.range.begin);
      return write(std::span<T* const>{targets});
    }
    const std::size_t at = part.range.begin - static_cast<std::size_t>(part.piece->begin);
    const std::array<T*, 1> target{part.mean.template data_ptr<T>() + at};
    const bool is_finite = write(std::span<T* const>{target});
    if (part.completes_piece) part.piece->add(part.mean.to(part.piece->updated().scalar_type()));
    return is_finite;
  }

  template <class T>
  [[nodiscard]] bool sum_counted(const SumTask<T>& task) {
    num_bytes_ += (task.sources.size() + task.targets.size()) * task.count * sizeof(T);
    return sum(task);
  }

  template <class T>
  [[nodiscard]] bool add(const OwnPart& part) {
    return write_mean<T>(part, [&](std::span<T* const> targets) {
      const Given<T> own = given<T>(part);
      SumTask<T> task{.targets = targets, .sources = own.sources, .count = part.range.size()};
      task.divisor = static_cast<T>(samples_);
      const bool is_all_of_it = own.weights.size() == 1 && own.weights[0] == task.divisor;
      if (is_all_of_it && !own.are_all_weighted) {
        task.divisor = T{1};  // n x gradient / n need not be the gradient
      } else if (!own.are_all_weighted) {
        task.weights = own.weights.data();
      }
      return sum_counted(task);
    });
  }

  // On several hosts: this rank adds up its part of what its host has, then with those that have the same part
  // elsewhere, and then it has the sums of all, as each of them has. So every host updates its one copy of the weights
  // by itself, from equal bits. To give each host a part of the updates instead, and to send the weights, would put as
  // many bytes on the network, but half of them after the backward pass, where nothing hides them, and the norm of the
  // gradients and every update would have to wait for another exchange. It would divide the optimizer's state by the
  // number of hosts as well.
  template <class T>
  [[nodiscard]] bool add_between_hosts(const OpenSlots& open) {
    const std::vector<Chunk> chunks = chunks_of<T>(open);
    if (chunks.empty()) return true;
    const auto count = static_cast<std::int64_t>(chunks.back().end);
    const at::Tensor sums = at::empty({count}, at::TensorOptions{}.dtype(c10::CppTypeToScalarType<T>::value));
    T* const first = sums.template data_ptr<T>();
    const auto buffer_of_chunk = [&](const Chunk& chunk) {
      return Buffer{first + chunk.begin, chunk.end - chunk.begin, dtype_of<T>};
    };
    if (chunks.size() == 1) {
      add_within_host<T>(chunks[0], first);
      memory_->add_between_hosts(buffer_of_chunk(chunks[0]), worker_->collective_deadline());
      return spread<T>(chunks[0], first);
    }
    // While one chunk is on the network, the memory works on the next and on the one before.
    bool is_finite = true;
    std::future<void> on_network;
    for (std::size_t at = 0; at < chunks.size(); ++at) {
      add_within_host<T>(chunks[at], first);
      if (on_network.valid()) on_network.get();
      on_network = memory_->begin_between_hosts(buffer_of_chunk(chunks[at]), worker_->collective_deadline());
      if (at > 0) is_finite &= spread<T>(chunks[at - 1], first);
    }
    on_network.get();
    return spread<T>(chunks.back(), first) && is_finite;
  }

  // Parts that go over the network together, and where they are among the sums of one type.
  struct Chunk {
    std::vector<OwnPart> parts{};
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  template <class T>
  [[nodiscard]] std::vector<Chunk> chunks_of(const OpenSlots& open) {
    std::vector<OwnPart> parts;
    std::size_t count = 0;
    for_each_own_part(open, [&](const OwnPart& part) {
      if (part.slot->sum_type() != c10::CppTypeToScalarType<T>::value) return;
      count += part.range.size();
      parts.push_back(part);
    });
    std::vector<Chunk> chunks;
    const std::size_t size = chunk_size(count, sizeof(T));
    for (OwnPart& part : parts) {
      // Also within a parameter, of which one alone may be more than all others.
      for (const std::size_t end = part.range.end; part.range.begin < end; part.range.begin = part.range.end) {
        const std::size_t done = chunks.empty() ? 0 : chunks.back().end;
        if (chunks.empty() || done == chunks.back().begin + size) chunks.push_back({.begin = done, .end = done});
        Chunk& chunk = chunks.back();
        part.range.end = std::min(end, part.range.begin + chunk.begin + size - chunk.end);
        part.completes_piece = part.range.end == end;
        chunk.end += part.range.size();
        chunk.parts.push_back(part);
      }
    }
    return chunks;
  }

  // As few chunks as are no longer than they may be, and all nearly equally long.
  [[nodiscard]] static std::size_t chunk_size(std::size_t count, std::size_t width) noexcept {
    constexpr std::size_t line = 64;
    const std::size_t longest = host_chunk_bytes / width;
    const std::size_t num_chunks = std::max<std::size_t>((count + longest - 1) / longest, 1);
    return ((count + num_chunks - 1) / num_chunks + line - 1) / line * line;
  }

  template <class T>
  void add_within_host(const Chunk& chunk, T* sums) {
    T* to = sums + chunk.begin;
    for (const OwnPart& part : chunk.parts) {
      const Given<T> own = given<T>(part);
      if (own.sources.empty()) {
        std::fill_n(to, part.range.size(), T{0});
      } else {
        const std::array<T*, 1> target{to};
        SumTask<T> task{.targets = target, .sources = own.sources, .count = part.range.size()};
        if (!own.are_all_weighted) task.weights = own.weights.data();
        static_cast<void>(sum_counted(task));
      }
      to += part.range.size();
    }
    num_bytes_ += 2 * (chunk.end - chunk.begin) * sizeof(T);  // on the network
  }

  // Leaves the means where they belong on this host.
  template <class T>
  [[nodiscard]] bool spread(const Chunk& chunk, const T* sums) {
    bool is_finite = true;
    const T* from = sums + chunk.begin;
    for (const OwnPart& part : chunk.parts) {
      is_finite &= write_mean<T>(part, [&](std::span<T* const> targets) {
        const std::array<const T*, 1> source{from};
        return sum_counted(SumTask<T>{
            .targets = targets, .sources = source, .divisor = static_cast<T>(samples_), .count = part.range.size()});
      });
      from += part.range.size();
    }
    return is_finite;
  }

  Worker* worker_;
  HostMemory* memory_;
  const ShownGradients* shown_;
  double samples_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
