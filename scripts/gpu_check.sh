#!/usr/bin/env bash
# What CI cannot show: the example, unchanged, on a machine with a GPU; then larger shapes, and the
# CPU tests on that machine's torch. Run from the repository root with penstock importable.
set -uo pipefail
export PENSTOCK_HOME=${PENSTOCK_HOME:-/tmp/penstock-home}
python3 -c "import torch, sys; print('python', sys.version.split()[0], 'torch', torch.__version__)"
penstock() { python3 -m penstock "$@"; }
echo "== examples/stdlib.toml"
penstock train examples/stdlib.toml dir=/tmp/runs && penstock train examples/stdlib.toml dir=/tmp/runs --json
echo "== generate"
penstock generate /tmp/runs/stdlib "def main(" --tokens 40
echo "== 160M and 1B shapes"
for shape in "llama-160m data.sequence=1024 train.batch_tokens=65536" \
  "llama-1b data.sequence=2048 train.batch_tokens=65536"; do
  # shellcheck disable=SC2086
  penstock train examples/stdlib.toml dir=/tmp/runs name="gpu-${shape%% *}" model.preset=$shape \
    train.steps=30 evaluate.every=never
done
echo "== deterministic: killed and resumed equals undisturbed"
python3 -m pytest -m gpu -p no:cacheprovider
echo "== layouts and checkpoints on this machine's torch"
CUDA_VISIBLE_DEVICES= python3 -m pytest tests/train tests/guard -p no:cacheprovider
