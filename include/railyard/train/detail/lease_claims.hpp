// SPDX-License-Identifier: MIT
// Who may have which generation of a run, of those that want it at the same time. Train room.
#pragma once

#include "railyard/train/detail/lease_file.hpp"

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::string_view claims_name = "generations";

/// Has each generation of a run have one holder at most, however long anybody is held up at whatever step. A claim is
/// an empty file named by the generation, which one process makes: a network file system lets only one as well. It
/// stays for as long as the run's directory, for a claim that could be made again would be no one's alone. Whoever
/// makes a run's directory and then lease.json in it has the first generation by that: see HeldLease.
class LeaseClaims {
 public:
  explicit LeaseClaims(const std::filesystem::path& run, std::shared_ptr<Files> files = std::make_shared<Files>())
      : folder_(run / claims_name), files_(std::move(files)) {}

  [[nodiscard]] std::filesystem::path path(std::uint64_t generation) const {
    return folder_ / std::to_string(generation);
  }

  /// Returns the last generation that is claimed; 0 if none is. Throws: Error.
  [[nodiscard]] std::uint64_t last() const {
    // A network file system asks its server what is new in a directory that is opened: whether there is a folder by
    // now, and what is in it.
    const Descriptor run{uninterrupted([&] { return files_->open_directory(folder_.parent_path()); })};
    const auto open_folder = [&] { return files_->open_directory(folder_); };
    const Descriptor directory{run.is_open() ? uninterrupted(open_folder) : -1};
    if (!directory.is_open() && errno == ENOENT) return 0;
    std::vector<std::string> names;
    if (!directory.is_open() || uninterrupted([&] { return files_->list(folder_, names); }) != 0) fail("read", errno);
    std::uint64_t last = 0;
    for (const std::string& name : names) {
      last = std::max(last, number_between<std::uint64_t>("", name, "").value_or(0));
    }
    return last;
  }

  /// Whether any has ever been made here. Throws: Error.
  [[nodiscard]] bool have_folder() const { return is_there(*files_, folder_); }

  /// Returns whether it is this process's: false if another has made that claim. Throws: Error.
  [[nodiscard]] bool make(std::uint64_t generation) const {
    if (uninterrupted([&] { return files_->make_directory(folder_); }) != 0 && errno != EEXIST) fail("made", errno);
    const Descriptor file{uninterrupted([&] { return files_->create(path(generation)); })};
    if (!file.is_open() && errno != EEXIST) fail("written to", errno);
    return file.is_open();
  }

  /// Takes back a claim that this process has made and makes nothing of.
  void withdraw(std::uint64_t generation) const noexcept { files_->unlink(path(generation)); }

 private:
  [[noreturn]] void fail(std::string_view action, int code) const {
    throw Error{compose("{} cannot be {}: {}", folder_.string(), action, explain_errno(code))};
  }

  std::filesystem::path folder_;
  std::shared_ptr<Files> files_;
};

/// Finds out whether a claim may be passed over, as whoever has made it has written nothing into the lease since: it
/// has died in between, or is held up, and will find then that another has gone on.
class ClaimWatch {
 public:
  explicit ClaimWatch(LeaseClaims claims, const LeaseTimes& times = {}) : claims_(std::move(claims)), times_(times) {}

  /// Returns the generation after which the next one may be claimed; nothing as long as something may come of a claim
  /// on one after `held`, which is read in the lease. Throws: Error.
  [[nodiscard]] std::optional<std::uint64_t> look(std::uint64_t held) {
    const std::uint64_t last = claims_.last();
    if (last <= held) return held;
    if (!silence_ || last != watched_) {
      silence_.emplace(times_);
      watched_ = last;
    }
    if (Deadline::Clock::now() >= next_look_) {
      next_look_ = Deadline::Clock::now() + times_.beat;
      static_cast<void>(silence_->look(LeaseFile{claims_.path(last)}));
    }
    return silence_->is_over() ? std::optional{last} : std::nullopt;
  }

 private:
  LeaseClaims claims_;
  LeaseTimes times_;
  std::optional<LeaseSilence> silence_{};
  std::uint64_t watched_ = 0;
  Deadline::Clock::time_point next_look_ = Deadline::Clock::now();
};

}  // namespace detail
}  // namespace railyard::inline v0_1
