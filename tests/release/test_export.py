import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import helm_python
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.core.files import file_lock
from anadil.model.load import load_tokenizer
from anadil.release.export import export_model
from anadil.release.export.ollama import SAMPLES, UnusualTemplateError, go_template, modelfile, read_turns
from anadil.release.model_source import ModelSource, find_model
from tests.kit.families import make_family
from tests.kit.harness import PATIENCE_S
from tests.kit.llama_3 import make_llama_3
from tests.kit.llama_cpp import opened
from tests.kit.marks import matrix
from tests.kit.transformers_4 import python_with_4, read_by_4


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter artifact, with files of the training beside its merged model."""
    folder = tmp_path_factory.mktemp("made") / "adapter"
    make_llama_3(folder / "merged", torch.bfloat16)
    shutil.rmtree(folder / "merged-tokenizer")
    (folder / "training.jsonl").write_text("{}")
    (folder / "merged/optimizer.pt").write_bytes(b"pickle")
    (folder / "merged/LICENSE.txt").write_text("Llama 3.2 Community License")
    artifact.seal(folder, kind="adapter", origin={})
    return folder


def export(uri: Path | str, out: Path, *options: str) -> int:
    return main.main(["export", str(uri), "--out", str(out), *options])


def names(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))


def test_an_adapter_becomes_a_directory_of_its_merged_model_and_nothing_else(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = export(adapter, tmp_path / "out")

    assert (code, capsys.readouterr().out) == (0, f"{tmp_path / 'out'}\n")
    assert not {"optimizer.pt", "training.jsonl", "adapter_config.json"} & set(names(tmp_path / "out"))
    copied = (
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
        "LICENSE.txt",
    )
    for name in copied:
        assert (tmp_path / "out" / name).read_bytes() == (adapter / "merged" / name).read_bytes()
    assert names(tmp_path) == ["out", *(f"out/{name}" for name in names(tmp_path / "out"))]


def test_another_precision_is_named_in_both_spellings(adapter: Path, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(adapter / "merged")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="200KB")
    for name in ("tokenizer.json", "config.json"):
        shutil.copyfile(adapter / "merged" / name, tmp_path / "sharded" / name)

    assert export(tmp_path / "sharded", tmp_path / "out", "--precision", "fp32") == 0

    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("float32", "float32")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.float32
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in loaded.parameters())
    for one, other in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one.float(), other)


def test_weights_that_a_precision_cannot_hold_are_refused_and_leave_nothing(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(adapter / "merged", tmp_path / "wide")
    weights = load_file(tmp_path / "wide/model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 1e6)
    save_file(weights, tmp_path / "wide/model.safetensors", metadata={"format": "pt"})

    assert export(tmp_path / "wide", tmp_path / "out", "--precision", "fp16") == 3

    assert "model.norm.weight holds numbers that fp16 cannot; export with --precision bf16" in (
        capsys.readouterr().err
    )
    assert names(tmp_path) == ["wide", *(f"wide/{name}" for name in names(tmp_path / "wide"))]


def test_gguf_goes_into_a_directory_or_a_file_with_a_modelfile_beside_it(
    adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.README.md").write_text("somebody's")

    codes = [
        export(adapter, tmp_path / "azeri", "--format", "gguf"),
        export(adapter, tmp_path / "files/a.gguf", "--format", "gguf"),
        export(adapter / "merged", tmp_path / "files/b.gguf", "--format", "gguf", "--quantize", "q8_0"),
    ]

    assert codes == [0, 0, 0]
    assert {"Modelfile", "azeri.gguf"} <= set(names(tmp_path / "azeri"))
    assert {"Modelfile", "a.gguf", "a.2.README.md", "a.LICENSE.txt"} <= set(names(tmp_path / "files"))
    assert {"b.Modelfile", "b.gguf", "b.README.md", "b.LICENSE.txt"} <= set(names(tmp_path / "files"))
    assert (tmp_path / "files/a.README.md").read_text() == "somebody's"
    assert "LICENSE.txt" in names(tmp_path / "azeri")
    assert (tmp_path / "files/b.Modelfile").read_text().startswith("FROM ./b.gguf\n")
    with opened(tmp_path / "files/b.gguf") as model:
        assert model.num_tokens == 888
    assert b"azeri" in bytes(gguf.GGUFReader(tmp_path / "azeri/azeri.gguf").fields["general.name"].parts[-1])


def test_a_model_has_its_card_and_the_file_by_which_mlflow_loads_it(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_model, "model_card", lambda model, scores: f"# {model} {scores}")

    assert export(adapter, tmp_path / "out", "--scores", "s3://b/scores") == 0

    assert (tmp_path / "out/README.md").read_text() == f"# {adapter} s3://b/scores"
    assert "task: llm/v1/chat" in (tmp_path / "out/MLmodel").read_text()


def test_a_checkpoint_becomes_gguf_too(adapter: Path, tmp_path: Path) -> None:
    step = str(tmp_path / "step")
    source = ModelSource(uri=step, kind="checkpoint", directory=None, manifest=None)

    export_model.export(
        source, tmp_path / "out", "gguf", checkpoint=lambda path: shutil.copytree(adapter / "merged", path)
    )

    assert names(tmp_path / "out") == ["LICENSE.txt", "Modelfile", "out.gguf"]


@pytest.mark.parametrize("options", [(), ("--format", "gguf")])
def test_a_full_disk_leaves_nothing(
    options: tuple[str, ...], adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("anadil.release.export.gguf_file.packed", full)
    monkeypatch.setattr(shutil, "copyfile", full)

    code = export(adapter, tmp_path / "out", *options)

    assert code in (4, 138)
    assert "bug" not in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))

    codes = [export(adapter, tmp_path / "a"), export(adapter, tmp_path / "b", "--format", "gguf")]

    assert codes == [4, 4]
    assert capsys.readouterr().err.count("are to be written there and 1000 B are free; free some") == 2
    assert not list(tmp_path.iterdir())


KILLED = """

import sys, time
from anadil.release.export import gguf_file
from anadil.cli.main import main
packed = gguf_file.packed
def slowly(*arguments):
    time.sleep(0.2)
    return packed(*arguments)
gguf_file.packed = slowly
sys.exit(main(["export", sys.argv[1], "--format", "gguf", "--out", sys.argv[2]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [matrix(signal.SIGTERM), matrix(signal.SIGKILL)])
def test_an_export_that_is_killed_leaves_no_result_and_the_next_one_works(
    number: signal.Signals, adapter: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(adapter), str(out)])
    deadline = time.monotonic() + PATIENCE_S
    while not (out.with_name("out.gguf.partial") / "out.gguf").is_file():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)

    code = child.wait(timeout=PATIENCE_S)

    assert code == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert names(tmp_path) == (
        []
        if number == signal.SIGTERM
        else [".out.gguf.lock", "out.gguf.partial", "out.gguf.partial/out.gguf"]
    )
    assert export(adapter, out, "--format", "gguf") == 0
    assert {"Modelfile", "out.README.md", "out.gguf"} <= set(names(tmp_path))
    assert not out.with_name("out.gguf.partial").exists()


def test_two_exports_to_one_place_do_not_mix(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with file_lock(tmp_path / ".out.lock"):
        code = export(adapter, tmp_path / "out")

    assert code == 4
    assert "another export is writing there; wait for it" in capsys.readouterr().err
    assert export(adapter, tmp_path / "out") == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--quantize", "q8_0"), 2, "--quantize q8_0: only with --format gguf"),
        (("--format", "gguf", "--quantize", "q8_0", "--precision", "bf16"), 2, "give one of them"),
        (("--out", "{adapter}/merged/x"), 2, "lies within {adapter}, whose files are not to change"),
        (("--out", "{adapter}"), 3, "holds files that are no artifact"),
    ],
)
def test_options_that_cannot_be_are_refused(
    options: tuple[str, ...], code: int, message: str, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    given = [each.format(adapter=adapter) for each in options]

    assert export(adapter, tmp_path / "out", *given) == code

    assert message.format(adapter=adapter) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_name_is_looked_up_in_the_registry_of_the_recipe(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def find(uri: str, *, tracking: str | None) -> ModelSource:
        asked.append((uri, tracking))
        return find_model(str(adapter))

    monkeypatch.setattr("anadil.cli.models.export.find_model", find)

    options = ("--set", "tracking.uri=sqlite:///here.db")

    assert export("models:/anadil-az@champion", tmp_path / "out", *options) == 0
    assert asked == [("models:/anadil-az@champion", "sqlite:///here.db")]


def test_a_changed_artifact_another_architecture_and_no_tokenizer_are_refused_and_nothing_is_written(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(adapter, tmp_path / "changed")
    (tmp_path / "changed/merged/config.json").write_text("{}")
    make_family(tmp_path / "bitnet", "bitnet")
    make_family(tmp_path / "llama", "llama")

    codes = [
        export(tmp_path / "changed", tmp_path / "out"),
        export(tmp_path / "bitnet", tmp_path / "out", "--format", "gguf"),
        export(tmp_path / "llama", tmp_path / "out", "--format", "gguf"),
        export(tmp_path / "bitnet", tmp_path / "bitnet-out"),
    ]

    told = capsys.readouterr().err
    assert codes == [5, 4, 3, 0]
    assert "tokenizer.json: no such file; give a whole Hugging Face model directory" in told
    assert "config.json: differs from its manifest" in told
    assert "model type 'bitnet' is not written as GGUF, only arcee," in told
    assert "; export with --format hf" in told
    assert not list(tmp_path.glob("out*"))


def by_helm(template: str, chat: Any, folder: Path) -> str:
    """What Go's text/template makes of it, in the copy that Helm carries."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: chat\nversion: 0.1.0\n")
    (folder / "templates/_chat.tpl").write_text(
        '{{ define "chat" }}{{ with .Values }}' + template + "{{ end }}{{ end }}"
    )
    (folder / "templates/out.yaml").write_text(
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {chat: {{ include "chat" . | toJson }}}\n'
    )
    values = {"Messages": [{"Role": role, "Content": content} for role, content in chat]}
    with helm_python.Chart.load(folder) as chart:
        (text,) = chart.render(values, name="chat").values()
    return str(yaml.safe_load(text)["data"]["chat"])


@pytest.mark.parametrize("which", ["ours", "chatml", "braces"])
def test_ollamas_template_writes_what_the_jinja_template_writes(
    which: str, adapter: Path, tmp_path: Path
) -> None:
    tokenizer: Any = load_tokenizer(adapter / "merged")
    if which == "chatml":
        tokenizer.chat_template = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
    if which == "braces":
        tokenizer.chat_template = (
            "{{ bos_token }}{% for m in messages %}{{ '{{' + m.role + '}}\"\"\"' }}{{ m.content }} {% endfor %}"
            '{% if add_generation_prompt %}{{ \'{{assistant}}"""\' }}{% endif %}'
        )
    turns = read_turns(tokenizer)

    for number, chat in enumerate(SAMPLES):
        messages = [{"role": role, "content": content} for role, content in chat]
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        written = by_helm(go_template(turns, adds_bos=False), chat, tmp_path / f"a{number}")
        assert written == expected
        # Where the file says that BOS is put before a text, Ollama does so.
        without = by_helm(go_template(turns, adds_bos=True), chat, tmp_path / f"b{number}")
        assert without == expected.removeprefix("<|begin_of_text|>")


def test_the_modelfile_names_the_file_the_stops_and_only_a_proven_template(
    adapter: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    whole = modelfile("m.gguf", adapter / "merged", adds_bos=True)
    shutil.copytree(adapter / "merged", tmp_path / "dated")
    (tmp_path / "dated/chat_template.jinja").write_text(
        "{{ messages | length }}{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    )
    unproven = modelfile("m.gguf", tmp_path / "dated", adds_bos=True)

    assert whole.startswith('FROM ./m.gguf\nTEMPLATE """{{ range .Messages }}')
    assert whole.endswith('"""\nPARAMETER stop "<|end_of_text|>"\nPARAMETER stop "<|eot_id|>"\n')
    assert unproven == 'FROM ./m.gguf\nPARAMETER stop "<|end_of_text|>"\nPARAMETER stop "<|eot_id|>"\n'
    assert "no TEMPLATE in the Modelfile: its chats are not turns one after the other" in caplog.text


def test_a_template_that_leaves_out_a_turn_is_no_sum_of_turns(adapter: Path) -> None:
    tokenizer: Any = load_tokenizer(adapter / "merged")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )

    with pytest.raises(UnusualTemplateError, match="leaves out the content of a turn"):
        read_turns(tokenizer)


@pytest.mark.slow
def test_every_format_gives_the_same_logits_everywhere(tmp_path: Path) -> None:
    made = make_llama_3(tmp_path / "model")
    assert export(made, tmp_path / "hf") == 0
    assert export(made, tmp_path / "m.gguf", "--format", "gguf") == 0
    ids = torch.randint(0, 880, (1, 256), generator=torch.Generator().manual_seed(4))

    read_by_4(python_with_4(), [tmp_path / "hf"], ids, tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        by_5 = model(input_ids=ids).logits
    by_4 = torch.load(tmp_path / "hf/logits.pt", weights_only=True)
    with opened(tmp_path / "m.gguf") as loaded:
        by_llama_cpp = torch.from_numpy(loaded.logits(ids[0].tolist()))

    assert (by_5 - by_4).abs().max() < 1e-4
    assert (by_5[0] - by_llama_cpp).abs().max() < 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "hf")("Salam").input_ids


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("", 2, "argument --out: is empty; give a path"),
        ("s3://bucket/x", 2, "argument --out: s3://bucket/x is no local path"),
        ("/proc/x", 4, "choose another place"),
        ("/proc/x.gguf", 4, "choose another place"),
        ("x" * 300, 4, "File name too long"),
        ("/etc/passwd/x", 2, "/etc/passwd is a file, not a directory"),
    ],
    ids=["empty", "remote", "proc", "file in proc", "long", "below a file"],
)
def test_a_place_that_can_hold_nothing_is_told(
    place: str, code: int, message: str, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--format", "gguf"] if place.endswith(".gguf") else []

    try:
        found = main.main(["export", str(adapter), "--out", place, *options])
    except SystemExit as ended:  # argparse's own
        found = int(str(ended.code))

    err = capsys.readouterr().err
    assert (found, "Traceback" in err) == (code, False), err
    assert message in err
