"""The catalogue of commands: where each is, and its short help. Only the command that runs is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from shuffle_ledger.cli.usage import NoSuchCommand

_FOLDER = "shuffle_ledger.cli.commands"
# By path, in the order people meet them: "module:attribute" and the first sentence of its help. A group has
# no module: its commands are the paths that begin with its name.
COMMANDS: Mapping[str, tuple[str | None, str]] = {
    "amplify": ("amplify:amplify", "Bound the privacy loss of one shuffled round."),
    "compose": ("compose:compose", "Bound the privacy loss of all rounds in FILE together."),
    "calibrate": (
        "calibrate:calibrate_",
        "Find the largest epsilon0, or the least common noise, with which a cohort admits T rounds.",
    ),
    "init": ("init:init", "Make the ledger's tables, or bring them up to date."),
    "cohort": (None, "Open, list and show cohorts."),
    "cohort open": (
        "cohort:open_",
        "Open the cohort NAME with budgets: of its life, of periods, or of both.",
    ),
    "cohort plan": (
        "cohort:plan_",
        (
            "Say what the rounds in FILE cost together, whether a budget holds them, and what epsilon0"
            " would fit."
        ),
    ),
    "cohort budget": (
        "cohort:budget_",
        "Change the budget of the cohort NAME, by an entry that says who did it and why.",
    ),
    "cohort close": (
        "cohort:close",
        "Close the cohort NAME, which admits nothing any more; its record stays.",
    ),
    "cohort quota": (
        "quota:quota_",
        "List the quotas that teams have in the cohort NAME, or set that of --team.",
    ),
    "cohort list": (
        "cohort:list_",
        "List every cohort, with what is used and left of each promise, and when it renews.",
    ),
    "cohort show": ("cohort:show", "Show the cohort NAME."),
    "round": (None, "Quote, register, list, settle, void, correct and import rounds."),
    "round quote": (
        "round:quote_",
        "Say what would be decided about a round of COHORT, or of --audience.",
    ),
    "round register": ("round:register_", "Register a round of COHORT, or of --audience, and decide it."),
    "round settle": (
        "round:settle_",
        "Record what the round ID really collected; fewer reports than planned cost more.",
    ),
    "round void": (
        "round:void_",
        "Close the round ID as one of which nothing was or will be released, and give back what it reserved.",
    ),
    "round correct": (
        "round:correct_",
        "Record the true parameters of the released round ID, where they differ from those declared.",
    ),
    "round list": (
        "round_list:list_",
        "List the rounds of COHORT in the order of registration, with why each was refused.",
    ),
    "round show": ("round:show_", "Show the round ID and all that has happened to it."),
    "round retry": (
        "round:retry_",
        "Decide the round ID, which was left alone after too many failures; exits like `round register`.",
    ),
    "round import": ("round_import:import_", "Register and decide every round of FILE, in file order."),
    "incident": (None, "Record releases that nothing admitted."),
    "incident record": (
        "incident:record_",
        "Record that something of COHORT was released although nothing admitted it, and charge it.",
    ),
    "budget": (
        "budget:budget",
        "Show what each budget of COHORT may spend, has spent and has left, and when it renews.",
    ),
    "forecast": (
        "forecast:forecast",
        "Say how many more rounds of COHORT, or of --audience, fit, what limits them, and until when.",
    ),
    "permit": (None, "Sign permits of admitted rounds, and compare receipts of releases."),
    "permit issue": ("permit:issue_", "Sign the permit of the admitted round ID."),
    "permit keys": (
        "permit:keys_",
        "Print the public keys of permits, retired ones included, as a JWK set for gates.",
    ),
    "permit revoked": (
        "permit:revoked_",
        "Print the signed list of permits that count no more, which is good for an hour.",
    ),
    "permit keygen": (
        "permit:keygen",
        "Make a key that signs permits or receipts, in the new FILE; print its public half as a JWK set.",
    ),
    "permit verify": ("permit:verify_", "Compare receipts with the ledger: exits with 6 if they differ."),
    "gate": ("gate:gate", "Say whether a batch of N reports may be released, and use its permit up."),
    "audit": (None, "Verify the ledger, and sign its heads to verify against later."),
    "audit verify": (
        "audit:verify_",
        "Replay COHORT's chain, or all, and compute numbers again: exits with 6 if anything is wrong.",
    ),
    "audit heads": ("audit:heads_", "Print the head of every chain."),
    "audit keygen": (
        "audit:keygen",
        "Make a key that signs checkpoints, in the new FILE (only you may read it); print its public half.",
    ),
    "audit checkpoint": ("audit:checkpoint", "Sign the head of every chain."),
    "audit statement": (
        "audit_statement:statement",
        "State what was promised to COHORT's users, and whether it was kept: exits with 6 if unknown.",
    ),
    "audit recover": (
        "audit_recover:recover",
        (
            "Bring back what a restored database lost, from a BUNDLE: byte for byte, all that the checkpoint"
            " proves."
        ),
    ),
    "audit reconcile": (
        "audit:reconcile_",
        "Accept that the database was put back to an earlier state: what may have lost entries is frozen.",
    ),
    "token": (None, "Create, list and revoke the tokens of the HTTP API."),
    "token create": ("token:create_", "Create a token for NAME, the actor of what is done with it."),
    "token list": (
        "token:list_",
        "List all tokens, present and past, without their secrets, which are not stored.",
    ),
    "token rotate": (
        "token:rotate_",
        "Create a token like the token ID, or NAME's only valid one: same actor, role, cohorts and lifetime.",
    ),
    "token revoke": ("token:revoke_", "Revoke the token ID, from now on and for ever."),
    "webhook": (None, "Tell other services of refusals and exhausted budgets."),
    "webhook add": ("webhook:add", "Send the events of this ledger to URL, signed with a new secret."),
    "webhook list": (
        "webhook:list_",
        "List all webhooks with their last errors, without the secrets, which are not stored.",
    ),
    "webhook remove": ("webhook:remove", "Remove the webhook ID."),
    "webhook resend": (
        "webhook:resend",
        "Have the webhook ID, which is paused, go on with the message that failed, with the next delivery.",
    ),
    "webhook deliver": (
        "webhook:deliver_",
        "Send the messages that are due now: for a timer, where no scheduler runs.",
    ),
    "serve": ("serve:serve", "Serve the HTTP API and the pages until stopped."),
    "worker": ("worker:worker", "Decide queued rounds until stopped."),
    "scheduler": (
        "worker:scheduler",
        "Queue again what was lost, and verify the chains in turn, until stopped.",
    ),
    "health": (
        "health:health",
        "Show what waits, what is stuck and what verification found: exits with 0 if there is no alarm.",
    ),
    "demo": ("demo:demo", "Account a year of telemetry rounds for six cohorts, and draw it."),
}


class CatalogueGroup(click.Group):
    """A group of commands of the catalogue: help and completion read the catalogue, and import no command."""

    path = ""  # of the group in the catalogue, with a space behind it; the program's own is empty

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the group's commands in the catalogue's order."""
        return list(self._helps())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command, imported now; None if there is no such command."""
        if cmd_name not in self._helps():
            return None
        place, text = COMMANDS[self.path + cmd_name]
        if place is None:
            group = CatalogueGroup(cmd_name, help=text)
            group.path = f"{self.path}{cmd_name} "
            return group
        module, _, name = place.partition(":")
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
        raise NoSuchCommand(name, self._helps(), elsewhere=inner, ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their short helps."""
        limit = formatter.width - 6 - max(map(len, self._helps()))  # columns, as Click leaves them
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=text).get_short_help_str(limit))
                    for name, text in self._helps().items()
                ]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands and options that begin with `incomplete`."""
        names = [
            CompletionItem(name, help=text)
            for name, text in self._helps().items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def _helps(self) -> dict[str, str]:
        inner = {
            path.removeprefix(self.path): text
            for path, (_, text) in COMMANDS.items()
            if path.startswith(self.path)
        }
        return {name: text for name, text in inner.items() if " " not in name}
