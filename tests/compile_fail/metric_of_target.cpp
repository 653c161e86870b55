// SPDX-License-Identifier: MIT
// A metric that is given the target of a batch, which does not say whether it is a stand-in's.
// needs: torch
// expect: static.assert.*give a metric the batch and not its target
#include <railyard/railyard.hpp>

#include <torch/torch.h>

namespace ry = railyard;

double evaluate(torch::nn::Linear& net, ry::Loader& loader) {
  ry::Accuracy accuracy;
  for (const auto& batch : loader) {
#ifdef FIXED
    accuracy.add(net(batch.data), batch);
#else
    accuracy.add(net(batch.data), batch.target);
#endif
  }
  return accuracy.value();
}
