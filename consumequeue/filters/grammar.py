"""Grammar of SQL filter expressions.

The keywords are those of RocketMQ, and operator precedence follows SQL92.

Operators, lowest precedence first. Operators of the same precedence are left-associative.

    a OR b          any
    a AND b         every
    NOT a           negation: applies to the whole comparison that follows, as in SQL92
    = <> IS NULL    test
    < BETWEEN IN    comparison; also > <= >= CONTAINS STARTSWITH ENDSWITH
    - +             sign
    name, 'text', 5, 2.5E3, TRUE, (...)

Keywords are case-insensitive, but property names are not. Strings use single quotes, which are doubled within
a string. `--` begins a comment that extends to the end of the line, and `/* */` encloses a comment. The
grammar has no types. Type errors, such as an order comparison with a string, are detected when terms are
combined (`terms.py`).

The LALR(1) parser makes a single pass without backtracking and keeps its stack on the heap. Time and memory
are thus linear in the length of the expression, which is itself limited. The regular expression for a keyword
does not match if a name character follows. Otherwise, "or" would match in the name `order`. A property name
must not be a keyword.
"""

from __future__ import annotations

from typing import Final

GRAMMAR: Final = r"""
start: any
?any: every (_OR every)*
?every: negation (_AND negation)*
?negation: _NOT negation -> negated
    | test

?test: comparison
    | test _EQUAL comparison -> equal
    | test _UNEQUAL comparison -> unequal
    | test _IS _NULL -> null
    | test _IS _NOT _NULL -> not_null

?comparison: sign
    | comparison ORDER sign -> ordered
    | comparison _BETWEEN sign _AND sign -> between
    | comparison _NOT _BETWEEN sign _AND sign -> not_between
    | comparison _IN "(" member ("," member)* ")" -> one_of
    | comparison _NOT _IN "(" member ("," member)* ")" -> none_of
    | comparison PART TEXT -> part
    | comparison _NOT PART TEXT -> not_part

?sign: "+" sign -> plus
    | "-" sign -> minus
    | NAME -> named
    | TRUE -> true
    | FALSE -> false
    | NULL -> bare_null
    | "(" any ")"
    | constant

?member: constant
    | "-" number -> minus

?constant: TEXT -> text
    | number

?number: INTEGER -> integer
    | DECIMAL -> decimal

_EQUAL: "="
_UNEQUAL.1: "<>"
ORDER: "<=" | ">=" | "<" | ">"

_OR: /or(?![a-z0-9_$])/i
_AND: /and(?![a-z0-9_$])/i
_NOT: /not(?![a-z0-9_$])/i
_IS: /is(?![a-z0-9_$])/i
_IN: /in(?![a-z0-9_$])/i
_BETWEEN: /between(?![a-z0-9_$])/i
_NULL: /null(?![a-z0-9_$])/i
NULL: /null(?![a-z0-9_$])/i
TRUE: /true(?![a-z0-9_$])/i
FALSE: /false(?![a-z0-9_$])/i
PART: /(contains|startswith|endswith)(?![a-z0-9_$])/i
NAME: /(?!(?:and|or|not|is|in|between|null|true|false|contains|startswith|endswith)(?![a-z0-9_$]))
       [a-z_$][a-z0-9_$]*/ix

DECIMAL.2: /([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INTEGER.1: /(0|[1-9][0-9]*)l?/i
TEXT: /'([^']|'')*'/

%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*/
%ignore /\/\*([^*]|\*+[^*\/])*\*+\//
"""

SHOWN: Final = {
    "$END": "the end",
    "COMMA": "','",
    "DECIMAL": "",
    "FALSE": "",
    "INTEGER": "a number",
    "LPAR": "'('",
    "MINUS": "",
    "NAME": "a property",
    "NULL": "",
    "ORDER": "'<'",
    "PART": "CONTAINS",
    "PLUS": "",
    "RPAR": "')'",
    "TEXT": "a 'text'",
    "TRUE": "TRUE",
    "_EQUAL": "'='",
    "_UNEQUAL": "'<>'",
}
"""Names of terminals in error messages. "" omits a terminal, and keywords are shown unchanged."""
