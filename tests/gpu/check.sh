#!/usr/bin/env bash
# Builds the library with the NVIDIA backend from the sources here, checks or times it on the card that is there, and says what came
# of it in a form that LOG.md takes. Needs nvcc, cmake, a C++ compiler and Python; no network. Each mode takes less than ten minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
    cat <<'EOF'
usage: tests/gpu/check.sh correctness      operators, backend contract and Python tests on the device, then compute-sanitizer
       tests/gpu/check.sh results          the first part of that: without compute-sanitizer
       tests/gpu/check.sh sanitizers       the second part
       tests/gpu/check.sh perf [OPTIONS]   the table of tests/gpu/perf.py, which takes the options
       tests/gpu/check.sh build ARCH       the build alone, as for 90-real; needs no device
Environment:
  OUT      a folder for LOG-section.md, checks.log and perf.json (default: build/gpu, which all else is written to)
  PYTHON   the interpreter, with what the checks need: cffi, numpy, torch, pytest, hypothesis, ml_dtypes (default: python3)
  COMMIT   what to call the sources where there is no .git
  BUILT    1: what `check.sh build` left in these folders, here or elsewhere, is used and nothing is built
  SECONDS_IN_ALL   after which what still runs is stopped (default: 570)
Exit status 0 if every check that could be run passed.
EOF
}

mode=${1:-} python=${PYTHON:-python3} deadline=${SECONDS_IN_ALL:-570} failed=0
case $mode in
    correctness | results | sanitizers | perf) shift ;;
    build) architecture=${2:?tests/gpu/check.sh build needs an architecture, as 90-real} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac
logs=$PWD/build/gpu
out=$(realpath -m "${OUT:-$logs}")
mkdir -p "$logs" "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

if [ "$mode" != build ]; then
    if ! command -v nvidia-smi >/dev/null; then
        echo "tests/gpu/check.sh: no NVIDIA device can be used here: there is no nvidia-smi" >&2
        exit 1
    fi
    if ! card=$(nvidia-smi -i 0 --query-gpu=name --format=csv,noheader 2>&1); then
        echo "tests/gpu/check.sh: no NVIDIA device can be used here: $card" >&2
        exit 1
    fi
    driver=$(nvidia-smi -i 0 --query-gpu=driver_version --format=csv,noheader)
    architecture=$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader | tr -d '. ')-real
fi
commit=${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo "not known, no .git here")}

has() { "$python" -c "import $1" 2>/dev/null; }
say() { printf '%s\n' "$*" | tee -a "$out/LOG-section.md"; }
missing() { # PACKAGE...: those that Python does not have
    local name
    for name; do has "$name" || printf ' %s' "$name"; done
}

# Builds plugin, library and test_operators. Without cffi there is no Python package, but the rest of it.
build() {
    local options=(-DCMAKE_BUILD_TYPE=Release -DINFINIOP_CUDA=ON "-DINFINIOP_CUDA_ARCHITECTURES=$architecture" -DINFINIOP_TESTS=ON)
    if has cffi; then PYTHON=$python ./build_native.sh --cuda --cuda-architectures "$architecture" || return; fi
    cmake -S native -B "$folder" "${options[@]}" && cmake --build "$folder" --parallel "$(nproc)" --target test_operators infini_cuda
}
folder=$PWD/build/native-cpp
if has cffi; then folder=$PWD/build/native-release; fi
if [ "${BUILT:-0}" = 1 ]; then
    # What was linked elsewhere names folders of there.
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
elif ! build >"$logs/build.log" 2>&1; then
    tail -n 40 "$logs/build.log"
    cp "$logs/build.log" "$out/checks.log"
    echo "tests/gpu/check.sh: the build failed, see $out/checks.log" >&2
    exit 1
fi
if [ "$mode" = build ]; then
    echo "built for $architecture in $SECONDS s: $folder/libinfini_cuda.so"
    exit 0
fi

: >"$out/LOG-section.md"
: >"$out/checks.log"
say "## $(date -u +%Y-%m-%d), $mode, $commit"
say ""
say "- card: $card, driver $driver, $(nvcc --version 2>/dev/null | sed -n 's/^Cuda compilation tools, //p' || true)"
if [ "${BUILT:-0}" = 1 ]; then how="built elsewhere"; else how="built for $architecture in $SECONDS s"; fi
say "- $how; left out: ctest, which needs no device"

# ---- checks: several at a time, because none of them is timed ---------------------------------------------------------------------
names=() pids=() until=$deadline
check() { # NAME COMMAND...: starts one; what it says goes to NAME.log
    local name=$1
    shift
    (
        start=$SECONDS status=0
        timeout $((until > SECONDS ? until - SECONDS : 1)) "$@" >"$logs/$name.log" 2>&1 || status=$?
        printf '%s' "$((SECONDS - start))" >"$logs/$name.seconds"
        exit "$status"
    ) &
    names+=("$name") pids+=($!)
}
finish() { # waits for those that run, and says how each ended
    local i status seconds last
    for i in "${!names[@]}"; do
        status=0
        wait "${pids[i]}" || status=$?
        seconds=$(cat "$logs/${names[i]}.seconds")
        last=$(grep -v '^ *$' "$logs/${names[i]}.log" | tail -n 1 | cut -c 1-160 || true)
        case $status in
            0) say "- ${names[i]}: passed in $seconds s: $last" ;;
            124) say "- ${names[i]}: FAILED, stopped after $seconds s" ;;
            *) say "- ${names[i]}: FAILED with status $status after $seconds s: $last" ;;
        esac
        { echo "==== ${names[i]}" && cat "$logs/${names[i]}.log"; } >>"$out/checks.log"
        if [ "$status" != 0 ]; then
            failed=1
            tail -n 60 "$logs/${names[i]}.log"
        fi
    done
    names=() pids=()
}

plugin=$folder/libinfini_cuda.so
operators=("$folder/tests/test_operators" --plugin "$plugin" --device 1)
# Where no Python has loaded torch's cublasLt, the linker may not find it.
if [ -z "${INFINIOP_CUBLASLT_PATH:-}" ]; then
    wheel=$("$python" -c 'import nvidia, glob; print(*[f for p in nvidia.__path__ for f in glob.glob(p + "/*/lib/libcublasLt.so.1[23]")])' 2>/dev/null || true)
    wheel=${wheel%% *}
else
    wheel=$INFINIOP_CUBLASLT_PATH
fi
with_wheel=(env)
if [ -n "$wheel" ]; then with_wheel=(env "INFINIOP_CUBLASLT_PATH=$wheel"); fi

results() {
    check operators "${with_wheel[@]}" "${operators[@]}"
    check operators_gemv_tiled env INFINIOP_CUDA_GEMM=gemv,tiled "${operators[@]}"
    check operators_tiled env INFINIOP_CUDA_GEMM=tiled "${operators[@]}"
    local lacks
    lacks=$(missing cffi numpy pytest hypothesis)
    if [ -n "$lacks" ]; then
        say "- pytest: left out, $python has no$lacks"
    else
        has ml_dtypes || say "- BF16 of conformance and tests/gpu/test_device.py: left out, $python has no ml_dtypes"
        has torch || say "- tests/gpu/test_torch.py: left out, $python has no torch"
        # What the packages of this machine warn of is no fault.
        check pytest "$python" -m pytest -q -p no:cacheprovider -W default -m gpu tests/gpu
    fi
    finish
    lacks=$(missing cffi numpy)
    if [ -n "$lacks" ]; then
        say "- conformance: left out, $python has no$lacks"
    else # alone: one of its rules asks what memory is left when all is freed
        check conformance "${with_wheel[@]}" "$python" -m infiniop_py conformance infiniop_py/_lib/libinfini_cuda.so
    fi
    finish
}

sanitizers() {
    if ! command -v compute-sanitizer >/dev/null; then
        say "- compute-sanitizer: left out, it is not on PATH"
        return
    fi
    # Kernels of our own alone; a call that fails and may is not an error here.
    local tool
    for tool in memcheck racecheck initcheck synccheck; do
        check "$tool" env INFINIOP_CUDA_GEMM=gemv,tiled compute-sanitizer --tool "$tool" --error-exitcode 99 \
            --report-api-errors no "${operators[@]}" --every 61
    done
    finish
}

perf() {
    local lacks
    lacks=$(missing cffi numpy torch)
    if [ -n "$lacks" ]; then
        say "- perf: left out, $python has no$lacks"
        failed=1
        return
    fi
    rm -f "$logs/perf.md"
    check perf "$python" tests/gpu/perf.py --seconds $((deadline - SECONDS - 30)) --json "$out/perf.json" --markdown "$logs/perf.md" "$@"
    finish
    if [ -f "$logs/perf.md" ]; then { echo && cat "$logs/perf.md"; } >>"$out/LOG-section.md"; fi
}

case $mode in
    correctness)
        until=$((deadline - 150)) # what follows wants time, too
        results
        until=$deadline
        sanitizers
        ;;
    results) results ;;
    sanitizers) sanitizers ;;
    perf) perf "$@" ;;
esac
printf '\n'
cat "$out/LOG-section.md"
exit $failed
