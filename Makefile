# From a fresh clone: `make demo`. Needs Python >= 3.11, make, Java >= 17 and, for all but the demo, Maven; an error names
# missing programs with the command that installs them. Where there is no Java and the machine has apt, one is unpacked into
# the cache. Every target sets up .venv first, and again when pyproject.toml has changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PY := .venv/bin/python
STAMP := .venv/.setup-done
# Test processes, each with brokers and half of them with a Spark (2 to 3 GB): two more than cores, since many tests wait.
WORKERS ?= $(shell n=$$(( $$(getconf _NPROCESSORS_ONLN) + 2 )); echo $$(( n < 4 ? n : 4 )))
NEEDS := java mvn
# Each test process and each Python that Spark starts would compile the modules again.
unexport PYTHONDONTWRITEBYTECODE
# Where neither JAVA_HOME nor the PATH has a Java: the one that tests/support/jre_install.py unpacks.
ifeq ($(if $(JAVA_HOME),$(wildcard $(JAVA_HOME)/bin/java))$(shell command -v java),)
export JAVA_HOME := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/amqp_spark/jre/home
endif
BROKER_ARGS := $(if $(PORT),--port $(PORT)) $(if $(HEAP),--heap $(HEAP))

.PHONY: help setup prerequisites broker demo prepare test test-all test-matrix lint format generate docs bench crash-matrix soak clean

help:
	@echo 'make setup                 create .venv with the package (editable) and the development tools'
	@echo 'make broker [PORT=n]       run a real broker in the foreground; print URL and credentials (BROKER=rabbitmq: RabbitMQ)'
	@echo 'make demo                  stream market data through a broker and Spark into Parquet, and a summary back (BROKER=broker-j, rabbitmq)'
	@echo 'make test [ARGS="-k x"]    run make lint, then the tests ($(WORKERS) processes: WORKERS=n)'
	@echo 'make test-all              run make lint, every test and the whole crash matrix: before an issue is resolved'
	@echo 'make test-matrix [ARGS=]   run a part of the tests on each Spark and Python (ARGS=--write: support table of the README)'
	@echo 'make crash-matrix [ARGS=]  kill every process of a query at every crash point; print a table (ARGS=--help: options)'
	@echo 'make soak [MINUTES=n]      run an exactly-once query under random kills; count lost and duplicate messages'
	@echo 'make bench [BENCH=name]    run benchmarks; print a table and write build/bench.json'
	@echo 'make lint                  check format, style, types, layers and generated files'
	@echo 'make format                format the code and fix style errors'
	@echo 'make generate              write generated code and documents'
	@echo 'make docs                  build the documents as a site, build/site; a broken link fails'
	@echo 'make clean                 remove .venv, build and caches'

setup: $(STAMP)

prerequisites:
	@python=$$(.ci/find-python) && "$$python" -m tests.support.jre_install && \
	  "$$python" tests/support/prerequisites.py $(NEEDS)

# pip 25.1 is the first that reads dependency groups; the pip of a new environment may be older.
$(STAMP): pyproject.toml | prerequisites
	@echo 'setup: .venv'
	@test -x $(PY) || { python=$$(.ci/find-python) && "$$python" -m venv .venv; } || \
	  { rm -rf .venv; echo 'setup: python -m venv failed; on Debian install it with: sudo apt-get install -y python3-venv' >&2; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

broker: $(STAMP) | prerequisites
	@exec $(PY) -m tests.support.$(if $(filter rabbitmq,$(BROKER)),rabbitmq,brokerj) $(BROKER_ARGS)

demo: NEEDS := java $(if $(BROKER),mvn)
demo: $(STAMP) | prerequisites
	$(if $(BROKER),@$(PY) -m tests.support.prefetch)
	@exec $(PY) -m $(if $(BROKER),tests.support.demo --broker $(BROKER),amqp_spark demo) $(ARGS)

lint: $(STAMP)
	$(PY) -m ruff format --check --quiet .
	$(PY) -m ruff check --quiet .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) specs/generate.py --check
	$(PY) -m amqp_spark.docs --check

format: $(STAMP)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

generate: $(STAMP)
	$(PY) specs/generate.py
	$(PY) -m amqp_spark.docs

# Apart from dev: the tests need none of it.
.venv/.docs-done: $(STAMP)
	@echo 'docs: zensical'
	@$(PY) -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

docs: .venv/.docs-done
	.venv/bin/zensical build --strict
	@echo 'docs: build/site/index.html'

# One more try for what a loaded machine breaks, alone (tests/README.md); only where tests failed and all ran (exit code 1).
AGAIN = [ $$? -eq 1 ] && echo 'make test: what failed runs once more. Each is a defect: tests/README.md' && \
  $(PY) -m pytest --last-failed --last-failed-no-failures=none $(ARGS)

test: $(STAMP) | prerequisites
	@$(MAKE) --no-print-directory --jobs=2 lint prepare
	$(PY) -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=15 $(ARGS) \
	  $(if $(AMQP_TEST_ALL),,|| { $(AGAIN); })

# Compiles the tests once, not in each test process.
.venv/.tests-compiled: $(STAMP) $(shell find tests -name '*.py')
	@found=$$($(PY) -m pytest --collect-only -qq --no-header 2>&1) || { tail -n 50 <<<"$$found"; exit 1; }
	@touch $@

prepare: .venv/.tests-compiled | prerequisites
	@$(PY) -m tests.support.prefetch
	@$(PY) -m tests.support.quick_spark
	@$(PY) -m tests.support.quick_broker
	@$(PY) -m compileall -q amqp_core amqp_spark pyspark_amqp tests/support

test-all: export AMQP_TEST_ALL := 1
test-all: test
	$(if $(ARGS),,for broker in brokerj rabbitmq-quorum rabbitmq-classic brokerj-0-9-1 box; do \
	  $(PY) -m tests.matrix --fresh --broker $$broker; done)

test-matrix: $(STAMP) | prerequisites
	@$(PY) -m tests.support.prefetch
	@exec $(PY) -m tests.versions --workers $(WORKERS) $(ARGS)

bench: $(STAMP) | prerequisites
	@$(PY) -m tests.support.prefetch
	@BENCH='$(BENCH)' BROKER='$(BROKER)' $(PY) -m tests.bench $(ARGS)

crash-matrix: $(STAMP) | prerequisites
	@$(PY) -m tests.support.prefetch
	@exec $(PY) -m tests.matrix $(ARGS)

soak: $(STAMP) | prerequisites
	@$(PY) -m tests.support.prefetch
	@exec $(PY) -m tests.matrix.soak $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

clean:
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
