#!/usr/bin/env bash
# The whole check on a machine with a GPU: tests, benchmark, sanitizers, bank conflicts. Every step runs, whatever
# became of the one before; logs and results go to the output folder, a summary comes last.
#
#   benchmarks/gpu_check.sh [--wheel FILE | --site DIR] [--out DIR] [--only STEP,STEP...] [--suites "SUITE ..."]
#
# --site names a folder that holds an installed jax_gemm. With neither, the one that Python finds is checked.
# Steps: tests, bench, sanitizer, ncu. Without a GPU that jax_gemm can use, nothing is checked and that is a failure.
set -uo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
out=$PWD/gpu-check only=tests,bench,sanitizer,ncu wheel="" site="" suites="large_sm80 f16 tf32 f32"
while [[ $# -gt 0 ]]; do
  case $1 in
    --wheel) wheel=$2 ;;
    --site) site=$2 ;;
    --out) out=$2 ;;
    --only) only=$2 ;;
    --suites) suites=$2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift 2
done

python=${PYTHON:-$([[ -x ${VENV:-.venv}/bin/python ]] && echo "${VENV:-.venv}/bin/python" || echo python3)}
mkdir -p "$out"
# The installed package is what runs, never the folder of the same name in the checkout.
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
if [[ -n $wheel ]]; then
  site=$(mktemp -d)
  timeout 120 "$python" -m pip install --quiet --no-deps --no-index --target "$site" "$wheel" || exit 1
fi
[[ -n $site ]] && export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}

summary=()
profile() { # NAME SECONDS COMMAND...: a step that passes if ncu counted no bank conflict
  local found last=${#summary[@]}
  step "$@"
  found=$(conflicts_of "$out/$1.log") || {
    [[ ${summary[last]} == passed* ]] && summary[last]=FAILED
  }
  summary[last]="${summary[last]%%  *}  $1  $found"
}

step() { # NAME SECONDS COMMAND...: its output to $out/NAME.log
  local name=$1 seconds=$2 status
  shift 2
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  status=$?
  summary+=("$([[ $status == 0 ]] && echo passed || echo "FAILED ($status)")  $name  $(tail -n 1 "$out/$name.log")")
}

# The counters in words; fails unless all four are there, and those of loads, stores and copies 0.
conflicts_of() { # LOG
  awk '$1 ~ /^l1tex__data_bank_conflicts/ { counters++; gsub(",", "", $NF); if ($1 ~ /_op_/ && $NF != "0") bad++
         sub(/.*mem_shared/, "", $1); sub(/^_op_/, "", $1); sub(/\.sum$/, "", $1)
         text = text " " ($1 == "" ? "all" : $1) " " $NF }
       $1 ~ /^sm__pipe_tensor_op_hmma/ { text = text ", tensor pipe " $NF " %" }
       END { print "bank conflicts" (counters ? text : " were not counted"); exit counters != 4 || bad }' "$1"
}

wanted() { [[ ,$only, == *,$1,* ]]; }

timeout 120 "$python" -m jax_gemm info >"$out/info.log" 2>&1
if ! grep -q 'computed by the kernels of jax_gemm' "$out/info.log"; then
  tail -n 4 "$out/info.log"
  echo "FAILED  no GPU that jax_gemm can use: nothing was checked" | tee "$out/summary.txt"
  exit 1
fi

if wanted bench; then
  step bench 580 "$python" -m jax_gemm bench --output "$out/results.jsonl" $(printf -- '--suite %s ' $suites)
fi
if wanted tests; then
  step tests 580 "$python" -m pytest -m gpu -p no:cacheprovider --rootdir "$repository" \
    --junit-xml "$out/tests.xml" "$repository/tests"
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
      profile "ncu-$math-$layout" 120 ncu --clock-control none --kernel-name regex:gemm_kernel --launch-skip 1 \
        --launch-count 1 --metrics "$metrics" "$python" "$repository/benchmarks/profile_one.py" $math $layout
    done
  done
fi

printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"
! grep -q '^FAILED' "$out/summary.txt"
