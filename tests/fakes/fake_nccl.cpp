// SPDX-License-Identifier: MIT
// A FAKE of NCCL, for tests without a GPU, on the fake CUDA runtime beside it. Ranks are threads or processes of one
// host and meet in shared memory that the unique id names. As the real one it is asynchronous, does not answer at once
// on a communicator that never blocks, hangs where ranks disagree, and does not notice that one of them has died.
//
// RAILYARD_FAKE_NCCL_FAULT makes it fail, as kind:rank or kind:rank:number, where number counts the rank's operations
// from 1 (connect() does the first):
//   init_fail, init_stall: the rank's communicator fails, or is never ready
//   refuse, fail, stall: the operation is refused by the call, fails later, or is never done
// RAILYARD_FAKE_NCCL_VERSION is the version it says it is.
#include "fake_address.hpp"

#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

extern "C" int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data);
extern "C" void fake_cuda_use(void* stream, const void* memory, std::size_t size_bytes, int is_write);

namespace {

enum Result {
  success,
  unhandled_cuda_error,
  system_error,
  internal_error,
  bad_argument,
  bad_usage,
  remote,
  in_progress
};
enum Op { op_sum, op_product, op_max, op_min, op_average };

struct Channel {
  static constexpr std::uint64_t capacity = 1U << 16U;
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> read;
  char bytes[capacity];
};

struct Fault {
  std::string kind{};
  int rank = -1;
  int number = 0;

  static Fault read() {
    const char* const text = std::getenv("RAILYARD_FAKE_NCCL_FAULT");
    Fault fault;
    if (text == nullptr) return fault;
    const std::string all{text};
    const auto first = all.find(':');
    const auto second = std::min(all.find(':', first + 1), all.size());
    fault.kind = all.substr(0, first);
    fault.rank = std::atoi(all.c_str() + first + 1);
    if (second < all.size()) fault.number = std::atoi(all.c_str() + second + 1);
    return fault;
  }
};

// One message: what it belongs to, which both sides must agree on, then its bytes.
struct Transfer {
  int peer = 0;
  bool is_send = false;
  char* data = nullptr;
  std::uint64_t size = 0;
  std::uint64_t kind = 0;
  std::uint64_t moved = 0;  // the eight bytes of kind included
  std::uint64_t seen_kind = 0;
};

// Memory of the device that is written to beside what transfers move.
struct Reduced {
  const void* memory = nullptr;
  std::size_t size_bytes = 0;
};

struct Work {
  std::vector<Transfer> transfers{};
  std::vector<std::function<void()>> endings{};
  std::vector<Reduced> results{};
};

struct Comm {
  Comm(const char* id, int size_, int rank_)
      : name(std::string{"/railyard_fake_nccl_"} + id), size(size_), rank(rank_), fault(Fault::read()) {
    bytes = sizeof(std::atomic<int>) * 16 + sizeof(Channel) * static_cast<std::size_t>(size * size);
    const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
    memory = static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
    if (!is_at("init_fail", 0) && !is_at("init_stall", 0)) ++joined();
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  ~Comm() {
    ::munmap(memory, bytes);
    ::shm_unlink(name.c_str());
  }

  std::atomic<int>& joined() const { return *reinterpret_cast<std::atomic<int>*>(memory); }
  Channel& channel(int from, int to) const {
    auto* const channels = reinterpret_cast<Channel*>(memory + sizeof(std::atomic<int>) * 16);
    return channels[from * size + to];
  }
  bool is_at(const char* kind, int number) const {
    return fault.rank == rank && fault.number == number && fault.kind == kind;
  }

  std::string name;
  int size;
  int rank;
  Fault fault;
  std::size_t bytes = 0;
  char* memory = nullptr;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> error{success};
  std::string last_error{};
  int num_submitted = 0;
  std::atomic<int> num_done{0};
  int polls_until_launch = 0;
  std::function<void()> launch{};  // once they are over
};
using Handle = std::shared_ptr<Comm>;

// Moves what can be moved; returns whether anything was. A message of another kind is never taken: a hang.
bool progress(Comm& comm, Transfer& transfer) {
  const std::uint64_t total = transfer.size + sizeof transfer.kind;
  Channel& channel = transfer.is_send ? comm.channel(comm.rank, transfer.peer) : comm.channel(transfer.peer, comm.rank);
  const std::uint64_t written = channel.written;
  const std::uint64_t read = channel.read;
  const bool in_kind = transfer.moved < sizeof transfer.kind;
  char* const kind = reinterpret_cast<char*>(transfer.is_send ? &transfer.kind : &transfer.seen_kind);
  char* const data = fake::host_address(transfer.data);
  char* const place = in_kind ? kind + transfer.moved : data + (transfer.moved - sizeof transfer.kind);
  if (!in_kind && !transfer.is_send && transfer.seen_kind != transfer.kind) return false;
  const std::uint64_t left = (in_kind ? sizeof transfer.kind : total) - transfer.moved;
  const std::uint64_t at = (transfer.is_send ? written : read) % Channel::capacity;
  const std::uint64_t room = transfer.is_send ? Channel::capacity - (written - read) : written - read;
  const std::uint64_t count = std::min({left, room, Channel::capacity - at});
  if (count == 0) return false;
  if (transfer.is_send) {
    std::memcpy(channel.bytes + at, place, count);
    channel.written = written + count;
  } else {
    std::memcpy(place, channel.bytes + at, count);
    channel.read = read + count;
  }
  transfer.moved += count;
  return true;
}

// Does all transfers at once, but those between two ranks in one direction in their order.
bool exchange(Comm& comm, std::vector<Transfer>& transfers) {
  for (;;) {
    if (comm.is_aborted) return false;
    bool is_over = true;
    bool has_moved = false;
    std::vector<std::pair<int, bool>> busy;
    for (Transfer& transfer : transfers) {
      if (transfer.moved == transfer.size + sizeof transfer.kind) continue;
      is_over = false;
      const std::pair way{transfer.peer, transfer.is_send};
      if (std::find(busy.begin(), busy.end(), way) != busy.end()) continue;
      busy.push_back(way);
      has_moved = progress(comm, transfer) || has_moved;
    }
    if (is_over) return true;
    if (!has_moved) std::this_thread::sleep_for(std::chrono::microseconds{20});
  }
}

struct Task {
  Handle comm{};
  Work work{};
  int number = 0;
};

void run(void* data) {
  const std::unique_ptr<Task> task{static_cast<Task*>(data)};
  Comm& comm = *task->comm;
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::microseconds{50}); };
  while (comm.num_done != task->number - 1 && !comm.is_aborted) nap();  // of another stream
  if (comm.is_at("fail", task->number)) comm.error = remote;
  const bool hangs = comm.is_at("fail", task->number) || comm.is_at("stall", task->number);
  while (hangs && !comm.is_aborted) nap();
  if (!exchange(comm, task->work.transfers)) return;
  for (const auto& ending : task->work.endings) ending();
  comm.num_done = task->number;
}

// What a thread has asked for since ncclGroupStart.
struct Group {
  int depth = 0;
  Handle comm{};
  void* stream = nullptr;
  Work work{};
};
thread_local Group group;

Result submit() {
  const Handle comm = std::exchange(group.comm, nullptr);
  if (!comm) return success;
  auto* const task = new Task{comm, std::exchange(group.work, {}), ++comm->num_submitted};
  if (comm->is_at("refuse", task->number)) {
    delete task;
    comm->last_error = "the fake NCCL was told to refuse this";
    return bad_usage;
  }
  if (task->number > 1) {
    ::cudaLaunchHostFunc(group.stream, run, task);
    return success;
  }
  comm->polls_until_launch = 3;  // as the real one, which first has to connect the ranks
  comm->launch = [task, stream = group.stream] { ::cudaLaunchHostFunc(stream, run, task); };
  return in_progress;
}

Result add(Handle* handle, void* stream, Work work) {
  Comm& comm = **handle;
  if (comm.polls_until_launch > 0 || comm.joined() < comm.size) return bad_usage;         // the caller did not wait
  if (group.comm && (group.comm != *handle || group.stream != stream)) return bad_usage;  // more than is needed here
  group.comm = *handle;
  group.stream = stream;
  auto& transfers = group.work.transfers;
  transfers.insert(transfers.end(), work.transfers.begin(), work.transfers.end());
  for (auto& ending : work.endings) group.work.endings.push_back(std::move(ending));
  for (const Transfer& transfer : work.transfers) {
    ::fake_cuda_use(stream, transfer.data, transfer.size, transfer.is_send ? 0 : 1);
  }
  for (const Reduced& one : work.results) ::fake_cuda_use(stream, one.memory, one.size_bytes, 1);
  return group.depth > 0 ? success : submit();
}

constexpr std::array<std::size_t, 10> dtype_sizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

std::uint64_t kind_of(int operation, int dtype, std::size_t count, int detail) {
  std::uint64_t kind = static_cast<std::uint64_t>(operation);
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(dtype), static_cast<std::uint64_t>(count), static_cast<std::uint64_t>(detail)}) {
    kind = kind * 1000003U + part;
  }
  return kind;
}

Transfer send_to(int peer, const void* data, std::size_t size, std::uint64_t kind) {
  return {peer, true, static_cast<char*>(const_cast<void*>(data)), size, kind};
}
Transfer receive_from(int peer, void* data, std::size_t size, std::uint64_t kind) {
  return {peer, false, static_cast<char*>(data), size, kind};
}

template <class T, class Sum>
void reduce_as(const std::vector<char>& all, void* out, std::size_t count, int size, int op) {
  const auto* const in = reinterpret_cast<const T*>(all.data());
  for (std::size_t i = 0; i < count; ++i) {
    Sum value = static_cast<Sum>(in[i]);
    for (int rank = 1; rank < size; ++rank) {
      const Sum next = static_cast<Sum>(in[static_cast<std::size_t>(rank) * count + i]);
      if (op == op_sum || op == op_average) value = static_cast<Sum>(value + next);
      if (op == op_product) value = static_cast<Sum>(value * next);
      if (op == op_max) value = std::max(value, next);
      if (op == op_min) value = std::min(value, next);
    }
    if (op == op_average) value = static_cast<Sum>(value / static_cast<Sum>(size));
    static_cast<T*>(out)[i] = static_cast<T>(value);
  }
}

void reduce(const std::vector<char>& all, void* out, std::size_t count, int size, int dtype, int op) {
  using Reduce = void (*)(const std::vector<char>&, void*, std::size_t, int, int);
  static constexpr std::array<Reduce, 10> reduces{reduce_as<std::int8_t, std::int32_t>,
                                                  reduce_as<std::uint8_t, std::uint32_t>,
                                                  reduce_as<std::int32_t, std::int64_t>,
                                                  reduce_as<std::uint32_t, std::uint32_t>,
                                                  reduce_as<std::int64_t, std::int64_t>,
                                                  reduce_as<std::uint64_t, std::uint64_t>,
                                                  reduce_as<railyard::Float16, float>,
                                                  reduce_as<float, float>,
                                                  reduce_as<double, double>,
                                                  reduce_as<railyard::BFloat16, float>};
  reduces[static_cast<std::size_t>(dtype)](all, out, count, size, op);
}

// Everybody gives each rank the part at stride * rank; out becomes the reduction of what has come.
Work reduction(const Comm& comm, const void* in, void* out, std::size_t count, std::size_t stride, int dtype, int op,
               std::uint64_t kind) {
  const std::size_t size = count * dtype_sizes[static_cast<std::size_t>(dtype)];
  const auto all = std::make_shared<std::vector<char>>(size * static_cast<std::size_t>(comm.size));
  Work work;
  for (int rank = 0; rank < comm.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    work.transfers.push_back(send_to(rank, static_cast<const char*>(in) + index * stride, size, kind));
    work.transfers.push_back(receive_from(rank, all->data() + index * size, size, kind));
  }
  work.results.push_back({out, size});
  work.endings.push_back([=, ranks = comm.size] { reduce(*all, fake::host_address(out), count, ranks, dtype, op); });
  return work;
}

}  // namespace

extern "C" {

struct UniqueId {
  char bytes[128];
};

Result ncclGetVersion(int* version) {
  const char* const text = std::getenv("RAILYARD_FAKE_NCCL_VERSION");
  *version = text == nullptr ? 22809 : std::atoi(text);
  return success;
}
Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> number{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::string text = std::to_string(::getpid()) + "_" + std::to_string(++number) + "_" + std::to_string(now);
  *id = {};
  std::memcpy(id->bytes, text.data(), text.size());
  return success;
}
Result ncclCommInitRankConfig(Handle** comm, int size, UniqueId id, int rank, void* /*config*/) {
  *comm = new Handle{std::make_shared<Comm>(id.bytes, size, rank)};
  return in_progress;
}
Result ncclCommFinalize(Handle* /*comm*/) { return in_progress; }
Result ncclCommDestroy(Handle* comm) {
  delete comm;
  return success;
}
Result ncclCommAbort(Handle* comm) {
  (*comm)->is_aborted = true;
  delete comm;
  return success;
}
Result ncclCommGetAsyncError(Handle* handle, Result* result) {
  Comm& comm = **handle;
  *result = static_cast<Result>(comm.error.load());
  if (comm.is_at("init_fail", 0)) {
    comm.last_error = "Error while creating shared memory segment /dev/shm/nccl-fake: No space left on device";
    *result = system_error;
  } else if (comm.joined() < comm.size) {
    *result = in_progress;
  } else if (comm.polls_until_launch > 0) {
    *result = in_progress;
    if (--comm.polls_until_launch == 0) comm.launch();
  }
  return success;
}
const char* ncclGetErrorString(Result result) {
  static constexpr std::array names{"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return names[static_cast<std::size_t>(result)];
}
const char* ncclGetLastError(Handle* comm) { return comm == nullptr ? "" : (*comm)->last_error.c_str(); }
Result ncclGroupStart() {
  ++group.depth;
  return success;
}
Result ncclGroupEnd() { return --group.depth == 0 ? submit() : success; }

Result ncclAllReduce(const void* in, void* out, std::size_t count, int dtype, int op, Handle* comm, void* stream) {
  return add(comm, stream, reduction(**comm, in, out, count, 0, dtype, op, kind_of(1, dtype, count, op)));
}
Result ncclReduceScatter(const void* in, void* out, std::size_t count, int dtype, int op, Handle* comm, void* stream) {
  const std::size_t stride = count * dtype_sizes[static_cast<std::size_t>(dtype)];
  return add(comm, stream, reduction(**comm, in, out, count, stride, dtype, op, kind_of(2, dtype, count, op)));
}
Result ncclBroadcast(const void* in, void* out, std::size_t count, int dtype, int root, Handle* comm, void* stream) {
  const std::size_t size = count * dtype_sizes[static_cast<std::size_t>(dtype)];
  const std::uint64_t kind = kind_of(3, dtype, count, root);
  Work work;
  for (int rank = 0; (*comm)->rank == root && rank < (*comm)->size; ++rank) {
    if (rank != root || in != out) work.transfers.push_back(send_to(rank, in, size, kind));
  }
  if ((*comm)->rank != root || in != out) work.transfers.push_back(receive_from(root, out, size, kind));
  return add(comm, stream, std::move(work));
}
Result ncclAllGather(const void* in, void* out, std::size_t count, int dtype, Handle* comm, void* stream) {
  const std::size_t size = count * dtype_sizes[static_cast<std::size_t>(dtype)];
  const std::uint64_t kind = kind_of(4, dtype, count, 0);
  Work work;
  for (int rank = 0; rank < (*comm)->size; ++rank) {
    work.transfers.push_back(send_to(rank, in, size, kind));
    work.transfers.push_back(
        receive_from(rank, static_cast<char*>(out) + static_cast<std::size_t>(rank) * size, size, kind));
  }
  return add(comm, stream, std::move(work));
}
Result ncclSend(const void* data, std::size_t count, int dtype, int peer, Handle* comm, void* stream) {
  const std::size_t size = count * dtype_sizes[static_cast<std::size_t>(dtype)];
  return add(comm, stream, {{send_to(peer, data, size, kind_of(5, dtype, count, 0))}, {}, {}});
}
Result ncclRecv(void* data, std::size_t count, int dtype, int peer, Handle* comm, void* stream) {
  const std::size_t size = count * dtype_sizes[static_cast<std::size_t>(dtype)];
  return add(comm, stream, {{receive_from(peer, data, size, kind_of(5, dtype, count, 0))}, {}, {}});
}

}  // extern "C"
