# `make up` starts a cluster with Zonewise, `make test` runs every test. Both install what they need.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := $(BIN)/pytest
# pytest-timeout can't interrupt a worker that hangs in C. This prints the worker's stacks and ends it; its test runs again at the end.
FAULTHANDLER := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
WORKERS ?= 3
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11
BENCHES := $(patsubst bench/%/__main__.py,%,$(wildcard bench/*/__main__.py))

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.synced: requirements.lock pyproject.toml hatch_build.py $(wildcard src/zonewise/ceph/spec/*.proto)
	@echo "setup: Python packages from requirements.lock"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import uv' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check "$$(grep -o '^uv==[^ ]*' requirements.lock)"
	@$(BIN)/uv pip sync --quiet --require-hashes --compile-bytecode requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup setup-lab
setup-lab: .venv/.synced # what a lab needs, and no more
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m zonewise.lab.build.setup
setup: setup-lab ## Install all dependencies of tests and benchmarks too: Chromium, CoreDNS, csi-sanity, containerd, images, Kubernetes' own tests (built once, cached).
	@$(BIN)/python -m zonewise.lab.build.setup --tests
	@$(BIN)/python -m bench.dns.coredns
	@$(BIN)/python -m bench.dns.coredns_cases
	@$(BIN)/python -m zonewise.lab.build.csi_sanity
	@test "$$(id -u)" != 0 || { $(BIN)/zonewise lab image build && $(BIN)/zonewise lab image build --csi; } >/dev/null
	@test "$$(id -u)" != 0 || PYTHONPATH=src:tests $(BIN)/python -m support.conformance conformance --build-only

.PHONY: test
test: setup lint ## Run every check and test; coverage of kube, topology and objects must reach 90 %.
	@rm -rf .coverage* .pytest_cache
	@if $(PYTEST) $(FAULTHANDLER) -n $(WORKERS) --dist loadgroup --cov --cov-report= --durations=25 --durations-min=5 tests; then \
		$(BIN)/coverage report --include='src/zonewise/kube/*,src/zonewise/topology/*,src/zonewise/objects/*' --fail-under=90; \
	else \
		echo "failed tests run once more, alone; a test that passes then is flaky and goes to tests/flaky.txt"; \
		test -s .pytest_cache/again; cp .pytest_cache/again .pytest_cache/flaky; \
		$(PYTEST) $(FAULTHANDLER) -n 1 --dist loadgroup @.pytest_cache/flaky; \
		sort -u -o tests/flaky.txt tests/flaky.txt .pytest_cache/flaky; cat tests/flaky.txt; \
	fi

.PHONY: test-unit
test-unit: .venv/.synced ## Run the unit tests: no cluster, no root, about a minute.
	@$(PYTEST) -q -n $(WORKERS) tests/unit

.PHONY: test-cluster
test-cluster: setup ## Run the tests against a real API server.
	@$(PYTEST) -n $(WORKERS) --dist loadgroup tests/cluster

.PHONY: test-network
test-network: setup ## Run the tests of packets, in network namespaces of the kernel (root).
	@$(PYTEST) tests/network

.PHONY: test-storage
test-storage: setup-lab ## Run the tests against a real Ceph, with csi-sanity for RBD and CephFS (root).
	@$(BIN)/python -m zonewise.lab.build.csi_sanity
	@ZONEWISE_FAULTS=long $(PYTEST) -n $(WORKERS) --dist loadgroup tests/storage

.PHONY: test-faults
test-faults: setup ## Run the fault tests (kill, stall, cut off) in their long form, about an hour; the table goes to docs/reliability.md.
	@ZONEWISE_FAULTS=long ZONEWISE_FAULT_REPORT=docs/reliability.md $(PYTEST) -n 2 --dist loadgroup tests/faults
	@ZONEWISE_FAULTS=long $(PYTEST) tests/network/test_container_images.py::test_image_built_twice_has_the_same_digest

TIER ?= conformance
.PHONY: e2e
e2e: setup-lab ## Run Kubernetes' own tests in labs, ours beside stock (TIER=conformance, SETUP=ours); the table goes to docs/conformance.md.
	@PYTHONPATH=src:tests $(BIN)/python -m support.conformance $(TIER) $(if $(SETUP),--setup $(SETUP)) $(if $(NAME),--name $(NAME)) $(if $(FOCUS),--focus '$(FOCUS)')

.PHONY: fuzz
fuzz: .venv/.synced ## Fuzz all that reads foreign input (FUZZ="dns dumps" RUNS=1000000, or REPLAY=build/fuzz/NAME-crash-...).
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/uv pip install --quiet --group fuzz \
		|| echo "fuzz: atheris can't be installed: inputs are mutated without regard to coverage"
	@PYTHONPATH=src:tests $(BIN)/python -m support.fuzz.run $(if $(REPLAY),--replay $(REPLAY),$(FUZZ))

.PHONY: lint
lint: .venv/.synced ## Check format, style, types and imports between packages.
	@$(BIN)/ruff format --check --quiet src tests bench
	@$(BIN)/ruff check --quiet src tests bench
	@$(BIN)/mypy
	@MYPYPATH=. $(BIN)/mypy --config-file tests/mypy.ini
	@output=$$(PATH="$(CURDIR)/$(BIN):$$PATH" lint-imports --no-logo 2>&1) || { echo "$$output"; exit 1; }

.PHONY: lock
lock: .venv/.synced ## Update the lock files from pyproject.toml, to the newest versions.
	@$(LOCK) pyproject.toml --all-extras --group dev --group bench --upgrade --output-file requirements.lock
	@rm -f requirements-image.lock requirements-build.lock # parts of it: what an image holds, and what builds a wheel
	@$(LOCK) pyproject.toml --extra csi --constraint requirements.lock --output-file requirements-image.lock
	@$(LOCK) --group build --constraint requirements.lock --output-file requirements-build.lock

.PHONY: bench
bench: $(BENCHES:%=bench-%) ## Run every benchmark, one after the other; `make bench-NAME` runs one.
bench-%: setup
	@$(BIN)/python -m bench $*

.PHONY: pictures
pictures: .venv/.synced ## Redraw the plots of docs/simulator.md, from the data set `large`.
	@$(BIN)/zonewise simulate --reproduce large --jobs 2 --pictures docs/pictures

.PHONY: reference
reference: .venv/.synced ## Regenerate docs/reference.md from the code.
	@$(BIN)/python -m zonewise.cli.reference > docs/reference.md.new && mv docs/reference.md.new docs/reference.md

.PHONY: test-chart
test-chart: .venv/.synced ## Render the Helm chart with Helm and compare it with `zonewise install` (Helm is built once, some minutes).
	@test -x build/helm/helm || GOBIN=$(CURDIR)/build/helm go install helm.sh/helm/v3/cmd/helm@v3.19.0
	@$(BIN)/python tests/support/install/helm_chart.py build/helm/helm

.PHONY: image image-csi
image: .venv/.synced ## Build the container image of the programs, without a registry (root); image-csi: the one with Ceph's libraries.
	@$(BIN)/zonewise lab image build
image-csi: .venv/.synced
	@$(BIN)/zonewise lab image build --csi

.PHONY: up
up: setup-lab ## Start a three-zone cluster on this machine, with an application, Zonewise and its dashboard.
	@$(BIN)/zonewise lab up --demo --zonewise $$($(BIN)/python -m zonewise.lab.ceph.cluster)

.PHONY: down
down: ## Stop that cluster and remove everything it created.
	@test ! -x $(BIN)/zonewise || $(BIN)/zonewise lab down

.PHONY: clean
clean: down ## Stop the cluster; remove the virtual environment and build products, not the lab's cache.
	@rm -rf .venv build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests bench -name __pycache__ -prune -exec rm -rf {} +
