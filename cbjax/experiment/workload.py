"""The workload of a config: the same config and seed give the same requests to every cell."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from cbjax.config import ConfigError, RunConfig
from cbjax.config.errors import nearest
from cbjax.config.schema import LengthsConfig, WorkloadConfig
from cbjax.experiment.trace import shaped_trace
from cbjax.workload import (
    Arrivals,
    Lengths,
    Prompt,
    RequestClass,
    Workload,
    WorkloadRequest,
    builtin_prompts,
    make_workload,
    read_prompts,
    with_predictions,
    workload_from_prompts,
    workload_from_trace,
)


def build_workload(config: RunConfig) -> Workload:
    """The requests of one run.

    Raises:
        ConfigError: a file, class or language that is not there.
    """
    wanted, seed = config.workload, config.seed
    workload = _as_sent(config)
    if wanted.prediction_error is not None:
        workload = with_predictions(workload, wanted.prediction_error, seed)
    if wanted.ignore_eos is None:
        return workload
    requests = [replace(one, ignore_eos=wanted.ignore_eos) for one in workload.requests]
    return replace(workload, requests=tuple(requests))


def _as_sent(config: RunConfig) -> Workload:
    wanted, seed = config.workload, config.seed
    arrivals = Arrivals(**asdict(wanted.arrivals))  # type: ignore[arg-type]
    try:
        match wanted.source:
            case "listed":
                return _listed(wanted, arrivals, seed)
            case "synthetic":
                classes = _synthetic(wanted)
                return make_workload(
                    classes, wanted.num_requests or 8 * len(classes), arrivals=arrivals, seed=seed
                )
            case "file":
                prompts = _bounded(read_prompts(wanted.path or "").prompts, wanted)
                return workload_from_prompts(
                    prompts, num_requests=wanted.num_requests, max_tokens=wanted.max_tokens,
                    arrivals=arrivals, seed=seed,
                )
            case "trace":
                trace = shaped_trace(config, arrivals)
                return workload_from_trace(trace, arrivals=arrivals, seed=seed)
            case "sessions":
                return workload_from_trace(shaped_trace(config, arrivals), seed=seed)
            case _:
                return _mixed(wanted, arrivals, seed)
    except FileNotFoundError as error:
        raise ConfigError(f"workload.{error}") from error
    except ValueError as error:
        raise ConfigError(f"workload: {error}") from error


def request_names(config: RunConfig) -> dict[int, str]:
    """Names of listed requests; others are known by their ids."""
    return dict(enumerate(_in_order(config.workload)))


def _in_order(wanted: WorkloadConfig) -> list[str]:
    return sorted(wanted.requests, key=lambda name: wanted.requests[name].arrival_s)


def _listed(wanted: WorkloadConfig, arrivals: Arrivals, seed: int) -> Workload:
    requests = [
        WorkloadRequest(
            request_id=index, class_name=name, priority=wanted.requests[name].priority,
            scheduled_arrival_s=wanted.requests[name].arrival_s, prompt=None,
            prompt_tokens=wanted.requests[name].prompt_tokens,
            max_tokens=wanted.requests[name].output_tokens, ignore_eos=True, seed=index,
        )
        for index, name in enumerate(_in_order(wanted))
    ]
    return Workload(tuple(requests), arrivals, seed)


def _synthetic(wanted: WorkloadConfig) -> list[RequestClass]:
    return [
        RequestClass(
            name, share=kind.share, prompt_lengths=_lengths(kind.prompt_lengths),
            output_lengths=_lengths(kind.output_lengths), priority=kind.priority,
        )
        for name, kind in wanted.classes.items()
    ]


def _lengths(wanted: LengthsConfig) -> Lengths:
    return Lengths(**asdict(wanted))  # type: ignore[arg-type]


def _mixed(wanted: WorkloadConfig, arrivals: Arrivals, seed: int) -> Workload:
    """Built-in prompts, as many of every class."""
    prompts = _bounded(builtin_prompts(language=wanted.language, chat=wanted.chat), wanted)
    names = list(dict.fromkeys(prompt.class_name for prompt in prompts))
    classes = [
        RequestClass(name, prompts=tuple(one for one in prompts if one.class_name == name))
        for name in names
    ]
    return make_workload(
        classes, wanted.num_requests or len(prompts), arrivals=arrivals, seed=seed
    )


def _bounded(prompts: Sequence[Prompt], wanted: WorkloadConfig) -> list[Prompt]:
    """The prompts with the config's bounds on their outputs, as chat messages where asked."""
    known = {prompt.class_name for prompt in prompts}
    for name in wanted.max_tokens_by_class:
        if name not in known:
            raise ConfigError(f"workload.max_tokens_by_class.{name}: {nearest(name, known)}")
    bounds = wanted.max_tokens_by_class
    bounded = [
        replace(one, max_tokens=bounds.get(one.class_name, one.max_tokens)) for one in prompts
    ]
    return [one.as_chat() for one in bounded] if wanted.chat else bounded
