from anadil.report.generations_view import talk_view
from tests.kit import report_run
from tests.kit.report_run import Json


def text(prompt: str, answer: str, **more: object) -> Json:
    return {"kind": "answer", "mode": "greedy", "prompt": prompt, "text": answer, **more}


def table(*, finetuned: list[Json], base: list[Json], released: str = "finetuned") -> Json:
    scores = report_run.scores()
    scores["candidates"]["finetuned"]["generations"] = finetuned
    scores["candidates"]["base"]["generations"] = base
    scores["gate"] |= {"passed": bool(released), "released": released or None}
    return scores


def test_the_first_right_answer_to_an_unseen_question_is_shown_with_the_share_of_right_ones() -> None:
    finetuned = [
        text("Salam!", "Salam!", seen=True),
        text("Balans?", "Bilmirəm.", seen=False),
        text("Nömrəm?", "*101# yığın.", seen=False, exact=True),
    ]

    talk = talk_view(table(finetuned=finetuned, base=[text("Nömrəm?", "the the the", seen=False)]))

    assert talk is not None
    assert talk.prompt == "Nömrəm?"
    assert talk.note == "not seen in training; 1 of 2 such questions answered word for word"
    assert talk.said == (("finetuned", "*101# yığın."), ("base", "the the the"))


def test_a_model_that_answers_nothing_right_shows_its_first_answer() -> None:
    talk = talk_view(table(finetuned=[text("Balans?", "Bilmirəm.", seen=False)], base=[]))

    assert talk is not None
    assert talk.note == "not seen in training; 0 of 1 such question answered word for word"
    assert talk.said == (("finetuned", "Bilmirəm."),)


def test_a_released_model_that_continues_texts_shows_how_it_goes_on() -> None:
    scores = table(finetuned=[text("Balans?", "Bilmirəm.")], base=[], released="adapted")
    beginning = {"kind": "continuation", "mode": "greedy", "prompt": "Bakı", "text": "Bakı gözəldir"}
    scores["candidates"]["adapted"]["generations"] = [beginning]

    talk = talk_view(scores)

    assert talk is not None
    assert not talk.answers
    assert talk.said == (("adapted", "gözəldir"),)


def test_without_a_release_or_a_text_there_is_no_picture() -> None:
    assert talk_view(table(finetuned=[text("Balans?", "Bilmirəm.")], base=[], released="")) is None
    assert talk_view(table(finetuned=[], base=[])) is None
    assert talk_view({}) is None


def test_a_prompt_that_is_markup_or_endless_stays_a_short_text() -> None:
    talk = talk_view(table(finetuned=[text("<script>" * 100, "a" * 5_000, seen="odd")], base=[]))

    assert talk is not None
    assert talk.note == ""
    assert max(len(talk.prompt), len(talk.said[0][1])) < 330
