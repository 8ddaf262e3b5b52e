"""`text-generation-launcher --model-id MODEL`; every flag is an environment variable as well.

Source: text-generation-inference 3.3.7, `launcher/src/main.rs` and its documentation.
"""

from dataclasses import replace
from typing import Any

from cbjax.policies._flags._memory import Memory, tgi_blocks
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, refuse
from cbjax.policies._flags._values import real, truth, whole

_BLOCK_SIZES = {"flashinfer": 1, "flashdecoding": 256, "paged": 16}


def _block_size(attention: str) -> int:
    if attention not in _BLOCK_SIZES:
        raise ValueError(f"choose one of {', '.join(_BLOCK_SIZES)}")
    return _BLOCK_SIZES[attention]


def _attention(block_size: int) -> str:
    return next((name for name, size in _BLOCK_SIZES.items() if size == block_size), "?")


def _finish(knobs: dict[str, Any], settings: dict[str, Any]) -> None:
    """A batch has no bound of its own by default, so the requests inside are its bound."""
    knobs.setdefault("max_batch_size", knobs.get("max_concurrent_requests", 128))


def _blocks(server: Server, memory: Memory) -> int:
    return tgi_blocks(memory, server.memory_fraction)


_FLAGS = (
    Flag("--model-id", setting="model"),
    Flag("--dtype", setting="dtype"),
    Flag("--kv-cache-dtype", setting="kv_dtype"),
    Flag("--max-total-tokens", setting="max_length", read=whole),
    Flag("--cuda-memory-fraction", setting="memory_fraction", read=real),
    Flag("--max-batch-prefill-tokens", "max_batch_prefill_tokens", read=whole),
    Flag("--max-batch-size", "max_batch_size", read=whole),
    Flag("--max-concurrent-requests", "max_concurrent_requests", read=whole),
    Flag("--max-input-tokens", "max_input_tokens", read=whole),
    Flag("--max-input-length", "max_input_tokens", read=whole),
    Flag("--waiting-served-ratio", "waiting_served_ratio", read=real),
    Flag("--max-waiting-tokens", "max_waiting_tokens", read=whole),
    *refuse("speculative decoding is not modelled; give 0", "--speculate", unless=("0",)),
)
_VALUES = """
--revision --validation-workers --sharded --num-shard --quantize --max-best-of
--max-stop-sequences --max-top-n-tokens --max-client-batch-size --cuda-graphs --hostname
--port -p --prometheus-port --shard-uds-path --master-addr --master-port --huggingface-hub-cache
--weights-cache-override --rope-scaling --rope-factor --otlp-endpoint --otlp-service-name
--cors-allow-origin --api-key --watermark-gamma --watermark-delta --ngrok-authtoken --ngrok-edge
--tokenizer-config-path --lora-adapters --usage-stats --payload-limit --graceful-termination-timeout
--max-batch-total-tokens
"""
_SWITCHES = """
--trust-remote-code --disable-custom-kernels --json-output --ngrok --disable-grammar-support
--env -e --enable-prefill-logprobs
"""


def _variable(name: str) -> str:
    return name.lstrip("-").upper().replace("-", "_")


TABLE = Table(
    commands=("text-generation-launcher",),
    defaults=Settings(block_size=1, memory_fraction=1.0),
    flags=(
        *(replace(flag, env=_variable(flag.names.split()[0])) for flag in _FLAGS),
        Flag(knob="prefill_chunking", env="PREFILL_CHUNKING", read=truth),
        Flag(knob="prefix_caching", env="PREFIX_CACHING", read=truth),
        Flag(setting="block_size", env="ATTENTION", read=_block_size, write=_attention),
        Flag(env="TGI_WIGGLE_ROOM", refused="only 0.9 is modelled", unless=("0.9", "0.90")),
    ),
    values=_VALUES,
    switches=_SWITCHES,
    blocks=_blocks,
    finish=_finish,
    notes={
        "prefix_caching": "on there where the model can; off here, because it needs token ids",
        "max_batch_prefill_tokens": "measured or computed by the launcher; 4096 here",
        "max_length": "the launcher's choice, by model and memory; here the system's",
    },
)
