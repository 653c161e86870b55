// SPDX-License-Identifier: MIT
// The backend that joins ranks of one host by memory which all of them see. Collectives room: std and the kernel only.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"
#include "railyard/collectives/detail/host_lane.hpp"
#include "railyard/collectives/detail/meeting.hpp"
#include "railyard/collectives/detail/shared_group.hpp"
#include "railyard/collectives/detail/vector_reduce.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/heap.hpp"
#include "railyard/core/host_memory.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Joins threads or processes of one host. Values up to 16 KiB travel by one wait; larger ones are reduced by all ranks
/// together, each its own slice, where they lie, if all ranks see them there: any memory among threads, memory of
/// heap() among processes. What lies elsewhere is shown in pieces, at half the speed. Reductions add in the order of
/// ranks, so that results depend on nothing but the ranks' values.
class SharedMemory {
 public:
  static constexpr std::string_view name = "SharedMemory";
  static constexpr Reach reach = Reach::host;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    /// Address space of each rank's arena, in bytes; 0: as much as the host has memory. Only what is used is taken.
    std::size_t arena_bytes = 0;
  };

  static void check(const Options& /*options*/) noexcept {}

  /// Joins the group. store outlives the call only. Cost: below a millisecond once all ranks have come.
  /// Throws: CollectiveError that names the ranks which did not come or failed; ConfigError if ranks run on other
  /// hosts.
  [[nodiscard]] static std::unique_ptr<SharedMemory> connect(const Options& options, const World& world, Store& store,
                                                             const Deadline& deadline) {
    detail::check_world(world);
    detail::GroupBuilder builder{world, store, deadline};
    return std::unique_ptr<SharedMemory>{new SharedMemory{world, builder.build(name, options.arena_bytes)}};
  }

  // The collectives are templates although nothing depends on one: so a file compiles only what it uses of them.
  template <class = void>
  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    const auto signature = arguments().all_reduce(data, op);
    meeting_.throw_if_lost(signature);
    if (data.size_bytes() <= detail::small_bytes) {
      enter_small(signature, data, data.size_bytes(), call);
      const std::array<std::byte*, 1> target{static_cast<std::byte*>(data.data)};
      // On the stack: memory of the heap costs a fifth of the time.
      std::array<const std::byte*, detail::most_host_ranks> room;
      const std::span sources{room.data(), ranks()};
      find_payloads(data.size_bytes(), sources);
      detail::reduce_into(target, sources, data.count, data.dtype, op);
      return {};
    }
    Running running = shared(signature, call);
    const bool is_staged = show(data);
    if (is_staged) stage(data, 0);
    meeting_.enter(running);
    if (are_all_in_place()) {
      reduce_for_all(places(), detail::slice_of(data.count, world_), data.dtype, op);
      meeting_.take_step(running);
    } else {
      reduce_in_pieces(running, data, op, is_staged);
    }
    return {};
  }

  template <class = void>
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    const auto signature = arguments().reduce_scatter(in, out, op);
    std::vector<const std::byte*> sources(ranks());
    pull(signature, call, {.in = in, .num_parts = ranks(), .count = out.count}, [&](const Piece& piece) {
      for (int rank = 0; rank < world_.size; ++rank) sources[to_index(rank)] = piece.part(rank, rank_index());
      const std::array<std::byte*, 1> target{piece.to(out, 0)};
      detail::reduce_into(target, sources, piece.count, out.dtype, op);
    });
    return {};
  }

  template <class = void>
  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    const auto signature = arguments().broadcast(data, root);
    pull(signature, call, {.in = data, .count = data.count, .gives = world_.rank == root}, [&](const Piece& piece) {
      if (world_.rank != root) piece.copy(piece.to(data, 0), root, 0);
    });
    return {};
  }

  template <class = void>
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_gather(in, out);
    pull(signature, call, {.in = in, .count = in.count}, [&](const Piece& piece) {
      for (int rank = 0; rank < world_.size; ++rank) piece.copy(piece.to(out, to_index(rank) * in.count), rank, 0);
    });
    return {};
  }

  template <class = void>
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    const auto signature = arguments().all_gather_uneven(in, out, counts);
    const std::size_t longest = *std::max_element(counts.begin(), counts.end());
    pull(signature, call, {.in = in, .count = longest}, [&](Piece piece) {
      std::size_t begin = 0;
      const std::size_t full = piece.count;
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::size_t count = counts[to_index(rank)];
        piece.count = count > piece.begin ? std::min(full, count - piece.begin) : 0;
        piece.copy(piece.to(out, begin), rank, 0);
        begin += count;
      }
    });
    return {};
  }

  template <class = void>
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().gather(in, out, root);
    pull(signature, call, {.in = in, .count = in.count}, [&](const Piece& piece) {
      if (world_.rank != root) return;
      for (int rank = 0; rank < world_.size; ++rank) piece.copy(piece.to(out, to_index(rank) * in.count), rank, 0);
    });
    return {};
  }

  template <class = void>
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().scatter(in, out, root);
    const Source source{.in = in, .num_parts = ranks(), .count = out.count, .gives = world_.rank == root};
    pull(signature, call, source, [&](const Piece& piece) { piece.copy(piece.to(out, 0), root, rank_index()); });
    return {};
  }

  template <class = void>
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_to_all(in, out);
    const std::size_t count = in.count / ranks();
    pull(signature, call, {.in = in, .num_parts = ranks(), .count = count}, [&](const Piece& piece) {
      for (int rank = 0; rank < world_.size; ++rank) {
        piece.copy(piece.to(out, to_index(rank) * count), rank, rank_index());
      }
    });
    return {};
  }

  FinishedWork barrier(const Call& call) {
    const detail::Signature signature{.operation = detail::Operation::barrier};
    meeting_.throw_if_lost(signature);
    enter_small(signature, {}, 0, call);
    return {};
  }

  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    const auto signature = arguments().send(data, peer);
    meeting_.throw_if_lost(signature);
    detail::Outbox& box = group_.outbox(world_.rank, peer);
    std::uint64_t piece = box.offered.load();
    const std::uint64_t place = data.count == 0 ? nothing : place_of(data.data);
    Running running{.signature = signature, .deadline = call.deadline, .peer = peer, .box = &box};
    box.signature = signature;
    box.place = place;
    const std::size_t length = place == 0 ? detail::stage_bytes : std::max<std::size_t>(data.size_bytes(), 1);
    for (std::size_t begin = 0, turn = 0; begin == 0 || begin < data.size_bytes(); begin += length, ++turn) {
      if (place == 0) copy_bytes(stage_at(turn), data, begin, length);
      running.piece = ++piece;
      box.offered.store(piece);
      meeting_.ring();
      // One piece may be under way while the next is copied, in the other stage.
      const bool is_last = begin + length >= data.size_bytes();
      meeting_.await(box.taken, is_last ? piece : piece - 1, running);
    }
    return {};
  }

  FinishedWork receive(Buffer data, int peer, const Call& call) {
    const auto signature = arguments().receive(data, peer);
    meeting_.throw_if_lost(signature);
    detail::Outbox& box = group_.outbox(peer, world_.rank);
    std::uint64_t piece = box.taken.load();
    const Running running{.signature = signature, .deadline = call.deadline, .peer = peer};
    bool is_staged = false;
    std::size_t length = 1;
    for (std::size_t begin = 0, turn = 0; begin == 0 || begin < data.size_bytes(); begin += length, ++turn) {
      meeting_.await(box.offered, ++piece, running);
      if (begin == 0 && box.signature.digest() != signature.digest()) {
        meeting_.give_up(running, {{peer},
                                   detail::disagreement(peer, detail::describe(box.signature), world_.rank,
                                                        detail::describe(signature))});
      }
      if (begin == 0) is_staged = box.place == 0;
      length = is_staged ? detail::stage_bytes : std::max<std::size_t>(data.size_bytes(), 1);
      box.taking.store(piece);
      meeting_.throw_if_given_up(peer, running);  // it may be about to let go of its memory
      const std::byte* from = is_staged ? group_.cell(peer).stages[turn % 2].data() : at(peer, box.place);
      const std::size_t part = std::min(length, data.size_bytes() - begin);
      if (part > 0) std::memcpy(static_cast<std::byte*>(data.data) + begin, from, part);
      box.taken.store(piece);
      meeting_.ring();
    }
    return {};
  }

  /// Ends the waits of this rank, and tells the others. From any thread.
  void abort(std::string_view reason) noexcept { lane_.abort(reason); }

  /// Gives out memory that all ranks see. Its blocks may outlive this object. Of what is free it keeps at most half of
  /// the memory that the host or the container had left, divided by the ranks.
  [[nodiscard]] const std::shared_ptr<detail::Heap>& heap() const noexcept { return heap_; }

  [[nodiscard]] HostMemory* host_memory() noexcept { return &lane_; }

 private:
  using Running = detail::Meeting::Running;
  using Sources = std::vector<const std::byte*>;
  static constexpr std::uint64_t nothing = 1;  // a place that nobody looks at

  // What the ranks give in an operation in which all take: num_parts parts of count elements, of each rank that gives.
  struct Source {
    ConstBuffer in{};
    std::size_t num_parts = 1;
    std::size_t count = 0;
    bool gives = true;
  };

  // Elements begin to begin + count of every part of what every rank gives.
  struct Piece {
    std::size_t begin = 0;
    std::size_t count = 0;
    std::size_t element_bytes = 1;
    const Sources* first_parts = nullptr;               // by rank
    const std::vector<std::size_t>* strides = nullptr;  // bytes between parts, by rank

    [[nodiscard]] const std::byte* part(int rank, std::size_t index) const noexcept {
      return (*first_parts)[to_index(rank)] + index * (*strides)[to_index(rank)];
    }
    // Where the piece belongs in a buffer in which its part begins at element offset.
    [[nodiscard]] std::byte* to(const Buffer& out, std::size_t offset) const noexcept {
      return static_cast<std::byte*>(out.data) + (offset + begin) * element_bytes;
    }
    void copy(std::byte* target, int rank, std::size_t index) const noexcept {
      if (count > 0) std::memcpy(target, part(rank, index), count * element_bytes);
    }
  };

  SharedMemory(const World& world, detail::SharedGroup group)
      : world_(world),
        group_(std::move(group)),
        meeting_(world, cells(), group_.pidfds, group_.has_cores_for_all, 0),
        side_meeting_(world, cells(), group_.pidfds, false, 1),
        heap_(std::make_shared<detail::Heap>(group_.arena(world.rank), group_.layout.arena_size,
                                             group_.mappings[to_index(world.rank)], !group_.is_one_process,
                                             group_.available / 2 / to_index(world.size))),
        side_(group_, side_meeting_, heap_, world.rank, nullptr),
        lane_(group_, meeting_, heap_, world.rank, &side_) {}

  [[nodiscard]] static constexpr std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t rank_index() const noexcept { return to_index(world_.rank); }
  [[nodiscard]] std::size_t ranks() const noexcept { return to_index(world_.size); }
  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  [[nodiscard]] std::vector<detail::RankCell*> cells() const {
    std::vector<detail::RankCell*> cells;
    for (int rank = 0; rank < world_.size; ++rank) cells.push_back(&group_.cell(rank));
    return cells;
  }

  // Shows all ranks a value in the post itself: nobody looks at this rank's own memory. shown_bytes: the same on all
  // ranks, of which some may give less.
  void enter_small(const detail::Signature& signature, const ConstBuffer& data, std::size_t shown_bytes,
                   const Call& call) {
    if (data.count > 0) std::memcpy(meeting_.next_post().payload_of(shown_bytes), data.data, data.size_bytes());
    meeting_.enter({.signature = signature, .deadline = call.deadline});
  }

  void find_payloads(std::size_t shown_bytes, std::span<const std::byte*> found) const noexcept {
    for (int rank = 0; rank < world_.size; ++rank) {
      found[to_index(rank)] = meeting_.post_of(rank).payload_of(shown_bytes);
    }
  }

  // An operation in which threads read, or also write, each other's memory between its first step and its second.
  [[nodiscard]] Running shared(const detail::Signature& signature, const Call& call) const noexcept {
    Running running{.signature = signature, .deadline = call.deadline};
    if (group_.is_one_process) running.first_shared = meeting_.step() + 1;
    if (group_.is_one_process) running.last_shared = meeting_.step() + 2;
    return running;
  }

  // Names the data to all ranks. Returns whether they cannot see it, so that it must be staged.
  [[nodiscard]] bool show(const ConstBuffer& data) {
    detail::Post& post = meeting_.next_post();
    post.place = place_of(data.data);
    return post.place == 0;
  }

  [[nodiscard]] bool are_all_in_place() const noexcept {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (meeting_.post_of(rank).place == 0) return false;
    }
    return true;
  }

  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept { return lane_.place_of(memory); }
  [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept { return lane_.at(rank, place); }

  [[nodiscard]] std::byte* stage_at(std::size_t turn) const noexcept { return meeting_.own().stages[turn % 2].data(); }

  static void copy_bytes(std::byte* to, const ConstBuffer& data, std::size_t begin, std::size_t at_most) noexcept {
    std::memcpy(to, static_cast<const std::byte*>(data.data) + begin, std::min(at_most, data.size_bytes() - begin));
  }

  // Copies piece number turn of the data into the stage whose turn it is.
  void stage(const ConstBuffer& data, std::size_t turn) const noexcept {
    const std::size_t begin = turn * detail::stage_bytes;
    if (begin < data.size_bytes()) copy_bytes(stage_at(turn), data, begin, detail::stage_bytes);
  }

  [[nodiscard]] std::vector<std::byte*> places() const {
    std::vector<std::byte*> found;
    for (int rank = 0; rank < world_.size; ++rank) found.push_back(at(rank, meeting_.post_of(rank).place));
    return found;
  }

  template <class = void>
  static void reduce_for_all(std::vector<std::byte*> data, std::pair<std::size_t, std::size_t> slice, Dtype dtype,
                             ReduceOp op) {
    for (std::byte*& one : data) one += slice.first * size_of(dtype);
    const Sources sources{data.begin(), data.end()};
    detail::reduce_into(data, sources, slice.second, dtype, op);
  }

  // Every rank reduces its slice of a piece, where a rank's data is or in its stage. While it waits for the others'
  // slices it has shown its next piece in the other stage.
  template <class = void>
  void reduce_in_pieces(const Running& running, const Buffer& data, ReduceOp op, bool is_staged) {
    std::vector<std::uint64_t> shown;
    for (int rank = 0; rank < world_.size; ++rank) shown.push_back(meeting_.post_of(rank).place);
    const std::size_t size = data.size_bytes();
    for (std::size_t begin = 0, turn = 0; begin < size; begin += detail::stage_bytes, ++turn) {
      const std::size_t length = std::min(detail::stage_bytes, size - begin);
      std::vector<std::byte*> pieces;
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::uint64_t place = shown[to_index(rank)];
        pieces.push_back(place == 0 ? group_.cell(rank).stages[turn % 2].data() : at(rank, place) + begin);
      }
      reduce_for_all(pieces, detail::slice_of(length / size_of(data.dtype), world_), data.dtype, op);
      if (is_staged) stage(data, turn + 1);
      meeting_.take_step(running);
      if (is_staged) std::memcpy(static_cast<std::byte*>(data.data) + begin, pieces[rank_index()], length);
    }
  }

  // Lets every rank take what it wants of what the ranks give: take(piece) is called for all pieces in turn.
  template <class Take>
  void pull(const detail::Signature& signature, const Call& call, const Source& source, const Take& take) {
    meeting_.throw_if_lost(signature);
    const std::size_t element_bytes = size_of(signature.dtype);
    const std::size_t part_bytes = source.count * element_bytes;
    if (source.num_parts * part_bytes <= detail::small_bytes) {
      const std::size_t shown_bytes = source.num_parts * part_bytes;
      enter_small(signature, source.gives ? source.in : ConstBuffer{}, shown_bytes, call);
      Sources first_parts(ranks());
      find_payloads(shown_bytes, first_parts);
      const std::vector<std::size_t> strides(ranks(), part_bytes);
      take(Piece{0, source.count, element_bytes, &first_parts, &strides});
      return;
    }
    const Running running = shared(signature, call);
    meeting_.next_post().place = nothing;
    const bool is_staged = source.gives && source.in.count > 0 && show(source.in);
    // Several elements of each part, at least one of which fits, for there are fewer ranks than that.
    const std::size_t limit = detail::stage_bytes / source.num_parts / element_bytes;
    if (is_staged) stage_parts(source, 0, limit, element_bytes);
    meeting_.enter(running);
    const std::size_t length = are_all_in_place() ? source.count : limit;
    std::vector<std::uint64_t> shown;
    for (int rank = 0; rank < world_.size; ++rank) shown.push_back(meeting_.post_of(rank).place);
    Sources first_parts(ranks());
    std::vector<std::size_t> strides(ranks());
    for (std::size_t begin = 0, turn = 0; begin < source.count; begin += length, ++turn) {
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::size_t at_rank = to_index(rank);
        const bool is_in_stage = shown[at_rank] == 0;
        first_parts[at_rank] =
            is_in_stage ? group_.cell(rank).stages[turn % 2].data() : at(rank, shown[at_rank]) + begin * element_bytes;
        strides[at_rank] = is_in_stage ? limit * element_bytes : part_bytes;
      }
      take(Piece{begin, std::min(length, source.count - begin), element_bytes, &first_parts, &strides});
      if (is_staged) stage_parts(source, turn + 1, limit, element_bytes);
      meeting_.take_step(running);
    }
  }

  // Copies up to limit elements of each part into the stage whose turn it is. A rank may have less than count to give.
  void stage_parts(const Source& source, std::size_t turn, std::size_t limit,
                   std::size_t element_bytes) const noexcept {
    const std::size_t given = std::min(source.count, source.in.count);
    const std::size_t begin = turn * limit;
    if (begin >= given) return;
    const auto* from = static_cast<const std::byte*>(source.in.data);
    for (std::size_t part = 0; part < source.num_parts; ++part) {
      std::memcpy(stage_at(turn) + part * limit * element_bytes, from + (part * source.count + begin) * element_bytes,
                  std::min(limit, given - begin) * element_bytes);
    }
  }

  World world_;
  detail::SharedGroup group_;
  detail::Meeting meeting_;
  detail::Meeting side_meeting_;  // beside the operations
  std::shared_ptr<detail::Heap> heap_;
  detail::HostLane side_;
  detail::HostLane lane_;
};
static_assert(Backend<SharedMemory>);

}  // namespace railyard::inline v0_1
