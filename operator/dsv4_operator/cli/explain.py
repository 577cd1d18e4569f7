"""`dsv4ctl explain`: a rule, why it exists and where that is known from."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import textwrap
from typing import Any, Final

from dsv4_operator.cli.errors import EXIT_FINE, UnreadableError
from dsv4_operator.cli.judge import schema_rules
from dsv4_operator.cli.output import print_json, print_line, print_table
from dsv4_operator.policy import RULES, Action

EMPTY: Final[dict[str, Any]] = {"rules": []}
_FIRST: Final = ("rule", "title", "action", "allowable", "source")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; an unknown rule is unreadable input."""
    known: dict[str, dict[str, Any]] = {}
    for entry in [*_policy(), *_schema(), *_import()]:
        known.setdefault(entry["rule"], entry)  # policy says more where the schema has the same rule
    if args.rule is None:
        chosen = list(known.values())
    elif args.rule in known:
        chosen = [known[args.rule]]
    else:
        close = difflib.get_close_matches(args.rule, list(known), n=1)
        hint = f"did you mean {close[0]}?" if close else "`explain` without a name lists all"
        raise UnreadableError(f"{args.rule}: no rule of this operator; {hint}")
    if args.output == "json":
        print_json({"rules": chosen})
    elif args.rule is None:
        rows = [(entry["action"], entry["rule"], entry["title"]) for entry in chosen]
        print_table(("ACTION", "RULE", "TITLE"), rows, [f"{action:<6} {rule}  {title}" for action, rule, title in rows])
    else:
        _show(chosen[0])
    return EXIT_FINE


def _policy() -> list[dict[str, Any]]:
    """Rules of policy, with whatever data a rule carries."""
    entries = []
    for rule in RULES:
        values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
        entry: dict[str, Any] = {
            "rule": values.pop("id"),
            "title": values.pop("title"),
            "action": Action(values.pop("action")).value,
            "allowable": bool(values.pop("allowable")) and rule.action is Action.REFUSE,
            "source": values.pop("source"),
        }
        entry |= {name: str(value) for name, value in values.items() if value and not callable(value)}
        entries.append(entry)
    return entries


def _schema() -> list[dict[str, Any]]:
    """Rules that the API server holds; they have no source but the reason they give."""
    return [
        {
            "rule": rule.name,
            "title": rule.message,
            "action": Action.REFUSE.value,
            "allowable": False,
            "source": "schema of the API, refused at apply",
        }
        for rule in schema_rules()
    ]


def _import() -> list[dict[str, Any]]:
    """What `dsv4ctl import` says about launches."""
    from dsv4_operator.cli.importer.launch import RULES as IMPORT_RULES  # noqa: PLC0415 - not needed for one rule

    return [
        {"rule": name, "title": title, "action": action.value, "allowable": False, "source": "dsv4ctl import"}
        for name, (action, title) in IMPORT_RULES.items()
    ]


def _show(entry: dict[str, Any]) -> None:
    print_line(f"{entry['rule']}: {entry['title']}")
    for line in textwrap.wrap(str(entry.get("explanation", "")), width=100):
        print_line(f"  {line}")
    allowed = {
        ("Refuse", True): "Refuse; spec.policy.allow with a reason makes it a warning",
        ("Refuse", False): "Refuse; cannot be allowed",
        ("Set", False): "Set: the operator renders a safe value",
        ("Warn", False): "Warn: allowed, and said",
    }
    print_line(f"  action   {allowed[(entry['action'], entry['allowable'])]}")
    for name, value in entry.items():
        if name not in (*_FIRST, "explanation"):
            print_line(f"  {name:<8} {value}")
    print_line(f"  source   {entry['source']}")
