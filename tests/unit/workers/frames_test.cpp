// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/frames.hpp"

#include "network_support.hpp"
#include "support/catch.hpp"

using namespace network_test;
using ry::detail::Frame;
using ry::detail::FrameReader;
using ry::detail::FrameWriter;

namespace {

std::vector<Frame> read_frames(FrameReader& reader, std::span<const std::byte> bytes,
                               std::size_t at_once = std::size_t{1} << 30U) {
  std::vector<Frame> frames;
  while (!bytes.empty()) {
    const auto room = reader.room();
    const std::size_t count = std::min({room.size(), bytes.size(), at_once});
    std::copy_n(bytes.begin(), count, room.begin());
    bytes = bytes.subspan(count);
    if (auto frame = reader.take(count)) frames.push_back(std::move(*frame));
  }
  return frames;
}

std::vector<std::byte> written(std::initializer_list<std::string_view> messages) {
  FrameWriter writer{run_secret(), 1000};
  for (const std::string_view message : messages) writer.put(9, {bytes(message)});
  return {writer.unsent().begin(), writer.unsent().end()};
}

}  // namespace

TEST_CASE("Frames: come out as they went in, in whatever pieces they come") {
  const std::string large(700'000, 'x');
  FrameWriter writer{run_secret(), 1'000'000};
  writer.put(1, {});
  writer.put(2, {bytes("two "), {}, bytes("pieces")});
  writer.put(3, {bytes(large)});
  for (const std::size_t at_once : {std::size_t{1}, std::size_t{5}, std::size_t{64}, std::size_t{1} << 20U}) {
    FrameReader reader{run_secret(), 1'000'000};
    const auto frames = read_frames(reader, writer.unsent(), at_once);
    REQUIRE(frames.size() == 3);
    CHECK(frames[0].type == 1);
    CHECK(frames[0].payload.empty());
    CHECK(frames[1].type == 2);
    CHECK(frames[1].text() == "two pieces");
    CHECK(frames[2].type == 3);
    CHECK(frames[2].text() == large);
    CHECK_FALSE(reader.is_inside());
  }
}

TEST_CASE("FrameWriter: knows what is still to be sent") {
  FrameWriter writer{run_secret(), 1000};
  CHECK(writer.unsent().empty());
  writer.put(1, {bytes("abc")});
  const std::vector<std::byte> all{writer.unsent().begin(), writer.unsent().end()};
  CHECK(all.size() == ry::detail::frame_head_bytes + 3 + ry::detail::frame_code_bytes);
  writer.mark_sent(5);
  writer.put(2, {});
  CHECK(text(writer.unsent()).substr(0, 3) == "abc");
  writer.mark_sent(writer.unsent().size());
  CHECK(writer.unsent().empty());
  CHECK_THROWS_WITH(writer.put(1, {bytes(std::string(1001, 'x'))}), ContainsSubstring("1001 bytes"));
}

TEST_CASE("FrameReader: refuses a frame of which a single bit was altered") {
  const auto original = written({"a message"});
  for (std::size_t bit = 0; bit < 8 * original.size(); ++bit) {
    if (bit >= 8 && bit < 32) continue;  // a size beyond what is there or allowed: below
    auto altered = original;
    altered[bit / 8] ^= std::byte{1} << (bit % 8);
    altered.resize(altered.size() + 300);  // a larger size is satisfied as well
    FrameReader reader{run_secret(), 1000};
    CHECK_THROWS_AS(read_frames(reader, altered), ry::DataError);
  }
}

TEST_CASE("FrameReader: refuses frames that were repeated, left out, moved, sent back, or come from elsewhere") {
  const auto both = written({"one", "two"});
  const auto first = std::span{both}.first(both.size() / 2);
  const auto second = std::span{both}.last(both.size() / 2);
  const auto read_after = [](std::span<const std::byte> one, std::span<const std::byte> other, const Hmac& key) {
    FrameReader reader{key, 1000};
    (void)read_frames(reader, one);
    (void)read_frames(reader, other);
  };
  CHECK_NOTHROW(read_after(first, second, run_secret()));
  CHECK_THROWS_WITH(read_after(first, first, run_secret()), ContainsSubstring("altered"));
  CHECK_THROWS_AS(read_after(second, first, run_secret()), ry::DataError);
  CHECK_THROWS_AS(read_after(second, {}, run_secret()), ry::DataError);
  CHECK_THROWS_AS(read_after(first, second, other_secret()), ry::DataError);
}

TEST_CASE("FrameReader: refuses a size beyond its limit, and believes none in advance") {
  FrameReader small{run_secret(), 1000};
  const std::vector<std::byte> head{std::byte{0xe9}, std::byte{3}, std::byte{0}, std::byte{0}, std::byte{1}};
  CHECK_THROWS_WITH(read_frames(small, head), ContainsSubstring("1001 bytes"));

  FrameReader large{run_secret(), std::size_t{1} << 30U};
  const std::vector<std::byte> lie{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0x40}, std::byte{1}};
  CHECK(read_frames(large, lie).empty());
  CHECK(large.room().size() <= std::size_t{1} << 20U);
}
