#!/usr/bin/env bash
# Makes the environment of MLflow's client and server: scripts/mlflow.sh VENV
#
# It is apart from the one of the tests: MLflow asks for older versions of pyarrow and
# importlib_metadata than constraints.txt holds. Penstock's reading side needs no torch.
set -euo pipefail
venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "installing mlflow"
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
grep -ivE '^(pyarrow|importlib_metadata)==' "$here/constraints.txt" >"$pins"
"$venv/bin/python" -m pip --disable-pip-version-check -qq install -c "$pins" \
  mlflow==3.17.2 numpy pydantic typer rich xxhash blake3 safetensors tokenizers prometheus-client
