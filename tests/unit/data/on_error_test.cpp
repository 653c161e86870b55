// SPDX-License-Identifier: MIT
#include "railyard/data/on_error.hpp"

#include "railyard/data/csv_source.hpp"
#include "railyard/data/gzip.hpp"
#include "railyard/data/image_folder.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/npz_source.hpp"
#include "railyard/data/tar_source.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <thread>
#include <vector>

namespace ry = railyard;

TEST_CASE("OnError: lets as many samples be left out as it says") {
  CHECK(ry::OnError::stop().stops_at_once());
  CHECK(ry::OnError::stop().max_skips() == 0);
  CHECK_FALSE(ry::OnError::skip().stops_at_once());
  CHECK(ry::OnError::at_most(3).max_skips() == 3);
  CHECK(ry::OnError::at_most(0).stops_at_once());
}

TEST_CASE("OnError: sources are told apart by how large samples may be where larger ones are left out") {
  // make: a source of a policy and a limit.
  const auto check = [](const auto& make) {
    const auto of = [&make](ry::OnError policy, std::uint64_t limit) { return make(policy, limit).fingerprint(); };
    const auto skip = ry::OnError::skip();
    CHECK(of(skip, 1000) == of(skip, 1000));
    CHECK(of(skip, 1000) != of(skip, 2000));
    CHECK(of(skip, 1000) != of(ry::OnError::at_most(3), 1000));
    CHECK(of(skip, 1000) != of(ry::OnError::stop(), 1000));
    CHECK(of(ry::OnError::stop(), 1000) == of(ry::OnError::stop(), 2000));  // what was read is the same
  };
  check([](auto policy, auto limit) { return ry::CsvSource{"x", {.max_record_bytes = limit, .on_error = policy}}; });
  check([](auto policy, auto limit) {
    return ry::CsvStream{ry::gzip("x"), {.max_record_bytes = limit, .on_error = policy}};
  });
  check([](auto policy, auto limit) {
    return ry::JsonLinesSource{"x", {.max_record_bytes = limit, .on_error = policy}};
  });
  check([](auto policy, auto limit) {
    return ry::TextLinesSource{"x", {.max_record_bytes = limit, .on_error = policy}};
  });
  check([](auto policy, auto limit) { return ry::TarSource{"x", {.max_member_bytes = limit, .on_error = policy}}; });
  check([](auto policy, auto limit) {
    return ry::TarStream{ry::gzip("x"), {.max_member_bytes = limit, .on_error = policy}};
  });
  check([](auto policy, auto limit) { return ry::NpzSource{"x", {.on_error = policy, .max_unpacked_bytes = limit}}; });
  check([](auto policy, auto limit) { return ry::ImageFolder{"x", {.max_pixels = limit, .on_error = policy}}; });
}

TEST_CASE("SkipCount: keeps the largest count that any thread has seen, for all copies") {
  const ry::SkipCount count;
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 1; thread <= 4; ++thread) {
      threads.emplace_back([copy = count, thread] {
        for (std::uint64_t seen = 0; seen <= thread * 1000; ++seen) copy.raise_to(seen);
      });
    }
  }
  CHECK(count.count() == 4000);
}
