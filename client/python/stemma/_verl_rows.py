"""The rows of verl's batches without their padding: of a padded DataProto, which its legacy trainer has, and of a TensorDict of
rows of their own lengths, which its V1 trainer gets from its TransferQueue. Needs neither verl nor torch to be imported.

Both readers have count, uids and temperature, and for a row prompt(row), response(row) and, of arrays that load(names) has
checked, values(name, row); join(rows) makes what verl has of one array for each row, in the form of the batch.
"""

from typing import Dict, List

TOKENS = ("prompts", "responses")


def rows_of(data):
    """The reader of a batch. TypeError: it is neither kind."""
    if hasattr(data, "batch"):
        return PaddedRows(data)
    if hasattr(data, "batch_size") and callable(getattr(data, "keys", None)):
        return RaggedRows(data)
    raise TypeError(f"data is a {type(data).__name__}, which has no batch: pass a padded DataProto, as verl's trainer has it with "
                    "trainer.use_v1=False, or, with trainer.use_v1=True, the TensorDict that tq.kv_batch_get returns for the keys")


class PaddedRows:
    """A DataProto: prompts are padded on the left, responses on the right."""

    def __init__(self, data):
        batch, others = data.batch, data.non_tensor_batch
        for name in (*TOKENS, "attention_mask"):
            if name not in batch.keys():
                raise ValueError(f"the batch lacks {name}: pass it as verl's trainer passes it to its actor")
        if "uid" not in others:
            raise ValueError("non_tensor_batch lacks uid, by which the responses of a prompt are found")
        if "multi_modal_inputs" in others:
            raise ValueError("non_tensor_batch holds multi_modal_inputs: Stemma trains on text")
        arrays = {name: _array(batch[name]) for name in (*TOKENS, "attention_mask")}
        _check_shapes(arrays)
        self._batch, self._arrays = batch, {}
        self._prompts, self._responses = arrays["prompts"], arrays["responses"]
        self.temperature = (getattr(data, "meta_info", None) or {}).get("temperature")
        self.count = len(self._prompts)
        self.uids = _uids(others["uid"], self.count)
        attention = arrays["attention_mask"].astype(bool)
        width = self._prompts.shape[1]
        self._prompt_lengths = _lengths(attention[:, :width][:, ::-1], "prompts are not padded on the left")
        self._attention = attention[:, width:]
        self._lengths = _lengths(self._attention, "responses are not padded on the right")

    def __contains__(self, name):
        return name in self._batch.keys()

    def load(self, names):
        """Reads arrays of the responses' shape. ValueError: one has another, or response_mask keeps what is no token."""
        arrays = {name: _array(self._batch[name]) for name in names}
        _check_shapes({"responses": self._responses, **arrays})
        if "response_mask" in arrays and (arrays["response_mask"].astype(bool) & ~self._attention).any():
            raise ValueError("response_mask is 1 where attention_mask is 0")
        self._arrays.update(arrays)

    def prompt(self, row):
        return self._prompts[row, self._prompts.shape[1] - self._prompt_lengths[row]:]

    def response(self, row):
        return self._responses[row, :self._lengths[row]]

    def values(self, name, row):
        return self._arrays[name][row, :self._lengths[row]]

    def join(self, rows: Dict[int, object]):
        """A float32 array of the responses' shape, zeros where there is padding."""
        import numpy

        out = numpy.zeros(self._responses.shape, dtype=numpy.float32)
        for row, values in rows.items():
            out[row, :len(values)] = values
        return out


class RaggedRows:
    """A TensorDict: each row of a nested tensor has its own length. Rows that happen to be equally long may be a plain tensor."""

    temperature = None

    def __init__(self, data):
        for name in (*TOKENS, "uid"):
            if name not in data.keys():
                raise ValueError(f"the TensorDict lacks {name}: get stemma.verl.FIELDS of the batch's keys")
        if "multi_modal_inputs" in data.keys() and any(_listed(data, "multi_modal_inputs")):
            raise ValueError("multi_modal_inputs of a row are not empty: Stemma trains on text")
        self._data, self._arrays = data, {}
        self.count = int(data.batch_size[0])
        self.uids = _uids(_listed(data, "uid"), self.count)
        self._prompts, self._responses = (_ragged(name, data[name], self.count) for name in TOKENS)

    def __contains__(self, name):
        return name in self._data.keys()

    def load(self, names):
        """Reads arrays with a number for each token of each response. ValueError: one has another length."""
        for name in names:
            rows = _ragged(name, self._data[name], self.count)
            for row, (values, tokens) in enumerate(zip(rows, self._responses)):
                if values.shape != tokens.shape:
                    raise ValueError(f"row {row} of {name} has {len(values)} entries: it must have {len(tokens)}, one for each token "
                                     "of the response")
            self._arrays[name] = rows

    def prompt(self, row):
        return self._prompts[row]

    def response(self, row):
        return self._responses[row]

    def values(self, name, row):
        return self._arrays[name][row]

    def join(self, rows: Dict[int, object]) -> List:
        """A float32 array for each row, of its response's length."""
        import numpy

        out = [numpy.zeros(len(tokens), dtype=numpy.float32) for tokens in self._responses]
        for row, values in rows.items():
            out[row][:] = values
        return out


def _array(values):
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) in ("torch.bfloat16", "torch.float16") else values
    return numpy.asarray(values)


def _ragged(name, tensor, count) -> List:
    if not getattr(tensor, "is_nested", False) and tensor.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: it must have two dimensions, [rows, tokens], or be nested")
    rows = [_array(row) for row in tensor.unbind()]
    if len(rows) != count or any(row.ndim != 1 for row in rows):
        raise ValueError(f"{name} has {len(rows)} rows: it must have {count}, each a list of numbers")
    return rows


def _listed(data, name) -> List:
    """What is no tensor, one entry for each row: a TensorDict has one for all where they are equal."""
    values = data.get(name)
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _uids(uids, count) -> List[str]:
    uids = [str(uid) for uid in uids]
    if len(uids) != count:
        raise ValueError(f"uid has {len(uids)} entries for the {count} rows of responses: it must have one for each")
    return uids


def _check_shapes(arrays):
    """Refuses arrays of a padded batch, by name, that numpy would cut or repeat until they fit one another: rows would be
    trained on numbers that are not theirs."""
    for name, array in arrays.items():
        if array.ndim != 2:
            raise ValueError(f"{name} has shape {array.shape}: it must have two dimensions, [rows, width]")
    rows, width = arrays["responses"].shape
    prompt_width = arrays["prompts"].shape[1] if "prompts" in arrays else 0
    shapes = {"prompts": ((rows, prompt_width), "a row for each of responses"),
              "attention_mask": ((rows, prompt_width + width), "the columns of prompts, then those of responses")}
    for name, array in arrays.items():
        shape, what = shapes.get(name, ((rows, width), "that of responses"))
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}: it must have {shape}, {what}")


def _lengths(attention, problem):
    """Counts the ones of each row, which must be ones and then zeros."""
    lengths = attention.sum(axis=1)
    for row, length in zip(attention, lengths):
        if not row[:length].all():
            raise ValueError(problem)
    return lengths
