// SPDX-License-Identifier: MIT
#include "railyard/train/detail/report_book.hpp"

#include "support/catch.hpp"

#include <algorithm>

namespace ry = railyard;
using ry::detail::ReportBook;

TEST_CASE("ReportBook: a report is complete when all ranks have made it, in order") {
  ReportBook book{2};
  CHECK(book.add(0, {{"a", 0}}, 1) == 0);
  CHECK_FALSE(book.take(false));
  CHECK(book.add(1, {{"b", 0}}, 3) == 0);
  const auto report = book.take(false);
  REQUIRE(report);
  CHECK(report->index == 0);
  CHECK(report->seconds == 1);  // rank 0's time
  CHECK(report->metrics().at("a").number() == 0);
  CHECK(report->by_rank[1]->at("b").number() == 0);
  CHECK(book.add(0, {{"a", 1}}, 4) == 1);
  CHECK(book.add(0, {{"a", 2}}, 5) == 2);
  CHECK_FALSE(book.take(false));  // rank 1 has reported before: it is waited for
  CHECK(book.count(0) == 3);
}

TEST_CASE("ReportBook: the end gives out what is left, with nothing for ranks that are missing") {
  ReportBook book{2};
  book.add(1, {{"b", 0}}, 1);
  const auto report = book.take(true);
  REQUIRE(report);
  CHECK_FALSE(report->by_rank[0]);
  CHECK(report->by_rank[1]);
  CHECK(report->metrics().empty());
  CHECK_FALSE(book.take(true));
}

TEST_CASE("ReportBook: where only rank 0 reports, a report waits for seconds and not for the end") {
  ReportBook book{2};
  std::int64_t taken = 0;
  for (int i = 0; i < 1000; ++i) {
    book.add(0, {{"i", i}}, 2.0 * i);  // two seconds apart, so that three later ones are five seconds or more
    while (const auto report = book.take(false)) {
      CHECK(report->index == taken++);
      CHECK_FALSE(report->by_rank[1]);
    }
    CHECK(taken == std::max(0, i - 2));
  }
  CHECK(book.add(1, {}, 0) == 0);  // too late for the callbacks, but counted
  CHECK_FALSE(book.take(false));
}

TEST_CASE("ReportBook: a rank that has reported once holds back no more than the capacity") {
  ReportBook book{2};
  book.add(1, {}, 0);
  std::int64_t taken = 0;
  for (int i = 0; i < 1000; ++i) {
    book.add(0, {{"i", i}}, 0);
    while (book.take(false)) ++taken;
  }
  CHECK(taken == 1000 - ReportBook::capacity);
}

TEST_CASE("ReportBook: a rank far ahead of rank 0 makes no report without rank 0's metrics") {
  ReportBook book{2};
  for (int i = 0; i < 3000; ++i) {
    book.add(1, {{"i", i}}, 0);
    CHECK_FALSE(book.take(false));
  }
  for (int i = 0; i < 3000; ++i) {
    book.add(0, {{"a", i}}, 0);
    const auto report = book.take(false);
    REQUIRE(report);
    CHECK(report->metrics().at("a").number() == static_cast<double>(i));
    CHECK(report->by_rank[1].has_value() == (i < ReportBook::most_ahead));  // beyond, they were dropped
    CHECK_FALSE(book.take(false));
  }
}
