#!/usr/bin/env bash
# Makes a virtual environment and installs Penstock in it: scripts/setup.sh VENV EXTRAS
#
# The first line says what the machine has. Torch is installed first, in the pinned version: the CPU
# build where there is no GPU (PyPI's default on Linux is a CUDA build of several GB), PyPI's own
# where there is one. Everything after it finds torch satisfied and leaves it alone.
set -euo pipefail
venv=$1 extras=$2
here=$(cd "$(dirname "$0")/.." && pwd)
torch=$(grep '^torch==' "$here/constraints.txt")

gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU' || true)
if [ "$gpus" -gt 0 ]; then
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | sed 's/^NVIDIA //')
  cuda=$(nvidia-smi | grep -o 'CUDA Version: [0-9.]*' | grep -o '[0-9.]*$' || true)
  echo "$gpus × $name${cuda:+, CUDA $cuda}"
else
  echo "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) CPU cores"
fi

[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check -qq)
if ! "$venv/bin/python" -c "import importlib.metadata as m; assert m.version('torch').split('+')[0] == '${torch#torch==}'" 2>/dev/null; then
  echo "installing $torch"
  if [ "$gpus" -gt 0 ] || [ "$(uname -s)" != Linux ]; then
    "${pip[@]}" install "$torch"
  else
    # A CPU build may already be within reach of this pip; otherwise PyTorch's own index has it.
    "${pip[@]}" install "$torch+cpu" 2>/dev/null ||
      "${pip[@]}" install "$torch" --extra-index-url https://download.pytorch.org/whl/cpu
  fi
fi
echo "installing penstock$extras"
"${pip[@]}" install -c "$here/constraints.txt" -e "$here$extras"
