"""The catalogue of commands: only the one that runs is imported, and help reads the sources of the others."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from shuffle_ledger.cli.usage import NoSuchCommand

_FOLDER = "shuffle_ledger.cli.commands"
# Modules and functions by path, in the order people meet them.
COMMANDS: Mapping[str, str] = {
    "amplify": "amplify:amplify",
    "compose": "compose:compose",
    "calibrate": "calibrate:calibrate_",
    "init": "init:init",
    "cohort open": "cohort:open_",
    "cohort plan": "cohort:plan_",
    "cohort budget": "cohort:budget_",
    "cohort close": "cohort:close",
    "cohort quota": "quota:quota_",
    "cohort list": "cohort:list_",
    "cohort show": "cohort:show",
    "round quote": "round:quote_",
    "round register": "round:register_",
    "round settle": "round:settle_",
    "round void": "round:void_",
    "round correct": "round:correct_",
    "round list": "round_list:list_",
    "round show": "round:show_",
    "round retry": "round:retry_",
    "round import": "round_import:import_",
    "incident record": "incident:record_",
    "budget": "budget:budget",
    "forecast": "forecast:forecast",
    "permit issue": "permit:issue_",
    "permit keys": "permit:keys_",
    "permit revoked": "permit:revoked_",
    "permit keygen": "permit:keygen",
    "permit verify": "permit:verify_",
    "gate": "gate:gate",
    "audit verify": "audit:verify_",
    "audit heads": "audit:heads_",
    "audit keygen": "audit:keygen",
    "audit checkpoint": "audit:checkpoint",
    "audit statement": "audit_statement:statement",
    "audit recover": "audit_recover:recover",
    "audit reconcile": "audit:reconcile_",
    "token create": "token:create_",
    "token list": "token:list_",
    "token rotate": "token:rotate_",
    "token revoke": "token:revoke_",
    "webhook add": "webhook:add",
    "webhook list": "webhook:list_",
    "webhook remove": "webhook:remove",
    "webhook resend": "webhook:resend",
    "webhook deliver": "webhook:deliver_",
    "serve": "serve:serve",
    "worker": "worker:worker",
    "scheduler": "worker:scheduler",
    "health": "health:health",
    "demo": "demo:demo",
}
GROUPS: Mapping[str, str] = {
    "cohort": "Open, list and show cohorts.",
    "round": "Quote, register, list, settle, void, correct and import rounds.",
    "incident": "Record releases that nothing admitted.",
    "permit": "Sign permits of admitted rounds, and compare receipts of releases.",
    "audit": "Verify the ledger, and sign its heads to verify against later.",
    "token": "Create, list and revoke the tokens of the HTTP API.",
    "webhook": "Tell other services of refusals and exhausted budgets.",
}


@functools.cache
def _docstrings(module: str) -> Mapping[str, str]:
    """Returns what the functions of a module of commands say of themselves."""
    source = Path(__file__).with_name("commands") / f"{module}.py"
    functions = (
        each for each in ast.parse(source.read_text("utf-8")).body if isinstance(each, ast.FunctionDef)
    )
    return {each.name: ast.get_docstring(each) or "" for each in functions}


class CatalogueGroup(click.Group):
    """A group of commands of the catalogue: help and completion read the catalogue, and import no command."""

    path = ""  # of the group in the catalogue, with a space behind it; the program's own is empty

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the group's commands in the catalogue's order."""
        inner = (path.removeprefix(self.path) for path in COMMANDS if path.startswith(self.path))
        return list(dict.fromkeys(path.partition(" ")[0] for path in inner))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command, imported now; None if there is no such command."""
        path = self.path + cmd_name
        if path in GROUPS:
            group = CatalogueGroup(cmd_name, help=GROUPS[path])
            group.path = f"{path} "
            return group
        if path not in COMMANDS or " " in cmd_name:
            return None
        module, _, name = COMMANDS[path].partition(":")
        command: click.Command = getattr(importlib.import_module(f"{_FOLDER}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that the first word names; raises NoSuchCommand with the one that was meant."""
        name = args[0]
        if self.get_command(ctx, name) is not None or ctx.resilient_parsing or name.startswith("-"):
            return super().resolve_command(ctx, args)
        inner = [path for path in COMMANDS if path.endswith(f" {name}") and path.startswith(self.path)]
        raise NoSuchCommand(name, self.list_commands(ctx), in_groups=inner, ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their short helps."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))  # columns, as Click leaves them
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._help(name, limit)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands and options that begin with `incomplete`."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._help(name)) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def _help(self, name: str, limit: int = 1000) -> str:
        """Returns the first sentence of a command's help, in at most `limit` characters."""
        module, _, function = COMMANDS.get(self.path + name, "").partition(":")
        text = _docstrings(module)[function] if module else GROUPS[self.path + name]
        return click.Command(name, help=text).get_short_help_str(limit)
