# make demo: a virtual environment, everything installed, the main job on real input
# make test: installs what the tests need, runs them
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint docs bench clean

$(VENV)/.ready: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .[torch,triton,hf,pandas,test]
	# without torchvision, which has to match the build of torch; the tests of their models do without
	$(INSTALL) --no-deps timm vit-pytorch
	touch $@

$(VENV)/.lint-ready: $(VENV)/.ready
	$(INSTALL) -e .[lint]
	touch $@

demo: $(VENV)/.ready
	$(BIN)/stabilitylens demo --out demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n auto --nbmake tests notebooks

lint: $(VENV)/.lint-ready
	$(BIN)/flake8 stabilitylens hooks tests benchmarks
	$(BIN)/isort --check-only --quiet stabilitylens hooks tests benchmarks
	rm -rf build/types && mkdir -p build/types && cp -r stabilitylens build/types/ && cp -r hooks build/types/stabilitylens/hooks
	cd build/types && $(abspath $(BIN))/mypy --config-file $(abspath setup.cfg) -p stabilitylens

docs: $(VENV)/.ready
	$(BIN)/python -m stabilitylens.docs docs

bench: $(VENV)/.ready
	$(BIN)/python -m pytest -n auto -m grid
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.detectors
	$(BIN)/python -m benchmarks.readers
	$(BIN)/python -m benchmarks.run_format
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.norms
	$(BIN)/python -m benchmarks.aot

clean:
	rm -rf $(VENV) build dist demo *.egg-info
