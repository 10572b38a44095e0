#!/usr/bin/env bash
# What CI cannot show, on a machine with a GPU: scripts/gpu_check.sh [LOGS]. Run from the repository
# root with penstock importable. Every part has its own time limit and log; a failure stops nothing.
set -uo pipefail
logs=${1:-/tmp/penstock-gpu} && mkdir -p "$logs"
export PENSTOCK_HOME=${PENSTOCK_HOME:-/tmp/penstock-home}
python3 -c "import torch, sys; print('python', sys.version.split()[0], 'torch', torch.__version__)"
part() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 began=$SECONDS && shift 2
  timeout "$limit" "$@" >"$logs/$name.log" 2>&1
  echo "== $name: exit $?, $((SECONDS - began)) s" && tail -n 3 "$logs/$name.log"
}
tests() { python3 -m pytest -q -m gpu -p no:cacheprovider "$@"; }
export -f tests
part kernels 150 bash -c "tests tests/train/test_speed_gpu.py tests/model/test_model_moe.py"
part layouts 300 bash -c "tests tests/train/parallel/test_layouts_gpu.py"
part runs 300 bash -c "tests tests/launch/test_launch_gpu.py tests/train/test_train_gpu.py tests/train/optim/test_muon.py"
part adapters 150 bash -c "tests tests/train/parallel/test_lora_gpu.py"
part example 120 python3 -m penstock train examples/stdlib.toml dir="$logs/runs" --fresh --json
