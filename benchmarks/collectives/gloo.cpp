// SPDX-License-Identifier: MIT
// The contestant libgloo, by its own calls. Compiled with -O3, because its sum is a template that our flags compile.
#include "contestants.hpp"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace bench {
namespace {

class GlooMember : public Member {
 public:
  GlooMember(const std::string& folder, int rank, int size, const std::string& address) {
    gloo::transport::tcp::attr attr;
    attr.hostname = address;
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
#ifdef GLOO_SHARED_STORE
    context->connectFullMesh(std::make_shared<gloo::rendezvous::FileStore>(folder), device);
#else
    gloo::rendezvous::FileStore store{folder};
    context->connectFullMesh(store, device);
#endif
    context_ = context;
  }

  float* buffer(std::size_t count) override {
    options_.reset();
    float* data = memory_.take(count);
    options_ = std::make_unique<gloo::AllreduceOptions>(context_);
    options_->setOutput(data, count);
    using Sum = void (*)(void*, const void*, const void*, std::size_t);
    options_->setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
    return data;
  }

  void all_reduce(float* /*data*/, std::size_t /*count*/) override { gloo::allreduce(*options_); }

 private:
  std::shared_ptr<gloo::Context> context_;
  OwnMemory memory_;
  std::unique_ptr<gloo::AllreduceOptions> options_;
};

}  // namespace

std::unique_ptr<Member> join_gloo(const std::string& folder, int rank, int size, const std::string& address) {
  return std::make_unique<GlooMember>(folder, rank, size, address);
}

}  // namespace bench
