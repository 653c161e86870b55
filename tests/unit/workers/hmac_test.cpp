// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/hmac.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

using namespace network_test;
using ry::detail::Digest;

namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes) text += ry::detail::compose("{:02x}", std::to_integer<int>(one));
  return text;
}

}  // namespace

TEST_CASE("Hmac: computes what RFC 4231 says") {
  const std::vector<std::byte> key(20, std::byte{0x0b});
  CHECK(hex(Hmac{key}.of({bytes("Hi There")})) == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(Hmac{bytes("Jefe")}.of({bytes("what do ya want "), bytes("for nothing?")})) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::vector<std::byte> long_key(131, std::byte{0xaa});
  CHECK(hex(Hmac{long_key}.of({bytes("Test Using Larger Than Block-Size Key - Hash Key First")})) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("Hmac: begins anew with every message, and copies share nothing") {
  Hmac one = run_secret();
  const Digest expected = one.of({bytes("a message")});
  Hmac copy{one};
  (void)copy.of({bytes("another")});
  CHECK(one.of({bytes("a "), {}, bytes("message")}) == expected);
  CHECK(copy.of({bytes("a message")}) == expected);
  CHECK(one.with_key(bytes("another key")).of({bytes("a message")}) != expected);
  CHECK(one.of({bytes("a message")}) == expected);
}

TEST_CASE("Hmac: works in a forked process") {
  const Hmac secret = run_secret();
  const Digest expected = Hmac{secret}.of({bytes("a message")});
  workers_test::Forked child{[&](const auto&) { return Hmac{secret}.of({bytes("a message")}) == expected ? 0 : 1; }};
  CHECK(child.status() == 0);
}

TEST_CASE("are_equal: compares sizes and contents") {
  CHECK(ry::detail::are_equal(bytes("same"), bytes("same")));
  CHECK(ry::detail::are_equal({}, {}));
  CHECK_FALSE(ry::detail::are_equal(bytes("same"), bytes("sama")));
  CHECK_FALSE(ry::detail::are_equal(bytes("same"), bytes("sam")));
}
