import logging
from dataclasses import replace

import pytest

from anadil.core.errors import RecipeError
from anadil.launch.manifests.resources import most_for_pods, requirements
from anadil.plan.instances import machine
from anadil.recipe.cluster import Resources

P4D = machine("p4d.24xlarge")
P5 = machine("p5.48xlarge")
EFA, GPU = "vpc.amazonaws.com/efa", "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("name", "cpus", "gib"),
    [
        # What AWS's own command line asks at most, from its rules of reservation.
        ("p4d.24xlarge", 89, 1056),
        ("p5.48xlarge", 179, 1890),
        ("p6-b300.48xlarge", 179, 3794),
        ("g5.48xlarge", 179, 699),
        ("g5.xlarge", 3, 11),
    ],
)
def test_a_node_keeps_some_of_itself(name: str, cpus: int, gib: int) -> None:
    assert most_for_pods(machine(name)) == (cpus, gib)


def test_pods_that_train_together_take_all_gpus_with_all_efa_interfaces() -> None:
    needs = requirements(P5, 8, 32)

    assert needs["requests"] == {"cpu": "179", "memory": "1890Gi", GPU: "8", EFA: "32"}
    assert needs["limits"] == {"memory": "1890Gi", GPU: "8", EFA: "32"}


def test_a_single_node_takes_no_efa_interface() -> None:
    needs = requirements(P5, 8, 1)

    assert EFA not in needs["requests"] | needs["limits"]


def test_a_part_of_the_gpus_takes_that_part_of_the_node_and_no_efa(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        needs = requirements(P4D, 1, 2)

    assert needs["requests"] == {"cpu": "11", "memory": "132Gi", GPU: "1"}
    assert "1 of 8 GPUs of a p4d.24xlarge: a pod that shares its node gets no EFA" in caplog.text


def test_a_number_of_interfaces_that_is_not_known_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        needs = requirements(replace(P4D, efa=None), 8, 2)

    assert EFA not in needs["limits"]
    assert "p4d.24xlarge: how many EFA interfaces it has is not known" in caplog.text


def test_a_job_without_gpus_fits_a_small_node() -> None:
    needs = requirements(None, 0, 2)

    assert needs == {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}


def test_gpus_of_a_machine_that_is_not_named_get_enough_of_it() -> None:
    needs = requirements(None, 2, 1)

    assert needs["requests"] == {"cpu": "8", "memory": "32Gi", GPU: "2"}


def test_the_recipe_s_own_amounts_go_first_and_memory_is_request_and_limit() -> None:
    needs = requirements(P4D, 8, 1, Resources(cpu="16", memory="200Gi"), key="cluster.resources.pretrain")

    assert (needs["requests"]["cpu"], needs["requests"]["memory"]) == ("16", "200Gi")
    assert needs["limits"] == {"memory": "200Gi", GPU: "8"}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (Resources(gpus=16), r"cluster\.resources\.pretrain\.gpus: 16, but a p4d\.24xlarge has 8"),
        (Resources(cpu="96"), r"pretrain\.cpu: 96, but a p4d\.24xlarge leaves about 89 CPUs and 1056Gi"),
        (Resources(memory="2Ti"), r"pretrain\.memory: 2Ti, but .* the job would wait forever"),
    ],
)
def test_more_than_a_node_has_is_refused(asked: Resources, text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        requirements(P4D, 8, 1, asked, key="cluster.resources.pretrain")
