# Targets as this project writes them: includes are rooted at the repository, stdc++ is linked first so that no symbol of
# std::filesystem binds to the copy that libtorch_cpu exports.

# stemma_library(name SOURCES a.cc ... [PUBLIC dep ...] [PRIVATE dep ...])
function(stemma_library name)
  cmake_parse_arguments(A "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${A_PUBLIC} PRIVATE ${A_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY STEMMA_TARGETS ${name})
endfunction()

# stemma_single_objects(name ...): compiles each source by itself. For libraries whose sources libstemma_cuda.so links in part,
# those that know no protobuf message: with one that does, the library would register all messages a second time in the
# worker's process, and protobuf would end it.
function(stemma_single_objects)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD OFF)
endfunction()

# stemma_binary(name SOURCES a.cc ... LINK dep ...)
function(stemma_binary name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE stdc++ ${A_LINK})
  set_property(GLOBAL APPEND PROPERTY STEMMA_TARGETS ${name})
endfunction()

# Only ends a test that hangs: the longest takes a minute, and five times that on a machine which others use too.
set(STEMMA_TEST_TIMEOUT_S 900)
# After so long in one case of a pytest, the test prints where each of its threads stands, and goes on.
set(STEMMA_STANDING_CASE_S 300)

# The code of tests/ is compiled more often than it computes or is debugged: a third of its compile time goes. What it tests
# stays, lines of a stack trace too.
set(STEMMA_TEST_COMPILE_OPTIONS $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-g0>)

# What reads a command line and prints an answer computes nothing: a third of its compile time goes.
set(STEMMA_COMMAND_LINE_COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)

# stemma_check_no_more(name [argument ...]): ends where a test was given more than is read, as a second label is.
function(stemma_check_no_more name)
  if(ARGN)
    message(FATAL_ERROR "${name}: ${ARGN} is not read; a test of several labels has them by set_tests_properties")
  endif()
endfunction()

# stemma_test(name LABEL label SOURCES a_test.cc ... LINK dep ...): one GoogleTest binary, one ctest entry.
function(stemma_test name)
  cmake_parse_arguments(A "" "LABEL" "SOURCES;LINK" ${ARGN})
  stemma_check_no_more(${name} ${A_UNPARSED_ARGUMENTS})
  stemma_binary(${name} SOURCES ${A_SOURCES} LINK ${A_LINK} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set_property(GLOBAL APPEND PROPERTY STEMMA_TESTS ${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${STEMMA_TEST_TIMEOUT_S})
endfunction()

# stemma_long_tests(name ...): tests that take a minute or more. They begin first where nothing is known of what tests take,
# as on a fresh checkout, so that no core idles beside the last one.
function(stemma_long_tests)
  set_tests_properties(${ARGN} PROPERTIES COST 60)
endfunction()

# stemma_also_composed(name): runs that test's binary once more, on kernels of plain ATen ops (tests/testing/backends.h).
function(stemma_also_composed name)
  get_test_property(${name} LABELS _labels)
  add_test(NAME ${name}_composed COMMAND ${name})
  set_tests_properties(${name}_composed PROPERTIES LABELS "${_labels}" TIMEOUT ${STEMMA_TEST_TIMEOUT_S}
    ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive;STEMMA_TEST_BACKEND=composed")
endfunction()

# stemma_python_test(name LABEL label SCRIPT file [ARGS ...]): a script run by the oracle's Python; exit 0 is success.
set(STEMMA_PYTHON ${CMAKE_SOURCE_DIR}/third_party/venv/bin/python CACHE FILEPATH "Python of the test oracle")
function(stemma_python_test name)
  cmake_parse_arguments(A "" "LABEL;TIMEOUT" "COMMAND" ${ARGN})
  stemma_check_no_more(${name} ${A_UNPARSED_ARGUMENTS})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT ${STEMMA_TEST_TIMEOUT_S})
  endif()
  add_test(NAME ${name} COMMAND ${STEMMA_PYTHON} ${A_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT}
    ENVIRONMENT "STEMMA_BUILD_DIR=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/client/python:${CMAKE_SOURCE_DIR}/tests;PYTHONDONTWRITEBYTECODE=1;PYTHONUNBUFFERED=1;PYTEST_ADDOPTS=-o faulthandler_timeout=${STEMMA_STANDING_CASE_S}"
    # With one of them set pytest explains failures in full, however long that takes: here it is as for a person.
    ENVIRONMENT_MODIFICATION "CI=unset:;BUILD_NUMBER=unset:")
endfunction()
