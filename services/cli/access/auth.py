"""`tidewheel auth`: users, their rights, and their tokens for HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from services.auth.rights import Kind, Rule
from services.auth.roles import Role, rules_of
from services.auth.tokens import id_within
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.durations import parse_ms
from services.cli.terminal.listing import lists
from services.http.api import Api
from services.times.display import exactly

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Users, their rights and tokens, for a broker with --auth or --http-token.\n\n"
    "Example: tidewheel auth user add orders",
)
users = typer.Typer(
    no_args_is_help=True, help="Users who may call.\n\nExample: tidewheel auth user add orders"
)
rules = typer.Typer(
    no_args_is_help=True,
    help="Rights of users. The most specific rule decides: a name, then the longest prefix. Without a "
    "rule, a call is denied.\n\n"
    "Example: tidewheel auth acl allow orders send receive --topic 'orders*' --group workers",
)
tokens = typer.Typer(
    no_args_is_help=True,
    help="Tokens by which users call over HTTP. A token may do what rules allow its user.\n\n"
    "Example: tidewheel auth token add orders --expires 30d",
)
app.add_typer(users, name="user")
app.add_typer(rules, name="acl")
app.add_typer(tokens, name="token")

ALLOW = "tidewheel auth acl allow"


class Verb(StrEnum):
    """Operations that a rule can allow or deny."""

    SEND = "send"
    RECEIVE = "receive"
    TRANSACT = "transact"
    VIEW = "view"
    ADMIN = "admin"


UserArgument = Annotated[str, typer.Argument(help="The user: its access key.")]
VerbsArgument = Annotated[
    list[Verb], typer.Argument(help="One or several of send, receive, transact, view, admin.")
]
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", help="A topic, or a prefix such as 'orders*'; can be repeated.")
]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", help="A consumer group, or a prefix; can be repeated.")
]


@app.command()
def whoami(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the user of the token in use, when the token expires, and what the user may do.

    Example: tidewheel auth whoami
    """
    me = broker_at(http).get("whoami")
    warn_of_http(me)
    if as_json:
        output.print_json(me)
        return
    if me["has_all_rights"]:
        output.show("administrator: all rights")
        return
    token = {"has_expired": False} | me["token"]
    output.show(f"user     {me['user']}", f"token    {token['id']}", f"expires  {ends(token)}")
    print_rules(
        me["rules"], f"no rules: nothing is allowed. Allow something: tidewheel auth acl allow {me['user']}"
    )


@users.command("add")
def add_user(
    name: UserArgument,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Replace the secret of an existing user.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a user and show its secret, which is not shown again.

    Example: tidewheel auth user add orders
    """
    made = broker_at(http).post("auth", "users", body={"name": name, "new_secret": new_secret})
    warn(made)
    if as_json:
        output.print_json(made)
        return
    output.show(f"access key  {made['access_key']}", f"secret      {made['secret']}")
    output.say(
        "The secret is not shown again. Under --auth a user may do what rules allow, else nothing. "
        f"For HTTP it needs a token: tidewheel auth token add {name}"
    )


@app.command("role")
def give_role(
    user: UserArgument,
    role: Annotated[Role, typer.Argument(help="viewer sees all, operator changes, admin does all.")],
    topic: TopicOption = None,
    group: GroupOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a user the rights of a role and remove its other rules. An operator needs topics or groups.

    Example: tidewheel auth role alice operator --topic 'orders*' --group 'shop*'
    """
    broker = broker_at(http)
    wanted = rules_of(role, user, topic or [], group or [])
    for one in wanted:
        kind = "topics" if one.kind is Kind.TOPIC else "groups"
        broker.post("auth", "rules", body={"user": user, kind: [one.pattern], "verbs": [one.verb]})
    for removed in outdated(broker.get("auth", "rules", user=user)["rules"], wanted):
        broker.post("auth", "rules", "remove", body=removed)
    show(broker.get("auth", "rules", user=user), as_json)


def outdated(found: list[dict[str, str]], wanted: list[Rule]) -> Iterator[dict[str, Any]]:
    """Yield the requests that remove rules of a user that are not wanted."""
    kept = {(one.kind, one.pattern, one.verb) for one in wanted}
    for one in found:
        if (one["kind"], one["pattern"], one["verb"]) not in kept:
            kind = "topics" if one["kind"] == "topic" else "groups"
            yield {"user": one["user"], kind: [one["pattern"]], "verbs": [one["verb"]]}


@users.command("remove")
def remove_user(name: UserArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Remove a user with its rules and tokens. Its next call is refused.

    Example: tidewheel auth user remove orders
    """
    gone = broker_at(http).delete("auth", "users", name)
    output.print_json(gone) if as_json else output.show(f"{gone['name']} removed")


@lists(users)
def list_users(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the users.

    Example: tidewheel auth user ls
    """
    found = broker_at(http).get("auth", "users")["users"]
    if as_json:
        output.print_json(found)
    elif found:
        output.print_table(
            ("user", "secret made"), ((one["name"], exactly(int(one["made_ms"]))) for one in found)
        )
    else:
        output.say("no users; begin with: tidewheel auth user add NAME")


@rules.command()
def allow(
    user: UserArgument,
    verbs: VerbsArgument,
    topic: TopicOption = None,
    group: GroupOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Allow operations to a user. A consumer needs receive on its topic and on its group.

    Example: tidewheel auth acl allow orders send receive --topic 'orders*' --group workers
    """
    put("allow", user, verbs, topic, group, broker_at(http), as_json)


@rules.command()
def deny(
    user: UserArgument,
    verbs: VerbsArgument,
    topic: TopicOption = None,
    group: GroupOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deny operations to a user that a less specific rule allows.

    Example: tidewheel auth acl deny orders send --topic orders-archive
    """
    put("deny", user, verbs, topic, group, broker_at(http), as_json)


@rules.command("remove")
def remove_rules(
    user: UserArgument,
    verbs: Annotated[list[Verb] | None, typer.Argument(help="The verbs; default: all verbs.")] = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the rules of a user for exactly this topic, group or prefix.

    Example: tidewheel auth acl remove orders send --topic orders-archive
    """
    about: dict[str, Any] = {"user": user, "topics": topic or [], "groups": group or []}
    if verbs:
        about["verbs"] = verbs
    show(broker_at(http).post("auth", "rules", "remove", body=about), as_json)


@lists(rules)
def list_rules(
    user: Annotated[str, typer.Argument(help="Only entries of this user.")] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules.

    Example: tidewheel auth acl ls orders
    """
    show(broker_at(http).get("auth", "rules", user=user), as_json)


@tokens.command("add")
def add_token(
    user: UserArgument,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="Validity of the token, such as 30d; default: until it is revoked."),
    ] = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token for a user and show it, which is not repeated. A user may have several tokens.

    Example: tidewheel auth token add orders --expires 30d
    """
    kept = None if expires is None else f"{parse_ms(expires, '--expires')}ms"
    made = broker_at(http).post("auth", "tokens", body={"user": user, "expires": kept})
    warn_of_http(made)
    if as_json:
        output.print_json(made)
        return
    output.show(f"token    {made['token']}", f"id       {made['id']}", f"expires  {ends(made)}")
    output.say(
        "The token is not shown again. Send it as: Authorization: Bearer TOKEN. For commands, put it into a "
        f"file and name that by TIDEWHEEL_HTTP_TOKEN. Its rights: tidewheel auth acl ls {user}"
    )


@lists(tokens)
def list_tokens(
    user: Annotated[str, typer.Argument(help="Only entries of this user.")] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tokens.

    Example: tidewheel auth token ls orders
    """
    answer = broker_at(http).get("auth", "tokens", user=user)
    warn_of_http(answer)
    if as_json:
        output.print_json(answer["tokens"])
    elif answer["tokens"]:
        rows = ((one["id"], one["user"], exactly(int(one["made_ms"])), ends(one)) for one in answer["tokens"])
        output.print_table(("token", "user", "made", "expires"), rows)
    else:
        output.say("no tokens; make one with: tidewheel auth token add USER")


@tokens.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(help="The id of the token, as shown by ls.")],
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token: its next call is refused, and its open long polls end.

    Example: tidewheel auth token revoke 3f9a61c07b52
    """
    # Only the id of a complete token may become part of a URL.
    gone = broker_at(http).delete("auth", "tokens", id_within(token) or token)
    output.print_json(gone) if as_json else output.show(f"{gone['id']} revoked")


def ends(token: dict[str, Any]) -> str:
    """Return the time when a token expires, as text."""
    if token["expires_ms"] is None:
        return "never"
    at = exactly(int(token["expires_ms"]))
    return f"{at} (has expired)" if token["has_expired"] else at


def warn_of_http(answer: dict[str, Any]) -> None:
    """Warn if the HTTP port does not require a token."""
    if not answer["is_asked"]:
        output.say("This broker runs without --http-token: HTTP requests need no token and have all rights.")


def put(
    effect: str,
    user: str,
    verbs: list[Verb],
    topics: list[str] | None,
    groups: list[str] | None,
    api: Api,
    as_json: bool,
) -> None:
    """Set rules and print all rules of the user."""
    wanted = {
        "user": user,
        "effect": effect,
        "verbs": verbs,
        "topics": topics or [],
        "groups": groups or [],
    }
    show(api.post("auth", "rules", body=wanted), as_json)


def warn(answer: dict[str, Any]) -> None:
    """Warn if rules have no effect on the gRPC port. HTTP uses separate tokens."""
    if not answer["is_asked"]:
        output.say("This broker runs without --auth: on its protocol port every client may do everything.")


def show(answer: dict[str, Any], as_json: bool) -> None:
    """Print the rules of an answer. Rules with the same user, kind, pattern and effect share a line."""
    found: list[dict[str, str]] = answer["rules"]
    warn(answer)
    if as_json:
        output.print_json(found)
        return
    print_rules(found, "no rules: nothing is allowed; see tidewheel auth acl allow --help")


def print_rules(found: list[dict[str, str]], none: str) -> None:
    """Print rules as a table, or `none` if there are no rules."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        about = (one["user"], one["effect"], one["kind"], one["pattern"])
        lines.setdefault(about, []).append(one["verb"])
    if lines:
        rows = ((*about, " ".join(verbs)) for about, verbs in lines.items())
        output.print_table(("user", "effect", "on", "name", "verbs"), rows, prose=("verbs",))
    else:
        output.say(none)
