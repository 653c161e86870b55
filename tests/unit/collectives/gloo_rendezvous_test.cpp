// SPDX-License-Identifier: MIT
// How often ranks that connect have to wait for a store that is far away.
#include "railyard/collectives/detail/rendezvous.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/workers/processes.hpp"

#include "support/catch.hpp"
#include "support/run_ranks.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;
using namespace std::chrono_literals;

namespace {

// Each value that is set costs a round trip; so does each key that is asked for without notice.
class FarStore final : public ry::Store {
 public:
  explicit FarStore(ry::Store& store) : store_(store) {}
  void set(std::string_view key, std::string_view value) override {
    ++num_round_trips_;
    store_.set(key, value);
  }
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const ry::Deadline& deadline) override {
    if (expected_.insert(std::string{key}).second) ++num_round_trips_;
    return store_.get(key, deadline);
  }
  void expect(const std::vector<std::string>& keys) override { expected_.insert(keys.begin(), keys.end()); }
  [[nodiscard]] int num_round_trips() const { return num_round_trips_; }
  [[nodiscard]] std::size_t num_keys() const { return expected_.size(); }  // that were asked for

 private:
  ry::Store& store_;
  std::set<std::string> expected_{};
  int num_round_trips_ = 0;
};

int round_trips_of(int size, ry::GlooTransport transport, int num_before) {
  std::vector<int> counts(static_cast<std::size_t>(size));
  railyard_test::run_ranks(size, [&](const ry::World& world, ry::Store& store) {
    const auto connect = [&](ry::Store& through) {
      return ry::Gloo::connect({.transport = transport}, world, through, ry::Deadline::after(60s));
    };
    for (int at = 0; at < num_before; ++at) (void)connect(store);
    FarStore far{store};
    const auto backend = connect(far);
    backend->barrier({});
    counts[static_cast<std::size_t>(world.rank)] = far.num_round_trips();
  });
  return *std::max_element(counts.begin(), counts.end());
}

}  // namespace

TEST_CASE("Rendezvous: takes as many round trips for many ranks as for two") {
  CHECK(round_trips_of(2, ry::GlooTransport::tcp, 0) == 4);
  CHECK(round_trips_of(7, ry::GlooTransport::tcp, 0) == 4);
  const int of_two = round_trips_of(2, ry::GlooTransport::automatic, 0);
  CHECK(of_two <= 5);  // these are threads of one process, whose own store is at hand
  CHECK(round_trips_of(7, ry::GlooTransport::automatic, 0) == of_two);
}

TEST_CASE("Rendezvous: processes that share memory take two round trips") {
  const auto exits = railyard_test::run_group_to_end<ry::Processes>(3, [](ry::WorkerLink& link) {
    FarStore far{link.store()};
    const auto backend = ry::Gloo::connect({}, link.world(), far, ry::Deadline::after(60s));
    backend->barrier({});
    railyard_test::require(backend->host_memory() != nullptr, "shared memory");
    railyard_test::require(far.num_round_trips() == 2,
                           [&] { return fmt::format("two, not {}", far.num_round_trips()); });
  });
  for (const auto& exit : exits) {
    INFO(exit.message);
    CHECK(exit.kind == ry::WorkerExit::Kind::returned);
  }
}

TEST_CASE("Rendezvous: finds its place after earlier groups, for a round trip each") {
  CHECK(round_trips_of(3, ry::GlooTransport::tcp, 2) == 6);
}

TEST_CASE("Rendezvous: many ranks ask for as many values as there are ranks, a few times over") {
  constexpr int size = 3 * ry::detail::most_who_ask_all / 2;
  std::vector<std::size_t> counts(size);
  railyard_test::run_ranks(size, [&](const ry::World& world, ry::Store& store) {
    FarStore far{store};
    const std::string prefix = ry::detail::enter_group(far, "many", world);
    ry::detail::expect_all(far, prefix, "word", world);
    far.set(ry::detail::stage_key(prefix, "word", world.rank), std::string(static_cast<std::size_t>(world.rank), 'x'));
    const auto words = ry::detail::await_all(far, prefix, "word", world, ry::Deadline::after(60s));
    railyard_test::require(words.size() == size, "a word of each rank");
    for (std::size_t rank = 0; rank < size; ++rank) {
      railyard_test::require(words[rank] == std::string(rank, 'x'), "the word of each rank");
    }
    counts[static_cast<std::size_t>(world.rank)] = far.num_keys();
  });
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  CHECK(sum <= 4 * size);
}

TEST_CASE("Rendezvous: whoever of many ranks does not come is named by all others") {
  constexpr int size = 3 * ry::detail::most_who_ask_all / 2;
  const int absent = GENERATE(0, 5);
  CAPTURE(absent);
  railyard_test::run_ranks(size, [&](const ry::World& world, ry::Store& store) {
    if (world.rank == absent) return;
    store.set(ry::detail::stage_key("", "word", world.rank), "");
    for (int rank = 0; rank < size; ++rank) {  // so that a slow machine names nobody else
      const bool comes = rank == absent || store.get(ry::detail::stage_key("", "word", rank), ry::Deadline::after(60s));
      railyard_test::require(comes, "all but one");
    }
    const auto soon = ry::Deadline::after(50ms);
    const auto words = ry::detail::await_all(store, "", "word", world, soon);
    try {
      ry::detail::throw_if_missing(words, world, soon);
    } catch (const ry::CollectiveError& error) {
      return railyard_test::require(error.blamed() == std::vector{absent}, error.what());
    }
    railyard_test::require(false, "a CollectiveError");
  });
}
