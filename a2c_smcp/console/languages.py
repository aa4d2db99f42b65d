"""The languages of the pages. English texts are the keys; a table has what they are in Chinese."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

__all__ = ["LANGUAGES", "THEMES", "Translations", "Words", "chosen_language", "words_in"]

LANGUAGES = {"en": "English", "zh": "中文"}
THEMES = ("auto", "light", "dark")
Translations: TypeAlias = Mapping[str, str]
Words: TypeAlias = Callable[..., str]
"""A text in the language of the reader: `words("{count} tools", count=3)`."""

SHARED: Translations = {
    "Skip to the content": "跳到内容",
    "Pages": "页面",
    "Language": "语言",
    "Appearance": "外观",
    "auto": "跟随系统",
    "light": "浅色",
    "dark": "深色",
    "Save": "保存",
    "Settings of this page": "此页面的设置",
    "Sign out": "退出",
    "connecting": "正在连接",
    "live": "实时",
    "Connection lost. Trying again …": "连接已断开，正在重试……",
    "This session ends at {time}, or {idle} minutes after its last page is closed.": (
        "此会话将于 {time} 结束，或在最后一个页面关闭 {idle} 分钟后结束。"
    ),
    "This session has ended": "此会话已结束",
    "Nothing that is shown here is current, and nothing can be answered.": "这里显示的内容不再更新，也无法再作答。",
    "There is no session": "没有会话",
    "Not found": "未找到",
    "There is no such page here.": "这里没有这样的页面。",
    "Not allowed": "不允许",
    "Back": "返回",
    "Close": "关闭",
    "The form is not of this session: load the page again.": "此表单不属于当前会话，请重新加载页面。",
    "That did not work": "操作未成功",
    "Opening the console": "正在打开控制台",
    "Go on": "继续",
}


def chosen_language(kept: str, accepts: str) -> str:
    """The language that was chosen on the page, else the first one that the browser asks for and there is."""
    if kept in LANGUAGES:
        return kept
    ranges = [part.split(";") for part in accepts.lower().split(",")]
    ranked = sorted(ranges, key=lambda part: -_quality(part[1:]))
    known = (name[0].strip().partition("-")[0] for name in ranked)
    return next((name for name in known if name in LANGUAGES), "en")


def _quality(parameters: list[str]) -> float:
    for each in parameters:
        name, _, value = each.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def words_in(language: str, translations: Translations) -> Words:
    """The function that says things in a language. A text without a translation is English."""
    table: Translations = {} if language == "en" else {**SHARED, **translations}

    def words(english: str, /, **values: object) -> str:
        known = table.get(english, english)
        return known.format(**values) if values else known

    return words
