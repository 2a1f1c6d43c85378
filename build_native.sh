#!/usr/bin/env bash
# Configures, builds and installs the native libraries into infiniop_py/_lib/.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
    cat <<'EOF'
usage: ./build_native.sh [options]
  --debug       -O1 with debug information
  --asan        with AddressSanitizer and UndefinedBehaviorSanitizer
  --tsan        with ThreadSanitizer, and the portable kernels alone: threads are the same to all
  --cuda        with the NVIDIA backend, or fail
  --cuda-architectures L
                for these alone, as 90-real (default: 80-real;90-real;100, in three times the time)
  --isas L      kernels for these instruction sets, see INFINIOP_ISAS in native/CMakeLists.txt, and the portable ones
  --tests       also build the C++ tests and run them
  --tests-only  build the C++ tests and what they need, run them, install nothing
  --jobs N      compile N files at a time (default: one a CPU)
  --prefix D    install into D instead of infiniop_py/_lib
EOF
}

build_type=Release sanitize="" cuda=AUTO tests=OFF targets="" jobs=$(nproc) prefix=$PWD/infiniop_py/_lib variant=release
isas=-UINFINIOP_ISAS
architectures=-UINFINIOP_CUDA_ARCHITECTURES # what an earlier call named, as is INFINIOP_NVCC
while [ $# -gt 0 ]; do
    case $1 in
        --debug) build_type=Debug variant=debug ;;
        --asan) build_type=Debug sanitize=address,undefined variant=asan ;;
        --tsan) build_type=Debug sanitize=thread variant=tsan isas=-DINFINIOP_ISAS= ;;
        --cuda) cuda=ON ;;
        --cuda-architectures) architectures=-DINFINIOP_CUDA_ARCHITECTURES=${2:?--cuda-architectures needs a list}; shift ;;
        --isas) isas=-DINFINIOP_ISAS=${2:?--isas needs a list}; shift ;;
        --tests) tests=ON ;;
        --tests-only) tests=ON targets="--target cpp_tests" ;;
        --jobs) jobs=${2:?--jobs needs a number}; shift ;;
        --prefix) prefix=$(realpath -m "${2:?--prefix needs a folder}"); shift ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done

if ! command -v ${CXX:-c++ g++ clang++} >/dev/null; then # any of these
    echo "build_native.sh: no C++ compiler was found (${CXX:-c++ g++ clang++}); install one (Debian, Ubuntu: apt install g++) or name it in CXX." >&2
    exit 1
fi
if ! command -v cmake >/dev/null; then
    echo "build_native.sh: cmake was not found; install it: pip install cmake" >&2
    exit 1
fi

build=build/native-$variant
cmake -S native -B "$build" -DCMAKE_BUILD_TYPE=$build_type -DINFINIOP_FLAT_INSTALL=ON -DINFINIOP_SANITIZE="$sanitize" \
    -DINFINIOP_CUDA=$cuda -UINFINIOP_NVCC "$architectures" -DINFINIOP_TESTS=$tests -DPython_EXECUTABLE="$(command -v "${PYTHON:-python3}")" \
    "$isas"
cmake --build "$build" --parallel "$jobs" $targets
if [ $tests = ON ]; then ctest --test-dir "$build" --output-on-failure --parallel "$jobs"; fi
if [ -z "$targets" ]; then
    cmake --install "$build" --prefix "$prefix"
    if [ $cuda != ON ]; then rm -fv "$prefix/libinfini_cuda.so"; fi # an earlier call's, of other sources
fi
