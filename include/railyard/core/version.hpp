// SPDX-License-Identifier: MIT
// The release number and what the compiler must offer. Core room: includes nothing of ours.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "Railyard needs C++20: add -std=c++20 (g++ 12, clang 14 or newer)."
#endif
#if !defined(__cpp_exceptions)
#error "Railyard reports every failure by exception: compile without -fno-exceptions."
#endif
#if !defined(__cpp_rtti)
#error "Railyard tells errors apart by their type: compile without -fno-rtti."
#endif
#if !defined(__linux__)
#error "Railyard runs on Linux only."
#endif
// After #error compilers go on, and would bury it under hundreds of others. At a file that is not there they stop.
#if __cplusplus < 202002L || !defined(__cpp_exceptions) || !defined(__cpp_rtti) || !defined(__linux__)
#include "stopped by the error above"
#endif

#define RAILYARD_VERSION_MAJOR 0
#define RAILYARD_VERSION_MINOR 1
#define RAILYARD_VERSION_PATCH 0

/// Everything lives in the inline namespace of its release, so that two releases linked into one program stay apart.
namespace railyard::inline v0_1 {

/// The release as text, by Semantic Versioning.
inline constexpr const char* version = "0.1.0";

}  // namespace railyard::inline v0_1
