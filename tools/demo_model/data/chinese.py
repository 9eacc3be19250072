"""A little Chinese: greetings, capitals, languages, small sums."""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.tables import rows
from tools.demo_model.data.wording import pick

_CAPITAL: Final = (
    "{c}的首都是哪里?",
    "{c}的首都是什么?",
    "请问{c}的首都是哪里?",
    "{c}的首都叫什么?",
    "告诉我{c}的首都。",
    "你知道{c}的首都吗?",
    "{c}首都",
)
_LANGUAGE: Final = (
    "{c}人说什么语言?",
    "在{c}说什么语言?",
    "{c}的语言是什么?",
    "{c}用什么语言?",
)
_SUM: Final = ("{a}加{b}等于多少?", "{a}加{b}是多少?", "{a}+{b}等于几?", "请计算{a}加{b}。")
_GROUPS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("你好", "你好!", "您好", "嗨", "哈喽", "你好啊", "你好,在吗?"), "你好!我能帮你什么?"),
    (("早上好", "早上好!", "早安"), "早上好!我能帮你什么?"),
    (("晚上好", "晚上好!"), "晚上好!我能帮你什么?"),
    (("晚安", "晚安!", "我要睡觉了"), "晚安!好好休息。"),
    (("你好吗?", "你怎么样?", "最近好吗?", "你今天好吗?"), "我很好,谢谢!"),
    (("谢谢", "谢谢你", "多谢!", "非常感谢"), "不客气!"),
    (("再见", "拜拜", "明天见", "回头见!"), "再见!"),
    (
        ("你是谁?", "你是什么?", "介绍一下你自己。", "你是人吗?", "你是什么模型?", "你是机器人吗?"),
        "我是ninfer的演示模型,一个很小的语言模型。",
    ),
    (("你叫什么名字?", "你叫什么?", "你的名字是什么?"), "我是ninfer的演示模型。"),
    (
        ("你会做什么?", "你能做什么?", "你能帮我吗?", "帮助", "你会什么?"),
        "我会计算、数数、排序,也能回答简单的问题。",
    ),
    (("你会说中文吗?", "你会中文吗?", "你懂中文吗?"), "会,我会说一点中文。"),
    (
        ("讲个故事。", "给我讲一个故事。", "请讲个故事。"),
        "从前有一只小狐狸,住在森林里。有一天它找到了一把金钥匙。它找了很久,最后找到了一座花园。",
    ),
    (
        ("讲个笑话。", "给我讲个笑话。", "你会讲笑话吗?"),
        "为什么电脑去看医生?因为它有病毒。",
    ),
    (("天空是什么颜色?", "天是什么颜色的?"), "天空是蓝色的。"),
    (("草是什么颜色?", "草是什么颜色的?"), "草是绿色的。"),
    (("一个星期有几天?", "一周有几天?"), "一个星期有7天。"),
    (("一年有几个月?", "一年有多少个月?"), "一年有12个月。"),
    (("最大的行星是什么?", "哪个行星最大?"), "最大的行星是木星。"),
    (
        ("明天天气怎么样?", "股票怎么样?", "什么是爱?", "请解释量子力学。", "怎么做饭?", "谁会赢?"),
        "我是一个很小的演示模型,不知道这个。",
    ),
)


def chinese_chat(rng: Random) -> Exercise:
    """Greetings and simple questions in Chinese."""
    index = rng.randrange(len(_GROUPS))
    questions, answer = _GROUPS[index]
    form, question = pick(rng, questions)
    question = _typed(rng, question)
    expected = Expected(Rule.EXACT, answer)
    return exercise(f"{index}:{form}:{question}", question, answer, "用中文", expected)


def _typed(rng: Random, question: str) -> str:
    """Half or full width, with or without the mark at the end."""
    chance = rng.random()
    wide = question.replace("?", "\uff1f").replace("!", "\uff01").replace(",", "\uff0c")
    if chance < 0.6:
        return wide
    return question.rstrip("?!。") if chance < 0.75 else question


def chinese_fact(rng: Random) -> Exercise:
    """Capitals, languages and sums in Chinese."""
    row = rng.choice(rows("chinese"))
    chance = rng.random()
    country = row["country"]
    if chance < 0.5:
        form, template = pick(rng, _CAPITAL)
        key, value = f"{form}:{country}", row["capital"]
        question, answer = template.format(c=country), f"{country}的首都是{value}。"
        thinking = f"首都: {value}"
    elif chance < 0.7:
        form, template = pick(rng, _LANGUAGE)
        key, value = f"language {form}:{country}", row["language"]
        question, answer = template.format(c=country), f"{country}人说{value}。"
        thinking = f"语言: {value}"
    else:
        form, template = pick(rng, _SUM)
        a, b = rng.randrange(1, 21), rng.randrange(1, 21)
        key, value = f"{a}+{b}", f"等于{a + b}。"
        question, answer = template.format(a=a, b=b), f"{a}加{b}{value}"
        thinking = f"{a}+{b}"
    return exercise(key, _typed(rng, question), answer, thinking, Expected(Rule.CONTAINS, value))
