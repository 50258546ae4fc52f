"""What the writing rewards count in a text: tokens, words, transition words and shared vocabulary.

A *token* is what whitespace separates; a *word* is a run of letters, digits and underscores in lower case, so that
"Don't stop, stop." has three tokens and the words don, t, stop and stop. The lists of words are our own.
"""

from __future__ import annotations

import re

WORD = re.compile(r"\w+")

STOP_WORDS = frozenset(
    WORD.findall(
        """
        a about after all also am an and any are as at be because been before being both but by can could d did do
        does doing each few for from had has have having he her here hers him his how i if in into is it its just ll m
        may me might mine more most must my no nor not now of off on once only or other our ours out over own re s
        same shall she should so some such t than that the their theirs them then there these they this those through
        to too under until up us ve very was we were what when where which while who whom whose why will with would
        you your yours
        """
    )
)
"""Words that say nothing about the subject, the remains of contractions included; `content_words` leaves them out."""

TRANSITIONS = {
    kind: tuple(phrases.split(", "))
    for kind, phrases in {
        "addition": "additionally, also, along with, as well as, besides, furthermore, in addition, moreover",
        "example": "especially, for example, for instance, in particular, namely, particularly, such as",
        "restatement": "essentially, in essence, in other words, more precisely, put differently, that is to say",
        "cause": "accordingly, as a result, because, consequently, due to, hence, so, therefore, thus",
        "contrast": "but, by contrast, conversely, however, in contrast, instead, whereas, while, yet",
        "sequence": "finally, first, firstly, lastly, next, second, secondly, then, third, to begin with",
        "emphasis": "certainly, clearly, in fact, indeed, notably, obviously, of course, undoubtedly",
        "summary": "altogether, in brief, in conclusion, in short, in summary, overall, to conclude, to sum up",
        "comparison": "equally, in comparison, in the same way, just as, likewise, much like, similarly",
        "concession": "admittedly, although, despite, even though, in spite of, nevertheless, nonetheless, though",
        "condition": "as long as, assuming that, given that, if, otherwise, provided that, unless, whether",
        "time": "after, afterwards, before, currently, during, later, meanwhile, previously, since, until",
    }.items()
}
"""The twelve kinds of transition, each with the words and phrases that show it; none is in two kinds."""


def num_tokens(text: str) -> int:
    """Tokens of a text, separated by whitespace."""
    return len(text.split())


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order."""
    return WORD.findall(text.lower())


def unique_ratio(first: str, second: str) -> float | None:
    """Distinct words of `second` over distinct words of `first`, stop-words included; None if `first` has none."""
    num_first = len(set(words(first)))
    return len(set(words(second))) / num_first if num_first else None


def content_words(text: str) -> set[str]:
    """The distinct words of a text that are no stop-words."""
    return set(words(text)) - STOP_WORDS


def jaccard(first: str, second: str) -> float:
    """Shared over all distinct content words of two texts, in [0, 1]; 0 where neither has any."""
    left, right = content_words(first), content_words(second)
    return len(left & right) / len(left | right) if left | right else 0.0


def transitions(text: str) -> set[str]:
    """The kinds of transition that a text shows.

    Words and phrases are found whole, never inside a longer word ("so" is not in "also"), in any case, and whatever
    punctuation or line break stands between the words of a phrase.
    """
    spoken = f" {' '.join(words(text))} "
    return {kind for kind, phrases in TRANSITIONS.items() if any(f" {phrase} " in spoken for phrase in phrases)}
