"""Sentence splitting: golden cases for English and Korean, and that no character is lost."""

import hashlib
import re
import time
import unicodedata

import numpy as np
import pytest

from bertjax.data import sources
from bertjax.data.text import ngrams, unicode
from bertjax.data.text.lexicon import Words
from bertjax.data.text.sentences import split
from tests.ragged import SEP, VOCABULARY

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


@pytest.mark.parametrize(
    "text, words",
    [
        ("The cat, it sat.", ["The", "cat,", "it", "sat."]),
        ("판결을  본다.", ["판결을", "본다."]),
        ("東京タワー、行く。 abc", list("東京タワ") + ["ー、", "行", "く。", "abc"]),
        ("ที่นี่ ok", ["ที่", "นี่", "ok"]),
        ("में \u200d हूँ।", ["में", "\u200d", "हूँ।"]),
        ("", []),
        ("น้ำ กำลัง", ["น้ำ", "กำ", "ลั", "ง"]),  # a vowel that is a letter of its own to Python
        ("ﾊﾞｽ", ["ﾊﾞ", "ｽ"]),
        ("የሰው፡ልጅ፡ሁሉ፡፡ አበበ", ["የሰው፡", "ልጅ፡", "ሁሉ፡፡", "አበበ"]),  # the Ethiopic word separator
    ],
)
def test_words(text, words):
    assert unicode.words(text) == words
    assert "".join(unicode.spaced_words(text)) == text
    assert [word.strip() for word in unicode.spaced_words(text)] == words
    assert not text or unicode.count_words([" ".join(text.split())]) == [len(words)]


TEXTS = [
    "The quick brown fox, it jumped over: the lazy dog.",
    "",
    "one",
    "\uff21\uff22\uff23 abc ABC\u00df strasse STRASSE",
    "!?\u2014",
    "판결은 원심과 같다. 판결은 원심과 다르다.",
    "我们今天去学校 abc 东京タワー",
    "ภาษาไทย text",
]


def plain_words(text):
    """Words by a regular expression over normalized text."""
    normal = unicodedata.normalize("NFKC", text).casefold()
    alone = "\u0e00-\u0eff\u3005-\u3007\u3040-\u30ff\u4e00-\u9fff"
    kept = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in normal)
    return re.findall(f"[{alone}]|[^\\s{alone}]+", kept)


def plain_ngrams(text, n):
    words = plain_words(text)
    return [tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))] if words else []


@pytest.mark.parametrize("block, n", [(1 << 20, 5), (16, 1), (1, 3)])
def test_ngrams_are_equal_exactly_if_their_words_are(monkeypatch, block, n):
    expected = [plain_ngrams(text, n) for text in TEXTS]
    monkeypatch.setattr(ngrams, "BLOCK", max(block, max(map(len, TEXTS)) if block < 16 else block))
    words, words_D = ngrams.word_hashes(TEXTS)
    assert words_D.tolist() == [len(plain_words(text)) for text in TEXTS]
    hashes, grams_D = ngrams.ngram_hashes(words, words_D, n)
    assert grams_D.tolist() == list(map(len, expected))
    pairs = list(zip(sum(expected, []), hashes.tolist(), strict=True))
    assert len(set(pairs)) == len({gram for gram, _ in pairs}) == len({value for _, value in pairs})


CONTINUES = 400


def words_of(tokens: list[int], boundary: list[int] = (0,)) -> Words:
    tokens, starts = np.array(tokens, np.int32), np.zeros(len(tokens), bool)
    starts[list(boundary)] = True
    return Words.of(tokens, starts, VOCABULARY)


def test_words_and_stretches_by_hand():
    words = words_of([10, CONTINUES, 11, SEP, CONTINUES, CONTINUES, 12, 13, CONTINUES, SEP], [0, 8])
    np.testing.assert_array_equal(words.starts, [0, 2, 4, 6, 7, 8])
    np.testing.assert_array_equal(words.lengths, [2, 1, 2, 1, 1, 1])
    np.testing.assert_array_equal(words.stretch_starts, [0, 2, 5])
    np.testing.assert_array_equal(words.stretch_lengths, [2, 3, 1])
    np.testing.assert_array_equal(words.stretches, [0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(words.room, [2, 1, 3, 2, 1, 1])
