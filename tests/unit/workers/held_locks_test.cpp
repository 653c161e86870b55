// SPDX-License-Identifier: MIT
#include "railyard/workers/detail/held_locks.hpp"

#include "support/catch.hpp"
#include "unit/workers/support.hpp"

#include <atomic>
#include <cstdio>
#include <locale>
#include <sstream>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <grp.h>
#include <iconv.h>
#include <libintl.h>
#include <netdb.h>
#include <pwd.h>
#include <semaphore.h>

using namespace workers_test;

#if !defined(__SANITIZE_THREAD__)  // whose own locks stay held as well

namespace {

struct LibraryCall {
  const char* name;
  void (*call)();
};

void look_up(const char* host, int flags) {
  addrinfo wanted{};
  wanted.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host, "1", &wanted, &found) == 0) ::freeaddrinfo(found);
}

const LibraryCall library_calls[] = {
    {"getpwnam", [] { ::getpwnam("root"); }},
    {"getpwuid", [] { ::getpwuid(0); }},
    {"getpwent",
     [] {
       ::setpwent();
       ::getpwent();
     }},
    {"getgrnam", [] { ::getgrnam("root"); }},
    {"getgrgid", [] { ::getgrgid(0); }},
    {"getservbyname", [] { ::getservbyname("tcpmux", "tcp"); }},
    {"getprotobyname", [] { ::getprotobyname("tcp"); }},
    {"gethostbyname", [] { ::gethostbyname("127.0.0.1"); }},
    {"getaddrinfo of this host", [] { look_up(nullptr, AI_NUMERICSERV); }},
    {"getaddrinfo by what protocols there are", [] { look_up("127.0.0.1", AI_ADDRCONFIG | AI_NUMERICSERV); }},
    {"iconv",
     [] {
       const ::iconv_t to = ::iconv_open("UTF-16", "UTF-8");
       if (to != reinterpret_cast<::iconv_t>(-1)) ::iconv_close(to);
     }},
    {"popen",
     [] {
       if (std::FILE* output = ::popen("", "r")) ::pclose(output);
     }},
    {"sem_close",
     [] {
       ::sem_t none{};
       ::sem_close(&none);
     }},
    {"a locale's facets",
     [] {
       std::ostringstream text;
       text.imbue(std::locale{std::locale::classic(), new std::numpunct<char>});
       text << 1.5;
     }},
    {"textdomain", [] { ::textdomain("railyard"); }},
    {"dlopen",
     [] {
       if (void* library = ::dlopen("libBrokenLocale.so.1", RTLD_NOW)) ::dlclose(library);
     }},
};

// In a process of its own, of one thread, that another one was forked from while it called all the time.
int call_after_fork(void (*call)()) {
  if (!ry::detail::are_library_locks_free(soon())) return 0;
  ::alarm(20);
  call();
  return 0;
}

}  // namespace

TEST_CASE(
    "are_library_locks_free: where it says so, none is held of a function that another thread called all the time") {
  for (const LibraryCall& one : library_calls) {
    CAPTURE(one.name);
    Forked caller{[call = one.call](const Forked::Tell&) {
      call();
      std::thread{[call] {  // alone, as some of these are for one thread only
        while (true) call();
      }}
          .detach();
      for (int at = 0; at < 20; ++at) {
        ::usleep(static_cast<useconds_t>(50 * (at % 5)));
        if (Forked{[call](const Forked::Tell&) { return call_after_fork(call); }}.status() != 0) return 1;
      }
      return 0;
    }};
    CHECK(caller.status() == 0);
  }
}

#endif
