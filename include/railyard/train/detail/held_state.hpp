// SPDX-License-Identifier: MIT
// How a rank's part of the state lies in a snapshot, and how a later start finds it there. Train room.
//
// The snapshot begins with the size of the message that tells of it, and that message; the files follow. Where several
// processes look after the workers, each has the snapshots of its own: what others lack goes from rank to rank.
#pragma once

#include "railyard/train/detail/gather.hpp"
#include "railyard/train/detail/wire.hpp"
#include "railyard/train/worker.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/checkpoint/part_bytes.hpp"
#include "railyard/core/buffer.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Gives each file its place in a snapshot, and returns the snapshot's size.
[[nodiscard]] inline std::uint64_t place_files(SavedMessage& save, const std::vector<FileImage>& images) {
  const auto aligned = [](std::uint64_t at, std::uint64_t size) {
    const std::uint64_t alignment = size >= smallest_direct_bytes ? direct_block_bytes : 64;
    return (at + alignment - 1) / alignment * alignment;
  };
  for (const FileImage& image : images)
    save.files.push_back({.name = image.name, .size = image.size, .is_own = image.is_own});
  std::uint64_t end = sizeof(std::uint64_t) + encode_saved(save).size();
  for (SavedFile& file : save.files) {
    file.offset = aligned(end, file.size);
    end = file.offset + file.size;
  }
  return end;
}

/// Returns the message of a snapshot that a rank of an earlier start has written.
[[nodiscard]] inline SavedMessage read_head(WorkerLink& link, int rank, int slot) {
  constexpr std::uint64_t longest = std::uint64_t{1} << 20U;  // that a worker may post
  std::uint64_t size = 0;
  link.read_snapshot(rank, slot, 0, std::as_writable_bytes(std::span{&size, 1}));
  if (size > longest) throw DataError{"a snapshot in memory is damaged: its begin tells of no message"};
  std::vector<std::byte> head(static_cast<std::size_t>(size));
  link.read_snapshot(rank, slot, sizeof size, head);
  return std::get<SavedMessage>(decode_message(head));
}

/// Is what all ranks of an earlier start have put into their snapshots as one state. All ranks make it together.
class HeldState {
 public:
  /// slots: of each rank. Throws: DataError if the snapshots are damaged, or do not belong together.
  HeldState(Worker& worker, WorkerLink& link, const std::vector<std::uint8_t>& slots)
      : worker_(&worker), link_(&link), saves_(slots.size()), first_ranks_(slots.size()) {
    bool sees_all = true;
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      const bool is_seen = link.sees_snapshots_of(static_cast<int>(rank));
      if (is_seen) saves_[rank] = read_head(link, static_cast<int>(rank), slots[rank]);
      sees_all = sees_all && is_seen;
    }
    if (!sees_all) tell_each_other();
    check();
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      if (link.sees_snapshots_of(static_cast<int>(rank))) add_files(static_cast<int>(rank), slots[rank]);
    }
    if (!sees_all) fetch_what_is_missing();
  }
  HeldState(const HeldState&) = delete;
  HeldState& operator=(const HeldState&) = delete;
  /// Only when all ranks have read from it.
  ~HeldState() {
    if (received_.slot >= 0) link_->drop_snapshot(received_.slot);
  }

  /// Reads from the snapshots.
  [[nodiscard]] Checkpoint checkpoint() const {
    Manifest manifest{.world_size = static_cast<int>(saves_.size()),
                      .step = saves_.front().step,
                      .epoch = saves_.front().epoch,
                      .report = saves_.front().report};
    for (const SavedMessage& save : saves_) manifest.samples += save.samples;
    return Checkpoint::in_memory("the snapshots of the workers", std::move(manifest), files_);
  }

 private:
  // A file that goes from its rank to the processes that lack it.
  struct Transfer {
    std::string name{};
    int from = 0;
    std::size_t size = 0;
    bool is_for_us = false;
    std::size_t offset = 0;  // in what is received
  };
  static constexpr std::size_t piece_bytes = std::size_t{8} << 20U;

  [[nodiscard]] static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] int first_rank() const { return first_ranks_[index(worker_->rank())]; }

  // Every rank learns what the others have saved, and which of them are looked after by one process.
  void tell_each_other() {
    if (static_cast<int>(saves_.size()) != worker_->world_size()) {
      throw Error{
          compose("{} ranks cannot go on from the snapshots that {} have left in the memory of several processes",
                  worker_->world_size(), saves_.size())};
    }
    std::int32_t first = worker_->rank();
    while (first > 0 && link_->sees_snapshots_of(first - 1)) --first;
    worker_->all_gather(buffer_of_value(first), buffer_of(first_ranks_));
    const auto all = gather_bytes(*worker_, encode_saved(saves_[index(worker_->rank())]));
    for (std::size_t rank = 0; rank < saves_.size(); ++rank) {
      saves_[rank] = std::get<SavedMessage>(decode_message(all[rank]));
    }
  }

  void check() const {
    const SavedMessage& first = saves_.front();
    for (std::size_t rank = 0; rank < saves_.size(); ++rank) {
      const SavedMessage& save = saves_[rank];
      if (save.step == first.step && save.report == first.report && save.attempt == first.attempt) continue;
      throw DataError{
          compose("the snapshots of the state do not belong together: that of rank 0 was taken after step {} and "
                  "report {} in attempt {}, that of rank {} after step {} and report {} in attempt {}; this is a fault "
                  "of Railyard, or memory was overwritten: start the program again, it goes on from a checkpoint",
                  first.step, first.report, first.attempt, rank, save.step, save.report, save.attempt)};
    }
  }

  [[nodiscard]] ReadPart part_of(int rank, int slot, std::uint64_t offset, std::uint64_t size) const {
    return {.size = size, .read = [link = link_, rank, slot, offset](std::uint64_t begin, std::span<std::byte> to) {
              link->read_snapshot(rank, slot, static_cast<std::size_t>(offset + begin), to);
            }};
  }

  void add_files(int rank, int slot) {
    const SavedMessage& save = saves_[index(rank)];
    if (save.files.empty()) return;
    for (const SavedFile& file : save.files) files_[file.name] = part_of(rank, slot, file.offset, file.size);
  }

  // What all ranks have each process has from its first rank. It may be other bytes than rank 0's, such as statistics
  // of BatchNorm: a checkpoint holds rank 0's, and so do all ranks after this.
  void fetch_what_is_missing() {
    std::vector<Transfer> transfers = find_missing();
    if (transfers.empty()) return;
    std::size_t size = 0;
    for (Transfer& one : transfers) {
      if (!one.is_for_us) continue;
      one.offset = (size + 63U) / 64U * 64U;
      size = one.offset + one.size;
    }
    if (size > 0 && first_rank() == worker_->rank()) received_ = link_->take_snapshot(size, SnapshotKind::memory);
    std::vector<std::byte> piece;
    for (const Transfer& one : transfers) broadcast(one, piece);
    std::vector<std::int32_t> slots(saves_.size());
    worker_->all_gather(buffer_of_value(received_.slot), buffer_of(slots));  // all have received
    if (size == 0) return;
    for (const Transfer& one : transfers) {
      if (!one.is_for_us) continue;
      files_[one.name] = part_of(first_rank(), slots[index(first_rank())], one.offset, one.size);
    }
  }

  [[nodiscard]] std::vector<Transfer> find_missing() const {
    std::map<std::string, std::map<int, std::size_t>> holders;  // of each file, with its size there
    for (std::size_t rank = 0; rank < saves_.size(); ++rank) {
      for (const SavedFile& file : saves_[rank].files) {
        if (!file.is_own) holders[file.name][static_cast<int>(rank)] = file.size;
      }
    }
    const std::map<std::string, std::vector<std::int64_t>> digests = compare(holders);
    const std::set<std::int32_t> processes{first_ranks_.begin(), first_ranks_.end()};
    std::vector<Transfer> transfers;
    for (const auto& [name, ranks] : holders) {
      const auto [source, size] = *ranks.begin();
      std::set<std::int32_t> owners{first_ranks_[index(source)]};
      for (const auto& [rank, size_there] : ranks) {
        const auto found = digests.find(name);
        if (found == digests.end() || size_there != size) continue;
        if (found->second[index(rank)] == found->second[index(source)]) owners.insert(first_ranks_[index(rank)]);
      }
      if (owners.size() == processes.size()) continue;
      transfers.push_back({.name = name, .from = source, .size = size, .is_for_us = owners.count(first_rank()) == 0});
    }
    return transfers;
  }

  [[nodiscard]] static std::uint64_t digest_of_file(const ReadPart& file) {
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(piece_bytes, file.size)));
    std::uint64_t digest = 0;
    for (std::uint64_t begin = 0; begin < file.size; begin += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.size - begin)));
      file.read(begin, piece);
      digest = quick_digest_of(piece, digest);
    }
    return digest;
  }

  // Returns digests, by rank, of those files that several ranks have.
  [[nodiscard]] std::map<std::string, std::vector<std::int64_t>> compare(
      const std::map<std::string, std::map<int, std::size_t>>& holders) const {
    std::vector<std::string> names;
    std::vector<std::int64_t> own;
    for (const auto& [name, ranks] : holders) {
      if (ranks.size() < 2) continue;
      names.push_back(name);
      const bool is_here = ranks.count(worker_->rank()) > 0;
      own.push_back(is_here ? static_cast<std::int64_t>(digest_of_file(files_.at(name))) : 0);
    }
    std::map<std::string, std::vector<std::int64_t>> digests;
    if (names.empty()) return digests;
    std::vector<std::int64_t> all(own.size() * saves_.size());
    worker_->all_gather(buffer_of(own), buffer_of(all));
    for (std::size_t at = 0; at < names.size(); ++at) {
      auto& of_file = digests[names[at]];
      for (std::size_t rank = 0; rank < saves_.size(); ++rank) of_file.push_back(all[rank * own.size() + at]);
    }
    return digests;
  }

  // piece: for what this rank reads, or takes part in and does not need.
  void broadcast(const Transfer& one, std::vector<std::byte>& piece) {
    const bool is_source = one.from == worker_->rank();
    const bool receives = one.is_for_us && received_.slot >= 0;
    if (is_source || !receives) piece.resize(std::max(piece.size(), std::min(piece_bytes, one.size)));
    for (std::size_t begin = 0; begin < one.size; begin += piece_bytes) {
      const std::size_t size = std::min(piece_bytes, one.size - begin);
      if (is_source) files_.at(one.name).read(begin, std::span{piece}.first(size));
      std::byte* const at = !is_source && receives ? received_.bytes.data() + one.offset + begin : piece.data();
      worker_->broadcast({at, size, Dtype::u8, {}}, one.from);
    }
  }

  Worker* worker_;
  WorkerLink* link_;
  std::vector<SavedMessage> saves_;        // by rank
  std::vector<std::int32_t> first_ranks_;  // of the process of each rank
  std::map<std::string, ReadPart> files_{};
  Snapshot received_{};  // for all ranks of the process, if this is the first of them
};

}  // namespace detail
}  // namespace railyard::inline v0_1
