# SPDX-License-Identifier: MIT
# Finds libgloo. Its own package files differ between releases and distributions, so header and library are looked up.
include_guard(GLOBAL)

# Makes railyard::libgloo, or sets the variable named by problem_name to a sentence.
function(railyard_find_gloo problem_name)
  set(${problem_name} "" PARENT_SCOPE)
  if(TARGET railyard::libgloo)
    return()
  endif()
  find_path(RAILYARD_GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
  find_library(RAILYARD_GLOO_LIBRARY gloo)
  mark_as_advanced(RAILYARD_GLOO_INCLUDE_DIR RAILYARD_GLOO_LIBRARY)
  if(NOT RAILYARD_GLOO_INCLUDE_DIR OR NOT RAILYARD_GLOO_LIBRARY)
    set(${problem_name}
        "Gloo was not found: install it (Debian: apt install libgloo-dev), add its prefix to CMAKE_PREFIX_PATH, or set RAILYARD_WITH_GLOO=OFF."
        PARENT_SCOPE)
    return()
  endif()
  find_package(Threads QUIET)
  add_library(railyard::libgloo UNKNOWN IMPORTED GLOBAL)
  set_target_properties(
    railyard::libgloo
    PROPERTIES IMPORTED_LOCATION "${RAILYARD_GLOO_LIBRARY}"
               INTERFACE_INCLUDE_DIRECTORIES "${RAILYARD_GLOO_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES Threads::Threads)
endfunction()
