import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.runtime import alerts
from anadil.runtime.alerts import (
    CHANNELS,
    MAX_MESSAGE_CHARS,
    SLACK,
    SNS,
    Channel,
    Event,
    notify,
    plain_text,
    slack_text,
)
from tests.kit.http_server import Reply, Request, http_server

FAILED = Event(kind="failed", run="run-7", stage="pretrain", message="disk full", resume="submit it again")
SECRET = "T000/B000/canary-4711"


@contextmanager
def webhook(
    status: int = 200, location: str = "", delay_s: float = 0.0
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that takes messages; its URL and what it got."""
    got: list[dict[str, Any]] = []

    def reply(request: Request) -> Reply:
        if request.method == "GET":
            got.append({"redirected": request.path})
            return Reply()
        got.append(request.body)
        headers = {"Location": location} if location else {}
        return Reply(status=status, headers=headers, delay_s=delay_s)

    with http_server(reply) as port:
        yield f"http://127.0.0.1:{port}/services/{SECRET}", got


def test_slack_gets_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    event = replace(FAILED, artifact="s3://b/model/1", figures={"loss": 2.31, "tokens_per_s": 9000})
    with webhook() as (url, got):
        monkeypatch.setenv(SLACK.variable, url)

        notify(event)

    assert got == [
        {
            "text": "*anadil pretrain failed: run-7*\ndisk full\nloss 2.31, tokens per s 9000\n"
            "Artifact: `s3://b/model/1`\nTo go on: submit it again"
        }
    ]


def test_a_channel_is_one_row_of_the_table(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[tuple[str, str]] = []

    def page(address: str, event: Event) -> None:
        got.append((address, event.run))

    def fail(address: str, event: Event) -> None:
        raise KeyError(address, event)

    rows = (Channel("ANADIL_PAGER", page), Channel("ANADIL_BROKEN", fail))
    monkeypatch.setattr(alerts, "CHANNELS", rows)
    monkeypatch.setenv("ANADIL_PAGER", "pager:canary")
    monkeypatch.setenv("ANADIL_BROKEN", "canary")

    notify(replace(FAILED, message="pager:canary is full"))

    assert got == [("pager:canary", "run-7")]
    assert "ANADIL_BROKEN: notification not sent: KeyError" in caplog.text
    assert "canary" not in caplog.text + plain_text(replace(FAILED, message="pager:canary is full"))


def test_the_guide_lists_every_channel() -> None:
    root = next(path for path in Path(__file__).parents if (path / "pyproject.toml").is_file())
    text = (root / "docs/guides/cluster-look-after.md").read_text(encoding="utf-8")
    table = text.partition("## Notifications")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [channel.variable for channel in CHANNELS]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://hooks.example.com/services/" + SECRET, "only https:// is taken"),
        ("file:///etc/passwd", "only https:// is taken"),
        ("https://169.254.169.254/" + SECRET, "metadata"),
        ("https://[::ffff:169.254.169.254]/" + SECRET, "metadata"),
        ("https://100.100.100.200/" + SECRET, "metadata"),
        ("https://0.0.0.0/" + SECRET, "metadata"),
        ("https://user:pass@hooks.example.com/" + SECRET, "no user"),
        ("https://[bad/" + SECRET, "no URL"),
        ("https://no-such-host.invalid/" + SECRET, "not known"),
    ],
)
def test_an_address_that_is_no_webhook_is_refused_without_telling_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str, text: str
) -> None:
    # D15, F8
    monkeypatch.setenv(SLACK.variable, address)

    notify(FAILED)

    assert text in caplog.text
    assert "canary" not in caplog.text


def test_a_webhook_that_is_gone_is_a_warning_without_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook(status=404) as (url, _):
        monkeypatch.setenv(SLACK.variable, url)
        notify(FAILED)
    notify(FAILED)  # nobody listens any more

    assert "the webhook answers 404; check whether it still exists" in caplog.text
    assert "the webhook cannot be reached (URLError)" in caplog.text
    assert "canary" not in caplog.text


def test_a_redirect_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook() as (elsewhere, stolen), webhook(status=302, location=elsewhere) as (url, _):
        monkeypatch.setenv(SLACK.variable, url)
        notify(FAILED)

    assert stolen == []
    assert "the webhook answers 302" in caplog.text


def test_a_webhook_that_does_not_answer_does_not_hold_the_run_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "PATIENCE_S", 0.3)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        monkeypatch.setenv(SLACK.variable, f"http://127.0.0.1:{deaf.getsockname()[1]}/{SECRET}")

        began = time.monotonic()
        notify(FAILED)
        took = time.monotonic() - began

    assert took < 5
    assert f"{SLACK.variable}: no answer in 0.3 s" in caplog.text


def test_markup_in_a_message_is_harmless() -> None:
    event = replace(FAILED, message="<!channel> a & b <https://evil|click>", artifact="s3://b/`x`")

    text = slack_text(event)

    assert "&lt;!channel&gt; a &amp; b &lt;https://evil|click&gt;" in text
    assert "Artifact: `s3://b/'x'`" in text


def test_a_message_is_cut_and_its_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary_4711")
    monkeypatch.setenv(SLACK.variable, f"https://hooks.slack.com/services/{SECRET}")
    event = replace(
        FAILED,
        message=f"https://leyla:canary4711@host/x hf_canary_4711 https://hooks.slack.com/services/{SECRET} "
        + "x" * 10_000,
    )

    for text in (slack_text(event), plain_text(event)):
        assert "canary" not in text
        assert len(text) < MAX_MESSAGE_CHARS + 200


def test_sns_gets_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    moto = pytest.importorskip("moto")
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-testing")
    with moto.mock_aws():
        topic = boto3.client("sns", region_name="eu-central-1").create_topic(Name="runs")["TopicArn"]
        queue = boto3.client("sqs", region_name="eu-central-1").create_queue(QueueName="inbox")["QueueUrl"]
        account = topic.split(":")[4]
        inbox = f"arn:aws:sqs:eu-central-1:{account}:inbox"
        boto3.client("sns", region_name="eu-central-1").subscribe(
            TopicArn=topic, Protocol="sqs", Endpoint=inbox
        )
        monkeypatch.setenv(SNS.variable, topic)

        notify(replace(FAILED, run="qaçış"))

        (message,) = boto3.client("sqs", region_name="eu-central-1").receive_message(QueueUrl=queue)[
            "Messages"
        ]
    told = json.loads(message["Body"])
    assert told["Subject"] == "anadil pretrain failed: qa???"
    assert told["Message"] == "anadil pretrain failed: qaçış\n\ndisk full\nTo go on: submit it again"


@pytest.mark.parametrize("topic", ["runs", "arn:aws:sqs:eu-central-1:123456789012:runs"])
def test_a_topic_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv(SNS.variable, topic)

    notify(FAILED)

    assert "no ARN of a topic" in caplog.text
