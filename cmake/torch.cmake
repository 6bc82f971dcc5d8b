# LibTorch from the Python wheel as our own imported targets: torch::c10, torch::cpu, and
# torch::cuda where the CUDA toolkit and the NCCL that LibTorch was built with are.
#
# Not find_package(Torch): it puts the wheel's protobuf 3.13 headers before the system's, replaces protobuf::libprotobuf,
# and is fatal without a CUDA toolkit. The include directory is a farm of links to everything but the wheel's `google`.
if(DEFINED ENV{TORCH_ROOT} AND NOT TORCH_ROOT)
  set(TORCH_ROOT $ENV{TORCH_ROOT})
endif()
set(TORCH_ROOT "${TORCH_ROOT}" CACHE PATH "directory of an installed torch 2.11 (holds include/ and lib/)")
if(NOT TORCH_ROOT)
  set(TORCH_ROOT ${CMAKE_SOURCE_DIR}/third_party/site/torch)
endif()
if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no LibTorch in ${TORCH_ROOT}: run `make deps`, or set TORCH_ROOT to an installed torch 2.11")
endif()
file(READ ${TORCH_ROOT}/version.py _torch_version)
if(NOT _torch_version MATCHES "2\\.11\\.")
  message(FATAL_ERROR "torch in ${TORCH_ROOT} is not 2.11")
endif()

set(_farm ${CMAKE_BINARY_DIR}/torch_include)
file(MAKE_DIRECTORY ${_farm})
file(GLOB _entries RELATIVE ${TORCH_ROOT}/include ${TORCH_ROOT}/include/*)
foreach(_entry ${_entries})
  if(NOT _entry STREQUAL "google")
    file(CREATE_LINK ${TORCH_ROOT}/include/${_entry} ${_farm}/${_entry} SYMBOLIC)
  endif()
endforeach()

set(_dirs ${_farm} ${_farm}/torch/csrc/api/include)
add_library(torch::c10 SHARED IMPORTED)
set_target_properties(torch::c10 PROPERTIES
  IMPORTED_LOCATION ${TORCH_ROOT}/lib/libc10.so
  INTERFACE_INCLUDE_DIRECTORIES "${_dirs}"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_dirs}"
  # The wheel's libtorch_cpu needs CUDA's runtime at load, which its own rpath finds; the linker need not.
  INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
add_library(torch::cpu SHARED IMPORTED)
set_target_properties(torch::cpu PROPERTIES
  IMPORTED_LOCATION ${TORCH_ROOT}/lib/libtorch_cpu.so
  INTERFACE_LINK_LIBRARIES torch::c10)

# The layout of c10d's NCCL classes depends on the version of NCCL's header.
set(_nccl_version 2.28.9)
find_package(CUDAToolkit 13.0 QUIET)
if(CUDAToolkit_FOUND)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NCCL_INCLUDE_DIR)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" _nccl_found "${_nccl_lines}")
  endif()
endif()
if(NOT CUDAToolkit_FOUND)
  message(STATUS "CUDA: not built, there is no toolkit 13")
elseif(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  message(STATUS "CUDA: not built, LibTorch in ${TORCH_ROOT} has none")
elseif(NOT _nccl_found STREQUAL _nccl_version)
  message(STATUS "CUDA: not built, NCCL's header must be of version ${_nccl_version}, found: ${_nccl_found}")
else()
  message(STATUS "CUDA: built with toolkit ${CUDAToolkit_VERSION}, NCCL ${_nccl_found}")
  add_library(torch::cuda SHARED IMPORTED)
  set_target_properties(torch::cuda PROPERTIES
    IMPORTED_LOCATION ${TORCH_ROOT}/lib/libtorch_cuda.so
    INTERFACE_INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS};${NCCL_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS};${NCCL_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "torch::cpu;${TORCH_ROOT}/lib/libc10_cuda.so")
endif()
