// SPDX-License-Identifier: MIT
// Where a stream of samples stands, and that as text. Data room.
#pragma once

#include "railyard/data/detail/base64.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/digest.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Is a number, or the state of a reader, of which the number is the sample.
struct PlaceItem {
  PlaceItem(std::uint64_t value = 0) noexcept : number(value) {}
  PlaceItem(ReaderState of_reader) noexcept : number(of_reader.sample()), state(std::move(of_reader)) {}

  std::uint64_t number;
  ReaderState state{};

  friend bool operator==(const PlaceItem&, const PlaceItem&) = default;
};

// Says where a stream of samples stands, in items that only the nodes which wrote them understand. At the begin all
// numbers are 0, and there is no state.
using Place = std::vector<PlaceItem>;

// Tells bytes from those that are damaged.
[[nodiscard]] inline std::string seal_of(const ReaderState& state) {
  const std::uint64_t digest = digest_of(std::as_bytes(std::span{state.bytes()}), mix_bits(state.sample()));
  std::string seal(sizeof digest, '\0');
  std::memcpy(seal.data(), &digest, sizeof digest);
  return seal;
}

// Numbers with a space between two; a state is its sample, a colon, and its bytes with a seal.
[[nodiscard]] inline std::string text_of_place(const Place& place) {
  std::string text;
  for (const PlaceItem& item : place) {
    if (!text.empty()) text += ' ';
    text += std::to_string(item.number);
    if (item.state.has_value()) text += ':' + base64(item.state.bytes() + seal_of(item.state));
  }
  return text;
}

// Reads a number; nothing if the text is none.
[[nodiscard]] inline std::optional<std::uint64_t> whole_number(std::string_view text) noexcept {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Reads what text_of_place() has written; nothing if it is something else, or damaged.
[[nodiscard]] inline std::optional<Place> place_of_text(std::string_view text) {
  Place place;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const std::size_t colon = std::min(word.find(':'), word.size());
    const auto number = whole_number(word.substr(0, colon));
    if (!number) return std::nullopt;
    if (colon == word.size()) {
      place.emplace_back(*number);
      continue;
    }
    auto bytes = from_base64(word.substr(colon + 1));
    if (!bytes || bytes->size() < sizeof(std::uint64_t)) return std::nullopt;
    const std::size_t size = bytes->size() - sizeof(std::uint64_t);
    const std::string seal = bytes->substr(size);
    bytes->resize(size);
    ReaderState state{*number, std::move(*bytes)};
    if (seal_of(state) != seal) return std::nullopt;
    place.emplace_back(std::move(state));
  }
  return place;
}

// Gives the items of a place to the nodes, one after the other.
class PlaceCursor {
 public:
  // The begin, whatever the nodes are.
  PlaceCursor() = default;
  explicit PlaceCursor(Place place) : place_(std::move(place)), is_begin_(place_.empty()) {}

  [[nodiscard]] std::uint64_t next() {
    if (is_begin_) place_.emplace_back();
    if (at_ == place_.size() || place_[at_].state.has_value()) refuse();
    return place_[at_++].number;
  }
  // The state of a reader, where one follows.
  [[nodiscard]] ReaderState next_state() {
    return at_ < place_.size() && place_[at_].state.has_value() ? place_[at_++].state : ReaderState{};
  }
  // The items that have been given since another one was the next.
  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  [[nodiscard]] Place since(std::size_t at) const {
    return {place_.begin() + static_cast<std::ptrdiff_t>(at), place_.begin() + static_cast<std::ptrdiff_t>(at_)};
  }
  // All that are left.
  [[nodiscard]] Place rest() {
    const std::size_t begin = std::exchange(at_, place_.size());
    return since(begin);
  }
  void check_all_taken() const {
    if (at_ != place_.size()) refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw ConfigError{
        "the saved position does not belong to this dataset, which has other operations than the one that was saved, "
        "or compressed files whose place was saved before it was known by file: give the dataset that was saved with, "
        "or begin without its position"};
  }

  Place place_{};
  std::size_t at_ = 0;
  bool is_begin_ = true;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
