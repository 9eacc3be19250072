"""Words and names the skills draw from, and made-up words.

Lists are written as blocks of text and split when a skill asks; nothing here knows what a word is
used for.
"""

import functools
from random import Random
from typing import Final

_COMMON: Final = """
apple banana cherry orange lemon grape melon peach pear plum mango berry tomato potato carrot onion
garlic pepper bread butter cheese honey sugar salt water milk coffee tea juice soup salad pizza
pasta rice cake cookie chocolate dinner lunch breakfast kitchen table chair window door house garden
street bridge tower castle church school office market station airport hotel island beach mountain
river forest desert valley ocean lake cloud storm rain snow wind thunder summer winter spring autumn
morning evening night sunrise sunset star moon planet rocket galaxy comet earth fire stone metal
gold silver copper iron glass paper wood cotton silk leather plastic bottle basket bucket candle
lamp mirror blanket pillow carpet curtain clock camera radio phone computer keyboard screen printer
pencil eraser ruler notebook letter stamp envelope parcel book story poem novel song music piano
guitar violin drum flute trumpet dance theater movie picture painting statue museum library doctor
nurse teacher student farmer baker painter writer singer pilot sailor soldier lawyer judge driver
waiter builder engineer scientist king queen prince princess knight wizard dragon monster ghost
angel robot pirate ninja cat dog horse cow pig sheep goat chicken duck goose turkey rabbit mouse
hamster squirrel fox wolf bear lion tiger leopard elephant giraffe zebra monkey gorilla kangaroo
koala panda camel dolphin whale shark salmon turtle frog snake lizard crocodile eagle falcon owl
parrot penguin pigeon raven robin swan spider beetle butterfly dragonfly bee ant flower rose tulip
lily daisy sunflower tree leaf branch root seed grass bush cactus mushroom head hair face nose mouth
tooth tongue neck shoulder elbow hand finger knee foot heart brain blood bone mother father sister
brother uncle aunt cousin family friend neighbor baby child people happy sad angry brave clever
gentle honest lazy lucky proud quiet quick silly strong weak young old small large tall short round
square heavy light dark bright clean dirty early late empty full fresh sweet bitter sour salty warm
cold hot cool dry wet soft hard smooth rough sharp strange simple special perfect yellow purple
green blue red black white brown pink gray violet one two three seven eleven twelve twenty hundred
thousand million number letter circle triangle corner center bottom middle nothing something
everything anything someone always never often maybe together forever tomorrow yesterday today
Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April June July
August September October November December jump walk swim climb carry throw catch build write read
listen speak whisper shout laugh smile think dream sleep wonder travel wander explore discover
invent create imagine remember forget believe promise answer question problem reason secret mystery
treasure adventure journey ticket train plane ship boat bicycle wagon engine wheel motor ladder
hammer needle thread button pocket jacket trouser sweater glove scarf shoe boot hat umbrella
necklace ring crown sword shield arrow flag map compass lantern anchor harbor lighthouse strawberry
blueberry raspberry pineapple cucumber pumpkin cabbage spinach lettuce broccoli hello world python
language model science history geography biology chemistry physics mathematics mississippi
hippopotamus rhinoceros encyclopedia refrigerator television helicopter university restaurant
hospital important beautiful wonderful different difficult dangerous delicious favorite
"""
_FIRST_NAMES: Final = """
Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam
Tina Uma Victor Wendy Xenia Yusuf Zoe Alice Bob Carol Daniel Elena Frank Gina Hugo Irene Jonas
Karen Lukas Maria Nina Oscar Petra Robert Sara Thomas Ursula Vera Walter Yara Adam Bella Carlos
Diana Erik Fiona George Hannah Ivan Julia Kevin Laura Marco Nora Omar Peter Rachel Simon Tara Will
Amir Aisha Chen Mei Hiro Yuki Priya Raj Fatima Hassan Lena Max Sophie Tim Lisa Jan Eva Otto Greta
Moritz Luis Carmen Pablo Lucia Diego Marta Pedro Ines Nadia Olga Boris Igor Sven Astrid Lars Freya
Liam Ella Mason Ava Ethan Lily Logan Chloe Lucas Ruby Oliver Daisy James Emily John Mary Michael
"""
_LAST_NAMES: Final = """
Smith Jones Brown Miller Davis Wilson Moore Taylor Clark Lewis Walker Hall Young King Wright Green
Baker Adams Nelson Carter Mitchell Turner Parker Collins Cook Morgan Bell Murphy Cooper Ward Gray
Schmidt Weber Fischer Meyer Wagner Becker Hoffmann Koch Richter Klein Wolf Braun Zimmermann Garcia
Lopez Martin Silva Costa Rossi Ferrari Tanaka Suzuki Sato Kim Park Wang Li Zhang Nguyen Singh Patel
"""
_CITIES: Final = """
Paris London Berlin Rome Madrid Vienna Oslo Tokyo Beijing Moscow Cairo Lisbon Dublin Athens Prague
Warsaw Budapest Stockholm Helsinki Copenhagen Amsterdam Brussels Bern Zurich Geneva Munich Hamburg
Cologne Frankfurt Milan Naples Venice Florence Barcelona Valencia Seville Porto Lyon Nice Toronto
Montreal Vancouver Chicago Boston Seattle Denver Miami Dallas Houston Sydney Melbourne Auckland
Mumbai Delhi Bangkok Hanoi Seoul Singapore Jakarta Manila Istanbul Ankara Nairobi Lagos Lima Bogota
"""
_COLORS: Final = "red blue green yellow orange purple black white brown pink gray silver golden"
_ANIMALS: Final = """
cat dog horse cow pig sheep goat rabbit fox wolf bear lion tiger elephant giraffe zebra monkey
panda camel dolphin whale shark turtle frog snake eagle owl parrot penguin swan hamster mouse duck
"""
_FRUITS: Final = """
apple banana cherry orange lemon grape melon peach pear plum mango kiwi fig apricot papaya lime
"""
_STARTS: Final = (
    "b c d f g h j k l m n p r s t v w z bl br cl cr dr fl fr gr pl pr sh sk sl sn sp st tr"
)
_VOWELS: Final = "a e i o u ai ea oo ou ee"
_ENDS: Final = "b d g k l m n p r s t x nd nt rk st lp mp ck ng sh"


@functools.cache
def common() -> tuple[str, ...]:
    """Every-day English words."""
    return tuple(dict.fromkeys(_COMMON.split()))


@functools.cache
def first_names() -> tuple[str, ...]:
    """Given names."""
    return tuple(dict.fromkeys(_FIRST_NAMES.split()))


@functools.cache
def last_names() -> tuple[str, ...]:
    """Family names."""
    return tuple(_LAST_NAMES.split())


@functools.cache
def cities() -> tuple[str, ...]:
    """Cities people live in or ask about."""
    return tuple(_CITIES.split())


@functools.cache
def colors() -> tuple[str, ...]:
    """Names of colours."""
    return tuple(_COLORS.split())


@functools.cache
def animals() -> tuple[str, ...]:
    """Animals."""
    return tuple(_ANIMALS.split())


@functools.cache
def fruits() -> tuple[str, ...]:
    """Fruits."""
    return tuple(_FRUITS.split())


@functools.cache
def _syllables() -> tuple[tuple[str, ...], ...]:
    return tuple(_STARTS.split()), tuple(_VOWELS.split()), tuple(_ENDS.split())


def made_up(rng: Random) -> str:
    """A word nobody knows: syllables, or two halves of known words."""
    if rng.random() < 0.4:
        first, second = rng.choice(common()), rng.choice(common())
        cut = rng.randrange(1, min(5, len(first)))
        return (first[:cut] + second[-rng.randrange(1, min(5, len(second))) :]).lower()
    starts, vowels, ends = _syllables()
    word = "".join(rng.choice(starts) + rng.choice(vowels) for _ in range(rng.randrange(1, 3)))
    return word + rng.choice(ends)


def any_word(rng: Random) -> str:
    """A word or a name, sometimes a made-up one."""
    chance = rng.random()
    if chance < 0.55:
        return rng.choice(common())
    if chance < 0.7:
        return rng.choice(first_names()).lower() if chance < 0.62 else rng.choice(first_names())
    return made_up(rng)
