// SPDX-License-Identifier: MIT
// Processes that call fit() as if a launcher had started them, and what they are told by.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/train/result.hpp"

#include "unit/train/scratch.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace launched_runs {

// Starts processes with the variables of a plain launcher, and gathers what each leaves to say in the end.
class LaunchedProcesses {
 public:
  using Program = std::function<std::string(int process)>;

  LaunchedProcesses(const Scratch& scratch, int count, Program program, int world_size = 0)
      : scratch_(&scratch), program_(std::move(program)), world_size_(world_size == 0 ? count : world_size) {
    for (int process = 0; process < count; ++process) processes_.push_back(start(process));
  }
  LaunchedProcesses(const LaunchedProcesses&) = delete;
  LaunchedProcesses& operator=(const LaunchedProcesses&) = delete;
  ~LaunchedProcesses() {
    for (const Process& one : processes_) ::kill(one.pid, SIGKILL);
    for (const Process& one : processes_) ::waitpid(one.pid, nullptr, 0);
  }

  // As an engine does with one that has ended.
  void start_again(int process) {
    Process& one = processes_.at(static_cast<std::size_t>(process));
    ::kill(one.pid, SIGKILL);
    ::waitpid(one.pid, nullptr, 0);
    one = start(process);
  }

  [[nodiscard]] pid_t pid(int process) const { return processes_.at(static_cast<std::size_t>(process)).pid; }

  // What the process has said until it ended; "silent" in words if it has not ended within a minute.
  [[nodiscard]] std::string words(int process) {
    const railyard::Deadline deadline = railyard::Deadline::after(std::chrono::seconds{60});
    const int fd = processes_.at(static_cast<std::size_t>(process)).reader.get();
    std::string text;
    while (true) {
      pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
      if (::poll(&one, 1, static_cast<int>(left.count())) <= 0) return text + " (it has not ended)";
      std::array<char, 4096> bytes;
      const ssize_t got = ::read(fd, bytes.data(), bytes.size());
      if (got <= 0) return text;
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  struct Process {
    pid_t pid = 0;
    railyard::detail::Descriptor reader{};
  };

  [[nodiscard]] Process start(int process) const {
    auto [reader, writer] = railyard::detail::make_pipe(0, "a pipe");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error{"fork failed"};
    if (pid == 0) {
      reader.reset();
      be(process, world_size_, *scratch_, program_, writer.get());
    }
    return {pid, std::move(reader)};
  }

  [[noreturn]] static void be(int process, int world_size, const Scratch& scratch, const Program& program, int out) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);  // Catch2's would end the program
    const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
    set("RANK", std::to_string(process));
    set("WORLD_SIZE", std::to_string(world_size));
    set("LOCAL_RANK", std::to_string(process));
    set("LOCAL_WORLD_SIZE", std::to_string(world_size));
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", "29411");  // names the job, here: the leader's address is left in the folder below
    set("XDG_RUNTIME_DIR", runtime_folder(scratch));
    std::string text;
    try {
      text = program(process);
    } catch (const std::exception& error) {
      text = std::string{"threw: "} + error.what();
    }
    [[maybe_unused]] const auto written = ::write(out, text.data(), text.size());
    ::_exit(0);
  }

  static std::string runtime_folder(const Scratch& scratch) {
    const auto folder = scratch.path() / "runtime";
    std::filesystem::create_directories(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
    return folder.string();
  }

  const Scratch* scratch_;
  Program program_;
  int world_size_;
  std::vector<Process> processes_{};
};

// Waits until there is a file of that name, which a worker makes.
inline bool comes(const std::filesystem::path& file) {
  const railyard::Deadline deadline = railyard::Deadline::after(std::chrono::seconds{30});
  while (!std::filesystem::exists(file)) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}
inline void leave(const std::filesystem::path& file) { std::ofstream{file} << "here"; }

// Status, workers, the last "sum" that was reported or -1, and the error.
inline std::string text_of(const railyard::Result& result) {
  const double sum = result.metrics().empty() ? -1 : result.metrics().at("sum").number();
  return fmt::format("status {}, {} workers, sum {}, {}", result.exit_status(), result.world_size(), sum,
                     result.error());
}

}  // namespace launched_runs
