import pytest

from anadil.core.install import install


def test_a_machine_installs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANADIL_IMAGE", raising=False)

    assert install("evaluate") == "run pip install 'anadil[evaluate]'"


@pytest.mark.parametrize(
    ("extra", "remedy"),
    [
        (
            "pipelines",
            "the image host:5000/anadil/tools:0.1.0 does not hold them; run it in host:5000/anadil/pipelines:0.1.0",
        ),
        (
            "ray",
            "the image host:5000/anadil/tools:0.1.0 does not hold them; run it in host:5000/anadil/clean-ray:0.1.0",
        ),
        (
            "evaluate",
            "the image host:5000/anadil/tools:0.1.0 does not hold them; run it in host:5000/anadil/laptop:0.1.0",
        ),
        (
            "launch",
            "no image holds them beside this command; run it on a machine, after pip install 'anadil[launch]' there",
        ),
    ],
)
def test_an_image_names_who_has_the_packages(
    extra: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANADIL_IMAGE", "host:5000/anadil/tools:0.1.0")

    assert install(extra) == remedy
