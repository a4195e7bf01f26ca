"""Tokenizers of every kind, trained on a few sentences, against transformers' of the same files."""

import builtins
import json

import pytest
import torch

from burnt.errors import BurntError, ConfigError, InputIndexError, InputTypeError, InputValueError, ShapeError
from burnt.models import Tokenizer

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "She sells sea shells by the sea shore, doesn't she?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "naïve café: 1,234.5 € and 10 %!",
    "日本語のテキスト 🙂 emoji",
]
TEXTS = [
    *SENTENCES,
    "",
    " ",
    "  two  spaces\n\tand tabs ",
    "UPPER lower",
    "[MASK] <mask> </s> <|endoftext|> x",
    "a" * 60,
]


def trained(kind):
    """Return a tokenizer and the text of its special tokens."""
    if kind == "bytes":
        special = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=list(special.values()),
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif kind == "wordpiece":
        special = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
        made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        made.normalizer = tokenizers.normalizers.BertNormalizer()
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        made.decoder = tokenizers.decoders.WordPiece()
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=200, special_tokens=list(special.values()), show_progress=False
        )
    else:
        special = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
        made = tokenizers.Tokenizer(tokenizers.models.Unigram())
        made.normalizer = tokenizers.normalizers.NFKC()
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        made.decoder = tokenizers.decoders.Metaspace()
        trainer = tokenizers.trainers.UnigramTrainer(
            vocab_size=150, special_tokens=list(special.values()), unk_token="<unk>", show_progress=False
        )
    made.train_from_iterator(SENTENCES, trainer)
    first, last = special.get("cls", special.get("bos")), special.get("sep", special.get("eos"))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(text, made.token_to_id(text)) for text in (first, last)],
    )
    return made, special


def folder_of(kind, path):
    """Return a snapshot folder as transformers writes it."""
    made, special = trained(kind)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{name}_token": text for name, text in special.items()}
    )
    fast.save_pretrained(path)
    return path


def agree(ours, theirs):
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        ids = ours.encode(text, special=False)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=True)
        assert ours.decode(ours.encode(text), special=True) == theirs.decode(ours.encode(text))
        for pair in TEXTS[:3]:
            assert ours.encode(text, pair) == theirs(text, pair)["input_ids"]
    for name, number in ours.special_ids.items():
        assert getattr(theirs, f"{name}_token_id") == number
    assert len(ours) == len(theirs)


@pytest.fixture(scope="module", params=["bytes", "wordpiece", "unigram"])
def both(request, tmp_path_factory):
    folder = folder_of(request.param, tmp_path_factory.mktemp("tokenizer") / request.param)
    return Tokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


class TestEqualsTransformers:
    def test_ids_and_text(self, both):
        agree(*both)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_batches(self, both, side):
        ours, theirs = both
        theirs.padding_side = side
        expected = theirs(TEXTS, padding=True, return_tensors="pt")
        tokens, padding = ours.batch(TEXTS, side=side)
        assert tokens.dtype == torch.int64
        assert padding.dtype == torch.bool
        assert torch.equal(tokens, expected["input_ids"])
        assert torch.equal(~padding, expected["attention_mask"].bool())

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_truncation(self, both, side):
        ours, theirs = both
        ours._truncation_side = theirs.truncation_side = side
        for most in (2, 3, 5, 8, 200):
            tokens, _ = ours.batch(TEXTS, max_len=most)
            expected = theirs(TEXTS, truncation=True, max_length=most, padding=True, return_tensors="pt")
            assert torch.equal(tokens, expected["input_ids"])
            assert (
                ours.encode(TEXTS[0], special=False, max_len=most)
                == (theirs(TEXTS[0], truncation=True, max_length=most, add_special_tokens=False)["input_ids"])
            )
        ours._truncation_side = theirs.truncation_side = "right"

    @pytest.mark.parametrize("most", [None, 3, 4, 9, 10, 14, 40])
    def test_pairs(self, both, most):
        ours, theirs = both
        firsts, seconds = TEXTS, TEXTS[::-1]
        options = {} if most is None else {"truncation": "longest_first", "max_length": most}
        expected = theirs(
            firsts, seconds, padding=True, return_tensors="pt", return_token_type_ids=True, **options
        )
        tokens, segments, padding = ours.batch_pairs(firsts, seconds, max_len=most)
        assert torch.equal(tokens, expected["input_ids"])
        assert torch.equal(~padding, expected["attention_mask"].bool())
        assert torch.equal(segments, expected["token_type_ids"])


class TestOtherFiles:
    def test_bert_from_vocab_txt(self, tmp_path):
        vocab = trained("wordpiece")[0].get_vocab()
        (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n")
        for config in (
            {},
            {"do_lower_case": False},
            {"strip_accents": False, "tokenizer_class": "BertTokenizer"},
        ):
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
            ours = Tokenizer.from_pretrained(tmp_path)
            theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path)
            agree(ours, theirs)
            tokens, segments, _ = ours.batch_pairs(["The fox"], ["the sea shore"])
            expected = theirs("The fox", "the sea shore", return_tensors="pt")
            assert torch.equal(tokens, expected["input_ids"])
            assert torch.equal(segments, expected["token_type_ids"])

    @pytest.mark.parametrize("kind", ["GPT2", "Roberta"])
    def test_byte_level_from_vocab_and_merges(self, tmp_path, kind):
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "Roberta" else ["<|endoftext|>"]
        made = tokenizers.ByteLevelBPETokenizer()
        made.train_from_iterator(SENTENCES, vocab_size=400, special_tokens=special, show_progress=False)
        made.save_model(str(tmp_path))
        for config in ({}, {"add_prefix_space": True}, {"tokenizer_class": f"{kind}TokenizerFast"}):
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
            agree(
                Tokenizer.from_pretrained(tmp_path),
                getattr(transformers, f"{kind}TokenizerFast").from_pretrained(tmp_path),
            )

    @pytest.mark.parametrize(
        "options", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}]
    )
    @pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
    def test_folders_of_other_classes(self, tmp_path, kind, options):
        made = (
            tokenizers.SentencePieceBPETokenizer() if kind == "Llama" else tokenizers.ByteLevelBPETokenizer()
        )
        special = ["<unk>", "<s>", "</s>"] if kind == "Llama" else ["<|endoftext|>"]
        made.train_from_iterator(SENTENCES, vocab_size=300, special_tokens=special, show_progress=False)
        made.save_model(str(tmp_path))
        vocabulary = json.loads((tmp_path / "vocab.json").read_text())
        merges = [tuple(line.split()) for line in (tmp_path / "merges.txt").read_text().splitlines()[1:]]
        fast = getattr(transformers, f"{kind}TokenizerFast")(vocab=vocabulary, merges=merges, **options)
        fast.save_pretrained(tmp_path / "saved")
        agree(
            Tokenizer.from_pretrained(tmp_path / "saved"),
            transformers.AutoTokenizer.from_pretrained(tmp_path / "saved"),
        )

    def test_special_tokens_of_the_configs(self, tmp_path):
        folder = folder_of("bytes", tmp_path)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("pad_token")
        config["eos_token"] = {"content": "<|im_end|>", "lstrip": False, "__type": "AddedToken"}
        config["added_tokens_decoder"] = {
            "500": {"content": "<tool>", "lstrip": False, "normalized": False, "rstrip": False,
                    "single_word": False, "special": False},
        }  # fmt: skip
        config["add_bos_token"], config["add_eos_token"], config["padding_side"] = True, False, "left"
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "special_tokens_map.json").write_text(
            json.dumps({"pad_token": "<pad>", "eos_token": "</s>"})
        )
        ours = Tokenizer.from_pretrained(folder)
        bos, eos = ours.special_ids["bos"], ours.special_ids["eos"]
        assert ours.decode([eos], special=True) == "<|im_end|>"
        assert ours.decode([ours.special_ids["pad"]], special=True) == "<pad>"
        ids = ours.encode("fox<tool><|im_end|>")
        assert ids[0] == bos
        assert ids[-1] == eos
        assert ids[-2] == ours._tokenizer.token_to_id("<tool>")
        assert ours.decode(ids) == "fox<tool>"
        tokens, padding = ours.batch(["fox", "the quick fox"])
        assert padding[0].tolist() == [True] * (len(padding[0]) - len(ours.encode("fox"))) + [False] * len(
            ours.encode("fox")
        )
        assert tokens[0, 0] == ours.special_ids["pad"]


class TestStream:
    @pytest.mark.parametrize("special", [False, True])
    def test_pieces_together_are_the_text(self, both, special):
        ours, _ = both
        for text in TEXTS:
            ids = ours.encode(text)
            stream = ours.stream(special=special)
            pieces = [stream.push(token) for token in ids]
            assert not any("\ufffd" in piece for piece in pieces)
            assert "".join(pieces) + stream.end() == ours.decode(ids, special=special)

    def test_characters_are_complete(self, tmp_path):
        ours = Tokenizer.from_pretrained(folder_of("bytes", tmp_path))
        ids = ours.encode("a🙂b", special=False)
        stream = ours.stream()
        pieces = [stream.push(token) for token in ids]
        assert len(pieces) > 3
        assert [piece for piece in pieces if piece] == ["a", "🙂", "b"]
        assert stream.end() == ""
        for token in ids[:2]:
            stream.push(token)
        assert stream.end() == "\ufffd"
        assert stream.end() == ""
        assert stream.push(ids[0]) == "a"


class TestSave:
    def test_the_files_are_copied(self, tmp_path):
        folder = folder_of("wordpiece", tmp_path / "a")
        (folder / "model.safetensors").write_bytes(b"")
        (folder / "chat_template.jinja").write_text("x")
        Tokenizer.from_pretrained(folder).save(tmp_path / "b")
        names = {path.name for path in (tmp_path / "b").iterdir()}
        assert names == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
        for name in names:
            assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()
        again = Tokenizer.from_pretrained(tmp_path / "b")
        again.save(tmp_path / "b")  # onto itself
        agree(again, transformers.AutoTokenizer.from_pretrained(tmp_path / "b"))

    def test_one_that_was_made_here(self, tmp_path):
        made, special = trained("unigram")
        made.enable_padding()
        made.enable_truncation(3)
        ours = Tokenizer(made, special=special, padding_side="left")
        assert len(ours.encode(SENTENCES[0])) > 3
        ours.save(tmp_path / "t")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
        assert theirs.padding_side == "left"
        agree(ours, theirs)
        again = Tokenizer.from_pretrained(tmp_path / "t")
        agree(again, theirs)
        assert repr(again) == repr(ours)
        assert "bos='<s>'" in repr(ours)

    def test_download_fetches_no_weights(self, tmp_path, monkeypatch):
        hub = pytest.importorskip("huggingface_hub")
        folder = folder_of("bytes", tmp_path / "t")
        asked = []

        def snapshot_download(name, *, allow_patterns, **_):
            asked.extend(allow_patterns)
            return str(folder)

        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
        assert len(Tokenizer.from_pretrained("owner/name", download=True)) == 400
        assert "tokenizer.json" in asked
        assert not any("safetensors" in name or name.endswith(".bin") for name in asked)


class TestErrors:
    def refused(self, kind, match, call, *arguments, **options):
        with pytest.raises(kind, match=match) as caught:
            call(*arguments, **options)
        return str(caught.value)

    def test_inputs(self, both):
        ours, _ = both
        text = self.refused(InputTypeError, "this is not text", ours.encode, 3)
        assert "expected  str" in text
        assert "found     int" in text
        self.refused(InputTypeError, "this is not text", ours.batch, ["a", None])
        self.refused(InputTypeError, "this is not a list of texts", ours.batch, "a")
        text = self.refused(InputValueError, "no place for the special tokens", ours.encode, "a", max_len=1)
        assert "max_len of 2 or more" in text
        text = self.refused(
            InputValueError, "each text needs a second one", ours.batch_pairs, ["a"], ["b", "c"]
        )
        assert "expected  1 pairs" in text
        self.refused(InputValueError, "padding has two sides", ours.batch, ["a"], side="top")
        self.refused(InputIndexError, "a token id is negative", ours.decode, [3, -1])
        self.refused(InputTypeError, "tokens are ids", ours.decode, "hello")

        text = self.refused(ShapeError, "one text", ours.decode, torch.zeros(2, 3, dtype=torch.int64))
        assert "found     (2, 3)" in text
        for most in (None, 5):
            self.refused(InputValueError, "cannot be tokenized", ours.encode, "\ud800", max_len=most)

    def test_no_token_for_unknown_words(self):
        words = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0})))
        assert "UNK" in self.refused(InputValueError, "cannot be tokenized", words.encode, "b")

    def test_nothing_to_do(self, both):
        ours, _ = both
        tokens, padding = ours.batch([])
        assert tokens.shape == padding.shape == (0, 0)
        assert ours.decode([]) == ours.decode(torch.tensor([], dtype=torch.int64)) == ""
        assert ours.decode([10**6]) == ""

    def test_folders(self, tmp_path):
        text = self.refused(BurntError, "no tokenizer that can be read", Tokenizer.from_pretrained, tmp_path)
        assert "found     nothing" in text
        (tmp_path / "tokenizer.model").write_bytes(b"x")
        text = self.refused(BurntError, "no tokenizer that can be read", Tokenizer.from_pretrained, tmp_path)
        assert "found     tokenizer.model" in text
        assert "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)" in text
        (tmp_path / "vocab.json").write_text("{}")
        (tmp_path / "merges.txt").write_text("")
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
        text = self.refused(BurntError, "no tokenizer that can be read", Tokenizer.from_pretrained, tmp_path)
        assert "of a Qwen2Tokenizer" in text
        (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": 3}')
        with pytest.raises(BurntError, match="the files of a tokenizer are damaged") as caught:
            Tokenizer.from_pretrained(tmp_path)
        assert caught.value.__cause__ is not None
        (tmp_path / "tokenizer_config.json").write_text("{")
        self.refused(ConfigError, "not JSON", Tokenizer.from_pretrained, tmp_path)
        self.refused(BurntError, "there is no such snapshot", Tokenizer.from_pretrained, tmp_path / "none")

    def test_tokenizers_is_not_installed(self, tmp_path, monkeypatch):
        real = builtins.__import__

        def without(name, *arguments, **options):
            if name == "tokenizers":
                raise ImportError("no module")
            return real(name, *arguments, **options)

        (tmp_path / "tokenizer.json").write_text("{}")
        monkeypatch.setattr(builtins, "__import__", without)
        text = self.refused(BurntError, "which is not installed", Tokenizer.from_pretrained, tmp_path)
        assert 'pip install "burnt[models]"' in text
