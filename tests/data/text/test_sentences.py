"""Sentence splitting: golden cases for English and Korean, and that no character is lost."""

import hashlib
import re
import sys
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import sources
from bertjax.data.config import SPLITTERS
from bertjax.data.text import sentences, unicode
from bertjax.data.text.sentences import split

# "|" marks where a sentence ends.
GOLDEN = [
    "One.|Two!|Three?|Four…|Five",
    "“What?” he asked.|“Nothing.”|She left.",
    "He (the elder) left.|(See there.)|Then he came.",
    "Mr. Smith met Dr. Jones, e.g. at St. Mary’s.|They spoke.",
    "J. S. Mill and W. E. B. Du Bois wrote.|The U.S. army came.",
    "No. 5 cost 3.14 on p. 7.|No.|That was in 1787.|Then it ended.",
    "It was I.|Then he left etc. and so on.",
    "1. The first point.|2. The second.|IV. The fourth.|B. The last.",
    "Hosmer—Mr. Angel—came.|He left on Aug. 4.",
    "Wait... what?|Really?!|Yes.",
    "광주고법 2014. 8. 14. 선고 2014노66 판결을 본다.|상고를 기각한다.",
    "【변론종결】2009. 5. 2.자 결정.|【이 유】 1. 먼저 본다.|가. 상고이유 제1점에 대하여",
    "(대법원 2006. 5. 26. 선고 2006도1614 판결 등 참조).|원심은 정당하다.",
    "그는 “간다.” 라고 하였다.|“아니다.”|그러나 갔다.",
    "(2) ㄱ. 원고는 매수하였다.|ㄴ. 피고는 다툰다.",
    "He lives in Los Angeles, CA.|She does too, ca. 50 miles away.",
    "Она ест рис.|Она пьёт чай, см. рис. 3 и стр. 12.|Далее.",
]


@pytest.mark.parametrize("marked", GOLDEN)
def test_golden_sentences(marked):
    expected = marked.split("|")
    assert split(" ".join(expected), "punctuation") == expected


# One text a script or language, as its users write it; "|" marks where a sentence ends, and a space follows it.
SCRIPTS = {
    "Hindi": "वह आया।|क्या वह गया?|हाँ!|डॉ. राम आए।",
    "Sanskrit": "रामो गच्छति ॥ १ ॥|सीता वदति ॥ २ ॥|इति",
    "Bengali": "আমি যাই।|তুমি কি যাবে?|ড. ইউনূস এলেন।",
    "Tamil": "அவன் வந்தான்.|அவள் போனாள்.|சரியா?|ஆம்.",
    "Urdu": "یہ کتاب ہے۔|کیا یہ گھر ہے؟|ہاں۔",
    "Arabic": "وصل د. محمد.|كيف حالك؟|أنا بخير!|شكرا.",
    "Hebrew": "הוא בא.|האם היא הלכה?|כן. א. ב. יהושע".replace("כן. ", "כן.|"),
    "Amharic": "ሰላም ነው።|እንዴት ነህ፧|ደህና፡፡|እሺ",
    "Armenian": "Բարեւ ձեզ։|Ինչպե՞ս եք։|Լավ։",
    "Armenian with colons": "Ես գնում եմ տուն:|Նա ասաց. այո, ժամը 10:30 է:|Լավ է:",
    "Hebrew with right-to-left marks": "שלום לך.\u200f|מה שלומך?\u200f|ד. כהן.\u200f|טוב.",
    "English with zero-width spaces": "One ends.\u200b|\u200bTwo ends.\xad|Mr.\u200b Smith came.",
    "Georgian": "გამარჯობა ყველას.|როგორ ხარ?|კარგად.",
    "Greek": "Γεια σου.|Τι κάνεις;|Είμαι καλά· ευχαριστώ.|Εσύ;|Καλά.",
    "Greek in NFD": unicodedata.normalize("NFD", "Πού;|Εδώ.|Εκεί;|Ναι."),
    "Russian": "Он пришёл.|«Куда?» — спросила она.|Домой, и т. д. и т. п.",
    "Khmer": "ខ្ញុំទៅផ្សារ។|គាត់មកពីណា?|គាត់មក។",
    "Burmese": "ကျွန်တော်သွားသည်။|သူလာသည်။|ဟုတ်",
    "Tibetan": "བཀྲ་ཤིས་བདེ་ལེགས། །|ཁྱེད་རང་བདེ་པོ་ཡིན་པས།|ཡིན།",
    "Thai": "นี่คือประโยคแรกของเรา|และนี่คือประโยคที่สองของเราทุกคน|ประโยคนี้มี นาย สมชาย อยู่ด้วย",
    "Thai with spaces between words": "ผม ไป ตลาด กับ เพื่อน แล้ว กลับ บ้าน",
    "Thai abbreviations": "เวลา 10.30 น. ตำรวจ กทม. 10240 จับ ดร. สมชาย และ พล.ต.อ. สมหญิง เมื่อ พ.ศ. 2567",
    "Lao": "ນີ້ແມ່ນປະໂຫຍກທໍາອິດ|ແລະນີ້ແມ່ນປະໂຫຍກທີສອງ",
    "German": "„Das ist gut.“|Dann kam er am 3. Oktober z. B. zu Fuß.|»Wirklich?«|Im 19. Jahrhundert, d. h. Peter.",
    "Spanish": "La Sra. Pérez llegó.|El Sr. García y la Dra. Ruiz no.",
    "Russian abbreviations": "На ул. Ленина, см. стр. 5.|Там ждал проф. Иванов.",
    "Vietnamese": "Tôi ở TP. Hồ Chí Minh.|PGS. Lan đến rồi.",
    "French": "« Bonjour. »|Puis il partit.|« Ça va ? »|« Oui ! » dit-elle.",
    "Danish": "»Ja.«|Så gik han.|»Nej!« råbte hun.",
    "English": "Let f be a function of x.|Then g is.",
}


@pytest.mark.parametrize("marked", SCRIPTS.values(), ids=SCRIPTS)
def test_sentences_of_other_scripts(marked):
    expected = marked.split("|")
    assert split(" ".join(expected), "punctuation") == expected


def test_lines_and_marks():
    assert split("वह आया| वह गया|| नाम | पता", "punctuation") == ["वह आया|", "वह गया||", "नाम | पता"]
    assert split("a| b|| c", "punctuation") == ["a| b|| c"]
    assert split("Mr.\nSmith  and\tI\r\n\n left", "punctuation") == ["Mr.", "Smith and I", "left"]
    assert split("One. Two.\n\nThree.", "line") == ["One. Two.", "Three."]
    for marked in (
        "वह आया।|वह गया।।|हाँ",
        "يا سلام؟|نعم",
        "是的．|不，３．１４。|ｶﾅ｡|ｗｗｗ．ａ．ｃｎ",
        "今日は。|「明日は！」|終わり",
        "Բարեւ։|Այո",
        "ያ፡ነው፡፡|እሺ::|አዎ",
        "你好!|你是谁??|我是乔治.布什,Yahoo!的人.他说“好!”|然后走了",
    ):
        assert split(marked.replace("|", ""), "punctuation") == marked.split("|")


def test_every_terminal_of_unicode_ends_a_sentence():
    marks = re.findall(f"[{unicode.TERMINALS}]", "".join(map(chr, range(sys.maxunicode + 1))))
    assert len(marks) > 150
    for mark in marks:
        assert split(f"Ab{mark} Cd", "punctuation") == [f"Ab{mark}", "Cd"], hex(ord(mark))


TEXT = st.text() | st.text(st.sampled_from('aI1가.。!?…"”’()[] \t\n\u3000\u2028।॥२།;α»«አ፡ๆก:ա中\u200f'))


@given(TEXT, st.sampled_from(SPLITTERS))
def test_no_character_is_lost(text, splitter):
    sentences = split(text, splitter)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence.strip() for sentence in sentences)


MARKS = [*[". "] * 9, *'.!?…"”)(“。', ".. ", '." ', ".\n", "! ", " (", " ", "\n"]
WORDS = "Mr mr a.mr _mr ſt no Sept IV civil A A1 b 5 14 2014 3.1 가 이유 Well é word É -".split()


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(MARKS)).map("".join), max_size=20).map("".join))
def test_regular_expressions_find_the_ends_that_the_rules_find(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "CERTAIN", {})
        patch.setattr(sentences, "DOUBTFUL", (sentences.STOP,))
        by_rules = split(text, "punctuation")
    assert split(text, "punctuation") == by_rules


@pytest.mark.parametrize(
    "unit", ["1. ", ".", "word ", "(a. ", "\u2019Well. So it is. ", "॥ १ ", "། ", "α; ", "ก", " »", "中!", "ա: "]
)
def test_time_is_linear_in_a_long_line(unit):
    """A quadratic one takes a hundred times as long on ten times the line, on any machine."""

    def seconds(units: int) -> float:
        start = time.thread_time()
        split(unit * units, "punctuation")
        return time.thread_time() - start

    assert seconds(100_000) < 30 * seconds(10_000) + 0.5


@pytest.mark.parametrize("corpus, number, digest", [("en", 36_763, "17a8c1f7e809"), ("ko", 10_248, "5413ae879dff")])
def test_golden_corpora(corpus, number, digest):
    """The sentences of a corpus determine its token store: they change only with its format version."""
    texts = (document.text for document in sources.documents(f"embedded:{corpus}", "text"))
    sentences = [sentence for text in texts for sentence in split(text, "punctuation")]
    assert len(sentences) == number
    assert hashlib.sha256("\n".join(sentences).encode()).hexdigest().startswith(digest)
