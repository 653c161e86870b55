// SPDX-License-Identifier: MIT
// A user's functions as sources of a dataset. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"
#include "railyard/data/detail/generators.hpp"
#include "railyard/data/detail/user_calls.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {

/// Gives samples that a function makes, each by its number: a user's own random access.
class SampleFunctionSource {
 public:
  using Function = std::function<void(std::uint64_t id, SampleWriter& out)>;

  /// function is called on several threads at once.
  SampleFunctionSource(Schema schema, std::uint64_t count, Function function, std::string name = "function")
      : schema_(std::make_shared<const Schema>(std::move(schema))),
        count_(count),
        function_(std::make_shared<const Function>(std::move(function))),
        name_(std::move(name)) {}

  [[nodiscard]] Schema schema() const { return *schema_; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return count_; }
  [[nodiscard]] std::string describe() const { return name_; }
  /// Another when the number of samples is; whether the function is another nobody sees.
  [[nodiscard]] std::uint64_t fingerprint() const { return count_; }
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    BlockBuilder builder{schema_, ids.size()};
    for (const std::uint64_t id : ids) make(builder, id);
    return builder.build();
  }

 private:
  void make(BlockBuilder& builder, std::uint64_t id) const {
    detail::call_user(
        [&] {
          (*function_)(id, builder.add(id));
          builder.check_complete();
        },
        name_, id);
  }

  class Reader;

  std::shared_ptr<const Schema> schema_;
  std::uint64_t count_;
  std::shared_ptr<const Function> function_;
  std::string name_;
};
static_assert(IndexedSource<SampleFunctionSource>);

class SampleFunctionSource::Reader final : public BlockReader {
 public:
  Reader(const SampleFunctionSource& source, std::uint64_t at) : source_(source), at_(at) {}
  [[nodiscard]] Block next(std::size_t most_rows) override {
    BlockBuilder builder{source_.schema_, most_rows};
    while (at_ < source_.count_ && builder.rows() < most_rows) source_.make(builder, at_++);
    return builder.build();
  }

 private:
  SampleFunctionSource source_;
  std::uint64_t at_;
};

inline std::unique_ptr<BlockReader> SampleFunctionSource::open(std::uint64_t from) const {
  return std::make_unique<Reader>(*this, from);
}

/// Gives samples that a user's generator makes, one after another, until it returns false.
///
/// A run that goes on in the middle has all samples before made again, and thrown away. Not so of a generator that is a
/// class with a state, as a part of a TrainState has it (`State state() const` and `load_state(const State&)`, of
/// values alone): a copy of it is taken with each block, its state is saved in the position of the dataset, and at most
/// the samples of one block are made again: 4096, or a 32nd of the reader's bound of memory. Copies are to
/// have nothing in common. Law: after b.load_state(a.state()), a and b make the same samples. Example:
///   struct Squares {
///     std::int64_t next = 0;
///     bool operator()(ry::SampleWriter& out) {
///       out.set("x", next * next);
///       return next++ < 1000;
///     }
///     ry::State state() const { return {{"next", next}}; }
///     void load_state(const ry::State& saved) { next = saved.at("next").as<std::int64_t>(); }
///   };
///   ry::Dataset::from_generator({{"x", ry::Dtype::i64}}, [] { return Squares{}; })
class GeneratorSource {
 public:
  using Generator = std::function<bool(SampleWriter& out)>;
  using EndlessGenerator = std::function<void(SampleWriter& out)>;

  /// begin: makes a generator that is at its first sample; each must give the same samples.
  GeneratorSource(Schema schema, std::function<Generator()> begin, std::string name = "generator")
      : GeneratorSource(std::move(schema),
                        Begin{[begin = std::move(begin)] { return std::make_unique<detail::PlainGenerator>(begin()); }},
                        std::move(name), false) {}
  /// begin: the same for generators with a state.
  template <detail::BeginsStatefulGenerator B>
  requires std::predicate < std::invoke_result_t<const B&>
  &, SampleWriter& > GeneratorSource(Schema schema, B begin, std::string name = "generator")
      : GeneratorSource(std::move(schema), with_state<false>(std::move(begin)), std::move(name), false) {}
  /// begin: the same for generators that never end.
  [[nodiscard]] static GeneratorSource endless(Schema schema, std::function<EndlessGenerator()> begin,
                                               std::string name = "generator") {
    auto begin_both = [begin = std::move(begin)] {
      return std::make_unique<detail::PlainGenerator>([generator = begin()](SampleWriter& out) {
        generator(out);
        return true;
      });
    };
    return {std::move(schema), Begin{std::move(begin_both)}, std::move(name), true};
  }
  /// begin: the same for generators that never end and have a state.
  template <detail::BeginsStatefulGenerator B>
  [[nodiscard]] static GeneratorSource endless(Schema schema, B begin, std::string name = "generator") {
    return {std::move(schema), with_state<true>(std::move(begin)), std::move(name), true};
  }

  [[nodiscard]] Schema schema() const { return *schema_; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return std::nullopt; }
  /// Whether its generators never end.
  [[nodiscard]] bool is_endless() const noexcept { return is_endless_; }
  [[nodiscard]] std::string describe() const { return name_; }
  /// Throws: DataError if the generator does not take the state that was saved.
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from, const ReaderPlace& place = {}) const {
    return std::make_unique<Reader>(*this, from, place.state);
  }

 private:
  using Begin = std::function<std::unique_ptr<detail::RunningGenerator>()>;

  GeneratorSource(Schema schema, Begin begin, std::string name, bool is_endless)
      : schema_(std::make_shared<const Schema>(std::move(schema))),
        begin_(std::make_shared<const Begin>(std::move(begin))),
        name_(std::move(name)),
        is_endless_(is_endless) {}

  template <bool is_endless, class B>
  [[nodiscard]] static Begin with_state(B begin) {
    using Running = detail::CopiedGenerator<std::invoke_result_t<const B&>, is_endless>;
    return [begin = std::move(begin)] { return std::make_unique<Running>(begin()); };
  }

  class Reader final : public BlockReader {
   public:
    Reader(const GeneratorSource& source, std::uint64_t from, const ReaderState& state)
        : schema_(source.schema_), name_(source.name_), generator_((*source.begin_)()) {
      if (state.has_value() && state.sample() <= from) load(state);
      BlockBuilder skipped{schema_};
      while (at_ < from && make(skipped)) skipped.drop_last();
    }
    [[nodiscard]] Block next(std::size_t most_rows) override {
      BlockBuilder builder{schema_, most_rows};
      while (builder.rows() < most_rows && make(builder)) {
      }
      return builder.build();
    }
    [[nodiscard]] ReaderPlace place() const override { return {.state = generator_->state(name_, at_)}; }

   private:
    void load(const ReaderState& state) {
      try {
        if (generator_->load(state)) at_ = state.sample();
      } catch (const std::exception& failure) {
        throw DataError{detail::compose(
            "{} cannot go on with sample {}, for the generator does not take its saved state: {}; give the generator "
            "that it was saved with, or begin anew with another RunConfig::name",
            name_, state.sample(), failure.what())};
      }
    }
    bool make(BlockBuilder& builder) {
      if (is_over_) return false;
      return detail::call_user(
          [&] {
            is_over_ = !generator_->make(builder.add(at_));
            if (is_over_) {
              builder.drop_last();
            } else {
              builder.check_complete();
              ++at_;
            }
            return !is_over_;
          },
          name_, at_);
    }

    std::shared_ptr<const Schema> schema_;
    std::string name_;
    std::unique_ptr<detail::RunningGenerator> generator_;
    std::uint64_t at_ = 0;
    bool is_over_ = false;
  };

  std::shared_ptr<const Schema> schema_;
  std::shared_ptr<const Begin> begin_;
  std::string name_;
  bool is_endless_;
};
static_assert(ResumableSource<GeneratorSource> && !FileStreamSource<GeneratorSource> &&
              !IndexedSource<GeneratorSource>);

namespace detail {

template <class B>
concept BeginsGenerator = std::constructible_from<GeneratorSource, Schema, B>;

}  // namespace detail

}  // namespace railyard::inline v0_1
