"""What is done with exported draws: files, leave-one-out, pictures, and both ArviZ versions."""

import math
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray
from inference_cases import tiny_system
from matplotlib import pyplot
from matplotlib.figure import Figure

from bara_pyro.diagnostics.arviz.compat import arviz as arviz_of_ours
from bara_pyro.diagnostics.arviz.compat import container, inference_groups, read_netcdf, write_netcdf
from bara_pyro.diagnostics.arviz.compat import renewed as renewed_arviz
from bara_pyro.diagnostics.arviz.groups import dataset, module_coords
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.parts.draws import INTERVAL, answer_shares, forest, phi_lines, plots
from bara_pyro.diagnostics.parts.posterior import psis_loo
from bara_pyro.errors import CheckpointError, ConfigError, DataError

arviz = arviz_of_ours()
PNG = b"\x89PNG\r\n\x1a\n"
RENEWED = renewed_arviz()  # the tests pass with whichever ArviZ is installed


@pytest.fixture(scope="module")
def data():
    return to_inference_data(tiny_system(), split="train", rows=4, samples=60)


@pytest.fixture(scope="module")
def point():
    return to_inference_data(tiny_system("lora"), split="train", rows=6, samples=3)


# Files -----------------------------------------------------------------------------------------------------


def test_a_file_is_read_back_the_same(data, tmp_path: Path) -> None:
    path = write_netcdf(data, tmp_path / "new" / "draws.nc")
    for again in (read_netcdf(path), arviz.from_netcdf(path)):
        assert inference_groups(again).keys() == inference_groups(data).keys()
        assert again.attrs == data.attrs
        for name, group in inference_groups(data).items():
            xarray.testing.assert_identical(inference_groups(again)[name].load(), group)
        again.close()
    assert [file.name for file in path.parent.iterdir()] == ["draws.nc"]
    before = path.read_bytes()
    path.write_bytes(before[: len(before) // 2])
    for broken in (path, tmp_path / "none.nc"):
        with pytest.raises(CheckpointError, match=f"Cannot read .*{broken.name}"):
            read_netcdf(broken)


def test_a_file_is_whole_or_as_it_was(data, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "draws.nc"
    path.write_text("what was there")

    def fails(name: str, engine: str) -> None:
        Path(name).write_text("half")
        raise OSError("disk full")

    broken = types.SimpleNamespace(to_netcdf=fails)
    with pytest.raises(CheckpointError, match=r"Cannot write .*disk full"):
        write_netcdf(broken, path)
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setitem(sys.modules, "h5netcdf", None)
    for action in (lambda: write_netcdf(data, path), lambda: read_netcdf(path)):
        with pytest.raises(ConfigError, match="pip install h5netcdf"):
            action()


# Leave-one-out ---------------------------------------------------------------------------------------------


def loo(log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    left_out, k = psis_loo(torch.tensor(log_probs))
    return left_out.numpy(), k.numpy()


def test_loo_of_a_beta_bernoulli_model() -> None:
    # p ~ Beta(2, 2), k ones among n rows: both the posterior and what is left of it without a row are known.
    n, ones = 12, 8
    rng = np.random.default_rng(0)
    p = rng.beta(2 + ones, 2 + n - ones, size=8000)
    y = np.arange(n) < ones
    left_out, k = loo(np.log(np.where(y, p[:, None], 1 - p[:, None])))
    exact = np.where(y, np.log((2 + ones - 1) / (4 + n - 1)), np.log((2 + n - ones - 1) / (4 + n - 1)))
    np.testing.assert_allclose(left_out, exact, rtol=0, atol=0.02)
    assert k.max() < 0.7


def test_a_row_that_one_draw_decides_is_unreliable() -> None:
    log_probs = np.random.default_rng(0).normal(-1, 0.01, size=(200, 3))
    log_probs[:, 1] -= np.random.default_rng(1).exponential(5, size=200)
    assert list(loo(log_probs)[1] > 0.7) == [False, True, False]
    assert np.isinf(loo(log_probs[:10])[1]).all()


def test_a_row_on_which_all_draws_agree() -> None:
    log_probs = np.random.default_rng(0).normal(-1, 0.1, size=(60, 3))
    log_probs[:, 1] = -0.5
    left_out, k = loo(log_probs)
    assert left_out[1] == pytest.approx(-0.5)
    assert math.isinf(k[1])  # no tail to fit
    np.testing.assert_allclose([left_out[[0, 2]], k[[0, 2]]], loo(log_probs[:, [0, 2]]))


def test_loo_of_exported_draws(data) -> None:
    left_out, k = loo(data.log_likelihood["y"].values[0])
    with pytest.warns(UserWarning, match="Pareto"):  # random gates: few draws decide a row
        own = arviz.loo(data, pointwise=True)
    assert left_out.sum() == pytest.approx(own.elpd if RENEWED else own.elpd_loo)
    np.testing.assert_allclose(k, data.constant_data["pareto_k"])


def test_arviz_compares_what_we_export(data) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that few draws decide
        table = arviz.compare({"one": data, "the same": data})
    assert list(table["elpd_diff"]) == [0, 0]


# Pictures --------------------------------------------------------------------------------------------------


def test_plots_are_written(data, point, tmp_path: Path) -> None:
    written = plots(data, tmp_path / "gates")
    assert [path.name for path in written] == ["phi_forest.png", "predictive_check.png"]
    assert all(path.read_bytes().startswith(PNG) for path in written)
    assert [path.name for path in plots(point, tmp_path)] == ["predictive_check.png"]
    assert not pyplot.get_fignums()
    with pytest.raises(DataError, match="neither Phi nor labels"):
        plots(container({"constant_data": data.constant_data}, {}), tmp_path)


def test_lines_of_the_forest() -> None:
    paths = ("m.layers.10.a.q_proj", "m.layers.2.a.q_proj", "lm_head")
    values = np.random.default_rng(0).random((4, 3, 2), dtype=np.float32)
    group = dataset(
        "posterior",
        {"phi": values},
        {"chain": [0], "draw": np.arange(4), "rank": [0, 1], **module_coords(paths)},
    )
    lines = phi_lines(group["phi"])
    assert list(lines["module"].values) == ["2 q_proj", "10 q_proj", "lm_head"]
    found = lines["phi"].sel(module="2 q_proj").values
    np.testing.assert_array_equal(np.sort(found.ravel()), np.sort(values[:, 1].ravel()))
    (axes,) = forest(lines).axes
    labels = {text.get_text(): text.get_position()[1] for text in axes.get_yticklabels()}
    low, high = axes.get_ylim()
    assert low > labels["lm_head"] > labels["10 q_proj"] > labels["2 q_proj"] > high  # from the top down
    median = dict(zip(labels, axes.lines[0].get_xdata(), strict=True))
    assert median["2 q_proj"] == pytest.approx(np.median(values[:, 1]))
    thin = axes.collections[0].get_segments()[0][:, 0]
    np.testing.assert_allclose(thin, np.quantile(values[:, 1], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]))
    twice = module_coords(("m.layers.0.a.proj", "m.layers.0.b.proj"))
    group = dataset(
        "posterior", {"phi": values[:, :2]}, {"chain": [0], "draw": np.arange(4), "rank": [0, 1], **twice}
    )
    assert list(phi_lines(group["phi"])["module"].values) == list(twice["module"])


def test_shares_by_counting(data, point) -> None:
    shares = answer_shares(inference_groups(data))
    y = data.prior_predictive["y"].values
    counted = [[100 * list(draw).count(c) / y.shape[-1] for c in (0, 1)] for draw in y[0]]
    np.testing.assert_allclose(shares["prior"][0], counted)
    assert shares["observed"].shape == (2,)
    assert list(answer_shares(inference_groups(point))) == ["observed", "posterior"]


def test_arviz_reads_what_we_export(data) -> None:
    table = arviz.summary(data, var_names=["phi"], kind="stats")
    assert len(table) == 5 * 3
    np.testing.assert_allclose(table["mean"].iloc[0], data.posterior["phi"][0, :, 0, 0].mean(), atol=1e-3)
    if RENEWED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # answers are discrete: why `predictive_check` draws shares
            drawn = arviz.plot_ppc_dist(data, var_names=["y"], backend="matplotlib")
        assert drawn.viz["figure"].item().axes
        pyplot.close("all")
    else:
        axes = Figure().add_subplot()
        arviz.plot_ppc(data, ax=axes)
        assert axes.lines


# ArviZ 1.x -------------------------------------------------------------------------------------------------


@pytest.fixture
def renewed(monkeypatch) -> None:
    """ArviZ 1.x in its place."""
    fake = types.ModuleType("arviz")
    fake.__version__ = "1.1.0"
    monkeypatch.setitem(sys.modules, "arviz", fake)
    smoothing = types.SimpleNamespace(psislw=lambda log_likelihood: arviz.psislw(-log_likelihood))
    monkeypatch.setitem(sys.modules, "arviz_stats.base", types.SimpleNamespace(array_stats=smoothing))


@pytest.mark.usefixtures("renewed")
def test_everything_with_the_new_arviz(data, tmp_path: Path) -> None:
    tree = to_inference_data(tiny_system(), split="train", rows=4, samples=60)
    assert isinstance(tree, xarray.DataTree)
    assert tree.attrs == data.attrs
    assert inference_groups(tree).keys() == inference_groups(data).keys()
    for name, group in inference_groups(tree).items():
        xarray.testing.assert_identical(group, inference_groups(data)[name])
    again = read_netcdf(write_netcdf(tree, tmp_path / "draws.nc"))
    assert isinstance(again, xarray.DataTree)
    xarray.testing.assert_identical(again, tree)
    assert len(plots(tree, tmp_path)) == 2


def test_what_arviz_announces_on_import_does_not_reach_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def announcing(name: str) -> str:
        warnings.warn("a major refactor", FutureWarning, stacklevel=2)
        warnings.warn("something else", UserWarning, stacklevel=2)
        return name

    monkeypatch.setattr("bara_pyro.diagnostics.arviz.compat.import_module", announcing)
    with pytest.warns(UserWarning, match="something else") as seen:
        assert arviz_of_ours() == "arviz"
    assert len(seen) == 1


def test_arviz_that_another_process_disturbs_is_imported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | str] = [FileNotFoundError("daily_warning.tmp"), "arviz"]

    def imported(name: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("bara_pyro.diagnostics.arviz.compat.import_module", imported)
    assert arviz_of_ours() == "arviz"
    answers[:] = [PermissionError(13, "Permission denied", "/home/.cache/arviz")] * 2
    with pytest.raises(ConfigError, match=r"/home/.cache/arviz.*XDG_CACHE_HOME"):
        arviz_of_ours()
