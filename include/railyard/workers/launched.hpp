// SPDX-License-Identifier: MIT
// Workers of processes that an engine has started - Slurm, MPI, torchrun, Kubernetes - on one host or many. Workers
// room.
#pragma once

#include "railyard/workers/detail/agent.hpp"
#include "railyard/workers/detail/agent_lines.hpp"
#include "railyard/workers/detail/bulletin.hpp"
#include "railyard/workers/detail/host_identity.hpp"
#include "railyard/workers/detail/launch_environment.hpp"
#include "railyard/workers/detail/launch_secret.hpp"
#include "railyard/workers/detail/launched_group.hpp"
#include "railyard/workers/detail/launched_link.hpp"
#include "railyard/workers/detail/launched_members.hpp"
#include "railyard/workers/detail/listener.hpp"
#include "railyard/workers/detail/own_address.hpp"
#include "railyard/workers/processes.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a process tells the leader of itself when it comes.
struct Newcomer {
  std::int32_t num_workers = 1;
  std::string host{};  ///< a HostIdentity, and how people call it
  std::string host_name{};
  std::string settings{};
  JoinDevices devices{};

  [[nodiscard]] std::string encode() const {
    WireWriter writer;
    writer.put(num_workers);
    for (const std::string* text : {&host, &host_name, &settings}) writer.put_text(*text);
    writer.put(devices.count);
    for (const std::string* text : {&devices.only, &devices.how}) writer.put_text(*text);
    return writer.text();
  }
  [[nodiscard]] static Newcomer decode(std::string_view text) {
    WireReader reader{text};
    Newcomer one{.num_workers = reader.take<std::int32_t>()};
    for (std::string* part : {&one.host, &one.host_name, &one.settings}) *part = reader.take_text();
    one.devices.count = reader.take<std::int32_t>();
    for (std::string* part : {&one.devices.only, &one.devices.how}) *part = reader.take_text();
    return one;
  }
};

}  // namespace detail

/// Joins the processes that an engine has started, each of which calls fit(), to one run. Each makes
/// ScalingConfig::num_workers workers, as Processes does: one where the engine starts a process for every rank, as many
/// as there are cores where it starts one for every host. Process 0 leads: what a run writes and says comes from there.
/// Where nothing has started the process, it is alone, and all is as with Processes.
///
/// Who has started it is found out from LaunchConfig, else from the environment. Processes of several hosts need
/// something to know each other by: a secret in RAILYARD_SECRET_FILE or RAILYARD_SECRET, or a folder that all of them
/// see (LaunchConfig::rendezvous), or a launcher that passes values between them (PMI). With LaunchConfig::tls all that
/// they send to each other goes by TLS 1.3.
class Launched {
 public:
  static constexpr std::string_view name = "Launched";
  static constexpr Reach reach = Reach::network;
  static constexpr bool copies_function = false;

  /// Throws: ConfigError if what this process was told makes no sense; Error that names who did not come.
  /// Costs: some milliseconds once all have come.
  void join(const JoinPlan& plan) {
    plan_ = plan;
    launch_ = detail::find_launch(plan.launch);
    has_tls_ = detail::wants_tls(plan.launch);
    const Deadline deadline = Deadline::after(plan.timeout, "RunConfig::start_timeout");
    detail::Newcomer own{.num_workers = own_workers(),
                         .host = detail::host_identity(),
                         .host_name = detail::host_name(),
                         .settings = plan.settings,
                         .devices = plan.devices};
    if (launch_.num_processes == 1) {
      members_ = {.workers = {own.num_workers}, .hosts = {own.host}, .devices = {own.devices}};
      return;
    }
    const std::string subject =
        detail::compose("process {} of {} ({})", launch_.process, launch_.num_processes, own.host_name);
    detail::WaitTeller teller{subject, plan.say};
    auto bulletin = detail::choose_bulletin(launch_, plan.launch, teller, deadline);
    if (leads()) {
      say(detail::compose("{}; the processes meet in {}", launch_.why, bulletin->where()));
      gather(*bulletin, std::move(teller), std::move(own), deadline);
      if (plan.is_elastic) bulletin_ = std::move(bulletin);  // who comes back looks there
    } else {
      find_leader(*bulletin, own, deadline);
    }
  }

  [[nodiscard]] bool leads() const noexcept { return launch_.process == 0; }
  [[nodiscard]] int num_processes() const noexcept { return launch_.num_processes; }
  /// Of all processes together; known to the leader.
  [[nodiscard]] int num_workers() const noexcept {
    return std::accumulate(members_.workers.begin(), members_.workers.end(), 0);
  }

  /// Of those processes that are there, also those that have come back just now. The leader goes on with no fewer than
  /// half of the processes that had a part before: the others may have lost it, and go on themselves.
  /// Throws: HostLostError if there are fewer.
  [[nodiscard]] int room() {
    if (!lines_) return num_workers();
    if (plan_.is_elastic) let_in();
    int room = 0, num_before = 0, num_left = 0;
    for (int process = 0; process < num_processes(); ++process) {
      const bool is_there = process == 0 || lines_->loss(process).empty();
      if (is_there) room += members_.workers[index(process)];
      if (!members_.has_part.empty() && !members_.has_part[index(process)]) continue;
      ++num_before;
      num_left += is_there ? 1 : 0;
    }
    if (2 * num_left >= num_before) return room;
    throw HostLostError{
        detail::compose("{} of {} processes {} left, and the others may go on: fewer than half of them must not",
                        num_left, num_before, num_left == 1 ? "is" : "are")};
  }

  /// Starts the workers of all processes; without a join(), of this one.
  /// Throws: ConfigError if the plan or the limits of a process do not allow it, Error if the system cannot do it.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body) {
    if (!lines_) return Processes{}.start(plan, body);
    detail::check_plan(plan, body);
    detail::check_devices(members_);
    detail::prepare_to_fork(members_.workers.front());
    return std::make_unique<detail::LaunchedGroup>(
        plan, body_of(body), members_, *lines_, 0,
        [listener = listener_.get()](std::uint32_t generation) { listener->reset_store(generation); });
  }

  void tell(std::string_view text) {
    told_ = text;
    if (lines_) lines_->post_to_all(detail::Order::tell, detail::text_bytes(text));
  }
  [[nodiscard]] std::string hear() { return follow({}); }
  [[nodiscard]] std::string follow(const WorkerBody& body) {
    const WorkerBody own = body ? body_of(body) : body;
    if (own) detail::prepare_to_fork(own_workers());
    detail::Agent agent{*leader_, own, plan_.silence_limit, plan_.on_request};
    try {
      return agent.run();
    } catch (const detail::ConnectionError& error) {
      throw HostLostError{detail::compose("process {} of {} has lost the one that leads the run: {}", launch_.process,
                                          launch_.num_processes, error.what())};
    }
  }

 private:
  static std::size_t index(int process) noexcept { return static_cast<std::size_t>(process); }

  [[nodiscard]] int own_workers() const {
    if (plan_.is_elastic && plan_.num_workers < launch_.num_processes) {
      throw ConfigError{detail::compose(
          "ScalingConfig::num_workers allows {} workers together, and {} has started {} processes, each of which makes "
          "one at least: allow as many, or start fewer",
          plan_.num_workers, launch_.launcher, launch_.num_processes)};
    }
    if (plan_.is_elastic) {
      const int share = detail::share_of(plan_.num_workers, launch_.process, launch_.num_processes);
      return plan_.devices.count < 0 ? share : std::clamp(plan_.devices.count, 1, share);
    }
    const bool says_launcher = launch_.workers_per_process > 0 && plan_.num_workers == 1;
    return says_launcher ? launch_.workers_per_process : plan_.num_workers;
  }

  [[nodiscard]] bool is_one_host() const { return detail::is_one_host(launch_); }
  [[nodiscard]] detail::ConnectionLimits limits() const { return {.has_tls = has_tls_}; }

  [[nodiscard]] WorkerBody body_of(const WorkerBody& body) const {
    return [body, place = place_, secret = *secret_, address = address_](WorkerLink& own) {
      detail::LaunchedLink link{own, place, secret, address};
      body(link);
    };
  }

  // Of the leader: listens, leaves its address, and waits for all others.
  void gather(detail::Bulletin& bulletin, detail::WaitTeller teller, detail::Newcomer own, const Deadline& deadline) {
    const std::string secret =
        detail::find_secret(plan_.launch).value_or(bulletin.carries_secret() ? bulletin.make_secret() : std::string{});
    if (secret.empty()) detail::refuse_without_secret(bulletin.where());
    secret_.emplace(detail::text_bytes(secret));
    address_ = detail::own_address_towards(launch_.leader_host, plan_.launch.network, !is_one_host());
    const auto generation = static_cast<std::uint32_t>(launch_.restart);
    listener_ =
        std::make_unique<detail::Listener>(detail::ListenerOptions{.host = is_one_host() ? address_ : std::string{},
                                                                   .port = bulletin.port_to_listen_on(),
                                                                   .job = launch_.job,
                                                                   .generation = generation,
                                                                   .limits = limits(),
                                                                   .on_refusal = plan_.say},
                                           *secret_);
    bulletin.post({.host = address_,
                   .port = listener_->port(),
                   .generation = generation,
                   .secret = bulletin.carries_secret() ? secret : std::string{}});
    place_ = {.host = address_,
              .port = listener_->port(),
              .job = launch_.job,
              .limits = limits(),
              .ticket = listener_->ticket()};

    std::vector<std::optional<detail::AgentConnection>> agents(static_cast<std::size_t>(launch_.num_processes));
    teller.start();
    for (int num_missing = launch_.num_processes - 1; num_missing > 0;) {
      constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{200};
      auto agent = listener_->take_agent(deadline.remaining() < slice ? deadline : Deadline::after(slice));
      if (agent) {
        if (!agent->misfit.empty()) throw ConfigError{agent->misfit};
        const auto process = static_cast<std::size_t>(agent->hello.process);
        if (process == 0 || process >= agents.size() || agents[process]) {
          throw ConfigError{detail::compose(
              "two processes of this job say that they are number {} of {}, the second one is {}: each needs a number "
              "of its own, and the same one as its launcher says",
              agent->hello.process, launch_.num_processes, agent->connection.peer())};
        }
        agents[process] = std::move(agent);
        --num_missing;
        continue;
      }
      const std::string missing = missing_text(agents);
      if (deadline.expired()) {
        throw Error{detail::compose(
            "{}: {} did not come within {}: see whether they run, what they print, and whether they can reach {} port "
            "{}, which this process has left in {}",
            teller.subject(), missing, deadline.budget_text(), address_, listener_->port(), bulletin.where())};
      }
      teller.look(missing, deadline);
    }
    if (!plan_.is_elastic) listener_->expect_no_more_agents();
    take_in(agents, std::move(own));
  }

  static std::string missing_text(const std::vector<std::optional<detail::AgentConnection>>& agents) {
    std::vector<int> missing;
    for (std::size_t process = 1; process < agents.size(); ++process) {
      if (!agents[process]) missing.push_back(static_cast<int>(process));
    }
    std::string text = missing.size() == 1 ? "process" : "processes";
    constexpr std::size_t most = 8;
    for (std::size_t at = 0; at < std::min(most, missing.size()); ++at) {
      text += detail::compose("{} {}", at == 0 ? "" : ",", missing[at]);
    }
    return missing.size() > most ? text + detail::compose(" and {} more", missing.size() - most) : text;
  }

  void take_in(std::vector<std::optional<detail::AgentConnection>>& agents, detail::Newcomer own) {
    own_ = std::move(own);
    members_ = {.workers = {own_.num_workers}, .hosts = {own_.host}, .devices = {own_.devices}};
    std::vector<detail::SecureConnection> connections;
    for (std::size_t process = 1; process < agents.size(); ++process) {
      detail::AgentConnection& agent = *agents[process];
      const auto newcomer = detail::Newcomer::decode(agent.hello.payload);
      check_newcomer(newcomer, agent.hello.process);
      members_.workers.push_back(newcomer.num_workers);
      members_.hosts.push_back(newcomer.host);
      members_.devices.push_back(newcomer.devices);
      connections.push_back(std::move(agent.connection));
    }
    lines_ = std::make_unique<detail::AgentLines>(std::move(connections), plan_.silence_limit);
  }

  void check_newcomer(const detail::Newcomer& newcomer, int process) const {
    if (newcomer.settings != own_.settings) {
      throw ConfigError{detail::compose(
          "process {} on {} was started with other settings than process 0 on {}: \"{}\" there, \"{}\" here; start "
          "the same program with the same arguments everywhere",
          process, newcomer.host_name, own_.host_name, newcomer.settings, own_.settings)};
    }
    if (newcomer.num_workers < 1) {
      throw ConfigError{
          detail::compose("process {} on {} makes {} workers", process, newcomer.host_name, newcomer.num_workers)};
    }
  }

  // Of the leader, while a run goes on: takes those in who take the place of one that is lost.
  void let_in() {
    while (auto agent = listener_->take_agent(Deadline::after(std::chrono::nanoseconds{0}))) {
      const int process = agent->hello.process;
      try {
        if (!agent->misfit.empty()) throw ConfigError{agent->misfit};
        if (process < 1 || process >= num_processes() || lines_->loss(process).empty()) {
          throw ConfigError{detail::compose("{} is not missed", agent->connection.peer())};
        }
        const auto newcomer = detail::Newcomer::decode(agent->hello.payload);
        check_newcomer(newcomer, process);
        detail::LaunchedMembers members = members_;
        members.workers[index(process)] = newcomer.num_workers;
        members.hosts[index(process)] = newcomer.host;
        members.devices[index(process)] = newcomer.devices;
        detail::check_devices(members);
        members_ = std::move(members);
        say(detail::compose("{} has come back", agent->connection.peer()));
        lines_->replace(process, std::move(agent->connection));
        lines_->post(process, detail::Order::tell, detail::text_bytes(told_));
      } catch (const std::exception& error) {  // the run goes on, without it
        say(detail::compose("a process that came late is not let in: {}", error.what()));
      }
    }
  }

  void say(const std::string& line) const {
    if (plan_.say) plan_.say(line);
  }

  // Of the others.
  void find_leader(detail::Bulletin& bulletin, const detail::Newcomer& own, const Deadline& deadline) {
    const auto secret = detail::find_secret(plan_.launch);
    if (!secret && !bulletin.carries_secret()) detail::refuse_without_secret(bulletin.where());
    std::optional<detail::Posting> posting;
    while (true) {
      posting = bulletin.read(deadline, posting ? &*posting : nullptr);
      if (try_leader(*posting, secret.value_or(posting->secret), own, deadline)) return;
    }
  }

  // Returns false if nobody is there any more, so that another address is worth a look.
  [[nodiscard]] bool try_leader(const detail::Posting& posting, const std::string& secret, const detail::Newcomer& own,
                                const Deadline& deadline) {
    secret_.emplace(detail::text_bytes(secret));
    const detail::Hello hello{.kind = detail::HelloKind::agent,
                              .job = launch_.job,
                              .generation = static_cast<std::uint32_t>(launch_.restart),
                              .process = launch_.process,
                              .payload = own.encode()};
    constexpr std::chrono::nanoseconds slice = std::chrono::seconds{3};
    const bool is_last = deadline.remaining() <= slice;
    try {
      leader_.emplace(detail::SecureConnection::connect(posting.host, posting.port, *secret_, hello,
                                                        is_last ? deadline : Deadline::after(slice), limits()));
    } catch (const detail::ConnectionError& error) {
      // Who turns this process away may be the leader of an earlier run that is about to end.
      if (is_last) {
        throw Error{detail::compose("process {} of {} ({}) does not reach the one that leads: {}", launch_.process,
                                    launch_.num_processes, own.host_name, error.what())};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
      return false;
    }
    address_ = detail::own_address_towards(posting.host, plan_.launch.network, !is_one_host());
    place_ = {.host = posting.host,
              .port = posting.port,
              .job = launch_.job,
              .limits = limits(),
              .ticket = leader_->ticket()};
    return true;
  }

  JoinPlan plan_{};
  detail::Launch launch_{};
  bool has_tls_ = false;
  std::optional<detail::Hmac> secret_{};
  std::string address_{};  // by which the others reach this host
  detail::NetworkStorePlace place_{};
  std::unique_ptr<detail::Listener> listener_{};      // of the leader
  std::unique_ptr<detail::AgentLines> lines_{};       // of the leader
  std::unique_ptr<detail::Bulletin> bulletin_{};      // of the leader, where processes may come back
  detail::Newcomer own_{};                            // likewise: what this process is
  detail::LaunchedMembers members_{};                 // of the leader
  std::string told_{};                                // what all have been told last
  std::optional<detail::SecureConnection> leader_{};  // of the others
};
static_assert(Scaling<Launched> && JoiningScaling<Launched>);

}  // namespace railyard::inline v0_1
