"""Quantities: what Kubernetes means by a text, kept in integers."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils import quantity as official_client
from pydantic import TypeAdapter, ValidationError

from contracts.quantities import (
    INT64,
    NANO,
    Amount,
    BadQuantity,
    Quantity,
    Written,
    add,
    amount_of,
    describe,
    fits,
    format_quantity,
    format_resources,
    lacking,
    parse,
    parse_nanos,
    parse_quantity,
    parse_resources,
    scale,
    subtract,
    without_zeros,
)

GPU = "nvidia.com/gpu"
SUFFIXES = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]

digits = st.text("0123456789", min_size=1, max_size=12)
numbers = st.one_of(
    digits, st.builds("{}.{}".format, digits, st.text("0123456789", max_size=12)), digits.map(".{}".format)
)
suffixes = st.one_of(
    st.sampled_from(SUFFIXES),
    st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 99)),
)
texts = st.builds("{}{}{}".format, st.sampled_from(["", "+", "-"]), numbers, suffixes)
resources = st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", GPU, "pods"])
amounts = st.integers(-(10**21), 10**21)
bundles = st.dictionaries(resources, st.integers(0, 2**70))


def official(text: str) -> Fraction:
    """The official client's reading, with digits enough for it to be exact."""
    with localcontext() as context:
        context.prec = 400
        return Fraction(official_parse(text))


def official_parse(text: str) -> Decimal:
    value: Decimal = official_client.parse_quantity(text)  # type: ignore[no-untyped-call]  # it ships no types
    return value


@given(texts)
def test_a_text_means_what_the_official_client_reads_down_to_a_nano_unit(text: str) -> None:
    nanos = official(text) * NANO
    up = -(-abs(nanos.numerator) // nanos.denominator)
    kept = up if nanos >= 0 else -up

    assert parse_quantity(text) == Fraction(kept, NANO)


@pytest.mark.parametrize(
    ("text", "resource", "amount"),
    [
        ("1", "cpu", 1000),
        ("1500m", "cpu", 1500),
        ("0.1", "cpu", 100),
        ("100u", "cpu", 1),
        ("1n", "cpu", 1),
        (0.5, "cpu", 500),
        (2, "cpu", 2000),
        ("1500m", "memory", 2),
        ("128Mi", "memory", 134_217_728),
        ("1G", "memory", 10**9),
        ("1.5Gi", "memory", 1_610_612_736),
        ("1e3", "memory", 1000),
        ("1E", "memory", 10**18),
        ("1E3", "memory", 1000),
        ("5E-1", "memory", 1),
        ("1Ei", "memory", 2**60),
        ("12e-1", "memory", 2),
        ("-1500m", "memory", -2),
        ("+4", GPU, 4),
        ("1.", GPU, 1),
        (".5", GPU, 1),
        ("0", GPU, 0),
        ("1e-99", GPU, 1),
        ("0e99", GPU, 0),
        (8, GPU, 8),
    ],
)
def test_an_amount_is_milli_for_cpu_and_whole_units_rounded_up_for_everything_else(
    text: Written, resource: str, amount: int
) -> None:
    assert parse(text, resource) == amount


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            ".",
            "-",
            "m",
            "Gi",
            "1 Gi",
            " 1",
            "1\n",
            "1K",
            "1ki",
            "1mi",
            "1MI",
            "1GiB",
            "1i",
            "1.1.1",
            "1e",
            "1e+",
        ),
        *("1e1.5", "1e3k", "--1", "+-1", "1,5", "1_000", "0x10", "NaN", "Infinity", "١", "eight", "1m1"),
    ],
)
def test_what_kubernetes_refuses_is_refused_with_a_sentence_that_quotes_it(text: str) -> None:
    with pytest.raises(BadQuantity) as refused:
        parse(text, "memory")

    assert str(refused.value) == f"{text!r} is not a quantity: write a number such as 2, 500m or 16Gi"


@pytest.mark.parametrize("text", ["1K", "1e3k", "1_000", "NaN", "Infinity", " 1"])
def test_the_official_client_is_laxer_than_the_api_server(text: str) -> None:
    official_parse(text)

    with pytest.raises(BadQuantity):
        parse_quantity(text)


def test_below_a_nano_unit_kubernetes_rounds_and_the_official_client_does_not() -> None:
    assert (parse_quantity("0.1n"), official_parse("0.1n")) == (Fraction(1, NANO), Decimal("1e-10"))


@pytest.mark.parametrize("text", [True, False, float("nan"), float("inf")])
def test_what_is_no_number_is_no_quantity(text: Written) -> None:
    with pytest.raises(BadQuantity, match="is not a quantity"):
        parse(text, GPU)


@pytest.mark.parametrize("text", ["1e100", "1e999999999", "1e-100", 1e300])
def test_an_exponent_of_three_digits_is_refused_and_never_capped(text: Written) -> None:
    with pytest.raises(BadQuantity, match="is not a quantity"):
        parse(text, GPU)


def test_a_text_of_a_thousand_digits_costs_nothing() -> None:
    with pytest.raises(BadQuantity, match="it has 1000 characters"):
        parse("1" * 1000, GPU)


# Q-A1
def test_q_a1_asking_zero_of_an_undeclared_resource_imposes_nothing() -> None:
    assert fits({"memory": 600, GPU: 0}, {"memory": 1000})
    assert lacking({"memory": 600, GPU: 0}, {"memory": 1000}) == {}


def test_asking_zero_of_what_is_overused_fits() -> None:
    assert fits({GPU: 0}, {GPU: -2})
    assert lacking({GPU: 0}, {GPU: -2}) == {}


def test_a_resource_that_is_not_listed_is_never_free_by_omission() -> None:
    assert not fits({GPU: 1}, {"memory": 1000})
    assert lacking({GPU: 1}, {"memory": 1000}) == {GPU: 1}


# Q-A2
@pytest.mark.parametrize(("cpu", "credits"), [("300m", 300), ("1500m", 1500), ("100u", 1)])
def test_q_a2_a_quantity_is_multiplied_before_it_is_rounded(cpu: str, credits: int) -> None:
    assert amount_of(parse_nanos(cpu) * 1000, "credits") == credits


# Q-A3
@pytest.mark.parametrize("written", ["1G", "1Gi", "1000M", "1024Mi", "0.5", "1e9", "+1", "01", "0"])
def test_q_a3_the_spelling_that_a_person_chose_survives_a_round_trip(written: str) -> None:
    wire: TypeAdapter[str] = TypeAdapter(Quantity)

    assert wire.dump_python(wire.validate_python(written), mode="json") == written


# Q-A4
@pytest.mark.parametrize(
    ("written", "resource", "amount"),
    [
        ("1P", "cpu", 10**18),
        ("10P", "cpu", 10**19),
        ("1E", "cpu", 10**21),
        ("1E", "memory", 10**18),
        ("10E", "memory", 10**19),
    ],
)
def test_q_a4_a_huge_quota_is_exact_and_never_becomes_zero(written: str, resource: str, amount: int) -> None:
    quota = parse_resources({resource: written})

    assert quota == {resource: amount}
    assert fits({resource: 1000}, quota)


# Q-A5
def test_q_a5_a_sum_of_huge_requests_is_huge_and_does_not_fit() -> None:
    asked = add(scale({GPU: 2**62}, 2), scale({GPU: 2**62}, 2))

    assert asked == {GPU: 2**64}
    assert not fits(asked, {GPU: 2**63 - 1})


# Q-A7
def test_q_a7_twice_the_largest_device_count_does_not_fit_a_quota_of_four() -> None:
    asked = scale({GPU: 2**63 - 1}, 2)

    assert lacking(asked, {GPU: 4}) == {GPU: 2**64 - 6}


# Q-A13
def test_q_a13_a_zero_quantity_is_a_quantity_that_fits_everywhere() -> None:
    asked = parse_resources({"memory": "0"})

    assert asked == {"memory": 0}
    assert without_zeros(asked) == {}
    assert fits(asked, {})


@given(amounts, resources)
def test_a_formatted_amount_reads_back_as_itself(amount: int, resource: str) -> None:
    assert parse(format_quantity(amount, resource), resource) == amount


@given(amounts, resources)
def test_a_described_amount_is_exact_and_no_longer_than_its_canonical_spelling_in_bytes(
    amount: int, resource: str
) -> None:
    described = describe(amount, resource)

    assert parse(described, resource) == amount
    if resource not in {"cpu", "pods", GPU}:
        assert len(described) <= len(format_quantity(amount, resource))


@pytest.mark.parametrize(
    ("amount", "resource", "canonical", "described"),
    [
        (0, "cpu", "0", "0"),
        (1500, "cpu", "1500m", "1.5"),
        (100, "cpu", "100m", "0.1"),
        (1, "cpu", "1m", "0.001"),
        (2_000_000, "cpu", "2k", "2000"),
        (-500, "cpu", "-500m", "-0.5"),
        (0, "memory", "0", "0"),
        (16 * 2**30, "memory", "16Gi", "16Gi"),
        (1536 * 2**20, "memory", "1536Mi", "1.5Gi"),
        (512 * 2**20, "memory", "512Mi", "512Mi"),
        (10**9, "memory", "1000000000", "1G"),
        (131_923_412 * 1024, "memory", "131923412Ki", "131923412Ki"),
        (513, "memory", "513", "513"),
        (8, GPU, "8", "8"),
        (1000, GPU, "1k", "1000"),
        (110, "pods", "110", "110"),
    ],
)
def test_an_amount_is_canonical_on_the_wire_and_short_in_a_sentence(
    amount: int, resource: str, canonical: str, described: str
) -> None:
    assert (format_quantity(amount, resource), describe(amount, resource)) == (canonical, described)


@given(bundles, bundles)
def test_what_is_taken_off_can_be_put_back(left: dict[str, int], right: dict[str, int]) -> None:
    assert without_zeros(subtract(add(left, right), right)) == without_zeros(left)


@given(bundles, st.integers(0, 5))
def test_scaling_is_repeated_adding(bundle: dict[str, int], times: int) -> None:
    assert without_zeros(scale(bundle, times)) == without_zeros(add(*[bundle] * times))


@given(bundles, bundles)
def test_what_fits_lacks_nothing_and_what_lacks_something_fits_once_it_is_added(
    asked: dict[str, int], free: dict[str, int]
) -> None:
    short = lacking(asked, free)

    assert fits(asked, free) == (short == {})
    assert fits(asked, add(free, short))


def test_arithmetic_leaves_its_arguments_as_they_were() -> None:
    one, two = {"cpu": 1}, {"cpu": 2, GPU: 1}
    add(one, two)
    subtract(one, two)

    assert (one, two) == ({"cpu": 1}, {"cpu": 2, GPU: 1})


def test_what_goes_below_zero_stays_visible() -> None:
    assert subtract({"cpu": 1}, {"cpu": 2, GPU: 1}) == {"cpu": -1, GPU: -1}


def test_what_is_overused_lacks_the_whole_request_and_no_more() -> None:
    assert lacking({GPU: 3}, {GPU: -2}) == {GPU: 3}


def test_a_bad_entry_is_told_with_its_resource() -> None:
    with pytest.raises(BadQuantity, match=r"^memory: '16GB' is not a quantity"):
        parse_resources({"cpu": "1", "memory": "16GB"})


def test_absent_resources_are_no_resources() -> None:
    assert parse_resources(None) == {}


def test_formatted_resources_stand_in_name_order() -> None:
    assert list(format_resources({GPU: 8, "cpu": 1500}).items()) == [("cpu", "1500m"), (GPU, "8")]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("-4", "'-4' is negative: a quantity here is zero or more"),
        (-4, "'-4' is negative: a quantity here is zero or more"),
        ("four", "'four' is not a quantity: write a number such as 2, 500m or 16Gi"),
        (0.5, "0.5 is not a quantity: write an integer, or a text such as '500m'"),
        (None, "None is not a quantity: write an integer, or a text such as '500m'"),
        (True, "True is not a quantity: write a number such as 2, 500m or 16Gi"),
    ],
)
def test_a_bad_quantity_on_the_wire_is_refused_with_a_sentence(given: object, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Quantity).validate_python(given)

    assert refused.value.errors()[0]["msg"] == f"Value error, {sentence}"


@given(texts | st.text("0123456789.eE+-kKMGmnui", max_size=70))
def test_what_the_api_server_lets_in_is_readable_behind_it(text: str) -> None:
    schema = TypeAdapter(Quantity).json_schema()

    def is_readable() -> bool:
        try:
            return parse_nanos(text) >= 0
        except BadQuantity:
            return False

    let_in = bool(re.search(schema["pattern"], text)) and len(text) <= schema["maxLength"]
    assert let_in == (is_readable() and not text.startswith("-"))


@pytest.mark.parametrize(("amount", "told"), [(7, 7), (2**64, INT64), (-(2**64), -INT64)])
def test_an_amount_beyond_what_the_api_server_takes_is_told_as_the_largest(amount: int, told: int) -> None:
    assert TypeAdapter(Amount).validate_python(amount) == told


def test_an_integer_on_the_wire_is_a_quantity() -> None:
    wire: TypeAdapter[str] = TypeAdapter(Quantity)

    assert wire.validate_json("8") == "8"
