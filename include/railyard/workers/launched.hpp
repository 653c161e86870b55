// SPDX-License-Identifier: MIT
// Workers of processes that an engine has started - Slurm, MPI, torchrun, Kubernetes - on one host or many. Workers
// room.
#pragma once

#include "railyard/workers/detail/agent.hpp"
#include "railyard/workers/detail/agent_lines.hpp"
#include "railyard/workers/detail/arrivals.hpp"
#include "railyard/workers/detail/bulletin.hpp"
#include "railyard/workers/detail/host_identity.hpp"
#include "railyard/workers/detail/launch_environment.hpp"
#include "railyard/workers/detail/launch_secret.hpp"
#include "railyard/workers/detail/launched_group.hpp"
#include "railyard/workers/detail/launched_link.hpp"
#include "railyard/workers/detail/launched_members.hpp"
#include "railyard/workers/detail/listener.hpp"
#include "railyard/workers/detail/own_address.hpp"
#include "railyard/workers/detail/torch_arrivals.hpp"
#include "railyard/workers/processes.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
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

  /// Throws: ConfigError if what this process was told makes no sense; Error that names who did not come. Where process
  /// 0 finds that the processes do not make a run, those that have come throw what it throws, here or in hear().
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
    own_ = own;
    has_part_.assign(index(launch_.num_processes), true);
    is_gone_.assign(index(launch_.num_processes), false);
    if (launch_.num_processes == 1) {
      if (launch_.is_in_job) say(launch_.why);
      members_ = {.workers = {own.num_workers}, .hosts = {own.host}, .devices = {own.devices}};
      return;
    }
    if (!plan.launch.network.empty()) address_ = address_towards({});  // what cannot be is refused at once everywhere
    if (comes_back()) return;
    const std::string subject =
        detail::compose("process {} of {} ({})", launch_.process, launch_.num_processes, own.host_name);
    detail::WaitTeller teller{subject, plan.say};
    auto bulletin = detail::choose_bulletin(launch_, plan.launch, teller, deadline);
    if (detail::agrees_on_attempts(launch_)) count_arrival(*bulletin, deadline);
    if (leads()) {
      say(detail::compose("{}; the processes meet in {}", launch_.why, bulletin->where()));
      gather(*bulletin, teller, deadline);
      if (plan.is_elastic && leads()) bulletin_ = std::move(bulletin);  // who comes back looks there
    } else {
      find_leader(*bulletin, teller, deadline);
    }
    counted_.leave();
  }

  [[nodiscard]] bool leads() const noexcept { return launch_.process == leading_; }
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
        plan, body_of(body), members_, *lines_, first_generation_++,  // another where a start was given up
        [listener = listener_.get()](std::uint32_t generation) { listener->reset_store(generation); });
  }

  void tell(std::string_view text) {
    told_ = text;
    if (lines_) lines_->post_to_all(detail::Order::tell, detail::text_bytes(text));
  }
  /// For whoever leads when this process is lost.
  void note(std::string_view text) {
    noted_ = text;
    if (lines_) lines_->post_to_all(detail::Order::note, detail::text_bytes(text));
  }
  [[nodiscard]] std::string hear() { return follow({}); }
  [[nodiscard]] std::string follow(const WorkerBody& body) {
    const WorkerBody own = body ? body_of(body) : body;
    if (own) detail::prepare_to_fork(own_workers());
    detail::Agent agent{*leader_, own, plan_.silence_limit, plan_.on_request};
    if (was_elected_) agent.expect_word_within(std::max(plan_.timeout, plan_.silence_limit));
    try {
      return agent.run();
    } catch (const detail::ConnectionError& error) {
      remember(agent);
      throw HostLostError{detail::compose("process {} of {} has lost the one that leads the run: {}", launch_.process,
                                          launch_.num_processes, error.what())};
    }
  }

  /// What is known of the leader that is lost. torchrun starts all processes again then.
  [[nodiscard]] LostLead lost_lead() const {
    return {.may_go_on = plan_.is_elastic && !launch_.uses_torch_store,
            .process = leading_,
            .own_process = launch_.process,
            .note = noted_,
            .num_steps = num_steps_};
  }

  /// Listens for the other processes that have lost their leader, in order to lead them. generation: above those of all
  /// leaders before. Throws: Error if it cannot listen.
  [[nodiscard]] LeaderPlace offer(std::uint64_t generation) {
    leader_.reset();
    follow_up(launch_.process);
    first_generation_ = static_cast<std::uint32_t>(generation << generation_bits);
    listen(0, static_cast<std::uint32_t>(generation));
    agents_ = detail::Arrivals{index(num_processes()), plan_.say};
    return {.process = leading_, .host = address_, .port = listener_->port(), .generation = generation};
  }

  /// Waits for those who have had a part under the leader that is lost. Returns whether they have come, or is_last says
  /// that they are waited for no more: then this process leads.
  [[nodiscard]] bool take_place(const Deadline& deadline, bool is_last) {
    while (misses_anybody() || agents_.is_contested()) {
      if (const auto conflict = agents_.settle()) {
        say(detail::compose("{} is not let in: there is another one of its number", conflict->second));
        agents_.drop_contenders(conflict->place);
        continue;
      }
      auto agent = listener_->take_agent(deadline);
      if (!agent) break;
      const int slot = slot_of_other(agent->hello.process);
      const std::string peer = agent->connection.peer();
      try {
        if (slot == 0) throw ConfigError{"there is another one of its number"};
        if (!agent->misfit.empty()) throw ConfigError{agent->misfit};
        agents_.add(slot, std::move(*agent));
      } catch (const Error& error) {
        say(detail::compose("{} is not let in: {}", peer, error.what()));
      }
    }
    if (misses_anybody() && !is_last) {
      give_sign_of_life();
      return false;
    }
    lead_those_there();
    return true;
  }

  /// Follows the process that has offered to lead there. Returns false if nobody answers, or wants this process.
  [[nodiscard]] bool try_to_follow(const LeaderPlace& place, const Deadline& deadline) {
    try {
      connect_to(place.host, place.port, static_cast<std::uint32_t>(place.generation), deadline);
    } catch (const Error&) {  // nobody answers, or the place is none
      return false;
    }
    follow_up(place.process);
    was_elected_ = true;
    return true;
  }

 private:
  static constexpr std::chrono::nanoseconds most_of_a_try = std::chrono::seconds{3};  // to reach the one that leads
  static constexpr int generation_bits = 12;  // so many restarts under one leader have generations of their own

  // Whether the run goes on under one that was chosen, which has let this process in.
  [[nodiscard]] bool finds_chosen() {
    const auto secret = detail::find_secret(plan_.launch);
    if (!lost_lead().may_go_on || !secret || !plan_.find_chosen) return false;
    const auto place = plan_.find_chosen();
    if (!place || place->process == launch_.process) return false;
    secret_.emplace(detail::text_bytes(*secret));
    if (!try_to_follow(*place, Deadline::after(std::chrono::seconds{3}))) return false;
    was_elected_ = false;  // it may take a while until the leader looks who has come back
    return true;
  }
  // Asks that, but not all the time: whoever leads next may not have been chosen at first.
  [[nodiscard]] bool comes_back() {
    const auto begun_at = Deadline::Clock::now();
    if (begun_at < next_return_) return false;
    if (finds_chosen()) return true;
    const auto ended_at = Deadline::Clock::now();
    next_return_ = ended_at + std::max<Deadline::Clock::duration>(std::chrono::seconds{1}, 3 * (ended_at - begun_at));
    return false;
  }

  // What a process counts as under who leads now: the leader is the first, and process 0 stands in its place.
  [[nodiscard]] int slot_of(int process) const noexcept {
    return process == leading_ ? 0 : process == 0 ? leading_ : process;
  }
  // Of one that says it is that process: 0 if there is none by that number but this one, which leads.
  [[nodiscard]] int slot_of_other(int process) const noexcept {
    return process >= 0 && process < num_processes() ? slot_of(process) : 0;
  }

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
  [[nodiscard]] std::string address_towards(const std::string& leader_host) const {
    return detail::own_address_towards(leader_host, plan_.launch.network, !is_one_host());
  }
  [[nodiscard]] detail::ConnectionLimits limits() const { return {.has_tls = has_tls_}; }

  [[nodiscard]] WorkerBody body_of(const WorkerBody& body) const {
    return [body, place = place_, secret = *secret_, address = address_](WorkerLink& own) {
      detail::LaunchedLink link{own, place, secret, address};
      body(link);
    };
  }

  void listen(int port, std::uint32_t generation) {
    const bool is_at_one = is_one_host() || !plan_.launch.network.empty();
    listener_ = std::make_unique<detail::Listener>(detail::ListenerOptions{.host = is_at_one ? address_ : std::string{},
                                                                           .port = port,
                                                                           .job = launch_.job,
                                                                           .generation = generation,
                                                                           .limits = limits(),
                                                                           .on_refusal = plan_.say},
                                                   *secret_);
    set_place(address_, listener_->port(), listener_->ticket());
  }

  void set_place(const std::string& host, int port, const std::optional<detail::Ticket>& ticket) {
    place_ = {.host = host, .port = port, .job = launch_.job, .limits = limits(), .ticket = ticket};
  }

  // Of the leader: listens, leaves its address, and waits for all others; or finds that the run goes on under another.
  void gather(detail::Bulletin& bulletin, const detail::WaitTeller& teller, const Deadline& deadline) {
    const std::string secret =
        detail::find_secret(plan_.launch).value_or(bulletin.carries_secret() ? bulletin.make_secret() : std::string{});
    if (secret.empty()) detail::refuse_without_secret(bulletin.where());
    secret_.emplace(detail::text_bytes(secret));
    address_ = address_towards(launch_.leader_host);
    if (!plan_.launch.network.empty()) detail::check_is_sought_at(bulletin.host_to_listen_on(), address_);
    const std::uint32_t generation = generation_of_attempt();
    listen(bulletin.port_to_listen_on(), generation);
    bulletin.post({.host = address_,
                   .port = listener_->port(),
                   .generation = generation,
                   .secret = bulletin.carries_secret() ? secret : std::string{}});

    detail::Arrivals arrivals{index(num_processes()), plan_.say};
    try {
      if (!await_all(arrivals, bulletin, teller, deadline)) return;
      check_newcomers(arrivals);
    } catch (const std::exception& error) {
      refuse(arrivals, error);
      throw;
    }
    if (!plan_.is_elastic) listener_->expect_no_more_agents();
    take_in(arrivals);
  }

  // Returns false if the run goes on under another.
  [[nodiscard]] bool await_all(detail::Arrivals& arrivals, const detail::Bulletin& bulletin, detail::WaitTeller teller,
                               const Deadline& deadline) {
    teller.start();
    detail::AwakeTime time{Deadline::Clock::now()};
    while (true) {
      if (const auto conflict = arrivals.settle()) throw ConfigError{conflict->text()};
      counted_.throw_if_outdated();
      if (arrivals.is_complete()) return true;
      const bool is_late = time.is_over(deadline);
      if (auto agent = listener_->take_agent(Deadline::after(time.until_next_look(deadline)))) {
        take_arrival(arrivals, std::move(*agent));
        continue;
      }
      const std::string missing = arrivals.missing_text();
      const std::string count =
          detail::compose("{} of {} have come", index(num_processes()) - arrivals.missing().size(), num_processes());
      if (is_late) {
        arrivals.check_fit();
        throw Error{detail::compose(
            "{}: {} did not come within {} ({}): see whether they run, what they print, and whether they can reach {} "
            "port {}, which this process has left in {}",
            teller.subject(), missing, deadline.budget_text(), count, address_, listener_->port(), bulletin.where())};
      }
      if (comes_back()) {
        listener_.reset();
        return false;
      }
      teller.look(detail::compose("{}; {}", missing, count), deadline);
    }
  }

  void take_arrival(detail::Arrivals& arrivals, detail::AgentConnection agent) {
    const int process = agent.hello.process;
    if (process <= 0 || process >= num_processes()) {
      const ConfigError error{detail::compose("{} says that it is number {} of {}, and number 0 leads",
                                              agent.connection.peer(), process, num_processes())};
      arrivals.add(0, std::move(agent));  // to be told with all others
      throw error;
    }
    arrivals.add(process, std::move(agent), counted_.last_of(process));
  }

  // A folder serves where the store cannot be spoken to as well: torchrun of LibTorch before 2.2 has another one.
  void count_arrival(const detail::Bulletin& bulletin, const Deadline& deadline) {
    try {
      counted_ = {launch_.leader_host, launch_.leader_port, launch_.process, plan_.say, deadline};
      own_.arrival = counted_.own();
    } catch (const Error& error) {
      if (!bulletin.carries_secret()) throw;
      say(detail::compose("takes attempt {} of the job, as it is told: {}", launch_.restart, error.what()));
    }
  }
  // What is agreed on stands above what the launcher tells.
  [[nodiscard]] std::uint32_t generation_of_attempt() const noexcept {
    return own_.arrival > 0 ? own_.arrival : static_cast<std::uint32_t>(launch_.restart);
  }

  // Those that have come are not to take the end of this process for its loss, after which a run may begin again.
  void refuse(detail::Arrivals& arrivals, const std::exception& error) const {
    listener_->expect_no_more_agents();
    std::vector<detail::SecureConnection> connections = arrivals.take_all();
    while (auto agent = listener_->take_agent(Deadline::after(std::chrono::nanoseconds{0}))) {
      connections.push_back(std::move(agent->connection));
    }
    const bool is_setting = dynamic_cast<const ConfigError*>(&error) != nullptr;
    detail::AgentLines{std::move(connections), plan_.silence_limit}.post_to_all(
        detail::Order::refuse, detail::refusal_of(is_setting, error.what()));
  }

  void check_newcomers(const detail::Arrivals& arrivals) const {
    arrivals.check_fit();
    for (std::size_t process = 1; process < arrivals.num_places(); ++process) {
      detail::Newcomer::decode(arrivals.at(process).hello.payload).check(static_cast<int>(process), own_, leading_);
    }
  }

  void take_in(detail::Arrivals& arrivals) {
    members_ = {.workers = {own_.num_workers}, .hosts = {own_.host}, .devices = {own_.devices}};
    std::vector<detail::SecureConnection> connections;
    for (std::size_t process = 1; process < arrivals.num_places(); ++process) {
      const auto newcomer = detail::Newcomer::decode(arrivals.at(process).hello.payload);
      members_.add(newcomer.num_workers, newcomer.host, newcomer.devices);
      connections.push_back(arrivals.take(process));
    }
    lines_ = std::make_unique<detail::AgentLines>(std::move(connections), plan_.silence_limit);
  }

  // Of the leader, while a run goes on: takes those in who take the place of one that is lost.
  void let_in() {
    while (auto agent = listener_->take_agent(Deadline::after(std::chrono::nanoseconds{0}))) {
      const int process = agent->hello.process;
      try {
        if (!agent->misfit.empty()) throw ConfigError{agent->misfit};
        const int slot = slot_of_other(process);
        if (slot == 0 || lines_->loss(slot).empty()) {
          throw ConfigError{detail::compose("{} is not missed", agent->connection.peer())};
        }
        const auto newcomer = detail::Newcomer::decode(agent->hello.payload);
        newcomer.check(process, own_, leading_);
        detail::LaunchedMembers members = members_;
        members.set(index(slot), newcomer.num_workers, newcomer.host, newcomer.devices);
        detail::check_devices(members);
        members_ = std::move(members);
        say(detail::compose("{} has come back", agent->connection.peer()));
        lines_->replace(slot, std::move(agent->connection));
        // Before the run has begun it hears of that with all others.
        if (!told_.empty()) lines_->post(slot, detail::Order::tell, detail::text_bytes(told_));
        lines_->post(slot, detail::Order::note, detail::text_bytes(noted_));
      } catch (const std::exception& error) {  // the run goes on, without it
        say(detail::compose("a process that came late is not let in: {}", error.what()));
      }
    }
  }

  // Of one that has lost its leader.
  void remember(const detail::Agent& agent) {
    if (!agent.noted().empty()) noted_ = agent.noted();
    if (agent.parts().empty()) return;  // it has started none, and what is known of the one before it still holds
    num_steps_ = agent.num_steps();
    is_gone_.assign(index(num_processes()), false);
    has_part_ = is_gone_;
    for (std::size_t slot = 0; slot < std::min(agent.parts().size(), has_part_.size()); ++slot) {
      has_part_[index(slot_of(static_cast<int>(slot)))] = agent.parts()[slot] == '1';
    }
  }

  // Of one that is about to lead.
  [[nodiscard]] bool misses_anybody() const {
    for (const int slot : agents_.missing()) {
      const std::size_t process = index(slot_of(slot));
      if (has_part_[process] && !is_gone_[process]) return true;
    }
    return false;
  }

  // Those that have come are not to wait for ever where this process is stopped before it leads them.
  void give_sign_of_life() {
    const auto now = Deadline::Clock::now();
    if (now < next_sign_) return;
    next_sign_ = now + detail::sign_interval(plan_.silence_limit);
    agents_.each([this](std::size_t slot, detail::SecureConnection& connection) {
      try {
        connection.post(static_cast<std::uint8_t>(detail::Order::alive), {});
        connection.flush();
      } catch (const detail::ConnectionError&) {
        agents_.drop(slot);  // it may come again
      }
    });
  }

  void follow_up(int process) {
    former_ = std::exchange(leading_, process);
    is_gone_[index(former_)] = true;
  }

  void lead_those_there() {
    members_ = {};
    std::vector<std::optional<detail::SecureConnection>> connections(agents_.num_places());
    for (std::size_t slot = 0; slot < agents_.num_places(); ++slot) {
      const int process = slot_of(static_cast<int>(slot));
      // Of one that has not come: what it would make where it could.
      members_.add(detail::share_of(plan_.num_workers, process, num_processes()), {}, {});
      members_.has_part.push_back(has_part_[index(process)]);
      if (slot == 0) members_.set(0, own_.num_workers, own_.host, own_.devices);
      if (!agents_.has(slot)) continue;
      const auto newcomer = detail::Newcomer::decode(agents_.at(slot).hello.payload);
      newcomer.check(process, own_, leading_);
      members_.set(slot, newcomer.num_workers, newcomer.host, newcomer.devices);
      connections[slot] = agents_.take(slot);
    }
    agents_ = detail::Arrivals{};
    connections.erase(connections.begin());
    lines_ = std::make_unique<detail::AgentLines>(std::move(connections), plan_.silence_limit, [this](int slot) {
      return detail::compose("process {} has not come to process {}, which leads since process {} is lost",
                             slot_of(slot), leading_, former_);
    });
  }

  void say(const std::string& line) const {
    if (plan_.say) plan_.say(line);
  }

  // Of the others.
  void find_leader(detail::Bulletin& bulletin, detail::WaitTeller teller, const Deadline& deadline) {
    const auto secret = detail::find_secret(plan_.launch);
    if (!secret && !bulletin.carries_secret()) detail::refuse_without_secret(bulletin.where());
    bulletin.end_read_when([this] { return comes_back(); });
    std::optional<detail::Posting> posting;
    // What is left of an earlier attempt, in a store that outlives it, is not tried for long.
    std::chrono::nanoseconds slice = own_.arrival > 0 ? std::chrono::milliseconds{200} : most_of_a_try;
    while (!comes_back()) {
      counted_.throw_if_outdated();
      posting = bulletin.read(deadline, posting ? &*posting : nullptr);
      if (posting->host.empty()) return;
      if (try_leader(*posting, secret.value_or(posting->secret), teller, slice, deadline)) return;
      slice = std::min(2 * slice, most_of_a_try);
    }
  }

  // Returns false if nobody is there any more, so that another address is worth a look.
  [[nodiscard]] bool try_leader(const detail::Posting& posting, const std::string& secret, detail::WaitTeller& teller,
                                std::chrono::nanoseconds slice, const Deadline& deadline) {
    secret_.emplace(detail::text_bytes(secret));
    const bool is_last = deadline.remaining() <= slice;
    try {
      const std::uint32_t generation = own_.arrival > 0 ? posting.generation : generation_of_attempt();
      connect_to(posting.host, posting.port, generation, is_last ? deadline : Deadline::after(slice));
    } catch (const detail::ConnectionError& error) {
      // Who turns this process away may be the leader of an earlier run that is about to end.
      if (is_last) {
        throw Error{detail::compose(
            "process {} of {} ({}) does not reach the one that leads: {}; see whether that one runs, and where its "
            "address is wrong name it by MASTER_ADDR and MASTER_PORT, or ScalingConfig::launch.leader",
            launch_.process, launch_.num_processes, own_.host_name, error.what())};
      }
      teller.look(detail::compose("process {}: {}", leading_, error.what()), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
      return false;
    }
    return true;
  }

  void connect_to(const std::string& host, int port, std::uint32_t generation, const Deadline& deadline) {
    const detail::Hello hello{.kind = detail::HelloKind::agent,
                              .job = launch_.job,
                              .generation = generation,
                              .process = launch_.process,
                              .payload = own_.encode()};
    leader_.emplace(detail::SecureConnection::connect(host, port, *secret_, hello, deadline, limits()));
    address_ = address_towards(host);
    set_place(host, port, leader_->ticket());
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
  detail::Newcomer own_{};                            // what this process is
  detail::TorchArrivals counted_{};                   // where several agents of torchrun start the processes
  detail::LaunchedMembers members_{};                 // of the leader
  std::string told_{};                                // what all have been told last
  std::string noted_{};                               // and asked to remember
  int leading_ = 0;                                   // the process that leads
  int former_ = 0;                                    // the one that led before it
  Deadline::Clock::time_point next_return_{};         // when to ask again whether another was chosen
  std::uint32_t first_generation_ = 0;                // of workers, under this leader
  detail::Arrivals agents_{};                         // of one that is about to lead: who has come
  Deadline::Clock::time_point next_sign_{};           // of its life that it gives these
  std::vector<bool> has_part_{};                      // in the last start under a leader that is lost, by process
  std::vector<bool> is_gone_{};                       // those that have led and are lost since then, by process
  std::uint64_t num_steps_ = 0;                       // of this process's workers then
  std::optional<detail::SecureConnection> leader_{};  // of the others
  bool was_elected_ = false;                          // the leader, by this process among others
};
static_assert(Scaling<Launched> && JoiningScaling<Launched>);

}  // namespace railyard::inline v0_1
