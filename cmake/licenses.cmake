# Copies the licenses of what an installed tree holds of others, and lists them by library. Runs when it is installed: before
# nobody knows which libraries those are. Where this machine has no license of one, a warning and the list say so.
#
#   LIBRARIES     the tree's folder of libraries
#   LICENSES      the tree's folder of licenses, with libraries.txt; a folder in it for each wheel or package
#   TORCH_ROOT    of the LibTorch that the libraries come from; its wheels lie beside it
#   CUDA_ROOT     of the CUDA toolkit that was built with; empty: none was

# Adds to FILES what the wheel that holds the library brings. GCC's libgomp is in torch's wheel, and its license is not.
function(_licenses_of_wheel library)
  file(GLOB records ${TORCH_ROOT}/../torch-*.dist-info/RECORD ${TORCH_ROOT}/../nvidia_*.dist-info/RECORD)
  string(REPLACE "." "\\." pattern ${library})
  foreach(record ${records})
    file(STRINGS ${record} lines REGEX "/${pattern},")
    if(lines AND NOT library MATCHES "^libgomp")
      get_filename_component(wheel ${record} DIRECTORY)
      file(GLOB_RECURSE files ${wheel}/LICENSE* ${wheel}/License* ${wheel}/NOTICE*)
      set(FILES ${FILES} ${files} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# Adds to FILES the copyright of the Debian package that holds a file of this name.
function(_licenses_of_package name)
  execute_process(COMMAND dpkg-query -S "*/${name}" OUTPUT_VARIABLE owners RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed AND owners MATCHES "^([^:,]+)[:,]")
    file(GLOB files /usr/share/doc/${CMAKE_MATCH_1}/copyright)
    set(FILES ${FILES} ${files} PARENT_SCOPE)
  endif()
endfunction()

file(GLOB _names RELATIVE ${LIBRARIES} ${LIBRARIES}/*.so*)
list(REMOVE_ITEM _names libstemma_cuda.so)
set(_list "")
set(_without "")
foreach(_name ${_names} nlohmann/json.hpp CLI/CLI.hpp)  # the headers are compiled into the programs
  set(FILES "")
  _licenses_of_wheel(${_name})
  if(NOT FILES)
    _licenses_of_package(${_name})
  endif()
  if(NOT FILES AND _name MATCHES "^lib(cu|nv)" AND EXISTS "${CUDA_ROOT}/EULA.txt")
    set(FILES ${CUDA_ROOT}/EULA.txt)
  endif()
  set(_of_it "")
  foreach(_file ${FILES})
    get_filename_component(_folder ${_file} DIRECTORY)
    string(REGEX REPLACE "/licenses$" "" _folder ${_folder})
    get_filename_component(_folder ${_folder} NAME)
    string(REGEX REPLACE "\\.dist-info$" "" _folder ${_folder})
    get_filename_component(_whole ${_file} REALPATH)
    get_filename_component(_base ${_file} NAME)
    file(MAKE_DIRECTORY ${LICENSES}/${_folder})
    configure_file(${_whole} ${LICENSES}/${_folder}/${_base} COPYONLY)
    string(APPEND _of_it " ${_folder}/${_base}")
  endforeach()
  if(NOT _of_it)
    string(APPEND _without " ${_name}")
    set(_of_it " none was found where this tree was made")
  endif()
  string(APPEND _list "${_name}:${_of_it}\n")
endforeach()
file(MAKE_DIRECTORY ${LICENSES})
file(WRITE ${LICENSES}/libraries.txt "${_list}")
if(_without)
  message(WARNING "this machine has no license of${_without}: who passes the installed tree on adds them")
endif()
