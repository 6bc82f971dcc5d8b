"""The policy outside Stemma: how its start model is made, and how answers are sampled from the exported weights."""

import pathlib
import shutil
import subprocess

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

import task

logging.disable_progress_bar()

# 592,960 parameters. The bytes depend on the seed only.
ARCHITECTURE = ["--family", "qwen3", "--hidden", "128", "--layers", "3", "--heads", "4", "--kv-heads", "2", "--head-size",
                "32", "--ffn", "384", "--vocab", str(task.VOCAB_SIZE), "--max-positions", "512", "--tied"]


def make_start_model(stemma_binary, path, seed):
    """Writes the untrained model as a Hugging Face directory."""
    subprocess.run([stemma_binary, "model", "init", path, *ARCHITECTURE, "--seed", str(seed)], check=True,
                   capture_output=True)
    return pathlib.Path(path)


class Sampler:
    """Samples with transformers; the prompt is computed once for all its answers, as Stemma does in training."""

    def __init__(self, model_path, seed):
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self._generator = torch.Generator().manual_seed(seed)

    def load(self, exported_path):
        """Takes over exported weights and removes the export."""
        weights = {}
        for file in pathlib.Path(exported_path).glob("*.safetensors"):
            weights.update(load_file(file))
        wrong = self._model.load_state_dict(weights, strict=False)
        if wrong.unexpected_keys or [k for k in wrong.missing_keys if k != "lm_head.weight"]:  # tied: not in the file
            raise RuntimeError(f"the export does not fit the model: {wrong}")
        shutil.rmtree(exported_path)

    @torch.no_grad()
    def sample(self, prompts, num_answers):
        """answers[prompt][answer]: lists of tokens. All prompts have one length."""
        prompt_tokens = torch.tensor(prompts)
        cache = DynamicCache(config=self._model.config)
        self._model(prompt_tokens[:, :-1], past_key_values=cache)
        cache.batch_repeat_interleave(num_answers)
        token, answer = prompt_tokens[:, -1:].repeat_interleave(num_answers, 0), []
        for _ in range(task.ANSWER_TOKENS):
            logits = self._model(token, past_key_values=cache).logits[:, -1]
            token = torch.multinomial(logits.softmax(-1), 1, generator=self._generator)
            answer.append(token)
        flat = torch.cat(answer, 1).tolist()
        return [flat[i:i + num_answers] for i in range(0, len(flat), num_answers)]
