// SPDX-License-Identifier: MIT
#include "railyard/core/dataset_source.hpp"

#include "support/catch.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>

namespace ry = railyard;

namespace {

struct Stream {
  [[nodiscard]] ry::Schema schema() const { return {{.name = "n", .dtype = ry::Dtype::i64}}; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return std::nullopt; }
  [[nodiscard]] std::string describe() const { return "numbers"; }
  [[nodiscard]] std::unique_ptr<ry::BlockReader> open(std::uint64_t /*from*/) const { return nullptr; }
};
struct Indexed : Stream {
  [[nodiscard]] ry::Block read(std::span<const std::uint64_t> /*ids*/) const { return {}; }
};
struct Uncopied : Stream {
  std::unique_ptr<int> owned{};
};

}  // namespace

TEST_CASE("DatasetSource: is told from what can be asked for any sample, and from what is none") {
  STATIC_REQUIRE(ry::DatasetSource<Stream>);
  STATIC_REQUIRE(!ry::IndexedSource<Stream>);
  STATIC_REQUIRE(ry::IndexedSource<Indexed>);
  STATIC_REQUIRE(!ry::DatasetSource<Uncopied>);
  STATIC_REQUIRE(!ry::DatasetSource<int>);
}
