"""Run the layers of the proof: `python -m pallas_kernels.verify [layers] [options]`."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Collection

from pallas_kernels.verify import device, ledger, semantics
from pallas_kernels.verify.targets import TARGETS, side_by_side

LAYERS = ("semantics", "compile", "ledger", "device")


def compile_layer(names: list[str], brief: Collection[str] = ()) -> tuple[str, str]:
    """Compile for each target in a process of its own, whose environment it sets."""

    def one(name: str) -> str:
        missing = TARGETS[name].missing()
        if missing:
            return f"skipped ({missing})"
        command = [sys.executable, "-m", "pallas_kernels.verify.compile", name]
        command += ["brief"] if name in brief else []
        done = subprocess.run(command, env=TARGETS[name].environment())
        return "failed" if done.returncode else "ok"

    words = side_by_side(one, names)
    verdict = "failed" if "failed" in words else "ok"
    every = all(word.startswith("skipped") for word in words)
    pairs = zip(names, words, strict=True)
    return "skipped" if every else verdict, ", ".join(" ".join(pair) for pair in pairs)


def main() -> int:
    """Parse the command line, run, and print one line per layer."""
    parser = argparse.ArgumentParser(
        prog="python -m pallas_kernels.verify", description=__doc__.split("\n")[0]
    )
    parser.add_argument("layers", nargs="*", choices=[*LAYERS, []], help="all if none is named")
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help="chips to compile for"
    )
    parser.add_argument(
        "--brief", nargs="+", choices=TARGETS, default=[],
        help="chips for which one case of each kind is compiled, and no ledger kept",
    )
    parser.add_argument("--write", action="store_true", help="keep the figures as the ledger")
    parser.add_argument("--quick", action="store_true", help="semantics: without the slow tests")
    given = parser.parse_args()
    layers: dict[str, Callable[[], tuple[str, str]]] = {
        "semantics": lambda: semantics.run(given.quick),
        "compile": lambda: compile_layer(given.targets, given.brief),
        "ledger": lambda: ledger.run(
            [name for name in given.targets if name not in given.brief], given.write
        ),
        "device": device.run,
    }
    lines, failed = [], False
    for name in given.layers or LAYERS:
        print(f"== {name}", flush=True)
        started = time.perf_counter()
        verdict, words = layers[name]()
        lines.append(f"{name:10} {verdict:8} {time.perf_counter() - started:5.0f} s  {words}")
        failed |= verdict == "failed"
    print("\n".join(["", *lines]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
