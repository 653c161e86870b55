// SPDX-License-Identifier: MIT
// How a rank's part of the state lies in a snapshot, and how a later start finds it there. Train room.
//
// The snapshot begins with the size of the message that tells of it, and that message; the files follow.
#pragma once

#include "railyard/train/detail/wire.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/checkpoint/part_bytes.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Gives each file its place in a snapshot, and returns the snapshot's size.
[[nodiscard]] inline std::uint64_t place_files(SavedMessage& save, const std::vector<FileImage>& images) {
  const auto aligned = [](std::uint64_t at, std::uint64_t size) {
    const std::uint64_t alignment = size >= smallest_direct_bytes ? direct_block_bytes : 64;
    return (at + alignment - 1) / alignment * alignment;
  };
  for (const FileImage& image : images) save.files.push_back({.name = image.name, .size = image.size});
  std::uint64_t end = sizeof(std::uint64_t) + encode_saved(save).size();
  for (SavedFile& file : save.files) {
    file.offset = aligned(end, file.size);
    end = file.offset + file.size;
  }
  return end;
}

/// Writes the encoded message to the begin of its snapshot, where place_files() has left room for it.
inline void write_head(std::span<std::byte> snapshot, std::span<const std::byte> message) {
  const std::uint64_t size = message.size();
  std::memcpy(snapshot.data(), &size, sizeof size);
  std::copy(message.begin(), message.end(), snapshot.data() + sizeof size);
}

/// Returns the message of a snapshot that a rank of an earlier start has written.
[[nodiscard]] inline SavedMessage read_head(WorkerLink& link, int rank, int slot) {
  std::uint64_t size = 0;
  std::memcpy(&size, link.held_snapshot(rank, slot, sizeof size).data(), sizeof size);
  const auto head = link.held_snapshot(rank, slot, sizeof size + size);
  return std::get<SavedMessage>(decode_message(head.subspan(sizeof size, size)));
}

/// Returns what all ranks of an earlier start have put into their snapshots as one checkpoint, which reads from there.
[[nodiscard]] inline Checkpoint open_held_state(WorkerLink& link, const std::vector<std::uint8_t>& slots) {
  Manifest manifest{.world_size = static_cast<int>(slots.size())};
  std::map<std::string, std::span<const std::byte>> files;
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    const int slot = slots[static_cast<std::size_t>(rank)];
    const SavedMessage save = read_head(link, rank, slot);
    manifest.step = save.step;
    manifest.epoch = save.epoch;
    manifest.report = save.report;
    manifest.samples += save.samples;
    if (save.files.empty()) continue;
    const auto bytes = link.held_snapshot(rank, slot, save.files.back().offset + save.files.back().size);
    for (const SavedFile& file : save.files) files[file.name] = bytes.subspan(file.offset, file.size);
  }
  return Checkpoint::in_memory("the snapshots of the workers", std::move(manifest), files);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
