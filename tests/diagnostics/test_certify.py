"""The certificate of a run, against a plain loop over rows that shares no code with the library."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from app_cases import ONCE, questions, save_backbone, write_rows
from core_cases import backbone, hooked_forward, parts_of
from gate_cases import plain_gate
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.errors import ConfigError
from bara_pyro.extras.bounds import guarantees as bounds
from bara_pyro.extras.bounds.certify import certify_head
from bara_pyro.extras.bounds.head import head_rows, input_bound
from bara_pyro.extras.bounds.pac_bayes import held_out_bound
from bara_pyro.extras.bounds.render import render_bounds
from bara_pyro.metrics import ece
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System, build_system

R, ALPHA = 4, 6.0
SETTINGS = {"tau": 0.3, "s": 2, "clip": 1.1, "cap": 2.0, "cover": "absorbed"}
Build = Callable[..., System]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A system with random parameters, as if trained: certifying asks for no more."""
    folder = tmp_path_factory.mktemp("certify")
    lm = save_backbone(folder / "backbone")
    rows = write_rows(folder / "rows.jsonl", questions())

    def make(method: str = "bara-gate", **settings: object) -> System:
        given = {"backbone.name": str(lm), "task.name": str(rows), "task.validation_rows": 5}
        given |= {
            **ONCE,
            "method.name": method,
            "adapter.r": R,
            "adapter.lora_alpha": ALPHA,
            "predict.batch_size": 3,
        }
        system = build_system(load_config(overrides={**given, **settings}))
        generator = torch.Generator().manual_seed(8)
        with torch.no_grad():
            for module in (system.model, system.guide):
                for value in module.parameters():
                    value.add_(0.5 * torch.randn(value.shape, generator=generator))
            norm = system.backbone.lm.model.norm.weight
            norm.copy_(torch.rand(norm.shape, generator=generator) + 0.5)
        return system

    return make


@pytest.fixture(scope="module")
def system(build: Build) -> System:
    return build()


def plain_rows(system: System, split_name: str, certify: Callable[[list[float]], list[float]] | None) -> list:
    """Per row (log-probabilities, gate, x): the language model with hooks, one row at a time."""
    model, guide = system.model, system.guide
    paths = [target.path for target in model.targets]
    raw = {name.replace("/", "."): site.weight for name, site in guide.sites.items()}
    split = system.split(split_name)
    out = []
    for i in range(len(split)):
        seen = {}

        def change(path: str, x: Tensor, seen: dict = seen) -> Tensor:
            phi = F.softplus(raw["phi"][paths.index(path), :R])
            z = x / x.square().mean(-1, keepdim=True).sqrt()
            gate = phi * F.softplus(z @ raw[f"theta.{path}"][:R].T)
            if path == "lm_head":
                seen["gate"], seen["x"] = gate[0, 0], x[0, 0]
                if certify is not None:
                    gate = torch.tensor(certify(gate[0, 0].tolist())).view_as(gate)
            up, down = parts_of(model, path)
            return ALPHA / R * (gate * (x @ down.T)) @ up.T

        batch = split.batch([i], system.answer_ids)
        with torch.no_grad():
            log_probs = hooked_forward(batch, system.backbone.lm, paths, "lm_head", change)
        out.append((log_probs[0].double(), seen["gate"], seen["x"]))
    return out


def plain_scores(rows: list, labels: tuple[int, ...], cap: float) -> tuple[float, float]:
    right = [int(p.argmax()) == y for (p, _, _), y in zip(rows, labels, strict=True)]
    nll = [min(-float(p[y]), cap) for (p, _, _), y in zip(rows, labels, strict=True)]
    return 100 * sum(right) / len(right), sum(nll) / len(nll)


# Against the plain loop ----------------------------------------------------------------------------------


def test_the_certified_predictor_is_the_plain_loop(system: System) -> None:
    result = certify_head(system, "test", **SETTINGS)
    labels = system.split("test").labels

    def certify(gate: list[float]) -> list[float]:
        return plain_gate(gate, SETTINGS["clip"], SETTINGS["tau"], SETTINGS["s"])

    for name, gate in (("certified", certify), ("mean gate", None)):
        rows = plain_rows(system, "test", gate)
        acc, nll = plain_scores(rows, labels, SETTINGS["cap"])
        scores = result.scores[name]
        assert scores["acc"] == pytest.approx(acc)
        assert scores["nll"] == pytest.approx(nll, abs=1e-4)
        assert scores["ece"] == pytest.approx(ece(torch.stack([p for p, _, _ in rows]), labels), abs=1e-2)
    assert result.scores["certified"]["nll"] != pytest.approx(result.scores["mean gate"]["nll"], abs=1e-3)
    gates = [gate.tolist() for _, gate, _ in rows]
    kept = [certify(gate) for gate in gates]
    assert result.active == pytest.approx(sum(z > 0 for gate in kept for z in gate) / len(kept))
    assert result.largest == max(sum(z > SETTINGS["tau"] for z in gate) for gate in gates) > SETTINGS["s"]
    moved = [
        abs(min(z, 1.1) - u) for pair in zip(gates, kept, strict=True) for z, u in zip(*pair, strict=True)
    ]
    assert result.rho == pytest.approx(max(moved), abs=1e-4)
    assert result.rho <= result.certificate.rho == SETTINGS["clip"]
    assert result.largest_x == pytest.approx(max(float(x.norm()) for _, _, x in rows), abs=1e-4)


@pytest.mark.parametrize("latent", ["phi", "theta"])
def test_the_mean_gate_is_the_posterior_mean_prediction(build: Build, latent: str) -> None:
    system = build(**{"method.latent": latent})
    result = certify_head(system, "test", **SETTINGS)
    log_probs = draw(system, system.split("test"), 0)[0]
    labels = torch.tensor(system.split("test").labels)
    nll = -log_probs[torch.arange(len(labels)), labels]
    assert result.scores["mean gate"]["nll"] == pytest.approx(float(nll.clamp(max=2.0).mean()), abs=1e-5)
    assert result.scores["mean gate"]["ece"] == pytest.approx(ece(log_probs, labels), abs=1e-2)


def test_a_certificate_that_changes_nothing(system: System) -> None:
    rows = head_rows(system, system.split("test"))
    wide = {**SETTINGS, "tau": 1e-9, "clip": 2 * float(rows.gate.max()), "s": R}
    scores = certify_head(system, "test", **wide).scores
    assert scores["certified"] == scores["mean gate"]


def test_norms_and_constants(system: System) -> None:
    certificate = certify_head(system, "test", **SETTINGS).certificate
    adapter = system.model.adapters["lm_head"]
    up = float((ALPHA / R * adapter.lora_B.detach()[system.answer_ids]).norm())
    down = float(adapter.lora_A.detach().norm())
    for cap, measured in ((certificate.up, up), (certificate.down, down)):
        assert measured <= cap.value < 2 * measured
        assert f"measured {measured:.4g}" in cap.reason
        assert cap.share < 1
    weight = system.backbone.lm.model.norm.weight
    assert certificate.inputs.value == pytest.approx(math.sqrt(16) * float(weight.max()), rel=1e-5)
    assert (certificate.n, certificate.r, certificate.outputs) == (len(system.split("test")), R, 2)
    assert certificate.gate_nats == 0
    assert certificate.vacuous
    fixed = {"A": 2 * down, "B": 3 * up, "x": 50.0}
    given = certify_head(system, "test", **SETTINGS, caps=fixed, choices=5).certificate
    assert (given.down.value, given.up.value, given.inputs.value) == (2 * down, 3 * up, 50.0)
    assert given.delta_left == pytest.approx(0.05 / 5)


def test_the_held_out_bound_beside_it(system: System) -> None:
    result = certify_head(system, "test", **SETTINGS, choices=3)
    nll = result.scores["certified"]["nll"]
    assert result.held_out == pytest.approx(2 * held_out_bound(nll / 2, result.certificate.n, 0.05 / 3))
    assert result.held_out < result.certificate.bound
    assert certify_head(system, "train", **SETTINGS).held_out is None


# What holds for every input ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["qwen2", "gpt_neox"])
def test_the_bound_of_the_last_norm_holds_and_is_reached(arch: str) -> None:
    lm = backbone(arch)
    limit = input_bound(lm)
    found = lm.hidden(torch.randint(61, (50, 6)), torch.ones(50, 6, dtype=torch.bool)).norm(dim=-1).max()
    assert float(found) <= limit
    assert limit == pytest.approx(4.0, rel=1e-6)  # weight 1, no bias, d = 16


def test_the_bound_of_the_last_norm_with_weights_of_its_own(system: System) -> None:
    norm = system.backbone.lm.model.norm
    spike = torch.zeros(16)
    spike[int(norm.weight.argmax())] = 100.0
    assert float(norm(spike).norm()) == pytest.approx(input_bound(system.backbone), rel=1e-5)


@pytest.mark.parametrize("kind", ["shifted", "none", "layer"])
def test_norms_of_other_kinds(kind: str) -> None:
    class Shifted(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return (1 + self.weight) * F.rms_norm(x, (8,))

    body = nn.Module()
    body.layers = nn.Linear(8, 8)
    if kind != "none":
        body.norm = Shifted(8) if kind == "shifted" else nn.LayerNorm(8)
        nn.init.uniform_(body.norm.weight, 0.5, 2.0)
    stub = SimpleNamespace(lm=SimpleNamespace(base_model=body), dtype=torch.float32)
    if kind != "layer":
        with pytest.raises(ConfigError, match="does not end in a norm"):
            input_bound(stub)
        return
    nn.init.normal_(body.norm.bias)
    found = body.norm(10 * torch.randn(5000, 8)).detach().norm(dim=-1).max()
    assert 0.7 * input_bound(stub) < float(found) <= input_bound(stub)


# What it says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "cover", "heads", "parts"),
    [
        ("test", "absorbed", False, []),
        ("validation", "absorbed", False, []),
        ("test", "global", False, ["'global' assumes one vector"]),
        (
            "train",
            "absorbed",
            False,
            ["adapters that were trained on these rows", "'absorbed' does not"],
        ),
        ("train", "absorbed", True, ["'absorbed' does not count"]),
    ],
)
def test_what_is_known_not_to_hold(
    build: Build, split: str, cover: str, heads: bool, parts: list[str]
) -> None:
    system = build(**({"adapter.target_modules": ["lm_head"]} if heads else {}))
    result = certify_head(system, split, **{**SETTINGS, "cover": cover})
    violated = result.certificate.violated
    assert len(violated) == len(parts)
    assert all(part in sentence for part, sentence in zip(parts, violated, strict=True))
    assert str(result).count("NOT MET") == len(parts)
    assert ("No adapter lies below the head" in str(result)) == heads


def test_a_global_gate_may_be_absorbed_on_training_rows(build: Build) -> None:
    system = build(**{"adapter.target_modules": ["lm_head"], "method.latent": "phi"})
    assert certify_head(system, "train", **SETTINGS).certificate.violated == ()


def test_what_cannot_be_certified(build: Build, system: System) -> None:
    cases = [
        (build("bara"), "test", {}, "covers only the gate form (Definition 1"),
        (build("lora"), "test", {}, "has no gate"),
        (build(**{"adapter.target_modules": ["q_proj"]}), "test", {}, "does not adapt"),
        (system, "tset", {}, "choose one of test, train, validation"),
        (system, "test", {"cover": "none"}, "choose one of absorbed, global"),
        (system, "test", {"caps": {"C": 1.0}}, "choose one of A, B, x"),
        (system, "test", {"caps": {"B": 1e-3}}, "exceeds its cap"),
        (system, "test", {"caps": {"x": 1e-3}}, "exceeds its cap"),
        (system, "test", {"tau": 2.0}, "tau < clip"),
        (system, "test", {"s": R + 1}, "s <= r"),
    ]
    for subject, split, changes, message in cases:
        with pytest.raises(ConfigError) as error:
            certify_head(subject, split, **{**SETTINGS, **changes})
        assert message in str(error.value)
        assert str(error.value).endswith(".")


def test_a_language_model_without_a_certificate_has_its_other_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("The certificate is about logits that are linear: take another --model.")

    monkeypatch.setattr(bounds, "_certified", refuse)
    monkeypatch.setattr(bounds, "_pac_bayes", lambda *_: None)
    gates = SimpleNamespace(phi="phi")
    context = SimpleNamespace(
        system=SimpleNamespace(model=SimpleNamespace(gates=gates)),
        drawn=SimpleNamespace(kl_phi=None, unknown_kl=""),
    )
    found = bounds.guarantees(context)  # type: ignore[arg-type]
    assert found is not None
    assert found.certified is None
    assert "logits that are linear" in found.not_certified
    assert any("logits that are linear" in str(block) for block in render_bounds(found).blocks)
