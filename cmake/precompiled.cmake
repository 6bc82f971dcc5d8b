# Headers that most sources read and nobody here writes, parsed once: parsing is most of what a compiler does here.
#
# stemma_use_precompiled_headers(), called when all targets are known, gives each target of cmake/stemma.cmake the one of
# four sets that fits it: the product's or a test's, with LibTorch or without. A source includes what it uses all the same:
# make lint ARGS=--each compiles each file of the product without these sets. A target that is compiled with options of its
# own sets DISABLE_PRECOMPILE_HEADERS.
set(_base_headers <algorithm> <array> <chrono> <cstdint> <functional> <map> <memory> <mutex> <numeric> <optional> <set>
  <span> <sstream> <string> <thread> <unordered_map> <variant> <vector>
  <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h>
  <absl/time/time.h> <glog/logging.h>
  <google/protobuf/extension_set.h> <google/protobuf/generated_enum_reflection.h> <google/protobuf/map_entry.h>
  <google/protobuf/map_field_inl.h> <google/protobuf/message.h> <google/protobuf/unknown_field_set.h>)
set(_torch_headers <ATen/ATen.h> <ATen/Parallel.h>)
set(_test_headers <gmock/gmock.h> <gtest/gtest.h>)

# stemma_precompiled_set(name HEADERS <h> ... LINK dep ...): a target without code, whose set others reuse.
function(stemma_precompiled_set name)
  cmake_parse_arguments(A "" "" "HEADERS;LINK" ${ARGN})
  set(_empty ${CMAKE_BINARY_DIR}/precompiled/${name}.cc)
  file(CONFIGURE OUTPUT ${_empty} CONTENT "")
  add_library(${name} STATIC ${_empty})
  target_link_libraries(${name} PRIVATE absl::statusor absl::str_format absl::time glog::glog protobuf::libprotobuf ${A_LINK})
  target_precompile_headers(${name} PRIVATE ${A_HEADERS})
endfunction()

stemma_precompiled_set(stemma_precompiled_base HEADERS ${_base_headers})
stemma_precompiled_set(stemma_precompiled_torch HEADERS ${_base_headers} ${_torch_headers} LINK torch::cpu)
stemma_precompiled_set(stemma_precompiled_base_test HEADERS ${_base_headers} ${_test_headers} LINK GTest::gmock)
stemma_precompiled_set(stemma_precompiled_torch_test HEADERS ${_base_headers} ${_torch_headers} ${_test_headers}
  LINK torch::cpu GTest::gmock)
foreach(_set stemma_precompiled_base_test stemma_precompiled_torch_test)
  target_compile_options(${_set} PRIVATE ${STEMMA_TEST_COMPILE_OPTIONS})
endforeach()

# Sets ${result} to the targets whose headers a target's sources may include, those of imported ones apart. What others
# link privately is none of them: a compiler is told nothing of it.
function(stemma_header_closure target result)
  get_target_property(_ahead ${target} LINK_LIBRARIES)
  set(_seen)
  while(_ahead)
    list(POP_FRONT _ahead _name)
    if(_name IN_LIST _seen OR NOT TARGET ${_name})
      continue()
    endif()
    list(APPEND _seen ${_name})
    get_target_property(_imported ${_name} IMPORTED)
    if(_imported AND NOT _name MATCHES "^torch::")
      continue()
    endif()
    get_target_property(_links ${_name} INTERFACE_LINK_LIBRARIES)
    if(_links)
      list(APPEND _ahead ${_links})
    endif()
  endwhile()
  set(${result} ${_seen} PARENT_SCOPE)
endfunction()

# Those that do not link glog are left out: its macros change what headers say.
function(stemma_use_precompiled_headers)
  get_property(_targets GLOBAL PROPERTY STEMMA_TARGETS)
  get_property(_tests GLOBAL PROPERTY STEMMA_TESTS)
  foreach(_target ${_targets})
    set(_kind "")
    if(_target IN_LIST _tests)
      set(_kind _test)
    endif()
    stemma_header_closure(${_target} _links)
    if(torch::cpu IN_LIST _links AND glog::glog IN_LIST _links)
      target_precompile_headers(${_target} REUSE_FROM stemma_precompiled_torch${_kind})
    elseif(glog::glog IN_LIST _links AND NOT torch::c10 IN_LIST _links)
      target_precompile_headers(${_target} REUSE_FROM stemma_precompiled_base${_kind})
    endif()
  endforeach()
endfunction()
