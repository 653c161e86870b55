// SPDX-License-Identifier: MIT
// Shows on standard error how far a run is, and lets the workers' own output through. Callbacks room.
#pragma once

#include "railyard/callbacks/detail/console.hpp"
#include "railyard/callbacks/detail/number.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/value.hpp"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {

/// Holds what the supervisor sees of a run at one moment.
struct ProgressState {
  double seconds = 0;  ///< since fit() was called
  int alive = 0;
  int world_size = 0;
  std::uint64_t samples = 0;     ///< given to all ranks together, in all
  std::uint64_t steps = 0;       ///< that have ended; 0 also where nothing tells of them
  std::int64_t epoch = -1;       ///< -1 if unknown
  std::uint64_t epoch_size = 0;  ///< 0 if unknown
  std::uint64_t epoch_done = 0;
};

/// Is the progress of a run: on a terminal one line that is redrawn at most ten times a second and fits its width;
/// elsewhere a plain line at the first report, one at the end, and one in ten seconds: until the first report in any
/// case, and then where the run has moved.
class ProgressLine {
 public:
  explicit ProgressLine(const detail::Console& console, bool is_quiet = false)
      : console_(console), kind_(is_quiet ? Kind::quiet : kind_of(console.error())) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { erase(); }

  /// How soon update() should be called again.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    const std::chrono::duration<double> seconds{kind_ == Kind::terminal ? redraw_after : plain_after};
    return std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
  }

  void on_report(std::int64_t index, Metrics metrics) {
    report_ = index;
    metrics_ = std::move(metrics);
    is_news_ = true;
  }

  /// Shows the state, if it is time to.
  void update(const ProgressState& state) {
    note(state);
    const double age = state.seconds - shown_.seconds;
    if (kind_ == Kind::terminal && age >= redraw_after) draw(state);
    if (kind_ != Kind::plain) return;
    const bool is_first_report = is_news_ && !was_report_shown_;
    const bool is_due = age >= plain_after && (report_ < 0 || has_moved(state));
    if (is_first_report || is_due) print_plain(state);
  }

  /// Shows the state for the last time.
  void finish(const ProgressState& state) {
    note(state);
    if (kind_ == Kind::terminal && (was_shown_ || is_news_)) {
      draw(state);
      console_.write(console_.error(), "\n");
      is_drawn_ = false;
    }
    if (kind_ == Kind::plain && (is_news_ || (was_shown_ && has_moved(state)))) print_plain(state);
  }

  /// Writes a line of a worker or of the library, above the progress line if there is one.
  void print(bool is_error, std::string_view line) {
    const int stream = is_error ? console_.error() : console_.output();
    const bool must_redraw = is_drawn_ && detail::Console::is_terminal(stream);
    if (must_redraw) erase();
    if (!console_.write(stream, std::string{line} + '\n')) ++num_dropped_;
    if (must_redraw) redraw();
  }

  /// Says how many lines nobody took; empty if none.
  [[nodiscard]] std::string warning() const {
    if (num_dropped_ == 0) return {};
    return detail::compose(
        "{} line(s) could not be written to standard output or standard error: closed, or not read for "
        "1 s; what workers print is in the logs",
        num_dropped_);
  }

  /// Returns the line without any control of the terminal. Example: "epoch 3 45% | 5120 samples/s | 9 s | loss 0.31".
  [[nodiscard]] std::string text(const ProgressState& state) const {
    std::string line;
    const auto add = [&line](const std::string& part) { line += (line.empty() ? "" : " | ") + part; };
    if (state.epoch >= 0) {
      std::string part = detail::compose("epoch {}", state.epoch);
      if (state.epoch_size > 0) part += detail::compose(" {}%", percent(state));
      add(part);
    } else if (state.steps > 0) {
      add(detail::compose("step {}", state.steps));
    } else if (report_ >= 0) {
      add(detail::compose("report {}", report_));
    }
    const double rate = samples_per_second();
    if (rate > 0) add(detail::compose("{:.0f} samples/s", rate));
    if (rate > 0 && state.epoch_size > state.epoch_done) {
      const auto left = static_cast<double>(state.epoch_size - state.epoch_done);
      add(duration_text(left / rate) + " left in epoch");
    }
    if (state.alive > 0) add(detail::compose("{}/{} workers", state.alive, state.world_size));
    add(duration_text(state.seconds));
    // Last, because nobody knows how many there are: what comes before them is always to be seen.
    for (const auto& [name, value] : metrics_) {
      if (name == "epoch" && state.epoch >= 0) continue;
      add(detail::compose("{} {}", name, detail::short_text(value)));
    }
    return line;
  }

  /// Returns at most `columns` characters of text, none of which moves the cursor; they end in dots if that is not all.
  [[nodiscard]] static std::string fitted(std::string_view text, std::size_t columns) {
    constexpr std::string_view dots = "...";
    std::string line;
    std::size_t used = 0;
    std::size_t kept = 0;  // of the line, where the dots have room behind it
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      const bool continues = (byte & 0xC0U) == 0x80;  // of a UTF-8 character that has been counted
      if (!continues && used + dots.size() <= columns) kept = line.size();
      if (!continues && ++used > columns) return line.substr(0, kept).append(dots.substr(0, columns));
      line += byte < 0x20 || byte == 0x7F ? ' ' : c;
    }
    return line;
  }

 private:
  enum class Kind : std::uint8_t { quiet, plain, terminal };
  static constexpr double redraw_after = 0.1;
  static constexpr double plain_after = 10;
  static constexpr double window = 5;  // seconds over which the rate is taken

  static Kind kind_of(int stream) noexcept {
    const char* type = std::getenv("TERM");
    const bool can_erase = type != nullptr && std::string_view{type} != "dumb";
    return detail::Console::is_terminal(stream) && can_erase ? Kind::terminal : Kind::plain;
  }

  static std::uint64_t percent(const ProgressState& state) noexcept {
    const auto done = static_cast<double>(state.epoch_done) / static_cast<double>(state.epoch_size);
    return static_cast<std::uint64_t>(100 * (done < 1 ? done : 1));
  }

  static std::string duration_text(double seconds) {
    const auto whole = static_cast<std::int64_t>(seconds < 1e15 ? seconds : 1e15);
    if (whole < 100) return detail::compose("{} s", whole);
    if (whole < 6000) return detail::compose("{} min {:02} s", whole / 60, whole % 60);
    return detail::compose("{} h {:02} min", whole / 3600, whole / 60 % 60);
  }

  void note(const ProgressState& state) {
    if (!marks_.empty() && state.seconds - marks_.back().first < redraw_after) return;
    marks_.emplace_back(state.seconds, state.samples);
    while (marks_.size() > 2 && marks_[1].first < state.seconds - window) marks_.pop_front();
  }

  [[nodiscard]] double samples_per_second() const {
    if (marks_.size() < 2) return 0;
    const double seconds = marks_.back().first - marks_.front().first;
    return seconds > 0 ? static_cast<double>(marks_.back().second - marks_.front().second) / seconds : 0;
  }

  void draw(const ProgressState& state) {
    line_ = text(state);
    note_shown(state);
    redraw();
  }
  void redraw() {
    const std::size_t columns = detail::Console::width(console_.error());
    is_drawn_ = console_.write(console_.error(), "\r" + fitted(line_, columns - 1) + "\x1b[K");
  }
  void erase() {
    if (is_drawn_) console_.write(console_.error(), "\r\x1b[K");
    is_drawn_ = false;
  }
  void print_plain(const ProgressState& state) {
    console_.write(console_.error(), fitted(text(state), 1000) + "\n");
    note_shown(state);
  }
  void note_shown(const ProgressState& state) {
    shown_ = state;
    was_shown_ = true;
    was_report_shown_ = report_ >= 0;
    is_news_ = false;
  }
  // Since the last line.
  [[nodiscard]] bool has_moved(const ProgressState& state) const noexcept {
    return is_news_ || state.samples != shown_.samples || state.steps != shown_.steps || state.epoch != shown_.epoch ||
           state.epoch_done != shown_.epoch_done;
  }

  detail::Console console_;
  Kind kind_;
  std::int64_t report_ = -1;
  Metrics metrics_{};
  bool is_news_ = false;    // a report has come since the last line
  bool was_shown_ = false;  // any line at all
  bool was_report_shown_ = false;
  bool is_drawn_ = false;  // the line stands on the terminal now
  ProgressState shown_{};  // what the last line has told
  std::string line_{};
  std::uint64_t num_dropped_ = 0;  // lines that could not be printed
  std::deque<std::pair<double, std::uint64_t>> marks_{};
};

}  // namespace railyard::inline v0_1
