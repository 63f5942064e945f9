"""The Python interface: one answer, several prompts together, a stream.

inferc compile "$(python examples/find_model.py smollm2)" -o smollm2.inferc
python examples/generate.py smollm2.inferc
"""

import sys

import inferc


def main(artifact: str) -> None:
    """Show the three ways to ask."""
    with inferc.load(artifact) as engine:
        (answer,) = engine.chat([{"role": "user", "content": "What is a cache?"}], max_tokens=48)
        print(answer.text, f"[{answer.finish_reason}, {answer.usage}]\n")

        prompts = ["The capital of France is", "Two plus two is", "Water boils at"]
        for completion in engine.generate(prompts, max_tokens=8, stop="."):
            print(prompts[completion.prompt_index], completion.text.strip())

        print()
        options = {"temperature": 0.8, "top_p": 0.95, "seed": 1, "max_tokens": 48}
        for event in engine.stream("Once upon a time", **options):
            print(event.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
