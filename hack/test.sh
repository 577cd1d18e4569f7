#!/usr/bin/env bash
# All tests, in two halves side by side. Those on the clusters mostly wait; the others mostly compute, and go at a lower
# priority so that the clusters do not feel them. Their output is kept in build/test-rest.log and shown at the end.
#
#   hack/test.sh [PYTEST ARGUMENT...]     the arguments go to both halves
set -euo pipefail
cd "$(dirname "$0")/.."
python=${VENV:-.venv}/bin/python
clusters=(tests/cluster tests/e2e)
log=build/test-rest.log
mkdir -p build

set -m  # a job of its own, which an interrupt reaches (bash lets other background processes ignore it)
nice -n 10 "$python" -m pytest -o cache_dir=.pytest_cache/rest tests "${clusters[@]/#/--ignore=}" "$@" >"$log" 2>&1 &
rest=$!
set +m
# An interrupt, or the end of a run that failed early, ends the other half too: pytest then tears down what it started.
trap 'kill -INT "$rest" 2>/dev/null || true; wait "$rest" || true' EXIT
echo "test: tests/cluster and tests/e2e here, all others beside them (log: $log)"

failed=0
"$python" -m pytest "${clusters[@]}" "$@" || failed=$?
if kill -0 "$rest" 2>/dev/null; then
  echo "test: the clusters' half is done; waiting for the others: $(tail -n 1 "$log")"
fi
wait "$rest" || failed=$?
trap - EXIT
cat "$log"
exit "$failed"
