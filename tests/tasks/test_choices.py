from datasets import Dataset

from anadil.tasks.shipped.choices import question_of, with_choices


def test_choices_are_read_out_of_a_prompt_that_lists_them() -> None:
    prompt = "Kişi kranı açdı.\nNəticə hansıdır?\n1) Tualet su ilə doldu.\n2) Krandan su axdı."
    choices = ["Tualet su ilə doldu.", "Krandan su axdı."]

    question = question_of({"prompt": prompt, "response": "Krandan su axdı."})

    assert question == {"question": prompt, "choices": choices, "answer": 1}


def test_rows_that_are_no_questions_with_choices_are_left_out() -> None:
    question = {"question": "2 + 2?", "choices": ["3", "4"]}
    rows = [
        {**question, "answer": "B"},
        {**question, "answer": "5"},
        {**question, "choices": ["4"], "answer": "4"},
    ]

    assert list(with_choices(Dataset.from_list(rows))) == [{**question, "answer": 1}]
