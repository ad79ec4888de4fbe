"""The words of a log in other languages than English, and signs of other alphabets."""

from __future__ import annotations

import re

#: English for what logs say in Chinese, Japanese, Korean, Russian, Ukrainian, Spanish, Portuguese, French, Italian, German, Turkish
_WORDS = {
    "loss": "损失函数 损失值 损失 損失 손실 потери потеря потерь лосс втрати pérdida perdida perda perte perdita verlust kayıp",
    "train loss": "trainingsverlust",
    "val loss": "validierungsverlust",
    "train": "训练集 训练 訓練 学習 훈련 학습 обучение обучения обучении обучающая entrenamiento treinamento treino entraînement entrainement addestramento eğitim",
    "val": "验证集 验证 驗證 検証 검증 валидация валидации валидационная validación validação validazione validierung doğrulama",
    "test": "测试集 测试 測試 テスト 테스트 тест тестовая prueba",
    "learning rate": "学习率 學習率 学習率 학습률 lernrate",
    "epoch": "训练轮次 轮次 轮数 世代 エポック 에폭 에포크 эпоха эпохи época époque epoche epoca",
    "step": "训练步数 全局步数 步数 步骤 ステップ 스텝 단계 шаг шага paso passo étape schritt adım",
    "iteration": "迭代次数 迭代 反復 итерация итерации iteración iteração itération iterazione",
    "batch": "批次 バッチ 배치 батч",
    "accuracy": "准确率 準確率 精度 正解率 정확도 точность precisión acurácia précision genauigkeit",
    "grad norm": "梯度范数 梯度範數",
    "ppl": "困惑度",
    "avg": "平均 среднее средняя средний promedio médio moyenne durchschnittlich",
    "total": "总",
}  # fmt: skip
_ENGLISH = {foreign: english for english, some in _WORDS.items() for foreign in some.split()}
#: alphabets without blanks between words
_DENSE = re.compile(r"[぀-ヿ一-鿿가-힯]")
_WORD = re.compile(r"[^\W\d_]+")
_INSIDE = re.compile("|".join(re.escape(word) for word in sorted(_ENGLISH, key=len, reverse=True) if _DENSE.match(word)))
#: 第 10 步: the number stands between
_COUNTED = re.compile(r"第\s{0,4}(\d+)(?:\s{0,2}/\s{0,2}\d+)?\s{0,4}(轮|步|个?epoch|个?step|次迭代|회|エポック|ステップ)", re.IGNORECASE)
_COUNTS = {"轮": "epoch", "步": "step", "次迭代": "iteration", "회": "epoch", "エポック": "epoch", "ステップ": "step"}
_FOREIGN = "：，；（）【】［］｜＝／％！　│┃║"
_SIGNS = str.maketrans(_FOREIGN, ":,;()[][]|=/%! |||")
_SIGNED = re.compile(f"[{_FOREIGN}]")


def in_english(text: str) -> str:
    """The text with the words of a log in English."""
    return _WORD.sub(_translated, text)


def _translated(found: re.Match[str]) -> str:
    word = found[0]
    if word.isascii() or not _DENSE.search(word):
        return _ENGLISH.get(word.lower(), word)
    return _INSIDE.sub(lambda inner: f" {_ENGLISH[inner[0]]} ", word)


def plain_signs(line: str) -> str:
    """A line with the signs of ASCII for those of other alphabets and of drawn tables, and with counters before their numbers."""
    if _SIGNED.search(line):
        line = line.translate(_SIGNS)
    return _COUNTED.sub(lambda found: f"{_COUNTS.get(found[2], found[2].lstrip('个').lower())} {found[1]} ", line) if "第" in line else line


def speaks(text: str) -> bool:
    """Whether any word of a log is there in a language that is not written in ASCII."""
    return any(not word.isascii() and word.lower() in _ENGLISH for word in _WORD.findall(text)) or _INSIDE.search(text) is not None
