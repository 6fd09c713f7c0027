"""A run in trackio: of this machine, on a server, or in a Space. Its server keeps the first row with an id and leaves out others, so
that a row that is sent twice is there once."""
from __future__ import annotations

import os
import zlib
from datetime import datetime, timezone
from typing import Any

from addresses import without_keys
from run_folder import Facts, Row, RunState
from sender import Away, Refused

MOST_ROWS = 500


class TrackioRun:
    confirms = True

    def __init__(self, url: str | None, project: str | None) -> None:
        from trackio.remote_client import RemoteClient  # noqa: F401
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import serialize_values, to_json_safe

        self._storage, self._values, self._json = SQLiteStorage, serialize_values, to_json_safe
        self._source = url or os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")
        self._project_given = project or os.environ.get("TRACKIO_PROJECT")
        self.place = f"trackio {without_keys(self._source or 'local')} {self._project_given or ''}"
        self._client: Any = None
        self._facts: Facts | None = None
        self._there: dict[str, Any] = {}
        self._key = ""
        self._told: dict[str, str] = {}

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        import sqlite3

        import httpx

        where = without_keys(self._source or "this machine")
        try:
            return function(*arguments, **named)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            kind = Refused if 400 <= status < 500 and status not in (408, 429) else Away
            raise kind(f"trackio at {where} answers {status}: {error.response.text[:200].strip()}") from error
        except (OSError, httpx.HTTPError, sqlite3.OperationalError) as error:
            raise Away(f"trackio at {where}: {error or type(error).__name__}") from error
        except RuntimeError as error:  # what the server says in its answer
            raise Refused(f"trackio at {where}: {error}") from error

    def open(self, facts: Facts, key: str, there: dict[str, Any]) -> None:
        self._facts, self._there, self._key = facts, there, key
        there.setdefault("project", self._project_given or facts.project)
        there.setdefault("run", facts.name)
        if self._source and self._client is None:
            from trackio.remote_client import RemoteClient
            from trackio.utils import parse_trackio_server_url

            is_url = self._source.startswith(("http://", "https://"))
            base, token = parse_trackio_server_url(self._source) if is_url else (self._source, None)
            hf_token = None
            if not is_url:
                import huggingface_hub

                hf_token = huggingface_hub.utils.get_token()
            self._hf_token = hf_token
            self._client = self._call(RemoteClient, base, hf_token=hf_token,
                                      write_token=os.environ.get("TRACKIO_WRITE_TOKEN") or token,
                                      httpx_kwargs={"timeout": 30})

    def arrived(self, after: dict[str, int]) -> dict[str, set[int]]:
        return {}  # ids tell it

    def send(self, rows: list[Row]) -> None:
        for begin in range(0, len(rows), MOST_ROWS):
            part = rows[begin:begin + MOST_ROWS]
            entries = [self._entry(row) for row in part if row.kind != "system"]
            self._send("bulk_log", entries)
            self._send("bulk_log_system", [self._entry(row) for row in part if row.kind == "system"])
            if entries:
                self._there["last"] = entries[-1]["log_id"], entries[-1]["step"]

    def _entry(self, row: Row) -> dict[str, Any]:
        series = zlib.crc32("\n".join(row.values).encode())
        entry = {"project": self._there["project"], "run": self._there["run"], "run_id": self._key,
                 "metrics": self._values(dict(row.values)), "log_id": f"{self._key}-{row.kind}-{row.step}-{series:08x}",
                 "timestamp": datetime.fromtimestamp(row.time_s, timezone.utc).isoformat()}
        if row.kind != "system":
            entry["step"] = row.step
        return entry

    def _send(self, name: str, entries: list[dict[str, Any]], config: dict[str, Any] | None = None) -> None:
        if not entries:
            return
        if self._client is not None:
            if config is not None:
                entries = [{**entries[0], "config": config}, *entries[1:]]
            self._call(self._client.predict, api_name=f"/{name}", logs=entries, hf_token=self._hf_token)
            return
        named: dict[str, Any] = {"project": self._there["project"], "run": self._there["run"], "run_id": self._key,
                                 "metrics_list": [entry["metrics"] for entry in entries],
                                 "timestamps": [entry["timestamp"] for entry in entries],
                                 "log_ids": [entry["log_id"] for entry in entries]}
        if name == "bulk_log":
            named.update(steps=[entry["step"] for entry in entries], config=config)
        self._call(getattr(self._storage, name), **named)

    def tell(self, facts: Facts, tags: dict[str, str]) -> None:
        """A config comes with a row: with one that is there already, of which trackio then takes the config alone."""
        last = self._there.get("last")
        self._facts = facts
        if last is None:
            self._told = tags
            return
        config = self._json({**facts.config, "description": facts.description, "labels": facts.labels, "dtrain": tags})
        config.update({"_Username": None, "_Created": datetime.fromtimestamp(facts.started_s, timezone.utc).isoformat(), "_Group": None})
        entry = {"project": self._there["project"], "run": self._there["run"], "run_id": self._key, "metrics": {}, "log_id": last[0],
                 "step": last[1], "timestamp": datetime.fromtimestamp(facts.started_s, timezone.utc).isoformat()}
        self._send("bulk_log", [entry], config)

    def close(self, state: RunState | None) -> None:
        pass  # its state is in the config, which tell() has sent

    def link(self) -> str:
        where = without_keys(self._source) if self._source else "this machine (trackio show)"
        return f"{where}, project {self._there.get('project')}, run {self._there.get('run')}"
