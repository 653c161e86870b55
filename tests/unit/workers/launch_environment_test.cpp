// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/launch_environment.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <map>

using namespace workers_test;

namespace {

using Variables = std::map<std::string, std::string>;

ry::detail::Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

ry::detail::Launch launch_of(Variables variables, const ry::LaunchConfig& config = {}) {
  return ry::detail::find_launch(config, environment_of(std::move(variables)));
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

// As seen under srun -N3 --ntasks-per-node=2, in the fourth task.
const Variables slurm_step{{"SLURM_JOB_ID", "12345"},
                           {"SLURM_STEP_ID", "1"},
                           {"SLURM_PROCID", "3"},
                           {"SLURM_NTASKS", "6"},
                           {"SLURM_STEP_NUM_TASKS", "6"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NODELIST", "n[01-03]"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}};
const Variables torchrun{{"RANK", "1"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node1"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "digits"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                         {"OMPI_UNIVERSE_SIZE", "2"},         {"PMIX_RANK", "2"},
                         {"PMIX_NAMESPACE", "1564934145"}};
const Variables kubeflow{{"PET_NNODES", "3"},          {"PET_NPROC_PER_NODE", "8"},
                         {"PET_NODE_RANK", "2"},       {"PET_MASTER_ADDR", "digits-node-0-0.digits"},
                         {"PET_MASTER_PORT", "29500"}, {"JOB_COMPLETION_INDEX", "2"}};

}  // namespace

TEST_CASE("find_launch: is alone where no launcher has set anything") {
  const ry::detail::Launch launch = launch_of({{"HOSTNAME", "desk"}, {"MASTER_ADDR", "left-from-yesterday"}});
  CHECK(launch.process == 0);
  CHECK(launch.num_processes == 1);
  CHECK(launch.num_local_processes == 1);
  CHECK_THAT(launch.why, ContainsSubstring("one process"));
  CHECK(launch_of({{"WORLD_SIZE", "1"}}).num_processes == 1);
}

TEST_CASE("find_launch: believes a step of Slurm") {
  const ry::detail::Launch launch = launch_of(slurm_step);
  CHECK(launch.launcher == "Slurm (srun)");
  CHECK(launch.process == 3);
  CHECK(launch.num_processes == 6);
  CHECK(launch.local_process == 1);
  CHECK(launch.num_local_processes == 2);
  CHECK(launch.leader_host == "n01");
  CHECK(launch.leader_port == 23'354);  // 20000 + (job + 1009 step) % 10000
  CHECK(launch.job == "slurm-12345.1");
  CHECK(launch.restart == 0);
  CHECK_THAT(launch.why, ContainsSubstring("SLURM_PROCID=3"));
  CHECK(launch_of(with(slurm_step, {{"SLURM_RESTART_COUNT", "2"}})).restart == 2);
  CHECK(launch_of(with(slurm_step, {{"SLURM_STEP_TASKS_PER_NODE", "3,2,1"}})).num_local_processes == 2);
}

TEST_CASE("find_launch: lets MASTER_ADDR and MASTER_PORT stand above Slurm's list of nodes") {
  const ry::detail::Launch named = launch_of(with(slurm_step, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}}));
  CHECK(named.leader_host == "10.0.0.1");
  CHECK(named.leader_port == 4000);
  CHECK(launch_of(with(slurm_step, {{"MASTER_ADDR", "10.0.0.1"}})).leader_port == 23'354);
}

TEST_CASE("find_launch: does not wait for others in a batch script of Slurm, which has a rank and no step") {
  const ry::detail::Launch launch = launch_of(without(slurm_step, "SLURM_STEP_ID"));
  CHECK(launch.num_processes == 1);
  CHECK_THAT(launch.why, ContainsSubstring("SLURM_JOB_ID is 12345") && ContainsSubstring("srun"));
  CHECK(launch_of(with(slurm_step, {{"SLURM_STEP_ID", "4294967290"}})).num_processes ==
        1);  // an interactive allocation
}

TEST_CASE("find_launch: takes Open MPI's word before that of the step in which its daemon runs") {
  const ry::detail::Launch launch = launch_of(with(with(slurm_step, {{"SLURM_PROCID", "0"}}), open_mpi));
  CHECK(launch.launcher == "Open MPI");
  CHECK(launch.process == 2);
  CHECK(launch.num_processes == 3);  // not OMPI_UNIVERSE_SIZE
  CHECK(launch.num_local_processes == 1);
  CHECK(launch.job == "mpi-1564934145");
}

TEST_CASE("find_launch: tells Hydra from Slurm's own PMI") {
  const Variables pmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "7"}};
  const ry::detail::Launch hydra = launch_of(with(pmi, {{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}));
  CHECK(hydra.process == 1);
  CHECK(hydra.num_processes == 2);
  CHECK(hydra.num_local_processes == 2);
  CHECK(launch_of(pmi).num_local_processes == 0);
  CHECK(launch_of(with(with(slurm_step, pmi), {{"PMI_JOBID", "12345.1"}})).launcher == "Slurm (srun)");
  CHECK(launch_of(with(with(slurm_step, pmi), {{"MPI_LOCALNRANKS", "1"}})).num_processes == 2);
}

TEST_CASE("find_launch: finds by which socket a launcher speaks PMI, if it is that of these processes") {
  const Variables pmi{{"PMI_RANK", "3"}, {"PMI_SIZE", "6"}, {"PMI_FD", "7"}};
  CHECK(launch_of(pmi).pmi_fd == 7);
  CHECK(launch_of(with(slurm_step, pmi)).pmi_fd == 7);
  CHECK(launch_of(with(with(slurm_step, pmi), {{"PMI_SIZE", "2"}})).pmi_fd == -1);  // of an mpiexec around srun
  CHECK(launch_of(with(with(slurm_step, pmi), {{"PMI_RANK", "1"}})).pmi_fd == -1);
  CHECK(launch_of(slurm_step).pmi_fd == -1);
  CHECK(launch_of(with(pmi, {{"PMI_FD", "seven"}})).pmi_fd == -1);
  CHECK(launch_of(with(open_mpi, pmi)).pmi_fd == -1);
}

TEST_CASE("find_launch: finds whether a launcher speaks PMIx, and means this process") {
  CHECK(launch_of(open_mpi).has_pmix);
  CHECK_FALSE(launch_of(with(open_mpi, {{"PMIX_RANK", "1"}})).has_pmix);
  CHECK_FALSE(launch_of(slurm_step).has_pmix);
  CHECK(launch_of(with(slurm_step, {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.1.0"}})).has_pmix);
  CHECK_FALSE(launch_of(with(slurm_step, {{"PMIX_RANK", "3"}})).has_pmix);
}

TEST_CASE("find_launch: knows a port that somebody has named from one that follows from the job's number") {
  CHECK(launch_of(slurm_step).guesses_leader);
  CHECK(launch_of(with(slurm_step, {{"MASTER_ADDR", "node1"}})).guesses_leader);
  CHECK_FALSE(launch_of(with(slurm_step, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "4000"}})).guesses_leader);
  CHECK_FALSE(launch_of(slurm_step, {.leader = "node1:4000"}).guesses_leader);
}

TEST_CASE("find_launch: believes torchrun, also where Slurm has started torchrun") {
  const ry::detail::Launch launch = launch_of(with(slurm_step, torchrun));
  CHECK(launch.launcher == "torchrun");
  CHECK(launch.process == 1);
  CHECK(launch.num_processes == 4);
  CHECK(launch.local_process == 1);
  CHECK(launch.num_local_processes == 2);
  CHECK(launch.leader_host == "node1");
  CHECK(launch.leader_port == 29'500);
  CHECK(launch.restart == 2);
  CHECK(launch.uses_torch_store);
  CHECK(launch.job == "torchrun-digits-node1-29500");
  CHECK_FALSE(launch_of(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).uses_torch_store);
}

TEST_CASE("find_launch: needs the number of processes from elsewhere under PMIx alone") {
  const Variables pmix{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "77"}};
  CHECK_THROWS_WITH(launch_of(pmix), ContainsSubstring("WORLD_SIZE is not set") && ContainsSubstring("num_processes"));
  CHECK(launch_of(pmix, {.num_processes = 2}).num_processes == 2);
  CHECK(launch_of(with(pmix, {{"WORLD_SIZE", "3"}})).process == 1);
  CHECK(launch_of(with(slurm_step, pmix)).launcher == "Slurm (srun)");  // srun --mpi=pmix
}

TEST_CASE("find_launch: counts the pods of Kubeflow Trainer and says how many workers each starts") {
  const ry::detail::Launch launch = launch_of(kubeflow);
  CHECK(launch.process == 2);
  CHECK(launch.num_processes == 3);
  CHECK(launch.workers_per_process == 8);
  CHECK(launch.leader_host == "digits-node-0-0.digits");
  CHECK(launch.leader_port == 29'500);
  CHECK(launch_of(with(kubeflow, {{"PET_NPROC_PER_NODE", "auto"}})).workers_per_process == 0);
  CHECK(launch_of(without(kubeflow, "PET_NODE_RANK")).process == 2);
  CHECK_THROWS_WITH(launch_of(with(kubeflow, {{"PET_NNODES", "2:4"}})), ContainsSubstring("PET_NNODES is \"2:4\""));
}

TEST_CASE("find_launch: counts pods for a PyTorchJob, whichever way WORLD_SIZE counts") {
  const Variables worker{{"RANK", "1"},
                         {"WORLD_SIZE", "16"},
                         {"PET_NNODES", "2"},
                         {"PET_NPROC_PER_NODE", "8"},
                         {"MASTER_ADDR", "digits-master-0"},
                         {"MASTER_PORT", "23456"},
                         {"HOSTNAME", "digits-worker-0"}};
  const ry::detail::Launch launch = launch_of(worker);
  CHECK(launch.process == 1);
  CHECK(launch.num_processes == 2);
  CHECK(launch.workers_per_process == 8);
  CHECK(launch.job == "kubeflow-digits");
  CHECK(launch_of(with(worker, {{"WORLD_SIZE", "2"}})).num_processes == 2);
  const ry::detail::Launch leader =
      launch_of(with(worker, {{"RANK", "0"}, {"MASTER_ADDR", "localhost"}, {"HOSTNAME", "digits-master-0"}}));
  CHECK(leader.leader_host == "digits-master-0");
  CHECK(leader.job == launch.job);
}

TEST_CASE("find_launch: takes the index of an Indexed Job and its size from the manifest") {
  const Variables pod{{"JOB_COMPLETION_INDEX", "2"},
                      {"HOSTNAME", "digits-run-2"},
                      {"MASTER_ADDR", "digits-run-0.digits"},
                      {"MASTER_PORT", "29500"}};
  CHECK_THROWS_WITH(launch_of(pod), ContainsSubstring("WORLD_SIZE is not set") && ContainsSubstring("completions"));
  const ry::detail::Launch launch = launch_of(with(pod, {{"WORLD_SIZE", "3"}}));
  CHECK(launch.process == 2);
  CHECK(launch.num_processes == 3);
  CHECK(launch.job == "kubernetes-digits-run");
  CHECK(launch.leader_host == "digits-run-0.digits");
  CHECK(launch_of(with(pod, {{"WORLD_SIZE", "1"}})).process == 0);  // each pod a run of its own
  CHECK(launch_of(pod, {.num_processes = 3}).num_processes == 3);
}

TEST_CASE("find_launch: takes plain variables and names the one that is missing") {
  const Variables plain{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "29500"}};
  const ry::detail::Launch launch = launch_of(plain);
  CHECK(launch.process == 1);
  CHECK(launch.num_local_processes == 0);
  CHECK(launch.leader_host == "::1");
  CHECK_THROWS_WITH(launch_of(without(plain, "RANK")),
                    ContainsSubstring("RANK is not set") && ContainsSubstring("WORLD_SIZE=2"));
  CHECK_THROWS_WITH(launch_of(without(plain, "WORLD_SIZE")), ContainsSubstring("WORLD_SIZE is not set"));
  CHECK_THROWS_WITH(launch_of(with(plain, {{"RANK", "one"}})), ContainsSubstring("RANK is \"one\""));
  CHECK_THROWS_WITH(launch_of(with(plain, {{"RANK", "-1"}})), ContainsSubstring("RANK is \"-1\""));
  CHECK_THROWS_WITH(launch_of(with(plain, {{"RANK", "2"}})), ContainsSubstring("process 2 of 2"));
  CHECK_THROWS_WITH(launch_of(with(plain, {{"MASTER_PORT", "70000"}})), ContainsSubstring("MASTER_PORT is 70000"));
}

TEST_CASE("find_launch: refuses half of what a launcher sets") {
  CHECK_THROWS_WITH(launch_of(without(torchrun, "MASTER_ADDR")), ContainsSubstring("MASTER_ADDR is not set"));
  CHECK_THROWS_WITH(launch_of(without(slurm_step, "SLURM_PROCID")), ContainsSubstring("SLURM_PROCID is not set"));
  CHECK_THROWS_WITH(launch_of(without(open_mpi, "OMPI_COMM_WORLD_SIZE")), ContainsSubstring("OMPI_COMM_WORLD_SIZE"));
}

TEST_CASE("find_launch: refuses ranks that contradict each other") {
  CHECK_THROWS_WITH(launch_of(with(slurm_step, {{"RANK", "0"}, {"WORLD_SIZE", "12"}})),
                    ContainsSubstring("RANK is 0 and WORLD_SIZE is 12") && ContainsSubstring("process 3 of 6"));
  CHECK(launch_of(with(slurm_step, {{"RANK", "3"}, {"WORLD_SIZE", "6"}})).process == 3);
  CHECK(launch_of(with(slurm_step, {{"WORLD_SIZE", "12"}})).num_processes == 6);  // of a script that counts GPUs
}

TEST_CASE(
    "find_launch: does not train alone where the options speak of others and nothing says which process this is") {
  const auto refuses = [](const ry::LaunchConfig& options, const std::string& setting) {
    CHECK_THROWS_AS(launch_of({}, options), ry::ConfigError);
    CHECK_THROWS_WITH(launch_of({}, options), ContainsSubstring("ScalingConfig::launch." + setting + " is set") &&
                                                  ContainsSubstring("which process this is") &&
                                                  ContainsSubstring("launch.process"));
  };
  refuses({.leader = "node1:4000"}, "leader");
  refuses({.num_processes = 2}, "num_processes");
  CHECK_THROWS_WITH(launch_of({{"SLURM_JOB_ID", "17"}}, {.leader = "node1:4000"}), ContainsSubstring("srun"));
  // A program that names the others may be told that there are none.
  CHECK(launch_of({}, {.num_processes = 1, .leader = "node1:4000"}).num_processes == 1);
  CHECK(launch_of({{"WORLD_SIZE", "1"}}, {.leader = "node1:4000"}).num_processes == 1);
}

TEST_CASE("find_launch: lets the options stand above the environment") {
  const ry::LaunchConfig options{.process = 1, .num_processes = 4, .leader = "[fd00::1]:4000", .job = "mine"};
  const ry::detail::Launch launch = launch_of(with(slurm_step, torchrun), options);
  CHECK(launch.process == 1);
  CHECK(launch.num_processes == 4);
  CHECK(launch.leader_host == "fd00::1");
  CHECK(launch.leader_port == 4000);
  CHECK(launch.job == "mine");
  CHECK_FALSE(launch.uses_torch_store);
  CHECK_THROWS_WITH(launch_of({}, {.process = 1}), ContainsSubstring("num_processes is not set"));
  CHECK_THROWS_WITH(launch_of(slurm_step, {.num_processes = 2}), ContainsSubstring("has started 6"));
  CHECK_THROWS_AS(launch_of({}, {.process = -2}), ry::ConfigError);
}

TEST_CASE("split_address: divides host and port and says what it cannot read") {
  using ry::detail::split_address;
  CHECK(split_address("node1:29500", "x") == std::pair<std::string, int>{"node1", 29'500});
  CHECK(split_address("[fd00::1]:1", "x") == std::pair<std::string, int>{"fd00::1", 1});
  for (const char* address : {"", "node1", ":1", "node1:", "node1:0", "node1:65536", "fd00::1:29500", "[]:1", "a:b"}) {
    CAPTURE(address);
    CHECK_THROWS_WITH(split_address(address, "the option"), ContainsSubstring("the option is \""));
  }
}

TEST_CASE("hydra_job: finds nothing among the parents of a process that Hydra has not started") {
  CHECK(ry::detail::hydra_job(::getpid()).empty());
}
