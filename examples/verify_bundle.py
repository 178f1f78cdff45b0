"""Checks an evidence bundle of shuffle-ledger with Python's standard library alone: `verify_bundle.py FILE`.

It shares no code with shuffle-ledger, and was written from docs/bundle-format.md. It checks every digest,
each link of every chain and its head. It decides every entry again: from limits and costs follow each charge,
total, outcome and status. It checks the stated spending, but for the bounds themselves, and that no
round has more users than its cohorts. It compares what chains say of a round of several budgets. It prints
what it cannot check, with the line of openssl that checks the signature. Costs and limits themselves take
`shuffle-ledger audit verify FILE`. The exit code is 0 when all that it checks holds, else 1.
"""

import hashlib
import json
import math
import re
import sys
import zipfile
from fractions import Fraction

# What entries say of a round of several budgets: the same in the chains of all of them.
SHARED = {
    "admitted": ("request",),
    "refused": ("request", "refused_by"),
    "settled": ("reports",),
    "voided": ("reason", "attestation"),
    "corrected": ("round", "reason"),
    "incident": ("request", "registered_by", "round", "released", "reason"),
}
# SHA-256 of FORMAT.md, whose bytes are the same in every bundle.
NOTE = "9b7b1bdac20358d58decd37d9f3d426ea2306d7c9b781f6de2637a108deb7dee"
LINE = re.compile(rb"([1-9][0-9]*) ([0-9a-f]{64}) ([0-9a-f]{64}) (.+)")
TEXTS = ("certain", "slack", "local", "sliding", "late", "returned")  # numbers of units, beside the lists
PROMISING = ("life", "period")  # kinds of budgets; quotas limit, and a record without a budget only lists
OF_CLOSED = ("cohort_frozen", "cohort_overspent", "cohort_closed")  # no cost is stated, nor of these others:
UNSEEN = (*OF_CLOSED, "collection_over", "refused_elsewhere")
INFINITE = {"$float": "inf"}  # JSON has no infinity
LARGEST = 2**320 - 1  # the largest limit, in units
CAUSES = ("discretization", "truncation", "round_off")  # of the width of what is spent
BY_SLOTS = ("no_free_slot",)  # nor then, where there are no filters
HOLDS = """Digests, chains and heads hold, and every charge, total, outcome and status follows.
Signature, costs, fits of slots, limits and bounds on epsilon were not checked."""


def digest_of(*parts):
    """Returns SHA-256 over parts, each preceded by its length."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))


def canonical(value):
    """Returns the one text of a JSON value."""
    spelling = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return json.dumps(value, sort_keys=True, **spelling).encode()


def real(value):
    """Returns a floating-point number."""
    require(value == INFINITE or type(value) is float, f"{value!r} is no floating-point number")
    return math.inf if value == INFINITE else value


def units(value, unit, rounded):
    """Returns a floating-point number, as it is written, in units."""
    number = real(value)
    return LARGEST if number == math.inf else rounded(Fraction(repr(number)) * unit)


def require(holds, what):
    """Ends the decision about an entry for which something does not hold."""
    if not holds:
        raise ValueError(what)


def read(stated):
    """Returns what is stated with whole numbers in the place of texts of digits."""
    if isinstance(stated, dict):
        return {name: read(value) for name, value in stated.items()}
    if isinstance(stated, list):
        return [read(each) for each in stated]
    require(not isinstance(stated, str) or re.fullmatch("0|[1-9][0-9]*", stated), f"{stated!r} is no number")
    return int(stated) if isinstance(stated, str) else stated


class Budget:
    """The budget that one chain is about, after each of its entries.

    `amounts` of a charge and of a total are one list: variances, divergences, certain loss, slack, local.
    """

    def __init__(self, opening, opened_at, before):
        """Takes an opening, when its cohort was opened, if that is known, and the budget that it replaces."""
        self.details, self.epsilon, self.opened_at = opening["details"], opening["epsilon_budget"], opened_at
        self.rules, self.limits = self.details["rules"], read(self.details["limits"])
        self.first_limits, filters, slots = self.limits, self.rules.get("filters"), self.rules.get("slots")
        reserves = filters["gaussian"]["reserves"] if filters else []
        self.reserves = [math.ceil(Fraction(real(each)) * 10**30) for each in reserves]
        self.bounds = len(reserves) + (len(filters["renyi"]) if filters else 0)  # variances and divergences
        self.counts = [each["count"] for each in slots["kinds"]] if slots else []
        self.slots_epsilon = units(slots["epsilon_upper"], 10**30, math.ceil) if slots else None
        self.per_user, self.promises = self.rules.get("rounds_per_user"), self.rules["kind"] in PROMISING
        counters = dict.fromkeys(("sliding", "late", "returned", "unplaced", "rounds", "incidents"), 0)
        self.total = {"amounts": [0] * (self.bounds + 3), "claims": [0] * len(self.counts), **counters}
        self.nothing = {"amounts": self.total["amounts"], "sliding": 0, "late": 0, "reserve": 0, "units": 0}
        self.nothing |= {"kind": None, "claimed": None}
        self.nothing |= dict.fromkeys(("is_corrected", "is_incident", "is_counted"), False)
        self.charges, self.open, self.is_overspent, self.is_frozen = {}, set(), False, False
        parts = [name for name in ("quota", "period") if name in self.details]
        self.begins, self.is_closed = opening["recorded_at"], False
        require(not before or (not parts and before.begins < self.begins), "it opens a part, or not later")
        require(not parts or not opened_at or opened_at <= self.begins, "it is of a replaced opening")
        kind = (parts or ["record" if self.epsilon == INFINITE else "life"])[0]
        same = (kind, self.details.get("rounds_per_user"), opening["delta_budget"])
        require(same == (self.rules["kind"], self.per_user, self.rules["delta"]), "its rules are of another")
        policy = "plan" if self.counts and not filters else "adaptive"
        require(self.details["policy"] == policy, "its policy has other rules")
        local = self.details.get("local_budget")
        local = None if local is None else units(local, 10**30, math.floor)
        require(self.limits.get("local") == local, "its limit of local epsilon is not its local budget")
        self.digest = digest_of(b"shuffle-ledger/policy-rules/1", canonical(self.rules)).hexdigest()

    def spelled(self, parts):
        """Returns a charge or a total as it is stated: without zeros, but for kinds, which count from 0."""
        amounts, place = parts["amounts"], len(self.reserves)
        parts = {**parts, **dict(zip(TEXTS[:3], amounts[self.bounds :], strict=True))}
        del parts["amounts"]
        found = {name: str(each) if name in TEXTS else each for name, each in parts.items() if each}
        found |= {name: parts[name] for name in ("kind", "claimed") if parts.get(name) is not None}
        lists = {"gaussian": amounts[:place], "divergences": amounts[place : self.bounds]}
        return found | {name: list(map(str, each)) for name, each in lists.items() if each}

    def level(self, name):
        """Returns the numbers of a level: epsilon, the variance, the divergences."""
        level = self.limits[name]
        return [level["epsilon"], level.get("gaussian", 0), *level.get("divergences", [])]

    def holds(self, total, name):
        """Says whether slots or filters hold at a level; of no budget, nothing has to."""
        if self.rules["kind"] == "record":
            return True
        is_free = all(claimed <= count for claimed, count in zip(total["claims"], self.counts, strict=True))
        if self.counts and is_free and not total["unplaced"] and self.slots_epsilon <= self.level(name)[0]:
            return True
        shares = (self.limits.get("certain", 0), self.limits.get("slack", 0))
        used = [self.times(total) * each for each in total["amounts"][self.bounds : self.bounds + 2]]
        return all(map(int.__le__, used, shares)) and self.a_filter_holds(total, name)

    def times(self, total):
        """Returns how many times a total counts."""
        return min(total["rounds"], self.per_user + total["incidents"]) if self.per_user else 1

    def a_filter_holds(self, total, name):
        """Says whether one of the filters holds at a level, whatever the accounts have."""
        (_, variance, *moments), limit, times = (
            self.level(name),
            self.limits.get("sliding"),
            self.times(total),
        )
        most = [variance - reserve for reserve in self.reserves] + moments
        if any(
            times * held <= each for held, each in zip(total["amounts"][: self.bounds], most, strict=True)
        ):
            return True
        is_within = limit is not None and limit <= variance and total["late"] <= limit // 32
        return is_within and total["sliding"] - total["returned"] <= limit

    def kept_free(self, place):
        """Returns the variance that must stay free beside a charge at the reserve with this place."""
        return self.reserves[place] + self.limits["sliding"] // 32 if place else 0

    def slide(self, charge, before):
        """Takes the sliding charge of a round at a reserve, at least what it was before."""
        if "sliding" in self.limits:
            limit, held = self.limits["sliding"], self.total["sliding"] - self.total["returned"] - before
            costs = [max(each, before) for each in charge["amounts"][: len(self.reserves)]]
            places = [j for j, cost in enumerate(costs) if self.kept_free(j) + cost + held <= limit] or [0]
            least = min(costs[j] for j in places)
            charge["reserve"] = next(j for j in places if 512 * costs[j] <= 513 * least)
            charge["sliding"] = costs[charge["reserve"]]

    def cost_of(self, details):
        """Returns the amounts of a stated cost, and the kinds of slots that it fits."""
        stated = read(details["cost"])
        fits, lists = stated.pop("fits", []), [stated.pop(name, []) for name in ("gaussian", "divergences")]
        rest = [stated.pop(name, 0) for name in TEXTS[:3]]
        is_whole = [len(each) for each in lists] == [len(self.reserves), self.bounds - len(self.reserves)]
        require(is_whole and not stated, "its cost has other parts than the rules")
        known = set(fits) <= set(range(len(self.counts))) and len(set(fits)) == len(fits)
        require(known, "it fits kinds that there are not")
        return [*lists[0], *lists[1], *rest], fits

    def decided(self, amounts, fits):
        """Returns the charge of a round that is admitted now."""
        charge = {**self.nothing, "amounts": amounts, "units": int(bool(self.counts))}
        charge["is_counted"] = bool(self.per_user)
        self.slide(charge, 0)
        free = [kind for kind in fits if self.total["claims"][kind] < self.counts[kind]]
        charge["kind"] = charge["claimed"] = (free or fits or [None])[0]
        return charge

    def restated(self, before, amounts, fits):
        """Returns the charge of a round that turned out to cost this."""
        after = {**before, "amounts": list(map(max, before["amounts"], amounts))}
        after |= {"units": int(bool(self.counts)), "is_counted": bool(self.per_user)}
        after["kind"] = before["claimed"] if before["claimed"] in fits else (fits or [None])[0]
        place = len(self.reserves)
        if after["amounts"][:place] != before["amounts"][:place]:
            after["is_corrected"] = True
            self.slide(after, before["sliding"])
            after["late"] += after["sliding"] - before["sliding"]
        return after

    def voided(self, before):
        """Returns what stays charged of a round that released nothing."""
        place, variances, local = (
            before["reserve"],
            before["amounts"][: len(self.reserves)],
            before["amounts"][-1],
        )
        after = {**before, "kind": None, "units": 0}
        used = place and self.total["sliding"] + self.kept_free(place) > self.limits["sliding"]
        if not (used or before["is_corrected"]):
            after |= {"sliding": 0, "late": 0, "reserve": 0}
            variances = [0] * len(variances)
        after["amounts"] = [*variances, *[0] * (self.bounds - len(variances) + 2), local]
        return after

    def moved(self, before, after):
        """Returns the total with one charge in the place of another."""
        total = {**self.total, "claims": [*self.total["claims"]]}
        sums = [
            a - b + c for a, b, c in zip(total["amounts"], before["amounts"], after["amounts"], strict=True)
        ]
        largest = list(map(max, total["amounts"], after["amounts"]))
        total["amounts"] = [*largest[:-1], sums[-1]] if self.per_user else sums
        for charge, sign in ((before, -1), (after, 1)):
            total["rounds"] += sign * charge["is_counted"]
            total["incidents"] += sign * (charge["is_counted"] and charge["is_incident"])
            if charge["kind"] is None:
                total["unplaced"] += sign * charge["units"]
            else:
                total["claims"][charge["kind"]] += sign * charge["units"]
        total["sliding"] += max(after["sliding"] - before["sliding"], 0)
        total["returned"] += max(before["sliding"] - after["sliding"], 0)
        total["late"] += after["late"] - before["late"]
        return total

    def take(self, body):
        """Decides an entry again. Raises ValueError if what it states does not follow."""
        kind, details, name = body["kind"], body["details"], body["round_id"]
        if kind in ("opened", "budget_changed"):
            self.change(kind, details, body["epsilon_budget"])
        elif kind in ("admitted", "refused"):
            require(name not in self.charges, "its round was admitted before")
            self.decide(details.get("reason", kind), details, body["recorded_at"], name)
        elif kind in SHARED:
            self.restate(kind, details, name)
        else:
            require(kind in ("frozen", "closed"), f"there are no entries of kind {kind}")
            may_close = self.rules["kind"] in ("life", "record") and not (self.is_closed or self.is_overspent)
            require(kind == "frozen" or may_close, "it closes a part, or what is not open")
            self.is_closed, self.is_frozen = True, self.is_frozen or kind != "closed"
        require(body["epsilon_budget"] == self.epsilon, "its budget is not the one in force")
        require(body["delta_budget"] == self.rules["delta"], "its delta is not the one of the rules")
        standing, changed = details["standing"], {} if self.limits == self.first_limits else self.limits
        require(standing["rules"] == self.digest, "its rules are not those of the opening")
        require(read(standing.get("limits", {})) == changed, "its limits are not those in force")
        require(
            canonical(standing["total"]) == canonical(self.spelled(self.total)), "its total does not follow"
        )

    def decide(self, reason, details, recorded_at, name):
        """Decides about a round; the reason is `admitted`, or that of a refusal."""
        states = (self.is_frozen, self.is_overspent, self.is_closed)
        closed = OF_CLOSED[states.index(True)] if any(states) else None
        require(reason == closed or (not closed and reason not in OF_CLOSED), f"it is {reason} wrongly")
        if reason == "collection_over":
            last_day = details["request"].get("collected_until") or details["request"]["collected_on"]
            require(
                details["request"].get("windows") and last_day < recorded_at[:10], "its days were not over"
            )
        if "cost" not in details:
            is_unseen = reason in UNSEEN or (reason in BY_SLOTS and not self.reserves)
            require(is_unseen and "charge" not in details, "it states no cost")
            return
        charge, outcomes = self.decided(*self.cost_of(details)), ["budget_exceeded"]
        require(canonical(details["charge"]) == canonical(self.spelled(charge)), "its charge does not follow")
        total = self.moved(self.nothing, charge)
        if self.holds(total, "refuse"):
            has_local = total["amounts"][-1] <= self.limits.get("local", math.inf)
            outcomes = ["admitted"] if has_local else ["local_budget_exceeded"]
        elif self.reserves and self.a_filter_holds(total, "refuse"):
            outcomes = ["delta_account_exhausted"]
        elif self.reserves and details["requested"]["epsilon_upper"] == INFINITE:
            outcomes = ["unbounded_loss"]
        require(reason in outcomes, f"it is {reason}, and {' or '.join(outcomes)} follows")
        if reason == "admitted":
            self.total, self.charges[name] = total, charge
            self.open.add(name)

    def restate(self, kind, details, name):
        """Takes what was told of a round: how it ended, or what it was in truth."""
        before, is_told = self.charges.get(name), kind in ("corrected", "incident")
        require(kind == "incident" or before, "its round was never charged")
        require(is_told or name in self.open, "its round is not open")
        if kind == "incident":
            claimed = before["claimed"] if before else None
            before = {**self.nothing, "is_incident": True, "claimed": claimed}
            after = details["released"] and details["released"]["after"]
            chosen = (
                details["chosen_after"]
                if after and not self.opened_at
                else not after or after <= self.opened_at  # equal moments do not say which was first
            )
            chosen = chosen and "quota" not in self.details and not self.is_frozen
            require(details["chosen_after"] is chosen, "whether it came before the opening does not follow")
        if self.is_frozen:
            require(is_told and not details.keys() & {"cost", "charge"}, "a frozen budget charges nothing")
        else:
            is_bounded = not details.get("chosen_after")
            require(
                ("cost" in details) == (is_bounded and kind != "voided"), "it states a cost, or lacks one"
            )
            unknown = [2**320] * self.bounds + [0, 0, 2**320], []
            cost = self.cost_of(details) if "cost" in details else unknown
            after = self.voided(before) if kind == "voided" else self.restated(before, *cost)
            require(
                canonical(details["charge"]) == canonical(self.spelled(after)), "its charge does not follow"
            )
            self.total, self.charges[name] = self.moved(before, after), after
        if kind in ("settled", "voided"):
            self.open.discard(name)
        if kind != "voided":
            self.is_overspent |= (
                self.promises and not self.is_frozen and not self.holds(self.total, "promise")
            )
            judged = self.is_overspent and not self.is_frozen
            require(details["overspent"] is judged, "whether it is overspent does not follow")

    def change(self, kind, details, epsilon):
        """Takes the limits of an opening, or of a changed budget."""
        before, old, ceiling = self.limits, self.level("promise"), self.details.get("ceiling")
        self.limits = read(details["standing"].get("limits")) or self.first_limits
        refuse, promise, sliding = self.level("refuse"), self.level("promise"), before.get("sliding")
        slack, slack_before, expected = self.limits.get("slack", 0), before.get("slack", 0), refuse
        require(len(refuse) == self.bounds - len(self.reserves) + 2, "its levels are of other filters")
        require(refuse[0] == units(epsilon, 10**30, math.floor), "it does not refuse at its budget")
        if kind == "opened":
            expected = refuse if ceiling is None else promise
            most = refuse[0] if ceiling is None else units(ceiling, 10**30, math.floor)
            require(promise[0] == most, "it does not promise its ceiling")
            sliding = sliding and promise[1]
        else:
            require(details["epsilon_before"] == self.epsilon, "the budget before was another")
            for name in ("certain", "local"):
                require(self.limits.get(name) == before.get(name), f"it changes the limit of {name}")
            is_raised = self.promises and ceiling is None and refuse[0] > old[0]
            if self.promises and ceiling is not None:
                expected = old
            elif is_raised:
                expected = list(map(max, refuse, old))
                is_held = self.is_overspent or self.holds(self.total, "promise")
                require(is_held and slack <= slack_before, "what is held does not fit the larger promise")
            elif self.promises and not self.is_overspent:
                require(self.holds(self.total, "promise"), "what is held does not fit the smaller promise")
            require(is_raised or not self.promises or slack == slack_before, "it changes the limit of slack")
            sliding = None if sliding is None else max(sliding, promise[1])
        require(promise == expected and all(map(int.__le__, refuse, promise)), "its promise does not follow")
        require(
            self.limits.get("sliding") == sliding, "its sliding limit is not the largest promised variance"
        )
        self.epsilon = epsilon


def read_chain(cohort, data):
    """Returns what is wrong with a chain, the bodies, and its last entry's sequence and digest."""
    found, bodies, sequence, previous, is_used = [], [], 0, bytes(32), False
    if not data.endswith(b"\n"):
        found.append("its last line is not ended")
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        fields = LINE.fullmatch(line)
        if not fields:
            found.append(f"entry {number}: the line is not written as an entry")
            continue
        stated, text = int(fields[1]), fields[4]
        before, digest = bytes.fromhex(fields[2].decode()), bytes.fromhex(fields[3].decode())
        if (stated, before) != (sequence + 1, previous):
            found.append(f"entry {number}: it does not continue from the entry before it")
        parts = (b"shuffle-ledger/entry/1", cohort.encode(), stated.to_bytes(8, "big"), before, text)
        if digest_of(*parts).digest() != digest:
            found.append(f"entry {number}: its digest is not that of its content")
        try:
            bodies.append(json.loads(text, parse_float=lambda text: float(text) + 0.0))  # no -0.0
            own = [bodies[-1][name] for name in ("cohort", "sequence", "version")]
            if canonical(own) != canonical([cohort, stated, 1]) or canonical(bodies[-1]) != text:
                found.append(f"entry {number}: it says that it belongs elsewhere, or is not canonical")
            if is_used if bodies[-1]["kind"] == "opened" else number == 1:
                found.append(f"entry {number}: a chain begins with an opening, and has none once it was used")
            is_used |= bodies[-1]["kind"] not in ("opened", "budget_changed")
        except (ValueError, KeyError, TypeError):
            found.append(f"entry {number}: its body is not that of an entry")
        sequence, previous = stated, digest
    return found, bodies, (sequence, previous.hex())


def decided_again(bodies, opened_at, signed_at):
    """Yields the first entry of a chain that does not follow from those before it."""
    budget, latest = None, ""
    for body in bodies:
        try:
            moment = body["recorded_at"]  # UTC with microseconds: texts order as moments do
            require(not signed_at or moment <= signed_at, "it was recorded after the heads were signed")
            require(latest <= moment, "it was recorded before the entry before it")
            budget, latest = Budget(body, opened_at, budget) if body["kind"] == "opened" else budget, moment
            budget.take(body)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            yield f"entry {body['sequence']}: {error or type(error).__name__}; nothing after it was decided"
            return


def joint_rounds(bodies):
    """Returns of each round of several budgets in a chain whose chains these are, and the facts in order."""
    rounds = {}
    for body in bodies:
        details, name, kind = body["details"], body["round_id"], body["kind"]
        request = details.get("request", {})
        names = request.get("audience") or [request.get("cohort")]
        names = {*names, *(request.get("windows") or []), *(request.get("quotas") or [])}
        if len(names) > 1:
            rounds.setdefault(name, (names, []))
        if name in rounds and kind in SHARED:
            rounds[name][1].append((kind, body["actor"], {each: details.get(each) for each in SHARED[kind]}))
    return rounds


def spent_again(bodies):
    """Yields the first entry of a chain whose `spent` does not follow, but for the bounds themselves."""
    budget, before, held, is_frozen = bodies[0], None, set(), False
    for body in bodies:
        kind, details, spent = body["kind"], body["details"], body["spent"]
        budget = body if kind == "opened" else budget
        rules, asked = budget["details"]["rules"], details.get("requested")
        filters, unchanged = "filters" in rules, details.get("accounted_before") == details.get("accounted")
        carried = kind in ("refused", "closed") or is_frozen
        carried |= not filters and (kind == "budget_changed" or ("accounted" in details and unchanged))
        try:
            if kind == "admitted" or (kind == "incident" and not is_frozen):
                held.add(body["round_id"])
            held -= {body["round_id"]} if kind == "voided" else set()
            if carried:
                require(spent == before, "it changes what is spent")
            elif kind == "frozen":
                left = {**before, **dict.fromkeys(CAUSES, 0.0)}
                left |= {"epsilon_upper": INFINITE, "method": spent["method"]}
                require(spent == left, "it says otherwise what a freeze leaves of what is spent")
            else:
                check_bounds(spent, len(held), rules)
            if asked:
                check_bounds(asked, len(held) + (kind == "refused"), rules)
                require(kind == "refused" or spent == asked, "it requested what is not spent")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            yield f"entry {body['sequence']}: {error or type(error).__name__}"
            return
        before, is_frozen = spent, is_frozen or kind == "frozen"


def check_bounds(spent, rounds, rules):
    """Checks bounds on the epsilon of some number of rounds."""
    lower, upper, *causes = (real(spent[name]) for name in ("epsilon_lower", "epsilon_upper", *CAUSES))
    require(0 <= lower <= upper and all(each >= 0 for each in causes), "its bounds are none")
    stated = (spent["rounds"], spent["delta"], len(spent))
    require(stated == (rounds, rules["delta"], 8), "its bounds are of other rounds, or another delta")
    width = upper - lower if upper < math.inf else 0
    if rules["kind"] == "record":
        require((lower, upper) == (0, math.inf if rounds else 0), "it has no budget that is spent")
    require(rounds or not any((lower, upper, *causes)), "it says that nothing was spent, and how much")
    require("filters" not in rules or causes == [0, 0, width], "its causes are not those of filters")


def crowded(chains):
    """Yields rounds with more users than their cohorts have together, where the chains of these are here."""
    openings = {
        cohort: [body["details"] for body in bodies if body["kind"] == "opened"][-1]
        for cohort, bodies in chains.items()
    }
    users = {
        name: each["population"] for name, each in openings.items() if not each.keys() & {"quota", "period"}
    }
    members, parts = {}, {}  # of each round: its cohorts, and the reports of a user as told last
    for body in (body for bodies in chains.values() for body in bodies if body["kind"] in SHARED):
        details, name, request = body["details"], body["round_id"], body["details"].get("request")
        if request:
            members[name] = request.get("audience") or [request["cohort"]]
        stated = details.get("round") or (request and request["round"]) or details
        parts[name] = stated.get("reports_per_user", parts.get(name, 1) if stated is details else 1)
        least = max(-(-stated.get("reports", 0) // parts[name]), stated.get("sampled_from") or 0)
        here = members.get(name, [""])
        if users.keys() >= set(here) and least > sum(users[each] for each in here):
            yield f"round {name}: an entry of {body['cohort']} is about more users than there are"


def disagreements(chains, remarks):
    """Yields which rounds two chains say otherwise of, and refusals that do not say who refused."""
    frozen = {cohort for cohort, bodies in chains.items() if any(body["kind"] == "frozen" for body in bodies)}
    said = {cohort: joint_rounds(bodies) for cohort, bodies in chains.items()}
    for cohort, rounds in said.items():
        for name, (names, facts) in rounds.items():
            if cohort not in names:
                yield f"round {name}: it is in the chain of {cohort}, to which it is not charged"
            for other in sorted(names & said.keys() - frozen if cohort not in frozen else ()):
                if said[other].get(name, (names, []))[1] != facts:
                    yield f"round {name}: the chains of {cohort} and {other} say otherwise"
        refusals = [
            (body["round_id"], body["details"]) for body in chains[cohort] if body["kind"] == "refused"
        ]
        for name, details in refusals:
            by, names = details.get("refused_by", {}), rounds.get(name, [set()])[0]
            own = by.get(cohort, {"reason": "refused_elsewhere"})["reason"] if names else "not joint"
            is_alike = own == details["reason"] if names else details["reason"] != "refused_elsewhere"
            if not is_alike or bool(by) != bool(names) or by.keys() - names:
                yield f"round {name}: the chain of {cohort} does not say who refused it, and why"
        absent = {name for _, details in refusals for name in details.get("refused_by", {})} - chains.keys()
        unseen = sum("cost" not in each and each["reason"] in BY_SLOTS for _, each in refusals)
        if absent:
            remarks.append(
                f"Refusals by {', '.join(sorted(absent))} were not checked: these chains are not here."
            )
        if unseen:
            remarks.append(f"{unseen} refusals of {cohort} were not checked: nothing was computed of them.")


def by_openssl(signed):
    """Returns the line that checks the signature with the stated key, which readers compare with theirs."""
    text = canonical({name: value for name, value in signed.items() if name != "signature"})
    message = digest_of(b"shuffle-ledger/checkpoint/1", text).hexdigest()
    key = "302a300506032b6570032100" + signed["public_key"]
    files = "; ".join(
        f"echo {data} | xxd -r -p > {name}"
        for name, data in (("key", key), ("message", message), ("signature", signed["signature"]))
    )
    options = "-keyform DER -pubin -inkey key -rawin -in message -sigfile signature"
    return f"To check the signature: {files}; openssl pkeyutl -verify {options}"


def problems_of_members(members, manifest):
    """Yields what is wrong with the members of an archive, given the manifest."""
    if manifest["format"] != "shuffle-ledger-bundle-1":
        yield f"manifest.json: unknown format {manifest['format']}"
    listed = {item["name"]: item for item in manifest["members"]}
    for name in sorted(members.keys() ^ listed.keys()):
        yield f"{name}: it is {'missing' if name in listed else 'not in the manifest'}"
    for name in sorted(members.keys() & listed.keys()):
        stated = (listed[name]["bytes"], listed[name]["sha256"])
        if stated != (len(members[name]), hashlib.sha256(members[name]).hexdigest()):
            yield f"{name}: its length or SHA-256 is not the one in the manifest"
    if hashlib.sha256(members.get("FORMAT.md", b"")).hexdigest() != NOTE:
        yield "FORMAT.md: it is not the note that every bundle has"
    if not manifest["cohorts"]:
        yield "manifest.json: it lists no chain"


def problems(path, remarks):
    """Yields everything that is wrong with a bundle, and adds what was not checked to the remarks."""
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:
            yield f"{archive.testzip()}: its checksum in the archive is wrong"
            return
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    yield from problems_of_members(members, manifest)
    signed, chains, broken = json.loads(members["heads.json"]), {}, False
    heads = {head["cohort"]: (head["sequence"], head["digest"]) for head in signed["heads"]}
    for item in manifest["cohorts"]:
        cohort, name = item["cohort"], item["member"]
        found, chains[cohort], last = read_chain(cohort, members[name])
        if heads.get(cohort) != last:
            found.append(f"the chain ends with entry {last[0]}, {last[1]}; heads.json says otherwise")
        yield from (f"{name}: {what}" for what in found)
        broken = broken or bool(found)
    if broken:  # nothing follows from entries that are not what was recorded
        return
    for cohort, bodies in chains.items():
        part = bodies[0]["details"].get("period", bodies[0]["details"].get("quota", {}))
        openings = [body for body in chains.get(part.get("of", cohort), []) if body["kind"] == "opened"]
        opened_at = openings[-1]["recorded_at"] if openings else None
        for what in decided_again(bodies, opened_at, signed.get("created_at")):
            yield f"chain of {cohort}: {what}"
        yield from (f"chain of {cohort}: {what}" for what in spent_again(bodies))
    yield from crowded(chains)
    yield from disagreements(chains, remarks)
    remarks.append(by_openssl(signed) if "signature" in signed else "The heads are not signed.")


def main():
    """Prints what is wrong, or that nothing is, and what was not checked."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: verify_bundle.py BUNDLE.zip (signatures are not checked: that takes a library)")
        return 2
    remarks = []
    try:
        found = list(problems(sys.argv[1], remarks))
    except Exception as error:  # noqa: BLE001 - whatever a changed file makes of it, the verdict is that it was changed
        found = [f"the bundle cannot be read: {type(error).__name__}: {error}"]
    print("\n".join([*(found or [HOLDS]), *remarks]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
