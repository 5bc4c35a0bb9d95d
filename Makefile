# kurird: every target is explained by `make help`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?=
TESTS  ?= tests
PACKAGES ?=
# How many tests run at once: one per processor, four at most. WORKERS=0 runs them one by one.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -lt 4 ] && echo $$n || echo 4)
PYTEST := $(BIN)/python -m pytest -q --durations=15 --durations-min=1
SOURCES := daemon tests packaging
# Byte code is wanted: each test of a real process would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test check format docs shots bench lab lab-full lab-packages packages lock clean

help: ## explain every target
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make .venv with kurird and kurirctl from the hashed lock file (PYTHON=python3.12 picks another Python)

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cannot set up: $(PYTHON) is missing or older than 3.11; say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "cannot set up: this Python has no venv module; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@touch $@

run: setup ## start the daemon and a server for it to deliver to, and show what happens to jobs (DEMO=--once: end after the tour)
	@$(BIN)/python -m kurir.receiver.demo $(DEMO)

test: setup ## run the tests that need neither root nor system packages (TESTS=tests/store runs a part)
	@echo "without the tests marked lab and lab_full: they need root and system packages (make lab, make lab-full)"
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not lab and not lab_full" $(TESTS)

check: setup ## format, lint, types, import contract
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: setup ## write what the documentation takes from the code: configuration.md, the diagram in design.md, the manual pages
	$(BIN)/python packaging/docs/generate.py

shots: setup ## run kurirctl on a terminal, and write what it shows into README.md
	PYTHONPATH=tests $(BIN)/python -m support.shots

bench: setup ## measure, as ratios side by side, and write packaging/docs/performance.md
	$(BIN)/python -m tests.bench

lab-packages: ## install the system packages that make lab uses (root, apt)
	sh tests/lab/install-packages.sh

lab: setup lab-packages ## the tests that need root and system packages: real NetworkManager, disks, servers
	$(PYTEST) -m lab $(TESTS)

lab-full: setup lab-packages ## the slow ones: virtual machine, musl build, emulation
	$(PYTEST) -m lab_full $(TESTS)

packages: setup ## make the packages for Debian and Alpine in build/packages (PACKAGES="--system debian13" makes one)
	$(BIN)/python packaging/builder $(PACKAGES)

lock: ## renew requirements.lock (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --extra test --extra bench pyproject.toml -o requirements.lock

clean: ## remove what setup and the tools made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis daemon/*.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
