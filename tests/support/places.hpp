// SPDX-License-Identifier: MIT
// Where files are that tests need. No other source is compiled with a path in it, so that what one clone has compiled
// serves the next one (cmake/RailyardDevelopment.cmake).
#pragma once

#include <string>

namespace railyard_test {

/// Returns the path of what is at `path` in the project's folder.
[[nodiscard]] std::string in_sources(const std::string& path);

/// Returns the path of a library of tests/fakes, such as "fake_nccl".
[[nodiscard]] std::string path_of_fake(const std::string& name);

}  // namespace railyard_test
