// SPDX-License-Identifier: MIT
// Gives the parsers of a checkpoint whatever libFuzzer comes up with: they refuse it, or understand it in one way only.
#include "railyard/checkpoint/detail/manifest_text.hpp"
#include "railyard/checkpoint/detail/pieces.hpp"
#include "railyard/checkpoint/detail/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace ry = railyard;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// The header of a file of tensors, behind two bytes for the size of the data: each byte belongs to one tensor.
void read_tensors(std::string_view input) {
  if (input.size() < 2) return;
  const auto data_size =
      static_cast<std::uint64_t>(static_cast<unsigned char>(input[0])) * 256 + static_cast<unsigned char>(input[1]);
  std::uint64_t taken = 0;
  for (const auto& tensor : ry::detail::read_tensors_header(input.substr(2), data_size)) {
    require(tensor.begin <= tensor.end && tensor.end <= data_size);
    const auto count = static_cast<std::uint64_t>(ry::detail::checked_count(tensor.shape));
    require(count * ry::size_of(tensor.dtype) == tensor.end - tensor.begin);
    taken += tensor.end - tensor.begin;
  }
  require(taken == data_size);
}

// A manifest, given without the checksum that it begins with: what is understood is written in the same way again.
void read_manifest(std::string_view input) {
  std::string text{ry::detail::manifest_head};
  text.append(ry::detail::checksum_digits, '0').append(input);
  text.replace(ry::detail::manifest_head.size(), ry::detail::checksum_digits, ry::detail::manifest_checksum(text));
  const auto manifest = ry::detail::read_manifest(text);
  for (const auto& file : manifest.files) require(ry::detail::fault_of_path(file.name).empty());
  const auto written = ry::detail::manifest_text(manifest);
  require(ry::detail::manifest_text(ry::detail::read_manifest(written)) == written);
}

void read_states(std::string_view input) {
  const auto json = ry::detail::parse_json(input);
  const auto& parts = json.at("parts");
  for (const auto& part : parts.items()) {
    if (const auto* values = part.find("values"))
      require(ry::detail::read_values(*values).size() == values->names().size());
    if (const auto* pieces = part.find("pieces")) {
      for (const auto& place : ry::detail::read_piece_places(*pieces))
        require(place.begin >= 0 && place.begin <= place.end);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input{reinterpret_cast<const char*>(data) + 1, size - 1};
  try {
    if (data[0] == 't') read_tensors(input);
    if (data[0] == 'm') read_manifest(input);
    if (data[0] == 's') read_states(input);
  } catch (const ry::detail::Damage&) {
  }
  return 0;
}
