# `cmake --install BUILD --prefix DIR`: a tree that can be moved and copied as a whole.
#
#   bin/                 stemma, stemma-server, stemma-worker; their RUNPATH is $ORIGIN/../lib/stemma
#   lib/stemma/          LibTorch, and the CUDA libraries that it loads; libstemma_cuda.so where it was built. That one needs
#                        LibTorch's CUDA libraries, of which an installed torch has gigabytes: the loader must find them
#   include/stemma/proto the wire, for clients in other languages
#   share/doc/stemma/    README, LICENSE, CHANGELOG, docs; licenses/ of the libraries, and libraries.txt that lists them
#
# gRPC, protobuf and the other libraries of the system stay where the system has them.
include(GNUInstallDirs)

set(_library_directory ${CMAKE_INSTALL_LIBDIR}/stemma)
file(RELATIVE_PATH _from_bin /${CMAKE_INSTALL_BINDIR} /${_library_directory})
set_target_properties(stemma stemma-server stemma-worker PROPERTIES INSTALL_RPATH "$ORIGIN/${_from_bin}")
install(TARGETS stemma stemma-server stemma-worker
  RUNTIME_DEPENDENCY_SET stemma_loaded_libraries
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

if(TARGET stemma_cuda)
  set_target_properties(stemma_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS stemma_cuda LIBRARY DESTINATION ${_library_directory})
endif()

# The directories that hold what LibTorch's wheel finds by a RUNPATH of its own.
file(GLOB _wheel_directories ${TORCH_ROOT}/../nvidia/*/lib)
install(RUNTIME_DEPENDENCY_SET stemma_loaded_libraries
  PRE_INCLUDE_REGEXES "^lib(c10|torch|gomp|cu|nv)"
  PRE_EXCLUDE_REGEXES ".*"
  DIRECTORIES ${TORCH_ROOT}/lib ${_wheel_directories}
  LIBRARY DESTINATION ${_library_directory})

install(DIRECTORY proto/stemma/v1 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stemma/proto/stemma FILES_MATCHING PATTERN "*.proto")
install(DIRECTORY proto/google/rpc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stemma/proto/google FILES_MATCHING PATTERN "*.proto")
install(FILES README.md LICENSE CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(CUDAToolkit_FOUND)
  get_filename_component(_cuda_root ${CUDAToolkit_BIN_DIR} DIRECTORY)
endif()
install(CODE "
set(LIBRARIES \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${_library_directory}\")
set(LICENSES \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/licenses\")
set(TORCH_ROOT \"${TORCH_ROOT}\")
set(CUDA_ROOT \"${_cuda_root}\")
include(\"${CMAKE_CURRENT_LIST_DIR}/licenses.cmake\")")
