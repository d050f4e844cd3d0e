"""How large the project is: lines of Python by folder, tests, JavaScript, and words of documents (`make lines`)."""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
BESIDE = ("tests", "docs", "benchmarks", "notebooks")  # counted by themselves


def folder_of(file: Path) -> str:
    """Returns the folder by which a file is counted: that at the top, or a package of lingua_flax."""
    depth = 2 if file.parts[0] == "lingua_flax" else 1
    return "/".join(file.parts[:depth]) if len(file.parts) > depth else str(file.parent)


def main() -> None:
    """Prints the numbers of all files that git has."""
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    counts: dict[str, Counter[str]] = {"Python": Counter(), "JavaScript": Counter(), "words": Counter()}
    for file in map(Path, names):
        if file.suffix in (".py", ".js", ".md") and (ROOT / file).is_file():
            text = (ROOT / file).read_text(encoding="utf-8")
            kind = {".py": "Python", ".js": "JavaScript", ".md": "words"}[file.suffix]
            counts[kind][folder_of(file)] += len(text.split()) if kind == "words" else text.count("\n")
    python = counts.pop("Python")
    for folder, lines in sorted(python.items()):
        if folder not in BESIDE:
            print(f"{lines:7,}  {'scripts' if folder == '.' else folder}")
    total = sum(lines for folder, lines in python.items() if folder not in BESIDE)
    print(f"{total:7,}  lines of Python in all, beside:")
    for folder in BESIDE:
        print(f"{python[folder]:7,}  {folder}")
    print(f"{sum(counts['JavaScript'].values()):7,}  lines of JavaScript")
    print(f"{sum(counts['words'].values()):7,}  words in {sum(name.endswith('.md') for name in names)} Markdown files")


if __name__ == "__main__":
    main()
