"""Running a peer's process, and what a run of it took."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.workload import Asked

ROOT = Path(__file__).parents[2]


class PeerFailed(RuntimeError):
    """A peer ended, or answered with an error."""


@dataclass(frozen=True)
class Run:
    """One serving of the workload; CPU seconds and memory are of the peer's whole process tree."""

    wall_s: float
    cpu_s: float
    peak_bytes: int  # since the process started, weights and compilation included
    tokens: list[list[int]]
    moments: list[list[float] | None]  # when each token was there; None where the peer is silent

    @property
    def num_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(map(len, self.tokens))

    def ttft_s(self) -> list[float]:
        """From the start to each request's first token."""
        return [times[0] for times in self.moments if times]

    def itl_s(self) -> list[float]:
        """Between neighbouring tokens of a request."""
        return [
            after - before
            for times in self.moments
            for before, after in zip(times or (), (times or ())[1:], strict=False)
        ]


@dataclass
class Peer:
    """A peer's process, driven by lines of JSON."""

    name: str
    process: subprocess.Popen
    computing: int = 0  # the process whose tree computes
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, module: str, python: Path, settings: dict[str, Any], log) -> "Peer":
        """Start a peer and wait until it has loaded.

        Args:
            name: for messages.
            module: that calls `protocol.peer`.
            python: of the peer's environment.
            settings: see `protocol.Settings`.
            log: an open file for what it prints.

        Raises:
            PeerFailed: it cannot load; the text says why.
        """
        process = subprocess.Popen(
            [str(python), "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        made = cls(name, process)
        try:
            made.computing = int(made._ask(settings)["ready"])
        except PeerFailed:
            made.stop()
            raise
        return made

    def serve(self, asked: list[Asked]) -> Run:
        """Serve the requests once.

        Raises:
            PeerFailed: the peer failed, or made another number of tokens than was asked for.
        """
        before = cpu_seconds(self.computing)
        answer = self._ask([vars(one) for one in asked])
        spent = cpu_seconds(self.computing) - before
        wrong = [
            f"request {at}: {len(got)} tokens of {one.outputs}"
            for at, (one, got) in enumerate(zip(asked, answer["tokens"], strict=True))
            if len(got) != one.outputs
        ]
        if wrong:
            raise PeerFailed(f"{self.name}: {'; '.join(wrong[:3])} (of {len(wrong)} such)")
        return Run(
            answer["wall_s"], spent, peak_bytes(self.computing), answer["tokens"], answer["moments"]
        )

    def stop(self) -> None:
        """End the process and its children."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        for one in (self.process, *children):
            try:
                one.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()

    def _ask(self, message: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"{self.name} ended (exit {self.process.wait()}); see its log")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"{self.name}: {answer['error'].strip().splitlines()[-1]}")
        return answer


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and of its living and ended children."""
    times = [one.cpu_times() for one in _tree(pid)]
    first = times[0]
    ended = getattr(first, "children_user", 0.0) + getattr(first, "children_system", 0.0)
    return ended + sum(one.user + one.system for one in times)


def peak_bytes(pid: int) -> int:
    """Greatest resident memory of each process of the tree, added up."""
    total = 0
    for one in _tree(pid):
        status = Path(f"/proc/{one.pid}/status")
        lines = status.read_text().splitlines() if status.is_file() else []
        peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
        total += peaks[0] if peaks else one.memory_info().rss
    return total
