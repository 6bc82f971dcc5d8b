"""Arrays as a user has them (lists, iterators, numpy arrays, tensors) into the bytes of the wire, and back.

On the wire they are little-endian int32 and float32, masks are bits, least significant first. What cannot be sent raises
ValueError with a sentence that begins with a verb, quotes the value and says what to pass; the caller puts the field's path
before it.
"""

import array
import base64
import math
import numbers
import sys

_TOKENS = "a flat list or one-dimensional array of token ids"
_NUMBERS = "a flat list or one-dimensional array of numbers, one for each response token"
_MASK = "a flat list or one-dimensional array of 0 and 1, one for each response token"
_NOT_TEXT = "pass token ids, e.g. tokenizer.encode(text)"
_MASKED = ("has masked entries, which are not sent as such: pass the plain array, and say by the rollout's `mask` what does not "
           "count")
_INT32_MAX = 2**31 - 1
_FLOAT32_MAX = "3.40282e+38"
_LOG_PROB_MAX = 1e-3  # what rounding may leave of a log-prob of 0


def pack_int32(values):
    """Token ids as little-endian int32."""
    flat = _flat(values, _TOKENS)
    if not _is_numpy(flat):
        packed = _pack_list("i", flat, _TOKENS)
        if set(map(type, flat)) - {int}:
            _check_no_bool(flat)
        _check_ids(flat, min(flat, default=0), max(flat, default=0))
        return packed
    if flat.size == 0:
        return b""
    if flat.dtype.kind not in "iu":
        raise ValueError(f"holds {flat.dtype}: pass {_TOKENS}, which are integers")
    _check_ids(flat, int(flat.min()), int(flat.max()))
    return flat.astype("<i4").tobytes()


def _check_no_bool(tokens):
    """Refuses True and False, also as scalars of frameworks: Python takes True for 1, and a mask would be sent as tokens."""
    kinds = {_kind_of(token) for token in tokens}  # few, each looked at once: there may be a million tokens
    bools = {kind for kind in kinds if kind is bool or str(kind).endswith("bool")}
    if bools:
        i, token = next((i, token) for i, token in enumerate(tokens) if _kind_of(token) in bools)
        raise ValueError(f"has {bool(token)} at {i}, a bool: pass {_TOKENS}")


def _kind_of(scalar):
    """Its dtype, or its type where it has none."""
    return getattr(scalar, "dtype", type(scalar))


def _check_ids(flat, low, high):
    if low < 0 or high > _INT32_MAX:
        index = next(i for i, token in enumerate(flat) if token < 0 or token > _INT32_MAX)
        raise ValueError(f"has {int(flat[index])} at {index}: token ids are not negative and fit int32"
                         + (" (to take a token out of the loss, set its mask to 0)" if low < 0 else ""))


def flat_numbers(values):
    """A list or a one-dimensional numpy array of the numbers, as pack_float32 and check_fits read them."""
    return _flat(values, _NUMBERS)


def pack_float32(values):
    """Numbers as little-endian float32; bfloat16 and float16 widen exactly."""
    flat = _flat(values, _NUMBERS)
    if not _is_numpy(flat):
        return _pack_list("f", flat, _NUMBERS)
    if flat.size and flat.dtype.kind not in "fiu":
        raise ValueError(f"holds {flat.dtype}: pass {_NUMBERS}")
    import numpy

    with numpy.errstate(over="ignore"):  # check_fits says what does not fit
        return flat.astype("<f4").tobytes()


def pack_bits(values, count=None):
    """0/1 per token -> bits, least significant first. count: how many there must be."""
    flat = _flat(values, _MASK)
    if count is not None:
        check_count(len(flat), count)
    if _is_numpy(flat):
        import numpy

        if flat.dtype.kind in "biuf" and numpy.isin(flat, (0, 1)).all():
            return numpy.packbits(flat.astype(bool), bitorder="little").tobytes()
        flat = flat.tolist()
    out = bytearray((len(flat) + 7) // 8)
    for i, value in enumerate(flat):
        if not _is_bit(value):
            raise ValueError(f"has {shown(value)} at {i}: pass {_MASK}")
        out[i >> 3] |= int(value) << (i & 7)
    return bytes(out)


def check_count(count, num_tokens):
    """Refuses an array that has not one number for each token."""
    if count != num_tokens:
        raise ValueError(f"has {count} number{'' if count == 1 else 's'} for {num_tokens} response "
                         f"token{'' if num_tokens == 1 else 's'}: pass one for each")


def check_log_probs(data, mask):
    """Refuses the float32 wire bytes of log-probs of which one is above 0. mask: bits of the tokens that count, b"" for all."""
    numpy = sys.modules.get("numpy")  # where nobody has it, it is not worth its import
    values = unpack("f", data) if numpy is None else numpy.frombuffer(data, "<f4")
    if numpy is None:
        above = [i for i, value in enumerate(values) if value > _LOG_PROB_MAX]
    else:
        with numpy.errstate(invalid="ignore"):  # NaN, which may stand where the mask is 0
            above = numpy.flatnonzero(values > _LOG_PROB_MAX).tolist()
    index = next((i for i in above if _counts(i, mask)), None)
    if index is not None:
        raise ValueError(f"has {float(values[index]):.6g} at {index}: a log-prob is at most 0; if these are -log p, change "
                         "their sign")


def check_fits(values, data, mask):
    """Refuses numbers of which one is finite, and infinite in their float32 wire bytes. values: of flat_numbers. mask: as for
    check_log_probs."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        packed = unpack("f", data)
        has_any = math.inf in packed or -math.inf in packed
        infinite = [i for i, value in enumerate(packed) if math.isinf(value)] if has_any else ()
    else:
        infinite = numpy.flatnonzero(numpy.isinf(numpy.frombuffer(data, "<f4"))).tolist()
    for index in infinite:
        if _counts(index, mask) and not math.isinf(float(values[index])):
            raise ValueError(f"has {float(values[index])!r} at {index}: pass numbers that float32 holds, up to {_FLOAT32_MAX}")


def _counts(index, mask):
    """Whether a token is in the loss. mask: bits, b"" for all."""
    return not mask or (index >> 3 < len(mask) and mask[index >> 3] >> (index & 7) & 1)


def from_base64(text, width):
    """The wire bytes of a string in a trace's form; width: bytes of one entry."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = None
    if data is None or len(data) % width:
        raise ValueError(f"is text, {shown(text)}: {_NOT_TEXT} (a string in a dict is base64 of the wire bytes)")
    return data


def unpack_bits(data, count):
    """The first `count` bits as a list of 0 and 1."""
    return [data[i >> 3] >> (i & 7) & 1 for i in range(count)]


def unpack(code, data):
    """array.array of little-endian wire bytes; code as in the array module: "i", "f", "d"."""
    out = array.array(code)
    out.frombytes(data)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def is_array(value):
    """Whether a value is one number for each token rather than one number; an iterator counts as an array."""
    if hasattr(value, "ndim"):
        return value.ndim > 0
    return not isinstance(value, str) and hasattr(value, "__iter__")


def number(value):
    """One finite or infinite number of a Python number, numpy scalar or tensor with one element."""
    refusal = f"is {shown(value)}: pass one number for the whole response"
    if isinstance(value, (str, bytes)):
        raise ValueError(refusal)
    if is_masked(value):
        raise ValueError("is masked, which is no number: leave it out or pass one")
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except OverflowError:
        raise ValueError(f"is {shown(value)}: pass a number of at most {sys.float_info.max:g}") from None
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor of several elements
        raise ValueError(refusal) from None


def real(value):
    """A real number as Python's own, infinite where that holds none so large: numpy's small ones round, or wrap, what they are computed
    with. None: it is no real number, as text and bools are none."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_masked(value):
    """Whether a number is one of numpy's that is masked, which Python reads as NaN."""
    return isinstance(value, _masked_type()) and bool(sys.modules["numpy.ma"].is_masked(value))


def _masked_type():
    """The class of what may be masked; an empty tuple, of which nothing is an instance, where nobody has imported it."""
    masked = sys.modules.get("numpy.ma")
    return () if masked is None else masked.MaskedArray


def _flat(values, want):
    """A list or a one-dimensional numpy array of the values."""
    if isinstance(values, str):
        raise ValueError(f"is text, {shown(values)}: {_NOT_TEXT if want is _TOKENS else 'pass ' + want}")
    if isinstance(values, (bytes, bytearray, memoryview, dict, set, frozenset)):
        raise ValueError(f"is {shown(values)}, {_kind(values)}: pass {want}")
    if hasattr(values, "detach"):
        values = _from_tensor(values, want)
    if hasattr(values, "__array__"):
        return _from_numpy(values, want)
    if type(values) is not list:  # nobody here changes one
        try:
            values = list(values)
        except TypeError:
            raise ValueError(f"is {shown(values)}, {_kind(values)}: pass {want}") from None
    return _unmasked(values)


def _unmasked(values):
    """The list, which may come of a numpy array with masked entries."""
    if any(issubclass(kind, _masked_type()) for kind in set(map(type, values))) and any(map(is_masked, values)):
        raise ValueError(_MASKED)
    return values


def _from_tensor(tensor, want):
    """A torch tensor on any device, with or without gradient, as a numpy array; a list without numpy."""
    try:
        values = tensor.detach().cpu()
        if str(values.dtype).startswith(("torch.bfloat16", "torch.float16", "torch.float8")):
            values = values.float()
        try:
            import numpy
        except ImportError:
            return values.tolist()
        return numpy.asarray(values)
    except (TypeError, RuntimeError) as error:  # torch's: sparse, packed or without data
        why = str(error).partition("\n")[0][:60]
        raise ValueError(f"is a tensor of {tensor.dtype} that cannot be read ({why}): pass {want}") from None


def _from_numpy(values, want):
    import numpy

    out = numpy.asanyarray(values)  # what __array__ gives may have masked entries, too
    if numpy.ma.is_masked(out):
        raise ValueError(_MASKED)
    out = numpy.asarray(out)
    if out.dtype.name.startswith(("bfloat16", "float8")):  # numpy has none; the ml_dtypes package registers them
        out = out.astype(numpy.float32)
    if out.ndim != 1:
        hint = "; take one row of it" if out.ndim > 1 else ""
        raise ValueError(f"has shape {tuple(out.shape)}: pass {want}{hint}")
    if out.dtype.kind == "O":
        return _unmasked(out.tolist())
    return out


def _pack_list(code, values, want):
    try:
        packed = array.array(code, values)
    except (TypeError, ValueError, OverflowError):
        for i, value in enumerate(values):
            if code == "i" and hasattr(value, "__index__") and not is_array(value) and abs(int(value)) > _INT32_MAX:
                raise ValueError(f"has {int(value)} at {i}: token ids are not negative and fit int32") from None
            try:
                array.array(code, [value])
            except OverflowError:
                raise ValueError(f"has {shown(value)} at {i}: pass numbers that float32 holds, up to {_FLOAT32_MAX}") from None
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"has {shown(value)} at {i}, {_kind(value)}: pass {want}") from None
        raise
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _is_bit(value):
    try:
        return float(value) in (0.0, 1.0) and not isinstance(value, str)
    except (TypeError, ValueError):
        return False


def _is_numpy(values):
    return hasattr(values, "dtype")


def _kind(value):
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def shown(value):
    """The value as an error quotes it."""
    if is_masked(value):
        return "masked"
    try:
        text = repr(value)
    except ValueError:  # Python writes out no more than some thousand digits
        return f"a whole number of {value.bit_length()} bits"
    return text if len(text) <= 60 else text[:57] + "..."
