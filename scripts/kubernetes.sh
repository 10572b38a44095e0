#!/usr/bin/env bash
# Makes the environment of Kubernetes' client and validators: scripts/kubernetes.sh VENV
#
# It is apart from the one of the tests, which only borrow its packages: 240 MB that no run needs.
set -euo pipefail
venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "installing kubernetes, kubernetes-validate and kubeflow-trainer-api"
"$venv/bin/python" -m pip --disable-pip-version-check -qq install -c "$here/constraints.txt" \
  kubernetes==37.0.2 kubernetes-validate==1.37.0 kubeflow-trainer-api==2.3.0
