"""Questions the model cannot answer, and the sentence that says so."""

from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import pick, roughen

REFUSAL: Final = "I am a very small demo model and do not know that."
_OUT_OF_SCOPE: Final = (
    "Explain quantum mechanics.",
    "What do you think about politics?",
    "Who will win the election?",
    "Write an essay about philosophy.",
    "What is the stock price of Apple?",
    "How do I cook lasagna?",
    "Can you book a flight for me?",
    "Who won the world cup last year?",
    "What is the news today?",
    "How does a nuclear reactor work?",
    "Write a novel.",
    "Prove the Riemann hypothesis.",
    "Give me medical advice.",
    "What should I invest in?",
    "Explain the theory of relativity.",
    "What happened yesterday?",
    "Who is the president of the United States?",
    "What is the population of Tokyo?",
    "How tall is Mount Everest?",
    "Solve this differential equation.",
    "What is the best movie of all time?",
    "Who is your favorite actor?",
    "Write a letter to my boss.",
    "How do I fix my car?",
    "What is the distance to the sun?",
    "Explain how transformers work.",
    "What is love?",
    "Can you summarize this book?",
    "Give me a recipe for bread.",
    "What will the weather be tomorrow?",
    "What time is it?",
    "What is the date today?",
    "How do I lose weight?",
    "Tell me about the Roman Empire.",
    "Who was Napoleon?",
    "Write a rap song.",
    "Draw a picture.",
    "Play chess with me.",
    "What is the integral of x squared?",
    "Explain blockchain.",
    "Who invented the telephone?",
    "Why is the sky blue?",
    "How do airplanes fly?",
    "What is DNA?",
    "Which phone should I buy?",
    "What is the weather today?",
)
_UNKNOWN: Final = (
    "Who is {n} {l}?",
    "Tell me about {n} {l}.",
    "What did {n} {l} do?",
    "When was {n} {l} born?",
    "How old is {n} {l}?",
    "Where does {n} {l} work?",
    "What is a {w}?",
    "What is the capital of {c}?",
    "Where is {c}?",
    "Who is {c}?",
    "Tell me about {c}.",
    "What language is spoken in {c}?",
    "What does {w} mean?",
    "Explain the word {w}.",
    "Tell me about the {w}.",
    "How do I build a {o}?",
    "What is the history of the {o}?",
    "How does a {o} work?",
    "Where can I buy a {o}?",
    "What is the price of a {o}?",
    "Why do people like the {o}?",
)


def unknown(rng: Random) -> Exercise:
    """Questions the model cannot answer."""
    if rng.random() < 0.5:
        form, question = pick(rng, _OUT_OF_SCOPE)
        key = str(form)
    else:
        form, template = pick(rng, _UNKNOWN)
        question = template.format(
            n=rng.choice(words.first_names()),
            l=rng.choice(words.last_names()),
            w=words.made_up(rng),
            c=words.made_up(rng).capitalize(),
            o=rng.choice(words.common()).lower(),
        )
        key = question
    question = roughen(rng, question)
    expected = Expected(Rule.CONTAINS, "do not know")
    return exercise(f"{key}:{question}", question, REFUSAL, "I do not know this", expected)
