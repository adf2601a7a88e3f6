"""Check before `evaluate` starts: files are read, since a mistake in one would end it after hours of training."""

from collections.abc import Callable, Iterator, Sequence

from anadil.artifacts import storage
from anadil.core.format import counted
from anadil.evaluate.preference import votes
from anadil.evaluate.refusals import requests
from anadil.evaluate.stage import STAGE
from anadil.runtime import check
from anadil.runtime.job import named_side_files


def _check(key: str, read: Callable[[Sequence[str]], str]) -> check.Check[check.PlannedRun]:
    def inspect(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
        names = named_side_files(STAGE, planned.recipe).get(key)
        if names and STAGE.name in planned.names:
            yield check.passed(key, read(storage.expand(names, key)))

    return check.Check(name=key, by=(check.DOCTOR, check.RUN), function=inspect)


def _requests(files: Sequence[str]) -> str:
    by_language = requests.read_requests(files).items()
    return ", ".join(f"{counted(len(each), 'request')} in {code}" for code, each in by_language)


def _votes(files: Sequence[str]) -> str:
    return counted(sum(len(pair.votes) for file in votes.read_votes(files) for pair in file.pairs), "vote")


CHECKS = (_check(requests.KEY, _requests), _check(votes.KEY, _votes))
