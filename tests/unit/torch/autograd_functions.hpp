// SPDX-License-Identifier: MIT
// Functions with a backward pass of their own, for what few networks do there.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

namespace test {

// Passes on what it is given, and no gradient at all.
struct Forget : torch::autograd::Function<Forget> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& /*gradients*/) {
    return {torch::Tensor{}};
  }
};

// Keeps nothing of the forward pass: backward() computes it anew and runs a backward pass of its own inside.
struct Again : torch::autograd::Function<Again> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::tanh(torch::matmul(x, weight));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const torch::AutoGradMode with_gradients{true};
    auto x = saved[0].detach().set_requires_grad(true);
    torch::tanh(torch::matmul(x, saved[1])).backward(gradients[0]);
    return {x.grad(), torch::Tensor{}};
  }
};

}  // namespace test
