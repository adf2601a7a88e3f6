"""Check before `evaluate` starts: files of requests are read, since a mistake in one would end it after hours of training."""

from collections.abc import Iterator

from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.evaluate.refusals.requests import KEY, read_requests
from anadil.evaluate.stage import STAGE
from anadil.runtime import check
from anadil.runtime.job import external_side_files


def _requests(planned: check.PlannedRun) -> Iterator[check.CheckResult]:
    files = external_side_files(STAGE, planned.recipe).get(KEY, ())
    if files and STAGE.name in planned.names:
        try:
            requests = read_requests(files)
        except DataError as error:
            yield check.failed_by(KEY, error)
        else:
            counts = (f"{counted(len(each), 'request')} in {code}" for code, each in requests.items())
            yield check.passed(KEY, ", ".join(counts))


CHECKS = (check.Check(name=KEY, by=(check.DOCTOR, check.RUN), function=_requests),)
