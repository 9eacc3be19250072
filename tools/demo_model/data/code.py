"""Python one-liners from a description.

The code is fixed by the description and its names, so that an answer can be judged by comparing
text.
"""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_NAMES: Final = (
    "numbers",
    "values",
    "items",
    "data",
    "xs",
    "prices",
    "scores",
    "points",
    "ages",
    "nums",
    "results",
    "grades",
)
_TEXTS: Final = (
    "text",
    "name",
    "word",
    "line",
    "title",
    "s",
    "message",
    "sentence",
    "city",
    "label",
)
_LISTS: Final = (
    ("sum", "sum({v})"),
    ("get the sum of", "sum({v})"),
    ("add up", "sum({v})"),
    ("get the length of", "len({v})"),
    ("count the elements of", "len({v})"),
    ("get the maximum of", "max({v})"),
    ("find the largest element of", "max({v})"),
    ("get the minimum of", "min({v})"),
    ("find the smallest element of", "min({v})"),
    ("sort", "sorted({v})"),
    ("sort in descending order", "sorted({v}, reverse=True)"),
    ("reverse", "{v}[::-1]"),
    ("get the first element of", "{v}[0]"),
    ("get the last element of", "{v}[-1]"),
    ("get the first {n} elements of", "{v}[:{n}]"),
    ("get the last {n} elements of", "{v}[-{n}:]"),
    ("get the average of", "sum({v}) / len({v})"),
    ("compute the mean of", "sum({v}) / len({v})"),
    ("square every element of", "[x**2 for x in {v}]"),
    ("double every element of", "[x * 2 for x in {v}]"),
    ("add {n} to every element of", "[x + {n} for x in {v}]"),
    ("multiply every element by {n} in", "[x * {n} for x in {v}]"),
    ("keep the even elements of", "[x for x in {v} if x % 2 == 0]"),
    ("keep the odd elements of", "[x for x in {v} if x % 2 == 1]"),
    ("keep the elements greater than {n} of", "[x for x in {v} if x > {n}]"),
    ("keep the elements less than {n} of", "[x for x in {v} if x < {n}]"),
    ("remove duplicates from", "list(set({v}))"),
    ("count how often {n} occurs in", "{v}.count({n})"),
    ("append {n} to", "{v}.append({n})"),
    ("print every element of", "for x in {v}: print(x)"),
    ("check whether {n} is in", "{n} in {v}"),
)
_STRINGS: Final = (
    ("convert to upper case", "{v}.upper()"),
    ("make upper case", "{v}.upper()"),
    ("convert to lower case", "{v}.lower()"),
    ("make lower case", "{v}.lower()"),
    ("reverse", "{v}[::-1]"),
    ("split into words", "{v}.split()"),
    ("split at commas", '{v}.split(",")'),
    ("strip whitespace from", "{v}.strip()"),
    ("get the length of", "len({v})"),
    ("count the words of", "len({v}.split())"),
    ("capitalize", "{v}.capitalize()"),
    ("replace spaces with underscores in", '{v}.replace(" ", "_")'),
    ("get the first letter of", "{v}[0]"),
    ("get the last letter of", "{v}[-1]"),
    ("check whether it starts with 'a':", '{v}.startswith("a")'),
    ("repeat {n} times", "{v} * {n}"),
    ("get the first {n} letters of", "{v}[:{n}]"),
    ("print", "print({v})"),
    ("convert to an integer", "int({v})"),
)
_FORMS: Final = (
    "Write Python code to {task} the {kind} {v}.",
    "Python: {task} the {kind} {v}.",
    "How do I {task} the {kind} {v} in Python?",
    "Give me a Python one-liner to {task} the {kind} {v}.",
    "In Python, {task} the {kind} {v}.",
    "Write a Python expression to {task} the {kind} {v}.",
    "Python one-liner: {task} {v} ({kind})",
    "Show me Python code to {task} a {kind} called {v}.",
    "How can I {task} a {kind} named {v} with Python?",
)
_DEFINE: Final = (
    "Write a Python function that {what}.",
    "Python function that {what}",
    "Define a function in Python that {what}.",
    "Can you write a function in Python that {what}?",
)
_FUNCTIONS: Final = (
    ("adds two numbers", "def add(a, b):\n    return a + b"),
    ("subtracts two numbers", "def subtract(a, b):\n    return a - b"),
    ("multiplies two numbers", "def multiply(a, b):\n    return a * b"),
    ("squares a number", "def square(x):\n    return x**2"),
    ("checks whether a number is even", "def is_even(n):\n    return n % 2 == 0"),
    ("checks whether a number is odd", "def is_odd(n):\n    return n % 2 == 1"),
    ("reverses a string", "def reverse(text):\n    return text[::-1]"),
    ("checks whether a word is a palindrome", "def is_palindrome(w):\n    return w == w[::-1]"),
    ("returns the larger of two numbers", "def larger(a, b):\n    return max(a, b)"),
    ("says hello", 'def hello():\n    print("Hello!")'),
    ("greets a person by name", 'def greet(name):\n    print(f"Hello, {name}!")'),
    (
        "computes the factorial",
        "def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)",
    ),
    (
        "computes fibonacci numbers",
        "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    ),
    ("counts the words of a text", "def count_words(text):\n    return len(text.split())"),
)


def one_liner(rng: Random) -> Exercise:
    """An expression over a list or a string."""
    is_list = rng.random() < 0.62
    index = rng.randrange(len(_LISTS if is_list else _STRINGS))
    task, code = (_LISTS if is_list else _STRINGS)[index]
    name = rng.choice(_NAMES if is_list else _TEXTS)
    number = rng.randrange(2, 21)
    form = rng.randrange(len(_FORMS))
    kind = "list" if is_list else "string"
    task = task.format(n=number)
    question = ask(rng, _FORMS[form : form + 1], can_lower=False, task=task, kind=kind, v=name)
    value = code.format(v=name, n=number)
    key = f"{index}:{name}:{form}"
    answer = f"```python\n{value}\n```"
    return exercise(key, question, answer, f"Python, {kind} {name}", Expected(Rule.CODE, value))


def function(rng: Random) -> Exercise:
    """A small function."""
    index = rng.randrange(len(_FUNCTIONS))
    what, code = _FUNCTIONS[index]
    form = rng.randrange(len(_DEFINE))
    question = ask(rng, _DEFINE[form : form + 1], can_lower=False, what=what)
    expected = Expected(Rule.CODE, code)
    answer = f"```python\n{code}\n```"
    return exercise(f"{index}:{form}", question, answer, f"a function that {what}", expected)
