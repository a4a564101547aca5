"""Data delay API: collectors report how far a consumer has got, joins ask for it; the last report is kept in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from txstorm._version import __version__
from txstorm.errors import InputError
from txstorm.joins.data_delay import checked_name
from txstorm.web.serving import (
    FastAPI,
    HTTPException,
    Request,
    bounded_body,
    json_content,
    refusals,
)

MOST_BYTES = 1 << 20
MOST_NAMES = 1000
DAY = 86_400.0
STALE = 60.0
"""Seconds after which a report is called stale."""

REFUSALS = {
    400: "The name is none, or too many names have reports.",
    404: "Nothing has been reported for the name.",
}
YEAR_10000 = 253_402_300_800_000
Time = Annotated[float, Field(ge=0, lt=YEAR_10000, allow_inf_nan=False)]
Offset = Annotated[int, Field(ge=-1)]
_STRICT = ConfigDict(extra="forbid", strict=True)


class PartitionDelay(BaseModel):
    """One partition: offset of the last consumed record, end, time up to which it is consumed; null if unknown."""

    model_config = _STRICT
    consumed: Offset | None
    end: Offset | None
    time: Time | None
    caught_up: bool


class Report(BaseModel):
    """A collector's report; times and the delay in milliseconds, times since 1970."""

    model_config = _STRICT
    reported_at: Time
    consumed_time: Time | None
    delay: Annotated[float, Field(allow_inf_nan=False)] | None
    partitions: Annotated[dict[str, PartitionDelay], Field(min_length=1)]


class Delay(Report):
    """The last report of a name, and how old it is."""

    name: str
    age: float
    stale: bool


def delay_app(*, stale: float = STALE, clock: Callable[[], float] = time.monotonic) -> Any:
    """Build the FastAPI application of the data delay API, which `serve` guards.

    `stale`: seconds after which a report is called stale.
    """
    reports: dict[str, tuple[Report, float]] = {}
    app = FastAPI(
        title="txstorm data delay",
        version=__version__,
        redoc_url=None,
        description=__doc__,
        responses=refusals(REFUSALS),
    )

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Return that the server runs; needs no token."""
        return {"status": "ok"}

    @app.get("/delay")
    async def names() -> dict[str, list[str]]:
        """List the names under which there are reports."""
        return {"names": sorted(reports)}

    @app.get("/delay/{name}")
    async def delay(name: str) -> Delay:
        """Return the last report of a name; 404 if there is none since the server started."""
        if name not in reports:
            raise HTTPException(404, f"nothing has been reported for {name!r} since this server started")
        report, received = reports[name]
        age = (clock() - received) * 1000
        return Delay(**dict(report), name=name, age=round(age, 3), stale=age > stale * 1000)

    @app.post("/delay/{name}", openapi_extra=_BODY)
    async def report(name: str, request: Request) -> dict[str, bool]:
        """Store a report; one that is older than the stored one, as a late repetition is, changes nothing."""
        sent = _checked(name, await bounded_body(request, MOST_BYTES))
        if name not in reports and len(reports) >= MOST_NAMES:
            longest = min(reports, key=lambda one: reports[one][1])
            if clock() - reports[longest][1] <= DAY:
                raise HTTPException(400, f"{MOST_NAMES:,} names have reports of the last day; no more are accepted")
            del reports[longest]
        before, received = reports.get(name, (None, 0.0))
        # A collector whose clock was ahead once would otherwise be believed for as long as it was ahead.
        stored = before is None or sent.reported_at >= before.reported_at or clock() - received > stale
        if stored:
            reports[name] = (sent, clock())
        return {"stored": stored}

    return app


_BODY = {"requestBody": {"required": True, **json_content(Report)}}


def _checked(name: str, body: bytes) -> Report:
    """Return the report in `body`; answer 400 or 422, which names what is wrong."""
    try:
        checked_name(name)
        return Report.model_validate_json(body)
    except InputError as error:
        raise HTTPException(400, str(error)) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise HTTPException(422, f"{place}: {first['msg']}") from None
