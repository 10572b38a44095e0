#!/usr/bin/env bash
# Tries the wheel as a user does, without the repository: scripts/try_install.sh WHEEL [WAY…]
#
# WAY is pip, uv or pipx; all three by default. Each gets a new environment, and an empty folder in
# which the verbs run. pip installs torch first: the CPU build that pip is set up to find, which uv
# and pipx would not choose (TORCH_PIP_ARGS says more to it). Prints a table; exits with 1 if any
# step failed, and keeps the outputs then.
set -uo pipefail
unset PYTHONPATH
here=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "$1")
shift
ways=("${@:-}")
[ -n "${ways[0]}" ] || ways=(pip uv pipx)
python=${PYTHON:-python3}
torch=$(grep '^torch==' "$here/constraints.txt")
read -r -a torch_args <<< "${TORCH_PIP_ARGS:-}"
work=$(mktemp -d)
cp "$here/constraints.txt" "$work/"
failures=0
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PIP_DISABLE_PIP_VERSION_CHECK=1
export PIPX_HOME=$work/pipx PIPX_DEFAULT_PYTHON=$python

# Runs one step of a way and prints its row: step WAY NAME COMMAND…
step() {
  local way=$1 name=$2 from outcome=ok
  shift 2
  from=$EPOCHREALTIME
  "$@" > "$work/$way-$name.log" 2>&1 || { outcome="FAILED ($?)"; failures=$((failures + 1)); }
  awk -v way="$way" -v name="$name" -v outcome="$outcome" -v s="$from" -v e="$EPOCHREALTIME" \
    'BEGIN { printf "%-5s %-10s %-12s %6.1f s\n", way, name, outcome, e - s }'
  [ "$outcome" = ok ] || tail -n 8 "$work/$way-$name.log" >&2
}

install_with_pip() {
  "$python" -m venv "$work/with-pip" &&
    "$work/with-pip/bin/pip" install -q "$torch" "${torch_args[@]}" &&
    "$work/with-pip/bin/pip" install -q -c "$work/constraints.txt" "$wheel"
}

install_with_uv() {
  "$python" -m venv "$work/tools" && "$work/tools/bin/pip" install -q uv &&
    "$python" -m venv "$work/with-uv" &&
    "$work/with-uv/bin/pip" install -q "$torch" "${torch_args[@]}" &&
    "$work/tools/bin/uv" pip install -q --python "$work/with-uv/bin/python" \
      -c "$work/constraints.txt" "$wheel"
}

# pipx makes its environment when it first runs the wheel, and finds it again after that.
with_pipx=("$work/pipx-tools/bin/pipx" run --spec "$wheel"
  --pip-args "-c $work/constraints.txt ${TORCH_PIP_ARGS:-}" penstock)
install_with_pipx() {
  "$python" -m venv "$work/pipx-tools" && "$work/pipx-tools/bin/pip" install -q pipx &&
    "${with_pipx[@]}" --version
}

# Starts the page and loads it with all files that it names, directly or through each other.
watch_page() {
  rm -f "$work/address" # of the way before
  "$@" watch --no-open --port 0 > "$work/address" 2>&1 &
  local server=$! found=1
  for _ in $(seq 300); do
    grep -qs '^http' "$work/address" && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.2
  done
  "$python" - "$(grep -m 1 '^http' "$work/address")" <<'PYTHON' && found=0
import re
import sys
import urllib.parse
import urllib.request

address, seen = sys.argv[1], set()
ahead = [urllib.parse.urljoin(address, "/"), urllib.parse.urljoin(address, "/api/runs")]
while ahead:
    one = ahead.pop()
    if one in seen:
        continue
    seen.add(one)
    with urllib.request.urlopen(one, timeout=60) as answer:
        text = answer.read().decode()
    for name in re.findall(r'"(/static/[^"]+|\./[^"]+\.js)"', text):
        ahead.append(urllib.parse.urljoin(one, name))
print(len(seen), "files")
if not any("uPlot" in one for one in seen) or len(seen) < 10:
    sys.exit(f"only these were named: {sorted(seen)}")
PYTHON
  kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  return "$found"
}

verbs() {
  local way=$1
  shift
  mkdir -p "$work/in-$way" && cd "$work/in-$way" || exit 1
  export PENSTOCK_HOME=$work/in-$way/home
  step "$way" help "$@" --help
  step "$way" init "$@" init
  step "$way" check "$@" check run.toml
  step "$way" plan "$@" plan run.toml
  step "$way" train "$@" train run.toml train.tokens=20K
  step "$way" report "$@" report first-run
  step "$way" generate "$@" generate first-run "def main(" --tokens 8
  step "$way" catalog "$@" catalog models
  step "$way" watch watch_page "$@"
}

for way in "${ways[@]}"; do
  step "$way" install "install_with_$way"
  case $way in
    pip) verbs pip "$work/with-pip/bin/penstock" ;;
    uv) verbs uv "$work/with-uv/bin/penstock" ;;
    pipx) verbs pipx "${with_pipx[@]}" ;;
  esac
done
cd /
if [ "$failures" -gt 0 ]; then
  echo "$failures steps failed; their outputs are in $work" >&2
  exit 1
fi
rm -rf "$work"
