// SPDX-License-Identifier: MIT
// Tells whether ranks update their weights alike, and by which settings. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/optimizer_fields.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// What an optimizer's updates go by: the options of its groups, as numbers, one group after another.
struct UpdateSettings {
  std::vector<double> values{};
  std::string (*describe)(const std::vector<double>&) = nullptr;  // with their names, one a line

  template <ElementwiseOptimizer X>
  [[nodiscard]] static UpdateSettings of_none() {
    return {.describe = &describe_as<X>};
  }
  // Adds those of one more group.
  template <ElementwiseOptimizer X>
  void add(const torch::optim::OptimizerOptions& options) {
    OptimizerFields<X>::options(static_cast<const typename OptimizerFields<X>::Options&>(options),
                                [this](std::string_view, auto field) { values.push_back(static_cast<double>(field)); });
  }
  template <ElementwiseOptimizer X>
  [[nodiscard]] static UpdateSettings of(const X& optimizer) {
    UpdateSettings settings = of_none<X>();
    for (const auto& group : optimizer.param_groups()) settings.add<X>(group.options());
    return settings;
  }

  [[nodiscard]] std::string text() const { return describe == nullptr ? "" : describe(values); }
  [[nodiscard]] std::uint64_t hash() const { return digest_of(std::as_bytes(std::span{values})); }
  // The same where only the last bits differ, as those of what processors of two kinds have computed may.
  [[nodiscard]] std::uint64_t rounded_hash() const {
    std::vector<float> rounded;
    for (const double value : values) rounded.push_back(static_cast<float>(value));
    return digest_of(std::as_bytes(std::span{rounded}));
  }

 private:
  template <class X>
  [[nodiscard]] static std::string describe_as(const std::vector<double>& values) {
    std::string text = compose("optimizer: {}\n", OptimizerFields<X>::name);
    const typename OptimizerFields<X>::Options names(1);
    std::size_t at = 0;
    for (std::size_t group = 0; at < values.size(); ++group) {
      OptimizerFields<X>::options(names, [&](std::string_view name, auto) {
        text += compose("{} of group {}: {}\n", name, group, values[at++]);
      });
    }
    return text;
  }
};

// A short digest of a worker's updates so far, where it has weights of its own, which every backward pass compares:
// what one comparison misses, the next ones find.
struct UpdateDigest {
  static constexpr std::string_view extension_name = "torch.updates";

  std::uint64_t value = 0;
  std::uint64_t num_updates = 0;
  UpdateSettings last{};
  std::optional<double> max_norm{};  // to which gradients were clipped last
  std::optional<double> scale{};     // of a GradScaler

  void add(UpdateSettings settings) {
    last = std::move(settings);
    ++num_updates;
    const std::uint64_t hash = last.rounded_hash();
    value = short_digest(digest_of(std::as_bytes(std::span{&hash, 1}), value + 1));
  }
  // A GradScaler's, by which it divides.
  void add_scale(double factor) {
    scale = factor;
    const auto rounded = static_cast<float>(factor);
    value = short_digest(digest_of(std::as_bytes(std::span{&rounded, 1}), value + 1));
  }
  void add_clipping(double norm) {
    max_norm = norm;
    const auto rounded = static_cast<float>(norm);
    value = short_digest(digest_of(std::as_bytes(std::span{&rounded, 1}), value + 1));
  }

  // One a line.
  [[nodiscard]] std::string text() const {
    return compose("updates: {}\n", num_updates) + last.text() +
           (max_norm ? compose("max_norm of clip_grad_norm_: {}\n", *max_norm) : "") +
           (scale ? compose("scale of the GradScaler: {}\n", *scale) : "");
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1
