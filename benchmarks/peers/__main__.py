"""All peers side by side: `python -m benchmarks.peers`.

    python -m benchmarks.peers [--peers ours transformers_cb] [--environments .peers]
        [--sequences 16 32] [--dtypes float32] [--threads 2] [--repeats 3] [--requests 64]

Each peer runs in an environment of its own, `<environments>/<peer>/bin/python`; where there is
none, the table says so and how to make one. For every number of sequences, dtype and number of
threads all peers load and are warmed up; then they serve the workload in turn, A B A B, so that
what else happens on the machine meets all of them. docs/performance.md has the figures.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from itertools import product
from pathlib import Path

from benchmarks.peers import weights, workload
from benchmarks.peers.measure import Peer, PeerFailed, Run
from benchmarks.peers.table import markdown, row
from cbjax.cache import cache_dir
from cbjax.models.gguf_file import open_gguf
from cbjax.models.load import gguf_config
from cbjax.models.sources import locate

PEERS = ("ours", "transformers_cb", "vllm_cpu", "llama_cpp")


def interpreter(name: str, environments: Path) -> Path | None:
    """The Python that runs a peer: this one for ours, else its environment's; None: absent."""
    if name == "ours":
        return Path(sys.executable)
    found = [environments / name / place for place in ("bin/python", "Scripts/python.exe")]
    return next((python.absolute() for python in found if python.is_file()), None)


def absent(name: str, environments: Path) -> str:
    """What the report says of a peer that is not installed."""
    install = import_module(f"benchmarks.peers.{name}").INSTALL
    return (
        f"{name}: absent. python3 -m venv {environments / name}; then with its pip: {install}"
    )


def main() -> None:
    """Measure what is installed, print the tables and keep the rows."""
    options = _options()
    pythons = {name: interpreter(name, options.environments) for name in options.peers}
    for name in [name for name, python in pythons.items() if python is None]:
        print(absent(name, options.environments))
    source, options.model = options.model, locate(options.model)
    if options.model.suffix != ".gguf":
        raise SystemExit(f"--model {source}: give smollm2 or a .gguf file")
    asked = workload.draw(options.requests, gguf_config(open_gguf(options.model)).vocab_size)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    kept = []
    for dtype, threads, sequences in product(options.dtypes, options.threads, options.sequences):
        case = dict(dtype=dtype, threads=threads, sequences=sequences, requests=len(asked))
        print(f"\n{', '.join(f'{key} {value}' for key, value in case.items())}", flush=True)
        peers = _start({k: v for k, v in pythons.items() if v}, case, options)
        try:
            for peer, run in _serve(peers, asked, sequences, options.repeats):
                kept.append(case | dict(peer=peer, **asdict(run)))
                options.out.write_text(json.dumps(kept))
        finally:
            for one in peers:
                one.stop()
        ours = next((one.runs for one in peers if one.name == "ours"), [])
        print(markdown([row(one.name, one.runs, ours) for one in peers if one.runs]), flush=True)
    print(f"\nrows: {options.out}")


def _start(pythons: dict[str, Path], case: dict, options: argparse.Namespace) -> list[Peer]:
    hf, made = weights.write_all(options.model, cache_dir() / "peers", case["dtype"])
    settings = case | dict(
        model=str(options.model), hf=str(hf), gguf=str(made), longest=workload.LONGEST
    )
    peers = []
    for name, python in pythons.items():
        module = f"benchmarks.peers.{name}"
        for mode in import_module(module).MODES:
            title = f"{name} {mode}".strip()
            log = options.out.parent / f"peers-{title.replace(' ', '-')}.log"
            try:
                with log.open("w") as file:
                    peers.append(Peer.start(title, module, python, settings | {"mode": mode}, file))
            except PeerFailed as error:
                print(f"{title}: does not run here: {error} (log: {log})", flush=True)
    return peers


def _serve(
    peers: list[Peer], asked: list, sequences: int, repeats: int
) -> Iterator[tuple[str, Run]]:
    """Warm up, then serve in turn; one that fails is out, and the others go on."""
    rounds = [workload.warm_up(asked, sequences)] + [asked] * repeats
    failed: list[Peer] = []
    for at, requests in enumerate(rounds):
        for one in peers:
            if one in failed:
                continue
            try:
                run = one.serve(requests)
            except PeerFailed as error:
                print(f"{one.name}: failed: {error}", flush=True)
                failed.append(one)
            else:
                name = f"run {at}" if at else "warm-up"
                spent = f"{run.wall_s:.1f} s wall, {run.cpu_s:.1f} s CPU"
                print(f"{one.name}: {name}, {spent}", flush=True)
                if at:
                    one.runs.append(run)
                    yield one.name, run


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--model", default="smollm2", help="smollm2 or a .gguf file")
    parser.add_argument("--sequences", nargs="+", type=int, default=[16, 32])
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32"]
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/peers.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
