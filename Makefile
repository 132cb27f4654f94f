# Every target sets up what it needs; `make help` lists them.
VENV := .venv
PY := $(VENV)/bin/python
STUBS := gen/.stamp
SYNC := client/sync/.stamp
ENVOY_TYPES := .cache/envoy-types/.stamp
PLUGINS := .cache/stubs/.installed
LEFT_OUT := .cache/clients/left-out
CONSOLE := manager/console/static/index.html
# What is installed, in parts. Clusters on this machine need the first two, with $(SYNC); `make check` and `make unit`
# the second and fourth; all other tests everything.
NODE := $(VENV)/.node
RUNTIME := $(VENV)/.runtime
NODEJS := $(VENV)/.nodejs
DEV := $(VENV)/.dev
TOOLCHAINS := $(VENV)/.toolchains
INSTALLED := $(VENV)/.installed
# What `make check` runs beside each other, the longest first.
CHECKS := check-types check-console check-user-types check-imports check-rest
# Tests that start nothing and wait for nothing, which all cores can share.
PURE := tests/unit tests/property tests/vectors
# Tests of pods need a Kubernetes: that in the directory that RETINUE_KUBE_BIN names,
# or what `make kubernetes` has built.
KUBERNETES := .cache/kubernetes
PODS := tests/integration/agent/kubernetes tests/integration/sessions/kubernetes
NO_PODS = $(if $(RETINUE_KUBE_BIN)$(wildcard $(KUBERNETES)/kubelet),,$(wildcard $(PODS)))
# How many files of the others run at once, one of them a file that mostly waits. Tests of a file share clusters.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
LOADFILE := --dist loadfile --waiting-workers 1
# Tests that kill, pause and cut off what others would share run after them, each file with a cluster of its own.
FAULTS := tests/faults
# Programs of others, as their users have them: they take longer, and their installation needs a registry of packages.
PROGRAMS := tests/programs
# Failed tests run once more, alone; this names those of a run that passed then.
UNSTABLE := .pytest_cache/unstable
# With `=`: a file of that name, which pytest takes for a place of tests otherwise, may be there from the run before.
SECOND_RUN := --second-run=$(UNSTABLE)
# Programs are started by the hundred: each would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install proto stubs console pictures docs check $(CHECKS) format programs clients unit test test-quick attack test-clients test-programs kubernetes test-kubernetes faults soak demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(NODE) $(RUNTIME) $(SYNC) ## what clusters on this machine need: Debian packages and a virtual environment
	@echo "Installed. Next, for a cluster on this machine until Ctrl-C:"
	@echo "    . $(VENV)/bin/activate"
	@echo "    retinue dev"

$(NODE): scripts/install
	scripts/install packages node
	@mkdir -p $(@D)
	@touch $@

$(RUNTIME): pyproject.toml scripts/install
	scripts/install python $(VENV) build manager agent router
	@touch $@

$(NODEJS): $(RUNTIME)
	scripts/install python $(VENV) console
	@touch $@

$(DEV): $(RUNTIME)
	scripts/install python $(VENV) console dev
	@touch $(NODEJS) $@

$(TOOLCHAINS): $(DEV) scripts/build-clients
	scripts/install toolchains $(VENV)
	@touch $@

$(INSTALLED): $(DEV) $(SYNC) $(TOOLCHAINS)
	scripts/install packages test
	scripts/install jupyterlab
	scripts/install model
	scripts/install distributed
	scripts/install slurm
	@touch $(NODE) $@

proto: $(SYNC) $(ENVOY_TYPES) ## the gRPC stubs, into gen/, the blocking client, into client/sync, and types of Envoy's messages

# The hook of the build writes them; the commands of the project are installed beside.
$(STUBS): $(RUNTIME) hatch_build.py $(shell find protos -name '*.proto')
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The hook of the build does so, too; here it follows the modules that it is made from.
$(SYNC): $(STUBS) scripts/generate-sync-client $(wildcard client/*.py client/admin/*.py client/kernel/*.py)
	$(PY) scripts/generate-sync-client
	@touch $@

# They follow the versions that are installed, and what is imported of them.
$(ENVOY_TYPES): $(RUNTIME) scripts/generate-envoy-types $(shell git grep -lE '^ *from (envoy|xds)\b' -- '*.py' 2>/dev/null)
	$(PY) scripts/generate-envoy-types $(@D)
	@touch $@

stubs: $(PLUGINS) ## stubs for Go, Java, TypeScript and Python, into stubs/; needs go, mvn and npm
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" buf generate

$(PLUGINS): $(TOOLCHAINS) scripts/install-stub-plugins
	scripts/install-stub-plugins .cache/stubs
	@touch $@

console: $(CONSOLE) ## the web console, into manager/console/static

$(CONSOLE): $(NODEJS) $(STUBS) scripts/build-console $(shell git ls-files console 2>/dev/null) $(shell find protos -name '*.proto')
	$(PY) scripts/build-once console --gives $(@D) --except console/src/gen --of protos scripts/build-console \
		$(addprefix console/,*.html *.json vite.config.ts src) -- $(PY) scripts/build-console
	@touch $@

docs: $(DEV) $(SYNC) ## the pages in docs/reference, from protos, tables and commands
	$(PY) -m docs.generator

check: $(DEV) $(SYNC) $(ENVOY_TYPES) ## ruff, mypy --strict (tests too), pyright and basedpyright on a user's program, buf, width, words, asserts of tests, import rules, the console's code
	@$(MAKE) --no-print-directory --output-sync --keep-going --jobs $(shell nproc) $(CHECKS)

check-types:
	$(VENV)/bin/mypy

check-console:
	$(PY) scripts/build-console --check

check-user-types:
	$(PY) scripts/check-user-types

check-imports:
	$(VENV)/bin/lint-imports

check-rest:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/buf lint
	$(VENV)/bin/buf format --diff --exit-code
	scripts/check-width
	scripts/check-words
	scripts/check-asserts

format: $(DEV) ## lay out Python, protos and Markdown
	$(PY) docs/generator/wrapping.py $$(git ls-files '*.md')
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/buf format --write

programs: $(INSTALLED) ## what is put inside kernels, built once: ssh for every image, and Linux for virtual machines; needs root
	$(VENV)/bin/retinue-agent build programs ssh python linux

unit: $(DEV) $(SYNC) ## the tests that start nothing, as any user
	@rm -f $(UNSTABLE)
	$(VENV)/bin/pytest -n auto $(SECOND_RUN) $(if $(filter 0,$(shell id -u)),,-m 'not root') $(PURE)

clients: $(TOOLCHAINS) ## the clients in clients/, those whose tools can be had: go, cargo, mvn and npm
	scripts/build-clients

test-clients: programs clients ## the clients in clients/ against a cluster of two nodes; needs root
	$(VENV)/bin/pytest -v tests/integration/clients
	@cat $(LEFT_OUT)

test-programs: programs ## programs of others, such as workflow engines, against a cluster of two nodes; needs root
	scripts/install packages programs
	scripts/install nextflow
	scripts/install apps
	$(VENV)/bin/pytest -v --durations 20 $(SECOND_RUN) $(PROGRAMS)

kubernetes: $(if $(RETINUE_KUBE_BIN)$(wildcard $(KUBERNETES)/kubelet),,$(TOOLCHAINS)) ## the programs of a Kubernetes for the tests of pods, built once into .cache, or those that RETINUE_KUBE_BIN names; needs go
	$(if $(RETINUE_KUBE_BIN)$(wildcard $(KUBERNETES)/kubelet),,scripts/build-kubernetes $(KUBERNETES))

test-kubernetes: programs kubernetes ## the tests of pods, on a cluster of one node; needs root
	$(VENV)/bin/pytest -v $(wildcard $(PODS))

test: programs unit clients $(CONSOLE) ## all tests, those of pods where there is a Kubernetes; needs root
	$(VENV)/bin/pytest -v -n $(WORKERS) $(LOADFILE) --durations 60 $(SECOND_RUN) \
		$(foreach part,$(PURE) $(FAULTS) $(PROGRAMS) $(NO_PODS),--ignore=$(part))
	$(VENV)/bin/pytest -v -n $(shell nproc) --dist loadfile --durations 20 $(SECOND_RUN) $(FAULTS)
	$(if $(NO_PODS),@echo "There is no Kubernetes: $$(grep -rhE '^(async )?def test_' $(NO_PODS) tests/support/runtime_contract.py | wc -l) tests of pods were left out; run make test-kubernetes")
	@cat $(LEFT_OUT)

test-quick: programs $(CONSOLE) ## the pure tests, and one test of each capability on a real cluster; needs root
	@rm -f $(UNSTABLE)
	$(VENV)/bin/pytest -n $(WORKERS) $(LOADFILE) $(SECOND_RUN) @tests/quick

attack: programs $(CONSOLE) ## what attackers try and docs/security.md answers, on real clusters; `make test` has it too; needs root
	@rm -f $(UNSTABLE)
	$(VENV)/bin/pytest -v -n $(WORKERS) $(LOADFILE) --durations 20 $(SECOND_RUN) -m attack \
		$$(grep -rl --include='test_*.py' 'pytest\.mark\.attack(' tests)

pictures: programs $(CONSOLE) ## the pictures of the console in docs/images, from a real run; needs root
	RETINUE_PICTURES=$(CURDIR)/docs/images $(VENV)/bin/pytest -q tests/integration/console/test_launch.py \
		tests/integration/console/test_tour.py -k 'mouse or pages_show'

faults: programs ## every failpoint fails once on a cluster of two nodes, PART=N/M: one of M parts of them; needs root
	$(PY) -m tests.failpoints --part $(or $(PART),1/1)

soak: programs ## short calls, then impatient clients beside random kills for MINUTES (30); needs root
	$(PY) -m tests.soak.short_calls
	$(PY) -m tests.soak --minutes $(or $(MINUTES),30)

demo: $(NODE) $(SYNC) ## the main job on two nodes of this machine; needs root
	$(VENV)/bin/retinue-agent build programs python
	$(PY) -m demo

bench: $(INSTALLED) ## every figure as a ratio, and the table in docs/performance.md; QUICK=1: small instances, fails on a factor of two; needs root
	scripts/install-peers
	$(PY) -m tests.bench $(if $(QUICK),--quick,--write)

clean: ## what the targets made, but not what is installed
	rm -rf gen src client/sync dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
