// SPDX-License-Identifier: MIT
#include "railyard/train/detail/wire.hpp"

#include "support/catch.hpp"

#include <limits>

namespace ry = railyard;
using ry::detail::decode_message;

TEST_CASE("Wire: a report arrives as it was sent") {
  ry::Metrics metrics{{"loss", 0.25}, {"val/accuracy", 1}, {"good", true}, {"name", "a \"b\"\n"}, {"", ""}};
  metrics.set("far", std::numeric_limits<std::int64_t>::min());
  metrics.set("zero", std::string(3, '\0'));
  const auto message = decode_message(ry::detail::encode_report(metrics));
  REQUIRE(std::holds_alternative<ry::detail::ReportMessage>(message));
  CHECK(std::get<ry::detail::ReportMessage>(message).metrics == metrics);
}

TEST_CASE("Wire: the start of a worker carries its host") {
  const auto message = decode_message(ry::detail::encode_started("node7"));
  REQUIRE(std::holds_alternative<ry::detail::StartedMessage>(message));
  CHECK(std::get<ry::detail::StartedMessage>(message).host == "node7");
}

TEST_CASE("Wire: the times of steps arrive as they were sent") {
  const auto message = decode_message(ry::detail::encode_step_times({.steps = 3, .wait = 0.5, .slowest_rank = 7}));
  REQUIRE(std::holds_alternative<ry::detail::StepTimesMessage>(message));
  const ry::StepTimes times = std::get<ry::detail::StepTimesMessage>(message).times;
  CHECK((times.steps == 3 && times.wait == 0.5 && times.slowest_rank == 7));
}

TEST_CASE("Wire: a warning arrives as it was sent") {
  const auto message = decode_message(ry::detail::encode_warning("rank 1 is alone"));
  REQUIRE(std::holds_alternative<ry::detail::WarningMessage>(message));
  CHECK(std::get<ry::detail::WarningMessage>(message).text == "rank 1 is alone");
}

TEST_CASE("Wire: what a rank says of its part of a checkpoint arrives, also that there is none, and why") {
  using Saved = ry::detail::SavedMessage;
  const auto sent = [](const Saved& save) { return std::get<Saved>(decode_message(ry::detail::encode_saved(save))); };
  const Saved whole = sent({.slot = 1, .step = 3, .files = {{.name = "a", .offset = 64, .size = 8}}});
  CHECK((whole.slot == 1 && whole.step == 3 && whole.failure.empty() && whole.files.at(0).offset == 64));
  const Saved lacking = sent({.slot = Saved::no_slot, .failure = "no memory"});
  CHECK((lacking.slot == Saved::no_slot && lacking.failure == "no memory"));
  CHECK(sent({.slot = Saved::no_slot, .is_memory = true}).is_memory);
  CHECK_THROWS_WITH(sent({.slot = Saved::no_slot}), Catch::ContainsSubstring("it names no snapshot"));
  CHECK_THROWS_WITH(sent({.slot = 99, .failure = "no memory"}), Catch::ContainsSubstring("it names no snapshot"));
}

TEST_CASE("Wire: every message cut short or altered is refused or read, never read past its end") {
  const auto whole = ry::detail::encode_report({{"loss", 0.25}, {"name", "abc"}, {"n", 3}, {"b", false}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_THROWS_AS(decode_message(part), ry::DataError);
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    auto altered = whole;
    altered[at] = std::byte{0xFF};
    try {
      static_cast<void>(decode_message(altered));  // a changed number or letter is still a message
    } catch (const ry::DataError&) {
    }
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  CHECK_THROWS_WITH(decode_message(longer), Catch::ContainsSubstring("bytes are left"));
  CHECK_THROWS_WITH(decode_message(std::vector{std::byte{9}}), Catch::ContainsSubstring("unknown kind"));
}
