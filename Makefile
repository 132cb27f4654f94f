# Every target sets up what it needs; `make help` lists them.
VENV := .venv
PY := $(VENV)/bin/python
STUBS := gen/.stamp
PLUGINS := .cache/stubs/.installed
CLIENTS := .cache/clients/.built
CONSOLE := manager/console/static/index.html
# What is installed, in parts. `make demo` needs the first two, `make check` and `make unit` the second and third: with
# the router, whose engine is large, and which the demo does not run.
NODE := $(VENV)/.node
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
INSTALLED := $(VENV)/.installed
# Tests that start nothing and wait for nothing, which all cores can share.
PURE := tests/unit tests/property tests/vectors
# Tests of pods need a Kubernetes: that in the directory that RETINUE_KUBE_BIN names,
# or what `make kubernetes` has built.
KUBERNETES := .cache/kubernetes
PODS := tests/integration/agent/kubernetes tests/integration/sessions/kubernetes
NO_PODS = $(if $(RETINUE_KUBE_BIN)$(wildcard $(KUBERNETES)/kubelet),,$(wildcard $(PODS)))
# How many files of the others run at once: their tests wait for other processes more than half of the time.
# Tests of a file share clusters.
WORKERS := 3

.DEFAULT_GOAL := help
.PHONY: help install proto stubs console pictures docs check format programs unit test test-clients kubernetes test-kubernetes soak demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## everything: virtual environment, Debian packages, Python for sessions, stubs

$(NODE): scripts/install
	scripts/install packages demo
	@mkdir -p $(@D)
	@touch $@

$(RUNTIME): pyproject.toml scripts/install
	scripts/install python $(VENV) build manager agent
	@touch $@

$(DEV): $(RUNTIME)
	scripts/install python $(VENV) router dev
	@touch $@

$(INSTALLED): $(DEV) $(STUBS)
	scripts/install packages test
	scripts/install jupyterlab
	scripts/install model
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

console: $(CONSOLE) ## the web console, into manager/console/static

$(CONSOLE): $(DEV) scripts/build-console $(shell git ls-files console 2>/dev/null) $(shell find protos -name '*.proto')
	$(PY) scripts/build-console
	@touch $@

docs: $(DEV) $(STUBS) ## the pages in docs/reference, from protos, tables and commands
	$(PY) -m docs.generator

check: $(DEV) $(STUBS) ## ruff, mypy --strict (tests too), buf, width, words, rows, documents, modules, exports, import rules, the console's code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/buf lint
	$(VENV)/bin/buf format --diff --exit-code
	scripts/check-width
	scripts/check-words
	scripts/check-rows
	scripts/check-documents
	scripts/check-modules
	scripts/check-exports
	$(PY) scripts/generate-sync-client --check
	$(VENV)/bin/lint-imports
	$(PY) scripts/build-console --check

format: $(DEV) ## lay out Python, protos and Markdown
	$(PY) docs/generator/wrapping.py $$(git ls-files '*.md')
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/buf format --write

programs: $(INSTALLED) ## what is put inside kernels, built once: ssh for every image, and Linux for virtual machines; needs root
	$(PY) -m retinue.agent.kernel
	$(PY) -m retinue.agent.vm

unit: $(DEV) $(STUBS) ## the tests that start nothing, as any user
	$(VENV)/bin/pytest -n auto $(if $(filter 0,$(shell id -u)),,-m 'not root') $(PURE)

$(CLIENTS): $(DEV) scripts/build-clients $(shell git ls-files clients 2>/dev/null) $(shell find protos -name '*.proto')
	scripts/build-clients
	@touch $@

test-clients: programs $(CLIENTS) ## the clients in clients/ against a cluster of two nodes; needs root, go, cargo, mvn and npm
	$(VENV)/bin/pytest -v tests/integration/clients

kubernetes: ## the programs of a Kubernetes for the tests of pods, built once into .cache, or those that RETINUE_KUBE_BIN names; needs go
	$(if $(RETINUE_KUBE_BIN)$(wildcard $(KUBERNETES)/kubelet),,scripts/build-kubernetes $(KUBERNETES))

test-kubernetes: programs kubernetes ## the tests of pods, on a cluster of one node; needs root
	$(VENV)/bin/pytest -v $(wildcard $(PODS))

test: programs unit $(CLIENTS) $(CONSOLE) ## all tests, those of pods where there is a Kubernetes; needs root
	$(VENV)/bin/pytest -v -n $(WORKERS) --dist loadfile --durations 20 $(foreach part,$(PURE) $(NO_PODS),--ignore=$(part))
	$(if $(NO_PODS),@echo "There is no Kubernetes: $$(grep -rhE '^(async )?def test_' $(NO_PODS) tests/support/runtime_contract.py | wc -l) tests of pods were left out; run make test-kubernetes")

pictures: programs $(CONSOLE) ## the pictures of the console in docs/images, from a real run; needs root
	RETINUE_PICTURES=$(CURDIR)/docs/images $(VENV)/bin/pytest -q tests/integration/console/test_launch.py -k mouse

soak: programs ## impatient clients beside random kills for MINUTES (30); needs root
	$(PY) -m tests.soak --minutes $(or $(MINUTES),30)

demo: $(NODE) $(STUBS) ## the main job on two nodes of this machine; needs root
	$(PY) -m retinue.agent.kernel --without-ssh
	$(PY) -m demo

bench: $(INSTALLED) ## every figure as a ratio, and the table in docs/performance.md; QUICK=1: small instances, no table; needs root
	scripts/install-peers
	$(PY) -m tests.bench $(if $(QUICK),--quick,--write)

clean: ## what the targets made, but not what is installed
	rm -rf gen dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
