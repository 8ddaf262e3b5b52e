"""`OLLAMA_NUM_PARALLEL=4 ollama serve`: environment variables, no flags.

Source: ollama of 2026-08, `envconfig/config.go`, `llm/`.
"""

from cbjax.policies._flags._memory import Memory, llama_cells
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table
from cbjax.policies._flags._values import whole


def _pool(server: Server, context: int) -> int:
    """Every slot has a context of its own."""
    slots = server.knobs["num_parallel"]
    return llama_cells(context * slots, slots, unified=False)[0] // server.block_size


def _given(server: Server) -> int | None:
    context = server.settings.max_length
    return None if context is None else _pool(server, context)


def _blocks(server: Server, memory: Memory) -> int:
    return _pool(server, server.settings.max_length or memory.context)


TABLE = Table(
    commands=("ollama serve",),
    defaults=Settings(block_size=1),
    flags=(
        Flag(knob="num_parallel", env="OLLAMA_NUM_PARALLEL", read=whole),
        Flag(setting="max_length", env="OLLAMA_CONTEXT_LENGTH", read=whole),
        Flag(setting="kv_dtype", env="OLLAMA_KV_CACHE_TYPE"),
    ),
    given=_given,
    blocks=_blocks,
    notes={"max_length": "4096, 32768 or 262144 there, by the device's memory"},
    env_prefix="OLLAMA_",
    # OLLAMA_MAX_QUEUE bounds requests that wait for a model to be loaded, not those for a seat.
    env_ignored="""
OLLAMA_HOST OLLAMA_MODELS OLLAMA_KEEP_ALIVE OLLAMA_DEBUG OLLAMA_ORIGINS OLLAMA_FLASH_ATTENTION
OLLAMA_MAX_QUEUE OLLAMA_MAX_LOADED_MODELS OLLAMA_LOAD_TIMEOUT OLLAMA_SCHED_SPREAD
OLLAMA_GPU_OVERHEAD OLLAMA_LLM_LIBRARY OLLAMA_NOPRUNE OLLAMA_NOHISTORY OLLAMA_TMPDIR
OLLAMA_MAX_VRAM OLLAMA_MULTIUSER_CACHE OLLAMA_NEW_ENGINE OLLAMA_INTEL_GPU OLLAMA_NO_CLOUD
""",
)
