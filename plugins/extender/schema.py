"""JSON Schema of requests and responses, as docs/extender.md publishes it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from capcard_sched.plugins.extender import wire


def schema() -> dict[str, Any]:
    """`verbs` names the request and the response of each verb, None where the body is ignored; `$defs` holds them."""
    types = {form for forms in wire.FORMS.values() for form in forms if form is not None}
    ordered = sorted(types, key=lambda form: form.__name__)
    _, definitions = msgspec.json.schema_components(ordered, ref_template="#/$defs/{name}")
    verbs = {
        f"extender.{verb}": {"request": sent.__name__, "response": None if read is None else read.__name__}
        for verb, (sent, read) in wire.FORMS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "verbs": verbs,
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def schema_text() -> str:
    """The schema as JSON with a line for each verb and each field."""
    found = schema()
    verbs = _lines(found["verbs"], "    ")
    definitions = []
    for name, definition in found["$defs"].items():
        fields = _lines(definition.pop("properties"), "      ")
        rest = json.dumps({key: value for key, value in definition.items() if key != "title" and value != []})
        start = f'    {json.dumps(name)}: {rest[:-1]}, "properties": {{'
        definitions.append(f"{start}\n{fields}\n    }}}}" if fields else f"{start}}}}}")
    parts = ["{", f'  "$schema": {json.dumps(found["$schema"])},', '  "verbs": {', verbs, "  },", '  "$defs": {']
    return "\n".join([*parts, ",\n".join(definitions), "  }", "}"])


def _lines(entries: dict[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
