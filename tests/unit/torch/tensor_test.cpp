// SPDX-License-Identifier: MIT
#include "railyard/torch/tensor.hpp"

#include "run.hpp"
#include "support/catch.hpp"
#include "support/fake_gpus.hpp"
#include "support/temporary_folder.hpp"

#include <torch/torch.h>

namespace ry = railyard;
using Catch::ContainsSubstring;

TEST_CASE("dtype_of_tensor: knows every dtype by one type of LibTorch's, and names those it does not know") {
  const std::vector<std::pair<at::ScalarType, ry::Dtype>> pairs{
      {torch::kHalf, ry::Dtype::f16},   {torch::kBFloat16, ry::Dtype::bf16}, {torch::kFloat, ry::Dtype::f32},
      {torch::kDouble, ry::Dtype::f64}, {torch::kChar, ry::Dtype::i8},       {torch::kByte, ry::Dtype::u8},
      {torch::kInt, ry::Dtype::i32},    {torch::kLong, ry::Dtype::i64},      {torch::kBool, ry::Dtype::boolean}};
  CHECK(pairs.size() == ry::all_dtypes.size());
  for (const auto& pair : pairs) {
    const auto tensor = torch::zeros({1}, pair.first);
    CHECK(ry::dtype_of_tensor(tensor) == pair.second);
    CHECK(ry::size_of(pair.second) == static_cast<std::size_t>(tensor.element_size()));
  }
  CHECK_THROWS_WITH(ry::dtype_of_tensor(torch::zeros({2}, torch::kShort)), ContainsSubstring("Short[2]"));
}

TEST_CASE("buffer_of: views the elements of a tensor") {
  const auto tensor = torch::arange(4, torch::kInt);
  const ry::Buffer buffer = ry::buffer_of(tensor);
  CHECK((buffer.data == tensor.data_ptr() && buffer.count == 4 && buffer.dtype == ry::Dtype::i32));
  CHECK_THROWS_WITH(ry::buffer_of(tensor.view({2, 2}).t()), ContainsSubstring("contiguous"));
}

TEST_CASE("values: views the elements of a tensor of that type") {
  const auto tensor = torch::arange(6, torch::kLong).view({2, 3});
  const auto elements = ry::values<std::int64_t>(tensor);
  CHECK((static_cast<const void*>(elements.data()) == tensor.data_ptr() && elements.size() == 6 && elements[5] == 5));
  CHECK_THROWS_WITH(ry::values<float>(tensor), ContainsSubstring("Long[2, 3]") && ContainsSubstring("f32"));
  CHECK_THROWS_WITH(ry::values<std::int64_t>(tensor.t()), ContainsSubstring("contiguous"));
}

TEST_CASE("device: is the CPU for CPU backends") {
  test::on_threads(1, [](auto& worker) { EXPECT(ry::device(worker).is_cpu()); });
}

TEST_CASE("device: is the GPU that a worker was given, whatever its backend") {
  const railyard_test::FakeGpus gpus{2};
  const TemporaryFolder folder;
  ry::Trainer<ry::SharedMemory, ry::Threads> trainer{
      [](auto& worker) {
        EXPECT(ry::device(worker) == at::Device(at::kCUDA, static_cast<at::DeviceIndex>(worker.rank())));
      },
      {.num_workers = 2, .use_gpu = true},
      {.storage_path = folder.path(), .progress = ry::Progress::quiet}};
  CHECK(trainer.fit().error() == "");
}
