from anadil.cli.runs.plan import least_waste, recipe_settings
from anadil.estimate.budget import CheckpointPlan, checkpoint_interval, checkpoints_of
from anadil.estimate.instances import this_machine
from anadil.estimate.layout import Layout

LAYOUT = Layout(data=16, shard=8, micro_batch_size=7, micro_batches=2, recompute="selective")


def test_the_distance_of_checkpoints_that_wastes_least_is_written() -> None:
    def checkpoints(step_s: float | None) -> CheckpointPlan:
        return checkpoints_of(1, 1, stall_s=1.0, mtbf_s=1e6, step_s=step_s, every=500, keep=1)

    every = least_waste(checkpoints(1.0), 20_000)

    assert every == round(checkpoint_interval(1.0, 1e6)) == 1_414
    assert least_waste(checkpoints(1.0), 1_000) == 1_000
    assert least_waste(checkpoints(None), 1_000) is None
    assert recipe_settings(LAYOUT, this_machine(), 1, every)["pretrain.checkpoint_every"] == 1_414
