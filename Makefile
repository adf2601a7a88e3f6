# make demo: set up and run the whole pipeline on built-in data.  make test: set up and test.
# make check: lint, types, import contracts.  make golden: rewrite the files that tests compare with.
# make images: build every image with docker, podman or buildah.

PYTHON ?= python3
ANADIL = .venv/bin/anadil

.PHONY: demo test check golden images clean

demo: .venv/installed-laptop
	$(ANADIL) run

test: .venv/installed-dev
	.venv/bin/pytest -n 2

# make coverage: lines and branches that tests reach, by room; what tests start in other processes is counted too.
.PHONY: coverage
coverage: .venv/installed-dev
	rm -f .coverage*
	.venv/bin/coverage run -m pytest || true  # a few tests of full disks fail where their processes write counts
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage json --quiet -o .coverage.json
	.venv/bin/python scripts/coverage_by_room.py .coverage.json

check: .venv/installed-dev
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/lint-imports
	.venv/bin/mypy
	.venv/bin/pyright --warnings
	.venv/bin/python scripts/make_builtin_data.py --check
	.venv/bin/python scripts/make_reference.py --check
	.venv/bin/python scripts/make_published.py --check
	.venv/bin/python scripts/make_manifests.py --check
	.venv/bin/python scripts/make_chart_readme.py --check
	.venv/bin/python scripts/make_dashboards.py --check

golden: .venv/installed-dev
	.venv/bin/python -m tests.golden
	.venv/bin/python scripts/make_reference.py
	.venv/bin/python scripts/make_published.py
	.venv/bin/python scripts/make_manifests.py
	.venv/bin/python scripts/make_chart_readme.py
	.venv/bin/python scripts/make_dashboards.py

images:
	images/build.sh all

clean:
	rm -rf anadil-work .pytest_cache .mypy_cache .ruff_cache

.venv/installed-%: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --editable '.[$*]'
	touch $@
