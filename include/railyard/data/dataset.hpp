// SPDX-License-Identifier: MIT
// A dataset: where samples come from and what is done with them, read when they are needed. Data room.
#pragma once

#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/bucket_node.hpp"
#include "railyard/data/detail/cache_node.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/dataset_reading.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/joining_nodes.hpp"
#include "railyard/data/detail/mix_node.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/detail/source_node.hpp"
#include "railyard/data/detail/user_operations.hpp"
#include "railyard/data/detail/window_node.hpp"
#include "railyard/data/function_source.hpp"
#include "railyard/data/memory_source.hpp"
#include "railyard/data/preprocessor.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/float_bits.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Describes samples: their source, and operations on them. Costs nothing to copy and reads nothing until an
/// EpochReader or a loader goes over it. Operations return another Dataset and leave this one as it is.
///
/// What users' functions make of a sample must depend on nothing but the sample (and its SampleRandom): they are called
/// on several threads at once, in any order, and again where a run goes on. What they throw reaches the reader as a
/// DataError that names the operation and the sample.
///
/// A dataset is indexed when any of its samples can be computed alone: its source is, and what is done with it is
/// neither filter(), flat_map(), mix(), shuffle_window(), bucket_by_length() nor a repeat() without end. Workers then
/// compute only their own samples, and a run goes on at once anywhere. Of others one worker of each host goes through
/// the stream, where loaders with threads read it, and hands the others theirs through memory that they share;
/// elsewhere each worker does. So it is with all samples of a dataset of the Trainer that each worker gets as a whole,
/// indexed or not, unless they lie ready in memory or as arrays in files. The operations at its end that make one
/// sample of one are done by each worker for its own samples alone. A run that goes on reads the last block again,
/// which is a 32nd of the reader's bound or 4096 samples, and of a shuffle_window() or bucket_by_length() its window;
/// of files compressed by gzip about 4 MiB of what they hold besides, of those by zstd the last frame. A generator of
/// the user's makes all before it again, unless it has a state (GeneratorSource).
class Dataset {
 public:
  /// Makes a dataset of a source. A source that has a label() gives it to the dataset.
  template <class S>
  requires(!std::same_as<S, Dataset> && DatasetSource<S>)  // the first, or copying would ask for itself
      explicit Dataset(S source)
      : Dataset(std::make_shared<const detail::SourceNode<S>>(source), label_of(source)) {}

  // What makes datasets is a template even where nothing depends on one: so a file compiles only what it uses of it.

  /// Makes a dataset of columns in memory. Throws: ConfigError if they are not all as long.
  /// Example: ry::Dataset::from_columns({{"x", std::vector<float>{1, 2}}, {"y", std::vector<std::int64_t>{0, 1}}});
  template <class = void>
  [[nodiscard]] static Dataset from_columns(std::vector<NamedColumn> columns) {
    return Dataset{MemorySource{std::move(columns)}};
  }
  /// Makes a dataset of a function that makes any of its samples: function(std::uint64_t id, SampleWriter& out).
  template <class = void>
  [[nodiscard]] static Dataset from_function(Schema schema, std::uint64_t count,
                                             SampleFunctionSource::Function function) {
    return Dataset{SampleFunctionSource{std::move(schema), count, std::move(function)}};
  }
  /// Makes a dataset of a function that makes generators: each gives all samples in turn by bool(SampleWriter& out),
  /// and false at the end. Of generators that have a state a run goes on with that: see GeneratorSource.
  template <detail::BeginsGenerator Begin>
  [[nodiscard]] static Dataset from_generator(Schema schema, Begin begin) {
    detail::check_generators<Begin>();
    return Dataset{GeneratorSource{std::move(schema), std::move(begin)}};
  }
  /// The same of generators that never end: each gives samples in turn by function(SampleWriter& out).
  template <class Begin>
  [[nodiscard]] static Dataset from_endless_generator(Schema schema, Begin begin) {
    detail::check_generators<Begin>();
    return Dataset{GeneratorSource::endless(std::move(schema), std::move(begin))};
  }

  [[nodiscard]] const Schema& schema() const noexcept { return *node_->schema(); }
  /// The number of samples of an epoch, or nothing where that is known only at the end.
  [[nodiscard]] std::optional<std::uint64_t> count() const { return node_->count(); }
  /// Whether any sample can be computed alone; see above.
  [[nodiscard]] bool is_indexed() const { return node_->is_indexed(); }
  /// Whether it is known to have no end: it was made so, or repeat() was called without a number, and nothing after it
  /// ends it. What needs an end refuses it then. Of other generators nobody knows: what reads one to its end tells in
  /// words that it is still at it.
  [[nodiscard]] bool is_endless() const { return node_->ending() == detail::Ending::never; }
  /// The source and the operations, as messages show them.
  [[nodiscard]] std::string describe() const { return node_->describe(); }
  /// How many damaged samples its sources have left out (OnError) of what this process has read so far. A loader tells
  /// of them in Result::warnings().
  [[nodiscard]] std::uint64_t skipped() const {
    detail::SkipCounts counts;
    node_->count_skipped(counts);
    std::uint64_t sum = 0;
    for (const auto& [source, skipped] : counts) sum += skipped.count;
    return sum;
  }
  /// The name that the Trainer has the dataset by, of which this was made; empty if there is none, as of what joins
  /// datasets of several names.
  [[nodiscard]] const std::string& name() const noexcept { return reading_.name; }
  /// The name of the column that a model is to predict; empty if there is none.
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  /// Throws: ConfigError if there is no such column.
  [[nodiscard]] Dataset with_label(std::string name) const {
    checked("with_label", [&] { return schema().index_of(name); });
    Dataset result = *this;
    result.label_ = std::move(name);
    return result;
  }
  /// Whether a loader gives each worker its share of the samples, as it does by default, or all of them.
  [[nodiscard]] bool is_divided() const noexcept { return reading_.is_divided; }
  /// Returns the dataset of which loaders give all samples to each worker, which may have a part of its own.
  [[nodiscard]] Dataset undivided() const {
    Dataset result = *this;
    result.reading_.is_divided = false;
    result.reading_.likeness = detail::Likeness::none;
    result.reading_.common = nullptr;
    return result;
  }
  /// Returns the dataset of which loaders and readers give batches of so many samples, all workers together, unless
  /// their options name a size. Operations do not see batches, and keep the size, but for split() and what joins
  /// datasets. Example: {{"train", digits.batch(64).prefetch(16)}} for the Trainer
  [[nodiscard]] Dataset batch(std::size_t samples) const {
    Dataset result = *this;
    result.reading_.batch_size = samples;
    return result;
  }
  /// What batch() has said; 0 if nothing.
  [[nodiscard]] std::size_t batch_size() const noexcept { return reading_.batch_size; }
  /// Returns the dataset of which loaders and readers read so many batches ahead at most, unless their options say so.
  [[nodiscard]] Dataset prefetch(std::size_t batches) const {
    Dataset result = *this;
    result.reading_.batches_ahead = batches;
    return result;
  }
  /// What prefetch() has said; 8 if nothing.
  [[nodiscard]] std::size_t batches_ahead() const noexcept { return reading_.batches_ahead; }

  /// Makes one sample of each: function(const Sample& in, SampleWriter& out[, SampleRandom&]). Columns that it does not
  /// set stay as they are.
  /// Example: dataset.map([](const ry::Sample& in, ry::SampleWriter& out) { out.set("x", in.number("x") / 255); });
  template <detail::MapFunction F>
  [[nodiscard]] Dataset map(F function) const {
    return map(schema(), std::move(function));
  }
  /// Makes one sample of each, with other columns. Those that are in both schemas may be left unset.
  template <detail::MapFunction F>
  [[nodiscard]] Dataset map(Schema to, F function) const {
    auto site = site_of("map", std::move(to));
    return operation("map", site.schema, detail::map_samples(site, std::move(function)), true);
  }
  /// Makes blocks of blocks: Block(const Block&), with as many samples in the same order. How many samples come
  /// together differs from run to run, so what becomes of one must not depend on the others.
  template <detail::BlockMapFunction F>
  [[nodiscard]] Dataset map_batches(F function) const {
    return map_batches(schema(), std::move(function));
  }
  template <detail::BlockMapFunction F>
  [[nodiscard]] Dataset map_batches(Schema to, F function) const {
    auto site = site_of("map_batches", std::move(to));
    return operation("map_batches", site.schema, detail::map_blocks(site, std::move(function)), true);
  }
  /// Changes samples by what a preprocessor has learned by now; see fit(). Throws: ConfigError if it has learned
  /// nothing yet, or from other columns. Example: dataset.transform(scaler)
  template <Preprocessor P>
  [[nodiscard]] Dataset transform(P preprocessor) const {
    const auto schema_after = [&] { return Schema{preprocessor.schema(schema())}; };
    auto site = site_of("transform", checked("transform", schema_after));
    const auto fitted = std::make_shared<const AnyPreprocessor>(std::move(preprocessor));
    const auto change = [fitted](const Block& block) { return fitted->transform(block); };
    return operation(
        "transform", site.schema, detail::map_blocks(site, change), true,
        [fitted](detail::Fingerprint& to) { to.add(fitted->fingerprint()); }, false, fitted);
  }
  /// Keeps the samples for which the function is true: bool(const Sample&[, SampleRandom&]). name: what messages, and
  /// describe(), call it.
  template <detail::FilterFunction F>
  [[nodiscard]] Dataset filter(F function, const std::string& name = "filter") const {
    auto site = site_of(name, schema());
    return operation(name, site.schema, detail::filter_samples(site, std::move(function)), false);
  }
  /// Makes any number of samples of each: function(const Sample& in, SampleList& out[, SampleRandom&]).
  template <detail::FlatMapFunction F>
  [[nodiscard]] Dataset flat_map(F function) const {
    return flat_map(schema(), std::move(function));
  }
  template <detail::FlatMapFunction F>
  [[nodiscard]] Dataset flat_map(Schema to, F function) const {
    auto site = site_of("flat_map", std::move(to));
    return operation("flat_map", site.schema, detail::flat_map_samples(site, std::move(function)), false);
  }

  /// Keeps columns, in the order given. Throws: ConfigError if one does not exist.
  template <class = void>
  [[nodiscard]] Dataset select(const std::vector<std::string>& names) const {
    std::vector<std::size_t> chosen;
    checked("select", [&] {
      for (const std::string& name : names) chosen.push_back(schema().index_of(name));
    });
    return choose("select", std::move(chosen));
  }
  /// Leaves columns out. Throws: ConfigError if one does not exist.
  template <class = void>
  [[nodiscard]] Dataset drop(const std::vector<std::string>& names) const {
    checked("drop", [&] {
      for (const std::string& name : names) static_cast<void>(schema().index_of(name));
    });
    std::vector<std::size_t> chosen;
    for (std::size_t column = 0; column < schema().size(); ++column) {
      if (std::find(names.begin(), names.end(), schema()[column].name) == names.end()) chosen.push_back(column);
    }
    return choose("drop", std::move(chosen));
  }
  /// Gives columns other names: pairs of the old and the new one. Throws: ConfigError if one does not exist, or two
  /// would be equal.
  template <class = void>
  [[nodiscard]] Dataset rename(const std::vector<std::pair<std::string, std::string>>& names) const {
    std::vector<Field> fields = schema().fields();
    std::string label = label_;
    auto renamed = checked("rename", [&] {
      for (const auto& [from, to] : names) {
        fields[schema().index_of(from)].name = to;
        if (from == label_) label = to;
      }
      return std::make_shared<const Schema>(std::move(fields));
    });
    Dataset result = operation("rename", renamed, detail::choose_columns(renamed, every_column()), true, {}, true);
    result.label_ = std::move(label);
    return result;
  }

  /// Keeps the first samples.
  template <class = void>
  [[nodiscard]] Dataset take(std::uint64_t samples) const {
    return over<detail::RangeNode<>>(detail::compose("take({})", samples), std::uint64_t{0}, samples);
  }
  /// Leaves the first samples out.
  template <class = void>
  [[nodiscard]] Dataset skip(std::uint64_t samples) const {
    return over<detail::RangeNode<>>(detail::compose("skip({})", samples), samples, detail::RangeNode<>::to_the_end);
  }
  /// Keeps the samples at the given places, in that order. Throws: ConfigError if the dataset is not indexed, or there
  /// is no such place.
  template <class = void>
  [[nodiscard]] Dataset at(std::vector<std::uint64_t> places) const {
    require_index("at");
    for (const std::uint64_t place : places) {
      if (place >= *count()) refuse("at", detail::compose("there is no sample {}: there are {}", place, *count()));
    }
    return over<detail::SelectionNode<>>(detail::compose("at({} places)", places.size()), std::move(places));
  }

  /// Gives all samples in another order each epoch: a function of the reader's seed, the epoch and the seed given here.
  /// Every order is about as likely as any other. Throws: ConfigError if the dataset is not indexed.
  template <class = void>
  [[nodiscard]] Dataset shuffle(std::uint64_t seed = 0) const {
    require_index("shuffle");
    return over<detail::ShuffleNode<>>(seed);
  }
  /// Gives the samples of a stream in another order each epoch, but each near where it was: the stream is cut into
  /// windows, whose borders move from epoch to epoch. Cost: a window is held in memory, and is read again where a run
  /// goes on in the middle of it. Throws: ConfigError for a window of none.
  template <class = void>
  [[nodiscard]] Dataset shuffle_window(std::size_t samples, std::uint64_t seed = 0) const {
    if (samples == 0) refuse("shuffle_window", "a window of 0 samples holds none: give the largest that memory allows");
    return over<detail::WindowNode<>>(samples, seed);
  }

  /// Gives samples of similar length together, so that a batch of them needs little padding: windows of the samples are
  /// sorted by the length in a column and cut into groups, which come in an order of their own each epoch. Batches as
  /// large as a group fit best. A window has whole groups, at least one; a larger one makes for less padding and a
  /// better mix. Its samples are held in memory, and read again where a run goes on in the middle of them; the sizes
  /// may then be others. An indexed dataset becomes a stream, whose samples shuffle() before this one mixes. Throws:
  /// ConfigError if all samples of the column are equally long, or for a group of none.
  template <class = void>
  [[nodiscard]] Dataset bucket_by_length(const std::string& column, std::size_t group, std::size_t window) const {
    const std::size_t number = checked("bucket_by_length", [&] { return schema().index_of(column); });
    if (!schema()[number].is_ragged()) {
      refuse("bucket_by_length", detail::compose("\"{}\" is equally long in all samples: leave it out", column));
    }
    if (group == 0) refuse("bucket_by_length", "groups of 0 samples: give the size of a batch");
    const std::size_t groups = std::max<std::size_t>(window / group, 1);
    return over<detail::BucketNode<>>(detail::Bucketing{number, group, groups * group});
  }

  /// Gives the samples so many times over. Each time is an epoch of its own for what is random before it.
  template <class = void>
  [[nodiscard]] Dataset repeat(std::uint64_t times) const {
    return over<detail::RepeatNode<>>(std::optional<std::uint64_t>{times});
  }
  /// Gives the samples over and over, without end.
  template <class = void>
  [[nodiscard]] Dataset repeat() const {
    return over<detail::RepeatNode<>>(std::optional<std::uint64_t>{});
  }
  /// Keeps the samples in memory once they have been read. Forked workers that have the cache from the program they
  /// come from, as those of Processes have the Trainer's datasets, read them once and keep them once for all, also for
  /// those of a restart: one makes the cache, and the others wait, unless it makes nothing for 5 minutes. What is
  /// random before it is drawn once for all epochs. Makes any dataset indexed. Cost: memory for all samples, for a
  /// moment twice; where half of the host's does not hold them, reading them is a DataError. Throws: ConfigError for a
  /// dataset that has no end.
  template <class = void>
  [[nodiscard]] Dataset cache() const {
    require_end("cache");
    return over<detail::CacheNode<>>().with_likeness(likeness());
  }
  /// Does the same in a file, for more than memory holds. A file that is there is used, and made anew where the files
  /// of the source, or numbers, settings or what preprocessors are and have learned before it, are not what they were;
  /// remove it when a function of yours has changed, also one of a BatchMapper, which nobody sees; so it is where of
  /// more than 64 files one that is not looked at has changed under its name. Without its source it is read as it
  /// is. One that holds another dataset by name is a ConfigError. Of workers that want it at once one makes it, and the
  /// others wait, unless it writes nothing for 5 minutes; hosts with copies of their own of the source's files name
  /// caches of their own. What is read is checked: a damaged cache is a DataError. It is read on machines with the same
  /// order of bytes. Throws: ConfigError for a dataset that has no end.
  template <class = void>
  [[nodiscard]] Dataset cache(const std::string& file) const {
    require_end("cache");
    return over<detail::FileCacheNode<>>(file);
  }

  /// What operations and readers work on; not for users.
  [[nodiscard]] const detail::NodePtr& node() const noexcept { return node_; }
  [[nodiscard]] static Dataset from_node(detail::NodePtr node, std::string label, bool is_divided = true) {
    Dataset result{std::move(node), std::move(label)};
    result.reading_.is_divided = is_divided;
    return result;
  }
  /// Returns the dataset by that name.
  [[nodiscard]] Dataset named(std::string_view name) const {
    Dataset result = *this;
    result.reading_.name = name;
    return result;
  }
  /// Returns the dataset that the node makes of this one, whose batches are not spoken of.
  [[nodiscard]] Dataset remade(const detail::NodePtr& node) const {
    Dataset result = after(node);
    result.reading_.batch_size = 0;
    result.reading_.batches_ahead = Reading{}.batches_ahead;
    return result;
  }
  /// Returns the dataset, of which loaders give all samples to each worker, as one that all of them have alike: those
  /// of a host may then read it together.
  [[nodiscard]] Dataset alike(std::string_view name) const {
    Dataset result = undivided();
    result.reading_.common = std::make_shared<const detail::CommonData>(detail::CommonData{node_, std::string{name}});
    result.reading_.likeness = detail::Likeness::as_given;
    return result;
  }
  /// Returns the dataset as one of which workers know that much of each other's samples.
  [[nodiscard]] Dataset with_likeness(detail::Likeness likeness) const {
    Dataset result = *this;
    result.reading_.likeness = likeness;
    return result;
  }
  [[nodiscard]] detail::Likeness likeness() const noexcept { return reading_.likeness; }
  /// What alike() has said, of this dataset or of one that this was made of; nullptr if nothing.
  [[nodiscard]] const std::shared_ptr<const detail::CommonData>& common() const noexcept { return reading_.common; }
  /// Whether all workers have it alike as it is: nothing was done with it since alike().
  [[nodiscard]] bool is_alike() const noexcept { return reading_.common != nullptr && reading_.common->node == node_; }

 private:
  using Reading = detail::DatasetReading;

  Dataset(detail::NodePtr node, std::string label) : Dataset(std::move(node), std::move(label), Reading{}) {}
  Dataset(detail::NodePtr node, std::string label, const Reading& reading)
      : node_(std::move(node)), label_(std::move(label)), reading_(reading) {}

  template <class S>
  [[nodiscard]] static std::string label_of(const S& source) {
    if constexpr (requires {
                    { source.label() } -> std::convertible_to<std::string>;
                  }) {
      return source.label();
    } else {
      return {};
    }
  }

  [[noreturn]] void refuse(std::string_view operation, std::string_view what) const {
    throw ConfigError{detail::compose("{} -> {}: {}", describe(), operation, what)};
  }
  template <class Call>
  std::invoke_result_t<Call> checked(std::string_view operation, Call&& call) const {
    try {
      return call();
    } catch (const ConfigError& error) {
      refuse(operation, error.what());
    }
  }
  void require_end(std::string_view operation) const {
    if (!is_endless()) return;
    refuse(operation, detail::compose("the samples of this dataset have no end: call {}() before repeat(), or take() "
                                      "as many as there are to be",
                                      operation));
  }
  void require_index(std::string_view operation) const {
    if (is_indexed()) return;
    require_end(operation);
    refuse(operation,
           "the samples of this dataset can only be read one after another: use shuffle_window(), which "
           "shuffles streams, or cache() before, where memory holds all samples");
  }

  [[nodiscard]] detail::OperationSite site_of(std::string_view operation, Schema to) const {
    return {to == schema() ? node_->schema() : std::make_shared<const Schema>(std::move(to)),
            detail::compose("{} -> {}", describe(), operation), node_->depth()};
  }
  template <class = void>
  [[nodiscard]] Dataset operation(std::string name, std::shared_ptr<const Schema> to, detail::BlockFunction apply,
                                  bool keeps_count, std::function<void(detail::Fingerprint&)> identify = {},
                                  bool only_chooses = false,
                                  std::shared_ptr<const AnyPreprocessor> preprocessor = {}) const {
    const bool has_label = !label_.empty() && to->find(label_);
    Reading reading = reading_;
    if (!keeps_count) reading.likeness = detail::Likeness::none;  // a function may choose by rank
    return {std::make_shared<const detail::BlockOpNode>(
                node_, std::move(to),
                detail::BlockOpNode::Operation{std::move(name), std::move(apply), keeps_count, std::move(identify),
                                               only_chooses, std::move(preprocessor)}),
            has_label ? label_ : std::string{}, reading};
  }
  template <class = void>
  [[nodiscard]] Dataset choose(std::string_view name, std::vector<std::size_t> chosen) const {
    std::vector<Field> fields;
    for (const std::size_t column : chosen) fields.push_back(schema()[column]);
    auto to = checked(name, [&] { return std::make_shared<const Schema>(std::move(fields)); });
    const auto identify = [chosen](detail::Fingerprint& fingerprint) {
      for (const std::size_t column : chosen) fingerprint.add(std::uint64_t{column});
    };
    return operation(std::string{name}, to, detail::choose_columns(to, std::move(chosen)), true, identify, true);
  }
  [[nodiscard]] std::vector<std::size_t> every_column() const { return detail::ordered_indices(schema().size()); }

  [[nodiscard]] Dataset after(const detail::NodePtr& made) const {
    return {made, label_, detail::reading_after(reading_, node_, made)};
  }
  template <class Node, class... Arguments>
  [[nodiscard]] Dataset over(Arguments&&... arguments) const {
    return after(std::make_shared<const Node>(node_, std::forward<Arguments>(arguments)...));
  }

  detail::NodePtr node_;
  std::string label_;
  Reading reading_{};
};

namespace detail {

// The nodes of datasets that are to be put together, all with the columns of the first.
template <class = void>
[[nodiscard]] std::vector<NodePtr> nodes_of(const std::vector<Dataset>& datasets, std::string_view operation) {
  if (datasets.empty()) throw ConfigError{compose("{}() was given no dataset", operation)};
  std::vector<NodePtr> nodes;
  for (const Dataset& dataset : datasets) {
    if (dataset.schema() != datasets.front().schema()) {
      throw ConfigError{
          compose("{}({}, {}): the first has the columns {} and the second {}, or their dtypes or shapes "
                  "differ: make them equal by select(), rename() or map()",
                  operation, datasets.front().describe(), dataset.describe(), datasets.front().schema().names(),
                  dataset.schema().names())};
    }
    nodes.push_back(dataset.node());
  }
  return nodes;
}

// Whether loaders divide what is made of the datasets, which is at least one: as they do each of them.
template <class = void>
[[nodiscard]] bool all_divided(const std::vector<Dataset>& datasets, std::string_view operation) {
  for (const Dataset& dataset : datasets) {
    if (dataset.is_divided() == datasets.front().is_divided()) continue;
    const bool is_first = datasets.front().is_divided();
    throw ConfigError{
        compose("{}() was given {}, which loaders divide among the workers, beside {}, of which each worker has all "
                "or a part of its own (RunConfig::data, undivided()): name both in RunConfig::data.split or none, or "
                "call undivided() of the first",
                operation, datasets[is_first ? 0 : static_cast<std::size_t>(&dataset - datasets.data())].describe(),
                datasets[is_first ? static_cast<std::size_t>(&dataset - datasets.data()) : 0].describe())};
  }
  return datasets.front().is_divided();
}

// The name that all of the datasets have; empty if they have several.
template <class = void>
[[nodiscard]] std::string common_name(const std::vector<Dataset>& datasets) {
  const std::string& name = datasets.front().name();
  const bool is_one = std::all_of(datasets.begin(), datasets.end(), [&](auto& one) { return one.name() == name; });
  return is_one ? name : std::string{};
}

// Makes a dataset of a node that joins datasets by the settings: workers have it alike where they have those alike.
template <class = void>
[[nodiscard]] Dataset joined_of(const std::vector<Dataset>& datasets, NodePtr node, std::string label,
                                std::string_view operation, std::string_view settings = {}) {
  Dataset made = Dataset::from_node(std::move(node), std::move(label), all_divided(datasets, operation))
                     .named(common_name(datasets));
  std::string names;
  bool is_alike = true;
  Likeness likeness = settings.empty() ? Likeness::as_given : Likeness::by_arguments;
  for (const Dataset& dataset : datasets) {
    is_alike = is_alike && dataset.is_alike();
    likeness = std::min(likeness, dataset.likeness());
    if (is_alike) names += compose("{}{}", names.empty() ? "" : ", ", dataset.common()->name);
  }
  return (is_alike ? made.alike(compose("{}({}){}", operation, names, settings)) : made).with_likeness(likeness);
}

}  // namespace detail

/// Gives the samples of one dataset after those of another. Loaders divide it as they do each of them, as is so of all
/// that joins datasets. Throws: ConfigError if their columns differ, one that is not the last has no end, or loaders
/// divide only some.
template <class = void>
[[nodiscard]] Dataset concat(const std::vector<Dataset>& datasets) {
  const auto nodes = detail::nodes_of(datasets, "concat");
  for (std::size_t at = 0; at + 1 < datasets.size(); ++at) {
    if (!datasets[at].is_endless()) continue;
    throw ConfigError{
        detail::compose("concat() was given {}, whose samples have no end, before others that would never come: take() "
                        "as many of it as there are to be, or mix() them",
                        datasets[at].describe())};
  }
  return detail::joined_of(datasets, std::make_shared<const detail::ConcatNode<>>(nodes), datasets.front().label(),
                           "concat");
}

/// Gives samples with the columns of all datasets, which stand side by side. They must have equally many samples.
/// Throws: ConfigError if they have not, if only some have an end, if two columns have one name, or if loaders divide
/// only some; DataError at the end, if that was not known.
template <class = void>
[[nodiscard]] Dataset zip(const std::vector<Dataset>& datasets) {
  if (datasets.empty()) throw ConfigError{"zip() was given no dataset"};
  std::vector<Field> fields;
  std::vector<detail::NodePtr> nodes;
  std::string label;
  std::optional<std::uint64_t> first;
  for (const Dataset& dataset : datasets) {
    fields.insert(fields.end(), dataset.schema().begin(), dataset.schema().end());
    nodes.push_back(dataset.node());
    if (label.empty()) label = dataset.label();
    if (dataset.is_endless() != datasets.front().is_endless()) {
      const bool is_first = datasets.front().is_endless();
      throw ConfigError{detail::compose(
          "zip() was given {}, whose samples have no end, beside {}, whose samples have one: take() as "
          "many of it",
          datasets[is_first ? 0 : nodes.size() - 1].describe(), datasets[is_first ? nodes.size() - 1 : 0].describe())};
    }
    const auto count = dataset.count();
    if (!first) first = count;
    if (count && *count != *first) {
      throw ConfigError{detail::compose("zip() was given {} of {} samples beside others of {}: cut them with take()",
                                        dataset.describe(), *count, *first)};
    }
  }
  auto schema = std::make_shared<const Schema>(std::move(fields));
  return detail::joined_of(datasets, std::make_shared<const detail::ZipNode<>>(std::move(schema), std::move(nodes)),
                           label, "zip");
}

/// Mixes datasets at random, each with a share of the samples that is its weight. Where one ends, the others go on, so
/// that each sample of all of them comes once; to hold the shares to the end, repeat() the datasets and take() as many
/// samples as an epoch is to have. Throws: ConfigError if their columns differ, a weight is not a number above 0, or
/// loaders divide only some.
template <class = void>
[[nodiscard]] Dataset mix(const std::vector<Dataset>& datasets, const std::vector<double>& weights,
                          std::uint64_t seed = 0) {
  const auto nodes = detail::nodes_of(datasets, "mix");
  const bool is_right = std::all_of(weights.begin(), weights.end(), [](double weight) {
    return detail::magnitude_bits(weight) < detail::infinity_bits && weight > 0;
  });
  if (weights.size() != datasets.size() || !is_right) {
    throw ConfigError{
        detail::compose("mix() of {} datasets was given the weights {{{}}}: give a number above 0, not infinite, for "
                        "each",
                        datasets.size(), detail::joined(weights, ", "))};
  }
  return detail::joined_of(datasets, std::make_shared<const detail::MixNode<>>(nodes, weights, seed),
                           datasets.front().label(), "mix",
                           detail::compose(" {{{}}} {}", detail::joined(weights, ", "), seed));
}

}  // namespace railyard::inline v0_1
