// SPDX-License-Identifier: MIT
// A bulletin in the key-value space of the launcher that has started the processes. Workers room.
#pragma once

#include "railyard/workers/detail/file_bulletin.hpp"
#include "railyard/workers/detail/key_agreement.hpp"
#include "railyard/workers/detail/key_value_space.hpp"
#include "railyard/workers/detail/launch_environment.hpp"
#include "railyard/workers/detail/posting.hpp"
#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/hexadecimal.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a process keeps of the one exchange that it has by its launcher's space: a launcher takes it for the end of
/// MPI, after which it does not serve the process again. Later runs of the process meet at the same address.
struct LauncherMemory {
  std::optional<Posting> posting{};
  std::optional<Socket> reserved{};  ///< of the leader: bound to its port for as long as the process lives
};

[[nodiscard]] inline LauncherMemory& launcher_memory() {
  static LauncherMemory memory;
  return memory;
}

/// Lets the processes of a job meet in the space of their launcher. A secret that the leader has made goes there too,
/// but hidden: each other process leaves a public key, and is left the secret for its private one (X25519). Who only
/// listens to what the launcher's own processes send to each other between the hosts, mostly in the clear, does not
/// learn it; who can alter it could take part in the run.
class LauncherBulletin final : public Bulletin {
 public:
  /// space: nothing if the memory holds a posting; where: how messages call it. has_secret: this process was given one.
  /// deadline: of the exchange, as far as post() does it.
  LauncherBulletin(const Launch& launch, std::unique_ptr<KeyValueSpace> space, std::string where, bool has_secret,
                   WaitTeller teller, const Deadline& deadline, LauncherMemory& memory = launcher_memory())
      : process_(launch.process),
        num_processes_(launch.num_processes),
        generation_(static_cast<std::uint32_t>(launch.restart)),
        prefix_(compose("railyard-{}", launch.restart)),
        space_(std::move(space)),
        where_(std::move(where)),
        has_secret_(has_secret),
        teller_(std::move(teller)),
        deadline_(deadline),
        memory_(&memory) {
    if (process_ == 0 && !memory_->reserved) memory_->reserved = reserve_port();
  }

  void post(const Posting& posting) override {
    if (memory_->posting) return;
    const bool hides_secret = !posting.secret.empty();
    const KeyAgreement own;
    Posting open = posting;
    open.secret.clear();
    std::string text = write_posting(open);
    if (hides_secret) text += compose("key {}\n", hexadecimal(own.public_key()));
    space_->put(key("leader"), hexadecimal(text_bytes(text)), deadline_);
    meet(deadline_);
    if (hides_secret) {
      for (int process = 1; process < num_processes_; ++process) hand_secret(process, own, posting.secret);
      meet(deadline_);
    }
    keep(posting);
  }

  [[nodiscard]] Posting read(const Deadline& deadline, const Posting* refused) override {
    if (!memory_->posting) {
      keep(exchange(deadline));
    } else if (refused != nullptr) {
      // There is no other; but the leader may be about to end an earlier run of its process, or to begin this one.
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(patience, deadline.remaining()));
    }
    return *memory_->posting;
  }

  [[nodiscard]] bool carries_secret() const override {
    return !has_secret_ && (!memory_->posting || !memory_->posting->secret.empty());
  }
  [[nodiscard]] std::string make_secret() const override {
    return memory_->posting ? memory_->posting->secret : random_secret();
  }
  [[nodiscard]] int port_to_listen_on() const override {
    return memory_->reserved ? SocketAddress::of_self(memory_->reserved->fd()).port() : 0;
  }
  [[nodiscard]] std::string where() const override { return where_; }

 private:
  [[nodiscard]] std::string key(std::string_view what) const { return compose("{}-{}", prefix_, what); }
  [[nodiscard]] std::string key(std::string_view what, int process) const {
    return compose("{}-{}-{}", prefix_, what, process);
  }

  [[nodiscard]] Posting exchange(const Deadline& deadline) {
    const KeyAgreement own;
    space_->put(key("key", process_), has_secret_ ? std::string{no_key} : hexadecimal(own.public_key()), deadline);
    meet(deadline);
    const std::string text = take(0, key("leader"), deadline);
    auto posting = read_posting(text);
    if (!posting) fail(compose(R"(holds no address of process 0, but "{}")", text.substr(0, 100)));
    if (posting->generation != generation_) {
      fail(compose("holds an address of attempt {} of the job, and this is attempt {}", posting->generation,
                   generation_));
    }
    const std::string_view leader_key = line_of(text, "key");
    if (leader_key.empty() && !has_secret_) {
      throw ConfigError{
          compose("process 0 was given a secret of the run, and process {} was not: let RAILYARD_SECRET_FILE or "
                  "RAILYARD_SECRET, or ScalingConfig::launch.secret_file, reach every process, or none",
                  process_)};
    }
    if (!leader_key.empty()) meet(deadline);
    if (!has_secret_) {
      const Digest other = read_key(leader_key);
      posting->secret =
          hide_or_show(take(0, key("secret", process_), deadline), own.agree(other), {other, own.public_key()});
    }
    return std::move(*posting);
  }

  // Hides the secret for one process; not for one that was given it in another way.
  void hand_secret(int process, const KeyAgreement& own, const std::string& secret) {
    const auto digits = space_->get(process, key("key", process), deadline_);
    if (digits == no_key) return;
    if (!digits) fail(compose("holds no public key of process {}", process));
    const Digest other = read_key(*digits);
    const std::string hidden = hide_or_show(secret, own.agree(other), {own.public_key(), other});
    space_->put(key("secret", process), hexadecimal(text_bytes(hidden)), deadline_);
  }

  [[nodiscard]] Digest read_key(std::string_view digits) const {
    const auto bytes = from_hexadecimal(digits);
    Digest one{};
    if (!bytes || bytes->size() != one.size()) fail("holds a public key that is none");
    std::copy_n(text_bytes(*bytes).begin(), one.size(), one.begin());
    return one;
  }

  [[nodiscard]] std::string take(int process, const std::string& name, const Deadline& deadline) {
    const auto digits = space_->get(process, name, deadline);
    if (!digits) fail(compose(R"(holds no "{}", which process {} should have left there)", name, process));
    auto text = from_hexadecimal(*digits);
    if (!text) {
      const std::string beginning = digits->substr(0, 100);
      fail(compose(R"(holds "{}" under "{}", which process {} has not written)", beginning, name, process));
    }
    return std::move(*text);
  }

  // Waits for all processes. The launcher does not say which of them have come.
  void meet(const Deadline& deadline) {
    space_->come_to_fence(deadline);
    teller_.start();
    while (true) {
      const auto slice = std::min<std::chrono::nanoseconds>(deadline.remaining(), slice_time);
      if (space_->wait_at_fence(Deadline::after(slice))) return;
      if (deadline.expired()) {
        throw Error{
            compose("{}: not all {} processes came to {} within {}, and the launcher does not say which did: see "
                    "whether all of them run, what they print, and whether one of them says that it does not use it",
                    teller_.subject(), num_processes_, where_, deadline.budget_text())};
      }
      teller_.look(compose("all {} processes to come to {}", num_processes_, where_), deadline);
    }
  }

  void keep(const Posting& posting) {
    space_->leave();
    space_.reset();
    memory_->posting = posting;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error{compose("{}: {} {}", teller_.subject(), where_, what)};
  }

  static constexpr std::chrono::milliseconds slice_time{200};
  static constexpr std::string_view no_key = "none";

  int process_;
  int num_processes_;
  std::uint32_t generation_;
  std::string prefix_;
  std::unique_ptr<KeyValueSpace> space_;
  std::string where_;
  bool has_secret_;
  WaitTeller teller_;
  Deadline deadline_;
  LauncherMemory* memory_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
