"""A small client of the Kubernetes API on the standard library: JSON in, JSON out, the cluster's own CA."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from localcluster.errors import ClusterError

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "localcluster"


class ApiError(ClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"API server answered {status}: {message}")
        self.status = status


class Api:
    """Calls one API server as one user. Every call is a connection of its own; safe in threads."""

    def __init__(self, server: str, ca: Path, token: str) -> None:
        parts = urlsplit(server)
        self._address = (parts.hostname or "", parts.port or 443)
        self._context = ssl.create_default_context(cafile=str(ca))
        self._token = token

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """One call. Returns parsed JSON, or the text when the answer is none. Raises ApiError for status 400 and up."""
        url = path + ("?" + urlencode(query) if query else "")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Content-Type": content_type}
        payload = None if body is None else json.dumps(body)
        connection = http.client.HTTPSConnection(*self._address, timeout=timeout, context=self._context)
        try:
            connection.request(method, url, body=payload, headers=headers | {"User-Agent": FIELD_MANAGER})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (http.client.HTTPException, TimeoutError) as error:
            raise ConnectionError(f"{method} {url}: {error}") from error
        finally:
            connection.close()
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if answer.status >= 400:
            message = parsed.get("message", text) if isinstance(parsed, dict) else text
            raise ApiError(answer.status, f"{method} {url}: {message}")
        return text if parsed is None else parsed

    def get(self, path: str, **query: str) -> Any:
        """GET."""
        return self.request("GET", path, query=query or None)

    def get_or_none(self, path: str) -> Any | None:
        """GET, None when there is no such object."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Any:
        """POST to a collection."""
        return self.request("POST", path, body)

    def delete(self, path: str, body: Object | None = None) -> None:
        """DELETE; an object that is already gone is fine."""
        try:
            self.request("DELETE", path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    def merge(self, path: str, patch: Object) -> Any:
        """Merge patch."""
        return self.request("PATCH", path, patch, content_type=MERGE_PATCH)

    def apply(self, path: str, body: Object) -> Any:
        """Server-side apply with force, as field manager `localcluster`. `path` is that of the object."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self.request("PATCH", path, body, query, content_type=APPLY_PATCH)
