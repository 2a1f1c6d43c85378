# fuzz_abi, the fuzzer of the C interface in one program with the libraries' sources; tests/reliability/fuzz_abi.py builds and runs
# it. Needs Clang, or AFL++'s wrapper of it. Part of native/CMakeLists.txt, whose options for each source hold here too.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "INFINIOP_FUZZ=ON needs Clang: name it in the environment variable CXX.")
endif()
option(INFINIOP_FUZZ_PLAIN "Fuzz without sanitizers: several times as many inputs a second" OFF)
if(INFINIOP_FUZZ_PLAIN)
  set(watched -O2 -gline-tables-only -fsanitize=fuzzer-no-link)
  set(sanitizers fuzzer)
else()
  set(watched -O1 -gline-tables-only -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address -fno-sanitize-recover=all)
  set(undefined -fsanitize=undefined)
  set(by_calls "SHELL:-mllvm -asan-instrumentation-with-call-threshold=0") # kernels compile in less time than with checks in line
  set(sanitizers fuzzer,address,undefined)
endif()

# Kernels take minutes to compile under UndefinedBehaviorSanitizer, and those of AVX-512 under any: they are watched from outside,
# as the harness keeps operands between pages that cannot be touched. The model's loops are not what is looked for.
foreach(isa ${isas})
  add_kernels(fuzz_kernels ${isa})
  if(isa MATCHES "512|amx")
    target_compile_options(fuzz_kernels_${isa} PRIVATE -O2)
  else()
    target_compile_options(fuzz_kernels_${isa} PRIVATE ${watched} ${by_calls})
  endif()
endforeach()

add_library(fuzz_checked OBJECT EXCLUDE_FROM_ALL ${core_sources} ${rt_sources} ${op_sources} ${cpu_sources} src/cpu/isa.cc
  ${cpu_runtime_source} fuzz/fuzz_abi.cc)
target_compile_options(fuzz_checked PRIVATE ${watched} ${undefined})
add_library(fuzz_model OBJECT EXCLUDE_FROM_ALL fuzz/model.cc)
target_compile_options(fuzz_model PRIVATE -O2)
add_executable(fuzz_abi EXCLUDE_FROM_ALL ${fuzz_kernels_objects})
foreach(part fuzz_checked fuzz_model)
  target_include_directories(${part} PRIVATE src include)
  target_sources(fuzz_abi PRIVATE $<TARGET_OBJECTS:${part}>)
endforeach()
set_target_properties(fuzz_abi PROPERTIES LINKER_LANGUAGE CXX)
target_link_options(fuzz_abi PRIVATE -fsanitize=${sanitizers})
target_link_libraries(fuzz_abi PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
