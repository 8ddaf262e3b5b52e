"""`python -m cbjax.flags "vllm serve MODEL --max-num-seqs 64"`: a server's flags as settings here.

Prints the policy, the settings that are not its own, what says nothing about scheduling, and the
overrides for `python -m cbjax.run`. With the sizes of a device it also prints the number of KV
blocks that the server would have there. In Python: `cbjax.policies.from_flags` and `to_flags`; the
rules from a memory flag to KV blocks are functions of this module.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from cbjax.policies._flags import FlagsError, Memory, Server, Settings, from_flags, to_flags
from cbjax.policies._flags._memory import (
    llama_cells,
    peak_blocks,
    sglang_blocks,
    sglang_fraction,
    tensorrt_llm_blocks,
    tgi_blocks,
    transformers_blocks,
    vllm_blocks,
    vllm_blocks_in,
)

__all__ = [
    "FlagsError", "Memory", "Server", "Settings", "from_flags", "llama_cells", "main",
    "peak_blocks", "sglang_blocks", "sglang_fraction", "tensorrt_llm_blocks", "tgi_blocks",
    "to_flags", "transformers_blocks", "vllm_blocks", "vllm_blocks_in",
]

WRONG = 2
_SIZES = ("total", "free", "weights", "activations", "block")
_UNITS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a command line says; 0, or 2 if it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m cbjax.flags", allow_abbrev=False,
        description="A server's command line as a policy and settings. The options, in bytes or "
        "with KiB, MiB or GiB, describe one device, for the number of KV blocks.",
    )
    for name in _SIZES:
        parser.add_argument(f"--{name}", type=_size, metavar="BYTES")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the server's command line")
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    sizes = {name: getattr(given, name) for name in _SIZES if getattr(given, name) is not None}
    if sizes and len(sizes) < len(_SIZES):
        parser.error(f"give all of {', '.join(f'--{name}' for name in _SIZES)}, or none")
    if not given.command:
        parser.error("give a command line, e.g. 'vllm serve MODEL --max-num-seqs 64'")
    command = given.command[0] if len(given.command) == 1 else shlex.join(given.command)
    try:
        server = from_flags(command)
        memory = Memory(**sizes) if sizes else None
        print("\n".join(describe(server, memory)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    return 0


def describe(server: Server, memory: Memory | None = None) -> Iterator[str]:
    """Lines of text about a server, the overrides last.

    Args:
        server: what was read.
        memory: the device; None: a pool that the line does not give stays open.
    """
    policy = server.policy.name
    yield f"policy    cbjax.policies.{policy}({_arguments(server.changed)})"
    settings = {name: value for name, value in asdict(server.settings).items() if value is not None}
    yield f"settings  {_arguments(settings)}"
    blocks = None
    try:
        blocks = server.num_blocks(memory)
        yield f"pool      {blocks} KV blocks of {server.settings.block_size} tokens"
    except FlagsError as error:
        yield f"pool      {error}"
    for title, texts in (("ignored", server.ignored), ("note", server.notes)):
        yield from (f"{title:<9} {text}" for text in texts)
    yield f"run       {' '.join(map(shlex.quote, server.overrides(blocks)))}"


def _arguments(values: dict) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _size(word: str) -> int:
    for unit, size in _UNITS.items():
        if word.endswith(unit):
            return int(float(word.removesuffix(unit)) * size)
    return int(word)


if __name__ == "__main__":
    sys.exit(main())
