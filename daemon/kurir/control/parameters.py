"""What may be said in queries and bodies besides a job itself: the types of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from kurir.domain.job import ErrorKind, State
from kurir.services.lending.consumers import MOST_ASKED

Duration = Annotated[str, Meta(pattern=r"^[0-9]{1,15}(ms|s|m|h|d)$", examples=["30s"])]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Uid = Annotated[int, Meta(ge=0, le=4_294_967_295)]

# Encoded as what they are; the encoder's types know no choice between structs.
_SCHEMAS = "#/components/schemas/"
_AJob = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [{"$ref": f"{_SCHEMAS}JobDocument"}, {"$ref": f"{_SCHEMAS}PrunedDocument"}]})
]
_AProblem = Annotated[Any, Meta(extra_json_schema={"$ref": f"{_SCHEMAS}ProblemDocument"})]


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing."""


class Waiting(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for the job's end."""

    wait: Duration | None = None


class Submitting(Struct, frozen=True, forbid_unknown_fields=True):
    """How to submit: `wait` for one job, `atomic` for a batch."""

    wait: Duration | None = None
    atomic: bool = False


class Listing(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs, and how many of them. `owner` is for administrators, unless it is oneself."""

    state: State | None = None
    topic: Name | None = None
    destination: Name | None = None
    error_kind: ErrorKind | None = None
    owner: Uid | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class Whose(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose. `owner` is for administrators, unless it is oneself."""

    owner: Uid | None = None


class Following(Struct, frozen=True, forbid_unknown_fields=True):
    """Which events. With a filter only those of jobs are sent."""

    topic: Name | None = None
    job: Name | None = None


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object, or no body at all."""


class Resolution(Struct, frozen=True, forbid_unknown_fields=True):
    """How a conflict ends."""

    take: Literal["device", "server", "merged"]
    value: msgspec.Raw | UnsetType = UNSET


class LeaseWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """How many jobs at most, for how long (the topic's `lease` if nothing is said), and how long to wait for one.

    An answer may hold fewer than there are.
    """

    max: Annotated[int, Meta(ge=1, le=MOST_ASKED)] = 1
    lease: Duration | None = None
    wait: Duration | None = None


class NotDone(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a job could not be done, and whether another try may help. `delay`: before that, instead of a backoff.

    `interrupted`: the consumer itself is being ended, which is not held against the job.
    """

    error: Annotated[str, Meta(max_length=4096)] = "the consumer gave no reason"
    retry: bool = True
    delay: Duration | None = None
    interrupted: bool = False


class Extension(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the lease goes on, from now: as long as the topic's `lease` if nothing is said."""

    lease: Duration | None = None


class Progress(Struct, frozen=True, forbid_unknown_fields=True):
    """How far a consumer is with a job."""

    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    text: Annotated[str, Meta(max_length=1000)] | None = None


class Backup(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a copy: a folder of its own."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Owned(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose: for administrators; without it one's own, and in lists of theirs everybody's."""

    owner: Uid | None = None


class SecretValue(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret, and the origins that it may be sent to."""

    value: Annotated[str, Meta(description="1 to 4096 bytes, none of control.")]
    origins: Annotated[list[str], Meta(description="1 to 16, as https://host or https://host:port.")]


class SecretDocument(Struct, frozen=True):
    """A secret, without its value."""

    name: str
    owner: int
    origins: list[str]


class SecretsDocument(Struct, frozen=True):
    """Secrets, without their values."""

    secrets: list[SecretDocument]


class LineDocument(Struct, frozen=True):
    """What became of one line of a batch: a job or a problem."""

    status: int
    job: _AJob | UnsetType = UNSET
    error: _AProblem | UnsetType = UNSET


class Said(Struct, frozen=True):
    """It is done; nothing more is to be said."""

    done: bool = True


class Paused(Struct, frozen=True):
    """Whether a topic or a destination is paused now."""

    name: str
    paused: bool


class Health(Struct, frozen=True):
    """The process answers, or is ready."""

    status: Literal["ok", "ready"]


class Copied(Struct, frozen=True):
    """A copy of the store that was made."""

    name: str
    path: str
    bytes: int
    bodies: int
    missing_bodies: int
