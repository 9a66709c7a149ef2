"""The microworld: a synthetic world, tasks with exact answer probabilities, and a pretrained backbone."""

from pathlib import Path

from bara_pyro.microworld import replies as _replies  # noqa: F401 - registers its tasks
from bara_pyro.microworld.tasks import TASKS, TaskSpec, micro_task
from bara_pyro.microworld.world import WORLD_SEED, World

__all__ = ["TASKS", "WORLD_SEED", "TaskSpec", "World", "backbone_path", "micro_task"]


def backbone_path() -> Path:
    """Return the folder of the shipped backbone, in Hugging Face's format."""
    return Path(__file__).parent / "weights"
