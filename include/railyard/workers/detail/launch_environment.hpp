// SPDX-License-Identifier: MIT
// Who has started this process, and which of how many it is: from options, else from what the launchers of jobs put
// into the environment. Workers room.
#pragma once

#include "railyard/workers/detail/launch_variables.hpp"
#include "railyard/workers/detail/node_list.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/launch_config.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which of the launched processes this is, and what is known of the first of them, which leads.
struct Launch {
  std::string launcher{};         ///< "torchrun", "Slurm", ...
  std::string why{};              ///< what that was concluded from, for people
  bool is_in_job = true;          ///< somebody has started it, or a job that it is no part of
  int process = 0;                ///< from 0
  int num_processes = 1;          ///< on all hosts
  int local_process = 0;          ///< which of the processes of this host
  int num_local_processes = 1;    ///< 0 if unknown
  int workers_per_process = 0;    ///< how many workers the launcher asks each process to start; 0 if it does not say
  std::string leader_host{};      ///< where process 0 is; empty if unknown
  int leader_port = 0;            ///< on which it listens; 0 if unknown
  bool guesses_leader = false;    ///< nobody has named that port: it is Railyard's own choice
  int pmi_fd = -1;                ///< by which the launcher offers its key-value space (PMI); -1 if it does not
  bool has_pmix = false;          ///< the launcher offers one by PMIx
  std::string job{};              ///< the same in all processes, another in every other job; empty if unknown
  int restart = 0;                ///< how often the launcher says that it has started this job again
  bool uses_torch_store = false;  ///< torchrun's agent serves its store at leader_host:leader_port
};

/// Divides "host:port" or "[address]:port". Throws: ConfigError that names what has been written there.
[[nodiscard]] inline std::pair<std::string, int> split_address(std::string_view address, std::string_view field) {
  const std::size_t colon = address.rfind(':');
  const int port = colon == std::string_view::npos ? 0 : parse_count(address.substr(colon + 1)).value_or(0);
  std::string_view host = address.substr(0, std::min(colon, address.size()));
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port < 1 || port > 65'535 ||
      (!is_bracketed && host.find_first_of(":[]") != std::string_view::npos)) {
    throw ConfigError{compose(R"({} is "{}"; write the host and the port of process 0 as "10.0.0.1:29500", )"
                              R"("node1:29500" or "[fd00::1]:29500")",
                              field, address)};
  }
  return {std::string{host}, port};
}

/// Returns the name of a job; empty where nothing tells it from others.
[[nodiscard]] inline std::string job_name(std::string_view launcher, std::string_view id) {
  return id.empty() ? std::string{} : compose("{}-{}", launcher, id);
}

/// torchrun gives every process all of it; its agents restart the processes, and ranks may move. Each agent counts for
/// itself how often it has done so after a failure: the counts of a job's processes may differ.
[[nodiscard]] inline std::optional<Launch> find_torchrun(const Environment& environment) {
  LaunchVariables variables{environment, "torchrun"};
  if (!variables.has("TORCHELASTIC_RUN_ID")) return {};
  Launch launch;
  launch.process = variables.number("RANK");
  launch.num_processes = variables.number("WORLD_SIZE");
  launch.local_process = variables.number_or("LOCAL_RANK", 0);
  launch.num_local_processes = variables.number_or("LOCAL_WORLD_SIZE", 0);
  launch.leader_host = variables.needed("MASTER_ADDR");
  launch.leader_port = variables.port("MASTER_PORT");
  launch.restart = variables.number_or("TORCHELASTIC_RESTART_COUNT", 0);
  launch.uses_torch_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  // The id is "none" where nobody has given one; the port then tells jobs of one host apart.
  launch.job =
      compose("torchrun-{}-{}-{}", variables.needed("TORCHELASTIC_RUN_ID"), launch.leader_host, launch.leader_port);
  return variables.told(std::move(launch));
}

inline void take_leader(LaunchVariables& variables, Launch& launch) {
  launch.leader_host = variables.text("MASTER_ADDR");
  if (!launch.leader_host.empty() && variables.has("MASTER_PORT")) launch.leader_port = variables.port("MASTER_PORT");
}

/// Returns the number of the socket by which the launcher speaks PMI; -1 if there is none.
[[nodiscard]] inline int find_pmi(const Environment& environment) {
  return parse_count(environment("PMI_FD").value_or("")).value_or(-1);
}

/// Does the launcher speak PMIx, and mean this process?
[[nodiscard]] inline bool has_pmix(const Environment& environment, const Launch& launch) {
  return environment("PMIX_NAMESPACE") && parse_count(environment("PMIX_RANK").value_or("")) == launch.process;
}

/// Comes before Slurm: under mpirun inside of an allocation, the processes inherit the variables of the step in which
/// Open MPI's daemon runs.
[[nodiscard]] inline std::optional<Launch> find_open_mpi(const Environment& environment) {
  LaunchVariables variables{environment, "Open MPI"};
  if (!variables.has("OMPI_COMM_WORLD_RANK")) return {};
  Launch launch;
  launch.process = variables.number("OMPI_COMM_WORLD_RANK");
  launch.num_processes = variables.number("OMPI_COMM_WORLD_SIZE");  // OMPI_UNIVERSE_SIZE counts slots
  launch.local_process = variables.number_or("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  launch.num_local_processes = variables.number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
  take_leader(variables, launch);
  launch.has_pmix = has_pmix(environment, launch);
  launch.job = job_name("mpi", variables.text("PMIX_NAMESPACE"));
  return variables.told(std::move(launch));
}

/// Returns what all processes of one mpiexec have in common, and no other job: the address at which Hydra's proxies,
/// the parents of the processes, reach it. The environment holds nothing of the kind. Empty if there is no such parent.
[[nodiscard]] inline std::string hydra_job(pid_t process) {
  constexpr int most_generations = 16;
  for (int i = 0; i < most_generations && process > 1; ++i) {
    std::ifstream status_file{compose("/proc/{}/stat", process)};
    std::string status;
    std::getline(status_file, status);
    std::ifstream command_file{compose("/proc/{}/cmdline", process)};
    std::string argument;
    while (std::getline(command_file, argument, '\0')) {
      if (argument == "--control-port" && std::getline(command_file, argument, '\0')) return argument;
    }
    const std::size_t name_end = status.rfind(") ");  // "pid (name) state parent ..."; a name may hold anything
    if (name_end == std::string::npos || status.size() < name_end + 5) break;
    process = 0;
    std::from_chars(status.data() + name_end + 4, status.data() + status.size(), process);
  }
  return {};
}

[[nodiscard]] inline std::optional<Launch> find_hydra(const Environment& environment) {
  LaunchVariables variables{environment, "PMI (mpiexec)"};
  const bool is_slurms = variables.has("SLURM_STEP_ID") && !variables.has("MPI_LOCALNRANKS");  // srun --mpi=pmi2
  if (!variables.has("PMI_RANK") || is_slurms) return {};
  Launch launch;
  launch.process = variables.number("PMI_RANK");
  launch.num_processes = variables.number("PMI_SIZE");
  launch.local_process = variables.number_or("MPI_LOCALRANKID", 0);
  launch.num_local_processes = variables.number_or("MPI_LOCALNRANKS", 0);
  take_leader(variables, launch);
  launch.pmi_fd = find_pmi(environment);
  launch.job = job_name("hydra", hydra_job(::getppid()));
  return variables.told(std::move(launch));
}

/// A port for a job that has none: any two steps of one job, and most jobs of one host, get different ones, below those
/// that the kernel gives out.
[[nodiscard]] inline int port_of_job(int job, int step) noexcept {
  return static_cast<int>(20'000 + (static_cast<long long>(job) + 1'009LL * step) % 10'000);
}

/// A process is Slurm's only within a step: the batch script has a rank and a number of tasks as well, but nobody has
/// started the others.
[[nodiscard]] inline bool is_in_slurm_step(const Environment& environment) {
  // Ids above are no steps: the shell of an interactive allocation, the batch script.
  constexpr unsigned long long first_special = 0xFFFF'FFF0;
  const std::string step = environment("SLURM_STEP_ID").value_or("");
  unsigned long long id = 0;
  std::from_chars(step.data(), step.data() + step.size(), id);
  return !step.empty() && id < first_special;
}

// SLURM_STEP_TASKS_PER_NODE says it of all nodes, in the order of the list of nodes.
[[nodiscard]] inline int slurm_local_tasks(LaunchVariables& variables) {
  const auto counts = expand_task_counts(variables.needed("SLURM_STEP_TASKS_PER_NODE"));
  const auto node = static_cast<std::size_t>(variables.number("SLURM_NODEID"));
  return node < counts.size() ? counts[node] : 0;
}

[[nodiscard]] inline std::optional<Launch> find_slurm(const Environment& environment) {
  LaunchVariables variables{environment, "Slurm (srun)"};
  if (!is_in_slurm_step(environment)) return {};
  Launch launch;
  launch.process = variables.number("SLURM_PROCID");
  launch.num_processes =
      variables.number(variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  launch.local_process = variables.number_or("SLURM_LOCALID", 0);
  launch.num_local_processes = variables.has("SLURM_STEP_TASKS_PER_NODE") ? slurm_local_tasks(variables) : 0;
  launch.restart = variables.number_or("SLURM_RESTART_COUNT", 0);
  const int job = variables.number("SLURM_JOB_ID");
  const int step = variables.number("SLURM_STEP_ID");
  launch.job = compose("slurm-{}.{}", job, step);
  take_leader(variables, launch);
  if (launch.leader_host.empty()) {
    const auto nodes = NodeList::expand(variables.needed("SLURM_STEP_NODELIST"));
    launch.leader_host = nodes.front();
  }
  launch.guesses_leader = launch.leader_port == 0;
  if (launch.guesses_leader) launch.leader_port = port_of_job(job, step);
  // Those of a launcher outside of the step, such as an mpiexec in which srun was started, are not the step's.
  const bool is_steps = parse_count(environment("PMI_RANK").value_or("")) == launch.process &&
                        parse_count(environment("PMI_SIZE").value_or("")) == launch.num_processes;
  if (is_steps) launch.pmi_fd = find_pmi(environment);
  launch.has_pmix = has_pmix(environment, launch);
  return variables.told(std::move(launch));
}

/// PMIx alone does not put the number of processes into the environment.
[[nodiscard]] inline std::optional<Launch> find_pmix(const Environment& environment, const LaunchConfig& config) {
  LaunchVariables variables{environment, "PMIx"};
  if (!variables.has("PMIX_RANK")) return {};
  Launch launch;
  launch.process = variables.number("PMIX_RANK");
  launch.num_processes = config.num_processes > 0 ? config.num_processes
                                                  : variables.number("WORLD_SIZE",
                                                                     "PMIx does not say how many processes there are: "
                                                                     "set it, or ScalingConfig::launch.num_processes");
  launch.num_local_processes = 0;
  take_leader(variables, launch);
  launch.has_pmix = has_pmix(environment, launch);
  launch.job = job_name("pmix", variables.text("PMIX_NAMESPACE"));
  return variables.told(std::move(launch));
}

/// Kubeflow Trainer describes pods to torchrun, which would start a number of workers in each: so does Railyard.
[[nodiscard]] inline std::optional<Launch> find_kubeflow(const Environment& environment) {
  LaunchVariables variables{environment, "Kubeflow Trainer"};
  if (!variables.has("PET_NNODES") || variables.has("RANK")) return {};
  Launch launch;
  launch.num_processes =
      variables.number("PET_NNODES", "a range of nodes cannot be started: give the job one number of nodes");
  launch.process = variables.number(variables.has("PET_NODE_RANK") ? "PET_NODE_RANK" : "JOB_COMPLETION_INDEX");
  launch.workers_per_process =
      parse_count(variables.text("PET_NPROC_PER_NODE")).value_or(0);  // or "auto", "gpu", "cpu"
  launch.leader_host = variables.text("PET_MASTER_ADDR");
  if (!launch.leader_host.empty()) launch.leader_port = variables.port_or("PET_MASTER_PORT", 29'500);
  launch.job = job_name("kubeflow", launch.leader_host);
  return variables.told(std::move(launch));
}

/// Removes what is of one pod only from the name of a pod: "digits-master-0" and "digits-worker-3" are of "digits".
[[nodiscard]] inline std::string job_of_pod(std::string_view pod) {
  const std::size_t dash = pod.rfind('-');
  if (dash != std::string_view::npos && parse_count(pod.substr(dash + 1))) pod = pod.substr(0, dash);
  for (const std::string_view role : {"-master", "-worker"}) {
    if (pod.ends_with(role)) pod.remove_suffix(role.size());
  }
  return std::string{pod};
}

/// The first version of Kubeflow's operator numbers pods; newer ones count the processes that torchrun would start in
/// WORLD_SIZE, older ones count pods.
[[nodiscard]] inline std::optional<Launch> find_pytorch_job(const Environment& environment) {
  LaunchVariables variables{environment, "Kubeflow PyTorchJob"};
  const bool has_pet = variables.has("PET_NNODES") || variables.has("PET_NPROC_PER_NODE");
  if (!has_pet || !variables.has("RANK") || !variables.has("WORLD_SIZE")) return {};
  Launch launch;
  launch.process = variables.number("RANK");
  launch.workers_per_process = parse_count(variables.text("PET_NPROC_PER_NODE")).value_or(0);
  launch.num_processes = variables.number(variables.has("PET_NNODES") ? "PET_NNODES" : "WORLD_SIZE");
  take_leader(variables, launch);
  const std::string pod = variables.text("HOSTNAME");
  // In the pod that leads it says "localhost", which no other pod could make use of.
  if (launch.leader_host == "localhost") launch.leader_host = pod;
  launch.job = job_name("kubeflow", job_of_pod(pod));
  return variables.told(std::move(launch));
}

/// Kubernetes numbers the pods of an Indexed Job, but does not say how many there are: the manifest has to.
[[nodiscard]] inline std::optional<Launch> find_indexed_job(const Environment& environment,
                                                            const LaunchConfig& config) {
  LaunchVariables variables{environment, "Kubernetes (Indexed Job)"};
  if (!variables.has("JOB_COMPLETION_INDEX") || variables.has("RANK")) return {};
  Launch launch;
  const int num_processes =
      config.num_processes > 0 ? config.num_processes
                               : variables.number("WORLD_SIZE",
                                                  "Kubernetes does not say how many pods there are: give the container "
                                                  "WORLD_SIZE with the value of completions, or 1 if each pod is a run "
                                                  "of its own");
  launch.num_processes = num_processes;
  launch.process = num_processes == 1 ? 0 : variables.number("JOB_COMPLETION_INDEX");
  take_leader(variables, launch);
  launch.job = job_name("kubernetes", job_of_pod(variables.text("HOSTNAME")));
  return variables.told(std::move(launch));
}

[[nodiscard]] inline std::optional<Launch> find_plain(const Environment& environment) {
  LaunchVariables variables{environment, "a plain launcher"};
  const bool is_one = environment("WORLD_SIZE") == "1" && !variables.has("RANK");
  if (is_one || (!variables.has("RANK") && !variables.has("WORLD_SIZE"))) return {};
  Launch launch;
  if (variables.has("RANK")) launch.process = variables.number("RANK");
  launch.num_processes = variables.number("WORLD_SIZE");
  if (!variables.has("RANK")) launch.process = variables.number("RANK");  // throws, and names what there is
  launch.local_process = variables.number_or("LOCAL_RANK", 0);
  launch.num_local_processes = variables.number_or("LOCAL_WORLD_SIZE", 0);
  take_leader(variables, launch);
  if (!launch.leader_host.empty()) launch.job = compose("{}-{}", launch.leader_host, launch.leader_port);
  return variables.told(std::move(launch));
}

[[nodiscard]] inline std::optional<Launch> find_options(const Environment& environment, const LaunchConfig& config) {
  if (config.process < 0) return {};
  if (config.num_processes == 0) {
    throw ConfigError{compose("ScalingConfig::launch.process is {}, but num_processes is not set: set both, or neither",
                              config.process)};
  }
  LaunchVariables variables{environment, "ScalingConfig::launch"};
  Launch launch;
  launch.process = config.process;
  launch.num_processes = config.num_processes;
  launch.num_local_processes = 0;
  take_leader(variables, launch);
  launch = variables.told(std::move(launch));
  launch.why = compose("ScalingConfig::launch: process {} of {}", launch.process, launch.num_processes);
  return launch;
}

[[nodiscard]] inline Launch find_alone(const Environment& environment, const LaunchConfig& config) {
  Launch launch;
  launch.launcher = "nobody";
  launch.is_in_job = false;
  launch.why = "one process: no variable of Slurm, MPI, torchrun or Kubernetes says that there are others";
  if (const auto job = environment("SLURM_JOB_ID")) {
    launch.is_in_job = true;
    launch.why = compose(
        "one process: SLURM_JOB_ID is {}, but this is no step of that job: start the program by srun "
        "to have one on each node",
        *job);
  }
  // Who speaks of others would otherwise train a model of its own in each of them, without a word.
  const bool is_told = config.num_processes == 1 || environment("WORLD_SIZE") == "1";
  if (!is_told && (config.num_processes > 1 || !config.leader.empty())) {
    throw ConfigError{
        compose("ScalingConfig::launch.{} is set, but nothing says which process this is ({}): set launch.process and "
                "launch.num_processes, or RANK and WORLD_SIZE; for a process that is alone leave it out",
                config.num_processes > 1 ? "num_processes" : "leader", launch.why)};
  }
  return launch;
}

/// Where a launcher was found, a RANK and a WORLD_SIZE that somebody else has set must say the same.
inline void check_ranks_agree(const Environment& environment, const Launch& launch) {
  const auto rank = environment("RANK");
  const auto size = environment("WORLD_SIZE");
  if (!rank || !size || launch.workers_per_process > 0) return;
  if (parse_count(*rank) == launch.process && parse_count(*size) == launch.num_processes) return;
  throw ConfigError{
      compose("{} says that this is process {} of {}, but RANK is {} and WORLD_SIZE is {}: unset those two, or set "
              "ScalingConfig::launch.process and num_processes to what is right ({})",
              launch.launcher, launch.process, launch.num_processes, *rank, *size, launch.why)};
}

/// What is set in the options stands above the environment.
inline void apply_options(const LaunchConfig& config, Launch& launch) {
  if (!config.leader.empty()) {
    std::tie(launch.leader_host, launch.leader_port) = split_address(config.leader, "ScalingConfig::launch.leader");
    launch.uses_torch_store = false;
    launch.guesses_leader = false;
  }
  if (!config.job.empty()) launch.job = config.job;
  if (config.num_processes > 0 && config.num_processes != launch.num_processes) {
    throw ConfigError{compose("ScalingConfig::launch.num_processes is {}, but {} has started {} ({}): leave it at 0",
                              config.num_processes, launch.launcher, launch.num_processes, launch.why)};
  }
}

[[nodiscard]] inline Launch find_launcher(const LaunchConfig& config, const Environment& environment) {
  if (auto launch = find_options(environment, config)) return *launch;
  if (auto launch = find_torchrun(environment)) return *launch;
  if (auto launch = find_pytorch_job(environment)) return *launch;
  for (const auto find : {find_open_mpi, find_hydra, find_slurm}) {
    if (auto launch = find(environment)) {
      check_ranks_agree(environment, *launch);
      return *launch;
    }
  }
  if (auto launch = find_pmix(environment, config)) return *launch;
  if (auto launch = find_kubeflow(environment)) return *launch;
  if (auto launch = find_indexed_job(environment, config)) return *launch;
  if (auto launch = find_plain(environment)) return *launch;
  return find_alone(environment, config);
}

/// Finds out who has started this process. Throws: ConfigError if what it is told is incomplete or contradicts itself.
[[nodiscard]] inline Launch find_launch(const LaunchConfig& config,
                                        const Environment& environment = process_environment()) {
  if (config.process < -1 || config.num_processes < 0) {
    throw ConfigError{
        compose("ScalingConfig::launch.process is {} and num_processes is {}: they count processes; leave "
                "-1 and 0 to take what the launcher says",
                config.process, config.num_processes)};
  }
  Launch launch = find_launcher(config, environment);
  apply_options(config, launch);
  if (launch.num_processes < 1 || launch.process >= launch.num_processes) {
    throw ConfigError{compose("this would be process {} of {}, counted from 0, which cannot be ({})", launch.process,
                              launch.num_processes, launch.why)};
  }
  return launch;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
