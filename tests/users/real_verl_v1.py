"""verl's V1 trainer, whose module imports Ray, Hydra and a serving stack: of those only the names are needed, and only while it
is imported."""

import importlib.abc
import importlib.machinery
import sys
import types
import warnings

import real_verl  # noqa: F401
import fake_transfer_queue

_ABSENT = ("accelerate", "aiohttp", "cachetools", "datasets", "fastapi", "hydra", "pandas", "peft", "psutil", "ray", "torchdata", "uvicorn")


class _AnyName(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Nothing(metaclass=_AnyName):
    """Stands for any class, decorator or value of an absent package."""

    def __new__(cls, *args, **kwargs):
        return args[0] if cls is _Nothing and len(args) == 1 and callable(args[0]) else object.__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **_):
        return args[0] if args and callable(args[0]) else self


class _Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        absent = name.partition(".")[0] in _ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        pass


def _stubs():
    return [name for name in sys.modules if name.partition(".")[0] in _ABSENT]


def _import():
    """Leaves no stub behind: transformers looks whether some of these packages are there."""
    before = {name: sys.modules.pop(name) for name in _stubs()}
    finder = _Absent()
    sys.meta_path.append(finder)  # behind those that find what is installed
    sys.modules["transfer_queue"] = fake_transfer_queue.module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import verl.trainer.ppo.v1.trainer_sync as trainer_sync
    finally:
        sys.meta_path.remove(finder)
        for name in _stubs():
            if isinstance(sys.modules[name], _Stub):
                del sys.modules[name]
        sys.modules.update(before)
    return trainer_sync


trainer_sync = _import()
