// SPDX-License-Identifier: MIT
// Compresses by zlib what tests of readers unpack.
#pragma once

#include <string>
#include <string_view>

#include <zlib.h>

/// window_bits: as deflateInit2() has them, which says what stands around the compressed bytes.
inline std::string deflated(std::string_view content, int window_bits, int level = 6) {
  std::string out(content.size() + content.size() / 1000 + 1000, '\0');
  z_stream state{};
  deflateInit2(&state, level, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  state.avail_in = static_cast<unsigned>(content.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<unsigned>(out.size());
  deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}
