from anadil.tokenizer.kernels.compiled import KERNELS


def test_every_module_with_compiled_code_is_in_the_digest() -> None:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in KERNELS.room.glob("*.py")}

    assert {name for name, text in sources.items() if "@compiled" in text} <= set(KERNELS.modules)
