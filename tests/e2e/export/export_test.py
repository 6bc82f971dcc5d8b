"""Models in and out of `stemma local`: what an export holds, and that transformers agrees with it."""

import json
import os
import shutil

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import stemma
from oracle import hf64, models, requests, step, training

STEMMA = os.path.join(os.environ["STEMMA_BUILD_DIR"], "bin", "stemma")
SHAPE = [(9, [4, 1, 6]), (1, [2, 5]), (14, [3, 3])]
SHARD = "40KB"
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"


def server(model, **options):
    return stemma.LocalServer(model, binary=STEMMA, threads=1, **options)


def update(client, request, **options):
    header = request["header"]
    return client.update_actor(request["groups"], loss=header["loss"], adam=header["adam"], old="client", **options)


def contents(directory):
    return {name: open(os.path.join(directory, name), "rb").read() for name in os.listdir(directory)}


def tensors(directory):
    result = {}
    for name in os.listdir(directory):
        if name.endswith(".safetensors"):
            result.update(load_file(os.path.join(directory, name)))
    return result


def fp32_log_probs(directory, request):
    """By rollout_id, by transformers as a user has it: fp32, sdpa."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    result = {}
    for row in step.rows_of(request):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.prompt + row.response])).logits[0, len(row.prompt) - 1:-1]
        result[row.id] = hf64.log_probs_and_entropy(logits, row.response, 1.0)[0]
    return result


@pytest.mark.parametrize("spec,run_dtype,shard", [
    (models.Spec("llama"), "fp32", "1GB"), (models.Spec("llama"), "fp32", SHARD),
    (models.Spec("qwen2", tied=True, dtype="bfloat16"), "fp32", "1GB"),
    (models.Spec("qwen3", head_size=16, dtype="bfloat16"), "bf16", SHARD),
    (models.Spec("qwen3", head_size=16, dtype="float16"), "fp64", SHARD),
    (models.Spec("mistral", head_size=16, dtype="bfloat16"), "fp32", SHARD),
], ids=["fp32", "fp32 sharded", "bf16 tied in an fp32 run", "bf16 sharded", "fp16 sharded in an fp64 run",
        "mistral, bf16 sharded in an fp32 run"])
def test_an_export_before_any_step_is_byte_for_byte_what_was_loaded(spec, run_dtype, shard, tmp_path):
    loaded = models.make(str(tmp_path / "model"), spec, shard)
    if shard == SHARD:
        assert os.path.exists(os.path.join(loaded, "model.safetensors.index.json"))
    with server(loaded, dtype=run_dtype, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        exported = contents(client.export("untouched"))
    original = contents(loaded)
    assert exported.keys() == original.keys()
    assert [name for name in original if exported[name] != original[name]] == []


MESSAGES = [{"role": "user", "content": "hi"}]
TEMPLATES = {"default": "D{{ messages[0].content }}", "tool_use": "T{{ messages[0].content }}"}


def rendered(directory):
    """What a tokenizer makes of a conversation with tools, for which it takes the template tool_use, and of one without."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]
    return [tokenizer.apply_chat_template(MESSAGES, tools=given, tokenize=False) for given in (tools, None)]


def make_with_templates(folder):
    """A model whose tokenizer has TEMPLATES."""
    loaded = models.make(folder, models.Spec("llama"))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hi": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = TEMPLATES
    tokenizer.save_pretrained(loaded)
    return loaded


def test_a_tokenizer_of_several_chat_templates_is_the_same_after_an_export(tmp_path):
    loaded = make_with_templates(str(tmp_path / "model"))
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        exported = client.export("chats")
        client.delete_export(os.path.basename(client.export("gone")))
    assert os.listdir(tmp_path / "data" / "exports") == ["chats"]
    assert rendered(exported) == rendered(loaded) == ["Thi", "Dhi"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tokenizer_of_several_chat_templates_is_the_same_in_a_checkpoint_and_what_goes_on_from_it(workers, tmp_path):
    """As the model directory, and as the checkpoint that another data directory begins with."""
    loaded, log = make_with_templates(str(tmp_path / "model")), tmp_path / "log"
    (tmp_path / "model" / "additional_chat_templates" / "rag+tools.jinja").write_text("")
    with server(loaded, data=str(tmp_path / "data"), workers=workers, log=log) as local, stemma.Client(local.address) as client:
        saved = client.save_checkpoint("k").path
        assert client.verify_checkpoint("k").damage == ""
    assert log.read_text().count('additional_chat_templates/"rag+tools.jinja" is not a valid name') == 1, "of one rank"
    assert rendered(saved) == ["Thi", "Dhi"]
    moved = tmp_path / "resumed" / "checkpoints" / "k"
    moved.parent.mkdir(parents=True)
    shutil.copytree(saved, moved)
    for data in ("as-a-model", "resumed"):
        with server(saved, data=str(tmp_path / data), workers=workers) as local, stemma.Client(local.address) as client:
            assert [known.name for known in client.list_checkpoints()] == (["k"] if data == "resumed" else [])
            assert rendered(client.export("chats")) == ["Thi", "Dhi"], data
            assert rendered(client.save_checkpoint("next").path) == ["Thi", "Dhi"], data
            client.save_checkpoint("newest")
            client.delete_checkpoint("next")
        assert not (tmp_path / data / "checkpoints" / "next").exists()


@pytest.mark.parametrize("shard", ["1GB", "10KB"], ids=["one file", "sharded"])
@pytest.mark.parametrize("embedding,head", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_tied_head_of_another_dtype_is_exported_as_its_embedding(embedding, head, shard, tmp_path):
    loaded = write_tied_model(str(tmp_path / "model"), shard, embedding, head)
    request = requests.make(hf64.Hf64(loaded), SHAPE, requests.LOSSES["vanilla"], masks="none")
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        untouched = tensors(client.export("untouched"))
        update(client, request)
        exported = client.export("after")
    for held in (untouched, tensors(exported)):
        assert held[EMBEDDING].dtype == held["lm_head.weight"].dtype == embedding
        assert torch.equal(held[EMBEDDING], held["lm_head.weight"])
    if shard != "1GB":
        total_size = json.load(open(os.path.join(exported, INDEX)))["metadata"]["total_size"]
        assert total_size == sum(value.numel() * value.element_size() for value in tensors(exported).values())
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with server(exported, data=str(tmp_path / "again")) as local, stemma.Client(local.address) as client:
        assert client.model()["step"] == 0, "it is a model of ours too"


def write_tied_model(folder, shard, embedding, head):
    """Its files have the embedding a second time, under the head's name, in dtypes of their own."""
    loaded = models.make(folder, models.Spec("qwen2", tied=True, dtype="bfloat16"), shard)
    files = {name: load_file(os.path.join(loaded, name)) for name in os.listdir(loaded) if name.endswith(".safetensors")}
    name, held = next((name, held) for name, held in files.items() if EMBEDDING in held)
    held["lm_head.weight"] = held[EMBEDDING].to(head)
    held[EMBEDDING] = held[EMBEDDING].to(embedding)
    save_file(held, os.path.join(loaded, name), metadata={"format": "pt"})
    if len(files) > 1:
        index = json.load(open(os.path.join(loaded, INDEX)))
        index["weight_map"]["lm_head.weight"] = name
        json.dump(index, open(os.path.join(loaded, INDEX), "w"))
    return loaded


@pytest.mark.parametrize("family,shard", [("llama", "1GB"), ("qwen2", SHARD), ("qwen3", "1GB"), ("qwen3_moe", SHARD)])
def test_transformers_opens_an_export_after_a_step_and_finds_our_log_probs(family, shard, tmp_path):
    loaded = models.make(str(tmp_path / "model"), models.Spec(family), shard)
    request = requests.make(hf64.Hf64(loaded), SHAPE, requests.LOSSES["vanilla"], masks="none")
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        update(client, request)
        exported = client.export("after")
        ours = {name: torch.tensor(list(result.log_probs), dtype=torch.float32)
                for name, result in client.log_probs(request["groups"]).items()}
    before, after = tensors(loaded), tensors(exported)
    assert before.keys() == after.keys()
    moved = sum(not torch.equal(before[name], after[name]) for name in before)
    assert moved == len(before), "AdamW with decay moves every tensor"
    theirs = fp32_log_probs(exported, request)
    # fp32: 2^-24 relative on logits of size 10 in sums of 64 terms, both sides; a wrong weight gives 1e-3 and more.
    worst = max((ours[name] - value).abs().max().item() for name, value in theirs.items())
    assert worst < 2e-5, worst
    stale = fp32_log_probs(loaded, request)
    assert max((ours[name] - value).abs().max().item() for name, value in stale.items()) > 1e-3, "control: the old weights"


def test_a_float64_export_of_an_fp64_run_holds_the_oracle_s_weights(tmp_path):
    loaded = models.make(str(tmp_path / "model"), models.Spec("qwen3", head_size=16))
    oracle = hf64.Hf64(loaded)
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none")
    with server(loaded, dtype="fp64", data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        result = update(client, request)
        exported = tensors(client.export("exact", dtype="float64"))
    expected, history = training.train(oracle, request)
    unit = request["header"]["adam"]["learning_rate"]
    assert exported.keys() == expected.keys()
    for name, value in expected.items():
        assert exported[name].dtype == torch.float64
        assert (exported[name] - value).abs().max() < 1e-6 * unit, name  # why 1e-6: tests/schedule/steps_test.py
    assert abs(result.metrics["actor/loss"] - history[0].loss) < 1e-12
    assert abs(result.metrics["actor/grad_norm"] / history[0].norm - 1) < 1e-12


def test_an_export_that_is_deleted_leaves_its_name_and_the_others(tmp_path):
    loaded = models.make(str(tmp_path / "model"), models.Spec("llama"), SHARD)
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        kept, path = client.export("kept"), client.export("round-1")
        with pytest.raises(stemma.StemmaError, match="EXPORT_EXISTS"):
            client.export("round-1")
        assert sorted(os.listdir(tmp_path / "data" / "exports")) == ["kept", "round-1"]
        client.delete_export("round-1")
        assert not os.path.exists(path) and contents(kept) == contents(loaded)
        with pytest.raises(stemma.StemmaError, match="there is no export round-1"):
            client.delete_export("round-1")
        for no_name in ("../checkpoints", ".tmp-x", "kept/config.json"):
            with pytest.raises(stemma.StemmaError, match="is not a valid name"):
                client.delete_export(no_name)
        assert client.export("round-1") == path and contents(path) == contents(loaded)
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        client.delete_export("round-1")  # another server wrote it
    assert os.listdir(tmp_path / "data" / "exports") == ["kept"]


def test_a_hub_cache_s_snapshot_of_links_loads_and_exports_regular_files(tmp_path):
    snapshot = models.make_snapshot(str(tmp_path / "cache"), models.Spec("llama"), SHARD)
    assert all(os.path.islink(os.path.join(snapshot, name)) for name in os.listdir(snapshot))
    with server(snapshot, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        exported = client.export("copy")
    assert contents(exported) == contents(snapshot)
    assert not any(os.path.islink(os.path.join(exported, name)) for name in os.listdir(exported))


def write_odd_model(folder, metadata):
    """A sharded model whose index has that metadata, and a tensor that the model does not use."""
    loaded = models.make(folder, models.Spec("llama"), SHARD)
    index = json.load(open(os.path.join(loaded, INDEX)))
    index["metadata"] = metadata
    first = sorted(set(index["weight_map"].values()))[0]
    held = load_file(os.path.join(loaded, first))
    held["model.rotary_emb.inv_freq"] = torch.arange(7, dtype=torch.float32)
    index["weight_map"]["model.rotary_emb.inv_freq"] = first
    save_file(held, os.path.join(loaded, first), metadata={"format": "pt"})
    json.dump(index, open(os.path.join(loaded, INDEX), "w"))
    return loaded


@pytest.mark.parametrize("metadata", ["a text", {"total_size": 1, "kept": [1]}], ids=["no object", "an object"])
def test_the_index_of_another_dtype_counts_every_tensor(metadata, tmp_path):
    loaded = write_odd_model(str(tmp_path / "model"), metadata)
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        exported = client.export("narrow", dtype="bfloat16")
        client.export("again")  # the worker is there
    held = tensors(exported)
    unused = held["model.rotary_emb.inv_freq"]
    assert unused.dtype == torch.float32 and torch.equal(unused, torch.arange(7.0)), "copied as it is"
    assert all(value.dtype == torch.bfloat16 for name, value in held.items() if "rotary" not in name)
    written = json.load(open(os.path.join(exported, INDEX)))["metadata"]
    assert written["total_size"] == sum(value.numel() * value.element_size() for value in held.values())
    assert written.get("kept") == (None if metadata == "a text" else [1])


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_weights_are_not_written_beside_the_config_of_another_model(dtype, tmp_path):
    loaded = models.make(str(tmp_path / "model"), models.Spec("llama"), SHARD)
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        config = os.path.join(loaded, "config.json")
        with open(config) as file:
            held = json.load(file)
        with open(config, "w") as file:
            json.dump({**held, "rms_norm_eps": 0.25}, file)
        with pytest.raises(stemma.StemmaError, match="has changed since the model was loaded: rms_norm_eps is another one"):
            client.export("broken", dtype=dtype)
        assert os.listdir(tmp_path / "data" / "exports") == []


@pytest.mark.parametrize("name,text", [("config.json", "[1]"), (INDEX, "7"), ("config.json", "{"), (INDEX, "[" * 100000)])
def test_a_file_that_changed_after_loading_is_an_error_and_the_worker_stays(name, text, tmp_path):
    loaded = models.make(str(tmp_path / "model"), models.Spec("llama"), SHARD)
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        lineage = client.model()["lineage"]
        with open(os.path.join(loaded, name), "w") as file:
            file.write(text)
        with pytest.raises(stemma.StemmaError, match=f"{name}.*has changed since the model was loaded"):
            client.export("broken", dtype="bfloat16")
        assert client.model()["lineage"] == lineage and client.model()["state"] == "IDLE"
        assert os.listdir(tmp_path / "data" / "exports") == []


def test_a_model_directory_that_has_gone_is_named(tmp_path):
    loaded = models.make(str(tmp_path / "model"), models.Spec("llama"), SHARD)
    with server(loaded, data=str(tmp_path / "data")) as local, stemma.Client(local.address) as client:
        client.model()
        os.rename(loaded, loaded + ".away")
        for copy in (client.export, client.save_checkpoint):
            with pytest.raises(stemma.StemmaError, match="json: has gone since the model was loaded, .*put the model directory back"):
                copy("broken")
        os.rename(loaded + ".away", loaded)
        client.export("whole")
        assert os.listdir(tmp_path / "data" / "exports") == ["whole"]
