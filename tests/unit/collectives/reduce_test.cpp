// SPDX-License-Identifier: MIT
#include "railyard/collectives/detail/reduce.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace {

namespace ry = railyard;

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& inputs, ry::ReduceOp op) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs[0].size());
  ry::detail::reduce(out.data(), sources, out.size(), ry::dtype_of<T>, op);
  return out;
}

}  // namespace

TEST_CASE("reduce: half types are summed in float and rounded once") {
  // In f16, 2048 + 1 is 2048 again: rounding after each addition would lose both ones.
  const std::vector<std::vector<ry::Float16>> halves{{ry::Float16{2048}}, {ry::Float16{1}}, {ry::Float16{1}}};
  CHECK(static_cast<float>(reduced(halves, ry::ReduceOp::sum)[0]) == 2050.0F);
  const std::vector<std::vector<ry::BFloat16>> brains{{ry::BFloat16{256}}, {ry::BFloat16{1}}, {ry::BFloat16{1}}};
  CHECK(static_cast<float>(reduced(brains, ry::ReduceOp::sum)[0]) == 258.0F);
}

TEST_CASE("reduce: an average of f16 does not overflow in between (FAULTS D11)") {
  const std::vector<std::vector<ry::Float16>> large{{ry::Float16{60000}}, {ry::Float16{60000}}};
  CHECK(static_cast<float>(reduced(large, ry::ReduceOp::average)[0]) == static_cast<float>(ry::Float16{60000}));
}

TEST_CASE("reduce: integers wrap like unsigned ones (FAULTS D17)") {
  CHECK(reduced<std::int8_t>({{127}, {1}}, ry::ReduceOp::sum)[0] == -128);
  constexpr auto max = std::numeric_limits<std::int64_t>::max();
  CHECK(reduced<std::int64_t>({{max}, {1}}, ry::ReduceOp::sum)[0] == std::numeric_limits<std::int64_t>::min());
  CHECK(reduced<std::int32_t>({{1 << 30}, {6}}, ry::ReduceOp::product)[0] == -2147483647 - 1);
}

TEST_CASE("reduce: a NaN of any rank wins in min and max, whatever its place") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto op : {ry::ReduceOp::min, ry::ReduceOp::max}) {
    const auto result = reduced<float>({{nan, 1, 1}, {2, nan, 2}, {3, 3, nan}}, op);
    for (const float value : result) CHECK(ry::detail::is_nan(value));
  }
  CHECK(reduced<double>({{3}, {-2}, {7}}, ry::ReduceOp::min)[0] == -2);
  CHECK(reduced<double>({{3}, {-2}, {7}}, ry::ReduceOp::max)[0] == 7);
}

TEST_CASE("reduce: on bool, sum and max are any, product and min are all") {
  const bool sources[3][2] = {{true, true}, {false, true}, {false, true}};
  const std::vector<const std::byte*> pointers{reinterpret_cast<const std::byte*>(sources[0]),
                                               reinterpret_cast<const std::byte*>(sources[1]),
                                               reinterpret_cast<const std::byte*>(sources[2])};
  bool out[2];
  for (const auto op : {ry::ReduceOp::sum, ry::ReduceOp::max}) {
    ry::detail::reduce(out, pointers, 2, ry::Dtype::boolean, op);
    CHECK((out[0] && out[1]));
  }
  for (const auto op : {ry::ReduceOp::product, ry::ReduceOp::min}) {
    ry::detail::reduce(out, pointers, 2, ry::Dtype::boolean, op);
    CHECK((!out[0] && out[1]));
  }
}

TEST_CASE("reduce: the result may take the place of a source, at any alignment") {
  std::vector<std::byte> memory(4 * 5000 + 1);
  std::byte* data = memory.data() + 1;
  std::vector<float> other(5000);
  for (std::size_t i = 0; i < 5000; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(data + i * 4, &value, 4);
    other[i] = 2 * value;
  }
  const std::vector<const std::byte*> sources{reinterpret_cast<const std::byte*>(other.data()), data};
  ry::detail::reduce(data, sources, 5000, ry::Dtype::f32, ry::ReduceOp::sum);
  for (std::size_t i = 0; i < 5000; ++i) {
    float value = 0;
    std::memcpy(&value, data + i * 4, 4);
    REQUIRE(value == 3 * static_cast<float>(i));
  }
}
