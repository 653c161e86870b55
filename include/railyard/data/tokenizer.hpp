// SPDX-License-Identifier: MIT
// The preprocessor that makes token numbers of texts by a function of the user's. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Makes of each column of text a column of the same name with the numbers of its tokens, as many as there are. Learns
/// nothing, and the function is not part of a checkpoint.
/// Shapes: (tokens), i64.
class Tokenizer {
 public:
  /// Returns the numbers of a text's tokens. Called on several threads at once.
  using Function = std::function<std::vector<std::int64_t>(std::string_view)>;

  struct Options {
    std::vector<std::string> columns{};
    Function tokens{};
  };

  /// Throws: ConfigError if there is no function.
  explicit Tokenizer(Options options) : options_(std::move(options)) {
    if (!options_.tokens) throw ConfigError{"a Tokenizer was given no function: set .tokens"};
  }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(options_.columns); }
  /// Another when the function is of another type, as each lambda is.
  [[nodiscard]] std::uint64_t kind() const { return detail::fingerprint_of(options_.tokens.target_type()); }
  [[nodiscard]] Schema schema(const Schema& before) const { return detail::with_fields(before, fields_after(before)); }

  [[nodiscard]] Block transform(const Block& block) const {
    const std::vector<Field> fields = fields_after(block.schema());
    std::vector<Column> columns;
    for (const Field& field : fields) columns.push_back(tokenized(block.column(field.name)));
    return detail::with_columns(block, fields, std::move(columns));
  }

 private:
  [[nodiscard]] std::vector<Field> fields_after(const Schema& before) const {
    std::vector<Field> fields;
    for (const std::string& name : detail::columns_meant("Tokenizer", before, options_.columns, {}, "text",
                                                         [](const Field& field) { return field.is_text; })) {
      fields.push_back({.name = name, .dtype = Dtype::i64, .shape = {-1}});
    }
    return fields;
  }

  [[nodiscard]] Column tokenized(const Column& texts) const {
    const auto all = std::make_shared<std::vector<std::int64_t>>();
    auto ends = std::make_shared<std::vector<std::uint64_t>>();
    for (std::size_t row = 0; row < texts.rows(); ++row) {
      const std::vector<std::int64_t> tokens = options_.tokens(texts.text(row));
      all->insert(all->end(), tokens.begin(), tokens.end());
      ends->push_back(all->size() * sizeof(std::int64_t));
    }
    return {std::shared_ptr<const std::byte>{all, reinterpret_cast<const std::byte*>(all->data())}, std::move(ends)};
  }

  Options options_;
};
static_assert(Preprocessor<Tokenizer>);

}  // namespace railyard::inline v0_1
