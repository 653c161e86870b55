# SPDX-License-Identifier: MIT
# Proves that each header stands alone, that nothing in them is defined twice in one program, and that the single header
# passes the tests of core/.

file(GLOB_RECURSE all_headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
     "${PROJECT_SOURCE_DIR}/include/railyard/*.hpp")
if(NOT TARGET railyard::gloo)
  list(FILTER all_headers EXCLUDE REGEX "/gloo[^/]*$")
endif()
if(NOT TARGET railyard::torch)
  list(FILTER all_headers EXCLUDE REGEX "^railyard/torch/")
endif()

if(NOT RAILYARD_WITH_ZLIB_FOUND)
  list(REMOVE_ITEM all_headers railyard/data/gzip.hpp railyard/data/npz_source.hpp)
endif()
if(NOT RAILYARD_WITH_ZSTD_FOUND)
  list(REMOVE_ITEM all_headers railyard/data/zstd.hpp)
endif()
if(NOT RAILYARD_WITH_IMAGES_FOUND)
  list(REMOVE_ITEM all_headers railyard/data/decode_image.hpp railyard/data/image_folder.hpp
       railyard/data/detail/jpeg_decoder.hpp railyard/data/detail/png_decoder.hpp)
endif()

set(generated "${CMAKE_CURRENT_BINARY_DIR}/headers")
set(headers_torch ${all_headers})
list(FILTER headers_torch INCLUDE REGEX "^railyard/(torch/|railyard.hpp)")
set(headers_plain ${all_headers})
list(REMOVE_ITEM headers_plain ${headers_torch})
foreach(kind IN ITEMS plain torch)
  execute_process(COMMAND ${Python3_EXECUTABLE} "${CMAKE_CURRENT_SOURCE_DIR}/headers.py" "${PROJECT_SOURCE_DIR}/include"
                          "${generated}/alone_${kind}" ${headers_${kind}}
                  OUTPUT_VARIABLE alone_${kind} OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" alone_${kind} "${alone_${kind}}")
endforeach()
list(TRANSFORM all_headers REPLACE "(.+)" "#include <\\1>\n" OUTPUT_VARIABLE everything)
list(JOIN everything "" everything)
file(GENERATE OUTPUT "${generated}/everything.cpp" CONTENT "${everything}int main() { return 0; }\n")

add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${alone_plain})
target_link_libraries(headers_alone PRIVATE railyard::data railyard::launched railyard::nccl ${gloo})
railyard_warn(headers_alone)
add_library(headers_alone_torch OBJECT EXCLUDE_FROM_ALL ${alone_torch})
target_link_libraries(headers_alone_torch PRIVATE railyard::railyard)
railyard_warn(headers_alone_torch)
# Linked with a copy of itself, of which only main has another name: what is not inline is there twice.
add_library(headers_once OBJECT EXCLUDE_FROM_ALL "${generated}/everything.cpp")
target_link_libraries(headers_once PRIVATE railyard::railyard railyard::data railyard::launched railyard::nccl)
railyard_warn(headers_once)
add_custom_command(OUTPUT "${generated}/again.o" VERBATIM COMMAND_EXPAND_LISTS
                   COMMAND "${CMAKE_OBJCOPY}" --redefine-sym main=other $<TARGET_OBJECTS:headers_once>
                           "${generated}/again.o"
                   DEPENDS headers_once $<TARGET_OBJECTS:headers_once>)
add_executable(headers_together EXCLUDE_FROM_ALL $<TARGET_OBJECTS:headers_once> "${generated}/again.o")
set_target_properties(headers_together PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(headers_together PRIVATE railyard::railyard railyard::data railyard::launched railyard::nccl)
railyard_warn(headers_together)
if(TARGET railyard::torch)
  set_target_properties(headers_alone_torch headers_once PROPERTIES JOB_POOL_COMPILE libtorch)
endif()
add_test(NAME headers COMMAND headers_together)
set_tests_properties(headers PROPERTIES LABELS headers TIMEOUT 60)
railyard_part(headers headers_alone headers_alone_torch headers_together)
railyard_add_script(headers_arm64 headers COMMAND bash tests/arm64.sh "${CMAKE_CURRENT_BINARY_DIR}/arm64")

railyard_add_script(single_header_fresh single_header COMMAND Python3::Interpreter tools/amalgamate.py --check)
railyard_add_script(separate single_header COMMAND Python3::Interpreter tests/separate.py "${CMAKE_CXX_COMPILER}"
                                                   "${CMAKE_CURRENT_BINARY_DIR}/separate")
set(single "${PROJECT_SOURCE_DIR}/single_include/railyard/railyard.hpp")
if(EXISTS "${single}")
  # The tests name the header that they test: each name leads to the one file here.
  foreach(header IN LISTS all_headers)
    file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/single/${header}" CONTENT "#pragma once\n#include \"${single}\"\n")
  endforeach()
  file(GLOB single_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/unit/core/*_test.cpp")
  add_executable(core_tests_single ${single_sources} $<TARGET_OBJECTS:test_main>)
  set_target_properties(core_tests_single PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)  # it is read once
  target_include_directories(core_tests_single PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/single" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(core_tests_single PRIVATE fmt::fmt Threads::Threads Catch2::Catch2)
  target_compile_features(core_tests_single PRIVATE cxx_std_20)
  railyard_use_fakes(core_tests_single)
  railyard_warn(core_tests_single)
  catch_discover_tests(core_tests_single TEST_PREFIX "core_tests_single: " PROPERTIES LABELS single_header TIMEOUT 120)
  railyard_part(single_header core_tests_single)
endif()
