# SPDX-License-Identifier: MIT
# What tests, examples and benchmarks of this project share: warnings, sanitizers, ccache, and how much is compiled at once.
include_guard(GLOBAL)

set(RAILYARD_SANITIZE "" CACHE STRING "Sanitizers to build with, such as address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Debug CACHE STRING "Debug or Release" FORCE)
endif()
# -O0 makes the suites several times slower and saves little; full debug information of LibTorch doubles the memory.
# Assertions stay on: this is what the tests are built with.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
if(RAILYARD_SANITIZE MATCHES "address")
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")  # here -O1 takes the compiler twice as long
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

# A file with LibTorch takes 1.1 GB to compile, with its precompiled header somewhat more.
cmake_host_system_information(RESULT memory_mib QUERY AVAILABLE_PHYSICAL_MEMORY)
math(EXPR railyard_libtorch_jobs "${memory_mib} / 1500")
if(railyard_libtorch_jobs LESS 1)
  set(railyard_libtorch_jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS libtorch=${railyard_libtorch_jobs})

find_program(RAILYARD_CCACHE ccache)
if(RAILYARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header is told from another by its content, not by its time.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${RAILYARD_CCACHE})
endif()

set(RAILYARD_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Wmissing-field-initializers -Werror
    CACHE STRING "Warning options of our own builds")

function(railyard_warn target)
  target_compile_options(${target} PRIVATE ${RAILYARD_WARNINGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND RAILYARD_SANITIZE)
    # With sanitizers GCC 12 sees uninitialised values in the standard library's regular expressions, and says of every
    # fence that its sanitizer does not see it: the tests are what tells.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-tsan)
  endif()
  if(RAILYARD_SANITIZE)
    set(options -fsanitize=${RAILYARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_compile_options(${target} PRIVATE ${options})
    target_link_options(${target} PRIVATE ${options})
  endif()
endfunction()
