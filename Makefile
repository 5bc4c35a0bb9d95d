# kurird: every target is explained by `make help`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FLOORS := .venv-floors
# Which Python the floors are tried on: the one that has them, Debian 13's, where it is at hand.
FLOORS_PYTHON ?= $(shell python3.13 -c 'import ensurepip, venv' 2>/dev/null && echo python3.13 || echo $(PYTHON))
DEMO   ?=
TESTS  ?= tests
PACKAGES ?=
# How many tests run at once: one per processor, four at most. WORKERS=0 runs them one by one.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -lt 4 ] && echo $$n || echo 4)
PYTEST_OPTIONS := -q --durations=15 --durations-min=1
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)
WIDE   := -n $(WORKERS) --dist worksteal -m "not lab and not lab_full"
# What meets the dependencies; what else there is meets them through these.
FLOOR_TESTS ?= $(addprefix tests/,system control logs metrics cli client settings receiver store) \
	$(addprefix tests/daemon/,test_credentials.py test_schedule_processes.py test_stop.py)
SOURCES := daemon tests packaging
# Byte code is wanted: each test of a real process would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-floors check format docs shots bench lab lab-full lab-packages packages lock clean

help: ## explain every target
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make .venv with kurird and kurirctl from the hashed lock file (PYTHON=python3.12 picks another Python)

# $(1): the Python, $(2): the folder, $(3): the lock file
define environment
	@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cannot set up: $(1) is missing or older than 3.11; say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(1) -c 'import ensurepip, venv' 2>/dev/null || { echo "cannot set up: this Python has no venv module; on Debian: apt-get install python3-venv"; exit 1; }
	$(1) -m venv $(2)
	$(2)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(3)
	$(2)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@touch $@
endef

$(VENV)/.ready: requirements.lock pyproject.toml
	$(call environment,$(PYTHON),$(VENV),requirements.lock)

$(FLOORS)/.ready: requirements-floor.lock pyproject.toml
	$(call environment,$(FLOORS_PYTHON),$(FLOORS),requirements-floor.lock)

run: setup ## start the daemon and a server for it to deliver to, and show what happens to jobs (DEMO=--once: end after the tour)
	@$(BIN)/python -m kurir.receiver.demo $(DEMO)

test: setup ## run the tests that need neither root nor system packages (TESTS=tests/store runs a part)
	@echo "without the tests marked lab and lab_full: they need root and system packages (make lab, make lab-full)"
	$(PYTEST) $(WIDE) $(TESTS)

test-floors: $(FLOORS)/.ready ## run the tests that meet the dependencies with the oldest versions that will do (FLOOR_TESTS=...)
	$(FLOORS)/bin/python -m pytest $(PYTEST_OPTIONS) $(WIDE) $(FLOOR_TESTS)

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
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "lab and not alone" $(TESTS) || [ $$? = 5 ]
	$(PYTEST) -m "lab and alone" $(TESTS) || [ $$? = 5 ]

lab-full: setup lab-packages ## the slow ones: virtual machine, musl build, emulation
	sh tests/lab/install-packages.sh full
	$(PYTEST) -m lab_full $(TESTS)

packages: setup ## make the packages for Debian and Alpine in build/packages (PACKAGES="--system debian13" makes one)
	$(BIN)/python packaging/builder $(PACKAGES)

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-emit-find-links pyproject.toml

lock: ## renew requirements.lock, of the newest, and requirements-floor.lock, of the oldest that will do (needs uv)
	$(COMPILE) --generate-hashes --extra test --extra bench -o requirements.lock
	mkdir -p build
	$(COMPILE) --extra sdbus --resolution lowest-direct --no-annotate -o build/floors.txt
	$(COMPILE) --generate-hashes --extra test --constraint build/floors.txt -o requirements-floor.lock

clean: ## remove what setup and the tools made
	rm -rf $(VENV) $(FLOORS) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis daemon/*.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
