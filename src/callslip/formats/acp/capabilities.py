"""Read what an agent offers for a session: modes, models, options, commands.

Older agents list modes and models by themselves, newer ones as options of that category. Both are read.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import as_dict, as_list, as_str
from callslip.model import events as ev
from callslip.model.events import Event

CAPABILITIES = ("modes", "models", "configOptions")
KNOWN_FIELDS = {"sessionId", "availableCommands", *CAPABILITIES}


def read_capabilities(result: dict[str, Any]) -> list[Event]:
    """Return the events of a response that opens a session."""
    events: list[Event] = []
    if any(result.get(name) is not None for name in CAPABILITIES):
        events.append(_capabilities_event(result))
    commands = result.get("availableCommands")
    if isinstance(commands, list):
        events.append(ev.SessionCommands(commands=as_list(commands)))
    return events


def _capabilities_event(result: dict[str, Any]) -> Event:
    modes, models = as_dict(result.get("modes")), as_dict(result.get("models"))
    options = as_list(result.get("configOptions"))
    mode, model = _find_option(options, "mode"), _find_option(options, "model")
    return ev.SessionCapabilities(
        modes=as_list(modes.get("availableModes")) or _choices(mode, "id"),
        models=as_list(models.get("availableModels")) or _choices(model, "modelId"),
        current_mode=as_str(modes.get("currentModeId")) or as_str(mode.get("currentValue")),
        current_model=as_str(models.get("currentModelId")) or as_str(model.get("currentValue")),
        options=options,
    )


def read_options(options: Any) -> list[Event]:
    """Return the events of a changed list of options; the mode may be one of them."""
    if not isinstance(options, list):
        return []
    mode = as_str(_find_option(as_list(options), "mode").get("currentValue"))
    events: list[Event] = [ev.SessionInfo(options=options)]
    return [*events, ev.SessionMode(mode=mode)] if mode else events


def _find_option(options: list[Any], category: str) -> dict[str, Any]:
    matches = [as_dict(option) for option in options if as_dict(option).get("category") == category]
    return matches[0] if matches else {}


def _choices(option: dict[str, Any], key: str) -> list[Any]:
    """Return the values of an option in the form of a mode or model, including values in groups."""
    values_and_groups = [as_dict(choice) for choice in as_list(option.get("options"))]
    choices = [
        choice
        for item in values_and_groups
        for choice in ([item] if "value" in item else map(as_dict, as_list(item.get("options"))))
    ]
    return [
        {key: choice["value"], **{name: value for name, value in choice.items() if name != "value"}}
        for choice in choices
        if "value" in choice
    ]
