"""An HTTP server that returns a run's probabilities, uncertainty and draws."""

from bara_pyro.errors import ConfigError

try:
    import fastapi as _fastapi  # noqa: F401
    import prometheus_client as _prometheus_client  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"`bara serve` needs more packages ({error}): pip install 'bara-pyro[serve]'."
    ) from error
