"""Storage of Laplace-LoRA's Gaussian posterior: one Kronecker eigendecomposition per weight matrix."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from bara_pyro.core.distributions.normal import KroneckerNormal
from bara_pyro.core.modules import frozen, module_key


@dataclass
class Factors:
    """Kronecker factors of one matrix's curvature, `output (x) input`: float64, symmetric.

    Attributes:
        output: `sum E[g g^T]`, `out x out`, g the gradient at the matrix's output.
        input: `mean of a a^T`, `in x in`, a the matrix's input.
    """

    output: Tensor
    input: Tensor


class Block(nn.Module):
    """Eigenvectors and eigenvalues of one matrix's two factors, `output (x) input`; zeros until set."""

    def __init__(self, out: int, inn: int, device: torch.device) -> None:
        super().__init__()
        self.output_vectors = frozen(torch.zeros(out, out, device=device))
        self.output_values = frozen(torch.zeros(out, dtype=torch.float64, device=device))
        self.input_vectors = frozen(torch.zeros(inn, inn, device=device))
        self.input_values = frozen(torch.zeros(inn, dtype=torch.float64, device=device))

    @torch.no_grad()
    def set(self, factors: Factors) -> None:
        """Decompose the factors, in float64."""
        for side in ("output", "input"):
            values, vectors = torch.linalg.eigh(getattr(factors, side))
            getattr(self, f"{side}_values").copy_(values.clamp_min(0.0))
            getattr(self, f"{side}_vectors").copy_(vectors)

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of the block, `out x in`."""
        return self.output_values[:, None] * self.input_values


class KroneckerPosterior(nn.Module):
    """Prior precision and eigendecompositions of all blocks; zeros until they are set.

    A plain torch module of frozen parameters, so that Pyro does not register them for training.

    Args:
        sizes: site -> `out x in` of its block.
        answers: number of answers.
        device: device of the parameters.

    Attributes:
        precision: lambda, the prior precision, float64.
        answers: token ids of the answers; the answer head's B has curvature only for their rows.
    """

    def __init__(self, sizes: dict[str, tuple[int, int]], answers: int, device: torch.device) -> None:
        super().__init__()
        self.precision = frozen(torch.zeros((), dtype=torch.float64, device=device))
        self.answers = frozen(torch.zeros(answers, dtype=torch.long, device=device))
        self.blocks = nn.ModuleDict({module_key(name): Block(*size, device) for name, size in sizes.items()})

    def block(self, site: str) -> Block:
        """Return the block of a matrix."""
        return cast(Block, self.blocks[module_key(site)])

    def distribution(self, site: str, size: tuple[int, ...]) -> KroneckerNormal:
        """Return a matrix's distribution; in the answer head's B only the answers' rows have a block."""
        block = self.block(site)
        factors = (block.output_vectors, block.output_values, block.input_vectors, block.input_values)
        rows = self.answers if len(block.output_values) != size[0] else None
        return KroneckerNormal(*factors, self.precision, rows=rows, size=size[0])
