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
  # A precompiled header is told from another by its content, not by its time; and what one clone has compiled serves the
  # next one, for paths are taken from the project's folder.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${RAILYARD_CCACHE})
  add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
endif()

set(RAILYARD_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Wmissing-field-initializers -Werror
    CACHE STRING "Warning options of our own builds")

function(railyard_warn target)
  target_compile_options(${target} PRIVATE ${RAILYARD_WARNINGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND RAILYARD_SANITIZE)
    # With sanitizers GCC 12 sees uninitialised values in the standard library's regular expressions, and says of every
    # fence that its sanitizer does not see it: the tests are what tells.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-tsan)
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND RAILYARD_LIBTORCH_VERSION VERSION_GREATER_EQUAL 2)
    # So it does in the data loader of a LibTorch 2, which it inlines into tests that use it.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
  if(RAILYARD_SANITIZE)
    set(options -fsanitize=${RAILYARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_compile_options(${target} PRIVATE ${options})
    target_link_options(${target} PRIVATE ${options})
  endif()
endfunction()

# Lets the sources of a program that include <torch/torch.h> take it from one precompiled header, which all such programs
# share: parsing it takes 15 s and 1.1 GB. Others go without, or it would hide what they do not include.
function(railyard_share_libtorch target)
  if(NOT TARGET libtorch_header)
    file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/libtorch_header.cpp" CONTENT "")
    add_library(libtorch_header OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/libtorch_header.cpp")
    target_link_libraries(libtorch_header PRIVATE railyard::railyard)
    railyard_warn(libtorch_header)
    target_precompile_headers(libtorch_header PRIVATE <ATen/core/ivalue.h> <torch/torch.h>)
    set_target_properties(libtorch_header PROPERTIES JOB_POOL_COMPILE libtorch JOB_POOL_PRECOMPILE_HEADER libtorch)
  endif()
  target_precompile_headers(${target} REUSE_FROM libtorch_header)
  foreach(source IN LISTS ARGN)
    file(STRINGS "${source}" included REGEX "^#include <torch/torch.h>")
    if(NOT included)
      set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE libtorch)
endfunction()
