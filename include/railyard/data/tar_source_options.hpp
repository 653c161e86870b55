// SPDX-License-Identifier: MIT
// How archives of samples are read. Data room.
#pragma once

#include "railyard/data/on_error.hpp"

#include "railyard/core/version.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how archives of samples are read.
struct TarSourceOptions {
  std::vector<std::string> bytes{};  ///< suffixes of files that become columns of u8, which differ in length
  std::vector<std::string> text{};  ///< suffixes of files that become columns of text. With neither, those of the first
                                    ///< sample: .txt, .text, .json, .cls and .csv are text, all others bytes
  std::string key{};                ///< the name of a column of what comes before the suffix; empty: there is none
  std::string label{};
  std::uint64_t max_member_bytes = std::uint64_t{1} << 30;
  OnError on_error = OnError::stop();  ///< a damaged archive is left out from where it is damaged, and counts as one
};

}  // namespace railyard::inline v0_1
