// SPDX-License-Identifier: MIT
// Any preprocessor, its type forgotten: what chains are made of. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/fingerprint.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/demangled.hpp"
#include "railyard/core/stateful.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Holds a preprocessor of any type. Copies are independent. One that learns nothing has an empty state.
class AnyPreprocessor {
 public:
  template <class P>
  requires(!std::same_as<std::remove_cvref_t<P>, AnyPreprocessor> && Preprocessor<std::remove_cvref_t<P>>)
      AnyPreprocessor(P&& preprocessor)
      : held_(std::make_unique<Holder<std::remove_cvref_t<P>>>(std::forward<P>(preprocessor))) {}
  AnyPreprocessor(const AnyPreprocessor& other) : held_(other.held_->clone()) {}
  AnyPreprocessor(AnyPreprocessor&&) noexcept = default;
  AnyPreprocessor& operator=(const AnyPreprocessor& other) {
    held_ = other.held_->clone();
    return *this;
  }
  AnyPreprocessor& operator=(AnyPreprocessor&&) noexcept = default;
  ~AnyPreprocessor() = default;

  /// How often it must see the samples to learn.
  [[nodiscard]] std::size_t passes() const { return held_->passes(); }
  void begin(const Schema& schema) { held_->begin(schema); }
  void add(const Block& block) { held_->add(block); }
  [[nodiscard]] std::vector<std::byte> statistics() const { return held_->statistics(); }
  void merge(std::span<const std::byte> bytes) { held_->merge(bytes); }
  void finish() { held_->finish(); }
  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return held_->touches(); }
  [[nodiscard]] Schema schema(const Schema& before) const { return held_->schema(before); }
  [[nodiscard]] Block transform(const Block& block) const { return held_->transform(block); }
  [[nodiscard]] State state() const { return held_->state(); }
  void load_state(const State& state) { held_->load_state(state); }
  /// Another when the one inside is, or its options or what it has learned are.
  [[nodiscard]] std::uint64_t fingerprint() const { return held_->fingerprint(); }
  /// Another when the one inside is of another type, looks at other columns or has other options of which it tells; not
  /// when it has learned something else.
  [[nodiscard]] std::uint64_t kind() const { return held_->kind(); }
  /// The types inside of which nothing but the type tells one from another.
  [[nodiscard]] std::vector<std::string> types_alike() const { return held_->types_alike(); }

 private:
  struct Held {
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    virtual ~Held() = default;
    [[nodiscard]] virtual std::unique_ptr<Held> clone() const = 0;
    [[nodiscard]] virtual std::size_t passes() const = 0;
    virtual void begin(const Schema& schema) = 0;
    virtual void add(const Block& block) = 0;
    [[nodiscard]] virtual std::vector<std::byte> statistics() const = 0;
    virtual void merge(std::span<const std::byte> bytes) = 0;
    virtual void finish() = 0;
    [[nodiscard]] virtual TouchedColumns touches() const = 0;
    [[nodiscard]] virtual Schema schema(const Schema& before) const = 0;
    [[nodiscard]] virtual Block transform(const Block& block) const = 0;
    [[nodiscard]] virtual State state() const = 0;
    virtual void load_state(const State& state) = 0;
    [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
    [[nodiscard]] virtual std::uint64_t kind() const = 0;
    [[nodiscard]] virtual std::vector<std::string> types_alike() const = 0;
  };

  template <class P>
  struct Holder final : Held {
    static constexpr bool learns = LearningPreprocessor<P>;
    static constexpr bool tells_options = requires(const P& fitted) {
      { fitted.fingerprint() } -> std::convertible_to<std::uint64_t>;
    };

    template <class Given>
    explicit Holder(Given&& given) : preprocessor(std::forward<Given>(given)) {}
    [[nodiscard]] std::unique_ptr<Held> clone() const override { return std::make_unique<Holder>(preprocessor); }
    [[nodiscard]] std::size_t passes() const override { return detail::passes_of(preprocessor); }
    void begin([[maybe_unused]] const Schema& schema) override {
      if constexpr (learns) preprocessor.begin(schema);
    }
    void add([[maybe_unused]] const Block& block) override {
      if constexpr (learns) preprocessor.add(block);
    }
    [[nodiscard]] std::vector<std::byte> statistics() const override {
      if constexpr (learns) return preprocessor.statistics();
      return {};
    }
    void merge([[maybe_unused]] std::span<const std::byte> bytes) override {
      if constexpr (learns) preprocessor.merge(bytes);
    }
    void finish() override {
      if constexpr (learns) preprocessor.finish();
    }
    [[nodiscard]] TouchedColumns touches() const override {
      if constexpr (requires { preprocessor.touches(); }) return preprocessor.touches();
      return std::nullopt;
    }
    [[nodiscard]] Schema schema(const Schema& before) const override { return preprocessor.schema(before); }
    [[nodiscard]] Block transform(const Block& block) const override { return preprocessor.transform(block); }
    [[nodiscard]] State state() const override {
      if constexpr (learns) return preprocessor.state();
      return {};
    }
    void load_state([[maybe_unused]] const State& state) override {
      if constexpr (learns) preprocessor.load_state(state);
    }
    [[nodiscard]] std::uint64_t fingerprint() const override {
      detail::Fingerprint fingerprint;
      detail::identify_preprocessor(preprocessor, fingerprint);
      return fingerprint.value();
    }
    [[nodiscard]] std::uint64_t kind() const override {
      detail::Fingerprint fingerprint;
      fingerprint.add(std::string_view{typeid(P).name()});
      for (const std::string& column : touches().value_or(std::vector<std::string>{})) fingerprint.add(column);
      if constexpr (requires {
                      { preprocessor.kind() } -> std::convertible_to<std::uint64_t>;
                    }) {
        fingerprint.add(std::uint64_t{preprocessor.kind()});
      } else if constexpr (tells_options) {
        fingerprint.add(std::uint64_t{preprocessor.fingerprint()});
      }
      return fingerprint.value();
    }
    [[nodiscard]] std::vector<std::string> types_alike() const override {
      if constexpr (requires { preprocessor.types_alike(); }) {
        return preprocessor.types_alike();
      } else {
        if (tells_options || touches()) return {};  // touches() may tell of no columns, for they are not known
        return {detail::demangled(typeid(P))};
      }
    }

    P preprocessor;
  };

  std::unique_ptr<Held> held_;
};
static_assert(LearningPreprocessor<AnyPreprocessor>);

}  // namespace railyard::inline v0_1
