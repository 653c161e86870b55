// SPDX-License-Identifier: MIT
// How two processes come to a key of their own where others can read, but not alter, what they send to each other.
// Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"

#include "railyard/core/error.hpp"

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Is one end of an exchange by X25519 of OpenSSL's libcrypto.
class KeyAgreement {
 public:
  KeyAgreement() : own_(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519")) {
    std::size_t size = public_key_.size();
    check(own_ != nullptr && EVP_PKEY_get_raw_public_key(own_.get(), raw(public_key_), &size) == 1 &&
          size == public_key_.size());
  }

  /// What the other end needs, and everybody may know.
  [[nodiscard]] const Digest& public_key() const noexcept { return public_key_; }

  /// Returns what only the two ends know. other: the public key of the other end.
  /// Throws: DataError if it is no key that anybody has made.
  [[nodiscard]] Digest agree(const Digest& other) const {
    const Key peer{EVP_PKEY_new_raw_public_key_ex(nullptr, "X25519", nullptr, raw(other), other.size())};
    const std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)> context{
        EVP_PKEY_CTX_new_from_pkey(nullptr, own_.get(), nullptr), EVP_PKEY_CTX_free};
    check(peer != nullptr && context != nullptr && EVP_PKEY_derive_init(context.get()) == 1);
    Digest common;
    std::size_t size = common.size();
    if (EVP_PKEY_derive_set_peer(context.get(), peer.get()) != 1 ||
        EVP_PKEY_derive(context.get(), raw(common), &size) != 1 || size != common.size()) {
      throw DataError{"a public key of another process is none: whoever has left it did not make it"};
    }
    return common;
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;

  static unsigned char* raw(Digest& bytes) noexcept { return reinterpret_cast<unsigned char*>(bytes.data()); }
  static const unsigned char* raw(const Digest& bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes.data());
  }
  static void check(bool went_well) {
    if (!went_well) throw Error{"libcrypto cannot do X25519 here: see that OpenSSL 3 and its provider are installed"};
  }

  Key own_;
  Digest public_key_{};
};

/// Hides a text from all who do not know the common key, or shows one that was hidden. The key must be of one text
/// only. It does not tell whether the text was altered: what is hidden here is a secret, which has to be proven.
/// ends: the public keys of both, the same at both ends.
[[nodiscard]] inline std::string hide_or_show(std::string text, const Digest& common,
                                              const std::array<Digest, 2>& ends) {
  Hmac stream{common};
  for (std::size_t at = 0; at < text.size();) {
    const std::array<std::byte, 1> block{static_cast<std::byte>(at / sizeof(Digest))};
    for (const std::byte mask : stream.of({text_bytes("the secret of a run"), ends[0], ends[1], block})) {
      if (at == text.size()) break;
      text[at] = static_cast<char>(std::to_integer<unsigned char>(mask) ^ static_cast<unsigned char>(text[at]));
      ++at;
    }
  }
  return text;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
