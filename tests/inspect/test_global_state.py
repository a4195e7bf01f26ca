"""A check or summary leaves no meta tensor in a cache, wherever user code keeps one."""

import functools
import importlib
import sys
import threading
import types
from collections import OrderedDict, UserDict, defaultdict
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn

from burnt.errors import ShapeError
from burnt.inspect import check, summary

N = 4
CALLS = 0
TABLE, IS_READY = None, False
TABLES = {}
NESTED = {"sizes": defaultdict(dict)}
HISTORY = []
BY_CLASS = WeakKeyDictionary()
LOCAL = threading.local()
ORDERED = OrderedDict({-1: "kept"})


def table(n):
    return torch.arange(n).float()


cached = functools.lru_cache(table)
cached_pair = functools.lru_cache(maxsize=2)(lambda n: (table(n), n))
cached_without_limit = functools.cache(lambda n: {"value": table(n)})


def in_global_dict(n):
    if n not in TABLES:
        TABLES[n] = table(n)
    return TABLES[n]


def in_nested_containers(n):
    sizes = NESTED["sizes"][n]
    if "pair" not in sizes:
        sizes["pair"] = (n, [table(n)])
    return sizes["pair"][1][0]


def in_global_variables(n):
    global TABLE, IS_READY
    if not IS_READY:
        TABLE, IS_READY = table(n), True
    return TABLE


def in_new_global_variable(n):
    global LATE
    try:
        return LATE
    except NameError:
        LATE = table(n)
        return LATE


def in_list(n):
    HISTORY.append(table(n))
    return sum(HISTORY) / len(HISTORY)


def in_default_argument(n, tables={}):  # noqa: B006
    if n not in tables:
        tables[n] = table(n)
    return tables[n]


def in_function_attribute(n):
    if not hasattr(in_function_attribute, "table"):
        in_function_attribute.table = table(n)
    return in_function_attribute.table


def memoized(function):
    results = {}

    @functools.wraps(function)
    def wrapper(n):
        if n not in results:
            results[n] = function(n)
        return results[n]

    return wrapper


in_closure = memoized(table)
in_closure_of_torch = torch.no_grad()(memoized(table))


def counted():
    result, is_ready = None, False

    def function(n):
        nonlocal result, is_ready
        if not is_ready:
            result, is_ready = table(n), True
        return result

    return function


in_nonlocal_variables = counted()


class Tables:
    by_size = {}
    last = None
    __slots__ = ("__dict__", "__weakref__", "slot")

    @classmethod
    def in_class_dict(cls, n):
        if n not in cls.by_size:
            cls.by_size[n] = table(n)
        return cls.by_size[n]

    @classmethod
    def in_class_attribute(cls, n):
        if cls.last is None:
            cls.last = table(n)
        return cls.last

    @staticmethod
    @functools.lru_cache
    def in_cached_static_method(n):
        return table(n)

    @functools.lru_cache  # noqa: B019
    def in_cached_method(self, n):
        return table(n)

    @functools.cached_property
    def in_cached_property(self):
        return table(N)

    def in_attribute(self, n):
        if "table" not in vars(self):
            self.table = table(n)
        return self.table

    def in_slot(self, n):
        if not hasattr(self, "slot"):
            self.slot = table(n)
        return self.slot

    def in_weak_dict(self, n):
        return BY_CLASS.setdefault(Tables, table(n))


TABLES_OBJECT = Tables()


class Cache(UserDict):
    def get_or_make(self, n):
        if n not in self:
            self[n] = table(n)
        return self[n]


USER_DICT = Cache()

HELPERS = types.ModuleType("burnt_test_helpers")
exec(
    "import torch\nTABLE = None\ndef get(n):\n global TABLE\n"
    " if TABLE is None: TABLE = torch.arange(n).float()\n return TABLE",
    vars(HELPERS),
)
sys.modules["burnt_test_helpers"] = HELPERS


def in_module_imported_by_function(n):
    from burnt_test_helpers import get

    return get(n)


def in_attribute_of_module(n):
    if not hasattr(HELPERS, "EXTRA"):
        HELPERS.EXTRA = table(n)
    return HELPERS.EXTRA


@functools.lru_cache(maxsize=1)
def cached_and_found_by_string(n):
    return table(n)


class FoundByString:
    @staticmethod
    @functools.lru_cache(maxsize=1)
    def cached(n):
        return table(n)


def in_cache_found_by_string(n):
    both = globals()["cached_" + "and_found_by_string"], getattr(globals()["FoundBy" + "String"], "cached")  # noqa: B009
    return both[0](n) + both[1](n) - both[1](n)


def in_thread_local(n):
    if not hasattr(LOCAL, "table"):
        LOCAL.table = table(n)
    return LOCAL.table


def in_ordered_dict(n):
    if n not in ORDERED:
        ORDERED[n] = table(n)
    return ORDERED[n]


FUNCTIONS = {
    "lru_cache": lambda n: cached(n),
    "lru_cache of pairs": lambda n: cached_pair(n)[0],
    "cache": lambda n: cached_without_limit(n)["value"],
    "static method": lambda n: Tables.in_cached_static_method(n),
    "cached method": lambda n: TABLES_OBJECT.in_cached_method(n),
    "cached property": lambda n: TABLES_OBJECT.in_cached_property,
    "class dict": lambda n: Tables.in_class_dict(n),
    "class attribute": lambda n: Tables.in_class_attribute(n),
    "attribute": lambda n: TABLES_OBJECT.in_attribute(n),
    "slot": lambda n: TABLES_OBJECT.in_slot(n),
    "weak dict": lambda n: TABLES_OBJECT.in_weak_dict(n),
    "user dict": lambda n: USER_DICT.get_or_make(n),
    "global dict": in_global_dict,
    "nested": in_nested_containers,
    "global variables": in_global_variables,
    "new global variable": in_new_global_variable,
    "list": in_list,
    "default argument": in_default_argument,
    "function attribute": in_function_attribute,
    "closure": lambda n: in_closure(n),
    "closure of torch": lambda n: in_closure_of_torch(n),
    "nonlocal": lambda n: in_nonlocal_variables(n),
    "import": in_module_imported_by_function,
    "module attribute": in_attribute_of_module,
    "thread local": in_thread_local,
    "found by string": in_cache_found_by_string,
    "ordered dict": in_ordered_dict,
}


class Net(nn.Module):
    def __init__(self, function, cannot_be_copied=False):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(N, N)
        self.lock = threading.Lock() if cannot_be_copied else None

    def forward(self, x):
        return self.layer(x + self.function(N))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_cache_holds_meta_tensors_afterwards(name):
    function, x = FUNCTIONS[name], torch.randn(3, N)
    for run in (check, summary):
        assert run(Net(function), x).unchecked == ()
        assert run(Net(function, cannot_be_copied=True), x).unchecked == ()
    with pytest.raises(ShapeError):
        check(nn.Sequential(Net(function), nn.Linear(N + 1, 2)), x)
    check(nn.Linear(N, N), x, call=lambda model, x: model(x) + function(N))
    for _ in range(2):
        assert torch.equal(function(N), torch.arange(N).float())
    check(Net(function), x)  # the real table is there: the meta run may fail with it, and must not lose it
    assert torch.equal(function(N), torch.arange(N).float())


def test_what_was_cached_before_is_kept():
    TABLES[N + 1] = kept = table(N + 1)
    check(Net(in_global_dict), torch.randn(3, N))
    assert TABLES[N + 1] is kept
    hits = functools.cache(lambda n: n)
    check(Net(lambda n: hits(n)), torch.randn(3, N))
    assert hits.cache_info().currsize == 1  # it holds no tensor


def test_changes_stay_where_no_meta_tensor_is_left():
    def count(n):
        global CALLS
        CALLS += 1
        return 0

    before = CALLS
    check(Net(count), torch.randn(3, N))
    assert before + 2 == CALLS


def test_what_hooks_have_stored_is_removed():
    stored = []
    model = Net(lambda n: 0)
    model.layer.register_forward_hook(lambda module, args, output: stored.append(output))
    check(model, torch.randn(3, N))
    assert stored == []


@pytest.mark.parametrize("taken", [("trace",), ("trace", "profile")], ids=str)
def test_the_interpreters_hooks_of_others_stay(taken, monkeypatch):
    seen = []
    before = sys.gettrace(), sys.getprofile()

    def hook(frame, event, arg):
        seen.append(event)

    try:
        for name in taken:
            getattr(sys, f"set{name}")(hook)
        check(Net(lambda n: 0), torch.randn(3, N))
        after = [getattr(sys, f"get{name}")() for name in taken]
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert after == [hook] * len(taken)
    assert seen
    check(Net(lambda n: 0), torch.randn(3, N))
    assert (sys.gettrace(), sys.getprofile()) == before


@pytest.mark.parametrize("traced", [False, True], ids=["settrace", "setprofile"])
def test_a_module_imported_by_the_run_stays_whole(traced, tmp_path, monkeypatch):
    name = f"burnt_test_plugin_{traced}".lower()
    (tmp_path / f"{name}.py").write_text(
        "import functools, torch, burnt_test_helpers\n"
        "burnt_test_helpers.REGISTRY['plugin'] = 'registered'\n"
        "TABLES = {}\n"
        "@functools.cache\n"
        "def size(n): return torch.tensor(float(n))\n"
        "def get(n):\n"
        "  if n not in TABLES: TABLES[n] = torch.arange(n).float() * size(n)\n"
        "  return TABLES[n]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(HELPERS, "REGISTRY", {}, raising=False)

    def from_plugin(n):
        if "plugin" not in HELPERS.REGISTRY:
            importlib.import_module(name)
        return sys.modules[name].get(n)

    def by_statement(n):
        import burnt_test_helpers

        return from_plugin(n) + len(burnt_test_helpers.REGISTRY)

    before = sys.gettrace()
    try:
        if traced:
            sys.settrace(lambda *_: None)
        check(Net(by_statement), torch.randn(3, N))
    finally:
        sys.settrace(before)
    assert HELPERS.REGISTRY == {"plugin": "registered"}
    assert torch.equal(by_statement(N), torch.arange(N).float() * N + 1)


def test_changes_of_other_packages_stay(monkeypatch):
    """Only a package that holds meta tensors is put back."""
    other = types.ModuleType("burnt_test_other")
    exec("LOG = []\ndef log(n): LOG.append(n)", vars(other))
    monkeypatch.setitem(sys.modules, "burnt_test_other", other)

    def forward(n):
        other.log(n)
        return in_global_dict(n)

    TABLES.clear()
    check(Net(forward), torch.randn(3, N))
    assert TABLES == {}
    assert other.LOG == [N, N]
