// SPDX-License-Identifier: MIT
// The key-value space of a launcher that speaks PMIx: mpirun of Open MPI, and srun --mpi=pmix. Workers room.
#pragma once

#include "railyard/workers/detail/key_value_space.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <dlfcn.h>

namespace railyard::inline v0_1 {
namespace detail {

// What pmix.h declares, as far as it is needed, so that it does not have to be there: the same since version 2, of
// which the library has its name. tests/unit/workers/pmix_space_test.cpp compares the two where the header is.
struct PmixProcess {
  char job[256] = {};
  std::uint32_t rank = 0;
};
struct PmixValue {
  enum Type : std::uint16_t { boolean = 1, string = 3, integer = 6 };

  std::uint16_t type = 0;
  union {
    bool flag;
    int number;
    char* text;
    std::uint64_t room[8] = {};  // more than any version has
  };
};
struct PmixInfo {
  char key[512] = {};
  std::uint32_t flags = 0;
  PmixValue value{};
};

/// Holds the functions of libpmix that are called.
struct PmixFunctions {
  static constexpr int success = 0;
  static constexpr std::uint8_t global = 3;  // who may see a value: all
  using Done = void (*)(int status, void* data);

  int (*init)(PmixProcess*, PmixInfo*, std::size_t) = nullptr;
  int (*finalize)(const PmixInfo*, std::size_t) = nullptr;
  int (*put)(std::uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const PmixProcess*, std::size_t, const PmixInfo*, std::size_t, Done, void*) = nullptr;
  int (*get)(const PmixProcess*, const char*, const PmixInfo*, std::size_t, PmixValue**) = nullptr;
  const char* (*explain)(int) = nullptr;

  /// Finds the library while the program runs, and keeps it for good. Throws: SpaceError if there is none.
  [[nodiscard]] static PmixFunctions load(const char* file = "libpmix.so.2") {
    void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw SpaceError{compose("PMIx cannot be loaded ({})", ::dlerror())};
    PmixFunctions functions;
    const auto find = [library](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr) throw SpaceError{compose("PMIx has no function {}: another version?", name)};
    };
    find("PMIx_Init", functions.init);
    find("PMIx_Finalize", functions.finalize);
    find("PMIx_Put", functions.put);
    find("PMIx_Commit", functions.commit);
    find("PMIx_Fence_nb", functions.fence);
    find("PMIx_Get", functions.get);
    find("PMIx_Error_string", functions.explain);
    return functions;
  }
};

/// Speaks to the launcher by libpmix, which has threads of its own from the constructor to leave(). Deadlines hold for
/// fences and, of at most a minute, for get(); how long the launcher may be silent otherwise is libpmix's own affair.
class PmixSpace final : public KeyValueSpace {
 public:
  /// process: as the launcher counts it. Throws: SpaceError if libpmix finds no launcher, or one that counts otherwise.
  PmixSpace(int process, const PmixFunctions& functions) : functions_(functions) {
    check("PMIx_Init", functions_.init(&own_, nullptr, 0));
    has_begun_ = true;
    if (own_.rank == static_cast<std::uint32_t>(process)) return;
    leave();
    throw SpaceError{
        compose("the launcher's PMIx calls this process {}, and its variables say {}", own_.rank, process)};
  }
  ~PmixSpace() override { leave(); }

  void put(const std::string& key, const std::string& value, const Deadline&) override {
    std::string text = value;
    PmixValue one;
    one.type = PmixValue::string;
    one.text = text.data();
    check("PMIx_Put", functions_.put(PmixFunctions::global, key.c_str(), &one));
  }

  void come_to_fence(const Deadline&) override {
    check("PMIx_Commit", functions_.commit());
    fence_ = std::make_shared<Fence>();
    PmixInfo collect = option("pmix.collect", PmixValue::boolean);
    collect.value.flag = true;
    PmixProcess everybody = own_;
    everybody.rank = UINT32_MAX - 1;
    // It may be called when nobody waits any more.
    auto for_call = std::make_unique<std::shared_ptr<Fence>>(fence_);
    const int status = functions_.fence(
        &everybody, 1, &collect, 1,
        [](int outcome, void* data) {
          const std::unique_ptr<std::shared_ptr<Fence>> fence{static_cast<std::shared_ptr<Fence>*>(data)};
          const std::lock_guard lock{(*fence)->mutex};
          (*fence)->outcome = outcome;
          (*fence)->changed.notify_all();
        },
        for_call.get());
    check("PMIx_Fence_nb", status);
    static_cast<void>(for_call.release());
  }
  [[nodiscard]] bool wait_at_fence(const Deadline& deadline) override {
    std::unique_lock lock{fence_->mutex};
    const auto has_outcome = [this] { return fence_->outcome.has_value(); };
    if (!fence_->changed.wait_until(lock, deadline.time(), has_outcome)) return false;
    check("PMIx_Fence_nb", *fence_->outcome);
    return true;
  }

  [[nodiscard]] std::optional<std::string> get(int process, const std::string& key, const Deadline& deadline) override {
    PmixProcess whose = own_;
    whose.rank = static_cast<std::uint32_t>(process);
    PmixInfo limit = option("pmix.timeout", PmixValue::integer);
    const auto remaining = std::chrono::ceil<std::chrono::seconds>(deadline.remaining());
    limit.value.number = static_cast<int>(std::clamp<std::int64_t>(remaining.count(), 1, 60));
    PmixValue* found = nullptr;
    if (functions_.get(&whose, key.c_str(), &limit, 1, &found) != PmixFunctions::success || found == nullptr) return {};
    const std::unique_ptr<PmixValue, void (*)(void*)> owner{found, std::free};
    if (found->type != PmixValue::string || found->text == nullptr) return {};
    const std::unique_ptr<char, void (*)(void*)> text{found->text, std::free};
    return std::string{found->text};
  }

  void leave() noexcept override {
    // Whoever ends without it is taken for one that has crashed.
    if (std::exchange(has_begun_, false)) functions_.finalize(nullptr, 0);
  }

 private:
  struct Fence {
    std::mutex mutex{};
    std::condition_variable changed{};
    std::optional<int> outcome{};
  };

  [[nodiscard]] static PmixInfo option(const char* key, PmixValue::Type type) {
    PmixInfo one;
    std::strncpy(one.key, key, sizeof one.key - 1);
    one.value.type = type;
    return one;
  }
  void check(const char* function, int status) const {
    if (status == PmixFunctions::success) return;
    throw SpaceError{compose("the launcher's PMIx: {} failed: {}", function, functions_.explain(status))};
  }

  PmixFunctions functions_;
  PmixProcess own_{};
  bool has_begun_ = false;
  std::shared_ptr<Fence> fence_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
