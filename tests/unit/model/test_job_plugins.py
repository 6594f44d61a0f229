"""Arguments of the plugins of Jobs: spellings, types, and the words without effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.controllers.jobs.plugins.registry import PLUGINS
from capcard_sched.model.job_plugins import JOB_PLUGINS, needed_plugins, parse_plugin_arguments

#: Plugin, words, the values that differ from the defaults, and the indices of the words without effect.
CASES = [
    ("svc", ["--inject-hosts-env=false"], {"inject-hosts-env": False}, []),
    (
        "svc",
        ["-inject-hosts-env=0", "--disable-network-policy"],
        {"inject-hosts-env": False, "disable-network-policy": True},
        [],
    ),
    ("svc", ["--disable-network-policy", "true"], {"disable-network-policy": True}, [1]),
    ("pytorch", ["--port", "9999", "-master", "m", "--worker=w"], {"port": 9999, "master": "m", "worker": "w"}, []),
    ("pytorch", ["--master", "--worker"], {"master": "--worker"}, []),
    ("pytorch", ["--master="], {"master": ""}, []),
    ("pytorch", ["--master=a", "--nope", "--worker=b"], {"master": "a"}, [1, 2]),
    ("pytorch", ["--port=x", "--worker=b"], {}, [0, 1]),
    ("pytorch", ["--port=70000", "--worker=b"], {"worker": "b"}, [0]),
    ("pytorch", ["--port"], {}, [0]),
    ("pytorch", ["--", "--port=1"], {}, [1]),
    ("pytorch", ["-", "--port=1"], {}, [0, 1]),
    ("pytorch", ["--port=1", "--port=2"], {"port": 2}, []),
    ("pytorch", ["--Port=1"], {}, [0]),
    ("ssh", ["--ssh-port=+2222"], {"ssh-port": 2222}, []),
    ("ssh", ["--ssh-port=-1", "--no-root"], {"no-root": True}, [0]),
    ("env", [""], {}, [0]),
]


@pytest.mark.parametrize("plugin, words, changed, ignored", CASES)
def test_arguments_are_parsed_as_go_does(plugin: str, words: list[str], changed: object, ignored: list[int]) -> None:
    found = parse_plugin_arguments(plugin, words)
    defaults = {name: row.default for name, row in JOB_PLUGINS[plugin].arguments.items()}
    assert {name: value for name, value in found.values.items() if value != defaults[name]} == changed
    assert [entry.place for entry in found.ignored] == ignored
    assert all(entry.message and entry.accepted for entry in found.ignored)


@given(st.sampled_from(sorted(JOB_PLUGINS)), st.lists(st.text(max_size=12)))
def test_any_words_give_a_value_of_its_type_for_each_argument(plugin: str, words: list[str]) -> None:
    found = parse_plugin_arguments(plugin, words)
    types = {name: type(row.default) for name, row in JOB_PLUGINS[plugin].arguments.items()}
    assert {name: type(value) for name, value in found.values.items()} == types


def test_messages_about_unknown_arguments_do_not_contain_their_values() -> None:
    found = parse_plugin_arguments("ssh", ["--ssh-privatekey=secret", "--ssh-public-key=secret"])
    assert [entry.place for entry in found.ignored] == [0, 1]
    assert "secret" not in repr(found.ignored)


def test_each_plugin_of_the_table_is_implemented() -> None:
    assert [plugin.name for plugin in PLUGINS] == list(JOB_PLUGINS)
    assert needed_plugins(["mpi", "ray"]) == ["ssh", "svc"]
    assert needed_plugins(["mpi", "svc", "other"]) == ["ssh"]
