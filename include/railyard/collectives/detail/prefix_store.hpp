// SPDX-License-Identifier: MIT
// A part of a store that one group has for itself. Collectives room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a part of another store: the keys of those who share a prefix. Its waits end once it has been given up.
class PrefixStore final : public Store {
 public:
  PrefixStore(Store& store, std::string prefix) : store_(&store), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value) override { store_->set(prefix_ + std::string{key}, value); }
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    const std::string whole = prefix_ + std::string{key};
    while (true) {
      const auto look = times_.look(deadline);
      if (auto value = store_->get(whole, Deadline::after(look.until_next))) return value;
      if (look.is_over) return std::nullopt;
      if (is_given_up_.load()) throw Error{compose("{} was waited for when the group was given up", whole)};
    }
  }
  void expect(const std::vector<std::string>& keys) override {
    std::vector<std::string> whole;
    for (const std::string& key : keys) whole.push_back(prefix_ + key);
    store_->expect(whole);
  }
  [[nodiscard]] Descriptor take_memory() override { return store_->take_memory(); }
  [[nodiscard]] bool joins_threads() const noexcept override { return store_->joins_threads(); }
  void give_up() noexcept { is_given_up_.store(true); }

 private:
  Store* store_;
  std::string prefix_;
  CommonAwakeTime times_{};
  std::atomic<bool> is_given_up_{false};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
