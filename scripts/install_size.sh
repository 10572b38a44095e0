#!/usr/bin/env bash
# Measures what an install of Penstock adds beside torch: scripts/install_size.sh [EXTRAS] [WHAT]
#
# Makes a fresh environment, installs torch in it, then WHAT (this folder, or a wheel) with EXTRAS
# ("[data]", or nothing). Prints the size of every package that torch did not bring, compiled
# bytecode included, as pip leaves it on the disk.
set -euo pipefail
unset PYTHONPATH
here=$(cd "$(dirname "$0")/.." && pwd)
extras=${1:-} what=${2:-$here}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"${PYTHON:-python3}" -m venv "$made/venv"
python=$made/venv/bin/python
pip=("$python" -m pip --disable-pip-version-check -qq)
torch=$(grep '^torch==' "$here/constraints.txt")
"${pip[@]}" install "$torch+cpu" 2>/dev/null ||
  "${pip[@]}" install "$torch" --extra-index-url https://download.pytorch.org/whl/cpu
"$python" -m pip freeze --all > "$made/before"
"${pip[@]}" install -c "$here/constraints.txt" "$what$extras"
"$python" - "$made/before" <<'PYTHON'
import importlib.metadata as metadata
import os
import re
import sys


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


with open(sys.argv[1]) as file:
    before = {plain(re.split(r"[= @]", line.strip())[0]) for line in file if line.strip()}
sizes = {}
for one in metadata.distributions():
    if plain(one.name) not in before:
        paths = {os.path.realpath(str(one.locate_file(path))) for path in one.files or []}
        sizes[plain(one.name)] = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
for name, size in sorted(sizes.items(), key=lambda pair: -pair[1]):
    print(f"{size / 1e6:8.1f} MB  {name}")
print(f"{sum(sizes.values()) / 1e6:8.1f} MB  in {len(sizes)} packages beside torch")
PYTHON
