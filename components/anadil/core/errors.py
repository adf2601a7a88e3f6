"""Every deliberate failure, by whose turn it is to act; the exit code follows from the class.

AnadilError            a failure that we foresaw
 +- RecipeError     2  the recipe or the command line is wrong: edit it
 +- DataError       3  the data cannot be used: check the named file or record
 +- PreflightError  4  the machine or the cluster lacks something: install, free or grant it
 +- IntegrityError  5  bytes differ from their manifest, or would run code: do not trust them
 +- GateError       6  the model did not pass the quality gate
 +- BudgetReached   7  the budget is used up; the run can be resumed
 +- RetryableError 138 storage or network failed for now: run the same command again
 +- Stopped        143 a signal ended the run after it saved; the run can be resumed

Codes from 128 up are those that a `restartPolicy: ExitCode` retries
(kubeflow training-operator, pkg/util/train/train_util.go).
"""

BUG = 70
"""Exit code of a failure that we did not foresee (EX_SOFTWARE of sysexits.h)."""

INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT)."""


class AnadilError(Exception):
    """A foreseen failure; the message names what, where, the value and the remedy."""

    exit_code = 1
    before_again = ""
    """Words on what comes before the same command is given again, or nothing."""


CORRECT = (
    "Correct what the error above names first: the file where it is, the recipe by --set KEY=VALUE. "
    "Without, the command fails again."
)


class RecipeError(AnadilError):
    """The recipe or the command line is wrong."""

    exit_code = 2
    before_again = CORRECT


class DataError(AnadilError):
    """Input data cannot be used."""

    exit_code = 3
    before_again = CORRECT


class PreflightError(AnadilError):
    """The environment lacks something that the run needs."""

    exit_code = 4
    before_again = "Give the machine what the error above names first. Until then the command fails again."


class IntegrityError(AnadilError):
    """Stored bytes are not those that their manifest names, or are unsafe to load."""

    exit_code = 5
    before_again = CORRECT


class GateError(AnadilError):
    """The model did not pass the quality gate."""

    exit_code = 6
    before_again = "The model did not pass the gate: the same recipe gives the same model. Change the recipe or the text first."


class BudgetReached(AnadilError):
    """The budget of the run is used up; what was done is saved."""

    exit_code = 7
    before_again = "The budget is used up: the command goes on with a new one."


class RetryableError(AnadilError):
    """Storage or network failed for now."""

    exit_code = 138


class Stopped(AnadilError):
    """A signal ended the run after it saved its state."""

    exit_code = 143


BY_EXIT_CODE: dict[int, type[AnadilError]] = {kind.exit_code: kind for kind in AnadilError.__subclasses__()}


def message_of(error: BaseException) -> str:
    """Words of an error; what a library has said in several lines is one line of them."""
    text, seen = str(error), error
    for _ in range(9):
        if not isinstance(seen, AnadilError) and "\n" in (words := str(seen).strip()):
            text = text.replace(words, " ".join(words.split()))
        if (before := seen.__cause__ or seen.__context__) is None:
            break
        seen = before
    return text
