// SPDX-License-Identifier: MIT
// Railyard for programs of many source files, made by tools/amalgamate.py: functions are declared here, and defined in
// railyard.cpp, which is compiled once and with the same RAILYARD_WITH_... as whatever includes this.
// Railyard 0.1.0 in one file, made by tools/amalgamate.py from include/railyard: edit those.
// Define RAILYARD_WITH_GLOO=1 and RAILYARD_WITH_TORCH=1 for the parts that need Gloo and LibTorch.
#pragma once

// ---- railyard/core/version.hpp
// The release number and what the compiler must offer. Core room: includes nothing of ours.

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "Railyard needs C++20: add -std=c++20 (g++ 12, clang 14 or newer)."
#endif
#if !defined(__cpp_exceptions)
#error "Railyard reports every failure by exception: compile without -fno-exceptions."
#endif
#if !defined(__cpp_rtti)
#error "Railyard tells errors apart by their type: compile without -fno-rtti."
#endif
#if !defined(__linux__)
#error "Railyard runs on Linux only."
#endif
// After #error compilers go on, and would bury it under hundreds of others. At a file that is not there they stop.
#if __cplusplus < 202002L || !defined(__cpp_exceptions) || !defined(__cpp_rtti) || !defined(__linux__)
#include "stopped by the error above"
#endif

#define RAILYARD_VERSION_MAJOR 0
#define RAILYARD_VERSION_MINOR 1
#define RAILYARD_VERSION_PATCH 0

/// Everything lives in the inline namespace of its release, so that two releases linked into one program stay apart.
namespace railyard::inline v0_1 {

/// The release as text, by Semantic Versioning.
inline constexpr const char* version = "0.1.0";

}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/compose.hpp
// Makes messages out of a pattern and values, at a fraction of what fmt::format costs to compile. Core room.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one value of a message, as fmt takes it. Lives as long as what it was made from.
class Piece {
 public:
  using Argument = fmt::basic_format_arg<fmt::format_context>;

  Piece(bool value) noexcept;
  Piece(int value) noexcept;
  Piece(long value) noexcept;
  Piece(long long value) noexcept;
  Piece(unsigned value) noexcept;
  Piece(unsigned long value) noexcept;
  Piece(unsigned long long value) noexcept;
  Piece(double value) noexcept;
  Piece(const char* value) noexcept;
  Piece(const std::string& value) noexcept;
  Piece(std::string_view value) noexcept;
  Piece(char value) = delete;         // would be taken for a number
  Piece(float value) = delete;        // would be shown with a double's digits
  Piece(const void* value) = delete;  // would be taken for a bool

  [[nodiscard]] const Argument& argument() const noexcept { return argument_; }

 private:
  template <class T>
  static Argument pack(const T& value) noexcept {
    const auto packed = fmt::make_format_args(value);
    return fmt::format_args{packed}.get(0);
  }

  Argument argument_;
};

inline constexpr std::size_t max_pieces = 12;

/// Is a pattern of fmt with num_pieces fields, which is checked at compile time.
template <std::size_t num_pieces>
requires(num_pieces <= max_pieces) class Pattern {
 public:
  consteval Pattern(const char* text) : text_(text) {
    std::size_t num_fields = 0;
    for (const char* at = text; *at != '\0'; ++at) {
      if (*at != '{' && *at != '}') continue;
      if (at[0] == at[1]) {
        ++at;
        continue;
      }
      if (*at == '}') throw "a } alone: write }}";
      while (*at != '}') {
        if (*at++ == '\0') throw "a { alone: write {{";
      }
      ++num_fields;
    }
    if (num_fields != num_pieces) throw "there must be as many fields as values";
  }
  [[nodiscard]] std::string_view text() const noexcept { return text_; }

 private:
  const char* text_;
};

[[nodiscard]] std::string compose_pieces(std::string_view pattern, std::initializer_list<Piece> pieces);

/// Does what fmt::format does, for numbers and text. fmt checks and packs anew for each list of types, which took a
/// quarter of the time that railyard.hpp needs to compile; here one function that is no template does all of it.
template <class... Values>
[[nodiscard]] std::string compose(Pattern<sizeof...(Values)> pattern, const Values&... values) {
  return compose_pieces(pattern.text(), {Piece(values)...});
}

/// Returns the values one after the other, with the separator between them.
template <class Value>
[[nodiscard]] std::string joined(const std::vector<Value>& values, std::string_view separator) {
  std::string all;
  for (const Value& value : values) {
    if (&value != &values.front()) all += separator;
    all += compose("{}", value);
  }
  return all;
}

/// Returns the values as joined() by ", " does: of very many only the first, and how many there are besides.
template <class Value>
[[nodiscard]] std::string joined_first(const std::vector<Value>& values, std::size_t most) {
  if (values.size() <= most) return joined(values, ", ");
  const std::vector<Value> first(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(most));
  return compose("{} and {} more", joined(first, ", "), values.size() - most);
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/float_bits.hpp
// Tells NaN and infinity by their bits, because -ffast-math in the user's file takes the meaning from comparisons with
// them. Core room.

#include <bit>
#include <cstdint>

namespace railyard::inline v0_1 {
namespace detail {

/// The bits without the sign: of infinity infinity_bits, of NaN more, of numbers fewer.
[[nodiscard]] constexpr std::uint64_t magnitude_bits(double value) noexcept {
  return std::bit_cast<std::uint64_t>(value) & ~(std::uint64_t{1} << 63U);
}
inline constexpr std::uint64_t infinity_bits = 0x7FF0'0000'0000'0000U;
[[nodiscard]] constexpr bool has_nan_bits(double value) noexcept { return magnitude_bits(value) > infinity_bits; }
[[nodiscard]] constexpr bool has_infinity_bits(double value) noexcept { return magnitude_bits(value) == infinity_bits; }

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/error.hpp
// The one hierarchy of errors, divided by what the caller can do about them. Core room.

#include <stdexcept>
#include <utility>

namespace railyard::inline v0_1 {

/// Is the root of everything the library throws. A message says what happened, where, with which values, and what to
/// do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says that a call or a setting is wrong. Thrown before anything is started or sent; the remedy is in the message.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Says that input data is damaged or not what was promised; names file, line and column where there are any.
class DataError : public Error {
 public:
  using Error::Error;
};

/// Says that the group is lost: a collective could not be completed and no later one on this group can be.
class CollectiveError : public Error {
 public:
  /// operation: what was called, such as "all_reduce(sum, 8 x f32)". rank: who throws.
  /// blamed: the ranks that did not take part, empty where nobody can be named.
  CollectiveError(std::string operation, int rank, std::vector<int> blamed, const std::string& message);

  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// The ranks that are to blame: they died, left, were too late, or called something else.
  [[nodiscard]] const std::vector<int>& blamed() const noexcept { return blamed_; }

 private:
  std::string operation_;
  int rank_;
  std::vector<int> blamed_;
};

/// Says that a process which an engine has started is gone, or the host it ran on: only the engine can bring it back.
class HostLostError : public Error {
 public:
  using Error::Error;
};

/// Carries the first failure of a run to whoever asked for an exception: see Result::value_or_throw().
class WorkerError : public Error {
 public:
  /// rank: the first rank that failed, -1 where the run failed outside of any worker.
  WorkerError(int rank, const std::string& message);

  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/dtype.hpp
// Element types of buffers, and the two half types that C++20 lacks. Core room.

#include <array>
#include <type_traits>

namespace railyard::inline v0_1 {

/// Names the type of one element.
enum class Dtype : std::uint8_t { f16, bf16, f32, f64, i8, u8, i32, i64, boolean };

/// Lists every dtype, for tests and tables.
inline constexpr std::array all_dtypes{Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64,    Dtype::i8,
                                       Dtype::u8,  Dtype::i32,  Dtype::i64, Dtype::boolean};

/// Returns the size of one element in bytes.
[[nodiscard]] constexpr std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::i8:
    case Dtype::u8:
    case Dtype::boolean:
      return 1;
  }
  return 0;
}

/// Returns the name as messages print it, such as "f32".
[[nodiscard]] constexpr std::string_view name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f16:
      return "f16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::f32:
      return "f32";
    case Dtype::f64:
      return "f64";
    case Dtype::i8:
      return "i8";
    case Dtype::u8:
      return "u8";
    case Dtype::i32:
      return "i32";
    case Dtype::i64:
      return "i64";
    case Dtype::boolean:
      return "bool";
  }
  return "unknown";
}

namespace detail {

// Both conversions work on bits alone, so that -ffast-math in the user's file cannot change what NaN and infinity
// become.
[[nodiscard]] constexpr float float_of_half_bits(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  std::uint32_t exponent = (half >> 10U) & 0x1FU;
  std::uint32_t fraction = half & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13U));
  if (exponent == 0) {
    if (fraction == 0) return std::bit_cast<float>(sign);
    exponent = 1;
    while ((fraction & 0x400U) == 0) {
      fraction <<= 1U;
      --exponent;  // wraps below zero on purpose: the bias added next brings it back
    }
    fraction &= 0x3FFU;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
}

[[nodiscard]] constexpr std::uint16_t half_bits_of_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to infinity
  const auto round = [](std::uint32_t kept, std::uint32_t lost, std::uint32_t half_way) {
    return lost > half_way || (lost == half_way && (kept & 1U) != 0) ? kept + 1 : kept;
  };
  if (magnitude < 0x38800000U) {                                           // subnormal in f16, or zero
    if (magnitude < 0x33000000U) return static_cast<std::uint16_t>(sign);  // below half of the smallest one
    const std::uint32_t shift = 126U - (magnitude >> 23U);
    const std::uint32_t fraction = (magnitude & 0x7FFFFFU) | 0x800000U;
    return static_cast<std::uint16_t>(sign |
                                      round(fraction >> shift, fraction & ((1U << shift) - 1U), 1U << (shift - 1U)));
  }
  const std::uint32_t rebased = magnitude - 0x38000000U;
  return static_cast<std::uint16_t>(sign | round(rebased >> 13U, rebased & 0x1FFFU, 0x1000U));
}

[[nodiscard]] constexpr std::uint16_t bfloat_bits_of_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace detail

/// Is an IEEE 754 binary16 number. Arithmetic happens in float; conversion rounds to nearest, ties to even.
struct Float16 {
  std::uint16_t bits = 0;

  constexpr Float16() noexcept = default;
  constexpr explicit Float16(float value) noexcept : bits(detail::half_bits_of_float(value)) {}
  [[nodiscard]] constexpr explicit operator float() const noexcept { return detail::float_of_half_bits(bits); }
  friend constexpr bool operator==(Float16, Float16) noexcept = default;
};

/// Is a bfloat16 number: the upper half of a float. Conversion rounds to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits = 0;

  constexpr BFloat16() noexcept = default;
  constexpr explicit BFloat16(float value) noexcept : bits(detail::bfloat_bits_of_float(value)) {}
  [[nodiscard]] constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
  friend constexpr bool operator==(BFloat16, BFloat16) noexcept = default;
};

namespace detail {

template <class T>
struct DtypeOf {};
template <>
struct DtypeOf<Float16> : std::integral_constant<Dtype, Dtype::f16> {};
template <>
struct DtypeOf<BFloat16> : std::integral_constant<Dtype, Dtype::bf16> {};
template <>
struct DtypeOf<float> : std::integral_constant<Dtype, Dtype::f32> {};
template <>
struct DtypeOf<double> : std::integral_constant<Dtype, Dtype::f64> {};
template <>
struct DtypeOf<bool> : std::integral_constant<Dtype, Dtype::boolean> {};
// By size and sign, because long and long long are different types of one size.
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool> &&
         (sizeof(T) == 8 || sizeof(T) == 4 ? std::is_signed_v<T> : sizeof(T) == 1)) struct DtypeOf<T>
    : std::integral_constant<Dtype, sizeof(T) == 8        ? Dtype::i64
                                    : sizeof(T) == 4      ? Dtype::i32
                                    : std::is_signed_v<T> ? Dtype::i8
                                                          : Dtype::u8> {
};

}  // namespace detail

/// Is satisfied by the C++ types that a buffer can hold.
template <class T>
concept Element = requires {
  detail::DtypeOf<T>::value;
};

/// Is the dtype of a C++ type: dtype_of<float> is Dtype::f32.
template <Element T>
inline constexpr Dtype dtype_of = detail::DtypeOf<T>::value;

/// Calls visitor with a value-initialised element of the C++ type behind dtype, and returns what it returns.
/// Example: visit_dtype(Dtype::f32, [](auto zero) { return sizeof zero; });
template <class Visitor>
constexpr decltype(auto) visit_dtype(Dtype dtype, Visitor&& visitor) {
  switch (dtype) {
    case Dtype::f16:
      return visitor(Float16{});
    case Dtype::bf16:
      return visitor(BFloat16{});
    case Dtype::f64:
      return visitor(double{});
    case Dtype::i8:
      return visitor(std::int8_t{});
    case Dtype::u8:
      return visitor(std::uint8_t{});
    case Dtype::i32:
      return visitor(std::int32_t{});
    case Dtype::i64:
      return visitor(std::int64_t{});
    case Dtype::boolean:
      return visitor(false);
    case Dtype::f32:
      break;
  }
  return visitor(float{});
}

}  // namespace railyard::inline v0_1

// ---- railyard/core/value.hpp
// Single values by name: what metrics and saved states are made of. Core room.

#include <functional>
#include <limits>
#include <optional>
#include <variant>

namespace railyard::inline v0_1 {

/// Holds a truth value, an integer, a number or text. Made from any arithmetic type or literal.
class Value {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Value(T value)
  noexcept : value_(widen(value)) {}  // implicit, so that lists read {{"loss", 0.3}, {"epoch", 3}}
  Value(std::string value) noexcept;
  Value(std::string_view value);
  Value(const char* value);

  /// Is it of type bool, std::int64_t, double or std::string?
  template <class T>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<T>(value_);
  }

  /// Returns the value as bool, std::int64_t, double or std::string. Throws: Error if it is of another type.
  template <class T>
  [[nodiscard]] const T& as() const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    static constexpr const char* kinds[] = {"a truth value", "an integer", "a number", "text"};
    throw Error{
        detail::compose("a value was read as another type than it has: it holds {}; ask is<T>() first, or use visit()",
                        kinds[value_.index()])};
  }

  /// Returns it as a number, whatever arithmetic type it was made from. Throws: Error if it is text.
  [[nodiscard]] double number() const;

  /// Calls visitor with the bool, std::int64_t, double or std::string inside.
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

  friend bool operator==(const Value&, const Value&) = default;

 private:
  using Variant = std::variant<bool, std::int64_t, double, std::string>;

  template <class T>
  static Variant widen(T value) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(value);
    } else {
      if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
        if (value > static_cast<T>(std::numeric_limits<std::int64_t>::max())) return static_cast<double>(value);
      }
      return static_cast<std::int64_t>(value);
    }
  }

  Variant value_;
};

/// Holds values by name, in the order in which they were given. A name given twice keeps its place and its last value.
/// Cost: set() and find() take the same time whether there are few names or very many.
class NamedValues {
 public:
  using Entry = std::pair<std::string, Value>;

  NamedValues() = default;
  NamedValues(std::initializer_list<Entry> entries);

  void set(std::string name, Value value);

  /// Returns the value of that name, or nullptr.
  [[nodiscard]] const Value* find(std::string_view name) const noexcept;

  /// Returns the value of that name. Throws: Error that lists the names that exist.
  [[nodiscard]] const Value& at(std::string_view name) const;

  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }

  friend bool operator==(const NamedValues& one, const NamedValues& other) { return one.entries_ == other.entries_; }

 private:
  static constexpr std::size_t most_scanned = 16;  // of a handful, a scan beats a table

  [[nodiscard]] std::optional<std::size_t> place_of(std::string_view name) const noexcept;

  // The slot that has the name, or the one where it belongs. At least half of the slots are free.
  [[nodiscard]] std::size_t slot_of(std::string_view name) const noexcept;

  void note_last();

  std::vector<Entry> entries_;
  std::vector<std::size_t> table_;  // where there are many: by the hash of a name, the number of its entry, from 1
};

/// Is what a worker reports: numbers, truth values and text under flat keys such as "val/loss".
using Metrics = NamedValues;

}  // namespace railyard::inline v0_1

// ---- railyard/core/stateful.hpp
// What has a state that can be saved and put back. Core room.

#include <concepts>

namespace railyard::inline v0_1 {

/// Is one tensor of a state: what it looks like, and a function that copies elements out of wherever they are.
struct StateTensor {
  std::string name{};
  Dtype dtype = Dtype::f32;
  /// Of the whole tensor; empty for a single number.
  std::vector<std::int64_t> shape{};
  /// Copies the elements [begin, end) of the whole, counted row by row, to where `to` points. To be called only while
  /// what the state was taken from is as it was.
  std::function<void(std::int64_t begin, std::int64_t end, std::byte* to)> read{};
  /// The other ranks hold the rest: this one has the elements [begin, end) alone. Otherwise all ranks have all of it.
  bool is_piece = false;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  /// The number of elements of the whole.
  [[nodiscard]] std::int64_t count() const noexcept;
};

/// Is a saved state: values and tensors by name.
class State {
 public:
  State() = default;
  State(std::initializer_list<NamedValues::Entry> entries);

  NamedValues values{};
  std::vector<StateTensor> tensors{};
  /// Each rank has a state of its own, such as that of its random numbers, and gets its own back. Otherwise all ranks
  /// have the same, but for pieces of tensors.
  bool is_own = false;

  /// Returns the value of that name. Throws: Error that lists the names that exist.
  [[nodiscard]] const Value& at(std::string_view name) const;

  /// Returns the tensor of that name, or nullptr.
  [[nodiscard]] const StateTensor* find_tensor(std::string_view name) const noexcept;
};

/// Has a state. Law: after b.load_state(a.state()), a and b behave alike.
template <class T>
concept Stateful = requires(T& part, const T& saved, const State& state) {
  { saved.state() } -> std::convertible_to<State>;
  part.load_state(state);
};

/// Says how the state of a T is taken and put back: by its own members, if it has them. Rooms above specialise it for
/// types that are not ours.
template <class T>
struct StateAccess {};
template <Stateful T>
struct StateAccess<T> {
  static State take(const T& part) { return part.state(); }
  static void put(T& part, const State& state) { part.load_state(state); }
};

/// Can be a part of what a checkpoint holds.
template <class T>
concept HasState = requires(T& part, const State& state) {
  { StateAccess<T>::take(part) } -> std::convertible_to<State>;
  StateAccess<T>::put(part, state);
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/summed_metric.hpp
// The concept of a metric whose parts are sums, so that it can be put together over any number of workers. Core room.

#include <cstring>
#include <span>

namespace railyard::inline v0_1 {

/// Collects samples in sums and tells a value of them.
///
/// Laws: replacing sums() by their sum, element by element, over metrics made alike gives the metric of all their
/// samples, and so does merge(). Where the sums are counts, that is exact up to 2^53, whoever has seen which samples.
template <class M>
concept SummedMetric = Stateful<M> && requires(M& metric, const M& other) {
  { metric.sums() } -> std::convertible_to<std::span<double>>;
  { other.sums() } -> std::convertible_to<std::span<const double>>;
  { other.value() } -> std::convertible_to<double>;
  metric.merge(other);
  metric.reset();
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/accuracy.hpp
// The part of samples whose class was found, put together over workers exactly. Core room.

namespace railyard::inline v0_1 {

/// Is the label of what is no sample, as LibTorch's cross_entropy has it: padding, say. Metrics leave it out.
inline constexpr std::int64_t ignored_label = -100;

/// Counts the samples whose label is among the classes with the k best scores.
class Accuracy {
 public:
  struct Options {
    std::size_t top_k = 1;
  };

  Accuracy() = default;
  explicit Accuracy(Options options) noexcept;

  /// Adds samples by the scores of all classes. Of equal scores the first is the best. NaN is better than all others,
  /// and a label whose score is NaN was not found.
  /// Shapes: scores (samples, classes), labels (samples). Throws: DataError for a label that is no class.
  template <class Score>
  void add(std::span<const Score> scores, std::span<const std::int64_t> labels) {
    if (labels.empty()) return;
    const std::size_t num_classes = scores.size() / labels.size();
    for (std::size_t sample = 0; sample < labels.size(); ++sample) {
      if (labels[sample] == ignored_label) continue;
      if (labels[sample] < 0 || static_cast<std::size_t>(labels[sample]) >= num_classes) {
        throw DataError{detail::compose("Accuracy: sample {} of a batch has the label {}, but there are {} classes",
                                        sample, labels[sample], num_classes)};
      }
      const auto row = scores.subspan(sample * num_classes, num_classes);
      add_counts(place_of(static_cast<std::size_t>(labels[sample]), row) < options_.top_k ? 1 : 0, 1);
    }
  }
  /// Adds samples by their number, and how many of them were right.
  void add_counts(std::uint64_t correct, std::uint64_t samples) noexcept;
  void merge(const Accuracy& other) noexcept;
  void reset() noexcept;

  /// Right ones by all of them; NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept;
  [[nodiscard]] std::uint64_t correct() const noexcept;
  [[nodiscard]] std::uint64_t samples() const noexcept;
  [[nodiscard]] std::span<double> sums() noexcept;
  [[nodiscard]] std::span<const double> sums() const noexcept;

  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  // How many classes are better.
  template <class Score>
  [[nodiscard]] static std::size_t place_of(std::size_t label, std::span<const Score> scores) noexcept {
    const auto is_nan = [](Score score) { return detail::has_nan_bits(static_cast<double>(score)); };
    if (is_nan(scores[label])) return scores.size();
    std::size_t better = 0;
    for (std::size_t other = 0; other < scores.size(); ++other) {
      const bool is_higher = other < label ? scores[other] >= scores[label] : scores[other] > scores[label];
      better += is_higher || is_nan(scores[other]) ? 1U : 0U;
    }
    return better;
  }

  Options options_{};
  std::array<double, 2> sums_{};  // right ones, all
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/auc.hpp
// The area under the ROC curve, from counts in bins of scores, with a bound on its error. Core room.

#include <algorithm>

namespace railyard::inline v0_1 {

/// Counts positive and negative samples by their score. The area is the chance that a positive sample has a higher
/// score than a negative one, where equal scores count half; samples in one bin count as equal, so that the area is off
/// by at most half of the pairs in one bin, which is error_bound().
class Auc {
 public:
  struct Options {
    std::size_t num_bins = 1U << 15U;
    /// Scores are in bins of equal width from low to high; what lies outside is in the first or the last.
    double low = 0;
    double high = 1;
  };

  Auc();
  /// Throws: ConfigError for no bins, or if low is not below high.
  explicit Auc(Options options);

  /// Adds samples: 1 is a positive one, 0 a negative one, and ignored_label is left out.
  /// Throws: ConfigError if there are not as many scores as labels; DataError for other labels, and for NaN.
  template <class Score>
  void add(std::span<const Score> scores, std::span<const std::int64_t> labels) {
    if (scores.size() != labels.size()) {
      throw ConfigError{
          detail::compose("Auc::add() was given {} scores and {} labels: give it one of each for every sample",
                          scores.size(), labels.size())};
    }
    for (std::size_t sample = 0; sample < labels.size(); ++sample) {
      if (labels[sample] == ignored_label) continue;
      if (labels[sample] != 0 && labels[sample] != 1) {
        throw DataError{
            detail::compose("Auc: sample {} of a batch has the label {}: 0 and 1 are meant", sample, labels[sample])};
      }
      const std::size_t bin = bin_of(static_cast<double>(scores[sample]), sample);
      counts_[static_cast<std::size_t>(labels[sample]) * options_.num_bins + bin] += 1;
    }
  }
  /// Throws: ConfigError if the other one has another number of bins.
  void merge(const Auc& other);
  void reset() noexcept;

  /// The area; NaN while there are not both positive and negative samples.
  [[nodiscard]] double value() const noexcept;
  /// The area of the scores themselves differs from value() by at most this: 0 if no bin has samples of both classes.
  [[nodiscard]] double error_bound() const noexcept;

  /// The counts of negative samples in all bins, then of positive ones.
  [[nodiscard]] std::span<double> sums() noexcept;
  [[nodiscard]] std::span<const double> sums() const noexcept;

  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  [[nodiscard]] double negative(std::size_t bin) const noexcept { return counts_[bin]; }
  [[nodiscard]] double positive(std::size_t bin) const noexcept;
  [[nodiscard]] std::size_t bin_of(double score, std::size_t sample) const;

  Options options_;
  std::vector<double> counts_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/buffer.hpp
// Memory as collectives see it: a pointer, a count, a dtype and a device. Core room.

#include <ranges>

namespace railyard::inline v0_1 {

/// Names the kind of memory that a buffer lies in.
enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Names one device: the CPU, or one GPU by its index.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  friend constexpr bool operator==(const Device&, const Device&) noexcept = default;
};

/// Views elements that a collective writes. Owns nothing; contiguous; whoever passes it keeps the memory alive until
/// the operation is done. An empty buffer may have a null pointer.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;
  Device device{};

  /// Size in bytes.
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return count * size_of(dtype); }
};

/// Views elements that a collective only reads; see Buffer.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;
  Device device{};

  constexpr ConstBuffer() noexcept = default;
  constexpr ConstBuffer(const void* data_, std::size_t count_, Dtype dtype_, Device device_ = {}) noexcept
      : data(data_), count(count_), dtype(dtype_), device(device_) {}
  constexpr ConstBuffer(const Buffer& buffer) noexcept  // a reader may always be given what a writer may use
      : data(buffer.data), count(buffer.count), dtype(buffer.dtype), device(buffer.device) {}

  /// Size in bytes.
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return count * size_of(dtype); }
};

/// Views the elements of a contiguous range (vector, array, span) on the CPU: a Buffer, or a ConstBuffer where the
/// elements are const. Example: worker.all_reduce(buffer_of(values), ReduceOp::sum);
template <std::ranges::contiguous_range Range>
requires Element<std::ranges::range_value_t<Range>>
[[nodiscard]] constexpr auto buffer_of(Range&& range) noexcept {
  constexpr Dtype dtype = dtype_of<std::ranges::range_value_t<Range>>;
  const std::size_t count = std::ranges::size(range);
  if constexpr (std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>) {
    return ConstBuffer{std::ranges::data(range), count, dtype};
  } else {
    return Buffer{std::ranges::data(range), count, dtype, {}};
  }
}

/// Refuses every other range, and says why.
template <std::ranges::range Range>
requires(!std::ranges::contiguous_range<Range> || !Element<std::ranges::range_value_t<Range>>)
    [[nodiscard]] constexpr Buffer buffer_of(Range&& /*range*/) noexcept {
  static_assert(Element<std::ranges::range_value_t<Range>>,
                "buffer_of: no collective knows elements of this type. They may be float, double, bool, std::int8_t, "
                "std::uint8_t, std::int32_t, std::int64_t, Float16 or BFloat16: convert the values to one of these");
  static_assert(
      std::ranges::contiguous_range<Range> || !Element<std::ranges::range_value_t<Range>>,
      "buffer_of: the elements of this range do not lie one beside the other in memory (std::vector<bool> "
      "packs them, std::list scatters them): copy them to a std::vector, of std::uint8_t in the place of bool");
  return {};
}

/// Views one value on the CPU.
template <Element T>
[[nodiscard]] constexpr Buffer buffer_of_value(T& value) noexcept {
  return {&value, 1, dtype_of<T>, {}};
}

}  // namespace railyard::inline v0_1

// ---- railyard/core/deadline.hpp
// A point in time after which a wait gives up. Core room.

#include <chrono>

namespace railyard::inline v0_1 {

/// Ends a wait. Taken once at the start of an operation and handed down, so that the parts share one budget.
/// Runs on the monotonic clock, which stands still while the machine is suspended.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Expires when the budget has passed, counted from now. setting: where the user has set it, for messages; it must
  /// live as long as the program.
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds budget, std::string_view setting = {});

  /// Never expires.
  [[nodiscard]] static Deadline never() noexcept;

  [[nodiscard]] bool is_never() const noexcept;
  [[nodiscard]] bool expired() const;

  /// What is left, never negative.
  [[nodiscard]] std::chrono::nanoseconds remaining() const;

  /// The same budget, counted from now.
  [[nodiscard]] Deadline renewed() const;

  /// When it expires; Clock::time_point::max() if never.
  [[nodiscard]] Clock::time_point time() const noexcept;

  /// The whole budget, as messages print it: "30 s", "200 ms", "10 s (RunConfig::start_timeout)".
  [[nodiscard]] std::string budget_text() const;

 private:
  Deadline(Clock::time_point time, std::chrono::nanoseconds budget, std::string_view setting) noexcept;

  [[nodiscard]] std::string time_text() const;

  Clock::time_point time_;
  std::chrono::nanoseconds budget_;
  std::string_view setting_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/reduce_op.hpp
// How elements of all ranks become one. Core room.

namespace railyard::inline v0_1 {

/// Names a reduction. average is the sum divided by the number of ranks and exists for floating-point dtypes only (an
/// average of integers would have to round). On bool, sum and max are "any", product and min are "all".
/// Half types are summed in f32; integers wrap like unsigned ones.
enum class ReduceOp : std::uint8_t { sum, average, min, max, product };

/// Lists every reduction, for tests and tables.
inline constexpr std::array all_reduce_ops{ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                           ReduceOp::product};

/// Returns the name as messages print it.
[[nodiscard]] constexpr std::string_view name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/system.hpp
// What the kernel offers, made safe to use: descriptors, futexes, times and messages of failed calls. Core room.

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <system_error>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns one file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept;
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// Takes over a new descriptor and moves it above 2, where it would end up if the program has closed its standard
/// streams: later it would be overwritten or be taken for one.
[[nodiscard]] Descriptor adopt(int fd, std::string_view what);

/// Reads what a file has from a byte on. Returns how many bytes that were: fewer than asked for only at its end, where
/// errno is 0, or where reading fails, as errno says then.
[[nodiscard]] std::size_t read_at(int file, std::uint64_t begin, void* to, std::size_t size) noexcept;

/// Returns what names the running kernel, until the next start of the machine: the same in all its containers. Empty if
/// the system does not tell.
[[nodiscard]] std::string boot_id();

[[nodiscard]] std::string host_name();

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/store.hpp
// The place where workers leave small values for each other before they are connected. Core room.

namespace railyard::inline v0_1 {

/// Says that a key has been set before.
class KeyTakenError : public Error {
 public:
  using Error::Error;
};

/// Holds small values by key for all workers of one group. A key is set once and then never changes.
///
/// Laws: a value is complete as soon as it can be seen; whoever dies in the middle of a call leaves the store usable;
/// all members may be called from any thread of any worker.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// Leaves value, arbitrary bytes, under key. Throws: KeyTakenError; Error if the store is full.
  virtual void set(std::string_view key, std::string_view value) = 0;

  /// Waits until the key is there and returns its value, or nothing at the deadline.
  [[nodiscard]] virtual std::optional<std::string> get(std::string_view key, const Deadline& deadline) = 0;

  /// Says which keys will be asked for, so that a store far away sends their values as soon as they are there.
  virtual void expect(const std::vector<std::string>& keys);

  /// Takes a file in memory that serves the same rank of a later start as well, which then finds its pages there: what
  /// it holds means nothing, and nobody else has it mapped. No descriptor if there is none, or it was taken before.
  [[nodiscard]] virtual detail::Descriptor take_memory();

  /// Whether all who use it are threads of one process: then what one leaves for the others may be an address.
  [[nodiscard]] virtual bool joins_threads() const noexcept { return false; }
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/world.hpp
// Where a worker stands among the others. Core room.

#include <memory>

namespace railyard::inline v0_1 {

class RankConnector;

/// Says who this worker is. rank counts all workers from 0, local_rank those of this host, node the hosts.
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int num_nodes = 1;
  std::string host{};
  std::string address{};                       ///< by which other hosts reach this one; empty if unknown
  std::shared_ptr<RankConnector> connector{};  ///< how ranks of several hosts connect; nullptr: no proof is asked for
  int device = -1;  ///< its GPU, among those that its process is shown; -1: it was given none
};

/// Says how far apart the workers of a Scaling can be, and how far apart the ranks of a Backend may be.
enum class Reach { process, host, network };

}  // namespace railyard::inline v0_1

// ---- railyard/core/backend.hpp
// The concept of a collective backend, built from named parts. Core room.

namespace railyard::inline v0_1 {

/// Names the queue of a device on which an operation is ordered: a cudaStream_t for NCCL, nothing on CPUs.
struct Stream {
  void* handle = nullptr;
};

/// Goes with every collective: when to give up, and behind which work of the device to start.
struct Call {
  Deadline deadline = Deadline::after(std::chrono::minutes{10});
  Stream stream{};
};

/// Is an operation that has been started. wait() returns when the buffers may be used by the host again, or throws
/// CollectiveError. A GPU backend returns at once and orders the work on the stream; a CPU backend is done on return.
template <class W>
concept Work = std::movable<W> && requires(W& work, const Deadline& deadline) {
  { work.is_done() } -> std::convertible_to<bool>;
  work.wait(deadline);
};

/// Is the Work of every backend that has finished when its call returns.
struct FinishedWork {
  [[nodiscard]] static constexpr bool is_done() noexcept { return true; }
  static constexpr void wait(const Deadline& /*deadline*/) noexcept {}
};

/// Can be built: has a name, a reach, a kind of memory, options, and joins the group through a store. check() throws
/// ConfigError that names the option if the options cannot work on this host; it starts nothing.
template <class B>
concept ConnectingBackend = requires(const typename B::Options& options, const World& world, Store& store,
                                     const Deadline& deadline) {
  { B::name } -> std::convertible_to<std::string_view>;
  { B::reach } -> std::convertible_to<Reach>;
  { B::device_kind } -> std::convertible_to<DeviceKind>;
  B::check(options);
  { B::connect(options, world, store, deadline) } -> std::same_as<std::unique_ptr<B>>;
}
&&std::default_initializable<typename B::Options>;

/// Combines the values of all ranks.
template <class B>
concept ReducingBackend = requires(B& backend, Buffer out, ConstBuffer in, ReduceOp op, const Call& call) {
  { backend.all_reduce(out, op, call) } -> Work;
  { backend.reduce_scatter(in, out, op, call) } -> Work;
};

/// Moves values between all ranks.
template <class B>
concept MovingBackend = requires(B& backend, Buffer out, ConstBuffer in, std::span<const std::size_t> counts, int root,
                                 const Call& call) {
  { backend.broadcast(out, root, call) } -> Work;
  { backend.all_gather(in, out, call) } -> Work;
  { backend.all_gather_uneven(in, out, counts, call) } -> Work;
  { backend.gather(in, out, root, call) } -> Work;
  { backend.scatter(in, out, root, call) } -> Work;
  { backend.all_to_all(in, out, call) } -> Work;
  { backend.barrier(call) } -> Work;
};

/// Moves values between two ranks.
template <class B>
concept PairingBackend = requires(B& backend, Buffer out, ConstBuffer in, int peer, const Call& call) {
  { backend.send(in, peer, call) } -> Work;
  { backend.receive(out, peer, call) } -> Work;
};

/// Can be given up: every wait on this rank ends.
template <class B>
concept AbortableBackend = requires(B& backend, std::string_view reason) {
  { backend.abort(reason) }
  noexcept;
};

/// Is how the tensors of all ranks are combined. One object per rank and group; it is used by one thread at a time,
/// only abort() may come from any thread.
///
/// Laws, each of them checked by the conformance suite:
///  1. connect() returns on every rank or throws CollectiveError on every rank that is alive, by the deadline.
///  2. Operations are matched in the order in which each rank calls them. All ranks call the same operation with the
///  same
///     dtype and count; whoever does not makes every rank throw CollectiveError, and the process lives on.
///  3. all_reduce(data): in place, equal bits on every rank. reduce_scatter(in, out): in.count == size * out.count,
///  rank r
///     gets slice r. Counts of 0 and a world of 1 work; average divides by the number of ranks, not of elements.
///  4. all_gather: out.count == size * in.count, rank r's part is slice r. all_gather_uneven: counts, equal on all
///  ranks,
///     says how many elements each rank gives; out.count is their sum. all_to_all: slice r of in goes to rank r.
///  5. gather and scatter: the larger buffer matters at root only. broadcast, gather, scatter: root is equal on all
///  ranks.
///  6. send and receive between two ranks are matched in order, per direction; counts are equal on both sides.
///  7. in and out do not overlap. Nothing is kept after the Work is done.
///  8. Past the deadline, or when a rank has died or left, every other rank's call throws CollectiveError that names
///  that
///     rank; later calls throw at once. abort(reason) does the same to this rank from outside, at any time, and the
///     message carries the reason.
///  9. Wrong arguments (counts that do not fit, an unknown root, a null pointer with a count) throw ConfigError before
///     anything is sent, and the group stays usable.
template <class B>
concept Backend =
    ConnectingBackend<B> && ReducingBackend<B> && MovingBackend<B> && PairingBackend<B> && AbortableBackend<B>;

}  // namespace railyard::inline v0_1

// ---- railyard/core/block.hpp
// Samples by column: what readers of datasets give, operations change and loaders make tensors of. Core room.

#include <numeric>

namespace railyard::inline v0_1 {

/// Says what one column of a dataset holds.
struct Field {
  std::string name{};
  Dtype dtype = Dtype::f32;
  /// Of one sample: empty for a single number. A first size of -1 differs from sample to sample.
  std::vector<std::int64_t> shape{};
  /// Whether it is UTF-8 text; then dtype is u8 and shape {-1}.
  bool is_text = false;

  [[nodiscard]] bool is_ragged() const noexcept;
  /// Elements of one sample, or of one step of the first dimension where that differs.
  [[nodiscard]] std::size_t width() const noexcept;
  [[nodiscard]] static Field text(std::string name);
  friend bool operator==(const Field&, const Field&) = default;
};

/// Lists the columns of a dataset, in order; names are unique.
class Schema {
 public:
  Schema() = default;
  /// Throws: ConfigError for an empty name, or two equal ones.
  Schema(std::vector<Field> fields);
  Schema(std::initializer_list<Field> fields);

  [[nodiscard]] std::size_t size() const noexcept { return fields_.size(); }
  [[nodiscard]] const Field& operator[](std::size_t column) const noexcept { return fields_[column]; }
  [[nodiscard]] auto begin() const noexcept { return fields_.begin(); }
  [[nodiscard]] auto end() const noexcept { return fields_.end(); }
  [[nodiscard]] const std::vector<Field>& fields() const noexcept { return fields_; }

  /// Returns which column has the name, or nothing.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;
  /// Returns which column has the name. Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] std::size_t index_of(std::string_view name) const;
  /// The names, as messages show them: of very many only the first.
  [[nodiscard]] std::string names() const;
  friend bool operator==(const Schema&, const Schema&) = default;

 private:
  // By sorting: files have up to millions of columns.
  void check() const;

  std::vector<Field> fields_;
};

/// Holds one column of some samples, one after another in memory. Cheap to copy: copies and slices share the elements,
/// which never change.
class Column {
 public:
  Column() = default;

  /// Takes elements over. Shapes: rows x field.width() of the field's dtype.
  /// Throws: ConfigError if the size does not fit, or the field is ragged.
  template <class T>
  Column(const Field& field, std::vector<T> elements) {
    const auto owner = std::make_shared<const std::vector<T>>(std::move(elements));
    const std::size_t row = field.width() * sizeof(T);
    if (field.is_ragged() || sizeof(T) != size_of(field.dtype) || row == 0 || owner->size() % field.width() != 0) {
      throw ConfigError{detail::compose(
          "{} elements of {} bytes are no column \"{}\" of {} x {}: give it whole rows of elements of that dtype",
          owner->size(), sizeof(T), field.name, field.width(), name_of(field.dtype))};
    }
    *this = Column{std::shared_ptr<const std::byte>{owner, reinterpret_cast<const std::byte*>(owner->data())},
                   owner->size() / field.width(), row};
  }

  /// Shares memory that somebody owns: rows of row_bytes each.
  Column(std::shared_ptr<const std::byte> bytes, std::size_t rows, std::size_t row_bytes) noexcept;

  /// Shares memory of samples that differ in size: sample i is the bytes from (*ends)[i - 1], or 0, to (*ends)[i].
  Column(std::shared_ptr<const std::byte> bytes, std::shared_ptr<const std::vector<std::uint64_t>> ends) noexcept;

  /// Makes a column of texts.
  [[nodiscard]] static Column texts(std::span<const std::string> texts);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] bool is_ragged() const noexcept { return ends_ != nullptr; }

  /// The bytes of one sample, which counts from 0 and is below rows().
  [[nodiscard]] std::span<const std::byte> sample(std::size_t row) const noexcept;
  [[nodiscard]] std::string_view text(std::size_t row) const noexcept;
  /// The elements of one sample. T has the size and alignment of the field's dtype.
  template <class T>
  [[nodiscard]] std::span<const T> values(std::size_t row) const noexcept {
    const auto bytes = sample(row);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// All elements, sample after sample.
  template <class T>
  [[nodiscard]] std::span<const T> values() const noexcept {
    const auto all = bytes();
    return {reinterpret_cast<const T*>(all.data()), all.size() / sizeof(T)};
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;

  /// Returns the samples [begin, end), sharing the memory.
  [[nodiscard]] Column slice(std::size_t begin, std::size_t end) const noexcept;

  /// Returns a copy of the given samples in that order, each below rows().
  [[nodiscard]] Column take(std::span<const std::size_t> rows) const;

 private:
  std::shared_ptr<const std::byte> bytes_;
  std::size_t rows_ = 0;
  std::size_t row_bytes_ = 0;
  std::shared_ptr<const std::vector<std::uint64_t>> ends_;
  std::size_t first_ = 0;  // row of the shared memory
};

/// Holds some samples of a dataset: a column per field, and the number that each sample has in its source.
class Block {
 public:
  Block();
  /// Throws: ConfigError if there are not as many columns as fields, or columns and ids differ in their rows.
  Block(std::shared_ptr<const Schema> schema, std::vector<Column> columns, std::vector<std::uint64_t> ids);

  [[nodiscard]] std::size_t rows() const noexcept { return ids_.size(); }
  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] const Schema& schema() const noexcept;
  [[nodiscard]] const std::shared_ptr<const Schema>& shared_schema() const noexcept { return schema_; }
  [[nodiscard]] const std::vector<Column>& columns() const noexcept { return columns_; }
  [[nodiscard]] const Column& operator[](std::size_t column) const noexcept { return columns_[column]; }
  /// Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] const Column& column(std::string_view name) const;
  /// What tells a sample from all others of its source: its number there, from 0. Messages and per-sample randomness
  /// use it.
  [[nodiscard]] std::span<const std::uint64_t> ids() const noexcept;

  [[nodiscard]] Block slice(std::size_t begin, std::size_t end) const;
  [[nodiscard]] Block take(std::span<const std::size_t> rows) const;

 private:
  std::shared_ptr<const Schema> schema_;
  std::vector<Column> columns_;
  std::vector<std::uint64_t> ids_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/callback.hpp
// What a callback is told, and the concept of one. Core room.

#include <filesystem>

namespace railyard::inline v0_1 {

/// Describes a run that starts.
struct RunInfo {
  std::string name{};
  std::filesystem::path path{};  ///< the run's directory
  std::string backend{};
  std::string scaling{};
  int world_size = 0;
  std::uint64_t seed = 0;
};

/// Is one report: call number `index` (from 0) of worker.report() on every rank.
struct Report {
  std::int64_t index = 0;
  double seconds = 0;                             ///< since fit() was called
  std::vector<std::optional<Metrics>> by_rank{};  ///< empty for a rank that had not reported when the run ended
  [[nodiscard]] const Metrics& metrics() const;
};

/// Says what a callback wants after a report: on_report may return it, or nothing at all.
enum class Next : std::uint8_t {
  go_on,
  stop,  ///< ask the workers to stop, as Ctrl-C does, but the run counts as a success: see Worker::should_stop()
};

/// Says that a run goes on with another number of workers.
struct Resize {
  int from = 0;
  int to = 0;
  std::uint64_t step = 0;  ///< the last one that is done
};

/// Describes how a run ended.
struct RunEnd {
  std::string error{};  ///< empty if it succeeded
  Metrics metrics{};    ///< the last ones reported
  double seconds = 0;
};

namespace detail {

template <class C>
concept HearsStart = requires(C& callback, const RunInfo& info) {
  callback.on_start(info);
};
template <class C>
concept HearsReport = requires(C& callback, const Report& report) {
  callback.on_report(report);
};
template <class C>
concept HearsResize = requires(C& callback, const Resize& resize) {
  callback.on_resize(resize);
};
template <class C>
concept HearsEnd = requires(C& callback, const RunEnd& end) {
  callback.on_end(end);
};

}  // namespace detail

/// Is told about a run, in the process that called fit() and on that thread: any subset of on_start(RunInfo),
/// on_report(Report), on_resize(Resize) and on_end(RunEnd), at least one of them. on_report may return a Next to end
/// the run early.
///
/// A report is told when all ranks have made it, and never without rank 0's metrics before the run ends. It is told
/// without the missing ranks, by_rank has nothing there, if others have gone on for five seconds and they have never
/// reported at all (only rank 0 reports), or if rank 0 is 64 reports ahead of them, or if the run ends before. Metrics
/// of a rank that is 1024 reports ahead of rank 0 are not kept for callbacks.
///
/// Laws: on_start comes first and once, on_end last and once, also when the run fails; reports come in order. An
/// exception out of a callback ends the run, and Result::error names the callback's hook.
template <class C>
concept Callback = std::move_constructible<C> &&
    (detail::HearsStart<C> || detail::HearsReport<C> || detail::HearsResize<C> || detail::HearsEnd<C>);

}  // namespace railyard::inline v0_1

// ---- railyard/core/confusion_matrix.hpp
// How often each class was taken for each, and precision, recall and F1 of that. Core room.

namespace railyard::inline v0_1 {

/// Counts samples by their class and the class they were taken for. A ratio of nothing is 0.
class ConfusionMatrix {
 public:
  /// Throws: ConfigError for no classes.
  explicit ConfusionMatrix(std::size_t num_classes);

  /// Adds samples. Labels that are ignored_label are left out.
  /// Throws: ConfigError if there are not as many predictions as labels; DataError for one that is no class.
  void add(std::span<const std::int64_t> predictions, std::span<const std::int64_t> labels);
  /// Throws: ConfigError if the other one has another number of classes.
  void merge(const ConfusionMatrix& other);
  void reset() noexcept;

  [[nodiscard]] std::size_t num_classes() const noexcept { return num_classes_; }
  /// How many samples of class `label` were taken for class `prediction`; both are below num_classes().
  [[nodiscard]] std::uint64_t count(std::size_t label, std::size_t prediction) const noexcept;
  /// How many samples of a class there are.
  [[nodiscard]] double support(std::size_t label) const noexcept;
  /// Of the samples taken for a class, the part that is of it.
  [[nodiscard]] double precision(std::size_t label) const noexcept;
  /// Of the samples of a class, the part that was taken for it.
  [[nodiscard]] double recall(std::size_t label) const noexcept;
  /// The harmonic mean of precision and recall.
  [[nodiscard]] double f1(std::size_t label) const noexcept;
  /// The mean of F1 over the classes that there are in labels or predictions: every class counts the same.
  [[nodiscard]] double macro_f1() const noexcept;
  /// The mean of F1 over the samples: every class counts as often as it is.
  [[nodiscard]] double weighted_f1() const noexcept;
  /// The part of samples that were taken for what they are; NaN while nothing has been added.
  [[nodiscard]] double accuracy() const noexcept;
  /// The accuracy.
  [[nodiscard]] double value() const noexcept;

  /// Row after row: a row per label, a column per prediction.
  [[nodiscard]] std::span<double> sums() noexcept;
  [[nodiscard]] std::span<const double> sums() const noexcept;

  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  [[nodiscard]] double at(std::size_t label, std::size_t prediction) const noexcept;
  [[nodiscard]] double taken_for(std::size_t prediction) const noexcept;
  [[nodiscard]] std::size_t index_of(std::int64_t number, std::string_view what) const;

  std::size_t num_classes_;
  std::vector<double> counts_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/dataset_source.hpp
// The concept of where the samples of a dataset come from. Core room.

namespace railyard::inline v0_1 {

/// Says in which of its files a source stands: all before it has been read.
struct FilePlace {
  std::uint64_t file = 0;
  std::uint64_t samples = 0;  ///< of the files before it
  std::uint64_t damaged = 0;  ///< that were left out of them
};

/// Reads the samples of a source one after another; used by one thread at a time.
class BlockReader {
 public:
  BlockReader() = default;
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;
  virtual ~BlockReader() = default;

  /// Returns the next samples, at most so many and at least one; an empty block at the end.
  /// Throws: DataError that names the file, the line or offset and the column of what is damaged.
  [[nodiscard]] virtual Block next(std::size_t most_rows) = 0;
  /// Where it stands among the files of a FileStreamSource.
  [[nodiscard]] virtual FilePlace place() const;
};

/// Is where samples come from. A value that is cheap to copy and opens nothing before it is read; all its functions may
/// be called on several threads at once, and in processes forked from the one that made it.
///
/// One that reads files may say which, by files() that returns their paths: then a run that goes on is told when they
/// have changed, and caches in files are made anew. It may have fingerprint(), a std::uint64_t that is another when its
/// samples are for other reasons, such as its settings: these caches compare it as well, and a run that goes on tells
/// of it. It may have skipped(), how many damaged samples it has left out so far, of which loaders tell. And one that
/// never ends may say so by is_endless(), a truth value.
///
/// Laws: every open() gives the same samples in the same order, and open(from) goes on with sample number `from`.
template <class S>
concept DatasetSource = std::copy_constructible<S> && requires(const S& source, std::uint64_t from) {
  { source.schema() } -> std::convertible_to<Schema>;
  { source.count() } -> std::convertible_to<std::optional<std::uint64_t>>;  // nothing: known only at the end
  { source.describe() } -> std::convertible_to<std::string>;                // for messages: "CSV data/*.csv"
  { source.open(from) } -> std::convertible_to<std::unique_ptr<BlockReader>>;
};

/// Is a source that can be asked for any of its samples in about the same time. Knows its count.
/// Law: read(ids) gives the samples of these numbers in that order, as open() would.
template <class S>
concept IndexedSource = DatasetSource<S> && requires(const S& source, std::span<const std::uint64_t> ids) {
  { source.read(ids) } -> std::convertible_to<Block>;
};

/// Is a source of files that are read from begin to end, which can leave out those before a place.
/// Law: open(from, place) gives what open(from) does, if a reader of it has told the place when sample `from` was next.
template <class S>
concept FileStreamSource = DatasetSource<S> && requires(const S& source, std::uint64_t from, const FilePlace& place) {
  { source.open(from, place) } -> std::convertible_to<std::unique_ptr<BlockReader>>;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/pool_statistics.hpp
// What a pool of memory holds. Core room.

namespace railyard::inline v0_1 {

/// Says what a pool of memory holds, and what it has been asked for since it was made. Blocks are a little larger than
/// what was asked for.
struct PoolStatistics {
  std::size_t in_use_bytes = 0;   ///< in blocks that have been given out
  std::size_t peak_bytes = 0;     ///< the most that ever was in use
  std::size_t held_bytes = 0;     ///< in use, or kept for the next block instead of going back to the system
  std::uint64_t allocations = 0;  ///< blocks that have ever been given out
  std::uint64_t exhausted = 0;  ///< requests for which there was no room, and which LibTorch's own allocator has served
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/heap.hpp
// Gives out blocks of one range of memory, such as one that several processes map. Core room.

#include <mutex>
#include <new>

#include <sched.h>
#include <sys/mman.h>

namespace railyard::inline v0_1 {

namespace detail {

/// Is held for some dozen instructions, also by threads that are more than the cores.
class SpinLock {
 public:
  void lock() noexcept;
  void unlock() noexcept;

 private:
  std::atomic<bool> is_taken_{false};
};

/// Knows whether this is the process that made it, or a copy in a child that was forked later. Asking costs one load.
class HomeMark {
 public:
  HomeMark() noexcept;
  HomeMark(const HomeMark&) = delete;
  HomeMark& operator=(const HomeMark&) = delete;
  ~HomeMark();

  [[nodiscard]] bool is_home() const noexcept;

 private:
  [[nodiscard]] static std::size_t size_bytes() noexcept;

  void* page_;
};

/// Gives out blocks of one range of memory, aligned to 64 bytes. Free neighbours are joined at once; a request takes
/// the block that was freed last among those of its size, or else one of the smallest that fit ("two-level segregated
/// fit", Masmano et al. 2004). Pages become real as they are used for the first time.
/// Any thread may give a block back, also after the owner has let go of the heap, which lives as long as its last
/// block. In a child that was forked later it gives out nothing and takes nothing back: the memory may be shared with
/// the process that it belongs to. Cost: some ten nanoseconds.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr std::size_t alignment = 64;

  /// base: aligned to 64 bytes. keeps_mapping: whatever must live as long as the range is used. is_shared: other
  /// processes map it, too. max_cached: above so many free bytes the pages of large free blocks go back to the system.
  Heap(std::byte* base, std::size_t size, std::shared_ptr<const void> keeps_mapping, bool is_shared,
       std::size_t max_cached = ~std::size_t{0});
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap() = default;

  /// Returns a block of at least size_bytes, or nullptr if there is no room, or nothing was asked for.
  [[nodiscard]] void* allocate(std::size_t size_bytes) noexcept;

  /// Gives a block of this heap back. nullptr is none.
  void deallocate(void* memory) noexcept;
  /// Gives a block back to the heap that it came from.
  static void give_back(void* memory) noexcept;

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }
  [[nodiscard]] std::byte* end() const noexcept { return end_; }

  /// Keeps an object for as long as the heap lives.
  void keep(std::shared_ptr<const void> object);

  [[nodiscard]] bool contains(const void* memory) const noexcept;

  /// Gives the pages of free blocks back to the system.
  void trim() noexcept;

  /// All zero in a forked child, where the lock may be held by a thread that is not there.
  [[nodiscard]] std::size_t max_cached() const noexcept { return max_cached_; }
  [[nodiscard]] PoolStatistics statistics() const noexcept;

 private:
  static constexpr unsigned steps_log2 = 3;  // sizes of one list differ by an eighth at most
  static constexpr unsigned steps = 1U << steps_log2;
  static constexpr unsigned levels = 48;
  static constexpr std::size_t smallest_worth_releasing = std::size_t{128} << 10U;

  // Lies before the payload of every block. Free ones have their links in the payload.
  struct Block {
    Heap* heap = nullptr;
    std::size_t size = 0;       // of the payload
    Block* previous = nullptr;  // in memory
    bool is_free = true;
    bool is_clean = true;  // free, and its pages are not there
    std::array<std::byte, 38> padding{};

    [[nodiscard]] std::byte* payload() noexcept;
  };
  static_assert(sizeof(Block) == alignment);
  struct Links {
    Block* next = nullptr;
    Block* previous = nullptr;
  };

  [[nodiscard]] static Links& links(Block& block) noexcept;
  [[nodiscard]] static std::byte* end_of(Block& block) noexcept;
  [[nodiscard]] Block* next_of(Block& block) const noexcept;
  [[nodiscard]] static std::byte* page_up(std::byte* at) noexcept;
  [[nodiscard]] static std::byte* page_down(std::byte* at) noexcept;

  // The list for blocks of a size: level is its highest bit, step the three below.
  struct Place {
    unsigned level = 0;
    unsigned step = 0;
  };
  [[nodiscard]] static Place place_of(std::size_t size) noexcept;

  void insert(Block& block) noexcept;

  void remove(Block& block) noexcept;

  [[nodiscard]] Block* find(std::size_t size) const noexcept;

  // Cuts what is not needed off a block that is in no list.
  void split(Block& block, std::size_t size) noexcept;

  void take_back(Block& freed) noexcept;

  // What lies beyond touched_ has never been there.
  [[nodiscard]] std::size_t clean_bytes(Block& block) const noexcept;
  [[nodiscard]] std::size_t cached() const noexcept;

  void release_pages() noexcept;

  std::shared_ptr<const void> keeps_mapping_;
  std::byte* begin_;
  std::byte* end_;
  std::byte* touched_;  // the end of what has ever been given out
  std::size_t max_cached_;
  bool is_shared_;
  HomeMark home_{};
  mutable SpinLock lock_{};
  std::array<std::array<Block*, steps>, levels> heads_{};
  std::array<std::uint8_t, levels> step_bits_{};
  std::uint64_t level_bits_ = 0;
  std::size_t clean_ = 0;  // bytes of clean blocks below touched_
  PoolStatistics statistics_{};
  std::size_t num_blocks_ = 0;
  std::shared_ptr<Heap> self_;  // while blocks are out
  std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/host_memory.hpp
// What a backend offers whose ranks see each other's memory. Core room.

#include <future>

namespace railyard::inline v0_1 {

/// Says what an exchange is for, which all ranks must say alike before one reads what another has shown.
enum class Purpose : std::uint8_t {
  gradients,  ///< of a backward pass
  weights,    ///< are shared by an optimizer
  update,     ///< of shared weights
};

/// Is the memory that the ranks of one host share, for whoever can do more with it than a backend's operations: read
/// the others' values where they lie, and write to them. Used by one thread at a time, and counted among the operations
/// of the backend: all ranks do the same in the same order. Where the group spans several hosts, each of them has such
/// memory, with equally many ranks, which count from 0 on each host, and one line to those that have their number on
/// the other hosts.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  virtual ~HostMemory() = default;

  /// This rank among those of its host, and how many they are.
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// This host among those of the group, and how many they are. The group's ranks are those of host 0, then of host 1.
  [[nodiscard]] virtual int host() const noexcept = 0;
  [[nodiscard]] virtual int num_hosts() const noexcept = 0;
  /// Adds up, in the order of hosts, what this rank and those with its number on the other hosts have; all of them get
  /// the same bits. Not for memory that another rank of this host may write to meanwhile.
  /// Throws: CollectiveError as every collective does.
  virtual void add_between_hosts(const Buffer& data, const Deadline& deadline) = 0;
  /// Begins to do so, while the caller may do what is no exchange and no operation; the future ends it.
  [[nodiscard]] virtual std::future<void> begin_between_hosts(const Buffer& data, const Deadline& deadline) = 0;

  /// The most bytes that one record may have.
  static constexpr std::size_t max_record_bytes = std::size_t{16} << 10U;

  /// Begins an exchange of num_steps steps: shows a record and waits until all ranks have shown theirs. From here to
  /// the last step all ranks may read and write what the others have shown the places of. Each step has the deadline's
  /// whole budget.
  /// Throws: CollectiveError as every collective does, also where ranks differ in the purpose.
  virtual void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) = 0;
  /// Says that the exchange has one more step than begin() was told. All ranks say so between the same two steps.
  virtual void add_step() noexcept = 0;
  /// Takes one more step of the exchange: shows another record, which may be empty, and waits for all. What a rank has
  /// written before, all see after.
  virtual void step(std::span<const std::byte> record) = 0;
  /// Says that this rank leaves the others' memory alone until its next step: whoever gives up meanwhile need not wait
  /// for it.
  virtual void rest() noexcept = 0;
  /// What a rank has shown in the last step; valid until the next one.
  [[nodiscard]] virtual std::span<const std::byte> record_of(int rank) const = 0;

  /// Names memory of this rank to the others; 0 if they cannot see it.
  [[nodiscard]] virtual std::uint64_t place_of(const void* memory) const noexcept = 0;
  /// Where this rank sees memory that another one has named, which is not 0.
  [[nodiscard]] virtual std::byte* at(int rank, std::uint64_t place) const noexcept = 0;

  /// Gives out memory that all ranks see.
  [[nodiscard]] virtual const std::shared_ptr<detail::Heap>& heap() const noexcept = 0;

  /// A second line of exchanges through the same memory, for one other thread of each rank: its steps are counted apart
  /// from the backend's operations. nullptr if this is it. All ranks call it: the first call connects the line to other
  /// hosts, which costs some milliseconds, and one thread from then on. Throws: CollectiveError if that fails.
  [[nodiscard]] virtual HostMemory* side(const Deadline& deadline) = 0;
  /// Gives up, from any thread: ends every wait of this rank in any line, and of those who wait for it.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// After abort(): returns once no other rank is at what this one has shown in the exchange under way.
  virtual void withdraw() noexcept = 0;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/launch_config.hpp
// How a process finds the others that an engine has started beside it. Core room.

namespace railyard::inline v0_1 {

/// Says which of the launched processes this is and how it reaches the first one, which leads. Whatever is left empty
/// is found out from what Slurm, MPI, torchrun or Kubernetes have put into the environment.
struct LaunchConfig {
  int process = -1;       ///< which of the launched processes this is, from 0; -1 asks the environment
  int num_processes = 0;  ///< how many there are; 0 asks the environment
  std::string leader{};   ///< "host:port" on which process 0 listens
  std::string job{};      ///< what two jobs differ by, such as the number that a scheduler has given
  std::string network{};  ///< name ("eth0") or network ("10.0.0.0/8") of the address by which others reach this host
  std::filesystem::path rendezvous{};   ///< a folder that all processes see: process 0 leaves its address there
  std::filesystem::path secret_file{};  ///< mode 600; empty takes RAILYARD_SECRET_FILE or RAILYARD_SECRET, or else a
                                        ///< random secret that goes through the rendezvous folder
  std::optional<bool> tls{};  ///< TLS 1.3 for all that processes send to each other; unset takes RAILYARD_TLS (1 or 0),
                              ///< or else none: what is sent can be read on its way. The same in all processes.
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/demangled.hpp
// The names of types as messages show them. Core room.

#include <cstdlib>
#include <typeinfo>

#include <cxxabi.h>

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] std::string demangled(const std::type_info& type);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/scaling.hpp
// The concept of how workers come to be, and the two ends between a worker and its supervisor. Core room.

#include <exception>

namespace railyard::inline v0_1 {

/// Is a page that a worker writes and its supervisor reads while both run; in shared memory if they are two processes.
/// The times are of the monotonic clock, in nanoseconds.
struct WorkerPage {
  std::atomic<std::uint64_t> samples{0};          ///< samples this rank has been given, in all
  std::atomic<std::uint64_t> steps{0};            ///< steps that have ended, those of earlier attempts included
  std::atomic<std::int64_t> epoch{-1};            ///< the epoch it is in, -1 before the first
  std::atomic<std::uint64_t> epoch_size{0};       ///< samples of one epoch, all ranks together; 0 if unknown
  std::atomic<std::uint64_t> epoch_done{0};       ///< samples of this epoch given to all ranks together so far
  std::atomic<std::uint64_t> collectives{0};      ///< collectives begun
  std::atomic<std::int64_t> waiting_since_ns{0};  ///< when the one it is in was begun, 0 while in none
  std::atomic<std::int64_t> stepped_at_ns{0};     ///< when the last step of this attempt ended, 0 before the first
  std::atomic<bool> stop_requested{false};        ///< written by the supervisor
  std::atomic<bool> leave_requested{false};       ///< likewise: save what must not be lost, and return
  std::atomic<bool> resize_requested{false};      ///< likewise: copy it, and return; another number of workers goes on
};

/// Is memory that a worker fills for its supervisor.
struct Snapshot {
  int slot = -1;
  std::span<std::byte> bytes{};
};

/// Says what a snapshot is for: those of one kind never wait for those of the other.
enum class SnapshotKind : std::uint8_t {
  checkpoint,  ///< to be written
  memory,      ///< to go on from if a worker is lost, and replaced by the next one
};

/// How many snapshots of each kind each worker may have at once.
inline constexpr int num_snapshots = 2;
/// Of both kinds together: slots count from 0 to this.
inline constexpr int num_snapshot_slots = 2 * num_snapshots;

/// Is the worker's end: all that a training function's surroundings need, however the worker came to be.
class WorkerLink {
 public:
  WorkerLink() = default;
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;
  virtual ~WorkerLink() = default;

  [[nodiscard]] virtual const World& world() const noexcept = 0;
  [[nodiscard]] virtual Store& store() noexcept = 0;
  [[nodiscard]] virtual WorkerPage& page() noexcept = 0;
  /// What the supervisor has told every worker of this start.
  [[nodiscard]] virtual std::string_view briefing() const noexcept = 0;

  /// Returns memory which the supervisor sees as well, and keeps if this worker dies. It is the worker's until a
  /// message has told of it, then the supervisor's. Waits while all of the kind are the supervisor's.
  /// Throws: CollectiveError if the group ends meanwhile, Error if the memory cannot be had.
  [[nodiscard]] virtual Snapshot take_snapshot(std::size_t size_bytes, SnapshotKind kind) = 0;
  /// How many bytes of memory there are already, since an earlier start perhaps, for snapshots of the kind of all
  /// workers that this one's supervisor has on this host, if each is to have so many.
  [[nodiscard]] virtual std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept = 0;
  /// Gives back a snapshot that no message has told of.
  virtual void drop_snapshot(int slot) noexcept = 0;
  /// Waits until the supervisor has given the slot back. Throws: CollectiveError if the group ends meanwhile.
  virtual void await_snapshot(int slot) = 0;
  /// Returns what a rank of an earlier start has put into a snapshot that the supervisor holds, at least so much of it.
  /// Valid until the next call for the same snapshot.
  [[nodiscard]] virtual std::span<const std::byte> held_snapshot(int rank, int slot, std::size_t size_bytes) = 0;
  /// Whether that finds snapshots of the rank: where several processes look after workers, each has those of its own.
  [[nodiscard]] virtual bool sees_snapshots_of([[maybe_unused]] int rank) const noexcept { return true; }

  /// Hands a message to the supervisor: in order, in about a microsecond, and not lost if this worker dies right after.
  /// Waits only while the supervisor is megabytes behind. Throws: ConfigError if the message is larger than 1 MiB.
  virtual void post(std::span<const std::byte> message) = 0;

  /// Sets what is run, at most once and on another thread, when the group is to end: it must end every wait of this
  /// worker. Runs at once if the group is already ending. An empty function takes it away, and does not return while
  /// the former one is running.
  virtual void on_abort(std::function<void(std::string_view reason)> handler) = 0;
};

/// Is what a worker runs. Called by every worker, by several at once where workers are threads.
using WorkerBody = std::function<void(WorkerLink&)>;

/// Reads from the snapshots of a process's own workers, whose ranks are counted among all: as WorkerGroup::snapshot().
using SnapshotReader =
    std::function<std::span<const std::byte>(int rank, int slot, std::size_t begin, std::size_t size_bytes)>;
/// Answers what the process that leads asks of another one that looks after workers, on a thread of its own there.
/// snapshot throws Error once that process is to end.
using RequestHandler =
    std::function<std::vector<std::byte>(std::span<const std::byte> request, const SnapshotReader& snapshot)>;
/// Says that such an answer is not waited for any longer: the request may be carried out yet.
class LateAnswerError final : public Error {
 public:
  using Error::Error;
};

/// Says how a worker ended.
struct WorkerExit {
  enum class Kind : std::uint8_t {
    returned,   ///< its body returned
    threw,      ///< an exception left its body; message is what() of it
    exited,     ///< it called exit() or the like before its body returned; code is the status
    signalled,  ///< a signal ended it; code is the signal, message its likely reason
    lost,       ///< its host, or the process that looks after it there, is gone; message says which
  };
  Kind kind = Kind::returned;
  int code = 0;
  std::string message{};
  std::vector<int> blamed{};     ///< the ranks that its CollectiveError blames
  bool is_consequence = false;   ///< a CollectiveError: most likely another rank failed before
  bool is_config_error = false;  ///< a ConfigError: the same call would throw it again
};

namespace detail {

[[nodiscard]] std::string text_of(const std::exception_ptr& exception, int depth = 0);

// Also tells of the exceptions that std::throw_with_nested has put below this one.
[[nodiscard]] std::string text_of(const std::exception& error, int depth);

/// Returns what an exception of any type says.
[[nodiscard]] std::string text_of(const std::exception_ptr& exception, int depth);

}  // namespace detail

/// Returns how a worker ended whose body threw the exception; none if its thread was unwound without one.
[[nodiscard]] WorkerExit exit_of(const std::exception_ptr& exception);

/// A worker has posted a message.
struct MessageEvent {
  int rank = 0;
  std::vector<std::byte> bytes{};
};
/// A worker has written a line to standard output or standard error; without the line feed.
struct OutputEvent {
  int rank = 0;
  bool is_error = false;
  std::string line{};
};
/// A worker has ended. All its messages and output lines came before.
struct ExitEvent {
  int rank = 0;
  WorkerExit exit{};
};
/// A worker has shown no sign of life for longer than GroupPlan::silence_limit; reported once.
struct SilenceEvent {
  int rank = 0;
  std::string message{};  ///< since when, and what the system says about it (stopped, in uninterruptible sleep)
};
/// SIGINT, SIGTERM or SIGHUP has reached the supervisor.
struct SignalEvent {
  int signal = 0;
};
/// The group as a whole is broken, such as by the loss of the process that starts workers. ExitEvents still follow.
struct BrokenEvent {
  std::string message{};
};
using GroupEvent = std::variant<MessageEvent, OutputEvent, ExitEvent, SilenceEvent, SignalEvent, BrokenEvent>;

/// Is the supervisor's end of a running group. Used by the thread that started it.
class WorkerGroup {
 public:
  WorkerGroup() = default;
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  /// Leaves nothing behind: whatever still runs is killed and reaped, handlers of signals are put back.
  virtual ~WorkerGroup() = default;

  /// Waits for the next event, or returns nothing at the deadline. After one ExitEvent per rank there are only signals,
  /// which are not waited for.
  [[nodiscard]] virtual std::optional<GroupEvent> next(const Deadline& deadline) = 0;
  /// Sets stop_requested on every worker's page.
  virtual void request_stop() = 0;
  /// Sets leave_requested as well.
  virtual void request_leave() = 0;
  /// Sets resize_requested on every worker's page.
  virtual void request_resize() = 0;
  /// Runs the on_abort handler of every worker that is still there.
  virtual void abort(std::string_view reason) = 0;
  /// Ends every worker that is still there by force. Threads cannot be: the program ends with a message that names
  /// them.
  virtual void kill() = 0;
  /// From now on a worker that dies, and has not said that it would, takes all others with it by force, as soon as that
  /// is known, until it is told otherwise. Where workers cannot be ended by force, nothing comes of it.
  virtual void die_together([[maybe_unused]] bool they_do) {}
  /// Whether workers can be ended by force, and the program lives on.
  [[nodiscard]] virtual bool can_kill() const noexcept = 0;
  [[nodiscard]] virtual const WorkerPage& page(int rank) const = 0;
  /// Returns, by rank, the calls that its body is in at this moment, the innermost first, one a line; empty for a rank
  /// that has ended or does not answer in time.
  [[nodiscard]] virtual std::vector<std::string> stacks(const Deadline& deadline) = 0;

  /// Returns so many bytes, from `begin` on, of what the rank has put into its snapshot. Where it is another host's
  /// they are fetched, and stay until the next call: so much memory is needed. On any thread, one at a time. Throws:
  /// Error if they are lost.
  [[nodiscard]] virtual std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                            std::size_t size_bytes) = 0;
  /// Takes a snapshot over that a message has told of: it stays as it is, restarts included, until it is given back.
  virtual void hold_snapshot(int rank, int slot) noexcept = 0;
  /// Gives a snapshot back to its worker. May be called on any thread.
  virtual void release_snapshot(int rank, int slot) noexcept = 0;

  /// Which process looks after the rank; 0 is this one.
  [[nodiscard]] virtual int process_of([[maybe_unused]] int rank) const { return 0; }
  /// Returns what it is called where it was started, and where it is, for messages.
  [[nodiscard]] virtual std::string name_of_process(int process) const;
  /// Sends a request to another of these processes, and returns what waits for the answer of its RequestHandler, and
  /// has to be called. One request of each process at a time; on any thread. Waiting throws: Error if the process is
  /// lost, or what its handler has thrown; LateAnswerError if that has read nothing from a snapshot for too long.
  [[nodiscard]] virtual std::function<std::vector<std::byte>()> send_request(
      int process, [[maybe_unused]] std::span<const std::byte> request);

  /// Whether every worker sees the snapshots of all ranks: see WorkerLink::held_snapshot().
  [[nodiscard]] virtual bool shares_snapshots() const noexcept = 0;
  /// Whether as many workers as before, started again, find these snapshots, which the supervisor holds of each rank:
  /// every worker those of the ranks of its own process at least. Only after one ExitEvent per rank.
  [[nodiscard]] virtual bool keeps_snapshots([[maybe_unused]] std::span<const std::uint8_t> slots);
  /// Whether the process that looks after the rank is the one that has done so since the last start.
  [[nodiscard]] virtual bool has_snapshots_of([[maybe_unused]] int rank) const { return true; }

  /// Starts workers anew, at most as many as at first, each with a new page and none of the messages and keys of
  /// before. Only after one ExitEvent per rank. Throws: as Scaling::start.
  virtual void restart(int num_workers, std::string_view briefing) = 0;
  /// Whether restart() would have to fork this process once more: not while other threads of it are at work.
  [[nodiscard]] virtual bool forks_to_restart() const = 0;

  /// Says which hosts, or processes that look after workers there, have been lost with workers of the last start; empty
  /// if none.
  [[nodiscard]] virtual std::string lost_hosts() const;
};

/// Says what to start.
struct GroupPlan {
  int num_workers = 1;
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
  std::string briefing{};  ///< for every worker, at most max_briefing_bytes
  int most_workers = 0;    ///< how many a restart may ask for, if more than num_workers
  /// Called before this process is forked, when its other threads have to rest, and again right after, in this process,
  /// also when the fork has failed. May be empty.
  std::function<void(bool begins)> on_fork{};
};

inline constexpr std::size_t max_briefing_bytes = 8192;

/// Is how workers come to be.
///
/// Laws, each of them checked by the tests:
///  1. start() returns once every worker has been created; each runs body with its own link. World::rank counts them
///  from 0.
///  2. Every worker that was started yields exactly one ExitEvent, however it ends.
///  3. Messages of one rank arrive in order and before its ExitEvent.
///  4. If the supervisor ends, by whatever cause, so do the workers.
///  5. restart() makes workers as start() has, from the program as it was when start() was called.
///  6. The destructor of the group leaves no process, thread, descriptor, shared memory or handler of a signal behind.
template <class S>
concept Scaling = std::default_initializable<S> && requires(S& scaling, const GroupPlan& plan, const WorkerBody& body) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::reach } -> std::convertible_to<Reach>;
  { S::copies_function } -> std::convertible_to<bool>;  // does each worker need a copy made by its copy constructor?
  { scaling.start(plan, body) } -> std::same_as<std::unique_ptr<WorkerGroup>>;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/joining.hpp
// The concept of a Scaling whose processes something else has started: they find each other first. Core room.

namespace railyard::inline v0_1 {

/// Says which GPUs a process is shown, where each worker is to have one.
struct JoinDevices {
  std::int32_t count = -1;  ///< -1: none are asked for
  std::string only{};       ///< names it, if there is no more than one
  std::string how{};        ///< how they were found, in words
};

/// Says where a process listens that leads.
struct LeaderPlace {
  int process = 0;
  std::string host{};
  int port = 0;
  std::uint64_t generation = 0;  ///< of its leading: who means another is turned away
};

/// Says what a process knows that has lost the one that led.
struct LostLead {
  bool may_go_on = false;       ///< a process that is left may lead instead: whoever has started them leaves them alone
  int process = 0;              ///< which is lost
  int own_process = 0;          ///< which asks
  std::string note{};           ///< what it has asked to remember, last
  std::uint64_t num_steps = 0;  ///< the most that any worker of this process had ended since they were started
};

/// Says what one process brings with it when the processes of a run find each other.
struct JoinPlan {
  LaunchConfig launch{};
  int num_workers = 1;      ///< that this process makes
  bool is_elastic = false;  ///< num_workers is the most of all processes together, of which this one makes its share;
                            ///< those that are lost are done without, and may come back
  std::string settings{};   ///< what must be the same in all processes, in words
  std::chrono::nanoseconds timeout = std::chrono::minutes{1};
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};  ///< after which another process counts as lost
  std::function<void(const std::string& line)> say{};                 ///< is told what the user should see
  JoinDevices devices{};
  RequestHandler on_request{};  ///< where this process follows
  /// Returns where the one listens that was chosen to lead after process 0, if the run goes on under such a one.
  std::function<std::optional<LeaderPlace>()> find_chosen{};
};

/// Is a Scaling of processes that others have started. One of them leads: only there is start() called, for the workers
/// of all; the others follow, and make and end theirs as they are told.
///
/// Laws: by the timeout join() returns in every process, or throws in every one that is alive; where it has returned
/// before the leader's throws, the first hear() throws the same. What the leader tells is heard by all others, in
/// order. follow() returns when the leader has told the next text, and leaves no worker behind; if the leader is lost,
/// the followers' calls throw HostLostError. room() lets in who has come back. When the leader is lost, one of the
/// others may take its place, and see to it that it is the only one: it calls offer(), has the others call
/// try_to_follow() with what that returns, and take_place() until that returns true, or it waits for them no longer;
/// then it leads, with those that have come.
template <class S>
concept JoiningScaling = Scaling<S> &&
    requires(S& scaling, const JoinPlan& plan, const WorkerBody& body, std::string_view text, const Deadline& deadline,
             bool is_last, const LeaderPlace& place) {
  scaling.join(plan);
  { scaling.leads() } -> std::same_as<bool>;
  { scaling.num_processes() } -> std::same_as<int>;
  { scaling.num_workers() } -> std::same_as<int>;   // of all processes together
  { scaling.room() } -> std::same_as<int>;          // for workers, now; HostLostError if too many processes are lost
  scaling.tell(text);                               // by the leader
  scaling.note(text);                               // by the leader: for LostLead
  { scaling.hear() } -> std::same_as<std::string>;  // by the others
  { scaling.follow(body) } -> std::same_as<std::string>;
  { scaling.lost_lead() } -> std::same_as<LostLead>;
  { scaling.offer(std::uint64_t{}) } -> std::same_as<LeaderPlace>;
  { scaling.take_place(deadline, is_last) } -> std::same_as<bool>;
  { scaling.try_to_follow(place, deadline) } -> std::same_as<bool>;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/mean.hpp
// A mean that can be merged: a weighted sum and the weight behind it. Core room.

namespace railyard::inline v0_1 {

/// Collects values with their weights. Sums and weights are merged, never means, so that the mean over workers is that
/// of all their samples: to the last bit where sums and weights are whole numbers up to 2^53, such as counts. Other
/// sums round, so that n added values, in whatever order and by whichever worker, give the same sum but for a part of n
/// 2^-52 of the sum of their sizes.
class Mean {
 public:
  /// Adds the mean `value` of `weight` samples; a weight of zero leaves the value out, NaN included.
  void add(double value, double weight) noexcept;

  /// Adds a sum over `weight` samples, such as the number of correct answers among them; a sum over none is left out.
  void add_sum(double sum, double weight) noexcept;

  void merge(const Mean& other) noexcept;
  void reset() noexcept;

  [[nodiscard]] double sum() const noexcept { return sum_; }
  [[nodiscard]] double weight() const noexcept { return weight_; }
  /// The mean; NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept;

  /// Each rank's own, for the mean over all of them is put together when it is asked for.
  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  double sum_ = 0;
  double weight_ = 0;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/perplexity.hpp
// How many tokens a language model hesitates between. Core room.

#include <cmath>

namespace railyard::inline v0_1 {

/// Is e to the mean negative log-likelihood per token: the mean over all tokens, never of means over batches. Sums of
/// float numbers round, so that n added batches, in whatever order and by whichever worker, give the same mean but for
/// a part of n 2^-52 of it.
class Perplexity {
 public:
  /// Adds a mean loss (cross entropy, in nats) over so many tokens; of no tokens it is left out, NaN included.
  void add(double mean_loss, std::uint64_t tokens) noexcept;
  /// Adds a sum of losses over so many tokens.
  void add_sum(double loss, std::uint64_t tokens) noexcept;
  void merge(const Perplexity& other) noexcept;
  void reset() noexcept;

  /// NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept;
  [[nodiscard]] double mean_loss() const noexcept;
  [[nodiscard]] std::uint64_t tokens() const noexcept;
  [[nodiscard]] std::span<double> sums() noexcept;
  [[nodiscard]] std::span<const double> sums() const noexcept;

  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  std::array<double, 2> sums_{};  // losses, tokens
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/rank_connector.hpp
// Connections between ranks that trust each other and nobody else, for backends to move values by. Core room.

namespace railyard::inline v0_1 {

/// Is a connection to another rank. Both ends have proven that they belong to the run. One thread at a time uses it,
/// but for hang_up(). What goes wrong is an Error that names the peer's address.
class RankLine {
 public:
  RankLine() = default;
  RankLine(const RankLine&) = delete;
  RankLine& operator=(const RankLine&) = delete;
  virtual ~RankLine() = default;

  /// Sends what the network takes at once, and returns how many bytes that were; 0 if it takes nothing now. Who was
  /// told so offers the same bytes again. Throws: Error if the line is lost.
  [[nodiscard]] virtual std::size_t send(const std::byte* bytes, std::size_t size) = 0;
  /// Takes what has come, and returns how many bytes that were; 0 if nothing is there now. Throws: Error if the line is
  /// lost or the other end has closed it.
  [[nodiscard]] virtual std::size_t receive(std::byte* bytes, std::size_t size) = 0;

  /// Can be waited for where send() or receive() has returned 0: for room to write, or for bytes to read.
  [[nodiscard]] virtual int fd() const noexcept = 0;
  /// Ends it: both ends see it as closed. May be called from any thread, and wakes whoever waits for fd().
  virtual void hang_up() noexcept = 0;
  [[nodiscard]] virtual const std::string& peer() const noexcept = 0;
};

/// Connects ranks.
class RankConnector {
 public:
  RankConnector() = default;
  RankConnector(const RankConnector&) = delete;
  RankConnector& operator=(const RankConnector&) = delete;
  virtual ~RankConnector() = default;

  /// Connects every rank of the world with every other one. Returns the lines by rank, nullptr for this rank. All of
  /// them call it, with the same group, which names no other group of theirs on this store.
  /// host: name or address of this host by which the others reach it.
  /// Throws: Error that says who cannot be reached, by which address, and why.
  [[nodiscard]] virtual std::vector<std::unique_ptr<RankLine>> connect(const World& world, Store& store,
                                                                       const std::string& group,
                                                                       const std::string& host,
                                                                       const Deadline& deadline) = 0;
  /// Is what goes between hosts to be encrypted? Then a backend with connections of its own is refused.
  [[nodiscard]] virtual bool encrypts() const noexcept { return false; }
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/side_line.hpp
// What a backend offers that can sum values beside its operations. Core room.

namespace railyard::inline v0_1 {

/// Is a second line of operations of a group, for one other thread of each rank: they are matched among themselves, in
/// whatever order they come among the backend's own.
class SideLine {
 public:
  SideLine() = default;
  SideLine(const SideLine&) = delete;
  SideLine& operator=(const SideLine&) = delete;
  virtual ~SideLine() = default;

  /// See Backend. Throws: CollectiveError as every collective does.
  virtual void all_reduce(Buffer data, ReduceOp op, const Call& call) = 0;
  /// Ends the waits of this rank, and tells the others. From any thread.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/signals.hpp
// Keeps signals away from code that they would disturb, and names them. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Those that a run hears.
inline constexpr std::array caught_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Returns "SIGINT" and the like, or "signal 40" for one without a name.
[[nodiscard]] std::string signal_name(int signal);

/// Blocks signals in this thread, and so in the threads it makes, until it is destroyed.
class BlockSignals {
 public:
  explicit BlockSignals(const sigset_t& signals) noexcept;
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;
  ~BlockSignals();
  [[nodiscard]] const sigset_t& before() const noexcept { return before_; }

 private:
  sigset_t before_{};
};

/// Every signal that can wait: blocked while a thread is started that then never runs the user's handlers.
[[nodiscard]] sigset_t deferrable_signals() noexcept;

/// Keeps the signal that a failing write raises in the writing thread from being delivered while it lives: SIGPIPE for
/// a closed pipe or socket, SIGXFSZ for a file that is as large as it may become. It is blocked meanwhile and taken
/// back in the end, so that the process's own disposition is never touched. Cost: four system calls.
template <int signal>
class WriteSignalGuard {
 public:
  WriteSignalGuard() noexcept : was_pending_(is_pending()), block_(only_signal()) {}
  WriteSignalGuard(const WriteSignalGuard&) = delete;
  WriteSignalGuard& operator=(const WriteSignalGuard&) = delete;
  ~WriteSignalGuard() {
    const sigset_t only = only_signal();
    const timespec at_once{};
    while (!was_pending_ && ::sigtimedwait(&only, nullptr, &at_once) == -1 && errno == EINTR) {
    }
  }

 private:
  static sigset_t only_signal() noexcept {
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, signal);
    return only;
  }
  static bool is_pending() noexcept {
    sigset_t pending;
    ::sigpending(&pending);
    return ::sigismember(&pending, signal) == 1;
  }

  bool was_pending_;
  BlockSignals block_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/callbacks/detail/console.hpp
// Writes to standard output and standard error in a way that no closed pipe or terminal can turn into the end of the
// run. Callbacks room.

#include <cstdio>

#include <poll.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Opens those of the descriptors 0 to 2 that are closed on /dev/null, and leaves them so: otherwise files and sockets
/// of the run would get their numbers, and what is meant for standard output would be written into them.
void open_standard_streams() noexcept;

/// Is the pair of streams that a run writes to. What cannot be written is dropped: the logs have it too.
class Console {
 public:
  explicit Console(int output = STDOUT_FILENO, int error = STDERR_FILENO) noexcept;

  [[nodiscard]] int output() const noexcept { return output_; }
  [[nodiscard]] int error() const noexcept { return error_; }
  [[nodiscard]] static bool is_terminal(int stream) noexcept;

  /// The columns of the terminal behind stream, 80 if it does not say.
  [[nodiscard]] static std::size_t width(int stream) noexcept;

  /// Writes all of text, or returns false. Waits up to 1 s for a reader that takes nothing, and from then on not at all
  /// until it takes something again: the supervisor has signals and workers to look after.
  bool write(int stream, std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds patience{1};
  struct State {
    bool is_stalled = false;  // the last wait was in vain
    bool is_torn = false;     // the last line is there in part
    bool is_opened = false;   // it was tried to
    std::shared_ptr<const Descriptor> own{};
  };

  // Returns a descriptor of the stream that never blocks, if there can be one: a terminal that poll() calls writable
  // may have room for less than a line, as may a pipe that others write to, and the descriptors that others have as
  // well must go on to block.
  static int way_to(int stream, State& state);

  // Returns whether a write would not block; that also holds where it would fail.
  static bool is_ready(int stream, State& state) noexcept;

  int output_;
  int error_;
  std::array<State, 2> states_{};  // of output and of error
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/callbacks/detail/number.hpp
// Numbers as people read them, also where the compiler assumes that there is no NaN. Callbacks room.

namespace railyard::inline v0_1 {
namespace detail {

/// Tells by the exponent's bits, because -ffast-math makes std::isfinite(NaN) true.
[[nodiscard]] bool is_finite(double value) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/callbacks/progress.hpp
// Shows on standard error how far a run is, and lets the workers' own output through. Callbacks room.

#include <deque>

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
  explicit ProgressLine(const detail::Console& console, bool is_quiet = false);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();

  /// How soon update() should be called again.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;

  void on_report(std::int64_t index, Metrics metrics);

  /// Shows the state, if it is time to.
  void update(const ProgressState& state);

  /// Shows the state for the last time.
  void finish(const ProgressState& state);

  /// Writes a line of a worker or of the library, above the progress line if there is one.
  void print(bool is_error, std::string_view line);

  /// Says how many lines nobody took; empty if none.
  [[nodiscard]] std::string warning() const;

  /// Returns the line without any control of the terminal. Example: "epoch 3 45% | 5120 samples/s | 9 s | loss 0.31".
  [[nodiscard]] std::string text(const ProgressState& state) const;

  /// Returns at most `columns` characters of text, none of which moves the cursor; they end in dots if that is not all.
  [[nodiscard]] static std::string fitted(std::string_view text, std::size_t columns);

 private:
  enum class Kind : std::uint8_t { quiet, plain, terminal };
  static constexpr double redraw_after = 0.1;
  static constexpr double plain_after = 10;
  static constexpr double window = 5;  // seconds over which the rate is taken

  static Kind kind_of(int stream) noexcept;

  static std::uint64_t percent(const ProgressState& state) noexcept;

  static std::string duration_text(double seconds);

  void note(const ProgressState& state);

  [[nodiscard]] double samples_per_second() const;

  void draw(const ProgressState& state);
  void redraw();
  void erase();
  void print_plain(const ProgressState& state);
  void note_shown(const ProgressState& state);
  // Since the last line.
  [[nodiscard]] bool has_moved(const ProgressState& state) const noexcept;

  detail::Console console_;
  Kind kind_;
  std::int64_t report_ = -1;
  Metrics metrics_{};
  bool is_news_ = false;    // a report has come since the last line
  bool was_shown_ = false;  // any line at all
  bool was_report_shown_ = false;
  bool is_drawn_ = false;  // the line stands on the terminal now
  ProgressState shown_{};  // what the last line has told
  std::string line_;
  std::uint64_t num_dropped_ = 0;  // lines that could not be printed
  std::deque<std::pair<double, std::uint64_t>> marks_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/crc32c.hpp
// The checksum of a checkpoint's files. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)

#endif

/// Is the CRC-32C (RFC 3720, appendix B.4) of bytes that are added one stretch after the other.
class Crc32c {
 public:
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint32_t value() const noexcept;

 private:
  std::uint32_t state_ = 0xFFFFFFFFU;
};

[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/json_text.hpp
// Text as JSON has it. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Appends text as a JSON string; bytes that are not UTF-8 become U+FFFD, so that every reader accepts the file.
void append_json_text(std::string& json, std::string_view text);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/json.hpp
// Reads JSON that may come from anywhere, with bounds and without loss. Checkpoint room.

#include <charconv>

namespace railyard::inline v0_1 {
namespace detail {

/// Says what is wrong with the content of a file whose name is known further up.
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void throw_damaged(const std::filesystem::path& file, std::string_view what);

/// Calls read and names the file if its content is damaged.
template <class Read>
auto reading(const std::filesystem::path& file, const Read& read) {
  try {
    return read();
  } catch (const Damage& damage) {
    throw_damaged(file, damage.what());
  }
}

/// Is a value of JSON. Numbers stay text until somebody says what they are.
class Json {
 public:
  enum class Kind { null, boolean, number, text, array, object };

  explicit Json(Kind kind = Kind::null, std::string text = {});

  [[nodiscard]] Kind kind() const noexcept;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] const std::string& number() const;
  [[nodiscard]] const std::vector<Json>& array() const;
  /// The names of an object's values, and the values in the same order.
  [[nodiscard]] const std::vector<std::string>& names() const;
  [[nodiscard]] const std::vector<Json>& items() const;

  [[nodiscard]] const Json* find(std::string_view name) const;
  [[nodiscard]] const Json& at(std::string_view name) const;

  /// The number, which must be one that a T can hold.
  template <class T>
  [[nodiscard]] T as() const {
    T value{};
    const char* end = number().data() + text_.size();
    const auto [stopped, error] = std::from_chars(text_.data(), end, value);
    if (error != std::errc{} || stopped != end) throw Damage{compose("{} is no number that fits here", text_)};
    return value;
  }

 private:
  friend class JsonParser;

  const Json& expect(Kind kind, std::string_view what) const;

  Kind kind_;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::string> names_;
};

/// Reads the text of one JSON value (RFC 8259).
class JsonParser {
 public:
  explicit JsonParser(std::string_view text);

  [[nodiscard]] Json parse();

 private:
  static constexpr std::size_t max_depth = 16;  // each level is a call within a call
  static constexpr std::size_t max_values = std::size_t{1} << 20U;

  [[noreturn]] void refuse(std::string_view why) const;

  [[nodiscard]] char peek() const noexcept;
  bool take(std::string_view what) noexcept;
  void skip_space() noexcept;

  Json value(std::size_t depth);

  Json array(std::size_t depth);

  Json object(std::size_t depth);

  std::string quoted();

  void append_escaped(std::string& text);

  void append_code_point(std::string& text);

  std::uint32_t code_unit();

  std::string number();
  void skip_digits();

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t num_values_ = 0;
};

/// Throws: Damage.
[[nodiscard]] Json parse_json(std::string_view text);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/input_file.hpp
// A file of a checkpoint to read from. Checkpoint room.

#include <sys/file.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a plain file that is open for reading, or what would be one in memory. A file is read by calls and not mapped:
/// one that somebody cuts short would end the program by a signal.
class InputFile {
 public:
  /// Opens the file `name` in a directory, which may lie in folders below it. Symbolic links below the directory are
  /// not followed: they could lead out of it. Throws: DataError if it is not there or no plain file; Error if it may be
  /// whole, but cannot be opened.
  [[nodiscard]] static std::shared_ptr<const InputFile> open(const std::filesystem::path& directory,
                                                             std::string_view name);

  /// Takes over an open file.
  InputFile(std::filesystem::path path, Descriptor file);

  /// Takes bytes for a file's, which must outlive it. path: what messages call it.
  InputFile(std::filesystem::path path, std::span<const std::byte> bytes);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept;
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Reads the bytes from begin on. Throws: DataError if there are fewer.
  void read(std::uint64_t begin, std::span<std::byte> to) const;

  /// Reads all of it, which must not be more than max_size bytes.
  [[nodiscard]] std::string text(std::uint64_t max_size) const;

  [[nodiscard]] std::uint32_t checksum() const;

 private:
  void copy(std::uint64_t begin, std::span<std::byte> to) const;

  static Descriptor open_or_throw(int directory, const std::string& name, int flags,
                                  const std::filesystem::path& path);

  std::filesystem::path path_;
  Descriptor file_{};
  std::span<const std::byte> bytes_{};  // without a file
  std::uint64_t size_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/hexadecimal.hpp
// Bytes as hexadecimal digits. Core room.

// ---- railyard/checkpoint/detail/json_values.hpp
// Writes JSON, and values in it so that they come back bit by bit. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

/// Throws: Damage.
[[nodiscard]] Value read_value(const Json& json);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/names.hpp
// Which names the files of a checkpoint may have, and what they mean. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::string_view preprocessor_prefix = "preprocessor.";

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/manifest.hpp
// What a checkpoint says about itself. Checkpoint room.

namespace railyard::inline v0_1 {

/// Is one file of a checkpoint, named relative to its directory.
struct ManifestFile {
  std::string name{};
  std::uint64_t size = 0;
  std::uint32_t crc32c = 0;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

/// Is what stands in manifest.json: where in the run the checkpoint was taken, and which files make it whole.
struct Manifest {
  int format = 1;
  /// Names this checkpoint among all others; made up by CheckpointFolder::commit if empty.
  std::string id{};
  int world_size = 1;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::int64_t epoch = 0;
  /// The number of the report that it belongs to.
  std::int64_t report = 0;
  int attempt = 0;
  /// Of the one who has written it; see CheckpointFolder.
  std::uint64_t generation = 0;
  Metrics metrics{};
  /// What equal bits depend on, such as releases and the kind of CPU.
  NamedValues environment{};
  /// By UTC, such as 2024-01-31T12:34:56Z; filled in by CheckpointFolder::commit if empty.
  std::string created_at{};
  /// Filled in by CheckpointFolder::commit.
  std::vector<ManifestFile> files{};

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/manifest_text.hpp
// The text of manifest.json. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::uint64_t max_manifest_size = 100'000'000;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/safetensors.hpp
// The format of files of tensors that everybody can read. Checkpoint room.
// Source: https://github.com/huggingface/safetensors, section "Format".

// ---- railyard/checkpoint/safetensors.hpp
// Tensors from a file that any program has written. Checkpoint room.

namespace railyard::inline v0_1 {

/// Returns the tensors of a file in the safetensors format, by their names. They are read from the file when their read
/// function is called.
/// Throws: DataError that says what is wrong with the file; Error if it cannot be opened.
[[nodiscard]] State read_safetensors(const std::filesystem::path& file);

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/pieces.hpp
// Makes one tensor of the pieces that ranks have written. Checkpoint room.

#include <map>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which elements of which whole the tensor of a rank's file is.
struct PiecePlace {
  std::string name{};
  std::vector<std::int64_t> shape{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Collects the pieces of one tensor.
class Pieces {
 public:
  /// Throws: Damage if the piece is none of the same tensor.
  void add(const PiecePlace& place, const StateTensor& data);

  /// Returns the whole. Throws: DataError, in the name of all files, if elements are missing.
  [[nodiscard]] StateTensor assemble(const std::filesystem::path& files, const std::string& name) &&;

 private:
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t origin = 0;  // which element of the whole the first of its file is
    decltype(StateTensor::read) read{};
  };

  std::vector<std::int64_t> shape_;
  Dtype dtype_ = Dtype::f32;
  std::vector<Piece> pieces_;
};

/// Adds what one rank has written to the tensors it belongs to. Throws: DataError.
void add_pieces(std::map<std::string, Pieces>& tensors, const std::vector<PiecePlace>& places,
                       const std::shared_ptr<const InputFile>& file);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/checkpoint.hpp
// A checkpoint to read from. Checkpoint room.
//
// It is a directory of
//   manifest.json                 what it is, and which files make it whole, with their sizes and checksums
//   state.json                    the values of the parts that all ranks have
//   net.safetensors               the tensors of such a part, "net", but for those in pieces
//   state.rank-0.json             where the pieces of rank 0 lie in the whole, the values of parts that are its own
//   optimizer.rank-0.safetensors  its pieces, or the tensors of a part that is its own
//   files/                        what the user has added

namespace railyard::inline v0_1 {

/// Is a complete checkpoint. Copies are cheap; while one of them lives, here or in a process that was forked meanwhile,
/// retention leaves the checkpoint's files alone, unless it comes from peek().
class Checkpoint {
 public:
  /// Reads the manifest and compares the sizes of all files.
  /// Throws: DataError that names the file, says what is wrong with it and what to do; Error if a file may be whole,
  /// but cannot be opened.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory);

  /// Does the same, but keeps no file open, so that retention knows nothing of it. For those who look at many.
  [[nodiscard]] static Checkpoint peek(const std::filesystem::path& directory);

  /// Is a checkpoint that was never written: the files are in memory which must outlive it. path: what messages call
  /// it.
  [[nodiscard]] static Checkpoint in_memory(const std::filesystem::path& path, Manifest manifest,
                                            const std::map<std::string, std::span<const std::byte>>& files);

  /// Reads all files and compares their checksums; those in memory have none.
  /// Throws: DataError that names the file that is damaged.
  void verify() const;

  [[nodiscard]] const Manifest& manifest() const& noexcept;
  [[nodiscard]] Manifest manifest() &&;  // outlives a checkpoint without a name
  [[nodiscard]] const std::filesystem::path& path() const noexcept;

  /// The names of all parts, those that each rank has for itself included.
  [[nodiscard]] std::vector<std::string> parts() const;
  [[nodiscard]] bool contains(std::string_view part) const;

  /// Returns the state of a part, or nothing if there is none. The pieces of all ranks are one tensor again. Of a part
  /// that each rank has for itself, that of this rank, or nothing. Tensors are read from the files when their read
  /// function is called, which may be after the last copy of the checkpoint is gone. Ranks of a host that load at once
  /// take the bytes from the storage once, where the system keeps what it has read: each copies them from there to
  /// their place. Throws: DataError if a file is damaged, or elements of a tensor are in none of them.
  [[nodiscard]] std::optional<State> load(std::string_view part, int rank) const;

  /// Puts the state of a part into an object that is made as the one was that was saved.
  /// Throws: ConfigError that lists the parts if there is none of that name, or if it does not fit; as load().
  /// Example: ry::Checkpoint::open(path).load_into("net", net);
  template <HasState T>
  void load_into(std::string_view part, T& object, int rank = 0) const {
    const std::optional<State> state = load(part, rank);
    if (!state) {
      throw ConfigError{detail::compose("{} has no part \"{}\" for rank {}: its parts are {}", path().string(), part,
                                        rank, detail::joined(parts(), ", "))};
    }
    StateAccess<T>::put(object, *state);
  }

  /// Puts what was learned of the samples of a dataset of the Trainer (Dataset::transform(), there or in the training
  /// function) into preprocessors that are made as those were: into one, or into a Chain of all that learn, in the
  /// order of transform(). Throws: ConfigError that lists the datasets if nothing was learned of that one, or if it
  /// does not fit; as load(). Example: ry::Checkpoint::open(path).load_preprocessor("train", scaler);
  template <HasState T>
  void load_preprocessor(std::string_view dataset, T& preprocessor) const {
    if (const auto state = preprocessor_state(dataset)) return StateAccess<T>::put(preprocessor, *state);
    std::vector<std::string> datasets;
    for (const std::string& part : parts()) {
      if (part.starts_with(detail::preprocessor_prefix)) {
        datasets.push_back(part.substr(detail::preprocessor_prefix.size()));
      }
    }
    throw ConfigError{detail::compose(
        "{} has no preprocessor for the dataset \"{}\": it has them for {}; they are kept of datasets that "
        "the Trainer has by name, and of which transform() made what loaders read",
        path().string(), dataset, datasets.empty() ? "none" : detail::joined(datasets, ", "))};
  }
  /// Returns the state that load_preprocessor() puts there; nothing if there is none. Throws: as load().
  [[nodiscard]] std::optional<State> preprocessor_state(std::string_view dataset) const;

  /// Where the files are that the user has added.
  [[nodiscard]] std::vector<std::filesystem::path> files() const;

 private:
  struct Contents {
    std::filesystem::path path{};
    Manifest manifest{};
    std::shared_ptr<const detail::InputFile> lock{};
    std::map<std::string, std::shared_ptr<const detail::InputFile>> in_memory{};
  };

  explicit Checkpoint(std::shared_ptr<const Contents> contents);

  [[nodiscard]] static std::shared_ptr<Contents> read_contents(const std::filesystem::path& directory);

  // Whoever wants to remove the checkpoint takes the lock for himself alone. Where there are no locks at all, nobody
  // can be kept from it.
  static void lock(const detail::InputFile& manifest);

  [[nodiscard]] std::shared_ptr<const detail::InputFile> input(const std::string& name) const;

  [[nodiscard]] bool has_file(std::string_view name) const;

  [[nodiscard]] bool is_in_memory() const noexcept;

  static std::optional<int> rank_of(const ManifestFile& file);

  // Calls read with the parts of a file of states, whose checksum is looked at each time: it is small.
  template <class Read>
  std::invoke_result_t<const Read&, const detail::Json&> reading_states(const std::string& name,
                                                                        const Read& read) const {
    const auto file = input(name);
    return detail::reading(file->path(), [&] {
      const std::string text = file->text(detail::max_manifest_size);
      const auto& files = manifest().files;
      const auto entry = std::find_if(files.begin(), files.end(), [&](auto& listed) { return listed.name == name; });
      if (!is_in_memory() && detail::crc32c(std::as_bytes(std::span{text})) != entry->crc32c) {
        throw detail::Damage{"its content has changed"};
      }
      return read(detail::parse_json(text).at("parts"));
    });
  }

  [[nodiscard]] std::optional<NamedValues> values_in(const std::string& name, std::string_view part) const;

  void add_tensors(State& state, const std::string& name) const;

  void add_pieces(State& state, std::string_view part) const;

  std::shared_ptr<const Contents> contents_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/files.hpp
// The one seam through which the files of checkpoints and of their run are changed. Checkpoint room.

#include <dirent.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Does what the system calls do: each returns -1 and sets errno where it fails. Tests put in others, which remember
/// what would survive a power cut, or fail.
class Files {
 public:
  using Path = std::filesystem::path;

  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  virtual ~Files() = default;

  virtual int make_directory(const Path& path);
  /// Returns a descriptor of a file that is new.
  virtual int create(const Path& path);
  /// Returns a descriptor of a file that may be there; flags: O_RDONLY or another way to open it, and O_CREAT and so
  /// on.
  virtual int open(const Path& path, int flags);
  virtual int open_directory(const Path& path);
  virtual ssize_t write(int fd, const std::byte* from, std::size_t size);
  /// Writes in place of what is there.
  virtual ssize_t write_at(int fd, const std::byte* from, std::size_t size, off_t at);
  virtual int truncate(int fd, off_t size);
  /// Has writes go past the system's cache, or not: those of whole blocks, from addresses that are multiples of one.
  /// Returns -1 where the file system cannot do so.
  virtual int set_direct(int fd, bool is_direct);
  /// Has the bytes on their way to the disk, and waits until they are there if asked to. Makes nothing durable.
  virtual int write_back(int fd, std::size_t begin, std::size_t size, bool waits);
  virtual int sync(int fd);
  /// The same of a file's bytes and size alone.
  virtual int sync_data(int fd);
  virtual int close(int fd);
  virtual int rename(const Path& from, const Path& to);
  virtual int unlink(const Path& path);
  virtual int remove_directory(const Path& path);
  /// Appends the names of what is in a directory.
  virtual int list(const Path& path, std::vector<std::string>& names);
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/seen_checkpoints.hpp
// Which checkpoints have been read from the first to the last byte, and what was wrong with them. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

/// Reads each checkpoint once, however often it is asked about: they may be large, and do not change.
class SeenCheckpoints {
 public:
  /// Returns what is wrong with its content; empty if nothing is. Throws: RemovedError if it is gone meanwhile, Error
  /// if it may be whole, but cannot be opened.
  [[nodiscard]] std::string fault_of(const Checkpoint& checkpoint);

  /// How many of those that were looked at are damaged.
  [[nodiscard]] std::size_t num_damaged() const noexcept { return num_damaged_; }

 private:
  [[nodiscard]] std::string look_at(const Checkpoint& checkpoint);

  std::map<std::string, std::string> faults_;  // by id
  std::size_t num_damaged_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/storage.hpp
// What can be said and done about the storage of a checkpoint. Checkpoint room.

#include <linux/magic.h>
#include <sys/vfs.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a call of the system that has failed.
struct FailedCall {
  std::string_view call{};
  int error = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/part_bytes.hpp
// Where the bytes of one file of a checkpoint come from when it is written. Checkpoint room.

namespace railyard::inline v0_1 {

/// Is memory, or a function that brings any piece of what is not there: a piece at a time needs little memory.
class PartBytes {
 public:
  /// Returns so many bytes from `begin` on, which stay until the next call. What it throws ends the commit.
  using Read = std::function<std::span<const std::byte>(std::size_t begin, std::size_t size)>;

  PartBytes() = default;
  /// Takes bytes in memory, which must stay as they are until the commit is over.
  template <std::convertible_to<std::span<const std::byte>> Bytes>
  PartBytes(const Bytes& bytes) : bytes_(bytes), size_(bytes_.size()) {}
  /// Has them read when they are written, once or, where writing fails, more often.
  PartBytes(std::size_t size, Read read);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns a piece, which stays until the next call. Throws: what reading throws.
  [[nodiscard]] std::span<const std::byte> read(std::size_t begin, std::size_t size) const;

 private:
  std::span<const std::byte> bytes_{};
  std::size_t size_ = 0;
  Read read_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/part_files.hpp
// Writes the files of a checkpoint into a directory that nobody looks into yet. Checkpoint room.

#include <set>

namespace railyard::inline v0_1 {
namespace detail {

/// Makes files and no folders: several processes may write parts of one checkpoint, and one of them makes its folders.
class PartFiles {
 public:
  PartFiles(Files& files, std::filesystem::path directory);

  /// Writes a file and returns what the manifest says of it. A file that could not be written is written anew, because
  /// after a failed fsync nobody knows which of its pages are on the disk; a second fsync would say that all are.
  /// Throws: Error; what reading the bytes throws.
  ManifestFile write(const std::string& name, const PartBytes& bytes);

  /// Removes a file that may be there.
  void remove(const std::string& name);

  /// Makes durable which files have been written.
  void seal();

 private:
  static constexpr std::size_t piece_bytes = std::size_t{8} << 20U;
  static constexpr std::size_t max_dirty_bytes = 4 * piece_bytes;

  std::optional<FailedCall> try_write(const std::filesystem::path& path, const PartBytes& bytes, bool may_be_direct,
                                      Crc32c& sum);

  // Large files go past the system's cache where they can: a copy of all bytes less, and what others have cached stays.
  // But not once more: some file systems say that they can, and then fail.
  std::optional<FailedCall> try_fill(int fd, const PartBytes& bytes, bool may_be_direct, Crc32c& sum);

  // Whether they begin with a block that can go past the cache.
  [[nodiscard]] static bool is_of_blocks(std::span<const std::byte> bytes) noexcept;

  // Keeps the disk busy from the start and little unwritten: what gathers in memory until fsync would hold up everybody
  // who writes to this disk, training included.
  int pace(int fd, std::size_t begin, std::size_t size);

  Files& files_;
  std::filesystem::path path_;
  std::set<std::filesystem::path> folders_;  // in which it has written
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/staging.hpp
// Writes a directory that nobody sees yet, so that it survives a power cut. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is a new directory that is filled, made durable, and then renamed. Removed at the end if that did not happen.
class Staging {
 public:
  /// trash: the name that it has while it is removed.
  Staging(Files& files, std::filesystem::path path, std::filesystem::path trash);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] PartFiles& parts() noexcept { return parts_; }

  /// Makes the folders for a file of that name.
  void make_folders(const std::string& name);

  /// Makes durable which files there are.
  void seal();

  /// Gives the directory its name. Returns 0 or the error, after which the name may have been given all the same.
  int publish(const std::filesystem::path& name);
  /// Says that it is gone to where somebody has found it.
  void set_published() noexcept;

 private:
  void make_directory(const std::filesystem::path& path);

  Files& files_;
  std::filesystem::path path_;
  std::filesystem::path trash_;
  PartFiles parts_;
  std::set<std::filesystem::path> folders_;
  bool is_published_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/part_writers.hpp
// Those who write parts of a checkpoint beside the one who commits it. Checkpoint room.

namespace railyard::inline v0_1 {

/// Writes into the directory of a checkpoint that is being made. What it does not write is written by the one who
/// commits, who alone writes the manifest and gives the directory its name.
class PartWriters {
 public:
  PartWriters() = default;
  PartWriters(const PartWriters&) = delete;
  PartWriters& operator=(const PartWriters&) = delete;
  virtual ~PartWriters() = default;

  /// Begins to write. The directory is new, as is its name, and has all folders that files need. Returns the names of
  /// the parts that may be written by finish().
  virtual std::set<std::string> begin(const std::filesystem::path& directory) = 0;
  /// Returns, when nobody writes any more, what the manifest says of the parts that have been written, and are durable.
  /// Throws: Error if somebody may write yet: then nothing there is to be used.
  virtual std::vector<ManifestFile> finish() = 0;
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/retention.hpp
// Which checkpoints are worth keeping. Checkpoint room.

namespace railyard::inline v0_1 {

/// Says whether a large or a small score is good.
enum class ScoreOrder { max, min };

/// Says which checkpoints are kept.
struct Retention {
  /// How many of the best are kept, and always the newest; 0 for all.
  int keep = 0;
  /// The metric that tells how good one is; empty: the later, the better.
  std::string score{};
  ScoreOrder order = ScoreOrder::max;
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/checkpoint_folder.hpp
// The checkpoints of a run: committed whole or not at all, listed, and thinned out. Checkpoint room.

#include <random>

namespace railyard::inline v0_1 {

/// Is the folder in which the checkpoints of a run lie: checkpoint-000001 and so on. Used by one thread at a time.
class CheckpointFolder {
 public:
  /// Is one file of a checkpoint: its name, relative to the checkpoint's directory, and its bytes.
  struct Part {
    std::string name{};
    PartBytes bytes{};
  };

  /// folder: made by the first commit; the directory in which it lies must exist and be durable.
  /// generation: grows with each program that takes the run over, so that what an earlier one has left can be told.
  explicit CheckpointFolder(std::filesystem::path folder, std::uint64_t generation = 0,
                            std::shared_ptr<detail::Files> files = std::make_shared<detail::Files>());

  /// Does the run still belong to this program? Is asked right before a checkpoint becomes visible.
  std::function<bool()> still_mine{};

  /// Makes a checkpoint of the parts and returns its directory once it is durable. Names of parts that begin with
  /// "files/" are the user's own files. others: who may write some of the parts.
  /// Throws: Error that names the file, what went wrong and what to do: all other checkpoints are as they were then,
  /// and what was written is removed. Only if the very last call fails, the fsync of the folder, the checkpoint is
  /// there, but may not survive a power cut. ConfigError for names that cannot be.
  std::filesystem::path commit(Manifest manifest, std::span<const Part> parts, PartWriters* others = nullptr);

  /// Returns the complete checkpoints, oldest first. Damaged ones are left out: see problems(). Cost: a descriptor
  /// each.
  [[nodiscard]] std::vector<Checkpoint> list() const;

  /// Returns the newest complete checkpoint, also while a program commits and removes them.
  [[nodiscard]] std::optional<Checkpoint> newest() const;

  /// Returns the newest checkpoint whose checksums are right, those of this generation unseen: this program has written
  /// them. problems gets what is wrong with newer ones.
  [[nodiscard]] std::optional<Checkpoint> newest_whole(std::vector<std::string>& problems) const;

  /// Says what is wrong with the checkpoints that list() leaves out.
  [[nodiscard]] std::vector<std::string> problems() const;

  /// Returns the highest generation that has left something here; 0 if none has.
  [[nodiscard]] std::uint64_t last_generation() const;

  /// Says why checkpoints here would not last, such as "it is kept in memory, ..."; nothing if no reason is known.
  [[nodiscard]] std::string_view doubt() const;

  /// Removes what unfinished commits and removals of this or an earlier generation have left. To be called when the run
  /// has been taken over, before looking for the newest checkpoint: from then on nobody of an earlier generation can
  /// finish a commit that he has begun; and at the end, when nothing is written any more. Returns what cannot be
  /// removed, a sentence each: it harms nobody. Throws: Error if a commit cannot be taken from whoever has begun it.
  std::vector<std::string> sweep();

  /// Removes all complete checkpoints but the best and the newest; those that somebody reads stay for now. A damaged
  /// one is none of the best, and stays as well: see best(). Throws: Error if one cannot be removed, or if a damaged
  /// one has been found.
  void retain(const Retention& retention);

  /// Returns the checkpoints that retention would keep for their score, best first. Those of earlier generations are
  /// read, each once, and left out if their checksums are wrong: problems gets what is wrong with them. Those of a
  /// retention that keeps all come from Checkpoint::peek(), and only the best of them is read: there may be thousands.
  /// Throws: Error if one may be whole, but cannot be opened.
  [[nodiscard]] std::vector<Checkpoint> best(const Retention& retention, std::vector<std::string>& problems) const;

 private:
  static constexpr std::string_view checkpoint_prefix = "checkpoint-";
  static constexpr std::string_view staging_prefix = ".staging-";
  static constexpr std::string_view trash_prefix = ".trash-";

  /// Is a checkpoint on its way out, and the lock that keeps readers from it.
  struct Doomed {
    std::filesystem::path trash{};
    detail::Descriptor lock{};
  };

  static void check_names(std::span<const Part> parts);

  void make_folder();

  void complete(Manifest& manifest) const;

  static void fill(detail::Staging& staging, Manifest& manifest, std::span<const Part> parts, PartWriters* others);

  static std::vector<ManifestFile> write(detail::PartFiles& files, std::span<const Part> parts);

  static std::vector<ManifestFile> write(detail::Staging& staging, std::span<const Part> parts, PartWriters& others);

  void check_still_mine() const;

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t number) const;

  [[nodiscard]] std::filesystem::path trash_of(std::string_view name) const;

  std::filesystem::path publish(detail::Staging& staging, const std::string& id);

  static bool has_id(const std::filesystem::path& path, const std::string& id);

  [[nodiscard]] std::vector<std::string> names() const;

  [[nodiscard]] std::vector<std::uint64_t> numbers() const;

  static std::optional<std::uint64_t> generation_of(std::string_view name);

  using Read = Checkpoint (*)(const std::filesystem::path&);

  static std::optional<Checkpoint> open(const std::filesystem::path& path, Read read,
                                        std::vector<std::string>* problems = nullptr);

  [[nodiscard]] std::vector<Checkpoint> all(Read read) const;

  [[nodiscard]] bool is_whole(const Checkpoint& checkpoint, std::vector<std::string>& problems) const;

  [[nodiscard]] std::vector<std::filesystem::path> surplus_of(const Retention& retention,
                                                              std::vector<std::string>& problems) const;

  // Renames what need not be kept, so that it is complete or absent whatever happens while its files are removed.
  std::vector<Doomed> take_away(std::span<const std::filesystem::path> surplus);

  // Returns what cannot be.
  std::vector<std::string> remove(const std::vector<std::filesystem::path>& paths);

  std::filesystem::path folder_;
  std::uint64_t generation_;
  std::shared_ptr<detail::Files> files_;
  mutable detail::SeenCheckpoints seen_{};
  bool is_made_ = false;
};

/// Returns the newest complete checkpoint in the directory of a run, or nothing.
[[nodiscard]] std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& run);

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/file_image.hpp
// The files that a rank contributes to a checkpoint, as memory to be filled. Checkpoint room.

namespace railyard::inline v0_1 {

/// Is one file that a rank contributes to a checkpoint.
struct FileImage {
  std::string name{};
  std::size_t size = 0;
  /// Writes the file's bytes to memory of `size` bytes. To be called only while what the states were taken from is as
  /// it was.
  std::function<void(std::byte* to)> fill{};
  bool is_own = false;   ///< only this rank needs it
  bool is_part = false;  ///< it has this rank's part of what all need
};

/// Is the state of a part of the training, by the name of the part.
struct NamedState {
  std::string name{};
  State state{};
};

namespace detail {

[[nodiscard]] FileImage tensors_image(std::string name, std::vector<StateTensor> tensors);

/// Adds the file of those tensors of the part that are wanted, if there are any.
template <class Wanted>
void add_tensors(std::vector<FileImage>& images, std::string name, const State& state, const Wanted& wanted) {
  std::vector<StateTensor> tensors;
  std::copy_if(state.tensors.begin(), state.tensors.end(), std::back_inserter(tensors), wanted);
  if (!tensors.empty()) images.push_back(tensors_image(std::move(name), std::move(tensors)));
}

}  // namespace detail

/// Returns the files of this rank: its pieces of tensors, the parts that are its own, and what all ranks have, if it is
/// to have that.
/// Throws: ConfigError that names the part if a name is taken twice or cannot be the name of a file.
[[nodiscard]] std::vector<FileImage> file_images(std::span<const NamedState> parts, int rank, bool has_common);

/// Returns the files that this rank has to write: what all ranks have is rank 0's to write.
[[nodiscard]] std::vector<FileImage> file_images(std::span<const NamedState> parts, int rank);

}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/signature.hpp
// What identifies one operation among the ranks, and its text in messages. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Names an operation of a backend.
enum class Operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  all_gather_uneven,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  receive,
  exchange,  // through HostMemory; its root is the purpose
};

[[nodiscard]] constexpr std::string_view name_of(Operation operation) noexcept {
  constexpr std::array<std::string_view, 12> names{"all_reduce",        "reduce_scatter", "broadcast", "all_gather",
                                                   "all_gather_uneven", "gather",         "scatter",   "all_to_all",
                                                   "barrier",           "send",           "receive",   "exchange"};
  return names[static_cast<std::size_t>(operation)];
}

/// Mixes value into a 64-bit digest, so that one changed bit changes about half of the digest.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t digest, std::uint64_t value) noexcept {
  std::uint64_t x = digest ^ (value + 0x9E3779B97F4A7C15U + (digest << 6U) + (digest >> 2U));
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// Is what the ranks must agree on in one operation. For send and receive, peer takes the place of root.
struct Signature {
  Operation operation = Operation::barrier;
  ReduceOp op = ReduceOp::sum;
  Dtype dtype = Dtype::u8;
  std::uint64_t count = 0;          ///< elements of the smaller buffer: what one rank gives to, or gets from, another
  std::int32_t root = -1;           ///< -1 where there is none
  std::uint64_t counts_digest = 0;  ///< of the counts of all_gather_uneven

  friend constexpr bool operator==(const Signature&, const Signature&) noexcept = default;

  [[nodiscard]] constexpr bool reduces() const noexcept {
    return operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  }

  /// Differs whenever the signatures do. The two ends of a message (send, receive) have equal digests.
  [[nodiscard]] constexpr std::uint64_t digest() const noexcept {
    const bool is_message = operation == Operation::send || operation == Operation::receive;
    std::uint64_t value = mix(0, static_cast<std::uint64_t>(is_message ? Operation::send : operation));
    value = mix(value, reduces() ? static_cast<std::uint64_t>(op) + 1 : 0);
    value = mix(value, static_cast<std::uint64_t>(dtype));
    value = mix(value, count);
    value = mix(value, is_message ? 0 : static_cast<std::uint64_t>(root + 1));
    return mix(value, counts_digest);
  }
};

/// Returns the text that messages print, such as "all_reduce(sum, 1024 x f32)".
[[nodiscard]] std::string describe(const Signature& signature);

/// Says which two ranks called different things, and what to do about it.
[[nodiscard]] std::string disagreement(int one, std::string_view call_of_one, int other,
                                              std::string_view call_of_other);

/// Returns "rank 1", "ranks 1 and 3", "ranks 1, 3 and 4".
[[nodiscard]] std::string ranks_text(std::span<const int> ranks);

/// Returns "all_reduce(sum, 1024 x f32) on rank 0/2": how every message begins.
[[nodiscard]] std::string place_text(std::string_view operation, int rank, int size);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/arguments.hpp
// The checks of a collective's arguments, made before anything is sent, shared by all backends. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Checks the arguments of one call. Every member throws ConfigError if a backend's laws forbid them, and returns the
/// signature of the operation otherwise. A checker costs nothing to make: it holds what messages need.
class Arguments {
 public:
  Arguments(const World& world, DeviceKind device_kind) noexcept;

  [[nodiscard]] Signature all_reduce(const Buffer& data, ReduceOp op) const;

  [[nodiscard]] Signature reduce_scatter(const ConstBuffer& in, const Buffer& out, ReduceOp op) const;

  [[nodiscard]] Signature broadcast(const Buffer& data, int root) const;

  [[nodiscard]] Signature all_gather(const ConstBuffer& in, const Buffer& out) const;

  [[nodiscard]] Signature all_gather_uneven(const ConstBuffer& in, const Buffer& out,
                                            std::span<const std::size_t> counts) const;

  /// out matters at root only.
  [[nodiscard]] Signature gather(const ConstBuffer& in, const Buffer& out, int root) const;

  /// in matters at root only.
  [[nodiscard]] Signature scatter(const ConstBuffer& in, const Buffer& out, int root) const;

  [[nodiscard]] Signature all_to_all(const ConstBuffer& in, const Buffer& out) const;

  [[nodiscard]] Signature send(const ConstBuffer& data, int peer) const;
  [[nodiscard]] Signature receive(const Buffer& data, int peer) const;

 private:
  [[noreturn]] void refuse(const Signature& signature, std::string_view what) const;

  [[nodiscard]] Signature message(Operation operation, const ConstBuffer& data, int peer, std::string_view name) const;

  void memory(const Signature& signature, const ConstBuffer& buffer, std::string_view name) const;

  void pair(const Signature& signature, const ConstBuffer& in, const Buffer& out) const;

  void times_size(const Signature& signature, std::string_view large_name, std::size_t large,
                  std::string_view small_name, std::size_t small) const;

  void rank(const Signature& signature, int rank, std::string_view name) const;

  void reduction(const Signature& signature) const;

  [[nodiscard]] static constexpr std::string_view device_name(DeviceKind kind) noexcept {
    return kind == DeviceKind::cpu ? "CPU" : "CUDA";
  }

  const World* world_;
  DeviceKind device_kind_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/checked.hpp
// Makes the ranks of any backend compare what they call before they call it. Collectives room.

namespace railyard::inline v0_1 {

/// Wraps a backend: before each operation the ranks compare operation, reduction, count, dtype and root, and throw
/// CollectiveError on all ranks, with both sides named, if they differ. For debugging and tests: found at once instead
/// of when a rank has waited for long. Use it in the place of the backend: Trainer<Checked<Gloo>, Processes>. Cost: one
/// all_gather of 40 bytes more for each operation; for send and receive a message in either direction.
template <ConnectingBackend B>
class Checked {
 public:
  static constexpr std::string_view name = B::name;
  static constexpr Reach reach = B::reach;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;
  static_assert(B::device_kind == DeviceKind::cpu,
                "Checked exchanges its signatures in CPU memory: wrap a CPU backend.");

  using Options = typename B::Options;

  static void check(const Options& options) { B::check(options); }

  [[nodiscard]] static std::unique_ptr<Checked> connect(const Options& options, const World& world, Store& store,
                                                        const Deadline& deadline) {
    return std::unique_ptr<Checked>{new Checked{world, B::connect(options, world, store, deadline)}};
  }

  auto all_reduce(Buffer data, ReduceOp op, const Call& call) {
    compare(arguments().all_reduce(data, op), call);
    return backend_->all_reduce(data, op, call);
  }
  auto reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    compare(arguments().reduce_scatter(in, out, op), call);
    return backend_->reduce_scatter(in, out, op, call);
  }
  auto broadcast(Buffer data, int root, const Call& call) {
    compare(arguments().broadcast(data, root), call);
    return backend_->broadcast(data, root, call);
  }
  auto all_gather(ConstBuffer in, Buffer out, const Call& call) {
    compare(arguments().all_gather(in, out), call);
    return backend_->all_gather(in, out, call);
  }
  auto all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    compare(arguments().all_gather_uneven(in, out, counts), call);
    return backend_->all_gather_uneven(in, out, counts, call);
  }
  auto gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    compare(arguments().gather(in, out, root), call);
    return backend_->gather(in, out, root, call);
  }
  auto scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    compare(arguments().scatter(in, out, root), call);
    return backend_->scatter(in, out, root, call);
  }
  auto all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    compare(arguments().all_to_all(in, out), call);
    return backend_->all_to_all(in, out, call);
  }
  auto barrier(const Call& call) {
    compare({.operation = detail::Operation::barrier}, call);
    return backend_->barrier(call);
  }
  auto send(ConstBuffer data, int peer, const Call& call) {
    const auto signature = arguments().send(data, peer);
    const Record own = encode(signature);
    Record theirs{};
    exchange(signature, [&] {
      backend_->send(view(own), peer, call).wait(call.deadline);
      backend_->receive(view(theirs), peer, call).wait(call.deadline);
    });
    compare_message(signature, decode(theirs));
    return backend_->send(data, peer, call);
  }
  auto receive(Buffer data, int peer, const Call& call) {
    const auto signature = arguments().receive(data, peer);
    const Record own = encode(signature);
    Record theirs{};
    exchange(signature, [&] {
      backend_->receive(view(theirs), peer, call).wait(call.deadline);
      backend_->send(view(own), peer, call).wait(call.deadline);
    });
    compare_message(signature, decode(theirs));
    return backend_->receive(data, peer, call);
  }
  void abort(std::string_view reason) noexcept { backend_->abort(reason); }

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t num_words = 5;
  static constexpr std::string_view lost_before = "the group was lost before: ";
  using Record = std::array<std::int64_t, num_words>;

  Checked(const World& world, std::unique_ptr<B> backend) : world_(world), backend_(std::move(backend)) {}

  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  [[nodiscard]] static ConstBuffer view(const Record& record) noexcept { return buffer_of(record); }
  [[nodiscard]] static Buffer view(Record& record) noexcept { return buffer_of(record); }

  // Ranks are processes of one program, so that words in the machine's own order will do.
  [[nodiscard]] static Record encode(const detail::Signature& signature) noexcept {
    return {static_cast<std::int64_t>(signature.operation),
            static_cast<std::int64_t>(signature.op) * 256 + static_cast<std::int64_t>(signature.dtype),
            static_cast<std::int64_t>(signature.count), signature.root,
            static_cast<std::int64_t>(signature.counts_digest)};
  }
  [[nodiscard]] static detail::Signature decode(const Record& record) noexcept {
    return {.operation = static_cast<detail::Operation>(record[0]),
            .op = static_cast<ReduceOp>(record[1] / 256),
            .dtype = static_cast<Dtype>(record[1] % 256),
            .count = static_cast<Word>(record[2]),
            .root = static_cast<std::int32_t>(record[3]),
            .counts_digest = static_cast<Word>(record[4])};
  }

  // Runs the exchange of signatures, whose failure is a failure of the operation that it serves.
  template <class Exchange>
  void exchange(const detail::Signature& own, const Exchange& exchange_all) {
    throw_if_lost(own);
    try {
      exchange_all();
    } catch (const CollectiveError& error) {
      std::string_view text = error.what();
      const auto inner_place = detail::place_text(error.operation(), world_.rank, world_.size) + ": ";
      if (text.starts_with(inner_place)) text.remove_prefix(inner_place.size());
      failure_ = text.starts_with(lost_before) ? text.substr(lost_before.size()) : text;
      blamed_ = error.blamed();
      throw_failure(own, text.starts_with(lost_before) ? lost_before : "");
    }
  }

  void compare(const detail::Signature& own, const Call& call) {
    const Record record = encode(own);
    std::vector<std::int64_t> records(num_words * static_cast<std::size_t>(world_.size));
    exchange(own, [&] { backend_->all_gather(view(record), buffer_of(records), call).wait(call.deadline); });
    detail::Signature first{};
    for (int rank = 0; rank < world_.size; ++rank) {
      Record theirs{};
      std::memcpy(theirs.data(), records.data() + static_cast<std::size_t>(rank) * num_words, sizeof theirs);
      if (rank == 0) first = decode(theirs);
      if (decode(theirs) != first) lose(own, rank, decode(theirs), 0, first);  // the same sentence on every rank
    }
  }

  void compare_message(const detail::Signature& own, const detail::Signature& theirs) {
    if (own.digest() == theirs.digest() && own.operation != theirs.operation) return;
    if (own.root > world_.rank) lose(own, own.root, theirs, world_.rank, own);
    lose(own, world_.rank, own, own.root, theirs);
  }

  [[noreturn]] void lose(const detail::Signature& own, int a, const detail::Signature& of_a, int b,
                         const detail::Signature& of_b) {
    failure_ = detail::disagreement(a, detail::describe(of_a), b, detail::describe(of_b));
    blamed_ = {std::min(a, b), std::max(a, b)};
    throw_failure(own, "");
  }

  void throw_if_lost(const detail::Signature& signature) const {
    if (!failure_.empty()) throw_failure(signature, lost_before);
  }

  [[noreturn]] void throw_failure(const detail::Signature& signature, std::string_view when) const {
    const std::string operation = detail::describe(signature);
    throw CollectiveError{
        operation, world_.rank, blamed_,
        detail::compose("{}: {}{}", detail::place_text(operation, world_.rank, world_.size), when, failure_)};
  }

  World world_;
  std::unique_ptr<B> backend_;
  std::string failure_{};
  std::vector<int> blamed_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/local_hub.hpp
// Where the ranks of a Local group meet: one object per group, in the memory that they share. Collectives room.

#include <condition_variable>

namespace railyard::inline v0_1 {
namespace detail {

/// Is shared by the ranks of one Local group. One mutex guards everything but the elements of buffers, which move in
/// the open between an entry that all ranks have passed and an exit that all pass together.
class LocalHub {
 public:
  using Views = std::pair<const std::byte*, std::byte*>;  // what a rank offers to read and to write

  explicit LocalHub(int size);

  /// Waits until every rank has come. close_to(rank) must return whether it has kept a missing rank out for good.
  void arrive(const World& world, const Deadline& deadline, const std::function<bool(int)>& close_to);

  /// Runs work once all ranks have called this with equal signatures, and returns when all have finished theirs.
  template <class Work>
  void run(int rank, const Signature& signature, Views views, const Deadline& deadline, const Work& work) {
    const std::uint64_t round = enter(rank, signature, views, deadline);
    work(seats_);
    // No deadline here: the others read and write this rank's memory until they are done, and they only copy.
    std::unique_lock lock{mutex_};
    seats_[to_index(rank)].is_busy = false;
    if (++num_finished_ == size_) {
      num_finished_ = 0;
      ++rounds_finished_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return rounds_finished_ > round; });
  }

  void send(int rank, const Signature& signature, const std::byte* data, const Deadline& deadline);

  void receive(int rank, const Signature& signature, std::byte* data, const Deadline& deadline);

  void abort(int rank, std::string_view reason);

  void throw_if_failed(int rank, const Signature& signature);

  /// Takes the rank out of the group and returns whether it was the last, so that the hub is to be deleted.
  [[nodiscard]] bool leave(int rank) noexcept;

  struct Seat {
    bool has_arrived = false;
    bool has_left = false;
    bool is_busy = false;
    Signature signature{};
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
  };

 private:
  struct Message {
    enum class State : std::uint8_t { offered, taken, copied };
    Signature signature{};
    const std::byte* data = nullptr;
    State state = State::offered;
  };
  struct Failure {
    std::vector<int> blamed{};
    std::string text{};
  };

  [[nodiscard]] static std::size_t to_index(int rank) noexcept;

  [[nodiscard]] std::deque<Message*>& mailbox(int from, int to) noexcept;

  // Returns whether it was woken, false at the deadline.
  bool wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline);

  [[nodiscard]] std::uint64_t enter(int rank, const Signature& signature, Views views, const Deadline& deadline);

  void begin(int rank, const Signature& signature);

  void end(const std::unique_lock<std::mutex>& /*held*/, int rank, const Signature& signature, bool succeeded);

  // Waits for done(). Returns false with failure_ set if it cannot come any more, or not by the deadline.
  template <class Done>
  bool await(std::unique_lock<std::mutex>& lock, int rank, const Signature& signature, const Deadline& deadline,
             const Done& done) {
    bool in_time = true;
    for (;;) {
      if (done()) return true;  // first: whoever has done its part may have left since
      if (failure_) return false;
      if (const auto gone = absent(signature, [](const Seat& seat) { return seat.has_left; }); !gone.empty()) {
        fail(gone, compose("{} left the group before", ranks_text(gone)));
        return false;
      }
      if (!in_time) {
        fail_late(rank, signature, deadline);
        return false;
      }
      in_time = wait(lock, deadline);
    }
  }

  // The ranks whose part in the operation is missing and of which missing(seat) is true.
  template <class Missing>
  [[nodiscard]] std::vector<int> absent(const Signature& signature, const Missing& missing) const {
    const bool is_message = signature.operation == Operation::send || signature.operation == Operation::receive;
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if ((!is_message || rank == signature.root) && missing(seats_[to_index(rank)])) ranks.push_back(rank);
    }
    return ranks;
  }

  void fail_late(int rank, const Signature& signature, const Deadline& deadline);

  void compare_signatures();

  [[nodiscard]] static std::string mismatch_text(int a, const Signature& of_a, int b, const Signature& of_b);

  void fail(std::vector<int> blamed, std::string text);

  [[noreturn]] void throw_failure(const std::string& operation, int rank, bool is_later) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  const int size_;
  int references_;
  std::vector<Seat> seats_;
  std::vector<std::deque<Message*>> mailboxes_;
  int num_entered_ = 0;
  int num_finished_ = 0;
  std::uint64_t rounds_entered_ = 0;
  std::uint64_t rounds_finished_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/reduce.hpp
// The arithmetic of reductions: elements of several buffers become one. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

// By the bits, because -ffast-math lets the compiler believe that there are no NaNs.
template <class A>
[[nodiscard]] constexpr bool is_nan(A value) noexcept {
  if constexpr (std::is_same_v<A, float>) {
    return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) > 0x7F800000U;
  } else if constexpr (std::is_same_v<A, double>) {
    return (std::bit_cast<std::uint64_t>(value) & 0x7FFFFFFFFFFFFFFFU) > 0x7FF0000000000000U;
  } else {
    return false;
  }
}

/// Combines count elements of all sources, in their order, into out; out may be one of the sources. The order makes
/// results a function of the ranks' values alone: equal bits on every rank, with every backend and in every run.
/// Cost: reads every source once and writes out once.
void reduce(void* out, std::span<const std::byte* const> sources, std::size_t count, Dtype dtype, ReduceOp op);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/wire.hpp
// How messages between the processes of a run are put together and taken apart. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Takes a message apart; every length is checked before it is believed.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) noexcept;
  explicit WireReader(std::string_view text) noexcept;

  template <class T>
  [[nodiscard]] T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  [[nodiscard]] std::string take_text();
  [[nodiscard]] std::span<const std::byte> take_rest() noexcept;
  [[nodiscard]] bool is_empty() const noexcept;

 private:
  std::span<const std::byte> take_bytes(std::size_t count);

  std::span<const std::byte> rest_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/rendezvous.hpp
// How the ranks of a new group find each other in a store. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what a store holds under key right now.
[[nodiscard]] std::optional<std::string> peek(Store& store, std::string_view key);

/// Returns the same. All ranks call it: where there are many, they have it from rank 0.
[[nodiscard]] std::vector<std::optional<std::string>> await_all(Store& store, const std::string& prefix,
                                                                       std::string_view stage, const World& world,
                                                                       const Deadline& deadline);

/// Throws: CollectiveError that names the ranks without a value, or else the first that has left a reason.
void throw_if_failed(const std::vector<std::optional<std::string>>& values, const World& world,
                            const Deadline& deadline);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/local.hpp
// The backend that joins threads of one process by their common memory. Collectives room: nothing but std.

namespace railyard::inline v0_1 {

/// Joins threads of one process: every rank reads and writes the others' buffers where they are. Needs no library and
/// opens no socket; a race in it is visible to ThreadSanitizer. Reductions add in the order of ranks.
/// Cost: all_reduce reads each buffer once and writes it once, shared among the ranks; two waits.
class Local {
 public:
  static constexpr std::string_view name = "Local";
  static constexpr Reach reach = Reach::process;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {};

  static void check(const Options& /*options*/) noexcept {}

  /// Joins the group. store outlives the call only.
  /// Throws: CollectiveError that names the ranks which did not come; ConfigError if rank 0 is in another process.
  [[nodiscard]] static std::unique_ptr<Local> connect(const Options& /*options*/, const World& world, Store& store,
                                                      const Deadline& deadline);

  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;
  ~Local();

  // The collectives are templates although nothing depends on one: so a file compiles only what it uses of them.
  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call);

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call);

  FinishedWork broadcast(Buffer data, int root, const Call& call);

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call);

  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);

  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call);

  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call);

  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call);

  FinishedWork barrier(const Call& call);

  FinishedWork send(ConstBuffer data, int peer, const Call& call);

  FinishedWork receive(Buffer data, int peer, const Call& call);

  void abort(std::string_view reason) noexcept;

 private:
  using Seats = std::vector<detail::LocalHub::Seat>;

  Local(const World& world, detail::LocalHub* hub);

  [[nodiscard]] static std::size_t to_index(int rank) noexcept;
  [[nodiscard]] std::size_t rank_index() const noexcept;
  [[nodiscard]] detail::Arguments arguments() const noexcept;

  // A key of a store can be set once, which makes it a lock that is taken once: either the late rank claims its seat
  // and will release its share of the hub, or a rank that waited in vain claims it and the late rank keeps away.
  [[nodiscard]] static bool claim(const std::string& prefix, int rank, Store& store);

  [[nodiscard]] static detail::LocalHub* find_hub(const std::string& prefix, const World& world, Store& store,
                                                  const Deadline& deadline);

  template <class Work>
  FinishedWork run(const detail::Signature& signature, const void* in, void* out, const Call& call, const Work& work) {
    if (hub_ == nullptr) {
      throw_if_alone_failed(signature);
      detail::LocalHub::Seat alone{};
      alone.in = static_cast<const std::byte*>(in);
      alone.out = static_cast<std::byte*>(out);
      work(Seats{alone});
      return {};
    }
    hub_->run(world_.rank, signature, {static_cast<const std::byte*>(in), static_cast<std::byte*>(out)}, call.deadline,
              work);
    return {};
  }

  template <class Work>
  void hub_or_alone(const detail::Signature& signature, const Work& work) {
    if (hub_ != nullptr) work(signature);  // a world of one has no peer: its arguments were refused before
  }

  void throw_if_alone_failed(const detail::Signature& signature);

  static void copy(void* to, const void* from, std::size_t count, Dtype dtype) noexcept;

  World world_;
  detail::LocalHub* hub_;  // owned by all ranks together; the last one to leave deletes it
  std::mutex alone_mutex_;
  std::string alone_failure_;  // why a world of one was given up
};

}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/segment.hpp
// The memory by which one rank of a host shows itself to the others, and how it is mapped. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Payloads up to this size travel in the post itself, by one wait instead of two.
inline constexpr std::size_t small_bytes = 16U << 10U;
/// And those up to this one in its first cache line.
inline constexpr std::size_t tiny_bytes = 16;
/// A rank's private memory is shown to the others in pieces of this size.
inline constexpr std::size_t stage_bytes = 128U << 10U;

/// Is what a rank shows the others in one step. A rank has two, which it uses in turn: by the time it writes one anew
/// all others have taken the step in between, and so have read it.
struct Post {
  alignas(128) std::atomic<std::uint64_t> step{0};  ///< written last: the step that the rest belongs to
  Signature signature{};
  std::uint64_t place = 0;  ///< where its data lies; 0 if the others cannot see it there, and look at its stage
  std::array<std::byte, tiny_bytes> tiny{};  ///< in the line of what is before: one miss of the cache less
  alignas(64) std::array<std::byte, small_bytes> payload;

  [[nodiscard]] std::byte* payload_of(std::size_t size_bytes) noexcept;
  [[nodiscard]] const std::byte* payload_of(std::size_t size_bytes) const noexcept;
};

/// Is one direction between two ranks; lies in the sender's cell.
struct Outbox {
  alignas(64) std::atomic<std::uint64_t> offered{0};  ///< counts the pieces that the sender has shown
  Signature signature{};
  std::uint64_t place = 0;
  alignas(64) std::atomic<std::uint64_t> taking{0};  ///< the piece that the receiver has begun to copy
  std::atomic<std::uint64_t> taken{0};               ///< counts the pieces that it has copied
};

/// Says why a rank takes no part any more. Written once, before Flag::failed is set.
struct SharedVerdict {
  std::array<std::int32_t, 64> blamed{};
  std::uint32_t num_blamed = 0;
  std::uint32_t size = 0;
  std::array<char, 4096> text{};
};

/// Is what a rank shows of one line of steps, which one of its threads takes.
struct Lane {
  alignas(128) std::atomic<std::uint32_t> num_asleep{0};  ///< of the whole group; only rank 0's counts
  alignas(128) std::atomic<std::uint32_t> is_asleep{0};
  std::atomic<std::uint32_t> bell{0};           ///< a futex: moves when a sleeping rank has to look
  std::atomic<std::uint32_t> has_withdrawn{0};  ///< it has failed and is at nobody's memory any more
  std::atomic<std::uint64_t> rested{0};         ///< the step since which it has been at nobody's memory
  std::array<Post, 2> posts;
};

/// Is at the beginning of each rank's segment. The outboxes, one for each rank, come after it, then the arena.
struct RankCell {
  static constexpr std::size_t num_lanes = 2;  ///< operations of the backend, and exchanges beside them

  alignas(128) std::atomic<std::uint32_t> flags{0};
  SharedVerdict verdict{};
  std::array<Lane, num_lanes> lanes;
  alignas(4096) std::array<std::array<std::byte, stage_bytes>, 2> stages;
};

/// Owns a mapping of memory.
class Mapping {
 public:
  Mapping(void* base, std::size_t size) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::byte* base_;
  std::size_t size_;
};

/// Says where the parts of a rank's segment lie. All ranks of a group compute the same from the same numbers.
struct SegmentLayout {
  int world_size = 1;
  std::size_t arena_size = 0;

  [[nodiscard]] static constexpr std::size_t page_up(std::size_t size) noexcept {
    return (size + 4095U) / 4096U * 4096U;
  }
  [[nodiscard]] static constexpr std::size_t outboxes() noexcept { return sizeof(RankCell); }
  /// Where rank's arena begins. Two arenas never lie a multiple of a large power of two apart: the first-level cache
  /// would take their lines for one another, which costs up to seven times the time of a reduction.
  [[nodiscard]] std::size_t arena(int rank) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// What is touched of it in any case.
  [[nodiscard]] std::size_t touched() const noexcept;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/meeting.hpp
// How the ranks of one host wait for each other in memory that they share. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

// A step is shown by a store that others may see later, and only then, when it has usually been seen long since, is
// the store made to come before what this rank looks at next: the barrier costs nothing by that time. The thread
// sanitizer knows no fences, so there the store itself is the barrier.
#if defined(__SANITIZE_THREAD__)
#define RAILYARD_STORES_ARE_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RAILYARD_STORES_ARE_FENCES 1
#endif
#endif
#if defined(RAILYARD_STORES_ARE_FENCES)
inline constexpr auto step_order = std::memory_order_seq_cst;
inline void fence_step() noexcept {}
#undef RAILYARD_STORES_ARE_FENCES
#else
inline constexpr auto step_order = std::memory_order_release;
inline void fence_step() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

/// Is one rank's part in the waits of its group. A step is taken when every rank has posted it. Waiting is spinning,
/// then yielding, then sleeping on a futex, so that more ranks than cores still move and a long wait costs nothing.
///
/// A rank that gives up says why in its cell and raises a flag; whoever waits for it takes over what it has said, so
/// that all tell the same story, in all lanes. All but abort() is for one thread of the rank: the lane's own.
class Meeting {
 public:
  /// Is the operation under way.
  struct Running {
    const Signature& signature;
    const Deadline& deadline;
    int peer = -1;  ///< of a message; -1 in collectives
    /// The steps between which ranks may read and write this rank's own memory; equal if they never do.
    std::uint64_t first_shared = 0;
    std::uint64_t last_shared = 0;
    const Outbox* box = nullptr;  ///< of a message that this rank sends
    std::uint64_t piece = 0;      ///< of that message, under way
  };

  /// pidfds: by rank, of the processes of other ranks; empty if the ranks are threads of one process. They outlive
  /// this. is_hasty: there is a core for each who waits, so that waits may begin by spinning.
  Meeting(const World& world, std::vector<RankCell*> cells, std::span<const Descriptor> pidfds, bool is_hasty,
          std::size_t lane);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  [[nodiscard]] RankCell& cell(int rank) const noexcept;
  [[nodiscard]] RankCell& own() const noexcept;
  [[nodiscard]] Lane& lane(int rank) const noexcept;
  [[nodiscard]] Lane& own_lane() const noexcept;

  /// Throws: CollectiveError if this rank has given up before.
  void throw_if_lost(const Signature& signature);

  /// Is what this rank will show in its next step.
  [[nodiscard]] Post& next_post() const noexcept;
  /// Is what a rank shows in the step that has been taken last.
  [[nodiscard]] const Post& post_of(int rank) const noexcept;
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  /// Takes the first step of a collective: shows next_post(), waits for all, and compares what they have called.
  void enter(const Running& running);

  /// Gives up as well if another rank has done so; called before this one looks at their memory in the step it has
  /// taken.
  void throw_if_any_gave_up(const Running& running);

  /// Gives up as well if a rank has done so, which may be about to let go of its memory: it waits for those who did not
  /// see that in time.
  void throw_if_given_up(int rank, const Running& running);

  /// Takes one step: shows next_post() and waits until all ranks have shown theirs.
  void take_step(const Running& running);

  /// Waits until a word of a peer has reached a value.
  void await(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running);

  /// Wakes those who sleep, after a word has moved.
  void ring() const noexcept;

  /// Ends the waits of this rank, from any thread, and of those who wait for it.
  void abort(std::string_view reason);

  struct Verdict {
    std::vector<int> blamed{};
    std::string text{};
  };

  /// Says why this rank gives up, for all ranks to see, and throws it.
  [[noreturn]] void give_up(const Running& running, const Verdict& verdict);

  /// Says that this rank is at nobody's memory until its next step.
  void rest() const noexcept;

  /// After this rank has failed: returns once nobody is at its memory.
  void withdraw(const Running& running) const noexcept;

 private:
  static constexpr std::chrono::microseconds yield_for{500};
  static constexpr std::chrono::milliseconds longest_sleep{50};

  void await_slowly(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running);

  // Returns false if the word has got there after all.
  bool may_go_on(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running);

  [[nodiscard]] bool is_missing(int rank, const Running& running, const std::atomic<std::uint64_t>& word,
                                std::uint64_t at_least) const noexcept;

  [[nodiscard]] bool is_behind(int rank) const noexcept;

  void sleep(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running);

  void look_for_deaths(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running);

  [[nodiscard]] Verdict lateness(const Running& running) const;

  [[nodiscard]] Verdict disagreement_of_all() const;

  [[nodiscard]] bool is_at_memory(int rank, const Running& running) const noexcept;

  // Keeps the first verdict only: another lane, or abort() from another thread, may come at the same time.
  void fail(const Verdict& verdict);

  void wake_all() const noexcept;

  [[nodiscard]] Verdict verdict_of(int rank) const;

  [[noreturn]] void throw_verdict(const Signature& signature, std::string_view when) const;

  World world_;
  std::vector<RankCell*> cells_;
  std::span<const Descriptor> pidfds_;
  std::size_t lane_;
  int num_spins_;
  std::uint64_t step_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/memory_left.hpp
// How much memory this process and what it shares may have, and may still take. Core room.

#include <fstream>
#include <sstream>

namespace railyard::inline v0_1 {

namespace detail {

// Reads the number that a file begins with; nothing for "max", or where there is no such file.
[[nodiscard]] std::optional<std::size_t> number_in(const std::filesystem::path& file);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/shared_group.hpp
// How the ranks of one host come to see each other's memory. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what one rank needs of all others' memory, by rank.
struct SharedGroup {
  SegmentLayout layout{};
  std::vector<std::shared_ptr<Mapping>> mappings{};  ///< the segments, where this rank sees them
  std::vector<Descriptor> pidfds{};                  ///< of the other ranks' processes; empty among threads
  bool is_one_process = true;
  bool has_cores_for_all = false;
  std::size_t available = 0;  ///< memory that is left for all ranks together

  [[nodiscard]] std::byte* base(int rank) const noexcept;
  [[nodiscard]] RankCell& cell(int rank) const noexcept;
  [[nodiscard]] Outbox& outbox(int from, int to) const noexcept;
  [[nodiscard]] std::byte* arena(int rank) const noexcept;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/host_lane.hpp
// One line of exchanges through the memory that the ranks of a host share. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is the memory of a group, with one meeting's steps. What it is made of outlives it.
class HostLane final : public HostMemory {
 public:
  HostLane(const SharedGroup& group, Meeting& meeting, const std::shared_ptr<Heap>& heap, int rank, HostMemory* side);

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override;
  [[nodiscard]] int host() const noexcept override { return 0; }
  [[nodiscard]] int num_hosts() const noexcept override { return 1; }
  void add_between_hosts(const Buffer& /*data*/, const Deadline& /*deadline*/) override {}
  [[nodiscard]] std::future<void> begin_between_hosts(const Buffer& /*data*/, const Deadline& /*deadline*/) override;

  void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) override;
  void add_step() noexcept override;
  void step(std::span<const std::byte> record) override;
  void rest() noexcept override;
  [[nodiscard]] std::span<const std::byte> record_of(int rank) const override;

  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept override;
  [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept override;
  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept override { return heap_; }

  [[nodiscard]] HostMemory* side(const Deadline& /*deadline*/) override { return side_; }
  void abort(std::string_view reason) noexcept override;
  void withdraw() noexcept override;

 private:
  void show(std::span<const std::byte> record);

  const SharedGroup* group_;
  Meeting* meeting_;
  std::shared_ptr<Heap> heap_;
  int rank_;
  HostMemory* side_;
  Signature signature_{.operation = Operation::exchange};
  Deadline deadline_ = Deadline::never();  // of the exchange that begin() has begun
  Meeting::Running running_{.signature = signature_, .deadline = deadline_};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/vector_reduce.hpp
// Reductions that read and write several arrays at once, with the widest vectors of this processor. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// The most arrays that are read, or written, at once.
inline constexpr std::size_t most_arrays = 256;

/// Is a sum over arrays of T: each target gets, element by element, the sum of the sources in their order, each times
/// its weight if there are weights, divided by the divisor if that is not one. Targets may be sources.
template <class T>
struct SumTask {
  std::span<T* const> targets{};
  std::span<const T* const> sources{};
  const T* weights = nullptr;
  T divisor{1};
  std::size_t count = 0;
};

// What a vector of T with Width bytes looks like to the compiler, and its bits as integers.
template <class T, std::size_t Width>
struct Vector {
  typedef T type __attribute__((vector_size(Width)));
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  typedef Bits bits __attribute__((vector_size(Width)));
  static constexpr Bits exponent =
      sizeof(T) == 8 ? static_cast<Bits>(0x7FF0000000000000) : static_cast<Bits>(0x7F800000);
  static constexpr Bits lowest = sizeof(T) == 8 ? static_cast<Bits>(0x0010000000000000) : static_cast<Bits>(0x00800000);
};

// Keeps a product from being fused with the addition that follows, which rounds once instead of twice: the same values
// would have other bits with another instruction set or compiler option. clang++ fuses within one statement only.
template <class V>
[[gnu::always_inline]] inline void round_here([[maybe_unused]] V& product) noexcept {
#if defined(__clang__)
#elif defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
}

// Is put into each of the functions below, and compiled there for that function's instruction set. The same sums in
// the same order with every one of them: vectors change which elements go together, never how one is made.
// Returns whether all results are finite. Num: of sources and targets, where it is known; 0 elsewhere. All that is read
// through a pointer is copied first: for the compiler every store to a target may change it.
template <class T, std::size_t Width, std::size_t NumSources, std::size_t NumTargets, bool is_scaled>
[[gnu::always_inline]] inline bool sum_vectors(const SumTask<T>& task) {
  using V = typename Vector<T, Width>::type;
  using B = typename Vector<T, Width>::bits;
  constexpr std::size_t lanes = Width / sizeof(T);
  constexpr std::size_t unroll = 4;
  constexpr std::size_t group = lanes * unroll;
  constexpr std::size_t most = most_arrays;
  const std::size_t num_sources = NumSources > 0 ? NumSources : task.sources.size();
  const std::size_t num_targets = NumTargets > 0 ? NumTargets : task.targets.size();
  const T* sources[NumSources > 0 ? NumSources : most];
  T* targets[NumTargets > 0 ? NumTargets : most];
  T weights[NumSources > 0 ? NumSources : most];
  for (std::size_t i = 0; i < num_sources; ++i) sources[i] = task.sources[i];
  for (std::size_t i = 0; i < num_targets; ++i) targets[i] = task.targets[i];
  for (std::size_t i = 0; i < num_sources; ++i) weights[i] = task.weights != nullptr ? task.weights[i] : T{1};
  const T divisor = task.divisor;
  const std::size_t count = task.count;
  B marks{};
  alignas(Width) T tail[group] = {};
  for (std::size_t at = 0; at < count; at += group) {
    const bool is_tail = count - at < group;
    const std::size_t tail_bytes = is_tail ? (count - at) * sizeof(T) : 0;
    V sum[unroll];
#pragma GCC unroll 4
    for (std::size_t source = 0; source < num_sources; ++source) {
      const T* from = sources[source] + at;
      if (is_tail) {
        std::memcpy(tail, from, tail_bytes);
        from = tail;
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < unroll; ++i) {
        V next;
        std::memcpy(&next, from + i * lanes, Width);
        if constexpr (is_scaled) {
          next *= weights[source];
          round_here(next);
        }
        sum[i] = source == 0 ? next : sum[i] + next;
      }
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < unroll; ++i) {
      if constexpr (is_scaled) sum[i] /= divisor;
      // Where a value is not finite its exponent is all ones, and one more carries into the sign. No comparison, which
      // g++ 12 takes apart for AVX-512F.
      B pattern;
      std::memcpy(&pattern, &sum[i], Width);
      marks |= (pattern & Vector<T, Width>::exponent) + Vector<T, Width>::lowest;
    }
    if (is_tail) {
      std::memcpy(tail, sum, sizeof sum);
      for (std::size_t target = 0; target < num_targets; ++target) std::memcpy(targets[target] + at, tail, tail_bytes);
      break;
    }
#pragma GCC unroll 4
    for (std::size_t target = 0; target < num_targets; ++target) {
#pragma GCC unroll 4
      for (std::size_t i = 0; i < unroll; ++i) std::memcpy(targets[target] + at + i * lanes, &sum[i], Width);
    }
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (marks[lane] >> (sizeof(T) * 8 - 1) != 0) return false;
  }
  return true;
}

template <class T, std::size_t Width>
[[gnu::always_inline]] inline bool sum_vectors_of_any(const SumTask<T>& task) {
  const std::size_t sources = task.sources.size();
  const std::size_t targets = task.targets.size();
  if (task.weights != nullptr || task.divisor != T{1}) {
    if (sources == 2 && targets == 2) return sum_vectors<T, Width, 2, 2, true>(task);
    if (sources == 2 && targets == 1) return sum_vectors<T, Width, 2, 1, true>(task);
    return sum_vectors<T, Width, 0, 0, true>(task);
  }
  if (sources == 2 && targets == 2) return sum_vectors<T, Width, 2, 2, false>(task);
  if (sources == 2 && targets == 1) return sum_vectors<T, Width, 2, 1, false>(task);
  if (sources == 4 && targets == 4) return sum_vectors<T, Width, 4, 4, false>(task);
  return sum_vectors<T, Width, 0, 0, false>(task);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx512f")]] bool sum_avx512(const SumTask<T>& task) {
  return sum_vectors_of_any<T, 64>(task);
}
template <class T>
[[gnu::target("avx2")]] bool sum_avx2(const SumTask<T>& task) {
  return sum_vectors_of_any<T, 32>(task);
}
#endif
template <class T>
bool sum_baseline(const SumTask<T>& task) {
  return sum_vectors_of_any<T, 16>(task);
}

// One value after another: for so few that vectors take longer to set up.
template <class T>
bool sum_few(const SumTask<T>& task) {
  bool is_finite = true;
  for (std::size_t at = 0; at < task.count; ++at) {
    T sum{};
    for (std::size_t source = 0; source < task.sources.size(); ++source) {
      T next = task.sources[source][at];
      if (task.weights != nullptr) {
        next *= task.weights[source];
        round_here(next);
      }
      sum = source == 0 ? next : sum + next;
    }
    if (task.divisor != T{1}) sum /= task.divisor;
    for (T* target : task.targets) target[at] = sum;
    using Bits = typename Vector<T, 16>::Bits;
    is_finite &= (std::bit_cast<Bits>(sum) & Vector<T, 16>::exponent) != Vector<T, 16>::exponent;
  }
  return is_finite;
}

/// Does the task with what the processor offers. Returns whether all results are finite.
template <class T>
bool sum(const SumTask<T>& task) {
  if (task.count <= 4) return sum_few(task);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512(task);
  if (__builtin_cpu_supports("avx2")) return sum_avx2(task);
#endif
  return sum_baseline(task);
}

template <class T>
void sum_bytes(std::span<std::byte* const> targets, std::span<const std::byte* const> sources, std::size_t count,
               T divisor) {
  // A pointer to bytes and one to T are alike, but an array of one is no array of the other.
  T* to[most_arrays];
  const T* from[most_arrays];
  for (std::size_t i = 0; i < targets.size(); ++i) to[i] = reinterpret_cast<T*>(targets[i]);
  for (std::size_t i = 0; i < sources.size(); ++i) from[i] = reinterpret_cast<const T*>(sources[i]);
  sum(SumTask<T>{
      .targets = {to, targets.size()}, .sources = {from, sources.size()}, .divisor = divisor, .count = count});
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/shared_memory.hpp
// The backend that joins ranks of one host by memory which all of them see. Collectives room: std and the kernel only.

namespace railyard::inline v0_1 {

/// Joins threads or processes of one host. Values up to 16 KiB travel by one wait; larger ones are reduced by all ranks
/// together, each its own slice, where they lie, if all ranks see them there: any memory among threads, memory of
/// heap() among processes. What lies elsewhere is shown in pieces, at half the speed. Reductions add in the order of
/// ranks, so that results depend on nothing but the ranks' values.
class SharedMemory {
 public:
  static constexpr std::string_view name = "SharedMemory";
  static constexpr Reach reach = Reach::host;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    /// Address space of each rank's arena, in bytes; 0: as much as the host has memory. Only what is used is taken.
    std::size_t arena_bytes = 0;
  };

  static void check(const Options& /*options*/) noexcept {}

  /// Joins the group. store outlives the call only. Cost: below a millisecond once all ranks have come.
  /// Throws: CollectiveError that names the ranks which did not come or failed; ConfigError if ranks run on other
  /// hosts.
  [[nodiscard]] static std::unique_ptr<SharedMemory> connect(const Options& options, const World& world, Store& store,
                                                             const Deadline& deadline);

  // The collectives are templates although nothing depends on one: so a file compiles only what it uses of them.
  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call);

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call);

  FinishedWork broadcast(Buffer data, int root, const Call& call);

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call);

  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);

  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call);

  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call);

  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call);

  FinishedWork barrier(const Call& call);

  FinishedWork send(ConstBuffer data, int peer, const Call& call);

  FinishedWork receive(Buffer data, int peer, const Call& call);

  /// Ends the waits of this rank, and tells the others. From any thread.
  void abort(std::string_view reason) noexcept;

  /// Gives out memory that all ranks see. Its blocks may outlive this object. Of what is free it keeps at most half of
  /// the memory that the host or the container had left, divided by the ranks.
  [[nodiscard]] const std::shared_ptr<detail::Heap>& heap() const noexcept { return heap_; }

  [[nodiscard]] HostMemory* host_memory() noexcept;

 private:
  using Running = detail::Meeting::Running;
  using Sources = std::vector<const std::byte*>;
  static constexpr std::uint64_t nothing = 1;  // a place that nobody looks at

  // What the ranks give in an operation in which all take: num_parts parts of count elements, of each rank that gives.
  struct Source {
    ConstBuffer in{};
    std::size_t num_parts = 1;
    std::size_t count = 0;
    bool gives = true;
  };

  // Elements begin to begin + count of every part of what every rank gives.
  struct Piece {
    std::size_t begin = 0;
    std::size_t count = 0;
    std::size_t element_bytes = 1;
    const Sources* first_parts = nullptr;               // by rank
    const std::vector<std::size_t>* strides = nullptr;  // bytes between parts, by rank

    [[nodiscard]] const std::byte* part(int rank, std::size_t index) const noexcept;
    // Where the piece belongs in a buffer in which its part begins at element offset.
    [[nodiscard]] std::byte* to(const Buffer& out, std::size_t offset) const noexcept;
    void copy(std::byte* target, int rank, std::size_t index) const noexcept;
  };

  SharedMemory(const World& world, detail::SharedGroup group);

  [[nodiscard]] static constexpr std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t rank_index() const noexcept;
  [[nodiscard]] std::size_t ranks() const noexcept;
  [[nodiscard]] detail::Arguments arguments() const noexcept;

  [[nodiscard]] std::vector<detail::RankCell*> cells() const;

  // Shows all ranks a value in the post itself: nobody looks at this rank's own memory. shown_bytes: the same on all
  // ranks, of which some may give less.
  void enter_small(const detail::Signature& signature, const ConstBuffer& data, std::size_t shown_bytes,
                   const Call& call);

  void find_payloads(std::size_t shown_bytes, std::span<const std::byte*> found) const noexcept;

  // An operation in which threads read, or also write, each other's memory between its first step and its second.
  [[nodiscard]] Running shared(const detail::Signature& signature, const Call& call) const noexcept;

  // Names the data to all ranks. Returns whether they cannot see it, so that it must be staged.
  [[nodiscard]] bool show(const ConstBuffer& data);

  [[nodiscard]] bool are_all_in_place() const noexcept;

  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept;
  [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept;

  [[nodiscard]] std::byte* stage_at(std::size_t turn) const noexcept;

  static void copy_bytes(std::byte* to, const ConstBuffer& data, std::size_t begin, std::size_t at_most) noexcept;

  // Copies piece number turn of the data into the stage whose turn it is.
  void stage(const ConstBuffer& data, std::size_t turn) const noexcept;

  [[nodiscard]] std::vector<std::byte*> places() const;

  static void reduce_for_all(std::vector<std::byte*> data, std::pair<std::size_t, std::size_t> slice, Dtype dtype,
                             ReduceOp op);

  // Every rank reduces its slice of a piece, where a rank's data is or in its stage. While it waits for the others'
  // slices it has shown its next piece in the other stage.
  void reduce_in_pieces(const Running& running, const Buffer& data, ReduceOp op, bool is_staged);

  // Lets every rank take what it wants of what the ranks give: take(piece) is called for all pieces in turn.
  template <class Take>
  void pull(const detail::Signature& signature, const Call& call, const Source& source, const Take& take) {
    meeting_.throw_if_lost(signature);
    const std::size_t element_bytes = size_of(signature.dtype);
    const std::size_t part_bytes = source.count * element_bytes;
    if (source.num_parts * part_bytes <= detail::small_bytes) {
      const std::size_t shown_bytes = source.num_parts * part_bytes;
      enter_small(signature, source.gives ? source.in : ConstBuffer{}, shown_bytes, call);
      Sources first_parts(ranks());
      find_payloads(shown_bytes, first_parts);
      const std::vector<std::size_t> strides(ranks(), part_bytes);
      take(Piece{0, source.count, element_bytes, &first_parts, &strides});
      return;
    }
    const Running running = shared(signature, call);
    meeting_.next_post().place = nothing;
    const bool is_staged = source.gives && source.in.count > 0 && show(source.in);
    // Several elements of each part, at least one of which fits, for there are fewer ranks than that.
    const std::size_t limit = detail::stage_bytes / source.num_parts / element_bytes;
    if (is_staged) stage_parts(source, 0, limit, element_bytes);
    meeting_.enter(running);
    const std::size_t length = are_all_in_place() ? source.count : limit;
    std::vector<std::uint64_t> shown;
    for (int rank = 0; rank < world_.size; ++rank) shown.push_back(meeting_.post_of(rank).place);
    Sources first_parts(ranks());
    std::vector<std::size_t> strides(ranks());
    for (std::size_t begin = 0, turn = 0; begin < source.count; begin += length, ++turn) {
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::size_t at_rank = to_index(rank);
        const bool is_in_stage = shown[at_rank] == 0;
        first_parts[at_rank] =
            is_in_stage ? group_.cell(rank).stages[turn % 2].data() : at(rank, shown[at_rank]) + begin * element_bytes;
        strides[at_rank] = is_in_stage ? limit * element_bytes : part_bytes;
      }
      take(Piece{begin, std::min(length, source.count - begin), element_bytes, &first_parts, &strides});
      if (is_staged) stage_parts(source, turn + 1, limit, element_bytes);
      meeting_.take_step(running);
    }
  }

  // Copies up to limit elements of each part into the stage whose turn it is. A rank may have less than count to give.
  void stage_parts(const Source& source, std::size_t turn, std::size_t limit,
                   std::size_t element_bytes) const noexcept;

  World world_;
  detail::SharedGroup group_;
  detail::Meeting meeting_;
  detail::Meeting side_meeting_;  // beside the operations
  std::shared_ptr<detail::Heap> heap_;
  detail::HostLane side_;
  detail::HostLane lane_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/sample.hpp
// One sample of a block, as the functions see that users give to a dataset. Data room.

namespace railyard::inline v0_1 {

/// Says which column is meant: by its name, or faster by its number.
class ColumnKey {
 public:
  ColumnKey(std::string_view name) noexcept;
  ColumnKey(const std::string& name) noexcept;
  ColumnKey(const char* name) noexcept;
  template <std::integral Number>
  ColumnKey(Number number) noexcept : number_(static_cast<std::size_t>(number)) {}

  /// Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] std::size_t in(const Schema& schema) const;

 private:
  std::string_view name_{};
  std::size_t number_ = 0;
};

/// Shows one sample of a Block, which it must not outlive.
class Sample {
 public:
  Sample(const Block& block, std::size_t row) noexcept;

  /// The sample's number in its source.
  [[nodiscard]] std::uint64_t id() const noexcept;
  [[nodiscard]] const Schema& schema() const noexcept;

  /// Returns the single number in a column of any dtype. Throws: ConfigError where there are more or fewer.
  [[nodiscard]] double number(ColumnKey key) const;

  /// Returns the elements in a column whose dtype is T's. Throws: ConfigError if it is another.
  template <Element T>
  [[nodiscard]] std::span<const T> values(ColumnKey key) const {
    const std::size_t column = key.in(schema());
    if (schema()[column].dtype != dtype_of<T>) refuse(column, name_of(dtype_of<T>));
    return (*block_)[column].template values<T>(row_);
  }

  /// Returns the text in a column of texts. Throws: ConfigError if it holds none.
  [[nodiscard]] std::string_view text(ColumnKey key) const;

  /// The bytes in a column, whatever they mean.
  [[nodiscard]] std::span<const std::byte> bytes(ColumnKey key) const;

 private:
  [[noreturn]] void refuse(std::size_t column, std::string_view as) const;

  const Block* block_;
  std::size_t row_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/block_builder.hpp
// Makes blocks sample by sample: what the functions write to that users give to a dataset. Data room.

namespace railyard::inline v0_1 {

class BlockBuilder;

/// Sets the columns of the sample that a BlockBuilder is at.
class SampleWriter {
 public:
  /// Sets a column of single numbers; the number is converted to the column's dtype.
  /// Throws: ConfigError if the column is of another shape, or of integers that do not reach that far.
  template <class T>
  requires std::is_arithmetic_v<T>
  void set(ColumnKey key, T value) { fill(key, &value, 1); }
  /// Sets a column of numbers, as many as its shape says, or as there are in a column that differs in length.
  template <Element T>
  void set(ColumnKey key, std::span<const T> values) {
    fill(key, values.data(), values.size());
  }
  template <Element T>
  void set(ColumnKey key, const std::vector<T>& values) {
    set(key, std::span<const T>{values});
  }
  /// Sets a column of texts.
  void set(ColumnKey key, std::string_view text);
  void set(ColumnKey key, const char* text);
  void set(ColumnKey key, const std::string& text);

 private:
  friend class BlockBuilder;
  explicit SampleWriter(BlockBuilder& builder) noexcept;

  template <class T>
  void fill(ColumnKey key, const T* values, std::size_t count);

  BlockBuilder* builder_;
};

/// Collects samples of one schema and makes a Block of them.
class BlockBuilder {
 public:
  /// rows: how many samples there will be about; memory for them is taken at once.
  explicit BlockBuilder(std::shared_ptr<const Schema> schema, std::size_t rows = 0);
  BlockBuilder(const BlockBuilder&) = delete;  // the writer points here
  BlockBuilder& operator=(const BlockBuilder&) = delete;

  /// Begins a sample and returns what its columns are set with. Throws: ConfigError if the one before lacks a column.
  SampleWriter& add(std::uint64_t id);
  /// Gives the sample the columns that have not been set and that are the same fields of another one.
  void complete_from(const Block& block, std::size_t row);
  /// Throws: ConfigError if a column of the sample has not been set.
  void check_complete() const;
  /// Takes back the sample that was begun last.
  void drop_last();

  [[nodiscard]] std::size_t rows() const noexcept { return ids_.size(); }
  /// The bytes of all samples so far.
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] const Schema& schema() const noexcept;

  /// Makes the Block and begins anew. Throws: ConfigError if the last sample lacks a column.
  [[nodiscard]] Block build();

 private:
  friend class SampleWriter;
  struct Part {
    std::vector<std::byte> bytes{};
    std::vector<std::uint64_t> ends{};  // of the samples that have been set
  };

  // Finds the columns that samples of another schema have as well.
  void match(const std::shared_ptr<const Schema>& other);

  void put(std::size_t column, std::span<const std::byte> bytes);

  // Makes room for the value of a column of the sample; a value that was set before gives way.
  std::byte* room_for(std::size_t column, std::size_t size);

  std::shared_ptr<const Schema> schema_;
  std::vector<Part> columns_;
  std::vector<std::uint64_t> ids_;
  SampleWriter writer_;
  std::shared_ptr<const Schema> completing_;      // whose samples gave columns last
  std::vector<std::optional<std::size_t>> same_;  // which of its columns each of ours is
};

/// Takes the samples that a function of flat_map() makes of one, which share its id.
class SampleList {
 public:
  SampleList(BlockBuilder& builder, const Block& block, std::size_t row) noexcept;

  /// Begins another sample.
  SampleWriter& add();
  /// Gives the last sample the columns that it lacks. Throws: ConfigError if the one it was made of has none of them.
  void finish();

 private:
  BlockBuilder* builder_;
  const Block* block_;
  std::size_t row_;
  bool has_one_ = false;
};

namespace detail {

template <class To, class From>
[[nodiscard]] To convert_element(From value) noexcept {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_arithmetic_v<From>) {
    return To{static_cast<float>(value)};
  } else {
    return convert_element<To>(static_cast<float>(value));
  }
}

/// Says whether a number is one that To can hold, once what is behind its point is left out.
template <class To, class From>
[[nodiscard]] bool fits(From value) noexcept {
  using Limits = std::numeric_limits<To>;
  if constexpr (!std::is_arithmetic_v<From>) {
    return fits<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, To> || !std::is_integral_v<To> || std::is_same_v<To, bool>) {
    return true;
  } else if constexpr (std::is_floating_point_v<From>) {
    constexpr From end = static_cast<From>(Limits::max() / 2 + 1) * 2;  // exact, which the largest To need not be
    return (Limits::is_signed ? value >= -end || value > -end - 1 : value > -1) && value < end;
  } else if (std::is_signed_v<From> && value < From{}) {
    return Limits::is_signed && static_cast<std::intmax_t>(value) >= static_cast<std::intmax_t>(Limits::min());
  } else {
    return static_cast<std::uintmax_t>(value) <= static_cast<std::uintmax_t>(Limits::max());
  }
}

}  // namespace detail

template <class T>
void SampleWriter::fill(ColumnKey key, const T* values, std::size_t count) {
  const std::size_t column = key.in(builder_->schema());
  const Field& field = builder_->schema()[column];
  if (field.is_text) throw ConfigError{detail::compose("column \"{}\" is text and was set to numbers", field.name)};
  visit_dtype(field.dtype, [&](auto zero) {
    using To = decltype(zero);
    auto* to = reinterpret_cast<To*>(builder_->room_for(column, count * sizeof(To)));
    for (std::size_t at = 0; at < count; ++at) {
      if (!detail::fits<To>(values[at])) {
        throw ConfigError{detail::compose("column \"{}\" is {} and was set to {}, which that cannot hold", field.name,
                                          name_of(field.dtype), detail::convert_element<double>(values[at]))};
      }
      to[at] = detail::convert_element<To>(values[at]);
    }
  });
}

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/byte_masks.hpp
// Looks at 64 characters of text at once: each answer is a word with a bit per character. Data room.

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__SSE2__)
#else
#endif

/// Where each of some characters is among 64.
template <std::size_t Count>
using ByteMarks = std::array<std::uint64_t, Count>;

#if defined(__x86_64__)
typedef char Bytes32 __attribute__((vector_size(32)));

#endif

/// The lowest so many bits, 0 to 64.
[[nodiscard]] constexpr std::uint64_t lowest_bits(std::size_t count) noexcept {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/byte_places.hpp
// Where the marked characters of a text are, as numbers. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// What the functions below ask of a block: the characters, and those of them that end lines.
using PlaceMarks = ByteMarks<3>;

#if defined(__x86_64__)
#endif

#if defined(__x86_64__)
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/csv_cutter.hpp
// Cuts text into records of fields where separators are that are not within quotes. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Finds the fields of a text of less than 4 GiB, 64 characters at once, and keeps where the separators are.
class CsvCutter {
 public:
  /// Is one record: its fields are those that separators first, first + 1, ... end.
  struct Record {
    std::uint32_t first = 0;
    std::uint32_t num_fields = 0;
  };

  /// quote: '\0' for none.
  CsvCutter(char delimiter, char quote) noexcept;

  /// Cuts the text, behind which 64 more characters can be read, into its whole records, blank lines left out. Returns
  /// how many characters they take. is_end: no text follows, and it ends with a line feed; then all of it is taken.
  std::size_t cut(const char* text, std::size_t size, bool is_end);

  [[nodiscard]] std::span<const Record> records() const noexcept;

  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept;
  /// Behind the line feed.
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept;
  /// The text of a field, with its quotes; a carriage return before the line feed is no part of it.
  [[nodiscard]] std::string_view field(std::size_t record, std::size_t field) const noexcept;
  /// separator: the one before the field.
  [[nodiscard]] std::string_view field_at(std::size_t separator, bool is_last) const noexcept;

  /// Where quotes are that do not enclose a whole field, ascending.
  [[nodiscard]] const std::vector<std::uint32_t>& misplaced_quotes() const noexcept { return misplaced_; }
  /// Whether the text ends within quotes, in the last record.
  [[nodiscard]] bool is_unclosed() const noexcept { return is_unclosed_; }
  [[nodiscard]] bool is_ascii() const noexcept { return is_ascii_; }
  [[nodiscard]] const char* text() const noexcept { return text_; }
  /// Where the separators are; the first is before the text, at 2^32 - 1.
  [[nodiscard]] const std::uint32_t* separators() const noexcept;

  /// Returns which record has the character, or the first behind it.
  [[nodiscard]] std::size_t record_of(std::size_t position) const noexcept;

 private:
  // What is handed from block to block; of the bits, the lowest says what the last character before the block was.
  struct QuoteState {
    std::uint64_t quoted = 0;  // all bits or none
    std::uint64_t separator_or_quote = 1;
    std::uint64_t closing = 0;
  };

  [[nodiscard]] std::size_t begin_of(std::size_t separator) const noexcept;

  void reserve(std::size_t size);

  // Takes the delimiters and line feeds that are within quotes out of the marks, of those and quotes.
  void leave_quoted_out(std::size_t begin, std::size_t blocks, PlaceMarks* marks, QuoteState& state);
  [[nodiscard]] static std::uint64_t last_bit_of_any(const PlaceMarks& marks) noexcept;

  // A quote opens at the beginning of a field or is the second of two, and closes at the end of one or is the first.
  void check_quotes(std::size_t block, std::uint64_t quotes, std::uint64_t quoted, std::uint64_t separators,
                    QuoteState& state);

  // first, line: the separators before and at the end of it. first becomes that before the next.
  void add_record(std::size_t& first, std::size_t line) noexcept;

  char delimiter_;
  char quote_;
  const char* text_ = nullptr;
  std::unique_ptr<std::uint32_t[]> separators_;
  std::unique_ptr<Record[]> records_;
  std::size_t room_ = 0;  // for a text of fewer characters
  std::size_t num_records_ = 0;
  std::vector<std::uint32_t> misplaced_;
  bool is_ascii_ = true;
  bool is_unclosed_ = false;
};

/// Returns what a field says that may be within quotes. Behind the field 64 more characters can be read.
[[nodiscard]] std::string unquoted(std::string_view field, char quote);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/number_text.hpp
// Numbers out of text, exactly rounded, the same in every locale, and several times as fast as the standard functions
// where they are as short as numbers in files are. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// So many bytes behind a text must be readable for the functions of this header that take pointers.
inline constexpr std::size_t text_padding = 64;

[[nodiscard]] std::uint64_t load_eight(const char* text) noexcept;

[[nodiscard]] constexpr bool are_digits(std::uint64_t eight) noexcept {
  return (((eight & 0xF0F0F0F0F0F0F0F0U) | (((eight + 0x0606060606060606U) & 0xF0F0F0F0F0F0F0F0U) >> 4)) ==
          0x3333333333333333U);
}

// Adds neighbours: to numbers of two digits, of four, of eight.
[[nodiscard]] constexpr std::uint64_t value_of_digits(std::uint64_t eight) noexcept {
  eight = (eight & 0x0F0F0F0F0F0F0F0FU) * (10 * 256 + 1) >> 8;
  eight = (eight & 0x00FF00FF00FF00FFU) * (100 * 65536 + 1) >> 16;
  return (eight & 0x0000FFFF0000FFFFU) * (std::uint64_t{10000} * 4294967296U + 1) >> 32;
}

// The first `count` of eight characters, 1 to 8, with zeros in front.
[[nodiscard]] constexpr std::uint64_t first_of(std::uint64_t eight, std::size_t count) noexcept {
  const std::size_t shift = 64 - 8 * count;
  return (eight << shift) | (0x3030303030303030U & ((std::uint64_t{1} << shift) - 1));
}

inline constexpr std::array<std::uint64_t, 20> powers_of_ten = [] {
  std::array<std::uint64_t, 20> powers{1};
  for (std::size_t at = 1; at < powers.size(); ++at) powers[at] = powers[at - 1] * 10;
  return powers;
}();

/// Appends the `count` characters, at most 19 with those before, to value; false if one is no digit.
[[nodiscard]] [[gnu::always_inline]] inline bool append_digits(const char* text, std::size_t count,
                                                               std::uint64_t& value) noexcept {
  while (count > 8) {
    const std::uint64_t eight = load_eight(text);
    if (!are_digits(eight)) return false;
    value = value * 100'000'000 + value_of_digits(eight);
    text += 8;
    count -= 8;
  }
  const std::uint64_t rest = first_of(load_eight(text), count);
  if (!are_digits(rest)) return false;
  value = value * powers_of_ten[count] + value_of_digits(rest);
  return true;
}

/// Returns the text without blanks around it, and without a plus in front.
[[nodiscard]] std::string_view trimmed_number(std::string_view text) noexcept;

/// Says why a text is no number of a type.
enum class NumberFault : std::uint8_t { none, not_a_number, too_large };

/// Reads the number that the whole text spells, blanks around it aside. Any length, and nothing behind it is read.
template <class Integer>
requires std::is_integral_v<Integer>
[[nodiscard]] NumberFault parse_number(std::string_view text, Integer& value) noexcept {
  text = trimmed_number(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return NumberFault::not_a_number;
  if (error == std::errc{}) return NumberFault::none;
  return error == std::errc::result_out_of_range ? NumberFault::too_large : NumberFault::not_a_number;
}

// Tells a number that is too near to zero for its type from one that is too large, given that it is one of them.
[[nodiscard]] bool is_tiny(std::string_view number, std::size_t exponent_at) noexcept;

template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] NumberFault parse_number(std::string_view text, Float& value) noexcept {
  text = trimmed_number(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return NumberFault::not_a_number;
  if (error == std::errc{}) return NumberFault::none;
  if (error != std::errc::result_out_of_range) return NumberFault::not_a_number;
  if (!is_tiny(text, std::min(text.find_first_of("eE"), text.size()))) return NumberFault::too_large;
  double near_zero = 0;
  if constexpr (!std::is_same_v<Float, double>) {
    if (parse_number(text, near_zero) != NumberFault::none) near_zero = 0;
  }
  value = static_cast<Float>(near_zero);
  return NumberFault::none;
}

/// Reads an integer that is nothing but a sign and at most 18 digits; false where parse_number() is needed.
[[nodiscard]] bool parse_short(const char* text, std::size_t size, std::int64_t& value) noexcept;

inline constexpr std::array<std::uint64_t, 28> powers_of_five = [] {
  std::array<std::uint64_t, 28> powers{1};
  for (std::size_t at = 1; at < powers.size(); ++at) powers[at] = powers[at - 1] * 5;
  return powers;
}();

// How far each can be shifted to the left. As a table, because on some processors it takes long to find out.
inline constexpr auto shifts_of_fives = [] {
  std::array<std::int8_t, powers_of_five.size()> shifts{};
  for (std::size_t at = 0; at < shifts.size(); ++at) {
    shifts[at] = static_cast<std::int8_t>(std::countl_zero(powers_of_five[at]));
  }
  return shifts;
}();

template <class Float>
struct FloatFacts {
  static constexpr int digits = std::numeric_limits<Float>::digits;
  // Up to here digits are exact. Of doubles not up to 2^53, which is amid the numbers of 16 digits: the branch would be
  // mispredicted.
  static constexpr std::uint64_t most_exact_digits = digits == 53 ? 1'000'000'000'000'000 : std::uint64_t{1} << digits;
  static constexpr int most_exact_power = digits == 53 ? 22 : 10;  // 10 to this power is exact
  using Bits = std::conditional_t<digits == 53, std::uint64_t, std::uint32_t>;
  static constexpr auto powers = [] {
    std::array<Float, static_cast<std::size_t>(most_exact_power) + 1> all{1};
    for (std::size_t at = 1; at < all.size(); ++at) all[at] = all[at - 1] * 10;
    return all;
  }();
};

struct Division {
  std::uint64_t quotient = 0;
  std::uint64_t remainder = 0;
};

// Divides high * 2^64 + low; high < divisor. The compilers call a function for what is one instruction.
[[nodiscard]] Division divide_wide(std::uint64_t high, std::uint64_t low, std::uint64_t divisor) noexcept;

/// Returns digits / 10^power, rounded once, to nearest and even. digits: not 0. power: 0 to 27.
/// A quotient of 63 bits or more and whether there is a remainder decide how to round; no table of long reciprocals.
template <class Float>
[[nodiscard]] [[gnu::always_inline]] inline Float divide_by_power(std::uint64_t digits, int power) noexcept {
  using Facts = FloatFacts<Float>;
  const std::uint64_t five = powers_of_five[static_cast<std::size_t>(power)];
  const int up = std::countl_zero(digits);
  const int down = shifts_of_fives[static_cast<std::size_t>(power)];
  const std::uint64_t divisor = five << down;
  const auto [quotient, remainder] = divide_wide((digits << up) >> 1, digits << up << 63, divisor);
  const int dropped = 63 + static_cast<int>(quotient >> 63) - Facts::digits;
  const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
  const std::uint64_t rest = quotient & (2 * half - 1);
  std::uint64_t kept = quotient >> dropped;
  // Up if there is more than a half, or a half and what is kept is odd. It is at random, and a branch would be
  // mispredicted.
  const std::uint64_t is_up_at_half = (kept & 1U) | static_cast<std::uint64_t>(remainder != 0);
  kept += static_cast<std::uint64_t>(rest + is_up_at_half > half);
  const int exponent = dropped - 63 - up + down - power;
  using Bits = typename Facts::Bits;
  constexpr int bias = std::numeric_limits<Float>::max_exponent - 1;
  const auto scale = std::bit_cast<Float>(static_cast<Bits>(static_cast<Bits>(exponent + bias) << (Facts::digits - 1)));
  return static_cast<Float>(static_cast<std::int64_t>(kept)) * scale;  // both are exact, and so is the product
}

// Puts digits x 10^power together; false where the standard function must.
template <class Float>
[[nodiscard]] [[gnu::always_inline]] inline bool scale_digits(std::uint64_t digits, int power, Float& value) noexcept {
  using Facts = FloatFacts<Float>;
  if (digits <= Facts::most_exact_digits) {
    // Both are exact, so that the one operation rounds once.
    if (power < 0 && power >= -Facts::most_exact_power) {
      value = static_cast<Float>(static_cast<std::int64_t>(digits)) / Facts::powers[static_cast<std::size_t>(-power)];
      return true;
    }
    if (power >= 0 && power <= Facts::most_exact_power) {
      value = static_cast<Float>(static_cast<std::int64_t>(digits)) * Facts::powers[static_cast<std::size_t>(power)];
      return true;
    }
  }
  if (power > 0 || power < -27 || digits == 0) return false;
  value = divide_by_power<Float>(digits, -power);
  return true;
}

// Reads e, a sign and at most three digits behind a number.
[[nodiscard]] bool append_exponent(const char* text, const char* end, int& power) noexcept;

// Reads digits, a point and digits, at most 7 and 18 of them, 19 together. Takes words instead of a look at each
// character: where numbers differ in length, a loop over them costs more in wrong predictions than in work.
[[nodiscard]] [[gnu::always_inline]] inline bool parse_plain(const char* text, std::size_t size, std::uint64_t& digits,
                                                             int& power) noexcept {
  const std::uint64_t eight = load_eight(text);
  const std::uint64_t others = eight ^ 0x2E2E2E2E2E2E2E2EU;  // zero where the point is
  const std::uint64_t zeros = (others - 0x0101010101010101U) & ~others & 0x8080808080808080U;
  const auto whole = static_cast<std::size_t>(std::countr_zero(zeros)) / 8;
  const std::size_t fraction = size - whole - 1;
  if (whole - 1 > 6 || fraction - 1 > 17 || whole + fraction > 19) return false;
  const std::uint64_t first = first_of(eight, whole);
  digits = value_of_digits(first);
  power = -static_cast<int>(fraction);
  return are_digits(first) && append_digits(text + whole + 1, fraction, digits);
}

// Reads the same of any shape, and an exponent.
[[nodiscard]] bool parse_any(const char* text, std::size_t size, std::uint64_t& digits, int& power) noexcept;

/// Reads a number that has at most 19 digits and no large exponent; false where parse_number() is needed.
template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] bool parse_short(const char* text, std::size_t size, Float& value) noexcept {
  const bool is_negative = *text == '-';
  text += is_negative;
  size -= is_negative;
  std::uint64_t digits = 0;
  int power = 0;
  int exponent = 0;
  // As most programs write an exponent: e, a sign and two digits.
  const std::size_t mantissa = size > 4 && (text[size - 4] | 0x20) == 'e' ? size - 4 : size;
  const bool is_plain = parse_plain(text, mantissa, digits, power) &&
                        (mantissa == size || append_exponent(text + mantissa, text + size, exponent));
  if (!is_plain && !parse_any(text, size, digits, power)) return false;
  if (is_plain) power += exponent;
  if (!scale_digits(digits, power, value)) return false;
  if (is_negative) value = -value;
  return true;
}

/// Reads "true" or "false" as they are, in capitals, or with a capital first letter.
[[nodiscard]] std::optional<bool> parse_boolean(std::string_view text) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/option_columns.hpp
// Finds the columns that options name. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns which column an option names. where: what the option belongs to, such as a file. hint: what else the message
/// says. Throws: ConfigError that names all of these, and the columns that exist.
[[nodiscard]] std::size_t column_of_option(std::string_view where, std::string_view option, const Schema& schema,
                                                  std::string_view name, std::string_view hint = {});

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/byte_stream.hpp
// Bytes one after another: of a file, or of what a compressed file holds. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Gives the bytes of one file from its beginning, or from where it was opened.
class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  /// Returns how many bytes it has put there: fewer than asked for only at the end. Throws: DataError.
  [[nodiscard]] virtual std::size_t read(char* to, std::size_t size) = 0;
  /// Steps over bytes and returns how many: fewer than asked for only at the end. Throws: DataError.
  [[nodiscard]] virtual std::uint64_t skip(std::uint64_t size);
  /// About how many bytes follow, where that is known, as of a file that nobody writes to: no buffer for them need be
  /// larger.
  [[nodiscard]] virtual std::uint64_t left() const noexcept;
};

/// Returns how large a buffer is to be: so much, or for the little that follows and a byte, which shows that it ends.
/// What says that nothing follows may say so of what has no size, as a pipe, and has 4 KiB.
[[nodiscard]] std::size_t room_for(const ByteStream& stream, std::size_t most) noexcept;

/// Opens what it is told by path.
using OpenBytes = std::unique_ptr<ByteStream> (*)(const std::string& path);

/// Tells a file from what it is after somebody has changed it.
struct FileStamp {
  std::uint64_t size = 0;
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Reads a file from any of its places. Not by a mapping, which would end the program when the file is cut short.
class FileBytes final : public ByteStream {
 public:
  explicit FileBytes(std::string path, std::uint64_t from = 0);

  [[nodiscard]] const FileStamp& stamp() const noexcept { return stamp_; }

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override;

  [[nodiscard]] std::uint64_t skip(std::uint64_t size) override;

  [[nodiscard]] std::uint64_t left() const noexcept override;

  [[nodiscard]] std::size_t read_at(std::uint64_t offset, char* to, std::size_t size) const;

 private:
  std::string path_;
  Descriptor file_{};
  FileStamp stamp_{};
  std::uint64_t at_;
};

/// Names what a file holds by how it begins (is_whole: that is all of it), where that is no text, and says what to do;
/// empty where it may be text.
[[nodiscard]] std::string_view fault_of_beginning(std::string_view text, bool is_whole) noexcept;

inline constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";

/// Returns the number of the line, from 1, in which a byte of a stream lies.
[[nodiscard]] std::uint64_t line_at(ByteStream& stream, std::uint64_t offset);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/text_head.hpp
// The beginning of a text file: what decides on how the rest is read. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Holds text of a file from its beginning, without a byte order mark; more of it on demand.
class TextHead {
 public:
  /// Throws: DataError if the file begins as no text does.
  TextHead(std::string file, std::unique_ptr<ByteStream> bytes);

  /// text_padding characters behind it can be read.
  [[nodiscard]] const char* text() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_ - begin_; }
  /// Whether that is the whole file; then it ends with a line feed.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }

  /// Reads as much again. Throws: DataError if that would be more than most bytes.
  void grow(std::size_t most);

 private:
  void fill(std::size_t size);
  void end_line();

  std::string file_;
  std::unique_ptr<ByteStream> bytes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
  bool is_whole_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/utf8.hpp
// Finds what is not UTF-8 in text. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Text from a file as a message shows it: no control characters, and no more than the eye takes in.
[[nodiscard]] std::string shown_text(std::string_view text);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/digest.hpp
// Numbers that tell bytes from other bytes, without a promise to anybody who looks for two that are taken for one. Core
// room.

namespace railyard::inline v0_1 {
namespace detail {

/// Mixes bits so that neighbouring inputs (seed 1 and 2, epoch 0 and 1) give unrelated outputs.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014 (the finaliser of SplitMix64).
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t bits) noexcept {
  bits += 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

/// Adds bytes to a number that is another, then, for nearly all other bytes.
[[nodiscard]] std::uint64_t digest_of(std::span<const std::byte> bytes, std::uint64_t digest = 0) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/fingerprint.hpp
// Tells the samples of a dataset from those it had with other files, numbers or settings, without reading them. Data
// room.

namespace railyard::inline v0_1 {
namespace detail {

/// Stands for any value where nothing is computed.
struct AnyValue {
  template <class T>
  operator T() const;
};

/// How many fields an aggregate has. Values: AnyValue for each that it is known to have.
template <class T, class... Values>
[[nodiscard]] consteval std::size_t count_fields() {
  if constexpr (requires { T{Values{}..., AnyValue{}}; }) {
    return count_fields<T, Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}

/// Collects what samples depend on; the order counts.
class Fingerprint {
 public:
  void add(std::uint64_t number) noexcept;
  void add(double number) noexcept;
  template <class T>
  requires(std::integral<T> || std::is_enum_v<T>) void add(T value) noexcept { add(static_cast<std::uint64_t>(value)); }
  void add(std::span<const std::byte> bytes) noexcept;
  void add(std::string_view text) noexcept;
  template <class T>
  void add(const std::vector<T>& values) noexcept {
    add(std::uint64_t{values.size()});
    for (const T& value : values) add(value);
  }
  /// The names of files, and of 64 of them at most size and time of change: of a million that takes minutes on some
  /// file systems. Throws: DataError if one is not there.
  void add_files(const std::vector<std::string>& paths);

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// Tells users' functions apart by their types: each lambda has one of its own.
[[nodiscard]] std::uint64_t fingerprint_of(const std::type_info& type) noexcept;

template <class T>
concept Identifiable = requires(Fingerprint& to, const T& value) {
  to.add(value);
};

template <class... T>
void identify_all(Fingerprint& to, const T&... values) noexcept {
  static_assert((Identifiable<T> && ...),
                "the options of a preprocessor are told from others by their fields, which are to be numbers, "
                "enumerators, texts, and vectors of these");
  (to.add(values), ...);
}

/// Adds all fields of options, also of those that get more fields one day.
template <class Options>
void identify_options(const Options& options, Fingerprint& to) noexcept {
  constexpr std::size_t count = std::is_aggregate_v<Options> ? count_fields<Options>() : 0;
  static_assert(count > 0 && count <= 8,
                "the options of a preprocessor are told from others by their fields: make them an aggregate of 1 to 8 "
                "of them");
  if constexpr (count == 1) {
    const auto& [a] = options;
    identify_all(to, a);
  } else if constexpr (count == 2) {
    const auto& [a, b] = options;
    identify_all(to, a, b);
  } else if constexpr (count == 3) {
    const auto& [a, b, c] = options;
    identify_all(to, a, b, c);
  } else if constexpr (count == 4) {
    const auto& [a, b, c, d] = options;
    identify_all(to, a, b, c, d);
  } else if constexpr (count == 5) {
    const auto& [a, b, c, d, e] = options;
    identify_all(to, a, b, c, d, e);
  } else if constexpr (count == 6) {
    const auto& [a, b, c, d, e, f] = options;
    identify_all(to, a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    const auto& [a, b, c, d, e, f, g] = options;
    identify_all(to, a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    const auto& [a, b, c, d, e, f, g, h] = options;
    identify_all(to, a, b, c, d, e, f, g, h);
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/on_error.hpp
// What becomes of the samples of a source that are damaged. Data room.

namespace railyard::inline v0_1 {

/// Says whether a source stops at a damaged sample, or leaves it out as if it were not there.
class OnError {
 public:
  /// The first one is an error.
  [[nodiscard]] static constexpr OnError stop() noexcept { return OnError{0}; }
  /// All of them are left out, and counted.
  [[nodiscard]] static constexpr OnError skip() noexcept { return OnError{std::numeric_limits<std::uint64_t>::max()}; }
  /// So many are left out, and one more is an error.
  [[nodiscard]] static constexpr OnError at_most(std::uint64_t max_skips) noexcept { return OnError{max_skips}; }

  [[nodiscard]] constexpr std::uint64_t max_skips() const noexcept { return max_skips_; }
  [[nodiscard]] constexpr bool stops_at_once() const noexcept { return max_skips_ == 0; }

 private:
  constexpr explicit OnError(std::uint64_t max_skips) noexcept : max_skips_(max_skips) {}

  std::uint64_t max_skips_;
};

namespace detail {

/// Returns a number that tells which samples are left out: of those that are damaged, and of those above a limit.
[[nodiscard]] std::uint64_t fingerprint_of(OnError policy, std::uint64_t limit) noexcept;

}  // namespace detail

/// Counts the samples that were left out; copies share the count, of what their process has read. Samples that are read
/// again do not count again.
class SkipCount {
 public:
  [[nodiscard]] std::uint64_t count() const noexcept;
  /// Takes note that so many were left out of all that lie before the place where a reader is.
  void raise_to(std::uint64_t count) const noexcept;

 private:
  std::shared_ptr<std::atomic<std::uint64_t>> count_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/csv_plan.hpp
// What a CSV file is taken for: its columns and their types. Data room.

namespace railyard::inline v0_1 {

/// Says how CSV files are read.
struct CsvSourceOptions {
  std::string label{};                 ///< which column is the target; none if empty
  std::vector<Field> fields{};         ///< types of columns by name; those of others come from the first rows
  std::vector<std::string> columns{};  ///< reads these only, in this order; all if empty
  std::vector<std::string> names{};    ///< names the columns of the file instead of its header
  bool has_header = true;              ///< whether the first record of each file names the columns
  char delimiter = ',';
  char quote = '"';  ///< '\0': quotes are characters as any
  /// What stands for no number: NaN in a column of floats. Text is taken as it is, so that NA may be Namibia.
  std::vector<std::string> missing{"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"};
  Dtype floats = Dtype::f64;            ///< the type of numbers that are no integers: f64 or f32
  std::size_t inference_rows = 10'000;  ///< rows that decide on types: so many, of the first 16 MiB
  std::size_t max_record_bytes = std::size_t{64} << 20;
  OnError on_error = OnError::stop();
};

namespace detail {

/// Is what is known of the files once the first has been looked at.
struct CsvPlan {
  std::shared_ptr<const Schema> schema{};
  std::vector<std::size_t> places{};  // of the schema's columns in the file
  std::vector<std::string> header{};  // all columns of the file
  std::string file{};                 // whose header that is
  CsvSourceOptions options{};
  bool is_number_missing = false;  // whether what stands for no number may be one
  std::string hint{};              // what may be wrong where columns are, for messages; may be empty

  [[nodiscard]] bool is_missing(std::string_view text) const noexcept;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/number_fours.hpp
// Numbers out of text, four at once, where the processor can. Data room.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)
/// Whether read_by_fours() can be called.
[[nodiscard]] bool has_number_fours() noexcept;

// 16 bits each.
[[nodiscard]] [[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m128i fields_of(
    std::uint64_t bits) noexcept {
  return _mm_cvtepu16_epi32(_mm_cvtsi64_si128(static_cast<long long>(bits)));
}

#endif

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/number_lanes.hpp
// Numbers out of text, 16 characters at once, where the processor can; most of them take the same steps whatever their
// length and sign. Data room.

#if defined(__x86_64__)
#include <smmintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)
/// Whether parse_by_lanes() can be called.
[[nodiscard]] bool has_number_lanes() noexcept;

// What moves 16 characters to the right end of 16 lanes: lane j takes character j - 16 + size, and a lane that takes
// one before the text becomes 0. The lanes are read from the size on.
inline constexpr auto lane_orders = [] {
  std::array<signed char, 34> orders{};
  for (std::size_t at = 0; at < orders.size(); ++at) orders[at] = static_cast<signed char>(static_cast<int>(at) - 16);
  return orders;
}();

// What is added to that where a point is left out: characters up to it are taken from one further left. The lanes are
// read from the number of characters behind the one before the point on.
inline constexpr auto lane_steps = [] {
  std::array<signed char, 34> steps{};
  for (std::size_t at = 0; at < 17; ++at) steps[at] = -1;
  return steps;
}();

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i load_lanes(
    const void* from) noexcept {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

/// What numbers are read with: make one for many. Hidden from the compilers, which make constants anew for each number.
struct NumberLanes {
  __m128i zeros = same('0');
  __m128i nines = same(9);
  __m128i points = same('.');
  __m128i front = _mm_setr_epi8('-', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0');

 private:
  [[nodiscard]] static __m128i same(char lane) noexcept;
};

// Returns the values of 16 characters; that of a minus in front is 0. What is no digit becomes more than 9.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i digits_of_lanes(
    __m128i text, const NumberLanes& with) noexcept {
  return _mm_andnot_si128(_mm_cmpeq_epi8(text, with.front), _mm_sub_epi8(text, with.zeros));
}

// Returns numbers of four digits.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline __m128i fours_of_lanes(
    __m128i digits) noexcept {
  const __m128i twos = _mm_maddubs_epi16(digits, _mm_set1_epi16(1 * 256 + 10));
  return _mm_madd_epi16(twos, _mm_set1_epi32(1 * 65536 + 100));
}

// Puts numbers of eight digits together.
[[nodiscard]] constexpr std::uint64_t join_eights(std::uint64_t halves) noexcept {
  return (halves & 0xFFFFFFFFU) * 100'000'000 + (halves >> 32);
}

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool are_digits(
    __m128i digits, const NumberLanes& with) noexcept {
  const __m128i above_nine = _mm_subs_epu8(digits, with.nines);
  return _mm_testz_si128(above_nine, above_nine) != 0;
}

// Reads at most 21 characters: a minus or none, and at most 19 digits with a point or without; of more than 16
// characters, the point is before the last 16.
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool read_plain_by_lanes(
    const char* text, std::size_t size, std::size_t sign, const NumberLanes& with, std::uint64_t& digits,
    int& power) noexcept {
  if (size - 1 > 20) return false;
  const std::size_t head = size > 16 ? size - 16 : size;
  const __m128i first = load_lanes(text);
  const auto points = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(first, with.points)));
  const auto point = static_cast<std::size_t>(std::countr_zero(points | std::uint32_t{1} << head));
  const std::size_t end = std::max(head, point + 1);  // as if there were one behind a number without a point
  const std::size_t behind = end - point;
  const __m128i order = _mm_add_epi8(load_lanes(lane_orders.data() + end), load_lanes(lane_steps.data() + behind));
  const __m128i lanes = _mm_shuffle_epi8(digits_of_lanes(first, with), order);
  if (end < sign + 2 || !are_digits(lanes, with)) return false;
  power = 1 - static_cast<int>(behind);
  __m128i fours = fours_of_lanes(lanes);
  const __m128i to_eights = _mm_set1_epi32(1 * 65536 + 10000);
  if (size <= 16) {
    fours = _mm_madd_epi16(_mm_packus_epi32(fours, fours), to_eights);
    digits = join_eights(static_cast<std::uint64_t>(_mm_cvtsi128_si64(fours)));
    return true;
  }
  const __m128i last = _mm_sub_epi8(load_lanes(text + head), with.zeros);
  fours = _mm_madd_epi16(_mm_packus_epi32(fours, fours_of_lanes(last)), to_eights);
  digits = join_eights(static_cast<std::uint64_t>(_mm_cvtsi128_si64(fours)));
  if (digits > 999 || !are_digits(last, with)) return false;
  digits = digits * powers_of_ten[16] + join_eights(static_cast<std::uint64_t>(_mm_extract_epi64(fours, 1)));
  if (point < head) power -= 16;
  return true;
}

/// Reads most numbers, as parse_short() would; false where that or parse_number() is needed.
template <class Float>
requires std::is_floating_point_v<Float>
[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool parse_by_lanes(const char* text,
                                                                                              std::size_t size,
                                                                                              const NumberLanes& with,
                                                                                              Float& value) noexcept {
  const bool is_negative = *text == '-';
  std::uint64_t digits = 0;
  int power = 0;
  // As most programs write an exponent: e, a sign and two digits.
  if (size > 4 && (text[size - 4] | 0x20) == 'e') {
    const auto tens = static_cast<unsigned>(text[size - 2] - '0');
    const auto ones = static_cast<unsigned>(text[size - 1] - '0');
    const char sign = text[size - 3];
    if (tens > 9 || ones > 9 || (sign != '-' && sign != '+')) return false;
    if (!read_plain_by_lanes(text, size - 4, is_negative, with, digits, power)) return false;
    const int exponent = static_cast<int>(tens * 10 + ones);
    power += sign == '-' ? -exponent : exponent;
  } else if (!read_plain_by_lanes(text, size, is_negative, with, digits, power)) {
    return false;
  }
  if (!scale_digits(digits, power, value)) return false;
  using Bits = typename FloatFacts<Float>::Bits;  // signs are at random, and a branch would be mispredicted
  value = std::bit_cast<Float>(std::bit_cast<Bits>(value) | static_cast<Bits>(is_negative) << (sizeof(Bits) * 8 - 1));
  return true;
}

[[nodiscard]] [[gnu::target("avx2,bmi,bmi2"), gnu::always_inline]] inline bool parse_by_lanes(
    const char* text, std::size_t size, const NumberLanes& with, std::int64_t& value) noexcept {
  const bool is_negative = *text == '-';
  if (size - 1 > 15 || size == is_negative) return false;
  const __m128i lanes =
      _mm_shuffle_epi8(digits_of_lanes(load_lanes(text), with), load_lanes(lane_orders.data() + size));
  if (!are_digits(lanes, with)) return false;
  __m128i fours = fours_of_lanes(lanes);
  fours = _mm_madd_epi16(_mm_packus_epi32(fours, fours), _mm_set1_epi32(1 * 65536 + 10000));
  const std::uint64_t digits = join_eights(static_cast<std::uint64_t>(_mm_cvtsi128_si64(fours)));
  const auto sign = -static_cast<std::int64_t>(is_negative);
  value = (static_cast<std::int64_t>(digits) ^ sign) - sign;
  return true;
}
#endif

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/record_faults.hpp
// Which records of a piece of text are damaged, and why the first one is. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Collects the damaged records of one piece of text.
class RecordFaults {
 public:
  /// make_message is asked for a text only where it may be needed.
  template <class MakeMessage>
  void add(std::size_t record, MakeMessage&& make_message) {
    if (records_.empty() || record < first_) {
      first_ = record;
      message_ = make_message();
    }
    records_.push_back(record);
  }

  [[nodiscard]] bool empty() const noexcept;
  /// Ascending, each once.
  [[nodiscard]] const std::vector<std::size_t>& records();
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  std::vector<std::size_t> records_;
  std::size_t first_ = 0;
  std::string message_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/csv_parser.hpp
// Makes columns of CSV text, one column of many records at a time. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Parses pieces of CSV text: cut() one, then parse() it. Keeps its memory from piece to piece.
class CsvParser {
 public:
  explicit CsvParser(std::shared_ptr<const CsvPlan> plan);

  std::size_t cut(const char* text, std::size_t size, bool is_end);
  [[nodiscard]] std::size_t records() const noexcept;
  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept;
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept;

  /// Returns a column per field of the schema, of the records that are not in faults.
  [[nodiscard]] std::vector<Column> parse(RecordFaults& faults);

 private:
  // One column of the sound records: what it takes to find a cell's text.
  class Cells {
   public:
    Cells(const CsvCutter& cutter, const std::vector<std::uint32_t>& firsts, std::size_t column, bool is_last) noexcept;

    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] const char* text() const noexcept { return text_; }
    [[nodiscard]] std::string_view operator[](std::size_t row) const noexcept;
    // Returns how many characters all of them have, or a few more.
    [[nodiscard]] std::size_t most_characters() const noexcept;

   private:
    const char* text_;
    const std::uint32_t* separators_;
    const std::uint32_t* firsts_;
    std::size_t rows_;
    bool is_last_;
  };

  void find_sound_records(RecordFaults& faults);

  [[nodiscard]] std::string describe_ragged(std::size_t num_fields) const;

  void find_bad_text(RecordFaults& faults);

  [[nodiscard]] std::string column_of(std::size_t record, std::size_t position) const;

  [[nodiscard]] std::vector<std::size_t> rows_without(const std::vector<std::size_t>& records) const;

  [[nodiscard]] Column read_column(const Field& field, std::size_t place, RecordFaults& faults) const;

  // What a column keeps of a T.
  template <class T>
  using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

  template <class T>
  [[nodiscard]] Column read_numbers(const Cells& cells, const Field& field, RecordFaults& faults) const {
    const auto values = std::make_shared_for_overwrite<Stored<T>[]>(cells.rows());
#if defined(__x86_64__)
    if constexpr (!std::is_same_v<T, bool>) {
      if (has_number_lanes() && !plan_->is_number_missing) {
        std::size_t done = 0;
        if constexpr (std::is_same_v<T, double>) {
          if (has_number_fours()) done = fill_by_fours(cells, field, faults, values.get());
        }
        fill_by_lanes<T>(cells, done, field, faults, values.get());
        return as_column(values, cells.rows());
      }
    }
#endif
    for (std::size_t row = 0; row < cells.rows(); ++row) {
      values.get()[row] = read_number<T>(cells[row], row, field, faults);
    }
    return as_column(values, cells.rows());
  }

  template <class T>
  [[nodiscard]] static Column as_column(const std::shared_ptr<T[]>& values, std::size_t rows) {
    return Column{{values, reinterpret_cast<const std::byte*>(values.get())}, rows, sizeof(T)};
  }

#if defined(__x86_64__)
  // Returns how many rows it has filled: not all where many numbers of the column are too long for fours.
  [[nodiscard]] std::size_t fill_by_fours(const Cells cells, const Field& field, RecordFaults& faults,
                                          double* values) const;

  template <class T>
  [[gnu::target("avx2,bmi,bmi2")]] void fill_by_lanes(const Cells cells, std::size_t row, const Field& field,
                                                      RecordFaults& faults, T* values) const {
    const NumberLanes with;
    using Parsed = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
    for (; row < cells.rows(); ++row) {
      const std::string_view text = cells[row];
      Parsed parsed{};
      const bool is_read = parse_by_lanes(text.data(), text.size(), with, parsed);
      values[row] = static_cast<T>(parsed);
      if (!is_read || (!std::is_floating_point_v<T> && values[row] != parsed)) {
        values[row] = read_number<T>(text, row, field, faults);
      }
    }
  }
#endif

  template <class T>
  [[nodiscard]] Stored<T> read_number(std::string_view text, std::size_t row, const Field& field,
                                      RecordFaults& faults) const {
    T value{};
    if (plan_->is_number_missing || !read_fast(text, value)) value = read_slowly<T>(text, row, field, faults);
    return static_cast<Stored<T>>(value);
  }

  template <class T>
  static bool read_fast(std::string_view text, T& value) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      // Which it is, is at random, and a branch would be mispredicted.
      const std::uint64_t word = load_eight(text.data()) & lowest_bits(8 * text.size());
      const bool is_true = word == load_eight("true\0\0\0");
      const bool is_false = word == load_eight("false\0\0");
      value = is_true;
      return is_true != is_false;
    } else if constexpr (std::is_floating_point_v<T>) {
      return parse_short(text.data(), text.size(), value);
    } else {
      std::int64_t wide = 0;
      const bool is_short = parse_short(text.data(), text.size(), wide);
      value = static_cast<T>(wide);
      return is_short && wide == value;
    }
  }

  template <class T>
  [[gnu::noinline]] T read_slowly(std::string_view field_text, std::size_t row, const Field& field,
                                  RecordFaults& faults) const {
    const std::string text = unquoted(field_text, plan_->options.quote);
    const std::string_view trimmed = trimmed_number(text);
    T value{};
    if (plan_->is_missing(trimmed)) {
      if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::quiet_NaN();
      faults.add(rows_[row], [&] {
        return compose(
            "column \"{}\" holds \"{}\", which stands for no number, and its type {} has none: give it the "
            "type f64 in .fields",
            shown_text(field.name), shown_text(text), name_of(field.dtype));
      });
      return value;
    }
    NumberFault fault = NumberFault::not_a_number;
    if constexpr (!std::is_same_v<T, bool>) fault = parse_number(trimmed, value);
    if (fault == NumberFault::none) return value;
    if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
      // Truths in a column of floats are there because others are missing.
      if (const auto truth = parse_boolean(trimmed)) return static_cast<T>(*truth);
      if (std::is_same_v<T, bool> && (trimmed == "0" || trimmed == "1")) return static_cast<T>(trimmed == "1");
    }
    faults.add(rows_[row], [&] {
      return compose("column \"{}\" holds \"{}\", which is {} {}", shown_text(field.name), shown_text(text),
                     fault == NumberFault::too_large ? "too large for" : "no", name_of(field.dtype));
    });
    return value;
  }

  [[nodiscard]] Column read_texts(const Cells cells) const;

  std::shared_ptr<const CsvPlan> plan_;
  CsvCutter cutter_;
  std::vector<std::uint32_t> firsts_;  // the separators before the records that are sound
  std::vector<std::uint32_t> rows_;    // which records those are
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/record_counter.hpp
// Counts the records of a file and notes where some of them begin, without a look at what is in them. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says how text is divided into records: by line feeds that are not within quotes.
struct RecordRules {
  char quote = '\0';               ///< none
  bool has_blank_records = false;  ///< else lines with nothing on them are no records
};

/// Says where the records of a file are: the place of every 64th, and of one in each few thousand characters, so that
/// any is found at the cost of a short read.
struct FileIndex {
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t record = 0;  ///< the first that begins there, perhaps behind blank lines
  };
  static constexpr std::uint64_t most_records = 64;
  static constexpr std::uint64_t most_bytes = 4096;

  FileStamp stamp{};
  std::uint64_t records = 0;  ///< the damaged ones among them
  std::vector<Place> places{};
  std::uint64_t end = 0;                 ///< where the last record ends
  std::vector<std::uint64_t> damaged{};  ///< which records are left out, ascending

  void add_record(std::uint64_t begin);

  [[nodiscard]] std::uint64_t samples() const noexcept;
  /// Returns which record a sample is.
  [[nodiscard]] std::uint64_t record_of(std::uint64_t sample) const noexcept;
  /// Returns the last place at or before a record.
  [[nodiscard]] std::size_t place_of(std::uint64_t record) const noexcept;
  /// Where the records end that begin at a place.
  [[nodiscard]] std::uint64_t end_of(std::size_t place) const noexcept;
  [[nodiscard]] std::uint64_t damaged_before(std::uint64_t record) const noexcept;
};

/// Makes the index of a text that it sees piece by piece; all pieces but the last have a multiple of 64 characters, and
/// 64 more can be read behind each.
class RecordCounter {
 public:
  RecordCounter(RecordRules rules, std::uint64_t begin);

  void add(const char* text, std::size_t size);

  /// Returns the index. The last record needs no line feed.
  [[nodiscard]] FileIndex finish();

 private:
  using Marks = ByteMarks<2>;

  // marks: of line feeds and quotes.
  void add_block(const char* text, std::size_t size, const Marks& marks);

  void add_lines(const char* text, std::uint64_t lines);

  [[nodiscard]] bool is_blank(std::uint64_t end, char before) const noexcept;

  // Whether none of the records that end in this block begins at a place of its own.
  [[nodiscard]] bool is_far_from_next_place(std::uint64_t num_lines) const noexcept;

  RecordRules rules_;
  FileIndex index_{};
  std::uint64_t at_;    // where the next piece begins
  std::uint64_t line_;  // where the last line begins
  bool is_quoted_ = false;
  char last_ = '\n';
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/record_chunks.hpp
// A text file piece by piece, each of whole records. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Reads a stream in pieces that a parser has cut at the end of a record; memory grows only with the longest record.
template <class Parser>
class RecordChunks {
 public:
  /// offset: where the stream is in its file. most: bytes of a record.
  RecordChunks(std::string file, std::unique_ptr<ByteStream> bytes, Parser parser, std::uint64_t offset,
               std::size_t most)
      : file_(std::move(file)),
        bytes_(std::move(bytes)),
        parser_(std::move(parser)),
        offset_(offset),
        most_(most),
        room_(room_for(*bytes_, usual_size)) {}

  /// Steps over what a file begins with: a byte order mark and the header, whose size is asked for.
  /// Throws: DataError if the file is no text.
  template <class HeaderSize>
  void skip_header(HeaderSize&& header_size) {
    fill();
    const std::string_view text{buffer_.data(), size_};
    if (const auto fault = fault_of_beginning(text, is_end_); !fault.empty()) {
      throw DataError{compose("{} cannot be read: {}", file_, fault)};
    }
    const std::size_t mark = text.starts_with(utf8_mark) ? utf8_mark.size() : 0;
    std::optional<std::size_t> size;
    while (!(size = header_size(buffer_.data() + mark, size_ - mark, is_end_))) grow();
    taken_ = mark + *size;
  }

  /// Goes on to the next piece, which has at least one record; false at the end.
  [[nodiscard]] bool next() {
    drop_taken();
    fill();
    while (size_ > 0) {
      taken_ = parser_.cut(buffer_.data(), size_, is_end_);
      if (parser_.records() > 0) return true;
      if (taken_ == 0) {
        grow();
      } else {
        drop_taken();
        fill();
      }
    }
    return false;
  }

  [[nodiscard]] Parser& parser() noexcept { return parser_; }
  /// Where the piece begins in the file.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Where it ends.
  [[nodiscard]] std::uint64_t end() const noexcept { return offset_ + taken_; }

 private:
  // So much that text, separators and columns of a piece stay in the cache of a core.
  static constexpr std::size_t usual_size = std::size_t{256} << 10;

  void drop_taken() {
    if (taken_ == 0) return;
    std::memmove(buffer_.data(), buffer_.data() + taken_, size_ - taken_);
    offset_ += taken_;
    size_ -= std::exchange(taken_, 0);
  }
  void fill() {
    if (is_end_) return;
    buffer_.resize(room_ + 1 + text_padding);
    size_ += bytes_->read(buffer_.data() + size_, room_ - size_);
    is_end_ = size_ < room_;
    if (is_end_ && size_ > 0 && buffer_[size_ - 1] != '\n') buffer_[size_++] = '\n';
  }
  void grow() {
    if (size_ > most_) {
      throw DataError{
          compose("{}: the record at byte {} is longer than {} bytes, which .max_record_bytes allows: a quote "
                  "may be opened there that is never closed",
                  file_, offset_, most_)};
    }
    room_ *= 2;
    fill();
  }

  std::string file_;
  std::unique_ptr<ByteStream> bytes_;
  Parser parser_;
  std::uint64_t offset_;
  std::size_t most_;
  std::vector<char> buffer_{};
  std::size_t room_;
  std::size_t size_ = 0;
  std::size_t taken_ = 0;
  bool is_end_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/input_files.hpp
// The files that a source reads: by path, by a list, or by a pattern. Data room.

#include <glob.h>

namespace railyard::inline v0_1 {

/// Names files: each is a path, or a pattern with *, ? or [...] for those that match, sorted. Braces stand for several
/// names in their order: "x-{000..146}.tar", "{train,extra}.csv". Looks at none of them before expand().
class InputFiles {
 public:
  InputFiles(std::string path);
  InputFiles(const char* path);
  InputFiles(const std::filesystem::path& path);
  InputFiles(std::vector<std::string> paths);
  InputFiles(std::initializer_list<std::string> paths);

  /// As messages show them.
  [[nodiscard]] std::string describe() const;

  /// Returns the paths of all files. Throws: DataError if there are none, or a pattern matches none.
  [[nodiscard]] std::vector<std::string> expand() const;

 private:
  [[nodiscard]] static bool is_there(const std::string& path);
  static void add_matches(const std::string& pattern, std::vector<std::string>& files);

  std::vector<std::string> paths_;
};

/// Names files that are compressed, and knows how to read them: ry::gzip() and ry::zstd() make it.
struct CompressedFiles {
  InputFiles files;
  detail::OpenBytes open = nullptr;
};

namespace detail {

// Throws: DataError if a place that was saved can be none of these files. After the last of them it is one.
void check_place(std::string_view source, const std::vector<std::string>& names, std::uint64_t from,
                        const FilePlace& place);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/record_files.hpp
// What all copies of a source of records know of its files: columns, and where the records are. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is the place of a sample.
struct RecordPlace {
  std::size_t file = 0;
  std::uint64_t record = 0;          ///< of the file
  std::uint64_t damaged_before = 0;  ///< in the files before it
  std::shared_ptr<const FileIndex> index{};
};

/// Adds the records of a piece to the index of its file.
template <class Parser>
void note_records(RecordChunks<Parser>& chunks, RecordFaults& faults, FileIndex& index) {
  for (const std::size_t record : faults.records()) index.damaged.push_back(index.records + record);
  for (std::size_t record = 0; record < chunks.parser().records(); ++record) {
    index.add_record(chunks.offset() + chunks.parser().begin(record));
  }
}

/// Holds what is found out about the files, once, when it is first asked for; shared by threads and inherited by forked
/// processes.
template <class Format>
class RecordFiles {
 public:
  using Options = typename Format::Options;
  using Plan = typename Format::Plan;
  using Parser = typename Format::Parser;
  using Chunks = RecordChunks<Parser>;

  /// opener: what gives the bytes of a file; nullptr for plain files.
  RecordFiles(InputFiles input, Options options, OpenBytes opener)
      : input_(std::move(input)), options_(std::move(options)), open_(opener) {}

  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] std::string describe() const { return compose("{} {}", Format::name, input_.describe()); }
  [[nodiscard]] const SkipCount& skips() const noexcept { return skips_; }
  [[nodiscard]] std::uint64_t fingerprint() const {
    Fingerprint fingerprint;
    fingerprint.add(fingerprint_of(options_.on_error, options_.max_record_bytes));
    if constexpr (requires { Format::identify(options_, fingerprint); }) Format::identify(options_, fingerprint);
    return fingerprint.value();
  }

  [[nodiscard]] std::shared_ptr<const Plan> plan() {
    const std::lock_guard lock{mutex_};
    return plan_now();
  }
  [[nodiscard]] std::vector<std::string> names() {
    const std::lock_guard lock{mutex_};
    return names_now();
  }
  [[nodiscard]] std::unique_ptr<ByteStream> open_bytes(const std::string& name) const {
    return open_ != nullptr ? open_(name) : std::make_unique<FileBytes>(name);
  }

  /// Returns how many samples all files have.
  [[nodiscard]] std::uint64_t count() {
    const std::lock_guard lock{mutex_};
    while (indexes_.size() < names_now().size()) add_index();
    return starts_.empty() ? 0 : starts_.back().samples;
  }

  /// Returns where a sample is; behind all files if there is no such sample.
  [[nodiscard]] RecordPlace find(std::uint64_t sample) {
    const std::lock_guard lock{mutex_};
    while (indexes_.size() < names_now().size() && (starts_.empty() || starts_.back().samples <= sample)) add_index();
    const auto behind = std::upper_bound(starts_.begin(), starts_.end(), sample,
                                         [](std::uint64_t id, const Totals& totals) { return id < totals.samples; });
    const auto file = static_cast<std::size_t>(behind - starts_.begin());
    const Totals before = file == 0 ? Totals{} : starts_[file - 1];
    if (file == starts_.size()) return {file, 0, before.damaged, nullptr};
    return {file, indexes_[file]->record_of(sample - before.samples), before.damaged, indexes_[file]};
  }

  /// Takes the index that somebody has made while reading, if it is the next that is missing.
  void offer(std::size_t file, FileIndex index) {
    const std::lock_guard lock{mutex_};
    if (file == indexes_.size()) take_index(std::move(index));
  }

  /// Opens a file at its first record.
  [[nodiscard]] Chunks open(const std::string& name, const std::shared_ptr<const Plan>& plan,
                            std::unique_ptr<ByteStream> bytes) const {
    Chunks chunks{name, std::move(bytes), Parser{plan}, 0, options_.max_record_bytes};
    chunks.skip_header([&](const char* text, std::size_t size, bool is_end) {
      return Format::header_size(*plan, name, text, size, is_end);
    });
    return chunks;
  }

  /// Says where a record is, as messages begin.
  [[nodiscard]] std::string where(const std::string& name, std::uint64_t offset) const {
    return compose("{}:{}", name, line_at(*open_bytes(name), offset));
  }

  /// Throws: DataError, unless the damaged records may be left out, of which `before` were before these.
  /// Returns how many there are now.
  std::uint64_t settle(RecordFaults& faults, const std::string& name, std::uint64_t first_offset,
                       std::uint64_t before) const {
    const std::uint64_t total = before + faults.records().size();
    const OnError policy = options_.on_error;
    if (total > policy.max_skips()) {
      const std::string place = where(name, first_offset);
      if (policy.stops_at_once()) throw DataError{compose("{}: {}", place, faults.message())};
      throw DataError{compose("{}: {}. {} records before it are damaged as well, and .on_error lets {} be left out",
                              place, faults.message(), before, policy.max_skips())};
    }
    skips_.raise_to(total);
    return total;
  }

 private:
  // Of a file and all before it.
  struct Totals {
    std::uint64_t samples = 0;
    std::uint64_t damaged = 0;
  };

  const std::vector<std::string>& names_now() {
    if (names_.empty()) names_ = input_.expand();
    return names_;
  }
  const std::shared_ptr<const Plan>& plan_now() {
    if (plan_ == nullptr) {
      const std::string& first = names_now().front();
      TextHead head{first, open_bytes(first)};
      plan_ = Format::plan(options_, first, head);
    }
    return plan_;
  }

  void take_index(FileIndex index) {
    Totals totals = starts_.empty() ? Totals{} : starts_.back();
    totals.samples += index.samples();
    totals.damaged += index.damaged.size();
    indexes_.push_back(std::make_shared<const FileIndex>(std::move(index)));
    starts_.push_back(totals);
  }

  // Where damaged records are left out, they must be known: all is parsed. Else the line ends are counted.
  void add_index() {
    const std::string& name = names_now()[indexes_.size()];
    const auto plan = plan_now();
    auto file = std::make_unique<FileBytes>(name);
    const FileStamp stamp = file->stamp();
    Chunks chunks = open(name, plan, std::move(file));
    FileIndex index = options_.on_error.stops_at_once() ? count_records(name, chunks.end()) : parse_all(name, chunks);
    index.stamp = stamp;
    take_index(std::move(index));
  }

  [[nodiscard]] FileIndex count_records(const std::string& name, std::uint64_t begin) const {
    FileBytes file{name, begin};
    const std::size_t piece = (room_for(file, std::size_t{256} << 10) + 63) / 64 * 64;
    RecordCounter counter{Format::rules(options_), begin};
    std::vector<char> buffer(piece + text_padding);
    for (std::size_t got = piece; got == piece;) {
      got = file.read(buffer.data(), piece);
      counter.add(buffer.data(), got);
    }
    return counter.finish();
  }

  [[nodiscard]] FileIndex parse_all(const std::string& name, Chunks& chunks) const {
    FileIndex index;
    std::uint64_t damaged = starts_.empty() ? 0 : starts_.back().damaged;
    while (chunks.next()) {
      RecordFaults faults;
      (void)chunks.parser().parse(faults);
      note_records(chunks, faults, index);
      if (!faults.empty()) {
        damaged = settle(faults, name, chunks.offset() + chunks.parser().begin(faults.first()), damaged);
      }
    }
    index.end = chunks.end();
    return index;
  }

  InputFiles input_;
  Options options_;
  OpenBytes open_;
  SkipCount skips_{};
  std::mutex mutex_{};
  std::vector<std::string> names_{};
  std::shared_ptr<const Plan> plan_{};
  std::vector<std::shared_ptr<const FileIndex>> indexes_{};  // of the first files
  std::vector<Totals> starts_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/record_reader.hpp
// Reads the records of files, one after another or those that are asked for. Data room.

namespace railyard::inline v0_1 {
namespace detail {

[[noreturn]] void throw_changed(const std::string& name);

/// Reads from a sample on. Of a file that it has read from beginning to end it leaves the index behind.
template <class Format>
class RecordReader final : public BlockReader {
 public:
  using Files = RecordFiles<Format>;

  /// is_indexed: whether indexes are of use.
  RecordReader(std::shared_ptr<Files> files, bool is_indexed)
      : files_(std::move(files)), names_(files_->names()), plan_(files_->plan()), is_indexed_(is_indexed) {}

  /// Goes to a sample by way of the index.
  void seek(std::uint64_t sample) {
    const RecordPlace place = files_->find(sample);
    next_id_ = sample;
    file_ = place.file;
    damaged_ = place.damaged_before;
    if (place.index == nullptr) return;
    const std::size_t at = place.index->place_of(place.record);
    const FileIndex::Place& from = place.index->places[at];
    damaged_ += place.index->damaged_before(from.record);
    next_id_ -= place.record - from.record -
                (place.index->damaged_before(place.record) - place.index->damaged_before(from.record));
    auto bytes = std::make_unique<FileBytes>(names_[file_], from.offset);
    if (bytes->stamp() != place.index->stamp) throw_changed(names_[file_]);
    chunks_.emplace(names_[file_], std::move(bytes), typename Format::Parser{plan_}, from.offset,
                    files_->options().max_record_bytes);
    skip(sample - next_id_);
  }

  /// Begins with a file, of which and of those before it it is known how many samples they have.
  void begin_at(const FilePlace& place) {
    file_ = static_cast<std::size_t>(place.file);
    next_id_ = place.samples;
    damaged_ = place.damaged;
  }
  [[nodiscard]] FilePlace place() const override {
    return chunks_ ? begin_of_file_ : FilePlace{file_, next_id_, damaged_};
  }

  /// Leaves so many samples out, which are parsed.
  void skip(std::uint64_t samples) {
    while (samples > 0) {
      const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(samples, std::size_t{1} << 20));
      const std::size_t got = next(part).rows();
      if (got == 0) return;
      samples -= got;
    }
  }

  [[nodiscard]] Block next(std::size_t most_rows) override {
    while (at_ == block_.rows()) {
      if (!next_piece()) return {};
    }
    const std::size_t begin = at_;
    at_ = std::min(block_.rows(), begin + most_rows);
    if (begin > 0 || at_ < block_.rows()) return block_.slice(begin, at_);
    at_ = 0;
    return std::exchange(block_, {});
  }

 private:
  bool next_piece() {
    while (true) {
      if (!chunks_ && !open_file()) return false;
      if (chunks_->next()) break;
      close_file();
    }
    RecordFaults faults;
    std::vector<Column> columns = chunks_->parser().parse(faults);
    if (!faults.empty()) {
      const std::uint64_t offset = chunks_->offset() + chunks_->parser().begin(faults.first());
      damaged_ = files_->settle(faults, names_[file_], offset, damaged_);
    }
    std::vector<std::uint64_t> ids(chunks_->parser().records() - faults.records().size());
    std::iota(ids.begin(), ids.end(), next_id_);
    next_id_ += ids.size();
    if (index_) note_records(*chunks_, faults, *index_);
    block_ = Block{plan_->schema, std::move(columns), std::move(ids)};
    at_ = 0;
    return true;
  }

  bool open_file() {
    if (file_ >= names_.size()) return false;
    begin_of_file_ = {file_, next_id_, damaged_};
    auto bytes = files_->open_bytes(names_[file_]);
    if (is_indexed_) index_.emplace().stamp = static_cast<const FileBytes&>(*bytes).stamp();
    chunks_.emplace(files_->open(names_[file_], plan_, std::move(bytes)));
    return true;
  }
  void close_file() {
    if (index_) {
      index_->end = chunks_->end();
      files_->offer(file_, std::move(*index_));
    }
    index_.reset();
    chunks_.reset();
    ++file_;
  }

  std::shared_ptr<Files> files_;
  std::vector<std::string> names_;
  std::shared_ptr<const typename Format::Plan> plan_;
  bool is_indexed_;
  std::size_t file_ = 0;
  std::optional<typename Files::Chunks> chunks_{};
  std::optional<FileIndex> index_{};  // of the file that is read from its beginning
  FilePlace begin_of_file_{};
  std::uint64_t next_id_ = 0;
  std::uint64_t damaged_ = 0;  // records before the next piece
  Block block_{};
  std::size_t at_ = 0;
};

/// Reads samples by their numbers: gathers the texts of their records, and parses them as one piece.
template <class Format>
class RecordPicker {
 public:
  using Files = RecordFiles<Format>;

  explicit RecordPicker(Files& files) : files_(files), names_(files.names()), plan_(files.plan()), parser_(plan_) {}

  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) {
    for (const std::uint64_t id : ids) pick(id);
    const std::size_t size = text_.size();
    text_.resize(size + text_padding);
    parser_.cut(text_.data(), size, true);
    if (parser_.records() != ids.size()) throw_changed(names_[file_]);
    RecordFaults faults;
    std::vector<Column> columns = parser_.parse(faults);
    if (!faults.empty()) {
      const RecordPlace place = files_.find(ids[faults.first()]);
      throw DataError{compose("{}: {}", files_.where(names_[place.file], offset_of(place)), faults.message())};
    }
    return Block{plan_->schema, std::move(columns), {ids.begin(), ids.end()}};
  }

 private:
  // Appends the text of a sample's record.
  void pick(std::uint64_t id) {
    const RecordPlace place = files_.find(id);
    if (place.index == nullptr) {
      throw ConfigError{
          compose("{} has {} samples and was asked for sample {}", files_.describe(), files_.count(), id)};
    }
    load(place);
    const auto record = static_cast<std::size_t>(place.record - loaded_->places[loaded_place_].record);
    if (record >= parser_.records()) throw_changed(names_[place.file]);
    text_.insert(text_.end(), loaded_text_.data() + parser_.begin(record), loaded_text_.data() + parser_.end(record));
  }

  // Has the records at hand that share a place with this one.
  void load(const RecordPlace& place) {
    const std::size_t at = place.index->place_of(place.record);
    if (loaded_ == place.index && loaded_place_ == at) return;
    if (loaded_ != place.index) {
      input_.emplace(names_[place.file]);
      if (input_->stamp() != place.index->stamp) throw_changed(names_[place.file]);
      loaded_ = place.index;
      file_ = place.file;
    }
    loaded_place_ = at;
    const std::uint64_t begin = loaded_->places[at].offset;
    const auto size = static_cast<std::size_t>(loaded_->end_of(at) - begin);
    loaded_text_.resize(size + 1 + text_padding);
    std::size_t got = input_->read_at(begin, loaded_text_.data(), size);
    if (got > 0 && loaded_text_[got - 1] != '\n') loaded_text_[got++] = '\n';
    parser_.cut(loaded_text_.data(), got, true);
  }

  [[nodiscard]] std::uint64_t offset_of(const RecordPlace& place) {
    load(place);
    const std::size_t record = static_cast<std::size_t>(place.record - loaded_->places[loaded_place_].record);
    return loaded_->places[loaded_place_].offset + parser_.begin(record);
  }

  Files& files_;
  std::vector<std::string> names_;
  std::shared_ptr<const typename Format::Plan> plan_;
  typename Format::Parser parser_;
  std::vector<char> text_{};
  std::optional<FileBytes> input_{};
  std::size_t file_ = 0;
  std::shared_ptr<const FileIndex> loaded_{};
  std::size_t loaded_place_ = 0;
  std::vector<char> loaded_text_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/record_source.hpp
// Samples out of text files of which each record is one; what a format must say is little. Data room.

namespace railyard::inline v0_1 {

/// Is a format of text files: what a record is, and which columns it has. All functions are static. It may have
/// identify(options, fingerprint), which adds the options that make other samples of the same files.
///
/// Laws: a Parser cuts text at the same places as the rules say, and each record alone as with others.
template <class F>
concept RecordFormat = requires(const typename F::Options& options, const typename F::Plan& plan,
                                typename F::Parser parser, const std::string& file, detail::TextHead& head,
                                detail::RecordFaults& faults, const char* text, std::size_t size) {
  { F::name } -> std::convertible_to<const char*>;
  { F::rules(options) } -> std::convertible_to<detail::RecordRules>;
  { F::plan(options, file, head) } -> std::convertible_to<std::shared_ptr<const typename F::Plan>>;
  { F::header_size(plan, file, text, size, true) } -> std::convertible_to<std::optional<std::size_t>>;
  { parser.cut(text, size, true) } -> std::convertible_to<std::size_t>;
  { parser.parse(faults) } -> std::convertible_to<std::vector<Column>>;
};

/// Gives the records of text files as samples, in any order: the index of their places is made when it is first needed,
/// or on the way by whoever reads all. It takes 16 bytes per 64 records or 4 KiB of text, and is inherited by forked
/// workers. Files are not to change as long as there is a source of them.
///
/// Cost: the first count(), read() or open() in the middle looks for the line ends of all files up to there, at the
/// speed of memory (.on_error other than stop(): parses them); each later one reads at most 4 KiB and a record more
/// than it gives.
template <RecordFormat Format>
class RecordSource {
 public:
  using Options = typename Format::Options;

  explicit RecordSource(InputFiles files, Options options = {})
      : files_(std::make_shared<detail::RecordFiles<Format>>(std::move(files), std::move(options), nullptr)) {}

  /// Throws: DataError if the first file cannot be read or has no columns; ConfigError for wrong options.
  [[nodiscard]] Schema schema() const { return *files_->plan()->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return files_->count(); }
  [[nodiscard]] std::string describe() const { return files_->describe(); }
  /// The paths of the files that it reads.
  [[nodiscard]] std::vector<std::string> files() const { return files_->names(); }
  [[nodiscard]] std::string label() const { return files_->options().label; }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const { return files_->fingerprint(); }
  /// How many damaged records were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const { return files_->skips().count(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const {
    auto reader = std::make_unique<detail::RecordReader<Format>>(files_, true);
    if (from > 0) reader->seek(from);
    return reader;
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    return detail::RecordPicker<Format>{*files_}.read(ids);
  }

 private:
  std::shared_ptr<detail::RecordFiles<Format>> files_;
};

/// Gives the records of compressed text files as samples, one after another. To go on in the middle of a file, it is
/// read again from its begin; those before it are not.
template <RecordFormat Format>
class RecordStream {
 public:
  using Options = typename Format::Options;

  explicit RecordStream(CompressedFiles files, Options options = {})
      : files_(std::make_shared<detail::RecordFiles<Format>>(std::move(files.files), std::move(options), files.open)) {}

  /// Throws: DataError if the first file cannot be read or has no columns; ConfigError for wrong options.
  [[nodiscard]] Schema schema() const { return *files_->plan()->schema; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return std::nullopt; }
  [[nodiscard]] std::string describe() const { return files_->describe(); }
  /// The paths of the files that it reads.
  [[nodiscard]] std::vector<std::string> files() const { return files_->names(); }
  [[nodiscard]] std::string label() const { return files_->options().label; }
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const { return files_->fingerprint(); }
  /// How many damaged records were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const { return files_->skips().count(); }

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from, const FilePlace& place = {}) const {
    detail::check_place(describe(), files_->names(), from, place);
    auto reader = std::make_unique<detail::RecordReader<Format>>(files_, false);
    reader->begin_at(place);
    reader->skip(from - place.samples);
    return reader;
  }

 private:
  std::shared_ptr<detail::RecordFiles<Format>> files_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/csv_source.hpp
// Samples out of files of comma-separated values (RFC 4180). Data room.

namespace railyard::inline v0_1 {

/// Is CSV as a RecordFormat. Fields may be quoted, and hold separators, line breaks and doubled quotes then; lines end
/// with LF or CRLF; lines with nothing on them are left out.
struct CsvFormat {
  using Options = CsvSourceOptions;
  using Plan = detail::CsvPlan;
  using Parser = detail::CsvParser;
  static constexpr const char* name = "CSV";

  [[nodiscard]] static detail::RecordRules rules(const Options& options);
  static void identify(const Options& options, detail::Fingerprint& fingerprint);
  [[nodiscard]] static std::shared_ptr<const Plan> plan(const Options& options, const std::string& file,
                                                        detail::TextHead& head);

  /// Returns how many characters the header takes, or nothing if more text is needed to say so. Throws: DataError if it
  /// is not that of the first file.
  [[nodiscard]] static std::optional<std::size_t> header_size(const Plan& plan, const std::string& file,
                                                              const char* text, std::size_t size, bool is_end);
};

/// Reads CSV files, by path, list or pattern, as one source: the numbers of a file's samples follow the former file's.
/// Example: ry::Dataset digits{ry::CsvSource{"digits-*.csv", {.label = "digit"}}};
using CsvSource = RecordSource<CsvFormat>;

/// Reads compressed CSV files, one sample after another. Example: ry::CsvStream{ry::gzip("digits.csv.gz"), {}}
using CsvStream = RecordStream<CsvFormat>;

}  // namespace railyard::inline v0_1

// ---- railyard/data/preprocessor.hpp
// The concepts of what changes samples by what it has learned from others, and fit(), which lets it learn. Data room.

namespace railyard::inline v0_1 {

/// Changes blocks of samples. A value; transform() may be called on several threads at once.
///
/// Laws: transform(block) has the columns schema(block.schema()), and the samples and ids of block in their order, each
/// as if it were alone. It may have touches(), which returns the names of all columns that it looks at or changes, or
/// nothing where they are not known, and fingerprint(), a std::uint64_t that is another when its options are: caches
/// behind it are made anew then. By both of them a checkpoint tells two of one type from one that has learned anew.
template <class P>
concept Preprocessor = std::copy_constructible<P> &&
    requires(const P& fitted, const Schema& before, const Block& block) {
  { fitted.schema(before) } -> std::convertible_to<Schema>;  // throws ConfigError if it cannot change such samples
  { fitted.transform(block) } -> std::convertible_to<Block>;
};

/// Is a Preprocessor that first learns from samples. What it has learned is its state. It may have passes(), which says
/// how often it must see all samples where that is not once; then finish() ends each pass.
///
/// Laws: begin() forgets all. After begin(), merge(bytes) has the effect of all add() behind the statistics() that gave
/// the bytes, but for rounding and the error that a sketch states; merging the same bytes in the same order gives the
/// same bits.
template <class P>
concept LearningPreprocessor = Preprocessor<P> && std::copyable<P> && Stateful<P> &&
    requires(P& part, const P& begun, const Schema& schema, const Block& block, std::span<const std::byte> bytes) {
  part.begin(schema);  // throws ConfigError if it cannot learn from such samples
  part.add(block);
  { begun.statistics() } -> std::convertible_to<std::vector<std::byte>>;
  part.merge(bytes);
  part.finish();  // throws DataError if it cannot learn from what was added
};

/// Gathers what every worker gives, in the order of ranks: how workers fit together.
using GatherBytes = std::function<std::vector<std::vector<std::byte>>(std::vector<std::byte>)>;

/// Says where fit() reads, and with whom.
struct FitOptions {
  std::size_t rows_per_block = 4096;
  /// Of the workers of which each reads a part; empty where one reads all. Then all learn the same bits.
  GatherBytes gather{};
};

/// Names columns, or nothing where they are not known.
using TouchedColumns = std::optional<std::vector<std::string>>;

namespace detail {

/// Returns the columns that options name, which are known only if they are not all but some.
[[nodiscard]] TouchedColumns touched(const std::vector<std::string>& columns);

/// Adds a state.
void identify_state(const State& state, Fingerprint& fingerprint);

[[nodiscard]] std::uint64_t fingerprint_of(const State& state);

/// Adds what a preprocessor is, what it has learned, and its options, if it tells of them.
template <Preprocessor P>
void identify_preprocessor(const P& fitted, Fingerprint& fingerprint) {
  fingerprint.add(std::string_view{typeid(P).name()});
  if constexpr (Stateful<P>) identify_state(fitted.state(), fingerprint);
  if constexpr (requires {
                  { fitted.fingerprint() } -> std::convertible_to<std::uint64_t>;
                }) {
    fingerprint.add(std::uint64_t{fitted.fingerprint()});
  }
}

/// How often a preprocessor must see the samples to learn.
template <Preprocessor P>
[[nodiscard]] std::size_t passes_of(const P& preprocessor) {
  if constexpr (requires { preprocessor.passes(); }) {
    return preprocessor.passes();
  } else {
    return LearningPreprocessor<P> ? 1 : 0;
  }
}

template <class P>
void fit_pass(P& preprocessor, BlockReader& reader, const FitOptions& options) {
  const P before = preprocessor;
  for (Block block = reader.next(options.rows_per_block); !block.empty(); block = reader.next(options.rows_per_block)) {
    preprocessor.add(block);
  }
  if (options.gather) {
    const auto all = options.gather(preprocessor.statistics());
    preprocessor = before;  // so that every rank merges the same bytes in the same order
    for (const std::vector<std::byte>& statistics : all) preprocessor.merge(statistics);
  }
  preprocessor.finish();
}

}  // namespace detail

/// Lets a preprocessor learn from the samples that readers give.
/// open: begins to read at the first sample; called once, for a Chain Chain::passes() times.
/// Throws: what reading throws; ConfigError, DataError if the preprocessor cannot learn from these samples.
template <LearningPreprocessor P, std::invocable Open>
requires std::convertible_to<std::invoke_result_t<Open>, std::unique_ptr<BlockReader>>
void fit(P& preprocessor, const Schema& schema, Open&& open, const FitOptions& options = {}) {
  preprocessor.begin(schema);
  for (std::size_t pass = detail::passes_of(preprocessor); pass > 0; --pass) {
    const std::unique_ptr<BlockReader> reader = open();
    detail::fit_pass(preprocessor, *reader, options);
  }
}

/// Lets a preprocessor learn from all samples of a source.
template <LearningPreprocessor P, DatasetSource S>
void fit(P& preprocessor, const S& source, const FitOptions& options = {}) {
  fit(
      preprocessor, Schema{source.schema()}, [&]() -> std::unique_ptr<BlockReader> { return source.open(0); }, options);
}

}  // namespace railyard::inline v0_1

// ---- railyard/data/any_preprocessor.hpp
// Any preprocessor, its type forgotten: what chains are made of. Data room.

namespace railyard::inline v0_1 {

/// Holds a preprocessor of any type. Copies are independent. One that learns nothing has an empty state.
class AnyPreprocessor {
 public:
  template <class P>
  requires(!std::same_as<std::remove_cvref_t<P>, AnyPreprocessor> && Preprocessor<std::remove_cvref_t<P>>)
      AnyPreprocessor(P&& preprocessor)
      : held_(std::make_unique<Holder<std::remove_cvref_t<P>>>(std::forward<P>(preprocessor))) {}
  AnyPreprocessor(const AnyPreprocessor& other);
  AnyPreprocessor(AnyPreprocessor&&) noexcept = default;
  AnyPreprocessor& operator=(const AnyPreprocessor& other);
  AnyPreprocessor& operator=(AnyPreprocessor&&) noexcept = default;
  ~AnyPreprocessor() = default;

  /// How often it must see the samples to learn.
  [[nodiscard]] std::size_t passes() const;
  void begin(const Schema& schema);
  void add(const Block& block);
  [[nodiscard]] std::vector<std::byte> statistics() const;
  void merge(std::span<const std::byte> bytes);
  void finish();
  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  [[nodiscard]] Schema schema(const Schema& before) const;
  [[nodiscard]] Block transform(const Block& block) const;
  [[nodiscard]] State state() const;
  void load_state(const State& state);
  /// Another when the one inside is, or its options or what it has learned are.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// Another when the one inside is of another type, looks at other columns or has other options of which it tells; not
  /// when it has learned something else.
  [[nodiscard]] std::uint64_t kind() const;
  /// The types inside of which nothing but the type tells one from another.
  [[nodiscard]] std::vector<std::string> types_alike() const;

 private:
  struct Held {
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    virtual ~Held() = default;
    [[nodiscard]] virtual std::unique_ptr<Held> clone() const = 0;
    [[nodiscard]] virtual std::size_t passes() const = 0;
    virtual void begin(const Schema& schema) = 0;
    virtual void add(const Block& block) = 0;
    [[nodiscard]] virtual std::vector<std::byte> statistics() const = 0;
    virtual void merge(std::span<const std::byte> bytes) = 0;
    virtual void finish() = 0;
    [[nodiscard]] virtual TouchedColumns touches() const = 0;
    [[nodiscard]] virtual Schema schema(const Schema& before) const = 0;
    [[nodiscard]] virtual Block transform(const Block& block) const = 0;
    [[nodiscard]] virtual State state() const = 0;
    virtual void load_state(const State& state) = 0;
    [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
    [[nodiscard]] virtual std::uint64_t kind() const = 0;
    [[nodiscard]] virtual std::vector<std::string> types_alike() const = 0;
  };

  template <class P>
  struct Holder final : Held {
    static constexpr bool learns = LearningPreprocessor<P>;
    static constexpr bool tells_options = requires(const P& fitted) {
      { fitted.fingerprint() } -> std::convertible_to<std::uint64_t>;
    };

    template <class Given>
    explicit Holder(Given&& given) : preprocessor(std::forward<Given>(given)) {}
    [[nodiscard]] std::unique_ptr<Held> clone() const override { return std::make_unique<Holder>(preprocessor); }
    [[nodiscard]] std::size_t passes() const override { return detail::passes_of(preprocessor); }
    void begin([[maybe_unused]] const Schema& schema) override {
      if constexpr (learns) preprocessor.begin(schema);
    }
    void add([[maybe_unused]] const Block& block) override {
      if constexpr (learns) preprocessor.add(block);
    }
    [[nodiscard]] std::vector<std::byte> statistics() const override {
      if constexpr (learns) return preprocessor.statistics();
      return {};
    }
    void merge([[maybe_unused]] std::span<const std::byte> bytes) override {
      if constexpr (learns) preprocessor.merge(bytes);
    }
    void finish() override {
      if constexpr (learns) preprocessor.finish();
    }
    [[nodiscard]] TouchedColumns touches() const override {
      if constexpr (requires { preprocessor.touches(); }) return preprocessor.touches();
      return std::nullopt;
    }
    [[nodiscard]] Schema schema(const Schema& before) const override { return preprocessor.schema(before); }
    [[nodiscard]] Block transform(const Block& block) const override { return preprocessor.transform(block); }
    [[nodiscard]] State state() const override {
      if constexpr (learns) return preprocessor.state();
      return {};
    }
    void load_state([[maybe_unused]] const State& state) override {
      if constexpr (learns) preprocessor.load_state(state);
    }
    [[nodiscard]] std::uint64_t fingerprint() const override {
      detail::Fingerprint fingerprint;
      detail::identify_preprocessor(preprocessor, fingerprint);
      return fingerprint.value();
    }
    [[nodiscard]] std::uint64_t kind() const override {
      detail::Fingerprint fingerprint;
      fingerprint.add(std::string_view{typeid(P).name()});
      for (const std::string& column : touches().value_or(std::vector<std::string>{})) fingerprint.add(column);
      if constexpr (requires {
                      { preprocessor.kind() } -> std::convertible_to<std::uint64_t>;
                    }) {
        fingerprint.add(std::uint64_t{preprocessor.kind()});
      } else if constexpr (tells_options) {
        fingerprint.add(std::uint64_t{preprocessor.fingerprint()});
      }
      return fingerprint.value();
    }
    [[nodiscard]] std::vector<std::string> types_alike() const override {
      if constexpr (requires { preprocessor.types_alike(); }) {
        return preprocessor.types_alike();
      } else {
        if (tells_options || touches()) return {};  // touches() may tell of no columns, for they are not known
        return {detail::demangled(typeid(P))};
      }
    }

    P preprocessor;
  };

  std::unique_ptr<Held> held_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/blocks.hpp
// Puts blocks together and takes them apart. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// The memory that the samples of a block take.
[[nodiscard]] std::size_t bytes_of(const Block& block) noexcept;

template <std::size_t size>
void gather(const std::byte* from, std::span<const std::size_t> rows, std::byte* to) {
  for (const std::size_t row : rows) {
    std::memcpy(to, from + row * size, size);
    to += size;
  }
}

// Does what Column::take() does, faster for small samples of one size, whose copies the compiler makes single moves.
[[nodiscard]] Column take(const Column& column, std::span<const std::size_t> rows);

// Takes the rows of a block in that order; shares its memory where they follow each other.
[[nodiscard]] Block take(const Block& block, std::span<const std::size_t> rows);

// Does the same, but gives a block back as it is if it alone has samples.
[[nodiscard]] Block join(std::span<const Block> blocks);

// Which sample of which part.
struct RowOfPart {
  std::size_t part = 0;
  std::size_t row = 0;
};

// Takes samples from several blocks of one schema, of which there is at least one, in the order given.
[[nodiscard]] Block gather(std::span<const Block> parts, std::span<const RowOfPart> rows);

// Returns a block of no samples.
[[nodiscard]] Block no_samples(const std::shared_ptr<const Schema>& schema);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/data_stock.hpp
// What the samples of a dataset, and their order, depend on: as a number that a cache keeps, and as a few lines that a
// saved position keeps, so that a run which goes on notices when its data is another. Data room.

#include <unordered_set>

namespace railyard::inline v0_1 {

class AnyPreprocessor;

namespace detail {

/// Collects it, in the order in which the nodes of a dataset stand.
class DataStock {
 public:
  DataStock() = default;
  /// Returns one that takes operations and preprocessors, and of sources only how many there are: none is asked for its
  /// files, which may be many or gone by now.
  [[nodiscard]] static DataStock of_operations() noexcept;
  [[nodiscard]] bool takes_sources() const noexcept { return takes_sources_; }

  /// Takes what makes other samples at the same places. Saved positions do not compare it: what a preprocessor learns
  /// depends on how many workers it learns with.
  [[nodiscard]] Fingerprint& making() noexcept { return making_; }
  /// Takes a source, by what messages call it.
  void add_source(std::string_view name);
  /// Takes an operation that decides which samples there are, or their order. settings: tell it from others of its
  /// name.
  void add_operation(std::string_view name, std::uint64_t settings = 0);
  /// Takes what a source depends on besides: others may give the same samples.
  void add_settings(std::uint64_t settings) noexcept;
  /// Takes what changes the samples by what it has learned; that it does is to be told of to making() as well.
  void add_preprocessor(std::shared_ptr<const AnyPreprocessor> preprocessor);
  void add_files(std::vector<std::string> paths);
  /// what: its name and shape.
  void add_memory(std::string_view what, std::uint64_t digest);
  void add_memory(std::string_view what, Column column);

  /// Returns what was added, in the order in which samples come by it.
  [[nodiscard]] const std::vector<std::shared_ptr<const AnyPreprocessor>>& preprocessors() const noexcept;

  /// Returns a number of the operations that decide which samples there are, and their order, and of how many sources.
  [[nodiscard]] std::uint64_t order() const noexcept;

  /// Returns a number that is another when samples are: of files, 64 of a source are looked at for size and time. Cost:
  /// reads what is in memory. Throws: DataError if a file is not there.
  [[nodiscard]] std::uint64_t fingerprint() const;

  /// Reads files and memory, together as much as is said above, and returns all; empty if there is nothing. Of many
  /// files 64 are looked at; of the others the names count, in the folder that all are in.
  [[nodiscard]] std::string text() const;

  /// The first line of texts that tell of more than files and memory, which those of old do not have.
  static constexpr std::string_view version_line = "V 1";

 private:
  struct Memory {
    std::string what{};
    std::optional<std::uint64_t> digest{};  // if there is no column
    Column column{};
  };

  [[nodiscard]] std::string text_of_files() const;

  // Where samples that differ in length end.
  [[nodiscard]] static std::uint64_t digest_of_ends(const Column& column) noexcept;

  [[nodiscard]] static std::string lines_of(const Memory& memory);

  // So that a copy elsewhere is the same.
  [[nodiscard]] static std::size_t size_of_common_folder(const std::vector<std::string_view>& paths);

  [[nodiscard]] static std::string printable_of(std::string_view name);

  [[nodiscard]] static std::string line_of(const std::string& path, std::string_view name, std::size_t most);

  static constexpr std::size_t most_things = 64;

  bool takes_sources_ = true;
  Fingerprint making_{};
  Fingerprint order_{};     // of sources and operations
  Fingerprint settings_{};  // of sources
  std::string operations_;
  std::size_t num_operations_ = 0;
  std::size_t num_sources_ = 0;
  std::vector<std::vector<std::string>> files_;  // by source
  std::vector<Memory> memory_;
  std::vector<std::shared_ptr<const AnyPreprocessor>> preprocessors_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/memory_budget.hpp
// Counts the memory of blocks under way against a bound. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Is the memory that one reader's blocks may take together. Outlives its shares.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bound) noexcept;
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  [[nodiscard]] std::size_t bound() const noexcept { return bound_; }
  [[nodiscard]] std::size_t used() const noexcept;
  // Whether that much may be read ahead. A quarter is kept for what has to be read for anything to go on.
  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t most_ahead() const noexcept;

 private:
  friend class MemoryShare;

  std::size_t bound_;
  std::atomic<std::size_t> used_ = 0;
};

// Counts some bytes as used for as long as it lives.
class MemoryShare {
 public:
  MemoryShare() = default;
  MemoryShare(MemoryBudget& budget, std::size_t bytes) noexcept;
  MemoryShare(MemoryShare&& other) noexcept;
  MemoryShare& operator=(MemoryShare&& other) noexcept;
  ~MemoryShare();

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  void resize(std::size_t bytes) noexcept;

 private:
  MemoryBudget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/waiting.hpp
// Long waits for what no part of a run can hurry: that they hear when nobody wants them any more, and say what they
// wait for. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says for whom a thread waits that what takes long is done: for another program, or for its own run, itself included.
enum class WaitFor : std::uint8_t { another_program, own_run };

/// Is what long waits of a thread look at, while a WatchedThread gives it to them. Beyond it they look at that of the
/// thread which has made it.
class WaitWatch {
 public:
  /// Is the part of it that waits hold on to, which may go on when it is no more.
  class Shared {
   public:
    [[nodiscard]] std::string why_over(WaitFor whom) const;
    void say(const std::string& text) const;
    /// Notes down what a thread waits for; an empty text when it waits no more.
    void note(std::string text) const;

   private:
    friend class WaitWatch;

    mutable std::mutex mutex_{};
    std::function<std::string(WaitFor)> why_over_;
    std::function<void(const std::string&)> say_;
    std::shared_ptr<const Shared> beyond_;
    mutable std::string noted_;
  };

  /// why_over: returns why nobody wants them any more, or an empty text. say: tells the user of a long one; empty
  /// where that is for the one beyond to do. Neither is called once this has ended.
  explicit WaitWatch(std::function<std::string(WaitFor)> why_over, std::function<void(const std::string&)> say = {});
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  ~WaitWatch();

  [[nodiscard]] const std::shared_ptr<Shared>& shared() const noexcept { return shared_; }
  /// What its waits have noted down last.
  [[nodiscard]] std::string noted() const;

  /// That of the calling thread; nullptr if it has none.
  [[nodiscard]] static std::shared_ptr<const Shared>& of_thread() noexcept;
  /// Tells whoever has started the program.
  static void say_aloud(const std::string& text) noexcept;

 private:
  std::shared_ptr<Shared> shared_;
};

/// Gives a watch to the waits of the calling thread.
class WatchedThread {
 public:
  explicit WatchedThread(const WaitWatch& watch);
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;
  ~WatchedThread();

 private:
  std::shared_ptr<const WaitWatch::Shared> before_;
};

/// Is one wait. Looked at again and again by the thread that waits.
class LongWait {
 public:
  /// first_word: after which time it says what it waits for; then each time after three times as long.
  explicit LongWait(std::chrono::nanoseconds first_word = std::chrono::seconds{10},
                    WaitFor whom = WaitFor::another_program);
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;
  ~LongWait();

  /// what: returns who or what keeps it waiting, as a sentence. Throws: Error if nobody wants it any more.
  template <class What>
  void look(const What& what) {
    if (watch_ != nullptr) {
      if (const std::string why = watch_->why_over(whom_); !why.empty()) {
        throw Error{compose("{}, but nobody wants it any more: {}", what(), why)};
      }
      if (!std::exchange(has_noted_, true)) watch_->note(what());
    }
    if (!next_word_.expired()) return;
    const double seconds = std::chrono::duration<double>(Deadline::Clock::now() - begin_).count();
    const std::string text = compose("{} (for {:.0f} s by now)", what(), seconds);
    watch_ != nullptr ? watch_->say(text) : WaitWatch::say_aloud(text);
    interval_ *= 3;
    next_word_ = Deadline::after(interval_);
  }

 private:
  WaitFor whom_;
  std::shared_ptr<const WaitWatch::Shared> watch_;
  Deadline::Clock::time_point begin_ = Deadline::Clock::now();
  Deadline next_word_;
  std::chrono::nanoseconds interval_;
  bool has_noted_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/task_pool.hpp
// Threads that compute blocks, helped by whoever waits for one. Data room.

#include <thread>

namespace railyard::inline v0_1 {
namespace detail {

// Is the computation of one block. It depends on no other, so whoever waits for one may do any of them meanwhile.
class Task {
 public:
  explicit Task(std::function<Block()> compute);

 private:
  friend class TaskPool;

  std::function<Block()> compute_;
  Block block_{};
  std::exception_ptr failure_{};
  bool is_done_ = false;
};

// Runs tasks in the order in which they are given. Without helpers they run when they are waited for.
class TaskPool {
 public:
  explicit TaskPool(std::size_t num_helpers);
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;
  ~TaskPool();

  [[nodiscard]] std::size_t num_helpers() const noexcept { return helpers_.size(); }
  // Says that nobody wants what streams have yet to give, so that those which look for samples in vain end.
  void end_streams() noexcept;
  [[nodiscard]] bool has_ended() const noexcept;

  // What waits of its helpers, and of whoever reads with them, look at.
  [[nodiscard]] const WaitWatch& watch() const noexcept { return watch_; }

  [[nodiscard]] std::shared_ptr<Task> submit(std::function<Block()> compute);

  // Returns the task's block, or throws what it threw.
  [[nodiscard]] Block wait(Task& task);

  // Forgets a task that nobody waits for any more, if it has not begun.
  void cancel(const std::shared_ptr<Task>& task) noexcept;

 private:
  void help();

  // Runs the first task of the queue, with the lock given back meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock);

  void stop() noexcept;

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::condition_variable done_{};
  std::deque<std::shared_ptr<Task>> queue_;
  bool is_stopping_ = false;
  std::atomic<bool> has_ended_{false};
  WaitWatch watch_;
  std::vector<std::thread> helpers_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/shuffle.hpp
// The order of an epoch and who gets which part of a batch: pure arithmetic, equal on every machine. Data room.

namespace railyard::inline v0_1 {

namespace detail {

// Derives the seed of one use of a run's seed.
[[nodiscard]] constexpr std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t use) noexcept {
  return mix_bits(mix_bits(seed) ^ mix_bits(~use));
}

// A half-open range of positions.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  friend constexpr bool operator==(const Range&, const Range&) noexcept = default;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/data/sample_random.hpp
// Random numbers that belong to one sample of one epoch, whoever computes it and when. Data room.

#include <numbers>

namespace railyard::inline v0_1 {

namespace detail {

// What everything random in one pass over a dataset is a function of.
struct EpochKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;

  // The seed of one use in this epoch, such as that of an operation.
  [[nodiscard]] constexpr std::uint64_t derive(std::uint64_t use) const noexcept {
    return derive_seed(derive_seed(seed, epoch), use);
  }
  // The seed of an order in this epoch, from the seed that the user gave to the operation.
  [[nodiscard]] constexpr std::uint64_t order_seed(std::uint64_t seed_of_operation) const noexcept {
    return derive_seed(derive(~std::uint64_t{0}), seed_of_operation);  // a use that no operation has
  }
};

}  // namespace detail

/// Draws the random numbers of one sample in one operation: a function of the seed, the epoch and the sample's id
/// alone, so that an augmentation is the same for any number of workers and threads. Serves the distributions of
/// <random> as a generator too, whose results however differ between standard libraries.
class SampleRandom {
 public:
  using result_type = std::uint64_t;

  explicit SampleRandom(std::uint64_t seed) noexcept;

  [[nodiscard]] static constexpr result_type min() noexcept { return 0; }
  [[nodiscard]] static constexpr result_type max() noexcept { return std::numeric_limits<result_type>::max(); }
  [[nodiscard]] result_type operator()() noexcept;

  /// Draws a whole number below limit, which is above 0, each equally often.
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) noexcept;
  /// Draws a number from [from, to), evenly.
  [[nodiscard]] double uniform(double from = 0, double to = 1) noexcept;
  /// Draws a number of the normal distribution.
  [[nodiscard]] double normal(double mean = 0, double deviation = 1) noexcept;
  /// Is true in so many of all cases.
  [[nodiscard]] bool chance(double probability) noexcept;

 private:
  std::uint64_t state_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/data_node.hpp
// What every dataset consists of: nodes that give samples at places, or one after another. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Says where a stream of samples stands, in numbers that only the nodes which wrote them understand. At the begin all
// of them are 0.
using Place = std::vector<std::uint64_t>;

// Gives the numbers of a place to the nodes, one after the other.
class PlaceCursor {
 public:
  // The begin, whatever the nodes are.
  PlaceCursor() = default;
  explicit PlaceCursor(Place place);

  [[nodiscard]] std::uint64_t next();
  // The numbers that have been given since another one was the next.
  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  [[nodiscard]] Place since(std::size_t at) const;
  void check_all_taken() const;

 private:
  [[noreturn]] static void refuse();

  Place place_{};
  std::size_t at_ = 0;
  bool is_begin_ = true;
};

// Some samples of a stream, and where a stream begins that gives them first.
struct Chunk {
  Block block{};
  Place place{};
  MemoryShare share{};
};

// Gives samples one after another; used by one thread at a time.
class ChunkStream {
 public:
  ChunkStream() = default;
  ChunkStream(const ChunkStream&) = delete;
  ChunkStream& operator=(const ChunkStream&) = delete;
  virtual ~ChunkStream() = default;

  // The next samples, at least one; an empty block at the end.
  [[nodiscard]] virtual Chunk next() = 0;
};

// What a reader lends to the streams that it opens.
struct Scope {
  EpochKey key{};
  TaskPool* pool = nullptr;
  MemoryBudget* budget = nullptr;
  // How many samples of batches are held at once beside what streams hold; 0 where there are no batches.
  std::size_t batch_rows = 0;

  // How large blocks should be: small beside the bound, for each operation and thread has some.
  [[nodiscard]] std::size_t block_bytes() const noexcept;
};

// Says whether samples come to an end. That of datasets together is the greatest of theirs.
enum class Ending : std::uint8_t { certain, unknown, never };

class DataNode;
// By the source, which is there once where several parts are of one.
using SkipCounts = std::map<const DataNode*, std::uint64_t>;

// Is a dataset as its operations see it. Never changes; used by many threads at once.
class DataNode : public std::enable_shared_from_this<DataNode> {
 public:
  explicit DataNode(std::shared_ptr<const Schema> schema);
  DataNode(const DataNode&) = delete;
  DataNode& operator=(const DataNode&) = delete;
  virtual ~DataNode() = default;

  [[nodiscard]] const std::shared_ptr<const Schema>& schema() const noexcept { return schema_; }
  // How many samples an epoch has, where that is known without reading them.
  [[nodiscard]] virtual std::optional<std::uint64_t> count() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
  // Can each sample be computed alone? Then the count is known.
  [[nodiscard]] virtual bool is_indexed() const = 0;
  [[nodiscard]] virtual Ending ending() const = 0;
  // Does reading a sample cost no more than copying it? Then nobody gains by having it from somebody else.
  [[nodiscard]] virtual bool costs_a_copy() const { return false; }
  // Is it another order or selection in each epoch?
  [[nodiscard]] virtual bool is_reordered() const { return false; }
  // Ids are below that, where this is known.
  [[nodiscard]] virtual std::uint64_t id_span() const;
  // How many operations it consists of: tells the random numbers of one from those of another.
  [[nodiscard]] virtual std::uint64_t depth() const { return 0; }

  // Adds how many damaged samples its sources have left out of what this process has read.
  virtual void count_skipped(SkipCounts& counts) const = 0;

  // Adds what its samples depend on, as far as that is known without reading them: users' functions count by name only.
  virtual void take_stock(DataStock& stock) const = 0;

  // The samples at the places of an epoch, each below count(), in that order. Only if is_indexed(): others have none.
  [[nodiscard]] virtual Block read(std::span<const std::uint64_t> /*places*/, const EpochKey& /*key*/) const;
  // All samples of an epoch from a place on.
  [[nodiscard]] virtual std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const = 0;

  // Where the count is not known, ids of different parts are kept apart by that much.
  static constexpr std::uint64_t unknown_span = std::uint64_t{1} << 40U;

 private:
  std::shared_ptr<const Schema> schema_;
};

using NodePtr = std::shared_ptr<const DataNode>;

// Says how many samples a block may have that is to take so many bytes, from the blocks seen so far. Begins with one
// sample, for nobody knows how large they are.
class RowGauge {
 public:
  explicit RowGauge(std::size_t block_bytes) noexcept;

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  void saw(std::size_t rows, std::size_t bytes) noexcept;

 private:
  static constexpr std::size_t most_rows = 4096;

  std::size_t block_bytes_;
  std::size_t bytes_per_row_ = 0;
  std::size_t rows_ = 1;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/ordered_stage.hpp
// Computes blocks on several threads and gives them in order. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// One block to be computed.
struct Work {
  std::function<Block()> compute{};
  Place place{};
  MemoryShare input{};  // of what it is computed from
};

// Asks for work ahead of what is taken from it, while there is memory for what comes out. One block is always under
// way: with less nothing would move.
class OrderedStage final : public ChunkStream {
 public:
  // plan() gives the next piece of work, or nothing at the end; called by the thread that calls next().
  // keeps_empty: blocks of no samples are given too, one for each piece of work.
  OrderedStage(const Scope& scope, std::function<std::optional<Work>()> plan, bool keeps_empty = false);
  ~OrderedStage() override;

  [[nodiscard]] Chunk next() override;

 private:
  struct Pending {
    std::shared_ptr<Task> task{};
    Place place{};
    MemoryShare share{};  // of the input, and room for the block
  };

  void fill();

  // Not before it is known how large blocks are.
  [[nodiscard]] bool may_read_ahead() const noexcept;

  Scope scope_;
  std::function<std::optional<Work>()> plan_;
  bool keeps_empty_;
  bool is_planned_ = false;
  std::exception_ptr failure_{};  // of the plan
  std::size_t largest_ = 0;       // block that came out
  std::deque<Pending> pending_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/function_source.hpp
// A user's functions as sources of a dataset. Data room.

namespace railyard::inline v0_1 {

namespace detail {

// Names the samples that something is wrong with, or one of them.
[[nodiscard]] std::string text_of_samples(std::uint64_t first, std::uint64_t last, std::size_t count);
[[nodiscard]] std::string text_of_samples(std::span<const std::uint64_t> ids);

// Calls what a user gave, and says where its exceptions came from. samples: gives the text of which sample it was.
template <class Call, std::invocable Text>
decltype(auto) call_user(Call&& call, const std::string& where, Text&& samples) {
  const auto say = [&](const char* what) { return DataError{compose("{}: {}: {}", where, samples(), what)}; };
  try {
    return call();
  } catch (const std::exception& failure) {
    throw say(failure.what());
  } catch (...) {
    throw say("an exception that is no std::exception");
  }
}
template <class Call>
decltype(auto) call_user(Call&& call, const std::string& where, std::uint64_t id) {
  return call_user(std::forward<Call>(call), where, [id] { return text_of_samples(id, id, 1); });
}

}  // namespace detail

/// Gives samples that a function makes, each by its number: a user's own random access.
class SampleFunctionSource {
 public:
  using Function = std::function<void(std::uint64_t id, SampleWriter& out)>;

  /// function is called on several threads at once.
  SampleFunctionSource(Schema schema, std::uint64_t count, Function function, std::string name = "function");

  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  [[nodiscard]] std::string describe() const;
  /// Another when the number of samples is; whether the function is another nobody sees.
  [[nodiscard]] std::uint64_t fingerprint() const { return count_; }
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const;

 private:
  void make(BlockBuilder& builder, std::uint64_t id) const;

  class Reader;

  std::shared_ptr<const Schema> schema_;
  std::uint64_t count_;
  std::shared_ptr<const Function> function_;
  std::string name_;
};

class SampleFunctionSource::Reader final : public BlockReader {
 public:
  Reader(const SampleFunctionSource& source, std::uint64_t at);
  [[nodiscard]] Block next(std::size_t most_rows) override;

 private:
  SampleFunctionSource source_;
  std::uint64_t at_;
};

/// Gives samples that a user's generator makes, one after another, until it returns false. To go on in the middle, all
/// samples before are made again.
class GeneratorSource {
 public:
  using Generator = std::function<bool(SampleWriter& out)>;
  using EndlessGenerator = std::function<void(SampleWriter& out)>;

  /// begin: makes a generator that is at its first sample; each must give the same samples.
  GeneratorSource(Schema schema, std::function<Generator()> begin, std::string name = "generator");
  /// begin: the same for generators that never end.
  [[nodiscard]] static GeneratorSource endless(Schema schema, std::function<EndlessGenerator()> begin,
                                               std::string name = "generator");

  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  /// Whether its generators never end.
  [[nodiscard]] bool is_endless() const noexcept { return is_endless_; }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;

 private:
  class Reader final : public BlockReader {
   public:
    Reader(const GeneratorSource& source, std::uint64_t from);
    [[nodiscard]] Block next(std::size_t most_rows) override;

   private:
    bool make(BlockBuilder& builder);

    std::shared_ptr<const Schema> schema_;
    std::string name_;
    Generator generator_;
    std::uint64_t at_ = 0;
    bool is_over_ = false;
  };

  std::shared_ptr<const Schema> schema_;
  std::shared_ptr<const std::function<Generator()>> begin_;
  std::string name_;
  bool is_endless_ = false;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/source_node.hpp
// A source as the begin of a dataset, and streams over whatever is indexed. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Reads an indexed node from a place to its end, on all threads. Its place is one number.
[[nodiscard]] std::unique_ptr<ChunkStream> open_indexed(const NodePtr& node, const Scope& scope,
                                                               PlaceCursor& from);

// Calls a source. Where it throws an Error, that says itself what is wrong; of all else it is said which samples it was
// asked for.
template <class Call, class Describe, class Text>
std::invoke_result_t<Call> call_source(Call&& call, Describe&& describe, Text&& samples) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    const auto again = [&]() -> std::invoke_result_t<Call> { std::rethrow_exception(failure); };
    return call_user(again, describe(), samples);
  }
}

// Reads a source as it gives its samples. Its place is one number, and of a FileStreamSource three more.
class SourceStream final : public ChunkStream {
 public:
  SourceStream(std::unique_ptr<BlockReader> reader, NodePtr node, const Scope& scope, std::uint64_t from,
               bool is_of_files);

  [[nodiscard]] Chunk next() override;

 private:
  std::unique_ptr<BlockReader> reader_;
  NodePtr node_;
  Scope scope_;
  RowGauge gauge_;
  std::uint64_t at_;
  bool is_of_files_;
};

template <DatasetSource S>
class SourceNode final : public DataNode {
 public:
  explicit SourceNode(S source)
      : DataNode(std::make_shared<const Schema>(source.schema())), source_(std::move(source)) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return source_.count(); }
  [[nodiscard]] std::string describe() const override { return source_.describe(); }
  // Files end; of what else tells no count, nobody knows.
  [[nodiscard]] Ending ending() const override {
    if constexpr (requires {
                    { source_.is_endless() } -> std::convertible_to<bool>;
                  }) {
      if (source_.is_endless()) return Ending::never;
    }
    constexpr bool has_files = requires {
      { source_.files() } -> std::convertible_to<std::vector<std::string>>;
    };
    return (has_files || source_.count().has_value()) ? Ending::certain : Ending::unknown;
  }
  [[nodiscard]] bool is_indexed() const override { return IndexedSource<S>; }
  [[nodiscard]] bool costs_a_copy() const override {
    return requires { requires bool{S::costs_a_copy}; };
  }
  void count_skipped(SkipCounts& counts) const override {
    if constexpr (requires {
                    { source_.skipped() } -> std::convertible_to<std::uint64_t>;
                  }) {
      if (const std::uint64_t skipped = source_.skipped(); skipped > 0) counts[this] = skipped;
    }
  }
  void take_stock(DataStock& stock) const override {
    stock.add_source(describe());
    if (!stock.takes_sources()) return;
    if constexpr (requires {
                    { source_.files() } -> std::convertible_to<std::vector<std::string>>;
                  }) {
      stock.add_files(source_.files());
    }
    if constexpr (requires {
                    { source_.fingerprint() } -> std::convertible_to<std::uint64_t>;
                  }) {
      stock.add_settings(source_.fingerprint());
    }
    if constexpr (requires {
                    { source_.block() } -> std::convertible_to<const Block&>;
                  }) {
      const Block& block = source_.block();
      for (std::size_t column = 0; column < block.columns().size(); ++column) {
        const Field& field = block.schema()[column];
        const std::string_view type = field.is_text ? std::string_view{"text"} : name_of(field.dtype);
        stock.add_memory(compose("{} of {} x ({}) {}", field.name, block.rows(), joined(field.shape, ", "), type),
                         block[column]);
      }
    }
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, [[maybe_unused]] const EpochKey& key) const override {
    if constexpr (IndexedSource<S>) {
      Block block = call_source([&] { return Block{source_.read(places)}; }, [this] { return describe(); },
                                [places] { return text_of_samples(places); });
      if (block.rows() == places.size()) return block;
      throw DataError{compose("{} was asked for {} samples and gave {}", describe(), places.size(), block.rows())};
    } else {
      return DataNode::read(places, key);
    }
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    if (is_indexed() && scope.pool->num_helpers() > 0) return open_indexed(shared_from_this(), scope, from);
    const std::uint64_t begin = from.next();
    const auto open_source = [&]() -> std::unique_ptr<BlockReader> {
      if constexpr (FileStreamSource<S>) {
        const FilePlace place{from.next(), from.next(), from.next()};
        return source_.open(begin, place);
      } else {
        return source_.open(begin);
      }
    };
    auto reader = call_source(
        open_source, [this] { return describe(); }, [begin] { return text_of_samples(begin, begin, 1); });
    return std::make_unique<SourceStream>(std::move(reader), shared_from_this(), scope, begin, FileStreamSource<S>);
  }

 private:
  S source_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/block_op_node.hpp
// Operations that make samples of samples without looking at others: map, filter, flat_map, columns. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Makes a block of a block.
using BlockFunction = std::function<Block(const Block&, const EpochKey&)>;

class BlockOpNode final : public DataNode {
 public:
  struct Operation {
    std::string name{};  // as messages show it: "map"
    BlockFunction apply{};
    bool keeps_count = true;                                   // one sample comes out for each that goes in
    std::function<void(Fingerprint&)> identify = {};           // adds what it does, where that is known
    bool only_chooses = false;                                 // columns, of which it computes none
    std::shared_ptr<const AnyPreprocessor> preprocessor = {};  // that does it
  };

  BlockOpNode(NodePtr upstream, std::shared_ptr<const Schema> schema, Operation operation);

  [[nodiscard]] const NodePtr& upstream() const noexcept { return upstream_; }
  [[nodiscard]] bool keeps_count() const noexcept { return operation_.keeps_count; }
  [[nodiscard]] Block apply(const Block& block, const EpochKey& key) const;

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] bool is_indexed() const override;
  [[nodiscard]] Ending ending() const override;
  [[nodiscard]] bool costs_a_copy() const override;
  [[nodiscard]] bool is_reordered() const override;
  [[nodiscard]] std::uint64_t id_span() const override;
  [[nodiscard]] std::uint64_t depth() const override;

  void count_skipped(SkipCounts& counts) const override;
  void take_stock(DataStock& stock) const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  // Said to be inline here already: else each file that includes this one compiles all of it for the table of virtual
  // functions, used or not.
  [[nodiscard]] inline std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  NodePtr upstream_;
  Operation operation_;
};

// Operations one after another, over a node that is none.
struct OperationChain {
  NodePtr base{};
  std::vector<std::shared_ptr<const BlockOpNode>> operations{};  // the first is applied first

  // Takes the last operations of a node off it; only those that keep the number of samples, if that is asked.
  [[nodiscard]] static OperationChain of(NodePtr node, bool only_keeping_count);

  // Takes those off a node that come after another one; nothing if something else comes after it than operations that
  // keep the number of samples.
  [[nodiscard]] static std::optional<OperationChain> after(const NodePtr& begin, NodePtr node);

  [[nodiscard]] Block apply(Block block, const EpochKey& key) const;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/row_reader.hpp
// Takes any number of samples at a time from a stream, and knows to the sample where it stands. Data room.

// ---- railyard/data/detail/held_window.hpp
// Holds windows of a stream in memory, to give their samples in another order. Data room.

// ---- railyard/data/detail/permutation.hpp
// A random order of any number of samples that is asked for one place at a time. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Is an order of 0 to count - 1, a function of count and seed only. Up to 65536 samples it is a list, drawn evenly from
// all orders. Larger ones are computed place by place: a list of 10^9 would take 8 GB in every worker, and a run that
// goes on in the middle would wait for it. That is a Feistel network on the smallest square that holds count, gone
// through again while its result is none of the samples, which is at most 4 times on average.
// Source: Black, Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking).
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t seed);

  // Which sample stands at the place, which is below count.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t place) const noexcept;

 private:
  static constexpr std::uint64_t largest_list = 65536;

  [[nodiscard]] std::uint64_t scramble(std::uint64_t at) const noexcept;

  std::uint64_t count_;
  std::array<std::uint64_t, 6> keys_{};                     // of the rounds
  std::shared_ptr<const std::vector<std::size_t>> list_;  // so that copies cost nothing
  unsigned half_bits_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/order_nodes.hpp
// Operations that change which samples come and in which order: take, skip, selection, shuffle. Data room.

// ---- railyard/data/detail/bucket_node.hpp
// Brings samples of similar length together within windows of a stream. Data room.

// ---- railyard/data/detail/draft_file.hpp
// A file that appears under its name when it is whole, and that one process at a time writes. Data room.

// ---- railyard/data/detail/sample_file.hpp
// A file that holds the samples of a dataset as they are in memory, for caches. Data room.

// ---- railyard/data/detail/sample_shelf.hpp
// Samples that one of several forked processes makes, and that all of them see. Data room.

// ---- railyard/data/detail/cache_node.hpp
// Keeps the samples of a dataset in memory or in a file. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Tells now and then of the reading of a dataset to an end that may never come, and ends it where nobody wants it any
// more.
class ReadingToEnd {
 public:
  explicit ReadingToEnd(NodePtr node, std::chrono::nanoseconds first_word = std::chrono::seconds{30});

  void note(std::size_t samples);

 private:
  NodePtr node_;
  LongWait wait_;
  std::uint64_t samples_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/dataset_reading.hpp
// How loaders and readers go over a dataset, and what workers know of it in common. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Is what all workers have alike, and the name that they know it by. What they do with it besides is their own.
struct CommonData {
  NodePtr node{};
  std::string name{};
};

// What workers know of each other's samples of a dataset that is not divided.
enum class Likeness : std::uint8_t {
  none,          // each may have others
  by_arguments,  // alike at the same places, if all workers have given operations the same arguments
  as_given,      // alike: nothing that was done with what all have alike could choose other samples
};

struct DatasetReading {
  bool is_divided = true;
  std::size_t batch_size = 0;
  std::size_t batches_ahead = 8;
  std::shared_ptr<const CommonData> common{};
  Likeness likeness = Likeness::none;
  std::string name{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/joining_nodes.hpp
// Operations that put datasets together: concat, zip, repeat. Data room.

// ---- railyard/data/detail/mix_node.hpp
// Mixes datasets by weights. Data room.

// ---- railyard/data/detail/user_operations.hpp
// Makes operations on blocks of the functions that users write for samples. Data room.

namespace railyard::inline v0_1 {

namespace detail {

template <class F>
concept MapFunction = std::invocable<const F&, const Sample&, SampleWriter&> ||
    std::invocable<const F&, const Sample&, SampleWriter&, SampleRandom&>;
template <class F>
concept FilterFunction =
    std::predicate<const F&, const Sample&> || std::predicate<const F&, const Sample&, SampleRandom&>;
template <class F>
concept FlatMapFunction = std::invocable<const F&, const Sample&, SampleList&> ||
    std::invocable<const F&, const Sample&, SampleList&, SampleRandom&>;
template <class F>
concept BlockMapFunction = requires(const F& function, const Block& block) {
  { function(block) } -> std::convertible_to<Block>;
};

// Calls a function with the random numbers if it wants them.
template <class F, class... Arguments>
decltype(auto) call_with(const F& function, SampleRandom& random, Arguments&&... arguments) {
  if constexpr (std::is_invocable_v<const F&, Arguments..., SampleRandom&>) {
    return function(std::forward<Arguments>(arguments)..., random);
  } else {
    return function(std::forward<Arguments>(arguments)...);
  }
}

// Calls visit(sample, row, random) for each sample of a block, and says where an exception came from.
template <class Visit>
void for_each_sample(const Block& block, std::uint64_t seed, const std::string& where, Visit&& visit) {
  for (std::size_t row = 0; row < block.rows(); ++row) {
    const Sample sample{block, row};
    SampleRandom random{derive_seed(seed, sample.id())};
    call_user([&] { visit(sample, row, random); }, where, sample.id());
  }
}

// Is what an operation needs to know of where it stands.
struct OperationSite {
  std::shared_ptr<const Schema> schema{};  // of what comes out
  std::string where{};                     // for messages
  std::uint64_t salt = 0;                  // tells its random numbers from others'
};

template <MapFunction F>
[[nodiscard]] BlockFunction map_samples(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& key) {
    BlockBuilder builder{site.schema, block.rows()};
    for_each_sample(block, key.derive(site.salt), site.where, [&](const Sample& sample, std::size_t row, auto& random) {
      call_with(function, random, sample, builder.add(sample.id()));
      builder.complete_from(block, row);
      builder.check_complete();
    });
    return builder.build();
  };
}

template <FlatMapFunction F>
[[nodiscard]] BlockFunction flat_map_samples(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& key) {
    BlockBuilder builder{site.schema};
    for_each_sample(block, key.derive(site.salt), site.where, [&](const Sample& sample, std::size_t row, auto& random) {
      SampleList out{builder, block, row};
      call_with(function, random, sample, out);
      out.finish();
    });
    return builder.build();
  };
}

template <FilterFunction F>
[[nodiscard]] BlockFunction filter_samples(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& key) {
    std::vector<std::size_t> kept;
    for_each_sample(block, key.derive(site.salt), site.where, [&](const Sample& sample, std::size_t row, auto& random) {
      if (call_with(function, random, sample)) kept.push_back(row);
    });
    return take(block, kept);
  };
}

template <BlockMapFunction F>
[[nodiscard]] BlockFunction map_blocks(OperationSite site, F function) {
  return [site = std::move(site), function = std::move(function)](const Block& block, const EpochKey& /*key*/) {
    if (block.empty()) return no_samples(site.schema);
    return call_user(
        [&] {
          const Block made = function(block);
          if (made.rows() != block.rows() || made.schema() != *site.schema) {
            throw DataError{
                compose("a block of {} samples became one of {} with the columns {}: there must be as many, with the "
                        "columns {}, and their dtypes and shapes as was said",
                        block.rows(), made.rows(), made.schema().names(), site.schema->names())};
          }
          return Block{site.schema, made.columns(), {block.ids().begin(), block.ids().end()}};
        },
        site.where, [&block] { return text_of_samples(block.ids()); });
  };
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/window_node.hpp
// Shuffles a stream within windows of it. Data room.

// ---- railyard/data/memory_source.hpp
// Columns in memory as a source of a dataset. Data room.

namespace railyard::inline v0_1 {

/// Is a column with its name: what MemorySource is made of.
struct NamedColumn {
  Field field{};
  Column column{};

  NamedColumn(Field field_, Column column_);
  /// Takes a number per sample over.
  template <Element T>
  NamedColumn(std::string name, std::vector<T> values) : NamedColumn(std::move(name), {}, std::move(values)) {}
  /// Takes elements over, of which a sample has as many as its shape says.
  /// Throws: ConfigError if they are no whole number of samples.
  template <Element T>
  NamedColumn(std::string name, std::vector<std::int64_t> shape, std::vector<T> values)
      : field{std::move(name), dtype_of<T>, std::move(shape), false}, column(field, std::move(values)) {}
  /// Copies a text per sample.
  NamedColumn(std::string name, const std::vector<std::string>& texts);
};

/// Gives samples out of columns in memory, of which nothing is copied as long as samples are read in their order.
class MemorySource {
 public:
  static constexpr bool costs_a_copy = true;  ///< samples lie ready

  /// Throws: ConfigError if the columns are not all as long, or two have one name.
  explicit MemorySource(std::vector<NamedColumn> columns, std::string name = "columns in memory");

  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  [[nodiscard]] std::string describe() const;
  /// All columns.
  [[nodiscard]] const Block& block() const noexcept;
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const;

 private:
  class Reader final : public BlockReader {
   public:
    Reader(std::shared_ptr<const Block> block, std::size_t at);
    [[nodiscard]] Block next(std::size_t most_rows) override;

   private:
    std::shared_ptr<const Block> block_;
    std::size_t at_;
  };

  std::string name_;
  std::shared_ptr<const Block> block_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/dataset.hpp
// A dataset: where samples come from and what is done with them, read when they are needed. Data room.

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
/// which is a 32nd of the reader's bound or 4096 samples, of compressed files one from its begin, and of a
/// shuffle_window() or bucket_by_length() its window. A generator of the user's gives all before it again.
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
  [[nodiscard]] static Dataset from_columns(std::vector<NamedColumn> columns);
  /// Makes a dataset of a function that makes any of its samples: function(std::uint64_t id, SampleWriter& out).
  [[nodiscard]] static Dataset from_function(Schema schema, std::uint64_t count,
                                             SampleFunctionSource::Function function);
  /// Makes a dataset of a function that makes generators: each gives all samples in turn by bool(SampleWriter& out),
  /// and false at the end.
  [[nodiscard]] static Dataset from_generator(Schema schema, std::function<GeneratorSource::Generator()> begin);

  /// Makes a dataset of generators that never end: each gives samples in turn by function(SampleWriter& out).
  [[nodiscard]] static Dataset from_endless_generator(Schema schema,
                                                      std::function<GeneratorSource::EndlessGenerator()> begin);

  [[nodiscard]] const Schema& schema() const noexcept;
  /// The number of samples of an epoch, or nothing where that is known only at the end.
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  /// Whether any sample can be computed alone; see above.
  [[nodiscard]] bool is_indexed() const;
  /// Whether it is known to have no end: it was made so, or repeat() was called without a number, and nothing after it
  /// ends it. What needs an end refuses it then. Of other generators nobody knows: what reads one to its end tells in
  /// words that it is still at it.
  [[nodiscard]] bool is_endless() const;
  /// The source and the operations, as messages show them.
  [[nodiscard]] std::string describe() const;
  /// How many damaged samples its sources have left out (OnError) of what this process has read so far. A loader tells
  /// of them in Result::warnings().
  [[nodiscard]] std::uint64_t skipped() const;
  /// The name that the Trainer has the dataset by, of which this was made; empty if there is none, as of what joins
  /// datasets of several names.
  [[nodiscard]] const std::string& name() const noexcept { return reading_.name; }
  /// The name of the column that a model is to predict; empty if there is none.
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  /// Throws: ConfigError if there is no such column.
  [[nodiscard]] Dataset with_label(std::string name) const;
  /// Whether a loader gives each worker its share of the samples, as it does by default, or all of them.
  [[nodiscard]] bool is_divided() const noexcept { return reading_.is_divided; }
  /// Returns the dataset of which loaders give all samples to each worker, which may have a part of its own.
  [[nodiscard]] Dataset undivided() const;
  /// Returns the dataset of which loaders and readers give batches of so many samples, all workers together, unless
  /// their options name a size. Operations do not see batches, and keep the size, but for split() and what joins
  /// datasets. Example: {{"train", digits.batch(64).prefetch(16)}} for the Trainer
  [[nodiscard]] Dataset batch(std::size_t samples) const;
  /// What batch() has said; 0 if nothing.
  [[nodiscard]] std::size_t batch_size() const noexcept { return reading_.batch_size; }
  /// Returns the dataset of which loaders and readers read so many batches ahead at most, unless their options say so.
  [[nodiscard]] Dataset prefetch(std::size_t batches) const;
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
  [[nodiscard]] Dataset select(const std::vector<std::string>& names) const;
  /// Leaves columns out. Throws: ConfigError if one does not exist.
  [[nodiscard]] Dataset drop(const std::vector<std::string>& names) const;
  /// Gives columns other names: pairs of the old and the new one. Throws: ConfigError if one does not exist, or two
  /// would be equal.
  [[nodiscard]] Dataset rename(const std::vector<std::pair<std::string, std::string>>& names) const;

  /// Keeps the first samples.
  [[nodiscard]] Dataset take(std::uint64_t samples) const;
  /// Leaves the first samples out.
  [[nodiscard]] Dataset skip(std::uint64_t samples) const;
  /// Keeps the samples at the given places, in that order. Throws: ConfigError if the dataset is not indexed, or there
  /// is no such place.
  [[nodiscard]] Dataset at(std::vector<std::uint64_t> places) const;

  /// Gives all samples in another order each epoch: a function of the reader's seed, the epoch and the seed given here.
  /// Every order is about as likely as any other. Throws: ConfigError if the dataset is not indexed.
  [[nodiscard]] Dataset shuffle(std::uint64_t seed = 0) const;
  /// Gives the samples of a stream in another order each epoch, but each near where it was: the stream is cut into
  /// windows, whose borders move from epoch to epoch. Cost: a window is held in memory, and is read again where a run
  /// goes on in the middle of it. Throws: ConfigError for a window of none.
  [[nodiscard]] Dataset shuffle_window(std::size_t samples, std::uint64_t seed = 0) const;

  /// Gives samples of similar length together, so that a batch of them needs little padding: windows of the samples are
  /// sorted by the length in a column and cut into groups, which come in an order of their own each epoch. Batches as
  /// large as a group fit best. A window has whole groups, at least one; a larger one makes for less padding and a
  /// better mix. Its samples are held in memory, and read again where a run goes on in the middle of them; the sizes
  /// may then be others. An indexed dataset becomes a stream, whose samples shuffle() before this one mixes. Throws:
  /// ConfigError if all samples of the column are equally long, or for a group of none.
  [[nodiscard]] Dataset bucket_by_length(const std::string& column, std::size_t group, std::size_t window) const;

  /// Gives the samples so many times over. Each time is an epoch of its own for what is random before it.
  [[nodiscard]] Dataset repeat(std::uint64_t times) const;
  /// Gives the samples over and over, without end.
  [[nodiscard]] Dataset repeat() const;
  /// Keeps the samples in memory once they have been read. Forked workers that have the cache from the program they
  /// come from, as those of Processes have the Trainer's datasets, read them once and keep them once for all, also for
  /// those of a restart: one makes the cache, and the others wait, unless it makes nothing for 5 minutes. What is
  /// random before it is drawn once for all epochs. Makes any dataset indexed. Cost: memory for all samples, for a
  /// moment twice; where half of the host's does not hold them, reading them is a DataError. Throws: ConfigError for a
  /// dataset that has no end.
  [[nodiscard]] Dataset cache() const;
  /// Does the same in a file, for more than memory holds. A file that is there is used, and made anew where the files
  /// of the source, or numbers, settings or what preprocessors are and have learned before it, are not what they were;
  /// remove it when a function of yours has changed, also one of a BatchMapper, which nobody sees; so it is where of
  /// more than 64 files one that is not looked at has changed under its name. Without its source it is read as it
  /// is. One that holds another dataset by name is a ConfigError. Of workers that want it at once one makes it, and the
  /// others wait, unless it writes nothing for 5 minutes; hosts with copies of their own of the source's files name
  /// caches of their own. What is read is checked: a damaged cache is a DataError. It is read on machines with the same
  /// order of bytes. Throws: ConfigError for a dataset that has no end.
  [[nodiscard]] Dataset cache(const std::string& file) const;

  /// What operations and readers work on; not for users.
  [[nodiscard]] const detail::NodePtr& node() const noexcept { return node_; }
  [[nodiscard]] static Dataset from_node(detail::NodePtr node, std::string label, bool is_divided = true);
  /// Returns the dataset by that name.
  [[nodiscard]] Dataset named(std::string_view name) const;
  /// Returns the dataset that the node makes of this one, whose batches are not spoken of.
  [[nodiscard]] Dataset remade(const detail::NodePtr& node) const;
  /// Returns the dataset, of which loaders give all samples to each worker, as one that all of them have alike: those
  /// of a host may then read it together.
  [[nodiscard]] Dataset alike(std::string_view name) const;
  /// Returns the dataset as one of which workers know that much of each other's samples.
  [[nodiscard]] Dataset with_likeness(detail::Likeness likeness) const;
  [[nodiscard]] detail::Likeness likeness() const noexcept;
  /// What alike() has said, of this dataset or of one that this was made of; nullptr if nothing.
  [[nodiscard]] const std::shared_ptr<const detail::CommonData>& common() const noexcept { return reading_.common; }
  /// Whether all workers have it alike as it is: nothing was done with it since alike().
  [[nodiscard]] bool is_alike() const noexcept;

 private:
  using Reading = detail::DatasetReading;

  Dataset(detail::NodePtr node, std::string label);
  Dataset(detail::NodePtr node, std::string label, const Reading& reading);

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

  [[noreturn]] void refuse(std::string_view operation, std::string_view what) const;
  template <class Call>
  std::invoke_result_t<Call> checked(std::string_view operation, Call&& call) const {
    try {
      return call();
    } catch (const ConfigError& error) {
      refuse(operation, error.what());
    }
  }
  void require_end(std::string_view operation) const;
  void require_index(std::string_view operation) const;

  [[nodiscard]] detail::OperationSite site_of(std::string_view operation, Schema to) const;
  [[nodiscard]] Dataset operation(std::string name, std::shared_ptr<const Schema> to, detail::BlockFunction apply,
                                  bool keeps_count, std::function<void(detail::Fingerprint&)> identify = {},
                                  bool only_chooses = false,
                                  std::shared_ptr<const AnyPreprocessor> preprocessor = {}) const;
  [[nodiscard]] Dataset choose(std::string_view name, std::vector<std::size_t> chosen) const;
  [[nodiscard]] std::vector<std::size_t> every_column() const;

  [[nodiscard]] Dataset after(const detail::NodePtr& made) const;
  template <class Node, class... Arguments>
  [[nodiscard]] Dataset over(Arguments&&... arguments) const {
    return after(std::make_shared<const Node>(node_, std::forward<Arguments>(arguments)...));
  }

  detail::NodePtr node_;
  std::string label_;
  Reading reading_{};
};

/// Gives the samples of one dataset after those of another. Loaders divide it as they do each of them, as is so of all
/// that joins datasets. Throws: ConfigError if their columns differ, one that is not the last has no end, or loaders
/// divide only some.
[[nodiscard]] Dataset concat(const std::vector<Dataset>& datasets);

/// Gives samples with the columns of all datasets, which stand side by side. They must have equally many samples.
/// Throws: ConfigError if they have not, if only some have an end, if two columns have one name, or if loaders divide
/// only some; DataError at the end, if that was not known.
[[nodiscard]] Dataset zip(const std::vector<Dataset>& datasets);

/// Mixes datasets at random, each with a share of the samples that is its weight. Where one ends, the others go on, so
/// that each sample of all of them comes once; to hold the shares to the end, repeat() the datasets and take() as many
/// samples as an epoch is to have. Throws: ConfigError if their columns differ, a weight is not a number above 0, or
/// loaders divide only some.
[[nodiscard]] Dataset mix(const std::vector<Dataset>& datasets, const std::vector<double>& weights,
                          std::uint64_t seed = 0);

}  // namespace railyard::inline v0_1

// ---- railyard/data/dataset_stats.hpp
// Looks at a dataset: its first samples as a table, and numbers about its columns. Data room.

namespace railyard::inline v0_1 {

/// Says what the samples of one column are like. Elements of numbers are counted one by one, texts as a whole.
struct ColumnStats {
  Field field{};
  std::uint64_t present = 0;
  std::uint64_t missing = 0;                                  ///< NaN, or empty text
  double minimum = std::numeric_limits<double>::quiet_NaN();  ///< of what is present; NaN if nothing is, or it is text
  double maximum = std::numeric_limits<double>::quiet_NaN();
  double mean = std::numeric_limits<double>::quiet_NaN();
  double deviation = std::numeric_limits<double>::quiet_NaN();  ///< of all samples, not an estimate from them
};

/// Says what the samples of a dataset are like.
struct DatasetStats {
  std::uint64_t samples = 0;
  std::vector<ColumnStats> columns{};

  /// The numbers as a table.
  [[nodiscard]] std::string text() const;
};

namespace detail {

// Adds numbers to what is known of a column, by Welford's method: squares holds the sum of squared distances.
template <class T>
void add_numbers(std::span<const T> values, ColumnStats& stats, double& squares) {
  for (const T element : values) {
    const auto value = convert_element<double>(element);
    if (has_nan_bits(value)) {  // not std::isnan, which -ffast-math makes false
      ++stats.missing;
      continue;
    }
    if (stats.present++ == 0) stats.minimum = stats.maximum = stats.mean = value, squares = 0;
    const double distance = value - stats.mean;
    const auto count = static_cast<double>(stats.present);
    stats.mean += has_infinity_bits(distance) ? value / count - stats.mean / count : distance / count;
    squares += distance * (value - stats.mean);
    stats.minimum = std::min(stats.minimum, value);
    stats.maximum = std::max(stats.maximum, value);
  }
}

}  // namespace detail

/// Reads a dataset, as in epoch 0 of seed 0, and returns what its samples are like. Cost: one pass on one thread.
/// Throws: ConfigError for a dataset that has no end.
[[nodiscard]] DatasetStats stats(const Dataset& dataset);

/// Returns the first samples of a dataset as a table, as they come in epoch 0 of seed 0.
/// Example: fmt::print("{}", ry::show(dataset));
[[nodiscard]] std::string show(const Dataset& dataset, std::size_t samples = 10);

}  // namespace railyard::inline v0_1

// ---- railyard/data/epoch_position.hpp
// What of an epoch has been consumed: all that a run needs to go on in the middle of it. Data room.

namespace railyard::inline v0_1 {

/// Says how far all workers together have come in an epoch. It holds for any number of workers and any size of batches.
class EpochPosition {
 public:
  /// At the begin of an epoch.
  EpochPosition() = default;
  EpochPosition(std::uint64_t seed, std::uint64_t epoch, bool shuffle, std::optional<std::uint64_t> count);

  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] bool is_shuffled() const noexcept { return is_shuffled_; }
  /// The samples of the epoch, where that was known.
  [[nodiscard]] std::optional<std::uint64_t> count() const noexcept;
  /// The samples that have been consumed: the first of the epoch's order.
  [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_; }
  /// Where the streams stand, if the dataset is not indexed.
  [[nodiscard]] const std::vector<std::uint64_t>& place() const noexcept { return place_; }

  /// Returns the position further on in the same epoch.
  [[nodiscard]] EpochPosition moved_to(std::uint64_t consumed, std::vector<std::uint64_t> place) const;

  /// The same on all ranks. All numbers of 64 bits are text, for no number of JSON has so many.
  [[nodiscard]] State state() const;
  /// Throws: ConfigError if the state is not one of an EpochPosition.
  void load_state(const State& state);
  friend bool operator==(const EpochPosition&, const EpochPosition&) = default;

 private:
  [[noreturn]] static void refuse(std::string_view name, std::string_view text);
  [[nodiscard]] static std::uint64_t parse(std::string_view name, std::string_view text);
  [[nodiscard]] static std::uint64_t number_in(const State& state, std::string_view name);

  std::uint64_t seed_ = 0;
  std::uint64_t epoch_ = 0;
  bool is_shuffled_ = false;
  std::optional<std::uint64_t> count_;
  std::uint64_t consumed_ = 0;
  std::vector<std::uint64_t> place_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/epoch_options.hpp
// Says how an epoch of a dataset is gone over: in which batches, for which worker, with which means. Data room.

namespace railyard::inline v0_1 {

/// Says how an EpochReader goes over a dataset.
struct EpochOptions {
  /// Samples of a batch, all workers together; to be given, or said by Dataset::batch().
  std::size_t global_batch_size = 0;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  /// In an order that is a function of seed and epoch; otherwise in the dataset's own. Needs an indexed dataset.
  bool shuffle = false;
  std::size_t rank = 0;
  std::size_t world_size = 1;
  /// A batch is given in so many parts, one after another, of which each worker has its share.
  std::size_t micro_batches = 1;
  /// Where to go on; at the begin of the epoch, if it is not set.
  EpochPosition from{};
  /// Threads that read ahead. With none, next() reads by itself.
  std::size_t threads = 2;
  /// Batches that are read ahead at most; 0 for what Dataset::prefetch() says.
  std::size_t prefetch = 0;
  /// Bytes that all samples under way may take: those read ahead, those operations work on, the window of a shuffle,
  /// and the block that was given last. A batch, and a sample for each operation on a stream, are read even if they
  /// take more: a batch is there twice while it is put together, or an operation makes another of it, and the bound is
  /// broken by as much as it does not hold of that. The window of a shuffle is refused where it leaves no room for two
  /// batches that would have it alone.
  std::size_t bound_bytes = std::size_t{256} << 20U;
  /// Where a batch has no sample for this worker, its block holds one of another worker's, which does not count.
  bool stands_in = false;
  /// What is left at the end of the epoch, when it fills no batch, is not given.
  bool drop_last = false;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/feed_memory.hpp
// The memory through which one worker of a host hands batches to the others. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Says why a worker neither reads nor takes what it is given: its loop has batches and takes none, or there is no
// memory for another batch beside the one that its loop has.
enum class FeedRest : std::uint32_t { none, of_loop, of_memory };

// Belongs to one reader, and to the leader who writes for it. Bytes are counted from the begin of the memory's life;
// byte number n lies at n modulo the capacity.
struct alignas(64) FeedLine {
  // Written by the reader.
  std::atomic<std::uint64_t> session{0};  // that it wants to be served; 0 for none
  std::atomic<std::uint64_t> key{0};      // which batches of what these are
  std::atomic<std::uint64_t> rank{0};     // whose part of them it wants
  std::atomic<std::int32_t> process{0};
  std::atomic<FeedRest> rest{FeedRest::none};
  std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint32_t> taken{0};  // a futex: moves when the leader may find something new here
  // Written by the leader.
  alignas(64) std::atomic<std::uint64_t> served{0};  // the session that it writes for; 0 for none
  std::atomic<std::uint64_t> accepted{0};            // the last that it has written for
  std::atomic<std::uint64_t> start{0};               // where that begins
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint32_t> filled{0};  // a futex: moves when the reader may find something new here
};

struct FeedHeader {
  std::uint64_t token = 0;  // tells this memory from any other
  std::uint64_t num_readers = 0;
  std::uint64_t capacity = 0;                     // bytes of each line
  std::atomic<FeedRest> rest{FeedRest::of_loop};  // of the leader
  std::atomic<bool> is_gone{false};               // the leader
  std::atomic<std::uint64_t> key{0};    // of the session that is under way, whose readers are known; 0 for none
  std::atomic<std::uint32_t> asked{0};  // a futex: moves when a reader wants to be served
};

// Is a mapping of it. Disappears with the last process that maps it, however that ends.
class FeedMemory {
 public:
  // Makes the memory. Throws: Error if there is none.
  FeedMemory(std::size_t num_readers, std::size_t capacity);
  // Opens what another worker has made, by its address. Throws: Error if it is not there any more.
  explicit FeedMemory(const std::string& address);
  FeedMemory(const FeedMemory&) = delete;
  FeedMemory& operator=(const FeedMemory&) = delete;
  ~FeedMemory();

  // What others open it by, while this object lives.
  [[nodiscard]] std::string address() const;

  [[nodiscard]] FeedHeader& header() const noexcept;
  [[nodiscard]] FeedLine& line(std::size_t reader) const noexcept;
  // The bytes of a line.
  [[nodiscard]] std::byte* bytes(std::size_t reader) const noexcept;

  [[nodiscard]] pid_t maker() const noexcept;
  [[nodiscard]] bool is_maker() const noexcept;

 private:
  static constexpr std::size_t lines_offset =
      (sizeof(FeedHeader) + alignof(FeedLine) - 1) / alignof(FeedLine) * alignof(FeedLine);

  [[nodiscard]] static std::size_t size_for(std::size_t num_readers, std::size_t capacity) noexcept;
  [[nodiscard]] std::byte* line_at(std::size_t reader) const noexcept;
  void map();

  Descriptor file_{};
  pid_t process_ = 0;
  std::size_t size_ = 0;
  void* base_ = nullptr;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/feed_ends.hpp
// The two ends of the line through which one worker of a host hands batches to another. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Tells a thread that reads ahead what the loop does that takes its batches.
struct FeedTaker {
  std::atomic<bool> waits{false};
  std::atomic<bool> has_left{false};
};

// Counts how long another worker that rests may hold up this one's loop. Only while the loop waits: what is read ahead
// has time. keeps_step: its loop takes as many batches as this one; then a rest for want of memory, which ends when the
// loop comes back from what it does between two batches, counts for little: to read by oneself would not be faster.
class FeedPatience {
 public:
  FeedPatience(const FeedTaker& taker, std::chrono::nanoseconds budget, bool keeps_step = false) noexcept;

  // Sleeps for a moment, or until the word is another. False when it is enough. rest: of the other worker.
  [[nodiscard]] bool wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                          FeedRest rest = FeedRest::of_loop) noexcept;
  [[nodiscard]] std::chrono::nanoseconds spent() const noexcept;
  [[nodiscard]] bool is_spent() const noexcept;

 private:
  const FeedTaker* taker_;
  std::chrono::nanoseconds budget_;
  int memory_divisor_;
  std::chrono::nanoseconds spent_{0};
};

// Says how long another worker is worth waiting for: hardly at all, once that was in vain, and less each time.
class FeedTrust {
 public:
  explicit FeedTrust(std::chrono::nanoseconds full) noexcept;

  [[nodiscard]] std::chrono::nanoseconds patience() const noexcept;
  void gain() noexcept;
  void lose() noexcept;

 private:
  std::chrono::nanoseconds full_;
  std::chrono::nanoseconds patience_;
};

// The leader's end. Used by one thread at a time.
class FeedWriter {
 public:
  FeedWriter(const FeedMemory& memory, std::size_t reader) noexcept;

  // Serves the reader from here on, if it wants the batches that have the key. Once a session: a reader that has not
  // seen yet that it is no longer served stands somewhere else than where the leader begins again.
  [[nodiscard]] bool accept(std::uint64_t key) noexcept;
  [[nodiscard]] bool is_serving() const noexcept;
  [[nodiscard]] std::size_t rank() const noexcept;

  // False if the reader has left or died, or patience is at its end.
  [[nodiscard]] bool write(const void* from, std::size_t size, FeedPatience& patience) noexcept;
  // Wakes the reader.
  void flush() const noexcept;
  void leave() const noexcept;

 private:
  // Patience is for readers that rest. Meanwhile the leader rests too, for whoever waits for it.
  [[nodiscard]] bool wait_for_room(std::uint32_t seen, FeedPatience& patience) const noexcept;

  FeedHeader* header_;
  FeedLine* line_;
  std::byte* bytes_;
  std::uint64_t written_ = 0;
};

// The reader's end. Used by one thread at a time.
class FeedReader {
 public:
  FeedReader(const FeedMemory& memory, std::size_t reader) noexcept;

  // Asks to be served, and waits for that: also where the leader has written all by the time that this one sees it.
  // False if it comes too late, or patience is at its end.
  [[nodiscard]] bool join(std::uint64_t key, std::size_t rank, FeedPatience& patience) noexcept;

  // False if the leader has left or died, or patience with one that rests is at its end.
  [[nodiscard]] bool read(void* to, std::size_t size, FeedPatience& patience) noexcept;
  // Wakes the leader, if it waits for room.
  void release() const noexcept;
  void rest(FeedRest rest) const noexcept;
  void leave() const noexcept;

 private:
  const FeedMemory* memory_;
  FeedLine* line_;
  std::byte* bytes_;
  std::uint64_t session_;  // the last
  std::uint64_t read_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/host_feed.hpp
// Lets one worker of a host read a stream, and the others have their samples from it. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Whether each rank may have a part of its own: it is not divided, and not what the Trainer gives all of them alike, or
// what operations make of that whose arguments tell what they do. Others may choose by rank.
[[nodiscard]] bool is_own_part(const Dataset& dataset);

// Is one loader's end. The worker whose local rank is 0 leads: it reads, and hands out. Nobody depends on another: who
// is not there in time, stops, or dies is left behind, and the others go on as they would alone, each from where it
// stands. So all that a mishap costs is that samples are read more than once. Of what is divided among the workers each
// message may hold a loop up, for the loops keep step; of what each gets as a whole, an epoch may, for they need not.
class HostFeed {
 public:
  // Says which worker this is, and where it finds the others. name: of the loader, equal on all workers.
  struct Seat {
    Store* store = nullptr;
    std::string name{};
    std::size_t local_rank = 0;
    std::size_t local_size = 1;
    /// How long a message, or an epoch, may hold up this worker's loop for another one.
    std::chrono::nanoseconds patience = std::chrono::seconds{2};
  };

  // capacity: bytes under way to each worker.
  HostFeed(Seat seat, std::size_t capacity);
  HostFeed(const HostFeed&) = delete;
  HostFeed& operator=(const HostFeed&) = delete;
  ~HostFeed();

  [[nodiscard]] bool leads() const noexcept { return seat_.local_rank == 0; }
  // Of all lines together, for the leader.
  [[nodiscard]] std::size_t bytes() const noexcept;

  // Says that this worker reads no further, and why; or that it does again.
  void rest(FeedRest rest) const noexcept;

  // For the leader: waits for those who want the batches of the key.
  void gather(std::uint64_t key, const FeedTaker& taker);
  [[nodiscard]] std::vector<FeedWriter>& writers() noexcept { return writers_; }
  // How long a writer may hold the leader up; with which the leader gives one up that it has waited for in vain.
  [[nodiscard]] FeedPatience patience_with(std::size_t writer, const FeedTaker& taker) const noexcept;
  void give_up(std::size_t writer, const FeedPatience& patience) noexcept;
  void end_session() noexcept;

  // For the others: their line, once the leader serves this one. nullptr if it does not.
  [[nodiscard]] FeedReader* join(std::uint64_t key, std::size_t rank, const FeedTaker& taker);
  // How long the leader may hold this worker up; with which it gives it up if it has waited in vain.
  [[nodiscard]] FeedPatience patience_with_leader(const FeedTaker& taker) const noexcept;
  void give_up_leader(const FeedPatience& patience) noexcept;
  // was_fed: to the end, or for as long as was wanted.
  void leave(bool was_fed) noexcept;

  // Says that this worker reads by itself what comes after so many samples of the epoch.
  void go_alone(std::uint64_t consumed) noexcept;
  // What go_alone() has said since begin_epoch(). Both may be called by another thread.
  [[nodiscard]] std::uint64_t alone_from() const noexcept;
  void begin_epoch() noexcept;

  static constexpr std::uint64_t never = ~std::uint64_t{0};

  // How long one message may hold this worker up, of what is divided.
  [[nodiscard]] FeedPatience patience(const FeedTaker& taker) const noexcept;

 private:
  [[nodiscard]] bool find_leader(const FeedTaker& taker, const Deadline& deadline);

  Seat seat_;
  std::vector<FeedTrust> trust_;  // of the leader in each reader; of a reader in the leader
  std::optional<FeedMemory> memory_;
  std::vector<FeedWriter> writers_;  // of the leader
  std::optional<FeedReader> reader_;
  std::atomic<std::uint64_t> alone_from_{never};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/stream_batches.hpp
// Takes the samples of one batch after another from a stream. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Gives what one worker has of the batches of a stream.
class StreamBatches {
 public:
  StreamBatches() = default;
  StreamBatches(const StreamBatches&) = delete;
  StreamBatches& operator=(const StreamBatches&) = delete;
  virtual ~StreamBatches() = default;

  // Goes on to the next batch, of all workers, and returns how many samples it has; none at the end.
  [[nodiscard]] virtual std::size_t begin() = 0;
  // Where a stream begins that gives what comes after the batch.
  [[nodiscard]] virtual Place place() const = 0;
  // This worker's samples of a part of the batch, which are these of the whole. Asked for part after part.
  [[nodiscard]] virtual Block take(Range range) = 0;
  // Gives the memory of the batch back.
  virtual void end() noexcept = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/fed_batches.hpp
// Batches of a stream that one worker of a host reads for all of them. Data room.

// ---- railyard/data/detail/batch_plan.hpp
// Cuts an epoch into batches and each of them among the workers. Data room.

namespace railyard::inline v0_1 {
namespace detail {

// Says what is to be computed for each step of one worker.
class BatchPlan {
 public:
  // What is known of a step before it has been computed.
  struct Outline {
    std::size_t samples = 0;
    std::size_t global_samples = 0;
    bool completes_batch = true;
    EpochPosition after{};
  };

  // feed: where a worker of this host reads for all; nullptr if each reads for itself, as what is indexed is also where
  // the workers divide it.
  BatchPlan(const Dataset& dataset, const EpochOptions& options, const Scope& scope, EpochPosition position,
            HostFeed* feed, const FeedTaker& taker);

  // The next step, or nothing after the last one.
  [[nodiscard]] std::optional<std::pair<Work, Outline>> next();

 private:
  void open_stream(HostFeed* feed, std::uint64_t key, const FeedTaker& taker);

  // Goes on to the next batch. False at the end of the epoch.
  bool begin_batch();

  // The computation of samples of the batch, which count from its begin.
  [[nodiscard]] Work work_for(Range range) const;

  EpochOptions options_;
  Scope scope_;
  OperationChain chain_;    // the operations that are done for this worker's samples alone
  EpochPosition position_;  // after the last whole batch
  EpochPosition end_{};     // of the batch
  bool is_indexed_;
  std::uint64_t count_ = 0;                  // if indexed
  std::optional<Permutation> order_;       // if indexed and shuffled
  std::unique_ptr<StreamBatches> stream_;  // if not indexed, or read with others
  std::size_t size_ = 0;                     // of the batch
  std::size_t num_parts_ = 0;
  std::size_t part_ = 0;  // that is planned next
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/epoch_reader.hpp
// Goes over one epoch of a dataset in batches, of which each worker reads its part. Data room.

#include <iterator>

namespace railyard::inline v0_1 {

/// Is one worker's part of a batch, or of a micro-batch.
struct EpochStep {
  Block block{};
  std::size_t samples = 0;         ///< of the block that count: all, or 0 where one stands in
  std::size_t global_samples = 0;  ///< of all workers together
  bool completes_batch = true;     ///< false while more micro-batches follow
  /// What has been consumed when this batch has: until its last micro-batch, what had been before it.
  EpochPosition after{};
  /// What a loader has had made of the block.
  std::shared_ptr<void> made{};
};

namespace detail {

// Is what a loader has made of a block, in memory beside it.
struct MadeOfBlock {
  std::shared_ptr<void> what{};
  std::size_t bytes = 0;
};

// What a loader asks of a reader beyond the options.
struct LoaderWishes {
  // Through which the workers of this host share the reading of a stream.
  std::shared_ptr<HostFeed> feed{};
  // Called for block after block on the thread that reads ahead, or in next() where there is none.
  std::function<MadeOfBlock(const Block&)> make{};
};

// Computes the steps of an epoch, on a thread of its own if there are any. Whoever has it gives it back by leave().
class EpochDriver {
 public:
  struct Ready {
    EpochStep step{};
    MemoryShare share{};
  };

  EpochDriver(const Dataset& dataset, const EpochOptions& options, LoaderWishes wishes);
  EpochDriver(const EpochDriver&) = delete;
  EpochDriver& operator=(const EpochDriver&) = delete;
  ~EpochDriver();

  // Ends it. Where the last deadline has passed, what it waits for may never return: then another thread waits for its
  // end, so that the error reaches whoever can tell of it.
  static void leave(std::unique_ptr<EpochDriver> driver) noexcept;

  [[nodiscard]] std::optional<Ready> next(const Deadline& deadline);
  // Where the epoch begins.
  [[nodiscard]] const EpochPosition& begin() const noexcept { return begin_; }
  [[nodiscard]] std::size_t used_bytes() const noexcept;
  // Whether the last deadline has passed, so that another thread will wait for its end.
  [[nodiscard]] bool is_late() const noexcept { return is_late_; }

 private:
  void start();
  void ask_to_stop() noexcept;
  void drive() noexcept;
  void tell(FeedRest rest) const noexcept;
  [[nodiscard]] FeedRest reason_to_rest() const noexcept;
  // One step is computed while the caller has another, if there is memory for both; else when the caller waits for it.
  [[nodiscard]] bool has_room_below(std::size_t batches) const noexcept;
  std::optional<Ready> compute();
  std::optional<Ready> wait_for_ready(const Deadline& deadline);

  Dataset dataset_;
  EpochOptions options_;
  LoaderWishes wishes_;
  FeedTaker taker_{};
  EpochPosition begin_;
  MemoryBudget budget_;
  TaskPool pool_;
  std::optional<BatchPlan> plan_;
  std::deque<BatchPlan::Outline> outlines_;  // of the steps that are being computed
  std::optional<OrderedStage> stage_;
  bool is_late_ = false;  // the last deadline has passed

  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Ready> ready_;
  std::size_t largest_ = 0;  // bytes of a step
  bool is_resting_ = false;  // the thread, until there is room for several steps
  bool is_over_ = false;
  bool is_stopping_ = false;
  std::exception_ptr failure_{};
  std::thread thread_{};
};

// Opens the dataset: what that throws belongs to the first step.

// Computes the next step. What was thrown once is thrown again: nothing goes on after it.

// Fills the queue of what is ready, on a thread of its own that helps the pool while it waits. When there is no room,
// it rests until half of it has been taken: to be woken for each step would cost the loop more than the step is worth.

}  // namespace detail

/// Goes over one epoch of a dataset for one worker. The order of the samples is a function of seed and epoch; the
/// workers divide each batch in parts whose sizes differ by at most one, and the last batch may be smaller, so that
/// each sample comes exactly once. What comes in which order is the same for any number of threads, which end with the
/// reader. Example: for (ry::EpochStep& step : ry::EpochReader{dataset, {.global_batch_size = 64}}) use(step.block);
class EpochReader {
 public:
  /// Throws: ConfigError if the options cannot be met, or go on from another dataset or order. Reading begins here
  /// where there are threads, which are none that the scheduler hurries: they do not push the loop off its core.
  EpochReader(const Dataset& dataset, const EpochOptions& options, detail::LoaderWishes wishes = {});
  EpochReader(const EpochReader&) = delete;
  EpochReader& operator=(const EpochReader&) = delete;
  ~EpochReader();

  /// Returns the next step, or nothing after the last. Throws: what the source threw, or a DataError that names the
  /// operation and the sample where a user's function did, or one when the deadline passes; without threads, whose work
  /// is done here, there is none. A function that has not returned by then is left behind when the reader ends: it may
  /// use what it has, and nothing that ends with the caller.
  [[nodiscard]] std::optional<EpochStep> next(const Deadline& deadline = Deadline::never());

  /// Goes over the steps that are left.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = EpochStep;
    using pointer = EpochStep*;
    using reference = EpochStep&;

    explicit Iterator(EpochReader& reader);
    [[nodiscard]] EpochStep& operator*() noexcept;
    [[nodiscard]] EpochStep* operator->() noexcept;
    Iterator& operator++();
    void operator++(int);
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return !iterator.step_;
    }

   private:
    EpochReader* reader_;
    std::optional<EpochStep> step_;
  };
  [[nodiscard]] Iterator begin();
  [[nodiscard]] static std::default_sentinel_t end() noexcept;

  /// What has been consumed when the steps given so far have.
  [[nodiscard]] const EpochPosition& position() const noexcept { return position_; }
  /// Bytes of all samples under way, as they are counted against the bound.
  [[nodiscard]] std::size_t used_bytes() const noexcept;
  /// Whether the last step did not come before its deadline: what reads may then live on after the reader.
  [[nodiscard]] bool is_late() const noexcept;

 private:
  std::unique_ptr<detail::EpochDriver> driver_;
  EpochPosition position_;
  detail::MemoryShare given_{};  // of the block that the caller has
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/read_csv.hpp
// The short way to a dataset of CSV files. Data room.

namespace railyard::inline v0_1 {

/// Makes a dataset of CSV files, by path, list or pattern; see CsvSource. The first rows decide on the types of
/// columns. Throws: DataError if the first file cannot be read or has no columns; ConfigError that lists the columns if
/// the label is none of them. Example: auto digits = ry::read_csv("digits.csv", {.label = "digit"});
[[nodiscard]] Dataset read_csv(InputFiles files, CsvSourceOptions options = {});

}  // namespace railyard::inline v0_1

// ---- railyard/data/split.hpp
// Divides a dataset into parts such as a training and a test set. Data room.

namespace railyard::inline v0_1 {

namespace detail {

template <std::size_t N>
[[nodiscard]] std::array<Dataset, N> as_array(const std::vector<Dataset>& parts) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return std::array<Dataset, N>{parts[I]...}; }
  (std::make_index_sequence<N>{});
}

}  // namespace detail

/// Divides the samples at random into one part per fraction. Each lies in exactly one part; in which is a function of
/// the seed and the number of samples only. Of a stream it is a function of the seed and the sample's id, and the sizes
/// of the parts only come near the fractions. Cost: 8 bytes per sample if the dataset is indexed; each part of a stream
/// reads all of it. Throws: ConfigError if a fraction is not above 0, if they do not sum to 1, if a part would be
/// empty, or if the dataset has been shuffled or has no end.
[[nodiscard]] std::vector<Dataset> split(const Dataset& dataset, const std::vector<double>& fractions,
                                                std::uint64_t seed = 0);

/// Does the same for a list of fractions written out, so that the parts can be named.
/// Example: const auto [training, test] = ry::split(dataset, {0.8, 0.2}, 1);
template <std::size_t N>
[[nodiscard]] std::array<Dataset, N> split(const Dataset& dataset, const double (&fractions)[N],
                                           std::uint64_t seed = 0) {
  return detail::as_array<N>(split(dataset, std::vector<double>(fractions, fractions + N), seed));
}

/// Divides the samples so that each value of a column is divided by the fractions, to a sample: for classes of which
/// some are rare. Cost: reads the column. Throws: as split() does, and ConfigError if the dataset is not indexed.
[[nodiscard]] std::vector<Dataset> split_stratified(const Dataset& dataset, std::string_view column,
                                                           const std::vector<double>& fractions,
                                                           std::uint64_t seed = 0);

/// Does the same for a list of fractions written out, so that the parts can be named.
template <std::size_t N>
[[nodiscard]] std::array<Dataset, N> split_stratified(const Dataset& dataset, std::string_view column,
                                                      const double (&fractions)[N], std::uint64_t seed = 0) {
  return detail::as_array<N>(split_stratified(dataset, column, std::vector<double>(fractions, fractions + N), seed));
}

}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/message_ring.hpp
// A ring of bytes in shared memory that carries one worker's messages to its supervisor. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Wakes the supervisor, but only while it sleeps: a stream of messages costs one system call per nap, not per message.
struct Bell {
  std::atomic<std::uint32_t> armed{0};

  void ring_if_armed(int event_fd) noexcept;
  static void ring(int event_fd) noexcept;
};

/// Says what a record of the ring is. skip: nothing, up to the ring's beginning.
enum class RecordKind : std::uint32_t { message, exit, skip };

/// Holds the ring's positions, which only grow. Whoever dies in the middle of a write has not moved head: the record
/// is absent, and everything before it is there.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> head{0};  ///< written by the worker
  alignas(64) std::atomic<std::uint64_t> tail{0};  ///< written by the supervisor
  alignas(64) std::atomic<std::uint32_t> writer_waits{0};
};

struct Record {
  RecordKind kind = RecordKind::message;
  std::vector<std::byte> bytes{};
};

/// Views a ring. One thread writes at a time and one thread reads.
class MessageRing {
 public:
  MessageRing(RingState& state, std::byte* bytes) noexcept;

  /// Appends a record, or returns false if there is no room.
  [[nodiscard]] bool try_write(RecordKind kind, std::span<const std::byte> payload) noexcept;

  /// Sleeps until the reader has taken something, for at most the given time. The reader must have been told before.
  void wait_for_room(std::size_t payload_bytes, std::chrono::nanoseconds at_most) noexcept;

  /// Takes the oldest record, if there is one.
  [[nodiscard]] std::optional<Record> read();

  [[nodiscard]] bool has_records() const noexcept;

 private:
  struct Header {
    std::uint32_t size = 0;
    RecordKind kind = RecordKind::message;
  };
  static constexpr std::uint64_t rewind_above = 32U << 10U;

  static constexpr std::uint64_t room_of(std::size_t payload) noexcept {
    return (sizeof(Header) + payload + 7U) / 8U * 8U;
  }

  // Headers are aligned to 8 bytes and never wrap.
  void put(std::uint64_t at, Header header) noexcept;
  [[nodiscard]] Header header_at(std::uint64_t at) const noexcept;

  void copy_in(std::uint64_t at, std::span<const std::byte> payload) noexcept;
  void copy_out(std::uint64_t at, std::span<std::byte> payload) const noexcept;

  void release(std::uint64_t tail) noexcept;

  RingState* state_;
  std::byte* bytes_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/shared_store.hpp
// A table of small values in shared memory that needs no lock, so that nobody can die while holding it. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Lies in shared memory, all zero at first. A record is written in full before one compare-and-swap makes its slot
/// point to it; whoever dies before that leaves nothing but unused bytes.
struct StoreBlock {
  static constexpr std::size_t num_slots = 1U << 14U;
  static constexpr std::size_t num_bytes = 16U << 20U;

  std::atomic<std::uint32_t> changes{0};       ///< a futex: moves with every new value
  std::atomic<std::uint64_t> used{64};         ///< bytes given out so far; offset 0 means an empty slot
  std::array<std::uint32_t, num_slots> slots;  ///< atomic; not set to zero once more, for its pages cost time
};

/// Sets and finds values in a StoreBlock.
class SharedTable {
 public:
  SharedTable(StoreBlock& block, std::byte* bytes) noexcept;

  /// Throws: KeyTakenError; Error if the table is full.
  void set(std::string_view key, std::string_view value);

  [[nodiscard]] std::optional<std::string> find(std::string_view key) const;

  /// Returns the count of changes to hand to wait(); read it before looking for what may be missing.
  [[nodiscard]] std::uint32_t changes() const noexcept;
  /// Waits for a change since then. What comes at once is not slept for: to be woken up takes as long.
  void wait(std::uint32_t changes_seen, std::chrono::nanoseconds at_most) const noexcept;
  void wake_all() noexcept;

 private:
  static constexpr std::chrono::microseconds look_time{50};

  struct Header {
    std::uint32_t key_size = 0;
    std::uint32_t value_size = 0;
  };

  // FNV-1a: std::hash may differ between two shared libraries that look at one table.
  static std::size_t hash_of(std::string_view key) noexcept;

  std::uint32_t write_record(std::string_view key, std::string_view value);

  [[nodiscard]] std::atomic_ref<std::uint32_t> slot_at(std::size_t slot) const noexcept;
  [[nodiscard]] Header header_at(std::uint32_t offset) const noexcept;
  [[nodiscard]] std::string_view key_at(std::uint32_t offset) const noexcept;
  [[nodiscard]] std::string_view value_at(std::uint32_t offset) const noexcept;

  StoreBlock* block_;
  std::byte* bytes_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/snapshot_memory.hpp
// Memory that a worker fills and that outlives it: the supervisor holds it as well. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Owns an anonymous file and this process's mapping of it. What a process maps is its own affair.
class SnapshotMemory {
 public:
  SnapshotMemory() = default;
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;
  ~SnapshotMemory();

  /// Makes the file, which the first map() does otherwise: before any fork, so that every process has it.
  void make_file();

  /// How much there is of it. May be called while another thread maps it.
  [[nodiscard]] std::size_t size() const noexcept;

  /// Returns the first size_bytes of it, which grows if need be and never shrinks: it is to be warm the next time.
  /// Throws: Error if the system does not give that much.
  [[nodiscard]] std::span<std::byte> map(std::size_t size_bytes);

 private:
  void map_anew(std::size_t size_bytes);

  // In pieces, so that it comes to an end although signals interrupt it.
  void grow(std::size_t from, std::size_t size_bytes) const;

  [[noreturn]] static void refuse(std::size_t size_bytes);

  void unmap() noexcept;

  Descriptor file_;
  std::atomic<int> number_of_file_{-1};
  std::span<std::byte> mapped_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/group_memory.hpp
// The memory that the workers of one group and their supervisor share. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

// The memory of these blocks is all zero when they are made. Their large arrays are left as they are then: each page
// that is touched costs a microsecond of the start.

/// Is shared by one worker and the supervisor.
struct alignas(64) RankBlock {
  WorkerPage page{};
  alignas(64) std::atomic<std::uint32_t> agent{0};  ///< a futex: moves when the worker's agent has to look
  std::atomic<std::uint64_t> heartbeat{0};
  std::atomic<std::uint32_t> life{0};           ///< a futex, which the kernel marks when the worker dies: see DeathMark
  std::atomic<std::uint32_t> stacks_wanted{0};  ///< counts how often the worker was asked for its stack
  std::atomic<std::uint32_t> stacks_told{0};    ///< a futex: which of these questions it has answered
  RingState ring{};
  std::uint32_t stack_size = 0;
  char stack[8192];

  [[nodiscard]] static bool is_death(std::uint32_t life) noexcept;
};

/// Says whose a rank's snapshots are. Futexes; beside what a restart forgets.
struct alignas(64) SnapshotOwners {
  static constexpr std::uint32_t nobody = 0;
  static constexpr std::uint32_t worker = 1;
  static constexpr std::uint32_t supervisor = 2;
  std::array<std::atomic<std::uint32_t>, num_snapshot_slots> slots{};
};

/// Is shared by all workers and the supervisor. The reason is written before `aborted` and never changes after.
struct GroupBlock {
  alignas(64) Bell bell{};
  alignas(64) std::atomic<bool> aborted{false};
  std::atomic<bool> closed{false};  ///< nobody reads messages any more
  int num_workers = 0;
  std::uint32_t reason_size = 0;
  std::uint32_t briefing_size = 0;
  char briefing[max_briefing_bytes];
  char reason[4096];
  StoreBlock store;
};

/// Says who uses the memory of a group: what processes are to have in common must be there before they are.
enum class SharedBy { threads, processes };

/// Owns the mapping. Its pages cost nothing until they are touched; it is made before any fork, so that every process
/// has it at the same address, and it disappears with the last of them.
class GroupMemory {
 public:
  /// most_workers: how many there may be after a restart, if those are more.
  explicit GroupMemory(int num_workers, std::string_view briefing = {}, int most_workers = 0,
                       SharedBy users = SharedBy::processes);
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;
  ~GroupMemory();

  /// Forgets everything but the snapshots that the supervisor holds, for so many workers, at most as many as it was
  /// made for. Nobody else may be using the memory, but for those who give snapshots back.
  void reset(int num_workers, std::string_view briefing);

  [[nodiscard]] SharedBy users() const noexcept;
  [[nodiscard]] int num_workers() const noexcept;
  /// The most that there can be.
  [[nodiscard]] int capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::string_view briefing() const noexcept;
  /// The memory of a snapshot, at least so large. Belongs to the worker or to the supervisor, never to both.
  [[nodiscard]] std::span<std::byte> snapshot(int of_rank, int slot, std::size_t size_bytes);
  /// The same for the supervisor, who reads it. Throws: Error if the snapshot is nobody's, as in memory that is new.
  [[nodiscard]] std::span<const std::byte> filled_snapshot(int of_rank, int slot, std::size_t size_bytes);
  /// How much memory there is already for snapshots of the kind, of all workers together, if each is to be so large.
  [[nodiscard]] std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept;
  [[nodiscard]] std::atomic<std::uint32_t>& owner(int of_rank, int slot) const noexcept;
  void hold_snapshot(int of_rank, int slot) const noexcept;
  void release_snapshot(int of_rank, int slot) const noexcept;

  [[nodiscard]] GroupBlock& group() const noexcept;
  [[nodiscard]] RankBlock& rank(int rank) const noexcept;
  [[nodiscard]] MessageRing ring(int of_rank) const noexcept;
  [[nodiscard]] SharedTable store() const noexcept;

  [[nodiscard]] bool is_aborted() const noexcept;
  [[nodiscard]] std::string_view reason() const noexcept;

  void request_stop() noexcept;

  void request_resize() noexcept;

  void request_leave() noexcept;

  /// Makes every wait of every worker that goes through this memory end. Only the first reason counts.
  void abort(std::string_view reason) noexcept;

 private:
  static void check(std::string_view briefing);

  void begin(int num_workers, std::string_view briefing);

  static constexpr std::size_t page_up(std::size_t size) noexcept { return (size + 4095U) / 4096U * 4096U; }
  static constexpr std::size_t rank_offset(int rank) noexcept {
    return page_up(sizeof(GroupBlock)) + static_cast<std::size_t>(rank) * sizeof(RankBlock);
  }
  [[nodiscard]] std::size_t rings_offset() const noexcept;
  [[nodiscard]] std::size_t store_offset() const noexcept;
  [[nodiscard]] std::size_t owners_offset(int rank) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] SnapshotOwners& owners(int rank) const noexcept;
  [[nodiscard]] std::byte* bytes_at(std::size_t offset) const noexcept;

  SharedBy users_;
  int capacity_;
  void* base_ = nullptr;
  std::vector<SnapshotMemory> snapshots_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/death_watch.hpp
// How a supervisor hears that a worker is dying before it is gone. Workers room.
//
// A process that has gigabytes mapped takes tens of milliseconds to end, and only then do its parent and whoever holds
// its pidfd or a pipe of it learn of it. What the kernel does first of all when a thread ends is to look through its
// list of robust futexes: so each worker's first thread holds one, and the supervisor sleeps on it.

#include <time.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns a thread that sleeps until a worker that has not taken its mark back begins to die. Where the kernel cannot
/// wait for several words at once (before 5.16), or a filter does not let it, it does nothing.
class DeathWatch {
 public:
  /// event_fd: rings then. Both must outlive it.
  DeathWatch(const GroupMemory& memory, int event_fd);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  ~DeathWatch();

  [[nodiscard]] static bool is_possible() noexcept;

 private:
#if defined(SYS_futex_waitv)
  static constexpr int most_workers = FUTEX_WAITV_MAX - 1;

  // Allocates nothing and holds no lock.
  void run() noexcept;
#else
  static constexpr int most_workers = 0;
  void run() noexcept {}
#endif

  const GroupMemory* memory_;
  int event_fd_;
  std::atomic<std::uint32_t> is_over_{0};
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/exit_reason.hpp
// Says in words why a process has ended or does not answer. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Counts kills by the kernel's out-of-memory killer, in this process's memory cgroup if that can be seen (version 2,
/// then 1), and on the whole system otherwise.
class OomCounter {
 public:
  OomCounter();
  explicit OomCounter(std::string path);

  /// Has the counter moved since this object was made?
  [[nodiscard]] bool has_moved() const;
  [[nodiscard]] bool is_of_cgroup() const noexcept { return path_ != system_path; }

 private:
  static constexpr std::string_view system_path = "/proc/vmstat";

  static std::string find_path();
  [[nodiscard]] std::uint64_t count() const;

  std::string path_;
  std::uint64_t before_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/library_locks.hpp
// Takes the locks of the C and C++ libraries that a fork does not free. Workers room.

#include <locale>

#include <dlfcn.h>
#include <grp.h>
#include <iconv.h>
#include <libintl.h>
#include <link.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nss.h>
#include <pwd.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <syslog.h>

// ---- railyard/core/detail/asked_child.hpp
// Asks a question in a process that is thrown away, for what it would leave behind in this one. Core room.

#include <sys/prctl.h>
#include <sys/wait.h>

// ---- railyard/workers/detail/held_locks.hpp
// Finds out whether a fork has kept locks of the C and C++ libraries that another thread held. Workers room.

// ---- railyard/workers/detail/signal_watch.hpp
// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 for as long as it lives, and passes them on to whoever had them before.
// Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is the one list of listeners per shared library: a signal handler has no argument that could lead to them. A second
/// library with hidden visibility has its own list and chains to this one like to any other handler.
struct SignalRegistry {
  std::mutex mutex{};
  std::array<std::atomic<int>, 64> listeners{};  ///< descriptors plus one, 0 where there is none
  std::atomic<int> inside{0};                    ///< handlers that run right now
  /// What was found, by signal. A handler may still be reading an older one, so all that were ever found are kept; the
  /// same one is found again and again.
  std::array<std::atomic<const struct sigaction*>, caught_signals.size()> previous{};
  std::vector<std::unique_ptr<const struct sigaction>> found{};
  std::array<bool, caught_signals.size()> is_chained{};
  int num_listeners = 0;
};

/// Hears the signals of the process from its making to its end. Several may live at once, each hears every signal.
/// What was ignored stays ignored; a handler of the user's is called as well; what was found is put back, unless
/// somebody has replaced it in the meantime.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  /// Becomes readable when a signal has come.
  [[nodiscard]] int fd() const noexcept;
  [[nodiscard]] std::optional<int> take() const noexcept;

  /// In a process that has just been forked: the handlers that were ours go back to the default.
  void forget_in_child() noexcept;

 private:
  static bool is_ours(const struct sigaction& action) noexcept;
  static bool is_plain(const struct sigaction& action, void (*handler)(int)) noexcept;

  static bool is_same(const struct sigaction& left, const struct sigaction& right) noexcept;

  static const struct sigaction* keep(SignalRegistry& registry, const struct sigaction& action);

  static void install(SignalRegistry& registry);

  static void put_back(SignalRegistry& registry) noexcept;

  Descriptor reader_;
  Descriptor writer_;
  std::size_t slot_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/stack_teller.hpp
// Tells which calls another thread of this process is in. Workers room.

#include <execinfo.h>
#include <pthread.h>

// ---- railyard/workers/detail/worker_link.hpp
// The worker's end of the shared memory, for threads and processes alike. Workers room.

// ---- railyard/workers/detail/inbox.hpp
// The supervisor's end of the shared memory: collects messages, exits and signals into a queue. Workers room.

#include <sys/eventfd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Gathers what the workers post and what signals come, until the group's owner takes it.
class Inbox {
 public:
  explicit Inbox(GroupMemory& memory);

  [[nodiscard]] int event_fd() const noexcept;
  [[nodiscard]] bool has_events() const noexcept;
  void push(GroupEvent event);

  [[nodiscard]] std::optional<GroupEvent> pop();

  /// Takes what the rank has posted so far. Bounded by what its ring holds, so that one rank cannot keep the
  /// supervisor busy for ever.
  void drain(int rank);
  void drain_all();

  /// In a process that has just been forked: lets go of what only the supervisor needs. Workers keep event_fd().
  void forget_in_child() noexcept;

  /// Forgets what the workers have posted, for new ones begin. Signals stay.
  void reset();

  /// Looks for signals without waiting, and returns one if one has come.
  [[nodiscard]] std::optional<GroupEvent> pop_signal();

  /// How the rank says that it ended; nothing if it has not said.
  [[nodiscard]] const std::optional<WorkerExit>& exit_of_rank(int rank) const;

  /// Sleeps until something has been posted, a signal has come, or one of `others` is ready; at most the given time.
  /// Signals become events.
  void wait(std::vector<pollfd>& others, std::chrono::nanoseconds at_most);

 private:
  [[nodiscard]] bool has_records() const noexcept;

  GroupMemory* memory_;
  Descriptor event_;
  SignalWatch signals_;
  std::deque<GroupEvent> events_;
  std::vector<std::optional<WorkerExit>> exits_;
  bool had_messages_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/line_splitter.hpp
// Cuts a stream of bytes into whole lines. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps the beginning of a line until its end comes. A line longer than max_bytes is handed on in pieces of that size,
/// so that output without line feeds cannot fill the memory.
class LineSplitter {
 public:
  static constexpr std::size_t max_bytes = 64U << 10U;

  /// Calls sink with every line that is complete now, without its line feed.
  template <class Sink>
  void append(std::string_view bytes, Sink&& sink) {
    while (!bytes.empty()) {
      const std::size_t room = max_bytes - partial_.size();
      const std::size_t end = bytes.substr(0, room + 1).find('\n');
      const std::size_t taken = end != std::string_view::npos ? end : std::min(room, bytes.size());
      partial_.append(bytes.substr(0, taken));
      bytes.remove_prefix(end != std::string_view::npos ? taken + 1 : taken);
      const bool is_cut = end == std::string_view::npos && !bytes.empty();
      if (end != std::string_view::npos || is_cut) sink(std::exchange(partial_, {}));
    }
  }

  /// Calls sink with the last line if it has no line feed.
  template <class Sink>
  void finish(Sink&& sink) {
    if (!partial_.empty()) sink(std::exchange(partial_, {}));
  }

 private:
  std::string partial_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/silence_watch.hpp
// Notices workers whose heartbeat has stopped. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Counts for every rank for how long its heartbeat has stood still while somebody was looking. Time in which nobody
/// looked, because this process was stopped or the machine asleep, does not count: the workers slept as well.
class SilenceWatch {
 public:
  SilenceWatch(int num_workers, std::chrono::nanoseconds limit, std::int64_t now_ns);

  /// How often to look: often enough to be late by an eighth of the limit at most.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;
  /// How long until it is time to look.
  [[nodiscard]] std::chrono::nanoseconds until_look(std::int64_t now_ns) const noexcept;

  /// Looks at all heartbeats. heartbeat(rank) returns the count. silent(rank, quiet) is called once for each rank that
  /// has been quiet for longer than the limit.
  template <class Heartbeat, class Silent>
  void look(std::int64_t now_ns, Heartbeat&& heartbeat, Silent&& silent) {
    const std::int64_t watched_ns = std::min(now_ns - looked_ns_, 2 * interval().count());
    looked_ns_ = now_ns;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Seen& seen = ranks_[rank];
      const std::uint64_t count = heartbeat(static_cast<int>(rank));
      if (count != seen.heartbeat) {
        seen.heartbeat = count;
        seen.quiet_ns = 0;
        continue;
      }
      seen.quiet_ns += watched_ns;
      if (seen.quiet_ns <= limit_ns_ || seen.is_reported) continue;
      seen.is_reported = true;
      silent(static_cast<int>(rank), std::chrono::nanoseconds{seen.quiet_ns});
    }
  }

 private:
  struct Seen {
    std::uint64_t heartbeat = 0;
    std::int64_t quiet_ns = 0;
    bool is_reported = false;
  };
  std::vector<Seen> ranks_;
  std::int64_t limit_ns_;
  std::int64_t looked_ns_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/channel.hpp
// Packets between the supervisor and the process that starts workers, descriptors included. Workers room.

#include <sys/types.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one end of a pair of sockets that keep packets whole.
class Channel {
 public:
  explicit Channel(Descriptor socket) noexcept;

  [[nodiscard]] static std::pair<Channel, Channel> make_pair();

  [[nodiscard]] int fd() const noexcept;
  void close() noexcept;

  /// Returns false if the other end is gone.
  template <class Packet>
  [[nodiscard]] bool send(const Packet& packet, std::span<const int> fds = {}) noexcept {
    Packet copy = packet;
    iovec part{.iov_base = &copy, .iov_len = sizeof copy};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(max_fds * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(sizeof copy);
  }

  enum class Outcome : std::uint8_t { packet, nothing, closed };

  /// Takes one packet with its descriptors. flags: MSG_DONTWAIT to return at once.
  template <class Packet>
  [[nodiscard]] Outcome receive(Packet& packet, std::vector<Descriptor>& fds, int flags) {
    iovec part{.iov_base = &packet, .iov_len = sizeof packet};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(max_fds * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t got = 0;
    do {
      got = ::recvmsg(socket_.get(), &message, flags | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::nothing;
    if (got != static_cast<ssize_t>(sizeof packet)) return Outcome::closed;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t at = 0; at < count; ++at) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + at * sizeof fd, sizeof fd);
        fds.push_back(adopt(fd, "a descriptor from another process"));
      }
    }
    return Outcome::packet;
  }

 private:
  static constexpr std::size_t max_fds = 4;
  Descriptor socket_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/worker_process.hpp
// What a forked worker does from its first to its last instruction. Workers room.

#include <iostream>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds all that a worker needs and that is the same for every rank.
struct WorkerSetup {
  GroupMemory* memory = nullptr;
  const WorkerBody* body = nullptr;
  int event_fd = -1;
  std::string host{};
  std::chrono::nanoseconds heartbeat{};
  sigset_t signal_mask{};            ///< the supervisor's
  struct sigaction child_action {};  ///< the supervisor's, of SIGCHLD
  bool flushes_all = true;           ///< is it safe to flush every stdio stream?
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/zygote.hpp
// The single-threaded process that forks, watches and ends the workers on behalf of the supervisor. Workers room.

#include <sys/signalfd.h>

// ---- railyard/core/detail/dynamic_library.hpp
// A library that is found when the program runs, and its functions. Core room.

// ---- railyard/core/detail/cuda_driver.hpp
// Whether this process has initialised CUDA, and how many devices its driver counts. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Throws: ConfigError if this process has initialised CUDA, so that no child of it can use it.
void refuse_to_fork_after_cuda();

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/processes.hpp
// Workers that are forked processes of this host: captures just work, and a crash stays where it happens. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is the group of Processes.
class ProcessGroup final : public WorkerGroup {
 public:
  ProcessGroup(const GroupPlan& plan, const WorkerBody& body);

  ~ProcessGroup() override;

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override;

  /// Makes next() return early, and perhaps without an event, whenever that descriptor can be read from.
  void watch_also(int descriptor) noexcept;

  void request_stop() override;
  void request_leave() override;
  void request_resize() override;
  void abort(std::string_view reason) override;

  void kill() override;

  void die_together(bool they_do) override;

  [[nodiscard]] bool can_kill() const noexcept override { return true; }

  [[nodiscard]] const WorkerPage& page(int rank) const override;

  [[nodiscard]] std::vector<std::string> stacks(const Deadline& deadline) override;

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override;
  /// For whoever reads snapshots, and may do so for longer than the group lives.
  [[nodiscard]] std::shared_ptr<GroupMemory> memory() const noexcept;
  void hold_snapshot(int rank, int slot) noexcept override;
  void release_snapshot(int rank, int slot) noexcept override;
  [[nodiscard]] bool shares_snapshots() const noexcept override { return true; }

  void restart(int num_workers, std::string_view briefing) override;

  [[nodiscard]] bool forks_to_restart() const override;

 private:
  struct Stream {
    Descriptor reader{};
    LineSplitter lines{};
  };
  struct Process {
    pid_t pid = 0;
    Descriptor pidfd{};
    Stream out{};
    Stream err{};
    bool is_over = false;
    bool is_first_to_die = false;  // and has taken the others along
  };

  // Lets the other threads of this process rest while it lives: in this process alone, for the forked one never
  // returns.
  class Rest {
   public:
    explicit Rest(const std::function<void(bool)>& on_fork);
    Rest(const Rest&) = delete;
    Rest& operator=(const Rest&) = delete;
    ~Rest();

   private:
    const std::function<void(bool)>* on_fork_;
  };

  // A lock that another thread holds at the moment of the fork would stay held in the zygote and in all workers, for
  // the thread that could give it back is not there. malloc and stdio see to their own; of other locks of the
  // libraries, such as those of setenv(), localtime() and getpwnam(), only a further try gets rid.
  void fork_zygote();

  // Has the zygote prove it. One that does not answer has met such a lock itself.
  [[nodiscard]] bool is_free_of_locks(std::chrono::nanoseconds patience);

  void fork_once();

  void start_workers();

  void spawn_all();

  void ask_for(int rank);

  // Returns 1 for a worker that has been made, 0 for the news that one has already ended.
  int await_answer();

  [[noreturn]] static void throw_lost();

  // Returns whether it was the answer to a request for a worker. Throws: Error if that could not be made.
  bool take_reply();

  void collect(std::chrono::nanoseconds at_most);

  // Two for the zygote, the one to be watched also, then three for every rank; poll passes over negative ones.
  [[nodiscard]] std::vector<pollfd> descriptors() const;

  static bool is_readable(int fd) noexcept;

  // Reads once and returns how much; at the end of the stream, lets go of it.
  std::size_t read_output(int rank, bool is_error);

  // Takes what was in the pipe when the worker ended and no more: a child of it may hold the other end and go on
  // writing.
  void finish_output(int rank, bool is_error);

  void finish(int rank, WorkerExit exit);

  [[nodiscard]] WorkerExit exit_of_status(int rank, int status) const;

  // Who dies is heard of before it is gone, which takes long where it has much memory.
  void look_for_deaths();

  void look_for_silence();

  // Takes note of the end of a worker that the zygote ought to have told of and has not, most likely because it is
  // stopped. Returns false if the worker lives or has been reaped, or if it is for the zygote to say how it ended.
  bool finish_untold(int rank);

  // Without the zygote the workers die, by the signal they have asked for; their descendants do not, unless they are
  // ended here.
  void lose_zygote();

  static void kill_process(const Process& worker) noexcept;

  void finish_orphan(int rank);

  void end_all() noexcept;

  // Without a zygote, its descendants become children of PID 1 or of a subreaper: perhaps of this process.
  void reap_orphans() const noexcept;

  // Returns whether it has ended, or whether there is no way to know.
  [[nodiscard]] bool wait_for_zygote(std::chrono::nanoseconds at_most) const noexcept;

  [[nodiscard]] Process& at(int rank);

  std::shared_ptr<GroupMemory> owned_memory_;
  GroupMemory& memory_;
  Inbox inbox_;
  WorkerBody body_;
  std::chrono::nanoseconds silence_limit_;
  std::function<void(bool begins)> on_fork_;
  SilenceWatch silence_{0, {}, 0};
  OomCounter oom_;
  WorkerSetup setup_{};
  std::vector<Process> workers_;
  Channel channel_{Descriptor{}};
  pid_t zygote_ = -1;
  Descriptor zygote_fd_;
  int also_watched_ = -1;
  std::size_t num_over_ = 0;
  bool is_zygote_lost_ = false;
  bool is_zygote_deaf_ = false;  // it lives, and does not say which workers have ended
  bool was_killed_ = false;
  bool dies_together_ = false;
  std::optional<DeathWatch> watch_;
};

}  // namespace detail

/// Runs the workers as forked processes of this host. They see everything that the caller has built, as it was when
/// start() was called; what they write to it stays with them. Whoever ends, by whatever cause, nothing is left behind.
class Processes {
 public:
  static constexpr std::string_view name = "Processes";
  static constexpr Reach reach = Reach::host;
  static constexpr bool copies_function = false;

  /// Throws: ConfigError if the plan or the limits of this process do not allow it, Error if the system cannot do it.
  /// Cost: two to three milliseconds per process if LibTorch is loaded.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body);
};

}  // namespace railyard::inline v0_1

// ---- railyard/workers/threads.hpp
// Workers that are threads of this process: the quickest start and no isolation. Workers room.

namespace railyard::inline v0_1 {

/// Runs the workers as threads of this process. A worker that crashes or calls exit() ends the program, and one that
/// does not react when the group has to end makes the program end with status 70.
class Threads {
 public:
  static constexpr std::string_view name = "Threads";
  static constexpr Reach reach = Reach::process;
  static constexpr bool copies_function = true;

  /// Throws: ConfigError if the plan asks for less than one worker or the limits of this process do not allow it, Error
  /// if the system has no more threads.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body);
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/any_callback.hpp
// Holds any callback, so that a list can hold callbacks of different types. Train room.

namespace railyard::inline v0_1 {

namespace detail {

template <class F>
concept ReportFunction = !Callback<F> && std::move_constructible<F> && std::invocable<F&, const Report&>;

}  // namespace detail

/// Holds a Callback, or a function that takes a const Report& and returns nothing or a Next. Copies share one callback.
class AnyCallback {
 public:
  template <class C>
  requires(!std::same_as<std::remove_cvref_t<C>, AnyCallback>) &&
      (Callback<std::decay_t<C>> || detail::ReportFunction<std::decay_t<C>>)AnyCallback(C&& callback)
      : held_(std::make_shared<Holder<std::decay_t<C>>>(std::forward<C>(callback))) {}

  void on_start(const RunInfo& info) const;
  [[nodiscard]] Next on_report(const Report& report) const;
  void on_resize(const Resize& resize) const;
  void on_end(const RunEnd& end) const;

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void on_start(const RunInfo& info) = 0;
    virtual Next on_report(const Report& report) = 0;
    virtual void on_resize(const Resize& resize) = 0;
    virtual void on_end(const RunEnd& end) = 0;
  };

  template <class C>
  struct Holder final : Base {
    template <class From>
    explicit Holder(From&& from) : callback(std::forward<From>(from)) {}

    void on_start([[maybe_unused]] const RunInfo& info) override {
      if constexpr (detail::HearsStart<C>) callback.on_start(info);
    }
    Next on_report([[maybe_unused]] const Report& report) override {
      if constexpr (detail::HearsReport<C>) {
        return ask([&]() -> decltype(auto) { return callback.on_report(report); });
      } else if constexpr (detail::ReportFunction<C>) {
        return ask([&]() -> decltype(auto) { return callback(report); });
      } else {
        return Next::go_on;
      }
    }
    void on_resize([[maybe_unused]] const Resize& resize) override {
      if constexpr (detail::HearsResize<C>) callback.on_resize(resize);
    }
    void on_end([[maybe_unused]] const RunEnd& end) override {
      if constexpr (detail::HearsEnd<C>) callback.on_end(end);
    }

    template <class Call>
    static Next ask(Call call) {
      using Answer = decltype(call());
      static_assert(std::is_void_v<Answer> || std::is_same_v<Answer, Next>,
                    "a callback's on_report returns nothing, or a railyard::Next (go_on, stop)");
      if constexpr (std::is_same_v<Answer, Next>) {
        return call();
      } else {
        call();
        return Next::go_on;
      }
    }

    C callback;
  };

  std::shared_ptr<Base> held_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/checkpoint_config.hpp
// When checkpoints are made, and which are kept. Train room.

namespace railyard::inline v0_1 {

/// Says when checkpoints are made, beside those of worker.report(metrics, state), and which are kept.
struct CheckpointConfig {
  /// How many of the best are kept, and always the newest one; 0 for all.
  int keep = 0;
  /// The metric that tells how good a checkpoint is; if empty, the later the better. One without it, or with NaN, is
  /// worst; the first report with a state that lacks it is warned of.
  std::string score{};
  ScoreOrder order = ScoreOrder::max;  ///< min for a loss
  /// Makes a checkpoint of the TrainState after every so many steps, without metrics; 0 for none of these.
  std::uint64_t every_steps = 0;
  /// Makes one at the end of the first step after so much time since the last one of this kind, by rank 0's clock; 0
  /// for none of these.
  std::chrono::nanoseconds interval{0};
  /// report(metrics, state) returns when the checkpoint is durable; otherwise as soon as the state has been copied.
  bool synchronous = false;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/data_config.hpp
// The datasets of a run, by name, and how they are divided among its workers. Train room.

namespace railyard::inline v0_1 {

/// Is a dataset with the name that workers ask for it by.
struct NamedDataset {
  std::string name{};
  Dataset dataset;
};

/// Lists the datasets of a run. Example: ry::Datasets{{"train", training_set}, {"validation", validation_set}}
class Datasets {
 public:
  Datasets() = default;
  Datasets(std::initializer_list<NamedDataset> datasets);
  Datasets(std::vector<NamedDataset> datasets);

  [[nodiscard]] auto begin() const noexcept { return datasets_.begin(); }
  [[nodiscard]] auto end() const noexcept { return datasets_.end(); }

  /// Returns the dataset of that name, or nullptr.
  [[nodiscard]] const Dataset* find(std::string_view name) const noexcept;
  /// The names, as messages show them.
  [[nodiscard]] std::string names() const;

 private:
  std::vector<NamedDataset> datasets_;
};

/// Says which datasets of a run are divided among its workers, and how.
struct DataConfig {
  /// The names of those that are divided; "all" stands for all. Of the others, each worker gets all samples: sums over
  /// the workers then count each sample once per worker, which leaves means as they are. Workers of a host that go over
  /// one at the same time have its samples read and decoded by one of them.
  std::vector<std::string> split{"all"};
  /// Gives the part of a worker, instead of shares of every batch: all that its loaders give it; whole.name() says of
  /// which dataset. A loader with drives_step needs parts of equally many batches. With a loader of a part in its
  /// TrainState, a run does not go on with another number of workers: their parts are others.
  std::function<Dataset(const Dataset& whole, std::size_t rank, std::size_t world_size)> splitter{};
};

namespace detail {

// Throws: ConfigError if a name stands for two datasets, or for none.
void check_datasets(const Datasets& datasets, const DataConfig& config);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/failure_config.hpp
// What happens when a worker fails. Train room.

namespace railyard::inline v0_1 {

/// Says how often a run may be started again after a failure: all workers anew, from the newest state that there is, in
/// memory or on disk.
struct FailureConfig {
  /// How many failures the run survives; -1 for any number. A failure of the group counts once, however many ranks
  /// have failed. Ctrl-C, SIGTERM, exceptions of callbacks, and a ConfigError out of the training function, which would
  /// come again, end the run in any case.
  int max_failures = 0;
  /// Whether an exception out of the training function counts as such a failure; otherwise it ends the run.
  bool retry_exceptions = true;
  /// Whether a checkpoint that was made since the last failure makes the budget whole again.
  bool renew_after_progress = false;
  /// Ends the run when it has failed so often in a row at the same step, whatever the budget: the program does it.
  int max_failures_at_same_step = 3;
  /// How long to wait before the first restart; twice as long before each further one without progress between them.
  std::chrono::nanoseconds backoff{0};
  std::chrono::nanoseconds max_backoff = std::chrono::minutes{1};
  /// How much of the time of training goes into copies of the TrainState to memory that outlives the workers, in
  /// percent: a restart goes on from the last one, which loses a few steps only, and so does the next
  /// program where this one is told to end and no step does. Where no failure is survived, that is all that they are
  /// for: there is one in ten seconds at most (at one percent), and none while a checkpoint is as new. Each worker
  /// keeps two copies of its part; under Launched, each process two of what all ranks have alike. 0: none; nor are
  /// there any where memory is short on some host, which Result::warnings() tell, or where a TrainState has files.
  double memory_percent = 1;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/preemption_config.hpp
// How a run leaves when its machine is taken away. Train room.

namespace railyard::inline v0_1 {

/// Says what announces that the machine will be taken away. Where the training function has a TrainState, all ranks
/// then save it at the end of the same step and leave, within RunConfig::stop_grace; so they do after Ctrl-C.
struct PreemptionConfig {
  /// Of SIGTERM, SIGUSR1, SIGINT and SIGHUP, those that do.
  std::vector<int> signals{SIGTERM, SIGUSR1};
  /// A file that does as soon as it exists; none if empty.
  std::filesystem::path file{};
  /// Result::exit_status() when a checkpoint was saved so, or an older one is all that there is to go on from: a
  /// scheduler is to start the job again. 75 is EX_TEMPFAIL. From 1 to 255.
  int exit_status = 75;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/run_config.hpp
// The settings of a run. Train room.

namespace railyard::inline v0_1 {

/// Says whether a run shows how far it is, on standard error: one line that is redrawn on a terminal, else a plain line
/// now and then.
enum class Progress : std::uint8_t { automatic, quiet };

/// Says what fit() does about a run of the same name that is there already.
enum class Resume : std::uint8_t {
  if_unfinished,  ///< goes on with it; of one that has succeeded it returns the recorded Result and starts nothing, if
                  ///< Result::is_state_saved()
  never,          ///< refuses the name
  required,       ///< as if_unfinished, and refuses to begin at the beginning
};

/// Holds the settings of a run; fit() checks all of them before anything is started.
struct RunConfig {
  /// Name of the run's directory in storage_path; if empty, date and time and a random suffix.
  std::string name{};
  /// Where runs are kept; made if it does not exist.
  std::filesystem::path storage_path = "runs";
  /// What everything random in the run starts from; equal on all ranks.
  std::uint64_t seed = 0;
  /// What is done if the run exists already.
  Resume resume = Resume::if_unfinished;
  /// What may differ from what an existing run was started with: "seed", of which an epoch under way keeps the former
  /// one; "data", what the loader that goes on reads; "checkpoints", those that it has written: if all are gone, with
  /// or without run.json, the run begins at the beginning.
  std::vector<std::string> accept_changes{};
  CheckpointConfig checkpoint{};
  PreemptionConfig preemption{};
  FailureConfig failure{};
  DataConfig data{};
  Progress progress = Progress::automatic;
  /// Told about the run in this order, in the process and on the thread that called fit().
  std::vector<AnyCallback> callbacks{};
  /// How long a collective waits for the other ranks.
  std::chrono::nanoseconds collective_timeout = std::chrono::minutes{10};
  /// The same until this rank's first step has ended: what comes before may take one rank long, such as rank 0 that
  /// prepares the data for all. Where no step is ever ended, it stays that. 0: no longer than later on.
  std::chrono::nanoseconds setup_timeout{0};
  /// How long the workers may take until every one is about to call the training function.
  std::chrono::nanoseconds start_timeout = std::chrono::minutes{1};
  /// How long workers that were asked to stop, or that are left over after a failure, may go on before they are killed.
  std::chrono::nanoseconds stop_grace = std::chrono::seconds{30};
  /// How long a rank may take for a step until the group counts as failed and every rank's position is told; evaluation
  /// between steps included. The first step of each start of the workers may take setup_timeout (collective_timeout
  /// where that is 0) if that is longer. 0: as long as it likes.
  std::chrono::nanoseconds step_timeout{0};
  /// How long a worker process may show no sign of life (stopped, frozen) before it counts as failed.
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
  /// Adds to the metrics of each report where the time of the rank's steps of a prepared model has gone since the last
  /// one: compute_share, data_share (waiting for batches), wait_share, communication_share, optimizer_share,
  /// gradient_bytes; and slowest_rank, which is of all steps since the workers were started. See StepTimes. A metric of
  /// the program's by one of these names stays as it is.
  bool report_step_times = false;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/controller.hpp
// Decides what a run does next: a state machine without clock, workers or files of its own. Train room.
//
//   phase      what happens                                                 next phase
//   checking   settings and storage are looked at, nothing runs             starting: begin()
//   starting   workers come to be and connect                               running:  every rank has started
//   running    the training function runs                                   stopping: a signal
//   stopping   workers were asked to stop and have stop_grace to do so      ending:   grace over, second signal
//   ending     every wait was ended; who is left after stop_grace is killed finished
//              (after 1 s at most if stop_grace has passed in stopping)
//   finished   no worker is left (or none can be waited for any longer)
//
// From starting, running and stopping a failure leads to ending, and the exit of the last rank leads to finished.

namespace railyard::inline v0_1 {

/// Names the states of a run.
enum class Phase : std::uint8_t { checking, starting, running, stopping, ending, finished };

/// Says what ended a run first. what completes a sentence that begins with "rank 1 of 2", if there is a rank.
struct Failure {
  enum class Kind : std::uint8_t {
    lost,       ///< a worker, or the group, has gone: it may come back
    exception,  ///< out of the training function
    final,      ///< nothing that another start could change: a signal, a callback
    setting,    ///< a ConfigError out of the training function, which another start would not change either
  };
  int rank = -1;
  std::string what{};
  int signal = 0;        ///< the signal to the supervisor that interrupted the run, 0 if none did
  bool is_wait = false;  ///< known only by that somebody waits or is silent: what each rank does tells more
  Kind kind = Kind::lost;
  bool is_host = false;  ///< a process that an engine has started is gone: only the engine can start it again

  /// Is what workers have failed by that could not be started.
  [[nodiscard]] static Failure of_start(const std::exception& error, std::string_view what);
};

/// Says what the driver of a run has to do to its workers.
struct Orders {
  bool request_leave = false;
  std::optional<std::string> abort{};
  bool kill = false;
};

/// Is the state machine. Every event of a run goes in with its time; orders come out.
class Controller {
 public:
  using Time = Deadline::Clock::time_point;

  struct Settings {
    int num_workers = 1;
    std::chrono::nanoseconds start_timeout = std::chrono::minutes{1};
    std::chrono::nanoseconds stop_grace = std::chrono::seconds{30};
    /// How long the failure of a collective is held back, while the failure behind it may still become known.
    std::chrono::nanoseconds cause_wait = std::chrono::seconds{1};
    /// How long killed workers may take to be gone.
    std::chrono::nanoseconds kill_wait = std::chrono::seconds{10};
  };

  explicit Controller(const Settings& settings);

  void begin(Time now);

  void on_started(int rank);

  [[nodiscard]] Orders on_exit(int rank, WorkerExit exit, Time now);

  [[nodiscard]] Orders on_silence(int rank, const std::string& message, Time now);

  /// For what is no rank's fault: a broken group, a callback that throws.
  [[nodiscard]] Orders on_failure(Failure failure, Time now);

  /// The run cannot go on although, perhaps, no worker has failed.
  void give_up(std::string what);

  /// These hosts, if there are any, were lost meanwhile: that is why ranks have waited in vain, if they have.
  void blame_hosts(const std::string& losses);

  [[nodiscard]] Orders on_signal(int signal, Time now);

  /// Does what is due at this time; called at wakes_at() or later.
  [[nodiscard]] Orders on_time(Time now);

  /// When on_time() has something to do; Time::max() if never.
  [[nodiscard]] Time wakes_at() const;

  [[nodiscard]] Phase phase() const noexcept;
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  [[nodiscard]] int num_alive() const noexcept;
  [[nodiscard]] bool has_exited(int rank) const;

 private:
  struct Rank {
    bool has_started = false;
    bool is_silent = false;
    std::optional<WorkerExit> exit{};
  };

  static std::size_t index(int rank) noexcept;
  static Time after(Time now, std::chrono::nanoseconds span);

  // Before it has started, a worker joins the others: what is refused there, such as memory or a name, the system may
  // give the next time.
  static Failure::Kind kind_of(const Rank& gone) noexcept;

  // Only the first failure counts: what follows from it, or from the end that it brings, is not looked at.
  [[nodiscard]] bool may_fail() const noexcept;

  [[nodiscard]] std::chrono::nanoseconds moment() const noexcept;

  // Where only those are left that do not answer, nobody uses the grace.
  void cut_grace_of_silent_ones(Time now) noexcept;

  Orders fail(Failure failure, Time now);

  Orders end(Time now);

  [[nodiscard]] std::string reason() const;

  static std::string text(const WorkerExit& exit);

  [[nodiscard]] bool is_suspect(int rank) const;

  // The ranks that suspects blame and that have not failed in a collective themselves: returned ones first, for they
  // explain everything, then those that still run.
  [[nodiscard]] std::optional<std::pair<int, int>> culprit_and_witness() const;

  [[nodiscard]] Failure consequence() const;

  [[nodiscard]] Failure late_start() const;

  Settings settings_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::checking;
  Time limit_ = Time::max();
  Time suspect_limit_ = Time::max();
  std::vector<int> suspects_;
  std::size_t num_exited_ = 0;
  int num_signals_ = 0;
  bool is_killed_ = false;
  std::optional<Failure> failure_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/accepted_changes.hpp
// What may differ between two programs that go on with one run, by name. Train room.

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] bool accepts_change(const std::vector<std::string>& accepted, std::string_view name);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/control_lane.hpp
// What the ranks tell each other with the first exchange of a step, at no collective of its own. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a rank may want all ranks to do at the end of a step.
struct Wishes {
  bool stop = false;
  bool snapshot = false;    ///< copy the state into memory that outlives the workers
  bool checkpoint = false;  ///< save it
  bool resize = false;      ///< copy it and leave: another number of workers goes on

  static constexpr std::size_t count = 4;

  /// Returns them as numbers, 1 for each that is there: sums and maxima over ranks say what anyone wants.
  template <class T>
  [[nodiscard]] std::array<T, count> numbers() const noexcept {
    return {static_cast<T>(stop), static_cast<T>(snapshot), static_cast<T>(checkpoint), static_cast<T>(resize)};
  }
  template <class T>
  [[nodiscard]] static Wishes of_anyone(std::span<const T, count> numbers) noexcept {
    return {.stop = numbers[0] > 0, .snapshot = numbers[1] > 0, .checkpoint = numbers[2] > 0, .resize = numbers[3] > 0};
  }
  void add(const Wishes& other) noexcept;
};

/// Keeps what this rank says with the next exchange, and what all have heard with the last one. Only exchanges that all
/// ranks take part in are heard, so every rank decides alike whether it has to ask by a collective.
class ControlLane {
 public:
  /// A loop over training data begins: ranks in different ones would average what does not belong together. data: what
  /// is gone over and how, where that is known, one thing a line; the same on all ranks.
  void begin_loop(std::string data = {}) noexcept;
  [[nodiscard]] const std::string& data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t loop() const noexcept { return loop_; }

  /// A batch is given out. is_last: this rank's data ends with it.
  void begin_batch(bool is_last) noexcept;
  [[nodiscard]] bool has_ended() const noexcept { return has_ended_; }

  /// Sets what this rank says with the next exchanges, besides that it wants to stop.
  void wish(const Wishes& wishes) noexcept;
  [[nodiscard]] const Wishes& own() const noexcept { return own_; }

  /// All ranks have exchanged, for the first time in a step.
  void hear(const Wishes& anyone, bool have_all_ended) noexcept;

  /// Whether the data of all ranks has ended; nothing if they have not exchanged since the batch was given out.
  [[nodiscard]] std::optional<bool> have_all_ended() const noexcept;

  /// Whether any rank wants to stop; nothing unless there has been exactly one exchange since the last call. Of
  /// several, the last may be long ago: whoever asks once per epoch must not learn of a wish an epoch too late.
  [[nodiscard]] std::optional<bool> take_stop() noexcept;

  /// What any rank wanted in the step that ends; nothing if all ranks have exchanged nothing in it.
  [[nodiscard]] std::optional<Wishes> end_step() noexcept;

 private:
  std::uint64_t loop_ = 0;
  std::string data_;
  std::uint64_t num_heard_ = 0;
  bool has_ended_ = false;
  Wishes own_{};
  Wishes anyone_{};
  bool has_heard_in_step_ = false;
  std::optional<bool> have_all_ended_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/byte_archive.hpp
// Turns what preprocessors have learned into bytes and back. Data room.

namespace railyard::inline v0_1 {
namespace detail {

template <class T>
concept PlainBytes = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Writes values one after the other. Own types list their members:
/// static void fields(auto& archive, auto& self) { archive(self.a, self.b); }
class ByteWriter {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }
  [[nodiscard]] std::vector<std::byte> take() noexcept;

 private:
  void append(const void* from, std::size_t size);
  template <PlainBytes T>
  void write(const T& value) {
    append(&value, sizeof value);
  }
  void write(const std::string& text);
  template <class T>
  void write(const std::vector<T>& values) {
    write(std::uint64_t{values.size()});
    if constexpr (PlainBytes<T> && !std::is_same_v<T, bool>) {
      append(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) write(value);
    }
  }
  template <class Key, class T, class Less>
  void write(const std::map<Key, T, Less>& values) {
    write(std::uint64_t{values.size()});
    for (const auto& [key, value] : values) (*this)(key, value);
  }
  template <class... T>
  void write(const std::variant<T...>& value) {
    write(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& alternative) { this->write(alternative); }, value);
  }
  template <class T>
  requires std::is_class_v<T>
  void write(const T& value) { T::fields(*this, value); }

  std::vector<std::byte> bytes_;
};

/// Reads what a ByteWriter has written. Throws: DataError if the bytes end too soon or mean nothing.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept;

  template <class... T>
  void operator()(T&... values) {
    (read(values), ...);
  }
  /// To be called at the end: bytes that are left over were written by something else.
  void finish() const;

 private:
  [[noreturn]] void damaged() const;
  std::span<const std::byte> next(std::size_t size);
  // Everything that can be counted takes a byte at least, so a wrong count cannot make us allocate more than there is.
  std::size_t count();
  template <PlainBytes T>
  void read(T& value) {
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
  }
  void read(bool& value);
  void read(std::string& text);
  template <class T>
  void read(std::vector<T>& values) {
    values.clear();
    std::size_t left = count();
    if constexpr (PlainBytes<T> && !std::is_same_v<T, bool>) {
      if (left > bytes_.size() / sizeof(T)) damaged();
      const auto bytes = next(left * sizeof(T));
      values.resize(left);
      if (left > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
      return;
    }
    for (; left > 0; --left) {
      T value{};
      read(value);
      values.push_back(std::move(value));
    }
  }
  template <class Key, class T, class Less>
  void read(std::map<Key, T, Less>& values) {
    values.clear();
    for (std::size_t left = count(); left > 0; --left) {
      std::pair<Key, T> entry{};
      (*this)(entry.first, entry.second);
      values.insert(std::move(entry));
    }
  }
  template <class... T>
  void read(std::variant<T...>& value) {
    std::uint8_t index = 0;
    read(index);
    std::uint8_t at = 0;
    if (!((at++ == index && (read(value.template emplace<T>()), true)) || ...)) damaged();
  }
  template <class T>
  requires std::is_class_v<T>
  void read(T& value) { T::fields(*this, value); }

  std::span<const std::byte> bytes_;
};

template <class T>
[[nodiscard]] std::vector<std::byte> to_bytes(const T& value) {
  ByteWriter writer;
  writer(value);
  return writer.take();
}
/// Returns the value with what the bytes hold put into it. Throws: DataError if they are not those of a T.
template <class T>
[[nodiscard]] T from_bytes(std::span<const std::byte> bytes, T value = T{}) {
  ByteReader reader{bytes};
  reader(value);
  reader.finish();
  return value;
}

/// Returns a state of one tensor, "learned", that holds the bytes of the value.
template <class T>
[[nodiscard]] State byte_state(const T& value) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(to_bytes(value));
  State state;
  state.tensors.push_back({.name = "learned",
                           .dtype = Dtype::u8,
                           .shape = {static_cast<std::int64_t>(bytes->size())},
                           .read = [bytes](std::int64_t begin, std::int64_t end, std::byte* to) {
                             std::memcpy(to, bytes->data() + begin, static_cast<std::size_t>(end - begin));
                           }});
  return state;
}
/// Returns the value with what the state holds put into it. Throws: DataError if it is not that of a T.
template <class T>
[[nodiscard]] T from_state(const State& state, T value = T{}) {
  const StateTensor* tensor = state.find_tensor("learned");
  if (tensor == nullptr || tensor->dtype != Dtype::u8) {
    throw DataError{"a state has no bytes named \"learned\": load what a preprocessor has saved"};
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor->count()));
  tensor->read(0, tensor->count(), bytes.data());
  return from_bytes(bytes, std::move(value));
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/chain.hpp
// The preprocessor that is several, one after the other. Data room.

namespace railyard::inline v0_1 {

/// Applies preprocessors one after the other. Each learns from what those before it make of the samples. Steps that
/// follow each other learn in one pass over the samples where they name their columns (not by .except) and no two touch
/// the same; the others take a pass each.
class Chain {
 public:
  Chain() = default;
  explicit Chain(std::vector<AnyPreprocessor> steps);
  /// Example: Chain chain{SimpleImputer{{.columns = {"age"}}}, StandardScaler{{.columns = {"age"}}}};
  template <class First, class... Rest>
  requires(!std::same_as<std::remove_cvref_t<First>, Chain> && Preprocessor<std::remove_cvref_t<First>> &&
           (Preprocessor<std::remove_cvref_t<Rest>> && ...)) explicit Chain(First&& first, Rest&&... rest) {
    steps_.reserve(1 + sizeof...(rest));
    steps_.emplace_back(std::forward<First>(first));
    (steps_.emplace_back(std::forward<Rest>(rest)), ...);
  }

  [[nodiscard]] std::size_t size() const noexcept { return steps_.size(); }
  [[nodiscard]] const AnyPreprocessor& operator[](std::size_t step) const noexcept { return steps_[step]; }

  /// How often fit() reads the samples.
  [[nodiscard]] std::size_t passes() const;
  void begin(const Schema& schema);
  void add(const Block& block);
  [[nodiscard]] std::vector<std::byte> statistics() const;
  /// Throws: DataError if the bytes are not of the same steps.
  void merge(std::span<const std::byte> bytes);
  /// Ends a pass over the samples.
  void finish();

  /// Another when steps are of other types, or look at other columns.
  [[nodiscard]] std::uint64_t kind() const;
  /// The types of the steps of which nothing but the type tells one from another.
  [[nodiscard]] std::vector<std::string> types_alike() const;
  /// The columns that its steps look at or change.
  [[nodiscard]] TouchedColumns touches() const;
  [[nodiscard]] Schema schema(Schema before) const;
  [[nodiscard]] Block transform(Block block) const;

  /// Another when its steps are, or their options or what they have learned are.
  [[nodiscard]] std::uint64_t fingerprint() const;

  /// The states of the steps: a tensor "learned" of step 2 is named "2/learned".
  [[nodiscard]] State state() const;
  /// Throws: ConfigError if the state is one of more or fewer steps.
  void load_state(const State& all);
  /// Returns the state of a step out of that of a Chain.
  [[nodiscard]] static State state_of_step(const State& all, std::size_t step);

 private:
  // The steps from `first` to the one before the result learn in one pass, or are one that takes several or none: the
  // first one tells how many.
  [[nodiscard]] std::size_t end_of_group(std::size_t first) const;
  [[nodiscard]] static bool share_any(const std::vector<std::string>& left, const std::vector<std::string>& right);

  // Goes on to the next steps that learn, if there are any.
  void begin_group();

  std::vector<AnyPreprocessor> steps_;
  std::size_t first_ = 0;        // the steps that learn in this pass, between begin() and the last finish()
  std::size_t last_ = 0;         // the one behind them
  std::size_t passes_left_ = 0;  // of these steps
  Schema before_{};              // of what these steps get
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/dataset_preprocessors.hpp
// What the samples of a dataset are changed by, as something that is saved, put back, and used on other samples. Data
// room.

namespace railyard::inline v0_1 {
namespace detail {

// The preprocessors of all transform() that a dataset was made by, in the order in which samples come by them.
class DatasetPreprocessors {
 public:
  DatasetPreprocessors() = default;
  explicit DatasetPreprocessors(const Dataset& dataset);

  [[nodiscard]] bool empty() const noexcept;

  // Whether the other one begins with all that has been learned here.
  [[nodiscard]] bool begins(const DatasetPreprocessors& other) const noexcept;

  // Whether the other one has learned with preprocessors of the same types of the same columns, if something else.
  [[nodiscard]] bool is_of_kind_of(const DatasetPreprocessors& other) const noexcept { return kinds_ == other.kinds_; }

  // The types of which nothing but the type tells one that has learned anew from another one.
  [[nodiscard]] std::vector<std::string> types_alike() const;

  // Whether a state, which may be one of more that came behind them, says that they had learned something else.
  [[nodiscard]] bool had_learned_other(const State& state) const;

  // Those that have learned something: one as it is, several as a Chain.
  [[nodiscard]] std::optional<AnyPreprocessor> learned() const;

  // All of them, with what the state of those that have learned says, if it is given; it may be one of more that came
  // behind them.
  [[nodiscard]] AnyPreprocessor all(const State* state = nullptr) const;

 private:
  struct Step {
    std::shared_ptr<const AnyPreprocessor> preprocessor{};
    bool has_learned = false;
    std::size_t depth = 0;  // of its state
  };

  // How many Chains there are in each other.
  [[nodiscard]] static std::size_t depth_of(const State& state);
  [[nodiscard]] static AnyPreprocessor joined(std::vector<AnyPreprocessor> steps);

  std::vector<Step> all_;
  std::vector<std::uint64_t> learned_;  // what tells those that have learned something, and what that is
  std::vector<std::uint64_t> kinds_;    // of the same
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/kept_preprocessors.hpp
// What the datasets of a worker are changed by, for its checkpoints. Train room.

namespace railyard::inline v0_1 {
namespace detail {

class KeptPreprocessors {
 public:
  // Takes what changes the samples of a dataset that has a name. Of what is made of one dataset in several ways, the
  // longest is kept under its name; of what was learned anew by preprocessors of the same kind, in each epoch perhaps,
  // the newest. What else does not begin alike gets a number behind the name.
  void note(const Dataset& dataset);

  // The parts of a checkpoint that hold what was learned. Valid until the next note().
  [[nodiscard]] std::vector<NamedState> states() const;

 private:
  struct Kept {
    std::string dataset{};
    DatasetPreprocessors used{};
    std::unique_ptr<const AnyPreprocessor> learned{};  // what the state reads
    State state{};
  };

  [[nodiscard]] Kept* find(std::string_view name) noexcept;
  void add(std::string name, DatasetPreprocessors used);
  // Where nothing tells whether these have learned anew what the others had, or are others, neither may be lost.
  static void check_kind(const std::string& name, const DatasetPreprocessors& used);
  static void set(Kept& kept, DatasetPreprocessors used);

  std::vector<Kept> kept_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/step_times.hpp
// Where the time of training steps has gone. Train room.

namespace railyard::inline v0_1 {

/// Says where the time of some steps has gone. Units: seconds.
struct StepTimes {
  std::uint64_t steps = 0;    ///< exchanges of gradients
  double compute = 0;         ///< all that is none of the following: forward, backward
  double data = 0;            ///< in loaders: waiting for batches, and making tensors of them
  double wait = 0;            ///< for ranks that came later
  double communication = 0;   ///< adding gradients, and moving them
  double optimizer = 0;       ///< in step() of a prepared optimizer
  std::uint64_t bytes = 0;    ///< of gradients that were read and written for the exchange
  int slowest_rank = -1;      ///< the one that has waited least, which is whom the others wait for; -1 if unknown
  std::uint64_t skipped = 0;  ///< steps that were left out, see ModelOptions::non_finite

  [[nodiscard]] double total() const noexcept;
  [[nodiscard]] double share_of_compute() const noexcept;
  [[nodiscard]] double share_of_data() const noexcept;
  [[nodiscard]] double share_of_wait() const noexcept;
  [[nodiscard]] double share_of_communication() const noexcept;
  [[nodiscard]] double share_of_optimizer() const noexcept;

 private:
  [[nodiscard]] double share_of(double part) const noexcept;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/wire.hpp
// The messages that a worker posts to its supervisor. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is one file of a rank's part of a checkpoint, and where in its snapshot it stands.
struct SavedFile {
  std::string name{};
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  bool is_own = false;  ///< only this rank needs it
};
/// A snapshot holds the rank's part of a checkpoint.
struct SavedMessage {
  static constexpr std::int32_t no_slot = -1;
  std::int32_t slot = 0;  ///< no_slot: the rank has no part of it, most likely for want of memory
  std::int32_t attempt = 0;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::int64_t epoch = 0;
  std::int64_t report = -1;   ///< the number of the last report before it; -1 if there was none
  bool is_report = false;     ///< it belongs to that report, and has its metrics
  bool is_memory = false;     ///< it is not to be written, but to go on from
  std::string failure{};      ///< of one to be written: why there is no slot
  NamedValues environment{};  ///< of rank 0: see Manifest
  std::vector<SavedFile> files{};
};

[[nodiscard]] std::vector<std::byte> encode_started(std::string_view host);

[[nodiscard]] std::vector<std::byte> encode_left();

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/worker_waits.hpp
// Ends a worker's waits for other programs with its run, and tells the user of long ones. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Lives on the worker's thread.
class WorkerWaits {
 public:
  /// The link must outlive it.
  explicit WorkerWaits(WorkerLink& link);

  /// Ends them, on whatever thread.
  void end(std::string_view reason);

 private:
  // What the run does itself may be done in time, and then all save together.
  [[nodiscard]] std::string why_over(WaitFor whom);
  void say(const std::string& text);

  WorkerLink* link_;
  std::mutex mutex_{};
  std::string reason_;
  WaitWatch watch_;
  WatchedThread thread_{watch_};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/worker.hpp
// What a training function sees. Train room: knows the concepts, no backend and no LibTorch.

namespace railyard::inline v0_1 {

/// Says what every worker of a run has in common.
struct RunContext {
  std::string name{};
  std::filesystem::path path{};  ///< the run's directory
  std::uint64_t seed = 0;
  std::chrono::nanoseconds collective_timeout = std::chrono::minutes{10};
  std::chrono::nanoseconds setup_timeout{0};  ///< that of the time before a worker's first step has ended; 0: the same
  std::uint64_t checkpoint_every_steps = 0;
  std::chrono::nanoseconds checkpoint_interval{0};
  bool is_elastic = false;    ///< the number of workers may change
  double memory_percent = 0;  ///< of the time of training, for snapshots in memory; 0: none
  bool has_restarts = true;   ///< failures are survived
  bool waits_for_checkpoints = false;
  /// The checkpoint that this attempt goes on from; empty at the first start.
  std::string resumes_from{};
  /// The snapshots, by rank, that it goes on from instead.
  std::vector<std::uint8_t> held_slots{};
  int attempt = 0;                            ///< counts the starts of the run's workers, from 0
  std::vector<std::string> accept_changes{};  ///< see RunConfig
  Datasets datasets{};
  DataConfig data{};
  bool reports_step_times = false;
};

class TrainState;

/// Is a worker as its training function sees it: who it is, and how it talks to the others. No template, so that
/// training functions and their helpers can live in ordinary .cpp files; a collective costs one virtual call more than
/// the backend's.
///
/// Collectives return when the buffers may be used again. All ranks call the same ones in the same order; whoever does
/// not, dies, or is later than RunConfig::collective_timeout (at first setup_timeout) makes them throw CollectiveError
/// on every rank.
class Worker {
 public:
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] const World& world() const noexcept { return world_; }
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int world_size() const noexcept;
  [[nodiscard]] int local_rank() const noexcept;
  [[nodiscard]] int local_world_size() const noexcept;
  [[nodiscard]] const std::string& host() const noexcept;
  /// The seed of the run, equal on all ranks.
  [[nodiscard]] std::uint64_t seed() const noexcept;
  [[nodiscard]] const std::string& run_name() const noexcept;
  /// The run's directory, equal on all ranks.
  [[nodiscard]] const std::filesystem::path& run_path() const noexcept;

  /// Returns a dataset of the Trainer, for prepare_loader(). Throws: ConfigError that lists the names that exist.
  [[nodiscard]] Dataset dataset(std::string_view name) const;

  /// The GPU that this worker was given (ScalingConfig::use_gpu), by its number among those that its process is shown;
  /// nothing without.
  [[nodiscard]] std::optional<int> device_index() const noexcept;
  /// Where the backend expects buffers: the CPU, or this worker's GPU.
  [[nodiscard]] virtual Device device() const noexcept = 0;

  /// The memory that the ranks of each host share, where the backend has such: for rooms above this one. nullptr
  /// otherwise.
  [[nodiscard]] virtual HostMemory* host_memory() noexcept = 0;
  /// A second line of sums for one other thread of each rank, where the backend has such; nullptr otherwise. All ranks
  /// call it at the same place; the first call joins the ranks anew. Lives as long as the worker.
  [[nodiscard]] virtual SideLine* side_line() = 0;
  /// When a collective that begins now is to give up.
  [[nodiscard]] Deadline collective_deadline() const;

  /// Reports metrics. Call number i of all ranks forms report i; rank 0's metrics are the run's. Never waits for
  /// another rank. Several threads of a rank may report at once. Cost: about a microsecond. Throws: ConfigError for a
  /// report of more than 1 MiB, or a metric named "report" or "seconds", which are columns of metrics.jsonl already.
  void report(const Metrics& metrics);

  /// Reports metrics with a checkpoint of the state, as it is when the step under way has ended. Returns when the state
  /// has been copied: the checkpoint is written meanwhile, by the supervisor. Waits while two are still unwritten.
  /// Every rank reports with a state, or none. Include railyard/train/train_state.hpp.
  void report(const Metrics& metrics, TrainState& state);

  /// Tells the user of something that does not end the run: the console now, and Result::warnings(). The text says
  /// which rank this is, unless it holds for all: what several say alike is told once. Throws: CollectiveError if the
  /// run has ended.
  void warn(const std::string& text);

  /// The directory of the checkpoint that this attempt goes on from, "memory" if it is that of the processes that make
  /// workers, empty if it begins at the beginning. Where there is a TrainState, it has put everything back.
  [[nodiscard]] const std::string& resumes_from() const noexcept;
  /// Whether the run may go on with another number of workers.
  [[nodiscard]] bool is_elastic() const noexcept;
  /// Whether RunConfig::accept_changes names it.
  [[nodiscard]] bool accepts_change(std::string_view name) const;
  /// Counts how often the run's workers have been started before.
  [[nodiscard]] int attempt() const noexcept;

  /// Returns the mean over what all ranks have added: the sum of sums by the sum of weights, equal on every rank.
  [[nodiscard]] double mean(const Mean& local);
  /// Returns the mean of one number per rank, equal on every rank.
  [[nodiscard]] double mean(double value);
  /// Returns the metric of what all ranks have added, equal on every rank. Example: worker.reduce(auc).value()
  template <SummedMetric M>
  [[nodiscard]] M reduce(M metric) {
    do_all_reduce(buffer_of(metric.sums()), ReduceOp::sum);
    return metric;
  }

  /// States how many samples are behind the gradients of the next backward passes of this rank; gradients are averaged
  /// with these weights. Loaders with drives_step call it; with a loader of one's own it is the user's to call, before
  /// the forward pass of every step. Throws: ConfigError if a prepared model has changed so that it would not be
  /// averaged.
  /// completes_step: false where the step goes on with another micro-batch; then gradients accumulate, and are averaged
  /// over the samples of all micro-batches in the backward pass of the last one.
  void samples(std::uint64_t count, bool completes_step = true);
  /// Says that the micro-batches since the last completed step will not be completed: the next samples() begins a step
  /// of its own. Loaders with drives_step call it at the begin of an epoch.
  void abandon_step();
  /// Says that nothing more belongs to the step under way, if there is one: its optimizer has stepped, and so have
  /// schedulers and whatever else the loop does. Each samples() after the last micro-batch of a step says so too;
  /// loaders with drives_step do before they go on to the next batch or epoch, and so does report() with a state.
  void end_step();
  /// Steps that this rank has ended, in all attempts of the run together.
  [[nodiscard]] std::uint64_t steps() const noexcept;
  /// Sets what is called whenever a step has ended.
  void on_step_end(std::function<void()> function);
  /// What samples() was last told; nothing if it never was.
  [[nodiscard]] std::optional<std::uint64_t> step_samples() const noexcept;
  /// Sets what tells where the time of all steps has gone, for a room above this one; it is told whether the training
  /// function has returned.
  void on_step_times(std::function<StepTimes(bool is_end)> function);
  /// Tells the supervisor where it has gone; called when the training function has returned.
  void post_step_times();
  /// Says that a loader begins to wait for data, or has it: the time between is StepTimes::data.
  void wait_for_data(bool begins);
  /// Sets what wait_for_data() calls.
  void on_data_wait(std::function<void(bool)> function);
  /// Sets what each samples() calls first, for a room above this one that must see every step begin.
  void on_samples(std::function<void(std::uint64_t, bool)> function);

  /// Sets what abandon_step() calls.
  void on_abandoned_step(std::function<void()> function);

  /// Asks all workers to stop; they learn of it in their next should_stop(), or the one after.
  void request_stop() noexcept;
  /// Returns true on every rank as soon as request_stop() was called on any, or the run was asked to end (Ctrl-C,
  /// SIGTERM, a callback). All ranks call it at the same place.
  /// Cost: none where it is called once in every step of a prepared model, for then the answer has come with the
  /// gradients, and a wish that comes after them is heard a step later; elsewhere a small collective.
  [[nodiscard]] bool should_stop();
  /// Whether this rank knows of a wish to stop.
  [[nodiscard]] bool wants_stop() const noexcept;
  /// What this rank wants all ranks to do at the end of the step under way.
  [[nodiscard]] detail::Wishes wishes() const noexcept;
  /// What goes with the exchanges of a room above this one, which tells what it has heard.
  [[nodiscard]] detail::ControlLane& control() noexcept { return control_; }

  void barrier();
  /// Combines data of all ranks in place; equal bits on every rank afterwards.
  void all_reduce(Buffer data, ReduceOp op);
  void broadcast(Buffer data, int root);
  /// Shapes: out has world_size times the elements of in; part r is rank r's.
  void all_gather(ConstBuffer in, Buffer out);
  /// Shapes: rank r gives counts[r] elements; out has their sum. counts are equal on all ranks.
  void all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts);
  /// Shapes: in has world_size times the elements of out; rank r gets the combined slice r.
  void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op);
  /// Shapes: at root, out has world_size times the elements of in; elsewhere out is not looked at.
  void gather(ConstBuffer in, Buffer out, int root);
  /// Shapes: at root, in has world_size times the elements of out; elsewhere in is not looked at.
  void scatter(ConstBuffer in, Buffer out, int root);
  /// Shapes: in and out are equally long, a multiple of world_size; slice r of in goes to rank r.
  void all_to_all(ConstBuffer in, Buffer out);
  void send(ConstBuffer data, int to);
  void receive(Buffer data, int from);

  /// What equal bits depend on, for the manifests of checkpoints: rooms above this one add what they know.
  [[nodiscard]] NamedValues& environment() noexcept { return environment_; }

  /// Takes what changes the samples of a dataset that goes back to one of the Trainer's into the checkpoints from now
  /// on. Loaders do that.
  void keep_preprocessors(const Dataset& dataset);

  /// Where the workers leave small values for each other; for rooms above this one.
  [[nodiscard]] Store& store() noexcept;
  /// What this worker shows its supervisor while it runs: loaders write their progress there.
  [[nodiscard]] WorkerPage& page() noexcept;

  /// Returns the one T of this worker, made by T{} on first use and destroyed when the training function has ended, the
  /// last one made first. For rooms above this one, which keep their state per worker. T has a static extension_name.
  template <class T>
  [[nodiscard]] T& extension() {
    for (const auto& [name, object] : extensions_) {
      if (name == T::extension_name) return *static_cast<T*>(object.get());
    }
    auto made = std::make_shared<T>();
    extensions_.emplace_back(T::extension_name, made);
    return *made;
  }

 protected:
  Worker(WorkerLink& link, const RunContext& context, const World& world);
  ~Worker();

  void drop_extensions() noexcept;

  [[nodiscard]] WorkerLink& link() noexcept;
  // Ends waits for other programs; the backend's are its own.
  void end_waits(std::string_view reason);
  [[nodiscard]] const RunContext& context() const noexcept;
  // Says that from here on gradients may go from rank to rank without a word to this class.
  void note_backend() noexcept;

 private:
  friend class TrainState;

  // Steps after which it is no accident that nothing was exchanged.
  static constexpr std::uint64_t steps_apart = 1000;

  // Nobody wants as many models as there are workers, of which none has seen all samples.
  void warn_of_training_apart();

  // Other threads than the training function's may not look at its clock.
  [[nodiscard]] Metrics with_step_times(Metrics metrics);

  // The link knows of messages only: the error says what this one was.
  void post_report(const Metrics& metrics);

  virtual void do_barrier() = 0;
  virtual void do_all_reduce(Buffer data, ReduceOp op) = 0;
  virtual void do_broadcast(Buffer data, int root) = 0;
  virtual void do_all_gather(ConstBuffer in, Buffer out) = 0;
  virtual void do_all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) = 0;
  virtual void do_reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) = 0;
  virtual void do_gather(ConstBuffer in, Buffer out, int root) = 0;
  virtual void do_scatter(ConstBuffer in, Buffer out, int root) = 0;
  virtual void do_all_to_all(ConstBuffer in, Buffer out) = 0;
  virtual void do_send(ConstBuffer data, int to) = 0;
  virtual void do_receive(Buffer data, int from) = 0;

  WorkerLink* link_;
  const RunContext* context_;
  World world_;
  detail::WorkerWaits waits_;
  std::optional<std::uint64_t> step_samples_;
  std::function<void(std::uint64_t, bool)> on_samples_;
  std::function<void()> on_abandoned_step_;
  std::function<void()> on_step_end_;
  std::function<StepTimes(bool is_end)> on_step_times_;
  StepTimes reported_times_{};  // up to the last report
  std::thread::id thread_ = std::this_thread::get_id();
  std::function<void(bool)> on_data_wait_;
  TrainState* state_ = nullptr;
  std::atomic<std::int64_t> num_reports_{0};  // those before the checkpoint that the run goes on from included
  bool has_step_ = false;                     // one has begun and not ended
  bool completes_step_ = false;               // its last micro-batch has begun
  bool has_ended_step_ = false;
  std::uint64_t num_steps_ = 0;  // that have ended in this attempt
  bool has_exchanged_ = false;   // by a collective that could carry gradients
  bool uses_backend_ = false;    // itself
  bool stop_requested_ = false;
  bool stop_agreed_ = false;
  bool has_saved_ = false;  // its state, over what it has gone on from in memory
  detail::ControlLane control_{};
  NamedValues environment_{};
  detail::KeptPreprocessors preprocessors_{};  // of the datasets that are read
  std::vector<std::pair<std::string_view, std::shared_ptr<void>>> extensions_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/lockstep.hpp
// Keeps ranks in step whose own data ends at different times. Train room.

namespace railyard::inline v0_1 {

/// Is a batch of a user's own data, and how much it counts.
template <class T>
struct LockstepBatch {
  T batch;
  std::uint64_t size = 0;  ///< samples that count: 0 where this rank's data has ended and its last batch is repeated
};

namespace detail {

// All that a range-for loop asks of a range: LibTorch's data loaders offer no more.
template <class R>
concept LoopRange = requires(R& range) {
  { range.begin() != range.end() } -> std::convertible_to<bool>;
  ++std::declval<decltype(range.begin())&>();
  *range.begin();
};
template <LoopRange R>
using ValueOf = std::remove_cvref_t<decltype(*std::declval<R&>().begin())>;

template <class F, class T>
concept CountsSamples = requires(F& size_of, const T& batch) {
  { size_of(batch) } -> std::convertible_to<std::uint64_t>;
};

}  // namespace detail

/// Is what lockstep() returns; see there. Each begin() goes over the batches anew.
template <detail::LoopRange Batches, detail::CountsSamples<detail::ValueOf<Batches>> SizeOf>
class Lockstep {
  using Value = detail::ValueOf<Batches>;
  using Source = decltype(std::declval<Batches&>().begin());
  using Item = LockstepBatch<Value>;

 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Item;
    using pointer = Item*;
    using reference = Item&;

    Iterator() = default;
    explicit Iterator(Lockstep& lockstep) noexcept : lockstep_(&lockstep), loop_(lockstep.worker_->control().loop()) {}

    [[nodiscard]] Item& operator*() const noexcept { return *lockstep_->current_; }
    [[nodiscard]] Item* operator->() const noexcept { return &*lockstep_->current_; }
    Iterator& operator++() {
      if (!is_over()) lockstep_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return iterator.is_over();
    }

   private:
    [[nodiscard]] bool is_over() const noexcept {
      return lockstep_ == nullptr || lockstep_->worker_->control().loop() != loop_ || !lockstep_->current_;
    }

    Lockstep* lockstep_ = nullptr;
    std::uint64_t loop_ = 0;
  };

  Lockstep(Worker& worker, Batches batches, SizeOf size_of)
      : worker_(&worker), batches_(std::forward<Batches>(batches)), size_of_(std::move(size_of)) {}

  /// Throws: DataError if this rank has no batch at all, for then it has nothing to repeat.
  [[nodiscard]] Iterator begin() {
    source_.emplace(batches_.begin());
    next_.reset();
    worker_->control().begin_loop();
    read_next();
    if (!next_) {
      throw DataError{detail::compose(
          "lockstep() on rank {}/{}: this rank's data has no batch at all, so it has nothing to repeat while others "
          "train: give every rank at least one batch, be it of another rank's samples with a size of 0",
          worker_->rank(), worker_->world_size())};
    }
    take_next();
    return Iterator{*this};
  }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

 private:
  void read_next() {
    next_.reset();
    if (!(*source_ != batches_.end())) return;
    next_.emplace(**source_);
    ++*source_;
  }

  // One batch is read ahead, so that the ranks learn with the last one that it is the last.
  void take_next() {
    const std::uint64_t size = size_of_(std::as_const(*next_));
    current_.emplace(Item{std::move(*next_), size});
    read_next();
    give_out();
  }

  void advance() {
    worker_->end_step();
    if (have_all_ended()) {
      current_.reset();
    } else if (next_) {
      take_next();
    } else {
      current_->size = 0;
      give_out();
    }
  }

  void give_out() {
    worker_->control().begin_batch(!next_);
    worker_->samples(current_->size);
  }

  // It has come with the exchange of gradients, unless the training function has left that out, on all ranks.
  [[nodiscard]] bool have_all_ended() {
    if (const auto heard = worker_->control().have_all_ended()) return *heard;
    std::int32_t anyone_goes_on = next_ ? 1 : 0;
    worker_->all_reduce(buffer_of_value(anyone_goes_on), ReduceOp::max);
    return anyone_goes_on == 0;
  }

  Worker* worker_;
  Batches batches_;  // a reference to what outlives this, or a value
  SizeOf size_of_;
  std::optional<Source> source_{};
  std::optional<Value> next_{};
  std::optional<Item> current_{};
};

/// Goes over a user's own batches so that all ranks take equally many steps, however many batches each has: a rank
/// whose data has ended repeats its last batch with weight zero, until all have ended. Then all loops end after the
/// same step. Each batch is a step of its own: worker.samples() is called with its size. Means are to be weighted with
/// `size`.
///
/// batches is whatever a range-for loop takes, as often as it can be gone over; an lvalue must outlive the loop.
/// size_of returns the number of samples of a batch; a header of the torch room knows it for tensors. Batches are
/// copied from their range, one ahead of the loop; tensors share their memory. The running statistics of a prepared
/// model's BatchNorm are left alone by repeats. All ranks run the loop; whoever leaves it early does so on all ranks,
/// such as by worker.should_stop(), or the next backward() throws an error that names the rank and its step. Cost: none
/// beside the exchange of gradients; one small collective after a step without one. Throws: DataError on a rank that
/// has no batch at all. Example: for (auto& [batch, size] : ry::lockstep(worker, batches, [](const Batch& batch) {
/// return batch.count(); }))
template <detail::LoopRange Batches, detail::CountsSamples<detail::ValueOf<Batches>> SizeOf>
[[nodiscard]] Lockstep<Batches, SizeOf> lockstep(Worker& worker, Batches&& batches, SizeOf size_of) {
  return {worker, std::forward<Batches>(batches), std::move(size_of)};
}

}  // namespace railyard::inline v0_1

// ---- railyard/train/random.hpp
// The state of the standard library's random numbers. Train room.

#include <istream>
#include <ostream>

namespace railyard::inline v0_1 {
namespace detail {

// The standard asks of every engine that it can be written to a stream as text and read back. Its result_type comes
// first: of some holders of LibTorch's modules one may not even ask whether they can be called.
template <class E>
concept RandomEngine = requires {
  typename E::result_type;
}
&&std::uniform_random_bit_generator<E>&& requires(E& engine, const E& saved, std::istream& in, std::ostream& out) {
  out << saved;
  in >> engine;
};

}  // namespace detail

/// Saves the engines of <random>, such as std::mt19937_64; each rank has its own. Distributions that remember numbers,
/// such as std::normal_distribution, are to be reset() at the begin of a step, for their memory is not saved.
/// Throws: ConfigError if what was saved is no state of such an engine.
template <detail::RandomEngine E>
requires(!Stateful<E>) struct StateAccess<E> {
  static State take(const E& engine) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text << engine;
    State state{{"engine", text.str()}};
    state.is_own = true;
    return state;
  }
  static void put(E& engine, const State& state) {
    std::istringstream text{state.at("engine").template as<std::string>()};
    text.imbue(std::locale::classic());
    E read;
    if (!(text >> read) || !(text >> std::ws).eof()) {
      throw ConfigError{
          "the saved state of a random engine is not one of this type: use the engine that was saved, such as "
          "std::mt19937_64, or begin without its state"};
    }
    engine = read;
  }
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/result.hpp
// What a run leaves to its caller. Train room.

namespace railyard::inline v0_1 {

/// Says where the time of a run went. Units: seconds.
struct Timings {
  double start = 0;       ///< from the call of fit() until every worker existed
  double first_line = 0;  ///< from the call of fit() until every worker was about to call the training function
  double training = 0;    ///< from then until the last worker had ended
  double teardown = 0;    ///< from then until fit() returned
};

/// Says how one start of a run's workers ended.
struct Attempt {
  std::string error{};           ///< what failed first; empty if nothing did
  int failed_rank = -1;          ///< -1 if none did, or it failed outside of any worker
  std::uint64_t begin_step = 0;  ///< of the checkpoint from which it went on
  std::uint64_t end_step = 0;    ///< the last step that any rank had ended
  std::uint64_t lost_steps = 0;  ///< steps that the next attempt had to do again
  double seconds = 0;            ///< from the call of fit() until its last worker had ended
  int world_size = 0;
};

/// Holds the fields of a Result while it is put together.
struct ResultFields {
  std::string error{};
  int failed_rank = -1;
  int exit_status = 0;
  std::vector<Metrics> history{};
  std::filesystem::path path{};
  int world_size = 0;
  double seconds = 0;
  Timings timings{};
  bool is_leader = true;
  std::vector<std::string> warnings{};
  std::vector<StepTimes> step_times_by_rank{};
  std::vector<Attempt> attempts{};
  std::optional<Checkpoint> checkpoint{};
  std::vector<Checkpoint> best_checkpoints{};
  int failed_checkpoints = 0;
  bool is_state_saved = true;
  bool is_recorded = false;
  /// What changes the samples of the Trainer's datasets, by their names; those that nothing does are left out.
  std::vector<std::pair<std::string, detail::DatasetPreprocessors>> preprocessors{};
};

/// Is what fit() returns: converts to true if the run succeeded.
class [[nodiscard]] Result {
 public:
  explicit Result(ResultFields fields);

  [[nodiscard]] explicit operator bool() const noexcept;
  /// What failed first, where and why, and where to look; empty if the run succeeded.
  [[nodiscard]] const std::string& error() const noexcept { return fields_.error; }
  /// The first rank that failed; -1 if none did, or the run failed outside of any worker.
  [[nodiscard]] int failed_rank() const noexcept { return fields_.failed_rank; }
  /// What main() may return: 0, 1 after a failure, 128 + signal after Ctrl-C or SIGTERM, RunConfig::preemption's status
  /// (75) where the state is saved and the run is to be started again.
  [[nodiscard]] int exit_status() const noexcept { return fields_.exit_status; }
  /// Rank 0's last metrics; empty if it has reported none.
  [[nodiscard]] const Metrics& metrics() const noexcept;
  /// All of rank 0's metrics, in order.
  [[nodiscard]] const std::vector<Metrics>& history() const noexcept { return fields_.history; }
  /// The run's directory.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return fields_.path; }
  [[nodiscard]] int world_size() const noexcept { return fields_.world_size; }
  /// How long fit() took. Units: seconds.
  [[nodiscard]] double seconds() const noexcept { return fields_.seconds; }
  [[nodiscard]] const Timings& timings() const noexcept { return fields_.timings; }
  /// Where the time of the average rank's steps has gone, from its first exchange of gradients to its end; the bytes
  /// are those of all ranks together. All 0 if no rank that has trained a prepared model has returned.
  [[nodiscard]] StepTimes step_times() const;
  /// The same of each rank; all 0 for one that has failed.
  [[nodiscard]] const std::vector<StepTimes>& step_times_by_rank() const noexcept { return fields_.step_times_by_rank; }
  /// Is this the one process in which code after fit() should speak for the run?
  [[nodiscard]] bool is_leader() const noexcept { return fields_.is_leader; }
  /// What went wrong without ending the run, such as a log that could not be written.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return fields_.warnings; }

  /// The starts of the run's workers in this fit(), the last one included.
  [[nodiscard]] const std::vector<Attempt>& attempts() const noexcept { return fields_.attempts; }
  /// The newest checkpoint; none if there is none.
  [[nodiscard]] const std::optional<Checkpoint>& checkpoint() const noexcept { return fields_.checkpoint; }
  /// The checkpoints that CheckpointConfig keeps for their score, best first; the metrics are in their manifests. See
  /// CheckpointFolder::best().
  [[nodiscard]] const std::vector<Checkpoint>& best_checkpoints() const noexcept { return fields_.best_checkpoints; }
  /// Returns what the samples of a dataset of the Trainer were changed by before the workers saw them
  /// (Dataset::transform()): one as it is, several as a Chain; with what they have learned as checkpoint() holds it, if
  /// it does. Without a Trainer, and for what the training function has added: Checkpoint::load_preprocessor(). Throws:
  /// ConfigError that lists the datasets that have such; DataError for a damaged checkpoint.
  /// Example: ry::EpochReader{samples.transform(result.preprocessor("train")), {.global_batch_size = 256}}
  [[nodiscard]] AnyPreprocessor preprocessor(std::string_view dataset) const;
  /// Returns it with the preprocessors of the Trainer's datasets.
  [[nodiscard]] Result with(std::vector<std::pair<std::string, detail::DatasetPreprocessors>> preprocessors) &&;

  /// How many checkpoints could not be written in this fit(): warnings() tell of each.
  [[nodiscard]] int failed_checkpoints() const noexcept { return fields_.failed_checkpoints; }
  /// Whether the newest state that was to be saved is: false if its checkpoint could not be written, so that
  /// checkpoint() is an older one, or none. Also a run that has succeeded is gone on with from there, then, by the next
  /// fit() of its name.
  [[nodiscard]] bool is_state_saved() const noexcept { return fields_.is_state_saved; }
  /// Whether the run had succeeded before, so that fit() has only read what it left.
  [[nodiscard]] bool is_recorded() const noexcept { return fields_.is_recorded; }

  /// Writes error() to standard error if the run did not succeed. Returns *this.
  /// Example: return trainer.fit().print_error().exit_status();
  const Result& print_error() const;
  /// Returns *this if the run succeeded. Throws: WorkerError with error() if it did not; what main() does not catch
  /// ends the program by SIGABRT, whatever exit_status() is.
  const Result& value_or_throw() const;

 private:
  ResultFields fields_;
  Metrics none_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/scaling_config.hpp
// How many workers a run has. Train room.

namespace railyard::inline v0_1 {

/// Is a number of workers, or the least and the most of a number that follows what there is: {.num_workers = {2, 8}}.
class WorkerCount {
 public:
  constexpr WorkerCount(int count) noexcept : min_(count), max_(count) {}  // implicit: {.num_workers = 4}
  constexpr WorkerCount(int min, int max) noexcept : min_(min), max_(max) {}

  template <std::floating_point T>
  WorkerCount(T count) = delete;  // a number of workers is a whole number

  [[nodiscard]] constexpr int min() const noexcept { return min_; }
  [[nodiscard]] constexpr int max() const noexcept { return max_; }
  [[nodiscard]] constexpr bool is_elastic() const noexcept { return min_ != max_; }

 private:
  int min_;
  int max_;
};

/// Says what to scale to. Example: ry::Trainer trainer{train, {.num_workers = 4}};
///
/// With a range, a run begins with as many workers as there is room for, goes on with fewer where that has become less,
/// and with more as soon as there is room again: at the end of a step, from a copy of the TrainState, which spends no
/// failure. The order of the samples stays as it is, and with LoaderOptions::global_batch_size the batches, too. Bits
/// do not: sums are made in another order, and what each worker has for itself (dropout, BatchNorm, its random numbers)
/// is drawn and counted otherwise. A run without a TrainState changes its size only when it is started again.
struct ScalingConfig {
  /// Under Launched, as many in each process that the engine has started; a range is one of all processes together, of
  /// which each makes its share of the most: lost ones are done without, as long as the rest makes the least.
  WorkerCount num_workers = 1;
  /// With a range: says for how many workers there is room now. By default as many as there are cores for this process,
  /// or GPUs with use_gpu. Called in the process of fit(), on its thread. Not for several processes: those that are
  /// there say it; and an error where num_workers is one number.
  std::function<int()> capacity{};
  /// How often it is asked while workers train. With a range only, as well.
  std::chrono::nanoseconds capacity_interval = std::chrono::seconds{10};
  /// Under Launched: what the environment does not say, or says wrong. Elsewhere an error.
  LaunchConfig launch{};
  /// Gives each worker a GPU of its own, which Worker::device_index() names: the one with the number of the worker on
  /// its host, of those that CUDA_VISIBLE_DEVICES shows; the only one, where an engine shows each process its own. With
  /// a range, there is room for as many workers as there are GPUs. A Backend of GPUs needs no word of it.
  bool use_gpu = false;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/environment.hpp
// What equal bits depend on beside the program: which CPU, which releases. Train room.

#include <sys/utsname.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Adds what this room knows of it; rooms above know more.
void note_environment(NamedValues& environment);

/// Says what differs, "threads 4 instead of 2, ..."; empty if nothing does that both know.
[[nodiscard]] std::string difference_of(const NamedValues& now, const NamedValues& then);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/gather.hpp
// Gives every rank what each of them has. Train room.

namespace railyard::inline v0_1 {
namespace detail {

// Returns what each rank gives, in the order of ranks.
[[nodiscard]] std::vector<std::vector<std::byte>> gather_bytes(Worker& worker, std::vector<std::byte> mine);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/held_state.hpp
// How a rank's part of the state lies in a snapshot, and how a later start finds it there. Train room.
//
// The snapshot begins with the size of the message that tells of it, and that message; the files follow. Where several
// processes look after the workers, each has the snapshots of its own: what others lack goes from rank to rank.

// ---- railyard/train/detail/snapshot_pace.hpp
// When rank 0 wants the state to be copied or saved. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Spreads copies of the state so that they take a given share of the time, and says when a checkpoint is due.
class SnapshotPace {
 public:
  using Clock = std::chrono::steady_clock;

  /// percent: the share of copies, 0 for none. interval: between checkpoints, 0 for none. has_restarts: failures are
  /// survived. Where none is, copies are for the end of the program alone, and the next one takes seconds to start: a
  /// copy counts as if it took a tenth of a second at least, so that at one percent none is made in the first ten
  /// seconds, nor in any ten after another, and small models pay nothing for them.
  SnapshotPace(double percent, std::chrono::nanoseconds interval, bool has_restarts, Clock::time_point now) noexcept;

  /// The first copy of a run that survives failures is due at once: only then is known what one costs.
  [[nodiscard]] bool wants_copy(Clock::time_point now) const noexcept;
  [[nodiscard]] bool wants_checkpoint(Clock::time_point now) const noexcept;

  void note_copy(std::chrono::duration<double> cost, Clock::time_point now) noexcept;
  /// The state is in a checkpoint as well, or will be: what a restart does not read from the disk if it can, but is as
  /// good as a copy for the end of the program.
  void note_save(std::chrono::duration<double> cost, Clock::time_point now) noexcept;
  /// What was put back is there still for the next restart. Until it is a few steps old a copy is not worth its price,
  /// which is about that of putting back; from a slow disk it is less.
  void note_put_back(std::chrono::duration<double> cost, Clock::time_point now) noexcept;
  /// No copy is wanted any more.
  void end_copies() noexcept;
  void note_checkpoint(Clock::time_point now) noexcept;

 private:
  double percent_;
  std::chrono::nanoseconds interval_;
  std::chrono::duration<double> least_cost_;
  std::chrono::duration<double> cost_;
  Clock::time_point copied_at_;
  Clock::time_point saved_at_;
};

/// Is the memory of one host that copies of the state take. Units: bytes.
struct CopyMemory {
  std::uint64_t copies = 0;    ///< all of them
  std::uint64_t received = 0;  ///< what a restart takes besides, of parts that ranks of other hosts have: see HeldState
  std::uint64_t there = 0;     ///< of both, already: since the workers before a restart, for one
};

/// Says why copies of the state would not fit into memory beside all else; nothing if they do. Memory that is promised
/// and not there ends programs instead of calls. left: the bytes that are free. has_restarts: the copies are asked for;
/// otherwise half of the memory is left for what may be more urgent.
[[nodiscard]] std::string lack_of_room(const CopyMemory& memory, int num_local_workers, bool has_restarts,
                                              std::size_t left);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/user_files.hpp
// What the user has a rank add to its checkpoints: files, and directories with all that is in them. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Looks at the files each time it is asked for their images, and reads them when the images are filled.
class UserFiles {
 public:
  [[nodiscard]] bool empty() const noexcept;

  /// The source may come to be later. Throws: ConfigError for a name that is taken or cannot be one, and for a source
  /// that is a directory.
  void add_file(std::string name, std::filesystem::path source);

  /// The same of a directory, in which only plain files and directories may be. Throws: ConfigError as above, for a
  /// source that is there and no directory, and for what can be in no checkpoint.
  void add_directory(std::string name, std::filesystem::path source);

  /// Adds an image for each file that is there now. Throws: ConfigError that names the file or directory which is not
  /// there, or can be in no checkpoint. Filling throws: DataError if a file has gone or changed its kind meanwhile.
  void add_images(std::vector<FileImage>& images) const;

 private:
  struct Source {
    std::string name{};
    std::filesystem::path path{};
    bool is_directory = false;
  };

  // What a message to the supervisor can hold beside all else.
  static constexpr std::size_t most_name_bytes = std::size_t{512} << 10U;

  [[noreturn]] static void refuse(std::string_view name, std::string_view why);

  [[nodiscard]] static bool is_directory(const std::filesystem::path& path);

  void check_name(const std::string& name) const;

  static void add_images(const Source& source, std::vector<FileImage>& images);

  // Of all plain files below, relative to the directory, in order.
  [[nodiscard]] static std::vector<std::string> names_in(const Source& source);

  static void check_entry(const Source& source, const std::string& name, const std::filesystem::file_status& status);

  [[noreturn]] static void fail_to_read(const std::filesystem::path& path, std::string_view why);

  [[nodiscard]] static FileImage image_of(std::string_view name, const std::filesystem::path& path, std::size_t size,
                                          int flags);

  std::vector<Source> sources_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/train_state.hpp
// All that a run must not lose: named parts that checkpoints hold, and the epochs that are left. Train room.

namespace railyard::inline v0_1 {

namespace detail {

// Ends a training function whose state has been saved, because the run, or this number of workers, is to end. No
// std::exception: it is nobody's error, and handlers of errors shall let it pass.
struct Leave {};

// Says itself in which epoch a resumed run has to go on: the loader of the training data.
template <class T>
concept DrivesEpochs = requires(const T& part) {
  { part.next_epoch() } -> std::convertible_to<std::int64_t>;
  { part.drives_step() } -> std::convertible_to<bool>;
};

// Is an optimizer, whose state says the options of each group of parameters.
template <class T>
concept HasParameterGroups = requires(T& part) {
  part.param_groups();
};

}  // namespace detail

/// Is one part of a TrainState: a name and something that has a state, which must outlive it.
class StatePart {
 public:
  template <HasState T>
  StatePart(std::string name, T& part)
      : name_(std::move(name)),
        take_([&part] { return State{StateAccess<T>::take(part)}; }),
        put_([&part](const State& state) { StateAccess<T>::put(part, state); }),
        has_options_(detail::HasParameterGroups<T>) {
    if constexpr (detail::DrivesEpochs<T>) {
      if (part.drives_step()) next_epoch_ = [&part] { return static_cast<std::int64_t>(part.next_epoch()); };
    }
  }
  template <class T>
  requires(!HasState<T>) StatePart(std::string, T&) {
    static_assert(HasState<T>,
                  "a part of a TrainState needs a state: const member state() that returns a railyard::State, and "
                  "load_state(const State&); or include the header of Railyard that knows its type");
  }

 private:
  friend class TrainState;

  std::string name_;
  std::function<State()> take_;
  std::function<void(const State&)> put_;
  std::function<std::int64_t()> next_epoch_;
  bool has_options_ = false;
};

/// Is what a run goes on with after a failure or in another program: report(metrics, state) makes a checkpoint of it.
///
/// Making one puts all parts back, if the run goes on from a checkpoint; until then parts are as the program has made
/// them. Every rank makes one, with the same names, when all its parts exist; one at a time.
/// Example: ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", loader}}};
class TrainState {
 public:
  /// Is what a loop over the epochs that are left goes over.
  class Epochs {
   public:
    class Iterator {
     public:
      using iterator_category = std::input_iterator_tag;
      using value_type = int;
      using difference_type = std::ptrdiff_t;
      using pointer = const int*;
      using reference = int;

      [[nodiscard]] int operator*() const noexcept;
      Iterator& operator++();
      [[nodiscard]] bool operator==(std::default_sentinel_t) const noexcept;

     private:
      friend class Epochs;
      Iterator(TrainState& state, int count) noexcept;
      TrainState* state_;
      int count_;
    };
    [[nodiscard]] Iterator begin() const;
    [[nodiscard]] static std::default_sentinel_t end() noexcept;

   private:
    friend class TrainState;
    Epochs(TrainState& state, int count) noexcept;
    TrainState* state_;
    int count_;
  };

  /// Throws: ConfigError for two parts of one name, one that cannot name a file, or a part that does not fit what was
  /// saved; DataError for a damaged checkpoint.
  TrainState(Worker& worker, std::initializer_list<StatePart> parts);
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;
  ~TrainState();

  /// Whether parts were put back from a checkpoint.
  [[nodiscard]] bool is_resumed() const noexcept { return is_resumed_; }

  /// Returns the epochs from the first that is not complete to count - 1: for (int epoch : state.epochs(10)). An epoch
  /// that was left half way is gone on with if the loader that drives steps is a part; without one, a checkpoint counts
  /// the epoch in which it was made as complete, and so the state is copied to memory, and the number of workers
  /// changed, only where report() saves it.
  [[nodiscard]] Epochs epochs(int count) noexcept;

  /// Adds a file to every checkpoint from now on, as it is then, under files/name. Another name on each rank; either
  /// every rank adds files or none does. Throws: ConfigError for a name that this rank has used, or that cannot be one,
  /// and for a directory; report() and the ends of steps, if the file is not there when it is to be saved. If it goes
  /// or becomes shorter while it is copied, that checkpoint is not written, and training goes on.
  void add_file(std::string name, std::filesystem::path source);

  /// Does the same with all files in a directory and in those below it, under files/name/ and their relative paths; the
  /// directory is looked through at each save. One without a file leaves nothing. Throws: ConfigError as add_file(),
  /// and for links and special files in it, which are refused at each save as well, and names that can be in no
  /// checkpoint. Example: state.add_directory("tokenizer", "build/tokenizer");
  void add_directory(std::string name, std::filesystem::path source);

 private:
  friend class Worker;
  using Clock = detail::SnapshotPace::Clock;

  template <class Add>
  void adding(std::string_view call, const Add& add) const {
    try {
      add();
    } catch (const ConfigError& error) {
      throw ConfigError{
          detail::compose("{} on rank {}/{}: {}", call, worker_->rank(), worker_->world_size(), error.what())};
    }
  }

  static void check_name(const std::string& name, std::set<std::string_view>& former);

  void note_environment() const;

  void resume();

  // What workers have learned themselves is, with another number of them, another by roundings: then those of the
  // Trainer's datasets alone are compared.
  void compare_preprocessors(const Checkpoint& checkpoint) const;

  [[nodiscard]] bool differs_in_trainer(std::string_view part, const State& then) const;

  void put(const StatePart& part, const State& state) const;

  [[nodiscard]] std::int64_t next_epoch() const;

  // One checkpoint of the step that ends with it, and of the report: with the step alone, the report would be lost to
  // whoever goes on from there. So it would with a copy to memory.
  void report(const Metrics& metrics);

  void end_step();

  // Nobody could say how much of the epoch under way a copy has seen.
  [[nodiscard]] bool must_complete_epoch() const;

  // What any rank wants at the end of this step. It comes with the gradients, if there are any.
  [[nodiscard]] detail::Wishes agreed_wishes();

  // Whether a wish to stop is one to leave, or the program's own.
  [[nodiscard]] bool agrees_to_leave();

  // Rank 0 decides for all when the state is copied or saved next: one step later, because all have to know.
  void wish();

  void copy_if_due();

  void save(bool is_report);

  struct Handed {
    int slot = 0;
    Clock::duration cost{};  // of all that the step waits for, the making of memory for the first copies included
  };

  // Copies this rank's part of the state to memory that outlives the worker, and hands it over. If there is no such
  // memory, a checkpoint fails as one does that cannot be written. may_lack_room: so does a copy, for which what was
  // copied before counts then; and the first time all find out what copies need, and rank 0 whether there is room,
  // before anybody takes it.
  Handed hand_over(SnapshotKind kind, bool is_report, bool may_lack_room = false);

  // The largest of all ranks' parts.
  [[nodiscard]] std::uint64_t agreed_size(std::uint64_t size);

  // Whether one process looks after all workers.
  [[nodiscard]] bool sees_all() const;

  // How much a restart takes of what ranks of other processes have, for this one.
  [[nodiscard]] std::uint64_t bytes_of_other_parts(const std::vector<FileImage>& images);

  // Why copies would not leave enough memory of this host for all else; empty if they do. Where other processes of the
  // host look after workers as well, they are taken to need as much, and to have as much, as this one. What a restart
  // receives takes the place of a copy, which has to be larger then.
  [[nodiscard]] std::string lack_of_room() const;

  // Before the first copy, where several processes look after the workers: rank 0 knows only of its own host.
  void agree_on_room();

  // Whether copies leave enough memory for all else. Rank 0 says so for all: where one alone made none, those of the
  // others would take their time, and none would be whole.
  [[nodiscard]] bool has_room();

  void warn_of_room(std::string_view why);

  // The others have copied their parts, which the supervisor waits for this one to complete.
  void go_without(detail::SavedMessage save, std::string_view why);

  Worker* worker_;
  std::vector<StatePart> parts_;
  detail::UserFiles files_{};
  std::int64_t epoch_ = -1;  // that is under way
  std::int64_t resumed_epoch_ = 0;
  bool is_resumed_ = false;
  bool is_in_epochs_ = false;
  bool is_reporting_ = false;
  bool must_leave_ = false;
  bool must_resize_ = false;
  bool must_copy_ = false;  // to memory, as soon as what belongs to the step is done
  bool has_lacked_room_ = false;
  std::uint64_t part_bytes_ = 0;     // of a copy of a rank's part, the largest
  std::uint64_t other_bytes_ = 0;    // that a restart receives of other processes
  std::uint64_t checked_bytes_ = 0;  // for which there was room
  detail::SnapshotPace pace_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/briefing.hpp
// What a supervisor tells the workers of a start. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says which attempt of the run begins, and where it goes on.
struct Briefing {
  std::int32_t attempt = 0;
  std::string checkpoint{};  ///< its directory; empty to begin at the beginning, or with a snapshot
  /// The snapshot of each rank of the start before, if workers go on from memory.
  std::vector<std::uint8_t> slots{};
};

[[nodiscard]] Briefing decode_briefing(std::string_view text);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/connecting_store.hpp
// A store whose waits end when the group does: it serves while a backend connects and cannot be aborted yet. Train
// room.

namespace railyard::inline v0_1 {
namespace detail {

/// Passes everything on to another store, and waits there in slices.
class ConnectingStore final : public Store {
 public:
  ConnectingStore(Store& store, int rank) noexcept;

  void set(std::string_view key, std::string_view value) override;
  void expect(const std::vector<std::string>& keys) override;
  [[nodiscard]] Descriptor take_memory() override;
  [[nodiscard]] bool joins_threads() const noexcept override;

  /// Throws: CollectiveError once the group is ending.
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override;

  void abort(std::string_view reason);

 private:
  Store& store_;
  int rank_;
  std::string reason_;  // written once, before is_aborted_
  std::atomic<bool> is_aborted_{false};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/cores.hpp
// How many cores this process may use: what affinity and control groups leave of the machine. Workers room.

// ---- railyard/train/detail/elastic_size.hpp
// How many workers there are to be, now. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Asks the source of capacity, not too often.
class ElasticSize {
 public:
  using Clock = Deadline::Clock;

  explicit ElasticSize(ScalingConfig config);

  [[nodiscard]] const WorkerCount& count() const noexcept { return config_.num_workers; }
  [[nodiscard]] bool is_elastic() const noexcept;

  /// How long whoever looks may sleep.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;

  /// Returns how many workers can be started now; nothing if these are too few.
  [[nodiscard]] std::optional<int> ask();

  /// Returns another number than the one that is running, if it is time to ask and there is one.
  [[nodiscard]] std::optional<int> look(Clock::time_point now, int running);

  /// So many could not be started: it will be fewer. Returns whether that is allowed.
  [[nodiscard]] bool shrink(int failed) noexcept;

  /// Whether to ask again makes no sense: too many hosts are lost.
  [[nodiscard]] bool is_hopeless() const noexcept { return is_hopeless_; }

  /// Asks until there is room for enough workers, a time is over, or asking again makes no sense. pause(time) returns
  /// false to end it. say(text): told once that it is waited for.
  template <class Pause, class Say>
  [[nodiscard]] std::optional<int> wait(std::chrono::nanoseconds time, const Pause& pause, const Say& say) {
    const Deadline end = Deadline::after(time);
    auto size = ask();
    if (!size && !is_hopeless_) say(no_room() + "; it is waited for");
    for (; !size && !is_hopeless_ && !end.expired(); size = ask()) {
      if (!pause(std::chrono::milliseconds{20})) return std::nullopt;
    }
    return size;
  }

  /// Says that there is no room for the least number of workers, and what else is known of that.
  [[nodiscard]] std::string no_room() const;

 private:
  // A function of the user's that throws has no answer: workers that train go on.
  [[nodiscard]] int capacity();

  ScalingConfig config_;
  std::string fault_;
  bool is_hopeless_ = false;
  int limit_ = config_.num_workers.max();
  Clock::time_point next_look_ = Clock::now() + config_.capacity_interval;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/json.hpp
// Writes JSON objects, flat but for lists of such: all that a run's files need. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Builds one JSON object.
class JsonObject {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_convertible_v<const T&, std::string_view> JsonObject& add(
      std::string_view name, const T& value) {
    json_ += json_.empty() ? "{" : ", ";
    append_json_text(json_, name);
    json_ += ": ";
    if constexpr (std::is_floating_point_v<T>) {
      json_ += is_finite(value) ? compose("{}", value) : "null";  // JSON has no NaN and no infinity
    } else if constexpr (std::is_arithmetic_v<T>) {
      json_ += compose("{}", value);
    } else {
      append_json_text(json_, value);
    }
    return *this;
  }
  JsonObject& add(std::string_view name, const Value& value);
  JsonObject& add(std::string_view name, const std::vector<JsonObject>& list);
  JsonObject& add(const NamedValues& values);
  [[nodiscard]] std::string text() const;

 private:
  std::string json_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/lease_file.hpp
// What stands in a run's lease.json, and whether who has written it still lives. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says how often a holder gives a sign of life, how long one that gives none is waited for, how long a lock whose
/// holder cannot be told, or has died, and how long storage that is to say whose run it is while workers train.
struct LeaseTimes {
  std::chrono::nanoseconds beat = std::chrono::seconds{2};
  std::chrono::nanoseconds patience = std::chrono::seconds{15};
  std::chrono::nanoseconds lock = std::chrono::seconds{10};
  std::chrono::nanoseconds answer = std::chrono::milliseconds{200};
  std::chrono::nanoseconds stall = std::chrono::seconds{150};  ///< of storage, until it is given up to look at a holder
};

/// Tells one holder of a run from all others.
struct LeaseId {
  std::uint64_t generation = 0;
  std::string id{};
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
};

/// Is what a holder has written.
struct LeaseContent {
  LeaseId lease{};
  std::string host = "an unknown host";
  std::string boot{};  ///< of the holder's kernel, which knows of all its locks
  std::string since = "an unknown time";
  std::int64_t pid = 0;
  bool has_ended = false;
  bool is_left = false;  ///< it has ended, and left the run to others
  bool is_locked = true;

  /// One that has written no boot may be about to, or belong to an older release, on this host.
  [[nodiscard]] bool is_elsewhere(const std::string& own_boot) const;
  [[nodiscard]] bool has_died() const;
};

/// Opens the file anew each time, so that a network file system asks its server.
class LeaseFile {
 public:
  using Sign = std::pair<std::int64_t, std::int64_t>;

  explicit LeaseFile(std::filesystem::path path, std::shared_ptr<Files> files = std::make_shared<Files>());

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Returns nothing if it cannot be read, which says nothing about whose it is; errno says why.
  [[nodiscard]] std::optional<LeaseContent> read() const;

  /// When it was written or touched last, by whatever clock; nothing if that cannot be told.
  [[nodiscard]] std::optional<Sign> last_sign() const;

  /// Whether a process of this host has locked it, which has it open or has inherited it.
  [[nodiscard]] bool is_locked() const;

  static constexpr std::size_t size = 1024;

 private:
  [[nodiscard]] Descriptor open() const;

  std::filesystem::path path_;
  std::shared_ptr<Files> files_;
};

/// Finds out whether a holder gives signs of life. Whose host it is cannot be asked, nor its clock be trusted. Silence
/// is counted in looks, and a look that stalls tells nothing: the storage may have stood still, or this process, while
/// the holder went on.
class LeaseSilence {
 public:
  explicit LeaseSilence(const LeaseTimes& times);

  /// Looks. Returns whether a sign has come since the look before. A sign begins the silence anew.
  bool look(const LeaseFile& file);
  [[nodiscard]] bool is_over() const noexcept;

 private:
  LeaseTimes times_;
  std::chrono::nanoseconds::rep looks_left_;
  std::optional<LeaseFile::Sign> last_;
};

/// Finds out whether a run may be taken over from its holder, by those who have had a part in its run and have lost it.
class LeaseHolderWatch {
 public:
  explicit LeaseHolderWatch(LeaseContent holder, const LeaseTimes& times = {});

  [[nodiscard]] const LeaseContent& holder() const noexcept { return holder_; }
  [[nodiscard]] bool is_silent() const noexcept;
  /// Whether a look has found a sign of life.
  [[nodiscard]] bool gives_signs() const noexcept { return gives_signs_; }

  /// now: what is read in the file, and names the same holder. It may be taken over if it has left the run to others,
  /// has died on this host with all of its workers, or has been silent for long enough.
  [[nodiscard]] bool is_over(const LeaseFile& file, const LeaseContent& now);

 private:
  LeaseContent holder_;
  LeaseTimes times_;
  LeaseSilence silence_;
  bool gives_signs_ = false;
  std::string own_boot_ = boot_id();
  Deadline::Clock::time_point next_look_ = Deadline::Clock::now();
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/lease_claims.hpp
// Who may have which generation of a run, of those that want it at the same time. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Has each generation of a run have one holder at most, however long anybody is held up at whatever step. A claim is
/// an empty file named by the generation, which one process makes: a network file system lets only one as well. It
/// stays for as long as the run's directory, for a claim that could be made again would be no one's alone.
class LeaseClaims {
 public:
  explicit LeaseClaims(const std::filesystem::path& run, std::shared_ptr<Files> files = std::make_shared<Files>());

  [[nodiscard]] std::filesystem::path path(std::uint64_t generation) const;

  /// Returns the last generation that is claimed; 0 if none is. Throws: Error.
  [[nodiscard]] std::uint64_t last() const;

  /// Returns whether it is this process's: false if another has made that claim. Throws: Error.
  [[nodiscard]] bool make(std::uint64_t generation) const;

  /// Takes back a claim that this process has made and makes nothing of.
  void withdraw(std::uint64_t generation) const noexcept;

 private:
  [[noreturn]] void fail(std::string_view action, int code) const;

  std::filesystem::path folder_;
  std::shared_ptr<Files> files_;
};

/// Finds out whether a claim may be passed over, as whoever has made it has written nothing into the lease since: it
/// has died in between, or is held up, and will find then that another has gone on.
class ClaimWatch {
 public:
  explicit ClaimWatch(LeaseClaims claims, const LeaseTimes& times = {});

  /// Returns the generation after which the next one may be claimed; nothing as long as something may come of a claim
  /// on one after `held`, which is read in the lease. Throws: Error.
  [[nodiscard]] std::optional<std::uint64_t> look(std::uint64_t held);

 private:
  LeaseClaims claims_;
  LeaseTimes times_;
  std::optional<LeaseSilence> silence_;
  std::uint64_t watched_ = 0;
  Deadline::Clock::time_point next_look_ = Deadline::Clock::now();
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_record.hpp
// What an earlier program has written about a run. Train room.

#include <ios>

namespace railyard::inline v0_1 {
namespace detail {

/// Says where a report stands in metrics.jsonl. Lines can be missing: training goes on when one cannot be written.
struct HistoryLine {
  std::int64_t report = 0;
  std::uint64_t end = 0;
};

/// Is what run.json, result.json, metrics.jsonl and events.jsonl say.
struct RunRecord {
  std::string backend{};
  std::string scaling{};
  int world_size = 0;
  std::optional<std::uint64_t> seed{};
  NamedValues settings{};      ///< all that run.json says; empty if it is lost
  bool is_recovered = false;   ///< run.json is lost, and the newest checkpoint has said what it did
  bool has_succeeded = false;  ///< and what was to be saved of it is
  double seconds = 0;
  std::vector<Metrics> history{};
  std::vector<HistoryLine> lines{};  ///< of history, in metrics.jsonl
  std::string last_checkpoint{};     ///< the newest that was ever written; empty if none was
  std::vector<std::string> problems{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/files.hpp
// The files of a run's directory. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns a time of the wall clock by UTC, such as 2024-01-31T12:34:56Z, or as `format` says.
[[nodiscard]] std::string time_text(std::time_t time, const char* format = "%Y-%m-%dT%H:%M:%SZ");

/// Throws: ConfigError if name cannot be the name of a run.
void check_name(const std::string& name);

/// Is where a run is kept.
struct RunPlace {
  std::string name{};
  std::filesystem::path path{};
  bool is_new = true;
};

/// Whether a file is there and nothing is in it, or the zeros that stand for what a power cut has kept from the disk.
[[nodiscard]] bool is_blank(const std::filesystem::path& path);

/// Makes the directory of a run, or finds it there if there is one of that name.
/// Throws: ConfigError if it cannot be made, or is no run's.
[[nodiscard]] RunPlace make_run_directory(const std::string& wanted_name, const std::filesystem::path& storage);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/patience.hpp
// Tells a state that lasts from one that passes, and waits. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Sleeps for so long. Returns false as soon as is_over() says so, which is asked once at least.
template <class IsOver>
[[nodiscard]] bool sleeps_unless(const IsOver& is_over, std::chrono::nanoseconds time) {
  const Deadline deadline = Deadline::after(time);
  do {
    if (is_over()) return false;
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{20}));
  } while (!deadline.expired());
  return true;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/leavable_thread.hpp
// A thread that need not be waited for without end, because storage may hold it up. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is for what waits for storage: a call of the system that never returns cannot be ended from outside.
class LeavableThread {
 public:
  LeavableThread() = default;
  /// run: owns all that it uses, for it may outlive everything else. Throws: std::system_error if there is no thread.
  template <class Run>
  explicit LeavableThread(Run run) {
    std::promise<void> end;
    end_ = end.get_future();
    const BlockSignals block{deferrable_signals()};  // they are for the thread that called fit()
    thread_ = std::thread{[run = std::move(run), end = std::move(end)]() mutable {
      {
        const Run own = std::move(run);
        own();
      }
      end.set_value();
    }};
  }
  LeavableThread(LeavableThread&&) = default;
  /// Only while it has no thread.
  LeavableThread& operator=(LeavableThread&&) = default;
  ~LeavableThread() = default;

  [[nodiscard]] bool is_running() const noexcept;

  void join();
  /// Waits for its end, and leaves it behind at the deadline: it goes on by itself then. Returns whether it has ended.
  bool join_or_leave(const Deadline& deadline);

 private:
  std::future<void> end_{};
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/heartbeat.hpp
// Does something again and again on a thread of its own. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Owns the thread. What it does may wait for storage.
class Heartbeat {
 public:
  /// beat: owns all that it uses, for storage may hold it for longer than all else lives.
  Heartbeat(std::function<void()> beat, std::chrono::nanoseconds interval);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat();

  /// Does it no more. Returns false at the deadline if storage holds it then: it goes on by itself when that answers,
  /// and ends.
  bool end(const Deadline& deadline);

  /// Has it done once more. Returns its number.
  [[nodiscard]] std::uint64_t ask();
  /// Waits until the one of that number is over. Returns whether it is.
  [[nodiscard]] bool has_done(std::uint64_t number, const Deadline& deadline);
  /// Has it done once more, and waits until that is over. Returns whether it is.
  bool beat_now(const Deadline& deadline);

 private:
  struct Pulse {
    std::mutex mutex{};
    std::condition_variable changed{};
    bool is_ending = false;
    std::uint64_t num_begun = 0;
    std::uint64_t num_done = 0;
    std::uint64_t num_wanted = 0;

    void run(const std::function<void()>& beat, std::chrono::nanoseconds interval);
  };

  std::shared_ptr<Pulse> pulse_;
  LeavableThread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/preemption_notice.hpp
// Tells what announces that the machine of a run will be taken away. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Knows the settings, and whether the file has been seen.
class PreemptionNotice {
 public:
  explicit PreemptionNotice(PreemptionConfig config);

  [[nodiscard]] bool is_announced_by(int signal) const;
  /// Whether a signal is about the run: SIGUSR1 is the program's own where it announces nothing.
  [[nodiscard]] bool concerns_run(int signal) const;

  /// How often to ask for the file.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;
  /// Whether the file has come to be since the last call. Storage that does not answer holds up nobody, once look_out()
  /// has been called.
  [[nodiscard]] bool take_file();

  /// Looks for the file on a thread of its own from now on. Returns what there is to be said if there is no thread for
  /// it.
  [[nodiscard]] std::string look_out();
  /// Does so no more until it is asked to again: see RunLease.
  void pause();

 private:
  static constexpr std::chrono::nanoseconds look_interval = std::chrono::milliseconds{500};

  // May be looked for when all else is over: see Heartbeat.
  struct File {
    explicit File(std::filesystem::path its_path);

    void look();

    std::filesystem::path path;
    std::atomic<bool> is_there{false};
  };

  PreemptionConfig config_;
  std::shared_ptr<File> file_;
  bool is_file_taken_ = false;
  std::unique_ptr<Heartbeat> lookout_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/held_lease.hpp
// What a program does with the lease.json of a run that it has, or wants to have. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what was seen last of whose run it is, by whichever thread.
class LeaseSight {
 public:
  using Time = std::chrono::nanoseconds;  // of boot_time()

  void set(std::string taker, Time begun_at);
  [[nodiscard]] std::string taker() const;
  [[nodiscard]] std::optional<Time> age() const;

 private:
  mutable std::mutex mutex_{};
  std::string taker_;
  std::optional<Time> begun_at_;
};

/// Has lease.json open, and its lock if there are locks. Used by several threads at once, as soon as it is made.
class HeldLease {
 public:
  /// See RunLease.
  HeldLease(const std::filesystem::path& run, const LeaseTimes& times, std::shared_ptr<Files> files);
  HeldLease(const std::filesystem::path& run, const LeaseContent& from, bool is_silent, std::uint64_t last_claim,
            const LeaseTimes& times, std::shared_ptr<Files> files);

  [[nodiscard]] const std::filesystem::path& path() const noexcept;
  [[nodiscard]] const LeaseId& id() const noexcept { return own_.lease; }
  [[nodiscard]] const std::string& takeover() const noexcept { return takeover_; }
  [[nodiscard]] const LeaseSight& sight() const noexcept { return sight_; }
  void show() const;

  /// See RunLease.
  [[nodiscard]] bool is_held() const;

  /// Looks whose the run is. Returns whether a sign of life is due: where nobody else is seen to have it.
  [[nodiscard]] bool look();

  /// Looks, and gives a sign of life if one is due.
  void beat();

  /// Says in the file that this program has the run no more.
  void end(bool is_left_to_others) const;

 private:
  [[nodiscard]] std::filesystem::path run() const;

  template <class Ask>
  [[nodiscard]] auto with_claims(const Ask& ask) const {
    try {
      return ask();
    } catch (const Error& error) {
      refuse(compose("cannot be had: {}", error.what()));
    }
  }
  [[nodiscard]] std::uint64_t claimed() const;

  // Whoever was held up before the claim finds another holder after it. Whoever was held up after it, for so long that
  // it was passed over, finds the next claim after writing; what it has written then is written over by that one.
  // is_contended: others may want it, and look from other hosts, where what is written shows once it is synchronised.
  void take_after(std::uint64_t last_claim, const LeaseContent& before, bool is_contended);

  [[nodiscard]] std::string taker_text(const LeaseContent& taker) const;

  // Where the file was removed or damaged, what earlier holders have left tells: it has to be older than this one.
  [[nodiscard]] std::uint64_t generation_before(const LeaseContent& before) const;

  [[nodiscard]] bool is_own(const LeaseContent& content) const { return content.lease == own_.lease; }

  // What a holder from before this one was still writing when it was replaced may come last, and is written over.
  [[nodiscard]] std::optional<LeaseContent> read_past_late() const;

  // Returns true as well where the file system has no locks.
  [[nodiscard]] bool try_lock() const;

  // Returns false if somebody on another host has it, or had it when one on this host took the run over who has gone
  // as well. Where the holder has died, its workers still have the file for a moment.
  [[nodiscard]] bool take_lock() const;

  void watch(const LeaseContent& holder);

  void throw_if_other(const LeaseId& holder) const;

  [[noreturn]] void throw_in_use(const LeaseContent& holder, std::string_view sign) const;

  [[nodiscard]] LeaseContent read_or_refuse() const;

  // Always as long, so that it is there whole after one call, whatever was there before. It lasts once the first
  // checkpoint of its generation does: see CheckpointWriter.
  void write(const LeaseContent& content) const;

  [[noreturn]] void refuse(const std::string& why) const;

  LeaseFile lease_file_;
  LeaseTimes times_;
  std::shared_ptr<Files> files_;
  Descriptor file_{};
  LeaseContent own_{};
  std::string takeover_;
  LeaseSight sight_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_lease.hpp
// Sees to it that one program at a time writes to a run's directory. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Holds lease.json of a run. Its lock belongs to the open file, which the workers inherit: it is free when the last of
/// them has gone, however they end. Between hosts locks may not reach, or stay behind when a host dies. So a holder
/// touches the file again and again, and who comes from another host looks whether that goes on; the time that the file
/// has got by it is only compared with itself, for clocks differ. Its generation grows with each holder, and is claimed
/// before it is written, so that no two have the same: one that was replaced all the same, because it was suspended,
/// finds another than its own, and commits nothing any more.
class RunLease {
 public:
  /// Throws: ConfigError that names the holder if there is one, or if the file cannot be read or written.
  explicit RunLease(const std::filesystem::path& run, const LeaseTimes& times = {},
                    std::shared_ptr<Files> files = std::make_shared<Files>());
  /// Takes the run over from a holder that has died, is silent, or has left it to others: for those who have had a part
  /// in its run, and are told so by LeaseHolderWatch. Of several, one has it. is_silent: its workers may still be
  /// there. last_claim: what ClaimWatch says. Throws: ConfigError that names the holder if another was faster, or if
  /// the file cannot be read or written.
  RunLease(const std::filesystem::path& run, const LeaseContent& from, bool is_silent, std::uint64_t last_claim,
           const LeaseTimes& times = {}, std::shared_ptr<Files> files = std::make_shared<Files>());
  RunLease(RunLease&&) = default;
  RunLease& operator=(RunLease&&) = delete;
  /// Says in the file that it has ended, unless its storage does not answer: that is waited for no longer than for a
  /// holder that gives no sign of life.
  ~RunLease();

  [[nodiscard]] std::uint64_t generation() const noexcept;
  /// By which others know this holder.
  [[nodiscard]] const LeaseId& id() const noexcept;

  /// Has other hosts see that it is held: a network file system may keep for a while what is written.
  void show() const;

  /// Says, when it ends, that others may go on with the run: this program has lost too many of its processes.
  void leave_to_others() noexcept;

  /// Whether nobody has taken the run over. Throws: Error if that cannot be told.
  [[nodiscard]] bool is_held() const;
  /// Returns what asks that, also on other threads, and when the lease has ended.
  [[nodiscard]] std::function<bool()> question() const;

  /// How often to ask.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;
  /// Says who has taken the run over, while this program was suspended or out of touch with the storage; empty if
  /// nobody has, as far as can be told. What the thread that gives signs of life has seen last: storage that does not
  /// answer holds up nobody. A new look is waited for at once if asked for, and where the last one is so old that this
  /// program may have been suspended: but a short while only, and once. Until storage that is slower than that has
  /// answered, what is reported is still written; a checkpoint is not: see is_held().
  [[nodiscard]] std::string taker(bool at_once);

  /// Looks anew, as taker() does at once, in parts between which something else is done. Returns what waits for it
  /// until a deadline, and returns whether it is over: this has looked, or storage has not answered for long enough.
  [[nodiscard]] std::function<bool(const Deadline&)> new_look();

  /// Gives signs of life from now on. Returns what there is to be said if it cannot.
  [[nodiscard]] std::string keep_alive();

  /// Gives none until it is asked to again: a fork of this process needs all threads to be at rest.
  void pause();

  /// Says from whom the run was taken over who had not ended in order on another host; empty if there is no such one.
  [[nodiscard]] const std::string& takeover() const noexcept;

 private:
  LeaseTimes times_;
  std::shared_ptr<HeldLease> held_;
  bool is_to_be_left_ = false;  // when it ends: until then another thread may write
  bool has_waited_ = false;     // for a look at storage that has not answered since
  std::unique_ptr<Heartbeat> heartbeat_;
};

/// Takes the lease of a run; leaves nothing of a new one behind if it cannot be had by anybody.
[[nodiscard]] RunLease take_lease(const RunPlace& place);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/failure_budget.hpp
// Decides whether a run that has failed starts again. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Counts failures. Knows no clock and no workers.
class FailureBudget {
 public:
  struct Verdict {
    bool restarts = false;
    std::chrono::nanoseconds delay{0};
    std::string reason{};  ///< why it does not restart although failures are allowed; else empty
  };

  /// Is what has been counted so far.
  struct Counts {
    std::int32_t failures = 0;  ///< since the budget was whole
    std::int32_t in_all = 0;
    std::int32_t in_a_row = 0;  ///< without progress between them
    std::int32_t at_step = 0;
    std::uint64_t last_step = 0;
  };

  /// is_elastic: the run goes on without hosts that are lost, which is a change of its size and no failure.
  explicit FailureBudget(const FailureConfig& config, bool is_elastic = false);

  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  /// Goes on from what somebody else has counted.
  void go_on_from(const Counts& counts) noexcept;

  /// Whether a failure can be followed by another start at all.
  [[nodiscard]] bool allows_any() const noexcept { return config_.max_failures != 0; }
  /// Whether this one can, by the numbers.
  [[nodiscard]] bool allows(const Failure& failure) const noexcept;

  /// Whether failures of this kind are followed by another start while the budget lasts.
  [[nodiscard]] bool retries(const Failure& failure) const noexcept;

  /// step: how far the attempt had come. has_progressed: a checkpoint was made in it.
  [[nodiscard]] Verdict judge(const Failure& failure, std::uint64_t step, bool has_progressed);

 private:
  // Why failures of its kind are not retried whatever the budget; empty if they are, or nothing has to be said.
  [[nodiscard]] std::string_view refusal(const Failure& failure) const noexcept;

  // Where another start has failed as well, there are not enough left.
  [[nodiscard]] bool is_resize(const Failure& failure) const noexcept;

  [[nodiscard]] std::chrono::nanoseconds delay() const;

  FailureConfig config_;
  bool is_elastic_;
  Counts counts_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_ledger.hpp
// What a run has been through, as whoever leads it next has to know. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is told to all processes before each start of the workers: files of the one that leads may not have reached the
/// storage when it is lost.
struct RunLedger {
  std::int32_t attempt = 0;      ///< that begins
  std::uint64_t begin_step = 0;  ///< where
  std::int32_t world_size = 0;   ///< with so many workers
  FailureBudget::Counts failures{};
  std::vector<Attempt> attempts{};  ///< that have ended

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static RunLedger decode(std::string_view text);
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/together.hpp
// What the process that leads a run tells the others about it: where it is, and how it ended. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Names what a told text is.
enum class Told : std::uint8_t {
  begin = 1,    ///< workers are about to be made, for a run of that name in that directory
  result = 2,   ///< it has ended
  refused = 3,  ///< it could not begin: a ConfigError
  failed = 4,   ///< any other exception
};

/// Is a run that has begun, and by which lease whoever leads it is known.
struct BegunRun {
  std::string name{};
  std::filesystem::path path{};
  LeaseId lease{};
  bool is_seen = false;  ///< here: the directory, and in it that very lease, or one that it was handed on from
};

[[nodiscard]] std::string encode_begin(const BegunRun& run);

/// Returns the run that is about to begin; nothing if the text tells of something else.
[[nodiscard]] std::optional<BegunRun> decode_begin(std::string_view text);

[[nodiscard]] std::string encode_refusal(Told kind, std::string_view why);

[[nodiscard]] std::string encode_result(const Result& result);

/// Returns what the leader's fit() has returned. Throws: what it has thrown.
[[nodiscard]] Result result_of_told(std::string_view text);

/// Says what must be the same in all processes of a run; two that differ in anything of it would wait for each other.
[[nodiscard]] std::string common_settings(std::string_view backend, const WorkerCount& count, bool use_gpu,
                                                 const RunConfig& run);

/// Says on standard error what a process does before a run begins; nothing if it is to be quiet.
[[nodiscard]] std::function<void(const std::string&)> launch_lines(Progress progress);

/// Returns how many workers a run of several processes may have, who make them all together at first; room: how many
/// those that are there can make. Throws: ConfigError if something else is to say that.
[[nodiscard]] ScalingConfig count_together(ScalingConfig config, int num_workers, std::function<int()> room);

/// Calls lead, and tells the other processes how it has ended, whichever way it does.
template <class S, class Lead>
[[nodiscard]] Result tell_others(S& scaling, const Lead& lead) {
  try {
    Result result = lead();
    scaling.tell(encode_result(result));
    return result;
  } catch (const ConfigError& error) {
    scaling.tell(encode_refusal(Told::refused, error.what()));
    throw;
  } catch (const std::exception& error) {
    scaling.tell(encode_refusal(Told::failed, error.what()));
    throw;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/election.hpp
// How the processes that are left of a run come to be led again, when the one that led is lost. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says, in a run's directory, where the process listens that has the run by that lease. No secret is in it: whoever
/// answers there has to know that.
struct LeaderPosting {
  LeaseId lease{};
  LeaderPlace place{};

  /// Returns what went wrong, or an empty text.
  [[nodiscard]] std::string write(const std::filesystem::path& run,
                                  std::shared_ptr<Files> files = std::make_shared<Files>()) const;

  /// Returns nothing if there is none. The directory is opened first, so that a network file system asks its server
  /// what is new in it.
  [[nodiscard]] static std::optional<LeaderPosting> read(const std::filesystem::path& run);
};

/// Returns where the process listens that was chosen to lead the run, if it goes on.
[[nodiscard]] std::optional<LeaderPlace> chosen_leader(const RunConfig& config);

/// Whether the directory of a run is to be seen from here, as who has that lease has told of it. What is there without
/// that lease may be another run's, where storage is not shared. patience: with a network file system that has not yet
/// heard of it.
[[nodiscard]] bool sees_lease(const std::filesystem::path& run, const LeaseId& lease,
                                     std::chrono::nanoseconds patience = std::chrono::seconds{1});

/// Is how an election has ended for a process: it leads, or follows another.
struct Elected {
  std::optional<RunLease> lease{};  ///< of the run, if it leads
  LeaseId leader{};
};

/// Decides who leads, by the lease of the run: whoever takes it over, which one can. Holds signals until its end, so
/// that one which would end the program ends the election instead.
template <JoiningScaling S>
class Election {
 public:
  /// All must outlive it. run: the run's directory. say: is told what people should see.
  Election(S& scaling, std::filesystem::path run, const RunConfig& config, std::function<void(const std::string&)> say,
           const LeaseTimes& times = {})
      : scaling_(&scaling),
        run_(std::move(run)),
        config_(&config),
        notice_(config.preemption),
        say_(std::move(say)),
        times_(times),
        file_(run_ / "lease.json"),
        claims_(LeaseClaims{run_}, times) {}

  /// lost: as whoever led has told of it. why: how it was found out that it is lost.
  /// Throws: HostLostError that says why the run cannot go on here.
  [[nodiscard]] Elected hold(const BegunRun& lost, std::string_view why) {
    why_ = why;
    static_cast<void>(notice_.look_out());
    if (say_) say_(compose("{}; those that are left look for another", why_));
    const std::chrono::nanoseconds least = 2 * times_.patience;  // whoever leads next has to find a silence first
    const Deadline end = config_->start_timeout < least
                             ? Deadline::after(least)
                             : Deadline::after(config_->start_timeout, "RunConfig::start_timeout");
    const Deadline sight = Deadline::after(std::min<std::chrono::nanoseconds>(config_->start_timeout, time_to_see));
    std::optional<LeaseHolderWatch> watch;
    bool is_seen = lost.is_seen;
    while (true) {
      const auto now = file_.read();
      is_seen = is_seen || (now && now->lease == lost.lease);
      if (is_seen && now && now->lease.generation >= lost.lease.generation) {
        if (!watch || watch->holder().lease != now->lease) watch.emplace(*now, times_);
        const bool is_new = now->lease != lost.lease;
        if (is_new && follows(now->lease)) return {.leader = now->lease};
        if (now->has_ended && !now->is_left)
          give_up(compose("process {} on {} has ended the run", now->pid, now->host));
        if (watch->is_over(file_, *now)) {
          if (auto lease = claim(*now, watch->is_silent())) return {.lease = std::move(lease)};
        }
      } else if (!watch && sight.expired()) {
        give_up(
            compose("{} is not to be seen here, or is of another run, and without it no other process can lead: keep "
                    "RunConfig::storage_path where all processes see it",
                    file_.path().string()));
      }
      if (end.expired()) give_up(reason_at_end(watch, lost.lease, end));
      pause(end);
    }
  }

  /// Waits, as the one that has the lease, for those that are left, and leads them then.
  /// Throws: HostLostError if the lease is lost, the run is to end, or this process cannot listen; Error if one of them
  /// does not belong to the run.
  void lead(RunLease& lease) {
    try {
      if (const std::string loss = lease.keep_alive(); say_ && !loss.empty()) say_(loss);
      const Deadline end = Deadline::after(std::min(config_->silence_limit, config_->start_timeout));
      const LeaderPosting posting{.lease = lease.id(), .place = offer(lease.generation())};
      // One that was held up until now must not write over where another listens.
      if (const std::string taker = lease.taker(true); !taker.empty()) give_up(taker);
      if (const std::string loss = posting.write(run_); !loss.empty()) give_up(loss);
      while (!scaling_->take_place(Deadline::after(slice), end.expired())) {
        if (const std::string taker = lease.taker(false); !taker.empty()) give_up(taker);
        pause(end);
      }
    } catch (...) {
      lease.leave_to_others();
      throw;
    }
  }

  /// Returns with how many workers those go on that are there. Throws: HostLostError if they are too few.
  [[nodiscard]] int find_room(ElasticSize& size) {
    const auto found = size.wait(
        config_->start_timeout, [this](auto time) { return sleeps_unless([this] { return is_asked_to_end(); }, time); },
        [this](const std::string& text) {
          if (say_) say_(text);
        });
    if (found && !is_asked_to_end()) return *found;
    give_up(end_sign_.empty() ? size.no_room() : compose("{} came", end_sign_));
  }

  /// Whether a signal or a file asks the run to end. Remembered.
  [[nodiscard]] bool is_asked_to_end() {
    while (const auto signal = signals_.take()) {
      if (notice_.concerns_run(*signal)) end_sign_ = signal_name(*signal);
    }
    if (notice_.take_file()) end_sign_ = config_->preemption.file.string();
    return !end_sign_.empty();
  }

 private:
  static constexpr std::chrono::milliseconds slice{50};
  static constexpr std::chrono::seconds time_to_see{5};
  static constexpr std::chrono::seconds time_to_connect{3};

  [[nodiscard]] LeaderPlace offer(std::uint64_t generation) {
    try {
      return scaling_->offer(generation);
    } catch (const Error& error) {
      give_up(compose("this process was to lead, and cannot listen: {}", error.what()));
    }
  }

  [[nodiscard]] bool follows(const LeaseId& leader) {
    const auto posting = LeaderPosting::read(run_);
    return posting && posting->lease == leader &&
           scaling_->try_to_follow(posting->place, Deadline::after(time_to_connect));
  }

  [[nodiscard]] std::optional<RunLease> claim(const LeaseContent& from, bool is_silent) {
    try {
      if (const auto last = claims_.look(from.lease.generation)) {
        return std::optional<RunLease>{std::in_place, run_, from, is_silent, *last, times_};
      }
      hindrance_ = "another process has claimed it, and has not come to lead it";
      return std::nullopt;
    } catch (const Error& error) {  // another was faster, or the storage takes nothing
      hindrance_ = error.what();
      return std::nullopt;
    }
  }

  [[nodiscard]] std::string reason_at_end(const std::optional<LeaseHolderWatch>& watch, const LeaseId& lost,
                                          const Deadline& end) const {
    if (!watch) return compose("{} cannot be read", file_.path().string());
    const LeaseContent& holder = watch->holder();
    const std::string time = end.budget_text();
    if (!hindrance_.empty()) return compose("no other process has come to lead it within {}: {}", time, hindrance_);
    if (holder.lease == lost && !watch->gives_signs()) {
      return compose(
          "whether process {} on {}, which led, still lives cannot be told from {} within {}: its storage stalls",
          holder.pid, holder.host, file_.path().string(), time);
    }
    if (holder.lease == lost) {
      return compose(
          "process {} on {}, which led, still gives signs of life in {} after {}, and goes on without this one",
          holder.pid, holder.host, file_.path().string(), time);
    }
    return compose("process {} on {} leads now, and could not be reached within {}", holder.pid, holder.host, time);
  }

  void pause(const Deadline& end) {
    const auto time = std::min<std::chrono::nanoseconds>(slice, end.remaining());
    if (!sleeps_unless([this] { return is_asked_to_end(); }, time)) give_up(compose("{} came", end_sign_));
  }

  [[noreturn]] void give_up(std::string_view reason) const { throw HostLostError{compose("{}; {}", why_, reason)}; }

  S* scaling_;
  std::filesystem::path run_;
  const RunConfig* config_;
  PreemptionNotice notice_;
  std::function<void(const std::string&)> say_;
  LeaseTimes times_;
  LeaseFile file_;
  ClaimWatch claims_;
  SignalWatch signals_{};
  std::string why_{};
  std::string hindrance_{};
  std::string end_sign_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/follower_parts.hpp
// Has the processes that follow write their workers' parts of a checkpoint, where they see its directory. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what carries out a WriteOrder. It makes no directory: where that of the order has been given up, nothing is
/// written. patience: with a network file system that has not yet heard of the directory.
[[nodiscard]] RequestHandler part_writer(std::shared_ptr<Files> files = std::make_shared<Files>(),
                                                std::chrono::nanoseconds patience = std::chrono::seconds{1});

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/checkpoint_writer.hpp
// Writes checkpoints on a thread of the supervisor, while the workers go on. Train room.

// ---- railyard/train/detail/storage_thread.hpp
// Does what may wait for storage on a thread of its own, while whoever asks for it goes on. Train room.

// ---- railyard/train/detail/run_directory.hpp
// The directory of a run while workers train: what is written there, nobody waits for. Train room.

// ---- railyard/train/detail/result_file.hpp
// What result.json says. Train room.

// ---- railyard/train/detail/run_log.hpp
// What a supervisor has to say while a run goes on: on the console, in events.jsonl, in the Result. Train room.

// ---- railyard/train/detail/save_book.hpp
// Puts the ranks' parts of a checkpoint together. Train room.

// ---- railyard/train/detail/run_checkpoints.hpp
// The checkpoints of a run as its supervisor sees them: put together, written, counted. Train room.

// ---- railyard/train/detail/report_book.hpp
// Puts the ranks' reports together: call number i of every rank is report i. Train room.

// ---- railyard/train/detail/run_history.hpp
// What the ranks have reported: rank 0's in metrics.jsonl, everybody's for the callbacks. Train room.

// ---- railyard/train/detail/resume_point.hpp
// Where the next start of a run's workers goes on: a checkpoint, the state in memory, or the beginning. Train room.

// ---- railyard/train/detail/inheritance.hpp
// How a process that leads a run after another goes on with it, and what it leaves to the next one. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a process begins with that leads a run after another.
struct Inheritance {
  RunLedger ledger{};
  std::string why{};           ///< it does: who is lost, and who leads now
  double seconds = 0;          ///< since fit() was called
  std::uint64_t end_step = 0;  ///< that workers had ended by then, as far as is known here

  /// Adds the attempt that has ended with who led, where the run goes on at next_step.
  [[nodiscard]] std::vector<Attempt> attempts(std::uint64_t next_step) const;
};

/// why: how the loss was found out.
[[nodiscard]] std::string text_of_succession(const LostLead& lost, std::string_view why);

[[nodiscard]] Inheritance inherit(const LostLead& lost, std::string why, Deadline::Clock::time_point called_at);

/// Says how a process has come to lead, and how it lets others know what they have to if it is lost.
struct Leadership {
  std::function<void(std::string_view note)> note{};
  std::optional<Inheritance> inherited{};
  bool may_be_replaced = false;  ///< by one of those that follow, when they have lost this process

  void tell(const RunLedger& ledger) const;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/policies.hpp
// Says in one sentence what is wrong with a pair of policies. Train room.

namespace railyard::inline v0_1 {
namespace detail {

template <class T>
concept Complete = requires {
  sizeof(T);
};

/// Is a pair of policies that can work.
template <class B, class S>
concept FittingPolicies = Complete<B> && Complete<S> && Backend<B> && Scaling<S> &&(B::reach >= S::reach);

/// Is a pair of policies of which at least one stands in the other's place.
template <class B, class S>
concept SwappedPolicies = (Complete<B> && Scaling<B>) || Backend<S>;

template <class B, class S>
struct OrderedPolicies {
  static_assert(!SwappedPolicies<B, S>,
                "a Trainer names its Backend first and its Scaling second, as in Trainer<Gloo, Processes>: here a "
                "Scaling stands in the place of the Backend, or a Backend in the place of the Scaling");
};

template <class B, class S>
struct CompletePolicies {
  static_assert(
      Complete<B>,
      "the Backend of this Trainer is only declared here. For Gloo, which is the default, compile with "
      "-DRAILYARD_WITH_GLOO=1 and link with -lgloo; without libgloo, say Trainer<SharedMemory, Processes>. For any "
      "other, include its header");
  static_assert(Complete<S>,
                "the Scaling of this Trainer is only declared here: include <railyard/railyard.hpp>, or its header");
};

template <class B, class S>
struct BothPolicies {
  static_assert(
      Backend<B>,
      "the first policy of this Trainer is no Backend: the compiler names below what the class lacks; "
      "railyard/core/backend.hpp says what each part has to do. There are Gloo, SharedMemory, Nccl, Local and "
      "Checked<Gloo>");
  static_assert(Scaling<S>,
                "the second policy of this Trainer is no Scaling: the compiler names below what the class lacks; "
                "railyard/core/scaling.hpp says what each part has to do. There are Processes, Threads and Launched");
};

template <class B, class S>
struct ReachingPolicies {
  static_assert(B::reach >= S::reach || B::reach != Reach::process,
                "this Backend cannot reach the workers that this Scaling makes: Local joins the threads of one process "
                "only; say Trainer<Gloo, Processes>, or Trainer<Local, Threads>");
  static_assert(B::reach >= S::reach || B::reach == Reach::process,
                "this Backend cannot reach the workers that this Scaling makes: SharedMemory joins the workers of one "
                "host only; say Trainer<Gloo, Launched>, which shares memory on each host, or "
                "Trainer<SharedMemory, Processes>");
};

/// Is instantiated for a pair that does not fit. The questions are asked one after another, each in a class of its own:
/// the compiler answers with one sentence, and a static_assert of nothing but a concept makes it name the missing part.
template <class B, class S>
constexpr auto refuse_policies() {
  if constexpr (SwappedPolicies<B, S>) {
    static_cast<void>(sizeof(OrderedPolicies<B, S>));
  } else if constexpr (!Complete<B> || !Complete<S>) {
    static_cast<void>(sizeof(CompletePolicies<B, S>));
  } else if constexpr (!Backend<B> || !Scaling<S>) {
    static_cast<void>(sizeof(BothPolicies<B, S>));
  } else {
    static_cast<void>(sizeof(ReachingPolicies<B, S>));
  }
}

/// Takes the place of the options of a backend that there is none of.
struct AnyOptions {
  AnyOptions() = default;
  template <class T>
  AnyOptions(const T& /*options*/) {}
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_settings.hpp
// What run.json tells of the settings of a run. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Adds the settings that fit() was called with, but those that the record of a run has anyway (name, seed), that are
/// code (callbacks, functions), and accept_changes. Times are in seconds.
void add_settings(JsonObject& object, const RunConfig& run, const ScalingConfig& scaling);

/// Says which settings differ from those that run.json told, "max_failures 3 instead of 0, ..."; empty if none does.
/// has_other_size: the number of workers is told by itself.
[[nodiscard]] std::string difference_of_settings(const RunConfig& run, const ScalingConfig& scaling,
                                                        const NamedValues& then, bool has_other_size);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/activity.hpp
// Says what the ranks of a group are doing, as far as their pages tell. Train room.

// ---- railyard/train/detail/attentive_wait.hpp
// Waits while a run has no workers, for time to pass or for storage, and hears signals meanwhile. Train room.

// ---- railyard/train/detail/farewell.hpp
// Whether a run that was told of its end has saved its state since. Train room.

// ---- railyard/train/detail/first_start.hpp
// Makes the first workers of a run, again if need be, and hears meanwhile who asks it to end. Train room.

// ---- railyard/train/detail/step_watch.hpp
// Notices that a rank ends no step any more. Train room.

// ---- railyard/train/detail/rank_watch.hpp
// Finds ranks that stand still, and keeps what all were doing then. Train room.

// ---- railyard/train/detail/roll_call.hpp
// What the ranks of an attempt have told of themselves. Train room.

// ---- railyard/train/detail/run_callbacks.hpp
// Calls a run's callbacks, whatever they throw. Train room.

// ---- railyard/train/detail/supervision.hpp
// Drives one run: passes the group's events to the controller, the files, the callbacks and the console. Train room.

// ---- railyard/train/detail/supervise.hpp
// Supervises a run as one function, so that what calls it for each kind of policy need not know how. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Runs to the end, with what Supervision takes. start: starts a group. renew: called before workers are started again.
/// Throws: ConfigError as Supervision::run() does.
[[nodiscard]] Result supervise(const RunConfig& config, ElasticSize size, RunInfo info,
                                      Deadline::Clock::time_point called_at, RunLease lease, RunRecord before,
                                      Leadership leadership,
                                      const std::function<std::unique_ptr<WorkerGroup>(const GroupPlan&)>& start,
                                      const std::function<void(int num_workers)>& renew);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/worker_of.hpp
// The worker with its typed backend: where the training function meets a model of Backend. Train room.

namespace railyard::inline v0_1 {

/// Is the Worker that a training function with `auto& worker` gets: the backend's own operations are at hand.
template <Backend B>
class WorkerOf final : public Worker {
 public:
  /// link and context must outlive the worker; world is the link's, with the device that the worker was given. The end
  /// of the group ends the backend's waits from here on.
  WorkerOf(WorkerLink& link, const RunContext& context, const World& world, std::unique_ptr<B> backend)
      : Worker(link, context, world), backend_(std::move(backend)) {
    this->link().on_abort([this](std::string_view reason) {
      this->end_waits(reason);
      backend_->abort(reason);
    });
  }
  ~WorkerOf() {
    leave_if_forked();
    this->drop_extensions();  // they may use the backend while they end
    this->link().on_abort({});
  }

  [[nodiscard]] Device device() const noexcept override {
    if constexpr (requires(const B& backend) {
                    { backend.device() } -> std::same_as<Device>;
                  }) {
      return backend_->device();
    } else {
      return {B::device_kind, B::device_kind == DeviceKind::cpu ? 0 : this->device_index().value_or(0)};
    }
  }

  [[nodiscard]] HostMemory* host_memory() noexcept override {
    if constexpr (requires(B & backend) {
                    { backend.host_memory() } -> std::same_as<HostMemory*>;
                  }) {
      return backend_->host_memory();
    } else {
      return nullptr;
    }
  }

  [[nodiscard]] SideLine* side_line() override {
    if constexpr (requires(B & backend, const Deadline& deadline) {
                    { backend.side_line(deadline) } -> std::same_as<SideLine*>;
                  }) {
      return backend_->side_line(this->collective_deadline());
    } else {
      return nullptr;
    }
  }

  [[nodiscard]] B& backend() noexcept {
    this->note_backend();
    return *backend_;
  }

 private:
  // Shows on the page what this worker waits for, and since when: that is how a supervisor tells who is late.
  template <class Operation>
  void carry_out(Operation operation) {
    const Call call{.deadline = this->collective_deadline()};
    WaitingMark mark{this->page()};
    try {
      auto work = operation(call);
      work.wait(call.deadline);
    } catch (const CollectiveError&) {  // the group is lost: the supervisor reads what this rank waited for last
      mark.keep();
      throw;
    }
  }

  class WaitingMark {
   public:
    explicit WaitingMark(WorkerPage& page) noexcept : page_(page) {
      page_.collectives.fetch_add(1, std::memory_order_relaxed);
      const std::chrono::nanoseconds now = Deadline::Clock::now().time_since_epoch();
      page_.waiting_since_ns.store(now.count(), std::memory_order_relaxed);
    }
    WaitingMark(const WaitingMark&) = delete;
    WaitingMark& operator=(const WaitingMark&) = delete;
    ~WaitingMark() {
      if (!is_kept_) page_.waiting_since_ns.store(0, std::memory_order_relaxed);
    }
    void keep() noexcept { is_kept_ = true; }

   private:
    WorkerPage& page_;
    bool is_kept_ = false;
  };

  void do_barrier() override {
    carry_out([&](const Call& call) { return backend_->barrier(call); });
  }
  void do_all_reduce(Buffer data, ReduceOp op) override {
    carry_out([&](const Call& call) { return backend_->all_reduce(data, op, call); });
  }
  void do_broadcast(Buffer data, int root) override {
    carry_out([&](const Call& call) { return backend_->broadcast(data, root, call); });
  }
  void do_all_gather(ConstBuffer in, Buffer out) override {
    carry_out([&](const Call& call) { return backend_->all_gather(in, out, call); });
  }
  void do_all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) override {
    carry_out([&](const Call& call) { return backend_->all_gather_uneven(in, out, counts, call); });
  }
  void do_reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) override {
    carry_out([&](const Call& call) { return backend_->reduce_scatter(in, out, op, call); });
  }
  void do_gather(ConstBuffer in, Buffer out, int root) override {
    carry_out([&](const Call& call) { return backend_->gather(in, out, root, call); });
  }
  void do_scatter(ConstBuffer in, Buffer out, int root) override {
    carry_out([&](const Call& call) { return backend_->scatter(in, out, root, call); });
  }
  void do_all_to_all(ConstBuffer in, Buffer out) override {
    carry_out([&](const Call& call) { return backend_->all_to_all(in, out, call); });
  }
  void do_send(ConstBuffer data, int to) override {
    carry_out([&](const Call& call) { return backend_->send(data, to, call); });
  }
  void do_receive(Buffer data, int from) override {
    carry_out([&](const Call& call) { return backend_->receive(data, from, call); });
  }

  // A process that the training function has forked must not end what it shares with the worker: the connections, and
  // the report of how the worker ended.
  void leave_if_forked() const noexcept {
    if (::getpid() == process_) return;
    std::fflush(nullptr);
    ::_exit(std::uncaught_exceptions() > 0 ? 1 : 0);
  }

  std::unique_ptr<B> backend_;
  pid_t process_ = ::getpid();
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/training_function.hpp
// Keeps a training function of any type, move-only ones too, behind one type. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is a training function of any type.
template <class B>
class TrainingFunction {
 public:
  TrainingFunction() = default;
  TrainingFunction(const TrainingFunction&) = delete;
  TrainingFunction& operator=(const TrainingFunction&) = delete;
  virtual ~TrainingFunction() = default;

  /// Is there nothing to be called, as in an empty std::function, or a null pointer?
  [[nodiscard]] virtual bool is_empty() const = 0;
  virtual void call(WorkerOf<B>& worker) = 0;
  /// Returns a copy, or nothing if this kind of workers needs none. Throws: ConfigError if its copy constructor does.
  [[nodiscard]] virtual std::unique_ptr<TrainingFunction> copy() const = 0;
};

/// Is one of type F. Only where MustCopy is true, F needs a copy constructor.
template <class B, class F, bool MustCopy>
class TrainingFunctionOf final : public TrainingFunction<B> {
 public:
  template <class From>
  explicit TrainingFunctionOf(std::in_place_t /*tag*/, From&& function) : function_(std::forward<From>(function)) {}

  [[nodiscard]] bool is_empty() const override {
    if constexpr (std::is_pointer_v<F> || std::is_member_pointer_v<F>) {
      return function_ == nullptr;
    } else if constexpr (requires { static_cast<bool>(function_.operator bool()); }) {  // unlike a lambda's pointer
      return !static_cast<bool>(function_.operator bool());
    } else {
      return false;
    }
  }
  void call(WorkerOf<B>& worker) override { static_cast<void>(std::invoke(function_, worker)); }
  [[nodiscard]] std::unique_ptr<TrainingFunction<B>> copy() const override {
    if constexpr (MustCopy) {
      try {
        return std::make_unique<TrainingFunctionOf>(std::in_place, function_);
      } catch (...) {
        throw ConfigError{
            compose("copying the training function, which each worker thread has its own copy of, threw: {}",
                    exit_of(std::current_exception()).message)};
      }
    } else {
      return nullptr;
    }
  }

 private:
  F function_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/unread_settings.hpp
// Refuses settings that would do nothing. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// scaling_name: of the policy; joins: whether its processes have to find each other.
/// Throws: ConfigError that names the first setting which nobody would look at.
void refuse_unread_settings(const ScalingConfig& scaling, std::string_view scaling_name, bool joins);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/nvml.hpp
// The GPUs of this host as NVIDIA's management library tells them, which leaves CUDA alone. Core room.

// ---- railyard/core/detail/visible_devices.hpp
// Which of a host's GPUs a process is shown, as CUDA_VISIBLE_DEVICES says. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a worker can be given: a GPU, or one instance of a divided one.
struct VisibleDevice {
  std::string uuid{};  ///< empty if it is not known
  bool is_instance = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/found_devices.hpp
// The GPUs that the workers of this process may have, counted without initialising CUDA in it. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what has been found, and how.
struct FoundDevices {
  std::vector<VisibleDevice> devices{};
  std::string how{};     ///< who has counted what, in words
  std::string remedy{};  ///< what to do where that is too few

  [[nodiscard]] int count() const noexcept;
  /// Whether a process can use but one of them, which CUDA_VISIBLE_DEVICES has to name: so it is with instances of MIG.
  [[nodiscard]] bool are_instances() const noexcept;
};

/// Asks NVML, and where it does not answer the CUDA driver, in a child. Where neither answers there is no device.
[[nodiscard]] FoundDevices find_devices(const Deadline& deadline);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/worker_devices.hpp
// Which GPU each worker of this process has. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Are the GPUs that this process is shown, of which each worker has one; none where none are asked for.
class WorkerDevices {
 public:
  WorkerDevices() = default;
  /// share_process: all workers are of one process, and of instances of MIG that can use no more than one.
  WorkerDevices(FoundDevices found, bool share_process);

  [[nodiscard]] bool are_asked_for() const noexcept;

  /// Throws: ConfigError if there are fewer than so many workers.
  void require(int num_workers) const;

  /// Returns which one a worker has, by its number among those that its process sees; -1 if none are asked for. The
  /// process that is shown no more than one has that, whatever the number of its worker on the host. Called in the
  /// worker's process before it uses CUDA: of instances of MIG it is shown its own alone.
  [[nodiscard]] int give(const World& world) const;

  /// Returns what other processes of the run are told of them.
  [[nodiscard]] JoinDevices told() const;

  /// Returns for how many workers there are GPUs now; those that have been lost since are not counted.
  [[nodiscard]] int count_now() const;

 private:
  std::optional<FoundDevices> found_;
};

/// Makes a range of workers follow the GPUs, and what else there is room for only if the user says so.
[[nodiscard]] ScalingConfig limit_to_devices(ScalingConfig config, const WorkerDevices& devices);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/trainer.hpp
// Runs a training function on many workers: the one place where a Backend and a Scaling meet. Train room.

namespace railyard::inline v0_1 {

class Gloo;       // the defaults of Trainer are only named here: their headers stand on the same floor
class Processes;  // and are included by whoever uses them, railyard.hpp first of all

namespace detail {

/// Throws: ConfigError that names the first setting that cannot work.
void check_settings(const ScalingConfig& scaling, const RunConfig& run);

/// Returns how many workers a run begins with. Throws: ConfigError if there is not even room for the least number.
[[nodiscard]] int first_size(ElasticSize& size, std::chrono::nanoseconds start_timeout);

/// Finds out what an earlier program has left of the run, and whether this one may go on with it.
/// Throws: ConfigError if it may not.
[[nodiscard]] RunRecord read_earlier(const RunPlace& place, const RunConfig& run, const ScalingConfig& scaling,
                                            const RunInfo& info);

/// Returns the Result that a run has left which has succeeded.
[[nodiscard]] Result recorded_result(const RunPlace& place, const RunConfig& run, RunRecord before);

/// Writes run.json. is_new: there is nothing else yet of the run, so that it need not last before the first checkpoint,
/// which sees to that. Throws: ConfigError if the storage takes no files.
void write_run(const RunInfo& info, const RunConfig& run, const ScalingConfig& scaling, bool is_new);

/// Writes run.json anew, as the record says that it was. info: of the run that goes on. Throws: as write_run().
void write_again(const RunRecord& before, RunInfo info, const RunConfig& run, const ScalingConfig& scaling);

}  // namespace detail

/// Is what policies that cannot work get: one sentence of the compiler about what is wrong with them. The one that
/// trains stands below.
template <class B = Gloo, class S = Processes>
class Trainer {
  using Refused = decltype(detail::refuse_policies<B, S>());

 public:
  // What the other one takes as well, so that nothing follows that sentence; and so that the arguments lead to the
  // default policies.
  template <class F>
  Trainer(F&&, ScalingConfig, RunConfig = {}, const detail::AnyOptions& = {}) {}
  template <class F>
  Trainer(F&&, ScalingConfig, RunConfig, Datasets, const detail::AnyOptions& = {}) {}
  template <class F, class Other, class... Rest>
  requires(!std::convertible_to<Other, ScalingConfig>) Trainer(F&&, Other&&, Rest&&...) {}
  Result fit();
};

/// Runs a training function on many workers and waits for them.
///
/// The function takes one argument: `auto& worker`, a Worker&, or a WorkerOf<Backend>&. Where workers are threads, each
/// runs its own copy of it; where they are processes, each has its own copy of the whole program, so that what the
/// function writes to its captures does not come back.
/// Example: ry::Trainer<ry::Gloo, ry::Processes> trainer{[](auto& worker) { ... }, {.num_workers = 2}};
/// The datasets are those that worker.dataset("train") gives; the options are the backend's.
template <class B, class S>
requires detail::FittingPolicies<B, S>
class Trainer<B, S> {
 public:
  /// Keeps the function and the settings; nothing is started or checked before fit().
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Trainer>)
      Trainer(F&& function, ScalingConfig scaling, RunConfig run = {}, Datasets datasets = {},
              typename B::Options options = {})
      : function_(keep(std::forward<F>(function))),
        scaling_(std::move(scaling)),
        run_(std::move(run)),
        datasets_(std::move(datasets)),
        options_(std::move(options)) {}
  /// Keeps them for a run without datasets.
  template <class F>
  Trainer(F&& function, ScalingConfig scaling, RunConfig run, typename B::Options options)
      : Trainer(std::forward<F>(function), std::move(scaling), std::move(run), Datasets{}, std::move(options)) {}

  /// Refuses a second argument that is no ScalingConfig.
  template <class F, class Other, class... Rest>
  requires(!std::convertible_to<Other, ScalingConfig>) Trainer(F&&, Other&&, Rest&&...) {
    static_assert(std::convertible_to<Other, ScalingConfig>,
                  "the second argument of a Trainer says how many workers there are, by name: {.num_workers = 2}");
  }

  /// Runs the function on all workers and returns when none of them is left. May be called again: a new run. Under
  /// Launched, every process calls it, and it returns the same in all of them.
  /// Throws: ConfigError before anything is started, if a setting cannot work; it names the setting and the remedy.
  Result fit() {
    std::vector<std::pair<std::string, detail::DatasetPreprocessors>> preprocessors;
    for (const NamedDataset& one : datasets_) {
      detail::DatasetPreprocessors of_one{one.dataset};
      if (!of_one.empty()) preprocessors.emplace_back(one.name, std::move(of_one));
    }
    return run().with(std::move(preprocessors));
  }

  /// Returns a Trainer that goes on with the run in that directory. Throws: ConfigError if the path names none; what
  /// fit() throws, when it is called.
  template <class F>
  [[nodiscard]] static Trainer restore(const std::filesystem::path& run_directory, F&& function, ScalingConfig scaling,
                                       RunConfig run = {}, Datasets datasets = {}, typename B::Options options = {}) {
    std::error_code code;
    auto path = std::filesystem::absolute(run_directory, code).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    if (code || !path.has_filename()) {
      throw ConfigError{detail::compose("Trainer::restore() was given \"{}\": give it the directory of a run",
                                        run_directory.string())};
    }
    run.name = path.filename().string();
    run.storage_path = path.parent_path();
    run.resume = Resume::required;
    return Trainer{std::forward<F>(function), std::move(scaling), std::move(run), std::move(datasets),
                   std::move(options)};
  }

 private:
  using Function = detail::TrainingFunction<B>;

  Result run() {
    const auto called_at = Deadline::Clock::now();
    detail::check_settings(scaling_, run_);
    detail::refuse_unread_settings(scaling_, S::name, JoiningScaling<S>);
    if (function_->is_empty()) {
      throw ConfigError{
          "the training function given to Trainer is empty (an empty std::function, or a null pointer): give "
          "it one that can be called"};
    }
    detail::check_datasets(datasets_, run_.data);
    find_devices();
    B::check(options_);
    detail::open_standard_streams();
    S scaling{};
    if constexpr (JoiningScaling<S>) {
      scaling.join({.launch = scaling_.launch,
                    .num_workers = scaling_.num_workers.max(),
                    .is_elastic = scaling_.num_workers.is_elastic(),
                    .settings = detail::common_settings(B::name, scaling_.num_workers, devices_.are_asked_for(), run_),
                    .timeout = run_.start_timeout,
                    .silence_limit = run_.silence_limit,
                    .say = detail::launch_lines(run_.progress),
                    .devices = devices_.told(),
                    .on_request = detail::part_writer(),
                    .find_chosen = [this] { return detail::chosen_leader(run_); }});
      if (!scaling.leads()) return follow(scaling, called_at);
      return detail::tell_others(scaling, [&] { return lead(scaling, called_at); });
    } else {
      return lead(scaling, called_at);
    }
  }

  // A Backend of GPUs needs one for each worker, unless its options say which.
  [[nodiscard]] bool gives_devices() const {
    if constexpr (requires { requires std::same_as<decltype(options_.device), int>; }) {
      if (options_.device >= 0) return false;
    }
    return B::device_kind != DeviceKind::cpu;
  }

  // Where workers are forked, nothing may have used CUDA here, and nothing does.
  void find_devices() {
    if constexpr (!S::copies_function) detail::refuse_to_fork_after_cuda();
    if (!scaling_.use_gpu && !gives_devices()) return;
    devices_ = {detail::find_devices(Deadline::after(run_.start_timeout, "RunConfig::start_timeout")),
                S::reach == Reach::process};
  }

  Result lead(S& scaling, Deadline::Clock::time_point called_at) {
    ScalingConfig count = scaling_;
    bool is_many = false;
    if constexpr (JoiningScaling<S>) {
      is_many = scaling.num_processes() > 1;
      if (is_many || !count.num_workers.is_elastic()) {
        count = detail::count_together(std::move(count), scaling.num_workers(), [&scaling] { return scaling.room(); });
      }
    }
    if (!is_many) {
      devices_.require(count.num_workers.min());
      count = detail::limit_to_devices(std::move(count), devices_);
    }
    detail::ElasticSize size{std::move(count)};
    RunInfo info{.backend = std::string{B::name},
                 .scaling = std::string{S::name},
                 .world_size = detail::first_size(size, run_.start_timeout),
                 .seed = run_.seed};
    const detail::RunPlace place = detail::make_run_directory(run_.name, run_.storage_path);
    return go_on(scaling, std::move(size), std::move(info), place, detail::take_lease(place), run_, called_at, {});
  }

  // In a process that leads, and has the run. run: its settings. inherited: of whoever led before.
  Result go_on(S& scaling, detail::ElasticSize size, RunInfo info, const detail::RunPlace& place,
               detail::RunLease lease, const RunConfig& run, Deadline::Clock::time_point called_at,
               std::optional<detail::Inheritance> inherited) {
    info.name = place.name;
    info.path = place.path;
    detail::RunRecord before = detail::read_earlier(place, run, scaling_, info);
    const bool has_other_seed = before.seed && *before.seed != info.seed && !before.has_succeeded;  // by permission
    if (has_other_seed) before.seed = info.seed;  // the next start needs none
    if (before.is_recovered || has_other_seed) detail::write_again(before, info, run, scaling_);
    if (before.has_succeeded) return detail::recorded_result(place, run, std::move(before));
    if (before.world_size == 0) detail::write_run(info, run, scaling_, true);
    detail::Leadership leadership{.inherited = std::move(inherited)};
    if constexpr (JoiningScaling<S>) {
      leadership.note = [&scaling](std::string_view note) { scaling.note(note); };
      leadership.may_be_replaced = scaling.num_processes() > 1 && scaling.lost_lead().may_go_on;
      if (leadership.may_be_replaced) lease.show();  // the others look for it
      scaling.tell(detail::encode_begin({.name = info.name, .path = info.path, .lease = lease.id()}));
    }

    const RunContext context = context_of(info.name, info.path);
    std::vector<std::unique_ptr<Function>> copies;  // made one after another, by the thread that called fit()
    const auto renew = [&](int num_workers) {
      copies.clear();
      for (int rank = 0; S::copies_function && rank < num_workers; ++rank) copies.push_back(function_->copy());
    };
    const WorkerBody body = [&](WorkerLink& link) {
      Function& own = S::copies_function ? *copies[static_cast<std::size_t>(link.world().rank)] : *function_;
      run_worker(link, context, own);
    };
    const auto start = [&](const GroupPlan& plan) {
      renew(plan.num_workers);
      return scaling.start(plan, body);
    };
    return detail::supervise(run, std::move(size), std::move(info), called_at, std::move(lease), std::move(before),
                             std::move(leadership), start, renew);
  }

  // In a process that another one leads: makes workers as it is told to, until it is told the result. If the one that
  // leads is lost, it follows another, or leads itself.
  Result follow(S& scaling, Deadline::Clock::time_point called_at) {
    std::optional<detail::BegunRun> begun;
    try {
      for (bool has_begun = false;;) {
        try {
          const std::string told = has_begun ? scaling.follow(body_of(*begun)) : scaling.hear();
          auto begin = detail::decode_begin(told);
          if (!begin) return detail::result_of_told(told);
          begin->is_seen = (begun && begun->is_seen) ||
                           (scaling.lost_lead().may_go_on && detail::sees_lease(begin->path, begin->lease));
          begun = std::move(begin);
          has_begun = true;
        } catch (const HostLostError& error) {
          const LostLead lost = scaling.lost_lead();
          if (!begun || !lost.may_go_on) throw;
          std::optional<detail::Election<S>> election;
          election.emplace(scaling, begun->path, run_, detail::launch_lines(run_.progress));
          detail::Elected elected = election->hold(*begun, error.what());
          const std::string why = detail::text_of_succession(lost, error.what());
          if (elected.lease) return succeed(scaling, election, std::move(*elected.lease), *begun, why, called_at);
          begun->lease = elected.leader;
          begun->is_seen = true;
          has_begun = false;
        }
      }
    } catch (const HostLostError& error) {
      return Result{{.error = error.what(),
                     .exit_status = run_.preemption.exit_status,
                     .path = begun ? begun->path : std::filesystem::path{},
                     .is_leader = false}};
    }
  }

  [[nodiscard]] WorkerBody body_of(const detail::BegunRun& begun) {
    return [this, context = context_of(begun.name, begun.path)](WorkerLink& link) {
      run_worker(link, context, *function_);
    };
  }

  // In a process that has taken the run over: leads those that are left. why: it does. election: ends before the run
  // goes on, which hears signals itself, and forks: no other thread may be at work then.
  template <class Election>
  Result succeed(S& scaling, std::optional<Election>& election, detail::RunLease lease, const detail::BegunRun& begun,
                 const std::string& why, Deadline::Clock::time_point called_at) {
    election->lead(lease);
    return detail::tell_others(scaling, [&] {
      const LostLead lost = scaling.lost_lead();
      RunConfig run = run_;
      run.resume = Resume::if_unfinished;  // whatever it was to begin with, it has begun
      detail::ElasticSize size{
          detail::count_together(scaling_, scaling.num_workers(), [&scaling] { return scaling.room(); })};
      RunInfo info{.backend = std::string{B::name}, .scaling = std::string{S::name}, .seed = run_.seed};
      try {
        info.world_size = election->find_room(size);
      } catch (const HostLostError& error) {
        lease.leave_to_others();
        return Result{{.error = error.what(), .exit_status = run_.preemption.exit_status, .path = begun.path}};
      }
      lease.pause();
      election.reset();
      return go_on(scaling, std::move(size), std::move(info), {begun.name, begun.path, false}, std::move(lease), run,
                   called_at, detail::inherit(lost, why, called_at));
    });
  }

  [[nodiscard]] RunContext context_of(std::string name, std::filesystem::path path) const {
    return {.name = std::move(name),
            .path = std::move(path),
            .seed = run_.seed,
            .collective_timeout = run_.collective_timeout,
            .setup_timeout = run_.setup_timeout,
            .checkpoint_every_steps = run_.checkpoint.every_steps,
            .checkpoint_interval = run_.checkpoint.interval,
            .is_elastic = scaling_.num_workers.is_elastic(),
            .memory_percent = run_.failure.memory_percent,
            .has_restarts = run_.failure.max_failures != 0,
            .waits_for_checkpoints = run_.checkpoint.synchronous,
            .accept_changes = run_.accept_changes,
            .datasets = datasets_,
            .data = run_.data,
            .reports_step_times = run_.report_step_times};
  }

  template <class F>
  static std::unique_ptr<Function> keep(F&& function) {
    using Kept = std::decay_t<F>;
    constexpr bool fits = std::is_invocable_v<Kept&, WorkerOf<B>&>;
    constexpr bool can_be_copied = !S::copies_function || std::is_copy_constructible_v<Kept>;
    static_assert(fits,
                  "the training function cannot be called with a worker: it takes exactly one argument, auto& worker, "
                  "railyard::Worker& or railyard::WorkerOf<Backend>&");
    static_assert(can_be_copied,
                  "each worker thread runs its own copy of the training function, but this function cannot be copied: "
                  "capture copyable things (std::shared_ptr instead of std::unique_ptr), or use Processes");
    if constexpr (fits && can_be_copied) {
      using Holder = detail::TrainingFunctionOf<B, Kept, S::copies_function>;
      return std::make_unique<Holder>(std::in_place, std::forward<F>(function));
    } else {
      return nullptr;
    }
  }

  void run_worker(WorkerLink& link, RunContext context, Function& function) const {
    detail::Briefing briefing = detail::decode_briefing(link.briefing());
    context.resumes_from = std::move(briefing.checkpoint);
    context.held_slots = std::move(briefing.slots);
    context.attempt = briefing.attempt;
    detail::ConnectingStore store{link.store(), link.world().rank};
    link.on_abort([&store](std::string_view reason) { store.abort(reason); });
    World world = link.world();
    world.device = devices_.give(world);
    std::unique_ptr<B> backend;
    try {
      backend = B::connect(options_, world, store, Deadline::after(run_.start_timeout, "RunConfig::start_timeout"));
    } catch (...) {
      link.on_abort({});
      throw;
    }
    WorkerOf<B> worker{link, context, world, std::move(backend)};
    link.post(detail::encode_started(worker.host()));
    try {
      function.call(worker);
    } catch (const detail::Leave&) {
      link.post(detail::encode_left());
    }
    worker.post_step_times();
  }

  std::unique_ptr<Function> function_;
  ScalingConfig scaling_;
  RunConfig run_;
  Datasets datasets_;
  typename B::Options options_;
  detail::WorkerDevices devices_{};
};

// Of the options the refused one knows nothing.
template <class F, class B = Gloo>
Trainer(F&&, ScalingConfig, RunConfig, typename B::Options) -> Trainer<B, Processes>;
template <class F, class B = Gloo>
Trainer(F&&, ScalingConfig, RunConfig, Datasets, typename B::Options) -> Trainer<B, Processes>;

}  // namespace railyard::inline v0_1

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA) || (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

// ---- railyard/train/detail/worker_feed.hpp
// A worker's end through which the workers of its host read a dataset once. Train room.

namespace railyard::inline v0_1 {
namespace detail {

// Returns that of the next stream which is divided among the workers; called by all of them in the same order.
[[nodiscard]] std::shared_ptr<HostFeed> next_stream_feed(Worker& worker, std::size_t bound_bytes);

// Says whether each rank has a part of its own, as it has too where ranks have given an operation other arguments. A
// collective of what is not divided.
[[nodiscard]] bool is_own_part(Worker& worker, const Dataset& dataset);

}  // namespace detail
}  // namespace railyard::inline v0_1
#endif

#if (defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO) || (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

// ---- railyard/collectives/detail/mesh.hpp
// Collectives made of messages between any two ranks, for whatever can carry such messages. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] std::size_t index_of(int rank) noexcept;

// Where a peer's part lies in scratch memory, which has no part of this rank's own.
[[nodiscard]] std::size_t place_of(int peer, int rank) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1
#endif

#if (defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO) || (defined(RAILYARD_WITH_NCCL) && RAILYARD_WITH_NCCL)

// ---- railyard/collectives/detail/notices.hpp
// What the ranks of a group tell each other through the store when something goes wrong, so that every one of them can
// name the culprit. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says which of its operations a rank is in, as text that is equal on all ranks which belong together.
struct Position {
  std::string key{};  ///< which one: "c17" is the 17th collective, "m0-1-4" the 4th message from rank 0 to rank 1
  std::uint64_t digest = 0;
  std::string operation{};
};

/// Is a rank's last word: how the group ended for it. Left before it closes its connections, so that whoever sees a
/// connection closed and finds no notice knows that the rank has died.
struct Notice {
  enum class Kind : char { late = 'l', broken = 'b', differs = 'd', left = 'e', aborted = 'a' };
  Kind kind = Kind::broken;
  Position position{};
  std::vector<int> culprits{};
  std::string text{};
};

/// Is what a failure comes to: a sentence and the ranks it names.
struct Verdict {
  std::string text{};
  std::vector<int> blamed{};
};

/// Is one rank's access to the notices of its group.
class Notices {
 public:
  Notices(Store& store, std::string prefix, const World& world);

  /// Tells the others where this rank has been waiting for a while. Nothing depends on it but the speed of diagnosis.
  void announce(const Position& position) noexcept;

  /// Returns the rank and the operation of a rank that has announced something else at the same position.
  [[nodiscard]] std::optional<Verdict> find_difference(const Position& position);

  /// Leaves this rank's last word; only the first one counts.
  void post(const Notice& notice) noexcept;

  /// Returns how the group ended for a rank, nothing if the rank has not said so.
  [[nodiscard]] std::optional<Notice::Kind> kind_of(int rank);

  /// Finds out why this rank's operation failed. own is what it has posted. Waits for the others' notices where the
  /// answer depends on them, so that a rank which was only in another call is not taken for a dead one.
  [[nodiscard]] Verdict judge(const Notice& own, const std::string& fallback, std::string_view budget,
                              std::chrono::milliseconds patience);

 private:
  using Heard = std::vector<std::pair<int, Notice>>;

  [[nodiscard]] std::string announcement_key(const std::string& position, int rank) const;
  [[nodiscard]] std::string notice_key(int rank) const;

  [[nodiscard]] Verdict difference(const Position& own, int rank, std::string_view theirs) const;

  [[nodiscard]] static Verdict lost(const std::vector<int>& ranks);

  [[nodiscard]] Verdict judge_by(const Notice& own, const Heard& notices, const std::vector<int>& silent,
                                 const std::string& fallback, std::string_view budget) const;

  // What a notice alone explains, the most certain first.
  [[nodiscard]] static std::optional<Verdict> told_by(const Heard& notices);

  [[nodiscard]] static std::string encode(const Notice& notice);

  [[nodiscard]] static Notice decode(std::string_view bytes);

  Store* store_;
  std::string prefix_;
  int rank_;
  int size_;
  bool has_posted_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
#endif

#if (defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO) || (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

// ---- railyard/collectives/detail/host_chunks.hpp
// In which order the ranks of several hosts add up within their hosts and between them. Collectives room.

#endif

#if defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA

// ---- railyard/data/detail/stored_element.hpp
// How numbers are stored in binary files, and what becomes of them in a column. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Turns count stored elements into those of a column.
using DecodeElements = void (*)(const std::byte* from, std::size_t count, std::byte* to);

/// Says how an element is stored, and as what it comes into a column.
struct StoredElement {
  std::size_t size = 1;
  Dtype dtype = Dtype::u8;
  DecodeElements decode = nullptr;  ///< none: the bytes are those of the column
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/stored_file.hpp
// A file, or what a compressed file holds, that is read at any of its places. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Holds a file open, or opens it for each read, or holds in memory what it was unpacked to. May be read by several
/// threads at once, and by forked processes.
class StoredFile {
 public:
  /// is_kept: whether it stays open; a process may have only so many.
  StoredFile(std::string path, bool is_kept);
  /// Takes bytes that are a part of the file.
  StoredFile(std::string path, std::vector<char> unpacked);

  /// Unpacks a compressed file to memory. Throws: DataError if that takes more than most bytes.
  [[nodiscard]] static StoredFile unpack(const std::string& path, OpenBytes open, std::uint64_t most);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return stamp_.size; }

  void read(std::uint64_t offset, void* to, std::size_t size) const;
  /// Reads a few bytes.
  template <std::size_t size>
  [[nodiscard]] std::array<unsigned char, size> read(std::uint64_t offset) const {
    std::array<unsigned char, size> bytes{};
    read(offset, bytes.data(), size);
    return bytes;
  }
  [[nodiscard]] std::string read_text(std::uint64_t offset, std::size_t size) const;

  [[noreturn]] void fail(std::uint64_t offset, std::string_view what) const;

 private:
  [[nodiscard]] std::size_t read_file(std::uint64_t offset, char* to, std::size_t size) const;

  std::string path_;
  FileStamp stamp_{};
  std::shared_ptr<const FileBytes> file_;
  std::shared_ptr<const std::vector<char>> unpacked_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/array_table.hpp
// Samples that are slices of arrays in files, along their first dimension. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is an array in a file, of which each sample is a slice.
struct StoredArray {
  Field field{};  ///< its shape is that of a sample
  std::uint64_t samples = 0;
  StoredElement element{};
  std::shared_ptr<const StoredFile> file{};
  std::uint64_t begin = 0;       ///< of the first element
  std::uint64_t stride = 0;      ///< bytes from one sample to the next
  bool is_column_major = false;  ///< the elements of all samples at one place lie side by side, as Fortran has them
  std::int64_t num_values = 0;   ///< the values are from 0 to below this; 0 where they may be any. For i64 alone.

  [[nodiscard]] std::size_t width() const noexcept;
  [[nodiscard]] std::size_t stored_row() const noexcept;
  [[nodiscard]] std::size_t row() const noexcept;
};

/// Is the arrays of some files, whose samples follow each other. Every part has the same columns.
class ArrayTable {
 public:
  /// Throws: DataError if the arrays of the part differ in their samples, or from the parts before in their columns.
  void add(std::vector<StoredArray> part);

  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] const std::shared_ptr<const Schema>& schema() const noexcept { return schema_; }
  [[nodiscard]] std::uint64_t count() const noexcept;

  /// ids: each below count().
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const;

 private:
  // Samples that follow each other in one part.
  struct Run {
    std::size_t part = 0;
    std::uint64_t first = 0;
    std::size_t count = 0;
  };

  [[nodiscard]] std::vector<Run> runs_of(std::span<const std::uint64_t> ids) const;

  std::shared_ptr<const Schema> schema_;
  std::vector<std::vector<StoredArray>> parts_;
  std::vector<std::uint64_t> ends_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/array_source.hpp
// What the sources share whose files hold arrays: IDX, NPY, NPZ, CIFAR and safetensors. Data room.

namespace railyard::inline v0_1 {

/// Names files that are read at any place, or compressed ones, which are unpacked to memory first.
struct ArrayFiles {
  InputFiles files;
  detail::OpenBytes open = nullptr;

  template <std::convertible_to<InputFiles> Files>
  ArrayFiles(Files&& files_) : files(std::forward<Files>(files_)) {}
  ArrayFiles(CompressedFiles compressed);
};

/// Says what all files of arrays have in common.
struct ArraySourceOptions {
  std::string label{};
  OnError on_error = OnError::stop();  ///< a damaged file is left out as a whole, and counts as one
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;  ///< that a compressed file may become in memory
};

/// Gives slices of arrays as samples, in any order: each is read where it lies in its file. Looks at the files when it
/// is first asked for something; they are not to change as long as there is a source of them. What compressed files
/// hold is in memory from then on, shared by all copies of the source and inherited by forked workers.
class ArraySource {
 public:
  static constexpr bool costs_a_copy = true;  ///< samples lie ready

  /// Returns the arrays of files that belong together, one of each list. Throws: DataError.
  using Parse = std::function<std::vector<detail::StoredArray>(
      std::span<const std::shared_ptr<const detail::StoredFile>> files, const ArraySourceOptions& options)>;

  /// name: of the format, for messages. lists: of files whose columns stand side by side.
  ArraySource(std::string name, std::vector<ArrayFiles> lists, ArraySourceOptions options, Parse parse);

  /// Throws: DataError if a file cannot be read or is damaged.
  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  [[nodiscard]] std::string describe() const;
  /// The paths of the files that it reads, list after list.
  [[nodiscard]] std::vector<std::string> files() const;
  [[nodiscard]] const std::string& label() const;
  /// Another when the options are that say which files are left out.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// How many damaged files were left out.
  [[nodiscard]] std::uint64_t skipped() const;

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const;

 private:
  struct Shared {
    Shared(std::string name_, std::vector<ArrayFiles> lists_, ArraySourceOptions options_, Parse parse_);

    [[nodiscard]] const detail::ArrayTable& table();

    [[nodiscard]] detail::ArrayTable load() const;
    [[nodiscard]] std::vector<detail::StoredArray> load_part(const std::vector<std::vector<std::string>>& paths,
                                                             std::size_t file) const;

    std::string name;
    std::vector<ArrayFiles> lists;
    ArraySourceOptions options;
    Parse parse;
    SkipCount skips{};
    std::mutex mutex{};
    detail::ArrayTable loaded{};
  };

  class Reader final : public BlockReader {
   public:
    Reader(std::shared_ptr<Shared> shared, std::uint64_t from);
    [[nodiscard]] Block next(std::size_t most_rows) override;

   private:
    std::shared_ptr<Shared> shared_;
    std::uint64_t at_;
    std::size_t most_rows_ = 1;
  };

  std::shared_ptr<Shared> shared_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/batch_mapper.hpp
// The preprocessor that is a function of the user's. Data room.

namespace railyard::inline v0_1 {

/// Changes blocks by a function. Learns nothing, and the function is not part of a checkpoint.
class BatchMapper {
 public:
  /// Returns the block's samples, changed, with their ids in their order. Called on several threads at once, and with a
  /// block of no samples to learn the columns that it makes.
  using Function = std::function<Block(const Block&)>;

  /// Throws: ConfigError if there is no function.
  explicit BatchMapper(Function function);

  /// Another when the function is of another type, as each lambda is.
  [[nodiscard]] std::uint64_t kind() const;
  [[nodiscard]] Schema schema(const Schema& before) const;
  /// Throws: DataError if the function adds, drops or moves samples.
  [[nodiscard]] Block transform(const Block& block) const;

 private:
  Function function_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/cifar_source.hpp
// Samples out of the binary files of CIFAR-10 and CIFAR-100. Data room.
// Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".

namespace railyard::inline v0_1 {

/// Names which of the two it is: files do not tell.
enum class Cifar : std::uint8_t { cifar10, cifar100 };

/// Says how files of CIFAR are read.
struct CifarSourceOptions {
  Cifar kind = Cifar::cifar10;
  OnError on_error = OnError::stop();  ///< a file with a damaged sample is left out as a whole, and counts as one
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;
};

/// Gives the images of CIFAR as samples: "image" is u8 of 3 x 32 x 32, "label" is i64; with CIFAR-100 there is also
/// "coarse_label". Example: ry::CifarSource{"cifar-10-batches-bin/data_batch_*.bin"}
class CifarSource : public ArraySource {
 public:
  explicit CifarSource(ArrayFiles files, const CifarSourceOptions& options = {});

 private:
  [[nodiscard]] static Parse parse(Cifar kind);
  // What is left out must be known from the beginning: else labels are checked when they are read.
  static void check_labels(const std::vector<detail::StoredArray>& arrays);
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/numbers.hpp
// Which columns a preprocessor works on, their elements as numbers, and blocks with columns changed. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Whether a cell of numbers is empty.
[[nodiscard]] constexpr bool is_missing(double value) noexcept { return has_nan_bits(value); }

[[nodiscard]] constexpr bool is_real(Dtype dtype) noexcept {
  return dtype == Dtype::f16 || dtype == Dtype::bf16 || dtype == Dtype::f32 || dtype == Dtype::f64;
}
/// Whether each sample has as many numbers as the others.
[[nodiscard]] bool has_numbers(const Field& field) noexcept;

[[noreturn]] void refuse_column(std::string_view who, const Field& field, std::string_view wanted);

/// Returns the columns that are meant: those named, or all that are suitable but for some.
/// Throws: ConfigError for names that do not exist, columns that are not suitable, or if none are meant.
template <class Suits>
[[nodiscard]] std::vector<std::string> columns_meant(std::string_view who, const Schema& schema,
                                                     const std::vector<std::string>& columns,
                                                     const std::vector<std::string>& except, std::string_view wanted,
                                                     const Suits& suits) {
  for (const std::string& name : columns) {
    const Field& field = schema[column_of_option(who, ".columns", schema, name)];
    if (!suits(field)) refuse_column(who, field, wanted);
  }
  if (!columns.empty()) return columns;
  std::vector<std::string> chosen;
  for (const std::string& name : except) static_cast<void>(column_of_option(who, ".except", schema, name));
  for (const Field& field : schema) {
    const bool is_left_out = std::find(except.begin(), except.end(), field.name) != except.end();
    if (!except.empty() && !is_left_out && suits(field)) chosen.push_back(field.name);
  }
  if (chosen.empty()) {
    throw ConfigError{
        compose("{} was given no column: name some with .columns, or with .except those to leave alone; "
                "there are {}",
                who, schema.names())};
  }
  return chosen;
}

/// Replaces numbers by the elements of a column that has_numbers(). Integers beyond 2^53 round to the nearest double.
void read_numbers(const Field& field, const Column& column, std::vector<double>& numbers);
/// Returns a column of the field's dtype, which is a real one.
[[nodiscard]] Column write_numbers(const Field& field, const std::vector<double>& numbers);

/// Returns the schema with the fields of the same names replaced, and the others behind.
[[nodiscard]] Schema with_fields(const Schema& schema, const std::vector<Field>& fields);
/// Returns the block with the columns of the same names replaced, and the others behind.
[[nodiscard]] Block with_columns(const Block& block, const std::vector<Field>& fields,
                                        std::vector<Column> columns);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/feature_columns.hpp
// The columns of numbers that a preprocessor has learned from, element by element. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is one column: the number of its elements per sample, and of the first one among all elements of all columns.
struct FeatureColumn {
  std::string name{};
  std::uint64_t width = 1;
  std::uint64_t first = 0;
  static void fields(auto& archive, auto& self) { archive(self.name, self.width, self.first); }
};

/// Lists columns whose elements, one after the other, are the features of a sample.
class FeatureColumns {
 public:
  FeatureColumns() = default;
  FeatureColumns(const Schema& schema, const std::vector<std::string>& names);

  /// The number of features.
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] auto begin() const noexcept { return columns_.begin(); }
  [[nodiscard]] auto end() const noexcept { return columns_.end(); }

  /// Returns the column's field. Throws: ConfigError if it is gone, or of another size than when it was learned from.
  [[nodiscard]] static const Field& field_in(const Schema& schema, const FeatureColumn& column, std::string_view who);

  /// Calls visit(feature, values) with those of a block that are not missing.
  /// Throws: DataError that names the sample if one is infinite.
  template <class Visit>
  void visit_present(const Block& block, std::string_view who, const Visit& visit) const {
    std::vector<double> numbers;
    std::vector<double> present;
    for (const FeatureColumn& column : columns_) {
      read_numbers(field_in(block.schema(), column, who), block.column(column.name), numbers);
      for (std::size_t element = 0; element < column.width; ++element) {
        present.clear();
        for (std::size_t at = element; at < numbers.size(); at += column.width) {
          if (has_infinity_bits(numbers[at])) refuse_infinity(block.ids()[at / column.width], column, who);
          if (!is_missing(numbers[at])) present.push_back(numbers[at]);
        }
        visit(column.first + element, std::span<const double>{present});
      }
    }
  }

  /// For messages: the column of a feature, and which element of it.
  [[nodiscard]] std::string name_of_feature(std::size_t feature) const;

  /// Whether each feature belongs to one column, which a state that was read may not be true of.
  [[nodiscard]] bool are_sound() const noexcept;
  static void fields(auto& archive, auto& self) { archive(self.columns_, self.size_); }

 private:
  [[noreturn]] static void refuse_infinity(std::uint64_t id, const FeatureColumn& column, std::string_view who);

  std::vector<FeatureColumn> columns_;
  std::uint64_t size_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/column_scaler.hpp
// What scalers have in common: they learn about each feature of columns of numbers, and change it by that. Data room.

namespace railyard::inline v0_1 {

/// Is what a ColumnScaler does to one feature (one element of one column). Writing one adds a scaler: options (an
/// aggregate of at most 8 numbers, enumerators, texts, and vectors of these) with the fields columns and except,
/// statistics that are collected and merged, what is learned of them, and how a value changes by it. All but the
/// options have fields() as detail::ByteWriter wants it: the rule's are the options that apply() looks at.
template <class R>
concept ScalingRule = std::semiregular<R> &&
    requires(const R& rule, typename R::Options options, double value, typename R::Statistics statistics,
             const typename R::Learned& learned) {
  { R::name } -> std::convertible_to<std::string_view>;
  R{options};
  { rule.options() } -> std::convertible_to<typename R::Options>;
  { rule.statistics() } -> std::same_as<typename R::Statistics>;
  statistics.add(std::span<const double>{});
  statistics.merge(statistics);
  { statistics.count() } -> std::convertible_to<std::uint64_t>;
  { rule.learn(statistics) } -> std::same_as<typename R::Learned>;
  { rule.apply(value, learned) } -> std::convertible_to<double>;
};

/// Scales columns of numbers, feature by feature, and gives columns of the same names: of the same dtype if that is a
/// real one, else of f64. Missing values are not learned from and stay missing. A feature that is the same in all
/// samples, one sample included, is shifted and not scaled. Integers beyond 2^53 round to the nearest double. An
/// infinite value cannot be learned from (DataError); transform() treats it as arithmetic does. A feature without any
/// value is a DataError in finish().
template <ScalingRule Rule>
class ColumnScaler {
 public:
  using Options = typename Rule::Options;

  ColumnScaler() = default;
  /// Example: StandardScaler scaler{{.columns = {"age", "height"}}};
  explicit ColumnScaler(Options options) : rule_(std::move(options)) {}

  void begin(const Schema& schema) {
    const Options options = rule_.options();
    learned_ = {};
    learned_.columns = {schema, detail::columns_meant(Rule::name, schema, options.columns, options.except, "numbers",
                                                      detail::has_numbers)};
    statistics_.assign(learned_.columns.size(), rule_.statistics());
  }
  void add(const Block& block) {
    learned_.columns.visit_present(block, Rule::name, [this](std::size_t feature, std::span<const double> values) {
      statistics_[feature].add(values);
    });
  }
  [[nodiscard]] std::vector<std::byte> statistics() const { return detail::to_bytes(statistics_); }
  void merge(std::span<const std::byte> bytes) {
    const auto others = detail::from_bytes<std::vector<typename Rule::Statistics>>(bytes);
    if (others.size() != statistics_.size()) {
      throw DataError{detail::compose("{} of {} features cannot merge what was learned of {}", Rule::name,
                                      statistics_.size(), others.size())};
    }
    for (std::size_t feature = 0; feature < others.size(); ++feature) statistics_[feature].merge(others[feature]);
  }
  void finish() {
    std::vector<typename Rule::Learned> features;  // all or none
    for (const auto& statistics : statistics_) {
      if (statistics.count() == 0) {
        throw DataError{detail::compose("{} found no value in {}: leave it out, or impute a constant first", Rule::name,
                                        learned_.columns.name_of_feature(features.size()))};
      }
      features.push_back(rule_.learn(statistics));
    }
    learned_.features = std::move(features);
    learned_.rule = rule_;
    statistics_.clear();
  }

  /// What was learned of each feature: of the elements of the first column, then of the second.
  [[nodiscard]] std::span<const typename Rule::Learned> learned() const noexcept { return learned_.features; }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(rule_.options().columns); }
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const {
    detail::Fingerprint fingerprint;
    detail::identify_options(Options{rule_.options()}, fingerprint);
    for (const detail::FeatureColumn& column : learned_.columns) fingerprint.add(std::string_view{column.name});
    return fingerprint.value();
  }
  [[nodiscard]] Schema schema(const Schema& before) const {
    std::vector<Field> fields;
    for (const detail::FeatureColumn& column : columns()) fields.push_back(field_after(before, column));
    return detail::with_fields(before, fields);
  }
  [[nodiscard]] Block transform(const Block& block) const {
    std::vector<Field> fields;
    std::vector<Column> scaled;
    std::vector<double> numbers;
    for (const detail::FeatureColumn& column : columns()) {
      fields.push_back(field_after(block.schema(), column));
      const std::size_t index = block.schema().index_of(column.name);
      detail::read_numbers(block.schema()[index], block[index], numbers);
      for (std::size_t at = 0; at < numbers.size(); at += column.width) {
        for (std::size_t element = 0; element < column.width; ++element) {
          double& number = numbers[at + element];
          if (!detail::is_missing(number)) {
            number = learned_.rule.apply(number, learned_.features[column.first + element]);
          }
        }
      }
      scaled.push_back(detail::write_numbers(fields.back(), numbers));
    }
    return detail::with_columns(block, fields, std::move(scaled));
  }

  [[nodiscard]] State state() const { return detail::byte_state(learned_); }
  void load_state(const State& state) {
    auto learned = detail::from_state<Learned>(state);
    if (!learned.columns.are_sound() || learned.features.size() != learned.columns.size()) {
      throw DataError{detail::compose("the state of a {} has {} features and {} numbers of them", Rule::name,
                                      learned.columns.size(), learned.features.size())};
    }
    learned_ = std::move(learned);
  }

 private:
  struct Learned {
    Rule rule{};
    detail::FeatureColumns columns{};
    std::vector<typename Rule::Learned> features{};
    static void fields(auto& archive, auto& self) { archive(self.rule, self.columns, self.features); }
  };

  [[nodiscard]] const detail::FeatureColumns& columns() const {
    if (learned_.features.empty()) throw ConfigError{detail::compose("{} has learned nothing: call fit()", Rule::name)};
    return learned_.columns;
  }
  [[nodiscard]] static Field field_after(const Schema& before, const detail::FeatureColumn& column) {
    Field field = detail::FeatureColumns::field_in(before, column, Rule::name);
    if (!detail::is_real(field.dtype)) field.dtype = Dtype::f64;
    return field;
  }

  Rule rule_{};
  Learned learned_{};
  std::vector<typename Rule::Statistics> statistics_{};  // between begin() and finish()
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/concatenator.hpp
// The preprocessor that makes one column of many: what models take as input. Data room.

namespace railyard::inline v0_1 {

/// Puts the numbers of columns one after the other into a column of their own, behind the columns that are left.
/// Shapes: (elements of all columns together).
class Concatenator {
 public:
  struct Options {
    std::vector<std::string> columns{};  ///< in the order of the output
    std::vector<std::string> except{};
    std::string output = "data";
    Dtype dtype = Dtype::f32;  ///< f16, bf16, f32 or f64
    bool keeps_columns = false;
  };

  Concatenator() = default;
  /// Throws: ConfigError if the dtype is not a real one.
  explicit Concatenator(Options options);

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] Schema schema(const Schema& before) const;

  [[nodiscard]] Block transform(const Block& block) const;

 private:
  struct Plan {
    std::vector<std::size_t> kept{};
    std::vector<std::size_t> joined{};
    Schema schema{};  // the output is the last field
  };

  [[nodiscard]] Plan plan(const Schema& before) const;

  [[nodiscard]] static Column joined(const Block& block, const Plan& plan);

  Options options_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/categories.hpp
// The different values that there are in a column, in order, with how often each was seen. Data room.

namespace railyard::inline v0_1 {

/// Says that a cell is empty: NaN, or a text of no characters.
struct MissingCell {
  friend bool operator==(const MissingCell&, const MissingCell&) = default;
  static void fields(auto&, auto&) {}
};

/// Is one of the values that a column can have. Integers are exact.
using Category = std::variant<std::int64_t, double, std::string, MissingCell>;

namespace detail {

/// Looks at a value where it is.
using CategoryView = std::variant<std::int64_t, double, std::string_view, MissingCell>;
/// Says what the categories of a column are.
enum class CategoryKind : std::uint8_t { integer, real, text };

/// Orders numbers by value and texts by their bytes, which is by their code points; what is missing comes last.
struct CategoryOrder {
  using is_transparent = void;
  bool operator()(const CategoryView& left, const CategoryView& right) const noexcept;
  bool operator()(const Category& left, const Category& right) const;
  bool operator()(const Category& left, const CategoryView& right) const;
  bool operator()(const CategoryView& left, const Category& right) const;
};

[[nodiscard]] CategoryKind kind_of(const Field& field) noexcept;

/// Returns a number as a category of the kind, so that integers which were read as real numbers, because cells beside
/// them are empty, are the same categories as before.
[[nodiscard]] CategoryView as_kind(double value, CategoryKind kind) noexcept;

/// Calls visit(row, category) with all cells of a column that has_cells().
template <class Visit>
void visit_cells(const Field& field, const Column& column, CategoryKind kind, const Visit& visit) {
  if (field.is_text) {
    for (std::size_t row = 0; row < column.rows(); ++row) {
      const std::string_view text = column.text(row);
      visit(row, text.empty() ? CategoryView{MissingCell{}} : CategoryView{text});
    }
    return;
  }
  visit_dtype(field.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto values = column.values<T>();
    for (std::size_t row = 0; row < values.size(); ++row) {
      if constexpr (!std::is_arithmetic_v<T>) {
        visit(row, as_kind(static_cast<double>(static_cast<float>(values[row])), kind));
      } else if constexpr (std::is_floating_point_v<T>) {
        visit(row, as_kind(static_cast<double>(values[row]), kind));
      } else if (kind == CategoryKind::real) {
        visit(row, CategoryView{static_cast<double>(values[row])});
      } else {
        visit(row, CategoryView{static_cast<std::int64_t>(values[row])});
      }
    }
  });
}

/// Counts how often each category was seen, exactly, up to a number of categories.
class CategoryCounts {
 public:
  /// where: of which column, as messages begin.
  explicit CategoryCounts(std::uint64_t limit = 0, std::string where = "a column");

  /// Throws: DataError if there are more categories than the limit.
  void add(const CategoryView& category, std::uint64_t times = 1);
  void merge(const CategoryCounts& other);

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// In order.
  [[nodiscard]] std::vector<Category> categories() const;
  /// The first in order of those that were seen most often. Needs at least one.
  [[nodiscard]] const Category& most_frequent() const;

  static void fields(auto& archive, auto& self) { archive(self.limit_, self.count_, self.counts_); }

 private:
  std::uint64_t limit_;
  std::string where_;
  std::uint64_t count_ = 0;
  std::map<Category, std::uint64_t, CategoryOrder> counts_;
};

/// Is a column with the categories that were learned, in order; a category's code is its place.
struct CategoryColumn {
  std::string name{};
  CategoryKind kind = CategoryKind::text;
  std::vector<Category> categories{};

  [[nodiscard]] std::optional<std::size_t> find(const CategoryView& category) const;
  static void fields(auto& archive, auto& self) { archive(self.name, self.kind, self.categories); }
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/category_learner.hpp
// Learns which categories there are in columns, and tells their codes: what encoders have in common. Data room.

namespace railyard::inline v0_1 {
namespace detail {

class CategoryLearner {
 public:
  CategoryLearner() = default;
  explicit CategoryLearner(std::string_view who, std::vector<std::string> columns = {},
                           std::vector<std::string> except = {}, std::uint64_t limit = 0);

  void begin(const Schema& schema);
  void add(const Block& block);
  [[nodiscard]] std::vector<std::byte> statistics() const;
  void merge(std::span<const std::byte> bytes);
  void finish();

  /// Returns the columns, or none where nothing was learned.
  [[nodiscard]] const std::vector<CategoryColumn>& learned() const noexcept { return columns_; }
  /// Returns the columns. Throws: ConfigError if nothing was learned, or one is gone or of another kind.
  [[nodiscard]] const std::vector<CategoryColumn>& columns(const Schema& schema) const;
  [[nodiscard]] const CategoryColumn& column(std::string_view name) const;

  /// Calls visit(row, code) for all rows whose category was learned.
  /// Throws: DataError if one was not, and that is an error.
  template <class Visit>
  void visit_codes(const Block& block, const CategoryColumn& column, bool unseen_is_error, const Visit& visit) const {
    visit_cells(field_in(block.schema(), column), block.column(column.name), column.kind,
                [&](std::size_t row, const CategoryView& category) {
                  if (const auto code = column.find(category)) return visit(row, *code);
                  if (unseen_is_error) refuse_unseen(block.ids()[row], column, category);
                });
  }

  static void fields(auto& archive, auto& self) { archive(self.who_, self.columns_); }

 private:
  void check_learned() const;
  [[nodiscard]] const Field& field_in(const Schema& schema, const CategoryColumn& column) const;
  [[noreturn]] void refuse_unseen(std::uint64_t id, const CategoryColumn& column, const CategoryView& category) const;

  std::string who_;
  std::vector<std::string> chosen_;
  std::vector<std::string> except_;
  std::uint64_t limit_ = 0;
  std::vector<CategoryColumn> columns_;
  std::vector<CategoryCounts> counts_;  // between begin() and finish()
};

/// Is what preprocessors that make numbers of categories have in common: how they learn.
class CategoryEncoder {
 public:
  void begin(const Schema& schema);
  void add(const Block& block);
  [[nodiscard]] std::vector<std::byte> statistics() const;
  void merge(std::span<const std::byte> bytes);
  void finish();

  /// The categories of a column: number i stands for the i-th. Throws: ConfigError if it did not learn from the column.
  [[nodiscard]] const std::vector<Category>& categories(std::string_view column) const;

 protected:
  explicit CategoryEncoder(CategoryLearner learner);

  template <class Options>
  [[nodiscard]] std::uint64_t fingerprint_with(const Options& options) const {
    Fingerprint fingerprint;
    identify_options(options, fingerprint);
    for (const CategoryColumn& column : learner_.learned()) fingerprint.add(std::string_view{column.name});
    return fingerprint.value();
  }

  CategoryLearner learner_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/encoders.hpp
// Preprocessors that make numbers of categories: one-hot, ordinal and label encoders. Data room.

namespace railyard::inline v0_1 {

/// Says what becomes of a category that was not learned: a DataError that names the sample, or the encoder's own
/// answer.
enum class Unseen : std::uint8_t { error, ignore };

/// Makes of each column a column of the same name that has one f32 per category: 1 for the sample's, 0 for the others.
/// Columns hold a number or a text per sample. Categories are in order, a missing value is one of them, the last, and
/// so are infinities. Shapes: (categories).
class OneHotEncoder : public detail::CategoryEncoder {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Unseen unseen = Unseen::error;          ///< ignore: all are 0
    std::uint64_t category_limit = 10'000;  ///< per column; more are a DataError
  };

  OneHotEncoder();
  explicit OneHotEncoder(Options options);

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] Schema schema(const Schema& before) const;
  [[nodiscard]] Block transform(const Block& block) const;

  [[nodiscard]] State state() const;
  void load_state(const State& state);
  static void fields(auto& archive, auto& self) { archive(self.options_.unseen, self.learner_); }

 private:
  static constexpr std::string_view name = "OneHotEncoder";

  [[nodiscard]] static Field field_of(const detail::CategoryColumn& column);

  Options options_{};
};

/// Makes of each column a column of i64 of the same name: the place of the sample's category among all in order, from
/// 0. Columns hold a number or a text per sample. A missing value is a category, the last.
class OrdinalEncoder : public detail::CategoryEncoder {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Unseen unseen = Unseen::error;  ///< ignore: the number is unseen_value
    std::int64_t unseen_value = -1;
    std::uint64_t category_limit = 1'000'000;  ///< per column; more are a DataError
  };

  OrdinalEncoder();
  explicit OrdinalEncoder(Options options);

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] Schema schema(const Schema& before) const;
  [[nodiscard]] Block transform(const Block& block) const;

  [[nodiscard]] State state() const;
  void load_state(const State& state);
  static void fields(auto& archive, auto& self) {
    archive(self.options_.unseen, self.options_.unseen_value, self.learner_);
  }

 private:
  friend class LabelEncoder;
  OrdinalEncoder(std::string_view name, Options options);

  Options options_{};
};

/// Makes class numbers (i64, from 0) of the labels in one column, and labels of class numbers again. An unseen label is
/// a DataError that names the sample.
class LabelEncoder {
 public:
  LabelEncoder() = default;
  /// Example: LabelEncoder encoder{"species"};
  explicit LabelEncoder(std::string column);

  void begin(const Schema& schema);
  void add(const Block& block);
  [[nodiscard]] std::vector<std::byte> statistics() const;
  void merge(std::span<const std::byte> bytes);
  void finish();

  /// The labels: class i has the i-th.
  [[nodiscard]] const std::vector<Category>& classes() const;
  /// Returns the label of a class number, such as the index of a model's largest output.
  /// Throws: DataError if there is no such class.
  [[nodiscard]] const Category& label_of(std::int64_t number) const;

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when it has learned from another column.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] Schema schema(const Schema& before) const;
  [[nodiscard]] Block transform(const Block& block) const;

  [[nodiscard]] State state() const;
  void load_state(const State& state);
  static void fields(auto& archive, auto& self) { archive(self.column_, self.encoder_); }

 private:
  std::string column_;
  OrdinalEncoder encoder_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/fit.hpp
// Lets preprocessors learn from datasets. Data room.

namespace railyard::inline v0_1 {

namespace detail {

// Gives one worker's part of a dataset, block after block, as it comes in epoch 0 of seed 0.
class EpochBlocks final : public BlockReader {
 public:
  // feed: as LoaderWishes have it.
  EpochBlocks(const Dataset& dataset, std::size_t rank, std::size_t world_size, std::shared_ptr<HostFeed> feed = {});

  // Only the last batch can have fewer samples than there are workers, so that an empty part is the end.
  [[nodiscard]] Block next(std::size_t /*most_rows*/) override;

 private:
  [[nodiscard]] static const Dataset& ending(const Dataset& dataset);

  EpochReader reader_;
  ReadingToEnd reading_;
};

}  // namespace detail

/// Lets a preprocessor learn from all samples of a dataset, before the workers start: what it has learned is in every
/// copy of it. Dataset::transform() then changes samples by it. Throws: as the other fit() does, and ConfigError for a
/// dataset that has no end.
/// Example: ry::StandardScaler scaler{{.except = {"label"}}}; ry::fit(scaler, train_set);
template <LearningPreprocessor P>
void fit(P& preprocessor, const Dataset& dataset) {
  fit(preprocessor, dataset.schema(),
      [&]() -> std::unique_ptr<BlockReader> { return std::make_unique<detail::EpochBlocks>(dataset, 0, 1); });
}

}  // namespace railyard::inline v0_1

// ---- railyard/data/idx_source.hpp
// Samples out of IDX files, the format of MNIST. Data room.
// Source: http://yann.lecun.com/exdb/mnist, "THE IDX FILE FORMAT".

namespace railyard::inline v0_1 {

/// Says how IDX files are read.
struct IdxSourceOptions {
  std::string image = "image";  ///< the name of the column of the first file
  std::string label = "label";  ///< and of the second one, whose integers become i64
  OnError on_error = OnError::stop();
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;
};

/// Gives the images of IDX files as samples, with labels out of other files, or alone.
/// Example: ry::IdxSource{ry::gzip("train-images-idx3-ubyte.gz"), ry::gzip("train-labels-idx1-ubyte.gz")}
class IdxSource : public ArraySource {
 public:
  IdxSource(ArrayFiles images, ArrayFiles labels, const IdxSourceOptions& options = {});
  explicit IdxSource(ArrayFiles images, const IdxSourceOptions& options = {});

 private:
  [[nodiscard]] static Parse parse(std::string image);
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/resample_axis.hpp
// Which pixels count how much in a picture of another size. Data room.
// Source: https://github.com/python-pillow/Pillow, documentation, "Filters", BILINEAR.

// ---- railyard/data/detail/resample_lanes.hpp
// Weighted means of pixels, four numbers at once, where the processor can. Data room.

#if defined(__x86_64__)
#include <smmintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)

#endif

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/resample.hpp
// Brings pictures to another size by a weighted mean of pixels, to the same bits as Pillow does. Data room.
// Source: https://github.com/python-pillow/Pillow, documentation, "Filters", BILINEAR.

// ---- railyard/data/image.hpp
// Pictures in memory, and how they come to the size and colours that a model wants. Data room.

namespace railyard::inline v0_1 {

/// Names the colours of a picture; the value is how many numbers a pixel has.
enum class ImageColors : std::uint8_t { grey = 1, grey_alpha = 2, rgb = 3, rgba = 4 };

/// Is a picture: rows from the top, pixels from the left, each of a number per colour.
struct Image {
  std::size_t height = 0;
  std::size_t width = 0;
  ImageColors colors = ImageColors::rgb;
  std::vector<std::uint8_t> pixels{};

  [[nodiscard]] std::size_t channels() const noexcept;
};

/// Says how a picture comes to a size that has another shape.
enum class ImageFit : std::uint8_t {
  crop,     ///< it is made as small as it can be while it covers that size, and its middle is taken
  stretch,  ///< height and width are changed each by itself
};

/// Returns the picture in other colours, as Pillow's convert() does: alpha is dropped, or is 255 where there was none.
[[nodiscard]] Image convert_colors(Image image, ImageColors colors);

/// Returns the picture in another size. Where it becomes smaller, each pixel is the mean of those that it was, weighted
/// by a triangle: the values are those of Pillow's resize() with BILINEAR.
/// Throws: ConfigError for a size of 0; DataError if the picture is empty.
[[nodiscard]] Image fit_image(Image image, std::size_t height, std::size_t width,
                                     ImageFit fit = ImageFit::crop);

/// Writes the pixels color after color, as models of pictures want them: channels x height x width.
/// Throws: ConfigError if there is not as much room as there are pixels.
void put_planes(const Image& image, std::span<std::uint8_t> to);

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/moments.hpp
// Count, mean and variance of numbers, which merge without losing digits. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Sums deviations from means, never squares of the numbers: the variance of numbers that are large and close together
/// would drown in rounding.
/// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
class Moments {
 public:
  void add(std::span<const double> values) noexcept;
  void merge(const Moments& other) noexcept;

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] double mean() const noexcept { return mean_; }
  /// Of the numbers themselves, not of a population that they are a sample of.
  [[nodiscard]] double variance() const noexcept;

  static void fields(auto& archive, auto& self) { archive(self.count_, self.mean_, self.squares_); }

 private:
  [[nodiscard]] static bool is_finite(double number) noexcept;

  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // of the deviations from the mean
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/quantile_sketch.hpp
// Quantiles of any number of values in bounded memory, with a bound on the error. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps all values up to a capacity. Then every second one of a level goes on to the next level, where it counts twice
/// as much; from one time to the next these are the odd and the even ones in turn, so that no random numbers are needed
/// and most errors cancel. The rank of a quantile among n values is off by less than n log2(n / capacity) / capacity,
/// by what error_bound() tells, and by nothing while n is at most the capacity.
/// Source: Manku, Rajagopalan, Lindsay, "Approximate medians and other quantiles in one pass and with limited memory",
/// 1998.
class QuantileSketch {
 public:
  explicit QuantileSketch(std::size_t capacity = 8192);

  void add(std::span<const double> values);
  /// Throws: ConfigError if the other one has another capacity.
  void merge(const QuantileSketch& other);

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// The rank of a quantile, as a part of all ranks, is off by at most this.
  [[nodiscard]] double error_bound() const noexcept;

  /// Returns the values below which the given parts (0 to 1) of all are, on a straight line between the two nearest,
  /// as numpy.percentile does. Needs at least one value.
  [[nodiscard]] std::vector<double> quantiles(std::span<const double> parts) const;

  static void fields(auto& archive, auto& self) {
    archive(self.capacity_, self.count_, self.above_, self.below_, self.levels_);
  }

 private:
  struct Level {
    std::vector<double> values{};
    bool keeps_odd = false;  // at the next time
    static void fields(auto& archive, auto& self) { archive(self.values, self.keeps_odd); }
  };

  // Hands every second value of the levels that are too full on to the next.
  void shrink();

  std::uint64_t capacity_;
  std::uint64_t count_ = 0;
  std::uint64_t above_ = 0;
  std::uint64_t below_ = 0;
  std::vector<Level> levels_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/imputer.hpp
// The preprocessor that fills empty cells. Data room.

namespace railyard::inline v0_1 {

/// Says what to fill empty cells with.
enum class Impute : std::uint8_t { mean, median, most_frequent, constant };

/// Fills the empty cells of each column: NaN in columns of numbers, element by element, and texts of no characters.
/// Dtypes stay, and columns of integers stay as they are, for they have no empty cells. Of values that are equally
/// frequent, the smallest is taken. A column without any value is a DataError in finish(), and so is an infinite value,
/// but for a constant.
class SimpleImputer {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Impute with = Impute::mean;          ///< columns of text can have most_frequent and constant
    double number = 0;                   ///< the constant for columns of numbers
    std::string text = "missing_value";  ///< the constant for columns of text
    /// Medians are exact up to so many values; then the rank of the median of n is off by less than
    /// n (log2(n / size) + 1) / size.
    std::size_t sketch_size = 8192;
    std::uint64_t category_limit = 1'000'000;  ///< different values per column, for most_frequent
  };

  SimpleImputer() = default;
  explicit SimpleImputer(Options options);

  void begin(const Schema& schema);
  void add(const Block& block);
  [[nodiscard]] std::vector<std::byte> statistics() const;
  void merge(std::span<const std::byte> bytes);
  void finish();

  /// What empty cells of numbers become: of the elements of the first such column, then of the second.
  [[nodiscard]] const std::vector<double>& fill_numbers() const noexcept { return learned_.fill_numbers; }
  /// What empty texts become, by column.
  [[nodiscard]] const std::vector<std::string>& fill_texts() const noexcept { return learned_.fill_texts; }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] Schema schema(const Schema& before) const;
  [[nodiscard]] Block transform(const Block& block) const;

  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  static constexpr std::string_view name = "SimpleImputer";

  // Stands for what a constant learns: nothing.
  struct Nothing {
    void merge(const Nothing&) noexcept {}
    static void fields(auto&, auto&) {}
  };
  using Statistic = std::variant<Nothing, detail::Moments, detail::QuantileSketch, detail::CategoryCounts>;
  struct Learned {
    detail::FeatureColumns numbers{};
    std::vector<std::string> texts{};
    std::vector<double> fill_numbers{};
    std::vector<std::string> fill_texts{};
    static void fields(auto& archive, auto& self) {
      archive(self.numbers, self.texts, self.fill_numbers, self.fill_texts);
    }
  };

  // As messages show it: of the features of numbers, and then of the texts.
  [[nodiscard]] std::string column_of(std::size_t at) const;
  [[nodiscard]] Statistic statistic(std::string where) const;
  static void add_numbers(Nothing&, std::span<const double>) noexcept {}
  static void add_numbers(detail::CategoryCounts& seen, std::span<const double> values);
  static void add_numbers(auto& seen, std::span<const double> values) { seen.add(values); }

  [[nodiscard]] Category fill_of(const Statistic& statistic, bool is_text, std::string_view column) const;

  [[nodiscard]] Column fill(const Field& field, const Column& column, const detail::FeatureColumn& feature) const;

  void check_learned() const;
  [[nodiscard]] static const Field& text_field(const Schema& schema, const std::string& column);

  Options options_{};
  Learned learned_{};
  std::vector<Statistic> seen_;  // between begin() and finish(): of the elements of numbers, then of the texts
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/json_scanner.hpp
// Steps through JSON text (RFC 8259) without a tree of it. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Names what a value of JSON is by how it begins.
enum class JsonKind : std::uint8_t { object, array, text, number, boolean, null };

/// Is at a place of a text and reads what comes next. Throws: JsonFault that names the byte of the text.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) noexcept;

  [[noreturn]] void fail(std::string_view what) const;

  /// Returns the next character that is no blank, or NUL at the end.
  char peek() noexcept;
  /// Steps over the character if it is next.
  bool take(char wanted) noexcept;
  void expect(char wanted);
  void expect_end();

  [[nodiscard]] JsonKind kind();

  void read_text(std::string& out);
  [[nodiscard]] bool read_boolean();
  void read_null();

  /// Returns the characters of a number. NaN and infinities are no JSON, and yet what many programs write.
  [[nodiscard]] std::string_view read_number();

  /// Steps over a value of any kind.
  void skip_value(std::size_t depth = 0);
  void check_depth(std::size_t depth) const;

  /// Calls read_value for each key; it reads the value that follows.
  template <class ReadValue>
  void read_object(ReadValue&& read_value) {
    expect('{');
    if (take('}')) return;
    std::string key;
    do {
      peek();
      read_text(key);
      expect(':');
      read_value(key);
    } while (take(','));
    expect('}');
  }
  /// Calls read_value for each element, which it reads.
  template <class ReadValue>
  void read_array(ReadValue&& read_value) {
    expect('[');
    if (take(']')) return;
    do {
      read_value();
    } while (take(','));
    expect(']');
  }

 private:
  bool take_char(char wanted) noexcept;
  std::size_t take_digits() noexcept;
  void read_word(std::string_view word);

  void read_escape(std::string& out);
  // Beyond 65535 a character is written as two halves.
  [[nodiscard]] std::uint32_t read_code();
  [[nodiscard]] std::uint32_t read_hex();

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/line_cutter.hpp
// Cuts text into lines. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Finds the lines of a text; they end with LF or CRLF.
class LineCutter {
 public:
  /// has_blank_lines: whether a line with nothing on it is one.
  explicit LineCutter(bool has_blank_lines) noexcept;

  /// Cuts the text into its whole lines and returns how many characters they take.
  std::size_t cut(const char* text, std::size_t size);

  [[nodiscard]] std::size_t lines() const noexcept { return lines_.size(); }
  [[nodiscard]] std::size_t begin(std::size_t line) const noexcept;
  /// Behind the line feed.
  [[nodiscard]] std::size_t end(std::size_t line) const noexcept;
  /// The line without what ends it.
  [[nodiscard]] std::string_view line(std::size_t line) const noexcept;

 private:
  struct Line {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  bool has_blank_lines_;
  const char* text_ = nullptr;
  std::vector<Line> lines_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/json_lines_plan.hpp
// What a file of JSON Lines is taken for: its columns and their types. Data room.

namespace railyard::inline v0_1 {

/// Says how files of JSON Lines are read.
struct JsonLinesSourceOptions {
  std::string label{};                  ///< which column is the target; none if empty
  std::vector<Field> fields{};          ///< types of columns by name; those of others come from the first lines
  std::vector<std::string> columns{};   ///< reads these only, in this order; all if empty
  bool flatten = false;                 ///< takes {"a": {"b": 1}} for a column "a/b"; else such lines are damaged
  bool ignore_unknown = false;          ///< leaves keys out that the first lines do not have; else they are damage
  Dtype floats = Dtype::f64;            ///< the type of numbers that are no integers: f64 or f32
  std::size_t inference_rows = 10'000;  ///< lines that decide on types: so many, of the first 16 MiB
  std::size_t max_record_bytes = std::size_t{64} << 20;
  OnError on_error = OnError::stop();
};

namespace detail {

/// Is what is known of the files once the first has been looked at.
struct JsonLinesPlan {
  std::shared_ptr<const Schema> schema{};
  std::map<std::string, std::size_t, std::less<>> places{};  // of names in the schema
  JsonLinesSourceOptions options{};
  bool ignores_unknown = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/json_lines_parser.hpp
// Makes columns of lines of JSON. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Parses pieces of JSON Lines: cut() one, then parse() it.
class JsonLinesParser {
 public:
  explicit JsonLinesParser(std::shared_ptr<const JsonLinesPlan> plan);

  std::size_t cut(const char* text, std::size_t size, bool /*is_end*/);
  [[nodiscard]] std::size_t records() const noexcept;
  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept;
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept;

  /// Returns a column per field of the schema, of the records that are not in faults.
  [[nodiscard]] std::vector<Column> parse(RecordFaults& faults);

 private:
  void parse_line(std::string_view line, SampleWriter& sample);

  void read_value(JsonScanner& scanner, const std::string& name, SampleWriter& sample);

  [[noreturn]] static void refuse(JsonScanner& scanner, const Field& field);

  // Halves are read by way of float, and integers by way of the widest.
  template <class T>
  using Parsed = std::conditional_t<std::is_floating_point_v<T> || std::is_same_v<T, bool>, T,
                                    std::conditional_t<std::is_integral_v<T>, std::int64_t, float>>;

  template <class T>
  void read_numbers(JsonScanner& scanner, const Field& field, std::size_t column, SampleWriter& sample) {
    if (field.shape.empty()) return sample.set(column, read_number<T>(scanner, field));
    if (scanner.kind() != JsonKind::array) refuse(scanner, field);
    // Not vector<bool>, which is no array.
    std::conditional_t<std::is_same_v<T, bool>, std::vector<std::uint8_t>, std::vector<Parsed<T>>> values;
    scanner.read_array([&] { values.push_back(read_number<T>(scanner, field)); });
    const std::size_t width = field.width();
    if (field.is_ragged() ? values.size() % width != 0 : values.size() != width) {
      scanner.fail(compose("column \"{}\" has {} numbers where {}{} belong", shown_text(field.name), values.size(),
                           field.is_ragged() ? "a multiple of " : "", width));
    }
    sample.set(column, values);
  }

  template <class T>
  [[nodiscard]] static Parsed<T> read_number(JsonScanner& scanner, const Field& field) {
    constexpr bool is_floating = std::is_floating_point_v<Parsed<T>>;
    const JsonKind kind = scanner.kind();
    if (kind == JsonKind::boolean && (is_floating || std::is_same_v<T, bool>)) {
      return static_cast<Parsed<T>>(scanner.read_boolean());
    }
    if constexpr (is_floating) {
      if (kind == JsonKind::null) {
        scanner.read_null();
        return std::numeric_limits<Parsed<T>>::quiet_NaN();
      }
    }
    if constexpr (!std::is_same_v<T, bool>) {
      if (kind == JsonKind::number) {
        const std::string_view text = scanner.read_number();
        Parsed<T> value{};
        NumberFault fault = parse_number(text, value);
        if constexpr (std::is_integral_v<T>) {
          if (fault == NumberFault::none && static_cast<T>(value) != value) fault = NumberFault::too_large;
        }
        if (fault == NumberFault::none) return value;
        scanner.fail(compose("column \"{}\" holds {}, which is {} {}", shown_text(field.name), shown_text(text),
                             fault == NumberFault::too_large ? "too large for" : "no", name_of(field.dtype)));
      }
    }
    refuse(scanner, field);
  }

  void set_missing(std::size_t column, SampleWriter& sample);

  std::shared_ptr<const JsonLinesPlan> plan_;
  LineCutter cutter_{false};
  std::vector<bool> is_set_;  // which columns the line has had
  std::string text_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/json_lines_source.hpp
// Samples out of files of which each line is a JSON object. Data room.

namespace railyard::inline v0_1 {

/// Is JSON Lines as a RecordFormat. A key is a column: of numbers, truths, texts, or of arrays of numbers, which may
/// differ in length. A key that is missing or null is NaN, an empty text or an empty array.
struct JsonLinesFormat {
  using Options = JsonLinesSourceOptions;
  using Plan = detail::JsonLinesPlan;
  using Parser = detail::JsonLinesParser;
  static constexpr const char* name = "JSON Lines";

  [[nodiscard]] static detail::RecordRules rules(const Options& /*options*/);
  static void identify(const Options& options, detail::Fingerprint& fingerprint);
  [[nodiscard]] static std::shared_ptr<const Plan> plan(const Options& options, const std::string& file,
                                                        detail::TextHead& head);
  [[nodiscard]] static std::optional<std::size_t> header_size(const Plan& /*plan*/, const std::string& /*file*/,
                                                              const char* /*text*/, std::size_t /*size*/,
                                                              bool /*is_end*/);
};

/// Reads files of JSON Lines, as CsvSource reads records. Example: ry::JsonLinesSource{"reviews.jsonl"}
using JsonLinesSource = RecordSource<JsonLinesFormat>;

/// Reads compressed files of JSON Lines. Example: ry::JsonLinesStream{ry::zstd("reviews.jsonl.zst")}
using JsonLinesStream = RecordStream<JsonLinesFormat>;

}  // namespace railyard::inline v0_1

// ---- railyard/data/normalizer.hpp
// The preprocessor that gives each sample the length 1. Data room.

namespace railyard::inline v0_1 {

/// Says how long a sample is: by the sum of its magnitudes, the root of the sum of its squares, or its largest one.
enum class Norm : std::uint8_t { l1, l2, max };

/// Divides all numbers of a sample in the chosen columns by their norm. Learns nothing. Columns keep their dtype if
/// that is a real one, else become f64. A sample of zeros stays as it is; one with a missing or infinite value is a
/// DataError that names it.
class Normalizer {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Norm norm = Norm::l2;
  };

  Normalizer() = default;
  explicit Normalizer(Options options);

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] Schema schema(const Schema& before) const;

  [[nodiscard]] Block transform(const Block& block) const;

 private:
  [[nodiscard]] std::vector<Field> fields_after(const Schema& before) const;

  template <class Numbers, class Visit>
  static void visit_elements(Numbers& numbers, const Field& field, const Visit& visit) {
    const std::size_t width = field.width();
    for (std::size_t row = 0, at = 0; at < numbers.size(); ++row) {
      for (const std::size_t end = at + width; at < end; ++at) visit(row, numbers[at]);
    }
  }

  static void collect_largest(const Block& block, const Field& field, const std::vector<double>& numbers,
                              std::vector<double>& largest);

  // What to divide by, 1 for a sample of zeros; in units in which it is a number.
  [[nodiscard]] std::vector<double> norms_of(const std::vector<Field>& fields,
                                             const std::vector<std::vector<double>>& numbers,
                                             const std::vector<double>& largest) const;
  // Squares of numbers beyond these neither fit nor count, so such samples are measured in units of their largest.
  [[nodiscard]] static double unit_of(double largest) noexcept;

  Options options_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/npy_header.hpp
// What an array in NumPy's format begins with. Data room.
// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

// ---- railyard/data/npy_source.hpp
// Samples out of files of one NumPy array each. Data room.

namespace railyard::inline v0_1 {

/// Names the files that a column is in.
struct NpyColumn {
  std::string name;
  ArrayFiles files;
};

/// Says how files of NumPy arrays are read.
struct NpySourceOptions {
  std::string label{};
  OnError on_error = OnError::stop();
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;
};

/// Gives slices of NumPy arrays along their first dimension as samples, of which only what is asked for is read. int16
/// and uint16 become i32, uint32 becomes i64.
/// Cost: an array in Fortran's order takes a read for each element of a sample, or of samples that follow each other.
/// Example: ry::NpySource{{{"x", "x-*.npy"}, {"y", "y-*.npy"}}, {.label = "y"}}
class NpySource : public ArraySource {
 public:
  explicit NpySource(std::vector<NpyColumn> columns, const NpySourceOptions& options = {});

 private:
  [[nodiscard]] static std::vector<ArrayFiles> files_of(const std::vector<NpyColumn>& columns);
  [[nodiscard]] static Parse parse(const std::vector<NpyColumn>& columns);
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/tensor_places.hpp
// Where the tensors of a safetensors file are. Data room, which knows no checkpoints.
// Source: https://github.com/huggingface/safetensors, section "Format".

// ---- railyard/data/safetensors_source.hpp
// Samples out of the tensors of safetensors files. Data room.

namespace railyard::inline v0_1 {

/// Says how files of tensors are read.
struct SafetensorsSourceOptions {
  std::vector<std::string> columns{};  ///< the tensors that become columns; none: all, in the order of the header
  std::string label{};
  OnError on_error = OnError::stop();
};

/// Gives slices of the tensors of safetensors files along their first dimension, in which they are equal, as samples.
/// int16 and uint16 become i32, uint32 becomes i64.
/// Example: ry::SafetensorsSource{"features-*.safetensors", {.columns = {"x", "y"}, .label = "y"}}
class SafetensorsSource : public ArraySource {
 public:
  explicit SafetensorsSource(InputFiles files, const SafetensorsSourceOptions& options = {});

 private:
  [[nodiscard]] static Parse parse(const std::vector<std::string>& columns);
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/scalers.hpp
// Preprocessors that shift and scale each column of numbers by what they have learned about it. Data room.

namespace railyard::inline v0_1 {

/// Chooses the columns of numbers to scale: those named, or all but some.
struct ScalerOptions {
  std::vector<std::string> columns{};
  std::vector<std::string> except{};
};

namespace detail {

/// Collects the smallest and the largest value.
class Extremes {
 public:
  void add(std::span<const double> values) noexcept;
  void merge(const Extremes& other) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] double smallest() const noexcept { return smallest_; }
  [[nodiscard]] double largest() const noexcept { return largest_; }
  static void fields(auto& archive, auto& self) { archive(self.count_, self.smallest_, self.largest_); }

 private:
  std::uint64_t count_ = 0;
  double smallest_ = std::numeric_limits<double>::max();
  double largest_ = std::numeric_limits<double>::lowest();
};

}  // namespace detail

/// Subtracts the mean and divides by the standard deviation (of the samples themselves: divided by n).
class StandardRule {
 public:
  static constexpr std::string_view name = "StandardScaler";
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    bool centers = true;  ///< subtract the mean
    bool scales = true;   ///< divide by the standard deviation
  };
  using Statistics = detail::Moments;
  struct Learned {
    double mean = 0;
    double variance = 0;
    double scale = 1;  ///< what is divided by: the root of the variance, or 1
    static void fields(auto& archive, auto& self) { archive(self.mean, self.variance, self.scale); }
  };

  StandardRule() = default;
  explicit StandardRule(Options options);
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] Learned learn(const Statistics& seen) const;
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept;
  static void fields(auto& archive, auto& self) { archive(self.options_.centers, self.options_.scales); }

 private:
  Options options_{};
};
/// Gives each feature the mean 0 and the variance 1.
using StandardScaler = ColumnScaler<StandardRule>;

/// Maps the smallest value to one number and the largest to another.
class MinMaxRule {
 public:
  static constexpr std::string_view name = "MinMaxScaler";
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    double low = 0;
    double high = 1;
    bool clips = false;  ///< keep values within low and high that were outside of what was learned from
  };
  using Statistics = detail::Extremes;
  struct Learned {
    double smallest = 0;
    double largest = 0;
    double scale = 1;
    static void fields(auto& archive, auto& self) { archive(self.smallest, self.largest, self.scale); }
  };

  MinMaxRule() = default;
  /// Throws: ConfigError if low is not below high, or their distance is no number.
  explicit MinMaxRule(Options options);
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] Learned learn(const Statistics& seen) const;
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept;
  static void fields(auto& archive, auto& self) { archive(self.options_.low, self.options_.high, self.options_.clips); }

 private:
  Options options_{};
};
/// Gives each feature the range from low to high.
using MinMaxScaler = ColumnScaler<MinMaxRule>;

/// Divides by the largest magnitude, so that zero stays zero.
class MaxAbsRule {
 public:
  static constexpr std::string_view name = "MaxAbsScaler";
  using Options = ScalerOptions;
  using Statistics = detail::Extremes;
  struct Learned {
    double largest = 0;  ///< magnitude
    double scale = 1;    ///< what is divided by
    static void fields(auto& archive, auto& self) { archive(self.largest, self.scale); }
  };

  MaxAbsRule() = default;
  explicit MaxAbsRule(Options options);
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] Learned learn(const Statistics& seen) const noexcept;
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept;
  static void fields(auto&, auto&) {}

 private:
  Options options_{};
};
/// Gives each feature the largest magnitude 1.
using MaxAbsScaler = ColumnScaler<MaxAbsRule>;

/// Subtracts the median and divides by the distance between two quantiles, which outliers do not move.
class RobustRule {
 public:
  static constexpr std::string_view name = "RobustScaler";
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    double low = 0.25;
    double high = 0.75;
    /// Quantiles are exact up to so many values; of n values, their ranks are off by less than
    /// n (log2(n / size) + 1) / size, and a feature takes about 8 size log2(n / size) bytes while fit() runs.
    std::size_t sketch_size = 8192;
  };
  using Statistics = detail::QuantileSketch;
  struct Learned {
    double median = 0;
    double scale = 1;        ///< what is divided by
    double error_bound = 0;  ///< the quantiles' ranks, as parts of all, are off by at most this
    static void fields(auto& archive, auto& self) { archive(self.median, self.scale, self.error_bound); }
  };

  RobustRule() = default;
  /// Throws: ConfigError if low and high are no parts of 1 in this order.
  explicit RobustRule(Options options);
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] Statistics statistics() const;
  [[nodiscard]] Learned learn(const Statistics& seen) const;
  [[nodiscard]] double apply(double value, const Learned& learned) const noexcept;
  static void fields(auto&, auto&) {}

 private:
  Options options_{};
};
/// Gives each feature the median 0, and the distance 1 between two quantiles.
using RobustScaler = ColumnScaler<RobustRule>;

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/tar_reader.hpp
// The files in a tar archive, one after another. Data room.
// Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar, "Basic Tar Format".

namespace railyard::inline v0_1 {
namespace detail {

/// Is the place of a file's content in an archive.
struct TarPlace {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Is a regular file in an archive.
struct TarMember {
  std::string name{};
  TarPlace place{};
};

/// Steps through an archive in the format of ustar, GNU or pax.
class TarReader {
 public:
  TarReader(std::string path, std::unique_ptr<ByteStream> bytes);

  /// Goes on to the next regular file, past whatever is left of the one before; nothing at the end.
  /// Throws: DataError if the archive is damaged; then what follows cannot be found.
  [[nodiscard]] std::optional<TarMember> next();

  /// Reads what the file holds that next() has found. Throws: DataError if the archive ends before that.
  [[nodiscard]] std::string read_content(const TarPlace& place);

  [[noreturn]] void fail(std::uint64_t offset, std::string_view what) const;

 private:
  static constexpr std::size_t block_size = 512;

  // What comes before a header, about the file that it stands for.
  struct Extension {
    std::string name{};
    std::optional<std::uint64_t> size{};
    bool is_sparse = false;
  };

  void read(char* to, std::size_t size);
  [[nodiscard]] std::string read_text(std::uint64_t size);
  void skip(std::uint64_t size);
  [[nodiscard]] std::uint64_t padded(std::uint64_t size, std::uint64_t offset) const;

  // False at the end: of the bytes, or a block of zeros.
  [[nodiscard]] bool read_header();

  [[nodiscard]] std::string_view field(std::size_t begin, std::size_t size) const noexcept;
  // Octal digits, or bytes of a number behind one of 0x80.
  [[nodiscard]] std::uint64_t read_number(std::size_t begin, std::size_t size) const;
  [[nodiscard]] std::string read_name() const;

  // A long name of GNU, or records of pax: "LENGTH KEY=VALUE\n", each as long as it says.
  void read_extension(char type, std::uint64_t size, Extension& extension);
  void add_record(std::string_view key, std::string_view value, Extension& extension) const;

  std::string path_;
  std::unique_ptr<ByteStream> bytes_;
  std::array<char, block_size> header_{};
  std::uint64_t at_ = 0;
  std::uint64_t left_ = 0;  // of the file that was found, and what pads it
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/tar_samples.hpp
// The samples in a tar archive: files whose names differ only in what follows the first dot. Data room.
// Source: https://github.com/webdataset/webdataset, "The WebDataset Format".

namespace railyard::inline v0_1 {
namespace detail {

/// Says which files of a sample become which columns.
struct TarPlan {
  std::shared_ptr<const Schema> schema{};
  std::size_t num_suffixes = 0;  ///< the first columns, named by them; one more holds the key, if there is one more
  std::uint64_t max_member_bytes = 0;
};

/// Is the name of a file, divided.
struct TarName {
  std::string key{};     ///< with its folders
  std::string suffix{};  ///< in small letters; empty if it is no part of a sample

  explicit TarName(std::string_view name);
};

/// Is a sample in an archive.
struct TarSample {
  std::string key{};
  std::vector<std::optional<TarPlace>> places{};  ///< by column
  std::vector<std::string> contents{};            ///< by column, as far as they were asked for
  std::string fault{};                            ///< why it can be no sample
  std::uint64_t offset = 0;                       ///< of its first file
};

/// Says which contents are to be read with the samples.
enum class TarContents : std::uint8_t { none, texts, all };

/// Reads an archive sample by sample.
class TarSampleReader {
 public:
  TarSampleReader(const std::string& path, std::unique_ptr<ByteStream> bytes, std::shared_ptr<const TarPlan> plan);

  /// Returns the next sample, which may have a fault; nothing at the end. Throws: DataError if the archive is damaged.
  [[nodiscard]] std::optional<TarSample> next(TarContents contents);

  /// Says where a sample is, as messages begin.
  [[nodiscard]] std::string where(const TarSample& sample) const;

 private:
  // Goes to the next file that is a part of a sample.
  void advance();

  static void add_fault(TarSample& sample, std::string fault);

  void add(TarSample& sample, TarContents contents);

  std::string path_;
  TarReader reader_;
  std::shared_ptr<const TarPlan> plan_;
  std::optional<TarMember> member_;  // the next one
  TarName name_{""};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/tar_shards.hpp
// What all copies of a source of tar archives know of them: columns, and where the samples are. Data room.

namespace railyard::inline v0_1 {

/// Says how archives of samples are read.
struct TarSourceOptions {
  std::vector<std::string> bytes{};  ///< suffixes of files that become columns of u8, which differ in length
  std::vector<std::string> text{};  ///< suffixes of files that become columns of text. With neither, those of the first
                                    ///< sample: .txt, .text, .json, .cls and .csv are text, all others bytes
  std::string key{};                ///< the name of a column of what comes before the suffix; empty: there is none
  std::string label{};
  std::uint64_t max_member_bytes = std::uint64_t{1} << 30;
  OnError on_error = OnError::stop();  ///< a damaged archive is left out from where it is damaged, and counts as one
};

namespace detail {

/// Knows the archives of a source, and what was left out of them.
class TarShards {
 public:
  TarShards(InputFiles input, TarSourceOptions options, OpenBytes opener);

  [[nodiscard]] const TarSourceOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const SkipCount& skips() const noexcept { return skips_; }

  [[nodiscard]] std::vector<std::string> names();
  [[nodiscard]] std::shared_ptr<const TarPlan> plan();
  [[nodiscard]] TarSampleReader open(const std::string& name);
  /// What must be read so that it is known which samples are left out.
  [[nodiscard]] TarContents contents_to_check() const noexcept;

  /// Throws: DataError, unless this may be left out as well, where `before` were. Returns how many there are now.
  std::uint64_t leave_out(std::uint64_t before, const std::string& message) const;

 private:
  [[nodiscard]] std::unique_ptr<ByteStream> open_bytes(const std::string& name) const;
  const std::vector<std::string>& names_now();
  [[nodiscard]] std::shared_ptr<const TarPlan> make_plan();
  [[nodiscard]] static bool is_usually_text(std::string_view suffix) noexcept;

  InputFiles input_;
  TarSourceOptions options_;
  OpenBytes open_;
  SkipCount skips_{};
  std::mutex mutex_{};
  std::vector<std::string> names_;
  std::shared_ptr<const TarPlan> plan_;
};

/// Goes over all archives, sample by sample, and counts what is left out.
class TarWalk {
 public:
  /// place: where it begins.
  explicit TarWalk(std::shared_ptr<TarShards> shards, const FilePlace& place = {});

  /// Returns the next sample that has no fault; nothing at the end. Throws: DataError.
  [[nodiscard]] std::optional<TarSample> next(TarContents contents);
  /// The archive of the sample that came last.
  [[nodiscard]] std::size_t file() const noexcept { return file_; }
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  /// What was left out of the archives before it.
  [[nodiscard]] std::uint64_t left_out_before() const noexcept { return left_out_before_; }

 private:
  std::shared_ptr<TarShards> shards_;
  std::vector<std::string> names_;
  std::size_t file_;
  std::optional<TarSampleReader> reader_;
  std::uint64_t left_out_;
  std::uint64_t left_out_before_;
};

/// Knows where each sample is, as far as somebody has asked; shared by threads and inherited by forked processes.
class TarIndex {
 public:
  explicit TarIndex(std::shared_ptr<TarShards> shards);

  struct Place {
    std::shared_ptr<const StoredFile> file{};
    std::string key{};
    std::vector<TarPlace> places{};
  };

  /// Returns where a sample is; nothing if there is no such sample.
  [[nodiscard]] std::optional<Place> find(std::uint64_t id);
  [[nodiscard]] std::uint64_t count();

 private:
  bool extend();

  std::shared_ptr<TarShards> shards_;
  std::mutex mutex_{};
  std::optional<TarWalk> walk_;
  std::shared_ptr<const StoredFile> file_;
  std::vector<Place> places_;
  bool is_whole_ = false;
  std::string failure_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/tar_source.hpp
// Samples out of tar archives, such as shards of WebDataset. Data room.

namespace railyard::inline v0_1 {

/// Gives the samples of tar archives (ustar, GNU, pax), in any order: files that follow each other and whose names are
/// the same up to the first dot are one sample, and what follows the dot names the column. Archives are not to change
/// as long as there is a source of them.
///
/// Cost: the first count(), read() or open() in the middle reads the headers of all archives up to there (.on_error
/// other than stop(): texts as well), and keeps about 150 bytes per sample in memory.
/// Example: ry::Dataset{ry::TarSource{"photos-*.tar", {.bytes = {"jpg"}, .text = {"cls"}}}}
class TarSource {
 public:
  explicit TarSource(InputFiles files, TarSourceOptions options = {});

  /// Throws: DataError if the first archive has to be read for it and is damaged or empty; ConfigError for two columns
  /// of one name.
  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  [[nodiscard]] std::string describe() const;
  /// The paths of the archives that it reads.
  [[nodiscard]] std::vector<std::string> files() const;
  [[nodiscard]] std::string label() const;
  /// Another when the options are that say which samples are left out.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// How many damaged samples and rests of archives were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const;

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const;

 private:
  class Reader;

  // False if there is no such sample.
  bool add(BlockBuilder& builder, std::uint64_t id) const;

  std::shared_ptr<detail::TarShards> shards_;
  std::shared_ptr<detail::TarIndex> index_;
};

class TarSource::Reader final : public BlockReader {
 public:
  Reader(TarSource source, std::uint64_t from);
  [[nodiscard]] Block next(std::size_t most_rows) override;

 private:
  TarSource source_;
  std::uint64_t at_;
};

/// Gives the samples of compressed tar archives, one after another. To go on in the middle of one, it is read
/// again from its begin; those before it are not.
/// Example: ry::TarStream{ry::gzip("photos-*.tar.gz"), {.bytes = {"jpg"}, .text = {"cls"}}}
class TarStream {
 public:
  explicit TarStream(CompressedFiles files, TarSourceOptions options = {});

  /// Throws: as TarSource::schema().
  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  [[nodiscard]] std::string describe() const;
  /// The paths of the archives that it reads.
  [[nodiscard]] std::vector<std::string> files() const;
  [[nodiscard]] std::string label() const;
  /// Another when the options are that say which samples are left out.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// How many damaged samples and rests of archives were left out so far; reading them again does not count.
  [[nodiscard]] std::uint64_t skipped() const;

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from, const FilePlace& place = {}) const;

 private:
  class Reader final : public BlockReader {
   public:
    Reader(const std::shared_ptr<detail::TarShards>& shards, std::uint64_t from, const FilePlace& place);
    [[nodiscard]] Block next(std::size_t most_rows) override;
    [[nodiscard]] FilePlace place() const override;

   private:
    // Notes where the archive begins that it comes from.
    std::optional<detail::TarSample> next_sample(detail::TarContents contents);

    std::shared_ptr<const Schema> schema_;
    detail::TarWalk walk_;
    std::uint64_t at_;
    FilePlace place_;  // of the sample that came last
  };

  std::shared_ptr<detail::TarShards> shards_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/data/text_lines_source.hpp
// Samples out of text files of which each line is one. Data room.

namespace railyard::inline v0_1 {

/// Says how files of text lines are read.
struct TextLinesSourceOptions {
  std::string column = "text";  ///< the name of the one column
  std::string label{};
  bool has_blank_lines = true;  ///< whether a line with nothing on it is a sample
  std::size_t max_record_bytes = std::size_t{64} << 20;
  OnError on_error = OnError::stop();
};

namespace detail {

struct TextLinesPlan {
  std::shared_ptr<const Schema> schema{};
  bool has_blank_lines = true;
};

/// Makes a column of text lines.
class TextLinesParser {
 public:
  explicit TextLinesParser(const std::shared_ptr<const TextLinesPlan>& plan);

  std::size_t cut(const char* text, std::size_t size, bool /*is_end*/);
  [[nodiscard]] std::size_t records() const noexcept;
  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept;
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept;

  [[nodiscard]] std::vector<Column> parse(RecordFaults& faults) const;

 private:
  LineCutter cutter_;
};

}  // namespace detail

/// Is text lines as a RecordFormat.
struct TextLinesFormat {
  using Options = TextLinesSourceOptions;
  using Plan = detail::TextLinesPlan;
  using Parser = detail::TextLinesParser;
  static constexpr const char* name = "text";

  [[nodiscard]] static detail::RecordRules rules(const Options& options);
  static void identify(const Options& options, detail::Fingerprint& fingerprint);
  [[nodiscard]] static std::shared_ptr<const Plan> plan(const Options& options, const std::string& file,
                                                        detail::TextHead& /*head*/);
  [[nodiscard]] static std::optional<std::size_t> header_size(const Plan& /*plan*/, const std::string& /*file*/,
                                                              const char* /*text*/, std::size_t /*size*/,
                                                              bool /*is_end*/);
};

/// Reads the lines of text files, as CsvSource reads records. Example: ry::TextLinesSource{"books/*.txt"}
using TextLinesSource = RecordSource<TextLinesFormat>;

/// Reads the lines of compressed files. Example: ry::TextLinesStream{ry::gzip("books/*.txt.gz")}
using TextLinesStream = RecordStream<TextLinesFormat>;

}  // namespace railyard::inline v0_1

// ---- railyard/data/tokenizer.hpp
// The preprocessor that makes token numbers of texts by a function of the user's. Data room.

namespace railyard::inline v0_1 {

/// Makes of each column of text a column of the same name with the numbers of its tokens, as many as there are. Learns
/// nothing, and the function is not part of a checkpoint.
/// Shapes: (tokens), i64.
class Tokenizer {
 public:
  /// Returns the numbers of a text's tokens. Called on several threads at once.
  using Function = std::function<std::vector<std::int64_t>(std::string_view)>;

  struct Options {
    std::vector<std::string> columns{};
    Function tokens{};
  };

  /// Throws: ConfigError if there is no function.
  explicit Tokenizer(Options options);

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const;
  /// Another when the function is of another type, as each lambda is.
  [[nodiscard]] std::uint64_t kind() const;
  [[nodiscard]] Schema schema(const Schema& before) const;

  [[nodiscard]] Block transform(const Block& block) const;

 private:
  [[nodiscard]] std::vector<Field> fields_after(const Schema& before) const;

  [[nodiscard]] Column tokenized(const Column& texts) const;

  Options options_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/fit.hpp
// Lets preprocessors learn from datasets on all workers together. Train room.

namespace railyard::inline v0_1 {

/// Lets a preprocessor learn from a dataset of which each worker reads its part. Called by every worker; all learn the
/// same bits, which differ between numbers of workers as roundings do. What RunConfig::data.split does not name is
/// divided for this as well; what is undivided() otherwise, each worker reads as it has it, and all learn from all of
/// that. A stream is read by one worker of each host, as loaders read it. Throws: as fit() without a worker.
/// Example: ry::fit(worker, scaler, worker.dataset("train"));
template <LearningPreprocessor P>
void fit(Worker& worker, P& preprocessor, const Dataset& dataset) {
  const bool is_own = detail::is_own_part(worker, dataset);
  const Dataset read = is_own ? dataset : Dataset::from_node(dataset.node(), dataset.label());
  const auto rank = static_cast<std::size_t>(is_own ? 0 : worker.rank());
  const auto world_size = static_cast<std::size_t>(is_own ? 1 : worker.world_size());
  const bool is_shared = !is_own && !read.is_indexed() && worker.world_size() > 1;
  const auto open = [&]() -> std::unique_ptr<BlockReader> {
    std::shared_ptr<detail::HostFeed> feed;
    if (is_shared) {
      worker.barrier();  // then nobody reads by itself because another comes late
      if (worker.local_world_size() > 1) feed = detail::next_stream_feed(worker, EpochOptions{}.bound_bytes);
    }
    return std::make_unique<detail::EpochBlocks>(read, rank, world_size, std::move(feed));
  };
  const auto gather = [&worker](std::vector<std::byte> mine) { return detail::gather_bytes(worker, std::move(mine)); };
  fit(preprocessor, dataset.schema(), open, {.gather = gather});
}

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB

// ---- railyard/data/gzip.hpp
// Reads files that are compressed by gzip, with zlib. Data room.

#if !__has_include(<zlib.h>)
#error "railyard/data/gzip.hpp needs zlib: install it (Debian: zlib1g-dev) and link with -lz, or leave this header out"
#endif

#include <zlib.h>

namespace railyard::inline v0_1 {

/// Names files that are compressed by gzip, for CsvStream and its like. Example: ry::CsvStream{ry::gzip("a-*.csv.gz")}
[[nodiscard]] CompressedFiles gzip(InputFiles files);

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB

// ---- railyard/data/detail/zip_directory.hpp
// What is in a zip archive, and where. Data room.
// Source: PKWARE, .ZIP File Format Specification (APPNOTE.TXT), sections 4.3 and 4.5.3.

// ---- railyard/data/npz_source.hpp
// Samples out of archives of NumPy arrays, with zlib. Data room.

#if !__has_include(<zlib.h>)
#error "railyard/data/npz_source.hpp needs zlib: install it (Debian: zlib1g-dev) and link with -lz, or leave it out"
#endif

#include <zlib.h>

namespace railyard::inline v0_1 {

/// Says how archives of arrays are read.
struct NpzSourceOptions {
  std::vector<std::string> columns{};  ///< the arrays that become columns; none: all, in the order of the archive
  std::string label{};
  OnError on_error = OnError::stop();
  std::uint64_t max_unpacked_bytes = std::uint64_t{1} << 30;  ///< that the deflated arrays of a file may become
};

/// Gives slices of the arrays that numpy.savez has put into a file, along their first dimension, in which they are
/// equal, as samples. What numpy.savez_compressed has made is unpacked to memory first, and its checksums are compared.
/// Example: ry::NpzSource{"digits.npz", {.columns = {"x", "y"}, .label = "y"}}
class NpzSource : public ArraySource {
 public:
  explicit NpzSource(InputFiles files, const NpzSourceOptions& options = {});

 private:
  [[nodiscard]] static Parse parse(const std::vector<std::string>& columns);
};

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_ZSTD) && RAILYARD_WITH_ZSTD

// ---- railyard/data/zstd.hpp
// Reads files that are compressed by zstd, with its library. Data room.

#if !__has_include(<zstd.h>)
#error "railyard/data/zstd.hpp needs libzstd: install it (Debian: libzstd-dev) and link with -lzstd, or leave it out"
#endif

#include <zstd.h>

namespace railyard::inline v0_1 {

/// Names files that are compressed by zstd, for CsvStream and its like. Example: ry::CsvStream{ry::zstd("a-*.csv.zst")}
[[nodiscard]] CompressedFiles zstd(InputFiles files);

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_IMAGES) && RAILYARD_WITH_IMAGES

// ---- railyard/data/detail/jpeg_decoder.hpp
// Decodes JPEG pictures with libjpeg. Data room.

#include <csetjmp>

#include <jpeglib.h>

#include <jerror.h>

// ---- railyard/data/detail/png_decoder.hpp
// Decodes PNG pictures with libpng. Data room.

#include <csetjmp>

#include <png.h>

// ---- railyard/data/decode_image.hpp
// Pictures out of the bytes of PNG and JPEG files, with libpng and libjpeg. Data room.

#if !__has_include(<png.h>) || !__has_include(<jpeglib.h>)
#error "railyard/data/decode_image.hpp needs libpng and libjpeg (Debian: libpng-dev libjpeg-dev), or leave it out"
#endif

namespace railyard::inline v0_1 {

/// Says how pictures are decoded.
struct DecodeImageOptions {
  ImageColors colors = ImageColors::rgb;
  std::uint64_t max_pixels =
      89'478'485;  ///< more are an error: a small file can become a picture that fills the memory
};

/// Returns the picture that the bytes of a PNG or JPEG file are, whichever it is. What its Exif data says of how it was
/// held is left alone. Of 16 bits the upper eight are taken.
/// Throws: DataError if it is damaged, also where other programs make up what is missing.
/// Example: images.map({{"image", ry::Dtype::u8, {224, 224, 3}}}, [](const ry::Sample& in, ry::SampleWriter& out) {
///   out.set("image", ry::fit_image(ry::decode_image(in.bytes("jpg")), 224, 224).pixels);
/// });
[[nodiscard]] Image decode_image(std::span<const std::byte> bytes, const DecodeImageOptions& options = {});

}  // namespace railyard::inline v0_1

// ---- railyard/data/detail/image_files.hpp
// The pictures in a folder of folders, each folder a class. Data room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is the path of a picture, and which class it shows.
struct ImageFile {
  std::string path{};
  std::int64_t label = 0;
};

/// Is what folders hold: classes and, class after class, the pictures in the folder of each and in those below, all in
/// the order of their names' bytes. Of several folders, those of the first come first in each class.
struct ImageFiles {
  std::vector<std::string> classes{};
  std::vector<ImageFile> files{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/data/image_folder.hpp
// Samples out of PNG and JPEG files, a folder for each class. Data room.

namespace railyard::inline v0_1 {

/// Says in which order the numbers of a picture come.
enum class ImageLayout : std::uint8_t {
  hwc,  ///< pixel after pixel: height x width x channels
  chw,  ///< colour after colour: channels x height x width
};

/// Says how a folder of pictures is read.
struct ImageFolderOptions {
  std::size_t height = 0;  ///< to which pictures are brought. Without height and width each stays as it is: "image" is
  std::size_t width = 0;   ///< then ragged, and there are the columns "height" and "width"
  ImageFit fit = ImageFit::crop;
  ImageLayout layout = ImageLayout::hwc;
  ImageColors colors = ImageColors::rgb;
  std::uint64_t max_pixels = DecodeImageOptions{}.max_pixels;
  OnError on_error = OnError::stop();
};

/// Gives the pictures in folders as samples, in any order: "image" is u8, and "label", i64, is the place of the
/// folder's name among those of all folders. Several folders, by a list or a pattern, are as one that holds what is in
/// each; a path may also be a picture, whose class is the name of the folder that it lies in. Each picture is read when
/// it is asked for, by whoever asks. Folders are listed when they are first needed, and not to change as long as there
/// is a source of them.
///
/// Cost: with .on_error other than stop() the first count() decodes all pictures, to know which can be.
/// Example: ry::ImageFolder{"photos/train", {.height = 224, .width = 224}}; ry::ImageFolder{"photos/part-*"}
class ImageFolder {
 public:
  /// Throws: ConfigError if one of height and width is given without the other.
  explicit ImageFolder(InputFiles folders, const ImageFolderOptions& options = {});

  [[nodiscard]] Schema schema() const;
  [[nodiscard]] std::optional<std::uint64_t> count() const;
  [[nodiscard]] std::string describe() const;
  /// The paths of the pictures, damaged ones included. Looks at no picture.
  [[nodiscard]] std::vector<std::string> files() const;
  [[nodiscard]] std::string label() const;
  /// The names of the folders: label i is classes()[i].
  [[nodiscard]] std::vector<std::string> classes() const;
  /// Another when the options are.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// How many damaged pictures were left out.
  [[nodiscard]] std::uint64_t skipped() const;

  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const;
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const;

 private:
  struct Shared {
    Shared(InputFiles folders_, const ImageFolderOptions& options_);

    [[nodiscard]] static std::vector<Field> fields_of(const ImageFolderOptions& options);

    [[nodiscard]] const std::vector<detail::ImageFile>& files();
    [[nodiscard]] detail::ImageFiles list() const;

    [[nodiscard]] Image decode(const detail::ImageFile& file) const;

    void add(BlockBuilder& builder, std::uint64_t id);

    InputFiles folders;
    ImageFolderOptions options;
    std::shared_ptr<const Schema> schema;
    SkipCount skips{};
    std::mutex mutex{};
    detail::ImageFiles found{};
  };

  class Reader final : public BlockReader {
   public:
    Reader(std::shared_ptr<Shared> shared, std::uint64_t from);
    [[nodiscard]] Block next(std::size_t most_rows) override;

   private:
    std::shared_ptr<Shared> shared_;
    std::uint64_t at_;
  };

  std::shared_ptr<Shared> shared_;
};

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_LAUNCHED) && RAILYARD_WITH_LAUNCHED

// ---- railyard/workers/detail/agent_request.hpp
// A request that a process which follows is answering, on a thread that may be left behind. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Owns the thread. What that uses is its own as well, the snapshots' memory included: a file system may hold it up for
/// longer than anybody waits. Used by one thread.
class AgentRequest {
 public:
  /// snapshots: of this process's workers, of whom the first is first_rank among all; none if there are no workers.
  /// Throws: std::system_error if no thread can be had.
  AgentRequest(std::uint64_t number, std::vector<std::byte> request, RequestHandler handler,
               std::shared_ptr<GroupMemory> snapshots, int first_rank);
  AgentRequest(const AgentRequest&) = delete;
  AgentRequest& operator=(const AgentRequest&) = delete;
  ~AgentRequest();

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] bool is_over() const;
  /// How often the handler has read from a snapshot.
  [[nodiscard]] std::uint64_t num_reads() const noexcept;
  /// Once it is over. Throws: Error with what the handler has thrown.
  [[nodiscard]] std::vector<std::byte> take_answer();

  /// Lets the handler read nothing more, waits so long for its end at most, and leaves its thread behind then. Returns
  /// whether it has ended.
  bool give_up(std::chrono::nanoseconds patience) noexcept;

 private:
  struct Work {
    std::mutex mutex{};
    std::condition_variable ended{};
    bool is_over = false;
    std::vector<std::byte> answer{};
    std::optional<std::string> complaint{};
    std::atomic<bool> is_given_up{false};
    std::atomic<std::uint64_t> num_reads{0};

    [[nodiscard]] std::span<const std::byte> read(GroupMemory* memory, int rank, int slot, std::size_t begin,
                                                  std::size_t size_bytes);

    template <class Handle>
    void run(const Handle& handle) {
      std::vector<std::byte> given;
      std::optional<std::string> why;
      try {
        given = handle();
      } catch (const std::exception& error) {
        why = error.what();
      }
      const std::lock_guard lock{mutex};
      answer = std::move(given);
      complaint = std::move(why);
      is_over = true;
      ended.notify_all();
    }
  };

  std::uint64_t number_;
  std::shared_ptr<Work> work_;
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/agent_wire.hpp
// What the process that leads and those that follow say to each other. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Names what the leader sends. Ranks in its messages count the workers of the process they go to.
enum class Order : std::uint8_t {
  tell = 1,      ///< a text for the program
  start = 2,     ///< workers, as a StartOrder says
  stop = 3,      ///< these set the flags on the workers' pages
  leave = 4,     //
  resize = 5,    //
  abort = 6,     ///< a reason
  kill = 7,      //
  stacks = 8,    ///< answered by News::stacks
  fetch = 9,     ///< a FetchOrder for a piece of a snapshot, answered by News::fetched or News::not_fetched
  hold = 10,     ///< rank and slot of a snapshot
  release = 11,  ///< likewise
  request = 12,  ///< a number, and what the RequestHandler is given; answered by News::answered or News::not_answered
  give_up = 13,  ///< the number of a request whose answer is not waited for any longer
  keeps = 14,    ///< a number, and SlotOrders: whether workers that are started again find them; answered likewise
  alive = 20,    ///< nothing: a sign of life
  note = 21,     ///< a text to be remembered, for whoever leads when the leader is lost
  refuse = 22    ///< whether a setting is to blame, and why: the processes do not make a run
};

/// Names what a follower sends.
enum class News : std::uint8_t {
  started = 64,       ///< the workers exist: of which generation
  refused = 65,       ///< they cannot be made: of which generation, whether a setting is to blame, and why
  event = 66,         ///< a GroupEvent
  pages = 67,         ///< of all its workers; also the sign that it is alive
  stacks = 68,        ///< one text for each worker
  fetched = 69,       ///< the number of the order, and so many bytes
  not_fetched = 70,   ///< the number of the order, and why
  answered = 71,      ///< the number of the request or question, and the answer
  not_answered = 72,  ///< the number of the request or question, and why
  progress = 73,      ///< the number of the request, whose handler has read from a snapshot
};

/// Says where a process's workers stand among all.
struct GroupLayout {
  std::uint32_t generation = 0;  ///< counts the starts of the workers
  std::int32_t first_rank = 0;
  std::int32_t num_workers = 1;  ///< of this process
  std::int32_t world_size = 1;
  std::int32_t first_local_rank = 0;
  std::int32_t local_size = 1;  ///< workers of this host
  std::int32_t node = 0;
  std::int32_t num_nodes = 1;

  friend bool operator==(const GroupLayout&, const GroupLayout&) noexcept = default;
};

struct StartOrder {
  GroupLayout layout{};
  std::int64_t silence_limit_ns = 0;
  std::string briefing{};
  std::string parts{};  ///< of each process, as the leader counts them: '1' if it makes any of these workers, else '0'

  [[nodiscard]] std::vector<std::byte> encode() const;
  [[nodiscard]] static StartOrder decode(std::span<const std::byte> bytes);
};

struct SlotOrder {
  std::int32_t rank = 0;
  std::int32_t slot = 0;
};

struct FetchOrder {
  std::uint64_t number = 0;
  SlotOrder of{};
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = 0;
};

/// Is what a WorkerPage shows.
struct PageValues {
  std::uint64_t samples = 0;
  std::uint64_t steps = 0;
  std::int64_t epoch = -1;
  std::uint64_t epoch_size = 0;
  std::uint64_t epoch_done = 0;
  std::uint64_t collectives = 0;
  std::int64_t stepped_for_ns = -1;  ///< since its last step ended; -1 before the first
  std::int64_t waiting_for_ns = -1;  ///< clocks of two hosts have nothing in common; -1 while it does not wait

  [[nodiscard]] static PageValues of(const WorkerPage& page) noexcept;
  void show_on(WorkerPage& page) const noexcept;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/hmac.hpp
// Proofs of knowing a secret: HMAC-SHA256 of OpenSSL's libcrypto, comparison in constant time. Workers room.

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

namespace railyard::inline v0_1 {
namespace detail {

using ConstBytes = std::span<const std::byte>;
using Digest = std::array<std::byte, 32>;

/// Holds a key, in a form that does not show it, and authenticates bytes with it. Only the constructor takes locks of
/// libcrypto: copies may be made, and used, in a process that was forked while other threads worked with libcrypto.
class Hmac {
 public:
  explicit Hmac(ConstBytes key);
  Hmac(const Hmac& other);
  Hmac(Hmac&&) noexcept = default;
  Hmac& operator=(const Hmac&) = delete;
  Hmac& operator=(Hmac&&) noexcept = default;
  ~Hmac() = default;

  /// Returns one that holds another key.
  [[nodiscard]] Hmac with_key(ConstBytes key) const;

  /// Authenticates the pieces, one after the other. Cost: about a microsecond, and a nanosecond for two bytes on a
  /// processor that has instructions for it.
  [[nodiscard]] Digest of(std::initializer_list<ConstBytes> pieces);
  /// The same, for pieces that are counted only at run time and come after a first one.
  [[nodiscard]] Digest of(ConstBytes first, std::span<const ConstBytes> pieces);

 private:
  struct Free {
    void operator()(EVP_MAC_CTX* context) const noexcept;
  };

  static void check(bool went_well);
  void set_key(ConstBytes key);
  void update(ConstBytes piece);
  [[nodiscard]] Digest finish();

  std::unique_ptr<EVP_MAC_CTX, Free> context_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/frames.hpp
// Messages on a connection, each with a code that nobody can make who does not know the connection's key. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is one message. What types there are is for its users to say; listeners have three of their own.
struct Frame {
  static constexpr std::uint8_t misfit = 253;   ///< like a refusal, of one that can never be taken as it is set
  static constexpr std::uint8_t welcome = 254;  ///< a listener's answer to a hello
  static constexpr std::uint8_t refusal = 255;  ///< the other answer; the payload is a text that says why

  std::uint8_t type = 0;
  std::vector<std::byte> payload{};

  [[nodiscard]] std::string_view text() const noexcept;
};

/// Stands before the payload: its size as four bytes, its type as one. After it come the first bytes of the HMAC.
inline constexpr std::size_t frame_head_bytes = 5;
inline constexpr std::size_t frame_code_bytes = 16;

/// Computes the code of each frame. It covers the frame's number as well: none can be left out, repeated or moved.
class FrameCoder {
 public:
  explicit FrameCoder(Hmac key) noexcept;

  [[nodiscard]] std::array<std::byte, frame_code_bytes> next(ConstBytes head, std::span<const ConstBytes> payload);

 private:
  Hmac key_;
  std::uint64_t number_ = 0;
};

/// Holds what is still to be sent.
class FrameWriter {
 public:
  FrameWriter(Hmac key, std::size_t max_bytes) noexcept;

  /// Throws: ConfigError if the payload is larger than the other end takes.
  void put(std::uint8_t type, std::initializer_list<ConstBytes> pieces);

  [[nodiscard]] ConstBytes unsent() const noexcept;
  void mark_sent(std::size_t num_bytes);

 private:
  void append(ConstBytes piece);

  FrameCoder coder_;
  std::size_t max_bytes_;
  std::vector<std::byte> bytes_;
  std::size_t sent_ = 0;
};

/// Puts frames together from whatever pieces they come in.
class FrameReader {
 public:
  FrameReader(Hmac key, std::size_t max_bytes) noexcept;

  /// Where the next bytes go: never beyond the end of a frame. It grows with what has come: a size that is a lie costs
  /// no memory.
  [[nodiscard]] std::span<std::byte> room();

  /// Takes what has been put into room(), and returns the frame that it has made whole.
  /// Throws: DataError if the frame is too large or has been altered.
  [[nodiscard]] std::optional<Frame> take(std::size_t num_bytes);

  /// Is a frame under way?
  [[nodiscard]] bool is_inside() const noexcept { return filled_ != 0; }

 private:
  void take_head();

  FrameCoder coder_;
  std::size_t max_bytes_;
  std::array<std::byte, frame_head_bytes> head_{};
  std::vector<std::byte> body_;
  std::size_t body_bytes_ = 0;
  std::size_t filled_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/hello.hpp
// How two processes prove to each other that they know the run's secret before either believes a byte. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says what a connection is for.
enum class HelloKind : std::uint8_t { agent = 1, store = 2 };

/// Is what a process says of itself when it connects.
struct Hello {
  HelloKind kind = HelloKind::agent;
  std::string job{};             ///< what two jobs differ by
  std::uint32_t generation = 0;  ///< which attempt it belongs to
  std::int32_t process = 0;      ///< which of the launched processes; of a store: which rank
  std::string payload{};         ///< whatever else; of no meaning here
};

/// Is what each side sends first: who does not speak this protocol is found out by the first eight bytes, of which the
/// last is its version.
struct Opening {
  using Magic = std::array<char, 8>;
  static constexpr Magic at_length{'R', 'A', 'I', 'L', 'Y', 'R', 'D', '1'};
  static constexpr Magic by_ticket{'R', 'A', 'I', 'L', 'Y', 'R', 'T', '1'};
  static constexpr Magic at_length_by_tls{'R', 'A', 'I', 'L', 'Y', 'R', 'E', '1'};
  static constexpr Magic by_ticket_by_tls{'R', 'A', 'I', 'L', 'Y', 'R', 'U', '1'};
  Magic magic = at_length;
  std::array<std::byte, 32> nonce{};

  [[nodiscard]] static Opening make(const Magic& magic = at_length);
  [[nodiscard]] ConstBytes bytes() const noexcept;

  [[nodiscard]] bool has_ticket() const noexcept;
  /// Is all that comes after the openings encrypted?
  [[nodiscard]] bool is_by_tls() const noexcept;

  /// Returns what is wrong with the magic; empty if nothing is.
  [[nodiscard]] std::string complaint() const;
};

/// Is what a listener gives to those who have proven themselves, for them and the processes they start: its opening of
/// all connections that are made by ticket, so that nobody has to wait for one. Not secret.
using Ticket = Opening;

/// Is what both sides have seen of a handshake. Proofs and keys cover all of it, so that none can be used a second time
/// or for another connection; the labels keep what one side sends from being sent back as the other's.
class Transcript {
 public:
  Transcript(const Opening& client, const Opening& server, ConstBytes hello) noexcept;

  [[nodiscard]] Digest client_proof(const Hmac& secret) const;
  /// The key of the TLS, under which the hello goes: it is of the openings alone.
  [[nodiscard]] Digest tls_key(const Hmac& secret) const;
  /// What the client's frames are authenticated with, and the server's, of which the first is the server's proof.
  [[nodiscard]] Hmac client_key(const Hmac& secret) const;
  [[nodiscard]] Hmac server_key(const Hmac& secret) const;

 private:
  [[nodiscard]] Digest sign(const Hmac& secret, std::string_view label) const;
  [[nodiscard]] Hmac key(const Hmac& secret, std::string_view label) const;

  ConstBytes client_;
  ConstBytes server_;
  ConstBytes hello_;
};

/// Holds what the frames of a connection are authenticated with: what it sends, and what it receives.
struct SessionKeys {
  Hmac outgoing;
  Hmac incoming;
};

/// Is the listening side of a handshake: the client's opening, the server's, the client's hello with its proof. A
/// client with a ticket leaves the second one out and sends all at once; that such a hello comes once only is for the
/// listener to see. Where the client wants TLS, that begins after the openings. Reads nothing beyond the proof, and
/// takes the hello apart only after it.
class ServerHandshake {
 public:
  enum class State : std::uint8_t { waiting, proven, refused };

  /// Both outlive it.
  ServerHandshake(const Hmac& secret, const Ticket& ticket);

  [[nodiscard]] State state() const noexcept;
  /// Where the next bytes go.
  [[nodiscard]] std::span<std::byte> room() noexcept;
  /// Takes what has been put into room(), and returns what the client is to be sent.
  [[nodiscard]] ConstBytes take(std::size_t num_bytes);

  /// Returns the key of the TLS once, when all that is to come goes by it.
  [[nodiscard]] std::optional<Digest> take_tls_key();

  /// Has anything come at all?
  [[nodiscard]] bool is_untouched() const noexcept;
  /// Why it was refused.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }
  /// The client's: no other connection has the same nonce, unless somebody repeats what he has heard.
  [[nodiscard]] const Opening& opening() const noexcept { return client_; }
  /// What the client says of itself, once it is proven.
  [[nodiscard]] Hello& hello() noexcept { return hello_; }
  [[nodiscard]] SessionKeys keys() const;

 private:
  enum class Step : std::uint8_t { magic, nonce, size, hello };

  ConstBytes refuse(std::string why);

  void expect(Step step, std::size_t total_bytes);

  ConstBytes take_magic();

  ConstBytes take_nonce();

  ConstBytes take_size();

  ConstBytes take_hello();

  [[nodiscard]] ConstBytes hello_bytes() const noexcept;
  [[nodiscard]] Transcript transcript() const noexcept;

  const Hmac* secret_;
  const Ticket* ticket_;
  Step step_ = Step::magic;
  State state_ = State::waiting;
  bool begins_tls_ = false;
  std::vector<std::byte> input_;
  std::size_t filled_ = 0;
  Opening client_{};
  Opening server_{};
  Hello hello_{};
  std::string refusal_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/tls.hpp
// TLS 1.3 on a connected socket whose two ends share a key, by OpenSSL's libssl. Workers room.

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace railyard::inline v0_1 {
namespace detail {

enum class TlsRole : std::uint8_t { client, server };

/// Is the TLS of one end. The two ends share a key that no other connection has, and which is known to nobody else; a
/// key of the moment (X25519) goes into it, so that what was recorded stays unreadable for who learns the secret later.
/// There are no certificates, no tickets, no early data and no older version: what is not this is refused. Never waits.
/// One thread at a time uses it.
///
/// An end that leaves sends no goodbye by TLS: what goes through says itself how long it is.
class TlsSession {
 public:
  enum class State : std::uint8_t { shaking, ready, failed };

  /// AES-GCM may encrypt 2^34.5 blocks of 16 bytes by one key (RFC 8446, 5.5); this is 2^32 of them.
  static constexpr std::uint64_t default_bytes_per_key = std::uint64_t{1} << 36U;

  /// Does not own the socket, and says nothing before shake_hands(). Throws: Error if libssl cannot do it here.
  TlsSession(int fd, TlsRole role, const Digest& key, std::uint64_t bytes_per_key);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  /// Goes on with the handshake as far as it gets at once. Nothing is sent or received before it is ready.
  State shake_hands() noexcept;
  /// What to wait for before the next shake_hands(), as poll() has it.
  [[nodiscard]] short events() const noexcept;

  /// As ::send() and ::recv() that do not wait: -1 and errno if nothing goes. Who was told so by send() offers the same
  /// bytes again, and may offer more. EBADMSG: what has come was not made by the other end; see trouble().
  [[nodiscard]] ssize_t send(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] ssize_t receive(std::span<std::byte> bytes) noexcept;
  /// Is something here that was read from the socket, so that poll() does not show it? Not once receive() has returned
  /// that nothing is there.
  [[nodiscard]] bool has_received() const noexcept;

  /// Has the other end gone, without a word of why?
  [[nodiscard]] bool has_ended() const noexcept;
  /// Why it has failed.
  [[nodiscard]] std::string_view trouble() const noexcept { return trouble_; }

 private:
  template <auto free>
  struct Free {
    template <class T>
    void operator()(T* object) const noexcept {
      free(object);
    }
  };
  using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
  using Method = std::unique_ptr<BIO_METHOD, Free<BIO_meth_free>>;
  using Session = std::unique_ptr<SSL_SESSION, Free<SSL_SESSION_free>>;

  static constexpr std::string_view identity = "railyard";

  static void check(bool went_well);

  static SSL_CTX* shared_context();
  static Context make_context();

  // What goes through the socket goes without SIGPIPE.
  static const BIO_METHOD* shared_method();
  static Method make_method();
  static int create(BIO* bio);
  static long control(BIO* bio, int command, long /*number*/, void* /*pointer*/);
  static int write(BIO* bio, const char* bytes, int size);
  static int read(BIO* bio, char* bytes, int size);
  [[nodiscard]] int moved(BIO* bio, ssize_t count, int direction) noexcept;

  // Returns nullptr if libssl has no memory for it.
  [[nodiscard]] Session key_as_session(SSL* ssl) const noexcept;
  static int offer_key(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** name, std::size_t* name_size,
                       SSL_SESSION** offered);
  static int find_key(SSL* ssl, const unsigned char* name, std::size_t name_size, SSL_SESSION** found);

  // ended: what it comes to where the other end has ended it, as errno has it; 0 to return 0.
  template <class Move>
  [[nodiscard]] ssize_t transfer(bool is_empty, int ended, const Move& move) noexcept {
    if (is_empty) return 0;
    int error = state_ == State::failed ? EBADMSG : EAGAIN;
    if (state_ == State::ready) {
      const std::lock_guard inside{*door_};
      ERR_clear_error();
      std::size_t count = 0;
      const int result = move(count);
      if (result == 1) return static_cast<ssize_t>(count);
      error = outcome(result);
      if (error == 0) error = ended;
      if (error == 0) return 0;
      if (error == EBADMSG) state_ = State::failed;
    }
    errno = error;
    return -1;
  }

  // Of a call that has returned something else than 1: what errno is to be, 0 where the other end has ended it.
  [[nodiscard]] int outcome(int result) noexcept;

  int fd_;
  std::mutex* door_;
  Digest key_;
  std::uint64_t bytes_per_key_;
  std::uint64_t sent_by_key_ = 0;
  State state_ = State::shaking;
  short events_ = POLLIN;
  bool wants_to_write_ = false;
  bool has_ended_ = false;
  int error_ = 0;  // of the socket, as errno has it
  std::string_view trouble_{};
  std::unique_ptr<SSL, Free<SSL_free>> ssl_;  // uses what stands above
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/socket.hpp
// Sockets of TCP that listen and connect, over IPv4 and IPv6, and what the other end's address reads like. Workers
// room.

#include <netinet/tcp.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns a connected or listening socket, and the TLS of what goes through it, if there is any. In the end it is shut
/// down before it is closed, so that the other end hears of it even if a forked process still holds it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(Descriptor descriptor) noexcept;
  Socket(Socket&&) noexcept = default;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  [[nodiscard]] int fd() const noexcept;
  [[nodiscard]] bool is_open() const noexcept;

  /// Send and take what goes at once, as ::send() and ::recv() do: -1 and errno if nothing does.
  [[nodiscard]] ssize_t send(std::span<const std::byte> bytes) const noexcept;
  [[nodiscard]] ssize_t receive(std::span<std::byte> bytes) const noexcept;

  /// From now on all goes by TLS. Nothing does before shake_hands() has returned that it is ready.
  void encrypt(TlsRole role, const Digest& key, std::uint64_t bytes_per_key = TlsSession::default_bytes_per_key);
  [[nodiscard]] bool is_encrypted() const noexcept { return tls_ != nullptr; }
  [[nodiscard]] TlsSession::State shake_hands() const noexcept;
  /// What to wait for before the next shake_hands(), as poll() has it.
  [[nodiscard]] short shaking_events() const noexcept;
  /// Why the handshake has failed.
  [[nodiscard]] std::string shaking_trouble() const;
  /// Has the other end gone, without a word of why?
  [[nodiscard]] bool has_ended() const noexcept;
  /// Is there something to receive that poll() does not show?
  [[nodiscard]] bool has_received() const noexcept;
  /// Explains what send() or receive() has left in errno.
  [[nodiscard]] std::string explain(int error) const;

  void close() noexcept;
  /// In a process that has just been forked: lets go of it; the other process's connection stays.
  void forget_in_child() noexcept;

 private:
  Descriptor descriptor_{};
  std::unique_ptr<TlsSession> tls_;
};

/// Is the address of one end, as sockets have it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  [[nodiscard]] sockaddr* get() noexcept;
  [[nodiscard]] const sockaddr* get() const noexcept;

  /// Whom the socket is connected to; family AF_UNSPEC if to nobody any more.
  [[nodiscard]] static SocketAddress of_peer(int fd) noexcept;
  [[nodiscard]] static SocketAddress of_self(int fd) noexcept;

  /// Numeric: "10.0.0.7", "fe80::1%eth0". Empty for what is no address of the internet.
  [[nodiscard]] std::string host() const;
  [[nodiscard]] int port() const noexcept;
  /// Host and port, as address_text() has them.
  [[nodiscard]] std::string text() const;
  friend bool operator==(const SocketAddress& one, const SocketAddress& other) noexcept {
    return one.size == other.size && std::memcmp(&one.storage, &other.storage, one.size) == 0;
  }

 private:
  [[nodiscard]] bool is_internet() const noexcept;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/secure_connection.hpp
// A connection of two processes that have proven to each other that they know the run's secret. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Bounds what a connection takes, and says how it goes.
struct ConnectionLimits {
  std::size_t max_frame_bytes = std::size_t{1} << 30U;
  std::chrono::milliseconds lost_after{15'000};  ///< how long the other host may leave what it got unacknowledged
  bool has_tls = false;                          ///< all that is said of the run goes by TLS
};

/// Sends and receives frames. One thread at a time may use it. Every frame carries a code of 16 bytes that covers its
/// content and its number; what is sent can not be altered on its way, and be read only where there is no TLS. What
/// goes wrong with the connection is a ConnectionError that names the peer; after that it is of no use any more.
class SecureConnection {
 public:
  /// Takes over a socket whose two ends have proven themselves. peer: what errors call the other end.
  SecureConnection(Socket socket, SessionKeys keys, std::string peer, const ConnectionLimits& limits);

  /// Connects to a listener; tries again until somebody listens there. Cost: two round trips after TCP's own; none with
  /// a ticket: then the first frame to come is the listener's answer, a welcome or a refusal. TLS costs one more.
  /// Throws: ConnectionError, whose cause is `refused` if the listener knows this process but does not want it;
  /// ConfigError if it never will, as it is set.
  [[nodiscard]] static SecureConnection connect(const std::string& host, int port, const Hmac& secret,
                                                const Hello& hello, const Deadline& deadline,
                                                const ConnectionLimits& limits = {},
                                                const std::optional<Ticket>& ticket = std::nullopt);

  /// Shows what has come, but for what has_received() tells of.
  [[nodiscard]] int fd() const noexcept;
  /// Is there something to receive that poll() does not show? Not once try_receive() has returned nothing.
  [[nodiscard]] bool has_received() const noexcept;
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  /// What the listener has given to this process, for further connections; only where connect() has waited for it.
  [[nodiscard]] const std::optional<Ticket>& ticket() const noexcept { return ticket_; }

  /// Queues a message, whose payload is the pieces one after the other, without waiting; flush() sends it.
  void post(std::uint8_t type, std::initializer_list<ConstBytes> pieces);
  [[nodiscard]] std::size_t unsent_bytes() const noexcept;

  /// Sends what the network takes at once. Returns true if nothing is left.
  bool flush();

  /// Waits until the network has taken all that is queued. Throws: as flush(), and if that does not happen in time.
  void flush(const Deadline& deadline);

  /// Sends a message, and waits until the network has taken it.
  void send(std::uint8_t type, std::initializer_list<ConstBytes> pieces, const Deadline& deadline);

  /// Returns a message if one is complete, without waiting.
  [[nodiscard]] std::optional<Frame> try_receive();

  /// Waits for a message, and sends meanwhile what is queued. Returns nothing at the deadline.
  [[nodiscard]] std::optional<Frame> receive(const Deadline& deadline);

  /// Ends it: the other end sees that it was closed, after all that was sent.
  void close() noexcept;
  /// In a process that has just been forked: lets go of it; the other process's connection stays.
  void forget_in_child() noexcept;

 private:
  friend class Connector;

  [[nodiscard]] std::optional<Frame> take(std::size_t num_bytes);

  [[noreturn]] void throw_lost(std::string_view doing, int error) const;

  Socket socket_;
  FrameWriter writer_;
  FrameReader reader_;
  std::string peer_;
  std::chrono::milliseconds lost_after_;
  std::optional<Ticket> ticket_;
};

/// Is the connecting side of a handshake: tries until it has gone through all of it, or was turned away.
class Connector {
 public:
  Connector(std::string host, int port, const Hmac& secret, const Hello& hello, const Deadline& deadline,
            const ConnectionLimits& limits, const std::optional<Ticket>& ticket);

  [[nodiscard]] SecureConnection connect();

 private:
  // Many processes that have failed at once must not all come back at once.
  static void wait_at_random(std::chrono::nanoseconds pause);

  [[nodiscard]] std::string peer() const;

  // Goes as far as the hello. Until then the server does not know whether this one is honest: if it hangs up, it had no
  // room.
  [[nodiscard]] bool open(Socket& socket);

  [[nodiscard]] bool exchange_openings(const Socket& socket);

  [[nodiscard]] SecureConnection introduce(Socket socket);

  // The answer's code proves that the listener knows the secret.
  [[nodiscard]] Frame receive_answer(SecureConnection& connection) const;

  [[noreturn]] void throw_unproven(std::string_view cause) const;

  [[nodiscard]] SecureConnection send_hello(Socket socket) const;

  [[nodiscard]] bool begin_tls(Socket& socket) const;

  // These return false if the other end has hung up, or at the deadline.
  [[nodiscard]] bool send_all(const Socket& socket, ConstBytes bytes) const;
  [[nodiscard]] bool receive_all(const Socket& socket, std::span<std::byte> bytes) const;
  [[nodiscard]] bool may_try_again(const Socket& socket, short events) const;

  std::string host_;
  int port_;
  const Hmac& secret_;
  std::vector<std::byte> hello_;
  const Deadline& deadline_;
  ConnectionLimits limits_;
  std::optional<Ticket> ticket_;
  Opening client_{};
  Opening server_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/agent.hpp
// What a process does that follows: makes and ends workers as the leader orders, and passes on what becomes of them.
// Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Follows one leader. Used by one thread.
class Agent {
 public:
  /// leader must outlive it. silence_limit: after which a leader that takes nothing counts as lost. end_patience: how
  /// long the end waits for a request that is being answered, which is left behind then: storage may hold it up for
  /// ever.
  Agent(SecureConnection& leader, const WorkerBody& body, std::chrono::nanoseconds silence_limit,
        RequestHandler on_request = {}, std::chrono::nanoseconds end_patience = std::chrono::seconds{5});
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  /// The leader counts as lost as well where it says nothing at all for so long.
  void expect_word_within(std::chrono::nanoseconds time);

  /// What the leader has last asked to remember; empty if it has not.
  [[nodiscard]] const std::string& noted() const noexcept { return noted_; }
  /// Which processes make the workers of the last start, as in a StartOrder; empty before the first one.
  [[nodiscard]] const std::string& parts() const noexcept { return parts_; }
  /// The most steps that any worker of this process has ended in the last start.
  [[nodiscard]] std::uint64_t num_steps() const;

  /// Carries out orders until the leader tells a text, and returns that. No worker is left then.
  /// Throws: ConnectionError if the leader is lost; ConfigError or Error if it does not let the run begin, as it throws
  /// itself. The workers have been killed.
  [[nodiscard]] std::string run();

 private:
  using Clock = Deadline::Clock;
  static constexpr std::chrono::milliseconds page_interval{200};
  static constexpr std::size_t max_unsent_bytes = std::size_t{64} << 20U;

  void say(News news, std::initializer_list<ConstBytes> pieces = {});

  // Waits for events, an order, or the time for the next pages; passes on what events there are.
  void pass_on_events();

  void show_pages();
  void show_pages_now();

  void tell_progress();

  // A process that is stopped still takes, for a while, what its kernel has room for: signs of life are more than that.
  void check_that_leader_lives();

  void carry_out(const Frame& frame, std::optional<std::string>& told);

  void command(Order order, const Frame& frame);

  [[noreturn]] static void be_refused(WireReader reader);

  void start(const StartOrder& order);

  void tell_stacks(std::int64_t at_most_ns);

  void fetch(const FetchOrder& order);

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin, std::size_t size_bytes);

  void tell_what_is_kept(std::span<const std::byte> payload);
  // Why the next workers will not have the memory of those before; empty if they will.
  [[nodiscard]] std::string lack_of_memory() const;

  // On a thread of its own: this one goes on to be heard of.
  void begin_request(std::span<const std::byte> payload);

  void give_answer();
  void refuse_request(std::uint64_t number, const std::exception& error);

  // Nobody waits for its answer.
  void end_request(std::chrono::nanoseconds patience = std::chrono::nanoseconds{0}) noexcept;

  // The workers first: nothing that the request does keeps them.
  void end() noexcept;

  SecureConnection* leader_;
  const WorkerBody* body_;
  std::chrono::nanoseconds silence_limit_;
  RequestHandler on_request_;
  std::chrono::nanoseconds end_patience_;
  std::unique_ptr<ProcessGroup> local_;
  int num_workers_ = 0;
  int first_rank_ = 0;    // of theirs, among all
  int most_workers_ = 0;  // that the group can make
  int num_alive_ = 0;
  Clock::time_point next_pages_ = Clock::now();
  Clock::time_point listened_at_ = Clock::now();
  Deadline first_word_ = Deadline::never();      // until then it is waited for
  std::optional<Clock::time_point> heard_at_;  // once the leader has said anything: it gives signs of life then
  std::string noted_;
  std::string parts_;
  std::unique_ptr<AgentRequest> request_;  // until its answer is given
  std::uint64_t num_told_reads_ = 0;         // of its handler
  bool is_memory_read_ = false;              // the group's, by a request that was left behind
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/event.hpp
// A descriptor by which one thread wakes another that waits for descriptors. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Can be read from since it was rung, until it is cleared.
class Event {
 public:
  Event();

  [[nodiscard]] int fd() const noexcept;
  void ring() const noexcept;
  void clear() const noexcept;

 private:
  Descriptor descriptor_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/agent_lines.hpp
// The leader's ends of the connections to all processes that follow. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Moves what goes both ways between the leader and the others, on a thread of its own: nobody else touches the
/// connections, so that no order waits for a network and none is lost in between. All members may be called from any
/// thread. Processes are counted as the launcher does; the leader is number 0 and has no line.
class AgentLines {
 public:
  static constexpr std::size_t usual_chunk_bytes = std::size_t{1} << 20U;

  /// Is something that a process has said, or nothing but that it is lost.
  struct Item {
    int process = 0;
    Frame frame{};
    std::string loss{};  ///< why it is lost; empty if it is not
  };

  /// connections: of the processes 1, 2, ...; nothing for one that has not come, which is lost then, as `absence` says.
  /// silence_limit: after which one that says nothing is lost. chunk_bytes: how
  /// much of a snapshot comes in one message, between which others have their turn. answer_limit: how long an answer is
  /// waited for while nothing of it comes and its process tells of no progress; 0: four times the limit of silence, for
  /// storage that is started anew is away for longer than a process may be.
  AgentLines(std::vector<std::optional<SecureConnection>> connections, std::chrono::nanoseconds silence_limit,
             const std::function<std::string(int process)>& absence, std::size_t chunk_bytes = usual_chunk_bytes,
             std::chrono::nanoseconds answer_limit = {});
  /// All have come.
  AgentLines(std::vector<SecureConnection> connections, std::chrono::nanoseconds silence_limit,
             std::size_t chunk_bytes = usual_chunk_bytes, std::chrono::nanoseconds answer_limit = {});
  AgentLines(const AgentLines&) = delete;
  AgentLines& operator=(const AgentLines&) = delete;
  /// Sends what is queued, for some seconds at most, and hangs up.
  ~AgentLines();

  /// Can be read from while take() has something to return.
  [[nodiscard]] int event_fd() const noexcept;
  [[nodiscard]] std::string peer(int process) const;

  /// A process that is lost has come back, by this connection.
  void replace(int process, SecureConnection connection);

  /// Queues a message; for a process that is lost, does nothing.
  void post(int process, Order order, std::span<const std::byte> payload = {});
  void post_to_all(Order order, std::span<const std::byte> payload = {});

  /// Returns what has been said first of all that has not been taken, or nothing.
  [[nodiscard]] std::optional<Item> take();
  /// Waits for it.
  [[nodiscard]] std::optional<Item> take(const Deadline& deadline);

  /// Copies what the process has last shown of a worker's page; pages begin anew with a start of workers.
  void show_page(int process, int rank, WorkerPage& page) const;
  void forget_pages();

  /// Returns so many bytes, from `begin` on, of a snapshot that is another process's. All of them are under way at
  /// once: who asks for little at a time needs little memory here and there. Throws: Error if the process is lost, or
  /// cannot give them.
  [[nodiscard]] std::vector<std::byte> fetch(int process, SlotOrder of, std::uint64_t begin, std::uint64_t size_bytes);

  /// Sends a request, or another order that is answered likewise, and returns its number. The answer has to be awaited.
  [[nodiscard]] std::uint64_t send_request(int process, std::span<const std::byte> request,
                                           Order order = Order::request);
  /// Throws: Error if the process is lost, or does not answer as it was asked to; it begins with `what`, then.
  /// LateAnswerError if it is heard of, but makes no progress; it is told that nobody waits any longer.
  [[nodiscard]] std::vector<std::byte> await_answer(std::uint64_t number, std::string_view what);

  /// Why the process is lost; empty if it is not.
  [[nodiscard]] std::string loss(int process) const;
  /// How often it has been lost.
  [[nodiscard]] int num_losses(int process) const;
  [[nodiscard]] int num_processes() const noexcept;

 private:
  using Clock = Deadline::Clock;
  static constexpr std::chrono::hours longest_silence{24};  // so that four times as much is a time

  struct Line {
    explicit Line(SecureConnection one);
    explicit Line(std::string why);
    std::optional<SecureConnection> connection{};  // of the thread alone; nothing before the process has come
    std::optional<SecureConnection> next{};        // that takes its place
    std::string peer;
    Clock::time_point last_heard = Clock::now();
    Clock::time_point next_sign = Clock::now();  // of this process's life
    std::vector<Frame> outgoing{};
    std::vector<PageValues> pages{};
    std::string loss{};
    int num_losses = 0;
  };
  struct Answer {
    int process = 0;
    Clock::time_point progressed_at = Clock::now();
    int num_losses = 0;              // of the process, so far: it may come back before its loss is seen here
    std::uint64_t num_pieces = 0;    // that have not come
    std::vector<std::byte> bytes{};  // of those that have: they come in the order in which they were asked for
    std::optional<std::string> complaint{};

    [[nodiscard]] bool is_over() const noexcept;
  };

  [[nodiscard]] Line& line(int process);
  [[nodiscard]] const Line& line(int process) const;

  // Returns the number by which the answer will be known.
  [[nodiscard]] std::uint64_t expect(int process, std::uint64_t num_pieces);

  void run();

  // With the lock, as what follows.
  static void take_next(Line& one);

  void move_outgoing(Line& one) const;

  void attend(std::size_t at, const pollfd& watched);

  void sort(int process, Frame frame);

  void take_answer(bool is_there, std::span<const std::byte> payload);

  void lose(std::size_t at, std::string why);

  std::chrono::nanoseconds silence_limit_;
  std::size_t chunk_bytes_;
  std::chrono::nanoseconds answer_limit_;
  Event wake_{};  // for the thread: something is to be sent
  Event news_{};
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<Line> lines_;
  std::deque<Item> items_;
  std::map<std::uint64_t, Answer> answers_;  // that are expected, by number
  std::uint64_t num_questions_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/node_list.hpp
// What Slurm writes short: the names of nodes, and how many tasks each of them has. Workers room.

// ---- railyard/workers/detail/posting.hpp
// What the leader of a job lets the other processes know before they are connected. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says where the leader listens.
struct Posting {
  std::string host{};
  int port = 0;
  std::uint32_t generation = 0;
  std::string secret{};  ///< empty where the bulletin carries none
  friend bool operator==(const Posting&, const Posting&) = default;
};

/// Returns the value of a name in such lines; empty if there is none.
[[nodiscard]] std::string_view line_of(std::string_view text, std::string_view name);

/// Tells people what a process waits for, not more often than they want to read it.
class WaitTeller {
 public:
  using Say = std::function<void(const std::string&)>;
  static constexpr std::chrono::seconds usual_interval{5};

  /// subject: "process 2 of 4 (node2)", the beginning of each line.
  WaitTeller(std::string subject, Say say, std::chrono::nanoseconds interval = usual_interval);

  [[nodiscard]] const std::string& subject() const noexcept { return subject_; }

  /// Says something at once.
  void say(std::string_view what) const;

  /// Starts to count. Nothing is said before the first interval has passed.
  void start();
  /// Says it if the time has come. what: "process 0 to leave its address in /shared/run".
  void look(std::string_view what, const Deadline& deadline);

 private:
  std::string subject_;
  Say say_;
  std::chrono::nanoseconds interval_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  Deadline next_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/file_bulletin.hpp
// A bulletin that is a file in a folder which all processes of a job see, on one host or on many. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is a place where the leader of a job posts its address, and where the other processes read it.
class Bulletin {
 public:
  Bulletin() = default;
  Bulletin(const Bulletin&) = delete;
  Bulletin& operator=(const Bulletin&) = delete;
  virtual ~Bulletin() = default;

  /// Called by the leader, when it listens; again whenever something has changed. Throws: Error.
  virtual void post(const Posting& posting) = 0;
  /// Waits for a posting. refused: one at which nobody was found; it is given again only after patience, as another may
  /// replace it. Throws: Error at the deadline, and where the place cannot be trusted.
  static constexpr std::chrono::seconds patience{1};
  [[nodiscard]] virtual Posting read(const Deadline& deadline, const Posting* refused = nullptr) = 0;
  /// Makes read() return an empty posting as soon as is_over() says so, where it is one that looks again and again.
  void end_read_when(std::function<bool()> is_over);
  /// May the secret of the run go this way?
  [[nodiscard]] virtual bool carries_secret() const = 0;
  /// Makes the secret that goes this way.
  [[nodiscard]] virtual std::string make_secret() const;
  /// The name or address at which the others look for the leader, if they know it beforehand; else empty.
  [[nodiscard]] virtual std::string host_to_listen_on() const;
  /// The port on which the leader has to listen; 0 leaves it to the kernel.
  [[nodiscard]] virtual int port_to_listen_on() const { return 0; }
  /// How messages call it.
  [[nodiscard]] virtual std::string where() const = 0;

 protected:
  [[nodiscard]] bool is_read_over() const;

 private:
  std::function<bool()> is_over_;
};

[[noreturn]] void fail_to_read(std::string_view subject, std::string_view where, const Deadline& deadline);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/launch_variables.hpp
// Variables that a launcher has set: reads them, checks them, and remembers what was read, to tell people. Workers
// room.

namespace railyard::inline v0_1 {
namespace detail {

/// Looks up a variable; nothing if it is not set, or empty. Tests give a table instead of the process's environment.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/launch_environment.hpp
// Who has started this process, and which of how many it is: from options, else from what the launchers of jobs put
// into the environment. Workers room.

#include <tuple>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which of the launched processes this is, and what is known of the first of them, which leads.
struct Launch {
  std::string launcher{};         ///< "torchrun", "Slurm", ...
  std::string why{};              ///< what that was concluded from, for people
  bool is_in_job = true;          ///< somebody has started it, or a job that it is no part of
  int process = 0;                ///< from 0
  int num_processes = 1;          ///< on all hosts
  int local_process = 0;          ///< which of the processes of this host
  int num_local_processes = 1;    ///< 0 if unknown
  int workers_per_process = 0;    ///< how many workers the launcher asks each process to start; 0 if it does not say
  std::string leader_host{};      ///< where process 0 is; empty if unknown
  int leader_port = 0;            ///< on which it listens; 0 if unknown
  bool guesses_leader = false;    ///< nobody has named that port: it is Railyard's own choice
  int pmi_fd = -1;                ///< by which the launcher offers its key-value space (PMI); -1 if it does not
  bool has_pmix = false;          ///< the launcher offers one by PMIx
  std::string job{};              ///< the same in all processes, another in every other job; empty if unknown
  int restart = 0;                ///< how often the launcher has started this job again
  bool uses_torch_store = false;  ///< torchrun's agent serves its store at leader_host:leader_port
  std::string torch_store_prefix{};
};

/// Does the launcher speak PMIx, and mean this process?
[[nodiscard]] bool has_pmix(const Environment& environment, const Launch& launch);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/launch_secret.hpp
// The secret that the processes of a run know each other by, and whether they encrypt. Workers room.

// ---- railyard/workers/detail/key_agreement.hpp
// How two processes come to a key of their own where others can read, but not alter, what they send to each other.
// Workers room.

#include <openssl/evp.h>

// ---- railyard/workers/detail/key_value_space.hpp
// The texts that a launcher passes between the processes it has started. Workers room.

// ---- railyard/workers/detail/launcher_bulletin.hpp
// A bulletin in the key-value space of the launcher that has started the processes. Workers room.

// ---- railyard/workers/detail/mpi_library.hpp
// Whether an MPI library is in this process. Workers room.

// ---- railyard/workers/detail/pmi_lines.hpp
// What a process manager says by PMI, version 1: lines of fields. Workers room.

// ---- railyard/workers/detail/pmi_space.hpp
// The key-value space of a launcher that speaks PMI: mpiexec of MPICH (Hydra), and srun --mpi=pmi2. Workers room.

// ---- railyard/workers/detail/pmix_space.hpp
// The key-value space of a launcher that speaks PMIx: mpirun of Open MPI, and srun --mpi=pmix. Workers room.

// ---- railyard/workers/detail/torch_store.hpp
// A client of the store that torchrun's agents serve, as far as a rendezvous needs it: set and get. Workers room.

// ---- railyard/workers/detail/bulletin.hpp
// Where the leader of a job posts its address, and where the other processes read it. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Are all processes of the job on this host?
[[nodiscard]] bool is_one_host(const Launch& launch) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/host_identity.hpp
// What tells hosts apart: processes of one host see each other, and share its memory. Workers room.

// ---- railyard/workers/detail/launched_members.hpp
// Which processes make the workers of a run, how many each, and where each worker stands. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a process tells the leader of itself when it comes.
struct Newcomer {
  std::int32_t num_workers = 1;
  std::string host{};  ///< a HostIdentity, and how people call it
  std::string host_name{};
  std::string settings{};
  JoinDevices devices{};

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Newcomer decode(std::string_view text);
};

/// Are the processes of a run, as the launcher counts them, also those that are lost.
struct LaunchedMembers {
  std::vector<int> workers{};          ///< how many each makes where it can
  std::vector<std::string> hosts{};    ///< what names the host of each
  std::vector<bool> has_part{};        ///< whether it was to make any when workers were started last
  std::vector<JoinDevices> devices{};  ///< which GPUs each is shown

  void add(int num_workers, std::string host, JoinDevices shown);
  void set(std::size_t process, int num_workers, std::string host, JoinDevices shown);
};

/// Returns what one of several processes makes of so many workers together: the first ones make one more where they
/// cannot be divided.
[[nodiscard]] int share_of(int num_workers, int process, int num_processes) noexcept;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/launched_group.hpp
// The group of workers that several processes make together, as the one that leads sees it. Workers room.

// ---- railyard/workers/detail/store_server.hpp
// The group's store as its leader keeps it for processes of other hosts, without the connections. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// What clients and the server of a store say to each other.
enum class StoreFrame : std::uint8_t {
  set = 1,     ///< client: a number, the key, the rest is the value
  get = 2,     ///< client: the rest is the key
  answer = 3,  ///< to set: the number, a SetOutcome
  value = 4,   ///< to get, at once or when somebody sets it: the key, the rest is the value
  absent = 5,  ///< to get, at once: the key is not there yet; the rest is the key
  ended = 6,   ///< there is nothing more to come; the rest is a text that says why
};
enum class SetOutcome : std::uint8_t { done = 0, taken = 1, full = 2 };

/// Says what is sent to whom.
struct StoreReply {
  std::uint64_t session = 0;
  StoreFrame type = StoreFrame::answer;
  std::vector<std::byte> payload{};
};

/// Answers the requests of the store's clients: as many bytes as the shared table of one host holds, and no more.
class StoreServer {
 public:
  /// Room for 1,024 ranks, each of which leaves a dozen values whenever a group of all is made.
  static constexpr std::size_t max_keys = std::size_t{1} << 16U;
  static constexpr std::size_t max_bytes = StoreBlock::num_bytes;

  /// Throws: DataError if the frame is no request, or waits for more than a client may.
  [[nodiscard]] std::vector<StoreReply> handle(std::uint64_t session, const Frame& frame);

  /// A client has gone: nothing is sent to it any more.
  void forget(std::uint64_t session);

  /// Forgets all values and who waits for one.
  void clear() noexcept;

 private:
  static std::string_view text_of(ConstBytes bytes) noexcept;

  void set(std::uint64_t session, WireReader& reader, std::vector<StoreReply>& replies);

  [[nodiscard]] SetOutcome keep(const std::string& key, std::string_view value);

  void get(std::uint64_t session, std::string_view key, std::vector<StoreReply>& replies);

  static StoreReply value_reply(std::uint64_t session, std::string_view key, std::string_view value);

  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::set<std::uint64_t>, std::less<>> waiting_;
  std::size_t num_bytes_ = 0;
  std::size_t waiting_bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/network_store.hpp
// The group's store as a worker sees it that reaches its leader over the network. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says where the store of a group is.
struct NetworkStorePlace {
  std::string host{};  ///< of the leader's listener
  int port = 0;
  std::string job{};
  std::uint32_t generation = 0;
  int rank = 0;
  std::chrono::nanoseconds patience = std::chrono::seconds{30};  ///< for connecting, and for each answer
  ConnectionLimits limits{};
  std::optional<Ticket> ticket{};  ///< of the listener: saves two round trips
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/pair_handshake.hpp
// How two ranks prove to each other that they know the run's secret, before either believes a byte of the other's.
// Workers room.

// ---- railyard/workers/detail/refusal_log.hpp
// Tells of connections that were refused, a few lines a second however many there are. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Passes lines on to a function, and counts those for which there were too many.
class RefusalLog {
 public:
  using Clock = Deadline::Clock;
  static constexpr int lines_per_second = 5;

  explicit RefusalLog(std::function<void(const std::string&)> tell);

  void note(const std::string& line, Clock::time_point now);

  /// Tells how many lines were left out, once the second is over.
  void tell_rest(Clock::time_point now);
  /// When tell_rest() has something to tell; far in the future if it has not.
  [[nodiscard]] Clock::time_point due() const noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

 private:
  void begin_window(Clock::time_point now);

  std::function<void(const std::string&)> tell_;
  Clock::time_point window_end_{};
  int in_window_ = 0;
  std::uint64_t untold_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/rank_lines.hpp
// Connects the ranks of several hosts by lines whose ends have proven that they know the run's secret. Workers room.

#include <list>

// ---- railyard/workers/detail/launched_link.hpp
// A worker's end where several processes make the workers: its place among all, and the store of all. Workers room.

// ---- railyard/workers/detail/listener.hpp
// The leader's ear: takes connections of those who know the secret, serves the store, bears with everybody else.
// Workers room.

#include <sys/epoll.h>

namespace railyard::inline v0_1 {
namespace detail {

struct ListenerOptions {
  std::string host{};  ///< a name or address of this host; empty takes any
  int port = 0;        ///< 0 lets the kernel choose
  std::string job{};
  std::uint32_t generation = 0;     ///< of agents; that of the store's clients is set by reset_store()
  ConnectionLimits limits{};        ///< also says whether all clients are to use TLS
  std::size_t max_half_open = 256;  ///< connections that have not proven themselves yet
  std::chrono::milliseconds handshake_time{5000};
  /// Is told, in words, who was refused and why. Must neither throw nor call the listener.
  std::function<void(const std::string&)> on_refusal{};
};

/// Is the connection to one other launched process.
struct AgentConnection {
  Hello hello{};
  SecureConnection connection;
  std::string misfit{};  ///< why it can not be used, as the other process has been told as well; empty if it can
};

/// Listens on a thread of its own. Whoever connects proves that it knows the secret, within a bounded time and number
/// of bytes; those who do not are closed and told of. Connections for the store are served here, those of agents are
/// handed over. Where too many at once have not proven themselves, the oldest of them has to go, so that nobody is kept
/// out.
class Listener {
 public:
  /// Throws: ConfigError or Error if it cannot listen there.
  Listener(ListenerOptions options, Hmac secret);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  /// The address and port that it listens on, numeric.
  [[nodiscard]] std::string host() const;
  [[nodiscard]] int port() const;

  /// Can be read from while an agent waits to be taken.
  [[nodiscard]] int agents_fd() const noexcept;
  /// Returns the next agent that has connected, or nothing at the deadline.
  [[nodiscard]] std::optional<AgentConnection> take_agent(const Deadline& deadline);

  /// For processes on this host; others get it with their welcome.
  [[nodiscard]] const Ticket& ticket() const noexcept { return ticket_; }

  /// From now on an agent that comes is told that the run has begun without it.
  void expect_no_more_agents();

  /// Empties the store for another generation of workers. Those of the one before are told, and turned away from now
  /// on.
  void reset_store(std::uint32_t generation);

  /// How many connections were refused so far.
  [[nodiscard]] std::uint64_t num_refused() const;

 private:
  using Clock = Deadline::Clock;
  struct HalfOpen {
    Socket socket{};
    std::string address{};
    Clock::time_point since{};
    ServerHandshake handshake;
  };
  struct Session {
    SecureConnection connection;
    bool is_over = false;  // it has been told so, and is closed by the client: what it still sends would undo that
  };
  using HalfOpens = std::map<std::uint64_t, HalfOpen>;  // in the order of their coming

  static constexpr std::uint64_t listening = 0;
  static constexpr std::uint64_t waking = 1;
  static constexpr std::size_t max_unsent_bytes = 4 * StoreServer::max_bytes;
  // So long an honest client's handshake may take before it can be the one that has to go.
  static constexpr std::chrono::milliseconds safe_age{250};

  void watch(int fd, std::uint32_t events, std::uint64_t id, int operation = EPOLL_CTL_ADD);

  void run();

  [[nodiscard]] int wait_ms() const;

  void serve(std::uint64_t id);

  void expire(Clock::time_point now);

  // Until the time is over, or fewer than so many have not proven themselves.
  void pause_accepting(std::chrono::milliseconds time, std::size_t below);

  void accept_some();

  // Where all have only just come, the next one waits in the kernel's queue.
  [[nodiscard]] bool is_crowded();
  [[nodiscard]] Clock::duration oldest_age() const;

  void take_in(Socket socket);

  void refuse(HalfOpens::iterator at, std::string_view why);

  void shake_hands(HalfOpens::iterator at);

  void admit(std::uint64_t id, HalfOpen client);

  // Returns why a client that has proven itself is not wanted; empty if it is.
  [[nodiscard]] std::string complaint(const Hello& hello, const Opening& opening);

  static std::string outdated_text(std::uint32_t generation, std::uint32_t expected);

  void serve_session(std::uint64_t id, Session& session);

  // What is little is kept until all who have asked are heard: where many ranks meet, everybody gets many values at
  // once.
  void deliver(const std::vector<StoreReply>& replies);

  void send_all();

  void send_to(std::uint64_t id);

  void end_session(std::uint64_t id);

  const ListenerOptions options_;
  const Hmac secret_;
  const Ticket ticket_ = Ticket::make();
  RefusalLog log_;
  Socket socket_;
  Descriptor poller_;
  Event wake_{};
  Event agents_event_{};

  mutable std::mutex mutex_{};  // guards all below
  bool is_ending_ = false;
  std::uint64_t next_id_ = waking + 1;
  Clock::time_point accepts_again_ = Clock::time_point::max();  // the far future: it accepts now
  std::size_t accepts_again_below_ = 0;
  HalfOpens half_open_{};
  std::deque<AgentConnection> agents_;
  std::map<std::uint64_t, Session> sessions_;
  std::set<std::uint64_t> unsent_;  // the sessions for which something was queued
  StoreServer store_{};
  std::uint32_t store_generation_ = 0;
  std::set<std::array<std::byte, 32>> tickets_used_;  // the nonces of hellos by ticket, so that none comes twice
  bool expects_agents_ = true;

  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/own_address.hpp
// By which of its addresses other hosts reach this one. Workers room.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the address from which packets to a host would be sent, without sending any; nothing if there is no way
/// there.
[[nodiscard]] std::optional<SocketAddress> address_towards(const std::string& host);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/launched.hpp
// Workers of processes that an engine has started - Slurm, MPI, torchrun, Kubernetes - on one host or many. Workers
// room.

namespace railyard::inline v0_1 {

/// Joins the processes that an engine has started, each of which calls fit(), to one run. Each makes
/// ScalingConfig::num_workers workers, as Processes does: one where the engine starts a process for every rank, as many
/// as there are cores where it starts one for every host. Process 0 leads: what a run writes and says comes from there.
/// Where nothing has started the process, it is alone, and all is as with Processes.
///
/// Who has started it is found out from LaunchConfig, else from the environment. Processes of several hosts need
/// something to know each other by: a secret in RAILYARD_SECRET_FILE or RAILYARD_SECRET, or a folder that all of them
/// see (LaunchConfig::rendezvous), or a launcher that passes values between them (PMI). With LaunchConfig::tls all that
/// they send to each other goes by TLS 1.3.
class Launched {
 public:
  static constexpr std::string_view name = "Launched";
  static constexpr Reach reach = Reach::network;
  static constexpr bool copies_function = false;

  /// Throws: ConfigError if what this process was told makes no sense; Error that names who did not come. Where process
  /// 0 finds that the processes do not make a run, those that have come throw what it throws, here or in hear().
  /// Costs: some milliseconds once all have come.
  void join(const JoinPlan& plan);

  [[nodiscard]] bool leads() const noexcept { return launch_.process == leading_; }
  [[nodiscard]] int num_processes() const noexcept { return launch_.num_processes; }
  /// Of all processes together; known to the leader.
  [[nodiscard]] int num_workers() const noexcept;

  /// Of those processes that are there, also those that have come back just now. The leader goes on with no fewer than
  /// half of the processes that had a part before: the others may have lost it, and go on themselves.
  /// Throws: HostLostError if there are fewer.
  [[nodiscard]] int room();

  /// Starts the workers of all processes; without a join(), of this one.
  /// Throws: ConfigError if the plan or the limits of a process do not allow it, Error if the system cannot do it.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body);

  void tell(std::string_view text);
  /// For whoever leads when this process is lost.
  void note(std::string_view text);
  [[nodiscard]] std::string hear();
  [[nodiscard]] std::string follow(const WorkerBody& body);

  /// What is known of the leader that is lost. torchrun starts all processes again then.
  [[nodiscard]] LostLead lost_lead() const;

  /// Listens for the other processes that have lost their leader, in order to lead them. generation: above those of all
  /// leaders before. Throws: Error if it cannot listen.
  [[nodiscard]] LeaderPlace offer(std::uint64_t generation);

  /// Waits for those who have had a part under the leader that is lost. Returns whether they have come, or is_last says
  /// that they are waited for no more: then this process leads.
  [[nodiscard]] bool take_place(const Deadline& deadline, bool is_last);

  /// Follows the process that has offered to lead there. Returns false if nobody answers, or wants this process.
  [[nodiscard]] bool try_to_follow(const LeaderPlace& place, const Deadline& deadline);

 private:
  using Agents = std::vector<std::optional<detail::AgentConnection>>;  // by process

  static constexpr int generation_bits = 12;  // so many restarts under one leader have generations of their own

  // Whether the run goes on under one that was chosen, which has let this process in.
  [[nodiscard]] bool finds_chosen();
  // Asks that, but not all the time: whoever leads next may not have been chosen at first.
  [[nodiscard]] bool comes_back();

  // What a process counts as under who leads now: the leader is the first, and process 0 stands in its place.
  [[nodiscard]] int slot_of(int process) const noexcept;
  // Of one that says it is that process: 0 if there is none by that number but this one, which leads.
  [[nodiscard]] int slot_of_other(int process) const noexcept;

  static std::size_t index(int process) noexcept;

  [[nodiscard]] int own_workers() const;

  [[nodiscard]] bool is_one_host() const;
  [[nodiscard]] std::string address_towards(const std::string& leader_host) const;
  [[nodiscard]] detail::ConnectionLimits limits() const;

  [[nodiscard]] WorkerBody body_of(const WorkerBody& body) const;

  void listen(int port, std::uint32_t generation);

  void set_place(const std::string& host, int port, const std::optional<detail::Ticket>& ticket);

  // Of the leader: listens, leaves its address, and waits for all others; or finds that the run goes on under another.
  void gather(detail::Bulletin& bulletin, const detail::WaitTeller& teller, const Deadline& deadline);

  // Returns false if the run goes on under another.
  [[nodiscard]] bool await_all(Agents& agents, const detail::Bulletin& bulletin, detail::WaitTeller teller,
                               const Deadline& deadline);

  // Those that have come are not to take the end of this process for its loss, after which a run may begin again.
  void refuse(Agents& agents, const std::exception& error) const;

  static std::string missing_text(const Agents& agents);

  static void check_fit(const Agents& agents);
  void check_newcomers(const Agents& agents) const;

  void take_in(Agents& agents);

  void check_newcomer(const detail::Newcomer& newcomer, int process) const;

  // Of the leader, while a run goes on: takes those in who take the place of one that is lost.
  void let_in();

  // Of one that has lost its leader.
  void remember(const detail::Agent& agent);

  // Of one that is about to lead.
  [[nodiscard]] bool misses_anybody() const;

  // Those that have come are not to wait for ever where this process is stopped before it leads them.
  void give_sign_of_life();

  void follow_up(int process);

  void lead_those_there();

  void say(const std::string& line) const;

  // Of the others.
  void find_leader(detail::Bulletin& bulletin, detail::WaitTeller teller, const Deadline& deadline);

  // Returns false if nobody is there any more, so that another address is worth a look.
  [[nodiscard]] bool try_leader(const detail::Posting& posting, const std::string& secret, detail::WaitTeller& teller,
                                const Deadline& deadline);

  void connect_to(const std::string& host, int port, std::uint32_t generation, const Deadline& deadline);

  JoinPlan plan_{};
  detail::Launch launch_{};
  bool has_tls_ = false;
  std::optional<detail::Hmac> secret_;
  std::string address_;  // by which the others reach this host
  detail::NetworkStorePlace place_{};
  std::unique_ptr<detail::Listener> listener_;      // of the leader
  std::unique_ptr<detail::AgentLines> lines_;       // of the leader
  std::unique_ptr<detail::Bulletin> bulletin_;      // of the leader, where processes may come back
  detail::Newcomer own_{};                            // what this process is
  detail::LaunchedMembers members_{};                 // of the leader
  std::string told_;                                // what all have been told last
  std::string noted_;                               // and asked to remember
  int leading_ = 0;                                   // the process that leads
  int former_ = 0;                                    // the one that led before it
  Deadline::Clock::time_point next_return_{};         // when to ask again whether another was chosen
  std::uint32_t first_generation_ = 0;                // of workers, under this leader
  Agents agents_{};                                   // of one that is about to lead: who has come
  Deadline::Clock::time_point next_sign_{};           // of its life that it gives these
  std::vector<bool> has_part_;                      // in the last start under a leader that is lost, by process
  std::vector<bool> is_gone_;                       // those that have led and are lost since then, by process
  std::uint64_t num_steps_ = 0;                       // of this process's workers then
  std::optional<detail::SecureConnection> leader_;  // of the others
  bool was_elected_ = false;                          // the leader, by this process among others
};

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO

// ---- railyard/collectives/detail/gloo_transport.hpp
// What Gloo needs of us and what we need of its transport: stores, wake-ups, whose copy it is. Collectives room.

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <sys/epoll.h>
#include <sys/timerfd.h>

// ---- railyard/collectives/detail/host_address.hpp
// From a host's name to an address that this host can listen on. Collectives room.

// ---- railyard/collectives/detail/mesh_lines.hpp
// What messages between any two ranks of a group go through. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Connects a rank with all others. A message goes from memory to memory under a slot, which both ends name with the
/// same size. One thread at a time uses it, but for close().
class MeshLines {
 public:
  using Time = Deadline::Clock::time_point;

  /// Is messages that are under way together, out of one piece of memory and into one.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    virtual ~Transfer() = default;

    /// Post a message, and do not wait for it. Throw: std::exception if the line is lost.
    virtual void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) = 0;
    virtual void receive(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) = 0;

    /// Waits until all that was posted is done: what was to be received has come, and for what was to be sent the other
    /// end has posted its receive. Returns false at `wake`. Throws: std::exception if a line is lost.
    [[nodiscard]] virtual bool wait(Time wake, const Deadline& deadline) = 0;
  };

  MeshLines() = default;
  MeshLines(const MeshLines&) = delete;
  MeshLines& operator=(const MeshLines&) = delete;
  virtual ~MeshLines() = default;

  [[nodiscard]] virtual std::unique_ptr<Transfer> start(const void* from, std::size_t from_bytes, void* to,
                                                        std::size_t to_bytes) = 0;
  /// Has the line to a rank ended?
  [[nodiscard]] virtual bool is_closed(int rank) = 0;
  /// Ends all lines, and wakes whoever waits. May be called from any thread.
  virtual void close() noexcept = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/gloo_lines.hpp
// Lines between ranks on the transport of libgloo, which proves nothing to anybody. Collectives room.

// ---- railyard/collectives/detail/proven_lines.hpp
// Messages on lines whose ends have proven themselves. Collectives room.

// ---- railyard/collectives/detail/scratch.hpp
// Memory that operations need for a while, kept for the next one. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Grows to the largest that was asked for.
class Scratch {
 public:
  /// Returns that many bytes at least; what was there before may be gone.
  [[nodiscard]] std::byte* take(std::size_t size_bytes);

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/gloo_tcp.hpp
// The part of Gloo that sends over TCP: on the transport of libgloo, or on lines whose ends have proven themselves.
// Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Joins processes, of one host or several, by TCP connections between any two of them: those of World::connector where
/// there is one, else those of libgloo, with a thread for each object. Reductions add in the order of ranks, so that
/// results depend on nothing but the ranks' values.
///
/// SIGPIPE: blocked in Gloo's thread for good and in the calling thread during a call; a SIGPIPE that a call has caused
/// is taken back. The process's disposition is not touched.
/// Costs: see the functions of detail/mesh.hpp. The store outlives the object, which leaves its last word there.
class GlooTcp {
 public:
  static constexpr std::string_view name = "Gloo";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    std::string host = "127.0.0.1";  // see Gloo::Options
  };

  /// Throws: ConfigError if the host cannot be listened on, or if LibTorch's copy of Gloo would answer our calls.
  static void check(const Options& options);

  /// Joins the group. Cost: milliseconds once all ranks have come.
  /// Throws: ConfigError as check() does; CollectiveError that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<GlooTcp> connect(const Options& options, const World& world, Store& store,
                                                        const Deadline& deadline);

  GlooTcp(const GlooTcp&) = delete;
  GlooTcp& operator=(const GlooTcp&) = delete;
  ~GlooTcp();

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call);
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call);
  FinishedWork broadcast(Buffer data, int root, const Call& call);
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call);
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call);
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call);
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call);
  FinishedWork barrier(const Call& call);
  FinishedWork send(ConstBuffer data, int peer, const Call& call);
  FinishedWork receive(Buffer data, int peer, const Call& call);

  void abort(std::string_view reason) noexcept;

 private:
  using Milliseconds = std::chrono::milliseconds;

  // What the operation under way needs, wherever it fails.
  struct Running {
    const detail::Signature& signature;
    const Deadline& deadline;
    int from = -1;  // of messages; -1 in collectives
    int to = -1;
    std::uint64_t number = 0;
    std::uint64_t slot = 0;              // of the step under way
    Deadline::Clock::time_point wake{};  // to look around
    Deadline::Clock::time_point next_look{};
    Milliseconds until_look{};
    bool has_announced = false;
  };
  struct ResetAtEnd {
    Running*& pointer;
    ~ResetAtEnd();
  };

 public:
  // What detail::Mesh asks for; of use to the collectives above only.
  [[nodiscard]] int rank() const noexcept { return world_.rank; }
  [[nodiscard]] int size() const noexcept { return world_.size; }

  [[nodiscard]] std::byte* scratch(std::size_t size_bytes);

  /// Is one step of an operation: messages that are under way together.
  class Step {
   public:
    Step(GlooTcp& gloo, std::uint64_t slot, const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes);

    void send(int peer, std::size_t offset, std::size_t size_bytes);
    void receive(int peer, std::size_t offset, std::size_t size_bytes);
    void finish();

   private:
    // One message moves less than 2^31 bytes: the kernel writes no more at a time, and Gloo keeps some sizes in an int.
    template <class Post>
    void in_parts(std::size_t offset, std::size_t size_bytes, const Post& post) {
      constexpr std::size_t limit = std::size_t{1} << 30U;
      std::uint64_t part = 0;
      for (std::size_t begin = 0; begin < size_bytes; begin += limit, ++part) {
        const std::uint64_t slot = detail::mix(slot_, part);
        gloo_->guarded([&] { post(slot, offset + begin, std::min(limit, size_bytes - begin)); });
      }
    }

    GlooTcp* gloo_;
    std::uint64_t slot_;
    std::unique_ptr<detail::MeshLines::Transfer> transfer_;
  };

  [[nodiscard]] Step step(const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes);

 private:
  explicit GlooTcp(const World& world);

  GlooTcp(const Options& options, const World& world, Store& store, const std::string& prefix, const Deadline& deadline);

  [[nodiscard]] detail::Arguments arguments() const noexcept;

  template <class Body>
  FinishedWork run(const detail::Signature& signature, const Call& call, const Body& body) {
    throw_if_lost(signature);
    Running running{.signature = signature, .deadline = call.deadline};
    number(running);
    const bool is_empty = signature.count == 0 && signature.operation != detail::Operation::barrier;
    if (is_empty && world_.size > 1) {  // nothing moves, but whoever waits for more can learn of it
      if (skipped_.size() == 8) skipped_.erase(skipped_.begin());
      skipped_.push_back(position(running));
    }
    if (is_empty) return {};
    const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
    running.until_look = until_look_;
    running_ = &running;
    const ResetAtEnd reset{running_};
    body();
    skipped_.clear();
    return {};
  }

  // Counts the operation: collectives in one row, messages in a row for each direction and peer.
  void number(Running& running);

  [[nodiscard]] static detail::Position position(const Running& running);

  template <class Post>
  void guarded(const Post& post) {
    try {
      post();
    } catch (const std::exception& error) {
      fail(detail::Notice::Kind::broken, error.what());
    }
  }

  void await(detail::MeshLines::Transfer& transfer);

  void set_wake();

  // Called now and then when an operation takes long: ends it at the deadline, or when a rank is gone from which
  // nothing is awaited at the moment, or when the ranks turn out to be in different operations.
  void look_around();

  // The first comparison comes early and each later one, in this operation and the next slow ones, after twice the
  // time, so that a group whose ranks often wait for each other leaves no more than a few announcements in the store.
  void compare_positions();

  // Ends the group for this rank. The order matters: see which connections are closed, leave a notice, close.
  [[noreturn]] void fail(detail::Notice::Kind kind, const std::string& text, std::vector<int> culprits = {});

  // The ranks whose connections are closed although they have left no notice.
  [[nodiscard]] std::vector<int> dead_peers();

  // Of all that waits for a connection, Gloo tells one after the other that it is closed: what failed may have been
  // told before the buffer by which a closed connection is known here.
  [[nodiscard]] std::vector<int> await_dead_peers();
  // Is there a closed connection to a rank which has said why?
  [[nodiscard]] bool has_seen_a_notice();

  [[nodiscard]] bool is_closed(int rank);

  void post(const detail::Notice& notice) noexcept;

  void close_connections() noexcept;

  void throw_if_lost(const detail::Signature& signature);

  [[noreturn]] void throw_failure(const std::string& operation, const detail::Verdict& verdict, bool is_later) const;

  // How long a rank that has failed waits for the others' notices.
  static constexpr Milliseconds patience{250};
  // How often a rank that waits looks whether the others are still there. Costs 20 us each time.
  static constexpr Milliseconds poll_interval{100};

  World world_;
  std::unique_ptr<detail::MeshLines> lines_;  // nullptr for a rank that is alone
  detail::Scratch scratch_{};
  std::uint64_t num_collectives_ = 0;
  std::vector<std::uint64_t> sent_;      // messages, by receiver
  std::vector<std::uint64_t> received_;  // messages, by sender
  std::vector<detail::Position> skipped_;
  Running* running_ = nullptr;
  Milliseconds until_look_{100};
  std::optional<detail::Notices> notices_;
  std::mutex post_mutex_;
  std::mutex mutex_;
  std::optional<detail::Verdict> failure_;  // set once, and never changed after
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/losses.hpp
// Why a group that is made of several parts was lost: what its ranks tell each other of it. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is one rank's access to what the ranks of a group say of its end. Where a rank waits for one that waits for another,
/// all see the group end; each says at once for whom it has waited, and the culprit is found by going from one to the
/// next.
class Losses {
 public:
  Losses(Store& store, std::string prefix, int rank);

  /// Leaves what this rank knows by itself, before it ends the parts of the group.
  void post(const Verdict& verdict) noexcept;

  /// Returns the verdict of the rank at the end of the row that begins with those whom this rank's own one blames.
  [[nodiscard]] Verdict follow(Verdict verdict);

 private:
  // Longer than the parts take to be sure of their own reasons.
  static constexpr std::chrono::milliseconds patience{600};

  // A rank that blames this one in its turn knows no more.
  [[nodiscard]] std::optional<Verdict> ask_any(const std::vector<int>& ranks, std::set<int>& asked,
                                               const Deadline& deadline);

  [[nodiscard]] std::optional<Verdict> ask(int rank, const Deadline& deadline);

  [[nodiscard]] std::string key(int rank) const;

  Store* store_;
  std::string prefix_;
  int rank_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/prefix_store.hpp
// A part of a store that one group has for itself. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is a part of another store: the keys of those who share a prefix. Its waits end once it has been given up.
class PrefixStore final : public Store {
 public:
  PrefixStore(Store& store, std::string prefix);

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override;
  void expect(const std::vector<std::string>& keys) override;
  [[nodiscard]] Descriptor take_memory() override;
  [[nodiscard]] bool joins_threads() const noexcept override;
  void give_up() noexcept;

 private:
  Store* store_;
  std::string prefix_;
  std::atomic<bool> is_given_up_{false};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/gloo_hosts.hpp
// The part of Gloo for several hosts: shared memory within each, as many lines of TCP between them as a host has ranks.
// Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Joins ranks of several hosts that have equally many ranks each, those of a host one after the other. What goes over
/// the network goes there once per host: the ranks of a host add up first, each carries its share of the sums over a
/// line of its own to the ranks of the same local rank elsewhere, and then they share them. Sums are made in one order,
/// within hosts and then between them, whatever the timing. While one chunk is on the network, the memory works on the
/// next.
/// The ranks of a host also see each other's memory: see host_memory().
/// Costs: all_reduce sends 2 (hosts - 1) / hosts times the data over each host's network, whatever its number of ranks.
class GlooHosts {
 public:
  /// Whether these ranks can be joined so. Every rank calls it, and gets the same answer.
  [[nodiscard]] static bool fits(const World& world, Store& store, const Deadline& deadline);

  /// Joins the group; the store must outlive the object. Returns nothing, on every rank, if the ranks of some host
  /// cannot share memory. Throws: CollectiveError that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<GlooHosts> connect(const std::string& host, const World& world, Store& store,
                                                          const Deadline& deadline);

  /// The memory of this host's ranks, with the lines between hosts.
  [[nodiscard]] HostMemory& host_memory() noexcept;

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call);

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call);

  FinishedWork broadcast(Buffer data, int root, const Call& call);

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call);
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);

  FinishedWork barrier(const Call& call);

  // These are rare, and what each rank gets is its own: any two ranks are connected when they first need it.
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call);
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call);
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call);
  FinishedWork send(ConstBuffer data, int peer, const Call& call);
  FinishedWork receive(Buffer data, int peer, const Call& call);

  void abort(std::string_view reason) noexcept;

 private:
  // What the ranks of a part, which count from 0, are in the group.
  struct Part {
    int first = 0;
    int stride = 1;
    bool is_within_host = false;
  };

  // Whose mesh joins all ranks, and not two; and whose joins this rank's line once more.
  static constexpr int everybody = -1;
  static constexpr int aside = -2;

  // Exchanges through the memory of this host, and along one line between hosts. What fails in one of them is told and
  // ends the group as in any operation.
  class Lane final : public HostMemory {
   public:
    Lane(GlooHosts& hosts, HostMemory& inner, GlooTcp& outer, bool has_side);

    [[nodiscard]] int rank() const noexcept override;
    [[nodiscard]] int size() const noexcept override;
    [[nodiscard]] int host() const noexcept override;
    [[nodiscard]] int num_hosts() const noexcept override;

    void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) override;
    void add_step() noexcept override;
    void step(std::span<const std::byte> record) override;
    void rest() noexcept override;
    [[nodiscard]] std::span<const std::byte> record_of(int rank) const override;
    [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept override;
    [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept override;
    [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept override;

    void add_between_hosts(const Buffer& data, const Deadline& deadline) override;
    [[nodiscard]] std::future<void> begin_between_hosts(const Buffer& data, const Deadline& deadline) override;

    [[nodiscard]] HostMemory* side(const Deadline& deadline) override;
    void abort(std::string_view reason) noexcept override;
    void withdraw() noexcept override;

   private:
    template <class Function>
    void within(const Function& function) {
      hosts_->guarded(hosts_->own_host(), signature_, function);
    }

    GlooHosts* hosts_;
    HostMemory* inner_;
    GlooTcp* outer_;
    bool has_side_;
    Signature signature_{.operation = Operation::exchange};  // of the exchange under way
  };

  // Of one all_reduce().
  struct Parts {
    [[nodiscard]] std::byte* scratch(std::size_t size_bytes);
    void add_within(const Buffer& whole, const Buffer& own);
    void share_within(const Buffer& own, const Buffer& whole);
    [[nodiscard]] std::future<void> send_off(const Buffer& own);
    void all_reduce_within(const Buffer& data);
    void all_reduce_across(const Buffer& data);

    GlooHosts& hosts;
    ReduceOp op;
    const Call& call;
  };

  GlooHosts(std::string host, const World& world, Store& store, const std::string& prefix);

  static const std::byte* bytes_of(const ConstBuffer& buffer) noexcept;
  static void copy(std::byte* to, const std::byte* from, std::size_t size_bytes) noexcept;

  [[nodiscard]] Arguments arguments() const noexcept;
  [[nodiscard]] int node_of(int rank) const noexcept;
  [[nodiscard]] int local_rank_of(int rank) const noexcept;

  [[nodiscard]] World inner_world() const;
  // Of these no two run on one host.
  [[nodiscard]] World outer_world() const;

  [[nodiscard]] std::byte* scratch(std::size_t size_bytes);

  // Does work across hosts in a thread of its own. If the work of this thread fails meanwhile, that ends it as well.
  template <class Function>
  [[nodiscard]] std::future<void> send_off(Function function) {
    const BlockSignals no_signals{deferrable_signals()};
    return std::async(std::launch::async, [this, function] { across(function); });
  }

  // First what the ranks of this line have, then what those of this host have then; into the places of their ranks.
  void gather_everywhere(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);

  [[nodiscard]] Lane& connect_side(const Deadline& deadline);

  void enter(const Signature& signature);
  void throw_if_lost(const Signature& signature);

  [[nodiscard]] Part own_host() const noexcept;
  [[nodiscard]] Part own_line() const noexcept;

  template <class Function>
  void within(const Function& function) {
    guarded(own_host(), function);
  }
  template <class Function>
  void across(const Function& function) {
    guarded(own_line(), function);
  }
  template <class Function>
  void guarded(const Part& part, const Function& function) {
    guarded(part, running_, function);
  }
  template <class Function>
  void guarded(const Part& part, const Signature& running, const Function& function) {
    try {
      function();
    } catch (const CollectiveError& error) {
      const Verdict found = losses_.follow(lose(verdict_of(part, error)));
      const std::lock_guard lock{mutex_};
      failure_ = found;
      throw_failure(found, running, "");
    } catch (const std::exception& error) {
      abort(error.what());
      throw;
    }
  }

  [[nodiscard]] Verdict verdict_of(const Part& part, const CollectiveError& error) const;

  // This host and those of the ranks that are to blame, or where nobody is all that it can be.
  [[nodiscard]] std::string hosts_text(const std::vector<int>& blamed) const;
  [[nodiscard]] std::string host_text(int node) const;

  // Ends the group for this rank and returns why: the first reason counts. It is told before the parts are seen to end.
  Verdict lose(const Verdict& verdict);

  [[noreturn]] void throw_failure(const Verdict& verdict, const Signature& running, std::string_view when) const;

  template <class Function>
  FinishedWork flat(const Call& call, const Function& function) {
    guarded({}, [&] { function(mesh(everybody, world_, "all/", call)); });
    return {};
  }

  template <class Function>
  FinishedWork pair(int peer, const Call& call, const Function& function) {
    const int low = std::min(peer, world_.rank);
    const int high = std::max(peer, world_.rank);
    World two = world_;
    two.rank = world_.rank == low ? 0 : 1;
    two.size = 2;
    guarded({.first = low, .stride = high - low},
            [&] { function(mesh(peer, two, compose("pair {} {}/", low, high), call)); });
    return {};
  }

  [[nodiscard]] GlooTcp& mesh(int peer, const World& world, const std::string& prefix, const Call& call);

  std::string host_;
  World world_;
  PrefixStore inner_store_;
  PrefixStore outer_store_;
  PrefixStore mesh_store_;
  std::map<int, PrefixStore> mesh_stores_;
  std::unique_ptr<SharedMemory> inner_;
  std::unique_ptr<GlooTcp> outer_;
  std::vector<std::string> names_;  // of the hosts, with their addresses
  Losses losses_;
  Signature running_{};  // the operation under way
  std::mutex mutex_;     // guards what abort() looks at: the next two
  std::optional<Verdict> failure_;
  std::map<int, std::unique_ptr<GlooTcp>> meshes_;  // by peer
  std::optional<Lane> lane_;
  std::optional<Lane> side_;
  detail::Scratch scratch_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/gloo.hpp
// The backend for CPUs: shared memory among ranks of one host, libgloo's TCP transport among hosts. Collectives room.

namespace railyard::inline v0_1 {

/// Names what Gloo moves values by.
enum class GlooTransport {
  automatic,  ///< shared memory among the ranks of a host that see each other's, TCP between hosts
  tcp,        ///< TCP between any two ranks, in any case
};

/// Joins processes or threads, of one host or several. Reductions add in the order of ranks, those of a host first
/// where there are several hosts: results depend on nothing but the ranks' values and their hosts, and on one host not
/// on the transport either. Costs: by shared memory those of SharedMemory; by TCP see detail/mesh.hpp, and one thread
/// for each object; of several hosts see detail/gloo_hosts.hpp.
///
/// SIGPIPE, by TCP: blocked in Gloo's thread for good and in the calling thread during a call; a SIGPIPE that a call
/// has caused is taken back. The process's disposition is not touched.
class Gloo {
 public:
  static constexpr std::string_view name = "Gloo";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    /// This host's own name or address, on which it listens and under which the others reach it. For TCP only. If
    /// empty, the loopback's for ranks of one host, else the one that World names.
    std::string host{};
    GlooTransport transport = GlooTransport::automatic;
  };

  /// Throws: ConfigError if the host cannot be listened on, or if LibTorch's copy of Gloo would answer our calls.
  static void check(const Options& options);

  /// Joins the group; the store must outlive the object. Cost: below a millisecond once all ranks have come, by TCP
  /// some milliseconds. Throws: ConfigError as check() does, where TCP is used or options name a host; CollectiveError
  /// that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<Gloo> connect(const Options& options, const World& world, Store& store,
                                                     const Deadline& deadline);

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call);
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call);
  FinishedWork broadcast(Buffer data, int root, const Call& call);
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call);
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call);
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call);
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call);
  FinishedWork barrier(const Call& call);
  FinishedWork send(ConstBuffer data, int peer, const Call& call);
  FinishedWork receive(Buffer data, int peer, const Call& call);
  void abort(std::string_view reason) noexcept;

  /// The memory that the ranks of each host share, nullptr if they do not.
  [[nodiscard]] HostMemory* host_memory() noexcept;

  /// Returns the second line of sums; nullptr where the ranks share memory, which has one. All ranks call it. The first
  /// call connects them anew, which costs some milliseconds, and one thread from then on.
  [[nodiscard]] SideLine* side_line(const Deadline& deadline);

 private:
  using Tcp = detail::GlooTcp;
  using Hosts = detail::GlooHosts;
  static constexpr std::string_view loopback = "127.0.0.1";

  class Side final : public SideLine {
   public:
    explicit Side(std::unique_ptr<Tcp> tcp);
    void all_reduce(Buffer data, ReduceOp op, const Call& call) override;
    void abort(std::string_view reason) noexcept override;

   private:
    std::unique_ptr<Tcp> tcp_;
  };

  Gloo() = default;
  explicit Gloo(std::unique_ptr<SharedMemory> shared);

  static std::string host_of(const Options& options, const World& world);

  template <class Function>
  FinishedWork on_part(const Function& function) {
    if (shared_) return function(*shared_);
    if (hosts_) return function(*hosts_);
    return function(*tcp_);
  }

  std::unique_ptr<SharedMemory> shared_;  // one of the three
  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<Tcp> tcp_;
  std::function<std::unique_ptr<Side>(const Deadline&)> connect_side_;
  std::unique_ptr<Side> side_;
  std::atomic<Side*> side_seen_{nullptr};  // by abort(), from another thread
};

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_NCCL) && RAILYARD_WITH_NCCL

// ---- railyard/collectives/detail/nccl_library.hpp
// The few functions of NCCL and of the CUDA runtime that are called, found in a running program. Collectives room.

#include <climits>

namespace railyard::inline v0_1 {
namespace detail {

// What nccl.h and cuda_runtime_api.h declare, so that neither has to be there. tests/unit/collectives/nccl_test.cpp
// compares the two where the headers are.
struct NcclComm;
struct NcclUniqueId {
  char bytes[128] = {};
};
enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};
enum class NcclDtype : int { i8 = 0, u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class NcclOp : int { sum = 0, product = 1, max = 2, min = 3, average = 4 };

/// Is ncclConfig_t as of 2.18: newer releases take the older size, and defaults for what has come since.
struct NcclConfig {
  static constexpr int undefined = INT_MIN;

  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xCAFEBEEFU;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
};

/// Is NCCL, 2.18 or newer.
struct NcclLibrary {
  explicit NcclLibrary(const std::string& path);

  [[nodiscard]] static std::string version_text(int version);

  int version = 0;
  NcclResult (*get_version)(int*) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm**, int, NcclUniqueId, int, NcclConfig*) = nullptr;
  NcclResult (*comm_finalize)(NcclComm*) = nullptr;
  NcclResult (*comm_destroy)(NcclComm*) = nullptr;
  NcclResult (*comm_abort)(NcclComm*) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm*, NcclResult*) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclComm*) = nullptr;
  NcclResult (*all_reduce)(const void*, void*, std::size_t, NcclDtype, NcclOp, NcclComm*, void*) = nullptr;
  NcclResult (*reduce_scatter)(const void*, void*, std::size_t, NcclDtype, NcclOp, NcclComm*, void*) = nullptr;
  NcclResult (*broadcast)(const void*, void*, std::size_t, NcclDtype, int, NcclComm*, void*) = nullptr;
  NcclResult (*all_gather)(const void*, void*, std::size_t, NcclDtype, NcclComm*, void*) = nullptr;
  NcclResult (*send)(const void*, std::size_t, NcclDtype, int, NcclComm*, void*) = nullptr;
  NcclResult (*recv)(void*, std::size_t, NcclDtype, int, NcclComm*, void*) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
};

/// Is the CUDA runtime. Loading it does not initialise CUDA.
struct CudaLibrary {
  explicit CudaLibrary(const std::string& path);

  /// Throws: Error with CUDA's own words, if the code is one of failure.
  void require(int code, std::string_view what) const;

  int (*get_device_count)(int*) = nullptr;
  int (*get_device)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*memcpy_async)(void*, const void*, std::size_t, int, void*) = nullptr;
  int (*event_create)(void**, unsigned) = nullptr;
  int (*event_record)(void*, void*) = nullptr;
  int (*event_query)(void*) = nullptr;
  int (*event_destroy)(void*) = nullptr;
  int (*get_last_error)() = nullptr;
  const char* (*get_error_string)(int) = nullptr;
};

/// Makes a device the calling thread's, and at its end the one that was.
class DeviceGuard {
 public:
  /// Throws: Error if the device cannot be used.
  DeviceGuard(const CudaLibrary& cuda, int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  const CudaLibrary* cuda_;
  int former_ = 0;
  bool is_same_ = true;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/nccl_devices.hpp
// Counts the GPUs as CUDA does in a rank that is about to use one of them. Collectives room.

// ---- railyard/collectives/detail/nccl_peers.hpp
// Learns of the death of ranks on the same host, which NCCL does not notice over NVLink. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Watches those processes of a group that this one can see.
class NcclPeers {
 public:
  /// Returns what identifies this process to the others: its host and its namespace of processes, then its number.
  [[nodiscard]] static std::string own_identity();

  /// identities: of all ranks, by rank.
  void watch(const std::vector<std::string>& identities);

  /// Returns the ranks whose processes have ended.
  [[nodiscard]] std::vector<int> ended() const;

 private:
  std::vector<std::pair<int, Descriptor>> watched_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/nccl_group.hpp
// One communicator of NCCL with everything that keeps a wait for it from lasting for ever. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what to do about a failure that NCCL describes by text, with a space before it.
[[nodiscard]] std::string nccl_remedy(std::string_view text);

class NcclGroup;
struct GiveEventBack {
  std::shared_ptr<NcclGroup> group{};
  void operator()(void* event) const;
};

/// Is one rank's part of a group. Used by one thread at a time, but for abort().
class NcclGroup : public std::enable_shared_from_this<NcclGroup> {
 public:
  /// Is an event of CUDA, which goes back to the group it was taken from.
  using Event = std::unique_ptr<void, GiveEventBack>;

  /// Is an operation under way, or done: then it has no event.
  struct Operation {
    Signature signature{};
    std::uint64_t number = 0;
    int from = -1;  // of messages; -1 in collectives
    int to = -1;
    Event event{};
  };

  NcclGroup(const NcclLibrary& nccl, const CudaLibrary& cuda, const World& world, int device, Store& store,
            const std::string& prefix);
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup();

  /// Makes the communicator, together with all ranks. identities: NcclPeers' of all ranks. poll() is called now and
  /// then, and throws where there is nothing to wait for any more. Throws: Error with NCCL's words.
  template <class Poll>
  void join(const NcclUniqueId& id, const std::vector<std::string>& identities, const Deadline& deadline,
            const Poll& poll) {
    peers_.watch(identities);
    const DeviceGuard guard{cuda_, device_};
    NcclConfig config;
    NcclResult result = nccl_.comm_init_rank_config(&comm_, world_.size, id, world_.rank, &config);
    auto next_poll = Clock::now() + look_interval;
    for (; is_good(result); result = state()) {
      if (result == NcclResult::success && state() == NcclResult::success) {
        is_joined_ = true;
        return;
      }
      if (deadline.expired()) {
        throw Error{
            compose("NCCL had not connected all ranks in {}{}", deadline.budget_text(), nccl_remedy("interface"))};
      }
      if (Clock::now() >= next_poll) {
        poll();
        next_poll = Clock::now() + look_interval;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    require(result);
  }

  /// Throws: Error with NCCL's words and what to do about it, if the result is a failure.
  void require(NcclResult result) const;

  /// Starts an operation on call's stream and returns without waiting for it, but the first time that two ranks meet:
  /// launch(nccl, communicator, stream).
  template <class Launch>
  [[nodiscard]] Operation start(const Signature& signature, const Call& call, const Launch& launch) {
    throw_if_lost(signature);
    Operation operation = number(signature);
    const bool is_empty = signature.count == 0 && signature.operation != detail::Operation::barrier;
    if (is_empty) {  // nothing moves, but whoever waits for more can learn of it
      if (skipped_.size() == 8) skipped_.erase(skipped_.begin());
      skipped_.push_back(position(operation));
      return operation;
    }
    try {
      const DeviceGuard guard{cuda_, device_};
      operation.event = take_event();
      NcclResult result = NcclResult::success;
      with_communicator(operation, [&] { result = launch(nccl_, comm_, call.stream.handle); });
      if (result == NcclResult::in_progress) {  // until then nothing is on the stream
        await(operation, call.deadline, [&] {
          with_communicator(operation, [&] { result = state(); });
          return result != NcclResult::in_progress;
        });
      }
      if (result != NcclResult::success) fail(operation, call.deadline, Notice::Kind::broken, text_of(result));
      cuda_.require(cuda_.event_record(operation.event.get(), call.stream.handle), "cudaEventRecord");
    } catch (const CollectiveError&) {
      throw;
    } catch (const Error& error) {  // CUDA's: as good as a lost device
      fail(operation, call.deadline, Notice::Kind::broken, error.what() + nccl_remedy(error.what()));
    }
    return operation;
  }

  /// Says whether the operation is done. Throws: CollectiveError if it never will be.
  [[nodiscard]] bool is_done(Operation& operation);

  void wait(Operation& operation, const Deadline& deadline);

  void give_back(void* event);

  void abort(std::string_view reason) noexcept;

  /// Ends the communicator in order, which the others do at the same time or never: after five seconds, by force.
  /// Returns whether it was in order.
  bool leave() noexcept;

 private:
  using Clock = Deadline::Clock;
  using Milliseconds = std::chrono::milliseconds;

  // How a wait goes on.
  struct Watch {
    Clock::time_point begin = Clock::now();
    Clock::time_point next_look = begin + look_interval;
    Clock::time_point next_comparison{};
    std::optional<Clock::time_point> peer_left{};
    bool has_announced = false;
  };

  [[nodiscard]] static bool is_good(NcclResult result) noexcept;

  [[nodiscard]] std::string ended_key() const;
  [[nodiscard]] std::string left_key(int rank) const;

  [[nodiscard]] NcclResult state() const;

  [[nodiscard]] std::string text_of(NcclResult result) const;

  // An aborted operation may write for a moment still: the caller is about to free what it writes to. If it does not
  // end soon the device is lost, and waiting would be for ever.
  void await_end(const Operation& operation) const;

  // Calls of NCCL are short, since the communicator never blocks: the lock keeps abort() from freeing it meanwhile.
  template <class Body>
  void with_communicator(const Operation& operation, const Body& body) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(describe(operation.signature), *failure_, false);
    body();
  }

  void abort_communicator() noexcept;

  [[nodiscard]] Event take_event();
  // Counts the operation: collectives in one row, messages in a row for each direction and peer.
  [[nodiscard]] Operation number(const Signature& signature);

  [[nodiscard]] static Position position(const Operation& operation);

  template <class Done>
  void await(const Operation& operation, const Deadline& deadline, const Done& done) {
    Watch watch;
    while (!done()) {
      const auto now = Clock::now();
      if (deadline.expired()) fail(operation, deadline, Notice::Kind::late, "the deadline has passed");
      if (now >= watch.next_look) look_around(operation, deadline, watch);
      if (now - watch.begin > std::chrono::microseconds{100}) {  // before, a sleep would cost more than it spares
        const auto nap = std::min<std::chrono::nanoseconds>((now - watch.begin) / 8, std::chrono::milliseconds{1});
        std::this_thread::sleep_for(std::min(nap, deadline.remaining()));
      }
    }
  }

  // Called now and then when an operation takes long: ends it when it cannot be done any more.
  void look_around(const Operation& operation, const Deadline& deadline, Watch& watch);

  [[nodiscard]] std::string text_of_current(const Operation& operation, NcclResult result);

  // A rank that has left had done its part of everything before; who waits for more waits in vain. Of messages there is
  // no such count: what a peer has sent before it left is there soon.
  void look_at_ends(const Operation& operation, const Deadline& deadline, Watch& watch);

  [[nodiscard]] std::uint64_t num_collectives_of(int rank);

  // The first comparison comes early and each later one after twice the time, in this operation and the next slow
  // ones: a group whose ranks often wait for each other leaves no more than a few announcements in the store.
  void compare_positions(const Operation& operation, const Deadline& deadline, Watch& watch);

  // Ends the group for this rank: tells the others, ends what is on the device, and finds out why.
  [[noreturn]] void fail(const Operation& operation, const Deadline& deadline, Notice::Kind kind,
                         const std::string& text, std::vector<int> culprits = {});

  void post(const Notice& notice) noexcept;

  void throw_if_lost(const Signature& signature);

  [[noreturn]] void throw_failure(const std::string& operation, const Verdict& verdict, bool is_later) const;

  // How long a rank that has failed waits for the others' notices.
  static constexpr Milliseconds patience{250};
  // How often a rank that waits looks whether the others are still there.
  static constexpr Milliseconds look_interval{100};

  NcclLibrary nccl_;
  CudaLibrary cuda_;
  World world_;
  int device_;
  Store* store_;
  std::string prefix_;
  NcclPeers peers_{};
  NcclComm* comm_ = nullptr;
  bool is_joined_ = false;
  std::uint64_t num_collectives_ = 0;
  std::vector<std::uint64_t> sent_;      // messages, by receiver
  std::vector<std::uint64_t> received_;  // messages, by sender
  std::vector<Position> skipped_;
  Milliseconds until_comparison_{100};
  Notices notices_;
  std::mutex post_mutex_;
  std::mutex mutex_;                  // of the communicator and the failure
  std::optional<Verdict> failure_;  // set once, and never changed after
  std::mutex events_mutex_;
  std::vector<void*> events_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/nccl.hpp
// The backend for NVIDIA's GPUs, by the NCCL and the CUDA runtime that it finds when it runs. Collectives room.

namespace railyard::inline v0_1 {

/// Is an operation of Nccl that has been put on a stream of the device.
class NcclWork {
 public:
  NcclWork(std::shared_ptr<detail::NcclGroup> group, detail::NcclGroup::Operation operation) noexcept;

  /// Says whether the device has done it. Never waits. Throws: CollectiveError if it never will have.
  [[nodiscard]] bool is_done();

  /// Waits until the device has done it. Whoever goes on on the same stream need not. Throws: CollectiveError.
  void wait(const Deadline& deadline);

 private:
  std::shared_ptr<detail::NcclGroup> group_;
  detail::NcclGroup::Operation operation_;
};

/// Joins GPUs, one for each rank, of one host or several. NCCL 2.18 or newer and the CUDA runtime are found when it
/// runs: LibTorch's own if it is loaded, else libnccl.so.2 and libcudart.so; RAILYARD_NCCL_LIBRARY and
/// RAILYARD_CUDART_LIBRARY name others.
///
/// Operations are put on Call::stream, where nullptr is CUDA's default stream of the rank's device, and return; only
/// the first between two ranks waits until NCCL has connected them. Failures after that are thrown by the Work, and by
/// every later call. Buffers lie on the rank's device.
///
/// Where NCCL falls short of the concept: it sums half types in their own precision, and it does not compare what the
/// ranks call. A disagreement that makes it hang is found and named; one that it lets pass (a smaller count here than
/// there, in some releases) is not.
class Nccl {
 public:
  static constexpr std::string_view name = "Nccl";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cuda;

  struct Options {
    /// Which of the GPUs that CUDA shows to this process; -1 for the one that the rank was given (World::device), or
    /// else that with its number on its host.
    int device = -1;
    /// How many GPUs check() asks for.
    int num_devices = 1;
    std::string nccl_library{};    ///< file of NCCL; if empty, see above
    std::string cudart_library{};  ///< file of the CUDA runtime; likewise
  };

  /// Throws: ConfigError if a library or a GPU is missing. Does not initialise CUDA, so that workers can be forked.
  static void check(const Options& options);

  /// Joins the group; the store must outlive the object. Ends with one sum of all ranks, as a test.
  /// Throws: CollectiveError that names the ranks which did not come or failed; ConfigError if this rank has no library
  /// or no GPU, or, on all ranks, if their releases of NCCL differ, or if what goes between hosts is to be encrypted.
  [[nodiscard]] static std::unique_ptr<Nccl> connect(const Options& options, const World& world, Store& store,
                                                     const Deadline& deadline);

  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  ~Nccl();

  /// Which GPU this rank uses.
  [[nodiscard]] Device device() const noexcept;

  NcclWork all_reduce(Buffer data, ReduceOp op, const Call& call);
  NcclWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call);
  NcclWork broadcast(Buffer data, int root, const Call& call);
  NcclWork all_gather(ConstBuffer in, Buffer out, const Call& call);
  NcclWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call);
  NcclWork gather(ConstBuffer in, Buffer out, int root, const Call& call);
  NcclWork scatter(ConstBuffer in, Buffer out, int root, const Call& call);
  NcclWork all_to_all(ConstBuffer in, Buffer out, const Call& call);
  /// The Work is done when all ranks' streams have come to it.
  NcclWork barrier(const Call& call);
  NcclWork send(ConstBuffer data, int peer, const Call& call);
  NcclWork receive(Buffer data, int peer, const Call& call);

  void abort(std::string_view reason) noexcept;

 private:
  using Library = detail::NcclLibrary;
  using Comm = detail::NcclComm;
  static constexpr char failed_card = '!';

  Nccl(const Options& options, const World& world, Store& store, const std::string& prefix);

  [[noreturn]] static void throw_too_few(int needed, int count);

  // Reads what all ranks have said of themselves: the release of their NCCL, and who they are.
  static std::vector<std::string> identities_in(const std::vector<std::optional<std::string>>& cards,
                                                const World& world, const Deadline& deadline);

  void join(Store& store, const std::string& prefix, const std::vector<std::string>& identities,
            const Deadline& deadline);

  // A sum of 1 to size: connections that cannot carry anything are found here, and not in the first hour of training.
  void test(const Deadline& deadline);

  template <class Launch>
  NcclWork start(const detail::Signature& signature, const Call& call, const Launch& launch) {
    return {group_, group_->start(signature, call, launch)};
  }

  [[nodiscard]] detail::Arguments arguments() const noexcept;

  void check_device(const detail::Signature& signature, std::initializer_list<ConstBuffer> buffers) const;

  // A bool is a byte of 0 or 1: any is their maximum, all their minimum.
  [[nodiscard]] static constexpr detail::NcclOp op_of(ReduceOp op, Dtype dtype) noexcept {
    using detail::NcclOp;
    if (dtype == Dtype::boolean) return op == ReduceOp::sum || op == ReduceOp::max ? NcclOp::max : NcclOp::min;
    switch (op) {
      case ReduceOp::average:
        return NcclOp::average;
      case ReduceOp::min:
        return NcclOp::min;
      case ReduceOp::max:
        return NcclOp::max;
      case ReduceOp::product:
        return NcclOp::product;
      case ReduceOp::sum:
        break;
    }
    return NcclOp::sum;
  }

  [[nodiscard]] static constexpr detail::NcclDtype dtype_of(Dtype dtype) noexcept {
    using detail::NcclDtype;
    switch (dtype) {
      case Dtype::f16:
        return NcclDtype::f16;
      case Dtype::bf16:
        return NcclDtype::bf16;
      case Dtype::f32:
        return NcclDtype::f32;
      case Dtype::f64:
        return NcclDtype::f64;
      case Dtype::i8:
        return NcclDtype::i8;
      case Dtype::i32:
        return NcclDtype::i32;
      case Dtype::i64:
        return NcclDtype::i64;
      case Dtype::u8:
      case Dtype::boolean:
        break;
    }
    return NcclDtype::u8;
  }

  // The place of an element, or of a rank's slice of count elements.
  [[nodiscard]] static void* at(const Buffer& buffer, std::size_t index) noexcept;
  [[nodiscard]] static void* slice(const Buffer& buffer, std::size_t count, int rank) noexcept;
  [[nodiscard]] static const void* slice(const ConstBuffer& buffer, std::size_t count, int rank) noexcept;

  detail::NcclLibrary nccl_;
  detail::CudaLibrary cuda_;
  World world_;
  int device_;
  std::shared_ptr<detail::NcclGroup> group_;
  void* word_ = nullptr;  // on the device, for the barrier
};

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH

// ---- railyard/torch/detail/batch_buffers.hpp
// The memory that batches are written to, used again once nobody holds it. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

// ---- railyard/torch/detail/thread_budget.hpp
// Gives each worker its share of the cores for LibTorch's parallel loops. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/Parallel.h>
#include <torch/version.h>

namespace railyard::inline v0_1 {

namespace detail {

// Takes effect once per worker, before its first parallel loop. Only the calling thread's setting is changed:
// at::set_num_threads() would change every worker's that is a thread of this process. The first call of
// at::get_num_threads() makes LibTorch set up this thread, which would otherwise undo ours later.
void apply_thread_budget(Worker& worker);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/tensor.hpp
// A tensor as collectives see it, and the device of a worker. Torch room.

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] std::string shape_of(const at::Tensor& tensor);

// Where the element of that number, counted row by row over the first num_dims dimensions, is from the first one, in
// elements, whatever the strides.
[[nodiscard]] std::int64_t offset_of(const at::Tensor& tensor, std::int64_t element, std::int64_t num_dims);

}  // namespace detail

/// Returns the dtype that collectives know a tensor's elements by.
/// Throws: ConfigError that names the type if there is none.
[[nodiscard]] Dtype dtype_of_tensor(const at::Tensor& tensor);

/// Views the elements of a contiguous tensor, which must outlive the view.
/// Throws: ConfigError if it is undefined, sparse, not contiguous, on a device or of a type that collectives do not
/// know.
[[nodiscard]] Buffer buffer_of(const at::Tensor& tensor);

/// Views the elements of a tensor on the CPU, which must outlive the view, as metrics take them.
/// Throws: ConfigError as buffer_of() does, and if the elements are not of type T or are on a GPU.
/// Example: auc.add(ry::values<float>(scores), ry::values<std::int64_t>(batch.target));
template <Element T>
[[nodiscard]] std::span<const T> values(const at::Tensor& tensor) {
  const Buffer elements = buffer_of(tensor);
  if (elements.dtype != dtype_of<T> || elements.device.kind != DeviceKind::cpu) {
    throw ConfigError{detail::compose("a tensor ({} on {}) was to be read as {} on the CPU: convert it with .to()",
                                      detail::shape_of(tensor), tensor.device().str(), name_of(dtype_of<T>))};
  }
  return {static_cast<const T*>(elements.data), elements.count};
}

/// Returns the device that this worker's tensors belong on: the GPU that it was given (ScalingConfig::use_gpu), or the
/// CPU.
[[nodiscard]] at::Device device(Worker& worker);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/agreement.hpp
// Makes sure that all ranks hold the same model, each its own, with equal weights and buffers. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

namespace railyard::inline v0_1 {

namespace detail {

struct NamedTensor {
  std::string name{};
  at::Tensor tensor{};
  bool is_parameter = true;
};

// Parameters first, then buffers, each in the order in which the module registered them.
[[nodiscard]] std::vector<NamedTensor> tensors_of(const torch::nn::Module& module);

// Of a hash what ranks compare by sums: 16 bits, so that the sum of its square over a thousand ranks is exact in a
// double.
[[nodiscard]] constexpr std::uint64_t short_digest(std::uint64_t hash) noexcept { return hash & 0xFFFFU; }

// The elements as bytes in logical order, whatever the strides.
[[nodiscard]] at::Tensor bytes_of(const at::Tensor& tensor);

[[nodiscard]] std::uint64_t hash_of(const std::vector<NamedTensor>& tensors);

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
[[nodiscard]] std::string_view call_of(Topic topic);

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

[[nodiscard]] std::vector<std::string> gather_texts(Worker& worker, Topic topic, const std::string& mine);

[[nodiscard]] std::string describe(const NamedTensor& named);

[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

// What the first rank has that has not the settings of the first of all, one a line; empty if there is none.
[[nodiscard]] std::string difference_of_settings(const std::vector<std::string>& texts, int first_rank = 0);

// Says where two descriptions of tensors part: counts first, then the first tensor that differs.
[[nodiscard]] std::string difference(const std::string& first, std::size_t rank, const std::string& other);

// Compares descriptions of tensors, one a line; throws the same error on every rank. what: whose they are.
void check_descriptions(Worker& worker, Topic topic, std::string_view what, const std::string& mine);

// Leaves every rank with rank 0's weights and buffers, or throws the same error on every rank.
void make_equal(Worker& worker, const std::vector<NamedTensor>& tensors);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/tensor_mark.hpp
// Tells whether a tensor was touched. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

namespace detail {

// By which it is seen, nearly for nothing, whether a tensor was changed in place or replaced. LibTorch's own optimizers
// and clip_grad_norm_() go past the version counter, so a few elements are looked at as well.
struct TensorMark {
  const void* tensor = nullptr;
  std::uint32_t version = 0;
  std::uint64_t elements = 0;

  [[nodiscard]] static TensorMark of(const at::Tensor& tensor);
  [[nodiscard]] bool operator==(const TensorMark&) const = default;
  // Whether the values are the same, changed in between or not.
  [[nodiscard]] bool holds_same(const TensorMark& other) const noexcept;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/weight_storage.hpp
// Tells whether the memory of a weight was replaced, and what ranks have in it then. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace railyard::inline v0_1 {

namespace detail {

// Where a tensor keeps its elements. What it has seen is not kept alive, but no other takes its address either: two
// replacements in a row may well come to lie where the first memory was.
class StorageMark {
 public:
  StorageMark() = default;
  explicit StorageMark(const at::Tensor& tensor);

  // Whether the tensor still keeps its elements there.
  [[nodiscard]] bool is_of(const at::Tensor& tensor) const;

 private:
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* data_ = nullptr;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/gradient_slot.hpp
// What is known of one parameter whose gradients are averaged, and of one backward pass. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/variable.h>

namespace railyard::inline v0_1 {

namespace detail {

// The part of a parameter that this rank updates for all ranks of the host, which share its weights; see
// PreparedOptimizer. Elements begin to end in the order of memory.
struct GradientPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  at::Tensor weights{};   // a view of one dimension; undefined where this rank has no part
  bool is_spent = false;  // an update has used what is in the gradient
  bool is_mixed = false;  // and a backward pass has added to that
  bool is_copy = false;   // a rank of the first host has the same one, and tells of it for both

  [[nodiscard]] bool is_empty() const noexcept { return begin == end; }

  // Of one more backward pass.
  void add(const at::Tensor& added);
};

struct GradientSlot {
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::string name{};
  at::Tensor parameter{};
  NodePointer accumulator{};             // LibTorch itself keeps it only as long as a graph refers to it
  bool used = false;                     // since the last exchange
  bool has_arrived = false;              // at its gradient, in the backward pass under way
  bool has_begun = false;                // a step, since it was prepared
  std::weak_ptr<GradientPiece> piece{};  // while an optimizer shares the weights
  std::vector<std::int64_t> strides{};   // of the gradient on every rank, once an exchange has asked
  bool is_weighted = false;              // micro-batches under way have added to the gradient
  at::Tensor before{};                   // what it was before them: it is not weighted with their samples
  TensorMark gradient_mark{};            // as the last of them has left it
  TensorMark parameter_mark{};           // as it was when that one had gone by
  TensorMark parameter_before{};         // and when it began
  at::Tensor stage{};                    // memory that the other ranks see, where the gradient itself is not there
  std::vector<std::int64_t> shape{};     // of the parameter, when its accumulator was hooked
  StorageMark storage{};                 // of the parameter, when the ranks were last known to have equal weights

  // Sums are made in f32 at least: n x gradient would overflow a half type.
  [[nodiscard]] at::ScalarType sum_type() const;

  // Whether its model is gone, and every graph that leads to it: nobody knows it but this slot and its accumulator.
  [[nodiscard]] bool is_ended() const;

  // Elements of the sum: two for a complex number.
  [[nodiscard]] std::int64_t real_count() const;
  // Of what is exchanged.
  [[nodiscard]] std::size_t sum_bytes() const;

  // The parameter's strides if it has no gaps, those of a contiguous tensor otherwise.
  [[nodiscard]] const std::vector<std::int64_t>& gradient_strides();

  [[nodiscard]] bool has_other_shape() const;
  // Forgets all that goes by the parameter's shape and type, before its accumulator is hooked. Returns whether LibTorch
  // has forgotten it too: the accumulator lives as long as a graph that leads to it.
  [[nodiscard]] bool forget_shape();

  // Gives the gradient memory of its own, after `added` has become it. LibTorch may leave it in memory that another
  // gradient of the pass has as well, if one of the two is a view, and that must not be averaged while it is needed.
  // Where it was added to what was there before, as to a part of a flat tensor of the user's, it stays there.
  void own_memory(const at::Tensor& added) const;

  // Called before a micro-batch adds to the gradient.
  void begin_weighting();

  // Adds to what was there before, once, as if that had come with the samples of this rank, by which all is divided in
  // the end. More may still be added by micro-batches.
  void end_weighting(double samples);

  // Called when a micro-batch has added to the gradient.
  void mark();

  // Whether the gradient is as the last micro-batch has left it.
  [[nodiscard]] bool has_same_gradient() const;
  // Called when a micro-batch begins. Returns whether the weights are as they were when the one before had gone by, or
  // began: a forward pass may change them, and a loop may change them for a pass and put them back.
  [[nodiscard]] bool begin_micro_batch();
  // Forgets micro-batches whose step has never been exchanged, unless the loop has done so.
  void end_unexchanged();

  // They will not be completed.
  void forget_micro_batches();

  // The gradient, made if there is none. A sparse one becomes dense: the rows that other ranks have used are others.
  [[nodiscard]] at::Tensor& dense_gradient() const;
};

// Numbers of slots that are exchanged together.
using Bucket = std::vector<std::size_t>;

// What the ranks have of the slots of a bucket, one after another.
struct BucketUse {
  std::vector<std::uint32_t> num_using{};   // ranks that have used it
  std::vector<std::uint32_t> num_giving{};  // ranks with samples that have a gradient
};

// Slots that an exchange averages, with their numbers.
using OpenSlots = std::vector<std::pair<std::size_t, GradientSlot*>>;

[[nodiscard]] at::Tensor as_real(const at::Tensor& tensor);

// What one rank says with the first bucket of an exchange.
struct PassHeader {
  double samples = 0;        // behind what is exchanged
  std::uint32_t silent = 0;  // it has not said how many
  std::uint32_t num_slots = 0;
  std::uint32_t has_replaced = 0;  // the memory of weights; see StorageMark
  std::uint64_t step = 0;
  std::uint64_t pass = 0;  // of that step
  std::uint64_t loop = 0;  // over training data, in which it is
  double waited = 0;       // seconds in all, for others
  Wishes wishes{};
  std::uint32_t has_ended = 0;  // its data, with this step
  std::uint64_t updates = 0;    // see UpdateDigest
  std::uint64_t weights = 0;    // digest_of_weights() in the first pass after a model was prepared, else 0
  std::uint64_t data = 0;       // digest of ControlLane::data()
  double weights_seen = 0;      // WeightWatch::number() of the step

  [[nodiscard]] bool is_together_with(const PassHeader& other) const noexcept;
};

// What all ranks know after it.
struct PassSummary {
  std::vector<PassHeader> headers{};  // by rank; where nobody can be told apart, one for all
  double samples = 0;                 // on all ranks
  std::uint32_t num_silent = 0;       // ranks that have not said how many
  std::uint32_t num_ended = 0;        // ranks whose data ends with this step
  std::uint32_t num_replaced = 0;     // ranks that have replaced the memory of weights
  bool are_weights_apart = false;     // see WeightWatch
  Wishes wishes{};                    // of any rank
  std::vector<double> waits{};        // seconds that each rank had waited for others when it began, by rank
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/tensor_state.hpp
// Tensors as a saved state holds them, row by row, whole or in the pieces of ranks. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

namespace railyard::inline v0_1 {

namespace detail {

// The dimensions of a tensor by falling stride: 0, 1, 2 for one that lies row by row.
using DimOrder = std::vector<std::int64_t>;

// tensor: without gaps.
[[nodiscard]] DimOrder order_in_memory(const at::Tensor& tensor);

// What was saved, and how the dimensions of its shape have to be read.
struct SavedTensor {
  const StateTensor* state = nullptr;
  DimOrder order{};

  [[nodiscard]] std::string text() const;

  [[nodiscard]] std::vector<std::int64_t> logical_shape() const;

  [[nodiscard]] bool fits(const at::Tensor& real) const;

  // Returns all of it, on the CPU.
  [[nodiscard]] at::Tensor whole() const;

  // Fills a flat tensor on the CPU with elements begin to end of what lies in the order of `like`.
  void read_piece(const at::Tensor& like, std::int64_t begin, std::int64_t end, const at::Tensor& flat) const;

  // Writes all of it to where a tensor is.
  void read_into(const at::Tensor& target) const;

 private:
  [[nodiscard]] DimOrder inverse() const;
};

[[nodiscard]] SavedTensor saved_rows(const StateTensor& state);

// The tensors of a saved state that nothing has been made of yet.
class UnreadTensors {
 public:
  explicit UnreadTensors(const State& state);

  // Returns the tensor of that name, or nullptr.
  [[nodiscard]] const StateTensor* take(std::string_view name);

  void name_surplus(std::vector<std::string>& problems) const;

 private:
  std::map<std::string_view, const StateTensor*> by_name_;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/block_tensors.hpp
// Makes tensors of the columns of a block. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

// ---- railyard/torch/batch.hpp
// What a loader gives for each step. Torch room.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace railyard::inline v0_1 {

namespace detail {

// The samples that a batch was made of, if they come from a Dataset.
struct BatchColumns {
  Block block{};
  at::Device device{at::kCPU};
  double padding = 0;
};

}  // namespace detail

/// Is one worker's part of a batch.
class Batch {
 public:
  at::Tensor data{};
  at::Tensor target{};  ///< undefined where the dataset has none

  Batch() = default;
  Batch(at::Tensor data_, at::Tensor target_, std::size_t size, bool completes_step = true,
        std::shared_ptr<const detail::BatchColumns> columns = nullptr);
  /// Makes tensors of samples that no loader gave, such as those to predict for: the data and the target that a loader
  /// of their dataset would make by default. label: the column of the target; there is none if it is empty.
  /// Example: const ry::Batch batch{step.block, dataset.label()};  // of a step of an EpochReader
  explicit Batch(Block block, const std::string& label = {}, double padding = 0);

  /// The number of samples that count: those of data, or 0 where the batch had fewer samples than there are workers and
  /// this one has been given a sample of another worker's, to keep step. Weight sums with it.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether this is the last micro-batch of a step: then backward() averages, and it is time for optimizer.step().
  [[nodiscard]] bool completes_step() const noexcept { return completes_step_; }

  /// All columns of the samples, texts too, and the samples' ids. Throws: ConfigError if the loader has no Dataset.
  [[nodiscard]] const Block& columns() const;
  /// Returns one column. Shapes: (samples, those of its field); where samples differ in length, the first of these is
  /// the longest one's, and the others end with LoaderOptions::padding. Text is its bytes.
  /// Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] at::Tensor tensor(std::string_view name) const;
  /// Returns how long each sample of a column is that was padded. Shapes: (samples) of int64.
  [[nodiscard]] at::Tensor lengths(std::string_view name) const;

 private:
  [[nodiscard]] const detail::BatchColumns& all() const;

  std::size_t size_ = 0;
  bool completes_step_ = true;
  std::shared_ptr<const detail::BatchColumns> columns_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/batch_norm_function.hpp
// The arithmetic of BatchNorm over the batches of all ranks, forward and backward. Torch room.

#include <ATen/core/ivalue.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

namespace railyard::inline v0_1 {

namespace detail {

// What one forward pass knows of the batches of all ranks, and what its backward pass needs to know of this rank.
struct BatchMoments : torch::CustomClassHolder {
  std::weak_ptr<Worker> worker{};
  double eps = 1e-5;
  double count = 0;       // values per channel, on all ranks
  double own_weight = 0;  // what this rank's gradient will be weighted with
  bool counts = true;     // whether this rank's part of the batch counts
  bool input_needs_grad = false;
  at::Tensor mean{};      // (channels) on the input's device, f32 at least
  at::Tensor variance{};  // biased
};

using BatchMomentsPointer = c10::intrusive_ptr<BatchMoments>;

// Statistics are made in f32 at least.
[[nodiscard]] at::ScalarType statistics_type(const at::Tensor& input);

// Appends a tensor of one value per channel.
void append(std::vector<double>& values, const at::Tensor& tensor, double factor = 1);

// Finds mean and variance of the batches of all ranks, in one exchange. input: what the module was given, in the
// statistics' type. A rank that counts nothing takes part.
[[nodiscard]] BatchMomentsPointer exchange_moments(const std::shared_ptr<Worker>& worker,
                                                          const at::Tensor& input, double eps);

// Normalises with the moments of all ranks. The backward pass is the derivative of the mean over the global batch that
// prepare_model() makes of the ranks' gradients: what reaches this rank's input through the common mean and variance
// comes from all ranks' losses, each with its rank's weight.
class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchMomentsPointer& moments);

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients);

 private:
  // The sum over this rank's values of gradient x normalised input, and of the gradient.
  [[nodiscard]] static std::pair<at::Tensor, at::Tensor> sums(const at::Tensor& gradient, const at::Tensor& input,
                                                              const BatchMoments& moments);

  [[nodiscard]] static at::Tensor gradient_of_input(const at::Tensor& gradient, const at::Tensor& input,
                                                    const at::Tensor& weight, const at::Tensor& projection,
                                                    const at::Tensor& sum, const BatchMoments& moments);

  static void refuse_second_derivative();
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/running_statistics.hpp
// Keeps batches that do not count out of the running statistics of a model. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace railyard::inline v0_1 {

namespace detail {

// Is a module that may follow the batches of all ranks; then its statistics are to move also where this rank's own
// batch counts nothing.
class FollowsAllRanks {
 public:
  FollowsAllRanks() = default;
  FollowsAllRanks(const FollowsAllRanks&) = default;
  FollowsAllRanks& operator=(const FollowsAllRanks&) = default;
  virtual ~FollowsAllRanks() = default;
  [[nodiscard]] virtual bool is_joined() const noexcept = 0;
};

// The statistics of all normalising modules under a few others, as they were before a batch.
class RunningStatistics {
 public:
  enum class Of : std::uint8_t {
    modules_on_their_own,  // those that follow no batches of other ranks
    all_modules,
  };

  void keep(const std::vector<std::weak_ptr<const torch::nn::Module>>& roots, Of modules = Of::modules_on_their_own);
  void forget() noexcept;
  [[nodiscard]] bool has_any() const noexcept;

  void put_back() const;

 private:
  void visit(const torch::nn::Module& module, Of modules);

  // In the memory of the last time, for this is done in every step.
  void keep(const at::Tensor& buffer);

  // Between tensors of a few hundred bytes, one call of an operator costs more than copying a hundred of them.
  static void copy(const at::Tensor& to, const at::Tensor& from);

  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
  std::size_t num_kept_ = 0;  // where keep() is
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/batch_norm.hpp
// BatchNorm modules whose batch is the batch of all workers, once sync_batch_norm() has joined them. Torch room.

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace railyard::inline v0_1 {

namespace nn {

/// Is torch::nn::BatchNorm1d, 2d or 3d (D) with the same options, parameters and buffers under the same names, until
/// sync_batch_norm() joins it to a worker. From then on a forward pass in training normalises with mean and variance
/// of the batches of all ranks, every rank's running statistics are those of one worker on the global batch, and
/// gradients are too. Every value counts once, however unevenly the batch is divided; a rank whose batch is empty, or
/// has weight zero (worker.samples(0)), takes part and counts nothing.
///
/// In eval() nothing is exchanged. Without running statistics eval() normalises over this rank's own batch.
/// All ranks must run the same joined modules in the same order, forward and backward.
/// Shapes: D 1: (batch, features) or (batch, features, length); 2: (batch, features, height, width); 3: one more.
/// Cost: forward one all-gather of 1 + 2 x features f64 per rank, backward one all-reduce of 2 x features f64.
/// Throws: ConfigError for an input of another shape, for fewer than two values per channel on all ranks together, and
/// for backward(create_graph=true).
template <std::size_t D>
class BatchNormImpl : public torch::nn::NormImplBase<D, BatchNormImpl<D>, torch::nn::BatchNormOptions>,
                      public detail::FollowsAllRanks {
  static_assert(D >= 1 && D <= 3, "BatchNorm exists for 1, 2 and 3 dimensions");
  using Base = torch::nn::NormImplBase<D, BatchNormImpl<D>, torch::nn::BatchNormOptions>;

 public:
  explicit BatchNormImpl(const torch::nn::BatchNormOptions& options_) : Base(options_) {}

  at::Tensor forward(const at::Tensor& input) {
    _check_input_dim(input);
    const auto worker = worker_.lock();
    if (!worker || worker->world_size() == 1 || !this->is_training()) return forward_alone(input);
    const auto moments =
        detail::exchange_moments(worker, input.detach().to(detail::statistics_type(input)), this->options.eps());
    if (moments->count < 2) {
      throw ConfigError{detail::compose(
          "BatchNorm {} on rank {}/{}: the batches of all ranks together hold {} values per channel, and a "
          "variance needs two: make the batch larger, or call eval()",
          path_, worker->rank(), worker->world_size(), moments->count)};
    }
    follow(*moments);
    if (this->options.affine()) return detail::SyncBatchNormFunction::apply(input, this->weight, this->bias, moments);
    // A custom function takes no undefined tensors.
    return detail::SyncBatchNormFunction::apply(input, at::ones_like(moments->mean), at::zeros_like(moments->mean),
                                                moments);
  }

  /// Joins this module to those of the other ranks; sync_batch_norm() calls it. path: its name in messages.
  void join(std::weak_ptr<Worker> worker, std::string path) {
    worker_ = std::move(worker);
    path_ = std::move(path);
  }
  /// Says whether batches of other ranks count here, which ends with the training function.
  [[nodiscard]] bool is_joined() const noexcept override { return !worker_.expired(); }

  /// Takes the place of a plain module: from then on both have the same parameters, the same values in buffers.
  template <class Plain>
  void adopt(const Plain& plain) {
    if (plain.weight.defined()) this->weight = this->parameters_["weight"] = plain.weight;
    if (plain.bias.defined()) this->bias = this->parameters_["bias"] = plain.bias;
    if (plain.running_mean.defined()) {
      this->running_mean.set_data(plain.running_mean);
      this->running_var.set_data(plain.running_var);
      this->num_batches_tracked.set_data(plain.num_batches_tracked);
    }
    this->train(plain.is_training());
  }

  void pretty_print(std::ostream& stream) const override {
    const auto& momentum = this->options.momentum();
    stream << detail::compose("railyard::nn::BatchNorm{}d({}, eps={}, momentum={}, affine={}, track_running_stats={})",
                              D, this->options.num_features(), this->options.eps(),
                              momentum ? detail::compose("{}", *momentum) : "None", this->options.affine(),
                              this->options.track_running_stats());
  }

 protected:
  void _check_input_dim(const at::Tensor& input) override {
    const auto dim = static_cast<std::size_t>(input.dim());
    if ((dim == D + 2 || (D == 1 && dim == 2)) && input.size(1) == this->options.num_features()) return;
    throw ConfigError{detail::compose(
        "railyard::nn::BatchNorm{}d {}: the input is {}, but {} with {} features is expected", D, path_,
        detail::shape_of(input),
        D == 1 ? "(batch, features) or (batch, features, length)"
               : (D == 2 ? "(batch, features, height, width)" : "(batch, features, depth, height, width)"),
        this->options.num_features())};
  }

 private:
  // The weight of the newest batch in the running statistics. Counts the batch.
  [[nodiscard]] double average_factor() {
    const auto& momentum = this->options.momentum();
    if (!this->is_training() || !this->options.track_running_stats()) return momentum.value_or(0.0);
    const at::NoGradGuard no_grad;
    this->num_batches_tracked += 1;
    return momentum ? *momentum : 1.0 / this->num_batches_tracked.template item<double>();
  }

  [[nodiscard]] at::Tensor forward_alone(const at::Tensor& input) {
    const double factor = average_factor();
    return torch::nn::functional::batch_norm(
        input, this->running_mean, this->running_var,
        torch::nn::functional::BatchNormFuncOptions()
            .weight(this->weight)
            .bias(this->bias)
            .momentum(factor)
            .eps(this->options.eps())
            .training(this->is_training() || !this->options.track_running_stats()));
  }

  // Moves the running statistics towards the batch's, with the unbiased variance as a single worker does.
  void follow(const detail::BatchMoments& moments) {
    if (!this->options.track_running_stats()) return;
    const at::NoGradGuard no_grad;
    const double factor = average_factor();
    const auto type = this->running_mean.scalar_type();
    this->running_mean.mul_(1 - factor).add_(moments.mean.to(type), factor);
    this->running_var.mul_(1 - factor).add_(moments.variance.to(type), factor * moments.count / (moments.count - 1));
  }

  std::weak_ptr<Worker> worker_{};
  std::string path_{};
};

using BatchNorm1dImpl = BatchNormImpl<1>;
using BatchNorm2dImpl = BatchNormImpl<2>;
using BatchNorm3dImpl = BatchNormImpl<3>;

/// Holds a BatchNormImpl<1>; takes the place of torch::nn::BatchNorm1d.
class BatchNorm1d : public torch::nn::ModuleHolder<BatchNorm1dImpl> {
 public:
  using torch::nn::ModuleHolder<BatchNorm1dImpl>::ModuleHolder;
  using Impl = BatchNorm1dImpl;
};

/// Holds a BatchNormImpl<2>; takes the place of torch::nn::BatchNorm2d.
/// Example: ry::nn::BatchNorm2d norm{nullptr};  // a member, and in the constructor:
/// norm = register_module("norm", ry::nn::BatchNorm2d(64));
class BatchNorm2d : public torch::nn::ModuleHolder<BatchNorm2dImpl> {
 public:
  using torch::nn::ModuleHolder<BatchNorm2dImpl>::ModuleHolder;
  using Impl = BatchNorm2dImpl;
};

/// Holds a BatchNormImpl<3>; takes the place of torch::nn::BatchNorm3d.
class BatchNorm3d : public torch::nn::ModuleHolder<BatchNorm3dImpl> {
 public:
  using torch::nn::ModuleHolder<BatchNorm3dImpl>::ModuleHolder;
  using Impl = BatchNorm3dImpl;
};

}  // namespace nn

}  // namespace railyard::inline v0_1

// ---- railyard/torch/buffer_sync.hpp
// What becomes of a model's buffers (running statistics, counters), which no gradient keeps equal. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

namespace railyard::inline v0_1 {

/// Says what happens to the buffers of a model that is trained together.
enum class BufferSync : std::uint8_t {
  leave,      ///< each rank keeps its own
  broadcast,  ///< every rank gets rank 0's
  average,    ///< floating-point buffers become the mean over the ranks, all others rank 0's
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/collectives.hpp
// Collectives on tensors. Whatever is not contiguous is made dense first and copied back afterwards. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

namespace railyard::inline v0_1 {

/// Combines a tensor of all ranks in place; equal bits on every rank afterwards. Outside of autograd.
void all_reduce(Worker& worker, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum);

/// Gives every rank the values of root's tensor, in place.
void broadcast(Worker& worker, const at::Tensor& tensor, int root = 0);

/// Returns the tensors of all ranks, stacked. Shapes: (world_size, *shape of tensor), which is equal on all ranks.
[[nodiscard]] at::Tensor all_gather(Worker& worker, const at::Tensor& tensor);

/// Returns this rank's slice of the combined tensor. Shapes: the first dimension is divided by world_size.
[[nodiscard]] at::Tensor reduce_scatter(Worker& worker, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum);

/// Sends slice r of the first dimension to rank r and returns what arrived, in order of rank.
/// Shapes: equal on all ranks; the first dimension is a multiple of world_size.
[[nodiscard]] at::Tensor all_to_all(Worker& worker, const at::Tensor& tensor);

/// Sends a tensor to one rank, which calls receive() with one of the same shape.
void send(Worker& worker, const at::Tensor& tensor, int to);

/// Fills a tensor with what rank `from` sends.
void receive(Worker& worker, const at::Tensor& tensor, int from);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/comm_hook.hpp
// How gradients are summed over the ranks where bandwidth is dear: exactly, in half precision, or by a type of one's
// own. Torch room.

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace railyard::inline v0_1 {

/// Is a piece of the gradients that is summed at once: the same piece, at the same place of the order, on all ranks.
struct GradientBucket {
  /// Contiguous, f32 or f64: this rank's gradients, each already times the rank's share of the step's samples, so that
  /// the sum over all ranks is the mean. Zeros where it has none.
  at::Tensor flat{};
  /// Views into flat, one per parameter, in the parameter's shape (with a last dimension of 2 for a complex one).
  std::span<const at::Tensor> parts{};
  /// What each part is called from step to step, however the gradients are divided into buckets.
  std::span<const std::size_t> ids{};
};

/// Is a way to sum gradients over the ranks.
///
/// Checked: it can be copied, and all_reduce(worker, bucket) leaves the sum, or what stands for it, in bucket.flat.
/// Laws:
/// 1. Afterwards flat has equal bits on all ranks.
/// 2. All ranks make the same collectives, whatever values each of them has.
/// 3. What is not finite on any rank is not finite in the sum, and is forgotten by the next step.
/// 4. It adds up to the exact sum: over many steps of one gradient the mean of the sums tends to it, or is off by the
///    rounding of the type that travels.
/// 5. A copy shares nothing with its original: workers that are threads have one each.
template <class H>
concept CommHook = std::copy_constructible<H> && requires(H& hook, Worker& worker, const GradientBucket& bucket) {
  { hook.all_reduce(worker, bucket) } -> std::same_as<void>;
};

/// Is a CommHook that remembers something from step to step, which a run that is resumed goes on with.
///
/// Law: after load_state(worker, state) of what state(worker) has returned on each rank, with pieces put together, it
/// goes on as the saved one. On another number of ranks laws 1 to 4 hold all the same.
template <class H>
concept StatefulCommHook = CommHook<H> && requires(H& hook, const H& saved, Worker& worker, const State& state) {
  { saved.state(worker) } -> std::convertible_to<State>;
  hook.load_state(worker, state);
};

/// Sums exactly: what happens without a hook, and what others are compared with.
struct ExactHook {
  /// Cost: one all-reduce of flat.
  void all_reduce(Worker& worker, const GradientBucket& bucket);
};

/// Sends bfloat16, the range of f32 with 8 bits: each value is rounded before and after the sum, which is made in f32.
/// The error is at most 2^-7 of the sum of the ranks' absolute values.
struct Bf16Hook {
  /// Cost: one all-reduce of half the bytes (f64: a quarter), and a pass to convert each way.
  void all_reduce(Worker& worker, const GradientBucket& bucket);
};

/// Sends float16, which has 11 bits and little range: the bucket is scaled by a power of two, the same on all ranks,
/// such that the largest possible sum just fits (no overflow, FAULTS D11) and small values keep their digits (D12).
/// The error is at most 2^-10 of the sum of the ranks' absolute values, and of the order of 2^-39 of world size x
/// largest value.
struct F16Hook {
  /// Cost: one all-reduce of one f64, one of half the bytes (f64: a quarter), and three passes.
  void all_reduce(Worker& worker, const GradientBucket& bucket);

  /// Returns the power of two that takes `largest` to between 2^14 and 2^15, which f16 still holds.
  [[nodiscard]] static double scale_for(double largest);
};

/// Holds any CommHook, or none, which is an exact sum. A copy is a copy of what it holds.
class AnyCommHook {
 public:
  AnyCommHook() = default;
  template <class H>
  requires(!std::same_as<std::remove_cvref_t<H>, AnyCommHook>) && CommHook<std::decay_t<H>> AnyCommHook(H&& hook)
      : held_(std::make_unique<Holder<std::decay_t<H>>>(std::forward<H>(hook))) {}
  AnyCommHook(const AnyCommHook& other);
  AnyCommHook(AnyCommHook&&) noexcept = default;
  AnyCommHook& operator=(const AnyCommHook& other);
  AnyCommHook& operator=(AnyCommHook&&) noexcept = default;
  ~AnyCommHook() = default;

  /// Says whether there is a hook.
  [[nodiscard]] explicit operator bool() const noexcept;

  /// Returns the name of the type that it holds, "none" without.
  [[nodiscard]] std::string type() const;

  void all_reduce(Worker& worker, const GradientBucket& bucket);

  /// What the hook remembers; nothing of one that is no StatefulCommHook.
  [[nodiscard]] State state(Worker& worker) const;
  void load_state(Worker& worker, const State& state);

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void all_reduce(Worker& worker, const GradientBucket& bucket) = 0;
    [[nodiscard]] virtual std::string type() const = 0;
    [[nodiscard]] virtual State state(Worker& worker) const = 0;
    virtual void load_state(Worker& worker, const State& state) = 0;
    [[nodiscard]] virtual std::unique_ptr<Base> copy() const = 0;
  };

  template <class H>
  struct Holder final : Base {
    template <class From>
    explicit Holder(From&& from) : hook(std::forward<From>(from)) {}
    void all_reduce(Worker& worker, const GradientBucket& bucket) override { hook.all_reduce(worker, bucket); }
    [[nodiscard]] std::string type() const override { return detail::demangled(typeid(H)); }
    [[nodiscard]] State state([[maybe_unused]] Worker& worker) const override {
      if constexpr (StatefulCommHook<H>) {
        return hook.state(worker);
      } else {
        return {};
      }
    }
    void load_state([[maybe_unused]] Worker& worker, [[maybe_unused]] const State& state) override {
      if constexpr (StatefulCommHook<H>) hook.load_state(worker, state);
    }
    [[nodiscard]] std::unique_ptr<Base> copy() const override { return std::make_unique<Holder>(hook); }
    H hook;
  };

  std::unique_ptr<Base> held_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/backward_depth.hpp
// How deep one backward pass lies in others. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <torch/csrc/autograd/graph_task.h>

// ---- railyard/torch/model_options.hpp
// What prepare_model() can be told. Torch room.

namespace railyard::inline v0_1 {

/// Says what happens when an averaged gradient is not finite (NaN, or an overflow), which all ranks see alike.
enum class NonFinite : std::uint8_t {
  /// Every gradient becomes undefined on all ranks, so that the optimizer leaves the step out, and the running
  /// statistics of normalising modules go back to what they were when samples() began the step. StepTimes::skipped
  /// counts such steps, and Result::warnings() tells of them.
  skip,
  stop,   ///< backward() throws on all ranks
  allow,  ///< it stays, as in a loop without Railyard
};

/// Says whether gradients are exchanged while the backward pass goes on, by a thread of its own for each worker.
enum class Overlap : std::uint8_t {
  automatic,  ///< where there is a core for that thread, and between hosts, where the network is waited for
  off,        ///< no: all are exchanged when the pass has ended
  on,         ///< wherever the backend and the model allow it
};

/// Says how the gradients of a prepared model are exchanged. Equal on all ranks.
struct ModelOptions {
  NonFinite non_finite = NonFinite::skip;
  /// From here on this worker's CPU tensors come from a pool (see Pool), which is also where the other ranks of the
  /// host see its gradients. false leaves LibTorch's allocator alone; gradients are then copied.
  bool memory_pool = true;
  /// What happens to buffers, such as BatchNorm's statistics, after each exchange of gradients. Those that a model has
  /// when it is prepared; with others than leave, a buffer that comes later is an error.
  BufferSync buffers = BufferSync::leave;
  /// How gradients are summed, such as Bf16Hook{}; exactly, if empty. With a hook they are copied into flat buckets,
  /// and optimizers are not divided among the ranks.
  AnyCommHook comm_hook{};
  /// Whether gradients are exchanged, bucket by bucket, as soon as all ranks have them. The same bits either way. It
  /// begins when one whole step has shown the order in which they come. Not used with a comm_hook, whose collectives
  /// would come among those of the user's own thread, on GPUs, by backends other than Gloo and SharedMemory (Checked
  /// ones are others), and where that step has shown a gradient that comes in several parts in one
  /// backward pass (re-entrant checkpointing of a shared parameter); where one does so later, backward() throws. A
  /// backward pass that ends by an exception ends the group.
  Overlap overlap = Overlap::automatic;
  /// The most bytes of gradients in a bucket, and in the first one, which is ready when the pass has barely begun. A
  /// larger parameter has a bucket to itself. Between hosts it is an eighth of all gradients (256 KiB at least) where
  /// that is less.
  std::size_t bucket_bytes = std::size_t{25} << 20U;
  std::size_t first_bucket_bytes = std::size_t{1} << 20U;
  /// Whether the ranks look, in each step, at a sixty-fourth of the weights (of those on the CPU, frozen ones as well)
  /// and backward() throws on all of them if they have other ones: something has then written to weights on some ranks
  /// alone. Of more than 2000 parameters they look at 64 or fewer, so that each has its turn later. What differs by
  /// less than about 1e-4 of the size of what is looked at (1e-2 in half types) is taken for rounding. false where
  /// weights are meant to differ.
  bool compare_weights = true;
};

namespace detail {

// What all ranks must have chosen alike, in words.
[[nodiscard]] std::string describe(const ModelOptions& options);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/bucket_schedule.hpp
// Divides the gradients of a pass into buckets, and follows which of them are complete. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// The most bytes of gradients in the first bucket, and in any other.
struct BucketLimits {
  std::size_t first = 0;
  std::size_t others = 0;
};

// Buckets are exchanged in one order on all ranks, so one is ready when it and all before it are complete. Until an
// order of slots is known there is one bucket, and passes tell the order.
class BucketSchedule {
 public:
  // One bucket of so many slots.
  void reset(std::size_t num_slots);

  // Cuts all slots into buckets, in an order that was observed. Those that it lacks, such as frozen parameters, go with
  // the last bucket: one of their own would cost an exchange.
  void cut(const std::vector<std::int64_t>& observed, const std::vector<GradientSlot>& slots,
           const BucketLimits& limits);

  [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  void begin_pass();

  // A gradient has arrived: it is the first of its slot in this pass, or one more.
  void arrive(std::size_t index, bool is_first);

  // How many buckets, from the first on, are complete in this pass.
  [[nodiscard]] std::size_t num_ready() const noexcept { return num_ready_; }
  // Since the last reset: whether a slot's gradient has come in several parts in one pass, and the order of the slots.
  [[nodiscard]] bool has_repeats() const noexcept { return has_repeats_; }
  [[nodiscard]] const std::vector<std::int64_t>& observed() const noexcept { return observed_; }

 private:
  void put(std::size_t index);

  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // by slot
  std::vector<std::int64_t> observed_;
  std::vector<bool> is_observed_;         // by slot
  std::vector<std::size_t> num_missing_;  // slots that have not arrived in this pass, by bucket
  std::size_t num_ready_ = 0;
  bool has_repeats_ = false;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/pool_allocator.hpp
// LibTorch's allocator for CPU tensors, in front of the one that was there before. Torch room.

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace railyard::inline v0_1 {

namespace detail {

class PoolBinding;

// Lets the calling thread take its CPU tensors from a heap until it ends. Made and ended by one thread; of several the
// youngest serves, in whichever order they end.
class PoolBinding {
 public:
  explicit PoolBinding(std::shared_ptr<Heap> heap);
  PoolBinding(const PoolBinding&) = delete;
  PoolBinding& operator=(const PoolBinding&) = delete;
  ~PoolBinding();

  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept { return heap_; }

 private:
  std::shared_ptr<Heap> heap_;
  PoolBinding* before_ = nullptr;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/communication_thread.hpp
// The thread of a worker that exchanges gradients while its backward pass goes on. Torch room.

#include <c10/core/GradMode.h>

namespace railyard::inline v0_1 {

namespace detail {

// Calls one function as often as it is told, until a call throws. Its owner makes sure that calls end.
class CommunicationThread {
 public:
  // heap: where tensors come from that the function makes; may be null.
  CommunicationThread(std::function<void()> function, std::shared_ptr<Heap> heap);
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;
  ~CommunicationThread();

  // Asks for more calls. After one has failed there are none: settle() says so.
  void ask(std::size_t num_calls);

  [[nodiscard]] bool has_failed() const;

  // Waits until all calls that were asked for have been made, and throws what one of them has thrown.
  void settle();

 private:
  void run();

  std::function<void()> function_;
  std::shared_ptr<Heap> heap_;
  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  std::size_t num_asked_ = 0;  // calls that have not been made
  std::exception_ptr error_{};
  bool is_ending_ = false;
  std::thread thread_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/gradient_refusals.hpp
// What is refused because gradients would go wrong without a word. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

[[noreturn]] void refuse_newcomer(const Worker& worker, const std::string& name);

[[noreturn]] void refuse_new_buffer(const Worker& worker, const std::string& name);

[[noreturn]] void refuse_unfinished(const Worker& worker, std::uint64_t step, const CollectiveError& error);

void warn_of_skipped(Worker& worker, std::uint64_t skipped, std::uint64_t steps);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/watched_models.hpp
// The prepared models of a worker: their buffers, and whether they still are what was prepared. Torch room.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <unordered_map>

namespace railyard::inline v0_1 {

namespace detail {

// The same models in the same order on all ranks: one that is gone on some of them stays until it is so on all.
class WatchedModels {
 public:
  // Takes a model in, or one that is known already anew.
  void add(const torch::nn::Module& module);

  [[nodiscard]] const std::vector<std::weak_ptr<const torch::nn::Module>>& models() const noexcept { return models_; }
  // Of all models, one after another.
  [[nodiscard]] const std::vector<at::Tensor>& buffers() const noexcept { return buffers_; }

  // '1' for each model that is gone on this rank, '0' for others.
  [[nodiscard]] std::string ended() const;
  // Forgets those that are marked so on all ranks.
  void forget(const std::string& ended);

  // Throws: ConfigError if a model has a parameter that is not in `known`, or, where buffers are kept equal, a buffer
  // that it did not have when it was prepared.
  template <class Index>
  void check(const Worker& worker, const std::unordered_map<const void*, Index>& known, bool checks_buffers) const {
    for (const auto& weak : models_) {
      const auto module = weak.lock();
      if (!module || knows_all_of(*module, known, checks_buffers)) continue;
      for (const auto& item : module->named_parameters()) {
        if (!known.contains(item.value().unsafeGetTensorImpl())) refuse_newcomer(worker, item.key());
      }
      for (const auto& item : module->named_buffers()) {
        if (!known_buffers_.contains(item.value().unsafeGetTensorImpl())) refuse_new_buffer(worker, item.key());
      }
    }
  }

 private:
  // Walks by itself and looks at the members, for named_parameters() would copy them with their names in every step.
  template <class Known>
  [[nodiscard]] bool knows_all_of(const torch::nn::Module& module, const Known& known, bool checks_buffers) const {
    struct Access : torch::nn::Module {
      static const auto& parameters_of(const torch::nn::Module& other) { return other.*(&Access::parameters_); }
    };
    for (const auto& item : Access::parameters_of(module)) {
      if (item.value().defined() && !known.contains(item.value().unsafeGetTensorImpl())) return false;
    }
    if (checks_buffers) {
      for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
        if (!known_buffers_.contains(buffer.unsafeGetTensorImpl())) return false;
      }
    }
    const auto children = module.children();
    return std::all_of(children.begin(), children.end(),
                       [&](const auto& child) { return knows_all_of(*child, known, checks_buffers); });
  }

  void erase(std::size_t index);

  void note_buffers();

  std::vector<std::weak_ptr<const torch::nn::Module>> models_;
  std::vector<std::vector<at::Tensor>> buffers_of_;  // by model
  std::vector<at::Tensor> buffers_;
  std::unordered_set<const void*> known_buffers_;  // which buffers_ keeps alive
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/ended_slots.hpp
// Forgets the parameters of models that are gone. Torch room.

// ---- railyard/torch/detail/weight_watch.hpp
// Finds weights that are no longer the same on all ranks, by a look at a part of them in each step. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace railyard::inline v0_1 {

namespace detail {

// Averaged gradients are equal on all ranks, bit for bit, and so weights stay equal that nothing but optimizers of
// equal settings writes to. Equal bits are not asked for: processors of two kinds, and loops that are cut for other
// numbers of threads, may round an update otherwise, and such differences grow only as the square root of the steps.
// So ranks compare one number that rounding hardly moves, made of each weight's size and of its projection on fixed
// pseudo-random numbers: any change of direction moves that by about as much as it is of the size. A sum would not do:
// of what is drawn around zero it is nearly nothing, whatever is done to the elements.
//
// In which turn is looked at what is a function of the step, and what is told rides on the step's first exchange.
// Weights that an optimizer keeps once per host are looked at as all others: hosts may part. Buffers are not: those
// that are to be equal are made so after each exchange.
class WeightWatch {
 public:
  // A step costs some operations for each weight and sample, so to look at one of so many costs far below 1% of it.
  // Thousands of small weights take more turns.
  static constexpr std::int64_t most_turns = 64;
  // More of them would add up to more rounding, and cost more to gather.
  static constexpr std::size_t most_parts = 64;
  // Roundings of single precision move the number by some 1e-7 at first and 1e-5 after very many steps. One step of
  // Adam with a rate of 1e-5 on one rank alone moves it by 5e-4, where weights are of the size 0.02.
  static constexpr double tolerance = 1e-4;

  // Whether ranks have seen other weights. Each has added the cosine and the sine of its number to the sums: they are
  // the longest together when all numbers are the same. Squares of the numbers themselves would cancel among many
  // ranks. The difference of one rank to the others counts as much among many as among two.
  [[nodiscard]] static bool are_apart(double cosines, double sines, std::size_t num_ranks) noexcept;

  // Divides the weights of all models among turns. What was seen of others counts no more.
  void reset(const std::vector<GradientSlot>& slots);

  // Looks at the weights whose turn it is, before anything is done with them in the step.
  void look(const std::vector<GradientSlot>& slots, std::uint64_t step);

  // What this rank has seen in this step.
  [[nodiscard]] double number() const noexcept { return number_; }

  // All ranks call it when they have seen other weights. Throws: Error, so that a run with failures left goes on from
  // weights that were equal, on all ranks.
  [[noreturn]] void refuse(Worker& worker, const std::vector<GradientSlot>& slots, std::uint64_t step) const;

 private:
  static constexpr std::int64_t least_elements = 256;

  // Elements begin to end of a slot's parameter, as real numbers.
  struct Part {
    std::size_t index = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  // What is seen of a part.
  struct Sight {
    double projection = 0;
    double squares = 0;
    double sum = 0;
    double count = 1;
    double digits = 1;  // a half type's last digit is worth more

    [[nodiscard]] double size() const;

    // Moves by the relative difference of what it is made of; of what vanishes, which does so otherwise with another
    // rounding, by the difference to `least`. It is 0 where all elements are.
    [[nodiscard]] double number() const;
  };

  struct Difference {
    double distance = 0;
    std::size_t rank = 0;
    std::size_t other = 0;
  };

  // The rank whose number is farthest from that of the rank which has most of the others near it.
  [[nodiscard]] static Difference difference_of(const std::vector<double>& numbers);

  // Elements of a slot that ranks can compare at next to no cost.
  [[nodiscard]] static std::int64_t count_of(const GradientSlot& slot);

  [[nodiscard]] Sight look_at(const at::Tensor& numbers, const Part& part) const;

  // Source: G. Marsaglia, Xorshift RNGs, 2003. Shifts alone: this is done for each element.
  static void advance(std::uint32_t& state) noexcept;

  // A pseudo-random number that is never 0.
  [[nodiscard]] static std::uint32_t hash_of(std::uint32_t number) noexcept;

  // What an element is multiplied by: between 1 and 2, or between -2 and -1, so that two elements that change places
  // are told apart as well.
  [[nodiscard]] static double factor_of(std::uint32_t state) noexcept;

  template <class T>
  [[nodiscard]] Sight look_at(const at::Tensor& numbers, const Part& part) const {
    constexpr std::size_t num_lanes = 4;  // which do not wait for each other
    std::array<double, num_lanes> projections{};
    std::array<double, num_lanes> squares{};
    std::array<double, num_lanes> sums{};
    std::array<std::uint32_t, num_lanes> states{};
    const std::uint32_t seed = hash_of(hash_of(static_cast<std::uint32_t>(part.index)) + round_);
    for (std::uint32_t lane = 0; lane < num_lanes; ++lane) states[lane] = hash_of(seed + lane);
    const T* data = numbers.template data_ptr<T>();
    const auto add = [&](std::size_t lane, const T& element) {
      const auto value = static_cast<double>(element);
      advance(states[lane]);
      projections[lane] += value * factor_of(states[lane]);
      squares[lane] += value * value;
      sums[lane] += value;
    };
    std::int64_t at = part.begin;
    if (numbers.is_non_overlapping_and_dense()) {  // in the order of memory, which is the same on all ranks
      for (; at + static_cast<std::int64_t>(num_lanes) <= part.end; at += num_lanes) {
        for (std::size_t lane = 0; lane < num_lanes; ++lane) add(lane, data[at + static_cast<std::int64_t>(lane)]);
      }
      for (; at < part.end; ++at) add(0, data[at]);
    } else {
      for (; at < part.end; ++at) add(0, data[offset_of(numbers, at, numbers.dim())]);
    }
    const auto total = [](const std::array<double, num_lanes>& of) { return (of[0] + of[1]) + (of[2] + of[3]); };
    return {.projection = total(projections),
            .squares = total(squares),
            .sum = total(sums),
            .count = static_cast<double>(part.end - part.begin),
            .digits = sizeof(T) == 2 ? 1.0 / 64 : 1.0};
  }

  std::vector<std::vector<Part>> turns_;
  std::size_t turn_ = 0;
  std::uint32_t round_ = 0;    // a change that one projection hardly shows is shown by that of another round
  std::vector<Sight> seen_;  // by part of this turn
  double number_ = 0;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/pass_numbers.hpp
// What ranks that do not see each other's memory learn of a backward pass, by sums. Torch room.

#include <tuple>

namespace railyard::inline v0_1 {

namespace detail {

// Numbers that each rank adds its own to; their sums over all ranks are the summary of a pass.
class PassNumbers {
 public:
  explicit PassNumbers(int world_size);

  [[nodiscard]] std::size_t count() const noexcept { return waits + world_size_; }

  // Adds what one rank says.
  void add(const PassHeader& header, int rank, std::span<double> numbers) const;

  // Without the headers of the ranks.
  [[nodiscard]] PassSummary summary_of(std::span<const double> sums) const;

  // Whether all ranks are at the same place: the sum of squares over them is least when all are equal.
  [[nodiscard]] bool are_together(std::span<const double> sums) const;

  // Where ranks are not together: tells where each of them is. own: headers of ranks from the first one on, which
  // nobody else tells. sum: adds up the numbers of all.
  template <class Sum>
  [[nodiscard]] std::vector<PassHeader> gather(std::span<const PassHeader> own, int first, const Sum& sum) const {
    std::vector<std::int64_t> all(std::tuple_size_v<Places> * world_size_);
    auto to = all.begin() + static_cast<std::ptrdiff_t>(std::tuple_size_v<Places>) * first;
    for (const PassHeader& header : own) {
      const Places at = places_of(header);
      to = std::copy(at.begin(), at.end(), to);
    }
    sum(all);
    std::vector<PassHeader> headers;
    for (std::size_t at = 0; at < all.size(); at += std::tuple_size_v<Places>) {
      const auto place = [&](std::size_t index) { return static_cast<std::uint64_t>(all[at + index]); };
      headers.push_back({.num_slots = static_cast<std::uint32_t>(place(5)),
                         .step = place(1),
                         .pass = place(2),
                         .loop = place(0),
                         .updates = place(3),
                         .weights = place(4),
                         .data = place(6)});
    }
    return headers;
  }

  // Returns what all ranks say. own: texts of ranks from the first one on, which nobody else tells.
  template <class Sum>
  [[nodiscard]] std::vector<std::string> gather_texts(std::span<const std::string> own, int first,
                                                      const Sum& sum) const {
    std::vector<std::int64_t> sizes(world_size_);
    const auto at = static_cast<std::size_t>(first);
    for (std::size_t one = 0; one < own.size(); ++one) sizes[at + one] = static_cast<std::int64_t>(own[one].size());
    sum(sizes);
    std::vector<std::int64_t> characters(
        static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
    auto to = characters.begin() + std::accumulate(sizes.begin(), sizes.begin() + first, std::ptrdiff_t{0});
    for (const std::string& text : own) to = std::copy(text.begin(), text.end(), to);
    sum(characters);
    std::vector<std::string> texts;
    auto from = characters.begin();
    for (const std::int64_t size : sizes) {
      std::string& text = texts.emplace_back();
      for (std::int64_t count = 0; count < size; ++count) text += static_cast<char>(*from++);
    }
    return texts;
  }

 private:
  // What is the same on all ranks that are together.
  using Places = std::array<std::uint64_t, 7>;
  [[nodiscard]] static Places places_of(const PassHeader& header) noexcept;

  static constexpr std::size_t wishes = 6;
  static constexpr std::size_t places = wishes + Wishes::count;
  static constexpr std::size_t waits = places + 2 * std::tuple_size_v<Places>;

  std::size_t world_size_;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/step_clock.hpp
// Divides the time of a training loop into what it is spent on. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// Is told when the loop goes from one thing to the next. Used by the worker's own thread.
class StepClock {
 public:
  using Clock = Deadline::Clock;
  enum class Part : std::uint8_t { compute, data, wait, communication, optimizer };

  // Ends what was going on, whose time it adds, and begins a part.
  void enter(Part part) noexcept;
  // Begins or ends waiting for data, which counts from the first exchange on as all does.
  void enter_data(bool begins) noexcept;
  void count_step(std::uint64_t bytes) noexcept;
  void count_skipped() noexcept;
  [[nodiscard]] std::uint64_t skipped() const noexcept { return counts_.skipped; }

  // What this rank has waited in all: whoever waits least is waited for.
  [[nodiscard]] double waited() const noexcept;
  void set_waits_of_all(std::vector<double> waits);

  // Since the first exchange.
  [[nodiscard]] StepTimes total(int world_size);

  // Since the last call, or the first exchange.
  [[nodiscard]] StepTimes take(int world_size);

 private:
  [[nodiscard]] double spent_on(Part part) const noexcept;

  bool is_running_ = false;
  Part part_ = Part::compute;
  Clock::time_point since_{};
  std::array<double, 5> spent_{};
  StepTimes counts_{};  // steps, those left out, and bytes alone
  StepTimes taken_{};
  std::vector<double> waits_;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/flat_reduction.hpp
// Averages gradients by the collectives of any backend, in flat buffers. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

namespace railyard::inline v0_1 {

namespace detail {

// For each bucket one small all-reduce says what the ranks have; then all gradients that somebody gives are copied into
// one flat tensor per dtype and device, summed, and copied back. With the first bucket the ranks also learn of each
// other's samples.
//
// Used by one thread at a time.
class FlatReduction {
 public:
  explicit FlatReduction(Worker& worker);

  // Sums from here on beside the worker's operations.
  void use_side(SideLine& side) noexcept;

  // See HostReduction.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, AnyCommHook& hook);

  // Tells what this rank has of the next bucket, and learns what all have.
  [[nodiscard]] BucketUse open(const Bucket& bucket, StepClock& clock);

  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

  // See HostReduction::average(); the result is the same on all ranks.
  [[nodiscard]] bool average(const OpenSlots& slots);

  // Returns what all ranks say, by sums alone, for a side line has no other operation.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine);

  // See HostReduction.
  [[nodiscard]] std::uint64_t take_bytes() noexcept;

  // Ends every wait beside the worker's operations, from any thread.
  void abort(std::string_view reason) noexcept;

 private:
  [[nodiscard]] bool has_samples() const noexcept { return header_.samples > 0; }

  void all_reduce(const Buffer& data);

  void summarise(const std::vector<double>& sums);

  [[nodiscard]] static bool are_alike(const GradientSlot& one, const GradientSlot& other);

  [[nodiscard]] bool average_alike(const OpenSlots& slots);

  // Calls visit with each parameter's part of the flat tensor, in the parameter's shape.
  template <class Visit>
  static void visit_parts(const OpenSlots& slots, const at::Tensor& flat, Visit visit) {
    std::int64_t begin = 0;
    for (const auto& one : slots) {
      const std::int64_t count = one.second->real_count();
      const auto shape = as_real(one.second->parameter.detach()).sizes().vec();
      visit(flat.narrow(0, begin, count).view(shape), *one.second);
      begin += count;
    }
  }

  Worker* worker_;
  std::uint64_t num_bytes_ = 0;
  SideLine* side_ = nullptr;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  AnyCommHook* hook_ = nullptr;
  PassHeader header_{};
  PassSummary summary_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/host_sums.hpp
// Adds up the gradients that the ranks of a host have shown each other, and those of several hosts. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

namespace railyard::inline v0_1 {

namespace detail {

// What a rank shows of one gradient.
struct ShownGradient {
  std::uint64_t place = 0;
  std::uint64_t late_place = 0;  // where there was none in the first step, which others may still be looking at
  std::int64_t count = 0;        // of the parameter, as real numbers
  std::int32_t type = 0;         // and its at::ScalarType
  std::uint32_t used = 0;
  std::uint32_t gives = 0;
  std::uint32_t weighted = 0;  // with the samples behind it
};

// What the ranks of a host have shown, by their numbers on it.
struct ShownGradients {
  std::vector<PassHeader> headers{};
  std::vector<const ShownGradient*> tables{};  // each by slot
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/host_reduction.hpp
// Averages gradients where they lie, in memory that all ranks of a host see. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

namespace railyard::inline v0_1 {

namespace detail {

// The exchange of one pass takes a step for each bucket, in which all ranks learn where its gradients lie; then each
// rank adds its own part of all of them, in the order of ranks, and writes the mean to every rank. One more step tells
// that all have. With the first bucket the ranks also learn of each other's samples. Where a rank has no gradient for
// what others have used, one step more gives it one.
//
// Where there are several hosts that is what the ranks of each of them do, and after the step of a bucket a few numbers
// go between the hosts, by which all ranks learn what all have; then each rank's own part does.
//
// Used by one thread at a time.
class HostReduction {
 public:
  HostReduction(Worker& worker, HostMemory& memory);
  HostReduction(const HostReduction&) = delete;
  HostReduction& operator=(const HostReduction&) = delete;
  ~HostReduction();

  // Takes its steps from here on beside the backend's operations.
  void use_side(const Deadline& deadline);

  // Begins a pass over slots that outlive it, before anybody is told.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, std::size_t num_buckets);

  // Shows this rank's gradients of the next bucket and waits for all ranks'.
  [[nodiscard]] BucketUse open(const Bucket& bucket, StepClock& clock);

  // Throws on all ranks, which share the memory that they write to: ConfigError if a parameter of a bucket that is open
  // is another one on one of them.
  void check_alike(const Bucket& bucket) const;

  // What the ranks have told with the first bucket.
  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

  // Leaves the mean in the gradients of the given slots, which somebody gives, or beside them until close(). Returns
  // whether all results of this rank's part are finite.
  [[nodiscard]] bool average(const OpenSlots& open, StepClock& clock);

  // Ends the pass: all that was open has its mean. Returns whether all ranks have found their results finite: those of
  // one host, which have all results among them, as those of the others have.
  [[nodiscard]] bool close(const OpenSlots& open, bool is_finite, StepClock& clock);

  // Bytes of gradients that this rank has read and written since the last call.
  [[nodiscard]] std::uint64_t take_bytes() noexcept;

  // Returns what all ranks say in a step of its own, after the first one.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine);

  // Ends a pass of which all ranks know that nothing more comes.
  void cancel();

  // Ends every wait of this rank, from any thread.
  void abort(std::string_view reason) noexcept;
  // After that: returns once nobody is at this rank's gradients.
  void withdraw() noexcept;

 private:
  void take_step(std::span<const std::byte> record, StepClock& clock);

  // Of a parameter on one rank.
  struct Shape {
    std::int64_t count = -1;  // -1: the rank has not so many parameters
    std::int64_t type = 0;

    friend bool operator==(const Shape&, const Shape&) noexcept = default;
  };
  struct Record {
    PassHeader header{};
    std::uint64_t table = 0;
  };

  void reserve_table(std::size_t size);

  [[nodiscard]] void* allocate(std::size_t size_bytes) const;

  void summarise();

  // The number that this host's first rank has in the group.
  [[nodiscard]] int first_rank() const noexcept;

  // Every rank tells the same of its host, for all ranks of it: a line between hosts has all of what they tell.
  [[nodiscard]] BucketUse use_on_hosts(const Bucket& bucket, bool is_first, StepClock& clock);

  void summarise_hosts(const PassNumbers& told, std::span<const double> numbers);

  // rank: among those of this host.
  [[nodiscard]] Shape shape_in(std::size_t rank, std::size_t index) const;
  // Those of this host's first rank stand for all of its ranks, which are compared where they see each other.
  [[nodiscard]] double digest_of_shapes(const Bucket& bucket) const;
  [[nodiscard]] bool are_shapes_alike(const Bucket& bucket) const;
  void gather_shapes(const Bucket& bucket);

  [[nodiscard]] BucketUse use_of(const Bucket& bucket) const;

  // Whether the other ranks of the host can read and write the gradient itself, as elements of the sum in the
  // parameter's order.
  [[nodiscard]] bool is_in_place(GradientSlot& slot) const;

  // Makes sure that the others see memory of this slot, with the gradient in it if it counts. Returns the place.
  [[nodiscard]] std::uint64_t show(GradientSlot& slot, bool gives);

  [[nodiscard]] at::Tensor make_stage(GradientSlot& slot) const;

  [[nodiscard]] bool lacks_place(const OpenSlots& open) const;

  Worker* worker_;
  HostMemory* memory_;
  ShownGradient* table_ = nullptr;  // what this rank shows of its gradients, by slot
  std::size_t table_size_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  PassHeader header_{};
  std::size_t num_buckets_ = 0;
  PassSummary summary_{};
  ShownGradients shown_{};
  std::vector<Shape> shapes_;  // on all ranks, of a bucket of which one has others
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/optimizer_fields.hpp
// The options and the state of LibTorch's optimizers by name, to be read and written alike. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

namespace railyard::inline v0_1 {

namespace detail {

// For each optimizer: its types, and what visits each field of them, const or not, as visit(name, field).
template <class X>
struct OptimizerFields {};

template <>
struct OptimizerFields<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using ParamState = torch::optim::SGDParamState;
  static constexpr std::string_view name = "SGD";
  static constexpr bool is_elementwise = true;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

// Adam and AdamW differ in nothing but their names here.
template <class O, class S>
struct AdamFields {
  using Options = O;
  using ParamState = S;
  static constexpr bool is_elementwise = true;

  template <class Any, class Visit>
  static void options(Any& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("beta1", std::get<0>(options.betas()));
    visit("beta2", std::get<1>(options.betas()));
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <class Any, class Visit>
  static void state(Any& state, const Visit& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};
template <>
struct OptimizerFields<torch::optim::Adam> : AdamFields<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr std::string_view name = "Adam";
};
template <>
struct OptimizerFields<torch::optim::AdamW> : AdamFields<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr std::string_view name = "AdamW";
};

template <>
struct OptimizerFields<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using ParamState = torch::optim::AdagradParamState;
  static constexpr std::string_view name = "Adagrad";
  static constexpr bool is_elementwise = true;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

template <>
struct OptimizerFields<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using ParamState = torch::optim::RMSpropParamState;
  static constexpr std::string_view name = "RMSprop";
  static constexpr bool is_elementwise = true;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

// Its one state stands with the first parameter and is about all of them. Not saved: `al`, which each step fills anew.
template <>
struct OptimizerFields<torch::optim::LBFGS> {
  using Options = torch::optim::LBFGSOptions;
  using ParamState = torch::optim::LBFGSParamState;
  static constexpr std::string_view name = "LBFGS";
  static constexpr bool is_elementwise = false;

  template <class O, class Visit>
  static void options(O& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("max_iter", options.max_iter());
    visit("max_eval", options.max_eval());
    visit("tolerance_grad", options.tolerance_grad());
    visit("tolerance_change", options.tolerance_change());
    visit("history_size", options.history_size());
    visit("line_search_fn", options.line_search_fn());
  }
  template <class S, class Visit>
  static void state(S& state, const Visit& visit) {
    visit("func_evals", state.func_evals());
    visit("n_iter", state.n_iter());
    visit("t", state.t());
    visit("prev_loss", state.prev_loss());
    visit("d", state.d());
    visit("H_diag", state.H_diag());
    visit("prev_flat_grad", state.prev_flat_grad());
    visit("old_dirs", state.old_dirs());
    visit("old_stps", state.old_stps());
    visit("ro", state.ro());
  }
};

template <class X>
concept KnownOptimizer = requires {
  typename OptimizerFields<X>::Options;
};
// Updates each element by itself, so that pieces of a tensor can be updated apart.
template <class X>
concept ElementwiseOptimizer = KnownOptimizer<X> && OptimizerFields<X>::is_elementwise;

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/update_digest.hpp
// Tells whether ranks update their weights alike, and by which settings. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// What an optimizer's updates go by: the options of its groups, as numbers, one group after another.
struct UpdateSettings {
  std::vector<double> values{};
  std::string (*describe)(const std::vector<double>&) = nullptr;  // with their names, one a line

  template <ElementwiseOptimizer X>
  [[nodiscard]] static UpdateSettings of_none() {
    return {.describe = &describe_as<X>};
  }
  // Adds those of one more group.
  template <ElementwiseOptimizer X>
  void add(const torch::optim::OptimizerOptions& options) {
    OptimizerFields<X>::options(static_cast<const typename OptimizerFields<X>::Options&>(options),
                                [this](std::string_view, auto field) { values.push_back(static_cast<double>(field)); });
  }
  template <ElementwiseOptimizer X>
  [[nodiscard]] static UpdateSettings of(const X& optimizer) {
    UpdateSettings settings = of_none<X>();
    for (const auto& group : optimizer.param_groups()) settings.add<X>(group.options());
    return settings;
  }

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::uint64_t hash() const;
  // The same where only the last bits differ, as those of what processors of two kinds have computed may.
  [[nodiscard]] std::uint64_t rounded_hash() const;

 private:
  template <class X>
  [[nodiscard]] static std::string describe_as(const std::vector<double>& values) {
    std::string text = compose("optimizer: {}\n", OptimizerFields<X>::name);
    const typename OptimizerFields<X>::Options names(1);
    std::size_t at = 0;
    for (std::size_t group = 0; at < values.size(); ++group) {
      OptimizerFields<X>::options(names, [&](std::string_view name, auto) {
        text += compose("{} of group {}: {}\n", name, group, values[at++]);
      });
    }
    return text;
  }
};

// A short digest of a worker's updates so far, where it has weights of its own, which every backward pass compares:
// what one comparison misses, the next ones find.
struct UpdateDigest {
  static constexpr std::string_view extension_name = "torch.updates";

  std::uint64_t value = 0;
  std::uint64_t num_updates = 0;
  UpdateSettings last{};
  std::optional<double> max_norm{};  // to which gradients were clipped last

  void add(UpdateSettings settings);
  void add_clipping(double norm);

  // One a line.
  [[nodiscard]] std::string text() const;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/pass_exchange.hpp
// Exchanges the gradients of one backward pass, bucket after bucket. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// What is told of one pass before its first bucket.
struct PassTerms {
  PassHeader header{};
  bool checks_finite = true;  // somebody wants to know
  bool uses_host = false;     // the ranks of a host sum gradients where they lie
};

// Used by one thread at a time: a worker's own, or its communication thread.
class PassExchange {
 public:
  explicit PassExchange(Worker& worker);

  // Whether the ranks of each host see each other's memory.
  [[nodiscard]] bool has_host() const noexcept;

  // Exchanges from here on beside the operations of the worker, so that another thread may do it. All ranks call it.
  // Returns whether the backend can.
  [[nodiscard]] bool move_aside(bool uses_host);

  // Begins a pass; all that is given outlives it.
  void begin(std::vector<GradientSlot>& slots, const std::vector<Bucket>& buckets, const PassTerms& terms,
             AnyCommHook& hook);

  [[nodiscard]] bool is_under_way() const noexcept { return is_under_way_; }

  // Exchanges the next bucket.
  void take_bucket(StepClock& clock);

  // Exchanges what is left and ends the pass. Returns whether all averages are finite.
  [[nodiscard]] bool finish(StepClock& clock);

  // What all ranks have told of the pass.
  [[nodiscard]] const PassSummary& summary() const noexcept;
  // The slots that have been averaged.
  [[nodiscard]] const OpenSlots& open() const noexcept { return open_; }

  // Ends every wait of this rank in a pass that moved aside, from any thread.
  void abort(std::string_view reason) noexcept;
  // After that, by the thread that exchanges: returns once nobody is at this rank's gradients.
  void withdraw() noexcept;

 private:
  // A single worker's gradients are what they are, but for the weights of micro-batches.
  [[nodiscard]] bool finish_alone(const OpenSlots& open) const;

  // What fails here does so on all ranks alike; nobody may go on while another still reads what it has shown.
  template <class Check>
  void together(const Check& check) {
    try {
      check();
    } catch (...) {
      is_under_way_ = false;
      if (terms_.uses_host) host_->cancel();
      throw;
    }
  }

  void check();

  void check_silence() const;

  void check_samples() const;

  // Ranks that are at different steps would average what does not belong together.
  void check_together();

  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine);

  // Of the last ones; there may be none in these.
  [[nodiscard]] std::string difference_of_updates();

  Worker* worker_;
  FlatReduction flat_;
  std::optional<HostReduction> host_;  // where the ranks of a host share memory
  std::vector<GradientSlot>* slots_ = nullptr;
  const std::vector<Bucket>* buckets_ = nullptr;
  PassTerms terms_{};
  std::size_t num_taken_ = 0;
  OpenSlots open_{};
  bool is_finite_ = true;
  bool is_under_way_ = false;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/replaced_weights.hpp
// Finds ranks whose weights differ since the memory of some was replaced. Torch room.

// ---- railyard/torch/detail/step_window.hpp
// Where a worker is in the micro-batches of a step. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// The micro-batches of one step.
struct StepWindow {
  std::uint64_t step = 0;         // counts from 1; 0 before the first
  std::uint64_t samples = 0;      // of this rank so far
  std::uint64_t micro_batch = 0;  // samples of the one under way
  bool is_accumulating = false;   // it has several: gradients are weighted before they are accumulated
  bool is_last = true;            // the step's last one has begun
  std::uint64_t num_passes = 0;   // that have been exchanged
  bool is_refused = false;        // one of them was not finite
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/worker_pool.hpp
// Gives a worker its pool of memory for tensors. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// Lets the worker's thread take its tensors from memory that the other ranks see, if the backend has such.
void bind_pool(Worker& worker);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/gradients.hpp
// Averages gradients over the global batch at the end of every backward pass. Torch room.

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <unordered_map>

namespace railyard::inline v0_1 {

namespace detail {

// The gradients of all prepared models of one worker.
//
// The accumulator of each parameter has a hook. The first hook of a backward pass queues one callback at the pass's
// end, and that callback exchanges: first the number of samples behind the pass and who has used which parameter, then
// the gradients that anybody has used. With overlap, hooks hand each bucket of gradients that is complete to a thread
// which exchanges them meanwhile, and the callback does the rest.
//
// What is averaged is all of .grad, not what the pass has added. That is the same: what was there before is equal on
// all ranks, and the weights sum to one. So several passes per step add up as they do on a single worker.
//
// Where a step has several micro-batches, each gradient is multiplied with its micro-batch's samples before it is
// accumulated, and only the last micro-batch's pass exchanges.
class GradientExchange {
 public:
  explicit GradientExchange(Worker& worker);
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Forgets models that are gone. All ranks call it before they take another in.
  void drop_ended_models();

  // Takes a model's parameter in, which has rank 0's values. One that is known already, such as a tied one, is hooked
  // anew if need be.
  static void add(const std::shared_ptr<GradientExchange>& self, const std::string& name, const at::Tensor& parameter);

  // The slot of a parameter, nullptr if it is of no prepared model.
  [[nodiscard]] GradientSlot* find(const at::Tensor& parameter);

  // This rank's piece of a parameter whose weights ranks share, which the parameter's hook knows; nullptr of any other.
  [[nodiscard]] static std::shared_ptr<GradientPiece> piece_of(const at::Tensor& parameter);

  // Throws: ConfigError if micro-batches of a step that is not exchanged have added to the parameter's gradient.
  void check_complete(const at::Tensor& parameter, std::string_view call);

  // Watches a model whose parameters have been added, for as long as it lives.
  void watch(const torch::nn::Module& module);

  [[nodiscard]] StepClock& clock() noexcept { return clock_; }

  // Whether an optimizer may share the weights: the ranks of a host see each other's memory, and gradients are summed
  // there.
  [[nodiscard]] bool can_share_weights() const;

  [[nodiscard]] AnyCommHook& comm_hook() noexcept { return options_.comm_hook; }

  // Takes over what prepare_model() was told, after watch(): the same on all ranks, and for all models. A model that is
  // the only one may get others when it is prepared again.
  void set_options(const ModelOptions& options);

  // Tells the user, at the end of training, of steps that have left no trace.
  void warn_of_skipped() const;

  // Ends what goes on beside the worker's own thread.
  void end() noexcept;

  // Forgets the micro-batches of a step that will not be completed.
  void abandon_step();

  // Begins a micro-batch, and a step if the one before was its step's last. Makes sure that the backward pass will
  // reach every parameter of every model. .to(dtype or device) takes a parameter's hook away. Before the first step it
  // is hooked anew; later nobody can tell what has gone by.
  static void begin(const std::shared_ptr<GradientExchange>& self, std::uint64_t samples, bool completes_step);

 private:
  // Lives as long as a pass's callback is queued. LibTorch queues it for the innermost pass, such as the one in which
  // checkpointing computes a part of another. When that has gone this one queues its successor, for the pass around it.
  class Pass {
   public:
    explicit Pass(std::shared_ptr<GradientExchange> exchange);
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass();

    void end();

   private:
    std::shared_ptr<GradientExchange> exchange_;
    bool is_inner_ = false;
    bool is_over_ = false;
  };

  // How far gradients are exchanged while a pass goes on.
  enum class Overlapping : std::uint8_t {
    undecided,  // until a step has shown in which order they come
    never,
    active,
  };

  // Holds the exchange weakly, for a model may outlive its worker; its gradients are then nobody else's business.
  class Hook final : public torch::autograd::FunctionPostHook {
   public:
    Hook(std::weak_ptr<GradientExchange> exchange, const GradientSlot& slot);

    [[nodiscard]] std::shared_ptr<GradientExchange> exchange() const;

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& inputs) override;

   private:
    std::weak_ptr<GradientExchange> exchange_;
    const void* parameter_;  // of the accumulator that has the hook, which keeps it alive
  };

  // Weights what a micro-batch adds to the gradient.
  class Weight final : public torch::autograd::FunctionPreHook {
   public:
    Weight(std::weak_ptr<GradientExchange> exchange, const GradientSlot& slot);

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override;

   private:
    std::weak_ptr<GradientExchange> exchange_;
    const void* parameter_;  // of the accumulator that has the hook, which keeps it alive
  };

  [[nodiscard]] static bool has_lost_hook(const GradientSlot& slot);

  static void hook(const std::shared_ptr<GradientExchange>& self, std::size_t index);

  // Runs on the thread of the parameter's device.
  static void arrived(const std::shared_ptr<GradientExchange>& self, std::size_t index, const at::Tensor& added);

  static void begin_micro_batch(const std::shared_ptr<GradientExchange>& self);

  static void queue_end(const std::shared_ptr<GradientExchange>& self);

  // That of a micro-batch is changed by none but the next one, and by the communication thread when it has arrived.
  void check_gradient(const GradientSlot& slot) const;

  void note_arrival(GradientSlot& slot, std::size_t index, const at::Tensor& added);

  // Lets the communication thread exchange what is complete. The last bucket is so when the pass is about to end, and
  // is left to this thread.
  void hand_over();

  // Waits for what was handed over, and throws what has become of it.
  void settle();

  void abandon_pass() noexcept;

  // Lets nothing of a pass go on. If its exchange has begun and not ended, other ranks may be at this one's gradients,
  // which are about to go: the group is given up.
  void forget_pass() noexcept;

  void end_pass();

  // The collective that has failed is none that the user has called.
  template <class Function>
  void explained(const Function& function) const {
    try {
      function();
    } catch (const CollectiveError& error) {
      refuse_unfinished(*worker_, window_.step, error);
    }
  }

  void exchange();

  void begin_exchange();

  // One whole step tells in which order gradients come. That of rank 0 is everybody's from the next pass on.
  void decide_on_overlap();

  [[nodiscard]] bool allows_overlap() const;

  [[nodiscard]] bool spans_hosts() const;

  [[nodiscard]] bool uses_host() const;

  // Counts the pass.
  [[nodiscard]] PassHeader next_header();

  [[nodiscard]] bool watches_weights() const;

  [[nodiscard]] bool are_all_on_cpu() const;

  // What the other passes of a step have left would be half a step.
  void drop_gradients();

  // Leaves the step out on all ranks, or ends it, as all have found the same.
  void refuse_step(const OpenSlots& open);

  Worker* worker_;
  PassExchange exchange_;
  StepClock clock_{};
  ModelOptions options_{};
  StepWindow window_{};
  bool compares_weights_ = false;  // in the next pass, as a model was prepared
  bool has_weights_ = false;       // the accumulators have the hook that weights micro-batches
  std::vector<GradientSlot> slots_;
  std::unordered_map<const void*, std::size_t> known_;  // slots_ by parameter, which they keep alive
  WatchedModels models_{};
  WeightWatch weight_watch_{};
  RunningStatistics statistics_{};   // where the batch under way counts nothing
  RunningStatistics before_step_{};  // where the step may be left out
  std::weak_ptr<Pass> pass_;
  Overlapping overlap_ = Overlapping::never;
  std::uint64_t observed_step_ = 0;  // the first one that shows the order
  BucketSchedule schedule_{};
  std::size_t num_handed_ = 0;  // buckets of the pass under way that are the communication thread's
  StepClock aside_{};           // of that thread
  std::unique_ptr<CommunicationThread> thread_;
  std::mutex mutex_{};
};

[[nodiscard]] const std::shared_ptr<GradientExchange>& gradient_exchange_of(Worker& worker);

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/comm_hook_state.hpp
// What a communication hook remembers, as a part of what checkpoints hold. Torch room.

namespace railyard::inline v0_1 {

/// Is the memory of the CommHook that the prepared models of a worker use, such as what PowerSgdHook has not sent yet;
/// empty where there is no hook, or one without a memory. Made after prepare_model(); must not outlive the training
/// function. Example: ry::CommHookState comm_hook{worker}; and a part {"comm_hook", comm_hook} of the state.
class CommHookState {
 public:
  explicit CommHookState(Worker& worker);

  [[nodiscard]] State state() const;
  void load_state(const State& state);

 private:
  [[nodiscard]] AnyCommHook& hook() const;

  Worker* worker_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/from_tensors.hpp
// Makes a dataset of tensors in memory. Torch room.

#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

/// Says what a dataset of tensors is to be.
struct TensorDatasetOptions {
  std::string label{};  ///< the column that a model is to predict
};

namespace detail {

// Returns a tensor of samples as a column, which shares its memory.
[[nodiscard]] NamedColumn column_of(const std::string& name, const at::Tensor& tensor);

}  // namespace detail

/// Makes a dataset of tensors, whose first dimension counts the samples. It shares their memory: whoever writes to one
/// changes the dataset. What is not contiguous, or not on the CPU, is copied once. Throws: ConfigError if they have not
/// equally many samples, two have one name, or a dtype is none that columns have.
/// Example: ry::Datasets{{"train", ry::from_tensors({{"x", images}, {"y", labels}}, {.label = "y"})}}
[[nodiscard]] Dataset from_tensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                          const TensorDatasetOptions& options = {});

}  // namespace railyard::inline v0_1

// ---- railyard/torch/loader_options.hpp
// Says how a loader divides a dataset and makes batches of it. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

/// Says how prepare_loader() divides a dataset. Exactly one of the two sizes must be given, or Dataset::batch() have
/// said the first: the learning rate depends on what it is.
struct LoaderOptions {
  std::size_t global_batch_size = 0;      ///< samples of a batch, all workers together
  std::size_t batch_size_per_worker = 0;  ///< samples of a batch for each worker
  bool shuffle = false;                   ///< a new order every epoch; otherwise the dataset's own
  bool drives_step = false;               ///< the training loader: its batches are what gradients are weighted with
  /// A batch is given in so many parts, one after another, whose gradients accumulate: for batches that memory does not
  /// hold at once. The sizes above are still those of the whole, which one optimizer step is for. Ranks that divide a
  /// dataset give the same number, and the same below.
  std::size_t micro_batches = 1;
  /// The most samples of a micro-batch for each worker; 0 for any number. There are more parts than micro_batches if
  /// need be: with a global_batch_size, and fewer workers than before, each step is as it was and takes no more memory.
  std::size_t largest_micro_batch = 0;

  // The following is for loaders of a railyard::Dataset. Others, which the loop reads by itself, refuse all of it but
  // `threads` of 0.

  /// Makes data and target of the samples. By default data are the columns of numbers: one alone in its own dtype and
  /// shape, several side by side as f32 of shape (samples, numbers of all of them); undefined if there is none. Columns
  /// of texts are left out, see Batch::columns(). target is the label's column in its own dtype. Both are made by a
  /// thread that reads ahead. A function given here is called by the loop's own thread, batch after batch.
  std::function<std::pair<at::Tensor, at::Tensor>(const Block&)> collate{};
  /// What samples end with that are shorter than the longest of their batch.
  double padding = 0;
  /// A column whose samples differ in length: batches are made of samples of similar length, so that little is padded.
  /// The order is still one of seed and epoch alone, and also where a dataset was indexed, its samples are read one
  /// after another. See Dataset::bucket_by_length(), whose groups have one of the sizes above.
  std::string bucket_by{};
  /// Samples among which those of similar length are found; 0 for a hundred times one of the sizes above.
  std::size_t bucket_window = 0;
  /// Threads that read ahead, for each worker. With none, the loop reads by itself.
  std::size_t threads = 2;
  /// Batches that are read ahead at most; 0 for what Dataset::prefetch() says.
  std::size_t prefetch = 0;
  /// Bytes that all samples under way, and tensors made of them, may take for each worker; see EpochOptions.
  std::size_t bound_bytes = std::size_t{256} << 20U;

  // The following is for all loaders.

  /// What is left at the end of an epoch, when it fills no batch, is not given: for what needs batches of one size.
  /// With shuffle these are other samples in each epoch; otherwise always the same, which are never seen.
  bool drop_last = false;
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/batch_source.hpp
// Where a loader gets its batches from. Torch room.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace railyard::inline v0_1 {
namespace detail {

// Says of which batches a loader gives which part.
struct BatchShares {
  std::size_t global_batch_size = 0;
  std::size_t micro_batches = 1;
  std::size_t rank = 0;
  std::size_t world_size = 1;
  bool drop_last = false;
};

// Is one worker's part of a batch, or of a micro-batch.
struct LoadedPart {
  at::Tensor data{};
  at::Tensor target{};
  std::shared_ptr<const BatchColumns> columns{};
  std::size_t samples = 0;  // that count
  bool completes_batch = true;
  EpochPosition after{};  // what has been consumed when this batch has; before its last part, what had been before it
};

// Gives a worker's parts of the batches of an epoch.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  // Begins, or goes on, in the middle of an epoch.
  virtual void open(const EpochPosition& from) = 0;
  // The next part, or nothing after the last.
  [[nodiscard]] virtual std::optional<LoadedPart> next(const Deadline& deadline) = 0;
  // Lets go of what open() has begun.
  virtual void close() noexcept = 0;
};

// Reads the samples of the given indices as one batch.
using Fetch = std::function<std::pair<at::Tensor, at::Tensor>(std::span<const std::size_t> indices)>;

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/torch/loader.hpp
// A worker's share of every batch of a dataset. Torch room.

#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

namespace detail {

// Where a loader stands.
struct LoaderState {
  Worker* worker = nullptr;
  std::unique_ptr<BatchSource> source{};
  LoaderOptions options{};
  BatchShares shares{};
  std::optional<std::uint64_t> num_samples{};  // of an epoch, where that is known
  EpochPosition first{};                       // the begin of epoch 0
  std::function<std::string()> take_stock{};   // tells what is read, see DataStock
  std::string order{};                         // describes what must be alike on all ranks
  bool is_own = false;                         // what is read: this rank's part, of which no other knows
  at::Device home{at::kCPU};
  std::int64_t epoch = -1;
  EpochPosition next = first;   // where the next begin() starts
  bool is_set = true;           // that has been said since the last begin()
  std::uint64_t iteration = 0;  // tells an iterator that another begin() has come after its own
  EpochPosition before{};       // the batch under way
  EpochPosition after{};        // it, if the last part of it has been given
  bool completes_batch = true;  // it has
  bool is_over = false;         // the last batch of the epoch has been gone past
  std::uint64_t num_ended = 0;  // steps when the batch was given
  std::optional<Batch> batch{};
  mutable std::optional<std::string> stock{};  // once it has been taken

  void start_epoch();

  // Goes on to this worker's part of the next batch; batch is empty after the last one.
  void advance();

  // Makes the next begin() start there.
  void set_place(EpochPosition place);

  [[nodiscard]] std::uint64_t smallest_batch() const noexcept;
  // The samples of an epoch that are given.
  [[nodiscard]] std::uint64_t num_given() const noexcept;

  [[nodiscard]] EpochPosition begin_of(std::int64_t number) const;

  // The samples of an epoch that are consumed: those of batches whose step has ended, or after which the next one has
  // been asked for. When the loop has gone past its last batch, the end of an epoch is the begin of the next; before
  // that, what the loop does after the epoch is still to come.
  [[nodiscard]] const EpochPosition& place() const;

  // What is read, as it was at first; empty where that is not known, and on all ranks but the first, whose state is
  // that of all.
  [[nodiscard]] const std::string& data() const;

  [[nodiscard]] std::string stock_here() const;

  // A position in a part of this rank's own says nothing to the others.
  [[nodiscard]] State state() const;

  void load(const State& state);

 private:
  void check_part(const State& state) const;

  // Places are as good as they were, but steps are of other samples than those that the learning rate was chosen for.
  void tell_of_sizes(const State& state) const;

  // Returns whether the place that was saved means nothing in the data, which is another; then it was accepted. Ranks
  // whose loaders drive steps are told by rank 0. Of others each looks by itself: some may be loaded on one rank only.
  [[nodiscard]] bool loses_place(const State& state, bool is_as_long) const;

  // Data that was copied or touched is the same, and so may be what a program computes anew: of that it only tells. Of
  // an indexed dataset with other bytes, places are as good as they were, unless its operations choose other samples.
  [[nodiscard]] bool has_other_places(const State& state, const std::string& now, bool is_as_long,
                                      bool is_accepted) const;

  // Ends all iterators, and the step of a batch that was not given in full.
  void leave_epoch();

  [[noreturn]] void refuse(const std::string& what) const;

  template <class T>
  void check_same(std::string_view name, T saved, T here, std::string_view remedy) const {
    if (saved == here) return;
    refuse(compose("{} was {} and is {}, so the order of the samples is another: {}", name, saved, here, remedy));
  }

  [[nodiscard]] at::Tensor at_home(at::Tensor tensor) const;

  void announce(std::size_t samples) const;
};

}  // namespace detail

/// Gives a worker its part of every batch. Each begin() starts the next epoch. The order of an epoch is a function of
/// the run's seed and the epoch only, never of the number of workers; each batch of it is cut among the workers, in
/// parts whose sizes differ by at most one; the last batch may be smaller; nothing is dropped unless
/// LoaderOptions::drop_last says so, and nothing counts twice. All workers are given equally many batches. Made by
/// prepare_loader(); must not outlive the training function. Example: for (const auto& batch : loader)
/// loss(net->forward(batch.data), batch.target).backward();
class Loader {
 public:
  /// Goes over the batches of one epoch. The end is reached at once if begin() is called again.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    explicit Iterator(detail::LoaderState& state) noexcept;

    [[nodiscard]] Batch& operator*() const noexcept;
    [[nodiscard]] Batch* operator->() const noexcept;
    Iterator& operator++();
    void operator++(int);
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return iterator.is_over();
    }

   private:
    [[nodiscard]] bool is_over() const noexcept;

    detail::LoaderState* state_ = nullptr;
    std::uint64_t iteration_ = 0;
  };

  explicit Loader(detail::LoaderState state);

  /// Starts the next epoch, also where the last one was left half way.
  [[nodiscard]] Iterator begin();
  [[nodiscard]] static std::default_sentinel_t end() noexcept;

  /// The epoch that is being gone over or was last, from 0; -1 before the first.
  [[nodiscard]] std::int64_t epoch() const noexcept;
  /// The epoch that a loop which goes on from here has to begin with: the one under way, or the next after its end.
  [[nodiscard]] std::int64_t next_epoch() const;
  /// Makes the next begin() start the given epoch. Never needed to get a new order. Throws: ConfigError below 0.
  void set_epoch(std::int64_t epoch);

  /// Returns how much of which epoch all workers together have consumed, an EpochPosition's state, so that other
  /// numbers of workers and batch sizes go on right. A batch counts when its step has ended. After the loop it is the
  /// next epoch; inside it, after the last batch, an empty rest of this one.
  /// Where each rank has a part of its own (RunConfig::data.splitter, Dataset::undivided()), so does each its state.
  [[nodiscard]] State state() const;
  /// Makes the next begin() go on where a saved loader was, in the middle of its epoch.
  /// Throws: ConfigError if the saved one had other data, another number of samples or another order, such as by
  /// another part of a split() or another seed of shuffle(), unless RunConfig::accept_changes names it: "data", "seed";
  /// or, where it was a part of this rank's own, another number of workers. Of other numbers in memory, and of files of
  /// which only parts are compared and that may be copies, Result::warnings() tell.
  void load_state(const State& state);

  /// Whether its batches are what gradients are weighted with; see LoaderOptions.
  [[nodiscard]] bool drives_step() const noexcept;
  /// Samples that an epoch gives, all workers together. Throws: ConfigError where a stream tells it only at its end.
  [[nodiscard]] std::size_t num_samples() const;
  /// Batches of an epoch, micro-batches counted one by one; equally many for every worker. Throws: as num_samples().
  [[nodiscard]] std::size_t num_batches() const;
  /// Samples of a full batch, all workers together.
  [[nodiscard]] std::size_t global_batch_size() const noexcept;

 private:
  std::unique_ptr<detail::LoaderState> state_;  // iterators point to it, and a Loader may be moved
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/lockstep.hpp
// Knows the size of LibTorch's batches for lockstep(). Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

namespace railyard::inline v0_1 {

namespace detail {

// The first dimension counts the samples; a vector holds examples that have not been stacked.
struct SizeOfBatch {
  [[nodiscard]] std::uint64_t operator()(const at::Tensor& batch) const;
  template <class Data, class Target>
  [[nodiscard]] std::uint64_t operator()(const torch::data::Example<Data, Target>& batch) const {
    return static_cast<std::uint64_t>(batch.data.size(0));
  }
  [[nodiscard]] std::uint64_t operator()(const std::pair<at::Tensor, at::Tensor>& batch) const;
  template <class Example>
  [[nodiscard]] std::uint64_t operator()(const std::vector<Example>& batch) const {
    return batch.size();
  }
};

}  // namespace detail

/// Goes over batches of tensors, torch::data::Example<>, pairs of tensors or vectors of examples; see lockstep() in
/// railyard/train/lockstep.hpp. Shapes: the first dimension of data counts the samples.
/// Example: for (auto& [batch, size] : ry::lockstep(worker, *data_loader)) loss(net->forward(batch.data),
/// batch.target);
template <detail::LoopRange Batches>
requires detail::CountsSamples<const detail::SizeOfBatch, detail::ValueOf<Batches>>
[[nodiscard]] auto lockstep(Worker& worker, Batches&& batches) {
  return lockstep(worker, std::forward<Batches>(batches), detail::SizeOfBatch{});
}

}  // namespace railyard::inline v0_1

// ---- railyard/torch/pool.hpp
// Serves LibTorch's CPU tensors from memory that is kept, instead of asking the system for it in every step. Torch
// room.

namespace railyard::inline v0_1 {

/// Says how much a Pool may take.
struct PoolOptions {
  /// Address space, in bytes; 0: as much as the host has memory. Where it is used up LibTorch's own allocator helps
  /// out.
  std::size_t reserve_bytes = 0;
  /// Free bytes above which the pages of large free blocks go back to the system.
  std::size_t max_cached_bytes = ~std::size_t{0};
};

/// Lets the thread that makes it take its CPU tensors from a pool for as long as it lives. LibTorch asks the system for
/// large tensors anew in every step, which costs more than the arithmetic of a small layer. A Trainer's workers have
/// one already (see ModelOptions::memory_pool); this is for programs without. The youngest of several serves. Ends on
/// the thread that made it. Tensors may outlive it, and be freed by any thread. Example: int main() { ry::Pool pool;
/// ... }
class Pool {
 public:
  /// Throws: Error if there is no address space for a pool.
  explicit Pool(const PoolOptions& options = {});

  [[nodiscard]] PoolStatistics statistics() const noexcept;
  /// Gives the memory of freed tensors back to the system.
  void trim() noexcept;
  /// Whether memory, such as tensor.data_ptr(), is of this pool.
  [[nodiscard]] bool contains(const void* memory) const noexcept;

 private:
  [[nodiscard]] static std::size_t size_of(const PoolOptions& options);
  [[nodiscard]] static const std::shared_ptr<detail::Heap>& checked(const std::shared_ptr<detail::Heap>& heap);

  std::shared_ptr<detail::Heap> heap_;
  detail::PoolBinding binding_;
};

/// Returns what the pool holds from which a worker takes its CPU tensors, and what it shows to other ranks; nothing
/// before the first prepare_model(), and with ModelOptions::memory_pool set to false. Each rank has its own.
/// Example: if (auto pool = ry::pool_statistics(worker)) worker.report({{"pool_bytes", pool->held_bytes}});
[[nodiscard]] std::optional<PoolStatistics> pool_statistics(Worker& worker);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/power_sgd.hpp
// Sums matrices of gradients as products of two thin ones, and remembers what that leaves out. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace railyard::inline v0_1 {

namespace detail {

// What PowerSgdHook knows of each parameter. A copy is empty: each copy of a hook begins anew.
class PowerSgdMemory {
 public:
  struct Entry {
    std::uint64_t steps = 0;
    at::Tensor error{};  // (n, m): what this rank has not sent yet
    at::Tensor right{};  // (m, rank): where the last step's directions were, equal on all ranks
  };

  PowerSgdMemory() = default;
  PowerSgdMemory(const PowerSgdMemory& /*other*/);
  PowerSgdMemory(PowerSgdMemory&&) noexcept = default;
  PowerSgdMemory& operator=(const PowerSgdMemory& other);
  PowerSgdMemory& operator=(PowerSgdMemory&&) noexcept = default;
  ~PowerSgdMemory() = default;

  [[nodiscard]] Entry& operator[](std::size_t id) { return entries_[id]; }

  // What is equal on all ranks, and the errors of all of them as one tensor (world size, n, m).
  [[nodiscard]] State state(int rank, int size) const;

  // Other ranks share what all the saved ones have not sent yet.
  void load_state(int rank, int size, const State& state);

 private:
  std::map<std::size_t, Entry> entries_;
};

}  // namespace detail

/// Sums each gradient matrix (n, m) as the product of (n, rank) and (m, rank), found by one step of power iteration
/// from the last step's directions. What the product leaves out is kept and added to the next step's gradient, so that
/// nothing is lost, only late. Vectors, and matrices too small to gain by it, are summed exactly; a parameter of more
/// dimensions is a matrix of its first dimension by all others.
///
/// It needs memory: one more copy of the gradients. To keep it over a restart, make CommHookState a part of the state;
/// otherwise what was left out is gone and compression begins anew. Gradients with heavy noise or of early steps
/// compress badly; use start_step. All ranks give the same options. Source: Vogels, Karimireddy, Jaggi, PowerSGD:
/// Practical Low-Rank Gradient Compression, NeurIPS 2019. Example: ry::AnyCommHook hook = ry::PowerSgdHook{.rank = 4,
/// .start_step = 100};
struct PowerSgdHook {
  int rank = 2;                     ///< columns of the two thin matrices
  std::uint64_t start_step = 1000;  ///< steps of each parameter that are summed exactly before
  std::uint64_t seed = 0;           ///< of the first directions, besides the run's own
  detail::PowerSgdMemory memory{};

  /// Cost: two all-reduces, rank x (n + m) elements per matrix in all; about 6 x rank x n x m operations and rank + 4
  /// passes over the bucket. Throws: ConfigError for a rank below 1.
  void all_reduce(Worker& worker, const GradientBucket& bucket);

  [[nodiscard]] State state(Worker& worker) const;
  void load_state(Worker& worker, const State& state);
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/prepare_loader.hpp
// Makes a loader from a dataset, a pair of tensors or a LibTorch dataset. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <torch/data/example.h>

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

[[nodiscard]] std::pair<at::Tensor, at::Tensor> collate(torch::data::Example<> example);
[[nodiscard]] std::pair<at::Tensor, at::Tensor> collate(torch::data::TensorExample example);
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

// Throws: ConfigError that names the options which are set and that loaders of this kind do not know. what: they go
// over. remedy: makes a Dataset of it.
void check_options_without_dataset(const Worker& worker, const LoaderOptions& options, std::string_view what,
                                          std::string_view remedy);

// num_samples: of an epoch, where that is known. is_indexed: the position of an epoch knows it as well. is_own: other
// ranks may read something else.
[[nodiscard]] Loader make_loader(Worker& worker, std::unique_ptr<BatchSource> source,
                                        std::optional<std::uint64_t> num_samples, bool is_indexed,
                                        const BatchShares& shares, const LoaderOptions& options,
                                        std::function<std::string()> take_stock, const std::string& order,
                                        bool is_own = false);

[[nodiscard]] Loader make_loader(Worker& worker, Fetch fetch, std::size_t num_samples,
                                        const LoaderOptions& options, std::function<std::string()> take_stock = {});

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
[[nodiscard]] Loader prepare_loader(Worker& worker, std::pair<at::Tensor, at::Tensor> tensors,
                                           const LoaderOptions& options);

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
[[nodiscard]] Loader prepare_loader(Worker& worker, const Dataset& dataset, LoaderOptions options);

/// Makes a loader over a LibTorch dataset whose samples can be asked for by index (get_batch() or get()) and that knows
/// its size(); with or without .map(Stack<>()). The loop reads it by itself. Throws: ConfigError if size() is empty, or
/// if the options set what is for loaders of a railyard::Dataset; in the loop, what the dataset throws, with the
/// samples that it was asked for: a DataError, unless that was another Error. Example: ry::prepare_loader(worker,
/// MNIST(path), {.global_batch_size = 64, .shuffle = true, .drives_step = true});
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
        "alone or in a vector; end its chain of map() with torch::data::transforms::Stack<>().");
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

// ---- railyard/torch/prepare_model.hpp
// Makes a model that all workers train together. Torch room.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

namespace railyard::inline v0_1 {

namespace detail {

template <class M>
concept IsModule = std::is_base_of_v<torch::nn::Module, M>;

template <class H>
concept IsModuleHolder = torch::detail::is_module_holder<H>::value;

template <class T>
struct IsModulePointer : std::false_type {};
template <IsModule M>
struct IsModulePointer<std::shared_ptr<M>> : std::true_type {};

template <class T>
concept IsModel = IsModule<T> || IsModuleHolder<T> || IsModulePointer<T>::value;

// Asked only of what is no model itself: a Sequential can be called as well, with anything.
template <class F>
concept IsModelFactory = !IsModel<F> && std::is_invocable_v<F&> && IsModel<std::decay_t<std::invoke_result_t<F&>>>;

// What prepare_model() hands back: holders and pointers as they are, a module by value behind a pointer.
template <class T>
[[nodiscard]] auto held(T&& model) {
  using M = std::decay_t<T>;
  if constexpr (IsModule<M>) {
    return std::make_shared<M>(std::forward<T>(model));
  } else {
    return M(std::forward<T>(model));
  }
}

template <class T>
[[nodiscard]] torch::nn::Module& module_of(const Worker& worker, const T& model) {
  torch::nn::Module* module = nullptr;
  if constexpr (IsModuleHolder<T>) {
    if (!model.is_empty()) module = model.ptr().get();
  } else {
    module = model.get();
  }
  if (module != nullptr) return *module;
  throw ConfigError{
      compose("prepare_model on rank {}/{} was given an empty model: give a module that has been built, "
              "not nullptr",
              worker.rank(), worker.world_size())};
}

// What one worker knows about its models.
struct Models {
  static constexpr std::string_view extension_name = "torch.models";
  std::uint64_t built = 0;  // by factories, so that two models of one kind do not start with the same weights
  std::vector<std::int64_t> processes{};  // the process of each rank

  // How many ranks of lower number live in this worker's process, and how many the fullest process has.
  [[nodiscard]] std::pair<int, int> turns(int rank) const;
};

[[nodiscard]] Models& models_of(Worker& worker);

// Runs the factory with the run's seed. LibTorch has one generator per process, so threads build one after another;
// afterwards each process draws numbers of its own, or dropout would hide the same units on every rank.
template <class Factory>
[[nodiscard]] auto build(Worker& worker, Factory& factory) {
  Models& models = models_of(worker);
  const std::uint64_t use = models.built++;
  const std::uint64_t seed = use == 0 ? worker.seed() : derive_seed(worker.seed(), use);
  const auto [my_turn, turns] = models.turns(worker.rank());
  for (int turn = 0; turn < my_turn; ++turn) worker.barrier();
  torch::manual_seed(seed);
  auto model = held(factory());
  // Also until the last one is through: whoever goes on seeds the generator anew.
  for (int turn = my_turn; turns > 1 && turn < turns; ++turn) worker.barrier();
  return model;
}

void seed_apart(Worker& worker);

}  // namespace detail

/// Makes a model that all workers train together: weights and buffers become rank 0's, and from then on every
/// backward() leaves in every .grad the mean over the global batch, equal on all ranks.
///
/// source is a factory that returns a std::shared_ptr<Net>, a holder made by TORCH_MODULE (or a Sequential), or a Net;
/// or such a model itself. What it returns is returned, a Net behind a std::shared_ptr. A factory runs with
/// worker.seed() set, so the weights are a function of the run's seed; workers that are threads need one.
///
/// The mean is weighted with worker.samples(), which a loader with drives_step sets: a rank with 10 of 30 samples
/// counts 1/3. A parameter that a rank has not used counts there as a gradient of zero; one that no rank has used keeps
/// its .grad as it was. Several backward passes add up, as on a single worker. Sparse gradients become dense.
/// Not averaged: what torch::autograd::grad() returns, buffers unless ModelOptions::buffers says so, and what
/// a model has not registered (replica_difference() finds that). torch's
/// BatchNorm normalises over each worker's own part of a batch; see sync_batch_norm() for one over the whole. Convert,
/// extend and replace parts of a model before the call, or call again with the model right afterwards. Cost: per
/// backward pass one small exchange and one as large as the gradients. Throws: ConfigError on every rank if the ranks'
/// models differ in names, shapes, types or frozen parameters, or are one object. Example: auto net =
/// ry::prepare_model(worker, [] { return std::make_shared<Net>(); });
template <class Source>
[[nodiscard]] auto prepare_model(Worker& worker, Source&& source, const ModelOptions& options = {}) {
  using Plain = std::decay_t<Source>;
  static_assert(detail::IsModel<Plain> || detail::IsModelFactory<Plain>,
                "prepare_model(worker, x): x must be a factory such as [] { return std::make_shared<Net>(); } that "
                "returns a torch::nn::Module, a std::shared_ptr to one or a module holder, or such a model itself.");
  if constexpr (detail::IsModel<Plain> || detail::IsModelFactory<Plain>) {
    detail::apply_thread_budget(worker);
    if (options.memory_pool) detail::bind_pool(worker);
    const auto& exchange = detail::gradient_exchange_of(worker);
    exchange->drop_ended_models();
    auto model = [&] {
      if constexpr (detail::IsModel<Plain>) {
        return detail::held(std::forward<Source>(source));
      } else {
        return detail::build(worker, source);
      }
    }();
    detail::seed_apart(worker);
    const torch::nn::Module& module = detail::module_of(worker, model);
    const auto tensors = detail::tensors_of(module);
    detail::make_equal(worker, tensors);
    for (const auto& named : tensors) {
      if (named.is_parameter && named.tensor.defined()) {
        detail::GradientExchange::add(exchange, named.name, named.tensor);
      }
    }
    exchange->watch(module);
    exchange->set_options(options);
    return model;
  }
}

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/optimizer_state.hpp
// Saves the state of LibTorch's optimizers and puts it back, whole or in the pieces of ranks. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Optional.h>
#include <torch/optim/optimizer.h>

namespace railyard::inline v0_1 {

namespace detail {

// A parameter of an optimizer.
struct OptimizedTensor {
  at::Tensor whole{};
  std::shared_ptr<GradientPiece> piece{};  // where ranks share the work; otherwise each of them does all of it

  // What this rank's optimizer updates; undefined if it is nothing.
  [[nodiscard]] const at::Tensor& own() const noexcept;
};
using OptimizedGroups = std::vector<std::vector<OptimizedTensor>>;

// The parameters of an optimizer, each once: C++ modules list tied ones twice.
[[nodiscard]] OptimizedGroups parameters_of(const std::vector<torch::optim::OptimizerParamGroup>& groups);

// How LibTorch finds the state of a tensor: by its address, which releases before 2.1 write out.
template <class Map>
[[nodiscard]] typename Map::key_type state_key(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<typename Map::key_type, std::string>) {
    std::ostringstream text;
    text << tensor.unsafeGetTensorImpl();
    return text.str();
  } else {
    return tensor.unsafeGetTensorImpl();
  }
}

[[nodiscard]] std::string group_prefix(std::size_t group);
[[nodiscard]] std::string state_prefix(std::size_t group, std::size_t index);
[[nodiscard]] std::string shapes_of(const std::vector<OptimizedTensor>& parameters);

// Saves the fields of a group's options.
struct SaveOption {
  NamedValues& values;
  const std::string& prefix;

  template <class T>
  void operator()(std::string_view name, const T& field) const {
    values.set(prefix + std::string{name}, field);
  }
  template <class T>
  void operator()(std::string_view name, const c10::optional<T>& field) const {
    if (field) (*this)(name, *field);
  }
};

// Saves the fields of a parameter's state. Numbers are tensors too: of a piece only its ranks know them.
struct SaveField {
  std::vector<StateTensor>& tensors;
  const OptimizedTensor& parameter;
  std::string prefix;

  void operator()(std::string_view name, const at::Tensor& field) const;
  void operator()(std::string_view name, const std::deque<at::Tensor>& fields) const;
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(std::string_view name, const T& field) const {
    if (parameter.piece && parameter.piece->begin > 0) return;  // the rank with the first element says it for all
    tensors.push_back({.name = prefix + std::string{name},
                       .dtype = dtype_of<T>,
                       .read = [field](std::int64_t begin, std::int64_t end,
                                       std::byte* to) { std::memcpy(to, &field, begin < end ? sizeof field : 0); },
                       .is_piece = parameter.piece != nullptr,
                       .begin = 0,
                       .end = 1});
  }
};

// Reads the fields of a group's options.
struct LoadOption {
  const NamedValues& values;
  const std::string& prefix;

  template <class T>
  void operator()(std::string_view name, T& field) const {
    const Value& value = values.at(prefix + std::string{name});
    if constexpr (std::is_same_v<T, double>) {
      field = value.number();
    } else {
      field = value.as<T>();
    }
  }
  template <class T>
  void operator()(std::string_view name, c10::optional<T>& field) const {
    field.reset();
    if (values.find(prefix + std::string{name}) == nullptr) return;
    T value{};
    (*this)(name, value);
    field = std::move(value);
  }
};

// Reads the fields of a parameter's state.
struct LoadField {
  UnreadTensors& saved;
  std::vector<std::string>& problems;
  const NamedValues& values;
  const OptimizedTensor& parameter;
  std::string prefix;
  bool is_elementwise;
  bool& found;

  void operator()(std::string_view name, at::Tensor& field) const;
  void operator()(std::string_view name, std::deque<at::Tensor>& fields) const;
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(std::string_view name, T& field) const {
    const StateTensor* state = saved.take(prefix + std::string{name});
    if (state == nullptr) return;
    found = true;
    if (state->dtype == dtype_of<T> && state->shape.empty()) {
      state->read(0, 1, reinterpret_cast<std::byte*>(&field));
    } else {
      problems.push_back(compose("\"{}\" is {} and must be one number, {}", state->name, saved_rows(*state).text(),
                                 name_of(dtype_of<T>)));
    }
  }

 private:
  void read(const SavedTensor& tensor, const at::Tensor& field) const;

  [[nodiscard]] SavedTensor in_order(const StateTensor& state) const;
};

template <KnownOptimizer X>
class OptimizerState {
  using Fields = OptimizerFields<X>;
  using Options = typename Fields::Options;
  using ParamState = typename Fields::ParamState;

 public:
  [[nodiscard]] static State take(const X& optimizer, const OptimizedGroups& groups) {
    State state{{"optimizer", Fields::name}};
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const std::string prefix = group_prefix(group);
      state.values.set(prefix + "parameters", shapes_of(groups[group]));
      Fields::options(static_cast<const Options&>(optimizer.param_groups()[group].options()),
                      SaveOption{state.values, prefix});
      for (std::size_t index = 0; index < groups[group].size(); ++index) {
        take(optimizer, groups[group][index], state_prefix(group, index), state);
      }
    }
    return state;
  }

  // Reads everything before it changes anything.
  static void put(X& optimizer, const OptimizedGroups& groups, const State& state) {
    const at::NoGradGuard no_grad;
    check(groups, state.values);
    UnreadTensors saved{state};
    std::vector<std::string> problems;
    std::vector<Options> options;
    std::vector<std::pair<at::Tensor, std::unique_ptr<ParamState>>> states;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      options.push_back(static_cast<const Options&>(optimizer.param_groups()[group].options()));
      Fields::options(options.back(), LoadOption{state.values, group_prefix(group)});
      for (std::size_t index = 0; index < groups[group].size(); ++index) {
        const OptimizedTensor& parameter = groups[group][index];
        bool found = false;
        auto fields = std::make_unique<ParamState>();
        Fields::state(*fields, LoadField{saved, problems, state.values, parameter, state_prefix(group, index),
                                         Fields::is_elementwise, found});
        if (parameter.own().defined()) states.emplace_back(parameter.own(), found ? std::move(fields) : nullptr);
      }
    }
    saved.name_surplus(problems);
    refuse(problems);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      static_cast<Options&>(optimizer.param_groups()[group].options()) = options[group];
    }
    auto& map = optimizer.state();
    for (auto& [tensor, fields] : states) {
      const auto key = state_key<std::decay_t<decltype(map)>>(tensor);
      map.erase(key);
      if (fields) map[key] = std::move(fields);
    }
  }

 private:
  static void take(const X& optimizer, const OptimizedTensor& parameter, const std::string& prefix, State& state) {
    if (parameter.piece && !parameter.whole.is_contiguous()) {
      state.values.set(prefix + "order", joined(order_in_memory(parameter.whole), " "));
    }
    if (!parameter.own().defined() || (parameter.piece && parameter.piece->is_copy)) return;
    const auto& map = optimizer.state();
    const auto found = map.find(state_key<std::decay_t<decltype(map)>>(parameter.own()));
    if (found == map.end()) return;
    Fields::state(static_cast<const ParamState&>(*found->second), SaveField{state.tensors, parameter, prefix});
  }

  static void check(const OptimizedGroups& groups, const NamedValues& values) {
    std::vector<std::string> problems;
    const auto compare = [&](const std::string& name, const std::string& here) {
      const Value* saved = values.find(name);
      if (saved != nullptr && *saved == Value{here}) return;
      problems.push_back(
          compose("{} is {} here, and was {}", name, here, saved == nullptr ? "nothing" : saved->as<std::string>()));
    };
    compare("optimizer", std::string{Fields::name});
    for (std::size_t group = 0; group < groups.size(); ++group) {
      compare(group_prefix(group) + "parameters", shapes_of(groups[group]));
    }
    if (values.find(group_prefix(groups.size()) + "parameters") != nullptr) {
      problems.push_back(compose("there are {} groups of parameters here, and were more", groups.size()));
    }
    refuse(problems);
  }

  static void refuse(const std::vector<std::string>& problems) {
    if (problems.empty()) return;
    throw ConfigError{
        compose("the saved state of an optimizer does not fit it: {}. Nothing was changed. Make it with "
                "the same parameters in the same groups as the one that was saved, or begin without it",
                joined(problems, "; "))};
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/shared_weights.hpp
// Keeps the weights of a model once for all ranks of the host, and cuts them into one piece per rank. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <tuple>

namespace railyard::inline v0_1 {

namespace detail {

// One optimizer's parameters, where the ranks of a host share memory. Rank 0's weights become everybody's, in one copy
// on each host; each rank has one piece of its host's to update. Two waits around each update keep anybody from reading
// weights that are half new.
class SharedWeights {
 public:
  // parameters: unique, of prepared models, shareable(). All ranks call it with the same.
  SharedWeights(Worker& worker, std::vector<at::Tensor> parameters);
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  // Whoever uses the model further has it to itself.
  ~SharedWeights();

  [[nodiscard]] static bool shareable(const at::Tensor& parameter);

  // By parameter; of some this rank has no part.
  [[nodiscard]] const std::vector<std::shared_ptr<GradientPiece>>& pieces() const noexcept { return pieces_; }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  // Whether another host has the same weights and pieces, and tells of them.
  [[nodiscard]] bool is_copy() const noexcept;

  // Begins an update: from here to end_update() nobody reads the weights. The settings must be equal on all ranks.
  void begin_update(const UpdateSettings& settings);
  void end_update();

 private:
  static constexpr const char* no_room =
      "prepare_optimizer: there is no room left in the memory that the ranks share, which is as large as what was left "
      "when they started: give the job more (memory.max, ulimit -v)";

  void refuse_other_owners() const;

  [[noreturn]] void refuse_replaced(const at::Tensor& parameter) const;

  [[noreturn]] void refuse_mixed(const at::Tensor& parameter) const;

  [[nodiscard]] std::string name_of(const at::Tensor& parameter) const;

  void send_to_hosts();

  // Threads hand over the tensor itself, which then lives as long as its last owner; processes its place.
  void share();

  // Moves a weight of the host's first rank to where all see it, if it is not there.
  [[nodiscard]] std::uint64_t place_for_all(at::Tensor& parameter);

  // Makes the weights of the host's first rank stay while others look at them, and returns the count of who does.
  [[nodiscard]] std::atomic<std::uint32_t>* keep_for_others();

  void cut();

  Worker* worker_;
  std::weak_ptr<GradientExchange> exchange_;
  HostMemory* memory_;
  std::vector<at::Tensor> parameters_;
  std::vector<const void*> addresses_;
  std::atomic<std::uint32_t>* num_users_ =
      nullptr;  // in the first rank's memory; among threads, which own weights, none
  std::vector<std::shared_ptr<GradientPiece>> pieces_;
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/prepare_optimizer.hpp
// Optimizers whose work and state are divided among the ranks of each host. Torch room.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

namespace railyard::inline v0_1 {

/// Is an optimizer of LibTorch over the weights of prepared models. Where the ranks of a host share memory the weights
/// exist once for all of them, and each rank keeps the state of its own piece and updates that alone ("ZeRO-1"): after
/// backward() the .grad of these parameters is undefined, since no rank has all of the mean. Several hosts, of equally
/// many ranks, have one copy each, with the optimizer's state once per host. Elsewhere it is the optimizer that it is
/// made of.
///
/// Every rank calls the same functions in the same order. Between two calls the weights are only to be read; whoever
/// must write them does so on the first rank of each host, between two barriers.
template <detail::ElementwiseOptimizer X>
class PreparedOptimizer {
 public:
  PreparedOptimizer(Worker& worker, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const typename detail::OptimizerFields<X>::Options& defaults)
      : worker_(&worker), parameters_(detail::parameters_of(groups)) {
    std::vector<at::Tensor> shared;
    const bool can_share = detail::gradient_exchange_of(worker)->can_share_weights();
    for (const auto& group : parameters_) {
      for (const auto& [parameter, piece] : group) {
        check(parameter);
        const bool is_shared = can_share && parameter.requires_grad() && detail::SharedWeights::shareable(parameter);
        (is_shared ? shared : whole_).push_back(parameter);
      }
    }
    compare_with_other_ranks(groups, defaults);  // whose pieces must be of the same weights
    if (!shared.empty()) shared_ = std::make_unique<detail::SharedWeights>(worker, std::move(shared));
    std::vector<torch::optim::OptimizerParamGroup> own;
    for (std::size_t index = 0; index < groups.size(); ++index) {
      auto tensors = own_tensors(parameters_[index]);
      own.push_back(groups[index].has_options()
                        ? torch::optim::OptimizerParamGroup(std::move(tensors), groups[index].options().clone())
                        : torch::optim::OptimizerParamGroup(std::move(tensors)));
    }
    inner_ = std::make_unique<X>(std::move(own), defaults);
  }

  /// Makes all gradients undefined: also where LibTorch would fill them with zeros, which still move momentum.
  void zero_grad() {
    for (auto& group : inner_->param_groups()) {
      for (at::Tensor& tensor : group.params()) tensor.mutable_grad().reset();
    }
    if (shared_ == nullptr) return;
    for (const at::Tensor& parameter : shared_->parameters()) parameter.mutable_grad().reset();
  }

  /// Updates the weights. The ranks that share them wait for each other before anybody writes, and until all have
  /// written. Throws: ConfigError if such ranks differ in their options, such as learning rates, if weights have been
  /// replaced, or if micro-batches of the step are still to come. Where each rank or host has weights of its own, the
  /// next backward() throws it for the options, and for ranks that have left out an update.
  void step() {
    check_complete("optimizer.step()");
    detail::StepClock& clock = detail::gradient_exchange_of(*worker_)->clock();
    auto& updates = worker_->extension<detail::UpdateDigest>();
    updates.add(detail::UpdateSettings::of(*inner_));
    if (shared_ == nullptr) {
      clock.enter(detail::StepClock::Part::optimizer);
      inner_->step();
      clock.enter(detail::StepClock::Part::compute);
      return;
    }
    clock.enter(detail::StepClock::Part::wait);
    shared_->begin_update(updates.last);
    clock.enter(detail::StepClock::Part::optimizer);
    inner_->step();
    clock.enter(detail::StepClock::Part::wait);
    shared_->end_update();
    clock.enter(detail::StepClock::Part::compute);
  }

  /// Scales all gradients so that their common norm is max_norm at most, and returns what it was. A collective.
  /// Cost: one pass over this rank's pieces and one small all-reduce. Throws: ConfigError on all ranks if they give
  /// other norms (where each rank has weights of its own, from the next backward()), or if micro-batches of the step
  /// are still to come.
  double clip_grad_norm_(double max_norm) {
    check_complete("clip_grad_norm_()");
    const at::NoGradGuard no_grad;
    double square = 0;
    const auto add = [&square](const at::Tensor& gradient) {
      // In the type of a half tensor the norm itself would overflow.
      const at::Tensor numbers = detail::as_real(gradient);
      const double norm = numbers.norm(2, at::toOpMathType(numbers.scalar_type())).template item<double>();
      square += norm * norm;
    };
    // Of pieces that several hosts have alike, those of the first host count.
    if (shared_ != nullptr && !shared_->is_copy()) for_each_piece([&](at::Tensor& piece) { add(piece.grad()); });
    if (shared_ == nullptr || worker_->rank() == 0) for_each_whole([&](at::Tensor& whole) { add(whole.grad()); });
    if (shared_ != nullptr) {
      square = sum_of_squares(square, max_norm);
    } else {
      worker_->extension<detail::UpdateDigest>().add_clipping(max_norm);
    }
    const double norm = std::sqrt(square);
    const double factor = max_norm / (norm + 1e-6);
    if (factor >= 1) return norm;
    const auto scale = [factor](at::Tensor& tensor) { tensor.mutable_grad().mul_(factor); };
    for_each_piece(scale);
    for_each_whole(scale);
    return norm;
  }

  /// Returns the averaged gradients in full, in the order of the parameters; undefined where there is none. A
  /// collective, and not for every step. Cost: one all-reduce of all of them. Throws: ConfigError if micro-batches of
  /// the step are still to come.
  [[nodiscard]] std::vector<at::Tensor> full_gradients() const {
    check_complete("full_gradients()");
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& group : parameters_) {
      for (const auto& [parameter, piece] : group) {
        gradients.push_back(piece ? full_gradient(parameter, *piece) : parameter.grad());
      }
    }
    return gradients;
  }

  /// The optimizer of this rank's pieces, whose options may be changed, on all ranks alike: by a scheduler, for one.
  [[nodiscard]] X& inner() noexcept { return *inner_; }
  /// For torch::optim::StepLR{optimizer, ...} and the like.
  operator torch::optim::Optimizer&() noexcept { return *inner_; }
  [[nodiscard]] std::vector<torch::optim::OptimizerParamGroup>& param_groups() noexcept {
    return inner_->param_groups();
  }
  /// Returns what the ranks remember of the parameters, each of its pieces, and the options of each group as they are
  /// now. An optimizer on any number of ranks, or one of LibTorch alone, can go on from it.
  [[nodiscard]] State state() const { return detail::OptimizerState<X>::take(*inner_, parameters_); }
  /// Takes this rank's pieces out of a saved state. Throws: ConfigError that names what differs if the optimizer has
  /// other parameters or is another one; nothing is changed then.
  void load_state(const State& state) { detail::OptimizerState<X>::put(*inner_, parameters_, state); }

  /// Whether the ranks of a host share the weights, and each updates its piece.
  [[nodiscard]] bool is_sharded() const noexcept { return shared_ != nullptr; }

 private:
  void check(const at::Tensor& parameter) const {
    detail::GradientSlot* slot = detail::gradient_exchange_of(*worker_)->find(parameter);
    if (slot == nullptr) {
      throw ConfigError{detail::compose(
          "prepare_optimizer on rank {}/{}: a parameter {} is of no prepared model, so its gradients would not be "
          "averaged: call prepare_model() first",
          worker_->rank(), worker_->world_size(), detail::shape_of(parameter))};
    }
    if (slot->piece.expired()) return;
    throw ConfigError{detail::compose(
        "prepare_optimizer on rank {}/{}: the parameter \"{}\" has a prepared optimizer already: let that "
        "one end first",
        worker_->rank(), worker_->world_size(), slot->name)};
  }

  void check_complete(std::string_view call) const {
    const auto& exchange = detail::gradient_exchange_of(*worker_);
    for (const auto& group : parameters_) {
      for (const detail::OptimizedTensor& one : group) exchange->check_complete(one.whole, call);
    }
  }

  // Of all ranks, which must clip to the same norm. Ranks are alike where the sum of squares of a digest is least.
  [[nodiscard]] double sum_of_squares(double own, double max_norm) const {
    const auto digest =
        static_cast<double>(detail::short_digest(detail::digest_of(std::as_bytes(std::span{&max_norm, 1}))));
    double sums[3] = {own, digest, digest * digest};
    worker_->all_reduce(buffer_of(sums), ReduceOp::sum);
    if (sums[2] * worker_->world_size() == sums[1] * sums[1]) return sums[0];
    std::size_t rank = 1;
    const auto norms = detail::gather_values<double>(*worker_, {max_norm});
    while (rank + 1 < norms.size() && norms[rank] == norms[0]) ++rank;
    throw ConfigError{
        detail::compose("clip_grad_norm_() on rank {}/{}: max_norm is {} on rank {} and {} on rank 0: give the same on "
                        "every rank",
                        worker_->rank(), worker_->world_size(), norms[rank], rank, norms[0])};
  }

  void compare_with_other_ranks(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                const typename detail::OptimizerFields<X>::Options& defaults) const {
    if (worker_->world_size() == 1) return;
    std::string mine;
    for (std::size_t group = 0; group < parameters_.size(); ++group) {
      for (const detail::OptimizedTensor& one : parameters_[group]) {
        const std::string& name = detail::gradient_exchange_of(*worker_)->find(one.whole)->name;
        mine += detail::compose("{} of group {}\n", detail::describe({.name = name, .tensor = one.whole}), group);
      }
    }
    detail::check_descriptions(*worker_, detail::Topic::optimizers, "parameters", mine);
    detail::UpdateSettings settings = detail::UpdateSettings::of_none<X>();
    for (const auto& group : groups) settings.add<X>(group.has_options() ? group.options() : defaults);
    const auto texts = detail::gather_texts(*worker_, detail::Topic::optimizers, settings.text());
    const std::string difference = detail::difference_of_settings(texts);
    if (difference.empty()) return;
    throw ConfigError{detail::compose(
        "prepare_optimizer on rank {}/{}: the ranks give other optimizers, or other options: {}. Give the same on "
        "every rank",
        worker_->rank(), worker_->world_size(), difference)};
  }

  [[nodiscard]] at::Tensor full_gradient(const at::Tensor& parameter, const detail::GradientPiece& piece) const {
    const bool is_here = !piece.is_copy && !piece.is_empty() && piece.weights.grad().defined();
    at::Tensor full = at::zeros_like(parameter.detach());
    if (is_here) full.as_strided({piece.end - piece.begin}, {1}, piece.begin).copy_(piece.weights.grad());
    std::int32_t num_here = is_here ? 1 : 0;
    worker_->all_reduce(buffer_of_value(num_here), ReduceOp::sum);
    if (num_here == 0) return {};
    const at::Tensor flat = full.as_strided({full.numel()}, {1});
    worker_->all_reduce(buffer_of(flat), ReduceOp::sum);
    return full;
  }

  // Finds the pieces of a group's parameters, and returns what this rank updates of them.
  [[nodiscard]] std::vector<at::Tensor> own_tensors(std::vector<detail::OptimizedTensor>& parameters) const {
    std::vector<at::Tensor> tensors;
    for (detail::OptimizedTensor& parameter : parameters) {
      parameter.piece = detail::gradient_exchange_of(*worker_)->find(parameter.whole)->piece.lock();
      if (parameter.own().defined()) tensors.push_back(parameter.own());
    }
    return tensors;
  }

  template <class Visit>
  void for_each_piece(const Visit& visit) {
    if (shared_ == nullptr) return;
    for (const auto& piece : shared_->pieces()) {
      if (!piece->is_empty() && piece->weights.grad().defined()) visit(piece->weights);
    }
  }
  template <class Visit>
  void for_each_whole(const Visit& visit) {
    for (at::Tensor& parameter : whole_) {
      if (parameter.grad().defined()) visit(parameter);
    }
  }

  Worker* worker_;
  detail::OptimizedGroups parameters_;
  std::vector<at::Tensor> whole_{};  // parameters that every rank updates by itself
  std::unique_ptr<detail::SharedWeights> shared_{};
  std::unique_ptr<X> inner_{};
};

/// Makes an optimizer for groups of parameters with options of their own; see below.
template <class X, class Options>
[[nodiscard]] auto prepare_optimizer(Worker& worker, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                     const Options& defaults) {
  static_assert(
      detail::ElementwiseOptimizer<X>,
      "prepare_optimizer<X>: X must be torch::optim::SGD, Adam, AdamW, Adagrad or RMSprop. LBFGS looks at all "
      "parameters at once and calls the loss several times in a step, so it cannot be divided among ranks: "
      "use it as it is, with prepare_model() alone and a closure that returns the loss of all ranks "
      "(worker.mean()), by which they all decide alike.");
  if constexpr (detail::ElementwiseOptimizer<X>) return PreparedOptimizer<X>{worker, groups, defaults};
}

/// Makes an optimizer for a prepared model; see PreparedOptimizer. X is SGD, Adam, AdamW, Adagrad or RMSprop. Every
/// rank calls it, after prepare_model(), and drops it before the training function ends. Throws: ConfigError if a
/// parameter is of no prepared model, or shares its memory with another tensor, or if ranks that share weights give
/// other ones. Example: auto optimizer =
/// ry::prepare_optimizer<torch::optim::Adam>(worker, net, torch::optim::AdamOptions(1e-3));
template <class X, class Model, class Options>
requires(detail::IsModel<Model>)
    [[nodiscard]] auto prepare_optimizer(Worker& worker, const Model& model, const Options& options) {
  const std::vector<torch::optim::OptimizerParamGroup> groups{
      torch::optim::OptimizerParamGroup(detail::module_of(worker, model).parameters())};
  return prepare_optimizer<X>(worker, groups, options);
}

/// Scales the gradients of an optimizer so that their common norm is max_norm at most; returns what it was.
template <detail::ElementwiseOptimizer X>
double clip_grad_norm_(PreparedOptimizer<X>& optimizer, double max_norm) {
  return optimizer.clip_grad_norm_(max_norm);
}

}  // namespace railyard::inline v0_1

// ---- railyard/torch/replicas.hpp
// Finds what makes the ranks' copies of one model differ. Torch room.

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace railyard::inline v0_1 {

namespace detail {

// Keeps a module in evaluation for a while, its parts as well.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module);
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;
  ~Evaluating();

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

// The first weight or buffer that is not rank 0's.
[[nodiscard]] std::string difference_of_tensors(Worker& worker, const torch::nn::Module& module);

// Whether one rank's output is not rank 0's; processors of two kinds need not round alike.
[[nodiscard]] std::string difference_of_outputs(Worker& worker, const at::Tensor& output);

}  // namespace detail

/// Says how the ranks' copies of a prepared model differ, the same on every rank; nothing if they do not. A collective.
///
/// Compares weights and buffers, and then what model->forward(inputs...) makes in evaluation of rank 0's inputs. Where
/// that alone differs, the model keeps something that it has not registered, such as statistics in a plain member,
/// which neither prepare_model() nor a checkpoint can know of.
/// Shapes: inputs and outputs are tensors, of one shape on all ranks. Cost: a hash of all weights and a forward pass.
/// Example: if (auto text = ry::replica_difference(worker, net, batch.data); !text.empty()) throw ry::Error{text};
template <class Model, std::same_as<at::Tensor>... Inputs>
requires(detail::IsModel<Model>) [[nodiscard]] std::string
    replica_difference(Worker& worker, const Model& model, const Inputs&... inputs) {
  torch::nn::Module& module = detail::module_of(worker, model);
  if (worker.world_size() == 1) return "";
  if (auto text = detail::difference_of_tensors(worker, module); !text.empty()) return text;
  if constexpr (sizeof...(inputs) > 0) {
    const at::NoGradGuard no_grad;
    const detail::Evaluating evaluating{module};
    const auto of_rank_0 = [&worker](const at::Tensor& input) {
      const at::Tensor copy = input.contiguous().clone();
      worker.broadcast(buffer_of(copy), 0);
      return copy;
    };
    Model forwarding = model;  // through a const module holder only a const forward() could be called
    const auto text = detail::difference_of_outputs(worker, forwarding->forward(of_rank_0(inputs)...));
    if (!text.empty()) {
      return text +
             ", from one input by equal weights and buffers: the model keeps something that it has not registered. "
             "Register statistics with register_buffer(), and choose ModelOptions::buffers";
    }
  }
  return "";
}

}  // namespace railyard::inline v0_1

// ---- railyard/torch/state.hpp
// How the state of LibTorch's modules, optimizers, schedulers and random numbers is saved and put back. Torch room.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#endif

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] State module_state(const torch::nn::Module& module);

void put_module_state(torch::nn::Module& module, const State& state);

// The module that a model is, or holds.
template <class T>
[[nodiscard]] auto& module_in(T& model) {
  if constexpr (IsModule<std::remove_const_t<T>>) {
    return model;
  } else {
    const bool is_empty = [&] {
      if constexpr (IsModuleHolder<std::remove_const_t<T>>) {
        return model.is_empty();
      } else {
        return model == nullptr;
      }
    }();
    if (is_empty)
      throw ConfigError{"an empty module holder or pointer has no state: give a module that has been built"};
    return *model;
  }
}

// LibTorch keeps this number to its derived classes.
struct StepCount : torch::optim::LRScheduler {
  static constexpr auto member() noexcept { return &StepCount::step_count_; }
};

[[nodiscard]] State generator_state(at::Generator generator);

void put_generator_state(at::Generator generator, const State& state);

}  // namespace detail

/// Saves modules, also behind a std::shared_ptr or a holder: parameters and buffers under the names that
/// named_parameters() and named_buffers() give them, frozen ones too. They are put back into the memory where they are;
/// of weights that ranks share each rank writes its piece, so that all of them are right once all ranks have done so.
/// Of buffers that ranks have each for themselves, rank 0's are saved: see ModelOptions::buffers and sync_batch_norm().
/// Throws: ConfigError that names every tensor that is missing, too many, or of another shape or type; nothing is
/// changed then.
template <detail::IsModel T>
requires(!Stateful<T>) struct StateAccess<T> {
  static State take(const T& part) { return detail::module_state(detail::module_in(part)); }
  static void put(T& part, const State& state) { detail::put_module_state(detail::module_in(part), state); }
};

/// Saves LibTorch's SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS: what they remember of each parameter, and the options
/// of each group as they are now, such as the learning rate that a scheduler has set. They win over those that the
/// optimizer was made with. Throws: ConfigError that names what differs if the optimizer has other parameters or is
/// another one; nothing is changed then.
template <detail::KnownOptimizer T>
struct StateAccess<T> {
  static State take(const T& part) {
    return detail::OptimizerState<T>::take(part, detail::parameters_of(part.param_groups()));
  }
  static void put(T& part, const State& state) {
    detail::OptimizerState<T>::put(part, detail::parameters_of(part.param_groups()), state);
  }
};

/// Saves how many steps a scheduler of LibTorch, or derived from its LRScheduler, has made; the learning rates that it
/// has set are the optimizer's. A class of one's own with more to remember has a state() and a load_state().
template <std::derived_from<torch::optim::LRScheduler> T>
requires(!Stateful<T>) struct StateAccess<T> {
  static State take(const T& part) { return {{"step_count", part.*detail::StepCount::member()}}; }
  static void put(T& part, const State& state) {
    part.*detail::StepCount::member() = static_cast<unsigned>(state.at("step_count").as<std::int64_t>());
  }
};

#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)  // LibTorch 2
namespace detail {

// What LibTorch keeps to itself, and offers no way to save. An explicit instantiation is where C++ lets anybody name a
// private member.
struct PlateauMembers {
  float torch::optim::ReduceLROnPlateauScheduler::*best{};
  int torch::optim::ReduceLROnPlateauScheduler::*num_bad_epochs{};
  int torch::optim::ReduceLROnPlateauScheduler::*cooldown_counter{};
  int torch::optim::ReduceLROnPlateauScheduler::*last_epoch{};
};
[[nodiscard]] inline PlateauMembers plateau_members();
template <auto best, auto num_bad_epochs, auto cooldown_counter, auto last_epoch>
struct OpenPlateau {
  friend PlateauMembers plateau_members() { return {best, num_bad_epochs, cooldown_counter, last_epoch}; }
};
template struct OpenPlateau<
    &torch::optim::ReduceLROnPlateauScheduler::best, &torch::optim::ReduceLROnPlateauScheduler::num_bad_epochs,
    &torch::optim::ReduceLROnPlateauScheduler::cooldown_counter, &torch::optim::ReduceLROnPlateauScheduler::last_epoch>;

}  // namespace detail

/// Saves what LibTorch's ReduceLROnPlateauScheduler knows of the metric so far.
template <>
struct StateAccess<torch::optim::ReduceLROnPlateauScheduler> {
  static State take(const torch::optim::ReduceLROnPlateauScheduler& part) {
    const detail::PlateauMembers members = detail::plateau_members();
    return {{"best", part.*members.best},
            {"num_bad_epochs", part.*members.num_bad_epochs},
            {"cooldown_counter", part.*members.cooldown_counter},
            {"last_epoch", part.*members.last_epoch}};
  }
  static void put(torch::optim::ReduceLROnPlateauScheduler& part, const State& state) {
    const detail::PlateauMembers members = detail::plateau_members();
    const auto integer = [&](const char* name) { return static_cast<int>(state.at(name).as<std::int64_t>()); };
    part.*members.best = static_cast<float>(state.at("best").number());
    part.*members.num_bad_epochs = integer("num_bad_epochs");
    part.*members.cooldown_counter = integer("cooldown_counter");
    part.*members.last_epoch = integer("last_epoch");
  }
};
#endif

/// Saves a generator of random numbers; each rank has its own.
template <>
struct StateAccess<at::Generator> {
  static State take(const at::Generator& part) { return detail::generator_state(part); }
  static void put(at::Generator& part, const State& state) { detail::put_generator_state(part, state); }
};

/// Is LibTorch's default generator on CPUs, which dropout and torch::rand() draw from: each process has one. Workers
/// that are threads share it and draw by turns that nobody can foresee, so that only processes go on with equal
/// numbers. Example: ry::TorchRandom random; and a part {"random", random} of the state.
class TorchRandom {
 public:
  [[nodiscard]] State state() const;
  void load_state(const State& state);
};

}  // namespace railyard::inline v0_1

// ---- railyard/torch/step_times.hpp
// Says what the steps of a training loop spend their time on. Torch room.

namespace railyard::inline v0_1 {

/// Returns where this worker's time has gone since its first exchange of gradients, or since the last call. Where the
/// ranks share memory, waiting is told from moving data; elsewhere both are `communication`.
/// Cost: none worth naming; measuring takes five looks at the clock per step.
/// Example: worker.report({{"loss", loss}, {"wait_share", ry::step_times(worker).share_of_wait()}});
[[nodiscard]] StepTimes step_times(Worker& worker);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/sync_batch_norm.hpp
// Makes every BatchNorm of a model normalise over the batches of all workers. Torch room.

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <unordered_map>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] std::weak_ptr<Worker> weak_worker(Worker& worker);

// Finds what has to be done to a tree of modules before anything of it is done: a model is changed whole or not at all.
class NormPlan {
 public:
  explicit NormPlan(torch::nn::Module& root);

  // Empty, or what cannot be synchronised and why: one line each.
  [[nodiscard]] const std::string& refusals() const noexcept { return refusals_; }

  std::size_t apply(const std::weak_ptr<Worker>& worker);

 private:
  using Sequential = torch::nn::SequentialImpl;
  static constexpr std::string_view held_elsewhere =
      "is in a Sequential and held by something else as well, which would go on with a BatchNorm of its own: build it "
      "inside the Sequential alone, or as ry::nn::BatchNorm1d, 2d or 3d";

  struct Made {
    std::shared_ptr<torch::nn::Module> pointer{};
    torch::nn::AnyModule any{};
  };

  // A plain BatchNorm inside a Sequential, which calls whatever lies there.
  struct Place {
    std::shared_ptr<Sequential> container{};
    std::size_t index = 0;
    std::string key{};
    std::string path{};
    std::weak_ptr<torch::nn::Module> plain{};
    const torch::nn::Module* identity = nullptr;
    Made (*make)(torch::nn::Module& plain, const std::weak_ptr<Worker>& worker, const std::string& path) = nullptr;
  };

  template <std::size_t D, class Plain>
  [[nodiscard]] static Made make(torch::nn::Module& module, const std::weak_ptr<Worker>& worker,
                                 const std::string& path) {
    const auto& plain = dynamic_cast<Plain&>(module);
    auto norm = std::make_shared<nn::BatchNormImpl<D>>(plain.options);
    norm->adopt(plain);
    norm->join(worker, path);
    return {norm, torch::nn::AnyModule(norm)};
  }

  void refuse(const std::string& path, std::string_view why);

  template <std::size_t D>
  [[nodiscard]] bool plan_join(torch::nn::Module& module, const std::string& path) {
    auto* norm = dynamic_cast<nn::BatchNormImpl<D>*>(&module);
    if (norm == nullptr) return false;
    if (++mentions_[norm] == 1) joins_.push_back([norm, path](const auto& worker) { norm->join(worker, path); });
    return true;
  }

  template <std::size_t D, class Plain>
  [[nodiscard]] bool plan_replacement(torch::nn::Module& module, const std::string& path, const Place* place) {
    if (dynamic_cast<Plain*>(&module) == nullptr) return false;
    if (place == nullptr) {
      refuse(path, compose("is a torch::nn::BatchNorm{}d that its parent calls by its own type: declare and build "
                           "it as ry::nn::BatchNorm{}d, with the same options",
                           D, D));
    } else if (typeid(module) != typeid(Plain)) {
      refuse(path, "is of a class derived from LibTorch's BatchNorm, whose forward() is not known");
    } else {
      ++mentions_[&module];
      places_.push_back(*place);
      places_.back().make = &NormPlan::make<D, Plain>;
    }
    return true;
  }

  void visit(torch::nn::Module& module, const std::string& path, const Place* place);

  std::string refusals_;
  std::vector<Place> places_;
  std::vector<std::function<void(const std::weak_ptr<Worker>&)>> joins_;
  std::unordered_map<const torch::nn::Module*, long> mentions_;
  std::unordered_map<const torch::nn::Module*, Made> made_;
};

}  // namespace detail

/// Makes every BatchNorm of a model normalise, in training, over the batches of all ranks: outputs, gradients and
/// running statistics become those of one worker on the global batch. See nn::BatchNormImpl for what that means.
/// Returns how many there are.
///
/// LibTorch's modules are called by their own type (norm->forward(x)), so a BatchNorm cannot be exchanged behind a
/// member's back. What can be synchronised: members declared as ry::nn::BatchNorm1d, 2d or 3d, and
/// torch::nn::BatchNorm* inside a torch::nn::Sequential, which are replaced (parameters stay the same tensors; typed
/// access such as sequential->ptr<torch::nn::BatchNorm2dImpl>(1) then throws). Everything else is refused, and nothing
/// is changed. A member that is registered nowhere, and functional::batch_norm, are not seen.
///
/// Called on all ranks, inside the factory or after prepare_model(). Models that clone() makes are synchronised as
/// well. Throws: ConfigError that names every BatchNorm that cannot be synchronised. Example: auto net =
/// ry::prepare_model(worker, [] { return Net(); }); ry::sync_batch_norm(worker, net);
template <class Model>
std::size_t sync_batch_norm(Worker& worker, Model& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    detail::NormPlan plan{model};
    if (!plan.refusals().empty()) {
      throw ConfigError{
          detail::compose("sync_batch_norm on rank {}/{}: these cannot be synchronised, so nothing was "
                          "changed:{}",
                          worker.rank(), worker.world_size(), plan.refusals())};
    }
    return plan.apply(detail::weak_worker(worker));
  } else {
    auto* module = [&] {
      if constexpr (torch::detail::is_module_holder<std::remove_const_t<Model>>::value) {
        return model.is_empty() ? nullptr : model.ptr().get();
      } else {
        return model.get();
      }
    }();
    if (module == nullptr) {
      throw ConfigError{
          detail::compose("sync_batch_norm on rank {}/{} was given an empty model: give one that was built",
                          worker.rank(), worker.world_size())};
    }
    return sync_batch_norm(worker, static_cast<torch::nn::Module&>(*module));
  }
}

}  // namespace railyard::inline v0_1
#endif
