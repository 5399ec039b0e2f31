"""How far apart the two most likely tokens were where an answer was drawn."""

import json
import struct
import subprocess

import stack


def lab(*arguments, stdin=None):
    return subprocess.run([stack.BINARIES / "baton-lab", *arguments], check=True, input=stdin,
                          text=True, stdout=subprocess.PIPE).stdout


def prompts_of(model, ids):
    """Prompt token ids by case id, as the chat template renders them."""
    cases = {}
    for path in sorted(stack.CASES.glob("*.jsonl*")):
        text = subprocess.run(["zcat", "-f", path], check=True, stdout=subprocess.PIPE).stdout
        cases.update((case["id"], case) for case in map(json.loads, text.decode().splitlines()))
    lines = [json.dumps({"messages": cases[case]["messages"], "add_generation_prompt": True})
             for case in ids]
    answers = lab("tokenize", f"--model={stack.MODELS / model}", stdin="\n".join(lines) + "\n")
    return {case: json.loads(line)["ids"] for case, line in zip(ids, answers.splitlines())}


def gaps(model, prompt, row, threads, folder, compute="bf16"):
    """Distances of the two largest logits, one for each token of the row's answer, a stop token
    included."""
    name = folder / row["id"]
    tokens, out = name.with_suffix(".json"), name.with_suffix(".safetensors")
    tokens.write_text(json.dumps(prompt + row["token_ids"]))
    lab("logits", f"--model={stack.MODELS / model}", f"--input-ids={tokens}", f"--out={out}",
        f"--compute={compute}", f"--threads={threads}")
    distances = []
    with open(out, "rb") as file:
        header_bytes = struct.unpack("<Q", file.read(8))[0]
        entry = json.loads(file.read(header_bytes))["logits"]
        vocabulary = entry["shape"][1]
        begin = 8 + header_bytes + entry["data_offsets"][0]
        for position in range(len(prompt) - 1, len(prompt) - 1 + row["completion_tokens"]):
            file.seek(begin + 4 * vocabulary * position)
            logits = struct.unpack(f"<{vocabulary}f", file.read(4 * vocabulary))
            first, second = sorted(logits, reverse=True)[:2]
            distances.append(first - second)
    out.unlink()
    return distances
