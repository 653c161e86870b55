// SPDX-License-Identifier: MIT
// How two ranks prove to each other that they know the run's secret, before either believes a byte of the other's.
// Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"
#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/detail/compose.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a rank sends first to the one it connects to.
struct PairOpening {
  static constexpr std::array<char, 8> plain{'R', 'A', 'I', 'L', 'Y', 'R', 'P', '1'};
  static constexpr std::array<char, 8> by_tls{'R', 'A', 'I', 'L', 'Y', 'R', 'Q', '1'};  ///< from the proofs on
  std::array<char, 8> magic = plain;
  std::array<std::byte, 32> nonce{};
  std::int32_t from = 0;  ///< ranks
  std::int32_t to = 0;

  [[nodiscard]] ConstBytes bytes() const noexcept { return std::as_bytes(std::span{this, 1}); }
  [[nodiscard]] bool is_by_tls() const noexcept { return magic == by_tls; }
};
static_assert(sizeof(PairOpening) == 48);

/// Makes the proofs of a connection. They cover both ends' nonces and where the one that listens does, so that none can
/// be used a second time, or elsewhere; the labels keep what one end sends from being sent back as the other's.
class PairProofs {
 public:
  PairProofs(const Hmac& secret, std::string place) : secret_(secret), place_(std::move(place)) {}

  [[nodiscard]] Digest of(std::string_view label, const PairOpening& opening, ConstBytes nonce) const {
    return Hmac{secret_}.of({text_bytes(label), opening.bytes(), nonce, text_bytes(place_)});
  }

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

  PairHandshake(Socket socket, const PairProofs& proofs) : socket_(std::move(socket)), proofs_(&proofs) {}

  [[nodiscard]] const Socket& socket() const noexcept { return socket_; }
  [[nodiscard]] Socket take_socket() noexcept { return std::move(socket_); }
  /// What to wait for before the next advance(), as poll() has it.
  [[nodiscard]] short events() const noexcept {
    if (is_shaking_) return socket_.shaking_events();
    return said_ < to_say_.size() ? POLLOUT : POLLIN;
  }
  /// Why it has failed.
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }
  [[nodiscard]] const PairOpening& opening() const noexcept { return opening_; }

 protected:
  ~PairHandshake() = default;

  void say(ConstBytes bytes) { to_say_.insert(to_say_.end(), bytes.begin(), bytes.end()); }
  void expect(std::size_t num_bytes) {
    heard_.resize(num_bytes);
    num_heard_ = 0;
  }
  [[nodiscard]] ConstBytes heard() const noexcept { return heard_; }
  [[nodiscard]] State fail(std::string why) {
    trouble_ = std::move(why);
    return State::failed;
  }

  // What is said and heard from now on goes by TLS.
  void begin_tls(TlsRole role) { socket_.encrypt(role, proof(PairProofs::tls)); }

  // Returns proven if all is said and what was expected is heard.
  [[nodiscard]] State talk() {
    const TlsSession::State tls = socket_.shake_hands();
    is_shaking_ = tls == TlsSession::State::shaking;
    if (is_shaking_) return State::waiting;
    if (tls == TlsSession::State::failed)
      return fail(compose("there is no TLS with it: {}", socket_.shaking_trouble()));
    while (said_ < to_say_.size()) {
      const ssize_t sent = socket_.send(ConstBytes{to_say_}.subspan(said_));
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && would_block()) return State::waiting;
      if (sent < 0) return fail(hung_up_text());
      said_ += static_cast<std::size_t>(sent);
    }
    while (num_heard_ < heard_.size()) {
      const ssize_t got = socket_.receive(std::span{heard_}.subspan(num_heard_));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && would_block()) return State::waiting;
      if (got <= 0) return fail(hung_up_text());
      num_heard_ += static_cast<std::size_t>(got);
    }
    return State::proven;
  }

  [[nodiscard]] Digest proof(std::string_view label) const { return proofs_->of(label, opening_, nonce_); }
  [[nodiscard]] bool is_proof(ConstBytes bytes, std::string_view label) const { return are_equal(bytes, proof(label)); }

  PairOpening opening_{};
  std::array<std::byte, 32> nonce_{};  // of the end that listens

 private:
  static bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK; }
  [[nodiscard]] std::string hung_up_text() const {
    return said_ == 0 && num_heard_ == 0 ? "it has left without a word" : "it has left before its proof";
  }

  Socket socket_;
  const PairProofs* proofs_;
  std::vector<std::byte> to_say_{};
  std::size_t said_ = 0;
  std::vector<std::byte> heard_{};
  std::size_t num_heard_ = 0;
  bool is_shaking_ = false;
  std::string trouble_{};
};

/// Is the end that listens. It proves itself first, as it has less to lose: what it signs has the caller's nonce and
/// its own in it.
class PairListening final : public PairHandshake {
 public:
  /// rank: this one's. The proofs outlive it. has_tls: whether this rank is set to go by TLS.
  PairListening(Socket socket, const PairProofs& proofs, int rank, bool has_tls)
      : PairHandshake(std::move(socket), proofs), rank_(rank), has_tls_(has_tls) {
    expect(sizeof opening_.magic);
  }

  [[nodiscard]] State advance() {
    while (true) {
      if (const State state = talk(); state != State::proven) return state;
      switch (step_) {
        case Step::magic:
          std::memcpy(opening_.magic.data(), heard().data(), heard().size());
          if (opening_.magic != PairOpening::plain && !opening_.is_by_tls())
            return fail("it does not speak the protocol of Railyard's ranks");
          expect(sizeof opening_ - sizeof opening_.magic);
          step_ = Step::opening;
          break;
        case Step::opening:
          std::memcpy(reinterpret_cast<std::byte*>(&opening_) + sizeof opening_.magic, heard().data(), heard().size());
          fill_random(nonce_);
          say(nonce_);
          say(proof(PairProofs::listener));
          expect(sizeof(Digest));
          step_ = Step::proof;
          break;
        case Step::proof:
          if (!is_proof(heard(), PairProofs::caller)) return fail("it does not know the secret of this run");
          if (opening_.to != rank_)
            return fail(compose("it looks for rank {}, and this is rank {}", opening_.to, rank_));
          if (opening_.is_by_tls()) begin_tls(TlsRole::server);
          say(proof(is_misfit() ? PairProofs::misfit : PairProofs::welcome));
          expect(0);
          step_ = Step::welcome;
          break;
        case Step::welcome:
          return is_misfit() ? fail(tls_misfit_text("it", opening_.is_by_tls(), compose("rank {}", rank_)))
                             : State::proven;
      }
    }
  }

 private:
  enum class Step : std::uint8_t { magic, opening, proof, welcome };

  [[nodiscard]] bool is_misfit() const noexcept { return opening_.is_by_tls() != has_tls_; }

  int rank_;
  bool has_tls_;
  Step step_ = Step::magic;
};

/// Is the end that connects. It is proven only when the other end has taken it in: until then that may have had no room
/// for it, and it comes again.
class PairCalling final : public PairHandshake {
 public:
  PairCalling(Socket socket, const PairProofs& proofs, int from, int to, bool has_tls)
      : PairHandshake(std::move(socket), proofs) {
    if (has_tls) opening_.magic = PairOpening::by_tls;
    opening_.from = from;
    opening_.to = to;
    fill_random(opening_.nonce);
    say(opening_.bytes());
    expect(sizeof nonce_ + sizeof(Digest));
  }

  /// May the other end have taken it in already, and look at no other call any more?
  [[nodiscard]] bool may_be_taken() const noexcept { return step_ == Step::welcome; }

  [[nodiscard]] State advance() {
    while (true) {
      if (const State state = talk(); state != State::proven) return state;
      switch (step_) {
        case Step::answer:
          std::memcpy(nonce_.data(), heard().data(), nonce_.size());
          if (!is_proof(heard().subspan(nonce_.size()), PairProofs::listener)) {
            return fail("it does not know the secret of this run");
          }
          say(proof(PairProofs::caller));
          expect(0);
          step_ = Step::proof;
          break;
        case Step::proof:
          if (opening_.is_by_tls()) begin_tls(TlsRole::client);
          expect(sizeof(Digest));
          step_ = Step::welcome;
          break;
        case Step::welcome:
          if (is_proof(heard(), PairProofs::welcome)) return State::proven;
          if (is_proof(heard(), PairProofs::misfit))
            return fail(tls_misfit_text("it", !opening_.is_by_tls(), compose("rank {}", opening_.from)));
          return fail("its welcome was altered on its way");
      }
    }
  }

 private:
  enum class Step : std::uint8_t { answer, proof, welcome };

  Step step_ = Step::answer;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
