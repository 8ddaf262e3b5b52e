"""`python -m sglang.launch_server --model-path MODEL`.

Source: SGLang 0.5.5.post3, `python/sglang/srt/server_args.py`, `srt/environ.py`.
"""

from cbjax.policies._flags._memory import Memory, sglang_blocks, sglang_fraction
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, refuse, refuse_switch
from cbjax.policies._flags._values import real, whole

_PARTITION = "several schedulers or stages; one is modelled: give 1"
_UNKNOWN = "it changes what is scheduled and is not modelled; remove it"
_SPECULATION = "speculative decoding is not modelled; remove it"
_RADIX = "disable_radix_cache"


def _given(server: Server) -> int | None:
    tokens = server.settings.pool_tokens
    return None if tokens is None else tokens // server.block_size


def _blocks(server: Server, memory: Memory) -> int:
    settings, knobs = server.settings, server.knobs
    fraction = settings.memory_fraction
    if fraction is None:
        fraction = sglang_fraction(
            memory.total, knobs["chunked_prefill_size"], knobs["max_prefill_tokens"]
        )
    return sglang_blocks(memory, fraction, server.block_size, settings.pool_tokens)


TABLE = Table(
    commands=("python -m sglang.launch_server", "sglang serve"),
    defaults=Settings(block_size=1),
    config="--config",
    flags=(
        Flag("--model-path --model", setting="model"),
        Flag("--dtype", setting="dtype"),
        Flag("--kv-cache-dtype", setting="kv_dtype"),
        Flag("--context-length", setting="max_length", read=whole),
        Flag("--page-size", setting="block_size", read=whole),
        Flag("--mem-fraction-static", setting="memory_fraction", read=real),
        Flag("--max-total-tokens", setting="pool_tokens", read=whole),
        Flag("--max-running-requests", "max_running_requests", read=whole),
        Flag("--chunked-prefill-size", "chunked_prefill_size", read=whole),
        Flag("--max-prefill-tokens", "max_prefill_tokens", read=whole),
        Flag("--schedule-policy", "schedule_policy"),
        Flag("--schedule-conservativeness", "schedule_conservativeness", read=real),
        Flag("--enable-mixed-chunk", "enable_mixed_chunk", const=True),
        Flag("--disable-overlap-schedule", "disable_overlap_schedule", const=True),
        Flag("--enable-priority-scheduling", "enable_priority_scheduling", const=True),
        Flag(
            "--priority-scheduling-preemption-threshold",
            "priority_scheduling_preemption_threshold", read=whole,
        ),
        Flag(
            "--schedule-low-priority-values-first", "schedule_low_priority_values_first",
            const=True,
        ),
        Flag("--disable-radix-cache", _RADIX, const=True, as_if=True),
        Flag(knob="init_new_token_ratio", env="SGLANG_INIT_NEW_TOKEN_RATIO", read=real),
        Flag(
            knob="min_new_token_ratio_factor", env="SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR", read=real
        ),
        Flag(
            knob="new_token_ratio_decay_steps", env="SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS",
            read=whole,
        ),
        Flag(knob="retract_decode_steps", env="SGLANG_RETRACT_DECODE_STEPS", read=whole),
        *refuse(
            _PARTITION, "--data-parallel-size --dp-size", "--pipeline-parallel-size --pp-size",
            unless=("1",),
        ),
        *refuse(
            _SPECULATION, "--speculative-algorithm",
            "--speculative-draft-model-path --speculative-draft-model", "--speculative-num-steps",
            "--speculative-eagle-topk", "--speculative-num-draft-tokens",
        ),
        *refuse("split prefill and decode are not modelled", "--disaggregation-mode",
                unless=("null",)),
        *refuse("a bounded queue is not modelled; remove it", "--max-queued-requests"),
        *refuse(_UNKNOWN, "--num-continuous-decode-steps", "--scheduler-recv-interval",
                unless=("1",)),
        *refuse(_UNKNOWN, "--prefill-decode-interval", "--prefill-max-requests",
                "--min-free-slots-delay", "--prefill-decode-interval-min-bs"),
        *refuse(_UNKNOWN, "--retraction-policy", unless=("length",)),
        *refuse("sliding windows are not modelled", "--hybrid-kvcache-ratio"),
        *refuse_switch(_UNKNOWN, "--enable-dp-attention", "--enable-hierarchical-cache",
                       "--enable-lmcache", "--disable-priority-preemption", "--enable-pdmux"),
        *refuse_switch("only text generation is modelled", "--is-embedding"),
        *refuse_switch("the number of adapters bounds a batch, which is not modelled",
                       "--enable-lora"),
    ),
    values="""
--tokenizer-path --tokenizer-mode --tokenizer-worker-num --load-format
--model-loader-extra-config --revision --model-impl --host --port --warmups --nccl-port
--quantization --quantization-param-path --modelopt-quant --swa-full-tokens-ratio
--radix-eviction-policy --device --tensor-parallel-size --tp-size --tp --pp-max-micro-batch-size
--stream-interval --random-seed --constrained-json-whitespace-pattern --watchdog-timeout
--dist-timeout --download-dir --base-gpu-id --gpu-id-step --log-level --log-level-http
--log-requests-level --crash-dump-folder --gc-warning-threshold-secs --decode-log-interval
--kv-events-config --otlp-traces-endpoint --export-metrics-to-file-dir --api-key
--served-model-name --weight-version --chat-template --completion-template --file-storage-path
--reasoning-parser --tool-call-parser --tool-server --sampling-defaults --load-balance-method
--load-watch-interval --dist-init-addr --nccl-init-addr --nnodes --node-rank
--json-model-override-args --preferred-sampling-params --attention-backend
--prefill-attention-backend --decode-attention-backend --sampling-backend --grammar-backend
--mm-attention-backend --expert-parallel-size --ep-size --ep --moe-a2a-backend
--moe-runner-backend --flashinfer-mxfp4-moe-precision --deepep-mode --ep-num-redundant-experts
--ep-dispatch-algorithm --init-expert-location --eplb-algorithm --eplb-rebalance-num-iterations
--deepep-config --moe-dense-tp-size --cpu-offload-gb --offload-group-size --offload-num-in-group
--offload-prefetch-step --offload-mode --cuda-graph-max-bs --tbo-token-distribution-threshold
--piecewise-cuda-graph-max-tokens --torch-compile-max-bs --torchao-config
--triton-attention-num-kv-splits --triton-attention-split-tile-size --rl-on-policy-target
--mm-max-concurrent-calls --mm-per-request-timeout --disaggregation-transfer-backend
--disaggregation-bootstrap-port --disaggregation-ib-device
""",
    switches="""
--skip-tokenizer-init --trust-remote-code --enable-multimodal --grpc-mode --skip-server-warmup
--enable-fp32-lm-head --abort-on-priority-when-disabled --disable-hybrid-swa-memory
--stream-output --constrained-json-disable-any-whitespace --sleep-on-idle --log-requests
--show-time-cost --enable-metrics --enable-metrics-for-all-schedulers --collect-tokens-histogram
--enable-request-time-stats-logging --enable-trace --export-metrics-to-file
--enable-cache-report --enable-flashinfer-allreduce-fusion --enable-eplb --enable-double-sparsity
--disable-cuda-graph --disable-cuda-graph-padding --enable-profile-cuda-graph
--enable-cudagraph-gc --enable-layerwise-nvtx-marker --enable-nccl-nvls --enable-symm-mem
--enable-tokenizer-batch-encode --disable-tokenizer-batch-decode --disable-outlines-disk-cache
--disable-custom-all-reduce --enable-mscclpp --enable-torch-symm-mem --enable-dp-lm-head
--enable-two-batch-overlap --enable-single-batch-overlap --enable-torch-compile
--enable-piecewise-cuda-graph --enable-nan-detection --enable-p2p-check
--triton-attention-reduce-in-fp32 --delete-ckpt-after-loading --enable-memory-saver
--enable-weights-cpu-backup --allow-auto-truncate --enable-custom-logit-processor
--flashinfer-mla-disable-ragged --disable-shared-experts-fusion --disable-chunked-prefix-cache
--disable-fast-image-processor --keep-mm-feature-on-device --enable-return-hidden-states
--enable-deterministic-inference --enable-dynamic-batch-tokenizer --weight-loader-disable-mmap
""",
    lists="""
--bucket-time-to-first-token --bucket-inter-token-latency --bucket-e2e-request-latency
--prompt-tokens-buckets --generation-tokens-buckets --cuda-graph-bs --numa-node
--debug-tensor-dump-layers --custom-weight-loader --tokenizer-metrics-allowed-custom-labels
--lora-paths --lora-target-modules
""",
    given=_given,
    blocks=_blocks,
    notes={
        "max_running_requests": "chosen by the size of the pool there (2048 to 4096, and at most "
        "half the pool); 256 here",
        "chunked_prefill_size": "chosen by the device there (2048 below 35 GiB, 8192 from 60 GiB "
        "on, 16384 from 160 GiB on); 4096 here, as for an unknown device",
        _RADIX: "the radix cache is on by default there; what the policy does says its docstring",
    },
    env_prefix="SGLANG_",
    env_ignored="SGLANG_LOGGING_CONFIG_PATH SGLANG_USE_MODELSCOPE SGLANG_TORCH_PROFILER_DIR "
    "SGLANG_HOST_IP SGLANG_PORT",
)
