// SPDX-License-Identifier: MIT
#include "railyard/data/encoders.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace ry = railyard;

namespace encoders_test {
using preprocessing::fitted;
using preprocessing::infinity;
using preprocessing::nan;
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block mixed() {
  return Rows{}
      .texts("city", {"oslo", "bern", "oslo", "\xC3\xA9vry", ""})
      .numbers<std::int64_t>("year", {2001, 1999, 2001, -5, 7})
      .numbers<double>("grade", {1.5, nan, -0.0, 0.0, infinity})
      .block();
}

// As sklearn.preprocessing.OneHotEncoder(sparse_output=False) has it, with None for the empty text.
TEST_CASE("OneHotEncoder: has a number for each category in order, the last for missing ones") {
  const auto encoder = fitted(ry::OneHotEncoder{{.columns = {"city", "grade"}}}, mixed());
  const ry::Block encoded = encoder.transform(mixed());
  CHECK(encoded.schema() == encoder.schema(mixed().schema()));
  CHECK(encoded.schema()[0] == ry::Field{.name = "city", .dtype = ry::Dtype::f32, .shape = {4}});
  CHECK(values_of(encoded, "city") == std::vector<double>{0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
  CHECK(values_of(encoded, "grade") == std::vector<double>{0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0});
  CHECK(encoder.categories("city") == std::vector<ry::Category>{"bern", "oslo", "\xC3\xA9vry", ry::MissingCell{}});
  CHECK(values_of(encoded, "year") == values_of(mixed(), "year"));
}

TEST_CASE("OneHotEncoder: answers unseen categories with an error that names the sample, or with zeros") {
  const ry::Block other = Rows{}.texts("city", {"bern", "rome"}).block(40);
  const auto strict = fitted(ry::OneHotEncoder{{.columns = {"city"}}}, mixed());
  CHECK_THROWS_WITH(strict.transform(other),
                    ContainsSubstring("has not seen \"rome\" in column \"city\", where sample 41"));
  const auto lenient = fitted(ry::OneHotEncoder{{.columns = {"city"}, .unseen = ry::Unseen::ignore}}, mixed());
  CHECK(values_of(lenient.transform(other), "city") == std::vector<double>{1, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("OrdinalEncoder: gives the place of the category in order") {
  const auto encoder = fitted(ry::OrdinalEncoder{{.columns = {"city", "year", "grade"}}}, mixed());
  const ry::Block encoded = encoder.transform(mixed());
  CHECK(encoded.schema() == encoder.schema(mixed().schema()));
  CHECK(encoded.schema()[0] == ry::Field{.name = "city", .dtype = ry::Dtype::i64});
  CHECK(values_of(encoded, "city") == std::vector<double>{1, 0, 1, 2, 3});
  CHECK(values_of(encoded, "year") == std::vector<double>{3, 2, 3, 0, 1});
  CHECK(values_of(encoded, "grade") == std::vector<double>{1, 3, 0, 0, 2});
}

TEST_CASE("OrdinalEncoder: answers unseen categories with an error or a number of the user's") {
  const ry::Block other = Rows{}.numbers<std::int64_t>("year", {2001, 4}).block();
  CHECK_THROWS_AS(fitted(ry::OrdinalEncoder{{.columns = {"year"}}}, mixed()).transform(other), ry::DataError);
  const auto lenient =
      fitted(ry::OrdinalEncoder{{.columns = {"year"}, .unseen = ry::Unseen::ignore, .unseen_value = 99}}, mixed());
  CHECK(values_of(lenient.transform(other), "year") == std::vector<double>{3, 99});
}

TEST_CASE("OrdinalEncoder: tells integers beyond 2^53 apart") {
  const std::int64_t large = std::int64_t{1} << 60U;
  const ry::Block block = Rows{}.numbers<std::int64_t>("id", {large + 1, large, large - 1}).block();
  CHECK(values_of(fitted(ry::OrdinalEncoder{{.columns = {"id"}}}, block).transform(block), "id") ==
        std::vector<double>{2, 1, 0});
}

TEST_CASE("OrdinalEncoder: knows integers again that are read as real numbers beside empty cells") {
  const auto encoder = fitted(ry::OrdinalEncoder{{.columns = {"year"}, .unseen = ry::Unseen::ignore}}, mixed());
  const ry::Block other = Rows{}.numbers<double>("year", {2001, nan, 7, 7.5}).block();
  CHECK(values_of(encoder.transform(other), "year") == std::vector<double>{3, -1, 1, -1});
}

TEST_CASE("OrdinalEncoder: says what it cannot learn from") {
  const ry::Block block = Rows{}.numbers<float>("pair", {1, 2}, {2}).numbers<std::int32_t>("n", {1}).block();
  CHECK_THROWS_WITH(fitted(ry::OrdinalEncoder{{.columns = {"pair"}}}, block), ContainsSubstring("has 2 x f32"));
  CHECK_THROWS_WITH(fitted(ry::OrdinalEncoder{{.columns = {"n"}}}, block.slice(0, 0)),
                    ContainsSubstring("saw no samples"));
  CHECK_THROWS_WITH(fitted(ry::OrdinalEncoder{{.columns = {"year"}, .category_limit = 3}}, mixed()),
                    ContainsSubstring("more than 3 categories"));
  CHECK_THROWS_AS(ry::OrdinalEncoder{{.columns = {"n"}}}.transform(block), ry::ConfigError);
  const auto encoder = fitted(ry::OrdinalEncoder{{.columns = {"n"}}}, block);
  CHECK_THROWS_WITH(encoder.transform(Rows{}.texts("n", {"1"}).block()), ContainsSubstring("column \"n\" has text"));
  CHECK_THROWS_AS(encoder.categories("pair"), ry::ConfigError);
}

TEST_CASE("LabelEncoder: makes classes of labels and labels of classes") {
  const auto encoder = fitted(ry::LabelEncoder{"city"}, mixed());
  CHECK(values_of(encoder.transform(mixed()), "city") == std::vector<double>{1, 0, 1, 2, 3});
  CHECK(encoder.classes().size() == 4);
  CHECK(std::get<std::string>(encoder.label_of(1)) == "oslo");
  CHECK_THROWS_AS(encoder.label_of(4), ry::DataError);
  CHECK_THROWS_WITH(encoder.transform(Rows{}.texts("city", {"rome"}).block(7)), ContainsSubstring("sample 7"));
}

TEST_CASE("LabelEncoder: names no option in its messages, for it has none") {
  const auto message_of = [](const auto& call) {
    try {
      call();
    } catch (const ry::Error& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  const auto encoder = preprocessing::reloaded(fitted(ry::LabelEncoder{"city"}, mixed()), ry::LabelEncoder{});
  CHECK(message_of([&] { (void)encoder.transform(Rows{}.texts("city", {"rome"}).block(7)); }) ==
        "LabelEncoder has not seen \"rome\" in column \"city\", where sample 7 has it: learn from all labels, or leave "
        "such samples out by filter()");
  CHECK(message_of([] { (void)fitted(ry::LabelEncoder{"town"}, mixed()); }) ==
        "LabelEncoder: its column: there is no column \"town\": there are \"city\", \"year\", \"grade\"");
  std::vector<std::int64_t> numbers(1'000'001);
  std::iota(numbers.begin(), numbers.end(), 0);
  const ry::Block many = Rows{}.numbers<std::int64_t>("city", numbers).block();
  CHECK(
      message_of([&] { (void)fitted(ry::LabelEncoder{"city"}, many); }) ==
      "LabelEncoder: column \"city\" has more than 1000000 categories, 1000000 among them: leave it out if its values "
      "are not categories");
}

TEMPLATE_TEST_CASE("Encoders: learn the same from any number of workers, and after a checkpoint", "", ry::OneHotEncoder,
                   ry::OrdinalEncoder) {
  const TestType encoder{{.columns = {"city", "year"}, .unseen = ry::Unseen::ignore}};
  const ry::Block expected = fitted(encoder, mixed()).transform(mixed());
  for (const std::size_t workers : {1U, 2U, 7U}) {  // with 7 some see nothing
    const auto learned = preprocessing::fitted_by_workers(encoder, mixed(), workers);
    const ry::Block encoded = preprocessing::reloaded(learned, TestType{}).transform(mixed());
    CHECK(values_of(encoded, "city") == values_of(expected, "city"));
    CHECK(values_of(encoded, "year") == values_of(expected, "year"));
  }
}

TEST_CASE("LabelEncoder: is the same after a checkpoint") {
  const auto encoder = preprocessing::reloaded(fitted(ry::LabelEncoder{"city"}, mixed()), ry::LabelEncoder{});
  CHECK(std::get<std::string>(encoder.label_of(0)) == "bern");
  CHECK(values_of(encoder.transform(mixed()), "city") == std::vector<double>{1, 0, 1, 2, 3});
}

TEST_CASE("Encoders: name the column that has too many categories, and the option that names none") {
  const ry::OneHotEncoder few{{.columns = {"year", "city"}, .category_limit = 4}};
  CHECK(fitted(few, mixed()).categories("year").size() == 4);
  CHECK_THROWS_WITH(fitted(ry::OneHotEncoder{{.columns = {"grade", "city"}, .category_limit = 3}}, mixed()),
                    ContainsSubstring("OneHotEncoder: column \"grade\" has more than 3 categories") ||
                        ContainsSubstring("OneHotEncoder: column \"city\" has more than 3 categories"));
  CHECK_THROWS_WITH(fitted(ry::OrdinalEncoder{{.columns = {"town"}}}, mixed()),
                    ContainsSubstring("OrdinalEncoder: .columns: there is no column \"town\""));
  CHECK_THROWS_WITH(fitted(ry::OrdinalEncoder{{.except = {"town"}}}, mixed()),
                    ContainsSubstring("OrdinalEncoder: .except: there is no column \"town\""));
}

}  // namespace encoders_test
