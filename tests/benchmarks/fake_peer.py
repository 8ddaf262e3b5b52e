"""A peer that counts upwards from the last token of a prompt; some prompts are too much for it."""

import os

from benchmarks.peers.protocol import peer


def load(settings):
    if settings["mode"] == "broken":
        raise ValueError("no such mode")
    print("what a library prints is not an answer")
    return os.getpid(), serve


def serve(requests):
    if requests[0]["prompt"] == [0]:
        raise ValueError("cannot serve this")
    tokens = [
        [one["prompt"][-1] + 1 + step for step in range(one["outputs"])] for one in requests
    ]
    moments = [[0.5 + 0.25 * at for at in range(len(one))] for one in tokens]
    return {"tokens": tokens, "moments": moments}


if __name__ == "__main__":
    peer(load)
