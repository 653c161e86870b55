// SPDX-License-Identifier: MIT
// Lines between ranks on the transport of libgloo, which proves nothing to anybody. Collectives room.
#pragma once

#include "railyard/collectives/detail/gloo_transport.hpp"
#include "railyard/collectives/detail/host_address.hpp"
#include "railyard/collectives/detail/mesh_lines.hpp"

#include "railyard/core/detail/signals.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is libgloo's full mesh: a thread for each object, in which SIGPIPE is blocked for good. Whoever calls has blocked it
/// as well.
class GlooLines final : public MeshLines {
 public:
  /// Throws: std::exception if the mesh does not come to be.
  GlooLines(const HostAddress& address, const World& world, Store& store, const std::string& prefix,
            const Deadline& deadline) {
    gloo::transport::tcp::attr attributes{};
    attributes.hostname = address.text;
    attributes.ai_family = address.family;
    std::shared_ptr<gloo::transport::Device> device;
    {
      const BlockSignals no_signals{deferrable_signals()};  // in the thread that the device starts
      device = gloo::transport::tcp::CreateDevice(attributes);
    }
    check_gloo_is_own(*reinterpret_cast<const void* const*>(device.get()));  // whose virtual functions are they?
    device_ = std::static_pointer_cast<gloo::transport::tcp::Device>(device);
    const GlooTicker ticker{*device_};
    alarm_ = std::make_unique<GlooAlarm>(*device_);
    context_ = std::make_shared<gloo::rendezvous::Context>(world.rank, world.size);
    context_->setTimeout(timeout(deadline));
#ifdef GLOO_SHARED_STORE
    context_->connectFullMesh(std::make_shared<GlooStore>(store, prefix + "mesh/", world.size, deadline), device);
#else
    GlooStore gloo_store{store, prefix + "mesh/", world.size, deadline};
    context_->connectFullMesh(gloo_store, device);
#endif
    post_canaries(world);
  }
  ~GlooLines() override {
    try {
      GlooTicker ticker{*device_};
      canaries_.clear();
      alarm_.reset();
      context_.reset();
      ticker.end_with(std::move(device_));
    } catch (const std::exception&) {  // no descriptor left for the ticker: members go the slow way
    }
  }

  [[nodiscard]] std::unique_ptr<Transfer> start(const void* from, std::size_t from_bytes, void* to,
                                                std::size_t to_bytes) override {
    return std::make_unique<GlooTransfer>(*this, from, from_bytes, to, to_bytes);
  }

  // Gloo tells those whose messages are under way that a connection is closed, and nobody else. So a receive that never
  // ends is posted to every rank. A wait that was aborted before it began reports an error, and waits for nothing.
  [[nodiscard]] bool is_closed(int rank) override {
    auto& canary = *canaries_[static_cast<std::size_t>(rank)];
    try {
      canary.abortWaitRecv();
      canary.waitRecv(nullptr, std::chrono::hours{1});
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  // Gloo has no such function, but a wait that times out closes all connections, which wakes all who wait for them.
  void close() noexcept override {
    try {
      char byte = 0;
      context_->createUnboundBuffer(&byte, 1)->waitRecv(nullptr, Milliseconds{0});
    } catch (const std::exception&) {  // the time-out, as intended
    }
  }

 private:
  using Milliseconds = std::chrono::milliseconds;
  using Wait = GlooAlarm::Wait;

  class GlooTransfer final : public Transfer {
   public:
    GlooTransfer(GlooLines& lines, const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes)
        : lines_(&lines) {
      // Gloo's buffers are written to or read from, as one pleases; this one is only read from.
      if (from_bytes > 0) source_ = lines.context_->createUnboundBuffer(const_cast<void*>(from), from_bytes);
      if (to_bytes > 0) target_ = lines.context_->createUnboundBuffer(to, to_bytes);
    }
    void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
      source_->send(peer, slot, offset, size_bytes);
      ++num_sends_;
    }
    void receive(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
      target_->recv(peer, slot, offset, size_bytes);
      ++num_receives_;
    }
    [[nodiscard]] bool wait(Time wake) override {
      lines_->set_alarm(wake);
      for (; num_receives_ > 0; --num_receives_) {
        if (!lines_->alarm_->wait(*target_, Wait::receive, longest)) return false;
      }
      for (; num_sends_ > 0; --num_sends_) {
        if (!lines_->alarm_->wait(*source_, Wait::send, longest)) return false;
      }
      return true;
    }

   private:
    GlooLines* lines_;
    std::unique_ptr<gloo::transport::UnboundBuffer> source_{};
    std::unique_ptr<gloo::transport::UnboundBuffer> target_{};
    int num_sends_ = 0;
    int num_receives_ = 0;
  };

  // Not so large that adding it to the clock overflows. The alarm comes before it: when Gloo's own timer runs out, as
  // it may while all are suspended, it closes all connections before the others can have been told why.
  static constexpr Milliseconds longest = std::chrono::hours{24 * 365};

  // Never 0, which fails at once.
  [[nodiscard]] static Milliseconds timeout(const Deadline& deadline) {
    const auto left = deadline.remaining();
    return left >= longest ? longest : std::chrono::ceil<Milliseconds>(left) + std::chrono::seconds{5};
  }

  void set_alarm(Time when) {
    if (std::exchange(alarm_time_, when) != when) alarm_->set(when);
  }

  void post_canaries(const World& world) {
    for (int rank = 0; rank < world.size; ++rank) {
      canaries_.push_back(context_->createUnboundBuffer(&canary_byte_, 1));
      if (rank != world.rank) canaries_.back()->recv(rank, canary_slot);
    }
  }

  static constexpr std::uint64_t canary_slot = 1;

  std::shared_ptr<gloo::transport::tcp::Device> device_{};
  std::unique_ptr<GlooAlarm> alarm_{};
  Time alarm_time_{};
  std::shared_ptr<gloo::rendezvous::Context> context_{};
  char canary_byte_ = 0;
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> canaries_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
