// SPDX-License-Identifier: MIT
// A source as the begin of a dataset, and streams over whatever is indexed. Data room.
#pragma once

#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/ordered_stage.hpp"
#include "railyard/data/function_source.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline std::vector<std::uint64_t> places_between(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> places(static_cast<std::size_t>(end - begin));
  std::iota(places.begin(), places.end(), begin);
  return places;
}

// Reads an indexed node from a place to its end, on all threads. Its place is one number.
[[nodiscard]] inline std::unique_ptr<ChunkStream> open_indexed(const NodePtr& node, const Scope& scope,
                                                               PlaceCursor& from) {
  struct Progress {
    std::uint64_t at = 0;
    std::uint64_t end = 0;
    std::size_t rows = 1;
    std::atomic<std::size_t> bytes_per_row = 0;  // 0 until the first block has been read
  };
  const auto progress = std::make_shared<Progress>();
  progress->at = from.next();
  progress->end = *node->count();
  return std::make_unique<OrderedStage>(scope, [node, scope, progress]() -> std::optional<Work> {
    if (progress->at >= progress->end) return std::nullopt;
    if (const std::size_t size = progress->bytes_per_row.load(std::memory_order_relaxed); size > 0) {
      progress->rows =
          std::clamp<std::size_t>(scope.block_bytes() / size, 1, std::min<std::size_t>(4096, 4 * progress->rows));
    }
    const std::uint64_t begin = progress->at;
    progress->at = std::min<std::uint64_t>(progress->end, begin + progress->rows);
    return Work{[node, progress, key = scope.key, begin, end = progress->at] {
                  Block block = node->read(places_between(begin, end), key);
                  const std::size_t size = std::max<std::size_t>(bytes_of(block) / (end - begin), 1);
                  progress->bytes_per_row.store(size, std::memory_order_relaxed);
                  return block;
                },
                {begin}};
  });
}

// Calls a source. Where it throws an Error, that says itself what is wrong; of all else it is said which samples it was
// asked for.
template <class Call, class Describe, class Text>
std::invoke_result_t<Call> call_source(Call&& call, Describe&& describe, Text&& samples) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    const auto again = [&]() -> std::invoke_result_t<Call> { std::rethrow_exception(failure); };
    return call_user(again, describe(), samples);
  }
}

// Reads a source as it gives its samples. Its place is one number, of a FileStreamSource three more, and the state of
// the reader where it has one.
class SourceStream final : public ChunkStream {
 public:
  enum class Kind : std::uint8_t { plain, resumable, of_files };

  SourceStream(std::unique_ptr<BlockReader> reader, NodePtr node, const Scope& scope, std::uint64_t from, Kind kind)
      : reader_(std::move(reader)),
        node_(std::move(node)),
        scope_(scope),
        gauge_(scope.block_bytes()),
        at_(from),
        kind_(kind) {}

  [[nodiscard]] Chunk next() override {
    Place place = place_now();
    Block block = call_source([&] { return reader_->next(gauge_.rows()); }, [&] { return node_->describe(); },
                              [&] { return text_of_samples(at_, at_ + gauge_.rows() - 1, gauge_.rows()); });
    const std::size_t bytes = bytes_of(block);
    gauge_.saw(block.rows(), bytes);
    at_ += block.rows();
    return {std::move(block), std::move(place), MemoryShare{*scope_.budget, bytes}};
  }

 private:
  [[nodiscard]] Place place_now() const {
    Place place{at_};
    if (kind_ == Kind::plain) return place;
    ReaderPlace here = reader_->place();
    if (kind_ == Kind::of_files) place.insert(place.end(), {here.file, here.samples, here.damaged});
    if (here.state.has_value()) place.emplace_back(std::move(here.state));
    return place;
  }

  std::unique_ptr<BlockReader> reader_;
  NodePtr node_;
  Scope scope_;
  RowGauge gauge_;
  std::uint64_t at_;
  Kind kind_;
};

template <DatasetSource S>
class SourceNode final : public DataNode {
 public:
  explicit SourceNode(S source)
      : DataNode(std::make_shared<const Schema>(source.schema())), source_(std::move(source)) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return source_.count(); }
  [[nodiscard]] std::string describe() const override { return source_.describe(); }
  // Files end; of what else tells no count, nobody knows.
  [[nodiscard]] Ending ending() const override {
    if constexpr (requires {
                    { source_.is_endless() } -> std::convertible_to<bool>;
                  }) {
      if (source_.is_endless()) return Ending::never;
    }
    constexpr bool has_files = requires {
      { source_.files() } -> std::convertible_to<std::vector<std::string>>;
    };
    return (has_files || source_.count().has_value()) ? Ending::certain : Ending::unknown;
  }
  [[nodiscard]] bool is_indexed() const override { return IndexedSource<S>; }
  [[nodiscard]] bool costs_a_copy() const override {
    return requires { requires bool{S::costs_a_copy}; };
  }
  void count_skipped(SkipCounts& counts) const override {
    if constexpr (requires {
                    { source_.skipped() } -> std::convertible_to<std::uint64_t>;
                  }) {
      if (const std::uint64_t skipped = source_.skipped(); skipped > 0) counts[this].count = skipped;
    }
    if constexpr (requires {
                    { source_.skipped_parts() } -> std::convertible_to<std::vector<std::string>>;
                  }) {
      if (auto parts = source_.skipped_parts(); !parts.empty()) counts[this].parts = std::move(parts);
    }
  }
  void visit_shelves(const ShelfVisit& visit) const override {
    if constexpr (requires {
                    { source_.shelf() } -> std::same_as<SampleShelf*>;
                  }) {
      if (SampleShelf* const shelf = source_.shelf()) visit(*this, *shelf);
    }
  }
  void take_stock(DataStock& stock) const override {
    stock.add_source(describe());
    if (!stock.takes_sources()) return;
    if constexpr (requires {
                    { source_.files() } -> std::convertible_to<std::vector<std::string>>;
                  }) {
      stock.add_files(source_.files());
    }
    if constexpr (requires {
                    { source_.fingerprint() } -> std::convertible_to<std::uint64_t>;
                  }) {
      stock.add_settings(source_.fingerprint());
    }
    if constexpr (requires {
                    { source_.block() } -> std::convertible_to<const Block&>;
                  }) {
      const Block& block = source_.block();
      for (std::size_t column = 0; column < block.columns().size(); ++column) {
        const Field& field = block.schema()[column];
        const std::string_view type = field.is_text ? std::string_view{"text"} : name_of(field.dtype);
        stock.add_memory(compose("{} of {} x ({}) {}", field.name, block.rows(), joined(field.shape, ", "), type),
                         block[column]);
      }
    }
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, [[maybe_unused]] const EpochKey& key) const override {
    if constexpr (IndexedSource<S>) {
      Block block = call_source([&] { return Block{source_.read(places)}; }, [this] { return describe(); },
                                [places] { return text_of_samples(places); });
      if (block.rows() == places.size()) return block;
      throw DataError{compose("{} was asked for {} samples and gave {}", describe(), places.size(), block.rows())};
    } else {
      return DataNode::read(places, key);
    }
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    if (is_indexed() && scope.pool->num_helpers() > 0) return open_indexed(shared_from_this(), scope, from);
    const std::uint64_t begin = from.next();
    const auto open_source = [&]() -> std::unique_ptr<BlockReader> {
      if constexpr (ResumableSource<S>) {
        ReaderPlace place;
        if constexpr (FileStreamSource<S>) place = {from.next(), from.next(), from.next()};
        place.state = from.next_state();
        return source_.open(begin, place);
      } else {
        return source_.open(begin);
      }
    };
    auto reader = call_source(
        open_source, [this] { return describe(); }, [begin] { return text_of_samples(begin, begin, 1); });
    constexpr auto kind = FileStreamSource<S>  ? SourceStream::Kind::of_files
                          : ResumableSource<S> ? SourceStream::Kind::resumable
                                               : SourceStream::Kind::plain;
    return std::make_unique<SourceStream>(std::move(reader), shared_from_this(), scope, begin, kind);
  }

 private:
  S source_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
