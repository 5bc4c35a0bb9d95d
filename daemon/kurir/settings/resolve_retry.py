"""Retry policies, key by key: what a topic leaves out is its destination's, what that leaves out is the default."""

from __future__ import annotations

from dataclasses import replace

from msgspec import UNSET

from kurir.domain.policy import RetryPolicy
from kurir.settings.document_delivery import RetryTable
from kurir.settings.problems import Scope


def retry_of(table: RetryTable, under: RetryPolicy, scope: Scope) -> RetryPolicy:
    """The policy that the written keys make of the one they lie over."""
    policy = replace(
        under,
        base=under.base if table.base is UNSET else table.base.ms,
        cap=under.cap if table.cap is UNSET else table.cap.ms,
        jitter=under.jitter if table.jitter is UNSET else table.jitter,
        max_attempts=under.max_attempts if table.max_attempts is UNSET else table.max_attempts,
        give_up_after=under.give_up_after if table.give_up_after is UNSET else table.give_up_after.ms,
        schedule=under.schedule if table.schedule is UNSET else tuple(delay.ms for delay in table.schedule),
    )
    if policy.cap < policy.base:
        scope.refuse("cap" if scope.says("cap") else "base", "cap must not be less than base")
    if policy.schedule and policy.schedule[-1] == 0:
        scope.refuse("schedule", "its last delay repeats, so it cannot be zero")
    return policy
