"""Behaviours of the two writing rewards that these tests protect; every expected value is worked out by hand.

1. What is counted: tokens, words, shared words; transition words whole, not inside longer words.
2. Each level on every branch: below, at each boundary, on each slope, above; and what a failed level stops.
3. The declared range: nothing is below 0, and 2.98 is reached.
4. Two agents: another team is refused before anything runs.

Texts are made of short words and padded with dashes, which are neither words nor tokens of their own.
"""

import math

import pytest

from commands import composed
from marl_runner.config import check
from marl_runner.errors import ConfigError
from marl_runner.rewards.call import RewardCaller
from marl_runner.rewards.words import (
    STOP_WORDS,
    TRANSITIONS,
    content_words,
    jaccard,
    num_tokens,
    transitions,
    unique_ratio,
    words,
)
from marl_runner.rewards.writing import WritingArxiv, WritingTldr

NAMES = ["length", "ratio", "vocabulary", "coherence"]
ALL_KINDS = [phrases[0] for phrases in TRANSITIONS.values()]
OFF = {name: 0.0 for name in NAMES}


def numbered(first, last):
    """The words n<first>, …, n<last>; none is a stop-word."""
    return [f"n{number}" for number in range(first, last + 1)]


def text(tokens, characters):
    joined = " ".join(tokens)
    assert len(joined) <= characters
    return joined + "-" * (characters - len(joined))


def tldr(first, second):
    [components] = WritingTldr()([first], [second])
    assert list(components) == NAMES
    return components


def arxiv(first, second):
    [components] = WritingArxiv()([first], [second])
    assert list(components) == NAMES
    return components


def points(*values):
    return pytest.approx(dict(zip(NAMES, values, strict=True)), abs=1e-9)


# --- what is counted


def test_tokens_are_separated_by_whitespace_and_words_are_runs_of_letters_digits_and_underscores():
    assert num_tokens(" one  two\n\tthree-four ") == 3
    assert num_tokens(" \n") == 0
    assert words("Don't STOP, stop: x_1 -- 2nd!") == ["don", "t", "stop", "stop", "x_1", "2nd"]
    assert words("Über naïve") == ["über", "naïve"]
    assert words("... --- !") == []


def test_the_unique_ratio_counts_distinct_words_with_stop_words_in_any_case():
    assert unique_ratio("The cat", "the CAT and the dog") == 2.0  # {the, cat, and, dog} over {the, cat}
    assert unique_ratio("one one", "") == 0.0
    assert unique_ratio("...", "one") is None


def test_the_overlap_is_shared_over_all_content_words_and_zero_without_any():
    assert content_words("The cat and the dog") == {"cat", "dog"}
    assert jaccard("the cat sat", "a Cat ran off") == pytest.approx(1 / 3)  # {cat} of {cat, sat, ran}
    assert jaccard("cat", "cat") == 1.0
    assert jaccard("the of", "and but") == 0.0
    assert jaccard("", "") == 0.0


def test_transition_words_are_whole_words_and_not_parts_of_longer_ones():
    assert transitions("He sold some resort, thousands of them; sofas.") == set()  # so, though, first … in none
    assert transitions("Yeti iffy butter nextdoor butane") == set()  # yet, if, but, next
    assert transitions("so") == {"cause"}


def test_transition_words_are_found_in_any_case_and_phrases_across_punctuation_and_line_breaks():
    assert transitions("HOWEVER, it rained.") == {"contrast"}
    assert transitions("For\n  example: rain") == {"example"}
    assert transitions("for a good example") == set()
    assert transitions("in additional") == set()


def test_a_kind_counts_once_and_there_are_twelve():
    assert transitions("However, and but yet") == {"contrast"}
    assert len(TRANSITIONS) == 12
    assert transitions(" ".join(ALL_KINDS)) == set(TRANSITIONS)


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_every_phrase_shows_its_own_kind_and_no_other(kind):
    for phrase in TRANSITIONS[kind]:
        assert words(phrase) == phrase.split(" ")
        assert transitions(phrase) == {kind}


def test_the_numbered_words_of_these_tests_are_no_stop_words():
    assert not STOP_WORDS & set(numbered(0, 999))


# --- level 1: tokens of both texts


@pytest.mark.parametrize(
    ("num_first", "num_second", "length"),
    [(7, 16, 0.0), (8, 16, 0.5), (16, 7, 0.0), (256, 256, 0.5), (257, 256, 0.0), (256, 257, 0.0), (0, 0, 0.0)],
)
def test_tldr_texts_have_8_to_256_tokens_each(num_first, num_second, length):
    components = tldr("x " * num_first, "x " * num_second)
    assert components["length"] == length
    assert components == OFF or length > 0


@pytest.mark.parametrize(
    ("num_first", "num_second", "length"),
    [(127, 200, 0.0), (128, 200, 0.5), (200, 127, 0.0), (256, 256, 0.5), (257, 256, 0.0), (256, 257, 0.0)],
)
def test_arxiv_texts_have_128_to_256_tokens_each(num_first, num_second, length):
    components = arxiv("x " * num_first, "x " * num_second)
    assert components["length"] == length
    assert components == OFF or length > 0


# --- level 2: rho


@pytest.mark.parametrize(
    ("characters", "ratio", "goes_on"),
    [
        (109, 0.0, False),
        (110, 0.0, True),  # the lower end: no points, but no stop
        (135, 0.5, True),  # (1.35 - 1.1) / 0.5
        (159, 0.98, True),  # (1.59 - 1.1) / 0.5
        (160, 1.0, True),
        (250, 1.0, True),
        (320, 1.0, True),
        (338, 0.9, True),  # 1 - (3.38 - 3.2) / 1.8
        (410, 0.5, True),  # 1 - (4.1 - 3.2) / 1.8
        (500, 0.0, True),
        (501, 0.0, False),
    ],
)
def test_the_ratio_of_tldr_is_full_from_1_6_to_3_2_and_stops_outside_1_1_to_5(characters, ratio, goes_on):
    first = text(numbered(1, 8), 100)
    second = text(numbered(11, 26), characters)  # 16 of 8 words: upsilon = 2; nothing shared, no transition word
    assert tldr(first, second) == points(0.5, ratio, 0.5 if goes_on else 0.0, 0.0)


@pytest.mark.parametrize(
    ("characters", "ratio", "goes_on"),
    [
        (799, 0.0, False),
        (800, 0.0, True),
        (1050, 0.5, True),  # (1.05 - 0.8) / 0.5
        (1299, 0.998, True),  # (1.299 - 0.8) / 0.5
        (1300, 1.0, True),
        (1450, 1.0, True),
        (1600, 1.0, True),
        (1640, 0.9, True),  # 1 - (1.64 - 1.6) / 0.4
        (1800, 0.5, True),  # 1 - (1.8 - 1.6) / 0.4
        (2000, 0.0, True),
        (2001, 0.0, False),
    ],
)
def test_the_ratio_of_arxiv_is_full_from_1_3_to_1_6_and_stops_outside_0_8_to_2(characters, ratio, goes_on):
    first = text(numbered(0, 127), 1000)
    second = text(numbered(200, 327), characters)  # 128 of 128 words: upsilon = 1
    assert arxiv(first, second) == points(0.5, ratio, 0.5 if goes_on else 0.0, 0.0)


# --- level 3: upsilon


@pytest.mark.parametrize(
    ("num_words", "vocabulary", "goes_on"),
    [
        (25, 0.0, False),  # 1.25
        (26, 0.0, True),  # 1.3, the lower end
        (33, 0.25, True),  # 0.5 (1.65 - 1.3) / 0.7
        (39, 0.5 * 0.65 / 0.7, True),  # 1.95
        (40, 0.5, True),  # 2
        (80, 0.5, True),  # 4: there is no upper end
    ],
)
def test_the_vocabulary_of_tldr_is_full_from_2_and_stops_below_1_3(num_words, vocabulary, goes_on):
    first = text(numbered(1, 20), 200)
    second = text(["so", *numbered(101, 99 + num_words)], 400)  # rho = 2; one kind of transition: 0.4 * 0.4
    assert len(set(words(second))) == num_words
    assert tldr(first, second) == points(0.5, 1.0, vocabulary, 0.16 if goes_on else 0.0)


@pytest.mark.parametrize(
    ("num_words", "vocabulary", "goes_on"),
    [
        (49, 0.0, False),
        (50, 0.0, True),  # 0.5, the lower end
        (60, 0.25, True),  # 0.5 (0.6 - 0.5) / 0.2
        (69, 0.475, True),  # 0.5 (0.69 - 0.5) / 0.2
        (70, 0.5, True),
        (100, 0.5, True),
        (130, 0.5, True),
        (131, 0.4875, True),  # 0.5 (1 - 0.01 / 0.4)
        (150, 0.25, True),  # 0.5 (1 - 0.2 / 0.4)
        (170, 0.0, True),  # 1.7, the upper end
        (171, 0.0, False),
    ],
)
def test_the_vocabulary_of_arxiv_is_full_from_0_7_to_1_3_and_stops_outside_0_5_to_1_7(num_words, vocabulary, goes_on):
    first = text([*numbered(0, 99), *numbered(0, 27)], 1000)  # 128 tokens, 100 words
    second = text(["so"] * (181 - num_words) + numbered(201, 199 + num_words), 1400)  # 180 tokens
    assert len(set(words(second))) == num_words
    assert arxiv(first, second) == points(0.5, 1.0, vocabulary, 0.16 if goes_on else 0.0)


def test_a_first_text_without_words_fails_the_vocabulary():
    first, second = "!! " * 10, "so it went on and on " * 3
    assert len(first) == 30
    assert tldr(first, second.ljust(63)) == points(0.5, 1.0, 0.0, 0.0)  # rho = 63 / 30 = 2.1


# --- level 4: transition words and overlap


@pytest.mark.parametrize(
    ("num_kinds", "coherence"),
    [
        (0, 0.0),
        (1, 0.16),  # 0.4 * 0.4
        (2, 0.18),  # 0.4 (0.4 + 0.05)
        (7, 0.28),  # 0.4 (0.4 + 0.3)
        (12, 0.38),  # 0.4 (0.4 + 0.55)
    ],
)
def test_each_kind_of_transition_in_the_detailed_text_adds_to_the_coherence_of_tldr(num_kinds, coherence):
    first = text(["however", "thus", *numbered(1, 10)], 200)  # those of the first text do not count
    second = text([*ALL_KINDS[:num_kinds], *numbered(101, 130)], 400)
    assert tldr(first, second) == points(0.5, 1.0, 0.5, coherence)


@pytest.mark.parametrize(
    ("first_words", "second_words", "coherence"),
    [
        (["however"], ["thus"], 0.18),  # two kinds, one in each text
        (["however"], ["but"], 0.16),
        (["however"], ["w"], 0.16),
        (["w"], ["however"], 0.16),
        (["for"], ["example"], 0.0),  # no phrase goes from one text into the other
    ],
)
def test_the_kinds_of_both_texts_count_together_in_arxiv(first_words, second_words, coherence):
    first = text([*numbered(0, 127), *first_words], 1000)
    second = text([*second_words, *numbered(200, 327)], 1400)
    assert arxiv(first, second) == points(0.5, 1.0, 0.5, coherence)


@pytest.mark.parametrize(
    ("num_first", "num_second", "num_shared", "coherence"),
    [
        (34, 68, 0, 0.0),
        (34, 68, 1, 0.6 / 101 / 0.03),  # 1 of 34 + 68 - 1 = 101
        (34, 67, 1, 0.2),  # 1 of 100: 0.6 * 0.01 / 0.03, while 67 / 34 = 1.97 scores the vocabulary
        (34, 69, 3, 0.6),  # 3 of 100
        (34, 68, 30, 0.6),  # 30 of 72: no more than full
    ],
)
def test_the_overlap_of_tldr_is_full_from_0_03(num_first, num_second, num_shared, coherence):
    first = text(numbered(1, num_first), 300)
    second = text(numbered(num_first - num_shared + 1, num_first - num_shared + num_second), 600)
    upsilon = num_second / num_first
    assert tldr(first, second) == points(0.5, 1.0, min(0.5, 0.5 * (upsilon - 1.3) / 0.7), coherence)


@pytest.mark.parametrize(
    ("num_first", "num_second", "num_shared", "coherence"),
    [
        (100, 123, 23, 0.3),  # 23 of 100 + 123 - 23 = 200: 0.6 * 0.115 / 0.23
        (60, 63, 23, 0.6),  # 23 of 100
        (60, 63, 60, 0.6),  # 60 of 63
        (60, 63, 0, 0.0),
    ],
)
def test_the_overlap_of_arxiv_is_full_from_0_23(num_first, num_second, num_shared, coherence):
    first = text((numbered(1, num_first) * 3)[:150], 1000)
    second = text((numbered(num_first - num_shared + 1, num_first - num_shared + num_second) * 3)[:150], 1400)
    assert arxiv(first, second) == points(0.5, 1.0, 0.5, coherence)


# --- the range, the whole, the team


def test_the_greatest_reward_is_the_declared_one():
    # 0.5 + 1 + 0.5 + 0.4 * 0.95 + 0.6
    best = tldr(text(numbered(1, 10), 200), text([*ALL_KINDS, *numbered(5, 40)], 400))
    assert math.fsum(best.values()) == pytest.approx(2.98)
    both = arxiv(text(numbered(0, 127), 1000), text([*ALL_KINDS, *numbered(0, 127)], 1400))
    assert math.fsum(both.values()) == pytest.approx(2.98)
    assert max(math.fsum(best.values()), math.fsum(both.values())) <= 2.98
    assert WritingTldr().reward_range == WritingArxiv().reward_range == (0.0, 2.98)


@pytest.mark.parametrize("reward", [WritingTldr(), WritingArxiv()])
def test_every_reward_is_in_the_declared_range(reward):
    texts = [
        text((numbered(0, distinct) * 300)[:tokens], characters)
        for tokens, distinct in [(8, 7), (130, 40), (130, 129), (256, 200)]
        for characters in [1300, 1700, 2600]
    ]
    texts += ["", "!" * 99, " ".join(ALL_KINDS), " ".join(ALL_KINDS * 12)]
    pairs = [(first, second) for first in texts for second in texts]
    sums = [math.fsum(components.values()) for components in reward(*map(list, zip(*pairs, strict=True)))]
    least, greatest = reward.reward_range
    assert len(sums) == 256
    assert all(least <= total <= greatest for total in sums)
    assert len(set(sums)) > 10


def test_each_joint_action_is_scored_by_itself_in_order():
    short, long = text(numbered(1, 8), 100), text(numbered(11, 26), 200)
    assert WritingTldr()([short, "", short], [long, long, short]) == [
        {"length": 0.5, "ratio": 1.0, "vocabulary": 0.5, "coherence": 0.0},
        OFF,
        {"length": 0.5, "ratio": 0.0, "vocabulary": 0.0, "coherence": 0.0},  # rho = 1
    ]


@pytest.mark.parametrize("reward", [WritingTldr(), WritingArxiv()])
@pytest.mark.parametrize("num_agents", [1, 3])
def test_a_team_of_another_size_is_refused_before_anything_runs(reward, num_agents):
    with pytest.raises(ConfigError, match=f"takes 2 completion arguments, but the team has {num_agents} agents"):
        RewardCaller(reward, num_agents)


def test_a_single_agent_is_refused_when_the_configuration_is_checked():
    with pytest.raises(ConfigError, match=r"needs agents\.num_agents >= 2, got 1$"):
        check(composed("reward=writing_tldr", "agents.num_agents=1"))
