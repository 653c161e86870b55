// SPDX-License-Identifier: MIT
// Proofs of knowing a secret: HMAC-SHA256 of OpenSSL's libcrypto, comparison in constant time. Workers room.
#pragma once

#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

using ConstBytes = std::span<const std::byte>;
using Digest = std::array<std::byte, 32>;

[[nodiscard]] inline ConstBytes text_bytes(std::string_view text) noexcept { return std::as_bytes(std::span{text}); }

/// Compares in a time that tells nothing of where they differ.
[[nodiscard]] inline bool are_equal(ConstBytes one, ConstBytes other) noexcept {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

/// Holds a key, in a form that does not show it, and authenticates bytes with it. Only the constructor takes locks of
/// libcrypto: copies may be made, and used, in a process that was forked while other threads worked with libcrypto.
class Hmac {
 public:
  explicit Hmac(ConstBytes key) {
    const std::unique_ptr<EVP_MAC, void (*)(EVP_MAC*)> method{EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr),
                                                              EVP_MAC_free};
    if (method != nullptr) context_.reset(EVP_MAC_CTX_new(method.get()));
    char name[] = "SHA256";
    const OSSL_PARAM settings[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name, 0),
                                   OSSL_PARAM_construct_end()};
    check(context_ != nullptr && EVP_MAC_CTX_set_params(context_.get(), settings) == 1);
    set_key(key);
  }
  Hmac(const Hmac& other) : context_(EVP_MAC_CTX_dup(other.context_.get())) { check(context_ != nullptr); }
  Hmac(Hmac&&) noexcept = default;
  Hmac& operator=(const Hmac&) = delete;
  Hmac& operator=(Hmac&&) noexcept = default;
  ~Hmac() = default;

  /// Returns one that holds another key.
  [[nodiscard]] Hmac with_key(ConstBytes key) const {
    Hmac other{*this};
    other.set_key(key);
    return other;
  }

  /// Authenticates the pieces, one after the other. Cost: about a microsecond, and a nanosecond for two bytes on a
  /// processor that has instructions for it.
  [[nodiscard]] Digest of(std::initializer_list<ConstBytes> pieces) {
    check(EVP_MAC_init(context_.get(), nullptr, 0, nullptr) == 1);
    for (const ConstBytes piece : pieces) update(piece);
    return finish();
  }
  /// The same, for pieces that are counted only at run time and come after a first one.
  [[nodiscard]] Digest of(ConstBytes first, std::span<const ConstBytes> pieces) {
    check(EVP_MAC_init(context_.get(), nullptr, 0, nullptr) == 1);
    update(first);
    for (const ConstBytes piece : pieces) update(piece);
    return finish();
  }

 private:
  struct Free {
    void operator()(EVP_MAC_CTX* context) const noexcept { EVP_MAC_CTX_free(context); }
  };

  static void check(bool went_well) {
    if (!went_well) {
      throw Error{
          "libcrypto cannot compute HMAC-SHA256 here: see that OpenSSL 3 and its default provider are installed"};
    }
  }
  void set_key(ConstBytes key) {
    check(EVP_MAC_init(context_.get(), reinterpret_cast<const unsigned char*>(key.data()), key.size(), nullptr) == 1);
  }
  void update(ConstBytes piece) {
    if (piece.empty()) return;
    check(EVP_MAC_update(context_.get(), reinterpret_cast<const unsigned char*>(piece.data()), piece.size()) == 1);
  }
  [[nodiscard]] Digest finish() {
    Digest digest;
    std::size_t size = 0;
    check(EVP_MAC_final(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &size, digest.size()) == 1);
    return digest;
  }

  std::unique_ptr<EVP_MAC_CTX, Free> context_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
