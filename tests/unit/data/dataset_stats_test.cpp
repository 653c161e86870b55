// SPDX-License-Identifier: MIT
#include "railyard/data/dataset_stats.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

ry::Dataset measured() {
  return ry::Dataset::from_columns({{"x", std::vector<float>{1, 2, std::nanf(""), 6}},
                                    {"p", {2}, std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}},
                                    {"t", std::vector<std::string>{"a", "", "line\nbreak", std::string(50, 'z')}},
                                    {"none", std::vector<double>(4, std::nan(""))}});
}

}  // namespace

TEST_CASE("stats: counts what is present and missing, and measures numbers") {
  const auto all = ry::stats(measured());
  CHECK(all.samples == 4);
  const auto& x = all.columns[0];
  CHECK((x.present == 3 && x.missing == 1));
  CHECK((x.minimum == 1 && x.maximum == 6 && x.mean == 3));
  CHECK(x.deviation == Approx(std::sqrt(14.0 / 3)));
  CHECK((all.columns[1].present == 8 && all.columns[1].mean == 4.5));
  CHECK((all.columns[2].present == 3 && all.columns[2].missing == 1));
  CHECK(std::isnan(all.columns[2].mean));
  CHECK((all.columns[3].present == 0 && all.columns[3].missing == 4));
  CHECK(std::isnan(all.columns[3].minimum));
  CHECK_THAT(all.text(), ContainsSubstring("2.16025"));
  CHECK(ry::stats(measured().take(0)).samples == 0);
}

TEST_CASE("stats: measures large numbers that hardly differ") {
  const auto all = ry::stats(ry::Dataset::from_columns({{"x", std::vector<double>{1e9 + 1, 1e9 + 2, 1e9 + 3}}}));
  CHECK(all.columns[0].deviation == Approx(std::sqrt(2.0 / 3)).epsilon(1e-9));
}

TEST_CASE("show: lays the first samples out as a table") {
  const auto text = ry::show(measured().drop({"none"}), 3);
  CHECK(text ==
        "  x    p           t\n"
        "  1  1 2           a\n"
        "  2  3 4            \n"
        "nan  5 6  line break\n");
  CHECK_THAT(ry::show(measured()), ContainsSubstring(std::string(40, 'z') + "..."));
}

TEST_CASE("stats: refuses a dataset that has no end, and measures the largest numbers") {
  CHECK_THROWS_WITH(ry::stats(measured().repeat()), ContainsSubstring("stats()") && ContainsSubstring("take()"));
  const auto all = ry::stats(ry::Dataset::from_columns({{"x", std::vector<double>{1.5e308, -1.5e308, 1.5e308}}}));
  CHECK(all.columns[0].mean == Approx(0.5e308));
}

TEST_CASE("stats: counts infinite numbers apart, and measures the others however far they lie apart") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto all = ry::stats(ry::Dataset::from_columns({{"x", std::vector<double>{1, infinity, 3, -infinity}},
                                                        {"far", std::vector<double>{1e308, -1e308, 1e308, -1e308}},
                                                        {"none", std::vector<double>(4, infinity)}}));
  const auto& x = all.columns[0];
  CHECK((x.present == 2 && x.missing == 0 && x.infinite == 2));
  CHECK((x.minimum == 1 && x.maximum == 3 && x.mean == 2 && x.deviation == 1));
  CHECK((std::abs(all.columns[1].mean) < 1e295 && all.columns[1].deviation == Approx(1e308)));
  CHECK((all.columns[2].present == 0 && all.columns[2].infinite == 4 && std::isnan(all.columns[2].mean)));
  CHECK_THAT(all.text(), ContainsSubstring("infinite"));
}
