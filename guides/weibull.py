"""Weibull posteriors, the paper's family (Eq. 16 and 17), with an analytic KL to every Gamma prior."""

from torch import Tensor

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("weibull")
class WeibullGuide(AmortizedGuide):
    """`Weibull(k = 1 / kappa)` with the given mean.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:8], backbone.tokenizer).batch(range(8), answers)
        >>> model = bp.models.BaRA(backbone, num_data=8, form="gate")
        >>> guide = bp.guides.WeibullGuide(model)
        >>> program, posterior = guide.run(batch)  # traces of one forward of the language model
        >>> type(posterior.nodes["phi"]["fn"].base_dist).__name__, program.nodes["phi"]["fn"].batch_shape
        ('MeanWeibull', torch.Size([9]))
    """

    def family(self, mean: Tensor, kappa: Tensor) -> MeanWeibull:
        """Return `MeanWeibull(mean, kappa)`."""
        return MeanWeibull(mean, kappa, validate_args=False)
