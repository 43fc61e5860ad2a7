#!/usr/bin/env bash
# The whole check on a machine with a GPU: tests, benchmark, sanitizers, bank conflicts. Every step runs, whatever
# became of the one before; logs and results go to the output folder, a summary comes last.
#
#   benchmarks/gpu_check.sh [--wheel FILE] [--out DIR] [--only STEP,STEP...] [--suites "SUITE ..."]
#
# Without --wheel the jax_gemm that Python finds is checked. Steps: tests, bench, sanitizer, ncu.
set -uo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
out=$PWD/gpu-check only=tests,bench,sanitizer,ncu wheel="" suites="large_sm80 f16 tf32 f32"
while [[ $# -gt 0 ]]; do
  case $1 in
    --wheel) wheel=$2 ;;
    --out) out=$2 ;;
    --only) only=$2 ;;
    --suites) suites=$2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift 2
done

python=${PYTHON:-$([[ -x ${VENV:-.venv}/bin/python ]] && echo "${VENV:-.venv}/bin/python" || echo python3)}
mkdir -p "$out"
# The installed package is what runs, never the folder of the same name in the checkout.
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
if [[ -n $wheel ]]; then
  site=$(mktemp -d)
  "$python" -m pip install --quiet --no-deps --no-index --target "$site" "$wheel" || exit 1
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi

summary=()
step() { # NAME SECONDS COMMAND...: its output to $out/NAME.log
  local name=$1 seconds=$2 status
  shift 2
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  status=$?
  summary+=("$([[ $status == 0 ]] && echo passed || echo "FAILED ($status)")  $name  $(tail -n 1 "$out/$name.log")")
}

wanted() { [[ ,$only, == *,$1,* ]]; }

if wanted bench; then
  step bench 580 "$python" -m jax_gemm bench --output "$out/results.jsonl" $(printf -- '--suite %s ' $suites)
fi
if wanted tests; then
  step tests 580 "$python" -m pytest -m gpu -p no:cacheprovider --rootdir "$repository" "$repository/tests"
fi
if wanted sanitizer; then
  for tool in memcheck racecheck initcheck; do
    # All kernels, not ours alone: initcheck has to see what XLA's write, too.
    step "sanitizer-$tool" 580 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$python" "$repository/benchmarks/sanitize.py"
  done
fi
if wanted ncu; then
  conflicts=l1tex__data_bank_conflicts_pipe_lsu_mem_shared
  metrics=$conflicts.sum,${conflicts}_op_ld.sum,${conflicts}_op_st.sum
  metrics+=,l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum
  metrics+=,sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active,gpu__time_duration.sum
  for math in bf16 f16 tf32 f32; do
    for layout in nn nt tn tt; do
      step "ncu-$math-$layout" 120 ncu --clock-control none --kernel-name regex:gemm_kernel --launch-skip 1 \
        --launch-count 1 --metrics "$metrics" "$python" "$repository/benchmarks/profile_one.py" $math $layout
    done
  done
fi

printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"
! grep -q '^FAILED' "$out/summary.txt"
