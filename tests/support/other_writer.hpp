// SPDX-License-Identifier: MIT
// Stands for another process that writes what ranks other than 0 have in a checkpoint.
#pragma once

#include "railyard/checkpoint/detail/part_files.hpp"
#include "railyard/checkpoint/part_writers.hpp"

#include "support/crash_disk.hpp"
#include "unit/checkpoint/support.hpp"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace railyard_test {

class OtherWriter final : public railyard::PartWriters {
 public:
  OtherWriter(const Contribution& all, std::shared_ptr<railyard::detail::Files> files) : files_(std::move(files)) {
    for (const auto& part : all.parts()) {
      if (part.name.find(".rank-1.") == std::string::npos && !part.name.starts_with("files/")) continue;
      parts_.push_back(part);
      names.insert(part.name);
    }
  }

  std::set<std::string> names{};
  bool writes_at_end = false;  // not before it is waited for
  bool has_finished = false;

  std::set<std::string> begin(const std::filesystem::path& directory) override {
    directory_ = directory;
    if (!writes_at_end) write();
    return names;
  }
  std::vector<railyard::ManifestFile> finish() override {
    if (writes_at_end) write();
    has_finished = true;
    return std::exchange(written_, {});
  }

 private:
  void write() {
    railyard::detail::PartFiles files{*files_, directory_};
    try {
      std::vector<railyard::ManifestFile> written;
      for (const auto& part : parts_) written.push_back(files.write(part.name, part.bytes));
      files.seal();
      written_ = std::move(written);
    } catch (const railyard::Error&) {  // it says that it has written nothing
    }
  }

  std::shared_ptr<railyard::detail::Files> files_;
  std::vector<railyard::CheckpointFolder::Part> parts_{};
  std::filesystem::path directory_{};
  std::vector<railyard::ManifestFile> written_{};
};

}  // namespace railyard_test
