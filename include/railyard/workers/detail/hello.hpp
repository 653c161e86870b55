// SPDX-License-Identifier: MIT
// How two processes prove to each other that they know the run's secret before either believes a byte. Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

inline constexpr std::size_t max_hello_bytes = std::size_t{64} << 10U;

/// Throws: ConfigError if it is larger than a listener takes.
[[nodiscard]] inline std::vector<std::byte> encode_hello(const Hello& hello) {
  WireWriter writer;
  writer.put(hello.kind);
  writer.put(hello.generation);
  writer.put(hello.process);
  writer.put_text(hello.job);
  writer.put_rest(text_bytes(hello.payload));
  if (writer.bytes().size() <= max_hello_bytes) return writer.bytes();
  throw ConfigError{compose("a hello of {} bytes is too large: name of the job and payload together may have about {}",
                            writer.bytes().size(), max_hello_bytes)};
}

/// Throws: DataError if it is none.
[[nodiscard]] inline Hello decode_hello(ConstBytes bytes) {
  WireReader reader{bytes};
  Hello hello{.kind = reader.take<HelloKind>()};
  if (hello.kind != HelloKind::agent && hello.kind != HelloKind::store) {
    throw DataError{compose("a hello is of the unknown kind {}", static_cast<int>(hello.kind))};
  }
  hello.generation = reader.take<std::uint32_t>();
  hello.process = reader.take<std::int32_t>();
  hello.job = reader.take_text();
  const ConstBytes rest = reader.take_rest();
  hello.payload.assign(reinterpret_cast<const char*>(rest.data()), rest.size());
  return hello;
}

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

  [[nodiscard]] static Opening make(const Magic& magic = at_length) {
    Opening opening{.magic = magic};
    fill_random(opening.nonce);
    return opening;
  }
  [[nodiscard]] ConstBytes bytes() const noexcept { return std::as_bytes(std::span{this, 1}); }

  [[nodiscard]] bool has_ticket() const noexcept { return magic == by_ticket || magic == by_ticket_by_tls; }
  /// Is all that comes after the openings encrypted?
  [[nodiscard]] bool is_by_tls() const noexcept { return magic == at_length_by_tls || magic == by_ticket_by_tls; }

  /// Returns what is wrong with the magic; empty if nothing is.
  [[nodiscard]] std::string complaint() const {
    if (magic == at_length || has_ticket() || is_by_tls()) return {};
    if (!std::equal(magic.begin(), magic.end() - 1, at_length.begin())) return "it does not speak Railyard's protocol";
    return compose("it speaks version {} of the protocol, and this program version {}: build both from one release",
                   magic[7] - '0', at_length[7] - '0');
  }
};
static_assert(sizeof(Opening) == 40);

/// Is what a listener gives to those who have proven themselves, for them and the processes they start: its opening of
/// all connections that are made by ticket, so that nobody has to wait for one. Not secret.
using Ticket = Opening;

/// Is what both sides have seen of a handshake. Proofs and keys cover all of it, so that none can be used a second time
/// or for another connection; the labels keep what one side sends from being sent back as the other's.
class Transcript {
 public:
  Transcript(const Opening& client, const Opening& server, ConstBytes hello) noexcept
      : client_(client.bytes()), server_(server.bytes()), hello_(hello) {}

  [[nodiscard]] Digest client_proof(const Hmac& secret) const { return sign(secret, "railyard: the client's proof"); }
  /// The key of the TLS, under which the hello goes: it is of the openings alone.
  [[nodiscard]] Digest tls_key(const Hmac& secret) const {
    return Hmac{secret}.of({text_bytes("railyard: the connection's TLS"), client_, server_});
  }
  /// What the client's frames are authenticated with, and the server's, of which the first is the server's proof.
  [[nodiscard]] Hmac client_key(const Hmac& secret) const { return key(secret, "railyard: the client's frames"); }
  [[nodiscard]] Hmac server_key(const Hmac& secret) const { return key(secret, "railyard: the server's frames"); }

 private:
  [[nodiscard]] Digest sign(const Hmac& secret, std::string_view label) const {
    return Hmac{secret}.of({text_bytes(label), client_, server_, hello_});
  }
  [[nodiscard]] Hmac key(const Hmac& secret, std::string_view label) const {
    Digest key = sign(secret, label);
    Hmac keyed = secret.with_key(key);
    OPENSSL_cleanse(key.data(), key.size());
    return keyed;
  }

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
  ServerHandshake(const Hmac& secret, const Ticket& ticket)
      : secret_(&secret), ticket_(&ticket), input_(sizeof client_.magic) {}

  [[nodiscard]] State state() const noexcept { return state_; }
  /// Where the next bytes go.
  [[nodiscard]] std::span<std::byte> room() noexcept { return std::span{input_}.subspan(filled_); }
  /// Takes what has been put into room(), and returns what the client is to be sent.
  [[nodiscard]] ConstBytes take(std::size_t num_bytes) {
    filled_ += num_bytes;
    if (state_ != State::waiting || filled_ < input_.size()) return {};
    switch (step_) {
      case Step::magic:
        return take_magic();
      case Step::nonce:
        return take_nonce();
      case Step::size:
        return take_size();
      case Step::hello:
        return take_hello();
    }
    return {};
  }

  /// Returns the key of the TLS once, when all that is to come goes by it.
  [[nodiscard]] std::optional<Digest> take_tls_key() {
    if (!std::exchange(begins_tls_, false)) return std::nullopt;
    return Transcript{client_, server_, {}}.tls_key(*secret_);
  }

  /// Has anything come at all?
  [[nodiscard]] bool is_untouched() const noexcept { return step_ == Step::magic && filled_ == 0; }
  /// Why it was refused.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }
  /// The client's: no other connection has the same nonce, unless somebody repeats what he has heard.
  [[nodiscard]] const Opening& opening() const noexcept { return client_; }
  /// What the client says of itself, once it is proven.
  [[nodiscard]] Hello& hello() noexcept { return hello_; }
  [[nodiscard]] SessionKeys keys() const {
    return {.outgoing = transcript().server_key(*secret_), .incoming = transcript().client_key(*secret_)};
  }

 private:
  enum class Step : std::uint8_t { magic, nonce, size, hello };

  ConstBytes refuse(std::string why) {
    state_ = State::refused;
    refusal_ = std::move(why);
    return {};
  }

  void expect(Step step, std::size_t total_bytes) {
    step_ = step;
    input_.resize(total_bytes);
  }

  ConstBytes take_magic() {
    std::memcpy(client_.magic.data(), input_.data(), client_.magic.size());
    if (std::string why = client_.complaint(); !why.empty()) return refuse(std::move(why));
    expect(Step::nonce, sizeof(Opening));
    return {};
  }

  ConstBytes take_nonce() {
    std::memcpy(client_.nonce.data(), input_.data() + client_.magic.size(), client_.nonce.size());
    filled_ = 0;
    expect(Step::size, sizeof(std::uint32_t));
    begins_tls_ = client_.is_by_tls();
    server_ = client_.has_ticket() ? *ticket_ : Opening::make(client_.magic);
    return client_.has_ticket() ? ConstBytes{} : server_.bytes();
  }

  ConstBytes take_size() {
    std::uint32_t size = 0;
    std::memcpy(&size, input_.data(), sizeof size);
    if (size > max_hello_bytes) return refuse(compose("its hello claims to have {} bytes", size));
    filled_ = 0;
    expect(Step::hello, size + sizeof(Digest));
    return {};
  }

  ConstBytes take_hello() {
    if (!are_equal(transcript().client_proof(*secret_), ConstBytes{input_}.last(sizeof(Digest)))) {
      return refuse("it does not know the secret of this run");
    }
    try {
      hello_ = decode_hello(hello_bytes());
    } catch (const DataError& error) {
      return refuse(error.what());
    }
    state_ = State::proven;
    return {};
  }

  [[nodiscard]] ConstBytes hello_bytes() const noexcept {
    return ConstBytes{input_}.first(input_.size() - sizeof(Digest));
  }
  [[nodiscard]] Transcript transcript() const noexcept { return {client_, server_, hello_bytes()}; }

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
  std::string refusal_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
