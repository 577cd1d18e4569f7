#!/usr/bin/env bash
# Renews requirements.lock: every dependency of development and tests, with hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m pip install -q --target build/uv uv
PYTHONPATH=build/uv build/uv/bin/uv pip compile pyproject.toml --extra test --python-version 3.11 --universal \
  --generate-hashes --no-header --no-emit-index-url --no-emit-find-links -q -o requirements.lock "$@"
echo "requirements.lock: $(grep -c '==' requirements.lock) packages"
