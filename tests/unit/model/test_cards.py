"""Card annotations: accepted forms and errors."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.cards import (
    MAX_CARDS,
    CardSyntaxError,
    parse_card_name,
    parse_card_quota,
    parse_card_request,
)

HUGE = "9" * 100_000


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param(
            '{"NVIDIA-H200":3,"NVIDIA-H800/mps-80g*1/2":2}',
            {"NVIDIA-H200": 3000, "NVIDIA-H800/mps-80g*1/2": 2000},
            id="cards in order",
        ),
        pytest.param("{}", {}, id="no cards"),
        pytest.param("", {}, id="empty"),
        pytest.param(" \n ", {}, id="blank"),
        pytest.param("null", {}, id="null"),
        pytest.param(None, {}, id="absent"),
        pytest.param('{"A":0}', {"A": 0}, id="zero"),
        pytest.param('{"A":-0}', {"A": 0}, id="negative zero is zero"),
        pytest.param('{\n  "A": 1,\n  "B": 2\n}\n', {"A": 1000, "B": 2000}, id="block string"),
        pytest.param('{" A ":1}', {"A": 1000}, id="white space around a card is dropped"),
        pytest.param('{"卡":1}', {"卡": 1000}, id="any script"),
        pytest.param(f'{{"A":{MAX_CARDS}}}', {"A": MAX_CARDS * 1000}, id="as many as fit 64 bits"),
    ],
)
def test_quota_is_read_in_milli_cards(text: str | None, expected: dict[str, int]) -> None:
    found = parse_card_quota(text)
    assert list(found.items()) == list(expected.items())


MALFORMED_VALUES = [
    ('{"H200":2.5,"H100":4}', "<H200>: 2.5 is not a whole number"),
    ('{"H100":4,"H200":2.5}', "<H200>: 2.5 is not a whole number"),
    ('{"H200":2.0}', "<H200>: 2.0 is not a whole number"),
    ('{"H200":1e3}', "<H200>: 1e3 is not a whole number"),
    ('{"H200":-1}', "<H200>: -1 is not a whole number"),
    ('{"H200":"2"}', '<H200>: "2" is not a whole number'),
    ('{"H200":""}', '<H200>: "" is not a whole number'),
    ('{"H200":true}', "<H200>: true is not a whole number"),
    ('{"H200":false}', "<H200>: false is not a whole number"),
    ('{"H200":null}', "<H200>: null is not a whole number"),
    ('{"H200":[]}', "<H200>: [] is not a whole number"),
    ('{"H200":[1]}', "<H200>: [...] is not a whole number"),
    ('{"H200":{}}', "<H200>: {} is not a whole number"),
    ('{"H200":{"a":1}}', "<H200>: {...} is not a whole number"),
    ('{"H200":NaN}', "<H200>: NaN is not a whole number"),
    ('{"H200":Infinity}', "<H200>: Infinity is not a whole number"),
    ('{"H200":-Infinity}', "<H200>: -Infinity is not a whole number"),
    ('{"H200":1e999999}', "<H200>: 1e999999 is not a whole number"),
    ('{"H200":9223372036854776}', f"<H200>: 9223372036854776 is too large; at most {MAX_CARDS} cards"),
    (f'{{"H200":{HUGE}}}', f"<H200>: {'9' * 64}... is too large; at most {MAX_CARDS} cards"),
    (f'{{"H200":-{HUGE}}}', f"<H200>: -{'9' * 63}... is not a whole number"),
    ('{"H200":"\\ud800"}', '<H200>: "\\ud800" is not a whole number'),
    (f'{{"{"K" * 300}":"x"}}', f'<{"K" * 64}...>: "x" is not a whole number'),
    ('{"":1}', "<>: 1 has an empty card name"),
    ('{"  ":1}', "<  >: 1 has an empty card name"),
    ('{"H200":1,"H200":1}', "<H200>: 1 is a duplicate key; name each card once"),
    ('{"H200":1," H200":2}', "< H200>: 2 is a duplicate key; name each card once"),
    ('{"\\ud800":1}', '"\\ud800" is not valid Unicode text'),
    ("[1]", '[...] is not a JSON object such as {"NVIDIA-H200":8}'),
    ("[]", '[] is not a JSON object such as {"NVIDIA-H200":8}'),
    ('"H200"', '"H200" is not a JSON object such as {"NVIDIA-H200":8}'),
    ("3", '3 is not a JSON object such as {"NVIDIA-H200":8}'),
    ("2.5", '2.5 is not a JSON object such as {"NVIDIA-H200":8}'),
    ("true", 'true is not a JSON object such as {"NVIDIA-H200":8}'),
]
EXPECTED_OBJECT = 'expected an object such as {"NVIDIA-H200":8}'
MALFORMED_JSON = [
    ("not json", f"not JSON: Expecting value at line 1 column 1; {EXPECTED_OBJECT}"),
    ("{", f"not JSON: Expecting property name enclosed in double quotes at line 1 column 2; {EXPECTED_OBJECT}"),
    ('{"A":1', f"not JSON: Expecting ',' delimiter at line 1 column 7; {EXPECTED_OBJECT}"),
    ('{"A":01}', f"not JSON: Expecting ',' delimiter at line 1 column 7; {EXPECTED_OBJECT}"),
    ('{"A":1}}', f"not JSON: Extra data at line 1 column 8; {EXPECTED_OBJECT}"),
    ('{"A":+1}', f"not JSON: Expecting value at line 1 column 6; {EXPECTED_OBJECT}"),
    ("H200: 3", f"not JSON: Expecting value at line 1 column 1; {EXPECTED_OBJECT}"),
    ("\n\n{,}", "at line 3 column 2"),
    ("\ufeff{}", f"not JSON: Expecting value at line 1 column 1; {EXPECTED_OBJECT}"),
    ("[" * 100_000, "nested too deeply; expected a JSON object of card names and integers"),
    ('{"a":' * 40_000, "nested too deeply; expected a JSON object of card names and integers"),
    ("[" * 900 + "]" * 900, '[...] is not a JSON object such as {"NVIDIA-H200":8}'),
    (f'{{"A":1{" " * 262144}}}', "longer than 262144 characters"),
]


@pytest.mark.parametrize(
    "text, detail",
    [
        *MALFORMED_VALUES,
        *MALFORMED_JSON,
        ('{"A||B":1}', "<A||B>: 1 has an empty card name"),
        ('{"A| ":1}', "<A| >: 1 has an empty card name"),
        ('{"A|A":2}', "<A|A>: 2 has a card twice"),
        ('{"A|B":1," B | A ":2}', "< B | A >: 2 is a duplicate key; name each card once"),
        ('{"A|B":1,"C|B":2}', "<A|B> and <B|C> overlap: one of them must have all cards of the other"),
    ],
    ids=lambda text: text[:32],
)
def test_malformed_quota_is_refused_whole_and_named(text: str, detail: str) -> None:
    with pytest.raises(CardSyntaxError) as caught:
        parse_card_quota(text)
    assert detail in str(caught.value)
    str(caught.value).encode()
    assert len(str(caught.value)) < 300


def test_a_group_limits_its_cards() -> None:
    quota = parse_card_quota('{"B|A": 4, "B": 1, "C": 2, "A|B|C|D": 3}')
    assert quota == {"A": 3000, "B": 1000, "C": 2000, "D": 3000}
    assert [(group.key, group.limit) for group in quota.groups] == [("A|B", 4000), ("A|B|C|D", 3000)]


@pytest.mark.parametrize(
    "text, detail",
    [
        *MALFORMED_VALUES,
        *MALFORMED_JSON,
        ('{"A||B":1}', "invalid card name <A||B>: empty alternative"),
        ('{"|A":1}', "invalid card name <|A>: empty alternative"),
        ('{"A| ":1}', "invalid card name <A| >: empty alternative"),
        ('{"|":1}', "invalid card name <|>: empty alternative"),
        ('{"A|B":1," A | B ":2}', "< A | B >: 2 is a duplicate key; name each card once"),
        ('{"A":1,"A|A":2}', "<A|A>: 2 is a duplicate key; name each card once"),
        ('{"A|B":"2"}', '<A|B>: "2" is not a whole number'),
    ],
    ids=lambda text: text[:32],
)
def test_malformed_request_is_refused_whole_and_named(text: str, detail: str) -> None:
    with pytest.raises(CardSyntaxError) as caught:
        parse_card_request(text)
    assert detail in str(caught.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"A|B":2}', {"A|B": 2000}),
        ('{"A":1,"B":0}', {"A": 1000, "B": 0}),
        ('{" A | B|A ":2}', {"A|B": 2000}),
        ('{"A|B":1,"B|A":2}', {"A|B": 1000, "B|A": 2000}),
        ("{}", {}),
        ("null", {}),
        (None, {}),
    ],
)
def test_request_keys_are_normalised_and_keep_their_preference(text: str | None, expected: dict[str, int]) -> None:
    assert list(parse_card_request(text).items()) == list(expected.items())


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param(" A100 | H100 ", ("A100", "H100"), id="white space"),
        pytest.param("A100|A100", ("A100",), id="repetition"),
        pytest.param("B|A|B", ("B", "A"), id="first mention decides preference"),
        pytest.param("NVIDIA-H800/mps-80g*1/2", ("NVIDIA-H800/mps-80g*1/2",), id="a slice"),
        pytest.param("a|A", ("a", "A"), id="case matters"),
        pytest.param("", (), id="empty"),
        pytest.param(None, (), id="absent"),
    ],
)
def test_card_names_are_alternatives_in_order(text: str | None, expected: tuple[str, ...]) -> None:
    assert parse_card_name(text) == expected


@pytest.mark.parametrize("text", ["A100|", "|A", "A||B", "A| |B", "|", "||"])
def test_an_empty_alternative_is_refused_with_the_message_of_vector_70b(text: str) -> None:
    with pytest.raises(CardSyntaxError) as caught:
        parse_card_name(text)
    assert str(caught.value) == f"invalid card name <{text}>: empty alternative"


@given(st.one_of(st.text(max_size=60), st.text(alphabet='{}[]:,"|AB 1-.e\\u', max_size=30)))
def test_any_text_parses_cleanly_or_is_a_syntax_error(text: str) -> None:
    for parse in (parse_card_quota, parse_card_request):
        with contextlib.suppress(CardSyntaxError):
            for card, amount in parse(text).items():
                assert card.strip()
                assert amount >= 0
                assert amount % 1000 == 0
    with contextlib.suppress(CardSyntaxError):
        assert all(card == card.strip() != "" for card in parse_card_name(text))


@pytest.mark.timeout(20)  # a quadratic parser would take minutes
def test_hostile_annotations_are_refused_at_once() -> None:
    for text in ('{"A":' + "9" * 200_000 + "}", "[" * 262_144, '{"A":1e' + "9" * 200_000 + "}", "x" * 10**7):
        with pytest.raises(CardSyntaxError):
            parse_card_quota(text)
