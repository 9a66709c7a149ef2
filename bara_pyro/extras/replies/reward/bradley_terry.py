"""The Bradley-Terry loss: a reply is more likely to be preferred, the higher its score is above the other."""

from torch import Tensor
from torch.nn.functional import softplus

from bara_pyro.errors import DataError


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return the mean over pairs of `-log sigmoid(chosen - rejected)`, in nats, a scalar.

    The model is by Bradley and Terry (1952), Biometrika 39, 324-345; Ouyang et al. (2022, arXiv 2203.02155,
    equation 1) use it as the loss of a reward model. As a softplus it neither overflows nor loses its
    gradient for distant scores.

    Args:
        chosen: scores of the preferred replies, `n`.
        rejected: scores of the other replies, `n`.

    Raises:
        DataError: the shapes differ, or there are no pairs.

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
            f"The scores have the shapes {tuple(chosen.shape)} and {tuple(rejected.shape)}: give two tensors "
            "of the same shape with at least one score each."
        )
    return softplus(rejected - chosen).mean()
