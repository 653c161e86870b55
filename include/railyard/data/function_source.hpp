// SPDX-License-Identifier: MIT
// A user's functions as sources of a dataset. Data room.
#pragma once

#include "railyard/data/block_builder.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

// Names the samples that something is wrong with, or one of them.
[[nodiscard]] inline std::string text_of_samples(std::uint64_t first, std::uint64_t last, std::size_t count) {
  if (count == 1) return compose("sample {}", first);
  if (last - first == count - 1) return compose("samples {} to {}", first, last);
  return compose("{} samples between {} and {}", count, first, last);
}
[[nodiscard]] inline std::string text_of_samples(std::span<const std::uint64_t> ids) {
  const auto [first, last] = std::minmax_element(ids.begin(), ids.end());
  return text_of_samples(*first, *last, ids.size());
}

// Calls what a user gave, and says where its exceptions came from. samples: gives the text of which sample it was.
template <class Call, std::invocable Text>
decltype(auto) call_user(Call&& call, const std::string& where, Text&& samples) {
  const auto say = [&](const char* what) { return DataError{compose("{}: {}: {}", where, samples(), what)}; };
  try {
    return call();
  } catch (const std::exception& failure) {
    throw say(failure.what());
  } catch (...) {
    throw say("an exception that is no std::exception");
  }
}
template <class Call>
decltype(auto) call_user(Call&& call, const std::string& where, std::uint64_t id) {
  return call_user(std::forward<Call>(call), where, [id] { return text_of_samples(id, id, 1); });
}

}  // namespace detail

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

/// Gives samples that a user's generator makes, one after another, until it returns false. To go on in the middle, all
/// samples before are made again.
class GeneratorSource {
 public:
  using Generator = std::function<bool(SampleWriter& out)>;
  using EndlessGenerator = std::function<void(SampleWriter& out)>;

  /// begin: makes a generator that is at its first sample; each must give the same samples.
  GeneratorSource(Schema schema, std::function<Generator()> begin, std::string name = "generator")
      : schema_(std::make_shared<const Schema>(std::move(schema))),
        begin_(std::make_shared<const std::function<Generator()>>(std::move(begin))),
        name_(std::move(name)) {}
  /// begin: the same for generators that never end.
  [[nodiscard]] static GeneratorSource endless(Schema schema, std::function<EndlessGenerator()> begin,
                                               std::string name = "generator") {
    const auto begin_both = [begin = std::move(begin)]() -> Generator {
      return [generator = begin()](SampleWriter& out) {
        generator(out);
        return true;
      };
    };
    GeneratorSource source{std::move(schema), begin_both, std::move(name)};
    source.is_endless_ = true;
    return source;
  }

  [[nodiscard]] Schema schema() const { return *schema_; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return std::nullopt; }
  /// Whether its generators never end.
  [[nodiscard]] bool is_endless() const noexcept { return is_endless_; }
  [[nodiscard]] std::string describe() const { return name_; }
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const {
    return std::make_unique<Reader>(*this, from);
  }

 private:
  class Reader final : public BlockReader {
   public:
    Reader(const GeneratorSource& source, std::uint64_t from)
        : schema_(source.schema_), name_(source.name_), generator_((*source.begin_)()) {
      BlockBuilder skipped{schema_};
      while (at_ < from && make(skipped)) skipped.drop_last();
    }
    [[nodiscard]] Block next(std::size_t most_rows) override {
      BlockBuilder builder{schema_, most_rows};
      while (builder.rows() < most_rows && make(builder)) {
      }
      return builder.build();
    }

   private:
    bool make(BlockBuilder& builder) {
      if (is_over_) return false;
      return detail::call_user(
          [&] {
            is_over_ = !generator_(builder.add(at_));
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
    Generator generator_;
    std::uint64_t at_ = 0;
    bool is_over_ = false;
  };

  std::shared_ptr<const Schema> schema_;
  std::shared_ptr<const std::function<Generator()>> begin_;
  std::string name_;
  bool is_endless_ = false;
};
static_assert(DatasetSource<GeneratorSource> && !IndexedSource<GeneratorSource>);

}  // namespace railyard::inline v0_1
