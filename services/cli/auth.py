"""`tidewheel auth`: who may call a broker, and what they may do there."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from services.cli import output
from services.cli.api import Api, HttpOption, JsonOption
from services.cli.listing import lists
from services.cli.times import exactly

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Users and their rights, for a broker that runs with --auth.\n\n"
    "Example: tidewheel auth user add orders",
)
users = typer.Typer(no_args_is_help=True, help="Who may call.\n\nExample: tidewheel auth user add orders")
rules = typer.Typer(
    no_args_is_help=True,
    help="What users may do. The most specific rule decides: a name, then the longest prefix; without one it "
    "is denied.\n\nExample: tidewheel auth acl allow orders send receive --topic 'orders*' --group workers",
)
app.add_typer(users, name="user")
app.add_typer(rules, name="acl")


class Verb(StrEnum):
    """What may be done."""

    SEND = "send"
    RECEIVE = "receive"
    TRANSACT = "transact"
    ADMIN = "admin"


UserArgument = Annotated[str, typer.Argument(help="The user: its access key.")]
VerbsArgument = Annotated[list[Verb], typer.Argument(help="One or more of send, receive, transact, admin.")]
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", help="A topic, or a prefix such as 'orders*'; may be repeated.")
]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", help="A consumer group, or a prefix; may be repeated.")
]


@users.command("add")
def add_user(
    name: UserArgument,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Give a user that there is another secret.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a user and show its secret, this once.

    Example: tidewheel auth user add orders
    """
    made = Api(http).post("auth", "users", body={"name": name, "new_secret": new_secret})
    warn(made)
    if as_json:
        output.print_json(made)
        return
    print(f"access key  {made['access_key']}\nsecret      {made['secret']}")
    output.say("The secret is not shown again. Under --auth a user may do what rules allow, else nothing.")


@users.command("remove")
def remove_user(name: UserArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Forget a user and all its rules; its next call is refused.

    Example: tidewheel auth user remove orders
    """
    gone = Api(http).delete("auth", "users", name)
    output.print_json(gone) if as_json else print(f"{gone['name']} removed")


@lists(users)
def list_users(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the users.

    Example: tidewheel auth user ls
    """
    found = Api(http).get("auth", "users")["users"]
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
    """Allow a user something; a consumer needs receive on its topic and on its group.

    Example: tidewheel auth acl allow orders send receive --topic 'orders*' --group workers
    """
    put("allow", user, verbs, topic, group, Api(http), as_json)


@rules.command()
def deny(
    user: UserArgument,
    verbs: VerbsArgument,
    topic: TopicOption = None,
    group: GroupOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deny a user something that a wider rule allows.

    Example: tidewheel auth acl deny orders send --topic orders-archive
    """
    put("deny", user, verbs, topic, group, Api(http), as_json)


@rules.command("remove")
def remove_rules(
    user: UserArgument,
    verbs: Annotated[list[Verb] | None, typer.Argument(help="Which verbs; else all.")] = None,
    topic: TopicOption = None,
    group: GroupOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget what is said of a user about just this topic, group or prefix.

    Example: tidewheel auth acl remove orders send --topic orders-archive
    """
    about: dict[str, Any] = {"user": user, "topics": topic or [], "groups": group or []}
    if verbs:
        about["verbs"] = verbs
    show(Api(http).post("auth", "rules", "remove", body=about), as_json)


@lists(rules)
def list_rules(
    user: Annotated[str, typer.Argument(help="Only this user's.")] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules.

    Example: tidewheel auth acl ls orders
    """
    show(Api(http).get("auth", "rules", user=user), as_json)


def put(
    effect: str,
    user: str,
    verbs: list[Verb],
    topics: list[str] | None,
    groups: list[str] | None,
    api: Api,
    as_json: bool,
) -> None:
    """Set rules and show all of the user."""
    wanted = {
        "user": user,
        "effect": effect,
        "verbs": verbs,
        "topics": topics or [],
        "groups": groups or [],
    }
    show(api.post("auth", "rules", body=wanted), as_json)


def warn(answer: dict[str, Any]) -> None:
    """Say when users and rules count for nothing yet: the broker serves everybody."""
    if not answer["is_asked"]:
        output.say("This broker runs without --auth: it asks nobody who it is, everybody may do everything.")


def show(answer: dict[str, Any], as_json: bool) -> None:
    """Print rules: those of one user, kind, pattern and effect in one line."""
    found: list[dict[str, str]] = answer["rules"]
    warn(answer)
    if as_json:
        output.print_json(found)
        return
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        about = (one["user"], one["effect"], one["kind"], one["pattern"])
        lines.setdefault(about, []).append(one["verb"])
    if lines:
        rows = ((*about, " ".join(verbs)) for about, verbs in lines.items())
        output.print_table(("user", "effect", "on", "name", "verbs"), rows, prose=("verbs",))
    else:
        output.say("no rules: nothing is allowed; see tidewheel auth acl allow --help")
