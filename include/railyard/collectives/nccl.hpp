// SPDX-License-Identifier: MIT
// The backend for NVIDIA's GPUs, by the NCCL and the CUDA runtime that it finds when it runs. Collectives room.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"
#include "railyard/collectives/detail/nccl_devices.hpp"
#include "railyard/collectives/detail/nccl_group.hpp"
#include "railyard/collectives/detail/nccl_library.hpp"
#include "railyard/collectives/detail/nccl_line.hpp"
#include "railyard/collectives/detail/nccl_staging.hpp"
#include "railyard/collectives/detail/rendezvous.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/found_devices.hpp"
#include "railyard/core/device_line.hpp"
#include "railyard/core/rank_connector.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is an operation of Nccl that has been put on a stream of the device.
class NcclWork {
 public:
  NcclWork(std::shared_ptr<detail::NcclGroup> group, detail::NcclGroup::Operation operation) noexcept
      : group_(std::move(group)), operation_(std::move(operation)) {}

  /// Says whether the device has done it. Never waits. Throws: CollectiveError if it never will have.
  [[nodiscard]] bool is_done() { return group_->is_done(operation_); }

  /// Waits until the device has done it. Whoever goes on on the same stream need not. Throws: CollectiveError.
  void wait(const Deadline& deadline) { group_->wait(operation_, deadline); }

 private:
  std::shared_ptr<detail::NcclGroup> group_;
  detail::NcclGroup::Operation operation_;
};
static_assert(Work<NcclWork>);

/// Joins GPUs, one for each rank, of one host or several. NCCL 2.18 or newer and the CUDA runtime are found when it
/// runs: LibTorch's own if it is loaded, else libnccl.so.2 and libcudart.so; RAILYARD_NCCL_LIBRARY and
/// RAILYARD_CUDART_LIBRARY name others.
///
/// Operations are put on Call::stream, where nullptr is CUDA's default stream of the rank's device, and return; only
/// the first between two ranks waits until NCCL has connected them. Failures after that are thrown by the Work, and by
/// every later call. Buffers lie on the rank's device. Those on the host are taken there and back, on a stream of their
/// own, before the call returns: for numbers of the host that go with training, not for large data.
///
/// Where NCCL falls short of the concept: it sums half types in their own precision, and it does not compare what the
/// ranks call. A disagreement that makes it hang is found and named; one that it lets pass (a smaller count here than
/// there, in some releases) is not.
class Nccl {
 public:
  static constexpr std::string_view name = "Nccl";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cuda;

  struct Options {
    /// Which of the GPUs that CUDA shows to this process; -1 for the one that the rank was given (World::device), or
    /// else that with its number on its host.
    int device = -1;
    /// How many GPUs check() asks for.
    int num_devices = 1;
    std::string nccl_library{};    ///< file of NCCL; if empty, see above
    std::string cudart_library{};  ///< file of the CUDA runtime; likewise
  };

  /// Throws: ConfigError if a library or a GPU is missing. Does not initialise CUDA, so that workers can be forked.
  static void check(const Options& options) {
    const detail::NcclLibrary nccl{options.nccl_library};
    const detail::CudaLibrary cuda{options.cudart_library};
    const auto found = detail::find_devices(Deadline::after(std::chrono::minutes{1}));
    if (found.count() >= options.num_devices) return;
    detail::throw_too_few_devices(
        detail::compose("Nccl: {} needed (Options::num_devices)",
                        options.num_devices == 1 ? "1 GPU is" : detail::compose("{} GPUs are", options.num_devices)),
        found);
  }

  /// Joins the group; the store must outlive the object. Ends with one sum of all ranks, as a test.
  /// Throws: CollectiveError that names the ranks which did not come or failed; ConfigError if this rank has no library
  /// or no GPU, or, on all ranks, if their releases of NCCL differ, or if what goes between hosts is to be encrypted.
  [[nodiscard]] static std::unique_ptr<Nccl> connect(const Options& options, const World& world, Store& store,
                                                     const Deadline& deadline) {
    detail::check_world(world);
    if (world.connector && world.connector->encrypts()) {
      throw ConfigError{
          "ScalingConfig::launch.tls (or RAILYARD_TLS) asks for TLS between hosts, and NCCL sends values by "
          "connections of its own, which cannot be encrypted: use Gloo, or leave TLS off where the network between the "
          "hosts is "
          "the job's alone"};
    }
    const std::string prefix = detail::enter_group(store, name, world);
    for (const std::string_view stage : {"card", "connected"}) detail::expect_each(store, prefix, stage, world);
    const auto say = [&](std::string_view stage, std::string_view text) {
      store.set(detail::stage_key(prefix, stage, world.rank), text);
    };
    std::unique_ptr<Nccl> backend;
    try {
      backend.reset(new Nccl{options, world, store, prefix});
    } catch (const std::exception& error) {
      say("card", std::string{failed_card} + error.what());
      throw;
    }
    say("card", detail::compose("{} {}", backend->nccl_.version, detail::NcclPeers::own_identity()));
    const auto identities = identities_in(detail::await_each(store, prefix, "card", world, deadline), world, deadline);
    try {
      backend->join(store, prefix, identities, deadline);
      say("connected", "");
    } catch (const CollectiveError& error) {
      say("connected", error.what());
      throw;
    } catch (const std::exception& error) {
      say("connected", error.what());
      throw CollectiveError{
          "connect",
          world.rank,
          {},
          detail::compose("{} (host {}, cuda:{}): {}", detail::place_text("connect", world.rank, world.size),
                          detail::host_name(), backend->device_, error.what())};
    }
    // Only now it is certain that the others have not failed: connect() succeeds everywhere or nowhere.
    detail::throw_if_failed(detail::await_each(store, prefix, "connected", world, deadline), world, deadline);
    return backend;
  }

  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  ~Nccl() {
    line_seen_.store(nullptr);
    line_.reset();  // while what it is the second line of is there
    // Freeing waits for the whole device. After a failure that may be for ever: the process's end frees it then.
    if (!group_->leave()) return;
    cuda_.free(word_);
    staging_.free();
  }

  /// Which GPU this rank uses.
  [[nodiscard]] Device device() const noexcept { return {DeviceKind::cuda, device_}; }

  NcclWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    const auto signature = arguments(data).all_reduce(data, op);
    return start(signature, call, {}, data, in_place, [&](const Launch& on) {
      return nccl_.all_reduce(on.out.data, on.out.data, data.count, dtype_of(data.dtype), op_of(op, data.dtype),
                              on.comm, on.stream);
    });
  }
  NcclWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    const auto signature = arguments(in).reduce_scatter(in, out, op);
    return start(signature, call, in, out, apart, [&](const Launch& on) {
      return nccl_.reduce_scatter(on.in.data, on.out.data, out.count, dtype_of(in.dtype), op_of(op, in.dtype), on.comm,
                                  on.stream);
    });
  }
  NcclWork broadcast(Buffer data, int root, const Call& call) {
    const auto signature = arguments(data).broadcast(data, root);
    return start(signature, call, {}, data, in_place, [&](const Launch& on) {
      return nccl_.broadcast(on.out.data, on.out.data, data.count, dtype_of(data.dtype), root, on.comm, on.stream);
    });
  }
  /// in may be this rank's part of out.
  NcclWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments(in).all_gather_in_place(in, out);
    return start(signature, call, in, out, apart, [&](const Launch& on) {
      return nccl_.all_gather(on.in.data, on.out.data, in.count, dtype_of(in.dtype), on.comm, on.stream);
    });
  }
  NcclWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    const auto signature = arguments(out).all_gather_uneven(in, out, counts);
    return start(signature, call, in, out, apart, [&](const Launch& on) {
      return detail::in_nccl_group(nccl_, [&](const auto& add) {
        std::size_t begin = 0;
        for (std::size_t rank = 0; rank < counts.size(); begin += counts[rank++]) {
          if (counts[rank] == 0) continue;
          add(nccl_.broadcast(on.in.data, at(on.out, begin), counts[rank], dtype_of(in.dtype), static_cast<int>(rank),
                              on.comm, on.stream));
        }
      });
    });
  }
  NcclWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments(in).gather(in, out, root);
    return start(signature, call, in, world_.rank == root ? out : Buffer{}, apart, [&](const Launch& on) {
      return detail::in_nccl_group(nccl_, [&](const auto& add) {
        add(nccl_.send(on.in.data, in.count, dtype_of(in.dtype), root, on.comm, on.stream));
        for (int rank = 0; world_.rank == root && rank < world_.size; ++rank) {
          add(nccl_.recv(slice(on.out, in.count, rank), in.count, dtype_of(in.dtype), rank, on.comm, on.stream));
        }
      });
    });
  }
  NcclWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments(out).scatter(in, out, root);
    return start(signature, call, world_.rank == root ? in : ConstBuffer{}, out, apart, [&](const Launch& on) {
      return detail::in_nccl_group(nccl_, [&](const auto& add) {
        for (int rank = 0; world_.rank == root && rank < world_.size; ++rank) {
          add(nccl_.send(slice(on.in, out.count, rank), out.count, dtype_of(out.dtype), rank, on.comm, on.stream));
        }
        add(nccl_.recv(on.out.data, out.count, dtype_of(out.dtype), root, on.comm, on.stream));
      });
    });
  }
  NcclWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments(in).all_to_all(in, out);
    const std::size_t count = in.count / static_cast<std::size_t>(world_.size);
    return start(signature, call, in, out, apart, [&](const Launch& on) {
      return detail::in_nccl_group(nccl_, [&](const auto& add) {
        for (int rank = 0; rank < world_.size; ++rank) {
          add(nccl_.send(slice(on.in, count, rank), count, dtype_of(in.dtype), rank, on.comm, on.stream));
          add(nccl_.recv(slice(on.out, count, rank), count, dtype_of(in.dtype), rank, on.comm, on.stream));
        }
      });
    });
  }
  /// The Work is done when all ranks' streams have come to it.
  NcclWork barrier(const Call& call) {
    const detail::Signature signature{.operation = detail::Operation::barrier};
    return start(signature, call, {}, {word_, 1, Dtype::i32, device()}, in_place, [&](const Launch& on) {
      return nccl_.all_reduce(word_, word_, 1, detail::NcclDtype::i32, detail::NcclOp::max, on.comm, on.stream);
    });
  }
  NcclWork send(ConstBuffer data, int peer, const Call& call) {
    const auto signature = arguments(data).send(data, peer);
    return start(signature, call, data, {}, apart, [&](const Launch& on) {
      return nccl_.send(on.in.data, data.count, dtype_of(data.dtype), peer, on.comm, on.stream);
    });
  }
  NcclWork receive(Buffer data, int peer, const Call& call) {
    const auto signature = arguments(data).receive(data, peer);
    return start(signature, call, {}, data, apart, [&](const Launch& on) {
      return nccl_.recv(on.out.data, data.count, dtype_of(data.dtype), peer, on.comm, on.stream);
    });
  }

  void abort(std::string_view reason) noexcept {
    group_->abort(reason);
    if (Line* line = line_seen_.load()) line->end(reason);
  }

  /// Returns the second line of operations: a communicator and a stream of its own, and, where the ranks are of one
  /// host, memory that they share for numbers of the host. All ranks call it. The first call connects them anew, which
  /// costs as much as connect(), and memory of the device for one communicator more.
  [[nodiscard]] DeviceLine* device_line(const Deadline& deadline) {
    if (!line_) {
      Options options{options_};
      options.device = device_;
      line_ =
          std::make_unique<Line>(cuda_, world_, *store_, *this, connect(options, world_, *store_, deadline), deadline);
      line_seen_.store(line_.get());
    }
    return line_.get();
  }

 private:
  using Library = detail::NcclLibrary;
  using Line = detail::NcclLine<Nccl>;
  friend Line;  // which ends what waits in its owner

  // What an operation is launched with.
  struct Launch {
    ConstBuffer in;
    Buffer out;
    detail::NcclComm* comm = nullptr;
    void* stream = nullptr;
  };
  // Whether an operation reads what is in out.
  static constexpr bool in_place = true;
  static constexpr bool apart = false;

  static constexpr char failed_card = '!';

  Nccl(const Options& options, const World& world, Store& store, const std::string& prefix)
      : nccl_(options.nccl_library),
        cuda_(options.cudart_library),
        options_(options),
        world_(world),
        store_(&store),
        device_(options.device >= 0 ? options.device
                : world.device >= 0 ? world.device
                                    : world.local_rank),
        staging_(cuda_, device()) {
    const int count = detail::count_devices_here(cuda_);
    if (device_ >= count) throw_too_few(device_ + 1, count);
    group_ = std::make_shared<detail::NcclGroup>(nccl_, cuda_, world, device_, store, prefix);
  }

  [[noreturn]] static void throw_too_few(int needed, int count) {
    throw ConfigError{detail::compose(
        "Nccl: {} GPUs are needed on host {} and there are {} ({}); start fewer workers there, or set Options::device "
        "where each process is shown a GPU of its own",
        needed, detail::host_name(), count, detail::visible_devices_text())};
  }

  // Reads what all ranks have said of themselves: the release of their NCCL, and who they are.
  static std::vector<std::string> identities_in(const std::vector<std::optional<std::string>>& cards,
                                                const World& world, const Deadline& deadline) {
    detail::throw_if_missing(cards, world, deadline);
    std::vector<std::optional<std::string>> failures;
    for (const auto& card : cards) failures.emplace_back(card->front() == failed_card ? card->substr(1) : "");
    detail::throw_if_failed(failures, world, deadline);
    const auto version_of = [&](std::size_t rank) { return std::atoi(cards[rank]->c_str()); };
    std::vector<std::string> identities;
    for (std::size_t rank = 0; rank < cards.size(); ++rank) {
      identities.push_back(cards[rank]->substr(cards[rank]->find(' ') + 1));
      if (version_of(rank) == version_of(0)) continue;
      throw ConfigError{detail::compose("Nccl: rank {} has NCCL {} and rank 0 has {}: install one release everywhere",
                                        rank, Library::version_text(version_of(rank)),
                                        Library::version_text(version_of(0)))};
    }
    return identities;
  }

  void join(Store& store, const std::string& prefix, const std::vector<std::string>& identities,
            const Deadline& deadline) {
    const auto throw_if_any_failed = [&] {
      std::vector<std::optional<std::string>> values;
      for (int rank = 0; rank < world_.size; ++rank) {
        values.emplace_back(detail::peek(store, detail::stage_key(prefix, "connected", rank)).value_or(""));
      }
      detail::throw_if_failed(values, world_, deadline);
    };
    const std::string id_key = prefix + "id";
    detail::NcclUniqueId id;
    if (world_.rank == 0) {
      group_->require(nccl_.get_unique_id(&id));
      store.set(id_key, {id.bytes, sizeof id.bytes});
    } else {
      const auto bytes = store.get(id_key, deadline);
      throw_if_any_failed();
      if (!bytes) throw Error{detail::compose("rank 0 gave no unique id of NCCL in {}", deadline.budget_text())};
      std::memcpy(id.bytes, bytes->data(), sizeof id.bytes);
    }
    group_->join(id, identities, deadline, throw_if_any_failed);
    test(deadline);
  }

  // A sum of 1 to size: connections that cannot carry anything are found here, and not in the first hour of training.
  void test(const Deadline& deadline) {
    {
      const detail::DeviceGuard guard{cuda_, device_};
      cuda_.require(cuda_.malloc(&word_, sizeof(std::int32_t)), "cudaMalloc");
    }
    std::int32_t sum = world_.rank + 1;
    all_reduce(buffer_of_value(sum), ReduceOp::sum, {.deadline = deadline}).wait(deadline);
    const std::int32_t expected = world_.size * (world_.size + 1) / 2;
    if (sum != expected) {
      throw Error{
          detail::compose("a test sum of all ranks is {} and should be {}: the GPUs do not see each other's "
                          "memory as they say; set NCCL_P2P_DISABLE=1",
                          sum, expected)};
    }
  }

  // Starts an operation where its buffers are. What is on the host goes to the device and comes back before this
  // returns.
  template <class Function>
  NcclWork start(const detail::Signature& signature, const Call& call, const ConstBuffer& in, const Buffer& out,
                 bool is_in_place, const Function& launch) {
    if (is_on_host(in) || is_on_host(out)) return start_from_host(signature, call, in, out, is_in_place, launch);
    check_device(signature, {in, out});
    return {group_, group_->start(signature, call, [&](detail::NcclComm* comm, void* stream) {
              return launch(Launch{in, out, comm, stream});
            })};
  }

  template <class Function>
  NcclWork start_from_host(const detail::Signature& signature, const Call& call, const ConstBuffer& in,
                           const Buffer& out, bool is_in_place, const Function& launch) {
    const detail::DeviceGuard guard{cuda_, device_};
    const detail::NcclStaging::Staged staged = staging_.take_in(in, out, is_in_place);
    auto operation = group_->start(signature, {.deadline = call.deadline, .stream = staging_.stream()},
                                   [&](detail::NcclComm* comm, void* stream) {
                                     return launch(Launch{staged.in, staged.out, comm, stream});
                                   });
    group_->wait(operation, call.deadline);
    staging_.give_out(staged, out);
    return {group_, std::move(operation)};
  }

  [[nodiscard]] static bool is_on_host(const ConstBuffer& buffer) noexcept {
    return buffer.count > 0 && buffer.device.kind == DeviceKind::cpu;
  }

  // Of an operation on buffers that all lie where this one does.
  [[nodiscard]] detail::Arguments arguments(const ConstBuffer& buffer) const noexcept {
    return {world_, buffer.device.kind};
  }

  void check_device(const detail::Signature& signature, std::initializer_list<ConstBuffer> buffers) const {
    for (const ConstBuffer& buffer : buffers) {
      if (buffer.count == 0 || buffer.device.index == device_) continue;
      throw ConfigError{detail::compose("{}: a buffer lies on cuda:{}; this rank's device is cuda:{}; nothing was sent",
                                        detail::place_text(detail::describe(signature), world_.rank, world_.size),
                                        buffer.device.index, device_)};
    }
  }

  // A bool is a byte of 0 or 1: any is their maximum, all their minimum.
  [[nodiscard]] static constexpr detail::NcclOp op_of(ReduceOp op, Dtype dtype) noexcept {
    using detail::NcclOp;
    if (dtype == Dtype::boolean) return op == ReduceOp::sum || op == ReduceOp::max ? NcclOp::max : NcclOp::min;
    switch (op) {
      case ReduceOp::average:
        return NcclOp::average;
      case ReduceOp::min:
        return NcclOp::min;
      case ReduceOp::max:
        return NcclOp::max;
      case ReduceOp::product:
        return NcclOp::product;
      case ReduceOp::sum:
        break;
    }
    return NcclOp::sum;
  }

  [[nodiscard]] static constexpr detail::NcclDtype dtype_of(Dtype dtype) noexcept {
    using detail::NcclDtype;
    switch (dtype) {
      case Dtype::f16:
        return NcclDtype::f16;
      case Dtype::bf16:
        return NcclDtype::bf16;
      case Dtype::f32:
        return NcclDtype::f32;
      case Dtype::f64:
        return NcclDtype::f64;
      case Dtype::i8:
        return NcclDtype::i8;
      case Dtype::i32:
        return NcclDtype::i32;
      case Dtype::i64:
        return NcclDtype::i64;
      case Dtype::u8:
      case Dtype::boolean:
        break;
    }
    return NcclDtype::u8;
  }

  // The place of an element, or of a rank's slice of count elements.
  [[nodiscard]] static void* at(const Buffer& buffer, std::size_t index) noexcept {
    return static_cast<std::byte*>(buffer.data) + index * size_of(buffer.dtype);
  }
  [[nodiscard]] static void* slice(const Buffer& buffer, std::size_t count, int rank) noexcept {
    return at(buffer, count * static_cast<std::size_t>(rank));
  }
  [[nodiscard]] static const void* slice(const ConstBuffer& buffer, std::size_t count, int rank) noexcept {
    return static_cast<const std::byte*>(buffer.data) + count * static_cast<std::size_t>(rank) * size_of(buffer.dtype);
  }

  detail::NcclLibrary nccl_;
  detail::CudaLibrary cuda_;
  Options options_;
  World world_;
  Store* store_;
  int device_;
  std::shared_ptr<detail::NcclGroup> group_{};
  detail::NcclStaging staging_;
  void* word_ = nullptr;  // on the device, for the barrier
  std::unique_ptr<Line> line_{};
  std::atomic<Line*> line_seen_{nullptr};  // by abort(), from another thread
};
static_assert(Backend<Nccl>);

}  // namespace railyard::inline v0_1
