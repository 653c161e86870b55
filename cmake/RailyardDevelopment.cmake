# SPDX-License-Identifier: MIT
# What tests, examples and benchmarks of this project share: warnings, ccache, and the folder their programs go to.
include_guard(GLOBAL)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Debug CACHE STRING "" FORCE)
endif()
# Plain -O0 makes the suites several times slower than it saves in compiling; full debug information of LibTorch
# doubles the memory of the linker.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1" CACHE STRING "Flags of the Debug build")
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(RAILYARD_CCACHE ccache)
if(RAILYARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers are hit only where their time stamps do not count.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${RAILYARD_CCACHE})
endif()

set(RAILYARD_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Wmissing-field-initializers -Werror
    CACHE STRING "Warning options of our own builds")
set(RAILYARD_SANITIZE "" CACHE STRING "Sanitizers to build with, such as address,undefined or thread")

# Makes a program of ours a strict user of the headers: not as system headers, and with every warning an error.
function(railyard_strict target)
  set_target_properties(${target} PROPERTIES NO_SYSTEM_FROM_IMPORTED FALSE)
  target_include_directories(${target} BEFORE PRIVATE "${PROJECT_SOURCE_DIR}/include")
  target_compile_options(${target} PRIVATE ${RAILYARD_WARNINGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fdiagnostics-color=auto)
  endif()
  if(RAILYARD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${RAILYARD_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${RAILYARD_SANITIZE})
  endif()
endfunction()
