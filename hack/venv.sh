#!/usr/bin/env bash
# Makes the Python environment from the lock file. Needs Python 3.11 or newer; installs python3-venv where it is missing.
set -euo pipefail
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)

python=""
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
  [ -n "$candidate" ] || continue
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "error: no Python 3.11 or newer found; install one, or set PYTHON=/path/to/python3" >&2
  exit 1
fi

if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing python3-venv"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
  else
    echo "error: $python lacks ensurepip; install python3-venv (apt-get install python3-venv)" >&2
    exit 1
  fi
fi

echo "making $venv with $("$python" --version)"
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r "$root/requirements.lock"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The sources themselves, not a copy of them.
printf '%s\n' "$root/operator" "$root/tests/cluster" "$root/images/engine-sim/src" >"$site/dsv4-sources.pth"
touch "$venv/.ready"
