// SPDX-License-Identifier: MIT
// A FAKE of NVIDIA's management library (libnvidia-ml), for tests without a GPU. As the real one it answers between
// nvmlInit and nvmlShutdown alone.
//
// RAILYARD_FAKE_CUDA_DEVICES: how many GPUs there are (default 8); GPU i has the UUID GPU-0000000i-...
// RAILYARD_FAKE_NVML_MIG: "1:2,3:0", the GPUs that MIG divides, and how many instances each has; instance j of GPU i
//   has the UUID MIG-000000ij-...
// RAILYARD_FAKE_NVML_CLOSED: the GPU that this process may not open.
// RAILYARD_FAKE_NVML_ERROR: the code that nvmlInit returns.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int success = 0;
constexpr int uninitialized = 1;
constexpr int invalid_argument = 2;
constexpr int not_supported = 3;
constexpr int no_permission = 4;
constexpr int not_found = 6;
constexpr unsigned most_instances = 7;

std::atomic<int> num_inits{0};

unsigned number_of(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

// How many instances the GPU is divided into; -1 if it is whole.
int num_instances(unsigned gpu) {
  const char* text = std::getenv("RAILYARD_FAKE_NVML_MIG");
  for (; text != nullptr && *text != '\0'; text = std::strchr(text, ',')) {
    if (*text == ',') ++text;
    unsigned number = 0;
    int count = 0;
    if (std::sscanf(text, "%u:%d", &number, &count) == 2 && number == gpu) return count;
  }
  return -1;
}

// A handle is the number of the GPU and, from 1, that of its instance.
void* handle_of(unsigned gpu, unsigned instance) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>((gpu + 1) * 16 + instance));
}
unsigned gpu_of(void* handle) { return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(handle)) / 16 - 1; }
unsigned instance_of(void* handle) { return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(handle)) % 16; }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const unsigned error = number_of("RAILYARD_FAKE_NVML_ERROR", success);
  if (error == success) ++num_inits;
  return static_cast<int>(error);
}
int nvmlShutdown() {
  if (num_inits == 0) return uninitialized;
  --num_inits;
  return success;
}
const char* nvmlErrorString(int error) {
  return error == 18 ? "Driver/library version mismatch" : "an error of the fake NVML";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (num_inits == 0) return uninitialized;
  *count = number_of("RAILYARD_FAKE_CUDA_DEVICES", 8);
  return success;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (num_inits == 0) return uninitialized;
  if (index >= number_of("RAILYARD_FAKE_CUDA_DEVICES", 8)) return invalid_argument;
  if (index == number_of("RAILYARD_FAKE_NVML_CLOSED", 1000)) return no_permission;
  *device = handle_of(index, 0);
  return success;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  const unsigned instance = instance_of(device);
  const unsigned number = instance == 0 ? gpu_of(device) : gpu_of(device) * 16 + instance - 1;
  std::snprintf(text, size, "%s-%08x-1234-5678-9abc-def012345678", instance == 0 ? "GPU" : "MIG", number);
  return success;
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  if (std::getenv("RAILYARD_FAKE_NVML_MIG") == nullptr) return not_supported;
  *current = *pending = num_instances(gpu_of(device)) >= 0 ? 1 : 0;
  return success;
}
int nvmlDeviceGetMaxMigDeviceCount(void* /*device*/, unsigned* count) {
  *count = most_instances;
  return success;
}
// The last ones are there, so that numbers are missing.
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** instance) {
  const int count = num_instances(gpu_of(device));
  const int first = static_cast<int>(most_instances) - count;
  if (count <= 0 || static_cast<int>(index) < first) return not_found;
  *instance = handle_of(gpu_of(device), index - static_cast<unsigned>(first) + 1);
  return success;
}
int nvmlDeviceGetGpuInstanceId(void* instance, unsigned* id) {
  *id = 6 + instance_of(instance);
  return success;
}
int nvmlDeviceGetComputeInstanceId(void* /*instance*/, unsigned* id) {
  *id = 0;
  return success;
}

}  // extern "C"
