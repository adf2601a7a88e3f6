# make demo: set up and run the whole pipeline on built-in data, with the options DEMO.  make test: set up and test, with the options PYTEST.
# make check: lint, types, import contracts.  make golden: rewrite the files that tests compare with.
# make images: build every image with docker, podman or buildah.  make release: what a release publishes, into dist/.
# make ci, make ci-full: what CI runs.

PYTHON ?= python3
ANADIL = .venv/bin/anadil
# Image locks are made by hand: they ask package indexes.
GENERATORS = $(filter-out %/make_image_locks.py, $(wildcard scripts/make_*.py))

.PHONY: demo test check golden images ci ci-full clean

demo: .venv/installed-laptop
	$(ANADIL) run $(DEMO)

# Where a process that runs tests dies, the run ends: xdist would start another one, and near the end wait for it for ever.
test: .venv/installed-dev
	.venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST)

# make coverage: lines and branches that tests reach, by room; what tests start in other processes is counted too, and
# compiled kernels, which no tracer sees, by running their tests once more as Python. PYTEST as for `make test`.
COMPILED_TESTS := tests/clean/test_statistics.py tests/clean/test_judge.py tests/clean/test_ng_words.py \
	tests/clean/test_swallow.py tests/tokenizer/test_bpe.py tests/tokenizer/test_pretokens.py \
	$(addprefix tests/clean/test_dedup.py::test_,a_text_shorter_than_a_shingle_has_keys \
	exact_keys_are_equal_where_case_and_white_space_alone_differ) -k "not time_grows and not megabyte and not second_process"
.PHONY: coverage
coverage: .venv/installed-dev
	rm -f .coverage*
	.venv/bin/coverage run -m pytest $(PYTEST) || true  # a few tests of full disks fail where their processes write counts
	NUMBA_DISABLE_JIT=1 .venv/bin/coverage run -m pytest -q -p no:xdist -W "ignore:overflow:RuntimeWarning" $(COMPILED_TESTS)
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage json --ignore-errors --quiet -o .coverage.json
	.venv/bin/python scripts/coverage_by_room.py .coverage.json

check: .venv/installed-dev
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/lint-imports
	.venv/bin/mypy
	set -e; for each in $(GENERATORS); do .venv/bin/python $$each --check; done

golden: .venv/installed-dev
	.venv/bin/python -m tests.golden
	set -e; for each in $(GENERATORS); do .venv/bin/python $$each; done

# make speed: CPU of each stage over a plain loop, into benchmarks/speed.json; some ten minutes on two cores.
.PHONY: speed
speed: .venv/installed-dev
	.venv/bin/python -m benchmarks.speed

# make gpu: everything that only a GPU shows, in at most 30 minutes, into benchmarks/gpu; its options are GPU.
.PHONY: gpu
gpu: .venv/installed-dev
	.venv/bin/python -m benchmarks.gpu.measure $(GPU)

# make site: the pages of README, docs and benchmarks as a static site in site/; SITE_REPOSITORY is their git host's address.
.PHONY: site
site: .venv/installed-site
	.venv/bin/python scripts/build_site.py

images:
	images/build.sh all

# make release: what a release publishes, into dist/, with the options IMAGES (all, none, or names), KEY (a private key that
# signs) and REGISTRY (what images are called before /NAME).
IMAGES ?= all
REGISTRY ?= anadil
.PHONY: release
release: .venv/installed-dev
	.venv/bin/python scripts/release.py --images '$(IMAGES)' --registry '$(REGISTRY)' $(if $(KEY),--key '$(KEY)')

ci:
	.ci/run

ci-full:
	.ci/run --full

clean:
	rm -rf anadil-work .pytest_cache .mypy_cache .ruff_cache

# Versions are those of constraints.txt, which tests and images have. What is loaded is compiled then, and not all that is installed.
.venv/installed-%: pyproject.toml constraints.txt
	test -x .venv/bin/pip || { $(PYTHON) -m venv .venv && .venv/bin/python -m pip install --quiet --upgrade -c constraints.txt pip; }
	.venv/bin/python -m pip install --quiet --no-compile -c constraints.txt --editable '.[$*]'
	touch $@
