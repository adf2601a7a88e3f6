"""Three next steps; each follows from figures of the page by a rule beside it.

The first three rules that hold are shown. The last rules always hold if their figures are known, so a good run gets
three steps too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anadil.core.candidates import BY_NAME
from anadil.core.format import number
from anadil.report.corpus_view import drops
from anadil.report.forgetting import advice_on_forgetting
from anadil.report.format import clip, figure, percent, words_of
from anadil.report.learning import FINETUNING, learnings
from anadil.report.read import Facts, field, list_of, table_of
from anadil.report.retained import FORGETS, forgotten
from anadil.report.verdict import (
    answering,
    candidates_of,
    fewest_documents,
    gain_in_answers,
    released_name,
    subjects_of,
)
from anadil.text.metrics import SURE_DOCUMENTS

NUM_STEPS = 3
MAX_LOOPS = 0.2
"""Share of greedy texts that loop."""
MIN_ENDED = 0.9
MIN_OWN_LANGUAGE = 0.9
# Fall of the loss over the last tenth of the steps.
STILL_FALLING = 0.02
# Share of the documents that cleaning may drop before its rules are worth a look.
MANY_DROPPED = 0.5
# All limits are our choice: where a reader would stop and ask.


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One line."""

    action: str
    why: str


def next_steps(facts: Facts) -> tuple[NextStep, ...]:
    """The first three whose rule holds."""
    rules = (_measuring, _finetuning, _forgetting, _answers, _training, _always)
    return tuple(step for rule in rules for step in rule(facts))[:NUM_STEPS]


def _measuring(facts: Facts) -> Iterator[NextStep]:
    """Steps if the figures themselves are uncertain."""
    share = number(field(facts.scores, "contamination.share"))
    limit = facts.recipe.evaluate.gate.max_contaminated_share
    if share is not None and share > limit:
        text = "this text" if facts.recipe.evaluate.heldout else "text from another source (evaluate.heldout)"
        yield NextStep(
            action=f"Score on {text}, set clean.decontaminate to true, and train again.",
            why=f"{percent(share)} of the held-out documents are also in the training part. Rule: above {percent(limit)}.",
        )
    fewest = fewest_documents(candidates_of(facts.scores))
    if fewest < SURE_DOCUMENTS:
        yield NextStep(
            action="Hold out more text: add files to evaluate.heldout.",
            why=f"{figure(fewest)} documents were scored. Rule: below {SURE_DOCUMENTS} an interval is too narrow.",
        )


def _finetuning(facts: Facts) -> Iterator[NextStep]:
    finetuning = learnings(facts).get(FINETUNING)
    if finetuning and finetuning.turn:
        yield NextStep(
            action="Stop finetuning earlier: set finetune.patience, or lower finetune.epochs.",
            why=f"{finetuning.words.rsplit('; ')[-1]}. Rule: above 2 %.",
        )
    elif finetuning and finetuning.warns:
        yield NextStep(
            action="Train longer in finetuning: raise finetune.lr or finetune.epochs, or train more weights (finetune.trains).",
            why=f"{finetuning.words}. Rule: below 10 %.",
        )
    gain = gain_in_answers(facts.scores)
    high = number(field(table_of(facts.scores.get("differences")).get(gain), "high"))
    if high is not None and high >= 0 and not (finetuning and finetuning.warns):
        yield NextStep(
            action="Add chats to finetuning that resemble the questions.",
            why=f"The interval of {gain} ends at {figure(high)}. Rule: below 0.",
        )


def _forgetting(facts: Facts) -> Iterator[NextStep]:
    worst = [
        (name, change)
        for name in reversed(subjects_of(facts.scores))
        for change in forgotten(facts.scores, name)
    ]
    for (name, change), advice in zip(worst, advice_on_forgetting(facts), strict=False):
        yield NextStep(
            action=f"{advice.action} Scores, Forgetting, has the keys.",
            why=f"{clip(change.text, 40)} costs the {name} model {change.words}. Rule: above {percent(FORGETS)}.",
        )
        return


def _answers(facts: Facts) -> Iterator[NextStep]:
    candidates = candidates_of(facts.scores)
    name = next(reversed(subjects_of(facts.scores)), "adapted")
    model = candidates.get(name, {})
    loops = number(field(model, "repetition.greedy.loop_rate"))
    if loops is not None and loops > MAX_LOOPS:
        yield NextStep(
            action="Train on more text or for more steps. A model that loops has seen too little.",
            why=f"{percent(loops)} of the {name} model's greedy texts loop. Rule: above {percent(MAX_LOOPS)}.",
        )
    ended = number(field(model, "questions.ended"))
    if name in answering(facts.scores) and ended is not None and ended < MIN_ENDED:
        yield NextStep(
            action="Raise evaluate.max_new_tokens, or shorten the answers in the chats.",
            why=f"{percent(ended)} of the answers end by themselves. Rule: below {percent(MIN_ENDED)}.",
        )
    language = number(field(model, "output_language.own"))
    if language is not None and language < MIN_OWN_LANGUAGE:
        yield NextStep(
            action="Search corpus and chats for text in a neighbouring language.",
            why=f"{percent(language)} of what the {name} model writes is in its language. Rule: below {percent(MIN_OWN_LANGUAGE)}.",
        )


def _training(facts: Facts) -> Iterator[NextStep]:
    for stage, each in learnings(facts).items():
        if each.late_fall > STILL_FALLING and not each.turn:
            key = "finetune.epochs" if stage == FINETUNING else "pretrain.phases"
            yield NextStep(
                action=f"Train longer: {stage.lower()} is still learning (more steps: {key}).",
                why=f"The loss still fell by {figure(each.late_fall * 100, 2)} % over the last tenth of the steps. Rule: above {percent(STILL_FALLING)}.",
            )
    num_read, num_kept = number(facts.stats.get("in")), number(facts.stats.get("kept"))
    dropped = drops(facts.stats)
    if num_read and num_kept is not None and 1 - num_kept / num_read > MANY_DROPPED and dropped:
        yield NextStep(
            action=f"Read what the rule '{clip(words_of(dropped[0][0]), 40)}' dropped. It drops the most.",
            why=f"Cleaning dropped {percent(1 - num_kept / num_read)} of the documents. Rule: above {percent(MANY_DROPPED)}.",
        )


def _always(facts: Facts) -> Iterator[NextStep]:
    """Steps for a run without a fault: release it, then improve the weakest part."""
    if released := released_name(facts.scores):
        word = BY_NAME[released].kind if released in BY_NAME else "model"
        yield NextStep(
            action=f"Read ten answers with a speaker of {facts.language.name}, then release with anadil promote, the {word} and these scores.",
            why=f"The gate releases the {released} model. Figures do not show whether an answer is right.",
        )
    model = candidates_of(facts.scores).get(released or "adapted", {})
    figures = table_of(model.get("domains")).items()
    domains = [(value, name) for name, item in figures if (value := number(item)) is not None]
    if len(domains) > 1:
        worst, name = max(domains)
        yield NextStep(
            action=f"Add text of the domain {clip(name, 60)}.",
            why=f"It has the most bits per byte of {len(domains)} domains: {figure(worst)}.",
        )
    if dropped := drops(facts.stats):
        yield NextStep(
            action=f"Read samples of the rule '{clip(words_of(dropped[0][0]), 40)}' below. Text that it drops wrongly is missing in training.",
            why=f"It drops the most: {figure(int(dropped[0][1]))} documents.",
        )
    if not list_of(facts.recipe.evaluate.heldout):
        yield NextStep(
            action="Score on text of your own as well (evaluate.heldout).",
            why="The held-out text is part of the same corpus. Rule: evaluate.heldout is empty.",
        )
