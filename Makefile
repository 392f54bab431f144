# make demo | test | lint | docs | bench | gpu: the only commands anyone needs; test-quick for the inner loop, test-long
# before a release, test-keras where TensorFlow is wanted, test-kernels after a change of a kernel for GPUs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests that run at once. One more than the cores of a usual CI machine: with two, a fifth of two cores was idle, as many
# tests wait for a process or for a program that sleeps.
JOBS   ?= 3
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-quick test-long test-faults test-keras test-adversarial test-engines test-cluster test-survive test-kernels lint docs bench gpu gpu-wheels clean

demo: $(VENV)/.example
	@echo "== an epoch of the script as it is (the first time it renders its images, which no trial then has to)"
	$(BIN)/python examples/cifar_cnn.py --epochs 1
	@echo "== tuning examples/cifar_cnn.py (three minutes at most; every number is measured on this machine)"
	$(BIN)/overdrive tune --budget 180s examples/cifar_cnn.py
	@echo "== the same script, whole, under the plan that was found"
	$(BIN)/overdrive run examples/cifar_cnn.py

test: $(VENV)/.test
	@echo "== running the tests (15 minutes on 2 usual cores, twice that on slow ones)"
	$(PYTEST) -m "not long and not faults and not cluster and not survive"

# More programs, data sets and ways to fill a cache, of kinds that `make test` has one of. 15 to 30 minutes on 2 cores:
# with it CI took 50 minutes.
test-long: $(VENV)/.test
	$(PYTEST) -m long

# An error at a random place of each technique, 20 times for each kind: the program goes on as without it; a tune that is
# killed 100 times; a clock that jumps, a disk that fails (strace), a cgroup without memory (root). 45 minutes.
test-faults: $(VENV)/.test
	$(PYTEST) -m faults

# Programs on two ranks: fifty small ones, those of tests/programs, faults, launchers; on Ray, which is installed (200 MB);
# and under a real Slurm, which root gets by apt-get. 35 minutes on 2 cores.
test-cluster: $(VENV)/.test
	$(PIP) -e '.[ray]'
	@if ! command -v slurmctld slurmd >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== installing Slurm of this system's packages"; apt-get install -qq -y slurmctld slurmd slurm-client; fi \
		|| echo "== Slurm cannot be installed: its tests are skipped"
	$(BIN)/python -m pytest -m cluster tests/ranks

# The programs of tests/programs, killed at random moments and gone on with, by themselves, under plans and on ranks.
# 40 minutes on 2 cores.
test-survive: $(VENV)/.test
	$(BIN)/python -m pytest -m survive tests/survive

# What starts no trial and no tune: under two minutes on 2 cores.
QUICK := core evidence machine report seams/torch proof cli/test_group.py trials/test_duel.py techniques/test_techniques.py
test-quick: $(VENV)/.test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(QUICK:%=tests/%)

# What needs TensorFlow and Keras, which are installed (2 GB): about 15 minutes on 2 cores.
# With `make test-engines` before it OpenVINO answers, too.
KERAS := worker/keras seams/keras techniques/test_keras.py techniques/inference/test_direct_predict.py engines/test_keras.py \
	techniques/inference/test_graph_call.py techniques/inference/test_keras_engines.py insight/profile/test_keras.py \
	test_keras_programs.py ranks/test_keras.py search/test_listing_keras.py survive/test_keras_that_survives.py \
	trials/test_keras_writes.py techniques/compile/test_xla_clusters.py targets/test_keras.py targets/test_keras_engines.py \
	targets/fpga/test_keras.py
test-keras: $(VENV)/.keras
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(KERAS:%=tests/%)

# Programs that change their data late: hundreds made at random, and those of ../shared/adversarial where that is there.
test-adversarial: $(VENV)/.test
	$(BIN)/python -m tests.adversarial made
	@test ! -d ../shared/adversarial || $(BIN)/python -m tests.adversarial matrix
	@test ! -d ../shared/adversarial || $(BIN)/python -m tests.adversarial programs

# What needs OpenVINO, ONNX Runtime and hls4ml: 400 MB, which `make test` does without.
ENGINES := techniques/inference/test_engines.py targets/test_engines.py targets/fpga
test-engines: $(VENV)/.test
	$(PIP) -e '.[engines,fpga]'
	$(BIN)/python -m pytest $(ENGINES:%=tests/%)

# Kernels in Triton: 10,000 random calls in its interpreter, and seeded defects. 15 to 30 minutes on 2 cores; Triton
# (1 GB) lies in a folder of its own, so that PyTorch elsewhere does not find it.
test-kernels: $(VENV)/.triton
	TRITON_INTERPRET=1 OVERDRIVE_KERNEL_CASES=10000 PYTHONPATH=$(VENV)/triton $(PYTEST) tests/kernels \
		tests/techniques/test_fast_cross_entropy.py

lint: $(VENV)/.lint
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	$(BIN)/python docs/build.py
	@echo "== $(BIN)/python -m http.server -d site   shows it at http://localhost:8000, with search"

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

# One command for a machine with a GPU, under 10 minutes. It uses the machine's own PyTorch.
gpu:
	$(PYTHON) benchmarks/gpu.py

# What a bare machine with PyTorch may lack, to be carried there as wheels (pure Python, for any version).
gpu-wheels:
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d .whl \
		tomlkit click rich jinja2 nvidia-ml-py

$(VENV)/.venv:
	@echo "== making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# PyTorch is a big download where no wheel is at hand; everything else is small.
$(VENV)/.example: $(VENV)/.venv pyproject.toml constraints.txt
	@echo "== installing Overdrive, PyTorch and what the examples need"
	$(PIP) -e ".[example]"
	@touch $@

$(VENV)/.test: $(VENV)/.venv pyproject.toml constraints.txt
	@echo "== installing Overdrive and what the tests need"
	$(PIP) -e ".[test]"
	@touch $@

$(VENV)/.keras: $(VENV)/.test
	@echo "== installing TensorFlow and Keras"
	$(PIP) -e ".[test,keras]"
	@touch $@

$(VENV)/.triton: $(VENV)/.test
	@echo "== installing Triton"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/triton triton==3.9.0
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	@echo "== installing the linters"
	$(PIP) -e ".[test,lint]"
	@touch $@

$(VENV)/.docs: $(VENV)/.venv pyproject.toml constraints.txt
	@echo "== installing the documentation's builder"
	$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	@echo "== installing the peers that Overdrive is compared with"
	$(PIP) -e ".[test,peers]"
	@$(PIP) ffcv || echo "== ffcv is left out: it builds where OpenCV's and TurboJPEG's headers are installed"
	@touch $@

clean:
	rm -rf $(VENV) site build
