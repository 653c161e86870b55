// SPDX-License-Identifier: MIT
// How often the host has waited for the device.
#pragma once

namespace bench {

/// Returns how many calls of the CUDA runtime by which the host waits this process has made so far, whoever made them.
[[nodiscard]] unsigned long host_waits();

}  // namespace bench
