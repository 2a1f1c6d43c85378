# Cross-compiles for aarch64 and runs the tests under qemu's user mode, in native/:
#     cmake -B build/aarch64 --toolchain cmake/aarch64.cmake -DINFINIOP_TESTS=ON
#     cmake --build build/aarch64 && ctest --test-dir build/aarch64
# Debian, Ubuntu: apt install g++-aarch64-linux-gnu qemu-user
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
find_program(QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${QEMU_AARCH64};-L;/usr/aarch64-linux-gnu")
endif()
