"""Shortcuts that save time and change results only by rounding; each can be switched off by its name.

| name | what it saves | where |
|---|---|---|
| `frozen_layers` | layers below the lowest adapter run once per row | `fast.frozen_states` |
| `prefixes` | in prediction, a prefix that all rows share runs once | `fast.prefix`, `core.resuming` |
| `last_layer` | in prediction, the last layer runs only for the scored tokens | `fast.prefix` |
| `answer_rows` | the output embedding computes only the answers' logits | `lm.backbone` |
| `batched_draws` | in prediction, draws run together in one forward pass | `core.prediction` |

`batched_draws` also makes a CPU keep freed memory (`fast.kept_memory`).

All are on by default: the setting `backbone.shortcuts`, in Python `Backbone.shortcuts`. Checkpointing
(`train.checkpointing`), recorded steps (`train.capture`) and recorded predictions (`predict.capture`) have
their own settings. Checkpointing and CUDA graphs are off by default.
"""

from typing import Literal, get_args

Shortcut = Literal["frozen_layers", "prefixes", "last_layer", "answer_rows", "batched_draws"]
SHORTCUTS: tuple[Shortcut, ...] = get_args(Shortcut)
