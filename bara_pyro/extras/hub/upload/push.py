"""Prepare the folder of a run for publication, and upload it."""

import shutil
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, by a lazy table

from bara_pyro.atomic import write_json, write_text
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.extras.hub.upload.card import Published, best_draws, card
from bara_pyro.extras.hub.upload.scrub import hub_name, scrubbed
from bara_pyro.lm.loading import reason_of
from bara_pyro.metrics import reliability_bins
from bara_pyro.report.figures import reliability_diagram
from bara_pyro.report.style import save
from bara_pyro.runs.config import RunConfig, parse_config
from bara_pyro.runs.evaluation_files import log_probs_and_labels, read_predictions, read_scores
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
from bara_pyro.runs.stored import stored_config, stored_fitted, stored_lr, stored_step
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import AdapterFile, PublishedMetrics

# Errors of an upload. The HTTP library depends on the version of huggingface_hub; the bases of the hub's
# error include the base class of that library's errors.
REFUSED: tuple[type[Exception], ...] = (OSError, ValueError, *HfHubHTTPError.__bases__)
FIGURE = "reliability.png"
# Without the training log and the predictions, which contain ids of the user's rows.
PUBLISHED = (CONFIG, PEFT_CONFIG, ADAPTER, GUIDE, FITTED, METRICS, CARD, FIGURE)


def prepare_upload(
    run: str | Path, name: str, out: str | Path, *, base: str | None = None, license_name: str | None = None
) -> Path:
    """Write the folder to publish for a finished run, with a model card.

    Local paths are shortened to their last part. `bara_pyro.load_system` reads the folder.

    Args:
        run: folder of the run.
        name: name on the hub, `user/model`.
        out: folder to write.
        base: the language model's name on the hub, if the run used a local folder.
        license_name: the licence for the card, as the hub names it.

    Raises:
        CheckpointError: the run is not finished or was not evaluated.
        ConfigError: the name is not valid on the hub, or the run was trained on replies.

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
        raise ConfigError(
            f"{name!r} is not a valid name on the hub ({reason_of(error)}): give user/model."
        ) from error
    if "/" not in name:
        raise ConfigError(f"{name!r} has no user name: give user/model.")
    if out.resolve() == run.resolve():
        raise ConfigError(f"{out} is the folder of the run, which would be overwritten: give another folder.")
    check_run(run)
    for needed in (METRICS, PREDICTIONS):
        if not (run / needed).is_file():
            raise CheckpointError(f"{run / needed} is missing: write it with {how_to_resume(run)}.")
    run_config, run_stored = stored_config(run)
    if run_config.task.likelihood == "completion":
        raise ConfigError(
            f"{run} was trained on replies, but `bara push` writes cards only for runs that answer "
            f"questions: upload the folder itself with `hf upload {name} {run}`."
        )
    base = base or hub_name(run_config.backbone.name)
    config, stored = _public_config(run, base)
    report: Json = scrubbed(
        read_scores(run, PublishedMetrics), _places(parse_config(run_stored["config"], stored=True))
    )
    settings: Json = {**read_json(run / PEFT_CONFIG, AdapterFile), "base_model_name_or_path": base}
    kind = settings["peft_type"].split(":")[0]
    peft = kind if kind in ("LORA", "BARA") else ""
    fitted = stored_fitted(run)
    published = Published(
        name,
        base,
        config,
        stored,
        report,
        peft,
        FIGURE,
        fitted.get("calibrated_temperature", fitted.get("temperature")),
        stored_step(run),
        stored_lr(run, config),
    )
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
        write_text(place / CARD, card(published, license_name))
    return out


def push(
    run: str | Path,
    name: str,
    out: str | Path,
    *,
    base: str | None = None,
    license_name: str | None = None,
    private: bool = False,
) -> str:
    """Write the folder (`prepare_upload`), upload it and return its URL.

    huggingface_hub finds the token (`hf auth login` or HF_TOKEN); it is not stored.

    Args:
        run: folder of the run.
        name: name on the hub, `user/model`.
        out: folder to write.
        base: see `prepare_upload`.
        license_name: see `prepare_upload`.
        private: whether a new repository is private.

    Raises:
        ConfigError: the hub cannot be reached or refuses the upload; the folder has been written.

    Examples:
        >>> from bara_pyro.extras.hub.upload import push
        >>> push("runs/first", "user/first", "upload")  # doctest: +SKIP
        'https://huggingface.co/user/first'

        A name without a user is refused before anything is read:

        >>> import bara_pyro as bp
        >>> try:
        ...     address = push("runs/first", "first", "upload")
        ... except bp.BaraError as error:
        ...     print(error)
        'first' has no user name: give user/model.
    """
    prepare_upload(run, name, out, base=base, license_name=license_name)
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        # Upload only these files, whatever else is in the folder.
        done = api.upload_folder(
            repo_id=name,
            folder_path=out,
            commit_message="Upload with bara push",
            allow_patterns=[*PUBLISHED, MANIFEST],
        )
        return str(done)
    except REFUSED as error:
        raise ConfigError(
            f"Cannot upload to {name} ({reason_of(error)}), but the folder {out} is ready: upload it with "
            f"`hf auth login` and `hf upload {name} {out}`."
        ) from error


def _places(config: RunConfig) -> list[str]:
    """Return the local paths in a run's settings."""
    task, lm = config.task, config.backbone
    named = [
        task.name,
        task.data_dir,
        task.test_file,
        None if hub_name(lm.name) else lm.name,
    ]
    return [str(place) for place in named if place and Path(place).name != str(place)]


def _public_config(run: Path, base: str | None) -> tuple[RunConfig, Json]:
    """Return the settings of a run and the content of their file, without local paths."""
    config, stored = stored_config(run)
    data = config.dump()
    data["backbone"] |= {"name": base or Path(data["backbone"]["name"]).name, "device": "cpu"}
    task = data["task"]
    task |= {key: Path(task[key]).name for key in ("name", "test_file") if task[key]} | {"data_dir": None}
    public = parse_config(data, stored=True)
    others = {key: value for key, value in stored.items() if key not in ("config", "config_hash")}
    return public, {**others, "config": public.dump(), "config_hash": public.hash}


def _draw(run: Path, samples: str, path: Path) -> None:
    predictions = log_probs_and_labels(read_predictions(run), samples)
    save(reliability_diagram({f"S = {samples}": reliability_bins(*predictions)}), path)
