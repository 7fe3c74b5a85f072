"""A real Home Assistant, started without a browser and used as its pages use it."""

import asyncio
import itertools
import shlex
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.acceptance.server_process import free_port

_CLIENT_ID = "http://127.0.0.1/"
_CONFIGURATION = """\
http:
  server_host: 127.0.0.1
  server_port: {port}
homeassistant:
  name: Acceptance
  external_url: http://127.0.0.1:{port}
  internal_url: http://127.0.0.1:{port}
config:
tts:
assist_pipeline:
zeroconf:
{component}:
logger:
  default: warning
  logs:
    homeassistant.components.wyoming: debug
"""
_START_TIMEOUT_S = 400.0


class Answer:
    """What an HTTP request came to."""

    def __init__(self, status: int, body: bytes, content_type: str, first_byte_s: float) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.first_byte_s = first_byte_s
        """Seconds from the request to the first byte of the body."""


class HomeAssistant:
    """A running Home Assistant with one user, and its HTTP and WebSocket doors."""

    def __init__(self, base: str, directory: Path, session: aiohttp.ClientSession) -> None:
        self.directory = directory
        self._base = base
        self._session = session
        self._headers: dict[str, str] = {}
        self._token = ""

    async def sign_in(self) -> None:
        """Make the first user, as the first page of a new installation does."""
        user = {
            "client_id": _CLIENT_ID,
            "name": "Acceptance",
            "username": "acceptance",
            "password": "only-for-a-minute",
            "language": "en",
        }
        code = (await self.post("/api/onboarding/users", user))["auth_code"]
        form = {"client_id": _CLIENT_ID, "grant_type": "authorization_code", "code": code}
        async with self._session.post(f"{self._base}/auth/token", data=form) as response:
            response.raise_for_status()
            self._token = (await response.json())["access_token"]
        self._headers = {"Authorization": f"Bearer {self._token}"}

    async def post(self, path: str, data: dict[str, Any]) -> Any:
        """Post JSON and return the answer's; an error status raises."""
        async with self._session.post(
            self._base + path, json=data, headers=self._headers
        ) as response:
            response.raise_for_status()
            return await response.json()

    async def get(self, path: str) -> Any:
        """Return the JSON at a path; an error status raises."""
        async with self._session.get(self._base + path, headers=self._headers) as response:
            response.raise_for_status()
            return await response.json()

    async def fetch(self, path: str) -> Answer:
        """Return whatever is at a path, errors included, as a player would get it."""
        started_s = time.perf_counter()
        async with self._session.get(self._base + path) as response:
            chunks = [await response.content.readany()]
            first_byte_s = time.perf_counter() - started_s
            try:
                chunks += [chunk async for chunk in response.content.iter_any()]
            except aiohttp.ClientPayloadError:
                chunks.append(b"")
            return Answer(response.status, b"".join(chunks), response.content_type, first_byte_s)

    @asynccontextmanager
    async def web_socket(self) -> AsyncIterator["WebSocket"]:
        """Open the WebSocket and sign in to it."""
        async with self._session.ws_connect(f"{self._base}/api/websocket") as connection:
            await connection.receive_json()
            await connection.send_json({"type": "auth", "access_token": self._token})
            answer = await connection.receive_json()
            assert answer["type"] == "auth_ok", answer
            yield WebSocket(connection)

    async def ask(self, kind: str, **data: Any) -> Any:
        """Send one WebSocket command and return its result."""
        async with self.web_socket() as connection:
            return await connection.ask(kind, **data)

    def log(self) -> str:
        """Return the log so far."""
        return (self.directory / "home-assistant.log").read_text()


class WebSocket:
    """A signed-in WebSocket."""

    def __init__(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._connection = connection
        self._ids = itertools.count(1)

    async def ask(self, kind: str, **data: Any) -> Any:
        """Send one command and return its result."""
        number = next(self._ids)
        await self._connection.send_json({"id": number, "type": kind, **data})
        while (message := await self._connection.receive_json())["type"] != "result":
            pass
        if not message["success"]:
            raise RuntimeError(f"{kind}: {message['error']}")
        return message["result"]

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events of a command that was sent before."""
        while True:
            message = await self._connection.receive_json()
            if message["type"] == "event":
                yield message["event"]


@asynccontextmanager
async def running_home_assistant(
    command: str, directory: Path, component: Path
) -> AsyncIterator[HomeAssistant]:
    """Start Home Assistant in an empty directory, make a user, and stop it in the end.

    Args:
        command: The program ``hass``; the directory is added to it.
        directory: Where it keeps its configuration.
        component: Folder of a custom component that it loads, if it can.
    """
    port = free_port()
    shutil.copytree(
        component,
        directory / "custom_components" / component.name,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    text = _CONFIGURATION.format(port=port, component=component.name)
    (directory / "configuration.yaml").write_text(text)
    output = (directory / "output.log").open("w")
    process = subprocess.Popen(  # noqa: ASYNC220 - it only has to run beside us
        [*shlex.split(command), "--config", str(directory), "--log-file",
         str(directory / "home-assistant.log")],
        stdout=output,
        stderr=output,
    )  # fmt: skip
    # A request that hangs is a finding: nothing here may take longer than this.
    timeout = aiohttp.ClientTimeout(total=120)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            home = HomeAssistant(f"http://127.0.0.1:{port}", directory, session)
            await _wait_until_up(home, process)
            await home.sign_in()
            yield home
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        output.close()


async def _wait_until_up(home: HomeAssistant, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            output = (home.directory / "output.log").read_text()
            raise RuntimeError(f"Home Assistant ended at once:\n{output[-4000:]}")
        try:
            await home.get("/api/onboarding")
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(1)
        else:
            return
    raise TimeoutError(f"Home Assistant is not up; see {home.directory}")
