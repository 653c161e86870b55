// SPDX-License-Identifier: MIT
// Which attempt of a job its processes belong to, as they agree on it in the store of torchrun's agents. Workers room.
#pragma once

#include "railyard/workers/detail/torch_store.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Counts how often each process of a job has come, over all attempts: agents tell their processes how often they
/// themselves have restarted theirs after a failure, which is not the same on all hosts, and stays the same when a host
/// joins or leaves. Of two that say they are the same process, the one that has come later is meant; how often process
/// 0 has come is the generation of the attempt that it leads. The store is believed to count, and nothing more: who
/// alters it there keeps a run from beginning, and does not get into it.
class TorchArrivals {
 public:
  /// Stands before the keys of all attempts.
  static constexpr std::string_view prefix = "railyard";
  using Say = std::function<void(const std::string&)>;

  /// Nobody counts.
  TorchArrivals() = default;
  /// process: that it is. Waits for the store until the deadline, and counts this arrival. say: is told if the store is
  /// lost later on. Throws: Error if there is no store that counts.
  TorchArrivals(const std::string& host, int port, int process, Say say, const Deadline& deadline)
      : process_(process), say_(std::move(say)), store_(std::in_place, host, port, prefix, deadline) {
    own_ = add(process, 1);
  }

  /// Which arrival of its process this one is, from 1; 0 where nobody counts.
  [[nodiscard]] std::uint32_t own() const noexcept { return own_; }
  /// How often a process has come so far, as far as it is known. A store that is lost now ends with its agent, and then
  /// torchrun starts everything again.
  [[nodiscard]] std::uint32_t last_of(int process) {
    try {
      return store_ ? add(process, 0) : 0;
    } catch (const Error& error) {
      if (say_) say_(compose("whether the job is at a later attempt is not known any more: {}", error.what()));
      store_.reset();
      return 0;
    }
  }
  /// Throws: Error if this process has come again since, in a later attempt.
  void throw_if_outdated() {
    if (last_of(process_) <= own_) return;
    throw Error{
        compose("this process is of an earlier attempt of the job: torchrun has started another process {} since, and "
                "this one has to end",
                process_)};
  }
  /// Is done with the store.
  void leave() noexcept { store_.reset(); }

 private:
  static constexpr std::chrono::seconds answer_time{5};

  [[nodiscard]] std::uint32_t add(int process, int amount) {
    const std::string key = compose("arrivals/{}", process);
    const std::int64_t number = store_->add(key, amount, Deadline::after(answer_time));
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (number >= amount && number <= most) return static_cast<std::uint32_t>(number);
    throw Error{compose(R"(torchrun's store holds {} under "{}", which counts how often process {} has come)", number,
                        key, process)};
  }

  int process_ = 0;
  Say say_{};
  std::uint32_t own_ = 0;
  std::optional<TorchStore> store_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
