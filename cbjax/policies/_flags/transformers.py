"""`transformers serve MODEL --continuous-batching`.

What `ContinuousBatchingConfig` has beside these (`scheduler_type`, `max_requests_per_batch`,
`safety_margin`, ...) has no flag.

Source: transformers 5.24, `cli/serve.py`, `generation/continuous_batching/cache.py`.
"""

from cbjax.policies._flags._memory import Memory, transformers_blocks
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table
from cbjax.policies._flags._values import real, whole


def _blocks(server: Server, memory: Memory) -> int:
    return transformers_blocks(memory, server.memory_fraction)


TABLE = Table(
    commands=("transformers serve",),
    model_first=True,
    always=("--continuous-batching",),
    needs={
        "--continuous-batching": "without it requests are generated one at a time; add it",
    },
    defaults=Settings(block_size=256, memory_fraction=0.9),
    flags=(
        Flag("--dtype", setting="dtype"),
        Flag("--cb-block-size", setting="block_size", read=whole),
        Flag("--cb-num-blocks", setting="num_blocks", read=whole),
        Flag("--cb-max-memory-percent", setting="memory_fraction", read=real),
        Flag("--cb-max-batch-tokens", "max_batch_tokens", read=whole),
    ),
    values="""
--attn-implementation --quantization --reasoning --chat-template-kwargs --decision-config
--device --model-timeout --host --port --log-level --default-seed
""",
    switches="""
--continuous-batching --compile --trust-remote-code --enable-cors --non-blocking
--cb-use-cuda-graph --no-cb-use-cuda-graph --no-compile --no-trust-remote-code --no-enable-cors
""",
    blocks=_blocks,
    notes={
        "max_batch_tokens": "lowered there if memory is short; 8192 here",
        "memory_fraction": "0.9, or 0.8 if logits are processed and 0.6 without a GPU; 0.9 here",
    },
)
