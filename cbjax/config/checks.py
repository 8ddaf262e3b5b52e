"""Checks that the library makes itself, asked at the edge: before a model is loaded or compiled."""

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from cbjax.config.errors import ConfigError, require_one_of
from cbjax.config.paths import module_names
from cbjax.config.policy import build_policy, complete_policy, knob_for
from cbjax.config.schema import RootConfig, RunConfig, TraceConfig
from cbjax.metrics import Slo
from cbjax.workload import Arrivals, Lengths, formats


def run_config(root: RootConfig, given: Collection[str] = ()) -> RunConfig:
    """The settings of one run, with every knob of its policy spelled out.

    Args:
        root: as composed.
        given: keys that the run's own overrides set; a knob among them counts more than `seats` or
            `budget` of the experiment's file.

    Raises:
        ConfigError: a setting that the library would refuse.
    """
    require_one_of("backend.name", root.backend.name, module_names("cbjax.experiment.backends"))
    # The library's own checks name the fields of its records; here they stand under a longer name.
    checked: list[tuple[str, type, Any]] = [
        ("workload.arrivals", Arrivals, root.workload.arrivals), ("slo", Slo, root.slo)
    ]
    for name, kind in root.workload.classes.items():
        place = f"workload.classes.{name}"
        checked += [
            (f"{place}.prompt_lengths", Lengths, kind.prompt_lengths),
            (f"{place}.output_lengths", Lengths, kind.output_lengths),
        ]
    if root.workload.source == "sessions":
        checked += [
            (f"workload.sessions.{name}", Lengths, getattr(root.workload.sessions, name))
            for name in ("turns", "message_lengths", "answer_lengths")
        ]
    if root.workload.source == "trace":
        _check_format(root.workload.trace)
    for place, record, values in checked:
        try:
            record(**asdict(values))
        except ValueError as error:
            text = str(error).removeprefix(f"{record.__name__.lower()}.")
            raise ConfigError(f"{place}.{text}") from error
    settings = {name: getattr(root, name) for name in RunConfig.__dataclass_fields__}
    return _with_own_knobs(RunConfig(**settings), given)


def _check_format(trace: TraceConfig) -> None:
    try:
        formats.get(trace.format)
        formats.require_options(trace.format, trace.options)
    except ValueError as error:
        raise ConfigError(f"workload.trace.{error}") from error


def _with_own_knobs(config: RunConfig, given: Collection[str]) -> RunConfig:
    """Every knob of the policy spelled out, and the aliases `seats` and `budget` resolved."""
    policy = complete_policy(config.policy)
    iteration_tokens = config.iteration_tokens
    for alias in ("seats", "budget"):
        value, knob = getattr(config, alias), knob_for(policy["name"], alias)
        if value is not None and f"policy.{knob}" in given:
            if alias in given:
                raise ConfigError(
                    f"{alias} = {value}: policy.{knob} is given, too, and is the same setting of "
                    f"{policy['name']}; leave one out ({alias}=null, if the experiment sweeps it)"
                )
        elif value is not None and knob is not None:
            policy[knob] = value
        elif value is not None and alias == "budget":
            iteration_tokens = iteration_tokens or value
    build_policy(policy)
    return replace(
        config, policy=policy, seats=None, budget=None, iteration_tokens=iteration_tokens
    )
