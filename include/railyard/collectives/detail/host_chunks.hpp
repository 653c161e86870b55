// SPDX-License-Identifier: MIT
// In which order the ranks of several hosts add up within their hosts and between them. Collectives room.
#pragma once

#include "railyard/collectives/detail/mesh.hpp"

#include "railyard/core/buffer.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>

namespace railyard::inline v0_1 {
namespace detail {

/// Does the work of which an all-reduce between hosts is made; see all_reduce_between_hosts(). All but send_off()
/// return when it is done.
template <class P>
concept HostParts = requires(P& parts, const Buffer& whole, const Buffer& own, std::size_t size_bytes) {
  { parts.scratch(size_bytes) } -> std::convertible_to<std::byte*>;
  parts.add_within(whole, own);    // own: the sums of this rank's slice of whole, of the ranks of this host
  parts.share_within(own, whole);  // whole: the slices of all ranks of this host
  parts.send_off(own).get();       // own: its sums between hosts, once get() has returned
  parts.all_reduce_within(whole);  // without slices
  parts.all_reduce_across(whole);
};

/// The most that a rank carries between hosts at a time: large enough that the steps of a chunk cost little, and small
/// enough that the network waits little for the first one and the memory for the last.
inline constexpr std::size_t host_chunk_bytes = 2 * 1024 * 1024;

[[nodiscard]] inline Buffer buffer_part(const Buffer& data, std::size_t begin, std::size_t count) noexcept {
  if (count == 0) return {.data = nullptr, .count = 0, .dtype = data.dtype};
  return {
      .data = static_cast<std::byte*>(data.data) + begin * size_of(data.dtype), .count = count, .dtype = data.dtype};
}

// data.count is a multiple of local_size.
template <HostParts P>
void all_reduce_in_host_chunks(P& parts, const Buffer& data, std::size_t local_size) {
  const std::size_t width = size_of(data.dtype);
  const std::size_t share = data.count / local_size;
  const std::size_t longest = host_chunk_bytes / width;
  std::byte* sums = parts.scratch(share * width);
  Buffer whole_before{};
  Buffer own_before{};
  decltype(parts.send_off(own_before)) on_network;
  for (std::size_t done = 0; done < share; done += longest) {
    const std::size_t count = std::min(longest, share - done);
    const Buffer whole = buffer_part(data, done * local_size, count * local_size);
    const Buffer own{sums + done * width, count, data.dtype};
    parts.add_within(whole, own);
    if (on_network.valid()) on_network.get();
    on_network = parts.send_off(own);
    if (done > 0) parts.share_within(own_before, whole_before);
    whole_before = whole;
    own_before = own;
  }
  on_network.get();
  parts.share_within(own_before, whole_before);
}

/// Adds data up of all ranks of hosts that have local_size ranks each. While one chunk is on the network, the memory
/// works on the next.
template <HostParts P>
void all_reduce_between_hosts(P& parts, const Buffer& data, std::size_t local_size) {
  const std::size_t divided = data.size_bytes() <= direct_limit_bytes ? 0 : data.count / local_size * local_size;
  if (divided > 0) all_reduce_in_host_chunks(parts, buffer_part(data, 0, divided), local_size);
  const Buffer rest = buffer_part(data, divided, data.count - divided);
  if (rest.count == 0 && divided > 0) return;
  // Too little to divide: each line carries all of it, in the fewest steps.
  parts.all_reduce_within(rest);
  parts.all_reduce_across(rest);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
