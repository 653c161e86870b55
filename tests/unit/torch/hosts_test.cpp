// SPDX-License-Identifier: MIT
// Training on two hosts, which are pretended: weights once per host, gradients added up within hosts and between them.
#include "railyard/torch/detail/host_sums.hpp"
#include "railyard/torch/detail/pass_numbers.hpp"
#include "railyard/torch/prepare_model.hpp"
#include "railyard/torch/prepare_optimizer.hpp"
#include "railyard/torch/step_times.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/pretended_hosts.hpp"

#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hosts {  // suites are compiled as one source as well

namespace ry = railyard;
using Catch::ContainsSubstring;

// Of some of its layers rank 1 of the second host knows nothing, and of one it alone knows.
struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(7, 150));
    second = register_module("second", torch::nn::Linear(150, 3));
    spare = register_module("spare", torch::nn::Linear(3, 3));
    rare = register_parameter("rare", torch::ones({5}));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel()).sin().mul(0.3).view_as(parameter));
    }
  }
  torch::Tensor forward(const torch::Tensor& x, int rank) {
    auto y = second(torch::tanh(first(x)));
    if (rank != 3) y = spare(y);
    return rank == 3 ? y * rare.sum() : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, spare{nullptr};
  torch::Tensor rare{};
};

// Trains with other numbers of samples on every rank; returns the bits of all weights, folded into one number.
std::int64_t trained_bits(ry::Worker& worker, const ry::ModelOptions& options, bool is_prepared) {
  auto net = ry::prepare_model(
      worker, [] { return std::make_shared<Net>(); }, options);
  const auto settings = torch::optim::AdamOptions(0.02);
  const auto steps = [&](auto& optimizer) {
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      const std::int64_t rows = (worker.rank() + step) % 3;
      worker.samples(static_cast<std::uint64_t>(rows));
      const auto data = (torch::arange(std::max<std::int64_t>(rows, 1) * 7) + 31 * worker.rank() + step).sin();
      net->forward(data.view({-1, 7}), worker.rank()).pow(2).mean().backward();
      optimizer.step();
    }
  };
  std::uint64_t bits = 0;
  const auto fold = [&] {
    for (const auto& weight : net->parameters()) {
      const auto words = weight.detach().contiguous().view(torch::kInt).view(-1);
      for (std::int64_t i = 0; i < words.numel(); ++i) {
        bits = bits * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(words.data_ptr<int>()[i]);
      }
    }
  };
  if (is_prepared) {
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, settings);
    EXPECT(optimizer.is_sharded());
    steps(optimizer);
    fold();
    EXPECT(optimizer.full_gradients().size() == 7);
  } else {
    torch::optim::Adam optimizer(net->parameters(), settings);
    steps(optimizer);
    fold();
  }
  return static_cast<std::int64_t>(bits);
}

template <class Scaling, class Function>
ry::Result on_two_hosts(Function function) {
  return test::try_run<railyard_test::GlooOnTwoHosts, Scaling>(4, std::move(function));
}

template <class Function>
std::string error_on_hosts(Function function) {
  return on_two_hosts<ry::Threads>(std::move(function)).error();
}

TEST_CASE("Hosts: two runs have the same bits on all ranks, overlapped or not, with one copy per host or without") {
  const auto bits = [](const ry::ModelOptions& options, bool is_prepared) {
    return on_two_hosts<ry::Processes>([=](auto& worker) {
             std::int64_t own = trained_bits(worker, options, is_prepared);
             std::int64_t first = own;
             worker.broadcast(ry::buffer_of_value(first), 0);
             EXPECT(own == first);
             worker.report({{"bits", own}});
           })
        .value_or_throw()
        .metrics()
        .at("bits")
        .template as<std::int64_t>();
  };
  const ry::ModelOptions at_once{.overlap = ry::Overlap::off};
  const ry::ModelOptions meanwhile{.overlap = ry::Overlap::on, .bucket_bytes = 2000, .first_bucket_bytes = 500};
  for (const bool is_prepared : {true, false}) {
    const std::int64_t expected = bits(at_once, is_prepared);
    CHECK(bits(at_once, is_prepared) == expected);
    CHECK(bits(meanwhile, is_prepared) == expected);
  }
}

TEST_CASE("Hosts: weights lie once on each host, and each rank keeps the state of its part of them") {
  const auto result = on_two_hosts<ry::Processes>([](auto& worker) {
    auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(64, 64); });
    auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(0.1));
    ry::HostMemory& memory = *worker.host_memory();
    EXPECT(memory.num_hosts() == 2 && memory.size() == 2);
    std::int64_t elements = 0;
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& piece : group.params()) elements += piece.numel();
    }
    EXPECT(elements == 64 * (32 + worker.rank() % 2));  // of 65 lines of memory
    worker.samples(1);
    (net->weight.sum() + net->bias.sum()).backward();
    optimizer.step();
    EXPECT(optimizer.state().tensors.empty() == (memory.host() == 1));  // what both have is saved once
    const torch::NoGradGuard no_grad;
    worker.barrier();
    if (worker.rank() == 2) net->weight.fill_(5);  // seen by whom it shares its memory with
    worker.barrier();
    EXPECT((net->weight[0][0].template item<float>() == 5) == (worker.rank() >= 2));
  });
  CHECK(result.error() == "");
}

TEST_CASE("Hosts: rank 0's weights are everybody's when an optimizer is prepared") {
  CHECK(error_on_hosts([](auto& worker) {
          auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(9, 9); });
          {
            const torch::NoGradGuard no_grad;
            net->weight.fill_(worker.rank() + 1);
          }
          auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
          EXPECT(torch::equal(net->weight, torch::ones({9, 9})));
        }) == "");
}

TEST_CASE("Hosts: gradients of more than goes over the network at once are means of all, in full and in parts") {
  CHECK(error_on_hosts([](auto& worker) {
          struct Large : torch::nn::Module {
            Large() {
              for (int i = 0; i < 6; ++i) {
                const auto type = i == 3 ? torch::kFloat64 : torch::kFloat32;
                parts.push_back(register_parameter(std::to_string(i), torch::zeros({700, 1000}, type)));
              }
            }
            std::vector<torch::Tensor> parts{};
          };
          auto net = ry::prepare_model(worker, [] { return std::make_shared<Large>(); });
          const auto pass = [&] {
            worker.samples(1);
            torch::Tensor sum = torch::zeros({}, torch::kFloat64);
            for (const auto& part : net->parts) sum = sum + (part * static_cast<double>(worker.rank() + 1)).sum();
            sum.backward();
          };
          pass();
          for (const auto& part : net->parts) EXPECT(torch::equal(part.grad(), torch::full_like(part, 2.5)));
          EXPECT(ry::step_times(worker).bytes > 6 * 700'000 * sizeof(float));
          net->zero_grad();
          worker.end_step();
          auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(2));
          pass();
          for (const auto& gradient : optimizer.full_gradients()) {
            EXPECT(torch::equal(gradient, torch::full_like(gradient, 2.5)));
          }
          const double norm = ry::clip_grad_norm_(optimizer, 1e9);
          EXPECT(std::abs(norm / (2.5 * std::sqrt(6 * 700'000.0)) - 1) < 1e-5);
          optimizer.step();
          for (const auto& part : net->parts) EXPECT(torch::equal(part, torch::full_like(part, -5)));
        }) == "");
}

// The one rank of a host, whose neighbour on the other host has the same gradients. Notes what goes between them.
class TwiceTheSame final : public ry::HostMemory {
 public:
  std::vector<std::size_t> sent_bytes{};

  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return 1; }
  [[nodiscard]] int host() const noexcept override { return 0; }
  [[nodiscard]] int num_hosts() const noexcept override { return 2; }
  void add_between_hosts(const ry::Buffer& data, const ry::Deadline&) override {
    sent_bytes.push_back(data.size_bytes());
    auto* values = static_cast<float*>(data.data);
    for (std::size_t i = 0; i < data.count; ++i) values[i] *= 2;
  }
  [[nodiscard]] std::future<void> begin_between_hosts(const ry::Buffer& data, const ry::Deadline& deadline) override {
    return std::async(std::launch::async, [this, data, deadline] { add_between_hosts(data, deadline); });
  }
  void begin(ry::Purpose, std::span<const std::byte>, int, const ry::Deadline&) override {}
  void add_step() noexcept override {}
  void step(std::span<const std::byte>) override {}
  void rest() noexcept override {}
  [[nodiscard]] std::span<const std::byte> record_of(int) const override { return {}; }
  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  [[nodiscard]] std::byte* at(int, std::uint64_t place) const noexcept override {
    return reinterpret_cast<std::byte*>(place);
  }
  [[nodiscard]] const std::shared_ptr<ry::detail::Heap>& heap() const noexcept override { return heap_; }
  [[nodiscard]] ry::HostMemory* side(const ry::Deadline&) override { return nullptr; }
  void abort(std::string_view) noexcept override {}
  void withdraw() noexcept override {}

 private:
  std::shared_ptr<ry::detail::Heap> heap_{};
};

TEST_CASE("Hosts: one large gradient goes over the network in parts, of which the memory has others meanwhile") {
  const auto sums = [](bool is_piece) {
    return [is_piece](auto& worker) {
      constexpr std::int64_t count = 1'300'001;  // nearly 5 MiB
      const auto numbers = torch::arange(count).to(torch::kFloat).remainder(1000);
      std::vector<ry::detail::GradientSlot> slots(2);
      std::vector<ry::detail::ShownGradient> table(2);
      for (std::size_t index = 0; index < 2; ++index) {
        ry::detail::GradientSlot& slot = slots[index];
        slot.parameter = torch::zeros({index == 0 ? count : 5}, torch::requires_grad());
        slot.parameter.mutable_grad() = index == 0 ? numbers.clone() : torch::ones({5});
        table[index].place = reinterpret_cast<std::uintptr_t>(slot.parameter.grad().data_ptr());
        table[index].gives = 1;
      }
      auto piece = std::make_shared<ry::detail::GradientPiece>();
      piece->begin = 7;
      piece->end = count - 3;
      piece->weights = slots[0].parameter.detach().slice(0, 7, count - 3);
      if (is_piece) slots[0].piece = piece;
      const ry::detail::ShownGradients shown{.headers = {{.samples = 3}}, .tables = {table.data()}};
      TwiceTheSame memory;
      ry::detail::HostSums host_sums{worker, memory, shown, 6};
      EXPECT(host_sums.add({{0, &slots[0]}, {1, &slots[1]}}));
      EXPECT(memory.sent_bytes.size() == 3);
      for (const std::size_t bytes : memory.sent_bytes) EXPECT(bytes <= ry::detail::host_chunk_bytes);
      EXPECT(torch::equal(slots[1].parameter.grad(), torch::ones({5})));
      EXPECT(torch::equal(is_piece ? piece->weights.grad() : slots[0].parameter.grad(),
                          is_piece ? numbers.slice(0, 7, count - 3) : numbers));
    };
  };
  for (const bool is_piece : {false, true}) {
    CHECK(test::try_run<ry::Local, ry::Threads>(1, sums(is_piece)).error() == "");
  }
}

TEST_CASE("Hosts: a gradient that is not finite on one rank leaves the step out on all hosts (FAULTS D9)") {
  CHECK(error_on_hosts([](auto& worker) {
          auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
          auto optimizer = ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(0.5));
          const auto before = net->first->weight.detach().clone();
          worker.samples(1);
          const double factor = worker.rank() == 2 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
          (net->first->weight.sum() * factor).backward();
          optimizer.step();
          EXPECT(torch::equal(net->first->weight.detach(), before));
        }) == "");
}

TEST_CASE("Hosts: what would train hosts apart is refused on all ranks (TRAPS 10, 17, FAULTS D)") {
  const auto trained = [](auto disturb) {
    return error_on_hosts([disturb](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
      auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        worker.samples(2);
        net->first->weight.sum().backward();
        disturb(worker, optimizer, step);
        optimizer.step();
        worker.end_step();
      }
    });
  };
  CHECK_THAT(trained([](auto& worker, auto& optimizer, int step) {
               if (worker.rank() >= 2 && step == 1) optimizer.param_groups()[0].options().set_lr(0.2);
             }),
             ContainsSubstring("rank 2 has not updated its weights as rank 0 has"));
  CHECK_THAT(trained([](auto& worker, auto& optimizer, int step) {
               if (worker.rank() == 3 && step == 1) optimizer.param_groups()[0].options().set_lr(0.2);
             }),
             ContainsSubstring("\"lr of group 0: 0.2\" on rank 3 and \"lr of group 0: 0.1\" on rank 2; one copy of"));
  for (const int first : {2, 3}) {
    const auto converted = error_on_hosts([first](auto& worker) {
      auto net = ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
      if (worker.rank() >= first) net->to(torch::kFloat64);
      worker.samples(1);
      net->spare->bias.sum().backward();
    });
    CHECK_THAT(converted, ContainsSubstring(fmt::format("elements of Double on rank {} and", first)) &&
                              ContainsSubstring("elements of Float on rank 0") &&
                              ContainsSubstring("converted after prepare_model()"));
  }
}

TEST_CASE("Hosts: the slowest rank is told across hosts, and what the others wait for it (FAULTS D37)") {
  CHECK(error_on_hosts([](auto& worker) {
          auto net = ry::prepare_model(worker, [] { return torch::nn::Linear(100, 10); });
          auto optimizer = ry::prepare_optimizer<torch::optim::SGD>(worker, net, torch::optim::SGDOptions(0.1));
          for (int step = 0; step < 4; ++step) {
            optimizer.zero_grad();
            worker.samples(1);
            if (worker.rank() == 2) test::compute_for(std::chrono::milliseconds{100});
            net->forward(torch::ones({200, 100})).sum().backward();
            optimizer.step();
          }
          const ry::StepTimes times = ry::step_times(worker);
          EXPECT(times.slowest_rank == 2);
          EXPECT(worker.rank() == 2 ? times.compute > times.wait : times.wait > times.communication);
        }) == "");
}

}  // namespace hosts
