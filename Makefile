# Two commands are enough: `make up` for a cluster to look at, `make test` for every test. Both set up what they need.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := $(BIN)/pytest
# A worker that hangs in C hears no alarm of pytest-timeout: it says where it is and ends, and another does its test again.
UNHUNG := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
WORKERS ?= 3
BENCHES := $(patsubst bench/%/__main__.py,%,$(wildcard bench/*/__main__.py))

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.synced: requirements.lock pyproject.toml hatch_build.py src/zonewise/ceph/spec/csi.proto
	@echo "setup: Python packages from requirements.lock"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import uv' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check "$$(grep -o '^uv==[^ ]*' requirements.lock)"
	@$(BIN)/uv pip sync --quiet --require-hashes --compile-bytecode requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup setup-lab
setup-lab: .venv/.synced
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m zonewise.lab.build.setup
setup: setup-lab ## install what everything needs: packages, the lab's control plane, CoreDNS and csi-sanity (built once, cached)
	@$(BIN)/python -m bench.dns.coredns
	@$(BIN)/python -m zonewise.lab.build.csi_sanity

.PHONY: test
test: setup lint ## every check and every test, with coverage of the ground
	@rm -rf .coverage* .pytest_cache
	@if $(PYTEST) $(UNHUNG) -n $(WORKERS) --dist loadgroup --cov --cov-report= --durations=25 --durations-min=5 tests; then \
		$(BIN)/coverage report --include='src/zonewise/kube/*,src/zonewise/topology/*,src/zonewise/objects/*' --fail-under=90; \
	else \
		echo "failed tests run once more, alone; a test that passes then is flaky and goes to tests/flaky.txt"; \
		test -s .pytest_cache/again; cp .pytest_cache/again .pytest_cache/flaky; \
		$(PYTEST) $(UNHUNG) -n 1 --dist loadgroup @.pytest_cache/flaky; \
		sort -u -o tests/flaky.txt tests/flaky.txt .pytest_cache/flaky; cat tests/flaky.txt; \
	fi

.PHONY: test-unit
test-unit: .venv/.synced ## only what decides: pure and fast
	@$(PYTEST) -q -n $(WORKERS) tests/unit

.PHONY: test-cluster
test-cluster: setup ## only what talks to an API server: against a real one
	@$(PYTEST) -n $(WORKERS) --dist loadgroup tests/cluster

.PHONY: test-network
test-network: setup ## only what moves packets: real namespaces and a real kernel (root)
	@$(PYTEST) tests/network

.PHONY: test-storage
test-storage: setup-lab ## only what stores: against a real Ceph, with csi-sanity for RBD and CephFS (root)
	@$(BIN)/python -m zonewise.lab.build.csi_sanity
	@ZONEWISE_FAULTS=long $(PYTEST) -n $(WORKERS) --dist loadgroup tests/storage

.PHONY: test-faults
test-faults: setup ## what is killed, stalled and cut off, as often and as long as it takes to believe
	@ZONEWISE_FAULTS=long $(PYTEST) tests/faults

.PHONY: fuzz-dns
fuzz-dns: .venv/.synced ## packets that nobody would send, 10 million unless RUNS says otherwise, for the DNS server
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/uv pip install --quiet --group fuzz
	@$(BIN)/python tests/support/dns/fuzz.py

.PHONY: lint
lint: .venv/.synced ## format, style, types, and which room may import which
	@$(BIN)/ruff format --check --quiet src tests bench
	@$(BIN)/ruff check --quiet src tests bench
	@$(BIN)/mypy
	@said=$$(PATH="$(CURDIR)/$(BIN):$$PATH" lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }

.PHONY: lock
lock: .venv/.synced ## write requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --group dev --group bench --generate-hashes \
		--no-header --no-annotate --python-version 3.11 --upgrade --output-file requirements.lock

.PHONY: bench
bench: $(BENCHES:%=bench-%) ## every comparison with our peers, one after the other
bench-%: setup
	@$(BIN)/python -m bench.$*

.PHONY: pictures
pictures: .venv/.synced ## draw the plots of docs/simulator.md again, from the large set
	@$(BIN)/zonewise simulate --reproduce large --jobs 2 --pictures docs/pictures

.PHONY: reference
reference: .venv/.synced ## write docs/reference.md anew from the code
	@$(BIN)/python -m zonewise.cli.reference > docs/reference.md.new && mv docs/reference.md.new docs/reference.md

.PHONY: test-chart
test-chart: .venv/.synced ## the Helm chart, rendered by Helm itself (built once, some minutes)
	@test -x build/helm/helm || GOBIN=$(CURDIR)/build/helm go install helm.sh/helm/v3/cmd/helm@v3.19.0
	@$(BIN)/python tests/support/install/helm_chart.py build/helm/helm

.PHONY: up
up: setup ## a three-zone cluster on this machine, with an application, Zonewise and its dashboard in it
	@$(BIN)/zonewise lab up --demo --zonewise $$($(BIN)/python -m zonewise.lab.ceph.cluster)

.PHONY: down
down: ## end that cluster and leave nothing behind
	@test ! -x $(BIN)/zonewise || $(BIN)/zonewise lab down

.PHONY: clean
clean: down ## also remove the virtual environment and build products; the lab's cache stays
	@rm -rf .venv build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests bench -name __pycache__ -prune -exec rm -rf {} +
