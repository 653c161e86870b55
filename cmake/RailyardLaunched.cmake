# SPDX-License-Identifier: MIT
# Makes the target railyard::launched: workers of processes that Slurm, MPI, torchrun or Kubernetes have started. They
# prove to each other that they belong together by OpenSSL's libcrypto, and encrypt by its libssl; without them, there is
# no target.
include_guard(GLOBAL)

function(railyard_add_launched)
  find_path(RAILYARD_CRYPTO_INCLUDE_DIR openssl/ssl.h)
  find_library(RAILYARD_SSL_LIBRARY ssl)
  find_library(RAILYARD_CRYPTO_LIBRARY crypto)
  mark_as_advanced(RAILYARD_CRYPTO_INCLUDE_DIR RAILYARD_SSL_LIBRARY RAILYARD_CRYPTO_LIBRARY)
  if(TARGET railyard::launched
     OR NOT RAILYARD_CRYPTO_INCLUDE_DIR
     OR NOT RAILYARD_SSL_LIBRARY
     OR NOT RAILYARD_CRYPTO_LIBRARY)
    return()
  endif()
  railyard_add_interface(launched railyard::core)
  target_compile_definitions(railyard::launched INTERFACE RAILYARD_WITH_LAUNCHED=1)
  if(NOT RAILYARD_CRYPTO_INCLUDE_DIR IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    target_include_directories(railyard::launched SYSTEM INTERFACE "${RAILYARD_CRYPTO_INCLUDE_DIR}")
  endif()
  target_link_libraries(railyard::launched INTERFACE "${RAILYARD_SSL_LIBRARY}" "${RAILYARD_CRYPTO_LIBRARY}"
                                                  ${CMAKE_DL_LIBS})
endfunction()
