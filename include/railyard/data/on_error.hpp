// SPDX-License-Identifier: MIT
// What becomes of the samples of a source that are damaged. Data room.
#pragma once

#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/version.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Says whether a source stops at a damaged sample, or leaves it out as if it were not there. A record that is longer
/// than it may be counts as one, and what of a compressed file cannot be unpacked: reading goes on with the next
/// record, or file. A check sum of gzip or zstd that is wrong counts as one as well, and nothing is left out: what it
/// belongs to has been given by then. Files that are not there, or whose storage fails, are errors.
class OnError {
 public:
  /// The first one is an error.
  [[nodiscard]] static constexpr OnError stop() noexcept { return OnError{0}; }
  /// All of them are left out, and counted.
  [[nodiscard]] static constexpr OnError skip() noexcept { return OnError{std::numeric_limits<std::uint64_t>::max()}; }
  /// So many are left out, and one more is an error.
  [[nodiscard]] static constexpr OnError at_most(std::uint64_t max_skips) noexcept { return OnError{max_skips}; }

  [[nodiscard]] constexpr std::uint64_t max_skips() const noexcept { return max_skips_; }
  [[nodiscard]] constexpr bool stops_at_once() const noexcept { return max_skips_ == 0; }

 private:
  constexpr explicit OnError(std::uint64_t max_skips) noexcept : max_skips_(max_skips) {}

  std::uint64_t max_skips_;
};

namespace detail {

/// Returns a number that tells which samples are left out: of those that are damaged, and of those above a limit.
[[nodiscard]] inline std::uint64_t fingerprint_of(OnError policy, std::uint64_t limit) noexcept {
  if (policy.stops_at_once()) return 0;
  Fingerprint fingerprint;
  fingerprint.add(policy.max_skips());
  fingerprint.add(limit);
  return fingerprint.value();
}

}  // namespace detail

/// Counts the samples that were left out; copies share the count, of what their process has read. Samples that are read
/// again do not count again.
class SkipCount {
 public:
  [[nodiscard]] std::uint64_t count() const noexcept { return shared_->count.load(std::memory_order_relaxed); }
  /// Takes note that so many were left out of all that lie before the place where a reader is.
  void raise_to(std::uint64_t count) const noexcept {
    std::uint64_t seen = shared_->count.load(std::memory_order_relaxed);
    while (seen < count && !shared_->count.compare_exchange_weak(seen, count, std::memory_order_relaxed)) {
    }
  }
  /// Says what it was that counts as one and may have been many samples; of very many only the first are kept.
  void name(const std::string& what) const {
    constexpr std::size_t most = 8;
    const std::lock_guard lock{shared_->mutex};
    std::vector<std::string>& names = shared_->names;
    if (names.size() < most && std::find(names.begin(), names.end(), what) == names.end()) names.push_back(what);
  }
  /// What name() has said, each once.
  [[nodiscard]] std::vector<std::string> names() const {
    const std::lock_guard lock{shared_->mutex};
    return shared_->names;
  }

 private:
  struct Shared {
    std::atomic<std::uint64_t> count{0};
    std::mutex mutex{};
    std::vector<std::string> names{};
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace railyard::inline v0_1
