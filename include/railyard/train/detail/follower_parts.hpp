// SPDX-License-Identifier: MIT
// Has the processes that follow write their workers' parts of a checkpoint, where they see its directory. Train room.
#pragma once

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/part_files.hpp"
#include "railyard/checkpoint/manifest.hpp"
#include "railyard/checkpoint/part_writers.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a file that a rank has saved, and where in its snapshot it stands.
struct SavedPart {
  std::string name{};
  std::int32_t rank = 0;
  std::int32_t slot = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Says what a process that follows is to write, and where.
struct WriteOrder {
  std::string run{};  ///< the run's directory
  std::string directory{};
  std::vector<SavedPart> parts{};

  [[nodiscard]] std::vector<std::byte> encode() const {
    WireWriter writer;
    writer.put_text(run);
    writer.put_text(directory);
    for (const SavedPart& part : parts) {
      writer.put_text(part.name);
      writer.put(part.rank);
      writer.put(part.slot);
      writer.put(part.offset);
      writer.put(part.size);
    }
    return writer.bytes();
  }
  [[nodiscard]] static WriteOrder decode(std::span<const std::byte> bytes) {
    WireReader reader{bytes};
    WriteOrder order{.run = reader.take_text()};
    order.directory = reader.take_text();
    while (!reader.is_empty()) {
      SavedPart part{.name = reader.take_text()};
      part.rank = reader.take<std::int32_t>();
      part.slot = reader.take<std::int32_t>();
      part.offset = reader.take<std::uint64_t>();
      part.size = reader.take<std::uint64_t>();
      order.parts.push_back(std::move(part));
    }
    return order;
  }
};

/// Says what a process has written.
struct WriteAnswer {
  bool sees_directory = false;
  std::vector<ManifestFile> files{};

  [[nodiscard]] std::vector<std::byte> encode() const {
    WireWriter writer;
    writer.put(static_cast<std::uint8_t>(sees_directory));
    for (const ManifestFile& file : files) {
      writer.put_text(file.name);
      writer.put(file.size);
      writer.put(file.crc32c);
    }
    return writer.bytes();
  }
  [[nodiscard]] static WriteAnswer decode(std::span<const std::byte> bytes) {
    WireReader reader{bytes};
    WriteAnswer answer{.sees_directory = reader.take<std::uint8_t>() != 0};
    while (!reader.is_empty()) {
      ManifestFile file{.name = reader.take_text()};
      file.size = reader.take<std::uint64_t>();
      file.crc32c = reader.take<std::uint32_t>();
      answer.files.push_back(std::move(file));
    }
    return answer;
  }
};

/// Whether the directory is to be seen from here. It has just been made, by a name that is a random number: where
/// storage is not shared there is none of that name. Those above it are opened first: a network file system asks its
/// server then, instead of remembering what was not there before.
[[nodiscard]] inline bool sees_directory(Files& files, const WriteOrder& order, std::chrono::nanoseconds patience) {
  const std::filesystem::path directory = order.directory;
  const Deadline deadline = Deadline::after(patience);
  while (true) {
    bool is_there = false;
    for (const auto& path : {std::filesystem::path{order.run}, directory.parent_path(), directory}) {
      const int fd = uninterrupted([&] { return files.open_directory(path); });
      is_there = fd >= 0;
      if (is_there) files.close(fd);
    }
    if (is_there || deadline.expired()) return is_there;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
}

/// Returns what carries out a WriteOrder. It makes no directory: where that of the order has been given up, nothing is
/// written. patience: with a network file system that has not yet heard of the directory.
[[nodiscard]] inline RequestHandler part_writer(std::shared_ptr<Files> files = std::make_shared<Files>(),
                                                std::chrono::nanoseconds patience = std::chrono::seconds{1}) {
  return [files = std::move(files), patience](std::span<const std::byte> request, const SnapshotReader& snapshot) {
    const WriteOrder order = WriteOrder::decode(request);
    WriteAnswer answer{.sees_directory = sees_directory(*files, order, patience)};
    if (!answer.sees_directory) return answer.encode();
    PartFiles written{*files, order.directory};
    for (const SavedPart& part : order.parts) {
      const auto read = [&snapshot, &part](std::size_t begin, std::size_t size) {
        return snapshot(part.rank, part.slot, part.offset + begin, size);
      };
      answer.files.push_back(written.write(part.name, PartBytes{part.size, read}));
    }
    written.seal();
    return answer.encode();
  };
}

/// Knows the processes that are not asked to write: their parts go over the network.
class LeftOut {
 public:
  static constexpr int retry_interval =
      16;  ///< in checkpoints: looking for a directory takes a second where there is none

  /// A checkpoint begins; those of an earlier attempt are asked again.
  void begin_checkpoint(int attempt) {
    if (std::exchange(attempt_, attempt) != attempt) asked_with_.clear();
    ++checkpoint_;
  }
  [[nodiscard]] bool contains(int process) const {
    const auto found = asked_with_.find(process);
    return found != asked_with_.end() && checkpoint_ < found->second;
  }
  /// One that does not see the run's directory, or not yet. Returns whether that is new.
  bool add_blind(int process) {
    asked_with_[process] = checkpoint_ + retry_interval;
    return was_blind_.insert(process).second;
  }
  void add_for_attempt(int process) { asked_with_[process] = std::numeric_limits<std::int64_t>::max(); }

 private:
  int attempt_ = 0;
  std::int64_t checkpoint_ = 0;  // its number
  std::map<int, std::int64_t> asked_with_{};
  std::set<int> was_blind_{};
};

/// Is the leader's end.
class FollowerParts final : public PartWriters {
 public:
  /// left_out: gets those that do not see the run's directory, or could not write there.
  FollowerParts(WorkerGroup& group, std::filesystem::path run, const std::vector<SavedPart>& parts, LeftOut& left_out)
      : group_(&group), run_(std::move(run)), left_out_(&left_out) {
    for (const SavedPart& part : parts) {
      const int process = group.process_of(part.rank);
      if (process != 0 && !left_out.contains(process)) parts_[process].push_back(part);
    }
  }

  std::set<std::string> begin(const std::filesystem::path& directory) override {
    std::set<std::string> names;
    for (const auto& [process, parts] : parts_) {
      for (const SavedPart& part : parts) names.insert(part.name);
    }
    directory_ = directory;
    for (const auto& [process, parts] : parts_) {
      const WriteOrder order{.run = run_.string(), .directory = directory.string(), .parts = parts};
      try {
        answers_[process] = group_->send_request(process, order.encode());
      } catch (const std::exception& error) {
        complain(process, error.what());
      }
    }
    return names;
  }

  std::vector<ManifestFile> finish() override {
    std::vector<ManifestFile> all;
    std::vector<std::string> late;  // who may write yet
    for (const auto& [process, await] : std::exchange(answers_, {})) {
      if (!await) continue;
      try {
        WriteAnswer answer = WriteAnswer::decode(await());
        if (!answer.sees_directory && left_out_->add_blind(process)) tell_of_blind(process);
        std::move(answer.files.begin(), answer.files.end(), std::back_inserter(all));
      } catch (const LateAnswerError& error) {
        left_out_->add_for_attempt(process);
        late.push_back(compose("{} does not come to an end of writing its part ({})", group_->name_of_process(process),
                               error.what()));
      } catch (const std::exception& error) {
        complain(process, error.what());
      }
    }
    if (late.empty()) return all;
    throw Error{
        compose("{}: {}: see whether its host's storage answers there; this checkpoint is given up, and the "
                "process that leads takes the parts of later ones over the network until the workers are started again",
                directory_.string(), joined(late, "; "))};
  }

  /// Say why parts were not written there, unless that is known.
  [[nodiscard]] const std::vector<std::string>& complaints() const noexcept { return complaints_; }

 private:
  void complain(int process, std::string_view why) {
    left_out_->add_for_attempt(process);
    complaints_.push_back(
        compose("the process that leads has written the part of a checkpoint that {} could not write: {}",
                group_->name_of_process(process), why));
  }
  void tell_of_blind(int process) {
    complaints_.push_back(
        compose("{} does not see {}: the one that leads takes its parts of checkpoints over the network, and asks it "
                "again with every {}th; if that storage is shared, see whether it is mounted there by the same path",
                group_->name_of_process(process), run_.string(), LeftOut::retry_interval));
  }

  WorkerGroup* group_;
  std::filesystem::path run_;
  std::filesystem::path directory_{};  // of the checkpoint
  LeftOut* left_out_;
  std::map<int, std::vector<SavedPart>> parts_{};  // by process
  std::map<int, std::function<std::vector<std::byte>()>> answers_{};
  std::vector<std::string> complaints_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
