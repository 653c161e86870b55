// SPDX-License-Identifier: MIT
// How the GPUs of a process are found, on fakes of NVML and of the CUDA driver.
#include "railyard/core/detail/found_devices.hpp"

#include "support/catch.hpp"
#include "support/fake_gpus.hpp"

#include <chrono>
#include <csignal>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

namespace {

namespace ry = railyard;
using namespace std::chrono_literals;
using Catch::ContainsSubstring;
using railyard_test::FakeGpus;
using railyard_test::no_driver;
using railyard_test::no_nvml;
using railyard_test::Setting;
using railyard_test::visible;

[[nodiscard]] ry::detail::FoundDevices found(std::chrono::nanoseconds budget = 60s) {
  return ry::detail::find_devices(ry::Deadline::after(budget));
}

// "0 2" for the GPUs of these numbers, "1.0" for an instance of the second one.
[[nodiscard]] std::string devices_text(const ry::detail::FoundDevices& found) {
  std::string text;
  for (const auto& device : found.devices) {
    const int number = std::stoi(device.uuid.substr(4, 8), nullptr, 16);
    if (!text.empty()) text += ' ';
    text += device.is_instance ? fmt::format("{}.{}", number / 16, number % 16) : fmt::format("{}", number);
  }
  return text;
}

[[nodiscard]] std::string shown(const std::string& list) {
  const Setting setting = visible(list);
  return devices_text(found());
}

[[nodiscard]] std::string refusal(std::chrono::nanoseconds budget = 60s) {
  try {
    ry::detail::throw_too_few_devices("so many are needed", found(budget));
  } catch (const ry::ConfigError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("Devices: NVML tells how many there are, and what they are called") {
  const FakeGpus gpus{3};
  const auto all = found();
  CHECK(devices_text(all) == "0 1 2");
  CHECK(all.devices[1].uuid == "GPU-00000001-1234-5678-9abc-def012345678");
  CHECK(all.how == "NVML finds 3 GPUs, CUDA_VISIBLE_DEVICES is not set");
  CHECK_FALSE(all.are_instances());
  CHECK(ry::detail::sign_of_cuda().empty());
}

TEST_CASE("Devices: a GPU that this process may not open does not count") {
  const FakeGpus gpus{3};
  const Setting closed{"RAILYARD_FAKE_NVML_CLOSED", "1"};
  CHECK(devices_text(found()) == "0 2");
  CHECK(shown("1") == "2");  // CUDA counts those that it can open
}

TEST_CASE("Devices: indices in CUDA_VISIBLE_DEVICES show those, in that order, up to the first that names none") {
  const FakeGpus gpus{4};
  CHECK(shown("2,0") == "2 0");
  CHECK(shown(" 1 , 3") == "1 3");
  CHECK(shown("1gpu,2") == "1 2");
  CHECK(shown("0,-1,2") == "0");
  CHECK(shown("-1") == "");
  CHECK(shown("0,4,1") == "0");
  CHECK(shown("") == "");
  CHECK(shown("NoDevFiles") == "");
  CHECK(shown("0,,1") == "0");
  CHECK(shown("0,GPU-00000001") == "0");
  CHECK(shown("99999999999999999999") == "");
}

TEST_CASE("Devices: UUIDs in CUDA_VISIBLE_DEVICES may be cut off where they are still clear") {
  const FakeGpus gpus{4};
  CHECK(shown("GPU-00000002-1234-5678-9abc-def012345678,GPU-00000000") == "2 0");
  CHECK(shown("GPU-00000003,GPU-0000") == "3");
  CHECK(shown("GPU-00000003,1") == "3");
  CHECK(shown("GPU-ffff") == "");
}

TEST_CASE("Devices: a device that CUDA_VISIBLE_DEVICES names twice hides all") {
  const FakeGpus gpus{4};
  CHECK(shown("0,1,0") == "");
  CHECK(shown("GPU-00000001,GPU-00000001-1234") == "");
  const Setting setting = visible("0,0");
  CHECK_THAT(refusal(), ContainsSubstring("\"0\" in it names one a second time, which hides all"));
}

TEST_CASE("Devices: what CUDA_VISIBLE_DEVICES hides is told, and what ends the list") {
  const FakeGpus gpus{4};
  const Setting setting = visible("0,7,1");
  CHECK_THAT(refusal(),
             ContainsSubstring("so many are needed, and on host ") &&
                 ContainsSubstring("this process is shown 1 GPU (") &&
                 ContainsSubstring("NVML finds 4 GPUs, CUDA_VISIBLE_DEVICES is \"0,7,1\"; \"7\" in it names none of "
                                   "them, and ends the list") &&
                 ContainsSubstring("show this process more of them"));
}

TEST_CASE("Devices: of GPUs that MIG divides there are the instances") {
  const FakeGpus gpus{3};
  const Setting divided{"RAILYARD_FAKE_NVML_MIG", "1:2,2:0"};
  const auto all = found();
  CHECK(devices_text(all) == "1.0 1.1");
  CHECK(all.are_instances());
  CHECK_THAT(all.how, ContainsSubstring("NVML finds 3 GPUs, 2 of them divided by MIG"));
  CHECK(shown("0") == "0");
  CHECK(shown("1") == "1.0 1.1");
  CHECK(shown("2") == "");
  CHECK(shown("MIG-00000011-1234-5678-9abc-def012345678") == "1.1");
  CHECK(shown("MIG-00000010,MIG-00000011") == "1.0 1.1");
  CHECK(shown("MIG-00000010,GPU-00000000") == "1.0");
  CHECK(shown("MIG-GPU-00000001-1234-5678-9abc-def012345678/8/0") == "1.1");
}

TEST_CASE("Devices: without NVML the CUDA driver counts them in a child, and this process leaves CUDA alone") {
  const FakeGpus gpus{2};
  const Setting missing = no_nvml();
  const auto all = found();
  CHECK(all.count() == 2);
  CHECK_THAT(all.how, ContainsSubstring("the CUDA driver counts 2 GPUs") &&
                          ContainsSubstring("NVML (libnvidia-ml.so.1) cannot be loaded") &&
                          ContainsSubstring("RAILYARD_NVML_LIBRARY"));
  CHECK(ry::detail::sign_of_cuda().empty());
}

TEST_CASE("Devices: NVML that fails is passed over where the CUDA driver answers") {
  const FakeGpus gpus{2};
  const Setting failing{"RAILYARD_FAKE_NVML_ERROR", "4"};
  const auto all = found();
  CHECK(all.count() == 2);
  CHECK_THAT(all.how, ContainsSubstring("NVML says \"an error of the fake NVML\" (error 4)"));
}

TEST_CASE("Devices: libraries of another release than the loaded driver are told as what they are") {
  const FakeGpus gpus{2};
  const Setting nvml{"RAILYARD_FAKE_NVML_ERROR", "18"};
  const Setting cuda{"RAILYARD_FAKE_CUDA_ERROR", "803"};
  CHECK(found().count() == 0);
  CHECK_THAT(refusal(), ContainsSubstring("unsupported display driver") && ContainsSubstring("(error 803)") &&
                            ContainsSubstring("Driver/library version mismatch\" (error 18)") &&
                            ContainsSubstring("start the machine anew after an upgrade"));
}

TEST_CASE("Devices: where neither library is there, there are none, and the remedy is the driver") {
  const FakeGpus gpus{2};
  const Setting nvml = no_nvml();
  const Setting driver = no_driver();
  CHECK(found().count() == 0);
  CHECK_THAT(refusal(), ContainsSubstring("the CUDA driver (libcuda.so.1) cannot be loaded") &&
                            ContainsSubstring("nvidia-smi") && ContainsSubstring("--gpus all"));
}

TEST_CASE("Devices: a driver that does not answer is given up at the deadline") {
  const FakeGpus gpus{2};
  const Setting missing = no_nvml();
  const Setting hanging{"RAILYARD_FAKE_CUDA_INIT", "hang"};
  CHECK_THAT(refusal(200ms), ContainsSubstring("a child process that asks had no answer within 200 ms"));
}

TEST_CASE("Devices: a driver that crashes takes the child alone with it, and no handler of this program runs") {
  const FakeGpus gpus{2};
  const auto former = std::signal(SIGBUS, [](int) { ::_exit(3); });
  const Setting missing = no_nvml();
  const Setting crashing{"RAILYARD_FAKE_CUDA_INIT", "crash"};
  CHECK_THAT(refusal(), ContainsSubstring("a child process that asks was ended by signal 7"));
  std::signal(SIGBUS, former);
}

TEST_CASE("Devices: a process that has initialised CUDA is known, may count, and may not fork workers") {
  const FakeGpus gpus{2};
  CHECK_NOTHROW(ry::detail::refuse_to_fork_after_cuda());
  FakeGpus::use_cuda();
  CHECK_THROWS_WITH(ry::detail::refuse_to_fork_after_cuda(),
                    ContainsSubstring("has initialised CUDA (its driver answers cuDeviceGetCount())") &&
                        ContainsSubstring("torch::cuda::is_available()") && ContainsSubstring("Threads"));
  {
    const Setting missing = no_nvml();
    CHECK(found().count() == 2);
  }
  FakeGpus::forget_cuda();
  CHECK_NOTHROW(ry::detail::refuse_to_fork_after_cuda());
}
