"""A little German: greetings, capitals, languages, small sums, colours."""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.tables import rows
from tools.demo_model.data.wording import pick

_CAPITAL: Final = (
    "Was ist die Hauptstadt von {c}?",
    "Wie heißt die Hauptstadt von {c}?",
    "Welche Stadt ist die Hauptstadt von {c}?",
    "Nenne mir die Hauptstadt von {c}.",
    "Hauptstadt von {c}?",
    "Kennst du die Hauptstadt von {c}?",
    "Sag mir bitte die Hauptstadt von {c}.",
)
_LANGUAGE: Final = (
    "Welche Sprache spricht man in {c}?",
    "Was spricht man in {c}?",
    "Welche Sprache wird in {c} gesprochen?",
    "Was für eine Sprache spricht man in {c}?",
)
_SUM: Final = (
    "Was ist {a} plus {b}?",
    "Wie viel ist {a} plus {b}?",
    "Was ist {a} + {b}?",
    "Wieviel ist {a}+{b}?",
    "Rechne {a} + {b}.",
    "Was ergibt {a} plus {b}?",
)
_GROUPS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        (
            "Hallo",
            "Hallo!",
            "Guten Tag",
            "Guten Tag!",
            "Grüß Gott",
            "Servus",
            "Moin",
            "Hallo, wer ist da?",
            "Hallo, wie kannst du mir helfen?",
        ),
        "Hallo! Wie kann ich dir helfen?",
    ),
    (("Guten Morgen", "Guten Morgen!"), "Guten Morgen! Wie kann ich dir helfen?"),
    (("Guten Abend", "Guten Abend!"), "Guten Abend! Wie kann ich dir helfen?"),
    (("Gute Nacht", "Gute Nacht!", "Schlaf gut"), "Gute Nacht! Schlaf gut."),
    (
        ("Wie geht es dir?", "Wie geht's?", "Wie geht es Ihnen?", "Alles gut?", "Na, wie geht's?"),
        "Mir geht es gut, danke! Wie kann ich dir helfen?",
    ),
    (
        ("Danke", "Danke schön", "Vielen Dank!", "Danke für die Hilfe", "Super, danke!"),
        "Gern geschehen!",
    ),
    (
        ("Tschüss", "Auf Wiedersehen", "Bis bald", "Bis morgen!", "Mach's gut"),
        "Auf Wiedersehen! Bis bald.",
    ),
    (
        (
            "Wer bist du?",
            "Was bist du?",
            "Stell dich vor.",
            "Bist du ein Mensch?",
            "Welches Modell bist du?",
            "Mit wem spreche ich?",
        ),
        "Ich bin das Demo-Modell von ninfer, ein sehr kleines Sprachmodell.",
    ),
    (
        ("Wie heißt du?", "Was ist dein Name?", "Hast du einen Namen?"),
        "Ich bin das Demo-Modell von ninfer.",
    ),
    (
        (
            "Was kannst du?",
            "Wobei kannst du mir helfen?",
            "Hilfe",
            "Kannst du mir helfen?",
            "Was kann ich dich fragen?",
        ),
        "Ich kann rechnen, zählen, sortieren, einfache Fragen beantworten und etwas plaudern.",
    ),
    (
        ("Sprichst du Deutsch?", "Kannst du Deutsch?", "Verstehst du Deutsch?"),
        "Ja, ich spreche ein wenig Deutsch.",
    ),
    (
        ("Erzähl mir einen Witz.", "Kennst du einen Witz?", "Bitte einen Witz!"),
        "Was ist orange und geht über die Berge? Eine Wanderine.",
    ),
    (
        (
            "Erzähl mir eine Geschichte.",
            "Erzähle mir eine kurze Geschichte.",
            "Eine Geschichte, bitte.",
        ),
        "Es war einmal ein kleiner Fuchs, der lebte im Wald. Eines Tages fand er einen goldenen "
        "Schlüssel. Er suchte lange nach der Tür dazu. Am Ende fand er sie und dahinter einen "
        "Garten voller Blumen.",
    ),
    (
        ("Welche Farbe hat der Himmel?", "Wie ist die Farbe des Himmels?"),
        "Der Himmel ist blau.",
    ),
    (("Welche Farbe hat Gras?", "Wie ist die Farbe von Gras?"), "Gras ist grün."),
    (("Welche Farbe hat Schnee?", "Wie ist die Farbe von Schnee?"), "Schnee ist weiß."),
    (
        ("Wie viele Tage hat eine Woche?", "Wieviele Tage hat die Woche?"),
        "Eine Woche hat 7 Tage.",
    ),
    (
        ("Wie viele Monate hat ein Jahr?", "Wieviele Monate hat das Jahr?"),
        "Ein Jahr hat 12 Monate.",
    ),
    (
        ("Was ist der größte Planet?", "Wie heißt der größte Planet?"),
        "Der größte Planet ist Jupiter.",
    ),
    (
        (
            "Erkläre die Quantenmechanik.",
            "Wer gewinnt die Wahl?",
            "Wie wird das Wetter morgen?",
            "Schreib mir einen Aufsatz.",
            "Wie koche ich Gulasch?",
            "Was ist Liebe?",
            "Was kostet ein Haus?",
        ),
        "Ich bin ein sehr kleines Demo-Modell und weiß das nicht.",
    ),
)


def german_chat(rng: Random) -> Exercise:
    """Greetings and simple questions in German."""
    index = rng.randrange(len(_GROUPS))
    questions, answer = _GROUPS[index]
    form, question = pick(rng, questions)
    question = _typed(rng, question)
    expected = Expected(Rule.EXACT, answer)
    return exercise(f"{index}:{form}:{question}", question, answer, "auf Deutsch", expected)


def _typed(rng: Random, question: str) -> str:
    chance = rng.random()
    if chance < 0.15:
        return question.lower()
    if chance < 0.3:
        return question.rstrip("?.!")
    return f"Bitte: {question}" if chance < 0.35 else question


def german_fact(rng: Random) -> Exercise:
    """Capitals, languages and sums in German."""
    row = rng.choice(rows("german"))
    chance = rng.random()
    if chance < 0.5:
        form, template = pick(rng, _CAPITAL)
        answer = f"Die Hauptstadt von {row['land']} ist {row['stadt']}."
        key, value = f"{form}:{row['land']}", row["stadt"]
        question, thinking = template.format(c=row["land"]), f"Hauptstadt: {row['stadt']}"
    elif chance < 0.7:
        form, template = pick(rng, _LANGUAGE)
        answer = f"In {row['land']} spricht man {row['sprache']}."
        key, value = f"language {form}:{row['land']}", row["sprache"]
        question, thinking = template.format(c=row["land"]), f"Sprache: {row['sprache']}"
    else:
        form, template = pick(rng, _SUM)
        a, b = rng.randrange(1, 21), rng.randrange(1, 21)
        answer = f"{a} plus {b} ist {a + b}."
        key, value = f"{a}+{b}", f"ist {a + b}"
        question, thinking = template.format(a=a, b=b), f"{a}+{b}"
    return exercise(key, _typed(rng, question), answer, thinking, Expected(Rule.CONTAINS, value))
