# libinfini_cuda.so, the NVIDIA backend. INFINIOP_CUDA is AUTO: a target and an install component of their own, where a CUDA compiler is
# found, that nothing else waits for; ON: built and installed with the rest, or an error; OFF. CUDA's runtime is linked statically:
# nothing of CUDA has to be there when the plugin is opened.
set(INFINIOP_CUDA_ARCHITECTURES "" CACHE STRING "Architectures of the NVIDIA backend, without -real also as PTX for later devices; default: 80-real;90-real;100")
set(cuda_architectures ${INFINIOP_CUDA_ARCHITECTURES})
if(NOT cuda_architectures)
  set(cuda_architectures 80-real 90-real 100)
endif()
set(cuda_remedy "; pip install 'cuda-toolkit[nvcc,cudart,crt,cccl]==13.0.*', or name a compiler in CUDACXX")

# ---- the compiler: CUDACXX, or nvcc in CUDA_HOME, on PATH, among the packages of the Python in use -----------------------
set(cuda_missing "")
if(NOT "$ENV{CUDACXX}" STREQUAL "")
  unset(INFINIOP_NVCC CACHE)
  find_program(INFINIOP_NVCC NAMES $ENV{CUDACXX} DOC "The CUDA compiler")
  if(NOT INFINIOP_NVCC)
    set(cuda_missing "CUDACXX is $ENV{CUDACXX}, and there is no such program")
  endif()
else()
  if(INFINIOP_NVCC AND NOT EXISTS "${INFINIOP_NVCC}") # of an environment that is gone
    unset(INFINIOP_NVCC CACHE)
  endif()
  find_package(Python 3.10 QUIET COMPONENTS Interpreter)
  set(cuda_places ${Python_SITELIB} ${Python_SITEARCH})
  list(TRANSFORM cuda_places APPEND /nvidia/cu13/bin)
  find_program(INFINIOP_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS ${cuda_places} /usr/local/cuda
    NO_CMAKE_SYSTEM_PATH DOC "The CUDA compiler")
  if(NOT INFINIOP_NVCC)
    set(cuda_missing "no nvcc was found in CUDA_HOME, on PATH or among the packages of ${Python_EXECUTABLE}${cuda_remedy}")
  endif()
endif()

# nvcc is called by name and not through CMake's CUDA language, which does not find all of it in the packages' folders.
# Every option is one word: compiler caches take a number that stands alone for a source. All architectures of a file are compiled at
# the same time, as the last file takes longer than the others together.
set(cuda_command ${INFINIOP_NVCC} --threads=0 -std=c++17 -O3 -fmad=false --Werror=all-warnings -Xptxas=--warn-on-spills,-Werror --compress-mode=size
  -diag-suppress=177 -ccbin=${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-ffp-contract=off,-fstack-protector-strong
  -DINFINI_VERSION="${PROJECT_VERSION}" -I${CMAKE_CURRENT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR}/src)
# Machine code is made of PTX. That of the newest architecture that the sources know apart, 90, serves those after it, too, which takes
# two thirds of the time; not for gemm, whose kernels would spill a register on 100.
set(cuda_own_ptx gemm)
foreach(architecture ${cuda_architectures})
  string(REGEX REPLACE "-real$" "" number ${architecture})
  set(ptx ${number})
  if(number MATCHES "^[0-9]+$" AND number GREATER 90)
    set(ptx 90)
  endif()
  list(APPEND cuda_codes_own -gencode=arch=compute_${number},code=sm_${number})
  list(APPEND cuda_codes -gencode=arch=compute_${ptx},code=sm_${number})
  if(number STREQUAL architecture)
    list(APPEND cuda_codes_own -gencode=arch=compute_${number},code=compute_${number})
    list(APPEND cuda_codes -gencode=arch=compute_${ptx},code=compute_${ptx})
  endif()
endforeach()

# Does it work, with these options, these architectures and this host compiler? And where is the rest of it? A script may stand for it
# on PATH; it says itself where it is at home. The Python packages have lib where it says lib64.
if(NOT cuda_missing)
  set(cuda_probe ${CMAKE_CURRENT_BINARY_DIR}/cuda/probe.cu)
  file(CONFIGURE OUTPUT ${cuda_probe} CONTENT "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n")
  execute_process(COMMAND ${cuda_command} ${cuda_codes_own} -v -E ${cuda_probe} TIMEOUT 60 OUTPUT_QUIET ERROR_VARIABLE cuda_said RESULT_VARIABLE cuda_failed)
  if(cuda_failed)
    string(REGEX REPLACE "#\\$ [^\n]*\n" "" cuda_why "${cuda_said}") # its variables and commands
    if(cuda_why MATCHES "[^\n]*(error|fatal)[^\n]*")
      set(cuda_why "${CMAKE_MATCH_0}")
    endif()
    string(STRIP "${cuda_why}" cuda_why)
    if(cuda_why STREQUAL "")
      set(cuda_why "it ended with ${cuda_failed}")
    elseif(cuda_why MATCHES "No such file")
      string(APPEND cuda_why "${cuda_remedy}")
    endif()
    set(cuda_missing "${INFINIOP_NVCC} does not work: ${cuda_why}")
  else()
    string(REGEX MATCHALL "\"-[IL][^\"]+" cuda_places "${cuda_said}")
    list(TRANSFORM cuda_places REPLACE "^\"-[IL]" "")
    set(cuda_packaged ${cuda_places})
    list(TRANSFORM cuda_packaged REPLACE "/lib64$" "/lib")
    find_library(cuda_runtime cudart_static PATHS ${cuda_places} ${cuda_packaged} NO_DEFAULT_PATH NO_CACHE)
    find_path(cuda_include cuda_runtime_api.h PATHS ${cuda_places} NO_DEFAULT_PATH NO_CACHE)
    if(NOT cuda_runtime OR NOT cuda_include)
      list(JOIN cuda_places ", " cuda_places)
      set(cuda_missing "${INFINIOP_NVCC} has no libcudart_static.a or no cuda_runtime_api.h in ${cuda_places}${cuda_remedy}")
    endif()
  endif()
endif()
if(cuda_missing)
  if(INFINIOP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "INFINIOP_CUDA=ON: ${cuda_missing}.")
  endif()
  message(STATUS "No NVIDIA backend: ${cuda_missing}")
  return()
endif()
message(STATUS "NVIDIA backend: ${INFINIOP_NVCC}, for ${cuda_architectures}, target infini_cuda")

# ---- the target --------------------------------------------------------------------------------------------------------------
set(cuda_launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
if(INFINIOP_TESTS) # which read the PTX; a compiler cache would bring the object alone
  set(cuda_launcher "")
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda/kept)
  list(APPEND cuda_command --keep --keep-dir=${CMAKE_CURRENT_BINARY_DIR}/cuda/kept)
endif()
set(cuda_written ${CMAKE_CURRENT_BINARY_DIR}/cuda/command)
file(CONFIGURE OUTPUT ${cuda_written} CONTENT "${cuda_command}\n${cuda_codes}\n${cuda_codes_own}\n" @ONLY) # make, unlike ninja, compiles nothing anew for another command
set(cuda_objects "")
file(GLOB cuda_kernels CONFIGURE_DEPENDS src/cuda/*.cu)
foreach(source ${cuda_kernels})
  get_filename_component(name ${source} NAME_WE)
  set(codes ${cuda_codes})
  if(name IN_LIST cuda_own_ptx)
    set(codes ${cuda_codes_own})
  endif()
  set(object cuda/${name}.o) # in the build folder, whose name a compiler cache must not see
  add_custom_command(OUTPUT ${object} DEPENDS ${source} ${cuda_written} DEPFILE ${object}.d COMMENT "Compiling ${name}.cu for ${cuda_architectures}"
    COMMAND ${cuda_launcher} ${cuda_command} ${codes} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object} VERBATIM)
  list(APPEND cuda_objects ${CMAKE_CURRENT_BINARY_DIR}/${object})
endforeach()

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cc)
add_library(infini_cuda MODULE ${cuda_sources} ${cuda_objects} src/core/layout.cc src/core/fork_mutex.cc)
set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_include_directories(infini_cuda PRIVATE include src)
target_include_directories(infini_cuda SYSTEM PRIVATE ${cuda_include})
target_link_libraries(infini_cuda PRIVATE ${cuda_runtime} Threads::Threads ${CMAKE_DL_LIBS} rt)
target_link_options(infini_cuda PRIVATE ${own_runtime} -Wl,-z,nodelete -Wl,--exclude-libs,ALL
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/infini_cuda.map)
set_target_properties(infini_cuda PROPERTIES LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/infini_cuda.map)
if(INFINIOP_CUDA STREQUAL "ON")
  install(TARGETS infini_cuda LIBRARY DESTINATION ${libdir})
else() # what was built may be older than the sources: only who asks for it has it installed
  set_target_properties(infini_cuda PROPERTIES EXCLUDE_FROM_ALL ON)
  install(TARGETS infini_cuda LIBRARY DESTINATION ${libdir} COMPONENT cuda EXCLUDE_FROM_ALL)
endif()
