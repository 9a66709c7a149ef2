"""`bara serve` as a process: on a port, asked by many at once, stopped while it answers."""

import http.client
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from app_cases import Bara, assert_one_sentence
from huggingface_hub import constants
from serving_cases import PATIENCE, ask, server

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")

from bara_pyro.atomic import write_json
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.predict import predict
from bara_pyro.untrusted.files import read_json


@pytest.mark.slow
def test_many_ask_at_once_and_none_is_lost(run: Path, rows: list[dict]) -> None:
    expected = {row["id"]: row for row in predict(load_system(run, with_rows=False), rows, samples=4).rows}
    with server(run, "--samples", 4, "--max-batch", 16) as (process, about):
        assert about["url"].startswith("http://127.0.0.1:")
        assert about["samples"] == 4
        asked = [row for row in rows for _ in range(3)]
        with ThreadPoolExecutor(60) as pool:
            found = list(pool.map(lambda row: ask(about["url"], "/probabilities", [row]), asked))
        for row, answer in zip(asked, found, strict=True):
            [said] = answer["rows"]
            assert said["id"] == row["id"]
            assert said["probs"] == pytest.approx(expected[row["id"]]["probs"], abs=1e-5)
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(about["url"], "/draws", [])
        assert refused.value.code == 422
        refused.value.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


@pytest.mark.slow
def test_what_was_asked_before_the_end_is_answered(run: Path, rows: list[dict]) -> None:
    with server(run, "--samples", 2, "--max-wait-ms", 2000) as (process, about):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, about["url"], "/uncertainty", rows[:1])  # waits 2 s for others
            while not (ask(about["url"], "/health")["rows_held"] or waiting.done()):
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert waiting.result()["rows"][0]["id"] == rows[0]["id"]
        assert process.wait(PATIENCE) == 143
        host, port = about["url"].removeprefix("http://").split(":")
        with pytest.raises(OSError, match="refused"):
            http.client.HTTPConnection(host, int(port)).request("GET", "/health")


def test_a_port_that_is_taken(run: Path, bara: Bara) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_sentence(bara("serve", run, "--port", port), str(port), "--port")
    assert_one_sentence(bara("serve", run, "--host", "no.such.host.invalid"), "no.such.host.invalid")
    assert_one_sentence(bara("serve", run, "--host", "192.0.2.1"), "192.0.2.1")


def test_what_cannot_be_served(run: Path, tmp_path: Path, bara: Bara) -> None:
    assert_one_sentence(bara("serve", tmp_path / "none"), "There is no folder")
    for option, value in (
        ("--samples", -1),
        ("--port", 65_536),
        ("--max-batch", 0),
        ("--queue-size", 0),
        ("--memory-budget", 0),
        ("--max-wait-ms", "x"),
    ):
        assert_one_sentence(bara("serve", run, option, value), option)


def test_a_server_downloads_nothing_and_reads_safetensors_alone(
    run: Path, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        pytest.fail("the network was asked")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    arguments = ("serve", run, "--port", 0, "--model")
    with monkeypatch.context() as offline:
        offline.setattr(socket, "create_connection", connect)
        assert_one_sentence(
            bara(*arguments, "someone/some-model"), "'someone/some-model'", "downloads nothing"
        )
        assert_one_sentence(bara(*arguments, tmp_path / "none"), "not on this machine")
    own = Path(read_json(run / "bara_config.json")["config"]["backbone"]["name"])
    pickled = shutil.copytree(own, tmp_path / "pickled")
    weights = pickled / "model.safetensors"
    torch.save({}, pickled / "pytorch_model.bin")
    weights.unlink()
    assert_one_sentence(bara(*arguments, pickled), "no model.safetensors")


def test_an_edited_run_is_not_served(run: Path, tmp_path: Path, bara: Bara) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    stored = read_json(copy / "bara_config.json")
    write_json(copy / "bara_config.json", stored | {"task": "other"})
    assert_one_sentence(bara("serve", copy), "damaged, edited")


def test_without_the_extra_a_sentence_says_how_to_get_it(
    run: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("bara_pyro.extras.serve.http", "fastapi", "uvicorn"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert_one_sentence(bara("serve", run, "--port", 0), "pip install 'bara-pyro[serve]'")
