// SPDX-License-Identifier: MIT
// Makes sure that all ranks hold the same model, each its own, with equal weights and buffers. Torch room.
#pragma once

#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {

namespace detail {

struct NamedTensor {
  std::string name{};
  at::Tensor tensor{};
  bool is_parameter = true;
};

// Parameters first, then buffers, each in the order in which the module registered them.
[[nodiscard]] inline std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : module.named_parameters()) tensors.push_back({item.key(), item.value(), true});
  for (const auto& item : module.named_buffers()) tensors.push_back({item.key(), item.value(), false});
  return tensors;
}

// Tells of a model's tensors that are not where its worker computes. Throws: ConfigError if one is on another GPU.
inline void check_places(Worker& worker, const std::vector<NamedTensor>& tensors) {
  const Device home = worker.device();
  if (home.kind != DeviceKind::cuda) return;
  std::size_t num_on_cpu = 0;
  std::string_view first;
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.defined()) continue;
    const at::Device place = named.tensor.device();
    if (place.is_cuda() && place.index() != home.index) {
      throw ConfigError{compose(
          "prepare_model() on rank {}/{}: {} lies on {}, and this worker's GPU is cuda:{}: give the factory's model "
          "->to(ry::device(worker))",
          worker.rank(), worker.world_size(), named.name, place.str(), home.index)};
    }
    if (place.is_cpu() && num_on_cpu++ == 0) first = named.name;
  }
  if (num_on_cpu == 0) return;
  worker.warn(
      compose("prepare_model(): {} of the model's {} tensors, such as {}, lie on the CPU, and what is exchanged of "
              "them goes to "
              "the GPU and back in every step: give the factory's model ->to(ry::device(worker))",
              num_on_cpu, tensors.size(), first));
}

// Of a hash what ranks compare by sums: 16 bits, so that the sum of its square over a thousand ranks is exact in a
// double.
[[nodiscard]] constexpr std::uint64_t short_digest(std::uint64_t hash) noexcept { return hash & 0xFFFFU; }

// The elements as bytes in logical order, whatever the strides.
[[nodiscard]] inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().contiguous().reshape({-1}).view(at::ScalarType::Byte);
}

[[nodiscard]] inline std::int64_t bytes_in(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

[[nodiscard]] inline std::uint64_t hash_of(const std::vector<NamedTensor>& tensors) {
  std::uint64_t hash = 0;
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.defined() || named.tensor.numel() == 0) continue;
    const at::Tensor bytes = bytes_of(named.tensor.cpu());
    hash = quick_digest_of({static_cast<const std::byte*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())},
                           hash);
  }
  return hash;
}

// What ranks tell each other. It goes before the values: a rank that is at another place would take a size or an
// address for what it waits for itself.
enum class Topic : std::uint8_t {
  processes = 1,
  ended_models,
  models,
  options,
  owners,
  weights,
  optimizers,
  replica_weights,
  replica_shapes,
  replica_outputs,
};

// The user's call that tells of it.
[[nodiscard]] inline std::string_view call_of(Topic topic) {
  switch (topic) {
    case Topic::optimizers:
      return "prepare_optimizer";
    case Topic::replica_weights:
    case Topic::replica_shapes:
    case Topic::replica_outputs:
      return "replica_difference";
    default:
      return "prepare_model";
  }
}

template <class T>
[[nodiscard]] std::vector<T> gather_values(Worker& worker, const std::vector<T>& mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(worker.world_size()));
  worker.all_gather(buffer_of(mine), buffer_of(all));
  return all;
}

// Returns what all ranks tell of a topic. Throws: ConfigError on every rank if one of them is at another.
template <class T>
[[nodiscard]] std::vector<T> gather_values(Worker& worker, Topic topic, const std::vector<T>& mine) {
  std::vector<T> told{static_cast<T>(static_cast<int>(topic))};
  told.insert(told.end(), mine.begin(), mine.end());
  const auto all = gather_values(worker, told);
  std::vector<T> values;
  for (std::size_t begin = 0; begin < all.size(); begin += told.size()) {
    if (all[begin] != told[0]) {
      throw ConfigError{
          compose("{} on rank {}/{}: rank {} is at another call or at another model: all ranks must call "
                  "prepare_model(), prepare_optimizer() and replica_difference() equally often, in the same order",
                  call_of(topic), worker.rank(), worker.world_size(), begin / told.size())};
    }
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    values.insert(values.end(), first + 1, first + static_cast<std::ptrdiff_t>(told.size()));
  }
  return values;
}

[[nodiscard]] inline std::vector<std::string> gather_texts(Worker& worker, Topic topic, const std::string& mine) {
  const auto sizes = gather_values<std::int64_t>(worker, topic, {static_cast<std::int64_t>(mine.size())});
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  const std::vector<std::int8_t> in(mine.begin(), mine.end());
  std::vector<std::int8_t> out(total);
  worker.all_gather_uneven(buffer_of(in), buffer_of(out), counts);
  std::vector<std::string> texts;
  auto at = out.begin();
  for (const std::size_t count : counts) {
    texts.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return texts;
}

// Tells processes apart, also those of two hosts or containers that have the same id.
[[nodiscard]] inline std::int64_t process_token() {
  const std::string boot = boot_id();
  struct stat space {};
  const auto pid_space = stat("/proc/self/ns/pid", &space) == 0 ? static_cast<std::uint64_t>(space.st_ino) : 0;
  const std::uint64_t hash = digest_of(std::as_bytes(std::span{boot}), pid_space);
  return static_cast<std::int64_t>(mix_bits(hash ^ static_cast<std::uint64_t>(getpid())));
}

// Gradients are summed in the order of memory, which is another one where this text is.
[[nodiscard]] inline std::string order_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.is_contiguous()) return "";
  std::string text = " strides";
  for (const std::int64_t stride : tensor.strides()) text += compose(" {}", stride);
  return text;
}

[[nodiscard]] inline std::string describe(const NamedTensor& named) {
  return compose("{} {} {}{}{}", named.is_parameter ? "parameter" : "buffer", named.name, shape_of(named.tensor),
                 named.is_parameter && !named.tensor.requires_grad() ? " frozen" : "",
                 named.is_parameter ? order_of(named.tensor) : "");
}

[[nodiscard]] inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Where two descriptions part: the number of the first line that differs, and what it is on both ranks.
[[nodiscard]] inline std::pair<std::size_t, std::string> first_difference(const std::string& first, std::size_t rank,
                                                                          const std::string& other,
                                                                          int first_rank = 0) {
  const auto ours = lines_of(first);
  const auto theirs = lines_of(other);
  std::size_t at = 0;
  while (at < std::min(ours.size(), theirs.size()) && ours[at] == theirs[at]) ++at;
  const auto show = [at](const std::vector<std::string>& lines) {
    return at < lines.size() ? lines[at] : std::string{"nothing more"};
  };
  return {at, compose("\"{}\" on rank {} and \"{}\" on rank {}", show(theirs), static_cast<int>(rank) + first_rank,
                      show(ours), first_rank)};
}

// What the first rank has that has not the settings of the first of all, one a line; empty if there is none.
[[nodiscard]] inline std::string difference_of_settings(const std::vector<std::string>& texts, int first_rank = 0) {
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) return first_difference(texts[0], rank, texts[rank], first_rank).second;
  }
  return "";
}

// Says where two descriptions of tensors part: counts first, then the first tensor that differs.
[[nodiscard]] inline std::string difference(const std::string& first, std::size_t rank, const std::string& other) {
  const std::size_t num_ours = lines_of(first).size();
  const std::size_t num_theirs = lines_of(other).size();
  const std::string counts = num_ours == num_theirs
                                 ? std::string{}
                                 : compose("rank {} has {} tensors, rank 0 has {}; ", rank, num_theirs, num_ours);
  const auto [at, lines] = first_difference(first, rank, other);
  return compose("{}tensor {} is {}", counts, at, lines);
}

// Returns rank 0's numbers, of which other ranks may have more or fewer.
[[nodiscard]] inline std::vector<std::int64_t> numbers_of_first_rank(Worker& worker,
                                                                     std::vector<std::int64_t> numbers) {
  auto count = static_cast<std::int64_t>(numbers.size());
  worker.broadcast(buffer_of_value(count), 0);
  numbers.resize(static_cast<std::size_t>(count));
  worker.broadcast(buffer_of(numbers), 0);
  return numbers;
}

// Compares descriptions of tensors, one a line; throws the same error on every rank. what: whose they are.
inline void check_descriptions(Worker& worker, Topic topic, std::string_view what, const std::string& mine) {
  const auto texts = gather_texts(worker, topic, mine);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError{compose("{} on rank {}/{}: the ranks have different {}: {}. Make them alike on every rank",
                              call_of(topic), worker.rank(), worker.world_size(), what,
                              difference(texts[0], rank, texts[rank]))};
  }
}

// Compares counts, names, types and shapes; throws the same error on every rank.
inline void check_structure(Worker& worker, const std::vector<NamedTensor>& tensors) {
  std::string mine;
  for (const NamedTensor& named : tensors) mine += describe(named) + "\n";
  check_descriptions(worker, Topic::models, "models", mine);
}

// Compares what prepare_model() was told besides the model, in words; throws the same error on every rank.
inline void check_options_are_equal(Worker& worker, const std::string& mine) {
  if (worker.world_size() == 1) return;
  const auto texts = gather_texts(worker, Topic::options, mine);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError{
        compose("prepare_model on rank {}/{}: the ranks have different ModelOptions: rank {} has {}, rank "
                "0 has {}. Give the same on every rank",
                worker.rank(), worker.world_size(), rank, texts[rank], texts[0])};
  }
}

// Finds a parameter that two ranks of one process share: each would overwrite the other's gradients.
inline void check_ownership(Worker& worker, const std::vector<NamedTensor>& tensors) {
  std::vector<std::int64_t> mine{process_token()};
  for (const NamedTensor& named : tensors)
    mine.push_back(reinterpret_cast<std::intptr_t>(named.tensor.unsafeGetTensorImpl()));
  const auto all = gather_values(worker, Topic::owners, mine);
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::size_t>> places;  // (process, address), entry
  for (std::size_t entry = 0; entry < all.size(); ++entry) {
    const std::size_t token = entry - entry % mine.size();
    const std::size_t index = entry % mine.size();
    if (index == 0 || !tensors[index - 1].tensor.defined()) continue;
    places.push_back({{all[token], all[entry]}, entry});
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    const std::size_t one = places[i - 1].second / mine.size();
    const std::size_t other = places[i].second / mine.size();
    if (places[i - 1].first != places[i].first || one == other) continue;
    throw ConfigError{
        compose("prepare_model on rank {}/{}: ranks {} and {} are threads of one process and share "
                "\"{}\": the model was built outside of the training function. Pass a factory, which "
                "builds one per worker: prepare_model(worker, [] {{ return std::make_shared<Net>(); }})",
                worker.rank(), worker.world_size(), one, other, tensors[places[i].second % mine.size() - 1].name)};
  }
}

// Sends rank 0's values of a few tensors as one buffer.
inline void broadcast_piece(Worker& worker, const std::vector<at::Tensor>& piece) {
  constexpr std::int64_t alignment = 16;  // of every element type, so that a slice can be viewed as its elements
  std::vector<std::int64_t> offsets;
  std::int64_t size = 0;
  for (const at::Tensor& tensor : piece) {
    offsets.push_back(size);
    size += (bytes_in(tensor) + alignment - 1) / alignment * alignment;
  }
  const at::Tensor flat = at::zeros({size}, piece.front().options().dtype(at::ScalarType::Byte));
  for (std::size_t i = 0; i < piece.size(); ++i) {
    flat.narrow(0, offsets[i], bytes_in(piece[i])).copy_(bytes_of(piece[i]));
  }
  worker.broadcast(buffer_of(flat), 0);
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const at::Tensor values = flat.narrow(0, offsets[i], bytes_in(piece[i])).view(piece[i].scalar_type());
    piece[i].copy_(values.view(piece[i].sizes()));
  }
}

// Sends everything in pieces of bounded size: few calls for many small tensors, no second copy of a large model.
inline void broadcast_all(Worker& worker, const std::vector<NamedTensor>& tensors) {
  constexpr std::int64_t piece_bytes = std::int64_t{32} << 20;
  std::vector<at::Tensor> piece;
  std::int64_t size = 0;
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.defined() || named.tensor.numel() == 0) continue;
    if (!piece.empty() && (size > piece_bytes || piece.front().device() != named.tensor.device())) {
      broadcast_piece(worker, piece);
      piece.clear();
      size = 0;
    }
    piece.push_back(named.tensor.detach());
    size += bytes_in(named.tensor);
  }
  if (!piece.empty()) broadcast_piece(worker, piece);
}

[[nodiscard]] inline bool are_equal(Worker& worker, const std::vector<NamedTensor>& tensors) {
  const auto hashes =
      gather_values<std::int64_t>(worker, Topic::weights, {static_cast<std::int64_t>(hash_of(tensors))});
  return std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t hash) { return hash == hashes.front(); });
}

// Leaves every rank with rank 0's weights and buffers, or throws the same error on every rank.
inline void make_equal(Worker& worker, const std::vector<NamedTensor>& tensors) {
  if (worker.world_size() == 1) return;
  check_structure(worker, tensors);
  check_ownership(worker, tensors);
  if (are_equal(worker, tensors)) return;  // built from one seed: nothing to send
  broadcast_all(worker, tensors);
  if (!are_equal(worker, tensors)) {
    throw ConfigError{
        compose("prepare_model on rank {}/{}: weights and buffers still differ between the ranks after "
                "rank 0's were sent to all. Does another thread write to the model?",
                worker.rank(), worker.world_size())};
  }
}

}  // namespace detail

}  // namespace railyard::inline v0_1
