# Every target sets up what it needs; `make help` lists them.
VENV := .venv
PY := $(VENV)/bin/python
STUBS := gen/.stamp
PLUGINS := .cache/stubs/.installed
# What is installed, in parts. `make demo` needs the first two, `make check` and `make unit` the second and third.
NODE := $(VENV)/.node
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
INSTALLED := $(VENV)/.installed
# Tests that start nothing and wait for nothing, which all cores can share.
PURE := tests/unit tests/property tests/vectors

.DEFAULT_GOAL := help
.PHONY: help install proto stubs docs check format programs unit test soak demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## everything: virtual environment, Debian packages, JupyterLab, stubs

$(NODE): scripts/install
	scripts/install packages demo
	@mkdir -p $(@D)
	@touch $@

$(RUNTIME): pyproject.toml scripts/install
	scripts/install python $(VENV) build manager agent
	@touch $@

$(DEV): $(RUNTIME)
	scripts/install python $(VENV) dev
	@touch $@

$(INSTALLED): $(DEV) $(STUBS)
	scripts/install packages test
	scripts/install jupyterlab
	@touch $(NODE) $@

proto: $(STUBS) ## the gRPC stubs, into gen/

# The hook of the build writes them; the commands of the project are installed beside.
$(STUBS): $(RUNTIME) hatch_build.py $(shell find protos -name '*.proto')
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

stubs: $(PLUGINS) ## stubs for Go, Java, TypeScript and Python, into stubs/; needs go, mvn and npm
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" buf generate

$(PLUGINS): $(DEV) scripts/install-stub-plugins
	scripts/install-stub-plugins .cache/stubs
	@touch $@

docs: $(DEV) $(STUBS) ## the pages in docs/reference, from protos, tables and commands
	$(PY) -m docs.generator

check: $(DEV) $(STUBS) ## ruff, mypy --strict (tests too), buf, words, rows, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/buf lint
	$(VENV)/bin/buf format --diff --exit-code
	scripts/check-proto-width
	scripts/check-words
	scripts/check-rows
	$(VENV)/bin/lint-imports

format: $(DEV) ## lay out Python, protos and Markdown
	$(PY) docs/generator/wrapping.py $$(git ls-files '*.md')
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/buf format --write

programs: $(INSTALLED) ## what is put inside kernels, built once: ssh for every image; needs root
	$(PY) -m retinue.agent.kernel

unit: $(DEV) $(STUBS) ## the tests that start nothing, as any user
	$(VENV)/bin/pytest -n auto $(if $(filter 0,$(shell id -u)),,-m 'not root') $(PURE)

test: programs unit ## all tests; needs root
	$(VENV)/bin/pytest $(foreach part,$(PURE),--ignore=$(part))

soak: programs ## impatient clients beside random kills for MINUTES (30); needs root
	$(PY) -m tests.soak --minutes $(or $(MINUTES),30)

demo: $(NODE) $(STUBS) ## the main job on two nodes of this machine; needs root
	$(PY) -m retinue.agent.kernel --without-ssh
	$(PY) -m demo

bench: $(INSTALLED) ## every figure as a ratio, and the table in docs/performance.md; needs root
	scripts/install-peers
	$(PY) -m tests.bench --write

clean: ## what the targets made, but not what is installed
	rm -rf gen dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
