// SPDX-License-Identifier: MIT
// Takes the locks of the C and C++ libraries that a fork does not free. Workers room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <locale>
#include <sstream>
#include <string>

#include <dlfcn.h>
#include <grp.h>
#include <iconv.h>
#include <libintl.h>
#include <link.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nss.h>
#include <pwd.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Takes the locks of names of users, hosts and services, and asks no server for any.
inline void take_name_locks() {
  for (const char* database : {"passwd", "group", "hosts", "services", "protocols"}) {
    ::__nss_configure_lookup(database, "files");
  }
  // Each function without _r has one of its own.
  ::getpwnam("root");
  ::getpwuid(0);
  ::getgrnam("root");
  ::getgrgid(0);
  ::setpwent();
  ::getpwent();
  ::setgrent();
  ::getgrent();
  ::getservbyname("tcpmux", "tcp");
  ::getservbyport(htons(1), "tcp");
  ::getprotobyname("ip");
  ::getprotobynumber(0);
  ::gethostbyname("127.0.0.1");
  const in_addr own{.s_addr = htonl(INADDR_LOOPBACK)};
  ::gethostbyaddr(&own, sizeof own, AF_INET);

  // Which protocols there are, in what order the addresses of a name are tried, and what resolv.conf says.
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  for (const char* name : {static_cast<const char*>(nullptr), "localhost"}) {
    addrinfo* found = nullptr;
    if (::getaddrinfo(name, "1", &wanted, &found) == 0) ::freeaddrinfo(found);
  }
}

/// Takes those of how texts are written.
inline void take_text_locks() {
  const std::time_t time = 0;
  std::tm parts{};
  ::localtime_r(&time, &parts);                                             // the time zone
  if (::locale_t copy = ::duplocale(LC_GLOBAL_LOCALE)) ::freelocale(copy);  // the locale of C
  std::locale::global(std::locale{});                                       // and that of C++
  std::ostringstream text;
  text.imbue(std::locale{std::locale::classic(), new std::numpunct<char>});
  text << 1;                                        // what streams keep of a locale
  ::textdomain(::textdomain(nullptr));              // translated messages, as of strerror()
  ::iconv_t to = ::iconv_open("UTF-8", "UCS-4LE");  // characters of other encodings
  if (to != reinterpret_cast<::iconv_t>(-1)) ::iconv_close(to);
}

/// Takes those of the process itself.
inline void take_process_locks() {
  ::unsetenv("RAILYARD_NO_SUCH_VARIABLE");                                          // the environment
  std::srand(1);                                                                    // the random numbers
  std::atexit([] {});                                                               // what is called at exit
  ::dl_iterate_phdr([](dl_phdr_info*, std::size_t, void*) { return 1; }, nullptr);  // the list of libraries
  ::dlopen(nullptr, RTLD_LAZY);  // ends the process where a library was just being loaded
  ::closelog();                  // the connection to syslog
  ::sem_t none{};
  ::sem_close(&none);  // semaphores with names
  // Programs that popen() has started. The system starts none with an argument as long as this.
  const std::string command(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) * 32, ' ');
  if (std::FILE* none_started = ::popen(command.c_str(), "r")) ::pclose(none_started);
}

/// Takes all of these: whoever calls it while one is held for ever never returns. For a process that is thrown away:
/// random numbers, time zone, locale, names and syslog are not what they were.
inline void take_library_locks() {
  take_process_locks();
  take_text_locks();
  take_name_locks();
}

}  // namespace detail
}  // namespace railyard::inline v0_1
