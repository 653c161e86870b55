// SPDX-License-Identifier: MIT
// The few functions of NCCL and of the CUDA runtime that are called, found in a running program. Collectives room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/dynamic_library.hpp"
#include "railyard/core/error.hpp"

#include <climits>
#include <cstddef>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

// What nccl.h and cuda_runtime_api.h declare, so that neither has to be there. tests/unit/collectives/nccl_test.cpp
// compares the two where the headers are.
struct NcclComm;
struct NcclUniqueId {
  char bytes[128] = {};
};
enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};
enum class NcclDtype : int { i8 = 0, u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class NcclOp : int { sum = 0, product = 1, max = 2, min = 3, average = 4 };

/// Is ncclConfig_t as of 2.18: newer releases take the older size, and defaults for what has come since.
struct NcclConfig {
  static constexpr int undefined = INT_MIN;

  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xCAFEBEEFU;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
};

inline constexpr int cuda_success = 0;
inline constexpr int cuda_initialization_error = 3;
inline constexpr int cuda_not_ready = 600;
inline constexpr unsigned cuda_event_disable_timing = 2;
inline constexpr unsigned cuda_stream_non_blocking = 1;
inline constexpr int cuda_memcpy_default = 4;  // by the addresses: to and from the device, or on it

/// Is NCCL, 2.18 or newer.
struct NcclLibrary {
  explicit NcclLibrary(const std::string& path) {
    constexpr const char* names[] = {"libnccl.so.2"};
    const DynamicLibrary library{"Nccl: NCCL (libnccl.so.2)", path, "RAILYARD_NCCL_LIBRARY", "ncclGetVersion", names};
    library.find("ncclGetVersion", get_version);
    if (get_version(&version) != NcclResult::success || version < 21800) {
      throw ConfigError{compose("Nccl: this is NCCL {}; 2.18 or newer is needed", version_text(version))};
    }
    library.find("ncclGetUniqueId", get_unique_id);
    library.find("ncclCommInitRankConfig", comm_init_rank_config);
    library.find("ncclCommFinalize", comm_finalize);
    library.find("ncclCommDestroy", comm_destroy);
    library.find("ncclCommAbort", comm_abort);
    library.find("ncclCommGetAsyncError", comm_get_async_error);
    library.find("ncclGetErrorString", get_error_string);
    library.find("ncclGetLastError", get_last_error);
    library.find("ncclAllReduce", all_reduce);
    library.find("ncclReduceScatter", reduce_scatter);
    library.find("ncclBroadcast", broadcast);
    library.find("ncclAllGather", all_gather);
    library.find("ncclSend", send);
    library.find("ncclRecv", recv);
    library.find("ncclGroupStart", group_start);
    library.find("ncclGroupEnd", group_end);
  }

  [[nodiscard]] static std::string version_text(int version) {
    return compose("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  int version = 0;
  NcclResult (*get_version)(int*) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm**, int, NcclUniqueId, int, NcclConfig*) = nullptr;
  NcclResult (*comm_finalize)(NcclComm*) = nullptr;
  NcclResult (*comm_destroy)(NcclComm*) = nullptr;
  NcclResult (*comm_abort)(NcclComm*) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm*, NcclResult*) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclComm*) = nullptr;
  NcclResult (*all_reduce)(const void*, void*, std::size_t, NcclDtype, NcclOp, NcclComm*, void*) = nullptr;
  NcclResult (*reduce_scatter)(const void*, void*, std::size_t, NcclDtype, NcclOp, NcclComm*, void*) = nullptr;
  NcclResult (*broadcast)(const void*, void*, std::size_t, NcclDtype, int, NcclComm*, void*) = nullptr;
  NcclResult (*all_gather)(const void*, void*, std::size_t, NcclDtype, NcclComm*, void*) = nullptr;
  NcclResult (*send)(const void*, std::size_t, NcclDtype, int, NcclComm*, void*) = nullptr;
  NcclResult (*recv)(void*, std::size_t, NcclDtype, int, NcclComm*, void*) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
};

/// Is the CUDA runtime. Loading it does not initialise CUDA.
struct CudaLibrary {
  explicit CudaLibrary(const std::string& path) {
    constexpr const char* names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
    const DynamicLibrary library{"Nccl: the CUDA runtime (libcudart.so)", path, "RAILYARD_CUDART_LIBRARY",
                                 "cudaGetDeviceCount", names};
    library.find("cudaGetDeviceCount", get_device_count);
    library.find("cudaGetDevice", get_device);
    library.find("cudaSetDevice", set_device);
    library.find("cudaMalloc", malloc);
    library.find("cudaFree", free);
    library.find("cudaMemcpyAsync", memcpy_async);
    library.find("cudaStreamCreateWithFlags", stream_create);
    library.find("cudaStreamCreateWithPriority", stream_create_with_priority);
    library.find("cudaStreamWaitEvent", stream_wait_event);
    library.find("cudaStreamDestroy", stream_destroy);
    library.find("cudaEventCreateWithFlags", event_create);
    library.find("cudaEventRecord", event_record);
    library.find("cudaEventQuery", event_query);
    library.find("cudaEventDestroy", event_destroy);
    library.find("cudaGetLastError", get_last_error);
    library.find("cudaGetErrorString", get_error_string);
  }

  /// Throws: Error with CUDA's own words, if the code is one of failure.
  void require(int code, std::string_view what) const {
    if (code != cuda_success) throw Error{compose("{}: {} (CUDA error {})", what, get_error_string(code), code)};
  }

  int (*get_device_count)(int*) = nullptr;
  int (*get_device)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*memcpy_async)(void*, const void*, std::size_t, int, void*) = nullptr;
  int (*stream_create)(void**, unsigned) = nullptr;
  int (*stream_create_with_priority)(void**, unsigned, int) = nullptr;
  int (*stream_wait_event)(void*, void*, unsigned) = nullptr;
  int (*stream_destroy)(void*) = nullptr;
  int (*event_create)(void**, unsigned) = nullptr;
  int (*event_record)(void*, void*) = nullptr;
  int (*event_query)(void*) = nullptr;
  int (*event_destroy)(void*) = nullptr;
  int (*get_last_error)() = nullptr;
  const char* (*get_error_string)(int) = nullptr;
};

/// Makes a device the calling thread's, and at its end the one that was.
class DeviceGuard {
 public:
  /// Throws: Error if the device cannot be used.
  DeviceGuard(const CudaLibrary& cuda, int device) : cuda_(&cuda) {
    cuda.require(cuda.get_device(&former_), "cudaGetDevice");
    if (former_ != device) cuda.require(cuda.set_device(device), compose("cudaSetDevice({})", device));
    is_same_ = former_ == device;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (!is_same_) cuda_->set_device(former_);
  }

 private:
  const CudaLibrary* cuda_;
  int former_ = 0;
  bool is_same_ = true;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
