"""Spares a process the import of torch._dynamo, which takes as long as that of torch: an optimizer and DistributedDataParallel
import it, and need nothing of it where nothing is compiled."""
import sys
import types


class Idle:
    def __getattr__(self, _):
        return self

    def __call__(self, *_, **__):
        return self


class Dynamo(types.ModuleType):
    @staticmethod
    def disable(function, *_, **__):
        return function

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Idle()


sys.modules["torch._dynamo"] = Dynamo("torch._dynamo")
