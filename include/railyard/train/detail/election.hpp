// SPDX-License-Identifier: MIT
// How the processes that are left of a run come to be led again, when the one that led is lost. Train room.
#pragma once

#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/lease_claims.hpp"
#include "railyard/train/detail/lease_file.hpp"
#include "railyard/train/detail/patience.hpp"
#include "railyard/train/detail/preemption_notice.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/together.hpp"
#include "railyard/train/run_config.hpp"

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/workers/detail/signal_watch.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::string_view leader_file_name = "leader.json";

/// Says, in a run's directory, where the process listens that has the run by that lease. No secret is in it: whoever
/// answers there has to know that.
struct LeaderPosting {
  LeaseId lease{};
  LeaderPlace place{};

  /// Returns what went wrong, or an empty text.
  [[nodiscard]] std::string write(const std::filesystem::path& run,
                                  std::shared_ptr<Files> files = std::make_shared<Files>()) const {
    JsonObject object;
    object.add("generation", lease.generation).add("id", lease.id).add("process", place.process);
    object.add("host", place.host).add("port", place.port);
    return write_object(run / leader_file_name, object, true, std::move(files));
  }

  /// Returns nothing if there is none. The directory is opened first, so that a network file system asks its server
  /// what is new in it.
  [[nodiscard]] static std::optional<LeaderPosting> read(const std::filesystem::path& run) {
    try {
      Files files;
      const Descriptor directory{files.open_directory(run)};
      const Json json = parse_json(text_of_file(run / leader_file_name));
      LeaderPosting posting{.lease = {json.at("generation").as<std::uint64_t>(), std::string{json.at("id").text()}},
                            .place = {.process = json.at("process").as<int>(),
                                      .host = std::string{json.at("host").text()},
                                      .port = json.at("port").as<int>()}};
      posting.place.generation = posting.lease.generation;
      return posting;
    } catch (const std::exception&) {  // there is none, or it is damaged
      return std::nullopt;
    }
  }
};

/// Returns where the process listens that was chosen to lead the run, if it goes on.
[[nodiscard]] inline std::optional<LeaderPlace> chosen_leader(const RunConfig& config) {
  if (config.name.empty()) return std::nullopt;
  const std::filesystem::path run = config.storage_path / config.name;
  const auto posting = LeaderPosting::read(run);
  const auto holder = posting ? LeaseFile{run / "lease.json"}.read() : std::nullopt;
  if (!holder || holder->has_ended || holder->lease != posting->lease) return std::nullopt;
  return posting->place;
}

/// Whether the directory of a run is to be seen from here, as who has that lease has told of it. What is there without
/// that lease may be another run's, where storage is not shared. patience: with a network file system that has not yet
/// heard of it.
[[nodiscard]] inline bool sees_lease(const std::filesystem::path& run, const LeaseId& lease,
                                     std::chrono::nanoseconds patience = std::chrono::seconds{1}) {
  const LeaseFile file{run / "lease.json"};
  Files files;
  const Deadline deadline = Deadline::after(patience);
  while (true) {
    const Descriptor directory{files.open_directory(run)};  // a network file system asks its server then
    const auto now = file.read();
    if (now && now->lease == lease) return true;
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
}

/// Is how an election has ended for a process: it leads, or follows another.
struct Elected {
  std::optional<RunLease> lease{};  ///< of the run, if it leads
  LeaseId leader{};
};

/// Decides who leads, by the lease of the run: whoever takes it over, which one can. Holds signals until its end, so
/// that one which would end the program ends the election instead.
template <JoiningScaling S>
class Election {
 public:
  /// All must outlive it. run: the run's directory. say: is told what people should see.
  Election(S& scaling, std::filesystem::path run, const RunConfig& config, std::function<void(const std::string&)> say,
           const LeaseTimes& times = {})
      : scaling_(&scaling),
        run_(std::move(run)),
        config_(&config),
        notice_(config.preemption),
        say_(std::move(say)),
        times_(times),
        file_(run_ / "lease.json"),
        claims_(LeaseClaims{run_}, times) {}

  /// lost: as whoever led has told of it. why: how it was found out that it is lost.
  /// Throws: HostLostError that says why the run cannot go on here.
  [[nodiscard]] Elected hold(const BegunRun& lost, std::string_view why) {
    why_ = why;
    static_cast<void>(notice_.look_out());
    if (say_) say_(compose("{}; those that are left look for another", why_));
    const std::chrono::nanoseconds least = 2 * times_.patience;  // whoever leads next has to find a silence first
    const Deadline end = config_->start_timeout < least
                             ? Deadline::after(least)
                             : Deadline::after(config_->start_timeout, "RunConfig::start_timeout");
    const Deadline sight = Deadline::after(std::min<std::chrono::nanoseconds>(config_->start_timeout, time_to_see));
    AwakeTime time;  // the one that led may have been suspended with this process, and those that come with it
    AwakeTime time_in_sight;
    std::optional<LeaseHolderWatch> watch;
    bool is_seen = lost.is_seen;
    while (true) {
      const bool is_late = time.is_over(end);
      const bool is_out_of_sight = time_in_sight.is_over(sight);
      const auto now = file_.read();
      is_seen = is_seen || (now && now->lease == lost.lease);
      if (is_seen && now && now->lease.generation >= lost.lease.generation) {
        if (!watch || watch->holder().lease != now->lease) watch.emplace(*now, times_);
        const bool is_new = now->lease != lost.lease;
        if (is_new) time.be_busy(time_to_connect);
        if (is_new && follows(now->lease)) return {.leader = now->lease};
        if (now->has_ended && !now->is_left)
          give_up(compose("process {} on {} has ended the run", now->pid, now->host));
        if (watch->is_over(file_, *now)) {
          if (auto lease = claim(*now, watch->is_silent())) return {.lease = std::move(lease)};
        }
      } else if (!watch && is_out_of_sight) {
        give_up(
            compose("{} is not to be seen here, or is of another run, and without it no other process can lead: keep "
                    "RunConfig::storage_path where all processes see it",
                    file_.path().string()));
      }
      if (is_late) give_up(reason_at_end(watch, lost.lease, end));
      pause(slice);
    }
  }

  /// Waits, as the one that has the lease, for those that are left, and leads them then.
  /// Throws: HostLostError if the lease is lost, the run is to end, or this process cannot listen; Error if one of them
  /// does not belong to the run.
  void lead(RunLease& lease) {
    try {
      if (const std::string loss = lease.keep_alive(); say_ && !loss.empty()) say_(loss);
      const Deadline end = Deadline::after(std::min(config_->silence_limit, config_->start_timeout));
      const LeaderPosting posting{.lease = lease.id(), .place = offer(lease.generation())};
      // One that was held up until now must not write over where another listens.
      if (const std::string taker = lease.taker(true); !taker.empty()) give_up(taker);
      if (const std::string loss = posting.write(run_); !loss.empty()) give_up(loss);
      AwakeTime time;
      while (!scaling_->take_place(Deadline::after(slice), time.is_over(end))) {
        if (const std::string taker = lease.taker(false); !taker.empty()) give_up(taker);
        pause(time.until_next_look(end));
      }
    } catch (...) {
      lease.leave_to_others();
      throw;
    }
  }

  /// Returns with how many workers those go on that are there. Throws: HostLostError if they are too few.
  [[nodiscard]] int find_room(ElasticSize& size) {
    const auto found = size.wait(
        config_->start_timeout, [this](auto time) { return sleeps_unless([this] { return is_asked_to_end(); }, time); },
        [this](const std::string& text) {
          if (say_) say_(text);
        });
    if (found && !is_asked_to_end()) return *found;
    give_up(end_sign_.empty() ? size.no_room() : compose("{} came", end_sign_));
  }

  /// Whether a signal or a file asks the run to end. Remembered.
  [[nodiscard]] bool is_asked_to_end() {
    while (const auto signal = signals_.take()) {
      if (notice_.concerns_run(*signal)) end_sign_ = signal_name(*signal);
    }
    if (notice_.take_file()) end_sign_ = config_->preemption.file.string();
    return !end_sign_.empty();
  }

 private:
  static constexpr std::chrono::milliseconds slice{50};
  static constexpr std::chrono::seconds time_to_see{5};
  static constexpr std::chrono::seconds time_to_connect{3};

  [[nodiscard]] LeaderPlace offer(std::uint64_t generation) {
    try {
      return scaling_->offer(generation);
    } catch (const Error& error) {
      give_up(compose("this process was to lead, and cannot listen: {}", error.what()));
    }
  }

  [[nodiscard]] bool follows(const LeaseId& leader) {
    const auto posting = LeaderPosting::read(run_);
    return posting && posting->lease == leader &&
           scaling_->try_to_follow(posting->place, Deadline::after(time_to_connect));
  }

  [[nodiscard]] std::optional<RunLease> claim(const LeaseContent& from, bool is_silent) {
    try {
      if (const auto last = claims_.look(from.lease.generation)) {
        return std::optional<RunLease>{std::in_place, run_, from, is_silent, *last, times_};
      }
      hindrance_ = "another process has claimed it, and has not come to lead it";
      return std::nullopt;
    } catch (const Error& error) {  // another was faster, or the storage takes nothing
      hindrance_ = error.what();
      return std::nullopt;
    }
  }

  [[nodiscard]] std::string reason_at_end(const std::optional<LeaseHolderWatch>& watch, const LeaseId& lost,
                                          const Deadline& end) const {
    if (!watch) return compose("{} cannot be read", file_.path().string());
    const LeaseContent& holder = watch->holder();
    const std::string time = end.budget_text();
    if (!hindrance_.empty()) return compose("no other process has come to lead it within {}: {}", time, hindrance_);
    if (holder.lease == lost && !watch->gives_signs()) {
      return compose(
          "whether process {} on {}, which led, still lives cannot be told from {} within {}: its storage stalls",
          holder.pid, holder.host, file_.path().string(), time);
    }
    if (holder.lease == lost) {
      return compose(
          "process {} on {}, which led, still gives signs of life in {} after {}, and goes on without this one",
          holder.pid, holder.host, file_.path().string(), time);
    }
    return compose("process {} on {} leads now, and could not be reached within {}", holder.pid, holder.host, time);
  }

  void pause(std::chrono::nanoseconds at_most) {
    const auto time = std::min<std::chrono::nanoseconds>(slice, at_most);
    if (!sleeps_unless([this] { return is_asked_to_end(); }, time)) give_up(compose("{} came", end_sign_));
  }

  [[noreturn]] void give_up(std::string_view reason) const { throw HostLostError{compose("{}; {}", why_, reason)}; }

  S* scaling_;
  std::filesystem::path run_;
  const RunConfig* config_;
  PreemptionNotice notice_;
  std::function<void(const std::string&)> say_;
  LeaseTimes times_;
  LeaseFile file_;
  ClaimWatch claims_;
  SignalWatch signals_{};
  std::string why_{};
  std::string hindrance_{};
  std::string end_sign_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
