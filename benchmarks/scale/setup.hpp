// SPDX-License-Identifier: MIT
// The simulation of ranks that connect: Gloo's own code and the leader's own store, on a network that is a model.
#pragma once

#include "machines.hpp"

#include <railyard/collectives/gloo.hpp>
#include <railyard/core/rank_connector.hpp>
#include <railyard/core/store.hpp>
#include <railyard/workers/detail/store_server.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace bench {

namespace ry = railyard;

/// Counts what a set-up has taken.
struct SetUp {
  double seconds = 0;            ///< until the last rank was connected
  std::uint64_t num_frames = 0;  ///< that the leader has heard and said
  std::uint64_t num_lines = 0;
};

/// The leader's store, with a thread that serves all who have asked meanwhile, as Listener does.
class StoreModel {
 public:
  using Replies = std::vector<ry::detail::StoreReply>;
  using Deliver = std::function<void(const Replies&)>;

  StoreModel(Network& network, const Costs& costs) : network_(&network), costs_(costs) {}

  /// The sessions count as the ranks do.
  void add_session(int host, Deliver deliver) { sessions_.push_back({host, std::move(deliver)}); }
  [[nodiscard]] std::uint64_t num_frames() const noexcept { return num_frames_; }

  /// Of the task that runs: sends it requests.
  void ask(std::size_t session, std::vector<ry::detail::Frame> frames) {
    std::size_t size_bytes = 0;
    for (const auto& frame : frames) size_bytes += frame_bytes + frame.payload.size();
    network_->send(sessions_[session].host, 0, size_bytes, [this, session, frames = std::move(frames)] {
      queue_.emplace_back(session, frames);
      if (!is_busy_) serve();
    });
  }

 private:
  struct Session {
    int host = 0;
    Deliver deliver{};
  };
  static constexpr std::size_t frame_bytes = ry::detail::frame_head_bytes + ry::detail::frame_code_bytes;
  static constexpr std::size_t most_at_once = 64;  // as many as Listener hears of at a time

  void serve() {
    is_busy_ = !queue_.empty();
    if (!is_busy_) return;
    std::map<std::uint64_t, Replies> replies;
    std::uint64_t count = 0;
    std::size_t num_heard = 0;
    for (; num_heard < most_at_once && !queue_.empty(); ++num_heard) {
      for (const auto& frame : queue_.front().second) {
        ++count;
        for (auto& reply : server_.handle(queue_.front().first, frame)) {
          ++count;
          replies[reply.session].push_back(std::move(reply));
        }
      }
      queue_.pop_front();
    }
    num_frames_ += count;
    // It is woken once; who has asked and who is answered takes a call of the system each.
    const double num_calls = static_cast<double>(num_heard + replies.size());
    const double seconds = costs_.wake * (1 + num_calls / 4) + static_cast<double>(count) * costs_.frame;
    const double end = network_->machine(0).work(network_->time().now(), seconds);
    network_->time().at(end, [this, replies = std::move(replies)] {
      for (const auto& [session, some] : replies) {
        std::size_t size_bytes = 0;
        for (const auto& reply : some) size_bytes += frame_bytes + reply.payload.size();
        const Session& to = sessions_[session];
        network_->send(0, to.host, size_bytes, [&to, some = some] { to.deliver(some); });
      }
      serve();
    });
  }

  Network* network_;
  Costs costs_;
  ry::detail::StoreServer server_{};
  std::vector<Session> sessions_{};
  std::deque<std::pair<std::size_t, std::vector<ry::detail::Frame>>> queue_{};
  bool is_busy_ = false;
  std::uint64_t num_frames_ = 0;
};

/// The keys and values of one simulation: ranks that have seen a value need no copy each.
class Values {
 public:
  [[nodiscard]] std::size_t number_of(std::string_view key) {
    const auto [found, is_new] = numbers_.try_emplace(std::string{key}, values_.size());
    if (is_new) values_.emplace_back();
    return found->second;
  }
  [[nodiscard]] std::string& operator[](std::size_t number) { return values_[number]; }

 private:
  std::unordered_map<std::string, std::size_t> numbers_{};
  std::deque<std::string> values_{};
};

/// A rank's end of the store: asks for each key once, as NetworkStore does.
class RankStore final : public ry::Store {
 public:
  RankStore(Network& network, const Costs& costs, StoreModel& model, Values& values, std::size_t rank, int host)
      : network_(&network), costs_(costs), model_(&model), values_(&values), rank_(rank), host_(host) {
    model_->add_session(host, [this](const StoreModel::Replies& replies) { take(replies); });
  }

  void begin() { task_ = &VirtualTime::current(); }
  /// What objects that end still leave is of no interest.
  void end() noexcept { is_over_ = true; }

  void set(std::string_view key, std::string_view value) override {
    if (is_over_ || is_of_threads(key)) return;
    const std::uint32_t number = next_++;
    ry::detail::WireWriter writer;
    writer.put(number);
    writer.put_text(key);
    writer.put_rest(ry::detail::text_bytes(value));
    say(ry::detail::StoreFrame::set, writer.bytes());
    flush();
    while (outcomes_.count(number) == 0) await_frames();
    if (outcomes_.at(number) == ry::detail::SetOutcome::taken) ry::detail::throw_key_taken(key);
    if (outcomes_.at(number) == ry::detail::SetOutcome::full)
      ry::detail::throw_store_full(key, value, ry::detail::StoreServer::max_keys);
  }
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const ry::Deadline& /*deadline*/) override {
    const std::size_t number = values_->number_of(key);
    ask(key, number);
    flush();
    while (!has(number)) await_frames();
    return (*values_)[number];
  }
  void expect(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) ask(key, values_->number_of(key));
    flush();
  }

 private:
  // In the place of processes stand threads here, which claim their seats besides.
  static bool is_of_threads(std::string_view key) { return key.find("/seat/") != std::string_view::npos; }

  [[nodiscard]] bool has(std::size_t number) const { return number < has_.size() && has_[number]; }
  static void mark(std::vector<bool>& marks, std::size_t number) {
    if (marks.size() <= number) marks.resize(std::max(number + 1, 2 * marks.size()));
    marks[number] = true;
  }

  void ask(std::string_view key, std::size_t number) {
    if (number < asked_.size() && asked_[number]) return;
    mark(asked_, number);
    const auto bytes = ry::detail::text_bytes(key);
    say(ry::detail::StoreFrame::get, {bytes.begin(), bytes.end()});
  }
  void say(ry::detail::StoreFrame type, std::vector<std::byte> payload) {
    unsent_.push_back({static_cast<std::uint8_t>(type), std::move(payload)});
  }
  void flush() {
    if (unsent_.empty()) return;
    network_->work(host_, static_cast<double>(unsent_.size()) * costs_.frame);
    model_->ask(rank_, std::exchange(unsent_, {}));
  }

  void await_frames() {
    if (num_unread_ == 0) network_->time().wait();
    network_->work(host_, costs_.wake + static_cast<double>(std::exchange(num_unread_, 0)) * costs_.frame);
  }

  void take(const StoreModel::Replies& replies) {
    num_unread_ += replies.size();
    for (const auto& reply : replies) {
      ry::detail::WireReader reader{reply.payload};
      if (reply.type == ry::detail::StoreFrame::answer) {
        const auto number = reader.take<std::uint32_t>();
        outcomes_[number] = reader.take<ry::detail::SetOutcome>();
      } else if (reply.type == ry::detail::StoreFrame::value) {
        const std::size_t number = values_->number_of(reader.take_text());
        mark(has_, number);
        std::string& value = (*values_)[number];
        const auto bytes = reader.take_rest();
        if (value.empty()) value.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
    }
    network_->time().wake(*task_);
  }

  Network* network_;
  Costs costs_;
  StoreModel* model_;
  Values* values_;
  std::size_t rank_;
  int host_;
  VirtualTime::Task* task_ = nullptr;
  bool is_over_ = false;
  std::uint32_t next_ = 0;
  std::map<std::uint32_t, ry::detail::SetOutcome> outcomes_{};
  std::vector<bool> has_{};  // by the number of the key
  std::vector<bool> asked_{};
  std::vector<ry::detail::Frame> unsent_{};
  std::size_t num_unread_ = 0;
};

/// The ranks that meet to be connected, as RankMeeting has them: each leaves its place in the store, calls all before
/// it at once, and is called by all after it. A call is TCP's own round trip, the opening, the listener's proof, the
/// caller's, and the welcome.
class Meetings {
 public:
  Meetings(Network& network, const Costs& costs) : network_(&network), costs_(costs) {}

  [[nodiscard]] std::uint64_t num_lines() const noexcept { return num_lines_; }

  /// Of the task that runs. line: which of the host's ranks.
  void meet(const ry::World& world, int line, ry::Store& store, const std::string& group) {
    const auto key = [&](int rank) { return fmt::format("{}{}", group, rank); };
    std::vector<std::string> keys;
    for (int rank = 0; rank < world.rank; ++rank) keys.push_back(key(rank));
    store.expect(keys);
    store.set(key(world.rank), place);
    for (const std::string& one : keys) static_cast<void>(store.get(one, ry::Deadline::never()));
    Place& own = places_[{line, world.rank}];
    own.task = &VirtualTime::current();
    own.num_missing = world.size - 1;
    for (int rank = 0; rank < world.rank; ++rank) say(world.rank, rank, line, Said::synchronize);
    while (own.num_missing > 0) {
      if (own.heard.empty()) network_->time().wait();
      const auto heard = std::exchange(own.heard, {});
      network_->work(world.rank, costs_.wake + static_cast<double>(heard.size()) * costs_.line / 2);
      for (const auto& [from, what] : heard) answer(from, world.rank, line, what, own);
    }
    own.task = nullptr;
  }

 private:
  enum class Said { synchronize, accepted, opening, listener_proof, caller_proof, welcome };
  struct Place {
    VirtualTime::Task* task = nullptr;
    int num_missing = 0;
    std::vector<std::pair<int, Said>> heard{};
  };
  static constexpr std::string_view place = "12345 10.0.100.100 0123456789abcdef0123456789abcdef";
  static constexpr std::size_t said_bytes = 66 + 48;  // headers, and an opening or a proof

  void say(int from, int to, int line, Said what) {
    network_->send(from, to, said_bytes, [this, from, to, line, what] {
      // The kernel answers for whoever listens.
      if (what == Said::synchronize) return say(to, from, line, Said::accepted);
      Place& there = places_[{line, to}];
      there.heard.emplace_back(from, what);
      if (there.task != nullptr) network_->time().wake(*there.task);
    });
  }
  void answer(int from, int self, int line, Said what, Place& own) {
    switch (what) {
      case Said::accepted:
        return say(self, from, line, Said::opening);
      case Said::opening:
        return say(self, from, line, Said::listener_proof);
      case Said::listener_proof:
        return say(self, from, line, Said::caller_proof);
      case Said::caller_proof:
        ++num_lines_;
        --own.num_missing;
        return say(self, from, line, Said::welcome);
      default:
        --own.num_missing;
    }
  }

  Network* network_;
  Costs costs_;
  std::map<std::pair<int, int>, Place> places_{};  // by line and host
  std::uint64_t num_lines_ = 0;
};

/// Connects the rank of one host with those of the same number on the others.
class LineConnector final : public ry::RankConnector {
 public:
  LineConnector(Meetings& meetings, int line) : meetings_(&meetings), line_(line) {}
  [[nodiscard]] std::vector<std::unique_ptr<ry::RankLine>> connect(const ry::World& world, ry::Store& store,
                                                                   const std::string& group,
                                                                   const std::string& /*host*/,
                                                                   const ry::Deadline& /*deadline*/) override {
    meetings_->meet(world, line_, store, group);
    return std::vector<std::unique_ptr<ry::RankLine>>(static_cast<std::size_t>(world.size));
  }

 private:
  Meetings* meetings_;
  int line_;
};

/// Lets all ranks of that shape call Gloo::connect() at once.
[[nodiscard]] inline SetUp simulate_set_up(const Shape& shape, const Costs& costs) {
  VirtualTime time;
  Network network{time, shape};
  StoreModel model{network, costs};
  Meetings meetings{network, costs};
  Values values;
  std::deque<RankStore> stores;
  SetUp result;
  for (int rank = 0; rank < shape.num_ranks(); ++rank) {
    const int host = rank / shape.ranks_per_host;
    RankStore& store = stores.emplace_back(network, costs, model, values, static_cast<std::size_t>(rank), host);
    time.spawn([&, rank, host] {
      ry::World world{.rank = rank, .size = shape.num_ranks()};
      world.local_rank = rank % shape.ranks_per_host;
      world.local_size = shape.ranks_per_host;
      world.node = host;
      world.num_nodes = shape.num_hosts;
      world.host = fmt::format("host{}", host);
      world.address = "127.0.0.1";
      world.connector = std::make_shared<LineConnector>(meetings, world.local_rank);
      store.begin();
      network.work(host, costs.rank);
      const auto gloo = ry::Gloo::connect({}, world, store, ry::Deadline::never());
      result.seconds = std::max(result.seconds, time.now());
      store.end();
    });
  }
  time.run();
  result.num_frames = model.num_frames();
  result.num_lines = meetings.num_lines();
  return result;
}

}  // namespace bench
