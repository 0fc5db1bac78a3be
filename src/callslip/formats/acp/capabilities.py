"""What an agent offers for a session: modes, models, options, commands.

Older agents list modes and models by themselves, newer ones as options of that category. Both are read.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import as_dict, as_list
from callslip.model import events as ev
from callslip.model.events import Event

OFFERS = ("modes", "models", "configOptions")
KNOWN_FIELDS = {"sessionId", "availableCommands", *OFFERS}


def offered(result: dict[str, Any]) -> list[Event]:
    """What an answer that opens a session says about it."""
    told: list[Event] = []
    if any(result.get(name) is not None for name in OFFERS):
        told.append(_capabilities(result))
    commands = result.get("availableCommands")
    if isinstance(commands, list):
        told.append(ev.SessionCommands(commands=as_list(commands)))
    return told


def _capabilities(result: dict[str, Any]) -> Event:
    modes, models = as_dict(result.get("modes")), as_dict(result.get("models"))
    options = as_list(result.get("configOptions"))
    mode, model = _option(options, "mode"), _option(options, "model")
    return ev.SessionCapabilities(
        modes=as_list(modes.get("availableModes")) or _choices(mode, "id"),
        models=as_list(models.get("availableModels")) or _choices(model, "modelId"),
        current_mode=_word(modes.get("currentModeId")) or _word(mode.get("currentValue")),
        current_model=_word(models.get("currentModelId")) or _word(model.get("currentValue")),
        options=options,
    )


def reconfigured(options: Any) -> list[Event]:
    """The options as they stand after a change; the mode may be one of them."""
    if not isinstance(options, list):
        return []
    mode = _word(_option(as_list(options), "mode").get("currentValue"))
    told: list[Event] = [ev.SessionInfo(options=options)]
    return [*told, ev.SessionMode(mode=mode)] if mode else told


def _option(options: list[Any], category: str) -> dict[str, Any]:
    found = [as_dict(option) for option in options if as_dict(option).get("category") == category]
    return found[0] if found else {}


def _choices(option: dict[str, Any], key: str) -> list[Any]:
    """The values of an option, as modes and models are listed; those that stand in groups too."""
    given = [as_dict(choice) for choice in as_list(option.get("options"))]
    given = [
        choice for one in given for choice in ([one] if "value" in one else map(as_dict, as_list(one.get("options"))))
    ]
    return [
        {key: choice["value"], **{name: value for name, value in choice.items() if name != "value"}}
        for choice in given
        if "value" in choice
    ]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
