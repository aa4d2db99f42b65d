"""Values and texts of others on the owner's pages: in part, and in full on a page of their own.

The page in full is made once, in a thread: nothing that agents or MCP servers send holds up the computer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import Page, Translations, View
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.escaping import leaves, one_line

_PATH = "/whole"

Parts: TypeAlias = Sequence[tuple[str, object]]
"""English titles with what belongs to each: a text, or a JSON value."""


def whole_call(view: View, number: int) -> str:
    return view.link(_PATH, call=str(number))


def whole_request(view: View, number: int) -> str:
    return view.link(_PATH, request=str(number))


def whole_window(view: View, uri: str) -> str:
    return view.link(_PATH, window=uri)


class WholePage:
    """Chosen by the address: `call`, `request` or `window`."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.page = Page(_PATH, "Everything", {"whole": self._whole}, frozenset(), is_live=False)

    async def _whole(self, view: View) -> Html:
        query = view.query
        parts: Parts = ()
        if number := query.get("call"):
            parts = self._call(number)
        elif number := query.get("request"):
            parts = self._request(number)
        elif uri := query.get("window"):
            parts = await self._window(uri)
        if not parts:
            return tag("p", view.words("It is no longer there."), class_="empty")
        return await asyncio.to_thread(_drawn, view, parts)

    def _call(self, number: str) -> Parts:
        call = next((call for call in self._state.calls if str(call.number) == number), None)
        if call is None:
            return []
        record = call.record
        named = [("Tool", f"{record['tool']} ({record['server']})"), ("Arguments", record["parameters"])]
        return [*named, ("Progress", call.message), ("Outcome", record["error"] or "")]

    def _request(self, number: str) -> Parts:
        for approval in self._state.approvals:
            if str(approval.number) == number:
                wanted = approval.request
                return [("Tool", f"{wanted.name} ({wanted.server})"), ("Arguments", wanted.arguments)]
        for pending in self._state.questions:
            if str(pending.number) == number:
                asked = pending.question
                where = ("Tool", f"{asked.tool} ({asked.server})") if asked.tool else ("Server", asked.server)
                return [where, ("Question", asked.message)]
        return []

    async def _window(self, uri: str) -> Parts:
        windows = await self._state.computer.get_desktop() if self._state.computer.owner.is_running else []
        parts = (window.partition("\n\n")[::2] for window in windows)
        return [("Window", content) for known, content in parts if known == uri][:1]


def _drawn(view: View, parts: Parts) -> Html:
    shown = [
        (title, what if isinstance(what, str) else json.dumps(what, ensure_ascii=False, indent=2))
        for title, what in parts
        if what != ""
    ]
    return joined(*(joined(tag("h2", view.words(title)), tag("pre", text, class_="block")) for title, text in shown))


# Values, times and texts of others
#
# Nothing is cut without saying so. A large one is on a page of its own (`WholePage`), so that a page that is made again
# several times a second takes little of the computer's event loop, however much agents and MCP servers send.

_SHORT, _SHORT_LINES = 600, 12
"""Characters and lines of a text that are shown at once; a click shows all of a longer one."""
_BEGINNING, _END = 300, 40
_ROWS, _MOST_ROWS = 60, 300
_MOST = 16 * 1024
"""Characters of arguments that are on a page which is made again when something changes."""
_LONGEST = 8 * 1024
"""Characters of one text there."""
_FRAME = 40
"""Characters that a value takes beside itself, about."""


def arguments(view: View, values: Mapping[str, Any], whole: str, most: int = _MOST) -> Html:
    """Return arguments with their values, of which no one can hide another or look like one.

    At most about `most` characters are shown: pages are made again and again. If there are more, it says how many, with
    a link to `whole`, the page that shows all of them.
    """
    if not values:
        return tag("p", view.words("It has no arguments."), class_="soft")
    rows: list[Html] = []
    room, is_all = most, True
    for path, value in leaves(dict(values)):
        if room <= 0 or len(rows) >= _MOST_ROWS:
            is_all = False
            break
        text = value if isinstance(value, str) and value else dumps(value)
        room -= min(len(text), _LONGEST) + len(path) + _FRAME
        is_all = is_all and len(text) <= _LONGEST
        rows.append(tag("div", tag("dt", path), tag("dd", long_text(view, text, whole))))
    listed: list[Child] = [tag("dl", *rows[:_ROWS], class_="values")]
    if rest := rows[_ROWS:]:
        more = view.words("Show {count} more values", count=len(rest))
        listed.append(tag("details", tag("summary", more), tag("dl", *rest, class_="values"), data_key="more"))
    if not is_all:
        size = f"{len(json.dumps(values)):,}"
        note = view.words("Not all of it is shown here: it has {count} characters.", count=size)
        listed.append(tag("p", note, " ", tag("a", view.words("Show everything"), href=whole), class_="note warn"))
    return joined(*listed)


def long_text(view: View, text: str, whole: str = "") -> Html:
    """Return a text of others. A long one is cut in the middle, with the full text below.

    With `whole`, the page that shows all of it, a very long one is not on this page.
    """
    if len(text) <= _SHORT and text.count("\n") < _SHORT_LINES:
        return tag("span", text, class_="text")
    everything = view.words("Show all {count} characters", count=f"{len(text):,}")
    if whole and len(text) > _LONGEST:
        link = tag("a", everything, href=whole)
        return joined(tag("span", shortened(text), class_="soft"), " ", link)
    return joined(
        tag("span", one_line(text, _BEGINNING), class_="soft"),
        tag("details", tag("summary", everything), tag("pre", text)),
    )


def shortened(text: str, most: int = _BEGINNING) -> str:
    """Return the text, cut in the middle if it is longer than `most`. It takes no longer for a very long one."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most - _END]} [… {left_out:,} more characters …] {text[-_END:]}"


def difference(text: str) -> Html:
    """Return the change of a tool's definition, by lines. Each line has its mark, not only a colour."""
    marks = {"-": "del", "+": "ins"}
    lines = [tag(marks.get(line.strip()[:1], "span"), f"{line}\n") for line in text.split("\n")]
    return tag("pre", *lines, class_="diff")


def moment(seconds: float) -> Html:
    """Return a time of this machine."""
    local = time.localtime(seconds)
    return tag("time", time.strftime("%H:%M:%S", local), datetime=time.strftime("%Y-%m-%dT%H:%M:%S%z", local))


def duration(seconds: float) -> str:
    milliseconds = f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"
    return milliseconds if seconds < 1 else f"{seconds:.1f} s"


def pill(text: str, kind: str = "") -> Html:
    """Return a state, in words and in a colour: `good`, `warn` or `bad`."""
    return tag("span", text, class_=f"state {kind}".rstrip())


# The texts of the owner's pages, in Chinese

CHINESE: Translations = {
    # Requests
    "Requests": "请求",
    "Waiting for you": "等待您处理",
    "Nothing waits for your answer.": "没有等待您处理的请求。",
    "Running": "正在运行",
    "It was answered already, or withdrawn: nothing was done.": "该请求已被处理或已撤回，未执行任何操作。",
    "{agent} wants to run {tool} of {server}": "{agent} 请求运行 {server} 的 {tool}",
    "{agent} wants to run {tool}": "{agent} 请求运行 {tool}",
    "expires in": "剩余时间",
    "Its MCP server calls this tool": "MCP 服务器中的工具名为",
    "Office": "房间",
    "A rule of the policy asks about it:": "策略中的规则要求询问：",
    "This tool is no longer what you approved. A yes is a yes to this, too:": (
        "此工具已不是您批准过的样子。同意即表示同意以下变化："
    ),
    "for good": "永久",
    "for an hour": "一小时内",
    "for 8 hours": "八小时内",
    "for a day": "一天内",
    "Allow it again without asking …": "以后不再询问……",
    "How long": "有效期",
    "This tool for this agent": "允许该智能体使用此工具",
    "Every tool for this agent …": "允许该智能体使用所有工具……",
    "It may then use all tools of this computer, also later ones, and you are not asked.": (
        "此后它可以使用本机的所有工具（包括以后新增的），并且不再询问您。"
    ),
    "Allow every tool for this agent": "确认允许所有工具",
    "Allow once": "允许一次",
    "Deny": "拒绝",
    "you": "您",
    "{server} asks while {tool} runs for {agent}": "{server} 在为 {agent} 运行 {tool} 时提问",
    "{server} asks in one of several calls": "{server} 在几个调用之一中提问",
    "{server} asks a question": "{server} 提出了一个问题",
    "asked": "已等待",
    "Your last answer was refused:": "您上次的回答被拒绝：",
    "That is no web address, and it is not opened:": "这不是网址，不会打开：",
    "Open the page": "打开页面",
    "A page of {host}. Whatever you enter there goes there:": "这是 {host} 的页面。您在那里输入的内容会发送到那里：",
    "{tool} of {server} for {agent}": "{server} 的 {tool}（{agent}）",
    "Progress": "进度",
    # Forms
    "Decline": "谢绝",
    "Leave unanswered": "不作回答",
    "This cannot be shown as a form:": "无法显示为表单：",
    "Your answer goes to the MCP server {server}.": "您的回答将发送给 MCP 服务器 {server}。",
    "Send answer": "发送回答",
    "optional": "可选",
    "yes": "是",
    "no": "否",
    "choose": "请选择",
    "an answer is needed": "必须填写",
    "text, {least} characters": "文本，{least} 个字符",
    "text, {least} to {most} characters": "文本，{least} 到 {most} 个字符",
    "text, at least {least} characters": "文本，至少 {least} 个字符",
    "text, at most {most} characters": "文本，最多 {most} 个字符",
    "whole number": "整数",
    "whole number from {least} to {most}": "{least} 到 {most} 的整数",
    "whole number at least {least}": "不小于 {least} 的整数",
    "whole number at most {most}": "不大于 {most} 的整数",
    "number": "数字",
    "number from {least} to {most}": "{least} 到 {most} 的数字",
    "number at least {least}": "不小于 {least} 的数字",
    "number at most {most}": "不大于 {most} 的数字",
    "e-mail address, as {example}": "电子邮件地址，例如 {example}",
    "URL, as {example}": "网址，例如 {example}",
    "date, as {example}": "日期，例如 {example}",
    "date and time with its zone, as {example}": "带时区的日期和时间，例如 {example}",
    "JSON": "JSON",
    # Values
    "It has no arguments.": "没有参数。",
    "Show {count} more values": "显示其余 {count} 个值",
    "Not all of it is shown here: it has {count} characters.": "此处未全部显示：共 {count} 个字符。",
    "{count} more characters are not shown here.": "还有 {count} 个字符未在此显示。",
    "Show everything": "显示全部",
    "Everything": "全部内容",
    "It is no longer there.": "内容已不存在。",
    "Question": "问题",
    "Window": "窗口",
    "Show all {count} characters": "显示全部 {count} 个字符",
    # Servers
    "MCP servers": "MCP 服务器",
    "Servers": "服务器",
    "Connection:": "连接：",
    "There are no MCP servers.": "没有 MCP 服务器。",
    "tools: {count}": "{count} 个工具",
    "windows: {count}": "{count} 个窗口",
    "restarts: {count}": "重启 {count} 次",
    "calls: {count}": "调用 {count} 次",
    "median": "中位数",
    "ready": "就绪",
    "starting": "正在启动",
    "backoff": "稍后重试",
    "auth_required": "需要登录",
    "failed": "失败",
    "asleep": "休眠",
    "stopped": "已停止",
    "disabled": "已禁用",
    "Sign in": "登录",
    "Restart": "重启",
    "Stop": "停止",
    "Start": "启动",
    "Log": "日志",
    "Log of a server": "服务器日志",
    "All servers": "所有服务器",
    "There is no such server.": "没有这个服务器。",
    "Messages": "消息",
    "The end of stderr and the last messages are kept.": "仅保留标准错误输出的末尾和最近的消息。",
    "It has written nothing to stderr, and logged nothing.": "没有标准错误输出，也没有日志。",
    "The provider has not said where to sign in.": "提供方没有给出登录页面。",
    "open it again": "重新打开",
    "Waiting until you have signed in at {host}.": "等待您在 {host} 完成登录。",
    "Asking where to sign in …": "正在查询登录页面……",
    # Changes of servers
    "Add or change a server": "添加或更改服务器",
    "Add an MCP server": "添加 MCP 服务器",
    "Update": "更新",
    "Remove": "移除",
    "Name": "名称",
    "Started by": "启动方式",
    "As its README gives it: npx -y PACKAGE …, uvx PACKAGE …, or the URL of a server.": (
        "按其 README 所写：npx -y 包名……、uvx 包名……，或服务器的网址。"
    ),
    "What it may do": "允许的操作",
    "Network": "网络",
    "none": "无",
    "all": "全部",
    "HTTPS only (443)": "仅 HTTPS（443）",
    "web pages (443, 80)": "网页（443、80）",
    "It may read": "允许读取",
    "It may change": "允许修改",
    "Environment: NAME=VALUE": "环境变量：名称=值",
    "One in each line.": "每行一个。",
    "Nothing is installed before you have seen it and said yes.": "在您查看并同意之前，不会安装任何内容。",
    "Look it up": "查询",
    "Yes": "是",
    "No": "否",
    "Give up": "放弃",
    "Another change is under way.": "另一项更改正在进行。",
    "A server needs a name, and a line that starts it or a URL.": "服务器需要名称，以及启动命令或网址。",
    "It was given up.": "已放弃。",
    "{name}: {package} {version}, from {registry}": "{name}：{package} {version}，来自 {registry}",
    "publisher": "发布者",
    "source": "来源",
    "checksum": "校验和",
    "packages": "软件包",
    "command": "命令",
    "reads": "读取",
    "writes": "写入",
    "network": "网络",
    "sandbox": "沙箱",
    "sees": "可见内容",
    "file": "文件",
    "data": "数据",
    "not stated by the registry": "注册表未说明",
    "{count}, each with its checksum": "{count} 个，均有校验和",
    "its package, and what every program needs": "自己的软件包，以及所有程序所需的内容",
    "its package, and what every program needs, {others}": "自己的软件包、所有程序所需的内容，以及 {others}",
    "none (443 would allow HTTPS)": "无（443 可允许 HTTPS）",
    "TCP ports {ports}, at any address": "TCP 端口 {ports}，任意地址",
    "as its entry says, or none: it has all your rights": "按其配置，否则没有沙箱：它拥有您的全部权限",
    "what agents send to its tools": "智能体发送给其工具的内容",
    "{folder}, which is removed": "{folder}，将被删除",
    "{folder}, which stays": "{folder}，将保留",
    "looking up {package}": "正在查询 {package}",
    "installing {count} packages": "正在安装 {count} 个软件包",
    "starting {name} once": "正在试启动 {name}",
    "it started; tools: {count}": "启动成功；工具：{count}",
    "{name} does not start: {reason}": "{name} 无法启动：{reason}",
    "sandbox: {warning}": "沙箱：{warning}",
    "it is given {path}, which it may neither read nor write": "参数中有 {path}，但它无权读写",
    "{names}: may run code now": "{names}：现在可以运行代码",
    "{names}: want to run code now, which is left out (--install-scripts)": (
        "{names}：想在安装时运行代码，已略过（--install-scripts）"
    ),
    "not encrypted: others on the way can read and change what is sent": "未加密：途中的他人可以读取和篡改内容",
    "This machine cannot hold it in a sandbox: {why}": "本机无法将其置于沙箱中：{why}",
    "new tools: {names}": "新增工具：{names}",
    "tools that are gone: {names}": "移除的工具：{names}",
    "tools with another definition: {names}": "定义改变的工具：{names}",
    "Add it?": "添加吗？",
    "Install it?": "安装吗？",
    "Install it, and add it to {file}?": "安装并添加到 {file} 吗？",
    "Let it run with all your rights?": "允许它以您的全部权限运行吗？",
    "Go on all the same?": "仍要继续吗？",
    "Its tools change. Use it?": "其工具有变化。使用吗？",
    "Remove {name}?": "移除 {name} 吗？",
    "added {name} to {file}: {package} {version}": "已将 {name} 添加到 {file}：{package} {version}",
    "added {name} to {file}; if it wants a sign-in: {command}": "已将 {name} 添加到 {file}；如需登录：{command}",
    "{name}: {package} {version} is installed already": "{name}：已安装 {package} {version}，无需更改",
    "updated {name} to {package} {version}": "已将 {name} 更新为 {package} {version}",
    "removed {name} from {file}": "已从 {file} 移除 {name}",
    "removed {name} from {file}; its data is in {folder}": "已从 {file} 移除 {name}；其数据在 {folder}",
    # Tools
    "Tools": "工具",
    "Allowed without asking": "无需询问即可使用",
    "every tool": "所有工具",
    "until {time}": "至 {time}",
    "Ask again": "恢复询问",
    "There are no tools.": "没有工具。",
    "Find a tool": "查找工具",
    "All tools": "全部工具",
    "Rules for certain agents may say something else.": "针对特定智能体的规则可能不同。",
    "That is no longer allowed anyway.": "该许可已不再有效。",
    "Its definition has changed. The next call shows this, and asks you.": "其定义已改变。下次调用会显示变化并询问您。",
    "Its definition has changed. It runs as before.": "其定义已改变，仍照常运行。",
    "asks, changed": "询问（已改变）",
    "denied": "禁止",
    "by its arguments: {names}": "取决于参数：{names}",
    "allow": "允许",
    "ask": "询问",
    "deny": "禁止",
    "asks": "询问",
    "runs without asking": "无需询问",
    # Calls and desktop
    "Calls": "调用",
    "No agent has called a tool yet.": "还没有智能体调用工具。",
    "Time": "时间",
    "Agent": "智能体",
    "Tool": "工具",
    "Outcome": "结果",
    "Duration": "用时",
    "Arguments": "参数",
    "waiting": "等待您批准",
    "running": "运行中",
    "asking": "等待回答",
    "refused": "已拒绝",
    "cancelled": "已取消",
    "not answered": "未答复",
    "done": "完成",
    "The tool says that it failed.": "工具报告失败。",
    "Desktop": "桌面",
    "The windows that agents are shown, the most important first.": "智能体看到的窗口，最重要的在前。",
    "No MCP server shows a window.": "没有 MCP 服务器显示窗口。",
    "It is empty.": "内容为空。",
    "The windows are being read. An MCP server takes its time.": "正在读取窗口，某个 MCP 服务器响应较慢。",
    # Without a session
    "A new link is on the terminal where the computer runs. It works once, for ten minutes.": (
        "新链接已显示在运行本机程序的终端上。链接只能使用一次，十分钟内有效。"
    ),
    "Show a new link on the terminal": "在终端上显示新链接",
    "This console is opened with a link that the program prints when it starts. Each link works once.": (
        "请使用程序启动时打印的链接打开此控制台。每个链接只能使用一次。"
    ),
}
