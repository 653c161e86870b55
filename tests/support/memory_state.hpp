// SPDX-License-Identifier: MIT
// Saved states in memory: copies that depend on nothing, and the whole of what all ranks have saved.
#pragma once

#include "railyard/core/stateful.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace railyard_test {

namespace ry = railyard;

using Bytes = std::shared_ptr<std::vector<std::byte>>;

/// Makes the tensor read elements [begin, end) of the whole from bytes, which hold them alone.
inline void read_from(ry::StateTensor& tensor, const Bytes& bytes, std::int64_t begin) {
  const auto width = static_cast<std::int64_t>(ry::size_of(tensor.dtype));
  tensor.read = [bytes, begin, width](std::int64_t from, std::int64_t to, std::byte* out) {
    if (from < to)
      std::memcpy(out, bytes->data() + (from - begin) * width, static_cast<std::size_t>((to - from) * width));
  };
}

/// Returns the bytes of a tensor, or of the piece that it is, read in two goes.
inline Bytes bytes_of(const ry::StateTensor& tensor) {
  const std::int64_t begin = tensor.is_piece ? tensor.begin : 0;
  const std::int64_t end = tensor.is_piece ? tensor.end : tensor.count();
  const auto width = ry::size_of(tensor.dtype);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(end - begin) * width);
  const std::int64_t middle = begin + (end - begin) / 3;
  tensor.read(begin, middle, bytes->data());
  tensor.read(middle, end, bytes->data() + static_cast<std::size_t>(middle - begin) * width);
  return bytes;
}

/// Returns the state as it is now, in memory of its own.
inline ry::State kept(ry::State state) {
  for (ry::StateTensor& tensor : state.tensors) read_from(tensor, bytes_of(tensor), tensor.is_piece ? tensor.begin : 0);
  return state;
}

/// Returns what the states of all ranks are together: what rank 0 has, and the pieces as whole tensors.
inline ry::State whole_of(const std::vector<ry::State>& by_rank) {
  ry::State whole;
  whole.values = by_rank.front().values;
  std::vector<std::pair<std::string, Bytes>> joined;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const ry::StateTensor& tensor : by_rank[rank].tensors) {
      if (!tensor.is_piece) {
        if (rank == 0) whole.tensors.push_back(tensor);
        continue;
      }
      const std::size_t width = ry::size_of(tensor.dtype);
      auto found = joined.begin();
      while (found != joined.end() && found->first != tensor.name) ++found;
      if (found == joined.end()) {
        const auto size = static_cast<std::size_t>(tensor.count()) * width;
        found = joined.insert(found, {tensor.name, std::make_shared<std::vector<std::byte>>(size)});
        ry::StateTensor all{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
        read_from(all, found->second, 0);
        whole.tensors.push_back(std::move(all));
      }
      tensor.read(tensor.begin, tensor.end, found->second->data() + static_cast<std::size_t>(tensor.begin) * width);
    }
  }
  return whole;
}

/// Is where ranks that are threads leave their states.
class Shelf {
 public:
  explicit Shelf(int size) : by_rank_(static_cast<std::size_t>(size)) {}
  void put(int rank, const ry::State& state) {
    const std::lock_guard lock{mutex_};
    by_rank_[static_cast<std::size_t>(rank)] = kept(state);
  }
  [[nodiscard]] ry::State whole() const { return whole_of(by_rank_); }

 private:
  std::mutex mutex_;
  std::vector<ry::State> by_rank_;
};

/// Takes the state of a part, and puts one back.
template <class T>
[[nodiscard]] ry::State taken(const T& part) {
  return kept(ry::StateAccess<T>::take(part));
}
template <class T>
void put(T& part, const ry::State& state) {
  ry::StateAccess<T>::put(part, state);
}

}  // namespace railyard_test
