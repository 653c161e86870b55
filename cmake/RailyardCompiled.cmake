# SPDX-License-Identifier: MIT
# Compiles Railyard once for all sources of a project that use it.
include_guard(GLOBAL)

# Makes the static library `name` of Railyard with the components that follow, such as railyard::railyard. What links it
# sees functions that are declared only, and of railyard::detail no more than it needs: all of that is seen where one of
# its headers is named.
function(railyard_add_compiled name)
  get_property(include_dir GLOBAL PROPERTY RAILYARD_INCLUDE_DIR)
  get_property(compiled_dir GLOBAL PROPERTY RAILYARD_COMPILED_DIR)
  # Whatever header is named: the one of what users see, or that of the rest.
  set(forwarding_dir "${CMAKE_BINARY_DIR}/railyard_compiled")
  file(GLOB_RECURSE headers RELATIVE "${include_dir}" "${include_dir}/railyard/*.hpp")
  foreach(header IN LISTS headers)
    set(leads_to railyard)
    if(header MATCHES "/detail/")
      set(leads_to detail)
    endif()
    file(CONFIGURE OUTPUT "${forwarding_dir}/${header}"
         CONTENT "#pragma once\n#include \"${compiled_dir}/railyard/${leads_to}.hpp\"\n")
  endforeach()
  add_library(${name} STATIC EXCLUDE_FROM_ALL "${compiled_dir}/railyard.cpp")
  target_include_directories(${name} BEFORE PUBLIC "${forwarding_dir}")
  target_link_libraries(${name} PUBLIC ${ARGN})
endfunction()
