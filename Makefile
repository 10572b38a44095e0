# `make train` and `make test` do their own set-up. Torch comes first and pinned, so that nothing
# else pulls another build; see scripts/setup.sh.
PYTHON ?= python3
VENV := .venv
PEERS := .peers
MLFLOW := .mlflow
KUBERNETES := .kubernetes
SKY := .sky
TRITON := .triton
BIN := $(VENV)/bin

.PHONY: train test test-kernels test-slow test-s3 test-mlflow test-hostile test-slurm drill drill-campaigns drill-live drill-spot drill-hostile bench-data bench-plan bench-sync-plan bench-simulate bench-compare bench-watch bench-train bench-adapt bench-start bench-power bench-meter bench-hosts bench-launch fit-plan lint format wheel test-install install-size clean test-ssh test-kubernetes test-sky drill-simulate test-ray bench-ray bench-sync

train: $(VENV)/.core
	@$(BIN)/penstock train examples/stdlib.toml

# Three at a time, file by file in the order of tests/conftest.py: most tests wait for processes, and
# many start several of their own. Bytecode is kept: without it each of the three rewrites the
# assertions of all tests again, half a minute of CPU each.
test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The Triton kernels by Triton's interpreter, without a GPU. Triton stands apart: where torch finds it,
# torch.compile takes other ways on a CPU.
test-kernels: $(VENV)/.dev $(TRITON)/.made
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/model/test_kernels_interpreted.py

# What takes minutes, and every property test again on new random cases.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m "(slow or hypothesis) and not (gpu or s3 or netns or hostile or slurm or ssh or kubernetes or sky or ray)" --hypothesis-profile=random

# Against a real S3 server (Ceph RGW, in memory): needs Debian's ceph-mon, ceph-osd and radosgw.
test-s3: $(VENV)/.dev
	$(BIN)/python -m pytest -m s3

# Runs and examinations over real sshd, a host in a network namespace each: needs root, iproute2,
# openssh-server and faketime (TIMES=20: so many examinations of healthy nodes).
test-ssh: $(VENV)/.dev
	$(BIN)/python -m pytest -m ssh -rs -s

# Builds on a real Ray cluster of three nodes in network namespaces, with a real S3 server: needs root,
# iproute2 and Ceph as above. Minutes.
test-ray: $(VENV)/.dev
	$(BIN)/python -m pytest -m ray tests/on_ray

# MLflow's own client against its own server, in an environment of their own: minutes to install.
test-mlflow: $(VENV)/.dev $(MLFLOW)/.made
	$(BIN)/python -m pytest -m "slow or not slow" tests/watch/outlets/test_mlflow.py

# What is submitted to Kubernetes, by its own schemas (kubernetes-validate) and JobSet's models; and,
# where scripts/kube_apiserver.sh has built one, by a real API server.
test-kubernetes: $(VENV)/.dev $(KUBERNETES)/.made
	$(BIN)/python -m pytest -m kubernetes

# What is submitted to SkyPilot, by its own parser; and runs by its command, server and jobs controller on
# a real Slurm of two nodes over ssh, with a real S3 server (root, Python 3.10 and Ceph as above): minutes.
test-sky: $(VENV)/.dev $(SKY)/.made
	@scripts/sky_slurm.sh install
	$(BIN)/python -m pytest -m sky -rs tests/launch/engines

# Attacks on real runs by strangers in network namespaces (root and iproute2; TIMES=20: so often), and
# a few seeds of `drill-hostile`.
test-hostile: $(VENV)/.dev
	$(BIN)/python -m pytest -m hostile -s

# Runs on a real Slurm of 4 nodes in network namespaces, with a real S3 server for one of them (root,
# iproute2 and Ceph as above; Slurm is installed if it can be): about 25 minutes.
test-slurm: $(VENV)/.dev
	@scripts/slurm.sh install
	$(BIN)/python -m pytest -m slurm -s

# Real faults on the default run, each judged against the undisturbed one (TIMES=10: so often), in
# live mode, and a hundred random campaigns. What they print is what docs/faults.md shows.
DRILL = $(BIN)/penstock drill examples/stdlib.toml dir=.drills --json
drill: $(VENV)/.core
	@mkdir -p docs/drills && rm -f docs/drills/restart.jsonl
	@for i in $$(seq $(or $(TIMES),1)); do $(DRILL) >> docs/drills/restart.jsonl || exit 1; done
	@$(BIN)/python scripts/drill_table.py

drill-live: $(VENV)/.core
	@mkdir -p docs/drills
	@$(DRILL) guard.mode=live > docs/drills/live.jsonl
	@$(BIN)/python scripts/drill_table.py

drill-campaigns: $(VENV)/.core
	@mkdir -p docs/drills
	@$(DRILL) --campaigns $(or $(TIMES),100) > docs/drills/campaigns.jsonl
	@$(BIN)/python scripts/drill_table.py

# Random kills, power cuts of a disk in an image file, and tampering with the records of runs that are
# down: needs root, e2fsprogs and a free loop device. Writes docs/drills/hostile.json and docs/faults.md.
drill-hostile: $(VENV)/.dev
	@mkdir -p docs/drills
	@$(BIN)/python tests/hostile/campaign.py --seeds $(or $(TIMES),100) --json docs/drills/hostile.json --page docs/faults.md

# Two hosts in network namespaces with a real S3 server between them, which come, go and are cut
# off: needs root, iproute2, iptables and Ceph as above.
drill-spot: $(VENV)/.dev
	@$(BIN)/python -m pytest -m netns -s

# 50 real faults on runs of two ranks: 25 calibrate the simulator, which predicts the other 25.
drill-simulate: $(VENV)/.core
	@$(BIN)/python benchmarks/drilled_lives.py $(BENCH)

# Probe, plan and the default run, interleaved three times: the planned step over the measured one.
bench-plan: $(VENV)/.core
	@$(BIN)/python benchmarks/probe_plan_run.py

# Replicas that take local steps, planned and measured: bytes to the byte, a step within 15 %. And
# published utilisation over slow links against the planner.
bench-sync-plan: $(VENV)/.core
	@$(BIN)/python -m penstock backtest benchmarks/facts/utilization.csv
	@$(BIN)/python benchmarks/sync_plan.py $(BENCH)

# Lives of a run against published fleets (left out one by one), published effective times, and the
# speed of 100,000 and 1,000,000 accelerators over 90 days. AIRESIM=FOLDER times that simulator too.
bench-simulate: $(VENV)/.core
	@$(BIN)/python benchmarks/simulate.py

# How long `penstock compare` takes for the five clusters of examples/compare. TIMES=5.
bench-compare: $(VENV)/.core
	@$(BIN)/python benchmarks/compare.py --times $(or $(TIMES),5)

# How long the report and the page of 1,000 ranks × 100,000 steps wait for their journal (3.3 GB).
bench-watch: $(VENV)/.core
	@$(BIN)/python benchmarks/big_journal.py

# The data pipeline beside its peers on one corpus: end to end, tokenization, near duplicates, the
# loader, memory as a set grows, and a run that reads from S3 over 1 Gbit/s (root and Ceph for that).
bench-data: $(VENV)/.dev $(PEERS)/.made
	@for one in "pipeline --peers $(PEERS)/bin/python" "tokens --peers $(PEERS)/bin/python" "dedup --peers $(PEERS)/bin/python" \
		"loader --peers $(PEERS)/bin/python" "build_memory" "remote"; do \
		set -- $$one; echo; echo "== benchmarks/$$1.py"; shift; \
		$(BIN)/python benchmarks/$${one%% *}.py "$$@" || exit 1; done

# A build on such a Ray cluster beside a plain one: equal versions, documents per core, a killed worker
# and a killed driver. DOCUMENTS=40000.
bench-ray: $(VENV)/.dev
	@$(BIN)/python benchmarks/ray_build.py $(if $(DOCUMENTS),--documents $(DOCUMENTS)) $(BENCH)

# Speed of training on a GPU beside torchtitan, transformers and nanoGPT. The machine's own python3
# with torch, transformers and this project's requirements; PEER_SOURCES holds `torchtitan/` as its
# wheel has it, and nanoGPT's model.py as nanogpt_model.py.
PEER_SOURCES ?= .carry/peers
bench-train:
	@PYTHONPATH=src:.carry:$$PYTHONPATH $(PYTHON) benchmarks/train_speed.py --peers $(PEER_SOURCES) $(BENCH)

# The same for LoRA and QLoRA, beside transformers with PEFT and Liger kernels: PEFT and liger_kernel
# must be importable, for example unpacked in .carry.
bench-adapt:
	@PYTHONPATH=src:.carry:$$PYTHONPATH $(PYTHON) benchmarks/train_speed.py --adapt --peers $(PEER_SOURCES) $(BENCH)

# What one GPU draws under four loads, and whether its counter and its sampled power agree: a minute.
bench-power:
	@PYTHONPATH=src:.carry:$$PYTHONPATH $(PYTHON) benchmarks/power.py $(BENCH)

# From `exec` to the end of the first and second step, cold and warm, by cause; then ranks are killed.
# With a GPU, the machine's own python3: PYTHONPATH=src:.carry python3 benchmarks/first_step.py
bench-start: $(VENV)/.core
	@$(BIN)/python benchmarks/first_step.py $(BENCH)

# What clocks, journal and traces cost a step, on the GPU if there is one.
bench-meter: $(VENV)/.core
	@$(BIN)/python benchmarks/metering.py

# What TLS between two hosts costs a step (root and iproute2); BEFORE is the src of another tree.
bench-hosts: $(VENV)/.dev
	@$(BIN)/python benchmarks/hosts.py $(if $(BEFORE),--before $(BEFORE)) $(BENCH)

# Sites that meet in a bucket against data parallel, over 20 Mbit/s and 60 ms; needs root, iproute2, ethtool and Ceph.
bench-sync: $(VENV)/.dev
	@$(BIN)/python benchmarks/sites.py $(BENCH)

# Starts and killed nodes on a real Slurm of 4 nodes (as for test-slurm), beside sbatch + torchrun.
# Bytecode is kept, as it is for users: a start is mostly imports.
bench-launch: $(VENV)/.dev
	@scripts/slurm.sh install
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python benchmarks/launch.py $(BENCH)

# Fits the planner's constants to the measured runs in benchmarks/facts, and without each source.
fit-plan: $(VENV)/.dev
	@$(BIN)/python scripts/fit_plan.py

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(VENV)/.dev
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# The wheel as users have it: by pip, uv and pipx, each in a new environment (minutes, ~3 GB, a network).
test-install: wheel
	@scripts/try_install.sh $$(ls -t dist/penstock-*.whl | head -n 1) $(WAYS)

# What an install adds beside torch, package by package; EXTRAS="[data]" counts those too.
install-size: wheel
	@scripts/install_size.sh "$(EXTRAS)" $$(ls -t dist/penstock-*.whl | head -n 1)

# Stamps: a second `make` with unchanged requirements installs nothing.
$(VENV)/.core: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV) ""
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV) "[dev]"
	@touch $@ $(VENV)/.core

$(PEERS)/.made: constraints.txt scripts/peers.sh
	@PYTHON="$(PYTHON)" scripts/peers.sh $(PEERS)
	@touch $@

$(MLFLOW)/.made: constraints.txt scripts/mlflow.sh
	@PYTHON="$(PYTHON)" scripts/mlflow.sh $(MLFLOW)
	@touch $@

$(KUBERNETES)/.made: constraints.txt scripts/kubernetes.sh
	@PYTHON="$(PYTHON)" scripts/kubernetes.sh $(KUBERNETES)
	@touch $@

$(SKY)/.made: scripts/sky.sh
	@PYTHON="$(PYTHON)" scripts/sky.sh $(SKY)
	@touch $@

$(TRITON)/.made:
	$(BIN)/python -m pip --disable-pip-version-check -qq install --no-deps --upgrade --target $(TRITON) triton==3.9.0
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(MLFLOW) $(KUBERNETES) $(SKY) $(TRITON) build dist src/*.egg-info
