"""A second run of a training flow: metrics start anew, and the learner continues."""

from raceway.algorithms import find_algorithm
from raceway.training.train import Training


def test_a_second_run_continues_with_the_learner() -> None:
    spec = find_algorithm("a2c")
    training = Training(spec, spec.settings(env="CartPole-v1", engine="inline", num_envs=2, batch_steps=20))
    with training.open_flow(run=True) as flow:
        rows, steps = [], []
        for _ in range(2):
            with flow.start() as run:
                next(run)
                rows.append(next(run))
            steps.append(training.learner.steps)
    assert [row["time/iterations"] for row in rows] == [2, 2]
    assert rows[0]["time/total_timesteps"] == rows[1]["time/total_timesteps"] == training.report.timesteps
    assert steps[1] == 2 * steps[0] > 0
