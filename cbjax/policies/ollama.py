"""Ollama: one llama.cpp server per model, with Ollama's own numbers.

Every slot owns a full context of `max_length` tokens, its `num_ctx`, and requests wait in one line
in front of the slots. The bound of `OLLAMA_MAX_QUEUE` is for requests whose model is still to be
loaded; here the model is there, so it decides nothing and is left out.
"""

from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.view import View
from cbjax.policies.llama_cpp import START, decide, llama_cpp, refuse_context_shift


def ollama(
    num_parallel: int = 1,
    num_batch: int = 512,
    cache_prompt: bool = False,
    context_shift: bool = False,
) -> Policy:
    """Ollama with its own knobs, names and defaults.

    Args:
        num_parallel: requests of a model at a time; the pool must hold as many full contexts.
        num_batch: tokens of an iteration.
        cache_prompt: an idle slot keeps its KV for a prompt that begins alike. The original asks
            its server for it; here it needs token ids, so it is a choice.
        context_shift: refused, although the original shifts; a request ends at `max_length`.

    Raises:
        ValueError: a knob is out of range, or context shift is wanted.

    Source: ollama of 2026-08, `llm/`, `server/sched.go`, `envconfig/config.go`.
    """
    require_positive(num_parallel=num_parallel, num_batch=num_batch)
    refuse_context_shift(context_shift)
    return Policy(
        knobs=dict(num_parallel=num_parallel, num_batch=num_batch), name="ollama",
        init=_INIT[cache_prompt], decide=_decide, seats="num_parallel", budget="num_batch",
        traits=Traits(shares=cache_prompt, register_at="schedule"),
    )


def _server(knobs: dict) -> dict:
    """The knobs of the server that Ollama starts."""
    return llama_cpp(kv_unified=False).knobs | dict(
        n_parallel=knobs["num_parallel"], n_batch=knobs["num_batch"]
    )


def _init(knobs: dict, limits: Limits, system: System):
    return START[False](_server(knobs), limits, system)


def _init_remembering(knobs: dict, limits: Limits, system: System):
    return START[True](_server(knobs), limits, system)


_INIT = {False: _init, True: _init_remembering}


def _decide(knobs: dict, slots, view: View):
    return decide(_server(knobs), slots, view)
