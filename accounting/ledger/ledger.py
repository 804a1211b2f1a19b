"""The privacy ledger of one data set: durable, append-only, and never forgetful.

All experiments and servers that ever touch the data set add up in one SQLite file. An experiment
first *reserves* its planned rounds, which must fit the owner's budget on top of all that was
charged and reserved before. Each round then *flips* a coin and is charged in the same transaction:
what the coin said exists only once the charge is on disk. Flipping the coin of the same round again
returns the recorded coin and costs nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger import file as ledger_file
from coinflower.accounting.ledger import rows as ledger_rows
from coinflower.accounting.ledger.entries import Budget, Entry, EntryKind, Tally, terms_to_json
from coinflower.accounting.ledger.errors import NOTHING_CHARGED, LedgerError, explained
from coinflower.accounting.ledger.open_file import OpenLedgerFile
from coinflower.accounting.ledger.prices import Prices
from coinflower.accounting.ledger.statement import Statement, Statements
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up

# A price is computed without holding up others; if they reserve meanwhile, it is computed again.
_MOST_PRICINGS = 5


class BudgetExceededError(LedgerError):
    """The owner's budget does not allow what was asked."""


class Ledger(OpenLedgerFile):
    """An open ledger. Use `create` once per data set, `open` ever after."""

    def reserve(
        self,
        experiment: str,
        terms: Analysis | Round,
        rounds: int,
        budget: Budget,
        *,
        agreed: str = "",
    ) -> None:
        """Reserve ``rounds`` rounds of ``terms`` for an experiment, if the budget allows them.

        Reserving again with the same terms is free; with more rounds it reserves the difference.

        Args:
            experiment: Its name.
            terms: What a round costs; of a `Round`, the certified price with a secret coin.
            rounds: How many are planned.
            budget: What the owner allows over all experiments.
            agreed: Everything that was agreed to, as a JSON object; kept with the entry.

        Raises:
            BudgetExceededError: Charged, reserved and new rounds together exceed the budget.
            LedgerError: Terms that are no upper bound, or others than reserved before.
        """
        if isinstance(terms, Round):
            terms = Certified(terms)
        validation.require_count("rounds", rounds, least=1)
        if not experiment:
            raise LedgerError("An experiment needs a name.")
        if not terms.is_chargeable:
            raise LedgerError(
                f"Scheme {terms.name!r} is not an upper bound of what a client loses, so a ledger "
                "does not take it; use 'certified', 'wcs' or 'ols'."
            )
        for _ in range(_MOST_PRICINGS):
            seen = self.tallies()
            tally = next((each for each in seen if each.experiment == experiment), None)
            if tally is not None and tally.terms.is_another_price_of(terms):
                # An experiment is charged to its end by the analysis that it began with.
                terms = tally.terms
            known = tally.agreed if tally else ""
            text = terms_to_json(terms, agreed or known)
            if tally is not None and (tally.terms != terms or _differ(known, agreed)):
                raise LedgerError(
                    f"Experiment {experiment!r} is in this ledger with other terms "
                    f"({terms_to_json(tally.terms)}); a new experiment needs a new name."
                )
            reserved = tally.reserved_rounds if tally else 0
            if rounds <= reserved:
                return
            self._require_budget(seen, terms, rounds - reserved, budget)
            with self._transaction(NOTHING_CHARGED):
                if _reservations(self.tallies()) != _reservations(seen):
                    continue
                self._append(EntryKind.RESERVE, experiment, text, rounds=rounds)
                self._connection.execute(
                    "INSERT INTO tallies VALUES (?, ?, ?, 0, 0, ?) ON CONFLICT (experiment) DO "
                    "UPDATE SET terms = excluded.terms, committed = excluded.committed, "
                    "secure = min(secure, excluded.secure)",
                    (experiment, text, rounds, not self._coins.insecure),
                )
            return
        raise LedgerError(
            f"The ledger {self.path} was changed by others {_MOST_PRICINGS} times while rounds "
            f"were priced; ask again. {NOTHING_CHARGED}"
        )

    def flip(self, experiment: str, round_: int) -> bool:
        """Flip the coin of a round and return it; the charge is on disk by then. See `flip_all`."""
        return self.flip_all(experiment, [round_])[0]

    def flip_all(self, experiment: str, rounds: Sequence[int]) -> list[bool]:
        """Flip the coins of the rounds, charge them in one transaction, and return the coins.

        A round that was charged before costs nothing and returns the coin recorded then.

        Raises:
            BudgetExceededError: More rounds than the experiment reserved.
            LedgerError: The charge could not be made durable; no coin was flipped.
        """
        for round_ in rounds:
            validation.require_count("round", round_, least=1)
        with self._transaction(NOTHING_CHARGED):
            tally = ledger_rows.tally_of(self._connection, experiment)
            if tally is None:
                raise BudgetExceededError(
                    f"Experiment {experiment!r} reserved no rounds in this ledger, so none may be "
                    "charged."
                )
            recorded = {
                round_: ledger_rows.coin_of(self._connection, experiment, round_)
                for round_ in rounds
            }
            new = [round_ for round_, coin in recorded.items() if coin is None]
            if len(new) > tally.remaining_rounds:
                raise BudgetExceededError(
                    f"Experiment {experiment!r} reserved {tally.reserved_rounds} rounds, of which "
                    f"{tally.charged} are charged; {len(new)} more are refused."
                )
            for round_ in new:
                recorded[round_] = self._flip(tally, round_)
            self._connection.execute(
                "UPDATE tallies SET charged = charged + ?, joined = joined + ?, "
                "secure = min(secure, ?) WHERE experiment = ?",
                (
                    len(new),
                    sum(bool(recorded[round_]) for round_ in new),
                    not (new and self._coins.insecure),
                    experiment,
                ),
            )
        return [bool(recorded[round_]) for round_ in rounds]

    def claim_answer(self, experiment: str, round_: int) -> bool:
        """Return True the first time only, so that a round is answered at most once, ever."""
        with self._transaction("The round stays charged and is not answered."):
            tally = ledger_rows.tally_of(self._connection, experiment)
            if tally is None or ledger_rows.coin_of(self._connection, experiment, round_) is None:
                raise LedgerError(f"Round {round_} of {experiment!r} was never charged.")
            if ledger_rows.was_answered(self._connection, experiment, round_):
                return False
            self._append(EntryKind.ANSWER, experiment, terms_to_json(tally.terms), round_=round_)
            if self._coins.insecure:  # then so is the noise of the answer
                self._connection.execute(
                    "UPDATE tallies SET secure = 0 WHERE experiment = ?", (experiment,)
                )
            return True

    def release(self, experiment: str) -> None:
        """Give back the reserved rounds that were not charged; what was charged stays."""
        with self._transaction("No round was given back."):
            tally = ledger_rows.tally_of(self._connection, experiment)
            if tally is None or not tally.remaining_rounds:
                return
            text = terms_to_json(tally.terms)
            self._append(EntryKind.RELEASE, experiment, text, rounds=tally.charged)
            self._connection.execute(
                "UPDATE tallies SET committed = charged WHERE experiment = ?", (experiment,)
            )

    def spent(self, delta: float) -> float:
        """Return ε at ``delta`` of every round ever charged."""
        return self.prices.spent(self.tallies(), delta)

    def reserved_epsilon(self, delta: float) -> float:
        """Return ε at ``delta`` once every reserved round has been charged, too."""
        return self.prices.reserved_epsilon(self.tallies(), delta)

    def statement(self, delta: float, budget: Budget | None = None) -> Statement:
        """Return what all experiments add up to at ``delta``."""
        return Statements(self.prices).statement(self.tallies(), delta, budget)

    def would_exceed(self, terms: Analysis, rounds: int, epsilon: float, delta: float) -> bool:
        """Return whether ``rounds`` more of ``terms`` would take the data set beyond (ε, δ)."""
        budget = Budget(epsilon=epsilon, delta=delta)
        return self.prices.would_exceed(self.tallies(), terms, rounds, budget)

    @functools.cached_property
    def prices(self) -> Prices:
        """What rounds of this ledger cost; kept in a file beside it."""
        with self._lock:
            about = ledger_rows.read_about(self._connection, self.path)
        path = self.path.with_name(f"{self.path.name}.prices")
        return Prices(path, about["salt"], writable=self._place is not None)

    def tallies(self) -> list[Tally]:
        """Return every experiment in sum."""
        self._require_place(NOTHING_CHARGED)  # SQLite has other words for it
        with self._lock, explained(self.path):
            rows = self._connection.execute("SELECT * FROM tallies ORDER BY experiment").fetchall()
        seeded = self._answered_with_seeds
        return [Tally.from_row(row) for row in ledger_rows.restamp(rows, seeded)]

    def history(self) -> Iterator[Entry]:
        """Yield every entry, oldest first."""
        with self._lock, explained(self.path):
            # All at once: as long as one reads, nobody can write.
            rows = list(ledger_rows.entries(self._connection))
        yield from map(Entry.from_row, rows)

    def _flip(self, tally: Tally, round_: int) -> bool:
        coin = self._coins.coin(tally.terms.round.p)
        text = terms_to_json(tally.terms)
        self._append(EntryKind.FLIP, tally.experiment, text, round_=round_, coin=coin)
        return coin

    def _require_budget(
        self, tallies: Sequence[Tally], terms: Analysis, rounds: int, budget: Budget
    ) -> None:
        if not self.prices.would_exceed(tallies, terms, rounds, budget):
            return
        if budget.epsilon == 0:
            raise BudgetExceededError("The budget is epsilon = 0: nothing may be spent.")
        already = self.prices.reserved_epsilon(tallies, budget.delta)
        raise BudgetExceededError(
            f"{rounds} rounds of {terms_to_json(terms)} do not fit: epsilon = "
            f"{rounded_up(already, 6)} of {budget.epsilon:g} is spent or reserved at "
            f"delta = {budget.delta:g}."
        )

    def _append(
        self,
        kind: EntryKind,
        experiment: str,
        terms: str,
        *,
        round_: int | None = None,
        rounds: int | None = None,
        coin: bool | None = None,
    ) -> None:
        values = (
            kind,
            experiment,
            round_,
            terms,
            rounds,
            None if coin is None else int(coin),
            int(not self._coins.insecure),
            ledger_file.now(),
        )
        ledger_rows.append(self._connection, self.path, values)


def _reservations(tallies: Sequence[Tally]) -> list[tuple[str, Analysis, int]]:
    """Return what a price depends on."""
    return [(tally.experiment, tally.terms, tally.reserved_rounds) for tally in tallies]


def _differ(known: str, agreed: str) -> bool:
    """Return whether something else was agreed to before; entries may be older than that note."""
    return bool(known and agreed) and json.loads(known) != json.loads(agreed)
