// SPDX-License-Identifier: MIT
// Holds any callback, so that a list can hold callbacks of different types. Train room.
#pragma once

#include "railyard/core/callback.hpp"

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

template <class F>
concept ReportFunction = !Callback<F> && std::move_constructible<F> && std::invocable<F&, const Report&>;

}  // namespace detail

/// Holds a Callback, or a function that takes a const Report& and returns nothing or a Next. Copies share one callback.
class AnyCallback {
 public:
  template <class C>
  requires(!std::same_as<std::remove_cvref_t<C>, AnyCallback>) &&
      (Callback<std::decay_t<C>> || detail::ReportFunction<std::decay_t<C>>)AnyCallback(C&& callback)
      : held_(std::make_shared<Holder<std::decay_t<C>>>(std::forward<C>(callback))) {}

  void on_start(const RunInfo& info) const { held_->on_start(info); }
  [[nodiscard]] Next on_report(const Report& report) const { return held_->on_report(report); }
  void on_resize(const Resize& resize) const { held_->on_resize(resize); }
  void on_end(const RunEnd& end) const { held_->on_end(end); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void on_start(const RunInfo& info) = 0;
    virtual Next on_report(const Report& report) = 0;
    virtual void on_resize(const Resize& resize) = 0;
    virtual void on_end(const RunEnd& end) = 0;
  };

  template <class C>
  struct Holder final : Base {
    template <class From>
    explicit Holder(From&& from) : callback(std::forward<From>(from)) {}

    void on_start([[maybe_unused]] const RunInfo& info) override {
      if constexpr (detail::HearsStart<C>) callback.on_start(info);
    }
    Next on_report([[maybe_unused]] const Report& report) override {
      if constexpr (detail::HearsReport<C>) {
        return ask([&]() -> decltype(auto) { return callback.on_report(report); });
      } else if constexpr (detail::ReportFunction<C>) {
        return ask([&]() -> decltype(auto) { return callback(report); });
      } else {
        return Next::go_on;
      }
    }
    void on_resize([[maybe_unused]] const Resize& resize) override {
      if constexpr (detail::HearsResize<C>) callback.on_resize(resize);
    }
    void on_end([[maybe_unused]] const RunEnd& end) override {
      if constexpr (detail::HearsEnd<C>) callback.on_end(end);
    }

    template <class Call>
    static Next ask(Call call) {
      using Answer = decltype(call());
      static_assert(std::is_void_v<Answer> || std::is_same_v<Answer, Next>,
                    "a callback's on_report returns nothing, or a railyard::Next (go_on, stop)");
      if constexpr (std::is_same_v<Answer, Next>) {
        return call();
      } else {
        call();
        return Next::go_on;
      }
    }

    C callback;
  };

  std::shared_ptr<Base> held_;
};

}  // namespace railyard::inline v0_1
