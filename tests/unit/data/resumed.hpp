// SPDX-License-Identifier: MIT
// What the tests share of runs that are killed and go on, and that count what is read or made again.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/input_files.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace resumed {

namespace ry = railyard;

/// Counts bytes that streams give, or samples that generators make.
inline std::atomic<std::uint64_t>& work_done() {
  static std::atomic<std::uint64_t> work{0};
  return work;
}

template <class Stream>
class CountedStream final : public ry::detail::ByteStream {
 public:
  explicit CountedStream(const std::string& path) : stream_(path) {}

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override {
    try {
      const std::size_t got = stream_.read(to, size);
      work_done() += got;
      return got;
    } catch (const ry::detail::StreamDamage& damage) {
      work_done() += damage.got();
      throw;
    }
  }
  [[nodiscard]] std::optional<ry::detail::StreamPoint> take_point(std::uint64_t offset) override {
    return stream_.take_point(offset);
  }
  [[nodiscard]] bool go_to(std::uint64_t offset, std::string_view saved) override {
    return stream_.go_to(offset, saved);
  }

 private:
  Stream stream_;
};

template <class Stream>
ry::CompressedFiles counted(ry::InputFiles files) {
  return {std::move(files), [](const std::string& path) -> std::unique_ptr<ry::detail::ByteStream> {
            return std::make_unique<CountedStream<Stream>>(path);
          }};
}

/// Tells the samples of a step from others.
inline std::uint64_t digest_of(const ry::EpochStep& step) {
  ry::detail::Fingerprint digest;
  digest.add(std::as_bytes(step.block.ids()));
  for (const ry::Column& column : step.block.columns()) {
    digest.add(column.bytes());
    for (std::size_t row = 0; column.is_ragged() && row < column.rows(); ++row) digest.add(column.sample(row).size());
  }
  return digest.value();
}

inline std::vector<std::uint64_t> digests_of(const ry::Dataset& dataset, const ry::EpochOptions& options) {
  std::vector<std::uint64_t> digests;
  ry::EpochReader reader{dataset, options};
  while (const auto step = reader.next()) digests.push_back(digest_of(*step));
  return digests;
}

/// Returns what is read of a position that was saved.
inline ry::EpochPosition saved_and_loaded(const ry::EpochPosition& position) {
  ry::EpochPosition loaded;
  loaded.load_state(position.state());
  return loaded;
}

/// Goes over an epoch by readers of which each is killed after some steps, and whose position the next one goes on
/// from, with a dataset made anew. Checks that they give what one reader does, and have left out as many samples in the
/// end. Returns the most work that it took any of them to come to its first step.
template <class Make>
std::uint64_t most_work_to_go_on(const Make& make, std::size_t num_kills, unsigned seed,
                                 ry::EpochOptions options = {.global_batch_size = 512, .bound_bytes = 1U << 20U}) {
  options.threads = 0;
  const ry::Dataset at_once = make();
  const auto whole = digests_of(at_once, options);
  REQUIRE(whole.size() > num_kills);
  std::mt19937 random{seed};
  std::vector<std::uint64_t> seen;
  std::uint64_t most = 0;
  for (bool is_over = false; !is_over;) {
    options.threads = random() % 3 == 0 ? 2 : 0;  // which read ahead, so that nobody knows what they have done
    const std::size_t steps = 1 + random() % (2 * whole.size() / num_kills);
    const ry::Dataset dataset = make();
    work_done() = 0;
    ry::EpochReader reader{dataset, options};
    for (std::size_t step = 0; step < steps && !is_over; ++step) {
      const auto next = reader.next();
      if (step == 0 && options.threads == 0) most = std::max(most, work_done().load());
      is_over = !next;
      if (next) seen.push_back(digest_of(*next));
    }
    options.from = saved_and_loaded(reader.position());
    if (is_over) CHECK(dataset.skipped() == at_once.skipped());
  }
  CHECK(seen.size() == whole.size());
  CHECK((seen == whole));
  return most;
}

}  // namespace resumed
