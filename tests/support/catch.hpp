// SPDX-License-Identifier: MIT
// Lets the tests use Catch2 v2 and v3 alike.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
namespace Catch {
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
}  // namespace Catch
using Catch::ContainsSubstring;  // v2 declares Approx globally by itself
#endif
