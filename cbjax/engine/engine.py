"""The engine: a model, a policy and a pool of KV blocks that serve requests under the wall clock.

Everything that decides is in `cbjax.core` and the policy; everything that computes is compiled
before the first request. What is left here is what a user touches: prompts in, text out.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from cbjax import policies
from cbjax.cache import cache_dir
from cbjax.core.commit import commit_jit
from cbjax.core.inbox import empty_inbox
from cbjax.core.ladder import Ladder
from cbjax.core.ladder import ladder as default_ladder
from cbjax.core.limits import Limits, blocks_for, system
from cbjax.core.policy import Policy
from cbjax.core.reasons import FinishReason
from cbjax.core.rows import NO_GROUP
from cbjax.core.schedule import schedule_jit
from cbjax.core.state import initial_state
from cbjax.core.time import from_seconds
from cbjax.engine.clock import Clock, WallClock
from cbjax.engine.compiles import (
    CompileCount,
    counting,
    keep_compiled_programs,
    start_count,
)
from cbjax.engine.delivery import HeldBack
from cbjax.engine.loop import Arrival, Loop, Step
from cbjax.engine.memory import blocks_in
from cbjax.engine.model_step import ModelExecutor, Progress, bytes_per_block, model_executor
from cbjax.engine.request import Completion, Output, Prompt, Request, encode_prompt
from cbjax.engine.sampling import Sampling, sample_seed
from cbjax.engine.serve import Turn, serve
from cbjax.engine.session import Session
from cbjax.engine.sizing import limits_for, model_length
from cbjax.metrics import Recorder
from cbjax.models import LoadedModel, dense_logits, load_model
from cbjax.workload import Workload, tokenise_workload


class Engine:
    """Serves requests with one model and one policy.

    Use it from one thread. `generate`, `stream` and `serve` drive it to the end; `submit`, `step`
    and `abort` are for a caller with a loop of its own.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        policy: Policy | None = None,
        num_blocks: int | None = None,
        swap_blocks: int = 0,
        block_size: int = 16,
        max_length: int | None = None,
        dtype: str = "float32",
        kv_memory_fraction: float = 0.3,
        iteration_tokens: int | None = None,
        ladder: Ladder | None = None,
        window: int = 64,
        share_samples: bool = True,
        attention: str | None = None,
        megastep: int = 1,
        debug: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Allocate the KV cache; programs are compiled at first use or by `compile`.

        Args:
            model: weights, shared between engines.
            policy: by default `policies.vllm(max_num_batched_tokens=256, max_num_seqs=32)`.
            num_blocks: KV blocks; by default what `kv_memory_fraction` of the free memory holds, at
                most what full seats of longest sequences would use.
            swap_blocks: KV blocks on the host for what a policy swaps out; used by those that swap.
            block_size: token positions per KV block.
            max_length: most tokens of a sequence; by default the model's, where the pool holds it.
            dtype: of the KV cache: "float32", "bfloat16", "int8" or "float8_e4m3fn"; those of one
                byte have a scale per token and head.
            kv_memory_fraction: share of the free memory, where `num_blocks` is not given.
            iteration_tokens: most tokens of an iteration, padding included; by default the policy's
                budget, or `max_length`.
            ladder: compiled shapes; its last rung must hold the greatest schedulable batch.
            window: waiting requests that the policy sees.
            share_samples: samples of one prompt share its KV; decisions and tokens are those
                without.
            attention: name of a back end of `pallas_kernels`; by default the one for this platform.
                One that was written for another platform is interpreted (slow).
            megastep: most iterations of one dispatch, rescheduled on the device in between. Tokens
                reach the host when a dispatch ends, so 1 streams best; more saves host time.
            debug: check the invariants after every verb (slow); no megasteps.
            progress: `(label, done, total)` while compiling.

        Raises:
            ValueError: a number is impossible or does not fit the others.
        """
        self.model = model
        self.policy = policy or policies.get("vllm")(max_num_batched_tokens=256, max_num_seqs=32)
        self.max_length = model_length(model.config.max_length, max_length)
        if block_size < 1:
            raise ValueError(f"block_size = {block_size}: give a whole number of at least 1")
        if megastep < 1:
            raise ValueError(f"megastep = {megastep}: give a whole number of at least 1")
        seats = int(self.policy.knobs[self.policy.seats])
        self.num_blocks = num_blocks or blocks_in(
            kv_memory_fraction, bytes_per_block(model.config, block_size, dtype),
            seats * blocks_for(self.max_length, block_size),
        )
        self.block_size = block_size
        self.limits: Limits = limits_for(
            self.policy, block_size=block_size, num_blocks=self.num_blocks,
            max_length=self.max_length, iteration_tokens=iteration_tokens, window=window,
            context=self.max_length, shares_samples=share_samples,
        )
        self.ladder = ladder or default_ladder(self.limits.tokens, self.limits.seats)
        self.ladder.choose(self.limits.tokens, self.limits.seats)
        self.system = system(
            self.limits, block_size=block_size, num_blocks=self.num_blocks,
            max_length=self.max_length, swap_blocks=swap_blocks,
        )
        self.executor: ModelExecutor = model_executor(
            model, rows=self.limits.rows, num_blocks=self.num_blocks, block_size=block_size,
            dtype=dtype, attention=attention, swaps=swap_blocks > 0, megastep=megastep,
        )
        self.clock: Clock = WallClock()
        self.scheduler = Loop(
            self.policy, self.limits, self.system, self.ladder, self.executor, self.clock, debug,
            self.executor if megastep > 1 else None,
        )
        self._progress = progress
        self.requests: dict[int, Request] = {}
        self._next_id = 0
        self._held = HeldBack()
        self.compiled: CompileCount | None = None
        self._since_start = CompileCount()

    @classmethod
    def from_pretrained(
        cls, source: str, *, dtype: str = "float32", kv_dtype: str | None = None, **options
    ) -> "Engine":
        """Load a model and build an engine for it.

        Args:
            source: "smollm2", "tiny", a folder, a .gguf file or "hf:<repository>".
            dtype: of the weights, "float32" or "bfloat16".
            kv_dtype: of the KV cache, as `dtype` of `Engine`; None: as the weights.
            options: as for `Engine`.
        """
        return cls(load_model(source, dtype), dtype=kv_dtype or dtype, **options)

    def compile(self, progress: Progress | None = None) -> CompileCount:
        """Compile every program and run each once; later compilations are counted as faults.

        Returns:
            Programs, seconds, and how many came from the cache of earlier runs.
        """
        if self.compiled is None:
            keep_compiled_programs(cache_dir() / "programs")
            with counting() as count:
                inbox = empty_inbox(self.limits)
                state = initial_state(self.policy, self.limits, self.system)
                state, plan = schedule_jit(self.policy, state, inbox, self.limits)
                state = self.executor.warm_up(
                    self.policy, state, plan, self.limits, self.ladder, progress or self._progress
                )
                nothing = np.zeros(self.limits.rows, np.int32), np.zeros(self.limits.rows, bool)
                jax.block_until_ready(commit_jit(state, plan, *nothing, from_seconds(0.0)))
            self.compiled = count
            self._since_start = start_count()
        return self.compiled

    @property
    def compilations_since_start(self) -> int:
        """Programs compiled after `compile`: 0, or a latency was spoilt."""
        return self._since_start.programs

    @property
    def alive(self) -> int:
        """Requests that have not ended."""
        return len(self.requests)

    def submit(
        self, prompt: Prompt, *, request_id: int | None = None, priority: int = 0,
        arrival_s: float | None = None, predicted_tokens: int | None = None, group: int = NO_GROUP,
        **sampling,
    ) -> int:
        """Queue a request.

        Args:
            prompt: text, chat messages, or token ids.
            request_id: from 0, unique among living requests; by default the next number.
            priority: direction is the policy's.
            arrival_s: when it was due, by the engine's clock; by default now.
            predicted_tokens: output tokens that a predictor expects, for policies that look at it.
            group: a number of at least 0 that the samples of one prompt have in common.
            sampling: fields of `Sampling`, such as `max_tokens` and `temperature`.

        Returns:
            The request's id.

        Raises:
            ValueError: a value is impossible; a request that can never fit is not an error here but
                ends with finish reason "refused".
        """
        settings = Sampling(**sampling)
        ids = encode_prompt(prompt, self.model.tokenizer)
        request_id = self._next_id if request_id is None else request_id
        self.scheduler.submit(
            Arrival(
                request_id, len(ids), settings.max_tokens or 0, ids,
                self.clock.now() if arrival_s is None else arrival_s, priority,
                predicted_tokens, group=group,
            )
        )
        self._next_id = max(self._next_id, request_id + 1)
        self.executor.samplings[request_id] = settings
        self.requests[request_id] = Request(request_id, ids, settings)
        return request_id

    def abort(self, request_id: int) -> Output | None:
        """End a request now; nothing is emitted for it afterwards.

        Returns:
            Its last output, or None if it has ended already or never was.
        """
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        self._forget(request_id)
        return request.end(FinishReason.ABORT.word)

    def step(self) -> list[Output]:
        """Run one iteration; returns what reaches the clients now."""
        return self.turn()[1]

    def generate(
        self, prompts: Sequence[Prompt], *, n: int = 1, **sampling
    ) -> list[Completion]:
        """Answer all prompts; returns completions in the order of the prompts.

        Args:
            prompts: text, chat messages or token ids each.
            n: completions of each prompt, which stand side by side. They share the prompt's KV, and
                each draws with a seed of its own, `sample_seed(seed, sample)`.
            sampling: fields of `Sampling`; they hold for every prompt.
        """
        if n < 1:
            raise ValueError(f"n = {n}: give a whole number of at least 1")
        if isinstance(prompts, str):
            raise ValueError("prompts: give a list of prompts, not a single text")
        self.compile()
        requests: list[Request] = []
        try:
            for prompt in prompts:
                requests += self._submit_samples(prompt, n, Sampling(**sampling))
        except ValueError:
            # All or none: what was queued before the bad prompt must not linger.
            for request in requests:
                self.abort(request.request_id)
            raise
        for request in requests:
            while request.finish_reason is None:
                self.step()
        return [request.completion() for request in requests]

    def _submit_samples(self, prompt: Prompt, n: int, settings: Sampling) -> list[Request]:
        group = self._next_id if n > 1 else NO_GROUP
        seeds = [sample_seed(settings.seed, sample) for sample in range(n)]
        return [
            self.requests[self.submit(prompt, group=group, **(vars(settings) | dict(seed=seed)))]
            for seed in seeds
        ]

    def stream(self, prompt: Prompt, **sampling) -> Iterator[str]:
        """Answer one prompt piece by piece.

        Raises:
            ValueError: the request was refused.
        """
        self.compile()
        request_id = self.submit(prompt, **sampling)
        try:
            while request_id in self.requests:
                for output in self.step():
                    if output.request_id == request_id and output.error:
                        raise ValueError(output.error)
                    if output.request_id == request_id and output.text:
                        yield output.text
        finally:
            self.abort(request_id)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Scores of the next token after every position of one sequence, `[T, V]` float32.

        Computed without paging, from position 0: a reference to check the paged path by.
        """
        config = self.model.config
        return np.asarray(
            dense_logits(self.model.weights, config, np.asarray(token_ids, np.int32))
        )

    def serve(
        self, workload: Workload, recorder: Recorder, *, progress: Progress | None = None,
        clock: Callable[[], Clock] = WallClock, **sampling,
    ) -> list[Completion]:
        """Serve a workload in real time; returns completions in the order of its requests.

        Args:
            workload: requests with arrival times, or a concurrency.
            recorder: receives every event; its clock starts here.
            progress: `(label, done, total)`.
            clock: makes the clock; `ProcessClock` where others use the machine too.
            sampling: fields of `Sampling` for all requests, such as `temperature`; seed,
                `max_tokens` and `ignore_eos` are each request's own.

        Raises:
            ValueError: the engine is busy.
        """
        if self.alive:
            raise ValueError(f"{self.alive} requests are alive: serve needs an idle engine")
        self.compile(progress)
        tokenizer = self.model.tokenizer
        # Before the clock starts: encoding is the client's work, not the server's.
        workload = tokenise_workload(
            workload, tokenizer, vocab_size=tokenizer.vocab_size, excluded_ids=tokenizer.eos_ids
        )
        self.clock = self.scheduler.clock = clock()
        session = Session(self, sampling)
        serve(session, workload, recorder, progress)
        return session.completions(workload)

    def _forget(self, request_id: int) -> None:
        self.scheduler.abort(request_id)
        self.executor.samplings.pop(request_id, None)

    def turn(self) -> tuple[Turn, list[Output]]:
        """Run one iteration; like `step`, with the scheduler's side of it."""
        step = self.scheduler.step()
        outputs = [
            self.requests.pop(request_id).end("refused", refusal.sentence)
            for request_id, refusal in step.refused
            if request_id in self.requests
        ]
        fresh, stopped = self._take_tokens(step)
        if self.policy.traits.deliver_at == "token":
            self._drop_ended(fresh)
            return Turn(step, ended=tuple((one, "stop", None) for one in stopped)), outputs + fresh
        for output in fresh:
            self.requests[output.request_id].keep(output)
        self._held.finished += [(request_id, "stop") for request_id in stopped]
        delivered, finished = self._held.take(step)
        delivered = [one for one in delivered if one[0] in self.requests]
        finished = [one for one in finished if one[0] in self.requests]
        fresh = [output for one, _ in delivered for output in self.requests[one].flush()]
        self._drop_ended(fresh)
        return Turn(step, delivered, finished), outputs + fresh

    def _take_tokens(self, step: Step) -> tuple[list[Output], list[int]]:
        """Append the step's tokens; also the requests that a stop string ended."""
        outputs: list[Output] = []
        stopped: list[int] = []
        emitted = step.emitted
        if emitted is None:
            return outputs, stopped
        for row in np.flatnonzero(emitted.emitted):
            request = self.requests.get(int(emitted.requests[row]))
            if request is None:
                continue
            reason = FinishReason(int(emitted.finished[row]))
            word = None if reason is FinishReason.NONE else reason.word
            output = request.take(int(emitted.tokens[row]), word, self.model.tokenizer)
            if output.finish_reason and word is None:
                stopped.append(request.request_id)
                self._forget(request.request_id)
            outputs.append(output)
        return outputs, stopped

    def _drop_ended(self, outputs: list[Output]) -> None:
        for output in outputs:
            if output.finish_reason:
                del self.requests[output.request_id]
