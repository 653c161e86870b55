// SPDX-License-Identifier: MIT
// The files of a run's directory. Train room.
#pragma once

#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/lease_claims.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "railyard/callbacks/detail/console.hpp"
#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/value.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a file that only grows, line by line. A line is in it whole or not at all, and what cannot be written is counted.
class LineFile {
 public:
  /// makes_folder: on first use, for a file that a run need not have.
  explicit LineFile(std::filesystem::path path, std::shared_ptr<Files> files = std::make_shared<Files>(),
                    bool makes_folder = false)
      : path_(std::move(path)), files_(std::move(files)), makes_folder_(makes_folder) {}
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile() {
    if (file_ >= 0) files_->close(file_);
  }

  /// Appends line and a line feed; opens the file on first use. Returns whether it could.
  bool append(std::string_view line) {
    const WriteSignalGuard<SIGXFSZ> guard;
    if (!open()) return note_loss(errno);
    text_.assign(line);
    text_ += '\n';
    std::size_t done = 0;
    while (done < text_.size()) {
      const auto rest = std::as_bytes(std::span{text_}.subspan(done));
      const ssize_t written = uninterrupted([&] { return files_->write(file_, rest.data(), rest.size()); });
      if (written <= 0) {
        const int code = errno;
        // Half a line would make the next one unreadable too. Where this fails as well, nothing more can be done.
        if (done > 0 && files_->truncate(file_, size_) != 0) return note_loss(code);
        return note_loss(code);
      }
      done += static_cast<std::size_t>(written);
    }
    size_ += static_cast<off_t>(done);
    return true;
  }

  /// Takes back all but the first size bytes. Returns whether it could.
  bool cut(std::uint64_t size) {
    if (!open() || files_->truncate(file_, static_cast<off_t>(size)) != 0) return note_loss(errno);
    size_ = static_cast<off_t>(size);
    return true;
  }

  /// Makes durable what has been appended. Returns whether it could.
  bool sync() {
    const int result = uninterrupted([this] { return files_->sync(file_); });
    return result == 0 || errno == EINVAL || note_loss(errno);  // EINVAL: there is nothing to be made durable in it
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return static_cast<std::uint64_t>(size_); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool exists() const noexcept { return file_ >= 0; }
  [[nodiscard]] std::uint64_t num_lost() const noexcept { return num_lost_; }
  /// What is to be said when the first line is lost.
  [[nodiscard]] std::string complaint() const { return compose("{} cannot be written: {}", path_.string(), reason()); }
  [[nodiscard]] std::string reason() const { return explain_errno(code_); }

 private:
  bool open() {
    if (file_ >= 0) return true;
    if (makes_folder_ && !has_folder()) return false;
    file_ = uninterrupted([this] { return files_->open(path_, O_WRONLY | O_CREAT | O_APPEND); });
    if (file_ < 0) return false;
    struct stat status {};
    if (uninterrupted([&] { return files_->status_of(file_, status); }) != 0) {
      const int code = errno;
      files_->close(std::exchange(file_, -1));
      errno = code;
      return false;
    }
    size_ = status.st_size;
    return true;
  }

  bool has_folder() {
    return uninterrupted([this] { return files_->make_directory(path_.parent_path()); }) == 0 || errno == EEXIST;
  }

  bool note_loss(int code) noexcept {
    code_ = code;
    ++num_lost_;
    return false;
  }

  std::filesystem::path path_;
  std::shared_ptr<Files> files_;
  bool makes_folder_;
  std::string text_{};
  int file_ = -1;
  off_t size_ = 0;
  std::uint64_t num_lost_ = 0;
  int code_ = 0;
};

/// Returns a time of the wall clock by UTC, such as 2024-01-31T12:34:56Z, or as `format` says.
[[nodiscard]] inline std::string time_text(std::time_t time, const char* format = "%Y-%m-%dT%H:%M:%SZ") {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

/// Returns a name that no other run has: date, time and six random digits.
[[nodiscard]] inline std::string unique_name() {
  std::uint32_t random = 0;
  fill_random(std::as_writable_bytes(std::span{&random, 1}));
  return compose("{}-{:06x}", time_text(std::time(nullptr), "%Y%m%d-%H%M%S"), random & 0xFF'FFFFU);
}

/// Throws: ConfigError if name cannot be the name of a run.
inline void check_name(const std::string& name) {
  const auto refuse = [&name](std::string_view why) {
    throw ConfigError{
        compose("RunConfig::name is \"{}\": {}; leave it empty for a name made from date and time", name, why)};
  };
  if (name.find('/') != std::string::npos) refuse("it must not contain '/', use RunConfig::storage_path for folders");
  if (name == "." || name == "..") refuse("it does not name a folder of its own");
  if (name.size() > 200) refuse("it must not be longer than 200 bytes");
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '\x7F') refuse("it must not contain control characters");
  }
}

/// Is where a run is kept.
struct RunPlace {
  std::string name{};
  std::filesystem::path path{};
  bool is_new = true;
};

/// Calls look(), which reads a run's directory. Throws: ConfigError where that cannot be read.
template <class Look>
auto looking_at_run(const Look& look) {
  try {
    return look();
  } catch (const DataError& error) {
    throw ConfigError{compose("{}: make it readable, or choose another RunConfig::name", error.what())};
  }
}

[[nodiscard]] inline bool is_directory(Files& files, const std::filesystem::path& path) {
  const auto status = status_of(files, path);
  return status && S_ISDIR(status->st_mode);
}

/// Whether a file is there and nothing is in it, or the zeros that stand for what a power cut has kept from the disk.
[[nodiscard]] inline bool is_blank(const std::filesystem::path& path, Files& files) {
  const auto text = content_of(files, path);
  return text && text->find_first_not_of('\0') == std::string::npos;
}

/// Whether a file of that name tells what a run is, and how it went.
[[nodiscard]] inline bool tells_of_run(std::string_view name) {
  return name == "run.json" || name == "metrics.jsonl" || name == "events.jsonl" || name == "result.json";
}

/// Returns the names of a run's logs that hold something, in "logs/".
[[nodiscard]] inline std::vector<std::string> written_logs(const std::filesystem::path& run, Files& files) {
  std::vector<std::string> names;
  for (const std::string& name : names_in_directory(files, run / "logs")) {
    if (!number_between<std::uint64_t>("rank-", name, ".log")) continue;
    const auto status = status_of(files, run / "logs" / name);
    if (status && S_ISREG(status->st_mode) && status->st_size > 0) names.push_back("logs/" + name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Whether a program has died in that directory before what the run is was written, or had come to the disk: the first
/// checkpoint sees to that.
[[nodiscard]] inline bool is_barely_begun(const std::filesystem::path& run,
                                          const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  const bool is_lost = is_blank(run / "run.json", *files);
  if (is_lost ? tells_of_checkpoints(run, files) : !written_logs(run, *files).empty()) return false;
  for (const std::string& name : names_in_directory(*files, run)) {
    const bool is_of_start = name == "logs" || name == "lease.json" || name == claims_name;
    if (is_of_start || name.starts_with("leader.json") || name.starts_with("run.json.")) continue;
    if (!is_lost || !(tells_of_run(name) || name.starts_with("result.json."))) return false;
  }
  return true;
}

/// Returns the names of files that tell of a run which has lost run.json and all checkpoints; empty if it has not, or
/// has left none. A run has a lease before it has anything else; without one, such files are somebody else's.
[[nodiscard]] inline std::string remains_of_run(const std::filesystem::path& run,
                                                const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  const auto has = [&](const char* name) { return is_there(*files, run / name); };
  const bool has_record = has("run.json") && !is_blank(run / "run.json", *files);
  const bool has_checkpoints = !names_in_directory(*files, run / "checkpoints").empty();
  if (has_record || has_checkpoints || is_barely_begun(run, files) || !has("lease.json")) return {};
  std::vector<std::string> names = written_logs(run, *files);
  if (names.size() > 1) names.resize(1);
  for (const char* name : {"metrics.jsonl", "events.jsonl", "result.json"}) {
    if (has(name)) names.insert(names.end(), name);
  }
  return joined(names, ", ");
}

/// Removes what programs have left in that directory that died while they wrote a file of it; all: also what a run that
/// is no more has told. Only for whoever has the run.
inline void sweep_run_directory(const std::filesystem::path& run, bool all,
                                const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  for (const std::string& name : names_in_directory(*files, run)) {
    const auto is_draft_of = [&name](std::string_view file) {
      return number_between<std::uint64_t>(file, name, "").has_value();
    };
    const bool is_half_written = is_draft_of("run.json.") || is_draft_of("result.json.") || is_draft_of("leader.json.");
    const bool is_rubbish = is_half_written || (all && tells_of_run(name));
    if (is_rubbish) uninterrupted([&] { return files->unlink(run / name); });
  }
}

/// Throws: ConfigError if a directory that exists is no run's: nothing is written into what is somebody else's.
inline void check_is_run(const std::filesystem::path& path, const std::shared_ptr<Files>& files) {
  if (is_barely_begun(path, files) || is_there(*files, path / "run.json")) return;
  if (!remains_of_run(path, files).empty()) return;
  if (newest_checkpoint(path, files)) return;  // which says what run.json has said
  const std::string place = compose("RunConfig::name is \"{}\", but {}", path.filename().string(), path.string());
  if (is_there(*files, path / manifest_name)) {
    throw ConfigError{
        compose("{} is a checkpoint, not the directory of a run: give the one that its checkpoints/ lies in, and the "
                "run goes on from the newest; Checkpoint::open() reads any of them",
                place)};
  }
  throw ConfigError{
      compose("{} is no run's directory, for it has no run.json, and is left as it is: choose another name", place)};
}

/// Makes the directory of a run, or finds it there if there is one of that name.
/// Throws: ConfigError if it cannot be made, or is no run's.
[[nodiscard]] inline RunPlace make_run_directory(const std::string& wanted_name, const std::filesystem::path& storage,
                                                 const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  const auto refuse = [&storage](const std::string& why) {
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": a run's directory cannot be made there: {}; choose a "
                "folder that you can write to",
                storage.string(), why)};
  };
  const auto refuse_error = [&refuse](int error) { refuse(explain_errno(error)); };
  if (storage.empty()) refuse_error(EINVAL);
  std::error_code code;
  const auto folder = std::filesystem::absolute(storage, code);  // a worker or callback may go to another directory
  if (code) refuse(code.message());
  try {
    if (const int error = make_directories(*files, folder); error != 0) refuse_error(error);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    refuse(error.what());
  }
  constexpr int most_tries = 100;
  for (int tries = 1;; ++tries) {
    const std::string name = wanted_name.empty() ? unique_name() : wanted_name;
    const auto path = folder / name;
    const bool is_new = uninterrupted([&] { return files->make_directory(path); }) == 0;
    if (!is_new && errno != EEXIST) refuse_error(errno);
    if (!is_new && wanted_name.empty()) {
      if (tries == most_tries) refuse_error(EEXIST);
      continue;
    }
    if (!is_new && !looking_at_run([&] { return is_directory(*files, path); })) {
      throw ConfigError{
          compose("RunConfig::name is \"{}\", but {} is no directory: choose another name", name, path.string())};
    }
    if (!is_new) looking_at_run([&] { check_is_run(path, files); });
    return {name, path, is_new};
  }
}

/// Writes a file of one JSON object, in place of the one that may be there. lasts: it is durable then, which takes
/// milliseconds. may_replace: asked right before; where it says no, nothing is left of the new one. Returns what went
/// wrong, or an empty text.
[[nodiscard]] inline std::string write_object(
    const std::filesystem::path& path, const JsonObject& object, bool lasts,
    std::shared_ptr<Files> files = std::make_shared<Files>(),
    const std::function<bool()>& may_replace = [] { return true; }) {
  LineFile file{compose("{}.{}", path.string(), ::getpid()), files};
  const auto complain = [&path](std::string_view why) {
    return compose("{} cannot be written: {}", path.string(), why);
  };
  if (!file.append(object.text()) || (lasts && !file.sync())) {
    files->unlink(file.path());
    return complain(file.reason());
  }
  if (!may_replace()) {
    files->unlink(file.path());
    return {};
  }
  if (files->rename(file.path(), path) != 0) return complain(explain_errno(errno));
  if (!lasts) return {};
  try {
    sync_directory(*files, path.parent_path());
  } catch (const Error& error) {
    return complain(error.what());
  }
  return {};
}

/// Takes back the directory of a run in which nothing has happened.
inline void remove_run_directory(const std::filesystem::path& run,
                                 const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  for (const char* name : {"run.json", "lease.json", "leader.json"}) files->unlink(run / name);
  remove_all(*files, run / claims_name);
  files->remove_directory(run / "logs");  // unless there is something in it
  files->remove_directory(run);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
