# Every target does its own set-up: a fresh clone needs python3 (3.11 or later, with venv) and, for the
# tests and the benchmark, the Debian packages that .ci/run names.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -q
# Most tests wait: one worker more than cores. tests/conftest.py says what stays together and what begins.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := -n $(WORKERS)

# How many simulated clusters of each fault class `make sim` runs, and whether `make bench` measures other routers too.
SEEDS ?= 1000
PEERS ?=
DOC ?=
STORES ?= redis-6.2 redis-server valkey
# Files that start a server by `on("...")` of tests/support/redis.py, or a stage that does. Contract suites know all kinds anyway.
ON_A_STORE = $(shell grep -lE '\bon."(redis|valkey)|_stage import' -r tests/integration tests/drills)
# How often `make drills` makes each fault; how long `make soak` goes on, and what it repeats.
RUNS ?= 10
MINUTES ?= 60
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint bench sim stores drills soak faults clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make the virtual environment with everything in it

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "narwhal needs Python 3.11 or later"; import ensurepip'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing narwhal and its tools into $(VENV)"
	@$(PIP) install --editable '.[demo,dev]'
	@touch $@

demo: setup  ## A fleet, a router pair, a kill and a clean switch, in under a minute
	@$(BIN)/narwhal demo

test: lint  ## Lint, types and every test
	$(PYTEST) $(PARALLEL)

test-fast: setup  ## The house rules and the unit tests: seconds
	$(PYTEST) tests/test_tidy.py tests/unit

lint: setup  ## Ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## Measure against the budgets (PEERS=1: other routers too; MODES="frame request"; DOC=1)
	$(BIN)/python -m tests.bench $(if $(PEERS),--peers) $(if $(DOC),--doc) $(MODES)

sim: setup  ## The simulated cluster under every class of faults (SEEDS=1000 of each)
	SIM_SEEDS=$(SEEDS) $(PYTEST) $(PARALLEL) tests/simulation

stores: setup  ## What runs on a store, on each of Redis 6.2, 7.0 and Valkey
	for store in $(STORES); do STORE=$$store $(PYTEST) $(PARALLEL) $(ON_A_STORE) || exit 1; done

drills: setup  ## The long drills: every fault RUNS times (10), 100 rolling restarts, minutes without a store
	@mkdir -p runs
	$(BIN)/narwhal cluster drill --runs $(RUNS) --slack 5 --json runs/drills.json
	DRILL_RESTARTS=100 DRILL_OUTAGE_S=60 $(PYTEST) tests/drills

soak: setup  ## Eight engines, two routers, random faults and takeovers for MINUTES=60 (SEED=... repeats one)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --json runs/soak.json

faults: setup  ## Every fault switch of the simulated engine, alone and in pairs (DOC=1: into docs/failures.md)
	$(BIN)/python -m tests.faults $(if $(DOC),--doc)

clean:  ## Remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
	find narwhal tests -name __pycache__ -type d -prune -exec rm -rf {} +
