"""Images on a node: each is fetched once, however many kernels wait for it, and broken off when none does any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from retinue.agent.attempts import ImageIdentity, Layer, PullPolicy
from retinue.agent.docker.core.image_bounds import command_of, excess, variables_of, working_directory
from retinue.agent.docker.core.pull_progress import fold, worth_reporting
from retinue.agent.docker.credentials import CredentialsError, encode_login, read_credentials
from retinue.agent.docker.engine import MAX_ANSWER, MAX_ERROR, EngineError
from retinue.agent.docker.fetch_failures import NO_CREDENTIALS, UNREACHED, FetchFailure, failure_of
from retinue.agent.docker.fetched_images import FetchedImages
from retinue.agent.docker.image_platform import unfit_platform
from retinue.agent.docker.registries import is_named, parse_reference
from retinue.agent.docker.registry_addresses import RegistryAddresses, RegistryRefusedError, UnresolvedError
from retinue.agent.host.lanes import in_thread
from retinue.agent.kernel.core.signals import signal_named
from retinue.rpc import failpoints
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from pathlib import Path
    from signal import Signals

    import aiohttp

    from retinue.agent.docker.engine import Engine

    Report = Callable[[tuple[Layer, ...]], None]

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

PULL_TIMEOUT = 3600.0
"""Seconds until the fetching of an image is given up, all tries together."""
PAUSES = (1.0, 3.0, 9.0)
"""Seconds before another try after trouble that may pass."""
HELPER_TIMEOUT = 60.0
"""Seconds that a program may take that holds credentials for registries."""
DENIED, FAILED, DIFFERS = AttemptReason.IMAGE_DENIED, AttemptReason.IMAGE_PULL_FAILED, AttemptReason.IMAGE_DIFFERS
FRESH = 60.0
"""Seconds for which a registry that takes credentials is believed to have let this node have an image."""
_MAX_LOGGED = 500


class ImageError(Exception):
    """An image cannot be had: `reason` as an UPPER_SNAKE word, the text says why."""

    def __init__(self, reason: str, message: str) -> None:
        """Both are for users to read."""
        super().__init__(message)
        self.reason = reason


def not_present(reference: str) -> ImageError:
    """Returns the error for an image that its pull policy keeps from being fetched."""
    why = "is not on this node as one that it may use, and its pull policy is never"
    return ImageError(AttemptReason.IMAGE_NOT_PRESENT, f"image {reference} {why}")


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is on the node, and what it says of itself."""

    identity: ImageIdentity
    user: str
    labels: Mapping[str, str]
    excess: str = ""
    """The parts of it that rule out a container, in words; empty when there are none."""
    variables: frozenset[str] = frozenset()
    """The names of the variables that it sets."""
    stop_signal: Signals | None = None
    working_directory: str = ""
    """Where its command starts; empty when it does not say."""
    command: tuple[str, ...] = ()
    """Its ENTRYPOINT and CMD."""


@dataclass(slots=True)
class _Fetch:
    """One fetch under way, and who waits for it."""

    task: asyncio.Task[None] | None = None
    reports: dict[object, Report] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()


class Images:
    """The images of one engine."""

    def __init__(
        self,
        engine: Engine,
        credentials: Path | None = None,
        addresses: RegistryAddresses | None = None,
        fetched: FetchedImages | None = None,
    ) -> None:
        """Asks the engine for nothing yet; `credentials` is a file in the format of Docker's `config.json`.

        `addresses` are those that registries may have; images that a fetch brought are noted in `fetched`.
        """
        self._engine = engine
        self._credentials = credentials
        self._addresses = addresses or RegistryAddresses()
        self._fetched = fetched or FetchedImages()
        # When a registry that takes credentials last let this node have an image, by reference and digest.
        self._granted: dict[tuple[str, str], float] = {}
        self._fetches: dict[tuple[str, str], _Fetch] = {}

    async def find(
        self, reference: str, wanted: ImageIdentity, policy: PullPolicy = PullPolicy.MISSING
    ) -> Image | None:
        """Returns the image if it is on the node, and is the `wanted` one if that is said. Raises EngineError.

        None as well where the policy is to ask for it always, and which it is to be is not known yet.
        None as well where its registry takes credentials, and has not let this node have it just now: that it is here
        says only that some user was allowed to pull it once.
        """
        if (policy is PullPolicy.ALWAYS and not wanted) or await self._is_to_be_asked_for(reference, wanted):
            return None
        return await self._find(reference, wanted)

    async def _is_to_be_asked_for(self, reference: str, wanted: ImageIdentity) -> bool:
        if time.monotonic() - self._granted.get((reference, wanted.digest), -FRESH) < FRESH:
            return False
        try:
            return bool(await self._login(parse_reference(reference).registry))
        except CredentialsError:
            return True

    async def _login(self, registry: str) -> dict[str, str]:
        """Returns what the engine needs to log in to a registry. Raises CredentialsError."""
        if self._credentials is None:
            return {}
        try:
            async with asyncio.timeout(HELPER_TIMEOUT):
                return await _in_thread(lambda: read_credentials(self._credentials, registry))
        except TimeoutError as error:
            raise CredentialsError(f"credentials for {registry} did not come within {HELPER_TIMEOUT:.0f} s") from error

    async def _find(self, reference: str, wanted: ImageIdentity) -> Image | None:
        repository = parse_reference(reference).repository
        names = [reference]
        if wanted:
            # The tag may have moved on since, here or in the registry.
            names += [f"{repository}@{wanted.digest}"] if wanted.digest else []
            names += [wanted.id] if wanted.id else []
        for name in names:
            found = await self._engine.image(name)
            # An engine takes the beginning of any image's id for a name as well.
            if found is None or (name is reference and not is_named(found, reference)):
                continue
            identities = _identities(found, repository)
            if not wanted or any(wanted.matches(identity) for identity in identities):
                configuration = found.get("Config") or {}
                labels = {str(key): str(value) for key, value in (configuration.get("Labels") or {}).items()}
                user = str(configuration.get("User") or "")
                self._fetched.used((identities[0].id,))
                stop = signal_named(str(configuration.get("StopSignal") or ""))
                variables = variables_of(configuration)
                directory = working_directory(configuration)
                system, machine = str(found.get("Os") or ""), str(found.get("Architecture") or "")
                unfit = excess(configuration) or await in_thread(unfit_platform, system, machine)
                command = command_of(configuration)
                return Image(identities[0], user, labels, unfit, variables, stop, directory, command)
        return None

    async def fetch(
        self, reference: str, wanted: ImageIdentity, report: Report, policy: PullPolicy = PullPolicy.MISSING
    ) -> Image:
        """Fetches an image that is not on the node; `report` is called on the loop with its layers, now and then.

        Others that want it wait for the same fetch. Each waiter may be cancelled; with the last one the fetch is
        cancelled. Raises ImageError, EngineError.
        """
        if wanted and not wanted.digest:
            message = (
                f"image {reference} was found to be {wanted.id}, which came from no registry and is not on this node"
            )
            raise ImageError(DIFFERS, message)
        if policy is PullPolicy.NEVER:
            raise not_present(reference)
        key = (reference, wanted.digest)
        fetch = self._fetches.setdefault(key, _Fetch())
        if fetch.task is None:
            fetch.task = asyncio.get_running_loop().create_task(self._fetch(key, fetch), name=f"fetch {reference}")
        waiter = object()
        fetch.reports[waiter] = report
        if fetch.layers:
            report(fetch.layers)
        try:
            await asyncio.shield(fetch.task)
        finally:
            del fetch.reports[waiter]
            if not fetch.reports and not fetch.task.done():
                # Later callers start a new pull.
                self._fetches.pop(key, None)
                fetch.task.cancel()
        if (image := await self._find(reference, wanted)) is None:
            raise ImageError(FAILED, f"image {reference} was fetched, and is gone again")
        return image

    async def close(self) -> None:
        """Waits for no image any more, and breaks off what is under way."""
        tasks = [fetch.task for fetch in self._fetches.values() if fetch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, key: tuple[str, str], fetch: _Fetch) -> None:
        reference, digest = key
        _log.info("fetching image %s", reference)
        try:
            async with asyncio.timeout(PULL_TIMEOUT):
                await self._try_often(reference, digest, fetch)
        except TimeoutError as error:
            raise ImageError(FAILED, f"image {reference} was not fetched within {PULL_TIMEOUT:.0f} s") from error
        finally:
            if self._fetches.get(key) is fetch:
                del self._fetches[key]

    async def _try_often(self, reference: str, digest: str, fetch: _Fetch) -> None:
        for pause in (*PAUSES, None):
            try:
                await self._try(reference, digest, fetch)
            except RegistryRefusedError as error:
                _log.warning("image %s is not fetched: %s", reference, error)
                raise ImageError(
                    DENIED, f"image {reference} is not fetched: its registry is not allowed here"
                ) from error
            except (EngineError, CredentialsError, UnresolvedError) as error:
                failure, said = _failure(error), _line(str(error))
                if not failure.may_pass or pause is None:
                    _log.warning("image %s cannot be fetched: %s", reference, said)
                    raise ImageError(failure.reason, f"image {reference} {failure.words}") from error
                _log.warning("image %s cannot be fetched, to be tried again in %.0f s: %s", reference, pause, said)
                await asyncio.sleep(pause)
            else:
                return

    async def _try(self, reference: str, digest: str, fetch: _Fetch) -> None:
        parts = parse_reference(reference)
        login = await self._login(parts.registry)
        await _in_thread(lambda: self._addresses.check(parts.registry))
        name = f"{parts.repository}@{digest}" if digest else reference
        before = await self._engine.image(name)
        layers: dict[str, Layer] = {}
        reported, when = tuple[Layer, ...](), 0.0
        async with contextlib.aclosing(pull(self._engine, parts.repository, digest or parts.wanted, login)) as events:
            async for event in events:
                layers = fold(layers, event)
                current = tuple(layers.values())
                if worth_reporting(reported, current, time.monotonic() - when):
                    fetch.layers, reported, when = current, current, time.monotonic()
                    for report in list(fetch.reports.values()):
                        report(current)
        if (there := await self._engine.image(name)) is None:
            # An engine that is asked to end may report the end of the fetch as well.
            raise EngineError("the Docker engine ended the fetch without having the image")
        if before is None or before["Id"] != there["Id"]:
            self._fetched.fetched(str(there["Id"]), name)
            await self._fetched.save()
        if login:
            now = time.monotonic()
            self._granted = {key: when for key, when in self._granted.items() if now - when < FRESH}
            self._granted[reference, digest] = now


def _failure(error: EngineError | CredentialsError | UnresolvedError) -> FetchFailure:
    match error:
        case CredentialsError():
            return NO_CREDENTIALS
        case UnresolvedError():
            return UNREACHED
        case _:
            return failure_of(str(error))


async def pull(
    engine: Engine, repository: str, wanted: str, login: dict[str, str]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the engine's progress events, until it has the image; `wanted` is a tag or a digest,
    `login` what `read_credentials` gives.

    The engine breaks the fetch off when this is closed, and keeps layers that are whole; aiodocker's own `pull` keeps
    its connection when it is cancelled, and bounds no error. Raises EngineError in the engine's words,
    EngineUnavailableError when cut off.
    """
    params, headers = {"fromImage": repository, "tag": wanted}, {"X-Registry-Auth": encode_login(login)}
    async with (
        engine.request("POST", "images/create", PULL_TIMEOUT, params=params, headers=headers) as response,
        contextlib.aclosing(_lines(response)) as lines,
    ):
        async for line in lines:
            try:
                event: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(event, dict):
                continue
            if "error" in event:
                raise EngineError(str(event["error"])[:MAX_ERROR])
            yield event


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yields the lines as they come. Raises EngineError when one does not end."""
    rest = bytearray()
    await failpoints.reach("engine.pull", EngineError)
    async for piece in response.content.iter_any():
        *lines, tail = piece.split(b"\n")
        for line in lines:
            yield bytes(rest + line)
            rest.clear()
        rest += tail
        if len(rest) > MAX_ANSWER:
            raise EngineError("the Docker engine reports an event without an end")


def _line(text: str) -> str:
    """Returns a message of an engine or a registry, made safe for a line of a log."""
    return "".join(character if character.isprintable() else " " for character in text[:_MAX_LOGGED])


def _identities(found: Mapping[str, Any], repository: str) -> list[ImageIdentity]:
    """Returns the identities of an image on the node, that of the repository first."""
    digests = [str(name).partition("@") for name in found.get("RepoDigests") or []]
    digests.sort(key=lambda parts: parts[0].removeprefix("docker.io/") != repository.removeprefix("docker.io/"))
    identifier = str(found["Id"])
    return [*(ImageIdentity(digest, identifier) for _, _, digest in digests), ImageIdentity("", identifier)]


@failpoints.awaited("images", OSError)
async def _in_thread(action: Callable[[], Result]) -> Result:
    """Runs something in a thread that neither the process waits for when it ends, nor others:
    a resolver may be silent for long, and so may a program that holds credentials.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if not done.done():
            done.set_result(cast("Result", result)) if error is None else done.set_exception(error)

    def run() -> None:
        result, problem = None, None
        try:
            result = action()
        except Exception as error:  # noqa: BLE001  # raised again for the waiter
            problem = error
        # The loop may be closed before the resolver has answered.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name="ask about a registry", daemon=True).start()
    return await done
