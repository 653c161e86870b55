// SPDX-License-Identifier: MIT
// Mixes datasets by weights. Data room.
#pragma once

#include "railyard/data/detail/joining_nodes.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Draws for each sample which dataset it comes from. A dataset that has ended is drawn no more; the others go on.
template <class = void>
class MixNode final : public JoiningNode {
 public:
  MixNode(const std::vector<NodePtr>& parts, const std::vector<double>& weights, std::uint64_t seed)
      : JoiningNode(parts.front()->schema(), "mix", parts), seed_(seed) {
    double sum = 0;
    const double largest = *std::max_element(weights.begin(), weights.end());  // so that their sum is a number
    for (const double weight : weights) up_to_.push_back(sum += weight / largest);
    for (double& share : up_to_) share /= sum;
  }

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return sum_of_counts(); }
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return std::make_unique<Stream>(*this, scope, from);
  }

 protected:
  void add_settings(Fingerprint& settings) const override {
    for (const double share : up_to_) settings.add(share);
    settings.add(seed_);
  }

 private:
  // Its place: how many samples have been given, and where each part stands.
  class Stream final : public ChunkStream {
   public:
    Stream(const MixNode& node, const Scope& scope, PlaceCursor& from)
        : node_(std::static_pointer_cast<const MixNode>(node.shared_from_this())),
          scope_(scope),
          seed_(scope.key.order_seed(node.seed_)),
          given_(from.next()) {
      const Scope each = scope.divided(node.parts().size());
      for (const NodePtr& part : node.parts()) readers_.push_back(std::make_unique<RowReader>(part, each, from));
    }

    [[nodiscard]] Chunk next() override {
      Chunk chunk;
      chunk.place.push_back(given_);
      for (const auto& reader : readers_) reader->append_place(chunk.place);
      std::vector<std::size_t> available;
      for (const auto& reader : readers_) available.push_back(reader->available());
      const std::vector<RowOfPart> rows = draw_rows(available);
      std::vector<std::size_t> taken(readers_.size());
      for (const RowOfPart& row : rows) ++taken[row.part];
      std::vector<Block> blocks;
      for (std::size_t part = 0; part < readers_.size(); ++part) {
        blocks.push_back(taken[part] == 0 ? no_samples(node_->schema())
                                          : with_ids_from(readers_[part]->some(taken[part]), node_->first_id(part)));
      }
      chunk.block = gather(blocks, rows);
      chunk.share = MemoryShare{*scope_.budget, bytes_of(chunk.block)};
      return chunk;
    }

   private:
    static constexpr std::size_t most_rows = 4096;

    // Draws where samples come from until one is drawn that has to be read first.
    std::vector<RowOfPart> draw_rows(const std::vector<std::size_t>& available) {
      std::vector<RowOfPart> rows;
      std::vector<std::size_t> taken(available.size());
      if (std::all_of(available.begin(), available.end(), [](std::size_t left) { return left == 0; })) return rows;
      while (rows.size() < most_rows) {
        const std::size_t part = draw(available);
        if (taken[part] == available[part]) break;
        rows.push_back({part, taken[part]++});
        ++given_;
      }
      return rows;
    }

    // Draws again where a part has ended, rather than among those that are left: so the draw depends on what ended
    // before this sample, not on when that was noticed. But where little is left, not for ever.
    [[nodiscard]] std::size_t draw(const std::vector<std::size_t>& available) const {
      SampleRandom random{derive_seed(seed_, given_)};
      for (int attempt = 0; attempt < 1000; ++attempt) {
        const auto& up_to = node_->up_to_;
        const auto found = std::upper_bound(up_to.begin(), up_to.end() - 1, random.uniform());
        const auto part = static_cast<std::size_t>(found - up_to.begin());
        if (available[part] > 0) return part;
      }
      const auto left = std::find_if(available.begin(), available.end(), [](std::size_t rows) { return rows > 0; });
      return static_cast<std::size_t>(left - available.begin());
    }

    std::shared_ptr<const MixNode> node_;
    Scope scope_;
    std::uint64_t seed_;
    std::uint64_t given_;
    std::vector<std::unique_ptr<RowReader>> readers_{};
  };

  std::uint64_t seed_;
  std::vector<double> up_to_{};  // sums of the weights, of which the last is 1
};

}  // namespace detail
}  // namespace railyard::inline v0_1
