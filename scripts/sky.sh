#!/usr/bin/env bash
# Makes the environment of SkyPilot, whose parser the tests ask: scripts/sky.sh VENV
#
# It is apart from the one of the tests: SkyPilot brings 519 MB and versions of its own.
set -euo pipefail
venv=$1
[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "installing skypilot"
"$venv/bin/python" -m pip --disable-pip-version-check -qq install 'skypilot[kubernetes]==0.14.1'
