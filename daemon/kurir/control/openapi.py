"""The description of the API (OpenAPI 3.1), made from the table of endpoints and the types that it names."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct

import kurir
from kurir.control import problems
from kurir.control.endpoint import Endpoint, Media, Reply, Who
from kurir.control.problems import ProblemDocument
from kurir.control.protocol import ENDPOINTS

_PARAMETER = re.compile(r"\{(\w+)\}")
_ALWAYS: Final = ("unknown_peer", "internal", "busy")  # busy: while the store is opened, or replaced
_WHO: Final = {
    Who.EVERYBODY: "For everybody.",
    Who.OWNER: "One's own objects; for administrators everybody's. Others' are not found.",
    Who.ADMIN: "For administrators.",
}


@cache
def document() -> bytes:
    """The whole description, as JSON."""
    return msgspec.json.encode(description())


def description() -> dict[str, Any]:
    """The whole description."""
    types: list[type[Struct]] = [ProblemDocument, *_types()]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = _operation(endpoint, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kurird",
            "version": kurir.__version__,
            "description": "The local API of kurird, spoken over its Unix socket. Who asks is known from the socket.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _types() -> list[type[Struct]]:
    found: dict[type[Struct], None] = {}
    for endpoint in ENDPOINTS:
        found.update(dict.fromkeys(type_ for type_ in endpoint.takes.values() if type_ is not None))
        for reply in endpoint.replies:
            found.update(dict.fromkeys(reply.shown))
    return list(found)


def _operation(endpoint: Endpoint, known: dict[type[Struct], dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": _WHO[endpoint.who],
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, known),
    }
    if endpoint.takes:
        operation["requestBody"] = {
            "required": any(_required(type_) for type_ in endpoint.takes.values()),
            "content": {_named(media): _content(media, type_, known) for media, type_ in endpoint.takes.items()},
        }
    return operation


def _named(media: Media) -> str:
    """The media type of a request. A payload may have any, and no tool can make a body of every type."""
    return "application/octet-stream" if media is Media.BYTES else media.value


def _required(type_: type[Struct] | None) -> bool:
    return type_ is not None and any(member.required for member in msgspec.structs.fields(type_))


def _content(media: Media, type_: type[Struct] | None, known: dict[type[Struct], dict[str, Any]]) -> dict[str, Any]:
    if type_ is None:
        return {"schema": {}}
    if media is Media.LINES:  # a line is an object; a document of them is no JSON
        return {"schema": {"type": "string"}}
    return {"schema": known[type_]}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    found += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in endpoint.headers
    ]
    (schema,), components = msgspec.json.schema_components([endpoint.query], ref_template="#/{name}")
    members = components[schema["$ref"].removeprefix("#/")]["properties"]
    for name, member in members.items():
        found.append({"name": name, "in": "query", "required": False, "schema": _inline(member, components)})
    return found


def _inline(member: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema without null, which no query can say, and without references."""
    choices = [one for one in member.get("anyOf", [member]) if one != {"type": "null"}]
    schema = choices[0]
    if "$ref" in schema:
        schema = components[schema["$ref"].removeprefix("#/")]
    return {name: value for name, value in schema.items() if not (name == "default" and value is None)}


def _responses(endpoint: Endpoint, known: dict[type[Struct], dict[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for reply in endpoint.replies:
        found = responses.setdefault(str(reply.status), {"description": HTTPStatus(reply.status).phrase})
        if reply.status != HTTPStatus.NO_CONTENT:
            found.setdefault("content", {})[reply.media.value] = {"schema": _shown(reply, known)}
        for name in reply.headers:
            found.setdefault("headers", {})[name] = {"schema": {"type": "string"}}
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*endpoint.refusals, *_ALWAYS)):
        by_status.setdefault(problems.KINDS[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        content = {problems.CONTENT_TYPE: {"schema": known[ProblemDocument]}}
        responses[str(status)] = {"description": ", ".join(codes), "content": content}
    return responses


def _shown(reply: Reply, known: dict[type[Struct], dict[str, Any]]) -> dict[str, Any]:
    if reply.media is not Media.JSON:
        return {} if reply.media is Media.BYTES else {"type": "string"}
    if not reply.shown:
        return {"type": "object"}
    shown = [known[type_] for type_ in reply.shown]
    return shown[0] if len(shown) == 1 else {"anyOf": shown}
