// SPDX-License-Identifier: MIT
// What of railyard::detail is not seen through railyard.hpp beside this, made by tools/amalgamate.py.
#pragma once
#include "railyard.hpp"


namespace railyard::inline v0_1 {
namespace detail {
/// Throws: ConfigError if two metrics were not made alike.
void add_sums(std::span<double> to, std::span<const double> sums, std::string_view what);
/// Returns the sums of a metric of that name as a state, each rank's own. They must stay where they are while it is
/// read.
[[nodiscard]] State state_of_sums(std::span<const double> sums, std::string_view what);
/// Throws: DataError if the state is another metric's, or has another number of sums.
void load_sums(std::span<double> sums, const State& state, std::string_view what);
/// Returns 0 for a part of nothing, as scikit-learn does.
[[nodiscard]] double ratio_of(double part, double whole) noexcept;

}
}

namespace railyard::inline v0_1 {
static_assert(SummedMetric<Accuracy>);
static_assert(SummedMetric<Auc>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Says what a failed call of the system means, and what to do where that is known.
[[nodiscard]] std::string explain_errno(int error);
[[noreturn]] void throw_system(std::string_view what, int error);
/// Makes a pipe, both ends closed on exec. Returns the end to read from, then the end to write to.
[[nodiscard]] std::pair<Descriptor, Descriptor> make_pipe(int flags, std::string_view what);
[[nodiscard]] std::int64_t monotonic_ns() noexcept;
/// Returns the time since the host was booted: suspended time counts, unlike in that of Deadline.
[[nodiscard]] std::chrono::nanoseconds boot_time() noexcept;
[[nodiscard]] timespec to_timespec(std::chrono::nanoseconds time) noexcept;
/// Sleeps while word holds expected, for at most the given time; may return early. Works across processes.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::nanoseconds at_most) noexcept;
/// Wakes everybody who sleeps on word.
void futex_wake(const std::atomic<std::uint32_t>& word) noexcept;
/// Changes the word and wakes everybody who sleeps on it.
void nudge(std::atomic<std::uint32_t>& word) noexcept;
[[nodiscard]] int open_pidfd(pid_t pid) noexcept;
void signal_pidfd([[maybe_unused]] int pidfd, [[maybe_unused]] int signal) noexcept;
/// Fills the bytes with what nobody can guess.
void fill_random(std::span<std::byte> bytes);
/// Returns what a small file of the system's says; empty if it cannot be read. Cost: a microsecond or two.
[[nodiscard]] std::string system_text(const char* path);
/// Returns what tells processes whose numbers mean the same for each other, "pid:[4026531836]"; empty if it cannot be
/// told.
[[nodiscard]] std::string pid_namespace();
/// Returns the bytes of memory that the host has.
[[nodiscard]] std::size_t physical_memory() noexcept;
/// Ends the program as the signal would have, had nobody caught it.
[[noreturn]] void end_by_signal(int signal);

}
}

namespace railyard::inline v0_1 {
static_assert(Work<FinishedWork>);
static_assert(SummedMetric<ConfusionMatrix>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Makes a heap of memory that no other process sees: up to size bytes, fewer if there are no addresses for so many.
/// Returns nullptr if there are none at all.
[[nodiscard]] std::shared_ptr<Heap> make_private_heap(std::size_t size, std::size_t max_cached);

}
}

namespace railyard::inline v0_1 {
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

}

namespace railyard::inline v0_1 {
namespace detail {
// LibTorch puts a backtrace of C++ frames after its message: nothing that helps, and longer than all the rest.
[[nodiscard]] std::string without_backtrace(std::string_view message);

}
}

namespace railyard::inline v0_1 {
static_assert(Stateful<Mean>);
static_assert(SummedMetric<Perplexity>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Whether a signal tells a run to end only where it is said that it does: else it is the program's own.
[[nodiscard]] constexpr bool is_users_own(int signal) noexcept { return signal == SIGUSR1 || signal == SIGUSR2; }
/// Returns "nan", "inf" or "-inf" for what is not finite.
[[nodiscard]] std::string non_finite_text(double value);
/// Returns a metric as a progress line shows it: four significant digits, text as it is.
[[nodiscard]] std::string short_text(const Value& value);
/// Repeats a call that a signal has interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}
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
[[nodiscard]] std::uint64_t crc32c_word(const std::byte* from) noexcept;
// These three take and return the inverted value, so that parts can be added up.
[[nodiscard]] std::uint32_t crc32c_by_table(std::uint32_t state, std::span<const std::byte> bytes) noexcept;

}
}

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
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

}
}

#endif

namespace railyard::inline v0_1 {
namespace detail {
[[nodiscard]] std::uint32_t crc32c_update(std::uint32_t state, std::span<const std::byte> bytes) noexcept;
/// Returns the length of the UTF-8 sequence at the start of text, or 0 if there is none that is valid.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;
/// Appends the character of a code point, which is no half of a surrogate pair, as UTF-8.
void append_utf8(std::string& text, std::uint32_t code);
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;
/// Says what to do about an error of the storage.
[[nodiscard]] std::string remedy_of(int error, const std::filesystem::path& path);
/// Says why what is written below this directory would not last, or nothing if no reason is known.
[[nodiscard]] std::string_view doubt_about(const std::filesystem::path& directory);
[[noreturn]] void throw_storage(const std::filesystem::path& path, const FailedCall& failed);
void check_call(int result, std::string_view call, const std::filesystem::path& path);
/// Throws: DataError.
[[noreturn]] void throw_unreadable(const std::filesystem::path& path, int error);
/// Returns the names of what is in a directory; none if there is no such one. Throws: DataError if it cannot be read.
[[nodiscard]] std::vector<std::string> names_in_directory(Files& files, const std::filesystem::path& path);
/// Reads from an open file, in as many calls as it takes. Returns how many bytes there were, less than were asked for
/// only at its end, with errno 0, or where it cannot be read.
std::size_t read_some(Files& files, int fd, std::uint64_t begin, std::span<std::byte> to);
/// Returns what is in a file; nothing if there is none. Throws: DataError if it cannot be read.
[[nodiscard]] std::optional<std::string> content_of(Files& files, const std::filesystem::path& path);
/// Makes what has been done to the entries of a directory durable.
void sync_directory(Files& files, const std::filesystem::path& path);
/// Makes a directory, and those above it that are not there, each of which lasts then. Returns 0, or the error.
[[nodiscard]] int make_directories(Files& files, const std::filesystem::path& path);
/// Removes a file, or a directory with all that is in it. Returns 0, or the error that it has met first; goes on all
/// the same.
int remove_all(Files& files, const std::filesystem::path& path);
/// A file of so many bytes or more goes past the system's cache, if its memory begins at a multiple of the block, which
/// is that of nearly all disks or larger.
inline constexpr std::size_t smallest_direct_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t direct_block_bytes = 4096;
/// Says that a checkpoint is no longer one, since its program keeps newer ones.
class RemovedError : public DataError {
 public:
  explicit RemovedError(const std::filesystem::path& file);
};
/// Writes two digits for each byte.
[[nodiscard]] std::string hexadecimal(std::span<const std::byte> bytes);
/// Reads what hexadecimal() has written; nothing if it is something else.
[[nodiscard]] std::optional<std::string> from_hexadecimal(std::string_view digits);
/// Builds the text of one JSON object, lists in one line.
class JsonWriter {
 public:
  /// is_indented: for people; otherwise there is no white space at all.
  explicit JsonWriter(bool is_indented);

  /// Begins a member of the innermost object; its value follows.
  JsonWriter& name(std::string_view name);
  void text(std::string_view text);
  void raw(std::string_view value);

  void open();
  void close();
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
  [[nodiscard]] std::string finish();

 private:
  void separate();
  void break_line();

  bool is_indented_;
  std::string text_;
  std::size_t depth_ = 1;
  bool is_first_ = true;
};
// What JSON has no form for stands in an object of one name: {"f64": bits} and {"bytes": digits}, in hexadecimal.
void write_tagged(JsonWriter& writer, std::string_view tag, std::string_view text);
void write_value(JsonWriter& writer, bool value);
void write_value(JsonWriter& writer, std::int64_t value);
void write_value(JsonWriter& writer, double value);
void write_value(JsonWriter& writer, const std::string& text);
void write_values(JsonWriter& writer, const NamedValues& values);
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
[[nodiscard]] std::string read_bytes(std::string_view digits);
[[nodiscard]] NamedValues read_values(const Json& json);
inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view user_folder = "files/";
[[nodiscard]] bool has_control_characters(std::string_view text) noexcept;
/// Returns text as a message may show it.
[[nodiscard]] std::string printable(std::string_view text);
/// Says why name cannot be that of a file or directory, or nothing if it can.
[[nodiscard]] std::string_view fault_of_name(std::string_view name);
/// Says why a file of a checkpoint cannot have this name, or nothing if it can: one name, or more below "files/".
[[nodiscard]] std::string_view fault_of_path(std::string_view path);
/// Says why a part of the training cannot have this name, or nothing if it can.
[[nodiscard]] std::string_view fault_of_part(std::string_view name);
/// Returns the name of the part that holds what was learned of the samples of a dataset.
[[nodiscard]] std::string preprocessor_part(std::string_view dataset);
[[nodiscard]] std::string tensors_name(std::string_view part);
[[nodiscard]] std::string tensors_name(std::string_view part, int rank);
inline constexpr std::string_view state_name = "state.json";
[[nodiscard]] std::string state_name_of(int rank);
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
// The text begins with its own checksum, that of everything behind its eight digits: of the file that says whether the
// others are whole, somebody has to say that.
inline constexpr std::string_view manifest_head = "{\n  \"checksum\": \"";
inline constexpr std::size_t checksum_digits = 8;
[[nodiscard]] std::string manifest_checksum(std::string_view text);
[[nodiscard]] std::string manifest_text(const Manifest& manifest);
/// Throws: Damage.
[[nodiscard]] Manifest read_manifest(std::string_view text);
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
[[nodiscard]] std::string_view tag_of(Dtype dtype);
[[nodiscard]] Dtype dtype_of_tag(std::string_view tag);
/// Returns the product of the sizes of a shape, which may be anything. Throws: Damage if there is no such tensor.
[[nodiscard]] std::int64_t checked_count(const std::vector<std::int64_t>& shape);
/// Says why a tensor cannot have this name, or nothing if it can.
[[nodiscard]] std::string_view fault_of_tensor(std::string_view name);
/// Gives each tensor its place: without gaps, as the format wants it, and the larger elements first, so that each is
/// aligned to its own size. Returns the size of the data.
std::uint64_t place_tensors(std::span<TensorPlace> tensors);
/// Returns what stands before the data: its own length in eight bytes, JSON, and spaces up to a multiple of 64 bytes,
/// so that whoever maps the file finds the data aligned.
[[nodiscard]] std::string tensors_header(std::span<const TensorPlace> tensors);
/// Reads the length of the header from the first eight bytes of a file. Throws: Damage.
[[nodiscard]] std::uint64_t read_tensors_header_length(std::span<const std::byte, 8> bytes,
                                                              std::uint64_t file_size);
[[nodiscard]] TensorPlace read_tensor_place(const std::string& name, const Json& json);
/// Every byte of the data must belong to exactly one tensor.
void check_tensor_places(const std::vector<TensorPlace>& tensors, std::uint64_t data_size);
/// Reads a header, without the eight bytes before it, in front of data_size bytes of data. Throws: Damage.
[[nodiscard]] std::vector<TensorPlace> read_tensors_header(std::string_view header, std::uint64_t data_size);
void check_range(std::int64_t begin, std::int64_t end, std::int64_t count);
/// Returns the tensors of a file, which stays open for as long as one of their read functions lives.
[[nodiscard]] std::vector<StateTensor> tensors_in(const std::shared_ptr<const InputFile>& file);
/// Throws: Damage.
[[nodiscard]] std::vector<PiecePlace> read_piece_places(const Json& json);
/// Returns the score, larger is better; nothing if there is none, or it is NaN or no number.
[[nodiscard]] std::optional<double> score_of(const Manifest& manifest, const Retention& retention);
/// Returns the checkpoints, which are given oldest first, in the order of their worth: the best first, of equals the
/// later first.
[[nodiscard]] std::vector<Checkpoint> ranked(const std::vector<Checkpoint>& checkpoints,
                                                    const Retention& retention);
[[noreturn]] void refuse_part(std::string_view part, std::string_view why);
void check_tensor(const NamedState& part, const StateTensor& tensor);
/// former: the names of the parts before it, to which it is added. Throws: ConfigError if it cannot be the next one.
void check_part_name(std::string_view part, std::set<std::string_view>& former);
void check_parts(std::span<const NamedState> parts);
[[nodiscard]] FileImage text_image(std::string name, std::string text);
/// Is what has to be remembered of a file of tensors until it is filled.
struct TensorsImage {
  std::vector<StateTensor> tensors{};
  std::vector<TensorPlace> places{};
  std::string header{};

  void fill(std::byte* to) const;
};
[[nodiscard]] bool has_pieces(const State& state) noexcept;
// Where the pieces of this rank lie in the whole.
void write_pieces(JsonWriter& writer, const State& state);
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
/// Returns where the part of count elements begins that a rank reduces for all, and its size: slices of whole cache
/// lines, so that no two ranks write to one line of an aligned buffer.
[[nodiscard]] std::pair<std::size_t, std::size_t> slice_of(std::size_t count, const World& world) noexcept;
/// Is the type in which elements of type T are combined: float for the half types, so that a sum is rounded once; a
/// byte for bool, because memory that a peer has sent may hold other values than 0 and 1.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float,
                                       std::conditional_t<std::is_same_v<T, bool>, unsigned char, T>>;
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
/// Appends plain values to a message. All ends are one program on machines of one kind: no byte order to settle.
class WireWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  void put_text(std::string_view text);
  /// What is put last needs no length: the message's own says it.
  void put_rest(std::span<const std::byte> bytes);

  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::string text() const;
  void reserve(std::size_t size);

 private:
  std::vector<std::byte> bytes_;
};
[[nodiscard]] std::string stage_key(const std::string& prefix, std::string_view stage, int rank);
/// Says that await_each() will be called: before this rank's own value is set, so that the others' come meanwhile.
void expect_each(Store& store, const std::string& prefix, std::string_view stage, const World& world);
/// Up to so many ranks, each asks for what every other one leaves. Where there are more, rank 0 does, and leaves all of
/// it for the others: the store then answers a number of requests that grows as the ranks do, not as their square.
inline constexpr int most_who_ask_all = 64;
[[nodiscard]] bool asks_all(const World& world) noexcept;
[[nodiscard]] std::string gathered_key(const std::string& prefix, std::string_view stage);
/// Says that await_all() will be called, likewise.
void expect_all(Store& store, const std::string& prefix, std::string_view stage, const World& world);
/// Announces this rank, with a word of it, to the next group of that kind on the store and returns the group's prefix
/// for keys; the words are those of the stage "here". A store may serve several groups, one after the other or at once:
/// every rank's n-th connect with a kind belongs to group n.
[[nodiscard]] std::string enter_group(Store& store, std::string_view kind, const World& world,
                                             std::string_view word);
[[nodiscard]] std::string enter_group(Store& store, std::string_view kind, const World& world);
/// Waits until every rank has left something under prefix + stage + "/" + rank, and returns the values by rank; a rank
/// that did not come by the deadline has none.
[[nodiscard]] std::vector<std::optional<std::string>> await_each(Store& store, const std::string& prefix,
                                                                        std::string_view stage, const World& world,
                                                                        const Deadline& deadline);
[[nodiscard]] std::string pack_values(const std::vector<std::optional<std::string>>& values);
[[nodiscard]] std::vector<std::optional<std::string>> unpack_values(std::string_view text);
/// Lets the others have what there is, before rank 0 leaves by an exception of its own.
void leave_all(Store& store, const std::string& prefix, std::string_view stage, const World& world,
                      const Deadline& deadline) noexcept;
/// Throws: CollectiveError that names the ranks without a value.
void throw_if_missing(const std::vector<std::optional<std::string>>& values, const World& world,
                             const Deadline& deadline);
/// Throws ConfigError if the world makes no sense.
void check_world(const World& world);

}
}

namespace railyard::inline v0_1 {
static_assert(Backend<Local>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// So many ranks of one host share memory at most.
inline constexpr int most_host_ranks = 256;
static_assert(offsetof(Post, payload) == 64);
/// Bits of RankCell::flags.
struct Flag {
  static constexpr std::uint32_t failed = 1;   ///< its verdict stands; whoever waits for it gives up
  static constexpr std::uint32_t failing = 2;  ///< somebody writes its verdict, or has
  static constexpr std::uint32_t left = 4;     ///< its object is gone
};
/// Chooses the size of every rank's arena: address space, of which only what is used takes memory.
[[nodiscard]] std::size_t choose_arena_size(std::size_t wanted, int world_size);
[[noreturn]] void refuse_addresses(const std::string& what, std::size_t size, int error);
/// Returns private memory that becomes real as it is touched. Throws: ConfigError if there is no address space left.
[[nodiscard]] std::shared_ptr<Mapping> map_private(std::size_t size, const std::string& what);
/// Returns a file in memory without a name, of no size; no descriptor if the system makes none.
[[nodiscard]] Descriptor try_memory_file() noexcept;
/// Gives a file in memory that size; makes one without a name if it is not open. Throws: ConfigError if the system
/// makes none or not of that size.
[[nodiscard]] Descriptor size_memory_file(Descriptor file, std::size_t size, const std::string& what);
/// Maps a rank's segment. Throws: ConfigError if there is no address space left.
[[nodiscard]] std::shared_ptr<Mapping> map_shared(const Descriptor& file, std::size_t size,
                                                         const std::string& what);
/// Returns the bytes that a file in memory takes.
[[nodiscard]] std::size_t memory_of(const Descriptor& file) noexcept;
/// Maps the pages that the file has already at once, instead of each as it is first written to. A page that is read
/// brings its neighbours with it, which takes a third less time than MADV_POPULATE_READ: that asks for each.
void map_pages(const Descriptor& file, const Mapping& mapping) noexcept;
/// Tells the processor that this is a loop which waits.
void pause_briefly() noexcept;
// The files of a control group that tell of its memory, in one of the two versions that the kernel has.
struct MemoryFiles {
  std::string_view limit{};
  std::string_view used{};
  // In memory.stat: files in the cache, which the kernel gives up before it runs out of memory.
  std::string_view inactive{};
  std::string_view active{};
};
inline constexpr MemoryFiles memory_files_v1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                                             "total_active_file"};
inline constexpr MemoryFiles memory_files_v2{"memory.max", "memory.current", "inactive_file", "active_file"};
// What a group's limit leaves; as much as can be where it has none, or is not to be seen. enough: more than that need
// not be told from it. What is used takes the kernel longer to tell than the limit, and statistics several times as
// long; neither is asked for where nothing depends on it.
[[nodiscard]] std::size_t memory_left_in(const std::filesystem::path& group, const MemoryFiles& files,
                                                std::size_t enough);
// Returns the least of the host's memory and of what memory_of(group, files, least so far) says of the groups that this
// process is in, of both versions, and all above them, whose limits count as well. Inside of a container the path may
// be one of the host, of which only the mount itself is there.
template <class MemoryOf>
[[nodiscard]] std::size_t least_memory(const ControlGroups& groups, const MemoryOf& memory_of) {
  std::size_t least = physical_memory();
  const auto look_at = [&](std::filesystem::path group, const std::string& path, const MemoryFiles& files) {
    least = std::min(least, memory_of(group, files, least));
    for (const auto& part : std::filesystem::path{path}.relative_path()) {
      group /= part;
      least = std::min(least, memory_of(group, files, least));
    }
  };
  std::istringstream membership{system_text(groups.membership.c_str())};
  bool is_v1 = false;  // memory is in one hierarchy only, and the kernel lists that of version 2 last
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",," && !is_v1) look_at(groups.mount, path, memory_files_v2);
    if (controllers.find(",memory,") == std::string::npos) continue;
    is_v1 = true;
    look_at(groups.mount / "memory", path, memory_files_v1);
  }
  return least;
}
/// Returns the bytes of memory that this process may have: the memory of the host, or what the control group of a
/// container is given.
[[nodiscard]] std::size_t memory_limit(const ControlGroups& groups = {});
// Returns a number of /proc/meminfo, which tells of KiB, in bytes.
[[nodiscard]] std::optional<std::size_t> number_of_host(const std::filesystem::path& host,
                                                               std::string_view name);
/// Returns the same without what other programs of the host have taken: the bytes that can be had without any of them
/// having to go. host: /proc/meminfo.
[[nodiscard]] std::size_t memory_free(const std::filesystem::path& host = "/proc/meminfo",
                                             std::size_t left = memory_left());
/// Throws: ConfigError if the ranks need more to begin with than is left.
void check_memory_left(int world_size, std::size_t needed_per_rank, std::size_t left);
/// Says where a rank runs. Plain bytes, for a store. What is left at zero tells nothing apart.
struct Whereabouts {
  std::array<char, 40> boot_id{};  ///< of the running kernel
  std::uint64_t pid_namespace = 0;
  std::int32_t process = 0;
  std::int32_t file = -1;  ///< the number, in that process, of the file in memory that becomes its segment
  std::uint64_t arena_size = 0;
  std::uint64_t kept = 0;  ///< memory that an earlier start of this rank has left for it
  cpu_set_t cores{};

  [[nodiscard]] static Whereabouts here(std::size_t wanted_arena, int world_size);
  /// Names what numbers of processes and files mean something in. Cost: some ten microseconds.
  void name_system();
  [[nodiscard]] bool is_reached_from(const Whereabouts& other) const noexcept;
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
  GroupBuilder(const World& world, Store& store, const Deadline& deadline);
  GroupBuilder(const GroupBuilder&) = delete;
  GroupBuilder& operator=(const GroupBuilder&) = delete;
  ~GroupBuilder();

  /// Throws: CollectiveError that names who did not come or could not join; ConfigError, on all ranks, that says why
  /// they cannot share memory.
  [[nodiscard]] SharedGroup build(std::string_view kind, std::size_t wanted_arena);

 private:
  // What rank 0 makes for threads of one process, until each of them has its share of it.
  struct Handover {
    std::atomic<int> references;
    std::size_t available = 0;
    std::vector<std::shared_ptr<Mapping>> mappings{};
  };

  [[nodiscard]] std::string key(std::string_view stage, int rank) const;
  [[nodiscard]] std::string place() const;

  static constexpr char good = 'g';
  static constexpr char refused = 'r';
  static constexpr char failed = 'f';

  // Leaves what make() returns for the others, or why it has thrown.
  template <class Make>
  void leave(std::string_view stage, const Make& make) {
    std::string own;
    try {
      own = good + make();
    } catch (const ConfigError& error) {
      own = refused + std::string{error.what()};
    } catch (const std::exception& error) {
      own = failed + std::string{error.what()};
    }
    store_.set(key(stage, world_.rank), own);
  }

  // Returns what a rank has left. Throws if it has failed.
  [[nodiscard]] std::string take(int rank, const std::string& value) const;

  // Does so, and returns what all have left. Throws on all ranks if one has failed: connect() succeeds everywhere or
  // nowhere.
  template <class Make>
  std::vector<std::string> exchange(std::string_view stage, const Make& make) {
    expect_all(store_, prefix_, stage, world_);
    leave(stage, make);
    const auto found = await_all(store_, prefix_, stage, world_, deadline_);
    throw_if_missing(found, world_, deadline_);
    std::vector<std::string> values;
    for (int rank = 0; rank < world_.size; ++rank) values.push_back(take(rank, *found[static_cast<std::size_t>(rank)]));
    return values;
  }

  // Leaves what make() returns on rank 0 for all, and returns it on every rank, or throws on each.
  template <class Make>
  std::string hand_out(std::string_view stage, const Make& make) {
    if (world_.rank == 0) leave(stage, make);
    std::vector<std::optional<std::string>> found(static_cast<std::size_t>(world_.size), "");
    found.front() = store_.get(key(stage, 0), deadline_);
    throw_if_missing(found, world_, deadline_);
    return take(0, *found.front());
  }

  // Finds what all can do with, and whether they are threads of one process.
  void compare(const Whereabouts& own, const std::vector<Whereabouts>& all);

  void check_reach(const Whereabouts& own, const std::vector<Whereabouts>& all) const;

  // Returns the memory that there is for all ranks, as far as this one can tell.
  std::size_t check_memory() const;

  void make_cell(const Mapping& mapping) const;

  void share_with_threads();

  // A key of a store can be set once, which makes it a lock that is taken once: either a late rank claims its seat and
  // will release its share, or a rank that waited in vain claims it and the late rank keeps away.
  [[nodiscard]] bool claim(int rank);

  // Gives back this rank's share of the handover, and those of ranks that will not come any more.
  void release() noexcept;

  // A file may be mapped before its own process has given it its size; it is looked at when all have said so.
  void share_with_processes(const Whereabouts& own, const std::vector<Whereabouts>& all);

  [[nodiscard]] static Descriptor open_memory(int rank, pid_t process, int number);

  const World& world_;
  Store& store_;
  std::string prefix_;
  const Deadline& deadline_;
  Handover* handover_ = nullptr;
  bool has_seat_ = false;
  bool is_complete_ = false;  // every rank has its seat, and gives it back itself
  std::size_t left_ = 0;      // memory that the container or the host has left
  std::size_t kept_ = 0;      // and what all ranks have already
  Descriptor file_;           // of this rank's segment, among processes
  SharedGroup group_{};
};
// Arrays of bytes at any address, seen as arrays of T if all of them are aligned for that.
template <class T>
[[nodiscard]] inline bool are_aligned(std::span<std::byte* const> targets, std::span<const std::byte* const> sources) {
  const auto is_aligned = [](const std::byte* data) {
    return reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0;
  };
  return std::all_of(targets.begin(), targets.end(), is_aligned) &&
         std::all_of(sources.begin(), sources.end(), is_aligned);
}
/// Combines count elements of all sources, in their order, into every target. Targets may be sources.
/// Cost: reads every source once and writes every target once.
void reduce_into(std::span<std::byte* const> targets, std::span<const std::byte* const> sources, std::size_t count,
                 Dtype dtype, ReduceOp op);

}
}

namespace railyard::inline v0_1 {
static_assert(Backend<SharedMemory>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Does the same nearly as fast as memory is read, for what is compared within a run: values change between releases.
/// Source: Wang Yi's wyhash (public domain) for the step, a product of two words whose halves are folded.
[[nodiscard]] std::uint64_t quick_digest_of(std::span<const std::byte> bytes,
                                                   std::uint64_t digest = 0) noexcept;
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
[[nodiscard]] std::vector<std::size_t> ordered_indices(std::size_t count);
// Returns 0 to count - 1 in an order that is a function of count and seed only.
[[nodiscard]] std::vector<std::size_t> shuffled_indices(std::size_t count, std::uint64_t seed);

}
}

#if (defined(__SSE2__))

namespace railyard::inline v0_1 {
namespace detail {
// 16 characters at a time: what every x86-64 processor has keeps up with the memory that the text comes from.
class Bytes64 {
 public:
  explicit Bytes64(const char* text) noexcept;
  [[nodiscard]] std::uint64_t equal_to(char character) const noexcept;
  [[nodiscard]] bool is_ascii() const noexcept;

 private:
  __m128i parts_[4];
};

}
}

#endif

#if !(defined(__SSE2__))

namespace railyard::inline v0_1 {
namespace detail {
class Bytes64 {
 public:
  explicit Bytes64(const char* text) noexcept;
  [[nodiscard]] std::uint64_t equal_to(char character) const noexcept;
  [[nodiscard]] bool is_ascii() const noexcept;

 private:
  const char* text_;
};

}
}

#endif

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
template <std::size_t Count>
[[gnu::target("avx2")]] bool mark_bytes_avx2(const char* text, std::size_t blocks,
                                             const std::array<char, Count>& wanted, ByteMarks<Count>* marks) noexcept {
  Bytes32 all{};
  for (std::size_t block = 0; block < blocks; ++block) {
    Bytes32 low;
    Bytes32 high;
    std::memcpy(&low, text + 64 * block, sizeof low);
    std::memcpy(&high, text + 64 * block + 32, sizeof high);
    all |= low | high;
#pragma GCC unroll 4
    for (std::size_t at = 0; at < Count; ++at) {
      const auto first = static_cast<std::uint32_t>(__builtin_ia32_pmovmskb256(Bytes32(low == wanted[at])));
      const auto second = static_cast<std::uint32_t>(__builtin_ia32_pmovmskb256(Bytes32(high == wanted[at])));
      marks[block][at] = first | std::uint64_t{second} << 32;
    }
  }
  return __builtin_ia32_pmovmskb256(all) == 0;
}
template <std::size_t Count>
[[gnu::target("avx512f,avx512bw")]] bool mark_bytes_avx512(const char* text, std::size_t blocks,
                                                           const std::array<char, Count>& wanted,
                                                           ByteMarks<Count>* marks) noexcept {
  __m512i all = _mm512_setzero_si512();
  for (std::size_t block = 0; block < blocks; ++block) {
    const __m512i bytes = _mm512_loadu_si512(text + 64 * block);
    all = _mm512_or_si512(all, bytes);
#pragma GCC unroll 4
    for (std::size_t at = 0; at < Count; ++at) {
      marks[block][at] = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(wanted[at]));
    }
  }
  return _mm512_movepi8_mask(all) == 0;
}

}
}

#endif

namespace railyard::inline v0_1 {
namespace detail {
template <std::size_t Count>
bool mark_bytes_anywhere(const char* text, std::size_t blocks, const std::array<char, Count>& wanted,
                         ByteMarks<Count>* marks) noexcept {
  bool is_ascii = true;
  for (std::size_t block = 0; block < blocks; ++block) {
    const Bytes64 bytes{text + 64 * block};
    for (std::size_t at = 0; at < Count; ++at) marks[block][at] = bytes.equal_to(wanted[at]);
    is_ascii = is_ascii && bytes.is_ascii();
  }
  return is_ascii;
}
/// Marks the wanted characters in so many blocks of 64. Returns whether all of the text is ASCII.
template <std::size_t Count>
bool mark_bytes(const char* text, std::size_t blocks, const std::array<char, Count>& wanted,
                ByteMarks<Count>* marks) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw")) return mark_bytes_avx512(text, blocks, wanted, marks);
  if (__builtin_cpu_supports("avx2")) return mark_bytes_avx2(text, blocks, wanted, marks);
#endif
  return mark_bytes_anywhere(text, blocks, wanted, marks);
}
/// How many blocks are best marked at a time: the marks stay in the nearest cache.
inline constexpr std::size_t blocks_at_once = 64;
/// Returns for each bit how many bits at it and before it are set, modulo 2: of quotes, what lies within them.
[[nodiscard]] constexpr std::uint64_t parity_before(std::uint64_t bits) noexcept {
  bits ^= bits << 1;
  bits ^= bits << 2;
  bits ^= bits << 4;
  bits ^= bits << 8;
  bits ^= bits << 16;
  bits ^= bits << 32;
  return bits;
}
/// Are the places of some characters in a text, and which of them end lines. Behind both lists there is room for 64
/// more.
struct PlaceLists {
  std::uint32_t* places = nullptr;
  std::size_t num_places = 0;
  std::uint32_t* lines = nullptr;  ///< numbers of places
  std::size_t num_lines = 0;
};
// Both for any processor, and for one that counts bits: the same steps, whether there are bits or not, because a branch
// would be mispredicted.
struct AnyBits {
  [[nodiscard]] [[gnu::always_inline]] static std::size_t count(std::uint64_t bits) noexcept {
    return count_bits(bits);
  }
  // Returns which bit is the lowest; any number if there is none. Compilers make a branch of that if they may.
  [[nodiscard]] [[gnu::always_inline]] static std::uint32_t lowest(std::uint64_t bits) noexcept {
    return static_cast<std::uint32_t>(std::countr_zero(bits | std::uint64_t{1} << 63));
  }
};

}
}

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
struct CountedBits {
  [[nodiscard]] [[gnu::always_inline]] static std::size_t count(std::uint64_t bits) noexcept {
    return static_cast<std::size_t>(std::popcount(bits));
  }
  [[nodiscard]] [[gnu::always_inline]] static std::uint32_t lowest(std::uint64_t bits) noexcept {
    std::uint64_t place;
    asm("tzcntq %[bits], %[place]" : [place] "=r"(place) : [bits] "r"(bits) : "cc");
    return static_cast<std::uint32_t>(place);
  }
};

}
}

#endif

namespace railyard::inline v0_1 {
namespace detail {
// One line end is noted, whether there is one or not, and then those that are left.
template <class Bits>
[[gnu::always_inline]] inline void note_lines(std::uint64_t places, std::uint64_t ends, PlaceLists& to) noexcept {
  do {
    const std::uint64_t before = (ends & (~ends + 1)) - 1;
    to.lines[to.num_lines] = static_cast<std::uint32_t>(to.num_places + Bits::count(places & before));
    to.num_lines += ends != 0;
    ends &= ends - 1;
  } while (ends != 0);
}
// Eight at a time, whether there are so many or not: the next ones overwrite what is too much.
template <class Bits>
[[gnu::always_inline]] inline void note_each(std::uint64_t places, std::uint32_t begin, std::uint32_t* to) noexcept {
  do {
#pragma GCC unroll 8
    for (std::size_t at = 0; at < 8; ++at) {
      to[at] = begin + Bits::lowest(places);
      places &= places - 1;
    }
    to += 8;
  } while (places != 0);
}
template <class Bits>
[[gnu::always_inline]] inline void note_places_by(const PlaceMarks* marks, std::size_t blocks, std::size_t begin,
                                                  PlaceLists& lists) noexcept {
  PlaceLists to = lists;
  for (std::size_t block = 0; block < blocks; ++block, begin += 64) {
    const std::uint64_t places = marks[block][0] | marks[block][1];
    note_lines<Bits>(places, marks[block][1], to);
    note_each<Bits>(places, static_cast<std::uint32_t>(begin), to.places + to.num_places);
    to.num_places += Bits::count(places);
  }
  lists = to;
}

}
}

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
[[gnu::target("bmi,popcnt")]] inline void note_places_bmi(const PlaceMarks* marks, std::size_t blocks,
                                                          std::size_t begin, PlaceLists& lists) noexcept {
  note_places_by<CountedBits>(marks, blocks, begin, lists);
}
// Sixteen at a time: most blocks have fewer, so that there is nothing to foresee.
[[gnu::target("avx512f,avx512bw,avx512vbmi2,bmi,popcnt")]] inline void note_places_vbmi2(const PlaceMarks* marks,
                                                                                         std::size_t blocks,
                                                                                         std::size_t begin,
                                                                                         PlaceLists& lists) noexcept {
  constexpr __mmask16 all_words = 0xFFFF;  // GCC 12 warns about its own code in the functions without a mask
  constexpr __mmask8 all_longs = 0xFF;
  const __m512i each = _mm512_set_epi64(0x3F3E3D3C3B3A3938, 0x3736353433323130, 0x2F2E2D2C2B2A2928, 0x2726252423222120,
                                        0x1F1E1D1C1B1A1918, 0x1716151413121110, 0x0F0E0D0C0B0A0908, 0x0706050403020100);
  PlaceLists to = lists;
  for (std::size_t block = 0; block < blocks; ++block, begin += 64) {
    const std::uint64_t places = marks[block][0] | marks[block][1];
    note_lines<CountedBits>(places, marks[block][1], to);
    const std::size_t count = CountedBits::count(places);
    const __m512i from = _mm512_set1_epi32(static_cast<int>(begin));
    __m512i which = _mm512_maskz_compress_epi8(places, each);
    for (std::size_t done = 0;; done += 16) {
      const __m512i sixteen = _mm512_maskz_cvtepu8_epi32(all_words, _mm512_maskz_extracti32x4_epi32(0xF, which, 0));
      _mm512_storeu_si512(to.places + to.num_places + done, _mm512_add_epi32(from, sixteen));
      if (count <= done + 16) break;
      which = _mm512_maskz_shuffle_i64x2(all_longs, which, which, 0b00'11'10'01);
    }
    to.num_places += count;
  }
  lists = to;
}

}
}

#endif

namespace railyard::inline v0_1 {
namespace detail {
/// Appends where the characters are that the first two marks of so many blocks of 64 mark. The second are those that
/// end lines. begin: of the first block.
void note_places(const PlaceMarks* marks, std::size_t blocks, std::size_t begin, PlaceLists& lists) noexcept;
/// So many bytes more than a copy has may be written behind it.
inline constexpr std::size_t copy_padding = 64;
/// Copies a text, behind which as much can be read. Most are short: whole strides are copied.
void copy_short(const char* from, std::size_t size, char* to) noexcept;
// The text between the quotes around it, in which each quote is one of a pair: the first of each is copied.
std::size_t copy_unpaired_anywhere(const char* from, std::size_t left, char quote, char* to) noexcept;

}
}

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
[[gnu::target("avx512f,avx512bw,avx512vbmi2,popcnt")]] inline std::size_t copy_unpaired_vbmi2(const char* from,
                                                                                              std::size_t left,
                                                                                              char quote,
                                                                                              char* to) noexcept {
  std::size_t size = 0;
  std::uint64_t second = 0;  // all bits if the next quote is the second of a pair, or none
  for (;; from += 64, left -= 64) {
    const __m512i text = _mm512_loadu_si512(from);
    const std::uint64_t inside = lowest_bits(left);
    const std::uint64_t quotes = _mm512_cmpeq_epi8_mask(text, _mm512_set1_epi8(quote)) & inside;
    const std::uint64_t firsts = parity_before(quotes) ^ second;
    const std::uint64_t kept = inside & ~(quotes & ~firsts);
    _mm512_storeu_si512(to + size, _mm512_maskz_compress_epi8(kept, text));
    size += static_cast<std::size_t>(std::popcount(kept));
    if (left <= 64) return size;
    second = (firsts >> 63) != 0 ? ~std::uint64_t{0} : 0;
  }
}

}
}

#endif

namespace railyard::inline v0_1 {
namespace detail {
/// Copies what a field within quotes says, which is no longer than the field. Behind the field 64 more characters can
/// be read. Returns how many characters that are.
std::size_t copy_unquoted(std::string_view field, char quote, char* to) noexcept;
__extension__ typedef unsigned __int128 Wide;
/// Holds the points of a stream that nobody has asked for yet.
class StreamPoints {
 public:
  /// Bytes after the last one, or after where it was opened.
  [[nodiscard]] std::uint64_t since(std::uint64_t offset) const noexcept { return offset - last_; }
  void begin_at(std::uint64_t offset) noexcept;
  void add(StreamPoint point);
  /// As ByteStream::take_point().
  [[nodiscard]] std::optional<StreamPoint> take(std::uint64_t offset);

 private:
  static constexpr std::size_t most_kept = 8;  // nobody may ask

  std::deque<StreamPoint> points_;
  std::uint64_t last_ = 0;
};
/// Steps over bytes, whatever is damaged of them, and returns how many: fewer than asked for only at the end, or where
/// damage ends the stream.
[[nodiscard]] std::uint64_t skip_past_damage(ByteStream& stream, std::uint64_t size);
/// Throws: DataError that says why a path cannot be read.
[[noreturn]] void refuse_file(const std::string& path, std::string_view why);
/// Returns why a file cannot be read from any of its places, by its kind; empty if it can.
[[nodiscard]] std::string fault_of_kind(const struct stat& status);
/// Throws: DataError if there is no file of that path that can be read.
void check_file(const std::string& path);
/// Whether lines of a text end with carriage returns that are not within quotes, and none with a line feed; but for
/// what it ends with. Of the begin of a longer text, whose first line may simply be long, only where there are many.
[[nodiscard]] bool has_only_carriage_returns(std::string_view text, bool is_whole) noexcept;
/// Names the format of a file that begins as compressed ones do; empty otherwise.
[[nodiscard]] std::string_view compression_of(std::string_view text) noexcept;
/// Says how such a file is read; empty otherwise.
[[nodiscard]] std::string_view fault_of_compression(std::string_view text) noexcept;
/// Is a place in a compressed file, and what tells that file from others: its size, and the bytes before the place.
struct CompressedPlace {
  std::uint64_t offset = 0;
  std::uint64_t file_size = 0;
  std::uint64_t digest = 0;
};
/// Hands out the compressed bytes of a file piece by piece.
class CompressedInput {
 public:
  /// kind: what compression_of() should say of it.
  CompressedInput(const std::string& path, std::string_view kind);

  /// Returns the next piece, which is empty at the end.
  [[nodiscard]] std::string_view next();
  /// Where the next piece begins.
  [[nodiscard]] std::uint64_t offset() const noexcept { return read_; }
  void seek(std::uint64_t offset) noexcept;
  /// Where it stands; nothing in what is no file, as a pipe. left: bytes of the last piece that were not taken.
  [[nodiscard]] std::optional<CompressedPlace> place(std::size_t left) const;
  /// Goes there and returns the bytes before it, at most 4 KiB; nothing if it is not in this file.
  [[nodiscard]] std::optional<std::string> go_to(const CompressedPlace& place);

  /// left: as above. is_over: see StreamDamage.
  [[noreturn]] void fail(std::string_view what, std::size_t left, bool is_over = true) const;

 private:
  [[nodiscard]] std::string before(std::uint64_t offset) const;

  std::string path_;
  std::string_view kind_;
  FileBytes file_;
  std::vector<char> piece_;
  std::uint64_t read_ = 0;
};
/// Reads on until cut() finds so many records in what is there: least, and enough or 16 MiB of them. Throws: DataError
/// if the first ones are longer than records may be, and may not be left out.
template <class Cut>
void cut_head(TextHead& head, std::size_t least, std::size_t enough, std::size_t max_record_bytes, OnError on_error,
              const Cut& cut) {
  constexpr std::size_t enough_bytes = std::size_t{16} << 20;
  while (true) {
    const std::size_t records = cut();
    const bool has_least = records >= least || (!on_error.stops_at_once() && head.size() / least > max_record_bytes);
    if (head.is_whole() || (has_least && (records >= enough || head.size() >= enough_bytes))) return;
    if (!has_least && head.size() / least > max_record_bytes) {
      throw DataError{compose("{}: the first record is longer than {} bytes", head.file(), max_record_bytes)};
    }
    const std::size_t most = std::min(max_record_bytes, enough_bytes << 10U);
    head.grow(has_least ? enough_bytes : least * (most + 1) + utf8_mark.size());
  }
}
/// Returns where the first byte is, at or after `from`, that is no part of UTF-8 text; the size if there is none.
[[nodiscard]] std::size_t find_invalid_utf8(std::string_view text, std::size_t from = 0) noexcept;
// Finds the type of a column from its fields.
class CsvTypeGuess {
 public:
  /// Behind the text 64 more characters can be read.
  void add(std::string_view text, const CsvPlan& plan);
  [[nodiscard]] bool is_text() const noexcept { return is_text_; }
  [[nodiscard]] Field field(std::string name, Dtype floats) const;

 private:
  // Whether it is clear at a glance that it is no more than it was.
  [[nodiscard]] bool is_short_number(std::string_view text) const noexcept;

  bool has_missing_ = false;
  bool has_number_ = false;
  bool has_boolean_ = false;
  bool is_integer_ = true;
  bool is_number_ = true;
  bool is_text_ = false;
};
void check_csv_options(const CsvSourceOptions& options);
/// Says what is wrong with a text of which a header is the first record; nothing if that is sound.
[[nodiscard]] std::string fault_of_csv_header(const CsvCutter& cutter);
/// Throws: DataError unless it is sound.
void check_csv_header(const CsvCutter& cutter, const std::string& file);
// Returns the names in the first record; a column without one is called after its place.
[[nodiscard]] std::vector<std::string> csv_names(const CsvCutter& cutter, char quote, bool has_names);
std::vector<Field> guess_csv_fields(const CsvPlan& plan, const CsvCutter& cutter);
// Returns what to say where columns are looked for in vain, if another character than the delimiter seems to be it.
[[nodiscard]] std::string delimiter_hint(const CsvCutter& cutter, char delimiter);
void choose_csv_columns(CsvPlan& plan, std::vector<Field> fields);
/// Says whether a file has more than its header.
[[nodiscard]] bool has_csv_records(const CsvSourceOptions& options, const TextHead& head);
[[nodiscard]] std::shared_ptr<const CsvPlan> make_csv_plan(const CsvSourceOptions& options,
                                                                  const std::string& file, TextHead& head);

}
}

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
/// Makes ends and sizes of the first separators.
[[gnu::target("avx512f")]] inline void find_sizes(NumberPlaces& places, std::size_t count) noexcept {
  for (std::size_t at = count; at < NumberPlaces::most; ++at) places.separators[at] = {0, 1};
  const __m512i every_second = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i one = _mm512_set1_epi32(1);
  for (std::size_t at = 0; at < NumberPlaces::most; at += 16) {
    const __m512i low = _mm512_load_si512(&places.separators[at]);
    const __m512i high = _mm512_load_si512(&places.separators[at + 8]);
    const __m512i before = _mm512_permutex2var_epi32(low, every_second, high);
    const __m512i ends = _mm512_permutex2var_epi32(low, _mm512_add_epi32(every_second, one), high);
    _mm512_store_si512(&places.ends[at], ends);
    _mm512_store_si512(&places.sizes[at], _mm512_sub_epi32(_mm512_sub_epi32(ends, before), one));
  }
}

}
}

#endif

namespace railyard::inline v0_1 {
namespace detail {
[[nodiscard]] bool is_contiguous(std::span<const std::size_t> rows) noexcept;
[[nodiscard]] Column join_columns(std::span<const Block> blocks, std::size_t column);
[[nodiscard]] bool have_siblings(std::span<const Block> blocks) noexcept;
// Those of all samples of some blocks, one block after another; of others than flat_map() has made they are 0.
[[nodiscard]] std::vector<std::uint64_t> join_siblings(std::span<const Block> blocks);
[[nodiscard]] Column gather_ragged(std::span<const Block> parts, std::span<const RowOfPart> rows,
                                          std::size_t column);
[[nodiscard]] Column gather_fixed(std::span<const Block> parts, std::span<const RowOfPart> rows,
                                         std::size_t column);
// Returns the block with ids that count from elsewhere.
[[nodiscard]] Block with_ids_from(const Block& block, std::uint64_t first);
// Gives each text that a text with braces stands for, in their order: "x-{000..146}.tar", "{train,test}.csv". Braces
// around neither a range nor a list are characters like others.
class BraceExpansion {
 public:
  // Throws: ConfigError if there are more than anybody means.
  [[nodiscard]] static std::vector<std::string> of(const std::string& text);

 private:
  static constexpr std::size_t most = 1'000'000;

  // Where the brace that opens here closes.
  [[nodiscard]] static std::size_t end_of(const std::string& text, std::size_t open);

  // What stands between braces, whose braces are expanded as well; empty if it is no choice.
  [[nodiscard]] static std::vector<std::string> choices_of(const std::string& text, std::size_t begin,
                                                           std::size_t end);

  // The numbers of "7..12" or "007..012", of as many digits as the first has; empty if it is no such range.
  [[nodiscard]] static std::vector<std::string> range_of(const std::string& text, std::string_view range);
  [[nodiscard]] static std::optional<std::uint64_t> number_of(std::string_view digits);

  [[nodiscard]] static std::vector<std::string> all_with(const std::string& text,
                                                         const std::vector<std::string>& before,
                                                         const std::vector<std::string>& choices);
};

}
}

namespace railyard::inline v0_1 {
static_assert(IndexedSource<CsvSource>);
static_assert(DatasetSource<CsvStream> && !IndexedSource<CsvStream>);
static_assert(LearningPreprocessor<AnyPreprocessor>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Of files that are larger together, and of columns in memory that are, only parts are looked at.
inline constexpr std::size_t most_stock_bytes = std::size_t{4} << 20;
/// Calls look(begin, size) with parts of so many bytes, together `most` at most and spread evenly from the first byte
/// to the last one. Returns whether they are all.
template <class Look>
bool look_at_parts(std::uint64_t size, std::uint64_t most, const Look& look) {
  constexpr std::uint64_t parts = 64;
  if (size <= most) {
    look(std::uint64_t{0}, size);
    return true;
  }
  const std::uint64_t each = std::max<std::uint64_t>(most / parts, 1);
  const std::uint64_t stride = (size - each) / (parts - 1);
  for (std::uint64_t part = 0; part + 1 < parts; ++part) look(stride * part, each);
  look(size - each, each);
  return false;
}
/// Is what two stocks tell of each other.
struct StockDifference {
  std::string text{};         ///< one sentence; empty if there is none
  bool is_certain = false;    ///< otherwise the samples may still be the same
  bool moves_places = false;  ///< other samples stand at the places, for it is of operations
};
// Takes what comes before a character off a text, and the character.
std::string_view cut_before(char end, std::string_view& rest) noexcept;
// Returns the lines of files and memory, which stocks of every version have.
[[nodiscard]] std::string contents_of_stock(std::string_view stock);
// Of stocks whose lines of operations follow.
[[nodiscard]] StockDifference difference_of_operations(std::string_view then, std::string_view now);
// Of lines of one kind, which is cut off; nothing if it cannot be told that the samples are others.
[[nodiscard]] StockDifference difference_of_lines(std::string_view kind, std::string_view then,
                                                         std::string_view now);
/// Returns the first difference that is certain, or else the first one. Of a stock of another version, files and memory
/// alone are compared.
[[nodiscard]] StockDifference difference_of_stocks(std::string_view then, std::string_view now);
inline constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Writes four characters for each three bytes, without padding.
[[nodiscard]] std::string base64(std::string_view bytes);
/// Reads what base64() has written; nothing if it is something else.
[[nodiscard]] std::optional<std::string> from_base64(std::string_view text);
// Tells bytes from those that are damaged.
[[nodiscard]] std::string seal_of(const ReaderState& state);
// Numbers with a space between two; a state is its sample, a colon, and its bytes with a seal.
[[nodiscard]] std::string text_of_place(const Place& place);
// Reads a number; nothing if the text is none.
[[nodiscard]] std::optional<std::uint64_t> whole_number(std::string_view text) noexcept;
// Reads what text_of_place() has written; nothing if it is something else, or damaged.
[[nodiscard]] std::optional<Place> place_of_text(std::string_view text);
// Tells the scheduler that the calling thread does what has time: when it is woken, it waits for a core instead of
// taking the one of who has woken it, which may be the training loop. A policy that somebody has set stays.
void have_time() noexcept;
// Does so for blocks that several threads make.
class SharedRowGauge {
 public:
  explicit SharedRowGauge(std::size_t block_bytes) noexcept;

  // How many of so many samples the next part of them should have: about as many as each of the others.
  [[nodiscard]] std::size_t part_of(std::size_t rows) const;
  void saw(std::size_t rows, std::size_t bytes);

 private:
  mutable std::mutex mutex_{};
  RowGauge gauge_;
};
/// Is one whose state nobody knows.
class PlainGenerator final : public RunningGenerator {
 public:
  explicit PlainGenerator(std::function<bool(SampleWriter& out)> function);
  [[nodiscard]] bool make(SampleWriter& out) override;

 private:
  std::function<bool(SampleWriter& out)> function_;
};

}
}

namespace railyard::inline v0_1 {
static_assert(IndexedSource<SampleFunctionSource>);
static_assert(ResumableSource<GeneratorSource> && !FileStreamSource<GeneratorSource> &&
              !IndexedSource<GeneratorSource>);

}

namespace railyard::inline v0_1 {
namespace detail {
[[nodiscard]] std::vector<std::uint64_t> places_between(std::uint64_t begin, std::uint64_t end);
// Knows how much operations make of what they are given. Used by many threads.
class OperationGauges {
 public:
  // Each of them may hold a block while the last one gives its own.
  OperationGauges(std::size_t operations, std::size_t block_bytes);
  // More than what comes out where the gauges are right.
  [[nodiscard]] PartLimit limit() const noexcept;
  [[nodiscard]] SharedRowGauge& whole() noexcept { return whole_; }
  [[nodiscard]] SharedRowGauge& operator[](std::size_t operation) noexcept { return each_[operation]; }

 private:
  std::size_t block_bytes_;  // of each
  SharedRowGauge whole_;
  std::deque<SharedRowGauge> each_;
};
// Puts a block through operations, in parts of which each makes about as much as a block should have: of how many
// samples is known from those before, and one that makes more of them stops. Of one sample, whatever becomes of it.
class OperationRun {
 public:
  OperationRun(std::shared_ptr<const OperationChain> chain, std::shared_ptr<OperationGauges> gauges,
               const EpochKey& key, Block input);

  // The next samples that come out: it may be none, while there is a rest.
  [[nodiscard]] Block next();
  // The bytes that have not gone through all of them yet.
  [[nodiscard]] std::optional<std::size_t> rest() const;

 private:
  // How many operations there are up to the last one that has samples to go on with.
  [[nodiscard]] std::size_t last_with_input() const noexcept;
  [[nodiscard]] Block apply(std::size_t at);
  void note_end();

  std::shared_ptr<const OperationChain> chain_;
  std::shared_ptr<OperationGauges> gauges_;
  EpochKey key_;
  std::size_t num_rows_;
  std::vector<Block> inputs_;      // of each operation, what it has yet to be given
  std::vector<std::size_t> made_;  // bytes, by each operation
};
// Cuts the blocks of a stream into parts that threads put through operations.
class OperationPlan {
 public:
  OperationPlan(std::shared_ptr<const OperationChain> chain, const Scope& scope, PlaceCursor& from);

  [[nodiscard]] std::optional<Work> next();

 private:
  std::unique_ptr<ChunkStream> input_;
  std::shared_ptr<OperationGauges> gauges_;
  std::shared_ptr<const OperationChain> chain_;
  Scope scope_;
  Chunk chunk_{};           // of which there are samples left
  bool continues_ = false;  // those come after others from the same place
};
class RowReader {
 public:
  // A stream goes on only at the begin of one of its blocks; the samples of that block which were taken already are
  // read again and skipped.
  RowReader(const NodePtr& node, const Scope& scope, PlaceCursor& from);

  // Where a reader begins that gives what this one gives next.
  void append_place(Place& place) const;

  // Takes the next samples, at most so many and at least one, as they lie in the stream's blocks; none at the end.
  [[nodiscard]] Block some(std::size_t most);

  // How many samples some() can give at once: none only at the end.
  [[nodiscard]] std::size_t available();

  // Takes so many samples, fewer only at the end, as they lie in the stream's blocks. share: gets what they take, at
  // once, so that the stream reads less far ahead while more of them are taken.
  [[nodiscard]] std::vector<Block> take_parts(std::size_t count, MemoryShare& share);
  // Takes so many samples, fewer only at the end.
  [[nodiscard]] Block take(std::size_t count);

  // Goes past samples, as many of them as there are.
  void skip(std::uint64_t count);

 private:
  // Goes on to a block that has samples left. False at the end.
  [[nodiscard]] bool advance();

  NodePtr node_;
  Scope scope_;
  std::unique_ptr<ChunkStream> stream_;
  Chunk chunk_{};
  std::size_t used_;  // of the chunk's samples, or more, where some are yet to be skipped
  bool is_over_ = false;
};
class HeldWindow {
 public:
  // name: of the operation, for messages.
  HeldWindow(const Scope& scope, std::string name);
  HeldWindow(const HeldWindow&) = delete;
  HeldWindow& operator=(const HeldWindow&) = delete;
  ~HeldWindow();

  // Holds the next samples of the stream instead of what it held, at most so many: fewer only at its end.
  void load(RowReader& rows, std::size_t most);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  // Gives the next samples of an order of the window, as many as a block should have.
  [[nodiscard]] Chunk give(std::span<const std::size_t> order, Place place) const;

  // The bytes of each sample in one column.
  [[nodiscard]] std::vector<std::size_t> sizes(std::size_t column) const;

 private:
  void hold(Block part);

  // Leaves what a batch of such samples takes; where that is more than the bound, the batch is what breaks it.
  [[nodiscard]] std::size_t most_bytes() const noexcept;

  [[nodiscard]] RowOfPart find(std::size_t row) const;

  Scope scope_;
  std::string name_;
  std::vector<Block> parts_;
  std::vector<std::size_t> starts_;  // of the parts in the window
  std::vector<MemoryShare> shares_;
  std::size_t rows_ = 0;
  std::size_t bytes_ = 0;
};
// Goes through a stream window by window, and gives the samples of each in an order of its own. Its place: the number
// of the window, how many samples of it have been given, what the kind of window adds, and where the window begins.
class WindowStream : public ChunkStream {
 public:
  [[nodiscard]] Chunk next() final;

 protected:
  // name: of the operation, for messages. num_added: how many numbers of a place the kind of window adds.
  WindowStream(const NodePtr& upstream, std::string name, const Scope& scope, PlaceCursor& from,
               std::size_t num_added = 0);

  // Says how many samples the window of that number holds, but for the last one.
  [[nodiscard]] virtual std::size_t size_of(std::uint64_t number) = 0;
  [[nodiscard]] virtual std::vector<std::size_t> order_of(const HeldWindow& window, std::uint64_t number) const = 0;

  [[nodiscard]] std::vector<std::uint64_t>& added() noexcept { return added_; }
  [[nodiscard]] const std::vector<std::uint64_t>& added() const noexcept { return added_; }

 private:
  [[nodiscard]] static PlaceCursor& skip(PlaceCursor& from, std::vector<std::uint64_t>& added);

  // Reads the next window, or the one that the place says. False at the end.
  bool load();

  std::uint64_t number_;
  std::size_t given_;
  std::vector<std::uint64_t> added_;
  RowReader rows_;
  HeldWindow window_;
  Place begin_{};  // of the window
  std::vector<std::size_t> order_;
};
// Is a node with one other under it, whose columns it has.
class OrderNode : public DataNode {
 public:
  OrderNode(NodePtr upstream, std::string operation);

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] bool is_indexed() const override;
  [[nodiscard]] Ending ending() const override;
  [[nodiscard]] bool costs_a_copy() const override;
  [[nodiscard]] bool is_reordered() const override;
  [[nodiscard]] std::uint64_t id_span() const override;
  [[nodiscard]] std::uint64_t depth() const override;
  void count_skipped(SkipCounts& counts) const override;
  void visit_shelves(const ShelfVisit& visit) const override;
  void take_stock(DataStock& stock) const override;

 protected:
  // Tells it from others of its name.
  [[nodiscard]] virtual std::uint64_t settings() const { return 0; }
  [[nodiscard]] const NodePtr& upstream() const noexcept { return upstream_; }

 private:
  NodePtr upstream_;
  std::string operation_;
};
// The samples [begin, end) of a node.
class RangeNode final : public OrderNode {
 public:
  static constexpr std::uint64_t to_the_end = ~std::uint64_t{0};

  RangeNode(NodePtr upstream, std::string operation, std::uint64_t begin, std::uint64_t end);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] Ending ending() const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  class Stream final : public ChunkStream {
   public:
    Stream(const RangeNode& node, const Scope& scope, PlaceCursor& from);
    [[nodiscard]] Chunk next() override;

   private:
    static constexpr std::uint64_t most_rows = 1U << 30U;

    Scope scope_;
    std::uint64_t at_;
    std::uint64_t end_;
    RowReader rows_;
  };

  std::uint64_t begin_;
  std::uint64_t end_;
};
// Samples of an indexed node by their places.
class SelectionNode final : public OrderNode {
 public:
  SelectionNode(NodePtr upstream, std::string operation, std::vector<std::uint64_t> places);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 protected:
  [[nodiscard]] std::uint64_t settings() const override;

 private:
  std::vector<std::uint64_t> places_;
};
// An indexed node in another order each epoch.
class ShuffleNode final : public OrderNode {
 public:
  ShuffleNode(NodePtr upstream, std::uint64_t seed);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 protected:
  [[nodiscard]] std::uint64_t settings() const override { return seed_; }

 private:
  // The order that was asked for last is kept, for every block of an epoch asks for it.
  [[nodiscard]] std::shared_ptr<const Permutation> order_of(const EpochKey& key) const;

  std::uint64_t seed_;
  mutable std::mutex mutex_{};
  mutable std::uint64_t order_seed_ = 0;
  mutable std::shared_ptr<const Permutation> order_;
};
// Says what bucket_by_length() brings together.
struct Bucketing {
  std::size_t column = 0;
  std::size_t group = 1;   // samples of similar length that follow each other
  std::size_t window = 1;  // samples among which they are looked for: a multiple of group
};
// Returns an order in which samples of similar size stand in groups. The groups come at random, and so do the samples
// of each, so that workers that divide a group have equally much to do. What is left over is the last group.
[[nodiscard]] std::vector<std::size_t> bucketed_indices(std::span<const std::size_t> sizes, std::size_t group,
                                                               std::uint64_t seed);
class BucketNode final : public OrderNode {
 public:
  BucketNode(NodePtr upstream, const Bucketing& bucketing);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  // Adds to a place the sizes of its window and of the groups: a run that goes on with another size of batches must end
  // this window as it was.
  class Stream final : public WindowStream {
   public:
    Stream(const BucketNode& node, const Scope& scope, PlaceCursor& from);

   private:
    // The first window is of a size drawn for each epoch, so that the borders of windows move.
    [[nodiscard]] std::size_t size_of(std::uint64_t number) override;
    [[nodiscard]] std::vector<std::size_t> order_of(const HeldWindow& window, std::uint64_t number) const override;

    Bucketing bucketing_;
    std::uint64_t seed_;
    bool is_of_place_;  // the window to come is the one that a place says
  };

  Bucketing bucketing_;
};
[[noreturn]] void refuse_file(std::string_view what, const std::string& path, int error);
// Says how long to wait for a process that writes nothing, and when to say first that one waits.
struct DraftPatience {
  std::chrono::nanoseconds patience = std::chrono::minutes{5};
  std::chrono::nanoseconds first_word = std::chrono::seconds{10};
};
// Is a file with ".part" behind its name until it is whole. The kernel's lock on it says that somebody writes it, and
// ends with that process, whatever ends it: the next one writes the same file. Only a draft beside that one, which has
// a random name, is left behind by a process that is killed.
class DraftFile {
 public:
  // Waits as long as another process goes on writing, which it does once per block. Behind that, look whether the file
  // is there by now. Where the other one writes nothing for so long, or there are no locks, this draft has its own
  // file. Throws: Error if nobody wants it any more, see WaitWatch.
  explicit DraftFile(std::string path, const DraftPatience& waiting = {});
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;
  // Removes what is not whole.
  ~DraftFile();

  void write(std::span<const std::byte> bytes);

  // Gives the file its name. Returns what it is read through, which is this file also where another process puts its
  // own in that place.
  [[nodiscard]] Descriptor publish();

 private:
  enum class Claim { mine, others, none };

  // Who has the lock, as far as the kernel tells: not of processes of other hosts and containers.
  [[nodiscard]] std::string writer() const;

  [[nodiscard]] Descriptor open_part() const;
  // A name that nobody else has, in this process or in another one.
  void open_own_part();
  [[nodiscard]] Claim try_claim();
  // Said for the children, too, which have inherited the file.
  void unlock() const noexcept;

  std::string path_;
  std::string part_path_;
  Descriptor file_{};
};
// Some samples that were written together: column after column.
struct Segment {
  std::uint64_t rows = 0;
  std::vector<std::uint64_t> begins{};             // of the columns, in the file
  std::vector<std::vector<std::uint64_t>> ends{};  // of the samples in each column; empty where all are as long
  std::vector<std::uint64_t> ids{};
  std::vector<std::uint64_t> siblings{};  // empty where none was made of another
};
// Says what is kept: in words, which name another file where they differ, and what it was made of at that time; 0 if
// nobody knows.
struct SampleFileContent {
  std::string words{};
  std::uint64_t fingerprint = 0;
};
// Says where the samples are: the last part of the file, which is read at once.
struct SegmentIndex {
  SampleFileContent content{};
  std::vector<Segment> segments{};
  std::vector<std::uint64_t> page_hashes{};  // of all that is before the index
};
// Hashes bytes page by page, so that any of them can be checked by reading little more.
class PageHashes {
 public:
  static constexpr std::size_t page_bytes = 4096;

  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::uint64_t> finish();

 private:
  void end_page();

  std::vector<std::byte> page_;
  std::vector<std::uint64_t> hashes_;
};
// Turns an index into bytes and back.
class IndexBytes {
 public:
  [[nodiscard]] static std::string write(const SegmentIndex& index);
  // Nothing if the bytes are no index.
  [[nodiscard]] static std::optional<SegmentIndex> read(std::string bytes);

 private:
  void put(std::uint64_t number);
  template <class List>
  void put(const List& list) requires requires {
    list.data();
  }
  {
    put(list.size());
    bytes_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(*list.data()));
  }
  [[nodiscard]] std::uint64_t number();
  template <class List>
  void get(List& list) {
    const std::uint64_t size = number();
    is_whole_ = is_whole_ && size <= (bytes_.size() - at_) / sizeof(*list.data());
    if (!is_whole_) return;
    list.resize(static_cast<std::size_t>(size));
    take(list.data(), list.size() * sizeof(*list.data()));
  }
  void take(void* to, std::size_t size);

  std::string bytes_;
  std::size_t at_ = 0;
  bool is_whole_ = true;
};
// The end of the file.
struct SampleFileTail {
  std::uint64_t index_size = 0;
  std::uint64_t index_hash = 0;
  std::uint64_t magic =
      0x3345484341435952U;  // "RYCACHE3" where the low byte comes first; elsewhere the file is refused
};
// Writes the samples to a draft.
class SampleFileWriter {
 public:
  SampleFileWriter(DraftFile& draft, SampleFileContent content);

  void add(const Block& block);

  // Returns what the file is read through, which has its name by now.
  [[nodiscard]] Descriptor finish();

 private:
  DraftFile* draft_;
  std::uint64_t size_ = 0;
  PageHashes hashes_{};
  SegmentIndex index_{};
};
// Reads any samples of a file, and checks what it reads; used by many threads at once. Its index is in memory: 8 bytes
// per sample, 8 more where flat_map() has made it, 8 for each column that differs in length, and 9 per page.
class SampleFile {
 public:
  // Throws: DataError if it is damaged.
  SampleFile(Descriptor file, std::string path, std::shared_ptr<const Schema> schema);

  // Nothing if there is no such file, or if what it holds has changed where it came from. Throws: DataError if it is
  // damaged; ConfigError if it holds something else.
  [[nodiscard]] static std::unique_ptr<const SampleFile> open(const std::string& path,
                                                              const std::shared_ptr<const Schema>& schema,
                                                              const SampleFileContent& content);

  [[nodiscard]] std::uint64_t count() const noexcept;

  // The samples at the places, each below count().
  [[nodiscard]] Block read(std::span<const std::uint64_t> places) const;

 private:
  static constexpr std::size_t page_bytes = PageHashes::page_bytes;

  // Whether it is a cache as other releases have written it, and told less of samples, say.
  [[nodiscard]] static bool is_of_other_release(int file);

  // Whether all that it tells of its samples is there, and lies in the file.
  [[nodiscard]] bool fits(const Segment& segment) const;

  // Samples that follow each other in the file.
  struct Run {
    const Segment* segment = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  [[nodiscard]] std::vector<Run> runs_of(std::span<const std::uint64_t> places) const;

  // Where a sample of a column begins, from the begin of the column in its segment.
  [[nodiscard]] std::uint64_t offset_of(const Segment& segment, std::size_t column, std::uint64_t row) const;

  [[nodiscard]] Column read_column(const std::vector<Run>& runs, std::size_t column) const;

  // By whole pages, whose hashes are known, unless this process has checked them already.
  void read_data(std::byte* to, std::size_t size, std::uint64_t offset) const;
  [[nodiscard]] bool are_checked(std::uint64_t offset, std::size_t size) const noexcept;
  void check_pages(std::span<const std::byte> bytes, std::uint64_t page) const;

  void pread_all(void* to, std::size_t size, std::uint64_t offset) const;

  [[noreturn]] void refuse_damage() const;

  Descriptor file_;
  std::string path_;
  std::shared_ptr<const Schema> schema_;
  std::uint64_t data_size_ = 0;
  mutable std::vector<std::atomic<bool>> is_checked_;  // the pages
  SegmentIndex index_{};
  std::vector<std::uint64_t> ends_;  // of the segments, in samples
};
// Goes over all samples of an epoch on the calling thread. visit: given blocks in order; says whether to go on.
template <class Visit>
void for_each_block(const NodePtr& node, const EpochKey& key, Visit&& visit) {
  TaskPool pool{0};
  MemoryBudget budget{std::size_t{64} << 20U};
  PlaceCursor begin;
  const auto stream = node->open({key, &pool, &budget}, begin);
  ReadingToEnd reading{node};
  for (Chunk chunk = stream->next(); !chunk.block.empty(); chunk = stream->next()) {
    if (!visit(chunk.block)) return;
    reading.note(chunk.block.rows());
  }
}
// Adds what lies before a cache, which keeps one order of samples that come in another each epoch.
void take_stock_before_cache(const DataNode& upstream, DataStock& stock);
// Reads all when the first sample is asked for, or the count where that is not known; of processes that were forked
// behind it, the first does that for all. Whatever is random below is drawn once, as in epoch 0 of seed 0: else the
// samples would depend on when the cache was filled, and a run that goes on would see others.
class CacheNode final : public OrderNode {
 public:
  // most_bytes: of the samples, which are there twice for a moment.
  explicit CacheNode(NodePtr upstream, std::size_t most_bytes = memory_limit() / 2);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override { return true; }
  [[nodiscard]] bool costs_a_copy() const override { return true; }
  [[nodiscard]] bool is_reordered() const override { return false; }
  [[nodiscard]] std::uint64_t id_span() const override;
  void take_stock(DataStock& stock) const override;
  void visit_shelves(const ShelfVisit& visit) const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& /*key*/) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  [[nodiscard]] const Block& samples() const;
  // Calls a function for each block that has been read.
  template <class Progress>
  [[nodiscard]] std::vector<Block> read_all(Progress&& progress) const {
    std::vector<Block> parts{no_samples(schema())};
    std::size_t bytes = 0;
    std::uint64_t rows = 0;
    for_each_block(upstream(), {}, [&](const Block& block) {
      parts.push_back(block);
      bytes += bytes_of(block);
      rows += block.rows();
      if (bytes > most_bytes_) refuse(rows);
      progress();
      return true;
    });
    return parts;
  }
  [[noreturn]] void refuse(std::uint64_t rows) const;

  std::size_t most_bytes_;
  mutable SampleShelf shelf_{};
  mutable std::mutex mutex_{};
  mutable std::optional<Block> samples_;
};
// Does the same in a file, which is made when it is not there, or when what it holds has changed since. Of processes
// that want it at once one makes it, and the others wait as long as that one goes on.
class FileCacheNode final : public OrderNode {
 public:
  FileCacheNode(NodePtr upstream, std::string path);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override { return true; }
  [[nodiscard]] bool costs_a_copy() const override { return true; }
  [[nodiscard]] bool is_reordered() const override { return false; }
  [[nodiscard]] std::uint64_t id_span() const override;
  void take_stock(DataStock& stock) const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& /*key*/) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  // Whoever writes a file of which it is to read the samples would wait for itself.
  void check_path() const;

  [[nodiscard]] const SampleFile& file() const;

  [[nodiscard]] std::unique_ptr<const SampleFile> make(DraftFile& draft, const SampleFileContent& wanted) const;

  [[nodiscard]] SampleFileContent content() const;

  std::string path_;
  mutable std::mutex mutex_{};
  mutable std::unique_ptr<const SampleFile> file_;
};
// A number that is another where other operations, or others of their settings, choose and order the samples.
[[nodiscard]] std::uint64_t choice_of(const DataNode& node);
// That of a node which was made of another one by an operation whose arguments tell what it does.
[[nodiscard]] DatasetReading reading_after(DatasetReading before, const NodePtr& node, const NodePtr& made);
// Is a node with several others under it.
class JoiningNode : public DataNode {
 public:
  JoiningNode(std::shared_ptr<const Schema> schema, std::string operation, std::vector<NodePtr> parts);

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] bool is_indexed() const override;
  [[nodiscard]] Ending ending() const override;
  [[nodiscard]] bool costs_a_copy() const override;
  [[nodiscard]] bool is_reordered() const override;
  [[nodiscard]] std::uint64_t id_span() const override;
  [[nodiscard]] std::uint64_t depth() const override;
  void count_skipped(SkipCounts& counts) const override;
  void visit_shelves(const ShelfVisit& visit) const override;
  void take_stock(DataStock& stock) const override;

 protected:
  // Adds what tells it from others of its name, beyond the parts.
  virtual void add_settings(Fingerprint& /*settings*/) const {}
  [[nodiscard]] const std::vector<NodePtr>& parts() const noexcept { return parts_; }
  // Samples of a part get ids that no other part has.
  [[nodiscard]] std::uint64_t first_id(std::size_t part) const;
  [[nodiscard]] std::optional<std::uint64_t> sum_of_counts() const;

 private:
  std::string operation_;
  std::vector<NodePtr> parts_;
};
// One dataset after the other.
class ConcatNode final : public JoiningNode {
 public:
  explicit ConcatNode(const std::vector<NodePtr>& parts);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  // Its place: the number of the part, and where that stands.
  class Stream final : public ChunkStream {
   public:
    Stream(const ConcatNode& node, const Scope& scope, PlaceCursor& from);
    [[nodiscard]] Chunk next() override;

   private:
    std::shared_ptr<const ConcatNode> node_;
    Scope scope_;
    std::size_t part_;
    std::unique_ptr<ChunkStream> stream_;
  };
};
// Datasets side by side: the columns of each, for the samples at equal places. The ids are those of the first.
class ZipNode final : public JoiningNode {
 public:
  ZipNode(std::shared_ptr<const Schema> schema, std::vector<NodePtr> parts);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] std::uint64_t id_span() const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  [[nodiscard]] Block side_by_side(std::span<const Block> blocks) const;

  class Stream final : public ChunkStream {
   public:
    Stream(const ZipNode& node, const Scope& scope, PlaceCursor& from);
    // As many as each has at hand: so none holds more than a block.
    [[nodiscard]] Chunk next() override;

   private:
    std::shared_ptr<const ZipNode> node_;
    Scope scope_;
    std::vector<std::unique_ptr<RowReader>> readers_;
  };
};
// A dataset several times over, each time as another epoch of it; without end if no number of times is given.
class RepeatNode final : public OrderNode {
 public:
  RepeatNode(NodePtr upstream, std::optional<std::uint64_t> times);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override;
  [[nodiscard]] Ending ending() const override;
  [[nodiscard]] std::uint64_t id_span() const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  [[nodiscard]] static EpochKey key_of(const EpochKey& key, std::uint64_t pass) noexcept;
  // The samples of each pass get ids of their own, so that what is random above differs from pass to pass.
  [[nodiscard]] Block mark(const Block& block, std::uint64_t pass) const;

  // Its place: the number of the pass, and where that stands.
  class Stream final : public ChunkStream {
   public:
    Stream(const RepeatNode& node, const Scope& scope, PlaceCursor& from);
    [[nodiscard]] Chunk next() override;

   private:
    static constexpr std::uint64_t most_empty = 1000;

    [[noreturn]] void refuse() const;
    void open(PlaceCursor& from);

    std::shared_ptr<const RepeatNode> node_;
    Scope scope_;
    std::uint64_t pass_;
    std::unique_ptr<ChunkStream> stream_;
    std::uint64_t num_empty_ = 0;  // times up to now that gave nothing, one after another; a part of one is one
  };

  std::optional<std::uint64_t> times_;
};
// Draws for each sample which dataset it comes from. A dataset that has ended is drawn no more; the others go on.
class MixNode final : public JoiningNode {
 public:
  MixNode(const std::vector<NodePtr>& parts, const std::vector<double>& weights, std::uint64_t seed);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 protected:
  void add_settings(Fingerprint& settings) const override;

 private:
  // Its place: how many samples have been given, and where each part stands.
  class Stream final : public ChunkStream {
   public:
    Stream(const MixNode& node, const Scope& scope, PlaceCursor& from);

    [[nodiscard]] Chunk next() override;

   private:
    static constexpr std::size_t most_rows = 4096;

    // Draws where samples come from until one is drawn that has to be read first.
    std::vector<RowOfPart> draw_rows(const std::vector<std::size_t>& available);

    // Draws again where a part has ended, rather than among those that are left: so the draw depends on what ended
    // before this sample, not on when that was noticed. But where little is left, not for ever.
    [[nodiscard]] std::size_t draw(const std::vector<std::size_t>& available) const;

    std::shared_ptr<const MixNode> node_;
    Scope scope_;
    std::uint64_t seed_;
    std::uint64_t given_;
    std::vector<std::unique_ptr<RowReader>> readers_;
  };

  std::uint64_t seed_;
  std::vector<double> up_to_;  // sums of the weights, of which the last is 1
};
// Takes columns by their numbers.
[[nodiscard]] BlockFunction choose_columns(std::shared_ptr<const Schema> schema, std::vector<std::size_t> chosen);
// Cuts the stream into windows and gives each in an order of its own. Where the first one ends is drawn for each epoch,
// so that samples which one epoch keeps apart may meet in the next. A buffer out of which samples are drawn one by one
// would mix as well, but holds samples of any age: to go on in the middle, all of the stream would have to be read
// again. Here it is one window.
class WindowNode final : public OrderNode {
 public:
  WindowNode(NodePtr upstream, std::size_t window, std::uint64_t seed);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] bool is_reordered() const override { return true; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  [[nodiscard]] static std::string operation_of(std::size_t window, std::uint64_t seed);

  class Stream final : public WindowStream {
   public:
    Stream(const WindowNode& node, const Scope& scope, PlaceCursor& from);

   private:
    [[nodiscard]] std::size_t size_of(std::uint64_t number) override;
    [[nodiscard]] std::vector<std::size_t> order_of(const HeldWindow& window, std::uint64_t number) const override;

    std::size_t size_;
    std::uint64_t seed_;
  };

  std::size_t window_;
  std::uint64_t seed_;
};

}
}

namespace railyard::inline v0_1 {
static_assert(IndexedSource<MemorySource>);

}

namespace railyard::inline v0_1 {
namespace detail {
// The nodes of datasets that are to be put together, all with the columns of the first.
[[nodiscard]] std::vector<NodePtr> nodes_of(const std::vector<Dataset>& datasets, std::string_view operation);
// Whether loaders divide what is made of the datasets, which is at least one: as they do each of them.
[[nodiscard]] bool all_divided(const std::vector<Dataset>& datasets, std::string_view operation);
// The name that all of the datasets have; empty if they have several.
[[nodiscard]] std::string common_name(const std::vector<Dataset>& datasets);
// Makes a dataset of a node that joins datasets by the settings: workers have it alike where they have those alike.
[[nodiscard]] Dataset joined_of(const std::vector<Dataset>& datasets, NodePtr node, std::string label,
                                std::string_view operation, std::string_view settings = {});
// Lays cells out in columns, the first row of which are their names.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& rows);
[[nodiscard]] std::string number_text(double number);
// One cell of a table; long ones are cut.
[[nodiscard]] std::string cell_text(const Block& block, std::size_t column, std::size_t row);

}
}

namespace railyard::inline v0_1 {
static_assert(Stateful<EpochPosition>);

}

namespace railyard::inline v0_1 {
namespace detail {
// Fills in what the dataset says and the options do not.
[[nodiscard]] EpochOptions completed(EpochOptions options, const Dataset& dataset);
// Returns where the reader begins. Throws: ConfigError if the options cannot be met.
[[nodiscard]] EpochPosition check_epoch_options(const Dataset& dataset, const EpochOptions& options);
// Says which batches of what are gone over: workers that say the same are given parts of the same. name: of what all
// workers have alike and each gets as a whole; empty for what is divided among them.
[[nodiscard]] std::uint64_t feed_key(const DataNode& node, std::string_view name, const EpochOptions& options,
                                            const EpochPosition& from);
// The operations that each worker does by itself with what all have alike, and whole; nothing if they could not read
// that together, or if it costs each no more to have it than to be given it.
[[nodiscard]] std::optional<OperationChain> own_operations(const Dataset& dataset);
// Which samples of a part of a batch a worker is given, counted from the batch's begin: where there is none for it, one
// of another worker's if it asks for that.
[[nodiscard]] Range given_range(const EpochOptions& options, Range part) noexcept;
// Is an indexed node as a stream, in the order that an epoch has.
class EpochNode final : public OrderNode {
 public:
  EpochNode(NodePtr upstream, std::optional<Permutation> order);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& key) const override;
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;
  // Where an OwnBatches of it begins.
  [[nodiscard]] static Place place_of(std::uint64_t consumed);

 private:
  std::optional<Permutation> order_;
};
// Goes through the stream itself.
class OwnBatches final : public StreamBatches {
 public:
  OwnBatches(const NodePtr& node, const Scope& scope, const EpochOptions& options, Place from);

  [[nodiscard]] std::size_t begin() override;
  [[nodiscard]] Place place() const override;
  // Copied where the rest of the batch is other workers', so that its memory is not kept.
  [[nodiscard]] Block take(Range range) override;
  void end() noexcept override;

  // Samples of the batch, as they lie in memory.
  [[nodiscard]] std::vector<Block> slices_of(Range range) const;

 private:
  [[nodiscard]] static RowReader open(const NodePtr& node, const Scope& scope, Place from);

  NodePtr node_;
  Scope scope_;
  EpochOptions options_;
  RowReader rows_;
  std::vector<Block> batch_;  // of all workers
  MemoryShare share_{};
};
// What a message begins with; the place, the ids and the columns follow.
struct FeedMessage {
  std::uint64_t size = 0;  // of the batch, all workers together; of a block, how many samples come before it
  std::uint64_t rows = 0;  // of it, for this one
  std::uint64_t place = 0;
};
// What each item of a place begins with; the bytes of its state follow.
struct FeedItem {
  static constexpr std::uint64_t no_state = ~std::uint64_t{0};
  static constexpr std::uint64_t same_state = no_state - 1;  // as that item had in the message before

  std::uint64_t number = 0;
  std::uint64_t state = no_state;  // bytes
};
// before: what was sent last, and becomes this place.
[[nodiscard]] bool write_place(FeedWriter& to, Place place, Place& before, FeedPatience& patience);
// place: what was read last. False if the leader has left; then it is still that.
[[nodiscard]] bool read_place(FeedReader& from, std::size_t size, Place& place, FeedPatience& patience);
[[nodiscard]] bool write_block(FeedWriter& to, std::span<const Block> slices, FeedPatience& patience);
// Returns nothing if the leader has left. Of no rows, nothing was written.
[[nodiscard]] std::optional<Block> read_block(FeedReader& from, const std::shared_ptr<const Schema>& schema,
                                                     std::size_t rows, FeedPatience& patience);
// Goes through the stream, and gives the other workers of the host their parts of each batch, or all of it where each
// gets the whole.
class LedBatches final : public StreamBatches {
 public:
  LedBatches(std::unique_ptr<OwnBatches> own, const Scope& scope, const EpochOptions& options, HostFeed& feed,
             const FeedTaker& taker, std::uint64_t key);
  ~LedBatches() override;

  [[nodiscard]] std::size_t begin() override;
  [[nodiscard]] Place place() const override;
  [[nodiscard]] Block take(Range range) override;
  void end() noexcept override;

 private:
  [[nodiscard]] std::size_t read_for_all();

  void gather();

  void serve(std::size_t at, std::size_t size, FeedPatience& patience);

  [[nodiscard]] bool send(FeedWriter& writer, std::size_t size, Place& sent, FeedPatience& patience) const;

  std::unique_ptr<OwnBatches> own_;
  EpochOptions options_;
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  MemoryShare share_;                     // of what is under way to the others
  std::vector<FeedPatience> of_epoch_;  // with each of them, where they need not keep step
  std::vector<Place> sent_;             // to each of them
  bool has_begun_ = false;
};
// Has its parts of the batches from the worker that leads, and goes on by itself where that one leaves.
class FedBatches final : public StreamBatches {
 public:
  FedBatches(const NodePtr& node, const Scope& scope, const EpochOptions& options, Place from, HostFeed& feed,
             const FeedTaker& taker, std::uint64_t key);
  ~FedBatches() override;

  [[nodiscard]] std::size_t begin() override;
  [[nodiscard]] Place place() const override;
  [[nodiscard]] Block take(Range range) override;
  void end() noexcept override;

 private:
  void join();

  // The size of the batch, which is then there; nothing if the leader has left, or has kept this worker waiting.
  [[nodiscard]] std::optional<std::size_t> receive();
  [[nodiscard]] std::optional<std::size_t> receive(FeedPatience& patience);

  NodePtr node_;
  Scope scope_;
  EpochOptions options_;
  Place place_;  // after the last batch
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  std::uint64_t consumed_;  // samples of the epoch, all workers together
  bool has_begun_ = false;
  FeedReader* line_ = nullptr;
  std::optional<FeedPatience> of_epoch_;  // with the leader, where workers need not keep step
  Block block_{};                           // of the batch, what is for this worker
  std::size_t given_ = 0;
  std::unique_ptr<OwnBatches> own_;
};
// Says which blocks of what are gone over, from where on: what workers make of them, and in batches of which size, is
// their own.
[[nodiscard]] std::uint64_t block_feed_key(const DataNode& node, std::string_view name, const EpochKey& key,
                                                  const Place& from);
// Goes through the stream, and gives the other workers of the host each block, with its place.
class LedBlocks final : public ChunkStream {
 public:
  LedBlocks(std::unique_ptr<ChunkStream> own, const Scope& scope, HostFeed& feed, const FeedTaker& taker,
            std::uint64_t key);
  ~LedBlocks() override;

  [[nodiscard]] Chunk next() override;

 private:
  void gather();
  void give(const Chunk& chunk);
  [[nodiscard]] static bool send(FeedWriter& writer, const Chunk& chunk, Place& sent, FeedPatience& patience);

  std::unique_ptr<ChunkStream> own_;
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  MemoryShare share_;                     // of what is under way to the others
  std::vector<FeedPatience> patience_;  // with each of them, for the whole epoch
  std::vector<Place> sent_;             // to each of them
  bool has_begun_ = false;
};
// Has the blocks from the worker that leads, and goes on by itself where that one leaves. A block is given on once it
// is known where the next one begins: there this one could begin, and nowhere within a block.
class FedBlocks final : public ChunkStream {
 public:
  FedBlocks(NodePtr node, const Scope& scope, Place from, HostFeed& feed, const FeedTaker& taker, std::uint64_t key);
  ~FedBlocks() override;

  [[nodiscard]] Chunk next() override;

 private:
  // What the leader has given from the last place on is not given again.
  [[nodiscard]] Chunk next_of_own();
  void join();
  // Nothing if the leader has left, or has kept this worker waiting.
  [[nodiscard]] std::optional<Chunk> receive();
  [[nodiscard]] std::optional<Chunk> read_chunk();

  NodePtr node_;
  Scope scope_;
  Place from_;
  HostFeed* feed_;
  const FeedTaker* taker_;
  std::uint64_t key_;
  bool has_begun_ = false;
  FeedReader* line_ = nullptr;
  std::optional<FeedPatience> patience_;  // with the leader, for the whole epoch
  Place place_{};                           // that was read last
  std::optional<Chunk> held_;
  std::uint64_t num_samples_ = 0;  // that have been given on
  std::unique_ptr<ChunkStream> own_;
  std::uint64_t to_skip_ = 0;  // samples of its own stream
};
// Is what all workers have alike, read by one of them for all. For the time of a reader, to which the feed belongs.
class FedNode final : public OrderNode {
 public:
  FedNode(NodePtr common, std::string name, HostFeed& feed, const FeedTaker& taker);

  // What the operations make of it.
  [[nodiscard]] static NodePtr below(const OperationChain& chain, std::string name, HostFeed& feed,
                                     const FeedTaker& taker);

  [[nodiscard]] std::optional<std::uint64_t> count() const override;
  [[nodiscard]] bool is_indexed() const override { return false; }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override;

 private:
  std::string name_;
  HostFeed* feed_;
  const FeedTaker* taker_;
};
// Returns what the fractions add up to before and with each part. Throws: ConfigError if they are none.
[[nodiscard]] std::vector<double> sums_of_fractions(const Dataset& dataset,
                                                           const std::vector<double>& fractions);
// Throws: ConfigError if there are more samples than places of them fit in memory.
void check_room_for_places(const Dataset& dataset);
// Divides places, in a random order, among the parts.
void deal(const std::vector<std::uint64_t>& places, const std::vector<double>& sums, std::uint64_t seed,
                 std::vector<std::vector<std::uint64_t>>& parts);
// Makes datasets of the parts, whose samples stay in the order of the whole: files are read best from begin to end.
// why: what there is too little of.
[[nodiscard]] std::vector<Dataset> select_parts(const Dataset& dataset, const std::vector<double>& sums,
                                                       std::vector<std::vector<std::uint64_t>> parts,
                                                       std::string_view why);
// Deals the samples of a stream by their ids, those that flat_map() has made of one each by itself, and by how often
// they have been dealt: else a part would be divided by the numbers that have made it one, and all of it would lie in
// one part again.
[[nodiscard]] std::vector<Dataset> filter_parts(const Dataset& dataset, const std::vector<double>& sums,
                                                       std::uint64_t seed);
inline constexpr std::size_t max_message_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t ring_bytes = std::size_t{1} << 21U;
[[noreturn]] void throw_key_taken(std::string_view key);
[[noreturn]] void throw_store_full(std::string_view key, std::string_view value,
                                          std::size_t max_keys = StoreBlock::num_slots);
/// Throws: Error that says why there is no memory for a snapshot, and what to do.
[[noreturn]] void refuse_snapshot(std::size_t size_bytes, std::string_view why);
/// Raises the limit of descriptors of this process for so many workers, where it must. Throws: ConfigError if the hard
/// limit does not allow it.
void prepare_descriptors(int num_workers, int num_per_worker);
/// Is the worker's end, made and taken back by the first thread of its process, on which nothing of the user's runs.
class DeathMark {
 public:
  /// word: in memory that the supervisor sees.
  explicit DeathMark(std::atomic<std::uint32_t>& word) noexcept;
  DeathMark(const DeathMark&) = delete;
  DeathMark& operator=(const DeathMark&) = delete;
  ~DeathMark();

  /// The worker ends in order: nobody is to be woken.
  void take_back() noexcept;

 private:
  robust_list entry_{};
  robust_list_head head_{};
};
/// Returns the number behind key in a file of lines "key number", as the kernel writes them.
[[nodiscard]] std::optional<std::uint64_t> number_in_file(const std::string& path, std::string_view key);
/// Returns the likely reason for a signal that has ended a worker, other than SIGKILL.
[[nodiscard]] std::string_view likely_reason(int signal) noexcept;
/// Returns the sentence for a worker that a signal has ended.
[[nodiscard]] std::string explain_signal(int signal, bool dumped_core, const OomCounter& oom);
/// Returns what the system says about a process: the letter of its state in /proc, 0 if it is gone.
[[nodiscard]] char process_state(pid_t pid);
/// Is a process in that state stopped, by a signal or a debugger?
[[nodiscard]] bool is_stop(char state) noexcept;
[[nodiscard]] std::string_view describe_state(char state) noexcept;
/// Takes the locks of names of users, hosts and services, and asks no server for any.
void take_name_locks();
/// Takes those of how texts are written.
void take_text_locks();
/// Takes those of the process itself.
void take_process_locks();
/// Takes all of these: whoever calls it while one is held for ever never returns. For a process that is thrown away:
/// random numbers, time zone, locale, names and syslog are not what they were.
void take_library_locks();
/// Is what a child has answered, or why there is no answer.
template <class T>
struct ChildAnswer {
  std::optional<T> value{};
  std::string problem{};
};
/// Returns false at the deadline, else whether so many bytes have come before the writers' end.
[[nodiscard]] bool read_whole(int fd, void* data, std::size_t size, const Deadline& deadline);
/// Ends a child and returns its status; nothing where it hangs in a call of a driver that no signal ends: it is left
/// then, and is gone when that call returns.
[[nodiscard]] std::optional<int> end_child(pid_t child);
/// Returns what ask() gives in a forked child. What it needs is loaded before: the child of a program with several
/// threads may not be able to. Throws: Error if there can be no child.
template <class Ask, class T = std::invoke_result_t<const Ask&>>
requires std::is_trivially_copyable_v<T>
[[nodiscard]] ChildAnswer<T> ask_child(const Ask& ask, const Deadline& deadline) {
  auto [reader, writer] = make_pipe(0, "no pipe to ask a child process by");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw_system("no child process to ask", errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);                                    // which has ended before
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);  // handlers are for the program alone
    const T answer = ask();
    ::_exit(::write(writer.get(), &answer, sizeof answer) == static_cast<ssize_t>(sizeof answer) ? 0 : 1);
  }
  writer.reset();
  T answer;
  const bool has_answer = read_whole(reader.get(), &answer, sizeof answer, deadline);
  const bool is_late = !has_answer && deadline.expired();
  const std::optional<int> status = end_child(child);
  if (has_answer) return {.value = answer};
  if (is_late) return {.problem = compose("a child process that asks had no answer within {}", deadline.budget_text())};
  return {.problem = status && WIFSIGNALED(*status) && WTERMSIG(*status) != SIGKILL
                         ? compose("a child process that asks was ended by signal {}", WTERMSIG(*status))
                         : std::string{"a child process that asks ended without an answer"}};
}
/// Has this process threads besides the calling one? Yes where the system does not say.
[[nodiscard]] bool has_other_threads();
/// Does the process, of one thread, wait for a lock? Nothing where the system does not say. Takes no lock itself.
[[nodiscard]] std::optional<bool> waits_for_lock(pid_t pid);
/// Returns how long the process has kept a processor busy; nothing if the system does not say. Takes no lock itself.
[[nodiscard]] std::chrono::nanoseconds processor_time(pid_t pid);
/// In a process with one thread, just forked from one with several: is none of the libraries' locks held, by a thread
/// that was left behind? Cost: one fork. At the deadline the answer is no; where the system says that the process which
/// tries waits for none, a slow machine may take longer.
[[nodiscard]] bool are_library_locks_free(const Deadline& deadline);
[[nodiscard]] SignalRegistry& signal_registry();
void call_previous(const struct sigaction& previous, bool was_heard, int signal, siginfo_t* info,
                          void* context);
void hear_signal(int signal, siginfo_t* info, void* context);
/// Is a line on a Unix socket.
class HostLine final : public RankLine {
 public:
  HostLine(Descriptor socket, std::string peer);
  HostLine(const HostLine&) = delete;
  HostLine& operator=(const HostLine&) = delete;
  ~HostLine() override;  // the other end hears of it even if a forked process still holds this one

  [[nodiscard]] std::size_t send(const std::byte* bytes, std::size_t size) override;
  [[nodiscard]] std::size_t receive(std::byte* bytes, std::size_t size) override;
  [[nodiscard]] int fd() const noexcept override;
  void hang_up() noexcept override;
  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

 private:
  [[nodiscard]] std::size_t counted(ssize_t count, std::string_view doing) const;

  Descriptor socket_;
  std::string peer_;
};
/// Is where a rank listens, and what shows that somebody has read that in the store of the group: what a caller says,
/// and what it is answered.
struct HostPlace {
  using Token = std::array<std::byte, 16>;
  std::string name{};  ///< of the socket, which the kernel has given and no file stands for
  Token call{};
  Token answer{};

  [[nodiscard]] std::string text() const;
  /// Nothing if it is none.
  [[nodiscard]] static std::optional<HostPlace> read(std::string_view text);

  /// Takes the same time wherever they differ.
  [[nodiscard]] static bool are_equal(const Token& one, const Token& other) noexcept;

 private:
  [[nodiscard]] static bool read_token(std::string_view digits, Token& token);
};
/// Is one connect() of one rank: calls the ranks before it, and listens for those after it until they have come. Who is
/// not of this user is turned away by what the kernel says of him, before a byte of his is read; everybody else has to
/// show what only the ranks of the group know.
class HostMeeting {
 public:
  using Clock = Deadline::Clock;
  using Tell = std::function<void(const std::string&)>;
  static constexpr std::size_t max_half_open = 256;  ///< besides the ranks that are expected
  static constexpr std::chrono::milliseconds greeting_time{5000};

  HostMeeting(const World& world, Store& store, const std::string& group, Tell tell, const Deadline& deadline);

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> meet();

 private:
  struct Greeting {
    HostPlace::Token token{};
    std::int32_t rank = 0;
  };
  struct Call {
    int rank = 0;
    HostPlace place{};
    Descriptor socket{};
    bool is_connected = false;
    std::size_t num_received = 0;
    HostPlace::Token answer{};
  };
  struct Greeter {
    Descriptor socket;
    std::string name;
    Clock::time_point since = Clock::now();
    std::size_t num_received = 0;
    std::array<std::byte, sizeof(Greeting)> bytes{};
  };

  static Descriptor open_socket();

  void listen();

  // Returns who the other end is, as the kernel knows it.
  [[nodiscard]] static ucred peer_of(const Descriptor& socket) noexcept;

  // Returns true once the line is there.
  [[nodiscard]] bool advance(Call& call);

  [[nodiscard]] bool connect(Call& call) const;

  void accept_some();

  void refuse(const std::string& name, std::string_view why);
  void refuse_oldest(std::string_view why);

  // Returns true once it is let in, or turned away.
  [[nodiscard]] bool is_done(Greeter& greeter);

  [[nodiscard]] bool is_there(int rank) const noexcept;
  void add(int rank, Descriptor socket);

  void wait(std::chrono::nanoseconds at_most);

  [[noreturn]] void throw_late() const;

  int rank_;
  Deadline deadline_;
  RefusalLog log_;
  Descriptor socket_;
  HostPlace place_{};
  std::vector<std::unique_ptr<RankLine>> lines_;
  int num_missing_;  // of the ranks that call this one
  std::list<Call> calls_;
  std::list<Greeter> greeters_;
  std::vector<pollfd> polled_;
  std::string last_refusal_;
};
/// Connects ranks that one process, or one that has forked all of them, has made on this host: what a rank knows that
/// may connect stands in the memory of their group.
class HostConnector final : public RankConnector {
 public:
  using Tell = HostMeeting::Tell;

  /// tell: is told of those who were refused.
  explicit HostConnector(Tell tell);
  /// Says it on the standard error.
  [[nodiscard]] static std::shared_ptr<HostConnector> make();

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> connect(const World& world, Store& store,
                                                               const std::string& group, const std::string& /*host*/,
                                                               const Deadline& deadline) override;

 private:
  Tell tell_;
};
/// Returns what stands at an address of the program: "Net::forward(at::Tensor)", or the file and the place in it, which
/// addr2line knows more about.
[[nodiscard]] std::string name_of_frame(void* address);
/// Is the one count per shared library of those who use the signal: its handler belongs to the process, and goes with
/// the last of them.
class StackSignal {
 public:
  using Handler = void (*)(int, siginfo_t*, void*);
  [[nodiscard]] static int number() noexcept { return SIGRTMAX - 2; }

  [[nodiscard]] static StackSignal& of_process();

  /// Sees to it that the handler is there, for somebody who is counted from the first time on. Returns false if the
  /// program uses the signal itself.
  [[nodiscard]] bool install(Handler handler, bool& is_user);
  void remove_user(Handler handler) noexcept;

 private:
  StackSignal() = default;

  std::mutex mutex_;
  int num_users_ = 0;
};
/// Asks one thread by a signal. It must outlive that thread: an answer may come late.
class StackTeller {
 public:
  StackTeller() = default;
  StackTeller(const StackTeller&) = delete;
  StackTeller& operator=(const StackTeller&) = delete;
  ~StackTeller();

  /// Called on the thread that is to be asked, when it begins and when it ends.
  void watch_this_thread();
  void forget_thread() noexcept;

  /// Returns the calls the thread is in, the innermost first, one a line; empty if it has ended or does not answer in
  /// time. Called on another thread.
  [[nodiscard]] std::string tell(const Deadline& deadline);

 private:
  static constexpr int most_frames = 48;

  static void answer(int /*signal*/, siginfo_t* info, void* /*context*/);

  [[nodiscard]] std::string text() const;

  std::mutex mutex_;
  bool is_watched_ = false;
  bool uses_signal_ = false;
  pthread_t thread_{};
  std::array<void*, most_frames> frames_{};
  int num_frames_ = 0;
  std::atomic<std::uint32_t> num_answers_{0};
};
/// Keeps what a worker wants to be run when its group ends, and runs it once.
class AbortHandler {
 public:
  using Handler = std::function<void(std::string_view)>;

  /// Replaces the handler. Does not return while the former one runs, unless that one is the caller.
  void set(Handler handler);

  /// Runs the handler if there is one, and forgets it.
  void run(std::string_view reason) noexcept;

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  Handler handler_;
  std::thread::id runner_;
};
/// Is the group's store as one worker sees it: its waits end with the group.
class WorkerStore final : public Store {
 public:
  WorkerStore(GroupMemory& memory, int rank, Descriptor kept_file) noexcept;

  void set(std::string_view key, std::string_view value) override;

  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override;

  [[nodiscard]] Descriptor take_memory() override;

  [[nodiscard]] bool joins_threads() const noexcept override;

 private:
  GroupMemory* memory_;
  SharedTable table_;
  int rank_;
  Descriptor kept_file_;
  CommonAwakeTime times_{};
  std::atomic<bool> is_file_taken_{false};
};
/// Writes how a worker ended as bytes, and back.
[[nodiscard]] std::vector<std::byte> encode_exit(const WorkerExit& exit);
[[nodiscard]] WorkerExit decode_exit(std::span<const std::byte> bytes);
/// Is the WorkerLink of both Threads and Processes. agent is the word on which the one who runs abort handlers sleeps;
/// kept_file what the store gives as memory.
class SharedLink final : public WorkerLink {
 public:
  SharedLink(GroupMemory& memory, int rank, int event_fd, std::atomic<std::uint32_t>& agent, const std::string& host,
             Descriptor kept_file = {});

  [[nodiscard]] const World& world() const noexcept override { return world_; }
  [[nodiscard]] Store& store() noexcept override { return store_; }
  [[nodiscard]] WorkerPage& page() noexcept override;

  [[nodiscard]] std::string_view briefing() const noexcept override;

  [[nodiscard]] Snapshot take_snapshot(std::size_t size_bytes, SnapshotKind kind) override;

  [[nodiscard]] std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept override;
  void drop_snapshot(int slot) noexcept override;

  void await_snapshot(int slot) override;

  void read_snapshot(int rank, int slot, std::size_t begin, std::span<std::byte> to) override;

  void post(std::span<const std::byte> message) override;

  void on_abort(std::function<void(std::string_view)> handler) override;

  /// Runs the handler if the group is ending. Called by the agent whenever its word has moved.
  void run_handler_if_aborted() noexcept;

  /// Called by the thread that runs the body when it begins, and when the body has ended.
  void begin_body();
  void end_body() noexcept;

  /// Returns the calls that the body is in. Called by another thread.
  [[nodiscard]] std::string stack(const Deadline& deadline);

  /// Writes them where the supervisor looks, if it has asked. Called by the agent whenever its word has moved.
  void tell_stack_if_wanted() noexcept;

  /// Says how the worker ended; its last record. Not given up when the group ends: this is what the end waits for.
  void post_exit(const WorkerExit& exit) noexcept;

 private:
  // Waits until the slot is nobody's.
  [[nodiscard]] Snapshot take(int slot, std::size_t size_bytes);

  // Ranks that have said nothing yet may want as much as this one, or nearly nothing, where it has what all have alike.
  // They save at the same time: this one is refused once they have said it, or have not for a while.
  [[nodiscard]] std::string lack_of_memory(SnapshotKind kind, int slot, std::size_t size_bytes) const;

  // Where memory is too short for one more of the kind whose first slot this is: one that is free and large enough; or
  // the largest, which is to have what all of them have. Those of checkpoints are waited for, for they come back when
  // they are written; a copy is held until there is a newer one. Returns -1 if not even one would fit.
  [[nodiscard]] int snapshot_without_more(int first, std::size_t size_bytes);

  [[noreturn]] void throw_ended(const char* operation) const;

  bool write(RecordKind kind, std::span<const std::byte> bytes, bool ends_with_group);

  GroupMemory* memory_;
  WorkerStore store_;
  int event_fd_;
  std::atomic<std::uint32_t>* agent_;
  World world_{};
  AbortHandler handler_;
  StackTeller teller_;
  std::mutex mutex_;
  std::array<int, 2> turns_{};  // by kind: snapshots are used in turn, so that they are read in order
};
/// Checks what every Scaling is asked for.
void check_plan(const GroupPlan& plan, const WorkerBody& body);
/// How often a worker moves its heartbeat: several times within the limit.
[[nodiscard]] std::chrono::nanoseconds heartbeat_interval(std::chrono::nanoseconds silence_limit);
/// Asks for a worker (with its standard output and error as descriptors), for the end of workers by force, or whether
/// the fork has kept a lock of another thread.
struct ZygoteRequest {
  enum class Kind : std::uint8_t { spawn, kill, prove };
  Kind kind = Kind::spawn;
  int rank = 0;
  std::chrono::nanoseconds patience{0};  ///< for the proof
};
/// Says that a worker has been made (with its pidfd, if there are any on this kernel) or could not be, that it has
/// ended, or whether locks are free.
struct ZygoteReply {
  enum class Kind : std::uint8_t { spawned, exited, proven };
  Kind kind = Kind::spawned;
  int rank = 0;
  pid_t pid = 0;
  int error = 0;   ///< errno, 0 if the worker has been made, or all locks are free
  int status = 0;  ///< as of waitpid
};
/// Writes out what stdio and iostreams hold. Not every stream if one is locked by somebody who reads it: that could
/// last for ever.
void flush_streams(bool every_stream) noexcept;
/// Runs the body in this process, which has just been forked and has one thread. That thread becomes the agent: it
/// moves the heartbeat and runs the abort handler, whatever the body does.
class WorkerProcess {
 public:
  /// kept_file: see Store::take_memory().
  WorkerProcess(const WorkerSetup& setup, int rank, Descriptor kept_file);

  /// Sets up what must be so before anything of the user's runs.
  static void prepare(const WorkerSetup& setup, int rank, pid_t zygote, int out, int err) noexcept;

  [[noreturn]] void run() noexcept;

 private:
  // Slurm and systemd send these signals to all processes of a job at once. The supervisor hears them, and has the
  // workers save and leave: one that died of them could not. With a handler that does nothing, since what the body
  // executes would ignore them as well if this process did.
  static void be_deaf() noexcept;

  // To a pipe, stdio would write by the page, and a line come late. Only with a buffer of its own does glibc forget
  // that the parent's was one to be filled: otherwise puts() keeps the line feed back.
  static void buffer_by_line() noexcept;

  static void leave(int status, void* flushes_all) noexcept;

  void run_body(WorkerExit& exit) noexcept;

  void be_agent() noexcept;

  [[nodiscard]] RankBlock& block() const noexcept;

  const WorkerSetup* setup_;
  int rank_;
  SharedLink link_;
  std::atomic<bool> is_done_{false};
};
/// Lives in the process that start() has forked. It holds no lock (which it proves when asked to), has no other thread,
/// and lives for as long as the supervisor: so a worker can be forked from it at any time, and no worker outlives
/// either of them.
class Zygote {
 public:
  /// supervisor: the process that forked this one. Throws: Error if the system refuses what it needs.
  Zygote(const WorkerSetup& setup, Channel channel, pid_t supervisor);

  /// Serves until the supervisor closes the channel or dies, then ends all that is left.
  [[noreturn]] void run();

 private:
  bool serve();

  bool prove(const Deadline& deadline);

  bool take_signals();

  bool spawn(int rank, std::vector<Descriptor>& fds);

  [[noreturn]] void become_worker(int rank, pid_t self, std::vector<Descriptor>& fds) noexcept;

  // What ranks share lies in files that are kept here: to make the pages anew takes longer than all else of a restart.
  // All that a worker has ever forked is a child of this process once the worker is gone, so without children nobody
  // can still write to a file. Otherwise it is left to them.
  void renew_kept_files();

  // Without one, a rank makes a file of its own, and says what is wrong if it cannot.
  void make_kept_file(int rank);

  // A worker's process group is ended before the worker is reaped: until then its number cannot be anybody else's.
  bool reap();

  void end_everything();

  static void kill_children();

  const WorkerSetup* setup_;
  Channel channel_;
  pid_t supervisor_;
  Descriptor signals_;
  Descriptor supervisor_fd_;
  std::map<pid_t, int> workers_;
  std::vector<Descriptor> kept_files_;  // by rank
};
/// Is a library in this program. It stays for good: threads of its own may run in it.
class DynamicLibrary {
 public:
  /// Takes the library at path; if path is empty, what the variable names; else the one that is loaded already, by
  /// which `probe` is found, so that all parts of a program share it; else the first of names.
  /// Throws: ConfigError that says how to name one.
  DynamicLibrary(std::string_view what, const std::string& path, const char* variable, const char* probe,
                 std::span<const char* const> names);

  /// Throws: ConfigError if there is no such function.
  template <class Function>
  void find(const char* name, Function*& function) const {
    if (!find_if_there(name, function)) throw ConfigError{compose("{} has no function {}: it is too old", what_, name)};
  }

  /// Returns false, and leaves a null pointer, if there is no such function.
  template <class Function>
  bool find_if_there(const char* name, Function*& function) const noexcept {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  std::string what_;
  void* handle_ = RTLD_DEFAULT;
};
inline constexpr int cuda_driver_success = 0;
inline constexpr int cuda_driver_mismatch = 803;
/// Says by what sign this process has initialised CUDA; empty if it has not. Neither loads nor initialises anything.
[[nodiscard]] std::string sign_of_cuda();
/// Is what the CUDA driver has counted: all that CUDA_VISIBLE_DEVICES shows, as it means it; or why it has not.
struct DriverCount {
  int count = 0;
  int code = cuda_driver_success;
  std::string problem{};
};
/// Asks the driver in a child that is thrown away, as whoever has initialised CUDA cannot fork workers that use it;
/// here where this process has done so before.
[[nodiscard]] DriverCount ask_cuda_driver(const Deadline& deadline);
/// Checks, before anything starts, that this process may fork and has descriptors enough; raises its own limit.
void prepare_to_fork(int num_workers);
/// Kills the workers of a group of which so many are alive, and returns when none is. take: called with each event of
/// the group, and counts its exits. Throws: Error if they do not end.
template <class Take>
void end_workers(ProcessGroup* group, const int& num_alive, const Take& take) {
  if (num_alive > 0) group->kill();
  const Deadline deadline = Deadline::after(std::chrono::seconds{10});
  while (num_alive > 0) {
    auto event = group->next(deadline);
    if (!event && deadline.expired()) throw Error{"start: workers of this process have been killed and do not end"};
    if (event) take(std::move(*event));
  }
}

}
}

namespace railyard::inline v0_1 {
static_assert(Scaling<Processes>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Is the group of Threads. Agents, made when the group ends early, run the abort handlers, each worker's on its own: a
/// handler may wait for a lock that the supervisor's caller or another worker holds.
class ThreadGroup final : public WorkerGroup {
 public:
  ThreadGroup(const GroupPlan& plan, const WorkerBody& body);

  ~ThreadGroup() override;

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override;

  void request_stop() override;
  void request_leave() override;
  void request_resize() override;

  void abort(std::string_view reason) override;

  void kill() override;

  [[nodiscard]] bool can_kill() const noexcept override { return false; }

  [[nodiscard]] const WorkerPage& page(int rank) const override;
  [[nodiscard]] std::vector<std::string> stacks(const Deadline& deadline) override;

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override;
  void hold_snapshot(int rank, int slot) noexcept override;
  void release_snapshot(int rank, int slot) noexcept override;
  [[nodiscard]] std::span<const std::byte> left_snapshot(int rank, int slot, std::size_t size_bytes) override;
  [[nodiscard]] bool shares_snapshots() const noexcept override { return true; }

  void restart(int num_workers, std::string_view briefing) override;

  [[nodiscard]] bool forks_to_restart() const override { return false; }

 private:
  void start_threads();

  void run(SharedLink& link) noexcept;

  void run_handlers_without_agent() noexcept;

  void be_agent(int rank) noexcept;

  void collect(std::chrono::nanoseconds at_most);

  // Threads that look at nothing of ours cannot be ended. Rather than to wait for ever, the program ends.
  void end_all(std::string_view reason) noexcept;

  void join_all() noexcept;

  [[noreturn]] static void end_program(const std::string& deaf) noexcept;

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

}
}

namespace railyard::inline v0_1 {
static_assert(Scaling<Threads>);

}

namespace railyard::inline v0_1 {
namespace detail {
// Returns the dataset as a worker gets it. Throws: ConfigError if there is none of that name.
[[nodiscard]] Dataset dataset_of_worker(const Datasets& datasets, const DataConfig& config,
                                               std::string_view name, std::size_t rank, std::size_t world_size);
/// Are what a run's settings mean for its controller.
[[nodiscard]] Controller::Settings controller_settings(const RunConfig& config, int num_workers);
/// Throws: ConfigError for a name that nothing has.
void check_accepted_changes(const std::vector<std::string>& accepted);
/// Returns what the linker has written about a build into the notes of a program; empty if it has not.
/// Source: the section .note.gnu.build-id, as ld's --build-id describes it.
[[nodiscard]] std::string build_id_in(std::span<const std::byte> notes, std::size_t alignment);
/// Is what is loaded of this program itself, without its libraries.
struct LoadedProgram {
  std::string build_id{};         ///< empty if its linker has written none
  std::uint64_t code_digest = 0;  ///< of its machine code, if there is no build id
};
[[nodiscard]] LoadedProgram loaded_program();
/// Returns digits that are other ones in another build of this program, unless its machine code came out the same. Its
/// shared libraries have no part in it. Cost: microseconds; without a build id some milliseconds.
[[nodiscard]] std::string program_build();
/// Returns the model of this host's CPUs and the widest vectors that they compute with, such as "AMD EPYC 7763, avx2":
/// libraries choose their kernels, and with them the order of sums, by that.
[[nodiscard]] std::string cpu_kind();
inline constexpr std::string_view option_prefix = "option ";
/// Adds what an optimizer was made with, out of its state. That alone can be compared with what the next program makes
/// it with: of the options that a checkpoint puts back, a schedule may have changed any.
void note_options(std::string_view part, const NamedValues& state, NamedValues& environment);
[[nodiscard]] std::string text_of_value(const Value& value);
/// Says what differs of the options, or of all else.
[[nodiscard]] std::string difference_in(const NamedValues& now, const NamedValues& then, bool of_options);
/// The same of what optimizers were made with.
[[nodiscard]] std::string difference_of_options(const NamedValues& now, const NamedValues& then);
static_assert(std::endian::native == std::endian::little, "the bytes of numbers are written as they are in memory");

}
}

namespace railyard::inline v0_1 {
static_assert(LearningPreprocessor<Chain>);

}

namespace railyard::inline v0_1 {
namespace detail {
/// Returns what has come since then.
[[nodiscard]] StepTimes times_since(const StepTimes& then, StepTimes now);
/// Adds shares, whom the others wait for, and bytes, unless there is a metric of that name already.
void add_step_times(const StepTimes& times, Metrics& metrics);
/// Returns the times of the average rank of those that have told theirs, and the bytes of all together.
[[nodiscard]] StepTimes average_of(const std::vector<StepTimes>& by_rank);
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
/// The worker has seen something that the user is to know.
struct WarningMessage {
  std::string text{};
};
/// The training function was left at the end of a step, because the run, or this number of workers, is to end.
struct LeftMessage {};
using WorkerMessage =
    std::variant<StartedMessage, ReportMessage, StepTimesMessage, SavedMessage, LeftMessage, WarningMessage>;
enum class MessageKind : std::uint8_t { started = 1, report = 2, step_times = 3, saved = 4, left = 5, warning = 6 };
enum class ValueKind : std::uint8_t { truth = 0, integer = 1, number = 2, text = 3 };
void put_metrics(WireWriter& writer, const Metrics& metrics);
[[nodiscard]] std::vector<std::byte> encode_report(const Metrics& metrics);
[[nodiscard]] std::vector<std::byte> encode_step_times(const StepTimes& times);
[[nodiscard]] std::vector<std::byte> encode_warning(std::string_view text);
[[nodiscard]] std::vector<std::byte> encode_saved(const SavedMessage& save);
/// Writes the size of the encoded message and the message to the begin of its snapshot.
void write_head(std::span<std::byte> snapshot, std::span<const std::byte> message);
/// Whether a snapshot begins with the message, so that all of it is what the message tells of: its head is written
/// last.
[[nodiscard]] bool has_head(std::span<const std::byte> snapshot, std::span<const std::byte> message);
[[nodiscard]] Value decode_value(WireReader& reader);
[[nodiscard]] Metrics take_metrics(WireReader& reader);
[[nodiscard]] SavedMessage decode_saved(WireReader& reader);
/// Returns what a worker has posted. Throws: DataError if the bytes are none of the messages above.
[[nodiscard]] WorkerMessage decode_message(std::span<const std::byte> bytes);
/// Gives each file its place in a snapshot, and returns the snapshot's size.
[[nodiscard]] std::uint64_t place_files(SavedMessage& save, const std::vector<FileImage>& images);
/// Returns the message of a snapshot that a rank of an earlier start has written.
[[nodiscard]] SavedMessage read_head(WorkerLink& link, int rank, int slot);
/// Is what all ranks of an earlier start have put into their snapshots as one state. All ranks make it together.
class HeldState {
 public:
  /// slots: of each rank. Throws: DataError if the snapshots are damaged, or do not belong together.
  HeldState(Worker& worker, WorkerLink& link, const std::vector<std::uint8_t>& slots);
  HeldState(const HeldState&) = delete;
  HeldState& operator=(const HeldState&) = delete;
  /// Only when all ranks have read from it.
  ~HeldState();

  /// Reads from the snapshots.
  [[nodiscard]] Checkpoint checkpoint() const;

 private:
  // A file that goes from its rank to the processes that lack it.
  struct Transfer {
    std::string name{};
    int from = 0;
    std::size_t size = 0;
    bool is_for_us = false;
    std::size_t offset = 0;  // in what is received
  };
  static constexpr std::size_t piece_bytes = std::size_t{8} << 20U;

  [[nodiscard]] static std::size_t index(int rank) noexcept;
  [[nodiscard]] int first_rank() const;

  // Every rank learns what the others have saved, and which of them are looked after by one process.
  void tell_each_other();

  void check() const;

  [[nodiscard]] ReadPart part_of(int rank, int slot, std::uint64_t offset, std::uint64_t size) const;

  void add_files(int rank, int slot);

  // What all ranks have each process has from its first rank. It may be other bytes than rank 0's, such as statistics
  // of BatchNorm: a checkpoint holds rank 0's, and so do all ranks after this.
  void fetch_what_is_missing();

  [[nodiscard]] std::vector<Transfer> find_missing() const;

  [[nodiscard]] static std::uint64_t digest_of_file(const ReadPart& file);

  // Returns digests, by rank, of those files that several ranks have.
  [[nodiscard]] std::map<std::string, std::vector<std::int64_t>> compare(
      const std::map<std::string, std::map<int, std::size_t>>& holders) const;

  // piece: for what this rank reads, or takes part in and does not need.
  void broadcast(const Transfer& one, std::vector<std::byte>& piece);

  Worker* worker_;
  WorkerLink* link_;
  std::vector<SavedMessage> saves_;        // by rank
  std::vector<std::int32_t> first_ranks_;  // of the process of each rank
  std::map<std::string, ReadPart> files_;
  Snapshot received_{};  // for all ranks of the process, if this is the first of them
};
/// Whether the attempt that began so has gone on from memory, and ended no step: what it takes to have the state there
/// once more may be what it lacked, and a checkpoint is read without.
[[nodiscard]] bool has_memory_failed(const Briefing& briefing, const Attempt& attempt) noexcept;
[[nodiscard]] std::string encode_briefing(const Briefing& briefing);
// The number of cores that the scheduler may put this thread on.
[[nodiscard]] int cores_of_affinity();
// Reads one group's limit: "200000 100000" is two cores, "max 100000" none.
[[nodiscard]] std::optional<double> quota_of_group(const std::filesystem::path& group);
// The smallest limit on the way from this process's group up to the root: each of them binds. Control groups v2.
// membership is /proc/self/cgroup, mount where the hierarchy is mounted.
[[nodiscard]] std::optional<double> cores_of_cgroup(const std::filesystem::path& membership,
                                                           const std::filesystem::path& mount);
// The cores that this process may use, at least 1; a limit of 1.5 cores counts as 2, for one would leave half idle.
[[nodiscard]] int usable_cores(const std::filesystem::path& membership = "/proc/self/cgroup",
                                      const std::filesystem::path& mount = "/sys/fs/cgroup");
inline constexpr std::string_view claims_name = "generations";
/// Returns what is in a file; nothing if there is none. Throws: DataError if it cannot be read.
[[nodiscard]] std::string text_of_file(const std::filesystem::path& path,
                                              const std::shared_ptr<Files>& files = std::make_shared<Files>());
/// Returns what run.json says, but for numbers that JSON does not know.
[[nodiscard]] NamedValues values_of_record(const Json& json);
/// Returns one line of metrics.jsonl without the columns that are not the user's.
[[nodiscard]] Metrics metrics_of_line(const Json& json);
/// Calls take with each line of a file of JSON objects and where it ends, and adds to problems how many are damaged.
/// What follows the last line feed was being written when its program died.
template <class Take>
void read_json_lines(const std::filesystem::path& path, const std::shared_ptr<Files>& files,
                     std::vector<std::string>& problems, const Take& take) {
  const std::string text = text_of_file(path, files);
  std::size_t begin = 0;
  std::size_t number = 0;
  std::size_t num_damaged = 0;
  std::size_t first_damaged = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    ++number;
    try {
      take(parse_json(std::string_view{text}.substr(begin, end - begin)), std::uint64_t{end + 1});
    } catch (const std::exception&) {
      if (num_damaged++ == 0) first_damaged = number;
    }
    begin = end + 1;
  }
  if (num_damaged == 0) return;
  problems.push_back(compose("{} line(s) of {} are damaged and left out, the first one is line {}", num_damaged,
                             path.string(), first_damaged));
}
/// Reads the lines of metrics.jsonl.
void read_history(const std::filesystem::path& path, const std::shared_ptr<Files>& files, RunRecord& record);
/// Reads the lines of events.jsonl: a checkpoint is durable before it is told of there.
void read_events(const std::filesystem::path& path, const std::shared_ptr<Files>& files, RunRecord& record);
/// Whether a run has told that it has written checkpoints: before the first one, run.json came to the disk.
[[nodiscard]] bool tells_of_checkpoints(const std::filesystem::path& run, const std::shared_ptr<Files>& files);
/// Takes from the newest checkpoint what run.json has said, which is lost or damaged: why says how.
/// Throws: ConfigError if there is none.
void recover_record(const std::filesystem::path& run, const std::shared_ptr<Files>& files, std::string_view why,
                           RunRecord& record);
/// Reads the record of the run in that directory. Throws: ConfigError if it is none, or damaged beyond recovery.
[[nodiscard]] RunRecord read_run_record(const std::filesystem::path& run,
                                               const std::shared_ptr<Files>& files = std::make_shared<Files>());
/// Is a file that only grows, line by line. A line is in it whole or not at all, and what cannot be written is counted.
class LineFile {
 public:
  /// makes_folder: on first use, for a file that a run need not have.
  explicit LineFile(std::filesystem::path path, std::shared_ptr<Files> files = std::make_shared<Files>(),
                    bool makes_folder = false);
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();

  /// Appends line and a line feed; opens the file on first use. Returns whether it could.
  bool append(std::string_view line);

  /// Takes back all but the first size bytes. Returns whether it could.
  bool cut(std::uint64_t size);

  /// Makes durable what has been appended. Returns whether it could.
  bool sync();

  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool exists() const noexcept;
  [[nodiscard]] std::uint64_t num_lost() const noexcept { return num_lost_; }
  /// What is to be said when the first line is lost.
  [[nodiscard]] std::string complaint() const;
  [[nodiscard]] std::string reason() const;

 private:
  bool open();

  bool has_folder();

  bool note_loss(int code) noexcept;

  std::filesystem::path path_;
  std::shared_ptr<Files> files_;
  bool makes_folder_;
  std::string text_;
  int file_ = -1;
  off_t size_ = 0;
  std::uint64_t num_lost_ = 0;
  int code_ = 0;
};
/// Returns a name that no other run has: date, time and six random digits.
[[nodiscard]] std::string unique_name();
/// Calls look(), which reads a run's directory. Throws: ConfigError where that cannot be read.
template <class Look>
auto looking_at_run(const Look& look) {
  try {
    return look();
  } catch (const DataError& error) {
    throw ConfigError{compose("{}: make it readable, or choose another RunConfig::name", error.what())};
  }
}
/// Whether a file of that name tells what a run is, and how it went.
[[nodiscard]] bool tells_of_run(std::string_view name);
/// Returns the names of a run's logs that hold something, in "logs/".
[[nodiscard]] std::vector<std::string> written_logs(const std::filesystem::path& run, Files& files);
/// Whether a program has died in that directory before what the run is was written, or had come to the disk: the first
/// checkpoint sees to that.
[[nodiscard]] bool is_barely_begun(const std::filesystem::path& run,
                                          const std::shared_ptr<Files>& files = std::make_shared<Files>());
/// Returns the names of files that tell of a run which has lost run.json and all checkpoints; empty if it has not, or
/// has left none. A run has a lease before it has anything else; without one, such files are somebody else's.
[[nodiscard]] std::string remains_of_run(const std::filesystem::path& run,
                                                const std::shared_ptr<Files>& files = std::make_shared<Files>());
/// Removes what programs have left in that directory that died while they wrote a file of it; all: also what a run that
/// is no more has told. Only for whoever has the run.
void sweep_run_directory(const std::filesystem::path& run, bool all,
                                const std::shared_ptr<Files>& files = std::make_shared<Files>());
/// Throws: ConfigError if a directory that exists is no run's: nothing is written into what is somebody else's.
void check_is_run(const std::filesystem::path& path, const std::shared_ptr<Files>& files);
/// Writes a file of one JSON object, in place of the one that may be there. lasts: it is durable then, which takes
/// milliseconds. may_replace: asked right before; where it says no, nothing is left of the new one. Returns what went
/// wrong, or an empty text.
[[nodiscard]] std::string write_object(
    const std::filesystem::path& path, const JsonObject& object, bool lasts,
    std::shared_ptr<Files> files = std::make_shared<Files>(),
    const std::function<bool()>& may_replace = [] { return true; });
/// Takes back the directory of a run in which nothing has happened.
void remove_run_directory(const std::filesystem::path& run,
                                 const std::shared_ptr<Files>& files = std::make_shared<Files>());
/// Says when the same rank has been found for longer than a while.
class Patience {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// rank: -1 if none is found. Returns whether it has been found again and again for so long.
  [[nodiscard]] bool is_over(int rank, Time now);

 private:
  int rank_ = -1;
  Time since_{};
};
/// Is thrown where another program has the run, or was faster.
class RunInUse : public ConfigError {
 public:
  using ConfigError::ConfigError;
};
template <class T, class Put>
void put_all(WireWriter& writer, const std::vector<T>& values, Put put) {
  writer.put(static_cast<std::uint32_t>(values.size()));
  for (const T& value : values) put(value);
}
void put_attempts(WireWriter& writer, const std::vector<Attempt>& attempts);
[[nodiscard]] std::vector<Attempt> take_attempts(WireReader& reader);
void put_checkpoint(WireWriter& writer, const Checkpoint& checkpoint);
/// Opens what the leader has written. Where the storage is not shared there is nothing to open: the Result says so.
[[nodiscard]] std::optional<Checkpoint> take_checkpoint(WireReader& reader, ResultFields& fields,
                                                               Checkpoint (*read)(const std::filesystem::path&));
[[nodiscard]] Result decode_result(WireReader& reader);
inline constexpr std::string_view leader_file_name = "leader.json";
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

  [[nodiscard]] std::vector<std::byte> encode() const;
  [[nodiscard]] static WriteOrder decode(std::span<const std::byte> bytes);
};
/// Says what a process has written.
struct WriteAnswer {
  bool sees_directory = false;
  std::vector<ManifestFile> files{};

  [[nodiscard]] std::vector<std::byte> encode() const;
  [[nodiscard]] static WriteAnswer decode(std::span<const std::byte> bytes);
};
/// Whether the directory is to be seen from here. It has just been made, by a name that is a random number: where
/// storage is not shared there is none of that name. Those above it are opened first: a network file system asks its
/// server then, instead of remembering what was not there before.
[[nodiscard]] bool sees_directory(Files& files, const WriteOrder& order, std::chrono::nanoseconds patience);
/// Knows the processes that are not asked to write: their parts go over the network.
class LeftOut {
 public:
  static constexpr int retry_interval =
      16;  ///< in checkpoints: looking for a directory takes a second where there is none

  /// A checkpoint begins; those of an earlier attempt are asked again.
  void begin_checkpoint(int attempt);
  [[nodiscard]] bool contains(int process) const;
  /// One that does not see the run's directory, or not yet. Returns whether that is new.
  bool add_blind(int process);
  void add_for_attempt(int process);

 private:
  int attempt_ = 0;
  std::int64_t checkpoint_ = 0;  // its number
  std::map<int, std::int64_t> asked_with_;
  std::set<int> was_blind_;
};
/// Is the leader's end.
class FollowerParts final : public PartWriters {
 public:
  /// left_out: gets those that do not see the run's directory, or could not write there.
  FollowerParts(WorkerGroup& group, std::filesystem::path run, const std::vector<SavedPart>& parts, LeftOut& left_out);

  std::set<std::string> begin(const std::filesystem::path& directory) override;

  std::vector<ManifestFile> finish() override;

  /// Say why parts were not written there, unless that is known.
  [[nodiscard]] const std::vector<std::string>& complaints() const noexcept { return complaints_; }

 private:
  void complain(int process, std::string_view why);
  void tell_of_blind(int process);

  WorkerGroup* group_;
  std::filesystem::path run_;
  std::filesystem::path directory_{};  // of the checkpoint
  LeftOut* left_out_;
  std::map<int, std::vector<SavedPart>> parts_;  // by process
  std::map<int, std::function<std::vector<std::byte>()>> answers_;
  std::vector<std::string> complaints_;
};
/// Is a checkpoint that all ranks have saved, and that is to be written.
struct SaveJob {
  struct Slot {
    int rank = 0;
    int slot = 0;
  };
  Manifest manifest{};
  std::vector<SavedPart> parts{};
  std::vector<Slot> slots{};  // where the parts are, to be given back afterwards
};
/// Says what has become of a SaveJob.
struct SaveOutcome {
  Manifest manifest{};
  std::filesystem::path path{};  ///< empty if it could not be written
  std::string error{};           ///< also of checkpoints that could not be removed
  std::string doubt{};           ///< why this one, the first, may not last where it is; empty if no reason is known
};
/// Owns the thread. One after another, in order: so the newest checkpoint is always the latest that was saved.
class CheckpointWriter {
 public:
  /// run: the run's directory, in which the folder lies. await_reports: waits until all that was reported so far is
  /// written; called on another thread.
  CheckpointWriter(std::filesystem::path run, CheckpointFolder folder, Retention retention, WorkerGroup& group,
                   std::function<void()> await_reports, std::shared_ptr<Files> files = std::make_shared<Files>());
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Writes what has been submitted.
  ~CheckpointWriter();

  /// Throws: what the system or the memory refuses; the job's memory is the caller's to give back then.
  void submit(SaveJob job);

  /// Takes note of a checkpoint that could not even be submitted.
  void note_failure(Manifest manifest, std::string error);

  /// Whether the memory of what was submitted last is still held: it is given back once that is written.
  [[nodiscard]] bool holds_last();

  /// Waits until all has been written, or the time is over. Returns whether it has.
  [[nodiscard]] bool drain(const Deadline& deadline);

  [[nodiscard]] std::vector<SaveOutcome> take_outcomes();

  /// Only while nothing is being written.
  [[nodiscard]] CheckpointFolder& folder() noexcept { return folder_; }
  [[nodiscard]] const Retention& retention() const noexcept { return retention_; }

 private:
  void start();

  void run();

  [[nodiscard]] SaveOutcome write(const SaveJob& job);

  // What was reported before a checkpoint has to be in the file, and to last as it does. losses gets why it may not: a
  // checkpoint is worth more than they are.
  void make_reports_durable(std::vector<std::string>& losses);

  [[nodiscard]] std::vector<CheckpointFolder::Part> parts_of(const SaveJob& job) const;

  // A checkpoint is worth nothing if the directories above it are lost. Once, for it takes milliseconds.
  void make_run_durable();

  // After a failed fsync nobody knows what of a file is on the disk, and the next one would say that all is: the same
  // bytes are written once more before that is believed. In place, for the lock of a lease belongs to the open file.
  void make_record_durable(const std::filesystem::path& path);

  void sync_file(const std::filesystem::path& path, int (Files::*sync)(int));

  std::filesystem::path run_;
  std::function<void()> await_reports_;
  bool is_run_durable_ = false;                 // as far as the writing thread has seen to it
  std::set<std::filesystem::path> in_doubt_;  // files of the run that could not be synchronised
  bool has_written_ = false;
  bool has_reports_ = false;  // and that they have a name there
  std::shared_ptr<Files> files_;
  CheckpointFolder folder_;
  Retention retention_;
  WorkerGroup* group_;
  LeftOut left_out_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SaveJob> jobs_;
  std::vector<SaveOutcome> outcomes_;
  bool is_writing_ = false;
  bool holds_job_ = false;
  bool is_ending_ = false;
  std::thread thread_{};
};
/// Says how much may wait to be written, and how long storage that does nothing is waited for.
struct StorageLimits {
  std::size_t bytes = std::size_t{16} << 20U;  ///< of logs; what tells of the run itself has as much besides
  std::chrono::nanoseconds room = std::chrono::seconds{1};         ///< when there are as many, while workers train
  std::chrono::nanoseconds rest = std::chrono::milliseconds{250};  ///< before a fork, which a restart waits for
  std::chrono::nanoseconds notice = std::chrono::seconds{10};      ///< before people are told
  std::chrono::nanoseconds end = std::chrono::seconds{30};         ///< when the run ends
};
/// Does one thing after another, in the order in which they were asked for. Used by one thread, but for await().
class StorageThread {
 public:
  using Job = std::function<void()>;

  explicit StorageThread(const StorageLimits& limits = {});
  StorageThread(const StorageThread&) = delete;
  StorageThread& operator=(const StorageThread&) = delete;
  /// Does what was asked for, as drain().
  ~StorageThread();

  /// Has it done. job: owns all that it uses, for storage may hold it for longer than all else lives, and throws
  /// nothing. size_bytes: that it holds; bound_bytes: that may wait together with it. Where there is no room it is
  /// waited for, up to StorageLimits::room, and after that not any more, nor for less, until half of it is free.
  /// Returns whether it will be done. Where there is no thread to be had it is done at once.
  bool post(std::size_t size_bytes, std::size_t bound_bytes, Job job);

  /// Waits until all that was asked for is done. Returns false if nothing has come to be done for StorageLimits::end:
  /// nothing more will be, but for what storage holds at that moment.
  bool drain();
  /// The same in parts, between which something else is done: waits for so long at most, and returns whether all is
  /// done or given up. For StorageLimits::end from the first call on, or from when something has come to be done last.
  bool settles(const Deadline& deadline);
  /// The same, for so long at most and without giving up.
  bool drain(const Deadline& deadline);
  /// Waits, on any thread, until all that was asked for so far is done, or given up.
  void await();

  /// Whether that has been given up.
  [[nodiscard]] bool has_given_up() const;
  /// How long storage has held what is being done.
  [[nodiscard]] std::chrono::nanoseconds held_for() const;

  /// Lets the thread end after what it does at the moment, and all else wait, until it is to go on or is needed again:
  /// a fork wants no other threads. One that storage holds is not waited for any longer than StorageLimits::rest: it
  /// does nothing else meanwhile.
  void rest();
  /// Ends the rest.
  void go_on();

  /// Why there is no thread; empty if there is one, or none was needed.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  static constexpr std::size_t bytes_of_job = 128;  // besides what it holds

  struct Item {
    Job job{};
    std::size_t size = 0;
  };
  struct Work {
    std::mutex mutex{};
    std::condition_variable changed{};
    std::deque<Item> jobs{};
    std::size_t bytes = 0;  // of what is to be done, and what is being done
    std::uint64_t num_posted = 0;
    std::uint64_t num_done = 0;
    Deadline::Clock::time_point begun_at{};
    bool is_busy = false;
    bool is_resting = false;
    bool has_ended = false;  // the thread
    bool is_given_up = false;

    [[nodiscard]] bool is_over(std::uint64_t number) const noexcept;

    // With the mutex held.
    void give_up();

    void rest();

    void run();
    void run_here();

    void do_next(std::unique_lock<std::mutex>& lock);
  };

  // While there is none.
  void start();

  StorageLimits limits_;
  std::shared_ptr<Work> work_;
  LeavableThread thread_{};
  std::size_t waited_for_ = 0;                                // the bound, in vain
  std::optional<Deadline::Clock::time_point> still_since_;  // while all is waited for
  std::uint64_t num_done_then_ = 0;
  std::string problem_;
};
/// Is metrics.jsonl: a line for each report of rank 0.
class ReportFile {
 public:
  ReportFile(std::filesystem::path path, std::shared_ptr<Files> files);

  /// lines: that an earlier program has written.
  void begin_with(std::vector<HistoryLine> lines);

  bool append(std::int64_t report, std::string_view line);
  /// Takes back the lines of reports from number num_reports on, and half a line that a program has left. Where that
  /// cannot be done, it is tried again before the next line.
  bool go_back(std::int64_t num_reports);
  /// Whether there are lines in it that were to be taken back.
  [[nodiscard]] bool is_too_long() const noexcept;

  [[nodiscard]] const LineFile& file() const noexcept { return file_; }

 private:
  bool cuts();

  LineFile file_;
  std::vector<HistoryLine> lines_;
  std::optional<std::uint64_t> size_to_cut_;
};
/// Is the open files of a run, as the thread that writes them uses them, and what others are to know of that.
class RunFiles {
 public:
  using Write = std::function<bool(RunFiles&)>;
  static constexpr std::size_t metrics_at = 0;
  static constexpr std::size_t events_at = 1;
  static constexpr std::size_t first_log_at = 2;

  /// Is what has become of what was to be written to one file.
  struct Outcome {
    std::uint64_t num_done = 0;  ///< lost ones included
    std::uint64_t num_lost = 0;
    std::string reason{};  ///< of the last loss
    bool exists = false;
  };

  RunFiles(const std::filesystem::path& run, int world_size, std::shared_ptr<Files> files);

  /// See RunDirectory.
  std::function<bool()> still_mine{};
  std::chrono::nanoseconds late_after{0};
  std::atomic<bool> is_fenced{false};
  std::atomic<bool> is_given_up{false};  ///< what is still held by storage: people have been told that it is lost

  [[nodiscard]] ReportFile& metrics() noexcept { return metrics_; }
  [[nodiscard]] LineFile& line_file(std::size_t at);
  [[nodiscard]] const LineFile& file(std::size_t at) const;
  [[nodiscard]] const std::shared_ptr<Files>& files() const noexcept { return files_; }

  /// Whether the run is still this program's, as far as can be told. posted_at: when it was asked to write. Where that
  /// is so long ago that storage has stood still, or this program, another one may have taken the run over meanwhile.
  /// It is asked again then, unless that has been done lately; a run that is lost once stays so.
  [[nodiscard]] bool may_write(std::chrono::nanoseconds posted_at);

  void write(std::size_t at, std::chrono::nanoseconds posted_at, const Write& write);

  /// See ReportFile.
  void go_back(std::int64_t num_reports, std::chrono::nanoseconds posted_at);
  /// What has become of what was to be taken back; reason: why it is still there, if it is.
  [[nodiscard]] Outcome cut() const;
  [[nodiscard]] std::string complaint_of_cut(std::string_view why) const;

  [[nodiscard]] Outcome outcome(std::size_t at) const;
  [[nodiscard]] std::vector<std::string> take_complaints();

 private:
  std::shared_ptr<Files> files_;
  ReportFile metrics_;
  LineFile events_;
  std::vector<std::unique_ptr<LineFile>> logs_;
  std::chrono::nanoseconds asked_at_{0};  // by boot_time(): and it was this program's
  bool is_taken_ = false;
  mutable std::mutex mutex_{};
  std::vector<Outcome> outcomes_;
  Outcome cut_{};
  std::vector<std::string> complaints_;
};
/// Is metrics.jsonl, events.jsonl, logs/rank-0.log and so on, and at last result.json: written by a thread of its own,
/// in the order in which they come. What storage does not take, or does not answer for, is told of and counted.
class RunDirectory {
 public:
  RunDirectory(std::filesystem::path path, int world_size, std::shared_ptr<Files> files = std::make_shared<Files>(),
               const StorageLimits& limits = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Asks whether the run is still this program's before what has waited for so long is written: other programs leave
  /// it alone until then. still_mine: called on another thread, and owns all that it uses. Before anything is written.
  void ask_before_late_writes(std::chrono::nanoseconds late_after, std::function<bool()> still_mine);
  /// From here on nothing is written any more: the run is another program's.
  void fence() noexcept;
  [[nodiscard]] bool is_fenced() const noexcept;
  /// From here on, what is said about a file does not promise that training goes on.
  void note_end() noexcept;

  /// lines: of metrics.jsonl, by an earlier program. Before anything is written.
  void begin_with(std::vector<HistoryLine> lines);
  void append_metrics(std::int64_t report, std::string line);
  void append_event(const JsonObject& event);
  void append_log(int rank, std::string line);
  /// Takes back what was reported from number num_reports on, in metrics.jsonl.
  void go_back(std::int64_t num_reports);

  /// Returns what there is to be said since the last call: once of each file that takes a line no more, and of storage
  /// that does not answer.
  [[nodiscard]] std::vector<std::string> take_complaints();

  /// Writes a file of one JSON object after all else: see write_object(). settle: waits until all is written or lost.
  /// Returns what went wrong, or an empty text.
  template <class Settle>
  [[nodiscard]] std::string write_last(std::string_view name, const JsonObject& object, bool lasts,
                                       const Settle& settle) {
    const auto loss = std::make_shared<std::string>();
    const auto path = path_ / name;
    const bool is_posted =
        thread_.post(0, most_bytes(RunFiles::events_at), [=, files = files_, posted_at = boot_time()] {
          const auto may_write = [&] { return files->may_write(posted_at); };
          if (may_write()) *loss = write_object(path, object, lasts, files->files(), may_write);
        });
    if (is_posted) settle();
    if (is_posted && !has_given_up()) return *loss;
    return compose("{} cannot be written: its storage does not answer", path.string());
  }

  /// Waits until all is written. What storage does not answer for is lost after a while: see StorageThread.
  void settle();
  /// The same, for so long at most, and nothing is lost by it.
  void settle(const Deadline& deadline);
  /// The same in parts, between which something else is done. Returns whether all is written or lost.
  [[nodiscard]] bool settles(const Deadline& deadline);
  /// Has storage asked for the directory when all else is written. Once that is settled, has_given_up() says whether it
  /// has answered.
  void ask_storage();
  [[nodiscard]] bool has_given_up() const;
  /// Waits, on any thread, until all that was to be written so far is written, or lost.
  void await();
  /// Leaves no thread for a fork, and nothing is written until it is to go on, or there is more to be written.
  void rest();
  void go_on();

  /// The log of a rank, if it has written anything.
  [[nodiscard]] std::optional<std::filesystem::path> log_of(int rank) const;

  /// How many lines are missing from which files, or too many in them, and why.
  [[nodiscard]] std::vector<std::string> warnings() const;

 private:
  struct Sent {
    std::uint64_t num_lines = 0;    // on their way to the file
    std::uint64_t num_dropped = 0;  // for which there was no room
  };

  [[nodiscard]] static std::size_t at_of_log(int rank) noexcept;
  // What workers print leaves room for what tells of the run.
  [[nodiscard]] std::size_t most_bytes(std::size_t at) const noexcept;

  [[nodiscard]] bool drains();

  void append(std::size_t at, std::string line);

  void write(std::size_t at, std::size_t size_bytes, RunFiles::Write write);

  std::filesystem::path path_;
  StorageLimits limits_;
  std::shared_ptr<RunFiles> files_;
  std::vector<Sent> sent_;  // by file
  std::uint64_t num_cuts_ = 0;
  std::vector<std::string> complaints_;
  bool was_held_ = false;
  bool has_told_of_thread_ = false;
  bool has_given_up_ = false;
  bool is_training_ = true;
  StorageThread thread_;
};
/// Says how one start of the workers ended.
JsonObject& add_attempt(JsonObject& object, const Attempt& attempt);
[[nodiscard]] std::vector<JsonObject> attempt_objects(const std::vector<Attempt>& attempts);
[[nodiscard]] JsonObject result_object(const ResultFields& fields);
/// Keeps signals that would end the program from doing so while it lives, and lets the first one do it then, so that a
/// result is written first.
class HeldSignals {
 public:
  HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals();

  /// Returns the next one that has come; nothing if there is none.
  [[nodiscard]] std::optional<int> take() noexcept;

 private:
  std::optional<SignalWatch> watch_;
  std::optional<int> first_;
};
/// Writes result.json, or else a run that has succeeded would be done again; as durably as what there is to go
/// on from. settle: see RunDirectory::write_last(). Returns what went wrong, or an empty text.
template <class Settle>
[[nodiscard]] std::string write_result(RunDirectory& directory, const ResultFields& fields, const Settle& settle) {
  return directory.write_last("result.json", result_object(fields), fields.checkpoint.has_value(), settle);
}
/// Says which rank has failed where, and what there is to see of it.
[[nodiscard]] std::string text_of_rank_failure(const Failure& failure, int world_size, const std::string& host,
                                                      std::int64_t num_reports, const RunDirectory& directory);
/// Both the directory and the line must outlive it.
class RunLog {
 public:
  using Clock = Deadline::Clock;

  RunLog(RunDirectory& directory, ProgressLine& progress, Clock::time_point called_at) noexcept;

  /// Since fit() was called.
  [[nodiscard]] double seconds() const;

  void print(const std::string& text);
  /// Tells of something that is wrong, unless there is nothing to tell.
  void complain(const std::string& text);
  /// Tells of what storage has not taken since the last call.
  void tell_of_losses();
  /// Tells of it now and in the Result; once, of what several workers say alike.
  void warn(const std::string& text);
  void warn_in_result(std::string text);
  /// All that the result is to warn of: lost lines of files and of the console as well.
  [[nodiscard]] std::vector<std::string> all_warnings() const;

  /// is_training: whether workers train on meanwhile.
  void tell_of(const SaveOutcome& outcome, bool is_training);

  /// lost: the last of the checkpoints that are gone.
  void tell_of_beginning_anew(const std::string& lost);

  /// attempt: the number of the one that begins; failed: the one before. checkpoint: where it goes on, at begin_step;
  /// empty for the beginning.
  void tell_of_restart(int attempt, const Attempt& failed, const std::string& checkpoint, std::uint64_t begin_step);

  /// Another process has led the run until now, and has told of so many attempts.
  void tell_of_leader(const std::string& why, std::size_t num_attempts);
  /// Tells of those that have ended since the last call.
  void tell_of(const std::vector<Attempt>& attempts);
  void tell_of_end(const ResultFields& fields);

  /// stacks: by rank, the calls that it is in, one a line.
  void tell_of_stacks(const std::vector<std::string>& stacks);

  /// What is asked of the workers after it. grace: the time that they have.
  void tell_of_signal(int signal, const Orders& orders, std::chrono::nanoseconds grace);

  void tell_of_resize(const Resize& resize);

 private:
  [[nodiscard]] JsonObject begin_event(std::string_view name) const;
  void write(const JsonObject& event);

  RunDirectory* directory_;
  ProgressLine* progress_;
  Clock::time_point called_at_;
  std::vector<std::string> warnings_;
  std::size_t num_attempts_told_ = 0;
};
/// Collects what ranks have saved: save number i of all ranks is one checkpoint.
class SaveBook {
 public:
  explicit SaveBook(int world_size);

  void add(int rank, SavedMessage save);

  /// Takes the next checkpoint that all ranks have saved, by rank.
  [[nodiscard]] std::optional<std::vector<SavedMessage>> take();

  /// Returns a rank that has saved a step which this one, which has ended so many, has passed without saving it; -1 if
  /// there is none. Only what has been added counts: what the rank has posted may still be on its way.
  [[nodiscard]] int waits_for(int rank, std::uint64_t steps) const;

  /// Returns a rank that another one waits for so; -1 if there is none. steps(rank): how many it has ended.
  template <class Steps>
  [[nodiscard]] int late_rank(const Steps& steps) const {
    const int first = first_waiting();
    for (int rank = 0; first >= 0 && rank < static_cast<int>(saves_.size()); ++rank) {
      if (queue(rank).empty() && queue(first).front().step < steps(rank)) return rank;
    }
    return -1;
  }

  /// Takes what only some ranks have saved, with the rank: they have ended.
  [[nodiscard]] std::vector<std::pair<int, SavedMessage>> take_rest();

 private:
  [[nodiscard]] const std::deque<SavedMessage>& queue(int rank) const;

  // The rank that has saved the earliest step that is not whole; -1 if there is none.
  [[nodiscard]] int first_waiting() const;

  std::vector<std::deque<SavedMessage>> saves_;
};
/// Says which checkpoints are kept, in the words of the checkpoint room.
[[nodiscard]] Retention retention_of(const CheckpointConfig& config);
/// Returns the newest checkpoint that is whole, of an earlier program, and removes what it has left unfinished;
/// problems gets what is wrong with newer ones, and what cannot be removed. There may be none yet, but if there are
/// any, or have been, a run does not begin anew because they cannot be read, or are gone. recorded: the last one that
/// was written; empty if none was. Throws: ConfigError if it may not begin at the beginning, but would have to.
[[nodiscard]] std::optional<Checkpoint> find_checkpoint(
    const std::filesystem::path& run, const RunLease& lease, const RunConfig& config, const std::string& recorded,
    std::vector<std::string>& problems, std::shared_ptr<Files> files = std::make_shared<Files>());
/// Returns the newest checkpoint that is whole, where problems have been told of already.
[[nodiscard]] std::optional<Checkpoint> newest_of(const CheckpointFolder& folder);
/// Returns where each rank's part of a state is.
[[nodiscard]] std::vector<std::uint8_t> slots_of(const std::vector<SavedMessage>& saves);
/// Is what a run leaves of checkpoints to its Result.
struct LeftCheckpoints {
  std::optional<Checkpoint> newest{};
  std::vector<Checkpoint> best{};
  int num_failed = 0;
  bool is_state_saved = true;

  void move_to(ResultFields& fields);

  /// Looks them up. problems gets what is wrong with them.
  void look_up(const CheckpointFolder& folder, const Retention& retention, std::vector<std::string>& problems);
};
/// Owns the writer, and holds the newest copy of the state in memory. The lease and the directory must outlive it.
class RunCheckpoints {
 public:
  RunCheckpoints(const RunInfo& info, const CheckpointConfig& config, const RunLease& lease, RunDirectory& directory,
                 WorkerGroup& group);

  /// Takes what a rank has saved; a checkpoint that is whole with it is on its way to the disk, and a copy that is
  /// whole is held until the next one is. metrics: what rank 0 has reported last, if it is the rank.
  void add(int rank, SavedMessage save, const Metrics& metrics, int attempt);

  /// Says that a rank, which ends no more steps, has gone by one that another rank has saved; nothing otherwise.
  [[nodiscard]] std::optional<Failure> part_failure(int rank) const;
  /// The same of a rank that goes on, and would keep the others waiting for ever. What it has posted may still be on
  /// its way, so it is said once that has been so for a while. steps(rank): that a rank has ended.
  template <class Steps>
  [[nodiscard]] std::optional<Failure> late_part_failure(const Steps& steps, Deadline::Clock::time_point now) {
    const int found = book_.late_rank(steps);
    return patience_.is_over(found, now) ? part_failure(found, steps(found)) : std::nullopt;
  }

  [[nodiscard]] bool drain(const Deadline& deadline);
  /// Takes note of what has been written since, and tells of it. is_training: whether workers train on meanwhile.
  void note_outcomes(RunLog& log, bool is_training);
  /// How many have been written by this program; in the attempt under way.
  [[nodiscard]] int num_written() const noexcept { return num_written_; }
  [[nodiscard]] int num_of_attempt() const noexcept { return num_of_attempt_; }

  /// Forgets what only some ranks have saved; when all have ended.
  void end_attempt();

  /// The newest copy of the state in memory, by rank; empty if there is none, or a checkpoint has been saved since. It
  /// may still have to be written, then.
  [[nodiscard]] std::vector<SavedMessage> newest_copy() const;

  /// The newest state in memory, by rank: that copy, or the newest checkpoint while it is being written, and afterwards
  /// until a worker needs its memory. To be asked when no worker is left. Files that the user has added are found in a
  /// checkpoint only.
  [[nodiscard]] std::vector<SavedMessage> newest_in_memory();
  /// Returns it if the next workers find it there, even if it has been written meanwhile; nothing otherwise.
  /// can_exchange: they are as many as before, and those of each process can take from others what it lacks.
  [[nodiscard]] std::vector<SavedMessage> kept(std::vector<SavedMessage> copy, bool can_exchange);
  /// Whether so many workers find it there as they would have when it was decided to go on from it.
  [[nodiscard]] bool still_keeps(const std::vector<std::uint8_t>& slots, int world_size);

  /// Makes a checkpoint of the newest copy, if there is one, which can no more be gone on from without reading. What is
  /// lost with another process is not to be had any more.
  void write_newest_copy(int attempt);

  /// So many workers begin, after the end of those before.
  void begin_attempt(int world_size, int attempt);

  /// Returns the newest checkpoint that is whole, from which the workers go on; nothing if there has been none, so that
  /// they begin at the beginning. Only while nothing is being written. Throws: Error if they may not.
  [[nodiscard]] std::optional<Checkpoint> go_back(bool began_with_checkpoint);

  /// The folder; only while nothing is being written, as what is below.
  [[nodiscard]] const CheckpointFolder& folder();
  /// What is left of them at the end. problems gets what is wrong.
  [[nodiscard]] LeftCheckpoints left(std::vector<std::string>& problems);
  /// The same, where storage is not to be asked.
  [[nodiscard]] LeftCheckpoints not_looked_up() const;

 private:
  // Of a rank that has ended so many steps.
  [[nodiscard]] std::optional<Failure> part_failure(int rank, std::uint64_t steps) const;

  [[nodiscard]] static bool has_user_files(const std::vector<SavedMessage>& saves);
  // Of a file that several ranks have copied, the first one's counts.
  [[nodiscard]] bool is_reachable(const std::vector<SavedMessage>& saves) const;
  // Whether nobody has touched the memory of what was written.
  [[nodiscard]] bool is_left(const std::vector<SavedMessage>& saves) const;
  [[nodiscard]] static CheckpointFolder folder_of(const RunInfo& info, const RunLease& lease);

  // What could not be removed when a checkpoint was given up, because a process that was lost still held it, can be
  // now.
  void sweep(std::vector<std::string>& problems);

  // Of two states of a run, the one with more steps, or more reports after the same, is newer.
  using Place = std::pair<std::uint64_t, std::int64_t>;
  [[nodiscard]] static Place place_of(const SavedMessage& save) noexcept;

  // A metric that reports never have would keep any checkpoints instead of the best.
  void warn_of_score(const Metrics& metrics, RunLog& log);

  void add_copy(int rank, SavedMessage save);

  // One that cannot be submitted is one that cannot be written: training goes on.
  void submit(const std::vector<SavedMessage>& saves, Metrics metrics, int attempt);

  [[nodiscard]] Manifest manifest_of(const std::vector<SavedMessage>& saves, Metrics metrics, int attempt) const;

  [[nodiscard]] SaveJob job_of(const std::vector<SavedMessage>& saves, const Manifest& manifest);

  void release(const std::vector<SavedMessage>& saves) noexcept;
  void release(int rank, const SavedMessage& save) noexcept;

  NamedValues environment_;
  std::filesystem::path run_;
  std::uint64_t generation_;
  WorkerGroup* group_;
  bool has_missed_score_ = false;
  SaveBook book_;
  SaveBook copies_;
  Patience patience_{};                    // with a rank that seems to have no part in a checkpoint
  std::vector<SavedMessage> held_;       // the newest copy that is whole, by rank
  std::vector<SavedMessage> submitted_;  // what the writer was given last, by rank
  Place saved_{0, -1};                     // of the newest checkpoint, unless it could not be written
  Place written_{0, -1};
  int num_written_ = 0;
  int num_failed_ = 0;
  int attempt_ = 0;  // that is under way
  int num_of_attempt_ = 0;
  bool has_last_failed_ = false;
  std::deque<Metrics> metrics_;  // of rank 0, by checkpoint that is not whole yet
  CheckpointWriter writer_;
};
/// Collects reports and hands them out in order, each when it is complete or must not wait any longer. None is handed
/// out without rank 0's metrics before the end.
class ReportBook {
 public:
  static constexpr std::int64_t capacity = 64;      ///< how far rank 0 may be ahead of a rank that is waited for
  static constexpr std::int64_t most_ahead = 1024;  ///< of rank 0: what a rank reports beyond is only counted

  static constexpr double silent_after_seconds = 5;  ///< until a rank that has never reported is not waited for

  /// first: the number of the first report that is to come.
  explicit ReportBook(int world_size, std::int64_t first = 0);

  [[nodiscard]] int world_size() const noexcept;

  /// Takes the next report of a rank, made `seconds` after the start, and returns its index.
  std::int64_t add(int rank, Metrics metrics, double seconds);

  /// Returns the next report that need not wait for any rank; after the end, any.
  [[nodiscard]] std::optional<Report> take(bool is_end);

  /// Counts a report that nobody wants to hear of.
  void count_only(int rank);

  /// How many reports a rank has made.
  [[nodiscard]] std::int64_t count(int rank) const;

 private:
  // A rank that has never reported although others go on will most likely never do so; but it may just be late.
  [[nodiscard]] bool must_wait(const Report& report) const;

  std::vector<std::int64_t> counts_;
  std::deque<Report> open_;
  std::int64_t first_ = 0;
};
/// Begins with what an earlier program has left. The directory must outlive it.
class RunHistory {
 public:
  RunHistory(RunDirectory& directory, int world_size, RunRecord before);

  /// Whether an earlier program has begun the run.
  [[nodiscard]] bool has_record() const noexcept { return has_record_; }
  /// What of its record is damaged.
  [[nodiscard]] const std::vector<std::string>& problems() const noexcept { return problems_; }
  /// The last checkpoint that it has written; empty if it has none.
  [[nodiscard]] const std::string& last_checkpoint() const noexcept { return last_checkpoint_; }

  /// Forgets what was reported from number num_reports on: it will be reported anew.
  void go_back(std::int64_t num_reports);
  /// So many ranks report from here on.
  void begin_attempt(int world_size);

  /// Takes the next report of a rank. is_heard: callbacks want to hear of it.
  void add(int rank, Metrics metrics, double seconds, bool is_heard);

  /// See ReportBook.
  [[nodiscard]] std::optional<Report> take(bool is_end);
  [[nodiscard]] std::int64_t count(int rank) const;

  /// What rank 0 has reported.
  [[nodiscard]] const std::vector<Metrics>& metrics() const noexcept { return metrics_; }
  [[nodiscard]] Metrics newest() const;
  [[nodiscard]] std::vector<Metrics> take_metrics() noexcept;

 private:
  RunDirectory* directory_;
  ReportBook book_;
  bool has_record_;
  std::vector<Metrics> metrics_;
  std::vector<std::int64_t> numbers_;  // of metrics_
  std::vector<std::string> problems_;
  std::string last_checkpoint_;
};
/// Knows it, and takes the run's history back to there: what was reported after it will be reported anew.
class ResumePoint {
 public:
  /// The history must outlive it.
  explicit ResumePoint(RunHistory& history) noexcept;

  /// What workers are told of it.
  [[nodiscard]] const Briefing& briefing() const noexcept { return briefing_; }
  [[nodiscard]] std::string encode() const;
  [[nodiscard]] int attempt() const noexcept { return briefing_.attempt; }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  void begin_attempt() noexcept;
  /// The next attempt has that number: others have come before this program's.
  void go_on_as(int attempt) noexcept;

  /// Goes on from the newest checkpoint that an earlier program has left in run; see find_checkpoint(), also for what
  /// it throws.
  void find(const std::filesystem::path& run, const RunLease& lease, const RunConfig& config, RunLog& log);

  /// Goes on from the newest state, when no worker is left: in memory, where the next ones find it there, or else a
  /// checkpoint. can_exchange: see RunCheckpoints::kept(). must_write: what is in memory does not last until then.
  /// settle(): waits until all checkpoints are written. patiently(read): calls read(), which waits for storage. Throws:
  /// Error if the run cannot go on.
  template <class Settle, class Patiently>
  void go_to_newest(RunCheckpoints& checkpoints, bool can_exchange, bool must_write, const Settle& settle,
                    const Patiently& patiently) {
    auto copy = checkpoints.kept(checkpoints.newest_in_memory(), can_exchange);
    if (copy.empty() || must_write) {
      if (copy.empty()) checkpoints.write_newest_copy(attempt());
      settle();
      copy = checkpoints.kept(checkpoints.newest_copy(), can_exchange);  // a newer checkpoint may have failed
    }
    if (!copy.empty()) return go_to(copy);
    std::optional<Checkpoint> newest;
    patiently([&] { newest = checkpoints.go_back(has_found_); });
    go_to(newest);
  }
  /// Whether so many workers find there what they are to go on from: a process may have been lost, or have come back.
  [[nodiscard]] bool is_there(RunCheckpoints& checkpoints, int world_size) const;

 private:
  void go_to(const std::optional<Checkpoint>& checkpoint);

  void go_to(const std::vector<SavedMessage>& copy);

  RunHistory* history_;
  Briefing briefing_{};
  std::uint64_t step_ = 0;
  bool has_found_ = false;  // a checkpoint of an earlier program
};
/// Goes on at a point as whoever led before would have after a failure; it is not counted as one.
void take_over(const Inheritance& inherited, ResumePoint& point, FailureBudget& budget,
                      std::vector<Attempt>& attempts, RunLog& log);
/// Returns the shelves of the Trainer's datasets, by what is on them: where two processes say the same, it is the same.
[[nodiscard]] std::vector<std::pair<std::uint64_t, SampleShelf*>> shelves_of(const Datasets& datasets);
/// Returns "rank 1 was outside of collectives after 3 of them (step 7, for 2.6 s), rank 0 had waited in collective 4
/// for 2.5 s (step 7)": those that do not wait first, because the others wait for them. Of very
/// many ranks only the first.
[[nodiscard]] std::string activity_text(const WorkerGroup& group, int num_workers,
                                               Deadline::Clock::time_point now);
/// Returns how far the run is, as the page of rank 0 tells, and what all ranks have been given.
[[nodiscard]] ProgressState progress_of(const WorkerGroup& group, int num_workers, int num_alive,
                                               double seconds);
/// Returns the most steps that any of them has ended; begin_step if that is more.
[[nodiscard]] std::uint64_t furthest_step(const WorkerGroup& group, int num_workers, std::uint64_t begin_step);
/// Knows the last signal that has asked the run to end.
class AttentiveWait {
 public:
  /// All must outlive it.
  AttentiveWait(const PreemptionNotice& notice, RunDirectory& directory, RunLog& log) noexcept;

  /// From here on hear() returns the next signal that has come, if there is one; all that it uses must outlive what
  /// waits then.
  void listen(std::function<std::optional<int>()> hear);
  /// From here on a group does so, whenever it has no workers and so nothing else to tell.
  void listen_to(WorkerGroup& group);

  /// 0 if there was none.
  [[nodiscard]] int signal() const noexcept { return signal_; }
  /// One that somebody else has heard, or 0 for none. SIGUSR1, SIGUSR2, and a file that stands for a signal, are
  /// notices: the one that tells to leave is yet to come.
  void note(int signal, bool is_file = false) noexcept;

  /// Returns false as soon as a signal comes.
  [[nodiscard]] bool sleep(std::chrono::nanoseconds time);

  /// Waits for storage until is_over(deadline), which waits for so long, says so; for a moment only once a signal has
  /// come. text: what is not waited for then, and what another signal does.
  template <class IsOver>
  void await_unless_told(const IsOver& is_over, std::string_view text) {
    std::optional<Deadline> end;
    while (!is_over(Deadline::after(slice))) {
      log_->tell_of_losses();
      if (hears_signal()) log_->print(compose("{}: {}", signal_name(signal_), text));
      if (signal_ != 0 && !end) end = Deadline::after(moment);
      if (end && end->expired()) return;
    }
  }

  /// Waits for storage until is_over(deadline) says so, though a signal comes. text: what is waited for, and what
  /// another signal does.
  template <class IsOver>
  void await(const IsOver& is_over, std::string_view text) {
    while (!is_over(Deadline::after(slice))) {
      log_->tell_of_losses();
      if (hears_signal()) log_->print(compose("{}: {}", signal_name(signal_), text));
    }
  }

  /// Waits until all that the run has told is written, or is lost.
  void settle();
  /// The same, and returns whether the storage of the run answers then.
  [[nodiscard]] bool finds_storage();

  /// Calls use(), which waits for storage, on another thread, and awaits its end. Throws: what use() does.
  template <class Use>
  void await_use(const Use& use, std::string_view text) {
    std::future<void> end;
    try {
      const BlockSignals block{deferrable_signals()};  // they are for this thread
      end = std::async(std::launch::async, [&use] { use(); });
    } catch (const std::system_error&) {  // there is no thread
      return use();
    }
    await([&end](const Deadline& deadline) { return end.wait_for(deadline.remaining()) == std::future_status::ready; },
          text);
    end.get();
  }
  /// The same of what reads checkpoints.
  template <class Read>
  void read(const Read& read) {
    await_use(read, "checkpoints are being read; once more ends the program");
  }

 private:
  static constexpr std::chrono::milliseconds slice{20};
  static constexpr std::chrono::milliseconds moment{200};

  // Where one that is more than a notice has come before, the run was told to leave already, and the program ends: what
  // waits for storage cannot be interrupted, and what is committed stays.
  [[nodiscard]] bool hears_signal();

  const PreemptionNotice* notice_;
  RunDirectory* directory_;
  RunLog* log_;
  std::function<std::optional<int>()> hear_;
  int signal_ = 0;
  bool was_told_to_leave_ = false;
};
/// Is told how many checkpoints the run has saved so far, whenever it is asked.
class Farewell {
 public:
  using Time = Deadline::Clock::time_point;

  /// The run is told of its end. is_preempted: because its machine will go.
  void begin(bool is_preempted, int num_saved, Time now) noexcept;

  /// Whether half of the time is over: what the workers have not saved by then is to be saved without them.
  [[nodiscard]] bool is_late(std::chrono::nanoseconds grace, Time now) const noexcept;
  /// When that will be, which nothing but the clock tells of; Time::max() if it is over.
  [[nodiscard]] Time wakes_at(std::chrono::nanoseconds grace, Time now) const noexcept;
  [[nodiscard]] bool is_preempted() const noexcept { return is_preempted_; }
  /// Says what a run that is told so goes on from.
  [[nodiscard]] std::string text(int num_saved) const;

 private:
  bool is_preempted_ = false;
  int num_saved_before_ = 0;
  Time began_{};
};
/// Is the time until there is a group that hears signals itself.
class FirstStart {
 public:
  /// All must outlive it. attempts: gets those that have failed.
  FirstStart(FailureBudget& budget, PreemptionNotice& notice, RunLog& log, std::vector<Attempt>& attempts) noexcept;

  /// Calls start(num_workers) until it returns a group. Where hosts are lost meanwhile, those that are there, or come
  /// back within `patience`, make the workers, if these are enough. Returns nothing if the failures allowed are spent,
  /// or the run is asked to end while another start is waited for: failure() says which. begin_step: where the run goes
  /// on. Throws: ConfigError as start() does.
  template <class StartOnce>
  [[nodiscard]] std::unique_ptr<WorkerGroup> make(const StartOnce& start, int num_workers, ElasticSize& size,
                                                  std::chrono::nanoseconds patience, std::uint64_t begin_step) {
    while (!failure_) {
      try {
        return start(num_workers);
      } catch (const ConfigError&) {
        throw;
      } catch (const std::exception& error) {
        const Failure failure = Failure::of_start(error, "the workers could not be started");
        if (const auto found = find_room(failure, size, patience)) {
          num_workers = *found;
        } else if (!failure_) {
          judge(failure, begin_step);
          if (failure.is_host && size.is_elastic()) reason_ = size.no_room();
        }
      }
    }
    return nullptr;
  }

  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// Why it is final, if there is more to say.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Whether it is that the machine will be taken away.
  [[nodiscard]] bool is_preempted() const noexcept { return is_preempted_; }

  /// Returns the next signal that has come, whatever it is about; nothing if there is none.
  [[nodiscard]] std::optional<int> take_signal() const noexcept;

  /// Hands on what came while the group was made: its first events, until it has told of the signals that it has heard
  /// itself, and then those that came too early for it.
  template <class Handle, class HandleSignal>
  void catch_up(WorkerGroup& group, const Handle& handle, const HandleSignal& handle_signal) {
    const std::vector<int> signals = take_signals();
    std::size_t num_told = 0;
    while (num_told < signals.size()) {
      auto event = group.next(Deadline::after(std::chrono::nanoseconds{0}));
      if (!event) break;
      if (const auto* told = std::get_if<SignalEvent>(&*event); told && notice_->concerns_run(told->signal)) ++num_told;
      handle(*event);
    }
    // Each was heard by both from some moment on, so the first ones are those that the group has not heard.
    for (std::size_t at = 0; num_told + at < signals.size(); ++at) handle_signal(signals[at]);
  }

 private:
  [[nodiscard]] std::vector<int> take_signals();

  // After the loss of a host, with which nothing of the run was lost.
  [[nodiscard]] std::optional<int> find_room(const Failure& failure, ElasticSize& size,
                                             std::chrono::nanoseconds patience);

  void judge(Failure failure, std::uint64_t begin_step);

  [[nodiscard]] bool is_asked_to_end();

  FailureBudget* budget_;
  PreemptionNotice* notice_;
  RunLog* log_;
  std::vector<Attempt>* attempts_;
  SignalWatch watch_{};
  std::optional<Failure> failure_;
  std::string reason_;
  bool is_preempted_ = false;
};
/// Counts for how long each rank has stood still. Time in which nobody looked does not count: the whole group may have
/// been suspended.
class StepWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Standstill {
    int rank = -1;
    std::string what{};
  };

  /// limit: 0 to watch nothing. first_limit: for the first step, before which a program may prepare much; as limit if
  /// that is longer.
  StepWatch(int world_size, std::chrono::nanoseconds limit, std::chrono::nanoseconds first_limit);

  /// How often to look.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;

  /// steps(rank) returns how many the rank has ended, more than `begin` if any in this attempt; nothing for one that is
  /// not watched. Returns a
  /// rank that has stood still for longer than its limit: if there is one, one that does not wait for others. Who waits
  /// has begun to do so a little before the one it waits for is found out, and is not taken for it meanwhile.
  template <class Steps, class Waits>
  [[nodiscard]] std::optional<Standstill> look(Time now, std::uint64_t begin, const Steps& steps, const Waits& waits) {
    if (limit_.count() == 0) return std::nullopt;
    const std::chrono::nanoseconds most = 2 * interval();
    const auto passed =
        looked_ == Time{} ? std::chrono::nanoseconds{0} : std::min<std::chrono::nanoseconds>(now - looked_, most);
    looked_ = now;
    std::optional<Standstill> found;
    bool is_waiting = false;
    bool may_be_another = false;
    bool is_preparing = false;            // one for whom others may wait
    std::chrono::nanoseconds longest{0};  // beyond the limit
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Seen& seen = ranks_[rank];
      const std::optional<std::uint64_t> count = steps(static_cast<int>(rank));
      seen.still = count && count == seen.steps ? seen.still + passed : std::chrono::nanoseconds{0};
      seen.steps = count;
      const bool waits_too = waits(static_cast<int>(rank));
      may_be_another = may_be_another || (seen.still.count() > 0 && !waits_too);
      const bool is_first = count && *count <= begin;
      const auto excess = seen.still - (is_first ? first_limit_ : limit_);
      is_preparing = is_preparing || (is_first && !waits_too && excess.count() <= 0);
      if (excess.count() <= 0) continue;
      longest = std::max(longest, excess);
      if (!found || (is_waiting && !waits_too)) {
        found = {.rank = static_cast<int>(rank), .what = text(seen.still, is_first)};
        is_waiting = waits_too;
      }
    }
    if (is_waiting && (is_preparing || (may_be_another && longest <= most))) return std::nullopt;
    return found;
  }

 private:
  [[nodiscard]] std::string text(std::chrono::nanoseconds still, bool is_first) const;

  struct Seen {
    std::optional<std::uint64_t> steps{};
    std::chrono::nanoseconds still{0};
  };
  std::vector<Seen> ranks_;
  std::chrono::nanoseconds limit_;
  std::chrono::nanoseconds first_limit_;
  Time looked_{};
};
/// Returns the one that a run's settings ask for.
[[nodiscard]] StepWatch step_watch_of(const RunConfig& config, int world_size);
/// Reads the pages of a group. The configuration must outlive it.
class RankWatch {
 public:
  using Clock = Deadline::Clock;

  RankWatch(const RunConfig& config, int num_workers);

  void begin_attempt(int num_workers);

  /// How often to look.
  [[nodiscard]] std::chrono::nanoseconds interval() const noexcept;

  /// Returns a rank that has stood still for too long; see StepWatch. begin: the step at which the attempt has begun.
  /// has_exited(rank) says whether one is watched no more.
  template <class HasExited>
  [[nodiscard]] std::optional<StepWatch::Standstill> look(const WorkerGroup& group, std::uint64_t begin,
                                                          const HasExited& has_exited) {
    return steps_.look(
        Clock::now(), begin,
        [&](int rank) { return has_exited(rank) ? std::nullopt : std::optional{group.page(rank).steps.load()}; },
        [&](int rank) { return group.page(rank).waiting_since_ns.load(std::memory_order_relaxed) != 0; });
  }

  /// Keeps what each rank does now, unless that has been kept in this attempt: to be called before the group is ended,
  /// for the end is what all ranks do then.
  void note_activity(const WorkerGroup& group);
  [[nodiscard]] const std::string& activity() const noexcept { return activity_; }

 private:
  const RunConfig* config_;
  int num_workers_;
  StepWatch steps_;
  std::string activity_;
};
/// Knows where each rank is, which ones have started and left in order, and where the time of their steps has gone.
class RollCall {
 public:
  explicit RollCall(int num_workers);

  /// So many workers begin. They are where those before were, or here, until they tell.
  void begin_attempt(int num_workers);

  /// Returns whether all have started by that.
  bool note_start(int rank, std::string host);
  void note_left() noexcept;
  void note_step_times(int rank, const StepTimes& times);

  [[nodiscard]] const std::string& host(int rank) const;
  [[nodiscard]] bool has_any_left() const noexcept { return num_left_ > 0; }
  [[nodiscard]] bool have_all_left() const noexcept;
  [[nodiscard]] std::vector<StepTimes> take_step_times() noexcept;

 private:
  std::vector<std::string> hosts_;
  std::vector<StepTimes> step_times_;
  int num_started_ = 0;
  int num_left_ = 0;
};
/// Is all of them together. One that throws ends the run; the others still hear of everything.
class RunCallbacks {
 public:
  /// callbacks must outlive it. fail: told what one has thrown.
  RunCallbacks(const std::vector<AnyCallback>& callbacks, std::function<void(Failure)> fail);

  /// hook: its name, for messages.
  template <class Call>
  void tell(std::string_view hook, const Call& call) const {
    for (const AnyCallback& callback : *callbacks_) {
      try {
        call(callback);
      } catch (...) {
        const std::string what = exit_of(std::current_exception()).message;
        fail_({.what = compose("a callback's {} threw: {}", hook, what), .kind = Failure::Kind::final});
      }
    }
  }

 private:
  const std::vector<AnyCallback>* callbacks_;
  std::function<void(Failure)> fail_;
};
/// Is one run from the start of its workers to its Result. Knows neither backend nor scaling: start makes the group.
class Supervision {
 public:
  using Start = std::function<std::unique_ptr<WorkerGroup>(const GroupPlan&)>;
  using Renew = std::function<void(int num_workers)>;
  using Clock = Deadline::Clock;

  /// size: which says as well how many workers there are at first. before: what an earlier program has left of the run.
  Supervision(const RunConfig& config, ElasticSize size, RunInfo info, Clock::time_point called_at, RunLease lease,
              RunRecord before = {}, Leadership leadership = {}, const Console& console = Console{},
              std::shared_ptr<Files> files = std::make_shared<Files>(), const StorageLimits& limits = {});

  /// Runs to the end. renew: called before the workers are started again.
  /// Throws: ConfigError if the run cannot go on as it was asked to, or if the group cannot be started because of its
  /// settings.
  [[nodiscard]] Result run(const Start& start, const Renew& renew);

 private:
  // What waits for storage is done by other threads, which a fork needs at rest: workers are watched meanwhile.
  void look_out();
  void rest();

  void start_group(const Start& start);

  void note_no_start(const FirstStart& first);

  [[nodiscard]] std::uint64_t steps_of(int rank) const;

  void end_attempt();

  // What is only in memory is lost with this process.
  void save_what_is_left();

  // Waits until all that was saved has been written.
  void settle();

  void look_at_what_is_left();

  // Decides about another attempt, and starts it.
  [[nodiscard]] bool restarts(const Renew& renew);

  // Decides whether a run that has failed is started again, and after what time.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> delay_of_restart();

  // Waits until there is room for enough workers. Returns false if there is none, or the run was interrupted meanwhile.
  [[nodiscard]] bool find_room();

  // Once the workers run: a callback that throws ends them.
  void tell_of_resize(int former);

  [[nodiscard]] bool go_on_from_newest(bool can_exchange);

  // It may have been decided some time ago where to go on.
  [[nodiscard]] bool finds_its_place();

  void note_lost_steps();

  // Returns false if the run was interrupted meanwhile, or while storage was waited for.
  [[nodiscard]] bool pause(std::chrono::nanoseconds delay);

  // A signal that came when no worker was there to be asked: what there is already is all that there is to save.
  void interrupt_between_attempts();

  void begin_workers(int num_workers);

  // Before each start of the workers: who leads next has to know of it.
  void tell_next_leader() const;

  [[nodiscard]] bool start_again(const Renew& renew);

  void handle_next();

  void carry_out(const Orders& orders);
  void fail(const Failure& failure);

  void handle(const MessageEvent& event);
  void handle(const OutputEvent& event);
  void handle(ExitEvent& event);
  void handle(const SilenceEvent& event);
  void handle(const BrokenEvent& event);
  void handle(const SignalEvent& event);
  void handle_signal(int signal, bool is_announced, bool is_file = false);

  void look_for_standstill();

  void look_for_room();

  // Workers that were asked to leave, and end no step, may not do so in time.
  void save_before_it_is_too_late();

  void tell_of_ranks();

  // A program that was suspended may find its run taken over: nothing of it is changed any more then. looks_anew: only
  // while there are no workers.
  bool look_for_taker(bool looks_anew);

  void note_start(int rank, std::string host);

  void note_report(int rank, Metrics metrics);

  void look_for_part_checkpoint();
  void refuse_part_checkpoint(int rank);

  void tell_reports(bool is_end);

  void note_hook_failure(Failure failure);

  [[nodiscard]] ProgressState state() const;

  [[nodiscard]] std::string error_text(const Failure& failure) const;

  [[nodiscard]] Result finish();

  const RunConfig& config_;
  ElasticSize size_;
  RunInfo info_;
  RunLease lease_;
  Leadership leadership_;
  RunDirectory directory_;
  RunHistory history_;
  RollCall ranks_;
  ProgressLine progress_;
  RunLog log_;
  Controller controller_;
  FailureBudget budget_;
  RankWatch watch_;
  PreemptionNotice notice_;
  RunCallbacks callbacks_;
  ResumePoint point_;  // where this attempt has begun, or the next one will
  AttentiveWait wait_;
  std::uint64_t failed_step_ = 0;  // at which the last attempt failed
  Farewell farewell_{};
  bool has_left_in_order_ = false;
  std::vector<Attempt> attempts_;
  std::string last_word_;  // why a run with failures left is not started again
  std::unique_ptr<WorkerGroup> group_;
  std::optional<RunCheckpoints> checkpoints_;  // while there is a group
  LeftCheckpoints left_{};
  std::optional<Failure> failure_before_start_;  // or after the end: outside of the group's life
  Timings timings_{};
  bool is_resizing_ = false;  // the ranks were asked to leave, for another number of them
};
/// Returns the name of the first field that is not as it is by default; nothing if all are.
[[nodiscard]] std::string_view first_set_field(const LaunchConfig& launch);
/// Is a part of a GPU that MIG has divided.
struct GpuInstance {
  std::string uuid{};         ///< "MIG-", and digits
  std::string former_name{};  ///< as drivers before 470 called it; CUDA still knows it
};
/// Is a GPU that this process may open.
struct Gpu {
  std::string uuid{};       ///< "GPU-", and digits
  bool is_divided = false;  ///< MIG is on: CUDA uses its instances alone, of which there may be none
  std::vector<GpuInstance> instances{};
};
/// Is what NVML has told, or why it has not.
struct NvmlAnswer {
  std::vector<Gpu> gpus{};  ///< in the order of their PCI addresses
  std::string problem{};
  bool has_mismatch = false;  ///< the loaded driver and this library are of two releases
};
inline constexpr int nvml_success = 0;
inline constexpr int nvml_version_mismatch = 18;
class NvmlError final : public Error {
 public:
  NvmlError(const char* text, int code);
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};
/// Is NVML, from nvmlInit to nvmlShutdown: it is no part of CUDA, and a process may be forked after it.
class Nvml {
 public:
  /// Throws: ConfigError if it cannot be loaded, NvmlError if it cannot begin.
  Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml();

  /// Returns those that this process may open: others are there for CUDA no more than for it.
  [[nodiscard]] std::vector<Gpu> gpus() const;

 private:
  using Handle = void*;

  [[nodiscard]] std::vector<GpuInstance> instances_of(Handle gpu, const std::string& gpu_uuid) const;

  [[nodiscard]] std::optional<std::string> uuid_of(Handle device) const;

  void require(int code) const;

  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*get_count_)(unsigned*) = nullptr;
  int (*get_handle_)(unsigned, Handle*) = nullptr;
  int (*get_uuid_)(Handle, char*, unsigned) = nullptr;
  int (*get_mig_mode_)(Handle, unsigned*, unsigned*) = nullptr;
  int (*get_max_instances_)(Handle, unsigned*) = nullptr;
  int (*get_instance_)(Handle, unsigned, Handle*) = nullptr;
  int (*get_gpu_instance_id_)(Handle, unsigned*) = nullptr;
  int (*get_compute_instance_id_)(Handle, unsigned*) = nullptr;
  bool has_instances_ = false;
};
[[nodiscard]] NvmlAnswer ask_nvml();
struct VisibleDevices {
  std::vector<VisibleDevice> devices{};
  std::string remark{};  ///< what of the list CUDA does not follow; empty if nothing
};
[[nodiscard]] std::optional<std::string> visible_devices_variable();
/// Says which GPUs this process is shown, for messages.
[[nodiscard]] std::string visible_devices_text();
/// Reads a list as CUDA does: all entries are of the kind of the first one; the first that names nothing ends the list;
/// one that names a device twice hides all. A UUID may be cut off where it is still the only one that begins so.
///
/// An index counts in CUDA's order, which is that of the PCI addresses, as here, only if CUDA_DEVICE_ORDER says so: how
/// many devices there are does not depend on it, as long as MIG divides all GPUs or none.
class VisibleDevicesList {
 public:
  VisibleDevicesList(const std::vector<Gpu>& gpus, std::string_view text);

  /// Of a GPU the number of its instance, or none.
  using Place = std::pair<std::size_t, std::optional<std::size_t>>;
  [[nodiscard]] const std::vector<Place>& places() const noexcept { return places_; }
  [[nodiscard]] const std::string& remark() const noexcept { return remark_; }

 private:
  [[nodiscard]] static std::string_view trimmed(std::string_view text);

  // Returns false where the list ends.
  [[nodiscard]] bool take(std::string_view entry);

  // Digits count up to whatever else there is, as with strtol.
  [[nodiscard]] std::optional<Place> place_of_index(std::string_view entry) const;

  [[nodiscard]] std::optional<Place> place_of_uuid(std::string_view entry) const;

  const std::vector<Gpu>* gpus_;
  bool is_by_uuid_ = false;
  std::string_view prefix_{};
  std::vector<Place> places_;
  std::string remark_;
};
/// Returns what of the GPUs a process is shown by that value of the variable. Where an instance of a GPU is among them,
/// CUDA leaves out the GPUs that are not divided.
[[nodiscard]] VisibleDevices visible_devices(const std::vector<Gpu>& gpus,
                                                    const std::optional<std::string>& variable);
/// Returns "1 GPU" or "2 GPUs".
[[nodiscard]] std::string gpus_text(int count);
/// Says what to do about a process that is shown too few.
[[nodiscard]] std::string device_remedy(const NvmlAnswer& nvml, const DriverCount& driver);
[[nodiscard]] FoundDevices devices_of(const NvmlAnswer& nvml);
/// Says that there are too few. subject: who asks for how many. Throws: ConfigError.
[[noreturn]] void throw_too_few_devices(std::string_view subject, const FoundDevices& found);

}
}

#if ((defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA) || (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH))

namespace railyard::inline v0_1 {
namespace detail {
// Counts the streams that a worker reads with others of the host, so that each has a name.
struct SharedStreams {
  static constexpr std::string_view extension_name = "train.shared_streams";
  std::size_t count = 0;
};
// Returns an end of that name; nullptr where there is no memory, or no room in the store: each reads by itself.
// bound_bytes: of each reader.
[[nodiscard]] std::shared_ptr<HostFeed> make_feed(Worker& worker, std::string name, std::size_t bound_bytes);

}
}

#endif

#if ((defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO) || (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH))

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
/// Divides count elements among the ranks into slices of whole cache lines.
class Slices {
 public:
  Slices(std::size_t count, int size) noexcept;
  [[nodiscard]] std::size_t begin(int rank) const noexcept;
  [[nodiscard]] std::size_t count(int rank) const noexcept;

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
/// Does the work of which an all-reduce between hosts is made; see all_reduce_between_hosts(). All but send_off()
/// return when it is done.
template <class P>
concept HostParts = requires(P& parts, const Buffer& whole, const Buffer& own, std::size_t size_bytes) {
  { parts.scratch(size_bytes) } -> std::convertible_to<std::byte*>;
  parts.add_within(whole, own);    // own: the sums of this rank's slice of whole, of the ranks of this host
  parts.share_within(own, whole);  // whole: the slices of all ranks of this host
  parts.send_off(own).get();       // own: its sums between hosts, once get() has returned
  parts.all_reduce_within(whole);  // without slices
  parts.all_reduce_across(whole);
};
/// The most that a rank carries between hosts at a time: large enough that the steps of a chunk cost little, and small
/// enough that the network waits little for the first one and the memory for the last.
inline constexpr std::size_t host_chunk_bytes = 2 * 1024 * 1024;
[[nodiscard]] Buffer buffer_part(const Buffer& data, std::size_t begin, std::size_t count) noexcept;
// data.count is a multiple of local_size.
template <HostParts P>
void all_reduce_in_host_chunks(P& parts, const Buffer& data, std::size_t local_size) {
  const std::size_t width = size_of(data.dtype);
  const std::size_t share = data.count / local_size;
  const std::size_t longest = host_chunk_bytes / width;
  std::byte* sums = parts.scratch(share * width);
  Buffer whole_before{};
  Buffer own_before{};
  decltype(parts.send_off(own_before)) on_network;
  for (std::size_t done = 0; done < share; done += longest) {
    const std::size_t count = std::min(longest, share - done);
    const Buffer whole = buffer_part(data, done * local_size, count * local_size);
    const Buffer own{sums + done * width, count, data.dtype};
    parts.add_within(whole, own);
    if (on_network.valid()) on_network.get();
    on_network = parts.send_off(own);
    if (done > 0) parts.share_within(own_before, whole_before);
    whole_before = whole;
    own_before = own;
  }
  on_network.get();
  parts.share_within(own_before, whole_before);
}
/// Adds data up of all ranks of hosts that have local_size ranks each. While one chunk is on the network, the memory
/// works on the next.
template <HostParts P>
void all_reduce_between_hosts(P& parts, const Buffer& data, std::size_t local_size) {
  const std::size_t divided = data.size_bytes() <= direct_limit_bytes ? 0 : data.count / local_size * local_size;
  if (divided > 0) all_reduce_in_host_chunks(parts, buffer_part(data, 0, divided), local_size);
  const Buffer rest = buffer_part(data, divided, data.count - divided);
  if (rest.count == 0 && divided > 0) return;
  // Too little to divide: each line carries all of it, in the fewest steps.
  parts.all_reduce_within(rest);
  parts.all_reduce_across(rest);
}

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
// Not by the value of From, which may be a bool of another byte than 0 or 1.
template <class From, class To, bool is_swapped>
void decode_elements(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t at = 0; at < count; ++at) {
    std::array<std::byte, sizeof(From)> bytes;
    std::memcpy(bytes.data(), from + at * sizeof(From), sizeof(From));
    if constexpr (is_swapped) std::reverse(bytes.begin(), bytes.end());
    const To value = static_cast<To>(std::bit_cast<From>(bytes));
    std::memcpy(to + at * sizeof(To), &value, sizeof(To));
  }
}
/// Describes elements of the type From that become those of the type To.
template <class From, class To = From>
[[nodiscard]] constexpr StoredElement stored(std::endian order) noexcept {
  static_assert(!std::is_same_v<From, bool>, "a stored bool is an std::uint8_t that becomes a bool");
  constexpr Dtype dtype = dtype_of<To>;
  if (sizeof(From) > 1 && order != std::endian::native) {
    return {sizeof(From), dtype, &decode_elements<From, To, true>};
  }
  if (std::is_same_v<From, To>) return {sizeof(From), dtype, nullptr};
  return {sizeof(From), dtype, &decode_elements<From, To, false>};
}
/// Returns the number that so many bytes are, the first one the lowest.
template <std::size_t size>
[[nodiscard]] constexpr std::uint64_t little_endian(const std::array<unsigned char, size>& bytes, std::size_t begin = 0,
                                                    std::size_t count = size) noexcept {
  std::uint64_t number = 0;
  for (std::size_t at = count; at-- > 0;) number = number << 8U | bytes[begin + at];
  return number;
}
/// Returns an array whose first dimension counts the samples, with all it must be. Throws: DataError if there is none
/// of this shape, or the file is too short for it.
[[nodiscard]] StoredArray make_array(const std::string& name, StoredElement element,
                                            const std::vector<std::uint64_t>& shape,
                                            std::shared_ptr<const StoredFile> file, std::uint64_t begin);
/// Returns those of the arrays of a file that are to be columns, in this order; all of them if no columns are named.
/// Throws: DataError if one is not there, or there is none at all.
template <class Array>
[[nodiscard]] std::vector<const Array*> choose_columns(const StoredFile& file, const std::vector<Array>& arrays,
                                                       const std::vector<std::string>& columns) {
  std::vector<const Array*> chosen;
  for (const Array& array : arrays) {
    if (columns.empty()) chosen.push_back(&array);
  }
  for (const std::string& column : columns) {
    const auto found =
        std::find_if(arrays.begin(), arrays.end(), [&](const Array& array) { return array.name == column; });
    if (found != arrays.end()) {
      chosen.push_back(&*found);
      continue;
    }
    std::string names;
    for (const Array& array : arrays) names += compose(" \"{}\"", array.name);
    throw DataError{compose("{} has no array \"{}\": there are{}", file.path(), column, names)};
  }
  if (chosen.empty()) throw DataError{compose("{} holds no arrays", file.path())};
  return chosen;
}
/// Reads samples of an array to memory.
class ArrayReader {
 public:
  explicit ArrayReader(const StoredArray& array);

  void read(std::uint64_t first, std::size_t count, std::byte* to);

 private:
  void read_elements(std::uint64_t offset, std::size_t count, std::byte* to);

  // One place of the samples after the other, in the order of the file: the first index runs fastest.
  void read_column_major(std::uint64_t first, std::size_t count, std::byte* to);

  void check(std::uint64_t first, std::size_t count, const std::byte* values) const;

  const StoredArray& array_;
  std::vector<std::byte> stored_;
};

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<ArraySource>);
static_assert(Preprocessor<BatchMapper>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
// A sample is its labels, of a byte each, and its image.
struct CifarLayout {
  static constexpr std::uint64_t image_bytes = 3 * 32 * 32;
  std::vector<std::pair<std::string, std::int64_t>> labels{};  // how many there are of each

  explicit CifarLayout(Cifar kind);

  [[nodiscard]] std::vector<StoredArray> arrays_of(const std::shared_ptr<const StoredFile>& file) const;
};

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<CifarSource>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
/// Whether each sample has one number or one text.
[[nodiscard]] bool has_cells(const Field& field) noexcept;

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(Preprocessor<Concatenator>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
[[nodiscard]] CategoryView view_of(const Category& category);
[[nodiscard]] Category category_of(const CategoryView& view);
/// A category as messages show it.
[[nodiscard]] std::string category_text(const CategoryView& category);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(LearningPreprocessor<OneHotEncoder>);
static_assert(LearningPreprocessor<OrdinalEncoder>);
static_assert(LearningPreprocessor<LabelEncoder>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
template <class Label>
[[nodiscard]] StoredElement idx_integer(bool is_label) noexcept {
  using Plain = std::conditional_t<sizeof(Label) == 2, std::int32_t, Label>;  // there are no columns of i16
  return is_label ? stored<Label, std::int64_t>(std::endian::big) : stored<Label, Plain>(std::endian::big);
}
[[nodiscard]] StoredElement idx_element(const StoredFile& file, unsigned type, bool is_label);
[[nodiscard]] StoredArray read_idx_header(std::shared_ptr<const StoredFile> file, const std::string& column,
                                                 bool is_label);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<IdxSource>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
/// Says for each of some neighbouring places of the output which places of the input count how much.
class ResampleAxis {
 public:
  /// in, full: places before and after; those from first are wanted, count of them.
  ResampleAxis(std::size_t in, std::size_t full, std::size_t first, std::size_t count);

  [[nodiscard]] std::size_t in() const noexcept { return in_; }
  [[nodiscard]] std::size_t size() const noexcept { return begins_.size(); }
  /// Whether every place of the output is one of the input.
  [[nodiscard]] bool is_same() const noexcept { return is_same_; }
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] std::size_t begin(std::size_t place) const noexcept { return begins_[place]; }
  [[nodiscard]] std::size_t count(std::size_t place) const noexcept { return counts_[place]; }
  [[nodiscard]] const std::int32_t* weights(std::size_t place) const noexcept;

  static constexpr int precision_bits = 22;  // a sum of weighted bytes fits into 32 bits
  [[nodiscard]] static std::uint8_t to_byte(std::int32_t sum) noexcept;
  static constexpr std::int32_t half = 1 << (precision_bits - 1);

 private:
  void set(std::size_t place, double center, double reach);

  std::size_t in_;
  bool is_same_;
  std::size_t first_;
  std::size_t most_ = 0;
  std::vector<std::size_t> begins_;
  std::vector<std::size_t> counts_;
  std::vector<std::int32_t> weights_;
};

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
/// Whether what is below can be called.
[[nodiscard]] bool has_resample_lanes() noexcept;
// Adds four bytes, times a weight.
[[nodiscard]] [[gnu::target("sse4.1"), gnu::always_inline]] inline __m128i add_lanes(__m128i sums,
                                                                                     const std::uint8_t* from,
                                                                                     __m128i weight) noexcept {
  std::int32_t four = 0;
  std::memcpy(&four, from, sizeof four);
  return _mm_add_epi32(sums, _mm_mullo_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)), weight));
}
// Does what ResampleAxis::to_byte() does.
[[nodiscard]] [[gnu::target("sse4.1"), gnu::always_inline]] inline std::int32_t bytes_of_lanes(__m128i sums) noexcept {
  const __m128i wide = _mm_srai_epi32(sums, ResampleAxis::precision_bits);
  const __m128i half = _mm_packus_epi32(wide, wide);
  return _mm_cvtsi128_si32(_mm_packus_epi16(half, half));
}
/// As resample_row(), for pixels of three or four bytes. One byte behind the row is read, and has no effect.
template <std::size_t channels>
[[gnu::target("sse4.1")]] void resample_row_by_lanes(const std::uint8_t* in, const ResampleAxis& axis,
                                                     std::uint8_t* out) noexcept {
  static_assert(channels == 3 || channels == 4);
  for (std::size_t place = 0; place < axis.size(); ++place, out += channels) {
    __m128i sums = _mm_set1_epi32(ResampleAxis::half);
    const std::uint8_t* pixel = in + axis.begin(place) * channels;
    const std::int32_t* weights = axis.weights(place);
    for (std::size_t at = 0; at < axis.count(place); ++at, pixel += channels) {
      sums = add_lanes(sums, pixel, _mm_set1_epi32(weights[at]));
    }
    const std::int32_t bytes = bytes_of_lanes(sums);
    std::memcpy(out, &bytes, channels);
  }
}
/// Writes a place's means of rows that follow each other, each of `width` bytes. Returns how many it has written: the
/// last three at most are missing.
[[gnu::target("sse4.1")]] inline std::size_t resample_columns_by_lanes(const std::uint8_t* rows, std::size_t width,
                                                                       const ResampleAxis& axis, std::size_t place,
                                                                       std::uint8_t* out) noexcept {
  const std::int32_t* weights = axis.weights(place);
  const std::size_t count = axis.count(place);
  std::size_t column = 0;
  for (; column + 4 <= width; column += 4) {
    __m128i sums = _mm_set1_epi32(ResampleAxis::half);
    const std::uint8_t* from = rows + column;
    for (std::size_t at = 0; at < count; ++at, from += width) {
      sums = add_lanes(sums, from, _mm_set1_epi32(weights[at]));
    }
    const std::int32_t bytes = bytes_of_lanes(sums);
    std::memcpy(out + column, &bytes, sizeof bytes);
  }
  return column;
}

}
}

#endif

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
// One row. in: where the row begins.
template <std::size_t channels>
void resample_row(const std::uint8_t* in, const ResampleAxis& axis, std::uint8_t* out) {
  for (std::size_t place = 0; place < axis.size(); ++place) {
    std::array<std::int32_t, channels> sums;
    sums.fill(ResampleAxis::half);
    const std::uint8_t* pixel = in + axis.begin(place) * channels;
    const std::int32_t* weights = axis.weights(place);
    for (std::size_t at = 0; at < axis.count(place); ++at, pixel += channels) {
      for (std::size_t channel = 0; channel < channels; ++channel) sums[channel] += pixel[channel] * weights[at];
    }
    for (std::size_t channel = 0; channel < channels; ++channel) *out++ = ResampleAxis::to_byte(sums[channel]);
  }
}
using ResampleRow = void (*)(const std::uint8_t*, const ResampleAxis&, std::uint8_t*);
/// has_more: bytes of the picture follow after the row.
[[nodiscard]] ResampleRow resample_row_of(std::size_t channels, [[maybe_unused]] bool has_more) noexcept;
// Writes one row of the output. rows: the first row of those that it is a mean of.
void resample_columns(const std::uint8_t* rows, std::size_t width, const ResampleAxis& axis, std::size_t place,
                             std::uint8_t* out) noexcept;
/// Returns the wanted part of pixels that are resampled, first along each row and then along the columns.
[[nodiscard]] std::vector<std::uint8_t> resample(const std::vector<std::uint8_t>& pixels, std::size_t channels,
                                                        const ResampleAxis& rows, const ResampleAxis& columns);
/// Colours that cannot be seen must not show through where pixels are mixed.
void multiply_by_alpha(std::vector<std::uint8_t>& pixels, std::size_t channels);
void divide_by_alpha(std::vector<std::uint8_t>& pixels, std::size_t channels);
void check_image_size(std::uint64_t width, std::uint64_t height, std::uint64_t max_pixels);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(LearningPreprocessor<SimpleImputer>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
/// Says what is wrong with a line of JSON.
class JsonFault : public DataError {
 public:
  using DataError::DataError;
};
/// As messages show it.
[[nodiscard]] constexpr std::string_view shown_kind(JsonKind kind) noexcept {
  constexpr std::array<std::string_view, 6> names{"an object", "an array", "a text", "a number", "a truth", "null"};
  return names[static_cast<std::size_t>(kind)];
}
/// Calls read_value(name) for each value of the object that is next; nested ones by "outer/inner", where that is asked
/// for.
template <class ReadValue>
void read_flat_object(JsonScanner& scanner, bool flatten, const std::string& outer, std::size_t depth,
                      ReadValue& read_value) {
  scanner.check_depth(depth);
  scanner.read_object([&](const std::string& key) {
    const std::string name = outer.empty() ? key : outer + "/" + key;
    if (flatten && scanner.kind() == JsonKind::object)
      read_flat_object(scanner, flatten, name, depth + 1, read_value);
    else
      read_value(name);
  });
}
// Finds the type of a column from its values.
class JsonTypeGuess {
 public:
  void add(JsonScanner& scanner);
  /// lines: how many were looked at; a column that is not in all of them has missing values.
  [[nodiscard]] Field field(std::string name, Dtype floats, std::size_t lines) const;

 private:
  void add_number(JsonScanner& scanner);

  std::size_t seen_ = 0;
  bool has_missing_ = false;
  bool has_number_ = false;
  bool is_integer_ = true;
  bool is_boolean_ = false;
  bool is_text_ = false;
  bool is_array_ = false;
};
/// Says why a line is no object; nothing if it is one.
[[nodiscard]] std::string fault_of_json_object(std::string_view line);
/// Looks at the first lines; those that are damaged are left to the reader.
[[nodiscard]] std::vector<Field> guess_json_fields(const JsonLinesSourceOptions& options,
                                                          const LineCutter& cutter);
/// Says why nothing could be learned from the lines.
[[nodiscard]] std::string describe_no_json_fields(const std::string& file, const TextHead& head,
                                                         const LineCutter& cutter);
[[nodiscard]] std::shared_ptr<const JsonLinesPlan> make_json_lines_plan(const JsonLinesSourceOptions& options,
                                                                               const std::string& file,
                                                                               TextHead& head);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<JsonLinesSource>);
static_assert(DatasetSource<JsonLinesStream> && !IndexedSource<JsonLinesStream>);
static_assert(Preprocessor<Normalizer>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
/// Reads the dictionary of a header, which is written as Python writes it.
class NpyHeaderParser {
 public:
  /// file, offset: where the text is, for messages.
  NpyHeaderParser(std::string_view text, const StoredFile& file, std::uint64_t offset);

  struct Header {
    std::string descr{};
    bool is_column_major = false;
    std::vector<std::uint64_t> shape{};
  };

  [[nodiscard]] Header read();

 private:
  [[noreturn]] void fail(std::string_view what) const;

  char peek() noexcept;
  bool take(char wanted) noexcept;
  void expect(char wanted);
  [[nodiscard]] std::string_view read_quoted();
  // A list describes elements that are structures; the message about it names it.
  [[nodiscard]] std::string read_descr();
  [[nodiscard]] bool read_boolean();
  [[nodiscard]] std::vector<std::uint64_t> read_shape();

  std::string_view text_;
  const StoredFile& file_;
  std::uint64_t offset_;
  std::size_t at_ = 0;
};
/// Returns how elements are stored that NumPy describes so; nothing if there are no columns of such.
[[nodiscard]] std::optional<StoredElement> npy_element(std::string_view descr);
/// Reads what is at the begin of a file, or of a member of an archive that ends at the byte named. Throws: DataError.
[[nodiscard]] StoredArray read_npy(std::string column, const std::shared_ptr<const StoredFile>& file,
                                          std::uint64_t begin, std::uint64_t end);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<NpySource>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
/// Is what the header of a file says of a tensor. Places count from the end of the header.
struct TensorHeader {
  std::string name{};
  std::string type{};
  std::vector<std::uint64_t> shape{};
  std::vector<std::uint64_t> offsets{};
};
[[nodiscard]] std::optional<StoredElement> tensor_element(std::string_view type);
/// Reads the JSON of a header.
class TensorHeaderParser {
 public:
  explicit TensorHeaderParser(std::string_view json);

  [[nodiscard]] std::vector<TensorHeader> read();

 private:
  // Texts by name.
  void skip_metadata();
  void read_tensor(TensorHeader& tensor);
  void read_numbers(std::vector<std::uint64_t>& numbers);

  JsonScanner scanner_;
};
/// Each byte of the data belongs to one tensor. Throws: DataError.
void check_tensor_offsets(const StoredFile& file, std::uint64_t data, std::vector<TensorHeader> tensors);
/// Returns the arrays of the columns, or of all tensors if no columns are named. Throws: DataError.
[[nodiscard]] std::vector<StoredArray> read_tensor_arrays(const std::shared_ptr<const StoredFile>& file,
                                                                 const std::vector<std::string>& columns);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<SafetensorsSource>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
/// Returns what to divide by where values are so far apart: 1 where they are not.
[[nodiscard]] double divisor_of(double spread) noexcept;
/// Returns how far a value is from a center, in units of a number; also where the distance itself is too large for one.
[[nodiscard]] double distance_in(double unit, double value, double center) noexcept;
/// Says that features cannot be scaled which are farther apart than the largest number.
[[noreturn]] void refuse_apart(std::string_view who);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(LearningPreprocessor<StandardScaler>);
static_assert(LearningPreprocessor<MinMaxScaler>);
static_assert(LearningPreprocessor<MaxAbsScaler>);
static_assert(LearningPreprocessor<RobustScaler>);

}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
namespace detail {
inline constexpr std::size_t most_block_bytes = std::size_t{16} << 20;  // after which a reader gives what it has
/// Adds a sample with all its contents to a block.
void add_tar_sample(BlockBuilder& builder, std::uint64_t id, const std::string& key,
                           std::span<const std::string> contents);
/// Returns the suffixes of the first sample of an archive, in their order; none if it holds none.
[[nodiscard]] std::vector<std::string> first_tar_suffixes(const std::string& path,
                                                                 std::unique_ptr<ByteStream> bytes);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<TarSource>);
static_assert(FileStreamSource<TarStream> && !IndexedSource<TarStream>);
static_assert(IndexedSource<TextLinesSource>);
static_assert(DatasetSource<TextLinesStream> && !IndexedSource<TextLinesStream>);
static_assert(Preprocessor<Tokenizer>);

}

#endif

#if (defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB)

namespace railyard::inline v0_1 {
namespace detail {
/// Is what zlib needs to go on in the middle of a file: at the begin of a member, or of a block within one.
/// Source: Adler, zlib's examples/zran.c.
struct GzipPoint {
  CompressedPlace place{};
  bool begins_member = true;
  std::uint8_t num_bits = 0;  ///< of the byte before the place that are still to be read
  std::uint32_t crc = 0;      ///< of what the member has held so far
  std::uint32_t size = 0;     ///< of that, modulo 2^32
  std::string window{};       ///< the last of it, which is referred to

  static constexpr std::size_t most_window = std::size_t{32} << 10;

  /// The window is compressed: whoever saves a position saves it, and whoever shares one sends it.
  [[nodiscard]] std::string to_bytes() const;
  /// Throws: DataError if the bytes are none of these.
  [[nodiscard]] static GzipPoint of_bytes(std::string_view bytes);
};
/// Gives what a file compressed by gzip holds; it may have several members (RFC 1952, 2.2).
class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(const std::string& path);
  ~GzipStream() override;

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override;

  [[nodiscard]] std::optional<StreamPoint> take_point(std::uint64_t offset) override;

  [[nodiscard]] bool go_to(std::uint64_t offset, std::string_view saved) override;

 private:
  // Of the bytes that come out. A window takes some hundred microseconds to save; the begin of a member nothing.
  static constexpr std::uint64_t between_windows = std::uint64_t{4} << 20;
  static constexpr std::uint64_t between_members = std::uint64_t{256} << 10;
  // For zlib.
  static constexpr int with_header = 16 + MAX_WBITS;
  static constexpr int without_header = -MAX_WBITS;
  static constexpr int after_block = 128;
  static constexpr int in_last_block = 64;
  static constexpr std::string_view wrong_crc = "incorrect data check";
  static constexpr std::string_view wrong_length = "incorrect length check";

  // Is what must be checked here of a member that was gone into in its middle: zlib checks whole ones.
  struct Rest {
    uLong crc = 0;
    std::uint32_t size = 0;
    bool is_unpacked = false;
    bool is_crc_checked = false;
    std::string word{};  // of the two that end a member, as far as it is there
  };

  [[noreturn]] void throw_no_memory() const;

  // Has compressed bytes at hand; false behind the last member.
  bool has_more();

  // Takes compressed bytes, at most so many, of those at hand.
  std::string_view take_input(std::size_t size);

  void begin_member();

  void unpack(char* to, std::size_t most);

  void check_rest();

  // what: in zlib's words.
  [[noreturn]] void fail(std::string_view what);

  void end_member();

  void add_window();
  void add_point(GzipPoint point);

  // before: the bytes before the point.
  void enter(const GzipPoint& point, std::string_view before);

  std::string path_;
  CompressedInput input_;
  z_stream state_{};
  StreamPoints points_{};
  std::uint64_t at_ = 0;  // of the bytes that come out
  bool is_between_members_ = true;
  bool has_member_ = false;
  std::optional<Rest> rest_;
  std::size_t untaken_ = 0;  // bytes of a member's end that nobody has looked at
};

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB)

namespace railyard::inline v0_1 {
namespace detail {
/// Is a file in an archive.
struct ZipEntry {
  std::string name{};
  unsigned method = 0;  ///< 0: stored as it is, 8: deflated
  std::uint32_t crc = 0;
  std::uint64_t stored_size = 0;
  std::uint64_t size = 0;
  std::uint64_t begin = 0;  ///< of its content in the archive, once that has been looked for
};
/// Reads the directory at the end of an archive. Throws: DataError if it is damaged.
class ZipDirectory {
 public:
  explicit ZipDirectory(const StoredFile& file);

  [[nodiscard]] std::vector<ZipEntry> read();

  /// Finds where the content of a file begins.
  void locate(ZipEntry& entry) const;

 private:
  struct Fields {
    std::string bytes{};
    [[nodiscard]] std::uint64_t number(std::size_t begin, std::size_t size) const noexcept;
  };

  [[nodiscard]] Fields read_fields(std::uint64_t offset, std::size_t size, std::string_view magic) const;

  // The end of the archive is 22 bytes, behind which there may be a comment. Large archives have another end before it.
  void find();

  [[nodiscard]] ZipEntry read_entry(std::uint64_t at, const Fields& fields) const;
  // Those that did not fit into 32 bits, in this order.
  static void read_large_numbers(const Fields& extra, std::size_t at, std::size_t left, ZipEntry& entry);

  const StoredFile& file_;
  std::uint64_t num_entries_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t begin_ = 0;
};
/// Unpacks a file that was deflated into an archive. Throws: DataError if it is damaged.
class MemberInflater {
 public:
  MemberInflater(const StoredFile& archive, const ZipEntry& entry);
  MemberInflater(const MemberInflater&) = delete;
  MemberInflater& operator=(const MemberInflater&) = delete;
  ~MemberInflater();

  [[nodiscard]] std::vector<char> read();

 private:
  [[noreturn]] void fail(std::string_view what) const;
  [[nodiscard]] static std::uint32_t checksum(const std::vector<char>& bytes);

  const StoredFile& archive_;
  const ZipEntry& entry_;
  z_stream state_{};
};
[[nodiscard]] std::vector<StoredArray> read_npz(const std::shared_ptr<const StoredFile>& file,
                                                       const std::vector<std::string>& columns,
                                                       std::uint64_t max_unpacked_bytes);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_ZLIB) && RAILYARD_WITH_ZLIB)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<NpzSource>);

}

#endif

#if (defined(RAILYARD_WITH_ZSTD) && RAILYARD_WITH_ZSTD)

namespace railyard::inline v0_1 {
namespace detail {
/// Gives what a file compressed by zstd holds; it may have several frames. The window of a frame, which takes memory,
/// is at most the 128 MiB that the library allows by itself.
class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(const std::string& path);

  [[nodiscard]] std::size_t read(char* to, std::size_t size) override;

  [[nodiscard]] std::optional<StreamPoint> take_point(std::uint64_t offset) override;

  [[nodiscard]] bool go_to(std::uint64_t offset, std::string_view saved) override;

 private:
  // Of the bytes that come out, so that small frames cost nothing.
  static constexpr std::uint64_t between_points = std::uint64_t{256} << 10;

  struct Free {
    void operator()(ZSTD_DStream* state) const noexcept;
  };

  // False at an error. Then the library does not say what it has unpacked before that, and the same is done again, with
  // care: what can be read of a file must not depend on how much was asked for at once.
  bool step(ZSTD_outBuffer& out);
  // Puts bytes in one by one, so that not more than one block can be unpacked at a time.
  void step_carefully(ZSTD_outBuffer& out);
  void note(const ZSTD_outBuffer& out, std::size_t had, std::size_t left);
  void end_frame() noexcept;

  // Unpacks again what has been given of the frame. sound: a place of the file up to which there was no error.
  void begin_frame_again(std::uint64_t sound);
  // Of the compressed byte that comes next.
  [[nodiscard]] std::uint64_t place() const noexcept;

  bool load();

  // Where a frame begins, nothing of what came before is needed, and nothing may be left of it: where libzstd has more
  // room than the frame asks for, it unpacks more of one that is damaged.
  void begin_frame(std::uint64_t offset);

  CompressedInput input_;
  std::unique_ptr<ZSTD_DStream, Free> state_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  StreamPoints points_{};
  std::uint64_t at_ = 0;  // of the bytes that come out
  bool is_between_frames_ = true;
  bool is_flushing_ = false;    // there may be more to come out without anything put in
  bool is_careful_ = false;     // the frame is damaged where reading comes to
  std::uint64_t frame_ = 0;     // where it begins
  std::uint64_t of_frame_ = 0;  // bytes of it that have been given
};

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_IMAGES) && RAILYARD_WITH_IMAGES)

namespace railyard::inline v0_1 {
namespace detail {
/// Decodes one picture. The library leaves its functions by longjmp, which must pass no object that has to be
/// destroyed: it is called in guarded(), by code that has none.
class JpegDecoder {
 public:
  explicit JpegDecoder(std::span<const std::byte> bytes);
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder();

  /// Throws: DataError.
  [[nodiscard]] Image decode(std::uint64_t max_pixels);

 private:
  struct Errors : jpeg_error_mgr {
    std::jmp_buf jump;
    std::array<char, JMSG_LENGTH_MAX> message{};
  };

  // False if the library has given up.
  template <class Call>
  [[nodiscard]] bool guarded(const Call& call) noexcept {
    if (setjmp(errors_.jump) != 0) return false;
    call();
    return true;
  }
  [[noreturn]] void fail() const;

  [[noreturn]] static void on_error(j_common_ptr state);
  // The library calls it a warning, and makes pixels up, where the data of pixels is damaged or missing.
  static void on_message(j_common_ptr state, int level);
  // A small file can ask for so much work that it takes hours.
  static void on_progress(j_common_ptr state);

  // As every program takes them, the inks are stored the other way round.
  [[nodiscard]] static std::vector<std::uint8_t> to_rgb(const std::vector<std::uint8_t>& cmyk);

  std::span<const std::byte> bytes_;
  jpeg_decompress_struct state_{};
  Errors errors_{};
  jpeg_progress_mgr progress_{};
};
/// Decodes one picture. As with JpegDecoder, what the library may leave by longjmp is in guarded().
class PngDecoder {
 public:
  explicit PngDecoder(std::span<const std::byte> bytes);
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder();

  /// Throws: DataError.
  [[nodiscard]] Image decode(std::uint64_t max_pixels);

 private:
  // False if the library has given up.
  template <class Call>
  [[nodiscard]] bool guarded(const Call& call) noexcept {
    if (setjmp(jump_) != 0) return false;
    call();
    return true;
  }
  [[noreturn]] void fail() const;

  // Makes grey, grey and alpha, RGB or RGBA of whatever it is, with a byte for each.
  void prepare();

  [[noreturn]] static void on_error(png_structp state, png_const_charp message);
  static void on_warning(png_structp /*state*/, png_const_charp /*message*/) {}
  static void on_read(png_structp state, png_bytep to, std::size_t size);

  std::span<const std::byte> bytes_;
  png_structp state_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  std::array<char, 200> message_{};
};
/// Returns what follows the last dot, with it, in small letters.
[[nodiscard]] std::string suffix_of(const std::filesystem::path& path);
[[nodiscard]] bool is_image_suffix(std::string_view suffix);
[[nodiscard]] bool is_other_image_suffix(std::string_view suffix);
/// Tools leave such files and folders behind, which nobody means to be data.
[[nodiscard]] bool is_hidden(const std::filesystem::path& path);
/// Says whether one of two paths without links lies in the other, or is it.
[[nodiscard]] bool is_one_in_other(const std::filesystem::path& a, const std::filesystem::path& b);
/// Returns the names of the folders in a folder, and of links to those elsewhere.
[[nodiscard]] std::set<std::string> list_folders(const std::string& folder);
/// Returns the pictures in the folder of a class, and in those below it; counts those of kinds that are not read.
[[nodiscard]] std::vector<std::string> list_class(const std::string& folder, const std::string& name,
                                                         std::map<std::string, std::size_t>& others);
/// Looks at the folders; of a path that is a picture, the class is the name of the folder that it lies in. Hidden
/// files and folders are left out. Links to files are followed, and a class may be a link to a folder elsewhere; other
/// links to folders are not followed: they could lead in circles, and to the same pictures again.
/// Throws: DataError if one cannot be read, or there is a class without pictures.
[[nodiscard]] ImageFiles list_image_files(const std::vector<std::string>& paths);

}
}

#endif

#if (defined(RAILYARD_WITH_DATA) && RAILYARD_WITH_DATA && defined(RAILYARD_WITH_IMAGES) && RAILYARD_WITH_IMAGES)

namespace railyard::inline v0_1 {
static_assert(IndexedSource<ImageFolder>);

}

#endif

#if (defined(RAILYARD_WITH_LAUNCHED) && RAILYARD_WITH_LAUNCHED)

namespace railyard::inline v0_1 {
namespace detail {
/// How often a leader gives a sign of life to who may take it for lost after so long a silence.
[[nodiscard]] std::chrono::nanoseconds sign_interval(std::chrono::nanoseconds silence_limit) noexcept;
/// Puts the layout before the briefing: a worker learns of both in one piece.
[[nodiscard]] std::string brief(const GroupLayout& layout, std::string_view briefing);
[[nodiscard]] std::vector<std::byte> encode_event(const GroupEvent& event);
/// first_rank: of the process from which the event comes. Throws: DataError if it is none, or not of its workers.
[[nodiscard]] GroupEvent decode_event(std::span<const std::byte> bytes, const GroupLayout& layout);
/// Whether what encode_event() has written is a SignalEvent, which is of the process and not of its workers.
[[nodiscard]] bool is_signal(std::span<const std::byte> bytes);
static_assert(std::is_same_v<std::variant_alternative_t<4, GroupEvent>, SignalEvent>);
static_assert(std::is_same_v<std::variant_alternative_t<5, GroupEvent>, BrokenEvent>);
[[nodiscard]] ConstBytes text_bytes(std::string_view text) noexcept;
/// Compares in a time that tells nothing of where they differ.
[[nodiscard]] bool are_equal(ConstBytes one, ConstBytes other) noexcept;
inline constexpr std::size_t max_hello_bytes = std::size_t{64} << 10U;
/// Throws: ConfigError if it is larger than a listener takes.
[[nodiscard]] std::vector<std::byte> encode_hello(const Hello& hello);
/// Throws: DataError if it is none.
[[nodiscard]] Hello decode_hello(ConstBytes bytes);
static_assert(sizeof(Opening) == 40);
/// Of a process, as subject, that is set otherwise than another one.
[[nodiscard]] std::string tls_misfit_text(std::string_view subject, bool is_by_tls, std::string_view other);
/// Keeps a process from being forked while one of its threads is inside libssl: locks that are held at that moment
/// would stay held in the child for ever. Many threads may be inside at once.
class TlsGate {
 public:
  static constexpr std::size_t num_doors = 16;

  /// Returns the mutex to hold while inside. Sessions share them in turn.
  [[nodiscard]] static std::mutex& next_door();

 private:
  TlsGate();
  static TlsGate& instance();

  std::array<std::mutex, num_doors> doors_{};
  std::atomic<std::size_t> next_{0};
};
/// Says that a connection cannot be had, or is lost.
class ConnectionError : public Error {
 public:
  enum class Cause : std::uint8_t {
    failed,   ///< it was never made, the network or the other host is gone, or what came was damaged
    closed,   ///< the other end has closed it
    refused,  ///< the other end does not want it, and has said why
  };
  ConnectionError(Cause cause, const std::string& message);
  [[nodiscard]] Cause cause() const noexcept;

 private:
  Cause cause_;
};
/// Waits until the descriptor can be read from or written to (POLLIN, POLLOUT), or would say what is wrong with it.
/// Returns false at the deadline.
[[nodiscard]] bool wait_for(int fd, short events, const Deadline& deadline) noexcept;
/// "10.0.0.7:5000", "[fe80::1%eth0]:5000".
[[nodiscard]] std::string address_text(const std::string& host, int port);
using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
/// Returns the addresses of a host; empty, with status set as getaddrinfo has it, if there are none. An empty host
/// means any address of this one, for a socket that listens.
[[nodiscard]] AddressList resolve(const std::string& host, int port, int& status);
template <class T>
bool set_option(int fd, int level, int option, T value) noexcept {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}
/// Sends small messages at once, and notices within the given time that the other host is lost: it sends no goodbye.
/// Does nothing to a socket that is not TCP's.
void tune_connection(int fd, std::chrono::milliseconds lost_after) noexcept;
/// Whether an error of a socket, as errno has it, says that the other end has closed the connection.
[[nodiscard]] bool is_closed_by_peer(int error) noexcept;
// Tries the host's addresses one after the other. ready: returns 0 once the bound socket is as it is to be.
template <class Ready>
[[nodiscard]] Socket bind_at(const std::string& host, int port, const Ready& ready) {
  int status = 0;
  const AddressList addresses = resolve(host, port, status);
  if (addresses == nullptr) {
    throw ConfigError{compose(R"(listening at "{}" port {}: this is no name or address that is known here ({}))", host,
                              port, ::gai_strerror(status))};
  }
  int error = 0;
  // Of "any", the socket of IPv6 takes both kinds, unless the system has none.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family != family) continue;
      const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) {
        error = errno;
        continue;
      }
      Socket socket{adopt(fd, "a socket to listen on")};
      set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (family == AF_INET6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, host.empty() ? 0 : 1);
      if (::bind(socket.fd(), entry->ai_addr, entry->ai_addrlen) == 0 && ready(socket.fd()) == 0) return socket;
      error = errno;
    }
  }
  throw_system(compose(R"(listening at "{}" port {}: take another port, or 0 to let the kernel choose)", host, port),
               error);
}
/// Listens at an address of this host; an empty host means any. Port 0 lets the kernel choose.
/// Throws: ConfigError if the host is not known here; Error if it cannot be listened on.
[[nodiscard]] Socket listen_at(const std::string& host, int port);
/// Takes a port of this host and does not listen on it: who calls listen_at() for it later finds it free, and the
/// kernel gives it to nobody else. Throws: Error if there is none.
[[nodiscard]] Socket reserve_port();
// Returns 0 or what went wrong with a connect() that did not wait, as errno has it.
[[nodiscard]] int connect_outcome(const Socket& socket) noexcept;
// Returns 0 or what went wrong, as errno has it.
[[nodiscard]] int finish_connect(const Socket& socket, const sockaddr* address, socklen_t size,
                                        const Deadline& deadline);
/// Tries each address of the host once. Returns a socket that is not open if none answers, and says why in `cause`.
[[nodiscard]] Socket try_connect(const std::string& host, int port, const Deadline& deadline,
                                        std::string& cause);
/// Writes which processes have a part in a start, as a StartOrder does.
[[nodiscard]] std::string parts_text(const std::vector<bool>& has_part);
/// Returns how many workers each process makes where there are to be so many, at least 1 and at most the sum of what
/// they can make: those that make the most make fewer, the last of them first.
[[nodiscard]] std::vector<int> deal(std::vector<int> workers, int num_workers);
/// Throws: ConfigError if each worker is to have a GPU, and a process is shown too few. Who is shown no more than one
/// takes that; all others take those of their workers' numbers on the host.
void check_devices(const LaunchedMembers& members);
/// Writes what Order::refuse carries. There hear() throws it: a ConfigError, if a setting is to blame, or an Error.
[[nodiscard]] std::vector<std::byte> refusal_of(bool is_setting, std::string_view why);
inline constexpr std::size_t most_nodes = 65'536;  // Slurm's own limit of one list
/// Reads a whole text as a number from 0; nothing if it is none, has a sign, or is too large.
[[nodiscard]] std::optional<int> parse_count(std::string_view text) noexcept;
/// Divides a list at the commas that are not in brackets.
[[nodiscard]] std::vector<std::string_view> split_items(std::string_view list);
/// Expands lists of nodes as `scontrol show hostnames` does: "a[01-03,7],b-[1-2]-ib[5-6]".
class NodeList {
 public:
  /// Throws: ConfigError for what is no list of nodes, or has more nodes than a list of Slurm can have.
  [[nodiscard]] static std::vector<std::string> expand(std::string_view text);

 private:
  explicit NodeList(std::string_view text) noexcept;

  // Each pair of brackets multiplies: every name so far goes on with each of its items, in order.
  void add_item(std::string_view item);

  void append(std::vector<std::string>& names, const std::vector<std::string>& endings) const;

  // What stands in one pair of brackets. A number is padded to the width of the first of its range.
  [[nodiscard]] std::vector<std::string> numbers(std::string_view ranges) const;

  [[noreturn]] void refuse(std::string_view why) const;

  std::string_view text_;
  std::vector<std::string> names_;
};
/// Expands Slurm's counts of tasks per node: "2(x3),1" is 2, 2, 2, 1. Throws: ConfigError.
[[nodiscard]] std::vector<int> expand_task_counts(std::string_view text);
/// Makes a secret that nobody can guess, as 64 hexadecimal digits.
[[nodiscard]] std::string random_secret();
/// Writes a posting as lines of a name and a value.
[[nodiscard]] std::string write_posting(const Posting& posting);
/// Reads a posting; nothing if it is none.
[[nodiscard]] std::optional<Posting> read_posting(std::string_view text);
/// Returns the name of a job's file: another for every job and for every restart of one.
[[nodiscard]] std::string file_name_of(std::string_view job, int restart);
/// Makes sure of a folder on this host that only this user may enter: below XDG_RUNTIME_DIR if that is this user's own,
/// else /tmp/railyard-<user>. Throws: ConfigError if somebody else has made it, or may enter it.
[[nodiscard]] std::filesystem::path make_local_folder(const std::optional<std::string>& runtime_folder);
/// Writes and reads one file of mode 600 that belongs to the user who reads it. The leader keeps a lock on it while it
/// lives, by which processes of its own host know a dead leader's file; what a dead leader of another host has left is
/// known by nobody answering there, and is replaced by the next one.
class FileBulletin final : public Bulletin {
 public:
  /// time_to_go: for how long a leader of this host that may have died is waited for, see post().
  FileBulletin(std::filesystem::path folder, const std::string& name, WaitTeller teller,
               std::chrono::nanoseconds time_to_go = std::chrono::seconds{2});
  ~FileBulletin() override;

  /// Waits for the end of a leader of the same job that has died on this host: the lock is free when the last of the
  /// workers has gone that have inherited it. Throws: ConfigError if one is alive after that time, or the folder cannot
  /// be trusted.
  void post(const Posting& posting) override;

  [[nodiscard]] Posting read(const Deadline& deadline, const Posting* refused) override;

  [[nodiscard]] bool carries_secret() const override { return true; }
  [[nodiscard]] std::string where() const override;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  static constexpr std::size_t most_bytes = 4096;
  static constexpr std::chrono::milliseconds first_pause{2};
  static constexpr std::chrono::milliseconds last_pause{100};

  enum class Leader : std::uint8_t { alive, dead, unknown };
  struct Posted {
    Leader leader = Leader::unknown;
    std::optional<Posting> posting{};  ///< nothing if the file holds none
  };

  // Nothing if there is no file.
  [[nodiscard]] std::optional<Posted> look_up() const;

  // Locks are believed on the leader's own host only: some file systems keep those of each host to themselves.
  [[nodiscard]] Leader leader_of(const Descriptor& file, std::string_view text) const;

  void check_file(const Descriptor& file) const;

  // Others must not be able to replace the file. Opening the folder also makes NFS ask the server what is new in it.
  void check_folder() const;

  void check_for_second_leader();

  [[noreturn]] void throw_second_leader(const Posting& posting) const;

  void write(const Descriptor& file, std::string_view text) const;

  // Only what this process has posted itself: not what a forked one has inherited, or another leader put there since.
  void take_down() noexcept;

  std::filesystem::path folder_;
  std::filesystem::path path_;
  WaitTeller teller_;
  std::chrono::nanoseconds time_to_go_;
  std::string boot_ = boot_id();
  Descriptor posted_{};
  pid_t poster_ = 0;
};
[[nodiscard]] Environment process_environment();
/// Reads the variables of one launcher.
class LaunchVariables {
 public:
  /// The environment must outlive this. launcher: who sets them, as messages call it.
  LaunchVariables(const Environment& environment, std::string launcher);

  [[nodiscard]] bool has(const std::string& name) const;

  /// Returns the value, or an empty text.
  [[nodiscard]] std::string text(const std::string& name);

  /// Throws: ConfigError if it is not set. remedy: what to do then.
  [[nodiscard]] std::string needed(const std::string& name, std::string_view remedy = {});

  /// Throws: ConfigError if it is not set, or no number from 0.
  [[nodiscard]] int number(const std::string& name, std::string_view remedy = {});
  [[nodiscard]] int number_or(const std::string& name, int otherwise);

  [[nodiscard]] int port(const std::string& name);
  [[nodiscard]] int port_or(const std::string& name, int otherwise);

  /// Returns the launch, in which stands who has told it.
  template <class Launch>
  [[nodiscard]] Launch told(Launch launch) const {
    launch.launcher = launcher_;
    launch.why = compose("{}: {}", launcher_, read_);
    return launch;
  }

 private:
  const Environment& environment_;
  std::string launcher_;
  std::string read_;
};
/// Divides "host:port" or "[address]:port". Throws: ConfigError that names what has been written there.
[[nodiscard]] std::pair<std::string, int> split_address(std::string_view address, std::string_view field);
/// Returns the name of a job; empty where nothing tells it from others.
[[nodiscard]] std::string job_name(std::string_view launcher, std::string_view id);
/// torchrun gives every process all of it; its agents restart the processes, and ranks may move. Each agent counts for
/// itself how often it has done so after a failure: the counts of a job's processes may differ.
[[nodiscard]] std::optional<Launch> find_torchrun(const Environment& environment);
void take_leader(LaunchVariables& variables, Launch& launch);
/// Returns the number of the socket by which the launcher speaks PMI; -1 if there is none.
[[nodiscard]] int find_pmi(const Environment& environment);
/// Comes before Slurm: under mpirun inside of an allocation, the processes inherit the variables of the step in which
/// Open MPI's daemon runs.
[[nodiscard]] std::optional<Launch> find_open_mpi(const Environment& environment);
/// Returns what all processes of one mpiexec have in common, and no other job: the address at which Hydra's proxies,
/// the parents of the processes, reach it. The environment holds nothing of the kind. Empty if there is no such parent.
[[nodiscard]] std::string hydra_job(pid_t process);
[[nodiscard]] std::optional<Launch> find_hydra(const Environment& environment);
/// A port for a job that has none: any two steps of one job, and most jobs of one host, get different ones, below those
/// that the kernel gives out.
[[nodiscard]] int port_of_job(int job, int step) noexcept;
/// A process is Slurm's only within a step: the batch script has a rank and a number of tasks as well, but nobody has
/// started the others.
[[nodiscard]] bool is_in_slurm_step(const Environment& environment);
// SLURM_STEP_TASKS_PER_NODE says it of all nodes, in the order of the list of nodes.
[[nodiscard]] int slurm_local_tasks(LaunchVariables& variables);
[[nodiscard]] std::optional<Launch> find_slurm(const Environment& environment);
/// PMIx alone does not put the number of processes into the environment.
[[nodiscard]] std::optional<Launch> find_pmix(const Environment& environment, const LaunchConfig& config);
/// Kubeflow Trainer describes pods to torchrun, which would start a number of workers in each: so does Railyard.
[[nodiscard]] std::optional<Launch> find_kubeflow(const Environment& environment);
/// Removes what is of one pod only from the name of a pod: "digits-master-0" and "digits-worker-3" are of "digits".
[[nodiscard]] std::string job_of_pod(std::string_view pod);
/// The first version of Kubeflow's operator numbers pods; newer ones count the processes that torchrun would start in
/// WORLD_SIZE, older ones count pods.
[[nodiscard]] std::optional<Launch> find_pytorch_job(const Environment& environment);
/// Kubernetes numbers the pods of an Indexed Job, but does not say how many there are: the manifest has to.
[[nodiscard]] std::optional<Launch> find_indexed_job(const Environment& environment,
                                                            const LaunchConfig& config);
[[nodiscard]] std::optional<Launch> find_plain(const Environment& environment);
[[nodiscard]] std::optional<Launch> find_options(const Environment& environment, const LaunchConfig& config);
[[nodiscard]] Launch find_alone(const Environment& environment, const LaunchConfig& config);
/// Where a launcher was found, a RANK and a WORLD_SIZE that somebody else has set must say the same.
void check_ranks_agree(const Environment& environment, const Launch& launch);
/// What is set in the options stands above the environment.
void apply_options(const LaunchConfig& config, Launch& launch);
[[nodiscard]] Launch find_launcher(const LaunchConfig& config, const Environment& environment);
/// Finds out who has started this process. Throws: ConfigError if what it is told is incomplete or contradicts itself.
[[nodiscard]] Launch find_launch(const LaunchConfig& config,
                                        const Environment& environment = process_environment());
// Below this, all possibilities can be tried.
inline constexpr std::size_t least_secret_bytes = 16;
[[nodiscard]] std::string checked_secret(std::string secret, std::string_view from);
/// Reads it from a file that nobody else may read. Throws: ConfigError.
[[nodiscard]] std::string read_secret(const std::string& path, std::string_view field);
/// Returns the secret that this process was given; nothing if none was.
/// Throws: ConfigError if it is too short, or not kept as a secret.
[[nodiscard]] std::optional<std::string> find_secret(const LaunchConfig& config,
                                                            const Environment& environment = process_environment());
/// Says whether all goes by TLS. Throws: ConfigError if RAILYARD_TLS is neither 1 nor 0.
[[nodiscard]] bool wants_tls(const LaunchConfig& config,
                                    const Environment& environment = process_environment());
[[noreturn]] void refuse_without_secret(std::string_view where);
/// Is one end of an exchange by X25519 of OpenSSL's libcrypto.
class KeyAgreement {
 public:
  KeyAgreement();

  /// What the other end needs, and everybody may know.
  [[nodiscard]] const Digest& public_key() const noexcept { return public_key_; }

  /// Returns what only the two ends know. other: the public key of the other end.
  /// Throws: DataError if it is no key that anybody has made.
  [[nodiscard]] Digest agree(const Digest& other) const;

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const noexcept;
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;

  static unsigned char* raw(Digest& bytes) noexcept;
  static const unsigned char* raw(const Digest& bytes) noexcept;
  static void check(bool went_well);

  Key own_;
  Digest public_key_{};
};
/// Hides a text from all who do not know the common key, or shows one that was hidden. The key must be of one text
/// only. It does not tell whether the text was altered: what is hidden here is a secret, which has to be proven.
/// ends: the public keys of both, the same at both ends.
[[nodiscard]] std::string hide_or_show(std::string text, const Digest& common,
                                              const std::array<Digest, 2>& ends);
/// Says that a launcher's own space of keys and values cannot be had, or is lost.
class SpaceError : public Error {
 public:
  using Error::Error;
};
/// Is what a launcher offers for the processes of a job to find each other: each puts texts there, and after a fence,
/// to which all have to come, each may read what all have put. Only the processes of the job and their launcher see it.
/// Each function throws SpaceError if the launcher is lost, talks nonsense, or does not answer by the deadline.
class KeyValueSpace {
 public:
  KeyValueSpace() = default;
  KeyValueSpace(const KeyValueSpace&) = delete;
  KeyValueSpace& operator=(const KeyValueSpace&) = delete;
  virtual ~KeyValueSpace() = default;

  /// Puts a value, which others see after the next fence. Both are of letters, digits and "-", the key of at most 63
  /// and the value of at most 1000 bytes: so much goes through every launcher.
  virtual void put(const std::string& key, const std::string& value, const Deadline& deadline) = 0;
  /// Says that this process has come to the fence, and does not wait for the others.
  virtual void come_to_fence(const Deadline& deadline) = 0;
  /// Returns false if not all have come by the deadline; then it may be called again.
  [[nodiscard]] virtual bool wait_at_fence(const Deadline& deadline) = 0;
  /// Returns what a process has put; nothing if it has not.
  [[nodiscard]] virtual std::optional<std::string> get(int process, const std::string& key,
                                                       const Deadline& deadline) = 0;
  /// Tells the launcher that the space is not needed any more. Done only once, and nothing else after it: a process
  /// that has left may end as any other.
  virtual void leave() noexcept = 0;
};
/// Is what a process keeps of the one exchange that it has by its launcher's space: a launcher takes it for the end of
/// MPI, after which it does not serve the process again. Later runs of the process meet at the same address.
struct LauncherMemory {
  std::optional<Posting> posting{};
  std::optional<Socket> reserved{};  ///< of the leader: bound to its port for as long as the process lives
};
[[nodiscard]] LauncherMemory& launcher_memory();
/// Lets the processes of a job meet in the space of their launcher. A secret that the leader has made goes there too,
/// but hidden: each other process leaves a public key, and is left the secret for its private one (X25519). Who only
/// listens to what the launcher's own processes send to each other between the hosts, mostly in the clear, does not
/// learn it; who can alter it could take part in the run.
class LauncherBulletin final : public Bulletin {
 public:
  /// space: nothing if the memory holds a posting; where: how messages call it. has_secret: this process was given one.
  /// deadline: of the exchange, as far as post() does it.
  LauncherBulletin(const Launch& launch, std::unique_ptr<KeyValueSpace> space, std::string where, bool has_secret,
                   WaitTeller teller, const Deadline& deadline, LauncherMemory& memory = launcher_memory());

  void post(const Posting& posting) override;

  [[nodiscard]] Posting read(const Deadline& deadline, const Posting* refused) override;

  [[nodiscard]] bool carries_secret() const override;
  [[nodiscard]] std::string make_secret() const override;
  [[nodiscard]] int port_to_listen_on() const override;
  [[nodiscard]] std::string where() const override;

 private:
  [[nodiscard]] std::string key(std::string_view what) const;
  [[nodiscard]] std::string key(std::string_view what, int process) const;

  [[nodiscard]] Posting exchange(const Deadline& deadline);

  // Hides the secret for one process; not for one that was given it in another way.
  void hand_secret(int process, const KeyAgreement& own, const std::string& secret);

  [[nodiscard]] Digest read_key(std::string_view digits) const;

  [[nodiscard]] std::string take(int process, const std::string& name, const Deadline& deadline);

  // Waits for all processes. The launcher does not say which of them have come.
  void meet(const Deadline& deadline);

  void keep(const Posting& posting);

  [[noreturn]] void fail(const std::string& what) const;

  static constexpr std::chrono::milliseconds slice_time{200};
  static constexpr std::string_view no_key = "none";

  int process_;
  int num_processes_;
  std::uint32_t generation_;
  std::string prefix_;
  std::unique_ptr<KeyValueSpace> space_;
  std::string where_;
  bool has_secret_;
  WaitTeller teller_;
  Deadline deadline_;
  LauncherMemory* memory_;
};
[[nodiscard]] bool is_mpi_library(std::string_view path) noexcept;
/// Returns the path of the MPI library that this process has loaded, in whatever way; empty if none. One that is linked
/// statically is not seen.
[[nodiscard]] std::string loaded_mpi_library();
/// Is one line, such as "cmd=get_result rc=0 msg=success value=0a1b": names and values, with blanks between them.
class PmiLine {
 public:
  explicit PmiLine(std::string text);

  /// Returns the value of the first field of that name; nothing if there is none.
  [[nodiscard]] std::optional<std::string_view> field(std::string_view name) const noexcept;
  [[nodiscard]] bool is(std::string_view command) const noexcept;
  /// Did what was asked for succeed, as far as the line says?
  [[nodiscard]] bool succeeded() const noexcept;

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// The text as messages show it.
  [[nodiscard]] std::string_view beginning() const noexcept;

 private:
  std::string text_;
};
/// Puts lines together out of what is received in pieces. What comes is not trusted: a line is of printable characters
/// of ASCII, and of a bounded size.
class PmiLineReader {
 public:
  static constexpr std::size_t most_bytes = 4096;  ///< of a line with its end

  /// Where the next bytes go; never empty.
  [[nodiscard]] std::span<std::byte> room() noexcept;
  /// Takes so many bytes of the room, and returns a line if one is complete; next() has those behind it.
  /// Throws: DataError if this is no line.
  [[nodiscard]] std::optional<PmiLine> take(std::size_t count);
  [[nodiscard]] std::optional<PmiLine> next();

 private:
  char buffer_[most_bytes] = {};
  std::size_t filled_ = 0;
};
/// Speaks version 1.1 of PMI's wire protocol over the socket that a process inherits, of which PMI_FD is the number:
/// one line for each request and each answer. Launchers of version 2 take it as well. The socket stays open, as its
/// number stands in the environment.
class PmiSpace final : public KeyValueSpace {
 public:
  /// Throws: SpaceError if nobody who speaks PMI is at the other end.
  PmiSpace(int fd, const Deadline& deadline);
  ~PmiSpace() override;

  void put(const std::string& key, const std::string& value, const Deadline& deadline) override;
  void come_to_fence(const Deadline& deadline) override;
  [[nodiscard]] bool wait_at_fence(const Deadline& deadline) override;
  [[nodiscard]] std::optional<std::string> get(int, const std::string& key, const Deadline& deadline) override;

  void leave() noexcept override;

 private:
  static constexpr std::chrono::seconds leave_time{5};

  [[noreturn]] void fail(const std::string& what);
  void check(const PmiLine& line);

  [[nodiscard]] PmiLine ask(const std::string& request, std::string_view answer, const Deadline& deadline);

  void send(const std::string& request, const Deadline& deadline);

  // Nothing at the deadline.
  [[nodiscard]] std::optional<PmiLine> receive(const Deadline& deadline);

  static constexpr std::string_view closed_text =
      "it has closed the connection; has the launcher ended, or another program of this process used it before?";

  int fd_;
  bool has_begun_ = false;
  std::string name_;
  PmiLineReader reader_{};
};
// What pmix.h declares, as far as it is needed, so that it does not have to be there: the same since version 2, of
// which the library has its name. tests/unit/workers/pmix_space_test.cpp compares the two where the header is.
struct PmixProcess {
  char job[256] = {};
  std::uint32_t rank = 0;
};
struct PmixValue {
  enum Type : std::uint16_t { boolean = 1, string = 3, integer = 6 };

  std::uint16_t type = 0;
  union {
    bool flag;
    int number;
    char* text;
    std::uint64_t room[8] = {};  // more than any version has
  };
};
struct PmixInfo {
  char key[512] = {};
  std::uint32_t flags = 0;
  PmixValue value{};
};
/// Holds the functions of libpmix that are called.
struct PmixFunctions {
  static constexpr int success = 0;
  static constexpr std::uint8_t global = 3;  // who may see a value: all
  using Done = void (*)(int status, void* data);

  int (*init)(PmixProcess*, PmixInfo*, std::size_t) = nullptr;
  int (*finalize)(const PmixInfo*, std::size_t) = nullptr;
  int (*put)(std::uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const PmixProcess*, std::size_t, const PmixInfo*, std::size_t, Done, void*) = nullptr;
  int (*get)(const PmixProcess*, const char*, const PmixInfo*, std::size_t, PmixValue**) = nullptr;
  const char* (*explain)(int) = nullptr;

  /// Finds the library while the program runs, and keeps it for good. Throws: SpaceError if there is none.
  [[nodiscard]] static PmixFunctions load(const char* file = "libpmix.so.2");
};
/// Speaks to the launcher by libpmix, which has threads of its own from the constructor to leave(). Deadlines hold for
/// fences and, of at most a minute, for get(); how long the launcher may be silent otherwise is libpmix's own affair.
class PmixSpace final : public KeyValueSpace {
 public:
  /// process: as the launcher counts it. Throws: SpaceError if libpmix finds no launcher, or one that counts otherwise.
  PmixSpace(int process, const PmixFunctions& functions);
  ~PmixSpace() override;

  void put(const std::string& key, const std::string& value, const Deadline&) override;

  void come_to_fence(const Deadline&) override;
  [[nodiscard]] bool wait_at_fence(const Deadline& deadline) override;

  [[nodiscard]] std::optional<std::string> get(int process, const std::string& key, const Deadline& deadline) override;

  void leave() noexcept override;

 private:
  struct Fence {
    std::mutex mutex{};
    std::condition_variable changed{};
    std::optional<int> outcome{};
  };

  [[nodiscard]] static PmixInfo option(const char* key, PmixValue::Type type);
  void check(const char* function, int status) const;

  PmixFunctions functions_;
  PmixProcess own_{};
  bool has_begun_ = false;
  std::shared_ptr<Fence> fence_;
};
/// Reads an address that everybody knows beforehand; there the leader has to listen.
class FixedBulletin final : public Bulletin {
 public:
  FixedBulletin(std::string host, int port);

  void post(const Posting&) override {}
  [[nodiscard]] Posting read(const Deadline&, const Posting*) override;
  [[nodiscard]] bool carries_secret() const override { return false; }
  [[nodiscard]] std::string host_to_listen_on() const override;
  [[nodiscard]] int port_to_listen_on() const override { return port_; }
  [[nodiscard]] std::string where() const override;

 private:
  std::string host_;
  int port_;
};
/// Uses the store that torchrun's agent serves, in which one attempt's posting takes the place of the one before:
/// whoever reaches its port can read and write there, so the secret of the run never goes there, and a wrong address
/// only leads to somebody who cannot show that he knows it.
class TorchBulletin final : public Bulletin {
 public:
  TorchBulletin(const Launch& launch, WaitTeller teller);

  void post(const Posting& posting) override;

  [[nodiscard]] Posting read(const Deadline& deadline, const Posting* refused) override;

  [[nodiscard]] bool carries_secret() const override { return false; }
  [[nodiscard]] std::string where() const override;

 private:
  static constexpr std::string_view key = "railyard/leader";
  static constexpr std::chrono::seconds post_time{30};
  static constexpr std::chrono::milliseconds slice_time{100};

  [[nodiscard]] TorchStore& store(const Deadline& deadline);

  std::string host_;
  int port_;
  WaitTeller teller_;
  std::optional<TorchStore> store_;
};
[[nodiscard]] bool is_loopback_name(std::string_view host) noexcept;
/// Do several of torchrun's agents have processes in the job? Then what they tell of attempts may differ, and the store
/// that all of them see counts.
[[nodiscard]] bool agrees_on_attempts(const Launch& launch) noexcept;
/// How often the job was started again, as far as all of its processes are told the same.
[[nodiscard]] int told_restart(const Launch& launch) noexcept;
/// Throws: SpaceError if there is nobody there.
[[nodiscard]] std::unique_ptr<KeyValueSpace> enter_space(const Launch& launch, const Deadline& deadline);
/// Is the way to meet that a launcher offers, or why it is not taken; neither if it offers none.
struct LauncherWay {
  std::unique_ptr<Bulletin> bulletin{};
  std::string why_not{};
};
/// Makes a bulletin in the launcher's own space of keys and values, if it offers one, and it can be had.
[[nodiscard]] LauncherWay find_launcher_bulletin(const Launch& launch, bool has_secret, const WaitTeller& teller,
                                                        const Deadline& deadline,
                                                        LauncherMemory& memory = launcher_memory());
/// Chooses the first way that serves: what the options name; for processes of one host a folder that only its user may
/// enter, which carries a secret as well; the store that torchrun serves; the address that somebody has named; the
/// launcher's own space of keys and values, which carries a secret as well; the address that follows from the job.
/// deadline: until then the launcher may take for its answers.
/// Throws: ConfigError if there is none.
[[nodiscard]] std::unique_ptr<Bulletin> choose_bulletin(const Launch& launch, const LaunchConfig& config,
                                                               const WaitTeller& teller, const Deadline& deadline,
                                                               const Environment& environment = process_environment());
/// Returns the same text for processes that run under one kernel and in the same namespaces: containers of one machine
/// are hosts of their own.
[[nodiscard]] std::string host_identity();
/// Is the group of Launched where there are several processes. The leader's own workers are its children; those of the
/// others are known by what their processes say.
class LaunchedGroup final : public WorkerGroup {
 public:
  /// Is called with each generation of workers before they are made: what earlier ones have left is of no use.
  using Renew = std::function<void(std::uint32_t generation)>;

  /// members and lines must outlive the group; of the members, the leader is the first. Those that are lost make no
  /// workers. generation: of the first workers.
  LaunchedGroup(const GroupPlan& plan, const WorkerBody& body, LaunchedMembers& members, AgentLines& lines,
                std::uint32_t generation, Renew renew);
  ~LaunchedGroup() override;

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override;

  void request_stop() override;
  void request_leave() override;
  void request_resize() override;
  void abort(std::string_view reason) override;
  void kill() override;
  [[nodiscard]] bool can_kill() const noexcept override { return true; }

  [[nodiscard]] const WorkerPage& page(int rank) const override;

  [[nodiscard]] std::vector<std::string> stacks(const Deadline& deadline) override;

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override;
  void hold_snapshot(int rank, int slot) noexcept override;
  void release_snapshot(int rank, int slot) noexcept override;
  [[nodiscard]] bool shares_snapshots() const noexcept override { return false; }
  /// All processes are asked at once.
  [[nodiscard]] bool keeps_snapshots(std::span<const std::uint8_t> slots) override;
  [[nodiscard]] bool has_snapshots_of(int rank) const override;
  [[nodiscard]] int process_of(int rank) const override;
  [[nodiscard]] std::string name_of_process(int process) const override;
  [[nodiscard]] std::function<std::vector<std::byte>()> send_request(int process,
                                                                     std::span<const std::byte> request) override;

  /// With fewer workers than before, or without processes that are lost, or with ones that have come back.
  void restart(int num_workers, std::string_view briefing) override;
  [[nodiscard]] bool forks_to_restart() const override;

  [[nodiscard]] std::string lost_hosts() const override;

 private:
  struct Place {
    int process = 0;
    int rank = 0;  // among the workers of that process
  };

  static std::size_t index(int number) noexcept;
  [[nodiscard]] const GroupLayout& layout(int process) const;
  [[nodiscard]] GroupLayout sent_layout(int process) const;
  // Those that a restart would make; none if there is no room.
  [[nodiscard]] std::vector<GroupLayout> next_layouts(int num_workers) const;
  [[nodiscard]] int world_size() const noexcept;
  [[nodiscard]] int num_processes() const noexcept;

  // How many each process can make that is not lost.
  [[nodiscard]] std::vector<int> present_workers() const;

  [[nodiscard]] Place place_of(int rank) const;

  void begin();

  // Why processes are lost, of those that counts() takes.
  template <class Counts>
  [[nodiscard]] std::string losses_of(const Counts& counts) const {
    std::vector<std::string> losses;
    for (int process = 1; process < num_processes(); ++process) {
      if (!counts(process)) continue;
      if (std::string loss = lines_->loss(process); !loss.empty()) losses.push_back(std::move(loss));
    }
    return joined(losses, "; ");
  }

  // What a start has left in which another process has had no part.
  void end_local();

  // Returns when every process has made its workers.
  void order_start(std::string_view briefing);

  void hear_of_start(AgentLines::Item item, std::vector<bool>& is_awaited);

  void order(int process, Order order, SlotOrder of) noexcept;

  void put_stacks(std::vector<std::string>& all, int process, const std::vector<std::string>& of_process) const;

  [[nodiscard]] std::optional<GroupEvent> take_event();

  // Turns what a process has said into events.
  void note(AgentLines::Item item);

  // Counts exits, and lets of each signal pass one only: the engine sends it to every process.
  [[nodiscard]] std::optional<GroupEvent> pass(std::optional<GroupEvent> event, int process);

  void lose(int process, const std::string& why);

  LaunchedMembers* members_;
  std::vector<GroupLayout> layouts_;  // without the generation, so that those of two starts may be the same
  std::uint32_t generation_ = 0;
  AgentLines* lines_;
  Renew renew_;
  std::chrono::nanoseconds silence_limit_;
  std::unique_ptr<ProcessGroup> local_;
  std::vector<std::unique_ptr<WorkerPage>> pages_;  // of all ranks; those of this process's stay unused
  std::deque<GroupEvent> events_;
  std::vector<bool> has_exited_;
  std::vector<int> signals_;     // how many each process has seen
  std::vector<int> num_losses_;  // of each process, when workers were started last
  int num_exited_ = 0;
  int num_local_alive_ = 0;
  std::vector<std::byte> fetched_;  // of another process's snapshot, last
};
/// Sets and gets through one connection, made by the first call and anew in a forked process. Values never change, so
/// that each is fetched once. Costs: set() a round trip, get() one if the value has not been fetched before.
/// Throws: CollectiveError if the leader is gone, does not answer, or has ended this generation of workers.
class NetworkStore final : public Store {
 public:
  NetworkStore(NetworkStorePlace place, Hmac secret);

  void set(std::string_view key, std::string_view value) override;

  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override;

  void expect(const std::vector<std::string>& keys) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Wanted {
    std::optional<std::string> value{};
    std::uint64_t num_asked = 0;
    std::uint64_t num_absent = 0;  // how often the answer was that it is not there; the server then sends it once it is
  };

  static void check_size(std::string_view key, std::string_view value);

  // Whatever goes wrong means that the group is lost, for all later calls as well.
  template <class Function>
  std::invoke_result_t<Function, Lock&> guarded(std::string_view name, std::string_view key, const Function& function) {
    Lock lock{mutex_};
    try {
      connect();
      return function(lock);
    } catch (const Error& error) {
      lost_ = error.what();
      changed_.notify_all();
      std::string operation = compose("store.{}(\"{}\")", name, key);
      const std::string message = compose("{} on rank {}: {}", operation, place_.rank, lost_);
      throw CollectiveError{std::move(operation), place_.rank, {}, message};
    }
  }

  // The connection is the parent's: two processes that send on it would spoil it for both.
  void forget_if_forked();

  void connect();

  void throw_if_lost() const;

  SetOutcome send_value(std::string_view key, std::string_view value, Lock& lock);

  std::optional<std::string> look(std::string_view key, Lock& lock);

  std::optional<std::string> await(std::string_view key, const Deadline& deadline, Lock& lock);

  // Only queues it.
  void ask(std::string_view key, Wanted& wanted);

  [[nodiscard]] Deadline patience() const;

  void wait_for_answer(Lock& lock, const Deadline& deadline);

  // Waits for a while. Returns false once the deadline has passed. One of the waiting threads looks at the socket, the
  // others wait for what it finds.
  [[nodiscard]] bool wait_for_frames(Lock& lock, const Deadline& deadline);

  void take(const Frame& frame);

  const NetworkStorePlace place_;
  const Hmac secret_;
  std::mutex mutex_{};  // guards all below
  std::condition_variable changed_{};
  std::optional<SecureConnection> connection_;
  pid_t owner_ = ::getpid();
  bool is_watched_ = false;
  std::string lost_;  // why no call can succeed any more, empty while one may
  std::map<std::string, Wanted> wanted_;
  std::map<std::uint32_t, std::optional<SetOutcome>> outcomes_;
  std::uint32_t next_number_ = 0;
  CommonAwakeTime times_{};
};
/// Is what a rank sends first to the one it connects to.
struct PairOpening {
  static constexpr std::array<char, 8> plain{'R', 'A', 'I', 'L', 'Y', 'R', 'P', '1'};
  static constexpr std::array<char, 8> by_tls{'R', 'A', 'I', 'L', 'Y', 'R', 'Q', '1'};  ///< from the proofs on
  std::array<char, 8> magic = plain;
  std::array<std::byte, 32> nonce{};
  std::int32_t from = 0;  ///< ranks
  std::int32_t to = 0;

  [[nodiscard]] ConstBytes bytes() const noexcept;
  [[nodiscard]] bool is_by_tls() const noexcept { return magic == by_tls; }
};
static_assert(sizeof(PairOpening) == 48);
/// Makes the proofs of a connection. They cover both ends' nonces and where the one that listens does, so that none can
/// be used a second time, or elsewhere; the labels keep what one end sends from being sent back as the other's.
class PairProofs {
 public:
  PairProofs(const Hmac& secret, std::string place);

  [[nodiscard]] Digest of(std::string_view label, const PairOpening& opening, ConstBytes nonce) const;

  static constexpr std::string_view listener = "railyard: the proof of the rank that listens";
  static constexpr std::string_view caller = "railyard: the proof of the rank that connects";
  static constexpr std::string_view welcome = "railyard: the welcome of the rank that listens";
  static constexpr std::string_view misfit = "railyard: the rank that listens is set otherwise";
  static constexpr std::string_view tls = "railyard: the TLS of two ranks";  ///< a key

 private:
  Hmac secret_;
  std::string place_;
};
/// Is one end of a handshake: says its part and hears the other's, never more than it expects, and never waits. Where
/// it goes by TLS, that begins when both have proven themselves: nobody else gets as far.
class PairHandshake {
 public:
  enum class State : std::uint8_t { waiting, proven, failed };

  PairHandshake(Socket socket, const PairProofs& proofs);

  [[nodiscard]] const Socket& socket() const noexcept { return socket_; }
  [[nodiscard]] Socket take_socket() noexcept;
  /// What to wait for before the next advance(), as poll() has it.
  [[nodiscard]] short events() const noexcept;
  /// Why it has failed.
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }
  [[nodiscard]] const PairOpening& opening() const noexcept { return opening_; }

 protected:
  ~PairHandshake() = default;

  void say(ConstBytes bytes);
  void expect(std::size_t num_bytes);
  [[nodiscard]] ConstBytes heard() const noexcept;
  [[nodiscard]] State fail(std::string why);

  // What is said and heard from now on goes by TLS.
  void begin_tls(TlsRole role);

  // Returns proven if all is said and what was expected is heard.
  [[nodiscard]] State talk();

  [[nodiscard]] Digest proof(std::string_view label) const;
  [[nodiscard]] bool is_proof(ConstBytes bytes, std::string_view label) const;

  PairOpening opening_{};
  std::array<std::byte, 32> nonce_{};  // of the end that listens

 private:
  static bool would_block() noexcept;
  [[nodiscard]] std::string hung_up_text() const;

  Socket socket_;
  const PairProofs* proofs_;
  std::vector<std::byte> to_say_;
  std::size_t said_ = 0;
  std::vector<std::byte> heard_;
  std::size_t num_heard_ = 0;
  bool is_shaking_ = false;
  std::string trouble_;
};
/// Is the end that listens. It proves itself first, as it has less to lose: what it signs has the caller's nonce and
/// its own in it.
class PairListening final : public PairHandshake {
 public:
  /// rank: this one's. The proofs outlive it. has_tls: whether this rank is set to go by TLS.
  PairListening(Socket socket, const PairProofs& proofs, int rank, bool has_tls);

  [[nodiscard]] State advance();

 private:
  enum class Step : std::uint8_t { magic, opening, proof, welcome };

  [[nodiscard]] bool is_misfit() const noexcept;

  int rank_;
  bool has_tls_;
  Step step_ = Step::magic;
};
/// Is the end that connects. It is proven only when the other end has taken it in: until then that may have had no room
/// for it, and it comes again.
class PairCalling final : public PairHandshake {
 public:
  PairCalling(Socket socket, const PairProofs& proofs, int from, int to, bool has_tls);

  /// May the other end have taken it in already, and look at no other call any more?
  [[nodiscard]] bool may_be_taken() const noexcept { return step_ == Step::welcome; }

  [[nodiscard]] State advance();

 private:
  enum class Step : std::uint8_t { answer, proof, welcome };

  Step step_ = Step::answer;
};
/// Is a line on a socket of TCP, with TLS or without.
class SocketRankLine final : public RankLine {
 public:
  SocketRankLine(Socket socket, std::string peer);

  [[nodiscard]] std::size_t send(const std::byte* bytes, std::size_t size) override;
  [[nodiscard]] std::size_t receive(std::byte* bytes, std::size_t size) override;
  [[nodiscard]] int fd() const noexcept override;
  void hang_up() noexcept override;
  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

 private:
  [[nodiscard]] std::size_t counted(ssize_t count, std::string_view doing) const;

  Socket socket_;
  std::string peer_;
};
/// Bounds what a rank does for those who have not proven themselves, and says how its lines go.
struct RankLineLimits {
  std::chrono::milliseconds lost_after{15'000};  ///< how long the other host may leave what it got unacknowledged
  std::chrono::milliseconds handshake_time{5000};
  std::size_t max_half_open = 256;  ///< besides the ranks that are expected
  bool has_tls = false;             ///< what the lines carry goes by TLS
};
/// Is one connect() of one rank: calls the ranks before it, and listens for those after it until they have come. Only
/// so long anything listens.
class RankMeeting {
 public:
  using Clock = Deadline::Clock;
  using Tell = std::function<void(const std::string&)>;

  RankMeeting(const World& world, Store& store, const std::string& group, const std::string& host, const Hmac& secret,
              const RankLineLimits& limits, Tell tell, const Deadline& deadline);

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> meet();

 private:
  // To a rank that listens. Tries again until it is let in.
  struct Call {
    Call(int to, const std::string& place, const Hmac& secret);
    [[nodiscard]] std::string address() const;

    int rank;
    int port = 0;
    std::string host{};
    PairProofs proofs;
    Socket connecting{};
    std::optional<PairCalling> handshake{};
    Clock::time_point since{};
    Clock::time_point again{};
    std::chrono::milliseconds pause{5};
    std::string cause = "it has not been tried";
  };
  struct HalfOpen {
    HalfOpen(Socket socket, const PairProofs& proofs, int rank, bool has_tls);
    std::string address;
    Clock::time_point since = Clock::now();
    PairListening handshake;
  };

  using State = PairHandshake::State;
  // So long an honest rank's handshake may take before it can be the one that has to go.
  static constexpr std::chrono::milliseconds safe_age{250};

  void advance_calls();

  // Returns true once the line is there.
  [[nodiscard]] bool advance(Call& call);

  // A call that may have been taken is not given up while the connection lasts: the other rank would listen no more.
  [[nodiscard]] Clock::time_point gives_up_at(const Call& call) const;

  void begin(Call& call);
  [[nodiscard]] static int fd_of(const Call& call) noexcept;

  [[nodiscard]] bool give_up(Call& call, std::string cause) const;

  void advance_listening();

  void accept_some();
  [[nodiscard]] std::size_t max_half_open() const noexcept;
  // Where all have only just come, the next one waits in the kernel's queue.
  [[nodiscard]] bool is_crowded() const;

  void refuse(const HalfOpen& one, const std::string& why);

  void admit(HalfOpen& one);

  void add(int rank, Socket socket, const std::string& address);

  void wait();
  static constexpr std::chrono::milliseconds slack{1};

  [[noreturn]] void throw_late() const;

  int rank_;
  RankLineLimits limits_;
  Deadline deadline_;
  RefusalLog log_;
  Socket socket_;
  std::vector<std::unique_ptr<RankLine>> lines_;
  int num_missing_;  // of the ranks that call this one
  std::string place_;
  std::optional<PairProofs> proofs_;
  std::list<Call> calls_;
  std::list<HalfOpen> half_open_;
  std::vector<pollfd> polled_;
  std::string last_refusal_;
};
/// Connects ranks that know the run's secret.
class SecretConnector final : public RankConnector {
 public:
  using Tell = RankMeeting::Tell;

  /// run: what two runs with one secret, and two generations of one, differ by. tell: is told of those who were
  /// refused.
  SecretConnector(const Hmac& secret, const std::string& run, Tell tell, RankLineLimits limits = {});

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> connect(const World& world, Store& store,
                                                               const std::string& group, const std::string& host,
                                                               const Deadline& deadline) override;
  [[nodiscard]] bool encrypts() const noexcept override { return limits_.has_tls; }

 private:
  static Hmac derive(const Hmac& secret, const std::string& run);

  const Hmac key_;
  Tell tell_;
  RankLineLimits limits_;
};
/// Passes on what the worker's own process provides, but for what is of all processes together.
class LaunchedLink final : public WorkerLink {
 public:
  /// own: the link that the worker's process has made; outlives this one. place: of the store; rank and generation are
  /// filled in here. address: by which the others reach this host.
  LaunchedLink(WorkerLink& own, const NetworkStorePlace& place, const Hmac& secret, const std::string& address);

  [[nodiscard]] const World& world() const noexcept override { return world_; }
  [[nodiscard]] Store& store() noexcept override { return store_; }
  [[nodiscard]] WorkerPage& page() noexcept override;
  [[nodiscard]] std::string_view briefing() const noexcept override;

  [[nodiscard]] Snapshot take_snapshot(std::size_t size_bytes, SnapshotKind kind) override;
  [[nodiscard]] std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept override;
  void drop_snapshot(int slot) noexcept override;
  void await_snapshot(int slot) override;
  void read_snapshot(int rank, int slot, std::size_t begin, std::span<std::byte> to) override;
  [[nodiscard]] bool sees_snapshots_of(int rank) const noexcept override;

  void post(std::span<const std::byte> message) override;
  void on_abort(std::function<void(std::string_view)> handler) override;

 private:
  LaunchedLink(WorkerLink& own, WireReader briefing, const NetworkStorePlace& place, const Hmac& secret,
               const std::string& address);
  LaunchedLink(WorkerLink& own, const GroupLayout& layout, const NetworkStorePlace& place, const Hmac& secret,
               const std::string& address);

  static World world_of(const World& own, const GroupLayout& layout, const std::string& address);
  static NetworkStorePlace store_place(NetworkStorePlace place, const GroupLayout& layout, int rank);

  WorkerLink* own_;
  int first_rank_;
  World world_;
  NetworkStore store_;
};
/// Is one address of one interface of this host.
struct InterfaceAddress {
  std::string interface {};
  SocketAddress address{};
  bool is_loopback = false;

  /// The bytes of the address: 4 or 16.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;
  /// Is it one that means nothing without the name of an interface?
  [[nodiscard]] bool is_link_local() const noexcept;
};
/// Returns the addresses of all interfaces that are up, in the order of the system.
[[nodiscard]] std::vector<InterfaceAddress> interface_addresses();
/// Is a network, such as 10.0.0.0/8 or fd00::/8, or a single address.
class Network {
 public:
  /// Nothing if the text is not the address of a network.
  [[nodiscard]] static std::optional<Network> parse(const std::string& text);

  [[nodiscard]] bool contains(std::span<const std::byte> address) const noexcept;

 private:
  std::byte bytes_[16] = {};
  std::size_t num_bytes_ = 0;
  std::size_t num_bits_ = 0;
};
/// Lists addresses as errors do: "eth0 10.0.0.7, lo 127.0.0.1".
[[nodiscard]] std::string list_addresses(const std::vector<InterfaceAddress>& addresses);
/// host: an address in numbers.
[[nodiscard]] bool is_loopback(std::string_view host) noexcept;
// The address that was asked for by the name of an interface or as a network.
[[nodiscard]] std::string address_in(const std::string& network, const std::vector<InterfaceAddress>& all);
[[noreturn]] void refuse_loopback(const std::string& network, const std::string& address,
                                         const std::vector<InterfaceAddress>& all);
/// Throws: ConfigError if the leader is to listen at one address of this host alone, and the others look for it at
/// another one. sought: a name or address; where it is none of this host's, as it may be called otherwise elsewhere, or
/// empty, nothing is known.
void check_is_sought_at(const std::string& sought, const std::string& address);
// The one address by which other hosts may reach this one, where nobody has said towards whom.
[[nodiscard]] std::string only_address(const std::vector<InterfaceAddress>& all);
/// Returns the address, in numbers, by which the other processes reach this host: the one that packets to the leader
/// are sent from, unless network names another. leader_host: empty where it is not known, as by the leader itself.
/// hosts_differ: not all processes are on this host, so that an address of the loopback would be of no use to them.
/// Throws: ConfigError if there is none, or none is the obvious one.
[[nodiscard]] std::string own_address_towards(const std::string& leader_host, const std::string& network,
                                                     bool hosts_differ);

}
}

#endif

#if (defined(RAILYARD_WITH_LAUNCHED) && RAILYARD_WITH_LAUNCHED)

namespace railyard::inline v0_1 {
static_assert(Scaling<Launched> && JoiningScaling<Launched>);

}

#endif

#if (defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO)

namespace railyard::inline v0_1 {
namespace detail {
/// Lets Gloo read and write our store. Gloo's newer stores have more members, all with defaults.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(railyard::Store& store, std::string prefix, int size, const Deadline& deadline);

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override;

 private:
  railyard::Store* store_;
  std::string prefix_;
  Deadline deadline_;
};
/// Is a file descriptor that a device's loop watches. Both forms of handleEvents exist because Gloo has changed its
/// signature: one of them overrides, the other is an overload that nobody calls.
class GlooEvent : public gloo::transport::tcp::Handler {
 public:
  GlooEvent(gloo::transport::tcp::Device& device, int descriptor);
  GlooEvent(const GlooEvent&) = delete;
  GlooEvent& operator=(const GlooEvent&) = delete;
  ~GlooEvent();

  virtual void handleEvents(int /*events*/);
  virtual void handleEvents(gloo::transport::tcp::Loop& /*loop*/, int /*events*/);

 protected:
  virtual void handle() = 0;
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  void watch();
  void unwatch();

 private:
  gloo::transport::tcp::Device* device_;
  int descriptor_;
};
/// Keeps the loop of a device turning while it lives. Connecting and closing wait for the loop to come round, once for
/// every peer, and an idle loop sleeps up to 10 ms.
class GlooTicker final : public GlooEvent {
 public:
  explicit GlooTicker(gloo::transport::tcp::Device& device);
  ~GlooTicker() override;

  /// Destroys the device, which this is the last to hold, while its loop still turns: an old Gloo's destructor waits
  /// for the loop to come round, and a new one's for it to have nothing more to do.
  void end_with(std::shared_ptr<gloo::transport::tcp::Device> device);

 private:
  void handle() override;

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

  explicit GlooAlarm(gloo::transport::tcp::Device& device);
  ~GlooAlarm() override;

  void set(Deadline::Clock::time_point when);

  /// Waits for one completion of the buffer; false if the alarm went off. Throws what Gloo throws.
  [[nodiscard]] bool wait(Buffer& buffer, Wait what, std::chrono::milliseconds timeout);

 private:
  void handle() override;

  std::mutex mutex_;
  Buffer* waiting_ = nullptr;
  Wait what_ = Wait::receive;
  bool has_rung_ = false;
};
/// Throws ConfigError if the file, in which something of Gloo's lies, is LibTorch's.
void check_gloo_file(std::string_view file);
/// Returns the file of the shared library that address lies in; empty if it is in none, or in the program itself. Cost:
/// about a microsecond. dladdr() takes twenty times as long, for it looks for the nearest of the library's names as
/// well.
[[nodiscard]] std::string_view library_of(const void* address) noexcept;
/// Throws ConfigError if address, a function or table of Gloo's, lies in LibTorch.
void check_gloo_is_own(const void* address);
struct HostAddress {
  std::string text{};  ///< numeric
  int family = AF_UNSPEC;
};
/// Resolves a name or address and checks that a socket can be bound to it. field is the option that errors name.
/// Throws: ConfigError.
[[nodiscard]] HostAddress own_address(const std::string& host, std::string_view field);
/// Is libgloo's full mesh: a thread for each object, in which SIGPIPE is blocked for good. Whoever calls has blocked it
/// as well.
class GlooLines final : public MeshLines {
 public:
  /// Throws: std::exception if the mesh does not come to be.
  GlooLines(const HostAddress& address, const World& world, Store& store, const std::string& prefix,
            const Deadline& deadline);
  ~GlooLines() override;

  [[nodiscard]] std::unique_ptr<Transfer> start(const void* from, std::size_t from_bytes, void* to,
                                                std::size_t to_bytes) override;

  // Gloo tells those whose messages are under way that a connection is closed, and nobody else. So a receive that never
  // ends is posted to every rank. A wait that was aborted before it began reports an error, and waits for nothing.
  [[nodiscard]] bool is_closed(int rank) override;

  // Gloo has no such function, but a wait that times out closes all connections, which wakes all who wait for them.
  void close() noexcept override;

 private:
  using Milliseconds = std::chrono::milliseconds;
  using Wait = GlooAlarm::Wait;

  class GlooTransfer final : public Transfer {
   public:
    GlooTransfer(GlooLines& lines, const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes);
    void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override;
    void receive(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override;
    [[nodiscard]] bool wait(Time wake) override;

   private:
    GlooLines* lines_;
    std::unique_ptr<gloo::transport::UnboundBuffer> source_;
    std::unique_ptr<gloo::transport::UnboundBuffer> target_;
    int num_sends_ = 0;
    int num_receives_ = 0;
  };

  // Not so large that adding it to the clock overflows. The alarm comes before it: when Gloo's own timer runs out, as
  // it may while all are suspended, it closes all connections before the others can have been told why.
  static constexpr Milliseconds longest = std::chrono::hours{24 * 365};

  // Never 0, which fails at once.
  [[nodiscard]] static Milliseconds timeout(const Deadline& deadline);

  void set_alarm(Time when);

  void post_canaries(const World& world);

  static constexpr std::uint64_t canary_slot = 1;

  std::shared_ptr<gloo::transport::tcp::Device> device_;
  std::unique_ptr<GlooAlarm> alarm_;
  Time alarm_time_{};
  std::shared_ptr<gloo::rendezvous::Context> context_;
  char canary_byte_ = 0;
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> canaries_;
};
/// Moves messages on one line in both directions. Each end says what it is ready to receive before it is sent, or while
/// it is: whoever sends knows in the end that the other one is in the same operation. What comes out of its turn is
/// left where it is: it takes no memory, whoever sends it.
class ProvenLine {
 public:
  explicit ProvenLine(std::unique_ptr<RankLine> line);

  [[nodiscard]] int fd() const noexcept;
  void hang_up() noexcept;

  void send(std::uint64_t slot, const std::byte* from, std::size_t size_bytes);
  void receive(std::uint64_t slot, std::byte* to, std::size_t size_bytes);

  /// Sends and takes what can be at once. Returns true if nothing is left to do. Throws: Error if the line is lost.
  [[nodiscard]] bool advance();

  /// What to wait for before the next advance(), as poll() has it.
  [[nodiscard]] short events() const noexcept;
  /// Takes what poll() has said. Throws: Error if the line has ended, and what is left of it is of no use.
  void look_at(short events) const;
  /// Has the other end gone?
  [[nodiscard]] bool is_closed() const noexcept;

 private:
  struct Head {
    static constexpr std::uint64_t data = 1;
    static constexpr std::uint64_t ready = 2;
    std::uint64_t kind = 0;
    std::uint64_t slot = 0;
  };
  struct Outgoing {
    Head head{};
    const std::byte* from = nullptr;
    std::size_t size_bytes = 0;
  };
  struct Incoming {
    std::uint64_t slot = 0;
    std::byte* to = nullptr;
    std::size_t size_bytes = 0;
    bool has_begun = false;
  };

  // Up to this size a copy costs less than a call of the system.
  static constexpr std::size_t small_bytes = 8192;

  [[nodiscard]] bool has_to_send() const noexcept;
  [[nodiscard]] bool wants_bytes() const noexcept;

  void send_some();

  // Puts together what is small, up to and with the beginning of what is not.
  void pack();
  void append(const std::byte* bytes, std::size_t size);

  // Returns false if nothing more can be taken now.
  [[nodiscard]] bool take_some();

  [[nodiscard]] bool take_payload();

  [[nodiscard]] bool hold_more();

  std::unique_ptr<RankLine> line_;
  std::deque<Outgoing> outgoing_;
  std::vector<std::byte> packed_;  // what is sent first of all
  std::size_t sent_ = 0;             // of packed_
  const std::byte* rest_ = nullptr;  // what is sent next
  std::size_t rest_bytes_ = 0;
  std::deque<std::uint64_t> awaited_;  // slots for which the other end is not ready yet
  std::deque<Incoming> incoming_;
  std::array<std::byte, small_bytes> held_{};  // what has come and was not asked for yet
  std::size_t taken_ = 0;
  std::size_t num_held_ = 0;
  bool is_out_of_turn_ = false;
};
/// Is the lines to all other ranks. Needs no thread: the lines move while somebody waits.
class ProvenLines final : public MeshLines {
 public:
  /// lines: by rank, nullptr for this one.
  explicit ProvenLines(std::vector<std::unique_ptr<RankLine>> lines);

  [[nodiscard]] std::unique_ptr<Transfer> start(const void* from, std::size_t /*from_bytes*/, void* to,
                                                std::size_t /*to_bytes*/) override;
  [[nodiscard]] bool is_closed(int rank) override;
  void close() noexcept override;

 private:
  class ProvenTransfer final : public Transfer {
   public:
    ProvenTransfer(ProvenLines& lines, const std::byte* from, std::byte* to);

    void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override;
    void receive(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override;

    [[nodiscard]] bool wait(Time wake) override;

   private:
    ProvenLine& busy(int peer);

    ProvenLines* lines_;
    const std::byte* from_;
    std::byte* to_;
    std::vector<ProvenLine*> busy_;
    std::vector<pollfd> polled_;
  };

  [[nodiscard]] ProvenLine& line(int rank);

  std::vector<std::unique_ptr<ProvenLine>> lines_;
};
static_assert(Backend<GlooTcp>);
static_assert(detail::Mesh<GlooTcp>);

}
}

#endif

#if (defined(RAILYARD_WITH_GLOO) && RAILYARD_WITH_GLOO)

namespace railyard::inline v0_1 {
static_assert(Backend<Gloo>);

}

#endif

#if (defined(RAILYARD_WITH_NCCL) && RAILYARD_WITH_NCCL)

namespace railyard::inline v0_1 {
namespace detail {
inline constexpr int cuda_success = 0;
inline constexpr int cuda_initialization_error = 3;
inline constexpr int cuda_not_ready = 600;
inline constexpr int cuda_memcpy_default = 4;  // by the addresses: to and from the device, or on it
/// Returns the number of GPUs as CUDA counts them in this process, which initialises it.
/// Throws: ConfigError with CUDA's words, or if there is none.
[[nodiscard]] int count_devices_here(const CudaLibrary& cuda);
/// Runs body(add) between ncclGroupStart and ncclGroupEnd, where add takes each call's result, and returns the first
/// that is a failure.
template <class Body>
[[nodiscard]] NcclResult in_nccl_group(const NcclLibrary& nccl, const Body& body) {
  NcclResult first = nccl.group_start();
  const auto add = [&first](NcclResult next) {
    if (first == NcclResult::success || first == NcclResult::in_progress) first = next;
  };
  body(add);
  add(nccl.group_end());  // in any case, or later calls of this thread would join the group
  return first;
}

}
}

#endif

#if (defined(RAILYARD_WITH_NCCL) && RAILYARD_WITH_NCCL)

namespace railyard::inline v0_1 {
static_assert(Work<NcclWork>);
static_assert(Backend<Nccl>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
// Finds functions of libraries that LibTorch itself uses. Asking LibTorch's own library first finds its OpenMP even
// where the program carries another one, and needs no -fopenmp of the user. To make one takes milliseconds, of every
// worker.
class TorchLibrary {
 public:
  TorchLibrary() noexcept;
  TorchLibrary(const TorchLibrary&) = delete;
  TorchLibrary& operator=(const TorchLibrary&) = delete;
  ~TorchLibrary();

  // Returns nullptr if there is none of that name.
  template <class Function>
  [[nodiscard]] Function* find(const char* name) const noexcept {
    void* found = library_ == nullptr ? nullptr : dlsym(library_, name);
    if (found == nullptr) found = dlsym(RTLD_DEFAULT, name);
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* library_ = nullptr;
};
// The share of one worker.
struct ThreadBudget {
  static constexpr std::string_view extension_name = "torch.thread_budget";
  int threads = 0;  // 0: not applied yet, or the user has decided
  bool applied = false;
  std::optional<TorchLibrary> used{};

  [[nodiscard]] const TorchLibrary& library();
};
// The user's own decision stands: OMP_NUM_THREADS is how one is made for every library at once.
[[nodiscard]] bool user_set_threads();
// Takes effect once per worker, before its first parallel loop. Only the calling thread's setting is changed:
// at::set_num_threads() would change every worker's that is a thread of this process. The first call of
// at::get_num_threads() makes LibTorch set up this thread, which would otherwise undo ours later.
void apply_thread_budget(Worker& worker);
// OpenBLAS has threads of its own, and one number of them per process. It is lowered where workers are threads, too:
// each of their products would wait for threads that another one's product has, which was seen to take thirty times as
// long.
void apply_thread_budget_to_process(Worker& worker);
// That of the worker whose training function runs on this thread; nothing if it has none.
[[nodiscard]] std::optional<at::Device>& gpu_of_thread();
// The stream on which LibTorch puts what this thread computes on a GPU.
[[nodiscard]] Stream current_stream(at::Device gpu);
// Makes the worker's GPU the current one of this thread, whose streams order the worker's collectives from here on. A
// LibTorch without CUDA has no such thing, and says so when the first tensor is made there.
void enter_gpu(Worker& worker, at::Device gpu);
// LibTorch seeds the generators of all GPUs alike; here that of this thread's GPU gets a seed of its own.
void seed_gpu(std::uint64_t seed);
// A LibTorch with CUDA begins a thread for each GPU with the first backward pass of a process, be it on CPUs; in what
// is forked from it none can be run. Throws: ConfigError there.
void check_backward_works(const Worker& worker);
[[nodiscard]] std::int64_t bytes_in(const at::Tensor& tensor);
// Tells processes apart, also those of two hosts or containers that have the same id.
[[nodiscard]] std::int64_t process_token();
// Where two descriptions part: the number of the first line that differs, and what it is on both ranks.
[[nodiscard]] std::pair<std::size_t, std::string> first_difference(const std::string& first, std::size_t rank,
                                                                          const std::string& other,
                                                                          int first_rank = 0);
// Returns rank 0's numbers, of which other ranks may have more or fewer.
[[nodiscard]] std::vector<std::int64_t> numbers_of_first_rank(Worker& worker,
                                                                     std::vector<std::int64_t> numbers);
// Compares counts, names, types and shapes; throws the same error on every rank.
void check_structure(Worker& worker, const std::vector<NamedTensor>& tensors);
// Compares what prepare_model() was told besides the model, in words; throws the same error on every rank.
void check_options_are_equal(Worker& worker, const std::string& mine);
// Finds a parameter that two ranks of one process share: each would overwrite the other's gradients.
void check_ownership(Worker& worker, const std::vector<NamedTensor>& tensors);
// Sends rank 0's values of a few tensors as one buffer.
void broadcast_piece(Worker& worker, const std::vector<at::Tensor>& piece);
// Sends everything in pieces of bounded size: few calls for many small tensors, no second copy of a large model.
void broadcast_all(Worker& worker, const std::vector<NamedTensor>& tensors);
[[nodiscard]] bool are_equal(Worker& worker, const std::vector<NamedTensor>& tensors);
[[nodiscard]] bool are_all_on_cpu(const std::vector<GradientSlot>& slots);
// Whether all are on a GPU that is the worker's.
[[nodiscard]] bool are_all_on(const std::vector<GradientSlot>& slots, const Device& device);
// What the other passes of a step have left would be half a step.
void drop_gradients(const std::vector<GradientSlot>& slots);
// Cuts tensors, one after another, each beginning at a whole cache line, into one part per rank.
class RankPart {
 public:
  // counts: elements of each tensor.
  RankPart(const std::vector<std::int64_t>& counts, std::int64_t rank, std::int64_t size);

  // Begin and end of this rank's part of the next tensor.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> next(std::int64_t count);

 private:
  static constexpr std::int64_t line = 64;
  [[nodiscard]] static std::int64_t lines_of(std::int64_t count) noexcept;

  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  std::int64_t at_ = 0;
};
// Of those that train; a few elements of each tell weights that were initialised anew, or loaded.
[[nodiscard]] std::uint64_t digest_of_weights(const std::vector<GradientSlot>& slots);

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

#if (defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
inline constexpr std::size_t copied_page_bytes = 4096;
inline constexpr std::size_t pages_at_once = 4;
/// Copies four pages side by side, past the caches: memory answers several places at once sooner than one after
/// another, and what is written is not read first. to: aligned to 64 bytes.
[[gnu::target("avx512f")]] inline void copy_pages_avx512(std::byte* to, const std::byte* from) noexcept {
  for (std::size_t at = 0; at < copied_page_bytes; at += 128) {
    for (std::size_t page = at; page < pages_at_once * copied_page_bytes; page += copied_page_bytes) {
      _mm_prefetch(reinterpret_cast<const char*>(from + page + 256), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(from + page + 320), _MM_HINT_T0);
      const __m512i first = _mm512_loadu_si512(from + page);
      const __m512i second = _mm512_loadu_si512(from + page + 64);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + page), first);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + page + 64), second);
    }
  }
}
/// The same with half of the width.
[[gnu::target("avx2")]] inline void copy_pages_avx2(std::byte* to, const std::byte* from) noexcept {
  for (std::size_t at = 0; at < copied_page_bytes; at += 64) {
    for (std::size_t page = at; page < pages_at_once * copied_page_bytes; page += copied_page_bytes) {
      _mm_prefetch(reinterpret_cast<const char*>(from + page + 256), _MM_HINT_T0);
      const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + page));
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + page + 32));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + page), first);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + page + 32), second);
    }
  }
}
/// Copies memory which does not overlap, and which nobody reads again soon where it goes to. From 256 KiB on that takes
/// two thirds of memcpy()'s time, which goes past the caches only with blocks as large as most of them together.
void copy_large(std::byte* to, const std::byte* from, std::size_t size) noexcept;

}
}

#endif

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

#if !(defined(__x86_64__))

namespace railyard::inline v0_1 {
namespace detail {
void copy_large(std::byte* to, const std::byte* from, std::size_t size) noexcept;

}
}

#endif

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
[[nodiscard]] DimOrder row_by_row(std::int64_t num_dims);
// The shape of what lies in memory as a tensor without gaps does.
[[nodiscard]] std::vector<std::int64_t> shape_in_memory(const at::Tensor& tensor);
[[nodiscard]] at::ScalarType scalar_type_of(Dtype dtype);
[[nodiscard]] std::string text_of_sizes(const std::vector<std::int64_t>& sizes);
// What a tensor is saved as: a complex one in pairs.
[[nodiscard]] at::Tensor saved_view(const std::string& name, const at::Tensor& tensor);
// Copies elements begin to end, counted row by row, of a tensor on the CPU with any strides.
void copy_rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end, std::byte* to);
// A tensor that every rank has.
[[nodiscard]] StateTensor whole_state(std::string name, const at::Tensor& tensor);
// A flat tensor that holds elements begin to end of something of the given shape, of which other ranks hold the rest.
[[nodiscard]] StateTensor piece_state(std::string name, std::vector<std::int64_t> shape, std::int64_t begin,
                                             std::int64_t end, const at::Tensor& piece);
// How long each sample is in its first dimension. Shapes: (samples) of int64.
[[nodiscard]] at::Tensor lengths_of(const Field& field, const Column& column, BatchBuffers& buffers);
// Copies a column: the memory of a block may be that of its dataset, and a batch is the loop's own to write to. Samples
// shorter than the longest end with the padding. Shapes: (samples, those of the field).
[[nodiscard]] at::Tensor tensor_of(const Field& field, const Column& column, double padding,
                                          BatchBuffers& buffers);
// Writes the numbers of a column as floats side by side with those of others, of which a sample has `width` in all.
void write_floats(const Field& field, const Column& column, float* to, std::size_t width);
// Decides what of a block is data and what is target.
class BlockCollation {
 public:
  // label: may be empty. padding: of samples that differ in length. ahead: batches that are made before they are used.
  // is_pinned: for a GPU. Throws: ConfigError if no tensor can be made of the label.
  BlockCollation(const Schema& schema, const std::string& label, double padding, std::size_t ahead = 0,
                 bool is_pinned = false);

  [[nodiscard]] std::pair<at::Tensor, at::Tensor> operator()(const Block& block) const;

 private:
  // Data and target of those that are made ahead, of the one under way, and of those before it that a graph may hold.
  [[nodiscard]] static std::size_t most_kept_for(std::size_t ahead) noexcept;

  [[nodiscard]] at::Tensor side_by_side(const Block& block) const;

  std::vector<std::size_t> features_;
  std::optional<std::size_t> label_;
  double padding_;
  std::shared_ptr<BatchBuffers> buffers_;  // of all copies, which are used one after another
};
// Has another stream be the current one of its GPU, on this thread.
class StreamGuard {
 public:
  explicit StreamGuard(c10::Stream stream);
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
  ~StreamGuard();

 private:
  const c10::impl::DeviceGuardImplInterface* guard_;
  c10::Stream former_;
};
// Copies one batch at a time from pinned memory, on a stream of its own. Its memory on the GPU is of the stream that
// will use it, as any tensor's there: what is queued on that stream when it is taken may still be at work in it. So the
// copy waits for that, and for nothing that is queued later. Who uses the batch waits for the copy, on the GPU: the
// host waits for neither. Pinned memory goes back to LibTorch, which gives it out again when the copy has read it. Used
// by one thread.
class GpuCopies {
 public:
  using Batch = std::array<at::Tensor, 2>;  // data and target, of which either may be undefined

  // bound_bytes: of pinned memory whose copy has not ended; two batches may have more.
  GpuCopies(at::Device gpu, std::size_t bound_bytes);
  GpuCopies(const GpuCopies&) = delete;
  GpuCopies& operator=(const GpuCopies&) = delete;
  ~GpuCopies();

  // Whether wait_for_room() would return at once.
  [[nodiscard]] bool has_room();

  // Waits while too much pinned memory is under way: the GPU then has two batches to go on with. Throws: DataError when
  // the deadline passes.
  void wait_for_room(const Deadline& deadline);

  // Begins to copy, and puts tensors on the GPU in the place of those of the host, which may not be used before take().
  // is_pinned: those are in pinned memory that nobody else has.
  void start(Batch& batch, bool is_pinned);

  // Gives out the batch that was begun last: what is queued on the current stream from now on finds it there.
  void take();

  // Takes memory for another batch like the last, so that its copy need not wait for what is queued from now on.
  void reserve();

  // Lets go of what was not given out.
  void drop() noexcept;

 private:
  struct Layout {
    std::vector<std::int64_t> sizes{};
    std::vector<std::int64_t> strides{};
    at::ScalarType type = at::ScalarType::Float;

    bool operator==(const Layout&) const = default;
  };
  using Layouts = std::array<std::optional<Layout>, 2>;  // of those that are copied

  // Is memory on the GPU that nothing uses once the event has come.
  struct Room {
    Layouts layouts{};
    Batch tensors{};
    c10::Stream stream;
    c10::Event is_free;
  };
  struct UnderWay {
    Batch tensors{};
    c10::Stream stream;
  };
  struct InFlight {
    c10::Event is_copied;
    std::size_t bytes = 0;
  };

  // Others are left to LibTorch.
  [[nodiscard]] static bool is_plain(const at::Tensor& tensor);
  [[nodiscard]] static at::Tensor pinned(const at::Tensor& tensor);
  [[nodiscard]] static Layouts layouts_of(const Batch& batch);

  [[nodiscard]] Room take_room();

  void copy(const Batch& staged, Room& room);

  [[nodiscard]] c10::Event spare_event();

  const c10::impl::DeviceGuardImplInterface* guard_;
  at::Device gpu_;
  std::size_t bound_bytes_;
  std::optional<c10::Stream> stream_;
  std::vector<c10::Event> spare_;
  Layouts last_{};
  std::optional<Room> room_;           // for the next batch
  std::optional<UnderWay> under_way_;  // between start() and take()
  std::deque<InFlight> in_flight_;
  std::size_t bytes_in_flight_ = 0;
};
// (1, channels, 1, ...): one value per channel, as an operand beside the input.
[[nodiscard]] at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input);
[[nodiscard]] at::Tensor tensor_of(const std::vector<double>& values, const at::Tensor& like);
// (x - mean) / sqrt(variance + eps) * scale + shift, in one pass over x.
[[nodiscard]] at::Tensor normalise(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                          const BatchMoments& moments);
// Merges the counts, means and sums of squared deviations of all ranks. Deviations are taken from each part's own mean
// and then moved to the common one; sums of squares would lose digits where the mean is large.
// Source: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
[[nodiscard]] std::pair<std::vector<double>, std::vector<double>> merge_moments(const std::vector<double>& all,
                                                                                       std::size_t channels,
                                                                                       double total);
// Averages tensors of one dtype as one buffer.
void average_buffers(Worker& worker, const std::vector<at::Tensor>& tensors);
// Makes the buffers of all ranks one, in the order given, which is the same on all ranks. Writes in place, so that a
// graph which has saved a buffer's values notices: call it after the backward pass (FAULTS D32).
// Cost: broadcast one collective of all bytes; average one per floating dtype, and one for all else.
void sync_buffers(Worker& worker, std::span<const at::Tensor> buffers, BufferSync policy);
// A contiguous tensor with the values of another one, and the way back. Backends move memory from first to last byte:
// given a strided view they would move the wrong elements without an error.
class Dense {
 public:
  explicit Dense(const at::Tensor& tensor);

  [[nodiscard]] Buffer buffer() const;
  [[nodiscard]] const at::Tensor& tensor() const noexcept { return dense_; }

  // Refuses what could not be written back, before anything is sent.
  void check_writable(std::string_view operation) const;

  void write_back() const;

 private:
  at::Tensor original_;
  at::Tensor dense_{};
};
[[nodiscard]] at::Tensor empty_like_part(const at::Tensor& tensor, std::vector<std::int64_t> shape);
// The shape of one rank's part of a tensor that is divided along its first dimension.
[[nodiscard]] std::vector<std::int64_t> divided_shape(const Worker& worker, const at::Tensor& tensor,
                                                             std::string_view operation);

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
static_assert(CommHook<ExactHook>);
static_assert(CommHook<Bf16Hook>);
static_assert(CommHook<F16Hook>);
static_assert(StatefulCommHook<AnyCommHook>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
// How many backward passes are around the one under way on this thread, such as those in which checkpointing computes
// a part. LibTorch tells nobody, but it keeps the number beside a set that it does show.
[[nodiscard]] int depth_of_pass();
// As the options say. Between hosts no more than an eighth of all gradients, so that a small model's are on the network
// while its backward pass goes on, yet not so little that a message costs more by its way than by its size.
[[nodiscard]] BucketLimits limits_of(const ModelOptions& options, const std::vector<GradientSlot>& slots,
                                            bool spans_hosts);
// Keeps the settings of a plan with what equal bits depend on; the plan itself is told when it has been made.
void note_bucket_sizes(Worker& worker, const ModelOptions& options);
// The one that a worker has, as long as its GradScaler lives.
struct LossScalings {
  static constexpr std::string_view extension_name = "torch.loss_scaling";
  std::weak_ptr<LossScaling> current{};
  bool has_any = false;  // there is one or was
};
[[nodiscard]] std::shared_ptr<LossScaling> loss_scaling_of(Worker& worker);
[[noreturn]] void refuse_converted(const Worker& worker, const GradientSlot& slot);
// Its accumulator expects gradients of the shape that it had, and the ranks have compared that one.
[[noreturn]] void refuse_reshaped(const Worker& worker, const GradientSlot& slot);
// What has been computed with the parameter as it was keeps its accumulator.
[[noreturn]] void refuse_graph(const Worker& worker, const GradientSlot& slot);
[[noreturn]] void refuse_create_graph(const Worker& worker, const GradientSlot& slot);
[[noreturn]] void refuse_repeat(const Worker& worker, const GradientSlot& slot, std::uint64_t step);
[[noreturn]] void refuse_second_pass(const Worker& worker, std::uint64_t step);
// Between the micro-batches of a step somebody has dropped their gradients, or gone on with a part of them.
[[noreturn]] void refuse_touched(const Worker& worker, const GradientSlot& slot, std::string_view what,
                                        std::uint64_t step);
// The gradients of a divided optimizer are still those of the step before, or none.
[[noreturn]] void refuse_early(const Worker& worker, std::string_view call, std::uint64_t step);
[[nodiscard]] std::string describe_not_finite(std::uint64_t step, const std::string& name);
[[noreturn]] void refuse_not_finite(const Worker& worker, const std::string& what);
void warn_of_first_skipped(Worker& worker, const std::string& what);
// The parameter, and how many more.
[[nodiscard]] std::string name_with_others(const std::string& first, std::size_t count);
// In the same words on all ranks that have not used it, so that they are told once.
void warn_of_unused(Worker& worker, const std::string& first, std::size_t count, std::uint32_t num_using,
                           std::uint64_t step);
void warn_of_untrained(Worker& worker, const std::vector<GradientSlot>& slots);
void warn_of_sparse(Worker& worker, const GradientSlot& slot, std::uint64_t step);
// All models of a worker are exchanged together, so the options of one are those of all.
void refuse_other_options(const Worker& worker, const ModelOptions& before, const ModelOptions& now);
// Drops the models that are gone on all ranks, and the slots that nobody but the exchange knows of on any, so that a
// run which makes many models remembers few. All ranks call it. Returns whether there were such slots.
[[nodiscard]] bool drop_ended(Worker& worker, std::vector<GradientSlot>& slots, WatchedModels& models);
// Knows which heap serves this thread, and to which heap a block belongs. One object per process and shared library,
// which is never destroyed: tensors of static storage are freed after everything else.
class PoolRegistry {
 public:
  static constexpr std::size_t most_heaps = 256;

  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  [[nodiscard]] static PoolRegistry& instance();

  // The binding of the calling thread that serves it; a plain pointer, which other thread-local objects may use while
  // they end.
  [[nodiscard]] static PoolBinding*& bound() noexcept;

  [[nodiscard]] c10::DataPtr allocate(std::size_t size_bytes) const;

  // Frees memory of any heap, or of the allocator that was there before: LibTorch's libraries may have taken some of it
  // by raw_allocate() when that was still the current one.
  static void give_back(void* memory);

  // Makes the blocks of a heap known, until it is gone. Returns false if there are too many heaps.
  [[nodiscard]] bool add(Heap& heap);

  [[nodiscard]] bool knows(const Heap& heap) const noexcept;

 private:
  [[nodiscard]] static void* allocate_bound(std::size_t size_bytes) noexcept;

  // Of one heap after another. Others ask for memory while it changes, and begin and end may then be of two heaps; but
  // it never changes while memory of its heap is out.
  struct Range {
    std::atomic<bool> is_taken{false};
    std::atomic<std::uint64_t> num_changes{0};  // odd while it changes
    std::atomic<std::byte*> begin{nullptr};
    std::atomic<std::byte*> end{nullptr};

    void set(std::byte* new_begin, std::byte* new_end) noexcept;
    [[nodiscard]] bool contains(const void* memory) const noexcept;
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
  c10::DataPtr allocate(std::size_t size_bytes) const;
  c10::DataPtr allocate(std::size_t size_bytes);
  c10::DeleterFnPtr raw_deleter() const;
  void copy_data(void* to, const void* from, std::size_t size_bytes) const;
};
static_assert(!std::is_abstract_v<PoolAllocator>, "this LibTorch's c10::Allocator asks for functions not known here");

// Puts the allocator in front of LibTorch's own, once for each shared library that uses pools. LibTorch keeps it for
// good, so it is never destroyed.
void install_pool_allocator();

// Whether every value is finite; of a sparse tensor those that it holds.
[[nodiscard]] bool is_all_finite(const at::Tensor& tensor);
// What of a device's tensors is not finite makes this number so, on the device, for which the host does not wait.
// Cost: one kernel for some hundred tensors of f16, f32 or f64, which writes back what it reads; two for any other.
[[nodiscard]] at::Tensor finite_mark(const std::vector<at::Tensor>& tensors);
// Of tensors of one device; the host waits for it once.
[[nodiscard]] bool are_all_finite(const std::vector<at::Tensor>& tensors);
// The name of the first parameter whose gradient, or what this rank has of it, is not finite; empty if there is none.
[[nodiscard]] std::string first_not_finite(const OpenSlots& open);
// Shows a text in the next step of an exchange, and returns those of all ranks of the host.
[[nodiscard]] std::vector<std::string> show_texts(HostMemory& memory, const std::string& mine);
// Adds up this rank's part of open gradients and leaves the mean with all ranks of the host, or, where an optimizer
// shares the weights, in the gradient of the piece of this rank.
class HostSums {
 public:
  // samples: behind the gradients of all ranks. What is given outlives it.
  HostSums(Worker& worker, HostMemory& memory, const ShownGradients& shown, double samples);

  // Returns whether all results of this rank's part are finite.
  [[nodiscard]] bool add(const OpenSlots& open);

  // Bytes of gradients that have been read, written, sent and received.
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;

    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  };

  // What this rank adds up of an open gradient, or some of that: for all ranks of the host, or for the piece that it
  // updates alone.
  struct OwnPart {
    std::size_t index = 0;
    GradientSlot* slot = nullptr;
    std::shared_ptr<GradientPiece> piece{};
    at::Tensor mean{};  // of the whole piece
    Range range{};
    bool completes_piece = true;
  };

  // All open gradients one after another, each beginning at a whole cache line, are cut into one part per rank of the
  // host; weights that an optimizer shares have been cut by it.
  template <class Visit>
  void for_each_own_part(const OpenSlots& open, const Visit& visit) {
    std::vector<std::int64_t> counts;
    for (const auto& one : open) {
      if (one.second->piece.expired()) counts.push_back(one.second->real_count());
    }
    RankPart part{counts, memory_->rank(), memory_->size()};
    for (const auto& [index, slot] : open) {
      auto piece = slot->piece.lock();
      const auto [begin, end] = piece ? std::pair{piece->begin, piece->end} : part.next(slot->real_count());
      if (begin == end) continue;
      OwnPart own{.index = index, .slot = slot, .piece = std::move(piece)};
      if (own.piece) own.mean = at::empty({end - begin}, at::TensorOptions{}.dtype(slot->sum_type()));
      own.range = {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
      visit(own);
    }
  }

  [[nodiscard]] bool add_own_parts(const OpenSlots& open);

  template <class T>
  [[nodiscard]] T* at(int rank, std::size_t index) const noexcept {
    const ShownGradient& entry = shown_->tables[static_cast<std::size_t>(rank)][index];
    return reinterpret_cast<T*>(memory_->at(rank, entry.place != 0 ? entry.place : entry.late_place));
  }

  // What the ranks of this host give, and how each of them is weighted.
  template <class T>
  struct Given {
    std::vector<const T*> sources{};
    std::vector<T> weights{};
    bool are_all_weighted = true;  // already, each by its own number of micro-batches
  };
  template <class T>
  [[nodiscard]] Given<T> given(const OwnPart& part) const {
    Given<T> given;
    for (int rank = 0; rank < memory_->size(); ++rank) {
      // Left out, not multiplied by zero: NaN.
      const ShownGradient& entry = shown_->tables[static_cast<std::size_t>(rank)][part.index];
      if (entry.gives == 0) continue;
      given.sources.push_back(at<T>(rank, part.index) + part.range.begin);
      const double samples = shown_->headers[static_cast<std::size_t>(rank)].samples;
      given.weights.push_back(entry.weighted != 0 ? T{1} : static_cast<T>(samples));
      given.are_all_weighted = given.are_all_weighted && entry.weighted != 0;
    }
    return given;
  }

  // Calls write(targets) with where the mean of a part belongs.
  template <class T, class Write>
  [[nodiscard]] bool write_mean(const OwnPart& part, const Write& write) {
    if (!part.piece) {
      std::vector<T*> targets;
      for (int rank = 0; rank < memory_->size(); ++rank) targets.push_back(at<T>(rank, part.index) + part.range.begin);
      return write(std::span<T* const>{targets});
    }
    const std::size_t at = part.range.begin - static_cast<std::size_t>(part.piece->begin);
    const std::array<T*, 1> target{part.mean.template data_ptr<T>() + at};
    const bool is_finite = write(std::span<T* const>{target});
    if (part.completes_piece) part.piece->add(part.mean.to(part.piece->updated().scalar_type()));
    return is_finite;
  }

  template <class T>
  [[nodiscard]] bool sum_counted(const SumTask<T>& task) {
    num_bytes_ += (task.sources.size() + task.targets.size()) * task.count * sizeof(T);
    return sum(task);
  }

  template <class T>
  [[nodiscard]] bool add(const OwnPart& part) {
    return write_mean<T>(part, [&](std::span<T* const> targets) {
      const Given<T> own = given<T>(part);
      SumTask<T> task{.targets = targets, .sources = own.sources, .count = part.range.size()};
      task.divisor = static_cast<T>(samples_);
      const bool is_all_of_it = own.weights.size() == 1 && own.weights[0] == task.divisor;
      if (is_all_of_it && !own.are_all_weighted) {
        task.divisor = T{1};  // n x gradient / n need not be the gradient
      } else if (!own.are_all_weighted) {
        task.weights = own.weights.data();
      }
      return sum_counted(task);
    });
  }

  // On several hosts: this rank adds up its part of what its host has, then with those that have the same part
  // elsewhere, and then it has the sums of all, as each of them has. So every host updates its one copy of the weights
  // by itself, from equal bits. To give each host a part of the updates instead, and to send the weights, would put as
  // many bytes on the network, but half of them after the backward pass, where nothing hides them, and the norm of the
  // gradients and every update would have to wait for another exchange. It would divide the optimizer's state by the
  // number of hosts as well.
  template <class T>
  [[nodiscard]] bool add_between_hosts(const OpenSlots& open) {
    const std::vector<Chunk> chunks = chunks_of<T>(open);
    if (chunks.empty()) return true;
    const auto count = static_cast<std::int64_t>(chunks.back().end);
    const at::Tensor sums = at::empty({count}, at::TensorOptions{}.dtype(c10::CppTypeToScalarType<T>::value));
    T* const first = sums.template data_ptr<T>();
    const auto buffer_of_chunk = [&](const Chunk& chunk) {
      return Buffer{first + chunk.begin, chunk.end - chunk.begin, dtype_of<T>};
    };
    if (chunks.size() == 1) {
      add_within_host<T>(chunks[0], first);
      memory_->add_between_hosts(buffer_of_chunk(chunks[0]), worker_->collective_deadline());
      return spread<T>(chunks[0], first);
    }
    // While one chunk is on the network, the memory works on the next and on the one before.
    bool is_finite = true;
    std::future<void> on_network;
    for (std::size_t at = 0; at < chunks.size(); ++at) {
      add_within_host<T>(chunks[at], first);
      if (on_network.valid()) on_network.get();
      on_network = memory_->begin_between_hosts(buffer_of_chunk(chunks[at]), worker_->collective_deadline());
      if (at > 0) is_finite &= spread<T>(chunks[at - 1], first);
    }
    on_network.get();
    return spread<T>(chunks.back(), first) && is_finite;
  }

  // Parts that go over the network together, and where they are among the sums of one type.
  struct Chunk {
    std::vector<OwnPart> parts{};
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  template <class T>
  [[nodiscard]] std::vector<Chunk> chunks_of(const OpenSlots& open) {
    std::vector<OwnPart> parts;
    std::size_t count = 0;
    for_each_own_part(open, [&](const OwnPart& part) {
      if (part.slot->sum_type() != c10::CppTypeToScalarType<T>::value) return;
      count += part.range.size();
      parts.push_back(part);
    });
    std::vector<Chunk> chunks;
    const std::size_t size = chunk_size(count, sizeof(T));
    for (OwnPart& part : parts) {
      // Also within a parameter, of which one alone may be more than all others.
      for (const std::size_t end = part.range.end; part.range.begin < end; part.range.begin = part.range.end) {
        const std::size_t done = chunks.empty() ? 0 : chunks.back().end;
        if (chunks.empty() || done == chunks.back().begin + size) chunks.push_back({.begin = done, .end = done});
        Chunk& chunk = chunks.back();
        part.range.end = std::min(end, part.range.begin + chunk.begin + size - chunk.end);
        part.completes_piece = part.range.end == end;
        chunk.end += part.range.size();
        chunk.parts.push_back(part);
      }
    }
    return chunks;
  }

  // As few chunks as are no longer than they may be, and all nearly equally long.
  [[nodiscard]] static std::size_t chunk_size(std::size_t count, std::size_t width) noexcept;

  template <class T>
  void add_within_host(const Chunk& chunk, T* sums) {
    T* to = sums + chunk.begin;
    for (const OwnPart& part : chunk.parts) {
      const Given<T> own = given<T>(part);
      if (own.sources.empty()) {
        std::fill_n(to, part.range.size(), T{0});
      } else {
        const std::array<T*, 1> target{to};
        SumTask<T> task{.targets = target, .sources = own.sources, .count = part.range.size()};
        if (!own.are_all_weighted) task.weights = own.weights.data();
        static_cast<void>(sum_counted(task));
      }
      to += part.range.size();
    }
    num_bytes_ += 2 * (chunk.end - chunk.begin) * sizeof(T);  // on the network
  }

  // Leaves the means where they belong on this host.
  template <class T>
  [[nodiscard]] bool spread(const Chunk& chunk, const T* sums) {
    bool is_finite = true;
    const T* from = sums + chunk.begin;
    for (const OwnPart& part : chunk.parts) {
      is_finite &= write_mean<T>(part, [&](std::span<T* const> targets) {
        const std::array<const T*, 1> source{from};
        return sum_counted(SumTask<T>{
            .targets = targets, .sources = source, .divisor = static_cast<T>(samples_), .count = part.range.size()});
      });
      from += part.range.size();
    }
    return is_finite;
  }

  Worker* worker_;
  HostMemory* memory_;
  const ShownGradients* shown_;
  double samples_;
  std::uint64_t num_bytes_ = 0;
};
// Ends with the worker, on its thread. Tensors may live on.
struct WorkerPool {
  static constexpr std::string_view extension_name = "torch.pool";
  std::optional<PoolBinding> binding{};
};
[[nodiscard]] bool has_replaced_storage(const std::vector<GradientSlot>& slots);
// All ranks call it when a pass has told them that one of them has replaced some; what all have replaced alike may
// stay, and what nobody has replaced is not looked at. Throws: ConfigError on all ranks if a weight is not rank 0's.
void compare_replaced(Worker& worker, std::vector<GradientSlot>& slots);
// The worker's one exchange. Destroyed with the worker, and with it the hooks' effect.
struct Gradients {
  static constexpr std::string_view extension_name = "torch.gradients";
  std::shared_ptr<GradientExchange> exchange{};

  Gradients() = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients();
};

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
static_assert(Stateful<CommHookState>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
[[nodiscard]] std::string name_of_weight(Worker& worker, const at::Tensor& parameter);
// Throws: ConfigError if something else than the parameter has its memory. where: it is about to be moved.
void refuse_other_owner(Worker& worker, const at::Tensor& parameter, std::string_view where);
[[noreturn]] void refuse_replaced(Worker& worker, const at::Tensor& parameter, std::string_view where);
// Throws: ConfigError if what an update would use holds the gradient of the step before as well.
void refuse_mixed(Worker& worker, const at::Tensor& parameter, const GradientPiece& piece);
// The weights in the memory of a host's first rank that other processes look at. They are freed with the worker if
// nobody does any more; otherwise they stay as long as the process does, for a freed block is written to.
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
  ~SharedWeightsOfWorker();

  // Frees the weights that nobody looks at any more.
  void drop_unused();
};

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
static_assert(Stateful<GradScaler>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
// Makes tensors of the blocks of a Dataset: its own on the thread that reads ahead, so that the loop need not wait for
// them; a user's on the loop's, whose generators it may use.
class DatasetBatches final : public BatchSource {
 public:
  // feed: as an EpochReader's; may be nullptr. warn: told of what was left out when a loop has ended, and once, where
  // the workers divide the dataset, that the feed is not all that is read from.
  DatasetBatches(Dataset dataset, const LoaderOptions& options, const BatchShares& shares, at::Device device,
                 std::shared_ptr<HostFeed> feed, std::function<void(const std::string&)> warn);

  DatasetBatches(const DatasetBatches&) = delete;
  DatasetBatches& operator=(const DatasetBatches&) = delete;
  ~DatasetBatches() override;

  void open(const EpochPosition& from) override;

  [[nodiscard]] std::optional<LoadedPart> next(const Deadline& deadline) override;

  [[nodiscard]] bool waits_for_others() const noexcept override { return true; }
  [[nodiscard]] bool is_ready() override;

  void close() noexcept override;

 private:
  // Losses and gradients are weighted by the samples that were given, so the data must be of as many.
  void check_collated(const LoadedPart& part) const;
  void tell_of_skipped();

  void tell_of_being_alone();

  using Tensors = std::pair<at::Tensor, at::Tensor>;

  [[nodiscard]] Tensors collated(const Block& block) const;

  [[nodiscard]] static std::size_t bytes_of(const at::Tensor& tensor);

  Dataset dataset_;
  std::shared_ptr<HostFeed> feed_;
  std::function<void(const std::string&)> warn_;
  bool is_alone_ = false;
  std::map<std::string, std::uint64_t> told_of_;   // samples that were left out, by source
  std::function<Tensors(const Block&)> collate_;     // the user's
  std::function<MadeOfBlock(const Block&)> make_;  // otherwise
  double padding_;
  at::Device device_;
  bool is_pinned_;  // what is made of blocks
  EpochOptions reading_;
  std::optional<EpochReader> reader_;
};

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
static_assert(Stateful<Loader>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

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
  explicit Directions(std::uint64_t seed);
  [[nodiscard]] double operator()(std::size_t index) const;

 private:
  std::uint64_t seed_;
};
// One sum of a bucket's matrices as low-rank products, beside parts that are summed exactly.
class LowRankSum {
 public:
  LowRankSum(Worker& worker, std::int64_t rank, std::uint64_t seed);

  [[nodiscard]] bool is_empty() const noexcept;

  // Says whether two thin matrices are less to send.
  [[nodiscard]] bool gains(const at::Tensor& part) const;

  // Takes a part in, which is a contiguous view into the bucket.
  void add(PowerSgdMemory::Entry& entry, std::size_t id, const at::Tensor& part);

  void run(const std::vector<at::Tensor>& exact);

 private:
  struct Matrix {
    at::Tensor values{};  // (n, m): a view into the bucket
    PowerSgdMemory::Entry* entry = nullptr;
    Directions directions{0};
    at::Tensor left{};  // (n, rank)
  };

  // Sums all pieces as one buffer. Returns whether the sums are finite, which all ranks see alike.
  [[nodiscard]] bool sum(const std::vector<at::Tensor>& pieces);

  // The step will be skipped: what was left out before stays to be sent.
  void spoil();

  static void finish(const Matrix& matrix, const at::Tensor& own, const at::Tensor& right);

  Worker* worker_;
  std::int64_t rank_;
  std::uint64_t seed_;
  std::vector<Matrix> matrices_;
};

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
static_assert(StatefulCommHook<PowerSgdHook>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
// Has the parts of another source copied to a GPU while the loop computes: the next one from when a part has been
// given, if it is there already; else as soon as it is asked for, which the host does ahead of the GPU. What is read on
// the loop's thread is not read ahead: users' functions would draw their random numbers before those of the step, and
// not see what it does to their data.
class GpuBatches final : public BatchSource {
 public:
  GpuBatches(std::unique_ptr<BatchSource> source, at::Device gpu, std::size_t bound_bytes);

  void open(const EpochPosition& from) override;

  [[nodiscard]] std::optional<LoadedPart> next(const Deadline& deadline) override;

  [[nodiscard]] bool waits_for_others() const noexcept override { return true; }
  [[nodiscard]] bool is_ready() override;

  void close() noexcept override;

 private:
  [[nodiscard]] std::optional<LoadedPart> fetch(const Deadline& deadline);

  // What fails here belongs to the next part.
  void begin_next(const Deadline& deadline) noexcept;

  void forget() noexcept;

  std::unique_ptr<BatchSource> source_;
  GpuCopies copies_;
  std::optional<LoadedPart> ahead_;
  std::exception_ptr failure_{};
};
[[nodiscard]] std::pair<at::Tensor, at::Tensor> select_rows(const std::pair<at::Tensor, at::Tensor>& tensors,
                                                                   std::span<const std::size_t> indices);
// Returns the indices of so many rows, from the first to the last.
[[nodiscard]] at::Tensor spread_rows(std::int64_t rows, std::int64_t count);
// Says of a rank's own data what must be alike: how many batches there are, where that is known. How large they are may
// differ, for gradients are weighted with samples.
[[nodiscard]] std::string order_of_own(const BatchShares& shares, std::optional<std::uint64_t> num_samples);
// Adds a tensor of samples; of a large one some, from the first to the last.
void take_stock_of(const at::Tensor& tensor, std::string_view name, DataStock& stock);
// Throws: ConfigError on all ranks if they have not equally many samples, where each has a part of its own.
void check_equal_parts(Worker& worker, std::optional<std::uint64_t> num_samples);
// Are a worker's ends through which it reads with others what each gets as a whole, by what it reads and how. They live
// as long as the worker, so that one that makes more loaders of it than others still meets them.
class WholeFeeds {
 public:
  static constexpr std::string_view extension_name = "torch.whole_feeds";
  static constexpr std::size_t most_feeds = 16;

  // Returns what is read by that name; nothing yet where it is new. Of more than so many, those that no loader has had
  // for longest go, for where the arguments of each epoch are others, they would pile up.
  [[nodiscard]] std::shared_ptr<HostFeed>& at(const std::string& what);
  [[nodiscard]] std::size_t size() const noexcept { return feeds_.size(); }

 private:
  std::vector<std::pair<std::string, std::shared_ptr<HostFeed>>> feeds_;  // that was asked for last comes last
};
// Returns what lets the workers of a host read a stream once, or what each gets as a whole; nullptr where each reads
// what it needs by itself.
[[nodiscard]] std::shared_ptr<HostFeed> feed_for(Worker& worker, const Dataset& dataset,
                                                        const BatchShares& shares, const LoaderOptions& options,
                                                        bool reads_alone);
// Groups are of the size that the user gave, for the order must not depend on the number of workers.
[[nodiscard]] Dataset bucketed(const Dataset& dataset, const LoaderOptions& options);
// Casts as it was done before, for as long as it lives. What is cast meanwhile belongs to a graph of its own, and so
// does what was cast around it.
class ReplayedAutocast {
 public:
  explicit ReplayedAutocast(const AutocastState& then);
  ReplayedAutocast(const ReplayedAutocast&) = delete;
  ReplayedAutocast& operator=(const ReplayedAutocast&) = delete;
  ~ReplayedAutocast();

 private:
  AutocastState before_{};
};
// Keeps no casts for as long as it lives: a cast of a weight that is made while gradients are off leads nowhere.
class NoKeptCasts {
 public:
  NoKeptCasts();
  NoKeptCasts(const NoKeptCasts&) = delete;
  NoKeptCasts& operator=(const NoKeptCasts&) = delete;
  ~NoKeptCasts();

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};
// Writes a saved tensor to where a module's is: of weights that ranks share, this rank's piece.
void put_tensor(const SavedTensor& saved, const at::Tensor& target);

}
}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
static_assert(Stateful<TorchRandom>);

}

#endif

#if (defined(RAILYARD_WITH_TORCH) && RAILYARD_WITH_TORCH)

namespace railyard::inline v0_1 {
namespace detail {
// Lets modules hold their worker weakly: they may outlive it.
struct JoinedNorms {
  static constexpr std::string_view extension_name = "torch.joined_norms";
  std::shared_ptr<Worker> worker{};  // owns nothing
};

}
}

#endif
