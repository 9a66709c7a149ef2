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

    Examples:
        >>> import torch
        >>> from bara_pyro.extras.replies.reward import bradley_terry
        >>> equal = torch.zeros(3)
        >>> round(float(bradley_terry(equal, equal)), 4)  # log 2
        0.6931
        >>> round(float(bradley_terry(equal + 2, equal)), 4)  # -log sigmoid(2)
        0.1269
    """
    if chosen.shape != rejected.shape or not chosen.numel():
        raise DataError(
            f"The scores have shapes {tuple(chosen.shape)} and {tuple(rejected.shape)}: give one of each a "
            "pair, of at least one pair."
        )
    return softplus(rejected - chosen).mean()
