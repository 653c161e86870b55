// SPDX-License-Identifier: MIT
// For tests that name what is behind the public headers: where Railyard is compiled once, those do not show it, but
// this one, as any in a detail folder, does.
#pragma once

#include "railyard/core/detail/compose.hpp"
