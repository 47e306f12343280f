# Everything starts from a fresh clone on a machine with Python 3.11 or newer and make; uv makes it faster if it is there.
#
#   make demo      the story in the terminal, on a real control plane (a few minutes the first time, a minute after that)
#   make test      everything that must be green: check, unit, schedules, e2e
#
#   make check     lint, format, types, import contracts
#   make unit      the tests that need no control plane
#   make schedules SCHEDULES=n: so many simulated clusters with faults, always the same ones (5 minutes on two cores)
#   make e2e       the stories on a real local control plane
#   make soak      SEEDS=n FIRST_SEED=k: so many simulated clusters, with faults; a failing seed's story is kept
#   make bench     how long decisions take on large clusters; asserts nothing
#   make worlds    every order of events in small worlds, SECONDS_EACH=n of each
#   make chaos     KILLS=n SEED=k: so many kills of the gates, and of etcd and the API server, on a real plane under load
#   make programs  get the control plane's programs (cached in ~/.cache/trigate)
#   make clean     remove the environment and every tool's cache in this folder

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
SECONDS_EACH ?= 600
SCHEDULES ?= 500
SEEDS ?= 50
FIRST_SEED ?= 1
KILLS ?= 200
SEED ?= 1

# The newest supported Python that really runs: a version manager's shim may be on PATH and lead nowhere.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& { echo "$$python"; break; }; done)
UV ?= $(shell command -v uv 2>/dev/null)

.PHONY: help demo test check unit schedules e2e soak bench worlds chaos programs clean

help:
	@sed -n 's/^#   //p' Makefile

demo: programs
	$(BIN)/trigate demo

test: check unit schedules e2e

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/pytest -q -n $(WORKERS)

schedules: $(READY)
	$(BIN)/python -m layers.simulation --seeds $(SCHEDULES) --first 1 --workers $(WORKERS) \
		--checker e2e.checker:differences

e2e: programs
	$(BIN)/pytest -q e2e --timeout 300

soak: $(READY)
	$(BIN)/python -m layers.simulation --seeds $(SEEDS) --first $(FIRST_SEED) --workers $(WORKERS) \
		--checker e2e.checker:differences --verbose --shrink soak-story.json

bench: $(READY)
	$(BIN)/python -m tests.benchmarks.places

worlds: $(READY)
	$(BIN)/python -m tests.worlds --mutants --seconds $(SECONDS_EACH)

# One kill of etcd or the API server for ten of a gate.
chaos: programs
	$(BIN)/python -m e2e.chaos --gate-kills $(KILLS) --plane-kills $$(( $(KILLS) / 10 )) --seed $(SEED)

programs: $(READY)
	@$(BIN)/python -m deploy.local.programs > $(VENV)/programs.txt || { cat $(VENV)/programs.txt; exit 1; }

clean:
	rm -rf $(VENV) .trigate .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every dependency is pinned by hash. The project itself comes last and brings none of its own.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)$(UV)" || { echo "Python 3.11, 3.12 or 3.13 is needed, and none is on PATH" >&2; exit 1; }
ifneq ($(UV),)
	test -x $(BIN)/python || $(UV) venv --quiet --python "$(or $(PYTHON),3.13)" $(VENV)
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
else
	test -x $(BIN)/pip || "$(PYTHON)" -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
endif
	touch $(READY)
