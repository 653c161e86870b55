// SPDX-License-Identifier: MIT
// Where the leader of a job posts its address, and where the other processes read it. Workers room.
#pragma once

#include "railyard/workers/detail/file_bulletin.hpp"
#include "railyard/workers/detail/launch_environment.hpp"
#include "railyard/workers/detail/launch_secret.hpp"
#include "railyard/workers/detail/launcher_bulletin.hpp"
#include "railyard/workers/detail/mpi_library.hpp"
#include "railyard/workers/detail/pmi_space.hpp"
#include "railyard/workers/detail/pmix_space.hpp"
#include "railyard/workers/detail/posting.hpp"
#include "railyard/workers/detail/torch_arrivals.hpp"
#include "railyard/workers/detail/torch_store.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/launch_config.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Reads an address that everybody knows beforehand; there the leader has to listen.
class FixedBulletin final : public Bulletin {
 public:
  FixedBulletin(std::string host, int port) : host_(std::move(host)), port_(port) {}

  void post(const Posting&) override {}
  [[nodiscard]] Posting read(const Deadline&, const Posting*) override { return {.host = host_, .port = port_}; }
  [[nodiscard]] bool carries_secret() const override { return false; }
  [[nodiscard]] std::string host_to_listen_on() const override { return host_; }
  [[nodiscard]] int port_to_listen_on() const override { return port_; }
  [[nodiscard]] std::string where() const override { return compose("the fixed address {}:{}", host_, port_); }

 private:
  std::string host_;
  int port_;
};

/// Uses the store that torchrun's agent serves, in which one attempt's posting takes the place of the one before:
/// whoever reaches its port can read and write there, so the secret of the run never goes there, and a wrong address
/// only leads to somebody who cannot show that he knows it.
class TorchBulletin final : public Bulletin {
 public:
  TorchBulletin(const Launch& launch, WaitTeller teller)
      : host_(launch.leader_host), port_(launch.leader_port), teller_(std::move(teller)) {}

  void post(const Posting& posting) override {
    Posting without_secret = posting;
    without_secret.secret.clear();
    const Deadline deadline = Deadline::after(post_time);
    store(deadline).set(key, write_posting(without_secret), deadline);
  }

  [[nodiscard]] Posting read(const Deadline& deadline, const Posting* refused) override {
    const Deadline again = Deadline::after(patience);
    teller_.start();
    while (true) {
      const auto slice = std::min<std::chrono::nanoseconds>(deadline.remaining(), slice_time);
      if (const auto text = store(deadline).get(key, Deadline::after(slice))) {
        const auto posting = read_posting(*text);
        if (posting && (refused == nullptr || *posting != *refused || again.expired())) return *posting;
        std::this_thread::sleep_for(slice);
      }
      if (deadline.expired()) fail_to_read(teller_.subject(), where(), deadline);
      teller_.look(compose("process 0 to leave its address in {}", where()), deadline);
    }
  }

  [[nodiscard]] bool carries_secret() const override { return false; }
  [[nodiscard]] std::string where() const override { return compose("torchrun's store at {}:{}", host_, port_); }

 private:
  static constexpr std::string_view key = "railyard/leader";
  static constexpr std::chrono::seconds post_time{30};
  static constexpr std::chrono::milliseconds slice_time{100};

  [[nodiscard]] TorchStore& store(const Deadline& deadline) {
    if (!store_) store_.emplace(host_, port_, TorchArrivals::prefix, deadline);
    return *store_;
  }

  std::string host_;
  int port_;
  WaitTeller teller_;
  std::optional<TorchStore> store_{};
};

[[nodiscard]] inline bool is_loopback_name(std::string_view host) noexcept {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// Are all processes of the job on this host?
[[nodiscard]] inline bool is_one_host(const Launch& launch) noexcept {
  return launch.num_local_processes == launch.num_processes || is_loopback_name(launch.leader_host);
}

/// Do several of torchrun's agents have processes in the job? Then what they tell of attempts may differ, and the store
/// that all of them see counts.
[[nodiscard]] inline bool agrees_on_attempts(const Launch& launch) noexcept {
  return launch.uses_torch_store && launch.num_local_processes != launch.num_processes;
}
/// How often the job was started again, as far as all of its processes are told the same.
[[nodiscard]] inline int told_restart(const Launch& launch) noexcept {
  return agrees_on_attempts(launch) ? 0 : launch.restart;
}

/// Throws: SpaceError if there is nobody there.
[[nodiscard]] inline std::unique_ptr<KeyValueSpace> enter_space(const Launch& launch, const Deadline& deadline) {
  // The launcher answers at once or not at all: others do not have to come for that.
  constexpr std::chrono::nanoseconds greeting_time = std::chrono::seconds{20};
  const Deadline until = deadline.remaining() < greeting_time ? deadline : Deadline::after(greeting_time);
  if (launch.pmi_fd >= 0) return std::make_unique<PmiSpace>(launch.pmi_fd, until);
  return std::make_unique<PmixSpace>(launch.process, PmixFunctions::load());
}

/// Is the way to meet that a launcher offers, or why it is not taken; neither if it offers none.
struct LauncherWay {
  std::unique_ptr<Bulletin> bulletin{};
  std::string why_not{};
};

/// Makes a bulletin in the launcher's own space of keys and values, if it offers one, and it can be had.
[[nodiscard]] inline LauncherWay find_launcher_bulletin(const Launch& launch, bool has_secret, const WaitTeller& teller,
                                                        const Deadline& deadline,
                                                        LauncherMemory& memory = launcher_memory()) {
  if (launch.pmi_fd < 0 && !launch.has_pmix) return {};
  const std::string where = compose("the key-value space of {}", launch.launcher);
  // A process has one conversation with its launcher, and MPI_Init() would find it over.
  if (const std::string library = loaded_mpi_library(); !library.empty()) {
    return {.why_not = compose("{} is left to MPI, which this program has loaded ({})", where, library)};
  }
  try {
    auto space = memory.posting ? nullptr : enter_space(launch, deadline);
    return {.bulletin = std::make_unique<LauncherBulletin>(launch, std::move(space), where, has_secret, teller,
                                                           deadline, memory)};
  } catch (const SpaceError& error) {
    return {.why_not = compose("{} cannot be had: {}", where, error.what())};
  }
}

/// Chooses the first way that serves: what the options name; for processes of one host a folder that only its user may
/// enter, which carries a secret as well; the store that torchrun serves; the address that somebody has named; the
/// launcher's own space of keys and values, which carries a secret as well; the address that follows from the job.
/// deadline: until then the launcher may take for its answers.
/// Throws: ConfigError if there is none.
[[nodiscard]] inline std::unique_ptr<Bulletin> choose_bulletin(const Launch& launch, const LaunchConfig& config,
                                                               const WaitTeller& teller, const Deadline& deadline,
                                                               const Environment& environment = process_environment()) {
  const auto in_folder = [&](const std::filesystem::path& folder) {
    if (!launch.job.empty()) {
      return std::make_unique<FileBulletin>(folder, file_name_of(launch.job, told_restart(launch)), teller);
    }
    throw ConfigError{compose(
        "nothing tells this job from others whose processes meet in {} ({}): set ScalingConfig::launch.job to the same "
        "text in all of its processes",
        folder.string(), launch.why)};
  };
  const bool has_address = !launch.leader_host.empty() && launch.leader_port > 0;
  const auto at_address = [&] { return std::make_unique<FixedBulletin>(launch.leader_host, launch.leader_port); };
  if (!config.leader.empty()) return at_address();
  const auto folder =
      config.rendezvous.empty() ? environment("RAILYARD_RENDEZVOUS").value_or("") : config.rendezvous.string();
  if (!folder.empty()) return in_folder(folder);
  if (is_one_host(launch)) return in_folder(make_local_folder(environment("XDG_RUNTIME_DIR")));
  if (launch.uses_torch_store) return std::make_unique<TorchBulletin>(launch, teller);
  if (has_address && !launch.guesses_leader) return at_address();
  LauncherWay way = find_launcher_bulletin(launch, find_secret(config, environment).has_value(), teller, deadline);
  if (way.bulletin) return std::move(way.bulletin);
  if (has_address) {
    if (!way.why_not.empty()) {
      teller.say(compose("takes the address {}:{}, as {}", launch.leader_host, launch.leader_port, way.why_not));
    }
    return at_address();
  }
  throw ConfigError{
      compose("nothing says where process 0 is ({}{}{}): set MASTER_ADDR and MASTER_PORT to its host and to a port "
              R"(that is free there, or ScalingConfig::launch.leader to "host:port", or )"
              "ScalingConfig::launch.rendezvous (or RAILYARD_RENDEZVOUS) to a folder that all processes see",
              launch.why, way.why_not.empty() ? "" : "; ", way.why_not)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
