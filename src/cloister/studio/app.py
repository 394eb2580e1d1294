"""The addresses. All of them only show: whatever takes a while is read beside the event loop."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from cloister import __version__
from cloister.errors import CloisterError
from cloister.privacy.certificate_text import round_up
from cloister.runs.metric_text import figure
from cloister.studio import planner_page, static
from cloister.studio.listing import Lister, Row
from cloister.studio.places import DAMAGED, NotThere, Places
from cloister.studio.plan_process import PlanProcess, Stale
from cloister.studio.run_view import Follower, RunView, agreement
from cloister.studio.study_view import Studies, damaged, page_values, reproduced, study_command

_OFTEN = 0.5
"""Seconds between two looks at the files of a run that is followed."""
_QUIET = 15.0
"""Seconds after which a stream says that it is still there."""
_MOST_RUNS = 200
"""So many runs can be selected by an address."""


class Json(JSONResponse):
    """JSON in ASCII: what files hold may not be UTF-8."""

    def render(self, content: Any) -> bytes:
        """As bytes."""
        return json.dumps(content, allow_nan=False).encode()


class Studio:
    """What the addresses share."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(folder)
        self.lister = Lister(self.places)
        self.studies = Studies(self.places)
        self.stopping = False
        """Set when the server is about to end: what is streamed ends then."""
        self.exact, self.quick = PlanProcess(quick=False), PlanProcess(quick=True)
        self._templates = jinja2.Environment(
            loader=jinja2.ChoiceLoader(
                [
                    jinja2.PackageLoader("cloister.studio", "pages"),
                    jinja2.PackageLoader("cloister.studies.html", "templates"),
                ]
            ),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        filters: dict[str, Any] = {"spent": _spent, "score": _score, "date": _date}
        self._templates.filters |= filters
        self._templates.globals |= {"version": __version__, "folder": str(folder), "colors": 7}

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A page of HTML."""
        text = self._templates.get_template(template).render(**values)
        return HTMLResponse(text.encode(errors="replace"), status)


def _epsilon(value: float | None, private: bool = True) -> str:
    return round_up(value) if value is not None else "no bound" if private else "-"


def _spent(row: Row) -> str:
    words = _epsilon(row.epsilon, row.delta is not None)
    more = row.at_least and row.state == "interrupted" and row.epsilon is not None and row.delta is not None
    return f"more than {words}" if more else words


def _score(row: Any) -> str:
    return figure(row.metric, row.score)


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # after the year 9999
        return "-"


def app_of(studio: Studio) -> FastAPI:
    """The application, without access control (`access.py`)."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.gather(studio.exact.end(), studio.quick.end())

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan, default_response_class=Json)
    _errors(app, studio)
    _pages(app, studio)
    _values(app, studio)
    _documents(app, studio)
    return app


def _errors(app: FastAPI, studio: Studio) -> None:
    """One sentence, for people or for scripts."""

    def told(request: Request, status: int, words: str) -> Response:
        if request.url.path.startswith("/api/"):
            return Json({"error": words}, status)
        return studio.page("message.html.j2", status, title="Not shown", words=words, tab="")

    @app.exception_handler(CloisterError)
    async def refused(request: Request, error: CloisterError) -> Response:
        return told(request, 404 if isinstance(error, NotThere) else 422, str(error))

    @app.exception_handler(OSError)
    async def unreadable(request: Request, error: OSError) -> Response:
        return told(request, 422, f"Expected to read files, found {error}: check the path and the disk.")

    async def unforeseen(request: Request, error: Exception) -> Response:
        return told(request, 422, damaged(error))

    for kind in DAMAGED:
        app.add_exception_handler(kind, unforeseen)

    @app.exception_handler(HTTPException)
    async def no_address(request: Request, error: HTTPException) -> Response:
        return told(request, error.status_code, "Expected an address of this page, found another: go to the list.")


def _pages(app: FastAPI, studio: Studio) -> None:
    @app.get("/static/{name}")
    def file(name: str) -> Response:
        return static.file(name)

    @app.get("/")
    def runs() -> Response:
        return studio.page("runs.html.j2", title="Runs", tab="runs", listing=studio.lister.all())

    @app.get("/run/{name:path}")
    def run(name: str) -> Response:
        path = studio.places.inside(name)
        view, row = RunView.of(path), studio.lister.row(path)
        facts = view.facts(row)
        return studio.page(
            "run.html.j2",
            title=path.name or name,
            tab="runs",
            name=name,
            row=row,
            facts=facts,
            banner=view.banner,
            fixed=view.fixed(),
            has_certificate=(path / "certificate.json").is_file(),
        )

    @app.get("/study/{name:path}")
    def study(name: str) -> Response:
        path = studio.places.inside(name)
        values = page_values(studio.studies.of([path]))
        more: dict[str, Any] = {"paper": reproduced(path), "command": study_command(path), "report": f"/report/{name}"}
        listed = studio.lister.study(path)
        return studio.page("study.html.j2", title=path.name, tab="runs", rows=listed.runs, **more, **values)

    @app.get("/overlay")
    def overlay(request: Request) -> Response:
        names = request.query_params.getlist("run")
        if not 0 < len(names) <= _MOST_RUNS:
            raise CloisterError(f"Expected 1 to {_MOST_RUNS} runs, found {len(names)}: tick some in the list.")
        paths = [studio.places.inside(name) for name in names]
        values = page_values(studio.studies.of(paths))
        title = f"{len(names)} run{'' if len(names) == 1 else 's'}, overlaid"
        rows = [studio.lister.row(path) for path in paths]
        more: dict[str, Any] = {"paper": None, "command": "", "report": None}
        return studio.page("study.html.j2", title=title, tab="runs", rows=rows, **more, **values)

    @app.get("/planner")
    async def planner() -> Response:
        await asyncio.gather(studio.exact.start(), studio.quick.start())
        return studio.page("planner.html.j2", title="Planner", tab="planner", **planner_page.VALUES)


def _values(app: FastAPI, studio: Studio) -> None:
    """What scripts ask for."""

    @app.get("/api/list")
    def listed() -> Any:
        found = studio.lister.all()
        runs = [*found.runs, *(run for study in found.studies for run in study.runs)]
        cells = {
            row.name: {
                "state": row.state,
                "score": _score(row),
                "epsilon": _spent(row),
                "rounds": f"{row.rounds} of {row.planned}",
            }
            for row in found.runs
        }
        studies = {
            study.name: {"runs": len(study.runs), "running": study.count("running"), "broken": study.count("broken")}
            for study in found.studies
        }
        return {"runs": cells, "studies": studies, "running": sum(run.state == "running" for run in runs)}

    @app.get("/api/agreement/{name:path}")
    def agree(name: str) -> Any:
        return agreement(studio.places.inside(name))

    @app.get("/api/follow/{name:path}")
    def follow(name: str) -> Response:
        path = studio.places.inside(name)
        stream = _followed(studio, path, Follower(RunView.of(path)))
        return StreamingResponse(stream, media_type="text/event-stream")

    @app.get("/api/plan")
    async def plan(request: Request) -> Response:
        from cloister.studio.planner import command, keys_of

        query = dict(request.query_params)
        quickly = query.pop("quick", "") == "1"

        async def wanted() -> bool:
            return not await request.is_disconnected()

        # Why there is no plan is an answer as well: a status of its own would be an error on the browser's console.
        try:
            values = keys_of(query)
            found = await (studio.quick if quickly else studio.exact).ask(values, wanted)
        except Stale:
            return Response(status_code=204)
        except CloisterError as error:
            return Json({"error": str(error)})
        return Json({**found, "command": command(values)})


async def _followed(studio: Studio, path: Path, follower: Follower) -> AsyncIterator[str]:
    """A run's lines as they come, then its end."""
    quiet, said = 0.0, ""
    while not studio.stopping:
        try:
            news = await run_in_threadpool(follower.news)
            row = await run_in_threadpool(studio.lister.row, path)
            state = {"state": row.state, "certificate": (path / "certificate.json").is_file()}
            event = _event("news", {**(news or {}), **state})
        except (CloisterError, OSError) as error:
            yield _event("problem", {"words": str(error)})
            return
        except DAMAGED as error:
            yield _event("problem", {"words": damaged(error)})
            return
        if row.state == "broken":
            yield _event("problem", {"words": row.reason})
            return
        if news is not None or json.dumps(state) != said:
            quiet, said = 0.0, json.dumps(state)
            yield event
        if row.state == "ended":
            yield _event("end", state)
            return
        await asyncio.sleep(_OFTEN)
        quiet += _OFTEN
        if quiet >= _QUIET:
            quiet = 0.0
            yield ": still here\n\n"


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n"


def _documents(app: FastAPI, studio: Studio) -> None:
    """Pages of their own, which get an origin of their own: they can ask nothing of this server."""

    @app.get("/certificate/{name:path}")
    def certificate(name: str) -> Response:
        from cloister.publication.certificate import page_of
        from cloister.publication.html import html

        return _alone(html(page_of(studio.places.inside(name))).decode(), "")

    @app.get("/report/{name:path}")
    def report(name: str) -> Response:
        from cloister.studies.html.render import render

        path = studio.places.inside(name)
        return _alone(render(studio.studies.of([path]).study, path.name, labels=False), "allow-scripts allow-downloads")


def _alone(page: str, allowed: str) -> Response:
    """A page under its own policy, as a sandbox."""
    (policy,) = _POLICY.findall(page)[:1]
    more = f"{policy}; sandbox {allowed}; frame-ancestors 'self'"
    return HTMLResponse(page, headers={"content-security-policy": more})


_POLICY: re.Pattern[str] = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
