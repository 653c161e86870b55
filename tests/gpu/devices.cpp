// SPDX-License-Identifier: MIT
// On a machine with a GPU: whether NVML and our reading of CUDA_VISIBLE_DEVICES count what the CUDA driver counts, and
// whether a process that has initialised CUDA is known. Prints what differs, and returns 1 then; 77 without a GPU.
#include "railyard/core/detail/found_devices.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;

int main() {
  const auto deadline = [] { return ry::Deadline::after(std::chrono::minutes{1}); };
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const auto all = ry::detail::find_devices(deadline());
  fmt::print("{}\n", all.how);
  if (all.count() == 0 || all.devices.front().uuid.empty()) {
    fmt::print("skipped, as NVML has found no GPU; {}\n", all.remedy);
    return 77;
  }
  const std::string uuid = all.devices.front().uuid;
  const std::vector<std::string> lists{"",
                                       "0",
                                       "-1",
                                       "0,-1",
                                       "0,0",
                                       " 0",
                                       "0gpu",
                                       "0,,0",
                                       "NoDevFiles",
                                       "0,NoSuchGpu",
                                       uuid,
                                       uuid.substr(0, 12),
                                       uuid + "," + uuid,
                                       uuid + ",0",
                                       "0," + uuid,
                                       "1000"};
  int failures = 0;
  for (const std::string& list : lists) {
    ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), 1);
    const int ours = ry::detail::find_devices(deadline()).count();
    const auto driver = ry::detail::ask_cuda_driver(deadline());
    // The driver says that there is no device where it counts none.
    constexpr int no_device = 100;
    const bool has_answer = driver.problem.empty() || driver.code == no_device;
    if (has_answer && driver.count == (all.are_instances() ? std::min(ours, 1) : ours)) continue;
    ++failures;
    fmt::print("failed: CUDA_VISIBLE_DEVICES=\"{}\" shows {} by NVML, and the driver counts {} {}\n", list, ours,
               driver.count, driver.problem);
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const auto expect = [&failures](bool holds, const char* what) {
    if (holds) return;
    ++failures;
    fmt::print("failed: {}\n", what);
  };
  expect(ry::detail::sign_of_cuda().empty(), "counting leaves CUDA alone");
  int (*init)(unsigned) = nullptr;
  constexpr const char* names[] = {"libcuda.so.1"};
  ry::detail::DynamicLibrary{"the CUDA driver", {}, "RAILYARD_CUDA_LIBRARY", "cuInit", names}.find("cuInit", init);
  expect(init(0) == 0, "CUDA can be initialised here");
  expect(!ry::detail::sign_of_cuda().empty(), "a process that has initialised CUDA is known");
  if (failures == 0) fmt::print("{} lists are read as the driver reads them\n", lists.size());
  return failures == 0 ? 0 : 1;
}
