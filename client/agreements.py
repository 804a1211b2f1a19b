"""Which experiments the owner's budget and limits allow, and at which price they are enrolled."""

from __future__ import annotations

from coinflower.accounting import patience
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import BudgetExceededError, Ledger
from coinflower.accounting.rounding import rounded_up
from coinflower.protocol.policy import Policy, Refusal, RefusedError
from coinflower.protocol.terms import Terms

# A budget that was lowered since an experiment was enrolled stops it; rounding does not.
_BUDGET_TOLERANCE = 1e-6


class Agreements:
    """What one owner's ledger holds, compared with what the policy allows now.

    Args:
        policy: What the owner allows.
        ledger: The data set's ledger.
    """

    def __init__(self, policy: Policy, ledger: Ledger) -> None:
        self._policy = policy
        self._ledger = ledger
        self._agreed: set[str] = set()

    def reserve(self, terms: Terms) -> None:
        """Reserve the planned rounds in the ledger, or refuse.

        Raises:
            RefusedError: With what the server may be told.
        """
        self._require_room(terms)
        try:
            cost = terms.round_cost(self._policy.declared_size)
            assert cost is not None
            with patience.at_most(self._policy.pricing_seconds):
                self._ledger.reserve(
                    terms.ledger_key,
                    cost,
                    terms.rounds,
                    self._policy.budget,
                    agreed=terms.to_json(),
                )
                self.require(terms)
        except patience.OutOfPatienceError as error:
            detail = f"{error}: more than pricing_seconds = {self._policy.pricing_seconds:g}"
            raise RefusedError(Refusal.PRICE, detail) from error
        except BudgetExceededError as error:
            raise RefusedError(Refusal.BUDGET, str(error)) from error
        except LedgerError as error:
            raise RefusedError(Refusal.LEDGER, str(error)) from error
        except (ArithmeticError, ValueError) as error:
            raise RefusedError(Refusal.TERMS, f"these terms have no price: {error}") from error

    def require(self, terms: Terms) -> None:
        """Let nobody play rounds that the ledger would charge differently from the current policy.

        Between enrolment and a round the owner may have edited the policy: a larger declared size
        makes a round cost more than what is recorded, and a smaller budget may be used up.

        Raises:
            LedgerError: Not enrolled, or enrolled at another price.
            BudgetExceededError: The policy's budget is smaller than what is reserved.
            OutOfPatienceError: The price takes longer to compute than the policy allows.
        """
        key = terms.ledger_key
        if key in self._agreed:
            return
        with patience.at_most(self._policy.pricing_seconds):
            prices = {tally.experiment: tally.terms for tally in self._ledger.tallies()}
            if prices.get(key) != terms.round_cost(self._policy.declared_size):
                raise LedgerError(f"{key} is not enrolled at the price that the policy implies.")
            budget = self._policy.budget
            reserved = self._ledger.reserved_epsilon(budget.delta)
        if not reserved <= budget.epsilon * (1 + _BUDGET_TOLERANCE):
            raise BudgetExceededError(
                f"epsilon = {rounded_up(reserved, 6)} is reserved at delta = "
                f"{budget.delta:g}, but the policy's budget is {budget.epsilon:g} now."
            )
        self._agreed.add(key)

    def _require_room(self, terms: Terms) -> None:
        """Refuse one experiment more than the owner allows, in all or at a time."""
        others = [each for each in self._ledger.tallies() if each.experiment != terms.ledger_key]
        unplayed = sum(each.remaining_rounds > 0 for each in others)
        for what, count, most in (
            ("most_experiments", len(others), self._policy.most_experiments),
            ("most_open_experiments", unplayed, self._policy.most_open_experiments),
        ):
            if not count < most:
                detail = f"{count} experiments are in the ledger, and {what} = {most}"
                raise RefusedError(Refusal.EXPERIMENTS, detail)
