"""transformers 4 beside our own version 5, in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch

PACKAGES = ("transformers==4.57.6", "tokenizers==0.22.2", "huggingface-hub==0.36.2")
"""The last of version 4, and the only dependencies that it wants older than ours."""
READ = """
import json, sys, torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
assert __version__.startswith("4.57."), __version__
ids = torch.load(sys.argv[1], weights_only=True)
for folder in map(Path, sys.argv[2:]):
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    if kind not in CONFIG_MAPPING:
        continue
    assert AutoConfig.from_pretrained(folder).dtype == torch.float32, kind
    # Its default for Gemma 2 leaves the cap of scores out, with a warning.
    attention = {"attn_implementation": "eager"} if kind == "gemma2" else {}
    of_images = "vision_config" in config
    Model = AutoModelForImageTextToText if of_images else AutoModelForCausalLM
    model = Model.from_pretrained(folder, **attention).eval()
    with torch.no_grad():
        torch.save(model(input_ids=ids).logits, folder / "logits.pt")
    if (folder / "tokenizer_config.json").is_file():
        print(AutoTokenizer.from_pretrained(folder).model_max_length)
"""


def python_with_4() -> Path:
    """An interpreter with transformers 4 before our own packages, of which it takes torch and the rest."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "anadil-tests"
    folder = root / f"transformers-4-{sys.version_info.major}.{sys.version_info.minor}"
    made = folder / "bin/python"
    if not (folder / "whole").is_file():
        venv.create(folder, with_pip=False, clear=True)
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(made),
            "install",
            "-q",
            "--no-deps",
            *PACKAGES,
        ]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{PACKAGES[0]} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        (folder / "whole").touch()
    own = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})["purelib"]
    Path(own, "beside.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return made


def read_by_4(python: Path, folders: list[Path], ids: torch.Tensor, scratch: Path) -> str:
    """Leaves the logits of version 4 in each folder; what it prints."""
    torch.save(ids, scratch / "ids.pt")
    command = [str(python), "-W", "ignore", "-c", READ, str(scratch / "ids.pt"), *map(str, folders)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
