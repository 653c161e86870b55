// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/pmi_space.hpp"

#include "fake_pmi.hpp"

#include "support.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <future>

using namespace workers_test;
using Catch::ContainsSubstring;
using ry::detail::PmiLine;
using ry::detail::PmiLineReader;
using ry::detail::PmiSpace;
using ry::detail::SpaceError;

namespace {

constexpr auto greeting = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=my_kvsname kvsname=kvs_1_0\n";

// Gives the reader some text in pieces of a size; returns the lines.
std::vector<std::string> lines_of(const std::string& text, std::size_t piece) {
  PmiLineReader reader;
  std::vector<std::string> lines;
  const auto bytes = bytes_of(text);
  for (std::size_t at = 0; at < bytes.size();) {
    const auto room = reader.room();
    const std::size_t count = std::min({piece, room.size(), bytes.size() - at});
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), count, room.begin());
    at += count;
    for (auto line = reader.take(count); line; line = reader.next()) lines.push_back(line->text());
  }
  return lines;
}

}  // namespace

TEST_CASE("PmiLine: finds fields by their whole names, the first of several") {
  const PmiLine line{"cmd=get_result rc=0 msg=a=b value=00ff value=1 empty= x"};
  CHECK(line.is("get_result"));
  CHECK_FALSE(line.is("get"));
  CHECK(line.field("value") == "00ff");
  CHECK(line.field("msg") == "a=b");
  CHECK(line.field("empty") == "");
  CHECK_FALSE(line.field("x"));
  CHECK_FALSE(line.field("alue"));
  CHECK_FALSE(line.field(""));
  CHECK(line.succeeded());
  CHECK_FALSE(PmiLine{"cmd=put_result rc=-1"}.succeeded());
  CHECK(PmiLine{"cmd=barrier_out"}.succeeded());
  CHECK_FALSE(PmiLine{""}.field("cmd"));
}

TEST_CASE("PmiLineReader: puts lines together however they come, and takes only so much") {
  const std::string longest(PmiLineReader::most_bytes - 1, 'x');
  for (const std::size_t piece : {1U, 7U, 100'000U}) {
    CHECK(lines_of("cmd=a\n\ncmd=b c=d\nrest", piece) == std::vector<std::string>{"cmd=a", "", "cmd=b c=d"});
    CHECK(lines_of(longest + "\n" + longest + "\n", piece) == std::vector<std::string>{longest, longest});
    CHECK_THROWS_AS(lines_of(longest + "x", piece), ry::DataError);
    CHECK_THROWS_AS(lines_of("cmd=a\ncmd=\x01\n", piece), ry::DataError);
    CHECK_THROWS_AS(lines_of("cmd=\xff", piece), ry::DataError);
  }
}

TEST_CASE("PmiSpace: shows after a fence what all have put") {
  FakePmi launcher{2};
  const auto meet = [&](int process) {
    PmiSpace space{launcher.fd(process), soon()};
    space.put("from-" + std::to_string(process), "value" + std::to_string(process), soon());
    space.come_to_fence(soon());
    if (!space.wait_at_fence(soon())) return std::string{"nobody came"};
    if (space.get(0, "nobody-has-put-this", soon())) return std::string{"something that nobody has put"};
    return space.get(1 - process, "from-" + std::to_string(1 - process), soon()).value_or("nothing");
  };
  auto other = std::async(std::launch::async, meet, 1);
  CHECK(meet(0) == "value1");
  CHECK(other.get() == "value0");
  CHECK(launcher.count("cmd=finalize\n") == 2);  // else a launcher ends the job with the process
}

TEST_CASE("PmiSpace: comes back from a fence at the deadline, and may go on waiting there") {
  FakePmi launcher{2};
  PmiSpace one{launcher.fd(0), soon()};
  PmiSpace other{launcher.fd(1), soon()};
  one.come_to_fence(soon());
  CHECK_FALSE(one.wait_at_fence(ry::Deadline::after(20ms)));
  other.come_to_fence(soon());
  CHECK(one.wait_at_fence(soon()));
  CHECK(other.wait_at_fence(soon()));
}

TEST_CASE("PmiSpace: refuses whatever does not speak PMI") {
  CHECK_THROWS_WITH((PmiSpace{1'000'000, soon()}), ContainsSubstring("no socket"));
  const TemporaryFolder folder;
  const ry::detail::Descriptor file{::open(folder.write("file", "cmd=").c_str(), O_RDWR | O_CLOEXEC)};
  CHECK_THROWS_WITH((PmiSpace{file.get(), soon()}), ContainsSubstring("no socket"));
  const auto talk = [](const std::string& text) {
    const PmiPair pair;
    pair.say(text);
    ::shutdown(pair.launcher.get(), SHUT_WR);
    const PmiSpace space{pair.process.get(), soon()};
  };
  CHECK_NOTHROW(talk(greeting));
  CHECK_THROWS_AS(talk(""), SpaceError);
  CHECK_THROWS_WITH(talk("hello\n"), ContainsSubstring(R"("hello")") && ContainsSubstring("PMI_FD"));
  CHECK_THROWS_WITH(talk(std::string(20'000, 'x')), ContainsSubstring("longer than 4096"));
  CHECK_THROWS_WITH(talk("\x16\x03\x01\n"), ContainsSubstring("talks nonsense"));
  CHECK_THROWS_WITH(talk("cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1\n"), ContainsSubstring("rc=-1"));
  CHECK_THROWS_WITH(talk("cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=\n"), ContainsSubstring("no name"));
  CHECK_THROWS_WITH(talk("cmd=response_to_init rc=0\ncmd=my_kvs"), ContainsSubstring("closed the connection"));
}

TEST_CASE("PmiSpace: waits for a silent launcher no longer than it may") {
  const PmiPair pair;
  CHECK_THROWS_WITH((PmiSpace{pair.process.get(), ry::Deadline::after(20ms)}), ContainsSubstring("20 ms"));
  pair.say(greeting);
  PmiSpace space{pair.process.get(), soon()};
  CHECK_THROWS_WITH(space.get(0, "key", ry::Deadline::after(20ms)), ContainsSubstring("has not answered"));
}

TEST_CASE("PmiSpace: says that the launcher has gone") {
  PmiPair pair;
  pair.say(greeting);
  PmiSpace space{pair.process.get(), soon()};
  space.come_to_fence(soon());
  pair.launcher.reset();
  CHECK_THROWS_WITH(space.wait_at_fence(soon()), ContainsSubstring("closed the connection"));
  CHECK_THROWS_AS(space.put("key", "value", soon()), SpaceError);
}
