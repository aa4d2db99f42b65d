"""Parts that the operator's pages share: tables, numbers, times, searches, and links to further pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from a2c_smcp.console.html import Child, Html, tag
from a2c_smcp.console.pages import Translations, View, button_form, hidden
from a2c_smcp.server.admin.node_view import RowPage, Selection
from a2c_smcp.server.admin.operations import Missing

PER_PAGE = 50
_KIB = 1024
_GOOD, _QUIET = frozenset({"ok", "answered"}), frozenset({"cancelled"})


def row_table(view: View, columns: Sequence[str], rows: Sequence[Sequence[Child]], empty: str = "") -> Html:
    """Return a table of rows, each a key and its cells. `columns` and `empty`, for no rows, are English texts."""
    words = view.words
    if not rows:
        return tag("p", words("Nothing matches." if view.query.get("search") else empty), class_="empty")
    head = tag("thead", tag("tr", *(tag("th", words(column), scope="col") for column in columns)))
    body = [
        tag(
            "tr",
            *(tag("td", cell, data_label=words(column)) for column, cell in zip(columns, cells, strict=True)),
            data_key=str(key),
        )
        for key, *cells in rows
    ]
    return tag("div", tag("table", head, tag("tbody", *body), class_="table"), class_="scroll", tabindex="0")


def search_form(view: View, label: str, **kept: str) -> Html:
    """Return a form that filters the list of a page. `kept` are further fields of its address."""
    words = view.words
    field = tag(
        "label",
        words(label),
        tag("input", type="search", name="search", value=view.query.get("search", ""), autocomplete="off"),
        class_="field search",
    )
    rest = [hidden(name, value) for name, value in kept.items()]
    button = tag("button", words("Search"), type="submit")
    return tag("form", *rest, field, button, method="get", action=view.link(view.path), class_="row", role="search")


def selection_of(view: View) -> Selection:
    """Return the filters in the address of a page."""
    return Selection(search=view.query.get("search", ""), after=view.query.get("after"), limit=PER_PAGE)


def page_links(view: View, page: RowPage[Any]) -> Html:
    """Return the number of rows, and links to the first and the next page."""
    words = view.words
    kept = {name: value for name, value in view.query.items() if name != "after"}
    count = tag("span", words("{count} in all", count=page.total), class_="soft")
    first = tag("a", words("First page"), href=view.link(view.path, **kept)) if "after" in view.query else None
    following = None
    if page.next:
        following = tag("a", words("Next page"), href=view.link(view.path, **kept, after=page.next))
    return tag("p", count, " ", first, " ", following, class_="row")


def missing_note(view: View, missing: Sequence[Missing]) -> Html | None:
    """Return a note of the nodes that have not answered: their rows are not on this page."""
    if not missing:
        return None
    words = view.words
    notes = [tag("p", words("Node {node} is missing here:", node=node.node), " ", node.reason) for node in missing]
    return tag("div", *notes, class_="note warn")


def office_link(view: View, office: str) -> Html:
    return tag("a", office, href=view.link("/office", id=office))


def asked_twice(view: View, what: str, action: str, *fields: Html, **attributes: str) -> Html:
    """Return a button that shows a second one, which does it."""
    words = view.words
    button = tag("button", words(what), type="submit", class_="danger")
    return tag(
        "details",
        tag("summary", words(what)),
        button_form(view, action, *fields, button),
        data_key=f"{action}-{'-'.join(attributes.values())}",
    )


def outcome_pill(view: View, outcome: str, code: int | None = None) -> Html:
    kind = "good" if outcome in _GOOD else "" if outcome in _QUIET else "bad"
    number = f" {code}" if code else ""
    return tag("span", view.words(outcome), number, class_=f"state {kind}".strip())


def clock_time(seconds: float) -> Html:
    """The time of day on the Server, in UTC."""
    moment = time.gmtime(seconds)
    return tag(
        "time", time.strftime("%H:%M:%S", moment), datetime=time.strftime("%Y-%m-%dT%H:%M:%SZ", moment), class_="number"
    )


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size_text(count: int) -> str:
    return f"{count} B" if count < _KIB else f"{count / _KIB:,.0f} KiB"


# The texts of the operator's pages, in Chinese

CHINESE: Translations = {
    "Overview": "概览",
    "Offices": "房间",
    "Office": "房间",
    "Members": "成员",
    "Member": "成员",
    "Calls": "调用",
    "Refusals": "拒绝",
    "Keys": "密钥",
    "Agents": "Agent",
    "Agent": "Agent",
    "Computers": "Computer",
    "Computer": "Computer",
    "agent": "Agent",
    "computer": "Computer",
    "agent or computer": "Agent 或 Computer",
    "Away": "暂离",
    "away": "暂离",
    "Calls in flight": "进行中的调用",
    "Calls in 15 minutes": "15 分钟内的调用",
    "Failed": "失败",
    "Refused": "被拒绝",
    "Duration": "耗时",
    "{calls} calls in 15 minutes, {failed} of them failed": "15 分钟内 {calls} 次调用，其中 {failed} 次失败",
    "95 of 100 calls took at most {time}": "95% 的调用耗时不超过 {time}",
    "half of the calls": "50% 的调用",
    "95 of 100 calls": "95% 的调用",
    "answered well": "成功的调用",
    "failed": "失败的调用",
    "15 min ago": "15 分钟前",
    "now": "现在",
    "Slow or failing computers": "缓慢或失败的 Computer",
    "No computer is slow, and no call has failed.": "没有缓慢的 Computer，也没有失败的调用。",
    "95 of 100 within": "95% 耗时",
    "Last failure (UTC)": "最近一次失败（UTC）",
    "and {count} more": "还有 {count} 个",
    "Nodes": "节点",
    "Node": "节点",
    "this Server": "此 Server",
    "State": "状态",
    "ready": "就绪",
    "not ready": "未就绪",
    "Connections": "连接",
    "Version": "版本",
    "Address": "地址",
    "Node {node} is missing here:": "这里缺少节点 {node}：",
    "Search": "搜索",
    "Name, principal or address": "名称、主体或地址",
    "Office, agent, computer, tool or outcome": "房间、Agent、Computer、工具或结果",
    "Name, principal, address or reason": "名称、主体、地址或原因",
    "{count} in all": "共 {count} 项",
    "First page": "第一页",
    "Next page": "下一页",
    "Nothing matches.": "没有匹配的内容。",
    "No office has members.": "没有房间有成员。",
    "There is no such member.": "没有这样的成员。",
    "Principal": "主体",
    "Since": "已连接",
    "Unread": "未读",
    "Action": "操作",
    "Disconnect": "断开",
    "Running now": "正在运行",
    "Ended": "已结束",
    "No call is in flight.": "没有进行中的调用。",
    "No call has ended yet.": "还没有已结束的调用。",
    "Nothing was refused.": "没有被拒绝的请求。",
    "sealed": "已密封",
    "Tool": "工具",
    "For": "已运行",
    "Size": "大小",
    "Time (UTC)": "时间（UTC）",
    "Outcome": "结果",
    "Sent / answered": "发送 / 应答",
    "What": "事件",
    "Why": "原因",
    "Name": "名称",
    "Names": "名称",
    "Roles": "角色",
    "Role": "角色",
    "Key": "密钥",
    "Expires (UTC)": "到期（UTC）",
    "any": "任意",
    "never": "永不",
    "expired": "已过期",
    "There are no keys.": "没有密钥。",
    "Signed-in MCP clients": "已登录的 MCP 客户端",
    "No MCP client is signed in.": "没有已登录的 MCP 客户端。",
    "unverified name": "名称未经验证",
    "Grant": "授权",
    "Client": "客户端",
    "Last use (UTC)": "最近使用（UTC）",
    "Make a link": "生成链接",
    "given with --api-key": "由 --api-key 给出",
    "Replace": "更换",
    "Expire now": "立即过期",
    "Revoke": "吊销",
    "A new key": "新密钥",
    "Who will hold the key.": "谁将持有此密钥。",
    "Names or patterns with commas between them; empty for any.": "名称或模式，用逗号分隔；留空表示任意。",
    "Valid": "有效期",
    "one day": "一天",
    "30 days": "30 天",
    "one year": "一年",
    "for ever": "永久",
    "Make a key": "生成密钥",
    "For its holder alone. It is shown once, and cannot be shown again.": (
        "仅供其持有者使用。只显示一次，无法再次显示。"
    ),
    "A new key is shown once, within a minute. Replace this one if nobody has noted it down.": (
        "新密钥只在一分钟内显示一次。如果没有人记下此密钥，请更换它。"
    ),
    "Node {node} has a keys file of its own.": "节点 {node} 有自己的密钥文件。",
    "The keys file cannot be written. A key that is revoked is refused until all processes of the Server are started "
    "again, with --redis for as long as the file has it: delete its entry in the file.": (
        "无法写入密钥文件。已撤销的密钥在 Server 的所有进程重新启动之前会被拒绝；"
        "使用 --redis 时，只要文件中还有它就会被拒绝：请在文件中删除其条目。"
    ),
    "Open the link that the Server has printed where it was started.": "请打开 Server 启动时打印的链接。",
    "Admin key": "管理密钥",
    "That is not the admin key of this Server.": "这不是此 Server 的管理密钥。",
    "It is the one that the Server was started with (--admin-key). An API key does not do.": (
        "即启动 Server 时给出的密钥（--admin-key）。API 密钥无效。"
    ),
    "Sign in": "登录",
    "ok": "成功",
    "answered": "已应答",
    "tool_error": "工具错误",
    "bad_request": "请求错误",
    "denied": "被拒绝",
    "not_found": "未找到",
    "timeout": "超时",
    "too_large": "过大",
    "busy": "繁忙",
    "cancelled": "已取消",
    "unavailable": "不可用",
    "sign_in_required": "需要登录",
    "error": "错误",
    "refused": "被拒绝",
    "request refused": "请求被拒绝",
    "slow reader cut": "读取过慢被断开",
    "call": "调用",
}
