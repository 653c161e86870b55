// SPDX-License-Identifier: MIT
#include "railyard/train/any_callback.hpp"

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

struct Everything {
  std::vector<std::string>* heard;
  void on_start(const ry::RunInfo& info) { heard->push_back("start " + info.name); }
  ry::Next on_report(const ry::Report& report) {
    heard->push_back("report " + std::to_string(report.index));
    return report.index == 1 ? ry::Next::stop : ry::Next::go_on;
  }
  void on_end(const ry::RunEnd& end) { heard->push_back("end " + end.error); }
};

struct EndOnly {
  std::unique_ptr<int> move_only = std::make_unique<int>(1);
  int* ends;
  void on_end(const ry::RunEnd&) { *ends += *move_only; }
};

}  // namespace

TEST_CASE("AnyCallback: passes every hook on and hands back what on_report wants") {
  std::vector<std::string> heard;
  const ry::AnyCallback callback{Everything{&heard}};
  callback.on_start({.name = "a"});
  CHECK(callback.on_report({.index = 0}) == ry::Next::go_on);
  CHECK(callback.on_report({.index = 1}) == ry::Next::stop);
  callback.on_end({.error = "b"});
  CHECK(heard == std::vector<std::string>{"start a", "report 0", "report 1", "end b"});
}

TEST_CASE("AnyCallback: leaves out the hooks that a callback lacks") {
  int ends = 0;
  const ry::AnyCallback callback{EndOnly{.ends = &ends}};
  callback.on_start({});
  CHECK(callback.on_report({}) == ry::Next::go_on);
  callback.on_end({});
  CHECK(ends == 1);
}

TEST_CASE("AnyCallback: a list holds callbacks of different types, functions and move-only ones") {
  int reports = 0;
  int ends = 0;
  const std::vector<ry::AnyCallback> callbacks = {EndOnly{.ends = &ends}, [&](const ry::Report&) { ++reports; },
                                                  [&](const ry::Report&) { return ry::Next::stop; }};
  for (const auto& callback : callbacks) {
    static_cast<void>(callback.on_report({}));
    callback.on_end({});
  }
  CHECK(reports == 1);
  CHECK(ends == 1);
  CHECK(callbacks.back().on_report({}) == ry::Next::stop);
}

TEST_CASE("AnyCallback: copies share one callback") {
  int count = 0;
  const ry::AnyCallback first{[&count, own = 0](const ry::Report&) mutable { count = ++own; }};
  const ry::AnyCallback second = first;
  static_cast<void>(first.on_report({}));
  static_cast<void>(second.on_report({}));
  CHECK(count == 2);
}

static_assert(!std::is_constructible_v<ry::AnyCallback, int>);
static_assert(!std::is_constructible_v<ry::AnyCallback, void (*)(int)>);
