"""The grammar of SQL filter expressions: RocketMQ's words in SQL92's order.

Levels, the loosest first; what stands on one level is read from left to right:

    a OR b          any
    a AND b         every
    NOT a           negation: of the whole comparison behind it, as SQL92 has it
    = <> IS NULL    test
    < BETWEEN IN    comparison; also > <= >= CONTAINS STARTSWITH ENDSWITH
    - +             sign
    name, 'text', 5, 2.5E3, TRUE, (...)

Words are known in any case, names of properties are not. A text is closed by a quote; two quotes stand for
one. `--` begins a comment of the rest of the line, `/* */` holds one. The grammar knows no types: that 'text'
cannot be ordered is seen when terms are joined (`filter_terms.py`).

LALR(1): one pass, no backtracking, the stack on the heap; so time and memory grow with the expression's
length, which is bounded. A word is a regular expression of its own that no name character may follow, because
a plain "or" would cut the name `order` in two; and no property may be named as a word is.
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
"""How the grammar's terminals are named to people; a word is shown as itself, "" is left out."""
