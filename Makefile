# Every target sets up what it needs; `make help` lists them.
VENV := .venv
PY := $(VENV)/bin/python
STUBS := gen/.stamp
PLUGINS := .cache/stubs/.installed
INSTALLED := $(VENV)/.installed
# Tests that start nothing and wait for nothing, which all cores can share.
PURE := tests/unit tests/property tests/vectors

.DEFAULT_GOAL := help
.PHONY: help install proto stubs docs check format programs test soak demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## virtual environment, Debian packages and stubs

$(INSTALLED): pyproject.toml hatch_build.py scripts/install
	scripts/install $(VENV)
	@touch $@

proto: $(STUBS) ## the gRPC stubs, into gen/

$(STUBS): $(INSTALLED) $(shell find protos -name '*.proto')
	$(PY) hatch_build.py
	@touch $@

stubs: $(PLUGINS) ## stubs for Go, Java, TypeScript and Python, into stubs/; needs go, mvn and npm
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" buf generate

$(PLUGINS): $(INSTALLED) scripts/install-stub-plugins
	scripts/install-stub-plugins .cache/stubs
	@touch $@

docs: $(STUBS) ## the pages in docs/reference, from protos, tables and commands
	$(PY) -m docs.generator

check: $(STUBS) ## ruff, mypy --strict (tests too), buf, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/buf lint
	$(VENV)/bin/buf format --diff --exit-code
	$(VENV)/bin/lint-imports

format: $(INSTALLED) ## lay out Python and protos
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/buf format --write

programs: $(STUBS) ## what is put inside kernels, built once: ssh for every image; needs root
	$(PY) -m agent.kernel

test: programs ## all tests; needs root
	$(VENV)/bin/pytest -n auto $(PURE)
	$(VENV)/bin/pytest $(foreach part,$(PURE),--ignore=$(part))

soak: programs ## impatient clients beside random kills for MINUTES (30); needs root
	$(PY) -m tests.soak --minutes $(or $(MINUTES),30)

demo: $(STUBS) ## the main job on two nodes of this machine; needs root
	$(PY) -m demo

bench: $(STUBS) ## every figure as a ratio, and the table in docs/performance.md; needs root
	scripts/install-peers
	$(PY) -m tests.bench --write

clean: ## what the targets made, but not what is installed
	rm -rf gen dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
