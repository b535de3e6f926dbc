# `make demo` and `make test` are all that a new clone needs; `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
READY := $(VENV)/.ready
RUN ?= traces/stage3
BIG ?= 300MB 2GB
CASES ?= ../shared/cases
TESTS := not gpu and not bench
# Captures start ranks on every core themselves; all other tests run one file a core.
WORKERS ?= auto
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test cases lint format bench lock clean chromium

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY) ## capture ZeRO-3 on two CPU ranks, analyse it and traces/stage3, name both reports
	@rm -rf traces/demo
	$(BIN)/zerotrace capture --stage 3 --gpus 2 --device cpu --out traces/demo >/dev/null
	$(BIN)/zerotrace analyze traces/demo --force
	$(BIN)/zerotrace analyze traces/stage3 --baseline traces/single --force
	@printf '\nReports:\n  %s\n  %s\n' traces/demo/analysis/report.html traces/stage3/analysis/report.html

test: $(READY) chromium ## every test that needs no GPU
	@red=0; set -x; \
	$(BIN)/python -m pytest -m "$(TESTS)" -n $(WORKERS) --dist loadfile --ignore tests/capture $(ARGS) || red=1; \
	$(BIN)/python -m pytest -m "$(TESTS)" tests/capture $(ARGS) || red=1; \
	exit $$red

cases: $(READY) ## constructed faulty inputs against their right answers: make cases CASES=folder
	@test -d $(CASES) || { echo "$(CASES) is not there: give a folder of cases, CASES=folder"; exit 1; }
	@$(BIN)/python -m tests.cases $(CASES)

lint: $(READY) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(READY) ## this tool, HTA and plain readers in turn, into docs/benchmarks.md: make bench RUN=folders BIG="300MB 2GB"
	$(BIN)/python tools/bench.py $(RUN) $(addprefix --big ,$(BIG)) --write docs/benchmarks.md $(ARGS)

lock: ## bring requirements.lock up to pyproject.toml; UPGRADE=1 takes the newest of everything
	PYTHON=$(PYTHON) tools/lock.sh

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis traces/demo

# torch first and with its own dependencies: which companions its wheel needs depends on the wheel that pip picks.
# Everything else comes from the lock alone.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 14); sys.exit(None if ok else \
	  f"zerotrace needs Python 3.10 to 3.13, {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	$(PIP) install -c requirements.lock torch
	$(PIP) install --no-deps -r requirements.lock
	$(PIP) install --no-deps -e .
	@$(BIN)/python -m compileall -q zerotrace # as pip does for all else: the first command need not
	@touch $@

# The page tests open reports in a real Chromium.
chromium:
	@tools/chromium.sh
