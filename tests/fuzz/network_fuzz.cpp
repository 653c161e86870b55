// SPDX-License-Identifier: MIT
// Gives what reads from the network whatever libFuzzer comes up with: those who do not know the secret are refused,
// those who do may say what they like, and nobody is answered twice, or with what was never set.
#include "railyard/workers/detail/frames.hpp"
#include "railyard/workers/detail/hello.hpp"
#include "railyard/workers/detail/launcher_bulletin.hpp"
#include "railyard/workers/detail/pmi_lines.hpp"
#include "railyard/workers/detail/store_server.hpp"

#include "railyard/core/detail/hexadecimal.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace ry = railyard;
using namespace ry::detail;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const Ticket& ticket() {
  static const Ticket given = Ticket::make();
  return given;
}

const Hmac& secret() {
  static const Hmac known{text_bytes("a secret that nobody can guess")};
  return known;
}

// Feeds all the bytes in pieces whose sizes come from the bytes themselves.
template <class Reader, class Took>
void feed(Reader& reader, ConstBytes bytes, const Took& took) {
  while (!bytes.empty()) {
    const auto room = reader.room();
    require(!room.empty());
    const std::size_t wanted = std::to_integer<std::size_t>(bytes.front()) % 50 + 1;
    const std::size_t count = std::min({room.size(), bytes.size(), wanted});
    std::copy_n(bytes.begin(), count, room.begin());
    bytes = bytes.subspan(count);
    if (!took(reader.take(count))) return;
  }
}

// Of one who does not know the secret, each byte may be anything.
void try_stranger(ConstBytes bytes) {
  ServerHandshake handshake{secret(), ticket()};
  std::size_t answered = 0;
  feed(handshake, bytes, [&](ConstBytes reply) {
    answered += reply.size();
    return handshake.state() == ServerHandshake::State::waiting;
  });
  require(handshake.state() != ServerHandshake::State::proven);
  require(answered <= sizeof(Opening));
}

// Of one who does, the hello may be.
void try_member(ConstBytes hello) {
  ServerHandshake handshake{secret(), ticket()};
  const Opening client = Opening::make();
  Opening server{};
  feed(handshake, client.bytes(), [&](ConstBytes reply) {
    if (!reply.empty()) std::memcpy(&server, reply.data(), sizeof server);
    return true;
  });
  WireWriter writer;
  writer.put(static_cast<std::uint32_t>(hello.size()));
  writer.put_rest(hello);
  writer.put_rest(Transcript{client, server, hello}.client_proof(secret()));
  feed(handshake, writer.bytes(), [&](ConstBytes) { return handshake.state() == ServerHandshake::State::waiting; });
  require(handshake.state() != ServerHandshake::State::waiting);
  if (handshake.state() != ServerHandshake::State::proven) return;
  const auto again = encode_hello(handshake.hello());
  require(std::equal(again.begin(), again.end(), hello.begin(), hello.end()));
}

void try_forged_frames(ConstBytes bytes) {
  FrameReader reader{secret(), 1000};
  try {
    feed(reader, bytes, [](const std::optional<Frame>& frame) {
      require(!frame);
      return true;
    });
  } catch (const ry::DataError&) {
  }
}

// What a launcher says: lines that hold what was sent and nothing else, and values of which each is what it would be
// written as again.
void try_launcher(ConstBytes bytes) {
  PmiLineReader reader;
  std::string sent;
  std::string seen;
  for (const std::byte byte : bytes) sent += static_cast<char>(byte);
  const auto look_at = [&](const PmiLine& line) {
    seen += line.text() + "\n";
    require(line.text().size() < PmiLineReader::most_bytes && line.beginning().size() <= 100);
    for (const char* const name : {"cmd", "rc", "kvsname", "value", ""}) {
      const auto value = line.field(name);
      require(!value || (value->find(' ') == std::string_view::npos && line.text().find(*value) != std::string::npos));
    }
    const auto text = from_hexadecimal(line.field("value").value_or(""));
    if (!text) return;
    require(from_hexadecimal(hexadecimal(text_bytes(*text))) == text);
    const auto posting = read_posting(*text);
    require(!posting || read_posting(write_posting(*posting)) == posting);
  };
  try {
    feed(reader, bytes, [&](std::optional<PmiLine> line) {
      for (; line; line = reader.next()) look_at(*line);
      return true;
    });
  } catch (const ry::DataError&) {
  }
  require(sent.starts_with(seen));
}

// Each request begins with a byte for who makes it, one for its type and one for its size.
void try_requests(ConstBytes bytes) {
  StoreServer server;
  std::map<std::string, std::string> known;
  std::set<std::pair<std::uint64_t, std::string>> waiting;
  while (bytes.size() >= 3) {
    const std::uint64_t session = std::to_integer<std::uint64_t>(bytes[0]) % 4;
    const std::size_t size = std::min(std::to_integer<std::size_t>(bytes[2]), bytes.size() - 3);
    const Frame frame{.type = std::to_integer<std::uint8_t>(bytes[1]),
                      .payload = {bytes.begin() + 3, bytes.begin() + 3 + static_cast<std::ptrdiff_t>(size)}};
    bytes = bytes.subspan(3 + size);
    try {
      const auto replies = server.handle(session, frame);
      require(!replies.empty() && replies[0].session == session);
      for (const StoreReply& reply : replies) {
        WireReader reader{reply.payload};
        if (reply.type == StoreFrame::absent) {
          const ConstBytes rest = reader.take_rest();
          const std::string key{reinterpret_cast<const char*>(rest.data()), rest.size()};
          require(known.count(key) == 0);
          waiting.emplace(session, key);
        } else if (reply.type == StoreFrame::value) {
          const std::string key = reader.take_text();
          const ConstBytes rest = reader.take_rest();
          const std::string value{reinterpret_cast<const char*>(rest.data()), rest.size()};
          require(known.try_emplace(key, value).first->second == value);
          require(frame.type == static_cast<std::uint8_t>(StoreFrame::get) || waiting.erase({reply.session, key}) == 1);
        }
      }
    } catch (const ry::DataError&) {
      server.forget(session);
      std::erase_if(waiting, [&](const auto& one) { return one.first == session; });
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ConstBytes bytes = std::as_bytes(std::span{data, size}).subspan(1);
  switch (data[0] % 5) {
    case 0:
      try_stranger(bytes);
      break;
    case 1:
      try_member(bytes);
      break;
    case 2:
      try_forged_frames(bytes);
      break;
    case 3:
      try_launcher(bytes);
      break;
    default:
      try_requests(bytes);
  }
  return 0;
}
