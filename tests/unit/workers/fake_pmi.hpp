// SPDX-License-Identifier: MIT
// A launcher of the tests that speaks PMI, as Hydra and Slurm do; tests/launch asks the real ones.
#pragma once

#include "support.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

namespace workers_test {

/// Is one end of a pair of sockets, at which a test says what it likes.
struct PmiPair {
  PmiPair() {
    int ends[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    process = ry::detail::Descriptor{ends[0]};
    launcher = ry::detail::Descriptor{ends[1]};
  }
  void say(const std::string& text) const {
    REQUIRE(::send(launcher.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  ry::detail::Descriptor process{};
  ry::detail::Descriptor launcher{};
};

/// Serves the processes of a job: each puts, comes to the barrier, and gets, over a socket of its own.
class FakePmi {
 public:
  explicit FakePmi(int num_processes) : pairs_(static_cast<std::size_t>(num_processes)) {
    server_ = std::thread{[this] { serve(); }};
  }
  FakePmi(const FakePmi&) = delete;
  FakePmi& operator=(const FakePmi&) = delete;
  ~FakePmi() {
    for (const PmiPair& pair : pairs_) ::shutdown(pair.process.get(), SHUT_RDWR);
    server_.join();
  }

  [[nodiscard]] int fd(int process) const { return pairs_.at(static_cast<std::size_t>(process)).process.get(); }
  /// All that has gone through, both ways.
  [[nodiscard]] std::string heard() {
    const std::lock_guard lock{mutex_};
    return heard_;
  }
  [[nodiscard]] int count(const std::string& text) {
    const std::string all = heard();
    int count = 0;
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++count;
    return count;
  }
  void put(const std::string& key, const std::string& value) {
    const std::lock_guard lock{mutex_};
    values_[key] = value;
  }

 private:
  static std::string value_of(const std::string& line, const std::string& name) {
    const std::size_t begin = line.find(" " + name + "=");
    if (begin == std::string::npos) return {};
    const std::size_t from = begin + name.size() + 2;
    return line.substr(from, line.find(' ', from) - from);
  }

  void serve() {
    std::vector<pollfd> waiting;
    for (const PmiPair& pair : pairs_) waiting.push_back({.fd = pair.launcher.get(), .events = POLLIN, .revents = 0});
    std::vector<std::string> received(pairs_.size());
    for (std::size_t num_gone = 0; num_gone < pairs_.size();) {
      if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
      for (std::size_t at = 0; at < pairs_.size(); ++at) {
        if (waiting[at].fd < 0 || waiting[at].revents == 0) continue;
        char bytes[512];
        const ssize_t got = ::recv(waiting[at].fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) {
          waiting[at].fd = -1;
          ++num_gone;
          continue;
        }
        received[at].append(bytes, static_cast<std::size_t>(got));
        for (std::size_t end = 0; (end = received[at].find('\n')) != std::string::npos;) {
          const std::string line = received[at].substr(0, end);
          received[at].erase(0, end + 1);
          answer(at, line);
        }
      }
    }
  }

  void answer(std::size_t process, const std::string& line) {
    const std::lock_guard lock{mutex_};
    heard_ += line + "\n";
    if (line.starts_with("cmd=init ")) {
      say(process, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    } else if (line == "cmd=get_my_kvsname") {
      say(process, "cmd=my_kvsname kvsname=kvs_1_0");
    } else if (line.starts_with("cmd=put ")) {
      const bool is_new = values_.emplace(value_of(line, "key"), value_of(line, "value")).second;
      say(process, is_new ? "cmd=put_result rc=0 msg=success" : "cmd=put_result rc=-1 msg=duplicate_key");
    } else if (line.starts_with("cmd=get ")) {
      const auto found = values_.find(value_of(line, "key"));
      const bool is_there = found != values_.end();
      say(process, is_there ? "cmd=get_result rc=0 msg=success value=" + found->second
                            : "cmd=get_result rc=-1 msg=key_not_found value=unknown");
    } else if (line == "cmd=barrier_in") {
      if (++num_at_barrier_ < pairs_.size()) return;
      num_at_barrier_ = 0;
      for (std::size_t at = 0; at < pairs_.size(); ++at) say(at, "cmd=barrier_out");
    } else if (line == "cmd=finalize") {
      say(process, "cmd=finalize_ack");
    }
  }
  void say(std::size_t process, const std::string& line) {
    heard_ += line + "\n";
    const std::string bytes = line + "\n";
    ::send(pairs_[process].launcher.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  std::vector<PmiPair> pairs_;
  std::thread server_{};
  std::mutex mutex_{};
  std::string heard_{};
  std::map<std::string, std::string> values_{};
  std::size_t num_at_barrier_ = 0;
};

}  // namespace workers_test
