// SPDX-License-Identifier: MIT
// The GPUs of this host as NVIDIA's management library tells them, which leaves CUDA alone. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/dynamic_library.hpp"
#include "railyard/core/error.hpp"

#include <optional>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a part of a GPU that MIG has divided.
struct GpuInstance {
  std::string uuid{};         ///< "MIG-", and digits
  std::string former_name{};  ///< as drivers before 470 called it; CUDA still knows it
};

/// Is a GPU that this process may open.
struct Gpu {
  std::string uuid{};       ///< "GPU-", and digits
  bool is_divided = false;  ///< MIG is on: CUDA uses its instances alone, of which there may be none
  std::vector<GpuInstance> instances{};
};

/// Is what NVML has told, or why it has not.
struct NvmlAnswer {
  std::vector<Gpu> gpus{};  ///< in the order of their PCI addresses
  std::string problem{};
  bool has_mismatch = false;  ///< the loaded driver and this library are of two releases
};

inline constexpr int nvml_success = 0;
inline constexpr int nvml_version_mismatch = 18;

class NvmlError final : public Error {
 public:
  NvmlError(const char* text, int code) : Error(compose("NVML says \"{}\" (error {})", text, code)), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

/// Is NVML, from nvmlInit to nvmlShutdown: it is no part of CUDA, and a process may be forked after it.
class Nvml {
 public:
  /// Throws: ConfigError if it cannot be loaded, NvmlError if it cannot begin.
  Nvml() {
    constexpr const char* names[] = {"libnvidia-ml.so.1"};
    const DynamicLibrary library{"NVML (libnvidia-ml.so.1)", {}, "RAILYARD_NVML_LIBRARY", "nvmlInit_v2", names};
    library.find("nvmlInit_v2", init_);
    library.find("nvmlShutdown", shutdown_);
    library.find("nvmlErrorString", error_string_);
    library.find("nvmlDeviceGetCount_v2", get_count_);
    library.find("nvmlDeviceGetHandleByIndex_v2", get_handle_);
    library.find("nvmlDeviceGetUUID", get_uuid_);
    has_instances_ = library.find_if_there("nvmlDeviceGetMigMode", get_mig_mode_) &&
                     library.find_if_there("nvmlDeviceGetMaxMigDeviceCount", get_max_instances_) &&
                     library.find_if_there("nvmlDeviceGetMigDeviceHandleByIndex", get_instance_) &&
                     library.find_if_there("nvmlDeviceGetGpuInstanceId", get_gpu_instance_id_) &&
                     library.find_if_there("nvmlDeviceGetComputeInstanceId", get_compute_instance_id_);
    require(init_());
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() { shutdown_(); }

  /// Returns those that this process may open: others are there for CUDA no more than for it.
  [[nodiscard]] std::vector<Gpu> gpus() const {
    unsigned count = 0;
    require(get_count_(&count));
    std::vector<Gpu> all;
    for (unsigned index = 0; index < count; ++index) {
      Handle handle = nullptr;
      if (get_handle_(index, &handle) != nvml_success) continue;
      if (auto uuid = uuid_of(handle))
        all.push_back({.uuid = std::move(*uuid)});
      else
        continue;
      unsigned is_on = 0, pending = 0;
      if (!has_instances_ || get_mig_mode_(handle, &is_on, &pending) != nvml_success || is_on == 0) continue;
      all.back().is_divided = true;
      all.back().instances = instances_of(handle, all.back().uuid);
    }
    return all;
  }

 private:
  using Handle = void*;

  [[nodiscard]] std::vector<GpuInstance> instances_of(Handle gpu, const std::string& gpu_uuid) const {
    unsigned most = 0;
    std::vector<GpuInstance> all;
    if (get_max_instances_(gpu, &most) != nvml_success) return all;
    for (unsigned index = 0; index < most; ++index) {
      Handle handle = nullptr;
      if (get_instance_(gpu, index, &handle) != nvml_success) continue;  // no instance has that number
      const auto uuid = uuid_of(handle);
      if (!uuid) continue;
      all.push_back({.uuid = *uuid});
      unsigned gpu_part = 0, compute_part = 0;
      if (get_gpu_instance_id_(handle, &gpu_part) != nvml_success) continue;
      if (get_compute_instance_id_(handle, &compute_part) != nvml_success) continue;
      all.back().former_name = compose("MIG-{}/{}/{}", gpu_uuid, gpu_part, compute_part);
    }
    return all;
  }

  [[nodiscard]] std::optional<std::string> uuid_of(Handle device) const {
    char text[96] = {};  // NVML_DEVICE_UUID_V2_BUFFER_SIZE
    if (get_uuid_(device, text, sizeof text) != nvml_success) return std::nullopt;
    return text;
  }

  void require(int code) const {
    if (code != nvml_success) throw NvmlError{error_string_(code), code};
  }

  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*get_count_)(unsigned*) = nullptr;
  int (*get_handle_)(unsigned, Handle*) = nullptr;
  int (*get_uuid_)(Handle, char*, unsigned) = nullptr;
  int (*get_mig_mode_)(Handle, unsigned*, unsigned*) = nullptr;
  int (*get_max_instances_)(Handle, unsigned*) = nullptr;
  int (*get_instance_)(Handle, unsigned, Handle*) = nullptr;
  int (*get_gpu_instance_id_)(Handle, unsigned*) = nullptr;
  int (*get_compute_instance_id_)(Handle, unsigned*) = nullptr;
  bool has_instances_ = false;
};

[[nodiscard]] inline NvmlAnswer ask_nvml() {
  try {
    return {.gpus = Nvml{}.gpus()};
  } catch (const NvmlError& error) {
    return {.problem = error.what(), .has_mismatch = error.code() == nvml_version_mismatch};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
