// SPDX-License-Identifier: MIT
// Starts the ranks of ddp.py, and has them take a turn when it is theirs.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
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
  // Two ranks, under torchrun. packages: the folder that pip has put torch in.
  Ddp(const std::string& script, const std::string& packages)
      : Ddp(packages, 2,
            {{"python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=5",
              script}}) {}
  // commands: what starts so many ranks.
  Ddp(const std::string& packages, int num_ranks, const std::vector<std::vector<std::string>>& commands) {
    for (int rank = 0; rank < num_ranks; ++rank) commands_.push_back(make_pipe("ddp.rank" + std::to_string(rank)));
    results_ = make_pipe("ddp.results");
    setenv("PYTHONPATH", packages.c_str(), 1);
    setenv("PYTHONWARNINGS", "ignore", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    for (std::vector<std::string> words : commands) {
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      pid_t process = 0;
      if (posix_spawnp(&process, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) {
        throw std::runtime_error{"cannot start " + words.front()};
      }
      processes_.push_back(process);
    }
    unsetenv("OMP_NUM_THREADS");
  }
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;
  ~Ddp() {
    for (const int end : commands_) close(end);
    close(results_);
    // The ranks end when nobody can give them commands any more.
    for (const pid_t process : processes_) waitpid(process, nullptr, 0);
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
  // Open at both ends, so that no open waits for the other side.
  static int make_pipe(const std::string& name) {
    if (mkfifo(name.c_str(), 0600) != 0) throw std::runtime_error{"cannot make " + name + ": " + std::strerror(errno)};
    return open(name.c_str(), O_RDWR | O_CLOEXEC);
  }

  std::string read_line() {
    std::string line;
    while (line.empty() || line.back() != '\n') {
      pollfd wait{.fd = results_, .events = POLLIN, .revents = 0};
      if (poll(&wait, 1, 500) > 0) {
        char letter = 0;
        if (read(results_, &letter, 1) == 1) line += letter;
      } else if (const auto ended = std::find_if(processes_.begin(), processes_.end(), has_ended);
                 ended != processes_.end()) {
        processes_.erase(ended);
        throw std::runtime_error{"a process of ddp.py has ended before its turn; what it says stands above"};
      }
    }
    return line;
  }
  static bool has_ended(pid_t process) { return waitpid(process, nullptr, WNOHANG) == process; }

  std::vector<int> commands_;
  int results_ = -1;
  std::vector<pid_t> processes_;
};
