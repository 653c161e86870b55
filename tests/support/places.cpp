// SPDX-License-Identifier: MIT
#include "support/places.hpp"

namespace railyard_test {

std::string in_sources(const std::string& path) { return RAILYARD_TEST_SOURCES "/" + path; }

std::string path_of_fake(const std::string& name) { return RAILYARD_TEST_FAKES "/lib" + name + ".so"; }

}  // namespace railyard_test
