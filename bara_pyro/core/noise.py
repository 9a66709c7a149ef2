r"""Counter-based noise: a draw is a pure function of (seed, site, draw, row, position, unit).

There is no generator state. A row's noise therefore does not depend on the batch, the padding, the order of
computation or the device, and recomputed activations or a key-value cache see the same latents. The generator
is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) on integer tensors: each coordinate is mixed into the hash
of the previous ones, and the units of one position form one SplitMix64 stream.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import dropwhile, islice, takewhile

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bara_pyro.core.from_uniform import from_uniform

BITS = 23  # uniform numbers are k / 2^23 + 2^-24, whose distances to 0 and 1 are exact in float32
ONE = 0x3F800000  # the bits of 1.0 in float32
AHEAD = 2**17  # random numbers made at once for consecutive sites: 2 MiB, which stays in a CPU's cache


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def noise_seed(seed: int, key: str) -> int:
    """Return a 63-bit seed for a base seed and a key, equal in all processes, unlike `hash()`."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's generators while the block runs, and restore them afterwards.

    The CPU generator uses only the lower 32 bits of a seed, so different seeds must differ there.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def mix(state: Tensor) -> Tensor:
    """Return SplitMix64's output for a state, int64, with the wrap-around of 64-bit integers."""
    state = state ^ _shifted(state, 30)
    state.mul_(FIRST)
    state.bitwise_xor_(_shifted(state, 27))
    state.mul_(SECOND)
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(value: Tensor, places: int) -> Tensor:
    """Shift right and fill with zeros; torch's shift repeats the sign bit."""
    return value.bitwise_right_shift(places).bitwise_and_((1 << (64 - places)) - 1)


def uniform(keys: Tensor, units: int) -> Tensor:
    """Return uniform numbers in (0, 1), float32, `... x units`, for int64 keys of shape `...`.

    Each 64-bit output gives two numbers.
    """
    steps = torch.arange(1, math.ceil(units / 2) + 1, device=keys.device) * GOLDEN
    halves = mix(keys.unsqueeze(-1) + steps).view(torch.int32)[..., :units]
    # The random bits become the fraction of a float32 in [1, 2), which takes no conversion.
    floats = halves.bitwise_right_shift_(32 - BITS).bitwise_and_(2**BITS - 1).bitwise_or_(ONE)
    return floats.view(torch.float32).sub_(1 - 2.0 ** -(BITS + 1))


class CounterNoise:
    """Noise of given draws, rows and positions.

    Args:
        seed: base seed.
        draws: numbers of the draws, long, `S`.
        ids: identifiers of the B rows.
        positions: position of each column in its text, long, `B x T`, counted from the first real token
            (negative on padding). A layer that sees fewer columns sees the last ones.
        repeats: number of consecutive draws that share the global latents.
        sites: event shapes of the local sites in sampling order. Noise of consecutive sites of one shape is
            then made together; its values do not change.
    """

    def __init__(
        self,
        seed: int,
        draws: Tensor,
        ids: Sequence[str],
        positions: Tensor,
        repeats: int = 1,
        sites: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.seed = seed
        self.sites = sites or {}
        self.draws = draws
        self.shared = draws // repeats
        self.rows = torch.tensor([noise_seed(0, row_id) for row_id in ids], device=draws.device)
        self._seeds: dict[tuple[str, ...], Tensor] = {}  # kept: a CUDA graph cannot copy them from the host
        self.move(positions)

    @classmethod
    def paired(
        cls,
        seed: int,
        draws: Tensor,
        shared: Tensor,
        ids: Sequence[str],
        sites: Mapping[str, tuple[int, ...]] | None = None,
    ) -> "CounterNoise":
        """Return the noise of S draws with one row each; set the positions of the tokens with `move`.

        `draws` and `shared` are the numbers of the draws of local and of global sites, long, `S`.
        """
        addresses = cls(seed, draws, ids, torch.zeros(len(ids), 1, 1, dtype=torch.long), sites=sites)
        addresses.rows = addresses.rows.unsqueeze(-1)
        addresses.shared = shared
        return addresses

    def on(self, device: torch.device) -> "CounterNoise":
        """Return the same noise on another device, for a model whose layers are spread over several."""
        if device == self.draws.device:
            return self
        other = copy(self)
        other._seeds = {}
        other.draws, other.shared, other.rows = (t.to(device) for t in (self.draws, self.shared, self.rows))
        other.move(self.positions)
        return other

    def move(self, positions: Tensor) -> None:
        """Set the positions, `[S x] B x T`."""
        self.positions = positions.to(self.draws.device)
        self._places = self.positions * GOLDEN
        self._ahead: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def numbers(self, stream: str, units: int) -> Tensor:
        """Return uniform numbers of the stream with the given name, `S x B x T x units`."""
        return self._local([stream], (len(self.draws), self.rows.shape[-1], self.positions.shape[-1], units))[
            0
        ]

    def draw_local(self, site: str, fn: TorchDistribution) -> Tensor:
        """Draw a site with one value per row and token, `S x B x T x event`."""
        shape = (len(self.draws), self.rows.shape[-1], fn.batch_shape[-1], *fn.event_shape)

        def numbers(stream: int) -> Tensor:
            if stream:
                return self._local([f"{site}/{stream}"], shape)[0]
            if (site, shape) not in self._ahead:
                names = self._followers(site, shape)
                values = self._local([f"{name}/0" for name in names], shape)
                self._ahead = {(name, shape): value for name, value in zip(names, values, strict=True)}
            return self._ahead.pop((site, shape))

        return from_uniform(fn, numbers).expand(shape)

    def draw_global(self, site: str, fn: TorchDistribution) -> Tensor:
        """Draw a site that all rows share, `S x batch x event`."""
        # If it depends on another drawn latent, the distribution has a further dimension for draws on the
        # left.
        batch = fn.batch_shape[-2:]
        places = torch.arange(batch.numel(), device=self.draws.device).reshape(batch)
        shape = (len(self.shared), *batch, *fn.event_shape)

        def numbers(stream: int) -> Tensor:
            draws = mix(noise_seed(self.seed, f"{site}/{stream}") + self.shared * GOLDEN)
            keys = mix(draws.reshape(-1, *(1,) * places.dim()) + places * GOLDEN)
            return uniform(keys, fn.event_shape.numel()).reshape(shape)

        return from_uniform(fn, numbers).expand(shape)

    def _local(self, streams: Sequence[str], shape: tuple[int, ...]) -> Sequence[Tensor]:
        """Return uniform numbers of the given shape for each stream, with few operations."""
        if (names := tuple(streams)) not in self._seeds:
            seeds = [noise_seed(self.seed, stream) for stream in names]
            self._seeds[names] = torch.tensor(seeds, device=self.draws.device)
        draws = mix(self._seeds[names][:, None] + self.draws * GOLDEN)
        rows = mix(draws[..., None, None] + self.rows[..., None])
        keys = mix(rows + self._places[..., -shape[2] :])
        return uniform(keys, math.prod(shape[3:])).reshape(len(streams), *shape).unbind()

    def _followers(self, site: str, shape: tuple[int, ...]) -> list[str]:
        """Return a site and the next sites with the same event shape, which will probably be drawn next."""
        after = dropwhile(lambda name: name != site, self.sites)
        alike = takewhile(lambda name: self.sites[name] == shape[3:], after)
        return list(islice(alike, max(1, AHEAD // math.prod(shape)))) or [site]
