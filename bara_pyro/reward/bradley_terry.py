"""The likelihood of a preference: the better a reply is scored than the other, the likelier it is chosen."""

from torch import Tensor
from torch.nn.functional import softplus

from bara_pyro.errors import DataError


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return the mean over pairs of `-log sigmoid(chosen - rejected)`, in nats, a scalar.

    Bradley and Terry 1952, Biometrika 39, 324-345; as the loss of a reward model Ouyang et al. 2022 (arXiv
    2203.02155, equation 1). Written as a softplus: it neither overflows nor loses its gradient where the
    scores are far apart.

    Args:
        chosen: scores of the replies that were preferred, `n`.
        rejected: scores of the others, `n`.

    Raises:
        DataError: the shapes differ, or there is no pair.
    """
    if chosen.shape != rejected.shape or not chosen.numel():
        raise DataError(
            f"The scores have shapes {tuple(chosen.shape)} and {tuple(rejected.shape)}: give one of each a "
            "pair, of at least one pair."
        )
    return softplus(rejected - chosen).mean()
