"""The calls of TransferQueue that verl's V1 trainer makes, over a dict: rows go in and come out as TensorDicts of verl's own
making. It stands for the package transfer_queue, which needs Ray."""

import dataclasses
import types

ROWS = {}  # {partition: {key: {field: tensor or object}}}


@dataclasses.dataclass
class KVBatchMeta:
    partition_id: str
    keys: list
    tags: list
    extra_info: dict = dataclasses.field(default_factory=dict)

    def __len__(self):
        return len(self.keys)

    def reorder(self, rows):
        self.keys, self.tags = [self.keys[row] for row in rows], [self.tags[row] for row in rows]


def kv_batch_put(keys, partition_id, fields=None, tags=None):
    kept = ROWS.setdefault(partition_id, {})
    for name in () if fields is None else fields.keys():
        column = fields.get(name)
        values = column.tolist() if not hasattr(column, "unbind") or type(column).__name__ == "NonTensorStack" else column.unbind()
        for key, value in zip(keys, values, strict=True):
            kept.setdefault(key, {})[name] = value
    return KVBatchMeta(partition_id, list(keys), tags or [{}] * len(keys))


def kv_batch_get(keys, partition_id, select_fields=None):
    """A field that is in no row is left out, as verl's trainer relies on."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [ROWS[partition_id][key] for key in keys]
    names = [name for name in (select_fields or rows[0]) if name in rows[0]]
    return list_of_dict_to_tensordict([{name: row[name] for name in names} for row in rows])


def module():
    """What `import transfer_queue` gives."""
    made = types.ModuleType("transfer_queue")
    made.KVBatchMeta, made.kv_batch_put, made.kv_batch_get = KVBatchMeta, kv_batch_put, kv_batch_get
    return made
