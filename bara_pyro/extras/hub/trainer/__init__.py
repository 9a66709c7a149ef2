"""Train a program and its guide with `transformers.Trainer`, on the ELBO."""

from bara_pyro.errors import ConfigError

try:
    import accelerate as _accelerate  # noqa: F401
except ImportError as error:
    raise ConfigError(f"BaRATrainer needs accelerate ({error}): pip install 'bara-pyro[trainer]'.") from error

from bara_pyro.extras.hub.trainer.trainer import BaRATrainer

__all__ = ["BaRATrainer"]
