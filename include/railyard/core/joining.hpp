// SPDX-License-Identifier: MIT
// The concept of a Scaling whose processes something else has started: they find each other first. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/launch_config.hpp"
#include "railyard/core/scaling.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {

/// Says which GPUs a process is shown, where each worker is to have one.
struct JoinDevices {
  std::int32_t count = -1;  ///< -1: none are asked for
  std::string only{};       ///< names it, if there is no more than one
  std::string how{};        ///< how they were found, in words
};

/// Says where a process listens that leads.
struct LeaderPlace {
  int process = 0;
  std::string host{};
  int port = 0;
  std::uint64_t generation = 0;  ///< of its leading: who means another is turned away
};

/// Says what a process knows that has lost the one that led.
struct LostLead {
  bool may_go_on = false;       ///< a process that is left may lead instead: whoever has started them leaves them alone
  int process = 0;              ///< which is lost
  int own_process = 0;          ///< which asks
  std::string note{};           ///< what it has asked to remember, last
  std::uint64_t num_steps = 0;  ///< the most that any worker of this process had ended since they were started
};

/// Says what one process brings with it when the processes of a run find each other.
struct JoinPlan {
  LaunchConfig launch{};
  int num_workers = 1;      ///< that this process makes
  bool is_elastic = false;  ///< num_workers is the most of all processes together, of which this one makes its share;
                            ///< those that are lost are done without, and may come back
  std::string settings{};   ///< what must be the same in all processes, in words
  std::chrono::nanoseconds timeout = std::chrono::minutes{1};
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};  ///< after which another process counts as lost
  std::function<void(const std::string& line)> say{};                 ///< is told what the user should see
  JoinDevices devices{};
  RequestHandler on_request{};  ///< where this process follows
  /// Returns where the one listens that was chosen to lead after process 0, if the run goes on under such a one.
  std::function<std::optional<LeaderPlace>()> find_chosen{};
};

/// Is a Scaling of processes that others have started. One of them leads: only there is start() called, for the workers
/// of all; the others follow, and make and end theirs as they are told.
///
/// Laws: by the timeout join() returns in every process, or throws in every one that is alive; where it has returned
/// before the leader's throws, the first hear() throws the same. What the leader tells is heard by all others, in
/// order. follow() returns when the leader has told the next text, and leaves no worker behind; if the leader is lost,
/// the followers' calls throw HostLostError. room() lets in who has come back. When the leader is lost, one of the
/// others may take its place, and see to it that it is the only one: it calls offer(), has the others call
/// try_to_follow() with what that returns, and take_place() until that returns true, or it waits for them no longer;
/// then it leads, with those that have come.
template <class S>
concept JoiningScaling = Scaling<S> &&
    requires(S& scaling, const JoinPlan& plan, const WorkerBody& body, std::string_view text, const Deadline& deadline,
             bool is_last, const LeaderPlace& place) {
  scaling.join(plan);
  { scaling.leads() } -> std::same_as<bool>;
  { scaling.num_processes() } -> std::same_as<int>;
  { scaling.num_workers() } -> std::same_as<int>;   // of all processes together
  { scaling.room() } -> std::same_as<int>;          // for workers, now; HostLostError if too many processes are lost
  scaling.tell(text);                               // by the leader
  scaling.note(text);                               // by the leader: for LostLead
  { scaling.hear() } -> std::same_as<std::string>;  // by the others
  { scaling.follow(body) } -> std::same_as<std::string>;
  { scaling.lost_lead() } -> std::same_as<LostLead>;
  { scaling.offer(std::uint64_t{}) } -> std::same_as<LeaderPlace>;
  { scaling.take_place(deadline, is_last) } -> std::same_as<bool>;
  { scaling.try_to_follow(place, deadline) } -> std::same_as<bool>;
};

}  // namespace railyard::inline v0_1
