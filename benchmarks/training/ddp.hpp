// SPDX-License-Identifier: MIT
// Starts the two ranks of ddp.py under torchrun, and has them take a turn when it is theirs.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct DdpTurn {
  double us = 0;
  double loss = 0;
};

class Ddp {
 public:
  // packages: the folder that pip has put torch in.
  Ddp(const std::string& script, const std::string& packages) {
    for (const char* name : {"ddp.rank0", "ddp.rank1", "ddp.results"}) {
      if (mkfifo(name, 0600) != 0)
        throw std::runtime_error{std::string{"cannot make "} + name + ": " + std::strerror(errno)};
    }
    // Both ends, so that no open waits for the other side.
    for (std::size_t rank = 0; rank < 2; ++rank) commands_[rank] = open(rank == 0 ? "ddp.rank0" : "ddp.rank1", flags);
    results_ = open("ddp.results", flags);
    setenv("PYTHONPATH", packages.c_str(), 1);
    setenv("PYTHONWARNINGS", "ignore", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    std::vector<std::string> words{
        "python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=5", script};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (posix_spawnp(&process_, "python3", nullptr, nullptr, arguments.data(), environ) != 0) {
      throw std::runtime_error{"cannot start python3"};
    }
    unsetenv("OMP_NUM_THREADS");
  }
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;
  ~Ddp() {
    for (const int end : {commands_[0], commands_[1], results_}) close(end);
    if (!has_ended_) waitpid(process_, nullptr, 0);  // the ranks end when nobody can give them commands any more
  }

  DdpTurn take_turn(const std::string& name, int warm_up, int steps) {
    const std::string line = name + " " + std::to_string(warm_up) + " " + std::to_string(steps) + "\n";
    for (const int end : commands_) {
      if (write(end, line.data(), line.size()) < 0) throw std::runtime_error{"cannot write to the ranks of ddp.py"};
    }
    std::istringstream answer{read_line()};
    DdpTurn turn;
    answer >> turn.us >> turn.loss;
    return turn;
  }

 private:
  static constexpr int flags = O_RDWR | O_CLOEXEC;

  std::string read_line() {
    std::string line;
    while (line.empty() || line.back() != '\n') {
      pollfd wait{.fd = results_, .events = POLLIN, .revents = 0};
      if (poll(&wait, 1, 500) > 0) {
        char letter = 0;
        if (read(results_, &letter, 1) == 1) line += letter;
      } else if (waitpid(process_, nullptr, WNOHANG) == process_) {
        has_ended_ = true;
        throw std::runtime_error{"torchrun has ended before its turn; what it says stands above"};
      }
    }
    return line;
  }

  std::array<int, 2> commands_{-1, -1};
  int results_ = -1;
  pid_t process_ = 0;
  bool has_ended_ = false;
};
