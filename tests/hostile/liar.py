"""Random messages of the worker's protocol."""

import math

from e2e.errors.played_worker import WorkerMessage


def is_repeated(field):
    return isinstance(field.default_value, list)


class Liar:
    """Random messages of the protocol, their fields drawn from what hurts and from what the server said last."""

    STRINGS = ("", "a", "played", "\x00", "é" * 100, "x" * 300, "~export/1", "g0", "g0/0", "INTERNAL", "CANCELLED")
    FLOATS = (0.0, -0.0, -1.0, 1.0, 1e308, -1e308, math.nan, math.inf, -math.inf, 5e-324)

    def __init__(self, rng):
        self.rng = rng
        self.heard = []  # messages of the server

    def message(self):
        message = WorkerMessage()
        self.fill(message)
        return message

    def fill(self, message, depth=0):
        oneofs = {o.name: self.rng.choice(o.fields) for o in message.DESCRIPTOR.oneofs}
        for field in message.DESCRIPTOR.fields:
            if field.containing_oneof and oneofs[field.containing_oneof.name] is not field:
                continue
            if not field.containing_oneof and self.rng.random() < 0.2:
                continue
            self.fill_field(message, field, depth)

    def fill_field(self, message, field, depth):
        if field.name == "key" and self.heard and self.rng.random() < 0.8:
            message.key.ParseFromString(self.rng.choice(self.heard))
        elif field.message_type and field.message_type.GetOptions().map_entry:
            for _ in range(self.rng.choice((0, 1, 3, 300))):
                getattr(message, field.name)[str(self.rng.random())] = self.scalar(field.message_type.fields_by_name["value"])
        elif field.message_type and is_repeated(field):
            for _ in range(self.rng.choice((0, 1, 2))):
                self.fill(getattr(message, field.name).add(), depth + 1)
        elif field.message_type:
            getattr(message, field.name).SetInParent()
            if depth < 6:
                self.fill(getattr(message, field.name), depth + 1)
        else:
            value = self.scalar(field)
            if is_repeated(field):
                getattr(message, field.name).extend([value] * self.rng.choice((0, 1, 30)))
            else:
                setattr(message, field.name, value)

    def scalar(self, field):
        kinds = type(field)
        if field.cpp_type == kinds.CPPTYPE_STRING:
            text = self.rng.choice(self.STRINGS)
            return text.encode() if field.type == kinds.TYPE_BYTES else text
        if field.cpp_type in (kinds.CPPTYPE_DOUBLE, kinds.CPPTYPE_FLOAT):
            return self.rng.choice(self.FLOATS)
        if field.cpp_type == kinds.CPPTYPE_BOOL:
            return self.rng.random() < 0.5
        if field.cpp_type == kinds.CPPTYPE_ENUM:
            return self.rng.choice((0, 1, 2, 77))
        top = (1 << 64) - 1 if field.cpp_type == kinds.CPPTYPE_UINT64 else (1 << 32) - 1
        return self.rng.choice((0, 1, 2, 7, top, top >> 1, top // 2 + 1))
