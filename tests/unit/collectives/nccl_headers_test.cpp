// SPDX-License-Identifier: MIT
// What Nccl declares of NCCL and CUDA, compared with their headers where they are installed. In a file of its own:
// CUDA's headers define macros.
#include "railyard/collectives/detail/nccl_library.hpp"

#include "support/catch.hpp"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#include <nccl.h>

namespace {

namespace ours = railyard::detail;

template <class Ours, class Theirs>
constexpr bool equal(Ours one, Theirs other) {
  return sizeof(one) == sizeof(other) && static_cast<int>(one) == static_cast<int>(other);
}

static_assert(equal(ours::NcclResult::success, ncclSuccess));
static_assert(equal(ours::NcclResult::unhandled_cuda_error, ncclUnhandledCudaError));
static_assert(equal(ours::NcclResult::system_error, ncclSystemError));
static_assert(equal(ours::NcclResult::internal_error, ncclInternalError));
static_assert(equal(ours::NcclResult::invalid_argument, ncclInvalidArgument));
static_assert(equal(ours::NcclResult::invalid_usage, ncclInvalidUsage));
static_assert(equal(ours::NcclResult::remote_error, ncclRemoteError));
static_assert(equal(ours::NcclResult::in_progress, ncclInProgress));
static_assert(equal(ours::NcclDtype::i8, ncclInt8) && equal(ours::NcclDtype::u8, ncclUint8));
static_assert(equal(ours::NcclDtype::i32, ncclInt32) && equal(ours::NcclDtype::i64, ncclInt64));
static_assert(equal(ours::NcclDtype::f16, ncclFloat16) && equal(ours::NcclDtype::bf16, ncclBfloat16));
static_assert(equal(ours::NcclDtype::f32, ncclFloat32) && equal(ours::NcclDtype::f64, ncclFloat64));
static_assert(equal(ours::NcclOp::sum, ncclSum) && equal(ours::NcclOp::product, ncclProd));
static_assert(equal(ours::NcclOp::max, ncclMax) && equal(ours::NcclOp::min, ncclMin));
static_assert(equal(ours::NcclOp::average, ncclAvg));
static_assert(sizeof(ours::NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(ours::NcclConfig) <= sizeof(ncclConfig_t));
static_assert(offsetof(ours::NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(ours::NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(ours::NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(ours::NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(ours::NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(ours::NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(ours::cuda_success == cudaSuccess && ours::cuda_not_ready == cudaErrorNotReady);
static_assert(ours::cuda_initialization_error == cudaErrorInitializationError);
static_assert(ours::cuda_event_disable_timing == cudaEventDisableTiming);
static_assert(ours::cuda_memcpy_default == cudaMemcpyDefault);

TEST_CASE("NcclConfig: starts as NCCL's own initialiser does") {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const ours::NcclConfig config;
  CHECK(config.magic == theirs.magic);
  CHECK(config.cga_cluster_size == theirs.cgaClusterSize);
  CHECK(config.net_name == theirs.netName);
  CHECK(config.split_share == theirs.splitShare);
}

}  // namespace
#endif
