// SPDX-License-Identifier: MIT
// The C++ side of tests/python/exchange.py: `exchange write FOLDER` commits a checkpoint, `exchange read FILE` prints
// the tensors of a file: name, dtype, shape and bytes, one tensor a line.
#include "railyard/checkpoint/safetensors.hpp"

#include "unit/checkpoint/support.hpp"

#include <string_view>

#include <fmt/format.h>

using namespace railyard_test;

namespace {

void write(const fs::path& folder) {
  Contribution contribution;
  for (int rank = 0; rank < 2; ++rank) {
    ry::State net;
    net.tensors.push_back(tensor_of<float>("layer.0.weight", {2, 3}, {1.5F, -0.0F, 3, 4, 5, 3e-45F}));
    net.tensors.push_back(tensor_of<double>("layer.0.bias", {2}, {0.1, -7}));
    net.tensors.push_back(tensor_of<ry::Float16>("f16", {2}, {ry::Float16{1.5F}, ry::Float16{-2}}));
    net.tensors.push_back(tensor_of<std::int8_t>("i8", {2}, {-128, 127}));
    net.tensors.push_back(tensor_of<std::uint8_t>("u8", {1}, {255}));
    net.tensors.push_back(tensor_of<std::int32_t>("i32", {1, 1, 1}, {-2'000'000'000}));
    net.tensors.push_back(tensor_of<std::int64_t>("number of batches \xE2\x82\xAC", {}, {1LL << 40U}));
    net.tensors.push_back(tensor_of<std::uint8_t>("flags", {2}, {0, 1}));
    net.tensors.back().dtype = ry::Dtype::boolean;
    net.tensors.push_back(tensor_of<float>("nothing", {0, 3}, {}));
    ry::State half;
    half.tensors.push_back(tensor_of<ry::BFloat16>("bf16", {2}, {ry::BFloat16{1.5F}, ry::BFloat16{-2}}));
    ry::State optimizer;
    optimizer.tensors.push_back(
        piece_of(tensor_of<float>("momentum", {2, 2}, {1, 2, 3, 4}), rank == 0 ? 0 : 3, rank == 0 ? 3 : 4));
    const std::vector<ry::NamedState> parts{{"net", net}, {"half", half}, {"optimizer", optimizer}};
    contribution.add(parts, rank);
  }
  ry::CheckpointFolder{folder}.commit({}, contribution.parts());
}

void read(const fs::path& file) {
  for (const auto& tensor : ry::read_safetensors(file).tensors) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.count()) * ry::size_of(tensor.dtype));
    tensor.read(0, tensor.count(), bytes.data());
    std::string digits;
    for (const std::byte byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned>(byte));
    fmt::print("{}\t{}\t{}\t{}\n", tensor.name, ry::name_of(tensor.dtype), fmt::join(tensor.shape, ","), digits);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  argv[1] == std::string_view{"write"} ? write(argv[2]) : read(argv[2]);
  return 0;
}
