"""Burn's burnpack files: the bytes by hand, in every version and dtype, read and written."""

import json
import struct
import time

import pytest
import torch

import burnt
from burnt.errors import RecordError
from burnt.record import Record, load_weights, read_weights
from burnt.record.formats.burnpack_file import decode_cbor, encode_cbor, write_burnpack
from burnt.record.stored import MemoryTensor
from tests.messages import raises


def stored(tensors):
    return {name: MemoryTensor.of(tensor) for name, tensor in tensors.items()}


def bytes_of(*rows):
    """Return the bytes of rows of (hexadecimal digits, what they mean)."""
    return b"".join(bytes.fromhex(digits) for digits, _ in rows)


DTYPE = ("65 6474797065", 'text of 5 bytes: "dtype"')
SHAPE = ("65 7368617065", 'text of 5 bytes: "shape"')
OFFSETS = ("6c 646174615f6f666673657473", 'text of 12 bytes: "data_offsets"')
TENSORS = ("67 74656e736f7273", 'text of 7 bytes: "tensors"')
BIAS = ("67 66632e62696173", 'text of 7 bytes: "fc.bias"')
WEIGHT = ("69 66632e776569676874", 'text of 9 bytes: "fc.weight"')

METADATA_OF_BURN_0_22 = bytes_of(
    ("a3", "map of 3 pairs"),
    TENSORS,
    ("a3", "map of 3 pairs, sorted by name"),
    BIAS,
    ("a4", "map of 4 pairs"),
    DTYPE,
    ("63 463136", 'text of 3 bytes: "F16"'),
    SHAPE,
    ("81 02", "array of 1: 2"),
    OFFSETS,
    ("82 19 0100 19 0104", "array of 2: 256 and 260, each in two bytes"),
    ("68 706172616d5f6964", 'text of 8 bytes: "param_id"'),
    ("1b 8000000000000001", "2**63 + 1, in eight bytes"),
    WEIGHT,
    ("a3", "map of 3 pairs: without param_id"),
    DTYPE,
    ("63 463332", 'text of 3 bytes: "F32"'),
    SHAPE,
    ("82 02 03", "array of 2: 2 and 3"),
    OFFSETS,
    ("82 00 18 18", "array of 2: 0, and 24 in one byte"),
    ("64 6d61736b", 'text of 4 bytes: "mask"'),
    ("a3", "map of 3 pairs"),
    DTYPE,
    ("a1 64 426f6f6c 66 4e6174697665", 'map of 1 pair: "Bool" -> "Native"'),
    SHAPE,
    ("81 03", "array of 1: 3"),
    OFFSETS,
    ("82 19 0200 19 0203", "array of 2: 512 and 515"),
    ("68 6d65746164617461", 'text of 8 bytes: "metadata"'),
    ("a1 65 65706f6368 61 33", 'map of 1 pair: "epoch" -> "3"'),
    ("67 7363616c617273", 'text of 7 bytes: "scalars"'),
    ("a3", "map of 3 pairs"),
    ("62 6c72 a1 65 466c6f6174 f9 3800", '"lr" -> map of 1 pair: "Float" -> 0.5, as a 16-bit float'),
    ("66 6f6666736574 a1 63 496e74 22", '"offset" -> map of 1 pair: "Int" -> -1 - 2'),
    ("64 73746570 a1 64 55496e74 07", '"step" -> map of 1 pair: "UInt" -> 7'),
)

BURN_0_22 = bytes_of(
    ("4e525542", '"NRUB": 0x4255524e as a little-endian number'),
    ("0100", "version 1"),
    ("f0000000", "240 bytes of metadata"),
    (METADATA_OF_BURN_0_22.hex(), "the metadata"),
    ("00" * 6, "zeros up to byte 256"),
    ("0000803f 00000040 00004040 00008040 0000a040 0000c040", "fc.weight: 1 to 6"),
    ("00" * 232, "zeros up to byte 256 + 256"),
    ("0038 00c0", "fc.bias: 0.5 and -2"),
    ("00" * 252, "zeros up to byte 256 + 512"),
    ("01 00 01", "mask: True, False and True"),
)

VALUES = {
    "fc.weight": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "fc.bias": torch.tensor([0.5, -2.0], dtype=torch.float16),
    "mask": torch.tensor([True, False, True]),
}


def packed(tensors, data=b"", *, start=256, **metadata):
    """Return a file of any metadata; the data starts at byte `start`, None for the end of the metadata."""
    metadata = encode_cbor({"tensors": tensors, **metadata})
    header = struct.pack("<4sHI", b"NRUB", 1, len(metadata)) + metadata
    return (header if start is None else header.ljust(start, b"\0")) + data


def entry(first, last, shape=(1,), dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last], **more}


def refused(path, contents, match):
    path.write_bytes(contents)
    with raises(RecordError, str(path), match=match) as caught:
        load_weights(torch.nn.Linear(2, 2), path)
    return str(caught.value)


# The same version, though without zeros between the tensors; booleans have a name alone.
BURN_0_19 = packed(
    {
        "fc.bias": entry(24, 28, (2,), "F16"),
        "fc.weight": entry(0, 24, (2, 3)),
        "mask": entry(28, 31, (3,), "Bool"),
    },
    BURN_0_22[256:280] + BURN_0_22[512:516] + BURN_0_22[768:],
    start=None,
)


class TestReading:
    @pytest.mark.parametrize("contents", [BURN_0_22, BURN_0_19])
    def test_what_burn_writes(self, tmp_path, contents):
        (tmp_path / "model.bpk").write_bytes(contents)
        record = read_weights(tmp_path / "model.bpk")
        assert list(record.tensors) == list(VALUES)
        for name, value in VALUES.items():
            assert record.tensors[name].dtype == value.dtype
            assert torch.equal(record.tensors[name], value)
        assert record.model is None
        assert Record.load(tmp_path / "model.bpk").tensors.keys() == VALUES.keys()

    def test_into_a_model(self, tmp_path):
        (tmp_path / "model").write_bytes(BURN_0_22)  # whatever its name
        model = torch.nn.Module()
        model.fc = torch.nn.Linear(3, 2)
        model.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
        report = load_weights(model, tmp_path / "model")
        assert report.notes == ("ignored, as they are not tensors: 'lr', 'offset', 'step'",)
        assert report.cast == {"fc.bias": (torch.float16, torch.float32)}
        assert model.fc.bias.tolist() == [0.5, -2]
        assert model.mask.tolist() == [True, False, True]
        with torch.device("meta"):
            model.fc = torch.nn.Linear(3, 2)
        load_weights(model, tmp_path / "model", only="fc", dtype="stored")
        assert model.fc.bias.dtype == torch.float16
        assert torch.equal(model.fc.weight, VALUES["fc.weight"])

    def test_a_folder_with_one_file(self, tmp_path):
        (tmp_path / "model.bpk").write_bytes(BURN_0_19)
        assert read_weights(tmp_path).tensors.keys() == VALUES.keys()

    @pytest.mark.parametrize(
        ("dtype", "expected", "values"),
        [
            ("F64", torch.float64, struct.pack("<2d", 1, 2)),
            ("Flex32", torch.float32, struct.pack("<2f", 1, 2)),
            ("BF16", torch.bfloat16, b"\x80\x3f\x00\x40"),
            ("I64", torch.int64, struct.pack("<2q", 1, 2)),
            ("U16", torch.uint16, struct.pack("<2H", 1, 2)),
            ({"Bool": "U8"}, torch.bool, b"\1\1"),
            ({"Bool": "U32"}, torch.uint32, struct.pack("<2I", 1, 2)),
        ],
    )
    @pytest.mark.parametrize("start", [256, None])
    def test_dtypes(self, tmp_path, dtype, expected, values, start):
        contents = packed({"a": entry(0, len(values), (2,), dtype)}, values, start=start)
        (tmp_path / "m").write_bytes(contents)
        tensor = read_weights(tmp_path / "m").tensors["a"]
        assert tensor.dtype == expected
        assert tensor.tolist() == [1, 1 if expected == torch.bool else 2]
        flags = torch.nn.Module()
        flags.register_buffer("a", torch.zeros(2, dtype=torch.bool))
        load_weights(flags, tmp_path / "m")
        assert flags.a.tolist() == [True, True]

    def test_scalar_and_empty_tensors(self, tmp_path):
        tensors = {"a": entry(0, 4, ()), "b": entry(256, 256, (0, 3)), "c": entry(256, 260)}
        (tmp_path / "m").write_bytes(packed(tensors, struct.pack("<f252xf", 1, 2)))
        record = read_weights(tmp_path / "m")
        assert [tuple(t.shape) for t in record.tensors.values()] == [(), (0, 3), (1,)]
        assert [record.tensors["a"].item(), record.tensors["c"].item()] == [1, 2]
        (tmp_path / "m").write_bytes(packed({}))
        assert read_weights(tmp_path / "m").tensors == {}

    def test_tensors_are_read_only_when_they_are_loaded(self, tmp_path, monkeypatch):
        (tmp_path / "model.bpk").write_bytes(BURN_0_22)
        model = torch.nn.Module()
        model.fc = torch.nn.Linear(3, 2)
        read = []
        read_into = burnt.record.formats.safetensors_file.FileTensor.read_into
        monkeypatch.setattr(
            "burnt.record.formats.safetensors_file.FileTensor.read_into",
            lambda self, out: (read.append(self.shape), read_into(self, out)),
        )
        load_weights(model, tmp_path / "model.bpk", only="fc.bias")
        assert read == [(2,)]


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
]


class TestWriting:
    def test_the_bytes(self, tmp_path):
        write_burnpack(tmp_path / "m.bpk", stored(VALUES), None)
        contents = (tmp_path / "m.bpk").read_bytes()
        metadata = (
            METADATA_OF_BURN_0_22[: METADATA_OF_BURN_0_22.index(b"\x68metadata")]
            .replace(b"\xa3", b"\xa1", 1)  # tensors alone
            .replace(bytes.fromhex("a4"), bytes.fromhex("a3"))  # without param_id
            .replace(bytes.fromhex("68 706172616d5f6964 1b 8000000000000001"), b"")
        )
        assert contents[:10] == struct.pack("<4sHI", b"NRUB", 1, len(metadata))
        assert contents[10:] == metadata + bytes(246 - len(metadata)) + BURN_0_22[256:]

    @pytest.mark.sample(20)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(3, 5), (), (0, 2), (64,)])
    def test_round_trip(self, tmp_path, dtype, shape):
        values = torch.randint(0, 2, (2, *shape)).to(dtype)
        record = Record({"b": values[0], "a": values[1].mT if values[1].dim() > 1 else values[1]})
        record.save(tmp_path / "m.bpk")
        for read in (read_weights, Record.load):
            again = read(tmp_path / "m.bpk").tensors
            for name, tensor in record.tensors.items():
                assert again[name].dtype == dtype
                assert torch.equal(again[name], tensor)

    def test_a_record_keeps_its_metadata(self, tmp_path):
        model = burnt.nn.Linear.Config(in_features=2, out_features=3).init()
        model.save(tmp_path / "m.bpk")
        again = burnt.nn.Linear.load(tmp_path / "m.bpk")
        assert torch.equal(again.weight, model.weight)
        tied = Record({"a": torch.ones(2)}, {"b": "a"}, "x.Model", static={"": {"scale": 2.0}})
        tied.save(tmp_path / "m.bpk")
        record = Record.load(tmp_path / "m.bpk")
        assert (record.aliases, record.model, record.static) == (tied.aliases, tied.model, tied.static)

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
    def test_dtypes_that_burn_lacks(self, tmp_path, dtype):
        with pytest.raises(RecordError, match="Burn has no such dtype") as caught:
            Record({"fc.weight": torch.zeros(2, dtype=dtype)}).save(tmp_path / "m.bpk")
        text = str(caught.value)
        assert "m.bpk: fc.weight\n  expected  float64, float32, " in text
        assert f"found     {str(dtype)[6:]}" in text
        assert "save a .safetensors file" in text
        assert not list(tmp_path.iterdir())

    def test_a_folder_that_does_not_exist(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"the folder .*none of m.bpk does not exist"):
            Record({}).save(tmp_path / "none" / "m.bpk")


class TestHostileFiles:
    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.full)])
    @pytest.mark.parametrize("contents", [BURN_0_22, BURN_0_19, packed({"a": entry(0, 4)}, b"abcd")])
    def test_cut_off_anywhere_and_longer(self, tmp_path, contents, step):
        for length in {*range(1, len(contents), step), len(contents) - 1}:
            refused(tmp_path / "m", contents[:length], "damaged|truncated|not a tensor file")
        text = refused(tmp_path / "m", contents + b"\0", "bytes too many")
        assert f"expected  {len(contents)} bytes\n  found     {len(contents) + 1} bytes" in text

    def test_cut_off_by_as_much_as_was_padded(self, tmp_path):
        """The size is that of a file of Burn 0.19, the values would be zeros."""
        tensors = {"a": entry(0, 256, (64,)), "b": entry(256, 260)}
        contents = packed(tensors, bytes(range(256)) + b"abcd")
        end = 10 + struct.unpack("<I", contents[6:10])[0]
        text = refused(tmp_path / "m", contents[: end - 256], "burnpack file is truncated")
        assert f"found     {len(contents) - 256 + end} bytes" in text
        assert "if Burn 0.19 wrote it, save it with a newer Burn" in text
        (tmp_path / "m").write_bytes(contents[:end] + contents[256:])
        assert read_weights(tmp_path / "m").tensors["a"].view(torch.uint8).tolist() == list(range(256))

    @pytest.mark.parametrize(
        "tensors",
        [
            {"a": entry(0, 4), "b": entry(0, 4)},
            {"a": entry(0, 1024, (256,)), "b": entry(512, 516)},
            {"a": entry(4, 0)},
            {"a": entry(0, 8)},
            {"a": entry(0, 4, (2,))},
            {"a": entry(0, 4, (2**62, 2**62, 4))},
            {"a": entry(0, 0, (0, 2**63))},
            {"a": entry(2**64 - 4, 2**64 - 1)},
            {"a": entry(0, 4), "b": entry(8, 12)},
            {"a": entry(4, 8)},
            {"a": entry(0, 4, ("1",))},
            {"a": {**entry(0, 4), "data_offsets": [0]}},
            {"a": {**entry(0, 4), "data_offsets": [0, 4, 8]}},
            {"a": {"dtype": "F32", "shape": [1]}},
            {"a": 7},
            [],
        ],
    )
    def test_entries(self, tmp_path, tensors):
        refused(
            tmp_path / "m", packed(tensors, bytes(2000), start=512), "metadata of a burnpack file is damaged"
        )

    @pytest.mark.parametrize(
        ("dtype", "match"),
        [
            ("F128", "dtype that torch or Burn lacks"),
            ("", "dtype that torch or Burn lacks"),
            ({"Bool": "U64"}, "dtype that torch or Burn lacks"),
            ({"Bool": ["U8"]}, "dtype that torch or Burn lacks"),
            ({}, "dtype that torch or Burn lacks"),
            ({"QFloat": {"value": "Q8S", "store": {"PackedU32": 0}}}, "a tensor is quantized"),
            (["F32"], "metadata of a burnpack file is damaged"),
        ],
    )
    def test_dtypes(self, tmp_path, dtype, match):
        text = refused(tmp_path / "m", packed({"a": entry(0, 4, dtype=dtype)}, b"abcd"), match)
        assert ("before it is quantized" in text) == ("quantized" in match)
        assert "m: a\n" in text or "damaged" in text

    @pytest.mark.parametrize("version", [0, 2, 65535])
    def test_other_versions(self, tmp_path, version):
        contents = bytearray(BURN_0_22)
        contents[4:6] = struct.pack("<H", version)
        text = refused(tmp_path / "m", contents, "burnpack file of another version")
        assert f"expected  version 1\n  found     version {version}" in text

    @pytest.mark.parametrize("length", [2**32 - 1, 100 * 2**20 + 1, 2**20])
    def test_lengths_of_the_metadata(self, tmp_path, length):
        contents = struct.pack("<4sHI", b"NRUB", 1, length) + bytes(1000)
        text = refused(tmp_path / "m", contents, "truncated, or its header is damaged")
        assert "1,000 bytes after the header" in text

    @pytest.mark.parametrize(
        ("metadata", "found"),
        [
            ("", "1 or more bytes expected at byte 0, 0 left"),
            ("a1", "2 or more bytes expected at byte 1, 0 left"),
            ("9b 0000010000000000", "1099511627776 or more bytes expected at byte 9"),
            ("bb ffffffffffffffff", "or more bytes expected"),
            ("7b ffffffffffffffff 61", "or more bytes expected"),
            ("81" * 100_000, "nested more than 32 deep"),
            ("a1 61 61" * 100_000, "nested more than 32 deep"),
            ("a2 67 74656e736f7273 a0 67 74656e736f7273 a0", "the key 'tensors' twice"),
            ("a1 67 74656e736f7273 a2 61 61 00 61 61 00", "the key 'a' twice"),
            ("a1 01 02", "a key of type int"),
            ("a1 80 02", "a key of type list"),
            ("a0 00", "1 bytes too many"),
            ("9f ff", "an item of unknown length at byte 0"),
            ("fc", "an item of unknown length at byte 0"),
            ("c2 41 ff", "an item of type 6.2 at byte 0"),
            ("41 00", "an item of type 2.1 at byte 0"),
            ("f8 20", "an item of type 7.24 at byte 0"),
            ("f7", "an item of type 7.23 at byte 0"),
            ("61 ff", "'utf-8' codec can't decode"),
            ("a0", "missing required field `tensors`"),
            ("80", "Expected `object`, got `array`"),
        ],
    )
    def test_metadata(self, tmp_path, metadata, found):
        data = bytes.fromhex(metadata)
        contents = struct.pack("<4sHI", b"NRUB", 1, len(data)) + data
        assert found in refused(tmp_path / "m", contents, "metadata of a burnpack file is damaged")

    def test_many_items(self, tmp_path, monkeypatch):
        monkeypatch.setattr("burnt.record.formats.burnpack_file.MOST_ITEMS", 10_000)
        start = time.process_time()
        with pytest.raises(ValueError, match="more than 10,000 items"):
            decode_cbor(b"\x9a\x00\x10\x00\x00" + bytes(2**20))
        assert time.process_time() - start < 1

    @pytest.mark.full
    def test_as_many_tensors_as_burn_allows(self, tmp_path):
        tensors = {f"layers.{i}.weight": torch.zeros(0, 1, 1, 1) for i in range(100_000)}
        start = time.process_time()
        Record(tensors).save(tmp_path / "m.bpk")
        assert len(read_weights(tmp_path / "m.bpk").tensors) == 100_000
        assert time.process_time() - start < 60

    def test_a_document_of_a_newer_burnt(self, tmp_path):
        document = json.dumps({"format": 2})
        contents = packed({"a": entry(0, 4)}, b"abcd", metadata={"burnt": document})
        assert "upgrade burnt" in refused(tmp_path / "m", contents, "a record of a newer format")
        contents = packed({"a": entry(0, 4)}, b"abcd", metadata={"burnt": "{"})
        refused(tmp_path / "m", contents, "metadata of a tensor file is damaged")


def test_cbor_heads_of_every_length():
    for value, digits in [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (2**16, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        ("", "60"),
        ("é" * 12, "7818" + "c3a9" * 12),
        ([0] * 24, "9818" + "00" * 24),
    ]:
        assert encode_cbor(value).hex() == digits
        assert decode_cbor(bytes.fromhex(digits)) == value
    values = {
        "20": -1,
        "3863": -100,
        "f4": False,
        "f5": True,
        "f6": None,
        "fa3fc00000": 1.5,
        "fb3ff199999999999a": 1.1,
    }
    for digits, value in values.items():
        assert decode_cbor(bytes.fromhex(digits)) == value
