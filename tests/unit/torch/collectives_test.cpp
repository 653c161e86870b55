// SPDX-License-Identifier: MIT
#include "railyard/torch/collectives.hpp"

#include "run.hpp"
#include "support/catch.hpp"

#include <torch/torch.h>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

void use_all(ry::Worker& worker) {
  const int rank = worker.rank();
  const int size = worker.world_size();
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kChar, torch::kByte,
                          torch::kInt, torch::kLong}) {
    auto values = torch::full({3}, rank + 1, type);
    ry::all_reduce(worker, values);
    EXPECT(torch::equal(values, torch::full({3}, size * (size + 1) / 2, type)));
  }
  auto flag = torch::full({2}, rank == 0, torch::kBool);
  ry::all_reduce(worker, flag, ry::ReduceOp::max);
  EXPECT(flag.all().item<bool>());

  auto root = torch::full({2, 2}, rank);
  ry::broadcast(worker, root, size - 1);
  EXPECT(torch::equal(root, torch::full({2, 2}, size - 1)));

  const auto gathered = ry::all_gather(worker, torch::full({2}, rank));
  EXPECT(gathered.sizes() == at::IntArrayRef({size, 2}) && gathered[size - 1][0].item<int>() == size - 1);

  const auto slice = ry::reduce_scatter(worker, torch::arange(2 * size).view({size, 2}));
  EXPECT(torch::equal(slice, (torch::arange(2).view({1, 2}) + 2 * rank) * size));

  const auto column = ry::all_to_all(worker, torch::full({size}, rank));
  EXPECT(torch::equal(column, torch::arange(size)));

  const auto empty = torch::empty({0});
  ry::all_reduce(worker, empty);
}

}  // namespace

TEST_CASE("tensor collectives: carry every type, in a world of one too (FAULTS D22)") {
  for (const int workers : {1, 2, 3}) test::on_threads(workers, [](auto& worker) { use_all(worker); });
  for (const int workers : {1, 2}) test::on_processes(workers, [](auto& worker) { use_all(worker); });
}

TEST_CASE("tensor collectives: keep strided and channels_last tensors right (FAULTS D23, D25)") {
  test::on_processes(2, [](auto& worker) {
    auto base = torch::zeros({4, 3});
    auto view = base.t().slice(1, 0, 4, 2);  // two rows of base, turned
    view.copy_(torch::arange(6).view({3, 2}) * (worker.rank() + 1));
    ry::all_reduce(worker, view);
    EXPECT(torch::equal(view, torch::arange(6).view({3, 2}).to(torch::kFloat) * 3));
    EXPECT(base[1].sum().template item<double>() == 0);  // what lies between is untouched
    auto image = (torch::arange(24).view({1, 2, 3, 4}).to(torch::kFloat) * worker.rank())
                     .contiguous(at::MemoryFormat::ChannelsLast);
    if (worker.rank() == 1) image = image.contiguous();  // ranks need not have equal strides
    ry::broadcast(worker, image, 1);
    EXPECT(torch::equal(image, torch::arange(24).view({1, 2, 3, 4}).to(torch::kFloat)));
    EXPECT(
        torch::equal(ry::all_gather(worker, torch::arange(6).view({2, 3}).t())[1], torch::arange(6).view({2, 3}).t()));
  });
}

TEST_CASE("tensor collectives: send, gather and scatter strided tensors right (FAULTS D24)") {
  const auto use = [](auto& worker) {
    const auto turned = (torch::arange(8).view({2, 4}) + 100 * worker.rank()).t();  // (4, 2)
    auto base = torch::full({4, 4}, -1, torch::kLong);
    auto columns = base.slice(1, 0, 4, 2);
    if (worker.rank() == 0) ry::send(worker, turned, 1);
    if (worker.rank() == 1) {
      ry::receive(worker, columns, 0);
      EXPECT(torch::equal(columns, torch::arange(8).view({2, 4}).t()));
      EXPECT(base.slice(1, 1, 4, 2).eq(-1).all().template item<bool>());  // what lies between is untouched
    }
    const auto gathered = ry::all_gather(worker, turned.slice(0, 0, 4, 3));
    EXPECT(torch::equal(gathered[1], torch::tensor({{100, 104}, {103, 107}})));
    const auto slice = ry::reduce_scatter(worker, turned);
    EXPECT(torch::equal(slice, torch::tensor({{100, 108}, {102, 110}}) + 4 * worker.rank()));
    const auto swapped = ry::all_to_all(worker, turned);
    EXPECT(torch::equal(swapped[3], torch::tensor({101, 105}) + 2 * worker.rank()));
  };
  test::on_both_threads(2, use);
  test::on_processes(2, use);
}

TEST_CASE("tensor collectives: a graph that has saved what they overwrite notices") {
  test::on_threads(1, [](auto& worker) {
    auto x = torch::ones({2}, torch::requires_grad());
    auto factor = torch::ones({2});
    const auto y = (x * factor).sum();
    ry::all_reduce(worker, factor);
    bool thrown = false;
    try {
      y.backward();
    } catch (const c10::Error&) {
      thrown = true;
    }
    EXPECT(thrown);
  });
}

TEST_CASE("tensor collectives: name what they cannot carry") {
  const auto error = [](const torch::Tensor& tensor) {
    return test::error_of(1, [tensor](auto& worker) { ry::all_reduce(worker, tensor); });
  };
  CHECK_THAT(error(torch::zeros({2}, torch::kShort)), ContainsSubstring("Short[2]"));
  CHECK_THAT(error(torch::zeros({2}, torch::kComplexFloat)), ContainsSubstring("view_as_real"));
  CHECK_THAT(error(torch::Tensor{}), ContainsSubstring("undefined"));
  CHECK_THAT(error(torch::zeros({2}).to_sparse()), ContainsSubstring("to_dense"));
  CHECK_THAT(error(torch::zeros({1}).expand({4})), ContainsSubstring("expanded"));
  CHECK_THAT(test::error_of(2, [](auto& worker) { auto out = ry::reduce_scatter(worker, torch::zeros({3})); }),
             ContainsSubstring("a multiple of 2"));
}
