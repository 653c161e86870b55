// SPDX-License-Identifier: MIT
#include "railyard/data/tokenizer.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace ry = railyard;

namespace tokenizer_test {
using preprocessing::Rows;

inline std::vector<std::int64_t> characters(std::string_view text) { return {text.begin(), text.end()}; }

TEST_CASE("Tokenizer: gives as many numbers as the text has tokens, none included") {
  const ry::Block block = Rows{}.texts("text", {"abc", "", "z"}).numbers<std::int64_t>("label", {1, 2, 3}).block();
  const ry::Tokenizer tokenizer{{.columns = {"text"}, .tokens = characters}};
  const ry::Block tokens = tokenizer.transform(block);
  CHECK(tokens.schema() == tokenizer.schema(block.schema()));
  CHECK(tokens.schema()[0] == ry::Field{.name = "text", .dtype = ry::Dtype::i64, .shape = {-1}});
  const auto at = [&](std::size_t row) {
    const auto values = tokens.column("text").values<std::int64_t>(row);
    return std::vector<std::int64_t>{values.begin(), values.end()};
  };
  CHECK(at(0) == std::vector<std::int64_t>{97, 98, 99});
  CHECK(at(1).empty());
  CHECK(at(2) == std::vector<std::int64_t>{122});
  CHECK(tokens.column("label").values<std::int64_t>()[2] == 3);
}

TEST_CASE("Tokenizer: refuses columns without text, and to be without a function") {
  const ry::Block block = Rows{}.numbers<float>("a", {1}).block();
  CHECK_THROWS_WITH((ry::Tokenizer{{.columns = {"a"}, .tokens = characters}}.transform(block)),
                    ContainsSubstring("Tokenizer needs text, and column \"a\" has f32"));
  CHECK_THROWS_AS((ry::Tokenizer{{.columns = {"a"}}}), ry::ConfigError);
}
}  // namespace tokenizer_test
