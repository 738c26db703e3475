"""Templates are foreign code: what they may use, what they cannot reach, and that they always end."""

import datetime
import re

import pytest

from strata.errors import ModelFileError, UsageError
from strata.text.chat import ChatTemplate
from strata.text.chat.budget import Budget

USER = {"role": "user", "content": "hi"}


def render(source, **options):
    """The source rendered with one message; room for short texts and few steps only."""
    budget = Budget(max_steps=50_000, max_chars=100_000)
    return ChatTemplate(source).render([USER], budget=budget, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ x | tojson }}", '{"k": ["é<&>", null]}'),
        ("{{ x | tojson(indent=2) }}", '{\n  "k": [\n    "é<&>",\n    null\n  ]\n}'),
        ("{{ x | tojson(ensure_ascii=true, separators=(',', ':')) }}", '{"k":["\\u00e9<&>",null]}'),
        ("{{ [3, 1, 2][::-1] }}", "[2, 1, 3]"),
        ("{% for k, v in x | items %}{{ k }}={{ v[0] }}{% endfor %}", "k=é<&>"),
        ("{% set n = namespace(v=1) %}{% for i in range(3) %}{% set n.v = n.v * 2 %}{% endfor %}{{ n.v }}", "8"),
        ("{% macro m(a, b=2) %}{{ a ~ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=none) }}", "121None"),
        ("{% for i in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.length }};{% endfor %}", "23;133;23;"),
        ("{% for i in [1, 2] %}{{ loop.revindex }}{{ loop.last }}{% endfor %}", "2False1True"),
        ("{% for i in range(9) if i % 2 %}{% if i > 6 %}{% break %}{% endif %}{{ i }}{% endfor %}", "135"),
        ("{% for i in nothing %}{{ i }}{% else %}none{% endfor %}", "none"),
        ("{% generation %}a{% if true %}b{% endif %}{% endgeneration %}c", "abc"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{{ dict(a=1) | tojson }}", '{"a": 1}'),
        ("{{ 1 ~ 'a' ~ none ~ missing }}", "1aNone"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>3}'.format('b') }}{{ '%d' | format(1234567) }}", "a-007  b1234567"),
        ("{{ '%s 20261130123456 {}'.format('b') % 'a' }}", "a 20261130123456 b"),
        ("{{ messages[0]['content'].ljust(4, '.') }}{{ messages | map(attribute='role') | join(',') }}", "hi..user"),
        ("{{ [1, 2] + [3] }}{{ 'a' * 3 }}{{ 2 ** 10 }}{{ 3 * 4 }}", "[1, 2, 3]aaa102412"),
        ("{% for a in [[1, [2]], []] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "12"),
    ],
)  # fmt: skip
def test_what_templates_use(source, text):
    assert render(source, x={"k": ["é<&>", None]}) == text


def test_strftime_now():
    year = str(datetime.datetime.now().year)
    assert re.fullmatch(rf"{year}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n._x = 1 %}{{ n._x.y }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ lipsum() }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'x' %}",
    ],
)
def test_what_they_cannot_reach(source):
    with pytest.raises(UsageError, match="fails on this conversation") as error:
        render(source)
    assert "\n" not in str(error.value)


FOREVER = "{% for a in range(99999) %}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (FOREVER + FOREVER + "{% endfor %}{% endfor %}", "50000 steps"),
        (FOREVER + "{{ 'x' * 999 }}{% endfor %}", "100899 characters|100000 are allowed"),
        ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}", "50000 steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests too deep"),
        ("{% for a in [[1, 1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}", "nests too deep|50000 steps"),
        ("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "131072 char"),
        ("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", "131072 char"),
        ("{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", "131072 char"),
        ("{{ 'x' * 9999999999 }}", "9999999999 char"),
        ("{{ 9999999999 * ['x'] }}", "9999999999 char"),
        ("{{ 7 ** 99999999 }}", "bits"),
        ("{% set n = namespace(v=9) %}{% for i in range(60) %}{% set n.v = n.v * n.v %}{% endfor %}", "bits"),
        ("{{ 'x'.ljust(9999999999) }}", "9999999999 char"),
        ("{{ 'x' | center(9999999999) }}", "9999999999 char"),
        ("{{ ('a\n' * 9) | indent(9999999999) }}", "characters"),
        ("{{ '\t'.expandtabs(9999999999) }}", "9999999999 char"),
        ("{{ ('x' * 9999).replace('x', 'y' * 9999) }}", "characters"),
        ("{{ ('x' * 9999) | replace('x', 'y' * 9999) }}", "characters"),
        ("{{ ('x' * 9999).join(['a'] * 9999) }}", "characters"),
        ("{{ (['a'] * 9999) | join('x' * 9999) }}", "characters"),
        ("{{ '%9999999999d' % 1 }}", "9999999999 char"),
        ("{{ '%*d' % (9999999999, 1) }}", "9999999999 char"),
        ("{{ '{:9999999999}'.format(1) }}", "9999999999 char"),
        ("{{ '{:{}}'.format(1, 9999999999) }}", "9999999999 char"),
        ("{{ '{!r:x>{w}}'.format_map({'w': 9999999999}) }}", "9999999999 char"),
        ("{{ '%(a)9999999999d' % {'a': 1} }}", "9999999999 char"),
        ("{{ '%9999999999s' | format('a') }}", "9999999999 char"),
        ("{{ [1] | batch(9999999999, 0) | list }}", "9999999999 char"),
    ],
)  # fmt: skip
def test_bounds(source, says):
    with pytest.raises(ModelFileError, match=says) as error:
        render(source)
    assert "\n" not in str(error.value)


def test_time_is_bounded_too():
    with pytest.raises(ModelFileError, match="more than 0 s"):
        ChatTemplate("{% for a in [1] %}{% endfor %}").render([USER], budget=Budget(max_seconds=0))


def test_nothing_runs_while_compiling():
    ChatTemplate("{{ 'x' | center(9999999999) }}{{ 'x' * 9999999999 }}{{ 7 ** 99999999 }}")


def test_a_long_ordinary_chat_is_far_from_the_bounds():
    source = "{% for m in messages %}{{ '<|start|>' ~ m.role ~ '\n' ~ (m.content | trim) ~ '<|end|>\n' }}{% endfor %}"
    budget = Budget()
    text = ChatTemplate(source).render([USER | {"content": "word " * 100}] * 5000, budget=budget)
    assert len(text) > 2_500_000 and budget.steps < budget.max_steps / 100


def test_an_integer_out_of_a_message_is_no_width():
    assert (
        render("{% macro m(v) %}{{ v }}{% endmacro %}{{ m(x) }}{{ x | string }}", x=1700000000)
        == "1700000000" * 2
    )
