// SPDX-License-Identifier: MIT
// How often ranks that connect have to wait for a store that is far away.
#include "railyard/collectives/detail/rendezvous.hpp"

#include "railyard/collectives/gloo.hpp"

#include "support/catch.hpp"
#include "support/run_ranks.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

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
  CHECK(of_two <= 5);
  CHECK(round_trips_of(7, ry::GlooTransport::automatic, 0) == of_two);
}

TEST_CASE("Rendezvous: finds its place after earlier groups, for a round trip each") {
  CHECK(round_trips_of(3, ry::GlooTransport::tcp, 2) == 6);
}
