"""Budgets in groups of options: `--life --epsilon 3 --delta 1e-8 --per year --epsilon 1 --delta 1e-9`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.ledger.values import ROLLING_EXPECTED, UNITS, UNITS_EXPECTED, rolling_of

OF_BUDGETS = {"--epsilon": "epsilon", "--delta": "delta", "--local-budget": "local_budget"}
_BEGINS = ("--life", "--per", "--rolling")


@dataclass
class _Group:
    """The options of one budget, in the order in which they stand."""

    name: str  # as it is written: --life, --per year
    which: str  # the window as a text begins with it; empty: the life
    values: dict[str, str] = field(default_factory=dict)

    def add(self, option: str, value: str) -> None:
        if option in self.values:
            raise click.UsageError(
                f"{option} stands twice for {self.name}: begin each budget with --life, --per or --rolling"
            )
        self.values[option] = value

    def arguments(self) -> Iterator[str]:
        """Yields the same as options that stand in any order."""
        missing = [name for name in ("--epsilon", "--delta") if name not in self.values]
        if missing and (self.which or self.values or self.name == "--life"):
            raise click.UsageError(f"{missing[0]} is missing behind {self.name}")
        if not self.which:
            yield from (f"{option}={value}" for option, value in self.values.items())
            return
        stated = [f"{OF_BUDGETS[option]}={value}" for option, value in self.values.items()]
        yield f"--window={','.join([self.which, *stated])}"


class GroupedBudgets(click.Command):
    """A command whose options of budgets belong to the last of --life, --per and --rolling before them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads groups as windows, and then all as Click does."""
        return super().parse_args(ctx, list(self._ungrouped(args)))

    def _ungrouped(self, args: list[str]) -> Iterator[str]:
        takes_value = {
            name
            for each in self.params
            if isinstance(each, click.Option) and not each.is_flag
            for name in each.opts
        }
        groups, left = [_Group(name="the life, the first budget", which="")], iter(args)
        for word in left:
            name, sign, value = word.partition("=")
            if word == "--":
                yield word
                yield from left
            elif name not in takes_value and word != "--life":
                yield word
            elif word == "--life":
                if any(not each.which and each.values for each in groups):
                    raise click.UsageError("--life stands twice: a cohort has one life")
                groups.append(_Group(name="--life", which=""))
            else:
                given = value if sign else next(left, None)
                if given is None:
                    yield word  # Click says what is missing
                elif name in _BEGINS:
                    groups.append(_Group(name=f"{name} {given}", which=_window(name, given)))
                elif name in OF_BUDGETS:
                    groups[-1].add(name, given)
                else:
                    yield f"{name}={given}"
        yield from (argument for group in groups for argument in group.arguments())


def _window(option: str, value: str) -> str:
    if option == "--per":
        if value not in UNITS:
            raise BadValue("per", value, UNITS_EXPECTED)
        return f"calendar={value}"
    found = rolling_of(value)
    if found is None:
        raise BadValue("rolling", value, ROLLING_EXPECTED)
    length, bucket = found
    return f"rolling={length},bucket={bucket}"
