"""The example plug-in, installed into a place of its own and used through the command line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from scipy import integrate, stats

ROOT = Path(__file__).parents[1]
SHORT = ("--task", "micro-wgs", "--steps", "8", "--limit", "64", "--samples", "0", "--samples", "2")


class Done(NamedTuple):
    """What a command of the place where the plug-in is installed ended with."""

    returncode: int
    stdout: str
    stderr: str


Bara = Callable[..., Done]


@pytest.fixture(scope="module")
def bara(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bara]:
    """Return what runs `bara` where the example is installed."""
    place = tmp_path_factory.mktemp("installed")
    # A copy: building writes beside the sources.
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(ROOT / "examples" / "plugin", source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(place), str(source)], check=True)
    path = os.pathsep.join((str(place), str(ROOT), os.environ.get("PYTHONPATH", "")))
    out, err = (tmp_path_factory.mktemp("printed") / name for name in ("out", "err"))

    def run(*arguments: str, cwd: Path = place) -> Done:
        asked = {"arguments": arguments, "cwd": str(cwd), "out": str(out), "err": str(err)}
        print(json.dumps(asked), file=driver.stdin, flush=True)
        assert driver.stdout is not None
        return Done(int(driver.stdout.readline()), out.read_text(), err.read_text())

    command = [sys.executable, str(Path(__file__).parent / "plugin_driver.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": path}, **pipes) as driver:
        yield run


@pytest.mark.slow
def test_an_installed_plugin_is_trained_and_read_back(bara: Bara, tmp_path: Path) -> None:
    assert "vera" in [entry["name"] for entry in json.loads(bara("methods", "--json").stdout)]
    out = tmp_path / "run"
    trained = bara("train", "--method", "vera", "--out", str(out), *SHORT)
    assert trained.returncode == 0, trained.stderr
    first = json.loads((out / "metrics.json").read_text())
    assert 0 < first["sparsity"]["phi"] < 100  # its gates are looked at as BaRA's are
    again = bara("evaluate", str(out), "--json", "--limit", "64")
    assert again.returncode == 0, again.stderr
    stored = next((out / "evaluation").rglob("metrics.json"))
    assert json.loads(stored.read_text())["metrics"] == first["metrics"]
    scales = json.loads(bara("vera-scales", str(out), "--json").stdout)  # by its own command
    assert len(scales) == 9
    assert all(norm > 0 for norm in scales.values())


@pytest.mark.slow
def test_its_command_is_one_of_bara(bara: Bara, tmp_path: Path) -> None:
    listed = bara("--help").stdout
    assert (
        listed.index("bara") < listed.index("train") < listed.index("reward ") < listed.index("vera-scales")
    )
    assert "--json" in bara("vera-scales", "--help").stdout  # with the options of every command
    said = bara("vera-scales", str(tmp_path))
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_its_guide_and_prior_serve_other_methods(bara: Bara, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ("--set", "method.guide=exponential", "--set", "method.theta_prior=weibull")
    trained = bara("train", "--method", "bara-gate", "--out", str(out), *settings, *SHORT)
    assert trained.returncode == 0, trained.stderr
    config = json.loads((out / "bara_config.json").read_text())["config"]["method"]
    assert (config["guide"], config["theta_prior"]) == ("exponential", {"name": "weibull"})


@pytest.mark.slow
def test_its_task_of_replies_is_learnt(bara: Bara, tmp_path: Path) -> None:
    listed = json.loads(bara("tasks", "--json").stdout)
    assert "counting" in [entry["name"] for entry in listed]
    shown = json.loads(bara("tasks", "counting", "--json").stdout)
    assert (shown["train"], shown["test"]) == (40, 20)
    assert [row["prompt"].split()[3] for row in shown["rows"]] == [
        str(int(row["reply"].split()[0]) - 1) for row in shown["rows"]
    ]
    out = tmp_path / "run"
    how = ("--likelihood", "completion", "--task", "counting", "--steps", "4", "--samples", "0")
    trained = bara("train", "--method", "lora", "--out", str(out), *how)
    assert trained.returncode == 0, trained.stderr
    assert json.loads((out / "bara_config.json").read_text())["config"]["task"]["name"] == "counting"


@pytest.mark.slow
def test_a_module_that_is_not_installed(bara: Bara, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from bara_pyro.methods import METHODS, Method, register_method\n"
        "lora = METHODS.find('lora')\n"
        "register_method(Method('mine', 'LoRA under another name', lora.config, lora.build))\n"
    )
    train = ("train", "--method", "mine", "--out", "run", *SHORT)
    unknown = bara(*train, cwd=tmp_path)
    assert unknown.returncode == 2
    assert "Unknown method 'mine'" in unknown.stderr
    trained = bara(*train, "--plugin", "mine", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    without = bara("evaluate", "run", cwd=tmp_path)
    assert without.returncode == 2
    assert "add --plugin mine" in without.stderr
    assert bara("evaluate", "run", "--limit", "8", "--plugin", "mine", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_the_divergence_of_its_prior_is_the_integral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "plugin")
    from bara_pyro_vera.prior import kl_weibull, weibull

    from bara_pyro.core.distributions import MeanWeibull

    for mean, kappa, scale, shape in ((0.7, 0.5, 1.0, 1.0), (2.0, 1.0, 0.5, 2.0), (0.3, 0.8, 1.5, 0.7)):
        one = torch.tensor(1.0, dtype=torch.float64)
        q = MeanWeibull(mean * one, kappa * one)
        k = 1 / kappa
        posterior = stats.weibull_min(k, scale=mean / torch.lgamma(one + kappa).exp().item())
        prior = stats.weibull_min(shape, scale=scale)
        expected = integrate.quad(
            lambda u, q=posterior, p=prior: float(q.logpdf(q.ppf(u)) - p.logpdf(q.ppf(u))), 0, 1, limit=500
        )[0]
        found = kl_weibull(q, weibull(scale * one, shape * one))
        assert found.item() == pytest.approx(expected, abs=1e-5)
