// SPDX-License-Identifier: MIT
// Makes a loader from a dataset, a pair of tensors or a LibTorch dataset. Torch room.
#pragma once

#include "railyard/torch/detail/gpu_batches.hpp"
#include "railyard/torch/loader.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/data_stock.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/train/detail/worker_feed.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <torch/data/example.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

template <class D>
concept IsMapStyle = requires(D& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(c10::ArrayRef<std::size_t>(indices));
  dataset.size();
};

template <class D>
using BatchOf = std::decay_t<decltype(std::declval<D&>().get_batch(std::declval<c10::ArrayRef<std::size_t>>()))>;

template <class T>
inline constexpr bool is_example =
    std::is_same_v<T, torch::data::Example<>> || std::is_same_v<T, torch::data::TensorExample>;
template <class T>
inline constexpr bool is_loadable = is_example<T>;
template <class T>
inline constexpr bool is_loadable<std::vector<T>> = is_example<T>;

[[nodiscard]] inline std::pair<at::Tensor, at::Tensor> collate(torch::data::Example<> example) {
  return {std::move(example.data), std::move(example.target)};
}
[[nodiscard]] inline std::pair<at::Tensor, at::Tensor> collate(torch::data::TensorExample example) {
  return {std::move(example.data), {}};
}
template <class Example>
[[nodiscard]] std::pair<at::Tensor, at::Tensor> collate(std::vector<Example> examples) {
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> targets;
  for (Example& example : examples) {
    auto [one, target] = collate(std::move(example));
    data.push_back(std::move(one));
    if (target.defined()) targets.push_back(std::move(target));
  }
  return {at::stack(data), targets.empty() ? at::Tensor{} : at::stack(targets)};
}

[[nodiscard]] inline std::pair<at::Tensor, at::Tensor> select_rows(const std::pair<at::Tensor, at::Tensor>& tensors,
                                                                   std::span<const std::size_t> indices) {
  const at::Tensor rows = at::empty({static_cast<std::int64_t>(indices.size())}, at::ScalarType::Long);
  std::copy(indices.begin(), indices.end(), rows.data_ptr<std::int64_t>());
  const auto select = [&rows](const at::Tensor& tensor) {
    return at::index_select(tensor, 0, tensor.is_cpu() ? rows : rows.to(tensor.device()));
  };
  return {select(tensors.first), select(tensors.second)};
}

// Asks a LibTorch dataset for samples. What it throws comes with their numbers, and is a DataError unless the user has
// chosen another Error.
template <class D>
[[nodiscard]] std::pair<at::Tensor, at::Tensor> fetch_batch(D& dataset, std::span<const std::size_t> indices) {
  const auto say = [indices](const char* what) {
    const std::vector<std::size_t> all(indices.begin(), indices.end());
    return compose("the LibTorch dataset was asked for {} {}: {}", all.size() == 1 ? "sample" : "samples",
                   joined_first(all, 5), what);
  };
  try {
    return collate(dataset.get_batch(c10::ArrayRef<std::size_t>(indices.data(), indices.size())));
  } catch (const ConfigError& error) {
    throw ConfigError{say(error.what())};
  } catch (const DataError& error) {
    throw DataError{say(error.what())};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DataError{say(error.what())};
  } catch (...) {
    throw DataError{say("an exception that is no std::exception")};
  }
}

// Returns the indices of so many rows, from the first to the last.
[[nodiscard]] inline at::Tensor spread_rows(std::int64_t rows, std::int64_t count) {
  at::Tensor indices = at::empty({count}, at::ScalarType::Long);
  for (std::int64_t at = 0; at < count; ++at) indices.data_ptr<std::int64_t>()[at] = (rows - 1) * at / (count - 1);
  return indices;
}

// Throws: ConfigError if the options do not say what a batch is.
[[nodiscard]] inline BatchShares checked_shares(const Worker& worker, const LoaderOptions& options, bool is_divided) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError{compose("prepare_loader on rank {}/{}: {}", worker.rank(), worker.world_size(), what)};
  };
  const auto workers = static_cast<std::size_t>(worker.world_size());
  const bool is_global = options.global_batch_size > 0;
  if (is_global == (options.batch_size_per_worker > 0)) {
    fail(
        compose("global_batch_size is {} and batch_size_per_worker is {}: set exactly one of them, to at least 1; the "
                "first keeps training the same on any number of workers",
                options.global_batch_size, options.batch_size_per_worker));
  }
  if (is_global && options.global_batch_size < workers && !worker.is_elastic()) {
    fail(compose("a global_batch_size of {} leaves some of {} workers without a sample in every batch: use at least {}",
                 options.global_batch_size, workers, workers));
  }
  if (options.micro_batches == 0) fail("micro_batches is 0: a batch is given in at least one part");
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  if (options.batch_size_per_worker > most / workers) {
    fail(compose("a batch_size_per_worker of {} times {} workers is more than can be counted: use at most {}",
                 options.batch_size_per_worker, workers, most / workers));
  }
  const std::size_t of_all = is_global ? options.global_batch_size : options.batch_size_per_worker * workers;
  BatchShares shares{
      .global_batch_size = of_all, .micro_batches = options.micro_batches, .drop_last = options.drop_last};
  if (is_divided) {
    shares.rank = static_cast<std::size_t>(worker.rank());
    shares.world_size = workers;
  } else {
    shares.global_batch_size = std::max<std::size_t>(of_all / workers, 1);
  }
  if (const std::size_t largest = options.largest_micro_batch; largest > 0) {
    const std::size_t in_part = std::min(largest, most / shares.world_size) * shares.world_size;
    shares.micro_batches = std::max(shares.micro_batches, (shares.global_batch_size - 1) / in_part + 1);
  }
  return shares;
}

// Throws: ConfigError that names the options which are set and that loaders of this kind do not know. what: they go
// over. remedy: makes a Dataset of it.
inline void check_options_without_dataset(const Worker& worker, const LoaderOptions& options, std::string_view what,
                                          std::string_view remedy) {
  const LoaderOptions usual;
  std::vector<std::string> set;
  if (options.collate) set.emplace_back("collate");
  if (options.padding != usual.padding) set.emplace_back("padding");
  if (!options.bucket_by.empty()) set.emplace_back("bucket_by");
  if (options.bucket_window != usual.bucket_window) set.emplace_back("bucket_window");
  if (options.threads != usual.threads && options.threads != 0) set.emplace_back("threads");
  if (options.prefetch != usual.prefetch) set.emplace_back("prefetch");
  if (options.bound_bytes != usual.bound_bytes) set.emplace_back("bound_bytes");
  if (set.empty()) return;
  throw ConfigError{compose(
      "prepare_loader on rank {}/{}: LoaderOptions::{} {} for loaders of a railyard::Dataset, and this one goes "
      "over {}, which the loop reads by itself as it is: leave {} out, or {}",
      worker.rank(), worker.world_size(), joined(set, ", "), set.size() == 1 ? "is" : "are", what,
      set.size() == 1 ? "it" : "them", remedy)};
}

// Says which samples come in which batch, one thing a line: what all ranks must have given alike. A batch that they
// divide is cut into its micro-batches first, and each of these among them.
[[nodiscard]] inline std::string order_of(const LoaderOptions& options, const BatchShares& shares) {
  return compose("batch size: {}\n{}drop_last: {}\nshuffle: {}\nbucket_by: \"{}\"\nbucket_window: {}\n",
                 shares.global_batch_size,
                 shares.world_size > 1 ? compose("micro-batches of a batch: {}\n", shares.micro_batches) : "",
                 options.drop_last, options.shuffle, options.bucket_by, options.bucket_window);
}

// Says of a rank's own data what must be alike: how many batches there are, where that is known. How large they are may
// differ, for gradients are weighted with samples.
[[nodiscard]] inline std::string order_of_own(const BatchShares& shares, std::optional<std::uint64_t> num_samples) {
  if (!num_samples) return "";
  const std::uint64_t whole = *num_samples / shares.global_batch_size;
  const bool has_rest = !shares.drop_last && *num_samples % shares.global_batch_size > 0;
  return compose("batches of an epoch: {}\n", whole + (has_rest ? 1 : 0));
}

// num_samples: of an epoch, where that is known. is_indexed: the position of an epoch knows it as well. is_own: other
// ranks may read something else.
[[nodiscard]] inline Loader make_loader(Worker& worker, std::unique_ptr<BatchSource> source,
                                        std::optional<std::uint64_t> num_samples, bool is_indexed,
                                        const BatchShares& shares, const LoaderOptions& options,
                                        std::function<std::string()> take_stock, const std::string& order,
                                        bool is_own = false) {
  if (num_samples && *num_samples == 0) {
    throw ConfigError{
        compose("prepare_loader on rank {}/{}: the dataset is empty", worker.rank(), worker.world_size())};
  }
  if (num_samples && shares.drop_last && *num_samples < shares.global_batch_size) {
    throw ConfigError{compose(
        "prepare_loader on rank {}/{}: drop_last leaves none of {} samples, which do not fill a batch of {}: use "
        "smaller batches, or leave drop_last out",
        worker.rank(), worker.world_size(), *num_samples, shares.global_batch_size)};
  }
  const at::Device home = device(worker);
  if (takes_pinned_memory(home)) {
    source = std::make_unique<GpuBatches>(std::move(source), home, options.bound_bytes);
  }
  return Loader{{.worker = &worker,
                 .source = std::move(source),
                 .options = options,
                 .shares = shares,
                 .num_samples = num_samples,
                 .first = {worker.seed(), 0, options.shuffle, is_indexed ? num_samples : std::nullopt},
                 .take_stock = std::move(take_stock),
                 .order = is_own ? order_of_own(shares, num_samples)
                                 : order + (num_samples ? compose("samples: {}\n", *num_samples) : ""),
                 .is_own = is_own,
                 .home = home}};
}

// fetch: a Fetch or a FetchRange.
template <class F>
[[nodiscard]] Loader make_loader(Worker& worker, F fetch, std::size_t num_samples, const LoaderOptions& options,
                                 std::function<std::string()> take_stock = {}) {
  const BatchShares shares = checked_shares(worker, options, true);
  return make_loader(worker, std::make_unique<IndexedBatches>(std::move(fetch), shares), num_samples, true, shares,
                     options, std::move(take_stock), order_of(options, shares));
}

// Adds a tensor of samples; of a large one some, from the first to the last.
inline void take_stock_of(const at::Tensor& tensor, std::string_view name, DataStock& stock) {
  const std::string what = compose("{} of {} {}", name, shape_of(tensor), std::string{tensor.dtype().name()});
  const std::int64_t rows = tensor.size(0);
  if (tensor.layout() != at::kStrided || rows == 0) return stock.add_memory(what, std::uint64_t{0});
  const auto row_bytes = std::max<std::int64_t>(static_cast<std::int64_t>(tensor.nbytes()) / rows, 1);
  const auto most_rows = std::max<std::int64_t>(static_cast<std::int64_t>(most_stock_bytes) / row_bytes, 2);
  const at::NoGradGuard no_grad;
  at::Tensor seen = tensor.detach();
  if (rows > most_rows) seen = at::index_select(seen, 0, spread_rows(rows, most_rows).to(tensor.device()));
  seen = seen.contiguous().cpu();
  stock.add_memory(what, digest_of({static_cast<const std::byte*>(seen.data_ptr()), seen.nbytes()}));
}

// Throws: ConfigError on all ranks if they have not equally many samples, where each has a part of its own.
inline void check_equal_parts(Worker& worker, std::optional<std::uint64_t> num_samples) {
  const auto mine = static_cast<std::int64_t>(num_samples.value_or(0));
  std::int64_t bounds[2] = {mine, -mine};
  worker.all_reduce(buffer_of(bounds), ReduceOp::max);
  if (bounds[0] == -bounds[1]) return;
  throw ConfigError{
      compose("prepare_loader on rank {}/{}: the parts of the workers have between {} and {} samples, so that "
              "some would have no batch for steps of the others: let RunConfig::data.splitter make parts of one "
              "size, or leave it out",
              worker.rank(), worker.world_size(), -bounds[1], bounds[0])};
}

// Are a worker's ends through which it reads with others what each gets as a whole, by what it reads and how. They live
// as long as the worker, so that one that makes more loaders of it than others still meets them.
class WholeFeeds {
 public:
  static constexpr std::string_view extension_name = "torch.whole_feeds";
  static constexpr std::size_t most_feeds = 16;

  // Returns what is read by that name; nothing yet where it is new. Of more than so many, those that no loader has had
  // for longest go, for where the arguments of each epoch are others, they would pile up.
  [[nodiscard]] std::shared_ptr<HostFeed>& at(const std::string& what) {
    auto found = std::find_if(feeds_.begin(), feeds_.end(), [&what](const auto& feed) { return feed.first == what; });
    if (found == feeds_.end()) found = feeds_.insert(found, {what, nullptr});
    std::rotate(found, std::next(found), feeds_.end());
    for (std::size_t at = 0; feeds_.size() > most_feeds && at + 1 < feeds_.size();) {
      if (feeds_[at].second.use_count() > 1) {
        ++at;
      } else {
        feeds_.erase(feeds_.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    return feeds_.back().second;
  }
  [[nodiscard]] std::size_t size() const noexcept { return feeds_.size(); }

 private:
  std::vector<std::pair<std::string, std::shared_ptr<HostFeed>>> feeds_{};  // that was asked for last comes last
};

// Returns what lets the workers of a host read a stream once, or what each gets as a whole; nullptr where each reads
// what it needs by itself.
[[nodiscard]] inline std::shared_ptr<HostFeed> feed_for(Worker& worker, const Dataset& dataset,
                                                        const BatchShares& shares, const LoaderOptions& options,
                                                        bool reads_alone) {
  if (worker.local_world_size() == 1 || options.threads == 0) return nullptr;
  if (dataset.is_divided()) return dataset.is_indexed() ? nullptr : next_stream_feed(worker, options.bound_bytes);
  const auto operations = own_operations(dataset);
  if (!operations || (reads_alone && operations->keeps_count())) return nullptr;
  const std::string what = operations->keeps_count()
                               ? compose("{} {} {} {}", shares.global_batch_size, shares.micro_batches, options.shuffle,
                                         dataset.common()->name)
                               : compose("blocks {} {}", options.bound_bytes, dataset.common()->name);
  std::shared_ptr<HostFeed>& feed = worker.extension<WholeFeeds>().at(what);
  if (feed == nullptr) {
    feed = make_feed(worker, compose("whole/{}/{}", worker.world().node, std::hash<std::string>{}(what)),
                     options.bound_bytes);
  }
  return feed.use_count() > 1 ? nullptr : feed;  // one loader at a time has it
}

// Groups are of the size that the user gave, for the order must not depend on the number of workers.
[[nodiscard]] inline Dataset bucketed(const Dataset& dataset, const LoaderOptions& options) {
  const std::size_t group = std::max(options.global_batch_size, options.batch_size_per_worker);
  const std::size_t window = options.bucket_window > 0 ? options.bucket_window : 100 * group;
  return (options.shuffle ? dataset.shuffle() : dataset).bucket_by_length(options.bucket_by, group, window);
}

template <class D>
[[nodiscard]] std::size_t size_of_dataset(const Worker& worker, D& dataset) {
  const auto size = dataset.size();
  if constexpr (std::is_integral_v<std::decay_t<decltype(size)>>) {
    return static_cast<std::size_t>(size);
  } else {
    if (!size.has_value()) {
      throw ConfigError{
          compose("prepare_loader on rank {}/{}: the dataset does not know its size (size() is empty), so "
                  "it cannot be divided among workers: return the number of samples from size()",
                  worker.rank(), worker.world_size())};
    }
    return *size;
  }
}

}  // namespace detail

/// Makes a loader over a pair of tensors, data and target. Without shuffle, batches are views of them, as slices are:
/// whoever writes to one changes the dataset. Shapes: the first dimension of both counts the samples.
/// Throws: ConfigError if they differ in it, if the options do not name exactly one batch size, or if they set what is
/// for loaders of a Dataset.
[[nodiscard]] inline Loader prepare_loader(Worker& worker, std::pair<at::Tensor, at::Tensor> tensors,
                                           const LoaderOptions& options) {
  detail::check_options_without_dataset(worker, options, "a pair of tensors", "give from_tensors() of them");
  const auto& [data, target] = tensors;
  if (!data.defined() || !target.defined() || data.dim() == 0 || target.dim() == 0 || data.size(0) != target.size(0)) {
    throw ConfigError{
        detail::compose("prepare_loader on rank {}/{} was given data {} and target {}: the first dimension of "
                        "both must be the number of samples",
                        worker.rank(), worker.world_size(), detail::shape_of(data), detail::shape_of(target))};
  }
  const auto num_samples = static_cast<std::size_t>(data.size(0));
  const auto take_stock = [tensors] {
    detail::DataStock stock;
    detail::take_stock_of(tensors.first, "data", stock);
    detail::take_stock_of(tensors.second, "target", stock);
    return stock.text();
  };
  if (!options.shuffle) {
    const auto slice = [tensors = std::move(tensors)](detail::Range indices) {
      const auto begin = static_cast<std::int64_t>(indices.begin);
      const auto end = static_cast<std::int64_t>(indices.end);
      return std::pair{tensors.first.slice(0, begin, end), tensors.second.slice(0, begin, end)};
    };
    return detail::make_loader(worker, slice, num_samples, options, take_stock);
  }
  const auto fetch = [tensors = std::move(tensors)](std::span<const std::size_t> indices) {
    return detail::select_rows(tensors, indices);
  };
  return detail::make_loader(worker, fetch, num_samples, options, take_stock);
}

/// Makes a loader over a dataset, whose samples are read and made tensors by other threads while the loop computes. The
/// target of a batch is the label's column. Its data is the other columns of numbers: a single one as it is, several
/// side by side as floats. Texts, and samples that differ in length beside others, are in batch.tensor("name") and
/// batch.columns(). What cannot be read is thrown where its batch would come, with the sample's name or number. All
/// workers give the same dataset: of a stream, one worker of each host reads for all; who comes late reads by itself,
/// of which Result::warnings() tells. One worker of a host reads for all, too, what RunConfig::data.split does not
/// name, as far as the Trainer has it, and what take(), shuffle(), split(), mix() and the like make of it with the same
/// arguments: users' functions that are added in the worker are its own. Of that, workers may read what they like when
/// they like: they hold each other up for two seconds of an epoch at most, and hardly at all once one was waited for in
/// vain. The memory of a batch is used again once no tensor has it: clone() what is to live on as a bare pointer, or
/// goes to torch::save(), which writes all of that memory. Shapes: target (batch, shape of the label); data (batch,
/// shape of the column), or (batch, sum of widths) of float. Throws: ConfigError if options and dataset do not name
/// exactly one batch size, or shuffle a stream; in the loop also DataError, if no batch comes within
/// RunConfig::collective_timeout.
[[nodiscard]] inline Loader prepare_loader(Worker& worker, const Dataset& dataset, LoaderOptions options) {
  if (options.global_batch_size == 0 && options.batch_size_per_worker == 0) {
    options.global_batch_size = dataset.batch_size();
  }
  worker.keep_preprocessors(dataset);
  const bool is_divided = dataset.is_divided();
  const detail::BatchShares shares = detail::checked_shares(worker, options, is_divided);
  const std::string order = detail::order_of(options, shares);
  const Dataset ordered = options.bucket_by.empty() ? dataset : detail::bucketed(dataset, options);
  if (!options.bucket_by.empty()) options.shuffle = false;  // the dataset itself shuffles
  const auto num_samples = ordered.count();
  bool is_own = !is_divided && dataset.likeness() != detail::Likeness::as_given;
  bool reads_alone = detail::is_own_part(dataset);
  if (options.drives_step && !is_divided) {  // the only ones that all workers make at the same place, and can compare
    is_own = reads_alone = detail::is_own_part(worker, dataset);
    detail::check_equal_parts(worker, num_samples);
  }
  const auto warn = [&worker](const std::string& text) { worker.warn(text); };
  auto source = std::make_unique<detail::DatasetBatches>(
      ordered, options, shares, device(worker), detail::feed_for(worker, ordered, shares, options, reads_alone), warn);
  std::function<std::string()> take_stock;  // not of a part: with other workers it is another
  if (is_divided) {
    take_stock = [ordered] {
      detail::DataStock stock;
      ordered.node()->take_stock(stock);
      return stock.text();
    };
  }
  return detail::make_loader(worker, std::move(source), num_samples, ordered.is_indexed(), shares, options,
                             std::move(take_stock), order, is_own);
}

/// Makes a loader over a LibTorch dataset whose samples can be asked for by index (get_batch() or get()) and that knows
/// its size(); with or without .map(Stack<>()). Samples of a type of the user's are collated by .map() of a
/// torch::data::transforms::Collation<torch::data::Example<>, std::vector<Type>>. The loop reads it by itself. Throws:
/// ConfigError if size() is empty, or if the options set what is for loaders of a railyard::Dataset; in the loop, what
/// the dataset throws, with the samples that it was asked for: a DataError, unless that was another Error. Example:
/// ry::prepare_loader(worker, MNIST(path), {.global_batch_size = 64, .shuffle = true, .drives_step = true});
template <class D>
[[nodiscard]] Loader prepare_loader(Worker& worker, D dataset, const LoaderOptions& options) {
  static_assert(
      detail::IsMapStyle<D>,
      "prepare_loader(worker, dataset, options): dataset must be a railyard::Dataset, a std::pair of tensors, or a "
      "LibTorch dataset that is asked for samples by index (get_batch(ArrayRef<size_t>) and size()); streams and "
      "chunk datasets cannot be divided among workers.");
  if constexpr (detail::IsMapStyle<D>) {
    static_assert(
        detail::is_loadable<detail::BatchOf<D>>,
        "prepare_loader(worker, dataset, options): the dataset must yield torch::data::Example<> or TensorExample, "
        "alone or in a vector; end its chain of map() with torch::data::transforms::Stack<>(), or, where samples are "
        "of a "
        "type of your own, with a torch::data::transforms::Collation of yours that makes Example<> of them.");
    if constexpr (detail::is_loadable<detail::BatchOf<D>>) {
      detail::check_options_without_dataset(
          worker, options, "a LibTorch dataset",
          "give a Dataset::from_function() that calls get() of it, which is then called on several threads");
      const std::size_t num_samples = detail::size_of_dataset(worker, dataset);
      const auto shared = std::make_shared<D>(std::move(dataset));
      const auto fetch = [shared](std::span<const std::size_t> indices) {
        return detail::fetch_batch(*shared, indices);
      };
      return detail::make_loader(worker, fetch, num_samples, options);
    }
  }
}

}  // namespace railyard::inline v0_1
