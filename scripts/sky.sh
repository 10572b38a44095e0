#!/usr/bin/env bash
# Makes the environment of SkyPilot, by which the tests parse tasks and start jobs: scripts/sky.sh VENV
#
# It is apart from the one of the tests: SkyPilot brings 519 MB and versions of its own.
set -euo pipefail
venv=$1
[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "installing skypilot"
"$venv/bin/python" -m pip --disable-pip-version-check -qq install 'skypilot[kubernetes,slurm]==0.14.1' uv
