"""What is written but not spoken: markdown, HTML, links, emoji, stage directions, stray marks."""

import html
import re
import string
import unicodedata
from typing import Final

from wyoming_qwen3tts.text.language import script_of
from wyoming_qwen3tts.text.rules import LanguageRules, language_rules, stage_directions

# Possessive where a long row of one sign would be tried in all its lengths, which takes minutes.
_FENCED = re.compile(
    r"^[ \t]*+(`{3,}+|~{3,}+)[^`\n]*+\n(?:.*?^[ \t]*+\1[`~]*+[ \t]*+$|.*\Z)",
    re.DOTALL | re.MULTILINE,
)
_OPEN_FENCE = re.compile(r"^[ \t]*+(?:`{3,}+|~{3,}+)[^`\n]*+\Z", re.MULTILINE)
_HIDDEN = re.compile(
    r"<(think|thinking|reasoning|script|style)\b[^<>]*>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE
)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SPECIAL_TOKEN = re.compile(r"<\|[^|<>\n]{1,40}\|>")
_PAUSE = re.compile(
    r"[ \t]*(?:\[pause(?: [0-9.]{1,6} ?m?s)?\]|<break\b[^<>]*>)[ \t]*", re.IGNORECASE
)
_ALIAS = re.compile(r"<sub\b[^<>]*\balias=[\"']([^\"'<>]*)[\"'][^<>]*>.*?</sub>", re.DOTALL)
_ATTRIBUTES: Final = r"(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>]+))*"
_LINE_TAG = re.compile(
    rf"</?(?:br|p|div|li|ul|ol|tr|table|h[1-6]|s|sentence|paragraph){_ATTRIBUTES}\s*/?>",
    re.IGNORECASE,
)
_TAG = re.compile(rf"</?[A-Za-z][\w:.-]*{_ATTRIBUTES}\s*/?>")

_RULE_LINE = re.compile(
    r"[ \t]*(?:\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)*\|?|"
    r"([-*_=])(?:[ \t]*\1){2,})[ \t]*$"
)
# "> 25 °C" is a comparison.
_QUOTE_MARK = re.compile(r"[ \t]*+(?:>[ \t]?+)++(?![-−]?[0-9])")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$")
_BULLET = re.compile(r"[ \t]*(?:[-*+•◦▪‣·●○►➤–—][ \t]+)+(?:\[[ xX]\][ \t]+)?")
_NUMBERED = re.compile(r"[ \t]*[0-9]{1,3}[.)][ \t]+(?=(\w*))")
_TABLE_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*$|[^|\n]+(?:\|[^|\n]+){2,}$")

_LINK_TARGET: Final = r"\((?:[^()\s]|\([^()\s]*\))*(?:\s+[\"'][^\"'\n]*[\"'])?\)"
_IMAGE = re.compile(rf"!\[([^\]\n]*)\]{_LINK_TARGET}")
_LINK = re.compile(rf"\[([^\]\n]+)\](?:{_LINK_TARGET}|\[[^\]\n]*\])")
_FOOTNOTE = re.compile(r"\[\^[\w-]+\]:?")
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_EMPHASIS = (
    re.compile(r"(?<![A-Za-z0-9\\*])(\*{1,3})(?=[^\s*])([^\n]*?[^\s*\\])\1(?![A-Za-z0-9*])"),
    re.compile(r"(\*\*)(?=[^\s*])([^\n]+?)\1"),
    re.compile(r"(?<![\w\\])(_{1,3})(?=[^\s_])([^\n]*?[^\s_\\])\1(?!\w)"),
    re.compile(r"(~~)(?=[^\s~])([^\n]+?)\1"),
    re.compile(r"(==)(?=[^\s=])([^\n]+?)\1"),
)
_STRAY = re.compile(
    r"(?<!\\)(?:\*{2,}|`+|~~+|(?<![\s0-9])\*(?![0-9])|(?<![0-9])\*(?!\s)|(?<=\s)\*(?=\s*$))"
)
_TIMES = re.compile(r"(?<=[0-9])[ \t]*\*[ \t]*(?=[0-9])")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~])")
_SNAKE = re.compile(r"(?<=[^\W_])_+(?=[^\W_])")

_URL = re.compile(
    r"(?:(?:https?|ftp|wss?)://|\bwww\.)[^\s<>\"“”「」（）()，。！？]+", re.IGNORECASE
)
_HOST = re.compile(r"(?:[a-z]+://)?(?:[^/@\s]*@)?(?:www\.)?([^/:?#\s]+)", re.IGNORECASE)
_EMAIL = re.compile(r"(?:mailto:)?([\w.+-]+)@([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)")
_DOMAIN = re.compile(
    r"(?<![\w.@/-])((?:[a-z0-9-]+\.)+(?:com|org|net|io|de|dev|app|info|ai|eu|gov|edu))"
    r"(?:/[^\s<>]*)?(?![\w-]|\.\w)"
)

_EMOJI = re.compile(
    "[\u2139\u231a-\u23ff\u25a0-\u27bf\u2b00-\u2bff\u3030\u303d©®™"
    "\U0001f000-\U0001fbff\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]+"
)
_KEYCAP = re.compile("(?<=[0-9#*])\ufe0f?\u20e3")
_ARROW = re.compile("[ \t]*(?:[\u2190-\u21ff\u2900-\u297f]\ufe0f?|(?<=\\s)[-=]+>(?=\\s))+[ \t]*")
_EMOTICON = re.compile(
    r"(?<![^\s.!?,])[:;=]['’]?-?[()DPpOo/|\\*]+(?![^\s.!?,])"
    r"|(?<=\bI )<3(?= )|(?<!\S)<3(?=\s*(?:$|[\n.!]))"
)

_BETWEEN_STARS = re.compile(
    r"(?:(?<=[.!?…,:;] )|(?<=[。！？，])|(?<![^\n]))(?<!\*)([*_])([^*_\n]{1,60})\1(?!\*)"
)
_IN_BRACKETS = re.compile(r"\[([^\[\]\n]{1,60})\](?![(\[])|[(（【]([^()（）【】\n]{1,60})[)）】]")
_MAX_DIRECTION_CHARS = 40


def drop_code_blocks(text: str) -> str:
    """Leave out blocks of code and of hidden thoughts, also one that is not closed."""
    return _OPEN_FENCE.sub("", _FENCED.sub("", _HIDDEN.sub("", text)))


def strip_html(text: str) -> str:
    """Leave out tags of HTML and SSML and special tokens of models; read entities."""
    text = _COMMENT.sub("", _SPECIAL_TOKEN.sub("", text))
    text = _PAUSE.sub(_comma, text)
    text = _ALIAS.sub(r"\1", text)
    text = _TAG.sub("", _LINE_TAG.sub("\n", text))
    return html.unescape(text) if "&" in text else text


def _comma(match: re.Match[str]) -> str:
    """Return a pause between two words as a comma."""
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    if not (before.isalnum() and after.isalnum()):
        return " "
    return "，" if after > "\u2e80" else ", "


def strip_markdown(text: str, rules: LanguageRules | None) -> str:
    """Leave out markdown: headings, lists, tables and quotes of a line, then marks inside it."""
    code = None if rules is None else rules.code
    lines = [_strip_line(line, code) for line in text.split("\n")]
    return "\n".join(_strip_inline(line) for line in lines)


def speak_links(text: str, rules: LanguageRules | None) -> str:
    """Shorten web addresses to the name of the site, and say the signs in them if we know how."""

    def spell(domain: str) -> str:
        if rules is None or re.fullmatch(r"[0-9.]+", domain):
            return domain
        return domain.strip(".").replace(".", f" {rules.words['dot']} ")

    def address(match: re.Match[str]) -> str:
        if rules is None:
            return f"{match[1]}@{match[2]}"
        return f"{spell(match[1])} {rules.words['at']} {spell(match[2])}".replace("_", " ")

    def site(match: re.Match[str]) -> str:
        url = match[0].rstrip(".,;:!?'*_")
        host = _HOST.match(url)
        return (spell(host[1]) if host else "") + match[0][len(url) :]

    text = _URL.sub(site, _EMAIL.sub(address, text))
    return _DOMAIN.sub(lambda match: spell(match[1]), text)


def drop_emoji(text: str) -> str:
    """Leave out emoji, emoticons and ornaments; an arrow between words becomes a pause."""

    def pause(match: re.Match[str]) -> str:
        before, after = match.string[: match.start()], match.string[match.end() :]
        return ", " if before.strip() and after.strip() else " "

    text = _ARROW.sub(pause, _KEYCAP.sub("", text))
    return _EMOTICON.sub("", _EMOJI.sub(" ", text))


def drop_stage_directions(text: str) -> str:
    """Leave out stage directions: "*smiles*", "[laughs]", "（笑）"."""

    def starred(match: re.Match[str]) -> str:
        return "" if _is_direction(match[2], max_words=6, sounds=False) else match[0]

    def bracketed(match: re.Match[str]) -> str:
        is_direction = _is_direction(match[1] or match[2], 6 if match[1] else 3, sounds=True)
        return "" if is_direction else match[0]

    return _IN_BRACKETS.sub(bracketed, _BETWEEN_STARS.sub(starred, text))


def _is_direction(content: str, max_words: int, *, sounds: bool) -> bool:
    content = content.strip().casefold()
    if len(content.split()) > max_words or len(content) > _MAX_DIRECTION_CHARS:
        return False
    actions, heard = stage_directions()
    # Chinese, Japanese and Korean have no space after the first word.
    return (sounds and content in heard) or any(
        content.startswith(action)
        and (not content[len(action) :][:1].isalpha() or action[0] > "\u2e80")
        for action in actions
    )


def _strip_line(line: str, language: str | None) -> str:
    if _RULE_LINE.match(line):
        return ""
    if quote := _QUOTE_MARK.match(line):
        line = line[quote.end() :]
    if heading := _HEADING.match(line):
        return ensure_period(heading[1])
    if _TABLE_ROW.match(line):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        return ensure_period(", ".join(cell for cell in cells if cell))
    marks = _BULLET.match(line)
    body = line[marks.end() :] if marks else line
    while (numbered := _NUMBERED.match(body)) and not _is_ordinal(numbered[1], language):
        marks, body = numbered, body[numbered.end() :]
    return ensure_period(body) if marks and body.strip() else body


def _is_ordinal(word: str, language: str | None) -> bool:
    """Whether a number before this word is no list mark: "3. Mai"."""
    german, folded = language_rules("de"), word.casefold()
    is_german = folded in german.month_numbers or folded in german.lists["ordinal_before"]
    return is_german and language in {None, "de"}


def _strip_inline(line: str) -> str:
    line = _TIMES.sub(" × ", _LINK.sub(r"\1", _IMAGE.sub(r"\1", line)))
    line = _CODE.sub(r"\2", _FOOTNOTE.sub("", line))
    for emphasis in _EMPHASIS:
        line = emphasis.sub(r"\2", line)
    line = _SNAKE.sub(" ", _STRAY.sub("", line))
    return _ESCAPE.sub(r"\1", line)


# One sign for several letters, as units are written in East Asian text.
_COMPATIBLE: Final = {
    "℃": "°C", "℉": "°F", "㎡": "m²", "㎥": "m³", "㎏": "kg", "㎎": "mg", "㎞": "km", "㎝": "cm",
    "㎜": "mm", "％": "%", "＋": "+", "－": "-", "‼": "!!", "⁇": "??", "⁈": "?!", "⁉": "!?",
    **dict.fromkeys("\u0335\u0336\u0337\u0338", ""), "\u3000": " ", "\r": "\n", "\ufffd": "",
}  # fmt: skip
_TRANSLATION: Final = {
    **{0xFEE0 + ord(sign): sign for sign in string.digits + string.ascii_letters},
    **{0x2080 + digit: str(digit) for digit in range(10)},
    **str.maketrans(_COMPATIBLE),
}
_STYLED = re.compile("[\U0001d400-\U0001d7ff]+")
_FULL_WIDTH_MARK = re.compile(r"(?<=[0-9])[．：](?=[0-9])")

_MARKS = re.compile(r"[!?]{2,}|[！？]{2,}")
_REPEATED = re.compile(r"(\.{3})\.+|(…)…+|([。、，,;；:：·])(?:\s*\3)+")
_DASHES = re.compile(r"([-–—])[-–—]+")
_EMPTY = re.compile(r"[(（【]\s*[)）】]|\[\s*\]|[\"“„«「『]\s*[\"”“»」』](?=\s|$)")
_LEADING = re.compile(r"^[\s,;:.…·、，。；：|]+(?=[^\s0-9])")
_SPACE_BEFORE = re.compile(r"\s+([,.;](?=\s|$)|[，。、；！？])")
_SPACE_AFTER = re.compile(r"(?<=[。，、！？；：])[ \t]+(?=\S)")
_PAUSE_BEFORE_END = re.compile(r"[,;:、，](?=\s*[.!?。！？])")
_PIPES = re.compile(r"[ \t]*\|[ \t]*")
_CLOSERS: Final = "\"'”’»)]}」』）】》*_`"
_CJK_SCRIPTS: Final = frozenset({"han", "kana", "bopomofo"})


def clean_characters(text: str) -> str:
    """Leave out control and invisible characters, and write compatible signs in the plain way."""
    text = _STYLED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = unicodedata.normalize("NFC", text.translate(_TRANSLATION))
    text = _FULL_WIDTH_MARK.sub(lambda match: "." if match[0] == "．" else ":", text)
    kept = (char for char in text if char in "\n\t\u200d" or unicodedata.category(char)[0] != "C")
    return "".join(kept)


def clean_punctuation(text: str) -> str:
    """Reduce repeated marks and leave out those that have lost their words."""
    text = _MARKS.sub(lambda match: "".join(dict.fromkeys(match[0])), text)
    text = _DASHES.sub(lambda match: " – " if match[1] == "-" else match[1], _EMPTY.sub("", text))
    text = _PIPES.sub(", ", _REPEATED.sub(lambda match: match[1] or match[2] or match[3], text))
    text = _SPACE_AFTER.sub("", _SPACE_BEFORE.sub(r"\1", text))
    return _LEADING.sub("", _PAUSE_BEFORE_END.sub("", text))


def ensure_period(line: str) -> str:
    """Put a full stop after text that ends in a word without one."""
    line = line.rstrip()
    bare = line.rstrip(_CLOSERS)
    if not bare or not (bare[-1].isalnum() or bare[-1] in "%°€$£¥²³"):
        return line
    return line + ("。" if script_of(bare[-1]) in _CJK_SCRIPTS else ".")


def join_lines(text: str, *, close: bool) -> str:
    """Make one line of several; lines that are sentences of their own get their full stop."""
    joined = ""
    for line in filter(None, (" ".join(line.split()) for line in text.split("\n"))):
        if joined:
            if close and not line[0].islower():
                joined = ensure_period(joined)
            spaced = joined[-1] not in "。，、！？；：" and script_of(line[0]) not in _CJK_SCRIPTS
            joined += " " * (spaced or line[0].isascii())
        joined += line
    return ensure_period(joined) if close else joined
