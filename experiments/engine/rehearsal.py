"""Arms with a rehearsal (docs/calibrated.md) and without, of the methods for which it was measured."""

from collections.abc import Sequence

LORA_REHEARSED = "LoRA with rehearsal"
BLOB_REHEARSED = "BLoB with rehearsal"

# Method, and what is said of a rehearsal with few rows and with many. It is said where it is the default,
# too, so that runs of before that keep their names; with many rows none has one.
ARMS: dict[str, tuple[str, bool | None, bool | None]] = {
    "bara-gate": ("bara-gate", True, None),
    "BaRA gate without rehearsal": ("bara-gate", False, False),
    "lora": ("lora", None, None),
    LORA_REHEARSED: ("lora", True, False),
    "blob": ("blob", None, None),
    BLOB_REHEARSED: ("blob", True, False),
}


def rehearsed_or_not(methods: Sequence[str], *, few: bool) -> dict[str, dict[str, str | bool | None]]:
    """Return arm -> its method and `adapter.calibrated`, for the methods that are asked for, in their order.

    Methods without a variant of their own have one arm, and nothing is said of a rehearsal.
    """
    found: dict[str, dict[str, str | bool | None]] = {}
    for method in methods:
        own = {label: arm for label, arm in ARMS.items() if arm[0] == method} or {
            method: (method, None, None)
        }
        for label, (_, with_few, with_many) in own.items():
            found[label] = {"method": method, "adapter.calibrated": with_few if few else with_many}
    return found
