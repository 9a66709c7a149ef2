"""The embedded default: a small known world, its tasks with exact truths, and a backbone half in the know."""

from pathlib import Path

from bara_pyro.microworld import replies as _replies  # noqa: F401 - registers its tasks
from bara_pyro.microworld.tasks import TASKS, TaskSpec, load_task
from bara_pyro.microworld.world import WORLD_SEED, World

__all__ = ["TASKS", "WORLD_SEED", "TaskSpec", "World", "backbone_path", "load_task"]


def backbone_path() -> Path:
    """Return the folder of the shipped backbone, to be read by the ordinary Hugging Face loader."""
    return Path(__file__).parent / "weights"
