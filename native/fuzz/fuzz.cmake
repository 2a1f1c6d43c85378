# fuzz_abi, the fuzzer of the C interface in one program with the libraries' sources; tests/reliability/fuzz_abi.py builds and runs
# it. Needs Clang, or AFL++'s wrapper of it. Part of native/CMakeLists.txt, whose options for each source hold here too.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "INFINIOP_FUZZ=ON needs Clang: name it in the environment variable CXX.")
endif()
set(watched -O1 -gline-tables-only -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address -fno-sanitize-recover=all)

# Kernels take minutes to compile under UndefinedBehaviorSanitizer, and those of AVX-512 under any: they are watched from outside,
# as the harness keeps operands between pages that cannot be touched. The model's loops are not what is looked for.
set(checked ${core_sources} ${rt_sources} ${op_sources} ${cpu_sources} ${cpu_runtime_source})
set(kernels ${checked})
list(FILTER kernels INCLUDE REGEX "/kernels_")
list(REMOVE_ITEM checked ${kernels})
set(plain ${kernels})
list(FILTER plain INCLUDE REGEX "avx512")
list(REMOVE_ITEM kernels ${plain})

add_library(fuzz_checked OBJECT EXCLUDE_FROM_ALL ${checked} fuzz/fuzz_abi.cc)
target_compile_options(fuzz_checked PRIVATE ${watched} -fsanitize=undefined)
add_library(fuzz_kernels OBJECT EXCLUDE_FROM_ALL ${kernels})
target_compile_options(fuzz_kernels PRIVATE ${watched})
add_library(fuzz_plain OBJECT EXCLUDE_FROM_ALL ${plain} fuzz/model.cc)
target_compile_options(fuzz_plain PRIVATE -O1)
add_executable(fuzz_abi EXCLUDE_FROM_ALL)
foreach(part fuzz_checked fuzz_kernels fuzz_plain)
  target_include_directories(${part} PRIVATE src include)
  target_sources(fuzz_abi PRIVATE $<TARGET_OBJECTS:${part}>)
endforeach()
set_target_properties(fuzz_abi PROPERTIES LINKER_LANGUAGE CXX)
target_link_options(fuzz_abi PRIVATE -fsanitize=fuzzer,address,undefined)
target_link_libraries(fuzz_abi PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
