"""The folder of a run as it is published, and its upload."""

import shutil
from pathlib import Path

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, by a lazy table

from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.extras.hub.upload.card import Published, best_draws, card
from bara_pyro.extras.hub.upload.scrub import hub_name, scrubbed
from bara_pyro.lm.loading import reason_of
from bara_pyro.metrics import reliability_bins
from bara_pyro.report import reliability_diagram, save
from bara_pyro.runs.atomic import write_json, write_text
from bara_pyro.runs.config import RunConfig, parse_config
from bara_pyro.runs.evaluation_files import read_predictions, read_scores
from bara_pyro.runs.folder import stored_config, stored_step
from bara_pyro.runs.manifest import (
    ADAPTER,
    CARD,
    CONFIG,
    FITTED,
    GUIDE,
    MANIFEST,
    METRICS,
    PEFT_CONFIG,
    PREDICTIONS,
    check_run,
    how_to_resume,
)
from bara_pyro.runs.ownership import adding
from bara_pyro.runs.store import read_tensors, write_tensors
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import AdapterFile, FittedFile, PublishedMetrics

# What goes wrong on the way. The HTTP client is another library in each version of the hub's; the hub's own
# error is made of the class that all errors of that library have.
REFUSED: tuple[type[Exception], ...] = (OSError, ValueError, *HfHubHTTPError.__bases__)
FIGURE = "reliability.png"
# Neither the training log nor the predictions, which name the user's rows.
PUBLISHED = (CONFIG, PEFT_CONFIG, ADAPTER, GUIDE, FITTED, METRICS, CARD, FIGURE)


def prepare_upload(
    run: str | Path, name: str, out: str | Path, *, base: str | None = None, license_name: str | None = None
) -> Path:
    """Write the folder that is published for a finished run: what loading needs, scores and a model card.

    Paths of this machine are cut down to their last part; `bara_pyro.load_system` reads the folder.

    Args:
        run: folder of the run.
        name: on the hub, `user/model`.
        out: folder to write.
        base: the language model's name on the hub, where the run has it from a folder.
        license_name: the licence as the hub names it, for the card.

    Raises:
        CheckpointError: there is no finished run, or it was not evaluated.
        ConfigError: the name is none of the hub's, or the run learnt replies.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.hub.upload import prepare_upload
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=20, out="runs/first")
        >>> report = bp.evaluate(run, out="runs/first")
        >>> folder = prepare_upload("runs/first", "user/first", "upload")
        >>> sorted(path.name for path in folder.glob("*.*") if path.suffix != ".json")
        ['README.md', 'adapter_model.safetensors', 'guide.safetensors', 'reliability.png']
    """
    run, out = Path(run), Path(out)
    try:
        validate_repo_id(name)
    except ValueError as error:
        raise ConfigError(f"{name!r} is no name on the hub ({reason_of(error)}): give user/model.") from error
    if "/" not in name:
        raise ConfigError(f"{name!r} says no user of the hub: give user/model.")
    if out.resolve() == run.resolve():
        raise ConfigError(f"{out} is the folder of the run, which would be written over: give another one.")
    check_run(run)
    for needed in (METRICS, PREDICTIONS):
        if not (run / needed).is_file():
            raise CheckpointError(f"{run / needed} is missing: {how_to_resume(run)} writes it.")
    own, kept = stored_config(run)
    if own.task.likelihood == "completion":
        raise ConfigError(
            f"{run} learnt replies, and model cards are of answers so far: upload the folder itself, `hf "
            f"upload {name} {run}`."
        )
    base = base or hub_name(own.backbone.name)
    config, stored = _public_config(run, base)
    report: Json = scrubbed(
        read_scores(run, PublishedMetrics), _places(parse_config(kept["config"], stored=True))
    )
    settings: Json = {**read_json(run / PEFT_CONFIG, AdapterFile), "base_model_name_or_path": base}
    kind = settings["peft_type"].split(":")[0]
    peft = kind if kind in ("LORA", "BARA") else ""
    told = Published(name, base, config, stored, report, peft, FIGURE, _temperature(run), stored_step(run))
    with adding(out) as place:
        write_json(place / CONFIG, stored)
        write_json(place / PEFT_CONFIG, settings)
        write_json(place / METRICS, {**report, "config_hash": config.hash})
        for file in (ADAPTER, GUIDE):
            tensors, metadata = read_tensors(run / file)
            write_tensors(place / file, tensors, {**metadata, "config_hash": config.hash})
        if (run / FITTED).is_file():
            shutil.copyfile(run / FITTED, place / FITTED)
        _draw(run, best_draws(report), place / FIGURE)
        write_text(place / CARD, card(told, license_name))
    return out


def _temperature(run: Path) -> float | None:
    """Return the temperature of a run, of a rehearsal or of validation rows."""
    fitted: dict[str, float] = read_json(run / FITTED, FittedFile) if (run / FITTED).is_file() else {}
    return fitted.get("calibrated_temperature", fitted.get("temperature"))


def push(
    run: str | Path,
    name: str,
    out: str | Path,
    *,
    base: str | None = None,
    license_name: str | None = None,
    private: bool = False,
) -> str:
    """Write the folder (`prepare_upload`) and upload it; return its address.

    The token is the one that huggingface_hub finds (`hf auth login`, or HF_TOKEN); nothing of it is written.

    Args:
        run: folder of the run.
        name: on the hub, `user/model`.
        out: folder to write.
        base: see `prepare_upload`.
        license_name: see `prepare_upload`.
        private: whether a repository that is made now is private.

    Raises:
        ConfigError: the hub cannot be reached, or refuses; the folder is written then.

    Examples:
        >>> from bara_pyro.extras.hub.upload import push
        >>> push("runs/first", "user/first", "upload")  # doctest: +SKIP
        'https://huggingface.co/user/first'

        What is no name on the hub is refused before anything is read:

        >>> import bara_pyro as bp
        >>> try:
        ...     address = push("runs/first", "first", "upload")
        ... except bp.BaraError as error:
        ...     print(error)
        'first' says no user of the hub: give user/model.
    """
    prepare_upload(run, name, out, base=base, license_name=license_name)
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        # What else lies in the folder is nobody's business.
        done = api.upload_folder(
            repo_id=name,
            folder_path=out,
            commit_message="Upload with bara push",
            allow_patterns=[*PUBLISHED, MANIFEST],
        )
        return str(done)
    except REFUSED as error:
        raise ConfigError(
            f"Cannot upload to {name} ({reason_of(error)}): the folder {out} is ready, `hf auth login` and "
            f"`hf upload {name} {out}` do it later."
        ) from error


def _places(config: RunConfig) -> list[str]:
    """Return the places on this machine that a run's settings name."""
    task, lm = config.task, config.backbone
    named = [
        task.name,
        task.data_dir,
        task.test_file,
        lm.states_folder,
        None if hub_name(lm.name) else lm.name,
    ]
    return [str(place) for place in named if place and Path(place).name != str(place)]


def _public_config(run: Path, base: str | None) -> tuple[RunConfig, Json]:
    """Return the settings of a run, and what their file holds, without the places where things are here."""
    config, stored = stored_config(run)
    data = config.dump()
    own = {"name": base or Path(data["backbone"]["name"]).name, "device": "cpu", "states_folder": None}
    data["backbone"] |= own
    task = data["task"]
    task |= {key: Path(task[key]).name for key in ("name", "test_file") if task[key]} | {"data_dir": None}
    public = parse_config(data, stored=True)
    kept = {key: value for key, value in stored.items() if key not in ("config", "config_hash")}
    return public, {**kept, "config": public.dump(), "config_hash": public.hash}


def _draw(run: Path, samples: str, path: Path) -> None:
    records = read_predictions(run)
    probs = torch.tensor([record["probs"][samples] for record in records], dtype=torch.float64)
    labels = torch.tensor([record["label"] for record in records])
    save(reliability_diagram({f"S = {samples}": reliability_bins(probs.log(), labels)}), path)
