// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/message_ring.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/sanitizers.hpp"

#include <memory>
#include <random>

using namespace workers_test;
using ry::detail::MessageRing;
using ry::detail::RecordKind;

namespace {

struct OwnRing {
  ry::detail::RingState state{};
  std::unique_ptr<std::byte[]> bytes = std::make_unique<std::byte[]>(ry::detail::ring_bytes);
  MessageRing view() { return {state, bytes.get()}; }
};

}  // namespace

TEST_CASE("MessageRing: returns what was written, in order, for every size and position") {
  OwnRing own;
  MessageRing ring = own.view();
  std::mt19937 random{7};
  std::vector<std::string> expected;
  std::size_t taken = 0;
  int wrong = 0;
  int full = 0;
  for (int at = 0; at < railyard_test::fewer(4000); ++at) {
    const std::size_t size = random() % 8 == 0 ? random() % (std::size_t{1} << 20U) : random() % 300;
    std::string text(size, static_cast<char>('a' + at % 26));
    if (ring.try_write(RecordKind::message, bytes_of(text))) {
      expected.push_back(std::move(text));
    } else {
      ++full;
    }
    const std::size_t to_take = random() % 3;
    for (std::size_t once = 0; once < to_take; ++once) {
      const auto record = ring.read();
      if (record) wrong += text_of(record->bytes) != std::exchange(expected.at(taken++), {});
      if (!record) CHECK(taken == expected.size());
    }
  }
  CHECK(wrong == 0);
  CHECK(full > railyard_test::fewer(10));
  CHECK(taken > railyard_test::fewer(1000U));
}

TEST_CASE("MessageRing: takes a message of the largest size at every position of an empty ring") {
  OwnRing own;
  MessageRing ring = own.view();
  const std::string largest(ry::detail::max_message_bytes, 'x');
  const std::string step(30'000, 'y');
  for (int at = 0; at < railyard_test::fewer(200); ++at) {
    REQUIRE(ring.try_write(RecordKind::message, bytes_of(step)));
    REQUIRE(ring.try_write(RecordKind::message, bytes_of(step)));
    REQUIRE(ring.read());  // one stays, so that the positions move on
    const bool fits = ring.try_write(RecordKind::exit, bytes_of(largest));
    REQUIRE(fits);
    REQUIRE(ring.read());
    const auto record = ring.read();
    REQUIRE(record);
    CHECK(record->kind == RecordKind::exit);
    CHECK(record->bytes.size() == largest.size());
    REQUIRE(ring.try_write(RecordKind::message, bytes_of(largest)));
    REQUIRE(ring.read());
  }
}

TEST_CASE("MessageRing: survives a worker that overwrites it") {
  OwnRing own;
  MessageRing ring = own.view();
  std::mt19937 random{11};
  for (int at = 0; at < 200; ++at) {
    for (int once = 0; once < 50; ++once) REQUIRE(ring.try_write(RecordKind::message, bytes_of("a message")));
    for (std::size_t byte = 0; byte < 4096; ++byte) own.bytes[byte] = static_cast<std::byte>(random());
    int taken = 0;
    while (ring.read()) ++taken;
    CHECK(taken <= 1000);
    CHECK_FALSE(ring.has_records());
  }
}

TEST_CASE("MessageRing: touches few pages while the reader keeps up") {
  OwnRing own;
  MessageRing ring = own.view();
  const std::string text(500, 'x');
  for (int at = 0; at < 100'000; ++at) {
    REQUIRE(ring.try_write(RecordKind::message, bytes_of(text)));
    REQUIRE(ring.read());
  }
  CHECK(std::all_of(own.bytes.get() + (64U << 10U), own.bytes.get() + ry::detail::ring_bytes,
                    [](std::byte byte) { return byte == std::byte{0}; }));
}
