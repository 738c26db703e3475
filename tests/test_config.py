"""Settings: one table, checked values, and where a value comes from."""

import dataclasses
from pathlib import Path

import pytest

from strata.config import OPTIONS, SETTINGS, EngineOptions, SamplingOptions
from strata.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


def test_names_are_unique_and_variables_few():
    flags = [flag for option in OPTIONS.values() for flag in (option.flag, *option.aliases)]
    variables = [option.env for option in OPTIONS.values() if option.env]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)
    assert all(option.help.endswith(".") for option in OPTIONS.values())


def test_defaults_are_valid_and_settings_frozen():
    for settings in (EngineOptions(), SamplingOptions()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, dataclasses.fields(settings)[0].name, 1)


def test_a_flag_counts_before_a_variable_and_that_before_the_default():
    variables = {"STRATA_THREADS": "3", "STRATA_CACHE_DTYPE": "f32"}
    found = EngineOptions.resolve({"threads": "2", "kv": None, "unrelated": "x"}, variables)
    assert (found.threads, found.kv, found.backend) == (2, "f32", "auto")


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_every_setting_refuses_what_is_outside(option):
    owners = (SamplingOptions, *SETTINGS)
    owner = next(c for c in owners if option.name in {o.name for o in c.options()})
    if option.type is str and not option.choices:
        return  # any text will do
    outside = ["nonsense"] if option.choices else [option.low - 1, option.high + max(1, abs(option.high))]
    outside += [float("nan")] if option.type is float else []
    outside += [option.low] if option.open_low else []
    outside += [option.high] if option.open_high else []
    for value in outside:
        with pytest.raises(UsageError, match=option.flag):
            owner(**{option.name: value})
    inside = (
        [True]
        if option.type is bool
        else option.choices or ([option.low] if not option.open_low else [option.high])
    )
    for value in inside:
        assert getattr(owner(**{option.name: value}), option.name) == value


def row(o):
    flags = "`, `".join((o.flag, *o.aliases))
    limits = f" ({o.limits})" if o.limits else ""
    variable = f"`{o.env}`" if o.env else "none"
    return f"| `{flags}` | `{o.toml}` | {variable} | {o.default_text} | {o.help}{limits} |"


def test_the_page_on_commands_lists_every_setting():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = [row(o) for settings in SETTINGS for o in settings.options()]
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("cpu_share", "2"), ("pcie_share", "-0.5"), ("cpu_share", "half"), ("expert_cache", "-1")],
)
def test_text_that_stands_for_a_number_is_checked_whatever_the_model(name, text):
    with pytest.raises(UsageError, match=f"is {text}; it must be auto or a"):
        EngineOptions.resolve({name: text}, {})


@pytest.mark.parametrize("share", [0, 1, 0.25, 1.0, 1e-5])
def test_a_share_in_a_file_may_be_a_number(share):
    assert float(EngineOptions.resolve({}, {}, {"memory.cpu_share": share}).cpu_share) == share


def test_on_and_off_in_a_file_may_be_a_truth():
    assert EngineOptions.resolve({}, {}, {"memory.lookahead": False}).lookahead == "off"
    with pytest.raises(
        UsageError, match=r"cpu_share is True; it must be text \(auto or a number from 0 to 1"
    ):
        EngineOptions.resolve({}, {}, {"memory.cpu_share": True})
