// SPDX-License-Identifier: MIT
// A disk that is really full: a file system of few bytes, which only a process of the test's own sees.
#pragma once

#include "support/file_content.hpp"
#include "support/temporary_folder.hpp"

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <optional>
#include <stdexcept>
#include <string>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/// Runs the program in a process of its own without standard output, for which a folder is a disk of so many bytes, and
/// returns what it returns; nothing where this process may mount no disk.
inline std::optional<std::string> on_small_disk(
    std::size_t size_bytes, const std::function<std::string(const std::filesystem::path& disk)>& program) {
  const TemporaryFolder disk;
  const TemporaryFolder outside;
  const std::filesystem::path answer = outside.path() / "answer";
  constexpr int is_forbidden = 77;
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error{"fork failed"};
  if (pid == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);  // Catch2's would end the program
    const std::string options = "size=" + std::to_string(size_bytes);
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, options.c_str()) != 0) {
      ::_exit(is_forbidden);
    }
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);  // what workers print is much, and says nothing
    std::string text;
    try {
      text = program(disk.path());
    } catch (const std::exception& error) {
      text = std::string{"threw: "} + error.what();
    }
    std::ofstream{answer, std::ios::binary} << text;
    ::_exit(0);
  }
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) throw std::runtime_error{"waitpid failed"};
  if (WIFEXITED(status) && WEXITSTATUS(status) == is_forbidden) return {};
  if (status != 0) throw std::runtime_error{"the program on a small disk has ended with " + std::to_string(status)};
  return file_content(answer);
}

/// Writes to the disk as somebody else does, until it takes nothing more.
inline void fill_up(const std::filesystem::path& disk) {
  std::ofstream file{disk / "of somebody else", std::ios::binary | std::ios::app};
  while (file << 'x' << std::flush) {
  }
}
inline void make_room(const std::filesystem::path& disk) { std::filesystem::remove(disk / "of somebody else"); }
