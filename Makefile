# The two commands: `make demo` and `make test`. Both make .venv themselves, from the lock, and only when needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
# Test processes. More than two cores: many tests wait for a database, or for processes that they started.
WORKERS ?= 3
# One thread for linear algebra in each process: more threads than cores slow each other down. Compiled modules are
# kept, also where the environment says otherwise: else every process compiles all tests again.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help map demo test test-fast test-all check bench drill figures docs sbom release-check clean lock venv check-lock

help:
	@echo "make demo       account a year of rounds for six cohorts; tables here, pictures in demo-output/"
	@echo "make test       every promise attacked on this machine alone, in minutes ($(WORKERS) processes)"
	@echo "make test-fast  only the tests of about half a second or less, for every edit"
	@echo "make test-all   everything: brokers, a browser, processes and builds too; prints the 50 slowest"
	@echo "make check      lint, format, types, import contracts, lock"
	@echo "make bench      measure, and print the figures (ARGUMENTS=--write: into docs/benchmarks.md)"
	@echo "make drill      put a database back under a running deployment, twice from a dump and twice from the log, and check that nothing is spent twice"
	@echo "make figures    draw docs/figures/ again (minutes)"
	@echo "make notebooks  run docs/notebooks/ in place, and keep what their cells print"
	@echo "make docs       build the documentation as a site in build/site/"
	@echo "make sbom       write dist/shuffle-ledger.cdx.json, a CycloneDX bill of what the lock names, with its hashes"
	@echo "make release-check  build both archives, check their metadata, use the wheel elsewhere (DIST=FOLDER keeps them)"
	@echo "make map        print the tree of modules with a sentence each, and the layers"
	@echo "make clean      remove .venv, caches and demo-output/"
	@echo "make lock       resolve the dependencies again (needs uv on the PATH)"

# Installs what it runs, a third of what the tests need.
demo: $(DEMO_READY)
	$(BIN)/shuffle-ledger demo

test: $(READY)
	$(PYTEST) -m "not system" $(ARGUMENTS)

test-fast: $(READY)
	$(PYTEST) -m "not slow and not system" $(ARGUMENTS)

# One more process: system tests mostly wait, and two processes begin with them.
test-all: WORKERS := 4
test-all: $(READY)
	$(PYTEST) --durations=50 $(ARGUMENTS)

check: $(READY) check-lock
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A lock names versions and hashes; where to download from is the installer's own configuration.
check-lock:
	@if grep -nE '://|^-' requirements/*.txt; then echo "requirements/: a lock line names a location or an option"; exit 1; fi

bench: $(BENCH_READY)
	$(BENCH)/bin/python -m tests.benchmarks $(ARGUMENTS)

# Starts a PostgreSQL and servers of its own, and ends them.
drill: $(READY)
	$(BIN)/python -m tests.drills

figures: $(READY)
	$(BIN)/python -m docs.figures.draw

# A test runs copies of them, and compares what they print.
notebooks: $(READY)
	$(PYTEST) -o addopts= --quiet --nbmake --overwrite docs/notebooks
	$(BIN)/python -m docs.site.notebooks

docs: $(READY)
	rm -rf build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

venv: $(READY)

# Written last: an installation that was interrupted is done again.
$(DEMO_READY): requirements/demo.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "shuffle-ledger needs Python 3.11 or newer: there is no '$(PYTHON)' on the PATH"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "shuffle-ledger needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu install the package python3-venv."; exit 1; }
	$(PIP) install --no-compile --require-hashes --requirement requirements/demo.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@# Here, on every core, instead of by pip or again at every start where Python may not write its caches.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
	@touch $@

$(READY): requirements/dev.txt $(DEMO_READY)
	$(PIP) install --no-compile --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
	@touch $@

# An environment of its own: what we compare with needs versions of its own.
$(BENCH_READY): requirements/bench.txt pyproject.toml
	$(PYTHON) -m venv --clear $(BENCH)
	$(BENCH)/bin/python -m pip --disable-pip-version-check --no-input --quiet install --require-hashes --requirement requirements/bench.txt
	@touch $@

# A bill of materials of the runtime (CycloneDX), from the lock.
# The same lock gives the same bytes. A lock does not say what the tool warns of: which package needs which.
sbom: DIST := $(or $(DIST),dist)
sbom: $(READY)
	mkdir -p $(DIST)
	PYTHONWARNINGS=ignore::UserWarning:cyclonedx.model.bom $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml \
	  --output-reproducible --output-file $(DIST)/shuffle-ledger.cdx.json requirements/runtime.txt

release-check: $(READY)
	.ci/release-check $(DIST)

map: $(READY)
	@$(BIN)/python -m tests.architecture.tree

clean:
	rm -rf $(VENV) $(BENCH) demo-output build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

UV_COMPILE := uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --fork-strategy fewest \
  --generate-hashes --no-emit-index-url --no-header --quiet
UV_COMPILE_DEMO := $(subst --all-extras,--extra plot --extra server --group build --constraints requirements/dev.txt,$(UV_COMPILE))
lock:
	@command -v uv >/dev/null || { echo "make lock needs uv on the PATH"; exit 1; }
	$(UV_COMPILE) --upgrade --output-file requirements/runtime.txt
	$(UV_COMPILE) --upgrade --group dev --constraints requirements/runtime.txt --output-file requirements/dev.txt
	$(UV_COMPILE_DEMO) --upgrade --output-file requirements/demo.txt
	$(UV_COMPILE) --upgrade --group bench --constraints requirements/runtime.txt --output-file requirements/bench.txt
	@$(MAKE) --no-print-directory check-lock
