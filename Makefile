# Every target sets up what it needs: Python 3.11+, make and git are enough to start.

# The extras of pyproject.toml that each target installs beside the core.
RUN_EXTRAS    := server
BENCH_EXTRAS  := server cluster
SETUP_EXTRAS  := dev server cluster s3 s3-dev sqs-dev browser spark-local spark-dev lake
CHECK_EXTRAS  := $(SETUP_EXTRAS)
TEST_EXTRAS   := $(SETUP_EXTRAS)
FAULTS_EXTRAS := $(SETUP_EXTRAS)
DIST_EXTRAS   := dist

# Extra arguments for the command that a target ends in: make test ARGS="-k cursor"
ARGS ?=

# Which simulations `make sim` runs: how many seeds, and the first of them.
SEEDS ?= 1000
FIRST ?= 0

# Another Python has a .venv of its own: make quick PYTHON=python3.13
VENV   := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
SETUP  := VENV=$(VENV) PYTHON=$(PYTHON) bash tools/setup.sh
# The Python examples of the documents, as modules: their types are checked with all others.
EXAMPLES := build/examples
PYTHON_PATHS := src tests tools $(if $(wildcard examples/*.py),examples)

.DEFAULT_GOAL := help
.PHONY: help run demo setup quick test test-rest test-all mutants sim generate check bench faults dist format clean

##@ Tests, one command for each question (ARGS="-k cursor" chooses some)

quick: ## Does my change break a rule? The unit tests, in 3 minutes. Another Python: PYTHON=python3.13
	@$(SETUP) $(TEST_EXTRAS)
	@$(BIN)/python tools/run_tests.py --tier quick $(ARGS)

test: ## Does everything work? A share of every kind of test, in 10 minutes.
	@$(SETUP) $(TEST_EXTRAS)
	@$(BIN)/python tools/run_tests.py --tier test $(ARGS)

test-all: ## Is it ready to land? Every test, in 40 minutes.
	@$(SETUP) $(TEST_EXTRAS)
	@$(BIN)/python tools/run_tests.py --tier all $(ARGS)

# What test-all runs beside test: after `make test`, nothing is run twice.
test-rest:
	@$(SETUP) $(TEST_EXTRAS)
	@$(BIN)/python tools/run_tests.py --tier rest $(ARGS)

mutants: ## Would the tests notice a fault? Plants one at a time and names the test that catches it.
	@$(SETUP) $(TEST_EXTRAS)
	@$(BIN)/python tools/mutants.py $(ARGS)

faults: ## Does it survive? Kills processes and breaks disks, with other random cases each time.
	@$(SETUP) $(FAULTS_EXTRAS)
	@MILLSTREAM_SEED=$${MILLSTREAM_SEED:-random} MILLSTREAM_SPARK_KILLS=$${MILLSTREAM_SPARK_KILLS:-20} MILLSTREAM_FLIPS=$${MILLSTREAM_FLIPS:-all} MILLSTREAM_CLUSTER_ROUNDS=$${MILLSTREAM_CLUSTER_ROUNDS:-10} MILLSTREAM_TAKEOVERS=$${MILLSTREAM_TAKEOVERS:-50} MILLSTREAM_ATTACK_S=$${MILLSTREAM_ATTACK_S:-30} MILLSTREAM_JOB_KILLS=$${MILLSTREAM_JOB_KILLS:-40} MILLSTREAM_COMMAND_KILLS=$${MILLSTREAM_COMMAND_KILLS:-60} MILLSTREAM_JOBS_S=$${MILLSTREAM_JOBS_S:-180} MILLSTREAM_STREAM_MESSAGES=$${MILLSTREAM_STREAM_MESSAGES:-10000000} $(BIN)/python tools/run_tests.py -m "crash or faults" $(ARGS)

##@ Other checks

check: ## generated files, formatting, lint, types, layers, the style guide
	@$(SETUP) $(CHECK_EXTRAS)
	$(BIN)/python tools/generate.py --check
	$(BIN)/ruff format --check $(PYTHON_PATHS)
	$(BIN)/ruff check $(PYTHON_PATHS)
	@$(BIN)/python tools/doc_examples.py $(EXAMPLES)
	$(BIN)/mypy --strict src tools examples $(EXAMPLES)
	@if command -v node >/dev/null; then $(BIN)/pyright --pythonpath $(BIN)/python; \
		else echo "no node here: pyright is left out"; fi
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py

sim: ## simulate clusters by seed, and check their model: make sim SEEDS=1000 FIRST=0
	@$(SETUP) $(TEST_EXTRAS)
	@bash tools/model.sh
	@MILLSTREAM_SIM_SEEDS=$(SEEDS) MILLSTREAM_SIM_FIRST=$(FIRST) $(BIN)/python -m pytest -q -s tests/simulation $(ARGS)

bench: ## measure the core
	@$(SETUP) $(BENCH_EXTRAS)
	@$(BIN)/millstream bench core $(ARGS)

##@ Use it

run: ## install the light set and serve millstream.db on 127.0.0.1:8080
	@$(SETUP) $(RUN_EXTRAS)
	@exec $(BIN)/millstream serve $(ARGS)

demo: ## two servers with a dashboard, a shared canvas and something going on
	@$(SETUP) $(RUN_EXTRAS)
	@exec $(BIN)/millstream demo --serve $(ARGS)

##@ Develop

setup: ## create .venv with everything the tests and checks need
	@$(SETUP) $(SETUP_EXTRAS)

generate: ## write the generated files: the nouns of threads, the browser's client, two pages of docs
	@$(SETUP) $(CHECK_EXTRAS)
	$(BIN)/python tools/generate.py

format: ## rewrite the sources in our format
	@$(SETUP) $(CHECK_EXTRAS)
	$(BIN)/ruff format $(PYTHON_PATHS)
	$(BIN)/ruff check --fix $(PYTHON_PATHS)

# ARGS="client server" tries only these extras.
dist: ## build wheel, source archive and npm package, and try the wheel with each extra in an empty environment
	@$(SETUP) $(DIST_EXTRAS)
	@mkdir -p dist
	$(BIN)/python -m hatchling build --directory dist
	@if command -v npm >/dev/null; then cd web && npm pack --silent --pack-destination ../dist >/dev/null; \
		else echo "no npm here: the npm package is left out"; fi
	@ls dist/millstream-*
	$(BIN)/python tools/try_wheel.py $(ARGS)

clean: ## remove .venv, caches and build output
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

help: ## show this list
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' \
		$(firstword $(MAKEFILE_LIST))
