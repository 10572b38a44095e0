#!/usr/bin/env bash
# Makes the environment of the libraries that the benchmarks stand beside: scripts/peers.sh VENV
#
# They live apart from Penstock's own, which needs none of them. Torch comes first and stays: litdata
# asks for torchvision, which would bring another torch, and uses it for images alone.
set -euo pipefail
venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHON="${PYTHON:-python3}" "$here/scripts/setup.sh" "$venv" "[data]"
pip=("$venv/bin/python" -m pip --disable-pip-version-check -qq)
echo "installing the peers"
"${pip[@]}" install -c <(grep '^torch==' "$here/constraints.txt") \
  'datatrove[processing]==0.10.1' spacy==3.8.18 nltk==3.10.4 \
  datasketch==2.0.0 tiktoken==0.14.0 boto3==1.44.0 transformers==5.22.2
"${pip[@]}" install --no-deps litdata==0.2.76 lightning-utilities==0.15.3
