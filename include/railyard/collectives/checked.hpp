// SPDX-License-Identifier: MIT
// Makes the ranks of any backend compare what they call before they call it. Collectives room.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Wraps a backend: before each operation the ranks compare operation, reduction, count, dtype and root, and throw
/// CollectiveError on all ranks, with both sides named, if they differ. For debugging and tests: found at once instead
/// of when a rank has waited for long. Use it in the place of the backend: Trainer<Checked<Gloo>, Processes>. Cost: one
/// all_gather of 40 bytes more for each operation; for send and receive a message in either direction.
template <ConnectingBackend B>
class Checked {
 public:
  static constexpr std::string_view name = B::name;
  static constexpr Reach reach = B::reach;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;
  static_assert(B::device_kind == DeviceKind::cpu,
                "Checked exchanges its signatures in CPU memory: wrap a CPU backend.");

  using Options = typename B::Options;

  static void check(const Options& options) { B::check(options); }

  [[nodiscard]] static std::unique_ptr<Checked> connect(const Options& options, const World& world, Store& store,
                                                        const Deadline& deadline) {
    return std::unique_ptr<Checked>{new Checked{world, B::connect(options, world, store, deadline)}};
  }

  auto all_reduce(Buffer data, ReduceOp op, const Call& call) {
    compare(arguments().all_reduce(data, op), call);
    return backend_->all_reduce(data, op, call);
  }
  auto reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    compare(arguments().reduce_scatter(in, out, op), call);
    return backend_->reduce_scatter(in, out, op, call);
  }
  auto broadcast(Buffer data, int root, const Call& call) {
    compare(arguments().broadcast(data, root), call);
    return backend_->broadcast(data, root, call);
  }
  auto all_gather(ConstBuffer in, Buffer out, const Call& call) {
    compare(arguments().all_gather(in, out), call);
    return backend_->all_gather(in, out, call);
  }
  auto all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    compare(arguments().all_gather_uneven(in, out, counts), call);
    return backend_->all_gather_uneven(in, out, counts, call);
  }
  auto gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    compare(arguments().gather(in, out, root), call);
    return backend_->gather(in, out, root, call);
  }
  auto scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    compare(arguments().scatter(in, out, root), call);
    return backend_->scatter(in, out, root, call);
  }
  auto all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    compare(arguments().all_to_all(in, out), call);
    return backend_->all_to_all(in, out, call);
  }
  auto barrier(const Call& call) {
    compare({.operation = detail::Operation::barrier}, call);
    return backend_->barrier(call);
  }
  auto send(ConstBuffer data, int peer, const Call& call) {
    const auto signature = arguments().send(data, peer);
    const Record own = encode(signature);
    Record theirs{};
    exchange(signature, [&] {
      backend_->send(view(own), peer, call).wait(call.deadline);
      backend_->receive(view(theirs), peer, call).wait(call.deadline);
    });
    compare_message(signature, decode(theirs));
    return backend_->send(data, peer, call);
  }
  auto receive(Buffer data, int peer, const Call& call) {
    const auto signature = arguments().receive(data, peer);
    const Record own = encode(signature);
    Record theirs{};
    exchange(signature, [&] {
      backend_->receive(view(theirs), peer, call).wait(call.deadline);
      backend_->send(view(own), peer, call).wait(call.deadline);
    });
    compare_message(signature, decode(theirs));
    return backend_->receive(data, peer, call);
  }
  void abort(std::string_view reason) noexcept { backend_->abort(reason); }

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t num_words = 5;
  static constexpr std::string_view lost_before = "the group was lost before: ";
  using Record = std::array<std::int64_t, num_words>;

  Checked(const World& world, std::unique_ptr<B> backend) : world_(world), backend_(std::move(backend)) {}

  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  [[nodiscard]] static ConstBuffer view(const Record& record) noexcept { return buffer_of(record); }
  [[nodiscard]] static Buffer view(Record& record) noexcept { return buffer_of(record); }

  // Ranks are processes of one program, so that words in the machine's own order will do.
  [[nodiscard]] static Record encode(const detail::Signature& signature) noexcept {
    return {static_cast<std::int64_t>(signature.operation),
            static_cast<std::int64_t>(signature.op) * 256 + static_cast<std::int64_t>(signature.dtype),
            static_cast<std::int64_t>(signature.count), signature.root,
            static_cast<std::int64_t>(signature.counts_digest)};
  }
  [[nodiscard]] static detail::Signature decode(const Record& record) noexcept {
    return {.operation = static_cast<detail::Operation>(record[0]),
            .op = static_cast<ReduceOp>(record[1] / 256),
            .dtype = static_cast<Dtype>(record[1] % 256),
            .count = static_cast<Word>(record[2]),
            .root = static_cast<std::int32_t>(record[3]),
            .counts_digest = static_cast<Word>(record[4])};
  }

  // Runs the exchange of signatures, whose failure is a failure of the operation that it serves.
  template <class Exchange>
  void exchange(const detail::Signature& own, const Exchange& exchange_all) {
    throw_if_lost(own);
    try {
      exchange_all();
    } catch (const CollectiveError& error) {
      std::string_view text = error.what();
      const auto inner_place = detail::place_text(error.operation(), world_.rank, world_.size) + ": ";
      if (text.starts_with(inner_place)) text.remove_prefix(inner_place.size());
      failure_ = text.starts_with(lost_before) ? text.substr(lost_before.size()) : text;
      blamed_ = error.blamed();
      throw_failure(own, text.starts_with(lost_before) ? lost_before : "");
    }
  }

  void compare(const detail::Signature& own, const Call& call) {
    const Record record = encode(own);
    std::vector<std::int64_t> records(num_words * static_cast<std::size_t>(world_.size));
    exchange(own, [&] { backend_->all_gather(view(record), buffer_of(records), call).wait(call.deadline); });
    detail::Signature first{};
    for (int rank = 0; rank < world_.size; ++rank) {
      Record theirs{};
      std::memcpy(theirs.data(), records.data() + static_cast<std::size_t>(rank) * num_words, sizeof theirs);
      if (rank == 0) first = decode(theirs);
      if (decode(theirs) != first) lose(own, rank, decode(theirs), 0, first);  // the same sentence on every rank
    }
  }

  void compare_message(const detail::Signature& own, const detail::Signature& theirs) {
    if (own.digest() == theirs.digest() && own.operation != theirs.operation) return;
    if (own.root > world_.rank) lose(own, own.root, theirs, world_.rank, own);
    lose(own, world_.rank, own, own.root, theirs);
  }

  [[noreturn]] void lose(const detail::Signature& own, int a, const detail::Signature& of_a, int b,
                         const detail::Signature& of_b) {
    failure_ = detail::disagreement(a, detail::describe(of_a), b, detail::describe(of_b));
    blamed_ = {std::min(a, b), std::max(a, b)};
    throw_failure(own, "");
  }

  void throw_if_lost(const detail::Signature& signature) const {
    if (!failure_.empty()) throw_failure(signature, lost_before);
  }

  [[noreturn]] void throw_failure(const detail::Signature& signature, std::string_view when) const {
    const std::string operation = detail::describe(signature);
    throw CollectiveError{
        operation, world_.rank, blamed_,
        detail::compose("{}: {}{}", detail::place_text(operation, world_.rank, world_.size), when, failure_)};
  }

  World world_;
  std::unique_ptr<B> backend_;
  std::string failure_{};
  std::vector<int> blamed_{};
};

}  // namespace railyard::inline v0_1
