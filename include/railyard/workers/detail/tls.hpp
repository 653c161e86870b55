// SPDX-License-Identifier: MIT
// TLS 1.3 on a connected socket whose two ends share a key, by OpenSSL's libssl. Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Of a process, as subject, that is set otherwise than another one.
[[nodiscard]] inline std::string tls_misfit_text(std::string_view subject, bool is_by_tls, std::string_view other) {
  return compose(
      "{} is set to go {} TLS, and {} {} it: set ScalingConfig::launch.tls, or RAILYARD_TLS, to the same in all "
      "processes",
      subject, is_by_tls ? "by" : "without", other, is_by_tls ? "without" : "by");
}

/// Keeps a process from being forked while one of its threads is inside libssl: locks that are held at that moment
/// would stay held in the child for ever. Many threads may be inside at once.
class TlsGate {
 public:
  static constexpr std::size_t num_doors = 16;

  /// Returns the mutex to hold while inside. Sessions share them in turn.
  [[nodiscard]] static std::mutex& next_door() {
    TlsGate& gate = instance();
    return gate.doors_[gate.next_.fetch_add(1, std::memory_order_relaxed) % num_doors];
  }

 private:
  TlsGate() {
    const auto close = [] {
      for (std::mutex& door : instance().doors_) door.lock();
    };
    const auto open = [] {
      for (std::mutex& door : instance().doors_) door.unlock();
    };
    if (const int error = ::pthread_atfork(close, open, open); error != 0) throw_system("TLS: pthread_atfork", error);
  }
  static TlsGate& instance() {
    static TlsGate gate;
    return gate;
  }

  std::array<std::mutex, num_doors> doors_{};
  std::atomic<std::size_t> next_{0};
};

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
  TlsSession(int fd, TlsRole role, const Digest& key, std::uint64_t bytes_per_key)
      : fd_(fd), door_(&TlsGate::next_door()), key_(key), bytes_per_key_(bytes_per_key) {
    const std::lock_guard inside{*door_};
    SSL_CTX* const context = shared_context();
    ssl_.reset(SSL_new(context));
    BIO* const bio = ssl_ ? BIO_new(shared_method()) : nullptr;
    check(bio != nullptr);
    BIO_set_data(bio, this);
    SSL_set_bio(ssl_.get(), bio, bio);
    check(SSL_set_app_data(ssl_.get(), this) == 1);
    if (role == TlsRole::client) {
      SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_accept_state(ssl_.get());
    }
  }
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession() {
    OPENSSL_cleanse(key_.data(), key_.size());
    const std::lock_guard inside{*door_};
    ssl_.reset();
  }

  /// Goes on with the handshake as far as it gets at once. Nothing is sent or received before it is ready.
  State shake_hands() noexcept {
    if (state_ != State::shaking) return state_;
    const std::lock_guard inside{*door_};
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) {
      // Only the key makes the other end the one that is meant.
      const bool is_meant = SSL_session_reused(ssl_.get()) == 1 && SSL_version(ssl_.get()) == TLS1_3_VERSION;
      state_ = is_meant ? State::ready : State::failed;
      if (!is_meant) trouble_ = "it has not used the key";
      OPENSSL_cleanse(key_.data(), key_.size());
    } else {
      const int error = outcome(result);
      events_ = wants_to_write_ ? POLLOUT : POLLIN;
      if (error != EAGAIN) state_ = State::failed;
    }
    return state_;
  }
  /// What to wait for before the next shake_hands(), as poll() has it.
  [[nodiscard]] short events() const noexcept { return events_; }

  /// As ::send() and ::recv() that do not wait: -1 and errno if nothing goes. Who was told so by send() offers the same
  /// bytes again, and may offer more. EBADMSG: what has come was not made by the other end; see trouble().
  [[nodiscard]] ssize_t send(std::span<const std::byte> bytes) noexcept {
    return transfer(bytes.empty(), EPIPE, [&](std::size_t& count) {
      const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
      sent_by_key_ += count;
      if (sent_by_key_ < bytes_per_key_) return result;
      sent_by_key_ = 0;
      return SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1 ? result : 0;  // goes before what comes next
    });
  }
  [[nodiscard]] ssize_t receive(std::span<std::byte> bytes) noexcept {
    return transfer(bytes.empty(), 0,
                    [&](std::size_t& count) { return SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &count); });
  }
  /// Is something here that was read from the socket, so that poll() does not show it? Not once receive() has returned
  /// that nothing is there.
  [[nodiscard]] bool has_received() const noexcept { return SSL_pending(ssl_.get()) > 0; }

  /// Has the other end gone, without a word of why?
  [[nodiscard]] bool has_ended() const noexcept { return has_ended_ || error_ != 0; }
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

  static void check(bool went_well) {
    if (!went_well) {
      throw Error{
          "libssl cannot do TLS 1.3 here: see that OpenSSL 3 and its default provider are installed, and that no "
          "setting of the system (openssl.cnf) forbids TLS_AES_128_GCM_SHA256 or X25519"};
    }
  }

  static SSL_CTX* shared_context() {
    static const Context context = make_context();
    return context.get();
  }
  static Context make_context() {
    Context context{SSL_CTX_new(TLS_method())};
    SSL_CTX* const one = context.get();
    check(one != nullptr && SSL_CTX_set_min_proto_version(one, TLS1_3_VERSION) == 1 &&
          SSL_CTX_set_max_proto_version(one, TLS1_3_VERSION) == 1 &&
          SSL_CTX_set_ciphersuites(one, "TLS_AES_128_GCM_SHA256") == 1 &&
          SSL_CTX_set1_groups_list(one, "X25519:P-256") == 1 && SSL_CTX_set_num_tickets(one, 0) == 1 &&
          SSL_CTX_set_max_early_data(one, 0) == 1 && SSL_CTX_set_recv_max_early_data(one, 0) == 1);
    SSL_CTX_set_options(one, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(one, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_session_cache_mode(one, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(one,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_cert_verify_callback(
        one, [](X509_STORE_CTX*, void*) { return 0; }, nullptr);  // who has no key has nothing to show
    SSL_CTX_set_psk_use_session_callback(one, offer_key);
    SSL_CTX_set_psk_find_session_callback(one, find_key);
    return context;
  }

  // What goes through the socket goes without SIGPIPE.
  static const BIO_METHOD* shared_method() {
    static const Method method = make_method();
    return method.get();
  }
  static Method make_method() {
    Method method{BIO_meth_new(BIO_TYPE_SOURCE_SINK, "railyard's socket")};
    check(method != nullptr && BIO_meth_set_write(method.get(), write) == 1 &&
          BIO_meth_set_read(method.get(), read) == 1 && BIO_meth_set_ctrl(method.get(), control) == 1 &&
          BIO_meth_set_create(method.get(), create) == 1);
    return method;
  }
  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }
  static long control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
    if (command == BIO_CTRL_EOF) return static_cast<const TlsSession*>(BIO_get_data(bio))->has_ended_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static int write(BIO* bio, const char* bytes, int size) {
    auto& self = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    return self.moved(bio, ::send(self.fd_, bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT),
                      BIO_FLAGS_WRITE);
  }
  static int read(BIO* bio, char* bytes, int size) {
    auto& self = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const ssize_t got = ::recv(self.fd_, bytes, static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (got == 0) self.has_ended_ = true;
    return self.moved(bio, got, BIO_FLAGS_READ);
  }
  [[nodiscard]] int moved(BIO* bio, ssize_t count, int direction) noexcept {
    if (count >= 0) return static_cast<int>(count);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      BIO_set_flags(bio, direction | BIO_FLAGS_SHOULD_RETRY);
    } else {
      error_ = errno;
    }
    return -1;
  }

  // Returns nullptr if libssl has no memory for it.
  [[nodiscard]] Session key_as_session(SSL* ssl) const noexcept {
    constexpr unsigned char suite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
    Session session{SSL_SESSION_new()};
    const bool is_made = session != nullptr &&
                         SSL_SESSION_set1_master_key(session.get(), reinterpret_cast<const unsigned char*>(key_.data()),
                                                     key_.size()) == 1 &&
                         SSL_SESSION_set_cipher(session.get(), SSL_CIPHER_find(ssl, suite)) == 1 &&
                         SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
    return is_made ? std::move(session) : nullptr;
  }
  static int offer_key(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** name, std::size_t* name_size,
                       SSL_SESSION** offered) {
    const auto* const self = static_cast<const TlsSession*>(SSL_get_app_data(ssl));
    *name = reinterpret_cast<const unsigned char*>(identity.data());
    *name_size = identity.size();
    *offered = self->key_as_session(ssl).release();
    return *offered != nullptr ? 1 : 0;
  }
  static int find_key(SSL* ssl, const unsigned char* name, std::size_t name_size, SSL_SESSION** found) {
    const auto* const self = static_cast<const TlsSession*>(SSL_get_app_data(ssl));
    const bool is_ours = std::string_view{reinterpret_cast<const char*>(name), name_size} == identity;
    *found = is_ours ? self->key_as_session(ssl).release() : nullptr;
    return 1;
  }

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
  [[nodiscard]] int outcome(int result) noexcept {
    const int kind = SSL_get_error(ssl_.get(), result);
    wants_to_write_ = kind == SSL_ERROR_WANT_WRITE;
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return EAGAIN;
    if (has_ended_ || kind == SSL_ERROR_ZERO_RETURN) {
      trouble_ = "it has hung up";
      return 0;
    }
    if (error_ != 0) {
      trouble_ = "it has gone";
      return error_;
    }
    const unsigned long code = ERR_peek_error();
    const char* const text = ERR_reason_error_string(code);
    trouble_ = ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_BINDER_DOES_NOT_VERIFY
                   ? "it does not know the secret of this run"
               : text != nullptr ? text
                                 : "TLS has failed";
    return EBADMSG;
  }

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
  std::unique_ptr<SSL, Free<SSL_free>> ssl_{};  // uses what stands above
};

}  // namespace detail
}  // namespace railyard::inline v0_1
