// SPDX-License-Identifier: MIT
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

#define RAILYARD_VERSION_MAJOR 0
#define RAILYARD_VERSION_MINOR 1
#define RAILYARD_VERSION_PATCH 0

/// Everything lives in the inline namespace of its release, so that two releases linked into one program stay apart.
namespace railyard::inline v0_1 {

/// The release as text, by Semantic Versioning.
inline constexpr const char* version = "0.1.0";

}  // namespace railyard::inline v0_1

// ---- railyard/core/dtype.hpp
// Element types of buffers, and the two half types that C++20 lacks. Core room.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
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

// ---- railyard/core/buffer.hpp
// Memory as collectives see it: a pointer, a count, a dtype and a device. Core room.

#include <concepts>
#include <ranges>
#include <span>

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

// ---- railyard/core/detail/compose.hpp
// Makes messages out of a pattern and values, at a fraction of what fmt::format costs to compile. Core room.

#include <initializer_list>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one value of a message, as fmt takes it. Lives as long as what it was made from.
class Piece {
 public:
  using Argument = fmt::basic_format_arg<fmt::format_context>;

  Piece(bool value) noexcept : Piece(std::string_view{value ? "true" : "false"}) {}
  Piece(int value) noexcept : Piece(static_cast<long long>(value)) {}
  Piece(long value) noexcept : Piece(static_cast<long long>(value)) {}
  Piece(long long value) noexcept : argument_(pack(value)) {}
  Piece(unsigned value) noexcept : Piece(static_cast<unsigned long long>(value)) {}
  Piece(unsigned long value) noexcept : Piece(static_cast<unsigned long long>(value)) {}
  Piece(unsigned long long value) noexcept : argument_(pack(value)) {}
  Piece(double value) noexcept : argument_(pack(value)) {}
  Piece(const char* value) noexcept : Piece(std::string_view{value}) {}
  Piece(const std::string& value) noexcept : Piece(std::string_view{value}) {}
  Piece(std::string_view value) noexcept : argument_(pack(value)) {}
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

[[nodiscard]] inline std::string compose_pieces(std::string_view pattern, std::initializer_list<Piece> pieces) {
  Piece::Argument arguments[max_pieces];
  int count = 0;
  for (const Piece& piece : pieces) arguments[count++] = piece.argument();
  return fmt::vformat(pattern, fmt::format_args{arguments, count});
}

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

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/deadline.hpp
// A point in time after which a wait gives up. Core room.

#include <algorithm>
#include <chrono>

namespace railyard::inline v0_1 {

/// Ends a wait. Taken once at the start of an operation and handed down, so that the parts share one budget.
/// Runs on the monotonic clock, which stands still while the machine is suspended.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Expires when the budget has passed, counted from now.
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds budget) {
    const auto now = Clock::now();
    const auto room = Clock::time_point::max() - now;
    return {budget >= room ? Clock::time_point::max() : now + budget, budget};
  }

  /// Never expires.
  [[nodiscard]] static Deadline never() noexcept { return {Clock::time_point::max(), std::chrono::nanoseconds::max()}; }

  [[nodiscard]] bool is_never() const noexcept { return time_ == Clock::time_point::max(); }
  [[nodiscard]] bool expired() const { return !is_never() && Clock::now() >= time_; }

  /// What is left, never negative.
  [[nodiscard]] std::chrono::nanoseconds remaining() const {
    if (is_never()) return std::chrono::nanoseconds::max();
    return std::max(std::chrono::nanoseconds{0}, std::chrono::nanoseconds{time_ - Clock::now()});
  }

  /// The same budget, counted from now.
  [[nodiscard]] Deadline renewed() const { return after(budget_); }

  /// When it expires; Clock::time_point::max() if never.
  [[nodiscard]] Clock::time_point time() const noexcept { return time_; }

  /// The whole budget, as messages print it: "30 s", "200 ms".
  [[nodiscard]] std::string budget_text() const {
    using namespace std::chrono_literals;
    if (is_never()) return "unlimited time";
    const auto in_ms = std::chrono::duration_cast<std::chrono::milliseconds>(budget_);
    if (in_ms % 1s == 0ms) return detail::compose("{} s", in_ms / 1s);
    return in_ms > 10s ? detail::compose("{:.1f} s", static_cast<double>(in_ms.count()) / 1000.0)
                       : detail::compose("{} ms", in_ms.count());
  }

 private:
  Deadline(Clock::time_point time, std::chrono::nanoseconds budget) noexcept : time_(time), budget_(budget) {}

  Clock::time_point time_;
  std::chrono::nanoseconds budget_;
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

// ---- railyard/core/store.hpp
// The place where workers leave small values for each other before they are connected. Core room.

#include <optional>

namespace railyard::inline v0_1 {

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

  /// Leaves value, arbitrary bytes, under key. Throws: Error if the key is taken or the store is full.
  virtual void set(std::string_view key, std::string_view value) = 0;

  /// Waits until the key is there and returns its value, or nothing at the deadline.
  [[nodiscard]] virtual std::optional<std::string> get(std::string_view key, const Deadline& deadline) = 0;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/world.hpp
// Where a worker stands among the others. Core room.

namespace railyard::inline v0_1 {

/// Says who this worker is. rank counts all workers from 0, local_rank those of this host, node the hosts.
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int num_nodes = 1;
  std::string host{};
};

/// Says how far apart the workers of a Scaling can be, and how far apart the ranks of a Backend may be.
enum class Reach { process, host, network };

}  // namespace railyard::inline v0_1

// ---- railyard/core/backend.hpp
// The concept of a collective backend, built from named parts. Core room.

#include <memory>

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
static_assert(Work<FinishedWork>);

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
  CollectiveError(std::string operation, int rank, std::vector<int> blamed, const std::string& message)
      : Error(message), operation_(std::move(operation)), rank_(rank), blamed_(std::move(blamed)) {}

  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// The ranks that are to blame: they died, left, were too late, or called something else.
  [[nodiscard]] const std::vector<int>& blamed() const noexcept { return blamed_; }

 private:
  std::string operation_;
  int rank_;
  std::vector<int> blamed_;
};

/// Carries the first failure of a run to whoever asked for an exception: see Result::value_or_throw().
class WorkerError : public Error {
 public:
  /// rank: the first rank that failed, -1 where the run failed outside of any worker.
  WorkerError(int rank, const std::string& message) : Error(message), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/value.hpp
// Single values by name: what metrics and saved states are made of. Core room.

#include <limits>
#include <variant>

namespace railyard::inline v0_1 {

/// Holds a truth value, an integer, a number or text. Made from any arithmetic type or literal.
class Value {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Value(T value)
  noexcept : value_(widen(value)) {}  // implicit, so that lists read {{"loss", 0.3}, {"epoch", 3}}
  Value(std::string value) noexcept : value_(std::move(value)) {}
  Value(std::string_view value) : value_(std::string{value}) {}
  Value(const char* value) : value_(std::string{value}) {}

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
    throw Error{detail::compose("a value was read as another type than it has: it holds {}", kinds[value_.index()])};
  }

  /// Returns it as a number, whatever arithmetic type it was made from. Throws: Error if it is text.
  [[nodiscard]] double number() const {
    if (is<double>()) return as<double>();
    if (is<std::int64_t>()) return static_cast<double>(as<std::int64_t>());
    return as<bool>() ? 1.0 : 0.0;
  }

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
class NamedValues {
 public:
  using Entry = std::pair<std::string, Value>;

  NamedValues() = default;
  NamedValues(std::initializer_list<Entry> entries) {
    entries_.reserve(entries.size());
    for (const Entry& entry : entries) set(entry.first, entry.second);
  }

  void set(std::string name, Value value) {
    for (Entry& entry : entries_) {
      if (entry.first == name) {
        entry.second = std::move(value);
        return;
      }
    }
    entries_.emplace_back(std::move(name), std::move(value));
  }

  /// Returns the value of that name, or nullptr.
  [[nodiscard]] const Value* find(std::string_view name) const noexcept {
    for (const Entry& entry : entries_) {
      if (entry.first == name) return &entry.second;
    }
    return nullptr;
  }

  /// Returns the value of that name. Throws: Error that lists the names that exist.
  [[nodiscard]] const Value& at(std::string_view name) const {
    if (const Value* value = find(name)) return *value;
    std::string names;
    for (const Entry& entry : entries_) names += (names.empty() ? "" : ", ") + entry.first;
    throw Error{detail::compose("there is no value named \"{}\"; there are: {}", name, names.empty() ? "none" : names)};
  }

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }

  friend bool operator==(const NamedValues&, const NamedValues&) = default;

 private:
  std::vector<Entry> entries_;  // a handful of entries: a scan beats a tree
};

/// Is what a worker reports: numbers, truth values and text under flat keys such as "val/loss".
using Metrics = NamedValues;

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
  [[nodiscard]] const Metrics& metrics() const {  ///< rank 0's, which are the run's
    static const Metrics none{};
    return !by_rank.empty() && by_rank.front() ? *by_rank.front() : none;
  }
};

/// Says what a callback wants after a report: on_report may return it, or nothing at all.
enum class Next : std::uint8_t {
  go_on,
  stop,  ///< ask the workers to stop, as Ctrl-C does, but the run counts as a success: see Worker::should_stop()
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
concept HearsEnd = requires(C& callback, const RunEnd& end) {
  callback.on_end(end);
};

}  // namespace detail

/// Is told about a run, in the process that called fit() and on that thread: any subset of on_start(RunInfo),
/// on_report(Report) and on_end(RunEnd), at least one of them. on_report may return a Next to end the run early.
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
    (detail::HearsStart<C> || detail::HearsReport<C> || detail::HearsEnd<C>);

}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/heap.hpp
// Gives out blocks of one range of memory, such as one that several processes map. Core room.

#include <atomic>
#include <mutex>
#include <new>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

namespace railyard::inline v0_1 {

/// Says what a pool of memory holds. In bytes, or counted since it was made.
struct HeapStatistics {
  std::size_t in_use = 0;  ///< in blocks that have been given out
  std::size_t peak = 0;    ///< the most that ever was in use
  std::size_t held = 0;    ///< in use, or kept for the next block instead of going back to the system
  std::uint64_t allocations = 0;
  std::uint64_t exhausted = 0;  ///< requests for which there was no room
};

namespace detail {

/// Is held for some dozen instructions, also by threads that are more than the cores.
class SpinLock {
 public:
  void lock() noexcept {
    for (int spin = 0; is_taken_.exchange(true, std::memory_order_acquire); ++spin) {
      if (spin >= 64) ::sched_yield();
    }
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_taken_{false};
};

/// Knows whether this is the process that made it, or a copy in a child that was forked later. Asking costs one load.
class HomeMark {
 public:
  HomeMark() noexcept
      : page_(::mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) return;
    if (::madvise(page_, size_bytes(), MADV_WIPEONFORK) == 0) {
      ::new (page_) unsigned char{1};
    } else {  // a kernel before 4.14, or none: nothing is known
      ::munmap(page_, size_bytes());
      page_ = MAP_FAILED;
    }
  }
  HomeMark(const HomeMark&) = delete;
  HomeMark& operator=(const HomeMark&) = delete;
  ~HomeMark() {
    if (page_ != MAP_FAILED) ::munmap(page_, size_bytes());
  }

  [[nodiscard]] bool is_home() const noexcept {
    return page_ == MAP_FAILED || *static_cast<const unsigned char*>(page_) != 0;
  }

 private:
  [[nodiscard]] static std::size_t size_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

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
       std::size_t max_cached = ~std::size_t{0})
      : keeps_mapping_(std::move(keeps_mapping)),
        begin_(base),
        end_(base + size / alignment * alignment),
        touched_(base),
        max_cached_(max_cached),
        is_shared_(is_shared) {
    ::madvise(page_up(begin_), static_cast<std::size_t>(page_down(end_) - page_up(begin_)), MADV_HUGEPAGE);
    auto* all = ::new (begin_) Block{};
    all->heap = this;
    all->size = static_cast<std::size_t>(end_ - begin_) - sizeof(Block);
    insert(*all);
  }
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap() = default;

  /// Returns a block of at least size_bytes, or nullptr if there is no room, or nothing was asked for.
  [[nodiscard]] void* allocate(std::size_t size_bytes) noexcept {
    if (size_bytes == 0 || !home_.is_home()) return nullptr;
    const bool fits = size_bytes <= static_cast<std::size_t>(end_ - begin_);
    const std::size_t size = (size_bytes + alignment - 1) / alignment * alignment;
    const std::lock_guard lock{lock_};
    Block* block = fits ? find(size) : nullptr;
    if (block == nullptr) {
      ++statistics_.exhausted;
      return nullptr;
    }
    remove(*block);
    split(*block, size);
    block->is_free = false;
    touched_ = std::max(touched_, end_of(*block));
    ++statistics_.allocations;
    statistics_.in_use += block->size;
    statistics_.peak = std::max(statistics_.peak, statistics_.in_use);
    if (num_blocks_++ == 0) self_ = weak_from_this().lock();
    return block->payload();
  }

  /// Gives a block of this heap back. nullptr is none.
  void deallocate(void* memory) noexcept {
    if (memory != nullptr) give_back(memory);
  }
  /// Gives a block back to the heap that it came from.
  static void give_back(void* memory) noexcept {
    Block& block = *std::launder(reinterpret_cast<Block*>(static_cast<std::byte*>(memory) - sizeof(Block)));
    block.heap->take_back(block);
  }

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }
  [[nodiscard]] std::byte* end() const noexcept { return end_; }

  /// Keeps an object for as long as the heap lives.
  void keep(std::shared_ptr<const void> object) {
    const std::lock_guard lock{lock_};
    kept_.push_back(std::move(object));
  }

  [[nodiscard]] bool contains(const void* memory) const noexcept { return memory >= begin_ && memory < end_; }

  /// Gives the pages of free blocks back to the system.
  void trim() noexcept {
    if (!home_.is_home()) return;
    const std::lock_guard lock{lock_};
    release_pages();
  }

  /// All zero in a forked child, where the lock may be held by a thread that is not there.
  [[nodiscard]] HeapStatistics statistics() const noexcept {
    if (!home_.is_home()) return {};
    const std::lock_guard lock{lock_};
    HeapStatistics statistics = statistics_;
    statistics.held = statistics.in_use + cached();
    return statistics;
  }

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

    [[nodiscard]] std::byte* payload() noexcept { return reinterpret_cast<std::byte*>(this) + sizeof(Block); }
  };
  static_assert(sizeof(Block) == alignment);
  struct Links {
    Block* next = nullptr;
    Block* previous = nullptr;
  };

  [[nodiscard]] static Links& links(Block& block) noexcept {
    return *std::launder(reinterpret_cast<Links*>(block.payload()));
  }
  [[nodiscard]] static std::byte* end_of(Block& block) noexcept { return block.payload() + block.size; }
  [[nodiscard]] Block* next_of(Block& block) const noexcept {
    std::byte* next = end_of(block);
    return next < end_ ? std::launder(reinterpret_cast<Block*>(next)) : nullptr;
  }
  [[nodiscard]] static std::byte* page_up(std::byte* at) noexcept {
    return at + (4096U - reinterpret_cast<std::uintptr_t>(at) % 4096U) % 4096U;
  }
  [[nodiscard]] static std::byte* page_down(std::byte* at) noexcept {
    return at - reinterpret_cast<std::uintptr_t>(at) % 4096U;
  }

  // The list for blocks of a size: level is its highest bit, step the three below.
  struct Place {
    unsigned level = 0;
    unsigned step = 0;
  };
  [[nodiscard]] static Place place_of(std::size_t size) noexcept {
    const auto level = static_cast<unsigned>(std::bit_width(size)) - 1;
    return {level, static_cast<unsigned>(size >> (level - steps_log2)) % steps};
  }

  void insert(Block& block) noexcept {
    const Place place = place_of(block.size);
    Block*& head = heads_[place.level][place.step];
    ::new (block.payload()) Links{.next = head, .previous = nullptr};
    if (head != nullptr) links(*head).previous = &block;
    head = &block;
    block.is_free = true;
    level_bits_ |= std::uint64_t{1} << place.level;
    step_bits_[place.level] = static_cast<std::uint8_t>(step_bits_[place.level] | 1U << place.step);
    if (block.is_clean) clean_ += clean_bytes(block);
  }

  void remove(Block& block) noexcept {
    if (block.is_clean) clean_ -= clean_bytes(block);
    const Place place = place_of(block.size);
    const Links old = links(block);
    if (old.next != nullptr) links(*old.next).previous = old.previous;
    if (old.previous != nullptr) {
      links(*old.previous).next = old.next;
      return;
    }
    heads_[place.level][place.step] = old.next;
    if (old.next != nullptr) return;
    step_bits_[place.level] = static_cast<std::uint8_t>(step_bits_[place.level] & ~(1U << place.step));
    if (step_bits_[place.level] == 0) level_bits_ &= ~(std::uint64_t{1} << place.level);
  }

  [[nodiscard]] Block* find(std::size_t size) const noexcept {
    // The list of this very size holds smaller ones as well, but most likely begins with one that was freed before.
    Place place = place_of(size);
    Block* block = heads_[place.level][place.step];
    for (int tries = 0; block != nullptr && tries < 8; ++tries, block = links(*block).next) {
      if (block->size >= size) return block;
    }
    // In any list above all fit.
    unsigned bits = place.step + 1 < steps ? step_bits_[place.level] & (~0U << (place.step + 1)) : 0;
    if (bits == 0) {
      const std::uint64_t above = level_bits_ & (~std::uint64_t{0} << (place.level + 1));
      if (above == 0) return nullptr;
      place.level = static_cast<unsigned>(std::countr_zero(above));
      bits = step_bits_[place.level];
    }
    return heads_[place.level][static_cast<unsigned>(std::countr_zero(bits))];
  }

  // Cuts what is not needed off a block that is in no list.
  void split(Block& block, std::size_t size) noexcept {
    if (block.size < size + sizeof(Block) + alignment) return;
    auto* rest = ::new (block.payload() + size) Block{};
    rest->heap = this;
    rest->size = block.size - size - sizeof(Block);
    rest->previous = &block;
    rest->is_clean = block.is_clean;
    if (Block* next = next_of(block)) next->previous = rest;
    block.size = size;
    insert(*rest);
  }

  void take_back(Block& freed) noexcept {
    if (!home_.is_home()) return;
    std::shared_ptr<Heap> self;  // released after the lock
    const std::lock_guard lock{lock_};
    statistics_.in_use -= freed.size;
    Block* block = &freed;
    block->is_clean = false;
    if (Block* next = next_of(*block); next != nullptr && next->is_free) {
      remove(*next);
      block->size += sizeof(Block) + next->size;
    }
    if (block->previous != nullptr && block->previous->is_free) {
      remove(*block->previous);
      block->previous->size += sizeof(Block) + block->size;
      block = block->previous;
      block->is_clean = false;
    }
    if (Block* next = next_of(*block)) next->previous = block;
    insert(*block);
    if (cached() > max_cached_) release_pages();
    if (--num_blocks_ == 0) self = std::move(self_);
  }

  // What lies beyond touched_ has never been there.
  [[nodiscard]] std::size_t clean_bytes(Block& block) const noexcept {
    std::byte* end = std::min(end_of(block), touched_);
    return end > block.payload() ? static_cast<std::size_t>(end - block.payload()) : 0;
  }
  [[nodiscard]] std::size_t cached() const noexcept {
    const auto touched = static_cast<std::size_t>(touched_ - begin_);
    const std::size_t gone = statistics_.in_use + clean_;
    return touched > gone ? touched - gone : 0;
  }

  void release_pages() noexcept {
    for (auto* block = std::launder(reinterpret_cast<Block*>(begin_)); block != nullptr; block = next_of(*block)) {
      if (!block->is_free || block->is_clean || block->size < smallest_worth_releasing) continue;
      // The links stay.
      std::byte* from = page_up(block->payload() + sizeof(Links));
      std::byte* to = page_down(std::min(end_of(*block), touched_));
      if (from < to) ::madvise(from, static_cast<std::size_t>(to - from), is_shared_ ? MADV_REMOVE : MADV_DONTNEED);
      block->is_clean = true;
      clean_ += clean_bytes(*block);
    }
  }

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
  HeapStatistics statistics_{};
  std::size_t num_blocks_ = 0;
  std::shared_ptr<Heap> self_{};  // while blocks are out
  std::vector<std::shared_ptr<const void>> kept_{};
};

/// Makes a heap of memory that no other process sees: up to size bytes, fewer if there are no addresses for so many.
/// Returns nullptr if there are none at all.
[[nodiscard]] inline std::shared_ptr<Heap> make_private_heap(std::size_t size, std::size_t max_cached) {
  constexpr std::size_t least = std::size_t{64} << 20U;
  for (; size >= least; size /= 2) {
    void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    const std::shared_ptr<const void> mapping{base, [size](void* mapped) { ::munmap(mapped, size); }};
    return std::make_shared<Heap>(static_cast<std::byte*>(base), size, mapping, false, max_cached);
  }
  return nullptr;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/host_memory.hpp
// What a backend offers whose ranks see each other's memory. Core room.

namespace railyard::inline v0_1 {

/// Says what an exchange is for, which all ranks must say alike before one reads what another has shown.
enum class Purpose : std::uint8_t {
  gradients,  ///< of a backward pass
  weights,    ///< are shared by an optimizer
  update,     ///< of shared weights
};

/// Is the memory that the ranks of one host share, for whoever can do more with it than a backend's operations: read
/// the others' values where they lie, and write to them. Used by one thread at a time, and counted among the operations
/// of the backend: all ranks do the same in the same order.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  virtual ~HostMemory() = default;

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
  /// from the backend's operations. nullptr if this is it.
  [[nodiscard]] virtual HostMemory* side() noexcept = 0;
  /// Gives up, from any thread: ends every wait of this rank in any line, and of those who wait for it.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// After abort(): returns once no other rank is at what this one has shown in the exchange under way.
  virtual void withdraw() noexcept = 0;
};

}  // namespace railyard::inline v0_1

// ---- railyard/core/stateful.hpp
// What has a state that can be saved and put back. Core room.

#include <functional>

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
  [[nodiscard]] std::int64_t count() const noexcept {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

/// Is a saved state: values and tensors by name.
class State {
 public:
  State() = default;
  State(std::initializer_list<NamedValues::Entry> entries) : values(entries) {}

  NamedValues values{};
  std::vector<StateTensor> tensors{};
  /// Each rank has a state of its own, such as that of its random numbers, and gets its own back. Otherwise all ranks
  /// have the same, but for pieces of tensors.
  bool is_own = false;

  /// Returns the value of that name. Throws: Error that lists the names that exist.
  [[nodiscard]] const Value& at(std::string_view name) const { return values.at(name); }

  /// Returns the tensor of that name, or nullptr.
  [[nodiscard]] const StateTensor* find_tensor(std::string_view name) const noexcept {
    for (const StateTensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
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

// ---- railyard/core/mean.hpp
// A mean that can be merged: a weighted sum and the weight behind it. Core room.

namespace railyard::inline v0_1 {

/// Collects values with their weights. Merging sums and weights, never means, is what makes the mean over workers
/// exact.
class Mean {
 public:
  /// Adds the mean `value` of `weight` samples; a weight of zero leaves the value out, NaN included.
  void add(double value, double weight) noexcept {
    if (weight == 0) return;
    sum_ += value * weight;
    weight_ += weight;
  }

  /// Adds a sum over `weight` samples, such as the number of correct answers among them; a sum over none is left out.
  void add_sum(double sum, double weight) noexcept {
    if (weight == 0) return;
    sum_ += sum;
    weight_ += weight;
  }

  void merge(const Mean& other) noexcept { add_sum(other.sum_, other.weight_); }
  void reset() noexcept { *this = Mean{}; }

  [[nodiscard]] double sum() const noexcept { return sum_; }
  [[nodiscard]] double weight() const noexcept { return weight_; }
  /// The mean; NaN while nothing has been added.
  [[nodiscard]] double value() const noexcept { return sum_ / weight_; }

  /// Each rank's own, for the mean over all of them is put together when it is asked for.
  [[nodiscard]] State state() const {
    State state{{"sum", sum_}, {"weight", weight_}};
    state.is_own = true;
    return state;
  }
  void load_state(const State& state) {
    sum_ = state.at("sum").number();
    weight_ = state.at("weight").number();
  }

 private:
  double sum_ = 0;
  double weight_ = 0;
};
static_assert(Stateful<Mean>);

}  // namespace railyard::inline v0_1

// ---- railyard/core/scaling.hpp
// The concept of how workers come to be, and the two ends between a worker and its supervisor. Core room.

#include <cstdlib>
#include <exception>
#include <typeinfo>

#include <cxxabi.h>

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
  std::atomic<bool> stop_requested{false};        ///< written by the supervisor
  std::atomic<bool> leave_requested{false};       ///< likewise: save what must not be lost, and return
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// Is memory that a worker fills for its supervisor.
struct Snapshot {
  int slot = -1;
  std::span<std::byte> bytes{};
};

/// How many snapshots each worker may have under way at once.
inline constexpr int num_snapshots = 2;

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
  /// message has told of it, then the supervisor's. Waits while all num_snapshots are the supervisor's.
  /// Throws: CollectiveError if the group ends meanwhile, Error if the memory cannot be had.
  [[nodiscard]] virtual Snapshot take_snapshot(std::size_t size_bytes) = 0;
  /// Gives back a snapshot that no message has told of.
  virtual void drop_snapshot(int slot) noexcept = 0;
  /// Waits until the supervisor has given the slot back. Throws: CollectiveError if the group ends meanwhile.
  virtual void await_snapshot(int slot) = 0;

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

/// Says how a worker ended.
struct WorkerExit {
  enum class Kind : std::uint8_t {
    returned,   ///< its body returned
    threw,      ///< an exception left its body; message is what() of it
    exited,     ///< it called exit() or the like before its body returned; code is the status
    signalled,  ///< a signal ended it; code is the signal, message its likely reason
  };
  Kind kind = Kind::returned;
  int code = 0;
  std::string message{};
  std::vector<int> blamed{};    ///< the ranks that its CollectiveError blames
  bool is_consequence = false;  ///< a CollectiveError: most likely another rank failed before
};

namespace detail {

[[nodiscard]] inline std::string demangled(const std::type_info& type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 && text != nullptr ? text : type.name();
  std::free(text);
  return name;
}

// LibTorch puts a backtrace of C++ frames after its message: nothing that helps, and longer than all the rest.
[[nodiscard]] inline std::string without_backtrace(std::string_view message) {
  return std::string{message.substr(0, message.find("\nException raised from"))};
}

[[nodiscard]] inline std::string text_of(const std::exception_ptr& exception, int depth = 0);

// Also tells of the exceptions that std::throw_with_nested has put below this one.
[[nodiscard]] inline std::string text_of(const std::exception& error, int depth) {
  const char* what = error.what();
  std::string text = what == nullptr ? std::string{} : without_backtrace(what);
  if (text.empty()) text = demangled(typeid(error));
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  constexpr int most = 16;
  if (nested != nullptr && nested->nested_ptr() && depth < most) {
    text += "; because: " + text_of(nested->nested_ptr(), depth + 1);
  }
  return text;
}

/// Returns what an exception of any type says.
[[nodiscard]] inline std::string text_of(const std::exception_ptr& exception, int depth) {
  if (!exception) return "its thread was ended by pthread_exit() or by a cancellation";
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return text_of(error, depth);
  } catch (const std::string& text) {
    return text.empty() ? "an empty std::string" : text;
  } catch (const char* text) {
    return text == nullptr || *text == 0 ? "an empty const char*" : text;
  } catch (int number) {
    return std::to_string(number);
  } catch (long number) {
    return std::to_string(number);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return "an exception of type " + (type == nullptr ? std::string{"unknown to C++"} : demangled(*type));
  }
}

}  // namespace detail

/// Returns how a worker ended whose body threw the exception; none if its thread was unwound without one.
[[nodiscard]] inline WorkerExit exit_of(const std::exception_ptr& exception) {
  WorkerExit exit{.kind = WorkerExit::Kind::threw, .message = detail::text_of(exception)};
  if (!exception) return exit;
  try {
    std::rethrow_exception(exception);
  } catch (const CollectiveError& error) {
    exit.blamed = error.blamed();
    exit.is_consequence = true;
  } catch (...) {  // its text is all there is to it
  }
  return exit;
}

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
  /// Runs the on_abort handler of every worker that is still there.
  virtual void abort(std::string_view reason) = 0;
  /// Ends every worker that is still there by force. Threads cannot be: the program ends with a message that names
  /// them.
  virtual void kill() = 0;
  /// Whether workers can be ended by force, and the program lives on.
  [[nodiscard]] virtual bool can_kill() const noexcept = 0;
  [[nodiscard]] virtual const WorkerPage& page(int rank) const = 0;

  /// What the rank has put into its snapshot. May be called, and read, on any thread.
  [[nodiscard]] virtual std::span<const std::byte> snapshot(int rank, int slot, std::size_t size_bytes) = 0;
  /// Gives a snapshot back to its worker. May be called on any thread.
  virtual void release_snapshot(int rank, int slot) noexcept = 0;

  /// Starts all workers anew, each with a new page and none of the messages and keys of before. Only after one
  /// ExitEvent per rank, and when all snapshots have been read. Throws: as Scaling::start.
  virtual void restart(std::string_view briefing) = 0;
};

/// Says what to start.
struct GroupPlan {
  int num_workers = 1;
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
  std::string briefing{};  ///< for every worker, at most max_briefing_bytes
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

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns "SIGINT" and the like, or "signal 40" for one without a name.
[[nodiscard]] inline std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? compose("SIG{}", name) : compose("signal {}", signal);
}

/// Blocks signals in this thread, and so in the threads it makes, until it is destroyed.
class BlockSignals {
 public:
  explicit BlockSignals(const sigset_t& signals) noexcept { ::pthread_sigmask(SIG_BLOCK, &signals, &before_); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  [[nodiscard]] const sigset_t& before() const noexcept { return before_; }

 private:
  sigset_t before_{};
};

/// Every signal that can wait: blocked while a thread is started that then never runs the user's handlers.
[[nodiscard]] inline sigset_t deferrable_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) ::sigdelset(&all, fault);
  return all;
}

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

#include <fcntl.h>
#include <poll.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Opens those of the descriptors 0 to 2 that are closed on /dev/null, and leaves them so: otherwise files and sockets
/// of the run would get their numbers, and what is meant for standard output would be written into them.
inline void open_standard_streams() noexcept {
  int file = ::open("/dev/null", O_RDWR);
  while (file >= 0 && file <= STDERR_FILENO) file = ::open("/dev/null", O_RDWR);
  if (file >= 0) ::close(file);
}

/// Is the pair of streams that a run writes to. What cannot be written is dropped: the logs have it too.
class Console {
 public:
  explicit Console(int output = STDOUT_FILENO, int error = STDERR_FILENO) noexcept : output_(output), error_(error) {}

  [[nodiscard]] int output() const noexcept { return output_; }
  [[nodiscard]] int error() const noexcept { return error_; }
  [[nodiscard]] static bool is_terminal(int stream) noexcept { return ::isatty(stream) == 1; }

  /// The columns of the terminal behind stream, 80 if it does not say.
  [[nodiscard]] static std::size_t width(int stream) noexcept {
    winsize size{};
    return ::ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80U;
  }

  /// Writes all of text, or returns false. Waits up to 1 s for a reader that takes nothing, and from then on not at all
  /// until it takes something again: the supervisor has signals and workers to look after.
  bool write(int stream, std::string_view text) {
    if (stream < 0) return false;
    State& state = states_[stream == error_ ? 1 : 0];
    const WriteSignalGuard<SIGPIPE> guard;
    if (stream == STDOUT_FILENO && ::__fpending(stdout) > 0) {  // what the program has printed before comes before
      if (!is_ready(stream, state)) return false;
      std::fflush(stdout);
    }
    std::string whole;
    if (state.is_torn) text = whole.append("\n").append(text);
    const std::size_t size = text.size();
    auto give_up = Clock::now() + patience;
    while (!text.empty()) {
      if (!is_ready(stream, state)) break;
      // A pipe that poll() calls writable has room for a page; more would block.
      const ssize_t written = ::write(stream, text.data(), std::min<std::size_t>(text.size(), 4096));
      if (written > 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
        give_up = Clock::now() + patience;
      } else if (written == 0 || (errno != EINTR && errno != EAGAIN) || Clock::now() >= give_up) {
        break;
      }
    }
    if (text.size() < size) state.is_torn = !text.empty();
    return text.empty();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds patience{1};
  struct State {
    bool is_stalled = false;  // the last wait was in vain
    bool is_torn = false;     // the last line is there in part
  };

  // Returns whether a write would not block; that also holds where it would fail.
  static bool is_ready(int stream, State& state) noexcept {
    const auto give_up = Clock::now() + (state.is_stalled ? Clock::duration{0} : patience);
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up - Clock::now()).count();
      pollfd entry{.fd = stream, .events = POLLOUT, .revents = 0};
      const int count = ::poll(&entry, 1, static_cast<int>(left > 0 ? left : 0));
      if (count < 0 && errno == EINTR && left > 0) continue;
      state.is_stalled = count < 1;
      return count == 1;
    }
  }

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
[[nodiscard]] inline bool is_finite(double value) noexcept {
  constexpr std::uint64_t exponent = 0x7FF0'0000'0000'0000U;
  return (std::bit_cast<std::uint64_t>(value) & exponent) != exponent;
}

/// Returns "nan", "inf" or "-inf" for what is not finite.
[[nodiscard]] inline std::string non_finite_text(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  if ((bits & 0x000F'FFFF'FFFF'FFFFU) != 0) return "nan";
  return (bits >> 63U) != 0 ? "-inf" : "inf";
}

/// Returns a metric as a progress line shows it: four significant digits, text as it is.
[[nodiscard]] inline std::string short_text(const Value& value) {
  return value.visit([](const auto& held) -> std::string {
    using Held = std::remove_cvref_t<decltype(held)>;
    if constexpr (std::is_same_v<Held, double>) {
      return is_finite(held) ? compose("{:.4g}", held) : non_finite_text(held);
    } else {
      return compose("{}", held);
    }
  });
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/callbacks/progress.hpp
// Shows on standard error how far a run is, and lets the workers' own output through. Callbacks room.

#include <cmath>
#include <deque>

namespace railyard::inline v0_1 {

/// Holds what the supervisor sees of a run at one moment.
struct ProgressState {
  double seconds = 0;  ///< since fit() was called
  int alive = 0;
  int world_size = 0;
  std::uint64_t samples = 0;     ///< given to all ranks together, in all
  std::int64_t epoch = -1;       ///< -1 if unknown
  std::uint64_t epoch_size = 0;  ///< 0 if unknown
  std::uint64_t epoch_done = 0;
};

/// Is the progress of a run: on a terminal one line that is redrawn at most ten times a second and fits its width;
/// elsewhere a plain line at the first report, then at most one in ten seconds, and one at the end.
class ProgressLine {
 public:
  explicit ProgressLine(const detail::Console& console, bool is_quiet = false)
      : console_(console), kind_(is_quiet ? Kind::quiet : kind_of(console.error())) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { erase(); }

  /// How soon update() should be called again. Units: seconds.
  [[nodiscard]] double interval() const noexcept { return kind_ == Kind::terminal ? redraw_after : plain_after; }

  void on_report(std::int64_t index, Metrics metrics) {
    report_ = index;
    metrics_ = std::move(metrics);
    is_news_ = true;
  }

  /// Shows the state, if it is time to.
  void update(const ProgressState& state) {
    note(state);
    const double age = state.seconds - shown_at_;
    if (kind_ == Kind::terminal && age >= redraw_after) draw(state);
    if (kind_ != Kind::plain || !is_news_) return;
    if (!was_shown_ || age >= plain_after) print_plain(state);
  }

  /// Shows the state for the last time.
  void finish(const ProgressState& state) {
    note(state);
    if (kind_ == Kind::terminal && (was_shown_ || is_news_)) {
      draw(state);
      console_.write(console_.error(), "\n");
      is_drawn_ = false;
    }
    if (kind_ == Kind::plain && is_news_) print_plain(state);
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

  /// Returns at most `columns` characters of text, none of which moves the cursor.
  [[nodiscard]] static std::string fitted(std::string_view text, std::size_t columns) {
    std::string line;
    std::size_t used = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      const bool continues = (byte & 0xC0U) == 0x80;  // of a UTF-8 character that has been counted
      if (!continues && ++used > columns) break;
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
    shown_at_ = state.seconds;
    was_shown_ = true;
    is_news_ = false;
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
    shown_at_ = state.seconds;
    was_shown_ = true;
    is_news_ = false;
  }

  detail::Console console_;
  Kind kind_;
  std::int64_t report_ = -1;
  Metrics metrics_{};
  bool is_news_ = false;    // a report has come since the last line
  bool was_shown_ = false;  // any line at all
  bool is_drawn_ = false;   // the line stands on the terminal now
  double shown_at_ = 0;
  std::string line_{};
  std::uint64_t num_dropped_ = 0;  // lines that could not be printed
  std::deque<std::pair<double, std::uint64_t>> marks_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/crc32c.hpp
// The checksum of a checkpoint's files. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::uint32_t crc32c_polynomial = 0x82F63B78U;  // Castagnoli's, lowest power in the highest bit

// Multiplies two polynomials modulo the one of the checksum.
[[nodiscard]] constexpr std::uint32_t crc32c_multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1U) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1U) ^ ((b & 1U) != 0 ? crc32c_polynomial : 0);
  }
  return product;
}

// What a checksum is multiplied by when num_bytes zeros follow: x to the power of their bits.
[[nodiscard]] constexpr std::uint32_t crc32c_shift(std::size_t num_bytes) noexcept {
  std::uint32_t result = 0x80000000U;  // 1
  std::uint32_t power = 0x00800000U;   // x^8
  for (; num_bytes != 0; num_bytes >>= 1U) {
    if ((num_bytes & 1U) != 0) result = crc32c_multiply(result, power);
    power = crc32c_multiply(power, power);
  }
  return result;
}

// What one byte does to the checksum if n more bytes follow it is in table n.
using Crc32cTables = std::array<std::array<std::uint32_t, 256>, 8>;

[[nodiscard]] constexpr Crc32cTables make_crc32c_tables() noexcept {
  Crc32cTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (auto& table : tables) {
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? crc32c_polynomial : 0);
      table[byte] = value;
    }
  }
  return tables;
}

[[nodiscard]] inline std::uint64_t crc32c_word(const std::byte* from) noexcept {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// These three take and return the inverted value, so that parts can be added up.
[[nodiscard]] inline std::uint32_t crc32c_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  static constexpr Crc32cTables tables = make_crc32c_tables();
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint64_t word = crc32c_word(bytes.data()) ^ state;
    state = 0;
    for (unsigned i = 0; i < 8; ++i) state ^= tables[7 - i][(word >> (8 * i)) & 0xFFU];
  }
  for (const std::byte byte : bytes) {
    state = (state >> 8U) ^ tables[0][(state ^ static_cast<std::uint32_t>(byte)) & 0xFFU];
  }
  return state;
}

#if defined(__x86_64__)

[[nodiscard]] __attribute__((target("sse4.2"))) inline std::uint32_t crc32c_by_instruction(
    std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  // The instruction takes three cycles and can begin anew in each: three stretches at a time.
  constexpr std::size_t stretch = std::size_t{32} << 10U;
  constexpr std::uint32_t shift = crc32c_shift(stretch);
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 3 * stretch; at += 3 * stretch, left -= 3 * stretch) {
    std::uint64_t first = state;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < stretch; i += 8) {
      first = __builtin_ia32_crc32di(first, crc32c_word(at + i));
      second = __builtin_ia32_crc32di(second, crc32c_word(at + stretch + i));
      third = __builtin_ia32_crc32di(third, crc32c_word(at + 2 * stretch + i));
    }
    state = crc32c_multiply(static_cast<std::uint32_t>(first), shift) ^ static_cast<std::uint32_t>(second);
    state = crc32c_multiply(state, shift) ^ static_cast<std::uint32_t>(third);
  }
  std::uint64_t word = state;
  for (; left >= 8; at += 8, left -= 8) word = __builtin_ia32_crc32di(word, crc32c_word(at));
  state = static_cast<std::uint32_t>(word);
  for (; left > 0; ++at, --left) state = __builtin_ia32_crc32qi(state, static_cast<unsigned char>(*at));
  return state;
}
#endif

[[nodiscard]] inline std::uint32_t crc32c_update(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) return crc32c_by_instruction(state, bytes);
#endif
  return crc32c_by_table(state, bytes);
}

/// Is the CRC-32C (RFC 3720, appendix B.4) of bytes that are added one stretch after the other.
class Crc32c {
 public:
  void add(std::span<const std::byte> bytes) noexcept { state_ = crc32c_update(state_, bytes); }
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = 0xFFFFFFFFU;
};

[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  Crc32c sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/json_text.hpp
// Text as JSON has it. Core room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the length of the UTF-8 sequence at the start of text, or 0 if there is none that is valid.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  std::size_t length = 0;
  unsigned low = 0x80;  // bounds of the second byte: they exclude overlong forms, surrogates and what Unicode lacks
  unsigned high = 0xBF;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  if (first >= 0xE0 && first <= 0xEF) length = 3;
  if (first >= 0xF0 && first <= 0xF4) length = 4;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

/// Appends text as a JSON string; bytes that are not UTF-8 become U+FFFD, so that every reader accepts the file.
inline void append_json_text(std::string& json, std::string_view text) {
  json += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char first = text.front();
    if (first == '"' || first == '\\') {
      json += '\\';
      json += first;
    } else if (first == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(first) < 0x20 || first == '\x7F') {
      json += compose("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(first)));
    } else if (length == 0) {
      json += "\xEF\xBF\xBD";
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  json += '"';
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/json.hpp
// Reads JSON that may come from anywhere, with bounds and without loss. Checkpoint room.

#include <charconv>
#include <system_error>

namespace railyard::inline v0_1 {
namespace detail {

/// Says what is wrong with the content of a file whose name is known further up.
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void throw_damaged(const std::filesystem::path& file, std::string_view what) {
  throw DataError{
      compose("{}: {}; take another checkpoint, or copy this one anew from where it is whole", file.string(), what)};
}

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

  explicit Json(Kind kind = Kind::null, std::string text = {}) : kind_(kind), text_(std::move(text)) {}

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] bool boolean() const { return expect(Kind::boolean, "true or false").text_ == "true"; }
  [[nodiscard]] const std::string& text() const { return expect(Kind::text, "text").text_; }
  [[nodiscard]] const std::string& number() const { return expect(Kind::number, "a number").text_; }
  [[nodiscard]] const std::vector<Json>& array() const { return expect(Kind::array, "a list").items_; }
  /// The names of an object's values, and the values in the same order.
  [[nodiscard]] const std::vector<std::string>& names() const { return expect(Kind::object, "an object").names_; }
  [[nodiscard]] const std::vector<Json>& items() const { return expect(Kind::object, "an object").items_; }

  [[nodiscard]] const Json* find(std::string_view name) const {
    const auto at = std::find(names().begin(), names().end(), name);
    return at == names_.end() ? nullptr : &items_[static_cast<std::size_t>(at - names_.begin())];
  }
  [[nodiscard]] const Json& at(std::string_view name) const {
    if (const Json* value = find(name)) return *value;
    throw Damage{compose("\"{}\" is missing", name)};
  }

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

  const Json& expect(Kind kind, std::string_view what) const {
    if (kind_ != kind) throw Damage{compose("something else stands where {} should be", what)};
    return *this;
  }

  Kind kind_;
  std::string text_;
  std::vector<Json> items_{};
  std::vector<std::string> names_{};
};

/// Reads the text of one JSON value (RFC 8259).
class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  [[nodiscard]] Json parse() {
    Json json = value(0);
    skip_space();
    if (at_ != text_.size()) refuse("the end is expected");
    return json;
  }

 private:
  static constexpr std::size_t max_depth = 16;  // each level is a call within a call
  static constexpr std::size_t max_values = std::size_t{1} << 20U;

  [[noreturn]] void refuse(std::string_view why) const {
    throw Damage{compose("it is no JSON at byte {}: {}", at_, why)};
  }

  [[nodiscard]] char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view what) noexcept {
    const bool is_there = text_.substr(at_).starts_with(what);
    if (is_there) at_ += what.size();
    return is_there;
  }
  void skip_space() noexcept { at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }

  Json value(std::size_t depth) {
    if (++num_values_ > max_values) refuse(compose("there are more than {} values", max_values));
    if (depth > max_depth) refuse(compose("it is nested more than {} levels deep", max_depth));
    skip_space();
    if (take("{")) return object(depth);
    if (take("[")) return array(depth);
    if (take("true")) return Json{Json::Kind::boolean, "true"};
    if (take("false")) return Json{Json::Kind::boolean, "false"};
    if (take("null")) return Json{};
    if (peek() == '"') return Json{Json::Kind::text, quoted()};
    return Json{Json::Kind::number, number()};
  }

  Json array(std::size_t depth) {
    Json json{Json::Kind::array};
    skip_space();
    if (take("]")) return json;
    do {
      json.items_.push_back(value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("]")) refuse("',' or ']' is expected");
    return json;
  }

  Json object(std::size_t depth) {
    Json json{Json::Kind::object};
    skip_space();
    if (take("}")) return json;
    do {
      skip_space();
      json.names_.push_back(quoted());
      skip_space();
      if (!take(":")) refuse("':' is expected");
      json.items_.push_back(value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("}")) refuse("',' or '}' is expected");
    std::vector<std::string_view> names{json.names_.begin(), json.names_.end()};
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) throw Damage{compose("the name \"{}\" is there twice", *twice)};
    return json;
  }

  std::string quoted() {
    if (!take("\"")) refuse("a value or a name is expected");
    std::string text;
    while (!take("\"")) {
      if (at_ == text_.size()) refuse("a text does not end");
      if (take("\\")) {
        append_escaped(text);
        continue;
      }
      const std::size_t length = utf8_length(text_.substr(at_));
      if (length == 0 || static_cast<unsigned char>(peek()) < 0x20) refuse("this cannot be in a text");
      text += text_.substr(at_, length);
      at_ += length;
    }
    return text;
  }

  void append_escaped(std::string& text) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char letter = peek();
    if (take("u")) return append_code_point(text);
    const auto which = letters.find(letter);
    if (letter == '\0' || which == std::string_view::npos) refuse("there is no such escape");
    text += meanings[which];
    ++at_;
  }

  void append_code_point(std::string& text) {
    std::uint32_t code = code_unit();
    const bool is_high = code >= 0xD800 && code < 0xDC00;
    if (is_high && take("\\u")) {
      const std::uint32_t low = code_unit();
      if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair stands alone");
      code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      refuse("half of a surrogate pair stands alone");
    }
    const auto add = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
    const auto add_six_bits = [&](unsigned shift) { add(0x80U | ((code >> shift) & 0x3FU)); };
    if (code < 0x80) return add(code);
    if (code < 0x800) {
      add(0xC0U | (code >> 6U));
    } else if (code < 0x10000) {
      add(0xE0U | (code >> 12U));
      add_six_bits(6);
    } else {
      add(0xF0U | (code >> 18U));
      add_six_bits(12);
      add_six_bits(6);
    }
    add_six_bits(0);
  }

  std::uint32_t code_unit() {
    std::uint32_t code = 0;
    const auto digits = text_.substr(at_, 4);
    const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc{} || stopped != digits.data() + 4) refuse("four digits are expected");
    at_ += 4;
    return code;
  }

  std::string number() {
    const std::size_t begin = at_;
    take("-");
    if (!take("0")) skip_digits();
    if (take(".")) skip_digits();
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      skip_digits();
    }
    return std::string{text_.substr(begin, at_ - begin)};
  }
  void skip_digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == begin) refuse("a value is expected");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t num_values_ = 0;
};

/// Throws: Damage.
[[nodiscard]] inline Json parse_json(std::string_view text) { return JsonParser{text}.parse(); }

[[nodiscard]] inline bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/core/detail/system.hpp
// What the kernel offers, made safe to use: descriptors, futexes, times and messages of failed calls. Core room.

#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Owns one file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

/// Says what a failed call of the system means, and what to do where that is known.
[[nodiscard]] inline std::string explain_errno(int error) {
  const std::string text = std::generic_category().message(error);
  if (error == EMFILE) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return compose("{} (this process may have {} descriptors: raise the limit with ulimit -n, or close some)", text,
                   limit.rlim_cur);
  }
  if (error == EAGAIN) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NPROC, &limit);
    const auto count = limit.rlim_cur == RLIM_INFINITY ? std::string{"unlimited"} : compose("{}", limit.rlim_cur);
    return compose("{} (the limit of processes is reached: see ulimit -u, here {}, and pids.max of the cgroup)", text,
                   count);
  }
  return text;
}

[[noreturn]] inline void throw_system(std::string_view what, int error) {
  throw Error{compose("{}: {}", what, explain_errno(error))};
}

/// Takes over a new descriptor and moves it above 2, where it would end up if the program has closed its standard
/// streams: later it would be overwritten or be taken for one.
[[nodiscard]] inline Descriptor adopt(int fd, std::string_view what) {
  if (fd < 0) throw_system(what, errno);
  if (fd > 2) return Descriptor{fd};
  const Descriptor low{fd};
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (moved < 0) throw_system(what, errno);
  return Descriptor{moved};
}

/// Makes a pipe, both ends closed on exec. Returns the end to read from, then the end to write to.
[[nodiscard]] inline std::pair<Descriptor, Descriptor> make_pipe(int flags, std::string_view what) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) throw_system(what, errno);
  Descriptor second{ends[1]};  // is not lost if the first cannot be moved
  Descriptor reader = adopt(ends[0], what);
  if (second.get() > 2) return {std::move(reader), std::move(second)};
  const int moved = ::fcntl(second.get(), F_DUPFD_CLOEXEC, 3);
  if (moved < 0) throw_system(what, errno);
  return {std::move(reader), Descriptor{moved}};
}

[[nodiscard]] inline std::int64_t monotonic_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Deadline::Clock::now().time_since_epoch()).count();
}

[[nodiscard]] inline timespec to_timespec(std::chrono::nanoseconds time) noexcept {
  const auto bounded = std::clamp(time, std::chrono::nanoseconds{0}, std::chrono::nanoseconds{std::chrono::hours{24}});
  return {static_cast<std::time_t>(bounded.count() / 1'000'000'000),
          static_cast<long>(bounded.count() % 1'000'000'000)};
}

/// Sleeps while word holds expected, for at most the given time; may return early. Works across processes.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::nanoseconds at_most) noexcept {
  static_assert(sizeof(word) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  const timespec time = to_timespec(at_most);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

/// Wakes everybody who sleeps on word.
inline void futex_wake(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 0x7FFFFFFF, nullptr, nullptr, 0);
}

/// Changes the word and wakes everybody who sleeps on it.
inline void nudge(std::atomic<std::uint32_t>& word) noexcept {
  word.fetch_add(1);
  futex_wake(word);
}

[[nodiscard]] inline int open_pidfd(pid_t pid) noexcept {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
#else
  errno = ENOSYS;
  return -1;
#endif
}

inline void signal_pidfd([[maybe_unused]] int pidfd, [[maybe_unused]] int signal) noexcept {
#ifdef SYS_pidfd_send_signal
  ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
#endif
}

/// Returns the bytes of memory that the host has.
[[nodiscard]] inline std::size_t physical_memory() noexcept {
  return static_cast<std::size_t>(std::max(::sysconf(_SC_PHYS_PAGES), 1L)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

[[nodiscard]] inline std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

/// Ends the program as the signal would have, had nobody caught it.
[[noreturn]] inline void end_by_signal(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/input_file.hpp
// A file of a checkpoint to read from. Checkpoint room.

#include <sys/file.h>
#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a plain file that is open for reading. It is read by calls and not mapped: a file that somebody cuts short would
/// end the program by a signal.
class InputFile {
 public:
  /// Opens the file `name` in a directory, which may lie in folders below it. Symbolic links below the directory are
  /// not followed: they could lead out of it. Throws: DataError if it is not there or no plain file; Error if it may be
  /// whole, but cannot be opened.
  [[nodiscard]] static std::shared_ptr<const InputFile> open(const std::filesystem::path& directory,
                                                             std::string_view name) {
    Descriptor at = open_or_throw(AT_FDCWD, directory.string(), O_PATH | O_DIRECTORY, directory);
    const std::filesystem::path path = directory / name;
    for (auto slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/')) {
      at = open_or_throw(at.get(), std::string{name.substr(0, slash)}, O_PATH | O_DIRECTORY | O_NOFOLLOW, path);
      name.remove_prefix(slash + 1);
    }
    // Without O_NONBLOCK the opening of a pipe would wait for its writer.
    return std::make_shared<const InputFile>(
        path, open_or_throw(at.get(), std::string{name}, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, path));
  }

  /// Takes over an open file.
  InputFile(std::filesystem::path path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) throw_system(path_.string(), errno);
    if (!S_ISREG(status.st_mode)) throw_damaged(path_, "it is no plain file");
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Reads the bytes from begin on. Throws: DataError if there are fewer.
  void read(std::uint64_t begin, std::span<std::byte> to) const {
    for (std::size_t done = 0; done < to.size();) {
      constexpr std::size_t most = std::size_t{1} << 30U;  // one call moves less than 2 GiB
      const ssize_t got =
          ::pread(file_.get(), to.data() + done, std::min(to.size() - done, most), static_cast<off_t>(begin + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_damaged(path_, compose("it cannot be read: {}", explain_errno(errno)));
      if (got == 0)
        throw_damaged(path_, compose("it ends at byte {}, in the middle of what was asked for", begin + done));
      done += static_cast<std::size_t>(got);
    }
  }

  /// Reads all of it, which must not be more than max_size bytes.
  [[nodiscard]] std::string text(std::uint64_t max_size) const {
    if (size_ > max_size) throw_damaged(path_, compose("its {} bytes are more than such a file can have", size_));
    std::string text(static_cast<std::size_t>(size_), '\0');
    read(0, std::as_writable_bytes(std::span{text}));
    return text;
  }

  [[nodiscard]] std::uint32_t checksum() const {
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(size_, std::uint64_t{1} << 20U)));
    Crc32c sum;
    for (std::uint64_t done = 0; done < size_; done += buffer.size()) {
      const auto part =
          std::span{buffer}.first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size_ - done)));
      read(done, part);
      sum.add(part);
    }
    return sum.value();
  }

 private:
  static Descriptor open_or_throw(int directory, const std::string& name, int flags,
                                  const std::filesystem::path& path) {
    const int fd = ::openat(directory, name.c_str(), flags | O_CLOEXEC);
    if (fd >= 0) return adopt(fd, path.string());
    if (errno == ENOENT) throw_damaged(path, "it is missing");
    if (errno == ELOOP || errno == ENOTDIR || errno == ENXIO)
      throw_damaged(path, "it is no plain file in plain folders");
    if (errno == EIO) throw_damaged(path, "the disk cannot read it");
    throw_system(path.string(), errno);
  }

  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/json_values.hpp
// Writes JSON, and values in it so that they come back bit by bit. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

/// Builds the text of one JSON object, lists in one line.
class JsonWriter {
 public:
  /// is_indented: for people; otherwise there is no white space at all.
  explicit JsonWriter(bool is_indented) : is_indented_(is_indented) { text_ += '{'; }

  /// Begins a member of the innermost object; its value follows.
  JsonWriter& name(std::string_view name) {
    separate();
    append_json_text(text_, name);
    text_ += is_indented_ ? ": " : ":";
    return *this;
  }
  void text(std::string_view text) { append_json_text(text_, text); }
  void raw(std::string_view value) { text_ += value; }

  void open() {
    text_ += '{';
    ++depth_;
    is_first_ = true;
  }
  void close() {
    --depth_;
    if (!is_first_) break_line();
    text_ += '}';
    is_first_ = false;
  }
  template <class Numbers>
  void list(const Numbers& numbers) {
    text_ += '[';
    std::string_view separator;
    for (const auto number : numbers) {
      text_ += compose("{}{}", separator, number);
      separator = is_indented_ ? ", " : ",";
    }
    text_ += ']';
  }

  /// Ends the object.
  [[nodiscard]] std::string finish() {
    close();
    return std::move(text_);
  }

 private:
  void separate() {
    if (!is_first_) text_ += ',';
    is_first_ = false;
    break_line();
  }
  void break_line() {
    if (is_indented_) text_.append(1, '\n').append(2 * depth_, ' ');
  }

  bool is_indented_;
  std::string text_{};
  std::size_t depth_ = 1;
  bool is_first_ = true;
};

// What JSON has no form for stands in an object of one name: {"f64": bits} and {"bytes": digits}, in hexadecimal.
inline void write_tagged(JsonWriter& writer, std::string_view tag, std::string_view text) {
  writer.open();
  writer.name(tag).text(text);
  writer.close();
}

inline void write_value(JsonWriter& writer, bool value) { writer.raw(value ? "true" : "false"); }
inline void write_value(JsonWriter& writer, std::int64_t value) { writer.raw(compose("{}", value)); }
inline void write_value(JsonWriter& writer, double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  constexpr std::uint64_t exponent = 0x7FF0'0000'0000'0000U;
  if ((bits & exponent) == exponent) return write_tagged(writer, "f64", compose("{:016x}", bits));
  std::string text = compose("{}", value);                          // the shortest that is read as the same bits
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // or it would come back as an integer
  writer.raw(text);
}
inline void write_value(JsonWriter& writer, const std::string& text) {
  if (is_utf8(text)) return writer.text(text);
  std::string digits;
  for (const char c : text) digits += compose("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  write_tagged(writer, "bytes", digits);
}

inline void write_values(JsonWriter& writer, const NamedValues& values) {
  writer.open();
  for (const auto& [name, value] : values) {
    writer.name(name);
    value.visit([&writer](const auto& held) { write_value(writer, held); });
  }
  writer.close();
}

/// Reads digits, all of them, as one number. Throws: Damage.
template <class T>
[[nodiscard]] T read_hexadecimal(std::string_view digits) {
  T value{};
  const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 2 * sizeof(T) || error != std::errc{} || stopped != digits.data() + digits.size()) {
    throw Damage{compose("\"{}\" is not made of {} hexadecimal digits", digits, 2 * sizeof(T))};
  }
  return value;
}

[[nodiscard]] inline std::string read_bytes(std::string_view digits) {
  std::string text;
  for (; !digits.empty(); digits.remove_prefix(std::min<std::size_t>(2, digits.size()))) {
    text += static_cast<char>(read_hexadecimal<unsigned char>(digits.substr(0, 2)));
  }
  return text;
}

/// Throws: Damage.
[[nodiscard]] inline Value read_value(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::boolean:
      return json.boolean();
    case Json::Kind::text:
      return json.text();
    case Json::Kind::number:
      if (json.number().find_first_of(".eE") == std::string::npos) return json.as<std::int64_t>();
      return json.as<double>();
    case Json::Kind::object:
      if (const Json* bits = json.find("f64"))
        return std::bit_cast<double>(read_hexadecimal<std::uint64_t>(bits->text()));
      if (const Json* digits = json.find("bytes")) return read_bytes(digits->text());
      break;
    case Json::Kind::null:
    case Json::Kind::array:
      break;
  }
  throw Damage{"something stands where a value should be that is none"};
}

[[nodiscard]] inline NamedValues read_values(const Json& json) {
  NamedValues values;
  for (std::size_t i = 0; i < json.names().size(); ++i) values.set(json.names()[i], read_value(json.items()[i]));
  return values;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/names.hpp
// Which names the files of a checkpoint may have, and what they mean. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view user_folder = "files/";

[[nodiscard]] inline bool has_control_characters(std::string_view text) noexcept {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '\x7F') return true;
  }
  return false;
}

/// Returns text as a message may show it.
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string shown{text};
  std::replace_if(
      shown.begin(), shown.end(),
      [](char c) {
        return has_control_characters({&c, 1});
      },
      '?');
  return shown;
}

/// Says why name cannot be that of a file or directory, or nothing if it can.
[[nodiscard]] inline std::string_view fault_of_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > 200) return "it is longer than 200 bytes";  // file systems end at 255, and something is appended
  if (name.find('/') != std::string_view::npos) return "it contains '/'";
  if (name == "." || name == "..") return "it does not name a file of its own";
  if (has_control_characters(name)) return "it contains control characters";
  if (!is_utf8(name)) return "it is not UTF-8";
  return {};
}

/// Says why a file of a checkpoint cannot have this name, or nothing if it can: one name, or more below "files/".
[[nodiscard]] inline std::string_view fault_of_path(std::string_view path) {
  if (!path.starts_with(user_folder)) return fault_of_name(path);
  if (path.size() > 2000) return "it is longer than 2000 bytes";
  for (;;) {
    const auto slash = path.find('/');
    if (const auto fault = fault_of_name(path.substr(0, slash)); !fault.empty()) return fault;
    if (slash == std::string_view::npos) return {};
    path.remove_prefix(slash + 1);
  }
}

/// Says why a part of the training cannot have this name, or nothing if it can.
[[nodiscard]] inline std::string_view fault_of_part(std::string_view name) {
  if (name.find(".rank-") != std::string_view::npos) return "it contains \".rank-\", by which files of ranks are told";
  return fault_of_name(name);
}

[[nodiscard]] inline std::string tensors_name(std::string_view part) { return compose("{}.safetensors", part); }
[[nodiscard]] inline std::string tensors_name(std::string_view part, int rank) {
  return compose("{}.rank-{}.safetensors", part, rank);
}
inline constexpr std::string_view state_name = "state.json";
[[nodiscard]] inline std::string state_name_of(int rank) { return compose("state.rank-{}.json", rank); }

/// Returns the number that stands between prefix and suffix, or nothing if name is not made like that.
template <class T>
[[nodiscard]] std::optional<T> number_between(std::string_view prefix, std::string_view name, std::string_view suffix) {
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  T number{};
  const auto [stopped, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (name.empty() || name.front() == '-' || error != std::errc{} || stopped != name.data() + name.size()) return {};
  return number;
}

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

// The text begins with its own checksum, that of everything behind its eight digits: of the file that says whether the
// others are whole, somebody has to say that.
inline constexpr std::string_view manifest_head = "{\n  \"checksum\": \"";
inline constexpr std::size_t checksum_digits = 8;

[[nodiscard]] inline std::string manifest_checksum(std::string_view text) {
  const auto covered = text.substr(manifest_head.size() + checksum_digits);
  return compose("{:08x}", crc32c(std::as_bytes(std::span{covered})));
}

[[nodiscard]] inline std::string manifest_text(const Manifest& manifest) {
  JsonWriter writer{true};
  const auto put = [&writer](std::string_view name, auto number) { writer.name(name).raw(compose("{}", number)); };
  writer.name("checksum").text(std::string(checksum_digits, '0'));
  put("format", manifest.format);
  writer.name("id").text(manifest.id);
  writer.name("created_at").text(manifest.created_at);
  put("world_size", manifest.world_size);
  put("step", manifest.step);
  put("samples", manifest.samples);
  put("epoch", manifest.epoch);
  put("report", manifest.report);
  put("attempt", manifest.attempt);
  put("generation", manifest.generation);
  write_values(writer.name("metrics"), manifest.metrics);
  write_values(writer.name("environment"), manifest.environment);
  writer.name("files").open();
  for (const ManifestFile& file : manifest.files) {
    writer.name(file.name).open();
    put("size", file.size);
    writer.name("crc32c").text(compose("{:08x}", file.crc32c));
    writer.close();
  }
  writer.close();
  std::string text = writer.finish() + "\n";
  text.replace(manifest_head.size(), checksum_digits, manifest_checksum(text));
  return text;
}

/// Throws: Damage.
[[nodiscard]] inline Manifest read_manifest(std::string_view text) {
  if (!text.starts_with(manifest_head) || text.size() < manifest_head.size() + checksum_digits ||
      text.substr(manifest_head.size(), checksum_digits) != manifest_checksum(text)) {
    throw Damage{"its content does not fit the checksum that it begins with"};
  }
  const Json json = parse_json(text);
  Manifest manifest;
  const int format = json.at("format").as<int>();
  if (format != manifest.format) {
    throw Damage{
        compose("it is of format {}, and this release ({}) reads format {}: use the release that has written "
                "it, or a newer one",
                format, version, manifest.format)};
  }
  manifest.id = json.at("id").text();
  manifest.created_at = json.at("created_at").text();
  manifest.world_size = json.at("world_size").as<int>();
  manifest.step = json.at("step").as<std::uint64_t>();
  manifest.samples = json.at("samples").as<std::uint64_t>();
  manifest.epoch = json.at("epoch").as<std::int64_t>();
  manifest.report = json.at("report").as<std::int64_t>();
  manifest.attempt = json.at("attempt").as<int>();
  manifest.generation = json.at("generation").as<std::uint64_t>();
  manifest.metrics = read_values(json.at("metrics"));
  manifest.environment = read_values(json.at("environment"));
  const Json& files = json.at("files");
  for (std::size_t i = 0; i < files.names().size(); ++i) {
    const std::string& name = files.names()[i];
    if (const auto fault = fault_of_path(name); !fault.empty()) {
      throw Damage{compose("it names a file \"{}\", which cannot be: {}", printable(name), fault)};
    }
    manifest.files.push_back({.name = name,
                              .size = files.items()[i].at("size").as<std::uint64_t>(),
                              .crc32c = read_hexadecimal<std::uint32_t>(files.items()[i].at("crc32c").text())});
  }
  return manifest;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/safetensors.hpp
// The format of files of tensors that everybody can read. Checkpoint room.
// Source: https://github.com/huggingface/safetensors, section "Format".

#include <numeric>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one tensor of a file. Places are counted in bytes from the start of the data, which follows the header.
struct TensorPlace {
  std::string name{};
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

inline constexpr std::uint64_t max_tensors_header = 100'000'000;  // the limit of the format
inline constexpr std::string_view reserved_tensor_name = "__metadata__";

inline constexpr std::array<std::pair<Dtype, std::string_view>, all_dtypes.size()> dtype_tags{
    {{Dtype::f16, "F16"},
     {Dtype::bf16, "BF16"},
     {Dtype::f32, "F32"},
     {Dtype::f64, "F64"},
     {Dtype::i8, "I8"},
     {Dtype::u8, "U8"},
     {Dtype::i32, "I32"},
     {Dtype::i64, "I64"},
     {Dtype::boolean, "BOOL"}}};

[[nodiscard]] inline std::string_view tag_of(Dtype dtype) {
  return std::find_if(dtype_tags.begin(), dtype_tags.end(), [dtype](auto& tag) { return tag.first == dtype; })->second;
}

[[nodiscard]] inline Dtype dtype_of_tag(std::string_view tag) {
  for (const auto& [dtype, text] : dtype_tags) {
    if (text == tag) return dtype;
  }
  throw Damage{compose("elements of type {} are not supported", tag)};
}

/// Returns the product of the sizes of a shape, which may be anything. Throws: Damage if there is no such tensor.
[[nodiscard]] inline std::int64_t checked_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) throw Damage{"a shape has an impossible size"};
  }
  return count;
}

/// Says why a tensor cannot have this name, or nothing if it can.
[[nodiscard]] inline std::string_view fault_of_tensor(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name == reserved_tensor_name) return "it is reserved by the format of the file";
  if (has_control_characters(name)) return "it contains control characters";
  if (!is_utf8(name)) return "it is not UTF-8";
  return {};
}

/// Gives each tensor its place: without gaps, as the format wants it, and the larger elements first, so that each is
/// aligned to its own size. Returns the size of the data.
inline std::uint64_t place_tensors(std::span<TensorPlace> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t size_a = size_of(tensors[a].dtype);
    const std::size_t size_b = size_of(tensors[b].dtype);
    return size_a == size_b ? a < b : size_a > size_b;
  });
  std::uint64_t at = 0;
  for (const std::size_t i : order) {
    tensors[i].begin = at;
    at += static_cast<std::uint64_t>(checked_count(tensors[i].shape)) * size_of(tensors[i].dtype);
    tensors[i].end = at;
  }
  return at;
}

/// Returns what stands before the data: its own length in eight bytes, JSON, and spaces up to a multiple of 64 bytes,
/// so that whoever maps the file finds the data aligned.
[[nodiscard]] inline std::string tensors_header(std::span<const TensorPlace> tensors) {
  JsonWriter writer{false};
  for (const TensorPlace& tensor : tensors) {
    writer.name(tensor.name).open();
    writer.name("dtype").text(tag_of(tensor.dtype));
    writer.name("shape").list(tensor.shape);
    writer.name("data_offsets").list(std::array{tensor.begin, tensor.end});
    writer.close();
  }
  std::string json = writer.finish();
  constexpr std::size_t length_bytes = 8;
  json.resize((length_bytes + json.size() + 63) / 64 * 64 - length_bytes, ' ');
  std::string header(length_bytes, '\0');
  for (std::size_t i = 0; i < length_bytes; ++i) header[i] = static_cast<char>((json.size() >> (8 * i)) & 0xFFU);
  return header + json;
}

/// Reads the length of the header from the first eight bytes of a file. Throws: Damage.
[[nodiscard]] inline std::uint64_t read_tensors_header_length(std::span<const std::byte, 8> bytes,
                                                              std::uint64_t file_size) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > max_tensors_header)
    throw Damage{compose("its header of {} bytes is longer than the format allows", length)};
  if (length > file_size - bytes.size())
    throw Damage{compose("its header of {} bytes is longer than the file", length)};
  return length;
}

[[nodiscard]] inline TensorPlace read_tensor_place(const std::string& name, const Json& json) {
  TensorPlace tensor{.name = name, .dtype = dtype_of_tag(json.at("dtype").text())};
  for (const Json& size : json.at("shape").array()) tensor.shape.push_back(size.as<std::int64_t>());
  const auto& offsets = json.at("data_offsets").array();
  if (offsets.size() != 2) throw Damage{"data_offsets are not two numbers"};
  tensor.begin = offsets[0].as<std::uint64_t>();
  tensor.end = offsets[1].as<std::uint64_t>();
  std::uint64_t size = 0;
  if (__builtin_mul_overflow(checked_count(tensor.shape), size_of(tensor.dtype), &size)) {
    throw Damage{"the shape is larger than any file"};
  }
  if (tensor.end < tensor.begin || tensor.end - tensor.begin != size) {
    throw Damage{compose("its place is from byte {} to {}, but {} bytes are what its shape takes", tensor.begin,
                         tensor.end, size)};
  }
  return tensor;
}

/// Every byte of the data must belong to exactly one tensor.
inline void check_tensor_places(const std::vector<TensorPlace>& tensors, std::uint64_t data_size) {
  std::vector<const TensorPlace*> sorted;
  for (const TensorPlace& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const TensorPlace* a, const TensorPlace* b) {
    return std::pair{a->begin, a->end} < std::pair{b->begin, b->end};
  });
  std::uint64_t at = 0;
  for (const TensorPlace* tensor : sorted) {
    if (tensor->begin != at) {
      throw Damage{compose("the data of tensor \"{}\" begins at byte {}, but that of the one before ends at {}",
                           tensor->name, tensor->begin, at)};
    }
    at = tensor->end;
  }
  if (at != data_size) throw Damage{compose("its tensors take {} bytes, but the file has {} for them", at, data_size)};
}

/// Reads a header, without the eight bytes before it, in front of data_size bytes of data. Throws: Damage.
[[nodiscard]] inline std::vector<TensorPlace> read_tensors_header(std::string_view header, std::uint64_t data_size) {
  const Json json = parse_json(header);
  std::vector<TensorPlace> tensors;
  for (std::size_t i = 0; i < json.names().size(); ++i) {
    const std::string& name = json.names()[i];
    if (name == reserved_tensor_name) continue;
    if (const auto fault = fault_of_tensor(name); !fault.empty()) {
      throw Damage{compose("it has a tensor whose name cannot be: {}", fault)};
    }
    try {
      tensors.push_back(read_tensor_place(name, json.items()[i]));
    } catch (const Damage& damage) {
      throw Damage{compose("tensor \"{}\": {}", name, damage.what())};
    }
  }
  check_tensor_places(tensors, data_size);
  return tensors;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/safetensors.hpp
// Tensors from a file that any program has written. Checkpoint room.

namespace railyard::inline v0_1 {
namespace detail {

inline void check_range(std::int64_t begin, std::int64_t end, std::int64_t count) {
  if (begin < 0 || begin > end || end > count) {
    throw Error{compose("elements [{}, {}) of a tensor of {} were asked for", begin, end, count)};
  }
}

/// Returns the tensors of a file, which stays open for as long as one of their read functions lives.
[[nodiscard]] inline std::vector<StateTensor> tensors_in(const std::shared_ptr<const InputFile>& file) {
  constexpr std::size_t length_bytes = 8;
  if (file->size() < length_bytes) throw_damaged(file->path(), "it is too short for a header");
  std::array<std::byte, length_bytes> length{};
  file->read(0, length);
  return reading(file->path(), [&] {
    std::string header(read_tensors_header_length(length, file->size()), '\0');
    file->read(length_bytes, std::as_writable_bytes(std::span{header}));
    const std::uint64_t data = length_bytes + header.size();
    std::vector<StateTensor> tensors;
    for (TensorPlace& place : read_tensors_header(header, file->size() - data)) {
      StateTensor tensor{.name = std::move(place.name), .dtype = place.dtype, .shape = std::move(place.shape)};
      tensor.read = [file, from = data + place.begin, size = size_of(place.dtype), count = tensor.count()](
                        std::int64_t begin, std::int64_t end, std::byte* to) {
        check_range(begin, end, count);
        file->read(from + static_cast<std::uint64_t>(begin) * size,
                   std::span{to, static_cast<std::size_t>(end - begin) * size});
      };
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  });
}

}  // namespace detail

/// Returns the tensors of a file in the safetensors format, by their names. They are read from the file when their read
/// function is called.
/// Throws: DataError that says what is wrong with the file; Error if it cannot be opened.
[[nodiscard]] inline State read_safetensors(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  State state;
  state.tensors = detail::tensors_in(std::make_shared<const detail::InputFile>(file, detail::adopt(fd, file.string())));
  return state;
}

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

/// Throws: Damage.
[[nodiscard]] inline std::vector<PiecePlace> read_piece_places(const Json& json) {
  std::vector<PiecePlace> places;
  for (std::size_t i = 0; i < json.names().size(); ++i) {
    const Json& piece = json.items()[i];
    PiecePlace place{.name = json.names()[i]};
    for (const Json& size : piece.at("shape").array()) place.shape.push_back(size.as<std::int64_t>());
    place.begin = piece.at("begin").as<std::int64_t>();
    place.end = piece.at("end").as<std::int64_t>();
    if (place.begin < 0 || place.begin > place.end || place.end > checked_count(place.shape)) {
      throw Damage{compose("the piece [{}, {}) of tensor \"{}\" is not within it", place.begin, place.end, place.name)};
    }
    places.push_back(std::move(place));
  }
  return places;
}

/// Collects the pieces of one tensor.
class Pieces {
 public:
  /// Throws: Damage if the piece is none of the same tensor.
  void add(const PiecePlace& place, const StateTensor& data) {
    if (data.count() != place.end - place.begin) {
      throw Damage{compose("tensor \"{}\" has {} elements and should have {}", place.name, data.count(),
                           place.end - place.begin)};
    }
    if (pieces_.empty()) {
      shape_ = place.shape;
      dtype_ = data.dtype;
    } else if (shape_ != place.shape || dtype_ != data.dtype) {
      throw Damage{compose("tensor \"{}\" is of another shape or type than in the files of other ranks", place.name)};
    }
    pieces_.push_back({place.begin, place.end, place.begin, data.read});
  }

  /// Returns the whole. Throws: DataError, in the name of all files, if elements are missing.
  [[nodiscard]] StateTensor assemble(const std::filesystem::path& files, const std::string& name) && {
    StateTensor whole{.name = name, .dtype = dtype_, .shape = shape_};
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    std::int64_t reached = 0;
    for (Piece& piece : pieces_) {
      if (piece.begin > reached) break;
      piece.begin = std::min(reached, piece.end);  // what two ranks have written is taken from the first
      reached = std::max(reached, piece.end);
    }
    if (reached != whole.count()) {
      throw_damaged(files, compose("the elements of tensor \"{}\" from {} on are in none of them", name, reached));
    }
    whole.read = [pieces = std::move(pieces_), count = whole.count(),
                  size = static_cast<std::int64_t>(size_of(dtype_))](std::int64_t begin, std::int64_t end,
                                                                     std::byte* to) {
      check_range(begin, end, count);
      for (const Piece& piece : pieces) {
        const std::int64_t from = std::max(begin, piece.begin);
        const std::int64_t until = std::min(end, piece.end);
        if (from < until) piece.read(from - piece.origin, until - piece.origin, to + (from - begin) * size);
      }
    };
    return whole;
  }

 private:
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t origin = 0;  // which element of the whole the first of its file is
    decltype(StateTensor::read) read{};
  };

  std::vector<std::int64_t> shape_{};
  Dtype dtype_ = Dtype::f32;
  std::vector<Piece> pieces_{};
};

/// Adds what one rank has written to the tensors it belongs to. Throws: DataError.
inline void add_pieces(std::map<std::string, Pieces>& tensors, const std::vector<PiecePlace>& places,
                       const std::shared_ptr<const InputFile>& file) {
  const auto data = tensors_in(file);
  reading(file->path(), [&] {
    for (const PiecePlace& place : places) {
      const auto found =
          std::find_if(data.begin(), data.end(), [&place](auto& tensor) { return tensor.name == place.name; });
      if (found == data.end()) throw Damage{compose("tensor \"{}\" is missing", place.name)};
      tensors[place.name].add(place, *found);
    }
  });
}

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
/// retention leaves the checkpoint's files alone.
class Checkpoint {
 public:
  /// Reads the manifest and compares the sizes of all files.
  /// Throws: DataError that names the file, says what is wrong with it and what to do; Error if a file may be whole,
  /// but cannot be opened.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory) {
    auto contents = std::make_shared<Contents>();
    contents->path = std::filesystem::absolute(directory);
    contents->lock = detail::InputFile::open(contents->path, detail::manifest_name);
    lock(*contents->lock);
    const std::string text = contents->lock->text(detail::max_manifest_size);
    contents->manifest = detail::reading(contents->lock->path(), [&] { return detail::read_manifest(text); });
    for (const ManifestFile& file : contents->manifest.files) {
      const auto size = detail::InputFile::open(contents->path, file.name)->size();
      if (size != file.size) {
        detail::throw_damaged(contents->path / file.name,
                              detail::compose("it has {} bytes and should have {}", size, file.size));
      }
    }
    return Checkpoint{std::move(contents)};
  }

  /// Reads all files and compares their checksums. Throws: DataError that names the file that is damaged.
  void verify() const {
    for (const ManifestFile& file : manifest().files) {
      const std::uint32_t checksum = detail::InputFile::open(path(), file.name)->checksum();
      if (checksum != file.crc32c) {
        detail::throw_damaged(path() / file.name, detail::compose("its content has changed: its CRC-32C is {:08x} and "
                                                                  "should be {:08x}",
                                                                  checksum, file.crc32c));
      }
    }
  }

  [[nodiscard]] const Manifest& manifest() const& noexcept { return contents_->manifest; }
  [[nodiscard]] Manifest manifest() && { return contents_->manifest; }  // outlives a checkpoint without a name
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return contents_->path; }

  /// The names of all parts, those that each rank has for itself included.
  [[nodiscard]] std::vector<std::string> parts() const {
    std::vector<std::string> all;
    for (const ManifestFile& file : manifest().files) {
      if (file.name != detail::state_name && !rank_of(file)) continue;
      const auto names = reading_states(file.name, [](const detail::Json& states) { return states.names(); });
      all.insert(all.end(), names.begin(), names.end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  [[nodiscard]] bool contains(std::string_view part) const {
    const auto all = parts();
    return std::find(all.begin(), all.end(), part) != all.end();
  }

  /// Returns the state of a part, or nothing if there is none. The pieces of all ranks are one tensor again. Of a part
  /// that each rank has for itself, that of this rank, or nothing. Tensors are read from the files when their read
  /// function is called, which may be after the last copy of the checkpoint is gone.
  /// Throws: DataError if a file is damaged, or elements of a tensor are in none of them.
  [[nodiscard]] std::optional<State> load(std::string_view part, int rank) const {
    if (auto values = values_in(std::string{detail::state_name}, part)) {
      State state;
      state.values = std::move(*values);
      add_tensors(state, detail::tensors_name(part));
      add_pieces(state, part);
      return state;
    }
    if (auto values = values_in(detail::state_name_of(rank), part)) {
      State state;
      state.is_own = true;
      state.values = std::move(*values);
      add_tensors(state, detail::tensors_name(part, rank));
      return state;
    }
    return std::nullopt;
  }

  /// Where the files are that the user has added.
  [[nodiscard]] std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> paths;
    for (const ManifestFile& file : manifest().files) {
      if (file.name.starts_with(detail::user_folder)) paths.push_back(path() / file.name);
    }
    return paths;
  }

 private:
  struct Contents {
    std::filesystem::path path{};
    Manifest manifest{};
    std::shared_ptr<const detail::InputFile> lock{};
  };

  explicit Checkpoint(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  // Whoever wants to remove the checkpoint takes the lock for himself alone. Where there are no locks at all, nobody
  // can be kept from it.
  static void lock(const detail::InputFile& manifest) {
    if (::flock(manifest.descriptor(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      detail::throw_damaged(manifest.path(), "it is being removed");
    }
    struct stat opened {};
    struct stat named {};
    if (::fstat(manifest.descriptor(), &opened) != 0 || ::stat(manifest.path().c_str(), &named) != 0 ||
        opened.st_ino != named.st_ino) {
      detail::throw_damaged(manifest.path(), "it has just been removed");
    }
  }

  [[nodiscard]] bool has_file(std::string_view name) const {
    const auto& files = manifest().files;
    return std::any_of(files.begin(), files.end(), [name](const ManifestFile& file) { return file.name == name; });
  }

  static std::optional<int> rank_of(const ManifestFile& file) {
    return detail::number_between<int>("state.rank-", file.name, ".json");
  }

  // Calls read with the parts of a file of states, whose checksum is looked at each time: it is small.
  template <class Read>
  std::invoke_result_t<const Read&, const detail::Json&> reading_states(const std::string& name,
                                                                        const Read& read) const {
    const auto file = detail::InputFile::open(path(), name);
    return detail::reading(file->path(), [&] {
      const std::string text = file->text(detail::max_manifest_size);
      const auto& files = manifest().files;
      const auto entry = std::find_if(files.begin(), files.end(), [&](auto& listed) { return listed.name == name; });
      if (detail::crc32c(std::as_bytes(std::span{text})) != entry->crc32c) {
        throw detail::Damage{"its content has changed"};
      }
      return read(detail::parse_json(text).at("parts"));
    });
  }

  [[nodiscard]] std::optional<NamedValues> values_in(const std::string& name, std::string_view part) const {
    if (!has_file(name)) return std::nullopt;
    return reading_states(name, [part](const detail::Json& states) -> std::optional<NamedValues> {
      const detail::Json* state = states.find(part);
      const detail::Json* values = state == nullptr ? nullptr : state->find("values");
      if (values == nullptr) return std::nullopt;
      return detail::read_values(*values);
    });
  }

  void add_tensors(State& state, const std::string& name) const {
    if (has_file(name)) state.tensors = detail::tensors_in(detail::InputFile::open(path(), name));
  }

  void add_pieces(State& state, std::string_view part) const {
    std::map<std::string, detail::Pieces> tensors;
    for (const ManifestFile& file : manifest().files) {
      const auto rank = rank_of(file);
      if (!rank) continue;
      const auto places = reading_states(file.name, [part](const detail::Json& states) {
        const detail::Json* of_part = states.find(part);
        const detail::Json* pieces = of_part == nullptr ? nullptr : of_part->find("pieces");
        return pieces == nullptr ? std::vector<detail::PiecePlace>{} : detail::read_piece_places(*pieces);
      });
      if (places.empty()) continue;
      const auto data = detail::InputFile::open(path(), detail::tensors_name(part, *rank));
      detail::add_pieces(tensors, places, data);
    }
    for (auto& [name, pieces] : tensors) {
      state.tensors.push_back(
          std::move(pieces).assemble(path() / detail::compose("{}.rank-*.safetensors", part), name));
    }
  }

  std::shared_ptr<const Contents> contents_;
};

}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/files.hpp
// The one seam through which a checkpoint's files are changed. Checkpoint room.

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

  virtual int make_directory(const Path& path) { return ::mkdir(path.c_str(), 0777); }
  /// Returns a descriptor of a file that is new.
  virtual int create(const Path& path) { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }
  virtual int open_directory(const Path& path) { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }
  virtual ssize_t write(int fd, const std::byte* from, std::size_t size) { return ::write(fd, from, size); }
  /// Has the bytes on their way to the disk, and waits until they are there if asked to. Makes nothing durable.
  virtual int write_back(int fd, std::size_t begin, std::size_t size, bool waits) {
    const unsigned wait = waits ? SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER : 0U;
    return ::sync_file_range(fd, static_cast<off64_t>(begin), static_cast<off64_t>(size), SYNC_FILE_RANGE_WRITE | wait);
  }
  virtual int sync(int fd) { return ::fsync(fd); }
  virtual int close(int fd) { return ::close(fd); }
  virtual int rename(const Path& from, const Path& to) { return ::rename(from.c_str(), to.c_str()); }
  virtual int unlink(const Path& path) { return ::unlink(path.c_str()); }
  virtual int remove_directory(const Path& path) { return ::rmdir(path.c_str()); }
  /// Appends the names of what is in a directory.
  virtual int list(const Path& path, std::vector<std::string>& names) {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory{::opendir(path.c_str()), ::closedir};
    if (!directory) return -1;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) return errno == 0 ? 0 : -1;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
  }
};

/// Repeats a call that a signal has interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

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

/// Says what to do about an error of the storage.
[[nodiscard]] inline std::string remedy_of(int error, const std::filesystem::path& path) {
  std::error_code code;
  switch (error) {
    case ENOSPC: {
      const auto space = std::filesystem::space(path.parent_path(), code);
      return compose("the file system has {} MB left: make room, or keep fewer checkpoints",
                     code ? 0 : space.available / 1'000'000);
    }
    case EDQUOT:
      return "the quota of disk space is used up: make room, or ask for more";
    case EFBIG:
      return "no file may become that large: see ulimit -f";
    case EROFS:
      return "the file system is mounted read-only: choose another folder, or have it checked and mounted anew";
    case EIO:
      return "the disk or the network storage fails: see the kernel's log (dmesg), and choose another folder";
    case EACCES:
    case EPERM:
      return "choose a folder that this user may write to";
    default:
      return "choose another folder if this lasts";
  }
}

/// Says why what is written below this directory would not last, or nothing if no reason is known.
[[nodiscard]] inline std::string_view doubt_about(const std::filesystem::path& directory) {
  constexpr long overlay = 0x794C7630;  // OVERLAYFS_SUPER_MAGIC, which not all releases of the kernel's headers have
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0) return {};
  const auto type = static_cast<long>(status.f_type);
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) return "it is kept in memory, and gone when the machine stops";
  if (type == overlay) return "it belongs to a container, and is gone with it";
  return {};
}

[[noreturn]] inline void throw_storage(const std::filesystem::path& path, const FailedCall& failed) {
  throw Error{compose("{}: {} failed: {}; {}", path.string(), failed.call, explain_errno(failed.error),
                      remedy_of(failed.error, path))};
}

inline void check_call(int result, std::string_view call, const std::filesystem::path& path) {
  if (result < 0) throw_storage(path, {call, errno});
}

/// Makes what has been done to the entries of a directory durable.
inline void sync_directory(Files& files, const std::filesystem::path& path) {
  const int fd = uninterrupted([&] { return files.open_directory(path); });
  check_call(fd, "opening the directory", path);
  const int result = uninterrupted([&] { return files.sync(fd); });
  const int error = errno;
  files.close(fd);
  // Some network file systems have nothing to be synchronised in a directory, and say so.
  if (result < 0 && error != EINVAL) throw_storage(path, {"fsync of the directory", error});
}

/// Removes a file, or a directory with all that is in it. Returns 0, or the error that it has met first; goes on all
/// the same.
inline int remove_all(Files& files, const std::filesystem::path& path) {
  if (files.unlink(path) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return errno == ENOENT ? 0 : errno;
  std::vector<std::string> names;
  int first = files.list(path, names) == 0 ? 0 : errno;
  for (const std::string& name : names) {
    const int error = remove_all(files, path / name);
    if (first == 0) first = error;
  }
  if (files.remove_directory(path) != 0 && first == 0) first = errno;
  return first;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/checkpoint/detail/staging.hpp
// Writes a directory that nobody sees yet, so that it survives a power cut. Checkpoint room.

#include <set>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a new directory that is filled, made durable, and then renamed. Removed at the end if that did not happen.
class Staging {
 public:
  Staging(Files& files, std::filesystem::path path) : files_(files), path_(std::move(path)) { make_directory(path_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    if (!is_published_) remove_all(files_, path_);  // what cannot be removed now is swept at the next start
  }

  /// Writes a file and returns what the manifest says of it. A file that could not be written is written anew, because
  /// after a failed fsync nobody knows which of its pages are on the disk; a second fsync would say that all are.
  /// Throws: Error.
  ManifestFile write(const std::string& name, std::span<const std::byte> bytes) {
    make_folders(name);
    const auto path = path_ / name;
    const WriteSignalGuard<SIGXFSZ> guard;
    std::optional<FailedCall> first;
    constexpr int max_attempts = 3;
    for (int attempt = 0; attempt < max_attempts; ++attempt) {
      Crc32c sum;
      const auto failed = try_write(path, bytes, sum);
      if (!failed) return {.name = name, .size = bytes.size(), .crc32c = sum.value()};
      if (!first) first = failed;
      files_.unlink(path);
    }
    throw_storage(path, *first);
  }

  /// Makes durable which files there are.
  void seal() {
    for (const auto& folder : folders_) sync_directory(files_, folder);
  }

  /// Gives the directory its name. Returns 0 or the error, after which the name may have been given all the same.
  int publish(const std::filesystem::path& name) {
    is_published_ = uninterrupted([&] { return files_.rename(path_, name); }) == 0;
    return is_published_ ? 0 : errno;
  }
  /// Says that it is gone to where somebody has found it.
  void set_published() noexcept { is_published_ = true; }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{8} << 20U;
  static constexpr std::size_t max_dirty_bytes = 4 * piece_bytes;

  void make_directory(const std::filesystem::path& path) {
    check_call(uninterrupted([&] { return files_.make_directory(path); }), "making the directory", path);
    folders_.insert(path);
  }

  void make_folders(const std::string& name) {
    for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
      const auto folder = path_ / name.substr(0, slash);
      if (!folders_.contains(folder)) make_directory(folder);
    }
  }

  std::optional<FailedCall> try_write(const std::filesystem::path& path, std::span<const std::byte> bytes,
                                      Crc32c& sum) {
    const int fd = uninterrupted([&] { return files_.create(path); });
    if (fd < 0) return FailedCall{"making the file", errno};
    auto failed = try_fill(fd, bytes, sum);
    if (!failed && uninterrupted([&] { return files_.sync(fd); }) != 0) failed = FailedCall{"fsync", errno};
    // Never closed twice: the number may be another file's by then.
    if (files_.close(fd) != 0 && errno != EINTR && !failed) failed = FailedCall{"close", errno};
    return failed;
  }

  std::optional<FailedCall> try_fill(int fd, std::span<const std::byte> bytes, Crc32c& sum) {
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece_bytes) {
      const auto piece = bytes.subspan(begin, std::min(piece_bytes, bytes.size() - begin));
      for (std::size_t done = 0; done < piece.size();) {
        const auto left = piece.subspan(done);
        const ssize_t written = uninterrupted([&] { return files_.write(fd, left.data(), left.size()); });
        if (written <= 0) return FailedCall{"write", written == 0 ? EIO : errno};
        done += static_cast<std::size_t>(written);
      }
      sum.add(piece);
      if (const int error = pace(fd, begin, piece.size()); error != 0) return FailedCall{"writing back", error};
    }
    return std::nullopt;
  }

  // Keeps the disk busy from the start and little unwritten: what gathers in memory until fsync would hold up everybody
  // who writes to this disk, training included.
  int pace(int fd, std::size_t begin, std::size_t size) {
    int result = files_.write_back(fd, begin, size, false);
    if (result == 0 && begin >= max_dirty_bytes) {
      result = files_.write_back(fd, begin - max_dirty_bytes, piece_bytes, true);
    }
    // An error of the disk that is told here is not told again by fsync.
    return result != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT) ? errno : 0;
  }

  Files& files_;
  std::filesystem::path path_;
  std::set<std::filesystem::path> folders_{};
  bool is_published_ = false;
};

}  // namespace detail
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

namespace detail {

/// Returns the score, larger is better; nothing if there is none, or it is NaN or no number.
[[nodiscard]] inline std::optional<double> score_of(const Manifest& manifest, const Retention& retention) {
  if (retention.score.empty()) return std::nullopt;
  const Value* value = manifest.metrics.find(retention.score);
  if (value == nullptr || value->is<std::string>()) return std::nullopt;
  const double score = value->number();
  // By its bits, so that -ffast-math cannot make a number of it.
  constexpr std::uint64_t infinity = 0x7FF0'0000'0000'0000U;
  if ((std::bit_cast<std::uint64_t>(score) & ~(std::uint64_t{1} << 63U)) > infinity) return std::nullopt;
  return retention.order == ScoreOrder::max ? score : -score;
}

/// Returns the best of the checkpoints, which are given oldest first: the best first, of equals the later first.
[[nodiscard]] inline std::vector<Checkpoint> best_of(const std::vector<Checkpoint>& checkpoints,
                                                     const Retention& retention) {
  std::vector<std::pair<std::optional<double>, std::size_t>> ranking;  // no score is less than any
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    ranking.emplace_back(score_of(checkpoints[i].manifest(), retention), i);
  }
  std::sort(ranking.begin(), ranking.end(), std::greater<>{});
  std::vector<Checkpoint> best;
  for (const auto& [score, i] : ranking) {
    if (retention.keep > 0 && best.size() == static_cast<std::size_t>(retention.keep)) break;
    best.push_back(checkpoints[i]);
  }
  return best;
}

}  // namespace detail
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
    std::span<const std::byte> bytes{};
  };

  /// folder: made by the first commit; the directory in which it lies must exist and be durable.
  /// generation: grows with each program that takes the run over, so that what an earlier one has left can be told.
  explicit CheckpointFolder(std::filesystem::path folder, std::uint64_t generation = 0,
                            std::shared_ptr<detail::Files> files = std::make_shared<detail::Files>())
      : folder_(std::filesystem::absolute(folder)), generation_(generation), files_(std::move(files)) {}

  /// Does the run still belong to this program? Is asked right before a checkpoint becomes visible.
  std::function<bool()> still_mine{};

  /// Makes a checkpoint of the parts and returns its directory once it is durable. Names of parts that begin with
  /// "files/" are the user's own files.
  /// Throws: Error that names the file, what went wrong and what to do: all other checkpoints are as they were then,
  /// and what was written is removed. Only if the very last call fails, the fsync of the folder, the checkpoint is
  /// there, but may not survive a power cut. ConfigError for names that cannot be.
  std::filesystem::path commit(Manifest manifest, std::span<const Part> parts) {
    check_names(parts);
    complete(manifest);
    make_folder();
    detail::Staging staging{*files_, folder_ / detail::compose("{}{}-{}", staging_prefix, generation_, manifest.id)};
    try {
      fill(staging, manifest, parts);
    } catch (const Error&) {
      check_still_mine();  // whoever has taken the run over removes what is written here
      throw;
    }
    check_still_mine();
    auto path = publish(staging, manifest.id);
    detail::sync_directory(*files_, folder_);
    return path;
  }

  /// Returns the complete checkpoints, oldest first. Damaged ones are left out: see problems().
  [[nodiscard]] std::vector<Checkpoint> list() const {
    std::vector<Checkpoint> all;
    for (const std::uint64_t number : numbers()) {
      if (auto checkpoint = open(number)) all.push_back(std::move(*checkpoint));
    }
    return all;
  }

  /// Returns the newest complete checkpoint.
  [[nodiscard]] std::optional<Checkpoint> newest() const {
    const auto all = numbers();
    for (auto number = all.rbegin(); number != all.rend(); ++number) {
      if (auto checkpoint = open(*number)) return checkpoint;
    }
    return std::nullopt;
  }

  /// Returns the newest checkpoint whose checksums are right, those of this generation unseen: this program has written
  /// them. problems gets what is wrong with newer ones.
  [[nodiscard]] std::optional<Checkpoint> newest_whole(std::vector<std::string>& problems) const {
    const auto all = numbers();
    for (auto number = all.rbegin(); number != all.rend(); ++number) {
      auto checkpoint = open(*number, &problems);
      if (!checkpoint) continue;
      try {
        if (checkpoint->manifest().generation != generation_) checkpoint->verify();
        return checkpoint;
      } catch (const DataError& error) {
        problems.emplace_back(error.what());
      }
    }
    return std::nullopt;
  }

  /// Says what is wrong with the checkpoints that list() leaves out.
  [[nodiscard]] std::vector<std::string> problems() const {
    std::vector<std::string> all;
    for (const std::uint64_t number : numbers()) open(number, &all);
    return all;
  }

  /// Says why checkpoints here would not last, such as "it is kept in memory, ..."; nothing if no reason is known.
  [[nodiscard]] std::string_view doubt() const { return detail::doubt_about(folder_.parent_path()); }

  /// Removes what unfinished commits and removals of this or an earlier generation have left. To be called when the run
  /// has been taken over, before looking for the newest checkpoint: from then on nobody of an earlier generation can
  /// finish a commit that he has begun. Throws: Error if something cannot be removed.
  void sweep() {
    std::vector<std::filesystem::path> rubbish;
    for (const std::string& name : names()) {
      const auto generation = generation_of(name);
      if (!generation || *generation > generation_) continue;
      rubbish.push_back(folder_ / name);
      if (name.starts_with(trash_prefix)) continue;
      // In one step: were it gone file by file, its owner could still give it the name of a checkpoint meanwhile.
      auto trash = trash_of(name);
      if (files_->rename(rubbish.back(), trash) == 0) rubbish.back() = std::move(trash);
    }
    remove(rubbish);
  }

  /// Removes all complete checkpoints but the best and the newest; those that somebody reads stay for now.
  /// Throws: Error if one cannot be removed.
  void retain(const Retention& retention) {
    if (retention.keep == 0) return;
    std::vector<Doomed> doomed = take_away(retention);
    if (doomed.empty()) return;
    // Before that is durable no file may go: a power cut could bring the old name back.
    detail::sync_directory(*files_, folder_);
    std::vector<std::filesystem::path> trash;
    for (const Doomed& one : doomed) trash.push_back(one.trash);
    remove(trash);
  }

  /// Returns the checkpoints that retention would keep for their score, best first.
  [[nodiscard]] std::vector<Checkpoint> best(const Retention& retention) const {
    return detail::best_of(list(), retention);
  }

 private:
  static constexpr std::string_view checkpoint_prefix = "checkpoint-";
  static constexpr std::string_view staging_prefix = ".staging-";
  static constexpr std::string_view trash_prefix = ".trash-";

  /// Is a checkpoint on its way out, and the lock that keeps readers from it.
  struct Doomed {
    std::filesystem::path trash{};
    detail::Descriptor lock{};
  };

  static void check_names(std::span<const Part> parts) {
    std::set<std::string_view> names{detail::manifest_name};
    for (const Part& part : parts) {
      std::string_view fault = detail::fault_of_path(part.name);
      if (fault.empty() && !names.insert(part.name).second) fault = "the name is taken";
      if (fault.empty()) continue;
      throw ConfigError{
          detail::compose("a checkpoint cannot have a file \"{}\": {}", detail::printable(part.name), fault)};
    }
  }

  void make_folder() {
    if (is_made_) return;
    const int result = detail::uninterrupted([&] { return files_->make_directory(folder_); });
    if (result != 0 && errno != EEXIST) detail::throw_storage(folder_, {"making the directory", errno});
    // Also if it was there: perhaps somebody has made it who came no further than that.
    detail::sync_directory(*files_, folder_.parent_path());
    is_made_ = true;
  }

  void complete(Manifest& manifest) const {
    if (manifest.id.empty()) {
      std::random_device random;
      manifest.id = detail::compose("{:08x}{:08x}", random(), random());
    }
    if (const auto fault = detail::fault_of_name(manifest.id); !fault.empty()) {
      throw ConfigError{detail::compose("Manifest::id is \"{}\": {}", detail::printable(manifest.id), fault)};
    }
    if (manifest.created_at.empty()) {
      const std::time_t now = std::time(nullptr);
      std::tm parts{};
      ::gmtime_r(&now, &parts);
      char text[32];
      manifest.created_at.assign(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
    }
    manifest.generation = generation_;
    manifest.files.clear();
  }

  static void fill(detail::Staging& staging, Manifest& manifest, std::span<const Part> parts) {
    for (const Part& part : parts) manifest.files.push_back(staging.write(part.name, part.bytes));
    const std::string text = detail::manifest_text(manifest);
    staging.write(std::string{detail::manifest_name}, std::as_bytes(std::span{text}));
    staging.seal();
  }

  void check_still_mine() const {
    if (!still_mine || still_mine()) return;
    throw Error{
        detail::compose("{}: another program has taken this run over while a checkpoint was written, which is given "
                        "up: end this program",
                        folder_.string())};
  }

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t number) const {
    return folder_ / detail::compose("{}{:06}", checkpoint_prefix, number);
  }

  [[nodiscard]] std::filesystem::path trash_of(std::string_view name) const {
    return folder_ / detail::compose("{}{}-{}", trash_prefix, generation_, name);
  }

  std::filesystem::path publish(detail::Staging& staging, const std::string& id) {
    const auto taken = numbers();
    for (std::uint64_t number = taken.empty() ? 1 : taken.back() + 1;; ++number) {
      const auto path = path_of(number);
      const int error = staging.publish(path);
      if (error == 0) return path;
      // Over a network the answer to a rename that has happened can be an error.
      if (has_id(path, id)) {
        staging.set_published();
        return path;
      }
      if (error != EEXIST && error != ENOTEMPTY) detail::throw_storage(path, {"rename", error});
    }
  }

  static bool has_id(const std::filesystem::path& path, const std::string& id) {
    try {
      return Checkpoint::open(path).manifest().id == id;
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (detail::uninterrupted([&] { return files_->list(folder_, names); }) != 0 && errno != ENOENT) {
      detail::throw_storage(folder_, {"listing the directory", errno});
    }
    return names;
  }

  [[nodiscard]] std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const std::string& name : names()) {
      const auto number = detail::number_between<std::uint64_t>(checkpoint_prefix, name, "");
      if (number && path_of(*number).filename() == name) numbers.push_back(*number);
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

  static std::optional<std::uint64_t> generation_of(std::string_view name) {
    for (const auto prefix : {staging_prefix, trash_prefix}) {
      if (!name.starts_with(prefix)) continue;
      const auto dash = name.find('-', prefix.size());
      if (dash == std::string_view::npos) return std::nullopt;
      return detail::number_between<std::uint64_t>(prefix, name.substr(0, dash), "");
    }
    return std::nullopt;
  }

  std::optional<Checkpoint> open(std::uint64_t number, std::vector<std::string>* problems = nullptr) const {
    try {
      return Checkpoint::open(path_of(number));
    } catch (const DataError& error) {
      if (problems != nullptr) problems->emplace_back(error.what());
      return std::nullopt;
    }
  }

  // Renames what need not be kept, so that it is complete or absent whatever happens while its files are removed.
  std::vector<Doomed> take_away(const Retention& retention) {
    std::vector<std::filesystem::path> candidates;
    {
      const auto all = list();
      std::set<std::filesystem::path> kept;
      for (const Checkpoint& checkpoint : detail::best_of(all, retention)) kept.insert(checkpoint.path());
      for (std::size_t i = 0; i + 1 < all.size(); ++i) {  // the last is the newest
        if (!kept.contains(all[i].path())) candidates.push_back(all[i].path());
      }
    }  // from here on this function itself reads none of them
    std::vector<Doomed> doomed;
    for (const auto& path : candidates) {
      detail::Descriptor lock{::open((path / detail::manifest_name).c_str(), O_RDWR | O_CLOEXEC)};
      if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
      auto trash = trash_of(path.filename().string());
      detail::check_call(detail::uninterrupted([&] { return files_->rename(path, trash); }), "rename", path);
      doomed.push_back({std::move(trash), std::move(lock)});
    }
    return doomed;
  }

  void remove(const std::vector<std::filesystem::path>& paths) {
    std::optional<Error> first;
    for (const auto& path : paths) {
      const int error = detail::remove_all(*files_, path);
      if (error != 0 && !first) {
        first.emplace(detail::compose("{} cannot be removed: {}; the next start tries again", path.string(),
                                      detail::explain_errno(error)));
      }
    }
    if (first) throw *first;
  }

  std::filesystem::path folder_;
  std::uint64_t generation_;
  std::shared_ptr<detail::Files> files_;
  bool is_made_ = false;
};

/// Returns the newest complete checkpoint in the directory of a run, or nothing.
[[nodiscard]] inline std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& run) {
  return CheckpointFolder{run / "checkpoints"}.newest();
}

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
};

/// Is the state of a part of the training, by the name of the part.
struct NamedState {
  std::string name{};
  State state{};
};

namespace detail {

[[noreturn]] inline void refuse_part(std::string_view part, std::string_view why) {
  throw ConfigError{compose("the part \"{}\" cannot be in a checkpoint: {}", printable(part), why)};
}

inline void check_tensor(const NamedState& part, const StateTensor& tensor) {
  const auto refuse = [&](std::string_view why) {
    refuse_part(part.name, compose("its tensor \"{}\": {}", printable(tensor.name), why));
  };
  if (const auto fault = fault_of_tensor(tensor.name); !fault.empty()) refuse(fault);
  if (!tensor.read) refuse("it has no read function");
  try {
    (void)checked_count(tensor.shape);
  } catch (const Damage& damage) {
    refuse(damage.what());
  }
  if (!tensor.is_piece) return;
  if (part.state.is_own) refuse("a piece is of what all ranks have, but the part is this rank's own");
  if (tensor.begin < 0 || tensor.begin > tensor.end || tensor.end > tensor.count()) {
    refuse(compose("the piece [{}, {}) is not within its {} elements", tensor.begin, tensor.end, tensor.count()));
  }
}

inline void check_parts(std::span<const NamedState> parts) {
  std::set<std::string_view> part_names;
  for (const NamedState& part : parts) {
    if (const auto fault = fault_of_part(part.name); !fault.empty()) refuse_part(part.name, fault);
    if (!part_names.insert(part.name).second) refuse_part(part.name, "there are two parts of this name");
    for (const auto& [name, value] : part.state.values) {
      if (!is_utf8(name)) refuse_part(part.name, "the name of one of its values is not UTF-8");
    }
    std::set<std::string_view> tensor_names;
    for (const StateTensor& tensor : part.state.tensors) {
      check_tensor(part, tensor);
      if (!tensor_names.insert(tensor.name).second) {
        refuse_part(part.name, compose("it has two tensors \"{}\"", tensor.name));
      }
    }
  }
}

[[nodiscard]] inline FileImage text_image(std::string name, std::string text) {
  const std::size_t size = text.size();
  return {std::move(name), size,
          [text = std::move(text)](std::byte* to) { std::memcpy(to, text.data(), text.size()); }};
}

/// Is what has to be remembered of a file of tensors until it is filled.
struct TensorsImage {
  std::vector<StateTensor> tensors{};
  std::vector<TensorPlace> places{};
  std::string header{};

  void fill(std::byte* to) const {
    std::memcpy(to, header.data(), header.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const StateTensor& tensor = tensors[i];
      if (places[i].begin == places[i].end) continue;
      std::byte* place = to + header.size() + places[i].begin;
      tensor.is_piece ? tensor.read(tensor.begin, tensor.end, place) : tensor.read(0, tensor.count(), place);
    }
  }
};

[[nodiscard]] inline FileImage tensors_image(std::string name, std::vector<StateTensor> tensors) {
  auto image = std::make_shared<TensorsImage>();
  for (const StateTensor& tensor : tensors) {
    image->places.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    if (tensor.is_piece) image->places.back().shape = {tensor.end - tensor.begin};
  }
  const std::uint64_t data_size = place_tensors(image->places);
  image->tensors = std::move(tensors);
  image->header = tensors_header(image->places);
  const std::size_t size = image->header.size() + static_cast<std::size_t>(data_size);
  return {std::move(name), size, [image](std::byte* to) { image->fill(to); }};
}

/// Adds the file of those tensors of the part that are wanted, if there are any.
template <class Wanted>
void add_tensors(std::vector<FileImage>& images, std::string name, const State& state, const Wanted& wanted) {
  std::vector<StateTensor> tensors;
  std::copy_if(state.tensors.begin(), state.tensors.end(), std::back_inserter(tensors), wanted);
  if (!tensors.empty()) images.push_back(tensors_image(std::move(name), std::move(tensors)));
}

[[nodiscard]] inline bool has_pieces(const State& state) noexcept {
  return std::any_of(state.tensors.begin(), state.tensors.end(), [](auto& tensor) { return tensor.is_piece; });
}

// Where the pieces of this rank lie in the whole.
inline void write_pieces(JsonWriter& writer, const State& state) {
  writer.open();
  for (const StateTensor& tensor : state.tensors) {
    if (!tensor.is_piece) continue;
    writer.name(tensor.name).open();
    writer.name("shape").list(tensor.shape);
    writer.name("begin").raw(compose("{}", tensor.begin));
    writer.name("end").raw(compose("{}", tensor.end));
    writer.close();
  }
  writer.close();
}

/// Returns the JSON file of those parts that are wanted: {"parts": {"net": {"values": {...}}}}. Of a part that all
/// ranks have, a rank's file tells the pieces, and the file of all ranks the values.
template <class Wanted>
[[nodiscard]] FileImage states_image(std::string name, std::span<const NamedState> parts, bool is_of_rank,
                                     const Wanted& wanted) {
  JsonWriter writer{true};
  writer.name("parts").open();
  for (const auto& [part, state] : parts) {
    if (!wanted(state)) continue;
    writer.name(part).open();
    if (is_of_rank && !state.is_own) {
      write_pieces(writer.name("pieces"), state);
    } else {
      write_values(writer.name("values"), state.values);
    }
    writer.close();
  }
  writer.close();
  return text_image(std::move(name), writer.finish() + "\n");
}

}  // namespace detail

/// Returns the files that this rank has to write: rank 0 what all ranks have, each rank its pieces of tensors and the
/// parts that are its own.
/// Throws: ConfigError that names the part if a name is taken twice or cannot be the name of a file.
[[nodiscard]] inline std::vector<FileImage> file_images(std::span<const NamedState> parts, int rank) {
  detail::check_parts(parts);
  std::vector<FileImage> images;
  if (rank == 0) {
    images.push_back(detail::states_image(std::string{detail::state_name}, parts, false,
                                          [](const State& state) { return !state.is_own; }));
  }
  const auto is_of_rank = [](const State& state) { return state.is_own || detail::has_pieces(state); };
  if (std::any_of(parts.begin(), parts.end(), [&](auto& part) { return is_of_rank(part.state); })) {
    images.push_back(detail::states_image(detail::state_name_of(rank), parts, true, is_of_rank));
  }
  for (const auto& [name, state] : parts) {
    const bool is_own = state.is_own;
    const auto is_whole = [is_own](const StateTensor& tensor) { return !is_own && !tensor.is_piece; };
    if (rank == 0) detail::add_tensors(images, detail::tensors_name(name), state, is_whole);
    detail::add_tensors(images, detail::tensors_name(name, rank), state, std::not_fn(is_whole));
  }
  return images;
}

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

[[nodiscard]] constexpr const char* exchange_text(Purpose purpose) noexcept {
  switch (purpose) {
    case Purpose::weights:
      return "the sharing of weights (prepare_optimizer())";
    case Purpose::update:
      return "the update of shared weights (step() of a prepared optimizer)";
    case Purpose::gradients:
      break;
  }
  return "the exchange of gradients";
}

/// Returns the text that messages print, such as "all_reduce(sum, 1024 x f32)".
[[nodiscard]] inline std::string describe(const Signature& signature) {
  const auto name = name_of(signature.operation);
  const auto elements = fmt::format("{} x {}", signature.count, name_of(signature.dtype));
  switch (signature.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      return fmt::format("{}({}, {})", name, name_of(signature.op), elements);
    case Operation::broadcast:
    case Operation::gather:
    case Operation::scatter:
      return fmt::format("{}({}, root {})", name, elements, signature.root);
    case Operation::all_gather_uneven:
      return fmt::format("{}({} in all, counts #{:04x})", name, elements, signature.counts_digest & 0xFFFFU);
    case Operation::send:
      return fmt::format("{}({}, to {})", name, elements, signature.root);
    case Operation::receive:
      return fmt::format("{}({}, from {})", name, elements, signature.root);
    case Operation::all_gather:
    case Operation::all_to_all:
      return fmt::format("{}({})", name, elements);
    case Operation::exchange:
      return exchange_text(static_cast<Purpose>(signature.root));
    case Operation::barrier:
      break;
  }
  return "barrier()";
}

/// Says which two ranks called different things, and what to do about it.
[[nodiscard]] inline std::string disagreement(int one, std::string_view call_of_one, int other,
                                              std::string_view call_of_other) {
  return fmt::format(
      "rank {} called {}, rank {} {}; all ranks must call the same collectives with the same sizes in the same order "
      "(worker.mean(), should_stop() and backward() call some as well)",
      one, call_of_one, other, call_of_other);
}

/// Returns "rank 1", "ranks 1 and 3", "ranks 1, 3 and 4".
[[nodiscard]] inline std::string ranks_text(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// Returns "all_reduce(sum, 1024 x f32) on rank 0/2": how every message begins.
[[nodiscard]] inline std::string place_text(std::string_view operation, int rank, int size) {
  return fmt::format("{} on rank {}/{}", operation, rank, size);
}

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
  Arguments(const World& world, DeviceKind device_kind) noexcept : world_(&world), device_kind_(device_kind) {}

  [[nodiscard]] Signature all_reduce(const Buffer& data, ReduceOp op) const {
    const Signature signature{.operation = Operation::all_reduce, .op = op, .dtype = data.dtype, .count = data.count};
    memory(signature, data, "data");
    reduction(signature);
    return signature;
  }

  [[nodiscard]] Signature reduce_scatter(const ConstBuffer& in, const Buffer& out, ReduceOp op) const {
    const Signature signature{.operation = Operation::reduce_scatter, .op = op, .dtype = out.dtype, .count = out.count};
    pair(signature, in, out);
    times_size(signature, "in", in.count, "out", out.count);
    reduction(signature);
    return signature;
  }

  [[nodiscard]] Signature broadcast(const Buffer& data, int root) const {
    const Signature signature{
        .operation = Operation::broadcast, .dtype = data.dtype, .count = data.count, .root = root};
    memory(signature, data, "data");
    rank(signature, root, "root");
    return signature;
  }

  [[nodiscard]] Signature all_gather(const ConstBuffer& in, const Buffer& out) const {
    const Signature signature{.operation = Operation::all_gather, .dtype = in.dtype, .count = in.count};
    pair(signature, in, out);
    times_size(signature, "out", out.count, "in", in.count);
    return signature;
  }

  [[nodiscard]] Signature all_gather_uneven(const ConstBuffer& in, const Buffer& out,
                                            std::span<const std::size_t> counts) const {
    Signature signature{.operation = Operation::all_gather_uneven, .dtype = in.dtype, .count = out.count};
    for (const std::size_t count : counts) signature.counts_digest = mix(signature.counts_digest, count);
    pair(signature, in, out);
    if (counts.size() != static_cast<std::size_t>(world_->size)) {
      refuse(signature,
             compose("counts has {} entries; it needs one for each of the {} ranks", counts.size(), world_->size));
    }
    if (counts[static_cast<std::size_t>(world_->rank)] != in.count) {
      refuse(signature, compose("in has {} elements, but counts[{}] says {}", in.count, world_->rank,
                                counts[static_cast<std::size_t>(world_->rank)]));
    }
    std::size_t sum = 0;
    for (const std::size_t count : counts) sum += count;
    if (sum != out.count) {
      refuse(signature, compose("out has {} elements; the sum of counts is {}", out.count, sum));
    }
    return signature;
  }

  /// out matters at root only.
  [[nodiscard]] Signature gather(const ConstBuffer& in, const Buffer& out, int root) const {
    const Signature signature{.operation = Operation::gather, .dtype = in.dtype, .count = in.count, .root = root};
    rank(signature, root, "root");
    memory(signature, in, "in");
    if (world_->rank == root) {
      pair(signature, in, out);
      times_size(signature, "out", out.count, "in", in.count);
    }
    return signature;
  }

  /// in matters at root only.
  [[nodiscard]] Signature scatter(const ConstBuffer& in, const Buffer& out, int root) const {
    const Signature signature{.operation = Operation::scatter, .dtype = out.dtype, .count = out.count, .root = root};
    rank(signature, root, "root");
    memory(signature, out, "out");
    if (world_->rank == root) {
      pair(signature, in, out);
      times_size(signature, "in", in.count, "out", out.count);
    }
    return signature;
  }

  [[nodiscard]] Signature all_to_all(const ConstBuffer& in, const Buffer& out) const {
    const Signature signature{.operation = Operation::all_to_all, .dtype = in.dtype, .count = in.count};
    pair(signature, in, out);
    if (in.count != out.count) {
      refuse(signature, compose("in has {} elements and out has {}; they must be equal", in.count, out.count));
    }
    if (in.count % static_cast<std::size_t>(world_->size) != 0) {
      refuse(signature, compose("{} elements cannot be divided among {} ranks", in.count, world_->size));
    }
    return signature;
  }

  [[nodiscard]] Signature send(const ConstBuffer& data, int peer) const {
    return message(Operation::send, data, peer, "to");
  }
  [[nodiscard]] Signature receive(const Buffer& data, int peer) const {
    return message(Operation::receive, data, peer, "from");
  }

 private:
  [[noreturn]] void refuse(const Signature& signature, std::string_view what) const {
    throw ConfigError{
        compose("{}: {}; nothing was sent", place_text(describe(signature), world_->rank, world_->size), what)};
  }

  [[nodiscard]] Signature message(Operation operation, const ConstBuffer& data, int peer, std::string_view name) const {
    const Signature signature{.operation = operation, .dtype = data.dtype, .count = data.count, .root = peer};
    memory(signature, data, "data");
    rank(signature, peer, name);
    if (peer == world_->rank) refuse(signature, "a rank cannot exchange messages with itself: copy the data instead");
    return signature;
  }

  void memory(const Signature& signature, const ConstBuffer& buffer, std::string_view name) const {
    if (buffer.data == nullptr && buffer.count > 0) {
      refuse(signature, compose("{} is a null pointer with {} elements", name, buffer.count));
    }
    if (buffer.count > std::numeric_limits<std::size_t>::max() / size_of(buffer.dtype)) {
      refuse(signature, compose("{} has {} elements, more than memory can hold", name, buffer.count));
    }
    if (buffer.device.kind != device_kind_) {
      refuse(signature, compose("{} lies in {} memory; this backend works on {} memory", name,
                                device_name(buffer.device.kind), device_name(device_kind_)));
    }
  }

  void pair(const Signature& signature, const ConstBuffer& in, const Buffer& out) const {
    memory(signature, in, "in");
    memory(signature, out, "out");
    if (in.dtype != out.dtype) {
      refuse(signature,
             compose("in is {} and out is {}; they must be of one dtype", name_of(in.dtype), name_of(out.dtype)));
    }
    const auto* in_begin = static_cast<const std::byte*>(in.data);
    const auto* out_begin = static_cast<const std::byte*>(out.data);
    if (in.count == 0 || out.count == 0) return;
    const std::less<> before{};
    if (before(in_begin, out_begin + out.size_bytes()) && before(out_begin, in_begin + in.size_bytes())) {
      refuse(signature, "in and out overlap; give them memory of their own");
    }
  }

  void times_size(const Signature& signature, std::string_view large_name, std::size_t large,
                  std::string_view small_name, std::size_t small) const {
    const auto size = static_cast<std::size_t>(world_->size);
    if (large % size == 0 && large / size == small) return;
    refuse(signature, compose("{} has {} elements; it needs {} ranks x {} elements of {}", large_name, large, size,
                              small, small_name));
  }

  void rank(const Signature& signature, int rank, std::string_view name) const {
    if (rank >= 0 && rank < world_->size) return;
    refuse(signature, compose("{} is {}; the ranks of this group are 0 to {}", name, rank, world_->size - 1));
  }

  void reduction(const Signature& signature) const {
    const bool is_float = signature.dtype == Dtype::f16 || signature.dtype == Dtype::bf16 ||
                          signature.dtype == Dtype::f32 || signature.dtype == Dtype::f64;
    if (signature.op == ReduceOp::average && !is_float) {
      refuse(signature, compose("an average of {} would have to round; reduce with sum and divide, or convert to a "
                                "floating-point dtype first",
                                name_of(signature.dtype)));
    }
  }

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

  explicit LocalHub(int size)
      : size_(size), references_(size), seats_(to_index(size)), mailboxes_(to_index(size) * to_index(size)) {}

  /// Waits until every rank has come. close_to(rank) must return whether it has kept a missing rank out for good.
  void arrive(const World& world, const Deadline& deadline, const std::function<bool(int)>& close_to) {
    std::unique_lock lock{mutex_};
    seats_[to_index(world.rank)].has_arrived = true;
    changed_.notify_all();
    const auto all_here = [this] {
      return std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.has_arrived; });
    };
    while (!failure_ && !all_here()) {
      if (wait(lock, deadline)) continue;
      if (failure_ || all_here()) break;
      std::vector<int> missing;
      for (int rank = 0; rank < size_; ++rank) {
        if (seats_[to_index(rank)].has_arrived) continue;
        missing.push_back(rank);
        if (close_to(rank)) --references_;  // whoever is kept out will not come to release its share
      }
      fail(missing, compose("{} did not connect in {}", ranks_text(missing), deadline.budget_text()));
    }
    // All were here, if only for a moment: what has gone wrong since is the next call's to tell.
    if (!all_here()) throw_failure("connect", world.rank, false);
  }

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

  void send(int rank, const Signature& signature, const std::byte* data, const Deadline& deadline) {
    Message message{.signature = signature, .data = data};
    std::unique_lock lock{mutex_};
    begin(rank, signature);
    auto& box = mailbox(rank, signature.root);
    box.push_back(&message);
    changed_.notify_all();
    const bool taken = await(lock, rank, signature, deadline, [&] { return message.state != Message::State::offered; });
    if (!taken) std::erase(box, &message);
    changed_.wait(lock, [&] { return !taken || message.state == Message::State::copied; });
    end(lock, rank, signature, taken);
  }

  void receive(int rank, const Signature& signature, std::byte* data, const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    begin(rank, signature);
    auto& box = mailbox(signature.root, rank);
    bool taken = await(lock, rank, signature, deadline, [&] { return !box.empty(); });
    if (taken && box.front()->signature.digest() != signature.digest()) {
      fail({signature.root}, mismatch_text(signature.root, box.front()->signature, rank, signature));
      taken = false;
    }
    if (taken) {
      Message& message = *box.front();
      box.pop_front();
      message.state = Message::State::taken;
      lock.unlock();
      const std::size_t size_bytes = signature.count * size_of(signature.dtype);
      if (size_bytes > 0) std::memcpy(data, message.data, size_bytes);
      lock.lock();
      message.state = Message::State::copied;
      changed_.notify_all();
    }
    end(lock, rank, signature, taken);
  }

  void abort(int rank, std::string_view reason) {
    const std::lock_guard lock{mutex_};
    fail({rank}, compose("rank {} gave up: {}", rank, reason));
  }

  void throw_if_failed(int rank, const Signature& signature) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(describe(signature), rank, true);
  }

  /// Takes the rank out of the group and returns whether it was the last, so that the hub is to be deleted.
  [[nodiscard]] bool leave(int rank) noexcept {
    const std::lock_guard lock{mutex_};
    seats_[to_index(rank)].has_left = true;
    changed_.notify_all();
    return --references_ == 0;
  }

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

  [[nodiscard]] static std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }

  [[nodiscard]] std::deque<Message*>& mailbox(int from, int to) noexcept {
    return mailboxes_[to_index(from) * to_index(size_) + to_index(to)];
  }

  // Returns whether it was woken, false at the deadline.
  bool wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
    if (deadline.is_never()) {
      changed_.wait(lock);
      return true;
    }
    return changed_.wait_until(lock, deadline.time()) == std::cv_status::no_timeout;
  }

  [[nodiscard]] std::uint64_t enter(int rank, const Signature& signature, Views views, const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    begin(rank, signature);
    Seat& seat = seats_[to_index(rank)];
    seat.in = views.first;
    seat.out = views.second;
    const std::uint64_t round = rounds_entered_;
    if (++num_entered_ == size_) {
      compare_signatures();
      if (!failure_) {
        num_entered_ = 0;
        ++rounds_entered_;
      }
      changed_.notify_all();
    }
    const bool entered = await(lock, rank, signature, deadline, [&] { return rounds_entered_ > round; });
    if (!entered) throw_failure(describe(signature), rank, false);
    return round;
  }

  void begin(int rank, const Signature& signature) {
    if (failure_) throw_failure(describe(signature), rank, true);
    Seat& seat = seats_[to_index(rank)];
    seat.signature = signature;
    seat.is_busy = true;
  }

  void end(const std::unique_lock<std::mutex>& /*held*/, int rank, const Signature& signature, bool succeeded) {
    seats_[to_index(rank)].is_busy = false;
    if (!succeeded) throw_failure(describe(signature), rank, false);
  }

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

  void fail_late(int rank, const Signature& signature, const Deadline& deadline) {
    const auto late = absent(signature, [&](const Seat& seat) {
      return &seat != &seats_[to_index(rank)] && !(seat.is_busy && seat.signature == signature);
    });
    std::string text = compose("{} did not answer in {}", ranks_text(late), deadline.budget_text());
    for (const int other : late) {
      const Seat& seat = seats_[to_index(other)];
      if (seat.is_busy) text += compose("; rank {} is in {}", other, describe(seat.signature));
    }
    fail(late, text);
  }

  void compare_signatures() {
    const Signature& first = seats_[0].signature;
    std::vector<int> others;
    for (int rank = 1; rank < size_; ++rank) {
      if (seats_[to_index(rank)].signature != first) others.push_back(rank);
    }
    if (!others.empty()) {
      others.insert(others.begin(), 0);
      fail(others, mismatch_text(others[1], seats_[to_index(others[1])].signature, 0, first));
    }
  }

  [[nodiscard]] static std::string mismatch_text(int a, const Signature& of_a, int b, const Signature& of_b) {
    return disagreement(a, describe(of_a), b, describe(of_b));
  }

  void fail(std::vector<int> blamed, std::string text) {
    if (!failure_) failure_ = Failure{std::move(blamed), std::move(text)};
    changed_.notify_all();
  }

  [[noreturn]] void throw_failure(const std::string& operation, int rank, bool is_later) const {
    throw CollectiveError{operation, rank, failure_->blamed,
                          compose("{}: {}{}", place_text(operation, rank, size_),
                                  is_later ? "the group was lost before: " : "", failure_->text)};
  }

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
  std::optional<Failure> failure_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/reduce.hpp
// The arithmetic of reductions: elements of several buffers become one. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns where the part of count elements begins that a rank reduces for all, and its size: slices of whole cache
/// lines, so that no two ranks write to one line of an aligned buffer.
[[nodiscard]] inline std::pair<std::size_t, std::size_t> slice_of(std::size_t count, const World& world) noexcept {
  const auto size = static_cast<std::size_t>(world.size);
  const std::size_t slice = ((count + size - 1) / size + 63) / 64 * 64;
  const std::size_t begin = std::min(count, static_cast<std::size_t>(world.rank) * slice);
  return {begin, std::min(slice, count - begin)};
}

/// Is the type in which elements of type T are combined: float for the half types, so that a sum is rounded once; a
/// byte for bool, because memory that a peer has sent may hold other values than 0 and 1.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float,
                                       std::conditional_t<std::is_same_v<T, bool>, unsigned char, T>>;

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

/// Combines two values. A NaN wins over every number in min and max; signed integers wrap.
template <ReduceOp op, class A>
[[nodiscard]] constexpr A combine(A a, A b) noexcept {
  if constexpr (op == ReduceOp::min) {
    return b < a || is_nan(b) ? (is_nan(a) ? a : b) : a;
  } else if constexpr (op == ReduceOp::max) {
    return a < b || is_nan(b) ? (is_nan(a) ? a : b) : a;
  } else if constexpr (std::is_integral_v<A>) {
    // In 64 bits without a sign: neither the promotion of small types to int nor overflow can then be undefined.
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<A>(op == ReduceOp::product ? x * y : x + y);
  } else {
    return op == ReduceOp::product ? a * b : a + b;
  }
}

// Bytes are read by memcpy: a user's buffer may lie at any address (a slice of a packed record, a received message).
template <class T>
void load_block(Accumulator<T>* to, const std::byte* from, std::size_t count) noexcept {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    std::memcpy(to, from, count * sizeof(T));
  } else if constexpr (std::is_same_v<T, bool>) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i] != std::byte{0} ? 1 : 0;
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      T element{};
      std::memcpy(&element, from + i * sizeof(T), sizeof(T));
      to[i] = static_cast<float>(element);
    }
  }
}

template <class T>
void store_block(std::byte* to, const Accumulator<T>* from, std::size_t count) noexcept {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    for (std::size_t i = 0; i < count; ++i) {
      const T element{from[i]};
      std::memcpy(to + i * sizeof(T), &element, sizeof(T));
    }
  } else {
    std::memcpy(to, from, count * sizeof(T));
  }
}

template <class T, ReduceOp op>
void reduce_typed(std::byte* out, std::span<const std::byte* const> sources, std::size_t count) noexcept {
  using A = Accumulator<T>;
  constexpr std::size_t block = 4096 / sizeof(A);  // two blocks stay in the first-level cache
  alignas(64) A sum[block];
  alignas(64) A next[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    load_block<T>(sum, sources[0] + begin * sizeof(T), n);
    for (const std::byte* source : sources.subspan(1)) {
      load_block<T>(next, source + begin * sizeof(T), n);
      for (std::size_t i = 0; i < n; ++i) sum[i] = combine<op>(sum[i], next[i]);
    }
    if constexpr (op == ReduceOp::average && std::is_floating_point_v<A>) {
      const A divisor = static_cast<A>(sources.size());
      for (std::size_t i = 0; i < n; ++i) sum[i] /= divisor;
    }
    store_block<T>(out + begin * sizeof(T), sum, n);
  }
}

// On bool, sum is "any" and product is "all": what max and min are.
[[nodiscard]] constexpr ReduceOp effective_op(Dtype dtype, ReduceOp op) noexcept {
  if (dtype != Dtype::boolean) return op;
  return op == ReduceOp::sum || op == ReduceOp::average ? ReduceOp::max : op == ReduceOp::product ? ReduceOp::min : op;
}

/// Combines count elements of all sources, in their order, into out; out may be one of the sources. The order makes
/// results a function of the ranks' values alone: equal bits on every rank, with every backend and in every run.
/// Cost: reads every source once and writes out once.
inline void reduce(void* out, std::span<const std::byte* const> sources, std::size_t count, Dtype dtype, ReduceOp op) {
  auto* bytes = static_cast<std::byte*>(out);
  visit_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (effective_op(dtype, op)) {
      case ReduceOp::sum:
        return reduce_typed<T, ReduceOp::sum>(bytes, sources, count);
      case ReduceOp::average:
        return reduce_typed<T, ReduceOp::average>(bytes, sources, count);
      case ReduceOp::min:
        return reduce_typed<T, ReduceOp::min>(bytes, sources, count);
      case ReduceOp::max:
        return reduce_typed<T, ReduceOp::max>(bytes, sources, count);
      case ReduceOp::product:
        return reduce_typed<T, ReduceOp::product>(bytes, sources, count);
    }
  });
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/rendezvous.hpp
// How the ranks of a new group find each other in a store. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what a store holds under key right now.
[[nodiscard]] inline std::optional<std::string> peek(Store& store, std::string_view key) {
  return store.get(key, Deadline::after(std::chrono::nanoseconds{0}));
}

/// Announces this rank to the next group of that kind on the store and returns the group's prefix for keys. A store may
/// serve several groups, one after the other or at once: every rank's n-th connect with a kind belongs to group n.
[[nodiscard]] inline std::string enter_group(Store& store, std::string_view kind, const World& world) {
  for (int number = 0;; ++number) {
    std::string prefix = fmt::format("{}/{}/", kind, number);
    const std::string key = fmt::format("{}here/{}", prefix, world.rank);
    if (peek(store, key)) continue;  // an earlier connect of this very rank: nobody else sets this key
    store.set(key, world.host);
    return prefix;
  }
}

/// Waits until every rank has left something under prefix + stage + "/" + rank, and returns the values by rank; a rank
/// that did not come by the deadline has none.
[[nodiscard]] inline std::vector<std::optional<std::string>> await_all(Store& store, const std::string& prefix,
                                                                       std::string_view stage, const World& world,
                                                                       const Deadline& deadline) {
  std::vector<std::optional<std::string>> values;
  for (int rank = 0; rank < world.size; ++rank) {
    values.push_back(store.get(fmt::format("{}{}/{}", prefix, stage, rank), deadline));
  }
  return values;
}

/// Throws: CollectiveError that names the ranks without a value.
inline void throw_if_missing(const std::vector<std::optional<std::string>>& values, const World& world,
                             const Deadline& deadline) {
  std::vector<int> missing;
  for (int rank = 0; rank < world.size; ++rank) {
    if (!values[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  if (missing.empty()) return;
  throw CollectiveError{"connect", world.rank, missing,
                        fmt::format("{}: {} did not connect in {}", place_text("connect", world.rank, world.size),
                                    ranks_text(missing), deadline.budget_text())};
}

/// Throws: CollectiveError that names the ranks without a value, or else the first that has left a reason.
inline void throw_if_failed(const std::vector<std::optional<std::string>>& values, const World& world,
                            const Deadline& deadline) {
  throw_if_missing(values, world, deadline);
  for (int rank = 0; rank < world.size; ++rank) {
    const std::string& text = *values[static_cast<std::size_t>(rank)];
    if (text.empty()) continue;
    throw CollectiveError{
        "connect",
        world.rank,
        {rank},
        fmt::format("{}: rank {} could not connect: {}", place_text("connect", world.rank, world.size), rank, text)};
  }
}

/// Throws ConfigError if the world makes no sense.
inline void check_world(const World& world) {
  if (world.size >= 1 && world.rank >= 0 && world.rank < world.size) return;
  throw ConfigError{fmt::format("connect: World::rank is {} and World::size is {}; ranks count from 0 to size - 1",
                                world.rank, world.size)};
}

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
                                                      const Deadline& deadline) {
    detail::check_world(world);
    if (world.size == 1) return std::unique_ptr<Local>{new Local{world, nullptr}};
    const std::string prefix = detail::enter_group(store, name, world);
    // Owned from here on: when arrive() throws, the destructor gives this rank's share of the hub back.
    std::unique_ptr<Local> local{new Local{world, find_hub(prefix, world, store, deadline)}};
    local->hub_->arrive(world, deadline, [&](int rank) { return claim(prefix, rank, store); });
    return local;
  }

  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;
  ~Local() {
    if (hub_ != nullptr && hub_->leave(world_.rank)) delete hub_;
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    const auto signature = arguments().all_reduce(data, op);
    auto* mine = static_cast<std::byte*>(data.data);
    return run(signature, mine, mine, call, [&](const Seats& seats) {
      const auto [begin, count] = detail::slice_of(data.count, world_);
      const std::size_t offset = begin * size_of(data.dtype);
      std::vector<const std::byte*> sources;
      for (const auto& seat : seats) sources.push_back(seat.in + offset);
      detail::reduce(mine + offset, sources, count, data.dtype, op);
      for (const auto& seat : seats) {
        if (seat.out != mine) copy(seat.out + offset, mine + offset, count, data.dtype);
      }
    });
  }

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    const auto signature = arguments().reduce_scatter(in, out, op);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      std::vector<const std::byte*> sources;
      for (const auto& seat : seats) sources.push_back(seat.in + rank_index() * out.size_bytes());
      detail::reduce(out.data, sources, out.count, out.dtype, op);
    });
  }

  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    const auto signature = arguments().broadcast(data, root);
    return run(signature, data.data, data.data, call, [&](const Seats& seats) {
      if (world_.rank != root) copy(data.data, seats[to_index(root)].in, data.count, data.dtype);
    });
  }

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_gather(in, out);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      auto* to = static_cast<std::byte*>(out.data);
      for (std::size_t rank = 0; rank < seats.size(); ++rank) {
        copy(to + rank * in.size_bytes(), seats[rank].in, in.count, in.dtype);
      }
    });
  }

  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    const auto signature = arguments().all_gather_uneven(in, out, counts);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      auto* to = static_cast<std::byte*>(out.data);
      for (std::size_t rank = 0; rank < seats.size(); ++rank) {
        copy(to, seats[rank].in, counts[rank], in.dtype);
        to += counts[rank] * size_of(in.dtype);
      }
    });
  }

  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().gather(in, out, root);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      auto* to = static_cast<std::byte*>(seats[to_index(root)].out);
      copy(to + rank_index() * in.size_bytes(), in.data, in.count, in.dtype);
    });
  }

  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().scatter(in, out, root);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      copy(out.data, seats[to_index(root)].in + rank_index() * out.size_bytes(), out.count, out.dtype);
    });
  }

  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_to_all(in, out);
    return run(signature, in.data, out.data, call, [&](const Seats& seats) {
      const std::size_t count = in.count / seats.size();
      const std::size_t size_bytes = count * size_of(in.dtype);
      auto* to = static_cast<std::byte*>(out.data);
      for (std::size_t rank = 0; rank < seats.size(); ++rank) {
        copy(to + rank * size_bytes, seats[rank].in + rank_index() * size_bytes, count, in.dtype);
      }
    });
  }

  FinishedWork barrier(const Call& call) {
    return run({.operation = detail::Operation::barrier}, nullptr, nullptr, call, [](const Seats& /*seats*/) {});
  }

  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    hub_or_alone(arguments().send(data, peer), [&](const auto& signature) {
      hub_->send(world_.rank, signature, static_cast<const std::byte*>(data.data), call.deadline);
    });
    return {};
  }

  FinishedWork receive(Buffer data, int peer, const Call& call) {
    hub_or_alone(arguments().receive(data, peer), [&](const auto& signature) {
      hub_->receive(world_.rank, signature, static_cast<std::byte*>(data.data), call.deadline);
    });
    return {};
  }

  void abort(std::string_view reason) noexcept {
    try {
      if (hub_ != nullptr) {
        hub_->abort(world_.rank, reason);
      } else {
        const std::lock_guard lock{alone_mutex_};
        if (alone_failure_.empty()) alone_failure_ = detail::compose("rank 0 gave up: {}", reason);
      }
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }

 private:
  using Seats = std::vector<detail::LocalHub::Seat>;

  Local(const World& world, detail::LocalHub* hub) : world_(world), hub_(hub) {}

  [[nodiscard]] static std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t rank_index() const noexcept { return to_index(world_.rank); }
  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  // A key of a store can be set once, which makes it a lock that is taken once: either the late rank claims its seat
  // and will release its share of the hub, or a rank that waited in vain claims it and the late rank keeps away.
  [[nodiscard]] static bool claim(const std::string& prefix, int rank, Store& store) {
    try {
      store.set(detail::compose("{}seat/{}", prefix, rank), "");
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] static detail::LocalHub* find_hub(const std::string& prefix, const World& world, Store& store,
                                                  const Deadline& deadline) {
    struct Address {
      detail::LocalHub* hub;
      pid_t process;
    };
    const std::string key = prefix + "hub";
    if (world.rank == 0) {
      auto hub = std::make_unique<detail::LocalHub>(world.size);
      const Address address{hub.get(), ::getpid()};
      std::string bytes(sizeof address, '\0');
      std::memcpy(bytes.data(), &address, sizeof address);
      store.set(key, bytes);
      return hub.release();
    }
    const auto bytes = store.get(key, deadline);
    const std::string place = detail::place_text("connect", world.rank, world.size);
    if (!bytes) {
      throw CollectiveError{"connect",
                            world.rank,
                            {0},
                            detail::compose("{}: rank 0 did not connect in {}", place, deadline.budget_text())};
    }
    Address address{};
    std::memcpy(&address, bytes->data(), std::min(sizeof address, bytes->size()));
    if (address.process != ::getpid()) {
      throw ConfigError{detail::compose("{}: Local joins threads of one process, but rank 0 is in process {}; use Gloo",
                                        place, address.process)};
    }
    if (!claim(prefix, world.rank, store)) {
      throw CollectiveError{"connect",
                            world.rank,
                            {world.rank},
                            detail::compose("{}: the others gave up before rank {} came", place, world.rank)};
    }
    return address.hub;
  }

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

  void throw_if_alone_failed(const detail::Signature& signature) {
    const std::lock_guard lock{alone_mutex_};
    if (alone_failure_.empty()) return;
    const std::string operation = detail::describe(signature);
    throw CollectiveError{
        operation, 0, {0}, detail::compose("{}: {}", detail::place_text(operation, 0, 1), alone_failure_)};
  }

  static void copy(void* to, const void* from, std::size_t count, Dtype dtype) noexcept {
    if (count > 0) std::memcpy(to, from, count * size_of(dtype));
  }

  World world_;
  detail::LocalHub* hub_;  // owned by all ranks together; the last one to leave deletes it
  std::mutex alone_mutex_;
  std::string alone_failure_{};  // why a world of one was given up
};
static_assert(Backend<Local>);

}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/segment.hpp
// The memory by which one rank of a host shows itself to the others, and how it is mapped. Collectives room.

#include <fstream>

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

  [[nodiscard]] std::byte* payload_of(std::size_t size_bytes) noexcept {
    return size_bytes <= tiny_bytes ? tiny.data() : payload.data();
  }
  [[nodiscard]] const std::byte* payload_of(std::size_t size_bytes) const noexcept {
    return size_bytes <= tiny_bytes ? tiny.data() : payload.data();
  }
};

static_assert(offsetof(Post, payload) == 64);

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

/// Bits of RankCell::flags.
struct Flag {
  static constexpr std::uint32_t failed = 1;   ///< its verdict stands; whoever waits for it gives up
  static constexpr std::uint32_t failing = 2;  ///< somebody writes its verdict, or has
  static constexpr std::uint32_t left = 4;     ///< its object is gone
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
  Mapping(void* base, std::size_t size) noexcept : base_(static_cast<std::byte*>(base)), size_(size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(base_, size_); }

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
  [[nodiscard]] std::size_t arena(int rank) const noexcept {
    const std::size_t stagger = static_cast<std::size_t>(rank) * (2U * 4096U + 128U);
    return page_up(outboxes() + static_cast<std::size_t>(world_size) * sizeof(Outbox)) + stagger;
  }
  [[nodiscard]] std::size_t size() const noexcept { return page_up(arena(world_size) + arena_size); }
  /// What is touched of it in any case.
  [[nodiscard]] std::size_t touched() const noexcept { return arena(0); }
};

/// Returns the bytes of files in a control group's cache, which the kernel gives up before it runs out of memory.
[[nodiscard]] inline std::size_t reclaimable_memory(const std::string& folder) {
  std::ifstream file{folder + "memory.stat"};
  std::size_t total = 0;
  std::string name;
  for (std::size_t value = 0; file >> name >> value;) {
    if (name == "inactive_file" || name == "active_file") total += value;
  }
  return total;
}

/// Returns the bytes that this process and what it shares may still take: the memory of the host, or what the control
/// group of a container has left. Source: /proc/meminfo, cgroup v2 memory.max, memory.current and memory.stat.
[[nodiscard]] inline std::size_t available_memory() {
  std::size_t available = physical_memory();
  std::string group = "/";
  std::ifstream groups{"/proc/self/cgroup"};
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  // The limits of all groups above count as well.
  for (;; group = group.substr(0, group.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + group + "/";
    std::size_t limit = 0;
    std::size_t used = 0;
    if (std::ifstream{folder + "memory.max"} >> limit && std::ifstream{folder + "memory.current"} >> used) {
      used -= std::min(used, reclaimable_memory(folder));
      available = std::min(available, limit > used ? limit - used : 0);
    }
    if (group.size() <= 1) return available;
  }
}

/// Chooses the size of every rank's arena: address space, of which only what is used takes memory.
[[nodiscard]] inline std::size_t choose_arena_size(std::size_t wanted, int world_size) {
  constexpr std::size_t least = std::size_t{64} << 20U;
  std::size_t size = wanted > 0 ? wanted : physical_memory();
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    // Every rank maps all arenas, and the rest of the program needs room as well.
    size = std::min(size, static_cast<std::size_t>(limit.rlim_cur) / 4 / static_cast<std::size_t>(world_size));
  }
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    size = std::min(size, static_cast<std::size_t>(limit.rlim_cur) / 2);
  }
  return SegmentLayout::page_up(std::max(size, least));
}

[[noreturn]] inline void refuse_addresses(const std::string& what, std::size_t size, int error) {
  throw ConfigError{fmt::format(
      "{}: there are no addresses left for {} MiB that become memory only as they are used: {}; see ulimit -v and "
      "vm.overcommit_memory, ask for less by SharedMemory::Options::arena_bytes, or use Gloo with .transport = "
      "GlooTransport::tcp",
      what, size >> 20U, explain_errno(error))};
}

/// Returns private memory that becomes real as it is touched. Throws: ConfigError if there is no address space left.
[[nodiscard]] inline std::shared_ptr<Mapping> map_private(std::size_t size, const std::string& what) {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) refuse_addresses(what, size, errno);
  return std::make_shared<Mapping>(base, size);
}

/// Makes a file without a name in memory. Throws: ConfigError if the system makes none or not of that size.
[[nodiscard]] inline Descriptor make_memory_file(std::size_t size, const std::string& what) {
  const auto refuse = [&](const char* call) {
    const int error = errno;
    return ConfigError{fmt::format(
        "{}: {} of {} MiB of shared memory failed: {}; a container may forbid it (seccomp), or a limit be in the way "
        "(ulimit -f): lift it, or use Gloo with Options::transport = GlooTransport::tcp, which shares no memory",
        what, call, size >> 20U, explain_errno(error))};
  };
  const int fd = ::memfd_create("railyard", MFD_CLOEXEC);
  if (fd < 0) throw refuse("memfd_create()");
  Descriptor file = adopt(fd, what);
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) throw refuse("ftruncate()");
  return file;
}

/// Maps a rank's segment. Throws: ConfigError if there is no address space left.
[[nodiscard]] inline std::shared_ptr<Mapping> map_shared(const Descriptor& file, std::size_t size,
                                                         const std::string& what) {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (base == MAP_FAILED) refuse_addresses(what, size, errno);
  ::madvise(base, size, MADV_DONTDUMP);  // or a core dump of one rank would hold the memory of all
  return std::make_shared<Mapping>(base, size);
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/meeting.hpp
// How the ranks of one host wait for each other in memory that they share. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Tells the processor that this is a loop which waits.
inline void pause_briefly() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
          std::size_t lane)
      : world_(world), cells_(std::move(cells)), pidfds_(pidfds), lane_(lane), num_spins_(is_hasty ? 2000 : 0) {}
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() {
    own().flags.fetch_or(Flag::left);
    wake_all();
  }

  [[nodiscard]] RankCell& cell(int rank) const noexcept { return *cells_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] RankCell& own() const noexcept { return cell(world_.rank); }
  [[nodiscard]] Lane& lane(int rank) const noexcept { return cell(rank).lanes[lane_]; }
  [[nodiscard]] Lane& own_lane() const noexcept { return lane(world_.rank); }

  /// Throws: CollectiveError if this rank has given up before.
  void throw_if_lost(const Signature& signature) {
    if ((own().flags.load(std::memory_order_acquire) & Flag::failed) == 0) return;
    throw_verdict(signature, "the group was lost before: ");
  }

  /// Is what this rank will show in its next step.
  [[nodiscard]] Post& next_post() const noexcept { return own_lane().posts[(step_ + 1) % 2]; }
  /// Is what a rank shows in the step that has been taken last.
  [[nodiscard]] const Post& post_of(int rank) const noexcept { return lane(rank).posts[step_ % 2]; }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  /// Takes the first step of a collective: shows next_post(), waits for all, and compares what they have called.
  void enter(const Running& running) {
    next_post().signature = running.signature;
    take_step(running);
    for (int rank = 0; rank < world_.size; ++rank) {
      if (post_of(rank).signature != running.signature) give_up(running, disagreement_of_all());
    }
    throw_if_any_gave_up(running);
  }

  /// Gives up as well if another rank has done so; called before this one looks at their memory in the step it has
  /// taken.
  void throw_if_any_gave_up(const Running& running) {
    if (running.first_shared == running.last_shared) return;
    for (int rank = 0; rank < world_.size; ++rank) throw_if_given_up(rank, running);
  }

  /// Gives up as well if a rank has done so, which may be about to let go of its memory: it waits for those who did not
  /// see that in time.
  void throw_if_given_up(int rank, const Running& running) {
    if ((cell(rank).flags.load() & Flag::failed) != 0) give_up(running, verdict_of(rank));
  }

  /// Takes one step: shows next_post() and waits until all ranks have shown theirs.
  void take_step(const Running& running) {
    const std::uint64_t step = ++step_;
    own_lane().posts[step % 2].step.store(step);
    ring();
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank != world_.rank) await(lane(rank).posts[step % 2].step, step, running);
    }
  }

  /// Waits until a word of a peer has reached a value.
  void await(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    for (int spin = 0; spin < num_spins_; ++spin) {
      if (word.load(std::memory_order_acquire) >= at_least) return;
      pause_briefly();
    }
    await_slowly(word, at_least, running);
  }

  /// Wakes those who sleep, after a word has moved.
  void ring() const noexcept {
    if (lane(0).num_asleep.load() == 0) return;
    for (int rank = 0; rank < world_.size; ++rank) {
      if (lane(rank).is_asleep.load() != 0) nudge(lane(rank).bell);
    }
  }

  /// Ends the waits of this rank, from any thread, and of those who wait for it.
  void abort(std::string_view reason) {
    fail({{world_.rank}, fmt::format("rank {} gave up: {}", world_.rank, reason)});
  }

  struct Verdict {
    std::vector<int> blamed{};
    std::string text{};
  };

  /// Says why this rank gives up, for all ranks to see, and throws it.
  [[noreturn]] void give_up(const Running& running, const Verdict& verdict) {
    fail(verdict);
    withdraw(running);
    throw_verdict(running.signature, "");
  }

  /// Says that this rank is at nobody's memory until its next step.
  void rest() const noexcept { own_lane().rested.store(step_); }

  /// After this rank has failed: returns once nobody is at its memory.
  void withdraw(const Running& running) const noexcept {
    own_lane().has_withdrawn.store(1);
    ring();
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank == world_.rank) continue;
      // Whoever is there only copies and adds, or gives up as well.
      while (is_at_memory(rank, running)) ::sched_yield();
    }
  }

 private:
  static constexpr std::chrono::microseconds yield_for{500};
  static constexpr std::chrono::milliseconds longest_sleep{50};

  void await_slowly(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    const auto sleeps_from = Deadline::Clock::now() + yield_for;
    for (unsigned turn = 0;; ++turn) {
      if (word.load(std::memory_order_acquire) >= at_least) return;
      if (!may_go_on(word, at_least, running)) return;
      if (turn % 8 == 7) {
        if (running.deadline.expired()) give_up(running, lateness(running));
        if (Deadline::Clock::now() >= sleeps_from) {
          sleep(word, at_least, running);
          look_for_deaths(word, at_least, running);
          turn = 6;  // from here on every turn looks at the clock
          continue;
        }
      }
      ::sched_yield();
    }
  }

  // Returns false if the word has got there after all.
  bool may_go_on(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    std::vector<int> gone;
    for (int rank = 0; rank < world_.size; ++rank) {
      const std::uint32_t flags = cell(rank).flags.load();
      if ((flags & Flag::failed) != 0) {
        if (word.load() >= at_least) return false;
        give_up(running, verdict_of(rank));
      }
      if ((flags & Flag::left) != 0 && is_missing(rank, running, word, at_least)) gone.push_back(rank);
    }
    if (!gone.empty()) give_up(running, {gone, ranks_text(gone) + " left the group before"});
    return true;
  }

  [[nodiscard]] bool is_missing(int rank, const Running& running, const std::atomic<std::uint64_t>& word,
                                std::uint64_t at_least) const noexcept {
    if (rank == world_.rank) return false;
    if (running.peer >= 0) return rank == running.peer && word.load() < at_least;
    return is_behind(rank);
  }

  [[nodiscard]] bool is_behind(int rank) const noexcept { return lane(rank).posts[step_ % 2].step.load() < step_; }

  void sleep(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    Lane& self = own_lane();
    const std::uint32_t bell = self.bell.load();
    self.is_asleep.store(1);
    lane(0).num_asleep.fetch_add(1);
    const bool is_lost =
        std::any_of(cells_.begin(), cells_.end(), [](const RankCell* one) { return one->flags.load() != 0; });
    if (word.load() < at_least) {
      // Where somebody has gone the reason to wake up may have come and gone before.
      const std::chrono::nanoseconds slice = is_lost ? std::chrono::milliseconds{1} : longest_sleep;
      futex_wait(self.bell, bell, std::min(slice, running.deadline.remaining()));
    }
    lane(0).num_asleep.fetch_sub(1);
    self.is_asleep.store(0);
  }

  void look_for_deaths(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    std::vector<int> dead;
    for (int rank = 0; rank < world_.size && !pidfds_.empty(); ++rank) {
      const Descriptor& pidfd = pidfds_[static_cast<std::size_t>(rank)];
      if (!pidfd.is_open() || !is_missing(rank, running, word, at_least)) continue;
      pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ended, 1, 0) > 0 && is_missing(rank, running, word, at_least)) dead.push_back(rank);
    }
    if (!dead.empty()) give_up(running, {dead, ranks_text(dead) + " died"});
  }

  [[nodiscard]] Verdict lateness(const Running& running) const {
    std::vector<int> late;
    for (int rank = 0; rank < world_.size; ++rank) {
      const bool is_late = running.peer >= 0 ? rank == running.peer : is_behind(rank);
      if (is_late && rank != world_.rank) late.push_back(rank);
    }
    return {late, fmt::format("{} did not answer in {}", ranks_text(late), running.deadline.budget_text())};
  }

  [[nodiscard]] Verdict disagreement_of_all() const {
    const Signature& first = post_of(0).signature;
    Verdict verdict{.blamed = {0}};
    for (int rank = 1; rank < world_.size; ++rank) {
      const Signature& other = post_of(rank).signature;
      if (other == first) continue;
      if (verdict.text.empty()) verdict.text = disagreement(rank, describe(other), 0, describe(first));
      verdict.blamed.push_back(rank);
    }
    return verdict;
  }

  [[nodiscard]] bool is_at_memory(int rank, const Running& running) const noexcept {
    const Lane& peer = lane(rank);
    if (peer.has_withdrawn.load() != 0 || (cell(rank).flags.load() & Flag::left) != 0) return false;
    if (running.box != nullptr) {
      return rank == running.peer && running.box->taking.load() >= running.piece &&
             running.box->taken.load() < running.piece;
    }
    const std::uint64_t at = std::max(peer.posts[0].step.load(), peer.posts[1].step.load());
    return at >= running.first_shared && at < running.last_shared && peer.rested.load() < at;
  }

  // Keeps the first verdict only: another lane, or abort() from another thread, may come at the same time.
  void fail(const Verdict& verdict) {
    if ((own().flags.fetch_or(Flag::failing) & Flag::failing) != 0) {
      while ((own().flags.load() & Flag::failed) == 0) ::sched_yield();
      return;
    }
    SharedVerdict& shown = own().verdict;
    shown.num_blamed = static_cast<std::uint32_t>(std::min(verdict.blamed.size(), shown.blamed.size()));
    std::copy_n(verdict.blamed.begin(), shown.num_blamed, shown.blamed.begin());
    shown.size = static_cast<std::uint32_t>(std::min(verdict.text.size(), shown.text.size()));
    if (shown.size > 0) std::memcpy(shown.text.data(), verdict.text.data(), shown.size);
    own().flags.fetch_or(Flag::failed);
    wake_all();
  }

  void wake_all() const noexcept {
    for (RankCell* cell : cells_) {
      for (Lane& one : cell->lanes) nudge(one.bell);
    }
  }

  [[nodiscard]] Verdict verdict_of(int rank) const {
    const SharedVerdict& shown = cell(rank).verdict;
    return {{shown.blamed.begin(), shown.blamed.begin() + shown.num_blamed}, {shown.text.data(), shown.size}};
  }

  [[noreturn]] void throw_verdict(const Signature& signature, std::string_view when) const {
    const Verdict verdict = verdict_of(world_.rank);
    const std::string operation = describe(signature);
    throw CollectiveError{operation, world_.rank, verdict.blamed,
                          fmt::format("{}: {}{}", place_text(operation, world_.rank, world_.size), when, verdict.text)};
  }

  World world_;
  std::vector<RankCell*> cells_;
  std::span<const Descriptor> pidfds_;
  std::size_t lane_;
  int num_spins_;
  std::uint64_t step_ = 0;
};

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

  [[nodiscard]] std::byte* base(int rank) const noexcept { return mappings[static_cast<std::size_t>(rank)]->base(); }
  [[nodiscard]] RankCell& cell(int rank) const noexcept {
    return *std::launder(reinterpret_cast<RankCell*>(base(rank)));
  }
  [[nodiscard]] Outbox& outbox(int from, int to) const noexcept {
    std::byte* first = base(from) + SegmentLayout::outboxes();
    return *std::launder(reinterpret_cast<Outbox*>(first + static_cast<std::size_t>(to) * sizeof(Outbox)));
  }
  [[nodiscard]] std::byte* arena(int rank) const noexcept { return base(rank) + layout.arena(rank); }
};

/// Says where a rank runs. Plain bytes, for a store.
struct Whereabouts {
  std::array<char, 40> boot_id{};  ///< of the running kernel
  std::uint64_t pid_namespace = 0;
  std::int32_t process = 0;
  std::uint64_t arena_size = 0;
  std::uint64_t available = 0;  ///< memory that the container or the host has left
  cpu_set_t cores{};

  [[nodiscard]] static Whereabouts here(std::size_t wanted_arena, int world_size) {
    Whereabouts where;
    std::memset(static_cast<void*>(&where), 0, sizeof where);  // the padding as well: it is sent as it lies
    std::ifstream{"/proc/sys/kernel/random/boot_id"}.read(where.boot_id.data(), where.boot_id.size() - 1);
    struct stat status {};
    if (::stat("/proc/self/ns/pid", &status) == 0) where.pid_namespace = status.st_ino;
    where.process = ::getpid();
    where.arena_size = choose_arena_size(wanted_arena, world_size);
    where.available = available_memory();
    ::sched_getaffinity(0, sizeof where.cores, &where.cores);
    return where;
  }
  [[nodiscard]] bool is_reached_from(const Whereabouts& other) const noexcept {
    return boot_id == other.boot_id && pid_namespace == other.pid_namespace;
  }
};

template <class T>
[[nodiscard]] std::string to_text(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class T>
[[nodiscard]] T from_text(const std::string& text) {
  T value;
  std::memcpy(&value, text.data(), std::min(sizeof value, text.size()));
  return value;
}

/// Builds the group of one connect(); see SharedMemory::connect().
class GroupBuilder {
 public:
  GroupBuilder(const World& world, Store& store, std::string prefix, const Deadline& deadline)
      : world_(world), store_(store), prefix_(std::move(prefix)), deadline_(deadline) {}
  GroupBuilder(const GroupBuilder&) = delete;
  GroupBuilder& operator=(const GroupBuilder&) = delete;
  ~GroupBuilder() {
    if (handover_ != nullptr) release();
  }

  /// Throws: CollectiveError that names who did not come or could not join; ConfigError, on all ranks, that says why
  /// they cannot share memory.
  [[nodiscard]] SharedGroup build(std::size_t wanted_arena) {
    throw_if_missing(await_all(store_, prefix_, "here", world_, deadline_), world_, deadline_);
    const auto own = Whereabouts::here(wanted_arena, world_.size);
    const auto all = exchange("at", [&] { return to_text(own); });
    compare(own, all);
    if (group_.is_one_process) {
      share_with_threads();
    } else {
      share_with_processes(own, all);
    }
    return std::move(group_);
  }

 private:
  // What rank 0 makes for threads of one process, until each of them has its share of it.
  struct Handover {
    std::atomic<int> references;
    std::vector<std::shared_ptr<Mapping>> mappings{};
  };

  [[nodiscard]] std::string key(std::string_view stage, int rank) const {
    return fmt::format("{}{}/{}", prefix_, stage, rank);
  }
  [[nodiscard]] std::string place() const { return place_text("connect", world_.rank, world_.size); }

  // Leaves what make() returns for the others, or why it has thrown, and returns what all have left. Throws on all
  // ranks if one has failed: connect() succeeds everywhere or nowhere.
  template <class Make>
  std::vector<std::string> exchange(std::string_view stage, const Make& make) {
    constexpr char good = 'g';
    constexpr char refused = 'r';
    std::string own;
    try {
      own = good + make();
    } catch (const ConfigError& error) {
      own = refused + std::string{error.what()};
    } catch (const std::exception& error) {
      own = 'f' + std::string{error.what()};
    }
    store_.set(key(stage, world_.rank), own);
    const auto found = await_all(store_, prefix_, stage, world_, deadline_);
    throw_if_missing(found, world_, deadline_);
    std::vector<std::string> values;
    for (int rank = 0; rank < world_.size; ++rank) {
      const std::string& value = *found[static_cast<std::size_t>(rank)];
      const auto text = fmt::format("{}: rank {} could not connect: {}", place(), rank, value.substr(1));
      if (value.front() == refused) throw ConfigError{text};
      if (value.front() != good) throw CollectiveError{"connect", world_.rank, {rank}, text};
      values.push_back(value.substr(1));
    }
    return values;
  }

  // Finds what all can do with, and whether they are threads of one process.
  void compare(const Whereabouts& own, const std::vector<std::string>& all) {
    cpu_set_t cores = own.cores;
    group_.layout = {.world_size = world_.size, .arena_size = own.arena_size};
    group_.is_one_process = true;
    group_.available = own.available;
    for (const std::string& text : all) {
      const auto other = from_text<Whereabouts>(text);
      group_.is_one_process = group_.is_one_process && other.is_reached_from(own) && other.process == own.process;
      group_.layout.arena_size = std::min<std::size_t>(group_.layout.arena_size, other.arena_size);
      group_.available = std::min<std::size_t>(group_.available, other.available);
      CPU_OR(&cores, &cores, &other.cores);
    }
    group_.has_cores_for_all = CPU_COUNT(&cores) >= world_.size;
  }

  void check_reach(const Whereabouts& own, const std::vector<std::string>& all) const {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (from_text<Whereabouts>(all[static_cast<std::size_t>(rank)]).is_reached_from(own)) continue;
      throw ConfigError{
          fmt::format("SharedMemory joins processes of one host and one container, but rank {} runs in another than "
                      "this one; use Gloo, which sends over the network what cannot be shared",
                      rank)};
    }
  }

  void check_memory() const {
    constexpr int most_ranks = 256;  // what one rank adds up at once
    if (world_.size > most_ranks) {
      throw ConfigError{fmt::format("SharedMemory joins up to {} ranks, not {}: use Gloo over TCP, or fewer workers",
                                    most_ranks, world_.size)};
    }
    const std::size_t needed = group_.layout.touched() * static_cast<std::size_t>(world_.size);
    const std::size_t available = group_.available;
    if (available >= needed) return;
    throw ConfigError{fmt::format(
        "{} ranks need {} MiB of shared memory to begin with, and {} MiB are left (see memory.max of this container's "
        "control group): raise the limit, or use fewer workers",
        world_.size, needed >> 20U, available >> 20U)};
  }

  void make_cell(const Mapping& mapping) const {
    ::new (mapping.base()) RankCell;
    for (int to = 0; to < world_.size; ++to) {
      ::new (mapping.base() + SegmentLayout::outboxes() + static_cast<std::size_t>(to) * sizeof(Outbox)) Outbox;
    }
  }

  void share_with_threads() {
    const auto shares = exchange("handover", [&]() -> std::string {
      if (world_.rank != 0) return {};
      check_memory();
      auto made = std::make_unique<Handover>();
      made->references = world_.size;
      for (int rank = 0; rank < world_.size; ++rank) {
        made->mappings.push_back(map_private(group_.layout.size(), "connect"));
        make_cell(*made->mappings.back());
      }
      handover_ = made.release();
      return to_text(handover_);
    });
    exchange("seated", [&]() -> std::string {
      if (!claim(world_.rank)) throw Error{"the others gave up before this rank came"};
      has_seat_ = true;
      handover_ = from_text<Handover*>(shares.front());
      group_.mappings = handover_->mappings;
      return {};
    });
    is_complete_ = true;
  }

  // A key of a store can be set once, which makes it a lock that is taken once: either a late rank claims its seat and
  // will release its share, or a rank that waited in vain claims it and the late rank keeps away.
  [[nodiscard]] bool claim(int rank) {
    try {
      store_.set(key("seat", rank), "");
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Gives back this rank's share of the handover, and those of ranks that will not come any more.
  void release() noexcept {
    try {
      int num_shares = has_seat_ ? 1 : 0;
      for (int rank = 0; rank < world_.size && !is_complete_; ++rank) num_shares += claim(rank) ? 1 : 0;
      if (handover_->references.fetch_sub(num_shares) == num_shares) delete handover_;
    } catch (...) {  // out of memory: a few pages stay with the process
    }
  }

  void share_with_processes(const Whereabouts& own, const std::vector<std::string>& all) {
    Descriptor file;
    std::shared_ptr<Mapping> segment;
    const auto files = exchange("memory", [&] {
      check_reach(own, all);
      check_memory();
      file = make_memory_file(group_.layout.size(), "connect");
      segment = map_shared(file, group_.layout.size(), "connect");
      make_cell(*segment);
      return std::to_string(file.get());
    });
    // The file stays open here until everybody has mapped it.
    exchange("mapped", [&]() -> std::string {
      for (int rank = 0; rank < world_.size; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        const bool is_own = rank == world_.rank;
        const pid_t process = from_text<Whereabouts>(all[at]).process;
        group_.pidfds.push_back(is_own ? Descriptor{} : Descriptor{open_pidfd(process)});
        group_.mappings.push_back(
            is_own ? segment : map_shared(open_memory(rank, process, files[at]), group_.layout.size(), "connect"));
      }
      return {};
    });
  }

  [[nodiscard]] static Descriptor open_memory(int rank, pid_t process, const std::string& number) {
    const std::string path = fmt::format("/proc/{}/fd/{}", process, number);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0) return adopt(fd, "connect");
    throw ConfigError{
        fmt::format("the memory of rank {} (process {}) cannot be opened through {}: {}; ranks that share memory must "
                    "run as one user and see each other in /proc. Use Gloo with .transport = GlooTransport::tcp where "
                    "they do not",
                    rank, process, path, explain_errno(errno))};
  }

  const World& world_;
  Store& store_;
  std::string prefix_;
  const Deadline& deadline_;
  Handover* handover_ = nullptr;
  bool has_seat_ = false;
  bool is_complete_ = false;  // every rank has its seat, and gives it back itself
  SharedGroup group_{};
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
  HostLane(const SharedGroup& group, Meeting& meeting, const std::shared_ptr<Heap>& heap, int rank, HostMemory* side)
      : group_(&group), meeting_(&meeting), heap_(heap), rank_(rank), side_(side) {}

  void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) override {
    signature_.root = static_cast<std::int32_t>(purpose);
    meeting_->throw_if_lost(signature_);
    deadline_ = deadline;
    running_.first_shared = group_->is_one_process ? meeting_->step() + 1 : 0;
    running_.last_shared = group_->is_one_process ? meeting_->step() + static_cast<std::uint64_t>(num_steps) : 0;
    show(record);
    meeting_->enter(running_);
  }
  void add_step() noexcept override {
    if (group_->is_one_process) ++running_.last_shared;
  }
  void step(std::span<const std::byte> record) override {
    show(record);
    deadline_ = deadline_.renewed();  // there may be a part of a backward pass between two steps
    meeting_->take_step(running_);
    if (meeting_->step() < running_.last_shared) meeting_->throw_if_any_gave_up(running_);
  }
  void rest() noexcept override { meeting_->rest(); }
  [[nodiscard]] std::span<const std::byte> record_of(int rank) const override {
    const Post& post = meeting_->post_of(rank);
    return {post.payload.data(), static_cast<std::size_t>(post.place)};
  }

  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept override {
    if (group_->is_one_process) return reinterpret_cast<std::uintptr_t>(memory);
    if (!heap_->contains(memory)) return 0;
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - group_->base(rank_));
  }
  [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept override {
    return group_->is_one_process ? reinterpret_cast<std::byte*>(place) : group_->base(rank) + place;
  }
  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept override { return heap_; }

  [[nodiscard]] HostMemory* side() noexcept override { return side_; }
  void abort(std::string_view reason) noexcept override {
    try {
      meeting_->abort(reason);
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }
  void withdraw() noexcept override { meeting_->withdraw(running_); }

 private:
  void show(std::span<const std::byte> record) {
    if (record.size() > max_record_bytes) {
      throw ConfigError{
          compose("an exchange on rank {} shows {} bytes, of at most {}", rank_, record.size(), max_record_bytes)};
    }
    Post& post = meeting_->next_post();
    post.place = record.size();
    if (!record.empty()) std::memcpy(post.payload.data(), record.data(), record.size());
  }

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

// Arrays of bytes at any address, seen as arrays of T if all of them are aligned for that.
template <class T>
[[nodiscard]] inline bool are_aligned(std::span<std::byte* const> targets, std::span<const std::byte* const> sources) {
  const auto is_aligned = [](const std::byte* data) {
    return reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0;
  };
  return std::all_of(targets.begin(), targets.end(), is_aligned) &&
         std::all_of(sources.begin(), sources.end(), is_aligned);
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

/// Combines count elements of all sources, in their order, into every target. Targets may be sources.
/// Cost: reads every source once and writes every target once.
inline void reduce_into(std::span<std::byte* const> targets, std::span<const std::byte* const> sources,
                        std::size_t count, Dtype dtype, ReduceOp op) {
  if (count == 0) return;
  const bool is_sum = op == ReduceOp::sum || op == ReduceOp::average;
  if (is_sum && sources.size() <= most_arrays && targets.size() <= most_arrays) {
    const auto divisor = op == ReduceOp::average ? sources.size() : 1;
    if (dtype == Dtype::f32 && are_aligned<float>(targets, sources)) {
      return sum_bytes<float>(targets, sources, count, static_cast<float>(divisor));
    }
    if (dtype == Dtype::f64 && are_aligned<double>(targets, sources)) {
      return sum_bytes<double>(targets, sources, count, static_cast<double>(divisor));
    }
  }
  const std::size_t block = std::max<std::size_t>(1, (std::size_t{16} << 10U) / size_of(dtype));
  std::vector<const std::byte*> at{sources.begin(), sources.end()};
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    const std::size_t offset = begin * size_of(dtype);
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = sources[i] + offset;
    reduce(targets[0] + offset, at, n, dtype, op);
    for (std::byte* target : targets.subspan(1)) std::memcpy(target + offset, targets[0] + offset, n * size_of(dtype));
  }
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
                                                             const Deadline& deadline) {
    detail::check_world(world);
    detail::GroupBuilder builder{world, store, detail::enter_group(store, name, world), deadline};
    return std::unique_ptr<SharedMemory>{new SharedMemory{world, builder.build(options.arena_bytes)}};
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    const auto signature = arguments().all_reduce(data, op);
    meeting_.throw_if_lost(signature);
    if (data.size_bytes() <= detail::small_bytes) {
      enter_small(signature, data, data.size_bytes(), call);
      const std::array<std::byte*, 1> target{static_cast<std::byte*>(data.data)};
      detail::reduce_into(target, payloads(data.size_bytes()), data.count, data.dtype, op);
      return {};
    }
    Running running = shared(signature, call);
    const bool is_staged = show(data);
    if (is_staged) stage(data, 0);
    meeting_.enter(running);
    if (are_all_in_place()) {
      reduce_for_all(places(), detail::slice_of(data.count, world_), data.dtype, op);
      meeting_.take_step(running);
    } else {
      reduce_in_pieces(running, data, op, is_staged);
    }
    return {};
  }

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    const auto signature = arguments().reduce_scatter(in, out, op);
    std::vector<const std::byte*> sources(ranks());
    pull(signature, call, {.in = in, .num_parts = ranks(), .count = out.count}, [&](const Piece& piece) {
      for (int rank = 0; rank < world_.size; ++rank) sources[to_index(rank)] = piece.part(rank, rank_index());
      const std::array<std::byte*, 1> target{piece.to(out, 0)};
      detail::reduce_into(target, sources, piece.count, out.dtype, op);
    });
    return {};
  }

  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    const auto signature = arguments().broadcast(data, root);
    pull(signature, call, {.in = data, .count = data.count, .gives = world_.rank == root}, [&](const Piece& piece) {
      if (world_.rank != root) piece.copy(piece.to(data, 0), root, 0);
    });
    return {};
  }

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_gather(in, out);
    pull(signature, call, {.in = in, .count = in.count}, [&](const Piece& piece) {
      for (int rank = 0; rank < world_.size; ++rank) piece.copy(piece.to(out, to_index(rank) * in.count), rank, 0);
    });
    return {};
  }

  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    const auto signature = arguments().all_gather_uneven(in, out, counts);
    const std::size_t longest = *std::max_element(counts.begin(), counts.end());
    pull(signature, call, {.in = in, .count = longest}, [&](Piece piece) {
      std::size_t begin = 0;
      const std::size_t full = piece.count;
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::size_t count = counts[to_index(rank)];
        piece.count = count > piece.begin ? std::min(full, count - piece.begin) : 0;
        piece.copy(piece.to(out, begin), rank, 0);
        begin += count;
      }
    });
    return {};
  }

  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().gather(in, out, root);
    pull(signature, call, {.in = in, .count = in.count}, [&](const Piece& piece) {
      if (world_.rank != root) return;
      for (int rank = 0; rank < world_.size; ++rank) piece.copy(piece.to(out, to_index(rank) * in.count), rank, 0);
    });
    return {};
  }

  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    const auto signature = arguments().scatter(in, out, root);
    const Source source{.in = in, .num_parts = ranks(), .count = out.count, .gives = world_.rank == root};
    pull(signature, call, source, [&](const Piece& piece) { piece.copy(piece.to(out, 0), root, rank_index()); });
    return {};
  }

  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    const auto signature = arguments().all_to_all(in, out);
    const std::size_t count = in.count / ranks();
    pull(signature, call, {.in = in, .num_parts = ranks(), .count = count}, [&](const Piece& piece) {
      for (int rank = 0; rank < world_.size; ++rank) {
        piece.copy(piece.to(out, to_index(rank) * count), rank, rank_index());
      }
    });
    return {};
  }

  FinishedWork barrier(const Call& call) {
    const detail::Signature signature{.operation = detail::Operation::barrier};
    meeting_.throw_if_lost(signature);
    enter_small(signature, {}, 0, call);
    return {};
  }

  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    const auto signature = arguments().send(data, peer);
    meeting_.throw_if_lost(signature);
    detail::Outbox& box = group_.outbox(world_.rank, peer);
    std::uint64_t piece = box.offered.load();
    const std::uint64_t place = data.count == 0 ? nothing : place_of(data.data);
    Running running{.signature = signature, .deadline = call.deadline, .peer = peer, .box = &box};
    box.signature = signature;
    box.place = place;
    const std::size_t length = place == 0 ? detail::stage_bytes : std::max<std::size_t>(data.size_bytes(), 1);
    for (std::size_t begin = 0, turn = 0; begin == 0 || begin < data.size_bytes(); begin += length, ++turn) {
      if (place == 0) copy_bytes(stage_at(turn), data, begin, length);
      running.piece = ++piece;
      box.offered.store(piece);
      meeting_.ring();
      // One piece may be under way while the next is copied, in the other stage.
      const bool is_last = begin + length >= data.size_bytes();
      meeting_.await(box.taken, is_last ? piece : piece - 1, running);
    }
    return {};
  }

  FinishedWork receive(Buffer data, int peer, const Call& call) {
    const auto signature = arguments().receive(data, peer);
    meeting_.throw_if_lost(signature);
    detail::Outbox& box = group_.outbox(peer, world_.rank);
    std::uint64_t piece = box.taken.load();
    const Running running{.signature = signature, .deadline = call.deadline, .peer = peer};
    bool is_staged = false;
    std::size_t length = 1;
    for (std::size_t begin = 0, turn = 0; begin == 0 || begin < data.size_bytes(); begin += length, ++turn) {
      meeting_.await(box.offered, ++piece, running);
      if (begin == 0 && box.signature.digest() != signature.digest()) {
        meeting_.give_up(running, {{peer},
                                   detail::disagreement(peer, detail::describe(box.signature), world_.rank,
                                                        detail::describe(signature))});
      }
      if (begin == 0) is_staged = box.place == 0;
      length = is_staged ? detail::stage_bytes : std::max<std::size_t>(data.size_bytes(), 1);
      box.taking.store(piece);
      meeting_.throw_if_given_up(peer, running);  // it may be about to let go of its memory
      const std::byte* from = is_staged ? group_.cell(peer).stages[turn % 2].data() : at(peer, box.place);
      const std::size_t part = std::min(length, data.size_bytes() - begin);
      if (part > 0) std::memcpy(static_cast<std::byte*>(data.data) + begin, from, part);
      box.taken.store(piece);
      meeting_.ring();
    }
    return {};
  }

  /// Ends the waits of this rank, and tells the others. From any thread.
  void abort(std::string_view reason) noexcept { lane_.abort(reason); }

  /// Gives out memory that all ranks see. Its blocks may outlive this object. Of what is free it keeps at most half of
  /// the memory that the host or the container had left, divided by the ranks.
  [[nodiscard]] const std::shared_ptr<detail::Heap>& heap() const noexcept { return heap_; }

  [[nodiscard]] HostMemory* host_memory() noexcept { return &lane_; }

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

    [[nodiscard]] const std::byte* part(int rank, std::size_t index) const noexcept {
      return (*first_parts)[to_index(rank)] + index * (*strides)[to_index(rank)];
    }
    // Where the piece belongs in a buffer in which its part begins at element offset.
    [[nodiscard]] std::byte* to(const Buffer& out, std::size_t offset) const noexcept {
      return static_cast<std::byte*>(out.data) + (offset + begin) * element_bytes;
    }
    void copy(std::byte* target, int rank, std::size_t index) const noexcept {
      if (count > 0) std::memcpy(target, part(rank, index), count * element_bytes);
    }
  };

  SharedMemory(const World& world, detail::SharedGroup group)
      : world_(world),
        group_(std::move(group)),
        meeting_(world, cells(), group_.pidfds, group_.has_cores_for_all, 0),
        side_meeting_(world, cells(), group_.pidfds, false, 1),
        heap_(std::make_shared<detail::Heap>(group_.arena(world.rank), group_.layout.arena_size,
                                             group_.mappings[to_index(world.rank)], !group_.is_one_process,
                                             group_.available / 2 / to_index(world.size))),
        side_(group_, side_meeting_, heap_, world.rank, nullptr),
        lane_(group_, meeting_, heap_, world.rank, &side_) {}

  [[nodiscard]] static constexpr std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t rank_index() const noexcept { return to_index(world_.rank); }
  [[nodiscard]] std::size_t ranks() const noexcept { return to_index(world_.size); }
  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  [[nodiscard]] std::vector<detail::RankCell*> cells() const {
    std::vector<detail::RankCell*> cells;
    for (int rank = 0; rank < world_.size; ++rank) cells.push_back(&group_.cell(rank));
    return cells;
  }

  // Shows all ranks a value in the post itself: nobody looks at this rank's own memory. shown_bytes: the same on all
  // ranks, of which some may give less.
  void enter_small(const detail::Signature& signature, const ConstBuffer& data, std::size_t shown_bytes,
                   const Call& call) {
    if (data.count > 0) std::memcpy(meeting_.next_post().payload_of(shown_bytes), data.data, data.size_bytes());
    meeting_.enter({.signature = signature, .deadline = call.deadline});
  }

  [[nodiscard]] Sources payloads(std::size_t shown_bytes) const {
    Sources found(ranks());
    for (int rank = 0; rank < world_.size; ++rank) {
      found[to_index(rank)] = meeting_.post_of(rank).payload_of(shown_bytes);
    }
    return found;
  }

  // An operation in which threads read, or also write, each other's memory between its first step and its second.
  [[nodiscard]] Running shared(const detail::Signature& signature, const Call& call) const noexcept {
    Running running{.signature = signature, .deadline = call.deadline};
    if (group_.is_one_process) running.first_shared = meeting_.step() + 1;
    if (group_.is_one_process) running.last_shared = meeting_.step() + 2;
    return running;
  }

  // Names the data to all ranks. Returns whether they cannot see it, so that it must be staged.
  [[nodiscard]] bool show(const ConstBuffer& data) {
    detail::Post& post = meeting_.next_post();
    post.place = place_of(data.data);
    return post.place == 0;
  }

  [[nodiscard]] bool are_all_in_place() const noexcept {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (meeting_.post_of(rank).place == 0) return false;
    }
    return true;
  }

  [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept { return lane_.place_of(memory); }
  [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept { return lane_.at(rank, place); }

  [[nodiscard]] std::byte* stage_at(std::size_t turn) const noexcept { return meeting_.own().stages[turn % 2].data(); }

  static void copy_bytes(std::byte* to, const ConstBuffer& data, std::size_t begin, std::size_t at_most) noexcept {
    std::memcpy(to, static_cast<const std::byte*>(data.data) + begin, std::min(at_most, data.size_bytes() - begin));
  }

  // Copies piece number turn of the data into the stage whose turn it is.
  void stage(const ConstBuffer& data, std::size_t turn) const noexcept {
    const std::size_t begin = turn * detail::stage_bytes;
    if (begin < data.size_bytes()) copy_bytes(stage_at(turn), data, begin, detail::stage_bytes);
  }

  [[nodiscard]] std::vector<std::byte*> places() const {
    std::vector<std::byte*> found;
    for (int rank = 0; rank < world_.size; ++rank) found.push_back(at(rank, meeting_.post_of(rank).place));
    return found;
  }

  static void reduce_for_all(std::vector<std::byte*> data, std::pair<std::size_t, std::size_t> slice, Dtype dtype,
                             ReduceOp op) {
    for (std::byte*& one : data) one += slice.first * size_of(dtype);
    const Sources sources{data.begin(), data.end()};
    detail::reduce_into(data, sources, slice.second, dtype, op);
  }

  // Every rank reduces its slice of a piece, where a rank's data is or in its stage. While it waits for the others'
  // slices it has shown its next piece in the other stage.
  void reduce_in_pieces(const Running& running, const Buffer& data, ReduceOp op, bool is_staged) {
    std::vector<std::uint64_t> shown;
    for (int rank = 0; rank < world_.size; ++rank) shown.push_back(meeting_.post_of(rank).place);
    const std::size_t size = data.size_bytes();
    for (std::size_t begin = 0, turn = 0; begin < size; begin += detail::stage_bytes, ++turn) {
      const std::size_t length = std::min(detail::stage_bytes, size - begin);
      std::vector<std::byte*> pieces;
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::uint64_t place = shown[to_index(rank)];
        pieces.push_back(place == 0 ? group_.cell(rank).stages[turn % 2].data() : at(rank, place) + begin);
      }
      reduce_for_all(pieces, detail::slice_of(length / size_of(data.dtype), world_), data.dtype, op);
      if (is_staged) stage(data, turn + 1);
      meeting_.take_step(running);
      if (is_staged) std::memcpy(static_cast<std::byte*>(data.data) + begin, pieces[rank_index()], length);
    }
  }

  // Lets every rank take what it wants of what the ranks give: take(piece) is called for all pieces in turn.
  template <class Take>
  void pull(const detail::Signature& signature, const Call& call, const Source& source, const Take& take) {
    meeting_.throw_if_lost(signature);
    const std::size_t element_bytes = size_of(signature.dtype);
    const std::size_t part_bytes = source.count * element_bytes;
    if (source.num_parts * part_bytes <= detail::small_bytes) {
      const std::size_t shown_bytes = source.num_parts * part_bytes;
      enter_small(signature, source.gives ? source.in : ConstBuffer{}, shown_bytes, call);
      const Sources first_parts = payloads(shown_bytes);
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
                   std::size_t element_bytes) const noexcept {
    const std::size_t given = std::min(source.count, source.in.count);
    const std::size_t begin = turn * limit;
    if (begin >= given) return;
    const auto* from = static_cast<const std::byte*>(source.in.data);
    for (std::size_t part = 0; part < source.num_parts; ++part) {
      std::memcpy(stage_at(turn) + part * limit * element_bytes, from + (part * source.count + begin) * element_bytes,
                  std::min(limit, given - begin) * element_bytes);
    }
  }

  World world_;
  detail::SharedGroup group_;
  detail::Meeting meeting_;
  detail::Meeting side_meeting_;  // beside the operations
  std::shared_ptr<detail::Heap> heap_;
  detail::HostLane side_;
  detail::HostLane lane_;
};
static_assert(Backend<SharedMemory>);

}  // namespace railyard::inline v0_1

// ---- railyard/data/shuffle.hpp
// The order of an epoch and who gets which part of a batch: pure arithmetic, equal on every machine. Data room.

namespace railyard::inline v0_1 {

namespace detail {

// Mixes bits so that neighbouring inputs (seed 1 and 2, epoch 0 and 1) give unrelated outputs.
// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014 (the finaliser of SplitMix64).
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t bits) noexcept {
  bits += 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

// Derives the seed of one use of a run's seed.
[[nodiscard]] constexpr std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t use) noexcept {
  return mix_bits(mix_bits(seed) ^ mix_bits(~use));
}

// Draws numbers. Neither LibTorch's generator nor std::shuffle would do: the first differs between its releases, the
// second between standard libraries, and an order must be the same wherever a run goes on.
class Draws {
 public:
  constexpr explicit Draws(std::uint64_t seed) noexcept : state_(seed) {}

  // Draws a number below limit, each with equal probability.
  [[nodiscard]] constexpr std::uint64_t below(std::uint64_t limit) noexcept {
    const std::uint64_t excess = (0 - limit) % limit;  // 2^64 mod limit: the lowest draws, which would come once more
    std::uint64_t draw = next();
    while (draw < excess) draw = next();
    return draw % limit;
  }

 private:
  constexpr std::uint64_t next() noexcept {
    const std::uint64_t drawn = mix_bits(state_);
    state_ += 0x9E3779B97F4A7C15U;
    return drawn;
  }

  std::uint64_t state_;
};

// Returns 0 to count - 1 in order.
[[nodiscard]] inline std::vector<std::size_t> ordered_indices(std::size_t count) {
  std::vector<std::size_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

// Returns 0 to count - 1 in an order that is a function of count and seed only.
[[nodiscard]] inline std::vector<std::size_t> shuffled_indices(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> indices = ordered_indices(count);
  Draws draws{seed};
  for (std::size_t left = count; left > 1; --left) std::swap(indices[left - 1], indices[draws.below(left)]);
  return indices;
}

// A half-open range of positions.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  friend constexpr bool operator==(const Range&, const Range&) noexcept = default;
};

// Returns part number `part` of `parts` of the range: contiguous, sizes differ by at most one, larger ones first.
[[nodiscard]] constexpr Range part_of(Range whole, std::size_t part, std::size_t parts) noexcept {
  const std::size_t smaller = whole.size() / parts;
  const std::size_t larger_ones = whole.size() % parts;
  const std::size_t begin = whole.begin + part * smaller + (part < larger_ones ? part : larger_ones);
  return {begin, begin + smaller + (part < larger_ones ? 1 : 0)};
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/data/table.hpp
// A table of numbers with a label per row, and its division into parts. Data room: core and the standard library only.

namespace railyard::inline v0_1 {

/// Holds rows of numbers, each with an integer label. Cheap to copy, and safe to read from many threads: copies and
/// parts share the numbers, which never change.
class Table {
 public:
  /// Shapes: values holds row after row, one value per column; labels one number per row. Throws: ConfigError if the
  /// sizes do not fit.
  Table(std::vector<std::string> columns, std::vector<float> values, std::string label,
        std::vector<std::int64_t> labels) {
    if (columns.empty() || values.size() != labels.size() * columns.size()) {
      throw ConfigError{detail::compose(
          "a Table of {} columns and {} labels was given {} values: give at least one column, and columns x labels "
          "values",
          columns.size(), labels.size(), values.size())};
    }
    rows_ = std::make_shared<const std::vector<std::size_t>>(detail::ordered_indices(labels.size()));
    storage_ = std::make_shared<const Storage>(
        Storage{std::move(columns), std::move(values), std::move(label), std::move(labels)});
  }

  [[nodiscard]] std::size_t num_rows() const noexcept { return rows_->size(); }
  /// The number of columns, the label not among them.
  [[nodiscard]] std::size_t num_columns() const noexcept { return storage_->columns.size(); }
  [[nodiscard]] const std::vector<std::string>& columns() const noexcept { return storage_->columns; }
  /// The name of the label's column.
  [[nodiscard]] const std::string& label() const noexcept { return storage_->label; }

  /// The values of a row, which counts from 0 and is below num_rows().
  [[nodiscard]] std::span<const float> row(std::size_t index) const noexcept {
    return std::span{storage_->values}.subspan((*rows_)[index] * num_columns(), num_columns());
  }
  /// The label of a row.
  [[nodiscard]] std::int64_t label_of(std::size_t index) const noexcept { return storage_->labels[(*rows_)[index]]; }

  /// Returns the table of the given rows, in that order; a row may come more than once. Shares the numbers.
  /// Throws: ConfigError if a row does not exist.
  [[nodiscard]] Table select(std::span<const std::size_t> rows) const {
    std::vector<std::size_t> chosen;
    chosen.reserve(rows.size());
    for (const std::size_t row : rows) {
      if (row >= num_rows()) {
        throw ConfigError{
            detail::compose("row {} was selected from a table of {} rows: rows count from 0", row, num_rows())};
      }
      chosen.push_back((*rows_)[row]);
    }
    Table part = *this;
    part.rows_ = std::make_shared<const std::vector<std::size_t>>(std::move(chosen));
    return part;
  }

 private:
  struct Storage {
    std::vector<std::string> columns{};
    std::vector<float> values{};
    std::string label{};
    std::vector<std::int64_t> labels{};
  };

  std::shared_ptr<const Storage> storage_;
  std::shared_ptr<const std::vector<std::size_t>> rows_;
};

/// Divides the rows at random into one part per fraction. Every row lies in exactly one part; which one is a function
/// of the seed and the number of rows only. Throws: ConfigError if a fraction is not above 0, if they do not sum to 1,
/// or if a part would be empty.
[[nodiscard]] inline std::vector<Table> split(const Table& table, const std::vector<double>& fractions,
                                              std::uint64_t seed = 0) {
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  bool above_zero = true;
  for (const double fraction : fractions) above_zero = above_zero && fraction > 0;
  if (fractions.empty() || !above_zero || std::abs(sum - 1) > 1e-6) {
    throw ConfigError{
        detail::compose("split() was given the fractions {{{}}}, whose sum is {}: give fractions above 0 that "
                        "sum to 1, such as {{0.8, 0.2}}",
                        detail::joined(fractions, ", "), sum)};
  }
  const std::vector<std::size_t> order = detail::shuffled_indices(table.num_rows(), seed);
  std::vector<Table> parts;
  double up_to = 0;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < fractions.size(); ++part) {
    up_to += fractions[part];
    const bool is_last = part + 1 == fractions.size();
    const auto rounded = static_cast<std::size_t>(std::llround(up_to * static_cast<double>(order.size())));
    const std::size_t end = is_last ? order.size() : std::min(rounded, order.size());
    if (end <= begin) {
      throw ConfigError{
          detail::compose("split() of {} rows leaves part {} (fraction {}) without a row: use a larger "
                          "fraction or more rows",
                          order.size(), part, fractions[part])};
    }
    parts.push_back(table.select(std::span{order}.subspan(begin, end - begin)));
    begin = end;
  }
  return parts;
}

/// Does the same for a list of fractions written out, so that the parts can be named.
/// Example: const auto [training, test] = ry::split(table, {0.8, 0.2}, 1);
template <std::size_t N>
[[nodiscard]] std::array<Table, N> split(const Table& table, const double (&fractions)[N], std::uint64_t seed = 0) {
  const std::vector<Table> parts = split(table, std::vector<double>(fractions, fractions + N), seed);
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return std::array<Table, N>{parts[I]...}; }
  (std::make_index_sequence<N>{});
}

}  // namespace railyard::inline v0_1

// ---- railyard/data/read_csv.hpp
// Reads a table from a file of comma-separated values (RFC 4180). Data room: core and the standard library only.

#include <ios>
#include <iterator>

namespace railyard::inline v0_1 {

/// Says how read_csv() takes a file.
struct CsvOptions {
  std::string label{};  ///< the column that holds the labels, as integers; it must be given
};

namespace detail {

// Cuts text into records of fields. A record may span lines, where a quoted field holds a line break.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
    if (text_.starts_with("\xFF\xFE") || text_.starts_with("\xFE\xFF")) {
      throw DataError{compose("{} is UTF-16 text: save it as UTF-8", file_)};
    }
  }

  // The line on which the last record began, from 1.
  [[nodiscard]] std::size_t line() const noexcept { return record_line_; }

  // Reads the next record that is not a blank line; false at the end.
  bool next(std::vector<std::string>& fields) {
    while (position_ < text_.size()) {
      fields.clear();
      record_line_ = line_;
      const bool was_quoted = text_[position_] == '"';
      bool more = true;
      while (more) more = read_field(fields);
      if (fields.size() > 1 || !fields.front().empty() || was_quoted) return true;
    }
    return false;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw DataError{compose("{}:{}: {}", file_, record_line_, what)};
  }

 private:
  // Reads one field; true if another one follows in this record.
  bool read_field(std::vector<std::string>& fields) {
    std::string field;
    if (position_ < text_.size() && text_[position_] == '"') {
      field = read_quoted(fields.size());
    } else {
      while (position_ < text_.size() && !is_end_of_field(text_[position_])) {
        if (text_[position_] == '"') {
          fail(compose("field {} has a quote in its middle: quote the whole field and double the quotes inside it",
                       fields.size() + 1));
        }
        field += text_[position_++];
      }
    }
    fields.push_back(std::move(field));
    return !end_field();
  }

  std::string read_quoted(std::size_t index) {
    std::string field;
    ++position_;
    while (true) {
      if (position_ >= text_.size()) fail(compose("field {} opens a quote that is never closed", index + 1));
      const char c = text_[position_++];
      if (c == '"') {
        if (position_ >= text_.size() || text_[position_] != '"') break;
        ++position_;
      }
      if (c == '\n') ++line_;
      field += c;
    }
    if (position_ < text_.size() && !is_end_of_field(text_[position_])) {
      fail(compose("field {} goes on after its closing quote", index + 1));
    }
    return field;
  }

  // Steps over what ends a field; true if it ends the record as well.
  bool end_field() {
    if (position_ >= text_.size()) return true;
    const char c = text_[position_++];
    if (c == ',') return false;
    if (c == '\r' && position_ < text_.size() && text_[position_] == '\n') ++position_;
    ++line_;
    return true;
  }

  static bool is_end_of_field(char c) noexcept { return c == ',' || c == '\n' || c == '\r'; }

  std::string_view text_;
  std::string file_;
  std::size_t position_ = 0;
  std::size_t line_ = 1;
  std::size_t record_line_ = 1;
};

// Text from a file as a message shows it: no control characters, and no more than the eye takes in.
[[nodiscard]] inline std::string shown(std::string_view text) {
  constexpr std::size_t most = 60;
  std::string out;
  for (const char c : text.substr(0, most)) {
    const auto code = static_cast<unsigned char>(c);
    out += code < 0x20 || code == 0x7F ? compose("\\x{:02x}", code) : std::string(1, c);
  }
  return text.size() > most ? compose("{}... ({} characters)", out, text.size()) : out;
}

// Tells a number that is too small for its type from one that is too large, given that it is one of them.
[[nodiscard]] inline bool is_tiny(std::string_view number) {
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  const std::string_view digits = number.substr(0, e);
  std::string_view power = number.substr(std::min(e + 1, number.size()));
  if (power.starts_with('+')) power.remove_prefix(1);
  std::int64_t exponent = 0;
  if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec == std::errc::result_out_of_range) {
    return power.starts_with('-');
  }
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<std::int64_t>(std::min(digits.find_first_of("123456789"), digits.size()));
  return exponent < first - point;  // the first digit that counts stands behind the point
}

// Returns the number that the whole text spells, blanks around it aside; from_chars is the same in every locale.
template <class Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(" \t") - first + 1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if constexpr (std::is_same_v<Number, float>) {
    // What is nearer to zero than a float can be is zero, or by way of double the nearest that there is.
    if (error == std::errc::result_out_of_range && end == text.data() + text.size() && is_tiny(text)) {
      return static_cast<float>(number_of<double>(text).value_or(0.0));
    }
  }
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[nodiscard]] inline std::string read_whole(const std::filesystem::path& path) {
  std::error_code no_error;
  errno = 0;
  std::ifstream file{path, std::ios::binary};
  if (!file || std::filesystem::is_directory(path, no_error)) {
    const int code = errno;
    throw DataError{compose("cannot read \"{}\" (working directory {}): {}", path.string(),
                            std::filesystem::current_path(no_error).string(),
                            file ? "it is a directory" : std::strerror(code == 0 ? ENOENT : code))};
  }
  const auto fail = [&path](const char* why) {
    throw DataError{compose("reading \"{}\" failed: {}", path.string(), why)};
  };
  std::string text;
  try {
    text.assign(std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{});
  } catch (const std::ios_base::failure& error) {
    fail(error.what());  // the buffer throws by itself, whatever the stream was told
  }
  if (file.bad()) fail(std::strerror(errno));
  return text;
}

// Returns where the label's column is, after a look at the names.
[[nodiscard]] inline std::size_t find_label(const CsvReader& reader, const std::vector<std::string>& header,
                                            const std::string& label) {
  std::optional<std::size_t> found;
  std::string names;
  for (std::size_t column = 0; column < header.size(); ++column) {
    for (std::size_t other = 0; other < column; ++other) {
      if (header[other] == header[column]) {
        reader.fail(compose("the header names the column \"{}\" twice", shown(header[column])));
      }
    }
    if (column < 20) names += (column == 0 ? "\"" : ", \"") + shown(header[column]) + '"';
    if (column == 20) names += compose(" and {} more", header.size() - column);
    if (header[column] == label) found = column;
  }
  if (!found) {
    reader.fail(
        compose("there is no column \"{}\"; the first line, which must be a header, names: {}. Set .label to "
                "one of them",
                shown(label), names));
  }
  if (header.size() < 2) reader.fail("there is no column beside the label's");
  return *found;
}

inline void append_record(const CsvReader& reader, const std::vector<std::string>& header, std::size_t label,
                          const std::vector<std::string>& fields, std::vector<float>& values,
                          std::vector<std::int64_t>& labels) {
  if (fields.size() != header.size()) {
    reader.fail(compose("the record has {} fields, the header {}", fields.size(), header.size()));
  }
  for (std::size_t column = 0; column < fields.size(); ++column) {
    if (column == label) continue;
    const auto value = number_of<float>(fields[column]);
    if (!value) {
      reader.fail(compose("column \"{}\" holds \"{}\", which is no number that a float can hold", shown(header[column]),
                          shown(fields[column])));
    }
    values.push_back(*value);
  }
  const auto number = number_of<std::int64_t>(fields[label]);
  if (!number) {
    reader.fail(compose("the label's column \"{}\" holds \"{}\", which is no integer: number the classes from 0",
                        shown(header[label]), shown(fields[label])));
  }
  labels.push_back(*number);
}

}  // namespace detail

/// Reads a file of comma-separated values: a header line, then a row of numbers per record, one of them the label.
/// Quoted fields, CRLF, a byte order mark and blank lines are taken as they come.
/// Throws: DataError that names file, line and column if the file is missing or is not such a file; ConfigError if
/// options.label is empty. Example: auto table = ry::read_csv("digits.csv", {.label = "digit"});
[[nodiscard]] inline Table read_csv(const std::filesystem::path& path, const CsvOptions& options) {
  if (options.label.empty()) {
    throw ConfigError{
        detail::compose("read_csv(\"{}\") was not told which column holds the labels: set .label", path.string())};
  }
  const std::string text = detail::read_whole(path);
  detail::CsvReader reader{text, path.string()};
  std::vector<std::string> header;
  if (!reader.next(header))
    throw DataError{detail::compose("{} is empty: it must begin with a header line", path.string())};
  const std::size_t label = detail::find_label(reader, header, options.label);

  std::vector<float> values;
  std::vector<std::int64_t> labels;
  std::vector<std::string> fields;
  while (reader.next(fields)) detail::append_record(reader, header, label, fields, values, labels);
  if (labels.empty()) throw DataError{detail::compose("{} has a header but no records", path.string())};
  header.erase(header.begin() + static_cast<std::ptrdiff_t>(label));
  return {std::move(header), std::move(values), options.label, std::move(labels)};
}

}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/exit_reason.hpp
// Says in words why a process has ended or does not answer. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the number behind key in a file of lines "key number", as the kernel writes them.
[[nodiscard]] inline std::optional<std::uint64_t> number_in_file(const std::string& path, std::string_view key) {
  std::ifstream file{path};
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return std::nullopt;
}

/// Counts kills by the kernel's out-of-memory killer, in this process's memory cgroup if that can be seen (version 2,
/// then 1), and on the whole system otherwise.
class OomCounter {
 public:
  OomCounter() : OomCounter(find_path()) {}
  explicit OomCounter(std::string path) : path_(std::move(path)), before_(count()) {}

  /// Has the counter moved since this object was made?
  [[nodiscard]] bool has_moved() const { return count() > before_; }
  [[nodiscard]] bool is_of_cgroup() const noexcept { return path_ != system_path; }

 private:
  static constexpr std::string_view system_path = "/proc/vmstat";

  static std::string find_path() {
    std::ifstream cgroups{"/proc/self/cgroup"};
    for (std::string line; std::getline(cgroups, line);) {
      std::string path;
      if (line.starts_with("0::")) {
        path = "/sys/fs/cgroup" + line.substr(3) + "/memory.events";
      } else if (const auto at = line.find(":memory:"); at != std::string::npos) {
        path = "/sys/fs/cgroup/memory" + line.substr(at + 8) + "/memory.oom_control";
      }
      if (!path.empty() && number_in_file(path, "oom_kill")) return path;
    }
    return std::string{system_path};
  }
  [[nodiscard]] std::uint64_t count() const { return number_in_file(path_, "oom_kill").value_or(0); }

  std::string path_;
  std::uint64_t before_;
};

/// Returns the likely reason for a signal that has ended a worker, other than SIGKILL.
[[nodiscard]] inline std::string_view likely_reason(int signal) noexcept {
  switch (signal) {
    case SIGSEGV:
      return "it used memory that is not its own, such as a null or dangling pointer";
    case SIGABRT:
      return "abort(): most likely an assertion, or an exception that left a thread or a noexcept function; "
             "its standard error tells";
    case SIGBUS:
      return "it touched a mapping with no memory behind it: a file cut short, or /dev/shm is full";
    case SIGFPE:
      return "most likely an integer division by zero";
    case SIGILL:
      return "the processor does not know an instruction: built for another one (-march), or a trap of the compiler";
    case SIGXFSZ:
      return "a file grew beyond the limit (ulimit -f)";
    case SIGXCPU:
      return "the limit of processor time is used up (ulimit -t)";
    case SIGSYS:
      return "a system call is forbidden here (seccomp)";
    case SIGPIPE:
      return "it wrote to a pipe or socket that nobody reads";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "somebody asked this one process to end";
    default:
      return "sent from outside or by itself";
  }
}

/// Returns the sentence for a worker that a signal has ended.
[[nodiscard]] inline std::string explain_signal(int signal, bool dumped_core, const OomCounter& oom) {
  const std::string core = dumped_core ? "; a core dump was written" : "";
  if (signal != SIGKILL) {
    return compose("killed by signal {} ({}): {}{}", signal, signal_name(signal), likely_reason(signal), core);
  }
  if (oom.has_moved()) {
    return compose(
        "killed by signal 9 (SIGKILL): out of memory, most likely: the kernel's OOM killer has ended a "
        "process {} since the start",
        oom.is_of_cgroup() ? "of this memory cgroup" : "on this machine");
  }
  return "killed by signal 9 (SIGKILL) from outside: by a user, a batch system, or an OOM killer in user space";
}

/// Returns what the system says about a process: the letter of its state in /proc, 0 if it is gone.
[[nodiscard]] inline char process_state(pid_t pid) {
  std::ifstream file{compose("/proc/{}/stat", pid)};
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(')');  // the name before may hold anything
  return end != std::string::npos && end + 2 < text.size() ? text[end + 2] : '\0';
}

[[nodiscard]] inline std::string_view describe_state(char state) noexcept {
  switch (state) {
    case 'T':
      return "it is stopped (SIGSTOP or SIGTSTP): kill -CONT lets it go on";
    case 't':
      return "it is stopped by a debugger";
    case 'D':
      return "it is in uninterruptible sleep (state D): most likely a disk or a network file system does not answer";
    case 'Z':
    case 'X':
    case '\0':
      return "it has ended";
    default:
      return "it is running or runnable, but has had no chance to run: the machine may be overloaded or out of memory";
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/message_ring.hpp
// A ring of bytes in shared memory that carries one worker's messages to its supervisor. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::size_t max_message_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t ring_bytes = std::size_t{1} << 21U;

/// Wakes the supervisor, but only while it sleeps: a stream of messages costs one system call per nap, not per message.
struct Bell {
  std::atomic<std::uint32_t> armed{0};

  void ring_if_armed(int event_fd) noexcept {
    if (armed.load() != 0 && armed.exchange(0) != 0) ring(event_fd);
  }
  static void ring(int event_fd) noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_fd, &one, sizeof one);
  }
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
  MessageRing(RingState& state, std::byte* bytes) noexcept : state_(&state), bytes_(bytes) {}

  /// Appends a record, or returns false if there is no room.
  [[nodiscard]] bool try_write(RecordKind kind, std::span<const std::byte> payload) noexcept {
    std::uint64_t head = state_->head.load(std::memory_order_relaxed);
    const std::uint64_t tail = state_->tail.load();
    const std::uint64_t to_end = ring_bytes - head % ring_bytes;
    if (head == tail && to_end < ring_bytes - rewind_above && to_end + room_of(payload.size()) <= ring_bytes) {
      put(head, Header{.size = static_cast<std::uint32_t>(to_end), .kind = RecordKind::skip});
      head += to_end;  // touches few pages while the reader keeps up
    }
    if (head - tail + room_of(payload.size()) > ring_bytes) return false;
    put(head, Header{.size = static_cast<std::uint32_t>(payload.size()), .kind = kind});
    copy_in(head + sizeof(Header), payload);
    state_->head.store(head + room_of(payload.size()));
    return true;
  }

  /// Sleeps until the reader has taken something, for at most the given time. The reader must have been told before.
  void wait_for_room(std::size_t payload_bytes, std::chrono::nanoseconds at_most) noexcept {
    state_->writer_waits.store(1);
    const std::uint64_t used = state_->head.load(std::memory_order_relaxed) - state_->tail.load();
    if (used + room_of(payload_bytes) <= ring_bytes) return;
    futex_wait(state_->writer_waits, 1, at_most);
  }

  /// Takes the oldest record, if there is one.
  [[nodiscard]] std::optional<Record> read() {
    const std::uint64_t head = state_->head.load();
    std::uint64_t tail = state_->tail.load(std::memory_order_relaxed);
    while (tail != head) {
      const Header header = header_at(tail);
      if (header.kind == RecordKind::skip && tail % ring_bytes + header.size == ring_bytes) {
        tail += header.size;
        continue;
      }
      if (header.size > max_message_bytes || header.kind >= RecordKind::skip) break;  // the worker has run wild
      Record record{.kind = header.kind, .bytes = std::vector<std::byte>(header.size)};
      copy_out(tail + sizeof(Header), record.bytes);
      release(tail + room_of(header.size));
      return record;
    }
    if (tail != state_->tail.load(std::memory_order_relaxed) || tail != head) release(head);
    return std::nullopt;
  }

  [[nodiscard]] bool has_records() const noexcept {
    return state_->head.load() != state_->tail.load(std::memory_order_relaxed);
  }

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
  void put(std::uint64_t at, Header header) noexcept { std::memcpy(bytes_ + at % ring_bytes, &header, sizeof header); }
  [[nodiscard]] Header header_at(std::uint64_t at) const noexcept {
    Header header;
    std::memcpy(&header, bytes_ + at % ring_bytes, sizeof header);
    return header;
  }

  void copy_in(std::uint64_t at, std::span<const std::byte> payload) noexcept {
    if (payload.empty()) return;
    const std::size_t first = std::min<std::size_t>(payload.size(), ring_bytes - at % ring_bytes);
    std::memcpy(bytes_ + at % ring_bytes, payload.data(), first);
    if (first < payload.size()) std::memcpy(bytes_, payload.data() + first, payload.size() - first);
  }
  void copy_out(std::uint64_t at, std::span<std::byte> payload) const noexcept {
    if (payload.empty()) return;
    const std::size_t first = std::min<std::size_t>(payload.size(), ring_bytes - at % ring_bytes);
    std::memcpy(payload.data(), bytes_ + at % ring_bytes, first);
    if (first < payload.size()) std::memcpy(payload.data() + first, bytes_, payload.size() - first);
  }

  void release(std::uint64_t tail) noexcept {
    state_->tail.store(tail);
    if (state_->writer_waits.load() == 0) return;
    state_->writer_waits.store(0);
    futex_wake(state_->writer_waits);
  }

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

  std::atomic<std::uint32_t> changes{0};  ///< a futex: moves with every new value
  std::atomic<std::uint64_t> used{64};    ///< bytes given out so far; offset 0 means an empty slot
  std::array<std::atomic<std::uint32_t>, num_slots> slots{};
};

/// Sets and finds values in a StoreBlock.
class SharedTable {
 public:
  SharedTable(StoreBlock& block, std::byte* bytes) noexcept : block_(&block), bytes_(bytes) {}

  /// Throws: Error if the key is taken or the table is full.
  void set(std::string_view key, std::string_view value) {
    if (find(key)) throw_taken(key);
    const std::uint32_t offset = write_record(key, value);
    std::size_t slot = hash_of(key);
    for (std::size_t tried = 0; tried < StoreBlock::num_slots; ++tried, ++slot) {
      std::uint32_t seen = 0;
      if (slot_at(slot).compare_exchange_strong(seen, offset)) {
        nudge(block_->changes);
        return;
      }
      if (key_at(seen) == key) throw_taken(key);
    }
    throw_full(key, value);
  }

  [[nodiscard]] std::optional<std::string> find(std::string_view key) const {
    std::size_t slot = hash_of(key);
    for (std::size_t tried = 0; tried < StoreBlock::num_slots; ++tried, ++slot) {
      const std::uint32_t offset = slot_at(slot).load();
      if (offset == 0) return std::nullopt;
      if (key_at(offset) == key) return std::string{value_at(offset)};
    }
    return std::nullopt;
  }

  /// Returns the count of changes to hand to wait(); read it before looking for what may be missing.
  [[nodiscard]] std::uint32_t changes() const noexcept { return block_->changes.load(); }
  void wait(std::uint32_t changes_seen, std::chrono::nanoseconds at_most) const noexcept {
    futex_wait(block_->changes, changes_seen, at_most);
  }
  void wake_all() noexcept { nudge(block_->changes); }

 private:
  struct Header {
    std::uint32_t key_size = 0;
    std::uint32_t value_size = 0;
  };

  // FNV-1a: std::hash may differ between two shared libraries that look at one table.
  static std::size_t hash_of(std::string_view key) noexcept {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const char letter : key) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    return static_cast<std::size_t>(hash ^ (hash >> 32U));
  }

  std::uint32_t write_record(std::string_view key, std::string_view value) {
    if (key.size() + value.size() > StoreBlock::num_bytes) throw_full(key, value);
    const std::uint64_t size = (sizeof(Header) + key.size() + value.size() + 7U) / 8U * 8U;
    std::uint64_t offset = block_->used.load();
    do {
      if (offset + size > StoreBlock::num_bytes) throw_full(key, value);
    } while (!block_->used.compare_exchange_weak(offset, offset + size));
    const Header header{.key_size = static_cast<std::uint32_t>(key.size()),
                        .value_size = static_cast<std::uint32_t>(value.size())};
    std::memcpy(bytes_ + offset, &header, sizeof header);
    if (!key.empty()) std::memcpy(bytes_ + offset + sizeof header, key.data(), key.size());
    if (!value.empty()) std::memcpy(bytes_ + offset + sizeof header + key.size(), value.data(), value.size());
    return static_cast<std::uint32_t>(offset);
  }

  [[nodiscard]] std::atomic<std::uint32_t>& slot_at(std::size_t slot) const noexcept {
    return block_->slots[slot % StoreBlock::num_slots];
  }
  [[nodiscard]] Header header_at(std::uint32_t offset) const noexcept {
    Header header;
    std::memcpy(&header, bytes_ + offset, sizeof header);
    return header;
  }
  [[nodiscard]] std::string_view key_at(std::uint32_t offset) const noexcept {
    return {reinterpret_cast<const char*>(bytes_ + offset + sizeof(Header)), header_at(offset).key_size};
  }
  [[nodiscard]] std::string_view value_at(std::uint32_t offset) const noexcept {
    const Header header = header_at(offset);
    return {reinterpret_cast<const char*>(bytes_ + offset + sizeof(Header) + header.key_size), header.value_size};
  }

  [[noreturn]] static void throw_taken(std::string_view key) {
    throw Error{compose(
        "store.set(\"{}\"): the key has been set before; a key keeps its first value, so use another key", key)};
  }
  [[noreturn]] static void throw_full(std::string_view key, std::string_view value) {
    throw Error{compose(
        "store.set(\"{}\", {} bytes): the store is full (it holds {} MiB and {} keys); it is meant for small values, "
        "send large ones by a collective",
        key, value.size(), StoreBlock::num_bytes >> 20U, StoreBlock::num_slots)};
  }

  StoreBlock* block_;
  std::byte* bytes_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/snapshot_memory.hpp
// Memory that a worker fills and that outlives it: the supervisor holds it as well. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Owns an anonymous file and this process's mapping of it. Made before any fork, so that every process has the file;
/// what a process maps is its own affair.
class SnapshotMemory {
 public:
  SnapshotMemory() : file_(adopt(::memfd_create("railyard-snapshot", MFD_CLOEXEC), "start: memory for snapshots")) {}
  SnapshotMemory(SnapshotMemory&& other) noexcept
      : file_(std::move(other.file_)), mapped_(std::exchange(other.mapped_, {})) {}
  SnapshotMemory& operator=(SnapshotMemory&&) = delete;
  ~SnapshotMemory() { unmap(); }

  /// Returns the first size_bytes of it, which grows if need be and never shrinks: it is to be warm the next time.
  /// Throws: Error if the system does not give that much.
  [[nodiscard]] std::span<std::byte> map(std::size_t size_bytes) {
    if (size_bytes == 0) return {};
    if (mapped_.size() < size_bytes) map_anew(size_bytes);
    return mapped_.first(size_bytes);
  }

 private:
  void map_anew(std::size_t size_bytes) {
    struct stat file {};
    ::fstat(file_.get(), &file);
    // Now, rather than by a signal in the middle of the copy: a full /dev/shm does not matter here, but memory may.
    grow(static_cast<std::size_t>(file.st_size), size_bytes);
    unmap();
    void* at = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_.get(), 0);
    if (at == MAP_FAILED) refuse(size_bytes);
    ::madvise(at, size_bytes, MADV_DONTDUMP);
    mapped_ = {static_cast<std::byte*>(at), size_bytes};
  }

  // In pieces, so that it comes to an end although signals interrupt it.
  void grow(std::size_t from, std::size_t size_bytes) const {
    constexpr std::size_t most = std::size_t{16} << 20U;
    while (from < size_bytes) {
      const std::size_t piece = std::min(most, size_bytes - from);
      if (::fallocate(file_.get(), 0, static_cast<off_t>(from), static_cast<off_t>(piece)) == 0) {
        from += piece;
      } else if (errno != EINTR) {
        refuse(size_bytes);
      }
    }
  }

  [[noreturn]] static void refuse(std::size_t size_bytes) {
    throw Error{compose(
        "a snapshot of {} bytes for a checkpoint does not fit into memory: {}; give the job more memory, or save "
        "less: each worker keeps up to {} snapshots of its part of the state",
        size_bytes, explain_errno(errno), num_snapshots)};
  }

  void unmap() noexcept {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
    mapped_ = {};
  }

  Descriptor file_;
  std::span<std::byte> mapped_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/group_memory.hpp
// The memory that the workers of one group and their supervisor share. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is shared by one worker and the supervisor.
struct alignas(64) RankBlock {
  WorkerPage page{};
  alignas(64) std::atomic<std::uint32_t> agent{0};  ///< a futex: moves when the worker's agent has to look
  std::atomic<std::uint64_t> heartbeat{0};
  /// Futexes: 1 from when the worker takes a snapshot until the supervisor gives it back.
  std::array<std::atomic<std::uint32_t>, num_snapshots> snapshots{};
  RingState ring{};
};

/// Is shared by all workers and the supervisor. The reason is written before `aborted` and never changes after.
struct GroupBlock {
  alignas(64) Bell bell{};
  alignas(64) std::atomic<bool> aborted{false};
  std::atomic<bool> closed{false};  ///< nobody reads messages any more
  std::uint32_t reason_size = 0;
  char reason[4096] = {};
  std::uint32_t briefing_size = 0;
  char briefing[max_briefing_bytes] = {};
  StoreBlock store{};
};

/// Owns the mapping. Its pages cost nothing until they are touched; it is made before any fork, so that every process
/// has it at the same address, and it disappears with the last of them.
class GroupMemory {
 public:
  explicit GroupMemory(int num_workers, std::string_view briefing = {}) : num_workers_(num_workers) {
    check(briefing);
    for (int at = 0; at < num_workers * num_snapshots; ++at) snapshots_.emplace_back();
    base_ = ::mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) {
      throw_system(compose("start: mapping {} bytes that {} workers share", size(), num_workers), errno);
    }
    ::madvise(base_, size(), MADV_DONTDUMP);  // a core dump of a worker would hold everybody's messages
    begin(briefing);
  }
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;
  ~GroupMemory() { ::munmap(base_, size()); }

  /// Forgets everything but what snapshots are in. Nobody else may be using the memory.
  void reset(std::string_view briefing) {
    check(briefing);
    if (::madvise(base_, size(), MADV_REMOVE) != 0) std::memset(base_, 0, size());
    begin(briefing);
  }

  [[nodiscard]] int num_workers() const noexcept { return num_workers_; }
  [[nodiscard]] std::string_view briefing() const noexcept { return {group().briefing, group().briefing_size}; }
  /// The memory of a snapshot, at least so large. Belongs to the worker or to the supervisor, never to both.
  [[nodiscard]] std::span<std::byte> snapshot(int of_rank, int slot, std::size_t size_bytes) {
    return snapshots_[static_cast<std::size_t>(of_rank * num_snapshots + slot)].map(size_bytes);
  }
  void release_snapshot(int of_rank, int slot) const noexcept {
    auto& word = rank(of_rank).snapshots[static_cast<std::size_t>(slot)];
    word.store(0);
    futex_wake(word);
  }

  [[nodiscard]] GroupBlock& group() const noexcept { return *std::launder(static_cast<GroupBlock*>(base_)); }
  [[nodiscard]] RankBlock& rank(int rank) const noexcept {
    return *std::launder(reinterpret_cast<RankBlock*>(bytes_at(rank_offset(rank))));
  }
  [[nodiscard]] MessageRing ring(int of_rank) const noexcept {
    return {rank(of_rank).ring, bytes_at(rings_offset() + static_cast<std::size_t>(of_rank) * ring_bytes)};
  }
  [[nodiscard]] SharedTable store() const noexcept { return {group().store, bytes_at(store_offset())}; }

  [[nodiscard]] bool is_aborted() const noexcept { return group().aborted.load(); }
  [[nodiscard]] std::string_view reason() const noexcept { return {group().reason, group().reason_size}; }

  void request_stop() noexcept {
    for (int at = 0; at < num_workers_; ++at) rank(at).page.stop_requested.store(true);
  }

  void request_leave() noexcept {
    for (int at = 0; at < num_workers_; ++at) rank(at).page.leave_requested.store(true);
    request_stop();
  }

  /// Makes every wait of every worker that goes through this memory end. Only the first reason counts.
  void abort(std::string_view reason) noexcept {
    GroupBlock& block = group();
    if (!block.aborted.load()) {
      const std::size_t size = std::min(reason.size(), sizeof block.reason);
      if (size > 0) std::memcpy(block.reason, reason.data(), size);
      block.reason_size = static_cast<std::uint32_t>(size);
      block.aborted.store(true);
    }
    for (int at = 0; at < num_workers_; ++at) {
      nudge(rank(at).agent);
      futex_wake(rank(at).ring.writer_waits);
      for (const auto& word : rank(at).snapshots) futex_wake(word);
    }
    store().wake_all();
  }

 private:
  static void check(std::string_view briefing) {
    if (briefing.size() <= max_briefing_bytes) return;
    throw ConfigError{compose("start: the briefing of the workers has {} bytes, the most is {}", briefing.size(),
                              max_briefing_bytes)};
  }

  void begin(std::string_view briefing) {
    auto* group = ::new (base_) GroupBlock;
    for (int at = 0; at < num_workers_; ++at) ::new (bytes_at(rank_offset(at))) RankBlock;
    briefing.copy(group->briefing, briefing.size());
    group->briefing_size = static_cast<std::uint32_t>(briefing.size());
  }

  static constexpr std::size_t page_up(std::size_t size) noexcept { return (size + 4095U) / 4096U * 4096U; }
  static constexpr std::size_t rank_offset(int rank) noexcept {
    return page_up(sizeof(GroupBlock)) + static_cast<std::size_t>(rank) * sizeof(RankBlock);
  }
  [[nodiscard]] std::size_t rings_offset() const noexcept { return page_up(rank_offset(num_workers_)); }
  [[nodiscard]] std::size_t store_offset() const noexcept {
    return rings_offset() + static_cast<std::size_t>(num_workers_) * ring_bytes;
  }
  [[nodiscard]] std::size_t size() const noexcept { return store_offset() + StoreBlock::num_bytes; }
  [[nodiscard]] std::byte* bytes_at(std::size_t offset) const noexcept {
    return static_cast<std::byte*>(base_) + offset;
  }

  int num_workers_;
  void* base_ = nullptr;
  std::vector<SnapshotMemory> snapshots_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/signal_watch.hpp
// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 for as long as it lives, and passes them on to whoever had them before.
// Workers room.

#include <thread>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::array caught_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

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

[[nodiscard]] inline SignalRegistry& signal_registry() {
  static SignalRegistry registry;
  return registry;
}

inline void call_previous(const struct sigaction& previous, bool was_heard, int signal, siginfo_t* info,
                          void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_DFL) {
    if (was_heard) return;  // the listener ends the run in order
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    ::sigaction(signal, &fallback, nullptr);
    ::raise(signal);  // is delivered when this handler returns
  } else if (previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  }
}

inline void hear_signal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  SignalRegistry& registry = signal_registry();
  registry.inside.fetch_add(1);
  bool is_heard = false;
  for (const auto& listener : registry.listeners) {
    const int fd = listener.load() - 1;
    if (fd < 0) continue;
    const auto number = static_cast<unsigned char>(signal);
    [[maybe_unused]] const auto written = ::write(fd, &number, 1);
    is_heard = true;
  }
  registry.inside.fetch_sub(1);
  for (std::size_t at = 0; at < caught_signals.size(); ++at) {
    const struct sigaction* previous = registry.previous[at].load();
    if (caught_signals[at] == signal && previous != nullptr) call_previous(*previous, is_heard, signal, info, context);
  }
  errno = error;
}

/// Hears the signals of the process from its making to its end. Several may live at once, each hears every signal.
/// What was ignored stays ignored; a handler of the user's is called as well; what was found is put back, unless
/// somebody has replaced it in the meantime.
class SignalWatch {
 public:
  SignalWatch() {
    auto ends = make_pipe(O_NONBLOCK, "start: a pipe for signals");
    reader_ = std::move(ends.first);
    writer_ = std::move(ends.second);
    SignalRegistry& registry = signal_registry();
    const std::lock_guard lock{registry.mutex};
    std::size_t slot = 0;
    while (slot < registry.listeners.size() && registry.listeners[slot].load() != 0) ++slot;
    if (slot == registry.listeners.size()) {
      throw Error{compose("start: {} groups run at once in this process, which is the most", slot)};
    }
    slot_ = slot;
    if (registry.num_listeners == 0) install(registry);
    ++registry.num_listeners;
    registry.listeners[slot].store(writer_.get() + 1);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch() {
    SignalRegistry& registry = signal_registry();
    const std::lock_guard lock{registry.mutex};
    registry.listeners[slot_].store(0);
    while (registry.inside.load() != 0) std::this_thread::yield();  // a handler may hold the descriptor
    if (--registry.num_listeners == 0) put_back(registry);
  }

  /// Becomes readable when a signal has come.
  [[nodiscard]] int fd() const noexcept { return reader_.get(); }
  [[nodiscard]] std::optional<int> take() const noexcept {
    unsigned char signal = 0;
    if (::read(reader_.get(), &signal, 1) == 1) return signal;
    return std::nullopt;
  }

  /// In a process that has just been forked: the handlers that were ours go back to the default.
  void forget_in_child() noexcept {
    reader_.reset();
    writer_.reset();
    for (const int signal : caught_signals) {
      struct sigaction current {};
      ::sigaction(signal, nullptr, &current);
      if (!is_ours(current)) continue;
      struct sigaction fallback {};
      fallback.sa_handler = SIG_DFL;
      ::sigaction(signal, &fallback, nullptr);
    }
  }

 private:
  static bool is_ours(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &hear_signal;
  }
  static bool is_plain(const struct sigaction& action, void (*handler)(int)) noexcept {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler;
  }

  static bool is_same(const struct sigaction& left, const struct sigaction& right) noexcept {
    for (int signal = 1; signal < NSIG; ++signal) {
      if (::sigismember(&left.sa_mask, signal) != ::sigismember(&right.sa_mask, signal)) return false;
    }
    return left.sa_flags == right.sa_flags && left.sa_handler == right.sa_handler;  // one union with sa_sigaction
  }

  static const struct sigaction* keep(SignalRegistry& registry, const struct sigaction& action) {
    for (const auto& known : registry.found) {
      if (is_same(*known, action)) return known.get();
    }
    return registry.found.emplace_back(std::make_unique<const struct sigaction>(action)).get();
  }

  static void install(SignalRegistry& registry) {
    for (std::size_t at = 0; at < caught_signals.size(); ++at) {
      struct sigaction current {};
      ::sigaction(caught_signals[at], nullptr, &current);
      // Where somebody has put a handler over ours, it most likely calls ours: a second one would go round in circles.
      if (is_ours(current) || is_plain(current, SIG_IGN)) continue;
      if (registry.is_chained[at] && !is_plain(current, SIG_DFL)) continue;
      registry.previous[at].store(keep(registry, current));
      registry.is_chained[at] = true;
      struct sigaction ours {};
      ours.sa_sigaction = &hear_signal;
      ours.sa_flags = SA_SIGINFO | SA_RESTART | (current.sa_flags & SA_ONSTACK);
      ours.sa_mask = current.sa_mask;
      ::sigaction(caught_signals[at], &ours, nullptr);
    }
  }

  static void put_back(SignalRegistry& registry) noexcept {
    for (std::size_t at = 0; at < caught_signals.size(); ++at) {
      struct sigaction current {};
      ::sigaction(caught_signals[at], nullptr, &current);
      if (!registry.is_chained[at] || !is_ours(current)) continue;
      ::sigaction(caught_signals[at], registry.previous[at].load(), nullptr);
      registry.is_chained[at] = false;
    }
  }

  Descriptor reader_;
  Descriptor writer_;
  std::size_t slot_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/worker_link.hpp
// The worker's end of the shared memory, for threads and processes alike. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps what a worker wants to be run when its group ends, and runs it once.
class AbortHandler {
 public:
  using Handler = std::function<void(std::string_view)>;

  /// Replaces the handler. Does not return while the former one runs, unless that one is the caller.
  void set(Handler handler) {
    std::unique_lock lock{mutex_};
    idle_.wait(lock, [&] { return runner_ == std::thread::id{} || runner_ == std::this_thread::get_id(); });
    handler_ = std::move(handler);
  }

  /// Runs the handler if there is one, and forgets it.
  void run(std::string_view reason) noexcept {
    Handler handler;
    {
      const std::lock_guard lock{mutex_};
      std::swap(handler, handler_);
      if (!handler) return;
      runner_ = std::this_thread::get_id();
    }
    try {
      handler(reason);
      handler = nullptr;
    } catch (...) {  // nobody could be told: the worker learns of the end by its next wait
    }
    {
      const std::lock_guard lock{mutex_};
      runner_ = {};
    }
    idle_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  Handler handler_;
  std::thread::id runner_;
};

/// Is the group's store as one worker sees it: its waits end with the group.
class WorkerStore final : public Store {
 public:
  WorkerStore(GroupMemory& memory, int rank) noexcept : memory_(&memory), table_(memory.store()), rank_(rank) {}

  void set(std::string_view key, std::string_view value) override { table_.set(key, value); }

  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    while (true) {
      const std::uint32_t changes = table_.changes();
      if (auto value = table_.find(key)) return value;
      if (memory_->is_aborted()) {
        throw CollectiveError{compose("store.get(\"{}\")", key),
                              rank_,
                              {},
                              compose("store.get(\"{}\") on rank {}/{}: the group has been ended: {}", key, rank_,
                                      memory_->num_workers(), memory_->reason())};
      }
      if (deadline.expired()) return std::nullopt;
      table_.wait(changes, std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{200}));
    }
  }

 private:
  GroupMemory* memory_;
  SharedTable table_;
  int rank_;
};

/// Writes how a worker ended as bytes, and back.
[[nodiscard]] inline std::vector<std::byte> encode_exit(const WorkerExit& exit) {
  const std::string_view message = std::string_view{exit.message}.substr(0, max_message_bytes / 4);
  const std::size_t blamed = std::min<std::size_t>(exit.blamed.size(), max_message_bytes / 16);
  std::vector<std::int32_t> head{static_cast<std::int32_t>(exit.kind), exit.code, exit.is_consequence ? 1 : 0,
                                 static_cast<std::int32_t>(blamed)};
  head.insert(head.end(), exit.blamed.begin(), exit.blamed.begin() + static_cast<std::ptrdiff_t>(blamed));
  const auto numbers = std::as_bytes(std::span{head});
  const auto text = std::as_bytes(std::span{message});
  std::vector<std::byte> bytes{numbers.begin(), numbers.end()};
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

[[nodiscard]] inline WorkerExit decode_exit(std::span<const std::byte> bytes) {
  const auto number_at = [&](std::size_t index) {
    std::int32_t number = 0;
    if ((index + 1) * sizeof number <= bytes.size()) {
      std::memcpy(&number, bytes.data() + index * sizeof number, sizeof number);
    }
    return number;
  };
  WorkerExit exit{.kind = static_cast<WorkerExit::Kind>(number_at(0)), .code = number_at(1)};
  exit.is_consequence = number_at(2) != 0;
  const std::size_t words = bytes.size() / sizeof(std::int32_t);
  const auto blamed = std::min<std::size_t>(static_cast<std::uint32_t>(number_at(3)), words < 4 ? 0 : words - 4);
  for (std::size_t at = 0; at < blamed; ++at) exit.blamed.push_back(number_at(4 + at));
  const std::size_t text = std::min(bytes.size(), (4 + blamed) * sizeof(std::int32_t));
  exit.message.assign(reinterpret_cast<const char*>(bytes.data()) + text, bytes.size() - text);
  return exit;
}

/// Is the WorkerLink of both Threads and Processes. agent is the word on which the one who runs abort handlers sleeps.
class SharedLink final : public WorkerLink {
 public:
  SharedLink(GroupMemory& memory, int rank, int event_fd, std::atomic<std::uint32_t>& agent, const std::string& host)
      : memory_(&memory), store_(memory, rank), event_fd_(event_fd), agent_(&agent) {
    const int size = memory.num_workers();
    world_ = World{.rank = rank, .size = size, .local_rank = rank, .local_size = size, .host = host};
  }

  [[nodiscard]] const World& world() const noexcept override { return world_; }
  [[nodiscard]] Store& store() noexcept override { return store_; }
  [[nodiscard]] WorkerPage& page() noexcept override { return memory_->rank(world_.rank).page; }

  [[nodiscard]] std::string_view briefing() const noexcept override { return memory_->briefing(); }

  [[nodiscard]] Snapshot take_snapshot(std::size_t size_bytes) override {
    const int slot = std::exchange(next_snapshot_, (next_snapshot_ + 1) % num_snapshots);
    await_snapshot(slot);
    memory_->rank(world_.rank).snapshots[static_cast<std::size_t>(slot)].store(1);
    try {
      return {.slot = slot, .bytes = memory_->snapshot(world_.rank, slot, size_bytes)};
    } catch (...) {
      memory_->release_snapshot(world_.rank, slot);
      throw;
    }
  }

  void drop_snapshot(int slot) noexcept override { memory_->release_snapshot(world_.rank, slot); }

  void await_snapshot(int slot) override {
    const auto& word = memory_->rank(world_.rank).snapshots[static_cast<std::size_t>(slot)];
    while (word.load() != 0) {
      if (memory_->is_aborted()) throw_ended("snapshot");
      futex_wait(word, 1, std::chrono::milliseconds{200});
    }
  }

  void post(std::span<const std::byte> message) override {
    if (message.size() > max_message_bytes) {
      throw ConfigError{
          compose("post on rank {}/{}: the message has {} bytes, the most is {}: report less, or write it to a file",
                  world_.rank, world_.size, message.size(), max_message_bytes)};
    }
    if (!write(RecordKind::message, message, true)) throw_ended("post");
  }

  void on_abort(std::function<void(std::string_view)> handler) override {
    const bool is_set = static_cast<bool>(handler);
    handler_.set(std::move(handler));
    if (is_set && memory_->is_aborted()) nudge(*agent_);
  }

  /// Runs the handler if the group is ending. Called by the agent whenever its word has moved.
  void run_handler_if_aborted() noexcept {
    if (memory_->is_aborted()) handler_.run(memory_->reason());
  }

  /// Says how the worker ended; its last record. Not given up when the group ends: this is what the end waits for.
  void post_exit(const WorkerExit& exit) noexcept {
    try {
      const std::vector<std::byte> bytes = encode_exit(exit);
      [[maybe_unused]] const bool written = write(RecordKind::exit, bytes, false);
    } catch (...) {
      const std::int32_t kind = static_cast<std::int32_t>(exit.kind);  // no memory for the message
      [[maybe_unused]] const bool written = write(RecordKind::exit, std::as_bytes(std::span{&kind, 1}), false);
    }
  }

 private:
  [[noreturn]] void throw_ended(const char* operation) const {
    throw CollectiveError{operation,
                          world_.rank,
                          {},
                          compose("{} on rank {}/{}: the group has been ended: {}", operation, world_.rank, world_.size,
                                  memory_->reason())};
  }

  bool write(RecordKind kind, std::span<const std::byte> bytes, bool ends_with_group) {
    const std::lock_guard lock{mutex_};
    MessageRing ring = memory_->ring(world_.rank);
    GroupBlock& group = memory_->group();
    while (!ring.try_write(kind, bytes)) {
      if (group.closed.load() || (ends_with_group && memory_->is_aborted())) return false;
      Bell::ring(event_fd_);
      ring.wait_for_room(bytes.size(), std::chrono::milliseconds{100});
    }
    group.bell.ring_if_armed(event_fd_);
    return true;
  }

  GroupMemory* memory_;
  WorkerStore store_;
  int event_fd_;
  std::atomic<std::uint32_t>* agent_;
  World world_{};
  AbortHandler handler_;
  std::mutex mutex_;
  int next_snapshot_ = 0;  // they are used in turn, so that they are read in order
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/inbox.hpp
// The supervisor's end of the shared memory: collects messages, exits and signals into a queue. Workers room.

#include <sys/eventfd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Checks what every Scaling is asked for.
inline void check_plan(const GroupPlan& plan, const WorkerBody& body) {
  if (plan.num_workers < 1) {
    throw ConfigError{compose("num_workers is {}: a group needs at least 1 worker", plan.num_workers)};
  }
  if (!body) throw ConfigError{"start: the function that workers run is empty"};
}

/// Gathers what the workers post and what signals come, until the group's owner takes it.
class Inbox {
 public:
  explicit Inbox(GroupMemory& memory)
      : memory_(&memory),
        event_(adopt(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "start: a descriptor for wake-ups")),
        exits_(static_cast<std::size_t>(memory.num_workers())) {}

  [[nodiscard]] int event_fd() const noexcept { return event_.get(); }
  [[nodiscard]] bool has_events() const noexcept { return !events_.empty(); }
  void push(GroupEvent event) { events_.push_back(std::move(event)); }

  [[nodiscard]] std::optional<GroupEvent> pop() {
    if (events_.empty()) return std::nullopt;
    GroupEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  /// Takes what the rank has posted so far. Bounded by what its ring holds, so that one rank cannot keep the
  /// supervisor busy for ever.
  void drain(int rank) {
    MessageRing ring = memory_->ring(rank);
    std::size_t taken = 0;
    while (taken < ring_bytes) {
      std::optional<Record> record = ring.read();
      if (!record) return;
      had_messages_ = true;
      taken += record->bytes.size() + sizeof(std::uint64_t);
      if (record->kind == RecordKind::exit) {
        exits_[static_cast<std::size_t>(rank)] = decode_exit(record->bytes);
      } else {
        push(MessageEvent{.rank = rank, .bytes = std::move(record->bytes)});
      }
    }
  }
  void drain_all() {
    for (int rank = 0; rank < memory_->num_workers(); ++rank) drain(rank);
  }

  /// In a process that has just been forked: lets go of what only the supervisor needs. Workers keep event_fd().
  void forget_in_child() noexcept { signals_.forget_in_child(); }

  /// Forgets what the workers have posted, for new ones begin. Signals stay.
  void reset() {
    std::erase_if(events_, [](const GroupEvent& event) { return !std::holds_alternative<SignalEvent>(event); });
    exits_.assign(exits_.size(), std::nullopt);
    had_messages_ = false;
  }

  /// Looks for signals without waiting, and returns one if one has come.
  [[nodiscard]] std::optional<GroupEvent> pop_signal() {
    std::vector<pollfd> nothing;
    wait(nothing, std::chrono::nanoseconds{0});
    return pop();
  }

  /// How the rank says that it ended; nothing if it has not said.
  [[nodiscard]] const std::optional<WorkerExit>& exit_of_rank(int rank) const {
    return exits_[static_cast<std::size_t>(rank)];
  }

  /// Sleeps until something has been posted, a signal has come, or one of `others` is ready; at most the given time.
  /// Signals become events.
  void wait(std::vector<pollfd>& others, std::chrono::nanoseconds at_most) {
    if (at_most.count() > 0 &&
        std::exchange(
            had_messages_,
            false)) {  // in a stream of messages, a short nap unarmed saves the workers a system call per message
      at_most = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds{1});
    } else if (at_most.count() > 0) {
      memory_->group().bell.armed.store(1);
      if (has_records()) at_most = std::chrono::nanoseconds{0};
    }
    others.push_back({.fd = event_.get(), .events = POLLIN, .revents = 0});
    others.push_back({.fd = signals_.fd(), .events = POLLIN, .revents = 0});
    const timespec time = to_timespec(at_most);
    ::ppoll(others.data(), others.size(), &time, nullptr);
    memory_->group().bell.armed.store(0);
    const bool has_signal = others.back().revents != 0;
    others.pop_back();
    if (others.back().revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
    }
    others.pop_back();
    if (!has_signal) return;
    while (const std::optional<int> signal = signals_.take()) push(SignalEvent{.signal = *signal});
  }

 private:
  [[nodiscard]] bool has_records() const noexcept {
    for (int rank = 0; rank < memory_->num_workers(); ++rank) {
      if (memory_->ring(rank).has_records()) return true;
    }
    return false;
  }

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
  SilenceWatch(int num_workers, std::chrono::nanoseconds limit, std::int64_t now_ns)
      : ranks_(static_cast<std::size_t>(num_workers)), limit_ns_(limit.count()), looked_ns_(now_ns) {}

  /// How often to look: often enough to be late by an eighth of the limit at most.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return std::clamp(std::chrono::nanoseconds{limit_ns_ / 8}, std::chrono::nanoseconds{std::chrono::milliseconds{1}},
                      std::chrono::nanoseconds{std::chrono::seconds{1}});
  }
  /// How long until it is time to look.
  [[nodiscard]] std::chrono::nanoseconds until_look(std::int64_t now_ns) const noexcept {
    return std::max(std::chrono::nanoseconds{0}, interval() - std::chrono::nanoseconds{now_ns - looked_ns_});
  }

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

/// How often a worker moves its heartbeat: several times within the limit.
[[nodiscard]] inline std::chrono::nanoseconds heartbeat_interval(std::chrono::nanoseconds silence_limit) {
  return std::clamp(silence_limit / 8, std::chrono::nanoseconds{std::chrono::milliseconds{1}},
                    std::chrono::nanoseconds{std::chrono::seconds{1}});
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/channel.hpp
// Packets between the supervisor and the process that starts workers, descriptors included. Workers room.

#include <sys/socket.h>
#include <sys/types.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Asks for a worker (with its standard output and error as descriptors), or for the end of workers by force.
struct ZygoteRequest {
  enum class Kind : std::uint8_t { spawn, kill };
  Kind kind = Kind::spawn;
  int rank = 0;
};

/// Says that a worker has been made (with its pidfd, if there are any on this kernel) or could not be, or that it has
/// ended.
struct ZygoteReply {
  enum class Kind : std::uint8_t { spawned, exited };
  Kind kind = Kind::spawned;
  int rank = 0;
  pid_t pid = 0;
  int error = 0;   ///< errno, 0 if the worker has been made
  int status = 0;  ///< as of waitpid
};

/// Is one end of a pair of sockets that keep packets whole.
class Channel {
 public:
  explicit Channel(Descriptor socket) noexcept : socket_(std::move(socket)) {}

  [[nodiscard]] static std::pair<Channel, Channel> make_pair() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw_system("start: socketpair", errno);
    Descriptor second{ends[1]};
    Channel first{adopt(ends[0], "start: socketpair")};
    if (second.get() <= 2) second = adopt(::fcntl(second.get(), F_DUPFD_CLOEXEC, 3), "start: socketpair");
    return {std::move(first), Channel{std::move(second)}};
  }

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  void close() noexcept { socket_.reset(); }

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

#include <sys/prctl.h>

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

/// Writes out what stdio and iostreams hold. Not every stream if one is locked by somebody who reads it: that could
/// last for ever.
inline void flush_streams(bool every_stream) noexcept {
  try {
    std::cout.flush();
    std::clog.flush();
    std::cerr.flush();
  } catch (...) {  // the program has asked its streams to throw; a closed terminal is not ours to report
  }
  if (every_stream) {
    std::fflush(nullptr);
  } else {
    std::fflush(stdout);
    std::fflush(stderr);
  }
}

/// Runs the body in this process, which has just been forked and has one thread. That thread becomes the agent: it
/// moves the heartbeat and runs the abort handler, whatever the body does.
class WorkerProcess {
 public:
  WorkerProcess(const WorkerSetup& setup, int rank)
      : setup_(&setup),
        rank_(rank),
        link_(*setup.memory, rank, setup.event_fd, setup.memory->rank(rank).agent, setup.host) {}

  /// Sets up what must be so before anything of the user's runs.
  static void prepare(const WorkerSetup& setup, int rank, pid_t zygote, int out, int err) noexcept {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != zygote) ::_exit(70);  // it died before the line above
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    char name[16];
    std::snprintf(name, sizeof name, "railyard:%d", rank);
    ::prctl(PR_SET_NAME, name);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null > 0) ::dup2(null, 0);
    if (null == 0) ::fcntl(null, F_SETFD, 0);  // the parent had none, and what the body starts shall have one
    if (null > 2) ::close(null);
    ::dup2(out, 1);
    ::dup2(err, 2);
    buffer_by_line();
    ::sigaction(SIGCHLD, &setup.child_action, nullptr);
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    for (const int signal : caught_signals) {
      struct sigaction current {};
      ::sigaction(signal, nullptr, &current);
      if ((current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_IGN) continue;
      ::sigaction(signal, &fallback, nullptr);
    }
    ::sigset_t mask = setup.signal_mask;
    for (const int signal : caught_signals) ::sigdelset(&mask, signal);
    ::sigdelset(&mask, SIGCHLD);
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  }

  [[noreturn]] void run() noexcept {
    // Handlers run in the opposite order of their registration: those of the body first, then this one, which ends the
    // process before those that the parent had registered and that are about the parent's things.
    ::on_exit(&WorkerProcess::leave, const_cast<bool*>(&setup_->flushes_all));
    WorkerExit exit{};
    std::thread body;
    try {
      body = std::thread{[this, &exit] { run_body(exit); }};
    } catch (const std::system_error& error) {
      exit.kind = WorkerExit::Kind::threw;
      exit.message =
          compose("making the thread that runs the training function: {}", explain_errno(error.code().value()));
      is_done_.store(true);
    }
    be_agent();
    if (body.joinable()) body.join();  // with the destructors of its thread-local objects, which may crash as well
    link_.post_exit(exit);
    leave(0, const_cast<bool*>(&setup_->flushes_all));
    ::_exit(0);
  }

 private:
  // To a pipe, stdio would write by the page, and a line come late. Only with a buffer of its own does glibc forget
  // that the parent's was one to be filled: otherwise puts() keeps the line feed back.
  static void buffer_by_line() noexcept {
    constexpr std::size_t size = 16U << 10U;
    if (auto* buffer = static_cast<char*>(std::malloc(size))) std::setvbuf(stdout, buffer, _IOLBF, size);
  }

  static void leave(int status, void* flushes_all) noexcept {
    flush_streams(*static_cast<const bool*>(flushes_all));
    ::_exit(status);
  }

  void run_body(WorkerExit& exit) noexcept {
    try {
      (*setup_->body)(link_);
    } catch (...) {
      exit = exit_of(std::current_exception());
    }
    link_.on_abort({});  // what it refers to is most likely gone
    is_done_.store(true);
    nudge(block().agent);
  }

  void be_agent() noexcept {
    while (!is_done_.load()) {
      const std::uint32_t seen = block().agent.load();
      block().heartbeat.fetch_add(1);
      link_.run_handler_if_aborted();
      if (!is_done_.load()) futex_wait(block().agent, seen, setup_->heartbeat);
    }
  }

  [[nodiscard]] RankBlock& block() const noexcept { return setup_->memory->rank(rank_); }

  const WorkerSetup* setup_;
  int rank_;
  SharedLink link_;
  std::atomic<bool> is_done_{false};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/detail/zygote.hpp
// The single-threaded process that forks, watches and ends the workers on behalf of the supervisor. Workers room.

#include <sys/signalfd.h>
#include <sys/wait.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Lives in the process that start() has forked. It holds no lock, has no other thread, and lives for as long as the
/// supervisor: so a worker can be forked from it at any time, and no worker outlives either of them.
class Zygote {
 public:
  /// supervisor: the process that forked this one. Throws: Error if the system refuses what it needs.
  Zygote(const WorkerSetup& setup, Channel channel, pid_t supervisor)
      : setup_(&setup), channel_(std::move(channel)), supervisor_(supervisor) {
    // The subreaper of all it starts: orphans of workers come here, and can be ended, and are reaped.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::setpgid(0, 0);  // Ctrl-C is for the supervisor to decide about
    ::prctl(PR_SET_NAME, "railyard:start");
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &fallback, nullptr);  // an inherited SIG_IGN would hide how workers end
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    sigset_t wanted;
    ::sigemptyset(&wanted);
    ::sigaddset(&wanted, SIGCHLD);
    ::sigaddset(&wanted, SIGTERM);
    signals_ = adopt(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), "start: signalfd");
    // Three ways to learn that the supervisor is gone: its end of the channel closes (unless a process that it forked
    // meanwhile holds it), its pidfd (unless the kernel is old), and this signal (unless it comes from a mere thread).
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    supervisor_fd_ = Descriptor{open_pidfd(supervisor)};
    if (::getppid() != supervisor) ::_exit(70);
  }

  /// Serves until the supervisor closes the channel or dies, then ends all that is left.
  [[noreturn]] void run() {
    while (serve()) {
    }
    end_everything();
    ::_exit(0);
  }

 private:
  bool serve() {
    std::array<pollfd, 3> watched{{{.fd = channel_.fd(), .events = POLLIN, .revents = 0},
                                   {.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = supervisor_fd_.get(), .events = POLLIN, .revents = 0}}};
    ::poll(watched.data(), watched.size(), -1);
    if (watched[2].revents != 0) return false;
    if (watched[1].revents != 0 && !take_signals()) return false;
    if (watched[0].revents == 0) return true;
    ZygoteRequest request;
    std::vector<Descriptor> fds;
    switch (channel_.receive(request, fds, MSG_DONTWAIT)) {
      case Channel::Outcome::nothing:
        return true;
      case Channel::Outcome::closed:
        return false;
      case Channel::Outcome::packet:
        break;
    }
    if (request.kind == ZygoteRequest::Kind::kill) {
      for (const auto& [pid, rank] : workers_) ::kill(-pid, SIGKILL);
      return true;
    }
    return spawn(request.rank, fds);
  }

  bool take_signals() {
    signalfd_siginfo info{};
    bool has_lost_parent = false;
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGTERM && ::getppid() != supervisor_) has_lost_parent = true;
    }
    return !has_lost_parent && reap();
  }

  bool spawn(int rank, std::vector<Descriptor>& fds) {
    const pid_t self = ::getpid();
    const pid_t pid = fds.size() == 2 ? ::fork() : (errno = EMFILE, -1);
    if (pid == 0) become_worker(rank, self, fds);
    ZygoteReply reply{.kind = ZygoteReply::Kind::spawned, .rank = rank, .pid = pid, .error = pid < 0 ? errno : 0};
    if (pid < 0) return channel_.send(reply);
    ::setpgid(pid, pid);  // the worker does the same: whoever comes first
    workers_[pid] = rank;
    const Descriptor pidfd{open_pidfd(pid)};  // it cannot be another's: only this process reaps it
    const int fd = pidfd.get();
    return pidfd.is_open() ? channel_.send(reply, std::span{&fd, 1}) : channel_.send(reply);
  }

  [[noreturn]] void become_worker(int rank, pid_t self, std::vector<Descriptor>& fds) noexcept {
    try {
      WorkerProcess::prepare(*setup_, rank, self, fds[0].get(), fds[1].get());
      fds.clear();
      channel_.close();
      signals_.reset();
      supervisor_fd_.reset();
      WorkerProcess{*setup_, rank}.run();
    } catch (...) {
      ::_exit(71);
    }
  }

  // A worker's process group is ended before the worker is reaped: until then its number cannot be anybody else's.
  bool reap() {
    while (true) {
      siginfo_t info{};
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return true;
      const auto found = workers_.find(info.si_pid);
      if (found != workers_.end()) ::kill(-info.si_pid, SIGKILL);
      int status = 0;
      ::waitpid(info.si_pid, &status, 0);
      if (found == workers_.end()) continue;
      const ZygoteReply reply{
          .kind = ZygoteReply::Kind::exited, .rank = found->second, .pid = found->first, .status = status};
      workers_.erase(found);
      if (!channel_.send(reply)) return false;
    }
  }

  void end_everything() {
    for (const auto& [pid, rank] : workers_) ::kill(-pid, SIGKILL);
    while (true) {
      siginfo_t info{};
      const bool has_children = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0;
      if (!has_children && errno == ECHILD) return;
      if (info.si_pid != 0) {
        workers_.erase(info.si_pid);
        continue;
      }
      if (workers_.empty()) kill_children();  // those that had left their worker's process group
      pollfd child{.fd = signals_.get(), .events = POLLIN, .revents = 0};
      ::poll(&child, 1, 100);
      signalfd_siginfo signal{};
      while (::read(signals_.get(), &signal, sizeof signal) > 0) {
      }
    }
  }

  static void kill_children() {
    const std::string self = compose("{}", ::getpid());
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc", error}) {
      const std::string name = entry.path().filename().string();
      if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file{entry.path() / "stat"};
      std::string text;
      std::getline(file, text);
      const auto end = text.rfind(')');
      if (end == std::string::npos || end + 4 >= text.size()) continue;
      if (text.compare(end + 4, self.size() + 1, self + " ") == 0) ::kill(std::atoi(name.c_str()), SIGKILL);
    }
  }

  const WorkerSetup* setup_;
  Channel channel_;
  pid_t supervisor_;
  Descriptor signals_;
  Descriptor supervisor_fd_;
  std::map<pid_t, int> workers_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/workers/processes.hpp
// Workers that are forked processes of this host: captures just work, and a crash stays where it happens. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Checks, before anything starts, that this process may fork and has descriptors enough; raises its own limit.
inline void prepare_to_fork(int num_workers) {
  rlim_t num_open = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd", error}) {
    ++num_open;
    if (std::filesystem::read_symlink(entry.path(), error) != "/dev/nvidia-uvm") continue;
    throw ConfigError{
        "start: this process has already used CUDA, and a forked child cannot use it again: call fit() before "
        "anything touches a GPU (also before counting devices), or start the workers from outside"};
  }
  const rlim_t needed = num_open + (5 + num_snapshots) * static_cast<rlim_t>(num_workers) + 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur) return;
  if (needed > limit.rlim_max) {
    throw ConfigError{compose(
        "start: {} workers need up to {} descriptors in this process, {} are open, and the hard limit is {}: raise it "
        "(ulimit -Hn, LimitNOFILE, nofile in limits.conf), close some, or use fewer workers",
        num_workers, needed - num_open, num_open, limit.rlim_max)};
  }
  limit.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Is the group of Processes.
class ProcessGroup final : public WorkerGroup {
 public:
  ProcessGroup(const GroupPlan& plan, const WorkerBody& body)
      : memory_(plan.num_workers, plan.briefing), inbox_(memory_), body_(body), silence_limit_(plan.silence_limit) {
    setup_.memory = &memory_;
    setup_.body = &body_;
    setup_.event_fd = inbox_.event_fd();
    setup_.host = host_name();
    setup_.heartbeat = heartbeat_interval(plan.silence_limit);
    // A stream that another thread is reading stays locked for as long as it waits for input.
    setup_.flushes_all = ::ftrylockfile(stdin) == 0;
    if (setup_.flushes_all) ::funlockfile(stdin);
    fork_zygote();
    start_workers();
  }

  ~ProcessGroup() override { end_all(); }

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override {
    while (true) {
      if (auto event = inbox_.pop()) return event;
      if (num_over_ == workers_.size()) return inbox_.pop_signal();
      const bool is_last_look = deadline.expired();
      collect(is_last_look ? std::chrono::nanoseconds{0} : deadline.remaining());
      if (is_last_look) return inbox_.pop();
    }
  }

  void request_stop() override { memory_.request_stop(); }
  void request_leave() override { memory_.request_leave(); }
  void abort(std::string_view reason) override { memory_.abort(reason); }

  void kill() override {
    was_killed_ = true;
    for (const Process& worker : workers_) {
      if (worker.pid != 0 && !worker.is_over) kill_process(worker);
    }
    [[maybe_unused]] const bool sent = channel_.send(ZygoteRequest{.kind = ZygoteRequest::Kind::kill});
  }

  [[nodiscard]] bool can_kill() const noexcept override { return true; }

  [[nodiscard]] const WorkerPage& page(int rank) const override { return memory_.rank(rank).page; }

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t size_bytes) override {
    return memory_.snapshot(rank, slot, size_bytes);
  }
  void release_snapshot(int rank, int slot) noexcept override { memory_.release_snapshot(rank, slot); }

  void restart(std::string_view briefing) override {
    const bool needs_zygote = is_zygote_lost_ || zygote_ <= 0 || is_readable(zygote_fd_.get());
    if (needs_zygote) end_all();
    inbox_.reset();
    memory_.reset(briefing);
    if (needs_zygote) fork_zygote();
    start_workers();
  }

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
  };

  void fork_zygote() {
    is_zygote_lost_ = false;
    auto ends = Channel::make_pair();
    flush_streams(setup_.flushes_all);  // what is unwritten now would be written by every child as well
    ::sigaction(SIGCHLD, nullptr, &setup_.child_action);
    sigset_t all;
    ::sigfillset(&all);
    const pid_t supervisor = ::getpid();
    const BlockSignals block{all};  // a handler must not run in the child before it is reset there
    setup_.signal_mask = block.before();
    zygote_ = ::fork();
    if (zygote_ < 0) throw_system("start: forking the process that starts workers", errno);
    if (zygote_ == 0) {
      try {
        inbox_.forget_in_child();
        ends.first.close();
        Zygote{setup_, std::move(ends.second), supervisor}.run();
      } catch (...) {
        ::_exit(71);
      }
    }
    channel_ = std::move(ends.first);
    zygote_fd_ = Descriptor{open_pidfd(zygote_)};
  }

  void start_workers() {
    silence_ = SilenceWatch{memory_.num_workers(), silence_limit_, monotonic_ns()};
    workers_.clear();
    workers_.resize(static_cast<std::size_t>(memory_.num_workers()));
    num_over_ = 0;
    was_killed_ = false;
    try {
      spawn_all();
    } catch (...) {
      end_all();
      throw;
    }
  }

  void spawn_all() {
    const int num_workers = memory_.num_workers();
    constexpr int most_under_way = 16;  // the sockets hold that many packets without anybody waiting
    int answered = 0;
    for (int rank = 0; rank < num_workers; ++rank) {
      ask_for(rank);
      if (rank - answered + 1 >= most_under_way) answered += await_answer();
    }
    while (answered < num_workers) answered += await_answer();
  }

  void ask_for(int rank) {
    const std::string what = compose("start: a pipe for the output of rank {}/{}", rank, memory_.num_workers());
    auto out = make_pipe(0, what);
    auto err = make_pipe(0, what);
    for (const auto* reader : {&out.first, &err.first}) ::fcntl(reader->get(), F_SETFL, O_NONBLOCK);
    const std::array<int, 2> writers{out.second.get(), err.second.get()};
    if (!channel_.send(ZygoteRequest{.kind = ZygoteRequest::Kind::spawn, .rank = rank}, writers)) throw_lost();
    Process& worker = at(rank);
    worker.out.reader = std::move(out.first);
    worker.err.reader = std::move(err.first);
  }

  // Returns 1 for a worker that has been made, 0 for the news that one has already ended.
  int await_answer() {
    std::array<pollfd, 2> watched{{{.fd = channel_.fd(), .events = POLLIN, .revents = 0},
                                   {.fd = zygote_fd_.get(), .events = POLLIN, .revents = 0}}};
    while (::poll(watched.data(), watched.size(), 60'000) < 0 && errno == EINTR) {
    }
    if (watched[0].revents == 0) throw_lost();
    const bool is_answer = take_reply();
    if (is_zygote_lost_) throw_lost();
    return is_answer ? 1 : 0;
  }

  [[noreturn]] static void throw_lost() {
    throw Error{
        "start: the process that starts workers has been killed or does not answer: see whether memory or the "
        "number of processes is short, and start again"};
  }

  // Returns whether it was the answer to a request for a worker. Throws: Error if that could not be made.
  bool take_reply() {
    ZygoteReply reply;
    std::vector<Descriptor> fds;
    const auto outcome = channel_.receive(reply, fds, MSG_DONTWAIT);
    if (outcome == Channel::Outcome::closed) lose_zygote();
    if (outcome != Channel::Outcome::packet) return false;
    if (reply.kind == ZygoteReply::Kind::exited) {
      if (at(reply.rank).pid != reply.pid) return false;  // of an earlier start
      finish(reply.rank, exit_of_status(reply.status));
      return false;
    }
    if (reply.error != 0) {
      throw_system(compose("start: forking rank {}/{}", reply.rank, memory_.num_workers()), reply.error);
    }
    at(reply.rank).pid = reply.pid;
    if (!fds.empty()) at(reply.rank).pidfd = std::move(fds.front());
    return true;
  }

  void collect(std::chrono::nanoseconds at_most) {
    inbox_.drain_all();
    look_for_silence();
    std::vector<pollfd> watched = descriptors();
    if (inbox_.has_events()) at_most = std::chrono::nanoseconds{0};
    inbox_.wait(watched, std::min(at_most, silence_.until_look(monotonic_ns())));
    std::size_t index = 2;
    for (int rank = 0; rank < memory_.num_workers(); ++rank, index += 3) {
      if (at(rank).is_over) continue;
      if (watched[index].revents != 0) read_output(rank, false);
      if (watched[index + 1].revents != 0) read_output(rank, true);
      if (watched[index + 2].revents != 0) finish_orphan(rank);
    }
    if (watched[0].revents != 0) {
      do {
        take_reply();
      } while (!is_zygote_lost_ && is_readable(channel_.fd()));
    } else if (watched[1].revents != 0) {
      lose_zygote();
    }
  }

  // Two for the zygote, then three for every rank; negative ones are passed over by poll.
  [[nodiscard]] std::vector<pollfd> descriptors() const {
    std::vector<pollfd> watched;
    watched.reserve(3 * workers_.size() + 4);
    const auto add = [&](int fd) { watched.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
    add(is_zygote_lost_ ? -1 : channel_.fd());
    add(is_zygote_lost_ ? -1 : zygote_fd_.get());
    for (const Process& worker : workers_) {
      add(worker.out.reader.get());
      add(worker.err.reader.get());
      add(is_zygote_lost_ && !worker.is_over ? worker.pidfd.get() : -1);
    }
    return watched;
  }

  static bool is_readable(int fd) noexcept {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return fd >= 0 && ::poll(&one, 1, 0) > 0;
  }

  // Reads once and returns how much; at the end of the stream, lets go of it.
  std::size_t read_output(int rank, bool is_error) {
    Stream& stream = is_error ? at(rank).err : at(rank).out;
    if (!stream.reader.is_open()) return 0;
    std::array<char, 16384> bytes;
    const ssize_t got = ::read(stream.reader.get(), bytes.data(), bytes.size());
    if (got == 0) stream.reader.reset();
    if (got <= 0) return 0;
    stream.lines.append({bytes.data(), static_cast<std::size_t>(got)}, [&](std::string line) {
      inbox_.push(OutputEvent{.rank = rank, .is_error = is_error, .line = std::move(line)});
    });
    return static_cast<std::size_t>(got);
  }

  // Takes what was in the pipe when the worker ended and no more: a child of it may hold the other end and go on
  // writing.
  void finish_output(int rank, bool is_error) {
    Stream& stream = is_error ? at(rank).err : at(rank).out;
    if (stream.reader.is_open()) {
      const int capacity = ::fcntl(stream.reader.get(), F_GETPIPE_SZ);
      std::size_t left = capacity > 0 ? static_cast<std::size_t>(capacity) : std::size_t{1} << 16U;
      for (std::size_t got = 1; got > 0 && left > 0; left -= std::min(left, got)) got = read_output(rank, is_error);
    }
    stream.lines.finish([&](std::string line) {
      inbox_.push(OutputEvent{.rank = rank, .is_error = is_error, .line = std::move(line)});
    });
    stream.reader.reset();
  }

  void finish(int rank, WorkerExit exit) {
    Process& worker = at(rank);
    if (worker.is_over) return;
    worker.is_over = true;
    ++num_over_;
    inbox_.drain(rank);
    finish_output(rank, false);
    finish_output(rank, true);
    worker.pidfd.reset();
    if (const auto& told = inbox_.exit_of_rank(rank)) exit = *told;
    inbox_.push(ExitEvent{.rank = rank, .exit = std::move(exit)});
  }

  [[nodiscard]] WorkerExit exit_of_status(int status) const {
    if (!WIFSIGNALED(status)) return {.kind = WorkerExit::Kind::exited, .code = WEXITSTATUS(status)};
    const int signal = WTERMSIG(status);
    WorkerExit exit{.kind = WorkerExit::Kind::signalled, .code = signal};
    exit.is_consequence = was_killed_ && signal == SIGKILL;
    exit.message = exit.is_consequence ? "killed by its supervisor, because the group had to end and it did not"
                                       : explain_signal(signal, WCOREDUMP(status), oom_);
    return exit;
  }

  void look_for_silence() {
    const std::int64_t now = monotonic_ns();
    if (silence_.until_look(now).count() > 0) return;
    const auto heartbeat = [&](int rank) { return memory_.rank(rank).heartbeat.load(); };
    silence_.look(now, heartbeat, [&](int rank, std::chrono::nanoseconds quiet) {
      const Process& worker = at(rank);
      if (worker.is_over) return;
      const auto seconds = static_cast<double>(quiet.count()) / 1e9;
      inbox_.push(SilenceEvent{
          .rank = rank,
          .message = compose("rank {}/{} (process {}) has shown no sign of life for {:.1f} s: {}", rank,
                             workers_.size(), worker.pid, seconds, describe_state(process_state(worker.pid)))});
    });
  }

  // Without the zygote the workers die, by the signal they have asked for; their descendants do not, unless they are
  // ended here.
  void lose_zygote() {
    if (std::exchange(is_zygote_lost_, true)) return;
    inbox_.push(BrokenEvent{.message = compose("the process that starts the workers (process {}) has been killed; "
                                               "the workers end with it",
                                               zygote_)});
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      const Process& worker = at(rank);
      if (worker.is_over) continue;
      if (worker.pid != 0) kill_process(worker);
      if (!worker.pidfd.is_open()) finish_orphan(rank);
    }
  }

  static void kill_process(const Process& worker) noexcept {
    if (worker.pidfd.is_open()) signal_pidfd(worker.pidfd.get(), SIGKILL);
    ::kill(-worker.pid, SIGKILL);  // the number is taken for as long as anybody is in the process group
  }

  void finish_orphan(int rank) {
    const pid_t pid = at(rank).pid;
    if (pid != 0) ::kill(-pid, SIGKILL);
    WorkerExit exit{.kind = WorkerExit::Kind::signalled, .code = SIGKILL};
    exit.message = "killed, because the process that starts the workers was lost";
    exit.is_consequence = true;
    finish(rank, std::move(exit));
  }

  void end_all() noexcept {
    if (zygote_ <= 0) return;
    ::shutdown(channel_.fd(), SHUT_RDWR);  // unlike close, it is seen even if somebody else holds the descriptor
    if (!wait_for_zygote(std::chrono::seconds{5})) {
      for (const Process& worker : workers_) {
        if (worker.pid != 0 && !worker.is_over) kill_process(worker);
      }
      ::kill(zygote_, SIGKILL);
    }
    while (::waitpid(zygote_, nullptr, 0) < 0 && errno == EINTR) {
    }
    zygote_ = -1;
    if (is_zygote_lost_) reap_orphans();
  }

  // Without a zygote, its descendants become children of PID 1 or of a subreaper: perhaps of this process.
  void reap_orphans() const noexcept {
    const Deadline deadline = Deadline::after(std::chrono::seconds{1});
    for (const Process& worker : workers_) {
      while (worker.pid != 0 && !deadline.expired()) {
        const pid_t reaped = ::waitpid(-worker.pid, nullptr, WNOHANG);
        if (reaped < 0) break;
        if (reaped == 0) ::poll(nullptr, 0, 1);  // killed, and on its way
      }
    }
  }

  // Returns whether it has ended, or whether there is no way to know.
  [[nodiscard]] bool wait_for_zygote(std::chrono::nanoseconds at_most) const noexcept {
    if (!zygote_fd_.is_open()) return true;
    const Deadline deadline = Deadline::after(at_most);
    while (true) {
      pollfd ended{.fd = zygote_fd_.get(), .events = POLLIN, .revents = 0};
      const timespec time = to_timespec(deadline.remaining());
      const int ready = ::ppoll(&ended, 1, &time, nullptr);
      if (ready >= 0 || errno != EINTR) return ready > 0;
    }
  }

  [[nodiscard]] Process& at(int rank) { return workers_[static_cast<std::size_t>(rank)]; }

  GroupMemory memory_;
  Inbox inbox_;
  WorkerBody body_;
  std::chrono::nanoseconds silence_limit_;
  SilenceWatch silence_{0, {}, 0};
  OomCounter oom_;
  WorkerSetup setup_{};
  std::vector<Process> workers_{};
  Channel channel_{Descriptor{}};
  pid_t zygote_ = -1;
  Descriptor zygote_fd_;
  std::size_t num_over_ = 0;
  bool is_zygote_lost_ = false;
  bool was_killed_ = false;
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
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body) {
    detail::check_plan(plan, body);
    detail::prepare_to_fork(plan.num_workers);
    return std::make_unique<detail::ProcessGroup>(plan, body);
  }
};
static_assert(Scaling<Processes>);

}  // namespace railyard::inline v0_1

// ---- railyard/workers/threads.hpp
// Workers that are threads of this process: the quickest start and no isolation. Workers room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is the group of Threads. Agents, made when the group ends early, run the abort handlers, each worker's on its own: a
/// handler may wait for a lock that the supervisor's caller or another worker holds.
class ThreadGroup final : public WorkerGroup {
 public:
  ThreadGroup(const GroupPlan& plan, const WorkerBody& body)
      : memory_(plan.num_workers, plan.briefing), inbox_(memory_), body_(body) {
    start_threads();
  }

  ~ThreadGroup() override { end_all("the group has been destroyed by its owner"); }

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override {
    while (true) {
      if (auto event = inbox_.pop()) return event;
      if (num_over_ == threads_.size()) return inbox_.pop_signal();
      const bool is_last_look = deadline.expired();
      collect(is_last_look ? std::chrono::nanoseconds{0} : deadline.remaining());
      if (is_last_look) return inbox_.pop();
    }
  }

  void request_stop() override { memory_.request_stop(); }
  void request_leave() override { memory_.request_leave(); }

  void abort(std::string_view reason) override {
    memory_.abort(reason);
    try {
      while (agents_.size() < links_.size()) {
        agents_.emplace_back([this, rank = agents_.size()] { be_agent(static_cast<int>(rank)); });
      }
    } catch (const std::system_error&) {  // no more threads: this one has to do, now and in every collect()
      run_handlers_without_agent();
    }
  }

  void kill() override {
    collect(std::chrono::nanoseconds{0});  // whoever has just ended is not deaf
    std::string deaf;
    for (std::size_t rank = 0; rank < threads_.size(); ++rank) {
      if (!is_over_[rank]) deaf += compose("{}{}", deaf.empty() ? "" : ", ", rank);
    }
    if (!deaf.empty()) end_program(deaf);
  }

  [[nodiscard]] bool can_kill() const noexcept override { return false; }

  [[nodiscard]] const WorkerPage& page(int rank) const override { return memory_.rank(rank).page; }

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t size_bytes) override {
    return memory_.snapshot(rank, slot, size_bytes);
  }
  void release_snapshot(int rank, int slot) noexcept override { memory_.release_snapshot(rank, slot); }

  void restart(std::string_view briefing) override {
    join_all();
    links_.clear();
    threads_.clear();
    agents_.clear();
    num_over_ = 0;
    is_ending_.store(false);
    inbox_.reset();
    memory_.reset(briefing);
    start_threads();
  }

 private:
  void start_threads() {
    const int num_workers = memory_.num_workers();
    const std::string host = host_name();
    is_over_.assign(static_cast<std::size_t>(num_workers), false);
    for (int rank = 0; rank < num_workers; ++rank) {
      links_.push_back(std::make_unique<SharedLink>(memory_, rank, inbox_.event_fd(), memory_.rank(rank).agent, host));
    }
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : caught_signals) ::sigaddset(&signals, signal);
    const BlockSignals block{signals};  // they are the supervisor's: a worker's system calls are not interrupted
    try {
      for (auto& link : links_) threads_.emplace_back([this, &link] { run(*link); });
    } catch (const std::system_error& error) {
      const std::size_t made = threads_.size();
      end_all("not every worker could be started");
      throw Error{compose("start: making the thread of rank {}/{}: {}", made, num_workers,
                          explain_errno(error.code().value()))};
    }
  }

  void run(SharedLink& link) noexcept {
    WorkerExit exit{};
    try {
      body_(link);
    } catch (...) {
      exit = exit_of(std::current_exception());
    }
    link.on_abort({});  // what it refers to is most likely gone
    link.post_exit(exit);
  }

  void run_handlers_without_agent() noexcept {
    for (std::size_t rank = agents_.size(); rank < links_.size(); ++rank) links_[rank]->run_handler_if_aborted();
  }

  void be_agent(int rank) noexcept {
    const std::atomic<std::uint32_t>& word = memory_.rank(rank).agent;
    while (!is_ending_.load()) {
      const std::uint32_t seen = word.load();
      links_[static_cast<std::size_t>(rank)]->run_handler_if_aborted();
      if (!is_ending_.load()) futex_wait(word, seen, std::chrono::seconds{1});
    }
  }

  void collect(std::chrono::nanoseconds at_most) {
    inbox_.drain_all();
    if (memory_.is_aborted() && agents_.size() < links_.size()) {
      run_handlers_without_agent();
      at_most = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds{100});
    }
    std::vector<pollfd> nothing;
    inbox_.wait(nothing, inbox_.has_events() ? std::chrono::nanoseconds{0} : at_most);
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (is_over_[at]) continue;
      inbox_.drain(rank);
      if (const auto& exit = inbox_.exit_of_rank(rank)) {
        is_over_[at] = true;
        ++num_over_;
        inbox_.push(ExitEvent{.rank = rank, .exit = *exit});
      }
    }
  }

  // Threads that look at nothing of ours cannot be ended. Rather than to wait for ever, the program ends.
  void end_all(std::string_view reason) noexcept {
    try {
      const Deadline deadline = Deadline::after(std::chrono::seconds{30});
      if (num_over_ != threads_.size()) {
        collect(std::chrono::nanoseconds{0});
        if (num_over_ != threads_.size()) {
          request_stop();
          abort(reason);
        }
      }
      while (num_over_ != threads_.size() && !deadline.expired()) {
        collect(deadline.remaining());
        while (inbox_.pop()) {
        }
      }
      kill();
    } catch (...) {
      end_program("unknown");
    }
    join_all();
  }

  void join_all() noexcept {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    is_ending_.store(true);
    for (std::size_t rank = 0; rank < agents_.size(); ++rank) nudge(memory_.rank(static_cast<int>(rank)).agent);
    for (auto& agent : agents_) {
      if (agent.joinable()) agent.join();
    }
  }

  [[noreturn]] static void end_program(const std::string& deaf) noexcept {
    char text[512];
    const int length = std::snprintf(
        text, sizeof text,
        "railyard: the run had to end, but rank %s did not: a thread cannot be ended by force, so this program ends "
        "with status 70. Let the training function look at should_stop(), or use Processes.\n",
        deaf.c_str());
    [[maybe_unused]] const auto written = ::write(2, text, std::min(static_cast<std::size_t>(length), sizeof text - 1));
    ::syscall(SYS_exit_group, 70);  // what is wrapped around _exit() by a sanitizer would look at the deaf threads
    ::_exit(70);
  }

  GroupMemory memory_;
  Inbox inbox_;
  WorkerBody body_;
  std::vector<std::unique_ptr<SharedLink>> links_;
  std::vector<std::thread> threads_;
  std::vector<bool> is_over_;
  std::size_t num_over_ = 0;
  std::vector<std::thread> agents_;
  std::atomic<bool> is_ending_{false};
};

}  // namespace detail

/// Runs the workers as threads of this process. A worker that crashes or calls exit() ends the program, and one that
/// does not react when the group has to end makes the program end with status 70.
class Threads {
 public:
  static constexpr std::string_view name = "Threads";
  static constexpr Reach reach = Reach::process;
  static constexpr bool copies_function = true;

  /// Throws: ConfigError if the plan asks for less than one worker, Error if the system has no more threads.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body) {
    detail::check_plan(plan, body);
    return std::make_unique<detail::ThreadGroup>(plan, body);
  }
};
static_assert(Scaling<Threads>);

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

  void on_start(const RunInfo& info) const { held_->on_start(info); }
  [[nodiscard]] Next on_report(const Report& report) const { return held_->on_report(report); }
  void on_end(const RunEnd& end) const { held_->on_end(end); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void on_start(const RunInfo& info) = 0;
    virtual Next on_report(const Report& report) = 0;
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
  /// worst.
  std::string score{};
  ScoreOrder order = ScoreOrder::max;
  /// Makes a checkpoint of the TrainState after every so many steps, without metrics; 0 for none of these.
  std::uint64_t every_steps = 0;
  /// report(metrics, state) returns when the checkpoint is durable; otherwise as soon as the state has been copied.
  bool synchronous = false;
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
  };
  int rank = -1;
  std::string what{};
  int signal = 0;        ///< the signal to the supervisor that interrupted the run, 0 if none did
  bool is_wait = false;  ///< known only by that somebody waits or is silent: what each rank does tells more
  Kind kind = Kind::lost;
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

  explicit Controller(const Settings& settings)
      : settings_(settings), ranks_(static_cast<std::size_t>(settings.num_workers)) {}

  void begin(Time now) {
    phase_ = Phase::starting;
    limit_ = after(now, settings_.start_timeout);
  }

  void on_started(int rank) {
    ranks_[index(rank)].has_started = true;
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.has_started; });
    if (phase_ == Phase::starting && all) {
      phase_ = Phase::running;
      limit_ = Time::max();
    }
  }

  [[nodiscard]] Orders on_exit(int rank, WorkerExit exit, Time now) {
    Rank& gone = ranks_[index(rank)];
    gone.exit = std::move(exit);
    ++num_exited_;
    const bool has_returned = gone.exit->kind == WorkerExit::Kind::returned;
    const bool is_last = num_exited_ == ranks_.size();
    Orders orders;
    if (may_fail() && gone.exit->is_consequence) {
      if (suspects_.empty()) suspect_limit_ = after(now, settings_.cause_wait);
      suspects_.push_back(rank);
    } else if (may_fail() && !has_returned) {
      const bool is_exception = gone.exit->kind == WorkerExit::Kind::threw;
      orders = fail({.rank = rank,
                     .what = text(*gone.exit),
                     .kind = is_exception ? Failure::Kind::exception : Failure::Kind::lost},
                    now);
    } else if (phase_ == Phase::stopping && !has_returned) {
      orders = end(now);  // the others would wait for it
    }
    if (may_fail() && is_last && !suspects_.empty()) orders = fail(consequence(), now);
    if (is_last) phase_ = Phase::finished;
    return orders;
  }

  [[nodiscard]] Orders on_silence(int rank, const std::string& message, Time now) {
    if (!may_fail()) return {};
    return fail({.rank = rank, .what = "stopped answering: " + message, .is_wait = true}, now);
  }

  /// For what is no rank's fault: a broken group, a callback that throws.
  [[nodiscard]] Orders on_failure(Failure failure, Time now) {
    return may_fail() ? fail(std::move(failure), now) : Orders{};
  }

  [[nodiscard]] Orders on_signal(int signal, Time now) {
    if (phase_ == Phase::finished) return {};
    ++num_signals_;
    if (num_signals_ == 1 && may_fail()) {
      failure_ = Failure{.what = detail::compose("interrupted by {}", detail::signal_name(signal)),
                         .signal = signal,
                         .kind = Failure::Kind::final};
      phase_ = Phase::stopping;
      limit_ = after(now, settings_.stop_grace);
      return {.request_leave = true};
    }
    Orders orders = phase_ == Phase::ending ? Orders{} : end(now);
    orders.kill = true;  // who asks twice does not want to wait
    limit_ = after(now, settings_.kill_wait);
    is_killed_ = true;
    return orders;
  }

  /// Does what is due at this time; called at wakes_at() or later.
  [[nodiscard]] Orders on_time(Time now) {
    if (may_fail() && !suspects_.empty() && now >= suspect_limit_) return fail(consequence(), now);
    if (now < limit_) return {};
    switch (phase_) {
      case Phase::starting:
        return fail(late_start(), now);
      case Phase::stopping: {  // they have had their grace: only a moment more for waits to end
        Orders orders = end(now);
        limit_ = after(now, std::min<std::chrono::nanoseconds>(settings_.stop_grace, std::chrono::seconds{1}));
        return orders;
      }
      case Phase::ending:
        if (is_killed_) {
          phase_ = Phase::finished;
          return {};
        }
        is_killed_ = true;
        limit_ = after(now, settings_.kill_wait);
        return {.kill = true};
      default:
        return {};
    }
  }

  /// When on_time() has something to do; Time::max() if never.
  [[nodiscard]] Time wakes_at() const {
    return may_fail() && !suspects_.empty() ? std::min(limit_, suspect_limit_) : limit_;
  }

  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  [[nodiscard]] int num_alive() const noexcept { return static_cast<int>(ranks_.size() - num_exited_); }
  [[nodiscard]] bool has_exited(int rank) const { return ranks_[index(rank)].exit.has_value(); }

 private:
  struct Rank {
    bool has_started = false;
    std::optional<WorkerExit> exit{};
  };

  static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  static Time after(Time now, std::chrono::nanoseconds span) {
    return span >= Time::max() - now ? Time::max() : now + span;
  }

  // Only the first failure counts: what follows from it, or from the end that it brings, is not looked at.
  [[nodiscard]] bool may_fail() const noexcept {
    return !failure_ && phase_ != Phase::finished && phase_ != Phase::checking;
  }

  Orders fail(Failure failure, Time now) {
    failure_ = std::move(failure);
    return end(now);
  }

  Orders end(Time now) {
    phase_ = Phase::ending;
    limit_ = after(now, settings_.stop_grace);
    return {.abort = reason()};
  }

  [[nodiscard]] std::string reason() const {
    if (failure_->rank < 0) return failure_->what;
    return detail::compose("rank {} {}", failure_->rank, failure_->what);
  }

  static std::string text(const WorkerExit& exit) {
    switch (exit.kind) {
      case WorkerExit::Kind::returned:
        return "returned";
      case WorkerExit::Kind::threw:
        return "threw: " + exit.message;
      case WorkerExit::Kind::exited:
        return detail::compose("called exit({}) before its training function had returned{}{}", exit.code,
                               exit.message.empty() ? "" : ": ", exit.message);
      case WorkerExit::Kind::signalled:
        if (exit.message.find(detail::signal_name(exit.code)) != std::string::npos) return "was " + exit.message;
        return detail::compose("was ended by signal {} ({}){}{}", exit.code, detail::signal_name(exit.code),
                               exit.message.empty() ? "" : ": ", exit.message);
    }
    return exit.message;
  }

  [[nodiscard]] bool is_suspect(int rank) const {
    return std::find(suspects_.begin(), suspects_.end(), rank) != suspects_.end();
  }

  // The ranks that suspects blame and that have not failed in a collective themselves: returned ones first, for they
  // explain everything, then those that still run.
  [[nodiscard]] std::optional<std::pair<int, int>> culprit_and_witness() const {
    for (const bool must_be_gone : {true, false}) {
      for (const int witness : suspects_) {
        for (const int blamed : ranks_[index(witness)].exit->blamed) {
          const bool is_known = blamed >= 0 && index(blamed) < ranks_.size() && !is_suspect(blamed);
          if (is_known && (has_exited(blamed) || !must_be_gone)) return std::pair{blamed, witness};
        }
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Failure consequence() const {
    const auto found = culprit_and_witness();
    if (!found)
      return {.rank = suspects_.front(), .what = text(*ranks_[index(suspects_.front())].exit), .is_wait = true};
    const auto [culprit, witness] = *found;
    const std::string& message = ranks_[index(witness)].exit->message;
    if (has_exited(culprit)) {
      return {.rank = culprit,
              .what = detail::compose(
                  "returned from the training function while rank {} still waited for it: {}; all ranks "
                  "must call the same collectives",
                  witness, message),
              .is_wait = true};
    }
    return {.rank = culprit, .what = detail::compose("did not answer rank {}: {}", witness, message), .is_wait = true};
  }

  [[nodiscard]] Failure late_start() const {
    std::string missing;
    int first = -1;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].has_started) continue;
      if (first < 0) {
        first = static_cast<int>(i);
      } else {
        missing += detail::compose("{}{}", missing.empty() ? "" : ", ", i);
      }
    }
    const double seconds = std::chrono::duration<double>(settings_.start_timeout).count();
    return {.rank = first,
            .what = detail::compose(
                "had not joined the group after {} s{}{}; raise RunConfig::start_timeout if it needs more", seconds,
                missing.empty() ? "" : ", nor had ", missing)};
  }

  Settings settings_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::checking;
  Time limit_ = Time::max();
  Time suspect_limit_ = Time::max();
  std::vector<int> suspects_{};
  std::size_t num_exited_ = 0;
  int num_signals_ = 0;
  bool is_killed_ = false;
  std::optional<Failure> failure_{};
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/failure_config.hpp
// What happens when a worker fails. Train room.

namespace railyard::inline v0_1 {

/// Says how often a run may be started again after a failure: all workers anew, from the newest checkpoint.
struct FailureConfig {
  /// How many failures the run survives; -1 for any number. A failure of the group counts once, however many ranks
  /// have failed. Ctrl-C, SIGTERM and exceptions of callbacks end the run in any case.
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
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/control_lane.hpp
// What the ranks tell each other with the first exchange of a step, at no collective of its own. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Keeps what this rank says with the next exchange, and what all have heard with the last one. Only exchanges that all
/// ranks take part in are heard, so every rank decides alike whether it has to ask by a collective.
class ControlLane {
 public:
  /// A loop over training data begins: ranks in different ones would average what does not belong together.
  void begin_loop() noexcept { ++loop_; }
  [[nodiscard]] std::uint64_t loop() const noexcept { return loop_; }

  /// A batch is given out. is_last: this rank's data ends with it.
  void begin_batch(bool is_last) noexcept {
    has_ended_ = is_last;
    have_all_ended_.reset();
  }
  [[nodiscard]] bool has_ended() const noexcept { return has_ended_; }

  /// All ranks have exchanged, for the first time in a step.
  void hear(bool anyone_stops, bool have_all_ended) noexcept {
    ++num_heard_;
    anyone_stops_ = anyone_stops;
    has_heard_in_step_ = true;
    have_all_ended_ = have_all_ended;
  }

  /// Whether the data of all ranks has ended; nothing if they have not exchanged since the batch was given out.
  [[nodiscard]] std::optional<bool> have_all_ended() const noexcept { return have_all_ended_; }

  /// Whether any rank wants to stop; nothing unless there has been exactly one exchange since the last call. Of
  /// several, the last may be long ago: whoever asks once per epoch must not learn of a wish an epoch too late.
  [[nodiscard]] std::optional<bool> take_stop() noexcept {
    return std::exchange(num_heard_, 0) == 1 ? std::optional{anyone_stops_} : std::nullopt;
  }

  /// Whether any rank wanted to stop in the step that ends; nothing if all ranks have exchanged nothing in it.
  [[nodiscard]] std::optional<bool> end_step() noexcept {
    return std::exchange(has_heard_in_step_, false) ? std::optional{anyone_stops_} : std::nullopt;
  }

 private:
  std::uint64_t loop_ = 0;
  std::uint64_t num_heard_ = 0;
  bool has_ended_ = false;
  bool anyone_stops_ = false;
  bool has_heard_in_step_ = false;
  std::optional<bool> have_all_ended_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/step_times.hpp
// Where the time of training steps has gone. Train room.

namespace railyard::inline v0_1 {

/// Says where the time of some steps has gone. Units: seconds.
struct StepTimes {
  std::uint64_t steps = 0;   ///< exchanges of gradients
  double compute = 0;        ///< all that is none of the following: loading, forward, backward
  double wait = 0;           ///< for ranks that came later
  double communication = 0;  ///< adding gradients, and moving them
  double optimizer = 0;      ///< in step() of a prepared optimizer
  std::uint64_t bytes = 0;   ///< of gradients that were read and written for the exchange
  int slowest_rank = -1;     ///< the one that has waited least, which is whom the others wait for; -1 if unknown

  [[nodiscard]] double total() const noexcept { return compute + wait + communication + optimizer; }
  [[nodiscard]] double share_of_compute() const noexcept { return share_of(compute); }
  [[nodiscard]] double share_of_wait() const noexcept { return share_of(wait); }
  [[nodiscard]] double share_of_communication() const noexcept { return share_of(communication); }
  [[nodiscard]] double share_of_optimizer() const noexcept { return share_of(optimizer); }

 private:
  [[nodiscard]] double share_of(double part) const noexcept { return total() > 0 ? part / total() : 0; }
};

namespace detail {

/// Returns the times of the average rank of those that have told theirs, and the bytes of all together.
[[nodiscard]] inline StepTimes average_of(const std::vector<StepTimes>& by_rank) {
  StepTimes all;
  double num_known = 0;
  for (const StepTimes& one : by_rank) {
    if (one.steps == 0) continue;
    ++num_known;
    all.steps = std::max(all.steps, one.steps);
    all.compute += one.compute;
    all.wait += one.wait;
    all.communication += one.communication;
    all.optimizer += one.optimizer;
    all.bytes += one.bytes;
    if (one.slowest_rank >= 0) all.slowest_rank = one.slowest_rank;
  }
  for (double* part : {&all.compute, &all.wait, &all.communication, &all.optimizer}) *part /= std::max(num_known, 1.0);
  return all;
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/wire.hpp
// The messages that a worker posts to its supervisor. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// The worker is about to call the training function.
struct StartedMessage {
  std::string host{};
};
/// The training function has reported.
struct ReportMessage {
  Metrics metrics{};
};
/// The training function has returned, and this is where the time of its steps has gone.
struct StepTimesMessage {
  StepTimes times{};
};
/// Is one file of a rank's part of a checkpoint, and where in its snapshot it stands.
struct SavedFile {
  std::string name{};
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};
/// A snapshot holds the rank's part of a checkpoint.
struct SavedMessage {
  std::int32_t slot = 0;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::int64_t epoch = 0;
  std::int64_t report = -1;  ///< the number of the last report before it; -1 if there was none
  bool is_report = false;    ///< it belongs to that report, and has its metrics
  std::vector<SavedFile> files{};
};
using WorkerMessage = std::variant<StartedMessage, ReportMessage, StepTimesMessage, SavedMessage>;

enum class MessageKind : std::uint8_t { started = 1, report = 2, step_times = 3, saved = 4 };
enum class ValueKind : std::uint8_t { truth = 0, integer = 1, number = 2, text = 3 };

/// Appends plain values to a message. Both ends are one program on one host: no byte order to settle.
class WireWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  void put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), bytes, bytes + text.size());
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  void reserve(std::size_t size) { bytes_.reserve(size); }

 private:
  std::vector<std::byte> bytes_{};
};

/// Takes a message apart; every length is checked before it is believed.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  template <class T>
  [[nodiscard]] T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  [[nodiscard]] std::string take_text() {
    const auto bytes = take_bytes(take<std::uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] bool is_empty() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> take_bytes(std::size_t count) {
    if (count > rest_.size()) {
      throw DataError{
          compose("a worker's message is damaged: {} bytes were expected where {} are left; memory of "
                  "that worker may have been overwritten",
                  count, rest_.size())};
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  std::span<const std::byte> rest_;
};

[[nodiscard]] inline std::vector<std::byte> encode_started(std::string_view host) {
  WireWriter writer;
  writer.put(MessageKind::started);
  writer.put_text(host);
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_report(const Metrics& metrics) {
  WireWriter writer;
  writer.reserve(32 * metrics.size() + 16);
  writer.put(MessageKind::report);
  writer.put(static_cast<std::uint32_t>(metrics.size()));
  for (const auto& [name, value] : metrics) {
    writer.put_text(name);
    value.visit([&writer](const auto& held) {
      using Held = std::remove_cvref_t<decltype(held)>;
      if constexpr (std::is_same_v<Held, bool>) {
        writer.put(ValueKind::truth);
        writer.put(static_cast<std::uint8_t>(held));
      } else if constexpr (std::is_same_v<Held, std::string>) {
        writer.put(ValueKind::text);
        writer.put_text(held);
      } else {
        writer.put(std::is_same_v<Held, double> ? ValueKind::number : ValueKind::integer);
        writer.put(held);
      }
    });
  }
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_step_times(const StepTimes& times) {
  WireWriter writer;
  writer.put(MessageKind::step_times);
  writer.put(times);
  return writer.bytes();
}

[[nodiscard]] inline std::vector<std::byte> encode_saved(const SavedMessage& save) {
  WireWriter writer;
  writer.put(MessageKind::saved);
  writer.put(save.slot);
  writer.put(save.step);
  writer.put(save.samples);
  writer.put(save.epoch);
  writer.put(save.report);
  writer.put(static_cast<std::uint8_t>(save.is_report));
  writer.put(static_cast<std::uint32_t>(save.files.size()));
  for (const SavedFile& file : save.files) {
    writer.put_text(file.name);
    writer.put(file.offset);
    writer.put(file.size);
  }
  return writer.bytes();
}

[[nodiscard]] inline SavedMessage decode_saved(WireReader& reader) {
  SavedMessage save;
  save.slot = reader.take<std::int32_t>();
  if (save.slot < 0 || save.slot >= num_snapshots)
    throw DataError{"a worker's message is damaged: it names no snapshot"};
  save.step = reader.take<std::uint64_t>();
  save.samples = reader.take<std::uint64_t>();
  save.epoch = reader.take<std::int64_t>();
  save.report = reader.take<std::int64_t>();
  save.is_report = reader.take<std::uint8_t>() != 0;
  const auto count = reader.take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    SavedFile file{.name = reader.take_text()};
    file.offset = reader.take<std::uint64_t>();
    file.size = reader.take<std::uint64_t>();
    save.files.push_back(std::move(file));
  }
  return save;
}

[[nodiscard]] inline Value decode_value(WireReader& reader) {
  switch (reader.take<ValueKind>()) {
    case ValueKind::truth:
      return reader.take<std::uint8_t>() != 0;
    case ValueKind::integer:
      return reader.take<std::int64_t>();
    case ValueKind::number:
      return reader.take<double>();
    case ValueKind::text:
      return reader.take_text();
  }
  throw DataError{"a worker's message is damaged: it holds a value of an unknown type"};
}

/// Returns what a worker has posted. Throws: DataError if the bytes are none of the messages above.
[[nodiscard]] inline WorkerMessage decode_message(std::span<const std::byte> bytes) {
  WireReader reader{bytes};
  WorkerMessage message;
  switch (reader.take<MessageKind>()) {
    case MessageKind::started:
      message = StartedMessage{reader.take_text()};
      break;
    case MessageKind::report: {
      ReportMessage report;
      const auto count = reader.take<std::uint32_t>();
      for (std::uint32_t i = 0; i < count; ++i) {
        std::string name = reader.take_text();
        report.metrics.set(std::move(name), decode_value(reader));
      }
      message = std::move(report);
      break;
    }
    case MessageKind::saved:
      message = decode_saved(reader);
      break;
    case MessageKind::step_times:
      message = StepTimesMessage{reader.take<StepTimes>()};
      break;
    default:
      throw DataError{"a worker's message is damaged: it is of an unknown kind"};
  }
  if (!reader.is_empty()) throw DataError{"a worker's message is damaged: bytes are left at its end"};
  return message;
}

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
  std::uint64_t checkpoint_every_steps = 0;
  bool waits_for_checkpoints = false;
  /// The checkpoint that this attempt goes on from; empty at the first start.
  std::string resumes_from{};
  int attempt = 0;  ///< counts the starts of the run's workers, from 0
};

class TrainState;

/// Is a worker as its training function sees it: who it is, and how it talks to the others. No template, so that
/// training functions and their helpers can live in ordinary .cpp files; a collective costs one virtual call more than
/// the backend's.
///
/// Collectives return when the buffers may be used again. All ranks call the same ones in the same order; whoever does
/// not, dies, or is later than RunConfig::collective_timeout makes them throw CollectiveError on every rank.
class Worker {
 public:
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] const World& world() const noexcept { return link_->world(); }
  [[nodiscard]] int rank() const noexcept { return world().rank; }
  [[nodiscard]] int world_size() const noexcept { return world().size; }
  [[nodiscard]] int local_rank() const noexcept { return world().local_rank; }
  [[nodiscard]] int local_world_size() const noexcept { return world().local_size; }
  [[nodiscard]] const std::string& host() const noexcept { return world().host; }
  /// The seed of the run, equal on all ranks.
  [[nodiscard]] std::uint64_t seed() const noexcept { return context_->seed; }
  [[nodiscard]] const std::string& run_name() const noexcept { return context_->name; }
  /// The run's directory, equal on all ranks.
  [[nodiscard]] const std::filesystem::path& run_path() const noexcept { return context_->path; }

  /// Where the backend expects buffers: the CPU, or the GPU whose index is the local rank.
  [[nodiscard]] virtual Device device() const noexcept = 0;

  /// The memory that the ranks share, where the backend has such: for rooms above this one. nullptr otherwise.
  [[nodiscard]] virtual HostMemory* host_memory() noexcept = 0;
  /// A second line of sums for one other thread of each rank, where the backend has such; nullptr otherwise. All ranks
  /// call it at the same place; the first call joins the ranks anew. Lives as long as the worker.
  [[nodiscard]] virtual SideLine* side_line() = 0;
  /// When a collective that begins now is to give up.
  [[nodiscard]] Deadline collective_deadline() const { return Deadline::after(context_->collective_timeout); }

  /// Reports metrics. Call number i of all ranks forms report i; rank 0's metrics are the run's. Never waits for
  /// another rank. Cost: about a microsecond. Throws: ConfigError for a report of more than 1 MiB, or a metric named
  /// "report" or "seconds", which are columns of metrics.jsonl already.
  void report(const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      if (name == "report" || name == "seconds") {
        throw ConfigError{fmt::format(
            "report() on rank {}/{}: a metric is named \"{}\", but metrics.jsonl has a column of that name: "
            "give the metric another name",
            rank(), world_size(), name)};
      }
    }
    post_report(metrics);
    ++num_reports_;
  }

  /// Reports metrics with a checkpoint of the state, as it is when the step under way has ended. Returns when the state
  /// has been copied: the checkpoint is written meanwhile, by the supervisor. Waits while two are still unwritten.
  /// Every rank reports with a state, or none. Include railyard/train/train_state.hpp.
  void report(const Metrics& metrics, TrainState& state);

  /// The directory of the checkpoint that this attempt goes on from; empty if it begins at the beginning. Where there
  /// is a TrainState, it has put everything back.
  [[nodiscard]] const std::string& resumes_from() const noexcept { return context_->resumes_from; }
  /// Counts how often the run's workers have been started before.
  [[nodiscard]] int attempt() const noexcept { return context_->attempt; }

  /// Returns the mean over what all ranks have added: the sum of sums by the sum of weights, equal on every rank.
  [[nodiscard]] double mean(const Mean& local) {
    double both[2] = {local.sum(), local.weight()};
    do_all_reduce(buffer_of(both), ReduceOp::sum);
    return both[0] / both[1];
  }
  /// Returns the mean of one number per rank, equal on every rank.
  [[nodiscard]] double mean(double value) {
    do_all_reduce(buffer_of_value(value), ReduceOp::sum);
    return value / world_size();
  }

  /// States how many samples are behind the gradients of the next backward passes of this rank; gradients are averaged
  /// with these weights. Loaders with drives_step call it; with a loader of one's own it is the user's to call, before
  /// the forward pass of every step. Throws: ConfigError if a prepared model has changed so that it would not be
  /// averaged.
  /// completes_step: false where the step goes on with another micro-batch; then gradients accumulate, and are averaged
  /// over the samples of all micro-batches in the backward pass of the last one.
  void samples(std::uint64_t count, bool completes_step = true) {
    if (completes_step_) end_step();
    if (on_samples_) on_samples_(count, completes_step);
    step_samples_ = count;
    has_step_ = true;
    completes_step_ = completes_step;
    link_->page().samples.fetch_add(count, std::memory_order_relaxed);
  }
  /// Says that the micro-batches since the last completed step will not be completed: the next samples() begins a step
  /// of its own. Loaders with drives_step call it at the begin of an epoch.
  void abandon_step() {
    if (!completes_step_) has_step_ = false;
    if (on_abandoned_step_) on_abandoned_step_();
  }
  /// Says that nothing more belongs to the step under way, if there is one: its optimizer has stepped, and so have
  /// schedulers and whatever else the loop does. Each samples() after the last micro-batch of a step says so too;
  /// loaders with drives_step do before they go on to the next batch or epoch, and so does report() with a state.
  void end_step() {
    if (!completes_step_ || !std::exchange(has_step_, false)) return;
    link_->page().steps.fetch_add(1, std::memory_order_relaxed);
    if (on_step_end_) on_step_end_();
  }
  /// Steps that this rank has ended, in all attempts of the run together.
  [[nodiscard]] std::uint64_t steps() const noexcept { return link_->page().steps.load(std::memory_order_relaxed); }
  /// Sets what is called whenever a step has ended.
  void on_step_end(std::function<void()> function) { on_step_end_ = std::move(function); }
  /// What samples() was last told; nothing if it never was.
  [[nodiscard]] std::optional<std::uint64_t> step_samples() const noexcept { return step_samples_; }
  /// Sets what tells where the time of the steps has gone, for a room above this one.
  void on_step_times(std::function<StepTimes()> function) { on_step_times_ = std::move(function); }
  /// Tells the supervisor where it has gone; called when the training function has returned.
  void post_step_times() {
    if (on_step_times_) link_->post(detail::encode_step_times(on_step_times_()));
  }
  /// Sets what each samples() calls first, for a room above this one that must see every step begin.
  void on_samples(std::function<void(std::uint64_t, bool)> function) { on_samples_ = std::move(function); }

  /// Sets what abandon_step() calls.
  void on_abandoned_step(std::function<void()> function) { on_abandoned_step_ = std::move(function); }

  /// Asks all workers to stop; they learn of it in their next should_stop(), or the one after.
  void request_stop() noexcept { stop_requested_ = true; }
  /// Returns true on every rank as soon as request_stop() was called on any, or the run was asked to end (Ctrl-C,
  /// SIGTERM, a callback). All ranks call it at the same place.
  /// Cost: none where it is called once in every step of a prepared model, for then the answer has come with the
  /// gradients, and a wish that comes after them is heard a step later; elsewhere a small collective.
  [[nodiscard]] bool should_stop() {
    if (stop_agreed_) return true;  // all ranks have agreed in the same call, so none of them talks here any more
    if (const auto heard = control_.take_stop(); heard && world_size() > 1) return stop_agreed_ = *heard;
    std::int32_t anyone = wants_stop() ? 1 : 0;
    do_all_reduce(buffer_of_value(anyone), ReduceOp::max);
    return stop_agreed_ = anyone != 0;
  }
  /// Whether this rank knows of a wish to stop.
  [[nodiscard]] bool wants_stop() const noexcept {
    return stop_requested_ || link_->page().stop_requested.load(std::memory_order_relaxed);
  }
  /// What goes with the exchanges of a room above this one, which tells what it has heard.
  [[nodiscard]] detail::ControlLane& control() noexcept { return control_; }

  void barrier() { do_barrier(); }
  /// Combines data of all ranks in place; equal bits on every rank afterwards.
  void all_reduce(Buffer data, ReduceOp op) { do_all_reduce(data, op); }
  void broadcast(Buffer data, int root) { do_broadcast(data, root); }
  /// Shapes: out has world_size times the elements of in; part r is rank r's.
  void all_gather(ConstBuffer in, Buffer out) { do_all_gather(in, out); }
  /// Shapes: rank r gives counts[r] elements; out has their sum. counts are equal on all ranks.
  void all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) {
    do_all_gather_uneven(in, out, counts);
  }
  /// Shapes: in has world_size times the elements of out; rank r gets the combined slice r.
  void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) { do_reduce_scatter(in, out, op); }
  /// Shapes: at root, out has world_size times the elements of in; elsewhere out is not looked at.
  void gather(ConstBuffer in, Buffer out, int root) { do_gather(in, out, root); }
  /// Shapes: at root, in has world_size times the elements of out; elsewhere in is not looked at.
  void scatter(ConstBuffer in, Buffer out, int root) { do_scatter(in, out, root); }
  /// Shapes: in and out are equally long, a multiple of world_size; slice r of in goes to rank r.
  void all_to_all(ConstBuffer in, Buffer out) { do_all_to_all(in, out); }
  void send(ConstBuffer data, int to) { do_send(data, to); }
  void receive(Buffer data, int from) { do_receive(data, from); }

  /// What this worker shows its supervisor while it runs: loaders write their progress there.
  [[nodiscard]] WorkerPage& page() noexcept { return link_->page(); }

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
  Worker(WorkerLink& link, const RunContext& context) noexcept : link_(&link), context_(&context) {}
  ~Worker() { drop_extensions(); }

  void drop_extensions() noexcept {
    while (!extensions_.empty()) extensions_.pop_back();
  }

  [[nodiscard]] WorkerLink& link() noexcept { return *link_; }
  [[nodiscard]] const RunContext& context() const noexcept { return *context_; }

 private:
  friend class TrainState;

  // The link knows of messages only: the error says what this one was.
  void post_report(const Metrics& metrics) {
    const auto call = [&] {
      return detail::compose("report() of {} metrics on rank {}/{}", metrics.size(), rank(), world_size());
    };
    const auto reason = [](const std::exception& error) {
      const std::string_view text = error.what();
      const std::size_t colon = text.find(": ");
      return std::string{colon == std::string_view::npos ? text : text.substr(colon + 2)};
    };
    try {
      link_->post(detail::encode_report(metrics));
    } catch (const ConfigError& error) {
      throw ConfigError{detail::compose("{}: {}", call(), reason(error))};
    } catch (const CollectiveError& error) {
      throw CollectiveError{"report()", rank(), error.blamed(),
                            detail::compose("{}: {}; let this error pass: the run's Result tells the first cause",
                                            call(), reason(error))};
    }
  }

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
  std::optional<std::uint64_t> step_samples_{};
  std::function<void(std::uint64_t, bool)> on_samples_{};
  std::function<void()> on_abandoned_step_{};
  std::function<void()> on_step_end_{};
  std::function<StepTimes()> on_step_times_{};
  TrainState* state_ = nullptr;
  std::int64_t num_reports_ = 0;  // those before the checkpoint that the run goes on from included
  bool has_step_ = false;         // one has begun and not ended
  bool completes_step_ = false;   // its last micro-batch has begun
  bool stop_requested_ = false;
  bool stop_agreed_ = false;
  detail::ControlLane control_{};
  std::vector<std::pair<std::string_view, std::shared_ptr<void>>> extensions_{};
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

// ---- railyard/train/preemption_config.hpp
// How a run leaves when its machine is taken away. Train room.

namespace railyard::inline v0_1 {

/// Says what announces that the machine will be taken away. Where the training function has a TrainState, all ranks
/// then save it at the end of the same step and leave, within RunConfig::stop_grace; so they do after Ctrl-C.
struct PreemptionConfig {
  /// Of SIGTERM and SIGUSR1, those that do.
  std::vector<int> signals{SIGTERM, SIGUSR1};
  /// A file that does as soon as it exists; none if empty.
  std::filesystem::path file{};
  /// Result::exit_status() when a checkpoint was saved so: a scheduler is to start the job again. 75 is EX_TEMPFAIL.
  int exit_status = 75;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/random.hpp
// The state of the standard library's random numbers. Train room.

#include <istream>
#include <locale>
#include <ostream>
#include <sstream>

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
  bool is_recorded = false;
};

/// Is what fit() returns: converts to true if the run succeeded.
class [[nodiscard]] Result {
 public:
  explicit Result(ResultFields fields) : fields_(std::move(fields)) {}

  [[nodiscard]] explicit operator bool() const noexcept { return fields_.error.empty(); }
  /// What failed first, where and why, and where to look; empty if the run succeeded.
  [[nodiscard]] const std::string& error() const noexcept { return fields_.error; }
  /// The first rank that failed; -1 if none did, or the run failed outside of any worker.
  [[nodiscard]] int failed_rank() const noexcept { return fields_.failed_rank; }
  /// What main() may return: 0, 1 after a failure, 128 + signal after Ctrl-C or SIGTERM.
  [[nodiscard]] int exit_status() const noexcept { return fields_.exit_status; }
  /// Rank 0's last metrics; empty if it has reported none.
  [[nodiscard]] const Metrics& metrics() const noexcept {
    return fields_.history.empty() ? none_ : fields_.history.back();
  }
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
  [[nodiscard]] StepTimes step_times() const { return detail::average_of(fields_.step_times_by_rank); }
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
  /// The checkpoints that CheckpointConfig keeps for their score, best first; the metrics are in their manifests.
  [[nodiscard]] const std::vector<Checkpoint>& best_checkpoints() const noexcept { return fields_.best_checkpoints; }
  /// Whether the run had succeeded before, so that fit() has only read what it left.
  [[nodiscard]] bool is_recorded() const noexcept { return fields_.is_recorded; }

  /// Returns *this if the run succeeded. Throws: WorkerError with error() if it did not.
  const Result& value_or_throw() const {
    if (!*this) throw WorkerError{fields_.failed_rank, fields_.error};
    return *this;
  }

 private:
  ResultFields fields_;
  Metrics none_{};
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
  if_unfinished,  ///< goes on with it; of one that has succeeded it returns the recorded Result and starts nothing
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
  /// Settings that may differ from those with which an existing run was started: "seed".
  std::vector<std::string> accept_changes{};
  CheckpointConfig checkpoint{};
  PreemptionConfig preemption{};
  FailureConfig failure{};
  Progress progress = Progress::automatic;
  /// Told about the run in this order, in the process and on the thread that called fit().
  std::vector<AnyCallback> callbacks{};
  /// How long a collective waits for the other ranks.
  std::chrono::nanoseconds collective_timeout = std::chrono::minutes{10};
  /// How long the workers may take until every one is about to call the training function.
  std::chrono::nanoseconds start_timeout = std::chrono::minutes{1};
  /// How long workers that were asked to stop, or that are left over after a failure, may go on before they are killed.
  std::chrono::nanoseconds stop_grace = std::chrono::seconds{30};
  /// How long a rank may take for a step, from its first one on, until the group counts as failed and every rank's
  /// position is told; evaluation between steps included. 0: as long as it likes.
  std::chrono::nanoseconds step_timeout{0};
  /// How long a worker process may show no sign of life (stopped, frozen) before it counts as failed.
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/scaling_config.hpp
// How many workers a run has. Train room.

namespace railyard::inline v0_1 {

/// Is a number of workers. A type of its own, so that a range of numbers can be said here one day.
class WorkerCount {
 public:
  constexpr WorkerCount(int count) noexcept : count_(count) {}  // implicit: {.num_workers = 4}

  template <std::floating_point T>
  WorkerCount(T count) = delete;  // a number of workers is a whole number

  [[nodiscard]] constexpr int count() const noexcept { return count_; }

 private:
  int count_;
};

/// Says what to scale to. Example: ry::Trainer trainer{train, {.num_workers = 4}};
struct ScalingConfig {
  WorkerCount num_workers = 1;
};

}  // namespace railyard::inline v0_1

// ---- railyard/train/train_state.hpp
// All that a run must not lose: named parts that checkpoints hold, and the epochs that are left. Train room.

namespace railyard::inline v0_1 {

namespace detail {

// Ends a training function whose state has been saved, because the run is to end. No std::exception: it is nobody's
// error, and handlers of errors shall let it pass.
struct Leave {};

// Says itself in which epoch a resumed run has to go on: the loader of the training data.
template <class T>
concept DrivesEpochs = requires(const T& part) {
  { part.next_epoch() } -> std::convertible_to<std::int64_t>;
  { part.drives_step() } -> std::convertible_to<bool>;
};

}  // namespace detail

/// Is one part of a TrainState: a name and something that has a state, which must outlive it.
class StatePart {
 public:
  template <HasState T>
  StatePart(std::string name, T& part)
      : name_(std::move(name)),
        take_([&part] { return State{StateAccess<T>::take(part)}; }),
        put_([&part](const State& state) { StateAccess<T>::put(part, state); }) {
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
  std::function<State()> take_{};
  std::function<void(const State&)> put_{};
  std::function<std::int64_t()> next_epoch_{};
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

      [[nodiscard]] int operator*() const noexcept { return static_cast<int>(state_->epoch_); }
      Iterator& operator++() {
        ++state_->epoch_;
        return *this;
      }
      [[nodiscard]] bool operator==(std::default_sentinel_t) const noexcept { return state_->epoch_ >= count_; }

     private:
      friend class Epochs;
      Iterator(TrainState& state, int count) noexcept : state_(&state), count_(count) {}
      TrainState* state_;
      int count_;
    };
    [[nodiscard]] Iterator begin() const {
      state_->epoch_ = state_->resumed_epoch_;
      return {*state_, count_};
    }
    [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

   private:
    friend class TrainState;
    Epochs(TrainState& state, int count) noexcept : state_(&state), count_(count) {}
    TrainState* state_;
    int count_;
  };

  /// Throws: ConfigError for two parts of one name, or a part that does not fit what was saved; DataError for a damaged
  /// checkpoint.
  TrainState(Worker& worker, std::initializer_list<StatePart> parts) : worker_(&worker), parts_(parts) {
    if (worker.state_ != nullptr) {
      throw ConfigError{detail::compose(
          "TrainState on rank {}/{}: there is one already: give all parts to it, so that checkpoints hold all of them",
          worker.rank(), worker.world_size())};
    }
    resume();
    worker.state_ = this;
    worker.on_step_end([this] { end_step(); });
  }
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;
  ~TrainState() {
    worker_->state_ = nullptr;
    worker_->on_step_end({});
  }

  /// Whether parts were put back from a checkpoint.
  [[nodiscard]] bool is_resumed() const noexcept { return is_resumed_; }

  /// Returns the epochs from the first that is not complete to count - 1: for (int epoch : state.epochs(10)). An epoch
  /// that was left half way is gone on with if the loader that drives steps is a part; without one, a checkpoint counts
  /// the epoch in which it was made as complete.
  [[nodiscard]] Epochs epochs(int count) noexcept { return {*this, count}; }

  /// Adds a file to every checkpoint from now on, as it is then, under files/name. Another name on each rank.
  void add_file(std::string name, std::filesystem::path source) {
    files_.emplace_back(std::move(name), std::move(source));
  }

 private:
  friend class Worker;

  void resume() {
    const std::string& path = worker_->resumes_from();
    if (path.empty()) return;
    const Checkpoint checkpoint = Checkpoint::open(path);
    std::string missing;
    worker_->barrier();  // weights may be shared: nobody looks at them while they are put back
    for (const StatePart& part : parts_) {
      const auto state = checkpoint.load(part.name_, worker_->rank());
      if (!state) {
        missing += (missing.empty() ? "" : ", ") + part.name_;
        continue;
      }
      put(part, *state);
    }
    worker_->barrier();
    const Manifest& manifest = checkpoint.manifest();
    WorkerPage& page = worker_->page();
    page.steps.store(manifest.step, std::memory_order_relaxed);
    if (worker_->rank() == 0) page.samples.store(manifest.samples, std::memory_order_relaxed);
    worker_->num_reports_ = manifest.report + 1;
    resumed_epoch_ = manifest.epoch;
    epoch_ = manifest.epoch - 1;
    is_resumed_ = true;
    if (missing.empty() || worker_->rank() != 0) return;
    std::fprintf(stderr, "railyard: the checkpoint %s has nothing for: %s; they stay as the program has made them\n",
                 path.c_str(), missing.c_str());
  }

  void put(const StatePart& part, const State& state) const {
    try {
      part.put_(state);
    } catch (const ConfigError& error) {
      throw ConfigError{detail::compose("the part \"{}\" of the TrainState does not fit the checkpoint {}: {}",
                                        part.name_, worker_->resumes_from(), error.what())};
    }
  }

  [[nodiscard]] std::int64_t next_epoch() const {
    for (const StatePart& part : parts_) {
      if (part.next_epoch_) return part.next_epoch_();
    }
    return epoch_ + 1;
  }

  // One checkpoint of the step that ends with it, and of the report: with the step alone, the report would be lost to
  // whoever goes on from there.
  void report(const Metrics& metrics) {
    is_reporting_ = true;
    worker_->end_step();
    is_reporting_ = false;
    worker_->report(metrics);
    save(true);
    if (must_leave_) throw detail::Leave{};
  }

  void end_step() {
    must_leave_ = agrees_to_leave();
    if (is_reporting_) return;
    const std::uint64_t interval = worker_->context().checkpoint_every_steps;
    if (must_leave_ || (interval != 0 && worker_->steps() % interval == 0)) save(false);
    if (must_leave_) throw detail::Leave{};
  }

  // Whether all ranks are to leave. The wish to stop comes with the gradients, if there are any; whether it is one to
  // leave, or the program's own, is asked then.
  [[nodiscard]] bool agrees_to_leave() {
    std::int32_t wish = worker_->wants_stop() ? 1 : 0;
    if (const auto heard = worker_->control().end_step()) {
      wish = *heard ? 1 : 0;
    } else {
      worker_->all_reduce(buffer_of_value(wish), ReduceOp::max);
    }
    if (wish == 0) return false;
    std::int32_t leaves = worker_->page().leave_requested.load(std::memory_order_relaxed) ? 1 : 0;
    worker_->all_reduce(buffer_of_value(leaves), ReduceOp::max);
    return leaves != 0;
  }

  // Copies this rank's part of the state to memory that outlives the worker, and hands it over.
  void save(bool is_report) {
    std::vector<NamedState> states;
    for (const StatePart& part : parts_) states.push_back({.name = part.name_, .state = part.take_()});
    std::vector<FileImage> images = file_images(states, worker_->rank());
    for (const auto& [name, source] : files_) images.push_back(image_of(name, source));
    detail::SavedMessage save{
        .step = worker_->steps(), .epoch = next_epoch(), .report = worker_->num_reports_ - 1, .is_report = is_report};
    save.samples = worker_->page().samples.load(std::memory_order_relaxed);
    std::uint64_t size = 0;
    for (const FileImage& image : images) {
      save.files.push_back({.name = image.name, .offset = size, .size = image.size});
      constexpr std::uint64_t alignment = 64;
      size = (size + image.size + alignment - 1) / alignment * alignment;
    }
    const Snapshot snapshot = worker_->link().take_snapshot(size);
    save.slot = snapshot.slot;
    try {
      for (std::size_t at = 0; at < images.size(); ++at) images[at].fill(snapshot.bytes.data() + save.files[at].offset);
      worker_->link().post(detail::encode_saved(save));
    } catch (...) {
      worker_->link().drop_snapshot(snapshot.slot);
      throw;
    }
    if (worker_->context().waits_for_checkpoints) worker_->link().await_snapshot(snapshot.slot);
  }

  [[nodiscard]] static FileImage image_of(const std::string& name, const std::filesystem::path& source) {
    std::error_code code;
    const auto size = std::filesystem::file_size(source, code);
    if (code) {
      throw ConfigError{
          detail::compose("the file {} for checkpoints cannot be read: {}", source.string(), code.message())};
    }
    return {.name = "files/" + name, .size = size, .fill = [source, size](std::byte* to) {
              std::ifstream file{source, std::ios::binary};
              if (file.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(size))) return;
              throw DataError{
                  detail::compose("the file {} for checkpoints has become shorter while it was read", source.string())};
            }};
  }

  Worker* worker_;
  std::vector<StatePart> parts_;
  std::vector<std::pair<std::string, std::filesystem::path>> files_{};
  std::int64_t epoch_ = -1;  // that is under way
  std::int64_t resumed_epoch_ = 0;
  bool is_resumed_ = false;
  bool is_reporting_ = false;
  bool must_leave_ = false;
};

inline void Worker::report(const Metrics& metrics, TrainState& state) { state.report(metrics); }

}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/briefing.hpp
// What a supervisor tells the workers of a start. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says which attempt of the run begins, and where it goes on.
struct Briefing {
  std::int32_t attempt = 0;
  std::string checkpoint{};  ///< its directory; empty to begin at the beginning
};

[[nodiscard]] inline std::string encode_briefing(const Briefing& briefing) {
  WireWriter writer;
  writer.put(briefing.attempt);
  writer.put_text(briefing.checkpoint);
  return {reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size()};
}

[[nodiscard]] inline Briefing decode_briefing(std::string_view text) {
  WireReader reader{std::as_bytes(std::span{text})};
  Briefing briefing;
  briefing.attempt = reader.take<std::int32_t>();
  briefing.checkpoint = reader.take_text();
  return briefing;
}

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
  ConnectingStore(Store& store, int rank) noexcept : store_(store), rank_(rank) {}

  void set(std::string_view key, std::string_view value) override { store_.set(key, value); }

  /// Throws: CollectiveError once the group is ending.
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    for (;;) {
      if (is_aborted_.load(std::memory_order_acquire)) {
        throw CollectiveError{
            "connect",
            rank_,
            {},
            compose("connect on rank {}: the group was ended while it came to be: {}", rank_, reason_)};
      }
      constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{50};
      const auto left = deadline.remaining();
      if (auto value = store_.get(key, left <= slice ? deadline : Deadline::after(slice))) return value;
      if (deadline.expired()) return std::nullopt;
    }
  }

  void abort(std::string_view reason) {
    reason_ = reason;
    is_aborted_.store(true, std::memory_order_release);
  }

 private:
  Store& store_;
  int rank_;
  std::string reason_{};  // written once, before is_aborted_
  std::atomic<bool> is_aborted_{false};
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
  static_assert(Complete<B>,
                "the Backend of this Trainer is only declared here. For Gloo, which is the default, compile with "
                "-DRAILYARD_WITH_GLOO=1 and link with -lgloo; without libgloo, say Trainer<Local, Threads>. For any "
                "other, include its header");
  static_assert(Complete<S>,
                "the Scaling of this Trainer is only declared here: include <railyard/railyard.hpp>, or its header");
};

template <class B, class S>
struct BothPolicies {
  static_assert(Backend<B>,
                "the first policy of this Trainer is no Backend: the compiler names below what the class lacks; "
                "railyard/core/backend.hpp says what each part has to do. There are Gloo, Local and Checked<Gloo>");
  static_assert(Scaling<S>,
                "the second policy of this Trainer is no Scaling: the compiler names below what the class lacks; "
                "railyard/core/scaling.hpp says what each part has to do. There are Processes and Threads");
};

template <class B, class S>
struct ReachingPolicies {
  static_assert(B::reach >= S::reach,
                "this Backend cannot reach the workers that this Scaling makes: Local joins the threads of one process "
                "only; say Trainer<Gloo, Processes>, or Trainer<Local, Threads>");
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

// ---- railyard/train/detail/checkpoint_writer.hpp
// Writes checkpoints on a thread of the supervisor, while the workers go on. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is a checkpoint that all ranks have saved, and that is to be written.
struct SaveJob {
  struct Slot {
    int rank = 0;
    int slot = 0;
  };
  Manifest manifest{};
  std::vector<CheckpointFolder::Part> parts{};
  std::vector<Slot> slots{};  // where the parts are, to be given back afterwards
};

/// Says what has become of a SaveJob.
struct SaveOutcome {
  Manifest manifest{};
  std::filesystem::path path{};  ///< empty if it could not be written
  std::string error{};           ///< also of checkpoints that could not be removed
};

/// Owns the thread. One after another, in order: so the newest checkpoint is always the latest that was saved.
class CheckpointWriter {
 public:
  /// run: the run's directory, in which the folder lies.
  CheckpointWriter(std::filesystem::path run, CheckpointFolder folder, Retention retention, WorkerGroup& group)
      : run_(std::move(run)), folder_(std::move(folder)), retention_(std::move(retention)), group_(&group) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Writes what has been submitted.
  ~CheckpointWriter() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void submit(SaveJob job) {
    const std::lock_guard lock{mutex_};
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) start();
    changed_.notify_all();
  }

  /// Waits until all has been written, or the time is over. Returns whether it has.
  [[nodiscard]] bool drain(const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, deadline.remaining(), [this] { return jobs_.empty() && !is_writing_; });
  }

  [[nodiscard]] std::vector<SaveOutcome> take_outcomes() {
    const std::lock_guard lock{mutex_};
    return std::exchange(outcomes_, {});
  }

  /// Only while nothing is being written.
  [[nodiscard]] CheckpointFolder& folder() noexcept { return folder_; }
  [[nodiscard]] const Retention& retention() const noexcept { return retention_; }

 private:
  void start() {
    const BlockSignals block{deferrable_signals()};  // they are for the thread that called fit()
    thread_ = std::thread{[this] { run(); }};
  }

  void run() {
    std::unique_lock lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return is_ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      SaveJob job = std::move(jobs_.front());
      jobs_.pop_front();
      is_writing_ = true;
      lock.unlock();
      SaveOutcome outcome = write(job);
      lock.lock();
      outcomes_.push_back(std::move(outcome));
      is_writing_ = false;
      changed_.notify_all();
    }
  }

  [[nodiscard]] SaveOutcome write(const SaveJob& job) {
    SaveOutcome outcome{.manifest = job.manifest};
    try {
      make_run_durable();
      outcome.path = folder_.commit(job.manifest, job.parts);
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    for (const auto& [rank, slot] : job.slots) group_->release_snapshot(rank, slot);
    if (outcome.path.empty()) return outcome;
    try {
      folder_.retain(retention_);
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    return outcome;
  }

  // A checkpoint is worth nothing if the directories above it are lost. Once, for it takes milliseconds.
  void make_run_durable() {
    if (is_run_durable_) return;
    Files files;
    sync_file(run_ / "run.json");
    sync_directory(files, run_);
    sync_directory(files, run_.parent_path());
    sync_directory(files, run_.parent_path().parent_path());
    is_run_durable_ = true;
  }

  static void sync_file(const std::filesystem::path& path) {
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.is_open() && ::fsync(file.get()) == 0) return;
    throw Error{compose("{} cannot be made durable: {}", path.string(), explain_errno(errno))};
  }

  std::filesystem::path run_;
  bool is_run_durable_ = false;  // as far as the writing thread has seen to it
  CheckpointFolder folder_;
  Retention retention_;
  WorkerGroup* group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SaveJob> jobs_{};
  std::vector<SaveOutcome> outcomes_{};
  bool is_writing_ = false;
  bool is_ending_ = false;
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/json.hpp
// Writes flat JSON objects: all that a run's files need. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Builds one flat JSON object.
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
  JsonObject& add(std::string_view name, const Value& value) {
    return value.visit([&](const auto& held) -> JsonObject& { return add(name, held); });
  }
  JsonObject& add(const NamedValues& values) {
    for (const auto& [name, value] : values) add(name, value);
    return *this;
  }
  [[nodiscard]] std::string text() const { return json_.empty() ? "{}" : json_ + "}"; }

 private:
  std::string json_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/files.hpp
// The files of a run's directory. Train room.

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline std::string error_text(int code) {
  return std::error_code{code, std::generic_category()}.message();
}

/// Is a file that only grows, line by line. A line is in it whole or not at all, and what cannot be written is counted.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile() {
    if (file_ >= 0) ::close(file_);
  }

  /// Appends line and a line feed; opens the file on first use. Returns whether it could.
  bool append(std::string_view line) {
    const WriteSignalGuard<SIGXFSZ> guard;
    if (!open()) return note_loss(errno);
    text_.assign(line);
    text_ += '\n';
    std::size_t done = 0;
    while (done < text_.size()) {
      const ssize_t written = ::write(file_, text_.data() + done, text_.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        const int code = errno;
        // Half a line would make the next one unreadable too. Where this fails as well, nothing more can be done.
        if (done > 0 && ::ftruncate(file_, size_) != 0) return note_loss(code);
        return note_loss(code);
      }
      done += static_cast<std::size_t>(written);
    }
    size_ += static_cast<off_t>(done);
    return true;
  }

  /// Takes back all but the first size bytes. Returns whether it could.
  bool cut(std::uint64_t size) {
    if (!open() || ::ftruncate(file_, static_cast<off_t>(size)) != 0) return note_loss(errno);
    size_ = static_cast<off_t>(size);
    return true;
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return static_cast<std::uint64_t>(size_); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool exists() const noexcept { return file_ >= 0; }
  [[nodiscard]] std::uint64_t num_lost() const noexcept { return num_lost_; }
  /// What is to be said when the first line is lost.
  [[nodiscard]] std::string complaint() const {
    return compose("{} cannot be written: {}; training goes on", path_.string(), reason());
  }
  [[nodiscard]] std::string reason() const { return error_text(code_); }
  /// How many lines are missing and why; empty if none is.
  [[nodiscard]] std::string warning() const {
    if (num_lost_ == 0) return {};
    return compose("{} line(s) are missing from {}: {}; training went on without them", num_lost_, path_.string(),
                   error_text(code_));
  }

 private:
  bool open() {
    if (file_ >= 0) return true;
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0) return false;
    size_ = std::max<off_t>(::lseek(file_, 0, SEEK_END), 0);
    return true;
  }

  bool note_loss(int code) noexcept {
    code_ = code;
    ++num_lost_;
    return false;
  }

  std::filesystem::path path_;
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
  std::random_device random;
  return compose("{}-{:06x}", time_text(std::time(nullptr), "%Y%m%d-%H%M%S"), random() & 0xFF'FFFFU);
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

/// Makes the directory of a run, or finds it there if there is one of that name.
/// Throws: ConfigError if it cannot be made.
[[nodiscard]] inline RunPlace make_run_directory(const std::string& wanted_name, const std::filesystem::path& storage) {
  const auto refuse = [&storage](const std::error_code& code) {
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": a run's directory cannot be made there: {}; choose a "
                "folder that you can write to",
                storage.string(), code.message())};
  };
  if (storage.empty()) refuse(std::make_error_code(std::errc::invalid_argument));
  std::error_code code;
  const auto folder = std::filesystem::absolute(storage, code);  // a worker or callback may go to another directory
  if (code) refuse(code);
  std::filesystem::create_directories(folder, code);
  if (code) refuse(code);
  for (;;) {
    const std::string name = wanted_name.empty() ? unique_name() : wanted_name;
    const auto path = folder / name;
    const bool is_new = ::mkdir(path.c_str(), 0777) == 0;
    if (!is_new && errno != EEXIST) refuse(std::error_code{errno, std::generic_category()});
    if (!is_new && wanted_name.empty()) continue;
    if (!is_new && !std::filesystem::is_directory(path, code)) {
      throw ConfigError{
          compose("RunConfig::name is \"{}\", but {} is no directory: choose another name", name, path.string())};
    }
    std::filesystem::create_directory(path / "logs", code);
    if (!code) return {name, path, is_new};
    if (is_new) ::rmdir(path.c_str());
    refuse(code);
  }
}

/// Is the directory of a run: run.json, metrics.jsonl, events.jsonl, logs/rank-0.log and so on, result.json.
class RunDirectory {
 public:
  RunDirectory(std::filesystem::path path, int world_size)
      : path_(std::move(path)), metrics_(path_ / "metrics.jsonl"), events_(path_ / "events.jsonl") {
    for (int rank = 0; rank < world_size; ++rank) {
      logs_.push_back(std::make_unique<LineFile>(path_ / "logs" / compose("rank-{}.log", rank)));
    }
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Writes a file of one JSON object, in place of the one that may be there. Returns what went wrong, or an empty
  /// text.
  [[nodiscard]] std::string write_object(std::string_view name, const JsonObject& object) const {
    const auto path = path_ / name;
    LineFile file{compose("{}.{}", path.string(), ::getpid())};
    if (!file.append(object.text())) {
      ::unlink(file.path().c_str());
      return compose("{} cannot be written: {}; training goes on", path.string(), file.reason());
    }
    if (::rename(file.path().c_str(), path.c_str()) == 0) return {};
    return compose("{} cannot be written: {}; training goes on", path.string(), error_text(errno));
  }
  /// These two return what is to be said about it when a file takes a line no more: once for each file.
  [[nodiscard]] std::string append_metrics(const std::string& line) { return append(metrics_, line); }
  [[nodiscard]] std::string append_event(const JsonObject& event) { return append(events_, event.text()); }
  [[nodiscard]] std::string append_log(int rank, std::string_view line) {
    return append(*logs_[static_cast<std::size_t>(rank)], line);
  }

  /// Takes back all metrics but the first `size` bytes.
  [[nodiscard]] std::string keep_metrics(std::uint64_t size) {
    return metrics_.cut(size) ? std::string{} : metrics_.complaint();
  }
  [[nodiscard]] std::uint64_t metrics_size() const noexcept { return metrics_.size(); }

  /// The log of a rank, if it has written anything.
  [[nodiscard]] std::optional<std::filesystem::path> log_of(int rank) const {
    const LineFile& log = *logs_[static_cast<std::size_t>(rank)];
    return log.exists() ? std::optional{log.path()} : std::nullopt;
  }

  [[nodiscard]] std::vector<std::string> warnings() const {
    std::vector<std::string> all;
    if (std::string text = events_.warning(); !text.empty()) all.push_back(std::move(text));
    if (std::string text = metrics_.warning(); !text.empty()) all.push_back(std::move(text));
    for (const auto& log : logs_) {
      if (std::string text = log->warning(); !text.empty()) all.push_back(std::move(text));
    }
    return all;
  }

  /// Takes back a directory in which nothing has happened.
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove(path_ / "run.json", ignored);
    std::filesystem::remove(path_ / "lease.json", ignored);
    std::filesystem::remove(path_ / "logs", ignored);
    std::filesystem::remove(path_, ignored);
  }

 private:
  static std::string append(LineFile& file, std::string_view line) {
    return file.append(line) || file.num_lost() > 1 ? std::string{} : file.complaint();
  }

  std::filesystem::path path_;
  LineFile metrics_;
  LineFile events_;
  std::vector<std::unique_ptr<LineFile>> logs_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_lease.hpp
// Sees to it that one program at a time writes to a run's directory. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Holds lease.json of a run. Its lock belongs to the open file, which the workers inherit: it is free when the last of
/// them has gone, however they end. Its generation grows with each holder, for file systems on which locks do not reach
/// other hosts: there a holder that was replaced finds another generation than its own, and commits nothing any more.
class RunLease {
 public:
  /// Throws: ConfigError that names the holder if there is one, or if the file cannot be written.
  explicit RunLease(const std::filesystem::path& run) : path_(run / "lease.json") {
    file_ = Descriptor{::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
    if (!file_.is_open()) refuse(compose("cannot be opened: {}", error_text(errno)));
    take_lock(run);
    const Content before = read();
    own_.generation = before.generation + 1;
    own_.id = unique_name();
    own_.host = host_name();
    own_.since = time_text(std::time(nullptr));
    own_.pid = ::getpid();
    write();
  }

  [[nodiscard]] std::uint64_t generation() const noexcept { return own_.generation; }

  /// Whether nobody has taken the run over.
  [[nodiscard]] bool is_held() const {
    const Content now = read();
    return now.generation == own_.generation && now.id == own_.id;
  }

 private:
  struct Content {
    std::uint64_t generation = 0;
    std::string id{};
    std::string host = "an unknown host";
    std::string since = "an unknown time";
    std::int64_t pid = 0;
  };

  // Where the holder has died, its workers still have the file for a moment.
  void take_lock(const std::filesystem::path& run) const {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const Deadline deadline = Deadline::after(std::chrono::seconds{10});
    while (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
      const Content holder = read();
      const bool is_here = holder.host == host_name() && holder.pid > 0;
      const bool has_died = is_here && ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
      if (!has_died || deadline.expired()) {
        throw ConfigError{
            compose("the run in {} is in use: process {} on {} has had it since {}; wait for its end, or end "
                    "it, or choose another RunConfig::name",
                    run.string(), holder.pid, holder.host, holder.since)};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
  }

  // Opened anew, so that a network file system asks its server.
  [[nodiscard]] Content read() const {
    const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    char text[4096];
    const ssize_t got = file.is_open() ? ::read(file.get(), text, sizeof text) : 0;
    Content content;
    if (got <= 0) return content;
    try {
      const Json json = parse_json({text, static_cast<std::size_t>(got)});
      content.generation = json.at("generation").as<std::uint64_t>();
      content.id = json.at("id").text();
      content.host = json.at("host").text();
      content.since = json.at("since").text();
      content.pid = json.at("pid").as<std::int64_t>();
    } catch (const std::exception&) {  // half written by one that has died: as good as none
    }
    return content;
  }

  void write() const {
    JsonObject object;
    object.add("generation", own_.generation).add("id", own_.id).add("host", own_.host);
    object.add("since", own_.since).add("pid", own_.pid);
    const std::string text = object.text() + "\n";
    const WriteSignalGuard<SIGXFSZ> guard;
    const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
    if (written < 0) refuse(compose("cannot be written: {}", error_text(errno)));
    if (written != static_cast<ssize_t>(text.size())) refuse("cannot be written: there is no room");
    if (::ftruncate(file_.get(), static_cast<off_t>(text.size())) != 0) {
      refuse(compose("cannot be cut to its size: {}", error_text(errno)));
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": {} {}; choose a folder that you can write to and that has room",
                path_.parent_path().parent_path().string(), path_.string(), why)};
  }

  std::filesystem::path path_;
  Descriptor file_{};
  Content own_{};
};

/// Takes the lease of a run; leaves nothing of a new one behind if it cannot be had.
[[nodiscard]] inline RunLease take_lease(const RunPlace& place) {
  try {
    return RunLease{place.path};
  } catch (const ConfigError&) {
    if (place.is_new) RunDirectory{place.path, 0}.remove();
    throw;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/save_book.hpp
// Puts the ranks' parts of a checkpoint together. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Collects what ranks have saved: save number i of all ranks is one checkpoint.
class SaveBook {
 public:
  explicit SaveBook(int world_size) : saves_(static_cast<std::size_t>(world_size)) {}

  void add(int rank, SavedMessage save) { saves_[static_cast<std::size_t>(rank)].push_back(std::move(save)); }

  /// Takes the next checkpoint that all ranks have saved, by rank.
  [[nodiscard]] std::optional<std::vector<SavedMessage>> take() {
    for (const auto& queue : saves_) {
      if (queue.empty()) return std::nullopt;
    }
    std::vector<SavedMessage> all;
    for (auto& queue : saves_) {
      all.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    return all;
  }

  /// Returns a rank that has saved a step which this one, which has ended so many, has passed without saving it; -1 if
  /// there is none. Only what has been added counts: what the rank has posted may still be on its way.
  [[nodiscard]] int waits_for(int rank, std::uint64_t steps) const {
    const int first = first_waiting();
    const bool is_late = first >= 0 && queue(rank).empty() && queue(first).front().step < steps;
    return is_late ? first : -1;
  }

  /// Returns a rank that another one waits for so; -1 if there is none. steps(rank): how many it has ended.
  template <class Steps>
  [[nodiscard]] int late_rank(const Steps& steps) const {
    const int first = first_waiting();
    for (int rank = 0; first >= 0 && rank < static_cast<int>(saves_.size()); ++rank) {
      if (queue(rank).empty() && queue(first).front().step < steps(rank)) return rank;
    }
    return -1;
  }

  /// Forgets what only some ranks have saved: they have ended.
  void clear() {
    for (auto& queue : saves_) queue.clear();
  }

 private:
  [[nodiscard]] const std::deque<SavedMessage>& queue(int rank) const { return saves_[static_cast<std::size_t>(rank)]; }

  // The rank that has saved the earliest step that is not whole; -1 if there is none.
  [[nodiscard]] int first_waiting() const {
    int first = -1;
    for (int rank = 0; rank < static_cast<int>(saves_.size()); ++rank) {
      if (queue(rank).empty()) continue;
      if (first < 0 || queue(rank).front().step < queue(first).front().step) first = rank;
    }
    return first;
  }

  std::vector<std::deque<SavedMessage>> saves_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_checkpoints.hpp
// The checkpoints of a run as its supervisor sees them: put together, written, counted. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says which checkpoints are kept, in the words of the checkpoint room.
[[nodiscard]] inline Retention retention_of(const CheckpointConfig& config) {
  return {.keep = config.keep, .score = config.score, .order = config.order};
}

/// Returns the newest checkpoint that is whole, of an earlier program; problems gets what is wrong with newer ones.
/// There may be none yet, but if there are any, a run does not begin anew because they cannot be read. Throws:
/// ConfigError if it may not begin at the beginning, but would have to.
[[nodiscard]] inline std::optional<Checkpoint> find_checkpoint(const std::filesystem::path& run, const RunLease& lease,
                                                               Resume resume, std::vector<std::string>& problems) {
  CheckpointFolder folder{run / "checkpoints", lease.generation()};
  folder.sweep();
  auto newest = folder.newest_whole(problems);
  if (!newest && !problems.empty()) {
    throw ConfigError{
        compose("no checkpoint of the run in {} is whole, the newest because: {}; put one back that is, or "
                "begin anew with another RunConfig::name",
                run.string(), problems.front())};
  }
  if (!newest && resume == Resume::required) {
    throw ConfigError{
        compose("RunConfig::resume is Resume::required, but the run in {} has no checkpoint", run.string())};
  }
  return newest;
}

/// Owns the writer. The lease must outlive it.
class RunCheckpoints {
 public:
  RunCheckpoints(const RunInfo& info, const CheckpointConfig& config, const RunLease& lease, WorkerGroup& group)
      : environment_{{"backend", info.backend}, {"scaling", info.scaling}, {"railyard", std::string{version}}},
        run_(info.path),
        generation_(lease.generation()),
        group_(&group),
        book_(info.world_size),
        writer_(info.path, folder_of(info, lease), retention_of(config), group) {}

  /// Takes what a rank has saved; a checkpoint that is whole with it is on its way to the disk. metrics: what rank 0
  /// has reported last, if it is the rank.
  void add(int rank, SavedMessage save, const Metrics& metrics, int attempt) {
    if (rank == 0) metrics_.push_back(save.is_report ? metrics : Metrics{});
    book_.add(rank, std::move(save));
    while (const auto saves = book_.take()) {
      submit(*saves, std::move(metrics_.front()), attempt);
      metrics_.pop_front();
    }
  }

  /// See SaveBook.
  [[nodiscard]] int waits_for(int rank, std::uint64_t steps) const { return book_.waits_for(rank, steps); }
  template <class Steps>
  [[nodiscard]] int late_rank(const Steps& steps) const {
    return book_.late_rank(steps);
  }

  [[nodiscard]] bool drain(const Deadline& deadline) { return writer_.drain(deadline); }
  [[nodiscard]] std::vector<SaveOutcome> take_outcomes() { return writer_.take_outcomes(); }

  /// Says why checkpoints may not last where they are; empty if no reason is known.
  [[nodiscard]] std::string doubt() const {
    const auto doubt = CheckpointFolder{run_ / "checkpoints"}.doubt();
    return doubt.empty() ? std::string{} : compose("checkpoints in {} may not last: {}", run_.string(), doubt);
  }

  /// Forgets what only some ranks have saved; when all have ended, and all that was whole has been written.
  void end_attempt() {
    book_.clear();
    metrics_.clear();
  }

  /// The folder; only while nothing is being written, as what is below.
  [[nodiscard]] const CheckpointFolder& folder() { return writer_.folder(); }
  [[nodiscard]] std::optional<Checkpoint> newest() { return writer_.folder().newest(); }
  [[nodiscard]] std::vector<Checkpoint> best() { return writer_.folder().best(writer_.retention()); }

 private:
  [[nodiscard]] static CheckpointFolder folder_of(const RunInfo& info, const RunLease& lease) {
    CheckpointFolder folder{info.path / "checkpoints", lease.generation()};
    folder.still_mine = [&lease] { return lease.is_held(); };
    return folder;
  }

  void submit(const std::vector<SavedMessage>& saves, Metrics metrics, int attempt) {
    const SavedMessage& first = saves.front();
    SaveJob job;
    job.manifest = {.world_size = static_cast<int>(saves.size()),
                    .step = first.step,
                    .epoch = first.epoch,
                    .report = first.report,
                    .attempt = attempt,
                    .generation = generation_,
                    .metrics = std::move(metrics),
                    .environment = environment_};
    for (std::size_t at = 0; at < saves.size(); ++at) {
      const int rank = static_cast<int>(at);
      const SavedMessage& save = saves[at];
      job.manifest.samples += save.samples;
      job.slots.push_back({.rank = rank, .slot = save.slot});
      if (save.files.empty()) continue;
      const auto bytes = group_->snapshot(rank, save.slot, save.files.back().offset + save.files.back().size);
      for (const SavedFile& file : save.files) {
        job.parts.push_back({.name = file.name, .bytes = bytes.subspan(file.offset, file.size)});
      }
    }
    writer_.submit(std::move(job));
  }

  NamedValues environment_;
  std::filesystem::path run_;
  std::uint64_t generation_;
  WorkerGroup* group_;
  SaveBook book_;
  std::deque<Metrics> metrics_{};  // of rank 0, by checkpoint that is not whole yet
  CheckpointWriter writer_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/run_record.hpp
// What an earlier program has written about a run. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says where a report stands in metrics.jsonl. Lines can be missing: training goes on when one cannot be written.
struct HistoryLine {
  std::int64_t report = 0;
  std::uint64_t end = 0;
};

/// Is what run.json, result.json and metrics.jsonl say.
struct RunRecord {
  std::string backend{};
  std::string scaling{};
  int world_size = 0;
  std::uint64_t seed = 0;
  bool has_succeeded = false;
  double seconds = 0;
  std::vector<Metrics> history{};
  std::vector<HistoryLine> lines{};  ///< of history, in metrics.jsonl
};

[[nodiscard]] inline std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// Returns one line of metrics.jsonl without the columns that are not the user's.
[[nodiscard]] inline Metrics metrics_of_line(const Json& json) {
  Metrics metrics;
  for (const std::string& name : json.names()) {
    if (name == "report" || name == "seconds") continue;
    const Json& value = json.at(name);
    // What has no place in JSON was written as null.
    metrics.set(name,
                value.kind() == Json::Kind::null ? Value{std::numeric_limits<double>::quiet_NaN()} : read_value(value));
  }
  return metrics;
}

/// Reads the lines of metrics.jsonl; what follows the first one that is damaged was being written when its program
/// died.
inline void read_history(const std::filesystem::path& path, RunRecord& record) {
  const std::string text = text_of_file(path);
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    try {
      const Json json = parse_json(std::string_view{text}.substr(begin, end - begin));
      const auto report = json.at("report").as<std::int64_t>();
      record.history.push_back(metrics_of_line(json));
      begin = end + 1;
      record.lines.push_back({.report = report, .end = begin});
    } catch (const std::exception&) {
      return;
    }
  }
}

/// Whether a program has died in that directory before it could write what the run is.
[[nodiscard]] inline bool is_barely_begun(const std::filesystem::path& run) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator{run, code}) {
    const std::string name = entry.path().filename().string();
    if (name != "logs" && name != "lease.json" && !name.starts_with("run.json.")) return false;
  }
  return !code;
}

/// Reads the record of the run in that directory. Throws: ConfigError if it is none, or damaged.
[[nodiscard]] inline RunRecord read_run_record(const std::filesystem::path& run) {
  RunRecord record;
  try {
    const Json json = parse_json(text_of_file(run / "run.json"));
    record.backend = json.at("backend").text();
    record.scaling = json.at("scaling").text();
    record.world_size = json.at("world_size").as<int>();
    record.seed = json.at("seed").as<std::uint64_t>();
  } catch (const std::exception& error) {
    throw ConfigError{
        compose("{} exists, but its run.json is no record of a run ({}): choose another RunConfig::name, or remove the "
                "directory",
                run.string(), error.what())};
  }
  try {
    const Json json = parse_json(text_of_file(run / "result.json"));
    record.has_succeeded = json.at("succeeded").boolean();
    record.seconds = json.at("seconds").as<double>();
  } catch (const std::exception&) {  // it has not come to its end
    record.has_succeeded = false;
  }
  read_history(run / "metrics.jsonl", record);
  return record;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/activity.hpp
// Says what the ranks of a group are doing, as far as their pages tell. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Returns "rank 1 was outside of collectives after 3 of them, rank 0 had waited in collective 4 for 2.5 s": those that
/// do not wait first, because the others wait for them, and no more than eight ranks in all.
[[nodiscard]] inline std::string activity_text(const WorkerGroup& group, int num_workers,
                                               Deadline::Clock::time_point now) {
  std::vector<std::string> outside;
  std::vector<std::string> waiting;
  const std::int64_t now_ns = std::chrono::nanoseconds{now.time_since_epoch()}.count();
  for (int rank = 0; rank < num_workers; ++rank) {
    const WorkerPage& page = group.page(rank);
    const auto collectives = page.collectives.load(std::memory_order_relaxed);
    const std::int64_t since_ns = page.waiting_since_ns.load(std::memory_order_relaxed);
    if (since_ns == 0) {
      outside.push_back(compose("rank {} was outside of collectives after {} of them", rank, collectives));
    } else {
      waiting.push_back(compose("rank {} had waited in collective {} for {:.1f} s", rank, collectives,
                                static_cast<double>(now_ns - since_ns) / 1e9));
    }
  }
  outside.insert(outside.end(), waiting.begin(), waiting.end());
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t at = 0; at < outside.size() && at < most; ++at) text += (at == 0 ? "" : ", ") + outside[at];
  if (outside.size() > most) text += compose(", and {} more ranks", outside.size() - most);
  return text;
}

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

  explicit FailureBudget(const FailureConfig& config) : config_(config) {}

  /// Whether a failure can be followed by another start at all.
  [[nodiscard]] bool allows_any() const noexcept { return config_.max_failures != 0; }

  /// step: how far the attempt had come. has_progressed: a checkpoint was made in it.
  [[nodiscard]] Verdict judge(const Failure& failure, std::uint64_t step, bool has_progressed) {
    if (has_progressed && config_.renew_after_progress) num_failures_ = 0;
    num_at_step_ = num_failures_in_all_++ > 0 && step == last_step_ ? num_at_step_ + 1 : 1;
    last_step_ = step;
    num_in_a_row_ = has_progressed ? 1 : num_in_a_row_ + 1;
    if (config_.max_failures == 0 || failure.kind == Failure::Kind::final) return {};
    if (failure.kind == Failure::Kind::exception && !config_.retry_exceptions) {
      return {.reason = "exceptions are not retried (FailureConfig::retry_exceptions)"};
    }
    if (num_at_step_ >= config_.max_failures_at_same_step) {
      return {.reason = compose("it has failed {} times in a row at step {}, so the program itself seems to be the "
                                "cause (FailureConfig::max_failures_at_same_step)",
                                num_at_step_, step)};
    }
    if (config_.max_failures > 0 && num_failures_ >= config_.max_failures) {
      return {.reason =
                  compose("the budget of {} failures is spent (FailureConfig::max_failures)", config_.max_failures)};
    }
    ++num_failures_;
    return {.restarts = true, .delay = delay()};
  }

 private:
  [[nodiscard]] std::chrono::nanoseconds delay() const {
    std::chrono::nanoseconds delay = config_.backoff;
    for (int at = 1; at < num_in_a_row_ && delay < config_.max_backoff; ++at) delay *= 2;
    return std::min(delay, config_.max_backoff);
  }

  FailureConfig config_;
  int num_failures_ = 0;  // since the budget was whole
  int num_failures_in_all_ = 0;
  int num_in_a_row_ = 0;  // without progress between them
  int num_at_step_ = 0;
  std::uint64_t last_step_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/patience.hpp
// Tells a state that lasts from one that passes. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Says when the same rank has been found for longer than a while.
class Patience {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// rank: -1 if none is found. Returns whether it has been found again and again for so long.
  [[nodiscard]] bool is_over(int rank, Time now) {
    if (rank != rank_) since_ = now;
    rank_ = rank;
    constexpr std::chrono::seconds most{5};
    return rank >= 0 && now - since_ > most;
  }

 private:
  int rank_ = -1;
  Time since_{};
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
  explicit PreemptionNotice(PreemptionConfig config) : config_(std::move(config)) {}

  [[nodiscard]] bool is_announced_by(int signal) const {
    return std::find(config_.signals.begin(), config_.signals.end(), signal) != config_.signals.end();
  }
  /// Whether a signal is about the run: SIGUSR1 is the program's own where it announces nothing.
  [[nodiscard]] bool concerns_run(int signal) const { return signal != SIGUSR1 || is_announced_by(SIGUSR1); }

  /// Whether the file has come to be since the last call.
  [[nodiscard]] bool take_file() {
    std::error_code ignored;
    if (config_.file.empty() || is_file_seen_) return false;
    is_file_seen_ = std::filesystem::exists(config_.file, ignored);
    return is_file_seen_;
  }

 private:
  PreemptionConfig config_;
  bool is_file_seen_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/report_book.hpp
// Puts the ranks' reports together: call number i of every rank is report i. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Collects reports and hands them out in order, each when it is complete or must not wait any longer. None is handed
/// out without rank 0's metrics before the end.
class ReportBook {
 public:
  static constexpr std::int64_t capacity = 64;      ///< how far rank 0 may be ahead of a rank that is waited for
  static constexpr std::int64_t most_ahead = 1024;  ///< of rank 0: what a rank reports beyond is only counted

  static constexpr double silent_after_seconds = 5;  ///< until a rank that has never reported is not waited for

  /// first: the number of the first report that is to come.
  explicit ReportBook(int world_size, std::int64_t first = 0)
      : counts_(static_cast<std::size_t>(world_size), first), first_(first) {}

  /// Takes the next report of a rank, made `seconds` after the start, and returns its index.
  std::int64_t add(int rank, Metrics metrics, double seconds) {
    const std::int64_t report = counts_[static_cast<std::size_t>(rank)]++;
    if (report < first_) return report;  // the callbacks were told without it
    if (report - counts_.front() >= most_ahead) return report;
    while (first_ + static_cast<std::int64_t>(open_.size()) <= report) {
      open_.push_back({.index = first_ + static_cast<std::int64_t>(open_.size()), .seconds = seconds});
      open_.back().by_rank.resize(counts_.size());
    }
    Report& entry = open_[static_cast<std::size_t>(report - first_)];
    entry.by_rank[static_cast<std::size_t>(rank)] = std::move(metrics);
    if (rank == 0) entry.seconds = seconds;
    return report;
  }

  /// Returns the next report that need not wait for any rank; after the end, any.
  [[nodiscard]] std::optional<Report> take(bool is_end) {
    if (open_.empty()) return std::nullopt;
    if (!is_end && must_wait(open_.front())) return std::nullopt;
    std::optional<Report> report{std::move(open_.front())};
    open_.pop_front();
    ++first_;
    return report;
  }

  /// Counts a report that nobody wants to hear of.
  void count_only(int rank) { ++counts_[static_cast<std::size_t>(rank)]; }

  /// How many reports a rank has made.
  [[nodiscard]] std::int64_t count(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }

 private:
  // A rank that has never reported although others go on will most likely never do so; but it may just be late.
  [[nodiscard]] bool must_wait(const Report& report) const {
    const std::int64_t ahead = counts_.front() - report.index;  // 1 if it is rank 0's last one
    if (ahead < 1) return true;
    if (ahead > capacity) return false;
    const bool others_go_on = open_.back().seconds - report.seconds >= silent_after_seconds;
    for (const std::int64_t count : counts_) {
      if (count <= report.index && (count > 0 || !others_go_on)) return true;
    }
    return false;
  }

  std::vector<std::int64_t> counts_;
  std::deque<Report> open_{};
  std::int64_t first_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/result_file.hpp
// What result.json says. Train room.

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline JsonObject result_object(const ResultFields& fields) {
  JsonObject object;
  object.add("succeeded", fields.error.empty()).add("error", fields.error).add("failed_rank", fields.failed_rank);
  object.add("exit_status", fields.exit_status).add("seconds", fields.seconds).add("reports", fields.history.size());
  object.add("start_seconds", fields.timings.start).add("first_line_seconds", fields.timings.first_line);
  object.add("training_seconds", fields.timings.training).add("attempts", fields.attempts.size());
  if (const StepTimes times = average_of(fields.step_times_by_rank); times.steps > 0) {
    object.add("steps", times.steps).add("compute_share", times.share_of_compute());
    object.add("wait_share", times.share_of_wait()).add("communication_share", times.share_of_communication());
    object.add("optimizer_share", times.share_of_optimizer()).add("slowest_rank", times.slowest_rank);
    object.add("gradient_bytes", times.bytes);
  }
  return object;
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/step_watch.hpp
// Notices that a rank ends no step any more. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Counts for how long each rank has stood still. Time in which nobody looked does not count: the whole group may have
/// been suspended.
class StepWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Standstill {
    int rank = -1;
    std::chrono::nanoseconds time{0};
  };

  /// limit: 0 to watch nothing.
  StepWatch(int world_size, std::chrono::nanoseconds limit)
      : ranks_(static_cast<std::size_t>(world_size)), limit_(limit) {}

  /// How often to look.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept {
    return limit_.count() == 0 ? std::chrono::nanoseconds{std::chrono::hours{1}} : limit_ / 4;
  }

  /// steps(rank) returns how many the rank has ended; it is watched from its first one on. Returns a rank that has
  /// stood still for longer than the limit: if there is one, one that does not wait for others.
  template <class Steps, class Waits>
  [[nodiscard]] std::optional<Standstill> look(Time now, const Steps& steps, const Waits& waits) {
    if (limit_.count() == 0) return std::nullopt;
    const std::chrono::nanoseconds most = 2 * interval();
    const auto passed =
        looked_ == Time{} ? std::chrono::nanoseconds{0} : std::min<std::chrono::nanoseconds>(now - looked_, most);
    looked_ = now;
    std::optional<Standstill> found;
    bool is_waiting = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Seen& seen = ranks_[rank];
      const std::uint64_t count = steps(static_cast<int>(rank));
      seen.still = count == seen.steps && count > 0 ? seen.still + passed : std::chrono::nanoseconds{0};
      seen.steps = count;
      if (seen.still <= limit_) continue;
      const bool waits_too = waits(static_cast<int>(rank));
      if (!found || (is_waiting && !waits_too)) {
        found = {.rank = static_cast<int>(rank), .time = seen.still};
        is_waiting = waits_too;
      }
    }
    return found;
  }

 private:
  struct Seen {
    std::uint64_t steps = 0;
    std::chrono::nanoseconds still{0};
  };
  std::vector<Seen> ranks_;
  std::chrono::nanoseconds limit_;
  Time looked_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/detail/supervision.hpp
// Drives one run: passes the group's events to the controller, the files, the callbacks and the console. Train room.

namespace railyard::inline v0_1 {
namespace detail {

/// Is one run from the start of its workers to its Result. Knows neither backend nor scaling: start makes the group.
class Supervision {
 public:
  using Start = std::function<std::unique_ptr<WorkerGroup>(const GroupPlan&)>;
  using Renew = std::function<void()>;
  using Clock = Deadline::Clock;

  /// before: what an earlier program has left of the run.
  Supervision(const RunConfig& config, RunInfo info, Clock::time_point called_at, RunLease lease, RunRecord before = {},
              const Console& console = Console{})
      : config_(config),
        info_(std::move(info)),
        called_at_(called_at),
        lease_(std::move(lease)),
        directory_(info_.path, info_.world_size),
        book_(info_.world_size),
        hosts_(static_cast<std::size_t>(info_.world_size), host_name()),
        step_times_(static_cast<std::size_t>(info_.world_size)),
        progress_(console, config.progress == Progress::quiet),
        controller_(controller_settings()),
        budget_(config.failure),
        steps_(info_.world_size, config.step_timeout),
        notice_(config.preemption),
        has_record_(before.world_size != 0),
        history_(std::move(before.history)),
        lines_(std::move(before.lines)) {}

  /// Runs to the end. renew: called before the workers are started again.
  /// Throws: ConfigError if the run cannot go on as it was asked to, or if the group cannot be started because of its
  /// settings.
  [[nodiscard]] Result run(const Start& start, const Renew& renew) {
    if (has_record_) {  // a new run has no checkpoints to look for
      std::vector<std::string> problems;
      go_on_from(find_checkpoint(info_.path, lease_, config_.resume, problems));
      for (const std::string& problem : problems) warn(problem + "; an older checkpoint is taken");
    }
    tell("on_start", [this](const AnyCallback& callback) { callback.on_start(info_); });
    if (!failure_before_start_) start_group(start);
    if (group_) {
      checkpoints_.emplace(info_, config_.checkpoint, lease_, *group_);
      do {
        while (controller_.phase() != Phase::finished) handle_next();
        end_attempt();
      } while (restarts(renew));
      timings_.training = seconds() - timings_.first_line;
      tell_reports(true);
      progress_.finish(state());
      list_checkpoints();
      checkpoints_.reset();
      group_.reset();
    }
    return finish();
  }

 private:
  [[nodiscard]] Controller::Settings controller_settings() const {
    return {.num_workers = info_.world_size,
            // a backend that cannot connect says more about it than we can: it goes first
            .start_timeout = std::min<std::chrono::nanoseconds>(config_.start_timeout, std::chrono::hours{24 * 365}) +
                             std::chrono::seconds{1},
            .stop_grace = config_.stop_grace};
  }
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(Clock::now() - called_at_).count(); }

  void start_group(const Start& start) {
    controller_.begin(Clock::now());
    try {
      group_ = start({.num_workers = info_.world_size,
                      .silence_limit = config_.silence_limit,
                      .briefing = encode_briefing(briefing_)});
      timings_.start = seconds();
    } catch (const ConfigError&) {
      if (!has_record_) directory_.remove();
      throw;
    } catch (const std::exception& error) {
      failure_before_start_ = Failure{.what = compose("the workers could not be started: {}", error.what())};
    }
  }

  // From here on, what was reported after the checkpoint will be reported anew.
  void go_on_from(const std::optional<Checkpoint>& checkpoint) {
    briefing_.checkpoint = checkpoint ? checkpoint->path().string() : std::string{};
    begin_step_ = checkpoint ? checkpoint->manifest().step : 0;
    const std::int64_t num_reports = checkpoint ? checkpoint->manifest().report + 1 : 0;
    const auto is_kept = [num_reports](const HistoryLine& line) { return line.report < num_reports; };
    const auto end = std::find_if_not(lines_.begin(), lines_.end(), is_kept);
    if (end != lines_.end() || has_record_) {  // whose last line may be torn
      complain(directory_.keep_metrics(end == lines_.begin() ? 0 : std::prev(end)->end));
      history_.resize(static_cast<std::size_t>(end - lines_.begin()));
      lines_.erase(end, lines_.end());
    }
    book_ = ReportBook{info_.world_size, num_reports};
  }

  [[nodiscard]] std::uint64_t steps_of(int rank) const {
    return group_->page(rank).steps.load(std::memory_order_relaxed);
  }

  void end_attempt() {
    Attempt attempt{.begin_step = begin_step_, .end_step = begin_step_, .seconds = seconds()};
    for (int rank = 0; rank < info_.world_size; ++rank) {
      attempt.end_step = std::max(attempt.end_step, steps_of(rank));
    }
    if (const auto& failure = controller_.failure()) {
      attempt.error = error_text(*failure);
      attempt.failed_rank = failure->rank;
      const bool is_of_rank = failure->rank >= 0;  // others may have gone further before they learnt of it
      failed_step_ = is_of_rank ? steps_of(failure->rank) : attempt.end_step;
    }
    attempts_.push_back(std::move(attempt));
    settle();
    checkpoints_->end_attempt();
    if (has_left_in_order()) last_word_ = "its state was saved first, and a run of the same name goes on from there";
  }

  void list_checkpoints() {
    try {
      newest_ = checkpoints_->newest();
      best_ = checkpoints_->best();
    } catch (const Error& error) {
      warn(error.what());
    }
  }

  // While no worker is left: whether a signal has come that asks the run to end.
  [[nodiscard]] bool take_signal() {
    const auto event = group_->next(Deadline::after(std::chrono::nanoseconds{0}));
    const auto* signal = event ? std::get_if<SignalEvent>(&*event) : nullptr;
    if (signal == nullptr || !notice_.concerns_run(signal->signal)) return false;
    stop_signal_ = signal->signal;
    return true;
  }

  // Waits until all that was saved has been written.
  void settle() {
    bool was_asked = false;
    while (!checkpoints_->drain(Deadline::after(std::chrono::milliseconds{20}))) {
      if (!take_signal()) continue;
      if (was_asked) end_by_signal(stop_signal_);  // a write cannot be interrupted, and what is committed stays
      was_asked = true;
      progress_.print(true, compose("railyard: {}: a checkpoint is still being written; once more leaves it unfinished",
                                    signal_name(stop_signal_)));
    }
    note_outcomes();
  }

  // Decides about another attempt, and starts it.
  [[nodiscard]] bool restarts(const Renew& renew) {
    if (controller_.num_alive() > 0) {
      last_word_ = "a worker of it cannot be ended, so none is started again";
      return false;
    }
    while (controller_.failure() && config_.failure.max_failures != 0) {
      if (controller_.failure()->kind != Failure::Kind::final && stop_signal_ != 0) {
        interrupt_between_attempts();
        return false;
      }
      const auto verdict = budget_.judge(*controller_.failure(), failed_step_, num_committed_ > 0);
      if (!verdict.restarts) {
        if (!verdict.reason.empty()) last_word_ = verdict.reason;
        return false;
      }
      if (!go_on_from_newest()) return false;
      attempts_.back().lost_steps = attempts_.back().end_step - begin_step_;
      announce_restart();
      if (!pause(verdict.delay)) return false;
      renew();
      begin_attempt();
      if (start_again()) return true;
    }
    return false;
  }

  [[nodiscard]] bool go_on_from_newest() {
    try {
      std::vector<std::string> problems;
      const auto newest = checkpoints_->folder().newest_whole(problems);
      if (!newest && !problems.empty()) throw Error{problems.front()};
      go_on_from(newest);
      return true;
    } catch (const Error& error) {
      last_word_ = compose("it cannot go on, because its checkpoints cannot be read: {}", error.what());
      return false;
    }
  }

  void announce_restart() {
    const std::string from = briefing_.checkpoint.empty() ? "the beginning" : briefing_.checkpoint;
    JsonObject event;
    event.add("event", "restart").add("seconds", seconds()).add("attempt", briefing_.attempt + 1);
    event.add("error", attempts_.back().error).add("from", from).add("lost_steps", attempts_.back().lost_steps);
    complain(directory_.append_event(event));
    progress_.print(true, compose("railyard: {}; all workers are started again, from {} (step {}; {} steps are lost)",
                                  attempts_.back().error, from, begin_step_, attempts_.back().lost_steps));
  }

  // Returns false if the run was interrupted meanwhile.
  [[nodiscard]] bool pause(std::chrono::nanoseconds delay) {
    const Deadline deadline = Deadline::after(delay);
    do {
      if (take_signal()) {
        interrupt_between_attempts();
        return false;
      }
      std::this_thread::sleep_for(
          std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{20}));
    } while (!deadline.expired());
    return true;
  }

  // A signal that came when no worker was there to be asked: the newest checkpoint is all that there is to save.
  void interrupt_between_attempts() {
    was_preempted_ = notice_.is_announced_by(stop_signal_);
    is_all_saved_ = !briefing_.checkpoint.empty();
    controller_ = Controller{controller_settings()};
    controller_.begin(Clock::now());
    static_cast<void>(controller_.on_signal(stop_signal_, Clock::now()));
  }

  void begin_attempt() {
    ++briefing_.attempt;
    num_committed_ = 0;
    num_started_ = 0;
    activity_.clear();
    step_times_.assign(step_times_.size(), {});
    steps_ = StepWatch{info_.world_size, config_.step_timeout};
    controller_ = Controller{controller_settings()};
    controller_.begin(Clock::now());
  }

  [[nodiscard]] bool start_again() {
    try {
      group_->restart(encode_briefing(briefing_));
      return true;
    } catch (const std::exception& error) {
      static_cast<void>(controller_.on_failure(
          {.what = compose("the workers could not be started again: {}", error.what())}, Clock::now()));
      attempts_.push_back({.error = controller_.failure()->what, .begin_step = begin_step_, .end_step = begin_step_});
      return false;
    }
  }

  void note_outcomes() {
    for (const SaveOutcome& outcome : checkpoints_->take_outcomes()) {
      JsonObject event;
      event.add("event", outcome.path.empty() ? "checkpoint_failed" : "checkpoint").add("seconds", seconds());
      event.add("step", outcome.manifest.step).add("path", outcome.path.string());
      if (!outcome.error.empty()) event.add("error", outcome.error);
      complain(directory_.append_event(event));
      if (!outcome.path.empty()) {
        ++num_committed_;
        if (++num_saved_ == 1 && !checkpoints_->doubt().empty()) warn(checkpoints_->doubt());
      }
      if (outcome.error.empty()) continue;
      warn(outcome.path.empty() ? compose("the checkpoint of step {} could not be written: {}; training goes on",
                                          outcome.manifest.step, outcome.error)
                                : outcome.error);
    }
  }

  void warn(const std::string& text) {
    warnings_.push_back(text);
    complain(text);
  }

  void handle_next() {
    const auto interval =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(progress_.interval()));
    const auto wake = std::min(controller_.wakes_at(),
                               Clock::now() + std::min<std::chrono::nanoseconds>(interval, steps_.interval()));
    auto event = group_->next(Deadline::after(std::max(Clock::duration{0}, wake - Clock::now())));
    if (event) std::visit([this](auto& one) { handle(one); }, *event);
    if (Clock::now() >= controller_.wakes_at()) carry_out(controller_.on_time(Clock::now()));
    note_outcomes();
    if (notice_.take_file()) handle_signal(SIGTERM, true);
    look_for_standstill();
    look_for_part_checkpoint();
    progress_.update(state());
  }

  void carry_out(const Orders& orders) {
    if (orders.request_leave) group_->request_leave();
    if (orders.abort) group_->abort(*orders.abort);
    // Workers that are about to be started again have nothing left to do.
    const bool will_restart =
        orders.abort && controller_.failure()->kind != Failure::Kind::final && budget_.allows_any();
    if (orders.kill || (will_restart && group_->can_kill())) group_->kill();
  }

  void handle(const MessageEvent& event) {
    try {
      WorkerMessage message = decode_message(event.bytes);
      if (auto* started = std::get_if<StartedMessage>(&message)) note_start(event.rank, std::move(started->host));
      if (auto* report = std::get_if<ReportMessage>(&message)) note_report(event.rank, std::move(report->metrics));
      if (auto* save = std::get_if<SavedMessage>(&message)) {
        checkpoints_->add(event.rank, std::move(*save), history_.empty() ? Metrics{} : history_.back(),
                          briefing_.attempt);
        for (int rank = 0; rank < info_.world_size; ++rank) {
          if (controller_.has_exited(rank)) refuse_part_checkpoint(rank, all_steps);
        }
      }
      if (const auto* told = std::get_if<StepTimesMessage>(&message)) {
        step_times_[static_cast<std::size_t>(event.rank)] = told->times;
      }
    } catch (const DataError& error) {
      carry_out(controller_.on_failure({.rank = event.rank, .what = compose("sent nonsense: {}", error.what())},
                                       Clock::now()));
    } catch (const std::exception& error) {  // no memory, no thread
      carry_out(
          controller_.on_failure({.what = compose("the supervisor cannot go on: {}", error.what())}, Clock::now()));
    }
  }
  void handle(const OutputEvent& event) {
    complain(directory_.append_log(event.rank, event.line));
    progress_.print(event.is_error, compose("[rank {}] {}", event.rank, event.line));
  }
  void handle(ExitEvent& event) {
    if (event.exit.is_consequence) note_activity();
    const bool has_returned = event.exit.kind == WorkerExit::Kind::returned;
    if (has_returned) refuse_part_checkpoint(event.rank, all_steps);
    carry_out(controller_.on_exit(event.rank, std::move(event.exit), Clock::now()));
  }
  void handle(const SilenceEvent& event) {
    note_activity();
    carry_out(controller_.on_silence(event.rank, event.message, Clock::now()));
  }
  void handle(const BrokenEvent& event) { carry_out(controller_.on_failure({.what = event.message}, Clock::now())); }
  void handle(const SignalEvent& event) {
    if (notice_.concerns_run(event.signal)) handle_signal(event.signal, notice_.is_announced_by(event.signal));
  }
  void handle_signal(int signal, bool is_announced) {
    stop_signal_ = signal;
    const Orders orders = controller_.on_signal(signal, Clock::now());
    const std::string name = signal_name(signal);
    if (orders.request_leave) {
      was_preempted_ = is_announced;
      num_saved_before_ = num_saved_;
      progress_.print(true, compose("railyard: {}: the workers are asked to stop and have {} for it; once more ends "
                                    "them at once",
                                    name, Deadline::after(config_.stop_grace).budget_text()));
    } else if (orders.kill) {
      progress_.print(true, compose("railyard: {}: the workers are killed", name));
    }
    carry_out(orders);
  }

  void look_for_standstill() {
    const auto found = steps_.look(
        Clock::now(),
        [this](int rank) { return controller_.has_exited(rank) || steps_of(rank) <= begin_step_ ? 0 : steps_of(rank); },
        [this](int rank) { return group_->page(rank).waiting_since_ns.load(std::memory_order_relaxed) != 0; });
    if (!found || controller_.phase() != Phase::running) return;
    note_activity();
    const double limit = std::chrono::duration<double>(config_.step_timeout).count();
    carry_out(
        controller_.on_failure({.rank = found->rank,
                                .what = compose("has ended no step for {:.1f} s (RunConfig::step_timeout is {} s)",
                                                std::chrono::duration<double>(found->time).count(), limit),
                                .is_wait = true},
                               Clock::now()));
  }

  // Whether the run was told of its end, and its state has been saved since.
  [[nodiscard]] bool has_left_in_order() const {
    return was_preempted_ && (is_all_saved_ || num_saved_ > num_saved_before_);
  }

  // Before the group is ended: the end is what all ranks do then.
  void note_activity() {
    if (activity_.empty()) activity_ = activity_text(*group_, info_.world_size, Clock::now());
  }

  void note_start(int rank, std::string host) {
    hosts_[static_cast<std::size_t>(rank)] = std::move(host);
    controller_.on_started(rank);
    if (++num_started_ == info_.world_size && briefing_.attempt == 0) timings_.first_line = seconds();
  }

  void note_report(int rank, Metrics metrics) {
    const double now = seconds();
    if (rank == 0) {
      const std::int64_t index = book_.count(0);
      const JsonObject line = JsonObject{}.add("report", index).add("seconds", now).add(metrics);
      complain(directory_.append_metrics(line.text()));
      history_.push_back(metrics);
      lines_.push_back({.report = index, .end = directory_.metrics_size()});
      progress_.on_report(index, metrics);
    }
    if (config_.callbacks.empty()) {
      book_.count_only(rank);
      return;
    }
    book_.add(rank, std::move(metrics), now);
    tell_reports(false);
  }

  static constexpr std::uint64_t all_steps = std::numeric_limits<std::uint64_t>::max();

  // A rank that has gone by a step which others have saved would keep them waiting for ever. What it has posted may
  // still be on its way, so this is looked at for a while.
  void look_for_part_checkpoint() {
    const int found = checkpoints_->late_rank([this](int rank) { return steps_of(rank); });
    if (patience_.is_over(found, Clock::now())) refuse_part_checkpoint(found, steps_of(found));
  }

  void refuse_part_checkpoint(int rank, std::uint64_t steps) {
    const int other = checkpoints_->waits_for(rank, steps);
    if (other < 0) return;
    carry_out(controller_.on_failure(
        {.rank = rank,
         .what = compose("has not saved where rank {} has: every rank passes its TrainState to report(), or none does",
                         other),
         .kind = Failure::Kind::final},
        Clock::now()));
  }

  void tell_reports(bool is_end) {
    while (const auto report = book_.take(is_end)) {
      tell("on_report", [&](const AnyCallback& callback) {
        if (callback.on_report(*report) == Next::stop && !is_end) group_->request_stop();
      });
    }
  }

  // A callback that throws ends the run; the others still hear of everything.
  template <class Call>
  void tell(std::string_view hook, Call call) {
    for (const AnyCallback& callback : config_.callbacks) {
      try {
        call(callback);
      } catch (...) {
        const std::string what = exit_of(std::current_exception()).message;
        note_hook_failure({.what = compose("a callback's {} threw: {}", hook, what), .kind = Failure::Kind::final});
      }
    }
  }

  void note_hook_failure(Failure failure) {
    if (group_) {
      carry_out(controller_.on_failure(failure, Clock::now()));
    }
    if (controller_.failure() && controller_.failure()->what == failure.what) return;
    if (controller_.failure() || failure_before_start_) {
      warnings_.push_back(failure.what);
    } else {
      failure_before_start_ = std::move(failure);
    }
  }

  void complain(const std::string& text) {
    if (!text.empty()) progress_.print(true, "railyard: " + text);
  }

  [[nodiscard]] ProgressState state() const {
    ProgressState state{.seconds = seconds(), .alive = controller_.num_alive(), .world_size = info_.world_size};
    for (int rank = 0; rank < info_.world_size; ++rank) {
      state.samples += group_->page(rank).samples.load(std::memory_order_relaxed);
    }
    const WorkerPage& page = group_->page(0);
    state.epoch = page.epoch.load(std::memory_order_relaxed);
    state.epoch_size = page.epoch_size.load(std::memory_order_relaxed);
    state.epoch_done = page.epoch_done.load(std::memory_order_relaxed);
    return state;
  }

  [[nodiscard]] std::string error_text(const Failure& failure) const {
    std::string text = failure.what;
    if (failure.rank >= 0) {
      const std::int64_t reports = book_.count(failure.rank);
      text = compose("rank {} of {} on {} {}", failure.rank, info_.world_size,
                     hosts_[static_cast<std::size_t>(failure.rank)], failure.what);
      text += reports > 0 ? compose("; its last report was number {}", reports - 1) : "; it had not reported yet";
      if (const auto log = directory_.log_of(failure.rank)) text += "; its output is in " + log->string();
    }
    if (failure.is_wait && !activity_.empty()) text += "; then " + activity_;
    if (!last_word_.empty()) text += "; " + last_word_;
    return text + compose("; the run's files are in {}", info_.path.string());
  }

  [[nodiscard]] Result finish() {
    const Failure* failure = controller_.failure() ? &*controller_.failure() : nullptr;
    if (failure == nullptr && failure_before_start_) failure = &*failure_before_start_;
    ResultFields fields{.path = info_.path, .world_size = info_.world_size};
    RunEnd end{.seconds = seconds()};
    if (failure != nullptr) end.error = error_text(*failure);
    if (!history_.empty()) end.metrics = history_.back();
    tell("on_end", [&end](const AnyCallback& callback) { callback.on_end(end); });
    if (failure == nullptr && failure_before_start_) failure = &*failure_before_start_;  // on_end has thrown
    if (failure != nullptr) {
      fields.error = error_text(*failure);
      fields.failed_rank = failure->rank;
      fields.exit_status = failure->signal != 0 ? 128 + failure->signal : 1;
      if (has_left_in_order()) fields.exit_status = config_.preemption.exit_status;
    }
    fields.history = std::move(history_);
    fields.step_times_by_rank = std::move(step_times_);
    fields.attempts = std::move(attempts_);
    fields.checkpoint = std::move(newest_);
    fields.best_checkpoints = std::move(best_);
    fields.warnings = directory_.warnings();
    if (std::string text = progress_.warning(); !text.empty()) fields.warnings.push_back(std::move(text));
    fields.warnings.insert(fields.warnings.end(), warnings_.begin(), warnings_.end());
    fields.seconds = seconds();
    fields.timings = timings_;
    fields.timings.teardown = std::max(0.0, fields.seconds - timings_.first_line - timings_.training);
    if (std::string loss = directory_.write_object("result.json", result_object(fields)); !loss.empty()) {
      fields.warnings.push_back(std::move(loss));
    }
    return Result{std::move(fields)};
  }

  const RunConfig& config_;
  RunInfo info_;
  Clock::time_point called_at_;
  RunLease lease_;
  RunDirectory directory_;
  ReportBook book_;
  std::vector<std::string> hosts_;
  std::vector<StepTimes> step_times_;  // by rank
  ProgressLine progress_;
  Controller controller_;
  FailureBudget budget_;
  StepWatch steps_;
  PreemptionNotice notice_;
  bool has_record_;  // an earlier program has begun the run
  std::vector<Metrics> history_;
  std::vector<HistoryLine> lines_;  // of history_
  Briefing briefing_{};
  std::uint64_t begin_step_ = 0;   // of this attempt
  std::uint64_t failed_step_ = 0;  // at which the last attempt failed
  int num_committed_ = 0;          // in this attempt
  int num_saved_ = 0;              // checkpoints, in all attempts
  int num_saved_before_ = 0;       // when the end was announced
  bool was_preempted_ = false;
  bool is_all_saved_ = false;  // the run was interrupted when no worker was there
  Patience patience_{};        // with a rank that seems to have no part in a checkpoint
  int stop_signal_ = 0;        // the last one that asked the run to end
  std::vector<Attempt> attempts_{};
  std::string last_word_{};  // why a run with failures left is not started again
  std::unique_ptr<WorkerGroup> group_{};
  std::optional<RunCheckpoints> checkpoints_{};  // while there is a group
  std::optional<Checkpoint> newest_{};
  std::vector<Checkpoint> best_{};
  std::vector<std::string> warnings_{};
  std::optional<Failure> failure_before_start_{};  // or after the end: outside of the group's life
  std::string activity_{};                         // what each rank did when the first one was found waiting or silent
  Timings timings_{};
  int num_started_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/worker_of.hpp
// The worker with its typed backend: where the training function meets a model of Backend. Train room.

namespace railyard::inline v0_1 {

/// Is the Worker that a training function with `auto& worker` gets: the backend's own operations are at hand.
template <Backend B>
class WorkerOf final : public Worker {
 public:
  /// link and context must outlive the worker. The end of the group ends the backend's waits from here on.
  WorkerOf(WorkerLink& link, const RunContext& context, std::unique_ptr<B> backend)
      : Worker(link, context), backend_(std::move(backend)) {
    this->link().on_abort([this](std::string_view reason) { backend_->abort(reason); });
  }
  ~WorkerOf() {
    leave_if_forked();
    this->drop_extensions();  // they may use the backend while they end
    this->link().on_abort({});
  }

  [[nodiscard]] Device device() const noexcept override {
    return {B::device_kind, B::device_kind == DeviceKind::cpu ? 0 : this->local_rank()};
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

  [[nodiscard]] B& backend() noexcept { return *backend_; }

 private:
  // Shows on the page what this worker waits for, and since when: that is how a supervisor tells who is late.
  template <class Operation>
  void carry_out(Operation operation) {
    const Call call{.deadline = Deadline::after(this->context().collective_timeout)};
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

  virtual void call(WorkerOf<B>& worker) = 0;
  /// Returns a copy, or nothing if this kind of workers needs none.
  [[nodiscard]] virtual std::unique_ptr<TrainingFunction> copy() const = 0;
};

/// Is one of type F. Only where MustCopy is true, F needs a copy constructor.
template <class B, class F, bool MustCopy>
class TrainingFunctionOf final : public TrainingFunction<B> {
 public:
  template <class From>
  explicit TrainingFunctionOf(std::in_place_t /*tag*/, From&& function) : function_(std::forward<From>(function)) {}

  void call(WorkerOf<B>& worker) override { static_cast<void>(std::invoke(function_, worker)); }
  [[nodiscard]] std::unique_ptr<TrainingFunction<B>> copy() const override {
    if constexpr (MustCopy) {
      return std::make_unique<TrainingFunctionOf>(std::in_place, function_);
    } else {
      return nullptr;
    }
  }

 private:
  F function_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/train/trainer.hpp
// Runs a training function on many workers: the one place where a Backend and a Scaling meet. Train room.

namespace railyard::inline v0_1 {

class Gloo;       // the defaults of Trainer are only named here: their headers stand on the same floor
class Processes;  // and are included by whoever uses them, railyard.hpp first of all

namespace detail {

/// Throws: ConfigError that names the first setting that cannot work.
inline void check_settings(const ScalingConfig& scaling, const RunConfig& run) {
  const int num_workers = scaling.num_workers.count();
  if (num_workers <= 0) {
    throw ConfigError{compose("ScalingConfig::num_workers is {}: a run needs at least one worker", num_workers)};
  }
  constexpr int most_workers = 16384;
  if (num_workers > most_workers) {
    throw ConfigError{compose("ScalingConfig::num_workers is {}: the most that one machine can be asked for is {}",
                              num_workers, most_workers)};
  }
  const auto check_time = [](const char* field, std::chrono::nanoseconds time) {
    if (time > std::chrono::nanoseconds{0}) return;
    throw ConfigError{
        compose("RunConfig::{} is {} s: it must be longer than nothing, such as std::chrono::seconds{{30}}", field,
                std::chrono::duration<double>(time).count())};
  };
  check_time("collective_timeout", run.collective_timeout);
  check_time("start_timeout", run.start_timeout);
  check_time("stop_grace", run.stop_grace);
  check_time("silence_limit", run.silence_limit);
  check_name(run.name);
  if (run.step_timeout.count() < 0) throw ConfigError{"RunConfig::step_timeout is negative: 0 watches no steps"};
  if (run.checkpoint.keep < 0) {
    throw ConfigError{
        compose("RunConfig::checkpoint.keep is {}: it counts checkpoints, and 0 keeps all", run.checkpoint.keep)};
  }
  if (run.failure.max_failures < -1) {
    throw ConfigError{compose("RunConfig::failure.max_failures is {}: it counts failures, and -1 allows any number",
                              run.failure.max_failures)};
  }
  if (run.failure.max_failures_at_same_step < 1) {
    throw ConfigError{compose("RunConfig::failure.max_failures_at_same_step is {}: it must be 1 or more",
                              run.failure.max_failures_at_same_step)};
  }
  if (run.failure.backoff.count() < 0 || run.failure.max_backoff.count() < 0) {
    throw ConfigError{"RunConfig::failure.backoff and max_backoff must not be negative"};
  }
}

/// Finds out what an earlier program has left of the run, and whether this one may go on with it.
/// Throws: ConfigError if it may not.
[[nodiscard]] inline RunRecord read_earlier(const RunPlace& place, const RunConfig& run, const RunInfo& info) {
  const bool is_new = place.is_new || is_barely_begun(place.path);
  if (is_new && run.resume == Resume::required) {
    if (place.is_new) RunDirectory{place.path, 0}.remove();
    throw ConfigError{
        compose("RunConfig::resume is Resume::required, but there is no run in {}: check RunConfig::name "
                "and storage_path",
                place.path.string())};
  }
  if (is_new) return {};
  if (run.resume == Resume::never) {
    throw ConfigError{
        compose("RunConfig::name is \"{}\", but {} exists already and RunConfig::resume is Resume::never: "
                "choose another name, or leave it empty for a unique one, or remove the directory",
                place.name, place.path.string())};
  }
  RunRecord before = read_run_record(place.path);
  const auto tell = [&run](const char* what, const std::string& now, const std::string& then) {
    if (now == then || run.progress == Progress::quiet) return;
    std::fprintf(stderr, "railyard: the run was started with %s %s and goes on with %s: bits may differ\n", what,
                 then.c_str(), now.c_str());
  };
  tell("the backend", info.backend, before.backend);
  tell("the scaling", info.scaling, before.scaling);
  tell("a world size of", compose("{}", info.world_size), compose("{}", before.world_size));
  const auto& accepted = run.accept_changes;
  if (before.seed != info.seed && std::find(accepted.begin(), accepted.end(), "seed") == accepted.end()) {
    throw ConfigError{
        compose("RunConfig::seed is {}, but the run in {} was started with {}, and its order of samples "
                "would change half way: use that seed, or .accept_changes = {{\"seed\"}}, or choose "
                "another RunConfig::name",
                info.seed, place.path.string(), before.seed)};
  }
  return before;
}

/// Returns the Result that a run has left which has succeeded.
[[nodiscard]] inline Result recorded_result(const RunPlace& place, const RunConfig& run, RunRecord before) {
  ResultFields fields{.history = std::move(before.history),
                      .path = place.path,
                      .world_size = before.world_size,
                      .seconds = before.seconds,
                      .is_recorded = true};
  const CheckpointFolder folder{place.path / "checkpoints"};
  fields.checkpoint = folder.newest();
  fields.best_checkpoints = folder.best(retention_of(run.checkpoint));
  if (run.progress != Progress::quiet) {
    std::fprintf(stderr,
                 "railyard: the run in %s has succeeded before, and nothing is done: this is what it has left\n",
                 place.path.c_str());
  }
  return Result{std::move(fields)};
}

/// Writes run.json. Throws: ConfigError if the storage takes no files.
inline void write_run(const RunInfo& info, const RunConfig& run) {
  const auto in_seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  JsonObject object;
  object.add("name", info.name).add("backend", info.backend).add("scaling", info.scaling);
  object.add("world_size", info.world_size).add("seed", info.seed).add("started_at", time_text(std::time(nullptr)));
  object.add("railyard_version", version);
  object.add("collective_timeout_seconds", in_seconds(run.collective_timeout));
  object.add("start_timeout_seconds", in_seconds(run.start_timeout));
  object.add("stop_grace_seconds", in_seconds(run.stop_grace));
  object.add("silence_limit_seconds", in_seconds(run.silence_limit));
  const RunDirectory directory{info.path, 0};
  if (const std::string loss = directory.write_object("run.json", object); !loss.empty()) {
    directory.remove();
    throw ConfigError{
        compose("RunConfig::storage_path is \"{}\": run.json cannot be written there ({}); choose a "
                "folder that you can write to and that has room",
                run.storage_path.string(), loss)};
  }
}

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
template <class B, class S>
requires detail::FittingPolicies<B, S>
class Trainer<B, S> {
 public:
  /// Keeps the function and the settings; nothing is started or checked before fit().
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Trainer>)
      Trainer(F&& function, ScalingConfig scaling, RunConfig run = {}, typename B::Options options = {})
      : function_(keep(std::forward<F>(function))),
        scaling_(std::move(scaling)),
        run_(std::move(run)),
        options_(std::move(options)) {}

  /// Refuses a second argument that is no ScalingConfig.
  template <class F, class Other, class... Rest>
  requires(!std::convertible_to<Other, ScalingConfig>) Trainer(F&&, Other&&, Rest&&...) {
    static_assert(std::convertible_to<Other, ScalingConfig>,
                  "the second argument of a Trainer says how many workers there are, by name: {.num_workers = 2}");
  }

  /// Runs the function on all workers and returns when none of them is left. May be called again: a new run.
  /// Throws: ConfigError before anything is started, if a setting cannot work; it names the setting and the remedy.
  Result fit() {
    const auto called_at = Deadline::Clock::now();
    detail::check_settings(scaling_, run_);
    B::check(options_);
    detail::open_standard_streams();
    RunInfo info{.backend = std::string{B::name},
                 .scaling = std::string{S::name},
                 .world_size = scaling_.num_workers.count(),
                 .seed = run_.seed};
    const detail::RunPlace place = detail::make_run_directory(run_.name, run_.storage_path);
    info.name = place.name;
    info.path = place.path;
    detail::RunLease lease = detail::take_lease(place);
    detail::RunRecord before = detail::read_earlier(place, run_, info);
    if (before.has_succeeded) return detail::recorded_result(place, run_, std::move(before));
    if (before.world_size == 0) detail::write_run(info, run_);

    const RunContext context{.name = info.name,
                             .path = info.path,
                             .seed = run_.seed,
                             .collective_timeout = run_.collective_timeout,
                             .checkpoint_every_steps = run_.checkpoint.every_steps,
                             .waits_for_checkpoints = run_.checkpoint.synchronous};
    std::vector<std::unique_ptr<Function>> copies;  // made one after another, by the thread that called fit()
    const auto renew = [&, size = info.world_size] {
      copies.clear();
      for (int rank = 0; S::copies_function && rank < size; ++rank) copies.push_back(function_->copy());
    };
    const WorkerBody body = [&](WorkerLink& link) {
      Function& own = S::copies_function ? *copies[static_cast<std::size_t>(link.world().rank)] : *function_;
      run_worker(link, context, own);
    };
    S scaling{};
    detail::Supervision supervision{run_, std::move(info), called_at, std::move(lease), std::move(before)};
    renew();
    return supervision.run([&](const GroupPlan& plan) { return scaling.start(plan, body); }, renew);
  }

  /// Returns a Trainer that goes on with the run in that directory. Throws: what fit() throws, when it is called.
  template <class F>
  [[nodiscard]] static Trainer restore(const std::filesystem::path& run_directory, F&& function, ScalingConfig scaling,
                                       RunConfig run = {}, typename B::Options options = {}) {
    const auto path = std::filesystem::absolute(run_directory).lexically_normal();
    run.name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
    run.storage_path = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
    run.resume = Resume::required;
    return Trainer{std::forward<F>(function), std::move(scaling), std::move(run), std::move(options)};
  }

 private:
  using Function = detail::TrainingFunction<B>;

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
    context.attempt = briefing.attempt;
    detail::ConnectingStore store{link.store(), link.world().rank};
    link.on_abort([&store](std::string_view reason) { store.abort(reason); });
    std::unique_ptr<B> backend;
    try {
      backend = B::connect(options_, link.world(), store, Deadline::after(run_.start_timeout));
    } catch (...) {
      link.on_abort({});
      throw;
    }
    WorkerOf<B> worker{link, context, std::move(backend)};
    link.post(detail::encode_started(worker.host()));
    try {
      function.call(worker);
    } catch (const detail::Leave&) {  // after a checkpoint: the supervisor knows why
    }
    worker.post_step_times();
  }

  std::unique_ptr<Function> function_;
  ScalingConfig scaling_;
  RunConfig run_;
  typename B::Options options_;
};

// Of the options the refused one knows nothing.
template <class F, class B = Gloo>
Trainer(F&&, ScalingConfig, RunConfig, typename B::Options) -> Trainer<B, Processes>;

}  // namespace railyard::inline v0_1

#if defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO

// ---- railyard/collectives/detail/gloo_transport.hpp
// What Gloo needs of us and what we need of its transport: stores, wake-ups, whose copy it is. Collectives room.

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Lets Gloo read and write our store. Gloo's newer stores have more members, all with defaults.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(railyard::Store& store, std::string prefix, const Deadline& deadline)
      : store_(&store), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(prefix_ + key, std::string_view{data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_->get(prefix_ + key, deadline_);
    if (!value) throw Error{compose("{} was not there in {}", prefix_ + key, deadline_.budget_text())};
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) static_cast<void>(get(key));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override { wait(keys); }

 private:
  railyard::Store* store_;
  std::string prefix_;
  Deadline deadline_;
};

/// Is a file descriptor that a device's loop watches. Both forms of handleEvents exist because Gloo has changed its
/// signature: one of them overrides, the other is an overload that nobody calls.
class GlooEvent : public gloo::transport::tcp::Handler {
 public:
  GlooEvent(gloo::transport::tcp::Device& device, int descriptor) : device_(&device), descriptor_(descriptor) {
    if (descriptor < 0) throw Error{compose("no descriptor for a gloo device: {}", std::strerror(errno))};
  }
  GlooEvent(const GlooEvent&) = delete;
  GlooEvent& operator=(const GlooEvent&) = delete;
  ~GlooEvent() { ::close(descriptor_); }

  virtual void handleEvents(int /*events*/) { handle(); }
  virtual void handleEvents(gloo::transport::tcp::Loop& /*loop*/, int /*events*/) { handle(); }

 protected:
  virtual void handle() = 0;
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  void watch() { device_->registerDescriptor(descriptor_, EPOLLIN, this); }
  void unwatch() { device_->unregisterDescriptor(descriptor_, this); }

 private:
  gloo::transport::tcp::Device* device_;
  int descriptor_;
};

/// Keeps the loop of a device turning while it lives. Connecting and closing wait for the loop to come round, once for
/// every peer, and an idle loop sleeps up to 10 ms.
class GlooTicker final : public GlooEvent {
 public:
  explicit GlooTicker(gloo::transport::tcp::Device& device)
      : GlooEvent(device, ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
    watch();
  }
  ~GlooTicker() override {
    is_ending_.store(true);
    while (!has_ended_.load()) std::this_thread::yield();
  }

  /// Destroys the device, which this is the last to hold, while its loop still turns: an old Gloo's destructor waits
  /// for the loop to come round, and a new one's for it to have nothing more to do.
  void end_with(std::shared_ptr<gloo::transport::tcp::Device> device) {
    num_last_ticks_.store(1000);
    is_ending_.store(true);
    device.reset();
    has_ended_.store(true);
  }

 private:
  void handle() override {
    if (is_ending_.load()) {
      if (has_ended_.load() || num_last_ticks_.fetch_sub(1) > 0) return;
      unwatch();  // by the loop itself, because any other thread would wait for the loop to come round
      has_ended_.store(true);
    } else if (++num_ticks_ > 2000) {
      std::this_thread::sleep_for(std::chrono::microseconds{200});  // somebody is late: leave the core to them
    }
  }

  std::atomic<bool> is_ending_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<int> num_last_ticks_{0};
  int num_ticks_ = 0;
};

/// Wakes this rank's thread out of a wait of Gloo's at a given time, which is not an error to Gloo.
class GlooAlarm final : public GlooEvent {
 public:
  using Buffer = gloo::transport::UnboundBuffer;
  enum class Wait { receive, send };

  explicit GlooAlarm(gloo::transport::tcp::Device& device)
      : GlooEvent(device, ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    watch();
  }
  ~GlooAlarm() override { unwatch(); }

  void set(Deadline::Clock::time_point when) {
    const auto since_boot = std::max<std::chrono::nanoseconds>(when.time_since_epoch(), std::chrono::nanoseconds{1});
    itimerspec spec{};
    spec.it_value.tv_sec = static_cast<time_t>(since_boot.count() / 1'000'000'000);
    spec.it_value.tv_nsec = static_cast<long>(since_boot.count() % 1'000'000'000);
    ::timerfd_settime(descriptor(), TFD_TIMER_ABSTIME, &spec, nullptr);
  }

  /// Waits for one completion of the buffer; false if the alarm went off. Throws what Gloo throws.
  [[nodiscard]] bool wait(Buffer& buffer, Wait what, std::chrono::milliseconds timeout) {
    struct Watched {
      GlooAlarm& alarm;
      ~Watched() {
        const std::lock_guard lock{alarm.mutex_};
        alarm.waiting_ = nullptr;
      }
    } watched{*this};
    {
      const std::lock_guard lock{mutex_};
      if (std::exchange(has_rung_, false)) return false;
      waiting_ = &buffer;
      what_ = what;
    }
    const bool done = what == Wait::receive ? buffer.waitRecv(timeout) : buffer.waitSend(timeout);
    if (!done) {
      const std::lock_guard lock{mutex_};
      has_rung_ = false;
    }
    return done;
  }

 private:
  void handle() override {
    std::uint64_t num_expired = 0;
    if (::read(descriptor(), &num_expired, sizeof num_expired) <= 0) return;
    const std::lock_guard lock{mutex_};
    has_rung_ = true;
    if (waiting_ == nullptr) return;  // between two waits: the next one sees has_rung_
    what_ == Wait::receive ? waiting_->abortWaitRecv() : waiting_->abortWaitSend();
  }

  std::mutex mutex_;
  Buffer* waiting_ = nullptr;
  Wait what_ = Wait::receive;
  bool has_rung_ = false;
};

/// Throws ConfigError if the file, in which something of Gloo's lies, is LibTorch's.
inline void check_gloo_file(std::string_view file) {
  const auto slash = file.rfind('/');
  const std::string_view base = file.substr(slash == std::string_view::npos ? 0 : slash + 1);
  if (base.starts_with("libtorch") || base.starts_with("libc10")) {
    throw ConfigError{
        compose("this program calls the copy of Gloo inside {}, which is of another version than the headers it was "
                "compiled with and would crash; link Gloo before LibTorch: ... -lgloo -ltorch_cpu -lc10 (the CMake "
                "target railyard::railyard does)",
                file)};
  }
}

/// Throws ConfigError if address, a function or table of Gloo's, lies in LibTorch.
inline void check_gloo_is_own(const void* address) {
  Dl_info info{};
  if (address != nullptr && ::dladdr(address, &info) != 0 && info.dli_fname != nullptr) check_gloo_file(info.dli_fname);
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/host_address.hpp
// From a host's name to an address that this host can listen on. Collectives room.

#include <netdb.h>

namespace railyard::inline v0_1 {
namespace detail {

struct HostAddress {
  std::string text{};  ///< numeric
  int family = AF_UNSPEC;
};

/// Resolves a name or address and checks that a socket can be bound to it. field is the option that errors name.
/// Throws: ConfigError.
[[nodiscard]] inline HostAddress own_address(const std::string& host, std::string_view field) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = host.empty() ? EAI_NONAME : ::getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  if (status != 0) {
    throw ConfigError{compose(R"({} is "{}", which is not known on this host ({}); give a name or an address that )"
                              "this host has and the others can reach, such as 127.0.0.1 for workers of one host",
                              field, host, ::gai_strerror(status))};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner{found, ::freeaddrinfo};
  int error = EADDRNOTAVAIL;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int descriptor = ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    const bool is_own = ::bind(descriptor, entry->ai_addr, entry->ai_addrlen) == 0;
    if (!is_own) error = errno;
    ::close(descriptor);
    char text[NI_MAXHOST] = {};
    if (is_own &&
        ::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      return {text, entry->ai_family};
    }
  }
  throw ConfigError{compose(R"({} is "{}", which is not an address of this host ({}); every rank gives its own)", field,
                            host, std::strerror(error))};
}

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/mesh.hpp
// Collectives made of messages between any two ranks, for whatever can carry such messages. Collectives room.

namespace railyard::inline v0_1 {
namespace detail {

/// Moves messages between the ranks in steps. Both ends of a message name the same peers and sizes in the same step. A
/// step's send() and receive() never wait, and finish() returns when all of them are done.
template <class M>
concept Mesh = requires(M& mesh, const void* from, void* to, std::size_t size_bytes, int peer) {
  { mesh.rank() } -> std::convertible_to<int>;
  { mesh.size() } -> std::convertible_to<int>;
  { mesh.scratch(size_bytes) } -> std::convertible_to<std::byte*>;
  mesh.step(from, size_bytes, to, size_bytes).send(peer, std::size_t{}, size_bytes);
  mesh.step(from, size_bytes, to, size_bytes).receive(peer, std::size_t{}, size_bytes);
  mesh.step(from, size_bytes, to, size_bytes).finish();
};

/// Up to this size, and in groups up to that, everybody sends everything to everybody: one step instead of two.
inline constexpr std::size_t direct_limit_bytes = 32 * 1024;
inline constexpr int direct_limit_ranks = 8;
/// The most that one rank reduces at a time; bounds the scratch memory to (size - 1) times as much.
inline constexpr std::size_t slice_limit_bytes = 4 * 1024 * 1024;
/// From this size on, a broadcast scatters and gathers, which takes the load off the root.
inline constexpr std::size_t tree_limit_bytes = 256 * 1024;

// The other ranks, each rank's next one first, so that not all of them write to the same one at once.
template <Mesh M, class Visit>
void for_each_peer(M& mesh, const Visit& visit) {
  for (int i = 1; i < mesh.size(); ++i) visit((mesh.rank() + i) % mesh.size());
}

[[nodiscard]] inline std::size_t index_of(int rank) noexcept { return static_cast<std::size_t>(rank); }

// Where a peer's part lies in scratch memory, which has no part of this rank's own.
[[nodiscard]] inline std::size_t place_of(int peer, int rank) noexcept {
  return index_of(peer > rank ? peer - 1 : peer);
}

/// Divides count elements among the ranks into slices of whole cache lines.
class Slices {
 public:
  Slices(std::size_t count, int size) noexcept
      : count_(count), slice_(((count + index_of(size) - 1) / index_of(size) + 63) / 64 * 64) {}
  [[nodiscard]] std::size_t begin(int rank) const noexcept { return std::min(count_, index_of(rank) * slice_); }
  [[nodiscard]] std::size_t count(int rank) const noexcept { return std::min(slice_, count_ - begin(rank)); }

 private:
  std::size_t count_;
  std::size_t slice_;
};

/// Combines this rank's part with the peers' parts in scratch, in the order of ranks.
template <Mesh M>
void reduce_parts(M& mesh, void* out, const std::byte* own, const std::byte* scratch, std::size_t count, Dtype dtype,
                  ReduceOp op) {
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::byte* theirs = scratch + place_of(rank, mesh.rank()) * count * size_of(dtype);
    sources.push_back(rank == mesh.rank() ? own : theirs);
  }
  reduce(out, sources, count, dtype, op);
}

template <Mesh M>
void all_reduce_directly(M& mesh, std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) {
  const std::size_t size_bytes = count * size_of(dtype);
  const std::size_t scratch_bytes = size_bytes * index_of(mesh.size() - 1);
  std::byte* scratch = mesh.scratch(scratch_bytes);
  auto step = mesh.step(data, size_bytes, scratch, scratch_bytes);
  for_each_peer(mesh, [&](int peer) { step.receive(peer, place_of(peer, mesh.rank()) * size_bytes, size_bytes); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, 0, size_bytes); });
  step.finish();
  reduce_parts(mesh, data, data, scratch, count, dtype, op);
}

template <Mesh M>
void all_reduce_in_slices(M& mesh, std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) {
  const std::size_t element = size_of(dtype);
  const Slices slices{count, mesh.size()};
  const std::size_t own_begin = slices.begin(mesh.rank()) * element;
  const std::size_t own_count = slices.count(mesh.rank());
  const std::size_t own_bytes = own_count * element;
  const std::size_t scratch_bytes = own_bytes * index_of(mesh.size() - 1);
  std::byte* scratch = mesh.scratch(scratch_bytes);
  {
    auto step = mesh.step(data, count * element, scratch, scratch_bytes);
    for_each_peer(mesh, [&](int peer) { step.receive(peer, place_of(peer, mesh.rank()) * own_bytes, own_bytes); });
    for_each_peer(mesh, [&](int peer) { step.send(peer, slices.begin(peer) * element, slices.count(peer) * element); });
    step.finish();
  }
  reduce_parts(mesh, data + own_begin, data + own_begin, scratch, own_count, dtype, op);
  auto step = mesh.step(data, count * element, data, count * element);
  for_each_peer(mesh,
                [&](int peer) { step.receive(peer, slices.begin(peer) * element, slices.count(peer) * element); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, own_begin, own_bytes); });
  step.finish();
}

/// Cost: small: 1 step, size - 1 times the data sent per rank; else 2 steps per 4 MiB x size, 2 (size-1)/size times.
template <Mesh M>
void mesh_all_reduce(M& mesh, const Buffer& data, ReduceOp op) {
  auto* bytes = static_cast<std::byte*>(data.data);
  if (data.size_bytes() <= direct_limit_bytes && mesh.size() <= direct_limit_ranks) {
    return all_reduce_directly(mesh, bytes, data.count, data.dtype, op);
  }
  const std::size_t element = size_of(data.dtype);
  const std::size_t segment = slice_limit_bytes / element * index_of(mesh.size());
  for (std::size_t begin = 0; begin < data.count; begin += segment) {
    all_reduce_in_slices(mesh, bytes + begin * element, std::min(segment, data.count - begin), data.dtype, op);
  }
}

/// Cost: 1 step per 4 MiB of out, (size-1) times out sent per rank.
template <Mesh M>
void mesh_reduce_scatter(M& mesh, const ConstBuffer& in, const Buffer& out, ReduceOp op) {
  const auto* from = static_cast<const std::byte*>(in.data);
  auto* to = static_cast<std::byte*>(out.data);
  const std::size_t element = size_of(out.dtype);
  const std::size_t segment = slice_limit_bytes / element;
  for (std::size_t begin = 0; begin < out.count; begin += segment) {
    const std::size_t count = std::min(segment, out.count - begin);
    const std::size_t size_bytes = count * element;
    const auto offset_of = [&](int rank) { return (index_of(rank) * out.count + begin) * element; };
    const std::size_t scratch_bytes = size_bytes * index_of(mesh.size() - 1);
    std::byte* scratch = mesh.scratch(scratch_bytes);
    auto step = mesh.step(from, in.size_bytes(), scratch, scratch_bytes);
    for_each_peer(mesh, [&](int peer) { step.receive(peer, place_of(peer, mesh.rank()) * size_bytes, size_bytes); });
    for_each_peer(mesh, [&](int peer) { step.send(peer, offset_of(peer), size_bytes); });
    step.finish();
    reduce_parts(mesh, to + begin * element, from + offset_of(mesh.rank()), scratch, count, out.dtype, op);
  }
}

// A binomial tree: in round k, the ranks that have the data send it 2^k further. Ranks count from the root. All edges
// of the tree belong to one step, because the ends of an edge are at different depths.
template <Mesh M>
void broadcast_by_tree(M& mesh, std::byte* data, std::size_t size_bytes, int root) {
  const int size = mesh.size();
  const int place = (mesh.rank() - root + size) % size;
  int reach = 1;
  while (reach <= place) reach *= 2;
  auto step = mesh.step(data, size_bytes, data, size_bytes);
  if (place > 0) {
    step.receive((place - reach / 2 + root) % size, 0, size_bytes);
    step.finish();
  }
  for (; place + reach < size; reach *= 2) step.send((place + reach + root) % size, 0, size_bytes);
  step.finish();
}

// The root gives every rank one slice; then all exchange theirs.
template <Mesh M>
void broadcast_by_slices(M& mesh, std::byte* data, std::size_t size_bytes, int root) {
  const Slices slices{size_bytes, mesh.size()};
  const bool is_root = mesh.rank() == root;
  const std::size_t own_begin = slices.begin(mesh.rank());
  const std::size_t own_bytes = slices.count(mesh.rank());
  {
    auto step = mesh.step(data, size_bytes, data, size_bytes);
    if (is_root) {
      for_each_peer(mesh, [&](int peer) { step.send(peer, slices.begin(peer), slices.count(peer)); });
    } else {
      step.receive(root, own_begin, own_bytes);
    }
    step.finish();
  }
  auto step = mesh.step(data, size_bytes, data, size_bytes);
  for_each_peer(mesh, [&](int peer) {
    if (!is_root) step.receive(peer, slices.begin(peer), slices.count(peer));
  });
  for_each_peer(mesh, [&](int peer) {
    if (peer != root) step.send(peer, own_begin, own_bytes);
  });
  step.finish();
}

/// Cost: small: log2(size) steps; large: 2 steps, twice the data sent by the root and once by the others.
template <Mesh M>
void mesh_broadcast(M& mesh, const Buffer& data, int root) {
  auto* bytes = static_cast<std::byte*>(data.data);
  if (mesh.size() == 2 || data.size_bytes() < tree_limit_bytes) {
    return broadcast_by_tree(mesh, bytes, data.size_bytes(), root);
  }
  broadcast_by_slices(mesh, bytes, data.size_bytes(), root);
}

/// Gathers parts of different sizes: rank r's part lies at offsets[r] and ends where the next begins; offsets has
/// size + 1 entries, in bytes. Cost: 1 step, size - 1 times the own part sent per rank.
template <Mesh M>
void mesh_all_gather(M& mesh, const ConstBuffer& in, const Buffer& out, std::span<const std::size_t> offsets) {
  const auto bytes_of = [&](int rank) { return offsets[index_of(rank) + 1] - offsets[index_of(rank)]; };
  auto step = mesh.step(in.data, in.size_bytes(), out.data, out.size_bytes());
  for_each_peer(mesh, [&](int peer) { step.receive(peer, offsets[index_of(peer)], bytes_of(peer)); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, 0, in.size_bytes()); });
  if (in.count > 0) {
    std::memcpy(static_cast<std::byte*>(out.data) + offsets[index_of(mesh.rank())], in.data, in.size_bytes());
  }
  step.finish();
}

/// Cost: 1 step; root receives size - 1 parts.
template <Mesh M>
void mesh_gather(M& mesh, const ConstBuffer& in, const Buffer& out, int root) {
  const std::size_t part = in.size_bytes();
  const bool is_root = mesh.rank() == root;
  auto step = mesh.step(in.data, part, is_root ? out.data : nullptr, is_root ? out.size_bytes() : 0);
  if (is_root) {
    for_each_peer(mesh, [&](int peer) { step.receive(peer, index_of(peer) * part, part); });
    std::memcpy(static_cast<std::byte*>(out.data) + index_of(root) * part, in.data, part);
  } else {
    step.send(root, 0, part);
  }
  step.finish();
}

/// Cost: 1 step; root sends size - 1 parts.
template <Mesh M>
void mesh_scatter(M& mesh, const ConstBuffer& in, const Buffer& out, int root) {
  const std::size_t part = out.size_bytes();
  const bool is_root = mesh.rank() == root;
  auto step = mesh.step(is_root ? in.data : nullptr, is_root ? in.size_bytes() : 0, out.data, part);
  if (is_root) {
    for_each_peer(mesh, [&](int peer) { step.send(peer, index_of(peer) * part, part); });
    std::memcpy(out.data, static_cast<const std::byte*>(in.data) + index_of(root) * part, part);
  } else {
    step.receive(root, 0, part);
  }
  step.finish();
}

/// Cost: 1 step, (size-1)/size times the data sent per rank.
template <Mesh M>
void mesh_all_to_all(M& mesh, const ConstBuffer& in, const Buffer& out) {
  const std::size_t part = in.size_bytes() / index_of(mesh.size());
  const std::size_t own = index_of(mesh.rank()) * part;
  auto step = mesh.step(in.data, in.size_bytes(), out.data, out.size_bytes());
  for_each_peer(mesh, [&](int peer) { step.receive(peer, index_of(peer) * part, part); });
  for_each_peer(mesh, [&](int peer) { step.send(peer, index_of(peer) * part, part); });
  std::memcpy(static_cast<std::byte*>(out.data) + own, static_cast<const std::byte*>(in.data) + own, part);
  step.finish();
}

/// Cost: log2(size) steps: in step k every rank tells the one 2^k further that it, and all it has heard of, have come.
template <Mesh M>
void mesh_barrier(M& mesh) {
  const int size = mesh.size();
  std::byte sent{};
  std::byte received{};
  for (int distance = 1; distance < size; distance *= 2) {
    auto step = mesh.step(&sent, 1, &received, 1);
    step.receive((mesh.rank() - distance + size) % size, 0, 1);
    step.send((mesh.rank() + distance) % size, 0, 1);
    step.finish();
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1

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
  Notices(Store& store, std::string prefix, const World& world)
      : store_(&store), prefix_(std::move(prefix)), rank_(world.rank), size_(world.size) {}

  /// Tells the others where this rank has been waiting for a while. Nothing depends on it but the speed of diagnosis.
  void announce(const Position& position) noexcept {
    try {
      store_->set(announcement_key(position.key, rank_), compose("{} {}", position.digest, position.operation));
    } catch (const std::exception&) {  // the store is full: disagreements are then found at the deadline
    }
  }

  /// Returns the rank and the operation of a rank that has announced something else at the same position.
  [[nodiscard]] std::optional<Verdict> find_difference(const Position& position) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const auto announced = peek(*store_, announcement_key(position.key, rank));
      if (!announced) continue;
      const auto space = announced->find(' ');
      if (announced->substr(0, space) == std::to_string(position.digest)) continue;
      return difference(position, rank, announced->substr(space + 1));
    }
    return std::nullopt;
  }

  /// Leaves this rank's last word; only the first one counts.
  void post(const Notice& notice) noexcept {
    try {
      if (!std::exchange(has_posted_, true)) store_->set(notice_key(rank_), encode(notice));
    } catch (const std::exception&) {  // the others will take this rank for dead
    }
  }

  /// Returns how the group ended for a rank, nothing if the rank has not said so.
  [[nodiscard]] std::optional<Notice::Kind> kind_of(int rank) {
    const auto bytes = peek(*store_, notice_key(rank));
    return bytes ? std::optional{decode(*bytes).kind} : std::nullopt;
  }

  /// Finds out why this rank's operation failed. own is what it has posted. Waits for the others' notices where the
  /// answer depends on them, so that a rank which was only in another call is not taken for a dead one.
  [[nodiscard]] Verdict judge(const Notice& own, const std::string& fallback, std::string_view budget,
                              std::chrono::milliseconds patience) {
    if (own.kind == Notice::Kind::differs) return {own.text, own.culprits};
    if (!own.culprits.empty()) return lost(own.culprits);
    const Deadline deadline = Deadline::after(patience);
    std::vector<std::pair<int, Notice>> notices;
    std::vector<int> silent;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      if (const auto bytes = store_->get(notice_key(rank), deadline)) {
        notices.emplace_back(rank, decode(*bytes));
      } else {
        silent.push_back(rank);
      }
    }
    return judge_by(own, notices, silent, fallback, budget);
  }

 private:
  using Heard = std::vector<std::pair<int, Notice>>;

  [[nodiscard]] std::string announcement_key(const std::string& position, int rank) const {
    return compose("{}at/{}/{}", prefix_, position, rank);
  }
  [[nodiscard]] std::string notice_key(int rank) const { return compose("{}end/{}", prefix_, rank); }

  [[nodiscard]] Verdict difference(const Position& own, int rank, std::string_view theirs) const {
    // The lower rank last, on whichever rank this is composed: everybody prints the same sentence.
    const auto [high, low] =
        rank > rank_ ? std::pair{std::pair{rank, theirs}, std::pair{rank_, std::string_view{own.operation}}}
                     : std::pair{std::pair{rank_, std::string_view{own.operation}}, std::pair{rank, theirs}};
    return {disagreement(high.first, high.second, low.first, low.second), {rank}};
  }

  [[nodiscard]] static Verdict lost(const std::vector<int>& ranks) {
    return {compose("the connection to {} was lost: {} died", ranks_text(ranks), ranks.size() == 1 ? "it" : "they"),
            ranks};
  }

  [[nodiscard]] Verdict judge_by(const Notice& own, const Heard& notices, const std::vector<int>& silent,
                                 const std::string& fallback, std::string_view budget) const {
    for (const auto& [rank, notice] : notices) {
      if (notice.position.key == own.position.key && notice.position.digest != own.position.digest) {
        return difference(own.position, rank, notice.position.operation);
      }
    }
    if (const auto told = told_by(notices)) return *told;
    const bool anybody_late = own.kind == Notice::Kind::late ||
                              std::any_of(notices.begin(), notices.end(),
                                          [](const auto& heard) { return heard.second.kind == Notice::Kind::late; });
    if (anybody_late && !silent.empty()) {
      return {compose("{} did not answer in {}", ranks_text(silent), budget), silent};
    }
    std::string text = own.kind == Notice::Kind::late ? compose("it was not done in {}", budget) : fallback;
    for (const auto& [rank, notice] : notices) {
      text += compose("; rank {} was in {}", rank, notice.position.operation);
    }
    return {text, silent};
  }

  // What a notice alone explains, the most certain first.
  [[nodiscard]] static std::optional<Verdict> told_by(const Heard& notices) {
    for (const auto& [rank, notice] : notices) {
      if (notice.kind == Notice::Kind::differs) return Verdict{notice.text, {rank}};
    }
    for (const auto& [rank, notice] : notices) {
      if (!notice.culprits.empty()) return lost(notice.culprits);
    }
    for (const auto& [rank, notice] : notices) {
      if (notice.kind == Notice::Kind::aborted) {
        return Verdict{compose("rank {} gave up: {}", rank, notice.text), {rank}};
      }
      if (notice.kind == Notice::Kind::left) return Verdict{compose("rank {} left the group before", rank), {rank}};
    }
    return std::nullopt;
  }

  [[nodiscard]] static std::string encode(const Notice& notice) {
    return compose("{}\n{}\n{}\n{}\n{}\n{}", std::string(1, static_cast<char>(notice.kind)), notice.position.key,
                   notice.position.digest, notice.position.operation, joined(notice.culprits, " "), notice.text);
  }

  [[nodiscard]] static Notice decode(std::string_view bytes) {
    const auto next = [&bytes](char end) {
      const auto length = std::min(bytes.find(end), bytes.size());
      const std::string_view field = bytes.substr(0, length);
      bytes.remove_prefix(std::min(length + 1, bytes.size()));
      return field;
    };
    const auto number = [](std::string_view text, auto value) {
      std::from_chars(text.data(), text.data() + text.size(), value);
      return value;
    };
    Notice notice;
    notice.kind = static_cast<Notice::Kind>(next('\n').front());
    notice.position.key = next('\n');
    notice.position.digest = number(next('\n'), std::uint64_t{0});
    notice.position.operation = next('\n');
    std::string_view culprits = next('\n');
    notice.text = bytes;
    bytes = culprits;
    while (!bytes.empty()) notice.culprits.push_back(number(next(' '), 0));
    return notice;
  }

  Store* store_;
  std::string prefix_;
  int rank_;
  int size_;
  bool has_posted_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/detail/gloo_tcp.hpp
// The part of Gloo that sends over TCP, on the transport of libgloo. Collectives room: with detail/gloo_transport.hpp
// the only header that includes gloo's.

namespace railyard::inline v0_1 {
namespace detail {

/// Joins processes, of one host or several, by TCP connections between any two of them (libgloo's transport; one thread
/// for each object). Reductions add in the order of ranks, so that results depend on nothing but the ranks' values.
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
  static void check(const Options& options) {
    detail::check_gloo_is_own(reinterpret_cast<const void*>(&gloo::transport::tcp::CreateDevice));
    static_cast<void>(detail::own_address(options.host, "Gloo::Options::host"));
  }

  /// Joins the group. Cost: milliseconds once all ranks have come.
  /// Throws: ConfigError as check() does; CollectiveError that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<GlooTcp> connect(const Options& options, const World& world, Store& store,
                                                        const Deadline& deadline) {
    detail::check_world(world);
    check(options);
    if (world.size == 1) return std::unique_ptr<GlooTcp>{new GlooTcp{world}};
    const std::string prefix = detail::enter_group(store, name, world);
    detail::throw_if_missing(detail::await_all(store, prefix, "here", world, deadline), world, deadline);
    const std::string connected_key = fmt::format("{}connected/{}", prefix, world.rank);
    std::unique_ptr<GlooTcp> backend;
    try {
      backend.reset(new GlooTcp{options, world, store, prefix, deadline});
      store.set(connected_key, "");
    } catch (const ConfigError&) {
      store.set(connected_key, "its configuration was refused");
      throw;
    } catch (const std::exception& error) {
      store.set(connected_key, error.what());
      detail::throw_if_failed(detail::await_all(store, prefix, "connected", world, deadline), world, deadline);
    }
    // Only now it is certain that the others have not failed: connect() succeeds everywhere or nowhere.
    detail::throw_if_failed(detail::await_all(store, prefix, "connected", world, deadline), world, deadline);
    return backend;
  }

  GlooTcp(const GlooTcp&) = delete;
  GlooTcp& operator=(const GlooTcp&) = delete;
  ~GlooTcp() {
    if (context_ == nullptr) return;
    const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
    post({.kind = detail::Notice::Kind::left, .position = {.operation = "no operation"}});
    try {
      detail::GlooTicker ticker{*device_};
      canaries_.clear();
      alarm_.reset();
      context_.reset();
      ticker.end_with(std::move(device_));
    } catch (const std::exception&) {  // no descriptor left for the ticker: members go the slow way
    }
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    return run(arguments().all_reduce(data, op), call, [&] { detail::mesh_all_reduce(*this, data, op); });
  }
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    return run(arguments().reduce_scatter(in, out, op), call, [&] { detail::mesh_reduce_scatter(*this, in, out, op); });
  }
  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    return run(arguments().broadcast(data, root), call, [&] { detail::mesh_broadcast(*this, data, root); });
  }
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    return run(arguments().all_gather(in, out), call, [&] {
      std::vector<std::size_t> offsets;
      for (int rank = 0; rank <= size(); ++rank) offsets.push_back(static_cast<std::size_t>(rank) * in.size_bytes());
      detail::mesh_all_gather(*this, in, out, offsets);
    });
  }
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    return run(arguments().all_gather_uneven(in, out, counts), call, [&] {
      std::vector<std::size_t> offsets{0};
      for (const std::size_t count : counts) offsets.push_back(offsets.back() + count * size_of(in.dtype));
      detail::mesh_all_gather(*this, in, out, offsets);
    });
  }
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    return run(arguments().gather(in, out, root), call, [&] { detail::mesh_gather(*this, in, out, root); });
  }
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    return run(arguments().scatter(in, out, root), call, [&] { detail::mesh_scatter(*this, in, out, root); });
  }
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    return run(arguments().all_to_all(in, out), call, [&] { detail::mesh_all_to_all(*this, in, out); });
  }
  FinishedWork barrier(const Call& call) {
    return run({.operation = detail::Operation::barrier}, call, [&] { detail::mesh_barrier(*this); });
  }
  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    return run(arguments().send(data, peer), call, [&] {
      Step message = step(data.data, data.size_bytes(), nullptr, 0);
      message.send(peer, 0, data.size_bytes());
      message.finish();
    });
  }
  FinishedWork receive(Buffer data, int peer, const Call& call) {
    return run(arguments().receive(data, peer), call, [&] {
      Step message = step(nullptr, 0, data.data, data.size_bytes());
      message.receive(peer, 0, data.size_bytes());
      message.finish();
    });
  }

  void abort(std::string_view reason) noexcept {
    try {
      const auto text = fmt::format("rank {} gave up: {}", world_.rank, reason);
      {
        const std::lock_guard lock{mutex_};
        if (!failure_) failure_ = detail::Verdict{text, {}};
      }
      post({.kind = detail::Notice::Kind::aborted, .position = {}, .text = std::string{reason}});
      const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
      close_connections();
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }

 private:
  using Alarm = detail::GlooAlarm;
  using Milliseconds = std::chrono::milliseconds;

  // What the operation under way needs, wherever it fails.
  struct Running {
    const detail::Signature& signature;
    const Deadline& deadline;
    int from = -1;  // of messages; -1 in collectives
    int to = -1;
    std::uint64_t number = 0;
    std::uint64_t slot = 0;  // of the step under way
    Deadline::Clock::time_point next_look{};
    Milliseconds until_look{};
    bool has_announced = false;
  };
  struct ResetAtEnd {
    Running*& pointer;
    ~ResetAtEnd() { pointer = nullptr; }
  };

 public:
  // What detail::Mesh asks for; of use to the collectives above only.
  [[nodiscard]] int rank() const noexcept { return world_.rank; }
  [[nodiscard]] int size() const noexcept { return world_.size; }

  [[nodiscard]] std::byte* scratch(std::size_t size_bytes) {
    if (scratch_bytes_ < size_bytes) {
      scratch_ = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
      scratch_bytes_ = size_bytes;
    }
    return scratch_.get();
  }

  /// Is one step of an operation: messages that are under way together.
  class Step {
   public:
    Step(GlooTcp& gloo, std::uint64_t slot, const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes)
        : gloo_(&gloo), slot_(slot) {
      // Gloo's buffers are written to or read from, as one pleases; this one is only read from.
      if (from_bytes > 0 && gloo.context_)
        source_ = gloo.context_->createUnboundBuffer(const_cast<void*>(from), from_bytes);
      if (to_bytes > 0 && gloo.context_) target_ = gloo.context_->createUnboundBuffer(to, to_bytes);
    }

    void send(int peer, std::size_t offset, std::size_t size_bytes) {
      num_sends_ += in_parts(offset, size_bytes, [&](std::uint64_t slot, std::size_t begin, std::size_t bytes) {
        source_->send(peer, slot, begin, bytes);
      });
    }
    void receive(int peer, std::size_t offset, std::size_t size_bytes) {
      num_receives_ += in_parts(offset, size_bytes, [&](std::uint64_t slot, std::size_t begin, std::size_t bytes) {
        target_->recv(peer, slot, begin, bytes);
      });
    }
    void finish() {
      for (; num_receives_ > 0; --num_receives_) gloo_->await(*target_, Alarm::Wait::receive);
      for (; num_sends_ > 0; --num_sends_) gloo_->await(*source_, Alarm::Wait::send);
    }

   private:
    // One message moves less than 2^31 bytes: the kernel writes no more at a time, and Gloo keeps some sizes in an int.
    template <class Post>
    int in_parts(std::size_t offset, std::size_t size_bytes, const Post& post) {
      constexpr std::size_t limit = std::size_t{1} << 30U;
      int num_parts = 0;
      for (std::size_t begin = 0; begin < size_bytes; begin += limit, ++num_parts) {
        const std::uint64_t slot = detail::mix(slot_, static_cast<std::uint64_t>(num_parts));
        gloo_->guarded([&] { post(slot, offset + begin, std::min(limit, size_bytes - begin)); });
      }
      return num_parts;
    }

    GlooTcp* gloo_;
    std::uint64_t slot_;
    std::unique_ptr<gloo::transport::UnboundBuffer> source_{};
    std::unique_ptr<gloo::transport::UnboundBuffer> target_{};
    int num_sends_ = 0;
    int num_receives_ = 0;
  };

  [[nodiscard]] Step step(const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes) {
    running_->slot = detail::mix(running_->slot, 1);
    return {*this, running_->slot, from, from_bytes, to, to_bytes};
  }

 private:
  explicit GlooTcp(const World& world) : world_(world) {}

  GlooTcp(const Options& options, const World& world, Store& store, const std::string& prefix, const Deadline& deadline)
      : world_(world),
        sent_(detail::index_of(world.size)),
        received_(sent_),
        notices_(std::in_place, store, prefix, world) {
    const auto address = detail::own_address(options.host, "Gloo::Options::host");
    gloo::transport::tcp::attr attributes{};
    attributes.hostname = address.text;
    attributes.ai_family = address.family;
    std::shared_ptr<gloo::transport::Device> device;
    {
      const detail::BlockSignals no_signals{detail::deferrable_signals()};  // in the thread that the device starts
      device = gloo::transport::tcp::CreateDevice(attributes);
    }
    detail::check_gloo_is_own(
        *reinterpret_cast<const void* const*>(device.get()));  // whose virtual functions are they?
    device_ = std::static_pointer_cast<gloo::transport::tcp::Device>(device);
    const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
    const detail::GlooTicker ticker{*device_};
    alarm_ = std::make_unique<Alarm>(*device_);
    context_ = std::make_shared<gloo::rendezvous::Context>(world.rank, world.size);
    context_->setTimeout(timeout(deadline));
#ifdef GLOO_SHARED_STORE
    context_->connectFullMesh(std::make_shared<detail::GlooStore>(store, prefix + "mesh/", deadline), device);
#else
    detail::GlooStore gloo_store{store, prefix + "mesh/", deadline};
    context_->connectFullMesh(gloo_store, device);
#endif
    post_canaries();
  }

  // Never 0, which fails at once, and never so large that adding it to the clock overflows. The alarm comes before it:
  // when Gloo's own timer runs out it closes all connections before the others can have been told why.
  [[nodiscard]] static Milliseconds timeout(const Deadline& deadline) {
    constexpr Milliseconds longest = std::chrono::hours{24 * 365};
    const auto left = deadline.remaining();
    return left >= longest ? longest : std::chrono::ceil<Milliseconds>(left) + std::chrono::seconds{5};
  }

  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

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
  void number(Running& running) {
    const detail::Signature& signature = running.signature;
    const bool sends = signature.operation == detail::Operation::send;
    if (sends || signature.operation == detail::Operation::receive) {
      running.from = sends ? world_.rank : signature.root;
      running.to = sends ? signature.root : world_.rank;
      running.number = ++(sends ? sent_ : received_)[detail::index_of(signature.root)];
    } else {
      running.number = ++num_collectives_;
    }
    // A tag of Gloo's that only equal operations at the same place in the same row have. Gloo ends the process if a
    // message is longer than what it is received into; with the size in the tag they never meet.
    const auto row = (static_cast<std::uint64_t>(running.from + 1) << 32U) + static_cast<std::uint64_t>(running.to + 1);
    running.slot = detail::mix(detail::mix(row, running.number), signature.digest());
  }

  [[nodiscard]] static detail::Position position(const Running& running) {
    std::string key = running.from < 0 ? fmt::format("c{}", running.number)
                                       : fmt::format("m{}-{}-{}", running.from, running.to, running.number);
    return {std::move(key), running.signature.digest(), detail::describe(running.signature)};
  }

  template <class Post>
  void guarded(const Post& post) {
    try {
      post();
    } catch (const std::exception& error) {
      fail(detail::Notice::Kind::broken, error.what());
    }
  }

  void await(gloo::transport::UnboundBuffer& buffer, Alarm::Wait what) {
    if (running_->next_look == Deadline::Clock::time_point{}) {
      running_->next_look = Deadline::Clock::now() + until_look_;
      set_alarm();
    }
    for (bool done = false; !done;) {
      guarded([&] { done = alarm_->wait(buffer, what, timeout(running_->deadline)); });
      if (!done) look_around();
    }
  }

  void set_alarm() { alarm_->set(std::min(Deadline::Clock::now() + poll_interval, running_->deadline.time())); }

  // Called now and then when an operation takes long: ends it at the deadline, or when a rank is gone from which
  // nothing is awaited at the moment, or when the ranks turn out to be in different operations.
  void look_around() {
    if (running_->deadline.expired()) fail(detail::Notice::Kind::late, "the deadline has passed");
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank == world_.rank || !is_closed(rank)) continue;
      // A rank may leave when it has done its part. If it had not, this operation will notice.
      if (notices_->kind_of(rank) == detail::Notice::Kind::left) continue;
      fail(detail::Notice::Kind::broken, fmt::format("the connection to rank {} was closed", rank));
    }
    if (Deadline::Clock::now() >= running_->next_look) compare_positions();
    set_alarm();
  }

  // The first comparison comes early and each later one, in this operation and the next slow ones, after twice the
  // time, so that a group whose ranks often wait for each other leaves no more than a few announcements in the store.
  void compare_positions() {
    const detail::Position here = position(*running_);
    if (!std::exchange(running_->has_announced, true)) {
      for (const auto& skipped : std::exchange(skipped_, {})) notices_->announce(skipped);
      notices_->announce(here);
      until_look_ = std::min<Milliseconds>(until_look_ * 2, std::chrono::minutes{1});
      running_->until_look = until_look_;
    }
    if (const auto difference = notices_->find_difference(here)) {
      fail(detail::Notice::Kind::differs, difference->text, difference->blamed);
    }
    running_->next_look = Deadline::Clock::now() + running_->until_look;
    running_->until_look = std::min<Milliseconds>(running_->until_look * 2, std::chrono::minutes{1});
  }

  // Ends the group for this rank. The order matters: see which connections are closed, leave a notice, close.
  [[noreturn]] void fail(detail::Notice::Kind kind, const std::string& text, std::vector<int> culprits = {}) {
    const detail::Position here = position(*running_);
    {
      const std::lock_guard lock{mutex_};
      if (failure_) throw_failure(here.operation, *failure_, false);  // abort() came first, and its reason is better
    }
    if (kind == detail::Notice::Kind::broken) culprits = dead_peers();
    const detail::Notice notice{.kind = kind, .position = here, .culprits = culprits, .text = text};
    post(notice);
    close_connections();
    auto verdict = notices_->judge(notice, text, running_->deadline.budget_text(), patience);
    {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = std::move(verdict);
    }
    throw_failure(here.operation, *failure_, false);
  }

  // The ranks whose connections are closed although they have left no notice.
  [[nodiscard]] std::vector<int> dead_peers() {
    std::vector<int> dead;
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank != world_.rank && is_closed(rank) && !notices_->kind_of(rank)) dead.push_back(rank);
    }
    return dead;
  }

  // Gloo tells those whose messages are under way that a connection is closed, and nobody else. So a receive that never
  // ends is posted to every rank. A wait that was aborted before it began reports an error, and waits for nothing.
  [[nodiscard]] bool is_closed(int rank) {
    auto& canary = *canaries_[detail::index_of(rank)];
    try {
      canary.abortWaitRecv();
      canary.waitRecv(nullptr, std::chrono::hours{1});
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  void post_canaries() {
    for (int rank = 0; rank < world_.size; ++rank) {
      canaries_.push_back(context_->createUnboundBuffer(&canary_byte_, 1));
      if (rank != world_.rank) canaries_.back()->recv(rank, canary_slot);
    }
  }

  void post(const detail::Notice& notice) noexcept {
    const std::lock_guard lock{post_mutex_};
    if (notices_) notices_->post(notice);
  }

  // Gloo has no such function, but a wait that times out closes all connections, which wakes all who wait for them.
  void close_connections() noexcept {
    if (context_ == nullptr) return;
    try {
      char byte = 0;
      context_->createUnboundBuffer(&byte, 1)->waitRecv(nullptr, Milliseconds{0});
    } catch (const std::exception&) {  // the time-out, as intended
    }
  }

  void throw_if_lost(const detail::Signature& signature) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(detail::describe(signature), *failure_, true);
  }

  [[noreturn]] void throw_failure(const std::string& operation, const detail::Verdict& verdict, bool is_later) const {
    throw CollectiveError{operation, world_.rank, verdict.blamed,
                          fmt::format("{}: {}{}", detail::place_text(operation, world_.rank, world_.size),
                                      is_later ? "the group was lost before: " : "", verdict.text)};
  }

  // How long a rank that has failed waits for the others' notices.
  static constexpr Milliseconds patience{250};
  // How often a rank that waits looks whether the others are still there. Costs 20 us each time.
  static constexpr Milliseconds poll_interval{100};
  static constexpr std::uint64_t canary_slot = 1;

  World world_;
  std::shared_ptr<gloo::transport::tcp::Device> device_{};
  std::unique_ptr<Alarm> alarm_{};
  std::shared_ptr<gloo::rendezvous::Context> context_{};
  char canary_byte_ = 0;
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> canaries_{};
  std::unique_ptr<std::byte[]> scratch_{};
  std::size_t scratch_bytes_ = 0;
  std::uint64_t num_collectives_ = 0;
  std::vector<std::uint64_t> sent_{};      // messages, by receiver
  std::vector<std::uint64_t> received_{};  // messages, by sender
  std::vector<detail::Position> skipped_{};
  Running* running_ = nullptr;
  Milliseconds until_look_{100};
  std::optional<detail::Notices> notices_{};
  std::mutex post_mutex_;
  std::mutex mutex_;
  std::optional<detail::Verdict> failure_{};  // set once, and never changed after
};
static_assert(Backend<GlooTcp>);
static_assert(detail::Mesh<GlooTcp>);

}  // namespace detail
}  // namespace railyard::inline v0_1

// ---- railyard/collectives/gloo.hpp
// The backend for CPUs: shared memory among ranks of one host, libgloo's TCP transport among hosts. Collectives room.

namespace railyard::inline v0_1 {

/// Names what Gloo moves values by.
enum class GlooTransport {
  automatic,  ///< shared memory if all ranks run on one host and see each other's, else TCP
  tcp,        ///< TCP in any case
};

/// Joins processes or threads, of one host or several. Reductions add in the order of ranks, so that results depend on
/// nothing but the ranks' values, and not on the transport either.
/// Costs: by shared memory those of SharedMemory; by TCP see detail/mesh.hpp, and one thread for each object.
///
/// SIGPIPE, by TCP: blocked in Gloo's thread for good and in the calling thread during a call; a SIGPIPE that a call
/// has caused is taken back. The process's disposition is not touched.
class Gloo {
 public:
  static constexpr std::string_view name = "Gloo";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    /// This host's own name or address, on which it listens and under which the others reach it. For TCP only.
    std::string host = "127.0.0.1";
    GlooTransport transport = GlooTransport::automatic;
  };

  /// Throws: ConfigError if the host cannot be listened on, or if LibTorch's copy of Gloo would answer our calls.
  static void check(const Options& options) { Tcp::check({.host = options.host}); }

  /// Joins the group; the store must outlive the object. Cost: below a millisecond once all ranks have come, by TCP
  /// some milliseconds. Throws: ConfigError as check() does; CollectiveError that names the ranks which did not come or
  /// failed.
  [[nodiscard]] static std::unique_ptr<Gloo> connect(const Options& options, const World& world, Store& store,
                                                     const Deadline& deadline) {
    detail::check_world(world);
    check(options);
    const bool is_one_host = world.local_size == world.size;
    if (options.transport == GlooTransport::automatic && is_one_host) {
      try {
        return std::unique_ptr<Gloo>{new Gloo{SharedMemory::connect({}, world, store, deadline)}};
      } catch (const ConfigError& error) {  // which all ranks get alike
        if (world.rank == 0) fmt::print(stderr, "railyard: Gloo uses TCP on one host: {}\n", error.what());
      }
    }
    auto gloo = std::unique_ptr<Gloo>{new Gloo{Tcp::connect({.host = options.host}, world, store, deadline)}};
    gloo->connect_again_ = [host = options.host, world, &store](const Deadline& until) {
      return Tcp::connect({.host = host}, world, store, until);
    };
    return gloo;
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    return shared_ ? shared_->all_reduce(data, op, call) : tcp_->all_reduce(data, op, call);
  }
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    return shared_ ? shared_->reduce_scatter(in, out, op, call) : tcp_->reduce_scatter(in, out, op, call);
  }
  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    return shared_ ? shared_->broadcast(data, root, call) : tcp_->broadcast(data, root, call);
  }
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    return shared_ ? shared_->all_gather(in, out, call) : tcp_->all_gather(in, out, call);
  }
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    return shared_ ? shared_->all_gather_uneven(in, out, counts, call) : tcp_->all_gather_uneven(in, out, counts, call);
  }
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    return shared_ ? shared_->gather(in, out, root, call) : tcp_->gather(in, out, root, call);
  }
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    return shared_ ? shared_->scatter(in, out, root, call) : tcp_->scatter(in, out, root, call);
  }
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    return shared_ ? shared_->all_to_all(in, out, call) : tcp_->all_to_all(in, out, call);
  }
  FinishedWork barrier(const Call& call) { return shared_ ? shared_->barrier(call) : tcp_->barrier(call); }
  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    return shared_ ? shared_->send(data, peer, call) : tcp_->send(data, peer, call);
  }
  FinishedWork receive(Buffer data, int peer, const Call& call) {
    return shared_ ? shared_->receive(data, peer, call) : tcp_->receive(data, peer, call);
  }
  void abort(std::string_view reason) noexcept {
    shared_ ? shared_->abort(reason) : tcp_->abort(reason);
    if (SideLine* side = side_seen_.load()) side->abort(reason);
  }

  /// The memory that the ranks share, nullptr if they do not.
  [[nodiscard]] HostMemory* host_memory() noexcept { return shared_ ? shared_->host_memory() : nullptr; }

  /// Returns the second line of sums; nullptr where the ranks share memory, which has one. All ranks call it. The first
  /// call connects them anew, which costs some milliseconds, and one thread from then on.
  [[nodiscard]] SideLine* side_line(const Deadline& deadline) {
    if (shared_) return nullptr;
    if (!side_) {
      side_ = std::make_unique<Side>(connect_again_(deadline));
      side_seen_.store(side_.get());
    }
    return side_.get();
  }

 private:
  using Tcp = detail::GlooTcp;

  class Side final : public SideLine {
   public:
    explicit Side(std::unique_ptr<Tcp> tcp) : tcp_(std::move(tcp)) {}
    void all_reduce(Buffer data, ReduceOp op, const Call& call) override { tcp_->all_reduce(data, op, call); }
    void abort(std::string_view reason) noexcept override { tcp_->abort(reason); }

   private:
    std::unique_ptr<Tcp> tcp_;
  };

  explicit Gloo(std::unique_ptr<SharedMemory> shared) : shared_(std::move(shared)) {}
  explicit Gloo(std::unique_ptr<Tcp> tcp) : tcp_(std::move(tcp)) {}

  std::unique_ptr<SharedMemory> shared_{};  // one of the two
  std::unique_ptr<Tcp> tcp_{};
  std::function<std::unique_ptr<Tcp>(const Deadline&)> connect_again_{};
  std::unique_ptr<Side> side_{};
  std::atomic<Side*> side_seen_{nullptr};  // by abort(), from another thread
};
static_assert(Backend<Gloo>);

}  // namespace railyard::inline v0_1
#endif

#if defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH

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
[[nodiscard]] inline at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::ScalarType::Double ? at::ScalarType::Double : at::ScalarType::Float;
}

// (1, channels, 1, ...): one value per channel, as an operand beside the input.
[[nodiscard]] inline at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

[[nodiscard]] inline at::Tensor tensor_of(const std::vector<double>& values, const at::Tensor& like) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  return tensor.to(like.device(), statistics_type(like));
}

// Appends a tensor of one value per channel.
inline void append(std::vector<double>& values, const at::Tensor& tensor, double factor = 1) {
  const at::Tensor plain = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* first = plain.data_ptr<double>();
  std::transform(first, first + plain.numel(), std::back_inserter(values), [factor](double x) { return x * factor; });
}

// (x - mean) / sqrt(variance + eps) * scale + shift, in one pass over x.
[[nodiscard]] inline at::Tensor normalise(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                          const BatchMoments& moments) {
  if (x.numel() == 0) return at::zeros_like(x);
  return std::get<0>(
      at::native_batch_norm(x, scale, shift, moments.mean, moments.variance, /*training=*/false, 0, moments.eps));
}

// Merges the counts, means and sums of squared deviations of all ranks. Deviations are taken from each part's own mean
// and then moved to the common one; sums of squares would lose digits where the mean is large.
// Source: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
[[nodiscard]] inline std::pair<std::vector<double>, std::vector<double>> merge_moments(const std::vector<double>& all,
                                                                                       std::size_t channels,
                                                                                       double total) {
  const std::size_t stride = 1 + 2 * channels;
  std::vector<double> mean(channels, 0.0);
  std::vector<double> variance(channels, 0.0);
  for (std::size_t part = 0; part < all.size(); part += stride) {
    const double share = all[part] / total;
    for (std::size_t c = 0; share > 0 && c < channels; ++c) mean[c] += share * all[part + 1 + c];
  }
  for (std::size_t part = 0; part < all.size(); part += stride) {
    const double share = all[part] / total;
    for (std::size_t c = 0; share > 0 && c < channels; ++c) {
      const double distance = all[part + 1 + c] - mean[c];
      variance[c] += share * (all[part + 1 + channels + c] + distance * distance);
    }
  }
  return {std::move(mean), std::move(variance)};
}

// Finds mean and variance of the batches of all ranks, in one exchange. input: what the module was given, in the
// statistics' type. A rank that counts nothing takes part.
[[nodiscard]] inline BatchMomentsPointer exchange_moments(const std::shared_ptr<Worker>& worker,
                                                          const at::Tensor& input, double eps) {
  const at::NoGradGuard no_grad;
  auto moments = c10::make_intrusive<BatchMoments>();
  const auto channels = static_cast<std::size_t>(input.size(1));
  const auto samples = worker->step_samples();
  moments->worker = worker;
  moments->eps = eps;
  moments->own_weight = static_cast<double>(samples.value_or(static_cast<std::uint64_t>(input.size(0))));
  moments->counts = moments->own_weight > 0 && input.numel() > 0;

  std::vector<double> own;
  own.reserve(1 + 2 * channels);
  own.push_back(moments->counts ? static_cast<double>(input.numel()) / static_cast<double>(channels) : 0.0);
  if (moments->counts) {
    const auto [mean, variance] = at::batch_norm_update_stats(input, at::Tensor{}, at::Tensor{}, 0.0);
    append(own, mean);
    append(own, variance);
  } else {
    own.resize(1 + 2 * channels, 0.0);  // left out, not multiplied by zero: it may be NaN
  }
  std::vector<double> all(own.size() * static_cast<std::size_t>(worker->world_size()));
  worker->all_gather(buffer_of(own), buffer_of(all));

  for (std::size_t part = 0; part < all.size(); part += own.size()) moments->count += all[part];
  const auto [mean, variance] = merge_moments(all, channels, std::max(moments->count, 1.0));
  moments->mean = tensor_of(mean, input);
  moments->variance = tensor_of(variance, input);
  return moments;
}

// Normalises with the moments of all ranks. The backward pass is the derivative of the mean over the global batch that
// prepare_model() makes of the ranks' gradients: what reaches this rank's input through the common mean and variance
// comes from all ranks' losses, each with its rank's weight.
class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchMomentsPointer& moments) {
    moments->input_needs_grad = input.requires_grad();
    ctx->save_for_backward({input, weight});
    ctx->saved_data["moments"] = c10::IValue::make_capsule(moments);
    const auto type = statistics_type(input);
    return normalise(input.to(type), weight.to(type), bias.to(type), *moments).to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto capsule = ctx->saved_data["moments"].toCapsule();
    const auto& moments = static_cast<const BatchMoments&>(*capsule);
    refuse_second_derivative();
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const auto type = statistics_type(saved[0]);
    const at::Tensor input = saved[0].to(type);
    const at::Tensor gradient = gradients[0].to(type).contiguous(input.suggest_memory_format());

    const auto [weight_gradient, bias_gradient] = sums(gradient, input, moments);
    at::Tensor input_gradient;
    if (moments.input_needs_grad) {
      input_gradient = gradient_of_input(gradient, input, weight.to(type), weight_gradient, bias_gradient, moments)
                           .to(saved[0].scalar_type());
    }
    return {input_gradient, weight_gradient.to(weight.scalar_type()), bias_gradient.to(weight.scalar_type()),
            at::Tensor{}};
  }

 private:
  // The sum over this rank's values of gradient x normalised input, and of the gradient.
  [[nodiscard]] static std::pair<at::Tensor, at::Tensor> sums(const at::Tensor& gradient, const at::Tensor& input,
                                                              const BatchMoments& moments) {
    if (input.numel() == 0) return {at::zeros_like(moments.mean), at::zeros_like(moments.mean)};
    const at::Tensor inverse = moments.variance.add(moments.eps).rsqrt();
    const auto all =
        at::native_batch_norm_backward(gradient, input, at::Tensor{}, moments.mean, moments.variance, moments.mean,
                                       inverse, /*train=*/false, moments.eps, std::array<bool, 3>{false, true, true});
    return {std::get<1>(all), std::get<2>(all)};
  }

  [[nodiscard]] static at::Tensor gradient_of_input(const at::Tensor& gradient, const at::Tensor& input,
                                                    const at::Tensor& weight, const at::Tensor& projection,
                                                    const at::Tensor& sum, const BatchMoments& moments) {
    const auto worker = moments.worker.lock();
    if (!worker) {
      throw ConfigError{
          "backward() through a synchronised BatchNorm after its training function has ended: there is nobody left to "
          "exchange with; call it inside the training function"};
    }
    const auto channels = static_cast<std::size_t>(moments.mean.numel());
    std::vector<double> exchanged;
    exchanged.reserve(2 * channels);
    if (moments.counts) {
      append(exchanged, projection, moments.own_weight);
      append(exchanged, sum, moments.own_weight);
    }
    exchanged.resize(2 * channels, 0.0);
    worker->all_reduce(buffer_of(exchanged), ReduceOp::sum);
    const double divisor = moments.counts ? moments.own_weight * moments.count : moments.count;
    for (double& value : exchanged) value /= -divisor;

    const at::Tensor factors = tensor_of(exchanged, input);
    const at::Tensor scale = moments.variance.add(moments.eps).rsqrt().mul(weight);
    const auto count = static_cast<std::int64_t>(channels);
    const at::Tensor common =
        normalise(input, scale.mul(factors.narrow(0, 0, count)), scale.mul(factors.narrow(0, count, count)), moments);
    return common.addcmul_(gradient, per_channel(scale, input));
  }

  static void refuse_second_derivative() {
    if (!c10::GradMode::is_enabled()) return;
    throw ConfigError{
        "backward(create_graph=true) through a synchronised BatchNorm: its derivative cannot be differentiated again; "
        "leave create_graph out, or use a BatchNorm that is not synchronised (or another normalisation) in this model"};
  }
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/running_statistics.hpp
// Keeps batches of weight zero out of the running statistics of a model. Torch room.

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
  void keep(const std::vector<std::weak_ptr<const torch::nn::Module>>& roots) {
    kept_.clear();
    for (const auto& root : roots) {
      if (const auto module = root.lock()) visit(*module);
    }
  }
  void forget() noexcept { kept_.clear(); }
  [[nodiscard]] bool has_any() const noexcept { return !kept_.empty(); }

  void put_back() const {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, values] : kept_) buffer.copy_(values);
  }

 private:
  void visit(const torch::nn::Module& module) {
    const auto* follower = dynamic_cast<const FollowsAllRanks*>(&module);
    if (follower == nullptr || !follower->is_joined()) {
      // The names that all of LibTorch's normalising modules share.
      for (const auto& item : module.named_buffers(/*recurse=*/false)) {
        const std::string& name = item.key();
        if (name != "running_mean" && name != "running_var" && name != "num_batches_tracked") continue;
        if (item.value().defined()) kept_.emplace_back(item.value(), item.value().detach().clone());
      }
    }
    for (const auto& child : module.children()) visit(*child);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> kept_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/cores.hpp
// How many cores this process may use: what affinity and control groups leave of the machine. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// The number of cores that the scheduler may put this thread on.
[[nodiscard]] inline int cores_of_affinity() {
  for (std::size_t cores = 1024; cores <= 65536; cores *= 2) {  // the kernel refuses a set smaller than its own
    std::vector<cpu_set_t> set(cores / (8 * sizeof(cpu_set_t)));
    const std::size_t size_bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size_bytes, set.data()) == 0) {
      return std::max(1, CPU_COUNT_S(size_bytes, set.data()));
    }
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// Reads one group's limit: "200000 100000" is two cores, "max 100000" none.
[[nodiscard]] inline std::optional<double> quota_of_group(const std::filesystem::path& group) {
  std::ifstream file{group / "cpu.max"};
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  try {
    return std::stod(quota) / period;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The smallest limit on the way from this process's group up to the root: each of them binds. Control groups v2.
// membership is /proc/self/cgroup, mount where the hierarchy is mounted.
[[nodiscard]] inline std::optional<double> cores_of_cgroup(const std::filesystem::path& membership,
                                                           const std::filesystem::path& mount) {
  std::ifstream file{membership};
  std::string line;
  std::optional<double> smallest;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::/")) continue;
    std::filesystem::path group = std::filesystem::path{line.substr(4)}.lexically_normal();
    while (true) {
      if (const auto quota = quota_of_group(mount / group)) smallest = std::min(smallest.value_or(*quota), *quota);
      if (group.empty() || group == "." || group == group.parent_path()) break;
      group = group.parent_path();
    }
  }
  return smallest;
}

// The cores that this process may use, at least 1; a limit of 1.5 cores counts as 2, for one would leave half idle.
[[nodiscard]] inline int usable_cores(const std::filesystem::path& membership = "/proc/self/cgroup",
                                      const std::filesystem::path& mount = "/sys/fs/cgroup") {
  const int cores = cores_of_affinity();
  const auto quota = cores_of_cgroup(membership, mount);
  return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, cores) : cores;
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/thread_budget.hpp
// Gives each worker its share of the cores for LibTorch's parallel loops. Torch room.

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/Parallel.h>

#include <dlfcn.h>

namespace railyard::inline v0_1 {

namespace detail {

// Returns a function of a library that LibTorch itself uses, or nullptr. Asking LibTorch's own library first finds its
// OpenMP even where the program carries another one, and needs no -fopenmp of the user.
template <class Function>
[[nodiscard]] Function* function_beside_torch(const char* name) {
  Dl_info info{};
  void* found = nullptr;
  if (dladdr(reinterpret_cast<void*>(&at::get_num_threads), &info) != 0 && info.dli_fname != nullptr) {
    if (void* library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY)) {
      found = dlsym(library, name);
      dlclose(library);
    }
  }
  if (found == nullptr) found = dlsym(RTLD_DEFAULT, name);
  return reinterpret_cast<Function*>(found);
}

// The share of one worker.
struct ThreadBudget {
  static constexpr std::string_view extension_name = "torch.thread_budget";
  int threads = 0;  // 0: not applied yet, or the user has decided
  bool applied = false;
};

// The user's own decision stands: OMP_NUM_THREADS is how one is made for every library at once.
[[nodiscard]] inline bool user_set_threads() { return std::getenv("OMP_NUM_THREADS") != nullptr; }

// Takes effect once per worker, before its first parallel loop. Only the calling thread's setting is changed:
// at::set_num_threads() would change every worker's that is a thread of this process. The first call of
// at::get_num_threads() makes LibTorch set up this thread, which would otherwise undo ours later.
inline void apply_thread_budget(Worker& worker) {
  auto& budget = worker.extension<ThreadBudget>();
  if (budget.applied) return;
  budget.applied = true;
  const int now = at::get_num_threads();
  if (user_set_threads()) return;
  budget.threads = std::max(1, usable_cores() / std::max(1, worker.local_world_size()));
  if (budget.threads >= now) return;  // never more than the user has asked LibTorch for
  if (auto* set = function_beside_torch<void(int)>("omp_set_num_threads")) set(budget.threads);
}

// OpenBLAS has threads of its own, and one number of them per process. It is lowered where workers are threads, too:
// each of their products would wait for threads that another one's product has, which was seen to take thirty times as
// long.
inline void apply_thread_budget_to_process(Worker& worker) {
  const int threads = worker.extension<ThreadBudget>().threads;
  if (threads == 0 || worker.local_world_size() == 1 || std::getenv("OPENBLAS_NUM_THREADS") != nullptr) return;
  auto* get = function_beside_torch<int()>("openblas_get_num_threads");
  auto* set = function_beside_torch<void(int)>("openblas_set_num_threads");
  if (get != nullptr && set != nullptr && get() > threads) set(threads);
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/tensor.hpp
// A tensor as collectives see it, and the device of a worker. Torch room.

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

namespace detail {

[[nodiscard]] inline std::string shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = "[";
  for (const auto size : tensor.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return std::string{c10::toString(tensor.scalar_type())} + text + "]";
}

}  // namespace detail

/// Returns the dtype that collectives know a tensor's elements by.
/// Throws: ConfigError that names the type if there is none.
[[nodiscard]] inline Dtype dtype_of_tensor(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::ScalarType::Half:
      return Dtype::f16;
    case at::ScalarType::BFloat16:
      return Dtype::bf16;
    case at::ScalarType::Float:
      return Dtype::f32;
    case at::ScalarType::Double:
      return Dtype::f64;
    case at::ScalarType::Char:
      return Dtype::i8;
    case at::ScalarType::Byte:
      return Dtype::u8;
    case at::ScalarType::Int:
      return Dtype::i32;
    case at::ScalarType::Long:
      return Dtype::i64;
    case at::ScalarType::Bool:
      return Dtype::boolean;
    default:
      throw ConfigError{
          detail::compose("collectives cannot carry a tensor of type {} (shape {}): convert it with .to() to "
                          "Half, BFloat16, Float, Double, Char, Byte, Int, Long or Bool; view a complex one "
                          "with torch::view_as_real()",
                          c10::toString(tensor.scalar_type()), detail::shape_of(tensor))};
  }
}

/// Views the elements of a contiguous tensor, which must outlive the view.
/// Throws: ConfigError if it is undefined, sparse, not contiguous, on a device or of a type that collectives do not
/// know.
[[nodiscard]] inline Buffer buffer_of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw ConfigError{"an undefined tensor was given to a collective: give it a value first"};
  if (tensor.layout() != c10::kStrided) {
    throw ConfigError{detail::compose("a sparse tensor ({}) was given to a collective: make it dense with .to_dense()",
                                      detail::shape_of(tensor))};
  }
  const Dtype dtype = dtype_of_tensor(tensor);
  if (!tensor.is_contiguous()) {
    throw ConfigError{
        detail::compose("a tensor that is not contiguous ({}) cannot be viewed as a Buffer: use .contiguous()",
                        detail::shape_of(tensor))};
  }
  Device device{};
  if (tensor.is_cuda()) {
    device = {DeviceKind::cuda, static_cast<int>(tensor.get_device())};
  } else if (!tensor.is_cpu()) {
    throw ConfigError{
        detail::compose("collectives know tensors on CPUs and CUDA devices; this one is on {}", tensor.device().str())};
  }
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype, device};
}

/// Returns the device that this worker's tensors belong on: the CPU, or the GPU of its local rank for a GPU backend.
[[nodiscard]] inline at::Device device(Worker& worker) {
  detail::apply_thread_budget(worker);
  const Device home = worker.device();
  return home.kind == DeviceKind::cpu ? at::Device{at::kCPU}
                                      : at::Device{at::kCUDA, static_cast<at::DeviceIndex>(home.index)};
}

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
[[nodiscard]] inline std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : module.named_parameters()) tensors.push_back({item.key(), item.value(), true});
  for (const auto& item : module.named_buffers()) tensors.push_back({item.key(), item.value(), false});
  return tensors;
}

[[nodiscard]] inline std::uint64_t hash_bytes(std::uint64_t hash, const void* data, std::size_t size_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t done = 0; done < size_bytes; done += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + done, std::min<std::size_t>(8, size_bytes - done));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29U;
  }
  return mix_bits(hash ^ size_bytes);
}

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
    hash = hash_bytes(hash, bytes.data_ptr(), static_cast<std::size_t>(bytes.numel()));
  }
  return hash;
}

template <class T>
[[nodiscard]] std::vector<T> gather_values(Worker& worker, const std::vector<T>& mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(worker.world_size()));
  worker.all_gather(buffer_of(mine), buffer_of(all));
  return all;
}

[[nodiscard]] inline std::vector<std::string> gather_texts(Worker& worker, const std::string& mine) {
  const auto sizes = gather_values<std::int64_t>(worker, {static_cast<std::int64_t>(mine.size())});
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
  std::ifstream file{"/proc/sys/kernel/random/boot_id"};
  std::string boot_id;
  std::getline(file, boot_id);
  struct stat space {};
  const auto pid_space = stat("/proc/self/ns/pid", &space) == 0 ? static_cast<std::uint64_t>(space.st_ino) : 0;
  const std::uint64_t hash = hash_bytes(pid_space, boot_id.data(), boot_id.size());
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
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Says where two descriptions part: counts first, then the first tensor that differs.
[[nodiscard]] inline std::string difference(const std::string& first, int rank, const std::string& other) {
  const auto ours = lines_of(first);
  const auto theirs = lines_of(other);
  std::size_t at = 0;
  while (at < std::min(ours.size(), theirs.size()) && ours[at] == theirs[at]) ++at;
  const auto show = [at](const std::vector<std::string>& lines) {
    return at < lines.size() ? lines[at] : std::string{"nothing more"};
  };
  const std::string counts = ours.size() == theirs.size()
                                 ? std::string{}
                                 : compose("rank {} has {} tensors, rank 0 has {}; ", rank, theirs.size(), ours.size());
  return compose("{}tensor {} is \"{}\" on rank {} and \"{}\" on rank 0", counts, at, show(theirs), rank, show(ours));
}

// Compares counts, names, types and shapes; throws the same error on every rank.
inline void check_structure(Worker& worker, const std::vector<NamedTensor>& tensors) {
  std::string mine;
  for (const NamedTensor& named : tensors) mine += describe(named) + "\n";
  const auto texts = gather_texts(worker, mine);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw ConfigError{
        compose("prepare_model on rank {}/{}: the ranks have different models: {}. Build the same model "
                "on every rank",
                worker.rank(), worker.world_size(), difference(texts[0], static_cast<int>(rank), texts[rank]))};
  }
}

// Compares what prepare_model() was told besides the model, in words; throws the same error on every rank.
inline void check_options_are_equal(Worker& worker, const std::string& mine) {
  if (worker.world_size() == 1) return;
  const auto texts = gather_texts(worker, mine);
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
  const auto all = gather_values(worker, mine);
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
  const auto hashes = gather_values<std::int64_t>(worker, {static_cast<std::int64_t>(hash_of(tensors))});
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

namespace detail {

// Averages tensors of one dtype as one buffer.
inline void average_buffers(Worker& worker, const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  const at::Tensor flat = at::empty({count}, tensors.front().options().requires_grad(false));
  const auto visit = [&](auto&& move) {
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      move(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()), tensor);
      begin += tensor.numel();
    }
  };
  visit([](const at::Tensor& part, const at::Tensor& tensor) { part.copy_(tensor); });
  worker.all_reduce(buffer_of(flat), ReduceOp::average);
  visit([](const at::Tensor& part, const at::Tensor& tensor) { tensor.copy_(part); });
}

// Makes the buffers of all ranks one, in the order given, which is the same on all ranks. Writes in place, so that a
// graph which has saved a buffer's values notices: call it after the backward pass (FAULTS D32).
// Cost: broadcast one collective of all bytes; average one per floating dtype, and one for all else.
inline void sync_buffers(Worker& worker, std::span<const at::Tensor> buffers, BufferSync policy) {
  if (policy == BufferSync::leave || worker.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::ScalarType, std::vector<at::Tensor>>> groups;
  std::vector<at::Tensor> copied;
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    const at::Tensor values = buffer.is_complex() ? at::view_as_real(buffer.detach()) : buffer.detach();
    if (policy == BufferSync::broadcast || !values.is_floating_point()) {
      copied.push_back(values);
      continue;
    }
    std::size_t at = 0;
    while (at < groups.size() && groups[at].first != values.scalar_type()) ++at;
    if (at == groups.size()) groups.push_back({values.scalar_type(), {}});
    groups[at].second.push_back(values);
  }
  for (const auto& group : groups) average_buffers(worker, group.second);
  if (!copied.empty()) broadcast_piece(worker, copied);
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/collectives.hpp
// Collectives on tensors. Whatever is not contiguous is made dense first and copied back afterwards. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

namespace railyard::inline v0_1 {

namespace detail {

// A contiguous tensor with the values of another one, and the way back. Backends move memory from first to last byte:
// given a strided view they would move the wrong elements without an error.
class Dense {
 public:
  explicit Dense(const at::Tensor& tensor) : original_(tensor) {
    if (tensor.defined() && tensor.layout() == c10::kStrided) dense_ = tensor.detach().contiguous();
  }

  [[nodiscard]] Buffer buffer() const { return buffer_of(dense_.defined() ? dense_ : original_); }
  [[nodiscard]] const at::Tensor& tensor() const noexcept { return dense_; }

  // Refuses what could not be written back, before anything is sent.
  void check_writable(std::string_view operation) const {
    if (original_.defined() && original_.layout() == c10::kStrided &&
        at::has_internal_overlap(original_) == at::MemOverlap::Yes) {
      throw ConfigError{
          compose("{} was given an expanded tensor ({}), several elements of which are one place in "
                  "memory: use .contiguous() first",
                  operation, shape_of(original_))};
    }
  }

  void write_back() const {
    if (dense_.data_ptr() != original_.data_ptr()) {
      original_.detach().copy_(dense_);
    } else {
      torch::autograd::impl::bump_version(original_);  // so that a graph that has saved the old values notices
    }
  }

 private:
  at::Tensor original_;
  at::Tensor dense_{};
};

[[nodiscard]] inline at::Tensor empty_like_part(const at::Tensor& tensor, std::vector<std::int64_t> shape) {
  return at::empty(shape, tensor.options().requires_grad(false));
}

// The shape of one rank's part of a tensor that is divided along its first dimension.
[[nodiscard]] inline std::vector<std::int64_t> divided_shape(const Worker& worker, const at::Tensor& tensor,
                                                             std::string_view operation) {
  auto shape = tensor.sizes().vec();
  if (shape.empty() || shape.front() % worker.world_size() != 0) {
    throw ConfigError{
        compose("{} on rank {}/{} divides the first dimension among the ranks, which {} does not allow: "
                "make it a multiple of {}",
                operation, worker.rank(), worker.world_size(), shape_of(tensor), worker.world_size())};
  }
  shape.front() /= worker.world_size();
  return shape;
}

}  // namespace detail

/// Combines a tensor of all ranks in place; equal bits on every rank afterwards. Outside of autograd.
inline void all_reduce(Worker& worker, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
  const detail::Dense dense{tensor};
  dense.check_writable("all_reduce");
  worker.all_reduce(dense.buffer(), op);
  dense.write_back();
}

/// Gives every rank the values of root's tensor, in place.
inline void broadcast(Worker& worker, const at::Tensor& tensor, int root = 0) {
  const detail::Dense dense{tensor};
  dense.check_writable("broadcast");
  worker.broadcast(dense.buffer(), root);
  dense.write_back();
}

/// Returns the tensors of all ranks, stacked. Shapes: (world_size, *shape of tensor), which is equal on all ranks.
[[nodiscard]] inline at::Tensor all_gather(Worker& worker, const at::Tensor& tensor) {
  const detail::Dense dense{tensor};
  const Buffer in = dense.buffer();
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), worker.world_size());
  const at::Tensor out = detail::empty_like_part(tensor, shape);
  worker.all_gather(in, buffer_of(out));
  return out;
}

/// Returns this rank's slice of the combined tensor. Shapes: the first dimension is divided by world_size.
[[nodiscard]] inline at::Tensor reduce_scatter(Worker& worker, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
  const detail::Dense dense{tensor};
  const Buffer in = dense.buffer();
  const at::Tensor out = detail::empty_like_part(tensor, detail::divided_shape(worker, tensor, "reduce_scatter"));
  worker.reduce_scatter(in, buffer_of(out), op);
  return out;
}

/// Sends slice r of the first dimension to rank r and returns what arrived, in order of rank.
/// Shapes: equal on all ranks; the first dimension is a multiple of world_size.
[[nodiscard]] inline at::Tensor all_to_all(Worker& worker, const at::Tensor& tensor) {
  const detail::Dense dense{tensor};
  const Buffer in = dense.buffer();
  static_cast<void>(detail::divided_shape(worker, tensor, "all_to_all"));
  const at::Tensor out = detail::empty_like_part(tensor, tensor.sizes().vec());
  worker.all_to_all(in, buffer_of(out));
  return out;
}

/// Sends a tensor to one rank, which calls receive() with one of the same shape.
inline void send(Worker& worker, const at::Tensor& tensor, int to) { worker.send(detail::Dense{tensor}.buffer(), to); }

/// Fills a tensor with what rank `from` sends.
inline void receive(Worker& worker, const at::Tensor& tensor, int from) {
  const detail::Dense dense{tensor};
  dense.check_writable("receive");
  worker.receive(dense.buffer(), from);
  dense.write_back();
}

}  // namespace railyard::inline v0_1

// ---- railyard/torch/comm_hook.hpp
// How gradients are summed over the ranks where bandwidth is dear: exactly, in half precision, or by a type of one's
// own. Torch room.

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace railyard::inline v0_1 {

/// Is a piece of the gradients that is summed at once: the same piece, at the same place of the order, on all ranks.
struct GradientBucket {
  /// Contiguous, f32 or f64: this rank's gradients, each already times the rank's weight. Zeros where it has none.
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
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    worker.all_reduce(buffer_of(bucket.flat), ReduceOp::sum);
  }
};
static_assert(CommHook<ExactHook>);

/// Sends bfloat16, the range of f32 with 8 bits: each value is rounded before and after the sum, which is made in f32.
/// The error is at most 2^-7 of the sum of the ranks' absolute values.
struct Bf16Hook {
  /// Cost: one all-reduce of half the bytes (f64: a quarter), and a pass to convert each way.
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    const at::NoGradGuard no_grad;
    const at::Tensor small = bucket.flat.to(at::ScalarType::BFloat16);
    worker.all_reduce(buffer_of(small), ReduceOp::sum);
    bucket.flat.copy_(small);
  }
};
static_assert(CommHook<Bf16Hook>);

/// Sends float16, which has 11 bits and little range: the bucket is scaled by a power of two, the same on all ranks,
/// such that the largest possible sum just fits (no overflow, FAULTS D11) and small values keep their digits (D12).
/// The error is at most 2^-10 of the sum of the ranks' absolute values, and of the order of 2^-39 of world size x
/// largest value.
struct F16Hook {
  /// Cost: one all-reduce of one f64, one of half the bytes (f64: a quarter), and three passes.
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    const at::NoGradGuard no_grad;
    double largest = bucket.flat.numel() == 0 ? 0.0 : bucket.flat.abs().max().item<double>();
    if (!detail::is_finite(largest)) largest = std::numeric_limits<double>::infinity();  // max need not keep a NaN
    worker.all_reduce(buffer_of_value(largest), ReduceOp::max);
    const double scale = scale_for(largest * worker.world_size());
    const at::Tensor small = bucket.flat.mul(scale).to(at::ScalarType::Half);
    worker.all_reduce(buffer_of(small), ReduceOp::sum);
    bucket.flat.copy_(small).div_(scale);
  }

  /// Returns the power of two that takes `largest` to between 2^14 and 2^15, which f16 still holds.
  [[nodiscard]] static double scale_for(double largest) {
    if (largest == 0 || !detail::is_finite(largest)) return 1;
    return std::ldexp(1.0, std::clamp(15 - (std::ilogb(largest) + 1), -120, 120));
  }
};
static_assert(CommHook<F16Hook>);

/// Holds any CommHook, or none, which is an exact sum. A copy is a copy of what it holds.
class AnyCommHook {
 public:
  AnyCommHook() = default;
  template <class H>
  requires(!std::same_as<std::remove_cvref_t<H>, AnyCommHook>) && CommHook<std::decay_t<H>> AnyCommHook(H&& hook)
      : held_(std::make_unique<Holder<std::decay_t<H>>>(std::forward<H>(hook))) {}
  AnyCommHook(const AnyCommHook& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
  AnyCommHook(AnyCommHook&&) noexcept = default;
  AnyCommHook& operator=(const AnyCommHook& other) { return *this = AnyCommHook{other}; }
  AnyCommHook& operator=(AnyCommHook&&) noexcept = default;
  ~AnyCommHook() = default;

  /// Says whether there is a hook.
  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }

  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    held_ ? held_->all_reduce(worker, bucket) : ExactHook{}.all_reduce(worker, bucket);
  }

  /// What the hook remembers; nothing of one that is no StatefulCommHook.
  [[nodiscard]] State state(Worker& worker) const { return held_ ? held_->state(worker) : State{}; }
  void load_state(Worker& worker, const State& state) {
    if (held_) held_->load_state(worker, state);
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void all_reduce(Worker& worker, const GradientBucket& bucket) = 0;
    [[nodiscard]] virtual State state(Worker& worker) const = 0;
    virtual void load_state(Worker& worker, const State& state) = 0;
    [[nodiscard]] virtual std::unique_ptr<Base> copy() const = 0;
  };

  template <class H>
  struct Holder final : Base {
    template <class From>
    explicit Holder(From&& from) : hook(std::forward<From>(from)) {}
    void all_reduce(Worker& worker, const GradientBucket& bucket) override { hook.all_reduce(worker, bucket); }
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

  std::unique_ptr<Base> held_{};
};
static_assert(StatefulCommHook<AnyCommHook>);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/backward_depth.hpp
// How deep one backward pass lies in others. Torch room.

#include <torch/csrc/autograd/graph_task.h>

namespace railyard::inline v0_1 {

namespace detail {

// How many backward passes are around the one under way on this thread, such as those in which checkpointing computes
// a part. LibTorch tells nobody, but it keeps the number beside a set that it does show.
[[nodiscard]] inline int depth_of_pass() {
  using torch::autograd::GraphTask;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // conditionally supported, and so by g++ and clang++
  constexpr std::size_t offset = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  return reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(nodes) - offset)->reentrant_depth_;
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/gradient_slot.hpp
// What is known of one parameter whose gradients are averaged, and of one backward pass. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/variable.h>

namespace railyard::inline v0_1 {

namespace detail {

// The part of a parameter that this rank updates for all ranks of the host, which share its weights; see
// ShardedOptimizer. Elements begin to end in the order of memory.
struct GradientPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  at::Tensor weights{};  // a view of one dimension; undefined where this rank has no part

  [[nodiscard]] bool is_empty() const noexcept { return begin == end; }
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
  at::Tensor stage{};                    // memory that the other ranks see, where the gradient itself is not there

  // Sums are made in f32 at least: n x gradient would overflow a half type.
  [[nodiscard]] at::ScalarType sum_type() const {
    const at::ScalarType type = parameter.scalar_type();
    return type == at::ScalarType::Double || type == at::ScalarType::ComplexDouble ? at::ScalarType::Double
                                                                                   : at::ScalarType::Float;
  }

  // Elements of the sum: two for a complex number.
  [[nodiscard]] std::int64_t real_count() const { return parameter.numel() * (parameter.is_complex() ? 2 : 1); }

  // The parameter's strides if it has no gaps, those of a contiguous tensor otherwise.
  [[nodiscard]] const std::vector<std::int64_t>& gradient_strides() {
    if (!strides.empty() || parameter.dim() == 0) return strides;
    if (parameter.is_non_overlapping_and_dense()) return strides = parameter.strides().vec();
    strides.assign(static_cast<std::size_t>(parameter.dim()), 1);
    for (std::size_t dim = strides.size(); dim-- > 1;) {
      strides[dim - 1] = strides[dim] * std::max<std::int64_t>(parameter.size(static_cast<std::int64_t>(dim)), 1);
    }
    return strides;
  }

  // Gives the gradient memory of its own, after `added` has come to it. LibTorch may leave it in memory that another
  // gradient of the pass has as well, if one of the two is a view, and that must not be averaged while it is needed.
  void own_memory(const at::Tensor& added) const {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || !gradient.has_storage()) return;
    const bool is_added = added.defined() && added.has_storage() && added.storage().is_alias_of(gradient.storage());
    if (gradient.storage().use_count() > (is_added ? 2 : 1)) gradient = gradient.clone();
  }

  // The gradient, made if there is none. A sparse one becomes dense: the rows that other ranks have used are others.
  [[nodiscard]] at::Tensor& dense_gradient() const {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() || gradient.is_sparse()) gradient = at::empty_like(parameter.detach());
    return gradient;
  }
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

// Cuts tensors, one after another, each beginning at a whole cache line, into one part per rank.
class RankPart {
 public:
  // counts: elements of each tensor.
  RankPart(const std::vector<std::int64_t>& counts, std::int64_t rank, std::int64_t size) {
    std::int64_t num_lines = 0;
    for (const std::int64_t count : counts) num_lines += lines_of(count);
    first_ = num_lines * rank / size * line;
    last_ = num_lines * (rank + 1) / size * line;
  }

  // Begin and end of this rank's part of the next tensor.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> next(std::int64_t count) {
    const std::int64_t at = std::exchange(at_, at_ + lines_of(count) * line);
    return {std::clamp<std::int64_t>(first_ - at, 0, count), std::clamp<std::int64_t>(last_ - at, 0, count)};
  }

 private:
  static constexpr std::int64_t line = 64;
  [[nodiscard]] static std::int64_t lines_of(std::int64_t count) noexcept { return (count + line - 1) / line; }

  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  std::int64_t at_ = 0;
};

[[nodiscard]] inline at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// What one rank says with the first bucket of an exchange.
struct PassHeader {
  double samples = 0;        // behind what is exchanged
  std::uint32_t silent = 0;  // it has not said how many
  std::uint32_t num_slots = 0;
  std::uint64_t step = 0;
  std::uint64_t pass = 0;  // of that step
  std::uint64_t loop = 0;  // over training data, in which it is
  double waited = 0;       // seconds in all, for others
  std::uint32_t wants_stop = 0;
  std::uint32_t has_ended = 0;  // its data, with this step

  [[nodiscard]] bool is_together_with(const PassHeader& other) const noexcept {
    return num_slots == other.num_slots && step == other.step && pass == other.pass && loop == other.loop;
  }
};

// What all ranks know after it.
struct PassSummary {
  std::vector<PassHeader> headers{};  // by rank; where nobody can be told apart, one for all
  double samples = 0;                 // on all ranks
  std::uint32_t num_silent = 0;       // ranks that have not said how many
  std::uint32_t num_stopping = 0;     // ranks that want to stop
  std::uint32_t num_ended = 0;        // ranks whose data ends with this step
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/model_options.hpp
// What prepare_model() can be told. Torch room.

namespace railyard::inline v0_1 {

/// Says what happens when an averaged gradient is not finite (NaN, or an overflow), which all ranks see alike.
enum class NonFinite : std::uint8_t {
  skip,   ///< every gradient becomes undefined on all ranks, so that the optimizer leaves the step out; counted
  stop,   ///< backward() throws on all ranks
  allow,  ///< it stays, as in a loop without Railyard
};

/// Says whether gradients are exchanged while the backward pass goes on, by a thread of its own for each worker.
enum class Overlap : std::uint8_t {
  automatic,  ///< where there is a core for that thread
  off,        ///< no: all are exchanged when the pass has ended
  on,         ///< wherever the backend and the model allow it
};

/// Says how the gradients of a prepared model are exchanged. Equal on all ranks.
struct ModelOptions {
  NonFinite non_finite = NonFinite::skip;
  /// From here on this worker's CPU tensors come from a pool (see Pool), which is also where the other ranks of the
  /// host see its gradients. false leaves LibTorch's allocator alone; gradients are then copied.
  bool memory_pool = true;
  /// What happens to buffers, such as BatchNorm's statistics, after each exchange of gradients.
  BufferSync buffers = BufferSync::leave;
  /// How gradients are summed, such as Bf16Hook{}; exactly, if empty. With a hook they are copied into flat buckets,
  /// and optimizers are not divided among the ranks.
  AnyCommHook comm_hook{};
  /// Whether gradients are exchanged, bucket by bucket, as soon as all ranks have them. The same bits either way. It
  /// begins when one whole step has shown the order in which they come. Not used with a comm_hook, on GPUs, by backends
  /// other than Gloo and SharedMemory, and where that step has shown a gradient that comes in several parts in one
  /// backward pass (re-entrant checkpointing of a shared parameter); where one does so later, backward() throws. A
  /// backward pass that ends by an exception ends the group.
  Overlap overlap = Overlap::automatic;
  /// The most bytes of gradients in a bucket, and in the first one, which is ready when the pass has barely begun. A
  /// larger parameter has a bucket to itself.
  std::size_t bucket_bytes = std::size_t{25} << 20U;
  std::size_t first_bucket_bytes = std::size_t{1} << 20U;
};

namespace detail {

// What all ranks must have chosen alike, in words.
[[nodiscard]] inline std::string describe(const ModelOptions& options) {
  const auto number = [](auto option) { return static_cast<int>(option); };
  return compose(
      "non_finite {}, memory_pool {}, buffers {}, comm_hook {}, overlap {}, bucket_bytes {}, "
      "first_bucket_bytes {}",
      number(options.non_finite), number(options.memory_pool), number(options.buffers),
      options.comm_hook ? "set" : "not set", number(options.overlap), options.bucket_bytes, options.first_bucket_bytes);
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/bucket_schedule.hpp
// Divides the gradients of a pass into buckets, and follows which of them are complete. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// Buckets are exchanged in one order on all ranks, so one is ready when it and all before it are complete. Until an
// order of slots is known there is one bucket, and passes tell the order.
class BucketSchedule {
 public:
  // One bucket of so many slots.
  void reset(std::size_t num_slots) {
    buckets_.assign(1, {});
    for (std::size_t index = 0; index < num_slots; ++index) buckets_.front().push_back(index);
    bucket_of_.assign(num_slots, 0);
    observed_.clear();
    is_observed_.assign(num_slots, false);
    has_repeats_ = false;
    begin_pass();
  }

  // Cuts all slots into buckets, in an order that was observed. Those that it lacks, such as frozen parameters, go with
  // the last bucket: one of their own would cost an exchange.
  void cut(const std::vector<std::int64_t>& observed, const std::vector<GradientSlot>& slots,
           const ModelOptions& options) {
    buckets_.assign(1, {});
    is_observed_.assign(slots.size(), false);
    std::size_t size_bytes = 0;
    for (const std::int64_t number : observed) {
      const auto index = static_cast<std::size_t>(number);
      const GradientSlot& slot = slots[index];
      const std::size_t more = static_cast<std::size_t>(slot.real_count()) * c10::elementSize(slot.sum_type());
      const std::size_t limit = buckets_.size() == 1 ? options.first_bucket_bytes : options.bucket_bytes;
      if (!buckets_.back().empty() && size_bytes + more > limit) {
        buckets_.emplace_back();
        size_bytes = 0;
      }
      put(index);
      is_observed_[index] = true;
      size_bytes += more;
    }
    for (std::size_t index = 0; index < slots.size(); ++index) {
      if (!is_observed_[index]) put(index);
    }
    begin_pass();
  }

  [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  void begin_pass() {
    num_ready_ = 0;
    num_missing_.clear();
    for (const Bucket& bucket : buckets_) num_missing_.push_back(bucket.size());
  }

  // A gradient has arrived: it is the first of its slot in this pass, or one more.
  void arrive(std::size_t index, bool is_first) {
    has_repeats_ = has_repeats_ || !is_first;
    if (!is_first) return;
    if (!is_observed_[index]) observed_.push_back(static_cast<std::int64_t>(index));
    is_observed_[index] = true;
    --num_missing_[bucket_of_[index]];
    while (num_ready_ < buckets_.size() && num_missing_[num_ready_] == 0) ++num_ready_;
  }

  // How many buckets, from the first on, are complete in this pass.
  [[nodiscard]] std::size_t num_ready() const noexcept { return num_ready_; }
  // Since the last reset: whether a slot's gradient has come in several parts in one pass, and the order of the slots.
  [[nodiscard]] bool has_repeats() const noexcept { return has_repeats_; }
  [[nodiscard]] const std::vector<std::int64_t>& observed() const noexcept { return observed_; }

 private:
  void put(std::size_t index) {
    bucket_of_[index] = buckets_.size() - 1;
    buckets_.back().push_back(index);
  }

  std::vector<Bucket> buckets_{};
  std::vector<std::size_t> bucket_of_{};  // by slot
  std::vector<std::int64_t> observed_{};
  std::vector<bool> is_observed_{};         // by slot
  std::vector<std::size_t> num_missing_{};  // slots that have not arrived in this pass, by bucket
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

// Knows which heap serves this thread, and to which heap a block belongs. One object per process and shared library,
// which is never destroyed: tensors of static storage are freed after everything else.
class PoolRegistry {
 public:
  static constexpr std::size_t most_heaps = 256;

  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  [[nodiscard]] static PoolRegistry& instance() {
    static PoolRegistry* const registry = new PoolRegistry;
    return *registry;
  }

  // The heap of the calling thread; a plain pointer, which other thread-local objects may use while they end.
  [[nodiscard]] static Heap*& bound() noexcept {
    static thread_local Heap* heap = nullptr;
    return heap;
  }

  [[nodiscard]] c10::DataPtr allocate(std::size_t size_bytes) const {
    Heap* heap = bound();
    void* memory = heap == nullptr ? nullptr : heap->allocate(size_bytes);
    if (memory == nullptr) memory = before_->raw_allocate(size_bytes);
    return {memory, memory, &give_back, c10::Device{c10::DeviceType::CPU}};
  }

  // Frees memory of any heap, or of the allocator that was there before: LibTorch's libraries may have taken some of it
  // by raw_allocate() when that was still the current one.
  static void give_back(void* memory) {
    if (memory == nullptr) return;
    const PoolRegistry& registry = instance();
    const std::size_t used = registry.num_used_.load(std::memory_order_acquire);
    for (std::size_t index = 0; index < used; ++index) {
      const Range& range = registry.ranges_[index];
      if (memory >= range.begin.load(std::memory_order_acquire) && memory < range.end.load(std::memory_order_acquire)) {
        return Heap::give_back(memory);
      }
    }
    registry.before_->raw_deallocate(memory);
  }

  // Makes the blocks of a heap known, until it is gone. Returns false if there are too many heaps.
  [[nodiscard]] bool add(Heap& heap) {
    const std::lock_guard lock{mutex_};
    for (std::size_t index = 0; index < most_heaps; ++index) {
      Range& range = ranges_[index];
      if (range.begin.load() != nullptr) continue;
      range.end.store(heap.end());
      range.begin.store(heap.begin());
      if (index >= num_used_.load()) num_used_.store(index + 1);
      heap.keep(std::shared_ptr<const void>{&range, [](const void* gone) {
                                              auto& ended = *static_cast<Range*>(const_cast<void*>(gone));
                                              ended.end.store(nullptr);
                                              ended.begin.store(nullptr);
                                            }});
      return true;
    }
    return false;
  }

  [[nodiscard]] bool knows(const Heap& heap) const noexcept {
    for (const Range& range : ranges_) {
      if (range.begin.load() == heap.begin()) return true;
    }
    return false;
  }

 private:
  struct Range {
    std::atomic<std::byte*> begin{nullptr};
    std::atomic<std::byte*> end{nullptr};
  };

  PoolRegistry();

  c10::Allocator* before_;
  std::mutex mutex_{};
  std::array<Range, most_heaps> ranges_{};
  std::atomic<std::size_t> num_used_{0};
};

// What overrides depends on the LibTorch: allocate() is const in 1.13 and is not in 2.15, copy_data() is unknown to
// 1.13. So none is marked, which clang++ would want for all or for none.
class PoolAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) const { return PoolRegistry::instance().allocate(size_bytes); }
  c10::DataPtr allocate(std::size_t size_bytes) { return PoolRegistry::instance().allocate(size_bytes); }
  c10::DeleterFnPtr raw_deleter() const { return &PoolRegistry::give_back; }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const {
    std::memcpy(to, from, size_bytes);  // LibTorch passes no null pointer here
  }
};
static_assert(!std::is_abstract_v<PoolAllocator>, "this LibTorch's c10::Allocator asks for functions not known here");

inline PoolRegistry::PoolRegistry() : before_(c10::GetAllocator(c10::DeviceType::CPU)) {}

// Puts the allocator in front of LibTorch's own, once for each shared library that uses pools. LibTorch keeps it for
// good, so it is never destroyed.
inline void install_pool_allocator() {
  static c10::Allocator* const installed = [] {
    static_cast<void>(PoolRegistry::instance());  // which asks for the one before
    auto* allocator = new PoolAllocator;
    c10::SetAllocator(c10::DeviceType::CPU, allocator, /*priority=*/100);
    return allocator;
  }();
  static_cast<void>(installed);
}

// Lets the calling thread take its CPU tensors from a heap until it ends. Made and ended by one thread.
class PoolBinding {
 public:
  explicit PoolBinding(std::shared_ptr<Heap> heap) : heap_(std::move(heap)), before_(PoolRegistry::bound()) {
    install_pool_allocator();
    PoolRegistry& registry = PoolRegistry::instance();
    if (registry.knows(*heap_) || registry.add(*heap_)) PoolRegistry::bound() = heap_.get();
  }
  PoolBinding(const PoolBinding&) = delete;
  PoolBinding& operator=(const PoolBinding&) = delete;
  ~PoolBinding() { PoolRegistry::bound() = before_; }

  [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept { return heap_; }

 private:
  std::shared_ptr<Heap> heap_;
  Heap* before_;
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
  CommunicationThread(std::function<void()> function, std::shared_ptr<Heap> heap)
      : function_(std::move(function)), heap_(std::move(heap)) {
    const BlockSignals no_signals{deferrable_signals()};  // in the new thread, which then runs no handler of the user's
    thread_ = std::thread{[this] { run(); }};
  }
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;
  ~CommunicationThread() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Asks for more calls. After one has failed there are none: settle() says so.
  void ask(std::size_t num_calls) {
    {
      const std::lock_guard lock{mutex_};
      if (error_) return;
      num_asked_ += num_calls;
    }
    changed_.notify_all();
  }

  [[nodiscard]] bool has_failed() const {
    const std::lock_guard lock{mutex_};
    return error_ != nullptr;
  }

  // Waits until all calls that were asked for have been made, and throws what one of them has thrown.
  void settle() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return num_asked_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void run() {
    const at::NoGradGuard no_grad;
    static_cast<void>(at::get_num_threads());  // or LibTorch would undo the next line later
    if (auto* set = function_beside_torch<void(int)>("omp_set_num_threads")) set(1);  // the others compute
    std::optional<PoolBinding> pool;
    if (heap_) pool.emplace(heap_);
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || num_asked_ > 0; });
      if (is_ending_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        function_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      num_asked_ = error ? 0 : num_asked_ - 1;
      error_ = std::move(error);
      if (num_asked_ == 0) changed_.notify_all();
    }
  }

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

[[noreturn]] inline void refuse_converted(const Worker& worker, const GradientSlot& slot) {
  throw ConfigError{
      compose("the parameter \"{}\" of a prepared model was converted, now to {}, after training had begun on "
              "rank {}/{}: its gradients may have gone unaveraged. Convert the model before prepare_model(), or "
              "call prepare_model(worker, model) again right after converting it",
              slot.name, shape_of(slot.parameter), worker.rank(), worker.world_size())};
}

[[noreturn]] inline void refuse_repeat(const Worker& worker, const GradientSlot& slot, std::uint64_t step) {
  throw ConfigError{compose(
      "backward() on rank {}/{}: the parameter \"{}\" got more of its gradient in step {} after that was exchanged; "
      "until now it came in one part. Set ModelOptions::overlap to off where checkpointing computes a parameter's "
      "gradient in several parts",
      worker.rank(), worker.world_size(), slot.name, step)};
}

[[noreturn]] inline void refuse_second_pass(const Worker& worker, std::uint64_t step) {
  throw ConfigError{
      compose("backward() on rank {}/{} was called twice in step {}, which has several micro-batches: add the "
              "losses and call backward() once for each micro-batch",
              worker.rank(), worker.world_size(), step)};
}

// A half type ends at 65,504, and micro-batches are weighted before they are accumulated.
inline void refuse_half(const Worker& worker, const std::vector<GradientSlot>& slots) {
  for (const GradientSlot& slot : slots) {
    if (slot.parameter.scalar_type() != at::ScalarType::Half) continue;
    throw ConfigError{
        compose("worker.samples() on rank {}/{} began a step of several micro-batches, and the parameter \"{}\" is of "
                "type f16, in which a gradient times its samples may overflow: train with bf16 or f32, or without "
                "micro-batches",
                worker.rank(), worker.world_size(), slot.name)};
  }
}

// All models of a worker are exchanged together, so the options of one are those of all.
inline void refuse_other_options(const Worker& worker, const ModelOptions& before, const ModelOptions& now) {
  const std::string first = describe(before);
  const std::string second = describe(now);
  if (first == second) return;
  throw ConfigError{
      compose("prepare_model on rank {}/{}: another prepared model, or a prepared optimizer, goes by the ModelOptions "
              "{}; this call gives {}. All models of a worker are exchanged together: give the same to each",
              worker.rank(), worker.world_size(), first, second)};
}

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/flat_reduction.hpp
// Averages gradients by the collectives of any backend, in flat buffers. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

namespace railyard::inline v0_1 {

namespace detail {

// Whether every value is finite; of a sparse tensor those that it holds.
[[nodiscard]] inline bool is_all_finite(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return is_all_finite(tensor._values());
  if (tensor.is_cpu() && tensor.is_non_overlapping_and_dense() && tensor.scalar_type() == at::ScalarType::Float) {
    const std::array<const float*, 1> source{tensor.data_ptr<float>()};
    return sum(SumTask<float>{.sources = source, .count = static_cast<std::size_t>(tensor.numel())});
  }
  return at::isfinite(tensor).all().item<bool>();
}

// For each bucket one small all-reduce says what the ranks have; then all gradients that somebody gives are copied into
// one flat tensor per dtype and device, summed, and copied back. With the first bucket the ranks also learn of each
// other's samples.
//
// Used by one thread at a time.
class FlatReduction {
 public:
  explicit FlatReduction(Worker& worker) : worker_(&worker) {}

  // Sums from here on beside the worker's operations.
  void use_side(SideLine& side) noexcept { side_ = &side; }

  // See HostReduction.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, AnyCommHook& hook) {
    slots_ = &slots;
    header_ = header;
    hook_ = &hook;
    summary_ = {};
  }

  // Tells what this rank has of the next bucket, and learns what all have.
  [[nodiscard]] BucketUse open(const Bucket& bucket) {
    const bool is_first = summary_.headers.empty();
    std::vector<double> numbers = is_first ? numbers_of_header() : std::vector<double>{};
    const std::size_t first_slot = numbers.size();
    for (const std::size_t index : bucket) {
      const GradientSlot& slot = (*slots_)[index];
      numbers.push_back(slot.used ? 1.0 : 0.0);
      numbers.push_back(has_samples() && slot.parameter.grad().defined() ? 1.0 : 0.0);
    }
    if (worker_->world_size() > 1) all_reduce(buffer_of(numbers));
    if (is_first) summarise(numbers);
    BucketUse use;
    for (std::size_t at = first_slot; at < numbers.size(); at += 2) {
      use.num_using.push_back(static_cast<std::uint32_t>(numbers[at]));
      use.num_giving.push_back(static_cast<std::uint32_t>(numbers[at + 1]));
    }
    return use;
  }

  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

  // See HostReduction::average(); the result is the same on all ranks.
  [[nodiscard]] bool average(const OpenSlots& slots, bool is_weighted) {
    bool is_finite = true;
    OpenSlots open = slots;
    while (!open.empty()) {
      OpenSlots alike;
      OpenSlots others;
      for (const auto& one : open) {
        (are_alike(*one.second, *open.front().second) ? alike : others).push_back(one);
      }
      is_finite &= average_alike(alike, is_weighted);
      open = std::move(others);
    }
    return is_finite;
  }

  // See HostReduction.
  [[nodiscard]] std::uint64_t take_bytes() noexcept { return std::exchange(num_bytes_, 0); }

  // Ends every wait beside the worker's operations, from any thread.
  void abort(std::string_view reason) noexcept {
    if (side_ != nullptr) side_->abort(reason);
  }

 private:
  [[nodiscard]] bool has_samples() const noexcept { return header_.samples > 0; }

  void all_reduce(const Buffer& data) {
    if (side_ == nullptr) return worker_->all_reduce(data, ReduceOp::sum);
    side_->all_reduce(data, ReduceOp::sum, {.deadline = worker_->collective_deadline()});
  }

  // The sum of squares over all ranks is least when all are equal.
  [[nodiscard]] std::vector<double> numbers_of_header() const {
    std::vector<double> numbers{header_.samples, static_cast<double>(header_.silent),
                                static_cast<double>(header_.wants_stop), static_cast<double>(header_.has_ended)};
    for (const std::uint64_t place : {header_.loop, header_.step, header_.pass}) {
      const auto number = static_cast<double>(place);
      numbers.insert(numbers.end(), {number, number * number});
    }
    return numbers;
  }

  void summarise(const std::vector<double>& sums) {
    summary_ = {.headers = {header_},
                .samples = sums[0],
                .num_silent = static_cast<std::uint32_t>(sums[1]),
                .num_stopping = static_cast<std::uint32_t>(sums[2]),
                .num_ended = static_cast<std::uint32_t>(sums[3])};
    for (const std::size_t at : {4U, 6U, 8U}) {
      if (sums[at + 1] * worker_->world_size() == sums[at] * sums[at]) continue;
      summary_.headers = gather();
      return;
    }
  }

  [[nodiscard]] std::vector<PassHeader> gather() {
    const auto size = static_cast<std::size_t>(worker_->world_size());
    std::vector<std::int64_t> places(3 * size);
    const std::size_t own = 3 * static_cast<std::size_t>(worker_->rank());
    places[own] = static_cast<std::int64_t>(header_.step);
    places[own + 1] = static_cast<std::int64_t>(header_.pass);
    places[own + 2] = static_cast<std::int64_t>(header_.loop);
    all_reduce(buffer_of(places));
    std::vector<PassHeader> headers;
    for (std::size_t at = 0; at < places.size(); at += 3) {
      headers.push_back({.num_slots = header_.num_slots,
                         .step = static_cast<std::uint64_t>(places[at]),
                         .pass = static_cast<std::uint64_t>(places[at + 1]),
                         .loop = static_cast<std::uint64_t>(places[at + 2])});
    }
    return headers;
  }

  [[nodiscard]] static bool are_alike(const GradientSlot& one, const GradientSlot& other) {
    return one.sum_type() == other.sum_type() && one.parameter.device() == other.parameter.device();
  }

  [[nodiscard]] bool average_alike(const OpenSlots& slots, bool is_weighted) {
    std::int64_t count = 0;
    for (const auto& one : slots) count += one.second->real_count();
    const auto options =
        at::TensorOptions{}.dtype(slots.front().second->sum_type()).device(slots.front().second->parameter.device());
    const at::Tensor flat = at::empty({count}, options);
    num_bytes_ += 2 * flat.nbytes();
    visit_parts(slots, flat, [this](const at::Tensor& part, const GradientSlot& slot) {
      const at::Tensor& gradient = slot.parameter.grad();
      if (!has_samples() || !gradient.defined()) {
        part.zero_();  // left out, not multiplied by zero: it may be NaN
      } else {
        part.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
      }
    });
    if (has_samples() && !is_weighted) flat.mul_(header_.samples);
    if (*hook_) {
      std::vector<at::Tensor> parts;
      std::vector<std::size_t> ids;
      visit_parts(slots, flat, [&parts](const at::Tensor& part, const GradientSlot&) { parts.push_back(part); });
      for (const auto& one : slots) ids.push_back(one.first);
      hook_->all_reduce(*worker_, {.flat = flat, .parts = parts, .ids = ids});
    } else {
      all_reduce(buffer_of(flat));
    }
    flat.div_(summary_.samples);
    visit_parts(slots, flat,
                [](const at::Tensor& part, const GradientSlot& slot) { as_real(slot.dense_gradient()).copy_(part); });
    return is_all_finite(flat);
  }

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

// ---- railyard/torch/detail/step_clock.hpp
// Divides the time of a training loop into what it is spent on. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// Is told when the loop goes from one thing to the next. Used by the worker's own thread.
class StepClock {
 public:
  using Clock = Deadline::Clock;
  enum class Part : std::uint8_t { compute, wait, communication, optimizer };

  // Ends what was going on, whose time it adds, and begins a part.
  void enter(Part part) noexcept {
    const auto now = Clock::now();
    if (is_running_) spent_[static_cast<std::size_t>(part_)] += std::chrono::duration<double>(now - since_).count();
    is_running_ = true;
    since_ = now;
    part_ = part;
  }
  void count_step(std::uint64_t bytes) noexcept {
    ++counts_.steps;
    counts_.bytes += bytes;
  }

  // What this rank has waited in all: whoever waits least is waited for.
  [[nodiscard]] double waited() const noexcept { return spent_on(Part::wait); }
  void set_waits_of_all(std::vector<double> waits) { waits_ = std::move(waits); }

  // Since the first exchange.
  [[nodiscard]] StepTimes total(int world_size) {
    if (is_running_) enter(part_);
    StepTimes times = counts_;
    times.compute = spent_on(Part::compute);
    times.wait = spent_on(Part::wait);
    times.communication = spent_on(Part::communication);
    times.optimizer = spent_on(Part::optimizer);
    if (waits_.size() == static_cast<std::size_t>(world_size) && world_size > 1) {
      times.slowest_rank = static_cast<int>(std::min_element(waits_.begin(), waits_.end()) - waits_.begin());
    }
    return times;
  }

  // Since the last call, or the first exchange.
  [[nodiscard]] StepTimes take(int world_size) {
    StepTimes times = total(world_size);
    const StepTimes before = std::exchange(taken_, times);
    times.steps -= before.steps;
    times.bytes -= before.bytes;
    times.compute -= before.compute;
    times.wait -= before.wait;
    times.communication -= before.communication;
    times.optimizer -= before.optimizer;
    return times;
  }

 private:
  [[nodiscard]] double spent_on(Part part) const noexcept { return spent_[static_cast<std::size_t>(part)]; }

  bool is_running_ = false;
  Part part_ = Part::compute;
  Clock::time_point since_{};
  std::array<double, 4> spent_{};
  StepTimes counts_{};  // steps and bytes alone
  StepTimes taken_{};
  std::vector<double> waits_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/detail/host_reduction.hpp
// Averages gradients where they lie, in memory that all ranks of the host see. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace railyard::inline v0_1 {

namespace detail {

// The exchange of one pass takes a step for each bucket, in which all ranks learn where its gradients lie; then each
// rank adds its own part of all of them, in the order of ranks, and writes the mean to every rank. One more step tells
// that all have. With the first bucket the ranks also learn of each other's samples. Where a rank has no gradient for
// what others have used, one step more gives it one.
//
// Used by one thread at a time.
class HostReduction {
 public:
  HostReduction(Worker& worker, HostMemory& memory) : worker_(&worker), memory_(&memory) {}
  HostReduction(const HostReduction&) = delete;
  HostReduction& operator=(const HostReduction&) = delete;
  ~HostReduction() { memory_->heap()->deallocate(table_); }

  // Takes its steps from here on beside the backend's operations.
  void use_side() noexcept {
    if (HostMemory* side = memory_->side()) memory_ = side;
  }

  // Begins a pass over slots that outlive it, before anybody is told.
  void begin(std::vector<GradientSlot>& slots, const PassHeader& header, std::size_t num_buckets) {
    reserve_table(slots.size());
    slots_ = &slots;
    header_ = header;
    num_buckets_ = num_buckets;
    summary_ = {};
  }

  // Shows this rank's gradients of the next bucket and waits for all ranks'.
  [[nodiscard]] BucketUse open(const Bucket& bucket, StepClock& clock) {
    for (const std::size_t index : bucket) {
      GradientSlot& slot = (*slots_)[index];
      const bool has_gradient = slot.parameter.grad().defined();
      Entry& entry = table_[index];
      entry = {.place = 0,
               .late_place = 0,
               .used = slot.used ? 1U : 0U,
               .gives = header_.samples > 0 && has_gradient ? 1U : 0U};
      // What nobody may need is shown only where that costs nothing.
      if (has_gradient && (slot.used || is_in_place(slot))) entry.place = show(slot, entry.gives != 0);
    }
    const bool is_first = summary_.headers.empty();
    const Record record{.header = header_, .table = memory_->place_of(table_)};
    const auto shown = std::as_bytes(std::span{&record, 1});
    clock.enter(StepClock::Part::wait);
    if (is_first) {
      memory_->begin(Purpose::gradients, shown, static_cast<int>(num_buckets_) + 1, worker_->collective_deadline());
      summarise();
    } else {
      memory_->step({});
    }
    clock.enter(StepClock::Part::communication);
    return use_of(bucket);
  }

  // What the ranks have told with the first bucket.
  [[nodiscard]] const PassSummary& summary() const noexcept { return summary_; }

  // Leaves the mean in the gradients of the given slots, which somebody gives, or beside them until close(). Where
  // is_weighted the gradients have been multiplied with the samples behind them before. Returns whether all results of
  // this rank's part are finite.
  [[nodiscard]] bool average(const OpenSlots& open, bool is_weighted, StepClock& clock) {
    if (lacks_place(open)) {
      for (const auto& [index, slot] : open) {
        if (table_[index].place == 0) table_[index].late_place = show(*slot, table_[index].gives != 0);
      }
      memory_->add_step();
      take_step({}, clock);
    }
    const bool is_finite = add_own_part(open, is_weighted);
    memory_->rest();
    return is_finite;
  }

  // Ends the pass: all that was open has its mean. Returns whether all ranks have found their results finite.
  [[nodiscard]] bool close(const OpenSlots& open, bool is_finite, StepClock& clock) {
    std::uint8_t is_bad = is_finite ? 0 : 1;
    take_step(std::as_bytes(std::span{&is_bad, 1}), clock);
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      if (memory_->record_of(rank)[0] != std::byte{0}) is_bad = 1;
    }
    for (const auto& one : open) {
      GradientSlot& slot = *one.second;
      if (slot.piece.lock()) {
        slot.parameter.mutable_grad().reset();  // it is not the mean, which nobody has all of
      } else if (!is_in_place(slot)) {
        as_real(slot.dense_gradient()).copy_(slot.stage);
      }
    }
    return is_bad == 0;
  }

  // Bytes of gradients that this rank has read and written since the last call.
  [[nodiscard]] std::uint64_t take_bytes() noexcept { return std::exchange(num_bytes_, 0); }

  // Ends a pass of which all ranks know that nothing more comes.
  void cancel() { memory_->step({}); }

  // Ends every wait of this rank, from any thread.
  void abort(std::string_view reason) noexcept { memory_->abort(reason); }
  // After that: returns once nobody is at this rank's gradients.
  void withdraw() noexcept { memory_->withdraw(); }

 private:
  void take_step(std::span<const std::byte> record, StepClock& clock) {
    clock.enter(StepClock::Part::wait);
    memory_->step(record);
    clock.enter(StepClock::Part::communication);
  }

  struct Entry {
    std::uint64_t place = 0;
    std::uint64_t late_place = 0;  // where there was none in the first step, which others may still be looking at
    std::uint32_t used = 0;
    std::uint32_t gives = 0;
  };
  struct Record {
    PassHeader header{};
    std::uint64_t table = 0;
  };

  void reserve_table(std::size_t size) {
    if (size <= table_size_) return;
    memory_->heap()->deallocate(std::exchange(table_, nullptr));
    table_size_ = 0;
    table_ = static_cast<Entry*>(allocate(size * sizeof(Entry)));
    table_size_ = size;
  }

  [[nodiscard]] void* allocate(std::size_t size_bytes) const {
    if (void* memory = memory_->heap()->allocate(size_bytes)) return memory;
    throw Error{
        fmt::format("there is no room for {} more bytes of gradients in the memory that rank {}/{} shares with the "
                    "others: see the limits of address space (ulimit -v) and of the container's memory",
                    size_bytes, worker_->rank(), worker_->world_size())};
  }

  void summarise() {
    tables_.clear();
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      Record record;
      const auto shown = memory_->record_of(rank);
      if (shown.size() != sizeof record) {
        throw Error{compose("rank {} shows {} bytes of its gradients to rank {}, not {}: do all ranks run one program?",
                            rank, shown.size(), worker_->rank(), sizeof record)};
      }
      std::memcpy(&record, shown.data(), sizeof record);
      tables_.push_back(reinterpret_cast<const Entry*>(memory_->at(rank, record.table)));
      summary_.headers.push_back(record.header);
      summary_.samples += record.header.samples;
      summary_.num_silent += record.header.silent;
      summary_.num_stopping += record.header.wants_stop;
      summary_.num_ended += record.header.has_ended;
    }
  }

  [[nodiscard]] BucketUse use_of(const Bucket& bucket) const {
    BucketUse use;
    for (const std::size_t index : bucket) {
      std::uint32_t num_using = 0;
      std::uint32_t num_giving = 0;
      for (std::size_t rank = 0; rank < tables_.size(); ++rank) {
        if (index >= summary_.headers[rank].num_slots) continue;
        num_using += tables_[rank][index].used;
        num_giving += tables_[rank][index].gives;
      }
      use.num_using.push_back(num_using);
      use.num_giving.push_back(num_giving);
    }
    return use;
  }

  // Whether the other ranks can read and write the gradient itself, as elements of the sum in the parameter's order.
  [[nodiscard]] bool is_in_place(GradientSlot& slot) const {
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined() || gradient.layout() != c10::kStrided || !gradient.is_cpu()) return false;
    const at::ScalarType type = gradient.scalar_type();
    if (type != slot.parameter.scalar_type() || type == at::ScalarType::Half || type == at::ScalarType::BFloat16) {
      return false;
    }
    if (gradient.is_conj() || gradient.is_neg()) return false;
    if (gradient.strides() != at::IntArrayRef{slot.gradient_strides()}) return false;
    return memory_->place_of(gradient.data_ptr()) != 0;
  }

  // Makes sure that the others see memory of this slot, with the gradient in it if it counts. Returns the place.
  [[nodiscard]] std::uint64_t show(GradientSlot& slot, bool gives) {
    if (!slot.parameter.grad().defined()) static_cast<void>(slot.dense_gradient());
    if (is_in_place(slot)) return memory_->place_of(slot.parameter.grad().data_ptr());
    if (!slot.stage.defined()) slot.stage = make_stage(slot);
    const at::Tensor& gradient = slot.parameter.grad();
    if (gives) slot.stage.copy_(as_real(gradient.is_sparse() ? gradient.to_dense() : gradient));
    return memory_->place_of(slot.stage.data_ptr());
  }

  [[nodiscard]] at::Tensor make_stage(GradientSlot& slot) const {
    std::vector<std::int64_t> sizes = slot.parameter.sizes().vec();
    std::vector<std::int64_t> strides = slot.gradient_strides();
    if (slot.parameter.is_complex()) {
      for (std::int64_t& stride : strides) stride *= 2;
      sizes.push_back(2);
      strides.push_back(1);
    }
    const auto type = slot.sum_type();
    const auto size_bytes = static_cast<std::size_t>(slot.real_count()) * c10::elementSize(type);
    void* memory = allocate(std::max<std::size_t>(size_bytes, 1));
    return at::from_blob(memory, sizes, strides, Heap::give_back, at::TensorOptions{}.dtype(type));
  }

  [[nodiscard]] bool lacks_place(const OpenSlots& open) const {
    for (const auto& one : open) {
      for (const Entry* table : tables_) {
        if (table[one.first].place == 0) return true;
      }
    }
    return false;
  }

  // All open gradients one after another, each beginning at a whole cache line, are cut into one part per rank.
  [[nodiscard]] bool add_own_part(const OpenSlots& open, bool is_weighted) {
    std::vector<std::int64_t> counts;
    for (const auto& one : open) {
      if (one.second->piece.expired()) counts.push_back(one.second->real_count());
    }
    RankPart part{counts, worker_->rank(), worker_->world_size()};
    bool is_finite = true;
    for (const auto& [index, slot] : open) {
      if (const auto piece = slot->piece.lock()) {
        if (!piece->is_empty()) is_finite &= add_piece(index, *slot, *piece, is_weighted);
        continue;
      }
      const auto [begin, end] = part.next(slot->real_count());
      if (begin < end) {
        const bool is_double = slot->sum_type() == at::ScalarType::Double;
        const Range range{static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
        is_finite &= is_double ? add<double>(index, range, is_weighted) : add<float>(index, range, is_weighted);
      }
    }
    return is_finite;
  }

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  template <class T>
  [[nodiscard]] bool add(std::size_t index, const Range& range, bool is_weighted) {
    std::vector<T*> targets;
    for (int rank = 0; rank < worker_->world_size(); ++rank) targets.push_back(at<T>(rank, index) + range.begin);
    return add_to<T>(targets, index, range, is_weighted);
  }

  template <class T>
  [[nodiscard]] T* at(int rank, std::size_t index) const noexcept {
    const Entry& entry = tables_[static_cast<std::size_t>(rank)][index];
    return reinterpret_cast<T*>(memory_->at(rank, entry.place != 0 ? entry.place : entry.late_place));
  }

  template <class T>
  [[nodiscard]] bool add_to(std::span<T* const> targets, std::size_t index, const Range& range, bool is_weighted) {
    std::vector<const T*> sources;
    std::vector<T> weights;
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      if (tables_[static_cast<std::size_t>(rank)][index].gives == 0) continue;  // left out, not multiplied by zero: NaN
      sources.push_back(at<T>(rank, index) + range.begin);
      weights.push_back(static_cast<T>(summary_.headers[static_cast<std::size_t>(rank)].samples));
    }
    SumTask<T> task{.targets = targets, .sources = sources, .count = range.end - range.begin};
    task.divisor = static_cast<T>(summary_.samples);
    const bool is_all_of_it = weights.size() == 1 && weights[0] == task.divisor;
    if (is_all_of_it && !is_weighted) {
      task.divisor = T{1};  // n x gradient / n need not be the gradient
    } else if (!is_weighted) {
      task.weights = weights.data();
    }
    num_bytes_ += (sources.size() + targets.size()) * task.count * sizeof(T);
    return sum(task);
  }

  // Adds this rank's piece to the gradient of the piece alone.
  [[nodiscard]] bool add_piece(std::size_t index, const GradientSlot& slot, GradientPiece& piece, bool is_weighted) {
    const at::Tensor total = at::empty({piece.end - piece.begin}, at::TensorOptions{}.dtype(slot.sum_type()));
    const Range range{static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.end)};
    bool is_finite = true;
    if (slot.sum_type() == at::ScalarType::Double) {
      const std::array<double*, 1> target{total.data_ptr<double>()};
      is_finite = add_to<double>(target, index, range, is_weighted);
    } else {
      const std::array<float*, 1> target{total.data_ptr<float>()};
      is_finite = add_to<float>(target, index, range, is_weighted);
    }
    at::Tensor& gradient = piece.weights.mutable_grad();
    const at::Tensor added = total.to(piece.weights.scalar_type());
    if (gradient.defined()) {
      gradient.add_(added);  // another backward pass of the same step
    } else {
      gradient = added;
    }
    return is_finite;
  }

  Worker* worker_;
  HostMemory* memory_;
  Entry* table_ = nullptr;  // what this rank shows of its gradients, by slot
  std::size_t table_size_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::vector<GradientSlot>* slots_ = nullptr;  // of the pass under way, as all that follows
  PassHeader header_{};
  std::size_t num_buckets_ = 0;
  PassSummary summary_{};
  std::vector<const Entry*> tables_{};  // what all ranks have shown, by rank
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
  bool is_weighted = false;   // gradients have been multiplied with the samples behind them
  bool checks_finite = true;  // somebody wants to know
  bool uses_host = false;     // gradients are summed where they lie
};

// Used by one thread at a time: a worker's own, or its communication thread.
class PassExchange {
 public:
  explicit PassExchange(Worker& worker) : worker_(&worker), flat_(worker) {
    HostMemory* memory = worker.host_memory();
    if (memory != nullptr && worker.world_size() > 1) host_.emplace(worker, *memory);
  }

  // Whether the ranks see each other's memory.
  [[nodiscard]] bool has_host() const noexcept { return host_.has_value(); }

  // Exchanges from here on beside the operations of the worker, so that another thread may do it. All ranks call it.
  // Returns whether the backend can.
  [[nodiscard]] bool move_aside(bool uses_host) {
    if (uses_host) {
      host_->use_side();
      return true;
    }
    SideLine* side = worker_->side_line();
    if (side != nullptr) flat_.use_side(*side);
    return side != nullptr;
  }

  // Begins a pass; all that is given outlives it.
  void begin(std::vector<GradientSlot>& slots, const std::vector<Bucket>& buckets, const PassTerms& terms,
             AnyCommHook& hook) {
    slots_ = &slots;
    buckets_ = &buckets;
    terms_ = terms;
    num_taken_ = 0;
    open_.clear();
    is_finite_ = true;
    is_under_way_ = true;
    if (terms_.uses_host) {
      host_->begin(slots, terms_.header, buckets.size());
    } else {
      flat_.begin(slots, terms_.header, hook);
    }
  }

  [[nodiscard]] bool is_under_way() const noexcept { return is_under_way_; }

  // Exchanges the next bucket.
  void take_bucket(StepClock& clock) {
    const Bucket& bucket = (*buckets_)[num_taken_];
    clock.enter(StepClock::Part::communication);
    const BucketUse use = terms_.uses_host ? host_->open(bucket, clock) : flat_.open(bucket);
    if (num_taken_++ == 0) check();
    OpenSlots open;
    for (std::size_t at = 0; at < bucket.size(); ++at) {
      GradientSlot& slot = (*slots_)[bucket[at]];
      if (use.num_using[at] == 0) continue;  // unused everywhere: stays as it was
      if (use.num_giving[at] == 0) {
        // Used by ranks without samples only, so nothing may remain of it.
        slot.parameter.mutable_grad().reset();
      } else {
        open.emplace_back(bucket[at], &slot);
      }
    }
    if (worker_->world_size() == 1) {
      is_finite_ &= finish_alone(open);
    } else if (terms_.uses_host) {
      is_finite_ &= host_->average(open, terms_.is_weighted, clock);
    } else {
      is_finite_ &= flat_.average(open, terms_.is_weighted);
    }
    open_.insert(open_.end(), open.begin(), open.end());
  }

  // Exchanges what is left and ends the pass. Returns whether all averages are finite.
  [[nodiscard]] bool finish(StepClock& clock) {
    while (num_taken_ < buckets_->size()) take_bucket(clock);
    if (terms_.uses_host) {
      is_finite_ = host_->close(open_, is_finite_, clock);
      std::vector<double> waits;
      for (const PassHeader& header : summary().headers) waits.push_back(header.waited);
      clock.set_waits_of_all(std::move(waits));
    }
    clock.count_step(terms_.uses_host ? host_->take_bytes() : flat_.take_bytes());
    is_under_way_ = false;
    return is_finite_;
  }

  // What all ranks have told of the pass.
  [[nodiscard]] const PassSummary& summary() const noexcept {
    return terms_.uses_host ? host_->summary() : flat_.summary();
  }
  // The slots that have been averaged.
  [[nodiscard]] const OpenSlots& open() const noexcept { return open_; }

  // Ends every wait of this rank in a pass that moved aside, from any thread.
  void abort(std::string_view reason) noexcept { terms_.uses_host ? host_->abort(reason) : flat_.abort(reason); }
  // After that, by the thread that exchanges: returns once nobody is at this rank's gradients.
  void withdraw() noexcept {
    if (terms_.uses_host) host_->withdraw();
    is_under_way_ = false;
  }

 private:
  // A single worker's gradients are what they are, but for the weights of micro-batches.
  [[nodiscard]] bool finish_alone(const OpenSlots& open) const {
    bool is_finite = true;
    for (const auto& one : open) {
      at::Tensor& gradient = one.second->parameter.mutable_grad();
      if (terms_.is_weighted) gradient.div_(terms_.header.samples);
      if (terms_.checks_finite) is_finite &= is_all_finite(gradient);
    }
    return is_finite;
  }

  void check() {
    try {
      check_silence();
      check_together();
      check_samples();
    } catch (...) {  // on all ranks alike; nobody may go on while another still reads what it has shown
      is_under_way_ = false;
      if (terms_.uses_host) host_->cancel();
      throw;
    }
  }

  void check_silence() const {
    if (summary().num_silent == 0) return;
    throw ConfigError{
        compose("backward() on rank {}/{}: {} of the ranks did not say how many samples are behind their gradients, "
                "which is what they are weighted with. Set .drives_step = true on the training loader, or call "
                "worker.samples(n) before backward()",
                worker_->rank(), worker_->world_size(), summary().num_silent)};
  }

  void check_samples() const {
    if (summary().samples > 0) return;
    throw ConfigError{
        compose("backward() on rank {}/{}: worker.samples(0) was called on every rank, so there is nothing to average; "
                "leave the step out on all ranks instead",
                worker_->rank(), worker_->world_size())};
  }

  // Ranks that are at different steps would average what does not belong together.
  void check_together() const {
    const std::vector<PassHeader>& headers = summary().headers;
    const PassHeader& first = headers.front();
    for (std::size_t rank = 1; rank < headers.size(); ++rank) {
      const PassHeader& other = headers[rank];
      if (first.is_together_with(other)) continue;
      if (first.num_slots != other.num_slots) {
        throw ConfigError{
            compose("backward() on rank {}/{}: rank {} has prepared {} parameters and rank 0 {}: all ranks must call "
                    "prepare_model() for the same models",
                    worker_->rank(), worker_->world_size(), rank, other.num_slots, first.num_slots)};
      }
      if (first.loop != other.loop) {
        throw ConfigError{compose(
            "backward() on rank {}/{}: in its step {} rank {} goes over the training data for the {}. time, rank 0 in "
            "its step {} for the {}. A rank has left its loop earlier than the others (by break, or an exception that "
            "was caught); all ranks must leave it at the same step: decide by worker.should_stop()",
            worker_->rank(), worker_->world_size(), other.step, rank, other.loop, first.step, first.loop)};
      }
      throw ConfigError{compose(
          "backward() on rank {}/{}: rank {} is in backward pass {} of its step {}, rank 0 in pass {} of its step {}. "
          "A rank has left out a backward() (by continue, or a loss that uses no prepared parameter) or has called one "
          "more; all ranks must call it equally often in every step",
          worker_->rank(), worker_->world_size(), rank, other.pass + 1, other.step, first.pass + 1, first.step)};
    }
  }

  Worker* worker_;
  FlatReduction flat_;
  std::optional<HostReduction> host_{};  // where the ranks share memory
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

// ---- railyard/torch/detail/worker_pool.hpp
// Gives a worker its pool of memory for tensors. Torch room.

namespace railyard::inline v0_1 {

namespace detail {

// Ends with the worker, on its thread. Tensors may live on.
struct WorkerPool {
  static constexpr std::string_view extension_name = "torch.pool";
  std::optional<PoolBinding> binding{};
};

// Lets the worker's thread take its tensors from memory that the other ranks see, if the backend has such.
inline void bind_pool(Worker& worker) {
  auto& pool = worker.extension<WorkerPool>();
  if (pool.binding) return;
  std::shared_ptr<Heap> heap;
  if (HostMemory* memory = worker.host_memory()) {
    heap = memory->heap();
  } else {
    heap = make_private_heap(physical_memory(), ~std::size_t{0});
  }
  if (heap != nullptr) pool.binding.emplace(std::move(heap));
}

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
  explicit GradientExchange(Worker& worker) : worker_(&worker), exchange_(worker) {}
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Takes a model's parameter in. One that is known already, such as a tied one, is hooked anew if need be.
  static void add(const std::shared_ptr<GradientExchange>& self, const std::string& name, const at::Tensor& parameter) {
    const auto [known, is_new] = self->known_.emplace(parameter.unsafeGetTensorImpl(), self->slots_.size());
    if (is_new) {
      self->slots_.push_back({.name = name, .parameter = parameter});
      hook(self, self->slots_.size() - 1);
      return;
    }
    GradientSlot& slot = self->slots_[known->second];
    slot.has_begun = false;
    if (has_lost_hook(slot)) hook(self, known->second);
  }

  // The slot of a parameter, nullptr if it is of no prepared model.
  [[nodiscard]] GradientSlot* find(const at::Tensor& parameter) {
    const auto known = known_.find(parameter.unsafeGetTensorImpl());
    return known == known_.end() ? nullptr : &slots_[known->second];
  }

  // This rank's piece of a parameter whose weights ranks share, which the parameter's hook knows; nullptr of any other.
  [[nodiscard]] static std::shared_ptr<GradientPiece> piece_of(const at::Tensor& parameter) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
    if (!accumulator) return nullptr;
    for (const auto& any : accumulator->post_hooks()) {
      const auto* hook = dynamic_cast<const Hook*>(any.get());
      const auto exchange = hook == nullptr ? nullptr : hook->exchange();
      if (exchange == nullptr) continue;
      if (const GradientSlot* slot = exchange->find(parameter)) return slot->piece.lock();
    }
    return nullptr;
  }

  // Watches a model whose parameters have been added, for as long as it lives.
  void watch(const torch::nn::Module& module) {
    std::erase_if(modules_, [&module](const auto& weak) {
      const auto known = weak.lock();
      return !known || known.get() == &module;
    });
    modules_.push_back(module.weak_from_this());
    buffers_.clear();
    for (const auto& weak : modules_) {
      if (const auto known = weak.lock()) {
        for (const at::Tensor& buffer : known->buffers()) buffers_.push_back(buffer);
      }
    }
  }

  [[nodiscard]] StepClock& clock() noexcept { return clock_; }

  // Whether an optimizer may share the weights: the ranks see each other's memory, and gradients are summed there.
  [[nodiscard]] bool can_share_weights() const { return exchange_.has_host() && !options_.comm_hook; }

  [[nodiscard]] AnyCommHook& comm_hook() noexcept { return options_.comm_hook; }

  // Takes over what prepare_model() was told, after watch(): the same on all ranks, and for all models. A model that is
  // the only one may get others when it is prepared again.
  void set_options(const ModelOptions& options) {
    check_options_are_equal(*worker_, describe(options));
    const bool has_optimizer =
        std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return !slot.piece.expired(); });
    if (modules_.size() > 1 || has_optimizer) refuse_other_options(*worker_, options_, options);
    options_ = options;
    overlap_ =
        options.overlap == Overlap::off || worker_->world_size() == 1 ? Overlapping::never : Overlapping::undecided;
    observed_step_ = 0;
    schedule_.reset(slots_.size());
  }

  // Ends what goes on beside the worker's own thread.
  void end() noexcept {
    forget_pass();
    thread_.reset();
  }

  // Forgets the micro-batches of a step that will not be completed.
  void abandon_step() {
    if (window_.is_last) return;
    window_ = {.step = window_.step};
    drop_gradients();  // which are weighted, so that nobody can go on with them
    for (GradientSlot& slot : slots_) slot.used = false;
  }

  // Begins a micro-batch, and a step if the one before was its step's last. Makes sure that the backward pass will
  // reach every parameter of every model. .to(dtype or device) takes a parameter's hook away. Before the first step it
  // is hooked anew; later nobody can tell what has gone by.
  static void begin(const std::shared_ptr<GradientExchange>& self, std::uint64_t samples, bool completes_step) {
    for (std::size_t index = 0; index < self->slots_.size(); ++index) {
      GradientSlot& slot = self->slots_[index];
      if (has_lost_hook(slot)) {
        if (slot.has_begun) refuse_converted(*self->worker_, slot);
        hook(self, index);
      }
      slot.has_begun = true;
    }
    for (const auto& weak : self->modules_) {
      const auto module = weak.lock();
      if (module && !self->knows_all_of(*module)) self->refuse_unknown(*module);
    }
    if (self->window_.is_last) self->window_ = {.step = self->window_.step + 1};
    Window& window = self->window_;
    window.is_accumulating = window.is_accumulating || !completes_step;
    if (window.is_accumulating) refuse_half(*self->worker_, self->slots_);
    if (window.is_accumulating && !std::exchange(self->has_weights_, true)) {
      for (const GradientSlot& slot : self->slots_) {
        if (slot.accumulator) slot.accumulator->add_pre_hook(std::make_unique<Weight>(self));
      }
    }
    window.is_last = completes_step;
    window.micro_batch = samples;
    window.samples += samples;
    self->statistics_.forget();
    if (samples == 0) self->statistics_.keep(self->modules_);
  }

 private:
  // The micro-batches of one step.
  struct Window {
    std::uint64_t step = 0;         // counts from 1; 0 before the first
    std::uint64_t samples = 0;      // of this rank so far
    std::uint64_t micro_batch = 0;  // samples of the one under way
    bool is_accumulating = false;   // it has several: gradients are weighted before they are accumulated
    bool is_last = true;            // the step's last one has begun
    std::uint64_t num_passes = 0;   // that have been exchanged
    bool is_refused = false;        // one of them was not finite
  };

  // Lives as long as a pass's callback is queued. LibTorch queues it for the innermost pass, such as the one in which
  // checkpointing computes a part of another. When that has gone this one queues its successor, for the pass around it.
  class Pass {
   public:
    explicit Pass(std::shared_ptr<GradientExchange> exchange) : exchange_(std::move(exchange)) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      if (is_over_) return;
      try {
        if (is_inner_) {
          queue_end(exchange_);
          return;
        }
      } catch (const std::exception&) {  // there is no memory, or no pass around it
      }
      exchange_->abandon_pass();
    }

    void end() {
      is_inner_ = depth_of_pass() > 0;
      if (is_inner_) return;
      is_over_ = true;
      exchange_->end_pass();
    }

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
    Hook(std::weak_ptr<GradientExchange> exchange, std::size_t index) : exchange_(std::move(exchange)), index_(index) {}

    [[nodiscard]] std::shared_ptr<GradientExchange> exchange() const { return exchange_.lock(); }

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& inputs) override {
      if (const auto exchange = exchange_.lock()) {
        arrived(exchange, index_, inputs.empty() ? at::Tensor{} : inputs.front());
      }
      return outputs;
    }

   private:
    std::weak_ptr<GradientExchange> exchange_;
    std::size_t index_;
  };

  // Weights what a micro-batch adds to the gradient.
  class Weight final : public torch::autograd::FunctionPreHook {
   public:
    explicit Weight(std::weak_ptr<GradientExchange> exchange) : exchange_(std::move(exchange)) {}

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      const auto exchange = exchange_.lock();
      if (!exchange || !exchange->window_.is_accumulating) return gradients;
      const std::uint64_t samples = exchange->window_.micro_batch;
      torch::autograd::variable_list weighted;
      for (const at::Tensor& gradient : gradients) {
        // Left out, not multiplied by zero: it may be NaN.
        const bool counts = gradient.defined() && samples > 0;
        weighted.push_back(counts ? gradient * static_cast<double>(samples) : at::Tensor{});
      }
      return weighted;
    }

   private:
    std::weak_ptr<GradientExchange> exchange_;
  };

  [[nodiscard]] static bool has_lost_hook(const GradientSlot& slot) {
    return torch::autograd::impl::try_get_grad_accumulator(slot.parameter) != slot.accumulator;
  }

  // Walks by itself, for named_parameters() of the whole would put all names together in every step.
  [[nodiscard]] bool knows_all_of(const torch::nn::Module& module) const {
    const auto own = module.named_parameters(/*recurse=*/false);
    for (const auto& item : own) {
      if (!known_.contains(item.value().unsafeGetTensorImpl())) return false;
    }
    const auto children = module.children();
    return std::all_of(children.begin(), children.end(), [this](const auto& child) { return knows_all_of(*child); });
  }

  void refuse_unknown(const torch::nn::Module& module) const {
    for (const auto& item : module.named_parameters()) {
      if (known_.contains(item.value().unsafeGetTensorImpl())) continue;
      throw ConfigError{
          fmt::format("the parameter \"{}\" has come into a prepared model since prepare_model() on rank {}/{}, so its "
                      "gradients would not be averaged: build the model before prepare_model(), or call "
                      "prepare_model(worker, model) again after changing it",
                      item.key(), worker_->rank(), worker_->world_size())};
    }
  }

  static void hook(const std::shared_ptr<GradientExchange>& self, std::size_t index) {
    GradientSlot& slot = self->slots_[index];
    const bool is_frozen = !slot.parameter.requires_grad();
    // A frozen parameter has no accumulator to hook, and it may be thawed later, so it is thawed for a moment.
    if (is_frozen && !at::isFloatingType(slot.parameter.scalar_type()) &&
        !at::isComplexType(slot.parameter.scalar_type())) {
      return;
    }
    if (is_frozen) slot.parameter.set_requires_grad(true);
    slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
    if (is_frozen) slot.parameter.set_requires_grad(false);
    if (self->has_weights_) slot.accumulator->add_pre_hook(std::make_unique<Weight>(self));
    slot.accumulator->add_post_hook(std::make_unique<Hook>(self, index));
  }

  // Runs on the thread of the parameter's device.
  static void arrived(const std::shared_ptr<GradientExchange>& self, std::size_t index, const at::Tensor& added) {
    const std::lock_guard lock{self->mutex_};
    if (c10::GradMode::is_enabled()) {
      throw ConfigError{
          fmt::format("backward(create_graph=true) reached the parameter \"{}\" of a prepared model on rank "
                      "{}/{}: an averaged gradient cannot be differentiated. For a gradient penalty use "
                      "torch::autograd::grad(..., create_graph=true) and a plain backward() of the penalty",
                      self->slots_[index].name, self->worker_->rank(), self->worker_->world_size())};
    }
    if (self->pass_.expired()) queue_end(self);
    self->note_arrival(self->slots_[index], index, added);
  }

  static void queue_end(const std::shared_ptr<GradientExchange>& self) {
    auto pass = std::make_shared<Pass>(self);
    self->pass_ = pass;
    torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end(); });
  }

  void note_arrival(GradientSlot& slot, std::size_t index, const at::Tensor& added) {
    if (overlap_ != Overlapping::never && window_.is_last) {
      const bool is_first = !std::exchange(slot.has_arrived, true);
      if (schedule_.bucket_of(index) < num_handed_) refuse_repeat(*worker_, slot, window_.step);
      schedule_.arrive(index, is_first);
    }
    if (worker_->world_size() > 1) slot.own_memory(added);
    if (added.defined()) slot.used = true;
    if (overlap_ == Overlapping::active && window_.is_last) explained([this] { hand_over(); });
  }

  // Lets the communication thread exchange what is complete. The last bucket is so when the pass is about to end, and
  // is left to this thread.
  void hand_over() {
    if (num_handed_ > 0 && thread_->has_failed()) settle();
    const std::size_t num_ready = std::min(schedule_.num_ready(), schedule_.buckets().size() - 1);
    if (num_ready <= num_handed_) return;
    if (num_handed_ == 0) begin_exchange();
    thread_->ask(num_ready - num_handed_);
    num_handed_ = num_ready;
  }

  // Waits for what was handed over, and throws what has become of it.
  void settle() {
    num_handed_ = 0;
    thread_->settle();
  }

  void abandon_pass() noexcept {
    const std::lock_guard lock{mutex_};
    forget_pass();
  }

  // Lets nothing of a pass go on. If its exchange has begun and not ended, other ranks may be at this one's gradients,
  // which are about to go: the group is given up.
  void forget_pass() noexcept {
    constexpr std::string_view reason =
        "its backward() ended by an exception after it had begun to exchange gradients; with ModelOptions::overlap set "
        "to off a program can go on after that";
    if (num_handed_ > 0) {
      if (!thread_->has_failed()) exchange_.abort(reason);
      try {
        settle();
      } catch (...) {  // what this is about has been thrown already
      }
    }
    if (thread_ && exchange_.is_under_way()) {
      exchange_.abort(reason);
      exchange_.withdraw();
    }
    for (GradientSlot& slot : slots_) slot.has_arrived = false;
    schedule_.begin_pass();
  }

  void end_pass() {
    struct Forget {
      GradientExchange& exchange;
      ~Forget() { exchange.forget_pass(); }
    } const forget{*this};
    pass_.reset();
    explained([this] { exchange(); });
  }

  // The collective that has failed is none that the user has called.
  template <class Function>
  void explained(const Function& function) const {
    try {
      function();
    } catch (const CollectiveError& error) {
      throw CollectiveError{
          error.operation(), error.rank(), error.blamed(),
          compose("backward() on rank {}/{} exchanges gradients in step {} and could not finish: {}. All ranks must "
                  "call backward() equally often; a loss that uses no prepared parameter counts as not calling it, "
                  "and so does a break or continue on one rank alone",
                  worker_->rank(), worker_->world_size(), window_.step, error.what())};
    }
  }

  void exchange() {
    const at::NoGradGuard no_grad;
    for (const GradientSlot& slot : slots_) {
      if (has_lost_hook(slot)) refuse_converted(*worker_, slot);
    }
    statistics_.put_back();
    if (!window_.is_last) return;
    if (num_handed_ == 0) {
      begin_exchange();
    } else {
      clock_.enter(StepClock::Part::wait);
      settle();
    }
    const bool is_finite = exchange_.finish(clock_);
    for (GradientSlot& slot : slots_) slot.used = false;
    const PassSummary& summary = exchange_.summary();
    if (summary.headers.front().pass == 0) {
      const bool have_all_ended = summary.num_ended == static_cast<std::uint32_t>(worker_->world_size());
      worker_->control().hear(summary.num_stopping > 0, have_all_ended);
    }
    decide_on_overlap();
    sync_buffers(*worker_, buffers_, options_.buffers);
    if (statistics_.has_any()) statistics_.keep(modules_);  // for another pass of this step
    clock_.enter(StepClock::Part::compute);
    if (options_.non_finite == NonFinite::allow) return;
    if (!is_finite) {
      refuse_step(exchange_.open());
    } else if (window_.is_refused) {
      drop_gradients();
    }
  }

  void begin_exchange() {
    if (window_.is_accumulating && window_.num_passes > 0) refuse_second_pass(*worker_, window_.step);
    const PassTerms terms{.header = next_header(),
                          .is_weighted = window_.is_accumulating,
                          .checks_finite = options_.non_finite != NonFinite::allow,
                          .uses_host = uses_host()};
    exchange_.begin(slots_, schedule_.buckets(), terms, options_.comm_hook);
  }

  // One whole step tells in which order gradients come. That of rank 0 is everybody's from the next pass on.
  void decide_on_overlap() {
    if (overlap_ != Overlapping::undecided) return;
    if (observed_step_ == 0) observed_step_ = window_.step;
    if (observed_step_ == window_.step) return;
    overlap_ = Overlapping::never;
    std::int64_t allows = allows_overlap() && !schedule_.has_repeats() ? 1 : 0;
    worker_->all_reduce(buffer_of_value(allows), ReduceOp::min);
    if (allows == 0) return;
    auto num_observed = static_cast<std::int64_t>(schedule_.observed().size());
    worker_->broadcast(buffer_of_value(num_observed), 0);
    std::vector<std::int64_t> order = schedule_.observed();
    order.resize(static_cast<std::size_t>(num_observed));
    worker_->broadcast(buffer_of(order), 0);
    schedule_.cut(order, slots_, options_);
    if (schedule_.buckets().size() == 1 || !exchange_.move_aside(uses_host())) return schedule_.reset(slots_.size());
    if (!thread_) {
      const auto& pool = worker_->extension<WorkerPool>().binding;
      thread_ = std::make_unique<CommunicationThread>([this] { exchange_.take_bucket(aside_); },
                                                      pool ? pool->heap() : nullptr);
    }
    overlap_ = Overlapping::active;
  }

  [[nodiscard]] bool allows_overlap() const {
    if (options_.comm_hook || !are_all_on_cpu()) return false;
    return options_.overlap == Overlap::on || usable_cores() > worker_->local_world_size();
  }

  [[nodiscard]] bool uses_host() const { return can_share_weights() && are_all_on_cpu(); }

  // Counts the pass.
  [[nodiscard]] PassHeader next_header() {
    const ControlLane& control = worker_->control();
    return {.samples = static_cast<double>(window_.samples),
            .silent = worker_->step_samples() ? 0U : 1U,
            .num_slots = static_cast<std::uint32_t>(slots_.size()),
            .step = window_.step,
            .pass = window_.num_passes++,
            .loop = control.loop(),
            .waited = clock_.waited() + aside_.waited(),
            .wants_stop = worker_->wants_stop() ? 1U : 0U,
            .has_ended = control.has_ended() ? 1U : 0U};
  }

  [[nodiscard]] bool are_all_on_cpu() const {
    return std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.parameter.is_cpu(); });
  }

  // What the other passes of a step have left would be half a step.
  void drop_gradients() {
    for (const GradientSlot& slot : slots_) {
      slot.parameter.mutable_grad().reset();
      if (const auto piece = slot.piece.lock(); piece && !piece->is_empty()) piece->weights.mutable_grad().reset();
    }
  }

  // Leaves the step out on all ranks, or ends it, as all have found the same.
  void refuse_step(const OpenSlots& open) {
    std::string name;
    for (const auto& one : open) {
      const at::Tensor& gradient = one.second->parameter.grad();
      if (name.empty() && gradient.defined() && !is_all_finite(gradient)) name = one.second->name;
    }
    window_.is_refused = true;
    drop_gradients();
    ++num_skipped_;
    const std::string what = fmt::format("step {}: the gradient{}, averaged over all ranks, is not finite",
                                         window_.step, name.empty() ? "" : fmt::format(" of \"{}\"", name));
    if (options_.non_finite == NonFinite::stop) {
      throw DataError{fmt::format(
          "{} (backward() on rank {}/{}): look for NaNs in the data, lower the learning rate or clip; or set "
          "ModelOptions::non_finite to skip or allow",
          what, worker_->rank(), worker_->world_size())};
    }
    if (worker_->rank() == 0 && num_skipped_ == 1) {
      fmt::print(stderr, "railyard: {}; the step is left out on all ranks, as later ones will be without a word\n",
                 what);
    }
  }

  Worker* worker_;
  PassExchange exchange_;
  StepClock clock_{};
  ModelOptions options_{};
  Window window_{};
  bool has_weights_ = false;  // the accumulators have the hook that weights micro-batches
  std::uint64_t num_skipped_ = 0;
  std::vector<GradientSlot> slots_{};
  std::unordered_map<const void*, std::size_t> known_{};  // slots_ by parameter, which they keep alive
  std::vector<std::weak_ptr<const torch::nn::Module>> modules_{};
  std::vector<at::Tensor> buffers_{};
  RunningStatistics statistics_{};  // where the batch under way counts nothing
  std::weak_ptr<Pass> pass_{};
  Overlapping overlap_ = Overlapping::never;
  std::uint64_t observed_step_ = 0;  // the first one that shows the order
  BucketSchedule schedule_{};
  std::size_t num_handed_ = 0;  // buckets of the pass under way that are the communication thread's
  StepClock aside_{};           // of that thread
  std::unique_ptr<CommunicationThread> thread_{};
  std::mutex mutex_{};
};

// The worker's one exchange. Destroyed with the worker, and with it the hooks' effect.
struct Gradients {
  static constexpr std::string_view extension_name = "torch.gradients";
  std::shared_ptr<GradientExchange> exchange{};

  Gradients() = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() {
    if (exchange) exchange->end();
  }
};

[[nodiscard]] inline const std::shared_ptr<GradientExchange>& gradient_exchange_of(Worker& worker) {
  auto& gradients = worker.extension<Gradients>();
  if (!gradients.exchange) {
    gradients.exchange = std::make_shared<GradientExchange>(worker);
    worker.on_samples([weak = std::weak_ptr{gradients.exchange}](std::uint64_t samples, bool completes_step) {
      if (const auto exchange = weak.lock()) GradientExchange::begin(exchange, samples, completes_step);
    });
    worker.on_step_times([&worker, clock = &gradients.exchange->clock()] { return clock->total(worker.world_size()); });
    worker.on_abandoned_step([weak = std::weak_ptr{gradients.exchange}] {
      if (const auto exchange = weak.lock()) exchange->abandon_step();
    });
  }
  return gradients.exchange;
}

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
  explicit CommHookState(Worker& worker) : worker_(&worker) {}

  [[nodiscard]] State state() const { return hook().state(*worker_); }
  void load_state(const State& state) { hook().load_state(*worker_, state); }

 private:
  [[nodiscard]] AnyCommHook& hook() const { return detail::gradient_exchange_of(*worker_)->comm_hook(); }

  Worker* worker_;
};
static_assert(Stateful<CommHookState>);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/loader.hpp
// A worker's share of every batch of a dataset. Torch room.

#include <ATen/core/Tensor.h>

namespace railyard::inline v0_1 {

/// Says how prepare_loader() divides a dataset. Exactly one of the two sizes must be given: the learning rate depends
/// on what it is.
struct LoaderOptions {
  std::size_t global_batch_size = 0;      ///< samples of a batch, all workers together
  std::size_t batch_size_per_worker = 0;  ///< samples of a batch for each worker
  bool shuffle = false;                   ///< a new order every epoch; otherwise the dataset's own
  bool drives_step = false;               ///< the training loader: its batches are what gradients are weighted with
  /// A batch is given in so many parts, one after another, whose gradients accumulate: for batches that memory does not
  /// hold at once. The sizes above are still those of the whole, which one optimizer step is for.
  std::size_t micro_batches = 1;
};

/// Is one worker's part of a batch.
class Batch {
 public:
  at::Tensor data{};
  at::Tensor target{};  ///< undefined where the dataset has none

  Batch() = default;
  Batch(at::Tensor data_, at::Tensor target_, std::size_t size, bool completes_step = true)
      : data(std::move(data_)), target(std::move(target_)), size_(size), completes_step_(completes_step) {}

  /// The number of samples that count: those of data, or 0 where the batch had fewer samples than there are workers and
  /// this one has been given a sample of another worker's, to keep step. Weight sums with it.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether this is the last micro-batch of a step: then backward() averages, and it is time for optimizer.step().
  [[nodiscard]] bool completes_step() const noexcept { return completes_step_; }

 private:
  std::size_t size_ = 0;
  bool completes_step_ = true;
};

namespace detail {

// Reads the samples of the given indices as one batch.
using Fetch = std::function<std::pair<at::Tensor, at::Tensor>(const std::vector<std::size_t>& indices)>;

// Where a loader stands.
struct LoaderState {
  Worker* worker = nullptr;
  LoaderOptions options{};
  Fetch fetch{};
  std::size_t num_samples = 0;
  std::size_t global_batch_size = 0;
  std::int64_t epoch = -1;
  std::int64_t next_epoch = 0;
  std::size_t next_position = 0;  // samples of the next epoch that the run this one goes on from has consumed
  bool is_set = true;             // these two have been said since the last begin()
  std::uint64_t iteration = 0;    // tells an iterator that another begin() has come after its own
  std::vector<std::size_t> order{};
  std::size_t position = 0;   // samples of this epoch that all workers together have been given
  Range window{};             // the batch under way
  std::size_t num_parts = 0;  // in which it is given
  std::size_t next_part = 0;
  std::uint64_t num_ended = 0;  // steps when its last part was given
  std::optional<Batch> batch{};

  void start_epoch() {
    leave_epoch();
    epoch = next_epoch++;
    position = std::exchange(next_position, 0);
    is_set = false;
    window = {position, position};
    if (options.drives_step) {
      worker->end_step();  // what came after the last epoch belonged to its last step
      worker->control().begin_loop();
    }
    order = options.shuffle
                ? shuffled_indices(num_samples, derive_seed(worker->seed(), static_cast<std::uint64_t>(epoch)))
                : ordered_indices(num_samples);
    advance();
  }

  // Goes on to this worker's part of the next batch; batch is empty after the last one.
  void advance() {
    if (next_part == num_parts) {
      // The last step ends with the next begin(), or with a report of the state: whoever goes on from its end has
      // done what the loop does after an epoch.
      if (position >= num_samples) return batch.reset();
      if (options.drives_step) worker->end_step();  // while the batch that it was given still stands
      window = {position, position + std::min(global_batch_size, num_samples - position)};
      num_parts = std::min(options.micro_batches, window.size());
      next_part = 0;
    }
    batch.reset();
    const Range whole = part_of(window, next_part++, num_parts);
    const Range mine =
        part_of(whole, static_cast<std::size_t>(worker->rank()), static_cast<std::size_t>(worker->world_size()));
    const bool has_part = mine.size() > 0;
    const Range read = has_part ? mine : Range{whole.begin, whole.begin + 1};
    const auto first = order.begin();
    const std::vector<std::size_t> indices(first + static_cast<std::ptrdiff_t>(read.begin),
                                           first + static_cast<std::ptrdiff_t>(read.end));
    auto [data, target] = fetch(indices);
    check_count(data, indices.size());
    const at::Device home = device(*worker);
    batch.emplace(data.to(home), target.defined() ? target.to(home) : target, mine.size(), next_part == num_parts);
    position = whole.end;
    if (options.drives_step) announce(mine.size());
    num_ended = worker->steps();
  }

  // Makes the next begin() start there.
  void set_place(std::int64_t new_epoch, std::size_t new_position) {
    next_epoch = new_epoch;
    next_position = new_position;
    is_set = true;
  }

  // The epoch, and the samples of it that are consumed: those of batches whose step has ended, or after which the next
  // one has been asked for. When the loop has gone past its last batch, the end of an epoch is the begin of the next;
  // before that, what the loop does after the epoch is still to come.
  [[nodiscard]] std::pair<std::int64_t, std::size_t> place() const {
    if (is_set) return {next_epoch, next_position};
    const bool is_done = position == window.end && (!batch || worker->steps() > num_ended);
    const std::size_t done = is_done ? window.end : window.begin;
    return done == num_samples && !batch ? std::pair{next_epoch, std::size_t{0}} : std::pair{epoch, done};
  }

  void load(const State& state) {
    check_same(state, "num_samples", num_samples, "give the dataset that was saved with");
    check_same(state, "shuffle", options.shuffle, "set LoaderOptions::shuffle as it was");
    check_same(state, "seed", std::to_string(worker->seed()), "set RunConfig::seed as it was");
    const auto saved_epoch = state.at("epoch").as<std::int64_t>();
    const auto samples = state.at("samples").as<std::int64_t>();
    if (saved_epoch < 0 || samples < 0 || static_cast<std::size_t>(samples) > num_samples) {
      refuse(compose("sample {} of epoch {}, which is none of {}", samples, saved_epoch, num_samples));
    }
    leave_epoch();
    epoch = saved_epoch - 1;
    set_place(saved_epoch, static_cast<std::size_t>(samples));
  }

 private:
  // Ends all iterators, and the step of a batch that was not given in full.
  void leave_epoch() {
    if (options.drives_step && next_part < num_parts) worker->abandon_step();
    batch.reset();
    num_parts = next_part = 0;
    ++iteration;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError{compose("a loader on rank {}/{} cannot go on from the saved state: {}", worker->rank(),
                              worker->world_size(), what)};
  }

  void check_same(const State& state, std::string_view name, const Value& here, std::string_view remedy) const {
    const Value& saved = state.at(name);
    if (saved == here) return;
    const auto text = [](const Value& value) {
      return value.visit([](const auto& inside) { return compose("{}", inside); });
    };
    refuse(compose("{} was {} and is {}, so the order of the samples is another: {}", name, text(saved), text(here),
                   remedy));
  }

  void check_count(const at::Tensor& data, std::size_t asked) const {
    if (data.defined() && data.dim() > 0 && data.size(0) == static_cast<std::int64_t>(asked)) return;
    throw DataError{
        compose("the dataset was asked for {} samples on rank {}/{} and gave data of shape {}: the first "
                "dimension must count the samples",
                asked, worker->rank(), worker->world_size(), shape_of(data))};
  }

  void announce(std::size_t samples) const {
    worker->samples(samples, next_part == num_parts);
    WorkerPage& page = worker->page();
    page.epoch.store(epoch, std::memory_order_relaxed);
    page.epoch_size.store(num_samples, std::memory_order_relaxed);
    page.epoch_done.store(position, std::memory_order_relaxed);
  }
};

}  // namespace detail

/// Gives a worker its part of every batch. Each begin() starts the next epoch. The order of an epoch is a function of
/// the run's seed and the epoch only, never of the number of workers; each batch of it is cut among the workers, in
/// parts whose sizes differ by at most one; the last batch may be smaller; nothing is dropped, and nothing counts
/// twice. All workers are given equally many batches. Made by prepare_loader(); must not outlive the training function.
/// Example: for (const auto& batch : loader) loss(net->forward(batch.data), batch.target).backward();
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
    explicit Iterator(detail::LoaderState& state) noexcept : state_(&state), iteration_(state.iteration) {}

    [[nodiscard]] Batch& operator*() const noexcept { return *state_->batch; }
    [[nodiscard]] Batch* operator->() const noexcept { return &*state_->batch; }
    Iterator& operator++() {
      if (!is_over()) state_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return iterator.is_over();
    }

   private:
    [[nodiscard]] bool is_over() const noexcept {
      return state_ == nullptr || state_->iteration != iteration_ || !state_->batch;
    }

    detail::LoaderState* state_ = nullptr;
    std::uint64_t iteration_ = 0;
  };

  explicit Loader(detail::LoaderState state) : state_(std::make_unique<detail::LoaderState>(std::move(state))) {}

  /// Starts the next epoch, also where the last one was left half way.
  [[nodiscard]] Iterator begin() {
    state_->start_epoch();
    return Iterator{*state_};
  }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

  /// The epoch that is being gone over or was last, from 0; -1 before the first.
  [[nodiscard]] std::int64_t epoch() const noexcept { return state_->epoch; }
  /// The epoch that a loop which goes on from here has to begin with: the one under way, or the next after its end.
  [[nodiscard]] std::int64_t next_epoch() const { return state_->place().first; }
  /// Makes the next begin() start the given epoch. Never needed to get a new order. Throws: ConfigError below 0.
  void set_epoch(std::int64_t epoch) {
    if (epoch < 0) throw ConfigError{detail::compose("Loader::set_epoch({}): epochs count from 0", epoch)};
    if (state_->is_set && epoch == state_->next_epoch) return;  // which may have to be gone on with half way
    state_->set_place(epoch, 0);
  }

  /// Returns how much of which epoch all workers together have consumed, in samples, so that other numbers of workers
  /// and batch sizes go on right. A batch counts when its step has ended. After
  /// the loop it is the next epoch; inside it, after the last batch, an empty rest of this one.
  [[nodiscard]] State state() const {
    const auto [epoch, samples] = state_->place();
    return {{"epoch", epoch},
            {"samples", samples},
            {"num_samples", state_->num_samples},
            {"shuffle", state_->options.shuffle},
            {"seed", std::to_string(state_->worker->seed())}};  // all 64 bits, which no number of JSON has
  }
  /// Makes the next begin() go on where a saved loader was, in the middle of its epoch.
  /// Throws: ConfigError if the saved one had another number of samples or another order.
  void load_state(const State& state) { state_->load(state); }

  /// Whether its batches are what gradients are weighted with; see LoaderOptions.
  [[nodiscard]] bool drives_step() const noexcept { return state_->options.drives_step; }
  /// Samples of an epoch, all workers together.
  [[nodiscard]] std::size_t num_samples() const noexcept { return state_->num_samples; }
  /// Batches of an epoch, micro-batches counted one by one; equally many for every worker.
  [[nodiscard]] std::size_t num_batches() const noexcept {
    const std::size_t parts = state_->options.micro_batches;
    const std::size_t full = state_->num_samples / state_->global_batch_size;
    return full * std::min(parts, state_->global_batch_size) +
           std::min(parts, state_->num_samples % state_->global_batch_size);
  }
  /// Samples of a full batch, all workers together.
  [[nodiscard]] std::size_t global_batch_size() const noexcept { return state_->global_batch_size; }

 private:
  std::unique_ptr<detail::LoaderState> state_;  // iterators point to it, and a Loader may be moved
};

static_assert(Stateful<Loader>);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/lockstep.hpp
// Knows the size of LibTorch's batches for lockstep(). Torch room.

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

namespace railyard::inline v0_1 {

namespace detail {

// The first dimension counts the samples; a vector holds examples that have not been stacked.
struct SizeOfBatch {
  [[nodiscard]] std::uint64_t operator()(const at::Tensor& batch) const {
    return static_cast<std::uint64_t>(batch.size(0));
  }
  template <class Data, class Target>
  [[nodiscard]] std::uint64_t operator()(const torch::data::Example<Data, Target>& batch) const {
    return static_cast<std::uint64_t>(batch.data.size(0));
  }
  [[nodiscard]] std::uint64_t operator()(const std::pair<at::Tensor, at::Tensor>& batch) const {
    return static_cast<std::uint64_t>(batch.first.size(0));
  }
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
/// one already (see ModelOptions::memory_pool); this is for programs without. Tensors may outlive it, and be freed by
/// any thread. Example: int main() { ry::Pool pool; ... }
class Pool {
 public:
  /// Throws: Error if there is no address space for a pool.
  explicit Pool(const PoolOptions& options = {})
      : heap_(detail::make_private_heap(size_of(options), options.max_cached_bytes)), binding_(checked(heap_)) {}

  [[nodiscard]] HeapStatistics statistics() const noexcept { return heap_->statistics(); }
  /// Gives the memory of freed tensors back to the system.
  void trim() noexcept { heap_->trim(); }
  /// Whether memory, such as tensor.data_ptr(), is of this pool.
  [[nodiscard]] bool contains(const void* memory) const noexcept { return heap_->contains(memory); }

 private:
  [[nodiscard]] static std::size_t size_of(const PoolOptions& options) {
    return options.reserve_bytes > 0 ? options.reserve_bytes : detail::physical_memory();
  }
  [[nodiscard]] static const std::shared_ptr<detail::Heap>& checked(const std::shared_ptr<detail::Heap>& heap) {
    if (heap != nullptr) return heap;
    throw Error{"Pool: there is no address space for a pool of 64 MiB: see ulimit -v, or PoolOptions::reserve_bytes"};
  }

  std::shared_ptr<detail::Heap> heap_;
  detail::PoolBinding binding_;
};

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

[[nodiscard]] inline DimOrder row_by_row(std::int64_t num_dims) {
  DimOrder order(static_cast<std::size_t>(num_dims));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// tensor: without gaps.
[[nodiscard]] inline DimOrder order_in_memory(const at::Tensor& tensor) {
  DimOrder order = row_by_row(tensor.dim());
  if (tensor.is_contiguous()) return order;
  std::sort(order.begin(), order.end(), [&](std::int64_t one, std::int64_t other) {
    return std::pair{-tensor.stride(one), one} < std::pair{-tensor.stride(other), other};
  });
  return order;
}

// The shape of what lies in memory as a tensor without gaps does.
[[nodiscard]] inline std::vector<std::int64_t> shape_in_memory(const at::Tensor& tensor) {
  std::vector<std::int64_t> shape;
  for (const std::int64_t dim : order_in_memory(tensor)) shape.push_back(tensor.size(dim));
  return shape;
}

[[nodiscard]] inline at::ScalarType scalar_type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return at::ScalarType::Half;
    case Dtype::bf16:
      return at::ScalarType::BFloat16;
    case Dtype::f32:
      return at::ScalarType::Float;
    case Dtype::f64:
      return at::ScalarType::Double;
    case Dtype::i8:
      return at::ScalarType::Char;
    case Dtype::u8:
      return at::ScalarType::Byte;
    case Dtype::i32:
      return at::ScalarType::Int;
    case Dtype::i64:
      return at::ScalarType::Long;
    case Dtype::boolean:
      break;
  }
  return at::ScalarType::Bool;
}

[[nodiscard]] inline std::string text_of_sizes(const std::vector<std::int64_t>& sizes) {
  return "[" + joined(sizes, ", ") + "]";
}

// What a tensor is saved as: a complex one in pairs.
[[nodiscard]] inline at::Tensor saved_view(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) {
    throw ConfigError{
        compose("the state of \"{}\" ({}) cannot be saved, for it is sparse: make it dense, or keep it "
                "out of the module's parameters and buffers",
                name, shape_of(tensor))};
  }
  try {
    const at::Tensor real = as_real(tensor.detach());
    static_cast<void>(dtype_of_tensor(real));
    return real;
  } catch (const ConfigError& error) {
    throw ConfigError{compose("the state of \"{}\" cannot be saved: {}", name, error.what())};
  }
}

// Copies elements begin to end, counted row by row, of a tensor on the CPU with any strides.
inline void copy_rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end, std::byte* to) {
  const auto width = static_cast<std::size_t>(tensor.element_size());
  const auto* from = static_cast<const std::byte*>(tensor.data_ptr());
  if (tensor.is_contiguous()) {
    if (begin < end)
      std::memcpy(to, from + begin * tensor.element_size(), static_cast<std::size_t>(end - begin) * width);
    return;
  }
  const std::int64_t length = std::max<std::int64_t>(tensor.size(-1), 1);
  const std::int64_t step = tensor.stride(-1) * tensor.element_size();
  for (std::int64_t at = begin; at < end;) {
    std::int64_t row = at / length;
    std::int64_t offset = 0;
    for (std::int64_t dim = tensor.dim() - 1; dim-- > 0; row /= tensor.size(dim)) {
      offset += row % tensor.size(dim) * tensor.stride(dim);
    }
    const std::byte* element = from + offset * tensor.element_size() + at % length * step;
    for (const std::int64_t stop = std::min(end, (at / length + 1) * length); at < stop; ++at) {
      std::memcpy(to, element, width);
      to += width;
      element += step;
    }
  }
}

// A tensor that every rank has.
[[nodiscard]] inline StateTensor whole_state(std::string name, const at::Tensor& tensor) {
  const at::Tensor saved = saved_view(name, tensor);
  const Dtype dtype = dtype_of_tensor(saved);
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = saved.sizes().vec(),
          .read = [saved = saved.cpu()](std::int64_t begin, std::int64_t end, std::byte* to) {
            copy_rows(saved, begin, end, to);
          }};
}

// A flat tensor that holds elements begin to end of something of the given shape, of which other ranks hold the rest.
[[nodiscard]] inline StateTensor piece_state(std::string name, std::vector<std::int64_t> shape, std::int64_t begin,
                                             std::int64_t end, const at::Tensor& piece) {
  StateTensor state = whole_state(std::move(name), piece);
  state.shape = std::move(shape);
  state.is_piece = true;
  state.begin = begin;
  state.end = end;
  state.read = [read = std::move(state.read), begin](std::int64_t from, std::int64_t until, std::byte* to) {
    read(from - begin, until - begin, to);
  };
  return state;
}

// What was saved, and how the dimensions of its shape have to be read.
struct SavedTensor {
  const StateTensor* state = nullptr;
  DimOrder order{};

  [[nodiscard]] std::string text() const {
    return compose("{}{}", name_of(state->dtype), text_of_sizes(logical_shape()));
  }

  [[nodiscard]] std::vector<std::int64_t> logical_shape() const {
    if (order.size() != state->shape.size()) return state->shape;
    std::vector<std::int64_t> shape(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) shape[static_cast<std::size_t>(order[i])] = state->shape[i];
    return shape;
  }

  [[nodiscard]] bool fits(const at::Tensor& real) const {
    return order.size() == state->shape.size() && state->dtype == dtype_of_tensor(real) &&
           real.sizes().equals(logical_shape());
  }

  // Returns all of it, on the CPU.
  [[nodiscard]] at::Tensor whole() const {
    const at::Tensor flat = at::empty({state->count()}, at::TensorOptions{}.dtype(scalar_type_of(state->dtype)));
    state->read(0, state->count(), static_cast<std::byte*>(flat.data_ptr()));
    return flat.view(state->shape).permute(inverse());
  }

  // Fills a flat tensor on the CPU with elements begin to end of what lies in the order of `like`.
  void read_piece(const at::Tensor& like, std::int64_t begin, std::int64_t end, const at::Tensor& flat) const {
    if (order == order_in_memory(like)) {
      state->read(begin, end, static_cast<std::byte*>(flat.data_ptr()));
      flat.unsafeGetTensorImpl()->bump_version();
    } else {
      flat.copy_(at::empty_like(like).copy_(whole()).as_strided({end - begin}, {1}, begin));
    }
  }

  // Writes all of it to where a tensor is.
  void read_into(const at::Tensor& target) const {
    const at::NoGradGuard no_grad;
    const at::Tensor real = as_real(target.detach());
    if (real.is_cpu() && real.is_non_overlapping_and_dense()) {
      read_piece(real, 0, real.numel(), real.as_strided({real.numel()}, {1}));
    } else {
      real.copy_(whole());
    }
  }

 private:
  [[nodiscard]] DimOrder inverse() const {
    DimOrder places(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      places[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    return places;
  }
};

[[nodiscard]] inline SavedTensor saved_rows(const StateTensor& state) {
  return {.state = &state, .order = row_by_row(static_cast<std::int64_t>(state.shape.size()))};
}

// The tensors of a saved state that nothing has been made of yet.
class UnreadTensors {
 public:
  explicit UnreadTensors(const State& state) {
    for (const StateTensor& tensor : state.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  // Returns the tensor of that name, or nullptr.
  [[nodiscard]] const StateTensor* take(std::string_view name) {
    const auto found = by_name_.extract(name);
    return found ? found.mapped() : nullptr;
  }

  void name_surplus(std::vector<std::string>& problems) const {
    for (const auto& [name, tensor] : by_name_) {
      problems.push_back(compose("\"{}\" {} was saved and has no place here", name, saved_rows(*tensor).text()));
    }
  }

 private:
  std::map<std::string_view, const StateTensor*> by_name_{};
};

}  // namespace detail

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

// Makes the rows of a (rank, n) matrix orthonormal, in place. A row that depends on those before it is asked of
// `replace` and made as long as the others, or stays zero. Plain loops in f64: BLAS may give other bits for other
// alignments, and all ranks must find the same.
template <class Replace>
void orthonormalise(std::vector<double>& rows, std::size_t length, Replace replace) {
  const auto dot = [length](const double* one, const double* other) {
    double sum = 0;
    for (std::size_t i = 0; i < length; ++i) sum += one[i] * other[i];
    return sum;
  };
  for (std::size_t row = 0; row < rows.size(); row += length) {
    double* mine = rows.data() + row;
    const double before = std::sqrt(dot(mine, mine));
    for (int pass = 0; pass < 2; ++pass) {  // the second one removes the rounding of the first
      for (std::size_t earlier = 0; earlier < row; earlier += length) {
        const double* other = rows.data() + earlier;
        const double share = dot(mine, other);
        for (std::size_t i = 0; i < length; ++i) mine[i] -= share * other[i];
      }
    }
    double after = std::sqrt(dot(mine, mine));
    if (!(after > before * 1e-12)) {
      for (std::size_t i = 0; i < length; ++i) mine[i] = replace(row + i);
      after = std::sqrt(dot(mine, mine));
    }
    for (std::size_t i = 0; after > 0 && i < length; ++i) mine[i] /= after;
  }
}

// Returns a matrix of the same shape whose columns are orthonormal and span the same space.
template <class Replace>
[[nodiscard]] at::Tensor orthonormal_columns(const at::Tensor& matrix, Replace replace) {
  const at::Tensor rows = matrix.t().to(at::kCPU, at::kDouble).contiguous();
  std::vector<double> values(rows.data_ptr<double>(), rows.data_ptr<double>() + rows.numel());
  orthonormalise(values, static_cast<std::size_t>(rows.size(1)), replace);
  const at::Tensor done = at::empty(rows.sizes(), rows.options());
  std::copy(values.begin(), values.end(), done.data_ptr<double>());
  return done.t().to(matrix.options()).contiguous();
}

// Numbers from -1 to 1 that are a function of the seed, on every machine.
class Directions {
 public:
  explicit Directions(std::uint64_t seed) : seed_(seed) {}
  [[nodiscard]] double operator()(std::size_t index) const {
    return std::ldexp(static_cast<double>(derive_seed(seed_, index) >> 11U), -52) - 1.0;
  }

 private:
  std::uint64_t seed_;
};

// What PowerSgdHook knows of each parameter. A copy is empty: each copy of a hook begins anew.
class PowerSgdMemory {
 public:
  struct Entry {
    std::uint64_t steps = 0;
    at::Tensor error{};  // (n, m): what this rank has not sent yet
    at::Tensor right{};  // (m, rank): where the last step's directions were, equal on all ranks
  };

  PowerSgdMemory() = default;
  PowerSgdMemory(const PowerSgdMemory& /*other*/) : entries_() {}
  PowerSgdMemory(PowerSgdMemory&&) noexcept = default;
  PowerSgdMemory& operator=(const PowerSgdMemory& other) {
    if (this != &other) entries_.clear();
    return *this;
  }
  PowerSgdMemory& operator=(PowerSgdMemory&&) noexcept = default;
  ~PowerSgdMemory() = default;

  [[nodiscard]] Entry& operator[](std::size_t id) { return entries_[id]; }

  // What is equal on all ranks, and the errors of all of them as one tensor (world size, n, m).
  [[nodiscard]] State state(int rank, int size) const {
    State state;
    for (const auto& [id, entry] : entries_) {
      state.values.set(compose("steps.{}", id), entry.steps);
      if (!entry.error.defined()) continue;
      state.tensors.push_back(whole_state(compose("right.{}", id), entry.right));
      const std::int64_t count = entry.error.numel();
      state.tensors.push_back(piece_state(compose("error.{}", id), {size, entry.error.size(0), entry.error.size(1)},
                                          rank * count, (rank + 1) * count, entry.error.reshape({-1})));
    }
    return state;
  }

  // Other ranks share what all the saved ones have not sent yet.
  void load_state(int rank, int size, const State& state) {
    entries_.clear();
    for (const auto& [name, value] : state.values) {
      const std::string id = name.substr(name.find('.') + 1);
      Entry& entry = entries_[std::stoull(id)];
      entry.steps = static_cast<std::uint64_t>(value.as<std::int64_t>());
      const StateTensor* right = state.find_tensor("right." + id);
      const StateTensor* errors = state.find_tensor("error." + id);
      if (right == nullptr || errors == nullptr) continue;
      entry.right = saved_rows(*right).whole();
      const at::Tensor all = saved_rows(*errors).whole();
      entry.error = all.size(0) == size ? all[rank].clone() : all.sum(0).div_(size);
    }
  }

 private:
  std::map<std::size_t, Entry> entries_{};
};

// One sum of a bucket's matrices as low-rank products, beside parts that are summed exactly.
class LowRankSum {
 public:
  LowRankSum(Worker& worker, std::int64_t rank, std::uint64_t seed) : worker_(&worker), rank_(rank), seed_(seed) {}

  [[nodiscard]] bool is_empty() const noexcept { return matrices_.empty(); }

  // Says whether two thin matrices are less to send.
  [[nodiscard]] bool gains(const at::Tensor& part) const {
    if (part.dim() < 2 || part.numel() == 0) return false;
    const std::int64_t rows = part.size(0);
    const std::int64_t columns = part.numel() / rows;
    return (rows + columns) * rank_ < part.numel();
  }

  // Takes a part in, which is a contiguous view into the bucket.
  void add(PowerSgdMemory::Entry& entry, std::size_t id, const at::Tensor& part) {
    const at::Tensor values = part.view({part.size(0), -1});
    const Directions directions{derive_seed(seed_, derive_seed(id, entry.steps))};
    if (!entry.error.defined() || !entry.error.sizes().equals(values.sizes()) || entry.right.size(1) != rank_) {
      entry.error = at::zeros_like(values);
      entry.right = orthonormal_columns(at::zeros({values.size(1), rank_}, values.options()), directions);
    }
    matrices_.push_back({.values = values, .entry = &entry, .directions = directions});
  }

  void run(const std::vector<at::Tensor>& exact) {
    std::vector<at::Tensor> pieces = exact;
    for (Matrix& matrix : matrices_) {
      matrix.values.add_(matrix.entry->error);
      matrix.left = at::mm(matrix.values, matrix.entry->right);
      pieces.push_back(matrix.left);
    }
    if (!sum(pieces)) return spoil();
    pieces.clear();
    std::vector<at::Tensor> own;
    for (Matrix& matrix : matrices_) {
      matrix.left = orthonormal_columns(matrix.left, [](std::size_t) { return 0.0; });
      own.push_back(at::mm(matrix.values.t(), matrix.left));
      pieces.push_back(own.back().clone());
    }
    if (!sum(pieces)) return spoil();
    for (std::size_t i = 0; i < matrices_.size(); ++i) finish(matrices_[i], own[i], pieces[i]);
  }

 private:
  struct Matrix {
    at::Tensor values{};  // (n, m): a view into the bucket
    PowerSgdMemory::Entry* entry = nullptr;
    Directions directions{0};
    at::Tensor left{};  // (n, rank)
  };

  // Sums all pieces as one buffer. Returns whether the sums are finite, which all ranks see alike.
  [[nodiscard]] bool sum(const std::vector<at::Tensor>& pieces) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& piece : pieces) rows.push_back(piece.reshape({-1}));
    const at::Tensor flat = at::cat(rows);
    worker_->all_reduce(buffer_of(flat), ReduceOp::sum);
    std::int64_t begin = 0;
    for (const at::Tensor& piece : pieces) {
      piece.copy_(flat.narrow(0, begin, piece.numel()).view(piece.sizes()));
      begin += piece.numel();
    }
    return at::isfinite(flat).all().item<bool>();
  }

  // The step will be skipped: what was left out before stays to be sent.
  void spoil() {
    for (const Matrix& matrix : matrices_) matrix.values.fill_(std::numeric_limits<double>::quiet_NaN());
  }

  static void finish(const Matrix& matrix, const at::Tensor& own, const at::Tensor& right) {
    matrix.entry->error = at::addmm(matrix.values, matrix.left, own.t(), 1, -1);
    // Element by element and not by BLAS, so that all ranks get equal bits.
    matrix.values.zero_();
    for (std::int64_t column = 0; column < right.size(1); ++column) {
      matrix.values.addcmul_(matrix.left.narrow(1, column, 1), right.narrow(1, column, 1).t());
    }
    matrix.entry->right = orthonormal_columns(right, matrix.directions);
  }

  Worker* worker_;
  std::int64_t rank_;
  std::uint64_t seed_;
  std::vector<Matrix> matrices_{};
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
  void all_reduce(Worker& worker, const GradientBucket& bucket) {
    const at::NoGradGuard no_grad;
    if (rank < 1) {
      throw ConfigError{
          detail::compose("PowerSgdHook on rank {}/{}: .rank is {}; it counts columns: 1, 2 and 4 are usual",
                          worker.rank(), worker.world_size(), rank)};
    }
    detail::LowRankSum sum{worker, rank, detail::derive_seed(worker.seed(), seed)};
    std::vector<at::Tensor> exact;
    for (std::size_t i = 0; i < bucket.parts.size(); ++i) {
      auto& entry = memory[bucket.ids[i]];
      if (entry.steps++ >= start_step && sum.gains(bucket.parts[i])) {
        sum.add(entry, bucket.ids[i], bucket.parts[i]);
      } else {
        exact.push_back(bucket.parts[i]);
      }
    }
    if (sum.is_empty()) return ExactHook{}.all_reduce(worker, bucket);
    sum.run(exact);
  }

  [[nodiscard]] State state(Worker& worker) const { return memory.state(worker.rank(), worker.world_size()); }
  void load_state(Worker& worker, const State& state) { memory.load_state(worker.rank(), worker.world_size(), state); }
};
static_assert(StatefulCommHook<PowerSgdHook>);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/prepare_loader.hpp
// Makes a loader from a table, a pair of tensors or a LibTorch dataset. Torch room.

#include <ATen/core/Tensor.h>
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

[[nodiscard]] inline at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::size_t>& indices) {
  const at::Tensor rows = at::empty({static_cast<std::int64_t>(indices.size())}, at::ScalarType::Long);
  std::copy(indices.begin(), indices.end(), rows.data_ptr<std::int64_t>());
  return at::index_select(tensor, 0, rows.to(tensor.device()));
}

[[nodiscard]] inline std::size_t checked_batch_size(const Worker& worker, const LoaderOptions& options,
                                                    std::size_t num_samples) {
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
  if (is_global && options.global_batch_size < workers) {
    fail(compose("a global_batch_size of {} leaves some of {} workers without a sample in every batch: use at least {}",
                 options.global_batch_size, workers, workers));
  }
  if (options.micro_batches == 0) fail("micro_batches is 0: a batch is given in at least one part");
  if (num_samples == 0) fail("the dataset is empty");
  if (is_global) return options.global_batch_size;
  if (options.batch_size_per_worker > std::numeric_limits<std::size_t>::max() / workers) {
    fail(compose("a batch_size_per_worker of {} times {} workers is more than can be counted: use at most {}",
                 options.batch_size_per_worker, workers, num_samples));
  }
  return options.batch_size_per_worker * workers;
}

[[nodiscard]] inline Loader make_loader(Worker& worker, Fetch fetch, std::size_t num_samples,
                                        const LoaderOptions& options) {
  apply_thread_budget(worker);
  const std::size_t batch_size = checked_batch_size(worker, options, num_samples);
  return Loader{{.worker = &worker,
                 .options = options,
                 .fetch = std::move(fetch),
                 .num_samples = num_samples,
                 .global_batch_size = batch_size}};
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

/// Makes a loader over a pair of tensors, data and target. Shapes: the first dimension of both counts the samples.
/// Throws: ConfigError if they differ in it, or if the options do not name exactly one batch size.
[[nodiscard]] inline Loader prepare_loader(Worker& worker, std::pair<at::Tensor, at::Tensor> tensors,
                                           const LoaderOptions& options) {
  const auto& [data, target] = tensors;
  if (!data.defined() || !target.defined() || data.dim() == 0 || target.dim() == 0 || data.size(0) != target.size(0)) {
    throw ConfigError{
        detail::compose("prepare_loader on rank {}/{} was given data {} and target {}: the first dimension of "
                        "both must be the number of samples",
                        worker.rank(), worker.world_size(), detail::shape_of(data), detail::shape_of(target))};
  }
  const auto num_samples = static_cast<std::size_t>(data.size(0));
  const auto fetch = [tensors = std::move(tensors)](const std::vector<std::size_t>& indices) {
    return std::pair{detail::select_rows(tensors.first, indices), detail::select_rows(tensors.second, indices)};
  };
  return detail::make_loader(worker, fetch, num_samples, options);
}

/// Makes a loader over a table. Shapes: data is (batch, columns) of float, target (batch) of int64.
[[nodiscard]] inline Loader prepare_loader(Worker& worker, const Table& table, const LoaderOptions& options) {
  const auto fetch = [table](const std::vector<std::size_t>& indices) {
    const auto count = static_cast<std::int64_t>(indices.size());
    const auto data = at::empty({count, static_cast<std::int64_t>(table.num_columns())}, at::ScalarType::Float);
    const auto target = at::empty({count}, at::ScalarType::Long);
    auto* values = data.template data_ptr<float>();
    auto* labels = target.template data_ptr<std::int64_t>();
    for (const std::size_t index : indices) {
      values = std::copy(table.row(index).begin(), table.row(index).end(), values);
      *labels++ = table.label_of(index);
    }
    return std::pair{data, target};
  };
  return detail::make_loader(worker, fetch, table.num_rows(), options);
}

/// Makes a loader over a LibTorch dataset whose samples can be asked for by index (get_batch() or get()) and that knows
/// its size(); with or without .map(Stack<>()). Throws: ConfigError if size() is empty.
/// Example: ry::prepare_loader(worker, MNIST(path), {.global_batch_size = 64, .shuffle = true, .drives_step = true});
template <class Dataset>
[[nodiscard]] Loader prepare_loader(Worker& worker, Dataset dataset, const LoaderOptions& options) {
  static_assert(
      detail::IsMapStyle<Dataset>,
      "prepare_loader(worker, dataset, options): dataset must be a railyard::Table, a std::pair of tensors, or a "
      "LibTorch dataset that is asked for samples by index (get_batch(ArrayRef<size_t>) and size()); streams and "
      "chunk datasets cannot be divided among workers.");
  if constexpr (detail::IsMapStyle<Dataset>) {
    static_assert(
        detail::is_loadable<detail::BatchOf<Dataset>>,
        "prepare_loader(worker, dataset, options): the dataset must yield torch::data::Example<> or TensorExample, "
        "alone or in a vector; end its chain of map() with torch::data::transforms::Stack<>().");
    if constexpr (detail::is_loadable<detail::BatchOf<Dataset>>) {
      const std::size_t num_samples = detail::size_of_dataset(worker, dataset);
      const auto shared = std::make_shared<Dataset>(std::move(dataset));
      const auto fetch = [shared](const std::vector<std::size_t>& indices) {
        return detail::collate(shared->get_batch(c10::ArrayRef<std::size_t>(indices)));
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
      fmt::format("prepare_model on rank {}/{} was given an empty model: give a module that has been built, "
                  "not nullptr",
                  worker.rank(), worker.world_size())};
}

// What one worker knows about its models.
struct Models {
  static constexpr std::string_view extension_name = "torch.models";
  std::uint64_t built = 0;  // by factories, so that two models of one kind do not start with the same weights
  std::vector<std::int64_t> processes{};  // the process of each rank

  // How many ranks of lower number live in this worker's process, and how many the fullest process has.
  [[nodiscard]] std::pair<int, int> turns(int rank) const {
    int mine = 0;
    std::ptrdiff_t most = 1;
    for (std::size_t other = 0; other < processes.size(); ++other) {
      if (static_cast<int>(other) < rank && processes[other] == processes[static_cast<std::size_t>(rank)]) ++mine;
      most = std::max(most, std::count(processes.begin(), processes.end(), processes[other]));
    }
    return {mine, static_cast<int>(most)};
  }
};

[[nodiscard]] inline Models& models_of(Worker& worker) {
  auto& models = worker.extension<Models>();
  if (models.processes.empty()) {
    const std::vector<std::int64_t> mine{process_token()};
    models.processes = worker.world_size() == 1 ? mine : gather_values(worker, mine);
    apply_thread_budget_to_process(worker);
  }
  return models;
}

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
  for (int turn = my_turn; turn + 1 < turns; ++turn) worker.barrier();
  return model;
}

inline void seed_apart(Worker& worker) {
  const Models& models = models_of(worker);
  if (worker.world_size() == 1) return;  // the numbers that a program without Railyard would draw
  const std::uint64_t use = (models.built << 32U) + static_cast<std::uint64_t>(worker.rank()) + 1;
  if (models.turns(worker.rank()).first == 0) torch::manual_seed(derive_seed(worker.seed(), use));
}

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
/// Not averaged: what torch::autograd::grad() returns, and buffers unless ModelOptions::buffers says so. torch's
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
    const auto& exchange = detail::gradient_exchange_of(worker);
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

// ---- railyard/torch/detail/optimizer_fields.hpp
// The options and the state of LibTorch's optimizers by name, to be read and written alike. Torch room.

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

// ---- railyard/torch/detail/optimizer_state.hpp
// Saves the state of LibTorch's optimizers and puts it back, whole or in the pieces of ranks. Torch room.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Optional.h>
#include <torch/optim/optimizer.h>

#include <unordered_set>

namespace railyard::inline v0_1 {

namespace detail {

// A parameter of an optimizer.
struct OptimizedTensor {
  at::Tensor whole{};
  std::shared_ptr<GradientPiece> piece{};  // where ranks share the work; otherwise each of them does all of it

  // What this rank's optimizer updates; undefined if it is nothing.
  [[nodiscard]] const at::Tensor& own() const noexcept { return piece ? piece->weights : whole; }
};
using OptimizedGroups = std::vector<std::vector<OptimizedTensor>>;

// The parameters of an optimizer, each once: C++ modules list tied ones twice.
[[nodiscard]] inline OptimizedGroups parameters_of(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  OptimizedGroups parameters;
  std::unordered_set<const void*> seen;
  for (const auto& group : groups) {
    parameters.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.back().push_back({.whole = parameter});
    }
  }
  return parameters;
}

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

[[nodiscard]] inline std::string group_prefix(std::size_t group) { return compose("groups.{}.", group); }
[[nodiscard]] inline std::string state_prefix(std::size_t group, std::size_t index) {
  return compose("state.{}.{}.", group, index);
}
[[nodiscard]] inline std::string shapes_of(const std::vector<OptimizedTensor>& parameters) {
  std::vector<std::string> shapes;
  for (const OptimizedTensor& parameter : parameters) shapes.push_back(shape_of(parameter.whole));
  return joined(shapes, ", ");
}

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

  void operator()(std::string_view name, const at::Tensor& field) const {
    if (!field.defined()) return;
    std::string full = prefix + std::string{name};
    tensors.push_back(parameter.piece ? piece_state(std::move(full), shape_in_memory(parameter.whole),
                                                    parameter.piece->begin, parameter.piece->end, field)
                                      : whole_state(std::move(full), field));
  }
  void operator()(std::string_view name, const std::deque<at::Tensor>& fields) const {
    for (std::size_t i = 0; i < fields.size(); ++i) (*this)(compose("{}.{}", name, i), fields[i]);
  }
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

  void operator()(std::string_view name, at::Tensor& field) const {
    const StateTensor* state = saved.take(prefix + std::string{name});
    if (state == nullptr) return;
    found = true;
    const SavedTensor tensor = in_order(*state);
    if (!is_elementwise) {
      field = tensor.whole().to(parameter.whole.device());
    } else if (!tensor.fits(as_real(parameter.whole.detach()))) {
      problems.push_back(
          compose("\"{}\" is {} and belongs to a parameter {}", state->name, tensor.text(), shape_of(parameter.whole)));
    } else if (parameter.own().defined()) {
      field = at::empty_like(parameter.own().detach());
      read(tensor, field);
    }
  }
  void operator()(std::string_view name, std::deque<at::Tensor>& fields) const {
    for (std::size_t i = 0;; ++i) {
      at::Tensor field;
      (*this)(compose("{}.{}", name, i), field);
      if (!field.defined()) return;
      fields.push_back(std::move(field));
    }
  }
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
  void read(const SavedTensor& tensor, const at::Tensor& field) const {
    if (parameter.piece) {
      tensor.read_piece(parameter.whole, parameter.piece->begin, parameter.piece->end, field);
    } else {
      tensor.read_into(field);
    }
  }

  [[nodiscard]] SavedTensor in_order(const StateTensor& state) const {
    const SavedTensor rows = saved_rows(state);
    const Value* text = values.find(prefix + "order");
    if (text == nullptr) return rows;
    std::istringstream numbers{text->as<std::string>()};
    SavedTensor tensor = rows;
    for (std::int64_t& dim : tensor.order) numbers >> dim;
    const auto& dims = rows.order;
    return std::is_permutation(dims.begin(), dims.end(), tensor.order.begin()) ? tensor : rows;
  }
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
    if (!parameter.own().defined()) return;
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

// The weights in rank 0's memory that other processes look at. They are freed with the worker if nobody does any more;
// otherwise they stay as long as the process does, for a freed block is written to.
struct SharedWeightsOfWorker {
  static constexpr std::string_view extension_name = "torch.shared_weights";
  struct Kept {
    std::vector<at::Tensor> tensors{};
    std::atomic<std::uint32_t>* num_users = nullptr;
  };
  std::vector<Kept> kept{};

  SharedWeightsOfWorker() = default;
  SharedWeightsOfWorker(const SharedWeightsOfWorker&) = delete;
  SharedWeightsOfWorker& operator=(const SharedWeightsOfWorker&) = delete;
  ~SharedWeightsOfWorker() {
    drop_unused();
    for (Kept& one : kept) {
      for (at::Tensor& tensor : one.tensors) static_cast<void>(tensor.unsafeReleaseTensorImpl());
    }
  }

  // Frees the weights that nobody looks at any more.
  void drop_unused() {
    std::erase_if(kept, [](const Kept& one) {
      const bool is_unused = one.num_users->load(std::memory_order_acquire) == 0;
      if (is_unused) Heap::give_back(one.num_users);
      return is_unused;
    });
  }
};

// One optimizer's parameters, where the ranks of the run share memory. Rank 0's weights become everybody's; each rank
// has one piece of them to update. Two waits around each update keep anybody from reading weights that are half new.
class SharedWeights {
 public:
  // parameters: unique, of prepared models, shareable(). All ranks call it with the same.
  SharedWeights(Worker& worker, std::vector<at::Tensor> parameters)
      : worker_(&worker), memory_(worker.host_memory()), parameters_(std::move(parameters)) {
    refuse_other_owners();
    share();
    cut();
  }
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  // Whoever uses the model further has it to itself.
  ~SharedWeights() {
    const at::NoGradGuard no_grad;
    try {
      for (const auto& piece : pieces_) piece->weights.reset();
      for (at::Tensor& parameter : parameters_) parameter.set_data(parameter.detach().clone());
      if (num_users_ != nullptr) num_users_->fetch_sub(1, std::memory_order_release);
    } catch (...) {  // no memory: the weights stay shared, and nobody updates them any more
    }
  }

  [[nodiscard]] static bool shareable(const at::Tensor& parameter) {
    const at::ScalarType type = parameter.scalar_type();
    const bool is_known = type == at::ScalarType::Float || type == at::ScalarType::Double ||
                          type == at::ScalarType::Half || type == at::ScalarType::BFloat16;
    return is_known && parameter.is_cpu() && parameter.layout() == c10::kStrided && parameter.numel() > 0 &&
           parameter.is_non_overlapping_and_dense();
  }

  // By parameter; of some this rank has no part.
  [[nodiscard]] const std::vector<std::shared_ptr<GradientPiece>>& pieces() const noexcept { return pieces_; }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  // Begins an update: from here to end_update() nobody reads the weights. settings: what must be equal on all ranks.
  void begin_update(std::span<const double> settings) {
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (parameters_[index].data_ptr() != addresses_[index]) refuse_replaced(parameters_[index]);
    }
    // A digest, for a record is small and groups may be many.
    const std::uint64_t own = hash_bytes(0, settings.data(), settings.size_bytes());
    memory_->begin(Purpose::update, std::as_bytes(std::span{&own, 1}), 2, worker_->collective_deadline());
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      const auto record = memory_->record_of(rank);
      if (record.size() == sizeof own && std::memcmp(record.data(), &own, sizeof own) == 0) continue;
      memory_->step({});
      throw ConfigError{
          fmt::format("optimizer.step() on rank {}/{}: the learning rates of rank {} are others than this rank's; one "
                      "copy of the weights is updated by all ranks, so set them alike everywhere",
                      worker_->rank(), worker_->world_size(), rank)};
    }
  }
  void end_update() {
    memory_->step({});
    // What a backward pass has kept of the old weights is now recognised as outdated, as after any update in place.
    for (const at::Tensor& parameter : parameters_) torch::autograd::impl::bump_version(parameter);
  }

 private:
  void refuse_other_owners() const {
    for (const at::Tensor& parameter : parameters_) {
      if (parameter.storage().use_count() <= 1) continue;
      throw ConfigError{fmt::format(
          "prepare_optimizer on rank {}/{}: the parameter \"{}\" shares its memory with another tensor, such as a copy "
          "made by .data() or .detach(), which would not follow when the weights move to shared memory: make it with "
          ".clone(), or call prepare_optimizer() first",
          worker_->rank(), worker_->world_size(), name_of(parameter))};
    }
  }

  [[noreturn]] void refuse_replaced(const at::Tensor& parameter) const {
    throw ConfigError{fmt::format(
        "optimizer.step() on rank {}/{}: the weights of \"{}\" have been replaced since prepare_optimizer() (by "
        "torch::load(), .to() or set_data()), so the update would not reach them: load weights before "
        "prepare_optimizer(), or copy them with copy_() on rank 0",
        worker_->rank(), worker_->world_size(), name_of(parameter))};
  }

  [[nodiscard]] std::string name_of(const at::Tensor& parameter) const {
    const GradientSlot* slot = gradient_exchange_of(*worker_)->find(parameter);
    return slot == nullptr ? "?" : slot->name;
  }

  // Threads hand over the tensor itself, which then lives as long as its last owner; processes its place.
  void share() {
    const at::NoGradGuard no_grad;
    const int here = 0;
    const bool sees_all = memory_->place_of(&here) != 0;
    const std::size_t table_bytes = parameters_.size() * sizeof(std::uint64_t);
    auto* table = static_cast<std::uint64_t*>(memory_->heap()->allocate(std::max<std::size_t>(table_bytes, 1)));
    if (table == nullptr) throw Error{"prepare_optimizer: there is no room left in the memory that the ranks share"};
    for (std::size_t index = 0; index < parameters_.size() && worker_->rank() == 0; ++index) {
      at::Tensor& parameter = parameters_[index];
      table[index] = sees_all ? reinterpret_cast<std::uintptr_t>(&parameter) : place_for_all(parameter);
    }
    if (!sees_all && worker_->rank() == 0) num_users_ = keep_for_others();
    std::array<std::uint64_t, 2> places{memory_->place_of(table),
                                        num_users_ == nullptr ? 0 : memory_->place_of(num_users_)};
    memory_->begin(Purpose::weights, std::as_bytes(std::span{places}), 2, worker_->collective_deadline());
    if (worker_->rank() != 0) {
      std::memcpy(places.data(), memory_->record_of(0).data(), sizeof places);
      const auto* theirs = reinterpret_cast<const std::uint64_t*>(memory_->at(0, places[0]));
      if (places[1] != 0) num_users_ = reinterpret_cast<std::atomic<std::uint32_t>*>(memory_->at(0, places[1]));
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        at::Tensor& parameter = parameters_[index];
        if (sees_all) {
          parameter.set_data(reinterpret_cast<const at::Tensor*>(theirs[index])->detach());
        } else {
          parameter.set_data(at::from_blob(memory_->at(0, theirs[index]), parameter.sizes(), parameter.strides(),
                                           at::TensorOptions{}.dtype(parameter.scalar_type())));
        }
      }
    }
    memory_->step({});
    memory_->heap()->deallocate(table);
    memory_->heap()->trim();  // of what the private weights have taken
    for (const at::Tensor& parameter : parameters_) addresses_.push_back(parameter.data_ptr());
  }

  // Moves a weight of rank 0 to where all see it, if it is not there.
  [[nodiscard]] std::uint64_t place_for_all(at::Tensor& parameter) {
    if (memory_->place_of(parameter.data_ptr()) == 0) {
      const std::size_t size_bytes =
          static_cast<std::size_t>(parameter.numel()) * static_cast<std::size_t>(parameter.element_size());
      void* memory = memory_->heap()->allocate(size_bytes);
      if (memory == nullptr) throw Error{"prepare_optimizer: there is no room left in the memory that the ranks share"};
      const at::Tensor moved = at::from_blob(memory, parameter.sizes(), parameter.strides(), Heap::give_back,
                                             at::TensorOptions{}.dtype(parameter.scalar_type()));
      moved.copy_(parameter.detach());
      parameter.set_data(moved);
    }
    return memory_->place_of(parameter.data_ptr());
  }

  // Makes the weights of rank 0 stay while others look at them, and returns the count of who does.
  [[nodiscard]] std::atomic<std::uint32_t>* keep_for_others() {
    void* memory = memory_->heap()->allocate(sizeof(std::atomic<std::uint32_t>));
    if (memory == nullptr) throw Error{"prepare_optimizer: there is no room left in the memory that the ranks share"};
    auto* num_users = ::new (memory) std::atomic<std::uint32_t>{static_cast<std::uint32_t>(worker_->world_size())};
    SharedWeightsOfWorker::Kept kept{.num_users = num_users};
    for (const at::Tensor& parameter : parameters_) kept.tensors.push_back(parameter.detach());
    auto& all = worker_->extension<SharedWeightsOfWorker>();
    all.drop_unused();
    all.kept.push_back(std::move(kept));
    return num_users;
  }

  void cut() {
    std::vector<std::int64_t> counts;
    for (const at::Tensor& parameter : parameters_) counts.push_back(parameter.numel());
    RankPart part{counts, worker_->rank(), worker_->world_size()};
    for (const at::Tensor& parameter : parameters_) {
      auto piece = std::make_shared<GradientPiece>();
      std::tie(piece->begin, piece->end) = part.next(parameter.numel());
      if (!piece->is_empty()) {
        piece->weights =
            parameter.detach().as_strided({piece->end - piece->begin}, {1}, parameter.storage_offset() + piece->begin);
      }
      gradient_exchange_of(*worker_)->find(parameter)->piece = piece;
      pieces_.push_back(std::move(piece));
    }
  }

  Worker* worker_;
  HostMemory* memory_;
  std::vector<at::Tensor> parameters_;
  std::vector<const void*> addresses_{};
  std::atomic<std::uint32_t>* num_users_ = nullptr;  // in rank 0's memory; among threads, which own weights, none
  std::vector<std::shared_ptr<GradientPiece>> pieces_{};
};

}  // namespace detail

}  // namespace railyard::inline v0_1

// ---- railyard/torch/prepare_optimizer.hpp
// Optimizers whose work and state are divided among the ranks of a host. Torch room.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

namespace railyard::inline v0_1 {

/// Is an optimizer of LibTorch over the weights of prepared models. Where the ranks share memory the weights exist once
/// for all of them, and each rank keeps the state of its own piece and updates that alone ("ZeRO-1"): after backward()
/// the .grad of these parameters is undefined, since no rank has all of the mean. Elsewhere it is the optimizer that it
/// is made of.
///
/// Every rank calls the same functions in the same order. Between two calls the weights are only to be read; whoever
/// must write them does so on rank 0, between two barriers.
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

  /// Updates the weights. All ranks wait for each other before anybody writes, and until all have written.
  /// Throws: ConfigError if ranks differ in their learning rates, or if weights have been replaced.
  void step() {
    detail::StepClock& clock = detail::gradient_exchange_of(*worker_)->clock();
    if (shared_ == nullptr) {
      clock.enter(detail::StepClock::Part::optimizer);
      inner_->step();
      clock.enter(detail::StepClock::Part::compute);
      return;
    }
    std::vector<double> rates;
    for (const auto& group : inner_->param_groups()) rates.push_back(group.options().get_lr());
    clock.enter(detail::StepClock::Part::wait);
    shared_->begin_update(rates);
    clock.enter(detail::StepClock::Part::optimizer);
    inner_->step();
    clock.enter(detail::StepClock::Part::wait);
    shared_->end_update();
    clock.enter(detail::StepClock::Part::compute);
  }

  /// Scales all gradients so that their common norm is max_norm at most, and returns what it was. A collective.
  /// Cost: one pass over this rank's pieces and one small all-reduce.
  double clip_grad_norm_(double max_norm) {
    const at::NoGradGuard no_grad;
    double square = 0;
    const auto add = [&square](const at::Tensor& gradient) {
      // In the type of a half tensor the norm itself would overflow.
      const at::Tensor numbers = detail::as_real(gradient);
      const double norm = numbers.norm(2, at::toOpMathType(numbers.scalar_type())).template item<double>();
      square += norm * norm;
    };
    for_each_piece([&](at::Tensor& piece) { add(piece.grad()); });
    if (shared_ == nullptr || worker_->rank() == 0) for_each_whole([&](at::Tensor& whole) { add(whole.grad()); });
    if (shared_ != nullptr) worker_->all_reduce(buffer_of_value(square), ReduceOp::sum);
    const double norm = std::sqrt(square);
    const double factor = max_norm / (norm + 1e-6);
    if (factor >= 1) return norm;
    const auto scale = [factor](at::Tensor& tensor) { tensor.mutable_grad().mul_(factor); };
    for_each_piece(scale);
    for_each_whole(scale);
    return norm;
  }

  /// Returns the averaged gradients in full, in the order of the parameters; undefined where there is none. A
  /// collective, and not for every step. Cost: one all-reduce of all of them.
  [[nodiscard]] std::vector<at::Tensor> full_gradients() const {
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

  /// Whether the ranks share the weights, and each updates its piece.
  [[nodiscard]] bool is_sharded() const noexcept { return shared_ != nullptr; }

 private:
  void check(const at::Tensor& parameter) const {
    detail::GradientSlot* slot = detail::gradient_exchange_of(*worker_)->find(parameter);
    if (slot == nullptr) {
      throw ConfigError{fmt::format(
          "prepare_optimizer on rank {}/{}: a parameter {} is of no prepared model, so its gradients would not be "
          "averaged: call prepare_model() first",
          worker_->rank(), worker_->world_size(), detail::shape_of(parameter))};
    }
    if (slot->piece.expired()) return;
    throw ConfigError{
        fmt::format("prepare_optimizer on rank {}/{}: the parameter \"{}\" has a prepared optimizer already: let that "
                    "one end first",
                    worker_->rank(), worker_->world_size(), slot->name)};
  }

  [[nodiscard]] at::Tensor full_gradient(const at::Tensor& parameter, const detail::GradientPiece& piece) const {
    const bool is_here = !piece.is_empty() && piece.weights.grad().defined();
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
      "use it as it is, with prepare_model() alone.");
  if constexpr (detail::ElementwiseOptimizer<X>) return PreparedOptimizer<X>{worker, groups, defaults};
}

/// Makes an optimizer for a prepared model; see PreparedOptimizer. X is SGD, Adam, AdamW, Adagrad or RMSprop. Every
/// rank calls it, after prepare_model(), and drops it before the training function ends. Throws: ConfigError if a
/// parameter is of no prepared model, or shares its memory with another tensor. Example: auto optimizer =
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

[[nodiscard]] inline State module_state(const torch::nn::Module& module) {
  State state;
  for (const NamedTensor& named : tensors_of(module)) {
    if (!named.tensor.defined()) continue;
    if (named.tensor.is_complex()) state.values.set("complex." + named.name, true);
    state.tensors.push_back(whole_state(named.name, named.tensor));
  }
  return state;
}

// Writes a saved tensor to where a module's is: of weights that ranks share, this rank's piece.
inline void put_tensor(const SavedTensor& saved, const at::Tensor& target) {
  const auto piece = GradientExchange::piece_of(target);
  if (!piece) return saved.read_into(target);
  if (!piece->is_empty()) saved.read_piece(target, piece->begin, piece->end, piece->weights);
}

inline void put_module_state(torch::nn::Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  UnreadTensors unread{state};
  std::vector<std::pair<SavedTensor, at::Tensor>> fitting;
  std::vector<std::string> problems;
  for (const NamedTensor& named : tensors_of(module)) {
    if (!named.tensor.defined()) continue;
    const StateTensor* tensor = unread.take(named.name);
    if (tensor == nullptr) {
      problems.push_back(compose("\"{}\" {} was not saved", named.name, shape_of(named.tensor)));
      continue;
    }
    const SavedTensor saved = saved_rows(*tensor);
    const bool was_complex = state.values.find("complex." + named.name) != nullptr;
    if (saved.fits(as_real(named.tensor.detach())) && was_complex == named.tensor.is_complex()) {
      fitting.emplace_back(saved, named.tensor);
    } else {
      problems.push_back(compose("\"{}\" was saved as {}{} and is {} here", named.name, saved.text(),
                                 was_complex ? " (of complex numbers)" : "", shape_of(named.tensor)));
    }
  }
  unread.name_surplus(problems);
  if (!problems.empty()) {
    throw ConfigError{
        compose("the saved state of a module does not fit it: {}. Nothing was changed. Build the module "
                "as it was when it was saved, or begin without its state",
                joined(problems, "; "))};
  }
  for (const auto& [saved, target] : fitting) put_tensor(saved, target);
}

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

[[nodiscard]] inline State generator_state(at::Generator generator) {
  const std::lock_guard lock{generator.mutex()};
  State state;
  state.is_own = true;
  state.tensors.push_back(whole_state("generator", generator.get_state()));
  return state;
}

inline void put_generator_state(at::Generator generator, const State& state) {
  const StateTensor* saved = state.find_tensor("generator");
  if (saved == nullptr) throw ConfigError{"the saved state is not that of a generator of random numbers"};
  const std::lock_guard lock{generator.mutex()};
  const at::Tensor bytes = generator.get_state().clone();
  if (!saved_rows(*saved).fits(bytes)) {
    throw ConfigError{
        compose("the saved state of a generator of random numbers is {} and must be {}: it comes from "
                "another release of LibTorch or another kind of generator",
                saved_rows(*saved).text(), shape_of(bytes))};
  }
  saved_rows(*saved).read_into(bytes);
  generator.set_state(bytes);
}

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
  [[nodiscard]] State state() const { return detail::generator_state(at::detail::getDefaultCPUGenerator()); }
  void load_state(const State& state) { detail::put_generator_state(at::detail::getDefaultCPUGenerator(), state); }
};
static_assert(Stateful<TorchRandom>);

}  // namespace railyard::inline v0_1

// ---- railyard/torch/step_times.hpp
// Says what the steps of a training loop spend their time on. Torch room.

namespace railyard::inline v0_1 {

/// Returns where this worker's time has gone since its first exchange of gradients, or since the last call. Where the
/// ranks share memory, waiting is told from moving data; elsewhere both are `communication`.
/// Cost: none worth naming; measuring takes five looks at the clock per step.
/// Example: worker.report({{"loss", loss}, {"wait_share", ry::step_times(worker).share_of_wait()}});
[[nodiscard]] inline StepTimes step_times(Worker& worker) {
  return detail::gradient_exchange_of(worker)->clock().take(worker.world_size());
}

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

// Lets modules hold their worker weakly: they may outlive it.
struct JoinedNorms {
  static constexpr std::string_view extension_name = "torch.joined_norms";
  std::shared_ptr<Worker> worker{};  // owns nothing
};

[[nodiscard]] inline std::weak_ptr<Worker> weak_worker(Worker& worker) {
  auto& joined = worker.extension<JoinedNorms>();
  if (!joined.worker) joined.worker = std::shared_ptr<Worker>(std::make_shared<int>(), &worker);
  return joined.worker;
}

// Finds what has to be done to a tree of modules before anything of it is done: a model is changed whole or not at all.
class NormPlan {
 public:
  explicit NormPlan(torch::nn::Module& root) {
    visit(root, "", nullptr);
    for (const Place& place : places_) {
      // One reference is the container's, one its dictionary's; whoever has another would go on using a module that
      // is not synchronised.
      if (place.plain.use_count() > 2 * mentions_.at(place.identity)) refuse(place.path, held_elsewhere);
    }
  }

  // Empty, or what cannot be synchronised and why: one line each.
  [[nodiscard]] const std::string& refusals() const noexcept { return refusals_; }

  std::size_t apply(const std::weak_ptr<Worker>& worker) {
    for (const Place& place : places_) {
      auto& made = made_[place.identity];
      if (!made.pointer) made = place.make(*place.plain.lock(), worker, place.path);
      place.container->replace_module(place.key, made.pointer);
      *(place.container->begin() + static_cast<std::ptrdiff_t>(place.index)) = made.any;
    }
    for (const auto& join : joins_) join(worker);
    return made_.size() + joins_.size();
  }

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

  void refuse(const std::string& path, std::string_view why) {
    refusals_ += compose("\n  {} {}", path.empty() ? "the model itself" : path, why);
  }

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

  void visit(torch::nn::Module& module, const std::string& path, const Place* place) {
    if (plan_join<1>(module, path) || plan_join<2>(module, path) || plan_join<3>(module, path) ||
        plan_replacement<1, torch::nn::BatchNorm1dImpl>(module, path, place) ||
        plan_replacement<2, torch::nn::BatchNorm2dImpl>(module, path, place) ||
        plan_replacement<3, torch::nn::BatchNorm3dImpl>(module, path, place)) {
      return;
    }
    if (++mentions_[&module] > 1) return;  // a part that several others share
    const bool is_sequential = dynamic_cast<Sequential*>(&module) != nullptr;
    std::size_t index = 0;
    for (const auto& child : module.named_children()) {
      const std::string child_path = path.empty() ? child.key() : path + "." + child.key();
      Place inside{.index = index++,
                   .key = child.key(),
                   .path = child_path,
                   .plain = child.value(),
                   .identity = child.value().get()};
      if (is_sequential) inside.container = std::dynamic_pointer_cast<Sequential>(module.shared_from_this());
      visit(*child.value(), child_path, is_sequential ? &inside : nullptr);
    }
  }

  std::string refusals_{};
  std::vector<Place> places_{};
  std::vector<std::function<void(const std::weak_ptr<Worker>&)>> joins_{};
  std::unordered_map<const torch::nn::Module*, long> mentions_{};
  std::unordered_map<const torch::nn::Module*, Made> made_{};
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
