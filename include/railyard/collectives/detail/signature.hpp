// SPDX-License-Identifier: MIT
// What identifies one operation among the ranks, and its text in messages. Collectives room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/core/reduce_op.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Names an operation of a backend.
enum class Operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  all_gather_uneven,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  receive,
  exchange,  // through HostMemory; its root is the purpose
};

[[nodiscard]] constexpr std::string_view name_of(Operation operation) noexcept {
  constexpr std::array<std::string_view, 12> names{"all_reduce",        "reduce_scatter", "broadcast", "all_gather",
                                                   "all_gather_uneven", "gather",         "scatter",   "all_to_all",
                                                   "barrier",           "send",           "receive",   "exchange"};
  return names[static_cast<std::size_t>(operation)];
}

/// Mixes value into a 64-bit digest, so that one changed bit changes about half of the digest.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t digest, std::uint64_t value) noexcept {
  std::uint64_t x = digest ^ (value + 0x9E3779B97F4A7C15U + (digest << 6U) + (digest >> 2U));
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// Is what the ranks must agree on in one operation. For send and receive, peer takes the place of root.
struct Signature {
  Operation operation = Operation::barrier;
  ReduceOp op = ReduceOp::sum;
  Dtype dtype = Dtype::u8;
  std::uint64_t count = 0;          ///< elements of the smaller buffer: what one rank gives to, or gets from, another
  std::int32_t root = -1;           ///< -1 where there is none
  std::uint64_t counts_digest = 0;  ///< of the counts of all_gather_uneven

  friend constexpr bool operator==(const Signature&, const Signature&) noexcept = default;

  [[nodiscard]] constexpr bool reduces() const noexcept {
    return operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  }

  /// Differs whenever the signatures do. The two ends of a message (send, receive) have equal digests.
  [[nodiscard]] constexpr std::uint64_t digest() const noexcept {
    const bool is_message = operation == Operation::send || operation == Operation::receive;
    std::uint64_t value = mix(0, static_cast<std::uint64_t>(is_message ? Operation::send : operation));
    value = mix(value, reduces() ? static_cast<std::uint64_t>(op) + 1 : 0);
    value = mix(value, static_cast<std::uint64_t>(dtype));
    value = mix(value, count);
    value = mix(value, is_message ? 0 : static_cast<std::uint64_t>(root + 1));
    return mix(value, counts_digest);
  }
};

[[nodiscard]] constexpr const char* exchange_text(Purpose purpose) noexcept {
  switch (purpose) {
    case Purpose::weights:
      return "the sharing of weights (prepare_optimizer())";
    case Purpose::update:
      return "the update of shared weights (step() of a prepared optimizer)";
    case Purpose::gradients:
      break;
  }
  return "the exchange of gradients";
}

/// Returns the text that messages print, such as "all_reduce(sum, 1024 x f32)".
[[nodiscard]] inline std::string describe(const Signature& signature) {
  const auto name = name_of(signature.operation);
  const auto elements = compose("{} x {}", signature.count, name_of(signature.dtype));
  switch (signature.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      return compose("{}({}, {})", name, name_of(signature.op), elements);
    case Operation::broadcast:
    case Operation::gather:
    case Operation::scatter:
      return compose("{}({}, root {})", name, elements, signature.root);
    case Operation::all_gather_uneven:
      return compose("{}({} in all, counts #{:04x})", name, elements, signature.counts_digest & 0xFFFFU);
    case Operation::send:
      return compose("{}({}, to {})", name, elements, signature.root);
    case Operation::receive:
      return compose("{}({}, from {})", name, elements, signature.root);
    case Operation::all_gather:
    case Operation::all_to_all:
      return compose("{}({})", name, elements);
    case Operation::exchange:
      return exchange_text(static_cast<Purpose>(signature.root));
    case Operation::barrier:
      break;
  }
  return "barrier()";
}

/// Says which two ranks called different things, and what to do about it.
[[nodiscard]] inline std::string disagreement(int one, std::string_view call_of_one, int other,
                                              std::string_view call_of_other) {
  return compose(
      "rank {} called {}, rank {} {}; all ranks must call the same collectives with the same sizes in the same order "
      "(worker.mean(), should_stop() and backward() call some as well)",
      one, call_of_one, other, call_of_other);
}

/// Returns "rank 1", "ranks 1 and 3", "ranks 1, 3 and 4".
[[nodiscard]] inline std::string ranks_text(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// Returns "all_reduce(sum, 1024 x f32) on rank 0/2": how every message begins.
[[nodiscard]] inline std::string place_text(std::string_view operation, int rank, int size) {
  return compose("{} on rank {}/{}", operation, rank, size);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
