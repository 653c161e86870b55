// SPDX-License-Identifier: MIT
// The main function of every Catch2 test executable.

// Tests of faults raise signals in workers on purpose: those must meet what the library installs, not Catch2's report.
#define CATCH_CONFIG_NO_POSIX_SIGNALS
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <thread>

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  std::thread{[] {
  }}.join();  // starts the sanitizer's own thread, so that tests which count threads see it from the start
#endif
  return Catch::Session().run(argc, argv);
}
