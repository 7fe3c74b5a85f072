"""Numbers, measures, times, dates and money are spoken right in each of the ten languages."""

from pathlib import Path

import pytest
import yaml

from wyoming_qwen3tts.text.normalize import SPOKEN_RULES, normalize
from wyoming_qwen3tts.text.numbers import cardinal, spell_digits
from wyoming_qwen3tts.text.rules import LANGUAGES, language_rules

FORMS: dict[str, list[list[str]]] = yaml.safe_load(
    (Path(__file__).parent / "spoken_forms.yaml").read_text(encoding="utf-8")
)
ROWS = [(code, written, spoken) for code, rows in FORMS.items() for written, spoken in rows]


@pytest.mark.parametrize(("code", "written", "spoken"), ROWS)
def test_it_is_spoken_so(code: str, written: str, spoken: str) -> None:
    assert normalize(written, code) == spoken
    assert normalize(spoken, code) == spoken


REPORTED: dict[str, dict[str, list[list[str]]]] = yaml.safe_load(
    (Path(__file__).parent / "reported_kinds.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("kind", REPORTED)
def test_what_people_reported_is_right(kind: str) -> None:
    for code, rows in REPORTED[kind].items():
        for written, spoken in rows:
            assert normalize(written, code) == spoken, code
            assert normalize(spoken, code) == spoken, code


def test_every_language_has_its_table() -> None:
    assert set(FORMS) == set(LANGUAGES)
    assert all(len(rows) >= 12 for rows in FORMS.values())


# What is no number, or whose right form depends on more than we know, keeps its digits.
LEFT_ALONE = [
    ("en", "H2O, B12, mp3, A4, 5G and MP4 are names."),
    ("en", "The AT&T tower on 1st-street."),
    ("en", "The ratio is 16:9."),
    ("en", "He is 5'10\" tall, page 5/10."),
    ("en", "CO2, Wi-Fi 6E, 3D."),
    ("en", "may 5"),
    ("de", "Hier ist 1 Person mit 1 Hund."),
    ("de", "3. Etage, bitte."),
    ("de", "Es ist 1 Grad."),
    ("fr", "Il y a 1 truc."),
    ("it", "Ecco 1 orologio."),
    ("es", "Hay 1 tren y 21 trenes."),
    ("ru", "Подойди к 5 столам."),
    ("ru", "Это 2 новых стола."),
    ("ru", "Поговорим о 3 вещах."),
    ("ru", "Работает с 9:00 до 18:00."),
    ("ru", "Число 3,14159."),
    ("zh", "5G网络和4K电视。"),
    ("ja", "5Gと4K。"),
    ("ko", "5G와 4K."),
]


@pytest.mark.parametrize(("code", "text"), LEFT_ALONE)
def test_what_is_uncertain_keeps_its_digits(code: str, text: str) -> None:
    expected = {
        "The AT&T tower on 1st-street.": "The AT&T tower on first-street.",
        "may 5": "may five.",
    }.get(text, text)
    assert normalize(text, code) == expected


NOTATIONS = [
    # The decimal mark and the thousands mark change places between languages.
    ("en", "1,234.5", "one thousand two hundred and thirty-four point five"),
    ("de", "1.234,5", "eintausendzweihundertvierunddreißig Komma fünf"),
    ("de", "1'234", "eintausendzweihundertvierunddreißig"),
    ("de", "0.125", "null Komma eins zwei fünf"),
    ("fr", "1 234,5", "mille deux cent trente-quatre virgule cinq"),
    ("ru", "1 234", "тысяча двести тридцать четыре"),
    ("es", "1.234,05", "mil doscientos treinta y cuatro coma cero cinco"),
    # Sensors write a point whatever the language.
    ("de", "21.5", "einundzwanzig Komma fünf"),
    ("it", "21.5", "ventuno virgola cinque"),
    ("ru", "21.5", "двадцать одна целая пять десятых"),
    ("en", "3,5", "three point five"),
    ("en", "007", "zero zero seven"),
    ("en", "12345678901", "one two three four five six seven eight nine zero one"),
    ("en", "-7", "minus seven"),
    ("en", "\u22127 and +7", "minus seven and plus seven"),
    ("en", "1\u00bd", "one point five"),
    ("en", "2 × 3 = 6", "two times three equals six"),
    ("en", "the 1990s", "the nineteen nineties"),
    ("en", "from 1995-2000", "from nineteen ninety-five to two thousand"),
    ("en", "2026-11-29T14:30:00Z",
     "November twenty-ninth, twenty twenty-six two thirty PM"),
    ("en", "1 000 000 or 1.000.000", "one million or one million"),
    ("en", "in 2h 15m", "in two hours fifteen minutes"),
    ("en", "5pm-6pm, 18 °C–22 °C",
     "five PM to six PM, eighteen degrees Celsius to twenty-two degrees Celsius"),
    ("en", "the 50s and 30s", "the fifties and thirty seconds"),
    ("de", "192.168.178.100",
     "einhundertzweiundneunzig Punkt einhundertachtundsechzig Punkt "
     "einhundertachtundsiebzig Punkt einhundert"),
    ("de", "Version 2.0", "Version zwei Punkt null"),
    ("de", "die 1990er", "die neunzehnhundertneunziger"),
    ("de", "1 von 3", "eins von drei"),
    ("it", "al 2° piano sono 2°", "al secondo piano sono due gradi"),
    ("es", "1 de cada 3", "uno de cada tres"),
    ("fr", "n° 5", "numéro cinq"),
    ("ru", "от -5 до -10 °C", "от минус пяти до минус десяти градусов Цельсия"),
    ("de", "Es ist 14.30 Uhr", "Es ist vierzehn Uhr dreißig"),
    ("ru", "от 3 до 5 кг", "от трёх до пяти килограммов"),
    ("ru", "Москва, 2026 г. и 5 г соли", "Москва, 2026 г. и пять граммов соли"),
    ("ru", "в 2026 г. и", "в две тысячи двадцать шестом году и"),
    ("ru", "до 2027 г. и", "до две тысячи двадцать седьмого года и"),
    ("zh", "10万元", "十万元"),
    ("zh", "-3%", "负百分之三"),
    ("zh", "2:30 PM", "十四点三十分"),
    ("ko", "3개월, 3개, 15시", "삼개월, 세 개, 십오시"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "written", "spoken"), NOTATIONS)
def test_each_notation_is_read(code: str, written: str, spoken: str) -> None:
    assert normalize(written, code, SPOKEN_RULES) == spoken


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "零"), (2, "二"), (10, "十"), (12, "十二"), (110, "一百一十"), (1001, "一千零一"),
        (2350, "两千三百五十"), (10_010, "一万零一十"), (20_000, "两万"), (100_000, "十万"),
        (1_010_000, "一百零一万"), (100_002_000, "一亿零两千"), (200_000_000, "两亿"),
        (1_234_567, "一百二十三万四千五百六十七"),
    ],
)  # fmt: skip
def test_chinese_numbers(value: int, words: str) -> None:
    assert cardinal(value, "zh") == words


def test_korean_native_numbers() -> None:
    assert [cardinal(value, "ko", gender="native") for value in (1, 3, 20, 21, 99, 100)] == [
        "한", "세", "스무", "스물한", "아흔아홉", "백",
    ]  # fmt: skip


@pytest.mark.parametrize("code", LANGUAGES)
def test_numbers_without_end_are_spelled(code: str) -> None:
    digits = "12345678901234567890"
    assert cardinal(int(digits), code) == spell_digits(digits, code)


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_unit_has_a_form_for_every_number(code: str) -> None:
    data = language_rules(code)
    for symbol in data.unit_symbols:
        for number in ("0", "1", "2", "5", "21", "2.5" if data.decimal == "." else "2,5"):
            spoken = normalize(f"x {number} {symbol}", code, SPOKEN_RULES)
            digits = "".join(char for char in spoken if char.isdigit())
            may_stay = {"", "1"} if (code, number) == ("de", "1") else {""}
            assert digits in may_stay, (symbol, spoken)


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_currency_is_known(code: str) -> None:
    for sign in ("€", "$", "£", "¥", "₩", "₽", "R$", "CHF", "₹"):
        for text in (f"{sign}5", f"5 {sign}", f"5.50 {sign}"):
            spoken = normalize(text, code)
            assert sign not in spoken
            assert not any(char.isdigit() for char in spoken)
