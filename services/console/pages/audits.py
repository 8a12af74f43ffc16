"""`/audits`: the audit runs in a directory with their findings and reports, and the seals of closed books.

    /audits             the runs, newest first, and the seals
    /audits/run         a run with its cases and its findings or the findings of a case
    /audits/order       an order of a run with its evidence from the log
    /audits/report      the report of a run
    /audits/report.css  the style of the report

The directory is on the local machine and is read as by `tidewheel audit ls` and `show`. It has no access
control of its own, so only administrators of the broker can view it. The content policy of the console blocks
the inline style of a report. Therefore the style is served as a separate file. The rest of the report is
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from services.console.forms import is_count
from services.console.page import Asked, File, Model, Page
from services.http.api import Api
from tidewheel.errors import AccessRefused, ClientMistake, LibraryMissing, NotFound, TidewheelError

if TYPE_CHECKING:
    from spark_jobs.runs import Run

USUAL: Final = Path("audit-out")
RUNS_MAX: Final = 50
FINDINGS_AT_ONCE: Final = 50
SEALS_MAX: Final = 50
STYLE: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)
NO_FACTS: Final = ("order_id", "case", "why", "timeline", "subject", "subject_id", "total_pence", "currency")


class Audits:
    """The pages of an audit directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pages(self) -> tuple[Page, ...]:
        """Return the pages."""
        return (
            Page("/audits", "Audits", "audits.html", self.read, entry="Audits"),
            Page("/audits/run", "Audit", "audit.html", self.read_run, every_ms=0),
            Page("/audits/order", "Order of an audit", "audit_order.html", self.read_order, every_ms=0),
        )

    def files(self) -> tuple[File, ...]:
        """Return the files of a report."""
        return (
            File("/audits/report", "text/html; charset=utf-8", self.report),
            File("/audits/report.css", "text/css; charset=utf-8", self.style),
        )

    def read(self, broker: Api, asked: Asked) -> Model:
        """Return the latest runs and the seals. If the seals cannot be read, `trouble` contains the error."""
        check(broker)
        with reading():
            from spark_jobs.runs import runs

            found = runs(self.folder)
            seals, trouble = self._seals()
        return {
            "folder": str(self.folder),
            "count": len(found),
            "runs": [facts(run) for run in reversed(found[-RUNS_MAX:])],
            "seals": seals,
            "trouble": trouble,
        }

    def read_run(self, broker: Api, asked: Asked) -> Model:
        """Return a run and a page of its findings, or of the orders of a case."""
        check(broker)
        case, after = asked.get("case"), asked.get("after", "0")
        if not is_count(after):
            raise ClientMistake(f"after is {after[:20]!r}: it is a number of findings.")
        with reading():
            run = self._run(asked)
            first = int(after)
            found = [plain(row) for row in islice(run.of_case(case), first, first + FINDINGS_AT_ONCE + 1)]
        more = {"run": run.run_id} | asked.given("case") | {"after": first + FINDINGS_AT_ONCE}
        return {
            "run": facts(run),
            "case": case,
            "findings": found[:FINDINGS_AT_ONCE],
            "next": urlencode(more) if len(found) > FINDINGS_AT_ONCE else "",
        }

    def read_order(self, broker: Api, asked: Asked) -> Model:
        """Return all data of a run about an order."""
        check(broker)
        with reading():
            run = self._run(asked)
            found = plain(run.order(asked.required("order", "The order")))
            known = {name: value for name, value in found.items() if name not in NO_FACTS}
            if found.get("total_pence") is not None:
                from spark_jobs.amounts import amount

                known["total"] = amount(found["total_pence"], found.get("currency"))
        return {
            "run": run.run_id,
            "order": found["order_id"],
            "case": found["case"],
            "why": found.get("why") or "",
            "facts": {name: value for name, value in known.items() if value not in (None, [], "")},
            "timeline": found.get("timeline") or [],
        }

    def report(self, broker: Api, asked: Asked) -> str:
        """Return the report of a run with a link to its style."""
        run_id, text = self._report(broker, asked)
        address = f"/audits/report.css?{urlencode({'run': run_id})}"
        return STYLE.sub(f'<link rel="stylesheet" href="{address}">', text, count=1)

    def style(self, broker: Api, asked: Asked) -> str:
        """Return the style of a report."""
        found = STYLE.search(self._report(broker, asked)[1])
        return found[1] if found else ""

    def _report(self, broker: Api, asked: Asked) -> tuple[str, str]:
        check(broker)
        with reading():
            run = self._run(asked)
        try:
            return run.run_id, run.folders.report.read_text()
        except OSError as error:
            raise NotFound(f"Run {run.run_id} has no report ({error.strerror}).") from error

    def _run(self, asked: Asked) -> Run:
        from spark_jobs.runs import NEWEST, run_of

        return run_of(self.folder, asked.get("run", NEWEST))

    def _seals(self) -> tuple[list[Model], str]:
        from spark_jobs.seals.files import SealFolder

        try:
            found = SealFolder(self.folder).read()
        except TidewheelError as error:
            return [], f"{error.code} {error}"
        return [
            {
                "number": seal.number,
                "run_id": seal.run_id,
                "written_ms": str(seal.written_ms),
                "from_ms": str(seal.from_ms),
                "to_ms": str(seal.to_ms),
                "windows": len(seal.windows),
                "corrected": len(seal.corrected),
                "identities": seal.identities_count,
                "open": seal.account.open,
                "digest": seal.digest,
            }
            for seal in reversed(found[-SEALS_MAX:])
        ], ""


@contextmanager
def reading() -> Iterator[None]:
    """Convert errors while an audit is read. Raises `LibraryMissing` or `NotFound`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LibraryMissing(
            f"To read audits the console needs {error.name}: pip install 'tidewheel[audit]'"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotFound(f"The audit cannot be read ({error}).") from error


def check(broker: Api) -> None:
    """Raise `AccessRefused` if the caller is not an administrator of the broker."""
    if not broker.get("whoami")["is_administrator"]:
        raise AccessRefused("Audits name orders of all topics: an administrator may see them.")


def facts(run: Run) -> Model:
    """Return a run as plain values."""
    return {
        "run_id": run.run_id,
        "written_ms": str(run.written_ms),
        "orders": run.orders_count,
        "findings": run.findings_count,
        "is_balanced": run.is_balanced,
        "is_partial": run.is_partial,
        "cases": run.summary["cases"] | run.summary["others"],
        "finding_cases": run.finding_cases,
        "lacking": run.summary["lacking"],
        "as_of_ms": str(run.as_of_ms),
        "has_report": run.folders.report.is_file(),
    }


def plain(row: dict[str, Any]) -> Model:
    """Return a row with times and offsets as strings, since they can be too large for JavaScript."""
    return {name: _plain(name, value) for name, value in row.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return plain(value)
    if isinstance(value, list):
        return [_plain(name, one) for one in value]
    is_long = isinstance(value, int) and name.endswith(("_ms", "_offset"))
    return str(value) if is_long else value
