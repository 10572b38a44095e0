#!/usr/bin/env bash
# Installs Prometheus, which a test has scrape the metrics; does nothing where there is one, and says
# so where it cannot.
set -euo pipefail
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no Prometheus, and no way to install it here: its tests are skipped" >&2
  exit 0
fi
echo "installing prometheus"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
