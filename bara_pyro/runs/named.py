"""The short names of a run's settings on the command line and in Python."""

from collections.abc import Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.runs.sections import RunSettings
from bara_pyro.types import Json

# Settings whose short name is not their field's name.
NAMES = {"backbone.name": "model", "task.name": "task", "adapter.start": "from_adapter"}
# If several sections have a field of one name (`seed`, `batch_size`), the first of these has it unprefixed.
FIRST = ("", "train")


def setting_fields() -> dict[str, FieldInfo]:
    """Return every setting of a run except its method's: dotted key -> field, section by section."""
    fields: dict[str, FieldInfo] = {}
    for name, field in RunSettings.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields |= {f"{name}.{key}": inner for key, inner in model.model_fields.items()}
        else:
            fields[name] = field
    return fields


def setting_names() -> dict[str, str]:
    """Return a dictionary of short names and dotted keys.

    Examples:
        >>> from bara_pyro.runs.named import setting_names
        >>> names = setting_names()
        >>> names["lr"], names["task"], names["seed"], names["predict_seed"]
        ('train.lr', 'task.name', 'seed', 'predict.seed')
    """
    names: dict[str, str] = {}
    for key in sorted(setting_fields(), key=lambda key: key.rpartition(".")[0] not in FIRST):
        section, _, last = key.rpartition(".")
        name = NAMES.get(key, last)
        names[f"{section}_{name}" if name in names else name] = key
    return names


def by_key(given: Mapping[str, object]) -> Json:
    """Return settings given by short names or dotted keys under their dotted keys.

    Raises:
        ConfigError: a name is unknown, or a setting was given twice.
    """
    names = setting_names()
    values: Json = {}
    for name, value in given.items():
        if name not in names and "." not in name:
            raise ConfigError(unknown("setting", name, names))
        key = names.get(name, name)
        if key in values:
            raise ConfigError(f"{key} was given twice, as {values[key]!r} and {value!r}: leave one out.")
        values[key] = value
    return values
