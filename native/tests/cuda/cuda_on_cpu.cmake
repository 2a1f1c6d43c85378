# The NVIDIA backend on the CPU: its sources as they are, its kernels run by engine.h, CUDA's runtime by fake_cudart.cc. A plugin, for
# the tests of Python and for that of the operators, and programs that need nothing else.
file(GLOB cuda_sources CONFIGURE_DEPENDS ../src/cuda/*.cc ../src/cuda/*.cu)
set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX)
add_library(cuda_on_cpu MODULE ${cuda_sources} cuda/engine.cc cuda/fake_cudart.cc ../src/core/layout.cc ../src/core/fork_mutex.cc)
target_include_directories(cuda_on_cpu PRIVATE cuda/fake cuda ../include ../src)
target_link_libraries(cuda_on_cpu PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(cuda_on_cpu PRIVATE ${own_runtime} -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cuda/cuda_on_cpu.map)
set_target_properties(cuda_on_cpu PROPERTIES PREFIX "")
add_dependencies(cpp_tests cuda_on_cpu)
# Kernels of many templates: compiled in half the time, with sanitizers in a third, and of many cases one in so many: odd, as is an
# eighth of it, so that all types have turns.
if(INFINIOP_SANITIZE)
  target_compile_options(cuda_on_cpu PRIVATE -O0)
  set(cuda_every 97)
  set(schedules greedy) # of both
else()
  target_compile_options(cuda_on_cpu PRIVATE -O1)
  set(cuda_every 17)
endif()
set(on_cuda test_operators --plugin $<TARGET_FILE:cuda_on_cpu> --device 1 --every)

if(INFINIOP_SANITIZE STREQUAL "thread") # which a block's threads are threads for: what fibers find, they do not
  add_test(NAME operators_cuda_threads COMMAND ${on_cuda} 499)
  set_tests_properties(operators_cuda_threads PROPERTIES COST 100) # the longest starts first
  return()
endif()
foreach(schedule greedy=0,seed=1 greedy=1,seed=2)
  string(REGEX REPLACE "greedy=([01]).*" "operators_cuda_\\1" name ${schedule})
  add_test(NAME ${name} COMMAND ${on_cuda} ${cuda_every})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT INFINI_FAKE_CUDA=${schedule})
endforeach()

add_executable(test_cuda_engine test_cuda_engine.cc cuda/engine.cc ../src/cuda/map_plan.cc ../src/core/layout.cc)
add_executable(test_cuda_gemm test_cuda_gemm.cc cuda/engine.cc)
foreach(name cuda_engine cuda_gemm)
  target_include_directories(test_${name} PRIVATE cuda/fake . cuda ../include ../src)
  target_link_libraries(test_${name} PRIVATE Threads::Threads)
  add_dependencies(cpp_tests test_${name})
endforeach()
target_compile_options(test_cuda_gemm PRIVATE -O1) # in an eighth of the time; it takes a third longer
add_test(NAME cuda_engine COMMAND test_cuda_engine)
add_test(NAME cuda_gemm COMMAND test_cuda_gemm ${schedules})
set_tests_properties(cuda_gemm PROPERTIES COST 100) # the longest starts first

# cublasLt on the CPU, under the name that the process knows the real one by.
add_library(fake_cublaslt MODULE cuda/fake_cublaslt.cc)
target_include_directories(fake_cublaslt PRIVATE ../include ../src)
target_link_libraries(fake_cublaslt PRIVATE ${CMAKE_DL_LIBS})
target_link_options(fake_cublaslt PRIVATE ${own_runtime} -Wl,-soname,libcublasLt.so.13)
set_target_properties(fake_cublaslt PROPERTIES PREFIX "")
add_dependencies(cpp_tests fake_cublaslt)
add_test(NAME operators_cublaslt COMMAND ${on_cuda} ${cuda_every})
set_tests_properties(operators_cublaslt PROPERTIES ENVIRONMENT
  "INFINIOP_CUDA_GEMM=cublaslt;INFINIOP_CUBLASLT_PATH=$<TARGET_FILE:fake_cublaslt>")
