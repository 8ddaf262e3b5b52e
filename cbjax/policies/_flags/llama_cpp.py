"""`llama-server -m MODEL`: the pool is counted in tokens and dealt to slots.

Source: llama.cpp of 2026-10, `common/arg.cpp`, `tools/server/README.md`, `src/llama-context.cpp`.
"""

from typing import Any

from cbjax.policies._flags._memory import Memory, llama_cells
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, on_off, refuse, refuse_switch
from cbjax.policies._flags._values import real, truth, whole

_AUTO, _AUTO_SLOTS = -1, 4
_SPECULATION = "speculative decoding is not modelled; remove it"


def _context(word: str) -> int | None:
    """Tokens of the pool; 0 is the model's longest sequence."""
    return whole(word) or None


def _dealt(knobs: dict[str, Any], ctx_size: int) -> tuple[int, int]:
    slots = knobs.get("n_parallel", _AUTO)
    unified = knobs.get("kv_unified")
    unified = slots == _AUTO if unified is None else unified
    return llama_cells(ctx_size, _AUTO_SLOTS if slots == _AUTO else slots, unified)


def _finish(knobs: dict[str, Any], settings: dict[str, Any]) -> None:
    """A request may be as long as what its slot can hold."""
    if settings["pool_tokens"] is not None:
        settings["max_length"] = _dealt(knobs, settings["pool_tokens"])[1]


def _given(server: Server) -> int | None:
    pool = server.settings.pool_tokens
    return None if pool is None else _dealt(server.knobs, pool)[0] // server.block_size


def _blocks(server: Server, memory: Memory) -> int:
    pool = server.settings.pool_tokens or memory.context
    return _dealt(server.knobs, pool)[0] // server.block_size


TABLE = Table(
    commands=("llama-server",),
    defaults=Settings(block_size=1),
    flags=(
        Flag("-m --model", setting="model", env="LLAMA_ARG_MODEL"),
        Flag("-hf -hfr --hf-repo", setting="model"),
        Flag("-c --ctx-size", setting="pool_tokens", read=_context, env="LLAMA_ARG_CTX_SIZE"),
        Flag("-ctk --cache-type-k", setting="kv_dtype", env="LLAMA_ARG_CACHE_TYPE_K"),
        Flag("-np --parallel", "n_parallel", read=whole, env="LLAMA_ARG_N_PARALLEL"),
        Flag("-b --batch-size", "n_batch", read=whole, env="LLAMA_ARG_BATCH"),
        *on_off("-kvu --kv-unified", "-no-kvu --no-kv-unified", "kv_unified"),
        *on_off("-cb --cont-batching", "-nocb --no-cont-batching", "cont_batching"),
        *on_off("--cache-prompt", "--no-cache-prompt", "cache_prompt"),
        Flag("-sps --slot-prompt-similarity", "slot_prompt_similarity", read=real),
        *on_off("--context-shift", "--no-context-shift", "context_shift"),
        Flag(knob="kv_unified", env="LLAMA_ARG_KV_UNIFIED", read=truth),
        Flag(knob="cont_batching", env="LLAMA_ARG_CONT_BATCHING", read=truth),
        *refuse(
            _SPECULATION, "-md --model-draft --spec-draft-model", "-lcs --lookup-cache-static",
            "-lcd --lookup-cache-dynamic", "--spec-type", "-hfd -hfrd --hf-repo-draft",
        ),
        *refuse("a limit of each slot is not modelled; give -c and -np", "--kv-unified-per-slot"),
        *refuse("shifted prefixes are not modelled; give 0", "--cache-reuse", unless=("0",)),
        *refuse_switch("only text generation is modelled", "--embedding --embeddings",
                       "--rerank --reranking"),
    ),
    values="""
-t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll
-n --predict --n-predict -ub --ubatch-size --keep -fa --flash-attn --rope-scaling --rope-scale
--rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor
--yarn-beta-slow --yarn-beta-fast -ctv --cache-type-v -dt --defrag-thold --rpc -lm --load-mode
--numa -dev --device -ot --override-tensor -ncmoe --n-cpu-moe -ngl --gpu-layers --n-gpu-layers
-sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx
--override-kv --lora --lora-scaled --control-vector -mu --model-url -dr --docker-repo
-hff --hf-file -hft --hf-token --log-file --log-colors -lv --verbosity --log-verbosity
--samplers -s --seed --sampler-seq --temp --temperature --top-k --top-p --min-p --typical
--repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty --mirostat
-l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file
-ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram -r --reverse-prompt --pooling
-mm --mmproj -mmu --mmproj-url -a --alias --host --port --path --api-prefix --api-key
--api-key-file --ssl-key-file --ssl-cert-file --chat-template-kwargs -to --timeout
--threads-http --slot-save-path --chat-template
--chat-template-file --reasoning-format -rea --reasoning --reasoning-budget --reasoning-effort
""",
    switches="""
--swa-full --perf --no-perf -e --escape --no-escape -kvo --kv-offload -nkvo --no-kv-offload
--repack -nr --no-repack --mlock --no-mmap --mmap -cmoe --cpu-moe --check-tensors --op-offload
--no-op-offload --log-disable -v --verbose --log-verbose --offline --log-prefix --no-log-prefix
--log-timestamps --no-log-timestamps --ignore-eos --cache-idle-slots --no-cache-idle-slots
-sp --special --warmup --no-warmup --mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload
--no-mmproj-offload --ui --webui --no-ui --no-webui --metrics
--props --slots --no-slots --jinja --no-jinja
""",
    given=_given,
    blocks=_blocks,
    finish=_finish,
    notes={"cache_prompt": "on by default there; off here, because it needs token ids"},
    env_prefix="LLAMA_ARG_",
    env_ignored="LLAMA_ARG_THREADS LLAMA_ARG_HOST LLAMA_ARG_PORT LLAMA_ARG_N_GPU_LAYERS "
    "LLAMA_ARG_UBATCH LLAMA_ARG_FLASH_ATTN LLAMA_ARG_N_PREDICT LLAMA_ARG_ENDPOINT_METRICS",
)
