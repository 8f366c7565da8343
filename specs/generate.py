"""Write spec.py and _codec.py of amqp_core/v0_10/ and amqp_core/v0_9/, and the properties of messages as columns.

They are made from the facts in specs/amqp_0_10/ and specs/amqp_0_9/.

Usage: python specs/generate.py [--check]

``--check`` writes nothing, prints a unified diff of what would change and exits 1 when there is one. Standard library
only; the output is already in the form that ``ruff format`` gives.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specs import emit_codec_0_9, emit_spec_0_9, facts_0_9
from specs.emit_codec import emit_codec
from specs.emit_spec import emit_properties, emit_spec
from specs.facts import APART, load

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "specs" / "amqp_0_10"
FACTS_0_9 = ROOT / "specs" / "amqp_0_9"


def generated() -> dict[str, str]:
    """Every generated file, from the root on, with the text it must have."""
    used, apart = load(FACTS).split(APART)
    served, unserved = facts_0_9.load(FACTS_0_9).split(facts_0_9.APART)
    return {
        "amqp_core/v0_10/spec.py": emit_spec(used),
        "amqp_core/v0_10/_codec.py": emit_codec(used),
        "amqp_core/v0_10/file_stream/spec.py": emit_spec(apart, apart=True),
        "amqp_core/v0_10/file_stream/_codec.py": emit_codec(apart, apart=True),
        "amqp_spark/arrow/v0_10/properties.py": emit_properties(used),
        "amqp_spark/arrow/v0_9/properties.py": emit_spec_0_9.emit_properties(served),
        "amqp_core/v0_9/spec.py": emit_spec_0_9.emit_spec(served),
        "amqp_core/v0_9/_codec.py": emit_codec_0_9.emit_codec(served),
        "amqp_core/v0_9/unserved/_codec.py": emit_codec_0_9.emit_codec(unserved, apart=True),
        "amqp_core/v0_9/unserved/spec.py": emit_spec_0_9.emit_spec(unserved, apart=True),
    }


def main(argv: list[str] | None = None) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 and print a diff if they differ")
    check = parser.parse_args(argv).check
    differ = False
    for name, text in generated().items():
        path = ROOT / name
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found == text:
            continue
        differ = True
        if check:
            now, then = found.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(now, then, name, f"{name} (from the facts)"))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
