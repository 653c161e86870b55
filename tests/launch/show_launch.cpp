// SPDX-License-Identifier: MIT
// What the tests of launchers start: says who has started it, and meets the other processes.
//   show_launch                  one line; returns when all processes have met
//   show_launch environment      only what the environment says
//   show_launch nodes LIST       expands a list of nodes
//   show_launch mpi              uses MPI (MPICH's), and asks for the launcher's space beside it
#include "railyard/workers/detail/bulletin.hpp"
#include "railyard/workers/detail/own_address.hpp"

#include <cstdio>
#include <exception>
#include <string>

#include <dlfcn.h>

namespace {

namespace rd = railyard::detail;
using namespace std::chrono_literals;

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::string take_line(const rd::Socket& socket, const railyard::Deadline& deadline) {
  std::string line;
  char letter = 0;
  while (letter != '\n') {
    if (!rd::wait_for(socket.fd(), POLLIN, deadline)) throw railyard::Error{"a process fell silent"};
    if (::recv(socket.fd(), &letter, 1, 0) != 1) throw railyard::Error{"a process has gone"};
    if (letter != '\n') line += letter;
  }
  return line;
}

void give_line(const rd::Socket& socket, const std::string& line) {
  const std::string bytes = line + "\n";
  if (::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
    throw railyard::Error{"a process has gone"};
  }
}

// Takes one connection of every other process, each of which tells its number and job.
void lead(const rd::Launch& launch, rd::Bulletin& bulletin, const railyard::Deadline& deadline) {
  const rd::Socket listener = rd::listen_at("", bulletin.port_to_listen_on());
  const bool hosts_differ = !rd::is_one_host(launch);
  bulletin.post({.host = rd::own_address_towards(launch.leader_host, "", hosts_differ),
                 .port = rd::SocketAddress::of_self(listener.fd()).port(),
                 .secret = rd::random_secret()});
  std::vector<rd::Socket> others(static_cast<std::size_t>(launch.num_processes));
  for (int i = 1; i < launch.num_processes; ++i) {
    if (!rd::wait_for(listener.fd(), POLLIN, deadline)) throw railyard::Error{"not all processes came"};
    rd::Socket socket{rd::adopt(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC), "accepting")};
    const auto process = static_cast<std::size_t>(std::stoi(take_line(socket, deadline)));
    if (take_line(socket, deadline) != launch.job) throw railyard::Error{"a process of another job came"};
    if (others.at(process).is_open()) throw railyard::Error{rd::compose("process {} came twice", process)};
    others.at(process) = std::move(socket);
  }
  for (int i = 1; i < launch.num_processes; ++i) give_line(others[static_cast<std::size_t>(i)], "all are here");
}

void follow(const rd::Launch& launch, rd::Bulletin& bulletin, const railyard::Deadline& deadline) {
  std::string cause;
  rd::Posting posting = bulletin.read(deadline, nullptr);
  rd::Socket socket;
  while (!socket.is_open()) {
    socket = rd::try_connect(posting.host, posting.port, deadline, cause);
    if (socket.is_open()) break;
    std::this_thread::sleep_for(20ms);
    posting = bulletin.read(deadline, &posting);  // it may be of an earlier attempt
    if (deadline.expired())
      throw railyard::Error{rd::compose("nobody answers where {} says: {}", bulletin.where(), cause)};
  }
  give_line(socket, std::to_string(launch.process));
  give_line(socket, launch.job);
  if (take_line(socket, deadline) != "all are here") throw railyard::Error{"the leader talks nonsense"};
}

void run(const std::string& what) {
  const rd::Launch launch = rd::find_launch({});
  const std::string who = rd::compose("process {} of {}, {} of {} here", launch.process, launch.num_processes,
                                      launch.local_process, launch.num_local_processes);
  if (what == "environment") {
    say(rd::compose("{}; leader {}:{}; job {}; restart {}; {}", who, launch.leader_host, launch.leader_port, launch.job,
                    launch.restart, launch.why));
    return;
  }
  const auto deadline = railyard::Deadline::after(60s);
  std::string where = "nowhere";
  if (launch.num_processes > 1) {
    const auto bulletin = rd::choose_bulletin(launch, {}, {who, say}, deadline);
    launch.process == 0 ? lead(launch, *bulletin, deadline) : follow(launch, *bulletin, deadline);
    where = bulletin->where();
  }
  say(rd::compose("{}; met in {}; restart {}; {}", who, where, launch.restart, launch.why));
}

// Finds MPI as a program finds it that has not been linked with it.
template <class Function>
Function* find_in_mpi(const char* name) {
  void* const library = ::dlopen("libmpich.so.12", RTLD_NOW | RTLD_GLOBAL);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  if (found == nullptr) throw railyard::Error{rd::compose("there is no {}", name)};
  return reinterpret_cast<Function*>(found);
}

void run_beside_mpi() {
  constexpr int world = 0x44000000;  // MPI_COMM_WORLD of MPICH
  int failures = find_in_mpi<int(int*, char***)>("MPI_Init")(nullptr, nullptr);
  const rd::Launch launch = rd::find_launch({});
  std::string why_not = "nothing";
  try {
    const auto bulletin = rd::choose_bulletin(launch, {}, {"", {}}, railyard::Deadline::after(60s));
    why_not = bulletin->where();
  } catch (const railyard::ConfigError& error) {
    why_not = error.what();
  }
  failures += find_in_mpi<int(int)>("MPI_Barrier")(world);
  failures += find_in_mpi<int()>("MPI_Finalize")();
  say(rd::compose("{}; MPI is {}", why_not, failures == 0 ? "whole" : "broken"));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "nodes" && argc == 3) {
    for (const std::string& name : rd::NodeList::expand(argv[2])) say(name);
  } else if (what == "mpi") {
    run_beside_mpi();
  } else {
    run(what);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "show_launch: %s\n", error.what());
  return 1;
}
