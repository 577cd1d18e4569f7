#!/usr/bin/env bash
# Renews the lock files: development and tests, and one for each Python image. Hashes, and no addresses of an index.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m pip install -q --upgrade --target build/uv uv
compile() {
  PYTHONPATH=build/uv build/uv/bin/uv pip compile --python-version 3.11 --universal --generate-hashes --no-header \
    --no-emit-index-url --no-emit-find-links -q "$@"
}
compile pyproject.toml --extra test -o requirements.lock
compile pyproject.toml --extra operator -o images/operator/requirements.lock
compile images/router/requirements.in -o images/router/requirements.lock
compile images/canary/requirements.in -o images/canary/requirements.lock
[ ! -f images/engine-sim/requirements.lock ] || compile images/engine-sim/pyproject.toml -o images/engine-sim/requirements.lock
grep -c '==' requirements.lock images/*/requirements.lock
