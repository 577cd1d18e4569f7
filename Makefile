# `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
CLUSTER := PYTHONPATH=tests/cluster $(PY) -m localcluster

.PHONY: help
help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements.lock hack/venv.sh
	@hack/venv.sh $(VENV)

.PHONY: venv
venv: $(VENV)/.ready ## Make the Python environment from the lock file

.PHONY: demo
demo: $(VENV)/.ready ## Start a cluster, install the operator, serve, toggle, look at the canaries
	@$(PY) hack/demo up

.PHONY: demo-down
demo-down: $(VENV)/.ready ## Remove everything that make demo made
	@$(PY) hack/demo down

.PHONY: check
check: $(VENV)/.ready ## Lint, types, layers, generated files, unit and golden tests (under two minutes)

	@$(MAKE) --no-print-directory -j2 --output-sync=target lint unit-models unit-rest

.PHONY: lint
lint: $(VENV)/.ready
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) -m mypy
	@PYTHONPATH=operator $(VENV)/bin/lint-imports
	@PYTHONPATH=operator $(PY) hack/generate.py --check

# Two halves that take about as long as each other, for two cores.
MODELS := tests/unit/api tests/unit/cli tests/unit/dsv4_canary tests/unit/engine tests/unit/policy

.PHONY: unit
unit: unit-models unit-rest ## Unit, golden and chart tests alone

.PHONY: unit-models
unit-models: $(VENV)/.ready
	@$(PYTEST) -q -m "not processes" $(MODELS)

.PHONY: unit-rest
unit-rest: $(VENV)/.ready
	@$(PYTEST) -q -m "not processes" tests/unit tests/golden tests/chart $(MODELS:%=--ignore=%)

.PHONY: contract
contract: $(VENV)/.ready ## The contract with SGLang: data against 12 wheels, the real ServerArgs (10 GB cache, first time)
	@$(PYTEST) tests/contract

.PHONY: test
test: lint prerequisites ## Everything: check, then tests on the real control plane and the real node
	@$(MAKE) --no-print-directory -j2 programs engines
	@VENV=$(VENV) hack/test.sh

.PHONY: prerequisites
prerequisites: $(VENV)/.ready
	@tests/cluster/install-prerequisites.sh node

# Before the tests, whose time-out of ten minutes a first build or installation can outlast on two busy cores.
.PHONY: programs
programs: $(VENV)/.ready prerequisites
	@$(CLUSTER) build
	@$(CLUSTER) images

.PHONY: engines
engines: $(VENV)/.ready
	@PYTHONPATH=operator $(PY) hack/contract/venvs.py

.PHONY: crds
crds: $(VENV)/.ready ## Regenerate all generated files: CRD, chart copy, reference docs
	@PYTHONPATH=operator $(PY) hack/generate.py

.PHONY: lock
lock: $(VENV)/.ready ## Renew the lock file
	@hack/lock.sh

.PHONY: images
images: $(VENV)/.ready prerequisites ## Build all images with buildah
	@$(CLUSTER) images

.PHONY: cluster-up
cluster-up: $(VENV)/.ready prerequisites ## Start the embedded cluster with a real node, name dev
	@$(CLUSTER) up --name dev --mode node

.PHONY: cluster-down
cluster-down: $(VENV)/.ready ## Remove it
	@$(CLUSTER) down --name dev

.PHONY: clean
clean: ## Remove the Python environment and caches of this checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
