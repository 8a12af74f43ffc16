# Everything a newcomer runs. `make run` and `make test` set up all that they need.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help run install test test-others test-beside test-clients test-rocketmq test-cluster test-bounds test-console check simulate mutants endurance bench protos lock clean

help:                 ## print these targets
	@grep -E '^[a-z][a-z-]*:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 16

run: install          ## the whole path: from orders to their audit
	$(BIN)/tidewheel demo $(ARGS)

install: $(STAMP)     ## make .venv and install everything, with the versions of requirements.lock

# setuptools warns about any editable install; the warning is no news to whoever runs this.
$(STAMP): pyproject.toml distributions/client/pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidewheel needs Python 3.11 or newer: make PYTHON=python3.12")'
	@echo "Installing into .venv (about 1 GB with Spark, a few minutes the first time) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -r requirements.lock
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps -e .
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps -e distributions/client
	@touch $(STAMP)

# Each process of tests would compile the tests and the sources by itself, if none may leave its bytecode.
test test-others test-beside: export PYTHONDONTWRITEBYTECODE =

# How long all tests take is their processor time, as long as every core has work: some tests wait, so there are
# more processes of tests than cores, and what has one thread of its own runs beside. That says what it has to
# say at the end.
test: install         ## style, types, import rules and all tests
	@said=$$(mktemp) && trap "rm -f $$said" EXIT; \
	$(MAKE) --no-print-directory --keep-going --jobs 2 test-beside test-others SAID=$$said; \
	code=$$?; cat $$said; exit $$code

test-others:
	@$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/spark -rs

# Spark starts its Java by a fork, which fails now and then in a process where gRPC has threads: tests of its own.
test-beside:
	@$(MAKE) --no-print-directory check > $(SAID) 2>&1; checked=$$?; \
	$(BIN)/python -m pytest -p no:cacheprovider tests/spark >> $(SAID) 2>&1 && exit $$checked

test-clients: install ## the official clients: Python, Node, Java, Go, Rust; builds them first; says pass or fail by name
	TIDEWHEEL_BUILD_CLIENTS=1 $(BIN)/python -m pytest tests/clients tests/interop -v -rs

test-rocketmq: install ## stores to and from Apache RocketMQ's own code; needs Maven and a JDK
	$(BIN)/python -m pytest tests/rocketmq

test-cluster: install ## Spark on a standalone cluster, streams whose ends are killed; nodes of a cluster that are killed
	$(BIN)/python -m pytest tests/cluster
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/acceptance/test_wheel.py -k spark
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/acceptance/test_cluster_page.py -q
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/acceptance/test_mixed_versions.py -q
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --rounds 6 --nodes 3 --clients 2 --checkpoints both -q -s
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --engine postgresql2 --rounds 6 -q -s
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --engine kafka3 --rounds 4 -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_cluster_topics.py --rounds 2 -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_cluster_bad_input.py -q
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_lost_engine.py tests/endurance/test_lost_kafka.py -q -s

test-bounds: install  ## the oldest and the newest libraries that the bounds allow, on each Python from 3.11 on that is here
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m pytest -p no:cacheprovider tests/bounds -v -rsP

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=.:benchmarks $(BIN)/mypy --explicit-package-bases benchmarks/*.py benchmarks/parts
	MYPYPATH=tests/checker $(BIN)/mypy tests/checker/*.py
	MYPYPATH=.:benchmarks/peers $(BIN)/mypy --explicit-package-bases benchmarks/peers/*.py
	$(BIN)/lint-imports

test-console: install ## every action of the console as every role, by mouse and keys, in Chromium (apt-get install chromium; axe by npm)
	$(BIN)/python -m pytest tests/console -q

simulate: install     ## thousands of seeds of the core on a faulty disk
	$(BIN)/python -m pytest tests/simulation --seeds 2000 -q

mutants: install      ## small faults put into a copy of the tree, 20 a room: which of them do the tests see? JSON; hours
	$(BIN)/python -m tests.mutants.run $(ARGS)

endurance: install    ## kill -9 under load, fifty times; a sick disk, a hundred deaths; services that go wrong on purpose
	$(BIN)/python -m pytest tests/endurance --rounds 50 -q -s
	$(BIN)/python -m pytest tests/endurance/test_sick_disk.py --deaths 100 -q -s
	$(BIN)/python -m pytest tests/endurance/test_damage.py --bit-step 97 -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/acceptance/test_demo.py -q -k "bug or redis"
	$(BIN)/python -m pytest tests/unit/tidewheel/test_isolation_table.py --isolation-histories 50 -q -n 2
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --engine postgresql2 --rounds 50 --nodes 3 --clients 2 --checkpoints both -q -s
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --engine kafka3 --rounds 20 --nodes 3 --clients 2 --checkpoints both -q -s
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --engine postgresql2 --hosts --fault cut: --rounds 50 -q -s
	$(BIN)/python -m pytest tests/endurance/test_cluster_kill.py --engine kafka3 --hosts --fault cut: --rounds 20 -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_kafka_kill.py --rounds 12 -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_stream_lost.py --rounds 20 -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_sabotages.py -q -s
	TIDEWHEEL_LONG=1 $(BIN)/python -m pytest tests/endurance/test_independent_audits.py -q -s
	$(BIN)/python -m pytest tests/endurance/test_fuzz.py --seconds 600 -q -s
	$(BIN)/python -m pytest tests/endurance/test_soak.py --soak-seconds 600 -q -s

bench: install        ## lateness, store, timers, transactions, receiving, the port, growth, a second copy, the audit, beside a bare disk, Redis and RocketMQ (needs Maven): JSON, over two hours
	$(BIN)/python benchmarks/lateness.py
	$(BIN)/python benchmarks/cli.py
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/storage.py --records 10000000
	$(BIN)/python benchmarks/timers.py structure --count 100000000
	$(BIN)/python benchmarks/timers.py wheel --count 10000000
	$(BIN)/python benchmarks/timers.py redis --count 1000000
	$(BIN)/python benchmarks/timers.py crowd --count 1000000
	$(BIN)/python benchmarks/timers.py steady
	$(BIN)/python benchmarks/transactions.py
	$(BIN)/python benchmarks/receive.py
	$(BIN)/python benchmarks/receive.py backlog --count 10000000
	$(BIN)/python benchmarks/front.py connections
	$(BIN)/python benchmarks/front.py calls
	$(BIN)/python benchmarks/cluster.py sends
	$(BIN)/python benchmarks/cluster.py folding
	$(BIN)/python benchmarks/peers/rocketmq.py
	$(BIN)/python benchmarks/peers/growth.py
	$(BIN)/python benchmarks/audit.py decode
	$(BIN)/python benchmarks/audit.py truth --orders 1000000
	$(BIN)/python benchmarks/audit.py reconcile --orders 1000000

protos: install       ## generate the protobuf code from the .proto files
	$(BIN)/python -m services.rpc.generate
	$(BIN)/python -m services.shop.generate

lock: install         ## choose the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-header \
		--no-emit-package tidewheel-client --extra dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
