"""Compare `bara serve` with plain servers of PEFT's LoRA: latencies of concurrent requests in one run.

python -m benchmarks.serving [--requests 1000] [--few 16] [--rounds 3] [--samples 10] [--out FILE]

All servers answer the same rows of the microworld locally, one row in each request, with the same language
model and adapters of rank 8 on the same modules. They are tested in turn: with all requests at once, then
with a fifth of them, `--few` at a time. "peft" is a minimal server that computes each request separately.
"peft, batched" is the server of `bara serve` around PEFT's forward pass. Every answer is checked for its
status and its row, and the answers of the run are compared with `bara_pyro.runs.predict.predict`.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import peft
import torch
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from transformers import AutoModelForCausalLM

from bara_pyro.extras.serve.http.app import create_app
from bara_pyro.extras.serve.http.engine import Answer, QueuedQuestion, RunEngine, united
from bara_pyro.extras.serve.http.schema import RowRequest, probability_row
from bara_pyro.extras.serve.http.server import listen, serve, url_of
from bara_pyro.microworld import backbone_path
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.predict import answers_of, names_of, predict
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.writing import save_system, write_config
from bara_pyro.types import Fields, Json
from benchmarks.systems import TARGETS, answer_logits

TASK = "micro-wgs"
CONTESTANTS = ("bara", "peft, batched", "peft")


class PeftEngine:
    """PEFT's LoRA on the microworld as an engine: one forward pass, no draws."""

    def __init__(self, system: System) -> None:
        self.reader = RunEngine(system, samples=0)
        self.system = system
        lm = AutoModelForCausalLM.from_pretrained(
            backbone_path(), dtype=torch.float32, trust_remote_code=False
        )
        config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS)
        self.model = peft.get_peft_model(lm, config).eval()

    @property
    def about(self) -> Json:
        """The model that answers."""
        return {"method": "peft", "samples": 0}

    def read(self, rows: Sequence[Fields]) -> tuple[list[QueuedQuestion], list[str]]:
        """Read rows like a run."""
        return self.reader.read(rows)

    @torch.no_grad()
    def compute(self, questions: Sequence[QueuedQuestion]) -> list[Answer]:
        """Answer all questions with one forward pass."""
        split = united([question.encoded for question in questions])
        batch = split.batch(range(len(questions)), self.system.answer_ids)
        drawn = answer_logits(self.model, batch).double().log_softmax(-1)[None]
        examples = [question.example for question in questions]
        said = answers_of(drawn, examples, self.system.task)
        return [
            Answer(row, names_of(example, self.system.task), [probs])
            for row, example, probs in zip(said, examples, drawn[0].exp().tolist(), strict=True)
        ]


def bare_app(engine: PeftEngine) -> FastAPI:
    """Return a minimal server that runs a forward pass for each request, one at a time."""
    app, one_at_a_time = FastAPI(), threading.Lock()

    @app.post("/probabilities")
    def probabilities(asked: RowRequest) -> JSONResponse:
        with one_at_a_time:
            answers = engine.compute(engine.read(asked.rows)[0])
        return JSONResponse({"samples": 0, "rows": list(map(probability_row, answers)), "notes": []})

    return app


def make_run(folder: Path) -> None:
    """Write an untrained run whose draws disagree, with the cost of a trained one."""
    system = build_system(load_config(overrides={"method": "bara", "task.name": TASK, "task.limit": 8}))
    for name, weight in system.model.named_parameters():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(weight, std=0.2)
    write_config(system, folder)
    save_system(system, folder, step=1)


def serve_one(args: Namespace) -> None:
    """Print the address of a contestant and serve it until this process is stopped."""
    torch.set_num_threads(1)
    system = load_system(args.run, with_rows=False)
    if args.serve == "bara":
        app = create_app(RunEngine(system, samples=args.samples))
    else:
        engine = PeftEngine(system)
        app = bare_app(engine) if args.serve == "peft" else create_app(engine)
    with listen("127.0.0.1", 0) as listening:
        print(url_of(listening), flush=True)
        serve(app, listening)


@contextmanager
def served(name: str, run: Path, samples: int) -> Iterator[str]:
    """Yield the address of a contestant that runs in another process."""
    command = [sys.executable, "-m", "benchmarks.serving", "--serve", name, "--run", str(run)]
    with subprocess.Popen(
        [*command, "--samples", str(samples)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        if process.stdout is None or not (url := process.stdout.readline().strip()):
            raise RuntimeError(f"The server {name!r} did not start.")
        yield url
        process.terminate()


async def ask(url: str, row: Json) -> tuple[float, int, Json]:
    """Send one row over a new connection; return seconds, status and answer."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"rows": [row]}).encode()
    head = (
        f"POST /probabilities HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    began = perf_counter()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + body)
    data = await reader.read()
    seconds = perf_counter() - began
    writer.close()
    first, _, text = data.partition(b"\r\n\r\n")
    return seconds, int(first.split()[1]), json.loads(text)


async def ask_all(url: str, rows: Sequence[Json], at_once: int) -> list[tuple[float, int, Json]]:
    """Send all rows, `at_once` at a time."""
    free = asyncio.Semaphore(at_once)

    async def one(row: Json) -> tuple[float, int, Json]:
        async with free:
            return await ask(url, row)

    return await asyncio.gather(*map(one, rows))


def measure(url: str, rows: Sequence[Json], at_once: int) -> tuple[Json, list[Json]]:
    """Return latencies, throughput and number of failed or wrong-row requests, and the answers."""
    began = perf_counter()
    found = asyncio.run(ask_all(url, rows, at_once))
    took = perf_counter() - began
    answers = [said["rows"][0] for _, status, said in found if status == 200]
    own = sum(
        status == 200 and said["rows"][0]["id"] == row["id"]
        for row, (_, status, said) in zip(rows, found, strict=True)
    )
    seconds = [seconds for seconds, _, _ in found]
    p50, p99 = np.percentile(seconds, (50, 99))
    return {"p50": p50, "p99": p99, "rate": len(rows) / took, "lost": len(rows) - own}, answers


def largest_error(answers: Sequence[Json], expected: dict[str, Json]) -> float:
    """Return the largest difference between served and predicted probabilities."""
    return max(
        abs(p - expected[row["id"]]["probs"][name]) for row in answers for name, p in row["probs"].items()
    )


def compare(args: Namespace, run: Path) -> Json:
    """Return the latencies of all contestants as medians over rounds."""
    make_run(run)
    task = build_system(load_config(overrides={"task.name": TASK})).task
    rows = [{"id": row.id, "question": row.question} for row in (*task.test, *task.train)][: args.requests]
    expected = {
        row["id"]: row for row in predict(load_system(run, with_rows=False), rows, samples=args.samples).rows
    }
    measured: dict[tuple[str, int], list[Json]] = {}
    wrong = 0.0
    with ExitStack() as stack:
        urls = {name: stack.enter_context(served(name, run, args.samples)) for name in CONTESTANTS}
        for url in urls.values():
            measure(url, rows[:8], 8)  # warm-up
        for asked, at_once in ((rows, len(rows)), (rows[: len(rows) // 5], args.few)):
            for _ in range(args.rounds):
                for name, url in urls.items():
                    found, answers = measure(url, asked, at_once)
                    measured.setdefault((name, at_once), []).append(found)
                    if name == "bara":
                        wrong = max(wrong, largest_error(answers, expected))
    return {"requests": len(rows), "samples": args.samples, "rounds": args.rounds, "largest_error": wrong} | {
        "runs": [_line(name, at_once, found) for (name, at_once), found in measured.items()]
    }


def _line(name: str, at_once: int, found: Sequence[Json]) -> Json:
    medians = {key: median(one[key] for one in found) for key in ("p50", "p99", "rate")}
    return {"server": name, "at_once": at_once, **medians, "lost": sum(one["lost"] for one in found)}


def show(report: Json) -> None:
    """Print latencies and their ratios."""
    print(f"{report['requests']} requests a round, S = {report['samples']}, {report['rounds']} rounds")
    for line in report["runs"]:
        print(
            f"{line['at_once']:>5} at once, {line['server']:<14} p50 {1000 * line['p50']:8.1f} ms   "
            f"p99 {1000 * line['p99']:8.1f} ms   {line['rate']:7.1f} a second   lost {line['lost']}"
        )
    found: dict[Any, Json] = {(line["server"], line["at_once"]): line for line in report["runs"]}
    for (name, at_once), line in found.items():
        if name != "bara":
            ours = found["bara", at_once]
            p50, p99 = (ours[key] / line[key] for key in ("p50", "p99"))
            print(f"{at_once:>5} at once, bara / {name:<14} p50 {p50:6.2f}   p99 {p99:6.2f}")
    print(f"largest difference from predict: {report['largest_error']:.1e}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print, or serve one contestant."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    for name, default in {"requests": 1000, "few": 16, "rounds": 3, "samples": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=CONTESTANTS, help="serve this contestant (used internally)")
    parser.add_argument("--run", type=Path)
    args = parser.parse_args(arguments)
    if args.serve:
        serve_one(args)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        report = compare(args, Path(folder) / "run")
    show(report)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))
    if any(line["lost"] for line in report["runs"]):
        sys.exit("Answers were lost.")


if __name__ == "__main__":
    main()
