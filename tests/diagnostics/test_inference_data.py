"""Draws exported for ArviZ: what stands in each group, checked against the functions it stands for."""

import json
import math
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from core_cases import noise_level, quadrature_kl
from inference_cases import MODULES, R, tiny_system, with_rows
from scipy import stats
from torch.nn import functional as F

import bara_pyro as bp
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.gate_draws import gate_draws
from bara_pyro.core.prediction import predict
from bara_pyro.data import batches
from bara_pyro.diagnostics.arviz import inference_data
from bara_pyro.diagnostics.arviz.compat import arviz, inference_groups, renewed
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.full_draws import answers, wanted_rows
from bara_pyro.diagnostics.sparsity import effective_rank, gate_sparsity
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.runs.evaluate import draw

S, N = 7, 5
GATES = {"phi", "theta", "gate"}
LONG = "is the fox red ? is the fox red ?"


@pytest.fixture(scope="module")
def bara():
    return tiny_system()


@pytest.fixture(scope="module")
def data(bara):
    return to_inference_data(bara, rows=N, samples=S, seed=3)


def needed_bytes(system, **given: object) -> int:
    """What a refusal names, before anything is drawn."""
    with pytest.raises(ConfigError, match="would take") as refused:
        to_inference_data(system, **given, max_bytes=0)
    return int(re.search(r"take ([\d,]+) bytes", str(refused.value))[1].replace(",", ""))


def stored_bytes(data) -> int:
    return sum(v.nbytes for group in inference_groups(data) for v in data[group].data_vars.values())


def test_dimensions_and_coordinates(bara, data) -> None:
    dims = ("chain", "draw", "obs", "module", "rank")
    for group in ("posterior", "prior"):
        assert set(data[group]) == GATES
        assert data[group]["phi"].dims == ("chain", "draw", "module", "rank")
        assert data[group]["theta"].dims == data[group]["gate"].dims == dims
        assert data[group]["theta"].shape == (1, S, N, 5, R)
        assert data[group]["theta"].dtype == np.float32
    paths = [target.path for target in bara.model.targets]
    posterior = data.posterior
    assert list(posterior["module"].values) == paths
    assert list(posterior["layer"].values) == [0, 0, 1, 1, -1]
    assert list(posterior["projection"].values) == ["q_proj", "v_proj", "q_proj", "v_proj", "lm_head"]
    assert posterior["layer"].dims == ("module",)
    assert list(posterior["rank"].values) == [0, 1, 2]
    assert list(posterior["obs"].values) == list(bara.split("test").ids[:N])
    assert data.posterior_predictive["y"].dims == ("chain", "draw", "obs")
    assert data.posterior_predictive["probs"].dims == ("chain", "draw", "obs", "answer")
    assert list(data.prior_predictive["answer"].values) == ["no", "yes"]
    assert data.log_likelihood["y"].attrs["units"] == "nats"
    assert data.sample_stats["elbo"].dims == ("chain", "draw")
    assert data.constant_data["pareto_k"].dims == ("obs",)


@pytest.mark.skipif(renewed(), reason="ArviZ 1 calls it plot_ppc_dist")
def test_arviz_draws_the_predictive_check_and_selects_projections(data) -> None:
    axes = arviz().plot_ppc(data, num_pp_samples=S, random_seed=0)
    [observed] = [line for line in axes.lines if line.get_label() == "Observed"]
    shares = np.bincount(data.observed_data["y"], minlength=2) / N
    assert set(np.round(np.asarray(observed.get_ydata(), dtype=float), 6)) == set(np.round(shares, 6))
    plt.close(axes.figure)
    queries = data.posterior["phi"].sel(projection="q_proj")
    assert list(queries["layer"].values) == [0, 1]


def test_where_the_draws_come_from(bara, data) -> None:
    attributes = data.attrs
    versions = json.loads(attributes["versions"])
    assert versions["torch"] == torch.__version__.split("+")[0] or versions["torch"] == torch.__version__
    expected = {"method": "bara", "split": "test", "seed": 3, "samples": S, "tau": 0.1, "schema": 2}
    assert expected.items() <= attributes.items()
    assert attributes["config_hash"] == bara.config.hash
    assert attributes["task"] == bara.task.name


def test_draws_are_those_of_the_library(bara, data) -> None:
    split = wanted_rows(bara, "test", N)
    whole = list(batches(split, bara.answer_ids, 64))
    draws = gate_draws(bara.model, bara.guide, whole, samples=S, seed=3)
    close = {"rtol": 0, "atol": 2e-5}
    np.testing.assert_allclose(data.posterior["phi"][0], draws.phi, rtol=0, atol=0)
    np.testing.assert_allclose(data.posterior["theta"][0], draws.theta, **close)
    np.testing.assert_allclose(data.posterior["gate"][0], draws.psi, **close)
    predicted = predict(bara.model, bara.guide, whole[0], samples=S, seed=3)
    np.testing.assert_allclose(np.log(data.posterior_predictive["probs"][0]), predicted, **close)
    rank = data.sample_stats["effective_rank"].mean(("chain", "draw"))
    np.testing.assert_allclose(rank, effective_rank(draws).mean(dim=1), rtol=0, atol=1e-12)
    prior = predict(bara.model, PriorGuide(bara.model), whole[0], samples=S, seed=3)
    np.testing.assert_allclose(np.log(data.prior_predictive["probs"][0]), prior, **close)


@pytest.mark.parametrize("latent", ["both", "phi", "theta", "smaller ranks"])
def test_sparsity_counts_the_gates_below_the_threshold(bara, latent: str) -> None:
    tau = 0.6  # exceeded by about half of the gates
    if latent == "smaller ranks":
        system = tiny_system(ranks={MODULES[0]: 1, MODULES[1]: 2})
    else:
        system = bara if latent == "both" else tiny_system(latent=latent)
    found = to_inference_data(system, rows=N, samples=S, prior=False, tau=tau)
    sparsity = found.sample_stats["sparsity"]
    gates = found.posterior["gate" if "gate" in found.posterior else latent]
    assert sparsity.dims == ("chain", "draw", "module")
    assert list(sparsity["layer"].values) == [0, 0, 1, 1, -1]
    assert list(sparsity["projection"].values) == ["q_proj", "v_proj", "q_proj", "v_proj", "lm_head"]
    rows = [{"obs": row} for row in range(N)] if "obs" in gates.dims else [{}]
    for path in sparsity["module"].values:
        units = system.model.rank_pattern.get(path, R)
        for s in range(S):
            below = 0
            for row in rows:
                for unit in range(units):
                    gate = gates.sel(module=path).isel(chain=0, draw=s, rank=unit, **row)
                    below += abs(float(gate)) < tau
            expected = 100 * below / (len(rows) * units)
            assert float(sparsity.sel(module=path)[0, s]) == pytest.approx(expected)
    assert 10 < float(sparsity.mean()) < 90
    # The definition of `gate_sparsity`, whose percentages are those of all draws.
    batch = wanted_rows(system, "test", N).batch(range(N), system.answer_ids)
    draws = gate_draws(system.model, system.guide, [batch], samples=S, seed=system.config.predict.seed)
    by_module = gate_sparsity(draws, tau).by_module["psi"]
    np.testing.assert_allclose(sparsity.mean(("chain", "draw")), by_module, rtol=1e-12)


def test_chosen_rows_and_modules(bara, data) -> None:
    ids = [bara.split("test").ids[i] for i in (3, 1)]
    some = to_inference_data(bara, rows=ids, modules=MODULES[::-1], samples=S, seed=3, prior=False)
    assert list(some.posterior["obs"].values) == ids
    assert tuple(some.posterior["module"].values) == MODULES
    assert "prior" not in inference_groups(some)
    assert "prior_predictive" not in inference_groups(some)
    same = inference_groups(data)["posterior"][["phi", "theta", "gate"]].sel(obs=ids, module=list(MODULES))
    for name in GATES:
        np.testing.assert_allclose(some.posterior[name], same[name], rtol=0, atol=2e-5)
    for name in ("kl_phi", "kl_theta"):  # of all modules, whichever are kept
        wanted = data.sample_stats[name]
        wanted = wanted.sel(obs=ids) if "obs" in wanted.dims else wanted
        np.testing.assert_allclose(some.sample_stats[name], wanted, rtol=1e-5)
    for name in ("y", "probs"):
        np.testing.assert_allclose(
            some.posterior_predictive[name], data.posterior_predictive[name].sel(obs=ids), rtol=0, atol=2e-5
        )


def test_padding_in_a_batch_of_several_lengths(bara) -> None:
    longer = with_rows(bara, "test", question=LONG)
    lengths = [len(tokens) for tokens in longer.split("test").token_ids[:2]]
    assert lengths[0] > lengths[1]
    alone = to_inference_data(longer, rows=[longer.split("test").ids[1]], samples=S, prior=False)
    both = to_inference_data(longer, rows=2, samples=S, prior=False)
    np.testing.assert_allclose(
        both.sample_stats["kl_theta"][..., 1], alone.sample_stats["kl_theta"][..., 0], rtol=1e-5
    )


def test_log_likelihood_averages_to_the_nll(bara, data) -> None:
    split = wanted_rows(bara, "test", N)
    log_probs = posterior_predictive(draw(bara, split, S, seed=3))
    scores = evaluate(log_probs, torch.tensor(split.labels))
    likelihood = torch.as_tensor(data.log_likelihood["y"].values[0])
    averaged = likelihood.logsumexp(0) - math.log(S)
    assert -float(averaged.mean()) == pytest.approx(scores["nll"], abs=1e-5)
    assert list(data.observed_data["y"].values) == list(split.labels)


def test_answers_have_their_probabilities() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
    many = 20_000
    drawn = answers(probs.log().expand(many, -1, -1), ("a", "b"), 0, "y")
    shares = torch.nn.functional.one_hot(drawn, 3).double().mean(0)
    assert ((shares - probs).abs() <= 4 * (probs * (1 - probs) / many).sqrt()).all()
    alone = answers(probs.log().expand(many, -1, -1)[:, [1, 0]], ("b", "a"), 0, "y")
    assert torch.equal(alone[:, 1], drawn[:, 0])
    same = answers(probs[:1].log().expand(many, 2, -1), ("a", "c"), 0, "y")
    assert torch.equal(same[:, 0], drawn[:, 0])
    assert (same[:, 0] == same[:, 1]).double().mean() < 0.5  # 0.38 of independent answers
    assert not torch.equal(answers(probs.log().expand(9, -1, -1), ("a", "b"), 1, "y"), drawn[:9])
    with pytest.raises(DataError, match="row 'b' are NaN"):
        answers(torch.tensor([[[0.0], [math.nan]]]), ("a", "b"), 0, "y")


def test_prior_draws_follow_the_prior() -> None:
    priors = {"name": "gamma", "concentration": 2.0, "rate": 4.0}
    system = tiny_system(phi_prior=priors, theta_prior={"name": "gamma", "concentration": 0.5, "rate": 0.5})
    prior = to_inference_data(system, rows=4, samples=150, seed=1).prior
    for name, concentration, rate in (("phi", 2.0, 4.0), ("theta", 0.5, 0.5)):
        values = prior[name].values.astype(float).ravel()
        distribution = stats.gamma(concentration, scale=1 / rate)
        assert abs(values.mean() - distribution.mean()) < 4 * distribution.std() / math.sqrt(values.size)
        fourth = (
            distribution.stats("k") + 3 - 1
        )  # variance of the squared deviation, in units of the variance squared
        assert abs(values.var() - distribution.var()) < 4 * distribution.var() * math.sqrt(
            fourth / values.size
        )
        assert stats.kstest(values, distribution.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(prior["gate"], prior["theta"] * prior["phi"])


def test_a_prior_without_a_mean() -> None:
    # Padding is filled with the mean, which is infinite: no row may see it.
    system = with_rows(tiny_system(theta_prior="halfcauchy"), "test", question=LONG)
    found = to_inference_data(system, rows=3, samples=4)
    np.testing.assert_allclose(found.prior_predictive["probs"].sum("answer"), 1, atol=1e-6)
    assert set(found.sample_stats) == {"kl_phi", "effective_rank", "sparsity"}  # no closed form, no bound


def test_elbo_is_that_of_the_library() -> None:
    system = tiny_system(beta_theta=0.0, beta_phi=0.01)  # which the bound must not see
    found = to_inference_data(system, split="train", rows=3, samples=200, prior=False).sample_stats
    batch = wanted_rows(system, "train", 3).batch(range(3), system.answer_ids)
    system.model.beta_phi = system.model.beta_theta = 1.0
    with torch.no_grad():
        terms = [MeanFieldELBO().terms(system.model, system.guide, batch) for _ in range(100)]
    library = np.array([-float(t.loss) for t in terms])
    ours = found["elbo"].values.ravel()
    error = math.sqrt(ours.var() / ours.size + library.var() / library.size)
    assert abs(ours.mean() - library.mean()) < 4 * error
    assert error < 0.05 * abs(library.mean())


def test_parts_of_the_elbo(bara) -> None:
    found = to_inference_data(bara, split="train", rows=3, samples=S, prior=False)
    rows = found.log_likelihood["y"] - found.sample_stats["kl_theta"]
    bound = bara.model.num_data / 3 * rows.sum("obs") - found.sample_stats["kl_phi"]
    np.testing.assert_allclose(found.sample_stats["elbo"], bound, rtol=1e-12)
    raw = bara.guide.sites["phi"].weight.detach()
    exact = quadrature_kl(F.softplus(raw[:, :R]), noise_level(raw[:, R:]).clamp(max=1.0), 1.0, 1.0).sum()
    np.testing.assert_allclose(found.sample_stats["kl_phi"], float(exact), rtol=1e-4)
    assert (found.sample_stats["kl_theta"].std("draw") > 0).all()


def test_what_is_known_of_the_rows(bara) -> None:
    truth = (0.25, 0.75)
    system = with_rows(bara, "test", truth=truth)
    known = to_inference_data(system, rows=2, samples=2, prior=False).constant_data
    assert float(known["difficulty"][0]) == pytest.approx(stats.entropy(truth))
    assert np.isnan(known["difficulty"][1])
    np.testing.assert_allclose(known["truth"][0], truth)
    assert list(known["length"].values) == [len(row.question) for row in system.task.test[:2]]
    assert list(known["tokens"].values) == [len(row.question.split()) for row in system.task.test[:2]]
    assert known["length"].attrs["units"] == "characters"


def test_rows_without_labels(bara) -> None:
    found = to_inference_data(with_rows(bara, "test", label=-1), rows=3, samples=2)
    assert not {"log_likelihood", "observed_data"} & set(inference_groups(found))
    assert set(found.sample_stats) == {"kl_phi", "kl_theta", "effective_rank", "sparsity"}
    assert "pareto_k" not in found.constant_data
    assert stored_bytes(found) == needed_bytes(with_rows(bara, "test", label=-1), rows=3, samples=2)


@pytest.mark.parametrize(("latent", "gates"), [("phi", {"phi"}), ("theta", {"theta"})])
def test_one_kind_of_gate(latent: str, gates: set[str]) -> None:
    system = tiny_system(latent=latent)
    found = to_inference_data(system, rows=3, samples=4)
    assert set(found.posterior) == set(found.prior) == gates
    assert f"kl_{latent}" in found.sample_stats
    assert found.sample_stats["effective_rank"].shape == (1, 4, 3)
    assert found.sample_stats["elbo"].shape == (1, 4)
    assert stored_bytes(found) == needed_bytes(system, rows=3, samples=4)


def test_lora_has_no_gates() -> None:
    system = tiny_system("lora")
    found = to_inference_data(system, rows=3, samples=4)
    assert set(inference_groups(found)) == {
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "constant_data",
    }
    assert np.isnan(found.constant_data["pareto_k"]).all()  # nothing is spread
    assert stored_bytes(found) == needed_bytes(system, rows=3, samples=4)


def test_a_predictive_of_its_own() -> None:
    system = tiny_system("ensemble", members=2)
    found = to_inference_data(system, rows=3, samples=4)
    batch = wanted_rows(system, "test", 3).batch(range(3), system.answer_ids)
    members = predict(system.model, system.guide, batch, samples=4)
    assert found.posterior_predictive.sizes["draw"] == 2
    np.testing.assert_allclose(np.log(found.posterior_predictive["probs"][0]), members, rtol=0, atol=2e-5)
    assert stored_bytes(found) <= needed_bytes(system, rows=3, samples=4)


def test_as_many_bytes_are_stored_as_are_needed(bara, data) -> None:
    assert needed_bytes(bara, rows=N, samples=S) == stored_bytes(data)
    less = {"rows": 2, "samples": 3, "modules": MODULES[:1], "prior": False}
    assert needed_bytes(bara, **less) == stored_bytes(to_inference_data(bara, **less))


def test_too_large_is_refused_before_anything_is_drawn(bara, monkeypatch) -> None:
    monkeypatch.delattr(inference_data, "full_draws")
    need = needed_bytes(bara, rows=5, samples=50)
    words = rf"50 draws of 5 rows would take {need:,} bytes.*lower rows \(to about 2\) or samples"
    with pytest.raises(ConfigError, match=words):
        to_inference_data(bara, rows=5, samples=50, max_bytes=need // 2)
    with pytest.raises(NameError):  # it would draw where there is room
        to_inference_data(bara, rows=5, samples=50, max_bytes=need)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"split": "tests"}, ConfigError, "Unknown split 'tests'"),
        ({"samples": 0}, ConfigError, "samples is 0"),
        ({"rows": 0}, ConfigError, "rows is 0"),
        ({"rows": []}, ConfigError, "at least one row"),
        ({"rows": ["fox-red"] * 2, "split": "train"}, (ConfigError, DataError), "fox-red"),
        ({"rows": ["wolf"]}, DataError, "no row 'wolf' among the 8 rows of the test split"),
        ({"modules": ["lm_tail"]}, ConfigError, "'lm_tail'"),
        ({"tau": -1.0}, ConfigError, "-1.0"),
    ],
)
def test_bad_arguments(bara, arguments: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        to_inference_data(bara, **arguments)


def test_a_model_its_guide_and_rows_are_a_run(bara, data) -> None:
    """The same draws as of the run whose they are, by row and seed."""
    part = wanted_rows(bara, "test", N)
    batch = part.batch(range(N), bara.answer_ids)
    pair, how = (bara.model, bara.guide), {"samples": S, "seed": 3}
    for given in (to_inference_data(pair, rows=batch, **how), to_inference_data(*pair, batch, **how)):
        assert set(inference_groups(given)) == set(inference_groups(data))
        for group in ("posterior", "prior", "posterior_predictive", "log_likelihood", "sample_stats"):
            for name, values in data[group].data_vars.items():
                np.testing.assert_allclose(given[group][name], values, rtol=0, atol=1e-5, err_msg=name)
        assert list(given["observed_data"]["y"].values) == list(part.labels)
        assert list(given["posterior"]["obs"].values) == list(part.ids)
        assert given.attrs["method"] == "BaRA, WeibullGuide"
        assert not given.attrs["config_hash"]  # of no run
    assert needed_bytes(pair, rows=batch, samples=S) == needed_bytes(bara, rows=N, samples=S)
    unknown = to_inference_data(pair, rows=batch.unlabelled(), samples=S, prior=False)
    assert "log_likelihood" not in inference_groups(unknown)
    lora = tiny_system("lora")
    batch = wanted_rows(lora, "test", N).batch(range(N), lora.answer_ids)
    found = to_inference_data((lora.model, lora.guide), rows=batch, samples=2, prior=False)
    assert found["posterior_predictive"]["probs"].shape[1:3] == (2, N)


@pytest.mark.parametrize("given", ["runs/x", None, (1, 2), (1, 2, 3), {}])
def test_what_is_neither_a_run_nor_a_pair_is_refused(bara, given: object) -> None:
    with pytest.raises(ConfigError, match="neither a run nor"):
        to_inference_data(given)
    with pytest.raises(ConfigError, match="neither a run nor"), bp.attached(given):
        pass
    batch = wanted_rows(bara, "test", N).batch(range(N), bara.answer_ids)
    for wrong in (
        lambda: to_inference_data((bara.model, bara.guide)),
        lambda: to_inference_data(bara.model, rows=batch),
        lambda: to_inference_data(bara, rows=batch),
        lambda: to_inference_data((bara.model, tiny_system().guide), rows=batch),
    ):
        with pytest.raises(ConfigError):
            wrong()
