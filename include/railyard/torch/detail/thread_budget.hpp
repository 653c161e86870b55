// SPDX-License-Identifier: MIT
// Gives each worker its share of the cores for LibTorch's parallel loops. Torch room.
#pragma once

#include "railyard/workers/detail/cores.hpp"

#include "railyard/train/worker.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <dlfcn.h>

namespace railyard::inline v0_1 {

namespace detail {

// Finds functions of libraries that LibTorch itself uses. Asking LibTorch's own library first finds its OpenMP even
// where the program carries another one, and needs no -fopenmp of the user. To make one takes milliseconds, of every
// worker.
class TorchLibrary {
 public:
  TorchLibrary() noexcept {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&at::get_num_threads), &info) != 0 && info.dli_fname != nullptr) {
      library_ = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    }
  }
  TorchLibrary(const TorchLibrary&) = delete;
  TorchLibrary& operator=(const TorchLibrary&) = delete;
  ~TorchLibrary() {
    if (library_ != nullptr) dlclose(library_);
  }

  // Returns nullptr if there is none of that name.
  template <class Function>
  [[nodiscard]] Function* find(const char* name) const noexcept {
    void* found = library_ == nullptr ? nullptr : dlsym(library_, name);
    if (found == nullptr) found = dlsym(RTLD_DEFAULT, name);
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* library_ = nullptr;
};

// The share of one worker.
struct ThreadBudget {
  static constexpr std::string_view extension_name = "torch.thread_budget";
  int threads = 0;  // 0: not applied yet, or the user has decided
  bool applied = false;
  std::optional<TorchLibrary> used{};

  [[nodiscard]] const TorchLibrary& library() { return used ? *used : used.emplace(); }
};

// The user's own decision stands: OMP_NUM_THREADS is how one is made for every library at once.
[[nodiscard]] inline bool user_set_threads() { return std::getenv("OMP_NUM_THREADS") != nullptr; }

// Takes effect once per worker, before its first parallel loop. Only the calling thread's setting is changed:
// at::set_num_threads() would change every worker's that is a thread of this process. The first call of
// at::get_num_threads() makes LibTorch set up this thread, which would otherwise undo ours later.
inline void apply_thread_budget(Worker& worker) {
  auto& budget = worker.extension<ThreadBudget>();
  if (budget.applied) return;
  budget.applied = true;
  const int now = at::get_num_threads();
  worker.environment().set("libtorch", TORCH_VERSION);
  worker.environment().set("threads", now);
  if (user_set_threads()) return;
  budget.threads = std::max(1, usable_cores() / std::max(1, worker.local_world_size()));
  if (budget.threads >= now) return;  // never more than the user has asked LibTorch for
  if (auto* set = budget.library().find<void(int)>("omp_set_num_threads")) set(budget.threads);
  worker.environment().set("threads", at::get_num_threads());
}

// OpenBLAS has threads of its own, and one number of them per process. It is lowered where workers are threads, too:
// each of their products would wait for threads that another one's product has, which was seen to take thirty times as
// long.
inline void apply_thread_budget_to_process(Worker& worker) {
  auto& budget = worker.extension<ThreadBudget>();
  const int threads = budget.threads;
  if (threads == 0 || worker.local_world_size() == 1 || std::getenv("OPENBLAS_NUM_THREADS") != nullptr) return;
  auto* get = budget.library().find<int()>("openblas_get_num_threads");
  auto* set = budget.library().find<void(int)>("openblas_set_num_threads");
  if (get != nullptr && set != nullptr && get() > threads) set(threads);
}

}  // namespace detail

}  // namespace railyard::inline v0_1
